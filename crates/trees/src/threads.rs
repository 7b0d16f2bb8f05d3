//! Work that several threads share.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, Builder};

/// More threads than any machine has use for.
const MOST: usize = 1024;

/// Runs `worker` on up to `threads` threads, this one among them. The workers share the work out among
/// themselves, so that fewer of them do it too: the system may grant no more.
///
/// The result of each worker; an error for one that panicked.
pub(crate) fn on_threads<R: Send>(
    threads: usize,
    worker: impl Fn() -> R + Sync,
) -> Vec<thread::Result<R>> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(MOST))
            .map_while(|_| Builder::new().spawn_scoped(scope, &worker).ok())
            .collect();
        let mut results = vec![catch_unwind(AssertUnwindSafe(&worker))];
        results.extend(others.into_iter().map(|other| other.join()));
        results
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_is_done_whoever_does_it_and_panics_are_told() {
        for threads in [0, 1, 2, 7] {
            let next = AtomicUsize::new(0);
            let results = on_threads(threads, || {
                // ORDERING: Relaxed; only the number matters.
                std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)))
                    .take_while(|n| *n < 1000)
                    .sum::<usize>()
            });
            assert_eq!(results.len(), threads.max(1));
            let sum: usize = results.into_iter().map(Result::unwrap).sum();
            assert_eq!(sum, 999 * 500);
        }
        let first = AtomicUsize::new(0);
        let results = on_threads(3, || {
            // ORDERING: Relaxed; only the number matters.
            assert!(first.fetch_add(1, Ordering::Relaxed) > 0, "one panics");
        });
        assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1);
    }
}
