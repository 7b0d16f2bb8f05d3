//! Garbage collection: the first segment of a log is emptied and becomes free.
//!
//! Of its records those that the mapping table leads to are live. A live record's whole chain is consolidated
//! into a new base at the end of a log (the paper's way, which also makes chains short), or the record alone is moved.
//! Then one NAW makes the log begin with the next segment.
//!
//! # Room
//! In a pool that is full, a chain is consolidated only when it is its base's turn, and where the new base is not longer
//! than the old. So nothing is written behind the place that it had in its segment: the rest of the log's last segment
//! and one more, which the reserve has, are enough, and in return a segment comes back, into the reserve. That holds
//! only if no one else writes there meanwhile: who makes room is alone, and others wait until there is some (`reserve`).
//! Longer bases are written on credit, half a segment's worth for each segment while enough of the reserve is there:
//! each saves twice as much in the segments that its deltas are in. Insertions leave to removals what these need,
//! and removals to collection a segment or two. So collection never fails for want of room, and goes on as long
//! as there is garbage.
//!
//! Insertions and updates are refused when the pool is full and some rounds make no room, and as long as too much
//! of the reserve is missing, lest they fill segments that removals took out of it. Removals take from the reserve then,
//! what they leave behind is what the next collection frees, and they are refused only when a round has found
//! nothing more to consolidate.

use super::log::{LOGS, SEGMENT_HEADER, Segment};
use super::record::{Draft, Field, HALF_LINE, Kind, MOST, Record};
use super::reserve::{Purpose, RESERVE, Refusal};
use super::table::{Entry, Place};
use super::{LsTree, count};
use crate::repr::{KeyRepr, Repr};
use crate::sync::wait;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use crossbeam_epoch as epoch;
use crossbeam_utils::Backoff;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, TryLockError};

/// Segments that who finds garbage collects at most.
const STEPS: usize = 2;
/// A pool is dense if less than one byte in so many is garbage.
const DENSE: u64 = 8;
/// Times that all segments are collected at most to make room for an insertion.
const ROUNDS: usize = 3;
/// Tries to let readers leave; half of them take a millisecond.
const PATIENCE: u32 = 400;

/// What a consolidated chain may be longer than the chain was, where there is room.
const SLACK: u64 = 128;

/// How much room who collects has.
pub(super) struct Budget {
    /// It is the reserve's, whose user is the only one.
    pub(super) tight: bool,
    /// Bytes by which what is copied may be more than what was there.
    pub(super) credit: u64,
}

/// Bytes that a record may take in a segment, however it has to be aligned.
fn takes(draft: &Draft) -> u64 {
    draft.bytes().next_multiple_of(2 * HALF_LINE) + HALF_LINE
}

/// A live record of the segment, and whose it is.
struct Live {
    lnid: u32,
    record: Record,
    place: Place,
}

/// A removal that waits for who makes room.
pub(super) struct HeldUp<'t>(&'t AtomicUsize);

impl Drop for HeldUp<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; only the number matters.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> LsTree<K, V, M> {
    /// Called by who has changed a leaf and holds no lock.
    #[inline]
    pub(super) fn after(&self, look: bool) {
        if look && self.options.writers_collect {
            self.collect_garbage(STEPS);
        }
    }

    pub(super) fn is_due(&self) -> bool {
        let (garbage, live) = self.logs.garbage();
        // On a simulated medium segments are small and so is this.
        let least = if self.pm().tiny() {
            self.shape.segment
        } else {
            self.options.garbage_bytes
        };
        garbage > least.max(live / 100 * u64::from(self.options.garbage_percent))
    }

    /// Collects up to `most` segments while there is more garbage than the options let be; how many. For a
    /// thread of the program's own, if writers are not to do it.
    pub fn collect_garbage(&self, most: usize) -> usize {
        let mut collected = 0;
        while collected < most && !self.read_only && self.is_due() {
            // What the reserve misses comes first.
            if self.logs.is_scarce() && !self.make_room(Purpose::Put) {
                break;
            }
            match self.logs.fullest() {
                Some(log) if self.collect(log, None) => collected += 1,
                _ => break,
            }
        }
        collected
    }

    /// Collects the first segment of a log; false if there is none that is sealed, someone else is at it, or there is
    /// no room. Who makes room (one at a time) waits for others, uses the reserve, and has some `credit`.
    fn collect(&self, log: usize, credit: Option<&mut u64>) -> bool {
        let of = self.logs.log(log);
        let _collecting = if credit.is_some() {
            lock(&of.collecting)
        } else {
            match of.collecting.try_lock() {
                Ok(held) => held,
                Err(TryLockError::Poisoned(held)) => held.into_inner(),
                Err(TryLockError::WouldBlock) => return false,
            }
        };
        let segment = {
            let state = lock(&of.state);
            match state.segments.front() {
                Some(first) if state.segments.len() > 1 => *first,
                _ => return false,
            }
        };
        let mut budget = Budget {
            tight: credit.is_some(),
            credit: credit.as_ref().map_or(0, |credit| **credit),
        };
        let Ok(named) = self.copy_out(log, &segment, &mut budget) else {
            return false;
        };
        if let Some(credit) = credit {
            *credit = budget.credit;
        }
        // Searches of numbers are not held up by what becomes of the memory (`Pin`).
        let guard = Self::RECORDS.then(epoch::pin);
        self.logs.drop_head(log, guard.as_ref(), || {
            for (lnid, n) in named {
                self.table.entry(lnid).forget_records(n);
            }
        });
        count(&self.counters.collected);
        true
    }

    /// Copies what is live of a log's first segment; how many of its records name a leaf, by leaf. The caller holds
    /// `collecting`.
    pub(super) fn copy_out(
        &self,
        log: usize,
        segment: &Segment,
        budget: &mut Budget,
    ) -> Result<BTreeMap<u32, u64>, Refusal> {
        // In order of number: the caller goes through the table in that order, and the same run has to touch the same
        // lines in the same order, or the device model tells another time each time.
        let mut named: BTreeMap<u32, u64> = BTreeMap::new();
        let mut records = Vec::new();
        self.each_record(segment, |record| {
            for lnid in self.leaves_of(&record) {
                *named.entry(lnid).or_default() += 1;
            }
            records.push(record);
        });
        if self.pm().planted("lstree-drop-first") {
            self.logs.pass_head(log);
        }
        let forgets = self.pm().planted("lstree-forget-early");
        for record in &records {
            // What was moved when this fails is there twice, which does no harm.
            if self.rescue_both(log, record, budget)? {
                continue;
            }
            for lnid in self.leaves_of(record) {
                let elsewhere =
                    |entry: Entry<'_, M::Dram>| !forgets && entry.records() > named[&lnid];
                self.rescue(log, lnid, record, elsewhere, budget)?;
            }
        }
        Ok(named)
    }

    /// Calls `f` with the records of a sealed segment, or of one that no one appends to meanwhile.
    pub(super) fn each_record(&self, segment: &Segment, mut f: impl FnMut(Record)) {
        let reader = self.reader();
        let salt = self.logs.salt_of(segment.generation);
        let mut at = SEGMENT_HEADER;
        while at < segment.used {
            match reader.record_at(segment.off, at, salt) {
                Some(record) => {
                    f(record);
                    at += record.footprint();
                }
                // The second half of a line, where the next record did not fit.
                None => at += HALF_LINE,
            }
        }
    }

    /// The leaves that a record names.
    pub(super) fn leaves_of(&self, record: &Record) -> impl Iterator<Item = u32> + use<K, V, M> {
        let right = self.reader().right_leaf(record);
        std::iter::once(record.lnid).chain(right)
    }

    /// Where there is little room and both leaves of a split still need it: one record of both again, consolidated if
    /// that is not longer or there is credit. (Two bases are longer.) False if that is not the case.
    fn rescue_both(
        &self,
        log: usize,
        record: &Record,
        budget: &mut Budget,
    ) -> Result<bool, Refusal> {
        let right = self.reader().right_leaf(record).filter(|_| budget.tight);
        let Some(right) = right else { return Ok(false) };
        let left = record.lnid;
        self.pm().interleave();
        let locked = self.locks.lock_two(left, right);
        let entries = [left, right].map(|lnid| (lnid, self.table.entry(lnid)));
        let places = entries.map(|(_, entry)| entry.place_of(record.off));
        let [Some(left_place), Some(right_place)] = places else {
            locked.unlock_unchanged();
            return Ok(false);
        };
        let (pm, inline, reader) = (self.pm(), self.shape.inline, self.reader());
        let mut contents = [Vec::new(), Vec::new()];
        for ((lnid, entry), words) in entries.iter().zip(&mut contents) {
            self.contents(*entry, *lnid, words);
        }
        let draft_of = |sequence: u64, contents: &[Vec<(u64, u64)>; 2]| {
            let (n, m) = (contents[0].len(), contents[1].len());
            let mut draft = Draft::split(left, sequence, n, right, m);
            for (key, value) in contents.iter().flatten() {
                draft.push(pm, &Field::<K>::Word(*key), inline);
                draft.push(pm, &Field::<V>::Word(*value), inline);
            }
            draft
        };
        let newest = entries[0].1.sequence().max(entries[1].1.sequence());
        let mut draft = draft_of(newest + 1, &contents);
        let chained = entries.iter().any(|(_, entry)| entry.counts().deltas > 0);
        let consolidated = chained && self.affords(&draft, record, budget);
        if !consolidated {
            let [Some(low), Some(high)] = [left, right].map(|lnid| reader.pairs(record, lnid))
            else {
                locked.unlock_unchanged();
                return Ok(false);
            };
            let (n, m) = (low.n as usize, high.n as usize);
            draft = Draft::split(left, record.sequence, n, right, m);
            draft.push_pairs::<M, K, V>(&reader, record, &low);
            draft.push_pairs::<M, K, V>(&reader, record, &high);
        }
        let written = match self.logs.append(log, &mut draft, Purpose::Collect) {
            Ok(written) => written,
            Err(full) => {
                locked.unlock_unchanged();
                return Err(full);
            }
        };
        for (((lnid, entry), old), words) in
            entries.iter().zip([left_place, right_place]).zip(&contents)
        {
            if consolidated {
                let place = Place::new(written.off, written.log, 0);
                self.install_base(*lnid, *entry, place, words.len());
                entry.set_sequence(newest + 1);
            } else {
                self.no_longer_live(*lnid, old);
                entry.replace(old, old.moved(written.off, written.log));
            }
            entry.add_records(1);
        }
        count(if consolidated {
            &self.counters.consolidated
        } else {
            &self.counters.moved
        });
        locked.unlock();
        Ok(true)
    }

    /// True if a record may be written instead of `record`, where there is little room; takes from the credit.
    fn affords(&self, draft: &Draft, record: &Record, budget: &mut Budget) -> bool {
        // Where no record is longer than the one whose turn it is, none comes to lie behind its old place.
        if draft.bytes() <= record.bytes {
            return true;
        }
        let more = takes(draft).saturating_sub(record.footprint());
        let fits = draft.bytes() <= MOST.min(self.shape.segment - SEGMENT_HEADER);
        let affords = fits && more <= budget.credit;
        if affords {
            budget.credit -= more;
        }
        affords
    }

    /// Sees to it that a record is needed no more: copies what it says of a leaf to the end of a log, if it is live.
    fn rescue(
        &self,
        log: usize,
        lnid: u32,
        record: &Record,
        elsewhere: impl Fn(Entry<'_, M::Dram>) -> bool,
        budget: &mut Budget,
    ) -> Result<(), Refusal> {
        self.pm().interleave();
        let locked = self.locks.lock(lnid);
        let entry = self.table.entry(lnid);
        let Some(place) = entry.place_of(record.off) else {
            locked.unlock_unchanged();
            return Ok(());
        };
        let live = Live {
            lnid,
            record: *record,
            place,
        };
        let counts = entry.counts();
        if counts.live == 0 && !elsewhere(entry) {
            // Nothing is left that it would have to contradict.
            self.no_longer_live(lnid, place);
            entry.set_base(Place::NONE, 0);
            count(&self.counters.forgotten);
            return Ok(());
        }
        let consolidated = if counts.deltas > 0 {
            self.consolidate(log, entry, &live, budget)
        } else {
            Ok(false)
        };
        let result = match consolidated {
            Ok(false) => self.relocate(log, entry, &live, budget.tight),
            done => done.map(|_| ()),
        };
        match result {
            Ok(()) => drop(locked),
            Err(_) => locked.unlock_unchanged(),
        }
        result
    }

    /// Where what is copied goes: the reserve is only for the log's own end.
    fn target(&self, log: usize, lnid: u32, tight: bool) -> (usize, Purpose) {
        if tight {
            (log, Purpose::Collect)
        } else {
            (self.home(lnid), Purpose::Copy)
        }
    }

    /// Replaces a chain by one base, where that is to be; false if not.
    fn consolidate(
        &self,
        log: usize,
        entry: Entry<'_, M::Dram>,
        live: &Live,
        budget: &mut Budget,
    ) -> Result<bool, Refusal> {
        let (pm, inline, reader, lnid) = (self.pm(), self.shape.inline, self.reader(), live.lnid);
        // With little room only when it is the base's turn; see `affords`.
        if budget.tight && live.place != entry.base() {
            return Ok(false);
        }
        let mut words = Vec::with_capacity(self.shape.entries);
        self.contents(entry, lnid, &mut words);
        let mut draft = Draft::base(lnid, entry.sequence() + 1, words.len());
        for (key, value) in &words {
            draft.push(pm, &Field::<K>::Word(*key), inline);
            draft.push(pm, &Field::<V>::Word(*value), inline);
        }
        let records = entry
            .places()
            .filter_map(|place| reader.record(place.off()));
        let chain: u64 = records.map(|record| record.footprint()).sum();
        let worth = if budget.tight {
            self.affords(&draft, &live.record, budget)
        } else {
            takes(&draft) <= chain + SLACK
        };
        if !worth {
            return Ok(false);
        }
        let (to, purpose) = self.target(log, lnid, budget.tight);
        let written = self.logs.append(to, &mut draft, purpose)?;
        let place = Place::new(written.off, written.log, 0);
        self.install_base(lnid, entry, place, words.len());
        entry.add_records(1);
        count(&self.counters.consolidated);
        Ok(true)
    }

    /// Copies what a record says of a leaf, with its sequence number.
    fn relocate(
        &self,
        log: usize,
        entry: Entry<'_, M::Dram>,
        live: &Live,
        tight: bool,
    ) -> Result<(), Refusal> {
        let reader = self.reader();
        let Live {
            lnid,
            record,
            place,
        } = live;
        let Some(pairs) = reader.pairs(record, *lnid) else {
            return Ok(());
        };
        let mut draft = match record.kind {
            Kind::Put => Draft::put(*lnid, record.sequence),
            Kind::Remove => Draft::remove(*lnid, record.sequence),
            Kind::Base | Kind::Split => Draft::base(*lnid, record.sequence, pairs.n as usize),
        };
        draft.push_pairs::<M, K, V>(&reader, record, &pairs);
        let (to, purpose) = self.target(log, *lnid, tight);
        let written = self.logs.append(to, &mut draft, purpose)?;
        self.no_longer_live(*lnid, *place);
        entry.replace(*place, place.moved(written.off, written.log));
        entry.add_records(1);
        count(&self.counters.moved);
        Ok(())
    }

    /// Makes room in a full pool for who appends for `purpose`, holding no lock; false if there is none to be made.
    pub(super) fn make_room(&self, purpose: Purpose) -> bool {
        if purpose != Purpose::Remove {
            // Or those who insert again and again keep it from who has waited for them.
            let backoff = Backoff::new();
            // ORDERING: Relaxed; only the number matters.
            while self.held_up.load(Ordering::Relaxed) > 0 {
                wait(&backoff);
            }
        }
        let mut hopeless = lock(&self.hopeless);
        if self.logs.has_room(purpose) {
            return true;
        }
        // ORDERING: Relaxed; an estimate.
        let appended = || self.logs.appended.load(Ordering::Relaxed);
        // All is copied for what little is garbage: not for each insertion that is refused.
        let (garbage, live) = self.logs.garbage();
        let dense = garbage < live / DENSE;
        if purpose == Purpose::Put
            && dense
            && hopeless.is_some_and(|then| appended().saturating_sub(then) < live / DENSE)
        {
            return false;
        }
        let _alone = self.logs.alone();
        if !self.reclaim() && purpose != Purpose::Remove {
            // Not for insertions do others wait as long as readers stay.
            return self.logs.has_room(purpose);
        }
        let mut goes_on = true;
        for round in 1.. {
            let (mut spent, mut starved) = (false, false);
            for log in 0..LOGS {
                // ORDERING: Relaxed; an estimate.
                let segments = self.logs.log(log).sealed.load(Ordering::Relaxed);
                for _ in 0..segments {
                    if self.logs.has_room(purpose) {
                        *hopeless = dense.then(appended);
                        return true;
                    }
                    let given = self.credit(purpose);
                    let mut credit = given;
                    if !self.collect(log, Some(&mut credit)) {
                        break;
                    }
                    spent |= credit < given;
                    starved |= given == 0;
                    if !self.reclaim() && purpose != Purpose::Remove {
                        // As above.
                        return self.logs.has_room(purpose);
                    }
                }
            }
            // No one writes meanwhile, so that chains to consolidate become fewer.
            goes_on = spent || starved && round == 1;
            if !goes_on || round == ROUNDS && purpose != Purpose::Remove {
                break;
            }
        }
        let made = self.logs.has_room(purpose);
        // Where there was more to consolidate, who is refused next goes on.
        *hopeless = (!goes_on).then(appended);
        made
    }

    /// Bytes that may be written on credit where a segment is collected.
    fn credit(&self, purpose: Purpose) -> u64 {
        let least = match purpose {
            // As many as a segment and a half may need, if no two neighbours in it fit into one.
            Purpose::Remove => 3,
            // So that removals find theirs; one may be missing, since what was saved need not be a whole one.
            _ => RESERVE - 1,
        };
        if self.logs.ready() >= least {
            self.shape.segment / 2
        } else {
            0
        }
    }

    /// As long as it is there, only removals make room.
    #[cold]
    pub(super) fn hold_up(&self) -> HeldUp<'_> {
        // ORDERING: Relaxed; only the number matters.
        self.held_up.fetch_add(1, Ordering::Relaxed);
        HeldUp(&self.held_up)
    }

    /// Waits until who makes room is done.
    #[cold]
    pub(super) fn await_room(&self) {
        drop(lock(&self.hopeless));
    }

    /// Sees that what was retired so far is free; false if readers do not leave soon.
    fn reclaim(&self) -> bool {
        if !Self::RECORDS {
            return true;
        }
        let freed = Arc::new(AtomicBool::new(false));
        let mark = Arc::clone(&freed);
        // ORDERING (both): Relaxed; a hint.
        epoch::pin().defer(move || mark.store(true, Ordering::Relaxed));
        for turn in 0..PATIENCE {
            epoch::pin().flush();
            if freed.load(Ordering::Relaxed) {
                return true;
            }
            if bristlecone_pmem::sync::give_way() {
                continue;
            }
            if turn < PATIENCE / 2 || self.pm().tiny() {
                std::thread::yield_now();
            } else {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        false
    }
}
