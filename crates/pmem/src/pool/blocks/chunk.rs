//! Volatile state of the chunks that are cut into blocks.

use super::Freed;
use crate::format::classes::CLASSES;
use crate::format::layout::CHUNK;
use crossbeam_epoch::Guard;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Class number of a run: one block that takes whole chunks.
pub(crate) const RUN: u8 = u8::MAX;

/// Which blocks of a chunk are in use.
///
/// `live` has a bit for every block that the structure holds; `taken` also counts blocks in
/// caches and blocks waiting for readers to leave. `live` is a subset of `taken`.
#[derive(Debug)]
pub(crate) struct ChunkState {
    pub class: u8,
    /// Bytes of one block.
    pub block_bytes: u64,
    /// Blocks in the chunk.
    pub blocks: u32,
    /// Chunks that the block takes: 1 unless it is a run.
    pub chunks: u32,
    bits: Bits,
    /// Blocks not taken. Changed under the class lock only.
    pub untaken: AtomicU32,
    /// It is being emptied. Changed under the class lock only.
    closed: AtomicBool,
    /// When its free blocks were freed, and the chunk before it was the root's.
    pub freed: Freed,
}

/// The live bits of all blocks, then the taken bits.
#[derive(Debug)]
enum Bits {
    /// Of 64 blocks or fewer, in the state itself: openings touch all of them.
    Few([AtomicU64; 2]),
    Many(Box<[AtomicU64]>),
}

impl Bits {
    fn of(blocks: u32) -> Self {
        match blocks.div_ceil(64) as usize {
            0 | 1 => Self::Few([const { AtomicU64::new(0) }; 2]),
            words => Self::Many((0..words * 2).map(|_| AtomicU64::new(0)).collect()),
        }
    }

    #[inline]
    fn split(&self) -> (&[AtomicU64], &[AtomicU64]) {
        match self {
            Self::Few(words) => words.split_at(1),
            Self::Many(words) => words.split_at(words.len() / 2),
        }
    }
}

impl ChunkState {
    pub(crate) fn blocks_of(class: u8) -> Self {
        let block_bytes = CLASSES[usize::from(class)];
        Self::new(class, block_bytes, (CHUNK / block_bytes) as u32, 1)
    }

    pub(crate) fn run(chunks: u32) -> Self {
        Self::new(RUN, u64::from(chunks) * CHUNK, 1, chunks)
    }

    fn new(class: u8, block_bytes: u64, blocks: u32, chunks: u32) -> Self {
        Self {
            class,
            block_bytes,
            blocks,
            chunks,
            bits: Bits::of(blocks),
            untaken: AtomicU32::new(blocks),
            closed: AtomicBool::new(false),
            freed: Freed::default(),
        }
    }

    #[inline]
    fn live(&self) -> &[AtomicU64] {
        self.bits.split().0
    }

    #[inline]
    fn taken(&self) -> &[AtomicU64] {
        self.bits.split().1
    }

    /// Returns true if none of its blocks may be handed out.
    pub(crate) fn is_closed(&self) -> bool {
        // ORDERING: Relaxed; a hint where the class lock is not held.
        self.closed.load(Ordering::Relaxed)
    }

    pub(crate) fn set_closed(&self, closed: bool) {
        // ORDERING: Relaxed; as above.
        self.closed.store(closed, Ordering::Relaxed);
    }

    /// Marks `block` live. Returns false if it was live.
    // ORDERING (all bit operations here): Relaxed; a block's owner hands it on through the
    // structure, whose own synchronisation orders these.
    pub(crate) fn set_live(&self, block: u32) -> bool {
        let bit = 1 << (block % 64);
        self.live()[block as usize / 64].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Marks `block` not live. Returns false if it was not live.
    pub(crate) fn clear_live(&self, block: u32) -> bool {
        let bit = 1 << (block % 64);
        self.live()[block as usize / 64].fetch_and(!bit, Ordering::Relaxed) & bit != 0
    }

    pub(crate) fn is_live(&self, block: u32) -> bool {
        self.live()[block as usize / 64].load(Ordering::Relaxed) & 1 << (block % 64) != 0
    }

    pub(crate) fn live_blocks(&self) -> u32 {
        self.live()
            .iter()
            .map(|word| word.load(Ordering::Relaxed).count_ones())
            .sum()
    }

    /// Takes up to `most` blocks, lowest address first. Under the class lock.
    pub(crate) fn take(&self, most: usize, mut each: impl FnMut(u32)) {
        let mut got = 0;
        for (i, word) in self.taken().iter().enumerate() {
            let mut bits = word.load(Ordering::Relaxed);
            while got < most {
                let block = i as u32 * 64 + (!bits).trailing_zeros();
                if bits == u64::MAX || block >= self.blocks {
                    break;
                }
                bits |= 1 << (block % 64);
                got += 1;
                each(block);
            }
            word.store(bits, Ordering::Relaxed);
        }
        self.untaken.fetch_sub(got as u32, Ordering::Relaxed);
    }

    /// Gives `block` back. Under the class lock. Returns how many are untaken now.
    pub(crate) fn give_back(&self, block: u32) -> u32 {
        let bit = 1 << (block % 64);
        let before = self.taken()[block as usize / 64].fetch_and(!bit, Ordering::Relaxed);
        debug_assert!(before & bit != 0, "block {block} given back twice");
        self.untaken.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// After recovery: exactly the live blocks are taken.
    pub(crate) fn settle(&self) {
        for (taken, live) in self.taken().iter().zip(self.live()) {
            taken.store(live.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.untaken
            .store(self.blocks - self.live_blocks(), Ordering::Relaxed);
    }

    /// Checks that every live block is taken, and that the untaken ones are counted.
    ///
    /// # Errors
    /// The reason in words.
    pub(crate) fn verify(&self) -> Result<(), String> {
        let mut taken = 0;
        for (i, (word, live)) in self.taken().iter().zip(self.live()).enumerate() {
            let (word, live) = (word.load(Ordering::Relaxed), live.load(Ordering::Relaxed));
            if live & !word != 0 {
                return Err(format!("live and free blocks in {i}: {:#x}", live & !word));
            }
            taken += word.count_ones();
        }
        let untaken = self.untaken.load(Ordering::Relaxed);
        if taken + untaken == self.blocks {
            Ok(())
        } else {
            Err(format!(
                "{taken} blocks taken and {untaken} untaken of {}",
                self.blocks
            ))
        }
    }

    /// Returns the live bits, for a snapshot.
    pub(crate) fn live_words(&self) -> impl Iterator<Item = u64> + '_ {
        self.live().iter().map(|word| word.load(Ordering::Relaxed))
    }

    /// Sets the live bits from a snapshot. Returns false if a bit lies past the last block.
    pub(crate) fn load_live(&self, words: impl Iterator<Item = u64>) -> bool {
        let mut whole = true;
        for (i, (word, value)) in self.live().iter().zip(words).enumerate() {
            let here = (self.blocks - i as u32 * 64).min(64);
            whole &= here == 64 || value >> here == 0;
            word.store(value, Ordering::Relaxed);
        }
        whole
    }

    /// DRAM bytes of this state.
    pub(crate) fn dram_bytes(&self) -> u64 {
        let words = match &self.bits {
            Bits::Few(_) => 0,
            Bits::Many(words) => words.len(),
        };
        (size_of::<Self>() + words * 8) as u64
    }
}

/// Chunks whose states lie together: those of one region.
const SEGMENT: usize = 1024;

type Segment = [AtomicPtr<ChunkState>; SEGMENT];

/// The states of a root's chunks, by chunk number.
///
/// A table of segments, as long as the pool could become; a segment is made when one of its chunks
/// first gets a state, and stays.
#[derive(Debug)]
pub(crate) struct ChunkStates {
    segments: Box<[AtomicPtr<Segment>]>,
}

impl ChunkStates {
    /// Returns a table for `chunks` chunks.
    pub(crate) fn new(chunks: usize) -> Self {
        let segments = chunks.div_ceil(SEGMENT);
        // SAFETY: all zeros is a valid AtomicPtr (null).
        let segments = unsafe { Box::new_zeroed_slice(segments).assume_init() };
        Self { segments }
    }

    /// Returns the place of a chunk's state, if its segment exists.
    #[inline]
    fn place(&self, chunk: u32) -> Option<&AtomicPtr<ChunkState>> {
        let segment = self.segments.get(chunk as usize / SEGMENT)?;
        // ORDERING: Acquire; pairs with the Release in `make`.
        let segment = segment.load(Ordering::Acquire);
        // SAFETY: 1. a non-null pointer came from `Box::into_raw` in `make`; 2. only `drop` frees
        // segments, when nothing borrows this value.
        let segment = unsafe { segment.as_ref() }?;
        Some(&segment[chunk as usize % SEGMENT])
    }

    /// Returns the place of a chunk's state, in a segment that is made if it does not exist.
    fn make(&self, chunk: u32) -> &AtomicPtr<ChunkState> {
        if let Some(place) = self.place(chunk) {
            return place;
        }
        // SAFETY: all zeros is a valid AtomicPtr (null).
        let new: Box<Segment> = unsafe { Box::new_zeroed().assume_init() };
        let new = Box::into_raw(new);
        // ORDERING: Release pairs with the Acquire in `place`; Acquire on failure, for what another
        // thread has made meanwhile.
        let made = self.segments[chunk as usize / SEGMENT].compare_exchange(
            std::ptr::null_mut(),
            new,
            Ordering::Release,
            Ordering::Acquire,
        );
        let segment = match made {
            Ok(_) => new,
            Err(theirs) => {
                // SAFETY: 1. `new` came from `Box::into_raw` above; 2. no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                theirs
            }
        };
        // SAFETY: 1. not null: it is `new`, or what another thread's exchange has put there, and
        // both came from `Box::into_raw`; 2. only `drop` frees segments, when nothing borrows this
        // value.
        unsafe { &(&*segment)[chunk as usize % SEGMENT] }
    }

    /// Returns the state of `chunk`, if it has one. The guard keeps it alive.
    #[inline]
    pub(crate) fn get<'g>(&self, chunk: u32, _guard: &'g Guard) -> Option<&'g ChunkState> {
        // ORDERING: Acquire; pairs with the Release in `set`.
        let state = self.place(chunk)?.load(Ordering::Acquire);
        // SAFETY: 1. a non-null pointer came from `Box::into_raw` in `set`; 2. it is freed only
        // through the epoch, and the guard was pinned before it was loaded.
        unsafe { state.as_ref() }
    }

    /// Replaces the state of `chunk`.
    pub(crate) fn set(&self, chunk: u32, state: Option<ChunkState>, guard: &Guard) {
        let new = state.map_or(std::ptr::null_mut(), |state| Box::into_raw(Box::new(state)));
        // ORDERING: AcqRel; Release pairs with `get`, Acquire lets the old state be freed.
        let old = self.make(chunk).swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: 1. `old` came from `Box::into_raw`; 2. no thread can load it any more, and
            // those that did are pinned until the deferred drop runs; 3. `swap` gives it to this
            // thread alone.
            unsafe { guard.defer_unchecked(move || drop(Box::from_raw(old))) };
        }
    }
}

impl Drop for ChunkStates {
    fn drop(&mut self) {
        for segment in &mut self.segments {
            let segment = *segment.get_mut();
            if segment.is_null() {
                continue;
            }
            // SAFETY: 1. it came from `Box::into_raw` in `make`; 2. `&mut self`: nothing borrows
            // it.
            let mut segment = unsafe { Box::from_raw(segment) };
            for state in segment.iter_mut() {
                let state = *state.get_mut();
                if !state.is_null() {
                    // SAFETY: 1. it came from `Box::into_raw` in `set`; 2. `&mut self`: no other
                    // thread can load it, and it was never handed to the epoch.
                    drop(unsafe { Box::from_raw(state) });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::classes::class_of;

    #[test]
    fn blocks_are_taken_from_the_lowest_one_on() {
        for bytes in [48, 1024, 4096, 32_768] {
            let state = ChunkState::blocks_of(class_of(bytes).unwrap());
            let mut taken = Vec::new();
            for most in [1, 70, 0, 10_000] {
                state.take(most, |block| taken.push(block));
            }
            let all: Vec<u32> = (0..(CHUNK / bytes) as u32).collect();
            assert_eq!(taken, all);
            assert_eq!(state.untaken.load(Ordering::Relaxed), 0);
            let last = state.blocks - 1;
            assert_eq!(state.give_back(last), 1);
            assert_eq!(state.give_back(0), 2);
            let mut again = Vec::new();
            state.take(5, |block| again.push(block));
            assert_eq!(again, [0, last]);
            state.verify().unwrap();
        }
    }

    #[test]
    fn a_state_that_contradicts_itself_is_found() {
        let state = ChunkState::blocks_of(class_of(256).unwrap());
        assert_eq!(state.blocks, 256);
        state.take(130, |_| ());
        for block in [0, 64, 129] {
            assert!(state.set_live(block));
        }
        state.verify().unwrap();
        // A live block that may be handed out.
        state.set_live(130);
        let told = state.verify().unwrap_err();
        assert_eq!(told, "live and free blocks in 2: 0x4");
        state.clear_live(130);
        state.verify().unwrap();
        // Blocks that are counted wrong.
        state.untaken.fetch_sub(1, Ordering::Relaxed);
        let told = state.verify().unwrap_err();
        assert_eq!(told, "130 blocks taken and 125 untaken of 256");
        state.settle();
        state.verify().unwrap();
        assert_eq!(state.untaken.load(Ordering::Relaxed), 256 - 3);
    }

    #[test]
    fn saved_bits_behind_the_last_block_are_refused() {
        for bytes in [48, 192, 256, 768, 1024, 4096] {
            let state = ChunkState::blocks_of(class_of(bytes).unwrap());
            let words = state.blocks.div_ceil(64) as usize;
            let last = state.blocks - 1;
            for bit in 0..words as u32 * 64 {
                let mut saved = vec![0; words];
                saved[bit as usize / 64] |= 1 << (bit % 64);
                let loaded = state.load_live(saved.iter().copied());
                assert_eq!(loaded, bit <= last, "block {bit} of {}", state.blocks);
                if loaded {
                    assert!(state.live_words().eq(saved));
                    assert!(state.is_live(bit));
                    assert_eq!(state.live_blocks(), 1);
                }
            }
        }
    }
}
