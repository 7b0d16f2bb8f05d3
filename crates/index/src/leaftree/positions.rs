//! Recorded positions: leaves from which a recovery's walks start (LB+-Tree, section 4.2).

use super::layout::{POSITION_COUNT, POSITIONS, UNIT, offset};
use crate::link;
use bristlecone_pmem::Media;
use bristlecone_pmem::pool::Root;
use std::sync::atomic::Ordering;

/// Returns the number of splits before the first position is recorded. It is small on a simulated
/// medium, whose trees are small.
pub(super) const fn first_interval<M: Media>() -> u64 {
    if M::TRACED { 2 } else { 64 }
}
/// Returns the number of root words for positions. It is small on a simulated medium, so that they
/// are reused.
const fn slots_used<M: Media>() -> usize {
    if M::TRACED { 3 } else { POSITION_COUNT }
}

/// The leaves that are recorded as starts of a walk. Root words hold them persistently.
#[derive(Debug)]
pub(super) struct Positions {
    pub(super) at: [u32; POSITION_COUNT],
    /// Slots in use, in the order of recording.
    by_time: Vec<usize>,
    /// Free slots.
    spare: Vec<usize>,
    /// Number of splits per position.
    pub(super) interval: u64,
}

impl Positions {
    /// Returns no positions.
    pub(super) fn new<M: Media>() -> Self {
        Self {
            at: [0; POSITION_COUNT],
            by_time: Vec::new(),
            spare: (0..slots_used::<M>()).rev().collect(),
            interval: first_interval::<M>(),
        }
    }

    /// Records a leaf that a split made. Returns its slot, if one was free.
    pub(super) fn add(&mut self, leaf: u32) -> Option<usize> {
        if self.spare.is_empty() {
            // The distance doubles from here on: every other position may be overwritten, and stays
            // valid until then.
            self.interval *= 2;
            let mut kept = Vec::with_capacity(self.by_time.len());
            for (i, slot) in self.by_time.drain(..).enumerate() {
                if i % 2 == 0 {
                    kept.push(slot)
                } else {
                    self.spare.push(slot)
                }
            }
            self.by_time = kept;
        }
        self.again(leaf)
    }

    /// Records a leaf if a slot is free. Returns the slot.
    pub(super) fn again(&mut self, leaf: u32) -> Option<usize> {
        let slot = self.spare.pop()?;
        self.at[slot] = leaf;
        self.by_time.push(slot);
        Some(slot)
    }

    /// Removes a leaf. Returns its slot, if it was recorded.
    pub(super) fn remove(&mut self, leaf: u32) -> Option<usize> {
        let slot = self.at.iter().position(|at| *at == leaf)?;
        self.at[slot] = 0;
        if let Some(i) = self.by_time.iter().position(|s| *s == slot) {
            self.by_time.remove(i);
            self.spare.push(slot);
        }
        Some(slot)
    }

    /// Returns equally spaced positions over `leaves`.
    pub(super) fn spread<M: Media>(leaves: impl ExactSizeIterator<Item = u32>) -> Self {
        let mut positions = Self::new::<M>();
        let (n, least) = (leaves.len() as u64, positions.interval);
        let slots = positions.spare.len() as u64;
        positions.interval = (n / slots * 2).max(least);
        let every = n.div_ceil(slots).max(least) as usize;
        for leaf in leaves.skip(every).step_by(every) {
            let Some(slot) = positions.spare.pop() else {
                break;
            };
            positions.at[slot] = leaf;
            positions.by_time.push(slot);
        }
        positions
    }

    /// Returns the positions in the root words.
    pub(super) fn load<M: Media>(root: &Root<M>, leaves: u64) -> Self {
        let mut positions = Self {
            spare: Vec::new(),
            interval: (leaves / slots_used::<M>() as u64 * 2).max(first_interval::<M>()),
            ..Self::new::<M>()
        };
        for (slot, word) in recorded(root).into_iter().enumerate() {
            match u32::try_from(link::offset(word) / UNIT) {
                Ok(leaf) if leaf != 0 => {
                    positions.at[slot] = leaf;
                    positions.by_time.push(slot);
                }
                _ if slot < slots_used::<M>() => positions.spare.push(slot),
                _ => {}
            }
        }
        positions
    }

    /// Writes all positions to the root words.
    pub(super) fn save<M: Media>(&self, root: &Root<M>) {
        let pm = root.pool().pm();
        for (slot, leaf) in self.at.iter().enumerate() {
            let word = root.word(POSITIONS + slot);
            // ORDERING: Relaxed; read by recovery only.
            let link = link::word(offset(*leaf));
            if word.load(pm, Ordering::Relaxed) != link {
                word.store(pm, link, Ordering::Relaxed);
                // PERSIST: the position; any subset of them is valid, so one fence covers all.
                pm.flush_of(word);
            }
        }
        pm.fence();
    }
}

/// Returns the links in the root words.
pub(super) fn recorded<M: Media>(root: &Root<M>) -> [u64; POSITION_COUNT] {
    // ORDERING: Relaxed; the tree is being opened.
    std::array::from_fn(|i| {
        root.word(POSITIONS + i)
            .load(root.pool().pm(), Ordering::Relaxed)
    })
}
