//! The scenarios, run on the volatile Bw-Tree: several node sizes and chain lengths, both kinds of
//! keys and values.

use crate::common::{Chosen, File, Memory, Of, scenario_suite};
use bristlecone_designs::BwOptions;
use bristlecone_designs::designs::Bw;

/// Nodes of `BYTES` bytes with at most `MOST` entries, and chains of `CHAIN` deltas.
struct Sized<const BYTES: u32, const MOST: usize, const CHAIN: u8>;

impl<const BYTES: u32, const MOST: usize, const CHAIN: u8> Chosen for Sized<BYTES, MOST, CHAIN> {
    type Design = Bw;

    fn design() -> Bw {
        Bw(BwOptions {
            node_bytes: BYTES,
            most_entries: Some(MOST),
            leaf_chain: CHAIN,
            inner_chain: CHAIN,
        })
    }
}

const ALL: usize = usize::MAX;

scenario_suite!(numbers_1024, Of<Bw, u64, u64, Memory>: [base, reverse, bulk]);
#[cfg(feature = "thorough")]
scenario_suite!(numbers_256, Of<Sized<256, ALL, 3>, u64, u64, Memory>: [base, reverse, bulk]);
scenario_suite!(high_numbers, Of<Sized<128, 3, 1>, u64, u64, Memory>: [base, reverse, bulk]);
#[cfg(feature = "thorough")]
scenario_suite!(long_chains, Of<Sized<512, ALL, 60>, u64, u64, Memory>: [base, reverse, bulk]);
scenario_suite!(strings_1024, Of<Bw, [u8], [u8], File>: [base, reverse, bulk, pooled_bulk]);
#[cfg(feature = "thorough")]
scenario_suite!(high_strings, Of<Sized<128, 3, 2>, [u8], [u8], File>: [base, reverse, bulk]);
#[cfg(feature = "thorough")]
scenario_suite!(numbers_to_strings, Of<Sized<256, ALL, 4>, u64, [u8], File>: [base]);
#[cfg(feature = "thorough")]
scenario_suite!(strings_to_numbers, Of<Sized<256, ALL, 4>, [u8], u64, File>: [base]);

/// The scenarios of pools that do not open the index again.
mod pooled {
    use super::*;

    // A replaced value is freed when its leaf is consolidated, which is at once here.
    crate::common::scenario_tests!(@ Of<Sized<1024, ALL, 1>, [u8], [u8], File>:
        full_pool => full_pool::refuses_and_goes_on,
        full_pool_concurrent => full_pool::many_threads,
        space_comes_back => emptied::space_is_reused,
        several_roots => roots::do_not_mix,
        values_change_size => values::change_size
    );
}
