//! Opening: one walk of the index, which finds every record that counts.
//!
//! 1. The index opens itself.
//! 2. Every entry is followed. What is committed is marked as in use; what is pending under a slot with another time stamp is
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
use crate::record::{self, Stamp, Terms};
use crate::slots::{SLOTS, Slots, TABLE};
use crate::stripes::Stripes;
use bristlecone_pmem::{Heap, Media, PWord};
use crossbeam_epoch::{self as epoch, Guard};
use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
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

/// The walk.
pub(crate) struct Walk<'a, M: Media> {
    heap: &'a Heap<M>,
    slots: &'a Slots,
    stripes: &'a Stripes,
    /// Highest time stamp.
    pub floor: u64,
    /// Largest number of a keyspace.
    pub largest: u32,
    /// Time stamps of the last commit through each slot.
    last: HashSet<u64>,
    mends: Vec<Mend>,
    pending: Vec<(u64, u64)>,
    pub report: StoreRecovery,
}

impl<'a, M: Media> Walk<'a, M> {
    /// Walks the index of a heap whose recovery has begun; nothing is changed.
    ///
    /// # Errors
    /// [`Damage`]
    pub fn of(
        index: &dyn Entries,
        heap: &'a Heap<M>,
        slots: &'a Slots,
        stripes: &'a Stripes,
        table: u64,
    ) -> Result<Self, Damage> {
        let begun = Instant::now();
        let pm = heap.pool().pm();
        let guard = epoch::pin();
        heap.mark(table, TABLE, &guard).map_err(Damage::new)?;
        let mut walk = Self {
            heap,
            slots,
            stripes,
            floor: 0,
            largest: 0,
            last: (0..SLOTS).map(|slot| slots.committed(pm, slot)).collect(),
            mends: Vec::new(),
            pending: Vec::new(),
            report: StoreRecovery::default(),
        };
        walk.floor = walk.last.iter().copied().max().unwrap_or(0);
        let mut together: Vec<(Vec<u8>, u64)> = Vec::with_capacity(TOGETHER);
        let mut outcome = Ok(());
        index.scan((Bound::Unbounded, Bound::Unbounded), &mut |key, entry| {
            if let Ok(header) = record::header(pm, entry) {
                let at = std::ptr::from_ref(header).cast::<u8>();
                bristlecone_pmem::media::cpu::prefetch(at.cast_mut(), size_of_val(header));
            }
            together.push((key.to_vec(), entry));
            if together.len() == TOGETHER {
                outcome = walk.follow_all(&mut together, &guard);
            }
            match outcome {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        outcome?;
        walk.follow_all(&mut together, &guard)?;
        walk.report.elapsed = begun.elapsed();
        Ok(walk)
    }

    fn follow_all(
        &mut self,
        entries: &mut Vec<(Vec<u8>, u64)>,
        guard: &Guard,
    ) -> Result<(), Damage> {
        for (key, entry) in entries.drain(..) {
            self.follow(&key, entry, guard).map_err(|e| {
                Damage::new(format!("index entry \"{}\": {}", key.escape_ascii(), e.0))
            })?;
        }
        Ok(())
    }

    fn follow(&mut self, key: &[u8], entry: u64, guard: &Guard) -> Result<(), Damage> {
        let Some((keyspace, _)) = split(key) else {
            return Err(Damage::new("too short for a key"));
        };
        self.report.entries += 1;
        self.largest = self.largest.max(keyspace);
        let (committed, terms) = self.judge(entry)?;
        if committed {
            return self.keep(key, entry, terms, guard);
        }
        // Dead, or undone now.
        let pm = self.heap.pool().pm();
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
        self.floor = self.floor.max(stamp.ts().unwrap_or(0));
        let committed = match stamp {
            Stamp::Dead => false,
            Stamp::At(ts) => {
                // A process may have ended before its stamps were durable, while the memory has kept them.
                if self.last.contains(&ts) {
                    self.pending.push((off, ts));
                }
                true
            }
            Stamp::Pending { slot, ts } => {
                let committed = slot < SLOTS && self.slots.committed(pm, slot) == ts;
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
        let mut stripe = self.stripes.lock(self.stripes.of(key));
        stripe.counts.made(&terms);
        stripe.counts.is_newest(keyspace, &terms);
        Ok(())
    }

    /// Makes the changes that were found to be needed, and ends the heap's recovery.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn mend(&mut self, index: &dyn Entries) -> Result<(), StoreError> {
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
        for mend in std::mem::take(&mut self.mends) {
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
                    Err(WriteError::Space(_)) => self.leave(&key, undone, &guard)?,
                    Err(e) => return Err(e.into()),
                },
            }
        }
        // PERSIST: stamps, before a slot that they were pending under is used again.
        pm.fence();
        pm.commit()?;
        self.heap.finish_recovery();
        self.report.elapsed += begun.elapsed();
        Ok(())
    }

    /// The index has no room to lead past a record that was never committed: it stays, dead.
    fn leave(&self, key: &[u8], undone: u64, guard: &Guard) -> Result<(), Damage> {
        let pm = self.heap.pool().pm();
        let header = record::header(pm, undone)?;
        let terms = header.terms(pm);
        record::mark(self.heap, undone, &terms, guard)?;
        header.set_stamp(pm, Stamp::Dead);
        // PERSIST: the record is dead; fenced by the caller, before its slot is used again.
        pm.flush_of::<PWord>(&header.stamp);
        let mut stripe = self.stripes.lock(self.stripes.of(key));
        stripe.counts.made(&terms);
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
