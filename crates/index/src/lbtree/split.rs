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
//! key that belongs in the old leaf is inserted after the switch, at an insert's cost: its slot
//! counts in the durable header until then (invariant 5).

use super::leaf::{Header, Leaf, Place};
use super::{LbDesign, located};
use crate::fingerprint::SLOTS;
use crate::leaftree::{LeafTree, Moved, Pair, offset};
use crate::link;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::planted;
use std::sync::atomic::Ordering;

/// Slots that a block of a new leaf is filled with: from the end, so that the header line is empty
/// (the traditional design packs from the beginning).
const HALF: usize = SLOTS / 2;

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media, const B: usize>
    LeafTree<LbDesign<B>, K, V, M>
{
    /// Moves `upper` to the leaf `new`, with `with` if the pair belongs there: crash state 3.
    pub(super) fn split_in_two(
        &self,
        leaf: &Leaf<B>,
        new: u32,
        upper: &[Moved],
        with: Option<Pair>,
    ) {
        let pm = self.pm();
        let headers = leaf.headers(pm);
        let new_leaf = self.leaf(new);
        let first_slot = if self.design.entry_moving {
            SLOTS - HALF
        } else {
            0
        };
        let mut new_headers = [Header::default(); B];
        let mut left = headers;
        for (i, moved) in upper.iter().enumerate() {
            let (block, slot) = located(moved.slot);
            let (to_block, to) = (i / HALF, first_slot + i % HALF);
            new_leaf.blocks[to_block].store_entry(pm, to, moved.key, moved.value);
            new_headers[to_block].set(to, headers[block].fingerprint(slot));
            left[block].clear(slot);
        }
        if let Some(pair) = with {
            // The first block of the new leaf has room on either side of its seven.
            let to = if self.design.entry_moving {
                first_slot - 1
            } else {
                HALF
            };
            new_leaf.blocks[0].store_entry(pm, to, pair.key, pair.value);
            new_headers[0].set(to, pair.fingerprint);
        }
        if planted!(pm, "lbtree-link-first") {
            let mut early = left;
            self.prepare_switch(leaf, &headers, &mut early, offset(new));
            pm.fence();
            self.switch(leaf, early[0]);
        }
        if planted!(pm, "lbtree-clear-before-switch") {
            leaf.blocks[0].store_header(pm, Place::Front, left[0]);
            pm.persist(leaf);
        }
        let next = leaf.sibling(headers[0].alt());
        // ORDERING: Relaxed; nothing leads to the new leaf yet, and the inactive pointer counts
        // only after the header that is stored below with Release.
        new_leaf
            .sibling(0)
            .store(pm, next.load(pm, Ordering::Relaxed), Ordering::Relaxed);
        new_leaf.sibling(1).store(pm, 0, Ordering::Relaxed);
        for (block, header) in new_leaf.blocks.iter().zip(new_headers) {
            block.store_header(pm, Place::Front, header);
        }
        // PERSIST: the new leaf, and everything flushed below, before the NAW that leads to it.
        // Records of the pair were flushed when they were made and share the fence.
        pm.flush_of(new_leaf);
        self.prepare_switch(leaf, &headers, &mut left, offset(new));
        pm.fence();
        self.switch(leaf, left[0]);
    }

    /// Prepares the inactive side of a leaf: `headers` with the slots that stay (alt flipped in the
    /// first), and `next` as the right sibling. Flushes it and does not fence.
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
        leaf.sibling(1 - alt)
            .store(pm, link::word(next), Ordering::Release);
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

    /// Makes the NAW that makes a prepared side count.
    pub(super) fn switch(&self, leaf: &Leaf<B>, first: Header) {
        let pm = self.pm();
        leaf.blocks[0].store_header(pm, Place::Front, first);
        // PERSIST: the switch, before any thread acts on it.
        pm.flush(leaf.blocks[0].line(0), 64);
        pm.fence();
    }

    /// Makes `before` lead past `leaf`, its right sibling: crash state 6.
    pub(super) fn lead_past(&self, before: &Leaf<B>, leaf: &Leaf<B>) {
        let pm = self.pm();
        let active = before.headers(pm);
        let mut headers = active;
        if planted!(pm, "lbtree-switch-first") {
            headers[0].flip_alt();
            self.switch(before, headers[0]);
            headers = active;
        }
        self.prepare_switch(before, &active, &mut headers, leaf.next(pm));
        // PERSIST: the inactive side, before the NAW that activates it.
        pm.fence();
        self.switch(before, headers[0]);
    }
}
