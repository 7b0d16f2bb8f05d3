//! The scenarios, run on the skip lists: towers in the pool and in DRAM, both kinds of keys and values,
//! each medium.

mod common;

use bristlecone_pmem::Media;
use bristlecone_pmem::media::{Dram, Journal, Mapped};
use bristlecone_trees::DurableIndex;
use bristlecone_trees::skiplist::{InDram, InPool, SkipList, SkipOptions, Towers};
use bristlecone_trees::{KeyRepr, RecoveryReport, Repr};
use common::{Failure, Fresh, Harness, PoolHome, Pooled, TestKey, TestValue, scenario_suite};
use std::marker::PhantomData;

/// `K` to `V` on `M`, towers as `T` says.
struct Skip<K: ?Sized, V: ?Sized, M, T>(PhantomData<fn(&K, &V, M, T)>);

impl<K, V, M, T> Harness for Skip<K, V, M, T>
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
    T: Towers<M>,
{
    type Key = K;
    type Value = V;
    type Index = SkipList<K, V, M, T>;
    type Home = PoolHome<M>;

    fn fresh() -> Fresh<Self> {
        let home = PoolHome::new();
        let index = Self::create(&home, "index").expect("a new root");
        Fresh { index, home }
    }
}

impl<K, V, M, T> Pooled for Skip<K, V, M, T>
where
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
    T: Towers<M>,
{
    type Medium = M;

    fn create(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(SkipList::create(&home.pool, root, &SkipOptions::default())?)
    }

    fn open(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(SkipList::open(&home.pool, root, &SkipOptions::default())?)
    }

    fn close(index: Self::Index) -> Result<(), Failure> {
        Ok(index.close()?)
    }

    fn recovery(index: &Self::Index) -> RecoveryReport {
        index.recovery().clone()
    }
}

type Numbers<M, T> = Skip<u64, u64, M, T>;
type Strings<M, T> = Skip<[u8], [u8], M, T>;

scenario_suite!(divided_numbers, Numbers<Mapped, InDram>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(divided_strings, Strings<Mapped, InDram>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(nvm_numbers, Numbers<Mapped, InPool>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(nvm_strings, Strings<Mapped, InPool>:
    [base, reverse, bulk, pooled, pooled_bulk, durable, durable_bulk]);
scenario_suite!(divided_strings_to_numbers, Skip<[u8], u64, Mapped, InDram>: [base, reverse]);
scenario_suite!(nvm_numbers_to_strings, Skip<u64, [u8], Mapped, InPool>: [pooled, durable]);
scenario_suite!(dram_numbers, Numbers<Dram, InPool>: [base, reverse, bulk, pooled]);
scenario_suite!(dram_strings, Strings<Dram, InPool>: [base, reverse]);
scenario_suite!(divided_journal, Numbers<Journal, InDram>: [base, pooled, durable, durable_bulk]);
scenario_suite!(nvm_journal, Strings<Journal, InPool>: [pooled, durable, durable_bulk]);
