//! The commit table: one word says whether all of a commit's records count.
//!
//! ```text
//! slot (64 bytes) | time stamp of the last commit that went through it, 0 if none did |
//! ```
//!
//! A commit of several keys takes a slot, writes its records as [pending](crate::record::Stamp::Pending) under the slot and its time
//! stamp, and lets the index lead to them. Storing the time stamp into the slot (NAW) commits it. Time stamps are used once, so
//! they are the slot's generation at the same time: records that are pending under a slot which has another time stamp are of a commit that never
//! was.
//!
//! So before a slot gets another time stamp, the records that are pending under the one it has are stamped, durably. The next commit through
//! the slot does that, under the fence of its own records, or the vacuum, before it frees one of them. Who stamps is who
//! fences: what another thread has stored may be in its store buffer yet, for all that a fence of this one's says.

use crate::clock::wait;
use crate::error::Damage;
use crate::record::{self, Stamp};
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::sync::{lock, worker};
use bristlecone_pmem::{Heap, Media, PWord, SpaceError};
use crossbeam_utils::{Backoff, CachePadded};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Slots of a store.
pub(crate) const SLOTS: usize = 64;
/// Of these, how many are used on a simulated medium, so that each is used again soon.
const FEW: usize = 2;
/// Bytes of the table.
pub(crate) const TABLE: u64 = (SLOTS * LINE) as u64;

const _: () = assert!(SLOTS <= 256, "a stamp has eight bits for it");

#[derive(Debug)]
pub(crate) struct Slots {
    table: u64,
    /// Records of the last commit through each slot, which are pending.
    pending: Box<[CachePadded<Mutex<Vec<u64>>>]>,
}

/// A slot that a commit has.
pub(crate) struct Slot<'a> {
    pub number: usize,
    pending: MutexGuard<'a, Vec<u64>>,
}

fn word<M: Media>(pm: &M, table: u64, slot: usize) -> &PWord {
    word_of(pm, table, slot, 0)
}

/// Word `i` of a slot's line.
fn word_of<M: Media>(pm: &M, table: u64, slot: usize, i: usize) -> &PWord {
    debug_assert!(slot < SLOTS && i < LINE / 8, "{slot}, {i}");
    // SAFETY: 1. `create` and `open` have checked that the table is inside the pool, which outlives the borrow of `pm`;
    // 2. 8-aligned; 3. any bits are a valid PWord.
    unsafe {
        &*pm.base()
            .wrapping_add(table as usize + slot * LINE + i * 8)
            .cast_const()
            .cast()
    }
}

impl Slots {
    fn at<M: Media>(pm: &M, table: u64) -> Self {
        let used = if pm.tiny() { FEW } else { SLOTS };
        Self {
            table,
            pending: (0..used).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Makes an empty table; flushed, not fenced.
    ///
    /// # Errors
    /// [`SpaceError`]; nothing is allocated then.
    pub fn create<M: Media>(heap: &Heap<M>) -> Result<(Self, u64), SpaceError> {
        let table = heap.alloc(TABLE)?.get();
        let pm = heap.pool().pm();
        for slot in 0..SLOTS {
            // Whole lines, whatever the block held before.
            for i in 0..LINE / 8 {
                // ORDERING: Relaxed; nothing leads to the table yet.
                word_of(pm, table, slot, i).store(pm, 0, Ordering::Relaxed);
            }
            // PERSIST: the empty slot; fenced before the store's root is published.
            pm.flush_of(word(pm, table, slot));
        }
        Ok((Self::at(pm, table), table))
    }

    /// The table at `table`.
    ///
    /// # Errors
    /// [`Damage`] if there can be none.
    pub fn open<M: Media>(pm: &M, table: u64) -> Result<Self, Damage> {
        let end = table.checked_add(TABLE);
        if table < CHUNK
            || !table.is_multiple_of(LINE as u64)
            || end.is_none_or(|end| end > pm.len())
        {
            return Err(Damage::new(format!("no commit table at {table:#x}")));
        }
        Ok(Self::at(pm, table))
    }

    /// The time stamp of the last commit through a slot.
    pub fn committed<M: Media>(&self, pm: &M, slot: usize) -> u64 {
        if slot >= SLOTS {
            return 0;
        }
        // ORDERING: Acquire; pairs with the Release of `commit`.
        word(pm, self.table, slot).load(pm, Ordering::Acquire)
    }

    /// Takes a free slot; waits while there is none.
    pub fn take<M: Media>(&self, pm: &M) -> Slot<'_> {
        let backoff = Backoff::new();
        // Explored crash states do not depend on which thread explores them, and slots are used again.
        let first = if pm.tiny() { 0 } else { worker() };
        loop {
            let used = self.pending.len();
            for i in 0..used {
                let number = (first + i) % used;
                let pending = match self.pending[number].try_lock() {
                    Ok(pending) => pending,
                    Err(TryLockError::Poisoned(e)) => PoisonError::into_inner(e),
                    Err(TryLockError::WouldBlock) => continue,
                };
                return Slot { number, pending };
            }
            wait(&backoff);
        }
    }

    /// Stamps what is pending under a slot, so that it can be freed.
    ///
    /// # Errors
    /// [`Damage`]
    pub fn stamp<M: Media>(&self, pm: &M, number: usize) -> Result<(), Damage> {
        let Some(pending) = self.pending.get(number) else {
            return Err(Damage::new(format!("there is no slot {number}")));
        };
        let pending = lock(pending);
        let mut slot = Slot { number, pending };
        slot.stamp(pm, self)?;
        // PERSIST: the stamps, before the slot gets another time stamp.
        pm.fence();
        Ok(())
    }

    /// Commits `ts`, whose records are pending and durable, as what led to them is.
    pub fn commit<M: Media>(&self, pm: &M, slot: &Slot<'_>, ts: u64) {
        // PERSIST: (in `publish`) the commit counts.
        word(pm, self.table, slot.number).publish(pm, ts);
    }
}

impl Slot<'_> {
    /// Stamps the records of the commit before, and flushes the stamps; the caller fences, before it commits.
    ///
    /// # Errors
    /// [`Damage`]
    pub fn stamp<M: Media>(&mut self, pm: &M, slots: &Slots) -> Result<(), Damage> {
        let ts = slots.committed(pm, self.number);
        for off in self.pending.drain(..) {
            let header = record::header(pm, off)?;
            header.set_stamp(pm, Stamp::At(ts));
            // PERSIST: the stamp, while the slot still says that it is committed; fenced by the caller.
            pm.flush_of::<PWord>(&header.stamp);
        }
        Ok(())
    }

    /// These records are pending under the slot, which says that they are committed.
    pub fn keep(&mut self, records: impl Iterator<Item = u64>) {
        self.pending.extend(records);
    }
}
