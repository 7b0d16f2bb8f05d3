//! Giving memory back.

use super::tests_hosted::all_at;
use super::*;
use crate::contract::{Direction, DurableIndex};
use bristlecone_pmem::media::{Auto, journal};
use bristlecone_pmem::{MediaOptions, MediumKind, PoolOptions};
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::{Bound, ControlFlow};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;

pub(super) type Tree = HostedTree<Auto>;
type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Debug)]
pub(super) struct Nobody;

impl Observer for Nobody {
    fn weigh(&self, _: Glimpse<'_>) -> u64 {
        0
    }

    fn changed(&self, _: Observed<'_>) {}
}

pub(super) fn options(page_bytes: u32) -> ClusteredOptions {
    ClusteredOptions { page_bytes }
}

pub(super) fn made(page_bytes: u32) -> (TempDir, Tree) {
    // Each page is compared with the file before it is dropped.
    journal::compare_when_evicting(true);
    let dir = tempfile::tempdir().unwrap();
    let pool_options = PoolOptions {
        media: MediaOptions {
            medium: Some(MediumKind::Journal),
            reserve: 1 << 30,
            ..MediaOptions::default()
        },
    };
    let pool = Pool::<Auto>::create(&dir.path().join("pool"), &pool_options).unwrap();
    let tree = Tree::create(&pool, "t", &options(page_bytes), Arc::new(Nobody)).unwrap();
    (dir, tree)
}

fn all(tree: &Tree) -> Entries {
    let time = tree.begin(false);
    let all = all_at(tree, time);
    tree.end(time);
    all
}

/// Values of all kinds: in pages, outer ones, and such as have chunks of their own.
pub(super) fn value(n: u64) -> Vec<u8> {
    let len = match n % 40 {
        0 => 70_000,
        1..8 => 300 + (n % 5_000) as usize,
        _ => (n % 60) as usize,
    };
    vec![n as u8; len]
}

pub(super) fn key(n: u64) -> Vec<u8> {
    n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes().to_vec()
}

/// Leaf pages that are loaded.
pub(super) fn loaded(tree: &Tree) -> usize {
    let mut loaded = 0;
    tree.tree().inner.for_each_leaf(|_, handle| {
        loaded += usize::from(matches!(Handle::decode(handle), Handle::Part(_)));
    });
    loaded
}

/// Gives back as much as goes. Returns how many bytes that were, of pages in memory or not.
pub(super) fn give_all_back(tree: &Tree) -> u64 {
    // Counted as resident, and bounded, so that there is something to give.
    tree.bound_memory(1 << 30);
    tree.tree().count_all_memory();
    tree.bound_memory(0);
    let given = tree.give_back().unwrap();
    tree.bound_memory(u64::MAX);
    given.bytes
}

pub(super) fn settle(tree: &Tree) {
    tree.make_durable(tree.applied() - 1).unwrap();
    tree.pool().pm().sync().unwrap();
}

#[test]
fn what_is_given_back_is_read_again() {
    for page_bytes in [512, 4096, 16384] {
        let (dir, tree) = made(page_bytes);
        let mut model = Entries::new();
        for n in 0..4_000 {
            tree.put(&key(n), &value(n)).unwrap();
            model.insert(key(n), value(n));
        }
        let before = loaded(&tree);
        assert!(before > 20, "{before}");
        // Nothing is durable at the mark yet, so a reader at it needs to know.
        give_all_back(&tree);
        assert_eq!(loaded(&tree), before);
        settle(&tree);
        let pool_bytes = tree.space().chunk_bytes;
        give_all_back(&tree);
        assert_eq!(loaded(&tree), 0);
        // The seals.
        settle(&tree);
        let evicted = give_all_back(&tree);
        let share = evicted as f64 / pool_bytes as f64;
        assert!(share > 0.7, "{evicted} of {pool_bytes}");
        assert_eq!(all(&tree), model);
        assert!(loaded(&tree) > 20);
        for n in 0..4_000 {
            if n % 3 == 0 {
                tree.modify(&key(n), |_| Ok(Modification::Remove)).unwrap();
                model.remove(&key(n));
            } else if n % 3 == 1 {
                tree.put(&key(n), &value(n + 1)).unwrap();
                model.insert(key(n), value(n + 1));
            }
            if n % 500 == 0 {
                settle(&tree);
                give_all_back(&tree);
            }
        }
        assert_eq!(all(&tree), model);
        // Pages leave again while they are checked.
        settle(&tree);
        tree.bound_memory(0);
        tree.verify().unwrap();
        assert_eq!(all(&tree), model);
        tree.bound_memory(u64::MAX);
        let pool = Arc::clone(tree.pool());
        tree.into_tree().close().unwrap();
        let tree = Tree::open(&pool, "t", &options(page_bytes), Arc::new(Nobody)).unwrap();
        assert_eq!(all(&tree), model);
        drop(tree);
        drop(dir);
    }
}

/// A reader at a time finds what it would have found, had nothing been dropped.
#[test]
fn snapshots_go_on_seeing_what_they_saw() {
    let (_dir, tree) = made(4096);
    for n in 0..500 {
        tree.put(&key(n), b"old").unwrap();
    }
    settle(&tree);
    let time = tree.begin(false);
    for n in 0..500 {
        tree.put(&key(n), b"new").unwrap();
    }
    settle(&tree);
    for _ in 0..3 {
        give_all_back(&tree);
        settle(&tree);
    }
    for n in 0..500 {
        let at = |when| tree.get(when, &key(n), <[u8]>::to_vec).unwrap().unwrap();
        assert_eq!(at(When::At(time)), b"old");
        assert_eq!(at(When::Now), b"new");
    }
    // A change since the snapshot is a conflict, whatever is in memory.
    let written = tree.write([(&key(1)[..], Some(&b"x"[..]))], Some(time), None);
    assert!(matches!(written, Err(ChangeError::Conflict { .. })));
    tree.end(time);
    give_all_back(&tree);
    assert_eq!(loaded(&tree), 0);
}

#[test]
fn changes_go_on_while_memory_is_given_back() {
    for page_bytes in [512, 4096] {
        let (_dir, tree) = made(page_bytes);
        let stop = AtomicBool::new(false);
        let models: Vec<Entries> = std::thread::scope(|scope| {
            let evictor = scope.spawn(|| {
                let (mut bytes, mut turn) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    bytes += give_all_back(&tree);
                    turn += 1;
                    if turn % 4 == 0 {
                        settle(&tree);
                    }
                }
                bytes
            });
            let reader = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let time = tree.begin(false);
                    let once = at(&tree, time);
                    assert_eq!(at(&tree, time), once);
                    tree.end(time);
                }
            });
            let writers: Vec<_> = (0..2_u64)
                .map(|t| {
                    let tree = &tree;
                    scope.spawn(move || write_and_read(tree, t))
                })
                .collect();
            let models = writers.into_iter().map(|w| w.join().unwrap()).collect();
            stop.store(true, Ordering::Relaxed);
            reader.join().unwrap();
            assert!(evictor.join().unwrap() > 0);
            models
        });
        let model: Entries = models.into_iter().flatten().collect();
        assert_eq!(all(&tree), model);
        tree.verify().unwrap();
        let pool = Arc::clone(tree.pool());
        tree.into_tree().close().unwrap();
        let tree = Tree::open(&pool, "t", &options(page_bytes), Arc::new(Nobody)).unwrap();
        assert_eq!(all(&tree), model);
    }
}

/// How many keys there are at a time, and the bytes of their values.
fn at(tree: &Tree, time: u64) -> (usize, usize) {
    let (mut keys, mut bytes) = (0, 0);
    let range = (Bound::Unbounded, Bound::Unbounded);
    let scanned = tree.scan(
        time,
        range,
        (Direction::Up, Visits::Values),
        |_, current| {
            keys += 1;
            bytes += current.value()?.len();
            Ok(ControlFlow::Continue(()))
        },
    );
    scanned.unwrap();
    (keys, bytes)
}

/// Changes keys of its own, by all kinds of changes, and finds them as it left them.
fn write_and_read(tree: &Tree, thread: u64) -> Entries {
    let mut model = Entries::new();
    let mut state = thread + 1;
    for turn in 0..6_000_u64 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let n = (state >> 33) % 1_000 * 2 + thread;
        match (state >> 20) % 8 {
            0..3 => {
                tree.put(&key(n), &value(state)).unwrap();
                model.insert(key(n), value(state));
            }
            3 => {
                tree.modify(&key(n), |_| Ok(Modification::Remove)).unwrap();
                model.remove(&key(n));
            }
            4 => {
                let keys = [key(n), key(n + 2_000_000), key(n + 4_000_000)];
                let value = value(state | 8);
                let changes = keys.iter().map(|key| (&key[..], Some(&value[..])));
                tree.write(changes, None, None).unwrap();
                model.extend(keys.iter().map(|key| (key.clone(), value.clone())));
            }
            _ => {
                let got = tree.get(When::Now, &key(n), <[u8]>::to_vec).unwrap();
                assert_eq!(got.as_ref(), model.get(&key(n)), "turn {turn}");
            }
        }
    }
    model
}

/// Where memory is short few of the values that are read come to memory, and what is read is what
/// they are: also of those that have changed since, and of one that the file has lost.
#[test]
fn values_are_read_beside_memory() {
    const KEYS: u64 = 30_000;
    const READ: u64 = 64;
    let (dir, tree) = made(4096);
    let long = |n: u64, turn: u64| (n << 8 | turn).to_be_bytes().repeat(50);
    for n in 0..KEYS {
        tree.put(&key(n), &long(n, 0)).unwrap();
    }
    for _ in 0..2 {
        settle(&tree);
        give_all_back(&tree);
    }
    // The keys come to memory, and nearly fill it.
    tree.bound_memory(1 << 30);
    let time = tree.begin(false);
    let range = (Bound::Unbounded, Bound::Unbounded);
    let mut keys = 0;
    let scanned = tree.scan(time, range, (Direction::Up, Visits::Keys), |_, _| {
        keys += 1;
        Ok(ControlFlow::Continue(()))
    });
    scanned.unwrap();
    assert_eq!(keys, KEYS);
    let before = tree.in_memory();
    tree.bound_memory(before / 2 * 3);
    let of = |n: u64| n * (KEYS / READ);
    let get = |when, n| {
        tree.get(when, &key(of(n)), <[u8]>::to_vec)
            .unwrap()
            .unwrap()
    };
    for n in 0..READ {
        assert_eq!(get(When::Now, n), long(of(n), 0));
    }
    let grown = tree.in_memory() - before;
    // A sixteenth, with the 64 KiB around each.
    assert!((1..=5 << 16).contains(&grown), "{grown} of {before}");
    // Looking at what a key has, to change it, brings nothing.
    for n in 0..READ / 2 {
        tree.put(&key(of(n)), &long(of(n), 1)).unwrap();
    }
    let grown = tree.in_memory() - before - grown;
    assert!(grown < 1 << 20, "{grown} of {before}");
    for n in 0..READ {
        assert_eq!(get(When::At(time), n), long(of(n), 0));
        assert_eq!(get(When::Now, n), long(of(n), u64::from(n < READ / 2)));
    }
    tree.end(time);
    // One that is nowhere but in the file, which is damaged.
    settle(&tree);
    give_all_back(&tree);
    let path = dir.path().join("pool");
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let (lost, mut all) = (long(of(READ - 1), 0), Vec::new());
    (&file).read_to_end(&mut all).unwrap();
    let at = all
        .windows(lost.len())
        .position(|bytes| bytes == lost)
        .unwrap();
    file.write_all_at(&[!lost[9]], at as u64 + 9).unwrap();
    tree.bound_memory(before / 2 * 3);
    for _ in 0..20 {
        let read = tree.get(When::Now, &key(of(READ - 1)), <[u8]>::to_vec);
        assert!(matches!(read, Err(ReadError::Value(_))), "{read:?}");
    }
    tree.bound_memory(u64::MAX);
}

/// Where memory is short few of the pages that are read for one key come to memory, and what is
/// read is what there is: also after changes, and by readers at a time.
#[test]
fn pages_are_read_beside_memory() {
    const KEYS: u64 = 20_000;
    let (_dir, tree) = made(4096);
    let put = |n: u64, value: &str| tree.put(&key(n), value.as_bytes()).unwrap();
    for n in 0..KEYS {
        put(n, &format!("value {n}"));
        // In the tail of its page, or in the base of a later one.
        if n % 3 == 0 {
            put(n / 2, &format!("newer {}", n / 2));
        }
    }
    let mut model = all(&tree);
    for n in (0..KEYS).step_by(7) {
        tree.modify(&key(n), |_| Ok(Modification::Remove)).unwrap();
        model.remove(&key(n));
    }
    for _ in 0..2 {
        settle(&tree);
        give_all_back(&tree);
    }
    assert_eq!(loaded(&tree), 0);
    tree.bound_memory(tree.in_memory() + (1 << 16));
    let get = |when, n| tree.get(when, &key(n), <[u8]>::to_vec).unwrap();
    let time = tree.begin(false);
    let some = || (0..KEYS).step_by(101);
    for n in some() {
        let expected = model.get(&key(n)).cloned();
        for when in [When::Now, When::Durable, When::At(time)] {
            assert_eq!(get(when, n), expected, "{n}");
        }
        assert_eq!(get(When::Now, n + KEYS), None);
    }
    let (reads, few) = (4 * some().count(), loaded(&tree));
    assert!((1..=reads / 15 + 1).contains(&few), "{few} after {reads}");
    // Changed keys are read from memory, although the file still has their old pages.
    for n in some() {
        put(n, "changed");
        assert_eq!(get(When::Now, n).unwrap(), b"changed");
        assert_eq!(get(When::At(time), n), model.get(&key(n)).cloned());
    }
    settle(&tree);
    for n in some() {
        assert_eq!(get(When::Durable, n).unwrap(), b"changed");
        assert_eq!(get(When::At(time), n), model.get(&key(n)).cloned());
    }
    tree.end(time);
    for n in some() {
        model.insert(key(n), b"changed".to_vec());
    }
    tree.bound_memory(u64::MAX);
    assert_eq!(all(&tree), model);
}

/// Whoever has seen a change sees it from then on, also where pages and values leave memory and are
/// read beside it meanwhile.
#[test]
fn reads_beside_memory_never_go_back() {
    const KEYS: u64 = 2_000;
    const TURNS: u64 = 3;
    let (_dir, tree) = made(4096);
    // Short ones and outer ones.
    let value = |n: u64, turn: u64| {
        turn.to_be_bytes()
            .repeat(if n.is_multiple_of(4) { 50 } else { 2 })
    };
    for n in 0..KEYS {
        tree.put(&key(n), &value(n, 0)).unwrap();
    }
    for _ in 0..2 {
        settle(&tree);
        give_all_back(&tree);
    }
    tree.bound_memory(tree.in_memory() + (1 << 16));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let evictor = scope.spawn(|| {
            let mut bytes = 0;
            while !stop.load(Ordering::Relaxed) {
                settle(&tree);
                bytes += tree.give_back().unwrap().bytes;
            }
            bytes
        });
        let readers: Vec<_> = (0..2_u64)
            .map(|r| {
                let (tree, stop) = (&tree, &stop);
                scope.spawn(move || {
                    let (mut seen, mut n) = (vec![0; KEYS as usize], r);
                    while !stop.load(Ordering::Relaxed) {
                        n = (n * 5 + 3) % KEYS;
                        let read = tree
                            .get(When::Now, &key(n), <[u8]>::to_vec)
                            .unwrap()
                            .unwrap();
                        let turn = u64::from_be_bytes(*read.first_chunk().unwrap());
                        assert_eq!(read, value(n, turn));
                        let last = &mut seen[n as usize];
                        assert!(turn >= *last, "key {n}: {turn} after {last}");
                        *last = turn;
                    }
                })
            })
            .collect();
        for turn in 1..=TURNS {
            for n in 0..KEYS {
                let n = n * 1_999 % KEYS;
                tree.put(&key(n), &value(n, turn)).unwrap();
                if n.is_multiple_of(16) {
                    let read = tree.get(When::Now, &key(n), <[u8]>::to_vec).unwrap();
                    assert_eq!(read, Some(value(n, turn)), "what this thread has written");
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|r| r.join().unwrap());
        assert!(evictor.join().unwrap() > 0);
    });
    tree.bound_memory(u64::MAX);
    let expected: Entries = (0..KEYS).map(|n| (key(n), value(n, TURNS))).collect();
    assert_eq!(all(&tree), expected);
}
