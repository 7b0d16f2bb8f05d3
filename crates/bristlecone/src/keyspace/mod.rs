//! Keyspaces: the named, ordered maps of a database. Their entries in order are in
//! `keyspace/ordered.rs`.

mod ordered;
mod streams;

pub use streams::ValueReader;

use crate::error::OrError;
use crate::snapshot::KeyspaceAt;
use crate::{Database, Durability, Error, Result, Snapshot, Value, Watch, WatchOptions};
use bristlecone_store::Keyspace as Handle;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A named, ordered map from keys (up to 64 KiB) to values (up to 512 MiB), both bytes. Cheap to
/// clone, and may be used from any number of threads. It keeps its database open.
///
/// A write is durable when it returns (see [`Options::durability`](crate::Options::durability)),
/// and every later read sees it. Reads take no lock.
///
/// # Persist cost
/// A write of a key: the lines of a change in its page, which has the key and the value, and 1
/// fence; now and then a new page. On the journal, one sync for all threads that wait.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let orders = db.keyspace("orders")?;
/// orders.insert("2026-03-01/17", "packed")?;
/// orders.insert("2026-03-02/18", "packed")?;
/// assert!(orders.remove("2026-03-02/18")?);
/// assert!(orders.get("2026-03-02/18")?.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Keyspace {
    pub(crate) db: Database,
    pub(crate) handle: Handle,
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Keyspace").field(&self.name()).finish()
    }
}

/// Two handles are equal if they are of one keyspace of one open database, whatever its name was
/// when they were given.
impl PartialEq for Keyspace {
    fn eq(&self, other: &Self) -> bool {
        self.handle == other.handle
    }
}

impl Eq for Keyspace {}

impl Hash for Keyspace {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Equal handles have one number.
        self.handle.number().hash(state);
    }
}

/// Returns a time in ms since 1970, rounded down, so that no value lives longer than it should.
pub(crate) fn millis(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Keyspace {
    /// Returns its name, as it was when this handle was given: [`rename`](Self::rename) returns one
    /// with the new name.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// assert_eq!(db.keyspace("orders")?.name(), "orders");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Returns the database that the keyspace belongs to.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// assert_eq!(orders.database().path(), db.path());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn database(&self) -> &Database {
        &self.db
    }

    /// Returns a handle of the same keyspace whose commits have that durability. See
    /// [`Database::with_durability`].
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// use bristlecone::Durability;
    ///
    /// let orders = db.keyspace("orders")?;
    /// let quick = orders.with_durability(Durability::None);
    /// quick.insert("17", "new")?; // may be lost in a crash, and only `quick` sees it
    /// assert!(orders.get("17")?.is_none() && quick.get("17")?.is_some());
    /// orders.insert("18", "new")?; // durable when it returns, and so is all before it
    /// assert!(orders.get("17")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_durability(&self, durability: Durability) -> Self {
        Self {
            db: self.db.with_durability(durability),
            handle: self.handle.clone(),
        }
    }

    /// Puts a value. One that was there is replaced, with its expiry.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for a key or value that is too long, and
    /// those of every write: [`NoSpace`](crate::ErrorKind::NoSpace),
    /// [`NotDurable`](crate::ErrorKind::NotDurable), [`ReadOnly`](crate::ErrorKind::ReadOnly),
    /// [`Dropped`](crate::ErrorKind::Dropped), [`Damaged`](crate::ErrorKind::Damaged). Nothing has
    /// changed then, but with `NotDurable`.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "new")?;
    /// orders.insert("17", "packed")?;
    /// assert_eq!(orders.get("17")?.expect("it is there"), "packed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        (self.db).committed(self.db.store().put(&self.handle, key, value))
    }

    /// Puts a value that expires after `ttl`: from then on no read sees it, and its space is freed.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("sessions.db"))?;
    /// use std::time::Duration;
    ///
    /// let sessions = db.keyspace("sessions")?;
    /// sessions.insert_expiring("a7", "alice", Duration::from_secs(1800))?;
    /// assert!(sessions.get("a7")?.expect("half an hour is not over").expires_at().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_expiring(
        &self,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<()> {
        let at = Some(self.db.expiry_of(ttl));
        let (key, value) = (key.as_ref(), value.as_ref());
        let done = (self.db.store()).put_expiring(&self.handle, key, value, at);
        self.db.committed(done)
    }

    /// Returns the value of a key, or `None` if there is no such key. See [`Value`].
    ///
    /// # Errors
    /// [`Damaged`](crate::ErrorKind::Damaged) if the key's record or page is.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// assert!(orders.get("17")?.is_none());
    /// orders.insert("17", "packed")?;
    /// let value = orders.get("17")?.expect("it was inserted");
    /// assert_eq!(value.to_vec(), b"packed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value<'_>>> {
        let found = self.db.store().get_pinned(&self.handle, key.as_ref());
        Ok(found.or_error()?.map(Value))
    }

    /// Calls `f` with the value of a key where it lies, and returns what `f` does; `None` if there
    /// is no such key. [`get`](Self::get) returns a value that may be held on to. No memory of this
    /// process is reclaimed meanwhile, so `f` is to be quick.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// assert_eq!(orders.get_with("17", |value| value.len())?, Some(6));
    /// assert_eq!(orders.get_with("18", |value| value.len())?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_with<R>(
        &self,
        key: impl AsRef<[u8]>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let store = self.db.store();
        let found = store.get_with(&self.handle, key.as_ref(), |entry| f(entry.value));
        found.or_error()
    }

    /// Returns the values of several keys, in the order of `keys`, all as they are at one time.
    /// Searches overlap their waits for memory, so this is several times as fast as one
    /// [`get`](Self::get) after the other.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// let found = orders.multi_get(["16", "17"])?;
    /// assert_eq!(found, [None, Some(b"packed".to_vec())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn multi_get<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Vec<u8>>>> {
        let keys: Vec<K> = keys.into_iter().collect();
        let keys: Vec<&[u8]> = keys.iter().map(AsRef::as_ref).collect();
        let mut values = Vec::with_capacity(keys.len());
        let read = (self.db.store()).multi_get(&self.handle, &keys, |entry| {
            values.push(entry.map(|entry| entry.value.to_vec()));
            ControlFlow::Continue(())
        });
        read.or_error()?;
        Ok(values)
    }

    /// Returns whether there is such a key.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// assert!(orders.contains_key("17")? && !orders.contains_key("18")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn contains_key(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        let found = (self.db.store()).get_with(&self.handle, key.as_ref(), |_| ());
        Ok(found.or_error()?.is_some())
    }

    /// Removes a key. Returns whether it was there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// assert!(orders.remove("17")?);
    /// assert!(!orders.remove("17")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        (self.db).committed(self.db.store().delete(&self.handle, key.as_ref()))
    }

    /// Replaces the value of a key by what `f` makes of it, atomically; `None` stands for no value,
    /// before and after. The expiry stays. `f` runs under a lock: it should be short, and must not
    /// use the database. It is called again if there was no room for what it made.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("tags.db"))?;
    /// let tags = db.keyspace("tags")?;
    /// for tag in ["old", "conifer"] {
    ///     tags.merge("bristlecone", |list| {
    ///         let list = list.map_or_else(Vec::new, |list| [list, b","].concat());
    ///         Some([&list, tag.as_bytes()].concat())
    ///     })?;
    /// }
    /// assert_eq!(tags.get("bristlecone")?.expect("it is there"), "old,conifer");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn merge(
        &self,
        key: impl AsRef<[u8]>,
        f: impl FnMut(Option<&[u8]>) -> Option<Vec<u8>>,
    ) -> Result<()> {
        (self.db).committed(self.db.store().merge(&self.handle, key.as_ref(), f))
    }

    /// If the value of a key is `expected` (`None`: there is none), replaces it by `new` (`None`:
    /// removes it). Returns `Ok(Ok(()))` if so, else what is there.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("locks.db"))?;
    /// let locks = db.keyspace("locks")?;
    /// assert_eq!(locks.compare_and_swap("door", None, Some(b"alice"))?, Ok(()));
    /// let taken = locks.compare_and_swap("door", None, Some(b"bob"))?;
    /// assert_eq!(taken, Err(Some(b"alice".to_vec())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Result<(), Option<Vec<u8>>>> {
        let store = self.db.store();
        let done = store.compare_and_swap(&self.handle, key.as_ref(), expected, new);
        self.db.committed(done)
    }

    /// Adds to a decimal number, 0 if the key is not there, and returns the sum. The expiry stays.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the value is no number, or the sum does
    /// not fit; else as [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("hits.db"))?;
    /// let hits = db.keyspace("hits")?;
    /// assert_eq!(hits.increment("/index.html", 1)?, 1);
    /// assert_eq!(hits.increment("/index.html", 2)?, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn increment(&self, key: impl AsRef<[u8]>, by: i64) -> Result<i64> {
        let done = self.db.store().increment(&self.handle, key.as_ref(), by);
        self.db.committed(done)
    }

    /// Lets the value of a key expire after `ttl` from now, or with `None` never. Returns false if
    /// there is no such key.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// use std::time::Duration;
    ///
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// assert!(orders.expire("17", Some(Duration::ZERO))?);
    /// assert!(orders.get("17")?.is_none());
    /// assert!(!orders.expire("17", None)?, "too late");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expire(&self, key: impl AsRef<[u8]>, ttl: Option<Duration>) -> Result<bool> {
        let at = ttl.map(|ttl| self.db.expiry_of(ttl));
        (self.db).committed(self.db.store().expire(&self.handle, key.as_ref(), at))
    }

    /// Returns about how many keys there are: keys that have expired count until they are freed,
    /// and commits under way may count. It takes the same short time however many keys there are,
    /// unless the process that had the database open before was killed: then a thread counts the
    /// keys, and this waits for it.
    /// `iter().count()` is exact, and reads all of them.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// for id in 0..100u32 {
    ///     orders.insert(id.to_be_bytes(), "new")?;
    /// }
    /// assert_eq!(orders.approximate_len(), 100, "nothing expires here");
    /// assert_eq!(orders.iter().count(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn approximate_len(&self) -> u64 {
        self.db.store().len(&self.handle)
    }

    /// Returns whether there is no key. Keys that have expired do not count.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// assert!(orders.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.first()?.is_none())
    }

    /// Empties the keyspace, by one commit: a crash leaves all or nothing of it. Returns the handle
    /// of the empty keyspace; all earlier handles lead nowhere from then on. Snapshots from before
    /// see what was there until they end.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// let orders = orders.clear()?;
    /// assert!(orders.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear(self) -> Result<Self> {
        let handle = self.db.committed(self.db.store().clear(self.handle))?;
        let db = self.db;
        Ok(Self { db, handle })
    }

    /// Drops the keyspace with all that is in it, by one commit. Snapshots from before see it until
    /// they end; other handles lead nowhere from then on.
    ///
    /// # Errors
    /// As [`insert`](Self::insert).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// db.keyspace("orders")?.insert("17", "packed")?;
    /// db.keyspace("orders")?.remove_keyspace()?;
    /// assert!(db.find_keyspace("orders").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_keyspace(self) -> Result<()> {
        (self.db).committed(self.db.store().drop_keyspace(self.handle))
    }

    /// Gives the keyspace another name, by one commit: a crash leaves the old name or the new one.
    /// Every handle stays valid; the one that is returned has the new [`name`](Self::name).
    ///
    /// # Errors
    /// [`AlreadyExists`](crate::ErrorKind::AlreadyExists) if another keyspace has that name,
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) unless it has 1 to 1024 bytes; those of
    /// every write. Nothing has changed then, but with [`NotDurable`](crate::ErrorKind::NotDurable)
    /// and [`NoSpace`](crate::ErrorKind::NoSpace) the new name may be there.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// orders.insert("17", "packed")?;
    /// let archive = orders.rename("orders of 2026")?;
    /// assert_eq!(archive.name(), "orders of 2026");
    /// assert!(db.find_keyspace("orders").is_none());
    /// assert!(orders.contains_key("17")?, "the old handle is of the same keyspace");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rename(&self, name: &str) -> Result<Self> {
        let renamed = self.db.store().rename_keyspace(&self.handle, name);
        let handle = self.db.committed(renamed)?;
        let db = self.db.clone();
        Ok(Self { db, handle })
    }

    /// Watches the whole keyspace: returns a feed of what is committed from now on. See [`Watch`].
    ///
    /// # Errors
    /// [`ReadOnly`](crate::ErrorKind::ReadOnly), [`Dropped`](crate::ErrorKind::Dropped),
    /// [`NotDurable`](crate::ErrorKind::NotDurable), [`NoSpace`](crate::ErrorKind::NoSpace)
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut watch = orders.watch()?;
    /// orders.insert("17", "packed")?;
    /// assert!(watch.try_next()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch(&self) -> Result<Watch> {
        self.watch_prefix("")
    }

    /// Watches the keys that begin with `prefix`. See [`Watch`].
    ///
    /// # Errors
    /// As [`watch`](Self::watch).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("settings.db"))?;
    /// use bristlecone::Event;
    ///
    /// let settings = db.keyspace("settings")?;
    /// let mut watch = settings.watch_prefix("mail/")?;
    /// settings.insert("log/level", "debug")?;
    /// settings.insert("mail/port", "587")?;
    /// match watch.next().transpose()? {
    ///     Some(Event::Insert { key, value, .. }) => assert_eq!((key, value), ("mail/port".into(), "587".into())),
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<Watch> {
        self.watch_with(prefix, WatchOptions::default())
    }

    /// Watches the keys that begin with `prefix`, with other limits on the memory that a slow
    /// subscriber takes.
    ///
    /// # Errors
    /// As [`watch`](Self::watch).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("settings.db"))?;
    /// use bristlecone::{Event, WatchOptions};
    ///
    /// let settings = db.keyspace("settings")?;
    /// let mut newest = settings.watch_with("mail/", WatchOptions::new().max_events(1))?;
    /// settings.insert("mail/port", "25")?;
    /// settings.insert("mail/port", "587")?;
    /// assert!(matches!(newest.try_next()?, Some(Event::Lagged { missed: 1 })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch_with(&self, prefix: impl AsRef<[u8]>, options: WatchOptions) -> Result<Watch> {
        let store = self.db.store();
        let watch = store.watch(&self.handle, prefix.as_ref(), options.0);
        watch.or_error().map(Watch)
    }

    /// Returns the keyspace as `snapshot` has it, for reading. [`Snapshot`] has an example.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if the snapshot is another database's.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let before = db.snapshot();
    /// orders.insert("17", "packed")?;
    /// assert!(orders.at(&before)?.iter().next().is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at<'s>(&self, snapshot: &'s Snapshot) -> Result<KeyspaceAt<'s>> {
        if !snapshot.is_of(&self.db) {
            return Err(Error::invalid(format!(
                "keyspace {:?} and the snapshot are of two databases",
                self.name()
            )));
        }
        let handle = self.handle.clone();
        Ok(KeyspaceAt { snapshot, handle })
    }
}
