//! Archives: a directory with states of a store and its commits after them, from which the store is
//! made again as it was at any commit.
//!
//! ```text
//! 00000001.state     a full state: all that the tree has at a time
//! 00000002.commits   the commits from that time on, and marks: up to when they are complete
//! 00000003.state     an incremental state: the ranges of keys that may have changed since a mark
//! lock               held by who writes
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `format` | frames: what files consist of |
//! | `read`, `write` | files |
//! | `plan` | which files lead to a moment |
//!
//! Keys and values are those of the tree, so an archive has the catalogue, parts of long values and
//! all else that a store keeps there. What the tree of a state has is what a crash at that moment
//! could have left: whoever makes a store of it opens it as after a crash.
//!
//! # Invariants
//! 1. An archive never has what the store may lose: only what is durable is written to it.
//! 2. A file of commits has all commits from where it begins up to its last mark.
//! 3. A state counts only with the mark at its end. An incremental state together with any state
//!    between its own mark and its time makes the whole state at its time.
//! 4. Before a mark is written, the pool has a token of it, and that of the mark before, durably.
//!    So a store that is opened tells whether the archive's last mark is one of its own.
//! 5. A file is written by one process and never changed afterwards. After a crash another file is
//!    begun, and a state that is not complete gets another name. So a file that ends in the midst
//!    of a frame was being written; but if a whole frame comes after that, it is damaged.

pub(crate) mod format;
mod plan;
mod read;
pub(crate) mod write;

pub use format::FORMAT;
pub use plan::{Plan, Step};
pub use read::{Archive, ArchiveFile, FileKind, UnreadableFile};

pub(crate) use format::{Change, KeysBetween};
pub(crate) use read::Next;
pub(crate) use write::Directory;

use std::path::PathBuf;
use std::time::Duration;

/// How a store is archived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveOptions {
    /// The directory. It is made if it is not there.
    pub dir: PathBuf,
    /// How often commits are written and synced. The machine's loss costs so much at most, and the
    /// time that writing takes.
    pub every: Duration,
    /// How often a full state is written, from which restoring begins; `None`: once.
    pub full_every: Option<Duration>,
    /// How long back the store can be restored, at least: older files are removed. `None`: they
    /// stay.
    pub keep: Option<Duration>,
    /// Bytes of commits that wait in memory to be written, at most. What does not fit is not in the
    /// archive one by one, but in an incremental state. Writers never wait.
    pub queue_bytes: usize,
}

impl ArchiveOptions {
    /// The defaults: a second, a full state every seven days, all files stay, 64 MiB.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            every: Duration::from_secs(1),
            full_every: Some(Duration::from_secs(7 * 24 * 60 * 60)),
            keep: None,
            queue_bytes: 64 << 20,
        }
    }
}

/// The last ms of the year 9999.
const LAST_MS: u64 = 253_402_300_799_999;

/// In ms: commits that are made at the same time may be in another order than their times. A clock
/// that went back further did not tell the time.
pub(crate) const WENT_BACK: u64 = 10_000;

/// How far a store is to be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// As far as the archive goes.
    End,
    /// Up to the commit of this time stamp, which counts.
    Timestamp(u64),
    /// Up to this time in ms since 1970. A commit of that time counts.
    Time(u64),
}

impl std::fmt::Display for Until {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::End => write!(f, "the end"),
            Self::Timestamp(ts) => write!(f, "time stamp {ts}"),
            Self::Time(ms) => {
                // Later years have five digits.
                let since = Duration::from_millis((*ms).min(LAST_MS));
                let time = std::time::UNIX_EPOCH + since;
                write!(f, "{}", humantime::format_rfc3339_millis(time))
            }
        }
    }
}

/// Statistics of archiving since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveStats {
    /// All commits up to this time stamp are in the archive; `None` while there is no state yet.
    pub archived: Option<u64>,
    /// When it was last up to date, in ms since 1970.
    pub at: u64,
    /// Commits that were written.
    pub commits: u64,
    /// Full states that were completed.
    pub full_states: u64,
    /// Incremental states that were completed.
    pub incremental_states: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// A state is being written: keys so far.
    pub writing: Option<u64>,
    /// Commits that have not been written, in bytes of memory.
    pub queued_bytes: u64,
    /// The error of the last attempt, if it failed; there will be another.
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_that_are_documented() {
        let options = ArchiveOptions::new("archive");
        let expected = ArchiveOptions {
            dir: "archive".into(),
            every: Duration::from_millis(1_000),
            full_every: Some(Duration::from_secs(604_800)),
            keep: None,
            queue_bytes: 67_108_864,
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn a_moment_is_told_in_words() {
        for (until, expected) in [
            (Until::End, "the end"),
            (Until::Timestamp(7), "time stamp 7"),
            (Until::Time(0), "1970-01-01T00:00:00.000Z"),
            (Until::Time(1_700_000_000_123), "2023-11-14T22:13:20.123Z"),
            (Until::Time(u64::MAX), "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(until.to_string(), expected);
        }
    }
}
