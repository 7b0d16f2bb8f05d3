//! The part of RocksDB's C API (`rocksdb/c.h`) that is used, the same since version 5.

use crate::library::{Library, functions};
use std::ffi::{c_char, c_uchar, c_void};
use std::marker::{PhantomData, PhantomPinned};
use std::sync::OnceLock;

/// Declares types that only pointers to are used of.
macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)+) => {
        $($(#[$doc])*
        #[repr(C)]
        pub(in crate::rocksdb) struct $name {
            _nothing: [u8; 0],
            // Neither moved nor shared with threads by itself.
            _marker: PhantomData<(*mut u8, PhantomPinned)>,
        })+
    };
}

opaque! {
    /// `rocksdb_t`
    Db;
    /// `rocksdb_options_t`
    Options;
    /// `rocksdb_block_based_table_options_t`
    TableOptions;
    /// `rocksdb_filterpolicy_t`
    FilterPolicy;
    /// `rocksdb_cache_t`
    Cache;
    /// `rocksdb_writeoptions_t`
    WriteOptions;
    /// `rocksdb_readoptions_t`
    ReadOptions;
    /// `rocksdb_writebatch_t`
    WriteBatch;
    /// `rocksdb_pinnableslice_t`
    Pinned;
    /// `rocksdb_iterator_t`
    Iter;
    /// `rocksdb_snapshot_t`
    Snapshot;
    /// `rocksdb_flushoptions_t`
    FlushOptions;
}

functions! {
    fn rocksdb_free(pointer: *mut c_void);
    fn rocksdb_open(options: *const Options, name: *const c_char, error: *mut *mut c_char) -> *mut Db;
    fn rocksdb_close(db: *mut Db);
    fn rocksdb_options_create() -> *mut Options;
    fn rocksdb_options_destroy(options: *mut Options);
    fn rocksdb_options_set_create_if_missing(options: *mut Options, on: c_uchar);
    fn rocksdb_options_set_block_based_table_factory(options: *mut Options, table: *mut TableOptions);
    fn rocksdb_block_based_options_create() -> *mut TableOptions;
    fn rocksdb_block_based_options_destroy(options: *mut TableOptions);
    fn rocksdb_block_based_options_set_block_cache(options: *mut TableOptions, cache: *mut Cache);
    fn rocksdb_block_based_options_set_filter_policy(options: *mut TableOptions, policy: *mut FilterPolicy);
    fn rocksdb_filterpolicy_create_bloom_full(bits_per_key: f64) -> *mut FilterPolicy;
    fn rocksdb_cache_create_lru(capacity: usize) -> *mut Cache;
    fn rocksdb_cache_destroy(cache: *mut Cache);
    fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
    fn rocksdb_writeoptions_set_sync(options: *mut WriteOptions, on: c_uchar);
    fn rocksdb_readoptions_create() -> *mut ReadOptions;
    fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
    fn rocksdb_put(db: *mut Db, options: *const WriteOptions, key: *const c_char, key_bytes: usize, value: *const c_char, value_bytes: usize, error: *mut *mut c_char);
    fn rocksdb_delete(db: *mut Db, options: *const WriteOptions, key: *const c_char, key_bytes: usize, error: *mut *mut c_char);
    fn rocksdb_write(db: *mut Db, options: *const WriteOptions, batch: *mut WriteBatch, error: *mut *mut c_char);
    fn rocksdb_writebatch_create() -> *mut WriteBatch;
    fn rocksdb_writebatch_destroy(batch: *mut WriteBatch);
    fn rocksdb_writebatch_put(batch: *mut WriteBatch, key: *const c_char, key_bytes: usize, value: *const c_char, value_bytes: usize);
    fn rocksdb_writebatch_delete(batch: *mut WriteBatch, key: *const c_char, key_bytes: usize);
    fn rocksdb_create_snapshot(db: *mut Db) -> *const Snapshot;
    fn rocksdb_release_snapshot(db: *mut Db, snapshot: *const Snapshot);
    fn rocksdb_readoptions_set_snapshot(options: *mut ReadOptions, snapshot: *const Snapshot);
    fn rocksdb_flushoptions_create() -> *mut FlushOptions;
    fn rocksdb_flushoptions_destroy(options: *mut FlushOptions);
    fn rocksdb_flush(db: *mut Db, options: *const FlushOptions, error: *mut *mut c_char);
    fn rocksdb_compact_range(db: *mut Db, from: *const c_char, from_bytes: usize, to: *const c_char, to_bytes: usize);
    fn rocksdb_get_pinned(db: *mut Db, options: *const ReadOptions, key: *const c_char, key_bytes: usize, error: *mut *mut c_char) -> *mut Pinned;
    fn rocksdb_pinnableslice_value(pinned: *const Pinned, bytes: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(pinned: *mut Pinned);
    fn rocksdb_create_iterator(db: *mut Db, options: *const ReadOptions) -> *mut Iter;
    fn rocksdb_iter_destroy(iter: *mut Iter);
    fn rocksdb_iter_seek(iter: *mut Iter, key: *const c_char, key_bytes: usize);
    fn rocksdb_iter_valid(iter: *const Iter) -> c_uchar;
    fn rocksdb_iter_next(iter: *mut Iter);
    fn rocksdb_iter_key(iter: *const Iter, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iter: *const Iter, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iter: *const Iter, error: *mut *mut c_char);
}

/// The loaded library.
pub(super) struct Loaded {
    pub(super) functions: Functions,
    /// Its version, by the name of its file.
    pub(super) version: String,
}

/// Returns the library, loaded once a process.
///
/// # Errors
/// The system does not have it; the message names Debian's package.
pub(super) fn loaded() -> Result<&'static Loaded, String> {
    static LOADED: OnceLock<Result<Loaded, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        // The first name comes with the package for developers, the second one without it.
        let names = ["librocksdb.so", "librocksdb.so.7.8"];
        let library = Library::load(&names, "librocksdb-dev")?;
        // SAFETY: The library is RocksDB, and the declarations are those of its `c.h`: pointers,
        // `size_t` as `usize`, `unsigned char` and `double` as they are.
        let functions = unsafe { Functions::of(&library)? };
        let file = library.file_of(c"rocksdb_open");
        let version = file.as_deref().and_then(version_of);
        Ok(Loaded {
            functions,
            version: version.unwrap_or_else(|| "unknown".to_owned()),
        })
    });
    loaded.as_ref().map_err(Clone::clone)
}

/// Returns `7.8.3` of `.../librocksdb.so.7.8.3`. The C API does not tell its version.
fn version_of(file: &std::path::Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let (_, version) = name.split_once(".so.")?;
    Some(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_the_name_of_the_file() {
        let version = |name: &str| version_of(std::path::Path::new(name));
        let found = version("/usr/lib/x86_64-linux-gnu/librocksdb.so.7.8.3");
        assert_eq!(found.as_deref(), Some("7.8.3"));
        assert_eq!(version("/usr/lib/librocksdb.so"), None);
    }
}
