//! One engine's turn: the calls of a workload, by one or more threads.
//!
//! Only calls are timed, 16 between two readings of the clock; drawing keys is not, copying the
//! bytes of a value is: of each that is written, and of each that is read or visited, as a caller
//! who uses the values would. The rate of a turn is the sum of its threads' rates. A turn ends when
//! the first of its threads has used up its time or its keys, so that no thread runs alone.

use super::values::Values;
use super::workload::{Call, LATE, Plan, Workload};
use crate::LabError;
use crate::limits::bring_in_memory;
use bristlecone_peers::PeerError;
use bristlecone_peers::store::Store;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Calls between two readings of the clock.
const CALLS: usize = 16;
/// Calls that are drawn before they are made.
const DRAWN: usize = 64 * CALLS;

/// Bytes of memory that are brought in before a load at most.
const MOST_BROUGHT_IN: u64 = 4 << 30;

/// The work of a turn, or of one of its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Calls, or keys of a load.
    pub(super) calls: u64,
    /// Calls with the right answer.
    pub(super) right: u64,
    /// Bytes of keys and values in calls that change something.
    pub(super) user_bytes: u64,
    /// Keys that are there now and were not before.
    pub(super) inserted: u64,
    /// Keys that were there and are not any more.
    pub(super) removed: u64,
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.right += other.right;
        self.user_bytes += other.user_bytes;
        self.inserted += other.inserted;
        self.removed += other.removed;
    }
}

/// The result of a turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    pub(super) ops_per_s: f64,
    pub(super) tally: Tally,
}

/// One thread's part of a turn.
struct Part {
    tally: Tally,
    busy: Duration,
}

/// An engine that works on a plan.
#[derive(Clone, Copy)]
pub(super) struct Driver<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) plan: &'a Plan,
    pub(super) values: &'a Values,
    /// Time limit of a turn, except for the load and the first scans.
    pub(super) slice: Duration,
}

impl Driver<'_> {
    /// Has the system bring in the memory that a workload may need, outside of its time.
    ///
    /// # Errors
    /// The system has not so much memory.
    pub(super) fn prepare(&self, workload: Workload) -> Result<(), LabError> {
        if workload == Workload::Load {
            let bytes = self.plan.keys().saturating_mul(2 * self.pair_bytes());
            bring_in_memory(bytes.min(MOST_BROUGHT_IN) as usize)?;
        }
        Ok(())
    }

    /// Runs a workload that is [prepared](Self::prepare).
    ///
    /// # Errors
    /// The engine refuses a call, or gives a wrong answer.
    pub(super) fn turn(&self, workload: Workload) -> Result<Turn, LabError> {
        let over = AtomicBool::new(false);
        let parts = self.threads(|thread| match workload {
            Workload::Load => self.load(thread),
            Workload::Scan100First => self.part(workload, thread, None),
            _ => self.part(workload, thread, Some(&over)),
        })?;
        let mut turn = Turn {
            ops_per_s: 0.0,
            tally: Tally::default(),
        };
        for part in parts {
            turn.tally.add(part.tally);
            if part.tally.calls > 0 {
                let seconds = part.busy.as_secs_f64().max(1e-9);
                turn.ops_per_s += part.tally.calls as f64 / seconds;
            }
        }
        answered(self.store, workload, turn.tally.right, turn.tally.calls)?;
        if workload == Workload::Delete {
            self.gone()?;
        }
        Ok(turn)
    }

    /// Checks that the first removed key is gone.
    fn gone(&self) -> Result<(), LabError> {
        if let Some(Call::Remove(key)) = self.plan.calls(Workload::Delete, 0).next() {
            let there = self.store.get(key, &mut |_| ())?;
            answered(self.store, Workload::Delete, u64::from(!there), 1)?;
        }
        Ok(())
    }

    /// Calls `work` with the number of each thread, on as many threads, which start together.
    fn threads(
        &self,
        work: impl Fn(usize) -> Result<Part, PeerError> + Sync,
    ) -> Result<Vec<Part>, LabError> {
        let count = self.plan.threads();
        if count == 1 {
            return Ok(vec![work(0)?]);
        }
        let (barrier, work) = (&Barrier::new(count), &work);
        let parts = thread::scope(|scope| {
            let start = |thread| {
                scope.spawn(move || {
                    barrier.wait();
                    work(thread)
                })
            };
            let threads: Vec<_> = (0..count).map(start).collect();
            let joined = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect::<Result<Vec<_>, PeerError>>()
        })?;
        Ok(parts)
    }

    fn load(&self, thread: usize) -> Result<Part, PeerError> {
        let (mut tally, mut busy) = (Tally::default(), Duration::ZERO);
        let mut pairs: Vec<(u64, Vec<u8>)> = Vec::new();
        for keys in self.plan.batches(thread) {
            pairs.resize_with(keys.len(), Default::default);
            for (pair, key) in pairs.iter_mut().zip(keys) {
                pair.0 = key;
                self.values.fill(key, 0, &mut pair.1);
            }
            let start = Instant::now();
            self.store.put_batch(&pairs)?;
            busy += start.elapsed();
            let keys = pairs.len() as u64;
            tally.add(Tally {
                calls: keys,
                right: keys,
                user_bytes: keys * self.pair_bytes(),
                inserted: keys,
                removed: 0,
            });
        }
        Ok(Part { tally, busy })
    }

    /// Makes a thread's calls, until the slice is over or another thread says that the turn is,
    /// or all of them without `over`.
    fn part(
        &self,
        workload: Workload,
        thread: usize,
        over: Option<&AtomicBool>,
    ) -> Result<Part, PeerError> {
        // ORDERING: `over` only ends loops earlier; what the threads did is joined.
        let is_over = || over.is_some_and(|over| over.load(Ordering::Relaxed));
        let mut calls = self.plan.calls(workload, thread);
        let (mut tally, mut busy) = (Tally::default(), Duration::ZERO);
        let (mut drawn, mut buffer) = (Vec::with_capacity(DRAWN), Vec::new());
        'turn: loop {
            drawn.clear();
            drawn.extend(calls.by_ref().take(DRAWN));
            if drawn.is_empty() {
                break;
            }
            for some in drawn.chunks(CALLS) {
                let (mut right, start) = (0, Instant::now());
                for call in some {
                    right += u64::from(self.call(*call, &mut buffer)?);
                }
                busy += start.elapsed();
                tally.right += right;
                some.iter().for_each(|call| self.count(*call, &mut tally));
                if is_over() || over.is_some() && busy >= self.slice {
                    break 'turn;
                }
            }
        }
        if let Some(over) = over {
            over.store(true, Ordering::Relaxed);
        }
        Ok(Part { tally, busy })
    }

    /// Makes a call. Returns whether the answer is right.
    fn call(&self, call: Call, buffer: &mut Vec<u8>) -> Result<bool, PeerError> {
        match call {
            Call::Get(key) => {
                let mut right = false;
                let mut visit = |value: &[u8]| {
                    value.clone_into(buffer);
                    right = self.values.is_of(key, buffer);
                };
                self.store.get(key, &mut visit)?;
                Ok(right)
            }
            Call::Put { key, version } => {
                self.values.fill(key, version, buffer);
                self.store.put(key, buffer)?;
                Ok(true)
            }
            Call::Modify { key, version } => {
                let mut visit = |value: &[u8]| value.clone_into(buffer);
                let found = self.store.get(key, &mut visit)?;
                let right = found && self.values.is_of(key, buffer);
                self.values.fill(key, version, buffer);
                self.store.put(key, buffer)?;
                Ok(right)
            }
            Call::Remove(key) => self.store.remove(key).map(|()| true),
            Call::Scan { from, limit } => {
                let (mut visited, mut right, mut least) = (0, true, from);
                let mut visit = |key, value: &[u8]| {
                    visited += 1;
                    value.clone_into(buffer);
                    right &= key >= least && self.values.is_of(key, buffer);
                    least = key;
                };
                self.store.scan(from, limit as usize, &mut visit)?;
                Ok(right && (visited == limit || from >= LATE && visited < limit))
            }
        }
    }

    fn count(&self, call: Call, tally: &mut Tally) {
        tally.calls += 1;
        match call {
            Call::Get(_) | Call::Scan { .. } => {}
            Call::Put { version, .. } => {
                tally.user_bytes += self.pair_bytes();
                tally.inserted += u64::from(version == 0);
            }
            Call::Modify { .. } => tally.user_bytes += self.pair_bytes(),
            Call::Remove(_) => {
                tally.user_bytes += size_of::<u64>() as u64;
                tally.removed += 1;
            }
        }
    }

    fn pair_bytes(&self) -> u64 {
        (size_of::<u64>() + self.values.bytes()) as u64
    }
}

fn answered(store: &dyn Store, workload: Workload, right: u64, of: u64) -> Result<(), LabError> {
    if right == of {
        return Ok(());
    }
    Err(LabError::WrongAnswer {
        contender: store.name().to_owned(),
        phase: workload.name(),
        right,
        of,
    })
}
