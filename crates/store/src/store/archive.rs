//! Making a store from an archive.

use super::Store;
use crate::archive::format::{Kind, Until as EndOf};
use crate::archive::{Archive, Change, FileKind, KeysBetween, Next, Plan, Until, WENT_BACK};
use crate::error::ArchiveError;
use crate::options::StoreOptions;
use crate::tree::{Replayed, TreeEngine};
use bristlecone_pmem::{Media, Pool};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

/// Bytes of keys and values that are written together.
const TOGETHER: usize = 1 << 20;
/// Keys likewise.
const KEYS_TOGETHER: usize = 4096;

/// What was restored from an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoredReport {
    /// Time stamp of the last commit that was restored, as the archived store had it; or, of a
    /// state with no commit behind it, up to which it has all.
    pub timestamp: u64,
    /// When that was, in ms since 1970, by the clock of the archived store.
    pub at: u64,
    /// Entries of states that were read, those that later ones replaced too.
    pub entries: u64,
    /// Commits that were made again.
    pub commits: u64,
    /// Bytes that were read.
    pub bytes: u64,
}

impl<M: Media> Store<M> {
    /// Makes the store `name` as an archived store was at a moment. All that is read is compared
    /// with its checksums before anything is written. `progress` is told of the bytes that have
    /// been read, of how many; files are read twice.
    ///
    /// A crash leaves an unfinished store, which can only be [removed](Self::remove).
    ///
    /// # Errors
    /// [`ArchiveError`]; no store is left behind.
    pub fn restore_archive(
        pool: &Arc<Pool<M>>,
        name: &str,
        options: &StoreOptions,
        (dir, until): (&Path, Until),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<(Self, RestoredReport), ArchiveError> {
        let mut archive = Archive::open(dir)?;
        let plan = archive.verified_plan(until, progress)?;
        let engine = TreeEngine::begin_replay(pool, name, options)?;
        let mut replay = Replay {
            engine: &engine,
            plan: &plan,
            until,
            done_at: None,
            changes: Replayed::new(),
            bytes: 0,
            number: 0,
            report: RestoredReport::default(),
        };
        let done = replay.run(progress);
        let (number, report) = (replay.number, replay.report);
        let finished = done.and_then(|()| Ok(engine.finish_replay(number)?));
        drop(engine);
        let opened = finished.and_then(|()| Ok(Self::open(pool, name, options)?));
        match opened {
            Ok(store) => Ok((store, report)),
            Err(e) => {
                // The first error is reported. If removing fails too, the rest is an unfinished
                // store.
                let _ = Self::remove(pool, name);
                Err(e)
            }
        }
    }
}

struct Replay<'r, M: Media> {
    engine: &'r TreeEngine<M>,
    plan: &'r Plan,
    until: Until,
    /// What comes is later than what was asked for: since a commit of this time.
    done_at: Option<u64>,
    changes: Replayed,
    /// Of these.
    bytes: usize,
    /// The highest number that an entry uses.
    number: u64,
    report: RestoredReport,
}

impl<M: Media> Replay<'_, M> {
    fn run(&mut self, progress: &mut dyn FnMut(u64, u64)) -> Result<(), ArchiveError> {
        let plan = self.plan;
        for (i, step) in plan.steps.iter().enumerate() {
            let mut reader = step.file.reader()?;
            // A later step has what comes behind that.
            let below = plan.steps.get(i + 1).map_or(plan.below, |next| next.from);
            let is_state = step.file.kind != FileKind::Commits;
            let mut marked = 0;
            loop {
                let begun = reader.at;
                let frame = match reader.next()? {
                    Next::Frame(kind, content) => (kind, content),
                    // Behind the last mark there may be something that is not whole.
                    Next::End | Next::CutOff | Next::Damaged(_) => break,
                };
                match frame {
                    // Of a state that is later than what was asked for.
                    (Kind::Range, _) if self.done_at.is_some() => {}
                    (Kind::Range, content) => {
                        let range = self.range(content)?;
                        range.ok_or_else(|| changed(&step.file.path, begun))?;
                    }
                    (Kind::Commits, content) => {
                        let done = self.commits(content, step.from..below)?;
                        let goes_on = done.ok_or_else(|| changed(&step.file.path, begun))?;
                        if !goes_on {
                            marked = below;
                            break;
                        }
                    }
                    (Kind::Mark, content) => {
                        let end = EndOf::decode(content);
                        marked = end.map_or(0, |end| end.below);
                    }
                    (Kind::Head, _) => {}
                }
                // The file may be longer now.
                let read = (self.report.bytes + reader.at).min(plan.bytes);
                progress(plan.bytes + read, plan.bytes * 2);
            }
            if marked < below && self.done_at.is_none() {
                return Err(changed(&step.file.path, reader.at));
            }
            self.report.bytes += step.file.bytes;
            if is_state && self.done_at.is_none() {
                self.report.timestamp = step.file.below - 1;
                self.report.at = step.file.begun;
            }
        }
        self.write()
    }

    /// Takes a range of a state, whose other keys are removed; `None` if that is none.
    fn range(&mut self, mut content: &[u8]) -> Result<Option<()>, ArchiveError> {
        self.write()?;
        let Some(keys) = KeysBetween::decode(&mut content) else {
            return Ok(None);
        };
        let high = keys.high.map_or(Bound::Unbounded, Bound::Excluded);
        loop {
            let range = (Bound::Included(keys.low), high);
            let there = self.engine.keys_of_tree(range, KEYS_TOGETHER)?;
            if there.is_empty() {
                break;
            }
            self.changes
                .extend(there.into_iter().map(|key| (key, None)));
            self.write()?;
        }
        while !content.is_empty() {
            let Some(entry) = Change::decode(&mut content) else {
                return Ok(None);
            };
            self.report.entries += 1;
            self.change(&entry)?;
        }
        Ok(Some(()))
    }

    /// Takes the commits of a frame that have stamps in `range`. Returns whether there may be
    /// others; `None` if these are none.
    fn commits(
        &mut self,
        mut content: &[u8],
        range: std::ops::Range<u64>,
    ) -> Result<Option<bool>, ArchiveError> {
        let mut last = None;
        while !content.is_empty() {
            let Some(change) = Change::decode(&mut content) else {
                return Ok(None);
            };
            if change.stamp < range.start {
                continue;
            }
            if change.stamp >= range.end {
                return Ok(Some(false));
            }
            if let Until::Time(ms) = self.until {
                self.is_told_by(ms, &change)?;
                if self.done_at.is_some() {
                    continue;
                }
            }
            if last != Some(change.stamp) {
                self.report.commits += 1;
                last = Some(change.stamp);
                (self.report.timestamp, self.report.at) = (change.stamp, change.wall);
            }
            self.change(&change)?;
        }
        Ok(Some(true))
    }

    /// Notes whether a commit is later than what was asked for. None of an earlier time comes then,
    /// unless the clock did not tell the time.
    fn is_told_by(&mut self, ms: u64, change: &Change<'_>) -> Result<(), ArchiveError> {
        match self.done_at {
            None => self.done_at = Some(change.wall).filter(|wall| *wall > ms),
            Some(at) if change.wall <= ms && at - change.wall > WENT_BACK => {
                let what = format!(
                    "the archive does not tell what there was at {}: the store's clock went back from {} to {} with time stamp {}; \
                     a time stamp says which commit is meant",
                    self.until,
                    Until::Time(at),
                    Until::Time(change.wall),
                    change.stamp
                );
                return Err(ArchiveError::Unreachable {
                    what,
                    reached: Some(self.report.timestamp),
                });
            }
            Some(at) => self.done_at = Some(at.max(change.wall)),
        }
        Ok(())
    }

    fn change(&mut self, change: &Change<'_>) -> Result<(), ArchiveError> {
        self.bytes += change.bytes();
        let number = TreeEngine::<M>::number_in(change.key, change.value);
        self.number = self.number.max(number);
        let value = change.value.map(<[u8]>::to_vec);
        self.changes.insert(change.key.to_vec(), value);
        if self.bytes >= TOGETHER || self.changes.len() >= KEYS_TOGETHER {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), ArchiveError> {
        self.bytes = 0;
        Ok(self.engine.replay(&std::mem::take(&mut self.changes))?)
    }
}

/// The file was whole a moment ago.
fn changed(path: &Path, at: u64) -> ArchiveError {
    ArchiveError::Damaged {
        path: path.to_owned(),
        at,
        what: "it has changed since it was verified".into(),
    }
}
