//! LMDB as an embedded store: integer keys, values of any length.

use super::{Lmdb, Mode, word};
use crate::PeerError;
use crate::store::Store;
use std::ops::Bound;

impl Store for Lmdb {
    fn name(&self) -> &'static str {
        "lmdb"
    }

    fn version(&self) -> String {
        let lmdb = heed::lmdb_version();
        let heed = env!("PEERS_HEED_VERSION");
        format!("{}.{}.{}, heed {heed}", lmdb.major, lmdb.minor, lmdb.patch)
    }

    fn setting(&self) -> &'static str {
        match self.mode {
            Mode::WriteMap => "WRITEMAP, a synced transaction a call",
            Mode::Write => "a synced transaction a call",
        }
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError> {
        let failed = self.failed("put");
        let mut transaction = self.env.write_txn().map_err(&failed)?;
        self.pairs
            .put(&mut transaction, &key.to_le_bytes(), value)
            .map_err(&failed)?;
        transaction.commit().map_err(&failed)
    }

    fn put_batch(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError> {
        let failed = self.failed("batch");
        let mut transaction = self.env.write_txn().map_err(&failed)?;
        for (key, value) in pairs {
            self.pairs
                .put(&mut transaction, &key.to_le_bytes(), value)
                .map_err(&failed)?;
        }
        transaction.commit().map_err(&failed)
    }

    fn get(&self, key: u64, visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        let failed = self.failed("get");
        let transaction = self.env.read_txn().map_err(&failed)?;
        let found = self
            .pairs
            .get(&transaction, &key.to_le_bytes())
            .map_err(&failed)?;
        Ok(found.map(visit).is_some())
    }

    fn scan(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), PeerError> {
        let failed = self.failed("scan");
        let transaction = self.env.read_txn().map_err(&failed)?;
        let start = from.to_le_bytes();
        let range = (Bound::Included(start.as_slice()), Bound::Unbounded);
        let entries = self.pairs.range(&transaction, &range).map_err(&failed)?;
        for entry in entries.take(limit) {
            let (key, value) = entry.map_err(&failed)?;
            visit(word(key), value);
        }
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<(), PeerError> {
        let failed = self.failed("delete");
        let mut transaction = self.env.write_txn().map_err(&failed)?;
        self.pairs
            .delete(&mut transaction, &key.to_le_bytes())
            .map_err(&failed)?;
        transaction.commit().map_err(&failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_a_store() {
        for mode in [Mode::WriteMap, Mode::Write] {
            let dir = tempfile::tempdir().unwrap();
            crate::store::tests::answers_as_the_model(&|| Lmdb::open(dir.path(), mode, 64 << 20));
        }
    }
}
