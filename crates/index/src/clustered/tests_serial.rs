//! Serialisable transactions.

use super::tests::{Medium, pool, tree};
use super::*;
use crate::contract::{DurableIndex, OrderedIndex};
use std::ops::Bound;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

type Numbers = ClusteredTree<u64, u64, Medium>;

type Change = fn(&Numbers);

/// Writes `changes` at `snapshot`, whose transaction has read all of `reads`: whether it was made.
fn write(
    snapshot: &Snapshot<'_, u64, u64, Medium>,
    changes: &[(u64, Option<u64>)],
    reads: &Reads<u64>,
) -> bool {
    let changes = changes.iter().map(|(key, value)| (key, value.as_ref()));
    match snapshot.write_serializable(changes, reads) {
        Ok(()) => true,
        Err(WriteError::Conflict) => false,
        Err(e) => panic!("{e}"),
    }
}

fn keys(keys: &[u64]) -> Reads<u64> {
    let mut reads = Reads::new();
    keys.iter().for_each(|key| reads.key(key));
    reads
}

/// The page is replaced: what has changed is in its base.
fn replace(tree: &Numbers, key: u64) {
    let part = super::tests::part_of(tree, key);
    part.writer.lock();
    tree.renew(part).unwrap();
    part.writer.unlock();
}

#[test]
fn what_has_changed_after_it_was_read_is_a_conflict() {
    for replaces in [false, true] {
        let tree = tree::<u64>(512);
        for key in 0..200 {
            tree.insert(&(key * 10), &key).unwrap();
        }
        let changes: [(&str, Change); 4] = [
            ("an update", |tree| tree.update(&500, &7).unwrap()),
            ("an insertion", |tree| tree.insert(&505, &7).unwrap()),
            ("a removal", |tree| assert!(tree.remove(&500).unwrap())),
            ("a batch", |tree| {
                tree.write_batch([(&500, Some(&1)), (&505, None), (&1900, None)])
                    .unwrap();
            }),
        ];
        let mut written = 3;
        let mut try_write = |snapshot: &Snapshot<'_, _, _, _>, reads: &Reads<u64>| {
            written += 1;
            write(snapshot, &[(written, Some(0))], reads)
        };
        for (what, change) in changes {
            let snapshot = tree.snapshot();
            change(&tree);
            if replaces {
                replace(&tree, 500);
            }
            let changed = if what == "an insertion" { 505 } else { 500 };
            let about = format!("{what}, replaced: {replaces}");
            assert!(!try_write(&snapshot, &keys(&[1200, changed])), "{about}");
            assert!(
                try_write(&snapshot, &keys(&[1200, 490, 510, 501])),
                "{about}"
            );
            for range in [490..=510, changed..=changed, 0..=u64::MAX] {
                let mut reads = Reads::new();
                reads.range(range);
                assert!(!try_write(&snapshot, &reads), "{about}");
            }
            // This transaction's own writes before are changes, too, of keys below 100.
            let mut reads = Reads::new();
            reads.range(100..500);
            reads.range(506..1900);
            reads.range((Bound::Excluded(505), Bound::Excluded(506)));
            assert!(try_write(&snapshot, &reads), "{about}");
            let late = tree.snapshot();
            assert!(
                try_write(&late, &keys(&[changed])),
                "{about}: read afterwards"
            );
        }
        tree.verify().unwrap();
    }
}

#[test]
fn pages_that_are_not_loaded_have_not_changed() {
    let pool = pool(1 << 30);
    let options = ClusteredOptions { page_bytes: 512 };
    let tree = Numbers::create(&pool, "t", &options).unwrap();
    for key in 0..2_000 {
        tree.insert(&key, &key).unwrap();
    }
    tree.close().unwrap();
    let lazy = LazyTree::<u64, u64, Medium>::open(&pool, "t", &options).unwrap();
    let tree = lazy.into_tree();
    let snapshot = tree.snapshot();
    let mut reads = keys(&[1_500]);
    reads.range(100..);
    assert!(write(&snapshot, &[(0, None)], &reads));
    tree.update(&1_900, &0).unwrap();
    assert!(!write(&snapshot, &[(1, None)], &reads));
    assert!(tree.stats().leaves < 20, "few pages are loaded");
}

/// Each transaction reads all accounts, and takes 1 from its own if there is 1 left in all of them
/// together. With snapshots alone, two that take at once overdraw.
#[test]
fn transactions_of_threads_take_place_one_after_another() {
    const ACCOUNTS: u64 = 3;
    const ROUNDS: u64 = 200;
    for ranges in [false, true] {
        let tree = tree::<u64>(512);
        // Other keys between the accounts, so that they are in pages of their own.
        for key in 0..3000 {
            tree.insert(&key, &0).unwrap();
        }
        let total = |snapshot: &Snapshot<'_, u64, u64, Medium>| -> u64 {
            let of = |account| snapshot.get(&(account * 1000)).unwrap().unwrap();
            (0..ACCOUNTS).map(of).sum()
        };
        let barrier = Barrier::new(ACCOUNTS as usize);
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for account in 0..ACCOUNTS {
                let (tree, taken, barrier) = (&tree, &taken, &barrier);
                scope.spawn(move || {
                    let mine = account * 1000;
                    for round in 0..ROUNDS {
                        if round % ACCOUNTS == account {
                            for key in 0..ACCOUNTS {
                                tree.update(&(key * 1000), &1).unwrap();
                            }
                        }
                        barrier.wait();
                        loop {
                            let snapshot = tree.snapshot();
                            if total(&snapshot) < ACCOUNTS {
                                break;
                            }
                            let mut reads = keys(&[0, 1000, 2000]);
                            if ranges {
                                reads = Reads::new();
                                reads.range(..);
                            }
                            // Others read before this writes.
                            std::thread::sleep(Duration::from_micros(50));
                            if write(&snapshot, &[(mine, Some(0))], &reads) {
                                // ORDERING: Relaxed; read when the threads have ended.
                                taken.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        barrier.wait();
                    }
                });
            }
        });
        // ORDERING: Relaxed; the threads have ended.
        assert_eq!(taken.load(Ordering::Relaxed), ROUNDS, "one in each round");
        tree.verify().unwrap();
    }
}
