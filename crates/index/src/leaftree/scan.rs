//! Scans in both directions, with a snapshot of each leaf.
//!
//! A scan goes from leaf to leaf through the inner index, by the ends of their ranges, and not by
//! sibling pointers: both directions work alike, the next leaves can be prefetched, and a corrupt
//! pointer cannot lead it astray. It takes only those keys of a leaf that lie in the range that led
//! there, so that keys come in strict order.
//!
//! If words lead to records, the scan prefetches these, since it would otherwise wait for each in
//! turn: with each visited entry, a value of the next leaf, and a key of the one after that, since
//! keys are needed first, for sorting. It prefetches one at a time, because a processor has some
//! ten or twenty lines under way and stalls on more. Its knowledge of the next leaves is a
//! hint, read without their versions.

use super::order::{FEW, WORD, number_after, shared_words, sort_by_number};
use super::{FEW_ENTRIES, LeafDesign, LeafTree};
use crate::common::{sort_by, sort_by_first};
use crate::contract::Direction;
use crate::inner::{Located, Ranged};
use crate::range::{has_none_below, is_after};
use crate::repr::{Stored, StoredKey, Word};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{LINE, cpu};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Number of leaves that a scan prefetches ahead.
const AHEAD: isize = 6;
/// Number of leaves that a scan visits before it lets memory be reclaimed.
const LEAVES_PER_PIN: u32 = 64;

/// Key and value words of a leaf's entries.
struct Words<A, B> {
    few: [(A, B); FEW_ENTRIES],
    /// Used instead of `few` for leaves that may have more.
    many: Vec<(A, B)>,
    len: usize,
}

impl<A: Word, B: Word> Words<A, B> {
    /// Returns room for the entries of a leaf that has at most `most`.
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

    /// Returns the entries.
    #[inline(always)]
    fn taken(&mut self) -> &mut [(A, B)] {
        let n = self.len;
        &mut self.all()[..n]
    }
}

/// Entries of the next leaves, whose records are to be prefetched.
struct Coming<A, B> {
    /// True if the records of the visited leaf have not been prefetched.
    fresh: bool,
    /// Entries of the next leaf, if it is known.
    next: Words<A, B>,
    next_leaf: Option<u32>,
    /// True if the next leaf's keys have been prefetched.
    has_keys: bool,
    /// Entries of the leaf after the next.
    second: Words<A, B>,
    second_leaf: Option<u32>,
}

impl<A: Word, B: Word> Coming<A, B> {
    fn new(most: usize) -> Self {
        Self {
            fresh: true,
            next: Words::new(most),
            next_leaf: None,
            has_keys: false,
            second: Words::new(most),
            second_leaf: None,
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
    /// Copies a leaf's words into `out`. Returns false if the leaf changed or is not the right one.
    #[inline]
    fn snapshot_leaf(&self, at: &Located, out: &mut Words<K::Word, V::Word>) -> bool {
        let version = self.locks.read(at.leaf);
        if !self.inner.validate(at) {
            return false;
        }
        self.copy_words(at.leaf, out);
        self.locks.validate(at.leaf, version)
    }

    /// Copies the words of a leaf, which may be changing.
    #[inline]
    fn copy_words(&self, leaf: u32, out: &mut Words<K::Word, V::Word>) {
        let mut n = 0;
        let room = out.all();
        D::for_each(self, self.leaf(leaf), |_, key, value| {
            // A leaf that changes meanwhile may seem to have any number of entries.
            if let Some(place) = room.get_mut(n) {
                *place = (key, value);
                n += 1;
            }
        });
        out.len = n;
    }

    /// Sorts a leaf's words by key.
    #[inline]
    fn sort(&self, words: &mut Words<K::Word, V::Word>) {
        if D::SORTED {
            return;
        }
        let words = words.taken();
        let few = words.len() <= FEW;
        if !K::RECORDS {
            if few {
                sort_by_number(words, |(key, _)| *key);
            } else {
                sort_by_first(words);
            }
        } else if !few || !self.sort_by_bytes(words) {
            sort_by(words, &mut |a, b| self.compare_words(a.0, b.0));
        }
    }

    /// Sorts a few words by the sixteen bytes of their keys after the 8-byte words that all of them
    /// share. Returns false, with nothing changed, if these bytes are equal too.
    #[inline]
    fn sort_by_bytes(&self, words: &mut [(K::Word, V::Word)]) -> bool {
        let pm = self.pm();
        let Some((first, others)) = words.split_first() else {
            return true;
        };
        let shared = K::read(pm, first.0, |first| {
            let first = first.byte_string()?;
            others
                .iter()
                .try_fold(first.len() / WORD, |shared, (other, _)| {
                    K::read(pm, *other, |other| {
                        Some(shared_words(&first[..shared * WORD], other.byte_string()?))
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

    /// Visits the words of one leaf whose keys are `taken`, in order: those of a range. Meanwhile
    /// prefetches what is `coming`, if the words lead to records.
    #[inline]
    fn visit_leaf(
        &self,
        words: &mut Words<K::Word, V::Word>,
        direction: Direction,
        taken: impl Fn(&K) -> bool,
        mut coming: Option<&mut Coming<K::Word, V::Word>>,
        ahead: &mut impl FnMut(&V),
        visit: &mut impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let pm = self.pm();
        let fresh = coming.as_ref().is_some_and(|coming| coming.fresh);
        if fresh {
            let words = words.taken().iter();
            words.for_each(|(key, _)| self.prefetch_key(*key));
        }
        self.sort(words);
        let words = words.taken();
        let n = words.len();
        // All words between two that are taken are taken too.
        let mut ends = words.first().into_iter().chain(words.last());
        let all = ends.all(|(key, _)| K::read(pm, *key, &taken) == Some(true));
        let place = |i| match direction {
            Direction::Up => i,
            Direction::Down => n - 1 - i,
        };
        if fresh {
            for (key, value) in (0..n).map(|i| words[place(i)]) {
                if all || K::read(pm, key, &taken) == Some(true) {
                    self.prefetch_value(value, ahead);
                }
            }
        }
        for i in 0..n {
            if let Some(coming) = &mut coming {
                self.prefetch_coming(coming, i, ahead);
            }
            let (key, value) = words[place(i)];
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
        if let Some(coming) = coming {
            for i in n..coming.next.len.max(coming.second.len) {
                self.prefetch_coming(coming, i, ahead);
            }
        }
        ControlFlow::Continue(())
    }

    #[inline(always)]
    fn prefetch_key(&self, key: K::Word) {
        if let Some(off) = K::place(key) {
            cpu::prefetch(self.base.wrapping_add(off as usize), LINE);
        }
    }

    /// Prefetches the record of a value, or passes the value to `ahead`.
    #[inline(always)]
    fn prefetch_value(&self, value: V::Word, ahead: &mut impl FnMut(&V)) {
        if let Some(off) = V::block(value) {
            cpu::prefetch(self.base.wrapping_add(off as usize), LINE);
        }
        self.announce(value, ahead);
    }

    /// Prefetches the `i`-th of the entries to come.
    #[inline(always)]
    fn prefetch_coming(
        &self,
        coming: &mut Coming<K::Word, V::Word>,
        i: usize,
        ahead: &mut impl FnMut(&V),
    ) {
        if let Some((key, value)) = coming.next.taken().get(i) {
            if !coming.has_keys {
                self.prefetch_key(*key);
            }
            self.prefetch_value(*value, ahead);
        }
        if let Some((key, _)) = coming.second.taken().get(i) {
            self.prefetch_key(*key);
        }
    }

    /// Copies the likely words of the leaf `distance` after (or before) `from`, if that is in the
    /// same node. Returns that leaf. It may be changing.
    #[inline]
    fn look_ahead(
        &self,
        from: &Ranged<K>,
        distance: isize,
        out: &mut Words<K::Word, V::Word>,
    ) -> Option<u32> {
        out.len = 0;
        let leaf = self.inner.ahead(from, distance)?;
        // A handle read from a node in the middle of a change may be no leaf at all.
        if !self.inner.validate(&from.located) {
            return None;
        }
        self.copy_words(leaf, out);
        Some(leaf)
    }

    /// Reads the leaves after (or before) this one.
    #[inline]
    fn look_at_coming(&self, at: &Ranged<K>, step: isize, coming: &mut Coming<K::Word, V::Word>) {
        coming.fresh = coming.next_leaf != Some(at.located.leaf);
        let with_keys = coming.second_leaf;
        coming.next_leaf = self.look_ahead(at, step, &mut coming.next);
        coming.has_keys = with_keys == coming.next_leaf;
        coming.second_leaf = self.look_ahead(at, 2 * step, &mut coming.second);
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
            |high| is_after(high, range.end_bound()),
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
            |low| has_none_below(low, range.start_bound()),
            |key| range.contains(key),
            ahead,
            visit,
        );
    }

    /// Visits leaf after leaf from `start` on, until the end of a leaf's range is `beyond` the
    /// scan's range.
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
        // Everything up to this key (exclusive upwards, inclusive downwards) has been visited.
        let mut done: Option<K::Owned> = None;
        // Simulated media have no caches to fill, and the explorer would have to explore each load.
        let mut coming = (Self::RECORDS && !M::TRACED).then(|| Coming::new(self.design.capacity()));
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
            if let Some(coming) = &mut coming {
                self.look_at_coming(&ranged, step, coming);
            }
            let (low, high) = (ranged.low.as_ref(), ranged.high.as_ref());
            // The leaf's range may have become wider; only keys that were routed here count.
            let (low, high) = match direction {
                Direction::Up => (done.as_ref(), high),
                Direction::Down => (low, done.as_ref()),
            };
            let taken = |key: &K| {
                low.is_none_or(|low| key >= low.borrow())
                    && high.is_none_or(|high| key < high.borrow())
                    && wanted(key)
            };
            let next = coming.as_mut();
            if self
                .visit_leaf(&mut words, direction, taken, next, &mut ahead, &mut visit)
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

    /// Returns the leaf with which a scan continues after everything up to `end`.
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
