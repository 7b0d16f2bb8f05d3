//! The scenarios, run on the Crab-tree: leaf sizes, strategies, all optimizations, both kinds of keys and values.

#![cfg(feature = "unproven")]

mod common;

use bristlecone_pmem::media::{Journal, Mapped};
use bristlecone_trees::CrabOptions;
use bristlecone_trees::crabtree::{Costs, Strategy};
use bristlecone_trees::designs::Crab;
use common::{Chosen, Of, scenario_suite};

/// Leaves of `BYTES` bytes, recovered by `THREADS` threads. `WHICH`: each bit switches an optimization on.
struct Tuned<const BYTES: u32, const WHICH: u32, const THREADS: usize>;

impl<const BYTES: u32, const WHICH: u32, const THREADS: usize> Chosen
    for Tuned<BYTES, WHICH, THREADS>
{
    type Design = Crab;

    fn design() -> Crab {
        Crab(CrabOptions {
            leaf_bytes: BYTES,
            self_managed: WHICH & 1 != 0,
            probe: WHICH & 2 != 0,
            atomic16: WHICH & 4 != 0,
            costs: Some(Costs::PAPER),
            recovery_threads: THREADS,
            ..CrabOptions::PLAIN
        })
    }
}

/// Leaves of 256 bytes, by copying alone or by shifting alone.
struct Only<const COPY: bool>;

impl<const COPY: bool> Chosen for Only<COPY> {
    type Design = Crab;

    fn design() -> Crab {
        Crab(CrabOptions {
            leaf_bytes: 256,
            strategy: if COPY {
                Strategy::CopyOnWrite
            } else {
                Strategy::ShiftInPlace
            },
            ..CrabOptions::PLAIN
        })
    }
}

type Numbers<const BYTES: u32, const WHICH: u32, const THREADS: usize> =
    Of<Tuned<BYTES, WHICH, THREADS>, u64, u64, Mapped>;
type Strings<const BYTES: u32, const WHICH: u32, const THREADS: usize> =
    Of<Tuned<BYTES, WHICH, THREADS>, [u8], [u8], Mapped>;

scenario_suite!(numbers_256, Numbers<256, 0, 3>: [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, power_cuts]);
scenario_suite!(numbers_usual, Of<Crab, u64, u64, Mapped>: [base, reverse, bulk, pooled, durable, compact]);
scenario_suite!(strings_256, Strings<256, 0, 1>: [base, reverse, bulk, pooled, pooled_bulk, durable, power_cuts]);
scenario_suite!(strings_512_opt, Strings<512, 7, 2>: [base, reverse, pooled, durable]);
scenario_suite!(numbers_256_opt, Numbers<256, 7, 1>: [base, reverse, pooled, durable, durable_bulk]);
scenario_suite!(numbers_8192_opt, Numbers<8192, 7, 2>: [base, reverse, bulk, durable]);
scenario_suite!(numbers_self_managed, Numbers<256, 1, 1>: [base, durable]);
scenario_suite!(numbers_probe, Numbers<256, 2, 1>: [base, durable]);
scenario_suite!(numbers_16_bytes, Numbers<256, 4, 1>: [base, durable]);
scenario_suite!(numbers_copying, Of<Only<true>, u64, u64, Mapped>: [base, pooled, durable]);
scenario_suite!(strings_copying, Of<Only<true>, [u8], [u8], Mapped>: [base, pooled]);
scenario_suite!(numbers_shifting, Of<Only<false>, u64, u64, Mapped>: [base, pooled, durable]);
scenario_suite!(numbers_journal, Of<Crab, u64, u64, Journal>: [base, pooled, durable]);
