//! A medium that knows what is durable. A line counts as written back when it was flushed and a
//! fence followed, with its content at the flush. At every flush, fence and store fence the
//! recorder builds images that persistent memory could hold if power failed there: each line that
//! differs from its durable content may have reached memory or not.
//!
//! All subsets of up to three such lines are built. For more lines, the subsets are all, none, each
//! alone, all but one, and random sets. There is one thread, and stores of one line persist in
//! program order (x86).

use super::Rng;
use bristlecone_pmem::media::{Dram, Instrument, Untraced};
use bristlecone_pmem::{CommitError, Media, MediaOptions, MediumKind, OpenError, SpaceError};
use std::collections::HashSet;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

const LINE: usize = 64;
type Line = [u8; LINE];

/// Memory whose durable content is known.
pub struct Recorder {
    memory: Dram,
    state: Mutex<State>,
}

struct State {
    durable: Vec<u8>,
    /// Flushed and not fenced: line number, and content at the flush.
    pending: Vec<(usize, Line)>,
    images: Option<Images>,
}

/// The images that power cuts during one operation could leave.
struct Images {
    found: Vec<Vec<u8>>,
    seen: HashSet<[u32; 2]>,
    rng: Rng,
}

impl Recorder {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn line(&self, line: usize) -> Line {
        let mut bytes = [0; LINE];
        let from = self.memory.base().wrapping_add(line * LINE);
        // SAFETY: 1. callers name lines inside the mapping, which `memory` keeps alive; 2. this
        // test has one thread, so no one writes meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), LINE) };
        bytes
    }

    /// Adds the images that a power cut now could leave.
    fn power_could_fail_here(&self) {
        let state = &mut *self.state();
        let Some(images) = &mut state.images else {
            return;
        };
        let lines = state.durable.len() / LINE;
        let differ: Vec<(usize, Line)> = (0..lines)
            .map(|line| (line, self.line(line)))
            .filter(|(line, now)| state.durable[line * LINE..][..LINE] != *now)
            .collect();
        let n = differ.len();
        let all = if n >= 64 { u64::MAX } else { (1u64 << n) - 1 };
        let mut sets: Vec<u64> = if n <= 3 {
            (0..=all).collect()
        } else {
            let bits = n.min(64);
            let one = |i: usize| 1u64 << i;
            let few = (0..3)
                .map(|_| images.rng.below(bits as u64) as usize)
                .collect::<Vec<_>>();
            let mut sets = vec![0, all];
            sets.extend(few.iter().map(|i| one(*i)));
            sets.extend(few.iter().map(|i| all & !one(*i)));
            sets.extend((0..2).map(|_| images.rng.next() & all));
            sets
        };
        sets.dedup();
        for set in sets {
            let reached = |i: usize| i >= 64 && set == u64::MAX || i < 64 && set >> i & 1 == 1;
            let mut image = state.durable.clone();
            for (i, (line, now)) in differ.iter().enumerate() {
                if reached(i) {
                    image[line * LINE..][..LINE].copy_from_slice(now);
                }
            }
            let (low, high) = image.split_at(image.len() / 2);
            if images.seen.insert([low, high].map(crc32c::crc32c)) {
                images.found.push(image);
            }
        }
    }

    /// Runs `operation` and returns the images that power cuts in it could leave.
    pub fn record(&self, seed: u64, operation: impl FnOnce()) -> Vec<Vec<u8>> {
        let images = Images {
            found: Vec::new(),
            seen: HashSet::new(),
            rng: Rng::new(seed),
        };
        self.state().images = Some(images);
        self.power_could_fail_here();
        operation();
        self.power_could_fail_here();
        self.state().images.take().expect("put there above").found
    }
}

impl Instrument for Recorder {
    type Dram = Untraced;
}

// SAFETY: 1, 2, 3, 5, 6. the memory is `Dram`'s, and its methods change it; 4. images contain what
// was flushed and then fenced, and the memory itself survives nothing.
unsafe impl Media for Recorder {
    fn open(path: &Path, initial: u64, options: &MediaOptions) -> Result<Self, OpenError> {
        let memory = Dram::open(path, initial, options)?;
        let durable = vec![0; memory.len() as usize];
        Ok(Self {
            memory,
            state: Mutex::new(State {
                durable,
                pending: Vec::new(),
                images: None,
            }),
        })
    }

    fn kind(&self) -> MediumKind {
        // Medium of the pools that are opened from images.
        MediumKind::Mapped
    }

    fn flush(&self, addr: *const u8, len: usize) {
        self.power_could_fail_here();
        if len == 0 {
            return;
        }
        let at = addr.addr() - self.memory.base().addr();
        let mut state = self.state();
        for line in at / LINE..=(at + len - 1) / LINE {
            let now = self.line(line);
            state.pending.push((line, now));
        }
    }

    fn fence(&self) {
        self.power_could_fail_here();
        let state = &mut *self.state();
        for (line, bytes) in state.pending.drain(..) {
            state.durable[line * LINE..][..LINE].copy_from_slice(&bytes);
        }
    }

    fn store_fence(&self) {
        self.power_could_fail_here();
    }

    fn base(&self) -> *mut u8 {
        self.memory.base()
    }

    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn capacity(&self) -> u64 {
        self.memory.capacity()
    }

    fn grow(&self, len: u64) -> Result<(), SpaceError> {
        self.memory.grow(len)?;
        self.state().durable.resize(len as usize, 0);
        Ok(())
    }

    fn shrink(&self, len: u64) -> Result<(), SpaceError> {
        self.memory.shrink(len)?;
        self.state().durable.truncate(len as usize);
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        self.memory.punch(offset, len)?;
        self.state().durable[offset as usize..][..len as usize].fill(0);
        Ok(())
    }

    fn read_only(&self) -> bool {
        false
    }

    fn sync(&self) -> Result<(), CommitError> {
        Ok(())
    }
}
