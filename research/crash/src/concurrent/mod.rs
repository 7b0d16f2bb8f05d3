//! Concurrent crash exploration: simulated threads, deterministic schedules, crashes at any point.
//!
//! | part | does |
//! | --- | --- |
//! | `program.rs` | prepares a structure's content, and makes each thread's operations |
//! | `report.rs` | holds the report of an exploration |
//! | `schedule.rs` | runs the threads under one schedule and records their history |
//! | `crashes.rs` | chooses crash points, tries their images, and finds the lost stores |
//! | [`history`](crate::history) | decides whether a history explains the recovered content |
//!
//! A run opens a prepared structure, as after a crash. Two or three threads do a few operations on
//! a few neighbouring keys, and the run checks their replies and the content. Then it chooses
//! several crash points, sets the simulation back to the durable state there, and recovers images
//! that a crash may leave. The history up to the point must be durably linearizable with each
//! recovered content.
//!
//! *Visible before durable*: an image fails, and it lost a store that a completed call of another
//! thread had seen before the storing call returned. The replies show it if the content would be
//! right without the calls that only observed. The loads show it otherwise. The report names it
//! apart from a plain loss, because the cure differs: a lock was released, or a pointer followed,
//! too early.
//!
//! Options and a schedule's number determine a run, so [`replay`] repeats a violation. Addresses
//! are repeated too unless another thread of the process defers frees, since epochs belong to the
//! process.
//!
//! # Limits
//! Threads are switched before accesses to persistent memory, where they wait, and where the
//! structure asks for it
//! ([`Instrument::interleave`](bristlecone_pmem::media::Instrument::interleave)), but not between
//! other accesses to volatile memory. Memory is sequentially consistent: only the persistency model
//! is weak, and the code argues its memory orderings in comments. All threads share one allocator
//! cache.

mod crashes;
mod program;
mod report;
mod schedule;

use crate::deferred::collect;
use crate::history::{Call, Outcomes};
use crate::quiet::{self, Caught};
use crate::rng::Rng;
use crate::subject::{Fault, FaultKind, Live, Op, Opened, Subject};
use crate::token::ScheduleToken;
pub use crate::token::{MAX_OPERATIONS, MAX_THREADS};
use crate::watchdog::{PATIENCE, watched};
use bristlecone_pmem::media::sim::{Mark, Model, OutOfSteps, Simulation, Site};
use bristlecone_pmem::sync::set_give_way;
use crashes::Trace;
use program::Spot;
pub use report::{ConcurrentReport, ConcurrentViolation, Crash, Dependence, LostStore};
use report::{Counts, MAX_VIOLATIONS};
use schedule::{Chooser, Log, wait_for_others};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Accesses after which a recovery with its checks counts as stuck.
const RECOVERY_STEPS: u64 = 1_000_000;
/// Failed attempts to take a lock, while no other simulated thread runs, after which the code
/// counts as stuck.
const ALONE_WAITS: u64 = 10_000;
/// Prepared structures that runs start from.
const BASES: u64 = 24;

/// The parameters of a concurrent exploration.
#[derive(Clone, Debug)]
pub struct ConcurrentOptions {
    /// The persistency model.
    pub model: Model,
    /// Simulated threads, clamped to 1 to [`MAX_THREADS`]. Most faults take two or three.
    pub threads: usize,
    /// Schedules to run.
    pub schedules: u64,
    /// Operations of each thread, clamped to at least 1 and to [`MAX_OPERATIONS`] of all threads
    /// together.
    pub ops_per_thread: usize,
    /// Determines all random choices.
    pub seed: u64,
    /// Time after which no schedule is begun.
    pub budget: Option<Duration>,
    /// Stops at the first violation.
    pub stop_at_first: bool,
    /// A fault planted in the code under test ([`Simulation::plant`]).
    pub planted: Option<&'static str>,
    /// Flushes and fences that are switched off.
    pub off: Vec<Site>,
}

impl Default for ConcurrentOptions {
    fn default() -> Self {
        Self {
            model: Model::X86Tso,
            threads: 3,
            schedules: 20_000,
            ops_per_thread: 4,
            seed: 1,
            budget: None,
            stop_at_first: false,
            planted: None,
            off: Vec::new(),
        }
    }
}

impl ConcurrentOptions {
    /// Returns the number of threads, and of operations of each.
    fn size(&self) -> (usize, usize) {
        let threads = self.threads.clamp(1, MAX_THREADS);
        let ops = self.ops_per_thread.clamp(1, MAX_OPERATIONS / threads);
        (threads, ops)
    }
}

impl ScheduleToken {
    /// Returns the options of the exploration that the schedule belongs to.
    #[must_use]
    pub fn options(&self) -> ConcurrentOptions {
        ConcurrentOptions {
            model: self.model,
            threads: self.threads,
            ops_per_thread: self.ops,
            seed: self.seed,
            planted: self.planted,
            ..ConcurrentOptions::default()
        }
    }
}

/// Runs the schedules of `options` on `subject`. After each, calls `progress` with the number done.
pub fn explore(
    subject: &dyn Subject,
    options: &ConcurrentOptions,
    progress: &mut dyn FnMut(u64),
) -> ConcurrentReport {
    share_of(subject, options, &AtomicU64::new(0), progress)
}

/// Runs the schedules of `options` on `subject`, on several threads of this machine. Calls
/// `progress` after each schedule.
pub fn explore_on(
    subject: &dyn Subject,
    options: &ConcurrentOptions,
    workers: usize,
    progress: &(dyn Fn() + Sync),
) -> ConcurrentReport {
    let next = AtomicU64::new(0);
    let mut report = ConcurrentReport::default();
    std::thread::scope(|scope| {
        let share = || share_of(subject, options, &next, &mut |_| progress());
        let handles: Vec<_> = (0..workers.max(1)).map(|_| scope.spawn(share)).collect();
        for handle in handles {
            match handle.join() {
                Ok(share) => report.add(share),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
    });
    report
}

/// Runs schedules, taking their numbers from `next`, under a watchdog.
fn share_of(
    subject: &dyn Subject,
    options: &ConcurrentOptions,
    next: &AtomicU64,
    progress: &mut dyn FnMut(u64),
) -> ConcurrentReport {
    let running = AtomicU64::new(0);
    let describe = || {
        // ORDERING: Relaxed; the number does not change while the schedule hangs.
        let schedule = running.load(Ordering::Relaxed);
        let token = ScheduleToken {
            subject: subject.name(),
            model: options.model,
            threads: options.threads,
            ops: options.ops_per_thread,
            seed: options.seed,
            schedule,
            planted: options.planted,
        };
        format!(
            "{} under {}: schedule {schedule}: no end after {PATIENCE} s, nor any access to persistent memory \
             that counts\n  replay: bristlecone-lab crash --replay '{token}'",
            subject.name(),
            options.model.name()
        )
    };
    let run = || run_share(subject, options, next, &running, progress);
    watched(PATIENCE, &running, &describe, run)
}

fn run_share(
    subject: &dyn Subject,
    options: &ConcurrentOptions,
    next: &AtomicU64,
    running: &AtomicU64,
    progress: &mut dyn FnMut(u64),
) -> ConcurrentReport {
    let started = Instant::now();
    let mut report = ConcurrentReport::default();
    let mut counts = Counts::default();
    let mut bases = Bases::default();
    loop {
        // ORDERING (all): Relaxed; only the numbers matter.
        let schedule = next.fetch_add(1, Ordering::Relaxed);
        if schedule >= options.schedules
            || options.budget.is_some_and(|most| started.elapsed() >= most)
        {
            break;
        }
        running.store(schedule, Ordering::Relaxed);
        let violation = bases.run(subject, options, schedule, &mut counts);
        report.schedules += 1;
        progress(report.schedules);
        if let Some(violation) = violation {
            report.violation_count += 1;
            if report.violations.len() < MAX_VIOLATIONS {
                report.violations.push(violation);
            }
            if options.stop_at_first {
                // ORDERING: Relaxed; the others need not stop at once.
                next.fetch_max(options.schedules, Ordering::Relaxed);
                break;
            }
        }
    }
    report.operations = counts.operations;
    report.crash_points = counts.crash_points;
    report.directed_points = counts.directed;
    report.exhaustive_points = counts.exhaustive;
    report.images = counts.images;
    report.seconds = started.elapsed().as_secs_f64();
    report
}

/// Runs one schedule again.
#[must_use]
pub fn replay(
    subject: &dyn Subject,
    options: &ConcurrentOptions,
    schedule: u64,
) -> Option<ConcurrentViolation> {
    Bases::default().run(subject, options, schedule, &mut Counts::default())
}

/// Returns the value that an operation stores.
fn value_of(op: &Op) -> Option<u64> {
    match *op {
        Op::Insert(_, value) | Op::Upsert(_, value) | Op::Update(_, value) => Some(value),
        _ => None,
    }
}

/// Runs a check or a recovery outside of any schedule. Steps are limited, and so is waiting for a
/// lock, since no other thread could release it. A panic is a fault of kind `kind`.
fn guarded<R>(
    sim: &Simulation,
    kind: FaultKind,
    part: impl FnOnce() -> Result<R, Fault>,
) -> Result<R, Fault> {
    thread_local! {
        static WAITS: Cell<u64> = const { Cell::new(0) };
    }
    WAITS.set(0);
    set_give_way(Some(|| {
        WAITS.set(WAITS.get() + 1);
        if WAITS.get() > ALONE_WAITS && !std::thread::panicking() {
            std::panic::panic_any(OutOfSteps);
        }
        wait_for_others(WAITS.get() * 50);
        std::thread::yield_now();
    }));
    sim.set_limit(RECOVERY_STEPS);
    let result = quiet::catch(part);
    sim.set_limit(u64::MAX);
    set_give_way(None);
    result.unwrap_or_else(|caught| {
        Err(match caught {
            Caught::OutOfSteps => Fault::new(
                FaultKind::Progress,
                format!("no end within {RECOVERY_STEPS} steps, or a lock that no one holds"),
            ),
            Caught::Panic(text) => Fault::new(kind, format!("panic: {text}")),
        })
    })
}

/// Returns all entries, ascending by key.
fn content(live: &dyn Live) -> Result<Vec<(u64, u64)>, Fault> {
    let mut entries = Vec::new();
    live.observe(&mut |key, value| entries.push((key, value)))?;
    match entries.windows(2).find(|pair| pair[0].0 >= pair[1].0) {
        Some(pair) => Err(Fault::new(
            FaultKind::Structure,
            format!("key {} comes before key {}", pair[0].0, pair[1].0),
        )),
        None => Ok(entries),
    }
}

/// Drops a structure as a crash does.
fn abandon(sim: &Simulation, live: Box<dyn Live>) {
    sim.set_frozen(true);
    // A panic while a broken structure is dropped says nothing new.
    let _ = quiet::catch(|| drop(live));
    sim.set_frozen(false);
}

/// Opens the image that a crash left, checks it, returns its entries, and drops it.
fn recover(subject: &dyn Subject, sim: &Simulation) -> Result<Vec<(u64, u64)>, Fault> {
    let live = guarded(sim, FaultKind::Recovery, || match subject.open()? {
        Opened::Live(live) => Ok(live),
        Opened::Absent => Err(Fault::new(FaultKind::Lost, "the structure is gone")),
    })?;
    let entries = guarded(sim, FaultKind::Structure, || {
        live.verify()?;
        content(&*live)
    });
    abandon(sim, live);
    entries
}

/// A prepared structure, in a simulation of its own.
struct Base {
    sim: Simulation,
    spot: Spot,
    start: BTreeMap<u64, u64>,
    prepared: Mark,
    /// Mean number of accesses of an operation.
    steps: usize,
}

impl Base {
    fn prepare(subject: &dyn Subject, seed: u64, number: u64) -> Result<Self, Fault> {
        let mut rng = Rng::of(seed, 0, number);
        let workload = program::workload(subject, &mut rng);
        let mut costs = Vec::with_capacity(workload.len());
        Self::filled(subject, &workload, |steps| costs.push(steps))?;
        let spot = Spot::choose(subject, &workload, &costs, number, &mut rng);
        let (sim, start) = Self::filled(subject, &spot.before, |_| {})?;
        sim.note_changes(true);
        let prepared = sim.mark();
        let steps = costs.iter().sum::<u64>() as usize / costs.len().max(1);
        Ok(Self {
            sim,
            spot,
            start,
            prepared,
            steps: steps.max(8),
        })
    }

    /// Returns a simulation with a structure on which `ops` were done, and its content. Passes the
    /// steps of each operation to `cost`.
    fn filled(
        subject: &dyn Subject,
        ops: &[Op],
        mut cost: impl FnMut(u64),
    ) -> Result<(Simulation, BTreeMap<u64, u64>), Fault> {
        let sim = Simulation::new(subject.capacity());
        let _attached = sim.attach();
        let live = guarded(&sim, FaultKind::Wrong, || subject.create())?;
        let start = guarded(&sim, FaultKind::Wrong, || {
            let mut before = 0;
            program::fill(&*live, ops, |_| {
                let steps = sim.steps();
                cost(steps - before);
                before = steps;
            })
            .map_err(|what| Fault::new(FaultKind::Wrong, what))
        });
        abandon(&sim, live);
        collect();
        Ok((sim, start?))
    }
}

/// Prepared structures, made on first use.
#[derive(Default)]
struct Bases(BTreeMap<u64, Result<Base, Fault>>);

impl Bases {
    /// Runs a schedule, with its crashes.
    fn run(
        &mut self,
        subject: &dyn Subject,
        options: &ConcurrentOptions,
        schedule: u64,
        counts: &mut Counts,
    ) -> Option<ConcurrentViolation> {
        quiet::install();
        let number = schedule % BASES;
        let base = self
            .0
            .entry(number)
            .or_insert_with(|| Base::prepare(subject, options.seed, number));
        let base = match base {
            Ok(base) => base,
            Err(fault) => return Some(violation(options, schedule, fault.clone())),
        };
        let _attached = base.sim.attach();
        base.sim.plant(options.planted);
        base.sim.switch_off(&options.off);
        let found = run(subject, options, base, schedule, counts);
        base.sim.set_sink(None);
        base.sim.roll_back(base.prepared);
        collect();
        found
    }
}

fn violation(options: &ConcurrentOptions, schedule: u64, fault: Fault) -> ConcurrentViolation {
    ConcurrentViolation {
        fault,
        seed: options.seed,
        schedule,
        history: Vec::new(),
        crash: None,
    }
}

/// Returns the chooser of a schedule. Half of them are PCT. The probability of a switch, or the
/// number of priority changes, varies as well.
fn chooser(options: &ConcurrentOptions, base: &Base, schedule: u64) -> Chooser {
    let mut rng = Rng::of(options.seed, 2, schedule);
    let ((threads, ops), kind) = (options.size(), rng.index(8));
    match kind {
        0 => Chooser::random(rng, 0),
        1 => Chooser::random(rng, 8),
        2 => Chooser::random(rng, 14),
        3 => Chooser::random(rng, 15),
        n => {
            let steps = threads * ops * base.steps;
            Chooser::pct(rng, threads, n - 2, steps)
        }
    }
}

fn run(
    subject: &dyn Subject,
    options: &ConcurrentOptions,
    base: &Base,
    schedule: u64,
    counts: &mut Counts,
) -> Option<ConcurrentViolation> {
    let sim = &base.sim;
    let mut rng = Rng::of(options.seed, 1, schedule);
    let (threads, ops) = options.size();
    let programs = base.spot.programs(subject, threads, ops, &mut rng);
    let log = Rc::new(RefCell::new(Vec::new()));
    sim.set_sink(Some(Box::new(Log(Rc::clone(&log)))));
    sim.set_thread(0);
    let live = guarded(sim, FaultKind::Recovery, || match subject.open()? {
        Opened::Live(live) => Ok(live),
        Opened::Absent => Err(Fault::new(FaultKind::Lost, "the structure is gone")),
    });
    let live = match live {
        Ok(live) => live,
        Err(fault) => return Some(violation(options, schedule, fault)),
    };
    let opened = log.borrow().len();
    let ran = schedule::run(sim, live, programs, &log, chooser(options, base, schedule));
    sim.set_sink(None);
    let events = log.take();
    counts.operations += ran
        .calls
        .iter()
        .filter(|call| call.returned.is_some())
        .count() as u64;

    let mut fault = ran.fault;
    if let Some(live) = ran.live {
        if fault.is_none() {
            fault = check_run(sim, &*live, &ran.calls, &base.start).err();
        }
        abandon(sim, live);
    }
    let mut crash = None;
    if fault.is_none() {
        sim.roll_back(base.prepared);
        let trace = Trace {
            events: &events,
            opened,
            calls: &ran.calls,
            start: &base.start,
        };
        let found = crashes::explore(
            subject,
            sim,
            base.prepared,
            &trace,
            options.model,
            &mut rng,
            counts,
        );
        (fault, crash) = found.unzip();
    }
    fault.map(|fault| ConcurrentViolation {
        history: ran.calls,
        crash,
        ..violation(options, schedule, fault)
    })
}

/// Checks replies, content and structure of a run that ended without a crash.
fn check_run(
    sim: &Simulation,
    live: &dyn Live,
    calls: &[Call],
    start: &BTreeMap<u64, u64>,
) -> Result<(), Fault> {
    let wrong = |what: &dyn fmt::Display| Fault::new(FaultKind::Wrong, what.to_string());
    let outcomes = Outcomes::of(calls, start, usize::MAX);
    if let Some(mismatch) = outcomes.unexplained() {
        return Err(wrong(&mismatch));
    }
    let entries = guarded(sim, FaultKind::Structure, || {
        live.verify()?;
        content(live)
    })?;
    outcomes
        .check(&entries)
        .map_err(|mismatch| wrong(&mismatch))
}
