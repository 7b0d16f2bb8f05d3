//! Crashes in a recovery, and in the operations after it.
//!
//! Recovery may leave nothing behind that a later crash can undo and that what it showed depends on: once
//! it is done its content counts as seen, and what is done then must last, whatever becomes of the stores
//! that recovery made. What is done are some operations near the one that was in flight, where recovery
//! has repaired most: of the last of them every crash point is tried. It may be a clean closing and
//! opening, which trusts what was recovered.

use super::totals::Visited;
use super::worker::{Crash, Worker, adds, quietly};
use crate::deferred::collect;
use crate::oracle::{Expected, OPERATION_STEPS, RECOVERY_STEPS, observe, power_off};
use crate::record::{Action, apply, sites_of};
use crate::rng::Rng;
use crate::subject::{Fault, FaultKind, Op, Opened, Subject};
use crate::violation::Point;
use crate::workload::STEP;
use bristlecone_pmem::media::sim::{Event, EventKind, Mark, Model, Pending, Strategy};
use std::collections::BTreeMap;

/// How much of a recovery's crashes is tried.
struct Limits {
    /// Recoveries of images of one crash point, if they are followed by other operations than usual.
    recoveries: u64,
    /// Crash points of a recovery, and again of the last operation after it.
    points: usize,
    /// Images of one of these.
    at_a_point: u64,
    /// Images of all of these.
    images: u64,
}

/// Most of a few recoveries.
const CLOSELY: Limits = Limits {
    recoveries: 8,
    points: usize::MAX,
    at_a_point: 32,
    images: 1000,
};
/// Something of many.
const WIDELY: Limits = Limits {
    recoveries: 4,
    points: 10,
    at_a_point: 8,
    images: 200,
};
/// Most further images of a point that has more.
const ALONE: usize = 16;

/// Most operations after a recovery.
const OPERATIONS: u64 = 4;

/// What a recovery and the operations after it did.
#[derive(Default)]
pub(super) struct Rerun {
    events: Vec<Event>,
    /// How many of the events are recovery's.
    recovered: usize,
    /// How many of the events are not the last operation's.
    prepared: usize,
    /// What recovery showed, what the last operation found and what it left, if there was one.
    then: Option<[Vec<(u64, u64)>; 3]>,
    /// What failed, without another crash.
    pub(super) fault: Option<Fault>,
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
        let Some([seen, before, after]) = &self.then else {
            return first;
        };
        let (before, after) = match (events > self.prepared, completed) {
            (_, true) if events == self.events.len() => (after, after),
            (true, _) => (before, after),
            (false, true) if events == self.prepared => (before, before),
            (false, true) => (seen, seen),
            (false, false) => return first,
        };
        Expected {
            before,
            after,
            creating: false,
        }
    }
}

fn adds_images(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Store { .. } | EventKind::Store16 { .. })
}

/// The key that an action is about.
fn key_of(action: Action) -> Option<u64> {
    match action {
        Action::Op(
            Op::Insert(key, _) | Op::Upsert(key, _) | Op::Update(key, _) | Op::Remove(key),
        ) => Some(key),
        Action::Op(Op::Get(key)) => Some(key),
        Action::Op(Op::Batch { first, .. }) => Some(first),
        Action::Op(Op::Reopen | Op::Compact) | Action::Create => None,
    }
}

/// True if many recoveries are to be tried, with one operation each: what a crash left in part is then
/// just what that operation changes.
pub(crate) fn widely(number: u64) -> bool {
    !number.is_multiple_of(4)
}

/// Operations that depend on nothing but the content, the crash and `number`.
fn operations(
    subject: &dyn Subject,
    content: &[(u64, u64)],
    crash: &Crash<'_>,
    number: u64,
) -> Vec<Op> {
    let sum = (content.iter()).fold(0_u64, |sum, (key, value)| sum.wrapping_add(key ^ value));
    // A mutant's trace has other events, and as many stores.
    let mut rng = Rng::of(sum, u64::from(crash.pending.newest()), number);
    let middle = content.get(content.len() / 2).map(|entry| entry.0);
    let around = match key_of(crash.last) {
        Some(key) if rng.below(4) > 0 => key,
        _ => middle.unwrap_or(subject.max_key() / 2),
    };
    let one = |rng: &mut Rng| {
        let near = rng.below(2 * STEP);
        let key = if rng.below(2) == 0 {
            around.saturating_sub(near)
        } else {
            around.saturating_add(near).min(subject.max_key())
        };
        let value = 1 + rng.below(1 << 20);
        let at = content.partition_point(|entry| entry.0 < key);
        match (rng.below(8), content.get(at)) {
            (0..4, _) => Op::Insert(key, value),
            (4 | 5, Some((there, _))) => Op::Remove(*there),
            (6, Some((there, _))) => Op::Update(*there, value),
            _ => Op::Upsert(key, value),
        }
    };
    let most = if widely(number) { 1 } else { OPERATIONS };
    let mut ops: Vec<Op> = (0..1 + rng.below(most)).map(|_| one(&mut rng)).collect();
    if !widely(number) && rng.below(3) == 0 {
        // Somewhere else a node may split, into a block that recovery freed.
        let entry = content.get(rng.below(content.len().max(1) as u64) as usize);
        let first = entry.map_or(around, |entry| entry.0);
        let batch = Op::Batch {
            first,
            step: 1,
            count: (2 + rng.below(12)).min((subject.max_key() - first).max(1)),
            value: 1 + rng.below(1 << 20),
        };
        ops.insert(0, batch);
    }
    if !widely(number) && rng.below(6) == 0 {
        ops.pop();
        ops.push(Op::Reopen);
    }
    ops.retain(|op| subject.can(op));
    if ops.is_empty() {
        let upsert = Op::Upsert(around.min(subject.max_key()), 10);
        ops.extend(Some(upsert).filter(|op| subject.can(op)));
    }
    ops
}

impl Worker<'_> {
    fn limits(&self) -> &'static Limits {
        if widely(self.options.then) {
            &WIDELY
        } else {
            &CLOSELY
        }
    }

    /// How many recoveries of one crash point's images are gone into.
    pub(super) fn recoveries(&self) -> u64 {
        match self.options.then {
            0 => u64::MAX,
            _ => self.limits().recoveries,
        }
    }

    /// Recovers what is in memory after a crash and operates on it, and says what that did.
    pub(super) fn rerun(&mut self, crash: &Crash<'_>) -> Rerun {
        let (subject, sim, number) = (self.subject, self.sim.clone(), self.options.then);
        // Another thread, so that recovery may not lean on an operation's fence, and a third one that walks for
        // it; where store buffers count, that would forget what one has seen of another.
        let [thread, worker] = match self.options.model {
            Model::Eadr => [0, 0],
            _ => [1, 2],
        };
        let mut rerun = Rerun::default();
        self.watch.beat();
        sim.set_frozen(false);
        sim.set_thread(0);
        sim.set_worker(Some(worker));
        sim.set_limit(RECOVERY_STEPS);
        sim.start_trace();
        let then = quietly(|| {
            let opened = subject.open()?;
            rerun.events = sim.take_trace();
            rerun.recovered = rerun.events.len();
            rerun.prepared = rerun.recovered;
            let Opened::Live(mut live) = opened else {
                return Ok(None);
            };
            let mut seen = Vec::new();
            observe(&*live, &mut seen)?;
            let ops = operations(subject, &seen, crash, number);
            let Some((last, first)) = ops.split_last() else {
                power_off(&sim, live);
                return Ok(None);
            };
            let mut map: BTreeMap<u64, u64> = seen.iter().copied().collect();
            let failed = |op: &Op, e: Fault| {
                let what = format!("{op:?}, one of {ops:?} after recovery: {e}");
                Fault::new(FaultKind::Progress, what)
            };
            sim.set_thread(thread);
            sim.start_trace();
            for op in first {
                collect();
                sim.set_limit(OPERATION_STEPS);
                live = apply(subject, live, &mut map, op).map_err(|e| failed(op, e))?;
            }
            collect();
            let mut events = sim.take_trace();
            let prepared = rerun.recovered + events.len();
            let before: Vec<(u64, u64)> = map.iter().map(|(key, value)| (*key, *value)).collect();
            sim.set_limit(match last {
                Op::Reopen => RECOVERY_STEPS,
                _ => OPERATION_STEPS,
            });
            sim.start_trace();
            live = apply(subject, live, &mut map, last).map_err(|e| failed(last, e))?;
            events.extend(sim.take_trace());
            rerun.events.extend(events);
            rerun.prepared = prepared;
            power_off(&sim, live);
            Ok(Some([seen, before, map.into_iter().collect()]))
        });
        sim.set_sink(None);
        sim.set_frozen(true);
        sim.set_worker(None);
        sim.set_limit(u64::MAX);
        match then.and_then(|inner| inner) {
            Ok(then) => rerun.then = then,
            Err(fault) => rerun.fault = Some(fault),
        }
        rerun
    }

    /// The crash points of the recovery from the image in memory, and of the last operation after it.
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
        let rerun = self.rerun(crash);
        let decisions = sim.decisions(start);
        sim.roll_back(opened);
        sim.impose(&decisions);
        sim.forget_below(base);
        let (recovered, n) = (rerun.recovered, rerun.events.len());
        for site in sites_of(&rerun.events[..recovered]) {
            let steps = self.totals.recovery_sites.entry(site).or_default();
            steps.insert(crash.step);
        }
        if let Some(fault) = rerun.fault.clone() {
            let violation = self.violation(crash, fault, self.point(crash, start), None);
            self.totals.count(violation);
        }
        if self.options.survey || self.enough() {
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
        let limits = self.limits();
        let stores = |from: usize| {
            let events = rerun.events[from..].iter();
            events.filter(|event| adds_images(&event.kind)).count()
        };
        // Of so many points one, so that they are all over what is done.
        let one_in = stores(rerun.prepared).div_ceil(limits.points).max(1) as u64;
        let mut rng = Rng::of(self.options.then, crash.pending.newest().into(), 0);
        let mut before = self.totals.nested_images;
        for (i, event) in rerun.events.iter().enumerate() {
            let known = widely(self.options.then) && i < rerun.prepared;
            if !known && (i == recovered || i == rerun.prepared) {
                self.visit_nested(&mut nested, i, true, Some(None));
                before = self.totals.nested_images;
            }
            Self::advance(&sim, &mut nested.pending, event);
            if known || (recovered..rerun.prepared).contains(&i) {
                continue;
            }
            let adds = adds(event, &nested.pending);
            let enough = self.totals.nested_images - before >= limits.images;
            if adds.is_some() && (enough || rng.below(one_in) > 0) {
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
            let image = |worker: &mut Self| {
                let result = worker.check(&expected, false);
                worker.totals.images += 1;
                worker.totals.nested_images += 1;
                if let Err(fault) = result {
                    let inner = Point {
                        events,
                        completed,
                        decisions: sim.decisions(start),
                    };
                    let inner = Some((inner, &nested.pending));
                    let violation = worker.violation(crash, fault, nested.outer.clone(), inner);
                    worker.totals.count(violation);
                }
                sim.roll_back(opened);
            };
            let mut images = 0;
            let all = loop {
                sim.begin_image(nested.base);
                image(self);
                images += 1;
                if !sim.next_image(nested.base) {
                    break !sim.diverged();
                }
                if images >= self.limits().at_a_point || self.enough() {
                    break false;
                }
            };
            sim.forget_below(nested.base);
            if !all {
                // What is likely to show something: each line that is pending, alone.
                let first = crash.pending.domains().count();
                for domain in (first..).take(nested.pending.domains().count().min(ALONE)) {
                    if self.enough() {
                        break;
                    }
                    sim.set_strategy(Strategy::Alone(domain as u32));
                    image(self);
                }
                sim.set_strategy(Strategy::DepthFirst);
            }
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
