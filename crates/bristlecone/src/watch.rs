//! Change feeds: the committed changes of a keyspace, one by one.

use crate::slice::time;
use crate::{Error, Result, Slice};
use bristlecone_pmem::CommitError;
use bristlecone_store::{Watch as StoreWatch, WatchEvent, WatchLimits};
use bytes::Bytes;
use std::iter::FusedIterator;
use std::time::{Duration, SystemTime};

/// Options of a [`Watch`]: how many changes wait in memory for a subscriber that does not read
/// them.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// use bristlecone::{Event, WatchOptions};
///
/// let orders = db.keyspace("orders")?;
/// let mut watch = orders.watch_with("2026-", WatchOptions::new().max_events(1))?;
/// orders.insert("2026-03-01/17", "packed")?;
/// orders.insert("2026-03-01/18", "new")?;
/// assert!(matches!(watch.try_next()?, Some(Event::Lagged { missed: 1 })));
/// assert!(matches!(watch.try_next()?, Some(Event::Insert { key, .. }) if key == "2026-03-01/18"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct WatchOptions(pub(crate) WatchLimits);

impl WatchOptions {
    /// Returns the defaults: 1,024 changes and 16 MiB.
    ///
    /// # Examples
    /// ```
    /// use bristlecone::WatchOptions;
    ///
    /// assert_eq!(WatchOptions::new(), WatchOptions::default().max_events(1024).max_bytes(16 << 20));
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many changes wait at most; by default 1,024.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// use bristlecone::{Event, WatchOptions};
    ///
    /// let orders = db.keyspace("orders")?;
    /// let mut watch = orders.watch_with("", WatchOptions::new().max_events(2))?;
    /// for id in ["16", "17", "18"] {
    ///     orders.insert(id, "new")?;
    /// }
    /// assert!(matches!(watch.try_next()?, Some(Event::Lagged { missed: 1 })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_events(mut self, events: usize) -> Self {
        self.0.events = events;
        self
    }

    /// Sets how many bytes of keys and values wait at most, with 96 more for each change; by
    /// default 16 MiB.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// use bristlecone::{Event, WatchOptions};
    ///
    /// let orders = db.keyspace("orders")?;
    /// let mut watch = orders.watch_with("", WatchOptions::new().max_bytes(1000))?;
    /// orders.insert("17", [0; 500])?;
    /// orders.insert("18", [0; 500])?;
    /// assert!(matches!(watch.try_next()?, Some(Event::Lagged { missed: 1 })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.0.bytes = bytes;
        self
    }
}

/// An item of a [`Watch`]. A time stamp is that of the commit, which all changes of one transaction
/// share; it compares with [`Snapshot::timestamp`](crate::Snapshot::timestamp).
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// use bristlecone::Event;
///
/// let orders = db.keyspace("orders")?;
/// let mut watch = orders.watch()?;
/// orders.insert("17", "packed")?;
/// orders.remove("17")?;
/// let told = watch.by_ref().take(2).map(|event| match event? {
///     Event::Insert { key, value, .. } => Ok(format!("{key:?} is {value:?}")),
///     Event::Remove { key, .. } => Ok(format!("{key:?} is gone")),
///     other => Ok(format!("{other:?}")),
/// });
/// let told: Vec<_> = told.collect::<bristlecone::Result<_>>()?;
/// assert_eq!(told, [r#"b"17" is b"packed""#, r#"b"17" is gone"#]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// A value was put, whether there was one before or not. Changing the expiry of a value does
    /// this, too.
    #[non_exhaustive]
    Insert {
        /// The key.
        key: Slice,
        /// The value.
        value: Slice,
        /// When the value expires, if it does.
        expires_at: Option<SystemTime>,
        /// Time stamp of the commit.
        timestamp: u64,
    },
    /// A key was removed.
    #[non_exhaustive]
    Remove {
        /// The key.
        key: Slice,
        /// Time stamp of the commit.
        timestamp: u64,
    },
    /// The keyspace was [cleared](crate::Keyspace::clear). The watch goes on with the empty one.
    Clear {
        /// Time stamp of the commit.
        timestamp: u64,
    },
    /// The keyspace was [removed](crate::Keyspace::remove_keyspace). This is the last event.
    Drop {
        /// Time stamp of the commit.
        timestamp: u64,
    },
    /// The subscriber read too slowly: so many changes before the next event are lost to it. A
    /// snapshot that is taken now has them; whoever reads that passes over events with a time stamp
    /// at or below the snapshot's. Read through [`Database::watched`](crate::Database::watched):
    /// the keyspace may have been cleared, after which an older handle reads nothing.
    Lagged {
        /// How many changes were lost.
        missed: u64,
    },
}

impl Event {
    /// Returns the time stamp of the commit; `None` for [`Event::Lagged`], which is of several.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut watch = orders.watch()?;
    /// orders.insert("17", "packed")?;
    /// let event = watch.try_next()?.expect("it is durable");
    /// assert_eq!(event.timestamp(), Some(db.snapshot().timestamp()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn timestamp(&self) -> Option<u64> {
        match self {
            Self::Insert { timestamp, .. }
            | Self::Remove { timestamp, .. }
            | Self::Clear { timestamp }
            | Self::Drop { timestamp } => Some(*timestamp),
            Self::Lagged { .. } => None,
        }
    }

    /// Returns the event that the store's watch gives. No `From`, which would be public.
    fn of(event: WatchEvent) -> Self {
        let slice = |bytes| Slice::shared(Bytes::from_owner::<std::sync::Arc<[u8]>>(bytes));
        match event {
            WatchEvent::Put {
                key,
                value,
                expires_at,
                ts: timestamp,
            } => Self::Insert {
                key: slice(key),
                value: slice(value),
                expires_at: expires_at.map(time),
                timestamp,
            },
            WatchEvent::Delete { key, ts: timestamp } => Self::Remove {
                key: slice(key),
                timestamp,
            },
            WatchEvent::Cleared { ts: timestamp } => Self::Clear { timestamp },
            WatchEvent::Dropped { ts: timestamp } => Self::Drop { timestamp },
            WatchEvent::Lagged { missed } => Self::Lagged { missed },
        }
    }
}

/// A change feed: the committed changes of a keyspace, from
/// [`Keyspace::watch`](crate::Keyspace::watch) or [`watch_prefix`](crate::Keyspace::watch_prefix)
/// on.
///
/// A change is delivered once its commit is as durable as a commit that has returned: with
/// [`Durability::Immediate`](crate::Durability::Immediate) nothing that is delivered is lost in a
/// power failure. Every way to write is reported: single keys, batches, transactions, clearing and
/// removing the keyspace. Changes come in the order of the commits, over all keys, and those of one
/// commit one after the other. Expiry is not reported, as nothing is committed then:
/// [`Event::Insert`] says when a value expires.
///
/// Memory is bounded: 1,024 changes and 16 MiB wait for a subscriber, unless [`WatchOptions`] say
/// otherwise. If it reads too slowly it loses the oldest ones and gets [`Event::Lagged`]. Writers
/// never wait for it. While nobody watches, a commit looks at one word in memory to find that out.
///
/// As an iterator it waits for the next event. It ends after [`Event::Drop`], after an error, and
/// once the database is closed, which it does not keep open.
///
/// # Examples
///
/// A copy that follows a keyspace: the watch comes first and the snapshot after it, so that nothing
/// falls between the two.
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// use bristlecone::Event;
/// use std::collections::BTreeMap;
///
/// let orders = db.keyspace("orders")?;
/// orders.insert("17", "packed")?;
///
/// let mut watch = orders.watch()?;
/// let snapshot = db.snapshot();
/// let mut copy: BTreeMap<_, _> = orders.at(&snapshot)?.iter().collect::<Result<_, _>>()?;
///
/// orders.insert("18", "new")?;
/// orders.remove("17")?;
/// while let Some(event) = watch.try_next()? {
///     if event.timestamp().is_some_and(|at| at <= snapshot.timestamp()) {
///         continue; // The snapshot has it.
///     }
///     match event {
///         Event::Insert { key, value, .. } => drop(copy.insert(key, value)),
///         Event::Remove { key, .. } => drop(copy.remove(&key)),
///         Event::Clear { .. } | Event::Drop { .. } => copy.clear(),
///         // Begin again, with another snapshot.
///         Event::Lagged { .. } => unreachable!("two changes fit into the queue"),
///         _ => {}
///     }
/// }
/// assert_eq!(copy.into_keys().collect::<Vec<_>>(), ["18"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "changes are queued for it until it is dropped"]
pub struct Watch(pub(crate) StoreWatch);

fn event(found: std::result::Result<Option<WatchEvent>, CommitError>) -> Result<Option<Event>> {
    let found = found.map_err(Error::not_durable)?;
    Ok(found.map(Event::of))
}

impl Watch {
    /// Returns the next event if there is one now, else `None`.
    ///
    /// # Errors
    /// [`NotDurable`](crate::ErrorKind::NotDurable) once, if the medium has failed: no later change
    /// is durable, and the watch has ended.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut watch = orders.watch()?;
    /// assert_eq!(watch.try_next()?, None);
    /// orders.insert("17", "packed")?;
    /// assert!(watch.try_next()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_next(&mut self) -> Result<Option<Event>> {
        event(self.0.try_next())
    }

    /// Waits for the next event; returns `None` if none has come by then, or none comes any more.
    ///
    /// # Errors
    /// As [`try_next`](Self::try_next).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// use std::time::{Duration, SystemTime};
    ///
    /// let mut watch = db.keyspace("orders")?.watch()?;
    /// assert_eq!(watch.next_timeout(Duration::from_millis(1))?, None);
    /// assert!(!watch.is_ended());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_timeout(&mut self, timeout: Duration) -> Result<Option<Event>> {
        event(self.0.next_timeout(timeout))
    }

    /// Returns whether no event comes any more.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// let mut watch = orders.watch()?;
    /// orders.remove_keyspace()?;
    /// assert!(!watch.is_ended(), "one event is left");
    /// assert!(matches!(watch.try_next()?, Some(bristlecone::Event::Drop { .. })));
    /// assert!(watch.is_ended());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.0.is_ended()
    }
}

impl Iterator for Watch {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        event(self.0.next().transpose()).transpose()
    }
}

impl FusedIterator for Watch {}
