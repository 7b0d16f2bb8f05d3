//! Checks and statistics of a store.

use crate::error::{DamagedRecord, ReadError};
use crate::report::{CheckReport, ScrubStats, StoreStats};
use crate::store::Store;
use bristlecone_index::{IndexStats, Violation};
use bristlecone_pmem::Media;

impl<M: Media> Store<M> {
    /// Returns the store's statistics.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.shared.engine.stats()
    }

    /// Returns shape and size of the index. Walks all of it.
    #[must_use]
    pub fn index_stats(&self) -> IndexStats {
        self.shared.engine.index_stats()
    }

    /// Checks the tree, every page and value, the order of versions, and that no block is leaked or
    /// owned twice. Call it while nobody writes or vacuums. The vacuum's own thread waits
    /// meanwhile.
    ///
    /// # Errors
    /// The first [`Violation`] found. If values or pages are damaged, it names all of them, one
    /// per line.
    pub fn check(&self) -> Result<CheckReport, Violation> {
        self.shared.engine.check()
    }

    /// Returns all damaged values and pages. Reads the whole store.
    /// The conditions are those of [`check`](Self::check), which reports the same in words.
    #[must_use]
    pub fn find_damage(&self) -> Vec<DamagedRecord> {
        self.shared.engine.find_damage()
    }

    /// Compares all pages and long values with their checksums while others go on reading and
    /// writing, and returns the damage, the first 1,000 places of it. What the keys and values
    /// say, and whether all that is there is counted, only [`check`](Self::check) finds out. A page
    /// that changes whenever it is looked at, eight times, is passed.
    ///
    /// # Errors
    /// [`ReadError::Memory`]: there is no memory to look at the rest.
    pub fn scrub(&self) -> Result<Vec<DamagedRecord>, ReadError> {
        self.shared.engine.scrub()
    }

    /// Returns whether the keys are counted. After a kill a thread counts them, which may take a
    /// while, and until then whatever needs their number waits: [`stats`](Self::stats),
    /// [`len`](Self::len).
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.shared.engine.is_counted()
    }

    /// Returns what scrubbing has done, as [`stats`](Self::stats) does, but at once.
    #[must_use]
    pub fn scrub_stats(&self) -> ScrubStats {
        self.shared.engine.scrub_stats()
    }

    /// Returns the first damage that scrubbing has found: [`scrub`](Self::scrub), or the thread
    /// that [`StoreOptions::scrub`](crate::StoreOptions::scrub) asks for.
    #[must_use]
    pub fn scrub_findings(&self) -> Vec<DamagedRecord> {
        self.shared.engine.scrub_findings()
    }
}
