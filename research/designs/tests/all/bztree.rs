//! The scenarios, run on the BzTree: several node sizes, both kinds of keys and values.

use crate::common::{Chosen, File, Memory, Of, scenario_suite};
use bristlecone_designs::BzOptions;
use bristlecone_designs::designs::Bz;

/// Nodes of `BYTES` bytes.
struct Sized<const BYTES: u32>;

impl<const BYTES: u32> Chosen for Sized<BYTES> {
    type Design = Bz;

    fn design() -> Bz {
        Bz(BzOptions {
            node_bytes: BYTES,
            ..BzOptions::default()
        })
    }
}

scenario_suite!(numbers_1024, Of<Bz, u64, u64, File>: [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, compact]);
scenario_suite!(numbers_256, Of<Sized<256>, u64, u64, Memory>: [base, reverse, bulk]);
scenario_suite!(strings_1024, Of<Bz, [u8], [u8], File>: [base, reverse, bulk, pooled, durable, durable_bulk]);
// Two of its records fill a leaf, so a load has nothing to leave free.
scenario_suite!(strings_256, Of<Sized<256>, [u8], [u8], Memory>: [base]);
