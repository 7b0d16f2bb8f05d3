//! The scenarios, run on the LCB+-Tree: every node size, both kinds of keys and values, each medium.

mod common;

use bristlecone_pmem::media::{Journal, Mapped};
use bristlecone_trees::BTreeOptions;
use bristlecone_trees::designs::Lcb;
use common::{Chosen, Of, scenario_suite};

/// Nodes of `BYTES` bytes that take `MOST` entries at most.
struct Sized<const BYTES: u32, const MOST: usize>;

impl<const BYTES: u32, const MOST: usize> Chosen for Sized<BYTES, MOST> {
    type Design = Lcb;

    fn design() -> Lcb {
        Lcb(BTreeOptions {
            node_bytes: Some(BYTES),
            most_entries: Some(MOST),
        })
    }
}

type Numbers<M, const BYTES: u32> = Of<Sized<BYTES, { usize::MAX }>, u64, u64, M>;
type Strings<M, const BYTES: u32> = Of<Sized<BYTES, { usize::MAX }>, [u8], [u8], M>;

scenario_suite!(numbers_256, Numbers<Mapped, 256>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, compact, hostile, power_cuts]);
scenario_suite!(strings_1024, Of<Lcb, [u8], [u8], Mapped>: [base, reverse, pooled, durable]);
scenario_suite!(numbers_4096, Numbers<Mapped, 4096>: [base, bulk]);
scenario_suite!(high_numbers, Of<Sized<256, 3>, u64, u64, Mapped>: [base, reverse]);
scenario_suite!(strings_journal, Strings<Journal, 256>: [durable]);
