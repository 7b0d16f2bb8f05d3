//! The scenarios, run on the wB+-Tree: smallest and largest leaves, both kinds of keys and values.

use crate::common::{Chosen, File, Of, scenario_suite};
use bristlecone_designs::LeafOptions;
use bristlecone_designs::designs::Wb;

/// Leaves of `B` x 256 bytes, recovered by `THREADS` threads.
struct Tuned<const B: usize, const THREADS: usize>;

impl<const B: usize, const THREADS: usize> Chosen for Tuned<B, THREADS> {
    type Design = Wb<B>;

    fn design() -> Wb<B> {
        Wb(LeafOptions {
            recovery_threads: THREADS,
        })
    }
}

scenario_suite!(numbers_256, Of<Wb<1>, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_1024, Of<Tuned<4, 2>, [u8], [u8], File>: [base, durable]);
