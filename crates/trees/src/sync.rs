//! The atomics that concurrent code in this crate uses: the standard ones, except in this crate's
//! own tests, where each access is also a scheduling point of the model checker.
//!
//! The test types wrap the standard ones without changing their size, so that layout assertions
//! hold in tests too. Outside [`explore`] they only add a look at a thread-local flag. The explorer
//! runs its threads one at a time on one processor: it finds wrong interleavings, not missing
//! memory orderings. Those are argued where they are written.

#[cfg(not(test))]
pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

#[cfg(test)]
pub(crate) use model::{AtomicPtr, AtomicU32, AtomicU64, explore, unexplored};

use bristlecone_pmem::sync::lock;
pub(crate) use bristlecone_pmem::sync::wait_for_readers;
use crossbeam_utils::Backoff;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// One turn of a loop that waits for another thread: spins first, then gives way.
#[inline]
pub(crate) fn wait(backoff: &Backoff) {
    #[cfg(test)]
    if model::give_way() {
        return;
    }
    if bristlecone_pmem::sync::give_way() {
        return; // a simulated thread lets the others run
    }
    backoff.snooze();
}

/// Whether anything was retired that may only wait for readers to leave.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    some: AtomicBool,
    /// How often readers were waited for.
    waits: AtomicUsize,
    turn: Mutex<()>,
}

impl Retired {
    /// Notes that something was.
    #[inline]
    pub fn note(&self) {
        // ORDERING: Relaxed (both); a hint. Stored to but once, so that threads do not meet here.
        if !self.some.load(Ordering::Relaxed) {
            self.some.store(true, Ordering::Relaxed);
        }
    }

    /// Where space was refused: sees that what was retired is free, if readers leave soon, or waits for
    /// another thread that is seeing to that. False if there is nothing. The caller holds no lock.
    pub fn wait(&self) -> bool {
        // ORDERING: Relaxed (all); another thread's wait is seen once its turn is over, by the lock.
        let before = self.waits.load(Ordering::Relaxed);
        let _turn = lock(&self.turn);
        if self.waits.load(Ordering::Relaxed) != before {
            return true;
        }
        let some = self.some.swap(false, Ordering::Relaxed);
        if some {
            wait_for_readers();
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        some
    }
}

#[cfg(test)]
mod model {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};
    use std::cell::Cell;
    use std::sync::Arc;
    use std::sync::atomic::{self, Ordering};
    use std::time::Duration;

    thread_local! {
        /// True on the thread that runs the explorer, while it does.
        static EXPLORING: Cell<bool> = const { Cell::new(false) };
    }

    /// Lets the explorer run another thread before the access that follows.
    #[inline]
    fn point() {
        if EXPLORING.get() {
            // A plain switch: the explorer knows no time.
            shuttle::thread::sleep(Duration::ZERO);
        }
    }

    /// Tells the explorer that this thread waits; false outside of it.
    pub(super) fn give_way() -> bool {
        let exploring = EXPLORING.get();
        if exploring {
            shuttle::thread::yield_now();
        }
        exploring
    }

    /// Runs `scenario` under `schedules` random schedules, and as many in which one thread at a time
    /// runs far ahead of the others (what it takes to get a whole split between two loads of a
    /// reader). Threads inside it come from `shuttle::thread`.
    pub(crate) fn explore(schedules: usize, scenario: impl Fn() + Send + Sync + 'static) {
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

    /// Runs `part` of a scenario without scheduling points: setting up, before threads start, so
    /// that schedules are not spent on it.
    pub(crate) fn unexplored<R>(part: impl FnOnce() -> R) -> R {
        let exploring = EXPLORING.replace(false);
        let result = part();
        EXPLORING.set(exploring);
        result
    }

    macro_rules! traced {
        ($name:ident, $value:ty $(, $param:ident)?) => {
            #[repr(transparent)]
            #[derive(Debug)]
            pub(crate) struct $name$(<$param>)?(atomic::$name$(<$param>)?);

            #[allow(dead_code, reason = "the same interface for every width")]
            impl$(<$param>)? $name$(<$param>)? {
                pub(crate) const fn new(value: $value) -> Self {
                    Self(atomic::$name::new(value))
                }

                #[inline]
                pub(crate) fn load(&self, order: Ordering) -> $value {
                    point();
                    self.0.load(order)
                }

                #[inline]
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    point();
                    self.0.store(value, order);
                }

                #[inline]
                pub(crate) fn compare_exchange(
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
}
