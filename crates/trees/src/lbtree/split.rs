//! Logless split (Algorithm 3): prepare everything in unused space, switch with one NAW.
//!
//! ```text
//! before   leaf --sibling[alt]--> next           (all slots in use)
//! prepared leaf --sibling[alt]--> next <--- new leaf: upper half of the entries
//!             \---sibling[1-alt]-----------^     back (or front) headers without the moved slots
//! after    leaf --sibling[alt']--> new leaf --> next
//! ```
//!
//! Persist cost at one block: 5 or 6 lines and 1 fence to prepare, 1 line and 1 fence to switch. A
//! key that belongs in the old leaf is inserted after the switch, at an insert's cost: its slot counts
//! in the durable header until then (invariant 5).

use super::insert::Pair;
use super::leaf::{Header, Leaf, Place, slots, sort_by_number};
use super::{LbTree, handle, offset};
use crate::fingerprint::SLOTS;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch as epoch;
use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

/// Slots that a block of a new leaf is filled with: from the end, so that the header line is empty
/// (the traditional design packs from the beginning).
const HALF: usize = SLOTS / 2;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize> LbTree<K, V, M, B> {
    /// Splits a full, locked leaf and inserts the pair into the half that it belongs to.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no room for the new leaf; nothing has changed then.
    pub(super) fn split(
        &self,
        leaf: &Leaf<B>,
        headers: [Header; B],
        key: &K,
        pair: Pair,
    ) -> Result<(), SpaceError> {
        let pm = self.pm();
        // Once for the allocator, the inner index and what they free.
        let guard = &epoch::pin();
        let new_off = Self::new_leaf_in(&self.heap)?;
        let new = handle(new_off);
        let new_leaf = self.leaf(new);
        let mut slots = [(0, 0, 0); 4 * SLOTS];
        let upper = self.upper_half(leaf, &headers, &mut slots);

        let first_slot = if self.entry_moving { SLOTS - HALF } else { 0 };
        let mut new_headers = [Header::default(); B];
        let mut left = headers;
        for (i, &(_, block, slot)) in upper.iter().enumerate() {
            let (block, slot) = (usize::from(block), usize::from(slot));
            let (to_block, to) = (i / HALF, first_slot + i % HALF);
            let (key, value) = leaf.blocks[block].entry(pm, slot);
            new_leaf.blocks[to_block].store_entry(pm, to, key, value);
            new_headers[to_block].set(to, headers[block].fingerprint(slot));
            left[block].clear(slot);
        }
        let separator = upper[0].0;
        let goes_right = self.compare_to_word(key, separator) != Order::Less;
        if goes_right {
            // The first block of the new leaf has room on either side of its seven.
            let to = if self.entry_moving {
                first_slot - 1
            } else {
                HALF
            };
            new_leaf.blocks[0].store_entry(pm, to, pair.key, pair.value);
            new_headers[0].set(to, pair.fingerprint);
        }
        if pm.planted("lbtree-link-first") {
            let mut early = left;
            self.prepare_switch(leaf, &headers, &mut early, offset(new));
            pm.fence();
            self.switch(leaf, early[0]);
        }
        if pm.planted("lbtree-clear-before-switch") {
            leaf.blocks[0].store_header(pm, Place::Front, left[0]);
            pm.persist(leaf);
        }
        let next = leaf.sibling(headers[0].alt());
        // ORDERING: Relaxed; nothing leads to the new leaf yet, and the inactive pointer counts only
        // after the header that is stored below with Release.
        new_leaf
            .sibling(0)
            .store(pm, next.load(pm, Ordering::Relaxed), Ordering::Relaxed);
        new_leaf.sibling(1).store(pm, 0, Ordering::Relaxed);
        for (block, header) in new_leaf.blocks.iter().zip(new_headers) {
            block.store_header(pm, Place::Front, header);
        }
        // PERSIST: the new leaf and what else is flushed below, before the NAW that leads to it.
        // Records of the pair were flushed when they were made and share the fence.
        pm.flush_of(new_leaf);
        self.prepare_switch(leaf, &headers, &mut left, offset(new));
        pm.fence();
        self.switch(leaf, left[0]);

        if K::read(pm, separator, |s| self.inner.insert(s, new, guard)).is_none() {
            // The pool is corrupt under our hands: keep the leaf reachable.
            self.inner.insert(key, new, guard);
        }
        pm.interleave();
        if !goes_right {
            let b = (0..B).find(|&b| left[b].empty() != 0).unwrap_or(0);
            // The fence above has made the pair's records durable.
            self.insert_in_block(&leaf.blocks[b], left[0].place(b), left[b], pair, false);
        }
        self.record_position(new);
        Ok(())
    }

    /// Prepares the inactive side of a leaf: `headers` with the slots that stay (alt flipped in the
    /// first), `next` as the right sibling. Flushed, not fenced.
    pub(super) fn prepare_switch(
        &self,
        leaf: &Leaf<B>,
        active: &[Header; B],
        headers: &mut [Header; B],
        next: u64,
    ) {
        let pm = self.pm();
        let alt = active[0].alt();
        // ORDERING: Release; pairs with the Acquire in `Leaf::next`.
        leaf.sibling(1 - alt).store(pm, next, Ordering::Release);
        // PERSIST: the inactive sibling pointer, before the NAW that activates it.
        pm.flush(leaf.blocks[0].line(3), 64);
        for (b, header) in headers.iter().enumerate().skip(1) {
            let place = active[0].place(b).other();
            leaf.blocks[b].store_header(pm, place, *header);
            // PERSIST: the inactive header, before the NAW that activates it.
            pm.flush(leaf.blocks[b].line(place.line()), 64);
        }
        headers[0].flip_alt();
    }

    /// The NAW that makes a prepared side count.
    pub(super) fn switch(&self, leaf: &Leaf<B>, first: Header) {
        let pm = self.pm();
        leaf.blocks[0].store_header(pm, Place::Front, first);
        // PERSIST: the switch, before anyone acts on it.
        pm.flush(leaf.blocks[0].line(0), 64);
        pm.fence();
    }

    /// The larger half of a full leaf's keys in order: key word, block, slot.
    fn upper_half<'a>(
        &self,
        leaf: &Leaf<B>,
        headers: &[Header; B],
        all: &'a mut [(u64, u8, u8); 4 * SLOTS],
    ) -> &'a [(u64, u8, u8)] {
        let pm = self.pm();
        let mut n = 0;
        for (b, header) in headers.iter().enumerate() {
            for slot in slots(header.bitmap()) {
                all[n] = (leaf.blocks[b].entry(pm, slot).0, b as u8, slot as u8);
                n += 1;
            }
        }
        let all = &mut all[..n];
        if K::RECORDS || n > SLOTS {
            all.sort_unstable_by(|a, b| self.compare_words(a.0, b.0));
        } else {
            sort_by_number(all, |(key, _, _)| *key);
        }
        &all[n / 2..]
    }

    /// Order of two key words.
    pub(super) fn compare_words(&self, a: u64, b: u64) -> Order {
        let pm = self.pm();
        // A word that leads nowhere (a corrupt pool) sorts first.
        K::read(pm, a, |a| self.compare_to_word(a, b)).unwrap_or(Order::Less)
    }

    /// Order of a key and a key word.
    pub(super) fn compare_to_word(&self, key: &K, word: u64) -> Order {
        K::read(self.pm(), word, |other| key.cmp(other)).unwrap_or(Order::Greater)
    }
}
