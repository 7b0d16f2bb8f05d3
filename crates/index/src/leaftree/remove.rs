//! Removal by one NAW (section 3.1), and freeing emptied leaves, which the paper leaves out.
//!
//! Persist cost: 1 line, 1 fence. The removal that empties a leaf also unlinks it: 2 lines (1 more
//! per further block) and 2 fences in the leaf before it.
//!
//! An emptied leaf L is unlinked from its predecessor P in the same way as a split links one in:
//! L's right sibling goes into P's inactive sibling pointer, and one NAW on P switches. The first
//! leaf always stays. Both locks are held, so P cannot split and L cannot be inserted into
//! meanwhile.
//!
//! Designs that merge leaves do so in [`LeafDesign::thin_out`].

use super::layout::POSITIONS;
use super::{LeafDesign, LeafTree, Removal, offset};
use crate::contract::RemoveError;
use crate::link;
use crate::repr::{Stored, StoredKey};
use crate::sync::wait;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, POff};
use crossbeam_epoch::Guard;
use crossbeam_utils::Backoff;
use std::sync::atomic::Ordering;

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// Removes `key`. Returns true if it was present.
    pub(super) fn take_out(&self, key: &K) -> Result<bool, RemoveError> {
        let pin = Self::pin();
        let guard = pin.guard();
        let hash = key.hash();
        let backoff = Backoff::new();
        let (found, leaf, left) = loop {
            match D::take(self, self.lock_leaf(key, guard), key, hash) {
                Removal::Done { found, leaf, left } => break (found, leaf, left),
                Removal::NotThere => return Ok(false),
                Removal::Again => wait(&backoff),
            }
        };
        K::retire(&self.heap, found.key, guard);
        V::retire(&self.heap, found.value, guard);
        if Self::RECORDS {
            self.retired.note();
        }
        D::thin_out(self, leaf, key, left);
        self.commit()?;
        Ok(true)
    }

    /// Unlinks and frees the leaf that `key` is routed to, if it is `handle` and still empty.
    pub fn reclaim(&self, handle: u32, key: &K, guard: &Guard) {
        loop {
            let near = self.inner.find_with_left(key, guard);
            let (at, Some(left)) = (near.located, near.left) else {
                return;
            };
            if at.leaf != handle {
                return; // another thread was faster
            }
            self.pm().interleave();
            let locks = self.locks.lock_two(left.leaf, at.leaf);
            let (before, leaf) = (self.leaf(left.leaf), self.leaf(at.leaf));
            if !self.inner.validate(&at) || !self.inner.validate(&left) {
                locks.unlock_unchanged();
                continue;
            }
            let pm = self.pm();
            if D::count(self, leaf) > 0 || D::next(self, before) != offset(at.leaf) {
                locks.unlock_unchanged();
                return; // another thread inserted meanwhile
            }
            let flushed = self.forget_position(at.leaf);
            D::unlink(self, before, leaf, flushed);
            self.inner.remove(at.leaf, key, guard);
            pm.interleave();
            locks.unlock();
            pm.interleave();
            self.heap.retire(POff::new(offset(at.leaf)), guard);
            return;
        }
    }

    /// Removes a leaf that will be unlinked from the recorded positions. Returns true if that
    /// flushed a line, which the design must fence before the leaf leaves the chain.
    pub fn forget_position(&self, handle: u32) -> bool {
        let mut positions = lock(&self.positions);
        let Some(i) = positions.remove(handle) else {
            return false;
        };
        let word = self.root().word(POSITIONS + i);
        // ORDERING: Relaxed; read by recovery only.
        let recorded = word.load(self.pm(), Ordering::Relaxed);
        debug_assert_eq!(link::offset(recorded), offset(handle));
        // ORDERING: Relaxed; as above.
        word.store(self.pm(), 0, Ordering::Relaxed);
        // PERSIST: the removed position; the design fences it before the leaf leaves the chain.
        self.pm().flush_of(word);
        true
    }
}
