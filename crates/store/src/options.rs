//! Options of a store: how it keeps its keys, and how it is run.

use crate::wall::WallClock;
use std::time::Duration;

/// How a store keeps its keys. A store keeps the layout that it was made with; opening goes by what
/// is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// In version records of their own, to which an index leads: store format 2. Scans are slower,
    /// and the file is larger. Opening goes through all keys. A wrong byte costs the key whose
    /// record it is in.
    Records,
    /// In the pages of a clustered tree: store format 3, the default. Opening reads none of the
    /// keys. A wrong byte costs one value, or some of the page that it is in, of which no key can
    /// be changed then.
    #[default]
    Clustered,
}

impl Layout {
    /// Returns its name, as commands take and show it: `records` or `clustered`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Records => "records",
            Self::Clustered => "clustered",
        }
    }
}

/// How long values are written. Values say how they were written, so a store may be opened with
/// another choice at any time, by a build that has the features of all that were used.
///
/// In the clustered layout a value of at least 512 bytes is compressed on its own if that saves an
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

/// How a store is made and run. Only the layout and the size of its index's nodes are stored in the
/// pool.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// How a new store keeps its keys.
    pub layout: Layout,
    /// Bytes in a leaf of the index of a new store, or in a page of its tree; `None` for the
    /// layout's default.
    pub node_bytes: Option<u32>,
    /// Threads that recover the index, in the records' layout. The store's own walk uses at most
    /// two.
    pub recovery_threads: usize,
    /// Interval at which a thread of the store vacuums. With `None` there is no thread, and
    /// [`Store::vacuum`](crate::Store::vacuum) has to be called. In the clustered layout the thread
    /// also counts the keys, where the last session has not left their number.
    pub vacuum_every: Option<Duration>,
    /// Bytes of memory that the process may have resident, where the pool's medium can give memory
    /// back: on a journal, in the clustered layout. A thread of the store then drops what can be
    /// read again from the pool file. With `None` all that was touched stays in memory.
    pub memory: Option<u64>,
    /// How long values are written. The records' layout does not compress.
    pub compression: Compression,
    /// The clock that expiries are compared with.
    pub clock: WallClock,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            layout: Layout::default(),
            node_bytes: None,
            recovery_threads: std::thread::available_parallelism().map_or(1, usize::from),
            vacuum_every: Some(Duration::from_millis(50)),
            memory: None,
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
            ..self
        }
    }
}
