//! The engines as tables.

use super::super::engine::Place;
use super::super::own::{Product, failed, first};
use super::{ENGINES, Engine, LabError};
use bristlecone::{Batch, Keyspace, KeyspaceAt};
use bristlecone_peers::PeerError;
use bristlecone_peers::table::{Fill, Look, Reader, Table, Writer};
#[cfg(feature = "peers")]
use bristlecone_peers::{fjall::Fjall, lmdb::LmdbTable, redb::Redb, rocksdb::RocksDb};

/// Creates a table of `engine` at `place`.
pub(super) fn open(engine: Engine, place: &Place<'_>) -> Result<Box<dyn Table>, LabError> {
    let dir = place.create(engine)?;
    Ok(match engine {
        Engine::Store => Box::new(Product::open(&dir.join("pairs.db"), place.memory)?),
        #[cfg(feature = "peers")]
        Engine::Lmdb => Box::new(LmdbTable::open(
            &dir,
            place.lmdb_mode(),
            place.map_bytes()?,
        )?),
        #[cfg(feature = "peers")]
        Engine::Redb => Box::new(Redb::open(&dir.join("pairs.redb"), place.cache())?),
        #[cfg(feature = "peers")]
        Engine::Fjall => Box::new(Fjall::open(&dir, place.cache())?),
        #[cfg(feature = "peers")]
        Engine::RocksDb => Box::new(RocksDb::open(&dir, place.cache())?),
        _ => return Err(no_part(engine)),
    })
}

/// The error of an engine that takes no part.
pub(super) fn no_part(engine: Engine) -> LabError {
    let names = ENGINES.map(Engine::name).join(", ");
    LabError::parameter("engine", engine, names)
}

impl Table for Product {
    fn write(&self, fill: &mut Fill<'_>) -> Result<(), PeerError> {
        let mut changes = Changes {
            batch: Batch::new(),
            pairs: &self.pairs,
        };
        fill(&mut changes)?;
        let written = self.pairs.database().write(changes.batch);
        written.map(drop).map_err(failed("commit"))
    }

    fn read(&self, look: &mut Look<'_>) -> Result<(), PeerError> {
        let snapshot = self.pairs.database().snapshot();
        let at = self.pairs.at(&snapshot).map_err(failed("beginning"))?;
        look(&mut View {
            at,
            pairs: &self.pairs,
        })
    }

    fn compact(&mut self) -> Result<(), PeerError> {
        let compacted = self.pairs.database().compact();
        compacted.map(drop).map_err(failed("compacting"))
    }
}

struct Changes<'t> {
    batch: Batch,
    pairs: &'t Keyspace,
}

impl Writer for Changes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        self.batch.insert(self.pairs, key, value);
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), PeerError> {
        self.batch.remove(self.pairs, key);
        Ok(())
    }
}

struct View<'t> {
    at: KeyspaceAt<'t>,
    pairs: &'t Keyspace,
}

impl Reader for View<'_> {
    /// Nothing expires here and no commit is under way: the number is exact.
    fn count(&mut self) -> Result<u64, PeerError> {
        Ok(self.pairs.approximate_len())
    }

    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        let found = self.at.get(key).map_err(failed("get"))?;
        Ok(found.map(|value| visit(&value)).is_some())
    }

    fn range(
        &mut self,
        from: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), PeerError> {
        let scanned = self.at.scan(from.., first(limit, visit));
        scanned.map_err(failed("scan"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_product_as_a_table() {
        let dir = tempfile::tempdir().unwrap();
        let mut product = Product::open(&dir.path().join("store"), None).unwrap();
        bristlecone_peers::table::keeps_its_contract(&mut product).unwrap();
    }
}
