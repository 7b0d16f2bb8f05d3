//! The scenarios, run on persistent unsorted: every node size, both kinds of keys and values, each
//! medium.

use crate::common::{Chosen, File, Of, WideOf, scenario_suite};
use bristlecone_designs::BTreeOptions;
use bristlecone_designs::designs::Unsorted;

/// Nodes of `BYTES` bytes with at most `MOST` entries, recovered by 3 threads.
struct Sized<const BYTES: u32, const MOST: usize>;

impl<const BYTES: u32, const MOST: usize> Chosen for Sized<BYTES, MOST> {
    type Design = Unsorted;

    fn design() -> Unsorted {
        Unsorted(BTreeOptions {
            node_bytes: Some(BYTES),
            most_entries: Some(MOST),
            recovery_threads: 3,
            ..BTreeOptions::default()
        })
    }
}

scenario_suite!(numbers_256, Of<Sized<256, { usize::MAX }>, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_512, Of<Unsorted, [u8], [u8], File>: [base, durable]);
scenario_suite!(wide_512, Of<WideOf<Sized<512, { usize::MAX }>>, u128, u128, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(high_numbers, Of<Sized<256, 3>, u64, u64, File>: [base]);
