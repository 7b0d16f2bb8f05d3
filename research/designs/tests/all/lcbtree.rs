//! The scenarios, run on the LCB+-Tree, and on NVT-A, which has its inner nodes: every node size,
//! both kinds of keys and values, each medium.

use crate::common::{Chosen, File, Of, scenario_suite};
use bristlecone_designs::BTreeOptions;
use bristlecone_designs::designs::{Lcb, NvtA};

/// Nodes of `BYTES` bytes with at most `MOST` entries, recovered by 2 threads.
struct Sized<const BYTES: u32, const MOST: usize>;

impl<const BYTES: u32, const MOST: usize> Chosen for Sized<BYTES, MOST> {
    type Design = Lcb;

    fn design() -> Lcb {
        Lcb(BTreeOptions {
            node_bytes: Some(BYTES),
            most_entries: Some(MOST),
            recovery_threads: 2,
            ..BTreeOptions::default()
        })
    }
}

/// The same for NVT-A.
struct Appended<const BYTES: u32, const MOST: usize>;

impl<const BYTES: u32, const MOST: usize> Chosen for Appended<BYTES, MOST> {
    type Design = NvtA;

    fn design() -> NvtA {
        NvtA(Sized::<BYTES, MOST>::design().0)
    }
}

scenario_suite!(numbers_256, Of<Sized<256, { usize::MAX }>, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_1024, Of<Lcb, [u8], [u8], File>: [base, durable]);
scenario_suite!(high_numbers, Of<Sized<256, 3>, u64, u64, File>: [base]);
scenario_suite!(appended_256, Of<Appended<256, { usize::MAX }>, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
#[cfg(feature = "thorough")]
scenario_suite!(appended_strings, Of<Appended<512, { usize::MAX }>, [u8], [u8], File>: [base, durable]);
