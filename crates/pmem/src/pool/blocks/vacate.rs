//! Emptying chunks, so that they can go back to the pool: no block of a *closed* chunk is handed
//! out, and its owner moves those that are live.

use super::Blocks;
use super::chunk::RUN;
use crate::sync::lock;
use crossbeam_epoch::{self as epoch, Guard};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// A chunk of a root, or a run, and what it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) first: u32,
    pub(crate) chunks: u32,
    class: u8,
    live: u32,
    blocks: u32,
}

/// Which of the root's chunks to empty, such that the others take what these hold, and all are as
/// low in the pool as they can be. `end_of`: the first chunk number such that so many chunks below
/// it are the root's or free.
pub(crate) fn choose(held: &[Held], end_of: impl FnOnce(u32) -> u32) -> Vec<u32> {
    let mut classes: BTreeMap<u8, Vec<Held>> = BTreeMap::new();
    for one in held {
        classes.entry(one.class).or_default().push(*one);
    }
    let needed = |class: u8, of_class: &[Held]| match class {
        RUN => of_class.len(),
        _ => {
            let live: u64 = of_class.iter().map(|one| u64::from(one.live)).sum();
            let blocks = of_class.first().map_or(1, |one| u64::from(one.blocks));
            live.div_ceil(blocks) as usize
        }
    };
    let chunks: u32 = classes
        .iter()
        .map(|(class, of_class)| match *class {
            RUN => of_class.iter().map(|one| one.chunks).sum(),
            class => needed(class, of_class) as u32,
        })
        .sum();
    let end = end_of(chunks);
    let mut chosen = Vec::new();
    for (class, mut of_class) in classes {
        of_class.sort_unstable_by_key(|one| one.first);
        let kept = needed(class, &of_class);
        let leaves = |(i, one): &(usize, Held)| *i >= kept || one.first + one.chunks > end;
        let leaving = of_class.into_iter().enumerate().filter(leaves);
        chosen.extend(leaving.map(|(_, one)| one.first));
    }
    chosen.sort_unstable();
    chosen
}

impl Blocks {
    /// The lock of whoever empties chunks.
    pub(crate) fn turn(&self) -> &Mutex<()> {
        &self.turn
    }

    /// Returns the root's chunks and runs that hold live blocks, or could.
    pub(crate) fn held(&self) -> Vec<Held> {
        let guard = epoch::pin();
        let owned = lock(&self.owned);
        let states = owned.iter().filter_map(|chunk| {
            let state = self.chunks.get(*chunk, &guard)?;
            Some(Held {
                first: *chunk,
                chunks: state.chunks,
                class: state.class,
                live: state.live_blocks(),
                blocks: state.blocks,
            })
        });
        states.collect()
    }

    /// Closes chunks: none of their blocks is handed out until [`reopen`](Self::reopen). One
    /// without live blocks waits to go back to the pool as soon as none of them is in a cache, or
    /// still read.
    pub(crate) fn close(&self, chosen: &[u32]) {
        let guard = epoch::pin();
        for &chunk in chosen {
            let Some(state) = self.chunks.get(chunk, &guard) else {
                continue;
            };
            if state.class == RUN {
                state.set_closed(true);
                continue;
            }
            let mut partial = lock(&self.partial[usize::from(state.class)]);
            // It may have gone back, and come again, before the lock was there.
            let now = self.chunks.get(chunk, &guard);
            if now.is_none_or(|now| !std::ptr::eq(now, state)) {
                continue;
            }
            let listed = partial.len();
            partial.retain(|other| *other != chunk);
            // ORDERING: Relaxed; under the class lock.
            let untaken = state.untaken.load(Ordering::Relaxed);
            if untaken == state.blocks {
                // It waits already, unless it was the one that is kept.
                if partial.len() < listed {
                    self.queue_empty(chunk);
                }
            } else {
                state.set_closed(true);
            }
        }
        // Blocks that come back from now on bypass the caches. These give back what they have.
        self.empty_caches();
    }

    /// Takes all closed chunks into use again.
    pub(crate) fn reopen(&self) {
        let guard = epoch::pin();
        let owned = lock(&self.owned).clone();
        for chunk in owned {
            let Some(state) = self.chunks.get(chunk, &guard).filter(|s| s.is_closed()) else {
                continue;
            };
            if state.class == RUN {
                state.set_closed(false);
                continue;
            }
            let mut partial = lock(&self.partial[usize::from(state.class)]);
            state.set_closed(false);
            // ORDERING: Relaxed; under the class lock.
            let untaken = state.untaken.load(Ordering::Relaxed);
            // One without a taken block waits already.
            if untaken > 0 && untaken < state.blocks {
                partial.push(chunk);
            }
        }
    }

    /// Takes closed chunks of a class into use again that have free blocks: there is no other
    /// space. The caller holds the class's lock, and has its list.
    pub(super) fn reopen_class(&self, class: u8, partial: &mut Vec<u32>, guard: &Guard) {
        for &chunk in lock(&self.owned).iter() {
            let state = self.chunks.get(chunk, guard);
            let Some(state) = state.filter(|state| state.class == class && state.is_closed())
            else {
                continue;
            };
            // ORDERING: Relaxed; under the class lock.
            let untaken = state.untaken.load(Ordering::Relaxed);
            // One without a taken block waits to go back already.
            if untaken > 0 && untaken < state.blocks {
                state.set_closed(false);
                partial.push(chunk);
            }
        }
    }

    /// Returns whether the block at `off` is in a closed chunk.
    pub(crate) fn is_closed(&self, off: u64) -> bool {
        let guard = epoch::pin();
        self.block(off, &guard)
            .is_some_and(|(_, state, _)| state.is_closed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::SpaceError;
    use crate::format::classes::CLASSES;
    use crate::format::layout::{CHUNK, ChunkUse};
    use std::sync::Arc;

    /// The largest class.
    const CLASS: u8 = CLASSES.len() as u8 - 1;
    const HALF: u64 = CHUNK / 2;

    fn held(first: u32, class: u8, live: u32) -> Held {
        Held {
            first,
            chunks: 1,
            class,
            live,
            blocks: 16,
        }
    }

    #[test]
    fn the_lowest_chunks_that_hold_all_stay() {
        // Ten chunks that are a tenth full each fit into one.
        let sparse: Vec<Held> = (1..11).map(|i| held(i, 3, 2)).collect();
        assert_eq!(
            choose(&sparse, |chunks| 1 + chunks),
            [3, 4, 5, 6, 7, 8, 9, 10]
        );
        // Full ones stay, unless there are free ones below.
        let full: Vec<Held> = (5..8).map(|i| held(i, 3, 16)).collect();
        assert_eq!(choose(&full, |_| 8), []);
        assert_eq!(choose(&full, |_| 6), [6, 7]);
        assert_eq!(choose(&[], |_| 1), []);
    }

    #[test]
    fn classes_do_not_mix_and_runs_are_as_long_as_they_are() {
        let run = Held {
            first: 20,
            chunks: 4,
            class: RUN,
            live: 1,
            blocks: 1,
        };
        let all = [held(1, 3, 16), held(2, 4, 1), held(3, 4, 1), run];
        let chosen = choose(&all, |chunks| {
            assert_eq!(chunks, 1 + 1 + 4);
            7
        });
        assert_eq!(chosen, [3, 20]);
    }

    /// Also where one below them is not live any more, and goes back once nobody reads it.
    #[test]
    fn runs_stay_where_there_is_room_for_all() {
        let run = |first, live| Held {
            first,
            chunks: 4,
            class: RUN,
            live,
            blocks: 1,
        };
        let all = [run(1, 0), run(5, 1), run(9, 1)];
        let room = |chunks: u32| {
            assert_eq!(chunks, 3 * 4);
            13
        };
        assert_eq!(choose(&all, room), []);
        assert_eq!(choose(&all, |_| 12), [9]);
    }

    /// Chunks 1 to 3, cut into two blocks each, of which so many are live.
    fn blocks(live: [u64; 3]) -> (Blocks, Guard) {
        let (blocks, guard) = (Blocks::new(0, 64, Arc::default()), epoch::pin());
        let used = ChunkUse::Blocks {
            owner: 0,
            class: CLASS,
        };
        blocks.begin_recovery((1..4).map(|chunk| (chunk, used)).collect());
        for (chunk, live) in (1..).zip(live) {
            for i in 0..live {
                let off = chunk * CHUNK + i * HALF;
                blocks.mark(off, HALF, 64 * CHUNK, &guard).unwrap();
            }
        }
        blocks.finish_recovery(0);
        (blocks, guard)
    }

    fn free(blocks: &Blocks, guard: &Guard, off: u64) {
        assert!(blocks.clear_live(off, guard));
        blocks.recycle(&[off], 0, guard);
    }

    /// Allocates a block where no fresh chunk is to be had.
    fn alloc(blocks: &Blocks, guard: &Guard) -> Option<u64> {
        let full = || Err(SpaceError::ReadOnly);
        blocks.refill(CLASS, guard, full).ok()
    }

    fn closed(blocks: &Blocks) -> [bool; 3] {
        [1, 2, 3].map(|chunk| blocks.is_closed(chunk * CHUNK))
    }

    #[test]
    fn a_closed_chunk_goes_back_with_its_last_block() {
        let (blocks, guard) = blocks([2, 1, 2]);
        blocks.close(&[2, 3]);
        assert_eq!(closed(&blocks), [false, true, true]);
        assert!(!blocks.has_empty());
        free(&blocks, &guard, 3 * CHUNK);
        assert!(!blocks.has_empty(), "it has another one");
        free(&blocks, &guard, 2 * CHUNK);
        free(&blocks, &guard, 3 * CHUNK + HALF);
        assert_eq!(blocks.take_empty(), [(2, 1), (3, 1)]);
        assert_eq!(alloc(&blocks, &guard), None, "the other one is full");
        free(&blocks, &guard, CHUNK);
        assert_eq!(alloc(&blocks, &guard), Some(CHUNK));
    }

    #[test]
    fn the_chunk_that_is_kept_goes_back_when_it_is_closed() {
        let (blocks, guard) = blocks([1, 2, 2]);
        free(&blocks, &guard, CHUNK);
        blocks.close(&[1]);
        assert_eq!(closed(&blocks), [true, false, false]);
        assert_eq!(blocks.take_empty(), [(1, 1)]);
        assert_eq!(alloc(&blocks, &guard), None);
    }

    #[test]
    fn other_chunks_stay_in_use_when_one_is_closed() {
        let (blocks, guard) = blocks([1, 1, 2]);
        blocks.close(&[2]);
        assert_eq!(alloc(&blocks, &guard), Some(CHUNK + HALF));
        assert_eq!(closed(&blocks), [false, true, false]);
    }

    /// A chunk whose blocks have all come back is kept for the next ones, if it is the only one.
    #[test]
    fn chunks_without_a_taken_block_are_not_closed_but_go_back_once() {
        let (blocks, guard) = blocks([2, 2, 2]);
        // A cache has room for two of them, so the first two are in their chunk.
        for off in [CHUNK, CHUNK + HALF, 2 * CHUNK, 3 * CHUNK] {
            free(&blocks, &guard, off);
        }
        assert!(!blocks.has_empty());
        for _ in 0..2 {
            blocks.close(&[1]);
            assert_eq!(closed(&blocks), [false; 3]);
            assert!(blocks.has_empty());
        }
        assert_eq!(blocks.take_empty(), [(1, 1)]);
        assert!(!blocks.has_empty(), "it waited once");
    }

    #[test]
    fn fresh_chunks_are_taken_when_those_that_are_in_use_again_are_full() {
        let (blocks, guard) = blocks([2, 2, 2]);
        blocks.close(&[1, 2, 3]);
        blocks.reopen();
        assert_eq!(closed(&blocks), [false; 3]);
        let fresh = blocks.refill(CLASS, &guard, || Ok(7));
        assert_eq!(fresh.unwrap(), 7 * CHUNK);
    }

    /// Chunks without a live block wait to go back: a block of theirs would be in a chunk that is
    /// nobody's.
    #[test]
    fn only_chunks_with_free_and_live_blocks_are_in_use_again() {
        for again in [true, false] {
            let (blocks, guard) = blocks([2, 1, 2]);
            blocks.close(&[1, 2, 3]);
            free(&blocks, &guard, 3 * CHUNK);
            free(&blocks, &guard, 3 * CHUNK + HALF);
            if again {
                blocks.reopen();
                assert_eq!(closed(&blocks), [false; 3]);
            }
            assert_eq!(alloc(&blocks, &guard), Some(2 * CHUNK + HALF));
            if !again {
                assert_eq!(closed(&blocks), [true, false, true]);
            }
            assert_eq!(alloc(&blocks, &guard), None);
            assert_eq!(blocks.take_empty(), [(3, 1)]);
        }
    }

    #[test]
    fn other_classes_stay_closed() {
        let (blocks, guard) = blocks([1, 1, 2]);
        blocks.close(&[1, 2]);
        let full = || Err(SpaceError::ReadOnly);
        assert!(blocks.refill(CLASS - 1, &guard, full).is_err());
        assert_eq!(closed(&blocks), [true, true, false]);
        assert!(alloc(&blocks, &guard).is_some());
        assert_eq!(closed(&blocks), [false; 3]);
    }
}
