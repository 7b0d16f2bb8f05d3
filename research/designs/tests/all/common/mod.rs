//! The scenarios that every index design passes.
//!
//! A harness says how to make a fresh index ([`Harness`]) and, if it lives in a pool, how to open
//! it again ([`Pooled`]). [`scenario_suite!`] then makes a `#[test]` of every scenario whose
//! capability the design claims:
//!
//! ```ignore
//! scenario_suite!(numbers_256, Of<Lb<1>, u64, u64, File>: [base, reverse, bulk, pooled, durable]);
//! ```
//!
//! [`Of`] chooses any [`Design`](bristlecone_designs::Design); other than default options come from
//! a [`Chosen`] of the test's own. Scenarios are compiled once for all designs of the same kinds of
//! keys and values ([`design::Any`]). If the library has engines of these kinds, the index is one
//! of them, which are compiled once for all tests; otherwise it is compiled for the test.
//!
//! | capability | requires of the harness | scenarios |
//! | --- | --- | --- |
//! | `base` | [`Harness`] | stress, boundary keys, scans during splits, emptied leaves, batches |
//! | `forward_only` | no `ReverseScan` | the model |
//! | `reverse` | `Index: ReverseScan` | the model and scans during splits, downwards too |
//! | `bulk` | `Index: BulkLoad` | bulk load |
//! | `pooled` | [`Pooled`] | full pool, freed space, several roots, large values |
//! | `pooled_bulk` | both | bulk load into a full pool |
//! | `durable` | [`Pooled`] in a file | reopening, crash images, read-only opens |
//! | `durable_bulk` | both | bulk load, then reopening |
//! | `compact` | [`Pooled`] in a file | compaction while other threads work |
//! | `compact_memory` | [`Pooled`] | compaction between batches of work |
//! | `hostile` | [`Pooled`] in a file | damaged pool files |
//! | `power_cuts` | [`Recorded`] | power cuts in the middle of operations |

// Each test binary uses only the parts that its designs need.
#![allow(dead_code, unused_imports, unused_macros)]

pub mod counted;
pub mod design;
pub mod history;
pub mod home;
pub mod kinds;
pub mod recorder;
pub mod reference;
pub mod scenarios;

use bristlecone_designs::engines::Maker;
use bristlecone_designs::{OrderedIndex, RecoveryReport};
use bristlecone_pmem::media::Auto;
pub use design::{Chosen, File, Journal, Memory, Of, On, WideOf};
pub use home::{Place, PoolHome};
pub use kinds::{Rng, TestKey, TestValue};
use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Error of a harness that cannot do what is asked.
pub type Failure = Box<dyn Error>;

/// How the suite makes an index of one design.
pub trait Harness: 'static {
    /// Borrowed form of the keys.
    type Key: TestKey + ?Sized;
    /// Borrowed form of the values.
    type Value: TestValue + ?Sized;
    /// The index itself.
    type Index: OrderedIndex<Self::Key, Self::Value> + 'static;
    /// Holds everything that must outlive the index (a pool and its folder).
    type Home: Send + Sync;

    /// Returns true if byte strings have checksums.
    fn sums() -> bool {
        true
    }

    /// Returns an empty index in a home of its own.
    fn fresh() -> Fresh<Self>;

    /// Returns the length of its longest byte-string key.
    fn longest_key() -> usize {
        kinds::MAX_KEY
    }

    /// Returns the length of its longest byte-string value.
    fn longest_value() -> usize {
        bristlecone_designs::MAX_VALUE
    }
}

/// The subject of a suite of scenarios.
pub trait Suite {
    /// The harness that the scenarios are compiled for.
    type Harness: Harness;

    /// Makes this thread's indexes those of the suite.
    fn choose() {}
}

/// A suite whose design can be put on the medium that [records](recorder::Recorder) what is
/// durable.
pub trait RecordedSuite: Suite {
    /// As [`Suite::choose`], for the recorder too.
    fn choose_recorded();
}

/// An index and its home, dropped in this order.
pub struct Fresh<H: Harness + ?Sized> {
    /// The index.
    pub index: H::Index,
    /// Home of the index.
    pub home: H::Home,
}

/// A design whose indexes live in a pool.
pub trait Pooled: Harness {
    /// Returns the place of the pools.
    fn place() -> Place;

    /// Makes a pool that may grow as far as the system allows.
    fn home() -> PoolHome {
        PoolHome::new(Self::place())
    }

    /// Makes a pool of at most `bytes` bytes.
    fn home_of(bytes: u64) -> PoolHome {
        PoolHome::with_capacity(Self::place(), bytes)
    }

    /// Returns a maker of the indexes.
    fn maker() -> Box<dyn Maker<Self::Key, Self::Value, Auto>>;

    /// Makes an empty index in root `root`.
    fn create(home: &PoolHome, root: &str) -> Result<Self::Index, Failure>;

    /// Opens the root `root`.
    fn open(home: &PoolHome, root: &str) -> Result<Self::Index, Failure>;

    /// Closes cleanly.
    fn close(index: Self::Index) -> Result<(), Failure>;

    /// Returns the report of the last opening.
    fn recovery(index: &Self::Index) -> RecoveryReport;
}

/// A harness of designs that can be put on the recorder.
pub trait Recorded: Pooled {
    /// Returns a maker of indexes on the recorder.
    fn recorded() -> Box<dyn Maker<Self::Key, Self::Value, recorder::Recorder>>;
}

/// Returns the time after which a scenario counts as hung: 300 s, or
/// `BRISTLECONE_PATIENCE_SECONDS`, for sanitizers and busy machines.
fn patience() -> Duration {
    let seconds = std::env::var("BRISTLECONE_PATIENCE_SECONDS");
    Duration::from_secs(seconds.map_or(300, |seconds| seconds.parse().unwrap()))
}

/// Runs `scenario`, after `choose`, in a thread. A scenario that takes longer than [`patience`]
/// fails, so that it does not block the run.
pub fn within_patience(choose: fn(), scenario: fn()) {
    let patience = patience();
    let (done, finished) = mpsc::channel();
    let worker = thread::spawn(move || {
        // Dropped, and so disconnected, when the scenario ends or panics.
        let _done: mpsc::Sender<()> = done;
        choose();
        scenario();
    });
    if finished.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("the scenario hung: no end after {patience:?}");
    }
    if let Err(panic) = worker.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Returns how long a timed scenario works: 1 s if thorough, else 0.3 s; or
/// `BRISTLECONE_STRESS_SECONDS`.
pub fn stress_time() -> Duration {
    let usual = if cfg!(feature = "thorough") { 1.0 } else { 0.3 };
    let seconds = std::env::var("BRISTLECONE_STRESS_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok());
    Duration::from_secs_f64(seconds.unwrap_or(usual))
}

/// Makes one `#[test]` per scenario for one design; see the module's head.
macro_rules! scenario_suite {
    ($name:ident, $harness:ty: [$($capability:ident),* $(,)?]) => {
        mod $name {
            use super::*;
            $( $crate::common::scenario_tests!($capability, $harness); )*
        }
    };
}

macro_rules! scenario_tests {
    (base, $h:ty) => {
        $crate::common::scenario_tests!(@ $h:
            stress_histories_are_linearizable => stress::histories_are_linearizable,
            boundary_keys => boundary::every_boundary_key,
            boundary_shared_prefixes => boundary::neighbours_and_long_prefixes,
            boundary_odd_ranges => boundary::odd_ranges,
            scans_ascending_during_splits => splits::ascending,
            emptied_leaves_go => emptied::leaves_are_given_back,
            batches => batches::answers_in_order
        );
    };
    (forward_only, $h:ty) => {
        $crate::common::scenario_tests!(@ $h: model_forward => model::forward);
    };
    (reverse, $h:ty) => {
        $crate::common::scenario_tests!(@ $h:
            model_both_directions => model::both_directions,
            scans_descending_during_splits => splits::descending,
            boundary_odd_ranges_descending => boundary::odd_ranges_descending
        );
    };
    (bulk, $h:ty) => {
        $crate::common::scenario_tests!(@ $h:
            bulk_load_then_work => bulk::load_then_work,
            bulk_load_fills => bulk::fills_are_kept,
            bulk_load_refuses => bulk::bad_input_is_refused
        );
    };
    (pooled, $h:ty) => {
        $crate::common::scenario_tests!(@ $h:
            full_pool => full_pool::refuses_and_goes_on,
            full_pool_concurrent => full_pool::many_threads,
            space_comes_back => emptied::space_is_reused,
            several_roots => roots::do_not_mix,
            large_values => values::large,
            values_change_size => values::change_size
        );
    };
    (pooled_bulk, $h:ty) => {
        $crate::common::scenario_tests!(@ $h: bulk_load_full_pool => bulk::full_pool);
    };
    (durable, $h:ty) => {
        $crate::common::scenario_tests!(@ $h:
            reopen_clean => reopen::clean,
            reopen_crash_images => reopen::crash_images,
            reopen_empty => reopen::empty,
            reopen_after_stress => reopen::after_concurrent_work,
            several_roots_reopen => roots::reopen,
            read_only_clean => read_only::clean,
            read_only_unclean => read_only::unclean,
            full_pool_reopen => full_pool::reopen
        );
    };
    (durable_bulk, $h:ty) => {
        $crate::common::scenario_tests!(@ $h: bulk_load_reopen => bulk::reopen);
    };
    (compact, $h:ty) => {
        $crate::common::scenario_tests!(@ $h: compacted_while_others_work => compact::others_work);
    };
    (compact_memory, $h:ty) => {
        $crate::common::scenario_tests!(@ $h: compacted_between_batches => compact::between_batches);
    };
    (hostile, $h:ty) => {
        $crate::common::scenario_tests!(@ $h:
            hostile_not_at_all => hostile::undamaged_samples_are_served,
            hostile_flips_crashed_reading => hostile::flips_in_a_crash_image_read_only,
            hostile_flips_closed_reading => hostile::flips_in_a_closed_pool_read_only,
            hostile_flips_crashed_writing => hostile::flips_in_a_crash_image_writing,
            hostile_flips_closed_writing => hostile::flips_in_a_closed_pool_writing,
            hostile_lost_pages => hostile::lost_pages,
            hostile_two_moments => hostile::images_of_two_moments,
            hostile_cut_pools => hostile::a_pool_cut_at_any_page_is_refused
        );
    };
    (power_cuts, $h:ty) => {
        $crate::common::scenario_tests!(@ $h, RecordedSuite::choose_recorded:
            power_cuts_random_changes => power_cuts::random_changes,
            power_cuts_runs => power_cuts::runs,
            power_cuts_batches => power_cuts::batches,
            power_cuts_load_and_close => power_cuts::load_and_close
        );
    };
    (@ $h:ty: $($test:ident => $module:ident :: $scenario:ident),*) => {
        $crate::common::scenario_tests!(@ $h, Suite::choose: $($test => $module::$scenario),*);
    };
    (@ $h:ty, $suite:ident :: $choose:ident: $($test:ident => $module:ident :: $scenario:ident),*) => {$(
        #[test]
        fn $test() {
            $crate::common::within_patience(
                <$h as $crate::common::$suite>::$choose,
                $crate::common::scenarios::$module::$scenario::<<$h as $crate::common::Suite>::Harness>,
            );
        }
    )*};
}

pub(crate) use {scenario_suite, scenario_tests};
