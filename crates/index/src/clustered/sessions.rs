//! Sessions that ended in a crash, each with the content of the commit slots at that moment.
//!
//! ```text
//! root word SESSION   first stamp of the session that has the tree open for writing; 0: none has
//! root word ENDED     entries in use
//! entry               first stamp | stamp after the last | 64 words: what each slot says | sum |    9 lines, behind the slots
//! ```
//!
//! A pending group counts if the slot that it names said its stamp or a later one when its session
//! ended ([`slots`](super::slots)). The next session uses the slots again. So opening keeps what
//! they say, until every page has been loaded: loading takes the heads off groups that do not
//! count. In a session that was closed all groups count that are there.
//!
//! # Crash states
//! An entry counts by the word ENDED, which is stored when the entry is durable, and the session by
//! the word SESSION, which is stored then. Between the two the entry is there already when the
//! session is ended again: it ends where the stamps go on.

use super::slots::{SLOTS, Slots, split_word};
use super::{root, sum};
use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, PWord, planted};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Entries that there is room for.
const ENTRIES: usize = 32;
/// Likewise, where rare paths are to be taken often.
const TINY_ENTRIES: usize = 2;
/// Words of an entry.
const WORDS: usize = (SLOTS as usize + 3).next_multiple_of(LINE / 8);
/// Bytes of all entries.
pub(super) const BYTES: u64 = (ENTRIES * WORDS * 8) as u64;

/// A session that a crash ended.
#[derive(Debug)]
struct Ended {
    first: u64,
    end: u64,
    /// The stamp in each slot.
    slots: [u64; SLOTS as usize],
}

impl Ended {
    fn words(&self, seed: u32) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        (words[0], words[1]) = (self.first, self.end);
        words[2..2 + self.slots.len()].copy_from_slice(&self.slots);
        words[WORDS - 1] = sum::words(seed, &words[..WORDS - 1]).into();
        words
    }

    fn of(words: &[u64; WORDS], seed: u32) -> Option<Self> {
        let ended = Self {
            first: words[0],
            end: words[1],
            slots: *words[2..].first_chunk()?,
        };
        (ended.words(seed) == *words).then_some(ended)
    }
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Sessions {
    /// The entries, an offset in the pool.
    block: u64,
    /// Low bits of the tree's salt.
    salt: u32,
    /// The first stamp of this session.
    first: u64,
    /// Those that have entries, and while all pages are being loaded the last one.
    ended: Mutex<Vec<Ended>>,
}

impl Sessions {
    /// The sessions before the one whose stamps begin at `first`.
    pub(super) fn new(slots: &Slots, salt: u64, first: u64) -> Self {
        Self {
            block: slots.block() + super::slots::BYTES,
            salt: salt as u32,
            first,
            ended: Mutex::default(),
        }
    }

    /// Reads the entries, and adds the session that had the tree open when a crash came, if one
    /// did. Returns true if there is no room for its entry, so that all pages have to be loaded.
    ///
    /// # Errors
    /// A message that says which word or entry is damaged.
    pub(super) fn read<M: Media>(&self, root: &Root<M>, slots: &Slots) -> Result<bool, String> {
        let pm = root.pool().pm();
        let mut ended = lock(&self.ended);
        let n = root::required(root, root::ENDED)? as usize;
        if n > ENTRIES {
            return Err(format!(
                "root word {} says {n} entries of {ENTRIES}",
                root::ENDED
            ));
        }
        for i in 0..n {
            let mut words = [0; WORDS];
            for (j, word) in words.iter_mut().enumerate() {
                *word = self.word(pm, i, j);
            }
            let entry = Ended::of(&words, self.seed(i));
            let before = ended.last().map_or(1, |last| last.end);
            let fits = |entry: &Ended| (before..=entry.end).contains(&entry.first);
            let entry = entry.filter(|entry| fits(entry) && entry.end <= self.first);
            ended.push(entry.ok_or_else(|| format!("the entry of ended session {i} is damaged"))?);
        }
        let first = root::required(root, root::SESSION)?;
        // A session whose stamps end where it began, or where the last entry ends, has used none
        // since.
        let is_new = first != 0 && first.max(ended.last().map_or(0, |last| last.end)) < self.first;
        if is_new {
            let mut says = [0; SLOTS as usize];
            for (slot, says) in says.iter_mut().enumerate() {
                *says = slots.stamp(pm, slot as u64)?;
            }
            ended.push(Ended {
                first,
                end: self.first,
                slots: says,
            });
        }
        let most = if pm.tiny() { TINY_ENTRIES } else { ENTRIES };
        Ok(ended.len() > most)
    }

    fn seed(&self, entry: usize) -> u32 {
        self.salt ^ (entry as u32).rotate_left(16)
    }

    fn address<M: Media>(&self, pm: &M, entry: usize) -> *mut u8 {
        let at = self.block as usize + entry * WORDS * 8;
        pm.base().wrapping_add(at)
    }

    fn word<M: Media>(&self, pm: &M, entry: usize, word: usize) -> u64 {
        debug_assert!(entry < ENTRIES && word < WORDS);
        let at = self.address(pm, entry).cast::<PWord>();
        // SAFETY: 1. inside the block, which was allocated or checked, of `BYTES` more bytes than
        // the slots have; 2. blocks are aligned to lines; 3. any bits are a valid word; 4. the
        // mapping outlives the borrow of `pm`.
        let cell = unsafe { &*at.wrapping_add(word) };
        // ORDERING: Relaxed; written by an earlier session, or by this thread.
        cell.load(pm, Ordering::Relaxed)
    }

    /// Makes the entry of the session that a crash ended durable, if it has none.
    pub(super) fn keep<M: Media>(&self, root: &Root<M>) -> Result<(), String> {
        let pm = root.pool().pm();
        let ended = lock(&self.ended);
        let n = root::required(root, root::ENDED)? as usize;
        let Some(entry) = ended.get(n) else {
            return Ok(());
        };
        if planted!(pm, "clustered-session-forgotten") {
            return Ok(());
        }
        let words = entry.words(self.seed(n));
        // SAFETY: 1. entry `n` is inside the block, and aligned: see `word`; 2. nobody else reads
        // or writes entries while a tree is opened.
        unsafe { write_bytes(pm, self.address(pm, n), super::image::bytes_of(&words)) };
        // PERSIST: the entry, before the word that makes it count.
        pm.flush(self.address(pm, n), WORDS * 8);
        pm.fence();
        // PERSIST: the number of entries, before the slots are used again.
        root.word(root::ENDED)
            .publish(pm, root::word(root::ENDED, n as u64 + 1));
        Ok(())
    }

    /// Says durably that this session has the tree open for writing.
    pub(super) fn begin<M: Media>(&self, root: &Root<M>) {
        self.say(root, root::SESSION, self.first);
    }

    /// Says durably that no session has.
    pub(super) fn close<M: Media>(&self, root: &Root<M>) {
        self.say(root, root::SESSION, 0);
    }

    /// Forgets the ended sessions: every page has been loaded since.
    pub(super) fn forget<M: Media>(&self, root: &Root<M>) {
        // Held until it is durable, for whoever else loads the rest.
        let mut ended = lock(&self.ended);
        ended.clear();
        self.say(root, root::ENDED, 0);
    }

    fn say<M: Media>(&self, root: &Root<M>, i: usize, value: u64) {
        let (cell, word) = (root.word(i), root::word(i, value));
        let pm = root.pool().pm();
        // ORDERING: Relaxed; changed while a tree is opened or closed, or under the lock of
        // `ended`.
        if cell.load(pm, Ordering::Relaxed) != word {
            // PERSIST: the word, before what rests on it.
            cell.publish(pm, word);
        }
    }

    /// Whether a group with this stamp's word counts, in a page that is loaded.
    pub(super) fn counts<M: Media>(&self, pm: &M, slots: &Slots, stamp_word: u64) -> bool {
        let (stamp, slot) = split_word(stamp_word);
        let Some(slot) = slot else {
            return true;
        };
        if slot >= SLOTS {
            return false;
        }
        if stamp >= self.first {
            return slots.stamp(pm, slot).is_ok_and(|last| stamp <= last);
        }
        let ended = lock(&self.ended);
        let of = ended
            .iter()
            .find(|ended| (ended.first..ended.end).contains(&stamp));
        of.is_none_or(|ended| stamp <= ended.slots[slot as usize])
    }
}

const _: () = assert!(BYTES.is_multiple_of(LINE as u64) && WORDS > SLOTS as usize + 2);
