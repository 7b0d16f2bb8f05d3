//! Reading at a time, against copies of a map.

use super::tests::{Medium, borrowed, tree};
use super::*;
use crate::contract::{Direction, DurableIndex, OrderedIndex};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicU64, Ordering};

type Model<K> = BTreeMap<<K as ToOwned>::Owned, <K as ToOwned>::Owned>;

/// Returns the entries that a scan of a snapshot visits, in ascending order.
fn scanned<K>(
    snapshot: &Snapshot<'_, K, K, Medium>,
    range: &(Bound<K::Owned>, Bound<K::Owned>),
    direction: Direction,
) -> Vec<(K::Owned, K::Owned)>
where
    K: KeyRepr + ?Sized,
{
    let mut found = Vec::new();
    let range = (borrowed::<K>(&range.0), borrowed::<K>(&range.1));
    let whole = snapshot.scan(range, direction, |key, value| {
        found.push((key.to_owned(), value.to_owned()));
        ControlFlow::Continue(())
    });
    whole.unwrap();
    if direction == Direction::Down {
        found.reverse();
    }
    found
}

/// A snapshot has, in `range` and at `key`, what the model has.
fn agrees<K>(
    snapshot: &Snapshot<'_, K, K, Medium>,
    model: &Model<K>,
    range: &(Bound<K::Owned>, Bound<K::Owned>),
    key: &K::Owned,
) where
    K: KeyRepr + ?Sized,
    K::Owned: Ord + Clone + std::fmt::Debug,
{
    assert_eq!(
        snapshot.get(key.borrow()).unwrap().as_ref(),
        model.get::<K::Owned>(key),
        "{key:?}"
    );
    let taken = |key: &K::Owned| {
        let above = match &range.0 {
            Bound::Included(from) => key >= from,
            Bound::Excluded(from) => key > from,
            Bound::Unbounded => true,
        };
        let below = match &range.1 {
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
            Bound::Unbounded => true,
        };
        above && below
    };
    let expected: Vec<_> = model
        .iter()
        .filter(|(key, _)| taken(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    for direction in [Direction::Up, Direction::Down] {
        assert!(
            scanned(snapshot, range, direction) == expected,
            "{range:?} {direction:?}"
        );
    }
}

/// Changes a tree and a map, one by one and in batches, while snapshots come and go. `any` makes a
/// key or a value of the first few.
fn snapshots_agree_with_maps<K>(page_bytes: u32, mut any: impl FnMut(&mut StdRng, u64) -> K::Owned)
where
    K: KeyRepr + ?Sized,
    K::Owned: Ord + Clone + std::fmt::Debug,
{
    let rng = &mut StdRng::seed_from_u64(26);
    let tree = tree::<K>(page_bytes);
    let empty = tree.stats().dram_bytes;
    let mut model: Model<K> = BTreeMap::new();
    let mut snapshots: Vec<(Snapshot<'_, K, K, Medium>, Model<K>)> = Vec::new();
    for round in 0..500u64 {
        // Growing, shrinking to little, growing again.
        let removing = if round / 100 % 2 == 1 { 0.8 } else { 0.25 };
        let keys = if round % 3 == 0 { 40 } else { 2_000 };
        for _ in 0..rng.random_range(0..40) {
            let (key, value) = (any(rng, keys), any(rng, u64::MAX));
            if rng.random_bool(removing) {
                let removed = model.remove::<K::Owned>(&key).is_some();
                assert_eq!(tree.remove(key.borrow()).unwrap(), removed);
            } else {
                tree.upsert(key.borrow(), value.borrow()).unwrap();
                model.insert(key, value);
            }
        }
        let batch: Vec<(K::Owned, Option<K::Owned>)> = (0..rng.random_range(0..60))
            .map(|_| {
                let value = (!rng.random_bool(removing)).then(|| any(rng, u64::MAX));
                (any(rng, keys), value)
            })
            .collect();
        let changes = batch.iter().map(|(key, value)| {
            let value: Option<&K> = value.as_ref().map(Borrow::borrow);
            (key.borrow(), value)
        });
        tree.write_batch(changes).unwrap();
        for (key, value) in batch {
            match value {
                Some(value) => model.insert(key, value),
                None => model.remove::<K::Owned>(&key),
            };
        }
        if rng.random_bool(0.3) {
            snapshots.push((tree.snapshot(), model.clone()));
        }
        let mut bound = || match rng.random_range(0..5) {
            0 => Bound::Unbounded,
            1 | 2 => Bound::Included(any(rng, 2_000)),
            _ => Bound::Excluded(any(rng, 2_000)),
        };
        let range = (bound(), bound());
        let range = match (&range.0, &range.1) {
            // No range of a map may be empty so.
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => range,
            (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b))
                if a < b =>
            {
                range
            }
            _ => (Bound::Unbounded, Bound::Unbounded),
        };
        let key = any(rng, 2_000);
        for (snapshot, model) in &snapshots {
            agrees(snapshot, model, &range, &key);
        }
        if snapshots.len() > 5 {
            let i = rng.random_range(0..snapshots.len());
            drop(snapshots.swap_remove(i));
        }
    }
    tree.verify().unwrap();
    assert!(tree.stats().dram_bytes > empty);
    snapshots.clear();
    assert_eq!(tree.versions.bytes(), 0);
}

#[test]
fn snapshots_of_numbers_agree_with_maps() {
    snapshots_agree_with_maps::<u64>(512, |rng, below| rng.random_range(0..below));
}

#[test]
fn snapshots_of_strings_agree_with_maps() {
    snapshots_agree_with_maps::<[u8]>(1024, |rng, below| {
        let n = rng.random_range(0..below);
        let mut key = format!("a prefix of all/{n}").into_bytes();
        key.extend(std::iter::repeat_n(b'+', (n % 7) as usize));
        key
    });
}

/// Fills the tail of the page of `key`, so that what is in it goes into the base.
fn replace_page(tree: &ClusteredTree<u64, u64, Medium>, key: u64) {
    let block = tests::part_of(tree, key).block();
    for value in 0.. {
        tree.upsert(&key, &value).unwrap();
        if tests::part_of(tree, key).block() != block {
            return;
        }
    }
}

#[test]
fn a_batch_conflicts_with_later_changes_of_its_keys_alone() {
    let tree = tree::<u64>(512);
    for key in 0..10 {
        tree.insert(&key, &0).unwrap();
    }
    for replaced in [false, true] {
        let before = tree.snapshot();
        tree.upsert(&3, &1).unwrap();
        tree.remove(&4).unwrap();
        if replaced {
            replace_page(&tree, 9);
        }
        for key in [3, 4] {
            let answer = before.write_batch([(&2, Some(&7)), (&key, Some(&7))]);
            assert!(matches!(answer, Err(WriteError::Conflict)), "{key}");
        }
        assert_ne!(tree.get(&2), Some(7), "nothing of it has been written");
        assert_eq!(tree.get(&4), None);
        before.write_batch([(&5, Some(&5)), (&6, None)]).unwrap();
        assert_eq!((tree.get(&5), tree.get(&6)), (Some(5), None));
        let again = before.write_batch([(&6, Some(&8))]);
        assert!(
            matches!(again, Err(WriteError::Conflict)),
            "its own batch is later"
        );
        let now = tree.snapshot();
        now.write_batch([(&3, Some(&0)), (&4, Some(&0)), (&6, Some(&0))])
            .unwrap();
    }
}

#[test]
fn a_snapshot_waits_for_changes_that_have_begun() {
    let tree = tree::<u64>(512);
    tree.insert(&1, &1).unwrap();
    let stamp = tree.next_stamp();
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| drop(tree.snapshot()));
        std::thread::sleep(std::time::Duration::from_millis(20));
        let waited = !taken.is_finished();
        tree.shown.show(stamp);
        assert!(waited, "the change was not visible yet");
    });
}

#[test]
fn a_snapshot_of_a_reopened_tree_sees_all() {
    let tree = tree::<u64>(512);
    for key in 0..500 {
        tree.insert(&key, &key).unwrap();
    }
    let pool = Arc::clone(tree.pool());
    tree.close().unwrap();
    let options = ClusteredOptions { page_bytes: 512 };
    let tree = ClusteredTree::<u64, u64, Medium>::open(&pool, "t", &options).unwrap();
    let before = tree.snapshot();
    for key in 0..500 {
        tree.remove(&key).unwrap();
    }
    let all = (Bound::Unbounded, Bound::Unbounded);
    let expected: Vec<_> = (0..500).map(|key| (key, key)).collect();
    assert_eq!(scanned(&before, &all, Direction::Up), expected);
    assert_eq!(scanned(&tree.snapshot(), &all, Direction::Up), []);
}

/// Threads move money between accounts, and change other keys of the same pages. A scan of a
/// snapshot always finds the same sum, and a thread finds at a snapshot what it wrote before.
#[test]
fn sums_of_snapshots_never_change() {
    const ACCOUNTS: u64 = 200;
    const START: u64 = 1_000;
    let tree = tree::<u64>(512);
    for account in 0..ACCOUNTS {
        tree.insert(&(2 * account), &START).unwrap();
    }
    let conflicts = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (tree, conflicts) = (&tree, &conflicts);
        for thread in 0..3u64 {
            scope.spawn(move || {
                let rng = &mut StdRng::seed_from_u64(thread);
                let mut account = || 2 * rng.random_range(0..ACCOUNTS);
                for round in 0..4_000u64 {
                    let (from, to) = (account(), account());
                    let snapshot = tree.snapshot();
                    let amount = round % 5;
                    let value = |key| snapshot.get(key).unwrap().unwrap();
                    let values = (value(&from), value(&to));
                    if from != to && values.0 >= amount {
                        let (less, more) = (values.0 - amount, values.1 + amount);
                        match snapshot.write_batch([(&from, Some(&less)), (&to, Some(&more))]) {
                            Ok(()) => {}
                            Err(WriteError::Conflict) => {
                                conflicts.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(e) => panic!("{e}"),
                        }
                    }
                    let own = 2 * (round * 7 % ACCOUNTS) + 1 + 2 * ACCOUNTS * thread;
                    tree.upsert(&own, &round).unwrap();
                    assert_eq!(tree.snapshot().get(&own).unwrap(), Some(round));
                    if round % 3 == 0 {
                        tree.remove(&own).unwrap();
                        assert_eq!(tree.snapshot().get(&own).unwrap(), None);
                    }
                }
            });
        }
        scope.spawn(move || {
            for round in 0..600 {
                let snapshot = tree.snapshot();
                for direction in [Direction::Up, Direction::Down] {
                    let (mut sum, mut accounts) = (0, 0);
                    let whole = snapshot.scan(..2 * ACCOUNTS, direction, |key, value| {
                        if key % 2 == 0 {
                            sum += value;
                            accounts += 1;
                        }
                        ControlFlow::Continue(())
                    });
                    whole.unwrap();
                    assert_eq!((accounts, sum), (ACCOUNTS, ACCOUNTS * START), "{round}");
                }
            }
        });
    });
    tree.verify().unwrap();
    assert_eq!(tree.versions.bytes(), 0);
}
