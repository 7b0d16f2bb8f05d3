//! Bulk load: fill factors, refusals, and operations on loaded data.

use super::super::home::must;
use super::super::{Harness, PoolHome, Pooled, Rng, TestKey};
use super::{Model, assert_holds, content, key, put, reclaim, take, value};
use bristlecone_designs::{BulkLoad, Fill, InsertError, OrderedIndex};
use std::borrow::Borrow;

fn fill(percent: u8) -> Fill {
    Fill::percent(percent).expect("from 1 to 100")
}

fn model_of<H: Harness + ?Sized>(count: u64, stride: u64) -> Model<H> {
    (0..count)
        .map(|n| (key::<H>(n * stride), value::<H>(n)))
        .collect()
}

fn load<H: Harness + ?Sized>(
    index: &mut H::Index,
    model: &Model<H>,
    percent: u8,
) -> Result<u64, InsertError>
where
    H::Index: BulkLoad<H::Key, H::Value>,
{
    index.bulk_load(
        model.iter().map(|(k, v)| (k.clone(), v.clone())),
        fill(percent),
    )
}

/// Loads every size around those of leaves and inner nodes, then executes ordinary operations.
pub fn load_then_work<H: Harness>()
where
    H::Index: BulkLoad<H::Key, H::Value>,
{
    let mut rng = Rng::new(41);
    for percent in [1, 50, 70, 100] {
        for count in [
            0, 1, 2, 7, 9, 10, 13, 14, 15, 27, 28, 29, 57, 113, 400, 5_000,
        ] {
            let mut fresh = H::fresh();
            let mut model = model_of::<H>(count, 3);
            let loaded = load::<H>(&mut fresh.index, &model, percent).expect("bulk load");
            assert_eq!(loaded, count, "pairs that bulk load reports");
            assert_holds::<H>(&fresh.index, &model, "just loaded");
            for _ in 0..(count / 2).max(40) {
                let n = rng.below(count * 3 + 40);
                if rng.below(3) == 0 {
                    take::<H>(&fresh.index, &mut model, n);
                } else {
                    put::<H>(&fresh.index, &mut model, n, rng.below(1 << 30));
                }
            }
            assert_holds::<H>(&fresh.index, &model, "after work on what was loaded");
        }
    }
}

/// Leaves are as full as requested.
pub fn fills_are_kept<H: Harness>()
where
    H::Index: BulkLoad<H::Key, H::Value>,
{
    let mut last = u64::MAX;
    for percent in [50, 70, 100] {
        let mut fresh = H::fresh();
        let model = model_of::<H>(10_000, 1);
        load::<H>(&mut fresh.index, &model, percent).expect("bulk load");
        let stats = fresh.index.stats();
        assert_eq!(stats.entries, 10_000);
        if stats.leaves == 1 || stats.leaves == stats.entries {
            // A design without leaves of fixed size has no fill.
            continue;
        }
        assert!(
            stats.leaves < last,
            "{percent} %: {} leaves after {last}",
            stats.leaves
        );
        last = stats.leaves;
        let asked = f64::from(percent) / 100.0;
        assert!(
            stats.leaf_fill <= asked + 0.01 && stats.leaf_fill > asked - 0.09,
            "asked for {asked}, got {}",
            stats.leaf_fill
        );
    }
}

/// An unsorted, repeated or too long key, or an index that is not empty, is an error and changes
/// nothing.
pub fn bad_input_is_refused<H: Harness>()
where
    H::Index: BulkLoad<H::Key, H::Value>,
{
    let mut fresh = H::fresh();
    let pair = |n: u64| (key::<H>(n), value::<H>(n));
    for bad_at in [1, 2, 15, 500] {
        // Out of order and repeated, at several places.
        for wrong in [bad_at - 1, bad_at] {
            let pairs = (0..=bad_at).chain([wrong]).chain(bad_at + 1..600).map(pair);
            let answer = fresh.index.bulk_load(pairs, fill(70));
            assert!(
                matches!(answer, Err(InsertError::KeyExists)),
                "{wrong} after {bad_at}: {answer:?}"
            );
            reclaim();
            assert_holds::<H>(&fresh.index, &Model::<H>::new(), "after a refused load");
        }
    }
    if let Some(long) = H::Key::too_long(H::longest_key()) {
        let low = (0..100).map(pair).filter(|(k, _)| *k < long);
        let answer = fresh
            .index
            .bulk_load(low.chain([(long.clone(), value::<H>(1))]), fill(70));
        assert!(
            matches!(answer, Err(InsertError::KeyTooLong { .. })),
            "{answer:?}"
        );
        assert_holds::<H>(
            &fresh.index,
            &Model::<H>::new(),
            "after a key that is too long",
        );
    }
    let mut model = model_of::<H>(300, 2);
    assert_eq!(
        load::<H>(&mut fresh.index, &model, 100).expect("bulk load"),
        300
    );
    let answer = fresh.index.bulk_load([pair(1 << 40)].into_iter(), fill(70));
    assert!(
        matches!(answer, Err(InsertError::KeyExists)),
        "not empty: {answer:?}"
    );
    assert_holds::<H>(&fresh.index, &model, "after a second load was refused");
    // Once emptied, it may be loaded again.
    for n in (0..600).step_by(2) {
        take::<H>(&fresh.index, &mut model, n);
    }
    let again = model_of::<H>(400, 1);
    assert_eq!(
        load::<H>(&mut fresh.index, &again, 70).expect("an emptied index"),
        400
    );
    assert_holds::<H>(&fresh.index, &again, "loaded again");
}

/// A load that does not fit returns an error, leaves an empty index, and frees its space.
pub fn full_pool<H: Pooled>()
where
    H::Index: BulkLoad<H::Key, H::Value>,
{
    let home = H::home_of(8 << 20);
    let mut index = must("create", H::create(&home, "index"));
    for _ in 0..3 {
        let endless = (0..4 << 20u64).map(|n| (key::<H>(n), value::<H>(n)));
        let answer = index.bulk_load(endless, fill(100));
        assert!(matches!(answer, Err(InsertError::Space(_))), "{answer:?}");
        reclaim();
        assert_holds::<H>(&index, &Model::<H>::new(), "after a load that did not fit");
    }
    let model = model_of::<H>(20_000, 1);
    load::<H>(&mut index, &model, 70).expect("a load that fits");
    assert_holds::<H>(&index, &model, "a load that fits");
    must("close", H::close(index));
}

/// Loaded data is durable across a clean close and a crash; a refused load leaves nothing.
pub fn reopen<H: Pooled>()
where
    H::Index: BulkLoad<H::Key, H::Value>,
{
    for percent in [50, 100] {
        let home = H::home();
        let mut index = must("create", H::create(&home, "index"));
        let unsorted = [3, 2].map(|n| (key::<H>(n), value::<H>(n)));
        index
            .bulk_load(unsorted.into_iter(), fill(percent))
            .expect_err("unsorted");
        {
            let image = home.crash_image();
            let index = must("open", H::open(&image, "index"));
            assert!(
                content::<H>(&index).is_empty(),
                "a refused load, then a crash"
            );
        }
        let mut model = model_of::<H>(3_000, 2);
        load::<H>(&mut index, &model, percent).expect("bulk load");
        {
            let image = home.crash_image();
            let index = must("open", H::open(&image, "index"));
            assert_holds::<H>(&index, &model, "loaded, then a crash");
        }
        put::<H>(&index, &mut model, 7, 7);
        must("close", H::close(index));
        let home = home.reopen();
        let index = must("open", H::open(&home, "index"));
        assert_holds::<H>(&index, &model, "loaded, closed and opened");
        must("close", H::close(index));
    }
}
