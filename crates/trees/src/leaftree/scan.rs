//! Scans in both directions, a snapshot per leaf.
//!
//! A scan goes from leaf to leaf through the inner index, by the ends of their ranges, rather than by
//! sibling pointers: both directions work alike, the leaves to come can be prefetched, and a corrupt
//! pointer cannot lead it astray. Keys come in strict order: of each leaf only keys of the range that
//! led there are taken.
//!
//! Where words lead to records, these are prefetched before a leaf's entries are sorted and given, else a scan waits for each in
//! turn: the values' of the next leaf, and the keys' of the one after that, which are needed first. What a scan is told of
//! leaves to come is a hint, read without their versions.

use super::order::{FEW, number_after, shared_prefix, sort_by_number};
use super::{FEW_ENTRIES, LeafDesign, LeafTree};
use crate::inner::{Located, Ranged};
use crate::repr::{Stored, StoredKey, Word};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{LINE, cpu};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Leaves prefetched ahead of a scan.
const AHEAD: isize = 6;
/// Leaves that a scan visits before it lets memory be reclaimed.
const LEAVES_PER_PIN: u32 = 64;

/// Key and value words of a leaf's entries.
struct Words<A, B> {
    few: [(A, B); FEW_ENTRIES],
    /// In the place of `few`, for leaves that may have more.
    many: Vec<(A, B)>,
    len: usize,
}

impl<A: Word, B: Word> Words<A, B> {
    /// Room for the entries of a leaf that has at most `most`.
    fn new(most: usize) -> Self {
        let many = if most > FEW_ENTRIES { most } else { 0 };
        Self {
            few: [(A::default(), B::default()); FEW_ENTRIES],
            many: vec![(A::default(), B::default()); many],
            len: 0,
        }
    }

    #[inline(always)]
    fn all(&mut self) -> &mut [(A, B)] {
        if self.many.is_empty() {
            &mut self.few
        } else {
            &mut self.many
        }
    }

    /// The entries that there are.
    #[inline(always)]
    fn taken(&mut self) -> &mut [(A, B)] {
        let n = self.len;
        &mut self.all()[..n]
    }
}

/// Which way a scan goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

impl<D, K, V, M> LeafTree<D, K, V, M>
where
    D: LeafDesign<K, V, M>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    M: Media,
{
    /// Copies a leaf's words into `out`; false if the leaf changed or was not the one to read.
    #[inline]
    fn snapshot_leaf(&self, at: &Located, out: &mut Words<K::Word, V::Word>) -> bool {
        let version = self.locks.read(at.leaf);
        if !self.inner.validate(at) {
            return false;
        }
        let mut n = 0;
        let room = out.all();
        D::for_each(self, self.leaf(at.leaf), |_, key, value| {
            // A leaf that changes meanwhile may seem to have any number of entries.
            if let Some(place) = room.get_mut(n) {
                *place = (key, value);
                n += 1;
            }
        });
        out.len = n;
        self.locks.validate(at.leaf, version)
    }

    /// Sorts a leaf's words by key.
    #[inline]
    fn sort(&self, words: &mut Words<K::Word, V::Word>) {
        if D::SORTED {
            return;
        }
        let words = words.taken();
        if words.len() > FEW || K::RECORDS && !self.sort_by_bytes(words) {
            words.sort_unstable_by(|a, b| self.compare_words(a.0, b.0));
        } else if !K::RECORDS {
            sort_by_number(words, |(key, _)| *key);
        }
    }

    /// Sorts a few words by the eight bytes of their keys that follow what all of them begin with; false, with nothing changed, if
    /// that does not tell.
    #[inline]
    fn sort_by_bytes(&self, words: &mut [(K::Word, V::Word)]) -> bool {
        let pm = self.pm();
        let Some((first, others)) = words.split_first() else {
            return true;
        };
        let shared = K::read(pm, first.0, |first| {
            let first = first.byte_string()?;
            others.iter().try_fold(first.len(), |shared, (other, _)| {
                K::read(pm, *other, |other| {
                    Some(shared_prefix(&first[..shared], other.byte_string()?))
                })?
            })
        });
        let Some(shared) = shared.flatten() else {
            return false;
        };
        let mut numbered = [(0, Default::default()); FEW];
        for (place, word) in numbered.iter_mut().zip(&*words) {
            let number = K::read(pm, word.0, |key| {
                Some(number_after(key.byte_string()?, shared))
            });
            *place = (number.flatten().unwrap_or_default(), *word);
        }
        let numbered = &mut numbered[..words.len()];
        sort_by_number(numbered, |(number, _)| *number);
        if !numbered.is_sorted_by(|a, b| a.0 < b.0) {
            return false;
        }
        for (word, (_, sorted)) in words.iter_mut().zip(numbered) {
            *word = *sorted;
        }
        true
    }

    /// Visits the words of one leaf whose keys are `taken`, in order: those of a range.
    #[inline]
    fn visit_leaf(
        &self,
        words: &mut Words<K::Word, V::Word>,
        direction: Direction,
        taken: impl Fn(&K) -> bool,
        visit: &mut impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let pm = self.pm();
        self.sort(words);
        let words = words.taken();
        let n = words.len();
        // Those between two that are taken are.
        let mut ends = words.first().into_iter().chain(words.last());
        let all = ends.all(|(key, _)| K::read(pm, *key, &taken) == Some(true));
        for i in 0..n {
            let (key, value) = words[match direction {
                Direction::Up => i,
                Direction::Down => n - 1 - i,
            }];
            let step = K::read(pm, key, |key| {
                if !all && !taken(key) {
                    return ControlFlow::Continue(());
                }
                V::read(pm, value, |value| visit(key, value)).unwrap_or(ControlFlow::Continue(()))
            });
            if let Some(ControlFlow::Break(())) = step {
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    }

    #[inline(always)]
    fn prefetch_key(&self, key: K::Word) {
        if let Some(off) = K::block(key) {
            cpu::prefetch(self.base.wrapping_add(off as usize), LINE);
        }
    }

    /// Prefetches the record of a value, or tells `ahead` of it.
    #[inline(always)]
    fn prefetch_value(&self, value: V::Word, ahead: &mut impl FnMut(&V)) {
        if let Some(off) = V::block(value) {
            cpu::prefetch(self.base.wrapping_add(off as usize), LINE);
        }
        self.tell_ahead(value, ahead);
    }

    /// Calls `f` with what may be the words of the leaf `distance` after (or before) `from`, if that is in the same node; returns
    /// that leaf. It may be changing.
    #[inline]
    fn look_ahead(
        &self,
        from: &Ranged<K>,
        distance: isize,
        mut f: impl FnMut(K::Word, V::Word),
    ) -> Option<u32> {
        // Simulated media have no caches to be filled, and each load is one more to be explored.
        if M::TRACED || !Self::RECORDS {
            return None;
        }
        let leaf = self.inner.ahead(from, distance)?;
        // What was read from a node in the middle of a change may be no leaf at all.
        if !self.inner.validate(&from.located) {
            return None;
        }
        D::for_each(self, self.leaf(leaf), |_, key, value| f(key, value));
        Some(leaf)
    }

    /// Prefetches what the entries of this leaf lead to, unless that was done, of the next one, and the keys of the one
    /// after that, which are needed first, for sorting. `done`: the leaves whose values and keys were.
    #[inline]
    fn prefetch_entries(
        &self,
        at: &Ranged<K>,
        step: isize,
        words: &[(K::Word, V::Word)],
        done: &mut [Option<u32>; 2],
        ahead: &mut impl FnMut(&V),
    ) {
        if !Self::RECORDS {
            return;
        }
        let leaf = Some(at.located.leaf);
        let [values, keys] = *done;
        if values != leaf {
            words.iter().for_each(|(key, _)| self.prefetch_key(*key));
            words
                .iter()
                .for_each(|(_, value)| self.prefetch_value(*value, ahead));
        }
        let next = self.inner.ahead(at, step);
        done[0] = self.look_ahead(at, step, |key, value| {
            if keys != next {
                self.prefetch_key(key);
            }
            self.prefetch_value(value, ahead);
        });
        done[1] = self.look_ahead(at, 2 * step, |key, _| self.prefetch_key(key));
    }

    pub(super) fn scan_up(
        &self,
        range: &impl RangeBounds<K>,
        ahead: impl FnMut(&V),
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.walk_leaves(
            Direction::Up,
            |guard| match range.start_bound() {
                Bound::Included(key) | Bound::Excluded(key) => self.inner.find_range(key, guard),
                Bound::Unbounded => self.inner.find_first(guard),
            },
            |high| match range.end_bound() {
                Bound::Included(end) => high > end,
                Bound::Excluded(end) => high >= end,
                Bound::Unbounded => false,
            },
            |key| range.contains(key),
            ahead,
            visit,
        );
    }

    pub(super) fn scan_down(
        &self,
        range: &impl RangeBounds<K>,
        ahead: impl FnMut(&V),
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        self.walk_leaves(
            Direction::Down,
            |guard| match range.end_bound() {
                Bound::Included(end) => self.inner.find_range(end, guard),
                Bound::Excluded(end) => self.inner.find_below(end, guard),
                Bound::Unbounded => self.inner.find_last(guard),
            },
            |low| match range.start_bound() {
                Bound::Included(start) | Bound::Excluded(start) => low <= start,
                Bound::Unbounded => false,
            },
            |key| range.contains(key),
            ahead,
            visit,
        );
    }

    /// Goes from leaf to leaf, beginning where `start` says, until the end of a leaf's range is
    /// `beyond` what is wanted.
    #[inline]
    fn walk_leaves(
        &self,
        direction: Direction,
        start: impl Fn(&Guard) -> Ranged<K>,
        beyond: impl Fn(&K) -> bool,
        wanted: impl Fn(&K) -> bool,
        mut ahead: impl FnMut(&V),
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) {
        let mut guard = epoch::pin();
        let mut words = Words::new(self.design.capacity());
        let mut ranged = start(&guard);
        self.prefetch(ranged.located.leaf);
        let step = if direction == Direction::Up { 1 } else { -1 };
        for distance in 1..AHEAD {
            self.prefetch_ahead(&ranged, distance * step);
        }
        // Everything up to here (exclusive upwards, inclusive downwards) has been visited.
        let mut done: Option<K::Owned> = None;
        // The leaves whose values and keys have been prefetched.
        let mut prefetched = [None; 2];
        let mut leaves = 0;
        loop {
            leaves += 1;
            self.prefetch_ahead(&ranged, AHEAD * step);
            while !self.snapshot_leaf(&ranged.located, &mut words) {
                ranged = match &done {
                    None => start(&guard),
                    Some(done) => self.find_from(direction, done.borrow(), &guard),
                };
            }
            self.prefetch_entries(&ranged, step, words.taken(), &mut prefetched, &mut ahead);
            let (low, high) = (ranged.low.as_ref(), ranged.high.as_ref());
            // The leaf's range may have become wider: only what was routed here counts.
            let (low, high) = match direction {
                Direction::Up => (done.as_ref(), high),
                Direction::Down => (low, done.as_ref()),
            };
            let taken = |key: &K| {
                low.is_none_or(|low| key >= low.borrow())
                    && high.is_none_or(|high| key < high.borrow())
                    && wanted(key)
            };
            if self
                .visit_leaf(&mut words, direction, taken, &mut visit)
                .is_break()
            {
                return;
            }
            let end = match direction {
                Direction::Up => ranged.high.take(),
                Direction::Down => ranged.low.take(),
            };
            let Some(end) = end else { return };
            if beyond(end.borrow()) {
                return;
            }
            let next = match direction {
                Direction::Up => self.inner.next_in_node(&ranged, &guard),
                Direction::Down => self.inner.previous_in_node(&ranged, &guard),
            };
            ranged = match next {
                Some(next) => next,
                None => {
                    if leaves >= LEAVES_PER_PIN {
                        guard.repin();
                        leaves = 0;
                    }
                    let next = self.find_from(direction, end.borrow(), &guard);
                    self.prefetch(next.located.leaf);
                    for distance in 1..AHEAD {
                        self.prefetch_ahead(&next, distance * step);
                    }
                    next
                }
            };
            done = Some(end);
        }
    }

    /// The leaf that a scan goes on with once everything up to `end` has been visited.
    #[inline]
    fn find_from(&self, direction: Direction, end: &K, guard: &Guard) -> Ranged<K> {
        match direction {
            Direction::Up => self.inner.find_range(end, guard),
            Direction::Down => self.inner.find_below(end, guard),
        }
    }

    #[inline]
    fn prefetch_ahead(&self, from: &Ranged<K>, distance: isize) {
        if let Some(leaf) = self.inner.ahead(from, distance) {
            self.prefetch(leaf);
            self.locks.prefetch(leaf);
        }
    }
}
