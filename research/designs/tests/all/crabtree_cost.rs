//! Costs of each operation on Crab-tree in flushed lines and fences: goldens that a change must not
//! raise unnoticed, and the paper's two counted claims.
//!
//! Counted in memory with fixed weights in the cost model, so the figures are those of the code on
//! any machine. A leaf of 1 KB has 63 pairs: three in the header's line, four in each other.

use crate::common::counted::{Medium, cost_of as cost, pool};
use bristlecone_designs::crabtree::{Costs, CrabOptions, CrabTree, Strategy};
use bristlecone_designs::{DurableIndex, FastFair, FastFairOptions, OrderedIndex};

type Crab = CrabTree<u64, u64, Medium>;

/// Returns an empty Crab_opt.
fn crab(strategy: Strategy, leaf_bytes: u32) -> Crab {
    let options = CrabOptions {
        leaf_bytes,
        strategy,
        costs: Some(Costs::PAPER),
        ..CrabOptions::OPTIMIZED
    };
    Crab::create(&pool(), "index", &options).expect("a new root")
}

/// Maps numbers to others that look random and never repeat.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Returns the line of a pair.
const fn line(pair: u64) -> u64 {
    (pair + 1) / 4
}

/// Returns the lines of nulls that an insertion in place adds: if the new last pair ends its line,
/// the nulls behind it are in two others.
const fn nulls(last: u64) -> u64 {
    if last % 4 == 2 { 2 } else { 0 }
}

#[test]
fn in_place_each_shifted_line_is_fenced() {
    let tree = crab(Strategy::ShiftInPlace, 1024);
    for n in 0..20 {
        let paid = cost(&tree, |tree| {
            tree.insert(&(1000 - n), &n).expect("a new key");
        });
        let shifted = 1 + line(n);
        let expected = (shifted + nulls(n), shifted);
        assert_eq!(paid, expected, "insertion {n} at the front");
    }
    for n in 20..40 {
        let paid = cost(&tree, |tree| {
            tree.insert(&(2000 + n), &n).expect("a new key");
        });
        // The pair's line and the header's.
        assert_eq!(paid, (2 + nulls(n), 1), "insertion {n} at the end");
    }
    let update = cost(&tree, |tree| tree.update(&2020, &5).expect("it is there"));
    assert_eq!(update, (1, 1), "update");
    let nothing = cost(&tree, |tree| {
        tree.insert(&2020, &0).expect_err("there");
        tree.update(&1, &0).expect_err("not there");
        assert!(!tree.remove(&1).expect("removal"));
        assert_eq!((tree.get(&2020), tree.get(&1)), (Some(5), None));
        tree.verify().expect("whole");
    });
    assert_eq!(nothing, (0, 0));
    for (n, left) in (981..1001).zip((20..40).rev()) {
        let paid = cost(&tree, |tree| assert!(tree.remove(&n).expect("removal")));
        let shifted = 1 + line(left);
        assert_eq!(paid, (shifted + 1, shifted), "removal, {left} are left");
    }
    let stats = tree.design.crab_stats();
    let done = (stats.inserts_in_place, stats.removes_in_place);
    assert_eq!(done, (40, 20));
}

/// A copy costs its lines and two of nulls under one fence, and the link before it under another.
#[test]
fn a_copy_is_fenced_twice() {
    let tree = crab(Strategy::CopyOnWrite, 1024);
    for n in 0..63 {
        let paid = cost(&tree, |tree| {
            tree.insert(&(1000 - n), &n).expect("a new key");
        });
        let lines = (2 + line(n + 1)).min(16);
        assert_eq!(paid, (lines + 1, 2), "insertion {n}");
    }
    let split = cost(&tree, |tree| tree.insert(&1, &1).expect("a new key"));
    assert_eq!(split, (22, 3), "both halves, and the link");
    assert_eq!(tree.design.crab_stats().inserts_by_copy, 63);
    assert_eq!(tree.design.crab_stats().splits_by_copy, 1);
}

/// At 8 KB (section 6), Crab-tree has at most 30 % of FAST/FAIR's fences (paper: 22.5 %), and at
/// least 70 % of its flushed lines are those of copies.
#[test]
fn fewer_fences_than_fast_fair() {
    const KEYS: u64 = 20_000;
    let tree = crab(Strategy::Choose, 8192);
    let (mut fences, mut lines, mut of_copies) = (0, 0, 0);
    for i in 0..2 * KEYS {
        let copies = |tree: &Crab| {
            let stats = tree.design.crab_stats();
            stats.inserts_by_copy + stats.splits_by_copy
        };
        let before = copies(&tree);
        let paid = cost(&tree, |tree| tree.insert(&scattered(i), &i).expect("new"));
        if i < KEYS {
            continue;
        }
        lines += paid.0;
        fences += paid.1;
        if copies(&tree) > before {
            of_copies += paid.0;
        }
    }
    let options = FastFairOptions {
        node_bytes: 8192,
        ..FastFairOptions::default()
    };
    let other = FastFair::<u64, u64, Medium>::create(&pool(), "index", &options);
    let other = other.expect("a new root");
    for i in 0..KEYS {
        other.insert(&scattered(i), &i).expect("new");
    }
    let (_, theirs) = cost(&other, |other| {
        for i in KEYS..2 * KEYS {
            other.insert(&scattered(i), &i).expect("new");
        }
    });
    assert!(fences * 100 <= theirs * 30, "{fences} fences of {theirs}");
    assert!(of_copies * 100 >= lines * 70, "{of_copies} of {lines}");
}
