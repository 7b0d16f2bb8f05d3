//! Exploration of a recorded workload: every crash point, every image that the model allows there.
//!
//! A worker replays the trace on a buffer of its own, which holds what is durable. At a crash point the
//! pending stores are left open (`Simulation::expose`); recovery, and the oracles after it, decide
//! by reading. Going depth-first through the decisions visits each distinguishable image once; what
//! nothing reads cannot matter.
//!
//! # Which points are visited
//! After a store, the images that are new are those that kept it; the others were visited before it, with
//! the same operation in flight. A flush or a silent store adds none, a fence only takes some away. So
//! images are enumerated where the explored part begins (all), after stores (those that kept the store)
//! and when an operation ends (all, since it now must be there). The other points are covered by these,
//! and count as crash points. A point counts as exhaustive if the images that it adds and those that it
//! shares with the points before it were all visited.
//!
//! # Crashes in recovery
//! The trace of recovery and of the last operation after it is explored in the same way, below the image that
//! was recovered, once (depth 2), up to some number of images; how many of its points were exhaustive is
//! counted apart. See `explore/recovery.rs`.

mod options;
mod recovery;
mod replay;
mod totals;
mod watch;
mod worker;

pub use crate::violation::{Lost, Point, Violation};
pub use options::Options;
pub(crate) use recovery::widely;
pub use totals::Totals;

use crate::record::Recording;
use crate::subject::Subject;
use std::sync::atomic::{AtomicBool, AtomicU64};
use watch::Watch;
use worker::Worker;

/// Explores `recording`. `seen` hears how many images were recovered since it was last called.
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

/// Recovers exactly one image again; its fault, if it still has one.
///
/// # Errors
/// There is no such image: the recording has no such event, or not those stores pending there.
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
