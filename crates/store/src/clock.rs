//! Time stamps, and two *watermarks*: the highest at or below which every commit is applied, and durable.
//!
//! ```text
//! take -> ts      apply(ts): ring[ts mod N] = ts, then applied goes on while ring[w + 1] = w + 1
//!                 make_durable(ts): until durable >= ts: w = applied, the medium commits, durable = w
//! ```
//!
//! A commit takes its time stamp when it can no longer be refused by anyone else: with its locks held, before it is
//! published. It is applied once it is published, and durable once the medium has committed after that: a medium commits
//! everything that any thread has fenced, so one commit of it serves all that were applied. Snapshots read at the durable watermark, so no reader
//! sees what a power cut could undo, and none waits. A commit returns once that watermark has passed it, so that who
//! made it reads it. Handles that [defer](crate::Store::deferring) read at the applied one, and return before.
//!
//! # Concurrency
//! Whoever applies moves the applied watermark as far as it goes. Of two at once, each stores its flag and then looks at the
//! other's, with a full fence between, so that one of them at least sees both. The durable one is never above the applied one.

use bristlecone_pmem::sync::{give_way, lock};
use bristlecone_pmem::{CommitError, Media};
use crossbeam_utils::{Backoff, CachePadded};
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

/// Commits that may be under way at once.
const RING: usize = 4096;
/// The same on a simulated medium, where it is to be full now and then.
const FEW: usize = 8;
/// How long who waits naps, once spinning was of no use.
const NAP: Duration = Duration::from_micros(30);

/// What an operation waits for before it returns; it reads at the watermark of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Applied,
    Durable,
}

impl Wait {
    #[inline]
    pub fn watermark(self, clock: &Clock) -> u64 {
        match self {
            Self::Applied => clock.applied(),
            Self::Durable => clock.durable(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Clock {
    next: CachePadded<AtomicU64>,
    applied: CachePadded<AtomicU64>,
    durable: CachePadded<AtomicU64>,
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

/// A time stamp that was taken: applied when this is dropped, as what it stands for is published then, or undone. Where a panic
/// drops it, no one knows which, and nothing is committed any more.
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
    /// Goes on after `floor`.
    pub fn on<M: Media>(pm: &M, floor: u64) -> Self {
        Self::after(floor, if pm.tiny() { FEW } else { RING })
    }

    /// Goes on after `floor`, with up to `ring` commits under way.
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

    /// Time stamps up to this one were recovered; `previous` of what has one is void.
    #[inline]
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Whether a commit can have had that time stamp so far. The caller has found it where one that has it leads to.
    #[inline]
    pub fn was_issued(&self, ts: u64) -> bool {
        // ORDERING: Relaxed; what led the caller to the time stamp orders that after its taking.
        (1..self.next.load(Ordering::Relaxed)).contains(&ts)
    }

    /// The latest time stamp that was taken. The caller holds the locks of all stripes, so no commit of a change is under way.
    pub fn last_taken(&self) -> u64 {
        // ORDERING: Relaxed; the stripes' locks order it after the commits that held them.
        self.next.load(Ordering::Relaxed) - 1
    }

    /// Every commit up to it is published.
    #[inline]
    pub fn applied(&self) -> u64 {
        // ORDERING: Acquire; pairs with the AcqRel of `advance`: who sees it sees those commits.
        self.applied.load(Ordering::Acquire)
    }

    /// Every commit up to it is durable.
    #[inline]
    pub fn durable(&self) -> u64 {
        // ORDERING: Acquire; pairs with the AcqRel of `make_durable`: who sees it sees those commits, and an applied watermark that
        // is no lower.
        self.durable.load(Ordering::Acquire)
    }

    fn cell(&self, ts: u64) -> &AtomicU64 {
        &self.ring[(ts % self.ring.len() as u64) as usize]
    }

    /// The next time stamp.
    ///
    /// # Errors
    /// The failure of an earlier commit.
    pub fn take(&self) -> Result<CommitTimestamp<'_>, CommitError> {
        self.sound()?;
        // ORDERING: Relaxed; the locks of who takes it order what it stands for.
        let ts = self.next.fetch_add(1, Ordering::Relaxed);
        let backoff = Backoff::new();
        while ts - self.applied() >= self.ring.len() as u64 {
            // The flag is still another commit's.
            self.sound()?;
            wait(&backoff);
        }
        Ok(CommitTimestamp { clock: self, ts })
    }

    fn apply(&self, ts: u64) {
        // ORDERING: Release; pairs with the Acquire in `advance`.
        self.cell(ts).store(ts, Ordering::Release);
        // ORDERING: SeqCst fence; of two at once one sees the other's flag (module head).
        fence(Ordering::SeqCst);
        self.advance();
    }

    fn advance(&self) {
        let mut at = self.applied();
        // ORDERING: Acquire; pairs with the Release of `apply`.
        while self.cell(at + 1).load(Ordering::Acquire) == at + 1 {
            // ORDERING: AcqRel; Release hands on what was applied, Acquire takes over what others applied.
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

    /// Makes every commit up to `ts` durable, with as many others as are applied.
    ///
    /// # Errors
    /// The failure of a commit: of this one, or of another that it cannot pass.
    pub fn make_durable<M: Media>(&self, pm: &M, ts: u64) -> Result<(), CommitError> {
        if self.durable() >= ts {
            return Ok(());
        }
        self.wait_applied(ts)?;
        self.sound()?;
        let applied = self.applied();
        // Other threads' too: `durable` passes their time stamps.
        if let Err(e) = pm.commit_all() {
            // Where there was no space, a later commit makes that durable too.
            if matches!(e, CommitError::Failed { .. }) {
                self.fail(&e);
            }
            return Err(e);
        }
        // ORDERING: AcqRel; pairs with the Acquire of `durable`.
        self.durable.fetch_max(applied, Ordering::AcqRel);
        Ok(())
    }

    /// A commit could not be made durable: that watermark stays below it, and nothing is committed any more.
    fn fail(&self, e: &CommitError) {
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
