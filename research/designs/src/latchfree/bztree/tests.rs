//! Tests that the scenarios cannot make: words of each swap, and operations that meet others that
//! stopped half-way.

use super::find::Step;
use super::leaf::Mode;
use super::node::{FROZEN, Meta, Node};
use super::reshape::Want;
use super::*;
use bristlecone_pmem::PoolOptions;
use bristlecone_pmem::media::{Dram, Mapped};
use std::ops::ControlFlow;
use std::path::Path;
use tempfile::TempDir;

pub(super) const SMALL: BzOptions = BzOptions {
    node_bytes: 256,
    free_bytes: None,
    merge_bytes: None,
};

pub(super) type Tree<M> = BzTree<u64, u64, M>;

pub(super) fn volatile() -> Tree<Dram> {
    let pool = Pool::create(Path::new("dram"), &PoolOptions::default()).unwrap();
    BzTree::create(&pool, "t", &SMALL).unwrap()
}

pub(super) fn durable(folder: &TempDir) -> Tree<Mapped> {
    let pool = Pool::create(&folder.path().join("pool"), &PoolOptions::default()).unwrap();
    BzTree::create(&pool, "t", &SMALL).unwrap()
}

/// Opens a copy of the tree as a crash would leave it now.
pub(super) fn crashed(folder: &TempDir, n: u32) -> Tree<Mapped> {
    let copy = folder.path().join(format!("copy{n}"));
    std::fs::copy(folder.path().join("pool"), &copy).unwrap();
    let pool = Pool::open(&copy, &PoolOptions::default()).unwrap();
    BzTree::open(&pool, "t", &SMALL).unwrap()
}

/// Returns the number of swaps of `f`, all of which succeed, and of their words.
fn words<M: Media>(tree: &Tree<M>, f: impl FnOnce()) -> (u64, u64) {
    let before = tree.swap_counts();
    f();
    let after = tree.swap_counts();
    assert_eq!(after.failures, before.failures);
    (after.attempts - before.attempts, after.words - before.words)
}

pub(super) fn leaf<'a, M: Media>(tree: &'a Tree<M>, key: u64) -> Node<'a, M> {
    tree.leaf_of(&key).unwrap()
}

/// Freezes the leaf of `key` and stops there.
pub(super) fn freeze<M: Media>(tree: &Tree<M>, key: u64) {
    let leaf = leaf(tree, key);
    let status = tree.swaps.read(leaf.status());
    let mut swap = tree.descriptor().unwrap();
    swap.add_word(leaf.status(), status, status | FROZEN)
        .unwrap();
    assert!(swap.execute().unwrap());
}

/// Reserves an entry for a pair of numbers and stops there. Returns the entry's index.
pub(super) fn reserve<M: Media>(tree: &Tree<M>, key: u64) -> usize {
    let leaf = leaf(tree, key);
    let status = tree.status(&leaf);
    let mut swap = tree.descriptor().unwrap();
    swap.add_word(leaf.status(), status.0, status.reserve(2).0)
        .unwrap();
    let meta = leaf.meta(status.entries());
    swap.add_word(meta, 0, tree.reserved().0).unwrap();
    assert!(swap.execute().unwrap());
    status.entries()
}

#[test]
fn swaps_have_the_words_of_table_1_and_memory_words() {
    let tree = volatile();
    assert_eq!(words(&tree, || tree.insert(&8, &1).unwrap()), (2, 2 + 2));
    assert_eq!(words(&tree, || tree.update(&8, &2).unwrap()), (1, 3));
    assert_eq!(
        words(&tree, || assert!(tree.upsert(&8, &3).unwrap())),
        (1, 3)
    );
    // A number that swaps have no room for, there and back: another record each time.
    assert_eq!(
        words(&tree, || tree.update(&8, &u64::MAX).unwrap()),
        (2, 2 + 3)
    );
    assert_eq!(tree.get(&8), Some(u64::MAX));
    assert_eq!(words(&tree, || tree.update(&8, &4).unwrap()), (2, 2 + 3));
    assert_eq!(words(&tree, || assert!(tree.remove(&8).unwrap())), (1, 2));
    let nothing = || {
        assert_eq!(tree.get(&8), None);
        assert!(!tree.remove(&8).unwrap());
        tree.update(&8, &1).unwrap_err();
        tree.scan(.., |_, _| ControlFlow::Break(()));
    };
    assert_eq!(words(&tree, nothing), (0, 0));
    tree.insert(&8, &1).unwrap();
    let room = |words| Want::Room(words);
    let reshape = |want| tree.reshape(&8, want).unwrap();
    assert_eq!(
        words(&tree, || reshape(room(18))),
        (2, 1 + 2),
        "consolidation"
    );

    let tree = volatile();
    (1..=9).for_each(|key| tree.insert(&(key * 8), &key).unwrap());
    assert_eq!(tree.stats().depth, 1);
    // A reservation, a completion, and the split of the root node: two words and the two halves'.
    let full = || tree.insert(&80, &10).unwrap();
    assert_eq!(words(&tree, full), (4, 1 + (2 + 2) + 2 + 2));
    assert_eq!(tree.stats().depth, 2);
    let mut key = 80;
    while tree.stats().leaves == 2 {
        key += 8;
        let took = words(&tree, || tree.insert(&key, &key).unwrap());
        // A split under a parent: three words, and those of the node and its sibling.
        let expected = if tree.stats().leaves == 2 {
            (2, 4)
        } else {
            (4, 1 + (3 + 2) + 2 + 2)
        };
        assert_eq!(took, expected, "key {key}");
    }
    let mut merged = Vec::new();
    for key in (8..=key).step_by(8) {
        let (leaves, depth) = (tree.stats().leaves, tree.stats().depth);
        let took = words(&tree, || assert!(tree.remove(&key).unwrap()));
        let now = tree.stats();
        if now.leaves < leaves && now.depth == depth {
            // With the removal's own words: both frozen, then three words, L's and N's.
            assert_eq!(took, (3, 2 + 2 + (3 + 2)), "a merge");
            merged.push(now.leaves);
        } else if now.leaves < leaves {
            assert_eq!(took, (3, 2 + 2 + (3 + 2)), "the last merge");
            merged.push(now.leaves);
        }
    }
    assert_eq!(merged, [2, 1]);
    tree.verify().unwrap();
}

#[test]
fn a_leaf_that_was_left_frozen_stops_no_one() {
    let folder = tempfile::tempdir().unwrap();
    let tree = durable(&folder);
    (0..100).for_each(|key| tree.insert(&(key * 2), &key).unwrap());
    for (n, key) in [0, 50, 198].into_iter().enumerate() {
        freeze(&tree, key);
        for recovered in [None, Some(crashed(&folder, n as u32))] {
            let tree = recovered.as_ref().unwrap_or(&tree);
            assert!(leaf(tree, key).status().load(tree.pm(), Ordering::Relaxed) & FROZEN != 0);
            assert_eq!(tree.get(&key), Some(key / 2), "reading disregards it");
            tree.update(&key, &7).unwrap();
            assert!(!tree.status(&leaf(tree, key)).frozen());
            freeze(tree, key);
            assert!(tree.remove(&key).unwrap());
            freeze(tree, key);
            tree.insert(&key, &(key / 2)).unwrap();
            freeze(tree, key);
            assert!(tree.upsert(&key, &(key / 2)).unwrap());
            tree.verify().unwrap();
        }
    }
}

#[test]
fn inner_nodes_that_were_left_frozen_are_finished() {
    let folder = tempfile::tempdir().unwrap();
    let tree = durable(&folder);
    (0..400).for_each(|key| tree.insert(&key, &key).unwrap());
    assert!(tree.stats().depth > 2);
    let frozen = |tree: &Tree<Mapped>| -> Vec<u64> {
        let guard = epoch::pin();
        let (path, _) = tree.path_to(&200, 0).unwrap();
        drop(guard);
        path.iter()
            .map(|Step { node, .. }| {
                let version = tree.swaps.read(node.status());
                let mut swap = tree.descriptor().unwrap();
                swap.add_word(node.status(), version, version | FROZEN)
                    .unwrap();
                assert!(swap.execute().unwrap());
                node.off
            })
            .collect()
    };
    frozen(&tree);
    for recovered in [None, Some(crashed(&folder, 0))] {
        let tree = recovered.as_ref().unwrap_or(&tree);
        // If the leaf itself must be reshaped, its parents must be too.
        for key in 1_000..1_100 {
            tree.insert(&key, &key).unwrap();
        }
        for key in 150..250 {
            assert!(tree.remove(&key).unwrap());
        }
        for key in 150..250 {
            tree.insert(&key, &key).unwrap();
        }
        assert_eq!(tree.verify().unwrap().entries, 500);
    }
}

#[test]
fn an_entry_that_was_reserved_before_a_crash_is_nobodys() {
    let folder = tempfile::tempdir().unwrap();
    let tree = durable(&folder);
    tree.insert(&1, &1).unwrap();
    let entry = reserve(&tree, 5);
    let opened = crashed(&folder, 0);
    assert_eq!(opened.epoch, tree.epoch + 1);
    let search = opened.search(&leaf(&opened, 5), &5, entry + 1);
    assert!(!search.pending && search.found.is_none());
    // In the session that reserved it, it may become the key's.
    assert!(tree.search(&leaf(&tree, 5), &5, entry + 1).pending);
    opened.insert(&5, &6).unwrap();
    assert_eq!(opened.get(&5), Some(6));
    assert_eq!(opened.verify().unwrap().entries, 2);
    // The epoch is raised even if crashes follow each other.
    assert_eq!(crashed(&folder, 1).epoch, tree.epoch + 1);
}

#[test]
fn a_stopped_insertion_is_given_up_for() {
    let tree = volatile();
    tree.insert(&1, &1).unwrap();
    let entry = reserve(&tree, 5);
    tree.insert(&7, &7).unwrap();
    let leaf = leaf(&tree, 5);
    let meta = Meta(tree.swaps.read(leaf.meta(entry)));
    assert_eq!(
        meta,
        Meta::GIVEN_UP,
        "pushed aside, not waited for for ever"
    );
    // Its owner's completion can no longer succeed.
    assert_eq!(tree.put(&5, &5, Mode::Upsert).unwrap(), Done::Inserted);
    assert_eq!(tree.verify().unwrap().entries, 3);
}

#[test]
fn no_room_leaves_nothing_frozen() {
    let mut options = PoolOptions::default();
    options.media.reserve = 4 << 20;
    let pool = Pool::<Dram>::create(Path::new("dram"), &options).unwrap();
    let tree: Tree<Dram> = BzTree::create(&pool, "t", &SMALL).unwrap();
    let mut key = 0;
    let refused = loop {
        match tree.insert(&key, &key) {
            Ok(()) => key += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(refused, InsertError::Space(_)), "{refused}");
    // Frozen by a thread that stopped there: thawed, since nothing can be built.
    freeze(&tree, key - 1);
    assert!(tree.remove(&(key - 1)).unwrap());
    assert!(tree.update(&(key - 2), &1).is_ok());
    assert_eq!(tree.verify().unwrap().entries, key - 1);
}

#[test]
fn opening_takes_no_time_that_grows_with_the_tree() {
    let folder = tempfile::tempdir().unwrap();
    let tree = durable(&folder);
    let mut reports = Vec::new();
    for n in 0..2 {
        let from = n * 20_000;
        (from..from + 20_000 * n + 100).for_each(|key| tree.insert(&key, &key).unwrap());
        let opened = crashed(&folder, n as u32);
        assert_eq!(opened.recovery().leaves_scanned, 0);
        reports.push(opened.recovery().elapsed);
    }
    assert!(
        reports[1] < std::time::Duration::from_millis(100),
        "{reports:?}"
    );
}
