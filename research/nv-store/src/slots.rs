//! The commit table: one word decides whether all records of a commit count.
//!
//! ```text
//! slot (64 bytes) | 0: not used yet | 1 (1) parity (8) timestamp (55) of the last commit through it |
//! ```
//!
//! Bit i of the parity covers every eighth bit of the timestamp from bit i on, so no single flipped
//! bit turns one timestamp into another. (Earlier builds wrote the timestamp alone, which is read
//! too.)
//!
//! A commit of several keys takes a slot, writes its records as
//! [pending](crate::record::Stamp::Pending) under the slot and its timestamp, and makes
//! the index lead to them. Storing the timestamp in the slot (NAW) commits it. Timestamps are used
//! once, so they also serve as the slot's generation: records that are pending under a slot with
//! another timestamp were not committed.
//!
//! So before a slot gets another timestamp, the records that are pending under its current one are
//! durably stamped. The next commit through the slot does that, under the fence of its own records,
//! or the vacuum, before it frees one of them. The thread that stamps also fences: the stores of
//! another thread may still be in its store buffer, which no fence of this thread drains.
//!
//! # What only damage leaves
//! Take a record that is pending under a slot at timestamp T, while the index leads to it. If the
//! slot has T, it is committed. If the slot has a lower timestamp or none, a crash interrupted its
//! commit, the only one in progress through the slot. Nothing else is possible: before the slot
//! gets a timestamp above T, the record is stamped or undone. No commit uses slot 0, so the stamp
//! of a single change, which has zeros there, does not become a valid pending one by a flip of bit
//! 63. (Earlier builds used slot 0: where it has a timestamp, it is like any other.)

use crate::record::{self, MAX_TIMESTAMP, Stamp};
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::sync::{lock, worker};
use bristlecone_pmem::{Heap, Media, PWord, SpaceError};
use bristlecone_store::Damage;
use bristlecone_store::engine::wait;
use crossbeam_utils::{Backoff, CachePadded};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Slots of a store. The first one is not used.
pub(crate) const SLOTS: usize = 64;
/// Slots that are used on a simulated medium: few, so that each is reused soon.
const FEW: usize = 2;
const IN_USE: u64 = 1 << 63;
const PARITY_SHIFT: u32 = 55;
/// Bytes of the table.
pub(crate) const TABLE: u64 = (SLOTS * LINE) as u64;

const _: () = assert!(
    SLOTS < 256,
    "a stamp has eight bits for the slot, and the last number marks dead records"
);

/// The verdict of a slot on a commit through it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is committed.
    Committed,
    /// It is in progress, or a crash interrupted it.
    Never,
    /// No store writes that: the reason.
    Impossible(String),
}

/// A slot whose word is damaged.
#[derive(Clone, Debug)]
pub(crate) struct DamagedSlot {
    pub number: usize,
    pub offset: u64,
    pub what: String,
}

/// Returns the parity byte of a timestamp.
fn parity(ts: u64) -> u64 {
    let bytes = ts.to_le_bytes();
    u64::from(bytes.iter().fold(0, |sum, byte| sum ^ byte))
}

fn encode(ts: u64) -> u64 {
    IN_USE | parity(ts) << PARITY_SHIFT | ts
}

/// Returns the timestamp in a slot's word, 0 for none; `None` if the word is damaged.
fn decode(word: u64) -> Option<u64> {
    let ts = word & MAX_TIMESTAMP;
    (word == ts || word == encode(ts)).then_some(ts)
}

#[derive(Debug)]
pub(crate) struct Slots {
    table: u64,
    /// The records that are pending under each slot: those of its last commit. Slot 0 has none.
    pending: Box<[CachePadded<Mutex<Vec<u64>>>]>,
}

/// A slot that a commit has taken.
pub(crate) struct Slot<'a> {
    pub number: usize,
    pending: MutexGuard<'a, Vec<u64>>,
}

fn word<M: Media>(pm: &M, table: u64, slot: usize) -> &PWord {
    word_of(pm, table, slot, 0)
}

/// Returns word `i` of a slot's line.
fn word_of<M: Media>(pm: &M, table: u64, slot: usize, i: usize) -> &PWord {
    debug_assert!(slot < SLOTS && i < LINE / 8, "{slot}, {i}");
    // SAFETY: 1. `create` and `open` have checked that the table is inside the pool, which outlives
    // the borrow of `pm`;
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
        let used = if pm.tiny() { FEW } else { SLOTS - 1 };
        Self {
            table,
            pending: (0..=used).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Allocates an empty table and flushes it; the caller fences.
    ///
    /// # Errors
    /// [`SpaceError`]; nothing is allocated then.
    pub fn create<M: Media>(heap: &Heap<M>) -> Result<(Self, u64), SpaceError> {
        let table = heap.alloc(TABLE)?.get();
        let pm = heap.pool().pm();
        for slot in 0..SLOTS {
            // All words of the line, whatever the block held before.
            for i in 0..LINE / 8 {
                // ORDERING: Relaxed; nothing leads to the table yet.
                word_of(pm, table, slot, i).store(pm, 0, Ordering::Relaxed);
            }
            // PERSIST: the empty slot; fenced before the store's root is published.
            pm.flush_of(word(pm, table, slot));
        }
        Ok((Self::at(pm, table), table))
    }

    /// Opens the table at `table`.
    ///
    /// # Errors
    /// [`Damage`] if there can be no table.
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

    /// Returns the timestamp of the last commit through a slot, 0 for none; `None` if its word is
    /// damaged.
    fn committed<M: Media>(&self, pm: &M, slot: usize) -> Option<u64> {
        // ORDERING: Acquire; pairs with the Release of `commit`.
        decode(word(pm, self.table, slot).load(pm, Ordering::Acquire))
    }

    /// Returns what the slot says of the commit at `ts`.
    pub fn judge<M: Media>(&self, pm: &M, slot: usize, ts: u64) -> Verdict {
        if slot >= SLOTS {
            return Verdict::Impossible(format!("there is no slot {slot}"));
        }
        match self.committed(pm, slot) {
            None => Verdict::Impossible(self.broken(pm, slot)),
            Some(last) if last == ts => Verdict::Committed,
            Some(0) if slot == 0 => Verdict::Impossible("no commit goes through slot 0".into()),
            Some(last) if last > ts => Verdict::Impossible(format!(
                "slot {slot} is at {last}, before which {ts} was stamped or undone"
            )),
            Some(_) => Verdict::Never,
        }
    }

    /// Returns the timestamps of the last commits through all slots, and the damaged slots.
    pub fn all<M: Media>(&self, pm: &M) -> (Vec<u64>, Vec<DamagedSlot>) {
        let (mut last, mut damaged) = (Vec::new(), Vec::new());
        for slot in 0..SLOTS {
            match self.committed(pm, slot) {
                Some(0) => {}
                Some(ts) if record::is_valid_timestamp(ts) => last.push(ts),
                _ => damaged.push(DamagedSlot {
                    number: slot,
                    offset: self.table + (slot * LINE) as u64,
                    what: self.broken(pm, slot),
                }),
            }
        }
        (last, damaged)
    }

    fn broken<M: Media>(&self, pm: &M, slot: usize) -> String {
        // ORDERING: Relaxed; for a message.
        let found = word(pm, self.table, slot).load(pm, Ordering::Relaxed);
        format!("slot {slot} of the commit table has {found:#x}, which is no timestamp")
    }

    /// Takes a free slot. Waits while there is none.
    pub fn take<M: Media>(&self, pm: &M) -> Slot<'_> {
        let backoff = Backoff::new();
        // On a simulated medium the choice must not depend on the thread that explores, and slots
        // are to be reused.
        let first = if pm.tiny() { 0 } else { worker() };
        loop {
            let used = self.pending.len() - 1;
            for i in 0..used {
                let number = 1 + (first + i) % used;
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

    /// Durably stamps the records that are pending under a slot, so that they can be freed.
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
        // PERSIST: the stamps, before the slot gets another timestamp and before a stamped record
        // is freed.
        pm.fence();
        Ok(())
    }

    /// Gives a slot a timestamp above all others, so that a damaged record that is pending under it
    /// is never taken for one of an interrupted commit.
    pub fn seal<M: Media>(&self, pm: &M, slot: usize, ts: u64) {
        // PERSIST: (in `publish`) the slot's new timestamp, after the stamps of its last commit.
        word(pm, self.table, slot).publish(pm, encode(ts));
    }

    /// Commits `ts`, whose pending records and index entries are durable.
    pub fn commit<M: Media>(&self, pm: &M, slot: &Slot<'_>, ts: u64) {
        // PERSIST: (in `publish`) the commit: from here on its records count.
        word(pm, self.table, slot.number).publish(pm, encode(ts));
    }
}

impl Slot<'_> {
    /// Stamps the records of the slot's last commit and flushes the stamps. The caller fences
    /// before it commits through the slot.
    ///
    /// # Errors
    /// [`Damage`]
    pub fn stamp<M: Media>(&mut self, pm: &M, slots: &Slots) -> Result<(), Damage> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let ts = slots.committed(pm, self.number);
        let ts = ts.ok_or_else(|| Damage::new(slots.broken(pm, self.number)))?;
        for off in self.pending.drain(..) {
            let header = record::header(pm, off)?;
            header.set_stamp(pm, Stamp::At(ts));
            // PERSIST: the stamp, while the slot still has its timestamp; the caller fences.
            pm.flush_of::<PWord>(&header.stamp);
        }
        Ok(())
    }

    /// Notes the records of the commit, which stay pending until the slot is reused.
    pub fn keep(&mut self, records: impl Iterator<Item = u64>) {
        self.pending.extend(records);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_flipped_bit_of_a_slot_makes_one_commit_another() {
        for ts in [
            1,
            2,
            0x0101,
            0x55,
            1 << 20,
            (1 << 40) + 12_345,
            MAX_TIMESTAMP / 2,
        ] {
            let word = encode(ts);
            assert_eq!(decode(word), Some(ts));
            for bit in 0..64 {
                let found = decode(word ^ 1 << bit);
                assert!(found.is_none_or(|found| found == ts), "{ts:#x}, bit {bit}");
            }
            assert_eq!(decode(ts), Some(ts), "as earlier builds wrote it");
        }
        assert_eq!(decode(0), Some(0));
    }
}
