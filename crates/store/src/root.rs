//! A store's root in its pool.

use crate::error::StoreError;
use crate::limits::{INDEX_SUFFIX, MAX_NAME_BYTES};
use bristlecone_pmem::pool::{DataKind, Root, RootError, RootKind};
use bristlecone_pmem::{Media, PWord, Pool};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The design that the root table names for a store.
const DESIGN: &str = "store";

/// Root word: the format.
const WORD_FORMAT: usize = 0;
/// Root word: a number of the format's own. The commit table's offset in NV-Store, 0 in a store on
/// a clustered tree.
pub const WORD_OWN: usize = 1;
/// Root word: 1 while a backup is being restored into the store.
pub(crate) const WORD_UNFINISHED: usize = 2;
/// Root word: whether the store is open, for formats that keep count of it; 0 in one that is new.
pub const WORD_OPEN: usize = 3;

/// A store's root, opened.
pub struct StoreRoot<M: Media> {
    /// The root.
    pub root: Root<M>,
    /// Name of the index's root.
    pub index_name: String,
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
pub fn index_root(name: &str) -> Result<String, StoreError> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(StoreError::BadName(name.to_owned()));
    }
    Ok(format!("{name}{INDEX_SUFFIX}"))
}

/// Makes the root of a new store, unpublished.
///
/// # Errors
/// [`StoreError::Root`]
pub fn create<M: Media>(pool: &Arc<Pool<M>>, name: &str) -> Result<Root<M>, StoreError> {
    if pool.roots().iter().any(|root| root.name == name) {
        return Err(RootError::Exists(name.to_owned()).into());
    }
    Ok(pool.create_root(name, &kind())?)
}

/// Writes the words of a new store's root, whose index is there, and publishes it. `own` is the
/// word of the format's own.
///
/// # Errors
/// [`StoreError`]; it is not published then.
pub fn publish<M: Media>(
    root: &Root<M>,
    version: u64,
    own: u64,
    unfinished: bool,
) -> Result<(), StoreError> {
    let pm = root.pool().pm();
    for (word, value) in [
        (WORD_FORMAT, version),
        (WORD_OWN, own),
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

/// Opens the root of a store.
///
/// # Errors
/// [`StoreError`]
pub(crate) fn open<M: Media>(pool: &Arc<Pool<M>>, name: &str) -> Result<StoreRoot<M>, StoreError> {
    let index_name = index_root(name)?;
    let root = pool.open_root(name, Some(&kind()))?;
    Ok(StoreRoot { root, index_name })
}

impl<M: Media> StoreRoot<M> {
    /// Returns the version of the store's format.
    pub(crate) fn version(&self) -> u64 {
        word(self.root.pool().pm(), self.root.word(WORD_FORMAT))
    }

    /// Checks that no restore into the store was cut short.
    ///
    /// # Errors
    /// [`StoreError::Unfinished`]
    pub(crate) fn check_finished(&self, name: &str) -> Result<(), StoreError> {
        if word(self.root.pool().pm(), self.root.word(WORD_UNFINISHED)) != 0 {
            return Err(StoreError::Unfinished(name.to_owned()));
        }
        Ok(())
    }
}

/// Returns a word of a root that is being opened.
pub fn word<M: Media>(pm: &M, word: &PWord) -> u64 {
    // ORDERING: Relaxed; the root is being opened.
    word.load(pm, Ordering::Relaxed)
}
