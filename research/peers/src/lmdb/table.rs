//! LMDB by transactions: keys and values of any bytes.

use super::{Mode, create, failed, open};
use crate::PeerError;
use crate::table::{Fill, Look, Reader, Table, Writer};
use heed::types::Bytes;
use heed::{CompactionOption, Database, Env, RoTxn, RwTxn, WithTls};
use std::ops::Bound;
use std::path::{Path, PathBuf};

type Rows = Database<'static, Bytes, Bytes>;

/// An LMDB environment with one database whose keys are byte strings.
#[derive(Debug)]
pub struct LmdbTable {
    dir: PathBuf,
    mode: Mode,
    map_bytes: usize,
    /// `None` only if opening it again failed.
    opened: Option<(Env<WithTls>, Rows)>,
}

impl LmdbTable {
    /// Creates or opens the environment in the directory `dir`, as
    /// [`Lmdb::open`](super::Lmdb::open) does.
    ///
    /// # Errors
    /// [`PeerError`] with LMDB's own message.
    pub fn open(dir: &Path, mode: Mode, map_bytes: usize) -> Result<Self, PeerError> {
        let mut table = Self {
            dir: dir.to_path_buf(),
            mode,
            map_bytes,
            opened: None,
        };
        table.reopen()?;
        Ok(table)
    }

    fn reopen(&mut self) -> Result<(), PeerError> {
        let env = open(&self.dir, self.mode, self.map_bytes)?;
        let rows = create(&env, self.mode)?;
        self.opened = Some((env, rows));
        Ok(())
    }

    fn failed(&self, doing: &'static str) -> impl Fn(heed::Error) -> PeerError {
        let mode = self.mode;
        move |e| failed(mode, doing, &e)
    }

    fn parts(&self) -> Result<&(Env<WithTls>, Rows), PeerError> {
        self.opened.as_ref().ok_or_else(|| PeerError {
            peer: self.mode.name(),
            doing: "using it",
            message: "it was not opened again after it was compacted".to_owned(),
        })
    }
}

impl Table for LmdbTable {
    fn write(&self, fill: &mut Fill<'_>) -> Result<(), PeerError> {
        let (env, rows) = self.parts()?;
        let mut transaction = env.write_txn().map_err(self.failed("beginning"))?;
        // A transaction that is dropped without a commit changes nothing.
        fill(&mut Changes {
            table: self,
            rows,
            transaction: &mut transaction,
        })?;
        transaction.commit().map_err(self.failed("commit"))
    }

    fn read(&self, look: &mut Look<'_>) -> Result<(), PeerError> {
        let (env, rows) = self.parts()?;
        let transaction = env.read_txn().map_err(self.failed("beginning"))?;
        look(&mut View {
            table: self,
            rows,
            transaction: &transaction,
        })
    }

    /// Replaces the file by a compact copy, which is how LMDB's manual compacts.
    fn compact(&mut self) -> Result<(), PeerError> {
        let (file, copy) = (self.dir.join("data.mdb"), self.dir.join("copy.mdb"));
        let (env, _) = self.parts()?;
        env.copy_to_path(&copy, CompactionOption::Enabled)
            .map_err(self.failed("copying"))?;
        if let Some((env, _)) = self.opened.take() {
            env.prepare_for_closing().wait();
        }
        std::fs::rename(&copy, &file).map_err(|e| self.failed("replacing")(e.into()))?;
        self.reopen()
    }
}

struct Changes<'t, 'e> {
    table: &'t LmdbTable,
    rows: &'t Rows,
    transaction: &'t mut RwTxn<'e>,
}

impl Writer for Changes<'_, '_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        let put = self.rows.put(self.transaction, key, value);
        put.map_err(self.table.failed("put"))
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), PeerError> {
        let removed = self.rows.delete(self.transaction, key);
        removed.map(drop).map_err(self.table.failed("delete"))
    }
}

struct View<'t, 'e> {
    table: &'t LmdbTable,
    rows: &'t Rows,
    transaction: &'t RoTxn<'e, WithTls>,
}

impl Reader for View<'_, '_> {
    fn count(&mut self) -> Result<u64, PeerError> {
        let len = self.rows.len(self.transaction);
        len.map_err(self.table.failed("counting"))
    }

    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        let found = self.rows.get(self.transaction, key);
        Ok(found
            .map_err(self.table.failed("get"))?
            .map(visit)
            .is_some())
    }

    fn range(
        &mut self,
        from: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), PeerError> {
        let failed = self.table.failed("scan");
        let range = (Bound::Included(from), Bound::Unbounded);
        let entries = self.rows.range(self.transaction, &range).map_err(&failed)?;
        for entry in entries.take(limit) {
            let (key, value) = entry.map_err(&failed)?;
            visit(key, value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_a_table() {
        for mode in [Mode::WriteMap, Mode::Write] {
            let dir = tempfile::tempdir().unwrap();
            let mut table = LmdbTable::open(dir.path(), mode, 64 << 20).unwrap();
            crate::table::keeps_its_contract(&mut table).unwrap();
        }
    }
}
