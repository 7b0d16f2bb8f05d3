//! Crashes of one run: the choice of points and images, and the checks of their recoveries.
//!
//! # Crash points
//! *Random* points are returns of calls, fences, and any others. *Directed* points are the return
//! of a call that has loaded another thread's store which is not durable yet. Such a load is no
//! fault in itself, since an optimistic reader may discard it; a crash at that point shows whether
//! it is one. A return is also a directed point if another call is changing the same key, because
//! the returning call may have seen that change through volatile memory.

use super::{Counts, Crash, Dependence, LostStore, recover};
use crate::history::{Call, Mismatch, Outcomes, Sighting, key_of, sighting};
use crate::rng::Rng;
use crate::subject::{Fault, FaultKind, Subject};
use bristlecone_pmem::media::sim::{
    Event, EventKind, Mark, Model, Pending, PendingStore, Simulation, Strategy,
};
use std::collections::BTreeMap;

/// Images of a crash point that are enumerated before the rest is sampled.
const EXHAUSTIVE: u64 = 12;
/// Random crash points of a run.
const RANDOM_POINTS: usize = 9;
/// Directed crash points of a run.
const DIRECTED_POINTS: usize = 4;
/// Domains whose stores are kept alone, one domain an image.
const ALONE: u32 = 6;

/// The events and calls of a run.
pub(super) struct Trace<'a> {
    pub(super) events: &'a [Event],
    /// Events of opening, before the first call.
    pub(super) opened: usize,
    pub(super) calls: &'a [Call],
    pub(super) start: &'a BTreeMap<u64, u64>,
}

/// A call that loaded another thread's store before it was durable.
#[derive(Clone, Copy, Debug)]
struct Peek {
    call: usize,
    /// The store's place in the order of all stores ([`PendingStore::seq`]), and its event.
    seq: u32,
    store: usize,
}

#[derive(Clone, Copy)]
struct Undurable {
    word: u32,
    seq: u32,
    event: usize,
    thread: u8,
}

/// Follows a trace. Returns the loads of stores that a crash could still undo, and the directed
/// points.
fn peeks(trace: &Trace<'_>, model: Model, unit: u8) -> (Vec<Peek>, Vec<usize>) {
    let mut pending = Pending::new(model, unit);
    let mut undurable: Vec<Undurable> = Vec::new();
    let mut peeks: Vec<Peek> = Vec::new();
    let mut directed = Vec::new();
    let mut seq = 0;
    let mut returns: Vec<(usize, usize)> = (trace.calls.iter().enumerate())
        .filter(|(_, call)| call.returned.is_some())
        .map(|(i, call)| (call.to, i))
        .collect();
    returns.sort_unstable();
    let mut returns = returns.into_iter().peekable();
    for (i, event) in trace.events.iter().enumerate() {
        let mut stored = |word: u64, old: u64, new: u64| {
            seq += 1;
            if old != new {
                undurable.push(Undurable {
                    word: word as u32,
                    seq,
                    event: i,
                    thread: event.thread,
                });
            }
        };
        match event.kind {
            EventKind::Store { at, old, new } => stored(at / 8, old, new),
            EventKind::Store16 { at, old, new } => {
                stored(at / 8, old as u64, new as u64);
                stored(at / 8 + 1, (old >> 64) as u64, (new >> 64) as u64);
            }
            EventKind::Load { at, bytes } if i >= trace.opened => {
                let words = (at / 8) as u32..=((at + u64::from(bytes.max(1)) - 1) / 8) as u32;
                for (n, store) in undurable.iter().enumerate() {
                    let last = || !undurable[n + 1..].iter().any(|s| s.word == store.word);
                    if store.thread != event.thread && words.contains(&store.word) && last() {
                        let call = (trace.calls.iter())
                            .position(|c| c.thread == event.thread && c.was_running_at(i));
                        peeks.extend(call.map(|call| Peek {
                            call,
                            seq: store.seq,
                            store: store.event,
                        }));
                    }
                }
            }
            EventKind::Zero { at, bytes } => {
                let range = (at / 8) as u32..((at + bytes) / 8) as u32;
                undurable.retain(|store| !range.contains(&store.word));
            }
            _ => {}
        }
        pending.apply(event, &mut |word, _| {
            if let Some(n) = undurable.iter().position(|store| store.word == word) {
                undurable.remove(n);
            }
        });
        while let Some((to, call)) = returns.next_if(|(to, _)| *to <= i + 1) {
            let open = |seq: u32| undurable.iter().any(|store| store.seq == seq);
            if peeks.iter().any(|peek| peek.call == call && open(peek.seq)) {
                directed.push(to);
            }
        }
    }
    directed.extend(meetings(trace.calls));
    directed.sort_unstable();
    directed.dedup();
    (peeks, directed)
}

/// Returns the points where a call returns while another call is changing the same key.
fn meetings(calls: &[Call]) -> impl Iterator<Item = usize> {
    let meets = |call: &&Call| {
        call.returned.is_some()
            && calls.iter().any(|other| {
                other.thread != call.thread
                    && other.writes()
                    && other.was_running_at(call.to)
                    && key_of(&other.op) == key_of(&call.op)
            })
    };
    calls.iter().filter(meets).map(|call| call.to)
}

/// Returns the crash points, ascending, and how many of them are directed.
fn points(trace: &Trace<'_>, mut directed: Vec<usize>, rng: &mut Rng) -> (Vec<usize>, u64) {
    while directed.len() > DIRECTED_POINTS {
        directed.remove(rng.index(directed.len()));
    }
    let count = directed.len() as u64;
    let mut points = directed;
    let (first, last) = (trace.opened, trace.events.len());
    for n in 0..RANDOM_POINTS {
        let any = first + rng.index(last - first + 1);
        let call = trace.calls.get(rng.index(trace.calls.len()));
        points.push(match (n % 3, call) {
            // At the return of a call, all of its stores must be durable.
            (0, Some(call)) if call.returned.is_some() => call.to,
            // Just before a fence, the most stores are pending.
            (1, _) => (any..last)
                .find(|&i| matches!(trace.events[i].kind, EventKind::Fence))
                .unwrap_or(any),
            _ => any,
        });
    }
    points.sort_unstable();
    points.dedup();
    (points, count)
}

/// Crashes a run at some points and checks the recoveries of their images. The simulation is at
/// `prepared`, where the run began, and returns to it.
pub(super) fn explore(
    subject: &dyn Subject,
    sim: &Simulation,
    prepared: Mark,
    trace: &Trace<'_>,
    model: Model,
    rng: &mut Rng,
    counts: &mut Counts,
) -> Option<(Fault, Crash)> {
    let (peeks, directed) = peeks(trace, model, subject.unit());
    let (points, directed) = points(trace, directed, rng);
    counts.directed += directed;
    let mut pending = Pending::new(model, subject.unit());
    let mut applied = 0;
    let mut found = None;
    for point in points {
        for event in &trace.events[applied..point] {
            // A change of length, or a hole, is durable at once.
            match event.kind {
                EventKind::Resize { to, .. } => sim.set_len(to),
                EventKind::Zero { at, bytes } => sim.zero(at, bytes),
                _ => {}
            }
            pending.apply(event, &mut |word, value| sim.set_word(word, value));
        }
        applied = point;
        counts.crash_points += 1;
        let point = Point {
            subject,
            sim,
            trace,
            at: point,
            pending: &pending,
            peeks: &peeks,
            outcomes: Outcomes::of(trace.calls, trace.start, point),
        };
        found = point.images(rng, counts);
        if found.is_some() {
            break;
        }
    }
    sim.roll_back(prepared);
    found
}

/// A crash point, and the contents that are right after it.
struct Point<'a> {
    subject: &'a dyn Subject,
    sim: &'a Simulation,
    trace: &'a Trace<'a>,
    at: usize,
    pending: &'a Pending,
    peeks: &'a [Peek],
    outcomes: Outcomes<'a>,
}

impl Point<'_> {
    /// Tries all images if they are few, or some of every kind.
    fn images(&self, rng: &mut Rng, counts: &mut Counts) -> Option<(Fault, Crash)> {
        let here = self.sim.mark();
        let exposed = self.sim.expose(self.pending, None);
        let found = self.all_or_some(here, rng, counts);
        self.sim.close(exposed);
        found
    }

    fn all_or_some(
        &self,
        here: Mark,
        rng: &mut Rng,
        counts: &mut Counts,
    ) -> Option<(Fault, Crash)> {
        self.sim.set_strategy(Strategy::DepthFirst);
        let mut images = 0;
        loop {
            self.sim.begin_image(0);
            images += 1;
            counts.images += 1;
            if let Some(found) = self.image(here) {
                return Some(found);
            }
            if !self.sim.next_image(0) {
                counts.exhaustive += 1;
                return None;
            }
            if images == EXHAUSTIVE {
                break;
            }
        }
        let domains = self.pending.domains().count() as u32;
        let first = rng.index(domains as usize) as u32;
        let alone = (0..domains.min(ALONE)).map(|n| Strategy::Alone((first + n) % domains));
        let random = [rng.next_u64() | 1, rng.next_u64() | 1].map(Strategy::Random);
        for strategy in alone.chain([Strategy::Newest]).chain(random) {
            self.sim.set_strategy(strategy);
            counts.images += 1;
            let found = self.image(here);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Recovers one image and checks it, and then undoes the changes to the simulation.
    fn image(&self, here: Mark) -> Option<(Fault, Crash)> {
        let content = recover(self.subject, self.sim);
        let found = match content {
            Err(fault) => Some((fault, self.crash(here))),
            Ok(content) => self.outcomes.check(&content).err().map(|mismatch| {
                let mut crash = self.crash(here);
                crash.dependence = self.dependence(&crash.lost, &mismatch);
                let known = |value: u64| {
                    self.trace.start.values().any(|v| *v == value)
                        || self.trace.calls.iter().any(|call| {
                            call.from <= self.at && super::value_of(&call.op) == Some(value)
                        })
                };
                let kind = match mismatch.found {
                    _ if crash.dependence.is_some() => FaultKind::VisibleBeforeDurable,
                    Some(value) if !known(value) => FaultKind::Phantom,
                    _ => FaultKind::Lost,
                };
                (Fault::new(kind, mismatch.to_string()), crash)
            }),
        };
        self.sim.roll_back(here);
        found
    }

    /// Returns the crash, with the stores that the present image lost.
    fn crash(&self, here: Mark) -> Crash {
        let mut lost = Vec::new();
        for decision in self.sim.decisions(here) {
            let of_word = (self.pending.domains().flatten())
                .filter(|store: &&PendingStore| store.word == decision.word);
            lost.extend(of_word.skip(usize::from(decision.kept)).map(LostStore::of));
        }
        lost.sort_unstable_by_key(|store| store.seq);
        Crash {
            point: self.at,
            events: self.trace.events.len(),
            after: self.at.checked_sub(1).map(|last| self.trace.events[last]),
            lost,
            dependence: None,
        }
    }

    /// Returns a completed call that saw a change of a call which had not returned and which this
    /// crash undid. The replies of the key's calls decide, or else the loads of any call.
    fn dependence(&self, lost: &[LostStore], mismatch: &Mismatch) -> Option<Dependence> {
        let calls = self.trace.calls;
        let load = |peek: &Peek| {
            let store = lost.iter().find(|store| store.seq == peek.seq)?;
            let writer = calls
                .iter()
                .position(|call| call.thread == store.thread && call.was_running_at(peek.store))?;
            (calls[peek.call].completed_at(self.at) && !calls[writer].completed_at(self.at))
                .then_some(Dependence {
                    observer: peek.call,
                    writer,
                    store: Some(*store),
                })
        };
        let loads = || self.peeks.iter().filter_map(load);
        match sighting(calls, self.trace.start, self.at, mismatch) {
            // If several calls were changing the key, a load names the writer more precisely.
            Some(Sighting { observer, writer }) => Some(
                loads()
                    .find(|load| {
                        let of = key_of(&calls[load.writer].op);
                        load.observer == observer && of == Some(mismatch.key)
                    })
                    .unwrap_or(Dependence {
                        observer,
                        writer,
                        store: None,
                    }),
            ),
            None => loads()
                .find(|load| key_of(&calls[load.observer].op) == Some(mismatch.key))
                .or_else(|| loads().next()),
        }
    }
}
