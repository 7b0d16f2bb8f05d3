//! What opening, vacuuming, checking and salvaging report.

use crate::entry::Entry;
use crate::error::{DamagedRecord, ReadError};
use bristlecone_index::Violation;
use std::time::Duration;

/// Damaged records that a report lists.
pub(crate) const MAX_REPORTED: usize = 1000;

/// The outcome of opening a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreRecovery {
    /// Recovery of the index.
    pub index: bristlecone_index::RecoveryReport,
    /// Entries of the index.
    pub entries: u64,
    /// Entries of uncommitted changes, which were undone.
    pub undone: u64,
    /// Records of the last commit through each slot that were stamped, or whose stamps were made
    /// durable.
    pub stamped: u64,
    /// Tombstones that were removed.
    pub tombstones: u64,
    /// The store was closed in order, so nothing was in progress. False for one that is new.
    pub in_order: bool,
    /// Damaged records and slots of the commit table. They are kept, and reads of their keys are
    /// errors.
    pub damaged: u64,
    /// The first 1,000 of these. All of them: [`Store::find_damage`](crate::Store::find_damage).
    pub damage: Vec<DamagedRecord>,
    /// Names of keyspaces that only one of two copies had, and the other one was given.
    pub restored: u64,
    /// Time that it took, apart from the index.
    pub elapsed: Duration,
}

impl StoreRecovery {
    /// Counts a damaged record, and lists it if there is room.
    pub(crate) fn found(&mut self, damaged: DamagedRecord) {
        self.damaged += 1;
        if self.damage.len() < MAX_REPORTED {
            self.damage.push(damaged);
        }
    }
}

/// Counts of a run of the vacuum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VacuumReport {
    /// Versions, tombstones and expired values included.
    pub versions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, tombstones.
    pub tombstones: u64,
    /// Of these, expired values.
    pub expired: u64,
    /// Of these, values of dropped keyspaces.
    pub dropped: u64,
    /// Whether nothing was left that could be freed.
    pub complete: bool,
}

/// Counts of a [`Store::check`](crate::Store::check).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Entries of the index.
    pub entries: u64,
    /// Records, whose checksums were compared.
    pub versions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Dead records: those of undone commits whose entries could not be restored.
    pub dead: u64,
}

/// Statistics of a store since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Keys of all keyspaces, the catalogue included. Those of dropped keyspaces count until they
    /// are vacuumed.
    pub keys: u64,
    /// Records: newest versions, older ones, tombstones.
    pub versions: u64,
    /// Bytes of the newest versions, heads of records included.
    pub live_bytes: u64,
    /// Bytes of older versions and tombstones, which the vacuum frees.
    pub garbage_bytes: u64,
    /// Keys whose values have an expiry.
    pub expiring: u64,
    /// Versions that were vacuumed.
    pub vacuumed: u64,
    /// Their bytes.
    pub vacuumed_bytes: u64,
    /// Timestamp of the last durable commit.
    pub durable: u64,
    /// Timestamp of the oldest snapshot.
    pub oldest_snapshot: Option<u64>,
    /// Snapshots that exist.
    pub snapshots: u64,
    /// Bytes of the pool's chunks that hold records.
    pub chunk_bytes: u64,
    /// Bytes of the records' blocks, rounding included.
    pub block_bytes: u64,
}

/// A key of a damaged store.
#[derive(Debug)]
pub struct Salvaged<'a> {
    /// Name of its keyspace. `None` if the catalogue's record of it is damaged, or the keyspace was
    /// dropped.
    pub keyspace: Option<&'a str>,
    /// Number of its keyspace. 0 is the catalogue, whose keys are the names of keyspaces.
    pub number: u32,
    /// The key.
    pub key: &'a [u8],
    /// Its value, or what is wrong.
    pub found: Result<Entry<'a>, ReadError>,
}

/// The outcome of a salvage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SalvageReport {
    /// Design of the index.
    pub design: String,
    /// Bytes in a leaf of the index.
    pub node_bytes: u32,
    /// Names of the keyspaces whose records can be read.
    pub keyspaces: Vec<String>,
    /// Entries that the index counts, including the catalogue's and tombstones.
    pub indexed: u64,
    /// Entries that were visited: fewer if keys in the index are damaged.
    pub walked: u64,
    /// The first violation that verifying the index found.
    pub violation: Option<Violation>,
}
