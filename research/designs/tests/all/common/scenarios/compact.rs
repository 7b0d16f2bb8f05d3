//! Compaction while other threads read and write. A reader may just have left the parts that are
//! cut off or punched, and nothing that is in use disappears.

use super::super::home::must;
use super::super::{PoolHome, Pooled, Rng, TestKey, TestValue, stress_time};
use super::{key, reclaim, value};
use bristlecone_designs::OrderedIndex;
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

/// Number of keys that come and go; a few below them stay.
const MOVING: u64 = 40_000;
const STAYING: u64 = 500;

/// One writer, one reader, and compaction all the time.
pub fn others_work<H: Pooled>() {
    let home = H::home();
    let tree = must("create", H::create(&home, "index"));
    let put = |n: u64| {
        tree.upsert(key::<H>(n).borrow(), value::<H>(n).borrow())
            .expect("upsert")
    };
    for n in 0..STAYING {
        put(n);
    }
    let stop = AtomicBool::new(false);
    let mut cut = 0;
    thread::scope(|scope| {
        scopeguard::defer!(stop.store(true, Ordering::Relaxed));
        let writer = scope.spawn(|| {
            let mut rng = Rng::new(1);
            let mut order: Vec<u64> = (STAYING..STAYING + MOVING).collect();
            while !stop.load(Ordering::Relaxed) {
                rng.shuffle(&mut order);
                for n in &order {
                    put(*n);
                }
                for n in &order {
                    assert!(
                        tree.remove(key::<H>(*n).borrow()).expect("removal"),
                        "key {n}"
                    );
                }
            }
        });
        let reader = scope.spawn(|| {
            let mut rng = Rng::new(2);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..200 {
                    let n = rng.below(STAYING + MOVING);
                    let found = tree.get_with(key::<H>(n).borrow(), |v: &H::Value| v.number());
                    assert!(found.is_none_or(|v| v == n), "key {n} has {found:?}");
                    assert!(n >= STAYING || found.is_some(), "key {n} was not removed");
                }
                let (from, mut seen) = (rng.below(STAYING + MOVING), 0);
                let low = key::<H>(from);
                let range = (Bound::Included(low.borrow()), Bound::Unbounded);
                tree.scan(range, |k: &H::Key, v: &H::Value| {
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
    let opened = must("open", H::open(&image, "index"));
    assert_eq!(
        opened.verify().unwrap_or_else(|v| panic!("{v}")).entries,
        STAYING
    );
}

/// Compaction between batches of work; what stays is readable.
pub fn between_batches<H: Pooled>() {
    let home = H::home();
    let tree = must("create", H::create(&home, "index"));
    for cycle in 0..4u64 {
        for n in 0..MOVING {
            tree.insert(key::<H>(n).borrow(), value::<H>(n + cycle).borrow())
                .expect("a new key");
        }
        for n in STAYING..MOVING {
            assert!(tree.remove(key::<H>(n).borrow()).expect("removal"));
        }
        reclaim();
        let report = home.pool.compact().expect("compaction");
        assert!(report.before_bytes >= report.after_bytes, "{report:?}");
        for n in 0..STAYING {
            let k = key::<H>(n);
            assert_eq!(tree.get(k.borrow()), Some(value::<H>(n + cycle)));
            assert!(tree.remove(k.borrow()).expect("removal"));
        }
        assert_eq!(tree.verify().unwrap_or_else(|v| panic!("{v}")).entries, 0);
    }
}
