//! Iterators over the entries of a keyspace, from both ends.

use crate::{Error, Result, Slice};
use bristlecone_index::Direction;
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Entries, Keyspace, Place, ReadError, Snapshot};
use bytes::Bytes;
use std::collections::VecDeque;
use std::fmt;
use std::iter::FusedIterator;
use std::ops::Bound;

/// How many entries are read ahead at first; each time three times as many, up to [`MAX_AHEAD`].
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
    entries: Packed,
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

/// Entries one after another, key and value, and where each of them is.
#[derive(Debug, Default)]
struct Packed {
    /// Behind the last entry are bytes enough for a slice to be cut out with all that it has.
    bytes: Bytes,
    places: VecDeque<Place>,
}

impl Packed {
    fn of(entries: Entries) -> Self {
        let (mut bytes, places) = entries.into_parts();
        bytes.extend_from_slice(&[0; Slice::PADDING]);
        Self {
            bytes: bytes.into(),
            places: places.into(),
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    #[inline(always)]
    fn entry(&self, place: Place) -> (Slice, Slice) {
        let value_at = place.at + place.key as usize;
        (
            Slice::cut(&self.bytes, place.at, place.key as usize),
            Slice::cut(&self.bytes, value_at, place.value as usize),
        )
    }

    #[inline]
    fn pop_front(&mut self) -> Option<(Slice, Slice)> {
        let place = self.places.pop_front()?;
        Some(self.entry(place))
    }

    fn pop_back(&mut self) -> Option<(Slice, Slice)> {
        let place = self.places.pop_back()?;
        Some(self.entry(place))
    }

    /// The key that was read last.
    fn last_key(&self) -> Option<&[u8]> {
        let place = self.places.back()?;
        self.bytes.get(place.at..place.at + place.key as usize)
    }
}

impl Ends {
    pub fn new(range: Bounds) -> Self {
        let ahead = || Ahead {
            entries: Packed::default(),
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

    /// The next entry at one end; `read` reads the entries of a range from there.
    // Inlined down to the slices, which are made where the caller wants them: to move them again is
    // dearer than to make them.
    #[inline(always)]
    pub fn step(
        &mut self,
        up: bool,
        read: impl FnOnce(Bounds, &mut Entries) -> Result<(), ReadError>,
    ) -> Option<Result<(Slice, Slice)>> {
        let own = if up { &mut self.low } else { &mut self.high };
        match own.entries.places.pop_front() {
            Some(place) => Some(Ok(own.entries.entry(place))),
            None => self.read_and_step(up, read),
        }
    }

    #[inline(never)]
    fn read_and_step(
        &mut self,
        up: bool,
        read: impl FnOnce(Bounds, &mut Entries) -> Result<(), ReadError>,
    ) -> Option<Result<(Slice, Slice)>> {
        let own = if up { &self.low } else { &self.high };
        if own.entries.is_empty() && own.failed.is_none() && !self.exhausted {
            self.read_ahead(up, read);
        }
        let own = if up { &mut self.low } else { &mut self.high };
        if own.entries.is_empty()
            && let Some(e) = own.failed.take()
        {
            // The last item: what the other end has read lies beyond what cannot be read.
            for end in [&mut self.low, &mut self.high] {
                end.entries = Packed::default();
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
        read: impl FnOnce(Bounds, &mut Entries) -> Result<(), ReadError>,
    ) {
        let ahead = if up { &mut self.low } else { &mut self.high };
        let most = ahead.most;
        ahead.most = (3 * most).min(MAX_AHEAD);
        let mut entries = Entries::new(most, AHEAD_BYTES, Slice::PADDING);
        let scanned = read(self.rest.clone(), &mut entries);
        let whole = !entries.is_full();
        let entries = Packed::of(entries);
        if let Some(last) = entries.last_key() {
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

    #[inline(always)]
    fn step(&mut self, up: bool) -> Option<Result<(Slice, Slice)>> {
        let (snapshot, keyspace) = (&self.snapshot, &self.keyspace);
        let direction = if up { Direction::Up } else { Direction::Down };
        self.ends.step(up, |range, into| {
            snapshot.read(keyspace, range, direction, into)
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

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}

impl DoubleEndedIterator for Iter {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

impl FusedIterator for Iter {}
