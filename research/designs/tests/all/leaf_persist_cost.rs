//! Costs of FPTree and wB+-Tree in flushed lines and fences: goldens that a change must not raise
//! unnoticed, nor lower below what the design needs. Counted in memory.
//!
//! In a leaf of 256 bytes, 32 are header, so that 2 of 14 entries are in line 0. In the LB+-Tree
//! paper (sections 2.4 and 4.1) FPTree writes the entry's line and the header's, and wB+-Tree the
//! header's twice: two NAW sections.

use crate::common::counted::{Medium, cost_of as cost, pool};
use bristlecone_designs::fptree::FpTree;
use bristlecone_designs::wbtree::WbTree;
use bristlecone_designs::{CentralOptions, DurableIndex, InsertError, SplitLog};

fn made<I: DurableIndex<u64, u64, Medium, Options = CentralOptions>>() -> I {
    made_with(&CentralOptions::default())
}

fn made_with<I: DurableIndex<u64, u64, Medium, Options = CentralOptions>>(
    options: &CentralOptions,
) -> I {
    let pool = pool();
    I::create(&pool, "index", options).expect("a new root")
}

/// Costs of a design in leaves of 256 bytes.
struct Golden {
    /// An insertion into line 0, and elsewhere.
    insert: [(u64, u64); 2],
    update: (u64, u64),
    remove: (u64, u64),
    /// A split, without the insertion that met the full leaf.
    split: (u64, u64),
}

fn check<I: DurableIndex<u64, u64, Medium, Options = CentralOptions>>(golden: &Golden) {
    check_with::<I>(&CentralOptions::default(), golden);
}

fn check_with<I: DurableIndex<u64, u64, Medium, Options = CentralOptions>>(
    options: &CentralOptions,
    golden: &Golden,
) {
    let tree: I = made_with(options);
    let mut paid = [0; 2];
    for key in 0..14 {
        let of_insert = cost(&tree, |tree| tree.insert(&key, &key).expect("a new key"));
        let which = golden.insert.iter().position(|known| *known == of_insert);
        paid[which.unwrap_or_else(|| panic!("insert {key}: {of_insert:?}"))] += 1;
    }
    assert_eq!(paid, [2, 12], "insertions into line 0, and elsewhere");
    let update = cost(&tree, |tree| tree.update(&5, &6).expect("a known key"));
    assert_eq!(update, golden.update, "update");
    let reads = cost(&tree, |tree| {
        assert_eq!(tree.get(&5), Some(6));
        let there = tree.insert(&5, &0);
        assert!(matches!(there, Err(InsertError::KeyExists)));
        assert!(!tree.remove(&100).expect("removal"));
    });
    assert_eq!(reads, (0, 0), "what changes nothing");
    let split = cost(&tree, |tree| tree.insert(&20, &20).expect("a new key"));
    assert_eq!(tree.stats().leaves, 2);
    let after = golden.insert.map(|(lines, fences)| {
        let (split_lines, split_fences) = golden.split;
        (split_lines + lines, split_fences + fences)
    });
    assert!(after.contains(&split), "split and insertion: {split:?}");
    let remove = cost(&tree, |tree| assert!(tree.remove(&5).expect("removal")));
    assert_eq!(remove, golden.remove, "remove");
}

#[test]
fn fptree_inserts_with_two_lines() {
    check::<FpTree<u64, u64, Medium>>(&Golden {
        insert: [(1, 1), (2, 2)],
        update: (1, 1),
        remove: (1, 1),
        // The new leaf's 4 lines and the record; the leaf's header line; the record's end.
        split: (4 + 3, 3),
    });
}

#[test]
fn wbtree_inserts_with_two_naw_sections() {
    check::<WbTree<u64, u64, Medium>>(&Golden {
        insert: [(2, 2), (3, 3)],
        update: (1, 1),
        remove: (2, 2),
        split: (4 + 3, 3),
    });
}

/// A record of a whole leaf has 34 words, in 5 lines with its head; one of two leaves has 68, in 9.
/// Arming one takes two fences, which cover the new leaf.
#[test]
fn whole_leaves_in_the_log_cost_their_lines() {
    for (split_log, lines) in [(SplitLog::Leaf, 5), (SplitLog::Leaves, 9)] {
        let options = CentralOptions {
            split_log,
            lazy_removal: true,
            ..CentralOptions::default()
        };
        check_with::<FpTree<u64, u64, Medium>>(
            &options,
            &Golden {
                insert: [(1, 1), (2, 2)],
                update: (1, 1),
                remove: (1, 1),
                split: (4 + lines + 2, 4),
            },
        );
        check_with::<WbTree<u64, u64, Medium>>(
            &options,
            &Golden {
                insert: [(2, 2), (3, 3)],
                update: (1, 1),
                remove: (1, 1),
                split: (4 + lines + 2, 3),
            },
        );
    }
}

/// Returns the lines of a random insertion that does not split, in the steady state.
fn random_insertions<I: DurableIndex<u64, u64, Medium, Options = CentralOptions>>() -> f64 {
    let tree: I = made();
    let scattered = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for n in 0..50_000 {
        tree.insert(&scattered(n), &n).expect("a new key");
    }
    let (mut lines, mut counted) = (0, 0);
    for n in 50_000..60_000 {
        let (paid, _) = cost(&tree, |tree| {
            tree.insert(&scattered(n), &n).expect("a new key");
        });
        // A split costs at least 8 lines.
        if paid < 8 {
            (lines, counted) = (lines + paid, counted + 1);
        }
    }
    assert!(counted > 8_000, "{counted}");
    lines as f64 / f64::from(counted)
}

/// Few insertions find room in line 0, which fills first. Nearly all pay what is paid beyond it,
/// and no more.
#[test]
fn random_insertions_cost_what_the_layout_says() {
    let fp = random_insertions::<FpTree<u64, u64, Medium>>();
    let wb = random_insertions::<WbTree<u64, u64, Medium>>();
    println!("FPTree {fp:.3}, wB+-Tree {wb:.3} lines");
    assert!(fp > 1.75 && fp <= 2.0, "{fp}");
    assert!(wb > 2.75 && wb <= 3.0, "{wb}");
}
