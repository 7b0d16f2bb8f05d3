//! The result of an exploration.

use crate::subject::FaultKind;
use crate::violation::Violation;
use bristlecone_pmem::media::sim::Site;
use std::collections::{BTreeMap, BTreeSet};

/// The result of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Crash points: one after every store, flush, fence, store fence, change of length, and
    /// operation.
    pub crash_points: u64,
    /// Crash points all of whose images were visited.
    pub exhaustive_points: u64,
    /// Images recovered.
    pub images: u64,
    /// Images of crashes in recovery among them.
    pub nested_images: u64,
    /// Kills of the process at a crash point.
    pub kills: u64,
    /// Images among them that power cuts after such a kill left, and those that kills left.
    pub killed_images: u64,
    /// Crash points of the sessions after these kills.
    pub killed_points: u64,
    /// Points among them all of whose images were visited.
    pub killed_exhaustive_points: u64,
    /// Images that failed.
    pub violations: u64,
    /// Leaks and blocks owned twice among them.
    pub leaks: u64,
    /// Operations after recovery that failed or did not end among them.
    pub progress_failures: u64,
    /// The first violations (a few per worker).
    pub found: Vec<Violation>,
    /// True if the deadline or the maximum of images ended the exploration.
    pub cut_short: bool,
    /// Crash points of the recoveries whose own crashes were explored.
    pub nested_points: u64,
    /// Points among them all of whose images were visited.
    pub nested_exhaustive_points: u64,
    /// Flushes and fences of the recoveries whose own crashes were explored, with the steps of the
    /// first crash.
    pub recovery_sites: BTreeMap<Site, BTreeSet<usize>>,
    /// Flushes and fences of the openings after a kill, with the steps of the kill.
    pub killed_sites: BTreeMap<Site, BTreeSet<usize>>,
    /// Number of times that recovery reached a switched-off instruction.
    pub skipped: u64,
    /// Points by number, and the images that were visited there.
    pub(super) points: Vec<(u64, Visited)>,
}

/// The images that were to be visited at a crash point. The flag is true if all of them were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Visited {
    /// No image: the point has the images of the point before it.
    Nothing,
    /// The images that keep the last store.
    New(bool),
    /// Every image.
    Whole(bool),
}

impl Visited {
    pub(super) fn of(newest: Option<u32>, all: bool) -> Self {
        match newest {
            Some(_) => Self::New(all),
            None => Self::Whole(all),
        }
    }

    /// Returns true if every image of the point was visited, here or, if `before`, at earlier
    /// points.
    pub(super) fn covers(self, before: bool) -> bool {
        match self {
            Self::Nothing => before,
            Self::New(all) => all && before,
            Self::Whole(all) => all,
        }
    }
}

impl Totals {
    /// Adds the totals of another exploration.
    pub fn add(&mut self, other: Self) {
        self.crash_points += other.crash_points;
        self.exhaustive_points += other.exhaustive_points;
        self.images += other.images;
        self.nested_images += other.nested_images;
        self.kills += other.kills;
        self.killed_images += other.killed_images;
        self.killed_points += other.killed_points;
        self.killed_exhaustive_points += other.killed_exhaustive_points;
        self.violations += other.violations;
        self.leaks += other.leaks;
        self.progress_failures += other.progress_failures;
        self.found.extend(other.found);
        self.cut_short |= other.cut_short;
        self.nested_points += other.nested_points;
        self.nested_exhaustive_points += other.nested_exhaustive_points;
        for (sites, others) in [
            (&mut self.recovery_sites, other.recovery_sites),
            (&mut self.killed_sites, other.killed_sites),
        ] {
            for (site, steps) in others {
                sites.entry(site).or_default().extend(steps);
            }
        }
        self.skipped += other.skipped;
        self.points.extend(other.points);
    }

    /// Counts the crash points, and the exhaustive ones among them.
    pub(super) fn settle(mut self) -> Self {
        self.points.sort_unstable();
        let mut covered = false;
        for (_, visited) in self.points.drain(..) {
            covered = visited.covers(covered);
            self.crash_points += 1;
            self.exhaustive_points += u64::from(covered);
        }
        self
    }

    pub(super) fn count(&mut self, violation: Violation) {
        self.violations += 1;
        match violation.fault.kind {
            FaultKind::Leak => self.leaks += 1,
            FaultKind::Progress => self.progress_failures += 1,
            _ => {}
        }
        if self.found.len() < 8 {
            self.found.push(violation);
        }
    }
}
