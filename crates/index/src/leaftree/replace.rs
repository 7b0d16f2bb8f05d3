//! Replacing leaves by others: shared by designs that copy on write.
//!
//! ```text
//! P --> L --> N      becomes      P --> L' --> N
//! ```
//!
//! 1. L's lock is held from before its entries are read; P's from before its link is read. A thread
//!    that comes second does not wait while it holds the other: [`LeafTree::lock_before`] says no,
//!    and the caller begins again.
//! 2. New leaves are written, flushed and fenced. [`LeafTree::publish_link`] switches, by one NAW
//!    of P's link (or of the head word).
//! 3. Only then does the inner index lead to them
//!    ([`InnerIndex::replace`](crate::inner::InnerIndex::replace)): no one acts on what a crash
//!    undoes.
//! 4. L goes to the epoch collector. L itself was not changed, so whoever still reads it reads what
//!    was there, and finds its version over: the holder of L's lock gives it back one version up.

use super::{HEAD, LeafDesign, LeafTree, offset};
use crate::repr::{Stored, StoredKey};
use crate::version_lock::{Locked, VersionLocks};
use bristlecone_pmem::{Media, POff, PWord};
use crossbeam_epoch::Guard;

/// The link to a leaf: the leaf before it, locked, or for the first one the head word, which the
/// holder of that leaf's lock alone changes.
#[derive(Debug)]
pub struct Before<'t> {
    /// `None` for the head word.
    pub leaf: Option<u32>,
    /// `None` too where a lock that the caller holds covers it.
    locked: Option<Locked<'t>>,
}

/// Why what leads to a leaf was not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Another thread is in the way: to be tried again.
    Busy,
    /// The leaf that the inner index has before it leads elsewhere: the pool was damaged under a
    /// clean close, whose opening does not walk the chain. No thread will change that.
    Broken,
}

impl Before<'_> {
    /// Unlocks. Only the link has changed, which no reader looks at.
    pub fn unlock(self) {
        if let Some(locked) = self.locked {
            locked.unlock_unchanged();
        }
    }
}

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// All words of a leaf, which may be longer than its type.
    #[inline(always)]
    pub fn words<'t>(&'t self, leaf: &'t D::Leaf) -> &'t [PWord] {
        let bytes = self.design.leaf_bytes() as usize;
        let at = self.base.wrapping_add(self.offset_of(leaf) as usize);
        // SAFETY: 1. a leaf's `leaf_bytes` bytes are inside the mapping, which `base` may access
        // all of;
        // 2. leaves are 256-aligned; 3. they are atomic words, valid for any bits; 4. the mapping
        //    lives
        // as long as `pool`.
        unsafe { std::slice::from_raw_parts(at.cast::<PWord>().cast_const(), bytes / 8) }
    }

    /// Takes the lock of `leaf` without waiting. `held`: leaves whose locks the caller holds, one
    /// of which may cover it (`Some(None)` then).
    pub fn try_lock_besides(&self, leaf: u32, held: &[u32]) -> Option<Option<Locked<'_>>> {
        if held.iter().any(|held| VersionLocks::same_slot(*held, leaf)) {
            return Some(None);
        }
        self.locks.try_lock(leaf).map(Some)
    }

    /// Locks the link to `handle`, which `key` is routed to and whose lock the caller holds, as it
    /// does those of all of `held`.
    ///
    /// # Errors
    /// [`Blocked`]; nothing is locked.
    pub fn lock_before(
        &self,
        key: &K,
        handle: u32,
        held: &[u32],
        guard: &Guard,
    ) -> Result<Before<'_>, Blocked> {
        let near = self.inner.find_with_left(key, guard);
        if near.located.leaf != handle {
            return Err(Blocked::Busy);
        }
        self.pm().interleave();
        let before = match &near.left {
            None => Before {
                leaf: None,
                locked: None,
            },
            Some(left) => Before {
                leaf: Some(left.leaf),
                locked: self
                    .try_lock_besides(left.leaf, held)
                    .ok_or(Blocked::Busy)?,
            },
        };
        let current = self.inner.validate(&near.located)
            && near.left.is_none_or(|left| self.inner.validate(&left));
        if !current {
            before.unlock();
            return Err(Blocked::Busy);
        }
        // A thread that changes a link changes the inner index before it gives the locks back.
        let leads = |left: u32| D::next(self, self.leaf(left)) == offset(handle);
        if before.leaf.is_none_or(leads) {
            return Ok(before);
        }
        before.unlock();
        Err(Blocked::Broken)
    }

    /// Makes `before` link to `next`: after the fence that made that leaf durable.
    #[track_caller]
    pub fn publish_link(&self, before: &Before<'_>, next: u64) {
        let (word, value) = match before.leaf {
            Some(leaf) => D::link(self, self.leaf(leaf), next),
            None => (self.root().word(HEAD), next),
        };
        // PERSIST: (in `publish`) the chain goes through the new leaves, before anyone acts on it.
        word.publish(self.pm(), value);
        self.pm().interleave();
    }

    /// Frees a leaf that nothing ever led to.
    pub fn free_leaf(&self, handle: u32) {
        self.heap.free(POff::new(offset(handle)));
    }

    /// Frees a leaf that is out of the chain and of the inner index, once readers have left it.
    pub fn retire_leaf(&self, handle: u32, guard: &Guard) {
        self.heap.retire(POff::new(offset(handle)), guard);
        self.retired.note();
    }
}
