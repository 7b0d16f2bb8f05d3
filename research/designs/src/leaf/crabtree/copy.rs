//! Copy on write (COW): Algorithm 1, lines 7 to 21, for insertion, removal and split.
//!
//! ```text
//! P --> L --> N      becomes      P --> L' --> N      split:  P --> L1 --> L2 --> N
//! ```
//!
//! The new leaves are written and fenced; one NAW of P's head (or of the head word) switches
//! ([`crate::leaftree`]'s `replace.rs` has the protocol of locks). L stays as it was until no reader is in it.
//!
//! # Crash states
//! Before the NAW: blocks that no walk reaches, and so are free. After it: L's block is such a one. Nothing
//! leaks, without a record of the two addresses; the paper keeps one, since its allocator remembers by itself
//! what it handed out.
//!
//! # Persist cost
//! The new leaves' lines, 1 line; 2 fences. The position of a recorded leaf adds a line under the first, and one
//! line and fence for recording the new one. Where leaves come from a general allocator
//! ([`super::CrabOptions::self_managed`] off), 1 line and fence more for each leaf that is allocated or freed.

use super::leaf::{Head, Leaf, terminators_end};
use super::{Crab, Event};
use crate::leaftree::{At, Attempt, Before, Blocked, Found, Pair, handle, offset};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::cmp::Ordering as Order;

/// What the allocation tag of a leaf in use holds.
const IN_USE: u64 = 1;

/// What came of an attempt to copy.
pub(super) enum Copied<'t> {
    /// It is done, durably, and nothing is locked.
    Done,
    /// The key is there (insertion) or not (removal): nothing has changed, the leaf is still locked.
    Not(At<'t, super::CrabLeaf>, Option<Found>),
    /// Another thread was in the way: nothing has changed, nothing is locked.
    Again,
    /// There is no room for a copy, or nothing that could lead to it (a damaged pool): nothing has changed, the leaf is
    /// still locked.
    Cannot(At<'t, super::CrabLeaf>),
}

impl<'t> Copied<'t> {
    /// What leads to the leaf is not to be had.
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
    /// A block for a leaf, which nothing leads to; by a general allocator, it is marked as in use.
    pub(super) fn allocate_leaf(self) -> Result<u32, SpaceError> {
        let leaf = handle(self.0.new_leaf()?);
        if self.0.design.tags {
            // PERSIST: (in `publish`) what a general allocator does for each block that it hands out.
            self.view(self.0.leaf(leaf))
                .tag()
                .publish(self.0.pm(), IN_USE);
        }
        Ok(leaf)
    }

    /// Gives up a leaf that is out of the chain and of the inner index; by a general allocator, it is marked
    /// as free.
    pub(super) fn give_up_leaf(self, leaf: u32, guard: &Guard) {
        if self.0.design.tags {
            // PERSIST: (in `publish`) what a general allocator does for each block that it gets back.
            self.view(self.0.leaf(leaf)).tag().publish(self.0.pm(), 0);
        }
        self.0.retire_leaf(leaf, guard);
    }

    /// Writes pairs into a leaf that nothing leads to. Flushed, not fenced.
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
        // PERSIST: header, pairs and terminators; fenced before anything leads to the leaf.
        leaf.flush_all();
        leaf
    }

    /// Fences what was written and makes `before` lead to `new`, the first of the new leaves, in the place
    /// of `old`, whose lock the caller holds.
    pub(super) fn switch(self, before: &Before<'_>, old: u32, new: u32) {
        let recorded = self.0.forget_position(old);
        if self.0.pm().planted("crabtree-link-first") {
            self.0.publish_link(before, offset(new));
        }
        // PERSIST: the new leaves and their records, and that no position names the old one, before the chain
        // goes through them.
        self.0.pm().fence();
        self.0.publish_link(before, offset(new));
        if recorded {
            self.0.record_again(new);
        }
    }

    /// Inserts by copying: into slot `slot`, or if that is not known yet where the copying finds it to be.
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
        // Line 9 to 12: pairs, with the new one where it belongs.
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

    /// Removes by copying: from slot `slot`, or if that is not known yet where the copying finds the key.
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

    /// Gives back a leaf that is not to be used after all.
    pub(super) fn abandon_leaf(self, leaf: u32) {
        if self.0.design.tags {
            // PERSIST: (in `publish`) as in `give_up_leaf`.
            self.view(self.0.leaf(leaf)).tag().publish(self.0.pm(), 0);
        }
        self.0.free_leaf(leaf);
    }

    /// Lines 13 to 21: from the pairs' having been copied to the old leaf's being free. Unlocks.
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
        // PERSIST: the whole copy, in one batch; fenced in `switch`, before anything leads to it.
        copy.flush_all();
        self.switch(&before, at.handle, new);
        let replaced = self.0.inner.replace(at.handle, new, key, guard);
        debug_assert!(replaced, "the key is routed to a leaf that is locked");
        self.0.pm().interleave();
        before.unlock();
        self.give_up_leaf(at.handle, guard);
        at.locked.unlock();
    }

    /// Splits a full leaf by copying it to two, the first with `m` of its pairs, and the new pair in slot
    /// `slot` of what was one.
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
        // Always routed to the old leaf, but in a pool that is corrupt under our hands.
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

    /// Tells the inner index of a leaf that a split made, whose smallest key is at word `separator`.
    pub(super) fn add_leaf(self, separator: u64, new: u32, key: &K, guard: &Guard) {
        if K::read(self.0.pm(), separator, |s| {
            self.0.inner.insert(s, new, guard)
        })
        .is_none()
        {
            // The pool is corrupt under our hands: keep the leaf reachable.
            self.0.inner.insert(key, new, guard);
        }
        self.0.pm().interleave();
    }

    /// What an insertion by copying comes to, in the terms of the tree.
    pub(super) fn attempted(copied: Copied<'t>) -> Result<Attempt<'t>, SpaceError> {
        match copied {
            Copied::Done => Ok(Attempt::Done),
            Copied::Again => Ok(Attempt::Again),
            Copied::Not(at, Some(found)) => Ok(Attempt::There(found, at.locked)),
            Copied::Not(at, None) => {
                at.locked.unlock_unchanged();
                Ok(Attempt::Again)
            }
            // Callers have changed it in place instead.
            Copied::Cannot(at) => {
                at.locked.unlock_unchanged();
                Ok(Attempt::Again)
            }
        }
    }
}
