//! Replacing leaves by others, for designs that copy on write.
//!
//! ```text
//! P --> L --> N      becomes      P --> L' --> N
//! ```
//!
//! 1. L's lock is taken before its entries are read, and P's before its link is read. A thread that
//!    comes second does not wait while it holds another lock: [`LeafTree::lock_before`] refuses,
//!    and the caller begins again.
//! 2. New leaves are written, flushed and fenced. [`LeafTree::publish_link`] switches, by one NAW
//!    of P's link (or of the head word).
//! 3. Only then does the inner index lead to them
//!    ([`InnerIndex::replace`](crate::inner::InnerIndex::replace)), so that no thread acts on what
//!    a crash undoes.
//! 4. L goes to the epoch collector. L itself was not changed, so a thread that still reads it
//!    reads its old content and then fails to validate: the holder of L's lock releases it one
//!    version up.

use super::{HEAD, LeafDesign, LeafTree, offset};
use crate::link;
use crate::repr::{Stored, StoredKey};
use crate::version_lock::{Locked, VersionLocks};
use bristlecone_pmem::{Media, POff, PWord};
use crossbeam_epoch::Guard;

/// The link to a leaf: that of the leaf before it, locked, or for the first leaf the head word,
/// which only the holder of the first leaf's lock changes.
#[derive(Debug)]
pub struct Before<'t> {
    /// `None` for the head word.
    pub leaf: Option<u32>,
    /// `None` also if a lock that the caller holds covers it.
    locked: Option<Locked<'t>>,
}

/// Reason why the link to a leaf was not locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Another thread is in the way. The caller may try again.
    Busy,
    /// The inner index's leaf before it leads elsewhere: the pool was damaged under a clean close,
    /// whose opening does not walk the chain. No thread will change that.
    Broken,
}

impl Before<'_> {
    /// Unlocks. Only the link has changed, which no reader reads.
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
    /// Returns all words of a leaf, which may be longer than its type.
    #[inline(always)]
    pub fn words<'t>(&'t self, leaf: &'t D::Leaf) -> &'t [PWord] {
        let bytes = self.design.leaf_bytes() as usize;
        let at = self.base.wrapping_add(self.offset_of(leaf) as usize);
        // SAFETY: 1. a leaf's `leaf_bytes` bytes are inside the mapping, which `base` may access
        // all of; 2. leaves are 256-aligned; 3. they are atomic words, valid for any bits; 4. the
        // mapping lives as long as `pool`.
        unsafe { std::slice::from_raw_parts(at.cast::<PWord>().cast_const(), bytes / 8) }
    }

    /// Takes the lock of `leaf` without waiting. `held` are leaves whose locks the caller holds;
    /// one of them may cover it (`Some(None)` then).
    pub fn try_lock_besides(&self, leaf: u32, held: &[u32]) -> Option<Option<Locked<'_>>> {
        if held.iter().any(|held| VersionLocks::same_slot(*held, leaf)) {
            return Some(None);
        }
        self.locks.try_lock(leaf).map(Some)
    }

    /// Locks the link to `handle`, which `key` is routed to. The caller holds its lock, and those
    /// of all of `held`.
    ///
    /// # Errors
    /// [`Blocked`]. Nothing is locked.
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
        // A thread that changes a link changes the inner index before it releases the locks.
        let leads = |left: u32| D::next(self, self.leaf(left)) == offset(handle);
        if before.leaf.is_none_or(leads) {
            return Ok(before);
        }
        before.unlock();
        Err(Blocked::Broken)
    }

    /// Makes `before` link to `next`, after the fence that made that leaf durable.
    #[track_caller]
    pub fn publish_link(&self, before: &Before<'_>, next: u64) {
        let (word, value) = match before.leaf {
            Some(leaf) => D::link(self, self.leaf(leaf), next),
            None => (self.root().word(HEAD), link::word(next)),
        };
        // PERSIST: (in `publish`) the link to the new leaves, before any thread acts on it.
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
