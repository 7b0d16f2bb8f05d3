//! Power cuts on a simulated disk: the journal medium, and the store on it, explored like
//! persistent memory is.
//!
//! ```text
//! a run on a disk in memory           every write, sync, truncation is an event
//! for each event: the power is cut    in it, or after it
//!   for some of the disks that may be left: what was not synced is there, is not, is torn
//!     recovered: all that was acknowledged is there, and the rest is a state that it may be in
//!     recovered disks are cut again, in the events of the recovery
//! ```
//!
//! A run has threads of the system, so a seed does not repeat it event for event. What it did is
//! recorded, and every cut of that is certain.
//!
//! | module | holds |
//! | --- | --- |
//! | [`history`] | what was begun and acknowledged at which event, and what a cut may leave of it |
//! | `cuts` | the disks that a cut may leave |
//! | `explore` | the loop over events, disks and recoveries |
//! | [`failing`] | runs in which a sync fails, and the process dies of it or not |
//! | [`mutants`] | syncs and header writes that are left out: are they missed? |
//! | [`lines`] | the medium by itself: runs of lines, flushed in all ways |
//! | [`store`] | the store: transactions, long values, closing, compacting |

mod cuts;
mod explore;
pub mod failing;
pub mod history;
pub mod lines;
pub mod mutants;
pub mod store;

pub use explore::{DiskFinding, DiskOptions, DiskRecording, DiskReport, explore_disk, record_disk};
pub use history::{Allowed, History, Recovered};

use crate::subject::Fault;
use bristlecone_pmem::media::journal::fault::FaultDisk;

/// Something that keeps its contents on a simulated disk.
pub trait DiskSubject: Sync {
    /// Returns its name on the command line and in reports.
    fn name(&self) -> &'static str;

    /// Makes itself on an empty disk and works, and notes what it does. It ends early, and well,
    /// once the disk has failed.
    ///
    /// # Errors
    /// It failed although the disk did not.
    fn work(&self, disk: &FaultDisk, seed: u64, history: &History) -> Result<(), Fault>;

    /// Opens what a cut has left, checks that it is `allowed`, and works on a little.
    ///
    /// # Errors
    /// It is not allowed, or does not work.
    fn recover(&self, disk: &FaultDisk, seed: u64, allowed: &Allowed) -> Result<Recovered, Fault>;
}

/// Returns all subjects.
#[must_use]
pub fn subjects() -> Vec<Box<dyn DiskSubject>> {
    vec![Box::new(lines::Lines), Box::new(store::StoreOnDisk)]
}
