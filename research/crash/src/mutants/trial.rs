//! One mutant's trials: where it is looked for, and how closely.

use super::orderings::reordered;
use super::{Mutant, Recorded, Tried};
use crate::campaign::Finding;
use crate::explore::{Options, Violation, explore, widely};
use crate::record::{Mutation, record};
use crate::rng::Rng;
use crate::subject::{Fault, Subject};
use crate::token::Token;
use bristlecone_pmem::media::sim::{Model, Site};
use std::time::Instant;

/// Images, at the least, in which what noticed a mutant is looked for without it, once and again.
const CONTROL: u64 = 4_000;
/// How many times longer a mutant is tried that only recovery comes to.
const LONGER: u64 = 8;
/// How many times, at the most, other operations follow recoveries that come to a mutant.
const ROUNDS: u64 = 1000;
/// How many of those patience is enough for, at the least.
const ROUNDS_IN_PATIENCE: u64 = 12;
/// Images of a crash point, besides sampled ones, where many recoveries are to be tried.
const FEW: usize = 12;

pub(super) enum Outcome {
    Killed(Box<Violation>),
    FailedLive,
    Survived,
    Undecided,
    /// What notices it fails without it too.
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
    /// Only in recoveries that the mutant does something in.
    where_off: bool,
    /// Which operations follow a recovery.
    then: u64,
    /// In which steps the crash is.
    steps: Steps,
}

/// Steps of a workload.
#[derive(Clone, Copy)]
enum Steps {
    /// Any.
    Any,
    /// Those where the mutant does something.
    AtWork,
    /// Those where a survey saw that recovery came to it; any if it saw none.
    Surveyed,
    /// The one with this number.
    One(usize),
}

/// What most mutants are noticed by.
const QUICK: Depth = Depth {
    bound: 200,
    thorough_every: 60,
    nested: false,
    where_off: false,
    then: 0,
    steps: Steps::Any,
};
/// The same where the mutant is.
const NEARBY: Depth = Depth {
    steps: Steps::AtWork,
    ..QUICK
};
/// Crashes in recovery included.
const THOROUGH: Depth = Depth {
    bound: 400,
    thorough_every: 3,
    nested: true,
    where_off: false,
    then: 0,
    steps: Steps::Any,
};
/// The same where only recovery comes to the mutant.
const IN_RECOVERY: Depth = Depth {
    where_off: true,
    steps: Steps::Surveyed,
    ..THOROUGH
};

/// One mutant's trials.
struct Trial<'a> {
    tried: &'a Tried<'a>,
    mutant: Mutant,
    until: Instant,
    images: u64,
    /// How often recovery would have done what was switched off.
    skipped: u64,
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
        let subject = self.tried.subject;
        let (recording, mutation, only) = match self.mutant {
            Mutant::Off(site) => {
                let only = match depth.steps {
                    Steps::Any => None,
                    Steps::AtWork => Some(r.some_steps_with(site)?),
                    Steps::Surveyed => {
                        let steps = r.recovers.get(&site);
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
                // The other steps leave what they leave without it.
                let (recording, steps) = reordered(&r.recording, ordering)?;
                (recording, Mutation::default(), Some(steps))
            }
        };
        let explored = Options {
            nested: depth.nested,
            where_off: depth.where_off,
            then: depth.then,
            bound: depth.bound,
            samples: 16,
            thorough_every: depth.thorough_every,
            most: most - self.images,
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
        // There are fewer images without the mutant; of these, all are looked at as closely. More are where
        // the mutant's were chosen: of those, the ones of the same point.
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
            most: 2 * totals.images.max(CONTROL),
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

    /// Explores all of `these`: an equal share of what is left until `most` for each.
    fn share(&mut self, these: &[&Recorded], depth: Depth, most: u64) -> Option<Outcome> {
        let n = these.len() as u64;
        for (i, r) in these.iter().enumerate() {
            let share = most.saturating_sub(self.images) / (n - i as u64);
            let outcome = self.explore(r, depth, self.images + share);
            if outcome.is_some() {
                return outcome;
            }
        }
        None
    }

    /// Explores all of `these`, where a survey saw that recovery comes to the mutant: first all; then one step after the
    /// other, with other operations after the recovery each time.
    fn in_recovery(&mut self, these: &[&Recorded], site: Site, patience: u64) -> Option<Outcome> {
        let most = self.images + LONGER * patience;
        let outcome = self.share(these, IN_RECOVERY, self.images + patience);
        if outcome.is_some() {
            return outcome;
        }
        let places: Vec<(&Recorded, usize)> = (these.iter())
            .flat_map(|r| r.recovers[&site].iter().map(|step| (*r, *step)))
            .collect();
        for then in 1..ROUNDS {
            if places.is_empty() || self.images >= most {
                break;
            }
            let mut rng = Rng::of(then, site.line.into(), patience);
            let (r, step) = places[rng.below(places.len() as u64) as usize];
            let depth = Depth {
                then,
                bound: if widely(then) { FEW } else { THOROUGH.bound },
                thorough_every: 1 + rng.below(4),
                steps: Steps::One(step),
                ..IN_RECOVERY
            };
            let share = most.min(self.images + patience / ROUNDS_IN_PATIENCE);
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
        let here: Vec<&Recorded> = all().filter(|r| r.at_work.has(mutant)).collect();
        if let (Mutant::Off(site), true) = (mutant, here.is_empty()) {
            // Only recovery reaches it: where it was seen to do so, then anywhere.
            let (seen, rest): (Vec<_>, Vec<_>) =
                all().partition(|r| r.recovers.contains_key(&site));
            let outcome = self.in_recovery(&seen, site, patience);
            if outcome.is_some() {
                return outcome;
            }
            if seen.is_empty() {
                let outcome = self.share(&rest, IN_RECOVERY, patience / 8);
                if outcome.is_some() || self.skipped == 0 {
                    return outcome;
                }
            }
            return self.share(&rest, IN_RECOVERY, self.images + patience / 4);
        }
        // First where the mutant is at work, quickly, then in workloads that no one else needs. An ordering
        // is not looked for anywhere else.
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
        // Then thoroughly.
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

/// What fails without any mutant, with what repeats it.
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
    Fault::new(kind, format!("unmutated: {}", finding.explain()))
}

pub(super) fn try_mutant(tried: &Tried<'_>, mutant: Mutant, patience: u64) -> Fate {
    let patience = match mutant {
        Mutant::Off(_) if tried.options.model != Model::Eadr => patience,
        // Many of these are independent, and the others are noticed soon.
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
