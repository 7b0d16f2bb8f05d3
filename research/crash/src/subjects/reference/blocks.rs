//! A table of pointers to blocks, a bitmap of the taken blocks, and a redo log.
//!
//! ```text
//!    0 | magic
//!   64 | bitmap: a bit for each of 64 blocks
//!  128 | log: how many records count (0 or 2)
//!  192 | log records: | place | new word | - | check |, twice
//!  256 | table: 40 pointers to blocks, 0 where there is none
//! 4096 | blocks of a line: | key | value | check |
//! ```
//!
//! * *Insert* takes and writes a block, fences, and publishes a pointer with a NAW.
//! * *Update* replaces value and check in place, through the log.
//! * *Remove* clears the pointer with a NAW, and then the block's bit.
//! * *Compact* moves entries to the front of the table: it inserts a copy and then removes the old
//!   one.
//!
//! # Invariants
//! 1. Between operations, a block's bit is set iff one pointer leads to the block. A crash may
//!    leave the bits of unreached blocks set, and recovery clears them.
//! 2. Two pointers lead to one key only after an interrupted move, and the copies are equal. An
//!    operation that changes the key removes the second copy first.
//!
//! # Crash states
//! 1. *Insert, move*: a taken block without a pointer.
//! 2. *Move*: two copies.
//! 3. *Remove*: as 1.
//! 4. *Update*: the log counts, and recovery replays it. Its records hold new words, so it may be
//!    replayed any number of times.

use super::{Flaw, MADE, MAGIC, Raw, mix};
use crate::subject::{Fault, FaultKind, Live, Op, Reply};
use bristlecone_pmem::Media;
use std::collections::BTreeMap;

const BITMAP: u64 = 64;
const LOG: u64 = 128;
const RECORDS: u64 = 192;
/// Bytes of a log record.
const RECORD: u64 = 32;
const TABLE: u64 = 256;
/// Pointers in the table.
const SLOTS: u64 = 40;
const BLOCKS: u64 = 4096;
const BLOCK: u64 = 64;
/// Bytes of the medium.
pub(super) const BYTES: u64 = BLOCKS + 64 * BLOCK;
/// Number of keys. It leaves pointers for the copies of moves.
pub(super) const KEYS: u64 = 32;

pub(super) struct Blocks {
    raw: Raw,
    flaw: Option<Flaw>,
}

fn slot_at(slot: u64) -> u64 {
    TABLE + slot * 8
}

fn bit_of(block: u64) -> u64 {
    1 << ((block - BLOCKS) / BLOCK)
}

impl Blocks {
    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Makes an empty table on memory with any content.
    pub(super) fn create(raw: Raw, flaw: Option<Flaw>) -> Self {
        let mut dirty = false;
        for at in (0..SLOTS).map(slot_at).chain([BITMAP, LOG]) {
            dirty |= raw.clear(at);
        }
        if dirty {
            // PERSIST: the cleared words, before the magic number.
            raw.pm.fence();
        }
        // PERSIST: (in `publish`) the table exists.
        raw.publish(MAGIC, MADE);
        Self { raw, flaw }
    }

    pub(super) fn recover(raw: Raw, flaw: Option<Flaw>) -> Result<Self, Fault> {
        let this = Self { raw, flaw };
        let refuse = |what: String| Err(Fault::new(FaultKind::Recovery, what));
        match this.raw.load(LOG) {
            0 => {}
            2 => this.replay()?,
            other => return refuse(format!("{other} log records")),
        }
        let mut reached = 0;
        for slot in 0..SLOTS {
            let block = this.raw.load(slot_at(slot));
            if block == 0 {
                continue;
            }
            if !(BLOCKS..BYTES).contains(&block) || !block.is_multiple_of(BLOCK) {
                return refuse(format!("slot {slot} leads to {block:#x}"));
            }
            let (key, value) = this.entry(block);
            let check = this.raw.load(block + 16);
            if check != mix(key, value) {
                let what = format!("block {block:#x}: {key}, {value}, check {check:#x}");
                return Err(Fault::new(FaultKind::Torn, what));
            }
            reached |= bit_of(block);
        }
        let bitmap = this.raw.load(BITMAP);
        if bitmap & !reached != 0 && !this.has(Flaw::Leak) {
            // Blocks without a pointer are free. The next insertion flushes the bitmap; a crash
            // before it makes another recovery clear the same bits.
            this.raw.store(BITMAP, bitmap & reached);
        }
        Ok(this)
    }

    /// Returns key and value of a block.
    fn entry(&self, block: u64) -> (u64, u64) {
        (self.raw.load(block), self.raw.load(block + 8))
    }

    /// Returns the slots that lead to `key`. The first one counts.
    fn slots_of(&self, key: u64) -> Vec<u64> {
        (0..SLOTS)
            .filter(|slot| {
                let block = self.raw.load(slot_at(*slot));
                block != 0 && self.raw.load(block) == key
            })
            .collect()
    }

    fn empty_slot(&self) -> Option<u64> {
        (0..SLOTS).find(|slot| self.raw.load(slot_at(*slot)) == 0)
    }

    /// Takes a block and writes an entry into it, flushed and fenced.
    fn make(&self, key: u64, value: u64) -> Result<u64, String> {
        let raw = &self.raw;
        let bitmap = raw.load(BITMAP);
        if bitmap == u64::MAX {
            return Err("all 64 blocks are taken".into());
        }
        let block = BLOCKS + u64::from(bitmap.trailing_ones()) * BLOCK;
        raw.store(BITMAP, bitmap | bit_of(block));
        if !self.has(Flaw::BitmapNotFlushed) {
            // PERSIST: the block is taken, before a pointer leads to it.
            raw.flush(BITMAP, 8);
        }
        raw.store(block, key);
        raw.store(block + 8, value);
        raw.store(block + 16, mix(key, value));
        // PERSIST: the content of the block, before a pointer leads to it.
        raw.flush(block, BLOCK as usize);
        raw.pm.fence();
        Ok(block)
    }

    /// Clears a slot and frees its block.
    fn clear(&self, slot: u64) {
        let raw = &self.raw;
        let block = raw.load(slot_at(slot));
        let freed = raw.load(BITMAP) & !bit_of(block);
        if self.has(Flaw::FreeFirst) {
            raw.publish(BITMAP, freed);
            raw.publish(slot_at(slot), 0);
            return;
        }
        if self.has(Flaw::OneFenceForTwo) {
            raw.store(slot_at(slot), 0);
            raw.flush(slot_at(slot), 8);
            raw.publish(BITMAP, freed);
            return;
        }
        // PERSIST: (in `publish`) nothing leads to the block, before it is free.
        raw.publish(slot_at(slot), 0);
        // Not flushed: a block that a crash leaves taken is freed by recovery (crash state 3).
        raw.store(BITMAP, freed);
    }

    fn insert(&self, key: u64, value: u64) -> Result<(), String> {
        let slot = self.empty_slot().ok_or("the table is full")?;
        let block = self.make(key, value)?;
        // PERSIST: (in `publish`) the entry counts.
        self.raw.publish(slot_at(slot), block);
        Ok(())
    }

    /// Replaces value and check of a block.
    fn replace(&self, block: u64, value: u64) {
        let raw = &self.raw;
        let words = [
            (block + 8, value),
            (block + 16, mix(raw.load(block), value)),
        ];
        if !self.has(Flaw::TwoStores) {
            for (i, (at, word)) in words.into_iter().enumerate() {
                let record = self.record(i as u64);
                raw.store(record, at);
                raw.store(record + 8, word);
                raw.store(record + 24, mix(at, word));
            }
            // PERSIST: the records, before they count.
            raw.flush(RECORDS, 2 * RECORD as usize);
            raw.pm.fence();
            // PERSIST: (in `publish`) the update counts.
            raw.publish(LOG, 2);
        }
        for (at, word) in words {
            raw.store(at, word);
        }
        // PERSIST: the new words, before the records stop counting.
        raw.flush(block, BLOCK as usize);
        raw.pm.fence();
        if !self.has(Flaw::TwoStores) {
            // PERSIST: (in `publish`) the records no longer count, before others are written.
            raw.publish(LOG, 0);
        }
    }

    /// Returns the place of log record `i`.
    fn record(&self, i: u64) -> u64 {
        let distance = if self.has(Flaw::CloseRecords) {
            RECORD - 8
        } else {
            RECORD
        };
        RECORDS + i * distance
    }

    fn replay(&self) -> Result<(), Fault> {
        let raw = &self.raw;
        for i in 0..2 {
            let record = self.record(i);
            let (at, word) = (raw.load(record), raw.load(record + 8));
            let inside = (BLOCKS..BYTES).contains(&at) && at.is_multiple_of(8);
            if !inside || raw.load(record + 24) != mix(at, word) {
                let what = format!("log record {i} ({at:#x}) is not whole");
                return Err(Fault::new(FaultKind::Recovery, what));
            }
            raw.store(at, word);
            // PERSIST: the record's word, before the record stops counting.
            raw.flush(at, 8);
        }
        if !self.has(Flaw::LogClearedFirst) {
            raw.pm.fence();
        }
        // PERSIST: (in `publish`) the records no longer count.
        raw.publish(LOG, 0);
        Ok(())
    }

    /// Moves entries to the front of the table.
    fn compact(&self) -> Result<(), String> {
        for from in (0..SLOTS).rev() {
            let block = self.raw.load(slot_at(from));
            if block == 0 {
                continue;
            }
            let Some(to) = self.empty_slot().filter(|to| *to < from) else {
                return Ok(());
            };
            let (key, value) = self.entry(block);
            let copy = self.make(key, value)?;
            if self.has(Flaw::DeleteThenInsert) {
                self.clear(from);
                self.raw.publish(slot_at(to), copy);
            } else {
                // PERSIST: (in `publish`) the copy counts, before the old one goes: crash state 2.
                self.raw.publish(slot_at(to), copy);
                self.clear(from);
            }
        }
        Ok(())
    }

    fn change(&self, op: &Op) -> Result<Reply, String> {
        let slots_and = |key| -> Option<u64> {
            let slots = self.slots_of(key);
            let (first, others) = slots.split_first()?;
            if !(matches!(op, Op::Remove(_)) && self.has(Flaw::OneOfTwo)) {
                others.iter().for_each(|slot| self.clear(*slot));
            }
            Some(*first)
        };
        match *op {
            Op::Insert(key, value) => match self.slots_of(key).first() {
                Some(_) => return Ok(Reply::Refused),
                None => self.insert(key, value)?,
            },
            Op::Upsert(key, value) => match slots_and(key) {
                Some(slot) => self.replace(self.raw.load(slot_at(slot)), value),
                None => self.insert(key, value)?,
            },
            Op::Update(key, value) => match slots_and(key) {
                Some(slot) => self.replace(self.raw.load(slot_at(slot)), value),
                None => return Ok(Reply::Refused),
            },
            Op::Remove(key) => match slots_and(key) {
                Some(slot) => self.clear(slot),
                None => return Ok(Reply::Refused),
            },
            Op::Get(key) => {
                let slots = self.slots_of(key);
                let value = |slot: &u64| self.entry(self.raw.load(slot_at(*slot))).1;
                return Ok(Reply::Found(slots.first().map(value)));
            }
            Op::Batch {
                first,
                step,
                count,
                value,
            } => {
                for key in super::super::batch_keys(first, step, count) {
                    if self.slots_of(key).is_empty() {
                        self.insert(key, value)?;
                    }
                }
            }
            Op::Compact => self.compact()?,
            Op::Reopen => {}
        }
        Ok(Reply::Done)
    }
}

impl Live for Blocks {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        self.change(op)
            .map_err(|what| Fault::new(FaultKind::Progress, format!("{op:?}: {what}")))
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        let mut entries = BTreeMap::new();
        for slot in 0..SLOTS {
            let block = self.raw.load(slot_at(slot));
            if block != 0 {
                let (key, value) = self.entry(block);
                // The first of two copies counts.
                entries.entry(key).or_insert(value);
            }
        }
        entries
            .into_iter()
            .for_each(|(key, value)| each(key, value));
        Ok(())
    }

    fn verify(&self) -> Result<(), Fault> {
        let mut reached = 0;
        let mut entries = BTreeMap::new();
        for slot in 0..SLOTS {
            let block = self.raw.load(slot_at(slot));
            if block == 0 {
                continue;
            }
            if reached & bit_of(block) != 0 {
                let what = format!("block {block:#x} is reached twice");
                return Err(Fault::new(FaultKind::Leak, what));
            }
            reached |= bit_of(block);
            let (key, value) = self.entry(block);
            if *entries.entry(key).or_insert(value) != value {
                let what = format!("two values for key {key}");
                return Err(Fault::new(FaultKind::Structure, what));
            }
        }
        let taken = self.raw.load(BITMAP);
        if taken == reached {
            Ok(())
        } else {
            let what = format!("blocks {taken:#x} are taken, {reached:#x} reached");
            Err(Fault::new(FaultKind::Leak, what))
        }
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        // A clean close writes nothing: recovery reads all that there is.
        Ok(())
    }
}
