//! What opening, vacuuming, checking and salvaging report.
//!
//! Some fields are for NV-Store, the research format of version records, and 0 in any other store.

use crate::entry::Entry;
use crate::error::{DamagedRecord, ReadError};
use bristlecone_index::Violation;
use bristlecone_index::clustered::Scrubbed;
use std::time::Duration;

/// Damaged places that a report lists.
pub const MAX_REPORTED: usize = 1000;

/// The outcome of opening a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreRecovery {
    /// Recovery of the index.
    pub index: bristlecone_index::RecoveryReport,
    /// Entries of the index that were looked at. 0, since opening reads no keys; NV-Store, a
    /// research format, looks at all.
    pub entries: u64,
    /// Entries of uncommitted changes, which NV-Store undoes when it is opened. 0 elsewhere, where
    /// reading a page leaves them out.
    pub undone: u64,
    /// Records of the last commit through each slot that were stamped, or whose stamps were made
    /// durable. 0 except in NV-Store.
    pub stamped: u64,
    /// Tombstones that were removed. 0 except in NV-Store: others have none.
    pub tombstones: u64,
    /// The store was closed in order, so nothing was in progress. False for one that is new.
    pub in_order: bool,
    /// Damage that was found. It is kept, and reads of the keys are errors. Counted are entries and
    /// pages of the catalogue, names that only one of its two copies had, which the other one is
    /// given, and numbers of keyspaces whose names are lost; other pages are not looked at.
    /// NV-Store counts records and slots of its commit table.
    pub damaged: u64,
    /// The first 1,000 of these. All of them: [`Store::find_damage`](crate::Store::find_damage).
    pub damage: Vec<DamagedRecord>,
    /// Time that it took, apart from the index.
    pub elapsed: Duration,
}

impl StoreRecovery {
    /// Counts a damaged place, and lists it if there is room.
    pub fn found(&mut self, damaged: DamagedRecord) {
        self.damaged += 1;
        if self.damage.len() < MAX_REPORTED {
            self.damage.push(damaged);
        }
    }
}

/// Counts of a run of the vacuum. It removes what has expired, and the keys of dropped keyspaces;
/// old versions are in memory and go by themselves. NV-Store's frees old versions too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VacuumReport {
    /// Versions, tombstones and expired values included.
    pub versions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, tombstones. 0 except in NV-Store.
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
    /// Keys, the names of keyspaces included.
    pub entries: u64,
    /// Versions in the pool, whose checksums were compared: one for each key. NV-Store has older
    /// ones too.
    pub versions: u64,
    /// Their bytes, with their keys. In NV-Store with the heads of records, without keys.
    pub bytes: u64,
    /// Dead records of NV-Store: those of undone commits whose entries could not be restored. 0
    /// elsewhere.
    pub dead: u64,
}

/// What scrubbing has done since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubStats {
    /// Rounds that came to their end.
    pub rounds: u64,
    /// Pages that were compared with their checksums.
    pub pages: u64,
    /// Long values that were.
    pub values: u64,
    /// Bytes of both.
    pub bytes: u64,
    /// Bytes of this round.
    pub round_bytes: u64,
    /// Damaged places that are known, at most 2,000.
    /// [`Store::scrub_findings`](crate::Store::scrub_findings) lists the first of them.
    pub damaged: u64,
}

impl ScrubStats {
    pub(crate) fn add(&mut self, step: &Scrubbed) {
        self.pages += step.pages;
        self.values += step.values;
        self.bytes += step.bytes;
        self.round_bytes += step.bytes;
    }
}

/// Statistics of a store since it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Keys of all keyspaces, the catalogue included. Those of dropped keyspaces count until they
    /// are vacuumed.
    pub keys: u64,
    /// Newest versions and older ones. In NV-Store tombstones count too.
    pub versions: u64,
    /// Bytes of the newest versions, with their keys. In NV-Store with the heads of records,
    /// without keys.
    pub live_bytes: u64,
    /// Bytes of older versions, which are in memory for as long as a snapshot reads them. Those of
    /// NV-Store are in the pool, with tombstones, until the vacuum frees them.
    pub garbage_bytes: u64,
    /// Keys whose values have an expiry.
    pub expiring: u64,
    /// Versions that were vacuumed: keys that had expired, or were of dropped keyspaces. In
    /// NV-Store older versions too.
    pub vacuumed: u64,
    /// Their bytes.
    pub vacuumed_bytes: u64,
    /// Inner pages, words of the page table and changes in pages that were damaged and have been
    /// made again, since the store was opened. The memory or disk may be failing.
    pub mended: u64,
    /// Timestamp of the last durable commit.
    pub durable: u64,
    /// Timestamp of the oldest snapshot.
    pub oldest_snapshot: Option<u64>,
    /// Snapshots that exist.
    pub snapshots: u64,
    /// Bytes of the pool's chunks that hold pages and large values, or records.
    pub chunk_bytes: u64,
    /// Bytes of the blocks of these, rounding included.
    pub block_bytes: u64,
    /// Scrubbing.
    pub scrub: ScrubStats,
}

/// Precedes the number of a keyspace whose name is lost.
pub const NAMELESS: &str = "number ";

/// A key of a damaged store.
#[derive(Debug)]
pub struct Salvaged<'a> {
    /// Name of its keyspace. `None` if that is damaged in the catalogue, or the keyspace was
    /// dropped.
    pub keyspace: Option<&'a str>,
    /// Number of its keyspace. 0 is the catalogue, whose keys are the names of keyspaces.
    pub number: u32,
    /// The key.
    pub key: &'a [u8],
    /// Its value, or what is wrong.
    pub found: Result<Entry<'a>, ReadError>,
}

impl Salvaged<'_> {
    /// Returns the name of its keyspace, or [`NAMELESS`] and its number where that is lost.
    #[must_use]
    pub fn keyspace_name(&self) -> String {
        match self.keyspace {
            Some(name) => name.to_owned(),
            None => format!("{NAMELESS}{}", self.number),
        }
    }
}

/// The outcome of a salvage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SalvageReport {
    /// Design of the index, or of the tree.
    pub design: String,
    /// Bytes in a leaf of the index, or in a page of the tree.
    pub node_bytes: u32,
    /// Names of the keyspaces whose names can be read.
    pub keyspaces: Vec<String>,
    /// Entries that were visited, including the catalogue's: a page that cannot be read does not
    /// tell how many it has. In NV-Store those that the index counts, tombstones included.
    pub indexed: u64,
    /// Entries that were visited. In NV-Store fewer than `indexed` if keys in the index are
    /// damaged.
    pub walked: u64,
    /// The first violation that verifying the index found; the first page that cannot be read.
    pub violation: Option<Violation>,
    /// Damage that opening the tree passed over, as it does in a pool that is
    /// [salvaged](bristlecone_pmem::Pool::salvage).
    pub passed: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_damage_is_counted_and_the_first_of_it_listed() {
        let mut report = StoreRecovery::default();
        for offset in 0..1_500 {
            report.found(DamagedRecord {
                index_key: None,
                offset,
                what: "torn".into(),
            });
        }
        assert_eq!((report.damaged, report.damage.len()), (1_500, 1_000));
        assert_eq!(report.damage[999].offset, 999);
    }

    #[test]
    fn scrubbing_adds_up() {
        let mut stats = ScrubStats {
            rounds: 3,
            pages: 10,
            values: 20,
            bytes: 300,
            round_bytes: 40,
            damaged: 5,
        };
        let mut step = Scrubbed::default();
        (step.pages, step.values, step.bytes) = (1, 2, 7);
        stats.add(&step);
        let expected = ScrubStats {
            pages: 11,
            values: 22,
            bytes: 307,
            round_bytes: 47,
            ..stats
        };
        assert_eq!(stats, expected);
    }

    #[test]
    fn a_keyspace_whose_name_is_lost_is_called_by_its_number() {
        let salvaged = |keyspace| Salvaged {
            keyspace,
            number: 7,
            key: b"key",
            found: Err(ReadError::Memory { what: "".into() }),
        };
        assert_eq!(salvaged(Some("orders")).keyspace_name(), "orders");
        assert_eq!(salvaged(None).keyspace_name(), "number 7");
    }
}
