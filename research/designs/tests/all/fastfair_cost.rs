//! Costs of each operation on FAST/FAIR in flushed lines and fences: goldens that a change must not
//! raise unnoticed.
//!
//! Counted in memory. A node of 512 bytes has 30 entries: two in the header's line, four in each
//! other.

use crate::common::counted::{Medium, cost_of as cost, pool};
use bristlecone_designs::{
    BulkLoad, DurableIndex, FastFair, FastFairOptions, FastFairSp, Fill, LeafOptions, OrderedIndex,
};

type Numbers = FastFair<u64, u64, Medium>;
type Sp = FastFairSp<u64, u64, Medium, 2>;

fn numbers(node_bytes: u32) -> Numbers {
    let options = FastFairOptions {
        node_bytes,
        ..FastFairOptions::default()
    };
    Numbers::create(&pool(), "index", &options).expect("a new root")
}

fn sp() -> Sp {
    Sp::create(&pool(), "index", &LeafOptions::default()).expect("a new root")
}

/// Returns the line of an entry.
const fn line(entry: u64) -> u64 {
    (4 + 2 * entry) / 8
}

/// Each shifted line costs one flush and one fence, in either direction.
fn a_shift_costs_its_lines<I: DurableIndex<u64, u64, Medium>>(index: &I) {
    // Ascending: nothing moves.
    for n in 0..15 {
        let paid = cost(index, |index| {
            index.insert(&(1000 + n), &n).expect("a new key")
        });
        assert_eq!(paid, (1, 1), "insert {n} at the end");
    }
    // Descending: all entries move.
    for n in 15..30 {
        let paid = cost(index, |index| {
            index.insert(&(1000 - n), &n).expect("a new key")
        });
        let lines = line(n) + 1;
        assert_eq!(paid, (lines, lines), "insert {n} at the front");
    }
    let paid = cost(index, |index| {
        index.update(&1000, &5).expect("the key is there")
    });
    assert_eq!(paid, (1, 1), "update");
    let nothing = cost(index, |index| {
        index.insert(&1000, &0).expect_err("there");
        index.update(&1, &0).expect_err("not there");
        assert!(!index.remove(&1).expect("removal"));
        assert_eq!((index.get(&1000), index.get(&999)), (Some(5), None));
        index.verify().expect("whole");
    });
    assert_eq!(nothing, (0, 0));
    for left in (5..30).rev() {
        let mut third = 0;
        let mut nth = 0;
        index.scan(.., |key, _| {
            third = *key;
            nth += 1;
            match nth {
                3 => std::ops::ControlFlow::Break(()),
                _ => std::ops::ControlFlow::Continue(()),
            }
        });
        let paid = cost(index, |index| {
            assert!(index.remove(&third).expect("removal"))
        });
        let lines = line(left) - line(2) + 1;
        assert_eq!(paid, (lines, lines), "removal of entry 2 of {}", left + 1);
    }
}

#[test]
fn shifts() {
    a_shift_costs_its_lines(&numbers(512));
    a_shift_costs_its_lines(&sp());
}

/// A split costs the lines of the new node (and of a new root) under one fence, the link, the cut,
/// and the parent's shift (or the root word).
#[test]
fn splits() {
    let tree = numbers(512);
    for n in 0..30 {
        tree.insert(&n, &n).expect("a new key");
    }
    let (new_leaf, new_root, insertion) = (8, 8, 1);
    let paid = cost(&tree, |tree| tree.insert(&30, &0).expect("a new key"));
    let root = (
        new_leaf + new_root + 1 + 1 + 1 + insertion,
        1 + 1 + 1 + 1 + insertion,
    );
    assert_eq!(paid, root, "the root");
    for n in 31..45 {
        tree.insert(&n, &n).expect("a new key");
    }
    let paid = cost(&tree, |tree| tree.insert(&45, &0).expect("a new key"));
    let child = (new_leaf + 1 + 1 + 1 + insertion, 1 + 1 + 1 + 1 + insertion);
    assert_eq!(paid, child, "a leaf, whose entry is the parent's last");

    let tree = sp();
    for n in 0..30 {
        tree.insert(&n, &n).expect("a new key");
    }
    let paid = cost(&tree, |tree| tree.insert(&30, &0).expect("a new key"));
    assert_eq!(
        paid,
        (8 + 1 + 1, 1 + 1 + 1),
        "the pair goes with the new leaf"
    );
}

/// The removal that empties a leaf costs its entry, then the parent's, then the link. A root with
/// one child is removed.
#[test]
fn removing_the_last_entry_of_a_leaf() {
    let mut tree = numbers(512);
    let sorted = (0..30u64).map(|n| (n, n));
    let half = Fill::percent(50).expect("a percentage");
    tree.bulk_load(sorted, half).expect("an empty tree");
    for n in 15..29 {
        tree.remove(&n).expect("removal");
    }
    let paid = cost(&tree, |tree| assert!(tree.remove(&29).expect("removal")));
    assert_eq!(paid, (4, 4));
    assert_eq!((tree.stats().depth, tree.stats().leaves), (1, 1));
}

/// Lines and fences per random insertion, splits included. UCSC-CRSS-20-01, Table 2, has 6 and 10
/// in nodes of 512 bytes for entries of 32 bytes (keys and values of 16); these have 16.
#[test]
fn random_insertions() {
    fn per_insertion<I: DurableIndex<u64, u64, Medium>>(index: &I) -> (f64, f64) {
        let scattered = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let insert = |index: &I, keys: std::ops::Range<u64>| {
            for n in keys {
                let key = scattered(n).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                index.insert(&key, &n).expect("a new key");
            }
        };
        let n = 60_000;
        insert(index, 0..n);
        let (lines, fences) = cost(index, |index| insert(index, n..2 * n));
        (lines as f64 / n as f64, fences as f64 / n as f64)
    }
    const GOLDEN: [(u32, f64, f64); 6] = [
        (256, 3.05, 2.72),
        (512, 4.29, 3.94),
        (1024, 7.13, 6.79),
        (2048, 12.88, 12.55),
        (4096, 24.64, 24.34),
        (8192, 48.94, 48.67),
    ];
    let mut wrong = Vec::new();
    let mut golden = |what: String, found: (f64, f64), expected: (f64, f64)| {
        println!(
            "{what}: {:.2} lines, {:.2} fences per insertion",
            found.0, found.1
        );
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.01;
        if !near(found.0, expected.0) || !near(found.1, expected.1) {
            wrong.push(format!("{what}: {found:?}, expected {expected:?}"));
        }
    };
    for (bytes, lines, fences) in GOLDEN {
        let found = per_insertion(&numbers(bytes));
        golden(format!("{bytes} bytes"), found, (lines, fences));
    }
    golden("512 bytes, SP".into(), per_insertion(&sp()), (4.02, 3.69));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
