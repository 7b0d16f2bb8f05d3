//! fjall.
//!
//! | | chosen | why |
//! | --- | --- | --- |
//! | commit | `persist(SyncData)` after every write; a batch has the same mode | a call that returns is durable |
//! | keys | 8 bytes, big-endian | the order of the bytes is that of the numbers |
//! | cache | [`CACHE_BYTES`](crate::CACHE_BYTES), or what the caller says | the default of 32 MiB is less than the others have |
//! | everything else | fjall's defaults, with background threads and LZ4 | an application gets the same |

mod table;

use crate::PeerError;
use crate::store::Store;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::fmt;
use std::path::Path;

/// A fjall database with a keyspace for each trait.
pub struct Fjall {
    db: Database,
    pairs: Keyspace,
    rows: Keyspace,
}

impl fmt::Debug for Fjall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fjall").finish_non_exhaustive()
    }
}

fn failed(doing: &'static str) -> impl Fn(fjall::Error) -> PeerError {
    move |e| PeerError {
        peer: "fjall",
        doing,
        message: e.to_string(),
    }
}

impl Fjall {
    /// Creates or opens the database in the directory `dir`, with a cache of so many bytes.
    ///
    /// # Errors
    /// [`PeerError`] with fjall's own message.
    pub fn open(dir: &Path, cache: u64) -> Result<Self, PeerError> {
        let db = Database::builder(dir)
            .cache_size(cache)
            .open()
            .map_err(failed("opening"))?;
        let keyspace = |name| {
            let opened = db.keyspace(name, KeyspaceCreateOptions::default);
            opened.map_err(failed("opening"))
        };
        let (pairs, rows) = (keyspace("pairs")?, keyspace("rows")?);
        Ok(Self { db, pairs, rows })
    }
}

impl Store for Fjall {
    fn name(&self) -> &'static str {
        "fjall"
    }

    fn version(&self) -> String {
        env!("PEERS_FJALL_VERSION").to_owned()
    }

    fn setting(&self) -> &'static str {
        "persist(SyncData) after each call"
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError> {
        self.pairs
            .insert(key.to_be_bytes(), value)
            .map_err(failed("put"))?;
        self.db
            .persist(PersistMode::SyncData)
            .map_err(failed("put"))
    }

    fn put_batch(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError> {
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncData));
        for (key, value) in pairs {
            batch.insert(&self.pairs, key.to_be_bytes(), value.as_slice());
        }
        batch.commit().map_err(failed("batch"))
    }

    fn get(&self, key: u64, visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        let found = self.pairs.get(key.to_be_bytes()).map_err(failed("get"))?;
        Ok(found.map(|value| visit(&value)).is_some())
    }

    fn scan(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), PeerError> {
        for entry in self.pairs.range(from.to_be_bytes()..).take(limit) {
            let (key, value) = entry.into_inner().map_err(failed("scan"))?;
            visit(
                key.as_ref().try_into().map_or(0, u64::from_be_bytes),
                &value,
            );
        }
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<(), PeerError> {
        self.pairs
            .remove(key.to_be_bytes())
            .map_err(failed("delete"))?;
        self.db
            .persist(PersistMode::SyncData)
            .map_err(failed("delete"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CACHE_BYTES;

    #[test]
    fn as_a_store() {
        let dir = tempfile::tempdir().unwrap();
        crate::store::tests::answers_as_the_model(&|| Fjall::open(dir.path(), CACHE_BYTES));
    }
}
