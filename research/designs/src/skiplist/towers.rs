//! The place of the upper levels, in which the designs differ.
//!
//! | | a tower is | named by |
//! | --- | --- | --- |
//! | [`InPool`] | the node itself, with links behind its 32 bytes | the node's offset |
//! | [`InDram`] | an element in DRAM | its place in the arena, in bytes |
//!
//! ```text
//! tower in DRAM | key word | offset of its node | links of levels 1 .. height - 1 |
//! ```
//!
//! The upper levels are volatile in both designs: they only shorten the search, and recovery links
//! them anew from the bottom list. So [`InPool`] neither flushes nor fences their links, and uses
//! none of them after a crash.
//!
//! # Invariants
//! 1. A tower in DRAM is handed out once until it is freed, through the epoch collector if it was
//!    ever linked. Its memory always holds towers and is never unmapped while the list is open.
//! 2. Towers lie in segments, each twice as large as the one before, and none crosses a segment's
//!    end.

use super::node::{MAX_HEIGHT, NODE_BYTES, Nodes};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace};
use bristlecone_pmem::sync::lock;
use crossbeam_epoch::Guard;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The links of the upper levels. A tower's name is a multiple of 8; 0 is none.
pub trait Towers<M: Media>: Send + Sync + Sized + 'static {
    /// Name of the design in the root table.
    const DESIGN: &'static str;

    /// Returns an instance without towers.
    fn new() -> Self;

    /// Returns the bytes of the block of a node of this height.
    fn node_bytes(height: usize) -> u64;

    /// Makes the tower of a node that is higher than one level. Its links are still to be set.
    fn make(&self, node: u64, key: u64, height: usize) -> u64;

    /// Frees a tower that was never linked.
    fn discard(&self, tower: u64);

    /// Frees an unlinked tower once pinned searches have left it.
    fn retire(&self, tower: u64, guard: &Guard);

    /// Returns the word of the tower's key.
    fn key(&self, nodes: &Nodes<M>, tower: u64) -> u64;

    /// Returns the tower's node.
    fn node(&self, tower: u64) -> u64;

    /// Returns the tower's link of an upper level, with its mark.
    fn link(&self, nodes: &Nodes<M>, tower: u64, level: usize) -> u64;

    /// Sets the tower's link of an upper level.
    fn set_link(&self, nodes: &Nodes<M>, tower: u64, level: usize, to: u64);

    /// Prefetches what a search reads of a tower.
    fn prefetch(&self, nodes: &Nodes<M>, tower: u64);

    /// Returns the number of towers handed out, where they are counted, and the bytes taken in
    /// DRAM.
    fn usage(&self) -> (Option<u64>, u64);
}

/// Towers in the pool, in their nodes: the original skip list, wherever the pool is.
#[derive(Clone, Copy, Debug, Default)]
pub struct InPool;

impl<M: Media> Towers<M> for InPool {
    const DESIGN: &'static str = "skiplist-nvm";

    fn new() -> Self {
        Self
    }

    fn node_bytes(height: usize) -> u64 {
        NODE_BYTES + 8 * (height as u64 - 1)
    }

    #[inline(always)]
    fn make(&self, node: u64, _key: u64, _height: usize) -> u64 {
        node
    }

    #[inline(always)]
    fn discard(&self, _tower: u64) {}

    #[inline(always)]
    fn retire(&self, _tower: u64, _guard: &Guard) {}

    #[inline(always)]
    fn key(&self, nodes: &Nodes<M>, tower: u64) -> u64 {
        nodes.key(tower)
    }

    #[inline(always)]
    fn node(&self, tower: u64) -> u64 {
        tower
    }

    #[inline(always)]
    fn link(&self, nodes: &Nodes<M>, tower: u64, level: usize) -> u64 {
        // ORDERING: Acquire; pairs with the Release store of `set_link`.
        nodes
            .upper(tower, level)
            .load(nodes.pm(), Ordering::Acquire)
    }

    #[inline(always)]
    fn set_link(&self, nodes: &Nodes<M>, tower: u64, level: usize, to: u64) {
        // Not flushed, since recovery sets every link of the upper levels anew. ORDERING: Release;
        // pairs with the Acquire load of `link`.
        nodes
            .upper(tower, level)
            .store(nodes.pm(), to, Ordering::Release);
    }

    #[inline(always)]
    fn prefetch(&self, nodes: &Nodes<M>, tower: u64) {
        nodes.prefetch(tower);
    }

    fn usage(&self) -> (Option<u64>, u64) {
        (None, 0)
    }
}

/// Number of words in the first segment.
const FIRST: usize = 1024;
/// Number of segments: more words than an address space has.
const SEGMENTS: usize = 40;
/// Words of a tower before its links.
const HEADER: usize = 2;
/// Bits of a tower's second word that hold its node's offset; its height is above them.
const NODE_BITS: u32 = 56;

type Segment = Box<[AtomicU64]>;

struct Space {
    /// The first word that was never handed out.
    next: u64,
    /// Freed towers, by height.
    free: [Vec<u64>; MAX_HEIGHT + 1],
    /// Number of towers handed out.
    live: u64,
}

/// The arena of the towers in DRAM.
struct Arena {
    segments: [OnceLock<Segment>; SEGMENTS],
    space: Mutex<Space>,
}

/// Returns the segment of a word, and the word's place in it.
#[inline(always)]
fn split(word: u64) -> (usize, usize) {
    // Segment s begins at FIRST * (2^s - 1).
    let shifted = word / FIRST as u64 + 1;
    let segment = shifted.ilog2() as usize;
    let start = FIRST as u64 * ((1 << segment) - 1);
    (segment, (word - start) as usize)
}

impl Arena {
    fn new() -> Self {
        Self {
            segments: std::array::from_fn(|_| OnceLock::new()),
            space: Mutex::new(Space {
                // Word 0 is no tower.
                next: 1,
                free: std::array::from_fn(|_| Vec::new()),
                live: 0,
            }),
        }
    }

    #[inline(always)]
    fn word(&self, tower: u64, at: usize) -> &AtomicU64 {
        let (segment, place) = split(tower / 8);
        match self.segments[segment].get() {
            Some(words) => &words[place + at],
            None => unreachable!("tower {tower} was never handed out"),
        }
    }

    fn allocate(&self, height: usize) -> u64 {
        let mut space = lock(&self.space);
        space.live += 1;
        if let Some(tower) = space.free[height].pop() {
            return tower;
        }
        let words = HEADER + height - 1;
        let (mut segment, place) = split(space.next);
        if place + words > FIRST << segment {
            segment += 1;
            space.next = FIRST as u64 * ((1 << segment) - 1);
        }
        self.segments[segment].get_or_init(|| {
            let words = Box::new_zeroed_slice(FIRST << segment);
            // SAFETY: all zero is a valid atomic.
            unsafe { words.assume_init() }
        });
        let tower = space.next * 8;
        space.next += words as u64;
        tower
    }

    fn free(&self, tower: u64) {
        // ORDERING: Relaxed; no other thread has the tower.
        let height = self.word(tower, 1).load(Ordering::Relaxed) >> NODE_BITS;
        let mut space = lock(&self.space);
        space.live -= 1;
        space.free[height as usize].push(tower);
    }
}

/// Towers in DRAM: the divided skip list.
pub struct InDram {
    arena: Arc<Arena>,
}

impl fmt::Debug for InDram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InDram")
            .field("towers", &lock(&self.arena.space).live)
            .finish()
    }
}

impl InDram {
    #[inline(always)]
    fn touch<M: Media>(access: DramAccess, tower: u64, at: usize) {
        M::Dram::touch(DramRegion::Inner, access, tower + at as u64 * 8, 8);
    }

    #[inline(always)]
    fn load<M: Media>(&self, tower: u64, at: usize) -> u64 {
        Self::touch::<M>(DramAccess::Load, tower, at);
        // ORDERING: Acquire; pairs with the Release store of `store`.
        self.arena.word(tower, at).load(Ordering::Acquire)
    }

    #[inline(always)]
    fn store<M: Media>(&self, tower: u64, at: usize, value: u64) {
        Self::touch::<M>(DramAccess::Store, tower, at);
        // ORDERING: Release; pairs with the Acquire load of `load`.
        self.arena.word(tower, at).store(value, Ordering::Release);
    }
}

impl<M: Media> Towers<M> for InDram {
    const DESIGN: &'static str = "skiplist-divided";

    fn new() -> Self {
        Self {
            arena: Arc::new(Arena::new()),
        }
    }

    fn node_bytes(_height: usize) -> u64 {
        NODE_BYTES
    }

    fn make(&self, node: u64, key: u64, height: usize) -> u64 {
        let tower = self.arena.allocate(height);
        self.store::<M>(tower, 0, key);
        self.store::<M>(tower, 1, node | (height as u64) << NODE_BITS);
        tower
    }

    fn discard(&self, tower: u64) {
        self.arena.free(tower);
    }

    fn retire(&self, tower: u64, guard: &Guard) {
        let arena = Arc::clone(&self.arena);
        guard.defer(move || arena.free(tower));
    }

    #[inline(always)]
    fn key(&self, _nodes: &Nodes<M>, tower: u64) -> u64 {
        self.load::<M>(tower, 0)
    }

    #[inline(always)]
    fn node(&self, tower: u64) -> u64 {
        self.load::<M>(tower, 1) & ((1 << NODE_BITS) - 1)
    }

    #[inline(always)]
    fn link(&self, _nodes: &Nodes<M>, tower: u64, level: usize) -> u64 {
        self.load::<M>(tower, HEADER + level - 1)
    }

    #[inline(always)]
    fn set_link(&self, _nodes: &Nodes<M>, tower: u64, level: usize, to: u64) {
        self.store::<M>(tower, HEADER + level - 1, to);
    }

    #[inline(always)]
    fn prefetch(&self, _nodes: &Nodes<M>, tower: u64) {
        if tower != 0 {
            let word: *const AtomicU64 = self.arena.word(tower, 0);
            bristlecone_pmem::media::cpu::prefetch(word.cast(), 32);
            Self::touch::<M>(DramAccess::Prefetch, tower, 0);
        }
    }

    fn usage(&self) -> (Option<u64>, u64) {
        let space = lock(&self.arena.space);
        (Some(space.live), space.next * 8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_every_segment_are_told_apart() {
        assert_eq!(split(0), (0, 0));
        assert_eq!(split(FIRST as u64 - 1), (0, FIRST - 1));
        assert_eq!(split(FIRST as u64), (1, 0));
        assert_eq!(split(3 * FIRST as u64 - 1), (1, 2 * FIRST - 1));
        assert_eq!(split(3 * FIRST as u64), (2, 0));
    }

    #[test]
    fn towers_do_not_overlap_and_come_back() {
        let arena = Arena::new();
        let heights = (0..20_000).map(|i| 2 + i % (MAX_HEIGHT - 1));
        let mut taken = Vec::new();
        let mut before = 0;
        for height in heights {
            let tower = arena.allocate(height);
            assert!(tower >= before, "towers go upwards");
            let words = (HEADER + height - 1) as u64;
            assert_eq!(
                split(tower / 8).0,
                split(tower / 8 + words - 1).0,
                "a tower in two segments"
            );
            for at in 0..words {
                assert_eq!(
                    arena.word(tower, at as usize).load(Ordering::Relaxed),
                    0,
                    "word {at} of tower {tower} is someone else's"
                );
                arena
                    .word(tower, at as usize)
                    .store((height as u64) << NODE_BITS, Ordering::Relaxed);
            }
            taken.push((tower, height));
            before = tower + words * 8;
        }
        let (tower, height) = taken[777];
        arena.free(tower);
        assert_eq!(lock(&arena.space).live, 19_999);
        assert_eq!(arena.allocate(height), tower);
    }
}
