//! The node, inner or leaf: nothing but slots, sorted by key.
//!
//! ```text
//!          8 bytes     8 bytes     8 bytes     8 bytes
//! slot   | key word  | value word | start     | end       |      two slots to a line
//!
//! start      end        the slot is
//! 0          0          unused; all slots after it are unused too
//! 0          other      a hole: what a crash left of a move or of an insertion that did not count
//! s          LIVE       live since version s
//! s          e          dead: live in versions s <= v < e
//! ```
//!
//! Bits 48 to 64 of a start are a check of key, value and start: it is stored last, and then only
//! the end changes. An end other than LIVE is a [`link`] to its version. Walks compare both.
//!
//! A node has no header: a descent knows its level. In an inner node the value word is the offset
//! of a child and the key word is its separator. Holes and dead slots are *reusable*.
//!
//! # Moving entries
//! To make room, the entries between a place and the nearest reusable slot are moved one by one;
//! each is flushed and fenced before the next ([`Node::make_room`]). A slot is overwritten only
//! when its content is durable in the neighbouring slot. It first becomes a hole, and gets its new
//! start version last. So after a crash each slot has its old content, is a hole, or has its new
//! content. A moved entry is in one slot or in two neighbouring ones, and nothing is lost or mixed.

use crate::link;
use crate::repr::KeyRepr;
use bristlecone_pmem::{Media, PWord};
use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

/// Bytes in a slot.
pub(super) const SLOT: usize = 32;
/// End version of an entry that nothing has ended.
pub(super) const LIVE: u64 = u64::MAX;
/// Maximum number of slots in a node.
pub(super) const MAX_SLOTS: usize = 4096 / SLOT;

/// Bits of a version number in a start.
const VERSION: u64 = (1 << VERSION_BITS) - 1;
/// Number of those bits.
pub(super) const VERSION_BITS: u32 = 48;

/// Returns the word of a start.
#[inline]
pub(super) fn start_word(key: u64, value: u64, start: u64) -> u64 {
    if start == 0 {
        return 0;
    }
    let words = [key, value, start].map(u64::to_le_bytes);
    let sum = crc32c::crc32c(words.as_flattened());
    // Never 0, so that no flipped bit makes a start of 0.
    start | u64::from((sum ^ sum >> 15) & 0x7FFF | 0x8000) << VERSION_BITS
}

/// Returns the word of an end.
#[inline]
pub(super) fn end_word(end: u64) -> u64 {
    if end == LIVE { LIVE } else { link::word(end) }
}

/// Returns the version in the word of an end.
#[inline(always)]
pub(super) fn end_of(word: u64) -> u64 {
    if word == LIVE {
        LIVE
    } else {
        link::offset(word)
    }
}

/// A slot in persistent memory.
#[repr(C, align(32))]
pub(super) struct Slot {
    pub key: PWord,
    pub value: PWord,
    pub start: PWord,
    pub end: PWord,
}

const _: () = assert!(size_of::<Slot>() == SLOT && align_of::<Slot>() == SLOT);

/// Content of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    pub key: u64,
    pub value: u64,
    pub start: u64,
    pub end: u64,
}

impl Entry {
    /// Returns an entry that is live from version `start` on.
    pub(super) const fn live(key: u64, value: u64, start: u64) -> Self {
        Self {
            key,
            value,
            start,
            end: LIVE,
        }
    }

    #[inline(always)]
    pub(super) fn is_live(&self) -> bool {
        self.start != 0 && self.end == LIVE
    }

    #[inline(always)]
    pub(super) fn is_unused(&self) -> bool {
        self.start == 0 && self.end == 0
    }

    /// Returns true if the writer of version `v` may overwrite the slot, because its content ended
    /// before.
    #[inline(always)]
    fn is_reusable(&self, v: u64) -> bool {
        self.start == 0 || self.end < v
    }
}

/// A place for an entry: the slot that it should have in order, and the nearest reusable one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    place: usize,
    reusable: usize,
}

impl Room {
    /// Returns the slot of the entry of slot `i` after room was made.
    pub(super) fn moved(self, i: usize) -> usize {
        if (self.place..self.reusable).contains(&i) {
            i + 1
        } else if (self.reusable + 1..self.place).contains(&i) {
            i - 1
        } else {
            i
        }
    }
}

/// A node.
#[derive(Clone, Copy)]
pub(super) struct Node<'a> {
    pub slots: &'a [Slot],
}

impl Node<'_> {
    /// Reads a slot. The result is consistent for the writer, or once the node's version is
    /// validated.
    #[inline(always)]
    pub(super) fn entry<M: Media>(&self, pm: &M, i: usize) -> Entry {
        let slot = &self.slots[i];
        // ORDERING: Relaxed (all): ordered by the node's version lock.
        Entry {
            key: slot.key.load(pm, Ordering::Relaxed),
            value: slot.value.load(pm, Ordering::Relaxed),
            start: slot.start.load(pm, Ordering::Relaxed) & VERSION,
            end: end_of(slot.end.load(pm, Ordering::Relaxed)),
        }
    }

    /// Checks what has a check in a slot.
    pub(super) fn sound<M: Media>(&self, pm: &M, i: usize) -> Result<(), String> {
        let (slot, entry) = (&self.slots[i], self.entry(pm, i));
        // ORDERING: Relaxed (both): as in `entry`.
        let start = slot.start.load(pm, Ordering::Relaxed);
        let end = slot.end.load(pm, Ordering::Relaxed);
        if start == start_word(entry.key, entry.value, entry.start) && end == end_word(entry.end) {
            return Ok(());
        }
        Err(format!(
            "slot {i}: {entry:x?} fails its checks, {start:#x} and {end:#x}"
        ))
    }

    /// Returns the start and end versions of a slot, without its words.
    #[inline(always)]
    fn versions<M: Media>(&self, pm: &M, i: usize) -> Entry {
        let slot = &self.slots[i];
        // ORDERING: Relaxed (both): as in `entry`.
        Entry {
            start: slot.start.load(pm, Ordering::Relaxed) & VERSION,
            end: end_of(slot.end.load(pm, Ordering::Relaxed)),
            ..Entry::default()
        }
    }

    /// Returns true if slot `i` is live.
    #[inline(always)]
    pub(super) fn is_live<M: Media>(&self, pm: &M, i: usize) -> bool {
        self.versions(pm, i).is_live()
    }

    /// Returns the live entries with their slots, in order.
    pub(super) fn live<M: Media>(self, pm: &M) -> impl Iterator<Item = (usize, Entry)> {
        (0..self.slots.len())
            .map(move |i| (i, self.entry(pm, i)))
            .take_while(|(_, entry)| !entry.is_unused())
            .filter(|(_, entry)| entry.is_live())
    }

    /// Returns the number of slots that come before `key`: their keys are smaller (`or_equal`: or
    /// equal). Searches by halving. For numbers it also compares dead entries, which are in order.
    /// Dead byte strings may be freed, so for them it uses the next live entry on their left.
    /// Returns `None` if `valid` says that the node changed meanwhile; `valid` is called before a
    /// word is followed to a record.
    #[inline]
    pub(super) fn bound<K: KeyRepr + ?Sized, M: Media>(
        &self,
        pm: &M,
        key: &K,
        or_equal: bool,
        valid: impl Fn() -> bool,
    ) -> Option<usize> {
        let (mut low, mut high) = (0, self.slots.len());
        'search: while low < high {
            let middle = (low + high) / 2;
            let mut at = middle;
            loop {
                let found = self.versions(pm, at);
                if found.is_unused() {
                    high = at;
                    continue 'search;
                }
                if found.start != 0 && (!K::RECORDS || found.end == LIVE) {
                    break;
                }
                if at == low {
                    low = middle + 1;
                    continue 'search;
                }
                at -= 1;
            }
            // ORDERING: Relaxed; as in `entry`.
            let word = self.slots[at].key.load(pm, Ordering::Relaxed);
            if K::RECORDS && !valid() {
                return None;
            }
            let order = compare(pm, word, key);
            if order == Order::Less || or_equal && order == Order::Equal {
                low = middle + 1;
            } else {
                high = at;
            }
        }
        Some(low)
    }

    /// Returns the number of slots that are not unused.
    pub(super) fn used<M: Media>(&self, pm: &M) -> usize {
        let (mut low, mut high) = (0, self.slots.len());
        while low < high {
            let middle = (low + high) / 2;
            if self.versions(pm, middle).is_unused() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }

    /// Returns the nearest live slot to the left of slot `i`, excluding `i`.
    #[inline]
    pub(super) fn live_before<M: Media>(&self, pm: &M, i: usize) -> Option<usize> {
        (0..i).rev().find(|&i| self.is_live(pm, i))
    }

    /// Returns the first live slot from `i` on.
    #[inline]
    pub(super) fn live_from<M: Media>(&self, pm: &M, i: usize) -> Option<usize> {
        for i in i..self.slots.len() {
            let found = self.versions(pm, i);
            if found.is_live() {
                return Some(i);
            }
            if found.is_unused() {
                break;
            }
        }
        None
    }

    /// Returns the slot in which `key` is live. The outer `None` is as in [`bound`](Self::bound).
    #[inline]
    pub(super) fn find<K: KeyRepr + ?Sized, M: Media>(
        &self,
        pm: &M,
        key: &K,
        valid: impl Fn() -> bool,
    ) -> Option<Option<usize>> {
        let from = self.bound(pm, key, false, &valid)?;
        for i in from..self.slots.len() {
            let found = self.versions(pm, i);
            if found.is_unused() {
                break;
            }
            if found.start == 0 || K::RECORDS && found.end != LIVE {
                continue;
            }
            // ORDERING: Relaxed; as in `entry`.
            let word = self.slots[i].key.load(pm, Ordering::Relaxed);
            if K::RECORDS && !valid() {
                return None;
            }
            if compare(pm, word, key) != Order::Equal {
                break;
            }
            if found.end == LIVE {
                return Some(Some(i));
            }
        }
        Some(None)
    }

    /// Returns where the writer of version `v` can put an entry that belongs before slot `place`,
    /// with the fewest moves, or `None` if the node is full.
    pub(super) fn room<M: Media>(&self, pm: &M, place: usize, v: u64) -> Option<Room> {
        let n = self.slots.len();
        let reusable = |i: usize| self.versions(pm, i).is_reusable(v);
        for distance in 0..n {
            let right = place + distance;
            if right < n && reusable(right) {
                return Some(Room {
                    place,
                    reusable: right,
                });
            }
            if let Some(left) = (place.checked_sub(1)).and_then(|last| last.checked_sub(distance))
                && reusable(left)
            {
                return Some(Room {
                    place,
                    reusable: left,
                });
            }
        }
        None
    }

    /// Returns true if at least `wanted` slots are reusable for the writer of version `v`.
    pub(super) fn has_room<M: Media>(&self, pm: &M, v: u64, wanted: usize) -> bool {
        let reusable = (0..self.slots.len()).filter(|&i| self.versions(pm, i).is_reusable(v));
        reusable.take(wanted).count() == wanted
    }

    /// Moves the entries between `room`'s place and its reusable slot by one. Returns the slot that
    /// they leave, which may be overwritten.
    ///
    /// Persist cost: 1 line and 1 fence for each moved entry.
    pub(super) fn make_room<M: Media>(&self, pm: &M, room: Room) -> usize {
        let Room { place, reusable } = room;
        if reusable >= place {
            for i in (place..reusable).rev() {
                self.shift(pm, i, i + 1);
            }
            place
        } else {
            for i in reusable + 1..place {
                self.shift(pm, i, i - 1);
            }
            place - 1
        }
    }

    /// Copies a slot's entry over a neighbouring one that is not needed any more.
    fn shift<M: Media>(&self, pm: &M, from: usize, to: usize) {
        self.put(pm, to, self.entry(pm, from));
        // PERSIST: the copy, before the slot that it came from is overwritten.
        pm.persist(&self.slots[to]);
    }

    /// Writes an entry over a slot that is not needed any more: it becomes a hole first and gets
    /// its start version last. Does not flush.
    pub(super) fn put<M: Media>(&self, pm: &M, i: usize, entry: Entry) {
        let slot = &self.slots[i];
        // ORDERING: Relaxed (all); readers validate the node's version.
        slot.start.store(pm, 0, Ordering::Relaxed);
        // No mixture of two entries may become durable with a start version.
        pm.store_fence();
        slot.key.store(pm, entry.key, Ordering::Relaxed);
        slot.value.store(pm, entry.value, Ordering::Relaxed);
        slot.end.store(pm, end_word(entry.end), Ordering::Relaxed);
        pm.store_fence();
        let start = start_word(entry.key, entry.value, entry.start);
        slot.start.store(pm, start, Ordering::Relaxed);
    }

    /// Fills a node that nothing leads to with `entries`, leaves all other slots unused, and
    /// flushes it.
    pub(super) fn fill<M: Media>(&self, pm: &M, entries: &[Entry]) {
        for (i, slot) in self.slots.iter().enumerate() {
            let entry = entries.get(i).copied().unwrap_or_default();
            // ORDERING: Relaxed (all); nothing leads to the node yet.
            slot.key.store(pm, entry.key, Ordering::Relaxed);
            slot.value.store(pm, entry.value, Ordering::Relaxed);
            let start = start_word(entry.key, entry.value, entry.start);
            slot.start.store(pm, start, Ordering::Relaxed);
            slot.end.store(pm, end_word(entry.end), Ordering::Relaxed);
        }
        // PERSIST: the whole node (its unused slots must read as such too), fenced before the
        // version that makes it count is published.
        pm.flush_of(self.slots);
    }
}

/// Returns the order of the key behind `word` and `key`. In an inner node 0 counts as a key below
/// all others. A word that leads nowhere (a corrupt pool) sorts likewise.
#[inline(always)]
pub(super) fn compare<K: KeyRepr + ?Sized, M: Media>(pm: &M, word: u64, key: &K) -> Order {
    K::read(pm, word, |there| there.cmp(key)).unwrap_or(Order::Less)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums are linear, so it does not matter what the words are.
    #[test]
    fn every_flipped_bit_changes_the_check() {
        let whole = [0x1234_5678_9ABC_DEF0, u64::MAX, 77];
        let word = |[key, value, start]: [u64; 3]| start_word(key, value, start);
        for bit in 0..192 {
            let (at, bit) = (bit / 64, bit % 64);
            let mut flipped = whole;
            flipped[at] ^= 1 << bit;
            if at < 2 || bit < VERSION_BITS as usize {
                assert_ne!(word(flipped) >> VERSION_BITS, word(whole) >> VERSION_BITS);
            }
        }
    }
}
