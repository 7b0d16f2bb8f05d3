//! A worker: it replays a trace on a simulation of its own and tries the images of the crash
//! points.

use super::options::Options;
use super::totals::{Totals, Visited};
use super::watch::{Doing, Watch};
use crate::oracle::{
    Expected, RECOVERY_STEPS, check_idempotence, check_progress, observe, power_off,
};
use crate::quiet::{self, Caught};
use crate::record::{Action, Recording, Step, make_dirty};
use crate::subject::{Fault, FaultKind, Opened, Subject};
use crate::violation::{self, Point, Violation};
use bristlecone_pmem::media::sim::{Event, EventKind, Mark, Pending, Simulation, Strategy};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Largest number of images that are enumerated at a crash point of a creation.
const MAX_CREATING: usize = 50;

/// Runs `f`. Returns a panic as a fault, without printing it.
pub(super) fn quietly<R>(f: impl FnOnce() -> R) -> Result<R, Fault> {
    quiet::install();
    quiet::catch(f).map_err(|caught| match caught {
        Caught::OutOfSteps => Fault::new(FaultKind::Progress, "it did not end within its steps"),
        Caught::Panic(message) => Fault::new(FaultKind::Recovery, format!("panicked: {message}")),
    })
}

/// Returns which images an event makes possible: none, those that keep the store of a number, or
/// any.
pub(super) fn adds(event: &Event, pending: &Pending) -> Option<Option<u32>> {
    match event.kind {
        EventKind::Store { old, new, .. } if old != new => Some(Some(pending.newest())),
        EventKind::Store16 { old, new, .. } if old != new => Some(None),
        EventKind::Resize { .. } | EventKind::Zero { .. } => Some(None),
        _ => None,
    }
}

pub(super) struct Worker<'a> {
    pub(super) subject: &'a dyn Subject,
    pub(super) recording: &'a Recording,
    pub(super) options: &'a Options,
    pub(super) stop: &'a AtomicBool,
    pub(super) seen: &'a (dyn Fn(u64) + Sync),
    pub(super) watch: &'a Watch,
    pub(super) sim: Simulation,
    pub(super) totals: Totals,
    pub(super) observed: Vec<(u64, u64)>,
    pub(super) reported: u64,
    /// Recoveries that reached a switched-off instruction.
    pub(super) reached_off: u64,
    /// Recoveries of this crash point's images whose own crashes were explored.
    pub(super) nested_recoveries: u64,
}

/// The crash that is being tried.
pub(super) struct Crash<'a> {
    pub(super) step: usize,
    pub(super) action: Action,
    /// The action that the last event belongs to.
    pub(super) last: Action,
    pub(super) events: usize,
    pub(super) completed: bool,
    pub(super) expected: Expected<'a>,
    pub(super) pending: &'a Pending,
}

impl<'a> Crash<'a> {
    /// Returns the crash in step `number`, or right after it if `completed`.
    pub(super) fn at(
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
    pub(super) fn new(
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
            reached_off: 0,
            nested_recoveries: 0,
        }
    }

    /// Applies the effect of an event on durable memory.
    pub(super) fn advance(sim: &Simulation, pending: &mut Pending, event: &Event) {
        pending.apply(event, &mut |word, value| sim.set_word(word, value));
        match event.kind {
            EventKind::Resize { to, .. } => sim.set_len(to),
            EventKind::Zero { at, bytes } => sim.zero(at, bytes),
            _ => {}
        }
    }

    /// Counts a point. Returns true if this worker is the first to reach it and so has to visit it.
    pub(super) fn takes(&self, turn: &AtomicU64, point: &mut u64) -> bool {
        let before = *point;
        *point += 1;
        // ORDERING: Relaxed; only the number matters.
        self.options.workers <= 1
            || turn
                .compare_exchange(before, *point, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    pub(super) fn run(&mut self, turn: &AtomicU64) {
        let sim = self.sim.clone();
        let _attached = sim.attach();
        let recording = self.recording;
        let mut pending = Pending::new(self.options.model, self.subject.unit());
        let mut point = 0;
        // Returns the number of events of a step after which its crash points are explored.
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
                // An exploration that begins inside a step begins with all stores pending there.
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
            // The step before the explored part leaves the state that it begins with.
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

    pub(super) fn visit_point(&mut self, point: u64, crash: &Crash<'_>, newest: Option<u32>) {
        let all = self.visit(crash, newest);
        if self.kills_at(crash) {
            self.visit_kill(crash);
        }
        let visited = Visited::of(newest, all);
        self.totals.points.push((point, visited));
    }

    pub(super) fn report(&mut self) {
        (self.seen)(self.totals.images - self.reported);
        self.reported = self.totals.images;
    }

    pub(super) fn over(&mut self) -> bool {
        if self.totals.images - self.reported >= 500 {
            self.report();
        }
        if self.options.stop_at_first && self.totals.violations > 0 {
            // ORDERING: Relaxed (both); a hint to stop early.
            self.stop.store(true, Ordering::Relaxed);
        }
        if self.totals.images >= self.options.max_images
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

    /// Tells the watchdog which crash point, or kill, is being tried.
    pub(super) fn tries(&self, crash: &Crash<'_>, killed: bool) {
        self.watch.begins(Doing {
            step: crash.step,
            events: crash.events,
            completed: crash.completed,
            killed,
            decided: self.sim.decided(),
            nested: None,
        });
    }

    /// Visits the images of one crash point. Returns true if all were visited.
    pub(super) fn visit(&mut self, crash: &Crash<'_>, newest: Option<u32>) -> bool {
        let sim = self.sim.clone();
        self.tries(crash, false);
        sim.note_changes(true);
        let start = sim.mark();
        let from = sim.expose(crash.pending, newest);
        let opened = sim.mark();
        sim.set_strategy(Strategy::DepthFirst);
        // Before the pool exists, recovery refuses most images at once, and a dirty device has
        // many.
        let bound = if crash.expected.creating {
            self.options.bound.min(MAX_CREATING)
        } else {
            self.options.bound
        };
        self.nested_recoveries = 0;
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

    /// Returns true if the rest of a point need not be visited.
    pub(super) fn enough(&self) -> bool {
        let found = self.options.stop_at_first && self.totals.violations > 0;
        found || self.totals.images >= self.options.max_images
    }

    /// Recovers the image that the strategy chooses, checks it, and restores the simulation.
    pub(super) fn try_image(
        &mut self,
        crash: &Crash<'_>,
        start: Mark,
        opened: Mark,
        depth_first: bool,
    ) {
        let sim = self.sim.clone();
        // Images of second crashes do not count here, since their number varies.
        let outer = self.totals.images - self.totals.nested_images - self.totals.killed_images;
        let every = self.options.thorough_every.max(1);
        let thorough = outer.is_multiple_of(every);
        let skipped = sim.skipped();
        let result = self.check(&crash.expected, thorough && !self.options.survey);
        let go_into = if self.options.where_off {
            let off = sim.skipped() > skipped;
            if off {
                self.reached_off += 1;
            }
            off && self.reached_off.is_multiple_of(every)
                && self.nested_recoveries < self.recoveries()
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
                self.nested_recoveries += 1;
                self.crash_in_recovery(crash, start, opened, depth_first);
            }
            Ok(()) => {}
        }
        sim.roll_back(opened);
    }

    pub(super) fn point(&self, crash: &Crash<'_>, start: Mark) -> Point {
        Point {
            events: crash.events,
            completed: crash.completed,
            killed: false,
            decisions: self.sim.decisions(start),
        }
    }

    /// Recovers the image in memory and runs the oracles.
    pub(super) fn check(&mut self, expected: &Expected<'_>, thorough: bool) -> Result<(), Fault> {
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
            let live = check_idempotence(subject, &sim, live, &observed)?;
            check_progress(subject, &sim, live, &observed)
        });
        self.observed = observed;
        // A structure that a panic left open must not write either.
        sim.set_frozen(true);
        sim.set_limit(u64::MAX);
        result.and_then(|inner| inner)
    }

    pub(super) fn violation(
        &self,
        crash: &Crash<'_>,
        fault: Fault,
        point: Point,
        nested: Option<(Point, &Pending)>,
    ) -> Violation {
        let mut lost = violation::lost(&point.decisions, crash.pending);
        if let Some((inner, pending)) = &nested {
            if !point.killed {
                // The second recovery also read words that the first crash had left undecided.
                lost.extend(violation::lost(&inner.decisions, crash.pending));
            }
            lost.extend(violation::lost(&inner.decisions, pending));
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
}
