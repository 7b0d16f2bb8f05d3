//! Activated blocks: geometry, stages, crash states, late reading of chunks, threads, costs.

use super::*;
use crate::format::activated::is_class;
use crate::media::{Counting, Dram, LINE, Mapped, MediaOptions};
use crate::pmwcas::{DescriptorPool, Policy};
use crate::pool::{DataKind, PoolOptions, RootKind};
use std::collections::HashSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Root word: the descriptor area.
const AREA: usize = 0;
/// Root word: place of the word that owns a block.
const OWNER: usize = 1;

fn kind() -> RootKind {
    RootKind {
        design: "test".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: 0,
    }
}

fn create<M: Media>(path: &Path, reserve: u64) -> Root<M> {
    let media = MediaOptions {
        reserve,
        ..MediaOptions::default()
    };
    let pool = Pool::<M>::create(path, &PoolOptions { media }).unwrap();
    let root = pool.create_root("r", &kind()).unwrap();
    root.publish();
    root
}

fn volatile() -> Root<Dram> {
    create(Path::new("dram"), 1 << 28)
}

#[test]
fn heads_and_blocks_of_every_class_fit_a_chunk_and_do_not_meet() {
    let mut classes = 0;
    for class in (0..super::super::CLASSES.len() as u8).filter(|class| is_class(*class)) {
        classes += 1;
        assert!(u64::from(blocks_of(class)) <= head_bytes(class) * 8);
        assert!(blocks_of(class) >= 3, "class {class}");
        let last = place(1, blocks_of(class) - 1, class).get();
        assert_eq!(place(1, 0, class).get(), CHUNK + head_bytes(class));
        assert!(last + block_bytes(class) <= 2 * CHUNK);
        assert!(
            last + 2 * block_bytes(class) > 2 * CHUNK,
            "class {class} wastes a block"
        );
        assert!(last.is_multiple_of(LINE as u64));
    }
    assert_eq!(classes, 16, "whole lines from 64 bytes to 16 KiB");
    let blocks = Activated::of(&volatile());
    let too_large = blocks.reserve(MAX_ACTIVATED + 1);
    assert!(matches!(
        too_large,
        Err(SpaceError::TooLarge {
            wanted: 16_385,
            most: 16_384
        })
    ));
}

#[test]
fn reserved_blocks_are_distinct_and_come_again_once_they_are_cancelled() {
    let root = volatile();
    let blocks = Activated::of(&root);
    for bytes in [1, 64, 65, 1000, 1024, 16_384] {
        let mut seen = HashSet::new();
        for _ in 0..200 {
            let block = blocks.reserve(bytes).unwrap();
            assert!(seen.insert(block), "{block:?} handed out twice");
            assert!(blocks.block_bytes(block.get()).unwrap() >= bytes);
            assert!(!blocks.is_active(block.get()), "reserved only");
        }
        let chunks = blocks.stats().chunk_bytes;
        seen.iter().for_each(|block| blocks.cancel(*block));
        let again: HashSet<_> = (0..200).map(|_| blocks.reserve(bytes).unwrap()).collect();
        assert_eq!(again.len(), 200);
        assert_eq!(blocks.stats().chunk_bytes, chunks, "those were free again");
    }
    assert!(blocks.active_blocks().is_empty());
    root.pool().verify().unwrap();
}

#[test]
fn what_is_no_active_block_is_told_apart() {
    let root = volatile();
    let blocks = Activated::of(&root);
    let block = blocks.reserve(256).unwrap().get();
    assert!(blocks.check(block, 256).unwrap_err().contains("not active"));
    blocks.activate(block);
    assert_eq!(blocks.check(block, 256), Ok(()));
    assert!(
        blocks
            .check(block, 257)
            .unwrap_err()
            .contains("257 are needed")
    );
    for wrong in [
        0,
        8,
        block + 64,
        block / CHUNK * CHUNK,
        u64::MAX,
        u64::MAX / 8,
    ] {
        assert!(blocks.check(wrong, 1).is_err(), "{wrong:#x}");
        assert!(Recycle::check(&blocks, wrong).is_err(), "{wrong:#x}");
    }
    let scanned = root.heap();
    scanned.begin_recovery();
    scanned.finish_recovery();
    let other = scanned.alloc(256).unwrap().get();
    assert!(blocks.check(other, 1).is_err(), "the other allocator's");
    assert!(scanned.check(block, 1).is_err(), "this one's");
    root.pool().verify().unwrap();
}

/// Returns a root's blocks, with descriptors and an owner word that blocks are handed to.
fn with_swaps<M: Media>(root: &Root<M>) -> (Activated<M>, DescriptorPool<M>) {
    let blocks = Activated::of(root);
    let heap = root.heap();
    heap.begin_recovery();
    let recycle = Box::new(blocks.clone());
    let area = root.word(AREA).load(root.pool().pm(), Ordering::Relaxed);
    let swaps = if area == 0 {
        let swaps = DescriptorPool::create(&heap, 1, 16, 2, recycle).unwrap();
        let owner = heap.alloc(LINE as u64).unwrap().get();
        root.pool().word_at(owner).publish(root.pool().pm(), 0);
        root.word(OWNER).publish(root.pool().pm(), owner);
        root.word(AREA).publish(root.pool().pm(), swaps.offset());
        swaps
    } else {
        let (swaps, _) = DescriptorPool::open(&heap, area, recycle).unwrap();
        let guard = crossbeam_epoch::pin();
        swaps.mark(&heap, &guard).unwrap();
        heap.mark(owner_word(root).1, 8, &guard).unwrap();
        swaps
    };
    heap.finish_recovery();
    (blocks, swaps)
}

/// Returns the word that owns a block, and its place.
fn owner_word<M: Media>(root: &Root<M>) -> (&PWord, u64) {
    let pool = root.pool();
    let at = root.word(OWNER).load(pool.pm(), Ordering::Relaxed);
    (pool.word_at(at), at)
}

/// Hands `new` to the owner word in place of its old block.
fn hand_over<M: Media>(root: &Root<M>, swaps: &DescriptorPool<M>, new: u64) -> bool {
    let until = Instant::now() + Duration::from_secs(30);
    let mut descriptor = loop {
        match swaps.allocate_descriptor() {
            Ok(descriptor) => break descriptor,
            // Threads of other tests may hold the epoch back for a while.
            Err(e) => assert!(Instant::now() < until, "{e}"),
        }
    };
    let word = owner_word(root).0;
    let old = swaps.read(word);
    descriptor
        .add_word_with(word, old, new, Policy::FreeOne)
        .unwrap();
    descriptor.execute().unwrap()
}

#[test]
fn a_crash_frees_what_was_reserved_and_keeps_what_was_handed_over() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let (kept, lost);
    {
        let root = create::<Mapped>(&path, 1 << 28);
        let (blocks, swaps) = with_swaps(&root);
        kept = blocks.reserve(1024).unwrap().get();
        assert!(hand_over(&root, &swaps, kept));
        assert!(blocks.is_active(kept));
        lost = blocks.reserve(1024).unwrap().get();
        assert_eq!(blocks.active_blocks(), [kept]);
    }
    let pool = Pool::<Mapped>::open(&path, &PoolOptions::default()).unwrap();
    let root = pool.open_root("r", Some(&kind())).unwrap();
    let (blocks, swaps) = with_swaps(&root);
    assert_eq!(swaps.read(owner_word(&root).0), kept);
    assert_eq!(blocks.active_blocks(), [kept]);
    // All of the chunk except that block, before another chunk is assigned.
    let class = class_of(1024).unwrap();
    let again: HashSet<u64> = (1..blocks_of(class))
        .map(|_| blocks.reserve(1024).unwrap().get())
        .collect();
    assert!(again.contains(&lost) && !again.contains(&kept));
    assert_eq!(blocks.stats().chunk_bytes, CHUNK);
    blocks.reserve(1024).unwrap();
    assert_eq!(blocks.stats().chunk_bytes, 2 * CHUNK);
    pool.verify().unwrap();
}

#[test]
fn blocks_released_before_their_chunk_was_looked_at_come_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let class = class_of(4096).unwrap();
    let mut active = Vec::new();
    {
        let root = create::<Mapped>(&path, 1 << 28);
        let (blocks, swaps) = with_swaps(&root);
        for _ in 0..3 * blocks_of(class) {
            let block = blocks.reserve(4096).unwrap();
            blocks.activate_unowned(block);
            active.push(block.get());
        }
        root.pool().pm().fence();
        assert!(hand_over(&root, &swaps, active[20]));
    }
    let pool = Pool::<Mapped>::open(&path, &PoolOptions::default()).unwrap();
    let root = pool.open_root("r", Some(&kind())).unwrap();
    let (blocks, mut swaps) = with_swaps(&root);
    assert_eq!(blocks.active_blocks().len(), active.len());
    assert!(hand_over(&root, &swaps, 0));
    assert!(blocks.is_active(active[20]), "a descriptor names it");
    swaps.quiesce();
    assert!(!blocks.is_active(active[20]));
    assert_eq!(blocks.reserve(4096).unwrap().get(), active[20]);
    // All others are active: another chunk.
    let fresh = blocks.reserve(4096).unwrap().get();
    assert!(!active.contains(&fresh));
    blocks.retain(|block| block == active[0]);
    assert_eq!(blocks.active_blocks(), [active[0]]);
}

#[test]
fn blocks_that_recovery_frees_are_handed_out_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let (first, second);
    {
        let root = create::<Mapped>(&path, 1 << 28);
        let (blocks, swaps) = with_swaps(&root);
        first = blocks.reserve(1024).unwrap().get();
        second = blocks.reserve(1024).unwrap().get();
        assert!(hand_over(&root, &swaps, first));
        assert!(hand_over(&root, &swaps, second));
        assert!(blocks.is_active(first), "a descriptor names it");
    }
    let pool = Pool::<Mapped>::open(&path, &PoolOptions::default()).unwrap();
    let root = pool.open_root("r", Some(&kind())).unwrap();
    let (blocks, _swaps) = with_swaps(&root);
    assert_eq!(blocks.active_blocks(), [second]);
    let class = class_of(1024).unwrap();
    let again: HashSet<u64> = (1..blocks_of(class))
        .map(|_| blocks.reserve(1024).unwrap().get())
        .collect();
    assert!(again.contains(&first) && !again.contains(&second));
    assert_eq!(blocks.stats().chunk_bytes, CHUNK);
}

#[test]
fn opening_again_and_again_takes_no_more_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    {
        let root = create::<Mapped>(&path, 1 << 28);
        // Chunks of other kinds before those of this root.
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        for _ in 0..400 {
            heap.alloc(CHUNK).unwrap();
        }
    }
    for round in 0..4 {
        let pool = Pool::<Mapped>::open(&path, &PoolOptions::default()).unwrap();
        let root = pool.open_root("r", Some(&kind())).unwrap();
        let blocks = Activated::of(&root);
        let block = blocks.reserve(1024).unwrap();
        blocks.activate_unowned(block);
        pool.pm().fence();
        assert_eq!(blocks.stats().chunk_bytes, CHUNK, "round {round}");
        assert_eq!(blocks.active_blocks().len(), round + 1);
    }
}

#[test]
fn a_chunk_whose_blocks_come_back_while_it_is_taken_is_not_lost() {
    let root = volatile();
    let blocks = Activated::of(&root);
    let class = class_of(16_384).unwrap();
    let all = blocks_of(class) as usize;
    // Two threads pass the blocks of one chunk round. At rest all of them are available without
    // another chunk.
    for _ in 0..2_000 {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let first = blocks.reserve(16_384).unwrap();
                    blocks.cancel(first);
                });
            }
        });
    }
    let chunks = blocks.chunks().len();
    let held: Vec<_> = (0..chunks * all)
        .map(|_| blocks.reserve(16_384).unwrap())
        .collect();
    assert_eq!(blocks.chunks().len(), chunks, "{} blocks held", held.len());
}

#[test]
fn empty_chunks_go_back_to_the_pool_at_a_clean_close() {
    let root = volatile();
    let blocks = Activated::of(&root);
    let before = root.pool().info().free_bytes;
    let some: Vec<_> = (0..300).map(|_| blocks.reserve(1024).unwrap()).collect();
    some.iter().for_each(|block| blocks.activate(block.get()));
    assert_eq!(blocks.stats().live_bytes, 300 * 1024);
    for block in &some[1..] {
        blocks.release(block.get());
        blocks.reuse(block.get());
    }
    let info = root.pool().info();
    assert_eq!(info.free_bytes, before - 1024, "all but one block is free");
    blocks.give_back_empty();
    assert_eq!(blocks.stats().chunk_bytes, CHUNK);
    assert_eq!(blocks.active_blocks(), [some[0].get()]);
    root.pool().verify().unwrap();
}

#[test]
fn a_full_pool_is_an_error_and_every_block_is_found_before() {
    let root = create::<Dram>(Path::new("dram"), 4 << 20);
    let blocks = Activated::of(&root);
    let mut all = Vec::new();
    let full = loop {
        match blocks.reserve(8192) {
            Ok(block) => all.push(block),
            Err(e) => break e,
        }
    };
    assert!(matches!(full, SpaceError::Capacity { .. }), "{full}");
    let class = class_of(8192).unwrap();
    let chunks = blocks.stats().chunk_bytes / CHUNK;
    assert_eq!(all.len() as u64, chunks * u64::from(blocks_of(class)));
    assert!(blocks.reserve(8192).is_err());
    let back = all.swap_remove(7);
    blocks.cancel(back);
    // Another thread finds it too.
    let there = std::thread::scope(|scope| scope.spawn(|| blocks.reserve(8192)).join().unwrap());
    assert_eq!(there.unwrap(), back);
}

#[test]
fn threads_never_hold_the_same_block() {
    let root = volatile();
    let blocks = Activated::of(&root);
    let held: Vec<AtomicBool> = (0..(1 << 28) / 64)
        .map(|_| AtomicBool::new(false))
        .collect();
    let rounds = 30_000;
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (blocks, held) = (&blocks, &held);
            scope.spawn(move || {
                let mut mine = Vec::new();
                let mut random = thread + 1;
                for _ in 0..rounds {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    if random >> 62 < 2 && mine.len() < 200 {
                        let block = blocks
                            .reserve([64, 1024][(random >> 61 & 1) as usize])
                            .unwrap();
                        let flag = &held[(block.get() / 64) as usize];
                        assert!(
                            !flag.swap(true, Ordering::AcqRel),
                            "{block:?} is held twice"
                        );
                        mine.push(block);
                    } else if !mine.is_empty() {
                        let block: POff<u8> =
                            mine.swap_remove((random >> 33) as usize % mine.len());
                        if random >> 60 & 1 == 0 {
                            blocks.activate(block.get());
                            blocks.release(block.get());
                        }
                        held[(block.get() / 64) as usize].store(false, Ordering::Release);
                        blocks.cancel(block);
                    }
                }
                for block in mine {
                    held[(block.get() / 64) as usize].store(false, Ordering::Release);
                    blocks.cancel(block);
                }
            });
        }
    });
    assert!(blocks.active_blocks().is_empty());
    // Nothing was lost: all blocks of the chunks are available.
    let chunks = blocks.chunks();
    let all: u32 = chunks.iter().map(|(_, class)| blocks_of(*class)).sum();
    let (small, large) = (class_of(64).unwrap(), class_of(1024).unwrap());
    let mut got = 0;
    for (class, bytes) in [(small, 64), (large, 1024)] {
        let of_class = chunks.iter().filter(|(_, c)| *c == class).count() as u32;
        for _ in 0..of_class * blocks_of(class) {
            blocks.reserve(bytes).unwrap();
            got += 1;
        }
    }
    assert_eq!(got, all);
    assert_eq!(
        blocks.chunks().len(),
        chunks.len(),
        "no chunk was needed for that"
    );
}

#[test]
fn handing_over_costs_a_line_and_no_fence_and_releasing_one_of_each() {
    let root = create::<Counting<Dram>>(Path::new("dram"), 1 << 28);
    let (blocks, mut swaps) = with_swaps(&root);
    let pm = root.pool().pm();
    let cost = |f: &mut dyn FnMut()| {
        let before = pm.counts();
        f();
        let after = pm.counts();
        (after.lines - before.lines, after.fences - before.fences)
    };
    // The chunk's head (a line, a fence) and its word in the chunk table.
    let mut first = POff::NULL;
    assert_eq!(cost(&mut || first = blocks.reserve(1024).unwrap()), (2, 2));
    let mut second = POff::NULL;
    assert_eq!(cost(&mut || second = blocks.reserve(1024).unwrap()), (0, 0));
    // A word with a policy: descriptor, pointer, decision, value, a fence each; and the block's
    // bit.
    assert_eq!(
        cost(&mut || assert!(hand_over(&root, &swaps, first.get()))),
        (5, 4)
    );
    assert_eq!(
        cost(&mut || assert!(hand_over(&root, &swaps, second.get()))),
        (5, 4)
    );
    // The first operation's descriptor, and the second one's with the block it replaced.
    assert_eq!(cost(&mut || swaps.quiesce()), (3, 3));
    assert_eq!(blocks.active_blocks(), [second.get()]);
}
