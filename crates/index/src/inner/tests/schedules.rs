//! Explored schedules: every access to a node, a leaf or a lock is a point where another thread
//! may run. Trees are tiny (3 separators in a node, 1 key in a leaf), so that a handful of keys
//! splits the root, empties inner nodes and collapses the root again.

use super::stress::{MiniTree, Numbered};
use crate::sync::{explore, unexplored};
use std::sync::Arc;

type Tree<S> = MiniTree<S, 3>;

/// Returns a tree with the keys `n`.
fn tree_of<S: Numbered + ?Sized>(keys: impl IntoIterator<Item = usize>) -> Arc<Tree<S>> {
    unexplored(|| {
        let tree = Tree::<S>::new(24, 1);
        keys.into_iter().for_each(|n| tree.insert(n));
        Arc::new(tree)
    })
}

fn spawn<S: Numbered + ?Sized + 'static>(
    tree: &Arc<Tree<S>>,
    work: impl FnOnce(&Tree<S>) + Send + 'static,
) -> shuttle::thread::JoinHandle<()> {
    let tree = Arc::clone(tree);
    shuttle::thread::spawn(move || work(&tree))
}

/// Inserts that split nodes up to the root, against lookups of keys that were there before.
fn splits_against_lookups<S: Numbered + ?Sized + 'static>(schedules: usize) {
    explore(schedules, || {
        let tree = tree_of::<S>([100, 200, 300, 400]);
        let writers = [[150, 250], [350, 450]].map(|keys| {
            spawn(&tree, move |tree| {
                keys.into_iter().for_each(|n| tree.insert(n))
            })
        });
        let reader = spawn(&tree, |tree| {
            for n in [400, 100, 300] {
                assert!(tree.contains(n), "key {n} was there all the time");
            }
            assert!(!tree.contains(500));
        });
        writers
            .into_iter()
            .chain([reader])
            .for_each(|t| t.join().expect("no panic"));
        for n in [100, 150, 200, 250, 300, 350, 400, 450] {
            assert!(tree.contains(n), "key {n}");
        }
        unexplored(|| tree.check());
    });
}

/// One node split between any two loads of one search. After 470 and 460 the node of 400 is full,
/// so 450 splits it; 470, and 500 if it is in that node too, move to the new one.
fn one_split_against_one_lookup<S: Numbered + ?Sized + 'static>(
    schedules: usize,
    look_up: impl Fn(&Tree<S>, usize) -> bool + Copy + Send + Sync + 'static,
) {
    for key in [470, 500] {
        explore(schedules, move || {
            let tree = tree_of::<S>((100..=900).step_by(100).chain([470, 460]));
            let nodes = tree.index.stats().nodes;
            let writer = spawn(&tree, move |tree| tree.insert(450));
            assert!(look_up(&tree, key), "{key} was there all the time");
            writer.join().expect("no panic");
            assert!(
                tree.index.stats().nodes > nodes,
                "the insert was to split a node"
            );
            unexplored(|| tree.check());
        });
    }
}

/// Removals that empty inner nodes and collapse the root, against lookups, an insert next door, and
/// a scan.
fn removals_against_all<S: Numbered + ?Sized + 'static>(schedules: usize) {
    explore(schedules, || {
        let tree = tree_of::<S>([100, 200, 300, 400, 500, 600]);
        let removers = [[500, 600, 400], [100, 200, 300]].map(|keys| {
            spawn(&tree, move |tree| {
                keys.into_iter().for_each(|n| tree.remove(n))
            })
        });
        let writer = spawn(&tree, |tree| {
            for n in [450, 550, 700] {
                tree.insert(n);
                assert!(tree.contains(n), "key {n} was just inserted");
            }
            assert_eq!(
                tree.contains_batch(&[450, 50, 550, 700]),
                [true, false, true, true]
            );
        });
        let scanner = spawn(&tree, |tree| {
            let mut seen = Vec::new();
            tree.scan(|n| seen.push(n));
            assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
            seen.clear();
            tree.scan_reverse(|n| seen.push(n));
            assert!(seen.is_sorted_by(|a, b| a > b), "{seen:?}");
        });
        removers
            .into_iter()
            .chain([writer, scanner])
            .for_each(|t| t.join().expect("no panic"));
        for n in [100, 200, 300, 400, 500, 600] {
            assert!(!tree.contains(n), "key {n}");
        }
        for n in [450, 550, 700] {
            assert!(tree.contains(n), "key {n}");
        }
        unexplored(|| tree.check());
    });
}

#[test]
fn splits_against_lookups_of_integers() {
    splits_against_lookups::<u64>(400);
}

#[test]
fn splits_against_lookups_of_strings() {
    splits_against_lookups::<[u8]>(200);
}

#[test]
fn one_split_against_one_lookup_of_integers() {
    one_split_against_one_lookup::<u64>(500, |tree, n| tree.contains(n));
}

#[test]
fn one_split_against_one_batch_of_integers() {
    one_split_against_one_lookup::<u64>(500, |tree, n| tree.contains_batch(&[n]) == [true]);
}

#[test]
fn removals_against_all_with_integers() {
    removals_against_all::<u64>(200);
}

#[test]
fn removals_against_all_with_strings() {
    removals_against_all::<[u8]>(100);
}
