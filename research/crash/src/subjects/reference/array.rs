//! An append-only array of entries, and a counter that says how many there are.
//!
//! ```text
//!     0 | magic
//!    64 | entries in a segment
//!   128 | counter: entries (bits 0..32), keys (bits 32..64) | lock bit (of a flawed variant)
//!   192 | keys (of a flawed variant)
//!  4096 | directory: per segment | check | offset |
//!  8192 | segments of 8 entries: | key | value, or nothing | check and kind |
//! ```
//!
//! An operation appends an entry, or a tombstone for a removal, and counts it with one NAW. The
//! last entry of a key is valid. The persist cost is the entry's lines, a line of the directory for
//! a new segment, a fence, and the counter's NAW.
//!
//! # Invariants
//! 1. Entries below the counter are whole and in segments of the directory.
//! 2. A segment in the directory (up to the first offset that is 0) has its check word.
//! 3. The counter's number of keys is that of the keys whose last entry is no tombstone.
//!
//! # Concurrency
//! Writers take a volatile lock. Readers read a volatile map, which shows only durable entries.
//!
//! # Crash states
//! An entry, or a segment in the directory, beyond the counter. The next append overwrites it.

use super::{Flaw, MADE, MAGIC, Raw, mix};
use crate::subject::{Fault, FaultKind, Live, Op, Reply};
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::give_way;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

const GEOMETRY: u64 = 64;
const COUNTER: u64 = 128;
const LOCK: u64 = 136;
const KEYS: u64 = 192;
const DIRECTORY: u64 = 4096;
const SEGMENTS: u64 = 8192;
/// Entries in a segment.
const SEGMENT: u64 = 8;
/// Bytes of an entry.
const ENTRY: u64 = 24;
/// Largest number of entries.
const MAX_ENTRIES: u64 = 1024;
/// Bytes of the medium.
pub(super) const BYTES: u64 = SEGMENTS + MAX_ENTRIES * ENTRY;

pub(super) struct Array {
    raw: Raw,
    flaw: Option<Flaw>,
    /// The entries that readers see.
    mirror: RefCell<BTreeMap<u64, u64>>,
    locked: Cell<bool>,
}

/// Returns the last word of an entry.
fn seal(key: u64, value: Option<u64>) -> u64 {
    match value {
        Some(value) => mix(key, value) & !2,
        None => mix(key, 0) | 2,
    }
}

fn segment_at(segment: u64) -> u64 {
    SEGMENTS + segment * SEGMENT * ENTRY
}

impl Array {
    fn new(raw: Raw, flaw: Option<Flaw>) -> Self {
        Self {
            raw,
            flaw,
            mirror: RefCell::default(),
            locked: Cell::new(false),
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Makes an empty array on memory with any content.
    pub(super) fn create(raw: Raw, flaw: Option<Flaw>) -> Self {
        let array = Self::new(raw, flaw);
        let raw = &array.raw;
        let offsets = (0..MAX_ENTRIES / SEGMENT).map(|segment| DIRECTORY + segment * 16 + 8);
        for at in offsets.chain([COUNTER, LOCK, KEYS]) {
            raw.clear(at);
        }
        raw.store(GEOMETRY, SEGMENT);
        if !array.has(Flaw::FieldForgotten) {
            // PERSIST: the header's fields, with what was cleared, before the magic number that
            // makes them count.
            raw.flush(GEOMETRY, 8);
        }
        raw.pm.fence();
        if array.has(Flaw::HeaderNotFlushed) {
            raw.store(MAGIC, MADE);
            raw.pm.fence();
        } else {
            // PERSIST: (in `publish`) the array exists.
            raw.publish(MAGIC, MADE);
        }
        array
    }

    pub(super) fn recover(raw: Raw, flaw: Option<Flaw>) -> Result<Self, Fault> {
        let refuse = |what: String| Err(Fault::new(FaultKind::Recovery, what));
        let segment = raw.load(GEOMETRY);
        if segment != SEGMENT {
            return refuse(format!("{segment} entries in a segment"));
        }
        let entries = raw.load(COUNTER) & 0xFFFF_FFFF;
        if entries > MAX_ENTRIES {
            return refuse(format!("{entries} entries"));
        }
        let mut segments = 0;
        while segments < MAX_ENTRIES / SEGMENT {
            let place = DIRECTORY + segments * 16;
            let (offset, check) = (raw.load(place + 8), raw.load(place));
            if offset == 0 {
                break;
            }
            if offset != segment_at(segments) || check != mix(offset, 0) {
                return refuse(format!("segment {segments}: {offset:#x}, check {check:#x}"));
            }
            segments += 1;
        }
        if entries > segments * SEGMENT {
            return refuse(format!("{entries} entries in {segments} segments"));
        }
        let mut mirror = BTreeMap::new();
        for i in 0..entries {
            let at = segment_at(i / SEGMENT) + i % SEGMENT * ENTRY;
            let (key, value) = (raw.load(at), raw.load(at + 8));
            match raw.load(at + 16) {
                sealed if sealed == seal(key, Some(value)) => mirror.insert(key, value),
                sealed if sealed == seal(key, None) && value == 0 => mirror.remove(&key),
                sealed => {
                    let what = format!("entry {i}: {key}, {value}, {sealed:#x}");
                    return Err(Fault::new(FaultKind::Torn, what));
                }
            };
        }
        let array = Self::new(raw, flaw);
        array.mirror.replace(mirror);
        Ok(array)
    }

    fn lock(&self) {
        let bit = self.has(Flaw::LockBit);
        // Every iteration loads a word, which counts as a step.
        while bit && self.raw.load(LOCK) != 0 || self.locked.get() {
            self.raw.load(COUNTER);
            give_way();
        }
        self.locked.set(true);
        if bit {
            self.raw.store(LOCK, 1);
        }
    }

    fn unlock(&self) {
        if self.has(Flaw::LockBit) {
            self.raw.store(LOCK, 0);
        }
        self.locked.set(false);
    }

    /// Appends an entry, or a tombstone.
    fn append(&self, key: u64, value: Option<u64>) -> Result<(), String> {
        let raw = &self.raw;
        let counter = raw.load(COUNTER);
        let (i, keys) = (counter & 0xFFFF_FFFF, counter >> 32);
        if i == MAX_ENTRIES {
            return Err(format!("all {MAX_ENTRIES} entries are used"));
        }
        let before = self.mirror.borrow().get(&key).copied();
        let keys = keys + u64::from(value.is_some()) - u64::from(before.is_some());
        let counter = (i + 1) | (keys << 32);
        if self.has(Flaw::VisibleFirst) {
            self.show(key, value);
        }
        let segment = i / SEGMENT;
        let place = DIRECTORY + segment * 16;
        if i.is_multiple_of(SEGMENT) {
            let offset = segment_at(segment);
            raw.store(place, mix(offset, 0));
            if !self.has(Flaw::SameLine) {
                // PERSIST: the check word is durable no later than the offset, in their one line.
                raw.pm.store_fence();
            }
            raw.store(place + 8, offset);
            if !self.has(Flaw::SegmentLater) {
                // PERSIST: the segment's place, before the counter counts an entry in it.
                raw.flush(place, 16);
            }
        }
        if self.has(Flaw::CounterFirst) {
            raw.pm.fence();
            raw.publish(COUNTER, counter);
        }
        let at = segment_at(segment) + i % SEGMENT * ENTRY;
        raw.store(at, key);
        raw.store(at + 8, value.unwrap_or(0));
        raw.store(at + 16, seal(key, value));
        if self.has(Flaw::WrongLine) {
            raw.flush(at + 128, ENTRY as usize);
        } else if self.has(Flaw::FirstLineOnly) {
            raw.flush(at, 8);
        } else if !self.has(Flaw::NoFence) {
            // PERSIST: the entry, before the counter that counts it.
            raw.flush(at, ENTRY as usize);
        }
        raw.pm.fence();
        if self.has(Flaw::NoFence) {
            raw.flush(at, ENTRY as usize);
        }
        if self.has(Flaw::TwoWords) {
            raw.store(KEYS, keys);
            raw.flush(KEYS, 8);
        }
        // PERSIST: (in `publish`) the entry counts.
        raw.publish(COUNTER, counter);
        if self.has(Flaw::SegmentLater) {
            raw.flush(place, 16);
            raw.pm.fence();
        }
        self.show(key, value);
        Ok(())
    }

    /// Shows readers an entry.
    fn show(&self, key: u64, value: Option<u64>) {
        let mut mirror = self.mirror.borrow_mut();
        match value {
            Some(value) => mirror.insert(key, value),
            None => mirror.remove(&key),
        };
    }

    fn change(&self, op: &Op) -> Result<Reply, String> {
        let there = |key| self.mirror.borrow().contains_key(&key);
        match *op {
            Op::Insert(key, _) if there(key) => return Ok(Reply::Refused),
            Op::Update(key, _) | Op::Remove(key) if !there(key) => return Ok(Reply::Refused),
            Op::Insert(key, value) | Op::Upsert(key, value) | Op::Update(key, value) => {
                self.append(key, Some(value))?;
            }
            Op::Remove(key) => self.append(key, None)?,
            Op::Batch {
                first,
                step,
                count,
                value,
            } => {
                for key in super::super::batch_keys(first, step, count) {
                    if !there(key) {
                        self.append(key, Some(value))?;
                    }
                }
            }
            Op::Get(_) | Op::Compact | Op::Reopen => {}
        }
        Ok(Reply::Done)
    }
}

impl Live for Array {
    fn apply(&self, op: &Op) -> Result<Reply, Fault> {
        if let Op::Get(key) = op {
            return Ok(Reply::Found(self.mirror.borrow().get(key).copied()));
        }
        self.lock();
        let done = self.change(op);
        self.unlock();
        done.map_err(|what| Fault::new(FaultKind::Progress, format!("{op:?}: {what}")))
    }

    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault> {
        for (key, value) in self.mirror.borrow().iter() {
            each(*key, *value);
        }
        Ok(())
    }

    fn verify(&self) -> Result<(), Fault> {
        let counted = if self.has(Flaw::TwoWords) {
            self.raw.load(KEYS)
        } else {
            self.raw.load(COUNTER) >> 32
        };
        let keys = self.mirror.borrow().len() as u64;
        if counted == keys {
            Ok(())
        } else {
            let what = format!("{keys} keys, {counted} counted");
            Err(Fault::new(FaultKind::Structure, what))
        }
    }

    fn close(self: Box<Self>) -> Result<(), Fault> {
        // A clean close writes nothing: recovery reads all that there is.
        Ok(())
    }
}
