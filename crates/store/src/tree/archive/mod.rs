//! Archiving: a thread writes every commit to an archive once it is durable, and states to begin
//! with (`crate::archive` has the files).
//!
//! ```text
//! commit      under the lock of its page, before it is shown: the recorder takes its changes
//! round       what is durable goes to a file, by time stamp, with a mark behind it; sync
//! state       some megabytes of it between two rounds
//! ```
//!
//! Commits and states are written side by side. The *stream* of commits begins when the state does
//! that it continues, and *counts* once that state is complete; until then a crash leaves the
//! archive where it was before.
//!
//! The recorder's memory is bounded, and writers never wait. What does not fit is lost to the
//! stream, which ends then: an incremental state has what changed, and another stream goes on from
//! there. So it is after a crash, which loses what the recorder had, and after a session without an
//! archive. A store that is closed in order says in the last mark with which stamp the next session
//! begins, so the next one knows that it has missed nothing.
//!
//! # Concurrency
//! 1. A change looks whether the recorder takes changes after it has its stamp. Whoever begins a
//!    stream makes the recorder take them, and then asks for the time of the state: all stamps
//!    below had been given, and what has that stamp or a later one finds the recorder ready.
//! 2. Every change below the durable time has been shown, so the recorder has been told of it, or
//!    knows that it was lost. The round asks for that time first, and then whether something was.

mod recorder;

pub(super) use recorder::Recorder;

use super::Core;
use crate::archive::format::{Change, KeysBetween, Token, Until};
use crate::archive::write::{ArchiveWriter, Directory, entry, random};
use crate::archive::{ArchiveOptions, ArchiveStats};
use crate::error::ArchiveError;
use crate::key::CATALOGUE;
use crate::root;
use bristlecone_index::Direction;
use bristlecone_index::clustered::{Mark, PageRange, Visits};
use bristlecone_pmem::media::Durability;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Media, MediumKind};
use std::ops::{Bound, ControlFlow};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes of entries or commits in a frame, about.
const FRAME: usize = 1 << 20;
/// Bytes of a state that are written between two rounds, about.
const STATE_AT_ONCE: usize = 8 << 20;
/// How long the thread rests while a state is being written.
const BUSY: Duration = Duration::from_millis(1);
/// Waiting after states that failed is doubled so often, and takes no longer than that.
const MOST_DOUBLED: u32 = 16;
const MOST_WAIT: Duration = Duration::from_secs(600);

/// The index key of the ledger, which no other store can use.
const LEDGER: [u8; 4] = CATALOGUE.to_be_bytes();

/// What is archived where, and how far.
#[derive(Debug)]
pub(super) struct Archiving {
    options: ArchiveOptions,
    work: Mutex<Work>,
    stats: Mutex<ArchiveStats>,
}

#[derive(Debug)]
struct Work {
    directory: Directory,
    /// All that the archive leads to. An incremental state goes on from there.
    reached: Option<Until>,
    stream: Option<Stream>,
    state: Option<State>,
    full_at: Option<u64>,
    tokens: Tokens,
    /// States that failed one after the other, and when another one is tried.
    failures: u32,
    again: Option<Instant>,
}

/// The tokens of marks.
#[derive(Debug)]
struct Tokens {
    /// The archive's number.
    archive: u64,
    /// That of the archive's last mark.
    last: Token,
    /// That of the next one, from when the pool may have it.
    next: Option<Token>,
}

/// Commits from a time on.
#[derive(Debug)]
struct Stream {
    /// Changes with stamps below it are in files.
    below: u64,
    /// Stamps had been given up to this one when it was last written.
    seen: u64,
    /// The archive leads to it.
    counts: bool,
    /// Changes with later stamps that were taken from the recorder, and of how many commits.
    pending: Vec<u8>,
    commits: u64,
    file: Option<(ArchiveWriter, u64)>,
}

/// A state that is being written.
#[derive(Debug)]
struct State {
    file: ArchiveWriter,
    known_bytes: u64,
    /// A reading that has begun, and a mark before it.
    time: u64,
    /// When that was, or just before, in ms since 1970.
    before: u64,
    mark: Mark,
    /// What changed since is written.
    since: Option<Mark>,
    /// The next key.
    from: Vec<u8>,
    /// The range of keys that is being gathered: the first one, where it has come to, and entries.
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    entries: Vec<u8>,
    count: u64,
    gathers: bool,
}

impl Archiving {
    /// `next`: the first stamp of this session.
    pub fn new(options: ArchiveOptions, directory: Directory, next: u64, now: u64) -> Self {
        let reached = directory.reached;
        // Nothing was missed: the last session was closed in order, and its archive too.
        let last = reached.filter(|end| end.session == next && end.token == directory.token);
        let stream = last.map(|end| Stream {
            below: end.below,
            seen: end.below,
            counts: true,
            pending: Vec::new(),
            commits: 0,
            file: None,
        });
        let full_at = directory.full_at;
        let tokens = Tokens {
            archive: directory.number,
            last: directory.token,
            next: None,
        };
        let stats = ArchiveStats {
            archived: stream.as_ref().map(|stream| stream.below - 1),
            // It comes with the first round.
            writing: is_full_due(&options, full_at, now).then_some(0),
            ..ArchiveStats::default()
        };
        Self {
            options,
            work: Mutex::new(Work {
                directory,
                reached,
                stream,
                state: None,
                full_at,
                tokens,
                failures: 0,
                again: None,
            }),
            stats: Mutex::new(stats),
        }
    }
}

impl<M: Media> Core<M> {
    /// Returns what was archived.
    pub(super) fn archive_stats(&self) -> Option<ArchiveStats> {
        let archiving = self.archiving.as_ref()?;
        let mut stats = lock(&archiving.stats).clone();
        stats.queued_bytes = self.counts.recorder.queued();
        Some(stats)
    }

    /// Writes what has become durable, and some of a state. Returns whether there is more to do at
    /// once.
    fn archive_round(&self, archiving: &Archiving) -> Result<bool, ArchiveError> {
        let work = &mut *lock(&archiving.work);
        self.archive_commits(archiving, work, 0)?;
        let may_begin = work.again.is_none_or(|again| Instant::now() >= again);
        let full = is_full_due(&archiving.options, work.full_at, self.wall.now());
        // A full one has what an incremental one would have.
        if work.state.is_none() && may_begin && (work.stream.is_none() || full) {
            self.begin_state(work, full)?;
        }
        if work.state.is_none() {
            return Ok(false);
        }
        let done = self.write_state(archiving, work);
        if !matches!(done, Ok(false)) {
            self.end_state(archiving, work, &done)?;
        }
        // The other one of a state and a stream may be missing still.
        done.map(|done| !done || work.stream.is_none())
    }

    /// Writes the commits that are durable. `session` is that of a last mark.
    fn archive_commits(
        &self,
        archiving: &Archiving,
        work: &mut Work,
        session: u64,
    ) -> Result<(), ArchiveError> {
        let Some(stream) = &mut work.stream else {
            return Ok(());
        };
        let recorder = &self.counts.recorder;
        // In this order: commits that the mark is before are later than that.
        let now = self.wall.now();
        let mark = self.tree.mark();
        if mark.stamp > stream.seen {
            self.settle(mark.stamp)?;
        }
        let below = mark.stamp;
        if self.tree.durable() < below {
            // With the next round.
            return Ok(());
        }
        if recorder.has_lost() {
            recorder.release(stream.pending.len());
            work.stream = None;
            return Ok(());
        }
        let from = stream.below;
        // Not again what is pending after an error.
        let taken = last_stamp(&stream.pending).map_or(from, |last| last + 1);
        stream.commits += recorder.drain((taken, below), &mut stream.pending);
        let said = work.reached.map_or(0, |end| end.session);
        if stream.pending.is_empty() && (session == 0 || stream.counts && said == session) {
            stream.seen = stream.seen.max(mark.stamp);
            lock(&archiving.stats).at = now;
            if stream.counts {
                lock(&archiving.stats).archived = Some(below.max(from) - 1);
            }
            return Ok(());
        }
        let file = stream.file.take().filter(|(file, _)| !file.is_full());
        let (mut file, mut known) = match file {
            Some(there) => there,
            None => (work.directory.begin_commits(from, now)?, 0),
        };
        let until = Until {
            below: below.max(from),
            mark: Some(mark),
            wall: now,
            session,
            count: 0,
            token: Token::default(),
        };
        let written = self.write_commits(&mut work.tokens, &mut file, &stream.pending, until);
        let until = match written {
            Ok(until) => until,
            Err(e) => {
                // All that is pending comes to another file.
                file.cut_off();
                return Err(e);
            }
        };
        let bytes = file.take_bytes(&mut known);
        stream.file = Some((file, known));
        recorder.release(stream.pending.len());
        stream.pending = Vec::new();
        (stream.below, stream.seen) = (until.below, mark.stamp);
        let stats = &mut *lock(&archiving.stats);
        stats.commits += std::mem::take(&mut stream.commits);
        stats.bytes += bytes;
        stats.at = now;
        if stream.counts {
            work.reached = Some(until);
            stats.archived = Some(until.below - 1);
        }
        Ok(())
    }

    /// Writes commits and a mark behind them to a file.
    fn write_commits(
        &self,
        tokens: &mut Tokens,
        file: &mut ArchiveWriter,
        commits: &[u8],
        mut until: Until,
    ) -> Result<Until, ArchiveError> {
        for (frame, commits) in frames(commits) {
            file.commits(frame, commits)?;
        }
        until.count = file.entries;
        self.mark(tokens, file, until)
    }

    /// Writes a mark to a file, whose token the pool has before.
    fn mark(
        &self,
        tokens: &mut Tokens,
        file: &mut ArchiveWriter,
        mut until: Until,
    ) -> Result<Until, ArchiveError> {
        // The same one again after an error: it may have come to the file.
        let next = *tokens.next.get_or_insert_with(|| Token {
            sequence: tokens.last.sequence + 1,
            token: random(),
        });
        root::put_tokens(&self.root, tokens.archive, [next.token, tokens.last.token]);
        self.pm().commit()?;
        self.sync_if_nobody_does()?;
        until.token = next;
        file.mark(&until)?;
        (tokens.last, tokens.next) = (next, None);
        Ok(until)
    }

    /// Makes all changes with stamps below this one durable, whatever the durability level.
    fn settle(&self, stamp: u64) -> Result<(), ArchiveError> {
        let Some(last) = stamp.checked_sub(1) else {
            return Ok(());
        };
        self.tree.wait_shown(last);
        self.make_durable(last)?;
        self.sync_if_nobody_does()
    }

    /// Where commits do not wait for the disk, this does.
    fn sync_if_nobody_does(&self) -> Result<(), ArchiveError> {
        let pm = self.pm();
        if pm.kind() == MediumKind::Journal && pm.durability() != Durability::Immediate {
            self.tree.pool().sync()?;
        }
        Ok(())
    }

    /// Begins a state: of what changed since the archive's end, or a full one. With no stream one
    /// begins, too.
    fn begin_state(&self, work: &mut Work, full: bool) -> Result<(), ArchiveError> {
        let begins_stream = work.stream.is_none();
        if begins_stream {
            self.counts.recorder.begin();
        }
        let mark = self.tree.mark();
        self.settle(mark.stamp)?;
        let reached = work.reached.filter(|_| !full);
        let since = reached.and_then(|end| end.mark);
        let before = self.wall.now();
        let time = self.tree.begin(true);
        let wall = self.wall.now();
        // Where commits do not wait, that is the present.
        let settled = self.settle(time);
        let (directory, from) = (&mut work.directory, since.map(|mark| mark.stamp));
        let begun = settled.and_then(|()| directory.begin_state(from, (time, wall)));
        let file = match begun {
            Ok(file) if time >= mark.stamp => file,
            begun => {
                self.tree.end(time);
                return begun.map(drop);
            }
        };
        work.state = Some(State {
            file,
            known_bytes: 0,
            time,
            before,
            mark,
            since,
            from: Vec::new(),
            low: Vec::new(),
            high: None,
            entries: Vec::new(),
            count: 0,
            gathers: false,
        });
        if begins_stream {
            work.stream = Some(Stream {
                below: time,
                seen: time,
                counts: false,
                pending: Vec::new(),
                commits: 0,
                file: None,
            });
        }
        Ok(())
    }

    /// Writes some of the state. Returns whether it is complete.
    fn write_state(&self, archiving: &Archiving, work: &mut Work) -> Result<bool, ArchiveError> {
        let Some(state) = &mut work.state else {
            return Ok(true);
        };
        let mut written = 0;
        let done = loop {
            if written >= STATE_AT_ONCE {
                break false;
            }
            let since = state.since.unwrap_or(Mark::BEGINNING);
            let Some(range) = self.tree.changed_since(since, &state.from) else {
                break true;
            };
            let before = state.entries.len();
            let (end, flushed) = self.gather(state, range)?;
            written += flushed + state.entries.len().saturating_sub(before);
            match end {
                Some(next) => state.from = next,
                None => break true,
            }
        };
        if done {
            state.flush()?;
            let until = Until {
                below: state.time,
                mark: Some(state.mark),
                wall: state.before,
                session: 0,
                count: state.file.entries,
                token: Token::default(),
            };
            self.mark(&mut work.tokens, &mut state.file, until)?;
        }
        let stats = &mut *lock(&archiving.stats);
        stats.writing = Some(state.file.entries);
        stats.bytes += state.file.take_bytes(&mut state.known_bytes);
        Ok(done)
    }

    /// Adds the entries of a range to a state, up to about a frame. Returns the key to go on with,
    /// and the bytes that were passed to the file.
    fn gather(
        &self,
        state: &mut State,
        range: PageRange,
    ) -> Result<(Option<Vec<u8>>, usize), ArchiveError> {
        let mut flushed = 0;
        let goes_on = state.gathers && state.high.as_ref() == Some(&range.low);
        if !goes_on || state.entries.len() >= FRAME {
            flushed = state.entries.len();
            state.flush()?;
            (state.low, state.gathers) = (range.low.clone(), true);
        }
        let high = range
            .high
            .as_deref()
            .map_or(Bound::Unbounded, Bound::Excluded);
        let bounds = (Bound::Included(&range.low[..]), high);
        let mut next = None;
        let (entries, count) = (&mut state.entries, &mut state.count);
        let visits = (Direction::Up, Visits::Values);
        let scanned = self.tree.scan(state.time, bounds, visits, |key, current| {
            if entries.len() >= FRAME {
                next = Some(key.to_vec());
                return Ok(ControlFlow::Break(()));
            }
            if key != LEDGER {
                entry(entries, key, &current.value()?);
                *count += 1;
            }
            Ok(ControlFlow::Continue(()))
        });
        scanned.map_err(|e| super::read_error(Some(&range.low), e))?;
        state.high = next.or(range.high);
        Ok((state.high.clone(), flushed))
    }

    /// Ends the writing of a state, which is complete or has failed.
    fn end_state(
        &self,
        archiving: &Archiving,
        work: &mut Work,
        done: &Result<bool, ArchiveError>,
    ) -> Result<(), ArchiveError> {
        let Some(state) = work.state.take() else {
            return Ok(());
        };
        self.tree.end(state.time);
        let stats = &mut *lock(&archiving.stats);
        stats.writing = None;
        let leads_there = work.stream.as_ref().is_some_and(|stream| stream.counts);
        if done.is_err() {
            state.file.remove();
            if !leads_there {
                // What it has goes on from nowhere.
                work.stream = None;
            }
            // Reading all of the store again and again would help nobody.
            work.failures = (work.failures + 1).min(MOST_DOUBLED);
            let wait = archiving.options.every.saturating_mul(1 << work.failures);
            work.again = Instant::now().checked_add(wait.min(MOST_WAIT));
            return Ok(());
        }
        (work.failures, work.again) = (0, None);
        if state.since.is_none() {
            work.full_at = Some(state.file.begun);
            stats.full_states += 1;
        } else {
            stats.incremental_states += 1;
        }
        if !leads_there {
            let mut end = Until {
                below: state.time,
                mark: Some(state.mark),
                wall: state.before,
                session: 0,
                count: 0,
                token: Token::default(),
            };
            if let Some(stream) = &mut work.stream {
                stream.counts = true;
                end.below = stream.below;
            }
            stats.archived = Some(end.below - 1);
            work.reached = Some(end);
        }
        if let Some(keep) = archiving.options.keep.filter(|_| state.since.is_none()) {
            let now = self.wall.now();
            let oldest = now.saturating_sub(as_ms(keep));
            if let Some(stream) = &mut work.stream {
                // Its file may be among those that go.
                stream.file = None;
            }
            work.directory.forget_before(oldest)?;
        }
        Ok(())
    }

    /// Writes the commits that are durable, if a stream has them.
    ///
    /// # Errors
    /// [`ArchiveError`]; they wait for another attempt.
    pub(super) fn archive_now(&self) -> Result<(), ArchiveError> {
        match &self.archiving {
            Some(archiving) => self.archive_commits(archiving, &mut lock(&archiving.work), 0),
            None => Ok(()),
        }
    }

    /// Writes all that there is, when nobody changes anything any more. Errors are in the
    /// statistics.
    pub(super) fn finish_archive(&self) {
        let Some(archiving) = &self.archiving else {
            return;
        };
        let work = &mut *lock(&archiving.work);
        if let Some(state) = work.state.take() {
            // Another session begins one.
            self.tree.end(state.time);
            state.file.remove();
        }
        if work.stream.as_ref().is_some_and(|stream| stream.counts) {
            let done = self.archive_commits(archiving, work, self.tree.next_session());
            note(archiving, done.err());
        }
    }
}

impl State {
    /// Passes the range that was gathered to the file.
    fn flush(&mut self) -> Result<(), ArchiveError> {
        if !std::mem::take(&mut self.gathers) {
            return Ok(());
        }
        let keys = KeysBetween {
            low: &self.low,
            high: self.high.as_deref(),
        };
        let count = std::mem::take(&mut self.count);
        self.file.range(keys, (&self.entries, count))?;
        self.entries.clear();
        Ok(())
    }
}

/// The stamp of the last of some changes, which are in order.
fn last_stamp(mut changes: &[u8]) -> Option<u64> {
    let mut last = None;
    while let Some(change) = Change::decode(&mut changes) {
        last = Some(change.stamp);
    }
    last
}

/// Cuts changes into frames, none of which ends in the midst of a commit, and counts the commits of
/// each.
fn frames(changes: &[u8]) -> impl Iterator<Item = (&[u8], u64)> {
    let mut rest = changes;
    std::iter::from_fn(move || {
        let (begun, mut commits, mut stamp) = (rest, 0, None);
        loop {
            let mut after = rest;
            let change = Change::decode(&mut after);
            let is_new = change.is_some_and(|change| stamp != Some(change.stamp));
            let bytes = begun.len() - rest.len();
            if change.is_none() || is_new && bytes >= FRAME {
                return (bytes > 0).then(|| (&begun[..bytes], commits));
            }
            commits += u64::from(is_new);
            stamp = change.map(|change| change.stamp);
            rest = after;
        }
    })
}

/// Returns true if it is time for a full state, after one of that time.
fn is_full_due(options: &ArchiveOptions, last: Option<u64>, now: u64) -> bool {
    let Some(last) = last else { return true };
    // A clock that was ahead and was put right does not put the next one off.
    options
        .full_every
        .is_some_and(|every| now.abs_diff(last) >= as_ms(every))
}

fn as_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn note(archiving: &Archiving, e: Option<ArchiveError>) {
    lock(&archiving.stats).error = e.map(|e| e.to_string());
}

/// Starts the thread that archives until it is told to stop.
///
/// # Errors
/// The system refused a thread.
pub(super) fn spawn<M: Media>(core: &Arc<Core<M>>) -> std::io::Result<Option<JoinHandle<()>>> {
    if core.archiving.is_none() {
        return Ok(None);
    }
    let core = Arc::clone(core);
    let thread = std::thread::Builder::new()
        .name("store-archive".into())
        .spawn(move || {
            let Some(archiving) = &core.archiving else {
                return;
            };
            let mut rest = Duration::ZERO;
            while !core.control.wait_or_stop(rest) {
                let done = core.archive_round(archiving);
                rest = match &done {
                    Ok(true) => BUSY,
                    _ => archiving.options.every,
                };
                note(archiving, done.err());
            }
        })?;
    Ok(Some(thread))
}

#[cfg(test)]
mod tests;
