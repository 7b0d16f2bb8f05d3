//! Power cuts over the system calls of a database on the journal.
//!
//! `crash` proves the algorithms on a simulated persistent memory, and the tests of the journal cut
//! its writes through a storage of their own. This looks at what the kernel is really asked for: a
//! writer process makes commits under `strace`, and its trace says which bytes went where, and
//! which of them a sync had made durable. At random lines of the trace, directories are built as a
//! power cut could have left them, and recovered.
//!
//! ```text
//! writer.rs    the traced process: commits of a plan, "begin N" and "ack N" around each
//! plan.rs      commit N and the content after it, from a seed
//! strace.rs    lines of the trace -> calls
//! timeline.rs  calls -> changes of files, syncs, reports
//! cut.rs       changes before a line -> an image: durable changes, and some of the others
//! check.rs     an image -> recovered, compared, checked
//! run.rs       all of it, and cuts in recovery
//! ```
//!
//! # Model
//!
//! A disk behind ext4 or XFS, and a page cache. A call is durable through a sync only if the sync
//! began after the call's end, and ended before the cut. Of everything else, any combination is
//! possible within these rules:
//!
//! 1. *Contents.* Each sector (512 or 4096 bytes) of a file has one of the states that it had in
//!    the page cache since it was last durable: writes are dropped, kept, torn at sectors, and
//!    reordered. `fdatasync` and `fsync` make all of the file durable, a write with `O_DSYNC` or
//!    `RWF_DSYNC` its own sectors. `sync_file_range` and `close` promise nothing.
//! 2. *Lengths and holes.* The changes of one file (`ftruncate`, `fallocate`) become durable in
//!    their order, and independently of other files. A sync or a durable write of the file
//!    includes them. Sectors whose blocks came or went with a change are as lost as the change.
//!    A write behind the end extends the file as far as its sectors are there; gaps are zeros.
//! 3. *Names.* The changes of one directory (creation, renaming, removal) become durable in their
//!    order, and independently of other directories. `fsync` of the directory makes them durable.
//!    ext4 and XFS commit the name of a new file when the file is synced; POSIX does not ask for
//!    it ([`NamesLast`] chooses).
//!
//! ext4 and XFS have one log for all metadata, so they leave fewer images than rules 2 and 3 allow;
//! ext4 with `fast_commit` comes close to them. Not modelled: a disk that lies about a flush,
//! sectors that tear, errors of reading or writing, and shared mappings (the journal has none; a
//! trace with one is refused).
//!
//! # Checks
//!
//! Every acknowledged commit is there, the one in flight wholly or not at all, and nothing else;
//! `check()` finds nothing; a backup that was reported complete restores. Some images also take
//! another commit and a clean close. Some are recovered by a traced process, and that trace is cut
//! in the same way: recovery that has answered may not take it back.

mod check;
mod cut;
mod image;
mod plan;
mod run;
mod strace;
#[cfg(test)]
mod tests;
mod timeline;
mod writer;

pub use cut::{Cut, Cutter};
pub use image::{Bytes, Image};
pub use run::{Report, Spec, Token, Tracer, Wrong, run};
pub use strace::{Arg, Call, parse};
pub use timeline::{Event, Name, Op, Said, Timeline};
pub use writer::{DATABASE, recover, write};

use crate::workload::mix;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// How hostile the disk is.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Bytes that are written wholly or not at all.
    pub sector: u64,
    /// When the name of a new file is durable.
    pub names: NamesLast,
    /// A planted error.
    pub plant: Option<Plant>,
}

/// When the name of a new file is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamesLast {
    /// With the file's own sync, or with the directory's: ext4, XFS.
    WithFile,
    /// Only with the directory's: POSIX.
    WithFolder,
}

/// An error that is planted, to see it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The journal's last sync before the cut did nothing.
    SkipSync,
    /// No sync of the journal did anything.
    SkipJournal,
    /// No sync of the database's file did anything.
    SkipPool,
    /// No sync of a directory did anything.
    SkipNames,
}

/// Random numbers that follow from a seed, a purpose and a number.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Returns those of that purpose and number.
    #[must_use]
    pub fn of(seed: u64, purpose: u64, number: u64) -> Self {
        Self(mix(mix(mix(seed) ^ purpose) ^ number))
    }

    /// Returns the next number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Returns a number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.word() % n.max(1)
    }
}

/// Why power cuts could not be tried.
#[derive(Debug)]
#[non_exhaustive]
pub enum PowerCutError {
    /// There is no `strace`.
    NoStrace,
    /// The operating system returned an error.
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The action that failed.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A trace cannot be read, or has a call that is not modelled.
    Trace {
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
    },
    /// The writer, or a traced recovery, failed.
    Writer(String),
    /// The database refused an operation of the writer.
    Database(bristlecone::Error),
}

impl PowerCutError {
    fn io(path: &Path, doing: &'static str, source: io::Error) -> Self {
        Self::Io {
            path: path.to_path_buf(),
            doing,
            source,
        }
    }
}

impl fmt::Display for PowerCutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStrace => f.write_str(
                "there is no strace, which traces the writer; install it (Debian package: strace)",
            ),
            Self::Io {
                path,
                doing,
                source,
            } => write!(f, "{}: {doing} failed: {source}", path.display()),
            Self::Trace { line, what } => write!(f, "the trace, line {line}: {what}"),
            Self::Writer(what) => f.write_str(what),
            Self::Database(e) => write!(f, "the database refuses a commit: {e}"),
        }
    }
}

impl std::error::Error for PowerCutError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Database(e) => Some(e),
            Self::NoStrace | Self::Trace { .. } | Self::Writer(_) => None,
        }
    }
}

impl From<bristlecone::Error> for PowerCutError {
    fn from(e: bristlecone::Error) -> Self {
        Self::Database(e)
    }
}
