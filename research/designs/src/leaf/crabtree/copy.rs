//! Copy on write (COW): Algorithm 1, lines 7 to 21, for insertion, removal and split.
//!
//! ```text
//! P --> L --> N      becomes      P --> L' --> N      split:  P --> L1 --> L2 --> N
//! ```
//!
//! The new leaves are written and fenced, then one NAW of P's head (or of the head word) switches
//! to them. `replace.rs` of [`crate::leaftree`] has the protocol of the locks. L stays as it was
//! until its last reader has left.
//!
//! # Crash states
//! Before the NAW, the new blocks are free, because no walk reaches them. After it, L's block is
//! free for the same reason. Nothing leaks, although no record keeps the two addresses. The paper
//! keeps such a record because its allocator itself remembers which blocks it handed out.
//!
//! # Persist cost
//! A copy writes back the new leaves' lines and 1 more, with 2 fences. If the leaf is recorded as a
//! position for recovery, removing that adds a line under the first fence, and recording the new
//! leaf adds a line and a fence. With a general allocator ([`super::CrabOptions::self_managed`]
//! off), each leaf that is allocated or freed adds a line and a fence.

use super::leaf::{Head, Leaf, terminators_end};
use super::{Crab, Event};
use crate::leaftree::{At, Attempt, Before, Blocked, Found, Pair, handle, offset};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::cmp::Ordering as Order;

/// Allocation tag of a leaf in use.
const IN_USE: u64 = 1;

/// Result of an attempt to copy.
pub(super) enum Copied<'t> {
    /// The change is made and durable, and nothing is locked.
    Done,
    /// The key is there (insertion) or absent (removal). Nothing has changed, and the leaf is still
    /// locked.
    Not(At<'t, super::CrabLeaf>, Option<Found>),
    /// Another thread was in the way. Nothing has changed, and nothing is locked.
    Again,
    /// There is no room for a copy, or the pool is damaged and nothing leads to the leaf. Nothing
    /// has changed, and the leaf is still locked.
    Cannot(At<'t, super::CrabLeaf>),
}

impl<'t> Copied<'t> {
    /// Returns the result for a leaf whose predecessor cannot be locked.
    fn blocked(at: At<'t, super::CrabLeaf>, blocked: Blocked) -> Self {
        match blocked {
            Blocked::Busy => {
                at.locked.unlock_unchanged();
                Self::Again
            }
            Blocked::Broken => Self::Cannot(at),
        }
    }
}

impl<'t, K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Crab<'t, K, V, M> {
    /// Returns a new block for a leaf. A general allocator fills it with nulls, and marks it as in
    /// use.
    pub(super) fn allocate_leaf(self) -> Result<u32, SpaceError> {
        let leaf = handle(self.0.new_leaf()?);
        if self.0.design.general {
            self.view(self.0.leaf(leaf)).clear();
            // PERSIST: (in `publish`) the tag that a general allocator writes for each block that
            // it hands out.
            self.view(self.0.leaf(leaf))
                .tag()
                .publish(self.0.pm(), IN_USE);
        }
        Ok(leaf)
    }

    /// Frees a leaf that is out of the chain and of the inner index. A general allocator marks it
    /// as free.
    pub(super) fn give_up_leaf(self, leaf: u32, guard: &Guard) {
        if self.0.design.general {
            // PERSIST: (in `publish`) the tag that a general allocator writes for each block that
            // it gets back.
            self.view(self.0.leaf(leaf)).tag().publish(self.0.pm(), 0);
        }
        self.0.retire_leaf(leaf, guard);
    }

    /// Writes pairs into a leaf that nothing leads to. Flushes them and does not fence.
    pub(super) fn write_leaf(
        self,
        leaf: u32,
        pairs: impl Iterator<Item = (u64, u64)>,
        next: u32,
    ) -> Leaf<'t, M> {
        let leaf = self.view(self.0.leaf(leaf));
        let mut n = 0;
        for pair in pairs {
            leaf.set(n, pair);
            n += 1;
        }
        leaf.terminate(n, terminators_end(n, leaf.capacity()));
        leaf.set_head(Head { n, next });
        // PERSIST: the header, pairs and terminators, fenced before anything leads to the leaf.
        leaf.flush_all();
        leaf
    }

    /// Fences the new leaves and makes `before` lead to `new`, the first of them, instead of `old`.
    /// The caller holds the lock of `old`.
    pub(super) fn switch(self, before: &Before<'_>, old: u32, new: u32) {
        let recorded = self.0.forget_position(old);
        if self.0.pm().planted("crabtree-link-first") {
            self.0.publish_link(before, offset(new));
        }
        // PERSIST: the new leaves, their records, and the removal of the old leaf's recovery
        // position, before the chain goes through the new leaves.
        self.0.pm().fence();
        self.0.publish_link(before, offset(new));
        if recorded {
            self.0.record_again(new);
        }
    }

    /// Inserts by copying, into slot `slot`, or where the copying finds the place if there is no
    /// slot yet.
    pub(super) fn insert_by_copy(
        self,
        at: At<'t, super::CrabLeaf>,
        key: &K,
        slot: Option<usize>,
        pair: Pair,
    ) -> Copied<'t> {
        let guard = &epoch::pin();
        let before = match self.0.lock_before(key, at.handle, &[at.handle], guard) {
            Ok(before) => before,
            Err(blocked) => return Copied::blocked(at, blocked),
        };
        let new = match self.allocate_leaf() {
            Ok(new) => new,
            Err(_) => {
                before.unlock();
                return Copied::Cannot(at);
            }
        };
        let (old, copy) = (self.view(at.leaf), self.view(self.0.leaf(new)));
        let (n, next) = (old.n(), old.head().next);
        // Lines 9 to 12: the pairs, with the new one in its place.
        let mut to = 0;
        let mut place = slot;
        for from in 0..n {
            let there = old.pair(from);
            if place.is_none() {
                match self.0.compare_to_word(key, there.0) {
                    Order::Greater => {}
                    Order::Less => place = Some(from),
                    Order::Equal => {
                        self.abandon_leaf(new);
                        before.unlock();
                        return Copied::Not(
                            at,
                            Some(Found {
                                slot: from,
                                key: there.0,
                                value: there.1,
                            }),
                        );
                    }
                }
            }
            if place == Some(from) {
                copy.set(to, (pair.key, pair.value));
                to += 1;
            }
            copy.set(to, there);
            to += 1;
        }
        if to == n {
            copy.set(to, (pair.key, pair.value));
        }
        self.finish_copy(at, before, new, key, Head { n: n + 1, next }, guard);
        self.count_event(Event::InsertByCopy);
        Copied::Done
    }

    /// Removes by copying, from slot `slot`, or where the copying finds the key if there is no slot
    /// yet.
    pub(super) fn remove_by_copy(
        self,
        at: At<'t, super::CrabLeaf>,
        key: &K,
        slot: Option<usize>,
        removed: &mut Option<(Found, u32, usize)>,
    ) -> Copied<'t> {
        let guard = &epoch::pin();
        let before = match self.0.lock_before(key, at.handle, &[at.handle], guard) {
            Ok(before) => before,
            Err(blocked) => return Copied::blocked(at, blocked),
        };
        let new = match self.allocate_leaf() {
            Ok(new) => new,
            Err(_) => {
                before.unlock();
                return Copied::Cannot(at);
            }
        };
        let (old, copy) = (self.view(at.leaf), self.view(self.0.leaf(new)));
        let (n, next) = (old.n(), old.head().next);
        let mut to = 0;
        let mut found = None;
        for from in 0..n {
            let there = old.pair(from);
            let is_it = match slot {
                Some(slot) => from == slot,
                None => found.is_none() && self.0.compare_to_word(key, there.0) == Order::Equal,
            };
            if is_it {
                found = Some(Found {
                    slot: from,
                    key: there.0,
                    value: there.1,
                });
                continue;
            }
            copy.set(to, there);
            to += 1;
        }
        let Some(found) = found else {
            self.abandon_leaf(new);
            before.unlock();
            return Copied::Not(at, None);
        };
        self.finish_copy(at, before, new, key, Head { n: to, next }, guard);
        self.count_event(Event::RemoveByCopy);
        *removed = Some((found, new, to));
        Copied::Done
    }

    /// Frees a leaf that is not needed after all.
    pub(super) fn abandon_leaf(self, leaf: u32) {
        if self.0.design.general {
            // PERSIST: (in `publish`) as in `give_up_leaf`.
            self.view(self.0.leaf(leaf)).tag().publish(self.0.pm(), 0);
        }
        self.0.free_leaf(leaf);
    }

    /// Lines 13 to 21: from the copied pairs to the freed old leaf. Unlocks.
    fn finish_copy(
        self,
        at: At<'_, super::CrabLeaf>,
        before: Before<'_>,
        new: u32,
        key: &K,
        head: Head,
        guard: &Guard,
    ) {
        let copy = self.view(self.0.leaf(new));
        copy.terminate(head.n, terminators_end(head.n, copy.capacity()));
        copy.set_head(head);
        // PERSIST: the whole copy, in one batch, fenced in `switch` before anything leads to it.
        copy.flush_all();
        self.switch(&before, at.handle, new);
        let replaced = self.0.inner.replace(at.handle, new, key, guard);
        debug_assert!(replaced, "the key is routed to a leaf that is locked");
        self.0.pm().interleave();
        before.unlock();
        self.give_up_leaf(at.handle, guard);
        at.locked.unlock();
    }

    /// Splits a full leaf by copying it to two. The first gets `m` pairs. The new pair belongs in
    /// slot `slot` of the old leaf.
    pub(super) fn split_by_copy(
        self,
        at: At<'t, super::CrabLeaf>,
        key: &K,
        slot: usize,
        pair: Pair,
        m: usize,
    ) -> Copied<'t> {
        let guard = &epoch::pin();
        let before = match self.0.lock_before(key, at.handle, &[at.handle], guard) {
            Ok(before) => before,
            Err(blocked) => return Copied::blocked(at, blocked),
        };
        let two = self.allocate_leaf().and_then(|left| {
            let right = self.allocate_leaf();
            right
                .map(|right| (left, right))
                .inspect_err(|_| self.abandon_leaf(left))
        });
        let (left, right) = match two {
            Ok(two) => two,
            Err(_) => {
                before.unlock();
                return Copied::Cannot(at);
            }
        };
        let old = self.view(at.leaf);
        let (n, next) = (old.n(), old.head().next);
        let pairs = |from: usize, to: usize, with: Option<usize>| {
            (from..to + usize::from(with.is_some())).map(move |i| match with {
                Some(slot) if i == slot => (pair.key, pair.value),
                Some(slot) if i > slot => old.pair(i - 1),
                _ => old.pair(i),
            })
        };
        let goes_right = slot >= m;
        let right_leaf = self.write_leaf(right, pairs(m, n, goes_right.then_some(slot)), next);
        let separator = right_leaf.key(0);
        self.write_leaf(left, pairs(0, m, (!goes_right).then_some(slot)), right);
        self.switch(&before, at.handle, left);
        self.0.record_position(right);
        self.add_leaf(separator, right, key, guard);
        let below = old.key(0);
        // The inner index leads to the old leaf, unless the pool has become corrupt.
        K::read(self.0.pm(), below, |low| {
            self.0.inner.replace(at.handle, left, low, guard)
        });
        self.0.pm().interleave();
        before.unlock();
        self.give_up_leaf(at.handle, guard);
        at.locked.unlock();
        self.count_event(Event::SplitByCopy);
        Copied::Done
    }

    /// Adds a leaf that a split made to the inner index. Its smallest key is at word `separator`.
    pub(super) fn add_leaf(self, separator: u64, new: u32, key: &K, guard: &Guard) {
        if K::read(self.0.pm(), separator, |s| {
            self.0.inner.insert(s, new, guard)
        })
        .is_none()
        {
            // The pool has become corrupt: keep the leaf reachable.
            self.0.inner.insert(key, new, guard);
        }
        self.0.pm().interleave();
    }

    /// Converts the result of an insertion by copying to the tree's terms.
    pub(super) fn attempted(copied: Copied<'t>) -> Result<Attempt<'t>, SpaceError> {
        match copied {
            Copied::Done => Ok(Attempt::Done),
            Copied::Again => Ok(Attempt::Again),
            Copied::Not(at, Some(found)) => Ok(Attempt::There(found, at.locked)),
            Copied::Not(at, None) => {
                at.locked.unlock_unchanged();
                Ok(Attempt::Again)
            }
            // Callers have inserted in place instead.
            Copied::Cannot(at) => {
                at.locked.unlock_unchanged();
                Ok(Attempt::Again)
            }
        }
    }
}
