//! The report of a concurrent exploration: counts, violations, and the crashes that they need.

use crate::history::Call;
use crate::subject::Fault;
use bristlecone_pmem::media::sim::{Event, PendingStore};
use std::fmt;
use std::panic::Location;

/// Violations that a report keeps.
pub(super) const MAX_VIOLATIONS: usize = 50;

/// The result of a concurrent exploration.
#[derive(Clone, Debug, Default)]
pub struct ConcurrentReport {
    /// Schedules run.
    pub schedules: u64,
    /// Operations that returned.
    pub operations: u64,
    /// Crash points tried.
    pub crash_points: u64,
    /// Directed points among them: a call returned there that may have seen a store before it was
    /// durable.
    pub directed_points: u64,
    /// Crash points of which every distinguishable image was tried.
    pub exhaustive_points: u64,
    /// Images recovered.
    pub images: u64,
    /// The first violations found (at most one for a schedule).
    pub violations: Vec<ConcurrentViolation>,
    /// Number of all violations.
    pub violation_count: u64,
    /// Time taken.
    pub seconds: f64,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) operations: u64,
    pub(super) crash_points: u64,
    pub(super) directed: u64,
    pub(super) exhaustive: u64,
    pub(super) images: u64,
}

/// A store that a crash lost.
#[derive(Clone, Copy, Debug)]
pub struct LostStore {
    /// The thread that stored.
    pub thread: u8,
    /// The word (byte offset / 8).
    pub word: u32,
    /// The stored value.
    pub value: u64,
    /// Place in the order of all stores.
    pub seq: u32,
    /// Place of the store in the source.
    pub site: &'static Location<'static>,
}

impl LostStore {
    pub(super) fn of(store: &PendingStore) -> Self {
        Self {
            thread: store.thread,
            word: store.word,
            value: store.value,
            seq: store.seq,
            site: store.site,
        }
    }
}

impl fmt::Display for LostStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { thread, word, .. } = self;
        let at = u64::from(*word) * 8;
        write!(
            f,
            "thread {thread} stored {:#x} at {at:#x} ({}:{}:{})",
            self.value,
            self.site.file(),
            self.site.line(),
            self.site.column()
        )
    }
}

/// A completed call that saw a store which the crash lost. Calls are named by their index in the
/// history.
#[derive(Clone, Copy, Debug)]
pub struct Dependence {
    /// The call that had returned.
    pub observer: usize,
    /// The call that had stored but not returned.
    pub writer: usize,
    /// The lost store that was loaded; `None` if the call saw it through volatile memory.
    pub store: Option<LostStore>,
}

/// A crash whose image is wrong.
#[derive(Clone, Debug)]
pub struct Crash {
    /// Events of the run before it.
    pub point: usize,
    /// Events of the whole run.
    pub events: usize,
    /// The last event before it.
    pub after: Option<Event>,
    /// Lost stores to words that recovery read.
    pub lost: Vec<LostStore>,
    /// A completed call that had seen one of these stores.
    pub dependence: Option<Dependence>,
}

/// A violation, and the run that it was found in.
#[derive(Clone, Debug)]
pub struct ConcurrentViolation {
    /// The fault.
    pub fault: Fault,
    /// The seed of the exploration.
    pub seed: u64,
    /// The schedule's number, with which [`replay`](super::replay) repeats it.
    pub schedule: u64,
    /// The calls, in the order they were made.
    pub history: Vec<Call>,
    /// The crash; `None` if the run failed without one.
    pub crash: Option<Crash>,
}

impl fmt::Display for ConcurrentViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.fault)?;
        writeln!(f, "  seed {}, schedule {}", self.seed, self.schedule)?;
        for (i, call) in self.history.iter().enumerate() {
            let state = match &self.crash {
                Some(crash) if call.from > crash.point => continue,
                Some(crash) if !call.completed_at(crash.point) => " (running at the crash)",
                _ => "",
            };
            writeln!(f, "  {i:2}  {call}{state}")?;
        }
        let Some(crash) = &self.crash else {
            return writeln!(f, "  without a crash");
        };
        let (point, events) = (crash.point, crash.events);
        write!(f, "  crash after event {point} of {events}")?;
        if let Some(event) = crash.after {
            let (file, line) = (event.site.file(), event.site.line());
            write!(f, ": thread {} at {file}:{line}", event.thread)?;
        }
        writeln!(f)?;
        if let Some(Dependence {
            observer,
            writer,
            store,
        }) = crash.dependence
        {
            writeln!(
                f,
                "  call {observer} had returned and had seen what call {writer} had not made durable{}",
                store.map_or_else(String::new, |store| format!(": {store}"))
            )?;
        }
        for store in &crash.lost {
            writeln!(f, "  lost: {store}")?;
        }
        Ok(())
    }
}

impl ConcurrentReport {
    /// Adds the report of another worker's share of the schedules.
    pub(super) fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.operations += other.operations;
        self.crash_points += other.crash_points;
        self.directed_points += other.directed_points;
        self.exhaustive_points += other.exhaustive_points;
        self.images += other.images;
        self.violation_count += other.violation_count;
        self.violations.extend(other.violations);
        self.violations.sort_by_key(|violation| violation.schedule);
        self.violations.truncate(MAX_VIOLATIONS);
        self.seconds = self.seconds.max(other.seconds);
    }
}
