//! The scenarios, run on NV-Tree: leaf sizes, strategies, both kinds of keys and values, each
//! medium.

use crate::common::{Chosen, File, Of, scenario_suite};
use bristlecone_designs::designs::Nv;
use bristlecone_designs::nvtree::{Adaptivity, NvOptions};

/// Leaves of `BYTES` bytes, resized by a strategy, recovered by `THREADS` threads.
struct Tuned<const BYTES: u32, const ADAPTIVE: bool, const THREADS: usize>;

impl<const BYTES: u32, const ADAPTIVE: bool, const THREADS: usize> Chosen
    for Tuned<BYTES, ADAPTIVE, THREADS>
{
    type Design = Nv;

    fn design() -> Nv {
        Nv(NvOptions {
            leaf_bytes: BYTES,
            adaptivity: if ADAPTIVE {
                Adaptivity::Aggressive
            } else {
                Adaptivity::Off
            },
            recovery_threads: THREADS,
            ..NvOptions::default()
        })
    }
}

scenario_suite!(numbers_1024, Of<Nv, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_256, Of<Tuned<256, true, 1>, [u8], [u8], File>: [base, pooled, durable]);
scenario_suite!(numbers_256, Of<Tuned<256, false, 3>, u64, u64, File>: [base, durable]);
