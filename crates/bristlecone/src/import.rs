//! Imports from redb and LMDB. Feature `import`.
//!
//! | from | function | imports |
//! | --- | --- | --- |
//! | redb, one table | [`redb_table`] | keys and values of bytes or text |
//! | redb | [`redb_tables`] | every table, into the keyspace of its name |
//! | LMDB, one database | [`lmdb_database`] | keys and values as they are stored |
//! | LMDB | [`lmdb_databases`] | every named database, into the keyspace of its name |
//!
//! The source is only read. Imported entries are durable when a function returns; those that a
//! keyspace had before stay, unless an imported one has the same key. An import that fails has
//! imported a part, and can be run again.
//!
//! Keys are copied byte by byte. Their order stays, unless the source compares them otherwise:
//! LMDB's integer keys, redb's types other than bytes and text.
//!
//! # Examples
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let old = dir.path().join("old.redb");
//! use redb::TableDefinition;
//!
//! # let source = redb::Database::create(&old)?;
//! # let write = source.begin_write()?;
//! # write.open_table(TableDefinition::<&str, &[u8]>::new("orders"))?.insert("17", &b"packed"[..])?;
//! # write.commit()?;
//! # drop(source);
//! let db = bristlecone::Database::open(dir.path().join("new.db"))?;
//! let imported = bristlecone::import::redb_tables(&old, &db)?;
//! assert_eq!(imported["orders"], 1);
//! assert_eq!(db.keyspace("orders")?.get("17")?.expect("it was imported"), "packed");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::{Batch, Database, Error, Keyspace, Result};
use heed::types::Bytes;
use heed::{CommitOrAbort, DatabaseOpener, EnvFlags, EnvOpenOptions, RoTxn, WithTls};
use redb::{
    DatabaseError, Key, ReadOnlyDatabase, ReadTransaction, ReadableDatabase, ReadableTable,
    StorageError, TableDefinition, TableError, TableHandle, Value,
};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Entries that are committed together.
const AT_ONCE: usize = 1024;
/// Their bytes, at most, but for one entry that has more.
const AT_ONCE_BYTES: usize = 4 << 20;
/// Most named databases that an LMDB environment may have.
const LMDB_DATABASES: u32 = 4096;

/// Writes entries in batches that are not durable one by one.
struct Writer<'k> {
    into: &'k Keyspace,
    deferred: Database,
    batch: Batch,
    bytes: usize,
    entries: u64,
}

impl<'k> Writer<'k> {
    fn new(into: &'k Keyspace) -> Self {
        Self {
            into,
            deferred: into.database().deferred(),
            batch: Batch::new(),
            bytes: 0,
            entries: 0,
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.batch.insert(self.into, key, value);
        self.bytes += key.len() + value.len();
        self.entries += 1;
        if self.batch.len() >= AT_ONCE || self.bytes >= AT_ONCE_BYTES {
            self.bytes = 0;
            self.deferred.write(std::mem::take(&mut self.batch))?;
        }
        Ok(())
    }

    /// Returns how many entries were written, which are durable by then.
    fn finish(self) -> Result<u64> {
        self.deferred.write(self.batch)?;
        self.deferred.flush()?;
        Ok(self.entries)
    }
}

fn failed(
    path: &Path,
    what: &str,
    e: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Error {
    Error::io(format!("{}: {what}", path.display()), io::Error::other(e))
}

fn no_such(path: &Path, what: &str) -> Error {
    Error::not_found(format!("{}: there is no {what}", path.display()))
}

fn open_redb(path: &Path) -> Result<ReadTransaction> {
    let opened = ReadOnlyDatabase::open(path).map_err(|e| match e {
        // Redb calls a file that is not its own invalid data.
        DatabaseError::Storage(StorageError::Io(e)) if e.kind() != io::ErrorKind::InvalidData => {
            Error::io(format!("{}: opening it as redb's", path.display()), e)
        }
        e => Error::not_a_database(format!("{}: opening it as redb's: {e}", path.display())),
    })?;
    opened.begin_read().map_err(|e| failed(path, "reading", e))
}

/// Imports one table of a redb database into a keyspace. Its keys and values are `&[u8]` or `&str`
/// each. Returns how many entries there were.
///
/// # Errors
/// [`NotFound`](crate::ErrorKind::NotFound) if there is no such file or table,
/// [`NotADatabase`](crate::ErrorKind::NotADatabase),
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the table has other types, or something too
/// long for a [`Keyspace`]; [`Io`](crate::ErrorKind::Io), and those of every write.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// # use redb::TableDefinition;
/// # let old = dir.path().join("old.redb");
/// # let source = redb::Database::create(&old)?;
/// # let write = source.begin_write()?;
/// # write.open_table(TableDefinition::<&str, &[u8]>::new("orders"))?.insert("17", &b"packed"[..])?;
/// # write.commit()?;
/// # drop(source);
/// use bristlecone::import;
///
/// let orders = db.keyspace("orders of 2025")?;
/// assert_eq!(import::redb_table(&old, "orders", &orders)?, 1);
/// assert_eq!(orders.get("17")?.expect("it was imported"), "packed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn redb_table(path: impl AsRef<Path>, table: &str, into: &Keyspace) -> Result<u64> {
    let path = path.as_ref();
    copy_table(path, &open_redb(path)?, table, into)
}

/// Imports every table of a redb database into the keyspace of its name. Returns how many entries
/// each had.
///
/// # Errors
/// As [`redb_table`].
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// # use redb::TableDefinition;
/// # let old = dir.path().join("old.redb");
/// # let source = redb::Database::create(&old)?;
/// # let write = source.begin_write()?;
/// # write.open_table(TableDefinition::<&str, &[u8]>::new("orders"))?.insert("17", &b"packed"[..])?;
/// # write.commit()?;
/// # drop(source);
/// let imported = bristlecone::import::redb_tables(&old, &db)?;
/// assert_eq!(imported["orders"], 1);
/// assert!(db.keyspace("orders")?.contains_key("17")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn redb_tables(path: impl AsRef<Path>, into: &Database) -> Result<BTreeMap<String, u64>> {
    let path = path.as_ref();
    let from = open_redb(path)?;
    let tables = from.list_tables();
    let tables = tables.map_err(|e| failed(path, "listing its tables", e))?;
    let import = |table: &str| copy_table(path, &from, table, &into.keyspace(table)?);
    tables
        .map(|table| Ok((table.name().to_owned(), import(table.name())?)))
        .collect()
}

/// Copies a table, with the first types of these that it has.
fn copy_table(path: &Path, from: &ReadTransaction, table: &str, into: &Keyspace) -> Result<u64> {
    let none = || no_such(path, &format!("table {table:?}"));
    let copies = [
        copy_typed::<&[u8], &[u8]>,
        copy_typed::<&str, &[u8]>,
        copy_typed::<&[u8], &str>,
        copy_typed::<&str, &str>,
    ];
    for copy in copies {
        match copy(path, from, table, into) {
            Err(TableError::TableTypeMismatch { .. }) => {}
            Err(TableError::TableDoesNotExist(_)) => return Err(none()),
            Err(e) => return Err(failed(path, &format!("opening table {table:?}"), e)),
            Ok(copied) => return copied,
        }
    }
    Err(Error::invalid(format!(
        "{}: the keys and values of table {table:?} are not bytes or text; copy it with redb's own types",
        path.display()
    )))
}

/// Copies a table of these types. The outer error is that of opening it so.
fn copy_typed<K: Key + 'static, V: Value + 'static>(
    path: &Path,
    from: &ReadTransaction,
    table: &str,
    into: &Keyspace,
) -> Result<Result<u64>, TableError> {
    let opened = from.open_table(TableDefinition::<K, V>::new(table))?;
    let reading = |e| failed(path, &format!("reading table {table:?}"), e);
    let copy = || {
        let mut writer = Writer::new(into);
        for entry in opened.iter().map_err(reading)? {
            let (key, value) = entry.map_err(reading)?;
            let (key, value) = (key.value(), value.value());
            writer.put(K::as_bytes(&key).as_ref(), V::as_bytes(&value).as_ref())?;
        }
        writer.finish()
    };
    Ok(copy())
}

/// Imports one database of an LMDB environment, which is a folder or, with `MDB_NOSUBDIR`, a file,
/// into a keyspace. `None` is the unnamed database; the names of the others, which it has among its
/// keys, are left out. Nobody writes to the environment meanwhile. Returns how many entries there
/// were.
///
/// # Errors
/// [`NotFound`](crate::ErrorKind::NotFound) if there is no such environment or database,
/// [`InvalidInput`](crate::ErrorKind::InvalidInput) if a key has several values (`MDB_DUPSORT`), or
/// something is too long for a [`Keyspace`]; [`Io`](crate::ErrorKind::Io), and those of every
/// write.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// # use heed::types::Bytes;
/// # let old = dir.path().join("old.lmdb");
/// # std::fs::create_dir(&old)?;
/// # // SAFETY: nobody else has the new folder open.
/// # let source = unsafe { heed::EnvOpenOptions::new().max_dbs(1).open(&old)? };
/// # let write = source.write_txn()?;
/// # let made = source.create_databases_and_commit(write, |opener, write| {
/// #     let orders = opener.create_database::<Bytes, Bytes>(write, Some("orders"))?;
/// #     Ok::<_, heed::Error>(heed::CommitOrAbort::<_, ()>::Commit(orders))
/// # })?;
/// # let mut write = source.write_txn()?;
/// # made.unwrap_commit().put(&mut write, b"17", b"packed")?;
/// # write.commit()?;
/// # drop(source);
/// use bristlecone::import;
///
/// let orders = db.keyspace("orders of 2025")?;
/// assert_eq!(import::lmdb_database(&old, Some("orders"), &orders)?, 1);
/// assert_eq!(orders.get("17")?.expect("it was imported"), "packed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn lmdb_database(path: impl AsRef<Path>, name: Option<&str>, into: &Keyspace) -> Result<u64> {
    let path = path.as_ref();
    with_lmdb(path, |opener, transaction| {
        copy_database(path, opener, transaction, name, into)
    })
}

/// Imports every named database of an LMDB environment into the keyspace of its name. Returns how
/// many entries each had.
///
/// # Errors
/// As [`lmdb_database`].
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// # use heed::types::Bytes;
/// # let old = dir.path().join("old.lmdb");
/// # std::fs::create_dir(&old)?;
/// # // SAFETY: nobody else has the new folder open.
/// # let source = unsafe { heed::EnvOpenOptions::new().max_dbs(1).open(&old)? };
/// # let write = source.write_txn()?;
/// # let made = source.create_databases_and_commit(write, |opener, write| {
/// #     let orders = opener.create_database::<Bytes, Bytes>(write, Some("orders"))?;
/// #     Ok::<_, heed::Error>(heed::CommitOrAbort::<_, ()>::Commit(orders))
/// # })?;
/// # let mut write = source.write_txn()?;
/// # made.unwrap_commit().put(&mut write, b"17", b"packed")?;
/// # write.commit()?;
/// # drop(source);
/// let imported = bristlecone::import::lmdb_databases(&old, &db)?;
/// assert_eq!(imported["orders"], 1);
/// assert!(db.keyspace("orders")?.contains_key("17")?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn lmdb_databases(path: impl AsRef<Path>, into: &Database) -> Result<BTreeMap<String, u64>> {
    let path = path.as_ref();
    with_lmdb(path, |opener, transaction| {
        let mut imported = BTreeMap::new();
        for name in database_names(path, opener, transaction)? {
            let keyspace = into.keyspace(&name)?;
            let entries = copy_database(path, opener, transaction, Some(&name), &keyspace)?;
            imported.insert(name, entries);
        }
        Ok(imported)
    })
}

type Opener<'e> = DatabaseOpener<'e, WithTls>;
type Transaction<'e> = RoTxn<'e, WithTls>;
type Pairs<'e> = heed::Database<'e, Bytes, Bytes>;

/// Calls `f` with a reading transaction of an environment.
fn with_lmdb<R>(
    path: &Path,
    f: impl FnOnce(&Opener<'_>, &Transaction<'_>) -> Result<R>,
) -> Result<R> {
    let reading = |e: heed::Error| match e {
        heed::Error::Io(e) => Error::io(format!("{}: opening it as LMDB's", path.display()), e),
        e => Error::not_a_database(format!("{}: opening it as LMDB's: {e}", path.display())),
    };
    let mut options = EnvOpenOptions::new();
    options.max_dbs(LMDB_DATABASES);
    let mut flags = EnvFlags::READ_ONLY;
    if path.is_file() {
        flags |= EnvFlags::NO_SUB_DIR;
    }
    // SAFETY: 1. neither flag is one that LMDB calls unsafe; 2. the mapping is read-only, and the
    // caller of the import sees to it that nobody writes to or cuts off the file meanwhile, as its
    // documentation asks; 3. it is closed before this returns.
    let env = unsafe {
        options.flags(flags);
        options.open(path)
    }
    .map_err(reading)?;
    let transaction = env.read_txn().map_err(reading)?;
    let done = env.open_databases_and_commit(transaction, |opener, transaction| {
        let done = f(opener, transaction);
        Ok(CommitOrAbort::<Option<Pairs<'_>>, _>::Abort(done))
    });
    match done.map_err(reading)? {
        CommitOrAbort::Abort(done) => done,
        CommitOrAbort::Commit(_) => Err(no_such(path, "result")),
    }
}

/// The names of the databases of an environment: keys of the unnamed one that lead to a database.
fn database_names(
    path: &Path,
    opener: &Opener<'_>,
    transaction: &Transaction<'_>,
) -> Result<Vec<String>> {
    let reading = |e| failed(path, "listing its databases", e);
    let Some(unnamed) = opener
        .open_database::<Bytes, Bytes>(transaction, None)
        .map_err(reading)?
    else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    for entry in unnamed.iter(transaction).map_err(reading)? {
        let (key, _) = entry.map_err(reading)?;
        if let Ok(name) = std::str::from_utf8(key)
            && is_database(opener, transaction, name)
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Whether a key of the unnamed database leads to a database: LMDB refuses to open another one as
/// such.
fn is_database(opener: &Opener<'_>, transaction: &Transaction<'_>, name: &str) -> bool {
    let opened = opener.open_database::<Bytes, Bytes>(transaction, Some(name));
    !name.contains('\0') && matches!(opened, Ok(Some(_)))
}

fn copy_database(
    path: &Path,
    opener: &Opener<'_>,
    transaction: &Transaction<'_>,
    name: Option<&str>,
    into: &Keyspace,
) -> Result<u64> {
    let what = name.map_or("unnamed database".into(), |name| {
        format!("database {name:?}")
    });
    let reading = |e| failed(path, &format!("reading {what}"), e);
    let opened = opener.open_database::<Bytes, Bytes>(transaction, name);
    let Some(pairs) = opened.map_err(reading)? else {
        return Err(no_such(path, &what));
    };
    let databases = match name {
        Some(_) => Vec::new(),
        None => database_names(path, opener, transaction)?,
    };
    let mut writer = Writer::new(into);
    let mut last: Option<&[u8]> = None;
    for entry in pairs.iter(transaction).map_err(reading)? {
        let (key, value) = entry.map_err(reading)?;
        if last == Some(key) {
            return Err(Error::invalid(format!(
                "{}: key \"{}\" of {what} has several values, which a keyspace has no place for",
                path.display(),
                key.escape_ascii()
            )));
        }
        last = Some(key);
        if !databases.iter().any(|name| name.as_bytes() == key) {
            writer.put(key, value)?;
        }
    }
    writer.finish()
}
