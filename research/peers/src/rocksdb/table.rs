//! RocksDB by transactions: write batches and snapshots.

use super::api::{self, Functions};
use super::{RocksDb, check, made, pointer};
use crate::PeerError;
use crate::table::{Fill, Look, Reader, Table, Writer};
use std::ptr::{self, NonNull};

impl Table for RocksDb {
    fn write(&self, fill: &mut Fill<'_>) -> Result<(), PeerError> {
        let c = &self.library.functions;
        let mut batch = WriteBatch {
            c,
            // SAFETY: The function takes nothing and returns a new batch.
            batch: made(unsafe { (c.rocksdb_writebatch_create)() })?,
        };
        fill(&mut batch)?;
        let mut message = ptr::null_mut();
        // SAFETY: Database, options and batch are live, and the message starts as null.
        unsafe {
            (c.rocksdb_write)(
                self.db.as_ptr(),
                self.write.as_ptr(),
                batch.batch.as_ptr(),
                &raw mut message,
            );
        }
        check(c, "commit", message)
    }

    fn read(&self, look: &mut Look<'_>) -> Result<(), PeerError> {
        look(&mut View::new(self)?)
    }

    fn compact(&mut self) -> Result<(), PeerError> {
        let c = &self.library.functions;
        let mut message = ptr::null_mut();
        // SAFETY: The database and its options are live, the message starts as null, and keys that
        // are null stand for both ends.
        unsafe {
            let options = made((c.rocksdb_flushoptions_create)())?.as_ptr();
            (c.rocksdb_flush)(self.db.as_ptr(), options, &raw mut message);
            (c.rocksdb_flushoptions_destroy)(options);
            check(c, "flushing", message)?;
            (c.rocksdb_compact_range)(self.db.as_ptr(), ptr::null(), 0, ptr::null(), 0);
        }
        Ok(())
    }
}

/// A batch that is freed when it is dropped.
struct WriteBatch<'d> {
    c: &'d Functions,
    batch: NonNull<api::WriteBatch>,
}

impl Drop for WriteBatch<'_> {
    fn drop(&mut self) {
        // SAFETY: The batch is live, and nobody else has it.
        unsafe { (self.c.rocksdb_writebatch_destroy)(self.batch.as_ptr()) };
    }
}

impl Writer for WriteBatch<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), PeerError> {
        // SAFETY: The batch is live and this thread's, and copies key and value, which are
        // readable for the lengths that go with them.
        unsafe {
            (self.c.rocksdb_writebatch_put)(
                self.batch.as_ptr(),
                pointer(key),
                key.len(),
                pointer(value),
                value.len(),
            );
        }
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) -> Result<(), PeerError> {
        // SAFETY: As in `put`.
        unsafe {
            (self.c.rocksdb_writebatch_delete)(self.batch.as_ptr(), pointer(key), key.len());
        }
        Ok(())
    }
}

/// A snapshot, and the options that read it.
struct View<'d> {
    db: &'d RocksDb,
    snapshot: NonNull<api::Snapshot>,
    read: NonNull<api::ReadOptions>,
}

impl<'d> View<'d> {
    fn new(db: &'d RocksDb) -> Result<Self, PeerError> {
        let c = &db.library.functions;
        // SAFETY: 1. The database is live as long as the view. 2. The options are made here and
        // changed only here; they name the snapshot, which is released after them.
        unsafe {
            let read = made((c.rocksdb_readoptions_create)())?;
            let snapshot = made((c.rocksdb_create_snapshot)(db.db.as_ptr()).cast_mut());
            let snapshot = snapshot.inspect_err(|_| {
                (c.rocksdb_readoptions_destroy)(read.as_ptr());
            })?;
            (c.rocksdb_readoptions_set_snapshot)(read.as_ptr(), snapshot.as_ptr());
            Ok(Self { db, snapshot, read })
        }
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        let c = &self.db.library.functions;
        // SAFETY: Both are live, nobody else has them, and the options go before the snapshot that
        // they name.
        unsafe {
            (c.rocksdb_readoptions_destroy)(self.read.as_ptr());
            (c.rocksdb_release_snapshot)(self.db.db.as_ptr(), self.snapshot.as_ptr());
        }
    }
}

impl Reader for View<'_> {
    fn count(&mut self) -> Result<u64, PeerError> {
        let mut count = 0;
        self.range(&[], usize::MAX, &mut |_, _| count += 1)?;
        Ok(count)
    }

    fn get(&mut self, key: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        self.db.get_by(self.read, key, visit)
    }

    fn range(
        &mut self,
        from: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), PeerError> {
        self.db.scan_by(self.read, from, limit, visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::or_skip;

    #[test]
    fn as_a_table() {
        if or_skip(RocksDb::library_version()).is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut table = RocksDb::open(dir.path(), crate::CACHE_BYTES).unwrap();
        crate::table::keeps_its_contract(&mut table).unwrap();
    }
}
