//! The scenarios, run on the LB+-Tree: every leaf size, both kinds of keys and values, each medium.

use crate::common::{Chosen, File, Journal, Memory, Of, scenario_suite};
use bristlecone_designs::designs::Lb;
use bristlecone_designs::lbtree::LbOptions;

/// Leaves of `B` x 256 bytes, with or without entry moving, recovered by `THREADS` threads.
struct Tuned<const B: usize, const MOVING: bool, const THREADS: usize>;

impl<const B: usize, const MOVING: bool, const THREADS: usize> Chosen
    for Tuned<B, MOVING, THREADS>
{
    type Design = Lb<B>;

    fn design() -> Lb<B> {
        Lb(LbOptions {
            entry_moving: MOVING,
            recovery_threads: THREADS,
        })
    }
}

type Numbers<M, const B: usize, const THREADS: usize> = Of<Tuned<B, true, THREADS>, u64, u64, M>;
#[cfg(feature = "thorough")]
type Strings<M, const B: usize, const THREADS: usize> = Of<Tuned<B, true, THREADS>, [u8], [u8], M>;

scenario_suite!(numbers_256, Of<Lb<1>, u64, u64, File>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, compact, power_cuts]);
scenario_suite!(strings_256, Of<Lb<1>, [u8], [u8], File>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, compact, power_cuts]);
#[cfg(feature = "thorough")]
scenario_suite!(numbers_1024, Numbers<File, 4, 2>: [base, reverse, bulk, durable, power_cuts]);
scenario_suite!(numbers_to_strings_1024, Of<Tuned<4, true, 2>, u64, [u8], File>: [pooled, durable]);
#[cfg(feature = "thorough")]
scenario_suite!(numbers_traditional, Of<Tuned<1, false, 1>, u64, u64, File>: [base, reverse, durable]);
scenario_suite!(numbers_dram, Numbers<Memory, 1, 1>: [base, reverse, pooled, compact_memory]);
scenario_suite!(numbers_journal, Numbers<Journal, 1, 1>: [base, pooled, durable, durable_bulk, compact]);
#[cfg(feature = "thorough")]
scenario_suite!(strings_journal, Strings<Journal, 2, 2>: [pooled, durable, compact]);
