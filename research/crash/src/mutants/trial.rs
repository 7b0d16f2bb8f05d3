//! The trials of one mutant: the workloads and crash points that may reveal it, and how closely
//! they are explored.

use super::orderings::reordered;
use super::{Mutant, Recorded, Tried};
use crate::campaign::Finding;
use crate::explore::{Options, Violation, explore, is_wide};
use crate::record::{Mutation, record};
use crate::rng::Rng;
use crate::subject::{Fault, Subject};
use crate::token::Token;
use bristlecone_pmem::media::sim::{Model, Site};
use std::time::Instant;

/// Fewest images of a control: the workload that noticed a mutant runs without it. Twice as many
/// are tried.
const CONTROL: u64 = 4_000;
/// Patience with a mutant that only recovery reaches, as a multiple.
const RECOVERY_PATIENCE: u64 = 8;
/// Largest number of rounds with other operations after recoveries that reach a mutant.
const ROUNDS: u64 = 1000;
/// Fewest of these rounds that the patience suffices for.
const ROUNDS_IN_PATIENCE: u64 = 12;
/// Enumerated images of a crash point where many recoveries are to be tried.
const WIDE_BOUND: usize = 12;

pub(super) enum Outcome {
    Killed(Box<Violation>),
    FailedLive,
    Survived,
    Undecided,
    /// The workload that notices the mutant fails without it too.
    Unsound(Fault),
}

pub(super) struct Fate {
    pub(super) outcome: Outcome,
    pub(super) images: u64,
}

/// How a mutant is explored on one workload.
#[derive(Clone, Copy)]
struct Depth {
    bound: usize,
    thorough_every: u64,
    nested: bool,
    /// True if only crashes in recoveries that reach the mutant are explored.
    where_off: bool,
    /// As [`Options::kills`].
    kills: u64,
    /// As [`Options::follow_up`].
    follow_up: u64,
    /// The steps with the crash.
    steps: Steps,
}

/// Steps of a workload.
#[derive(Clone, Copy)]
enum Steps {
    /// Any step.
    Any,
    /// Steps that reach the mutant.
    AtWork,
    /// Steps in which a survey saw that recovery reached it, or else an opening after a kill; any
    /// step if it saw none.
    Surveyed,
    /// The one with this number.
    One(usize),
}

/// Notices most mutants.
const QUICK: Depth = Depth {
    bound: 200,
    thorough_every: 60,
    nested: false,
    where_off: false,
    kills: 0,
    follow_up: 0,
    steps: Steps::Any,
};
/// As [`QUICK`], in steps that reach the mutant.
const NEARBY: Depth = Depth {
    steps: Steps::AtWork,
    ..QUICK
};
/// With crashes in recovery.
const THOROUGH: Depth = Depth {
    bound: 400,
    thorough_every: 3,
    nested: true,
    where_off: false,
    kills: 0,
    follow_up: 0,
    steps: Steps::Any,
};
/// As [`THOROUGH`], in recoveries that reach the mutant.
const IN_RECOVERY: Depth = Depth {
    where_off: true,
    steps: Steps::Surveyed,
    ..THOROUGH
};

/// With a kill at every crash point.
const KILLED: Depth = Depth {
    bound: 4,
    thorough_every: u64::MAX,
    kills: 1,
    steps: Steps::Surveyed,
    ..QUICK
};

/// One mutant's trials.
struct Trial<'a> {
    tried: &'a Tried<'a>,
    mutant: Mutant,
    until: Instant,
    images: u64,
    /// Number of times that recovery reached the switched-off instruction.
    skipped: u64,
}

impl Trial<'_> {
    /// Explores `r` with the mutation until the trial has spent `max_images` in all.
    fn explore(&mut self, r: &Recorded, depth: Depth, max_images: u64) -> Option<Outcome> {
        if self.images >= max_images {
            return None;
        }
        if Instant::now() > self.until {
            return Some(Outcome::Undecided);
        }
        let subject = self.tried.subject;
        let (recording, mutation, only) = match self.mutant {
            Mutant::Off(site) => {
                let only = match depth.steps {
                    Steps::Any => None,
                    Steps::AtWork => Some(r.some_steps_with(site)?),
                    Steps::Surveyed => {
                        let steps = r.recovers.get(&site).or_else(|| r.reopens.get(&site));
                        steps.map(|steps| r.only(|step| steps.contains(&step)))
                    }
                    Steps::One(number) => Some(r.only(|step| step == number)),
                };
                let mutation = Mutation {
                    off: vec![site],
                    planted: None,
                };
                match record(subject, &r.workload, &mutation) {
                    Ok(recording) => (recording, mutation, only),
                    Err(_) => return Some(Outcome::FailedLive),
                }
            }
            ordering => {
                // The other steps leave the same content as without the mutation.
                let (recording, steps) = reordered(&r.recording, ordering)?;
                (recording, Mutation::default(), Some(steps))
            }
        };
        let explored = Options {
            nested: depth.nested,
            where_off: depth.where_off,
            kills: depth.kills,
            follow_up: depth.follow_up,
            bound: depth.bound,
            samples: 16,
            thorough_every: depth.thorough_every,
            max_images: max_images - self.images,
            deadline: Some(self.until),
            stop_at_first: true,
            mutation,
            only,
            ..Options::new(self.tried.options.model)
        };
        let totals = explore(subject, &recording, &explored, &|_| {});
        self.images += totals.images;
        self.skipped += totals.skipped;
        let violation = totals.found.into_iter().next()?;
        // Without the mutant there are fewer images, and the control checks all of them as closely.
        // If the mutant chose the images, there are more, and the control tries those of the same
        // crash point.
        let point = violation.point.events;
        let only = match (recording.steps.iter()).position(|step| point <= step.end) {
            Some(number) if depth.where_off => {
                let mut only = vec![None; recording.steps.len()];
                only[number] = Some(point.saturating_sub(2 + recording.steps[number].begin));
                Some(only)
            }
            _ => explored.only.clone(),
        };
        let control = Options {
            where_off: false,
            only,
            max_images: 2 * totals.images.max(CONTROL),
            thorough_every: if depth.nested {
                1
            } else {
                depth.thorough_every
            },
            deadline: None,
            mutation: Mutation::default(),
            ..explored
        };
        let control = explore(subject, &r.recording, &control, &|_| {});
        Some(match control.found.into_iter().next() {
            Some(found) => Outcome::Unsound(unsound(subject, r, self.tried.options.model, found)),
            None => Outcome::Killed(Box::new(violation)),
        })
    }

    /// Explores all of `these`, each with an equal share of the images left until `max_images`.
    fn share(&mut self, these: &[&Recorded], depth: Depth, max_images: u64) -> Option<Outcome> {
        let n = these.len() as u64;
        for (i, r) in these.iter().enumerate() {
            let share = max_images.saturating_sub(self.images) / (n - i as u64);
            let outcome = self.explore(r, depth, self.images + share);
            if outcome.is_some() {
                return outcome;
            }
        }
        None
    }

    /// Explores `these`, in which a survey saw that recovery reaches the mutant. First come all of
    /// their steps, then one step after the other, each time with other operations after the
    /// recovery.
    fn in_recovery(&mut self, these: &[&Recorded], site: Site, patience: u64) -> Option<Outcome> {
        let max_images = self.images + RECOVERY_PATIENCE * patience;
        let outcome = self.share(these, IN_RECOVERY, self.images + patience);
        if outcome.is_some() {
            return outcome;
        }
        let places: Vec<(&Recorded, usize)> = (these.iter())
            .flat_map(|r| r.recovers[&site].iter().map(|step| (*r, *step)))
            .collect();
        for follow_up in 1..ROUNDS {
            if places.is_empty() || self.images >= max_images {
                break;
            }
            let mut rng = Rng::of(follow_up, site.line.into(), patience);
            let (r, step) = places[rng.below(places.len() as u64) as usize];
            let depth = Depth {
                follow_up,
                bound: if is_wide(follow_up) {
                    WIDE_BOUND
                } else {
                    THOROUGH.bound
                },
                thorough_every: 1 + rng.below(4),
                steps: Steps::One(step),
                ..IN_RECOVERY
            };
            let share = max_images.min(self.images + patience / ROUNDS_IN_PATIENCE);
            let outcome = self.explore(r, depth, share);
            if outcome.is_some() {
                return outcome;
            }
        }
        None
    }

    fn run(&mut self, patience: u64) -> Option<Outcome> {
        let (tried, mutant) = (self.tried, self.mutant);
        let all = || tried.recorded.iter();
        let here: Vec<&Recorded> = all().filter(|r| r.mutable.has(mutant)).collect();
        if let (Mutant::Off(site), true) = (mutant, here.is_empty()) {
            // Only recovery reaches the site: the workloads of the survey come first, then any.
            let (seen, rest): (Vec<_>, Vec<_>) =
                all().partition(|r| r.recovers.contains_key(&site));
            let outcome = self.in_recovery(&seen, site, patience);
            if outcome.is_some() {
                return outcome;
            }
            let reopens = rest.iter().filter(|r| r.reopens.contains_key(&site));
            let reopens: Vec<&Recorded> = reopens.copied().collect();
            if seen.is_empty() && !reopens.is_empty() {
                return self.share(&reopens, KILLED, patience);
            }
            if seen.is_empty() {
                let outcome = self.share(&rest, IN_RECOVERY, patience / 8);
                if outcome.is_some() || self.skipped == 0 {
                    return outcome;
                }
            }
            return self.share(&rest, IN_RECOVERY, self.images + patience / 4);
        }
        // First come quick trials in the steps that reach the mutant, then in whole workloads, then
        // with further seeds. An ordering is made in all of its steps anyway.
        if matches!(mutant, Mutant::Off(_)) {
            let outcome = self.share(&here, NEARBY, patience / 8);
            if outcome.is_some() {
                return outcome;
            }
        }
        for r in &here {
            if let Some(outcome) = self.explore(r, QUICK, patience / 2) {
                return Some(outcome);
            }
        }
        let further = patience * 5 / 8;
        for r in tried.further(mutant) {
            if self.images >= further {
                break;
            }
            if let Some(outcome) = self.explore(&r, NEARBY, further) {
                return Some(outcome);
            }
        }
        // Thorough trials come last.
        let outcome = self.share(&here, THOROUGH, patience);
        match mutant {
            Mutant::Off(site) if outcome.is_none() => {
                let seen: Vec<_> = all().filter(|r| r.recovers.contains_key(&site)).collect();
                self.in_recovery(&seen, site, patience)
            }
            _ => outcome,
        }
    }
}

/// Returns the fault of a subject that fails without a mutant, with its replay token.
fn unsound(subject: &dyn Subject, r: &Recorded, model: Model, violation: Violation) -> Fault {
    let kind = violation.fault.kind;
    let finding = Finding {
        token: Token {
            subject: subject.name(),
            model,
            workload: r.id.clone(),
            mutation: Mutation::default(),
            point: violation.point.clone(),
            nested: violation.nested.clone(),
        },
        ops: [&r.workload.setup[..], &r.workload.ops[..]].concat(),
        violation,
    };
    Fault::new(
        kind,
        format!("unmutated: {}", finding.explain("bristlecone-lab")),
    )
}

pub(super) fn try_mutant(tried: &Tried<'_>, mutant: Mutant, patience: u64) -> Fate {
    let patience = match mutant {
        Mutant::Off(_) if tried.options.model != Model::Eadr => patience,
        // Many of these mutants are independent, and the others are noticed soon.
        _ => patience / 4,
    };
    let until = Instant::now() + tried.options.limit;
    let mut trial = Trial {
        tried,
        mutant,
        until,
        images: 0,
        skipped: 0,
    };
    let outcome = trial.run(patience).unwrap_or_else(|| {
        if Instant::now() > until {
            Outcome::Undecided
        } else {
            Outcome::Survived
        }
    });
    Fate {
        outcome,
        images: trial.images,
    }
}
