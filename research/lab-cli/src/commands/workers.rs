//! Threads that take items from one queue: for work that consists of other processes.

use bristlecone_command::failure::Outcome;
use std::sync::{Mutex, MutexGuard};
use std::thread;

/// Returns how many processes this machine runs at once.
pub fn processors() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Locks, also after a panic in another thread.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Calls `work` on each item, `at_once` of them at a time, in the items' order. A thread whose call
/// failed takes no further items.
///
/// # Errors
/// The first failure, in the order of the threads.
pub fn each<T: Sync>(items: &[T], at_once: usize, work: impl Fn(&T) -> Outcome + Sync) -> Outcome {
    let queue = Mutex::new(items.iter());
    let take = || -> Outcome {
        loop {
            let next = lock(&queue).next();
            match next {
                Some(item) => work(item)?,
                None => return Ok(()),
            }
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(take)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Outcome>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let outcomes: Vec<Outcome> = threads.into_iter().map(join).collect();
        outcomes.into_iter().collect()
    })
}
