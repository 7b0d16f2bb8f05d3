//! Insertions and removals in a leaf: the choice between shifting and copying, split in place,
//! merge and redistribution (sections 4.2 and 4.4).
//!
//! ```text
//! split         P --> L --> N             becomes   P --> L --> R --> N      L's upper half in R
//! merge         P --> A --> B --> N                 P --> A --> N            B's pairs behind A's
//! redistribute  P --> A --> B --> N                 P --> A' --> B' --> N    as many pairs in each
//! ```
//!
//! *Split in place.* R is durable first. One NAW of L's head removes the upper half and leads to R.
//! Then the slots behind L's last pair are cleared. The paper changes the counter and the link one
//! after the other, so a crash in between loses the upper half or has it twice.
//!
//! *Merge.* B's pairs are written behind A's, where nothing counts. One NAW of A's head adds them
//! and leads past B. The first of them gets its key last, so that the image before the NAW does not
//! look like an insertion ([`super::repair`], scenario 4); therefore B must have at least two
//! pairs. The left sibling is preferred, because then the leaf's own few pairs move.
//! *Redistribution* copies both leaves. The paper shifts pairs from leaf to leaf in place and does
//! not say how: after a crash, a pair on its way would be in both or in neither.
//!
//! Both need leaves below one level-1 node, and try their locks without waiting. A thread that does
//! not get them leaves the leaf thin for the next removal. An emptied leaf is always removed.
//!
//! # Persist cost
//! Split in place: the new leaf's lines, 1, and up to 2; 3 fences; then the insertion. Merge: the
//! lines of B's pairs and terminators, and 2; 3 fences. Redistribution: both new leaves' lines, and
//! 1; 2 fences.

use super::copy::Copied;
use super::leaf::{Head, Leaf, terminators_end};
use super::repair::clear;
use super::{Crab, CrabLeaf, CrabTree, Event, Strategy, shift};
use crate::index::IfPresent;
use crate::inner::Siblings;
use crate::leaftree::{At, Attempt, Found, Moved, Pair, Removal, offset};
use crate::repr::{KeyRepr, Repr};
use crate::version_lock::Locked;
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::cmp::Ordering as Order;

/// Minimum number of pairs of a leaf that is probed. Smaller ones are searched whole, since the
/// probe would copy a line or two.
const LEAST_PROBED: usize = 4;

/// Result of the approximate probe (section 5.2).
enum Probe {
    /// The key, if present, is in the upper half, from this slot on.
    Above(usize),
    /// The key is in the middle slot.
    Here(usize),
    /// The key is below the middle. Its place is known if a search found it; otherwise copying
    /// finds it.
    Below(Option<Result<usize, usize>>),
}

impl<'t, K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> Crab<'t, K, V, M> {
    /// Compares the key with the middle one alone.
    fn probe(self, leaf: &Leaf<'_, M>, n: usize, key: &K) -> Probe {
        let options = &self.0.design.options;
        if !options.probe || options.strategy != Strategy::Choose || n < LEAST_PROBED {
            return Probe::Above(0);
        }
        let middle = (n - 1) / 2;
        match self.0.compare_to_word(key, leaf.key(middle)) {
            Order::Greater => Probe::Above(middle + 1),
            Order::Equal => Probe::Here(middle),
            // Comparing byte strings means reading records, so only half of them are searched.
            Order::Less if K::RECORDS => Probe::Below(Some(self.position_in(leaf, 0, middle, key))),
            Order::Less => Probe::Below(None),
        }
    }

    fn position_in(
        self,
        leaf: &Leaf<'_, M>,
        from: usize,
        to: usize,
        key: &K,
    ) -> Result<usize, usize> {
        leaf.position(from, to, |word| self.0.compare_to_word(key, word))
    }

    /// Returns the content of a slot.
    pub(super) fn found(leaf: &Leaf<'_, M>, slot: usize) -> Found {
        let (key, value) = leaf.pair(slot);
        Found { slot, key, value }
    }

    /// Inserts or replaces a pair in a locked leaf: Algorithm 1, from line 2 on.
    pub(super) fn put_in(
        self,
        mut at: At<'t, CrabLeaf>,
        key: &K,
        pair: Pair,
        present: IfPresent,
    ) -> Result<Attempt<'t>, SpaceError> {
        let leaf = self.view(at.leaf);
        let (n, full) = (leaf.n(), leaf.n() == leaf.capacity());
        let mut from = 0;
        // If the key is likely to be there, look for it first.
        if present == IfPresent::Refuse && !full {
            match self.probe(&leaf, n, key) {
                Probe::Above(slot) => from = slot,
                Probe::Here(slot) | Probe::Below(Some(Ok(slot))) => {
                    return Ok(Attempt::There(Self::found(&leaf, slot), at.locked));
                }
                Probe::Below(place) => {
                    let slot = place.and_then(Result::err);
                    match self.insert_by_copy(at, key, slot, pair) {
                        Copied::Cannot(back) => at = back,
                        copied => return Self::attempted(copied),
                    }
                }
            }
        }
        let slot = match self.position_in(&leaf, from, n, key) {
            Ok(slot) => return Ok(Attempt::There(Self::found(&leaf, slot), at.locked)),
            Err(slot) => slot,
        };
        if full {
            return self.split_with(at, key, slot, pair);
        }
        if self.copies(|design| {
            (
                design.costs().insert(n, slot, design.wide),
                design.write(n + 1) + design.costs().switch(),
            )
        }) {
            match self.insert_by_copy(at, key, Some(slot), pair) {
                // A leaf that cannot be copied is shifted.
                Copied::Cannot(back) => at = back,
                copied => return Self::attempted(copied),
            }
        }
        shift::insert(
            &leaf,
            slot,
            (pair.key, pair.value),
            !CrabTree::<K, V, M>::RECORDS,
        );
        self.count_event(Event::InsertInPlace);
        at.locked.unlock();
        Ok(Attempt::Done)
    }

    /// Removes a key from a locked leaf.
    pub(super) fn take_from(self, mut at: At<'t, CrabLeaf>, key: &K) -> Removal {
        let leaf = self.view(at.leaf);
        let n = leaf.n();
        let mut removed = None;
        let done = |removed: Option<(Found, u32, usize)>| match removed {
            Some((found, leaf, left)) => Removal::Done { found, leaf, left },
            None => Removal::NotThere,
        };
        let (mut from, mut by_copy, mut place) = (0, false, None);
        match self.probe(&leaf, n, key) {
            Probe::Above(slot) => from = slot,
            Probe::Here(slot) | Probe::Below(Some(Ok(slot))) => {
                (by_copy, place) = (true, Some(slot));
            }
            Probe::Below(Some(Err(_))) => {
                at.locked.unlock_unchanged();
                return Removal::NotThere;
            }
            Probe::Below(None) => by_copy = true,
        }
        if !by_copy {
            let Ok(slot) = self.position_in(&leaf, from, n, key) else {
                at.locked.unlock_unchanged();
                return Removal::NotThere;
            };
            place = Some(slot);
            by_copy = n > 1
                && self.copies(|design| {
                    (
                        design.costs().remove(n, slot, design.wide),
                        design.write(n - 1) + design.costs().switch(),
                    )
                });
        }
        if by_copy {
            match self.remove_by_copy(at, key, place, &mut removed) {
                Copied::Done => return done(removed),
                Copied::Again => return Removal::Again,
                Copied::Not(at, _) => {
                    at.locked.unlock_unchanged();
                    return Removal::NotThere;
                }
                // A leaf that cannot be copied is shifted.
                Copied::Cannot(back) => at = back,
            }
        }
        let place = place.map_or_else(|| self.position_in(&leaf, 0, n, key), Ok);
        let Ok(slot) = place else {
            at.locked.unlock_unchanged();
            return Removal::NotThere;
        };
        let found = Self::found(&leaf, slot);
        let left = shift::remove(&leaf, slot);
        self.count_event(Event::RemoveInPlace);
        at.locked.unlock();
        done(Some((found, at.handle, left)))
    }

    /// Splits a full leaf and inserts a pair, which belongs in slot `slot` of the full leaf.
    fn split_with(
        self,
        at: At<'t, CrabLeaf>,
        key: &K,
        slot: usize,
        pair: Pair,
    ) -> Result<Attempt<'t>, SpaceError> {
        let n = self.view(at.leaf).n();
        let m = n / 2;
        let goes_right = slot >= m;
        let by_copy = self.copies(|design| {
            let (costs, right) = (design.costs(), design.write(n - m));
            let in_place =
                right + 3 * costs.flush_fence + costs.insert(m, slot.min(m), design.wide);
            let copied = right + design.write(m + 1) + costs.switch();
            // A pair that goes to the larger half is copied with it, at no cost in the smaller one.
            (if goes_right { 0 } else { in_place }, copied)
        });
        if !by_copy {
            return self.split_in_place(at, key, slot, pair, m);
        }
        match self.split_by_copy(at, key, slot, pair, m) {
            // There may be room for one block where there is none for two.
            Copied::Cannot(at) => self.split_in_place(at, key, slot, pair, m),
            copied => Self::attempted(copied),
        }
    }

    fn split_in_place(
        self,
        at: At<'t, CrabLeaf>,
        key: &K,
        slot: usize,
        pair: Pair,
        m: usize,
    ) -> Result<Attempt<'t>, SpaceError> {
        let guard = &epoch::pin();
        let right = match self.allocate_leaf() {
            Ok(right) => right,
            Err(e) => {
                at.locked.unlock_unchanged();
                return Err(e);
            }
        };
        let leaf = self.view(at.leaf);
        let upper: Vec<Moved> = (m..leaf.n())
            .map(|slot| {
                let (key, value) = leaf.pair(slot);
                Moved { key, value, slot }
            })
            .collect();
        let goes_right = slot >= m;
        self.halve(&leaf, right, &upper, goes_right.then_some(pair));
        self.0.record_position(right);
        clear(&leaf, m);
        // PERSIST: the nulls behind the lower half, before anyone inserts there.
        self.0.pm().fence();
        self.0.pm().interleave();
        let separator = self.view(self.0.leaf(right)).key(0);
        self.add_leaf(separator, right, key, guard);
        if !goes_right {
            // The split fenced the pair's records.
            shift::insert(&leaf, slot, (pair.key, pair.value), true);
        }
        self.count_event(Event::SplitInPlace);
        at.locked.unlock();
        Ok(Attempt::Done)
    }

    /// Copies `upper`, the last pairs of a leaf, and `with` to the leaf `right`. One NAW leaves the
    /// other pairs to the leaf and leads to `right`. The caller then clears the leaf behind them.
    pub(super) fn halve(self, leaf: &Leaf<'_, M>, right: u32, upper: &[Moved], with: Option<Pair>) {
        let pm = self.0.pm();
        let Head { n, next } = leaf.head();
        let n = n.min(leaf.capacity()) - upper.len();
        let below = |pair: &Pair| {
            upper.partition_point(|moved| self.0.compare_words(moved.key, pair.key).is_lt())
        };
        let (below, above) = upper.split_at(with.as_ref().map_or(0, below));
        let words = |moved: &Moved| (moved.key, moved.value);
        let with = with.map(|pair| (pair.key, pair.value));
        let pairs = below.iter().map(words).chain(with);
        self.write_leaf(right, pairs.chain(above.iter().map(words)), next);
        let head = Head { n, next: right };
        if pm.planted("crabtree-split-first") {
            leaf.publish_head(head);
        }
        // PERSIST: the new leaf and the pair's records, before the chain goes through it.
        pm.fence();
        leaf.publish_head(head);
    }

    /// Merges or redistributes a leaf that a removal left with `left` pairs, if that is less than
    /// half.
    pub(super) fn thin(self, leaf: u32, key: &K, left: usize) {
        if left > 0 && left >= self.0.design.capacity / 2 {
            return;
        }
        let guard = &epoch::pin();
        if left == 0 || self.rebalance(leaf, key, guard) {
            self.0.reclaim(leaf, key, guard);
        }
    }

    /// Merges a leaf that is less than half full with a sibling, or redistributes their pairs.
    /// Returns true if the leaf is empty.
    fn rebalance(self, handle: u32, key: &K, guard: &Guard) -> bool {
        let near = self.0.inner.find_siblings(key, guard);
        if near.located.leaf != handle {
            return false;
        }
        self.0.pm().interleave();
        let Some(own) = self.0.locks.try_lock(handle) else {
            return false;
        };
        let Siblings { left, right, .. } = near;
        let lock = |leaf: Option<u32>, held: &[u32]| {
            leaf.and_then(|leaf| Some((leaf, self.0.try_lock_besides(leaf, held)?)))
        };
        let left = lock(left, &[handle]);
        let held = [handle, left.as_ref().map_or(handle, |left| left.0)];
        let right = lock(right, &held);
        let n = self.view(self.0.leaf(handle)).n();
        let current = self.0.inner.validate(&near.located);
        let changed = current && n > 0 && n < self.0.design.capacity / 2 && {
            let left = left.as_ref().map(|left| left.0);
            let right = right.as_ref().map(|right| right.0);
            self.merge_or_share(handle, left, right, guard)
        };
        let give_back = |locked: Locked<'_>| {
            if changed {
                locked.unlock();
            } else {
                locked.unlock_unchanged();
            }
        };
        let siblings = [left, right].into_iter().flatten();
        siblings
            .filter_map(|(_, locked)| locked)
            .for_each(give_back);
        give_back(own);
        current && n == 0
    }

    /// Merges `own` with a sibling, or redistributes their pairs; all are locked. Returns false if
    /// nothing has changed.
    fn merge_or_share(
        self,
        own: u32,
        left: Option<u32>,
        right: Option<u32>,
        guard: &Guard,
    ) -> bool {
        let pairs = |leaf: u32| self.view(self.0.leaf(leaf)).n();
        let fits = |sibling: u32| pairs(sibling) + pairs(own) <= self.0.design.capacity;
        let held = [own, left.unwrap_or(own), right.unwrap_or(own)];
        match (left, right) {
            (Some(left), _) if fits(left) => self.merge(left, own, guard),
            (_, Some(right)) if fits(right) => self.merge(own, right, guard),
            (Some(left), right) if right.is_none_or(|right| pairs(left) >= pairs(right)) => {
                self.redistribute(left, own, &held, guard)
            }
            (_, Some(right)) => self.redistribute(own, right, &held, guard),
            _ => false,
        }
    }

    /// Writes the pairs of `b` behind those of `a`, the leaf before it, and removes `b`.
    fn merge(self, a: u32, b: u32, guard: &Guard) -> bool {
        let pm = self.0.pm();
        let (to, from) = (self.view(self.0.leaf(a)), self.view(self.0.leaf(b)));
        let (n, more) = (to.n(), from.n());
        if more < 2 {
            return false;
        }
        let first = from.pair(0);
        // The inner index changes first: a thread that it leads to `a` now waits for the lock.
        let absorbed = K::read(pm, first.0, |low| self.0.inner.absorb(a, b, low, guard));
        if absorbed != Some(true) {
            return false;
        }
        for i in 1..more {
            to.set(n + i, from.pair(i));
        }
        to.set_value(n, first.1);
        let end = terminators_end(n + more, to.capacity());
        to.terminate(n + more, end);
        if pm.planted("crabtree-merge-key-first") {
            to.set_key(n, first.0);
        }
        // PERSIST: the pairs, except the key of the first, with which it would look like an
        // insertion.
        to.flush_slots(n, end);
        self.0.forget_position(b);
        // PERSIST: those pairs, and the removal of the recovery position of the leaf that goes.
        pm.fence();
        to.set_key(n, first.0);
        // PERSIST: the first pair whole, before the counter.
        to.flush_line(n);
        pm.fence();
        let next = from.head().next;
        to.publish_head(Head { n: n + more, next });
        pm.interleave();
        self.give_up_leaf(b, guard);
        self.count_event(Event::Merge);
        true
    }

    /// Copies `a` and `b`, the leaf after it, to two leaves with as many pairs each. The caller
    /// holds the locks of the leaves in `held`.
    fn redistribute(self, a: u32, b: u32, held: &[u32], guard: &Guard) -> bool {
        let pm = self.0.pm();
        let (left, right) = (self.view(self.0.leaf(a)), self.view(self.0.leaf(b)));
        let (n, all) = (left.n(), left.n() + right.n());
        let (low_a, low_b) = (left.key(0), right.key(0));
        let before = K::read(pm, low_a, |low| self.0.lock_before(low, a, held, guard));
        let Some(Ok(before)) = before else {
            return false;
        };
        let two = self.allocate_leaf().and_then(|left| {
            let right = self.allocate_leaf();
            right
                .map(|right| (left, right))
                .inspect_err(|_| self.abandon_leaf(left))
        });
        let Ok((new_a, new_b)) = two else {
            before.unlock();
            return false;
        };
        let pair = |i: usize| {
            if i < n {
                left.pair(i)
            } else {
                right.pair(i - n)
            }
        };
        let upper = self.write_leaf(new_b, (all / 2..all).map(pair), right.head().next);
        self.write_leaf(new_a, (0..all / 2).map(pair), new_b);
        let boundary = upper.key(0);
        // The inner index changes first: a thread that it leads to the wrong one of the two waits
        // for its lock.
        let moved = K::read(pm, low_b, |low| {
            K::read(pm, boundary, |boundary| {
                self.0.inner.move_boundary(a, b, low, boundary, guard)
            })
        });
        if moved.flatten() != Some(true) {
            self.abandon_leaf(new_a);
            self.abandon_leaf(new_b);
            before.unlock();
            return false;
        }
        let recorded = self.0.forget_position(b);
        self.switch(&before, a, new_a);
        if recorded {
            self.0.record_again(new_b);
        }
        let replace = |word: u64, old: u32, new: u32| {
            K::read(pm, word, |key| self.0.inner.replace(old, new, key, guard))
        };
        replace(low_a, a, new_a);
        replace(boundary, b, new_b);
        pm.interleave();
        before.unlock();
        self.give_up_leaf(a, guard);
        self.give_up_leaf(b, guard);
        self.count_event(Event::Redistribute);
        true
    }

    /// Makes `before` lead past an empty leaf, for reclamation and recovery.
    pub(super) fn lead_past(self, before: &CrabLeaf, leaf: &CrabLeaf) {
        let (before, leaf) = (self.view(before), self.view(leaf));
        let next = leaf.head().next;
        before.publish_head(Head {
            next,
            ..before.head()
        });
        if self.0.design.general {
            // PERSIST: (in `publish`) as in `give_up_leaf`.
            leaf.tag().publish(self.0.pm(), 0);
        }
    }

    /// Returns the offset of a leaf's right sibling.
    pub(super) fn next_of(self, leaf: &CrabLeaf) -> u64 {
        offset(self.view(leaf).head().next)
    }
}
