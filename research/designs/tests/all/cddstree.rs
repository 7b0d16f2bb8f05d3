//! The scenarios, run on the CDDS-Tree: every node size, both kinds of keys and values, each medium.

use crate::common::{Chosen, Of, scenario_suite};
use bristlecone_designs::cddstree::CddsOptions;
use bristlecone_designs::designs::Cdds;
use bristlecone_pmem::media::Mapped;

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

scenario_suite!(numbers_256, Of<Tuned<256, 2>, u64, u64, Mapped>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_1024, Of<Cdds, [u8], [u8], Mapped>: [base, durable]);
