//! The scenarios, run on the clustered tree: several page sizes, both kinds of keys and values,
//! each medium.

use crate::common::{Chosen, File, Journal, Memory, Of, scenario_suite};
use bristlecone_designs::clustered::ClusteredOptions;
use bristlecone_designs::designs::Clustered;

/// Pages of `BYTES` bytes.
struct Sized<const BYTES: u32>;

impl<const BYTES: u32> Chosen for Sized<BYTES> {
    type Design = Clustered;

    fn design() -> Clustered {
        Clustered(ClusteredOptions { page_bytes: BYTES })
    }
}

scenario_suite!(numbers_4096, Of<Clustered, u64, u64, File>: [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, compact, power_cuts]);
scenario_suite!(numbers_512, Of<Sized<512>, u64, u64, Memory>: [base, reverse, bulk]);
scenario_suite!(strings_4096, Of<Clustered, [u8], [u8], File>: [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, compact, power_cuts]);
scenario_suite!(strings_1024, Of<Sized<1024>, [u8], [u8], File>: [base, reverse, bulk, durable]);
scenario_suite!(numbers_to_strings_2048, Of<Sized<2048>, u64, [u8], File>: [pooled, durable]);
scenario_suite!(numbers_journal, Of<Clustered, u64, u64, Journal>: [base, pooled, durable, durable_bulk, compact]);
