//! The scenarios, run on the FPTree: smallest and largest leaves, both kinds of keys and values.

use crate::common::{Chosen, File, Of, scenario_suite};
use bristlecone_designs::designs::Fp;
use bristlecone_designs::{CentralOptions, SplitLog};

/// Leaves of `B` x 256 bytes, recovered by `THREADS` threads.
struct Tuned<const B: usize, const THREADS: usize>;

impl<const B: usize, const THREADS: usize> Chosen for Tuned<B, THREADS> {
    type Design = Fp<B>;

    fn design() -> Fp<B> {
        Fp(CentralOptions {
            recovery_threads: THREADS,
            ..CentralOptions::default()
        })
    }
}

/// Leaves of 256 bytes whose splits log the leaf as it was.
struct Logging;

impl Chosen for Logging {
    type Design = Fp<1>;

    fn design() -> Fp<1> {
        Fp(CentralOptions {
            split_log: SplitLog::Leaf,
            lazy_removal: false,
            ..CentralOptions::default()
        })
    }
}

scenario_suite!(numbers_256, Of<Fp<1>, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_1024, Of<Tuned<4, 2>, [u8], [u8], File>: [base, durable]);
scenario_suite!(numbers_logging, Of<Logging, u64, u64, File>: [base, reverse, bulk, durable]);
