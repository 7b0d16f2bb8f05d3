//! Recorded positions: leaves from which a recovery's walks start (LB+-Tree, section 4.2).

use super::layout::{POSITION_COUNT, POSITIONS, UNIT, offset};
use bristlecone_pmem::Media;
use bristlecone_pmem::pool::Root;
use std::sync::atomic::Ordering;

/// Splits before the first position is recorded; few on a simulated medium, whose trees are small.
pub(super) const fn first_interval<M: Media>() -> u64 {
    if M::TRACED { 2 } else { 64 }
}
/// Root words that are used for positions; few on a simulated medium, so that they are used again.
const fn slots_used<M: Media>() -> usize {
    if M::TRACED { 3 } else { POSITION_COUNT }
}

/// Which leaves are recorded as places to start a walk from. The persistent truth is in root words.
#[derive(Debug)]
pub(super) struct Positions {
    pub(super) at: [u32; POSITION_COUNT],
    /// Slots in use, in the order they were recorded.
    by_time: Vec<usize>,
    /// Slots to record into.
    spare: Vec<usize>,
    /// Splits that make one position.
    pub(super) interval: u64,
}

impl Positions {
    /// None recorded.
    pub(super) fn new<M: Media>() -> Self {
        Self {
            at: [0; POSITION_COUNT],
            by_time: Vec::new(),
            spare: (0..slots_used::<M>()).rev().collect(),
            interval: first_interval::<M>(),
        }
    }

    /// Records a leaf that a split made; its slot, if one was free.
    pub(super) fn add(&mut self, leaf: u32) -> Option<usize> {
        if self.spare.is_empty() {
            // Twice the distance from here on: every other position may be overwritten. It stays
            // valid until it is.
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

    /// Records a leaf if there is a slot to spare; its slot.
    pub(super) fn again(&mut self, leaf: u32) -> Option<usize> {
        let slot = self.spare.pop()?;
        self.at[slot] = leaf;
        self.by_time.push(slot);
        Some(slot)
    }

    /// Forgets a leaf; its slot, if it was recorded.
    pub(super) fn remove(&mut self, leaf: u32) -> Option<usize> {
        let slot = self.at.iter().position(|at| *at == leaf)?;
        self.at[slot] = 0;
        if let Some(i) = self.by_time.iter().position(|s| *s == slot) {
            self.by_time.remove(i);
            self.spare.push(slot);
        }
        Some(slot)
    }

    /// Equally spaced positions over `leaves`.
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

    /// The positions that the root words hold.
    pub(super) fn load<M: Media>(root: &Root<M>, leaves: u64) -> Self {
        let mut positions = Self {
            spare: Vec::new(),
            interval: (leaves / slots_used::<M>() as u64 * 2).max(first_interval::<M>()),
            ..Self::new::<M>()
        };
        for (slot, off) in recorded(root).into_iter().enumerate() {
            match u32::try_from(off / UNIT) {
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
            if word.load(pm, Ordering::Relaxed) != offset(*leaf) {
                word.store(pm, offset(*leaf), Ordering::Relaxed);
                // PERSIST: the position; any subset of them is valid, so one fence does for all.
                pm.flush_of(word);
            }
        }
        pm.fence();
    }
}

pub(super) fn recorded<M: Media>(root: &Root<M>) -> [u64; POSITION_COUNT] {
    // ORDERING: Relaxed; the tree is being opened.
    std::array::from_fn(|i| {
        root.word(POSITIONS + i)
            .load(root.pool().pm(), Ordering::Relaxed)
    })
}
