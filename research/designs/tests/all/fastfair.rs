//! The scenarios, run on FAST/FAIR and FAST/FAIR SP: small and large nodes, high trees, both kinds
//! of keys and values.

use crate::common::{Chosen, File, Of, WideOf, scenario_suite};
use bristlecone_designs::designs::{Fair, FairSp};
use bristlecone_designs::{FastFairOptions, LeafOptions};

/// Nodes of `BYTES` bytes with at most `MOST` entries, recovered by 2 threads.
struct Sized<const BYTES: u32, const MOST: usize>;

impl<const BYTES: u32, const MOST: usize> Chosen for Sized<BYTES, MOST> {
    type Design = Fair;

    fn design() -> Fair {
        Fair(FastFairOptions {
            node_bytes: BYTES,
            most_entries: Some(MOST),
            recovery_threads: 2,
        })
    }
}

/// Leaves of `B` x 256 bytes, recovered by `THREADS` threads.
struct Tuned<const B: usize, const THREADS: usize>;

impl<const B: usize, const THREADS: usize> Chosen for Tuned<B, THREADS> {
    type Design = FairSp<B>;

    fn design() -> FairSp<B> {
        FairSp(LeafOptions {
            recovery_threads: THREADS,
        })
    }
}

scenario_suite!(numbers_256, Of<Sized<256, { usize::MAX }>, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_512, Of<Fair, [u8], [u8], File>: [base, reverse, durable]);
scenario_suite!(high_numbers, Of<Sized<256, 4>, u64, u64, File>: [base, reverse]);
#[cfg(feature = "thorough")]
scenario_suite!(high_strings, Of<Sized<256, 4>, [u8], [u8], File>: [base]);
scenario_suite!(numbers_8192, Of<Sized<8192, { usize::MAX }>, u64, u64, File>: [base, bulk]);
scenario_suite!(sp_256, Of<Tuned<1, 1>, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
#[cfg(feature = "thorough")]
scenario_suite!(sp_strings_1024, Of<Tuned<4, 2>, [u8], [u8], File>: [base, durable]);
scenario_suite!(wide_512, Of<WideOf<Sized<512, { usize::MAX }>>, u128, u128, File>: [base, reverse, bulk, pooled, durable]);
#[cfg(feature = "thorough")]
scenario_suite!(sp_wide_512, Of<WideOf<Tuned<2, 2>>, u128, u128, File>: [base, reverse, durable]);
