//! SQLite, through its C API and the system's shared library (Debian's `libsqlite3-0`).
//!
//! | | chosen | why |
//! | --- | --- | --- |
//! | commit | `journal_mode=WAL`, `synchronous=FULL`: each transaction syncs the log | a call that returns is durable |
//! | table | `key INTEGER PRIMARY KEY, value BLOB` | the key is the row's number: SQLite's fastest lookup |
//! | keys | the top bit flipped | SQLite's integers are signed; the order stays that of the numbers |
//! | writes | `REPLACE`, one prepared statement a call; a batch is a transaction | one search in the tree |
//! | cache | [`CACHE_BYTES`](crate::CACHE_BYTES), or what the caller says, and as much mapped | the default of 2 MiB is none |
//! | `secure_delete` | off | Debian turns it on: deleted bytes are overwritten, which no other engine does |
//! | everything else | SQLite's defaults, with a checkpoint each 1000 pages | an application gets the same |
//!
//! # Concurrency
//! A connection is used by one thread at a time. Idle ones are on a stack, so that a single thread
//! always gets the same one, whose cache its own writes leave valid. Writers wait for one another
//! on a mutex: SQLite allows one at a time, and would let the others poll.

mod api;

use crate::PeerError;
use crate::store::Store;
use api::{DONE, Functions, OK, ROW, loaded};
use std::ffi::{CStr, CString, c_int};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Milliseconds that a statement waits for a lock, which a checkpoint holds for a moment.
const PATIENCE: c_int = 60_000;

/// A SQLite database with one table.
pub struct Sqlite {
    functions: &'static Functions,
    path: PathBuf,
    cache: u64,
    idle: Mutex<Vec<Connection>>,
    writing: Mutex<()>,
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite").finish_non_exhaustive()
    }
}

/// A connection and its prepared statements, which are dropped in this order.
struct Connection {
    get: Statement,
    scan: Statement,
    put: Statement,
    remove: Statement,
    begin: Statement,
    commit: Statement,
    rollback: Statement,
    db: Db,
}

/// An open connection.
struct Db {
    functions: &'static Functions,
    db: NonNull<api::Db>,
}

/// A prepared statement.
struct Statement {
    functions: &'static Functions,
    statement: NonNull<api::Statement>,
}

// SAFETY: A connection without a mutex of its own, and its statements, may be used by any thread,
// by one at a time. It is not `Sync`.
unsafe impl Send for Connection {}

fn error(doing: &'static str, message: impl Into<String>) -> PeerError {
    PeerError {
        peer: "sqlite",
        doing,
        message: message.into(),
    }
}

/// Returns the row's number of `key`.
fn signed(key: u64) -> i64 {
    (key ^ 1 << 63).cast_signed()
}

fn unsigned(row: i64) -> u64 {
    row.cast_unsigned() ^ 1 << 63
}

impl Db {
    fn open(functions: &'static Functions, path: &Path) -> Result<Self, PeerError> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|e| error("opening", format!("{}: {e}", path.display())))?;
        let flags = api::OPEN_READWRITE | api::OPEN_CREATE | api::OPEN_NOMUTEX;
        let mut db = ptr::null_mut();
        // SAFETY: The name is a C string, and the result a place for one pointer.
        let code =
            unsafe { (functions.sqlite3_open_v2)(name.as_ptr(), &raw mut db, flags, ptr::null()) };
        let db = NonNull::new(db).ok_or_else(|| error("opening", "there is no memory left"))?;
        // Even a failed opening leaves a connection, which has the message and is closed.
        let db = Self { functions, db };
        db.check("opening", code == OK)?;
        // SAFETY: The connection is live.
        unsafe { (functions.sqlite3_busy_timeout)(db.db.as_ptr(), PATIENCE) };
        Ok(db)
    }

    /// Returns the error of the last call unless it did well.
    fn check(&self, doing: &'static str, well: bool) -> Result<(), PeerError> {
        if well {
            return Ok(());
        }
        // SAFETY: The connection is live, and its message is a C string that is copied before the
        // next call.
        let text = unsafe { CStr::from_ptr((self.functions.sqlite3_errmsg)(self.db.as_ptr())) };
        Err(error(doing, text.to_string_lossy()))
    }

    fn prepare(&self, sql: &CStr) -> Result<Statement, PeerError> {
        let (functions, mut statement) = (self.functions, ptr::null_mut());
        // SAFETY: The connection is live, the text is a C string, which -1 announces, and the
        // result a place for one pointer.
        let code = unsafe {
            let (db, sql) = (self.db.as_ptr(), sql.as_ptr());
            (functions.sqlite3_prepare_v2)(db, sql, -1, &raw mut statement, ptr::null_mut())
        };
        self.check("preparing", code == OK)?;
        let statement = NonNull::new(statement).ok_or_else(|| error("preparing", "it is empty"))?;
        Ok(Statement {
            functions,
            statement,
        })
    }

    /// Executes a statement whose parameters are bound. Calls `row` for each row.
    fn run(
        &self,
        doing: &'static str,
        statement: &Statement,
        mut row: impl FnMut(),
    ) -> Result<(), PeerError> {
        let (c, raw) = (self.functions, statement.statement.as_ptr());
        // SAFETY: The statement is live and of this connection, which this thread alone uses.
        let code = unsafe {
            let mut code = (c.sqlite3_step)(raw);
            while code == ROW {
                row();
                code = (c.sqlite3_step)(raw);
            }
            code
        };
        let done = self.check(doing, code == DONE);
        // SAFETY: As above. Resetting ends the statement's transaction; its code repeats that of
        // the step.
        unsafe { (c.sqlite3_reset)(raw) };
        done
    }

    /// Executes a statement without parameters. Returns the number in its last row, if any.
    fn execute(&self, sql: &CStr) -> Result<Option<i64>, PeerError> {
        let (statement, mut number) = (self.prepare(sql)?, None);
        self.run("setting up", &statement, || {
            // SAFETY: The statement has a row.
            number = Some(unsafe { statement.number(0) });
        })?;
        Ok(number)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: The connection is live, and its statements are gone: they are declared before it.
        unsafe { (self.functions.sqlite3_close)(self.db.as_ptr()) };
    }
}

impl Statement {
    /// Binds a number. It fails only if the statement has no such parameter or is executing.
    fn bind(&self, index: c_int, number: i64) -> bool {
        // SAFETY: The statement is live.
        let code =
            unsafe { (self.functions.sqlite3_bind_int64)(self.statement.as_ptr(), index, number) };
        code == OK
    }

    /// Returns the number in `column` of the present row.
    ///
    /// # Safety
    /// The statement has a row.
    unsafe fn number(&self, column: c_int) -> i64 {
        // SAFETY: The caller's promise.
        unsafe { (self.functions.sqlite3_column_int64)(self.statement.as_ptr(), column) }
    }

    /// Returns the blob in `column` of the present row.
    ///
    /// # Safety
    /// The statement has a row. The slice is not used after its next step.
    unsafe fn blob<'a>(&self, column: c_int) -> &'a [u8] {
        let raw = self.statement.as_ptr();
        // SAFETY: The caller's promise. The bytes are asked for after the pointer, as SQLite's
        // manual has it.
        unsafe {
            let data = (self.functions.sqlite3_column_blob)(raw, column);
            let len = (self.functions.sqlite3_column_bytes)(raw, column);
            match usize::try_from(len) {
                // An empty blob has no address.
                Ok(len) if len > 0 && !data.is_null() => {
                    std::slice::from_raw_parts(data.cast(), len)
                }
                _ => &[],
            }
        }
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        // SAFETY: The statement is live, and nobody else has it.
        unsafe { (self.functions.sqlite3_finalize)(self.statement.as_ptr()) };
    }
}

impl Connection {
    fn open(functions: &'static Functions, path: &Path, cache: u64) -> Result<Self, PeerError> {
        let db = Db::open(functions, path)?;
        let kib = cache >> 10;
        for setup in [
            "PRAGMA journal_mode=WAL".to_owned(),
            "PRAGMA synchronous=FULL".to_owned(),
            "PRAGMA secure_delete=OFF".to_owned(),
            format!("PRAGMA cache_size=-{kib}"),
            format!("PRAGMA mmap_size={cache}"),
            "CREATE TABLE IF NOT EXISTS pairs(key INTEGER PRIMARY KEY, value BLOB NOT NULL)"
                .to_owned(),
        ] {
            let setup = CString::new(setup).map_err(|e| error("opening", e.to_string()))?;
            db.execute(&setup)?;
        }
        Ok(Self {
            get: db.prepare(c"SELECT value FROM pairs WHERE key = ?1")?,
            scan: db
                .prepare(c"SELECT key, value FROM pairs WHERE key >= ?1 ORDER BY key LIMIT ?2")?,
            put: db.prepare(c"REPLACE INTO pairs(key, value) VALUES(?1, ?2)")?,
            remove: db.prepare(c"DELETE FROM pairs WHERE key = ?1")?,
            begin: db.prepare(c"BEGIN IMMEDIATE")?,
            commit: db.prepare(c"COMMIT")?,
            rollback: db.prepare(c"ROLLBACK")?,
            db,
        })
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError> {
        let len = c_int::try_from(value.len()).map_err(|e| error("put", e.to_string()))?;
        let (put, data) = (&self.put, value.as_ptr().cast());
        // SAFETY: The value, which has `len` bytes, is not freed by SQLite, and outlives the
        // execution below; nobody executes the statement again before the next value is bound.
        let code = unsafe {
            let functions = self.db.functions;
            (functions.sqlite3_bind_blob)(put.statement.as_ptr(), 2, data, len, None)
        };
        self.db
            .check("put", code == OK && put.bind(1, signed(key)))?;
        self.db.run("put", put, || ())
    }

    fn put_all(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError> {
        self.db.run("batch", &self.begin, || ())?;
        let put = pairs
            .iter()
            .try_for_each(|(key, value)| self.put(*key, value));
        let done = put.and_then(|()| self.db.run("batch", &self.commit, || ()));
        if done.is_err() {
            // The first error is the one to report. SQLite may have rolled back by itself.
            let _ = self.db.run("batch", &self.rollback, || ());
        }
        done
    }
}

impl Sqlite {
    /// Creates or opens the database file at `path`.
    ///
    /// # Errors
    /// [`PeerError`] with SQLite's own message, or the name of the package if the system does not
    /// have its library.
    pub fn open(path: &Path, cache: u64) -> Result<Self, PeerError> {
        let functions = loaded().map_err(|message| error("loading", message))?;
        let first = Connection::open(functions, path, cache)?;
        Ok(Self {
            functions,
            path: path.to_path_buf(),
            cache,
            idle: Mutex::new(vec![first]),
            writing: Mutex::new(()),
        })
    }

    /// Returns the library's version, without opening a database.
    ///
    /// # Errors
    /// [`PeerError`] with the name of the package if the system does not have the library.
    pub fn library_version() -> Result<&'static str, PeerError> {
        let functions = loaded().map_err(|message| error("loading", message))?;
        // SAFETY: The function takes nothing and returns a constant C string of ASCII.
        let text = unsafe { CStr::from_ptr((functions.sqlite3_libversion)()) };
        Ok(text.to_str().unwrap_or("unknown"))
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        // A connection is on the stack only between calls, so a panic leaves the stack whole.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `work` with a connection that nobody else uses meanwhile.
    fn with<R>(
        &self,
        work: impl FnOnce(&Connection) -> Result<R, PeerError>,
    ) -> Result<R, PeerError> {
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => Connection::open(self.functions, &self.path, self.cache)?,
        };
        let result = work(&connection);
        self.idle().push(connection);
        result
    }

    /// The same for a writer, which is the only one meanwhile.
    fn write(
        &self,
        work: impl FnOnce(&Connection) -> Result<(), PeerError>,
    ) -> Result<(), PeerError> {
        let _only = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.with(work)
    }
}

impl Store for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn version(&self) -> String {
        Self::library_version().unwrap_or("unknown").to_owned()
    }

    fn setting(&self) -> &'static str {
        "WAL, synchronous=FULL, a transaction a call"
    }

    fn put(&self, key: u64, value: &[u8]) -> Result<(), PeerError> {
        self.write(|connection| connection.put(key, value))
    }

    fn put_batch(&self, pairs: &[(u64, Vec<u8>)]) -> Result<(), PeerError> {
        self.write(|connection| connection.put_all(pairs))
    }

    fn get(&self, key: u64, visit: &mut dyn FnMut(&[u8])) -> Result<bool, PeerError> {
        self.with(|Connection { get, db, .. }| {
            let mut found = false;
            db.check("get", get.bind(1, signed(key)))?;
            db.run("get", get, || {
                found = true;
                // SAFETY: The statement has a row, and `visit` cannot keep the slice.
                visit(unsafe { get.blob(0) });
            })?;
            Ok(found)
        })
    }

    fn scan(
        &self,
        from: u64,
        limit: usize,
        visit: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<(), PeerError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.with(|Connection { scan, db, .. }| {
            db.check("scan", scan.bind(1, signed(from)) && scan.bind(2, limit))?;
            db.run("scan", scan, || {
                // SAFETY: The statement has a row, and `visit` cannot keep the slice.
                let (row, value) = unsafe { (scan.number(0), scan.blob(1)) };
                visit(unsigned(row), value);
            })
        })
    }

    fn remove(&self, key: u64) -> Result<(), PeerError> {
        self.write(|Connection { remove, db, .. }| {
            db.check("delete", remove.bind(1, signed(key)))?;
            db.run("delete", remove, || ())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CACHE_BYTES;
    use crate::store::tests::{answers_as_the_model, or_skip};

    #[test]
    fn as_a_store() {
        let Some(version) = or_skip(Sqlite::library_version()) else {
            return;
        };
        assert!(version.starts_with("3."), "{version}");
        let dir = tempfile::tempdir().unwrap();
        answers_as_the_model(&|| Sqlite::open(&dir.path().join("sqlite"), CACHE_BYTES));
    }

    #[test]
    fn the_order_of_keys_is_that_of_the_numbers() {
        let keys = [0, 1, u64::MAX >> 1, 1 << 63, u64::MAX];
        assert!(keys.map(signed).is_sorted());
        assert_eq!(keys.map(signed).map(unsigned), keys);
    }

    #[test]
    fn settings_are_those_of_the_table_and_errors_have_sqlites_message() {
        if or_skip(Sqlite::library_version()).is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let sqlite = Sqlite::open(&dir.path().join("sqlite"), CACHE_BYTES).unwrap();
        for (pragma, expected) in [
            (c"PRAGMA synchronous", 2),
            (c"PRAGMA secure_delete", 0),
            (c"PRAGMA mmap_size", CACHE_BYTES.cast_signed()),
        ] {
            let found = sqlite.with(|connection| connection.db.execute(pragma));
            assert_eq!(found.unwrap(), Some(expected), "{pragma:?}");
        }
        assert!(
            dir.path().join("sqlite-wal").exists(),
            "the log of WAL mode"
        );
        let message = Sqlite::open(dir.path(), CACHE_BYTES)
            .unwrap_err()
            .to_string();
        assert!(message.contains("sqlite: opening failed"), "{message}");
    }
}
