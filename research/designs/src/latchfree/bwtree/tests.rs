//! Tests of single steps: modifications that are left half done and met by other operations, chains
//! built by hand, and small trees under explored schedules.

use super::find::Entry;
use super::modification::Chores;
use super::page::{Kind, Node};
use super::table::PageId;
use super::{BwOptions, BwTree};
use crate::index::{DurableIndex, InsertError, OrderedIndex, ReverseScan, TreeError, UpdateError};
use crate::sync::{explore, unexplored};
use bristlecone_pmem::media::Dram;
use bristlecone_pmem::{Pool, PoolOptions};
use crossbeam_epoch::{self as epoch, Guard};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

type Tree = BwTree<u64, u64, Dram>;

fn pool() -> Arc<Pool<Dram>> {
    Pool::create(Path::new("none"), &PoolOptions::default()).expect("a pool in memory")
}

/// Returns a tree with at most `most` entries in a page.
fn tree(most: usize, chain: u8) -> Tree {
    let options = BwOptions {
        most_entries: Some(most),
        leaf_chain: chain,
        inner_chain: chain,
        ..BwOptions::default()
    };
    Tree::create(&pool(), "index", &options).expect("a new root")
}

fn keys(tree: &Tree) -> Vec<u64> {
    let mut keys = Vec::new();
    tree.scan(.., |key, value| {
        assert_eq!(*value, key + 1);
        keys.push(*key);
        ControlFlow::Continue(())
    });
    let mut down = Vec::new();
    tree.scan_reverse(.., |key, _| {
        down.push(*key);
        ControlFlow::Continue(())
    });
    down.reverse();
    assert_eq!(keys, down, "both directions");
    keys
}

fn put(tree: &Tree, key: u64) {
    tree.insert(&key, &(key + 1)).expect("a new key");
}

/// Checks that exactly these keys are present, by every way of reading.
fn holds(tree: &Tree, expected: &[u64]) {
    assert_eq!(keys(tree), expected);
    let most = expected.last().map_or(2, |last| last + 2);
    let asked: Vec<u64> = (0..most).collect();
    let mut batch = Vec::new();
    tree.multi_get(&asked, &mut batch);
    for (key, got) in asked.iter().zip(batch) {
        let there = expected.contains(key).then_some(key + 1);
        assert_eq!((tree.get(key), got), (there, there), "key {key}");
    }
}

fn leaf(tree: &Tree, key: u64, guard: &Guard) -> (PageId, *const super::page::Head) {
    let (page, head) = tree.leaf(tree.to_key(&key), guard);
    (page, head.ptr())
}

/// Does only step 1 of a split of the leaf of `key`. Returns the right page.
fn half_split(tree: &Tree, key: u64, guard: &Guard) -> PageId {
    let (page, _) = leaf(tree, key, guard);
    let head = tree.head(page, guard);
    // SAFETY: 1. made here; 2. installed below.
    let base = unsafe { super::page::BaseNode::new(tree.base_of(head)) };
    let split = tree.split_of(base).expect("numbers need no room");
    assert!(tree.table.install(page, head.ptr(), split.cast()));
    tree.retire_chain(head, guard);
    tree.head(page, guard).right
}

/// Returns the entry of the leaf of `key` in its parent, and the parent.
fn parent_entry<'g>(tree: &Tree, key: u64, guard: &'g Guard) -> (super::find::Place<'g>, Entry) {
    let parent = tree.descend(1, tree.to_key(&key), guard).expect("a parent");
    let entry = tree.entry(parent.head, tree.to_key(&key));
    (parent, entry)
}

/// Returns a tree with the keys 0 to 100 by tens, in several leaves.
fn by_tens() -> (Tree, Vec<u64>) {
    let tree = tree(4, 2);
    let keys: Vec<u64> = (0..=10).map(|n| n * 10).collect();
    keys.iter().for_each(|key| put(&tree, *key));
    tree.verify().expect("sound");
    assert!(tree.root().level() >= 1);
    (tree, keys)
}

#[test]
fn deltas_decide_over_what_is_below() {
    let tree = tree(30, 20);
    for key in [5, 3, 9] {
        put(&tree, key);
    }
    tree.update(&3, &7).expect("there");
    assert_eq!(tree.get(&3), Some(7));
    assert!(tree.remove(&3).expect("removal"));
    assert!(!tree.remove(&3).expect("removal"));
    assert!(matches!(tree.update(&3, &1), Err(UpdateError::NotFound)));
    assert!(matches!(tree.insert(&9, &1), Err(InsertError::KeyExists)));
    assert!(!tree.upsert(&4, &5).expect("upsert"));
    assert!(tree.upsert(&4, &5).expect("upsert"));
    let guard = &epoch::pin();
    let (page, _) = leaf(&tree, 3, guard);
    let head = tree.head(page, guard);
    let mut kinds = Vec::new();
    let mut node = head;
    while node.kind() != Kind::Base {
        kinds.push(node.kind());
        node = node.below();
    }
    use Kind::{Delete, Insert, Update};
    assert_eq!(
        kinds,
        [Update, Insert, Delete, Update, Insert, Insert, Insert]
    );
    assert_eq!((head.length(), head.count()), (7, 3));
    holds(&tree, &[4, 5, 9]);
    tree.look_after(0, 3, guard);
    let head = tree.head(page, guard);
    assert_eq!((head.kind(), head.count()), (Kind::Base, 3));
    assert_eq!(head.base().keys(), [4, 5, 9]);
    holds(&tree, &[4, 5, 9]);
    tree.verify().expect("sound");
}

#[test]
fn a_half_split_leaf_is_read_and_the_next_writer_finishes_it() {
    let (tree, mut all) = by_tens();
    let guard = &epoch::pin();
    let (left, _) = leaf(&tree, 100, guard);
    let before = tree.stats().leaves;
    let right = half_split(&tree, 100, guard);
    assert_ne!(left, right);
    holds(&tree, &all);
    let broken = tree.verify().expect_err("the parent does not know");
    assert!(broken.what.contains("does not lead there"), "{broken}");
    // A writer that goes right adds the entry to the parent.
    put(&tree, 101);
    all.push(101);
    tree.verify().expect("finished");
    holds(&tree, &all);
    assert_eq!(parent_entry(&tree, 101, guard).1.child, right);
    assert_eq!(tree.stats().leaves, before + 1);
}

#[test]
fn a_half_split_root_grows_the_tree() {
    let tree = tree(8, 4);
    (0..4).for_each(|key| put(&tree, key));
    let guard = &epoch::pin();
    assert_eq!(tree.root().level(), 0);
    half_split(&tree, 0, guard);
    holds(&tree, &[0, 1, 2, 3]);
    // Consolidating would lose the split, so it finishes the split first.
    tree.look_after(0, 0, guard);
    assert_eq!(tree.root().level(), 1);
    tree.verify().expect("finished");
    holds(&tree, &[0, 1, 2, 3]);
}

#[test]
fn a_right_page_that_splits_before_its_parent_knows_it() {
    let (tree, all) = by_tens();
    let guard = &epoch::pin();
    let (left, _) = leaf(&tree, 100, guard);
    let middle = half_split(&tree, 100, guard);
    let right = half_split(&tree, 100, guard);
    assert_eq!(leaf(&tree, 100, guard).0, right);
    holds(&tree, &all);
    // The second split is finished before the first.
    tree.help_split(middle, 0, tree.head(middle, guard), guard);
    assert_eq!(parent_entry(&tree, 100, guard).1.child, right);
    tree.verify().expect_err("one page has no entry yet");
    holds(&tree, &all);
    tree.help_split(left, 0, tree.head(left, guard), guard);
    tree.verify().expect("finished");
    holds(&tree, &all);
}

/// Stops a merge of the leaf of `key` after `steps` steps.
fn half_merge(tree: &Tree, key: u64, steps: usize, guard: &Guard) -> Entry {
    let mut chores = Chores::new();
    let (parent, entry) = parent_entry(tree, key, guard);
    assert_ne!(entry.low, parent.head.bottom().keys()[0], "not the first");
    assert!(tree.leave_parent(&parent, entry, 0, &mut chores, guard));
    if steps > 1 {
        assert!(tree.close_page(entry.child, entry.low, 0, &mut chores, guard));
    }
    entry
}

/// Returns a key whose leaf is not the first of its parent and whose left sibling is settled.
fn some_later(tree: &Tree, guard: &Guard) -> u64 {
    (0..=10)
        .map(|n| n * 10)
        .find(|key| {
            let (parent, entry) = parent_entry(tree, *key, guard);
            entry.low != parent.head.bottom().keys()[0]
        })
        .expect("parents of several leaves")
}

#[test]
fn a_page_that_its_parent_has_forgotten_is_reached_and_can_come_back() {
    let (tree, all) = by_tens();
    let guard = &epoch::pin();
    all.iter().for_each(|key| tree.look_after(0, *key, guard));
    let key = some_later(&tree, guard);
    let entry = half_merge(&tree, key, 1, guard);
    holds(&tree, &all);
    assert_ne!(parent_entry(&tree, key, guard).1.child, entry.child);
    // Other operations may write to it and split it.
    tree.update(&key, &(key + 1)).expect("there");
    let mut chores = Chores::new();
    tree.post(1, entry.low, entry.child, || true, &mut chores, guard);
    assert_eq!(parent_entry(&tree, key, guard).1.child, entry.child);
    tree.verify().expect("as before");
    holds(&tree, &all);
}

#[test]
fn a_page_that_is_going_is_read_and_the_next_writer_finishes_its_merge() {
    let (tree, mut all) = by_tens();
    let guard = &epoch::pin();
    all.iter().for_each(|key| tree.look_after(0, *key, guard));
    let key = some_later(&tree, guard);
    let leaves = tree.stats().leaves;
    let entry = half_merge(&tree, key, 2, guard);
    assert_eq!(tree.head(entry.child, guard).kind(), Kind::Remove);
    holds(&tree, &all);
    put(&tree, key + 1);
    all.push(key + 1);
    all.sort_unstable();
    holds(&tree, &all);
    tree.verify().expect("finished");
    let (page, _) = leaf(&tree, key, guard);
    assert_ne!(page, entry.child, "its keys are in another page");
    assert!(tree.stats().leaves <= leaves);
    // A thread that still has its number reads its old content.
    let kept = tree.head(entry.child, guard);
    assert_eq!(kept.kind(), Kind::Remove);
    assert!(tree.find(kept, &key, 0).is_some());
}

#[test]
fn a_grown_page_is_not_closed() {
    let (tree, all) = by_tens();
    let guard = &epoch::pin();
    all.iter().for_each(|key| tree.look_after(0, *key, guard));
    let key = some_later(&tree, guard);
    let entry = half_merge(&tree, key, 1, guard);
    let most = tree.most(0) / 2 + tree.longest(0);
    let mut chores = Chores::new();
    // Deltas on top, so that nothing splits it.
    let more: Vec<u64> = (1..=most as u64).map(|n| key + n).collect();
    for new in &more {
        let (page, head) = tree.leaf(tree.to_key(new), guard);
        assert_eq!(page, entry.child);
        let delta = super::page::new(super::page::LeafDelta {
            head: super::page::Head::on(head, Kind::Insert).with_count(head.count() + 1),
            key: *new,
            value: new + 1,
        });
        assert!(tree.table.install(page, head.ptr(), delta.cast()));
    }
    assert!(!tree.close_page(entry.child, entry.low, 0, &mut chores, guard));
    tree.post(1, entry.low, entry.child, || true, &mut chores, guard);
    tree.look_after(0, key, guard);
    tree.verify().expect("sound");
    let mut all = [all, more].concat();
    all.sort_unstable();
    all.dedup();
    holds(&tree, &all);
}

#[test]
fn what_is_no_longer_wanted_is_not_posted() {
    let (tree, all) = by_tens();
    let guard = &epoch::pin();
    let mut chores = Chores::new();
    let before = tree.root();
    tree.post(1, 55, 1, || false, &mut chores, guard);
    tree.post(before.level() + 1, 55, 1, || false, &mut chores, guard);
    assert_eq!(tree.root(), before);
    assert!(chores.is_empty());
    tree.verify().expect("untouched");
    holds(&tree, &all);
}

#[test]
fn everything_that_is_removed_is_given_back() {
    let tree = tree(4, 1);
    let before = tree.stats();
    for round in 0..3 {
        (0..2000).for_each(|key| put(&tree, key));
        assert!(tree.root().level() >= 4);
        // In different orders: up, down, from both ends.
        for n in 0..2000 {
            let key = match round {
                0 => n,
                1 => 1999 - n,
                _ if n % 2 == 0 => n / 2,
                _ => 1999 - n / 2,
            };
            assert!(tree.remove(&key).expect("removal"), "{key}");
        }
        tree.verify().expect("sound");
        let after = tree.stats();
        assert_eq!(after.entries, 0);
        assert!(after.leaves <= 2 && after.depth <= 2, "{after:?}");
        let table = tree.table.bytes();
        assert!(after.dram_bytes - table < before.dram_bytes + 1024);
    }
    // The numbers are freed too, once no pinned thread can know them.
    let most = tree.table.take();
    for _ in 0..200 {
        epoch::pin().flush();
        if tree.table.free_pages() as u32 + 8 > most {
            break;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_volatile_tree_cannot_be_opened() {
    let pool = pool();
    drop(Tree::create(&pool, "index", &BwOptions::default()).expect("a new root"));
    let open = Tree::open(&pool, "index", &BwOptions::default());
    assert!(matches!(open, Err(TreeError::Volatile)));
    let odd = BwOptions {
        node_bytes: 300,
        ..BwOptions::default()
    };
    let refused = Tree::create(&pool, "other", &odd);
    assert!(matches!(
        refused,
        Err(TreeError::NodeBytes { asked: 300, .. })
    ));
}

/// Explores schedules of threads that each work through a list of insertions (`true`) and removals.
fn schedules(
    first: &'static [u64],
    work: &'static [&'static [(bool, u64)]],
    expected: &'static [u64],
) {
    explore(300, move || {
        let tree = unexplored(|| {
            let tree = tree(3, 1);
            first.iter().for_each(|key| put(&tree, *key));
            Arc::new(tree)
        });
        let threads: Vec<_> = work
            .iter()
            .map(|list| {
                let tree = Arc::clone(&tree);
                shuttle::thread::spawn(move || {
                    for (is_new, key) in *list {
                        if *is_new {
                            put(&tree, *key);
                            assert_eq!(tree.get(key), Some(key + 1));
                        } else {
                            assert!(tree.remove(key).expect("removal"));
                            assert_eq!(tree.get(key), None);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        unexplored(|| {
            tree.verify().expect("sound");
            holds(&tree, expected);
        });
    });
}

#[test]
fn explored_splits() {
    schedules(
        &[10, 20, 30],
        &[
            &[(true, 11), (true, 12)],
            &[(true, 21), (true, 22)],
            &[(true, 31)],
        ],
        &[10, 11, 12, 20, 21, 22, 30, 31],
    );
}

#[test]
fn explored_merges() {
    schedules(
        &[10, 20, 30, 40, 50, 60],
        &[&[(false, 30), (false, 40)], &[(false, 50), (false, 20)]],
        &[10, 60],
    );
}

#[test]
fn explored_splits_and_merges() {
    schedules(
        &[10, 20, 30, 40, 50, 60],
        &[
            &[(false, 30), (false, 40), (false, 20)],
            &[(true, 31), (true, 32), (true, 33)],
            &[(false, 60), (false, 50)],
        ],
        &[10, 31, 32, 33],
    );
}

#[test]
fn a_chain_ends_in_its_base_node() {
    let tree = tree(10, 50);
    (0..5).for_each(|key| put(&tree, key));
    let guard = &epoch::pin();
    let (page, _) = leaf(&tree, 0, guard);
    let head: Node<'_> = tree.head(page, guard);
    assert_eq!((head.length(), head.bottom().len()), (5, 0));
    assert!(head.modification().is_none());
}
