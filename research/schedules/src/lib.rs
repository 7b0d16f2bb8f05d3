//! Atomics for tests of concurrent code: each access is a scheduling point of a model checker
//! (`shuttle`).
//!
//! They wrap the standard atomics without a change of size, so that layout assertions hold in tests
//! too. Outside [`explore`] they only read a thread-local flag. The explorer runs its threads one
//! at a time on one processor, so it finds wrong interleavings but no missing memory orderings.
//! Comments at the accesses argue those.
//!
//! In the product's crates it is only a dependency of tests.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{self, Ordering};
use std::time::Duration;

thread_local! {
    /// True on the thread of the explorer while it runs.
    static EXPLORING: Cell<bool> = const { Cell::new(false) };
}

/// Lets the explorer run another thread before the access that follows.
#[inline]
fn point() {
    if EXPLORING.get() {
        // This is a plain switch, since the explorer does not model time.
        shuttle::thread::sleep(Duration::ZERO);
    }
}

/// Tells the explorer that this thread waits. Returns false outside of [`explore`].
pub fn give_way() -> bool {
    let exploring = EXPLORING.get();
    if exploring {
        shuttle::thread::yield_now();
    }
    exploring
}

/// Runs `scenario` under `schedules` random schedules, and under as many in which one thread at a
/// time runs far ahead of the others, so that a whole split fits between two loads of a reader. The
/// scenario must start its threads with `shuttle::thread`.
pub fn explore(schedules: usize, scenario: impl Fn() + Send + Sync + 'static) {
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            EXPLORING.set(false);
        }
    }
    let _reset = Reset;
    EXPLORING.set(true);
    let mut config = shuttle::Config::new();
    config.stack_size = 256 << 10;
    let scenario = Arc::new(scenario);
    let shared = Arc::clone(&scenario);
    let scheduler = RandomScheduler::new(schedules);
    shuttle::Runner::new(scheduler, config.clone()).run(move || shared());
    let scheduler = PctScheduler::new(3, schedules);
    shuttle::Runner::new(scheduler, config).run(move || scenario());
}

/// Runs `part` of a scenario without scheduling points. It is for the set-up, before threads start,
/// so that schedules are not spent on it.
pub fn unexplored<R>(part: impl FnOnce() -> R) -> R {
    let exploring = EXPLORING.replace(false);
    let result = part();
    EXPLORING.set(exploring);
    result
}

macro_rules! traced {
    ($name:ident, $value:ty $(, $param:ident)?) => {
        /// As the standard atomic, but each access is a scheduling point.
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name$(<$param>)?(atomic::$name$(<$param>)?);

        impl$(<$param>)? $name$(<$param>)? {
            /// As the standard atomic's.
            pub const fn new(value: $value) -> Self {
                Self(atomic::$name::new(value))
            }

            /// As the standard atomic's.
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                point();
                self.0.load(order)
            }

            /// As the standard atomic's.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }

            /// As the standard atomic's.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(current, new, success, failure)
            }
        }
    };
}

traced!(AtomicU32, u32);
traced!(AtomicU64, u64);
traced!(AtomicPtr, *mut T, T);
