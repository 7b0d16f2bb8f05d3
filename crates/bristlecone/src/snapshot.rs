//! Snapshots: a database as it was at one commit.

use crate::Database;
use crate::iter::Bounds;
use bristlecone_pmem::media::Auto;
use bristlecone_store::Snapshot as StoreSnapshot;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

/// A database as it was at one durable commit, for as long as it is kept: [`Keyspace::at`](crate::Keyspace::at) reads a keyspace
/// in it. Reads block nobody and are blocked by nobody. Versions that it can still read are not freed, so it should not be
/// kept for ever.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let orders = db.keyspace("orders")?;
/// orders.insert("17", "packed")?;
/// let before = db.snapshot();
/// orders.insert("17", "shipped")?;
/// assert_eq!(orders.at(&before)?.get("17")?.expect("it was there"), "packed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Snapshot(pub(crate) StoreSnapshot<Auto>);

impl Snapshot {
    /// The time stamp of the last commit that it sees: it rises with every commit of the database.
    #[must_use]
    pub fn timestamp(&self) -> u64 {
        self.0.timestamp()
    }

    pub(crate) fn is_of(&self, db: &Database) -> bool {
        Arc::ptr_eq(self.0.pool(), db.store().pool())
    }
}

/// A range with keys that are owned.
pub(crate) fn owned<K: AsRef<[u8]>>(range: &impl RangeBounds<K>) -> Bounds {
    let bytes = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
    (bytes(range.start_bound()), bytes(range.end_bound()))
}

/// The range of the keys that begin with `prefix`.
pub(crate) fn prefix_of(prefix: &[u8]) -> Bounds {
    // The least that is above all of them: without what cannot be raised, and the last byte raised.
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return (Bound::Included(prefix.to_vec()), Bound::Excluded(end));
        }
    }
    (Bound::Included(prefix.to_vec()), Bound::Unbounded)
}
