//! Exploration of a recorded workload: every crash point, every image that the model allows there.
//!
//! A worker replays the trace on a buffer of its own, which holds what is durable. At a crash point the
//! pending stores are left open ([`Simulation::expose`]); recovery, and the oracles after it, decide
//! by reading. Going depth-first through the decisions visits each distinguishable image once; what
//! nothing reads cannot matter.
//!
//! # Which points are visited
//! After a store, the images that are new are those that kept it; the others were visited before it, with
//! the same operation in flight. A flush or a silent store adds none, a fence only takes some away. So
//! images are enumerated where the explored part begins (all), after stores (those that kept the store)
//! and when an operation ends (all, since it now must be there). The other points are covered by these,
//! and count as crash points. A point counts as exhaustive if the images that it adds and those that it
//! shares with the points before it were all visited.
//!
//! # Crashes in recovery
//! The trace of recovery and of the last operation after it is explored in the same way, below the image that
//! was recovered, once (depth 2), up to some number of images; how many of its points were exhaustive is
//! counted apart. See `explore/recovery.rs`.

mod recovery;

pub(crate) use recovery::widely;

use crate::oracle::{Expected, RECOVERY_STEPS, again, observe, power_off, progress};
use crate::quiet::{self, Caught};
use crate::record::{Action, Mutation, Recording, Step, make_dirty};
use crate::subject::{Fault, FaultKind, Opened, Subject};
use crate::token::WorkloadId;
use crate::watchdog::{Doing, PATIENCE, Watch};
use bristlecone_pmem::media::sim::{
    Decision, Event, EventKind, Mark, Model, Pending, PendingStore, Simulation, Site, Strategy,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Most images of a crash point in a creation, before they are sampled.
const CREATING: usize = 50;

/// How a recording is explored.
#[derive(Clone, Debug)]
pub struct Options {
    /// The persistency model.
    pub model: Model,
    /// Crashes in recovery too.
    pub nested: bool,
    /// Those only of recoveries that come to something switched off, of one in `thorough_every` of them.
    pub where_off: bool,
    /// Which operations follow a recovery: another number, others. Three numbers of four, not 0, stand for single
    /// operations, after more recoveries with fewer images each, and without crashes in the recovery itself.
    pub then: u64,
    /// Of crashes in recovery, only see which sites recovery has: those of one in `thorough_every` images,
    /// which is not checked further.
    pub survey: bool,
    /// Images per crash point up to which all are enumerated.
    pub bound: usize,
    /// Random images of a crash point that has more.
    pub samples: usize,
    /// One in so many images is also checked for progress, idempotence and (if `nested`) crashes in
    /// recovery. 1: all.
    pub thorough_every: u64,
    /// Threads that explore.
    pub workers: usize,
    /// Images after which a worker stops.
    pub most: u64,
    /// When to stop.
    pub deadline: Option<Instant>,
    /// Stop at the first violation.
    pub stop_at_first: bool,
    /// What was mutated in the recording and is in recovery too.
    pub mutation: Mutation,
    /// Of the explored steps (by number) only those with a number: crash points after so many of their events.
    pub only: Option<Vec<Option<usize>>>,
    /// Which workload was recorded, for tokens.
    pub workload: Option<WorkloadId>,
    /// Seconds after which an image that does not end ends the process.
    pub patience: u32,
}

impl Options {
    /// What the command line does by default under a model.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self {
            model,
            nested: false,
            where_off: false,
            then: 0,
            survey: false,
            bound: 1000,
            samples: 64,
            thorough_every: 40,
            workers: 1,
            most: u64::MAX,
            deadline: None,
            stop_at_first: false,
            mutation: Mutation::default(),
            only: None,
            workload: None,
            patience: PATIENCE,
        }
    }
}

/// Where in a trace a crash is, and what it kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Events that had happened.
    pub events: usize,
    /// The operation in which the last of them was had ended.
    pub completed: bool,
    /// What the crash kept of each word that was read. Words not named were not read.
    pub decisions: Vec<Decision>,
}

/// A store that a crash lost.
#[derive(Clone, Debug)]
pub struct Lost {
    /// Byte offset of the word.
    pub at: u64,
    /// What was to be there.
    pub value: u64,
    /// What stored it: file:line:column.
    pub site: String,
    /// The simulated thread that did.
    pub thread: u8,
}

/// An image that recovery or an oracle failed on.
#[derive(Clone, Debug)]
pub struct Violation {
    /// What is wrong.
    pub fault: Fault,
    /// Number of the step (0 is the creation).
    pub step: usize,
    /// The step.
    pub action: Action,
    /// The crash.
    pub point: Point,
    /// The crash in the recovery from it.
    pub nested: Option<Point>,
    /// The call site of the last event before the crash.
    pub last_site: String,
    /// Stores that the crash lost, of words that were read.
    pub lost: Vec<Lost>,
}

/// What an exploration saw.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Crash points: after every store, flush, fence, store fence, change of length, and operation.
    pub crash_points: u64,
    /// Crash points all of whose images were visited.
    pub exhaustive_points: u64,
    /// Images recovered.
    pub images: u64,
    /// Of these, images of crashes in recovery.
    pub nested_images: u64,
    /// Images that failed.
    pub violations: u64,
    /// Of these, leaks and blocks owned twice.
    pub leaks: u64,
    /// Of these, operations after recovery that failed or did not end.
    pub progress_failures: u64,
    /// The first violations (a few per worker).
    pub found: Vec<Violation>,
    /// The deadline, or the most images, came first.
    pub cut_short: bool,
    /// Crash points of the recoveries whose own crashes were explored.
    pub nested_points: u64,
    /// Of these, points all of whose images were visited.
    pub nested_exhaustive_points: u64,
    /// Flushes and fences of the recoveries whose own crashes were explored, and the steps with the first crash.
    pub recovery_sites: BTreeMap<Site, BTreeSet<usize>>,
    /// How often recovery would have done what was switched off.
    pub skipped: u64,
    /// Points by number, and what was visited there.
    points: Vec<(u64, Visited)>,
}

/// What was visited at a crash point, and whether all of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Visited {
    /// Nothing: there is no image that the point before it does not have.
    Nothing,
    /// The images that kept the store before it.
    New(bool),
    /// Every image.
    Whole(bool),
}

impl Visited {
    fn of(newest: Option<u32>, all: bool) -> Self {
        match newest {
            Some(_) => Self::New(all),
            None => Self::Whole(all),
        }
    }

    /// True if every image of the point was visited, here or (`before`) where it was already possible.
    fn covers(self, before: bool) -> bool {
        match self {
            Self::Nothing => before,
            Self::New(all) => all && before,
            Self::Whole(all) => all,
        }
    }
}

impl Totals {
    /// Adds what another exploration saw.
    pub fn add(&mut self, other: Self) {
        self.crash_points += other.crash_points;
        self.exhaustive_points += other.exhaustive_points;
        self.images += other.images;
        self.nested_images += other.nested_images;
        self.violations += other.violations;
        self.leaks += other.leaks;
        self.progress_failures += other.progress_failures;
        self.found.extend(other.found);
        self.cut_short |= other.cut_short;
        self.nested_points += other.nested_points;
        self.nested_exhaustive_points += other.nested_exhaustive_points;
        for (site, steps) in other.recovery_sites {
            self.recovery_sites.entry(site).or_default().extend(steps);
        }
        self.skipped += other.skipped;
        self.points.extend(other.points);
    }

    /// Counts the points.
    fn settle(mut self) -> Self {
        self.points.sort_unstable();
        let mut covered = false;
        for (_, visited) in self.points.drain(..) {
            covered = visited.covers(covered);
            self.crash_points += 1;
            self.exhaustive_points += u64::from(covered);
        }
        self
    }

    fn count(&mut self, violation: Violation) {
        self.violations += 1;
        match violation.fault.kind {
            FaultKind::Leak => self.leaks += 1,
            FaultKind::Progress => self.progress_failures += 1,
            _ => {}
        }
        if self.found.len() < 8 {
            self.found.push(violation);
        }
    }
}

/// Runs `f`; a panic is a fault, and is not printed.
fn quietly<R>(f: impl FnOnce() -> R) -> Result<R, Fault> {
    quiet::install();
    quiet::catch(f).map_err(|caught| match caught {
        Caught::OutOfSteps => Fault::new(FaultKind::Progress, "it did not end within its steps"),
        Caught::Panic(message) => Fault::new(FaultKind::Recovery, format!("panicked: {message}")),
    })
}

/// Explores `recording`. `seen` hears how many images were recovered since it was last called.
pub fn explore(
    subject: &dyn Subject,
    recording: &Recording,
    options: &Options,
    seen: &(dyn Fn(u64) + Sync),
) -> Totals {
    let stop = AtomicBool::new(false);
    let workers = options.workers.max(1);
    let turn = AtomicU64::new(0);
    let work = |_: usize| {
        let watch = Watch::default();
        watch.over(subject, recording, options, || {
            let mut worker = Worker::new(subject, recording, options, &stop, seen, &watch);
            worker.run(&turn);
            worker.totals.skipped = worker.sim.skipped();
            worker.totals
        })
    };
    if workers == 1 {
        return work(0).settle();
    }
    std::thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> = (0..workers).map(|w| scope.spawn(move || work(w))).collect();
        let mut totals = Totals::default();
        for handle in handles {
            match handle.join() {
                Ok(part) => totals.add(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        totals.settle()
    })
}

/// Recovers exactly one image again; its fault, if it still has one.
///
/// # Errors
/// There is no such image: the recording has no such event, or not those stores pending there.
pub fn replay(
    subject: &dyn Subject,
    recording: &Recording,
    options: &Options,
    point: &Point,
    nested: Option<&Point>,
) -> Result<Option<Violation>, String> {
    let stop = AtomicBool::new(false);
    let watch = Watch::default();
    watch.over(subject, recording, options, || {
        let mut worker = Worker::new(subject, recording, options, &stop, &|_| {}, &watch);
        worker.replay(point, nested)?;
        Ok(worker.totals.found.pop())
    })
}

/// The stores of `pending` that these decisions lost.
pub(crate) fn lost(decisions: &[Decision], pending: &Pending) -> Vec<Lost> {
    let stores: Vec<&PendingStore> = pending.domains().flatten().collect();
    let mut lost = Vec::new();
    for decision in decisions {
        let of_word = stores.iter().filter(|store| store.word == decision.word);
        lost.extend(of_word.skip(usize::from(decision.kept)).map(|store| Lost {
            at: u64::from(store.word) * 8,
            value: store.value,
            site: store.site.to_string(),
            thread: store.thread,
        }));
    }
    lost
}

/// Which images are possible after an event that were not before it: none, those that kept the store of
/// that number, or any.
fn adds(event: &Event, pending: &Pending) -> Option<Option<u32>> {
    match event.kind {
        EventKind::Store { old, new, .. } if old != new => Some(Some(pending.newest())),
        EventKind::Store16 { old, new, .. } if old != new => Some(None),
        EventKind::Resize { .. } | EventKind::Zero { .. } => Some(None),
        _ => None,
    }
}

struct Worker<'a> {
    subject: &'a dyn Subject,
    recording: &'a Recording,
    options: &'a Options,
    stop: &'a AtomicBool,
    seen: &'a (dyn Fn(u64) + Sync),
    watch: &'a Watch,
    sim: Simulation,
    totals: Totals,
    observed: Vec<(u64, u64)>,
    reported: u64,
    /// Recoveries that came to something switched off.
    came_to_off: u64,
    /// Recoveries of this crash point's images whose own crashes were tried.
    gone_into: u64,
}

/// The crash that is being tried.
struct Crash<'a> {
    step: usize,
    action: Action,
    /// The action that the last event is of.
    last: Action,
    events: usize,
    completed: bool,
    expected: Expected<'a>,
    pending: &'a Pending,
}

impl<'a> Crash<'a> {
    /// A crash in step `number`, or (`completed`) right after it.
    fn at(
        steps: &'a [Step],
        number: usize,
        events: usize,
        completed: bool,
        pending: &'a Pending,
    ) -> Self {
        let step = &steps[number];
        let stored = steps[..=number].iter().rfind(|step| step.end > step.begin);
        Self {
            step: number,
            action: step.action,
            last: stored.unwrap_or(step).action,
            events,
            completed,
            expected: Expected {
                before: if completed { &step.after } else { &step.before },
                after: &step.after,
                creating: step.action == Action::Create && !completed,
            },
            pending,
        }
    }
}

impl<'a> Worker<'a> {
    fn new(
        subject: &'a dyn Subject,
        recording: &'a Recording,
        options: &'a Options,
        stop: &'a AtomicBool,
        seen: &'a (dyn Fn(u64) + Sync),
        watch: &'a Watch,
    ) -> Self {
        let sim = Simulation::new(subject.capacity());
        options.mutation.install(&sim);
        if recording.dirty {
            make_dirty(&sim, subject.capacity());
        }
        Self {
            subject,
            recording,
            options,
            stop,
            seen,
            watch,
            sim,
            totals: Totals::default(),
            observed: Vec::new(),
            reported: 0,
            came_to_off: 0,
            gone_into: 0,
        }
    }

    /// Makes durable what an event makes durable.
    fn advance(sim: &Simulation, pending: &mut Pending, event: &Event) {
        pending.apply(event, &mut |word, value| sim.set_word(word, value));
        match event.kind {
            EventKind::Resize { to, .. } => sim.set_len(to),
            EventKind::Zero { at, bytes } => sim.zero(at, bytes),
            _ => {}
        }
    }

    /// Counts a point, and is true if this worker is to visit it (each is visited by the first to come).
    fn takes(&self, turn: &AtomicU64, point: &mut u64) -> bool {
        let before = *point;
        *point += 1;
        // ORDERING: Relaxed; only the number matters.
        self.options.workers <= 1
            || turn
                .compare_exchange(before, *point, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    fn run(&mut self, turn: &AtomicU64) {
        let sim = self.sim.clone();
        let _attached = sim.attach();
        let recording = self.recording;
        let mut pending = Pending::new(self.options.model, self.subject.unit());
        let mut point = 0;
        // After how many events of a step its crash points are explored.
        let explored_from = |number: usize| -> Option<usize> {
            if !(recording.explored..recording.steps.len()).contains(&number) {
                return None;
            }
            match &self.options.only {
                Some(only) => *only.get(number)?,
                None => Some(0),
            }
        };
        let end = (0..recording.steps.len())
            .rposition(|number| explored_from(number).is_some())
            .map_or(0, |last| last + 1);
        for (number, step) in recording.steps.iter().enumerate() {
            if number >= end {
                break;
            }
            let from = explored_from(number);
            if from == Some(0) && number == 0 && self.takes(turn, &mut point) {
                self.visit_point(
                    point,
                    &Crash::at(&recording.steps, number, 0, false, &pending),
                    None,
                );
            }
            for i in step.begin..step.end {
                let event = &recording.events[i];
                Self::advance(&sim, &mut pending, event);
                if from.is_none_or(|from| i < step.begin + from) {
                    continue;
                }
                // What begins inside a step begins with all that is pending there.
                let begins = i > step.begin && from == Some(i - step.begin);
                let adds = if begins {
                    Some(None)
                } else {
                    adds(event, &pending)
                };
                if self.takes(turn, &mut point) {
                    match adds {
                        Some(newest) => {
                            let crash = Crash::at(&recording.steps, number, i + 1, false, &pending);
                            self.visit_point(point, &crash, newest);
                        }
                        None => self.totals.points.push((point, Visited::Nothing)),
                    }
                }
                if adds.is_some() && self.over() {
                    return;
                }
            }
            // What the explored part begins with is what the step before it left.
            let explored = from.is_some() || explored_from(number + 1) == Some(0);
            let does = step.end > step.begin || step.before != step.after;
            if explored && (does || !pending.is_empty()) {
                if self.takes(turn, &mut point) {
                    self.visit_point(
                        point,
                        &Crash::at(&recording.steps, number, step.end, true, &pending),
                        None,
                    );
                }
                if self.over() {
                    return;
                }
            }
        }
        self.report();
    }

    fn visit_point(&mut self, point: u64, crash: &Crash<'_>, newest: Option<u32>) {
        let all = self.visit(crash, newest);
        let visited = Visited::of(newest, all);
        self.totals.points.push((point, visited));
    }

    fn report(&mut self) {
        (self.seen)(self.totals.images - self.reported);
        self.reported = self.totals.images;
    }

    fn over(&mut self) -> bool {
        if self.totals.images - self.reported >= 500 {
            self.report();
        }
        if self.options.stop_at_first && self.totals.violations > 0 {
            // ORDERING: Relaxed (both); a hint to stop early.
            self.stop.store(true, Ordering::Relaxed);
        }
        if self.totals.images >= self.options.most
            || self.options.deadline.is_some_and(|at| Instant::now() > at)
        {
            self.totals.cut_short = true;
            self.stop.store(true, Ordering::Relaxed);
        }
        let over = self.stop.load(Ordering::Relaxed);
        if over {
            self.report();
        }
        over
    }

    /// Tells the watchdog which crash point is tried.
    fn tries(&self, crash: &Crash<'_>) {
        self.watch.begins(Doing {
            step: crash.step,
            events: crash.events,
            completed: crash.completed,
            decided: self.sim.decided(),
            nested: None,
        });
    }

    /// Visits the images of one crash point; true if all.
    fn visit(&mut self, crash: &Crash<'_>, newest: Option<u32>) -> bool {
        let sim = self.sim.clone();
        self.tries(crash);
        sim.note_changes(true);
        let start = sim.mark();
        let from = sim.expose(crash.pending, newest);
        let opened = sim.mark();
        sim.set_strategy(Strategy::DepthFirst);
        // Before there is a pool most images are refused at once, and on a dirty device there are many.
        let bound = if crash.expected.creating {
            self.options.bound.min(CREATING)
        } else {
            self.options.bound
        };
        self.gone_into = 0;
        let mut images = 0;
        let all = loop {
            sim.begin_image(0);
            self.try_image(crash, start, opened, true);
            images += 1;
            if !sim.next_image(0) {
                break !sim.diverged();
            }
            if images >= bound || self.enough() {
                break false;
            }
        };
        if !all && !self.enough() {
            let domains = crash.pending.domains().count() as u32;
            let mut strategies = vec![Strategy::Newest, Strategy::Oldest];
            strategies.extend((0..domains).map(Strategy::Alone));
            let seed = 0x9E37_79B9_7F4A_7C15_u64 ^ crash.events as u64;
            strategies.extend(
                (0..self.options.samples as u64)
                    .map(|i| Strategy::Random(seed.wrapping_mul(2 * i + 1) | 1)),
            );
            for strategy in strategies {
                sim.set_strategy(strategy);
                self.try_image(crash, start, opened, false);
            }
        }
        sim.roll_back(start);
        sim.close(from);
        sim.note_changes(false);
        all
    }

    /// True if what is left of a point need not be visited.
    fn enough(&self) -> bool {
        let found = self.options.stop_at_first && self.totals.violations > 0;
        found || self.totals.images >= self.options.most
    }

    /// Recovers the image that the strategy makes, checks it, and puts everything back.
    fn try_image(&mut self, crash: &Crash<'_>, start: Mark, opened: Mark, depth_first: bool) {
        let sim = self.sim.clone();
        // Images of crashes in recovery do not count, or their number would decide which come next.
        let outer = self.totals.images - self.totals.nested_images;
        let every = self.options.thorough_every.max(1);
        let thorough = outer.is_multiple_of(every);
        let skipped = sim.skipped();
        let result = self.check(&crash.expected, thorough && !self.options.survey);
        let go_into = if self.options.where_off {
            let off = sim.skipped() > skipped;
            if off {
                self.came_to_off += 1;
            }
            off && self.came_to_off.is_multiple_of(every) && self.gone_into < self.recoveries()
        } else {
            thorough
        };
        self.totals.images += 1;
        match result {
            Err(fault) => {
                let point = self.point(crash, start);
                let violation = self.violation(crash, fault, point, None);
                self.totals.count(violation);
            }
            Ok(()) if go_into && (self.options.nested || self.options.survey) => {
                let decisions = sim.decisions(start);
                sim.roll_back(opened);
                let same = sim.impose(&decisions);
                debug_assert!(same, "they were decided here");
                self.gone_into += 1;
                self.crash_in_recovery(crash, start, opened, depth_first);
            }
            Ok(()) => {}
        }
        sim.roll_back(opened);
    }

    fn point(&self, crash: &Crash<'_>, start: Mark) -> Point {
        Point {
            events: crash.events,
            completed: crash.completed,
            decisions: self.sim.decisions(start),
        }
    }

    /// Recovers what is in memory and asks the oracles.
    fn check(&mut self, expected: &Expected<'_>, thorough: bool) -> Result<(), Fault> {
        self.watch.beat();
        let (subject, sim) = (self.subject, self.sim.clone());
        let mut observed = std::mem::take(&mut self.observed);
        sim.set_frozen(false);
        sim.set_thread(0);
        sim.set_limit(RECOVERY_STEPS);
        let result = quietly(|| {
            let live = match subject.open()? {
                Opened::Live(live) => live,
                Opened::Absent if expected.creating => {
                    if thorough {
                        let made = subject.create().map_err(|e| {
                            let what = format!("creating it again: {e}");
                            Fault::new(FaultKind::Progress, what)
                        })?;
                        sim.set_frozen(true);
                        drop(made);
                    }
                    return Ok(());
                }
                Opened::Absent => {
                    return Err(Fault::new(FaultKind::Lost, "the structure is not there"));
                }
            };
            let right = (live.verify())
                .and_then(|()| observe(&*live, &mut observed))
                .and_then(|()| expected.check(&observed));
            if right.is_err() || !thorough {
                power_off(&sim, live);
                return right;
            }
            let live = again(subject, &sim, live, &observed)?;
            progress(subject, &sim, live, &observed)
        });
        self.observed = observed;
        // Whatever a panic left open must not write either.
        sim.set_frozen(true);
        sim.set_limit(u64::MAX);
        result.and_then(|inner| inner)
    }

    fn violation(
        &self,
        crash: &Crash<'_>,
        fault: Fault,
        point: Point,
        nested: Option<(Point, &Pending)>,
    ) -> Violation {
        let mut lost = lost(&point.decisions, crash.pending);
        if let Some((inner, pending)) = &nested {
            // What the first crash left open and the second recovery read.
            lost.extend(self::lost(&inner.decisions, crash.pending));
            lost.extend(self::lost(&inner.decisions, pending));
        }
        let nested = nested.map(|(inner, _)| inner);
        let last_site = match crash.events {
            0 => String::new(),
            n => self.recording.events[n - 1].site.to_string(),
        };
        Violation {
            fault,
            step: crash.step,
            action: crash.action,
            point,
            nested,
            last_site,
            lost,
        }
    }

    fn replay(&mut self, point: &Point, nested: Option<&Point>) -> Result<(), String> {
        let sim = self.sim.clone();
        let _attached = sim.attach();
        let recording = self.recording;
        let mut pending = Pending::new(self.options.model, self.subject.unit());
        for (number, step) in recording.steps.iter().enumerate() {
            let to = step.end.min(point.events);
            for event in &recording.events[step.begin..to.max(step.begin)] {
                Self::advance(&sim, &mut pending, event);
            }
            let here = point.events > step.begin && point.events <= step.end;
            let ends_empty = point.completed && point.events == step.end;
            let begins = !point.completed && point.events == 0;
            if !(here || ends_empty || begins) {
                continue;
            }
            if point.completed && point.events != step.end {
                return Err(format!(
                    "no operation ends with event {}: {:?} ends with {}",
                    point.events, step.action, step.end
                ));
            }
            let crash = Crash::at(
                &recording.steps,
                number,
                point.events,
                point.completed,
                &pending,
            );
            self.tries(&crash);
            sim.note_changes(true);
            let start = sim.mark();
            let from = sim.expose(&pending, None);
            sim.set_strategy(Strategy::Oldest);
            if !sim.impose(&point.decisions) {
                return Err(format!(
                    "other stores are pending after event {}",
                    point.events
                ));
            }
            if let Some(inner) = nested {
                let rerun = self.rerun(&crash);
                sim.roll_back(start);
                sim.impose(&point.decisions);
                let mut pending = Pending::new(self.options.model, self.subject.unit());
                let Some(before) = rerun.events().get(..inner.events) else {
                    return Err(format!(
                        "recovery has {} events, not {}",
                        rerun.events().len(),
                        inner.events
                    ));
                };
                for event in before {
                    Self::advance(&sim, &mut pending, event);
                }
                let expected = rerun.expected(crash.expected, inner.events, inner.completed);
                let first = point.decisions.len();
                (self.watch).nested(Some((inner.events, inner.completed, first)));
                let again = sim.expose(&pending, None);
                if !sim.impose(&inner.decisions) {
                    return Err(format!(
                        "other stores are pending after event {} of recovery",
                        inner.events
                    ));
                }
                if let Err(fault) = self.check(&expected, false) {
                    let found = self.violation(
                        &crash,
                        fault,
                        point.clone(),
                        Some((inner.clone(), &pending)),
                    );
                    self.totals.count(found);
                }
                sim.roll_back(start);
                sim.close(again);
            } else {
                let mut fault = self.check(&crash.expected, true).err();
                if fault.is_none() {
                    sim.roll_back(start);
                    sim.impose(&point.decisions);
                    fault = self.rerun(&crash).fault;
                }
                if let Some(fault) = fault {
                    let found = self.violation(&crash, fault, point.clone(), None);
                    self.totals.count(found);
                }
            }
            sim.roll_back(start);
            sim.close(from);
            sim.note_changes(false);
            return Ok(());
        }
        Err(format!(
            "the workload has {} events, not {}",
            recording.events.len(),
            point.events
        ))
    }
}
