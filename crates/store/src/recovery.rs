//! Opening: one walk of the index, which finds every record that counts.
//!
//! 1. The index opens itself.
//! 2. Every entry is followed, by two threads from both ends of the index. What is committed is marked as in use; what is pending under a slot with another time stamp is
//!    undone: the entry is to lead to the version before, or to go. Tombstones are to go.
//! 3. These changes are made, and what is committed and still pending is stamped; a fence. So are the records of each slot's last
//!    commit that are stamped: a process that ends without a power cut leaves stamps that may not be durable, and the slot
//!    is about to be used again.
//! 4. What was not marked is free.
//!
//! The highest time stamp found, in records and slots, is the *floor*: new ones are above it, and `previous` of what is at or
//! below it is void, since no snapshot outlives its process. So nothing is written for versions, and older ones cost nothing.
//!
//! # Crash states
//! Each change of step 3 is atomic, and a walk after it finds the same: a crash in between is recovered likewise. Nothing
//! is allocated from the store's heap before step 4.

use crate::commit::Inner;
use crate::error::{Damage, StoreError, WriteError};
use crate::index::{Entries, split};
use crate::read::Direction;
use crate::record::{self, Stamp, TS_MOST, Terms};
use crate::slots::{SLOTS, Slots, TABLE};
use crate::stripes::{Counts, Stripes};
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

/// What opening a store did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreRecovery {
    /// What opening the index did.
    pub index: bristlecone_trees::RecoveryReport,
    /// Entries that were followed.
    pub entries: u64,
    /// Entries of commits that never were, which were undone.
    pub undone: u64,
    /// Records of the last commit through each slot: they were stamped, or their stamps made durable.
    pub stamped: u64,
    /// Tombstones that were taken out.
    pub tombstones: u64,
    /// Time it took, without the index's.
    pub elapsed: Duration,
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

/// Whether a commit can have that time stamp: so many that no store comes to the last one.
fn is_time_stamp(ts: u64) -> bool {
    (1..TS_MOST / 2).contains(&ts)
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
    pub report: StoreRecovery,
}

impl<'a, M: Media> Walk<'a, M> {
    fn new(heap: &'a Heap<M>, slots: &'a Slots) -> Self {
        let pm = heap.pool().pm();
        let all = (0..SLOTS).map(|slot| slots.committed(pm, slot));
        let mut last: Vec<u64> = all.filter(|ts| *ts != 0).collect();
        last.sort_unstable();
        Self {
            heap,
            slots,
            counts: Counts::default(),
            floor: last.last().copied().unwrap_or(0),
            largest: 0,
            last,
            mends: Vec::new(),
            pending: Vec::new(),
            report: StoreRecovery::default(),
        }
    }

    /// Walks the index of a heap whose recovery has begun, by one or two `threads`; nothing is changed. What it counts is added to `stripes`.
    ///
    /// # Errors
    /// [`Damage`]
    pub fn of(
        index: &dyn Entries,
        heap: &'a Heap<M>,
        slots: &'a Slots,
        stripes: &Stripes,
        (table, threads): (u64, usize),
    ) -> Result<Self, Damage> {
        let begun = Instant::now();
        heap.mark(table, TABLE, &epoch::pin())
            .map_err(Damage::new)?;
        let claims = Mutex::new(Claims::default());
        let mut walk = Self::new(heap, slots);
        if let Some(ts) = walk.last.iter().find(|ts| !is_time_stamp(**ts)) {
            return Err(Damage::new(format!(
                "the commit table has time stamp {ts:#x}"
            )));
        }
        // Simulated media are used by one thread.
        if threads < 2 || M::TRACED {
            walk.go(index, Direction::Up, &claims)?;
        } else {
            // From both ends, until they meet.
            let mut down = Self::new(heap, slots);
            std::thread::scope(|scope| {
                let other = scope.spawn(|| down.go(index, Direction::Down, &claims));
                let up = walk.go(index, Direction::Up, &claims);
                match other.join() {
                    Ok(down) => up.and(down),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            })?;
            walk.floor = walk.floor.max(down.floor);
            walk.largest = walk.largest.max(down.largest);
            walk.mends.append(&mut down.mends);
            walk.pending.append(&mut down.pending);
            walk.counts.add(&down.counts);
            walk.report.entries += down.report.entries;
            walk.report.undone += down.report.undone;
            walk.report.tombstones += down.report.tombstones;
        }
        stripes.lock(0).counts.add(&walk.counts);
        walk.report.elapsed = begun.elapsed();
        Ok(walk)
    }

    /// Walks in one direction until the other one has been met.
    fn go(
        &mut self,
        index: &dyn Entries,
        direction: Direction,
        claims: &Mutex<Claims>,
    ) -> Result<(), Damage> {
        let pm = self.heap.pool().pm();
        let guard = epoch::pin();
        let mut together = Together::default();
        let mut outcome = Ok(true);
        let mut visit = |key: &[u8], entry: u64| {
            if let Ok(header) = record::header(pm, entry) {
                let at = std::ptr::from_ref(header).cast::<u8>();
                bristlecone_pmem::media::cpu::prefetch(at.cast_mut(), size_of_val(header));
            }
            together.push(key, entry);
            if together.ends.len() == TOGETHER {
                outcome = self.follow_all(&mut together, direction, claims, &guard);
            }
            match outcome {
                Ok(true) => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        };
        let all = (Bound::Unbounded, Bound::Unbounded);
        match direction {
            Direction::Up => index.scan(all, &mut visit),
            Direction::Down => index.scan_reverse(all, &mut visit),
        }
        if outcome? {
            self.follow_all(&mut together, direction, claims, &guard)?;
        }
        Ok(())
    }

    /// Follows what has been put together and the other direction has not claimed; false if that has been met.
    fn follow_all(
        &mut self,
        together: &mut Together,
        direction: Direction,
        claims: &Mutex<Claims>,
        guard: &Guard,
    ) -> Result<bool, Damage> {
        let mine = lock(claims).claim(together, direction);
        for (key, entry) in together.entries().take(mine) {
            self.follow(key, entry, guard).map_err(|e| {
                Damage::new(format!("index entry \"{}\": {}", key.escape_ascii(), e.0))
            })?;
        }
        let all = mine == together.ends.len();
        together.keys.clear();
        together.ends.clear();
        Ok(all)
    }

    fn follow(&mut self, key: &[u8], entry: u64, guard: &Guard) -> Result<(), Damage> {
        let Some((keyspace, _)) = split(key) else {
            return Err(Damage::new("too short for a key"));
        };
        if keyspace >= u32::MAX - 1 {
            return Err(Damage::new(format!("no keyspace has number {keyspace}")));
        }
        self.report.entries += 1;
        self.largest = self.largest.max(keyspace);
        let (committed, terms) = self.judge(entry)?;
        if committed {
            return self.keep(key, entry, terms, guard);
        }
        // Dead, or undone now; nothing is taken away for a damaged record's sake: what the index leads to was durable as a
        // whole, and a stamp has no sum.
        let pm = self.heap.pool().pm();
        record::check_sum(pm, key, entry, &terms)?;
        let dead = record::header(pm, entry)?.stamp(pm) == Stamp::Dead;
        let before = record::header(pm, entry)?.previous(pm);
        self.report.undone += u64::from(!dead);
        if before == 0 {
            self.mends.push(Mend::Remove(key.to_vec()));
            return Ok(());
        }
        let (committed, terms) = self.judge(before)?;
        if !committed {
            return Err(Damage::new(format!(
                "record {entry:#x} is not committed, nor is {before:#x} before it"
            )));
        }
        record::check_sum(pm, key, before, &terms)?;
        if terms.tombstone {
            self.mends.push(Mend::Remove(key.to_vec()));
            return Ok(());
        }
        self.mends.push(Mend::LeadTo {
            key: key.to_vec(),
            before,
            undone: entry,
        });
        self.keep(key, before, terms, guard)
    }

    /// Whether a record counts, and what it is.
    fn judge(&mut self, off: u64) -> Result<(bool, Terms), Damage> {
        let pm = self.heap.pool().pm();
        let broken = |what: String| Damage::new(format!("record {off:#x}: {what}"));
        self.heap.check(off, record::HEADER).map_err(broken)?;
        let header = record::header(pm, off)?;
        let terms = header.terms(pm);
        if !terms.sound() {
            return Err(broken(format!("no record is {terms:?}")));
        }
        let stamp = header.stamp(pm);
        let possible = match stamp {
            Stamp::Dead => true,
            Stamp::At(ts) => is_time_stamp(ts),
            Stamp::Pending { slot, ts } => is_time_stamp(ts) && slot < SLOTS,
        };
        if !possible {
            return Err(broken(format!("no commit has {stamp:?}")));
        }
        self.floor = self.floor.max(stamp.ts().unwrap_or(0));
        let committed = match stamp {
            Stamp::Dead => false,
            Stamp::At(ts) => {
                // A process may have ended before its stamps were durable, while the memory has kept them.
                if self.last.binary_search(&ts).is_ok() {
                    self.pending.push((off, ts));
                }
                true
            }
            Stamp::Pending { slot, ts } => {
                let committed = self.slots.committed(pm, slot) == ts;
                if committed {
                    self.pending.push((off, ts));
                }
                committed
            }
        };
        Ok((committed, terms))
    }

    /// A committed record is the newest of its key.
    fn keep(&mut self, key: &[u8], off: u64, terms: Terms, guard: &Guard) -> Result<(), Damage> {
        if terms.tombstone {
            // Nothing is deleted for a damaged one's sake.
            record::check_sum(self.heap.pool().pm(), key, off, &terms)?;
            self.report.tombstones += 1;
            self.mends.push(Mend::Remove(key.to_vec()));
            return Ok(());
        }
        record::mark(self.heap, off, &terms, guard)?;
        let keyspace = split(key).map_or(0, |(keyspace, _)| keyspace);
        self.counts.made(&terms);
        self.counts.is_newest(keyspace, &terms);
        Ok(())
    }

    /// Makes the changes that were found to be needed, and ends the heap's recovery.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn mend(&mut self, index: &dyn Entries, stripes: &Stripes) -> Result<(), StoreError> {
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
                        index.remove(&key)?;
                    }
                    Mend::LeadTo {
                        key,
                        before,
                        undone,
                    } => match index.set(&key, before, true) {
                        Ok(()) => {}
                        Err(WriteError::Space(_)) => self.leave(undone, stripes, &guard)?,
                        Err(e) => return Err(e.into()),
                    },
                }
            }
            Ok(())
        })?;
        // PERSIST: stamps, before a slot that they were pending under is used again.
        pm.fence();
        pm.commit()?;
        self.heap.finish_recovery();
        self.report.elapsed += begun.elapsed();
        Ok(())
    }

    /// The pool is open for reading only: what the index should not lead to is marked dead, in this process's memory.
    fn pass_by(
        &self,
        index: &dyn Entries,
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
                Stamp::Pending { slot, ts } => self.slots.committed(pm, slot) == ts,
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
    pub(crate) fn index_is_empty(index: &dyn Entries) -> bool {
        let mut empty = true;
        index.scan((Bound::Unbounded, Bound::Unbounded), &mut |_, _| {
            empty = false;
            ControlFlow::Break(())
        });
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
