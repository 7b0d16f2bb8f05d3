//! Removing everything frees the memory.

use super::super::home::must;
use super::super::{Harness, PoolHome, Pooled, Rng};
use super::{Model, assert_holds, key, put, reclaim, take};
use bristlecone_designs::OrderedIndex;
use std::borrow::Borrow;

const KEYS: u64 = 30_000;

/// Number of leaves that an empty index may keep.
const FEW: u64 = 2;

/// The leaves are freed, whatever the order of removals.
pub fn leaves_are_given_back<H: Harness>() {
    let fresh = H::fresh();
    let index = &fresh.index;
    let mut rng = Rng::new(3);
    for order in ["ascending", "descending", "random", "inside out"] {
        let mut model = Model::<H>::new();
        let mut numbers: Vec<u64> = (0..KEYS / 4).collect();
        rng.shuffle(&mut numbers);
        for n in &numbers {
            put::<H>(index, &mut model, *n, *n);
        }
        match order {
            "ascending" => numbers.sort_unstable(),
            "descending" => numbers.sort_unstable_by(|a, b| b.cmp(a)),
            "random" => rng.shuffle(&mut numbers),
            _ => numbers.sort_unstable_by_key(|n| n.abs_diff(KEYS / 8)),
        }
        let (half, rest) = numbers.split_at(numbers.len() / 2);
        for n in half {
            take::<H>(index, &mut model, *n);
        }
        assert_holds::<H>(index, &model, "half removed");
        for n in rest {
            take::<H>(index, &mut model, *n);
        }
        reclaim();
        assert_holds::<H>(index, &model, "all removed");
        let stats = index.stats();
        assert!(
            stats.leaves <= FEW,
            "{order}: {} leaves hold nothing",
            stats.leaves
        );
        let there = index.insert(key::<H>(5).borrow(), super::value::<H>(5).borrow());
        assert!(there.is_ok(), "an emptied index takes keys: {there:?}");
        assert!(index.remove(key::<H>(5).borrow()).expect("removal"));
    }
}

/// Number of changes after which freed blocks are waited for: readers elsewhere in the process
/// delay frees, and what is not free yet makes the pool grow.
const BETWEEN: usize = 500;

const CYCLES: u64 = if cfg!(feature = "thorough") { 10 } else { 5 };

/// Repeated filling and emptying takes no more space than the second time.
pub fn space_is_reused<H: Pooled>() {
    let home = H::home();
    let index = must("create", H::create(&home, "index"));
    let mut rng = Rng::new(4);
    let mut numbers: Vec<u64> = (0..KEYS).collect();
    let mut model = Model::<H>::new();
    let (mut full_most, mut empty_most, mut pool_most) = (0, 0, 0);
    let at_first = home.pool.info().used_bytes;
    for cycle in 0..CYCLES {
        rng.shuffle(&mut numbers);
        for some in numbers.chunks(BETWEEN) {
            for n in some {
                put::<H>(&index, &mut model, *n, n + cycle);
            }
            reclaim();
        }
        let full = home.pool.info().used_bytes;
        rng.shuffle(&mut numbers);
        for some in numbers.chunks(BETWEEN) {
            for n in some {
                take::<H>(&index, &mut model, *n);
            }
            reclaim();
        }
        let info = home.pool.info();
        let empty = info.used_bytes;
        let taken = full - at_first;
        assert!(
            empty < at_first + taken / 10,
            "cycle {cycle}: {at_first} bytes used at first, {full} when full, {empty} when emptied"
        );
        if cycle == 1 {
            (full_most, empty_most, pool_most) = (full, empty, info.pool_bytes);
        }
        if cycle > 1 {
            // Split points differ a little from cycle to cycle; a leak adds up.
            assert!(
                full <= full_most + full_most / 20,
                "cycle {cycle}: {full} after {full_most}"
            );
            assert!(
                empty <= empty_most + taken / 20,
                "cycle {cycle}: {empty} after {empty_most}"
            );
            // Pools grow by at least 2 MiB.
            assert!(
                info.pool_bytes <= pool_most + (4 << 20),
                "cycle {cycle}: the pool grew to {} from {pool_most}",
                info.pool_bytes
            );
        }
    }
    assert_holds::<H>(&index, &model, "after all cycles");
    must("close", H::close(index));
}
