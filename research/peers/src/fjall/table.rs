//! fjall by transactions: batches and snapshots of one keyspace.

use super::{Fjall, failed};
use crate::PeerError;
use crate::table::{Fill, Look, Reader, Table, Writer};
use fjall::{Keyspace, OwnedWriteBatch, PersistMode, Readable, Snapshot};

impl Table for Fjall {
    fn write(&self, fill: &mut Fill<'_>) -> Result<(), PeerError> {
        let mut changes = Changes {
            batch: self.db.batch().durability(Some(PersistMode::SyncData)),
            rows: &self.rows,
        };
        fill(&mut changes)?;
        changes.batch.commit().map_err(failed("commit"))
    }

    fn read(&self, look: &mut Look<'_>) -> Result<(), PeerError> {
        look(&mut View {
            snapshot: self.db.snapshot(),
            rows: &self.rows,
        })
    }

    fn compact(&mut self) -> Result<(), PeerError> {
        let rows = &self.rows;
        rows.rotate_memtable_and_wait()
            .map_err(failed("compacting"))?;
        rows.major_compact().map_err(failed("compacting"))
    }
}

struct Changes<'t> {
    batch: OwnedWriteBatch,
    rows: &'t Keyspace,
}

impl Writer for Changes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        self.batch.insert(self.rows, key, value);
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), PeerError> {
        self.batch.remove(self.rows, key);
        Ok(())
    }
}

struct View<'t> {
    snapshot: Snapshot,
    rows: &'t Keyspace,
}

impl Reader for View<'_> {
    fn count(&mut self) -> Result<u64, PeerError> {
        let count = self.snapshot.len(self.rows).map_err(failed("counting"))?;
        Ok(count as u64)
    }

    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        let found = self.snapshot.get(self.rows, key).map_err(failed("get"))?;
        Ok(found.map(|value| visit(&value)).is_some())
    }

    fn range(
        &mut self,
        from: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), PeerError> {
        for entry in self.snapshot.range(self.rows, from..).take(limit) {
            let (key, value) = entry.into_inner().map_err(failed("scan"))?;
            visit(&key, &value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_a_table() {
        let dir = tempfile::tempdir().unwrap();
        let mut table = Fjall::open(dir.path(), crate::CACHE_BYTES).unwrap();
        crate::table::keeps_its_contract(&mut table).unwrap();
    }
}
