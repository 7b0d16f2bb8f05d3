//! Crashes in a recovery, and in the operations after it.
//!
//! The content that recovery showed must not depend on stores that a later crash can undo. Once
//! recovery is done, its content counts as seen. Operations after it must last too, whatever
//! becomes of the stores of recovery. The operations are near the one that was in flight, where
//! recovery has repaired the most. Every crash point of the last of them is tried. It may be a
//! clean close and opening, which trusts what was recovered.

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

/// Bounds on the exploration of second crashes.
pub(super) struct Limits {
    /// Recoveries of one crash point's images that are explored, if `Options::follow_up` is not 0.
    recoveries: u64,
    /// Crash points of a recovery, and of the last operation after it.
    points: usize,
    /// Images of one of these points.
    at_a_point: u64,
    /// Images of all of these points.
    images: u64,
}

/// Explores a few recoveries closely.
const CLOSELY: Limits = Limits {
    recoveries: 8,
    points: usize::MAX,
    at_a_point: 32,
    images: 1000,
};
/// Explores many recoveries, each in part.
const WIDELY: Limits = Limits {
    recoveries: 4,
    points: 10,
    at_a_point: 8,
    images: 200,
};
/// Explores the power cuts after a kill.
pub(super) const AFTER_A_KILL: Limits = Limits {
    recoveries: u64::MAX,
    points: 12,
    at_a_point: 16,
    images: 100,
};
/// Largest number of further images, each with one domain kept alone, of a point that has more.
const MAX_ALONE: usize = 16;

/// Largest number of operations after a recovery.
const MAX_OPERATIONS: u64 = 4;

/// The run of a recovery and of the operations after it.
#[derive(Default)]
pub(super) struct Rerun {
    events: Vec<Event>,
    /// Number of events of the recovery.
    recovered: usize,
    /// Number of events before the last operation.
    prepared: usize,
    /// The contents after recovery, before the last operation, and after it, if there was one.
    contents: Option<[Vec<(u64, u64)>; 3]>,
    /// The fault, if the run failed without another crash.
    pub(super) fault: Option<Fault>,
}

impl Rerun {
    pub(super) fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns the events of the recovery.
    pub(super) fn recovery(&self) -> &[Event] {
        &self.events[..self.recovered]
    }

    /// Returns the contents that are right after a crash at that point.
    pub(super) fn expected<'a>(
        &'a self,
        first: Expected<'a>,
        events: usize,
        completed: bool,
    ) -> Expected<'a> {
        let Some([seen, before, after]) = &self.contents else {
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

/// Returns the key that an action concerns.
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

/// Returns true if a number of [`Options::follow_up`](super::Options::follow_up) stands for many
/// recoveries with one operation each. That operation then changes just the entries that a crash
/// left in part.
pub(crate) fn is_wide(number: u64) -> bool {
    !number.is_multiple_of(4)
}

/// Returns the operations after a recovery. Only the content, the crash and `number` determine
/// them.
fn operations(
    subject: &dyn Subject,
    content: &[(u64, u64)],
    crash: &Crash<'_>,
    number: u64,
) -> Vec<Op> {
    let sum = (content.iter()).fold(0_u64, |sum, (key, value)| sum.wrapping_add(key ^ value));
    // A mutant's trace has other events but the same number of stores.
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
    let most = if is_wide(number) { 1 } else { MAX_OPERATIONS };
    let mut ops: Vec<Op> = (0..1 + rng.below(most)).map(|_| one(&mut rng)).collect();
    if !is_wide(number) && rng.below(3) == 0 {
        // A batch elsewhere may split a node, into a block that recovery freed.
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
    if !is_wide(number) && rng.below(6) == 0 {
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
        if is_wide(self.options.follow_up) {
            &WIDELY
        } else {
            &CLOSELY
        }
    }

    /// Returns how many recoveries of one crash point's images are explored.
    pub(super) fn recoveries(&self) -> u64 {
        match self.options.follow_up {
            0 => u64::MAX,
            _ => self.limits().recoveries,
        }
    }

    /// Recovers the image in memory and operates on it. Returns the run.
    pub(super) fn rerun(&mut self, crash: &Crash<'_>) -> Rerun {
        let (subject, sim, number) = (self.subject, self.sim.clone(), self.options.follow_up);
        // The operations run on another thread, so that recovery cannot rely on their fences, and
        // the walk of recovery runs on a third one. Under eADR, where store buffers count, all
        // share one thread: the model would not know that one thread has seen the stores of
        // another.
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
        let contents = quietly(|| {
            let opened = subject.open()?;
            let mut seen = Vec::new();
            if let (Opened::Live(live), true) = (&opened, subject.stores_when_observed()) {
                observe(&**live, &mut seen)?;
            }
            rerun.events = sim.take_trace();
            rerun.recovered = rerun.events.len();
            rerun.prepared = rerun.recovered;
            let Opened::Live(mut live) = opened else {
                return Ok(None);
            };
            if !subject.stores_when_observed() {
                observe(&*live, &mut seen)?;
            }
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
        match contents.and_then(|inner| inner) {
            Ok(contents) => rerun.contents = contents,
            Err(fault) => rerun.fault = Some(fault),
        }
        rerun
    }

    /// Explores the crash points of the recovery from the image in memory, and of the last
    /// operation after it.
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
        for site in sites_of(rerun.recovery()) {
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
            limits: self.limits(),
            from: if is_wide(self.options.follow_up) {
                rerun.prepared
            } else {
                0
            },
            base,
            first: sim.decisions(start).len(),
            domains: crash.pending.domains().count(),
            // The image itself is the state before the first event.
            covered: true,
            seen: Seen::default(),
        };
        self.crash_again(&mut nested);
        self.totals.nested_points += nested.seen.points;
        self.totals.nested_exhaustive_points += nested.seen.exhaustive;
        self.totals.nested_images += nested.seen.images;
    }

    /// Explores the crash points of a recovery, from the state before its first event on, and of
    /// the last operation after it.
    pub(super) fn crash_again(&mut self, nested: &mut Nested<'_>) {
        let sim = self.sim.clone();
        let (rerun, limits) = (nested.rerun, nested.limits);
        let (recovered, n) = (rerun.recovered, rerun.events.len());
        let stores = |from: usize| {
            let events = rerun.events[from..].iter();
            events.filter(|event| adds_images(&event.kind)).count()
        };
        // One point in so many, so that they are spread over the run.
        let one_in = stores(rerun.prepared).div_ceil(limits.points).max(1) as u64;
        let newest = nested.crash.pending.newest();
        let mut rng = Rng::of(self.options.follow_up, newest.into(), 0);
        let mut before = nested.seen.images;
        for (i, event) in rerun.events.iter().enumerate() {
            let known = i < nested.from;
            if !known && (i == recovered || i == rerun.prepared) {
                self.visit_nested(nested, i, true, Some(None));
                before = nested.seen.images;
            }
            Self::advance(&sim, &mut nested.pending, event);
            if known || (recovered..rerun.prepared).contains(&i) {
                continue;
            }
            let adds = adds(event, &nested.pending);
            let enough = nested.seen.images - before >= limits.images;
            if adds.is_some() && (enough || rng.below(one_in) > 0) {
                nested.covered = false;
                nested.seen.points += 1;
            } else {
                self.visit_nested(nested, i + 1, false, adds);
            }
            if self.enough() {
                return;
            }
        }
        if rerun.contents.is_some() {
            self.visit_nested(nested, n, true, Some(None));
        }
    }

    /// Visits the images of one point: none, those that keep a store, or all.
    fn visit_nested(
        &mut self,
        nested: &mut Nested<'_>,
        events: usize,
        completed: bool,
        adds: Option<Option<u32>>,
    ) {
        let sim = self.sim.clone();
        nested.seen.points += 1;
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
                if let Err(fault) = result {
                    let inner = Point {
                        events,
                        completed,
                        killed: false,
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
                if images >= nested.limits.at_a_point || self.enough() {
                    break false;
                }
            };
            sim.forget_below(nested.base);
            if !all {
                // Each pending line alone is the likeliest to show a fault.
                for domain in
                    (nested.domains..).take(nested.pending.domains().count().min(MAX_ALONE))
                {
                    if self.enough() {
                        break;
                    }
                    sim.set_strategy(Strategy::Alone(domain as u32));
                    image(self);
                    images += 1;
                }
                sim.set_strategy(Strategy::DepthFirst);
            }
            sim.roll_back(start);
            sim.close(from);
            self.watch.nested(None);
            nested.seen.images += images;
            nested.covered = Visited::of(newest, all).covers(nested.covered);
        }
        nested.seen.exhaustive += u64::from(nested.covered);
    }
}

/// A recovery whose crashes are being explored.
pub(super) struct Nested<'a> {
    pub(super) crash: &'a Crash<'a>,
    pub(super) outer: Point,
    /// The pending stores: first those that a kill left, or none after a power cut.
    pub(super) pending: Pending,
    pub(super) rerun: &'a Rerun,
    pub(super) limits: &'static Limits,
    /// Number of events whose crash points are left out.
    pub(super) from: usize,
    pub(super) base: usize,
    /// Number of decisions of the first crash.
    pub(super) first: usize,
    /// Number of domains whose words the first crash left open.
    pub(super) domains: usize,
    pub(super) covered: bool,
    pub(super) seen: Seen,
}

/// Crash points of a recovery, and their images.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) points: u64,
    /// Points all of whose images were visited.
    pub(super) exhaustive: u64,
    pub(super) images: u64,
}
