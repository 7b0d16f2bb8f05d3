//! The scenarios, run on the CDDS-Tree: every node size, both kinds of keys and values, each medium.

mod common;

use bristlecone_pmem::Media;
use bristlecone_pmem::media::{Dram, Journal, Mapped};
use bristlecone_trees::cddstree::{CddsOptions, CddsTree};
use bristlecone_trees::{DurableIndex, KeyRepr, RecoveryReport, Repr};
use common::{Failure, Fresh, Harness, PoolHome, Pooled, TestKey, TestValue, scenario_suite};
use std::marker::PhantomData;

/// `K` to `V` on `M`, in nodes of `BYTES` bytes, recovered by `THREADS` threads.
struct Cdds<K: ?Sized, V: ?Sized, M, const BYTES: u32, const THREADS: usize>(
    PhantomData<fn(&K, &V, M)>,
);

impl<K: ?Sized, V: ?Sized, M, const BYTES: u32, const THREADS: usize>
    Cdds<K, V, M, BYTES, THREADS>
{
    fn options() -> CddsOptions {
        CddsOptions {
            node_bytes: BYTES,
            recovery_threads: THREADS,
        }
    }
}

impl<K, V, M, const BYTES: u32, const THREADS: usize> Harness for Cdds<K, V, M, BYTES, THREADS>
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    type Key = K;
    type Value = V;
    type Index = CddsTree<K, V, M>;
    type Home = PoolHome<M>;

    fn fresh() -> Fresh<Self> {
        let home = PoolHome::new();
        let index = Self::create(&home, "index").expect("a new root");
        Fresh { index, home }
    }
}

impl<K, V, M, const BYTES: u32, const THREADS: usize> Pooled for Cdds<K, V, M, BYTES, THREADS>
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    type Medium = M;

    fn create(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(CddsTree::create(&home.pool, root, &Self::options())?)
    }

    fn open(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(CddsTree::open(&home.pool, root, &Self::options())?)
    }

    fn close(index: Self::Index) -> Result<(), Failure> {
        Ok(index.close()?)
    }

    fn recovery(index: &Self::Index) -> RecoveryReport {
        index.recovery().clone()
    }
}

type Numbers<M, const BYTES: u32, const THREADS: usize> = Cdds<u64, u64, M, BYTES, THREADS>;
type Strings<M, const BYTES: u32, const THREADS: usize> = Cdds<[u8], [u8], M, BYTES, THREADS>;

scenario_suite!(numbers_256, Numbers<Mapped, 256, 1>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(strings_256, Strings<Mapped, 256, 2>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(numbers_512, Numbers<Mapped, 512, 2>: [base, reverse, durable]);
scenario_suite!(numbers_1024, Numbers<Mapped, 1024, 3>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(strings_1024, Strings<Mapped, 1024, 1>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(numbers_2048, Numbers<Mapped, 2048, 1>: [base, reverse, durable]);
scenario_suite!(numbers_4096, Numbers<Mapped, 4096, 1>: [base, reverse, bulk, durable]);
scenario_suite!(strings_4096, Strings<Mapped, 4096, 2>: [base, reverse, durable]);
scenario_suite!(strings_to_numbers_256, Cdds<[u8], u64, Mapped, 256, 1>: [base, reverse]);
scenario_suite!(numbers_to_strings_512, Cdds<u64, [u8], Mapped, 512, 2>: [pooled, durable]);
scenario_suite!(numbers_dram, Numbers<Dram, 1024, 1>: [base, reverse, pooled]);
scenario_suite!(numbers_journal, Numbers<Journal, 1024, 1>: [base, reverse, pooled, durable, durable_bulk]);
scenario_suite!(strings_journal, Strings<Journal, 512, 2>: [pooled, durable]);
