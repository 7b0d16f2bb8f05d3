//! Compaction while other threads read and write: what is cut off or punched may just have been left
//! by a reader, and nothing that is in use goes.

mod common;

use bristlecone_pmem::Media;
use bristlecone_pmem::media::{Dram, Journal, Mapped};
use bristlecone_trees::DurableIndex;
use bristlecone_trees::lbtree::{LbOptions, LbTree};
use bristlecone_trees::{KeyRepr, OrderedIndex, Repr};
use common::{PoolHome, Rng, TestKey, TestValue, stress_time, within_patience};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

/// Keys of the part that comes and goes; a few below it stay.
const MOVING: u64 = 40_000;
const STAYING: u64 = 500;

fn run<K, V, M>()
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    let home = PoolHome::<M>::new();
    let tree =
        LbTree::<K, V, M, 1>::create(&home.pool, "index", &LbOptions::default()).expect("root");
    let put = |n: u64| {
        tree.upsert(K::of(n).borrow(), V::of(n).borrow())
            .expect("upsert")
    };
    for n in 0..STAYING {
        put(n);
    }
    let stop = AtomicBool::new(false);
    let mut cut = 0;
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rng = Rng::new(1);
            let mut order: Vec<u64> = (STAYING..STAYING + MOVING).collect();
            while !stop.load(Ordering::Relaxed) {
                rng.shuffle(&mut order);
                for n in &order {
                    put(*n);
                }
                for n in &order {
                    assert!(tree.remove(K::of(*n).borrow()).expect("removal"), "key {n}");
                }
            }
        });
        let reader = scope.spawn(|| {
            let mut rng = Rng::new(2);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..200 {
                    let n = rng.below(STAYING + MOVING);
                    let found = tree.get_with(K::of(n).borrow(), |v| v.number());
                    assert!(found.is_none_or(|v| v == n), "key {n} has {found:?}");
                    assert!(n >= STAYING || found.is_some(), "key {n} was not removed");
                }
                let (from, mut seen) = (rng.below(STAYING + MOVING), 0);
                let low = K::of(from);
                let range = (Bound::Included(low.borrow()), Bound::Unbounded);
                tree.scan(range, |k: &K, v: &V| {
                    assert_eq!(k.number(), v.number());
                    seen += 1;
                    if seen < 2_000 {
                        ControlFlow::Continue(())
                    } else {
                        ControlFlow::Break(())
                    }
                });
            }
        });
        let started = Instant::now();
        while started.elapsed() < stress_time() * 2 {
            let report = home.pool.compact().expect("compaction");
            assert!(report.after_bytes <= report.before_bytes, "{report:?}");
            cut += report.before_bytes - report.after_bytes + report.punched_bytes;
            thread::yield_now();
        }
        stop.store(true, Ordering::Relaxed);
        for result in [writer.join(), reader.join()] {
            if let Err(panic) = result {
                std::panic::resume_unwind(panic);
            }
        }
    });
    assert!(cut > 0, "no compaction gave anything back");
    let report = tree.verify().unwrap_or_else(|v| panic!("{v}"));
    assert_eq!(report.entries, STAYING, "what stays, and nothing else");
    home.pool.compact().expect("compaction");
    let image = home.crash_image();
    let opened =
        LbTree::<K, V, M, 1>::open(&image.pool, "index", &LbOptions::default()).expect("open");
    assert_eq!(
        opened.verify().unwrap_or_else(|v| panic!("{v}")).entries,
        STAYING
    );
}

#[test]
fn numbers_mapped() {
    within_patience(run::<u64, u64, Mapped>);
}

#[test]
fn strings_mapped() {
    within_patience(run::<[u8], [u8], Mapped>);
}

#[test]
fn numbers_journal() {
    within_patience(run::<u64, u64, Journal>);
}

#[test]
fn strings_journal() {
    within_patience(run::<[u8], [u8], Journal>);
}

/// Memory alone: nothing of it is in a file, so there is no image to open.
#[test]
fn numbers_dram_stay_readable() {
    let home = PoolHome::<Dram>::new();
    let tree = LbTree::<u64, u64, Dram, 1>::create(&home.pool, "index", &LbOptions::default())
        .expect("root");
    for cycle in 0..4u64 {
        for n in 0..MOVING {
            tree.insert(&n, &(n + cycle)).expect("a new key");
        }
        for n in STAYING..MOVING {
            assert!(tree.remove(&n).expect("removal"));
        }
        common::scenarios::reclaim();
        let report = home.pool.compact().expect("compaction");
        assert!(report.before_bytes >= report.after_bytes, "{report:?}");
        for n in 0..STAYING {
            assert_eq!(tree.get(&n), Some(n + cycle));
            assert!(tree.remove(&n).expect("removal"));
        }
        assert_eq!(tree.verify().unwrap_or_else(|v| panic!("{v}")).entries, 0);
    }
}
