//! What an exploration saw.

use crate::subject::FaultKind;
use crate::violation::Violation;
use bristlecone_pmem::media::sim::Site;
use std::collections::{BTreeMap, BTreeSet};

/// What an exploration saw.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Crash points: after every store, flush, fence, store fence, change of length, and operation.
    pub crash_points: u64,
    /// Crash points all of whose images were visited.
    pub exhaustive_points: u64,
    /// Images recovered.
    pub images: u64,
    /// Of these, images of crashes in recovery.
    pub nested_images: u64,
    /// Images that failed.
    pub violations: u64,
    /// Of these, leaks and blocks owned twice.
    pub leaks: u64,
    /// Of these, operations after recovery that failed or did not end.
    pub progress_failures: u64,
    /// The first violations (a few per worker).
    pub found: Vec<Violation>,
    /// The deadline, or the most images, came first.
    pub cut_short: bool,
    /// Crash points of the recoveries whose own crashes were explored.
    pub nested_points: u64,
    /// Of these, points all of whose images were visited.
    pub nested_exhaustive_points: u64,
    /// Flushes and fences of the recoveries whose own crashes were explored, and the steps with the first crash.
    pub recovery_sites: BTreeMap<Site, BTreeSet<usize>>,
    /// How often recovery would have done what was switched off.
    pub skipped: u64,
    /// Points by number, and what was visited there.
    pub(super) points: Vec<(u64, Visited)>,
}

/// What was visited at a crash point, and whether all of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Visited {
    /// Nothing: there is no image that the point before it does not have.
    Nothing,
    /// The images that kept the store before it.
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

    /// True if every image of the point was visited, here or (`before`) where it was already possible.
    pub(super) fn covers(self, before: bool) -> bool {
        match self {
            Self::Nothing => before,
            Self::New(all) => all && before,
            Self::Whole(all) => all,
        }
    }
}

impl Totals {
    /// Adds what another exploration saw.
    pub fn add(&mut self, other: Self) {
        self.crash_points += other.crash_points;
        self.exhaustive_points += other.exhaustive_points;
        self.images += other.images;
        self.nested_images += other.nested_images;
        self.violations += other.violations;
        self.leaks += other.leaks;
        self.progress_failures += other.progress_failures;
        self.found.extend(other.found);
        self.cut_short |= other.cut_short;
        self.nested_points += other.nested_points;
        self.nested_exhaustive_points += other.nested_exhaustive_points;
        for (site, steps) in other.recovery_sites {
            self.recovery_sites.entry(site).or_default().extend(steps);
        }
        self.skipped += other.skipped;
        self.points.extend(other.points);
    }

    /// Counts the points.
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
