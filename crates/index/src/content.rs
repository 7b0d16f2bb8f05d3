//! Root words of every design but the clustered tree: the version of its format, and a sum of its
//! content, which a clean close stores and the next opening compares.
//!
//! ```text
//! root word 110 | link to the version
//! root word 111 | CRC-32C of all keys and values in order | the same, inverted |       0: none
//! ```
//!
//! Numbers lie in the words of nodes, with no room for a sum beside them that a change could keep
//! without a further flush. So what the medium does to them while nobody has the index open is
//! found at the next opening, which reads all of it once. Byte strings have sums of their own
//! besides.
//!
//! # Crash states
//! The word is set, by NAW, when the last change is durable, and cleared, by NAW, before the first
//! one. So if it is there, the content is that of the close.

use crate::contract::{OrderedIndex, TreeError};
use crate::damage;
use crate::link;
use crate::repr::{Stored, StoredKey};
use bristlecone_pmem::pool::{ROOT_WORDS, Root};
use bristlecone_pmem::{Media, VersionError};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

/// The root word of the version.
const VERSION: usize = ROOT_WORDS - 2;
/// The root word of the sum.
const WORD: usize = ROOT_WORDS - 1;
/// The version that this build reads and writes. The one before had no word for it.
pub const FORMAT: u64 = 2;
/// That of the designs whose counts or links were not under a check before.
pub const FORMAT_CHECKED: u64 = 3;

/// Stores the version in the root of a new index, which is not published.
pub fn mark<M: Media>(root: &Root<M>, format: u64) {
    let (pm, word) = (root.pool().pm(), root.word(VERSION));
    // ORDERING: Relaxed; the root is not published.
    word.store(pm, link::word(format), Ordering::Relaxed);
    // PERSIST: the version; `publish` fences it.
    pm.flush_of(word);
}

/// Checks that an index is of the version that this build reads of its design.
///
/// # Errors
/// [`TreeError::Version`], or [`TreeError::Corrupt`] if the word of the version is damaged.
pub fn check_version<M: Media>(root: &Root<M>, format: u64) -> Result<(), TreeError> {
    // ORDERING: Relaxed; the index is being opened.
    let found = root.word(VERSION).load(root.pool().pm(), Ordering::Relaxed);
    let found = match found {
        0 => 1,
        _ => link::checked(found).map_err(|e| TreeError::Corrupt(format!("its version: {e}")))?,
    };
    VersionError::check("index", found, format..=format).map_err(TreeError::Version)
}

/// Returns the sum of what `index` has, or the damage that kept it from being read.
fn sum<K, V>(index: &impl OrderedIndex<K, V>) -> Result<u32, String>
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
{
    let mut sum = 0;
    let visit = |key: &K, value: &V| {
        sum = value.add_to_sum(key.add_to_sum(sum));
        ControlFlow::Continue(())
    };
    let ((), met) = damage::reading(|| index.scan(.., visit));
    met.map_or(Ok(sum), Err)
}

/// The word of a sum.
fn word(sum: u32) -> u64 {
    u64::from(sum) | u64::from(!sum) << 32
}

/// Leaves the sum of `index`, which is being closed and whose changes are all durable. The caller
/// fences it. Nothing is left if some of it cannot be read.
pub fn seal<K, V, M: Media>(root: &Root<M>, index: &impl OrderedIndex<K, V>)
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
{
    if !(K::SUMMED && V::SUMMED) {
        return;
    }
    if let Ok(sum) = sum(index) {
        let (pm, cell) = (root.pool().pm(), root.word(WORD));
        // ORDERING: Relaxed; the index is being closed, and nobody else has it.
        cell.store(pm, word(sum), Ordering::Relaxed);
        // PERSIST: the sum. The caller fences it, as with what else it leaves, before the pool says
        // that it was closed cleanly.
        pm.flush_of(cell);
    }
}

/// Returns true if the last close has left a sum, and no opening has taken it away yet. `None`:
/// indexes of this kind leave none. Reads only.
#[must_use]
pub fn is_sealed<M: Media>(root: &Root<M>) -> Option<bool> {
    let pm = root.pool().pm();
    // ORDERING: Relaxed (both); nobody has the index open.
    let version = link::checked(root.word(VERSION).load(pm, Ordering::Relaxed));
    let closed = root.word(WORD).load(pm, Ordering::Relaxed);
    version
        .is_ok_and(|version| (FORMAT..=FORMAT_CHECKED).contains(&version))
        .then_some(closed != 0)
}

/// Compares `index`, which was just opened and recovered, with the sum of the last close, and takes
/// that away before anything changes.
///
/// # Errors
/// [`TreeError::Corrupt`]. While damage is [collected](damage::collecting_damage), it is noted
/// instead. While somebody [asks](damage::reading), they are told, and the word stays until they
/// [`forget`] it.
pub fn compare<K, V, M: Media>(
    root: &Root<M>,
    index: &impl OrderedIndex<K, V>,
) -> Result<(), TreeError>
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
{
    let pm = root.pool().pm();
    // ORDERING: Relaxed; the index is being opened.
    let closed = root.word(WORD).load(pm, Ordering::Relaxed);
    if closed == 0 {
        return Ok(());
    }
    // Where nothing is summed, nobody has stored one.
    let differs = if word(closed as u32) != closed || !(K::SUMMED && V::SUMMED) {
        Some(format!("the sum of its content, {closed:#x}, is damaged"))
    } else {
        match sum(index) {
            Ok(sum) if sum == closed as u32 => None,
            Ok(sum) => Some(format!(
                "its content has the sum {sum:#010x}, and had {:#010x} when it was closed",
                closed as u32
            )),
            // The record's own sum tells what is damaged.
            Err(_) => None,
        }
    };
    if let Some(what) = differs
        && let Err(what) = damage::note(0, what)
    {
        return match damage::tell(&what) {
            true => Ok(()),
            false => Err(TreeError::Corrupt(what)),
        };
    }
    forget(root);
    Ok(())
}

/// Takes the sum away. A caller that was told of another content has found what differs.
pub fn forget<M: Media>(root: &Root<M>) {
    let pm = root.pool().pm();
    if !pm.read_only() {
        // PERSIST: (in `publish`) the cleared word, before the index changes.
        root.word(WORD).publish(pm, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::DurableIndex;
    use crate::lbtree::{LbOptions, LbTree};
    use bristlecone_pmem::media::Mapped;
    use bristlecone_pmem::{Pool, PoolOptions};
    use std::path::Path;

    type Tree = LbTree<u64, u64, Mapped>;

    const VALUE: u64 = 0x1234_5678_9ABC_DEF0;

    fn open(path: &Path) -> Result<Tree, TreeError> {
        let pool = Pool::open(path, &PoolOptions::default()).unwrap();
        Tree::open(&pool, "t", &LbOptions::default())
    }

    /// Makes a closed file with a tree of one value, and changes a word of it.
    fn changed(path: &Path, change: impl Fn(u64) -> u64) {
        let pool = Pool::create(path, &PoolOptions::default()).unwrap();
        let tree = Tree::create(&pool, "t", &LbOptions::default()).unwrap();
        for key in 0..100 {
            tree.insert(&key, &(VALUE + key)).unwrap();
        }
        tree.close().unwrap();
        drop(pool);
        let mut file = std::fs::read(path).unwrap();
        for eight in file.as_chunks_mut::<8>().0 {
            *eight = change(u64::from_le_bytes(*eight)).to_le_bytes();
        }
        std::fs::write(path, file).unwrap();
    }

    #[test]
    fn a_number_that_changed_while_nobody_had_it_open_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        changed(
            &path,
            |word| if word == VALUE + 7 { word ^ 16 } else { word },
        );
        // Opening it has not made it right.
        for _ in 0..2 {
            let error = open(&path).unwrap_err().to_string();
            assert!(error.contains("sum"), "{error}");
        }
        let (opened, damage) = damage::collecting_damage(|| open(&path));
        assert_eq!(opened.unwrap().get(&7), Some((VALUE + 7) ^ 16));
        assert_eq!(damage.blocks.len(), 1, "{damage:?}");
    }

    #[test]
    fn content_that_is_as_it_was_opens_and_closes_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        changed(&path, |word| word);
        for turn in 0..3 {
            let tree = open(&path).unwrap();
            assert_eq!(tree.get(&7), Some(VALUE + 7 + turn));
            tree.update(&7, &(VALUE + 8 + turn)).unwrap();
        }
    }

    #[test]
    fn another_version_is_no_damage() {
        let dir = tempfile::tempdir().unwrap();
        for (version, found) in [(0, 1), (link::word(FORMAT + 1), FORMAT + 1)] {
            let path = dir.path().join(found.to_string());
            let other = |word| {
                if word == link::word(FORMAT) {
                    version
                } else {
                    word
                }
            };
            changed(&path, other);
            match open(&path).unwrap_err() {
                TreeError::Version(e) => assert_eq!((e.found, e.newest), (found, FORMAT)),
                e => panic!("{e}"),
            }
        }
    }
}
