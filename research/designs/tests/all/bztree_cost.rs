//! Costs of each operation on a BzTree in flushed lines and fences: goldens that a change must not
//! raise unnoticed.
//!
//! Counted in memory. A swap flushes its descriptor (a line for each two words), its words' lines,
//! the decision, and the words' lines again, with a fence each. The status and the first metadata
//! share a line, so that operations on later entries take more lines; the figures are the minimum
//! and the maximum of a leaf.

use crate::common::counted::{Medium, cost, pool};
use bristlecone_designs::{
    BzOptions, BzTree, DurableIndex, InsertError, OrderedIndex, ReverseScan,
};
use bristlecone_pmem::pool::Pool;
use std::ops::ControlFlow;
use std::sync::Arc;

type Tree = BzTree<u64, u64, Medium>;

fn tree() -> (Arc<Pool<Medium>>, Tree) {
    let pool = pool();
    let tree = BzTree::create(&pool, "index", &BzOptions::default()).expect("a new root");
    (pool, tree)
}

/// Returns the minimum and maximum of the lines, and of the fences.
fn range(paid: &[(u64, u64)]) -> [(u64, u64); 2] {
    let of = |f: fn(&(u64, u64)) -> u64| {
        let all = || paid.iter().map(f);
        (all().min().expect("one"), all().max().expect("one"))
    };
    let (lines, fences) = (of(|p| p.0), of(|p| p.1));
    [(lines.0, fences.0), (lines.1, fences.1)]
}

#[test]
fn operations_on_records() {
    let (pool, tree) = tree();
    // As many as a leaf holds without a split.
    let each = |f: &dyn Fn(u64)| {
        let paid: Vec<_> = (0..20).map(|n| cost(&pool, || f(n * 7))).collect();
        range(&paid)
    };
    let inserted = each(&|key| tree.insert(&key, &key).expect("a new key"));
    let updated = each(&|key| tree.update(&key, &1).expect("there"));
    let upserted = each(&|key| assert!(tree.upsert(&key, &2).expect("there")));
    let nothing = each(&|key| {
        assert!(matches!(tree.insert(&key, &3), Err(InsertError::KeyExists)));
        tree.update(&(key + 1), &3).expect_err("no such key");
        assert!(!tree.remove(&(key + 1)).expect("removal"));
        assert_eq!((tree.get(&key), tree.get(&(key + 1))), (Some(2), None));
        tree.scan(key.., |_, _| ControlFlow::Break(()));
        tree.scan_reverse(..key, |_, _| ControlFlow::Break(()));
        tree.multi_get(&[key, key + 1], &mut Vec::new());
    });
    let removed = each(&|key| assert!(tree.remove(&key).expect("removal")));
    assert_eq!(inserted, INSERT, "insert");
    assert_eq!(updated, UPDATE, "update");
    assert_eq!(upserted, UPDATE, "upsert of a key that is there");
    assert_eq!(nothing, [(0, 0); 2], "what changes nothing");
    assert_eq!(removed, REMOVE, "remove");
}

/// Two swaps of two words, and the record.
const INSERT: [(u64, u64); 2] = [(9, 8), (13, 8)];
/// A swap of three words.
const UPDATE: [(u64, u64); 2] = [(7, 4), (9, 4)];
/// A swap of two words.
const REMOVE: [(u64, u64); 2] = [(4, 4), (6, 4)];

#[test]
fn random_insertions_with_their_splits() {
    const KEYS: u64 = 20_000;
    let (pool, tree) = tree();
    let (lines, fences) = cost(&pool, || {
        for n in 0..KEYS {
            let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            tree.insert(&key, &n).expect("a new key");
        }
    });
    let per = |n: u64| n as f64 / KEYS as f64;
    assert!(per(lines) < 15.5, "{} lines an insertion", per(lines));
    assert!(per(fences) < 8.5, "{} fences an insertion", per(fences));
    tree.verify().expect("whole");
}
