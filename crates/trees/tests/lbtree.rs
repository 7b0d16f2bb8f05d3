//! The scenarios, run on the LB+-Tree: every leaf size, both kinds of keys and values, each medium.

mod common;

use bristlecone_pmem::Media;
use bristlecone_pmem::media::{Dram, Journal, Mapped};
use bristlecone_trees::DurableIndex;
use bristlecone_trees::lbtree::{LbOptions, LbTree};
use bristlecone_trees::{KeyRepr, RecoveryReport, Repr};
use common::{Failure, Fresh, Harness, PoolHome, Pooled, TestKey, TestValue, scenario_suite};
use std::marker::PhantomData;

/// `K` to `V` on `M`, in leaves of `BLOCKS` x 256 bytes, with or without entry moving, recovered by
/// `THREADS` threads.
struct Lb<K: ?Sized, V: ?Sized, M, const BLOCKS: usize, const MOVING: bool, const THREADS: usize>(
    PhantomData<fn(&K, &V, M)>,
);

impl<K, V, M, const BLOCKS: usize, const MOVING: bool, const THREADS: usize>
    Lb<K, V, M, BLOCKS, MOVING, THREADS>
where
    K: ?Sized,
    V: ?Sized,
{
    fn options() -> LbOptions {
        LbOptions {
            entry_moving: MOVING,
            recovery_threads: THREADS,
        }
    }
}

impl<K, V, M, const BLOCKS: usize, const MOVING: bool, const THREADS: usize> Harness
    for Lb<K, V, M, BLOCKS, MOVING, THREADS>
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    type Key = K;
    type Value = V;
    type Index = LbTree<K, V, M, BLOCKS>;
    type Home = PoolHome<M>;

    fn fresh() -> Fresh<Self> {
        let home = PoolHome::new();
        let index = Self::create(&home, "index").expect("a new root");
        Fresh { index, home }
    }
}

impl<K, V, M, const BLOCKS: usize, const MOVING: bool, const THREADS: usize> Pooled
    for Lb<K, V, M, BLOCKS, MOVING, THREADS>
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    type Medium = M;

    fn create(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(LbTree::create(&home.pool, root, &Self::options())?)
    }

    fn open(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(LbTree::open(&home.pool, root, &Self::options())?)
    }

    fn close(index: Self::Index) -> Result<(), Failure> {
        Ok(index.close()?)
    }

    fn recovery(index: &Self::Index) -> RecoveryReport {
        index.recovery().clone()
    }
}

type Numbers<M, const BLOCKS: usize, const THREADS: usize> = Lb<u64, u64, M, BLOCKS, true, THREADS>;
type Strings<M, const BLOCKS: usize, const THREADS: usize> =
    Lb<[u8], [u8], M, BLOCKS, true, THREADS>;

scenario_suite!(numbers_256, Numbers<Mapped, 1, 1>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(strings_256, Strings<Mapped, 1, 1>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(numbers_512, Numbers<Mapped, 2, 2>: [base, reverse, bulk, durable]);
scenario_suite!(numbers_768, Numbers<Mapped, 3, 3>: [base, reverse, durable]);
scenario_suite!(numbers_1024, Numbers<Mapped, 4, 1>: [base, reverse, bulk, durable]);
scenario_suite!(strings_512, Strings<Mapped, 2, 4>: [base, reverse, durable]);
scenario_suite!(strings_to_numbers_768, Lb<[u8], u64, Mapped, 3, true, 1>: [base, reverse]);
scenario_suite!(numbers_to_strings_1024, Lb<u64, [u8], Mapped, 4, true, 2>: [pooled, durable]);
scenario_suite!(numbers_traditional, Lb<u64, u64, Mapped, 1, false, 1>: [base, reverse, durable]);
scenario_suite!(numbers_dram, Numbers<Dram, 1, 1>: [base, reverse, pooled]);
scenario_suite!(numbers_journal, Numbers<Journal, 1, 1>: [base, reverse, pooled, durable, durable_bulk]);
scenario_suite!(strings_journal, Strings<Journal, 2, 2>: [pooled, durable]);
