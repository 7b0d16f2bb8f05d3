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

mod elsewhere;
mod orderings;
mod trial;

use crate::explore::{Options, Totals, Violation, explore};
use crate::record::{Mutation, Recording, Step, record, sites_of};
use crate::subject::{Fault, Subject};
use crate::token::WorkloadId;
use crate::workload::{Kind, Workload};
use bristlecone_pmem::media::sim::{Event, Model, Site, SiteKind};
use bristlecone_pmem::sync::lock;
use elsewhere::Elsewhere;
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
    Elsewhere::new(&tried, companions, &results).run()?;
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
