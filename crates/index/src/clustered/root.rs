//! The tree's words in its root slot.
//!
//! | word | holds |
//! | --- | --- |
//! | 0, 1 | the salt, twice |
//! | 2 | ceiling of generations |
//! | 3 | ceiling of time stamps |
//! | 4 | the log of merges: block / 64 |
//! | 5 | the commit slots: block / 64 |
//! | 6 | the first stamp of the session that has the tree open for writing, or 0 |
//! | 7 | entries of ended sessions |
//! | 8 to 95 | segments of the page table: block / 64, the first one first |
//! | 96 | what the last close saved, an offset (`closed`), or 0 |
//!
//! Every word but the last is [checked]; its place is its number. A word that counts has [`MARK`]
//! in its payload.

use super::checked::{self, MARK};
use super::sum;
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{Media, VersionError};
use std::sync::atomic::Ordering;

pub(super) const SALT: usize = 0;
pub(super) const SALT_AGAIN: usize = 1;
pub(super) const GENERATIONS: usize = 2;
pub(super) const STAMPS: usize = 3;
pub(super) const LOG: usize = 4;
pub(super) const SLOTS: usize = 5;
pub(super) const SESSION: usize = 6;
pub(super) const ENDED: usize = 7;
pub(super) const SEGMENTS: usize = 8;
/// Segments of the page table that there may be.
pub(super) const MAX_SEGMENTS: usize = 88;
pub(super) const CLOSED: usize = SEGMENTS + MAX_SEGMENTS;

/// The version of what is in a tree's pages. A tree of another one has no root word that is sound
/// here.
pub const FORMAT: u64 = 3;
/// Versions that are told from damage: more than there will be.
const VERSIONS: u64 = 256;

/// Place of root word number `i` of a tree of that version: none of another checked word.
fn place(version: u64, i: usize) -> u64 {
    (1 << 40 | version << 48) + i as u64
}

/// The highest value of a root word.
const HIGHEST: u64 = (MARK & MARK.wrapping_neg()) - 1;

/// The root word number `i` with this value.
pub(super) fn word(i: usize, value: u64) -> u64 {
    checked::marked(value, place(FORMAT, i))
}

/// Checks that the tree is of the version that this build reads. Damage is none of its errors.
///
/// # Errors
/// Both copies of the salt are those of another version.
pub(super) fn check_version<M: Media>(root: &Root<M>) -> Result<(), VersionError> {
    // ORDERING: Relaxed; the tree is being opened, by this thread.
    let found = [SALT, SALT_AGAIN].map(|i| root.word(i).load(root.pool().pm(), Ordering::Relaxed));
    let is = |version: &u64| {
        let salts = [(SALT, found[0]), (SALT_AGAIN, found[1])];
        let [a, b] = salts.map(|(i, word)| checked::marked_value(word, place(*version, i)));
        a.is_some() && a == b
    };
    // This one first: it is what nearly all trees have.
    let found = [FORMAT].into_iter().chain(0..VERSIONS).find(is);
    found.map_or(Ok(()), |found| {
        VersionError::check("tree", found, FORMAT..=FORMAT)
    })
}

/// The value of root word number `i`; `None` if the word is empty.
///
/// # Errors
/// A message that names the word, if its check fails.
pub(super) fn read<M: Media>(root: &Root<M>, i: usize) -> Result<Option<u64>, String> {
    // ORDERING: Acquire; pairs with the Release of `publish`.
    let found = root.word(i).load(root.pool().pm(), Ordering::Acquire);
    if found == 0 {
        return Ok(None);
    }
    let value = checked::marked_value(found, place(FORMAT, i));
    let value = value.ok_or_else(|| format!("root word {i} is {found:#x}, which fails its check"));
    value.map(Some)
}

/// The value of root word number `i`, which every tree has.
///
/// # Errors
/// A message that names the word.
pub(super) fn required<M: Media>(root: &Root<M>, i: usize) -> Result<u64, String> {
    read(root, i)?.ok_or_else(|| format!("root word {i} is empty"))
}

/// The salt: of its two words, one that is sound.
///
/// # Errors
/// A message, if neither is.
pub(super) fn salt<M: Media>(root: &Root<M>) -> Result<u64, String> {
    required(root, SALT).or_else(|e| required(root, SALT_AGAIN).map_err(|_| e))
}

/// Makes words good that fail their check, of a tree in a pool that is salvaged: one wrong bit is
/// turned back, and a ceiling that is lost is the highest. In memory only. Returns what was wrong.
pub(super) fn mend<M: Media>(root: &Root<M>) -> Vec<String> {
    let pm = root.pool().pm();
    let mut told = Vec::new();
    for i in 0..CLOSED {
        let what = match read(root, i) {
            Ok(Some(_)) => continue,
            Ok(None) if i != GENERATIONS && i != STAMPS => continue,
            Ok(None) => format!("root word {i} is empty"),
            Err(what) => what,
        };
        let cell = root.word(i);
        // ORDERING (both): Relaxed; the tree is being opened.
        let found = cell.load(pm, Ordering::Relaxed);
        let is_sound = |word: &u64| match *word {
            0 => i > SEGMENTS,
            word => checked::marked_value(word, place(FORMAT, i)).is_some(),
        };
        let mut turned = (0..64).map(|bit| found ^ 1 << bit).filter(is_sound);
        let meant = match (turned.next(), turned.next(), i) {
            (Some(one), None, _) => one,
            // Nothing is numbered by whoever only reads.
            (_, _, GENERATIONS | STAMPS) => word(i, HIGHEST),
            _ => continue,
        };
        cell.store(pm, meant, Ordering::Relaxed);
        told.push(what);
    }
    told
}

/// A salt for a tree that is being made. No other tree has it, in this pool or another: blocks keep
/// what an earlier tenant wrote, and generations begin anew in each tree. Where crash states are
/// explored, which repeat what was done, there is one tree.
pub(super) fn new_salt<M: Media>() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    let random = || RandomState::new().hash_one(0);
    let (a, b) = if M::TRACED {
        (1, 2)
    } else {
        (random(), random())
    };
    // Below the mark's two bits.
    sum::mix(a, b, 0) & HIGHEST
}
