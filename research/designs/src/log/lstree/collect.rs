//! Garbage collection empties the first segment of a log and frees it.
//!
//! The live records of the segment are those that the mapping table leads to. Collection
//! consolidates the whole chain of a live record into a new base at the end of a log (the paper's
//! way, which also makes chains short), or moves the record alone. Then one NAW makes the log begin
//! with the next segment.
//!
//! # Room
//! In a full pool, a chain is consolidated only when the base is the live record, and only if the
//! new base is not longer than the old one. So a copy never lies further back than its record did
//! in the segment: the rest of the log's last segment and one segment of the reserve are enough,
//! and a whole segment comes back into the reserve. This holds only if no other thread appends
//! meanwhile. Therefore the thread that makes room excludes the others, which wait until there is
//! some (`reserve`).
//!
//! Longer bases are written on credit: half a segment's worth for each segment, while enough of the
//! reserve is there. Each saves twice as much in the segments that hold its deltas. Insertions
//! leave room for removals, and removals leave a segment or two for collection. So collection never
//! lacks room while there is garbage.
//!
//! Insertions and updates are refused when the pool is full and some rounds make no room. They are
//! also refused while too much of the reserve is missing, since they could fill segments that
//! removals took from it. Removals then take segments from the reserve, and the next collection
//! frees what they leave behind. A removal is refused only if a round has found nothing more to
//! consolidate.

use super::log::{LOGS, SEGMENT_HEADER, Segment};
use super::record::{Draft, Field, HALF_LINE, Kind, MAX_RECORD, Record};
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

/// Maximum number of segments that a writer collects when it finds garbage.
const STEPS: usize = 2;
/// A pool is dense if less than one byte in this many is garbage.
const DENSE: u64 = 8;
/// Maximum number of times that all segments are collected to make room for an insertion.
const ROUNDS: usize = 3;
/// Number of times to wait for readers to leave; half of them take a millisecond.
const PATIENCE: u32 = 400;

/// Bytes by which a consolidated chain may be longer than the chain was, where there is room.
const SLACK: u64 = 128;

/// The room that a collecting thread has.
pub(super) struct Budget {
    /// True if the room is the reserve's, which this thread alone uses.
    pub(super) tight: bool,
    /// Bytes by which the copies may be longer than the originals.
    pub(super) credit: u64,
}

/// Returns the bytes that a record may take in a segment, whatever its alignment.
fn takes(draft: &Draft) -> u64 {
    draft.bytes().next_multiple_of(2 * HALF_LINE) + HALF_LINE
}

/// A live record of the segment, and its leaf.
struct Live {
    lnid: u32,
    record: Record,
    place: Place,
}

/// A removal that waits for the thread that makes room.
pub(super) struct WaitingRemoval<'t>(&'t AtomicUsize);

impl Drop for WaitingRemoval<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; only the number matters.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> LsTree<K, V, M> {
    /// Collects garbage if it is time. For a thread that has changed a leaf and holds no lock.
    #[inline]
    pub(super) fn after(&self, look: bool) {
        if look && self.options.writers_collect {
            self.collect_garbage(STEPS);
        }
    }

    pub(super) fn is_due(&self) -> bool {
        let (garbage, live) = self.logs.garbage();
        // On a simulated medium segments are small, and so is this.
        let least = if self.pm().tiny() {
            self.shape.segment
        } else {
            self.options.garbage_bytes
        };
        garbage > least.max(live / 100 * u64::from(self.options.garbage_percent))
    }

    /// Collects up to `most` segments while there is more garbage than the options allow. Returns
    /// how many it collected. For a thread of the program, if writers are not to collect.
    pub fn collect_garbage(&self, most: usize) -> usize {
        let mut collected = 0;
        while collected < most && !self.read_only && self.is_due() {
            // The missing part of the reserve comes first.
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

    /// Collects the first segment of a log. Returns false if the log has no sealed segment, another
    /// thread collects it, or there is no room. A thread that makes room (one at a time) waits for
    /// others, uses the reserve, and has some `credit`.
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
        // Searches of numbers are not pinned and can read memory after it is freed (`Pin`).
        let guard = Self::RECORDS.then(epoch::pin);
        self.logs.drop_head(log, guard.as_ref(), || {
            for (lnid, n) in named {
                self.table.entry(lnid).forget_records(n);
            }
        });
        count(&self.counters.collected);
        true
    }

    /// Copies the live records of a log's first segment. Returns for each leaf how many of the
    /// segment's records name it. The caller holds `collecting`.
    pub(super) fn copy_out(
        &self,
        log: usize,
        segment: &Segment,
        budget: &mut Budget,
    ) -> Result<BTreeMap<u32, u64>, Refusal> {
        // The caller goes through the table in ascending order of leaves. Equal runs must touch
        // equal lines in equal order, or the device model's times would differ.
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
            // If this fails, the records that were moved are there twice, which does no harm.
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

    /// Calls `f` with the records of a segment that no thread appends to.
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
                // This is the second half of a line, where the next record did not fit.
                None => at += HALF_LINE,
            }
        }
    }

    /// Returns the leaves that a record names.
    pub(super) fn leaves_of(&self, record: &Record) -> impl Iterator<Item = u32> + use<K, V, M> {
        let right = self.reader().right_leaf(record);
        std::iter::once(record.lnid).chain(right)
    }

    /// Moves the record of a split as one record, if room is scarce and both leaves still need it.
    /// The new record is consolidated if it is not longer or there is credit for it. (Two bases
    /// would be longer.) Returns false if the record does not qualify.
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

    /// Returns true if a record may be written in place of `record` while room is scarce. Takes the
    /// difference from the credit.
    fn affords(&self, draft: &Draft, record: &Record, budget: &mut Budget) -> bool {
        // If no copy is longer than the record that it replaces, none lies further back than that
        // did.
        if draft.bytes() <= record.bytes {
            return true;
        }
        let more = takes(draft).saturating_sub(record.footprint());
        let fits = draft.bytes() <= MAX_RECORD.min(self.shape.segment - SEGMENT_HEADER);
        let affords = fits && more <= budget.credit;
        if affords {
            budget.credit -= more;
        }
        affords
    }

    /// Makes a record superfluous: copies its content for a leaf to the end of a log, if it is
    /// live.
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
            // The empty base has no record left to supersede.
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

    /// Returns the log and purpose of a copy. The reserve is only for the end of the segment's own
    /// log.
    fn target(&self, log: usize, lnid: u32, tight: bool) -> (usize, Purpose) {
        if tight {
            (log, Purpose::Collect)
        } else {
            (self.home(lnid), Purpose::Copy)
        }
    }

    /// Replaces a chain by one base, if that is worth it. Returns false if not.
    fn consolidate(
        &self,
        log: usize,
        entry: Entry<'_, M::Dram>,
        live: &Live,
        budget: &mut Budget,
    ) -> Result<bool, Refusal> {
        let (pm, inline, reader, lnid) = (self.pm(), self.shape.inline, self.reader(), live.lnid);
        // While room is scarce, only when the base is the live record; see `affords`.
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

    /// Copies the part of a record that concerns a leaf, with its sequence number.
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

    /// Makes room in a full pool for a thread that appends for `purpose` and holds no lock. Returns
    /// false if no room can be made.
    pub(super) fn make_room(&self, purpose: Purpose) -> bool {
        if purpose != Purpose::Remove {
            // Waiting removals come first. Otherwise repeated insertions could take their room.
            let backoff = Backoff::new();
            // ORDERING: Relaxed; only the number matters.
            while self.waiting_removals.load(Ordering::Relaxed) > 0 {
                wait(&backoff);
            }
        }
        let mut hopeless = lock(&self.hopeless);
        if self.logs.has_room(purpose) {
            return true;
        }
        // ORDERING: Relaxed; an estimate.
        let appended = || self.logs.appended.load(Ordering::Relaxed);
        // In a dense pool, collecting copies everything for little garbage, so not every refused
        // insertion does it.
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
            // Only removals wait for as long as readers stay.
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
                        // Only removals wait, as above.
                        return self.logs.has_room(purpose);
                    }
                }
            }
            // No other thread writes meanwhile, so there are fewer chains to consolidate in each
            // round.
            goes_on = spent || starved && round == 1;
            if !goes_on || round == ROUNDS && purpose != Purpose::Remove {
                break;
            }
        }
        let made = self.logs.has_room(purpose);
        // If there was more to consolidate, the next refused thread continues.
        *hopeless = (!goes_on).then(appended);
        made
    }

    /// Returns how many bytes may be written on credit when a segment is collected.
    fn credit(&self, purpose: Purpose) -> u64 {
        let least = match purpose {
            // The worst case is a segment and a half, if no two neighbouring records fit into one
            // segment.
            Purpose::Remove => 3,
            // Removals must find their part. One segment may be missing, since the saved bytes need
            // not make up a whole one.
            _ => RESERVE - 1,
        };
        if self.logs.ready() >= least {
            self.shape.segment / 2
        } else {
            0
        }
    }

    /// Registers a waiting removal. While there is one, only removals make room.
    #[cold]
    pub(super) fn register_removal(&self) -> WaitingRemoval<'_> {
        // ORDERING: Relaxed; only the number matters.
        self.waiting_removals.fetch_add(1, Ordering::Relaxed);
        WaitingRemoval(&self.waiting_removals)
    }

    /// Waits until the thread that makes room is done.
    #[cold]
    pub(super) fn await_room(&self) {
        drop(lock(&self.hopeless));
    }

    /// Frees what was retired so far. Returns false if readers do not leave soon.
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
