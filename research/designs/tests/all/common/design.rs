//! The harness of every design: [`Of`] chooses a design, kinds of keys and values, and where its
//! pool is.

use super::home::Place;
use super::recorder::Recorder;
use super::{
    Failure, Fresh, Harness, PoolHome, Pooled, Recorded, RecordedSuite, Suite, TestKey, TestValue,
};
use bristlecone_designs::designs::{AnyDesign, Holds, Wide, WideDesign};
use bristlecone_designs::engines::{Compiled, Engine, Maker};
use bristlecone_designs::{Design, RecoveryReport, Stored, StoredKey};
use bristlecone_pmem::media::Auto;
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

/// Kinds of keys, with values of kind `V`, that the design `D` can hold.
pub trait KeysOf<D, V: ToOwned + ?Sized>: TestKey {
    /// Returns a maker of such indexes.
    fn maker(design: D) -> Box<dyn Maker<Self, V, Auto>>;
}

macro_rules! kinds {
    // Compiled in the library, once for all tests.
    ($($key:ty => $value:ty),*; in the test: $($other_key:ty => $other_value:ty),*) => {
        $(impl<D: Into<AnyDesign>> KeysOf<D, $value> for $key {
            fn maker(design: D) -> Box<dyn Maker<Self, $value, Auto>> {
                <Auto as Compiled<$key, $value>>::maker_of(design.into()).expect("any design")
            }
        })*
        $(impl<D: Holds<$other_key, $other_value, Auto, Held: 'static>> KeysOf<D, $other_value> for $other_key {
            fn maker(design: D) -> Box<dyn Maker<Self, $other_value, Auto>> {
                Box::new(design)
            }
        })*
    };
}

kinds!(u64 => u64, [u8] => [u8]; in the test: u64 => [u8], [u8] => u64, u128 => u128);

/// A [`Place`], as a type.
pub trait Put: 'static {
    /// The place.
    const PLACE: Place;
}

macro_rules! put {
    ($($name:ident),*) => {$(
        #[doc = concat!("[`Place::", stringify!($name), "`]")]
        pub struct $name;

        impl Put for $name {
            const PLACE: Place = Place::$name;
        }
    )*};
}

put!(File, Journal, Memory);

/// A suite's choice: design `C` from `K` to `V` at the place `P`. Its scenarios run [`On`] such an
/// index.
pub struct Of<C, K: ?Sized, V: ?Sized, P>(PhantomData<fn(&C, &K, &V, P)>);

/// The harness of whatever design and place the thread [has chosen](Suite::choose). So a scenario
/// is compiled once for all of them.
pub struct Any<K: ?Sized, V: ?Sized>(PhantomData<fn(&K, &V)>);

/// The index of a harness of a design.
pub type On<H> = Box<dyn Engine<<H as Harness>::Key, <H as Harness>::Value>>;

/// Returns a maker of a design's indexes on the medium `M`.
type Makes<K, V, M> = fn() -> Box<dyn Maker<K, V, M>>;

/// A thread's choice of a design.
struct Choice<K: StoredKey + ?Sized, V: Stored + ?Sized> {
    place: Place,
    maker: Makes<K, V, Auto>,
    recorded: Option<Makes<K, V, Recorder>>,
    sums: bool,
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized> Clone for Choice<K, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized> Copy for Choice<K, V> {}

thread_local! {
    /// The [`Choice`] of this thread.
    static CHOICE: RefCell<Option<Box<dyn std::any::Any>>> = const { RefCell::new(None) };
}

impl<K, V> Choice<K, V>
where
    K: StoredKey + ?Sized + 'static,
    V: Stored + ?Sized + 'static,
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
    K: KeysOf<C::Design, V> + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    P: Put,
{
    type Harness = Any<K, V>;

    fn choose() {
        let choice = Choice::<K, V> {
            place: P::PLACE,
            maker: || K::maker(C::design()),
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
    K: KeysOf<C::Design, V> + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
    P: Put,
{
    fn choose_recorded() {
        let choice = Choice::<K, V> {
            place: P::PLACE,
            maker: || K::maker(C::design()),
            recorded: Some(|| Box::new(C::design())),
            sums: C::SUMS,
        };
        choice.choose();
    }
}

impl<K, V> Harness for Any<K, V>
where
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
{
    type Key = K;
    type Value = V;
    type Index = Box<dyn Engine<K, V>>;
    type Home = PoolHome;

    fn sums() -> bool {
        Choice::<K, V>::chosen().sums
    }

    fn fresh() -> Fresh<Self> {
        let home = Self::home();
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

impl<K, V> Pooled for Any<K, V>
where
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
{
    fn place() -> Place {
        Choice::<K, V>::chosen().place
    }

    fn maker() -> Box<dyn Maker<K, V, Auto>> {
        (Choice::<K, V>::chosen().maker)()
    }

    fn create(home: &PoolHome, root: &str) -> Result<Self::Index, Failure> {
        Ok(Self::maker().create(&home.pool, root)?)
    }

    fn open(home: &PoolHome, root: &str) -> Result<Self::Index, Failure> {
        Ok(Self::maker().open(&home.pool, root)?)
    }

    fn close(index: Self::Index) -> Result<(), Failure> {
        Ok(index.close()?)
    }

    fn recovery(index: &Self::Index) -> RecoveryReport {
        index.recovery().clone()
    }
}

impl<K, V> Recorded for Any<K, V>
where
    K: TestKey + StoredKey + ?Sized,
    V: TestValue + Stored + ?Sized,
{
    fn recorded() -> Box<dyn Maker<K, V, Recorder>> {
        let recorded = Choice::<K, V>::chosen().recorded;
        recorded.expect("a suite that records")()
    }
}
