//! Changing a key: one group behind the others of its page, one fence.
//!
//! ```text
//! find the part | look | lock | group's words, flush, fence | count | unlock | commit
//! ```

use super::ascend::SHORT_ENTRY;
use super::find::Found;
use super::group::{Group, Record};
use super::layout::{Header, MAX_GROUP};
use super::order::TailOrder;
use super::outer::{self, Given};
use super::page::Page;
use super::part::{Part, SEARCHED, TAIL};
use super::place::{Base, Place};
use super::replace::{Change, Course, Entries, NewPage, Old, Replaced, Turnover, merged};
use super::slots::stamp_word;
use super::stored::{REFERENCE, Reference};
use super::{ClusteredTree, Handle, ReadError, image};
use crate::inner::Located;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::media::cpu;
use bristlecone_pmem::sync::{PATIENT_TURNS, lock, pause};
use bristlecone_pmem::{Media, SpaceError, planted};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;

/// The state of a key that a change expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    Present,
    Absent,
    Either,
}

/// How a change ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// It is durable but for the commit.
    Done {
        /// The key was there before.
        was_there: bool,
        /// The change's time stamp.
        stamp: u64,
    },
    /// The key was not as expected; nothing changed.
    Refused,
}

/// Records of a tail where rare paths are to be taken often.
const TINY_TAIL: usize = 3;

/// Removals from a sparse page between two attempts to merge it, but for its last so many keys.
const MERGE_EVERY: usize = 8;

/// A record that was appended.
pub(super) struct Appended {
    pub(super) place: Place,
    /// Where the tail ends now.
    pub(super) end: usize,
    pub(super) stamp: u64,
    /// The reference to its outer value.
    pub(super) outer: Option<Reference>,
}

/// The tail of a page that a group is appended to.
pub(super) struct Tail {
    /// Its records.
    pub(super) count: usize,
    /// The word after its last group.
    pub(super) end: usize,
    /// The page is a large one, and the key above all that it has.
    pub(super) ascends: bool,
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Most records of a tail.
    #[inline(always)]
    pub(super) fn most_records(&self) -> usize {
        if self.pm().tiny() { TINY_TAIL } else { TAIL }
    }

    /// Appends a record to a page whose lock the caller holds, durably; `stamp` gives its stamp.
    /// Returns `None`, with nothing done, if there is no room. The caller settles an outer value.
    #[inline(always)]
    pub(super) fn append(
        &self,
        page: Page<'_, M>,
        (id, generation, base): (u32, u64, &Base),
        tail: &Tail,
        (key, value, entry): (&[u8], Option<Given<'_>>, Option<u16>),
        stamp: impl FnOnce() -> u64,
    ) -> Option<Appended> {
        // A page that is larger than others is written anew, lest it stays large by what is gone,
        // unless it waits for ascending keys to fill it.
        let is_large = page.words() > self.page_words;
        if tail.count >= self.most_records() || is_large && !tail.ascends {
            return None;
        }
        let mut place = None;
        let mut room = [0; REFERENCE];
        let stored = value.map(|value| value.stored((id, generation, tail.end), &mut room));
        let record = std::iter::once(Record {
            key,
            value: stored,
            entry,
        });
        let mut group = Group::of(base, record, |at| place = Some(at));
        let (at, end) = (tail.end, tail.end + group.words());
        if end > page.words() || group.words() > MAX_GROUP {
            return None;
        }
        let place = place?.within(at);
        // Only now: a stamp that is given is used.
        let stamp = stamp();
        let outer = stored.and_then(|stored| stored.reference());
        if let Some(outer) = &outer {
            self.bear_outer(outer);
        }
        let words = group.finish(self.seed(generation), at, stamp_word(stamp, None));
        self.write_group(page, at, words);
        // PERSIST: the group and its outer value, before the count shows it to readers and the
        // change is acknowledged.
        self.pm().fence();
        Some(Appended {
            place,
            end,
            stamp,
            outer,
        })
    }

    /// Writes a group's words to word `at` of a page whose lock the caller holds, and flushes them;
    /// the caller fences. They are inside the page, behind its last group.
    #[inline(always)]
    pub(super) fn write_group(&self, page: Page<'_, M>, at: usize, words: &[u64]) {
        let pm = self.pm();
        debug_assert!(at + words.len() <= page.words());
        // SAFETY: 1. the group's words are inside the page, and pages are word-aligned; 2. the
        // page's lock keeps other writers out, and readers go by the count, which leaves them out.
        unsafe { write_bytes(pm, page.address(at), image::bytes_of(words)) };
        if !planted!(pm, "clustered-group-line") {
            // PERSIST: the group, which counts by its sum, before the count shows it to readers and
            // the change is acknowledged.
            page.flush(at, at + words.len());
        }
    }

    /// The part of the page that `key` belongs to, with its writer's lock held, and what the page
    /// has of the key. The lock keeps both so, and the page where it is: nobody needs a pin who
    /// holds it.
    ///
    /// The search comes first. A locked instruction waits until what this thread flushed before is
    /// written back; the cache misses of a search need not.
    #[inline(always)]
    pub(super) fn locate(
        &self,
        key: &K,
        bytes: &[u8],
        guard: &Guard,
    ) -> Result<(&Part, Found), ReadError> {
        loop {
            let at = self.inner.find(key, guard);
            let slot = match Handle::decode(at.leaf) {
                Handle::Part(slot) if slot < self.parts.capacity() => slot,
                // It was read from a node in the middle of a change.
                Handle::Part(_) => continue,
                Handle::Unloaded(_) => {
                    self.load(key, &epoch::pin())?;
                    continue;
                }
            };
            let part = self.part(slot);
            cpu::prefetch(std::ptr::from_ref(part).cast(), SEARCHED);
            self.pm().interleave();
            let find = |part: &Part| {
                let page = self.page_of(part);
                page.prefetch(part.end(), 1);
                page.find(part, bytes, key.hash())
            };
            if let Some(version) = part.writer.try_read() {
                let found = find(part);
                self.pm().interleave();
                // Nobody has changed the page since: what was found is so.
                if part.writer.try_lock_at(version) {
                    if self.inner.validate(&at) {
                        return Ok((part, found));
                    }
                    part.writer.unlock_unchanged();
                    continue;
                }
            }
            if let Some(part) = self.try_lock(&at, slot) {
                return Ok((part, find(part)));
            }
        }
    }

    #[inline(always)]
    pub(super) fn try_lock(&self, at: &Located, slot: u32) -> Option<&Part> {
        // A slot that was read from a node in the middle of a change may be none.
        if slot >= self.parts.capacity() {
            return None;
        }
        let part = self.part(slot);
        self.pm().interleave();
        part.writer.lock();
        // Splits are made under this lock: if the way here holds now, it does until it is let go.
        if self.inner.validate(at) {
            return Some(part);
        }
        part.writer.unlock_unchanged();
        None
    }

    /// Changes `key`: to `value`, or away. Durable when it returns, but for the commit.
    ///
    /// # Errors
    /// [`ReadError`]; nothing has changed then.
    pub(super) fn change(
        &self,
        key: &K,
        value: Option<&[u8]>,
        expected: Expected,
    ) -> Result<Changed, ReadError> {
        let _storing = self.storing();
        let mut turn = 0;
        loop {
            let changed = match value {
                Some(value) if self.is_outer(value.len()) => {
                    self.try_change_outer(key, value, expected)
                }
                value => self.try_change(key, value.map(Given::Here), expected),
            };
            match changed {
                Ok((changed, sparse)) => {
                    if sparse {
                        self.merge(key);
                    }
                    return Ok(changed);
                }
                Err(e) if self.may_find_space(&e, value.is_none(), &mut turn) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Whether a change that was refused may find space now: if it was for want of it, and after
    /// waiting. `turn`: how often a removal has waited.
    pub(super) fn may_find_space(&self, e: &ReadError, removes: bool, turn: &mut usize) -> bool {
        if !matches!(e, ReadError::Space(_)) {
            return false;
        }
        // Pages that were replaced are free now.
        if self.retired.wait() {
            return true;
        }
        // A removal can count on those that it replaces itself, once readers have left them.
        let waits = removes && *turn < PATIENT_TURNS;
        if waits {
            pause(*turn);
            *turn += 1;
        }
        waits
    }

    /// As [`try_change`](Self::try_change), of an outer value.
    #[cold]
    fn try_change_outer(
        &self,
        key: &K,
        value: &[u8],
        expected: Expected,
    ) -> Result<(Changed, bool), ReadError> {
        // Before the lock: it may be long.
        let outer = self.write_outer(value)?;
        let changed = self.try_change(key, Some(Given::Outer(&outer)), expected);
        if !matches!(changed, Ok((Changed::Done { .. }, _))) {
            self.discard_outer(&outer);
        }
        changed
    }

    /// Returns, with how the change ended, whether the page is worth merging.
    #[inline(always)]
    fn try_change(
        &self,
        key: &K,
        value: Option<Given<'_>>,
        expected: Expected,
    ) -> Result<(Changed, bool), ReadError> {
        key.with_bytes(|bytes| {
            let (part, found) = Self::with_guard(|guard| self.locate(key, bytes, guard))?;
            let was_there = found != Found::Absent;
            let refused = match expected {
                Expected::Present => !was_there,
                Expected::Absent => was_there,
                Expected::Either => false,
            };
            if refused {
                part.writer.unlock_unchanged();
                return Ok((Changed::Refused, false));
            }
            let about = (bytes, key.hash() as u8, found);
            let (changed, sparse) = self.change_and_unlock(part, about, value);
            Ok((changed?, sparse))
        })
    }

    /// Changes a key of a page whose writer's lock the caller holds, and lets go of the lock.
    /// Returns how that ended, and whether the page is worth merging.
    #[inline(always)]
    pub(super) fn change_and_unlock(
        &self,
        part: &Part,
        about: (&[u8], u8, Found),
        value: Option<Given<'_>>,
    ) -> (Result<Changed, ReadError>, bool) {
        let was = self.weigh(part, about.2);
        let (changed, stamp) = self.change_locked(part, about, value);
        if changed.is_ok() {
            self.tell((about.0, stamp), was, value);
        }
        // Not after each removal: where the neighbours are too full it would be in vain.
        let live = part.live();
        let turn = live < MERGE_EVERY || live.is_multiple_of(MERGE_EVERY);
        let due = value.is_none() && turn || part.count() == 0 || self.pm().tiny();
        let sparse = due && changed.is_ok() && self.is_sparse(part);
        part.writer.unlock();
        // Whether it has been made or not.
        self.shown.show(stamp);
        (changed, sparse)
    }

    /// Returns how it ended, and the stamp that it took, which the caller shows when the lock is
    /// free.
    #[inline(always)]
    fn change_locked(
        &self,
        part: &Part,
        (key, fingerprint, found): (&[u8], u8, Found),
        value: Option<Given<'_>>,
    ) -> (Result<Changed, ReadError>, u64) {
        let was_there = found != Found::Absent;
        let done = |stamp| Changed::Done { was_there, stamp };
        let base = part.base();
        let about = (part.id(), part.generation(), &base);
        let mut tail = Tail {
            count: part.count(),
            end: part.end(),
            ascends: false,
        };
        let page = self.page_of(part);
        tail.ascends = page.words() > self.page_words
            && tail.end <= (base.entries + tail.count) * SHORT_ENTRY
            && Self::is_last(page, part, key);
        let superseded = self.superseded_by(page, found);
        let show = |appended: &Appended| {
            part.add_superseded(superseded);
            part.add(tail.count, fingerprint, appended.place);
            part.set_latest(appended.stamp);
            part.publish(tail.count + 1, appended.end);
            if let Some(outer) = &appended.outer {
                self.settle_outer(outer);
            }
            let live = part.live() + usize::from(value.is_some() && !was_there);
            part.set_live(live - usize::from(value.is_none() && was_there));
        };
        let entry = match (value, found) {
            (None, Found::Value(found)) => page.entry_of(&base, found),
            _ => None,
        };
        let record = (key, value, entry);
        let holds_too_much = self.holds_too_much(part, superseded);
        if !holds_too_much {
            let appended = self.append(page, about, &tail, record, || self.next_stamp());
            if let Some(appended) = appended {
                show(&appended);
                return (Ok(done(appended.stamp)), appended.stamp);
            }
        }
        let stamp = self.next_stamp();
        let replaced = self.replace_leaf(part, (key, value), stamp);
        if holds_too_much && matches!(replaced, Err(ReadError::Space(_))) {
            // Without space for another page, it may hold more.
            let appended = self.append(page, about, &tail, record, || stamp);
            if let Some(appended) = appended {
                show(&appended);
                return (Ok(done(stamp)), stamp);
            }
        }
        (replaced.map(|()| done(stamp)), stamp)
    }

    /// Replaces a leaf page whose part's writer's lock the caller holds, with `change`, which has
    /// that stamp.
    #[cold]
    fn replace_leaf(
        &self,
        part: &Part,
        (key, value): (&[u8], Option<Given<'_>>),
        stamp: u64,
    ) -> Result<(), ReadError> {
        let guard = &epoch::pin();
        let block = part.block();
        let page = self.page_of(part);
        let generation = self.next_generation();
        let mut room = [0; REFERENCE];
        let value = value.map(|value| value.stored((part.id(), generation, 0), &mut room));
        let change = Change { key, value };
        let (old, entries, dropped) = self.content(part, &[change])?;
        let turnover = Turnover {
            generation,
            born: value
                .and_then(|value| value.reference())
                .into_iter()
                .collect(),
            dropped,
        };
        let course = match change.value {
            None => Course::Removing,
            Some(_) => match self.ascending_at(page, part, &entries, key) {
                Some(at) => Course::Ascending { at },
                None => Course::Any,
            },
        };
        let replaced = self.replace(&old, &entries, course, &turnover)?;
        let dropped = &turnover.dropped;
        self.become_replaced(part, replaced, Some((change, stamp)), dropped, false, guard);
        self.retire_leaf(block, guard);
        Ok(())
    }

    /// Replaces a leaf page whose part's writer's lock the caller holds by one with the same
    /// entries, which drops the outer values that are superseded.
    pub(super) fn renew(&self, part: &Part) -> Result<(), ReadError> {
        let (block, guard) = (part.block(), &epoch::pin());
        let (old, entries, dropped) = self.content(part, &[])?;
        let turnover = Turnover {
            dropped,
            ..Turnover::of(self.next_generation())
        };
        let replaced = self.replace_as(&old, &entries, None, Course::Removing, &turnover)?;
        self.become_replaced(part, replaced, None, &turnover.dropped, false, guard);
        self.retire_leaf(block, guard);
        Ok(())
    }

    /// Replaces the loaded pages that hold superseded outer values, as far as there is space.
    pub(super) fn renew_all(&self) {
        let mut guard = epoch::pin();
        let mut at = self.inner.find_first(&guard);
        loop {
            // Lets blocks that are replaced be used again.
            guard.repin();
            let _storing = self.storing();
            if let Handle::Part(slot) = Handle::decode(at.located.leaf)
                && slot < self.parts.capacity()
                && self.part(slot).superseded() > 0
                && let Some(part) = self.try_lock(&at.located, slot)
            {
                // For want of space it stays as it is.
                let _ = self.renew(part);
                part.writer.unlock();
            }
            let Some(high) = &at.high else {
                return;
            };
            at = self.inner.find_range(high.borrow(), &guard);
        }
    }

    /// The page of a part whose writer's lock the caller holds, its entries with those of
    /// `changes`, which are in key order, and the outer values that none of these leads to.
    pub(super) fn content<'c>(
        &'c self,
        part: &Part,
        changes: &[Change<'c>],
    ) -> Result<(Old<'c>, Entries<'c>, Vec<Reference>), ReadError> {
        let page = self.page_of(part);
        page.prefetch(0, part.end());
        let (header, _) = page.header(self.salt).map_err(ReadError::Damaged)?;
        let mut order = TailOrder::default();
        let ordered = part.order(page, part.version.read(), &mut order);
        debug_assert!(ordered.is_some(), "the lock keeps the page as it is");
        let old = Old {
            header,
            low: page.low(&header),
            high: page.high(&header),
        };
        let entries = merged(page, &header, &order, changes);
        let places = (0..part.count()).map(|i| part.place(i));
        let dropped = outer::without(self.references(page, &header, places), &entries);
        Ok((old, entries, dropped))
    }

    /// Makes `part` that of the page, or the left one, that replaces its page, with `change`, which
    /// has that stamp, and drops outer values. The caller holds the writer's lock. Returns the
    /// right page's part, whose writer's lock is held if `locked`.
    pub(super) fn become_replaced(
        &self,
        part: &Part,
        replaced: Replaced,
        change: Option<(Change<'_>, u64)>,
        dropped: &[Reference],
        locked: bool,
        guard: &Guard,
    ) -> Option<&Part> {
        let (changes, stamp) = match &change {
            Some((change, stamp)) => (std::slice::from_ref(change), *stamp),
            None => (&[][..], 0),
        };
        let kept = self.keep_superseded(part, changes, stamp);
        let right = self.become_pages(part, replaced, change, locked, guard);
        // Nobody comes to the page before any more.
        self.drop_outers(dropped, &kept, guard);
        right
    }

    fn become_pages(
        &self,
        part: &Part,
        replaced: Replaced,
        change: Option<(Change<'_>, u64)>,
        locked: bool,
        guard: &Guard,
    ) -> Option<&Part> {
        let latest = change.map_or_else(|| part.latest(), |(_, stamp)| stamp);
        let (left, right, separator, root) = match replaced {
            Replaced::One(new) => {
                self.become_page(part, &new, latest, |_| {});
                return None;
            }
            Replaced::Two {
                left,
                right,
                separator,
            } => (left, right, separator, None),
            Replaced::Grown {
                left,
                right,
                separator,
                root,
            } => (left, right, separator, Some(root)),
        };
        let slot = self.parts.allocate();
        let right_part = self.part(slot);
        if locked {
            right_part.writer.lock();
        }
        // A new root's children are shown together with it.
        let upper = root.map(|root| {
            let mut upper = lock(&self.upper);
            upper.add_root(&root);
            upper
        });
        self.become_page(right_part, &right, latest, |_| {});
        self.become_page(part, &left, latest, |tree| {
            let added = K::with_value_of(&separator, |separator| {
                let right = Handle::Part(slot).encode();
                tree.inner.insert(separator, right, guard);
            });
            debug_assert!(added.is_some(), "separators are keys");
        });
        if upper.is_none() {
            // Under the lock, so that the right page is not merged away before. Without room the
            // separator is left out: the page is found from this one, when the tree is opened
            // again.
            let _ = self.post_leaf(&separator, right.header.id);
        }
        Some(right_part)
    }

    /// Makes `part` that of `page`, for readers at once with what `then` does. `latest`: the stamp
    /// of the page's latest change.
    pub(super) fn become_page(
        &self,
        part: &Part,
        page: &NewPage,
        latest: u64,
        then: impl FnOnce(&Self),
    ) {
        part.version.lock();
        self.fill(part, &page.header, page.block, latest);
        then(self);
        part.version.unlock();
        self.note_loaded(page.block);
    }

    /// Makes `part` that of the page with that header, whose tail is empty, with changes up to the
    /// stamp `latest`. Readers are kept out.
    pub(super) fn fill(&self, part: &Part, header: &Header, block: u64, latest: u64) {
        let page = self.page(block, header.words);
        let base = Base::of(header);
        part.become_page(header, block, latest, |i| page.entry_word(&base, i));
        part.publish(0, base.aligned(header.tail));
    }

    /// As [`SpaceError`], or a damaged page.
    pub(super) fn space_of(e: ReadError) -> SpaceError {
        match e {
            ReadError::Space(e) => e,
            ReadError::Damaged(what) | ReadError::Value(what) => SpaceError::Io {
                doing: "reading a page",
                source: std::io::Error::new(std::io::ErrorKind::InvalidData, what),
            },
        }
    }
}
