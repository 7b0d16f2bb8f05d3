//! Formats of stores. A store's root says which one it has.
//!
//! | version | format | opened by |
//! | --- | --- | --- |
//! | 2 | version records outside an index: NV-Store | the research crate `bristlecone-nv-store` |
//! | 3 | a clustered tree | [`Store::open`](crate::Store::open) |

use crate::engine::{Shares, StorageEngine};
use crate::error::StoreError;
use crate::options::StoreOptions;
use crate::report::{SalvageReport, Salvaged};
use crate::root::{self, StoreRoot};
use crate::tree::DESIGN;
use bristlecone_pmem::{Media, Pool, VersionError};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Version of the format of NV-Store, which this crate does not open by itself.
pub const NV_STORE: u64 = 2;
/// Version of the format on a clustered tree.
pub const CLUSTERED: u64 = 3;

/// A format of a store: makes, opens and salvages the stores that have it.
pub trait StoreFormat<M: Media>: Sync {
    /// Returns its version, which the roots of its stores have.
    fn version(&self) -> u64;

    /// Makes an empty store, as the roots `name` and that of its index, and
    /// [publishes](crate::engine::publish_root) it. With `unfinished` it cannot be opened until
    /// that mark is removed.
    ///
    /// # Errors
    /// [`StoreError`]; no store is left behind.
    fn create(
        &self,
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        unfinished: bool,
        shares: Shares,
    ) -> Result<Box<dyn StorageEngine<M>>, StoreError>;

    /// Opens the store of that root, which has this format.
    ///
    /// # Errors
    /// [`StoreError`]
    fn open(
        &self,
        pool: &Arc<Pool<M>>,
        store: StoreRoot<M>,
        options: &StoreOptions,
        shares: Shares,
    ) -> Result<Box<dyn StorageEngine<M>>, StoreError>;

    /// Visits what the store of that root, which has this format, still has. See
    /// [`Store::salvage`](crate::Store::salvage).
    ///
    /// # Errors
    /// [`StoreError`]: the store as a whole is damaged.
    fn salvage(
        &self,
        pool: &Arc<Pool<M>>,
        store: &StoreRoot<M>,
        now: u64,
        visit: &mut dyn FnMut(Salvaged<'_>) -> ControlFlow<()>,
    ) -> Result<SalvageReport, StoreError>;
}

/// Opens the root of a store, and finds which of these formats it has. The store must not be
/// unfinished.
///
/// # Errors
/// [`StoreError`]
pub(crate) fn open<'f, M: Media>(
    pool: &Arc<Pool<M>>,
    name: &str,
    formats: &[&'f dyn StoreFormat<M>],
) -> Result<(StoreRoot<M>, &'f dyn StoreFormat<M>), StoreError> {
    let store = root::open(pool, name)?;
    let found = store.version();
    let Some(format) = formats.iter().find(|format| format.version() == found) else {
        return Err(refused(name, found));
    };
    store.check_finished(name)?;
    Ok((store, *format))
}

/// Versions that are told from damage: more than there will be.
const VERSIONS: u64 = 256;

/// As [`open`], for reading what is whole. In a pool that is salvaged it goes past damage of the
/// store's own root words, which it adds to `passed`.
///
/// # Errors
/// [`StoreError`]
pub(crate) fn open_to_salvage<'f, M: Media>(
    pool: &Arc<Pool<M>>,
    name: &str,
    formats: &[&'f dyn StoreFormat<M>],
    passed: &mut Vec<String>,
) -> Result<(StoreRoot<M>, &'f dyn StoreFormat<M>), StoreError> {
    if !pool.is_salvaged() {
        return open(pool, name, formats);
    }
    let store = root::open(pool, name)?;
    let mut found = store.version();
    let index = pool.roots().into_iter();
    let mut index = index.filter(|root| root.name == store.index_name);
    // A number that is no version's is damage; no other format has an index of that design.
    if found >= VERSIONS && index.any(|root| root.kind.design == DESIGN) {
        passed.push(format!(
            "the root of store {name:?} says format {found}; its index is of format {CLUSTERED}"
        ));
        found = CLUSTERED;
    }
    if let Err(e) = store.check_finished(name) {
        passed.push(e.to_string());
    }
    let format = formats.iter().find(|format| format.version() == found);
    let format = format.ok_or_else(|| refused(name, found))?;
    Ok((store, *format))
}

/// Returns why a store of that format was not opened: it is none of those that were asked for.
fn refused(name: &str, found: u64) -> StoreError {
    let (format, advice) = match found {
        NV_STORE => (
            "NV-Store",
            "this build does not open, since it opens version 3: back it up with a program that does, such as one with the \
             crate bristlecone-nv-store, and restore the backup here",
        ),
        CLUSTERED => (
            "a clustered tree",
            "it was not opened for: open it with `Store::open`",
        ),
        _ => {
            return StoreError::Version(VersionError {
                format: "store",
                found,
                oldest: CLUSTERED,
                newest: CLUSTERED,
            });
        }
    };
    StoreError::OtherFormat {
        store: name.to_owned(),
        format,
        version: found,
        advice,
    }
}
