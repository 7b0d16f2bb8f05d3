//! The harness of every design: [`Of`] chooses a design, kinds of keys and values, and where its pool is.

use super::home::{File, Place};
use super::recorder::Recorder;
use super::{
    Failure, Fresh, Harness, PoolHome, Pooled, Recorded, RecordedSuite, Suite, TestKey, TestValue,
};
use bristlecone_designs::designs::{AnyDesign, Holds, Wide, WideDesign};
use bristlecone_designs::engines::{Compiled, Engine, Maker};
use bristlecone_designs::{Design, RecoveryReport, Stored, StoredKey};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{Auto, Dram, Journal, Mapped};
use std::cell::RefCell;
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

/// A suite's choice: design `C` from `K` to `V` at the place `P`. Its scenarios run [`On`] such an index.
pub struct Of<C, K: ?Sized, V: ?Sized, P>(PhantomData<fn(&C, &K, &V, P)>);

/// The harness of whatever design the thread [has chosen](Suite::choose). So a scenario is compiled once
/// for all designs from `K` to `V` at the place `P`.
pub struct Any<K: ?Sized, V: ?Sized, P>(PhantomData<fn(&K, &V, P)>);

/// The index of a harness of a design.
pub type On<H> = Box<dyn Engine<<H as Harness>::Key, <H as Harness>::Value>>;

/// Returns a maker of a design's indexes on the medium `M`.
type Makes<K, V, M> = fn() -> Box<dyn Maker<K, V, M>>;

/// A thread's choice of a design.
struct Choice<K: StoredKey + ?Sized, V: Stored + ?Sized, P: Place> {
    maker: Makes<K, V, P::Media>,
    recorded: Option<Makes<K, V, Recorder>>,
    sums: bool,
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, P: Place> Clone for Choice<K, V, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, P: Place> Copy for Choice<K, V, P> {}

thread_local! {
    /// The [`Choice`] of this thread.
    static CHOICE: RefCell<Option<Box<dyn std::any::Any>>> = const { RefCell::new(None) };
}

impl<K, V, P> Choice<K, V, P>
where
    K: StoredKey + ?Sized + 'static,
    V: Stored + ?Sized + 'static,
    P: Place,
{
    fn choose(self) {
        CHOICE.with(|choice| *choice.borrow_mut() = Some(Box::new(self)));
    }

    fn chosen() -> Self {
        let chosen = CHOICE.with(|choice| {
            let choice = choice.borrow();
            choice.as_ref().and_then(|any| any.downcast_ref().copied())
        });
        chosen.expect("the thread that runs a scenario chooses a design; its threads get the index")
    }
}

impl<C, K, V, P> Suite for Of<C, K, V, P>
where
    C: Chosen,
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    P: Hosts<C::Design, K, V>,
{
    type Harness = Any<K, V, P>;

    fn choose() {
        let choice = Choice::<K, V, P> {
            maker: || P::maker(C::design()),
            recorded: None,
            sums: C::SUMS,
        };
        choice.choose();
    }
}

impl<C, K, V, P> RecordedSuite for Of<C, K, V, P>
where
    C: Chosen,
    C::Design: Holds<K, V, Recorder, Held: 'static>,
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    P: Hosts<C::Design, K, V>,
{
    fn choose_recorded() {
        let choice = Choice::<K, V, P> {
            maker: || P::maker(C::design()),
            recorded: Some(|| Box::new(C::design())),
            sums: C::SUMS,
        };
        choice.choose();
    }
}

impl<K, V, P> Harness for Any<K, V, P>
where
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    P: Place,
{
    type Key = K;
    type Value = V;
    type Index = Box<dyn Engine<K, V>>;
    type Home = PoolHome<P>;

    fn sums() -> bool {
        Choice::<K, V, P>::chosen().sums
    }

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

impl<K, V, P> Pooled for Any<K, V, P>
where
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    P: Place,
{
    type Place = P;

    fn maker() -> Box<dyn Maker<K, V, P::Media>> {
        (Choice::<K, V, P>::chosen().maker)()
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

impl<K, V, P> Recorded for Any<K, V, P>
where
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    P: Place,
{
    fn recorded() -> Box<dyn Maker<K, V, Recorder>> {
        let recorded = Choice::<K, V, P>::chosen().recorded;
        recorded.expect("a suite that records")()
    }
}
