//! A store's root in its pool.

use crate::error::StoreError;
use crate::limits::{INDEX_SUFFIX, MAX_NAME_BYTES};
use crate::options::Layout;
use bristlecone_pmem::pool::{DataKind, Root, RootError, RootKind};
use bristlecone_pmem::{Media, PWord, Pool};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The design that the root table names for a store.
const DESIGN: &str = "store";

/// Root word: the format.
const WORD_FORMAT: usize = 0;
/// Root word: offset of the commit table, of a store of records.
pub(crate) const WORD_SLOTS: usize = 1;
/// Root word: 1 while a backup is being restored into the store.
pub(crate) const WORD_UNFINISHED: usize = 2;
/// Root word, of a store of records: 1 while the store is open for writing, and afterwards unless
/// it was closed in order, which makes it 2. In a store that only earlier builds have written it is
/// 0, which says neither.
pub(crate) const WORD_OPEN: usize = 3;
/// The word of a store that was closed in order.
pub(crate) const CLOSED_IN_ORDER: u64 = 2;

/// How a store keeps its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// In version records outside an index.
    Records,
    /// In a clustered tree.
    Tree,
}

impl Format {
    /// The formats that this build reads.
    const ALL: [Self; 2] = [Self::Records, Self::Tree];

    /// The version of the format.
    fn version(self) -> u64 {
        match self {
            Self::Records => 2,
            Self::Tree => 3,
        }
    }

    /// The layout that callers know it by.
    pub(crate) fn layout(self) -> Layout {
        match self {
            Self::Records => Layout::Records,
            Self::Tree => Layout::Clustered,
        }
    }
}

/// A store's root, opened.
pub(crate) struct StoreRoot<M: Media> {
    pub root: Root<M>,
    /// Name of the index's root.
    pub index_name: String,
    pub format: Format,
}

/// The kind of a store's root.
pub(crate) fn kind() -> RootKind {
    RootKind {
        design: DESIGN.into(),
        keys: DataKind::Bytes,
        values: DataKind::Bytes,
        node_bytes: 0,
    }
}

/// Returns the name of the root of a store's index.
///
/// # Errors
/// [`StoreError::BadName`]
pub(crate) fn index_root(name: &str) -> Result<String, StoreError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(StoreError::BadName(name.to_owned()));
    }
    Ok(format!("{name}{INDEX_SUFFIX}"))
}

/// Makes the root of a new store, unpublished.
///
/// # Errors
/// [`StoreError::Root`]
pub(crate) fn create<M: Media>(pool: &Arc<Pool<M>>, name: &str) -> Result<Root<M>, StoreError> {
    if pool.roots().iter().any(|root| root.name == name) {
        return Err(RootError::Exists(name.to_owned()).into());
    }
    Ok(pool.create_root(name, &kind())?)
}

/// Writes the words of a new store's root, whose index is there, and publishes it.
///
/// # Errors
/// [`StoreError`]; it is not published then.
pub(crate) fn publish<M: Media>(
    root: &Root<M>,
    format: Format,
    slots: u64,
    unfinished: bool,
) -> Result<(), StoreError> {
    let pm = root.pool().pm();
    for (word, value) in [
        (WORD_FORMAT, format.version()),
        (WORD_SLOTS, slots),
        (WORD_UNFINISHED, u64::from(unfinished)),
        (WORD_OPEN, 0),
    ] {
        // ORDERING: Relaxed; the root is not published.
        root.word(word).store(pm, value, Ordering::Relaxed);
        // PERSIST: the root's words; fenced by `publish`, before the root is.
        pm.flush_of(root.word(word));
    }
    root.publish();
    pm.commit().inspect_err(|_| root.unpublish())?;
    Ok(())
}

/// Opens the root of a store. This build must read its format, and it must not be unfinished.
///
/// # Errors
/// [`StoreError`]
pub(crate) fn open<M: Media>(pool: &Arc<Pool<M>>, name: &str) -> Result<StoreRoot<M>, StoreError> {
    let index_name = index_root(name)?;
    let root = pool.open_root(name, Some(&kind()))?;
    let pm = pool.pm();
    let found = word(pm, root.word(WORD_FORMAT));
    let format = Format::ALL
        .into_iter()
        .find(|format| format.version() == found);
    let Some(format) = format else {
        return Err(StoreError::NewerVersion {
            found,
            supported: Format::Tree.version(),
        });
    };
    if word(pm, root.word(WORD_UNFINISHED)) != 0 {
        return Err(StoreError::Unfinished(name.to_owned()));
    }
    Ok(StoreRoot {
        root,
        index_name,
        format,
    })
}

/// Returns a word of a root that is being opened.
pub(crate) fn word<M: Media>(pm: &M, word: &PWord) -> u64 {
    // ORDERING: Relaxed; the root is being opened.
    word.load(pm, Ordering::Relaxed)
}
