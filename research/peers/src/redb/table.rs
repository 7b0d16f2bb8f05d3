//! redb by transactions.

use super::{Redb, failed};
use crate::PeerError;
use crate::table::{Fill, Look, Reader, Table, Writer};
use redb::{
    ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata, TableDefinition,
};

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("rows");

impl Table for Redb {
    fn write(&self, fill: &mut Fill<'_>) -> Result<(), PeerError> {
        let transaction = self.db.begin_write().map_err(failed("beginning"))?;
        let table = transaction.open_table(ROWS).map_err(failed("beginning"))?;
        // A transaction that is dropped without a commit changes nothing.
        let mut changes = Changes(table);
        fill(&mut changes)?;
        drop(changes);
        transaction.commit().map_err(failed("commit"))
    }

    fn read(&self, look: &mut Look<'_>) -> Result<(), PeerError> {
        let transaction = self.db.begin_read().map_err(failed("beginning"))?;
        let table = transaction.open_table(ROWS).map_err(failed("beginning"))?;
        look(&mut View(table))
    }

    fn compact(&mut self) -> Result<(), PeerError> {
        while self.db.compact().map_err(failed("compacting"))? {}
        Ok(())
    }
}

struct Changes<'t>(redb::Table<'t, &'static [u8], &'static [u8]>);

impl Writer for Changes<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        let put = self.0.insert(key, value);
        put.map(drop).map_err(failed("put"))
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), PeerError> {
        let removed = self.0.remove(key);
        removed.map(drop).map_err(failed("delete"))
    }
}

struct View(ReadOnlyTable<&'static [u8], &'static [u8]>);

impl Reader for View {
    fn count(&mut self) -> Result<u64, PeerError> {
        self.0.len().map_err(failed("counting"))
    }

    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        let found = ReadableTable::get(&self.0, key).map_err(failed("get"))?;
        Ok(found.map(|value| visit(value.value())).is_some())
    }

    fn range(
        &mut self,
        from: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), PeerError> {
        let entries = ReadableTable::range::<&[u8]>(&self.0, from..).map_err(failed("scan"))?;
        for entry in entries.take(limit) {
            let (key, value) = entry.map_err(failed("scan"))?;
            visit(key.value(), value.value());
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
        let mut table = Redb::open(&dir.path().join("redb"), crate::CACHE_BYTES).unwrap();
        crate::table::keeps_its_contract(&mut table).unwrap();
    }
}
