//! The scenarios, run on the CDDS-Tree: every node size, both kinds of keys and values, each medium.

mod common;

use bristlecone_pmem::media::{Journal, Mapped};
use bristlecone_trees::cddstree::CddsOptions;
use bristlecone_trees::designs::Cdds;
use common::{Chosen, Of, scenario_suite};

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

type Numbers<M, const BYTES: u32, const THREADS: usize> = Of<Tuned<BYTES, THREADS>, u64, u64, M>;
type Strings<M, const BYTES: u32, const THREADS: usize> = Of<Tuned<BYTES, THREADS>, [u8], [u8], M>;

scenario_suite!(numbers_256, Numbers<Mapped, 256, 2>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, compact, hostile, power_cuts]);
scenario_suite!(strings_1024, Of<Cdds, [u8], [u8], Mapped>: [base, reverse, pooled, durable]);
scenario_suite!(numbers_4096, Numbers<Mapped, 4096, 1>: [base, bulk]);
scenario_suite!(strings_journal, Strings<Journal, 512, 2>: [durable]);
