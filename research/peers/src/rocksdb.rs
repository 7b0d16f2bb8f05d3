//! RocksDB, through its C API and the system's shared library (Debian's `librocksdb-dev`).
//!
//! | | chosen | why |
//! | --- | --- | --- |
//! | commit | `WriteOptions.sync` for every write and batch | a call that returns is durable |
//! | keys | 8 bytes, big-endian | the order of the bytes is that of the numbers |
//! | reads | pinned slices, which copy nothing from the block cache | RocksDB's fastest call for a value |
//! | scans | an iterator per call | each call sees the latest commit |
//! | cache, filter | [`CACHE_BYTES`](crate::CACHE_BYTES), or what the caller says; Bloom filters of 10 bits a key | the default of 8 MiB is none, and RocksDB's guide recommends the filter |
//! | everything else | RocksDB's defaults, with background threads and Snappy | an application gets the same |
//!
//! # Concurrency
//! A database and its options are used by any number of threads: `DB` locks by itself, and the
//! options are not changed once it is open.

mod api;
mod table;

use crate::PeerError;
use crate::store::Store;
use api::{Functions, Loaded, loaded};
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};

/// Bits of the Bloom filters a key, as RocksDB's guide recommends.
const FILTER_BITS: f64 = 10.0;

/// A RocksDB database, with one column family.
pub struct RocksDb {
    library: &'static Loaded,
    db: NonNull<api::Db>,
    write: NonNull<api::WriteOptions>,
    read: NonNull<api::ReadOptions>,
}

// SAFETY: 1. `rocksdb_t` and its options may be used and closed by any thread. 2. `&RocksDb` calls
// only functions of `DB` that lock by themselves, and reads options that nobody changes.
unsafe impl Send for RocksDb {}
// SAFETY: As above.
unsafe impl Sync for RocksDb {}

impl fmt::Debug for RocksDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RocksDb").finish_non_exhaustive()
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        let c = &self.library.functions;
        // SAFETY: All three are live, nobody else has them, and the database goes before what it
        // was opened with.
        unsafe {
            (c.rocksdb_close)(self.db.as_ptr());
            (c.rocksdb_readoptions_destroy)(self.read.as_ptr());
            (c.rocksdb_writeoptions_destroy)(self.write.as_ptr());
        }
    }
}

fn error(doing: &'static str, message: impl Into<String>) -> PeerError {
    PeerError {
        peer: "rocksdb",
        doing,
        message: message.into(),
    }
}

/// Returns what RocksDB made, which is null only if memory is used up.
fn made<T>(pointer: *mut T) -> Result<NonNull<T>, PeerError> {
    NonNull::new(pointer).ok_or_else(|| error("opening", "there is no memory left"))
}

/// Turns an error that RocksDB has allocated into one of this crate.
fn check(c: &Functions, doing: &'static str, message: *mut c_char) -> Result<(), PeerError> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: RocksDB sets the pointer to a C string from its allocator, which the caller frees,
    // once.
    let text = unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        (c.rocksdb_free)(message.cast());
        text
    };
    Err(error(doing, text))
}

/// Returns the bytes at a pointer of RocksDB.
///
/// # Safety
/// There are `len` readable bytes at `data`, which do not change while the slice is used. `data`
/// may be null if `len` is 0.
unsafe fn bytes<'a>(data: *const c_char, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: The caller's promise.
    unsafe { std::slice::from_raw_parts(data.cast(), len) }
}

fn pointer(bytes: &[u8]) -> *const c_char {
    bytes.as_ptr().cast()
}

/// Returns the options of a database with a cache of so many bytes.
fn options(c: &Functions, cache: u64) -> Result<NonNull<api::Options>, PeerError> {
    // SAFETY: 1. Every pointer comes from the function that makes such a thing, and is not null.
    // 2. The table's options take the filter policy over; the cache is shared, and so are the
    // table's options once they are set, so what is destroyed here lives on in the options.
    unsafe {
        let options = made((c.rocksdb_options_create)())?;
        (c.rocksdb_options_set_create_if_missing)(options.as_ptr(), 1);
        let table = made((c.rocksdb_block_based_options_create)())?.as_ptr();
        let cache = made((c.rocksdb_cache_create_lru)(cache as usize))?.as_ptr();
        (c.rocksdb_block_based_options_set_block_cache)(table, cache);
        (c.rocksdb_cache_destroy)(cache);
        let filter = made((c.rocksdb_filterpolicy_create_bloom_full)(FILTER_BITS))?.as_ptr();
        (c.rocksdb_block_based_options_set_filter_policy)(table, filter);
        (c.rocksdb_options_set_block_based_table_factory)(options.as_ptr(), table);
        (c.rocksdb_block_based_options_destroy)(table);
        Ok(options)
    }
}

impl RocksDb {
    /// Creates or opens the database in the directory `dir`.
    ///
    /// # Errors
    /// [`PeerError`] with RocksDB's own message, or the name of the package if the system does not
    /// have its library.
    pub fn open(dir: &Path, cache: u64) -> Result<Self, PeerError> {
        let library = loaded().map_err(|message| error("loading", message))?;
        let c = &library.functions;
        let name = CString::new(dir.as_os_str().as_bytes())
            .map_err(|e| error("opening", format!("{}: {e}", dir.display())))?;
        let options = options(c, cache)?;
        let mut message = ptr::null_mut();
        // SAFETY: 1. The options are live, the name is a C string, and the message starts as null.
        // 2. The database copies the options, which are destroyed here and only here.
        let db = unsafe {
            let db = (c.rocksdb_open)(options.as_ptr(), name.as_ptr(), &raw mut message);
            (c.rocksdb_options_destroy)(options.as_ptr());
            db
        };
        check(c, "opening", message)?;
        // SAFETY: The options are made here, changed only here, and destroyed with the database.
        unsafe {
            let write = made((c.rocksdb_writeoptions_create)())?;
            (c.rocksdb_writeoptions_set_sync)(write.as_ptr(), 1);
            Ok(Self {
                library,
                db: made(db)?,
                write,
                read: made((c.rocksdb_readoptions_create)())?,
            })
        }
    }

    /// Returns the library's version, without opening a database.
    ///
    /// # Errors
    /// [`PeerError`] with the name of the package if the system does not have the library.
    pub fn library_version() -> Result<&'static str, PeerError> {
        let library = loaded().map_err(|message| error("loading", message))?;
        Ok(&library.version)
    }

    /// Reads by `read`, which are live options.
    fn get_by(
        &self,
        read: NonNull<api::ReadOptions>,
        key: &[u8],
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, PeerError> {
        let c = &self.library.functions;
        let mut message = ptr::null_mut();
        // SAFETY: Database and options are live, the key is readable for its length, and the
        // message starts as null.
        let pinned = unsafe {
            (c.rocksdb_get_pinned)(
                self.db.as_ptr(),
                read.as_ptr(),
                pointer(key),
                key.len(),
                &raw mut message,
            )
        };
        check(c, "get", message)?;
        if pinned.is_null() {
            return Ok(false);
        }
        // SAFETY: The slice keeps the value as it is until it is destroyed, which happens here
        // and only here; `visit` cannot keep the reference.
        unsafe {
            let mut len = 0;
            let data = (c.rocksdb_pinnableslice_value)(pinned, &raw mut len);
            visit(bytes(data, len));
            (c.rocksdb_pinnableslice_destroy)(pinned);
        }
        Ok(true)
    }

    /// Scans by `read`, which are live options.
    fn scan_by(
        &self,
        read: NonNull<api::ReadOptions>,
        from: &[u8],
        limit: usize,
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), PeerError> {
        let c = &self.library.functions;
        let mut message = ptr::null_mut();
        // SAFETY: 1. Database and options are live. 2. The iterator is made, used and destroyed
        // here, by this thread alone; key and value are asked for only while it is valid, and
        // used before it moves on.
        unsafe {
            let iter = (c.rocksdb_create_iterator)(self.db.as_ptr(), read.as_ptr());
            let iter = made(iter)?.as_ptr();
            (c.rocksdb_iter_seek)(iter, pointer(from), from.len());
            for _ in 0..limit {
                if (c.rocksdb_iter_valid)(iter) == 0 {
                    break;
                }
                let (mut key_len, mut len) = (0, 0);
                let key = bytes((c.rocksdb_iter_key)(iter, &raw mut key_len), key_len);
                let value = bytes((c.rocksdb_iter_value)(iter, &raw mut len), len);
                visit(key, value);
                (c.rocksdb_iter_next)(iter);
            }
            (c.rocksdb_iter_get_error)(iter, &raw mut message);
            (c.rocksdb_iter_destroy)(iter);
        }
        check(c, "scan", message)
    }
}

impl Store for RocksDb {
    fn name(&self) -> &'static str {
        "rocksdb"
    }

    fn version(&self) -> String {
        self.library.version.clone()
    }

    fn setting(&self) -> &'static str {
        "WriteOptions.sync a call; Bloom filters"
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError> {
        let (c, key) = (&self.library.functions, key.to_be_bytes());
        let mut message = ptr::null_mut();
        // SAFETY: Database and options are live until `self` is dropped, and key and value are
        // readable for the lengths that go with them; RocksDB copies both.
        unsafe {
            (c.rocksdb_put)(
                self.db.as_ptr(),
                self.write.as_ptr(),
                pointer(&key),
                key.len(),
                pointer(value),
                value.len(),
                &raw mut message,
            );
        }
        check(c, "put", message)
    }

    fn put_batch(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError> {
        let c = &self.library.functions;
        let mut message = ptr::null_mut();
        // SAFETY: 1. As in `put`. 2. The batch is made, written and destroyed here, by this
        // thread alone.
        unsafe {
            let batch = made((c.rocksdb_writebatch_create)())?.as_ptr();
            for (key, value) in pairs {
                let key = key.to_be_bytes();
                (c.rocksdb_writebatch_put)(
                    batch,
                    pointer(&key),
                    key.len(),
                    pointer(value),
                    value.len(),
                );
            }
            (c.rocksdb_write)(
                self.db.as_ptr(),
                self.write.as_ptr(),
                batch,
                &raw mut message,
            );
            (c.rocksdb_writebatch_destroy)(batch);
        }
        check(c, "batch", message)
    }

    fn get(&self, key: u64, visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        self.get_by(self.read, &key.to_be_bytes(), visit)
    }

    fn scan(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), PeerError> {
        let mut visit = |key: &[u8], value: &[u8]| {
            visit(key.try_into().map_or(0, u64::from_be_bytes), value);
        };
        self.scan_by(self.read, &from.to_be_bytes(), limit, &mut visit)
    }

    fn remove(&self, key: u64) -> Result<(), PeerError> {
        let (c, key) = (&self.library.functions, key.to_be_bytes());
        let mut message = ptr::null_mut();
        // SAFETY: As in `put`.
        unsafe {
            (c.rocksdb_delete)(
                self.db.as_ptr(),
                self.write.as_ptr(),
                pointer(&key),
                key.len(),
                &raw mut message,
            );
        }
        check(c, "delete", message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CACHE_BYTES;
    use crate::store::tests::{answers_as_the_model, or_skip};

    #[test]
    fn as_a_store() {
        let Some(version) = or_skip(RocksDb::library_version()) else {
            return;
        };
        assert!(
            version.starts_with(|c: char| c.is_ascii_digit()),
            "{version}"
        );
        let dir = tempfile::tempdir().unwrap();
        answers_as_the_model(&|| RocksDb::open(dir.path(), CACHE_BYTES));
    }

    #[test]
    fn its_own_message_is_in_an_error() {
        if or_skip(RocksDb::library_version()).is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let _open = RocksDb::open(dir.path(), CACHE_BYTES).unwrap();
        let message = RocksDb::open(dir.path(), CACHE_BYTES)
            .unwrap_err()
            .to_string();
        assert!(message.contains("rocksdb: opening failed"), "{message}");
        assert!(message.contains("lock"), "{message}");
    }
}
