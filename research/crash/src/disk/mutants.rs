//! Mutants of the journal: each place that syncs, or writes a header, leaves that out. A run is
//! recorded once, and its cuts are explored as if the mutant had run: nothing that the journal
//! wrote is read by it again.

use super::DiskSubject;
use super::explore::{DiskOptions, DiskRecording, explore_disk};
use bristlecone_pmem::media::journal::fault::{Event, What};
use std::collections::BTreeSet;
use std::panic::Location;

/// What a mutant leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Left {
    /// The sync: what it was to make durable stays pending.
    Sync,
    /// A synced write, wholly.
    Write,
}

/// A change of the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mutant {
    /// The place.
    pub site: &'static Location<'static>,
    /// What is left out there.
    pub left: Left,
}

impl Mutant {
    /// Whether it leaves out the write of a header, or its sync.
    #[must_use]
    pub fn is_of_header(&self, events: &[Event]) -> bool {
        events.iter().any(|event| match event.what {
            What::Durable(at, _, site) => site == self.site && at < super::cuts::FRAMES,
            _ => false,
        })
    }
}

impl std::fmt::Display for Mutant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let left = match self.left {
            Left::Sync => "does not sync",
            Left::Write => "does not write",
        };
        let file = self.site.file();
        let file = file.rsplit('/').next().unwrap_or(file);
        write!(f, "{file}:{} {left}", self.site.line())
    }
}

/// Returns the mutants of the code that made these events.
#[must_use]
pub fn mutants_of(events: &[Event]) -> BTreeSet<Mutant> {
    let of = |event: &Event| match &event.what {
        What::Change(_) => vec![],
        What::Sync(site) => vec![(*site, Left::Sync)],
        What::Durable(_, _, site) => vec![(*site, Left::Sync), (*site, Left::Write)],
    };
    let all = events.iter().flat_map(of);
    all.map(|(site, left)| Mutant { site, left }).collect()
}

/// Returns what showed the first of these recordings that the mutant is wrong, if one did.
#[must_use]
pub fn killed(
    subject: &dyn DiskSubject,
    recordings: &[DiskRecording],
    mutant: &Mutant,
    options: &DiskOptions,
) -> Option<String> {
    let options = DiskOptions {
        stop_at_first: true,
        ..options.clone()
    };
    recordings.iter().find_map(|recording| {
        if !mutants_of(recording.events()).contains(mutant) {
            return None;
        }
        let report = explore_disk(subject, recording, Some(mutant), &options);
        report.found.first().map(|found| found.fault.to_string())
    })
}
