//! Costs of each operation on the CDDS-Tree in flushed lines and fences: goldens that a change must
//! not raise unnoticed.
//!
//! Counted in memory. A node of 1024 bytes has 32 slots, two to a line; every operation ends with
//! the NAW of its version: (1, 1).

use crate::common::counted::{Medium, cost, pool};
use bristlecone_designs::cddstree::{CddsOptions, CddsTree};
use bristlecone_designs::{BulkLoad, DurableIndex, Fill, InsertError, OrderedIndex};
use bristlecone_pmem::pool::Pool;
use std::sync::Arc;

type Numbers = CddsTree<u64, u64, Medium>;
type Strings = CddsTree<[u8], [u8], Medium>;

fn tree(pool: &Arc<Pool<Medium>>, node_bytes: u32) -> Numbers {
    let options = CddsOptions {
        node_bytes,
        ..CddsOptions::default()
    };
    Numbers::create(pool, "index", &options).expect("a new root")
}

/// Maps numbers to others that look random and never repeat.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// An insertion that moves nothing: the entry, the version.
const APPEND: (u64, u64) = (2, 2);
/// A removal: the end of the entry, the version.
const REMOVE: (u64, u64) = (2, 1);
/// A split of the root leaf: two nodes of 16 lines, a root of 16 lines, a fence, the version.
const SPLIT_ROOT: (u64, u64) = (3 * 16 + 1, 2);
/// An operation that changes nothing writes nothing.
const NOTHING: (u64, u64) = (0, 0);

/// Each entry behind the new one costs one line and one fence.
#[test]
fn an_insertion_flushes_each_entry_that_it_moves() {
    for ascending in [true, false] {
        let pool = pool();
        let tree = tree(&pool, 1024);
        for n in 0..32 {
            let key = if ascending { 100 + n } else { 100 - n };
            let paid = cost(&pool, || tree.insert(&key, &n).expect("a new key"));
            let moved = if ascending { 0 } else { n };
            assert_eq!(paid, (APPEND.0 + moved, APPEND.1 + moved), "insert {n}");
        }
        let paid = cost(&pool, || tree.insert(&1_000, &0).expect("a new key"));
        assert_eq!(paid, SPLIT_ROOT);
        // The new leaf on the right has 16 entries: 84 + n or so; its parent has room.
        for n in 0..15 {
            let paid = cost(&pool, || tree.insert(&(2_000 + n), &n).expect("a new key"));
            assert_eq!(paid, APPEND, "insert {n} behind all others");
        }
    }
}

/// A split under a parent with room costs two nodes, the parent's old entry and its two new ones
/// with a fence each, and the version.
#[test]
fn a_split_below_a_parent() {
    let pool = pool();
    let tree = tree(&pool, 1024);
    for n in 0..33 {
        tree.insert(&n, &n).expect("a new key");
    }
    let mut splits = Vec::new();
    for n in 33..100 {
        let leaves = tree.stats().leaves;
        let paid = cost(&pool, || tree.insert(&n, &n).expect("a new key"));
        if tree.stats().leaves == leaves {
            assert_eq!(paid, APPEND, "insert {n}");
        } else {
            splits.push(paid);
        }
    }
    // Old end, left, right: the left one is put behind the old one, the right one behind that.
    assert_eq!(splits, [(2 * 16 + 3 + 1, 3); 3]);
}

#[test]
fn replacing_and_removing() {
    let pool = pool();
    let tree = tree(&pool, 1024);
    for n in 0..20 {
        tree.insert(&(n * 10), &n).expect("a new key");
    }
    for n in 0..20 {
        let key = n * 10;
        let absent = key + 5;
        let paid = cost(&pool, || {
            assert!(matches!(tree.insert(&key, &3), Err(InsertError::KeyExists)));
            tree.update(&absent, &3).expect_err("no such key");
            assert!(!tree.remove(&absent).expect("removal"));
            assert_eq!((tree.get(&key), tree.get(&absent)), (Some(n), None));
            tree.scan(key.., |_, _| std::ops::ControlFlow::Break(()));
        });
        assert_eq!(paid, NOTHING, "calls that change nothing");
    }
    // Only unused slots are reusable, so everything behind moves. Slots 7 and 8 are in two lines, 8
    // and 9 in one.
    let paid = cost(&pool, || tree.update(&70, &1).expect("the key is there"));
    assert_eq!(paid, (12 + 3, 12 + 2), "update of slot 7 of 20");
    // Now slot 7 is dead, and it is the nearest: only the old entry moves there.
    let paid = cost(&pool, || assert!(tree.upsert(&70, &2).expect("upsert")));
    assert_eq!(paid, (1 + 3, 1 + 2), "update beside a dead slot");
    // An insertion uses the dead slot too.
    let paid = cost(&pool, || tree.insert(&65, &1).expect("a new key"));
    assert_eq!(paid, APPEND, "insertion into a dead slot");
    for n in 0..20 {
        let paid = cost(&pool, || assert!(tree.remove(&(n * 10)).expect("removal")));
        assert_eq!(paid, REMOVE, "removal {n}");
    }
}

/// The removal that empties a leaf ends the leaf's entry and not its own. If the root then has one
/// child, that becomes the root, at the cost of the version's line.
#[test]
fn removing_the_last_entry_of_a_leaf() {
    let pool = pool();
    let mut tree = tree(&pool, 1024);
    let sorted = (0..64u64).map(|n| (n, n));
    tree.bulk_load(sorted, Fill::percent(50).expect("a percentage"))
        .expect("an empty tree");
    assert_eq!(tree.stats().leaves, 4);
    for n in 0..48 {
        let (leaves, paid) = {
            let paid = cost(&pool, || assert!(tree.remove(&n).expect("removal")));
            (tree.stats().leaves, paid)
        };
        match n {
            47 => assert_eq!(
                (leaves, paid),
                (1, (1, 1)),
                "the root follows its only child"
            ),
            _ => assert_eq!((leaves, paid), (4 - (n + 1) / 16, REMOVE), "removal {n}"),
        }
    }
    assert_eq!(tree.stats().depth, 1);
    tree.verify().expect("whole");
}

/// Records add their lines and no fences.
#[test]
fn strings() {
    let pool = pool();
    let options = CddsOptions::default();
    let tree = Strings::create(&pool, "index", &options).expect("a new root");
    // The first record of a size class takes a chunk, which is marked: one line, one fence.
    tree.insert(b"warm", b"warm").expect("a new key");
    assert!(tree.remove(b"warm").expect("removal"));
    for n in 0..8 {
        let key = format!("key {n:04}").into_bytes();
        let paid = cost(&pool, || tree.insert(&key, b"value").expect("a new key"));
        assert_eq!(paid, (APPEND.0 + 2, APPEND.1), "insert of {key:?}");
        let paid = cost(&pool, || {
            drop(tree.insert(&key, b"again").expect_err("there"))
        });
        assert_eq!(paid, NOTHING, "insert of a key that is there");
    }
    let paid = cost(&pool, || {
        assert!(tree.remove(b"key 0001").expect("removal"))
    });
    assert_eq!(paid, REMOVE, "removal");
}

/// Lines per random insertion, splits included: in proportion to the node's size (NV-Tree paper,
/// Fig. 1c: 12.1, 19.0, 34.2, 64.7 for its implementation).
#[test]
fn random_insertions() {
    const GOLDEN: [(u32, f64); 4] = [(512, 9.1), (1024, 14.7), (2048, 26.3), (4096, 49.4)];
    for (bytes, golden) in GOLDEN {
        let pool = pool();
        let tree = tree(&pool, bytes);
        let n = 60_000;
        for i in 0..n {
            tree.insert(&scattered(i), &i).expect("a new key");
        }
        let (lines, fences) = cost(&pool, || {
            for i in n..2 * n {
                tree.insert(&scattered(i), &i).expect("a new key");
            }
        });
        let (lines, fences) = (lines as f64 / n as f64, fences as f64 / n as f64);
        println!("{bytes} bytes: {lines:.2} lines, {fences:.2} fences per insertion");
        assert!(
            (lines / golden - 1.0).abs() < 0.01,
            "{bytes} bytes: {lines:.2} lines"
        );
        assert!(
            fences < lines,
            "a split flushes lines together: {fences:.2} fences"
        );
    }
}
