//! Options of a store: how it keeps its keys, and how it is run.

use crate::wall::WallClock;
use std::time::Duration;

/// How a store keeps its keys. Opening goes by what is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// In version records of their own, to which an index leads.
    #[default]
    Records,
    /// In the pages of a clustered tree. It scans faster, takes a fraction of the space, and opens
    /// without reading what it has. Damage costs more: a page of it cannot be read if one of its
    /// bytes is wrong, and the store does not open if that page has names of keyspaces.
    Clustered,
}

/// How a store is made and run. Only the layout and the leaf size of its index are stored in the
/// pool.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// How a new store keeps its keys.
    pub layout: Layout,
    /// Bytes in a leaf of the index of a new store; `None` for the engine's default.
    pub node_bytes: Option<u32>,
    /// Threads that recover the index. The store's own walk uses at most two.
    pub recovery_threads: usize,
    /// Interval at which a thread of the store vacuums. With `None` there is no thread, and
    /// [`Store::vacuum`](crate::Store::vacuum) has to be called.
    pub vacuum_every: Option<Duration>,
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
            clock: WallClock::default(),
        }
    }
}

impl StoreOptions {
    /// Returns these options without the vacuum's thread.
    #[must_use]
    pub fn without_thread(self) -> Self {
        Self {
            vacuum_every: None,
            ..self
        }
    }
}
