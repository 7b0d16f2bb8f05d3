//! The scenarios, run on the LCB+-Tree: every node size, both kinds of keys and values, each medium.

mod common;

use bristlecone_pmem::Media;
use bristlecone_pmem::media::{Dram, Journal, Mapped};
use bristlecone_trees::{BTreeOptions, DurableIndex, KeyRepr, LcbTree, RecoveryReport, Repr};
use common::{Failure, Fresh, Harness, PoolHome, Pooled, TestKey, TestValue, scenario_suite};
use std::marker::PhantomData;

/// `K` to `V` on `M`, in nodes of `BYTES` bytes.
struct Lcb<K: ?Sized, V: ?Sized, M, const BYTES: u32>(PhantomData<fn(&K, &V, M)>);

const fn options(bytes: u32) -> BTreeOptions {
    BTreeOptions {
        node_bytes: Some(bytes),
        most_entries: None,
    }
}

impl<K, V, M, const BYTES: u32> Harness for Lcb<K, V, M, BYTES>
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    type Key = K;
    type Value = V;
    type Index = LcbTree<K, V, M>;
    type Home = PoolHome<M>;

    fn fresh() -> Fresh<Self> {
        let home = PoolHome::new();
        let index = Self::create(&home, "index").expect("a new root");
        Fresh { index, home }
    }
}

impl<K, V, M, const BYTES: u32> Pooled for Lcb<K, V, M, BYTES>
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    type Medium = M;

    fn create(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(LcbTree::create(&home.pool, root, &options(BYTES))?)
    }

    fn open(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(LcbTree::open(&home.pool, root, &options(BYTES))?)
    }

    fn close(index: Self::Index) -> Result<(), Failure> {
        Ok(index.close()?)
    }

    fn recovery(index: &Self::Index) -> RecoveryReport {
        index.recovery().clone()
    }
}

type Numbers<M, const BYTES: u32> = Lcb<u64, u64, M, BYTES>;
type Strings<M, const BYTES: u32> = Lcb<[u8], [u8], M, BYTES>;

scenario_suite!(numbers_256, Numbers<Mapped, 256>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(strings_256, Strings<Mapped, 256>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(numbers_512, Numbers<Mapped, 512>: [base, reverse, durable]);
scenario_suite!(numbers_1024, Numbers<Mapped, 1024>:
    [base, reverse, bulk, pooled, durable, durable_bulk]);
scenario_suite!(strings_1024, Strings<Mapped, 1024>: [base, reverse, durable]);
scenario_suite!(numbers_2048, Numbers<Mapped, 2048>: [base, reverse]);
scenario_suite!(numbers_4096, Numbers<Mapped, 4096>: [base, reverse, bulk, durable]);
scenario_suite!(strings_to_numbers_512, Lcb<[u8], u64, Mapped, 512>: [base, reverse]);
scenario_suite!(numbers_to_strings_256, Lcb<u64, [u8], Mapped, 256>: [pooled, durable]);
scenario_suite!(numbers_dram, Numbers<Dram, 1024>: [base, reverse, pooled]);
scenario_suite!(numbers_journal, Numbers<Journal, 1024>: [base, reverse, pooled, durable, durable_bulk]);
scenario_suite!(strings_journal, Strings<Journal, 256>: [pooled, durable]);
