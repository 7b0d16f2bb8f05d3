//! Campaigns: many workloads on a subject under a model, within a time budget. Each violation is
//! reported with the smallest workload found that still shows it, and with a token that replays it.

use crate::explore::{Options, Totals, explore, replay};
use crate::record::{Mutation, record};
use crate::subject::{Fault, Op, Subject};
use crate::token::{Token, WorkloadId};
use crate::violation::{Violation, explanation};
use crate::workload::Kind;
use bristlecone_pmem::media::sim::Model;
use std::fmt;
use std::time::{Duration, Instant};

/// The parameters of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The persistency model.
    pub model: Model,
    /// Kinds of workloads.
    pub kinds: Vec<Kind>,
    /// Operations of each workload.
    pub ops: usize,
    /// The seed of the first round. Later rounds count up from it.
    pub seed: u64,
    /// True if crashes in recovery are explored too.
    pub nested: bool,
    /// True if kills of the process are explored too.
    pub kills: bool,
    /// Threads of this machine.
    pub workers: usize,
    /// Time after which no workload is begun; `None` for one round, each kind once.
    pub budget: Option<Duration>,
    /// A fault planted in the code under test.
    pub planted: Option<&'static str>,
}

/// Default number of operations in a workload.
pub const OPS: usize = 60;

impl Campaign {
    /// Returns the defaults of the command line under a model: one round of all workloads.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self {
            model,
            kinds: Kind::ALL.to_vec(),
            ops: OPS,
            seed: 1,
            nested: false,
            kills: false,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            budget: None,
            planted: None,
        }
    }
}

/// A violation, with the operations and the token that repeat it.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The violation.
    pub violation: Violation,
    /// The token of the image.
    pub token: Token,
    /// The operations, set-up first.
    pub ops: Vec<Op>,
}

/// The result of a campaign.
#[derive(Clone, Debug, Default)]
pub struct CampaignReport {
    /// Counts of points, images and violations.
    pub totals: Totals,
    /// Workloads run.
    pub workloads: u64,
    /// Distinct violations, shrunk.
    pub findings: Vec<Finding>,
    /// The workload in which a live operation failed before any crash, which ends the campaign.
    pub failed_live: Option<(WorkloadId, Fault)>,
    /// Time taken.
    pub elapsed: Duration,
}

impl fmt::Display for CampaignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let totals = &self.totals;
        let (all, exhaustive) = (totals.crash_points, totals.exhaustive_points);
        let share = if all == 0 {
            1.0
        } else {
            exhaustive as f64 / all as f64
        };
        write!(
            f,
            "{} crash points of {} workloads, {} images recovered ({} of them of crashes in recovery, \
             {} of {} kills), {:.1} % of the points exhaustively: {} violations, in {:.1} s",
            totals.crash_points,
            self.workloads,
            totals.images,
            totals.nested_images,
            totals.killed_images,
            totals.kills,
            share * 100.0,
            totals.violations,
            self.elapsed.as_secs_f64()
        )
    }
}

/// Distinct violations that are shrunk and reported.
const MAX_FINDINGS: usize = 3;
/// One in so many crash points is tried as a kill.
const KILLS: u64 = 16;
/// Time limit for shrinking one violation.
const SHRINKING: Duration = Duration::from_secs(10);

/// Runs a campaign. Calls `seen` with the number of images recovered since the last call.
pub fn run(
    subject: &dyn Subject,
    campaign: &Campaign,
    seen: &(dyn Fn(u64) + Sync),
) -> CampaignReport {
    let started = Instant::now();
    let deadline = campaign.budget.map(|budget| started + budget);
    let mutation = Mutation {
        off: Vec::new(),
        planted: campaign.planted,
    };
    let mut report = CampaignReport::default();
    let mut round = 0;
    'rounds: loop {
        for kind in &campaign.kinds {
            let id = WorkloadId {
                kind: *kind,
                ops: campaign.ops,
                seed: campaign.seed.wrapping_add(round),
                kept: None,
            };
            let options = Options {
                nested: campaign.nested,
                kills: if campaign.kills { KILLS } else { 0 },
                workers: campaign.workers,
                deadline,
                mutation: mutation.clone(),
                workload: Some(id.clone()),
                ..Options::new(campaign.model)
            };
            let recording = match record(subject, &id.generate(subject), &mutation) {
                Ok(recording) => recording,
                Err(fault) => {
                    report.failed_live = Some((id, fault));
                    break 'rounds;
                }
            };
            let totals = explore(subject, &recording, &options, seen);
            report.workloads += 1;
            for violation in &totals.found {
                // Different violations may shrink to one.
                let alike = |kind, site: &str| {
                    let known = report.findings.iter().map(|finding| &finding.violation);
                    known
                        .clone()
                        .any(|v| v.fault.kind == kind && v.last_site == site)
                };
                let kind = violation.fault.kind;
                if alike(kind, &violation.last_site) || report.findings.len() >= MAX_FINDINGS {
                    continue;
                }
                let smallest = shrink(subject, &id, &options, violation);
                if !alike(kind, &smallest.violation.last_site) {
                    report.findings.push(smallest);
                }
            }
            let over = totals.cut_short;
            report.totals.add(totals);
            if over || deadline.is_some_and(|at| Instant::now() > at) {
                break 'rounds;
            }
        }
        round += 1;
        if deadline.is_none() || report.findings.len() >= MAX_FINDINGS {
            break;
        }
    }
    report.elapsed = started.elapsed();
    report
}

/// Removes operations from a workload as long as it still shows a violation of the same kind.
fn shrink(
    subject: &dyn Subject,
    id: &WorkloadId,
    options: &Options,
    violation: &Violation,
) -> Finding {
    let until = Instant::now() + SHRINKING;
    let options = Options {
        stop_at_first: true,
        thorough_every: options.thorough_every.min(4),
        kills: options.kills.min(1),
        deadline: Some(until),
        ..options.clone()
    };
    let whole = id.generate(subject);
    let n = whole.setup.len() + whole.ops.len();
    let mut best = (vec![true; n], violation.clone());
    let still_fails = |kept: &[bool]| {
        let smaller = WorkloadId {
            kept: Some(kept.to_vec()),
            ..id.clone()
        };
        let recording = record(subject, &smaller.generate(subject), &options.mutation).ok()?;
        let options = Options {
            workload: Some(smaller),
            ..options.clone()
        };
        let found = explore(subject, &recording, &options, &|_| {}).found;
        let kind = violation.fault.kind;
        found.into_iter().find(|found| found.fault.kind == kind)
    };
    // First the operations after the crash go, then ever smaller pieces.
    let last = violation.step;
    let cut: Vec<bool> = (0..n).map(|i| i < last).collect();
    if let Some(found) = still_fails(&cut) {
        best = (cut, found);
    }
    let mut piece = n.div_ceil(2);
    while piece > 0 && Instant::now() < until {
        let mut at = 0;
        while at < n && Instant::now() < until {
            let mut smaller = best.0.clone();
            let end = (at + piece).min(n);
            smaller[at..end].fill(false);
            if smaller != best.0
                && let Some(found) = still_fails(&smaller)
            {
                best = (smaller, found);
            }
            at = end;
        }
        piece /= 2;
    }
    let (kept, violation) = best;
    let workload = WorkloadId {
        kept: kept.contains(&false).then_some(kept),
        ..id.clone()
    };
    let smallest = workload.generate(subject);
    Finding {
        token: Token {
            subject: subject.name(),
            model: options.model,
            workload,
            mutation: options.mutation.clone(),
            point: violation.point.clone(),
            nested: violation.nested.clone(),
        },
        ops: [smallest.setup, smallest.ops].concat(),
        violation,
    }
}

/// Recovers the image that a token of `subject` names. Returns `None` if it recovers well now.
///
/// # Errors
/// The workload has no such crash (the token is another version's), or
/// an operation of it failed before the crash.
pub fn replay_token(subject: &dyn Subject, token: &Token) -> Result<Option<Finding>, String> {
    let workload = token.workload.generate(subject);
    let recording = record(subject, &workload, &token.mutation)
        .map_err(|fault| format!("the workload fails without any crash: {fault}"))?;
    let options = Options {
        mutation: token.mutation.clone(),
        workload: Some(token.workload.clone()),
        ..Options::new(token.model)
    };
    let nested = token.nested.as_ref();
    let found = replay(subject, &recording, &options, &token.point, nested)
        .map_err(|what| format!("there is no such image (any more): {what}"))?;
    Ok(found.map(|violation| Finding {
        violation,
        token: token.clone(),
        ops: [workload.setup, workload.ops].concat(),
    }))
}

impl Finding {
    /// Returns the report of the violation, with the command of `program` that replays it.
    #[must_use]
    pub fn explain(&self, program: &str) -> String {
        let text = explanation(&self.violation, &self.ops);
        format!("{text}  replay: {program} crash --replay '{}'", self.token)
    }
}
