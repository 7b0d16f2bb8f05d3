//! How a recording is explored.

use crate::record::Mutation;
use crate::token::WorkloadId;
use crate::watchdog::PATIENCE;
use bristlecone_pmem::media::sim::Model;
use std::time::Instant;

/// How a recording is explored.
#[derive(Clone, Debug)]
pub struct Options {
    /// The persistency model.
    pub model: Model,
    /// Crashes in recovery too.
    pub nested: bool,
    /// Those only of recoveries that come to something switched off, of one in `thorough_every` of them.
    pub where_off: bool,
    /// Which operations follow a recovery: another number, others. Three numbers of four, not 0, stand for single
    /// operations, after more recoveries with fewer images each, and without crashes in the recovery itself.
    pub then: u64,
    /// Of crashes in recovery, only see which sites recovery has: those of one in `thorough_every` images,
    /// which is not checked further.
    pub survey: bool,
    /// Images per crash point up to which all are enumerated.
    pub bound: usize,
    /// Random images of a crash point that has more.
    pub samples: usize,
    /// One in so many images is also checked for progress, idempotence and (if `nested`) crashes in
    /// recovery. 1: all.
    pub thorough_every: u64,
    /// Threads that explore.
    pub workers: usize,
    /// Images after which a worker stops.
    pub most: u64,
    /// When to stop.
    pub deadline: Option<Instant>,
    /// Stop at the first violation.
    pub stop_at_first: bool,
    /// What was mutated in the recording and is in recovery too.
    pub mutation: Mutation,
    /// Of the explored steps (by number) only those with a number: crash points after so many of their events.
    pub only: Option<Vec<Option<usize>>>,
    /// Which workload was recorded, for tokens.
    pub workload: Option<WorkloadId>,
    /// Seconds after which an image that does not end ends the process.
    pub patience: u32,
}

impl Options {
    /// What the command line does by default under a model.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self {
            model,
            nested: false,
            where_off: false,
            then: 0,
            survey: false,
            bound: 1000,
            samples: 64,
            thorough_every: 40,
            workers: 1,
            most: u64::MAX,
            deadline: None,
            stop_at_first: false,
            mutation: Mutation::default(),
            only: None,
            workload: None,
            patience: PATIENCE,
        }
    }
}
