//! Batches that many pages have to hold.

use super::tests::{crash, pool};
use super::tests_outer::{Model, OPTIONS, Tree, assert_has, key};
use super::*;
use crate::contract::{Direction, DurableIndex, OrderedIndex};
use crossbeam_epoch as epoch;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

type Changes = Vec<(Vec<u8>, Option<Vec<u8>>)>;

fn write(tree: &Tree, model: &mut Model, changes: &Changes) {
    let batch = changes.iter().map(|(k, v)| (&k[..], v.as_deref()));
    tree.write_batch(batch).unwrap();
    for (k, v) in changes.iter().cloned() {
        match v {
            Some(v) => model.insert(k, v),
            None => model.remove(&k),
        };
    }
}

/// Changes of keys that lie close together, in key order or not: many are new, some replace or
/// remove what is there, and some values are long.
fn any_changes(rng: &mut StdRng) -> Changes {
    let first = rng.random_range(0..3_000);
    let many = rng.random_range(1..400);
    let value = |rng: &mut StdRng| {
        let len = match rng.random_range(0..20) {
            0 => rng.random_range(257..3_000),
            1..4 => rng.random_range(100..257),
            _ => rng.random_range(0..40),
        };
        vec![rng.random(); len]
    };
    let mut changes: Changes = (first..first + many)
        .map(|n| (key(n), rng.random_bool(0.9).then(|| value(rng))))
        .collect();
    if rng.random_bool(0.5) {
        changes.shuffle(rng);
    }
    changes
}

/// Removals of what a page has, but for a few, and of some that it has not.
fn most_of_a_page(rng: &mut StdRng, tree: &Tree) -> Changes {
    let page = (tree.inner).find_range(&key(rng.random_range(0..3_000))[..], &epoch::pin());
    let keys = (0..3_400).map(key).filter(|key| {
        let from_low = page.low.as_ref().is_none_or(|low| low <= key);
        from_low && page.high.as_ref().is_none_or(|high| key < high)
    });
    let kept = [0.0, 0.1, 0.4][rng.random_range(0..3)];
    keys.filter(|_| !rng.random_bool(kept))
        .map(|key| (key, None))
        .collect()
}

#[test]
fn batches_of_neighbours_agree_with_a_map() {
    for seed in 0..6 {
        let rng = &mut StdRng::seed_from_u64(seed);
        let pool = pool(1 << 30);
        let options = ClusteredOptions {
            page_bytes: if seed % 2 == 0 { 1024 } else { 4096 },
        };
        let mut tree = Tree::create(&pool, "t", &options).unwrap();
        let mut model = Model::new();
        for round in 0..40 {
            let (before, snapshot) = (model.clone(), tree.snapshot());
            let changes = match rng.random_range(0..3) {
                0 => most_of_a_page(rng, &tree),
                _ => any_changes(rng),
            };
            write(&tree, &mut model, &changes);
            let mut seen = Model::new();
            let mut visit = |key: &[u8], value: &[u8]| {
                seen.insert(key.to_vec(), value.to_vec());
                ControlFlow::Continue(())
            };
            let all = (Bound::<&[u8]>::Unbounded, Bound::<&[u8]>::Unbounded);
            snapshot
                .scan::<(Bound<&[u8]>, Bound<&[u8]>)>(all, Direction::Up, &mut visit)
                .unwrap();
            assert!(seen == before, "a snapshot from before the batch");
            drop(snapshot);
            for n in 0..rng.random_range(0..200) {
                let _ = tree.remove(&key(n * 7));
                model.remove(&key(n * 7));
            }
            if round % 5 == 4 {
                assert_has(&tree, &model);
                if round % 10 == 4 {
                    tree.close().unwrap();
                } else {
                    crash(tree);
                }
                tree = Tree::open(&pool, "t", &options).unwrap();
                assert_has(&tree, &model);
            }
        }
    }
}

/// All pages share two fences, and each adds its separator to the parent with one.
#[test]
fn a_spread_batch_takes_two_fences_and_one_for_each_page() {
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    tree.upsert(b"a", b"below").unwrap();
    tree.upsert(b"z", b"above").unwrap();
    let mut model = Model::from([
        (b"a".to_vec(), b"below".to_vec()),
        (b"z".to_vec(), b"above".to_vec()),
    ]);
    let changes = |from: u32| (from..from + 200).map(|n| (key(n), Some(vec![7; 8])));
    // The root is split first.
    write(&tree, &mut model, &changes(0).collect());
    let pages = tree.stats().leaves;
    let before = pool.pm().counts();
    write(&tree, &mut model, &changes(200).collect());
    let cost = pool.pm().counts() - before;
    let added = tree.stats().leaves - pages;
    assert!(added >= 3, "{added} pages");
    assert!(cost.fences <= added + 4, "{cost:?} for {added} pages");
    // 16 bytes of each entry are its own, the rest is the prefix, which a page leaves out.
    assert!(cost.lines <= 200 * 3 / 4, "{cost:?}");
    assert_has(&tree, &model);
}

/// One page without the keys takes less than a group that removes them.
#[test]
fn removing_what_a_page_has_costs_little_more_than_a_merge() {
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    let mut model = Model::new();
    write(
        &tree,
        &mut model,
        &(0..4_000).map(|n| (key(n), Some(vec![7; 8]))).collect(),
    );
    for n in (500..1_000).step_by(100) {
        let page = tree.inner.find_range(&key(n)[..], &epoch::pin());
        let (low, high) = (page.low.unwrap(), page.high.unwrap());
        let keys: Vec<_> = model.range(low..high).map(|(key, _)| key.clone()).collect();
        assert!(keys.len() > 20, "{keys:?}");
        let before = pool.pm().counts();
        write(
            &tree,
            &mut model,
            &keys.iter().map(|key| (key.clone(), None)).collect(),
        );
        let cost = pool.pm().counts() - before;
        // It is merged with its neighbour, which is written anew for it.
        assert!(cost.fences <= 2 + 5, "{cost:?}");
        assert!(
            cost.lines <= 4 + OPTIONS.page_bytes as u64 / 64 + 10,
            "{cost:?}"
        );
        assert_has(&tree, &model);
    }
}

/// Removals need no space, by pages either.
#[test]
fn what_a_page_has_can_be_removed_from_a_full_pool() {
    let pool = pool(4 << 20);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    let mut model = Model::new();
    let mut n = 0;
    while tree.upsert(&key(n), &[1; 200]).is_ok() {
        model.insert(key(n), vec![1; 200]);
        n += 1;
    }
    while let Some(first) = model.keys().next().cloned() {
        let end = tree.inner.find_range(&first[..], &epoch::pin()).high;
        let of_page = model
            .keys()
            .take_while(|key| end.as_ref().is_none_or(|end| *key < end));
        let changes = of_page.map(|key| (key.clone(), None)).collect();
        write(&tree, &mut model, &changes);
    }
    assert_has(&tree, &model);
    assert_eq!(tree.stats().leaves, 1);
}

#[test]
fn pages_of_ascending_batches_are_full() {
    for page_bytes in [1024, 4096] {
        let pool = pool(1 << 30);
        let tree = Tree::create(&pool, "t", &ClusteredOptions { page_bytes }).unwrap();
        tree.upsert(b"z", b"above").unwrap();
        for batch in 0..50u64 {
            let keys = (batch * 1000..(batch + 1) * 1000).map(u64::to_be_bytes);
            let keys: Vec<[u8; 8]> = keys.collect();
            let pairs = keys.iter().map(|key| (&key[..], Some(&[1; 8][..])));
            tree.write_batch(pairs).unwrap();
        }
        let leaves = tree.stats().leaves;
        let entries = 50_000 * 16 / leaves;
        assert!(
            entries * 100 >= u64::from(page_bytes) * 85,
            "{entries} of {page_bytes} bytes"
        );
    }
}

#[test]
fn a_batch_without_space_for_its_pages_changes_nothing() {
    let pool = pool(4 << 20);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    let mut model = Model::new();
    write(&tree, &mut model, &vec![(key(0), Some(vec![1; 8]))]);
    let live = |tree: &Tree| {
        bristlecone_pmem::sync::wait_for_readers();
        tree.heap.live_blocks()
    };
    let large: Changes = (0..60_000).map(|n| (key(n), Some(vec![2; 100]))).collect();
    let refused = || {
        let batch = large.iter().map(|(k, v)| (&k[..], v.as_deref()));
        assert!(tree.write_batch(batch).is_err(), "a pool of 4 MiB");
        assert_has(&tree, &model);
        live(&tree)
    };
    // The first one splits the root and adds to the page table, which both stay.
    let first = refused();
    assert_eq!(refused(), first, "blocks in use");
    write(&tree, &mut model, &large[..500].to_vec());
    assert_has(&tree, &model);
}

/// Readers and writers of the page while it becomes many.
fn others_go_on() {
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    const BATCH: u32 = 3_000;
    const ROUNDS: u32 = 30;
    let (over, now) = (AtomicBool::new(false), AtomicU32::new(0));
    // Keys between those of the batches, which nobody changes.
    let still = |n: u32| format!("key/{n:05}=").into_bytes();
    for n in (0..BATCH * ROUNDS).step_by(1_000) {
        tree.insert(&still(n), b"still").unwrap();
    }
    std::thread::scope(|scope| {
        let (tree, over, now) = (&tree, &over, &now);
        scope.spawn(move || {
            for round in 0..ROUNDS {
                now.store(round, Ordering::Relaxed);
                let keys: Vec<_> = (0..BATCH).map(|n| key(round * BATCH + n)).collect();
                let value = round.to_le_bytes();
                let batch = keys.iter().map(|key| (&key[..], Some(&value[..])));
                tree.write_batch(batch).unwrap();
            }
            // ORDERING: Relaxed (all); they only say where to look, and when to end.
            over.store(true, Ordering::Relaxed);
        });
        for thread in 0..2 {
            scope.spawn(move || {
                let rng = &mut StdRng::seed_from_u64(thread);
                while !over.load(Ordering::Relaxed) {
                    let round = match now.load(Ordering::Relaxed) {
                        round if rng.random_bool(0.5) => round,
                        _ => rng.random_range(0..ROUNDS),
                    };
                    let some = key(round * BATCH + rng.random_range(0..BATCH));
                    let written = (now.load(Ordering::Relaxed) * BATCH).max(1);
                    let own = format!("key/{:05}/{thread}", rng.random_range(0..written));
                    tree.upsert(own.as_bytes(), b"own").unwrap();
                    if rng.random_bool(0.7) {
                        assert!(tree.remove(own.as_bytes()).unwrap());
                    }
                    // Where the batch is, mostly.
                    for _ in 0..[2_000, 50][thread as usize] {
                        let first = now.load(Ordering::Relaxed) * BATCH;
                        let there = still(first + rng.random_range(0..BATCH / 1_000) * 1_000);
                        assert!(tree.get(&there).is_some(), "{there:?} stays");
                    }
                    let snapshot = tree.snapshot();
                    let (mut seen, mut stays) = (0, 0);
                    let (from, to) = (key(round * BATCH), key((round + 1) * BATCH));
                    let range = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
                    let scanned = snapshot.scan::<(Bound<&[u8]>, Bound<&[u8]>)>(
                        range,
                        Direction::Up,
                        |key, value| {
                            if key.len() == 9 {
                                assert_eq!(value, round.to_le_bytes());
                                seen += 1;
                            }
                            stays += u32::from(value == b"still");
                            ControlFlow::Continue(())
                        },
                    );
                    scanned.unwrap();
                    let expected = (round * BATCH..(round + 1) * BATCH).filter(|n| n % 1_000 == 0);
                    assert_eq!(stays, expected.count() as u32, "a scan leaves none out");
                    let there = snapshot.get(&some[..]).unwrap().is_some();
                    assert_eq!(
                        seen,
                        if there { BATCH } else { 0 },
                        "all of a batch or nothing"
                    );
                }
            });
        }
    });
    assert!(tree.verify().unwrap().entries >= u64::from(BATCH * ROUNDS));
}

#[test]
fn others_go_on_beside_a_batch_that_is_spread() {
    (0..10).for_each(|_| others_go_on());
}

/// A root that is larger than other pages may have room for what they would not.
#[test]
fn a_large_root_with_room_stays_one_page() {
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    let mut model = Model::new();
    for long in [b'a', b'z'] {
        tree.upsert(&[long; 2000], b"long").unwrap();
        model.insert(vec![long; 2000], b"long".to_vec());
    }
    let changes = (0..10).map(|n| (key(n), Some(vec![3; 240]))).collect();
    write(&tree, &mut model, &changes);
    assert_has(&tree, &model);
    let more = (10..400).map(|n| (key(n), Some(vec![4; 40]))).collect();
    write(&tree, &mut model, &more);
    assert_has(&tree, &model);
    crash(tree);
    let tree = Tree::open(&pool, "t", &OPTIONS).unwrap();
    assert_has(&tree, &model);
}
