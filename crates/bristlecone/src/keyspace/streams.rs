//! Values as streams, and removing ranges of keys.

use super::Keyspace;
use crate::error::OrError;
use crate::{Batch, Result};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Keyspace as Handle, Snapshot as StoreSnapshot};
use std::fmt;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::ops::{Bound, ControlFlow, RangeBounds};

/// Bytes that a reader reads at once, from a position that it divides: a long value has parts of as
/// many.
const READ_AT_ONCE: u64 = 8 << 20;
/// Keys that one commit removes, at most.
const REMOVED_AT_ONCE: usize = 1024;
/// Such commits that share a sync.
const REMOVALS_A_SYNC: u64 = 32;

/// A value as a stream, as it was when [`Keyspace::reader`] was called. It holds 8 MiB of it, and a
/// snapshot until it is dropped.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("files.db"))?;
/// use std::io::{Read, Seek, SeekFrom};
///
/// let files = db.keyspace("files")?;
/// files.insert("readme", "a durable, ordered database")?;
/// let mut reader = files.reader("readme")?.expect("it was inserted");
/// reader.seek(SeekFrom::End(-8))?;
/// let mut last = String::new();
/// reader.read_to_string(&mut last)?;
/// assert_eq!(last, "database");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ValueReader {
    snapshot: StoreSnapshot<Auto>,
    handle: Handle,
    key: Vec<u8>,
    len: u64,
    at: u64,
    /// The bytes that were read last, and their position in the value.
    read: Vec<u8>,
    read_at: u64,
}

impl fmt::Debug for ValueReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ValueReader")
            .field("len", &self.len)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl ValueReader {
    pub(crate) fn new(
        snapshot: StoreSnapshot<Auto>,
        handle: &Handle,
        key: &[u8],
    ) -> Result<Option<Self>> {
        let len = snapshot.get_range(handle, key, 0..0, &mut Vec::new());
        let Some(len) = len.or_error()? else {
            return Ok(None);
        };
        Ok(Some(Self {
            snapshot,
            handle: handle.clone(),
            key: key.to_vec(),
            len,
            at: 0,
            read: Vec::new(),
            read_at: 0,
        }))
    }

    /// Returns the value's length in bytes.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("files.db"))?;
    /// let files = db.keyspace("files")?;
    /// files.insert("readme", "a durable database")?;
    /// assert_eq!(files.reader("readme")?.expect("it is there").len(), 18);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the value has no bytes.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("files.db"))?;
    /// let files = db.keyspace("files")?;
    /// files.insert("nothing", "")?;
    /// assert!(files.reader("nothing")?.expect("it is there").is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl BufRead for ValueReader {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.at >= self.len {
            return Ok(&[]);
        }
        let end = self.read_at + self.read.len() as u64;
        if !(self.read_at..end).contains(&self.at) {
            self.read.clear();
            self.read_at = self.at / READ_AT_ONCE * READ_AT_ONCE;
            let range = self.read_at..self.read_at + READ_AT_ONCE;
            let snapshot = &self.snapshot;
            let read = snapshot.get_range(&self.handle, &self.key, range, &mut self.read);
            read.or_error().map_err(io::Error::other)?;
        }
        let from = self.at - self.read_at;
        // The snapshot has all of the value, so the position is among what was read.
        Ok(self.read.get(from as usize..).unwrap_or(&[]))
    }

    fn consume(&mut self, amount: usize) {
        self.at = self.at.saturating_add(amount as u64);
    }
}

impl Read for ValueReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let from = self.fill_buf()?;
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
        self.consume(len);
        Ok(len)
    }
}

impl Seek for ValueReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| {
            let what = format!("seeking to {to:?} in a value of {} bytes", self.len);
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })?;
        Ok(self.at)
    }
}

impl Keyspace {
    /// Puts the value that a stream gives up to its end, and returns its length. Readers see the
    /// value once all of it is there, and a crash before that leaves none of it. At most 8 MiB of
    /// it are in memory, and nobody waits while the stream is slow.
    ///
    /// # Errors
    /// As [`insert`](Self::insert), and [`Io`](crate::ErrorKind::Io) if the stream fails. The key
    /// has what it had then.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("files.db"))?;
    /// use std::io::Read;
    ///
    /// let files = db.keyspace("files")?;
    /// let long = std::io::repeat(b'x').take(20 << 20);
    /// assert_eq!(files.insert_from("long", long)?, 20 << 20);
    /// assert_eq!(files.get_range("long", 20_000_000..20_000_003)?.as_deref(), Some(&b"xxx"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn insert_from(&self, key: impl AsRef<[u8]>, value: impl Read) -> Result<u64> {
        let store = self.db.store();
        let put = store.put_from(&self.handle, key.as_ref(), value, None);
        self.db.committed(put)
    }

    /// Returns the bytes of a range of a value, as far as the value has them; `None` if there is no
    /// such key. A value of 64 MiB or more, or from a stream, is in parts of 8 MiB: only those are
    /// read that the range has. Others are compared with their sums.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`NoSpace`](crate::ErrorKind::NoSpace) without memory for it.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("files.db"))?;
    /// let files = db.keyspace("files")?;
    /// files.insert("readme", "a durable database")?;
    /// assert_eq!(files.get_range("readme", 2..9)?.as_deref(), Some(&b"durable"[..]));
    /// assert_eq!(files.get_range("readme", 10..)?.as_deref(), Some(&b"database"[..]));
    /// assert_eq!(files.get_range("readme", 100..)?.as_deref(), Some(&b""[..]));
    /// assert_eq!(files.get_range("licence", ..)?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_range(
        &self,
        key: impl AsRef<[u8]>,
        range: impl RangeBounds<u64>,
    ) -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        let store = self.db.store();
        let len = store.get_range(&self.handle, key.as_ref(), range, &mut bytes);
        Ok(len.or_error()?.map(|_| bytes))
    }

    /// Returns the value of a key as a stream, or `None` if there is no such key. See
    /// [`ValueReader`], which has an example.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("files.db"))?;
    /// let files = db.keyspace("files")?;
    /// files.insert("readme", "a durable database")?;
    /// let mut reader = files.reader("readme")?.expect("it was inserted");
    /// files.remove("readme")?;
    /// assert_eq!(std::io::copy(&mut reader, &mut std::io::sink())?, 18);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reader(&self, key: impl AsRef<[u8]>) -> Result<Option<ValueReader>> {
        let snapshot = self.db.store().snapshot();
        ValueReader::new(snapshot, &self.handle, key.as_ref())
    }

    /// Removes the keys of a range, in their order, and returns how many these were. Those of a
    /// page share a commit, up to 1024, so a crash leaves the last ones, or none; and a key that is
    /// put meanwhile may stay. [`clear`](Self::clear) takes one commit for a whole keyspace.
    ///
    /// It takes two fences a page, and what merging pages takes; on a disk a sync for 32 pages.
    ///
    /// # Errors
    /// As [`insert`](Self::insert); some keys have been removed then.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
    /// let orders = db.keyspace("orders")?;
    /// for id in ["2025/17", "2025/18", "2026/01"] {
    ///     orders.insert(id, "shipped")?;
    /// }
    /// assert_eq!(orders.remove_range(.."2026")?, 2);
    /// assert_eq!(orders.first()?.expect("one is left").0, "2026/01");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<u64> {
        let end = range.end_bound().map(|key| key.as_ref());
        let from = range.start_bound().map(|key| key.as_ref().to_vec());
        let (mut removed, mut last) = (0, 0);
        let done = self.remove_pages((from, end), &mut removed, &mut last);
        // Also after an error: the keys before it are gone.
        let durable = self.db.catch_up(last);
        done.and(durable).map(|()| removed)
    }

    /// Removes the keys of a range, and counts them. Not all of it is durable: commits up to `last`
    /// are still to be made so.
    fn remove_pages(
        &self,
        (mut from, end): (Bound<Vec<u8>>, Bound<&[u8]>),
        removed: &mut u64,
        last: &mut u64,
    ) -> Result<()> {
        let deferred = self.db.deferred();
        for commits in 1u64.. {
            let found = self.removals((from.as_ref().map(Vec::as_slice), end))?;
            let Some((batch, key)) = found else {
                break;
            };
            from = Bound::Excluded(key);
            let keys = batch.len() as u64;
            *last = deferred.write(batch)?.max(*last);
            *removed += keys;
            if commits % REMOVALS_A_SYNC == 0 {
                self.db.catch_up(*last)?;
            }
        }
        Ok(())
    }

    /// Removals of the first keys of a range, which had better be made together, and the last of
    /// these keys.
    fn removals(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<Option<(Batch, Vec<u8>)>> {
        let (mut batch, mut last, mut until) = (Batch::new(), Vec::new(), None);
        let snapshot = self.db.store().snapshot();
        let scanned = snapshot.scan_keys::<&[u8]>(&self.handle, range, |key| {
            if batch.is_empty() {
                // The scan has refused a keyspace of another store.
                until = snapshot.together_until(&self.handle, key).ok().flatten();
            }
            if until.as_deref().is_some_and(|until| key >= until) {
                return ControlFlow::Break(());
            }
            batch.remove(self, key);
            last.clear();
            last.extend_from_slice(key);
            match batch.len() < REMOVED_AT_ONCE {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        scanned.or_error()?;
        Ok((!batch.is_empty()).then_some((batch, last)))
    }
}
