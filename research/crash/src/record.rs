//! Recording: one run of a workload on a simulation, whose trace is then explored.

use crate::quiet::{self, Caught};
use crate::subject::{Fault, FaultKind, Live, Op, Opened, Reply, Subject};
use crate::subjects::batch_keys;
use crate::watchdog::{PATIENCE, watched};
use crate::workload::Workload;
use bristlecone_pmem::media::sim::{Event, EventKind, Simulation, Site, SiteKind};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A change to the code under test: instructions switched off, a bug planted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mutation {
    /// Flushes and fences that do nothing.
    pub off: Vec<Site>,
    /// A planted fault.
    pub planted: Option<&'static str>,
}

impl Mutation {
    /// Applies the mutation to a simulation.
    pub fn install(&self, sim: &Simulation) {
        sim.switch_off(&self.off);
        sim.plant(self.planted);
    }
}

/// Entries, ascending by key.
pub type Content = Arc<Vec<(u64, u64)>>;

/// An action of a run: the creation, or an operation after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The creation of pool and structure.
    Create,
    /// An operation.
    Op(Op),
}

/// One action and its part of the trace.
#[derive(Clone, Debug)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// Its first event.
    pub begin: usize,
    /// One past its last event.
    pub end: usize,
    /// Content before the action.
    pub before: Content,
    /// Content after the action.
    pub after: Content,
}

/// The recorded run of a workload.
#[derive(Clone, Debug)]
pub struct Recording {
    /// All events but loads, from the empty simulation on.
    pub events: Vec<Event>,
    /// The actions in order.
    pub steps: Vec<Step>,
    /// The first step whose crashes are explored.
    pub explored: usize,
    /// True if memory held garbage at the beginning.
    pub dirty: bool,
}

/// Fills memory with garbage, as on a device that was used for something else. A device does not
/// grow.
pub fn make_dirty(sim: &Simulation, bytes: u64) {
    for word in 0..(bytes / 8) as u32 {
        let garbage = u64::from(word + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        sim.set_word(word, garbage);
    }
    sim.set_len(bytes);
}

/// Capacity up to which a subject is also created on a dirty device.
const MAX_DIRTY: u64 = 8 << 20;

/// Accesses to persistent memory after which a live operation counts as hanging.
const STEPS: u64 = 40_000_000;

/// Applies an operation to the model and returns the reply that it must give.
pub fn model(map: &mut BTreeMap<u64, u64>, op: &Op) -> Reply {
    match *op {
        Op::Insert(k, v) => {
            if map.contains_key(&k) {
                return Reply::Refused;
            }
            map.insert(k, v);
        }
        Op::Upsert(k, v) => {
            map.insert(k, v);
        }
        Op::Update(k, v) => match map.get_mut(&k) {
            Some(value) => *value = v,
            None => return Reply::Refused,
        },
        Op::Remove(k) => {
            if map.remove(&k).is_none() {
                return Reply::Refused;
            }
        }
        Op::Get(k) => return Reply::Found(map.get(&k).copied()),
        Op::Batch {
            first,
            step,
            count,
            value,
        } => {
            for key in batch_keys(first, step, count) {
                map.entry(key).or_insert(value);
            }
        }
        Op::Reopen | Op::Compact => {}
    }
    Reply::Done
}

/// Opens a structure that must exist.
pub fn reopen(subject: &dyn Subject) -> Result<Box<dyn Live>, Fault> {
    match subject.open()? {
        Opened::Live(live) => Ok(live),
        Opened::Absent => Err(Fault::new(FaultKind::Lost, "the structure is not there")),
    }
}

/// Does `op` and checks its reply against the model.
pub fn apply(
    subject: &dyn Subject,
    live: Box<dyn Live>,
    map: &mut BTreeMap<u64, u64>,
    op: &Op,
) -> Result<Box<dyn Live>, Fault> {
    let expected = model(map, op);
    if *op == Op::Reopen {
        live.close()?;
        return reopen(subject);
    }
    let reply = live.apply(op)?;
    if reply != expected {
        return Err(Fault::new(
            FaultKind::Wrong,
            format!("{op:?} answered {reply:?}, not {expected:?}"),
        ));
    }
    Ok(live)
}

/// Runs a workload.
///
/// # Errors
/// A live operation failed or gave a wrong reply, before any crash.
pub fn record(
    subject: &dyn Subject,
    workload: &Workload,
    mutation: &Mutation,
) -> Result<Recording, Fault> {
    let done = AtomicU64::new(0);
    let describe = || {
        // ORDERING: Relaxed; the operation hangs long after the other thread counted it.
        let done = done.load(Ordering::Relaxed) as usize;
        let mut ops = workload.setup.iter().chain(&workload.ops);
        let what = match done.checked_sub(1).and_then(|number| ops.nth(number)) {
            Some(op) => format!("step {done}, {op:?}"),
            None => "the creation".into(),
        };
        let name = subject.name();
        format!("{name}: {what}: no end after {PATIENCE} s, without any crash")
    };
    let run = || record_watched(subject, workload, mutation, &done);
    watched(PATIENCE, &done, &describe, run)
}

fn record_watched(
    subject: &dyn Subject,
    workload: &Workload,
    mutation: &Mutation,
    done: &AtomicU64,
) -> Result<Recording, Fault> {
    let sim = Simulation::new(subject.capacity());
    let _attached = sim.attach();
    mutation.install(&sim);
    let dirty = workload.dirty && subject.takes_dirty() && subject.capacity() <= MAX_DIRTY;
    if dirty {
        make_dirty(&sim, subject.capacity());
    }
    sim.start_trace();
    let mut map = BTreeMap::new();
    let empty: Content = Arc::new(Vec::new());
    let mut steps = vec![Step {
        action: Action::Create,
        begin: 0,
        end: 0,
        before: Arc::clone(&empty),
        after: empty,
    }];
    let mut events = Vec::new();
    let mut live = live_step(&sim, || subject.create())?;
    take(&sim, &mut events);
    steps[0].end = events.len();
    for (number, op) in workload.setup.iter().chain(&workload.ops).enumerate() {
        let before = steps
            .last()
            .map_or_else(Content::default, |s| Arc::clone(&s.after));
        let begin = events.len();
        // ORDERING: Relaxed; for the watchdog.
        done.store(number as u64 + 1, Ordering::Relaxed);
        // Successive operations run on different threads, so that no operation relies on a fence of
        // a later one.
        sim.set_thread(if *op == Op::Reopen {
            0
        } else {
            1 + (number % 3) as u8
        });
        if *op == Op::Reopen {
            // Who closes a structure has seen what all other threads have stored.
            events.push(Event {
                kind: EventKind::Load {
                    at: 0,
                    bytes: subject.capacity() as u32,
                },
                thread: 0,
                site: Location::caller(),
            });
        }
        live = live_step(&sim, || apply(subject, live, &mut map, op))?;
        take(&sim, &mut events);
        let after: Vec<(u64, u64)> = map.iter().map(|(k, v)| (*k, *v)).collect();
        let after = if after == *before {
            Arc::clone(&before)
        } else {
            Arc::new(after)
        };
        steps.push(Step {
            action: Action::Op(*op),
            begin,
            end: events.len(),
            before,
            after,
        });
    }
    sim.set_sink(None);
    sim.set_frozen(true);
    drop(live);
    Ok(Recording {
        events,
        steps,
        explored: if workload.creation {
            0
        } else {
            workload.setup.len() + 1
        },
        dirty,
    })
}

/// Runs a live step. A panic in it is a fault too, and so is running out of steps.
fn live_step<R>(sim: &Simulation, f: impl FnOnce() -> Result<R, Fault>) -> Result<R, Fault> {
    quiet::install();
    sim.set_limit(STEPS);
    let result = quiet::catch(f);
    sim.set_limit(u64::MAX);
    result.unwrap_or_else(|caught| {
        Err(match caught {
            Caught::OutOfSteps => {
                Fault::new(FaultKind::Progress, "it did not end within its steps")
            }
            Caught::Panic(message) => Fault::new(FaultKind::Wrong, format!("panicked: {message}")),
        })
    })
}

fn take(sim: &Simulation, events: &mut Vec<Event>) {
    events.extend(sim.take_trace());
    sim.start_trace();
}

/// Returns the instruction sites in a trace.
pub(crate) fn sites_of(events: &[Event]) -> BTreeSet<Site> {
    // Most events repeat the place of the one before, and the others a few places, which are
    // compared by address first.
    let (mut last, mut seen) = (None, HashSet::new());
    events
        .iter()
        .filter_map(|event| Some((event.site, SiteKind::of(&event.kind)?)))
        .filter(|(at, kind)| {
            let place = Some((std::ptr::from_ref(*at), *kind));
            last != place && {
                last = place;
                place.is_some_and(|place| seen.insert(place))
            }
        })
        .map(|(at, kind)| Site::new(at, kind))
        .collect()
}
