//! Sites whose loss a subject's own workloads do not reveal: other subjects and threads try them.
//!
//! A design's *companions* are tried in the order in which they are likely to need a site: first
//! the structures that designs stand on (pool and logs), then the design's other layouts, and all
//! other designs last.

use super::trial::{Outcome, try_mutant};
use super::{Mutant, MutantOptions, MutantReport, Tried, parallel};
use crate::concurrent::{self, ConcurrentOptions};
use crate::over;
use crate::subject::{Fault, FaultKind, Subject};
use bristlecone_pmem::media::sim::Site;
use bristlecone_pmem::sync::lock;
use std::sync::{Arc, Mutex, OnceLock};

/// Schedules of threads for a site that nothing else has noticed.
const SCHEDULES: u64 = 2_000;

/// Another subject that mutants are tried on.
struct Companion<'a> {
    subject: &'a dyn Subject,
    rank: Rank,
    /// Its workloads, recorded (and surveyed) on first use.
    tried: OnceLock<Result<Tried<'a>, Fault>>,
}

/// How likely a companion is to need a site, the likeliest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Pool and logs: no survey, and most of the sites left are theirs.
    Foundation,
    /// Another layout of the design. It is surveyed, since a site that only recovery reaches may be
    /// in the same steps there.
    Layout,
    /// Any other design.
    Other,
}

impl<'a> Companion<'a> {
    fn new(subject: &'a dyn Subject, of: &str) -> Self {
        let name = subject.name();
        Self {
            subject,
            rank: match family(&name) {
                name if name == family(of) => Rank::Layout,
                "pool" | "log" => Rank::Foundation,
                _ => Rank::Other,
            },
            tried: OnceLock::new(),
        }
    }

    fn tried(&self, options: &'a MutantOptions) -> Result<&Tried<'a>, Fault> {
        let new = || {
            let recorded = || {
                let mut tried = Tried::new(self.subject, options)?;
                if self.rank == Rank::Layout {
                    tried.survey()?;
                }
                Ok(tried)
            };
            recorded().map_err(|fault: Fault| {
                let what = format!("{}: {}", self.subject.name(), fault.what);
                Fault::new(fault.kind, what)
            })
        };
        self.tried.get_or_init(new).as_ref().map_err(Fault::clone)
    }
}

/// Returns the part of a subject's name that its layouts share.
fn family(name: &str) -> &str {
    name.split('-').next().unwrap_or(name)
}

/// The search for another subject, or a schedule, that needs a site.
pub(super) struct Elsewhere<'a, 'r> {
    tried: &'r Tried<'a>,
    /// By rank.
    companions: Vec<Companion<'a>>,
    results: &'r Mutex<MutantReport>,
}

impl<'a, 'r> Elsewhere<'a, 'r> {
    pub(super) fn new(
        tried: &'r Tried<'a>,
        companions: &'a [Arc<dyn Subject>],
        results: &'r Mutex<MutantReport>,
    ) -> Self {
        let own = tried.subject.name();
        let others = companions.iter().filter(|c| c.name() != own);
        let mut companions: Vec<_> = others.map(|c| Companion::new(&**c, &own)).collect();
        companions.sort_by_key(|c| c.rank);
        Self {
            tried,
            companions,
            results,
        }
    }

    /// Tries the sites that survived, or are undecided, until another subject needs each of them.
    pub(super) fn run(self) -> Result<(), Fault> {
        let patience = self.tried.options.patience;
        let first_far = self.companions.partition_point(|c| c.rank < Rank::Other);
        let (near, far) = self.companions.split_at(first_far);
        self.try_on_each(near, patience)?;
        self.try_over_another_pool()?;
        if self.tried.subject.concurrent() {
            self.try_with_threads(self.tried.subject, &self.left())?;
        }
        self.try_with_threads_of_each(near)?;
        self.try_on_each(far, patience / 4)?;
        self.try_with_threads_of_each(far)
    }

    /// Returns the sites that nothing has noticed so far.
    fn left(&self) -> Vec<Site> {
        let off = |mutant: &Mutant| match mutant {
            Mutant::Off(site) => Some(*site),
            _ => None,
        };
        let report = lock(self.results);
        let left = report.survivors.iter().chain(&report.undecided);
        left.filter_map(off).collect()
    }

    /// Returns those of them that a companion's workloads may reach. A site that only recovery
    /// reaches here may be anywhere in the companion.
    fn left_for(&self, there: &Tried<'_>) -> Vec<Site> {
        let mut sites = self.left();
        sites.retain(|site| !self.tried.operates(*site) || there.operates(*site));
        sites
    }

    fn killed(&self, site: Site, by: String) {
        let mut report = lock(self.results);
        report.survivors.retain(|m| *m != Mutant::Off(site));
        report.undecided.retain(|m| *m != Mutant::Off(site));
        report.killed_elsewhere.push((Mutant::Off(site), by));
    }

    fn undecided(&self, site: Site) {
        let mut report = lock(self.results);
        let known = report.survivors.len();
        report.survivors.retain(|m| *m != Mutant::Off(site));
        if report.survivors.len() < known {
            report.undecided.push(Mutant::Off(site));
        }
    }

    fn try_on_each(&self, companions: &[Companion<'a>], patience: u64) -> Result<(), Fault> {
        companions
            .iter()
            .try_for_each(|companion| self.try_on(companion, patience))
    }

    fn try_on(&self, companion: &Companion<'a>, patience: u64) -> Result<(), Fault> {
        if self.left().is_empty() {
            return Ok(());
        }
        let options = self.tried.options;
        let there = companion.tried(options)?;
        let unsound = Mutex::new(None);
        parallel(&self.left_for(there), options.workers, |site| {
            let fate = try_mutant(there, Mutant::Off(*site), patience);
            lock(self.results).images += fate.images;
            match fate.outcome {
                Outcome::Killed(_) | Outcome::FailedLive => {
                    self.killed(*site, companion.subject.name());
                }
                Outcome::Undecided => self.undecided(*site),
                Outcome::Unsound(fault) => *lock(&unsound) = Some(fault),
                Outcome::Survived => {}
            }
        });
        lock(&unsound).take().map_or(Ok(()), Err)
    }

    fn try_over_another_pool(&self) -> Result<(), Fault> {
        let model = self.tried.options.model;
        for site in self.left() {
            if over::explore(model, true, &[site]).is_err() {
                over::explore(model, true, &[])
                    .map_err(|what| Fault::new(FaultKind::Wrong, what))?;
                self.killed(site, "a pool made over another".into());
            }
        }
        Ok(())
    }

    fn try_with_threads_of_each(&self, companions: &[Companion<'a>]) -> Result<(), Fault> {
        for companion in companions.iter().filter(|c| c.subject.concurrent()) {
            if self.left().is_empty() {
                return Ok(());
            }
            let there = companion.tried(self.tried.options)?;
            self.try_with_threads(companion.subject, &self.left_for(there))?;
        }
        Ok(())
    }

    fn try_with_threads(&self, subject: &dyn Subject, sites: &[Site]) -> Result<(), Fault> {
        let options = self.tried.options;
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
            lock(self.results).images += report.images;
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
                self.killed(*site, format!("{} with threads", subject.name()));
            } else if report.schedules < SCHEDULES {
                self.undecided(*site);
            }
        });
        lock(&unsound).take().map_or(Ok(()), Err)
    }
}
