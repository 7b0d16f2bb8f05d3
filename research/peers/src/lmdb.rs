//! LMDB, through `heed`.
//!
//! | | chosen | why |
//! | --- | --- | --- |
//! | commit | one write transaction per call, synced (no `NOSYNC`, `NOMETASYNC`, `MAPASYNC`) | a call that returns is durable |
//! | [`Mode::WriteMap`] | `WRITEMAP` | LMDB's faster mode; stray pointers can then damage it |
//! | keys | `INTEGERKEY` with the machine's own byte order | its fastest comparison |
//! | reads | one read transaction per call | each call sees the latest commit, as an index does |
//! | scans | a cursor per call | the same |

mod store;
mod table;

pub use table::LmdbTable;

use crate::{Peer, PeerError};
use heed::types::Bytes;
use heed::{
    CommitOrAbort, Comparator, Database, Env, EnvFlags, EnvOpenOptions, IntegerComparator, WithTls,
};
use std::ops::Bound;
use std::path::{Path, PathBuf};

#[cfg(not(target_endian = "little"))]
compile_error!("the integer keys handed to LMDB are little-endian");

type Pairs = Database<'static, Bytes, Bytes, IntegerComparator>;

/// LMDB's way to write its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Stores to its writable mapping, and then `msync`.
    WriteMap,
    /// `pwrite`, and then `fdatasync`.
    Write,
}

/// An LMDB environment with one integer-keyed database.
#[derive(Debug)]
pub struct Lmdb {
    env: Env<WithTls>,
    pairs: Pairs,
    mode: Mode,
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::WriteMap => "lmdb",
            Self::Write => "lmdb-nowritemap",
        }
    }
}

fn failed(mode: Mode, doing: &'static str, e: &heed::Error) -> PeerError {
    PeerError {
        peer: mode.name(),
        doing,
        message: e.to_string(),
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

fn open(dir: &Path, mode: Mode, map_bytes: usize) -> Result<Env<WithTls>, PeerError> {
    let flags = match mode {
        Mode::WriteMap => EnvFlags::WRITE_MAP,
        Mode::Write => EnvFlags::empty(),
    };
    let mut options = EnvOpenOptions::new();
    options.map_size(map_bytes).max_readers(64);
    // SAFETY: 1. With `WRITE_MAP`, a stray write through a raw pointer can damage the file; this
    // process writes to the mapping only through LMDB. 2. The environment's file is in a directory
    // that the caller made for this run, so no other process truncates it under the mapping.
    let env = unsafe {
        options.flags(flags);
        options.open(dir)
    };
    env.map_err(|e| failed(mode, "opening", &e))
}

/// Returns the environment's database, whose keys have the order of `C`. It is created if it does
/// not exist.
fn create<C: Comparator + 'static>(
    env: &Env<WithTls>,
    mode: Mode,
) -> Result<Database<'static, Bytes, Bytes, C>, PeerError> {
    let failed = |e: heed::Error| failed(mode, "opening", &e);
    let transaction = env.write_txn().map_err(failed)?;
    let created = env.create_databases_and_commit(transaction, |opener, transaction| {
        opener
            .database_options()
            .types::<Bytes, Bytes>()
            .key_comparator::<C>()
            .create(transaction)
            .map(CommitOrAbort::<_, ()>::Commit)
    });
    Ok(created.map_err(failed)?.unwrap_commit())
}

impl Lmdb {
    /// Creates or opens the environment in the directory `dir`. The directory must exist, and this
    /// process must not have it open already. `map_bytes` is the largest size of the environment.
    ///
    /// # Errors
    /// [`PeerError`] with LMDB's own message.
    pub fn open(dir: &Path, mode: Mode, map_bytes: usize) -> Result<Self, PeerError> {
        let env = open(dir, mode, map_bytes)?;
        let pairs = create(&env, mode)?;
        Ok(Self { env, pairs, mode })
    }

    fn failed(&self, doing: &'static str) -> impl Fn(heed::Error) -> PeerError {
        let mode = self.mode;
        move |e| failed(mode, doing, &e)
    }
}

impl Peer for Lmdb {
    fn name(&self) -> &'static str {
        self.mode.name()
    }

    fn insert(&self, key: u64, value: u64) -> Result<bool, PeerError> {
        let failed = self.failed("insert");
        let mut transaction = self.env.write_txn().map_err(&failed)?;
        let there = self
            .pairs
            .get_or_put(&mut transaction, &key.to_le_bytes(), &value.to_le_bytes())
            .map_err(&failed)?
            .is_some();
        transaction.commit().map_err(&failed)?;
        Ok(!there)
    }

    fn put(&self, key: u64, value: u64) -> Result<(), PeerError> {
        let failed = self.failed("put");
        let mut transaction = self.env.write_txn().map_err(&failed)?;
        self.pairs
            .put(&mut transaction, &key.to_le_bytes(), &value.to_le_bytes())
            .map_err(&failed)?;
        transaction.commit().map_err(&failed)
    }

    fn remove(&self, key: u64) -> Result<bool, PeerError> {
        let failed = self.failed("delete");
        let mut transaction = self.env.write_txn().map_err(&failed)?;
        let there = self
            .pairs
            .delete(&mut transaction, &key.to_le_bytes())
            .map_err(&failed)?;
        transaction.commit().map_err(&failed)?;
        Ok(there)
    }

    fn get(&self, key: u64) -> Result<Option<u64>, PeerError> {
        let failed = self.failed("get");
        let transaction = self.env.read_txn().map_err(&failed)?;
        let value = self
            .pairs
            .get(&transaction, &key.to_le_bytes())
            .map_err(&failed)?
            .map(word);
        Ok(value)
    }

    fn scan(
        &self,
        from: u64,
        limit: usize,
        mut visit: impl FnMut(u64, u64),
    ) -> Result<(), PeerError> {
        let failed = self.failed("scan");
        let transaction = self.env.read_txn().map_err(&failed)?;
        let start = from.to_le_bytes();
        let range = (Bound::Included(start.as_slice()), Bound::Unbounded);
        for pair in self
            .pairs
            .range(&transaction, &range)
            .map_err(&failed)?
            .take(limit)
        {
            let (key, value) = pair.map_err(&failed)?;
            visit(word(key), word(value));
        }
        Ok(())
    }

    fn multi_get(&self, keys: &[u64], out: &mut Vec<Option<u64>>) -> Result<(), PeerError> {
        let failed = self.failed("get");
        out.clear();
        let transaction = self.env.read_txn().map_err(&failed)?;
        for key in keys {
            let value = self
                .pairs
                .get(&transaction, &key.to_le_bytes())
                .map_err(&failed)?;
            out.push(value.map(word));
        }
        Ok(())
    }

    fn multi_insert(&self, pairs: &[(u64, u64)]) -> Result<u64, PeerError> {
        let failed = self.failed("batch insert");
        let mut transaction = self.env.write_txn().map_err(&failed)?;
        let mut added = 0;
        for (key, value) in pairs {
            let there = self
                .pairs
                .get_or_put(&mut transaction, &key.to_le_bytes(), &value.to_le_bytes())
                .map_err(&failed)?
                .is_some();
            added += u64::from(!there);
        }
        transaction.commit().map_err(&failed)?;
        Ok(added)
    }

    fn stored_bytes(&self) -> Result<u64, PeerError> {
        let failed = self.failed("counting pages");
        let transaction = self.env.read_txn().map_err(&failed)?;
        let stat = self.pairs.stat(&transaction).map_err(&failed)?;
        let pages = stat.branch_pages + stat.leaf_pages + stat.overflow_pages;
        Ok(pages as u64 * u64::from(stat.page_size))
    }

    fn path(&self) -> PathBuf {
        self.env.path().to_path_buf()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps_its_contract(mode: Mode) {
        let dir = tempfile::tempdir().unwrap();
        let peer = Lmdb::open(dir.path(), mode, 64 << 20).unwrap();
        // As little-endian strings, 256 sorts before 1.
        for key in [256, 1, u64::MAX, 7, 0] {
            assert!(peer.insert(key, key ^ 5).unwrap());
        }
        assert!(!peer.insert(7, 0).unwrap(), "an insert never replaces");
        assert_eq!(peer.get(7).unwrap(), Some(7 ^ 5));
        peer.put(7, 70).unwrap();
        let mut out = vec![Some(1)];
        peer.multi_get(&[7, 8, 0], &mut out).unwrap();
        assert_eq!(out, [Some(70), None, Some(5)]);
        assert_eq!(peer.multi_insert(&[(8, 80), (7, 1)]).unwrap(), 1);
        let mut seen = Vec::new();
        peer.scan(1, 4, |k, v| seen.push((k, v))).unwrap();
        assert_eq!(seen, [(1, 4), (7, 70), (8, 80), (256, 261)]);
        assert!(peer.remove(7).unwrap());
        assert!(!peer.remove(7).unwrap());
        assert!(peer.stored_bytes().unwrap() >= 4096);
        assert_eq!(
            peer.path().canonicalize().unwrap(),
            dir.path().canonicalize().unwrap()
        );
        drop(peer);
        let peer = Lmdb::open(dir.path(), mode, 64 << 20).unwrap();
        assert_eq!(
            peer.get(8).unwrap(),
            Some(80),
            "what was committed is there after reopening"
        );
        assert_eq!(peer.get(7).unwrap(), None);
    }

    #[test]
    fn with_writemap() {
        keeps_its_contract(Mode::WriteMap);
    }

    #[test]
    fn without_writemap() {
        keeps_its_contract(Mode::Write);
    }
}
