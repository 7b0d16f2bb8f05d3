//! Opening: one walk of the index, which finds every record that counts.
//!
//! 1. The index opens itself.
//! 2. Every entry is followed, by two threads from both ends of the index. What is committed is marked as in use; what is pending under a slot with a lower time stamp is
//!    undone: the entry is to lead to the version before, or to go. Tombstones are to go. What is damaged is noted, and kept.
//! 3. These changes are made, and what is committed and still pending is stamped; a fence. So are the records of each slot's last
//!    commit that are stamped: a process that ends without a power cut leaves stamps that may not be durable, and the slot
//!    is about to be used again.
//!    Slots under which damaged records are pending go on, by a time stamp of their own.
//! 4. What was not marked is free.
//!
//! The highest time stamp found, in records and slots, is the *floor*: new ones are above it, and `previous` of what is at or
//! below it is void, since no snapshot outlives its process. So nothing is written for versions, and older ones cost nothing.
//!
//! # Damage
//! Nothing is taken away, or passed by, because of what a crash cannot leave. The entry leads where it did, all that may be
//! blocks of the record stays in use, reads of the key are errors, and the [report](StoreRecovery) names it:
//!
//! | found | why no crash leaves it |
//! | --- | --- |
//! | no place of a record, lengths or flags that none has | a record is durable before the index leads to it |
//! | a checksum that fails: of values of up to 4 KiB, and of whatever is to be taken away or put back for what its record says | likewise; no part of what it is of is ever changed |
//! | a stamp of no time or no slot; 0 | likewise; stamps change from pending to committed or dead, by one word |
//! | pending under a slot that is at a higher time stamp, whose word's parity fails, or that no commit uses | [`slots`](crate::slots) |
//! | pending at the time stamp of a commit through another slot | time stamps are used once |
//! | pending and not committed, under a slot whose last commit has pending records too | those are stamped before the index leads to the next one's |
//! | pending and not committed, in a store that was closed in order | closing waits for what is under way |
//!
//! What cannot be told apart from what a crash leaves, in a store that was *not* closed in order: a record that is pending
//! at time T under a slot that is at a lower one was of a commit under way, or it is the only record of its commit that is still
//! pending and a flipped bit has raised T. It is undone. A flipped bit that makes one possible time stamp of a committed record another one changes
//! nothing that is read. More flipped bits in one word may cancel out in a slot's parity. In the index itself a flipped bit of a
//! key is found, as the checksum is of the key too, but the key that was there before reads as absent; values above 4 KiB
//! are compared when they are read, by a check, and before they are vacuumed as expired. Without the catalogue no key has a keyspace: damage there refuses the opening.
//!
//! *In order* is: the pool was closed, and root word 3 is 2. It is 1 while the store is open for writing, and stays so if a commit failed or a
//! panic cut one short.
//!
//! # Crash states
//! Each change of step 3 is atomic, and a walk after it finds the same: a crash in between is recovered likewise. Nothing
//! is allocated from the store's heap before step 4.

use crate::commit::Inner;
use crate::error::{Damage, DamagedRecord, StoreError, WriteError};
use crate::index::split;
use crate::read::AHEAD;
use crate::record::{self, Stamp, Terms, is_time_stamp};
use crate::slots::{SLOTS, Slots, TABLE, Verdict};
use crate::stripes::{Counts, Stripes};
use bristlecone_index::Direction;
use bristlecone_index::UpdateError;
use bristlecone_index::engine::Engine;
use bristlecone_pmem::media::deferring_commits;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Heap, Media, PWord};
use crossbeam_epoch::{self as epoch, Guard};
use std::ops::{Bound, ControlFlow};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Entries whose records are asked for at once.
const TOGETHER: usize = 32;
/// Longest value whose checksum is compared, in bytes: opening is not to read all of a store's long values.
pub(crate) const SUMMED_MOST: usize = 4096;
const _: () = assert!(SLOTS <= u64::BITS as usize, "a bit for each");
/// Damaged records that a report names.
const NAMED_MOST: usize = 1000;

/// What opening a store did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreRecovery {
    /// What opening the index did.
    pub index: bristlecone_index::RecoveryReport,
    /// Entries that were followed.
    pub entries: u64,
    /// Entries of commits that never were, which were undone.
    pub undone: u64,
    /// Records of the last commit through each slot: they were stamped, or their stamps made durable.
    pub stamped: u64,
    /// Tombstones that were taken out.
    pub tombstones: u64,
    /// Records that are damaged, and slots of the commit table. They are kept, and reads of their keys are errors.
    pub damaged: u64,
    /// The first 1,000 of these. All of them: [`Store::find_damage`](crate::Store::find_damage).
    pub damage: Vec<DamagedRecord>,
    /// Time it took, without the index's.
    pub elapsed: Duration,
}

impl StoreRecovery {
    /// Counts and names what is damaged.
    fn found(&mut self, damaged: DamagedRecord) {
        self.damaged += 1;
        if self.damage.len() < NAMED_MOST {
            self.damage.push(damaged);
        }
    }
}

/// Entries that are followed at once: keys, one after the other, and where each ends, with its offset.
#[derive(Default)]
struct Together {
    keys: Vec<u8>,
    ends: Vec<(usize, u64)>,
}

impl Together {
    fn push(&mut self, key: &[u8], entry: u64) {
        self.keys.extend_from_slice(key);
        self.ends.push((self.keys.len(), entry));
    }

    fn entries(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let mut start = 0;
        self.ends.iter().map(move |(end, entry)| {
            let key = &self.keys[start..*end];
            start = *end;
            (key, *entry)
        })
    }
}

/// How far the walks from both ends have come.
#[derive(Default)]
struct Claims {
    /// The last key that the walk upwards has, and that the walk downwards has.
    up: Option<Vec<u8>>,
    down: Option<Vec<u8>>,
}

impl Claims {
    /// How many of these entries are still nobody's; they are claimed.
    fn claim(&mut self, together: &Together, direction: Direction) -> usize {
        let (own, other) = match direction {
            Direction::Up => (&mut self.up, &self.down),
            Direction::Down => (&mut self.down, &self.up),
        };
        let free = |key: &[u8]| match (other, direction) {
            (None, _) => true,
            (Some(other), Direction::Up) => key < other.as_slice(),
            (Some(other), Direction::Down) => key > other.as_slice(),
        };
        let mine = together.entries().take_while(|(key, _)| free(key));
        let (count, last) = mine.fold((0, None), |(n, _), (key, _)| (n + 1, Some(key)));
        if let Some(last) = last {
            *own = Some(last.to_vec());
        }
        count
    }
}

/// What an entry is to become.
enum Mend {
    /// It goes.
    Remove(Vec<u8>),
    /// It leads to the version before, at this offset, instead of to a record that was never committed.
    LeadTo {
        key: Vec<u8>,
        before: u64,
        undone: u64,
    },
}

/// The walk, or the part of it that one thread makes.
pub(crate) struct Walk<'a, M: Media> {
    heap: &'a Heap<M>,
    slots: &'a Slots,
    counts: Counts,
    /// Highest time stamp.
    pub floor: u64,
    /// Largest number of a keyspace.
    pub largest: u32,
    /// Time stamps of the last commits through slots, ascending.
    last: Vec<u64>,
    mends: Vec<Mend>,
    pending: Vec<(u64, u64)>,
    /// What is pending under slots that do not say that it is committed: keys, offsets, slots.
    cut_short: Vec<(Vec<u8>, u64, usize)>,
    /// Bits of the slots whose last commits have pending records.
    has_pending: u64,
    /// Bits of the slots that are to go on, as damaged records are pending under them.
    sealed: u64,
    /// Damaged records: whatever may be theirs stays in use.
    kept: Vec<u64>,
    /// Keys that lead to them, and where.
    pub suspects: Vec<(Vec<u8>, u64)>,
    /// The store was closed in order: no commit was under way.
    closed: bool,
    pub report: StoreRecovery,
}

/// What a record is, and of which commit.
struct Judged {
    terms: Terms,
    stamp: Stamp,
    /// It counts.
    committed: bool,
}

impl<'a, M: Media> Walk<'a, M> {
    fn new(heap: &'a Heap<M>, slots: &'a Slots, last: &[u64], closed: bool) -> Self {
        Self {
            heap,
            slots,
            counts: Counts::default(),
            floor: last.last().copied().unwrap_or(0),
            largest: 0,
            last: last.to_vec(),
            mends: Vec::new(),
            pending: Vec::new(),
            cut_short: Vec::new(),
            has_pending: 0,
            sealed: 0,
            kept: Vec::new(),
            suspects: Vec::new(),
            closed,
            report: StoreRecovery::default(),
        }
    }

    /// Walks the index of a heap whose recovery has begun, by one or two `threads`; nothing is changed. What it counts is added to `stripes`.
    /// `closed`: the store was, in order.
    ///
    /// # Errors
    /// [`Damage`]
    pub fn of(
        index: &dyn Engine,
        heap: &'a Heap<M>,
        slots: &'a Slots,
        stripes: &Stripes,
        (table, threads): (u64, usize),
        closed: bool,
    ) -> Result<Self, Damage> {
        let begun = Instant::now();
        heap.mark(table, TABLE, &epoch::pin())
            .map_err(Damage::new)?;
        let claims = Mutex::new(Claims::default());
        let (mut last, damaged) = slots.all(heap.pool().pm());
        last.sort_unstable();
        let mut walk = Self::new(heap, slots, &last, closed);
        for slot in damaged {
            walk.sealed |= 1 << slot.number;
            walk.report.found(slot.into());
        }
        // Simulated media are used by one thread.
        if threads < 2 || M::TRACED {
            walk.go(index, Direction::Up, &claims);
        } else {
            // From both ends, until they meet.
            let mut down = Self::new(heap, slots, &last, closed);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| down.go(index, Direction::Down, &claims));
                walk.go(index, Direction::Up, &claims);
                if let Err(panic) = other.join() {
                    std::panic::resume_unwind(panic);
                }
            });
            walk.floor = walk.floor.max(down.floor);
            walk.largest = walk.largest.max(down.largest);
            walk.mends.append(&mut down.mends);
            walk.pending.append(&mut down.pending);
            walk.kept.append(&mut down.kept);
            walk.suspects.append(&mut down.suspects);
            walk.cut_short.append(&mut down.cut_short);
            walk.has_pending |= down.has_pending;
            walk.sealed |= down.sealed;
            walk.counts.add(&down.counts);
            walk.report.entries += down.report.entries;
            walk.report.tombstones += down.report.tombstones;
            walk.report.damaged += down.report.damaged;
            // From the upper end downwards.
            let above = down.report.damage.into_iter().rev();
            walk.report.damage.extend(above);
            walk.report.damage.truncate(NAMED_MOST);
        }
        walk.undo_all();
        stripes.lock(0).counts.add(&walk.counts);
        walk.report.elapsed = begun.elapsed();
        Ok(walk)
    }

    /// Walks in one direction until the other one has been met.
    fn go(&mut self, index: &dyn Engine, direction: Direction, claims: &Mutex<Claims>) {
        let pm = self.heap.pool().pm();
        let guard = epoch::pin();
        let mut together = Together::default();
        let mut goes_on = true;
        let mut visit = |key: &[u8], &entry: &u64| {
            if let Ok(header) = record::header(pm, entry) {
                let at = std::ptr::from_ref(header).cast::<u8>();
                bristlecone_pmem::media::cpu::prefetch(at.cast_mut(), AHEAD);
            }
            together.push(key, entry);
            if together.ends.len() == TOGETHER {
                goes_on = self.follow_all(&mut together, direction, claims, &guard);
            }
            if goes_on {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        };
        let all = (Bound::Unbounded, Bound::Unbounded);
        index.scan(all, direction, None, &mut visit);
        if goes_on {
            self.follow_all(&mut together, direction, claims, &guard);
        }
    }

    /// Follows what has been put together and the other direction has not claimed; false if that has been met.
    fn follow_all(
        &mut self,
        together: &mut Together,
        direction: Direction,
        claims: &Mutex<Claims>,
        guard: &Guard,
    ) -> bool {
        let mine = lock(claims).claim(together, direction);
        for (key, entry) in together.entries().take(mine) {
            self.report.entries += 1;
            if let Err(e) = self.follow(key, entry, guard) {
                self.found_damaged(key, entry, e);
            }
        }
        let all = mine == together.ends.len();
        together.keys.clear();
        together.ends.clear();
        all
    }

    /// # Errors
    /// What the entry leads to is damaged: nothing was counted, and nothing is to be changed, for it.
    fn follow(&mut self, key: &[u8], entry: u64, guard: &Guard) -> Result<(), Damage> {
        let Some((keyspace, _)) = split(key) else {
            return Err(Damage::new("too short for a key"));
        };
        if keyspace >= u32::MAX - 1 {
            return Err(Damage::new(format!("no keyspace has number {keyspace}")));
        }
        self.largest = self.largest.max(keyspace);
        let judged = self.judge(entry)?;
        match judged.stamp {
            _ if judged.committed => self.keep(key, entry, &judged, guard),
            // Once it is known whether the slot's last commit has pending records.
            Stamp::Pending { slot, .. } => {
                self.cut_short.push((key.to_vec(), entry, slot));
                Ok(())
            }
            _ => self.undo(key, entry, &judged, guard),
        }
    }

    /// Sees to what is pending under slots that do not say that it is committed.
    fn undo_all(&mut self) {
        let guard = epoch::pin();
        for (key, entry, slot) in std::mem::take(&mut self.cut_short) {
            let undone = if self.has_pending & 1 << slot == 0 {
                (self.judge(entry)).and_then(|judged| self.undo(&key, entry, &judged, &guard))
            } else {
                Err(Damage::new(format!(
                    "record {entry:#x} is pending under slot {slot}, whose last commit's records would have been stamped before"
                )))
            };
            match undone {
                Ok(()) => self.report.undone += 1,
                Err(e) => self.found_damaged(&key, entry, e),
            }
        }
    }

    /// Lets an entry lead to the version before a record that is dead, or of a commit that never was, or go.
    ///
    /// # Errors
    /// As [`follow`](Self::follow).
    fn undo(
        &mut self,
        key: &[u8],
        entry: u64,
        judged: &Judged,
        guard: &Guard,
    ) -> Result<(), Damage> {
        let pm = self.heap.pool().pm();
        // Dead, or undone now; nothing is taken away for a damaged record's sake: what the index leads to was durable as a
        // whole, and a stamp has no sum.
        record::check_sum(pm, key, entry, &judged.terms)?;
        let before = record::header(pm, entry)?.previous(pm);
        if before == 0 {
            self.mends.push(Mend::Remove(key.to_vec()));
        } else {
            let judged = self.judge(before)?;
            if !judged.committed {
                return Err(Damage::new(format!(
                    "record {entry:#x} is not committed, nor is {before:#x} before it"
                )));
            }
            record::check_sum(pm, key, before, &judged.terms)?;
            let tombstone = judged.terms.is_tombstone();
            if tombstone {
                self.mends.push(Mend::Remove(key.to_vec()));
            } else {
                self.keep(key, before, &judged, guard)?;
                self.mends.push(Mend::LeadTo {
                    key: key.to_vec(),
                    before,
                    undone: entry,
                });
            }
        }
        Ok(())
    }

    /// Notes what is damaged, and counts it as what it says that it is, as far as who replaces it can tell.
    fn found_damaged(&mut self, key: &[u8], entry: u64, e: Damage) {
        let possible = split(key).filter(|(number, _)| *number < u32::MAX - 1);
        if let Some((keyspace, _)) = possible
            && let Ok(judged) = self.judge(entry)
            && judged.committed
        {
            self.stamp_again(entry, judged.stamp);
            self.counts.made(&judged.terms);
            self.counts.is_newest(keyspace, &judged.terms);
        }
        let pm = self.heap.pool().pm();
        if let Ok(Stamp::Pending { slot, .. }) = record::header(pm, entry).map(|it| it.stamp(pm))
            && slot < SLOTS
        {
            self.sealed |= 1 << slot;
        }
        self.report.found(DamagedRecord {
            index_key: Some(key.to_vec()),
            offset: entry,
            what: e.0,
        });
        self.suspects.push((key.to_vec(), entry));
        self.kept.push(entry);
    }

    /// What a record is, and whether it counts.
    fn judge(&mut self, off: u64) -> Result<Judged, Damage> {
        let pm = self.heap.pool().pm();
        let broken = |what: String| Damage::new(format!("record {off:#x}: {what}"));
        self.heap.check(off, record::HEADER).map_err(broken)?;
        let header = record::header(pm, off)?;
        let stamp = header.stamp(pm);
        let impossible = |why: &str| broken(format!("no commit has {stamp:?}{why}"));
        match stamp {
            Stamp::Dead => {}
            Stamp::At(ts) | Stamp::Pending { ts, .. } if is_time_stamp(ts) => {
                // Also of what is damaged otherwise: who reads it is to find that it is not under way.
                self.floor = self.floor.max(ts);
            }
            _ => return Err(impossible("")),
        }
        let terms = header.terms(pm);
        if !terms.sound() {
            return Err(broken(format!("no record is {terms:?}")));
        }
        let committed = match stamp {
            Stamp::Dead => false,
            Stamp::At(_) => true,
            Stamp::Pending { slot, ts } => match self.slots.judge(pm, slot, ts) {
                Verdict::Committed => true,
                Verdict::Impossible(why) => return Err(impossible(&format!(": {why}"))),
                Verdict::Never if self.closed => {
                    return Err(impossible(&format!(
                        ": slot {slot} does not say that it is committed, and nothing was under way when the store was closed"
                    )));
                }
                Verdict::Never if self.last.binary_search(&ts).is_ok() => {
                    return Err(impossible(&format!(
                        ": the commit of {ts} went through another slot"
                    )));
                }
                Verdict::Never => false,
            },
        };
        Ok(Judged {
            terms,
            stamp,
            committed,
        })
    }

    /// A committed record is to be stamped, if it is of the last commit through a slot. A process may have ended before its stamps
    /// were durable, while the memory has kept them.
    fn stamp_again(&mut self, off: u64, stamp: Stamp) {
        match stamp {
            Stamp::Pending { slot, ts } => {
                self.has_pending |= 1 << slot;
                self.pending.push((off, ts));
            }
            Stamp::At(ts) if self.last.binary_search(&ts).is_ok() => self.pending.push((off, ts)),
            _ => {}
        }
    }

    /// A committed record is the newest of its key.
    ///
    /// # Errors
    /// It is damaged; nothing was counted then.
    fn keep(&mut self, key: &[u8], off: u64, judged: &Judged, guard: &Guard) -> Result<(), Damage> {
        let terms = &judged.terms;
        // Nothing is deleted for a damaged one's sake.
        if terms.is_tombstone() || terms.len() <= SUMMED_MOST {
            record::check_sum(self.heap.pool().pm(), key, off, terms)?;
        }
        if terms.is_tombstone() {
            self.report.tombstones += 1;
            self.mends.push(Mend::Remove(key.to_vec()));
        } else {
            record::mark(self.heap, off, terms, guard)?;
            let keyspace = split(key).map_or(0, |(keyspace, _)| keyspace);
            self.counts.made(terms);
            self.counts.is_newest(keyspace, terms);
        }
        self.stamp_again(off, judged.stamp);
        Ok(())
    }

    /// Makes the changes that were found to be needed, and ends the heap's recovery.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn mend(&mut self, index: &dyn Engine, stripes: &Stripes) -> Result<(), StoreError> {
        let begun = Instant::now();
        let pm = self.heap.pool().pm();
        let guard = epoch::pin();
        for (off, ts) in self.pending.drain(..) {
            let header = record::header(pm, off)?;
            header.set_stamp(pm, Stamp::At(ts));
            // PERSIST: the stamp; fenced below, before its slot is used again.
            pm.flush_of::<PWord>(&header.stamp);
            self.report.stamped += 1;
        }
        // One commit for all, below.
        deferring_commits(|| -> Result<(), StoreError> {
            for mend in std::mem::take(&mut self.mends) {
                if pm.read_only() {
                    self.pass_by(index, &mend, stripes, &guard)?;
                    continue;
                }
                match mend {
                    Mend::Remove(key) => {
                        index.remove(&key).map_err(WriteError::from)?;
                    }
                    Mend::LeadTo {
                        key,
                        before,
                        undone,
                    } => match index.update(&key, &before) {
                        Ok(()) => {}
                        Err(UpdateError::Space(_)) => self.leave(undone, stripes, &guard)?,
                        Err(e) => return Err(WriteError::from(e).into()),
                    },
                }
            }
            Ok(())
        })?;
        // PERSIST: stamps, before a slot that they were pending under is used again.
        pm.fence();
        // What is damaged stays so for later openings, whatever they can tell of a store that was not closed in order.
        if self.sealed != 0 && !pm.read_only() {
            self.floor += 1;
            // The first one's word is 0, by which what is pending there is known.
            for slot in (1..SLOTS).filter(|slot| self.sealed & 1 << slot != 0) {
                self.slots.seal(pm, slot, self.floor);
            }
        }
        pm.commit()?;
        // Last: what is somebody else's is marked by then.
        for off in self.kept.drain(..) {
            record::mark_damaged(self.heap, off, &guard);
        }
        self.heap.finish_recovery();
        self.report.elapsed += begun.elapsed();
        Ok(())
    }

    /// The pool is open for reading only: what the index should not lead to is marked dead, in this process's memory.
    fn pass_by(
        &self,
        index: &dyn Engine,
        mend: &Mend,
        stripes: &Stripes,
        guard: &Guard,
    ) -> Result<(), Damage> {
        let key = match mend {
            Mend::LeadTo { undone, .. } => return self.leave(*undone, stripes, guard),
            Mend::Remove(key) => key,
        };
        let pm = self.heap.pool().pm();
        let mut off = index.get(key).unwrap_or(0);
        while off != 0 {
            let header = record::header(pm, off)?;
            let terms = header.terms(pm);
            record::mark(self.heap, off, &terms, guard)?;
            stripes.lock(0).counts.made(&terms);
            let committed = match header.stamp(pm) {
                Stamp::Dead => false,
                Stamp::At(_) => true,
                Stamp::Pending { slot, ts } => self.slots.judge(pm, slot, ts) == Verdict::Committed,
            };
            if committed {
                break;
            }
            header.set_stamp(pm, Stamp::Dead);
            off = header.previous(pm);
        }
        Ok(())
    }

    /// The index has no room to lead past a record that was never committed: it stays, dead.
    fn leave(&self, undone: u64, stripes: &Stripes, guard: &Guard) -> Result<(), Damage> {
        let pm = self.heap.pool().pm();
        let header = record::header(pm, undone)?;
        let terms = header.terms(pm);
        record::mark(self.heap, undone, &terms, guard)?;
        header.set_stamp(pm, Stamp::Dead);
        // PERSIST: the record is dead; fenced by the caller, before its slot is used again.
        pm.flush_of::<PWord>(&header.stamp);
        stripes.lock(0).counts.made(&terms);
        Ok(())
    }
}

/// The number that a word of the store's root holds.
pub(crate) fn root_word<M: Media>(pm: &M, word: &PWord) -> u64 {
    // ORDERING: Relaxed; the root is being opened.
    word.load(pm, Ordering::Relaxed)
}

impl<M: Media> Inner<M> {
    /// Checks that what opening found is what a handle may work with.
    pub(crate) fn index_is_empty(index: &dyn Engine) -> bool {
        let mut empty = true;
        index.scan(
            (Bound::Unbounded, Bound::Unbounded),
            Direction::Up,
            None,
            &mut |_, _| {
                empty = false;
                ControlFlow::Break(())
            },
        );
        empty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_from_both_ends_share_the_entries() {
        let batch = |keys: &[&str]| {
            let mut together = Together::default();
            for key in keys {
                together.push(key.as_bytes(), 0);
            }
            together
        };
        let mut claims = Claims::default();
        assert_eq!(claims.claim(&batch(&["a", "b"]), Direction::Up), 2);
        assert_eq!(claims.claim(&batch(&["f", "e"]), Direction::Down), 2);
        assert_eq!(claims.claim(&batch(&["c", "d", "e"]), Direction::Up), 2);
        assert_eq!(claims.claim(&batch(&["d", "c"]), Direction::Down), 0);
        assert_eq!(claims.claim(&batch(&[]), Direction::Down), 0);
    }
}
