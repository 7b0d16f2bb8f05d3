//! Iterators over the entries of a keyspace, from both ends.

use crate::{Error, Result, Slice};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Entry, Keyspace, ReadError, Snapshot};
use bytes::BytesMut;
use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::{Bound, ControlFlow};

/// How many entries are read ahead at first; each time twice as many, up to [`MAX_AHEAD`].
const FIRST_AHEAD: usize = 32;
const MAX_AHEAD: usize = 256;
/// No more is read ahead once so many bytes are.
const AHEAD_BYTES: usize = 256 << 10;

/// The bounds of a range, with keys that are owned.
pub(crate) type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The entries of a range, ascending; descending from the [other end](DoubleEndedIterator).
///
/// An iterator sees the keyspace as it was when the iterator was made: it has a snapshot, which it
/// keeps until it is dropped. It may be kept for as long as one likes and sent to another thread;
/// what it can still read is not freed meanwhile.
///
/// An item is an error where something is damaged, after all that comes before it from that end. It
/// is the last item then.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let orders = db.keyspace("orders")?;
/// for day in ["2026-03-01", "2026-03-02", "2026-04-01"] {
///     orders.insert(day, "packed")?;
/// }
/// let mut days = orders.prefix("2026-03");
/// let (last, _) = days.next_back().expect("there are two")?;
/// assert_eq!(last, "2026-03-02");
/// assert_eq!(days.count(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it reads nothing before it is asked"]
pub struct Iter {
    snapshot: Snapshot<Auto>,
    keyspace: Keyspace,
    ends: Ends,
}

/// Entries that an iterator has read ahead at both ends, and the range between them.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Range that has not been read yet.
    rest: Bounds,
    /// Read, and not given yet: the lowest at the front.
    low: Ahead,
    /// The same at the upper end: the highest at the front.
    high: Ahead,
    /// Nothing is left between the two.
    exhausted: bool,
}

/// Entries that were read ahead at one end.
#[derive(Debug)]
struct Ahead {
    entries: VecDeque<(Slice, Slice)>,
    most: usize,
    /// Why no more can be read from there: given once the entries are used up.
    failed: Option<ReadError>,
}

impl fmt::Debug for Iter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter")
            .field("keyspace", &self.keyspace.name())
            .field("rest", &self.ends.rest)
            .finish_non_exhaustive()
    }
}

/// Copies entries: the long keys and values into one allocation.
struct Packed {
    entries: VecDeque<(Slice, Slice)>,
    long: BytesMut,
    /// Lengths of the long ones, in the order in which they come; those in `entries` are empty.
    lengths: Vec<(usize, End, usize)>,
    bytes: usize,
}

/// The key or the value of an entry.
enum End {
    Key,
    Value,
}

impl Packed {
    fn new(most: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(most),
            long: BytesMut::new(),
            lengths: Vec::new(),
            bytes: 0,
        }
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes += key.len() + value.len();
        let at = self.entries.len();
        let mut one = |end, bytes: &[u8]| {
            Slice::inline(bytes).unwrap_or_else(|| {
                self.long.extend_from_slice(bytes);
                self.lengths.push((at, end, bytes.len()));
                Slice::default()
            })
        };
        let entry = (one(End::Key, key), one(End::Value, value));
        self.entries.push_back(entry);
    }

    fn into_entries(mut self) -> VecDeque<(Slice, Slice)> {
        let mut long = self.long.freeze();
        for (at, end, len) in self.lengths {
            let slice = Slice::shared(long.split_to(len));
            match end {
                End::Key => self.entries[at].0 = slice,
                End::Value => self.entries[at].1 = slice,
            }
        }
        self.entries
    }
}

/// Calls a visitor with the entries of a range, from one end.
type Visit<'v> = &'v mut dyn FnMut(&[u8], Entry<'_>) -> ControlFlow<()>;

impl Ends {
    pub fn new(range: Bounds) -> Self {
        let ahead = || Ahead {
            entries: VecDeque::new(),
            most: FIRST_AHEAD,
            failed: None,
        };
        Self {
            exhausted: is_empty(&range),
            rest: range,
            low: ahead(),
            high: ahead(),
        }
    }

    /// The next entry at one end; `scan` visits the entries of a range from there.
    pub fn step(
        &mut self,
        up: bool,
        scan: impl FnOnce(Bounds, Visit<'_>) -> Result<(), ReadError>,
    ) -> Option<Result<(Slice, Slice)>> {
        let own = if up { &self.low } else { &self.high };
        if own.entries.is_empty() && own.failed.is_none() && !self.exhausted {
            self.read_ahead(up, scan);
        }
        let own = if up { &mut self.low } else { &mut self.high };
        if own.entries.is_empty()
            && let Some(e) = own.failed.take()
        {
            // The last item: what the other end has read lies beyond what cannot be read.
            for end in [&mut self.low, &mut self.high] {
                end.entries.clear();
                end.failed = None;
            }
            self.exhausted = true;
            return Some(Err(Error::of(e)));
        }
        let (own, other) = if up {
            (&mut self.low, &mut self.high)
        } else {
            (&mut self.high, &mut self.low)
        };
        // All that is left are the entries that the other end has read, the farthest from its end
        // first.
        let next = own.entries.pop_front().or_else(|| other.entries.pop_back());
        next.map(Ok)
    }

    fn read_ahead(
        &mut self,
        up: bool,
        scan: impl FnOnce(Bounds, Visit<'_>) -> Result<(), ReadError>,
    ) {
        let ahead = if up { &mut self.low } else { &mut self.high };
        let most = ahead.most;
        ahead.most = (2 * most).min(MAX_AHEAD);
        let mut packed = Packed::new(most);
        let mut whole = true;
        let scanned = scan(self.rest.clone(), &mut |key, entry| {
            packed.push(key, entry.value);
            if packed.entries.len() < most && packed.bytes < AHEAD_BYTES {
                ControlFlow::Continue(())
            } else {
                whole = false;
                ControlFlow::Break(())
            }
        });
        let entries = packed.into_entries();
        if let Some((last, _)) = entries.back() {
            let last = Bound::Excluded(last.to_vec());
            if up {
                self.rest.0 = last;
            } else {
                self.rest.1 = last;
            }
        }
        self.exhausted = scanned.is_ok() && whole || is_empty(&self.rest);
        let ahead = if up { &mut self.low } else { &mut self.high };
        ahead.entries = entries;
        ahead.failed = scanned.err();
    }
}

impl Iter {
    pub(crate) fn new(snapshot: Snapshot<Auto>, keyspace: Keyspace, range: Bounds) -> Self {
        let ends = Ends::new(range);
        Self {
            snapshot,
            keyspace,
            ends,
        }
    }

    fn step(&mut self, up: bool) -> Option<Result<(Slice, Slice)>> {
        let (snapshot, keyspace) = (&self.snapshot, &self.keyspace);
        self.ends.step(up, |range, visit| {
            if up {
                snapshot.scan(keyspace, range, visit)
            } else {
                snapshot.scan_reverse(keyspace, range, visit)
            }
        })
    }
}

/// True if no key can be in the range.
fn is_empty((start, end): &Bounds) -> bool {
    let (start, end) = (start.as_ref(), end.as_ref());
    bristlecone_index::engine::is_empty(&(start.map(Vec::as_slice), end.map(Vec::as_slice)))
}

impl Iterator for Iter {
    type Item = Result<(Slice, Slice)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

impl FusedIterator for Iter {}
