//! How a database is opened.

use crate::{Database, Error, Result};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Access, MediaOptions, OpenError, Pool, PoolOptions};
use bristlecone_store::{Store, StoreOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub use bristlecone_pmem::{Durability, MediumKind as Medium};

/// The root that a database's store has in its file; `bristlecone serve` uses the same.
const STORE: &str = "store";
/// The root of a bare index, which is something else than a database.
const BARE_INDEX: &str = "main";

/// How a database is opened: a builder, from [`Database::builder`].
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// use bristlecone::{Database, Durability};
/// use std::time::Duration;
///
/// // Commits return at once; a power failure loses at most the last 50 ms, never consistency.
/// let db = Database::builder()
///     .durability(Durability::Interval(Duration::from_millis(50)))
///     .open(dir.path().join("metrics.db"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    media: MediaOptions,
    create: bool,
    create_new: bool,
    vacuum_every: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            media: MediaOptions::default(),
            create: true,
            create_new: false,
            vacuum_every: StoreOptions::default().vacuum_every,
        }
    }
}

impl Options {
    /// Whether to make a database where there is none; by default yes.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether there must be no file yet; by default no.
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Opens for reading only: any number of processes may, while none writes. What recovery repairs stays
    /// in this process's memory.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.media.access = if read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        self
    }

    /// When a commit is durable; by default when it returns ([`Durability::Immediate`]). It matters on the
    /// journal only: on persistent memory every commit is durable when it returns.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.media.durability = durability;
        self
    }

    /// The medium, instead of the one that fits the path: persistent memory where the file system grants it, a plain
    /// mapping on tmpfs, else the journal.
    pub fn medium(mut self, medium: Medium) -> Self {
        self.media.medium = Some(medium);
        self
    }

    /// Bytes that the file can grow to; address space is reserved for so many. By default 1 TiB, or what the
    /// system grants.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.media.reserve = bytes;
        self
    }

    /// How often superseded versions are freed by a thread of the database's, by default every 50 ms; `None`
    /// for never: then [`Database::compact`] does it.
    pub fn vacuum_every(mut self, every: Option<Duration>) -> Self {
        self.vacuum_every = every;
        self
    }

    /// Opens the database at `path`, or makes it.
    ///
    /// # Errors
    /// [`Error`], of every kind that concerns files: [`NotFound`](crate::ErrorKind::NotFound) if it is not to be made,
    /// [`Locked`](crate::ErrorKind::Locked) if another process has it open, [`NotADatabase`](crate::ErrorKind::NotADatabase),
    /// [`NewerVersion`](crate::ErrorKind::NewerVersion), [`Damaged`](crate::ErrorKind::Damaged). A file that is
    /// there is left as it is.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Database> {
        let pool = self.pool(path.as_ref())?;
        let store = self.store_in(&pool)?;
        Ok(Database::new(store))
    }

    /// Opens the file at `path`, or makes it.
    fn pool(&self, path: &Path) -> Result<Arc<Pool<Auto>>> {
        let read_only = self.media.access == Access::ReadOnly;
        if self.create_new {
            if read_only {
                return Err(Error::invalid("what is new cannot be read-only"));
            }
            return Ok(self.new_pool(path)?.0);
        }
        let options = PoolOptions {
            media: self.media.clone(),
        };
        match Pool::open(path, &options) {
            Err(OpenError::NotFound(_)) if self.create && !read_only => {
                match Pool::create(path, &options) {
                    // Another thread or process was faster.
                    Err(OpenError::Exists(_)) => Ok(Pool::open(path, &options)?),
                    made => Ok(made?),
                }
            }
            opened => Ok(opened?),
        }
    }

    /// Opens the file of a bare index, or makes it; with the root that the index has, or is to have.
    pub(crate) fn index_pool(&self, path: &Path) -> Result<(Arc<Pool<Auto>>, &'static str)> {
        let pool = self.pool(path)?;
        let roots = pool.roots();
        if roots.iter().any(|root| root.name == BARE_INDEX) {
            return Ok((pool, BARE_INDEX));
        }
        let path = path.display();
        if !roots.is_empty() {
            return Err(Error::not_a_database(format!(
                "{path}: holds something else than a bare index; name another file"
            )));
        }
        if self.media.access == Access::ReadOnly || !self.create {
            return Err(Error::not_a_database(format!(
                "{path}: a pool without an index in it; open it for writing to make one"
            )));
        }
        Ok((pool, BARE_INDEX))
    }

    /// A new, empty pool, and the name of the root that its store is to have.
    pub(crate) fn new_pool(&self, path: &Path) -> Result<(Arc<Pool<Auto>>, &'static str)> {
        let media = self.media.clone();
        Ok((Pool::create(path, &PoolOptions { media })?, STORE))
    }

    /// Opens the store of a pool, or makes it in one that holds nothing.
    fn store_in(&self, pool: &Arc<Pool<Auto>>) -> Result<Store<Auto>> {
        let options = StoreOptions {
            vacuum_every: self.vacuum_every,
            ..StoreOptions::default()
        };
        let roots = pool.roots();
        if roots.iter().any(|root| root.name == STORE) {
            return Ok(Store::open(pool, STORE, &options)?);
        }
        let path = pool.path().display();
        if roots.iter().any(|root| root.name == BARE_INDEX) {
            return Err(Error::not_a_database(format!(
                "{path}: holds a bare index, no database; export it and import it into a new one"
            )));
        }
        if self.media.access == Access::ReadOnly || !self.create {
            return Err(Error::not_a_database(format!(
                "{path}: a pool without a database in it; open it for writing to make one"
            )));
        }
        Ok(Store::create(pool, STORE, &options)?)
    }
}
