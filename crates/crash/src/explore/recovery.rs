//! Crashes in a recovery, and in the operation after it.
//!
//! Recovery may leave nothing behind that a later crash can undo and that what it showed depends on: once
//! it is done its content counts as seen, and what is done then must last, whatever becomes of the stores
//! that recovery made.

use super::{Crash, Point, Visited, Worker, adds, quietly};
use crate::mutants::sites_of;
use crate::oracle::{Expected, OPERATION_STEPS, RECOVERY_STEPS, observe, power_off};
use crate::record::apply;
use crate::subject::{Op, Opened, Subject};
use bristlecone_pmem::media::sim::{Event, Mark, Model, Pending, Strategy};
use std::collections::BTreeMap;

/// Most images of one crash point in a recovery.
const AT_A_POINT: u64 = 32;
/// Most images of all crash points in one recovery, and again in the operation after it.
const MOST: u64 = 400;

/// What a recovery and the operation after it did.
#[derive(Default)]
pub(super) struct Rerun {
    events: Vec<Event>,
    /// How many of the events are recovery's.
    recovered: usize,
    /// What the operation found and what it left, if there was one.
    then: Option<[Vec<(u64, u64)>; 2]>,
}

impl Rerun {
    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    /// What is right after a crash there.
    pub(super) fn expected<'a>(
        &'a self,
        first: Expected<'a>,
        events: usize,
        completed: bool,
    ) -> Expected<'a> {
        let Some([before, after]) = &self.then else {
            return first;
        };
        let operated = events > self.recovered;
        if !operated && !completed {
            return first;
        }
        Expected {
            before: if operated && completed { after } else { before },
            after: if operated { after } else { before },
            creating: false,
        }
    }
}

/// An operation that depends on nothing but the content.
fn operation(subject: &dyn Subject, content: &[(u64, u64)]) -> Option<Op> {
    let middle = content.get(content.len() / 2).map(|entry| entry.0);
    let key = middle.unwrap_or(subject.max_key() / 2);
    let fresh = key.checked_add(1).filter(|key| {
        *key <= subject.max_key() && content.binary_search_by_key(key, |entry| entry.0).is_err()
    });
    let ops: Vec<Op> = [
        fresh.map(|key| Op::Insert(key, 9)),
        Some(Op::Upsert(key, 10)),
        middle.map(Op::Remove),
    ]
    .into_iter()
    .flatten()
    .filter(|op| subject.can(op))
    .collect();
    let sum = (content.iter()).fold(0_u64, |sum, (key, value)| sum.wrapping_add(key ^ value));
    ops.get(sum.checked_rem(ops.len() as u64)? as usize)
        .copied()
}

impl Worker<'_> {
    /// Recovers what is in memory and does an operation, and says what they did. What fails is left out:
    /// other oracles report it.
    pub(super) fn rerun(&mut self) -> Rerun {
        let (subject, sim) = (self.subject, self.sim.clone());
        // Another thread, so that recovery may not lean on the operation's fence; where store buffers
        // count that would forget what the operation has seen.
        let thread = u8::from(self.options.model != Model::Eadr);
        let mut events = Vec::new();
        let mut recovered = 0;
        self.watch.beat();
        sim.set_frozen(false);
        sim.set_thread(0);
        sim.set_limit(RECOVERY_STEPS);
        sim.start_trace();
        let then = quietly(|| {
            let opened = subject.open()?;
            events = sim.take_trace();
            recovered = events.len();
            let Opened::Live(live) = opened else {
                return Ok(None);
            };
            let mut before = Vec::new();
            observe(&*live, &mut before)?;
            let Some(op) = operation(subject, &before) else {
                power_off(&sim, live);
                return Ok(None);
            };
            let mut after: BTreeMap<u64, u64> = before.iter().copied().collect();
            sim.set_thread(thread);
            sim.set_limit(OPERATION_STEPS);
            sim.start_trace();
            let live = apply(subject, live, &mut after, &op)?;
            events.extend(sim.take_trace());
            power_off(&sim, live);
            Ok(Some([before, after.into_iter().collect()]))
        });
        sim.set_sink(None);
        sim.set_frozen(true);
        sim.set_limit(u64::MAX);
        Rerun {
            events,
            recovered,
            then: then.and_then(|inner| inner).ok().flatten(),
        }
    }

    /// The crash points of the recovery from the image in memory, and of an operation after it.
    pub(super) fn crash_in_recovery(
        &mut self,
        crash: &Crash<'_>,
        start: Mark,
        opened: Mark,
        depth_first: bool,
    ) {
        let sim = self.sim.clone();
        let base = if depth_first {
            sim.depth()
        } else {
            sim.set_strategy(Strategy::DepthFirst);
            0
        };
        sim.begin_image(base);
        let rerun = self.rerun();
        let decisions = sim.decisions(start);
        sim.roll_back(opened);
        sim.impose(&decisions);
        sim.forget_below(base);
        let (recovered, n) = (rerun.recovered, rerun.events.len());
        self.totals
            .recovery_sites
            .extend(sites_of(&rerun.events[..recovered]));
        if self.options.survey {
            return;
        }
        let mut nested = Nested {
            crash,
            outer: self.point(crash, start),
            pending: Pending::new(self.options.model, self.subject.unit()),
            rerun: &rerun,
            base,
            first: sim.decisions(start).len(),
            // The image itself is the one before the first event.
            covered: true,
        };
        let mut before = self.totals.nested_images;
        for (i, event) in rerun.events.iter().enumerate() {
            if i == recovered {
                self.visit_nested(&mut nested, i, true, Some(None));
                before = self.totals.nested_images;
            }
            Self::advance(&sim, &mut nested.pending, event);
            let adds = adds(event, &nested.pending);
            if self.totals.nested_images - before >= MOST && adds.is_some() {
                nested.covered = false;
                self.totals.nested_points += 1;
            } else {
                self.visit_nested(&mut nested, i + 1, false, adds);
            }
            if self.enough() {
                return;
            }
        }
        if rerun.then.is_some() {
            self.visit_nested(&mut nested, n, true, Some(None));
        }
    }

    /// Visits the images of one point: none, those that kept a store, or all.
    fn visit_nested(
        &mut self,
        nested: &mut Nested<'_>,
        events: usize,
        completed: bool,
        adds: Option<Option<u32>>,
    ) {
        let sim = self.sim.clone();
        self.totals.nested_points += 1;
        if let Some(newest) = adds {
            let crash = nested.crash;
            let expected = nested.rerun.expected(crash.expected, events, completed);
            (self.watch).nested(Some((events, completed, nested.first)));
            let start = sim.mark();
            let from = sim.expose(&nested.pending, newest);
            let opened = sim.mark();
            let mut images = 0;
            let all = loop {
                sim.begin_image(nested.base);
                let result = self.check(&expected, false);
                images += 1;
                self.totals.images += 1;
                self.totals.nested_images += 1;
                if let Err(fault) = result {
                    let inner = Point {
                        events,
                        completed,
                        decisions: sim.decisions(start),
                    };
                    let inner = Some((inner, &nested.pending));
                    let violation = self.violation(crash, fault, nested.outer.clone(), inner);
                    self.totals.count(violation);
                }
                sim.roll_back(opened);
                if !sim.next_image(nested.base) {
                    break !sim.diverged();
                }
                if images >= AT_A_POINT || self.enough() {
                    break false;
                }
            };
            sim.forget_below(nested.base);
            sim.roll_back(start);
            sim.close(from);
            self.watch.nested(None);
            nested.covered = Visited::of(newest, all).covers(nested.covered);
        }
        self.totals.nested_exhaustive_points += u64::from(nested.covered);
    }
}

/// A recovery whose crashes are tried.
struct Nested<'a> {
    crash: &'a Crash<'a>,
    outer: Point,
    pending: Pending,
    rerun: &'a Rerun,
    base: usize,
    /// Decisions of the first crash.
    first: usize,
    covered: bool,
}
