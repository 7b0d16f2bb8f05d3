//! Changes since a mark: none is missed, whatever happens to the pages meanwhile.

use super::tests_hosted::{Tree, Witness, all_at, made_on};
use super::*;
use crate::contract::Direction;
use bristlecone_pmem::MediumKind;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{MediaOptions, PoolOptions};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(i: u64) -> Vec<u8> {
    format!("key{i:05}").into_bytes()
}

/// A mark, and what the tree has at a time that it comes before.
fn marked(tree: &Tree) -> (Mark, Entries) {
    let mark = tree.mark();
    let time = tree.begin(false);
    assert!(time >= mark.stamp);
    let all = all_at(tree, time);
    tree.end(time);
    (mark, all)
}

/// Brings a copy up to date. Returns how many pages that took.
fn update(tree: &Tree, copy: &mut Entries, since: Mark) -> (usize, Mark) {
    let mark = tree.mark();
    let time = tree.begin(false);
    let (mut from, mut pages) = (Vec::new(), 0);
    while let Some(range) = tree.changed_since(since, &from) {
        assert!(range.low >= from);
        pages += 1;
        let low = Bound::Included(range.low);
        let high = range.high.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let bounds = (
            low.as_ref().map(Vec::as_slice),
            high.as_ref().map(Vec::as_slice),
        );
        copy.retain(|key, _| {
            !std::ops::RangeBounds::<Vec<u8>>::contains(&(low.clone(), high.clone()), key)
        });
        let visits = (Direction::Up, Visits::Values);
        let scanned = tree.scan(time, bounds, visits, |key, current| {
            copy.insert(key.to_vec(), current.value()?.to_vec());
            Ok(ControlFlow::Continue(()))
        });
        scanned.unwrap();
        match range.high {
            Some(high) => from = high,
            None => break,
        }
    }
    assert_eq!(*copy, all_at(tree, time));
    tree.end(time);
    (pages, mark)
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Puts, removes, and batches of several pages, of some of the first `keys` keys.
fn change(tree: &Tree, state: &mut u64, keys: u64, changes: u64) {
    for _ in 0..changes {
        let one = key(random(state) % keys);
        let long = vec![random(state) as u8; (random(state) % 700) as usize];
        match random(state) % 8 {
            0 | 1 => {
                let _ = tree.modify(&one, |_| Ok(Modification::Remove)).unwrap();
            }
            2 => {
                let from = random(state) % keys;
                let some: Vec<Vec<u8>> = (0..20).map(|i| key(from + i * 3)).collect();
                let some = some.iter().map(|key| (key.as_slice(), Some(&b"batch"[..])));
                let _ = tree.write(some, None, None).unwrap();
            }
            3 => {
                let _ = tree.put(&one, &long).unwrap();
            }
            _ => {
                let _ = tree.put(&one, &random(state).to_le_bytes()).unwrap();
            }
        }
    }
}

fn reopened(tree: Tree) -> Tree {
    let pool = Arc::clone(tree.pool());
    let path = pool.path().to_owned();
    drop((tree, pool));
    let options = PoolOptions {
        media: MediaOptions {
            reserve: 1 << 30,
            ..MediaOptions::default()
        },
    };
    let pool = Pool::<Auto>::open(&path, &options).unwrap();
    let witness = Arc::new(Witness::default());
    Tree::open(&pool, "t", &ClusteredOptions { page_bytes: 512 }, witness).unwrap()
}

#[test]
fn a_copy_is_brought_up_to_date() {
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        let (_dir, mut tree, _) = made_on(medium);
        let mut state = 0x5eed;
        let (mut mark, mut copy) = marked(&tree);
        for round in 0..24 {
            let keys = 200 + round * 40;
            change(
                &tree,
                &mut state,
                keys,
                if round % 4 == 3 { 3 } else { 150 },
            );
            match round % 6 {
                2 => drop(tree.compact(true, &|| false).unwrap()),
                3 => tree = reopened(tree),
                4 => {
                    // All pages are loaded, and some are not after it.
                    tree = reopened(tree);
                    tree.load_rest().unwrap();
                }
                _ => {}
            }
            (_, mark) = update(&tree, &mut copy, mark);
        }
        assert!(copy.len() > 100);
    }
}

/// Only pages that changed are looked at again, loaded or not, in this session or a later one.
#[test]
fn few_changes_are_few_pages() {
    let (_dir, mut tree, _) = made_on(MediumKind::Mapped);
    for i in 0..2_000 {
        tree.put(&key(i), &i.to_le_bytes()).unwrap();
    }
    let (mut mark, mut copy) = marked(&tree);
    let whole = tree.changed_since(Mark::BEGINNING, b"").unwrap();
    assert!(whole.low.is_empty() && whole.high.is_some());
    for i in 0..6 {
        let (pages, next) = update(&tree, &mut copy, mark);
        // Some of them are split.
        let few = if i == 0 { 0..=0 } else { 2..=6 };
        assert!(few.contains(&pages), "step {i}: {pages} pages");
        mark = next;
        if i % 2 == 1 {
            tree = reopened(tree);
        }
        tree.put(&key(300 * i + 7), b"another!").unwrap();
        tree.modify(&key(1_990), |_| Ok(Modification::Remove))
            .unwrap();
        tree.put(&key(1_990), b"there ag").unwrap();
    }
    assert_eq!(tree.changed_since(tree.mark(), b""), None);
}

/// While others write, what is given at a time together with the mark before it misses nothing.
#[test]
fn nothing_is_missed_while_others_write() {
    let (_dir, tree, _) = made_on(MediumKind::Mapped);
    let (mut mark, mut copy) = marked(&tree);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 1..4 {
            let (tree, done) = (&tree, &done);
            scope.spawn(move || {
                let mut state = seed * 77;
                while !done.load(Ordering::Relaxed) {
                    change(tree, &mut state, 600, 10);
                }
            });
        }
        let mut rounds = 0;
        while rounds < 150 {
            (_, mark) = update(&tree, &mut copy, mark);
            // From when there is something to miss.
            rounds += usize::from(copy.len() > 100);
        }
        done.store(true, Ordering::Relaxed);
    });
    update(&tree, &mut copy, mark);
}
