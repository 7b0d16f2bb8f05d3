//! Work that several threads share.

use bristlecone_pmem::media::Media;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{self, Builder};

/// Maximum number of threads: more than any machine has use for.
const MAX_THREADS: usize = 1024;

/// Runs `worker` on up to `threads` threads, this one among them. The workers share the work, so
/// that fewer of them finish it too: the system may grant no more. A single thread runs it as an
/// ordinary call. Where `pm` simulates threads, two stand for several, and this one comes last,
/// when all work may be done.
///
/// Returns each worker's result.
///
/// # Errors
/// The error of the first worker that failed, or `stopped` of a message if one of several panicked.
pub fn on_threads<M: Media, R: Send, E: Send>(
    pm: &M,
    threads: usize,
    worker: impl Fn() -> Result<R, E> + Sync,
    stopped: impl Fn(String) -> E,
) -> Result<Vec<R>, E> {
    if threads <= 1 {
        return Ok(vec![worker()?]);
    }
    let mut first = None;
    if pm.run_as_worker(&mut || first = Some(worker())) {
        return first.into_iter().chain([worker()]).collect();
    }
    let results = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(MAX_THREADS))
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
    use bristlecone_pmem::media::MediaOptions;
    use bristlecone_pmem::media::sim::{EventKind, Simulation};
    use bristlecone_pmem::media::{Dram, Sim};
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn medium<M: Media>() -> M {
        M::open(Path::new("threads"), 1 << 12, &MediaOptions::default()).unwrap()
    }

    #[test]
    fn a_simulated_worker_does_all_and_fences_for_itself() {
        let sim = Simulation::new(1 << 12);
        let _attached = sim.attach();
        let pm: Sim = medium();
        let order = AtomicUsize::new(0);
        let worker = || {
            pm.fence();
            // ORDERING: Relaxed; one thread.
            Ok::<_, ()>(order.fetch_add(1, Ordering::Relaxed))
        };
        for (by, expected) in [(Some(2), [2, 7]), (None, [7, 7])] {
            sim.start_trace();
            sim.set_thread(7);
            sim.set_worker(by);
            assert_eq!(on_threads(&pm, 4, worker, |_| ()).unwrap().len(), 2);
            let fences = sim.take_trace().into_iter();
            let fences = fences.filter(|event| event.kind == EventKind::Fence);
            let threads: Vec<u8> = fences.map(|event| event.thread).collect();
            assert_eq!(threads, expected);
        }
        assert_eq!(order.into_inner(), 4);
    }

    #[test]
    fn all_is_done_whoever_does_it_and_panics_are_told() {
        for threads in [0, 1, 2, 7] {
            let next = AtomicUsize::new(0);
            let worker = || {
                // ORDERING: Relaxed; only the number matters.
                let mine = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
                Ok(mine.take_while(|n| *n < 1000).sum::<usize>())
            };
            let sums = on_threads(&medium::<Dram>(), threads, worker, |what| what).unwrap();
            assert_eq!(sums.len(), threads.max(1));
            assert_eq!(sums.into_iter().sum::<usize>(), 999 * 500);
        }
        let first = AtomicUsize::new(0);
        let worker = || {
            // ORDERING: Relaxed; only the number matters.
            assert!(first.fetch_add(1, Ordering::Relaxed) > 0, "one panics");
            Ok(())
        };
        let error = on_threads(&medium::<Dram>(), 3, worker, |what| what).unwrap_err();
        assert_eq!(error, "a recovery thread stopped");
    }
}
