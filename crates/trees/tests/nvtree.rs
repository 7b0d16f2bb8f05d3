//! The scenarios, run on NV-Tree: leaf sizes, strategies, both kinds of keys and values, each medium.

mod common;

use bristlecone_pmem::Media;
use bristlecone_pmem::media::{Dram, Journal, Mapped};
use bristlecone_trees::DurableIndex;
use bristlecone_trees::nvtree::{Adaptivity, NvOptions, NvTree};
use bristlecone_trees::{KeyRepr, RecoveryReport, Repr};
use common::{Failure, Fresh, Harness, PoolHome, Pooled, TestKey, TestValue, scenario_suite};
use std::marker::PhantomData;

/// `K` to `V` on `M`, in leaves of `BYTES` bytes, resized by strategy number `STRATEGY`, recovered by
/// `THREADS` threads.
struct Nv<K: ?Sized, V: ?Sized, M, const BYTES: u32, const STRATEGY: usize, const THREADS: usize>(
    PhantomData<fn(&K, &V, M)>,
);

const OFF: usize = 0;
const CONSERVATIVE: usize = 1;
const AGGRESSIVE: usize = 2;
const BALANCED: usize = 3;
const STRATEGIES: [Adaptivity; 4] = [
    Adaptivity::Off,
    Adaptivity::Conservative,
    Adaptivity::Aggressive,
    Adaptivity::Balanced,
];

impl<K, V, M, const BYTES: u32, const STRATEGY: usize, const THREADS: usize>
    Nv<K, V, M, BYTES, STRATEGY, THREADS>
where
    K: ?Sized,
    V: ?Sized,
{
    fn options() -> NvOptions {
        NvOptions {
            leaf_bytes: BYTES,
            adaptivity: STRATEGIES[STRATEGY],
            recovery_threads: THREADS,
        }
    }
}

impl<K, V, M, const BYTES: u32, const STRATEGY: usize, const THREADS: usize> Harness
    for Nv<K, V, M, BYTES, STRATEGY, THREADS>
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    type Key = K;
    type Value = V;
    type Index = NvTree<K, V, M>;
    type Home = PoolHome<M>;

    fn fresh() -> Fresh<Self> {
        let home = PoolHome::new();
        let index = Self::create(&home, "index").expect("a new root");
        Fresh { index, home }
    }
}

impl<K, V, M, const BYTES: u32, const STRATEGY: usize, const THREADS: usize> Pooled
    for Nv<K, V, M, BYTES, STRATEGY, THREADS>
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    type Medium = M;

    fn create(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(NvTree::create(&home.pool, root, &Self::options())?)
    }

    fn open(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(NvTree::open(&home.pool, root, &Self::options())?)
    }

    fn close(index: Self::Index) -> Result<(), Failure> {
        Ok(index.close()?)
    }

    fn recovery(index: &Self::Index) -> RecoveryReport {
        index.recovery().clone()
    }
}

type Numbers<M, const BYTES: u32, const STRATEGY: usize> = Nv<u64, u64, M, BYTES, STRATEGY, 1>;
type Strings<M, const BYTES: u32, const STRATEGY: usize> = Nv<[u8], [u8], M, BYTES, STRATEGY, 1>;

scenario_suite!(numbers_1024, Numbers<Mapped, 1024, BALANCED>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(strings_1024, Strings<Mapped, 1024, BALANCED>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(numbers_256, Numbers<Mapped, 256, OFF>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_256, Strings<Mapped, 256, AGGRESSIVE>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(numbers_512, Numbers<Mapped, 512, CONSERVATIVE>: [base, reverse, pooled, durable]);
scenario_suite!(numbers_4096, Nv<u64, u64, Mapped, 4096, BALANCED, 3>: [base, reverse, bulk, durable]);
scenario_suite!(strings_512, Nv<[u8], [u8], Mapped, 512, OFF, 4>: [base, reverse, durable]);
scenario_suite!(strings_to_numbers_2048, Nv<[u8], u64, Mapped, 2048, BALANCED, 1>: [base, reverse]);
scenario_suite!(numbers_to_strings_1024, Nv<u64, [u8], Mapped, 1024, OFF, 2>: [pooled, durable]);
scenario_suite!(numbers_dram, Numbers<Dram, 1024, BALANCED>: [base, reverse, pooled]);
scenario_suite!(numbers_journal, Numbers<Journal, 1024, BALANCED>: [base, reverse, pooled, durable, durable_bulk]);
scenario_suite!(strings_journal, Strings<Journal, 512, BALANCED>: [pooled, durable]);
