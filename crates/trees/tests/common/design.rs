//! The harness of every design: [`Of`] a design, kinds of keys and values, and a medium.

use super::{Failure, Fresh, Harness, PoolHome, Pooled, TestKey, TestValue};
use bristlecone_pmem::{Media, Pool};
use bristlecone_trees::{Design, DurableIndex, KeyRepr, RecoveryReport, Repr, TreeError};
use std::marker::PhantomData;
use std::sync::Arc;

/// A design and how it is run, as a type: the design itself for its usual options, or a type of
/// the test's own that gives it others.
pub trait Chosen: 'static {
    /// The design.
    type Design: Design;

    /// With its options.
    fn design() -> Self::Design;
}

impl<D: Design + Default> Chosen for D {
    type Design = D;

    fn design() -> D {
        D::default()
    }
}

/// The harness of design `C` from `K` to `V` on `M`.
pub struct Of<C, K: ?Sized, V: ?Sized, M>(PhantomData<fn(&C, &K, &V, M)>);

/// A harness that says which design it is of, so that a scenario can put it on other media.
pub trait Designed: Pooled<Key: KeyRepr, Value: Repr> {
    /// The design.
    type Chosen: Chosen;
}

/// The index of a harness's design on the medium `M`.
pub type On<H, M> = <<<H as Designed>::Chosen as Chosen>::Design as Design>::Index<
    <H as Harness>::Key,
    <H as Harness>::Value,
    M,
>;

/// An empty index at `root`.
pub fn create_on<H: Designed, M: Media>(
    pool: &Arc<Pool<M>>,
    root: &str,
) -> Result<On<H, M>, TreeError> {
    H::Chosen::design().create(pool, root)
}

/// The index at `root`.
pub fn open_on<H: Designed, M: Media>(
    pool: &Arc<Pool<M>>,
    root: &str,
) -> Result<On<H, M>, TreeError> {
    H::Chosen::design().open(pool, root)
}

impl<C, K, V, M> Harness for Of<C, K, V, M>
where
    C: Chosen,
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    type Key = K;
    type Value = V;
    type Index = <C::Design as Design>::Index<K, V, M>;
    type Home = PoolHome<M>;

    fn fresh() -> Fresh<Self> {
        let home = PoolHome::new();
        let index = Self::create(&home, "index").expect("a new root");
        Fresh { index, home }
    }
}

impl<C, K, V, M> Pooled for Of<C, K, V, M>
where
    C: Chosen,
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    type Medium = M;

    const SNAPSHOT: bool = <Self::Index as DurableIndex<K, V, M>>::SNAPSHOT;

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
    K: TestKey + KeyRepr + ?Sized,
    V: TestValue + Repr + ?Sized,
    M: Media,
{
    type Chosen = C;
}
