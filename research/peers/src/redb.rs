//! redb.
//!
//! | | chosen | why |
//! | --- | --- | --- |
//! | commit | one write transaction per call, `Durability::Immediate` | a call that returns is durable |
//! | keys | redb's own `u64` | its fastest comparison |
//! | cache | [`CACHE_BYTES`](crate::CACHE_BYTES), or what the caller says | redb's default |
//! | reads, scans | one read transaction per call | each call sees the latest commit |

mod table;

use crate::PeerError;
use crate::store::Store;
use crate::table::Table;
use redb::{Database, ReadableDatabase, TableDefinition};
use std::fmt;
use std::path::Path;

const PAIRS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("pairs");

/// A redb database with a table for each trait.
pub struct Redb {
    db: Database,
}

impl fmt::Debug for Redb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redb").finish_non_exhaustive()
    }
}

fn failed<E: fmt::Display>(doing: &'static str) -> impl Fn(E) -> PeerError {
    move |e| PeerError {
        peer: "redb",
        doing,
        message: e.to_string(),
    }
}

impl Redb {
    /// Creates or opens the database file at `path`.
    ///
    /// # Errors
    /// [`PeerError`] with redb's own message.
    pub fn open(path: &Path, cache: u64) -> Result<Self, PeerError> {
        let db = Database::builder()
            .set_cache_size(cache as usize)
            .create(path)
            .map_err(failed("opening"))?;
        let redb = Self { db };
        // Readers need the tables, which the first write transactions create.
        redb.put_batch(&[])?;
        redb.write(&mut |_| Ok(()))?;
        Ok(redb)
    }
}

impl Store for Redb {
    fn name(&self) -> &'static str {
        "redb"
    }

    fn version(&self) -> String {
        env!("PEERS_REDB_VERSION").to_owned()
    }

    fn setting(&self) -> &'static str {
        "a transaction with Durability::Immediate a call"
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError> {
        let transaction = self.db.begin_write().map_err(failed("put"))?;
        {
            let mut table = transaction.open_table(PAIRS).map_err(failed("put"))?;
            table.insert(key, value).map_err(failed("put"))?;
        }
        transaction.commit().map_err(failed("put"))
    }

    fn put_batch(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError> {
        let transaction = self.db.begin_write().map_err(failed("batch"))?;
        {
            let mut table = transaction.open_table(PAIRS).map_err(failed("batch"))?;
            for (key, value) in pairs {
                table
                    .insert(key, value.as_slice())
                    .map_err(failed("batch"))?;
            }
        }
        transaction.commit().map_err(failed("batch"))
    }

    fn get(&self, key: u64, visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        let transaction = self.db.begin_read().map_err(failed("get"))?;
        let table = transaction.open_table(PAIRS).map_err(failed("get"))?;
        let found = table.get(key).map_err(failed("get"))?;
        Ok(found.map(|value| visit(value.value())).is_some())
    }

    fn scan(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), PeerError> {
        let transaction = self.db.begin_read().map_err(failed("scan"))?;
        let table = transaction.open_table(PAIRS).map_err(failed("scan"))?;
        for entry in table.range(from..).map_err(failed("scan"))?.take(limit) {
            let (key, value) = entry.map_err(failed("scan"))?;
            visit(key.value(), value.value());
        }
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<(), PeerError> {
        let transaction = self.db.begin_write().map_err(failed("delete"))?;
        {
            let mut table = transaction.open_table(PAIRS).map_err(failed("delete"))?;
            table.remove(key).map_err(failed("delete"))?;
        }
        transaction.commit().map_err(failed("delete"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CACHE_BYTES;

    #[test]
    fn as_a_store() {
        let dir = tempfile::tempdir().unwrap();
        crate::store::tests::answers_as_the_model(&|| {
            Redb::open(&dir.path().join("redb"), CACHE_BYTES)
        });
    }
}
