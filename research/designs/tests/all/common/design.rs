//! The harness of every design: [`Of`] a design, kinds of keys and values, and a medium.

use super::recorder::Recorder;
use super::{Failure, Fresh, Harness, PoolHome, Pooled, TestKey, TestValue};
use bristlecone_designs::designs::{Holds, Wide, WideDesign};
use bristlecone_designs::engines::{Engine, Maker};
use bristlecone_designs::{Design, DurableIndex, RecoveryReport, Stored, StoredKey, TreeError};
use bristlecone_pmem::media::{Dram, Mapped};
use bristlecone_pmem::{Media, Pool};
use std::marker::PhantomData;
use std::sync::Arc;

/// A design and how it is run, as a type: the design itself for its usual options, or a type of
/// the test's own that gives it others.
pub trait Chosen: 'static {
    /// The design.
    type Design: 'static;

    /// Whether byte strings have sums, so that `verify` finds damage inside them.
    const SUMS: bool = true;

    /// With its options.
    fn design() -> Self::Design;
}

impl<D: Design + Default> Chosen for D {
    type Design = D;

    fn design() -> D {
        D::default()
    }
}

/// Design `C` with keys and values of 16 bytes.
pub struct WideOf<C>(PhantomData<fn(&C)>);

impl<C: Chosen<Design: WideDesign>> Chosen for WideOf<C> {
    type Design = Wide<C::Design>;

    const SUMS: bool = C::SUMS;

    fn design() -> Self::Design {
        Wide(C::design())
    }
}

/// The harness of design `C` from `K` to `V` on `M`.
pub struct Of<C, K: ?Sized, V: ?Sized, M>(PhantomData<fn(&C, &K, &V, M)>);

/// A harness that says which design it is of, so that a scenario can put it on other media.
pub trait Designed: Pooled<Key: StoredKey, Value: Stored> {
    /// The design.
    type Design: Holds<Self::Key, Self::Value, Mapped>
        + Holds<Self::Key, Self::Value, Recorder>
        + Holds<Self::Key, Self::Value, Dram>;

    /// With its options.
    fn design() -> Self::Design;
}

/// The index of a harness's design, on whatever medium.
pub type On<H> = Box<dyn Engine<<H as Harness>::Key, <H as Harness>::Value>>;

/// An empty index at `root`.
pub fn create_on<H, M>(pool: &Arc<Pool<M>>, root: &str) -> Result<On<H>, TreeError>
where
    H: Designed<Design: Holds<<H as Harness>::Key, <H as Harness>::Value, M>>,
    M: Media,
{
    H::design().create(pool, root)
}

/// The index at `root`.
pub fn open_on<H, M>(pool: &Arc<Pool<M>>, root: &str) -> Result<On<H>, TreeError>
where
    H: Designed<Design: Holds<<H as Harness>::Key, <H as Harness>::Value, M>>,
    M: Media,
{
    H::design().open(pool, root)
}

impl<C, K, V, M> Harness for Of<C, K, V, M>
where
    C: Chosen,
    C::Design: Holds<K, V, M>,
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    M: Media,
{
    type Key = K;
    type Value = V;
    type Index = Box<dyn Engine<K, V>>;
    type Home = PoolHome<M>;

    const SUMS: bool = C::SUMS;

    fn fresh() -> Fresh<Self> {
        let home = PoolHome::new();
        let index = Self::create(&home, "index").expect("a new root");
        Fresh { index, home }
    }

    fn longest_key() -> usize {
        C::design().most_key()
    }

    fn longest_value() -> usize {
        C::design().most_value()
    }
}

impl<C, K, V, M> Pooled for Of<C, K, V, M>
where
    C: Chosen,
    C::Design: Holds<K, V, M>,
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    M: Media,
{
    type Medium = M;

    const SNAPSHOT: bool = <<C::Design as Holds<K, V, M>>::Held as DurableIndex<K, V, M>>::SNAPSHOT;

    fn create(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(C::design().create(&home.pool, root)?)
    }

    fn open(home: &PoolHome<M>, root: &str) -> Result<Self::Index, Failure> {
        Ok(C::design().open(&home.pool, root)?)
    }

    fn close(index: Self::Index) -> Result<(), Failure> {
        Ok(index.close()?)
    }

    fn recovery(index: &Self::Index) -> RecoveryReport {
        index.recovery().clone()
    }
}

impl<C, K, V, M> Designed for Of<C, K, V, M>
where
    C: Chosen,
    C::Design: Holds<K, V, M> + Holds<K, V, Mapped> + Holds<K, V, Recorder> + Holds<K, V, Dram>,
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    M: Media,
{
    type Design = C::Design;

    fn design() -> C::Design {
        C::design()
    }
}
