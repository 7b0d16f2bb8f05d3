//! Locking without poison, and without ever blocking a simulated thread.
//!
//! Simulated threads are coroutines of one thread of the system (`media::sim`). One that
//! waits must let the others run instead of blocking them all: while a schedule runs, a *give-way*
//! function is set on the thread, and whatever waits calls it between two tries.

use crossbeam_epoch as epoch;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

#[cfg(feature = "explore")]
thread_local! {
    static GIVE_WAY: Cell<Option<fn()>> = const { Cell::new(None) };
}

thread_local! {
    static WORKER: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Returns this thread's own number, counted from 0. It picks the counters and lists that threads
/// do not share.
#[inline]
pub fn worker() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    WORKER.get().unwrap_or_else(|| {
        // ORDERING: Relaxed; only the number matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        WORKER.set(Some(number));
        number
    })
}

/// Makes this thread the worker of that number until the next call: for one that does several
/// simulated threads' work.
#[cfg(feature = "explore")]
pub fn set_worker(number: usize) {
    WORKER.set(Some(number));
}

/// Sets what simulated threads on this thread call while they wait; `None` where none run.
#[cfg(feature = "explore")]
pub fn set_give_way(give_way: Option<fn()>) {
    GIVE_WAY.set(give_way);
}

/// Returns true on a thread that runs simulated ones in turns. State of the thread, such as a pin,
/// may then belong to another of them.
#[cfg(feature = "explore")]
pub fn simulates() -> bool {
    GIVE_WAY.get().is_some()
}

/// Returns true on a thread that runs simulated ones in turns: never, without the feature
/// `explore`.
#[cfg(not(feature = "explore"))]
#[inline(always)]
pub fn simulates() -> bool {
    false
}

/// Lets other simulated threads run. Returns false where there are none, as always without the
/// feature `explore`.
#[cfg(not(feature = "explore"))]
#[inline(always)]
pub fn give_way() -> bool {
    false
}

/// Lets other simulated threads run. Returns false where there are none.
#[cfg(feature = "explore")]
pub fn give_way() -> bool {
    let give_way = GIVE_WAY.get();
    if let Some(give_way) = give_way {
        give_way();
    }
    give_way.is_some()
}

/// Turns of [`pause`] in which a thread yields before it begins to sleep.
const SPINS: usize = 12;
/// The first sleep.
const NAP: Duration = Duration::from_micros(100);
/// Turns after which a sleep is twice as long.
const DOUBLED: usize = 32;
/// The longest sleep.
const MAX_NAP: Duration = Duration::from_millis(20);
/// The longest sleep of a simulated thread: a useless wait must be found soon.
const MAX_SIMULATED_NAP: Duration = Duration::from_millis(1);

/// Turns of [`pause`] that take some six seconds: for resources that come back when other threads
/// have left, which may be slow, but not for ever. Grace periods are the whole process's: they end
/// late where a reader of some other structure is late.
pub const PATIENT_TURNS: usize = 512;

/// Waits in turn `turn` (from 0) of a loop that may take long: yields at first, then sleeps, longer
/// and longer.
pub fn pause(turn: usize) {
    let simulated = give_way();
    let Some(naps) = turn.checked_sub(SPINS) else {
        if !simulated {
            std::thread::yield_now();
        }
        return;
    };
    // Simulated threads sleep too. Other simulations in this process share their grace periods, and
    // wait for a processor where there are too few.
    let longest = if simulated {
        MAX_SIMULATED_NAP
    } else {
        MAX_NAP
    };
    std::thread::sleep(longest.min(NAP * (1 << (naps / DOUBLED).min(10))));
}

/// How often the epoch is advanced, so that retired blocks can be used again.
const STEPS: usize = 4096;
/// How often after that, a tenth of a millisecond apart: where there are more threads than
/// processors, one may be waiting for its turn in the middle of a search.
const NAPS: usize = 512;

/// Waits until blocks retired so far are free, if readers leave soon. Returns true if they are. The
/// caller should not be pinned.
pub fn wait_for_readers() -> bool {
    let freed = Arc::new(AtomicBool::new(false));
    let mark = Arc::clone(&freed);
    // ORDERING (both): Relaxed; a hint.
    epoch::pin().defer(move || mark.store(true, Ordering::Relaxed));
    for step in 0..STEPS + NAPS {
        epoch::pin().flush();
        if freed.load(Ordering::Relaxed) {
            return true;
        }
        if step < STEPS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    false
}

/// Locks, ignoring poison: the data behind these locks is whole between statements, so no panic
/// leaves it half-changed.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => lock_contended(mutex),
    }
}

#[cold]
fn lock_contended<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    while give_way() {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
    }
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    thread_local! {
        static HELD: Cell<Option<MutexGuard<'static, u32>>> = const { Cell::new(None) };
        static TURNS: Cell<u32> = const { Cell::new(0) };
    }

    #[test]
    fn a_simulated_thread_gives_way_until_the_holder_is_done() {
        static MUTEX: Mutex<u32> = Mutex::new(7);
        HELD.set(Some(lock(&MUTEX)));
        assert!(!give_way(), "no schedule runs");
        set_give_way(Some(|| {
            TURNS.set(TURNS.get() + 1);
            if TURNS.get() == 3 {
                // The other simulated thread gets to its end.
                HELD.set(None);
            }
        }));
        assert_eq!(*lock(&MUTEX), 7);
        set_give_way(None);
        assert_eq!(TURNS.get(), 3, "it waited as long as the lock was held");
    }

    #[test]
    fn a_panic_under_the_lock_does_not_keep_others_out() {
        let mutex = Arc::new(Mutex::new(1));
        let shared = Arc::clone(&mutex);
        let ended = std::thread::spawn(move || {
            let _guard = lock(&shared);
            std::panic::panic_any("under the lock");
        });
        assert!(ended.join().is_err());
        assert!(mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 1);
    }
}
