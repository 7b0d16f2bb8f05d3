//! Exploration of a recorded workload: every crash point, and every image that the model allows
//! there.
//!
//! A worker replays the trace on a buffer of its own, which holds the durable state. At a crash
//! point it leaves the pending stores open (`Simulation::expose`). Recovery, and the oracles after
//! it, decide which stores were kept by reading their words. A depth-first search of these
//! decisions visits each distinguishable image once. A word that nothing reads cannot matter.
//!
//! # Which points are visited
//! A store adds the images that keep it; the others were visited before it, with the same operation
//! in flight. A flush or a silent store adds no image, and a fence only removes some. So images are
//! enumerated where the explored part begins (all of them), after stores (those that keep the
//! store) and when an operation ends (all of them, since its effect must last now). These points
//! cover the others, which count as crash points as well. A point counts as exhaustive if the
//! images that it adds, and those that it shares with the points before it, were all visited.
//!
//! # Crashes in recovery
//! Recovery, and the last operation after it, have a trace of their own. Below the image that was
//! recovered, it is explored in the same way, once (depth 2) and up to a number of images. Its
//! exhaustive points are counted apart. See `explore/recovery.rs`.
//!
//! # Kills
//! A process may die while the power stays on: the next one sees all of its stores, of which a
//! later power cut may still take those that were pending. See `explore/kill.rs`.

mod kill;
mod options;
mod recovery;
mod replay;
mod totals;
mod watch;
mod worker;

pub use crate::violation::{Lost, Point, Violation};
pub use options::Options;
pub(crate) use recovery::is_wide;
pub use totals::Totals;

use crate::record::Recording;
use crate::subject::Subject;
use std::sync::atomic::{AtomicBool, AtomicU64};
use watch::Watch;
use worker::Worker;

/// Explores `recording`. Calls `seen` with the number of images recovered since the last call.
pub fn explore(
    subject: &dyn Subject,
    recording: &Recording,
    options: &Options,
    seen: &(dyn Fn(u64) + Sync),
) -> Totals {
    let stop = AtomicBool::new(false);
    let workers = options.workers.max(1);
    let turn = AtomicU64::new(0);
    let work = |_: usize| {
        let watch = Watch::default();
        watch.over(subject, recording, options, || {
            let mut worker = Worker::new(subject, recording, options, &stop, seen, &watch);
            worker.run(&turn);
            worker.totals.skipped = worker.sim.skipped();
            worker.totals
        })
    };
    if workers == 1 {
        return work(0).settle();
    }
    std::thread::scope(|scope| {
        let work = &work;
        let handles: Vec<_> = (0..workers).map(|w| scope.spawn(move || work(w))).collect();
        let mut totals = Totals::default();
        for handle in handles {
            match handle.join() {
                Ok(part) => totals.add(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        totals.settle()
    })
}

/// Recovers exactly one image again. Returns its violation, if it still has one.
///
/// # Errors
/// There is no such image: the recording has no such event, or other stores are pending there.
pub fn replay(
    subject: &dyn Subject,
    recording: &Recording,
    options: &Options,
    point: &Point,
    nested: Option<&Point>,
) -> Result<Option<Violation>, String> {
    let stop = AtomicBool::new(false);
    let watch = Watch::default();
    watch.over(subject, recording, options, || {
        let mut worker = Worker::new(subject, recording, options, &stop, &|_| {}, &watch);
        worker.replay(point, nested)?;
        Ok(worker.totals.found.pop())
    })
}
