//! Options for opening a database.

use crate::error::OrError;
use crate::{Database, Durability, Error, Medium, Result};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::memory::available;
use bristlecone_pmem::{Access, MediaOptions, OpenError, Pool, PoolOptions};
use bristlecone_store::{ArchiveOptions, Compression, Store, StoreOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The root that a database's store has in its file; `bristlecone serve` uses the same.
const STORE: &str = "store";
/// The root of a bare index, which is something else than a database.
const BARE_INDEX: &str = "main";

/// Options for opening a database: a builder, from [`Database::builder`]. Each option has a
/// default, so most programs need only [`Database::open`].
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
    memory: Option<u64>,
    scrub: Option<u64>,
    archive: Option<ArchiveOptions>,
    compression: Compression,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            media: MediaOptions::default(),
            create: true,
            create_new: false,
            vacuum_every: StoreOptions::default().vacuum_every,
            memory: available().map(|bytes| bytes / 2),
            scrub: None,
            archive: None,
            compression: Compression::default(),
        }
    }
}

impl Options {
    /// Sets whether a database is made where there is none; by default it is.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::{Database, ErrorKind};
    ///
    /// let missing = Database::builder().create(false).open(dir.path().join("orders.db"));
    /// assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets whether a file that is there already is an error; by default it is opened.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::{Database, ErrorKind};
    ///
    /// let path = dir.path().join("orders.db");
    /// Database::builder().create_new(true).open(&path)?.close()?;
    /// let again = Database::builder().create_new(true).open(&path);
    /// assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Sets whether the database is opened for reading only; by default it is opened for writing,
    /// too. Any number of processes may read a database at one time, while none has it open for
    /// writing. Repairs by recovery stay in this process's memory.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("orders.db");
    /// # bristlecone::Database::open(&path)?.keyspace("orders")?.insert("17", "packed")?;
    /// use bristlecone::{Database, ErrorKind};
    ///
    /// let reader = Database::builder().read_only(true).open(&path)?;
    /// let another = Database::builder().read_only(true).open(&path)?;
    /// let orders = another.find_keyspace("orders").expect("it was made before");
    /// assert_eq!(orders.insert("18", "new").unwrap_err().kind(), ErrorKind::ReadOnly);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.media.access = if read_only {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        self
    }

    /// Sets when a commit is durable; by default it is when it returns ([`Durability::Immediate`]).
    /// The option matters on the journal only: on persistent memory every commit is durable when it
    /// returns. [`Database::deferred`] chooses for single commits.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::{Database, Durability};
    ///
    /// let options = Database::builder().durability(Durability::None);
    /// let db = options.open(dir.path().join("cache.db"))?;
    /// let pages = db.keyspace("pages")?;
    /// pages.insert("/", "<html>")?; // does not wait for the disk
    /// assert!(pages.contains_key("/")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn durability(mut self, durability: Durability) -> Self {
        self.media.durability = durability;
        self
    }

    /// Sets the medium, instead of the one that fits the path: persistent memory where the file
    /// system grants it, a plain mapping on tmpfs, else the journal.
    ///
    /// On [`Medium::Dram`] the database has no file. It is a new one each time, its path is only a
    /// name in messages, and it is gone when its last handle is dropped.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::{Database, Medium};
    ///
    /// let options = Database::builder().medium(Medium::Journal);
    /// let db = options.open(dir.path().join("orders.db"))?;
    /// assert_eq!(db.medium(), Medium::Journal);
    ///
    /// let scratch = Database::builder().medium(Medium::Dram).open("scratch")?;
    /// scratch.keyspace("words")?.insert("seen", "1")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn medium(mut self, medium: Medium) -> Self {
        self.media.medium = Some(medium);
        self
    }

    /// Sets how many bytes the file can grow to; address space is reserved for them. By default
    /// that is 1 TiB, or what the system grants.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::{Database, ErrorKind};
    ///
    /// let db = Database::builder().max_bytes(16 << 20).open(dir.path().join("small.db"))?;
    /// let k = db.keyspace("k")?;
    /// let error = (0..100).find_map(|n: u8| k.insert([n], [0; 1 << 20]).err());
    /// assert_eq!(error.expect("100 MiB do not fit").kind(), ErrorKind::NoSpace);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.media.reserve = bytes;
        self
    }

    /// Sets how often a thread of the database frees what nobody can read any more, by default
    /// every 50 ms: entries that have expired, and those of keyspaces that were removed or cleared.
    /// With `None` there is no such thread, and [`Database::compact`] frees them.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::Database;
    ///
    /// let db = Database::builder().vacuum_every(None).open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// let orders = orders.clear()?;
    /// assert_eq!(db.stats().keys, 2, "nobody has freed the entry; the other one is the name");
    /// db.compact()?;
    /// assert_eq!(db.stats().keys, 1);
    /// # assert!(orders.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn vacuum_every(mut self, every: Option<Duration>) -> Self {
        self.vacuum_every = every;
        self
    }

    /// Sets how many bytes of memory this process may have resident, by default half of the
    /// machine's, or of what its control groups allow. A database on [`Medium::Journal`] may be
    /// larger: a thread then drops from memory what can be read from the file again. Changes that
    /// the file does not have yet are bounded by half of what is left for the database. With `None`
    /// everything that was touched stays in memory, as it does on other media.
    ///
    /// The bound is one of the process: with several databases open, each of them gives memory back
    /// when the process is above its bound. What the program itself uses counts. Many random
    /// updates can exceed it for a while.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::Database;
    ///
    /// let db = Database::builder().memory(Some(256 << 20)).open(dir.path().join("orders.db"))?;
    /// # drop(db);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory(mut self, bytes: Option<u64>) -> Self {
        self.memory = bytes;
        self
    }

    /// Sets how many bytes a second a thread compares with their checksums, from the first page and
    /// long value to the last and again, so that damage is known before somebody reads it:
    /// [`Database::stats`] counts it. By default there is no such thread. A round takes a minute at
    /// least.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::Database;
    ///
    /// let db = Database::builder().scrub(Some(4 << 20)).open(dir.path().join("orders.db"))?;
    /// assert_eq!(db.stats().scrub.damaged, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scrub(mut self, bytes_per_second: Option<u64>) -> Self {
        self.scrub = bytes_per_second;
        self
    }

    /// Sets where every commit is archived once it is durable, with states of the database to begin
    /// with. From the directory, [`Database::restore_archive`] makes the database again as it was
    /// at any commit. A thread writes to it; no commit waits for that. By default nothing is
    /// archived.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::{ArchiveOptions, Database};
    ///
    /// let archive = ArchiveOptions::new(dir.path().join("archive"));
    /// let db = Database::builder().archive(Some(archive)).open(dir.path().join("orders.db"))?;
    /// assert_eq!(db.archive_stats().expect("it is archived").error, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn archive(mut self, archive: Option<ArchiveOptions>) -> Self {
        self.archive = archive;
        self
    }

    /// Sets whether long values are compressed from now on; by default they are not. Values of at
    /// least 512 bytes then are, where that saves an eighth or more. Each
    /// value says how it was written, so the choice may change from one opening to the next, but a
    /// build without the feature of a value's compression cannot read that value.
    ///
    /// Reading a compressed value allocates memory and unpacks all of it, or the part of 8 MiB that
    /// is asked for. Its length and its expiry are known without that.
    ///
    /// # Examples
    #[cfg_attr(feature = "lz4", doc = "```")]
    #[cfg_attr(not(feature = "lz4"), doc = "```ignore")]
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::{Compression, Database};
    ///
    /// let options = Database::builder().compression(Compression::Lz4);
    /// let db = options.open(dir.path().join("pages.db"))?;
    /// let pages = db.keyspace("pages")?;
    /// pages.insert("/", "<p>".repeat(10_000))?; // written compressed
    /// assert_eq!(pages.get("/")?.expect("it was put").len(), 30_000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Opens the database at `path`, or makes it.
    ///
    /// # Errors
    /// [`Error`], of every kind that concerns files: [`NotFound`](crate::ErrorKind::NotFound) if it
    /// is not to be made, [`Locked`](crate::ErrorKind::Locked) if another process has it open,
    /// [`NotADatabase`](crate::ErrorKind::NotADatabase),
    /// [`NewerVersion`](crate::ErrorKind::NewerVersion),
    /// [`OlderVersion`](crate::ErrorKind::OlderVersion), [`Damaged`](crate::ErrorKind::Damaged). A
    /// file that is there is left as it is.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use bristlecone::{Database, ErrorKind};
    ///
    /// let path = dir.path().join("orders.db");
    /// let db = Database::builder().open(&path)?;
    /// let again = Database::builder().open(&path).unwrap_err();
    /// assert_eq!(again.kind(), ErrorKind::Locked, "it is open for writing");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        if self.media.medium == Some(Medium::Dram) {
            return self.pool_in_memory(path);
        }
        let options = PoolOptions {
            media: self.media.clone(),
        };
        match Pool::open(path, &options) {
            Err(OpenError::NotFound(_)) if self.create && !read_only => {
                match Pool::create(path, &options) {
                    // Another thread or process was faster.
                    Err(OpenError::Exists(_)) => Pool::open(path, &options).or_error(),
                    made => made.or_error(),
                }
            }
            opened => opened.or_error(),
        }
    }

    /// Makes a pool without a file.
    fn pool_in_memory(&self, path: &Path) -> Result<Arc<Pool<Auto>>> {
        if !self.create || self.media.access == Access::ReadOnly {
            return Err(Error::invalid(
                "what is in memory only is new: it can be neither read-only nor there before",
            ));
        }
        if path.exists() {
            return Err(Error::invalid(format!(
                "{}: a file, which a database in memory would leave alone; give another name, or \
                 another medium",
                path.display()
            )));
        }
        Ok(self.new_pool(path)?.0)
    }

    /// Opens the file of a bare index, or makes it; with the root that the index has, or is to
    /// have.
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
        let pool = Pool::create(path, &PoolOptions { media }).or_error()?;
        Ok((pool, STORE))
    }

    /// The options of the store.
    pub(crate) fn of_store(&self) -> StoreOptions {
        StoreOptions {
            vacuum_every: self.vacuum_every,
            memory: self.memory,
            scrub: self.scrub,
            archive: self.archive.clone(),
            compression: self.compression,
            ..StoreOptions::default()
        }
    }

    /// Opens the store of a pool, or makes it in one that holds nothing.
    fn store_in(&self, pool: &Arc<Pool<Auto>>) -> Result<Store<Auto>> {
        let options = self.of_store();
        let roots = pool.roots();
        if roots.iter().any(|root| root.name == STORE) {
            return Store::open(pool, STORE, &options).or_error();
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
        Store::create(pool, STORE, &options).or_error()
    }
}
