//! Upkeep of an open database: backups, checks, statistics, closing.

use super::{Core, Database};
use crate::error::{Cause, OrError};
use crate::{Error, Options, Result};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::media::journal::journal_path;
use bristlecone_pmem::pool::CompactReport;
use bristlecone_pmem::{MediumKind, Pool};
use bristlecone_store::{
    ArchiveStats, BackupReport, CheckReport, CloseError, RestoredReport, Store, StoreRecovery,
    StoreStats, Until,
};
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::path::Path;
use std::sync::Arc;

impl Database {
    /// Copies the database, as it is at one commit, to a new file while others go on reading and
    /// writing. The copy is a stream, from which [`restore`](Self::restore) makes a database again.
    ///
    /// # Errors
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists), and those of writing a file; no file is
    /// left then.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// db.keyspace("orders")?.insert("17", "packed")?;
    /// let report = db.backup_to(dir.path().join("orders.backup"))?;
    /// assert_eq!(report.entries, 1);
    ///
    /// let copy = bristlecone::Database::restore(dir.path().join("orders.backup"), dir.path().join("copy.db"))?;
    /// assert!(copy.keyspace("orders")?.contains_key("17")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backup_to(&self, path: impl AsRef<Path>) -> Result<BackupReport> {
        let path = path.as_ref();
        let failed = |e| Error::io(format!("{}: writing the backup", path.display()), e);
        let file = File::create_new(path).map_err(failed)?;
        let written = (|| {
            let mut out = BufWriter::new(&file);
            let report = self.store().backup(&mut out).or_error()?;
            io::Write::flush(&mut out).map_err(failed)?;
            file.sync_all().map_err(failed)?;
            // Its name is durable with the directory.
            let parent = path
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            let dir = File::open(parent.unwrap_or(Path::new(".")));
            dir.and_then(|dir| dir.sync_all()).map_err(failed)?;
            Ok(report)
        })();
        if written.is_err() {
            // Half a backup is of no use; the first error is the one that is reported.
            let _ = std::fs::remove_file(path);
        }
        written
    }

    /// Makes a database at `path`, where there is no file yet, from what
    /// [`backup_to`](Self::backup_to) wrote, and opens it.
    ///
    /// # Errors
    /// [`NotADatabase`](crate::ErrorKind::NotADatabase) if it is no backup,
    /// [`Damaged`](crate::ErrorKind::Damaged), [`AlreadyExists`](crate::ErrorKind::AlreadyExists);
    /// no database is left then.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// # use bristlecone::Database;
    /// db.keyspace("orders")?.insert("17", "packed")?;
    /// db.backup_to(dir.path().join("backup"))?;
    ///
    /// let copy = Database::restore(dir.path().join("backup"), dir.path().join("copy.db"))?;
    /// assert!(copy.keyspace("orders")?.contains_key("17")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore(backup: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Self> {
        let (backup, path) = (backup.as_ref(), path.as_ref());
        let failed = |e| Error::io(format!("{}: reading the backup", backup.display()), e);
        let mut from = BufReader::new(File::open(backup).map_err(failed)?);
        Options::default().restore(&mut from, path)
    }

    /// Makes a database at `path`, where there is no file yet, of an [archive](Options::archive):
    /// as the archived one was at a moment. Returns it, and the commit that it ends with.
    ///
    /// All that is read is compared with its checksums before anything is written.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound) if the archive does not lead there, as at its end
    /// if a file is damaged; [`NotADatabase`](crate::ErrorKind::NotADatabase) if it is none;
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists). No database is left then.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::{ArchiveOptions, Database, Until};
    ///
    /// let archive = dir.path().join("archive");
    /// let options = Database::builder().archive(Some(ArchiveOptions::new(&archive)));
    /// let db = options.open(dir.path().join("orders.db"))?;
    /// db.keyspace("orders")?.insert("17", "packed")?;
    /// # while db.archive_stats().is_none_or(|stats| stats.archived.is_none()) {}
    /// db.close()?;
    ///
    /// let copy = dir.path().join("copy.db");
    /// let (copy, report) = Database::restore_archive(&archive, Until::End, copy)?;
    /// assert!(copy.keyspace("orders")?.contains_key("17")?);
    /// assert!(report.timestamp > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn restore_archive(
        archive: impl AsRef<Path>,
        until: Until,
        path: impl AsRef<Path>,
    ) -> Result<(Self, RestoredReport)> {
        let path = path.as_ref();
        let options = Options::default();
        let (pool, root) = options.new_pool(path)?;
        let from = (archive.as_ref(), until);
        let options = options.of_store();
        match Store::restore_archive(&pool, root, &options, from, &mut |_, _| {}) {
            Ok((store, report)) => Ok((Self::new(store), report)),
            Err(e) => Err(remove_failed(pool, path, e)),
        }
    }

    /// Returns what was archived since the database was opened; `None` without an
    /// [archive](Options::archive).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// assert_eq!(db.archive_stats(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn archive_stats(&self) -> Option<ArchiveStats> {
        self.store().archive_stats()
    }

    /// Compares everything with its checksum and every structure with its invariants. Others may
    /// go on meanwhile.
    ///
    /// # Errors
    /// [`Damaged`](crate::ErrorKind::Damaged), with what is damaged and where.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// db.keyspace("orders")?.insert("17", "packed")?;
    /// let report = db.check()?;
    /// assert_eq!(report.entries, 2, "the order, and the keyspace's name");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check(&self) -> Result<CheckReport> {
        let report = self.store().check();
        report.map_err(|violation| Error::damaged(violation.to_string()))
    }

    /// Compares all pages and long values with their checksums, also those that were read before,
    /// while others go on reading and writing. [`Options::scrub`] does so in the background.
    ///
    /// # Errors
    /// [`Damaged`](crate::ErrorKind::Damaged), with the first places, a line each;
    /// [`NoSpace`](crate::ErrorKind::NoSpace) without memory to look at the rest.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// db.keyspace("orders")?.insert("17", "packed")?;
    /// db.scrub()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scrub(&self) -> Result<()> {
        let found = self.store().scrub().or_error()?;
        if found.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = found.iter().map(ToString::to_string).collect();
        Err(Error::damaged(lines.join("\n")))
    }

    /// Frees what nobody can read any more, moves what is left together, and gives free space back
    /// to the file system. Others may go on meanwhile. The database does so by itself where more
    /// than half of its space is free.
    ///
    /// # Errors
    /// Those of every write; what could be given back all the same is.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let k = db.keyspace("k")?;
    /// k.insert("large", vec![0; 8 << 20])?;
    /// k.remove("large")?;
    /// let report = db.compact()?;
    /// println!("{} bytes less", report.before_bytes - report.after_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact(&self) -> Result<CompactReport> {
        self.store().compact().or_error()
    }

    /// Returns counts of keys, versions and bytes, and of the work done since the database was
    /// opened.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// db.keyspace("orders")?.insert("17", "packed")?;
    /// assert_eq!(db.stats().keys, 2, "the order, and the keyspace's name");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.store().stats()
    }

    /// Returns what opening found and repaired, damage included.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// assert!(db.recovery().damage.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn recovery(&self) -> &StoreRecovery {
        self.store().recovery()
    }

    /// Returns the medium that the database is on, which says what an acknowledged write survives.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// println!("a write survives {}", db.medium().survives());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn medium(&self) -> MediumKind {
        self.pool().info().medium
    }

    /// Returns the path of the database's file.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// assert!(db.path().ends_with("orders.db"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn path(&self) -> &Path {
        self.pool().path()
    }

    /// Closes the database: all that is committed is durable, and the next opening has nothing to
    /// repair.
    ///
    /// # Errors
    /// [`InUse`](crate::ErrorKind::InUse) if a clone, keyspace, iterator, snapshot or transaction
    /// of it is left: it is closed when the last of them is dropped.
    /// [`NotDurable`](crate::ErrorKind::NotDurable), [`NoSpace`](crate::ErrorKind::NoSpace).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// use bristlecone::ErrorKind;
    ///
    /// let orders = db.keyspace("orders")?;
    /// let error = db.close().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InUse, "the keyspace keeps it open");
    ///
    /// let db = orders.database().clone();
    /// drop(orders);
    /// db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(self) -> Result<()> {
        let store = &self.core.store;
        store.make_durable(store.applied()).or_error()?;
        let Some(core) = Arc::into_inner(self.core) else {
            return Err(Error::of(CloseError::InUse));
        };
        let Core {
            syncer,
            store,
            deferring,
        } = core;
        drop((syncer, deferring));
        store.close().map_err(|(_, e)| Error::of(e))
    }
}

impl Options {
    fn restore(self, from: &mut impl io::Read, path: &Path) -> Result<Database> {
        let (pool, root) = self.new_pool(path)?;
        let restored = Store::restore(&pool, root, &self.of_store(), from);
        match restored {
            Ok((store, _)) => Ok(Database::new(store)),
            Err(e) => Err(remove_failed(pool, path, e)),
        }
    }
}

/// Removes the file of a database that could not be made. The first error is the one that is
/// reported, and a file without a database is of no use.
fn remove_failed<E>(pool: Arc<Pool<Auto>>, path: &Path, e: E) -> Error
where
    Cause: From<E>,
{
    drop(pool);
    let _ = std::fs::remove_file(path);
    let _ = std::fs::remove_file(journal_path(path));
    Error::of(e)
}
