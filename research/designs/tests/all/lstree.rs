//! The scenarios, run on the log-structured B+-tree: leaf sizes, logs by leaf and by thread, both
//! kinds of keys and values.

use crate::common::{Chosen, File, Of, scenario_suite};
use bristlecone_designs::designs::Ls;
use bristlecone_designs::lstree::{LogChoice, LsOptions};

/// Leaves of `BYTES` bytes, `LOGS` logs, recovered by `THREADS` threads.
struct Tuned<const BYTES: u32, const LOGS: u32, const THREADS: usize>;

impl<const BYTES: u32, const LOGS: u32, const THREADS: usize> Chosen
    for Tuned<BYTES, LOGS, THREADS>
{
    type Design = Ls;

    fn design() -> Ls {
        Ls(LsOptions {
            leaf_bytes: BYTES,
            logs: LOGS,
            recovery_threads: THREADS,
            ..LsOptions::default()
        })
    }
}

/// Logs by thread, short chains, searched as in the paper.
struct ByThread;

impl Chosen for ByThread {
    type Design = Ls;

    fn design() -> Ls {
        Ls(LsOptions {
            leaf_bytes: 256,
            logs: 3,
            log_choice: LogChoice::Thread,
            cached_deltas: 3,
            tags: false,
            recovery_threads: 2,
            ..LsOptions::default()
        })
    }
}

scenario_suite!(numbers_512, Of<Ls, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_256, Of<Tuned<256, 1, 3>, [u8], [u8], File>: [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, compact]);
#[cfg(feature = "thorough")]
scenario_suite!(numbers_by_thread, Of<ByThread, u64, u64, File>: [base, pooled, durable]);
