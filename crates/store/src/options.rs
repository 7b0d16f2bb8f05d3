//! Options of a store: how it is made and run.

use crate::archive::ArchiveOptions;
use crate::wall::WallClock;
use std::time::Duration;

/// How long values are written. Values say how they were written, so a store may be opened with
/// another choice at any time, by a build that has the features of all that were used.
///
/// A value of at least 512 bytes is compressed on its own if that saves an
/// eighth of it or more; one that has parts, each of its 8 MiB. Its length and expiry are known
/// without unpacking it; reading it unpacks it into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// As they are, and read in place.
    #[default]
    None,
    /// With LZ4.
    #[cfg(feature = "lz4")]
    Lz4,
    /// With Zstandard at its default level.
    #[cfg(feature = "zstd")]
    Zstd,
}

/// How a store is made and run. Only the size of its pages is stored in the pool.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Bytes in a page of the tree of a new store; `None` for the default.
    pub node_bytes: Option<u32>,
    /// Interval at which a thread of the store vacuums. With `None` there is no thread, and
    /// [`Store::vacuum`](crate::Store::vacuum) has to be called. The thread also counts the keys,
    /// where the last session has not left their number.
    pub vacuum_every: Option<Duration>,
    /// Bytes of memory that the process may have resident, where the pool's medium can give memory
    /// back: on a journal. A thread of the store then drops what can be read again from the pool
    /// file. With `None` all that was touched stays in memory.
    pub memory: Option<u64>,
    /// Bytes a second that a thread of the store reads to compare pages and long values with their
    /// checksums, from the first to the last and again. With `None` there is no thread.
    pub scrub: Option<u64>,
    /// Where all commits and states are archived by a thread of the store; see
    /// [`ArchiveOptions`]. Only stores on a clustered tree are.
    pub archive: Option<ArchiveOptions>,
    /// How long values are written.
    pub compression: Compression,
    /// The clock that expiries are compared with.
    pub clock: WallClock,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            node_bytes: None,
            vacuum_every: Some(Duration::from_millis(50)),
            memory: None,
            scrub: None,
            archive: None,
            compression: Compression::default(),
            clock: WallClock::default(),
        }
    }
}

impl StoreOptions {
    /// Returns these options without threads.
    #[must_use]
    pub fn without_thread(self) -> Self {
        Self {
            vacuum_every: None,
            memory: None,
            scrub: None,
            archive: None,
            ..self
        }
    }
}
