//! Ordering mutants: stores that a fence keeps apart change places in the trace. Also counts
//! instructions that did nothing.

use super::{Mutant, Place, Recorded, Waste};
use crate::record::Recording;
use bristlecone_pmem::media::sim::{Event, EventKind, Model, Site, SiteKind, line_of};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::Location;

fn place(at: &'static Location<'static>) -> Place {
    (at.file(), at.line(), at.column())
}

/// Returns the word that an event changes, if any.
fn changes(event: &Event) -> Option<u32> {
    match event.kind {
        EventKind::Store { at, old, new } if old != new => Some((at / 8) as u32),
        EventKind::Store16 { at, old, new } if old != new => Some((at / 8) as u32),
        _ => None,
    }
}

/// A fence, and the stores on both sides of it by the same thread in the same step.
struct Pair {
    /// The last changing store before the fence.
    before: usize,
    /// The first flush that the fence waits for.
    flushes: usize,
    fence: usize,
    /// The changing stores after it, up to the next flush or fence.
    after: Vec<usize>,
}

fn pairs(recording: &Recording) -> Vec<Pair> {
    let events = &recording.events;
    let mut found: Vec<Pair> = Vec::new();
    for step in &recording.steps[recording.explored.min(recording.steps.len())..] {
        let (mut store, mut flush, mut open) = (None, None, false);
        for (i, event) in events.iter().enumerate().take(step.end).skip(step.begin) {
            if changes(event).is_some() {
                if open && let Some(pair) = found.last_mut() {
                    pair.after.push(i);
                }
                (store, flush) = (Some(i), None);
                continue;
            }
            match event.kind {
                EventKind::Flush { .. } => {
                    open = false;
                    flush = flush.or(Some(i));
                }
                EventKind::Fence => {
                    open = false;
                    if let Some(before) = store {
                        open = true;
                        found.push(Pair {
                            before,
                            flushes: flush.unwrap_or(i),
                            fence: i,
                            after: Vec::new(),
                        });
                    }
                }
                _ => {}
            }
        }
    }
    found.retain(|pair| !pair.after.is_empty());
    found
}

/// Returns the mutants of a pair. The last of the stores that move, which publishes, names them.
fn orderings_of_pair(events: &[Event], pair: &Pair) -> Option<[Mutant; 2]> {
    let last = *pair.after.last()?;
    let [before, fence, after] = [pair.before, pair.fence, last].map(|i| place(events[i].site));
    let line = |i: usize| changes(&events[i]).map(line_of);
    let apart = pair.after.iter().any(|i| line(*i) != line(pair.before));
    apart.then_some([
        Mutant::EarlyPublish(fence, after),
        Mutant::Swap(before, after),
    ])
}

pub(super) fn orderings_of(recording: &Recording) -> BTreeSet<Mutant> {
    pairs(recording)
        .iter()
        .filter_map(|pair| orderings_of_pair(&recording.events, pair))
        .flatten()
        .collect()
}

/// Returns the trace with every instance of an ordering mutant made, and the steps that it changes,
/// for [`Options::only`](crate::explore::Options::only).
pub(super) fn reordered(
    recording: &Recording,
    mutant: Mutant,
) -> Option<(Recording, Vec<Option<usize>>)> {
    let mut events = recording.events.clone();
    let mut steps = vec![None; recording.steps.len()];
    // From the end, so that a move does not shift the places of the moves to come.
    for pair in pairs(recording).iter().rev() {
        let Some([early, swap]) = orderings_of_pair(&recording.events, pair) else {
            continue;
        };
        let to = if mutant == early {
            pair.flushes
        } else if mutant == swap {
            pair.before
        } else {
            continue;
        };
        for (n, from) in pair.after.iter().enumerate() {
            let moved = changes(&events[*from]);
            let passed = &events[to + n..*from];
            if passed.iter().all(|event| changes(event) != moved) {
                events[to + n..=*from].rotate_right(1);
                let step = recording.steps.partition_point(|step| step.end <= *from);
                steps[step] = Some(0);
            }
        }
    }
    let mutated = Recording {
        events,
        ..recording.clone()
    };
    steps.contains(&Some(0)).then_some((mutated, steps))
}

/// Returns the sites that flushed a clean line, or fenced with nothing to wait for, every time and
/// sometimes. Under eADR, where flushes do nothing, a fence waits for the thread's stores.
pub(super) fn waste_of(recorded: &[Recorded], model: Model) -> (Vec<Waste>, Vec<Waste>) {
    let buffers = model == Model::Eadr;
    let mut counts: BTreeMap<Site, (u64, u64)> = BTreeMap::new();
    for r in recorded {
        let mut dirty: HashSet<u64> = HashSet::new();
        let mut waiting: BTreeMap<u8, u64> = BTreeMap::new();
        for event in &r.recording.events {
            let wasted = match event.kind {
                EventKind::Store { at, .. } | EventKind::Store16 { at, .. } => {
                    dirty.insert(at / 64);
                    *waiting.entry(event.thread).or_default() += u64::from(buffers);
                    continue;
                }
                EventKind::Flush { .. } if buffers => continue,
                EventKind::Flush { line } => {
                    let clean = !dirty.remove(&(line / 64));
                    *waiting.entry(event.thread).or_default() += u64::from(!clean);
                    clean
                }
                EventKind::Fence => waiting.insert(event.thread, 0).unwrap_or(0) == 0,
                _ => continue,
            };
            if let Some(kind) = SiteKind::of(&event.kind) {
                let count = counts.entry(Site::new(event.site, kind)).or_default();
                count.0 += 1;
                count.1 += u64::from(wasted);
            }
        }
    }
    let all = counts.into_iter().filter(|(_, count)| count.1 > 0);
    all.map(|(site, (executed, wasted))| Waste {
        site,
        executed,
        wasted,
    })
    .partition(|waste| waste.wasted == waste.executed)
}
