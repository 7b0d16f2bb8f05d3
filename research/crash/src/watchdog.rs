//! A watchdog. Code under test that does not end usually runs out of steps, which is a finding. But
//! steps are accesses to persistent memory, and a loop without any would hang the explorer
//! silently.

use bristlecone_pmem::sync::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Seconds that an image, a live operation or a schedule of threads may take. After that the
/// process ends.
pub const PATIENCE: u32 = 60;

/// Runs `work` on this thread. If `beats` stands still for `seconds`, prints the text of `describe`
/// and ends the process with status 1, since a hanging thread cannot be ended otherwise.
pub(crate) fn watched<R>(
    seconds: u32,
    beats: &AtomicU64,
    describe: &(dyn Fn() -> String + Sync),
    work: impl FnOnce() -> R,
) -> R {
    /// Ends the watch, even if `work` panics.
    struct Ends<'a>(&'a (Mutex<bool>, Condvar));
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            *lock(&self.0.0) = true;
            self.0.1.notify_one();
        }
    }
    let ended = (Mutex::new(false), Condvar::new());
    std::thread::scope(|scope| {
        let _ends = Ends(&ended);
        scope.spawn(|| watch(seconds, beats, describe, &ended));
        work()
    })
}

fn watch(
    seconds: u32,
    beats: &AtomicU64,
    describe: &(dyn Fn() -> String + Sync),
    (ended, changed): &(Mutex<bool>, Condvar),
) {
    let (mut last, mut still) = (u64::MAX, 0);
    let mut over = lock(ended);
    while !*over {
        // Counts the seconds that this thread waited instead of reading a clock: a process that was
        // stopped does not hang.
        let (guard, waited) = (changed.wait_timeout(over, Duration::from_secs(1)))
            .unwrap_or_else(PoisonError::into_inner);
        over = guard;
        if !waited.timed_out() {
            continue;
        }
        // ORDERING: Relaxed; only whether it changes matters.
        let now = beats.load(Ordering::Relaxed);
        still = if now == last { still + 1 } else { 0 };
        last = now;
        if still >= seconds && !*over {
            eprintln!("{}", describe());
            std::process::exit(1);
        }
    }
}
