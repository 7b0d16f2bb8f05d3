//! The commit slots: what makes a change of many pages count, by one store.
//!
//! ```text
//! 64 lines    stamp 50, check 12 | the same again | unused       one line a slot
//! ```
//!
//! The groups that such a change appends name a slot and the change's time stamp. They are
//! *pending* until the slot says that stamp or a later one. Stamps through one slot rise, and each
//! change has its slot for itself until it is committed; so a pending group counts if and only if
//! its stamp is at most the slot's.
//!
//! # Crash states
//! A change that was not committed leaves pending groups above their slot's stamp. The slots'
//! words at the end of a session are kept until loading has taken their heads off (`sessions`).

use super::{checked, root, sessions};
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::sync::{give_way, lock};
use bristlecone_pmem::{Heap, Media, PWord, SpaceError};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Slots of a tree.
pub(super) const SLOTS: u64 = 64;
/// Bytes of the block of slots.
pub(super) const BYTES: u64 = SLOTS * LINE as u64;

/// Places of slot words: none of another checked word.
const PLACES: u64 = 1 << 41;

/// Bits of a stamp.
pub(super) const STAMP_BITS: u32 = 50;
/// Where the slot is in the stamp's word of a group: 0 stands for none.
const SLOT_SHIFT: u32 = 52;

/// The stamp's word of a group that counts by itself, or through a slot.
pub(super) fn stamp_word(stamp: u64, slot: Option<Slot>) -> u64 {
    debug_assert!(stamp >> STAMP_BITS == 0);
    stamp | slot.map_or(0, |slot| (slot.0 + 1) << SLOT_SHIFT)
}

/// The stamp in such a word, and the slot, which may be none that there is.
pub(super) fn split_word(word: u64) -> (u64, Option<u64>) {
    (
        word & ((1 << STAMP_BITS) - 1),
        (word >> SLOT_SHIFT).checked_sub(1),
    )
}

/// A slot that the caller has for itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot(u64);

/// See the module's head.
#[derive(Debug)]
pub(super) struct Slots {
    /// The block, an offset in the pool.
    block: u64,
    free: Mutex<Vec<u64>>,
}

fn checked_word(slot: u64, copy: u64, stamp: u64) -> u64 {
    checked::marked(stamp, PLACES + slot * 2 + copy)
}

impl Slots {
    /// Makes the block of slots, all of which say 0; the caller fences.
    ///
    /// # Errors
    /// [`SpaceError`]
    pub(super) fn create<M: Media>(heap: &Heap<M>, pm: &M) -> Result<Self, SpaceError> {
        let slots = Self::at(heap.alloc(BYTES + sessions::BYTES)?.get());
        for slot in 0..SLOTS {
            for copy in 0..2 {
                // ORDERING: Relaxed; nothing leads to the block.
                slots.cell(pm, slot, copy).store(
                    pm,
                    checked_word(slot, copy, 0),
                    Ordering::Relaxed,
                );
            }
            // PERSIST: the slot, before the root leads to the block.
            pm.flush_of(slots.cell(pm, slot, 0));
        }
        Ok(slots)
    }

    /// The slots in the block at `block`.
    pub(super) fn at(block: u64) -> Self {
        Self {
            block,
            free: Mutex::new((0..SLOTS).rev().collect()),
        }
    }

    pub(super) fn block(&self) -> u64 {
        self.block
    }

    fn cell<'p, M: Media>(&self, pm: &'p M, slot: u64, copy: u64) -> &'p PWord {
        debug_assert!(slot < SLOTS && copy < 2);
        let at = self.block + slot * LINE as u64 + copy * 8;
        let at = pm.base().wrapping_add(at as usize);
        // SAFETY: 1. inside the block of `BYTES` bytes, which was allocated or checked; 2. blocks
        // are aligned to lines; 3. any bits are a valid word; 4. the mapping outlives the borrow of
        // `pm`.
        unsafe { &*at.cast::<PWord>() }
    }

    /// Takes a free slot; waits while there is none.
    pub(super) fn take(&self) -> Slot {
        loop {
            if let Some(slot) = lock(&self.free).pop() {
                return Slot(slot);
            }
            if !give_way() {
                std::thread::yield_now();
            }
        }
    }

    pub(super) fn release(&self, slot: Slot) {
        lock(&self.free).push(slot.0);
    }

    /// Commits all groups that name the slot and the stamp, durably. They are durable themselves.
    pub(super) fn commit<M: Media>(&self, pm: &M, slot: Slot, stamp: u64) {
        for copy in 0..2 {
            let word = checked_word(slot.0, copy, stamp);
            // ORDERING: Release; pairs with the Acquire of `stamp`.
            self.cell(pm, slot.0, copy)
                .store(pm, word, Ordering::Release);
        }
        // PERSIST: the slot, before the change is shown to others and acknowledged. Both copies lie
        // in one line.
        pm.flush_of(self.cell(pm, slot.0, 0));
        pm.fence();
    }

    /// The stamp of a slot: of its copies that are sound, the earlier one. So a commit counts once
    /// both are there, and goes on counting whichever of them is damaged.
    ///
    /// # Errors
    /// A message, if neither is sound.
    pub(super) fn stamp<M: Media>(&self, pm: &M, slot: u64) -> Result<u64, String> {
        let copies = [0, 1].map(|copy| {
            // ORDERING: Acquire; pairs with the Release of `commit`.
            let word = self.cell(pm, slot, copy).load(pm, Ordering::Acquire);
            checked::marked_value(word, PLACES + slot * 2 + copy)
        });
        let sound = copies.into_iter().flatten().min();
        sound.ok_or_else(|| format!("both words of commit slot {slot} fail their check"))
    }

    /// The slots that are lost, and what is wrong with each. Stamps are below `ceiling`.
    pub(super) fn lost<M: Media>(&self, pm: &M, ceiling: u64) -> Vec<(u64, String)> {
        let wrong = |slot| match self.stamp(pm, slot) {
            Ok(stamp) if stamp < ceiling => None,
            Ok(stamp) => Some(format!(
                "commit slot {slot} says {stamp}, of {ceiling} stamps"
            )),
            Err(e) => Some(e),
        };
        let lost = |slot| Some((slot, wrong(slot)?));
        (0..SLOTS).filter_map(lost).collect()
    }

    /// Makes a slot say a stamp, in memory only: the medium is open for reading.
    pub(super) fn assume<M: Media>(&self, pm: &M, slot: u64, stamp: u64) {
        for copy in 0..2 {
            // ORDERING: Relaxed; the tree is being opened.
            let word = checked_word(slot, copy, stamp);
            self.cell(pm, slot, copy).store(pm, word, Ordering::Relaxed);
        }
    }
}

const _: () = assert!(root::SLOTS < root::SEGMENTS && SLOTS < 1 << (64 - SLOT_SHIFT));
