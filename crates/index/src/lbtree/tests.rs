//! Tests of this design alone; the scenarios that all designs share are in `tests/`.

use super::*;
use crate::contract::{BulkLoad, DurableIndex, Fill, OrderedIndex, ReverseScan, VerifyReport};
use bristlecone_pmem::media::{Counting, Dram, Mapped};
use bristlecone_pmem::{MediaOptions, Pool, PoolOptions};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

fn options(reserve: u64) -> PoolOptions {
    PoolOptions {
        media: MediaOptions {
            reserve,
            ..MediaOptions::default()
        },
    }
}

fn dram<const B: usize>() -> LbTree<u64, u64, Counting<Dram>, B> {
    let pool = Pool::create(Path::new("dram"), &options(1 << 30)).unwrap();
    LbTree::create(&pool, "t", &LbOptions::default()).unwrap()
}

/// Maps u64 one to one to numbers that look random.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    let x = (x ^ x >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    x ^ x >> 33
}

fn grows_and_shrinks<const B: usize>() {
    let tree = dram::<B>();
    let mut model = BTreeMap::new();
    for i in 0..20_000 {
        tree.insert(&mix(i), &i).unwrap();
        model.insert(mix(i), i);
        assert!(matches!(
            tree.insert(&mix(i / 2), &0),
            Err(InsertError::KeyExists)
        ));
    }
    let report = tree.verify().unwrap();
    assert_eq!(report.entries, 20_000);
    for (key, value) in &model {
        assert_eq!(tree.get(key), Some(*value));
    }
    let mut seen = Vec::new();
    tree.scan(.., |k, v| {
        seen.push((*k, *v));
        ControlFlow::Continue(())
    });
    assert!(seen.iter().copied().eq(model.iter().map(|(k, v)| (*k, *v))));
    seen.clear();
    tree.scan_reverse(1 << 60..1 << 62, |k, v| {
        seen.push((*k, *v));
        ControlFlow::Continue(())
    });
    assert!(
        seen.iter()
            .copied()
            .eq(model.range(1 << 60..1 << 62).rev().map(|(k, v)| (*k, *v)))
    );
    for key in model.keys() {
        assert!(tree.remove(key).unwrap());
        assert!(!tree.remove(key).unwrap());
    }
    assert_eq!(
        tree.verify().unwrap(),
        VerifyReport {
            entries: 0,
            leaves: 1,
            records: 0
        }
    );
    assert_eq!(tree.stats().leaves, 1);
}

#[test]
fn one_block() {
    grows_and_shrinks::<1>();
}

#[test]
fn two_blocks() {
    grows_and_shrinks::<2>();
}

#[test]
fn three_blocks() {
    grows_and_shrinks::<3>();
}

#[test]
fn four_blocks() {
    grows_and_shrinks::<4>();
}

#[test]
fn reopens_cleanly_and_from_a_crash_image() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let image = dir.path().join("image");
    let pool = Pool::<Mapped>::create(&path, &options(1 << 30)).unwrap();
    let tree = LbTree::<[u8], [u8], _, 2>::create(&pool, "t", &LbOptions::default()).unwrap();
    let key = |i: u64| format!("key/{:016x}", mix(i)).into_bytes();
    for i in 0..30_000 {
        tree.upsert(&key(i % 20_000), format!("value {i}").as_bytes())
            .unwrap();
    }
    for i in 0..1_000 {
        assert!(tree.remove(&key(i)).unwrap());
    }
    std::fs::copy(&path, &image).unwrap();
    tree.verify().unwrap();
    tree.close().unwrap();
    drop(pool);
    for (path, clean) in [
        (&path, true),
        (&image, false),
        (&path, true),
        (&image, true),
    ] {
        let pool = Pool::<Mapped>::open(path, &options(1 << 30)).unwrap();
        assert_eq!(pool.info().was_clean, clean);
        for threads in [1, 3] {
            let options = LbOptions {
                recovery_threads: threads,
                ..LbOptions::default()
            };
            let tree = LbTree::<[u8], [u8], _, 2>::open(&pool, "t", &options).unwrap();
            assert_eq!(tree.recovery().clean, clean || threads == 3);
            assert_eq!(tree.verify().unwrap().entries, 19_000);
            for i in 0..20_000 {
                let expected = match i {
                    0..1_000 => None,
                    1_000..10_000 => Some(format!("value {}", i + 20_000)),
                    _ => Some(format!("value {i}")),
                };
                assert_eq!(
                    tree.get(&key(i)),
                    expected.map(String::into_bytes),
                    "key {i}"
                );
            }
        }
    }
}

#[test]
fn batches_do_what_single_calls_do() {
    let tree = dram::<1>();
    let pairs: Vec<(u64, u64)> = (0..10_000).map(|i| (mix(i / 2), i)).collect();
    let mut out = Vec::new();
    for batch in pairs.chunks(50) {
        tree.multi_insert(batch, &mut out);
        for (pair, result) in batch.iter().zip(&out) {
            assert_eq!(result.is_ok(), pair.1 % 2 == 0, "{pair:?}: {result:?}");
        }
    }
    tree.verify().unwrap();
    let keys: Vec<u64> = (0..10_000).map(mix).collect();
    let mut values = Vec::new();
    tree.multi_get(&keys, &mut values);
    for (i, value) in values.iter().enumerate() {
        assert_eq!(*value, (i < 5_000).then_some(i as u64 * 2));
    }
}

#[test]
fn bulk_load_fills_as_told() {
    for percent in [1, 50, 70, 100] {
        let mut tree = dram::<2>();
        let fill = Fill::percent(percent).unwrap();
        assert_eq!(
            tree.bulk_load((0..5_000u64).map(|i| (i * 3, i)), fill)
                .unwrap(),
            5_000
        );
        assert_eq!(tree.verify().unwrap().entries, 5_000);
        let stats = tree.stats();
        assert_eq!(stats.leaves, 5_000u64.div_ceil(fill.of(28) as u64));
        assert_eq!(tree.get(&2_997), Some(999));
        for i in 0..5_000 {
            tree.insert(&(i * 3 + 1), &i).unwrap();
        }
        assert_eq!(tree.verify().unwrap().entries, 10_000);
        assert!(
            tree.bulk_load([(1u64, 1u64)].into_iter(), fill).is_err(),
            "not empty"
        );
    }
    let mut tree = dram::<1>();
    assert!(
        tree.bulk_load([(2u64, 1u64), (2, 2)].into_iter(), Fill::FULL)
            .is_err()
    );
    assert_eq!(
        tree.verify().unwrap(),
        VerifyReport {
            entries: 0,
            leaves: 1,
            records: 0
        }
    );
}

#[test]
fn hinted_updates_share_a_fence_and_no_hint_leads_astray() {
    let tree = dram::<1>();
    let other = dram::<1>();
    for i in 0..1000 {
        tree.insert(&mix(i), &i).unwrap();
        other.insert(&mix(i), &(i + 5000)).unwrap();
    }
    let keys: Vec<u64> = (0..100).map(|i| mix(7 * i)).chain([1]).collect();
    let (mut found, mut ahead) = (Vec::new(), Vec::new());
    tree.multi_get_hinted(&keys, |value| ahead.push(*value), &mut found);
    let values: Vec<_> = found.iter().map(|(value, _)| *value).collect();
    let expected = (0..100).map(|i| Some(7 * i)).chain([None]);
    assert!(values.iter().copied().eq(expected));
    assert!((0..100).all(|i| ahead.contains(&(7 * i))));
    let mut elsewhere = Vec::new();
    other.multi_get_hinted(&keys, |_| {}, &mut elsewhere);
    let before = tree.pm().counts();
    let none = crate::contract::Hint::default();
    let hints = [&found[0].1, &none, &found[3].1, &elsewhere[3].1];
    let mut unflushed = Vec::new();
    for (i, hint) in hints.into_iter().enumerate() {
        let word = tree
            .update_unflushed(hint, &keys[i], &(i as u64 + 1))
            .unwrap();
        unflushed.push(word.unwrap());
    }
    let cost = tree.pm().counts();
    assert_eq!(
        (cost.lines - before.lines, cost.fences - before.fences),
        (0, 0)
    );
    for (i, off) in unflushed.iter().enumerate() {
        let word = tree.pm().base().wrapping_add(*off as usize).cast::<u64>();
        // SAFETY: 1. a value's word in the pool; 2. no other thread has the tree.
        assert_eq!(unsafe { word.read() }, i as u64 + 1);
    }
    assert!(matches!(
        tree.update_unflushed(&found[100].1, &1, &0),
        Err(crate::contract::UpdateError::NotFound)
    ));
    // Hints to leaves that were split since still lead to the right ones.
    for i in 1000..20_000 {
        tree.insert(&mix(i), &i).unwrap();
    }
    for (i, (key, (_, hint))) in keys.iter().zip(&found).enumerate().take(100).skip(4) {
        tree.update_unflushed(hint, key, &(i as u64 + 1)).unwrap();
    }
    for (i, key) in keys[..100].iter().enumerate() {
        assert_eq!(tree.get(key), Some(i as u64 + 1));
        assert_eq!(other.get(key), Some(7 * i as u64 + 5000));
    }
    assert_eq!(tree.verify().unwrap().entries, 20_000);
}
