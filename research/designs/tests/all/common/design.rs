//! The harness of every design: [`Of`] a design, kinds of keys and values, and where its pool is.

use super::home::{File, Place};
use super::recorder::Recorder;
use super::{Failure, Fresh, Harness, PoolHome, Pooled, TestKey, TestValue};
use bristlecone_designs::designs::{AnyDesign, Holds, Wide, WideDesign};
use bristlecone_designs::engines::{Compiled, Engine, Maker};
use bristlecone_designs::{Design, RecoveryReport, Stored, StoredKey};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{Auto, Dram, Journal, Mapped};
use std::marker::PhantomData;

/// A design and its options, as a type: the design itself for its default options, or a type of the
/// test's own with others.
pub trait Chosen: 'static {
    /// The design.
    type Design: 'static;

    /// True if byte strings have checksums, so that `verify` finds damage inside them.
    const SUMS: bool = true;

    /// Returns the design with its options.
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

/// A place where indexes of the design `D` from `K` to `V` can be.
pub trait Hosts<D, K, V>: Place
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
{
    /// Returns a maker of such indexes.
    fn maker(design: D) -> Box<dyn Maker<K, V, Self::Media>>;
}

/// Compiled in the library, once for all tests.
impl<D, K, V> Hosts<D, K, V> for File
where
    D: Into<AnyDesign>,
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    Auto: Compiled<K, V>,
{
    fn maker(design: D) -> Box<dyn Maker<K, V, Auto>> {
        Auto::maker_of(design.into()).expect("a design of such keys and values")
    }
}

/// Compiled for the test.
macro_rules! hosts {
    ($($medium:ty),*) => {$(
        impl<D, K, V> Hosts<D, K, V> for $medium
        where
            D: Holds<K, V, $medium, Held: 'static>,
            K: StoredKey + ?Sized + 'static,
            V: Stored + ?Sized + 'static,
        {
            fn maker(design: D) -> Box<dyn Maker<K, V, $medium>> {
                Box::new(design)
            }
        }
    )*};
}

hosts!(Mapped, Journal, Dram);

/// The harness of design `C` from `K` to `V` at the place `P`.
pub struct Of<C, K: ?Sized, V: ?Sized, P>(PhantomData<fn(&C, &K, &V, P)>);

/// A harness whose design can be put on the medium that [records](Recorder) what is durable.
pub trait Recorded: Pooled {
    /// Returns a maker of indexes on the recorder.
    fn recorded() -> Box<dyn Maker<Self::Key, Self::Value, Recorder>>;
}

/// The index of a harness of a design.
pub type On<H> = Box<dyn Engine<<H as Harness>::Key, <H as Harness>::Value>>;

impl<C, K, V, P> Harness for Of<C, K, V, P>
where
    C: Chosen,
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    P: Hosts<C::Design, K, V>,
{
    type Key = K;
    type Value = V;
    type Index = Box<dyn Engine<K, V>>;
    type Home = PoolHome<P>;

    const SUMS: bool = C::SUMS;

    fn fresh() -> Fresh<Self> {
        let home = PoolHome::new();
        let index = Self::create(&home, "index").expect("a new root");
        Fresh { index, home }
    }

    fn longest_key() -> usize {
        Self::maker().longest_key()
    }

    fn longest_value() -> usize {
        Self::maker().longest_value()
    }
}

impl<C, K, V, P> Pooled for Of<C, K, V, P>
where
    C: Chosen,
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    P: Hosts<C::Design, K, V>,
{
    type Place = P;

    fn maker() -> Box<dyn Maker<K, V, P::Media>> {
        P::maker(C::design())
    }

    fn create(home: &PoolHome<P>, root: &str) -> Result<Self::Index, Failure> {
        Ok(Self::maker().create(&home.pool, root)?)
    }

    fn open(home: &PoolHome<P>, root: &str) -> Result<Self::Index, Failure> {
        Ok(Self::maker().open(&home.pool, root)?)
    }

    fn close(index: Self::Index) -> Result<(), Failure> {
        Ok(index.close()?)
    }

    fn recovery(index: &Self::Index) -> RecoveryReport {
        index.recovery().clone()
    }
}

impl<C, K, V, P> Recorded for Of<C, K, V, P>
where
    C: Chosen,
    C::Design: Holds<K, V, Recorder, Held: 'static>,
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    P: Hosts<C::Design, K, V>,
{
    fn recorded() -> Box<dyn Maker<K, V, Recorder>> {
        Box::new(C::design())
    }
}
