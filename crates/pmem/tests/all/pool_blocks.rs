//! Blocks of a root's chunks: each is one thread's at a time, whatever else comes back or is
//! recovered, and chunks without a live block go back to the pool.

use crate::pool_support::{dram, fill, kind, load, options};
use bristlecone_pmem::heap::activated::Activated;
use bristlecone_pmem::heap::{CLASSES, Recycle};
use bristlecone_pmem::media::{Counting, Dram, Mapped};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::pool::layout::{CHUNK, INITIAL, REGION_CHUNKS};
use bristlecone_pmem::{Heap, Media, POff, Pool, PoolOptions, SpaceError, damage_is_expected};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// Two blocks of the largest class fill a chunk.
const LARGEST: u64 = 32_768;

fn root<M: Media>(pool: &Arc<Pool<M>>) -> Root<M> {
    let root = pool.create_root("r", &kind()).unwrap();
    root.publish();
    root
}

/// A pool that is full after so many chunks.
fn small(chunks: u64) -> Arc<Pool<Dram>> {
    let mut options = PoolOptions::default();
    options.media.reserve = (1 + chunks) * CHUNK;
    let pool = Pool::<Dram>::create(Path::new("dram"), &options).unwrap();
    let most = pool.pm().capacity() / CHUNK - 1;
    assert!(most >= chunks);
    // What the reserve has beyond.
    if most > chunks {
        let rest = pool.create_root("rest", &kind()).unwrap();
        rest.heap().alloc((most - chunks) * CHUNK).unwrap();
        rest.publish();
    }
    pool
}

fn alloc<M: Media>(heap: &Heap<M>, bytes: u64, count: u64) -> Vec<POff<u8>> {
    (0..count).map(|_| heap.alloc(bytes).unwrap()).collect()
}

fn chunks<M: Media>(heap: &Heap<M>) -> u64 {
    heap.stats().chunk_bytes / CHUNK
}

#[test]
fn what_is_live_is_counted_and_the_rest_is_free() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    let blocks = alloc(&heap, 4096, 20);
    let run = heap.alloc(3 * CHUNK - 1).unwrap();
    blocks[3..12].iter().for_each(|block| heap.free(*block));
    let stats = heap.stats();
    let live = 11 * 4096 + 3 * CHUNK;
    assert_eq!((stats.chunk_bytes, stats.live_bytes), (5 * CHUNK, live));
    assert_eq!(heap.live_blocks(), 12);
    let info = pool.info();
    assert_eq!(info.used_bytes, CHUNK + live);
    assert_eq!(info.free_bytes, info.pool_bytes - info.used_bytes);
    let unused = (2 * CHUNK - 11 * 4096) as f64;
    assert_eq!(info.fragmentation, unused / (6 * CHUNK) as f64);
    for (i, block) in blocks.iter().enumerate() {
        let is_live = !(3..12).contains(&i);
        assert_eq!(heap.is_live(block.get()), is_live, "block {i}");
        assert_eq!(heap.block_bytes(block.get()), Some(4096));
    }
    assert_eq!(heap.block_bytes(run.get()), Some(3 * CHUNK));
    assert_eq!(heap.block_bytes(run.get() + CHUNK), None);
    drop(heap);
    drop(root);
    // Nobody knows any more which blocks are free.
    assert_eq!(pool.info().used_bytes, 6 * CHUNK);
}

/// Two bits a block, beside what each chunk has.
#[test]
fn volatile_state_grows_with_the_number_of_blocks() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    assert_eq!(heap.stats().dram_bytes, 0);
    let mut before = 0;
    let mut added = |bytes| {
        heap.alloc(bytes).unwrap();
        let now = heap.stats().dram_bytes;
        now - std::mem::replace(&mut before, now)
    };
    let few = added(LARGEST);
    assert!((16..CHUNK / 64).contains(&few), "{few}");
    assert_eq!(added(4096), few);
    assert_eq!(added(3 * CHUNK), few);
    assert_eq!(added(16), few + CHUNK / 16 * 2 / 8);
    assert_eq!(added(512), few + CHUNK / 512 * 2 / 8);
    assert_eq!(added(256), few + CHUNK / 256 * 2 / 8);
}

/// A leaf that goes back and forth costs no persist.
#[test]
fn one_chunk_without_a_live_block_is_kept() {
    let pool = Pool::<Counting<Dram>>::create(Path::new("dram"), &options()).unwrap();
    let root = root(&pool);
    let heap = root.heap();
    let blocks = alloc(&heap, LARGEST, 8);
    assert_eq!(chunks(&heap), 4);
    let held: Vec<u64> = (blocks.iter())
        .map(|block| {
            heap.free(*block);
            chunks(&heap)
        })
        .collect();
    // A few blocks stay in the thread's cache, so that their chunks come back later.
    assert_eq!(held, [4, 4, 4, 4, 4, 3, 3, 2]);
    let free = pool.info().free_bytes;
    let counts = pool.pm().counts();
    for _ in 0..50 {
        let blocks = alloc(&heap, LARGEST, 4);
        blocks.into_iter().for_each(|block| heap.free(block));
    }
    assert_eq!(pool.pm().counts(), counts);
    assert_eq!(pool.info().free_bytes, free);
    heap.trim();
    assert_eq!(chunks(&heap), 0);
    assert_eq!(pool.info().free_bytes, INITIAL - CHUNK);
    pool.verify().unwrap();
}

/// What a thread keeps in its cache is bounded, so other chunks go back.
#[test]
fn blocks_that_come_back_free_their_chunks() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    for bytes in [64, 256, 4096, LARGEST] {
        let count = 40 * CHUNK / bytes;
        let blocks = alloc(&heap, bytes, count);
        assert_eq!(chunks(&heap), 40);
        blocks.into_iter().for_each(|block| heap.free(block));
        assert!(
            chunks(&heap) <= 3,
            "{bytes} bytes: {} chunks",
            chunks(&heap)
        );
        heap.trim();
        assert_eq!(chunks(&heap), 0);
    }
    pool.verify().unwrap();
}

#[test]
fn blocks_in_several_regions_are_told_apart() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    let count = 2 * (REGION_CHUNKS + 20);
    let mut blocks = alloc(&heap, LARGEST, count);
    let distinct: HashSet<u64> = blocks.iter().map(|block| block.get()).collect();
    assert_eq!(distinct.len() as u64, count);
    assert_eq!(heap.live_blocks(), count);
    assert_eq!(pool.verify().unwrap().header_chunks, 2);
    // One of each chunk of the second region.
    let second = REGION_CHUNKS * CHUNK;
    let gone: Vec<_> = (blocks.iter())
        .filter(|block| block.get() > second && block.get() % CHUNK == 0)
        .copied()
        .collect();
    gone.iter().for_each(|block| heap.free(*block));
    assert!(gone.iter().all(|block| !heap.is_live(block.get())));
    assert_eq!(heap.live_blocks(), count - gone.len() as u64);
    blocks.retain(|block| !gone.contains(block));
    assert!(blocks.iter().all(|block| heap.is_live(block.get())));
    blocks.into_iter().for_each(|block| heap.free(block));
    heap.trim();
    assert_eq!(chunks(&heap), 0);
    pool.verify().unwrap();
}

/// A structure that is damaged may own a block twice.
#[test]
fn a_block_that_is_freed_twice_is_handed_out_once() {
    damage_is_expected::here();
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    for bytes in [4096, 3 * CHUNK] {
        let block = heap.alloc(bytes).unwrap();
        let _other = heap.alloc(bytes).unwrap();
        heap.free(block);
        heap.free(block);
        let [first, second] = [0; 2].map(|_| heap.alloc(bytes).unwrap());
        assert_ne!(first, second);
    }
    assert_eq!(heap.live_blocks(), 6);
    pool.verify().unwrap();
}

#[test]
fn what_is_no_block_or_is_too_small_is_said_in_words() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    let block = heap.alloc(4096).unwrap().get();
    let run = heap.alloc(30 * CHUNK).unwrap().get();
    let end = pool.size();
    assert_eq!(run + 30 * CHUNK, end);
    for (off, bytes) in [(block, 4096), (block, 0), (run, 30 * CHUNK), (run, 1)] {
        heap.check(off, bytes).unwrap();
    }
    let told = |off: u64, bytes| heap.check(off, bytes).unwrap_err();
    for off in [
        block + 8,
        block + CHUNK - 8,
        run + CHUNK,
        0,
        16,
        end,
        end + CHUNK,
        u64::MAX,
    ] {
        let expected = format!("{off:#x} is not the start of a block of this root");
        assert_eq!(told(off, 1), expected);
    }
    for bytes in [4097, LARGEST] {
        let expected = format!("{block:#x} is a block of 4096 bytes where {bytes} are needed");
        assert_eq!(told(block, bytes), expected);
    }
    for bytes in [30 * CHUNK + 1, u64::MAX] {
        let expected = format!("{run:#x} + {bytes} bytes lie past the end of the pool");
        assert_eq!(told(run, bytes), expected);
    }
    let guard = crossbeam_epoch::pin();
    heap.begin_recovery();
    assert!(heap.mark(block, 4097, &guard).is_err());
    heap.mark(block, 4096, &guard).unwrap();
    heap.mark(run, 30 * CHUNK, &guard).unwrap();
    let twice = heap.mark(run, 1, &guard).unwrap_err();
    assert_eq!(twice, format!("block {run:#x} is reached twice"));
    heap.finish_recovery();
    assert_eq!(heap.live_blocks(), 2);
}

/// Chunks in which all blocks are live, or none, are neither lost nor handed out again.
#[test]
fn recovery_goes_on_where_the_chunks_are_full() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    let mut blocks = alloc(&heap, LARGEST, 6);
    let guard = crossbeam_epoch::pin();
    heap.begin_recovery();
    // Of three chunks, the first is full, the second has one block, the third none.
    for block in &blocks[..3] {
        heap.mark(block.get(), LARGEST, &guard).unwrap();
    }
    heap.finish_recovery();
    assert_eq!((chunks(&heap), heap.live_blocks()), (2, 3));
    assert_eq!(pool.verify().unwrap().idle_chunks, 0);
    blocks.truncate(3);
    blocks.extend(alloc(&heap, LARGEST, 1));
    assert_eq!(chunks(&heap), 2, "the free block comes first");
    blocks.extend(alloc(&heap, LARGEST, 1));
    assert_eq!(chunks(&heap), 3);
    let distinct: HashSet<_> = blocks.iter().collect();
    assert_eq!(distinct.len(), 5);
    // All of them are full or new.
    heap.begin_recovery();
    for block in &blocks[..4] {
        heap.mark(block.get(), LARGEST, &guard).unwrap();
    }
    heap.finish_recovery();
    let next = heap.alloc(LARGEST).unwrap();
    assert!(!blocks[..4].contains(&next));
    pool.verify().unwrap();
}

#[test]
fn saved_marks_bring_back_every_live_block_and_no_other() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    let mut live = HashSet::new();
    for bytes in CLASSES {
        let count = CHUNK / bytes;
        let blocks = alloc(&heap, bytes, count + 1);
        for (i, block) in blocks.into_iter().enumerate() {
            // Also the last ones of a chunk, and of the last word of its bits.
            if i % 3 == 0 || i as u64 >= count - 2 {
                live.insert(block.get());
            } else {
                heap.free(block);
            }
        }
    }
    live.insert(heap.alloc(5 * CHUNK).unwrap().get());
    // A chunk whose blocks are all free is not saved.
    let idle = heap.alloc(6 * CHUNK).unwrap();
    heap.free(idle);
    let stats = heap.stats();
    let mut saved = vec![7; 3];
    heap.save_marks(&mut saved);
    assert_eq!(saved[..3], [7; 3]);
    let saved = &saved[3..];
    heap.begin_recovery();
    assert_eq!(heap.live_blocks(), 0);
    assert_eq!(heap.load_marks(saved), Some(saved.len()));
    heap.finish_recovery();
    assert_eq!(heap.live_blocks(), live.len() as u64);
    assert!(live.iter().all(|block| heap.is_live(*block)));
    assert_eq!(heap.stats(), stats);
    pool.verify().unwrap();
    for len in [
        0,
        3,
        4,
        7,
        8,
        saved.len() / 2,
        saved.len() - 8,
        saved.len() - 1,
    ] {
        heap.begin_recovery();
        assert_eq!(heap.load_marks(&saved[..len]), None, "{len} bytes");
    }
    // Marks of a chunk that is not the root's.
    let mut other = saved.to_vec();
    other[4..8].copy_from_slice(&500_000u32.to_le_bytes());
    heap.begin_recovery();
    assert_eq!(heap.load_marks(&other), None);
}

#[test]
fn the_last_free_blocks_are_found_in_other_threads_caches() {
    let pool = small(31);
    let root = root(&pool);
    let heap = root.heap();
    let first = std::thread::scope(|scope| {
        let take = || heap.alloc(1024).unwrap();
        scope.spawn(take).join().unwrap()
    });
    // The rest of the pool.
    while heap.alloc(CHUNK).is_ok() {}
    let blocks = alloc(&heap, 1024, CHUNK / 1024 - 1);
    let mut all: HashSet<u64> = blocks.iter().map(|block| block.get()).collect();
    assert!(all.insert(first.get()));
    assert_eq!(all.len() as u64, CHUNK / 1024);
    assert!(all.iter().all(|block| block / CHUNK == first.get() / CHUNK));
    assert!(all.iter().all(|block| heap.is_live(*block)));
    let error = heap.alloc(1024).unwrap_err();
    assert!(matches!(error, SpaceError::Capacity { .. }), "{error}");
    assert_eq!(pool.info().free_bytes, 0);
}

#[test]
fn a_full_pool_takes_chunks_back_into_use_that_are_being_emptied() {
    let pool = small(31);
    let root = root(&pool);
    let heap = root.heap();
    let run = heap.alloc(27 * CHUNK).unwrap();
    let below = heap.alloc(2 * CHUNK).unwrap();
    // A chunk that is full, and one that has one block.
    let blocks = alloc(&heap, LARGEST, 3);
    heap.free(below);
    let vacating = heap.vacate();
    assert!(blocks.iter().all(|block| vacating.is_leaving(block.get())));
    let moved = alloc(&heap, LARGEST, 2);
    assert!(
        moved
            .iter()
            .all(|block| block.get() / CHUNK == below.get() / CHUNK)
    );
    while heap.alloc(CHUNK).is_ok() {}
    // The last free block is in a chunk that was to be emptied. A full one goes on being so.
    let last = heap.alloc(LARGEST).unwrap();
    assert_eq!(last.get() / CHUNK, blocks[2].get() / CHUNK);
    assert!(!vacating.is_leaving(last.get()));
    assert!(vacating.is_leaving(blocks[0].get()));
    assert!(heap.alloc(LARGEST).is_err());
    drop(vacating);
    assert!(heap.alloc(LARGEST).is_err());
    assert!(heap.is_live(run.get()));
    pool.verify().unwrap();
}

#[test]
fn full_chunks_that_were_to_be_emptied_do_not_stand_in_the_way() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    let run = heap.alloc(4 * CHUNK).unwrap();
    let blocks = alloc(&heap, LARGEST, 4);
    heap.free(run);
    let vacating = heap.vacate();
    assert!(blocks.iter().all(|block| vacating.is_leaving(block.get())));
    // One of them moves, so that its chunk has a free block that nobody gets.
    let moved = heap.alloc(LARGEST).unwrap();
    assert!(moved.get() < blocks[0].get());
    heap.free(blocks[0]);
    drop(vacating);
    assert!(!heap.vacate().is_leaving(moved.get()));
    let more = alloc(&heap, LARGEST, 3);
    let all: HashSet<_> = more.iter().chain(&blocks[1..]).chain([&moved]).collect();
    assert_eq!(all.len(), 7);
    assert!(more.contains(&blocks[0]), "it is handed out again");
    assert_eq!(chunks(&heap), 4);
    pool.verify().unwrap();
}

/// Runs are emptied as chunks are, and freed as soon as they are moved.
#[test]
fn runs_that_were_to_be_emptied_stay_if_nobody_moves_them() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    let low = heap.alloc(2 * CHUNK).unwrap();
    let high = [0; 2].map(|_| heap.alloc(2 * CHUNK).unwrap());
    heap.free(low);
    let vacating = heap.vacate();
    assert!(
        !vacating.is_leaving(high[0].get()),
        "with what is free below it stays"
    );
    assert!(vacating.is_leaving(high[1].get()));
    assert_eq!(heap.alloc(2 * CHUNK).unwrap(), low);
    heap.free(high[1]);
    drop(vacating);
    assert_eq!(chunks(&heap), 4);
    assert_eq!(heap.live_blocks(), 2);
    let vacating = heap.vacate();
    assert!(!vacating.is_leaving(high[0].get()));
    assert!(!vacating.is_leaving(low.get()));
    drop(vacating);
    pool.verify().unwrap();
}

/// A chunk may have held anything before it has activated blocks.
#[test]
fn activated_blocks_are_free_in_a_chunk_that_was_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = Pool::<Mapped>::create(&path, &options()).unwrap();
    let root = root(&pool);
    let run = root.heap().alloc(3 * CHUNK).unwrap();
    fill(pool.pm(), run.get(), 3 * CHUNK);
    root.heap().free(run);
    let used = pool.info().used_bytes;
    let activated = Activated::of(&root);
    // As many as a chunk has behind its head, which takes two lines.
    let blocks: Vec<_> = (0..1022).map(|_| activated.reserve(64).unwrap()).collect();
    let distinct: HashSet<u64> = blocks.iter().map(|block| block.get()).collect();
    assert_eq!(distinct.len(), 1022);
    assert_eq!(activated.stats().chunk_bytes, CHUNK);
    assert_eq!(activated.active_blocks(), []);
    assert!((0..16).all(|word| load(pool.pm(), run.get() + word * 8) == 0));
    assert_eq!(pool.info().used_bytes, used, "none of them is active");
    // In several words of the head, and at the ends of words.
    let active = [0, 1, 63, 64, 200, 640, 1021];
    for (i, n) in active.into_iter().enumerate() {
        activated.activate_unowned(blocks[n]);
        assert_eq!(pool.info().used_bytes, used + (i as u64 + 1) * 64);
    }
    pool.pm().fence();
    let info = pool.info();
    assert_eq!(info.used_bytes + info.free_bytes, info.pool_bytes);
    let largest = activated.reserve(4096).unwrap();
    activated.activate_unowned(largest);
    assert_eq!(pool.info().used_bytes, used + 7 * 64 + 4096);
    activated.release(blocks[640].get());
    assert_eq!(pool.info().used_bytes, used + 6 * 64 + 4096);
    assert_eq!(pool.verify().unwrap().owned_chunks, 2);
}
