//! The scenarios, run on the FPTree: every leaf size, both kinds of keys and values.

mod common;

use bristlecone_pmem::media::{Journal, Mapped};
use bristlecone_trees::LeafOptions;
use bristlecone_trees::designs::Fp;
use common::{Chosen, Of, scenario_suite};

/// Leaves of `B` x 256 bytes, recovered by `THREADS` threads.
struct Tuned<const B: usize, const THREADS: usize>;

impl<const B: usize, const THREADS: usize> Chosen for Tuned<B, THREADS> {
    type Design = Fp<B>;

    fn design() -> Fp<B> {
        Fp(LeafOptions {
            recovery_threads: THREADS,
        })
    }
}

scenario_suite!(numbers_256, Of<Fp<1>, u64, u64, Mapped>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, compact, hostile, power_cuts]);
scenario_suite!(strings_256, Of<Fp<1>, [u8], [u8], Mapped>:
    [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_768, Of<Tuned<3, 3>, [u8], [u8], Mapped>: [durable]);
scenario_suite!(numbers_1024, Of<Tuned<4, 2>, u64, u64, Mapped>: [base, reverse, bulk, durable]);
scenario_suite!(numbers_journal, Of<Tuned<2, 1>, u64, u64, Journal>: [durable]);
