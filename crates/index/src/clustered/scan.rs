//! Scans in both directions, a snapshot of each page.
//!
//! A scan goes from page to page through the inner index, by the ends of their ranges, so both
//! directions work alike. Pages are walked over where they lie.

use super::order::{TailOrder, Walk};
use super::page::{Entries, Page, Rest};
use super::part::{Part, Samples};
use super::place::Base;
use super::stored::Stored;
use super::visit::{Resolving, Visitor, Visits};
use super::{ClusteredTree, Handle, ReadError};
use crate::contract::Direction;
use crate::inner::Ranged;
use crate::repr::{KeyRepr, Repr};
use crate::sorted::key_word;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::cpu;
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, Range, RangeBounds};

/// Later than all stamps.
pub(super) const NOW: u64 = u64::MAX;

/// Words of a base that a scan asks for before it comes to them.
const PREFETCHED: usize = 64;

/// Pages that a scan visits before it lets memory be reclaimed.
const PAGES_PER_PIN: u32 = 16;

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Visits the entries that `range` had at `time` in order until `visit` breaks. Somebody reads
    /// at that time, or it is [`NOW`].
    ///
    /// # Errors
    /// [`ReadError`], at a page that is damaged or cannot be loaded.
    pub(super) fn scan_pages<R: RangeBounds<K>>(
        &self,
        range: &R,
        direction: Direction,
        time: u64,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.scan_stored(range, direction, time, &mut Resolving { tree: self, visit })
    }

    /// As [`scan_pages`](Self::scan_pages), with values as the pages have them.
    pub(super) fn scan_stored<R: RangeBounds<K>>(
        &self,
        range: &R,
        direction: Direction,
        time: u64,
        visitor: &mut impl Visitor<K>,
    ) -> Result<(), ReadError> {
        let mut order = TailOrder::default();
        // The bound at which the scan stands, and the page behind which that is.
        let mut reached: Option<Bound<K::Owned>> = None;
        let mut before: Option<Ranged<K>> = None;
        loop {
            let guard = epoch::pin();
            for _ in 0..PAGES_PER_PIN {
                let beside = before.take().and_then(|before| match direction {
                    Direction::Up => self.inner.next_in_node(&before, &guard),
                    Direction::Down => self.inner.previous_in_node(&before, &guard),
                });
                let mut at = beside
                    .unwrap_or_else(|| self.next_page(range, direction, reached.as_ref(), &guard));
                let Handle::Part(slot) = Handle::decode(at.located.leaf) else {
                    let Err(e) = self.load_at(&at, &guard) else {
                        continue;
                    };
                    // Loading may have found where the page ends, before it failed.
                    let mut at = self.next_page(range, direction, reached.as_ref(), &guard);
                    if !matches!(Handle::decode(at.located.leaf), Handle::Unloaded(_)) {
                        continue;
                    }
                    let flow = visitor.damaged(&at, e)?;
                    let ends = Bounds::of(range, direction, &at, reached.as_ref()).ends;
                    reached = Self::end_of(&mut at, direction);
                    if flow.is_break() || ends || reached.is_none() {
                        return Ok(());
                    }
                    continue;
                };
                if slot >= self.parts.capacity() {
                    continue;
                }
                let part = self.part(slot);
                cpu::prefetch(std::ptr::from_ref(part).cast(), size_of::<Part>());
                let version = part.version.read();
                if !self.inner.validate(&at.located) {
                    continue;
                }
                self.prefetch_next(&at, direction);
                let page = self.page_of(part);
                let base = part.base();
                let near = part.samples();
                page.prefetch_tail(&base, part.end());
                let bounds = Bounds::of(range, direction, &at, reached.as_ref());
                bounds.prefetch(page, &base, &near, direction);
                let Some(latest) = part.order(page, version, &mut order) else {
                    continue;
                };
                self.pm().interleave();
                let visited = if latest < time {
                    let walk = bounds.walk(page, &base, Some(&near), &order);
                    self.visit_page(page, &base, direction, walk, visitor)?
                } else {
                    let of = (part, version);
                    let visited = self.visit_earlier(of, time, direction, &bounds, visitor)?;
                    let Some(visited) = visited else {
                        continue;
                    };
                    visited
                };
                let ends = bounds.ends;
                reached = Self::end_of(&mut at, direction);
                if visited.is_break() || ends || reached.is_none() {
                    return Ok(());
                }
                before = Some(at);
            }
        }
    }

    /// Takes out of `at` where its page ends and the next one begins; `None` if there is no next
    /// one.
    fn end_of(at: &mut Ranged<K>, direction: Direction) -> Option<Bound<K::Owned>> {
        match direction {
            Direction::Up => at.high.take().map(Bound::Included),
            Direction::Down => at.low.take().map(Bound::Excluded),
        }
    }

    /// The page to visit next.
    pub(super) fn next_page<R: RangeBounds<K>>(
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
    pub(super) fn load_at(&self, at: &Ranged<K>, guard: &Guard) -> Result<(), ReadError> {
        match &at.low {
            Some(low) => self.load(low.borrow(), guard),
            None => {
                let loaded = K::with_value_of(Self::lowest(), |key| self.load(key, guard));
                loaded.unwrap_or(Ok(()))
            }
        }
    }

    /// Prefetches the part of the page that comes after `at`.
    #[inline]
    fn prefetch_next(&self, at: &Ranged<K>, direction: Direction) {
        let next = match direction {
            Direction::Up => 1,
            Direction::Down => -1,
        };
        if let Some(next) = self.inner.ahead(at, next)
            && let Handle::Part(slot) = Handle::decode(next)
            && slot < self.parts.capacity()
        {
            let part = std::ptr::from_ref(self.part(slot));
            cpu::prefetch(part.cast(), size_of::<Part>());
        }
    }

    /// Visits the entries of a walk over a page.
    ///
    /// # Errors
    /// Those of `visitor`.
    pub(super) fn visit_page(
        &self,
        page: Page<'_, M>,
        base: &Base,
        direction: Direction,
        mut walk: Walk<'_>,
        visitor: &mut impl Visitor<K>,
    ) -> Result<ControlFlow<()>, ReadError> {
        let mut keys = Keys::of(page.prefix(base.prefix));
        let entries = page.entries(base);
        // A walk that is ahead, where values may be outer ones: one's block is a cache miss.
        let may_have_outer = Self::OUTER && entries.is_none();
        let mut ahead =
            (may_have_outer && visitor.visits() == Visits::Values).then(|| walk.clone());
        let prefetch_next = |ahead: &mut Walk<'_>| {
            if let Some(step) = ahead.step(direction) {
                self.prefetch_outer(page, base, step);
            }
        };
        if let Some(ahead) = &mut ahead {
            (0..AHEAD).for_each(|_| prefetch_next(ahead));
        }
        // Entries of the base in general form with no record among them.
        let mut run = 0..0;
        loop {
            let of_run = match direction {
                Direction::Up => run.next(),
                Direction::Down => run.next_back(),
            };
            let (key, value) = if let Some(i) = of_run {
                page.entry(base, i)
            } else {
                run = walk.run(direction);
                if !run.is_empty() {
                    if let Some(entries) = &entries {
                        let run = (page, entries, std::mem::take(&mut run));
                        if keys.visit_run(run, direction, visitor)?.is_break() {
                            return Ok(ControlFlow::Break(()));
                        }
                    }
                    continue;
                }
                // A record, or what follows one that removes.
                let Some(step) = walk.step(direction) else {
                    return Ok(ControlFlow::Continue(()));
                };
                step.entry(page, base)
            };
            if let Some(ahead) = &mut ahead {
                prefetch_next(ahead);
            }
            let key = keys.whole(page.rest(key));
            let visited = K::with_value_of(key, |key| visitor.entry(key, page.stored(value)));
            // Bytes of keys of the tree are keys.
            if visited.transpose()?.is_some_and(|flow| flow.is_break()) {
                return Ok(ControlFlow::Break(()));
            }
        }
    }
}

/// Entries by which a scan prefetches outer values ahead.
const AHEAD: usize = 4;

/// The keys of a page, made whole.
struct Keys<'p> {
    prefix: &'p [u8],
    /// The prefix, if it is short, and what follows it in a key.
    short: [u8; ROOM],
    long: Vec<u8>,
}

/// Bytes of a key that is made whole without memory of its own.
const ROOM: usize = 64;

impl<'p> Keys<'p> {
    fn of(prefix: &'p [u8]) -> Self {
        let mut short = [0; ROOM];
        if let Some(start) = short.get_mut(..prefix.len()) {
            start.copy_from_slice(prefix);
        }
        Self {
            prefix,
            short,
            long: Vec::new(),
        }
    }

    /// The key that has `rest` behind the prefix.
    #[inline(always)]
    fn whole<'a>(&'a mut self, rest: Rest<'a>) -> &'a [u8] {
        let prefix = self.prefix.len();
        if prefix == 0 {
            return rest.bytes;
        }
        // A word at once: what follows the key there does not matter.
        let room = self.short.get_mut(prefix..prefix + 8);
        if let (Ok(word), Some(room)) = (<[u8; 8]>::try_from(rest.words), room) {
            room.copy_from_slice(&word);
            return &self.short[..prefix + rest.bytes.len().min(8)];
        }
        let len = prefix + rest.bytes.len();
        if let Some(room) = self.short.get_mut(prefix..len) {
            room.copy_from_slice(rest.bytes);
            return &self.short[..len];
        }
        self.long.clear();
        self.long.extend_from_slice(self.prefix);
        self.long.extend_from_slice(rest.bytes);
        &self.long
    }

    /// Visits some of the entries of a base in uniform form.
    #[inline(always)]
    fn visit_run<K: KeyRepr + ?Sized, M: Media>(
        &mut self,
        (page, entries, run): (Page<'_, M>, &Entries, Range<usize>),
        direction: Direction,
        visitor: &mut impl Visitor<K>,
    ) -> Result<ControlFlow<()>, ReadError> {
        let bytes = page.bytes(entries.span(run));
        let mut at = match direction {
            Direction::Up => 0,
            Direction::Down => bytes.len().wrapping_sub(entries.bytes),
        };
        while let Some((rest, value)) = entries.parts(bytes, at) {
            page.interleave();
            at = match direction {
                Direction::Up => at.wrapping_add(entries.bytes),
                Direction::Down => at.wrapping_sub(entries.bytes),
            };
            let key = self.whole(rest);
            // Bytes of keys of the tree are keys.
            let visited = match K::with_value_of(key, |key| visitor.short(key, value)) {
                Some(Some(ControlFlow::Continue(()))) | None => continue,
                Some(Some(ControlFlow::Break(()))) => return Ok(ControlFlow::Break(())),
                Some(None) => K::with_value_of(key, |key| visitor.entry(key, Stored::here(value))),
            };
            if visited.transpose()?.is_some_and(|flow| flow.is_break()) {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// The bounds of a scan within one page.
pub(super) struct Bounds<'k, K: ?Sized> {
    from: Bound<&'k K>,
    to: Bound<&'k K>,
    /// Where the page begins and ends.
    page: (Option<&'k K>, Option<&'k K>),
    /// The scan ends in this page.
    pub(super) ends: bool,
}

impl<'k, K: KeyRepr + ?Sized> Bounds<'k, K> {
    /// `at`: the page, which may go beyond the range, and may have taken over another one where the
    /// scan has been.
    pub(super) fn of(
        range: &'k impl RangeBounds<K>,
        direction: Direction,
        at: &'k Ranged<K>,
        reached: Option<&'k Bound<K::Owned>>,
    ) -> Self {
        let (mut from, mut to) = (range.start_bound(), range.end_bound());
        match (reached, direction) {
            (Some(Bound::Included(key)), Direction::Up) => from = Bound::Included(key.borrow()),
            (Some(Bound::Excluded(key)), Direction::Down) => to = Bound::Excluded(key.borrow()),
            _ => {}
        }
        let (low, high) = (
            at.low.as_ref().map(Borrow::borrow),
            at.high.as_ref().map(Borrow::borrow),
        );
        // The bound is in the page, or at its end.
        let starts = match (from, low) {
            (Bound::Unbounded, _) => false,
            (Bound::Included(key) | Bound::Excluded(key), Some(low)) => key >= low,
            (_, None) => true,
        };
        let ends = match (to, high) {
            (Bound::Unbounded, _) => false,
            (Bound::Included(key), Some(high)) => key < high,
            (Bound::Excluded(key), Some(high)) => key <= high,
            (_, None) => true,
        };
        // The page may have taken over the one behind `high` since: that is for the next step.
        // Where it begins never changes.
        let page_end = match (direction, high) {
            (Direction::Up, Some(high)) => Bound::Excluded(high),
            _ => Bound::Unbounded,
        };
        Self {
            // All of the page is above where it begins.
            from: match from {
                Bound::Included(key) if low == Some(key) => Bound::Unbounded,
                from if starts => from,
                _ => Bound::Unbounded,
            },
            to: if ends { to } else { page_end },
            page: (low, high),
            ends: match direction {
                Direction::Up => ends,
                Direction::Down => starts,
            },
        }
    }

    pub(super) fn walk<'o, M: Media>(
        &self,
        page: Page<'_, M>,
        base: &Base,
        near: Option<&Samples>,
        order: &'o TailOrder,
    ) -> Walk<'o> {
        with_bytes_of(self.from, |from| {
            with_bytes_of(self.to, |to| order.between((page, base, near), from, to))
        })
    }

    /// Asks for the entries of the base that a scan comes to first: the processor finds out about
    /// those behind them.
    #[inline(always)]
    fn prefetch<M: Media>(
        &self,
        page: Page<'_, M>,
        base: &Base,
        near: &Samples,
        direction: Direction,
    ) {
        let Some(form) = base.form else {
            return;
        };
        let is_up = direction == Direction::Up;
        let bound = if is_up { self.from } else { self.to };
        let entry = match bound {
            Bound::Included(key) | Bound::Excluded(key) => key.with_bytes(|key| {
                let (from, to) = near.near(key_word(base.rest(key)), base.entries);
                if is_up { from } else { to }
            }),
            Bound::Unbounded if is_up => 0,
            Bound::Unbounded => base.entries,
        };
        let word = base.at + entry * base.entry_words(form);
        let word = if is_up {
            word
        } else {
            word.saturating_sub(PREFETCHED)
        };
        page.prefetch(word, PREFETCHED);
    }

    /// Calls `f` with the bounds, and never beyond the page.
    pub(super) fn within_page<R>(&self, f: impl FnOnce(Bound<&[u8]>, Bound<&[u8]>) -> R) -> R {
        let from = match (self.from, self.page.0) {
            (Bound::Unbounded, Some(low)) => Bound::Included(low),
            (from, _) => from,
        };
        let to = match (self.to, self.page.1) {
            (Bound::Unbounded, Some(high)) => Bound::Excluded(high),
            (to, _) => to,
        };
        with_bytes_of(from, |from| with_bytes_of(to, |to| f(from, to)))
    }
}

/// Calls `f` with a bound as bytes.
fn with_bytes_of<K: KeyRepr + ?Sized, R>(bound: Bound<&K>, f: impl FnOnce(Bound<&[u8]>) -> R) -> R {
    match bound {
        Bound::Included(key) => key.with_bytes(|key| f(Bound::Included(key))),
        Bound::Excluded(key) => key.with_bytes(|key| f(Bound::Excluded(key))),
        Bound::Unbounded => f(Bound::Unbounded),
    }
}
