//! The parameters of an exploration.

use crate::record::Mutation;
use crate::token::WorkloadId;
use crate::watchdog::PATIENCE;
use bristlecone_pmem::media::sim::Model;
use std::time::Instant;

/// The parameters of an exploration.
#[derive(Clone, Debug)]
pub struct Options {
    /// The persistency model.
    pub model: Model,
    /// True if crashes in recovery are explored too.
    pub nested: bool,
    /// One in so many crash points at which stores are pending is also tried as a kill of the
    /// process, after which the power is cut; 0 for none. Under `eadr` nothing is tried: a killed
    /// process has lost no store, and the crash that loses none is explored anyway.
    pub kills: u64,
    /// Explores crashes in recovery only for recoveries that reach a switched-off instruction, and
    /// for one in `thorough_every` of those.
    pub where_off: bool,
    /// Selects the operations that follow a recovery: each number stands for others. Three numbers
    /// of four (not 0) stand for a single operation. They explore more recoveries with fewer images
    /// each, and no crashes in the recovery itself.
    pub follow_up: u64,
    /// Only collects the instruction sites of recovery, of one in `thorough_every` images, without
    /// further checks.
    pub survey: bool,
    /// Images per crash point up to which all are enumerated.
    pub bound: usize,
    /// Random images of a crash point that has more than `bound`.
    pub samples: usize,
    /// One in so many images is also checked for progress, idempotence and, if `nested`, crashes in
    /// recovery. 1 means every image.
    pub thorough_every: u64,
    /// Threads of this machine.
    pub workers: usize,
    /// Number of images after which a worker stops.
    pub max_images: u64,
    /// Time at which a worker stops.
    pub deadline: Option<Instant>,
    /// Stops at the first violation.
    pub stop_at_first: bool,
    /// The mutation of the recording, which applies to recovery too.
    pub mutation: Mutation,
    /// Limits the exploration to some steps. Steps are listed by number: `Some(n)` explores the
    /// crash points after the step's first `n` events, `None` leaves the step out.
    pub only: Option<Vec<Option<usize>>>,
    /// The recorded workload, for tokens.
    pub workload: Option<WorkloadId>,
    /// Seconds after which a hanging image ends the process.
    pub patience: u32,
}

impl Options {
    /// Returns the defaults of the command line under a model.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self {
            model,
            nested: false,
            kills: 0,
            where_off: false,
            follow_up: 0,
            survey: false,
            bound: 1000,
            samples: 64,
            thorough_every: 40,
            workers: 1,
            max_images: u64::MAX,
            deadline: None,
            stop_at_first: false,
            mutation: Mutation::default(),
            only: None,
            workload: None,
            patience: PATIENCE,
        }
    }
}
