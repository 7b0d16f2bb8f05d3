//! Caches and chunks of blocks: which are handed out next, and which go back.

use super::*;
use crate::format::classes::class_of;
use crate::pool::layout::ChunkUse;

/// An allocator that owns chunks of these classes, from chunk 1 on.
fn blocks(classes: &[u8]) -> Blocks {
    let blocks = Blocks::new(0, 64, Arc::default());
    let used = classes.iter().map(|class| ChunkUse::Blocks {
        owner: 0,
        class: *class,
    });
    blocks.begin_recovery((1..).zip(used).collect());
    blocks
}

#[test]
fn a_cache_has_a_bounded_share_of_each_class() {
    for (class, bytes) in (0..).zip(CLASSES) {
        let most = max_cached(class) as u64;
        assert!((2..=1024).contains(&most), "{most} of {bytes} bytes");
        assert!(
            most * bytes <= 32_768 || most == 2,
            "{most} of {bytes} bytes"
        );
        assert!(
            (most + 1) * bytes > 32_768 || most == 1024,
            "{most} of {bytes} bytes"
        );
        let taken = batch(class) as u64;
        assert!(
            (1..=32).contains(&taken) && taken <= most,
            "{taken} at a time"
        );
        assert!(taken * bytes <= 32_768, "{taken} of {bytes} bytes");
        assert!(
            (taken + 1) * bytes > 32_768 || taken == 32,
            "{taken} of {bytes} bytes"
        );
    }
}

#[test]
fn a_cache_that_is_full_gives_the_older_half_of_its_blocks_back() {
    let class = class_of(4096).unwrap();
    let most = max_cached(class);
    let (blocks, guard) = (blocks(&[class]), epoch::pin());
    let offs: Vec<u64> = (0..=most as u64).map(|i| CHUNK + i * 4096).collect();
    for off in &offs {
        blocks.mark(*off, 4096, 64 * CHUNK, &guard).unwrap();
    }
    blocks.finish_recovery(0);
    for off in &offs {
        assert!(blocks.clear_live(*off, &guard));
    }
    let cached = || blocks.cache().0[usize::from(class)].clone();
    blocks.recycle(&offs[..most], 5, &guard);
    assert_eq!(cached(), offs[..most]);
    blocks.recycle(&offs[most..], 6, &guard);
    assert_eq!(cached(), offs[most / 2..]);
    assert_eq!(blocks.freed(CHUNK), 6, "the latest of a chunk's blocks");
    assert!(!blocks.has_empty());
    blocks.empty_caches();
    assert!(blocks.has_empty());
    assert_eq!(blocks.take_empty(), [(1, 1)]);
    assert!(!blocks.has_empty());
}

#[test]
fn offsets_inside_and_behind_blocks_are_none() {
    // Blocks that do not fill their chunk.
    let class = CLASSES
        .iter()
        .position(|bytes| !CHUNK.is_multiple_of(*bytes))
        .unwrap();
    let bytes = CLASSES[class];
    let (blocks, guard) = (blocks(&[class as u8]), epoch::pin());
    let number = |off| blocks.block(off, &guard).map(|(_, _, number)| number);
    let count = CHUNK / bytes;
    assert_eq!(number(CHUNK), Some(0));
    assert_eq!(number(CHUNK + (count - 1) * bytes), Some(count as u32 - 1));
    for off in [
        CHUNK + 1,
        CHUNK + bytes - 8,
        CHUNK + count * bytes,
        0,
        2 * CHUNK,
    ] {
        assert_eq!(number(off), None, "{off:#x}");
    }
}

#[test]
fn what_was_captured_when_a_block_was_freed_is_known() {
    let blocks = blocks(&[class_of(4096).unwrap()]);
    blocks.finish_recovery(77);
    assert_eq!(blocks.freed(CHUNK), 77);
    assert_eq!(blocks.freed(CHUNK + 4096), 77);
    assert_eq!(blocks.freed(9 * CHUNK), u64::MAX, "none of its blocks");
}

/// Free blocks of chunks in use come before a new chunk, at most a batch of them at a time.
#[test]
fn a_batch_comes_from_as_many_chunks_as_it_takes() {
    let class = class_of(4096).unwrap();
    let (blocks, guard) = (blocks(&[class, class]), epoch::pin());
    let (of_chunk, most) = (CHUNK / 4096, batch(class) as u64);
    assert!(most > 3);
    // All of the second chunk but three blocks are live, and one of the first.
    for block in (0..of_chunk - 3)
        .map(|i| 2 * CHUNK + i * 4096)
        .chain([CHUNK])
    {
        blocks.mark(block, 4096, 64 * CHUNK, &guard).unwrap();
    }
    blocks.finish_recovery(0);
    blocks.refill(class, &guard, no_chunk).unwrap();
    let cached = blocks.cache().0[usize::from(class)].clone();
    assert_eq!(cached.len() as u64, most - 1);
    let of_second = cached.iter().filter(|block| **block >= 2 * CHUNK).count();
    assert!((2..=3).contains(&of_second), "{cached:x?}");
}

fn no_chunk() -> Result<u32, SpaceError> {
    unreachable!("there are free blocks")
}

#[test]
fn the_only_free_block_of_a_chunk_is_handed_out_when_caches_are_emptied() {
    let class = class_of(4096).unwrap();
    let (blocks, guard) = (blocks(&[class]), epoch::pin());
    for i in 0..CHUNK / 4096 {
        blocks
            .mark(CHUNK + i * 4096, 4096, 64 * CHUNK, &guard)
            .unwrap();
    }
    blocks.finish_recovery(0);
    let block = CHUNK + 5 * 4096;
    assert!(blocks.clear_live(block, &guard));
    blocks.recycle(&[block], 0, &guard);
    blocks.empty_caches();
    assert!(blocks.cache().0[usize::from(class)].is_empty());
    assert_eq!(blocks.refill(class, &guard, no_chunk).unwrap(), block);
}

#[test]
fn chunks_with_live_blocks_stay_in_use_when_others_go_back() {
    let class = class_of(32_768).unwrap();
    let (blocks, guard) = (blocks(&[class; 2]), epoch::pin());
    let half = CHUNK / 2;
    for block in [CHUNK, 2 * CHUNK] {
        blocks.mark(block, half, 64 * CHUNK, &guard).unwrap();
    }
    blocks.finish_recovery(0);
    // All blocks of the first one come back.
    assert!(blocks.clear_live(CHUNK, &guard));
    blocks.recycle(&[CHUNK], 0, &guard);
    blocks.empty_caches();
    assert_eq!(blocks.take_empty(), [(1, 1)]);
    let next = blocks.refill(class, &guard, no_chunk);
    assert_eq!(next.unwrap(), 2 * CHUNK + half);
    let fresh = blocks.refill(class, &guard, || Ok(5));
    assert_eq!(fresh.unwrap(), 5 * CHUNK);
}

/// It would be a fault of this module. An allocation ends with an error then.
#[test]
fn a_chunk_that_counts_a_free_block_too_many_is_an_error() {
    let class = class_of(32_768).unwrap();
    let (blocks, guard) = (blocks(&[class]), epoch::pin());
    for block in [CHUNK, CHUNK + CHUNK / 2] {
        blocks.mark(block, CHUNK / 2, 64 * CHUNK, &guard).unwrap();
    }
    blocks.finish_recovery(0);
    let state = blocks.chunks.get(1, &guard).unwrap();
    state.untaken.store(1, Ordering::Relaxed);
    lock(&blocks.partial[usize::from(class)]).push(1);
    let error = blocks.refill(class, &guard, no_chunk).unwrap_err();
    assert!(error.to_string().contains("without a block"), "{error}");
}

#[test]
fn saved_marks_beyond_the_last_block_are_refused() {
    let class = class_of(4096).unwrap();
    let (blocks, guard) = (blocks(&[class]), epoch::pin());
    blocks.mark(CHUNK + 4096, 4096, 64 * CHUNK, &guard).unwrap();
    let mut saved = Vec::new();
    blocks.save_marks(&mut saved);
    assert_eq!(blocks.load_marks(&saved), Some(saved.len()));
    let of_chunk = (CHUNK / 4096) as usize;
    assert!(
        of_chunk < 64,
        "the last word of the marks has room for more"
    );
    saved[8 + of_chunk / 8] |= 1 << (of_chunk % 8);
    assert_eq!(blocks.load_marks(&saved), None);
    assert_eq!(blocks.load_marks(&saved[..saved.len() - 1]), None);
}
