//! The part of SQLite's C API (`sqlite3.h`) that is used, the same since version 3.5.

use crate::library::{Library, functions};
use std::ffi::{c_char, c_int, c_void};
use std::marker::{PhantomData, PhantomPinned};
use std::sync::OnceLock;

/// `sqlite3`, a connection. Only pointers to it are used.
#[repr(C)]
pub(super) struct Db {
    _nothing: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

/// `sqlite3_stmt`, a prepared statement. Only pointers to it are used.
#[repr(C)]
pub(super) struct Statement {
    _nothing: [u8; 0],
    _marker: PhantomData<(*mut u8, PhantomPinned)>,
}

pub(super) const OK: c_int = 0;
pub(super) const ROW: c_int = 100;
pub(super) const DONE: c_int = 101;
pub(super) const OPEN_READWRITE: c_int = 0x2;
pub(super) const OPEN_CREATE: c_int = 0x4;
/// The connection is used by one thread at a time, and so has no mutex of its own.
pub(super) const OPEN_NOMUTEX: c_int = 0x8000;

/// What frees a bound value: `SQLITE_STATIC`, which is null, for one that the caller keeps.
pub(super) type Destructor = Option<unsafe extern "C" fn(*mut c_void)>;

functions! {
    fn sqlite3_libversion() -> *const c_char;
    fn sqlite3_open_v2(file: *const c_char, db: *mut *mut Db, flags: c_int, vfs: *const c_char) -> c_int;
    fn sqlite3_close(db: *mut Db) -> c_int;
    fn sqlite3_busy_timeout(db: *mut Db, milliseconds: c_int) -> c_int;
    fn sqlite3_errmsg(db: *mut Db) -> *const c_char;
    fn sqlite3_prepare_v2(db: *mut Db, sql: *const c_char, bytes: c_int, statement: *mut *mut Statement, tail: *mut *const c_char) -> c_int;
    fn sqlite3_finalize(statement: *mut Statement) -> c_int;
    fn sqlite3_bind_int64(statement: *mut Statement, index: c_int, value: i64) -> c_int;
    fn sqlite3_bind_blob(statement: *mut Statement, index: c_int, value: *const c_void, bytes: c_int, free: Destructor) -> c_int;
    fn sqlite3_step(statement: *mut Statement) -> c_int;
    fn sqlite3_reset(statement: *mut Statement) -> c_int;
    fn sqlite3_column_int64(statement: *mut Statement, column: c_int) -> i64;
    fn sqlite3_column_blob(statement: *mut Statement, column: c_int) -> *const c_void;
    fn sqlite3_column_bytes(statement: *mut Statement, column: c_int) -> c_int;
}

/// Returns the library's functions, loaded once a process.
///
/// # Errors
/// The system does not have it; the message names Debian's package.
pub(super) fn loaded() -> Result<&'static Functions, String> {
    static LOADED: OnceLock<Result<Functions, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        let library = Library::load(&["libsqlite3.so.0"], "libsqlite3-0")?;
        // SAFETY: The library is SQLite, and the declarations are those of its `sqlite3.h`, with
        // `sqlite3_int64` as `i64` and `int` as `c_int`.
        unsafe { Functions::of(&library) }
    });
    loaded.as_ref().map_err(Clone::clone)
}
