//! Changing many keys under one fence, all or none of them if asked for.
//!
//! ```text
//! sort | lock the pages, from left to right | look | room in each page | stamp | groups, flushed | fence
//!                                            slot, fence (all or none, in more than one page) | counts | unlock
//! ```
//!
//! Each page gets one group. Pages without [room](super::room) for theirs are consolidated or split
//! before; from the first group on nothing can refuse. A batch of one page that needs
//! many is [spread](super::spread) over them.

use super::changes::{Batch, Change, Conflict};
use super::find::Found;
use super::group::Group;
use super::modify::{Current, Each};
use super::part::Part;
use super::place::Place;
use super::read::TOGETHER;
use super::room::entry_to_remove;
use super::scan::NOW;
use super::slots::stamp_word;
use super::write::Expected;
use super::{ClusteredTree, Handle, ReadError};
use crate::inner::Located;
use crate::repr::{KeyRepr, Repr};
use crate::sync::wait;
use bristlecone_pmem::Media;
use bristlecone_pmem::planted;
use crossbeam_epoch::{self as epoch, Guard};
use crossbeam_utils::Backoff;
use std::ops::Range;

/// A page that a batch has locked, and its changes there.
pub(super) struct Run<'t> {
    pub(super) part: &'t Part,
    pub(super) changes: Range<usize>,
}

/// Lets go of the pages of a batch if looking at them fails or panics.
struct Unlock<'r, 't>(&'r [Run<'t>]);

impl Drop for Unlock<'_, '_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|run| run.part.writer.unlock());
    }
}

/// Gives back the outer values of changes that were not made.
struct Unused<'u, 'b, K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    tree: &'u ClusteredTree<K, V, M>,
    batch: &'u mut Batch<'b, K>,
}

impl<K, V, M> Drop for Unused<'_, '_, K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn drop(&mut self) {
        for change in &mut self.batch.changes {
            if !(self.batch.made && change.is_made())
                && let Some(outer) = change.outer.take()
            {
                self.tree.discard_outer(&outer);
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
    /// Makes the changes of a batch, durably but for the commit: all or none of them if it is
    /// `atomic`, and else each by itself, but for those that are refused. Of an atomic batch the
    /// last change of a key counts, of another one the first.
    ///
    /// Persist cost: the lines of a group for each page; 1 fence, and for an atomic batch in more
    /// than one page 1 line and 1 fence more. Consolidations, splits and merges are extra.
    ///
    /// None are made if there is a [conflict](Batch::conflict).
    ///
    /// # Errors
    /// [`ReadError`]; no entry has changed then.
    pub(super) fn change_batch(
        &self,
        batch: &mut Batch<'_, K>,
        atomic: bool,
    ) -> Result<(), ReadError> {
        let _storing = self.storing();
        batch.sort();
        if atomic {
            batch.keep_last();
        } else {
            batch.refuse_repeated();
        }
        batch.frees |= batch.changes.iter().all(Change::removes);
        self.with_outers(batch, |batch| self.change_sorted(batch, atomic))
    }

    /// Calls `change` with the outer values of the batch in blocks of their own. Those that it does
    /// not use are given back, also if it panics.
    fn with_outers<'b>(
        &self,
        batch: &mut Batch<'b, K>,
        change: impl FnOnce(&mut Batch<'b, K>) -> Result<(), ReadError>,
    ) -> Result<(), ReadError> {
        if !Self::OUTER {
            return change(batch);
        }
        let unused = Unused { tree: self, batch };
        self.write_outers(unused.batch)?;
        change(unused.batch)
    }

    /// Calls `each` with what each key of the batch has, in the order in which they were given,
    /// until it breaks, and makes the changes before that, durably but for the commit: each by
    /// itself, and under one time stamp. Nobody changes the keys meanwhile. No two changes are of
    /// one key, and none is of a key that is looked at.
    ///
    /// Returns how many changes and looks came before `each` broke.
    ///
    /// # Errors
    /// [`ReadError`]; no entry has changed then.
    pub(super) fn execute_batch(
        &self,
        batch: &mut Batch<'_, K>,
        each: &mut Each<'_, K, V, M>,
    ) -> Result<usize, ReadError> {
        let _storing = self.storing();
        batch.sort();
        let mut done = 0;
        let made = self.with_outers(batch, |batch| {
            let runs = self.prepare_all(batch, false)?;
            let unlock = Unlock(&runs);
            done = self.look_at_all(batch, &runs, each)?;
            std::mem::forget(unlock);
            for change in &mut batch.changes {
                change.refused |= change.given as usize >= done;
            }
            self.finish(batch, &runs, false)
        });
        made.map(|()| done)
    }

    /// Calls `each` with what the keys of a batch have, whose pages are locked, until it breaks.
    fn look_at_all(
        &self,
        batch: &Batch<'_, K>,
        runs: &[Run<'_>],
        each: &mut Each<'_, K, V, M>,
    ) -> Result<usize, ReadError> {
        let mut of_given = vec![(0, 0); batch.changes.len()];
        for (number, run) in runs.iter().enumerate() {
            for i in run.changes.clone() {
                of_given[batch.changes[i].given as usize] = (number, i);
            }
        }
        for (done, (run, i)) in of_given.into_iter().enumerate() {
            let part = runs[run].part;
            let page = self.page_of(part);
            let found = page.find(part, batch.key(i), batch.changes[i].hash);
            let current = match found {
                Found::Absent => None,
                Found::Value(value) => Some(Current::new(self, page.stored(value))),
            };
            if each(current)?.is_break() {
                return Ok(done);
            }
        }
        Ok(batch.changes.len())
    }

    /// Puts the outer values of a batch in blocks of their own.
    fn write_outers(&self, batch: &mut Batch<'_, K>) -> Result<(), ReadError> {
        for change in &mut batch.changes {
            let value = change.value();
            let Some(value) = value.filter(|value| self.is_outer(value.len())) else {
                continue;
            };
            let outer = loop {
                match self.write_outer(&batch.bytes[value.clone()]) {
                    // Blocks that were replaced are free now.
                    Err(_) if self.retired.wait() => {}
                    written => break written?,
                }
            };
            change.move_out(outer);
        }
        Ok(())
    }

    /// Makes the changes of a batch that is sorted.
    fn change_sorted(&self, batch: &mut Batch<'_, K>, atomic: bool) -> Result<(), ReadError> {
        let mut turn = 0;
        loop {
            let runs = self.prepare_all(batch, true)?;
            match self.finish(batch, &runs, atomic) {
                Err(e) if self.may_find_space(&e, batch.frees, &mut turn) => {}
                Err(e) => {
                    // A root that was split for it gives its space back.
                    self.merge(batch.given(0));
                    return Err(e);
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Appends the groups of a batch that is prepared, unlocks its pages, and merges those that are
    /// worth it.
    fn finish(
        &self,
        batch: &mut Batch<'_, K>,
        runs: &[Run<'_>],
        atomic: bool,
    ) -> Result<(), ReadError> {
        for i in self.append_batch(batch, runs, atomic)? {
            self.merge(batch.given(i));
        }
        Ok(())
    }

    /// Locks the pages of all changes, which are sorted, with room for them. `spreads`: it may be
    /// spread, and be refused for want of space later.
    ///
    /// # Errors
    /// [`ReadError`]; no page is locked then.
    fn prepare_all<'t>(
        &'t self,
        batch: &mut Batch<'_, K>,
        spreads: bool,
    ) -> Result<Vec<Run<'t>>, ReadError> {
        let mut turn = 0;
        loop {
            let mut runs = Vec::with_capacity(batch.changes.len().min(TOGETHER));
            let ready = self.prepare(batch, spreads, &mut runs);
            if ready.is_ok() {
                return Ok(runs);
            }
            runs.iter().for_each(|run| run.part.writer.unlock());
            match ready {
                Err(e) if self.may_find_space(&e, batch.frees, &mut turn) => {}
                Err(e) => {
                    // Pages that were split for it give their space back.
                    for run in runs.iter().filter(|run| !run.changes.is_empty()) {
                        self.merge(batch.given(run.changes.start));
                    }
                    return Err(e);
                }
                Ok(()) => {}
            }
        }
    }

    /// Locks the pages of all changes, looks at what they have, and makes room in them. The pages
    /// in `runs` are locked also after an error.
    fn prepare<'t>(
        &'t self,
        batch: &mut Batch<'_, K>,
        spreads: bool,
        runs: &mut Vec<Run<'t>>,
    ) -> Result<(), ReadError> {
        let mut guard = epoch::pin();
        let mut located = [Located::default(); TOGETHER];
        let mut keys: Vec<&K> = Vec::with_capacity(TOGETHER);
        let mut known = 0..0;
        for i in 0..batch.changes.len() {
            if i >= known.end {
                known = i..(i + TOGETHER).min(batch.changes.len());
                // Blocks that were replaced meanwhile are used again.
                guard.repin();
                keys.clear();
                keys.extend(known.clone().map(|i| batch.given(i)));
                let located = &mut located[..keys.len()];
                self.go_down(&keys, located, &guard, |page, part| {
                    page.prefetch(part.end(), 1);
                });
            }
            let at = located[i - known.start];
            let last = runs.last_mut();
            let locked = last.as_ref().map(|run| run.part);
            let part = self.lock_page(batch.given(i), at, locked, &guard)?;
            match last.filter(|run| std::ptr::eq(run.part, part)) {
                Some(run) => run.changes.end = i + 1,
                None => {
                    batch.seen = batch.seen.max(part.latest());
                    let changes = i..i + 1;
                    runs.push(Run { part, changes });
                }
            }
            self.look(batch, i, part)?;
            if batch.conflict.is_some() {
                return Ok(());
            }
        }
        drop(guard);
        batch.spreads = match &runs[..] {
            [run] if spreads => self.is_to_spread(batch, run),
            _ => false,
        };
        let mut i = 0;
        while i < runs.len() {
            let spreads = batch.spreads && !self.is_root(runs[i].part);
            if spreads || self.has_room(batch, &runs[i]) {
                i += 1;
            } else if let Some(right) = self.make_room(batch, &mut runs[i])? {
                runs.insert(i + 1, right);
            }
        }
        Ok(())
    }

    /// Looks at what change `i` finds in its page, whose part is locked.
    #[inline(always)]
    fn look(&self, batch: &mut Batch<'_, K>, i: usize, part: &Part) -> Result<(), ReadError> {
        let page = self.page_of(part);
        let change = &mut batch.changes[i];
        let key = &batch.bytes[change.key()];
        let found = page.find(part, key, change.hash);
        change.was_there = found != Found::Absent;
        change.entry = entry_to_remove(page, part, change, found);
        change.superseded = self.superseded_by(page, found);
        change.was = self.weigh(part, found);
        if let Some(time) = batch.unchanged_since
            && !planted!(self.pm(), "clustered-conflict-missed")
            && self.has_changed(part, (key, change.hash), &(time..NOW))?
        {
            let (key, read) = (key.to_vec(), false);
            batch.conflict = Some(Conflict { key, read });
            return Ok(());
        }
        change.refused |= match change.expected {
            Expected::Present => !change.was_there,
            Expected::Absent => change.was_there,
            Expected::Either => false,
        };
        Ok(())
    }

    /// The part of the page that `key` belongs to, locked: at `at`, unless that has changed.
    /// `locked`: that of the key before, which the caller has locked.
    ///
    /// The caller holds locks of pages to the left. So this waits for the page that `key` belongs
    /// to now, which is one of them or to their right, and never for a part that may be another
    /// page's by now.
    fn lock_page<'t>(
        &'t self,
        key: &K,
        mut at: Located,
        locked: Option<&'t Part>,
        guard: &Guard,
    ) -> Result<&'t Part, ReadError> {
        let backoff = Backoff::new();
        loop {
            match Handle::decode(at.leaf) {
                Handle::Part(slot) if slot < self.parts.capacity() => {
                    let part = self.part(slot);
                    self.pm().interleave();
                    let is_locked = locked.is_some_and(|locked| std::ptr::eq(locked, part));
                    if !is_locked && !part.writer.try_lock() {
                        wait(&backoff);
                    } else if self.inner.validate(&at) {
                        // Where the page begins and ends stays while it is locked.
                        return Ok(part);
                    } else if !is_locked {
                        part.writer.unlock_unchanged();
                    }
                }
                // It was read from a node in the middle of a change.
                Handle::Part(_) => {}
                Handle::Unloaded(_) => self.load(key, guard)?,
            }
            at = self.inner.find(key, guard);
        }
    }

    /// Appends the groups of a batch whose pages are locked and have room, and unlocks them.
    /// Returns a change in each page that is worth merging.
    ///
    /// # Errors
    /// [`ReadError`]: a page that was read is damaged. No entry has changed then.
    fn append_batch(
        &self,
        batch: &mut Batch<'_, K>,
        runs: &[Run<'_>],
        atomic: bool,
    ) -> Result<Vec<usize>, ReadError> {
        let refused =
            batch.conflict.is_some() || atomic && batch.changes.iter().any(|change| change.refused);
        let changes = |run: &&Run<'_>| batch.records(run.changes.clone()).next().is_some();
        let pages = runs.iter().filter(changes).count();
        if refused || pages == 0 {
            runs.iter().for_each(|run| run.part.writer.unlock());
            return Ok(Vec::new());
        }
        let pm = self.pm();
        let slot = (atomic && pages > 1).then(|| self.slots.take());
        // One for all: only now, as a stamp that is given is used.
        let stamp = self.next_stamp();
        let conflict = self.first_conflict(batch, stamp);
        if !matches!(conflict, Ok(None)) {
            // Pages that were split for it give their space back.
            let split = runs.iter().filter(|run| self.is_sparse(run.part));
            let sparse: Vec<usize> = split.flat_map(|run| run.changes.clone().next()).collect();
            runs.iter().for_each(|run| run.part.writer.unlock());
            slot.into_iter().for_each(|slot| self.slots.release(slot));
            // It never will be.
            self.shown.show(stamp);
            if conflict.is_err() {
                sparse.iter().for_each(|i| self.merge(batch.given(*i)));
            }
            batch.conflict = conflict?;
            return Ok(sparse);
        }
        if batch.spreads {
            return self.spread_batch(batch, runs, stamp);
        }
        (batch.made, batch.stamp) = (true, stamp);
        let mut places: Vec<Place> = Vec::with_capacity(batch.changes.len());
        let mut ends = Vec::with_capacity(runs.len());
        for run in runs {
            ends.push(self.append_run(batch, run, stamp_word(stamp, slot), &mut places));
        }
        if let Some(slot) = slot {
            if planted!(pm, "clustered-slot-first") {
                self.slots.commit(pm, slot, stamp);
            }
            // PERSIST: all groups, before the slot makes them count.
            pm.fence();
            self.slots.commit(pm, slot, stamp);
            self.slots.release(slot);
        } else {
            // PERSIST: all groups, which count by themselves, before they are shown and
            // acknowledged.
            pm.fence();
        }
        self.show_all(batch, runs, (ends, stamp), places);
        let mut sparse = Vec::new();
        for run in runs {
            self.tell_run(batch, run, stamp);
            let removes = |i: &usize| {
                let change = &batch.changes[*i];
                change.removes() && change.is_made()
            };
            if self.holds_too_much(run.part, 0) {
                // For want of space they stay until the next change.
                let _ = self.renew(run.part);
            }
            if self.is_sparse(run.part) {
                sparse.extend(run.changes.clone().find(removes));
            }
            run.part.writer.unlock();
        }
        self.shown.show(stamp);
        Ok(sparse)
    }

    /// Makes the changes of a batch that is to be spread, which have that stamp, and unlocks its
    /// pages.
    ///
    /// # Errors
    /// As [`append_batch`](Self::append_batch).
    fn spread_batch(
        &self,
        batch: &mut Batch<'_, K>,
        runs: &[Run<'_>],
        stamp: u64,
    ) -> Result<Vec<usize>, ReadError> {
        let (mut spread, mut sparse) = (Ok(()), Vec::new());
        // A root that was split has an empty one beside it.
        for run in runs.iter().filter(|run| !run.changes.is_empty()) {
            spread = self.spread(batch, run, stamp);
            if spread.is_ok() {
                (batch.made, batch.stamp) = (true, stamp);
                let first = run.changes.start;
                sparse.extend((batch.frees && self.is_sparse(run.part)).then_some(first));
            }
        }
        runs.iter().for_each(|run| run.part.writer.unlock());
        // Whether they have been made or not.
        self.shown.show(stamp);
        spread.map(|()| sparse)
    }

    /// The first key that the batch's transaction has read and that has changed since, as of
    /// `stamp`.
    fn first_conflict(
        &self,
        batch: &Batch<'_, K>,
        stamp: u64,
    ) -> Result<Option<Conflict>, ReadError> {
        let (Some(reads), Some(since)) = (batch.reads, batch.unchanged_since) else {
            return Ok(None);
        };
        self.shown.wait_for(stamp);
        let changed = self.have_changed(reads, &(since..stamp))?;
        Ok(changed.map(|key| Conflict { key, read: true }))
    }

    /// Writes the group of a run, with its outer values, and flushes it. Adds the places of its
    /// records to `places`, and returns the end of the tail.
    fn append_run(
        &self,
        batch: &mut Batch<'_, K>,
        run: &Run<'_>,
        stamp_word: u64,
        places: &mut Vec<Place>,
    ) -> usize {
        let (part, at) = (run.part, run.part.end());
        let birth = (part.id(), part.generation(), at);
        if Self::OUTER {
            batch.refer(run.changes.clone(), birth, |outer| self.bear_outer(outer));
        }
        let records = batch.records(run.changes.clone());
        if records.clone().next().is_none() {
            return at;
        }
        let seed = self.seed(part.generation());
        let mut group = Group::of(&part.base(), records, |place| {
            places.push(place.within(at));
        });
        let words = group.finish(seed, at, stamp_word);
        self.write_group(self.page_of(part), at, words);
        at + words.len()
    }

    /// Shows the records of all runs, which have that stamp, to readers: whoever sees one of them
    /// sees all of them from then on.
    fn show_all(
        &self,
        batch: &Batch<'_, K>,
        runs: &[Run<'_>],
        (ends, stamp): (Vec<usize>, u64),
        places: Vec<Place>,
    ) {
        let mut places = places.into_iter();
        // No reader gets past one of these before all of them have been shown.
        let together = if runs.len() > 1 { runs } else { &[] };
        for run in together {
            run.part.version.lock();
        }
        for (run, end) in runs.iter().zip(ends) {
            self.show(batch, run, (end, stamp), &mut places);
        }
        together.iter().for_each(|run| run.part.version.unlock());
    }

    /// Shows the records of a run, which have that stamp, to readers.
    fn show(
        &self,
        batch: &Batch<'_, K>,
        run: &Run<'_>,
        (end, stamp): (usize, u64),
        places: &mut impl Iterator<Item = Place>,
    ) {
        let part = run.part;
        let (mut count, mut live) = (part.count(), part.live());
        let changes = &batch.changes[run.changes.clone()];
        for change in changes.iter().filter(|change| change.is_made()) {
            let Some(place) = places.next() else {
                break;
            };
            part.add(count, change.hash as u8, place);
            count += 1;
            part.add_superseded(change.superseded);
            match (change.was_there, change.removes()) {
                (false, false) => live += 1,
                (true, true) => live -= 1,
                _ => {}
            }
        }
        part.set_latest(stamp);
        part.publish(count, end);
        part.set_live(live);
        let outers = if Self::OUTER {
            run.changes.clone()
        } else {
            0..0
        };
        for i in outers.filter(|i| batch.changes[*i].is_made()) {
            if let Some(reference) = batch.reference(i) {
                self.settle_outer(&reference);
            }
        }
    }

    /// Tells the observer of the changes of a run, which have that stamp.
    pub(super) fn tell_run(&self, batch: &Batch<'_, K>, run: &Run<'_>, stamp: u64) {
        if self.observer.is_none() {
            return;
        }
        for i in run.changes.clone() {
            let change = &batch.changes[i];
            if change.is_made() {
                let value = batch.stored(change);
                self.tell_stored((batch.key(i), stamp), change.was, value);
            }
        }
    }
}
