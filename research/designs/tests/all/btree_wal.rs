//! The scenarios, run on btree-WAL: the smallest, default and largest nodes, both kinds of keys and
//! values, high trees, every way of searching a node.

use crate::common::{Chosen, File, Of, WideOf, scenario_suite};
use bristlecone_designs::designs::Wal;
use bristlecone_designs::{BTreeOptions, Search};

/// Nodes of `BYTES` bytes with at most `MOST` entries, recovered by 2 threads.
struct Sized<const BYTES: u32, const MOST: usize>;

impl<const BYTES: u32, const MOST: usize> Chosen for Sized<BYTES, MOST> {
    type Design = Wal;

    fn design() -> Wal {
        Wal(BTreeOptions {
            node_bytes: Some(BYTES),
            most_entries: Some(MOST),
            recovery_threads: 2,
            search: match BYTES {
                128 => Search::Linear,
                8192 => Search::Binary,
                _ => Search::Usual,
            },
            ..BTreeOptions::default()
        })
    }
}

scenario_suite!(numbers_512, Of<Sized<512, { usize::MAX }>, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(numbers_128, Of<Sized<128, { usize::MAX }>, u64, u64, File>: [base, reverse, durable]);
#[cfg(feature = "thorough")]
scenario_suite!(numbers_8192, Of<Sized<8192, { usize::MAX }>, u64, u64, File>: [base, bulk, durable]);
scenario_suite!(strings_512, Of<Wal, [u8], [u8], File>: [base, reverse, bulk, durable]);
#[cfg(feature = "thorough")]
scenario_suite!(strings_128, Of<Sized<128, { usize::MAX }>, [u8], [u8], File>: [base, durable]);
scenario_suite!(wide_512, Of<WideOf<Sized<512, { usize::MAX }>>, u128, u128, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(high_numbers, Of<Sized<256, 3>, u64, u64, File>: [base, reverse, durable]);
#[cfg(feature = "thorough")]
scenario_suite!(high_strings, Of<Sized<256, 3>, [u8], u64, File>: [base]);
