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

/// Root words of archives: for each of [`ARCHIVES`], its number, the token of its next mark or its
/// last one, and that of the one before.
const WORD_ARCHIVES: usize = 8;
/// Archives that a store can be written to in turns.
const ARCHIVES: usize = 8;

/// Returns the two tokens that a store has of the archive with that number; 0 where it has none.
pub(crate) fn tokens<M: Media>(root: &Root<M>, archive: u64) -> [u64; 2] {
    let pm = root.pool().pm();
    match slot_of(root, archive) {
        Some(at) if archive != 0 => [1, 2].map(|i| word(pm, root.word(at + i))),
        _ => [0; 2],
    }
}

/// Where the root has an archive.
fn slot_of<M: Media>(root: &Root<M>, archive: u64) -> Option<usize> {
    let slots = (0..ARCHIVES).map(|i| WORD_ARCHIVES + i * 3);
    let mut there = slots.filter(|at| word(root.pool().pm(), root.word(*at)) == archive);
    there.next()
}

/// Stores the two tokens of an archive, the earlier one first. They are durable once the caller has
/// committed.
pub(crate) fn put_tokens<M: Media>(root: &Root<M>, archive: u64, [next, last]: [u64; 2]) {
    let pm = root.pool().pm();
    let there = slot_of(root, archive);
    // An archive that is not used any more makes room.
    let usual = WORD_ARCHIVES + (archive % ARCHIVES as u64) as usize * 3;
    let at = there.or_else(|| slot_of(root, 0)).unwrap_or(usual);
    for (i, value) in [(2, last), (1, next), (0, archive)] {
        let cell = root.word(at + i);
        if word(pm, cell) != value {
            // PERSIST: (in `publish`) each before the next: a crash leaves the archive's last token
            // in one of the two words.
            cell.publish(pm, value);
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_pmem::PoolOptions;
    use bristlecone_pmem::media::Dram;

    #[test]
    fn names_of_stores_have_bounds() {
        let longest = "n".repeat(MAX_NAME_BYTES);
        assert_eq!(index_root("s").unwrap(), "s.index");
        assert_eq!(index_root(&longest).unwrap(), format!("{longest}.index"));
        for wrong in ["", &format!("{longest}n")] {
            let e = index_root(wrong).unwrap_err();
            assert!(
                matches!(&e, StoreError::BadName(name) if name == wrong),
                "{e}"
            );
        }
    }

    #[test]
    fn the_tokens_of_several_archives_are_kept() {
        let pool = Pool::<Dram>::create("tokens".as_ref(), &PoolOptions::default()).unwrap();
        let root = create(&pool, "s").unwrap();
        assert_eq!(tokens(&root, 1), [0; 2]);
        put_tokens(&root, 1, [10, 0]);
        // What a crash in the midst of another's first ones leaves.
        root.word(WORD_ARCHIVES + 4).publish(pool.pm(), 99);
        assert_eq!(tokens(&root, 0), [0; 2]);
        put_tokens(&root, 1, [11, 10]);
        assert_eq!(tokens(&root, 1), [11, 10]);
        let archives = ARCHIVES as u64;
        for archive in 2..=archives {
            put_tokens(&root, archive, [archive * 10 + 1, archive * 10]);
        }
        for archive in 1..=archives {
            let expected = [archive * 10 + 1, archive * 10];
            assert_eq!(tokens(&root, archive), expected, "{archive}");
        }
        // One more takes the place of another.
        for more in [archives + 3, 5 * archives + 6, u64::MAX - 5] {
            put_tokens(&root, more, [more, 1]);
            assert_eq!(tokens(&root, more), [more, 1]);
        }
        let all = (1..=archives).filter(|archive| tokens(&root, *archive) != [0; 2]);
        assert_eq!(all.count() as u64, archives - 3);
        // The words of the root before them are others'.
        let pm = pool.pm();
        assert!((0..WORD_ARCHIVES).all(|i| word(pm, root.word(i)) == 0));
    }

    #[test]
    fn a_root_that_is_there_is_not_made_again() {
        let pool = Pool::<Dram>::create("roots".as_ref(), &PoolOptions::default()).unwrap();
        let root = create(&pool, "s").unwrap();
        publish(&root, 3, 9, true).unwrap();
        let e = create(&pool, "s").map(|_| ()).unwrap_err();
        let StoreError::Root(RootError::Exists(name)) = e else {
            panic!("{e}");
        };
        assert_eq!(name, "s");
        create(&pool, "other").unwrap();
        drop(root);
        let store = open(&pool, "s").unwrap();
        assert_eq!((store.version(), &*store.index_name), (3, "s.index"));
        assert_eq!(word(pool.pm(), store.root.word(WORD_OWN)), 9);
        let e = store.check_finished("s").unwrap_err();
        assert!(
            matches!(&e, StoreError::Unfinished(name) if name == "s"),
            "{e}"
        );
    }
}
