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
//! instruction. What notices one is tried again without it, since an oracle that also fails there says nothing
//! about the mutant. Waste that needs no crash to be seen is counted too: flushes of clean lines, fences with
//! nothing to wait for.

mod orderings;
mod trial;

use crate::concurrent::{self, ConcurrentOptions};
use crate::explore::{Options, Totals, Violation, explore};
use crate::over;
use crate::record::{Mutation, Recording, Step, record, sites_of};
use crate::subject::{Fault, FaultKind, Subject};
use crate::token::WorkloadId;
use crate::workload::{Kind, Workload};
use bristlecone_pmem::media::sim::{Event, Model, Site, SiteKind};
use bristlecone_pmem::sync::lock;
use orderings::{orderings_of, waste_of};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use trial::{Outcome, try_mutant};

/// Further seeds that a mutant is tried on which the given ones do not notice.
const MORE_SEEDS: usize = 40;
/// Steps of a workload that an instruction is first missed in.
const NEAR: usize = 6;
/// Images of each workload whose recoveries are searched for sites of their own.
const SURVEYED: u64 = 5_000;
/// Of so many steps of a workload, one is searched for sites that only recovery has.
const SURVEYED_STEPS: usize = 3;
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
    /// Images after which a site that nothing has noticed the loss of counts as not needed; an ordering,
    /// and any site under `eadr`, after a quarter; a site that only recovery comes to, after eight times as many.
    /// What comes of a mutant does not depend on the machine's speed.
    pub patience: u64,
    /// Only mutants whose places, written as `FILE:LINE`, have this in them.
    pub only: Option<String>,
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

impl Mutant {
    /// True if the places of what it changes, written as they are shown (`FILE:LINE`), have `part` in them.
    #[must_use]
    pub fn is_in(&self, part: &str) -> bool {
        self.to_string().contains(part)
    }
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
    /// Mutants that only another subject noticed, a pool made over another, or threads: a reason why the instruction is there.
    pub killed_elsewhere: Vec<(Mutant, String)>,
    /// Mutants that were noticed before any crash: an operation or opening failed.
    pub failed_live: Vec<Mutant>,
    /// Instructions whose absence nothing noticed.
    pub survivors: Vec<Mutant>,
    /// Orderings that nothing depends on: the fence between is there for something else (for other
    /// threads, or so that the operation may return).
    pub independent: Vec<Mutant>,
    /// Fences that nothing needs where what was stored is durable in order (`eadr`).
    pub unneeded: Vec<Mutant>,
    /// Instruction sites that do nothing under the model, and are not mutated.
    pub without_effect: usize,
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

/// A recorded workload, and what there is to mutate in it.
struct Recorded {
    id: WorkloadId,
    workload: Workload,
    recording: Recording,
    at_work: AtWork,
    /// Sites that a survey saw in recoveries from it, and the steps that the crashes were in.
    recovers: BTreeMap<Site, BTreeSet<usize>>,
}

/// What can be mutated in a trace.
struct AtWork {
    sites: BTreeSet<Site>,
    orderings: BTreeSet<Mutant>,
}

impl AtWork {
    fn has(&self, mutant: Mutant) -> bool {
        match mutant {
            Mutant::Off(site) => self.sites.contains(&site),
            ordering => self.orderings.contains(&ordering),
        }
    }
}

impl Recorded {
    fn new(
        subject: &dyn Subject,
        kind: Kind,
        options: &MutantOptions,
        seed: u64,
    ) -> Result<Self, Fault> {
        let id = WorkloadId {
            kind,
            ops: options.ops,
            seed,
            kept: None,
        };
        let workload = id.generate(subject);
        let recording = record(subject, &workload, &Mutation::default())?;
        let at_work = AtWork {
            sites: sites_of(&recording.events),
            orderings: orderings_of(&recording),
        };
        Ok(Self {
            id,
            workload,
            recording,
            at_work,
            recovers: BTreeMap::new(),
        })
    }

    /// The steps that are `wanted`, from their beginnings, for [`Options::only`].
    fn only(&self, wanted: impl Fn(usize) -> bool) -> Vec<Option<usize>> {
        let all = 0..self.recording.steps.len();
        all.map(|step| wanted(step).then_some(0)).collect()
    }

    /// Some of the explored steps that an instruction is in, and after how many of their events it first is;
    /// `None` if it is in none.
    fn some_steps_with(&self, site: Site) -> Option<Vec<Option<usize>>> {
        let Recording {
            steps,
            events,
            explored,
            ..
        } = &self.recording;
        let with: Vec<usize> = (*explored..steps.len())
            .filter(|i| sites_of(&events[steps[*i].begin..steps[*i].end]).contains(&site))
            .collect();
        let is = |event: &Event| {
            SiteKind::of(&event.kind).is_some_and(|kind| Site::new(event.site, kind) == site)
        };
        let mut chosen = vec![None; steps.len()];
        for i in with.iter().step_by(with.len().div_ceil(NEAR).max(1)) {
            let Step { begin, end, .. } = steps[*i];
            chosen[*i] = events[begin..end].iter().position(is);
        }
        (!with.is_empty()).then_some(chosen)
    }
}

/// A subject and the workloads that its mutants are tried on.
struct Tried<'a> {
    subject: &'a dyn Subject,
    options: &'a MutantOptions,
    recorded: Vec<Recorded>,
    /// What is at work in further workloads, by seed and kind; found out when it is first asked for.
    further: Vec<OnceLock<Option<AtWork>>>,
}

impl<'a> Tried<'a> {
    fn new(subject: &'a dyn Subject, options: &'a MutantOptions) -> Result<Self, Fault> {
        let mut recorded = Vec::new();
        for seed in &options.seeds {
            for kind in &options.kinds {
                recorded.push(Recorded::new(subject, *kind, options, *seed)?);
            }
        }
        let further = MORE_SEEDS * options.kinds.len();
        Ok(Self {
            subject,
            options,
            recorded,
            further: std::iter::repeat_with(OnceLock::new)
                .take(further)
                .collect(),
        })
    }

    /// True if the operations of a workload, not only its recoveries, reach an instruction.
    fn operates(&self, site: Site) -> bool {
        let mut recorded = self.recorded.iter();
        recorded.any(|r| r.at_work.sites.contains(&site))
    }

    /// Recovery has sites of its own, some of which only certain images reach: looks for them.
    fn survey(&mut self) -> Result<Totals, Fault> {
        let found: Vec<Mutex<Totals>> = self.recorded.iter().map(|_| Mutex::default()).collect();
        let todo: Vec<(usize, (&Recorded, &Mutex<Totals>))> =
            self.recorded.iter().zip(&found).enumerate().collect();
        parallel(&todo, self.options.workers, |(number, (r, found))| {
            let surveyed = |step: usize| (step + number).is_multiple_of(SURVEYED_STEPS);
            let quick = Options {
                survey: true,
                bound: 8,
                samples: 4,
                thorough_every: 2,
                most: SURVEYED,
                only: Some(r.only(surveyed)),
                stop_at_first: true,
                ..Options::new(self.options.model)
            };
            *lock(found) = explore(self.subject, &r.recording, &quick, &|_| {});
        });
        let mut all = Totals::default();
        for (r, found) in self.recorded.iter_mut().zip(found) {
            let totals = found.into_inner().unwrap_or_else(PoisonError::into_inner);
            r.recovers.clone_from(&totals.recovery_sites);
            all.add(totals);
        }
        match all.found.pop() {
            Some(violation) => Err(violation.fault),
            None => Ok(all),
        }
    }

    /// The workloads of further seeds that a mutant is at work in.
    fn further(&self, mutant: Mutant) -> impl Iterator<Item = Recorded> {
        let kinds = &self.options.kinds;
        let first = self.options.seeds.iter().max().map_or(0, |seed| seed + 1);
        (first..)
            .flat_map(move |seed| kinds.iter().map(move |kind| (seed, *kind)))
            .zip(&self.further)
            .filter_map(move |((seed, kind), at_work)| {
                let new = || Recorded::new(self.subject, kind, self.options, seed).ok();
                let at_work = at_work.get_or_init(|| new().map(|r| r.at_work));
                at_work.as_ref()?.has(mutant).then(new)?
            })
    }
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
    let mut tried = Tried::new(subject, options)?;
    let recoveries = tried.survey()?;
    let mut report = MutantReport {
        images: recoveries.images,
        ..MutantReport::default()
    };
    let reached = tried.recorded.iter().flat_map(|r| &r.at_work.sites);
    let mut sites: BTreeSet<Site> = reached.copied().collect();
    sites.extend(recoveries.recovery_sites.into_keys());
    let wanted = |mutant: &Mutant| options.only.as_ref().is_none_or(|part| mutant.is_in(part));
    sites.retain(|site| wanted(&Mutant::Off(*site)));
    let all = sites.len();
    sites.retain(|site| options.model.orders(site.kind));
    report.without_effect = all - sites.len();
    report.sites = sites.len();
    let mut todo: Vec<Mutant> = sites.into_iter().map(Mutant::Off).collect();
    if options.model != Model::Eadr {
        let orderings = tried.recorded.iter().flat_map(|r| &r.at_work.orderings);
        let orderings: BTreeSet<Mutant> = orderings.copied().filter(wanted).collect();
        report.orderings = orderings.len();
        todo.extend(orderings);
    }
    (report.waste, report.partly_wasted) = waste_of(&tried.recorded, options.model);
    for waste in [&mut report.waste, &mut report.partly_wasted] {
        waste.retain(|waste| wanted(&Mutant::Off(waste.site)));
    }

    let results = Mutex::new(report);
    let unsound = Mutex::new(None);
    parallel(&todo, options.workers, |mutant| {
        if lock(&unsound).is_some() {
            return;
        }
        let fate = try_mutant(&tried, *mutant, options.patience);
        let mut report = lock(&results);
        report.images += fate.images;
        match fate.outcome {
            Outcome::Killed(violation) => {
                report.hardest = report.hardest.max(fate.images);
                report.killed.push((*mutant, *violation));
            }
            Outcome::FailedLive => report.failed_live.push(*mutant),
            Outcome::Undecided => report.undecided.push(*mutant),
            Outcome::Unsound(fault) => *lock(&unsound) = Some(fault),
            Outcome::Survived => match mutant {
                Mutant::Off(_) if options.model == Model::Eadr => report.unneeded.push(*mutant),
                Mutant::Off(_) => report.survivors.push(*mutant),
                _ => report.independent.push(*mutant),
            },
        }
        let done = report.killed.len()
            + report.failed_live.len()
            + report.survivors.len()
            + report.independent.len()
            + report.unneeded.len()
            + report.undecided.len();
        seen(done, todo.len());
    });
    let broken = lock(&unsound).take();
    broken.map_or(Ok(()), Err)?;
    try_elsewhere(&tried, companions, &results)?;
    let mut report = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.killed.sort_by_key(|(mutant, _)| *mutant);
    report.killed_elsewhere.sort();
    report.failed_live.sort();
    report.survivors.sort();
    report.independent.sort();
    report.unneeded.sort();
    report.undecided.sort();
    Ok(report)
}

/// Another subject that mutants are tried on.
struct Companion<'a> {
    subject: &'a dyn Subject,
    /// Another layout of the design: what only recovery comes to may be in the same steps there.
    surveyed: bool,
    /// Its workloads, recorded (and surveyed) when they are first asked for.
    tried: OnceLock<Result<Tried<'a>, Fault>>,
}

impl<'a> Companion<'a> {
    fn new(subject: &'a dyn Subject, surveyed: bool) -> Self {
        Self {
            subject,
            surveyed,
            tried: OnceLock::new(),
        }
    }

    fn tried(&self, options: &'a MutantOptions) -> Result<&Tried<'a>, Fault> {
        let new = || {
            let surveyed = || {
                let mut tried = Tried::new(self.subject, options)?;
                if self.surveyed {
                    tried.survey()?;
                }
                Ok(tried)
            };
            surveyed().map_err(|fault: Fault| {
                let what = format!("{}: {}", self.subject.name(), fault.what);
                Fault::new(fault.kind, what)
            })
        };
        self.tried.get_or_init(new).as_ref().map_err(Fault::clone)
    }
}

/// The part of a subject's name that its layouts share.
fn family(name: &str) -> &str {
    name.split('-').next().unwrap_or(name)
}

/// Tries the sites that nothing missed on other subjects and with threads. First on those that are most
/// likely to need them: the same design's other layouts and what designs stand on.
fn try_elsewhere<'a>(
    tried: &Tried<'a>,
    companions: &'a [Arc<dyn Subject>],
    results: &Mutex<MutantReport>,
) -> Result<(), Fault> {
    let options = tried.options;
    let own = tried.subject.name();
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
    let undecided = |site: Site| {
        let mut report = lock(results);
        let known = report.survivors.len();
        report.survivors.retain(|m| *m != Mutant::Off(site));
        if report.survivors.len() < known {
            report.undecided.push(Mutant::Off(site));
        }
    };
    let left_for = |there: &Tried<'_>| -> Vec<Site> {
        let mut sites = left();
        // What only recovery reaches here may be anywhere in the others.
        sites.retain(|site| !tried.operates(*site) || there.operates(*site));
        sites
    };
    let on = |other: &Companion<'a>, patience: u64| -> Result<(), Fault> {
        if left().is_empty() {
            return Ok(());
        }
        let there = other.tried(options)?;
        let unsound = Mutex::new(None);
        parallel(&left_for(there), options.workers, |site| {
            let fate = try_mutant(there, Mutant::Off(*site), patience);
            lock(results).images += fate.images;
            match fate.outcome {
                Outcome::Killed(_) | Outcome::FailedLive => killed(*site, other.subject.name()),
                Outcome::Undecided => undecided(*site),
                Outcome::Unsound(fault) => *lock(&unsound) = Some(fault),
                Outcome::Survived => {}
            }
        });
        lock(&unsound).take().map_or(Ok(()), Err)
    };
    let with_threads = |subject: &dyn Subject, sites: &[Site]| -> Result<(), Fault> {
        let unsound = Mutex::new(None);
        parallel(sites, options.workers, |site| {
            let concurrent = ConcurrentOptions {
                off: vec![*site],
                schedules: SCHEDULES,
                budget: Some(options.limit),
                stop_at_first: true,
                model: options.model,
                ..ConcurrentOptions::default()
            };
            let report = concurrent::explore(subject, &concurrent, &mut |_| {});
            lock(results).images += report.images;
            if report.violation_count > 0 {
                let control = ConcurrentOptions {
                    off: Vec::new(),
                    schedules: report.schedules,
                    budget: None,
                    ..concurrent
                };
                let control = concurrent::explore(subject, &control, &mut |_| {});
                if control.violation_count > 0 {
                    let what = format!("{} with threads fails unmutated", subject.name());
                    *lock(&unsound) = Some(Fault::new(FaultKind::Wrong, what));
                    return;
                }
                killed(*site, format!("{} with threads", subject.name()));
            } else if report.schedules < SCHEDULES {
                undecided(*site);
            }
        });
        lock(&unsound).take().map_or(Ok(()), Err)
    };
    let others = companions.iter().filter(|c| c.name() != own);
    let layout = |name: &str| family(name) == family(&own);
    let mut all: Vec<Companion<'a>> = others
        .map(|c| Companion::new(&**c, layout(&c.name())))
        .collect();
    // What designs stand on first: it takes no survey, and most of what is left is in it.
    let rank = |c: &Companion<'_>| match family(&c.subject.name()) {
        _ if c.surveyed => 1,
        "pool" | "log" => 0,
        _ => 2,
    };
    all.sort_by_key(rank);
    let (near, far) = all.split_at(all.partition_point(|c| rank(c) < 2));
    let together = |all: &[Companion<'a>]| -> Result<(), Fault> {
        for other in all.iter().filter(|other| other.subject.concurrent()) {
            if left().is_empty() {
                return Ok(());
            }
            with_threads(other.subject, &left_for(other.tried(options)?))?;
        }
        Ok(())
    };
    let each = |all: &[Companion<'a>], patience: u64| -> Result<(), Fault> {
        all.iter().try_for_each(|other| on(other, patience))
    };
    each(near, options.patience)?;
    for site in left() {
        if over::explore(options.model, true, &[site]).is_err() {
            over::explore(options.model, true, &[])
                .map_err(|what| Fault::new(FaultKind::Wrong, what))?;
            killed(site, "a pool made over another".into());
        }
    }
    if tried.subject.concurrent() {
        with_threads(tried.subject, &left())?;
    }
    together(near)?;
    each(far, options.patience / 4)?;
    together(far)
}
