//! The scenarios, run on the Crab-tree: strategies, all optimizations, both kinds of keys and
//! values.

use crate::common::{Chosen, File, Of, scenario_suite};
use bristlecone_designs::CrabOptions;
use bristlecone_designs::crabtree::{Costs, Strategy};
use bristlecone_designs::designs::Crab;

/// Leaves of `BYTES` bytes, recovered by `THREADS` threads. Each bit of `WHICH` switches an
/// optimization on.
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

type Numbers<const WHICH: u32, const THREADS: usize> =
    Of<Tuned<256, WHICH, THREADS>, u64, u64, File>;
type Strings<const WHICH: u32, const THREADS: usize> =
    Of<Tuned<256, WHICH, THREADS>, [u8], [u8], File>;

// The design's own tests cover other leaf sizes, and each optimization by itself.
scenario_suite!(numbers, Numbers<0, 3>: [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk, power_cuts, compact]);
#[cfg(feature = "thorough")]
scenario_suite!(numbers_opt, Numbers<7, 1>: [base, pooled, durable]);
scenario_suite!(strings_opt, Strings<7, 2>: [base, reverse, bulk, pooled, durable]);
#[cfg(feature = "thorough")]
scenario_suite!(strings_opt_cuts, Strings<7, 2>: [power_cuts]);
scenario_suite!(numbers_copying, Of<Only<true>, u64, u64, File>: [base, pooled, durable]);
#[cfg(feature = "thorough")]
scenario_suite!(numbers_shifting, Of<Only<false>, u64, u64, File>: [base, pooled]);
