//! Mutation testing: the explorer must notice a missing flush or fence.
//!
//! There are three kinds of mutants. They are tried one at a time, under a model in which they
//! matter:
//!
//! * *off*: a flush, fence or store fence that the workloads reach is switched off by its place in
//!   the source, in operations and in recovery;
//! * *early publish*: a store after a fence moves before the flush that the fence waits for;
//! * *swap*: two neighbouring stores to different lines, with a fence between them, change places.
//!
//! The last two are made in the trace. A mutant that no oracle notices is a missing oracle or a
//! wasted instruction. The workload that notices a mutant is tried again without it, since an
//! oracle that fails there too says nothing about the mutant. Waste that shows without a crash is
//! counted as well: flushes of clean lines, and fences with nothing to wait for.

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

/// Further seeds to try for a mutant that the given seeds do not notice.
const MORE_SEEDS: usize = 40;
/// Steps of a workload in which an instruction is first switched off.
const NEAR: usize = 6;
/// Images of each workload whose recoveries a survey searches for further sites.
const SURVEYED: u64 = 5_000;
/// A survey kills the process at one crash point in so many.
const SURVEYED_KILLS: u64 = 60;
/// A survey searches one step in so many for sites that only recovery has.
const SURVEYED_STEPS: usize = 3;

/// Default patience, in images.
pub const PATIENCE: u64 = 40_000;

/// The parameters of mutation testing.
#[derive(Clone, Debug)]
pub struct MutantOptions {
    /// The persistency model. Under `eadr` flushes do nothing anyway, so only fences are mutated.
    pub model: Model,
    /// Operations in each workload.
    pub ops: usize,
    /// Kinds of workloads.
    pub kinds: Vec<Kind>,
    /// Seeds of the workloads. Each kind runs with each seed.
    pub seeds: Vec<u64>,
    /// Threads of this machine.
    pub workers: usize,
    /// Number of images after which a site counts as not needed if nothing has noticed its loss. An
    /// ordering, and any site under `eadr`, takes a quarter of it, a site that only recovery
    /// reaches eight times as many. Since images are counted, the result does not depend on the
    /// machine's speed.
    pub patience: u64,
    /// Limits mutation to mutants with a place, written as `FILE:LINE`, that contains this text.
    pub only: Option<String>,
    /// Time after which a mutant that still has images to try counts as undecided.
    pub limit: Duration,
}

/// A mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mutant {
    /// The instruction is switched off.
    Off(Site),
    /// The store at the second place moves before the flush that the fence at the first place waits
    /// for.
    EarlyPublish(Place, Place),
    /// The stores at these places change places.
    Swap(Place, Place),
}

impl Mutant {
    /// Returns true if one of its places, as they are shown (`FILE:LINE`), contains `part`.
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

/// A site of which all or some executions did nothing.
#[derive(Clone, Debug)]
pub struct Waste {
    /// The site.
    pub site: Site,
    /// Number of executions.
    pub executed: u64,
    /// Number of executions that did nothing.
    pub wasted: u64,
}

/// The result of mutation testing.
#[derive(Clone, Debug, Default)]
pub struct MutantReport {
    /// Instruction sites that the workloads reached.
    pub sites: usize,
    /// Ordering mutants that their traces allow.
    pub orderings: usize,
    /// Noticed mutants, each with its first violation.
    pub killed: Vec<(Mutant, Violation)>,
    /// Mutants that only another subject noticed, or a pool made over another, or threads, with the
    /// name of what noticed them.
    pub killed_elsewhere: Vec<(Mutant, String)>,
    /// Mutants with which an operation or an opening failed before any crash.
    pub failed_live: Vec<Mutant>,
    /// Instructions whose loss nothing noticed.
    pub survivors: Vec<Mutant>,
    /// Orderings that nothing depends on. The fence serves another purpose: other threads, or the
    /// return of the operation.
    pub independent: Vec<Mutant>,
    /// Fences that nothing needs where stores become durable in order (`eadr`).
    pub unneeded: Vec<Mutant>,
    /// Number of instruction sites that do nothing under the model. They are not mutated.
    pub without_effect: usize,
    /// Sites of which no execution did anything.
    pub waste: Vec<Waste>,
    /// Sites of which some executions did nothing.
    pub partly_wasted: Vec<Waste>,
    /// Mutants that nothing noticed within their time.
    pub undecided: Vec<Mutant>,
    /// Images recovered.
    pub images: u64,
    /// Images of the noticed mutant that took the most.
    pub hardest: u64,
}

/// Calls `work` for all of `todo`, on several threads.
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

/// A recorded workload, and the mutants that its trace allows.
struct Recorded {
    id: WorkloadId,
    workload: Workload,
    recording: Recording,
    mutable: Mutable,
    /// Sites that a survey saw in recoveries, each with the steps of the crashes.
    recovers: BTreeMap<Site, BTreeSet<usize>>,
    /// Those that it saw in openings after a kill, each with the steps of the kills.
    reopens: BTreeMap<Site, BTreeSet<usize>>,
}

/// The mutants that a trace allows.
struct Mutable {
    sites: BTreeSet<Site>,
    orderings: BTreeSet<Mutant>,
}

impl Mutable {
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
        let mutable = Mutable {
            sites: sites_of(&recording.events),
            orderings: orderings_of(&recording),
        };
        Ok(Self {
            id,
            workload,
            recording,
            mutable,
            recovers: BTreeMap::new(),
            reopens: BTreeMap::new(),
        })
    }

    /// Returns the `wanted` steps, from their beginnings, for [`Options::only`].
    fn only(&self, wanted: impl Fn(usize) -> bool) -> Vec<Option<usize>> {
        let all = 0..self.recording.steps.len();
        all.map(|step| wanted(step).then_some(0)).collect()
    }

    /// Returns some of the explored steps that execute an instruction, for [`Options::only`]: each
    /// from its first execution on. Returns `None` if no step executes it.
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
    /// The mutants that further workloads allow, by seed and kind. Each is recorded on first use.
    further: Vec<OnceLock<Option<Mutable>>>,
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

    /// Returns true if the operations of a workload, and not only its recoveries, reach an
    /// instruction.
    fn operates(&self, site: Site) -> bool {
        let mut recorded = self.recorded.iter();
        recorded.any(|r| r.mutable.sites.contains(&site))
    }

    /// Searches the recoveries of some images, and the openings after some kills, for sites that
    /// nothing else reaches.
    fn survey(&mut self) -> Result<Totals, Fault> {
        let found: Vec<Mutex<Totals>> = self.recorded.iter().map(|_| Mutex::default()).collect();
        let todo: Vec<(usize, (&Recorded, &Mutex<Totals>))> =
            self.recorded.iter().zip(&found).enumerate().collect();
        parallel(&todo, self.options.workers, |(number, (r, found))| {
            let surveyed = |step: usize| (step + number).is_multiple_of(SURVEYED_STEPS);
            let quick = Options {
                survey: true,
                kills: SURVEYED_KILLS,
                bound: 8,
                samples: 4,
                thorough_every: 2,
                max_images: SURVEYED,
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
            r.reopens.clone_from(&totals.killed_sites);
            all.add(totals);
        }
        match all.found.pop() {
            Some(violation) => Err(violation.fault),
            None => Ok(all),
        }
    }

    /// Returns the workloads of further seeds whose traces allow a mutant.
    fn further(&self, mutant: Mutant) -> impl Iterator<Item = Recorded> {
        let kinds = &self.options.kinds;
        let first = self.options.seeds.iter().max().map_or(0, |seed| seed + 1);
        (first..)
            .flat_map(move |seed| kinds.iter().map(move |kind| (seed, *kind)))
            .zip(&self.further)
            .filter_map(move |((seed, kind), mutable)| {
                let new = || Recorded::new(self.subject, kind, self.options, seed).ok();
                let mutable = mutable.get_or_init(|| new().map(|r| r.mutable));
                mutable.as_ref()?.has(mutant).then(new)?
            })
    }
}

/// Explores every mutant of `subject`. A mutant that its own workloads do not notice is tried on
/// the `companions` that reach the same instruction, and with threads. Calls `seen` with the number
/// of mutants done, and of all.
///
/// # Errors
/// The subject failed without a mutation.
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
    let reached = tried.recorded.iter().flat_map(|r| &r.mutable.sites);
    let mut sites: BTreeSet<Site> = reached.copied().collect();
    sites.extend(recoveries.recovery_sites.into_keys());
    sites.extend(recoveries.killed_sites.into_keys());
    let wanted = |mutant: &Mutant| options.only.as_ref().is_none_or(|part| mutant.is_in(part));
    sites.retain(|site| wanted(&Mutant::Off(*site)));
    let all = sites.len();
    sites.retain(|site| options.model.orders(site.kind));
    report.without_effect = all - sites.len();
    report.sites = sites.len();
    let mut todo: Vec<Mutant> = sites.into_iter().map(Mutant::Off).collect();
    if options.model != Model::Eadr {
        let orderings = tried.recorded.iter().flat_map(|r| &r.mutable.orderings);
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
