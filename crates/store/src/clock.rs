//! Time stamps, and the *watermark*: the highest one at or below which every commit is durable and finished.
//!
//! ```text
//! take -> ts          finish(ts): ring[ts mod N] = ts, then the watermark goes on while ring[w + 1] = w + 1
//! ```
//!
//! A commit takes its time stamp when it can no longer be refused by anyone else: with its locks held, before it is
//! published. Snapshots read at the watermark, so no reader sees what a power cut could undo, and none waits. A
//! commit returns once the watermark has passed it, so that who made it reads it.
//!
//! # Concurrency
//! Whoever finishes moves the watermark as far as it goes. Of two that finish at once, each stores its flag and then looks at the
//! other's, with a full fence between, so that one of them at least sees both.

use bristlecone_pmem::sync::{give_way, lock};
use bristlecone_pmem::{CommitError, Media};
use crossbeam_utils::{Backoff, CachePadded};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

/// Commits that may be under way at once.
const RING: usize = 4096;
/// The same on a simulated medium, where it is to be full now and then.
const FEW: usize = 8;
/// How long who waits naps, once spinning was of no use.
const NAP: Duration = Duration::from_micros(30);

#[derive(Debug)]
pub(crate) struct Clock {
    next: CachePadded<AtomicU64>,
    watermark: CachePadded<AtomicU64>,
    ring: Box<[AtomicU64]>,
    failed: AtomicBool,
    error: Mutex<Option<CommitError>>,
    /// What was recovered has time stamps up to this one.
    floor: u64,
}

/// One turn of a loop that waits for another thread.
pub(crate) fn wait(backoff: &Backoff) {
    if give_way() {
        return;
    }
    if backoff.is_completed() {
        std::thread::sleep(NAP);
    } else {
        backoff.snooze();
    }
}

impl Clock {
    /// Goes on after `floor`.
    pub fn on<M: Media>(pm: &M, floor: u64) -> Self {
        Self::after(floor, if pm.tiny() { FEW } else { RING })
    }

    /// Goes on after `floor`, with up to `ring` commits under way.
    pub fn after(floor: u64, ring: usize) -> Self {
        Self {
            next: CachePadded::new(AtomicU64::new(floor + 1)),
            watermark: CachePadded::new(AtomicU64::new(floor)),
            ring: (0..ring).map(|_| AtomicU64::new(0)).collect(),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
            floor,
        }
    }

    /// Time stamps up to this one were recovered; `previous` of what has one is void.
    #[inline]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Every commit up to it is durable and can be read.
    #[inline]
    pub fn watermark(&self) -> u64 {
        // ORDERING: Acquire; pairs with the AcqRel of `advance`: who sees it sees those commits.
        self.watermark.load(Ordering::Acquire)
    }

    fn cell(&self, ts: u64) -> &AtomicU64 {
        &self.ring[(ts % self.ring.len() as u64) as usize]
    }

    /// The next time stamp. Its holder has to [finish](Self::finish) it, or to [fail](Self::fail).
    ///
    /// # Errors
    /// The failure of an earlier commit.
    pub fn take(&self) -> Result<u64, CommitError> {
        self.sound()?;
        // ORDERING: Relaxed; the locks of who takes it order what it stands for.
        let ts = self.next.fetch_add(1, Ordering::Relaxed);
        let backoff = Backoff::new();
        while ts - self.watermark() >= self.ring.len() as u64 {
            // The flag is still another commit's.
            self.sound()?;
            wait(&backoff);
        }
        Ok(ts)
    }

    /// What `ts` stands for is durable, or undone.
    pub fn finish(&self, ts: u64) {
        // ORDERING: Release; pairs with the Acquire in `advance`.
        self.cell(ts).store(ts, Ordering::Release);
        // ORDERING: SeqCst fence; of two finishers one sees the other's flag (module head).
        fence(Ordering::SeqCst);
        self.advance();
    }

    fn advance(&self) {
        let mut at = self.watermark();
        // ORDERING: Acquire; pairs with the Release of `finish`.
        while self.cell(at + 1).load(Ordering::Acquire) == at + 1 {
            // ORDERING: AcqRel; Release hands on what was finished, Acquire takes over what others finished.
            let moved =
                self.watermark
                    .compare_exchange(at, at + 1, Ordering::AcqRel, Ordering::Acquire);
            at = match moved {
                Ok(_) => at + 1,
                Err(now) => now,
            };
        }
    }

    /// Waits until the watermark has passed `ts`.
    ///
    /// # Errors
    /// The failure of another commit, which it cannot pass.
    pub fn wait_for(&self, ts: u64) -> Result<(), CommitError> {
        let backoff = Backoff::new();
        while self.watermark() < ts {
            self.sound()?;
            wait(&backoff);
        }
        Ok(())
    }

    /// A commit could not be made durable: the watermark stays below it, and nothing is committed any more.
    pub fn fail(&self, e: &CommitError) {
        lock(&self.error).get_or_insert_with(|| e.duplicate());
        // ORDERING: Release; pairs with the Acquire in `sound`.
        self.failed.store(true, Ordering::Release);
    }

    /// # Errors
    /// The failure, if there was one.
    pub fn sound(&self) -> Result<(), CommitError> {
        // ORDERING: Acquire; pairs with the Release in `fail`.
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        match lock(&self.error).as_ref() {
            Some(e) => Err(e.duplicate()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn the_watermark_stops_before_what_is_not_finished() {
        let clock = Clock::after(7, RING);
        assert_eq!(clock.watermark(), 7);
        let (a, b, c) = (
            clock.take().unwrap(),
            clock.take().unwrap(),
            clock.take().unwrap(),
        );
        assert_eq!((a, b, c), (8, 9, 10));
        clock.finish(b);
        assert_eq!(clock.watermark(), 7);
        clock.finish(a);
        assert_eq!(clock.watermark(), 9);
        clock.wait_for(9).unwrap();
        clock.finish(c);
        assert_eq!(clock.watermark(), 10);
    }

    #[test]
    fn threads_that_finish_at_once_leave_none_behind() {
        let clock = Arc::new(Clock::after(0, 2));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let clock = Arc::clone(&clock);
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        let ts = clock.take().unwrap();
                        clock.finish(ts);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(clock.watermark(), 80_000);
    }

    #[test]
    fn a_failure_ends_waiting() {
        let clock = Clock::after(0, RING);
        let ts = clock.take().unwrap();
        clock.fail(&CommitError::NoSpace {
            doing: "testing",
            source: std::io::Error::other("full"),
        });
        assert!(clock.wait_for(ts).is_err());
        assert!(clock.take().is_err());
        assert_eq!(clock.watermark(), 0);
    }
}
