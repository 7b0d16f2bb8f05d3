//! Which files lead to a moment.
//!
//! A full state is the beginning. From a time on, either a file of commits goes on, which has all
//! from there, or an incremental state that can be put on it.

use super::read::{Archive, ArchiveFile, FileKind};
use super::{Until, WENT_BACK};
use crate::error::ArchiveError;
use std::collections::BTreeSet;

/// Files of commits that were begun after the time that is asked for, and may have commits from
/// before it.
const LATER: usize = 2;

/// A file that has to be read, and from where on.
#[derive(Clone, Debug)]
pub struct Step {
    /// The file.
    pub file: ArchiveFile,
    /// Commits with this time stamp and later ones count.
    pub from: u64,
}

/// The files that lead to a moment, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The files.
    pub steps: Vec<Step>,
    /// The store will have all commits below this time stamp, and perhaps not all of them if a time
    /// was asked for.
    pub below: u64,
    /// When that was, in ms since 1970: at this time or later.
    pub at: u64,
    /// Bytes that will be read.
    pub bytes: u64,
}

impl Archive {
    /// Returns the files that lead to a moment. [Verify](Self::verify) them before: what their
    /// heads and ends say is taken for true here.
    ///
    /// # Errors
    /// [`ArchiveError::Unreachable`]; [`ArchiveError::Damaged`] if that is why.
    pub fn plan(&self, until: Until) -> Result<Plan, ArchiveError> {
        let (below, wall) = match until {
            Until::End => (u64::MAX, u64::MAX),
            Until::Timestamp(ts) => (ts.saturating_add(1), u64::MAX),
            Until::Time(ms) => (u64::MAX, ms),
        };
        if let Some((later, file)) = self.went_back(wall) {
            let what = format!(
                "the archive does not tell what there was at {until}: the store's clock went back between the beginnings of {} and {}; \
                 a time stamp says which commit is meant",
                later.path.display(),
                file.path.display()
            );
            return Err(ArchiveError::Unreachable {
                what,
                reached: None,
            });
        }
        let counts = |file: &&ArchiveFile| {
            let is_early = if file.is_state() {
                file.below <= below && file.begun <= wall
            } else {
                // Commits are written a while after they were made.
                file.from < below
            };
            file.counts() && is_early
        };
        let there: Vec<&ArchiveFile> = self.files.iter().filter(counts).collect();
        let full = there.iter().filter(|file| file.kind == FileKind::FullState);
        let Some(first) = full.max_by_key(|file| file.below) else {
            return Err(self.unreachable(until, None, 0));
        };
        let mut plan = Plan {
            steps: Vec::new(),
            below: 0,
            at: first.until,
            bytes: 0,
        };
        plan.add(first, 0, first.below, first.until);
        let mut later = 0;
        while plan.below < below && later < LATER {
            let at = plan.below;
            let leads_on = |file: &&&ArchiveFile| file.from <= at && file.below > at;
            let (states, commits): (Vec<&ArchiveFile>, Vec<_>) =
                (there.iter().filter(leads_on)).partition(|file| file.is_state());
            let next = commits.into_iter().max_by_key(|file| file.below);
            let states = states
                .into_iter()
                .filter(|file| file.kind != FileKind::FullState);
            let Some(next) = next.or(states.max_by_key(|file| file.below)) else {
                break;
            };
            plan.add(next, at, next.below.min(below), next.until);
            later += usize::from(next.begun > wall);
        }
        if later == LATER || plan.below >= below {
            return Ok(plan);
        }
        // It ends early. Is that the archive's end?
        let beyond = self.files.iter().find(|file| {
            let goes_on = file.counts() && file.below.min(below) > plan.below;
            // Even if it has nothing: there was something up to there.
            let begins_later = !file.is_state() && file.from > plan.below;
            file.from < below && (goes_on || begins_later)
        });
        let ends = !matches!(until, Until::Timestamp(_)) && beyond.is_none();
        // All later commits are later than that.
        let is_before = plan.at > wall;
        let hidden = self
            .unreadable
            .iter()
            .any(|file| !file.is_empty && self.next_from(file.number) > plan.below);
        if !is_before && (!ends || hidden || self.damaged_behind(plan.below).is_some()) {
            return Err(self.unreachable(until, beyond, plan.below));
        }
        Ok(plan)
    }

    /// The files that lead to a moment, all of which were read and are whole.
    pub(crate) fn verified_plan(
        &mut self,
        until: Until,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Plan, ArchiveError> {
        let mut verified = BTreeSet::new();
        loop {
            let plan = self.plan(until)?;
            let before = self
                .files
                .iter()
                .filter(|file| verified.contains(&file.number));
            let mut read: u64 = before.map(|file| file.bytes).sum();
            let mut same = true;
            for step in &plan.steps {
                let number = step.file.number;
                let file = self.files.iter_mut().find(|file| file.number == number);
                let Some(file) = file.filter(|_| verified.insert(number)) else {
                    continue;
                };
                let below = file.below;
                file.verify(&mut |bytes| progress(read + bytes, plan.bytes * 2))?;
                read += file.bytes;
                same &= file.below == below && file.damage.is_none();
            }
            if same {
                return Ok(plan);
            }
        }
    }

    /// A file that was begun after that time, and a later one that was begun before it.
    fn went_back(&self, wall: u64) -> Option<(&ArchiveFile, &ArchiveFile)> {
        let mut latest: Option<&ArchiveFile> = None;
        for file in &self.files {
            match latest {
                Some(later) if later.begun > wall && file.begun <= wall => {
                    if later.begun - file.begun > WENT_BACK {
                        return Some((later, file));
                    }
                }
                Some(later) if later.begun >= file.begun => {}
                _ => latest = Some(file),
            }
        }
        None
    }

    /// The first damaged file that had something behind `below`.
    fn damaged_behind(&self, below: u64) -> Option<&ArchiveFile> {
        let damaged = self.files.iter().filter(|file| file.damage.is_some());
        let mut behind = damaged.filter(|file| {
            if file.is_state() {
                file.time > below
            } else {
                file.was_below.min(self.next_from(file.number)) > below
            }
        });
        behind.next()
    }

    /// A time stamp that no file up to this number has commits behind: the next file of commits
    /// begins there. The highest one if there is no such file.
    fn next_from(&self, number: u32) -> u64 {
        let later = self.files.iter().filter(|file| file.number > number);
        let from = later.filter(|file| !file.is_state()).map(|file| file.from);
        from.min().unwrap_or(u64::MAX)
    }

    fn unreachable(&self, until: Until, beyond: Option<&ArchiveFile>, below: u64) -> ArchiveError {
        let reached = below.checked_sub(1);
        // The file that should lead on, or begin.
        let damaged = self.damaged_behind(below);
        let incomplete = self
            .files
            .iter()
            .find(|file| file.is_state() && !file.counts());
        let why = match (damaged, self.unreadable.iter().find(|file| !file.is_empty)) {
            (Some(file), _) => {
                let (at, what) = file.damage.clone().unwrap_or_default();
                format!("{} is damaged, {at} bytes in ({what})", file.path.display())
            }
            (None, Some(file)) => format!("{}: {}", file.path.display(), file.what),
            (None, None) if incomplete.is_some_and(|file| file.from <= below) => {
                let path = incomplete.map(|file| file.path.display().to_string());
                format!("{} is not complete", path.unwrap_or_default())
            }
            (None, None) => match (reached, beyond) {
                (None, _) => "no full state is complete and early enough".to_owned(),
                (Some(ts), Some(file)) => format!(
                    "nothing leads on from time stamp {ts} to {}",
                    file.path.display()
                ),
                (Some(ts), None) => format!("the archive ends with time stamp {ts}"),
            },
        };
        ArchiveError::Unreachable {
            what: format!("the archive does not lead to {until}: {why}"),
            reached,
        }
    }

    /// The last moment that all of the archive leads to, by what the heads and ends of files say.
    pub(super) fn reached(&self) -> Option<super::format::Until> {
        let full = self
            .files
            .iter()
            .filter(|file| file.kind == FileKind::FullState);
        let first = full
            .filter(|file| file.counts())
            .max_by_key(|file| file.below)?;
        let (mut end, mut number) = (first.end, first.number);
        loop {
            let next = self.files.iter().filter(|file| {
                // Or the store was only closed again.
                let leads_on = file.below > end.below
                    || file.below == end.below && !file.is_state() && file.number > number;
                file.kind != FileKind::FullState && file.from <= end.below && leads_on
            });
            match next.max_by_key(|file| (file.below, file.number)) {
                Some(file) => (end, number) = (file.end, file.number),
                None => return Some(end),
            }
        }
    }
}

impl Plan {
    fn add(&mut self, file: &ArchiveFile, from: u64, below: u64, at: u64) {
        self.steps.push(Step {
            file: file.clone(),
            from,
        });
        self.below = below;
        self.at = self.at.max(at);
        self.bytes += file.bytes;
    }
}

#[cfg(test)]
mod tests;
