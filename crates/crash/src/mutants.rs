//! Mutation: whether the explorer notices when an instruction that makes things durable is missing.
//!
//! Three kinds of mutants, one at a time, under a model that they matter in:
//!
//! * every flush, fence and store fence that the workloads reach, switched off by its place in the
//!   source, in operations and in recovery;
//! * *early publish*: a store that follows a fence is made before what the fence made durable was
//!   flushed;
//! * *swap*: two neighbouring stores to different lines, kept apart by a fence, change places.
//!
//! The last two are made in the trace. A mutant that no oracle notices is a missing oracle or a wasted
//! instruction. Waste that needs no crash to be seen is counted too: flushes of clean lines, fences with
//! nothing to wait for.

use crate::concurrent::{self, ConcurrentOptions};
use crate::explore::{Options, Totals, Violation, explore};
use crate::record::{Mutation, Recording, record};
use crate::subject::{Fault, Subject};
use crate::workload::{Kind, Workload};
use bristlecone_pmem::media::sim::{Event, EventKind, Model, Site, SiteKind, line_of};
use bristlecone_pmem::sync::lock;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Further seeds that a mutant is tried on which the given ones do not notice.
const MORE_SEEDS: usize = 40;
/// Images of each workload whose recoveries are searched for sites of their own.
const SURVEYED: u64 = 5_000;
/// Schedules of threads that a mutant is tried with which nothing else notices.
const SCHEDULES: u64 = 2_000;

/// The usual patience, in images.
pub const PATIENCE: u64 = 40_000;

/// How mutants are explored.
#[derive(Clone, Debug)]
pub struct MutantOptions {
    /// The persistency model. Under `eadr` flushes do nothing anyway, so only fences are mutated.
    pub model: Model,
    /// Operations in each workload.
    pub ops: usize,
    /// Which workloads.
    pub kinds: Vec<Kind>,
    /// Seeds of the workloads: each kind with each.
    pub seeds: Vec<u64>,
    /// Threads.
    pub workers: usize,
    /// Images after which a site that nothing has noticed the loss of counts as not needed; an ordering
    /// after a quarter. What comes of a mutant does not depend on the machine's speed.
    pub patience: u64,
    /// Time after which a mutant that still has images to try is given up as undecided.
    pub limit: Duration,
}

/// A mutant: what is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// An instruction is switched off.
    Off(Site),
    /// The store at the second place is made before what the fence at the first place made durable was
    /// flushed.
    EarlyPublish(Place, Place),
    /// The stores at these places change places.
    Swap(Place, Place),
}

/// File, line, column.
pub type Place = (&'static str, u32, u32);

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off(site) => write!(f, "{site}"),
            Self::EarlyPublish(fence, store) => write!(
                f,
                "{}:{} (store before the fence at {}:{})",
                store.0, store.1, fence.0, fence.1
            ),
            Self::Swap(a, b) => write!(
                f,
                "{}:{} (store swapped with the one at {}:{})",
                b.0, b.1, a.0, a.1
            ),
        }
    }
}

/// A site all or some of whose executions did nothing.
#[derive(Clone, Debug)]
pub struct Waste {
    /// The site.
    pub site: Site,
    /// How often it was executed.
    pub executed: u64,
    /// How often in vain.
    pub wasted: u64,
}

/// What came of the mutants.
#[derive(Clone, Debug, Default)]
pub struct MutantReport {
    /// Instruction sites that the workloads reached.
    pub sites: usize,
    /// Ordering mutants that their traces allow.
    pub orderings: usize,
    /// Mutants that were noticed, and the first violation of each.
    pub killed: Vec<(Mutant, Violation)>,
    /// Mutants that only another subject noticed, or threads: a reason why the instruction is there.
    pub killed_elsewhere: Vec<(Mutant, String)>,
    /// Mutants that were noticed before any crash: an operation or opening failed.
    pub failed_live: Vec<Mutant>,
    /// Instructions whose absence nothing noticed.
    pub survivors: Vec<Mutant>,
    /// Orderings that nothing depends on: the fence between is there for something else (for other
    /// threads, or so that the operation may return).
    pub independent: Vec<Mutant>,
    /// Sites that did nothing every time they were executed.
    pub waste: Vec<Waste>,
    /// Sites that did nothing some of the time.
    pub partly_wasted: Vec<Waste>,
    /// Mutants that nothing noticed before their time was up.
    pub undecided: Vec<Mutant>,
    /// Images recovered.
    pub images: u64,
    /// The most that one mutant took which was noticed.
    pub hardest: u64,
}

fn place(at: &'static Location<'static>) -> Place {
    (at.file(), at.line(), at.column())
}

/// Does `work` on all of `todo`, on several threads.
fn parallel<T: Sync>(todo: &[T], workers: usize, work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..workers.max(1) {
            scope.spawn(|| {
                // ORDERING: Relaxed; only the number matters.
                while let Some(one) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(one);
                }
            });
        }
    });
}

/// A recorded workload and the sites in it.
struct Recorded {
    workload: Workload,
    recording: Recording,
    sites: BTreeSet<Site>,
}

impl Recorded {
    fn new(
        subject: &dyn Subject,
        kind: Kind,
        options: &MutantOptions,
        seed: u64,
    ) -> Result<Self, Fault> {
        let workload = Workload::generate(kind, options.ops, seed, subject);
        let recording = record(subject, &workload, &Mutation::default())?;
        Ok(Self {
            sites: sites_of(&recording.events),
            workload,
            recording,
        })
    }
}

fn record_all(subject: &dyn Subject, options: &MutantOptions) -> Result<Vec<Recorded>, Fault> {
    let mut recorded = Vec::new();
    for seed in &options.seeds {
        for kind in &options.kinds {
            recorded.push(Recorded::new(subject, *kind, options, *seed)?);
        }
    }
    Ok(recorded)
}

/// Explores every mutant of `subject`. What its own workloads do not notice is tried on the
/// `companions` that reach the same instruction, and with threads. `seen` hears how many are done, and of
/// how many.
///
/// # Errors
/// The subject failed without being mutated.
pub fn mutants(
    subject: &dyn Subject,
    companions: &[Arc<dyn Subject>],
    options: &MutantOptions,
    seen: &(dyn Fn(usize, usize) + Sync),
) -> Result<MutantReport, Fault> {
    let recorded = record_all(subject, options)?;
    let mut report = MutantReport::default();
    let mut sites: BTreeSet<Site> = recorded.iter().flat_map(|r| &r.sites).copied().collect();
    // Recovery has sites of its own, some of which only certain images reach.
    let recoveries = Mutex::new(Totals::default());
    parallel(&recorded, options.workers, |r| {
        let quick = Options {
            survey: true,
            bound: 24,
            samples: 0,
            thorough_every: 2,
            most: SURVEYED,
            stop_at_first: true,
            ..Options::new(options.model)
        };
        let totals = explore(subject, &r.recording, &quick, &|_| {});
        lock(&recoveries).add(totals);
    });
    let recoveries = (recoveries.into_inner()).unwrap_or_else(PoisonError::into_inner);
    if let Some(violation) = recoveries.found.into_iter().next() {
        return Err(violation.fault);
    }
    report.images += recoveries.images;
    sites.extend(recoveries.recovery_sites);
    sites.retain(|site| match options.model {
        Model::X86Tso => site.kind != SiteKind::StoreFence,
        Model::ArmV8 => true,
        Model::Eadr => site.kind == SiteKind::Fence,
    });
    report.sites = sites.len();
    let mut todo: Vec<Mutant> = sites.into_iter().map(Mutant::Off).collect();
    let orderings: BTreeSet<Mutant> = recorded
        .iter()
        .flat_map(|r| orderings_of(&r.recording))
        .collect();
    if options.model != Model::Eadr {
        report.orderings = orderings.len();
        todo.extend(orderings);
    }
    (report.waste, report.partly_wasted) = waste_of(&recorded);

    let results = Mutex::new(report);
    parallel(&todo, options.workers, |mutant| {
        let fate = try_mutant(subject, options, &recorded, *mutant);
        let mut report = lock(&results);
        report.images += fate.images;
        match fate.outcome {
            Outcome::Killed(violation) => {
                report.hardest = report.hardest.max(fate.images);
                report.killed.push((*mutant, *violation));
            }
            Outcome::FailedLive => report.failed_live.push(*mutant),
            Outcome::Undecided => report.undecided.push(*mutant),
            Outcome::Survived => match mutant {
                Mutant::Off(_) => report.survivors.push(*mutant),
                _ => report.independent.push(*mutant),
            },
        }
        let done = report.killed.len()
            + report.failed_live.len()
            + report.survivors.len()
            + report.independent.len()
            + report.undecided.len();
        seen(done, todo.len());
    });
    try_elsewhere(subject, companions, options, &recorded, &results);
    let mut report = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.killed.sort_by_key(|(mutant, _)| *mutant);
    report.failed_live.sort();
    report.survivors.sort();
    report.independent.sort();
    report.undecided.sort();
    Ok(report)
}

/// Tries the sites that nothing missed on other subjects, then with threads.
fn try_elsewhere(
    subject: &dyn Subject,
    companions: &[Arc<dyn Subject>],
    options: &MutantOptions,
    recorded: &[Recorded],
    results: &Mutex<MutantReport>,
) {
    let others = || companions.iter().filter(|c| c.name() != subject.name());
    let left = || -> Vec<Site> {
        let off = |mutant: &Mutant| match mutant {
            Mutant::Off(site) => Some(*site),
            _ => None,
        };
        let report = lock(results);
        let left = report.survivors.iter().chain(&report.undecided);
        left.filter_map(off).collect()
    };
    let killed = |site: Site, by: String| {
        let mut report = lock(results);
        report.survivors.retain(|m| *m != Mutant::Off(site));
        report.undecided.retain(|m| *m != Mutant::Off(site));
        report.killed_elsewhere.push((Mutant::Off(site), by));
    };
    // What only recovery reaches here may be anywhere in the others.
    let only_recovery = |site: &Site| !recorded.iter().any(|r| r.sites.contains(site));
    for other in others() {
        let survivors = left();
        if survivors.is_empty() {
            return;
        }
        let Ok(recorded) = record_all(&**other, options) else {
            continue; // its own run says so
        };
        let reached: Vec<Site> = survivors
            .into_iter()
            .filter(|site| only_recovery(site) || recorded.iter().any(|r| r.sites.contains(site)))
            .collect();
        parallel(&reached, options.workers, |site| {
            let fate = try_mutant(&**other, options, &recorded, Mutant::Off(*site));
            lock(results).images += fate.images;
            if matches!(fate.outcome, Outcome::Killed(_) | Outcome::FailedLive) {
                killed(*site, other.name());
            }
        });
    }
    let all = std::iter::once(subject).chain(others().map(|c| &**c));
    for with_threads in all.filter(|subject| subject.concurrent()) {
        parallel(&left(), options.workers, |site| {
            let concurrent = ConcurrentOptions {
                off: vec![*site],
                schedules: SCHEDULES,
                budget: Some(options.limit),
                stop_at_first: true,
                model: options.model,
                ..ConcurrentOptions::default()
            };
            let report = concurrent::explore(with_threads, &concurrent, &mut |_| {});
            lock(results).images += report.images;
            if report.violation_count > 0 {
                killed(*site, format!("{} with threads", with_threads.name()));
            }
        });
    }
}

enum Outcome {
    Killed(Box<Violation>),
    FailedLive,
    Survived,
    Undecided,
}

struct Fate {
    outcome: Outcome,
    images: u64,
}

/// How a mutant is explored on one workload.
#[derive(Clone, Copy)]
struct Depth {
    bound: usize,
    thorough_every: u64,
    nested: bool,
}

/// What most mutants are noticed by.
const QUICK: Depth = Depth {
    bound: 200,
    thorough_every: 60,
    nested: false,
};
/// Crashes in recovery included.
const THOROUGH: Depth = Depth {
    bound: 400,
    thorough_every: 3,
    nested: true,
};

/// One mutant's trials.
struct Trial<'a> {
    subject: &'a dyn Subject,
    options: &'a MutantOptions,
    mutant: Mutant,
    until: Instant,
    images: u64,
}

impl Trial<'_> {
    /// Explores `r`, mutated, until `most` images are spent in all.
    fn explore(&mut self, r: &Recorded, depth: Depth, most: u64) -> Option<Outcome> {
        if self.images >= most {
            return None;
        }
        if Instant::now() > self.until {
            return Some(Outcome::Undecided);
        }
        let (recording, mutation) = match self.mutant {
            Mutant::Off(site) => {
                let mutation = Mutation {
                    off: vec![site],
                    planted: None,
                };
                match record(self.subject, &r.workload, &mutation) {
                    Ok(recording) => (recording, mutation),
                    Err(_) => return Some(Outcome::FailedLive),
                }
            }
            ordering => (reordered(&r.recording, ordering)?, Mutation::default()),
        };
        let explored = Options {
            nested: depth.nested,
            bound: depth.bound,
            samples: 16,
            thorough_every: depth.thorough_every,
            most: most - self.images,
            deadline: Some(self.until),
            stop_at_first: true,
            mutation,
            ..Options::new(self.options.model)
        };
        let totals = explore(self.subject, &recording, &explored, &|_| {});
        self.images += totals.images;
        let violation = totals.found.into_iter().next()?;
        Some(Outcome::Killed(Box::new(violation)))
    }
}

fn try_mutant(
    subject: &dyn Subject,
    options: &MutantOptions,
    recorded: &[Recorded],
    mutant: Mutant,
) -> Fate {
    let patience = match mutant {
        Mutant::Off(_) => options.patience,
        // Many of these are independent, and the others are noticed soon.
        Mutant::EarlyPublish(..) | Mutant::Swap(..) => options.patience / 4,
    };
    let mut trial = Trial {
        subject,
        options,
        mutant,
        until: Instant::now() + options.limit,
        images: 0,
    };
    let here: Vec<&Recorded> = recorded.iter().filter(|r| at_work(r, mutant)).collect();
    let outcome = (|| {
        // First where the mutant is at work, quickly, then in workloads that no one else needs.
        for r in &here {
            if let Some(outcome) = trial.explore(r, QUICK, patience / 2) {
                return Some(outcome);
            }
        }
        let first = options.seeds.iter().max().map_or(0, |seed| seed + 1);
        for seed in (first..).take(if here.is_empty() { 0 } else { MORE_SEEDS }) {
            for kind in &options.kinds {
                if trial.images >= patience / 2 {
                    break;
                }
                let r = Recorded::new(subject, *kind, options, seed).ok()?;
                if at_work(&r, mutant)
                    && let Some(outcome) = trial.explore(&r, QUICK, patience / 2)
                {
                    return Some(outcome);
                }
            }
        }
        // Then thoroughly: an equal share of what is left for each workload.
        let thorough: Vec<&Recorded> = if here.is_empty() {
            recorded.iter().collect()
        } else {
            here
        };
        let n = thorough.len() as u64;
        for (i, r) in thorough.into_iter().enumerate() {
            let share = patience.saturating_sub(trial.images) / (n - i as u64);
            let most = trial.images + share;
            if let Some(outcome) = trial.explore(r, THOROUGH, most) {
                return Some(outcome);
            }
        }
        None
    })();
    let late = || Instant::now() > trial.until;
    Fate {
        outcome: outcome.unwrap_or_else(|| {
            if late() {
                Outcome::Undecided
            } else {
                Outcome::Survived
            }
        }),
        images: trial.images,
    }
}

/// True if the trace has what the mutant changes.
fn at_work(r: &Recorded, mutant: Mutant) -> bool {
    match mutant {
        Mutant::Off(site) => r.sites.contains(&site),
        _ => orderings_of(&r.recording).contains(&mutant),
    }
}

/// The instruction sites in a trace.
pub(crate) fn sites_of(events: &[Event]) -> BTreeSet<Site> {
    // Most events repeat few places; compare those by address first.
    let mut seen = HashSet::new();
    events
        .iter()
        .filter_map(|event| Some((event.site, SiteKind::of(&event.kind)?)))
        .filter(|(at, kind)| seen.insert((std::ptr::from_ref(*at), *kind)))
        .map(|(at, kind)| Site::new(at, kind))
        .collect()
}

/// The word that an event changes, if it changes one.
fn changes(event: &Event) -> Option<u32> {
    match event.kind {
        EventKind::Store { at, old, new } if old != new => Some((at / 8) as u32),
        EventKind::Store16 { at, old, new } if old != new => Some((at / 8) as u32),
        _ => None,
    }
}

/// A fence, and the stores by the same thread, in the same step, on both sides of it.
struct Pair {
    /// The last changing store before the fence.
    before: usize,
    /// Where that fence's flushes begin.
    flushes: usize,
    fence: usize,
    /// The changing stores after it, up to the next flush or fence.
    after: Vec<usize>,
}

fn pairs(recording: &Recording) -> Vec<Pair> {
    let events = &recording.events;
    let mut found: Vec<Pair> = Vec::new();
    for step in &recording.steps[recording.explored.min(recording.steps.len())..] {
        let (mut store, mut flush, mut open) = (None, None, false);
        for (i, event) in events.iter().enumerate().take(step.end).skip(step.begin) {
            if changes(event).is_some() {
                if open && let Some(pair) = found.last_mut() {
                    pair.after.push(i);
                }
                (store, flush) = (Some(i), None);
                continue;
            }
            match event.kind {
                EventKind::Flush { .. } => {
                    open = false;
                    flush = flush.or(Some(i));
                }
                EventKind::Fence => {
                    open = false;
                    if let Some(before) = store {
                        open = true;
                        found.push(Pair {
                            before,
                            flushes: flush.unwrap_or(i),
                            fence: i,
                            after: Vec::new(),
                        });
                    }
                }
                _ => {}
            }
        }
    }
    found.retain(|pair| !pair.after.is_empty());
    found
}

/// The mutants of a pair, named by the last of the stores that move: the one that publishes.
fn orderings_of_pair(events: &[Event], pair: &Pair) -> Option<[Mutant; 2]> {
    let last = *pair.after.last()?;
    let [before, fence, after] = [pair.before, pair.fence, last].map(|i| place(events[i].site));
    let line = |i: usize| changes(&events[i]).map(line_of);
    let apart = pair.after.iter().any(|i| line(*i) != line(pair.before));
    apart.then_some([
        Mutant::EarlyPublish(fence, after),
        Mutant::Swap(before, after),
    ])
}

fn orderings_of(recording: &Recording) -> BTreeSet<Mutant> {
    pairs(recording)
        .iter()
        .filter_map(|pair| orderings_of_pair(&recording.events, pair))
        .flatten()
        .collect()
}

/// The trace with every instance of an ordering mutant made.
fn reordered(recording: &Recording, mutant: Mutant) -> Option<Recording> {
    let mut events = recording.events.clone();
    let mut any = false;
    // From the end, so that what was moved does not move what is to be.
    for pair in pairs(recording).iter().rev() {
        let Some([early, swap]) = orderings_of_pair(&recording.events, pair) else {
            continue;
        };
        let to = if mutant == early {
            pair.flushes
        } else if mutant == swap {
            pair.before
        } else {
            continue;
        };
        for (n, from) in pair.after.iter().enumerate() {
            let moved = changes(&events[*from]);
            let passed = &events[to + n..*from];
            if passed.iter().all(|event| changes(event) != moved) {
                events[to + n..=*from].rotate_right(1);
                any = true;
            }
        }
    }
    any.then(|| Recording {
        events,
        ..recording.clone()
    })
}

/// Flushes of clean lines and fences with nothing to wait for: sites always and sometimes so.
fn waste_of(recorded: &[Recorded]) -> (Vec<Waste>, Vec<Waste>) {
    let mut counts: BTreeMap<Site, (u64, u64)> = BTreeMap::new();
    for r in recorded {
        let mut dirty: HashSet<u64> = HashSet::new();
        let mut waiting: BTreeMap<u8, u64> = BTreeMap::new();
        for event in &r.recording.events {
            let wasted = match event.kind {
                EventKind::Store { at, .. } | EventKind::Store16 { at, .. } => {
                    dirty.insert(at / 64);
                    continue;
                }
                EventKind::Flush { line } => {
                    let clean = !dirty.remove(&(line / 64));
                    *waiting.entry(event.thread).or_default() += u64::from(!clean);
                    clean
                }
                EventKind::Fence => waiting.insert(event.thread, 0).unwrap_or(0) == 0,
                _ => continue,
            };
            if let Some(kind) = SiteKind::of(&event.kind) {
                let count = counts.entry(Site::new(event.site, kind)).or_default();
                count.0 += 1;
                count.1 += u64::from(wasted);
            }
        }
    }
    let all = counts.into_iter().filter(|(_, count)| count.1 > 0);
    all.map(|(site, (executed, wasted))| Waste {
        site,
        executed,
        wasted,
    })
    .partition(|waste| waste.wasted == waste.executed)
}
