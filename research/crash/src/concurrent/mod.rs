//! Concurrent crash exploration: simulated threads, deterministic schedules, crashes at any point.
//!
//! | part | does |
//! | --- | --- |
//! | `program.rs` | prepares a structure's content, and makes each thread's operations |
//! | `schedule.rs` | runs the threads under one schedule and records their history |
//! | `crashes.rs` | chooses crash points, goes through their images, finds what was lost |
//! | [`history`](crate::history) | decides whether a history explains what is found |
//!
//! A run: open a prepared structure (as after a crash), let two or three threads do a few operations on
//! few neighbouring keys, check replies and content; then, for several points of the run, put the
//! simulation back to what was durable there, try the images that a crash may leave, recover each, and
//! check that the history up to the point is durably linearizable with what was recovered.
//!
//! *Visible before durable*: an image fails, and some completed call had seen what another thread's
//! call, which had not returned, had done and the image lost. Either the replies say so (the content
//! would be right but for calls that changed nothing and only answered), or the loads do. It is told
//! apart from a plain loss because the cure differs: not a missing flush but a lock released, or a
//! pointer followed, too early.
//!
//! Everything follows from the options and a schedule's number, so [`replay`] repeats a violation (to the
//! last address only while no other thread of the process defers frees: epochs are the process's).
//!
//! # Limits
//! Threads are switched before accesses to persistent memory, where the structure asks for it
//! ([`Instrument::interleave`](bristlecone_pmem::media::Instrument::interleave)), and where they wait; not between other
//! steps on volatile memory. Memory is sequentially consistent: only the persistency model is weak, and
//! orders of memory accesses are argued in the code. All threads use one allocator cache, as one thread
//! would.

mod crashes;
mod program;
mod schedule;

use crate::deferred::collect;
use crate::history::{Call, Outcomes};
use crate::quiet::{self, Caught};
use crate::rng::Rng;
use crate::subject::{Fault, FaultKind, Live, Op, Opened, Subject};
use crate::token::ScheduleToken;
pub use crate::token::{MAX_OPERATIONS, MAX_THREADS};
use crate::watchdog::{PATIENCE, watched};
use bristlecone_pmem::media::sim::{
    Event, Mark, Model, OutOfSteps, PendingStore, Simulation, Site,
};
use bristlecone_pmem::sync::set_give_way;
use crashes::Trace;
use program::Spot;
use schedule::{Chooser, Log, wait_for_others};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Accesses of one recovery with its checks before it counts as stuck.
const RECOVERY_STEPS: u64 = 1_000_000;
/// Tries to take a lock while no other simulated thread runs before it counts as stuck.
const ALONE_WAITS: u64 = 10_000;
/// Prepared structures that runs start from.
const BASES: u64 = 24;
/// Violations that a report keeps.
const KEPT: usize = 50;

/// What to explore.
#[derive(Clone, Debug)]
pub struct ConcurrentOptions {
    /// Which stores a crash may lose.
    pub model: Model,
    /// Simulated threads, from 1 to [`MAX_THREADS`] (taken as the nearest if it is not); most faults
    /// take two or three.
    pub threads: usize,
    /// Schedules to run.
    pub schedules: u64,
    /// Operations of each thread: at least 1, and [`MAX_OPERATIONS`] of all threads together (taken as
    /// the nearest if it is not).
    pub ops_per_thread: usize,
    /// What everything random follows from.
    pub seed: u64,
    /// Time after which no schedule is begun.
    pub budget: Option<Duration>,
    /// End at the first violation.
    pub stop_at_first: bool,
    /// A fault to make in the code under test ([`Simulation::plant`]).
    pub planted: Option<&'static str>,
    /// Flushes and fences to switch off.
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
    /// Threads, and operations of each.
    fn size(&self) -> (usize, usize) {
        let threads = self.threads.clamp(1, MAX_THREADS);
        let ops = self.ops_per_thread.clamp(1, MAX_OPERATIONS / threads);
        (threads, ops)
    }
}

impl ScheduleToken {
    /// The exploration that the schedule is one of.
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

/// What was explored, and what was found.
#[derive(Clone, Debug, Default)]
pub struct ConcurrentReport {
    /// Schedules run.
    pub schedules: u64,
    /// Operations that returned.
    pub operations: u64,
    /// Crash points tried.
    pub crash_points: u64,
    /// Of these: points where a call returned that may have seen what was not durable.
    pub directed_points: u64,
    /// Of the crash points: those of which every distinguishable image was tried.
    pub exhaustive_points: u64,
    /// Images recovered.
    pub images: u64,
    /// The first violations found (at most one for a schedule).
    pub violations: Vec<ConcurrentViolation>,
    /// How many there were.
    pub violation_count: u64,
    /// Time taken.
    pub seconds: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    operations: u64,
    crash_points: u64,
    directed: u64,
    exhaustive: u64,
    images: u64,
}

/// A store that a crash lost.
#[derive(Clone, Copy, Debug)]
pub struct LostStore {
    /// The thread that stored.
    pub thread: u8,
    /// The word (byte offset / 8).
    pub word: u32,
    /// What was stored.
    pub value: u64,
    /// Place in the order of all stores.
    pub seq: u32,
    /// Where it was stored.
    pub site: &'static Location<'static>,
}

impl LostStore {
    fn of(store: &PendingStore) -> Self {
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

/// A completed call that saw what the crash lost; calls by their place in the history.
#[derive(Clone, Copy, Debug)]
pub struct Dependence {
    /// The call that had returned.
    pub observer: usize,
    /// The call that had stored, and not returned.
    pub writer: usize,
    /// What was loaded and lost; `None` if it was seen through volatile memory.
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
    /// What the image lost, of the words that recovery read.
    pub lost: Vec<LostStore>,
    /// Who had seen some of that.
    pub dependence: Option<Dependence>,
}

/// What went wrong, and in which run.
#[derive(Clone, Debug)]
pub struct ConcurrentViolation {
    /// What.
    pub fault: Fault,
    /// The seed of the exploration.
    pub seed: u64,
    /// The schedule's number: with the same options, [`replay`] repeats it.
    pub schedule: u64,
    /// The calls, in the order they were made.
    pub history: Vec<Call>,
    /// The crash; `None` if it went wrong without any.
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

/// Runs the schedules of `options` on `subject`; calls `progress` after each with how many are done.
pub fn explore(
    subject: &dyn Subject,
    options: &ConcurrentOptions,
    progress: &mut dyn FnMut(u64),
) -> ConcurrentReport {
    share_of(subject, options, &AtomicU64::new(0), progress)
}

/// Runs the schedules of `options` on `subject`, on several threads of this machine; calls `progress`
/// after each.
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
        // ORDERING: Relaxed; it does not change while it hangs.
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
            if report.violations.len() < KEPT {
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

impl ConcurrentReport {
    /// Adds what another worker found in its share of the schedules.
    fn add(&mut self, other: Self) {
        self.schedules += other.schedules;
        self.operations += other.operations;
        self.crash_points += other.crash_points;
        self.directed_points += other.directed_points;
        self.exhaustive_points += other.exhaustive_points;
        self.images += other.images;
        self.violation_count += other.violation_count;
        self.violations.extend(other.violations);
        self.violations.sort_by_key(|violation| violation.schedule);
        self.violations.truncate(KEPT);
        self.seconds = self.seconds.max(other.seconds);
    }
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

/// The value that an operation stores.
fn value_of(op: &Op) -> Option<u64> {
    match *op {
        Op::Insert(_, value) | Op::Upsert(_, value) | Op::Update(_, value) => Some(value),
        _ => None,
    }
}

/// What checks and recoveries are run under, outside of any schedule: a limit of steps, and an end to
/// waiting, since there is no one to wait for. A panic is a fault of that kind.
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

/// Every entry, ascending.
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
    // What a broken structure's end does is of no interest any more.
    let _ = quiet::catch(|| drop(live));
    sim.set_frozen(false);
}

/// Opens what a crash left, checks it, reads it, and abandons it.
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
    /// Accesses of an operation, about.
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

    /// A simulation with a structure that operations were done on. Gives the steps of each to `cost`.
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

/// Prepared structures, made when they are needed.
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

/// Every other schedule is a PCT one; how often random ones switch, and how many priority changes the
/// others have, differs too.
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

/// Checks a run that no crash ended: replies, content, structure.
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
