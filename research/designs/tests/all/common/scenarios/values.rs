//! Large values, and values that change their size.

use super::super::home::must;
use super::super::{PoolHome, Pooled, Rng, TestValue};
use super::{Model, assert_holds, key, reclaim};
use bristlecone_designs::{InsertError, OrderedIndex};
use std::borrow::Borrow;
use std::time::{Duration, Instant};

/// Sizes around block classes, pages, chunks, and several chunks.
const SIZES: [usize; 24] = [
    0,
    1,
    7,
    8,
    9,
    15,
    16,
    17,
    63,
    64,
    255,
    256,
    257,
    4_095,
    4_096,
    4_097,
    65_535,
    65_536,
    65_537,
    131_073,
    1 << 20,
    (1 << 20) + 1,
    3 << 20,
    4 << 20,
];

/// Stores, reads, replaces and removes each size, and uses its space again.
pub fn large<H: Pooled>() {
    if H::Value::sized(1, 0).is_none() {
        return;
    }
    let fits = |size: &usize| *size <= H::longest_value();
    let sizes = || SIZES.into_iter().filter(fits);
    let sized = |bytes, seed| H::Value::sized(bytes, seed).expect("values have sizes");
    let home = H::home();
    let index = must("create", H::create(&home, "index"));
    let mut model = Model::<H>::new();
    let mut used = Vec::new();
    for cycle in 0..3u64 {
        for (n, size) in sizes().enumerate() {
            let (k, v) = (key::<H>(n as u64), sized(size, cycle));
            index
                .insert(k.borrow(), v.borrow())
                .unwrap_or_else(|e| panic!("a value of {size} bytes: {e}"));
            model.insert(k, v);
        }
        assert_holds::<H>(&index, &model, "values of many sizes");
        for (n, size) in sizes().rev().enumerate() {
            let (k, v) = (key::<H>(n as u64), sized(size, cycle + 10));
            index
                .update(k.borrow(), v.borrow())
                .unwrap_or_else(|e| panic!("an update to {size} bytes: {e}"));
            model.insert(k, v);
        }
        assert_holds::<H>(&index, &model, "each replaced by another size");
        let image = home.crash_image();
        assert_holds::<H>(
            &must("open", H::open(&image, "index")),
            &model,
            "large values, a crash",
        );
        for n in 0..sizes().count() {
            assert!(index.remove(key::<H>(n as u64).borrow()).expect("removal"));
        }
        model.clear();
        reclaim();
        assert_holds::<H>(&index, &model, "large values removed");
        used.push(home.pool.info().used_bytes);
    }
    assert!(
        used[2] <= used[0] + (64 << 10),
        "bytes used when emptied, by cycle: {used:?}"
    );

    // A value far too large for anything returns an error that says so, and changes nothing.
    let huge = sized(300 << 20, 1);
    let k = key::<H>(99);
    match index.insert(k.borrow(), huge.borrow()) {
        Err(e @ InsertError::ValueTooLong { len, most }) => {
            assert_eq!(len, 300 << 20);
            assert_eq!(most, H::longest_value());
            assert!(e.to_string().contains(&most.to_string()), "{e}");
            // The limit itself fits, one more byte does not.
            let limit = sized(most, 2);
            index
                .insert(k.borrow(), limit.borrow())
                .expect("the longest value");
            assert_eq!(index.get(k.borrow()), Some(limit), "the longest value");
            assert!(index.remove(k.borrow()).expect("removal"));
            let over = index.insert(k.borrow(), sized(most + 1, 2).borrow());
            assert!(
                matches!(over, Err(InsertError::ValueTooLong { .. })),
                "{over:?}"
            );
        }
        other => panic!("a value of 300 MiB: {other:?}"),
    }
    assert_holds::<H>(&index, &model, "after values that are too long");
    must("close", H::close(index));
}

/// Values of random sizes replace each other without a leak.
pub fn change_size<H: Pooled>() {
    if H::Value::sized(1, 0).is_none() {
        return;
    }
    let home = H::home();
    let index = must("create", H::create(&home, "index"));
    let mut model = Model::<H>::new();
    let mut rng = Rng::new(81);
    let mut used = Vec::new();
    for _ in 0..6 {
        for _ in 0..3_000 {
            let k = key::<H>(rng.below(300));
            let size = match rng.below(8) {
                0 => rng.below(20_000),
                1..4 => rng.below(600),
                _ => rng.below(40),
            };
            let size = (size as usize).min(H::longest_value());
            let v = H::Value::sized(size, rng.next()).expect("values have sizes");
            let there = index.upsert(k.borrow(), v.borrow()).expect("upsert");
            assert_eq!(there, model.insert(k, v).is_some());
        }
        // The same content each time, so that the used space can be compared.
        for n in 0..300 {
            let (k, v) = (
                key::<H>(n),
                H::Value::sized(100, n).expect("values have sizes"),
            );
            index.upsert(k.borrow(), v.borrow()).expect("upsert");
            model.insert(k, v);
        }
        reclaim();
        assert_holds::<H>(&index, &model, "after a round of replacements");
        used.push(home.pool.info().used_bytes);
    }
    // A thread of another test that is pinned holds the reclaimer up, which they share.
    let until = Instant::now() + Duration::from_secs(20);
    while home.pool.info().used_bytes > used[1] + used[1] / 10 {
        assert!(
            Instant::now() < until,
            "bytes used after each round: {used:?}"
        );
        reclaim();
    }
    must("close", H::close(index));
}
