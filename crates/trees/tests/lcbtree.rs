//! The scenarios, run on the LCB+-Tree: every node size, both kinds of keys and values, each medium.

mod common;

use bristlecone_pmem::media::Mapped;
use bristlecone_trees::BTreeOptions;
use bristlecone_trees::designs::Lcb;
use common::{Chosen, Of, scenario_suite};

/// Nodes of `BYTES` bytes that take `MOST` entries at most, recovered by 2 threads.
struct Sized<const BYTES: u32, const MOST: usize>;

impl<const BYTES: u32, const MOST: usize> Chosen for Sized<BYTES, MOST> {
    type Design = Lcb;

    fn design() -> Lcb {
        Lcb(BTreeOptions {
            node_bytes: Some(BYTES),
            most_entries: Some(MOST),
            recovery_threads: 2,
            volatile: false,
        })
    }
}

scenario_suite!(numbers_256, Of<Sized<256, { usize::MAX }>, u64, u64, Mapped>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_1024, Of<Lcb, [u8], [u8], Mapped>: [base, durable]);
scenario_suite!(high_numbers, Of<Sized<256, 3>, u64, u64, Mapped>: [base]);
