//! Keys and values as they are given back.

use bristlecone_store::PinnedValue;
use bytes::Bytes;
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A key or a value of an [iterator](crate::Iter): bytes that are cheap to clone and may be kept
/// and sent anywhere. Of up to 38 bytes they are in it. Longer neighbours share one allocation, so
/// one that is kept for long is better copied ([`to_vec`](slice::to_vec)).
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// # db.keyspace("orders")?.insert("17", "packed")?;
/// let (key, value) = db.keyspace("orders")?.first()?.expect("it was inserted");
/// assert_eq!(key, "17");
/// assert!(value.starts_with(b"pack"), "it is a slice of bytes");
/// let owned: Vec<u8> = value.into();
/// assert_eq!(owned, b"packed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Slice(Repr);

/// Longest slice that has its bytes in it.
const INLINE: usize = 38;

#[derive(Clone)]
enum Repr {
    /// So many of these.
    Inline(u8, [u8; INLINE]),
    Shared(Bytes),
}

impl Slice {
    /// These bytes, if they are few.
    pub(crate) fn inline(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; INLINE];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self(Repr::Inline(bytes.len() as u8, all)))
    }

    /// Bytes that are to follow those which a slice is [cut](Self::cut) from.
    pub(crate) const PADDING: usize = INLINE;

    /// The `len` bytes at `at`; all of them, if there are not so many.
    #[inline(always)]
    pub(crate) fn cut(bytes: &Bytes, at: usize, len: usize) -> Self {
        match bytes.get(at..).and_then(<[u8]>::first_chunk) {
            // Those that follow do not matter, and a copy of constant length is quick.
            Some(all) if len <= INLINE => Self(Repr::Inline(len as u8, *all)),
            _ => Self::shared(bytes.slice(at.min(bytes.len())..(at + len).min(bytes.len()))),
        }
    }

    pub(crate) fn shared(bytes: Bytes) -> Self {
        Self(Repr::Shared(bytes))
    }
}

impl Default for Slice {
    fn default() -> Self {
        Self(Repr::Inline(0, [0; INLINE]))
    }
}

impl PartialEq for Slice {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Slice {}

impl PartialOrd for Slice {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Slice {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Slice {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

/// The value of one key, in place: nothing is copied. Values that are stored in several parts, as
/// those of more than 64 MiB are, and compressed ones are copied all the same.
///
/// It holds back the reclaiming of memory in this process while it exists, so it is to be dropped
/// soon, or copied with [`to_vec`](slice::to_vec). It cannot be sent to another thread; what was
/// copied can.
///
/// # Examples
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = bristlecone::Database::open(dir.path().join("orders.db"))?;
/// let orders = db.keyspace("orders")?;
/// orders.insert("17", "packed")?;
/// let value = orders.get("17")?.expect("it was inserted");
/// assert_eq!(value, "packed");
/// let owned: Vec<u8> = value.into();
/// assert_eq!(owned, b"packed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Value<'a>(pub(crate) PinnedValue<'a>);

/// Returns the time of so many ms since 1970, which have at most 48 bits.
pub(crate) fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

impl Value<'_> {
    /// Returns when the value expires, if it does.
    ///
    /// # Examples
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = bristlecone::Database::open(dir.path().join("sessions.db"))?;
    /// use std::time::{Duration, SystemTime};
    ///
    /// let sessions = db.keyspace("sessions")?;
    /// sessions.insert_expiring("a7", "alice", Duration::from_secs(1800))?;
    /// let value = sessions.get("a7")?.expect("half an hour is not over");
    /// let left = value.expires_at().expect("it expires").duration_since(SystemTime::now())?;
    /// assert!(left <= Duration::from_secs(1800));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn expires_at(&self) -> Option<SystemTime> {
        self.0.expires_at().map(time)
    }
}

impl Deref for Value<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Deref for Slice {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline(len, bytes) => &bytes[..usize::from(*len)],
            Repr::Shared(bytes) => bytes,
        }
    }
}

impl<B: AsRef<[u8]> + ?Sized> From<&B> for Slice {
    fn from(bytes: &B) -> Self {
        let bytes = bytes.as_ref();
        Self::inline(bytes).unwrap_or_else(|| Self::shared(Bytes::copy_from_slice(bytes)))
    }
}

impl From<Vec<u8>> for Slice {
    fn from(bytes: Vec<u8>) -> Self {
        Self::shared(bytes.into())
    }
}

impl Borrow<[u8]> for Slice {
    fn borrow(&self) -> &[u8] {
        self
    }
}

/// Traits that both kinds of bytes implement alike.
macro_rules! bytes_like {
    ($name:ty) => {
        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                self
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "b\"{}\"", self.escape_ascii())
            }
        }

        impl From<$name> for Vec<u8> {
            fn from(bytes: $name) -> Self {
                bytes.to_vec()
            }
        }
    };
}

/// Comparisons with bytes of other types.
macro_rules! equal_to {
    ($name:ty: $($other:ty),* $(,)?) => {$(
        impl PartialEq<$other> for $name {
            fn eq(&self, other: &$other) -> bool {
                let other: &[u8] = other.as_ref();
                **self == *other
            }
        }
    )*};
}

bytes_like!(Slice);
bytes_like!(Value<'_>);
equal_to!(Slice: str, &str, String, [u8], &[u8], Vec<u8>);
equal_to!(Value<'_>: str, &str, String, [u8], &[u8], Vec<u8>);

impl<const N: usize> PartialEq<[u8; N]> for Slice {
    fn eq(&self, other: &[u8; N]) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<[u8; N]> for Value<'_> {
    fn eq(&self, other: &[u8; N]) -> bool {
        **self == *other
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Slice {
    fn eq(&self, other: &&[u8; N]) -> bool {
        **self == **other
    }
}

impl<const N: usize> PartialEq<&[u8; N]> for Value<'_> {
    fn eq(&self, other: &&[u8; N]) -> bool {
        **self == **other
    }
}
