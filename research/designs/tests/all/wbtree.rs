//! The scenarios, run on the wB+-Tree: smallest and largest leaves, both kinds of keys and values.

use crate::common::{Chosen, File, Of, scenario_suite};
use bristlecone_designs::designs::Wb;
use bristlecone_designs::{CentralOptions, SplitLog};

/// Leaves of `B` x 256 bytes, recovered by `THREADS` threads.
struct Tuned<const B: usize, const THREADS: usize>;

impl<const B: usize, const THREADS: usize> Chosen for Tuned<B, THREADS> {
    type Design = Wb<B>;

    fn design() -> Wb<B> {
        Wb(CentralOptions {
            recovery_threads: THREADS,
            ..CentralOptions::default()
        })
    }
}

/// Leaves of 256 bytes whose splits log both leaves, and whose removals leave the slot array.
struct Logging;

impl Chosen for Logging {
    type Design = Wb<1>;

    fn design() -> Wb<1> {
        Wb(CentralOptions {
            split_log: SplitLog::Leaves,
            lazy_removal: true,
            ..CentralOptions::default()
        })
    }
}

scenario_suite!(numbers_256, Of<Wb<1>, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_1024, Of<Tuned<4, 2>, [u8], [u8], File>: [base, durable]);
scenario_suite!(numbers_logging, Of<Logging, u64, u64, File>: [base, reverse, bulk, durable]);
