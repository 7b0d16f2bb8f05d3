//! Structures that test the explorer itself: two that are right, and variants that are each wrong
//! in exactly one way.
//!
//! | structure | is | file |
//! | --- | --- | --- |
//! | `reference-array` | an append-only array of entries and a counter | `array.rs` |
//! | `reference-blocks` | a table of pointers to blocks from a bitmap, with a redo log | `blocks.rs` |
//!
//! [`FLAWS`] lists the flaw of each variant and the report that the explorer must give. Its numbers
//! are those of the [known mistakes](super#known-mistakes), and 0 for a flaw that is not among
//! them.
//!
//! Both structures lie on the bare medium, without a pool, so that nothing else can be wrong.

mod array;
mod blocks;

use crate::subject::{Fault, FaultKind, Live, Opened, Subject};
use bristlecone_pmem::media::sim::Model;
use bristlecone_pmem::media::{MediaOptions, Sim};
use bristlecone_pmem::{Access, Media, PWord};
use std::path::Path;
use std::sync::atomic::Ordering;

/// The flaw of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flaw {
    /// Array (1): the counter is published before the entry that it counts is written.
    CounterFirst,
    /// Array (2): the entry is flushed after the fence, so nothing orders it before the counter.
    NoFence,
    /// Array (3): a line behind the entry is flushed instead of the entry's.
    WrongLine,
    /// Array (4): only the first line of an entry is flushed, also where it crosses into the next.
    FirstLineOnly,
    /// Array (5): the header's magic number is not flushed.
    HeaderNotFlushed,
    /// Blocks (6): the allocator's bitmap is not flushed when a block is taken.
    BitmapNotFlushed,
    /// Blocks (7): pointer and bitmap are cleared with a flush each but one fence for both.
    OneFenceForTwo,
    /// Array (8): one field of the header is not flushed.
    FieldForgotten,
    /// Array (9): the number of keys is a word beside the counter, as if both changed in one step.
    TwoWords,
    /// Blocks (11): an entry is moved by deleting, then inserting it.
    DeleteThenInsert,
    /// Blocks (12): a removal stops at the first of the two copies that an interrupted move left.
    OneOfTwo,
    /// Blocks (13): two words of a block are replaced in place, without the log.
    TwoStores,
    /// Array (14): readers are shown an entry before it is durable.
    VisibleFirst,
    /// Array (15): an entry counts before the directory leads to its segment.
    SegmentLater,
    /// Array (16): a lock bit beside the counter is not cleared by recovery.
    LockBit,
    /// Blocks (17): log records stand closer than they are long.
    CloseRecords,
    /// Blocks (18): recovery does not free a block that never got an owner.
    Leak,
    /// Blocks (18): a block is free before the pointer to it is cleared.
    FreeFirst,
    /// Array (13): the code assumes that two stores to one line are ordered, which holds on x86
    /// only.
    SameLine,
    /// Blocks: recovery clears the log before the replayed stores are durable.
    LogClearedFirst,
}

/// A flaw, and the report that it must give.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The flaw.
    pub flaw: Flaw,
    /// Its name, after the structure's and a colon.
    pub name: &'static str,
    /// Number in the list of [known mistakes](super#known-mistakes); 0 if it is not in it.
    pub errata: u8,
    /// The kind of fault that the explorer must report, and no other.
    pub kind: FaultKind,
    /// The models (`x86-tso`, `armv8`, `eadr`) under which it shows.
    pub shows: [bool; 3],
    /// Number of threads that it takes.
    pub threads: u8,
    /// True if it takes a crash inside recovery.
    pub nested: bool,
    array: bool,
}

impl Known {
    /// Returns true if the flaw shows under `model`.
    #[must_use]
    pub fn shows_on(&self, model: Model) -> bool {
        self.shows[match model {
            Model::X86Tso => 0,
            Model::ArmV8 => 1,
            Model::Eadr => 2,
        }]
    }

    /// Returns the variant's full name.
    #[must_use]
    pub fn subject(&self) -> String {
        format!("{}:{}", structure(self.array), self.name)
    }
}

fn structure(array: bool) -> &'static str {
    if array {
        "reference-array"
    } else {
        "reference-blocks"
    }
}

const ALL: [bool; 3] = [true; 3];
/// Models in which a missing or misplaced flush shows: not where caches are durable.
const CACHED: [bool; 3] = [true, true, false];

const fn known(
    flaw: Flaw,
    name: &'static str,
    array: bool,
    errata: u8,
    kind: FaultKind,
    shows: [bool; 3],
) -> Known {
    Known {
        flaw,
        name,
        errata,
        kind,
        shows,
        threads: if matches!(flaw, Flaw::VisibleFirst) {
            2
        } else {
            1
        },
        nested: matches!(flaw, Flaw::LogClearedFirst),
        array,
    }
}

use FaultKind as F;

/// All flaws.
#[rustfmt::skip]
pub const FLAWS: [Known; 20] = [
    known(Flaw::CounterFirst,     "counter-first",      true,   1, F::Torn,                 ALL),
    known(Flaw::NoFence,          "no-fence",           true,   2, F::Torn,                 CACHED),
    known(Flaw::WrongLine,        "wrong-line",         true,   3, F::Torn,                 CACHED),
    known(Flaw::FirstLineOnly,    "first-line-only",    true,   4, F::Torn,                 CACHED),
    known(Flaw::HeaderNotFlushed, "header-not-flushed", true,   5, F::Lost,                 CACHED),
    known(Flaw::BitmapNotFlushed, "bitmap-not-flushed", false,  6, F::Leak,                 CACHED),
    known(Flaw::OneFenceForTwo,   "one-fence-for-two",  false,  7, F::Leak,                 CACHED),
    known(Flaw::FieldForgotten,   "field-forgotten",    true,   8, F::Recovery,             CACHED),
    known(Flaw::TwoWords,         "two-words",          true,   9, F::Structure,            ALL),
    known(Flaw::DeleteThenInsert, "delete-then-insert", false, 11, F::Lost,                 ALL),
    known(Flaw::OneOfTwo,         "one-of-two",         false, 12, F::Progress,             ALL),
    known(Flaw::TwoStores,        "two-stores",         false, 13, F::Torn,                 ALL),
    known(Flaw::VisibleFirst,     "visible-first",      true,  14, F::VisibleBeforeDurable, ALL),
    known(Flaw::SegmentLater,     "segment-later",      true,  15, F::Recovery,             CACHED),
    known(Flaw::LockBit,          "lock-bit",           true,  16, F::Progress,             ALL),
    known(Flaw::CloseRecords,     "close-records",      false, 17, F::Recovery,             ALL),
    known(Flaw::Leak,             "leak",               false, 18, F::Leak,                 ALL),
    known(Flaw::FreeFirst,        "free-first",         false, 18, F::Leak,                 ALL),
    known(Flaw::SameLine,         "same-line",          true,  13, F::Recovery, [false, true, false]),
    known(Flaw::LogClearedFirst,  "log-cleared-first",  false,  0, F::Torn,                 CACHED),
];

/// A reference structure, right or with one flaw.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    array: bool,
    flaw: Option<Flaw>,
}

impl Reference {
    /// Returns the array without a flaw.
    #[must_use]
    pub fn array() -> Self {
        Self {
            array: true,
            flaw: None,
        }
    }

    /// Returns the table of blocks without a flaw.
    #[must_use]
    pub fn blocks() -> Self {
        Self {
            array: false,
            flaw: None,
        }
    }

    /// Returns the variant with this flaw.
    #[must_use]
    pub fn flawed(flaw: Flaw) -> Self {
        let array = FLAWS.iter().any(|known| known.flaw == flaw && known.array);
        Self {
            array,
            flaw: Some(flaw),
        }
    }
}

impl Subject for Reference {
    fn takes_dirty(&self) -> bool {
        false
    }

    fn name(&self) -> String {
        match FLAWS.iter().find(|known| Some(known.flaw) == self.flaw) {
            Some(known) => known.subject(),
            None => structure(self.array).into(),
        }
    }

    fn capacity(&self) -> u64 {
        array::BYTES.max(blocks::BYTES)
    }

    fn create(&self) -> Result<Box<dyn Live>, Fault> {
        let raw = Raw::open(Access::Create)?;
        Ok(if self.array {
            Box::new(array::Array::create(raw, self.flaw))
        } else {
            Box::new(blocks::Blocks::create(raw, self.flaw))
        })
    }

    fn open(&self) -> Result<Opened, Fault> {
        let raw = Raw::open(Access::ReadWrite)?;
        if raw.pm.keeps_unflushed() {
            raw.write_back();
        }
        // ORDERING: Relaxed; no other thread has opened the structure yet.
        if raw.pm.is_empty() || raw.word(MAGIC).load(&raw.pm, Ordering::Relaxed) != MADE {
            return Ok(Opened::Absent);
        }
        Ok(Opened::Live(if self.array {
            Box::new(array::Array::recover(raw, self.flaw)?)
        } else {
            Box::new(blocks::Blocks::recover(raw, self.flaw)?)
        }))
    }

    fn concurrent(&self) -> bool {
        self.array
    }

    fn max_key(&self) -> u64 {
        if self.array {
            u64::MAX
        } else {
            blocks::KEYS - 1
        }
    }
}

/// Place of the magic number.
const MAGIC: u64 = 0;
/// The magic number of an existing structure.
const MADE: u64 = u64::from_le_bytes(*b"REFERNCE");

/// The bare medium.
struct Raw {
    pm: Sim,
}

impl Raw {
    fn open(access: Access) -> Result<Self, Fault> {
        let options = MediaOptions {
            access,
            ..MediaOptions::default()
        };
        let bytes = array::BYTES.max(blocks::BYTES);
        Sim::open(Path::new(super::PATH), bytes, &options)
            .map(|pm| Self { pm })
            .map_err(|e| Fault::new(FaultKind::Recovery, e.to_string()))
    }

    /// Returns the word at `at`, which is a place of a layout or was checked to be one.
    fn word(&self, at: u64) -> &PWord {
        debug_assert!(at.is_multiple_of(8) && at + 8 <= self.pm.len(), "{at:#x}");
        // SAFETY: 1. places are inside the medium, which `Raw::open` made as long as the layouts;
        // 2. they are 8-aligned; 3. any bits are a valid PWord; 4. `self` holds the medium, and so
        // its mapping.
        unsafe { &*self.pm.base().wrapping_add(at as usize).cast() }
    }

    #[track_caller]
    fn load(&self, at: u64) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `PWord::publish`.
        self.word(at).load(&self.pm, Ordering::Acquire)
    }

    #[track_caller]
    fn store(&self, at: u64, value: u64) {
        // ORDERING: Relaxed; the Release of a later `publish` orders the store before the word that
        // makes it count.
        self.word(at).store(&self.pm, value, Ordering::Relaxed);
    }

    /// Writes back the lines of `at..at + bytes`.
    #[track_caller]
    fn flush(&self, at: u64, bytes: usize) {
        self.pm
            .flush(self.pm.base().wrapping_add(at as usize), bytes);
    }

    /// Makes all durable that a killed process left in the caches.
    fn write_back(&self) {
        // PERSIST: all of memory, before anything is decided by it.
        self.flush(0, self.pm.len() as usize);
        self.pm.fence();
    }

    /// Zeroes and flushes the word at `at`, unless it is zero. Returns true if it was not. A
    /// creation on memory that held something else clears the words that recovery reads.
    fn clear(&self, at: u64) -> bool {
        let dirty = self.load(at) != 0;
        if dirty {
            self.store(at, 0);
            // PERSIST: the cleared word; the caller fences, before the magic number makes the
            // structure count.
            self.flush(at, 8);
        }
        dirty
    }

    /// Stores, flushes and fences a word in one durable step (NAW).
    #[track_caller]
    fn publish(&self, at: u64, value: u64) {
        self.word(at).publish(&self.pm, value);
    }
}

/// Returns a check word over two others. It is never 0.
fn mix(a: u64, b: u64) -> u64 {
    (a ^ b.rotate_left(32) ^ 0xC0DE)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(17)
        | 1
}
