//! Scans while another thread splits and empties the leaves under them.
//!
//! Even keys never change; a writer inserts and removes all odd ones. Each scan must visit every
//! even key of its range exactly once, in strict order, and nothing that was never written.

use super::super::{Harness, Rng, TestKey, TestValue, stress_time};
use super::{key, value};
use bristlecone_designs::{OrderedIndex, ReverseScan};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

const KEYS: u64 = 4_000;

/// Scans upwards.
pub fn ascending<H: Harness>() {
    run::<H>(|index, range, visit| index.scan(range, visit), false);
}

/// Scans downwards.
pub fn descending<H: Harness>()
where
    H::Index: ReverseScan<H::Key, H::Value>,
{
    run::<H>(|index, range, visit| index.scan_reverse(range, visit), true);
}

type Range<'a, H> = (
    Bound<&'a <H as Harness>::Key>,
    Bound<&'a <H as Harness>::Key>,
);
type Visit<'a, H> =
    &'a mut dyn FnMut(&<H as Harness>::Key, &<H as Harness>::Value) -> ControlFlow<()>;
type Scan<H> = fn(&<H as Harness>::Index, Range<'_, H>, Visit<'_, H>);

fn run<H: Harness>(scan: Scan<H>, downwards: bool) {
    let fresh = H::fresh();
    let index = &fresh.index;
    let pair = |n: u64| (key::<H>(n), value::<H>(n));
    for n in (0..KEYS).step_by(2) {
        let (k, v) = pair(n);
        index
            .insert(k.borrow(), v.borrow())
            .expect("a key of the fresh index");
    }
    let stop = AtomicBool::new(false);
    let scans = AtomicU64::new(0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut rng = Rng::new(11);
            let mut odd: Vec<u64> = (1..KEYS).step_by(2).collect();
            let mut cycles = 0;
            while cycles == 0 || !stop.load(Ordering::Relaxed) {
                rng.shuffle(&mut odd);
                for n in &odd {
                    let (k, v) = pair(*n);
                    index
                        .insert(k.borrow(), v.borrow())
                        .expect("the key is not there");
                }
                rng.shuffle(&mut odd);
                for n in &odd {
                    assert!(
                        index.remove(key::<H>(*n).borrow()).expect("removal"),
                        "key {n}"
                    );
                }
                cycles += 1;
            }
        });
        let scanner = scope.spawn(|| {
            let mut rng = Rng::new(12);
            let started = Instant::now();
            while started.elapsed() < stress_time() {
                one_scan::<H>(index, scan, downwards, &mut rng);
                // ORDERING: Relaxed; a count.
                scans.fetch_add(1, Ordering::Relaxed);
            }
        });
        let result = scanner.join();
        stop.store(true, Ordering::Relaxed);
        for result in [result, writer.join()] {
            if let Err(panic) = result {
                std::panic::resume_unwind(panic);
            }
        }
    });
    assert!(scans.load(Ordering::Relaxed) > 0, "at least one scan ran");
    let report = index.verify().unwrap_or_else(|v| panic!("{v}"));
    assert_eq!(report.entries, KEYS / 2, "the odd keys are gone");
}

fn one_scan<H: Harness>(index: &H::Index, scan: Scan<H>, downwards: bool, rng: &mut Rng) {
    // Every third scan covers everything.
    let whole = rng.below(3) == 0;
    let a = if whole { 0 } else { rng.below(KEYS) };
    let b = if whole {
        KEYS
    } else {
        (a + rng.below(400)).min(KEYS)
    };
    let (low, high) = (key::<H>(a), key::<H>(b));
    let (low_in, high_in) = (rng.below(2) == 0, rng.below(2) == 0);
    let wrap = |k, inside| {
        if inside {
            Bound::Included(k)
        } else {
            Bound::Excluded(k)
        }
    };
    let range = if whole {
        (Bound::Unbounded, Bound::Unbounded)
    } else {
        (wrap(low.borrow(), low_in), wrap(high.borrow(), high_in))
    };
    let mut seen: Vec<u64> = Vec::new();
    scan(index, range, &mut |k, v| {
        assert_eq!(v.number(), k.number(), "the value of key {}", k.number());
        seen.push(k.number());
        ControlFlow::Continue(())
    });
    if downwards {
        seen.reverse();
    }
    if let Some(pair) = seen.windows(2).find(|w| w[0] >= w[1]) {
        panic!("out of order or twice: {pair:?}");
    }
    let first = if whole || low_in { a } else { a + 1 };
    let end = if !whole && high_in { b + 1 } else { b }.min(KEYS);
    let expected = (first..end).filter(|n| n % 2 == 0);
    let found = seen.iter().copied().filter(|n| n % 2 == 0);
    if !expected.clone().eq(found) {
        let missing: Vec<u64> = expected.filter(|n| !seen.contains(n)).collect();
        panic!("scan of {range:?} missed {missing:?} of the keys that stand still");
    }
    assert!(
        seen.iter().all(|n| (first..end).contains(n)),
        "outside of {range:?}: {seen:?}"
    );
}
