//! Scans in both directions, a snapshot of each page.
//!
//! A scan goes from page to page through the inner index, by the ends of their ranges, so both
//! directions work alike. Of each page only keys of the range that led there are taken.

use super::page::{Page, Span};
use super::part::{Base, Part};
use super::{ClusteredTree, Handle, LoadError};
use crate::contract::Direction;
use crate::inner::Ranged;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::cpu;
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Pages that a scan visits before it lets memory be reclaimed.
const PAGES_PER_PIN: u32 = 16;

/// A record of a tail: where its key and value are, or no value if it is a removal. `base`: entries
/// of the base that are below it.
#[derive(Clone, Copy)]
struct Record {
    word: u64,
    age: usize,
    key: Span,
    value: Option<Span>,
}

/// The entries of a page at one moment, in key order.
#[derive(Default)]
struct Content {
    /// Key, without the prefix if it is one of the base's, and value.
    entries: Vec<(Span, Span, bool)>,
    records: Vec<Record>,
    base: Option<Base>,
}

impl Content {
    /// Notes where the records of a page are. It may be changing: the caller validates its version
    /// before it goes on.
    fn gather<M: Media>(&mut self, page: Page<'_, M>, part: &Part) {
        let base = part.base();
        self.base = Some(base);
        self.entries.clear();
        self.records.clear();
        for age in 0..part.count() {
            let place = part.place(age);
            let (key, value) = page.record(base.form, place);
            self.records.push(Record {
                word: 0,
                age,
                key,
                value: (!place.removed).then_some(value),
            });
        }
    }

    /// Puts the entries in order. The caller is pinned and has validated the version since: what was
    /// noted does not change any more.
    fn order<M: Media>(&mut self, page: Page<'_, M>) {
        let Some(base) = self.base else {
            return;
        };
        let key = |record: &Record| page.bytes(record.key);
        for record in &mut self.records {
            record.word = super::page::key_word(page.bytes(record.key), base.prefix);
        }
        self.records.sort_unstable_by(|a, b| {
            let order = a.word.cmp(&b.word).then_with(|| key(a).cmp(key(b)));
            order.then(b.age.cmp(&a.age))
        });
        self.records
            .dedup_by(|later, first| later.word == first.word && key(later) == key(first));
        let mut records = self.records.iter().peekable();
        for i in 0..base.entries {
            let (rest, value) = page.entry(&base, i);
            let word = page.entry_word(&base, i);
            let below = |record: &Record| {
                let cut = || {
                    key(record)
                        .get(base.prefix..)
                        .unwrap_or(&[])
                        .cmp(page.bytes(rest))
                };
                record.word.cmp(&word).then_with(cut)
            };
            let mut covered = false;
            while let Some(record) = records.peek() {
                let order = below(record);
                if order.is_gt() {
                    break;
                }
                covered |= order.is_eq();
                if let Some(value) = record.value {
                    self.entries.push((record.key, value, true));
                }
                records.next();
            }
            if !covered {
                self.entries.push((rest, value, false));
            }
        }
        for record in records {
            if let Some(value) = record.value {
                self.entries.push((record.key, value, true));
            }
        }
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Visits the entries of `range` in order until `visit` breaks.
    ///
    /// # Errors
    /// [`LoadError`], at a page that is damaged or cannot be loaded.
    pub(super) fn scan_pages<R: RangeBounds<K>>(
        &self,
        range: &R,
        direction: Direction,
        mut visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> Result<(), LoadError> {
        let mut content = Content::default();
        // The bound at which the scan stands.
        let mut reached: Option<Bound<K::Owned>> = None;
        loop {
            let guard = epoch::pin();
            for _ in 0..PAGES_PER_PIN {
                let at = self.next_page(range, direction, reached.as_ref(), &guard);
                let Handle::Part(slot) = Handle::decode(at.located.leaf) else {
                    self.load_at(&at, &guard)?;
                    continue;
                };
                if slot >= self.parts.capacity() {
                    continue;
                }
                let part = self.part(slot);
                let version = part.version.read();
                if !self.inner.validate(&at.located) {
                    continue;
                }
                self.prefetch_next(&at, direction, &guard);
                let page = self.page_of(part);
                content.gather(page, part);
                if !part.version.validate(version) {
                    continue;
                }
                content.order(page);
                let taken = |key: &K| {
                    let low = at.low.as_ref().map(Borrow::borrow);
                    let high = at.high.as_ref().map(Borrow::borrow);
                    // The page may have taken over another, where the scan has been.
                    let new = match reached.as_ref() {
                        Some(Bound::Included(from)) => key >= from.borrow(),
                        Some(Bound::Excluded(to)) => key < to.borrow(),
                        _ => true,
                    };
                    new && low.is_none_or(|low| key >= low)
                        && high.is_none_or(|high| key < high)
                        && range.contains(key)
                };
                if self
                    .visit_page(page, &content, direction, taken, &mut visit)
                    .is_break()
                {
                    return Ok(());
                }
                let end = match direction {
                    Direction::Up => at.high,
                    Direction::Down => at.low,
                };
                let Some(end) = end else {
                    return Ok(());
                };
                let key: &K = end.borrow();
                let over = match direction {
                    Direction::Up => match range.end_bound() {
                        Bound::Included(last) => key > last,
                        Bound::Excluded(last) => key >= last,
                        Bound::Unbounded => false,
                    },
                    Direction::Down => match range.start_bound() {
                        Bound::Included(first) | Bound::Excluded(first) => key <= first,
                        Bound::Unbounded => false,
                    },
                };
                if over {
                    return Ok(());
                }
                reached = Some(match direction {
                    Direction::Up => Bound::Included(end),
                    Direction::Down => Bound::Excluded(end),
                });
            }
        }
    }

    /// The page to visit next.
    fn next_page<R: RangeBounds<K>>(
        &self,
        range: &R,
        direction: Direction,
        reached: Option<&Bound<K::Owned>>,
        guard: &Guard,
    ) -> Ranged<K> {
        let from: Bound<&K> = match (reached, direction) {
            (Some(Bound::Included(key)), _) => Bound::Included(key.borrow()),
            (Some(Bound::Excluded(key)), _) => Bound::Excluded(key.borrow()),
            (Some(Bound::Unbounded), _) => Bound::Unbounded,
            (None, Direction::Up) => range.start_bound(),
            (None, Direction::Down) => range.end_bound(),
        };
        match (from, direction) {
            (Bound::Unbounded, Direction::Up) => self.inner.find_first(guard),
            (Bound::Unbounded, Direction::Down) => self.inner.find_last(guard),
            (Bound::Included(key), _) | (Bound::Excluded(key), Direction::Up) => {
                self.inner.find_range(key, guard)
            }
            (Bound::Excluded(key), Direction::Down) => self.inner.find_below(key, guard),
        }
    }

    /// Loads the page at `at`.
    fn load_at(&self, at: &Ranged<K>, guard: &Guard) -> Result<(), LoadError> {
        match &at.low {
            Some(low) => self.load(low.borrow(), guard),
            None => {
                let loaded = K::with_value_of(Self::lowest(), |key| self.load(key, guard));
                loaded.unwrap_or(Ok(()))
            }
        }
    }

    /// Prefetches the part of the page that comes after `at`.
    fn prefetch_next(&self, at: &Ranged<K>, direction: Direction, guard: &Guard) {
        let next = match direction {
            Direction::Up => self.inner.next_in_node(at, guard),
            Direction::Down => self.inner.previous_in_node(at, guard),
        };
        if let Some(next) = next
            && let Handle::Part(slot) = Handle::decode(next.located.leaf)
            && slot < self.parts.capacity()
        {
            let part = std::ptr::from_ref(self.part(slot));
            cpu::prefetch(part.cast(), size_of::<Part>());
        }
    }

    /// Visits the entries of a page whose keys are `taken`.
    fn visit_page(
        &self,
        page: Page<'_, M>,
        content: &Content,
        direction: Direction,
        taken: impl Fn(&K) -> bool,
        visit: &mut impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let prefix = page.prefix(content.base.map_or(0, |base| base.prefix));
        let mut whole = Vec::new();
        let mut one = |(key, value, has_prefix): &(Span, Span, bool)| {
            let rest = page.bytes(*key);
            let key = if *has_prefix || prefix.is_empty() {
                rest
            } else {
                whole.clear();
                whole.extend_from_slice(prefix);
                whole.extend_from_slice(rest);
                &whole
            };
            let visited = K::with_value_of(key, |key| {
                if !taken(key) {
                    return ControlFlow::Continue(());
                }
                V::with_value_of(page.bytes(*value), |value| visit(key, value))
                    .unwrap_or(ControlFlow::Continue(()))
            });
            visited.unwrap_or(ControlFlow::Continue(()))
        };
        match direction {
            Direction::Up => content.entries.iter().try_for_each(&mut one),
            Direction::Down => content.entries.iter().rev().try_for_each(&mut one),
        }
    }
}
