//! The scenarios, run on NV-Tree: leaf sizes, strategies, both kinds of keys and values, each medium.

mod common;

use bristlecone_pmem::media::{Dram, Journal, Mapped};
use bristlecone_trees::designs::Nv;
use bristlecone_trees::nvtree::{Adaptivity, NvOptions};
use common::{Chosen, Of, scenario_suite};

/// Leaves of `BYTES` bytes, resized by a strategy, recovered by `THREADS` threads.
struct Tuned<const BYTES: u32, const STRATEGY: usize, const THREADS: usize>;

const OFF: usize = 0;
const CONSERVATIVE: usize = 1;
const AGGRESSIVE: usize = 2;
const BALANCED: usize = 3;
const STRATEGIES: [Adaptivity; 4] = [
    Adaptivity::Off,
    Adaptivity::Conservative,
    Adaptivity::Aggressive,
    Adaptivity::Balanced,
];

impl<const BYTES: u32, const STRATEGY: usize, const THREADS: usize> Chosen
    for Tuned<BYTES, STRATEGY, THREADS>
{
    type Design = Nv;

    fn design() -> Nv {
        Nv(NvOptions {
            leaf_bytes: BYTES,
            adaptivity: STRATEGIES[STRATEGY],
            recovery_threads: THREADS,
        })
    }
}

scenario_suite!(numbers_1024, Of<Nv, u64, u64, Mapped>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, compact, hostile, power_cuts]);
scenario_suite!(strings_256, Of<Tuned<256, AGGRESSIVE, 1>, [u8], [u8], Mapped>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, compact, hostile, power_cuts]);
scenario_suite!(numbers_256, Of<Tuned<256, OFF, 3>, u64, u64, Mapped>: [base, reverse, durable, power_cuts]);
scenario_suite!(numbers_4096, Of<Tuned<4096, BALANCED, 1>, u64, u64, Dram>: [base, reverse, bulk]);
scenario_suite!(numbers_journal, Of<Tuned<512, CONSERVATIVE, 2>, u64, u64, Journal>: [durable]);
