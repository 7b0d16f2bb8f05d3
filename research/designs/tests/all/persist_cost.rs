//! Costs of each operation in flushed lines and fences: goldens that a change must not raise
//! unnoticed.
//!
//! Counted in memory. A leaf of 256 bytes has its header and three entries in line 0, and 11
//! entries in lines 1 to 3 (paper, section 3.1).

use crate::common::counted::{Medium, cost, pool};
use bristlecone_designs::DurableIndex;
use bristlecone_designs::lbtree::{LbOptions, LbTree};
use bristlecone_designs::{BulkLoad, Fill, InsertError, OrderedIndex};
use std::collections::BTreeMap;

type Numbers = LbTree<u64, u64, Medium, 1>;
type Strings = LbTree<[u8], [u8], Medium, 1>;

/// Maps numbers to others that look random and never repeat.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

struct Insertions {
    /// Average lines per insertion that did not split.
    lines: f64,
    /// Average fences per insertion that did not split.
    fences: f64,
    /// Number of insertions with each cost.
    histogram: BTreeMap<(u64, u64), u64>,
}

/// Random insertions into a stable tree: 200,000 keys first, then 100,000 that are counted.
fn random_insertions(entry_moving: bool) -> Insertions {
    let pool = pool();
    let options = LbOptions {
        entry_moving,
        ..LbOptions::default()
    };
    let tree = Numbers::create(&pool, "index", &options).expect("a new root");
    for n in 0..200_000 {
        tree.insert(&scattered(n), &n).expect("a new key");
    }
    let leaves = tree.stats().leaves;
    let mut histogram = BTreeMap::new();
    for n in 200_000..300_000 {
        let paid = cost(&pool, || tree.insert(&scattered(n), &n).expect("a new key"));
        *histogram.entry(paid).or_insert(0u64) += 1;
    }
    // Without a split, only the entry's line and the header's are written.
    let (plain, splits): (Vec<_>, Vec<_>) =
        histogram.iter().partition(|((lines, _), _)| *lines <= 2);
    let count = |part: &[(&(u64, u64), &u64)]| part.iter().map(|(_, n)| **n).sum::<u64>();
    assert_eq!(
        count(&splits),
        tree.stats().leaves - leaves,
        "each split makes one leaf: {histogram:?}"
    );
    let sum = |f: fn(&(u64, u64)) -> u64| plain.iter().map(|(c, n)| f(c) * **n).sum::<u64>() as f64;
    let inserts = count(&plain) as f64;
    Insertions {
        lines: sum(|c| c.0) / inserts,
        fences: sum(|c| c.1) / inserts,
        histogram: histogram.clone(),
    }
}

/// Theorem 3.5: at most 1.31 lines per insertion that does not split, and the savings of entry
/// moving.
#[test]
fn entry_moving_saves_lines() {
    let moving = random_insertions(true);
    let traditional = random_insertions(false);
    println!(
        "entry moving: {:.4} lines, {:.4} fences",
        moving.lines, moving.fences
    );
    println!(
        "traditional:  {:.4} lines, {:.4} fences",
        traditional.lines, traditional.fences
    );
    println!("{:?}\n{:?}", moving.histogram, traditional.histogram);
    assert!(
        moving.lines <= 1.31,
        "{:.4} lines per insertion",
        moving.lines
    );
    let ratio = traditional.lines / moving.lines;
    assert!(
        ratio >= 1.35,
        "the traditional mode writes {ratio:.3} times as many"
    );
    assert!(moving.fences <= traditional.fences, "fences follow lines");
}

/// Insertions into one leaf, from its first key to its split. Line 0 takes three. The fourth has to
/// write another line and moves line 0's entries there, so the next three are cheap again.
const FIRST_LEAF: [(u64, u64); 14] = [
    (1, 1),
    (1, 1),
    (1, 1),
    (2, 2), // line 1: this entry and three moved ones
    (1, 1),
    (1, 1),
    (1, 1),
    (2, 2), // line 2, likewise
    (1, 1),
    (1, 1),
    (1, 1),
    (2, 2), // line 3 has three slots: two are moved, one stays in line 0
    (1, 1),
    (1, 1),
];
/// A split whose key goes to the new leaf: its four lines and the old leaf's sibling line, a fence,
/// the header's line, a fence.
const SPLIT_TO_THE_RIGHT: (u64, u64) = (6, 2);
/// A split whose key goes to the old leaf: the same, then an insertion into it. Until the switch
/// the key's slot counts in the durable header, so the insertion cannot be part of the split (and
/// the lines that are free then depend on what was moved out).
const SPLIT_TO_THE_LEFT: [(u64, u64); 2] = [(7, 3), (8, 4)];
/// Without entry moving, all inserts but the first three write two lines.
const FIRST_LEAF_TRADITIONAL: [(u64, u64); 14] = {
    let mut costs = [(2, 2); 14];
    costs[0] = (1, 1);
    costs[1] = (1, 1);
    costs[2] = (1, 1);
    costs
};
/// Update, or upsert of a key that is present: the value word.
const REPLACE: (u64, u64) = (1, 1);
/// A removal: the header.
const REMOVE: (u64, u64) = (1, 1);
/// The removal that empties a leaf also unlinks it: sibling line, fence, header line, fence.
const REMOVE_LAST_OF_LEAF: (u64, u64) = (3, 3);
/// If recovery may start from the leaf, that position is removed first.
const REMOVE_LAST_OF_RECORDED_LEAF: (u64, u64) = (4, 3);
/// Two records of one line each are flushed with the entry, or fenced alone if the entry is in the
/// header's line.
const INSERT_STRINGS: [(u64, u64); 4] = [(3, 2), (3, 2), (3, 2), (4, 2)];
/// The new value's record, a fence, the value word.
const REPLACE_STRING: (u64, u64) = (2, 2);
/// An operation that changes nothing writes nothing.
const NOTHING: (u64, u64) = (0, 0);

#[test]
fn insertions_into_one_leaf() {
    for (entry_moving, golden) in [(true, FIRST_LEAF), (false, FIRST_LEAF_TRADITIONAL)] {
        for ascending in [true, false] {
            let pool = pool();
            let options = LbOptions {
                entry_moving,
                ..LbOptions::default()
            };
            let tree = Numbers::create(&pool, "index", &options).expect("a new root");
            let key = |n: u64| if ascending { 100 + n } else { 100 - n };
            for (n, golden) in (0..).zip(golden) {
                let paid = cost(&pool, || tree.insert(&key(n), &n).expect("a new key"));
                assert_eq!(paid, golden, "insert {n}, entry moving {entry_moving}");
            }
            let paid = cost(&pool, || tree.insert(&key(14), &14).expect("a new key"));
            if ascending {
                assert_eq!(paid, SPLIT_TO_THE_RIGHT, "entry moving {entry_moving}");
            } else {
                assert!(
                    SPLIT_TO_THE_LEFT.contains(&paid),
                    "{paid:?}, entry moving {entry_moving}"
                );
            }
            assert_eq!(tree.stats().leaves, 2);
        }
    }
}

/// Insertions into leaves that bulk loading left 70 % full: it packs them as splits do, so that
/// entry moving finds room in the header's line, and the traditional design in another.
#[test]
fn insertions_after_a_bulk_load() {
    for (entry_moving, golden) in [(true, (1, 1)), (false, (2, 2))] {
        let pool = pool();
        let options = LbOptions {
            entry_moving,
            ..LbOptions::default()
        };
        let mut tree = Numbers::create(&pool, "index", &options).expect("a new root");
        let sorted = (0..9_000u64).map(|n| (n * 10, n));
        tree.bulk_load(sorted, Fill::USUAL).expect("an empty tree");
        // One key in each leaf of nine.
        for n in (0..9_000).step_by(9) {
            let paid = cost(&pool, || {
                tree.insert(&(n * 10 + 5), &n).expect("a new key");
            });
            assert_eq!(paid, golden, "insert {n}, entry moving {entry_moving}");
        }
        tree.verify().expect("whole");
    }
}

#[test]
fn replacing_and_removing() {
    let pool = pool();
    let tree = Numbers::create(&pool, "index", &LbOptions::default()).expect("a new root");
    for n in 0..1_000 {
        tree.insert(&scattered(n), &n).expect("a new key");
    }
    for n in 0..200 {
        let key = scattered(n);
        let paid = cost(&pool, || {
            tree.update(&key, &1).expect("a key that is there")
        });
        assert_eq!(paid, REPLACE, "update");
        let paid = cost(&pool, || assert!(tree.upsert(&key, &2).expect("upsert")));
        assert_eq!(paid, REPLACE, "upsert of a key that is there");
        let absent = scattered(n + 5_000);
        let paid = cost(&pool, || {
            assert!(matches!(tree.insert(&key, &3), Err(InsertError::KeyExists)));
            tree.update(&absent, &3).expect_err("no such key");
            assert!(!tree.remove(&absent).expect("removal"));
            assert_eq!((tree.get(&key), tree.get(&absent)), (Some(2), None));
            tree.scan(key.., |_, _| std::ops::ControlFlow::Break(()));
        });
        assert_eq!(paid, NOTHING, "calls that change nothing");
    }
    let leaves = tree.stats().leaves;
    let (mut emptied, mut recorded) = (0, 0);
    for n in 0..1_000 {
        let paid = cost(&pool, || {
            assert!(tree.remove(&scattered(n)).expect("removal"))
        });
        if paid == REMOVE_LAST_OF_LEAF {
            emptied += 1;
        } else if paid == REMOVE_LAST_OF_RECORDED_LEAF {
            emptied += 1;
            recorded += 1;
        } else {
            assert_eq!(paid, REMOVE, "removal {n}");
        }
    }
    assert_eq!(
        tree.stats().leaves,
        leaves - emptied,
        "each unlinked leaf was paid for once"
    );
    assert_eq!(tree.stats().leaves, 1);
    assert!(
        recorded <= leaves / 64 + 1,
        "{recorded} of {leaves} leaves were recorded"
    );
}

#[test]
fn strings() {
    let pool = pool();
    let tree = Strings::create(&pool, "index", &LbOptions::default()).expect("a new root");
    // The first record of a size class takes a chunk, which is marked: one line, one fence.
    tree.insert(b"warm", b"warm").expect("a new key");
    assert!(tree.remove(b"warm").expect("removal"));
    let mut keys = (0..).map(|n: u32| format!("key {n:04}").into_bytes());
    for golden in INSERT_STRINGS {
        let key = keys.next().expect("endless");
        let paid = cost(&pool, || tree.insert(&key, b"value").expect("a new key"));
        assert_eq!(paid, golden, "insert of {key:?}");
        let paid = cost(&pool, || {
            tree.update(&key, b"other").expect("the key is there")
        });
        assert_eq!(paid, REPLACE_STRING, "update of {key:?}");
        let paid = cost(&pool, || {
            assert!(tree.upsert(&key, b"third").expect("upsert"))
        });
        assert_eq!(paid, REPLACE_STRING, "upsert of {key:?}");
        let paid = cost(&pool, || {
            drop(tree.insert(&key, b"again").expect_err("the key is there"))
        });
        assert_eq!(paid, NOTHING, "insert of a key that is there");
    }
    let paid = cost(&pool, || {
        assert!(tree.remove(b"key 0001").expect("removal"))
    });
    assert_eq!(paid, REMOVE, "removal");
}

/// A batch of inserts that do not split shares its fences: one for the entries, one for the
/// headers.
#[test]
fn a_batch_shares_fences() {
    /// Number of pairs in a batch.
    const BATCH: u64 = 32;
    let pool = pool();
    let tree = Numbers::create(&pool, "index", &LbOptions::default()).expect("a new root");
    for n in 0..100_000 {
        tree.insert(&scattered(n), &n).expect("a new key");
    }
    let mut out = Vec::new();
    let (mut unsplit, mut lines) = (0, 0);
    for batch in 0..200u64 {
        let pairs: Vec<(u64, u64)> = (0..BATCH)
            .map(|i| 100_000 + batch * BATCH + i)
            .map(|n| (scattered(n), n))
            .collect();
        let leaves = tree.stats().leaves;
        let paid = cost(&pool, || tree.multi_insert(&pairs, &mut out));
        assert!(out.iter().all(Result::is_ok), "new keys");
        if tree.stats().leaves == leaves {
            unsplit += 1;
            lines += paid.0;
            assert!(paid.1 <= 2, "{} fences for a batch without a split", paid.1);
            assert!(paid.0 <= 2 * BATCH, "{} lines for {BATCH} inserts", paid.0);
        }
    }
    assert!(unsplit >= 3, "{unsplit} of 200 batches did not split");
    let average = lines as f64 / (unsplit * BATCH) as f64;
    assert!(average <= 1.35, "{average:.3} lines per insert of a batch");
}
