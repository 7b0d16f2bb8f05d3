//! Work that several threads share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, Builder};

/// More threads than any machine has use for.
const MOST: usize = 1024;

/// Runs `worker` on up to `threads` threads, this one among them. The workers share the work out among
/// themselves, so that fewer of them do it too: the system may grant no more. One thread alone runs it as if
/// it were called.
///
/// What each worker made.
///
/// # Errors
/// The first worker's that failed; `stopped` of a message if one of several panicked.
pub(crate) fn on_threads<R: Send, E: Send>(
    threads: usize,
    worker: impl Fn() -> Result<R, E> + Sync,
    stopped: impl Fn(String) -> E,
) -> Result<Vec<R>, E> {
    if threads <= 1 {
        return Ok(vec![worker()?]);
    }
    let results = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(MOST))
            .map_while(|_| Builder::new().spawn_scoped(scope, &worker).ok())
            .collect();
        let mut results = vec![catch_unwind(AssertUnwindSafe(&worker))];
        results.extend(others.into_iter().map(|other| other.join()));
        results
    });
    (results.into_iter())
        .map(|result| result.unwrap_or_else(|_| Err(stopped("a recovery thread stopped".into()))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_is_done_whoever_does_it_and_panics_are_told() {
        for threads in [0, 1, 2, 7] {
            let next = AtomicUsize::new(0);
            let worker = || {
                // ORDERING: Relaxed; only the number matters.
                let mine = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
                Ok(mine.take_while(|n| *n < 1000).sum::<usize>())
            };
            let sums = on_threads(threads, worker, |what| what).unwrap();
            assert_eq!(sums.len(), threads.max(1));
            assert_eq!(sums.into_iter().sum::<usize>(), 999 * 500);
        }
        let first = AtomicUsize::new(0);
        let worker = || {
            // ORDERING: Relaxed; only the number matters.
            assert!(first.fetch_add(1, Ordering::Relaxed) > 0, "one panics");
            Ok(())
        };
        let error = on_threads(3, worker, |what| what).unwrap_err();
        assert_eq!(error, "a recovery thread stopped");
    }
}
