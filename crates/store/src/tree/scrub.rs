//! Scrubbing: a thread compares all pages and long values with their sums, again and again, so that
//! damage is known before somebody asks for what is damaged. It changes nothing, except that a
//! change with one wrong bit is mended, as by a reader.

use super::Core;
use crate::error::{DamagedRecord, ReadError};
use crate::report::{MAX_REPORTED, ScrubStats};
use bristlecone_index::clustered::{self, Scrubbed};
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often the thread takes a step.
const EVERY: Duration = Duration::from_millis(100);
/// How long a round takes at least: a small store is not read all the time.
const ROUND: Duration = Duration::from_secs(60);

/// The state of scrubbing.
#[derive(Debug, Default)]
pub(super) struct Scrub {
    /// Held by who takes a step.
    turn: Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    stats: ScrubStats,
    /// The index key that the next step begins at.
    at: Vec<u8>,
    /// Damage by the key of the page, as of when it was last looked at.
    found: BTreeMap<Vec<u8>, String>,
    /// Damage of inner pages and of the page table.
    found_inner: Vec<String>,
}

impl State {
    /// Takes over what a step from `at` on has found: the pages up to `next` were looked at.
    fn note(&mut self, done: &Scrubbed, found: Vec<(Vec<u8>, String)>) {
        let start = Bound::Included(self.at.clone());
        let end =
            (done.next.as_ref()).map_or(Bound::Unbounded, |next| Bound::Excluded(next.clone()));
        let seen: Vec<Vec<u8>> = self
            .found
            .range((start, end))
            .map(|(key, _)| key.clone())
            .collect();
        for key in seen.iter().filter(|key| !done.passed.contains(key)) {
            self.found.remove(key);
        }
        self.found.extend(found);
        // The first are enough to act on, and their number is bounded.
        while self.found.len() > MAX_REPORTED {
            self.found.pop_last();
        }
        self.stats.damaged = (self.found.len() + self.found_inner.len()) as u64;
    }
}

impl Scrub {
    /// Returns what was done and found.
    pub fn stats(&self) -> ScrubStats {
        lock(&self.state).stats
    }

    /// Returns the damage that is known, the first of it.
    pub fn found(&self) -> Vec<DamagedRecord> {
        let state = lock(&self.state);
        let inner = state.found_inner.iter();
        let inner = inner.map(|what| DamagedRecord::in_tree(None, what.clone()));
        let pages = state.found.iter();
        let pages = pages.map(|(key, what)| DamagedRecord::in_tree(Some(key), what.clone()));
        inner.chain(pages).collect()
    }
}

impl<M: Media> Core<M> {
    /// Looks at all pages and long values, and returns the damage that is known then.
    ///
    /// # Errors
    /// [`ReadError::Memory`]: the rest was not looked at.
    pub(super) fn scrub_all(&self) -> Result<Vec<DamagedRecord>, ReadError> {
        let _turn = lock(&self.scrub.turn);
        lock(&self.scrub.state).at.clear();
        self.step(u64::MAX)?;
        Ok(self.scrub.found())
    }

    /// Looks at pages and long values of about so many bytes. Returns whether that ended a round.
    /// The caller has the turn.
    ///
    /// # Errors
    /// [`ReadError::Memory`]; the next step goes on there.
    fn step(&self, bytes: u64) -> Result<bool, ReadError> {
        let (at, begins) = {
            let state = lock(&self.scrub.state);
            (state.at.clone(), state.at.is_empty())
        };
        if begins {
            let mut found = Vec::new();
            let done = self.tree.scrub_inner(&mut |_, what| found.push(what));
            let state = &mut *lock(&self.scrub.state);
            found.truncate(MAX_REPORTED);
            state.found_inner = found;
            state.stats.round_bytes = 0;
            state.stats.add(&done);
        }
        let mut found = Vec::new();
        let done = self.tree.scrub(&at, bytes, &mut |key, what| {
            found.push((key.to_vec(), what))
        });
        let state = &mut *lock(&self.scrub.state);
        state.note(&done, found);
        state.stats.add(&done);
        let ended = done.next.is_none();
        state.at = done.next.unwrap_or_default();
        state.stats.rounds += u64::from(ended);
        match done.stopped {
            None => Ok(ended),
            Some(e) => Err(super::read_error(None, clustered::ReadError::Space(e))),
        }
    }
}

/// Starts a thread that scrubs about so many bytes a second until it is told to stop.
///
/// # Errors
/// The system refused a thread.
pub(super) fn spawn<M: Media>(
    core: &Arc<Core<M>>,
    bytes_per_second: u64,
) -> std::io::Result<JoinHandle<()>> {
    let core = Arc::clone(core);
    let budget = (bytes_per_second / (1_000 / EVERY.as_millis() as u64)).max(1);
    std::thread::Builder::new()
        .name("store-scrub".into())
        .spawn(move || {
            let mut begun = Instant::now();
            // A page or a value may be longer than a step: the next ones come later, then.
            let mut owed = Duration::ZERO;
            while !core.control.wait_or_stop(EVERY + owed) {
                let turn = lock(&core.scrub.turn);
                let before = core.scrub.stats().bytes;
                // Without memory it goes on there when there is some.
                let ended = core.step(budget).unwrap_or(false);
                drop(turn);
                let read = core.scrub.stats().bytes - before;
                let earned = Duration::from_secs_f64(read as f64 / bytes_per_second.max(1) as f64);
                owed = earned.saturating_sub(EVERY);
                if ended {
                    let rest = ROUND.saturating_sub(begun.elapsed());
                    if core.control.wait_or_stop(rest) {
                        return;
                    }
                    begun = Instant::now();
                }
            }
        })
}
