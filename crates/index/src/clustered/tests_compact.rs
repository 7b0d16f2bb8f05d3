//! Making a tree smaller.

use super::tests::{Medium, crash, part_of, pool, tree};
use super::tests_outer::{Model, OPTIONS, Tree, assert_has, change, key};
use super::*;
use crate::contract::{Direction, DurableIndex, OrderedIndex};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a new pool with these entries, put in random order, after it was compacted.
fn fresh<'v>(entries: impl Iterator<Item = (Vec<u8>, &'v [u8])>, rng: &mut StdRng) -> u64 {
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &ClusteredOptions::default()).unwrap();
    let mut entries: Vec<_> = entries.collect();
    for i in (1..entries.len()).rev() {
        entries.swap(i, rng.random_range(0..=i));
    }
    for (key, value) in entries {
        tree.insert(&key, value).unwrap();
    }
    pool.compact().unwrap().after_bytes
}

/// Of the keys, put in random order, a tenth stays.
fn shrinks(keys: u32, value: impl Fn(u32) -> Vec<u8>) {
    let rng = &mut StdRng::seed_from_u64(11);
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &ClusteredOptions::default()).unwrap();
    let mut all: Vec<u32> = (0..keys).collect();
    for i in (1..all.len()).rev() {
        all.swap(i, rng.random_range(0..=i));
    }
    for n in &all {
        tree.insert(&key(*n), &value(*n)).unwrap();
    }
    let full = pool.compact().unwrap().after_bytes;
    let (gone, left) = all.split_at(all.len() / 10 * 9);
    for n in gone {
        assert!(tree.remove(&key(*n)).unwrap());
    }
    let done = tree.compact().unwrap();
    assert!(done.pages > 0, "{done:?}");
    let model: Model = left.iter().map(|n| (key(*n), value(*n))).collect();
    assert_has(&tree, &model);
    let small = pool.compact().unwrap();
    let used = small.after_bytes - small.punched_bytes;
    let ideal = fresh(model.iter().map(|(k, v)| (k.clone(), v.as_slice())), rng);
    assert!(
        used * 10 <= ideal * 13 && used * 5 < full,
        "{full} bytes became {used}, a new tree takes {ideal}: {done:?}"
    );
    crash(tree);
    let tree = Tree::open(&pool, "t", &ClusteredOptions::default()).unwrap();
    assert_has(&tree, &model);
}

#[test]
fn after_most_keys_went_a_tree_becomes_about_as_small_as_a_new_one() {
    shrinks(400_000, |n| n.to_be_bytes().to_vec());
}

#[test]
fn long_values_move_too() {
    shrinks(30_000, |n| vec![n as u8; 900 + n as usize % 300]);
}

#[test]
fn values_of_whole_chunks_move_too() {
    shrinks(300, |n| vec![n as u8; 100_000 + n as usize % 3 * 70_000]);
}

/// Changes, and a compaction, between which a snapshot is taken.
fn compacted_under_a_snapshot(rng: &mut StdRng, tree: &Tree, model: &mut Model) {
    let (snapshot, before) = (tree.snapshot(), model.clone());
    (0..30).for_each(|_| change(rng, tree, model));
    tree.compact().unwrap();
    let mut all = Vec::new();
    let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);
    let visit = |k: &[u8], v: &[u8]| {
        all.push((k.to_vec(), v.to_vec()));
        ControlFlow::Continue(())
    };
    snapshot.scan(range, Direction::Up, visit).unwrap();
    assert!(all == before.into_iter().collect::<Vec<_>>());
}

#[test]
fn a_tree_that_is_compacted_again_and_again_is_a_map() {
    let rng = &mut StdRng::seed_from_u64(12);
    let pool = pool(1 << 30);
    let mut tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    let mut model = Model::new();
    for round in 0..12 {
        (0..150).for_each(|_| change(rng, &tree, &mut model));
        if round % 2 == 0 {
            compacted_under_a_snapshot(rng, &tree, &mut model);
        }
        tree.compact().unwrap();
        assert_has(&tree, &model);
        pool.compact().unwrap();
        match round % 3 {
            0 => tree.close().unwrap(),
            1 => crash(tree),
            _ => continue,
        }
        tree = Tree::open(&pool, "t", &OPTIONS).unwrap();
        assert_has(&tree, &model);
    }
}

#[test]
fn a_snapshot_that_saw_a_value_before_it_moved_writes_without_a_conflict() {
    let rng = &mut StdRng::seed_from_u64(13);
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    let value = |rng: &mut StdRng| -> Vec<u8> { (0..700).map(|_| rng.random()).collect() };
    for n in 0..2_000 {
        tree.insert(&key(n), &value(rng)).unwrap();
    }
    for n in (0..2_000).filter(|n| n % 10 != 0) {
        tree.remove(&key(n)).unwrap();
    }
    let snapshot = tree.snapshot();
    let done = tree.compact().unwrap();
    assert!(done.values > 50, "{done:?}");
    let moved = snapshot.get(&key(1_990)).unwrap().unwrap();
    assert_eq!(tree.get(&key(1_990)), Some(moved));
    let changed = snapshot.write_batch([(&key(1_990)[..], Some(&b"new"[..]))]);
    changed.unwrap();
}

#[test]
fn pages_that_are_not_loaded_are_compacted_and_damaged_ones_are_left() {
    let tree = tree::<u64>(512);
    const KEYS: u64 = 20_000;
    for key in 0..KEYS {
        tree.insert(&key, &key).unwrap();
    }
    for key in (0..KEYS).filter(|key| key % 7 != 0) {
        tree.remove(&key).unwrap();
    }
    let hurt = KEYS / 2 / 7 * 7;
    let (block, words) = part_of(&tree, hurt).block_and_words();
    let pool = Arc::clone(tree.pool());
    tree.close().unwrap();
    let options = ClusteredOptions { page_bytes: 512 };
    let tree = LazyTree::<u64, u64, Medium>::open(&pool, "t", &options).unwrap();
    let cell = tree.tree().page(block, words).cell(20);
    let word = cell.load(pool.pm(), Ordering::Relaxed);
    cell.store(pool.pm(), word ^ 1 << 17, Ordering::Relaxed);

    let failed = tree.tree().compact().unwrap_err();
    assert!(matches!(failed, ReadError::Damaged(_)), "{failed}");
    assert!(matches!(tree.get(&hurt), Err(ReadError::Damaged(_))));
    cell.store(pool.pm(), word, Ordering::Relaxed);
    assert_eq!(
        tree.load_rest().unwrap(),
        KEYS.div_ceil(7),
        "nothing is lost"
    );
    let done = tree.tree().compact().unwrap();
    tree.verify().unwrap();
    let few = done.merged + done.filled;
    assert!(
        few <= 4,
        "all others were merged or filled before: {done:?}"
    );
}

#[test]
fn others_read_and_write_meanwhile() {
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    const THREADS: u32 = 3;
    const KEYS: u32 = 1_500;
    let of = |thread: u32, n: u32| key(n * THREADS + thread);
    let done = AtomicBool::new(false);
    let models = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let tree = &tree;
                scope.spawn(move || {
                    let rng = &mut StdRng::seed_from_u64(u64::from(thread));
                    let mut model = Model::new();
                    for i in 0..20_000u32 {
                        let n = rng.random_range(0..KEYS);
                        // Most go again, so pages become sparse.
                        if rng.random_bool(0.7) {
                            let was = tree.remove(&of(thread, n)).unwrap();
                            assert_eq!(was, model.remove(&of(thread, n)).is_some());
                        } else {
                            let len = [20, 300, 2_000][i as usize % 3];
                            let value = vec![i as u8; len];
                            tree.upsert(&of(thread, n), &value).unwrap();
                            model.insert(of(thread, n), value);
                        }
                        let n = rng.random_range(0..KEYS);
                        let expected = model.get(&of(thread, n)).cloned();
                        assert_eq!(tree.get(&of(thread, n)), expected);
                    }
                    model
                })
            })
            .collect();
        let compacting = scope.spawn(|| {
            let mut times = 0;
            while !done.load(Ordering::Relaxed) || times < 2 {
                tree.compact().unwrap();
                pool.compact().unwrap();
                times += 1;
            }
        });
        let models: Vec<Model> = writers.into_iter().map(|w| w.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        compacting.join().unwrap();
        models
    });
    let model: Model = models.into_iter().flatten().collect();
    assert_has(&tree, &model);
    crash(tree);
    let tree = Tree::open(&pool, "t", &OPTIONS).unwrap();
    assert_has(&tree, &model);
}

#[test]
fn a_compaction_that_is_told_to_stop_leaves_a_whole_tree() {
    let tree = tree::<u64>(512);
    for key in 0..20_000u64 {
        tree.insert(&key, &key).unwrap();
    }
    for key in (0..20_000u64).filter(|key| key % 10 != 0) {
        tree.remove(&key).unwrap();
    }
    for pages in [0, 1, 50, 300] {
        let looks = std::cell::Cell::new(0);
        let stops = || {
            looks.set(looks.get() + 1);
            looks.get() > pages
        };
        tree.shrink(true, &stops).unwrap();
        assert_eq!(tree.verify().unwrap().entries, 2_000);
    }
    // Chunks that were to be emptied are in use again.
    for key in 0..20_000u64 {
        tree.upsert(&key, &key).unwrap();
    }
    assert_eq!(tree.verify().unwrap().entries, 20_000);
}

/// Entries that came in no order leave room in their pages, which a compaction fills.
#[test]
fn pages_are_filled_up() {
    for value in [8, 150] {
        let rng = &mut StdRng::seed_from_u64(12);
        let pool = pool(1 << 30);
        let tree = Tree::create(&pool, "t", &ClusteredOptions::default()).unwrap();
        let mut model = Model::new();
        for _ in 0..40_000 {
            let (k, v) = (key(rng.random_range(0..90_000)), vec![rng.random(); value]);
            tree.upsert(&k, &v).unwrap();
            model.insert(k, v);
        }
        let loose = tree.stats().leaves;
        let before = tree.snapshot();
        let done = tree.compact().unwrap();
        assert!(done.filled * 4 > loose, "{done:?} of {loose} pages");
        assert_has(&tree, &model);
        let pages = tree.stats().leaves;
        assert!(pages * 100 <= loose * 88, "{loose} pages became {pages}");
        drop(before);
        // What is full is left alone.
        let again = tree.compact().unwrap();
        assert!(again.filled * 20 < pages, "{again:?} of {pages} pages");
        assert_has(&tree, &model);
        crash(tree);
        let tree = Tree::open(&pool, "t", &ClusteredOptions::default()).unwrap();
        assert_has(&tree, &model);
    }
}
