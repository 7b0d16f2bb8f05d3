//! Costs of each operation on the log-structured B+-tree in flushed lines and fences: goldens that
//! a change must not raise unnoticed.
//!
//! Counted in memory. A delta of numbers has 32 bytes, two to a line, eight to a media line of 256
//! bytes; a base has 24 and 16 for each pair.

use crate::common::counted::{Medium, cost, pool};
use bristlecone_designs::lstree::{LsOptions, LsTree};
use bristlecone_designs::{BulkLoad, DurableIndex, Fill, InsertError, OrderedIndex};
use bristlecone_pmem::pool::Pool;
use std::sync::Arc;

type Numbers = LsTree<u64, u64, Medium>;
type Strings = LsTree<[u8], [u8], Medium>;

fn tree(pool: &Arc<Pool<Medium>>) -> Numbers {
    Numbers::create(pool, "index", &LsOptions::default()).expect("a new root")
}

/// Maps numbers to others that look random and never repeat.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Any change of a number: its delta's line.
const DELTA: (u64, u64) = (1, 1);
/// A chain with as many deltas as its table entry has room for (16, of 512-byte leaves) becomes a
/// base of 17 pairs, 296 bytes.
const BASE_OF_17: (u64, u64) = (5, 1);
/// The 33rd pair splits a leaf: one record of 24 + 33 x 16 bytes.
const SPLIT: (u64, u64) = (9, 1);
/// An operation that changes nothing writes nothing.
const NOTHING: (u64, u64) = (0, 0);

#[test]
fn every_change_is_one_record() {
    let pool = pool();
    let tree = tree(&pool);
    // The first record of a leaf is a base: of one pair, 40 bytes.
    for n in 0..17 {
        let paid = cost(&pool, || tree.insert(&n, &n).expect("a new key"));
        assert_eq!(paid, DELTA, "insertion {n}");
    }
    // A base of 18 pairs.
    let paid = cost(&pool, || tree.insert(&17, &17).expect("a new key"));
    assert_eq!(paid, BASE_OF_17, "consolidation");
    for n in 0..4 {
        let paid = cost(&pool, || tree.update(&n, &9).expect("it is there"));
        assert_eq!(paid, DELTA, "update {n}");
        let paid = cost(&pool, || assert!(tree.upsert(&n, &8).expect("upsert")));
        assert_eq!(paid, DELTA, "upsert {n}");
    }
    let paid = cost(&pool, || assert!(tree.remove(&0).expect("removal")));
    assert_eq!(paid, DELTA, "removal");
    let paid = cost(&pool, || {
        assert!(matches!(tree.insert(&3, &3), Err(InsertError::KeyExists)));
        tree.update(&77, &3).expect_err("no such key");
        assert!(!tree.remove(&0).expect("removal"));
        assert_eq!((tree.get(&3), tree.get(&0)), (Some(8), None));
        tree.scan(3.., |_, _| std::ops::ControlFlow::Break(()));
        assert_eq!(tree.verify().expect("whole").entries, 17);
    });
    assert_eq!(paid, NOTHING, "calls that change nothing");
}

#[test]
fn a_split_is_one_record() {
    let pool = pool();
    let mut tree = tree(&pool);
    let pairs = (0..32u64).map(|n| (n * 2, n));
    tree.bulk_load(pairs, Fill::FULL).expect("an empty tree");
    assert_eq!(tree.stats().leaves, 1);
    let paid = cost(&pool, || tree.insert(&7, &7).expect("a new key"));
    assert_eq!(paid, SPLIT);
    assert_eq!(tree.stats().leaves, 2);
    // To unlink an emptied leaf, only the last removal's own record is written, which says that it
    // is empty.
    for n in 0..32 {
        if n < 8 {
            let paid = cost(&pool, || assert!(tree.remove(&(n * 2)).expect("removal")));
            assert_eq!(paid, DELTA, "removal of {n}");
        } else {
            assert!(tree.remove(&(n * 2)).expect("removal"));
        }
    }
    assert!(tree.remove(&7).expect("removal"));
    assert_eq!(tree.verify().expect("whole").leaves, 1);
}

/// Fill Random: lines, fences and bytes of an insertion, with splits and collection. The paper has
/// 16-byte keys and values and counts what the device writes per byte that it is given, 1.4 to 1.7.
/// This is what the tree gives it for 16 bytes of key and value.
#[test]
fn fill_random() {
    for (percent, most_lines, most_bytes) in
        [(100, 2.0, 80.0), (50, 2.3, 110.0), (u32::MAX, 1.8, 65.0)]
    {
        let pool = pool();
        let options = LsOptions {
            garbage_percent: percent,
            ..LsOptions::default()
        };
        let tree = Numbers::create(&pool, "index", &options).expect("a new root");
        for n in 0..200_000 {
            tree.insert(&scattered(n), &n).expect("a new key");
        }
        let before = tree.ls_stats();
        let (lines, fences) = cost(&pool, || {
            for n in 200_000..300_000 {
                tree.insert(&scattered(n), &n).expect("a new key");
            }
        });
        let after = tree.ls_stats();
        let each = |n: u64| n as f64 / 1e5;
        let bytes = each(after.appended_bytes - before.appended_bytes);
        println!(
            "{percent} % garbage: {:.3} lines, {:.3} fences, {bytes:.1} bytes; {:?}",
            each(lines),
            each(fences),
            after
        );
        assert!(each(lines) <= most_lines, "{:.3} lines", each(lines));
        assert!(bytes <= most_bytes, "{bytes:.1} bytes");
        let splits = after.splits - before.splits;
        assert!(splits > 4_000 && splits < 7_000, "{splits} splits");
        assert!(each(fences) <= 1.2, "{:.3} fences", each(fences));
    }
}

#[test]
fn strings() {
    let pool = pool();
    let tree = Strings::create(&pool, "index", &LsOptions::default()).expect("a new root");
    tree.insert(b"first", b"").expect("a new key");
    let long = [7; 300];
    // Key and value words, and two strings of 24 and 16 bytes with their heads: 72 bytes.
    let paid = cost(&pool, || {
        tree.insert(b"a key of 16 byte", b"value").expect("new")
    });
    assert_eq!(paid, (2, 1), "insertion");
    let paid = cost(&pool, || tree.update(b"first", b"other").expect("there"));
    assert_eq!(paid, (1, 1), "update");
    // A chunk for blocks of this size: 1 line, 1 fence. Then the block's 5 lines, a fence, the
    // delta.
    tree.insert(b"second", &long).expect("a new key");
    let paid = cost(&pool, || tree.update(b"first", &long).expect("there"));
    assert_eq!(paid, (5 + 1, 2), "update to a long value");
    let paid = cost(&pool, || assert!(tree.remove(b"first").expect("removal")));
    assert_eq!(paid, (1, 1), "removal");
    tree.verify().expect("whole");
}
