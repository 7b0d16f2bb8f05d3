//! The scenarios, run on the CDDS-Tree: every node size, both kinds of keys and values, each
//! medium.

use crate::common::{Chosen, File, Of, scenario_suite};
use bristlecone_designs::cddstree::CddsOptions;
use bristlecone_designs::designs::Cdds;

/// Nodes of `BYTES` bytes, recovered by `THREADS` threads.
struct Tuned<const BYTES: u32, const THREADS: usize>;

impl<const BYTES: u32, const THREADS: usize> Chosen for Tuned<BYTES, THREADS> {
    type Design = Cdds;

    fn design() -> Cdds {
        Cdds(CddsOptions {
            node_bytes: BYTES,
            recovery_threads: THREADS,
        })
    }
}

scenario_suite!(numbers_256, Of<Tuned<256, 2>, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_1024, Of<Cdds, [u8], [u8], File>: [base, durable]);
