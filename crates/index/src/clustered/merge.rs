//! Merging: a page that has become nearly empty joins the page to its left, and its number and
//! block are free.
//!
//! ```text
//! separator of the right page removed from the parent, fence      the page is found from its left
//! new block for the left page | fence                             neighbour from here on (B-link)
//! redo record: word of the left page, word of the right page: none | fence
//! both words stored | fence | record disarmed | fence
//! ```
//!
//! Only pages of one parent are merged. A page that is the first of its parent joins no page; the
//! page to its right joins it instead. Where a parent has a single child, the parent is merged with
//! its neighbour before. A root with a single child takes over the child's content.
//!
//! # Crash states
//! | crash | leaves | mended by |
//! | --- | --- | --- |
//! | after the separator is gone | a page without separator | who is led to its left neighbour adds it again |
//! | before the record is armed | a block that no word names | nothing to do: it is free |
//! | while it is armed | words in part | stored again when the tree is opened |

use super::away::Room;
use super::image::Entries;
use super::layout::DROPPED_WORDS;
use super::outer;
use super::page::Page;
use super::part::Part;
use super::replace::{Change, Course, NewPage, Old, Spec, TINY_ENTRIES, entries_at};
use super::stored::Reference;
use super::sum;
use super::table::{Kind, Table, Word};
use super::tail::Seen;
use super::upper::{Known, Upper, by_itself};
use super::{ClusteredTree, Handle, ReadError};
use crate::inner::Ranged;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::log::{Logs, Record};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::ops::Bound;

/// Which neighbours become one page.
#[derive(Clone, Copy)]
pub(super) enum Joins<'g> {
    /// After removals: where one is sparse, and there would be room for many more keys.
    Sparse,
    /// All that fit, to make the tree smaller.
    Packing,
    /// Into a page of twice the size, to be split where its left part is full; but not from a page
    /// that is full itself, after which all that follow would be filled anew.
    Filling,
    /// Any, without the keys that this is true of, which nobody reads any more.
    Without(&'g dyn Fn(&[u8]) -> bool),
}

/// Keys that were left out of pages that were merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gone {
    /// How many.
    pub keys: u64,
    /// Their bytes, and those of their values.
    pub bytes: u64,
}

/// Percent of a page that its entries may take to be sparse.
const FEW: usize = 30;

impl Joins<'_> {
    /// Percent of a page that two pages may take to become one.
    fn together(self) -> usize {
        match self {
            Self::Sparse | Self::Without(_) => 55,
            Self::Packing => 80,
            Self::Filling => 200,
        }
    }

    /// Whether two pages may become one, by what their keys take.
    fn allows<K, V, M>(self, tree: &ClusteredTree<K, V, M>, parts: [&Part; 2]) -> bool
    where
        K: KeyRepr + ?Sized,
        V: Repr + ?Sized,
        M: Media,
    {
        let is_one_sparse = || parts.iter().any(|part| tree.is_sparse(part));
        let fit = || {
            let together: usize = parts
                .into_iter()
                .map(ClusteredTree::<K, V, M>::live_words)
                .sum();
            together * 100 <= tree.page_words * self.together() || tree.pm().tiny()
        };
        match self {
            Self::Sparse => is_one_sparse() && fit(),
            Self::Packing => fit(),
            Self::Filling => fit() && !tree.is_filled(parts[1]),
            Self::Without(_) => true,
        }
    }
}

/// Words of a redo record.
pub(super) const RECORD: usize = 4;

/// Two neighbours that are to become one page, with the entries of both.
struct Joined<'p> {
    left: Old<'p>,
    right: Old<'p>,
    entries: Entries<'p>,
    /// Those that are left out.
    gone: Entries<'p>,
    /// Outer values that no record leads to any more.
    dropped: Vec<Reference>,
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Whether a leaf page whose lock the caller holds is worth merging: its keys would take little
    /// of a page, at the words that its records have on average.
    pub(super) fn is_sparse(&self, part: &Part) -> bool {
        if self.pm().tiny() {
            return part.live() < 2;
        }
        Self::live_words(part) * 100 < self.page_words * FEW
    }

    /// Words that the keys of a leaf page would take, about, whose lock the caller holds.
    fn live_words(part: &Part) -> usize {
        let (live, base) = (part.live(), part.base());
        match base.form {
            Some(form) => live * base.entry_words(form),
            None => {
                let records = base.entries + part.count();
                live * (part.end() - base.at) / records.max(1)
            }
        }
    }

    /// Merges the page of `key` with a neighbour, if that can be done now. Nothing but space
    /// depends on it.
    pub(super) fn merge(&self, key: &K) {
        let _storing = self.storing();
        loop {
            match self.try_merge(key) {
                // The page that it has become may be nearly empty, too.
                Ok(true) => {}
                // Pages that were replaced are free after a while; without room for the new page,
                // this one goes on taking its space.
                Err(ReadError::Space(_)) if self.retired.wait() => {}
                Ok(false) | Err(_) => return,
            }
        }
    }

    /// Returns whether it did.
    fn try_merge(&self, key: &K) -> Result<bool, ReadError> {
        let guard = epoch::pin();
        let at = self.inner.find_range(key, &guard);
        if let Some(low) = &at.low {
            let low: &K = low.borrow();
            let left = self.inner.find_below(low, &guard);
            if self.merge_two(&left, low, Joins::Sparse)?.is_some() {
                return Ok(true);
            }
        }
        match &at.high {
            Some(high) => {
                let merged = self.merge_two(&at, high.borrow(), Joins::Sparse)?;
                Ok(merged.is_some())
            }
            None => Ok(false),
        }
    }

    /// Merges the page at `left` with the one to its right, whose low fence is `boundary`. Returns
    /// how many keys it left out; `None` if it did not merge them.
    pub(super) fn merge_two(
        &self,
        left: &Ranged<K>,
        boundary: &K,
        joins: Joins<'_>,
    ) -> Result<Option<Gone>, ReadError> {
        let guard = epoch::pin();
        let Handle::Part(left_slot) = Handle::decode(left.located.leaf) else {
            return Ok(None);
        };
        let Some(left_part) = self.try_lock(&left.located, left_slot) else {
            return Ok(None);
        };
        // From left to right, as everywhere.
        let Some((right_slot, right_part)) = self.lock_right(left_slot, boundary, &guard) else {
            left_part.writer.unlock_unchanged();
            return Ok(None);
        };
        let mut stamp = None;
        let right = (right_slot, right_part);
        let merged = self.merge_locked(left_part, right, boundary, (joins, &mut stamp));
        right_part.writer.unlock();
        left_part.writer.unlock();
        if let Some(stamp) = stamp {
            self.shown.show(stamp);
        }
        if let Ok(Some(_)) = merged {
            self.free_part(right_slot);
        }
        merged
    }

    /// The part of the page that `boundary` belongs to, locked, for a thread that holds the lock of
    /// the part `left_slot`; `None` if that is the one, as after another thread's merge.
    ///
    /// A thread that holds a lock waits for one to its right only. So it makes sure of the way
    /// there before it waits: while the left page is locked, the page to its right stays there.
    fn lock_right(&self, left_slot: u32, boundary: &K, guard: &Guard) -> Option<(u32, &Part)> {
        loop {
            let at = self.inner.find(boundary, guard);
            if !self.inner.validate(&at) {
                continue;
            }
            match Handle::decode(at.leaf) {
                Handle::Part(slot) if slot != left_slot => {
                    if let Some(part) = self.try_lock(&at, slot) {
                        return Some((slot, part));
                    }
                }
                _ => return None,
            }
        }
    }

    /// `stamp` becomes that of the removal of the keys that are left out, if there are any. The
    /// caller shows it once the locks are free.
    fn merge_locked(
        &self,
        left_part: &Part,
        (right_slot, right_part): (u32, &Part),
        boundary: &K,
        (joins, stamp): (Joins<'_>, &mut Option<u64>),
    ) -> Result<Option<Gone>, ReadError> {
        if !joins.allows(self, [left_part, right_part]) {
            return Ok(None);
        }
        let places = |part: &Part| {
            let places = (0..part.count()).map(|i| part.place(i));
            places.collect::<Vec<_>>()
        };
        let pages = (self.page_of(left_part), self.page_of(right_part));
        let blocks = (left_part.block(), right_part.block());
        let joined = self.joined(pages, places(left_part), places(right_part), joins)?;
        let separator = boundary.with_bytes(<[u8]>::to_vec);
        let joined = joined.filter(|joined| joined.right.low == Some(&separator));
        let Some(joined) = joined else {
            return Ok(None);
        };
        let mut upper = lock(&self.upper);
        if !self.unpost(&mut upper, 1, &separator)? {
            return Ok(None);
        }
        if joined.gone.len() > 0 {
            // Before the page's generation (`since`).
            *stamp = Some(self.next_stamp());
        }
        let new = match self.join(&joined) {
            Ok(new) => new,
            Err(e) => {
                // The right page stays, and so does its separator.
                self.post(&mut upper, 1, &separator, joined.right.header.id)?;
                return Err(e.into());
            }
        };
        drop(upper);
        let gone = self.tell_of_gone(&joined.gone, stamp.unwrap_or(0));
        let mut kept = self.keep_superseded(left_part, &[], 0);
        kept.extend(self.keep_superseded(right_part, &[], 0));
        let guard = epoch::pin();
        right_part.version.lock();
        let latest = left_part.latest().max(right_part.latest());
        self.become_page(left_part, &new, latest, |tree| {
            let right = Handle::Part(right_slot).encode();
            let removed = tree.inner.remove_to_left(right, boundary, &guard);
            debug_assert!(removed, "the locks keep the two where they are");
        });
        right_part.version.unlock();
        self.drop_outers(&joined.dropped, &kept, &guard);
        for block in [blocks.0, blocks.1] {
            self.retire_leaf(block, &guard);
        }
        Ok(Some(gone))
    }

    /// Tells the observer of keys that are left out, with that stamp, and counts them.
    fn tell_of_gone(&self, entries: &Entries<'_>, stamp: u64) -> Gone {
        let mut gone = Gone::default();
        for i in 0..entries.len() {
            let (key, room) = (entries.key(i), Room::new());
            let value = self.glimpse(entries.value(i), &room);
            gone.keys += 1;
            gone.bytes += (key.len() + value.len) as u64;
            let was = self.observer.as_ref().map(|one| one.weigh(value));
            self.tell((key, stamp), was, None);
        }
        gone
    }

    /// Returns two pages as one; `None` if they are no neighbours, or too full.
    fn joined<'p>(
        &self,
        (left, right): (Page<'p, M>, Page<'p, M>),
        left_tail: Vec<super::place::Place>,
        right_tail: Vec<super::place::Place>,
        joins: Joins<'_>,
    ) -> Result<Option<Joined<'p>>, ReadError> {
        let old = |page: Page<'p, M>| {
            let (header, _) = page.header(self.salt).map_err(ReadError::Damaged)?;
            Ok::<_, ReadError>(Old {
                header,
                low: page.low(&header),
                high: page.high(&header),
            })
        };
        let olds = (old(left)?, old(right)?);
        if olds.0.header.next != olds.1.header.id {
            return Ok(None);
        }
        let mut outers = self.references(left, &olds.0.header, left_tail.iter().copied());
        outers.extend(self.references(right, &olds.1.header, right_tail.iter().copied()));
        let (mut entries, mut gone) = (Entries::default(), Entries::default());
        for all in [
            entries_at(left, &olds.0.header, left_tail),
            entries_at(right, &olds.1.header, right_tail),
        ] {
            for i in 0..all.len() {
                let key = all.key(i);
                let to = match joins {
                    Joins::Without(is_gone) if is_gone(key) => &mut gone,
                    _ => &mut entries,
                };
                to.push(key, &[], all.value(i));
            }
        }
        let joined = Joined {
            left: olds.0,
            right: olds.1,
            dropped: outer::without(outers, &entries),
            entries,
            gone,
        };
        let header = self
            .joined_spec(&joined)
            .header(joined.entries.part(0, joined.entries.len()));
        let pages = if matches!(joins, Joins::Filling) {
            2
        } else {
            1
        };
        let most = if self.pm().tiny() {
            100 * pages
        } else {
            joins.together()
        };
        // The names of values that are left out go with the next replacement.
        let names = match joins {
            Joins::Without(_) => header.dropped * DROPPED_WORDS,
            _ => 0,
        };
        let fits = (header.tail - names) * 100 <= self.page_words * most
            && header.tail <= self.page_words * pages
            && !(self.pm().tiny() && joined.entries.len() > TINY_ENTRIES * pages);
        Ok(fits.then_some(joined))
    }

    fn joined_spec<'o>(&self, joined: &'o Joined<'_>) -> Spec<'o> {
        Spec {
            next: joined.right.header.next,
            high: joined.right.high,
            dropped: &joined.dropped,
            ..self.spec(&joined.left)
        }
    }

    /// Replaces two neighbours by one page, durably: the left one's. The right one's separator is
    /// gone.
    fn join(&self, joined: &Joined<'_>) -> Result<NewPage, SpaceError> {
        let spec = Spec {
            generation: self.next_generation(),
            ..self.joined_spec(joined)
        };
        let n = joined.entries.len();
        let new = self.write_page_as(&spec, &joined.entries, (0, n), 100, Course::Removing)?;
        self.fence_pages();
        self.exchange(&new, joined.right.header.id);
        Ok(new)
    }

    /// Makes `new` count and page `gone` not, as one.
    fn exchange(&self, new: &NewPage, gone: u32) {
        let pm = self.pm();
        let word = Word::new(Kind::Page, new.block, new.header.generation, false);
        let id = new.header.id;
        let mut slot = self.log().take();
        // Four words: armed by one fence.
        let record = [id.into(), word.encode(id), gone.into()];
        let sum = sum::words(self.salt as u32, &record);
        slot.arm(&[record[0], record[1], record[2], sum.into()]);
        self.table.renew(pm, id, Some(word));
        self.table.renew(pm, gone, None);
        // PERSIST: both words, before the record that would store them again is disarmed.
        pm.fence();
        slot.disarm();
        drop(slot);
        self.release([gone]);
    }

    /// Stores again what an armed record says. The caller fences.
    ///
    /// # Errors
    /// A message, if the record is damaged.
    pub(super) fn apply(&self, record: Record<'_>) -> Result<(), String> {
        let Record::Redo(&[id, word, gone, sum]) = record else {
            return Err("no record of a merge".into());
        };
        if sum != sum::words(self.salt as u32, &[id, word, gone]).into() {
            return Err("the record of a merge fails its checksum".into());
        }
        let ids = (u32::try_from(id), u32::try_from(gone));
        let (Ok(id), Ok(gone)) = ids else {
            return Err(format!("pages {id} and {gone}"));
        };
        let word = Word::decode(word, id)?.ok_or("it names no block")?;
        self.table.renew(self.pm(), id, Some(word));
        self.table.renew(self.pm(), gone, None);
        Ok(())
    }

    /// Removes a separator from the page of `level` that it belongs to, durably. Returns false,
    /// with nothing done, if it is not there, or is the page's first; the parent may have been
    /// merged then.
    pub(super) fn unpost(
        &self,
        upper: &mut Upper,
        level: u8,
        separator: &[u8],
    ) -> Result<bool, ReadError> {
        let Some((low, known)) = Self::parent(upper, level, separator) else {
            return Ok(false);
        };
        if low == separator {
            // The two have different parents. These may become one, for the next try.
            self.merge_upper(upper, level, &low)?;
            return match Self::parent(upper, level, separator) {
                Some((low, _)) if low != separator => self.unpost(upper, level, separator),
                _ => Ok(false),
            };
        }
        let page = self.page(known.block, known.words);
        if !self
            .has_separator(page, separator)
            .map_err(ReadError::Damaged)?
        {
            // A page that a crash left without separator.
            return Ok(true);
        }
        self.change_upper(
            upper,
            level,
            Change {
                key: separator,
                value: None,
            },
        )?;
        Ok(true)
    }

    fn parent(upper: &Upper, level: u8, separator: &[u8]) -> Option<(Vec<u8>, Known)> {
        let below = (Bound::Unbounded, Bound::Included(separator));
        let pages = upper.levels.get(usize::from(level) - 1)?;
        let (low, known) = pages.range::<[u8], _>(below).next_back()?;
        Some((low.clone(), *known))
    }

    /// Merges the inner page whose low fence is `low` with the one to its left, if both are small
    /// and have one parent.
    fn merge_upper(&self, upper: &mut Upper, level: u8, low: &[u8]) -> Result<(), ReadError> {
        let pages = &upper.levels[usize::from(level) - 1];
        let below = (Bound::Unbounded, Bound::Excluded(low));
        let left = pages.range::<[u8], _>(below).next_back();
        let left = left.map(|(low, known)| (low.clone(), *known));
        let right = pages.get(low).copied();
        let (Some((left_low, left)), Some(right)) = (left, right) else {
            return Ok(());
        };
        let page_and_tail = |known: &Known| {
            let page = self.page(known.block, known.words);
            let mut places = Vec::new();
            let (header, seed) = page.header(self.salt)?;
            page.check_base(&header, seed)?;
            page.tail(&header, seed, by_itself, |place, _| places.push(place))?;
            Ok::<_, String>((page, places))
        };
        let (left_page, left_tail) = page_and_tail(&left).map_err(ReadError::Damaged)?;
        let (right_page, right_tail) = page_and_tail(&right).map_err(ReadError::Damaged)?;
        let pages = (left_page, right_page);
        let Some(joined) = self.joined(pages, left_tail, right_tail, Joins::Sparse)? else {
            return Ok(());
        };
        if !self.unpost(upper, level + 1, low)? {
            return Ok(());
        }
        let new = match self.join(&joined) {
            Ok(new) => new,
            Err(e) => {
                self.post(upper, level + 1, low, right.id)?;
                return Err(e.into());
            }
        };
        let pages = &mut upper.levels[usize::from(level) - 1];
        pages.remove(low);
        pages.insert(left_low, Known::of(&new));
        let guard = epoch::pin();
        for block in [left.block, right.block] {
            self.retire(block, &guard);
        }
        Ok(())
    }

    /// Merges all leaf pages of a tree without keys, as far as that goes.
    ///
    /// # Errors
    /// [`ReadError`]; some are merged.
    pub(super) fn merge_all(&self) -> Result<(), ReadError> {
        loop {
            let at = self.inner.find_first(&epoch::pin());
            let Some(high) = &at.high else {
                return Ok(());
            };
            let merged = self.merge_two(&at, high.borrow(), Joins::Sparse)?;
            if merged.is_none() {
                return Ok(());
            }
        }
    }

    /// While the root has a single child, it takes over that child's content. The caller is alone.
    ///
    /// # Errors
    /// [`ReadError`]; the tree is as it was, or has fewer levels.
    pub(super) fn collapse(&mut self) -> Result<(), ReadError> {
        loop {
            let id = Table::FIRST_ID;
            let root = self.sound(id).map_err(ReadError::Damaged)?;
            if root.header.level == 0 {
                return Ok(());
            }
            let mut known = Known::of(&NewPage {
                header: root.header,
                block: root.block,
            });
            let children = self
                .children(root.page, &mut known)
                .map_err(ReadError::Damaged)?;
            let [(_, child)] = children[..] else {
                return Ok(());
            };
            let child = self.sound(child).map_err(ReadError::Damaged)?;
            let mut places = Vec::new();
            let counts = |seen: &Seen| self.group_counts(child.page, &child.header, seen);
            let tail = (child.page).tail(&child.header, child.seed, counts, |place, _| {
                places.push(place);
            });
            tail.map_err(ReadError::Damaged)?;
            let outers = self.references(child.page, &child.header, places.iter().copied());
            let entries = entries_at(child.page, &child.header, places);
            let dropped = outer::without(outers, &entries);
            let old = Old {
                header: child.header,
                low: None,
                high: None,
            };
            let spec = Spec {
                id,
                generation: self.next_generation(),
                dropped: &dropped,
                ..self.spec(&old)
            };
            let n = entries.len();
            let new = self.write_page(&spec, &entries, (0, n))?;
            self.fence_pages();
            self.exchange(&new, child.header.id);
            let guard = epoch::pin();
            self.drop_outers(&dropped, &[], &guard);
            for block in [root.block, child.block] {
                self.retire(block, &guard);
            }
        }
    }

    /// The log of merges.
    fn log(&self) -> &Logs<M> {
        self.log
            .as_ref()
            .unwrap_or_else(|| unreachable!("made or opened with the tree"))
    }
}
