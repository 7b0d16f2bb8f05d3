//! The allocator against its invariants.

use super::*;
use crate::media::{Dram, MediaOptions};
use crate::pool::tests::kind;
use crate::pool::{PoolOptions, Root};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

fn root(reserve: u64) -> Root<Dram> {
    let media = MediaOptions {
        reserve,
        ..MediaOptions::default()
    };
    let pool = Pool::<Dram>::create(Path::new("dram"), &PoolOptions { media }).unwrap();
    let root = pool.create_root("r", &kind()).unwrap();
    root.publish();
    root
}

#[test]
fn blocks_are_distinct_aligned_and_of_their_class() {
    let root = root(1 << 30);
    let heap = root.heap();
    let mut seen = HashSet::new();
    for bytes in [1, 16, 17, 256, 700, 768, 1024, 32_768, 32_769, 200_000] {
        for _ in 0..100 {
            let off = heap.alloc(bytes).unwrap();
            assert!(seen.insert(off), "{off:?} handed out twice");
            let block = heap.block_bytes(off.get()).unwrap();
            assert!(block >= bytes, "{block} < {bytes}");
            let align = 1u64 << block.trailing_zeros().min(16);
            assert_eq!(off.get() % align, 0, "{block}-byte block at {off:?}");
            assert!(off.get() + block <= root.pool().pm().len());
        }
    }
    assert!(heap.alloc(MAX_BLOCK + 1).is_err());
}

/// Moves the epoch on until the deferred frees have run and no chunk is left. Tests that run beside
/// this one may hold it back for a while.
fn all_chunks_come_back(root: &Root<Dram>) -> bool {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        epoch::pin().flush();
        root.heap().trim();
        if root.heap().stats().chunk_bytes == 0 {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::yield_now();
    }
}

#[test]
fn freed_blocks_are_reused_and_empty_chunks_go_back() {
    let root = root(1 << 30);
    let heap = root.heap();
    let before = root.pool().info().free_bytes;
    for round in 0..10 {
        let blocks: Vec<_> = (0..5_000).map(|_| heap.alloc(256).unwrap()).collect();
        let large = heap.alloc(300_000).unwrap();
        let guard = epoch::pin();
        for off in blocks {
            heap.retire(off, &guard);
        }
        heap.retire(large, &guard);
        drop(guard);
        assert_eq!(heap.stats().live_bytes, 0, "round {round}");
        assert!(
            all_chunks_come_back(&root),
            "round {round}: {:?}",
            heap.stats()
        );
    }
    let info = root.pool().info();
    assert_eq!(
        info.free_bytes,
        info.pool_bytes - CHUNK,
        "all but the header chunk is free"
    );
    assert!(info.free_bytes >= before);
    assert!(
        info.pool_bytes <= 8 << 20,
        "ten rounds fit where one does: {}",
        info.pool_bytes
    );
    let report = root.pool().compact().unwrap();
    assert_eq!(report.after_bytes, 2 << 20);
}

#[test]
fn a_full_pool_says_so_and_serves_again_after_frees() {
    let root = root(64 << 20);
    let heap = root.heap();
    let mut blocks = Vec::new();
    let error = loop {
        match heap.alloc(4096) {
            Ok(off) => blocks.push(off),
            Err(e) => break e,
        }
    };
    assert!(matches!(error, SpaceError::Capacity { .. }), "{error}");
    assert!(
        blocks.len() as u64 >= ((64 << 20) - CHUNK) / 4096 - 64,
        "{}",
        blocks.len()
    );
    for off in blocks.drain(..100) {
        heap.free(off);
    }
    for _ in 0..100 {
        heap.alloc(4096).unwrap();
    }
    assert!(heap.alloc(100_000).is_err());
}

#[test]
fn recovery_keeps_exactly_what_is_marked() {
    let root = root(1 << 30);
    let heap = root.heap();
    let blocks: Vec<_> = (0..3_000)
        .map(|i| heap.alloc(if i % 3 == 0 { 40 } else { 256 }).unwrap())
        .collect();
    let run = heap.alloc(100_000).unwrap();
    heap.begin_recovery();
    let guard = epoch::pin();
    let kept: Vec<_> = blocks.iter().step_by(7).collect();
    for off in &kept {
        heap.mark(off.get(), 40, &guard).unwrap();
        assert!(
            heap.mark(off.get(), 40, &guard)
                .unwrap_err()
                .contains("twice")
        );
    }
    assert!(
        heap.mark(blocks[0].get() + 1, 8, &guard).is_err(),
        "inside a block"
    );
    assert!(
        heap.mark(blocks[0].get(), 10_000, &guard).is_err(),
        "too small"
    );
    assert!(
        heap.mark(64, 8, &guard).is_err(),
        "the superblock is no block"
    );
    assert!(heap.mark(u64::MAX - 5, 8, &guard).is_err());
    heap.finish_recovery();
    assert!(!heap.is_live(run.get()));
    let kept: HashSet<_> = kept.into_iter().copied().collect();
    for _ in 0..6_000 {
        let off = heap.alloc(40).unwrap();
        assert!(!kept.contains(&off), "{off:?} is still in use");
    }

    let mut saved = Vec::new();
    heap.save_marks(&mut saved);
    let live = heap.stats().live_bytes;
    heap.begin_recovery();
    assert_eq!(heap.load_marks(&saved), Some(saved.len()));
    heap.finish_recovery();
    assert_eq!(heap.stats().live_bytes, live);
    assert_eq!(heap.load_marks(&saved[..saved.len() - 1]), None);
}

#[test]
fn threads_never_share_a_block() {
    let root = root(1 << 30);
    let heap = root.heap();
    let all = Mutex::new(HashSet::new());
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let (heap, all) = (heap.clone(), &all);
            scope.spawn(move || {
                let mut mine = Vec::new();
                for i in 0..5_000u64 {
                    mine.push(heap.alloc(64 + (i * 7 + t) % 3 * 100).unwrap());
                    if i % 3 == 0 {
                        heap.free(mine.swap_remove((i as usize * 31) % mine.len()));
                    }
                }
                let mut all = all.lock().unwrap();
                for off in mine {
                    assert!(all.insert(off), "{off:?} handed out twice");
                }
            });
        }
    });
    assert!(!all.lock().unwrap().is_empty());
}

/// A thread that ends may collect garbage after its thread-local storage has gone: on its 128th pin
/// when it had pinned 128 times before.
#[test]
fn exiting_threads_recycle_on_a_small_stack() {
    let root = root(1 << 30);
    let heap = root.heap();
    for pins in [0, 1, 127, 128, 129, 256] {
        let waiting = epoch::pin();
        for _ in 0..20_000 {
            let off = heap.alloc(64).unwrap();
            heap.retire(off, &epoch::pin());
        }
        drop(waiting);
        let exiting = std::thread::Builder::new()
            .stack_size(128 << 10)
            .spawn(move || (0..pins).for_each(|_| drop(epoch::pin())));
        exiting.unwrap().join().unwrap();
    }
    assert_eq!(heap.stats().live_bytes, 0);
    assert!(all_chunks_come_back(&root));
}

#[test]
fn chunks_that_are_vacated_go_back_and_the_pool_becomes_smaller() {
    let root = root(1 << 30);
    let (heap, pool) = (root.heap(), root.pool());
    let mut blocks: Vec<_> = (0..4096).map(|_| heap.alloc(4096).unwrap()).collect();
    let mut runs: Vec<_> = (0..8).map(|_| heap.alloc(200_000).unwrap()).collect();
    // One block of each chunk is left, and half of the runs.
    let gone = |i: &usize| i % 16 != 5;
    let left: Vec<_> = (0..blocks.len()).filter(|i| !gone(i)).collect();
    (0..blocks.len())
        .filter(gone)
        .for_each(|i| heap.free(blocks[i]));
    runs.drain(..4).for_each(|run| heap.free(run));
    let before = pool.compact().unwrap().after_bytes;
    {
        let vacating = heap.vacate();
        let mut moved = 0;
        for &i in &left {
            let old = blocks[i];
            if !vacating.is_leaving(old.get()) {
                continue;
            }
            let new = heap.alloc(4096).unwrap();
            assert!(
                !vacating.is_leaving(new.get()),
                "{new:?} would be moved again"
            );
            assert!(new.get() < old.get(), "{new:?} is above {old:?}");
            heap.free(old);
            blocks[i] = new;
            moved += 1;
        }
        assert_eq!(moved, 256 - 16, "sixteen chunks have room for all");
        for run in &mut runs {
            assert!(vacating.is_leaving(run.get()), "there is room below");
            let new = heap.alloc(200_000).unwrap();
            heap.free(std::mem::replace(run, new));
        }
    }
    let live = heap.stats();
    assert_eq!(
        live.live_bytes,
        256 * 4096 + 4 * 4 * CHUNK,
        "nothing is lost"
    );
    assert_eq!(live.chunk_bytes, live.live_bytes, "and nothing is free");
    let after = pool.compact().unwrap();
    assert!(before > 16 << 20, "{before}");
    assert_eq!(after.after_bytes, 4 << 20, "{after:?}");
    // All chunks are in use again.
    left.iter().for_each(|i| heap.free(blocks[*i]));
    runs.iter().for_each(|run| heap.free(*run));
    assert!(all_chunks_come_back(&root));
}

#[test]
fn chunks_that_stay_occupied_are_in_use_again_afterwards() {
    let root = root(1 << 30);
    let heap = root.heap();
    let blocks: Vec<_> = (0..64).map(|_| heap.alloc(4096).unwrap()).collect();
    blocks.iter().skip(1).for_each(|block| heap.free(*block));
    let more: Vec<_> = (0..20).map(|_| heap.alloc(4096).unwrap()).collect();
    // Of two chunks, the upper one has five blocks.
    more[..11].iter().for_each(|block| heap.free(*block));
    let vacating = heap.vacate();
    let stays: Vec<_> = (more[11..].iter())
        .filter(|block| vacating.is_leaving(block.get()))
        .collect();
    assert!(!stays.is_empty());
    drop(vacating);
    let held = heap.stats().chunk_bytes;
    let again: Vec<_> = (0..16).map(|_| heap.alloc(4096).unwrap()).collect();
    assert_eq!(
        heap.stats().chunk_bytes,
        held,
        "its free blocks are handed out"
    );
    for block in again.iter().chain(&more[11..]).chain(&blocks[..1]) {
        heap.free(*block);
    }
    assert!(all_chunks_come_back(&root));
}
