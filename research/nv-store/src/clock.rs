//! Timestamps, and two *watermarks*: the highest timestamps up to which every commit is applied,
//! and durable.
//!
//! ```text
//! take -> ts      apply(ts): ring[ts mod N] = ts, then applied goes on while ring[w + 1] = w + 1
//!                 make_durable(ts): until durable >= ts: w = applied, the medium commits, durable = w
//! ```
//!
//! A commit takes its timestamp when nobody else can refuse it any more: with its locks held,
//! before it is published. It is applied once it is published, and durable once the medium has
//! committed after that. A medium commits everything that any thread has fenced, so one of its
//! commits serves all that were applied. Snapshots read at the durable watermark, so no reader sees
//! what a power cut could undo, and none waits. A commit returns once that watermark has passed it,
//! so the writer reads its own change. Handles that [defer](bristlecone_store::Store::deferring)
//! read at the applied watermark and return earlier.
//!
//! # Concurrency
//! A thread that applies a commit advances the applied watermark as far as it can. If two do so at
//! once, each stores its flag and then loads the other's, with a full fence in between, so at least
//! one of them sees both. The durable watermark is never above the applied one.

use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{CommitError, Media};
use bristlecone_store::engine::{Wait, wait};
use crossbeam_utils::{Backoff, CachePadded};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Commits that may be in progress at once.
const RING: usize = 4096;
/// The same on a simulated medium: few, so that the ring is full now and then.
const FEW: usize = 8;

#[derive(Debug)]
pub(crate) struct Clock {
    next: CachePadded<AtomicU64>,
    applied: CachePadded<AtomicU64>,
    durable: CachePadded<AtomicU64>,
    ring: Box<[AtomicU64]>,
    failed: AtomicBool,
    error: Mutex<Option<CommitError>>,
    /// Highest timestamp of what was recovered.
    floor: u64,
}

/// The timestamp of a commit in progress. Dropping it applies the timestamp: the commit is
/// published by then, or undone. If a panic drops it, nobody knows which, and the clock refuses all
/// further commits.
#[derive(Debug)]
pub(crate) struct CommitTimestamp<'c> {
    clock: &'c Clock,
    pub ts: u64,
}

impl Drop for CommitTimestamp<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.clock.fail(&CommitError::Failed {
                doing: "committing",
                source: io::Error::other("a panic cut a commit short; open the store again"),
            });
        } else {
            self.clock.apply(self.ts);
        }
    }
}

impl Clock {
    /// A clock that goes on after `floor`.
    pub fn on<M: Media>(pm: &M, floor: u64) -> Self {
        Self::after(floor, if pm.tiny() { FEW } else { RING })
    }

    /// A clock that goes on after `floor`, with up to `ring` commits in progress.
    pub fn after(floor: u64, ring: usize) -> Self {
        Self {
            next: CachePadded::new(AtomicU64::new(floor + 1)),
            applied: CachePadded::new(AtomicU64::new(floor)),
            durable: CachePadded::new(AtomicU64::new(floor)),
            ring: (0..ring).map(|_| AtomicU64::new(0)).collect(),
            failed: AtomicBool::new(false),
            error: Mutex::new(None),
            floor,
        }
    }

    /// Returns the highest timestamp that was recovered. `previous` of records up to it is void.
    #[inline]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Returns whether the timestamp has been issued. The caller found it in a record.
    #[inline]
    pub fn was_issued(&self, ts: u64) -> bool {
        // ORDERING: Relaxed; the publication through which the caller found the timestamp orders
        // this load after `take`.
        (1..self.next.load(Ordering::Relaxed)).contains(&ts)
    }

    /// Returns the latest timestamp that was taken. The caller holds the locks of all stripes, so
    /// no commit of a change is under way.
    pub fn last_taken(&self) -> u64 {
        // ORDERING: Relaxed; the stripes' locks order it after the commits that held them.
        self.next.load(Ordering::Relaxed) - 1
    }

    /// Returns the applied watermark: every commit up to it is published.
    #[inline]
    pub fn applied(&self) -> u64 {
        // ORDERING: Acquire; pairs with the AcqRel of `advance`: a thread that loads it sees those
        // commits.
        self.applied.load(Ordering::Acquire)
    }

    /// Returns the durable watermark: every commit up to it is durable.
    #[inline]
    pub fn durable(&self) -> u64 {
        // ORDERING: Acquire; pairs with the AcqRel of `make_durable`: a thread that loads it sees
        // those commits, and an applied watermark that is no lower.
        self.durable.load(Ordering::Acquire)
    }

    /// Returns the watermark that operations which wait like this read at.
    #[inline]
    pub fn watermark(&self, wait: Wait) -> u64 {
        match wait {
            Wait::Applied => self.applied(),
            Wait::Durable => self.durable(),
        }
    }

    fn cell(&self, ts: u64) -> &AtomicU64 {
        &self.ring[(ts % self.ring.len() as u64) as usize]
    }

    /// Takes the next timestamp. Waits while too many commits are in progress.
    ///
    /// # Errors
    /// The failure of an earlier commit.
    pub fn take(&self) -> Result<CommitTimestamp<'_>, CommitError> {
        self.sound()?;
        // ORDERING: Relaxed; the stripes' locks, which the caller holds, order the commit itself.
        let ts = self.next.fetch_add(1, Ordering::Relaxed);
        let backoff = Backoff::new();
        while ts - self.applied() >= self.ring.len() as u64 {
            // The ring's place still belongs to an earlier commit.
            self.sound()?;
            wait(&backoff);
        }
        Ok(CommitTimestamp { clock: self, ts })
    }

    fn apply(&self, ts: u64) {
        // ORDERING: Release; pairs with the Acquire in `advance`.
        self.cell(ts).store(ts, Ordering::Release);
        // ORDERING: SeqCst fence; pairs with itself in another thread: of two at once one sees the
        // other's flag (module head).
        fence(Ordering::SeqCst);
        self.advance();
    }

    fn advance(&self) {
        let mut at = self.applied();
        // ORDERING: Acquire; pairs with the Release of `apply`.
        while self.cell(at + 1).load(Ordering::Acquire) == at + 1 {
            // ORDERING: AcqRel; pairs with itself and with the Acquire of `applied`: Release passes
            // on what was applied, Acquire takes over what others applied.
            let moved =
                self.applied
                    .compare_exchange(at, at + 1, Ordering::AcqRel, Ordering::Acquire);
            at = match moved {
                Ok(_) => at + 1,
                Err(now) => now,
            };
        }
    }

    /// Waits until the applied watermark has passed `ts`.
    ///
    /// # Errors
    /// The failure of a commit.
    pub fn wait_applied(&self, ts: u64) -> Result<(), CommitError> {
        let backoff = Backoff::new();
        while self.applied() < ts {
            self.sound()?;
            wait(&backoff);
        }
        Ok(())
    }

    /// Makes every commit up to `ts` durable, and all others that are applied.
    ///
    /// # Errors
    /// The failure of this commit of the medium, or of an earlier one.
    pub fn make_durable<M: Media>(&self, pm: &M, ts: u64) -> Result<(), CommitError> {
        if self.durable() >= ts {
            return Ok(());
        }
        self.wait_applied(ts)?;
        self.sound()?;
        // Other simulated threads see what is applied and not durable.
        pm.interleave();
        let applied = self.applied();
        pm.interleave();
        // Of all threads, since `durable` passes their timestamps too.
        if let Err(e) = pm.commit_all() {
            // After a lack of space, a later commit makes these changes durable too.
            if matches!(e, CommitError::Failed { .. }) {
                self.fail(&e);
            }
            return Err(e);
        }
        // ORDERING: AcqRel; pairs with the Acquire of `durable`.
        self.durable.fetch_max(applied, Ordering::AcqRel);
        Ok(())
    }

    /// Notes that a commit could not be made durable. The durable watermark stays below it, and no
    /// further commit is accepted.
    fn fail(&self, e: &CommitError) {
        lock(&self.error).get_or_insert_with(|| e.duplicate());
        // ORDERING: Release; pairs with the Acquire in `sound`.
        self.failed.store(true, Ordering::Release);
    }

    /// Checks that no commit has failed.
    ///
    /// # Errors
    /// The failure.
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
    fn the_watermark_stops_before_what_is_not_applied() {
        let clock = Clock::after(7, RING);
        assert_eq!(clock.applied(), 7);
        let [a, b, c] = [(); 3].map(|()| clock.take().unwrap());
        assert_eq!((a.ts, b.ts, c.ts), (8, 9, 10));
        drop(b);
        assert_eq!(clock.applied(), 7);
        drop(a);
        assert_eq!(clock.applied(), 9);
        clock.wait_applied(9).unwrap();
        drop(c);
        assert_eq!((clock.applied(), clock.durable()), (10, 7));
    }

    #[test]
    fn threads_that_apply_at_once_leave_none_behind() {
        let clock = Arc::new(Clock::after(0, 2));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let clock = Arc::clone(&clock);
                std::thread::spawn(move || {
                    for _ in 0..20_000 {
                        drop(clock.take().unwrap());
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(clock.applied(), 80_000);
    }

    #[test]
    fn a_panic_while_committing_ends_all_waiting() {
        let clock = Clock::after(0, RING);
        let unfinished = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _taken = clock.take().unwrap();
            panic!("as planned");
        }));
        assert!(unfinished.is_err());
        let error = clock.wait_applied(1).unwrap_err();
        assert!(
            error.to_string().contains("open the store again"),
            "{error}"
        );
        assert!(clock.take().is_err());
        assert_eq!(clock.applied(), 0);
    }
}
