//! The keys of a memtable: RocksDB's internal keys, which lie in records of the pool.
//!
//! ```text
//! key     | length (varint32) | user key ... | sequence << 8 | type (8 bytes, little-endian) |
//! word    | tag (16 bits of the key's hash) | offset of the record (48 bits) |
//! value   | sequence << 8 | type |                          so that versions are told apart unread
//! ```
//!
//! The order is by user key, then by descending sequence number. User keys are in the order of
//! bytes ([`Bytewise`]), which the inner nodes know how to abbreviate, or in that of a function of
//! RocksDB's ([`Called`]).
//!
//! The fingerprint of a key in the order of bytes is of its user key alone: a lookup reads the
//! leaf's entries of that fingerprint, and takes the newest that its snapshot sees.

use crate::record::{self, HEADER, OFFSET_MASK, TAG_SHIFT};
use bristlecone_index::inner::Separator;
use bristlecone_index::{KeyRepr, Repr, Stored, StoredKey};
use bristlecone_pmem::pool::DataKind;
use bristlecone_pmem::{Heap, Media, SpaceError};
use crossbeam_epoch::Guard;
use std::borrow::Borrow;
use std::cell::Cell;
use std::cmp::Ordering;
use std::ffi::c_void;
use std::fmt;
use std::io;
use std::marker::PhantomData;

/// Bytes of sequence number and type.
pub const TRAILER: usize = 8;

/// An order of keys.
pub trait KeyOrder: fmt::Debug + Send + Sync + 'static {
    /// True if user keys are in the order of bytes.
    const BYTEWISE: bool;

    /// Compares two keys.
    fn compare(a: &EntryKey<Self>, b: &EntryKey<Self>) -> Ordering
    where
        Self: Sized;
}

/// User keys in the order of bytes.
#[derive(Debug)]
pub struct Bytewise;

impl KeyOrder for Bytewise {
    const BYTEWISE: bool = true;

    #[inline(always)]
    fn compare(a: &EntryKey<Self>, b: &EntryKey<Self>) -> Ordering {
        let by_user_key = a.user_key().cmp(b.user_key());
        by_user_key.then_with(|| b.trailer().cmp(&a.trailer()))
    }
}

/// A function of RocksDB's that compares two keys: less than, equal to or more than 0.
pub type CompareFunction =
    unsafe extern "C" fn(context: *const c_void, a: *const u8, b: *const u8) -> i32;

/// A [`CompareFunction`] with its context.
#[derive(Clone, Copy, Debug)]
pub struct Comparator {
    /// The function. It may be called from any thread.
    pub function: CompareFunction,
    /// Its context.
    pub context: *const c_void,
}

// SAFETY: 1. whoever makes one promises that the function may be called from any thread, and that
// the context lives as long as the memtable.
unsafe impl Send for Comparator {}
// SAFETY: 1. as for `Send`.
unsafe impl Sync for Comparator {}

thread_local! {
    static COMPARATOR: Cell<Option<Comparator>> = const { Cell::new(None) };
}

/// The order of the [`Comparator`] that this thread [uses](with_comparator).
#[derive(Debug)]
pub struct Called;

impl KeyOrder for Called {
    const BYTEWISE: bool = false;

    #[inline]
    fn compare(a: &EntryKey<Self>, b: &EntryKey<Self>) -> Ordering {
        let Some(comparator) = COMPARATOR.get() else {
            unreachable!("every call of a memtable in this order is inside `with_comparator`");
        };
        // SAFETY: 1. both are whole keys, with their lengths in front; 2. whoever made the
        // comparator promises that it may be called with such.
        let order = unsafe {
            (comparator.function)(comparator.context, a.bytes.as_ptr(), b.bytes.as_ptr())
        };
        order.cmp(&0)
    }
}

/// Sets this thread's comparator back to what it was.
struct Restored(Option<Comparator>);

impl Drop for Restored {
    fn drop(&mut self) {
        COMPARATOR.set(self.0);
    }
}

/// Calls `f`, in which this thread compares keys of [`Called`] by `comparator`. After it, none that
/// may be gone by then is called.
#[inline]
pub fn with_comparator<R>(comparator: Option<Comparator>, f: impl FnOnce() -> R) -> R {
    let _restored = comparator.map(|_| Restored(COMPARATOR.replace(comparator)));
    f()
}

/// A key, with its length in front.
#[repr(transparent)]
pub struct EntryKey<O> {
    order: PhantomData<O>,
    bytes: [u8],
}

/// Returns the length of a varint32 and what it says; `None` if it is none.
fn varint(bytes: &[u8]) -> Option<(usize, u32)> {
    let mut value = 0u64;
    for (i, byte) in bytes.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7F) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((i + 1, u32::try_from(value).ok()?));
        }
    }
    None
}

/// An entry: what it says, by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The user's key.
    pub user_key: &'a [u8],
    /// Sequence number and type.
    pub trailer: u64,
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Entry<'a> {
    /// Returns what an entry of RocksDB's says; `None` if it is none.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let key = key_bytes(bytes)?;
        let rest = &bytes[key.len()..];
        let (prefix, len) = varint(rest)?;
        let value = rest[prefix..].get(..len as usize)?;
        let key: &EntryKey<Bytewise> = EntryKey::new(key)?;
        Some(Self {
            user_key: key.user_key(),
            trailer: key.trailer(),
            value,
        })
    }
}

/// Returns the part of an entry that is its key.
#[inline]
pub fn key_bytes(entry: &[u8]) -> Option<&[u8]> {
    let (prefix, len) = match entry.first() {
        Some(&len) if len < 0x80 => (1, u32::from(len)),
        _ => varint(entry)?,
    };
    if (len as usize) < TRAILER {
        return None;
    }
    entry.get(..prefix + len as usize)
}

impl<O> EntryKey<O> {
    /// Returns the key that these bytes are; `None` if they are none, or more.
    #[inline]
    pub fn new(bytes: &[u8]) -> Option<&Self> {
        (key_bytes(bytes)?.len() == bytes.len()).then(|| Self::of_checked(bytes))
    }

    #[inline(always)]
    fn of_checked(bytes: &[u8]) -> &Self {
        let bytes: *const [u8] = bytes;
        // SAFETY: 1. the type is its bytes and nothing else (`repr(transparent)`); 2. the borrow is
        // the same.
        unsafe { &*(bytes as *const Self) }
    }

    /// Returns the key with its length in front.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the key without its length.
    #[inline(always)]
    fn internal_key(&self) -> &[u8] {
        let prefix = match self.bytes[0] < 0x80 {
            true => 1,
            false => varint(&self.bytes).map_or(1, |(prefix, _)| prefix),
        };
        &self.bytes[prefix..]
    }

    /// Returns the user's key.
    #[inline(always)]
    pub fn user_key(&self) -> &[u8] {
        let key = self.internal_key();
        &key[..key.len() - TRAILER]
    }

    /// Returns sequence number and type.
    #[inline(always)]
    pub fn trailer(&self) -> u64 {
        let mut eight = [0; TRAILER];
        eight.copy_from_slice(&self.bytes[self.bytes.len() - TRAILER..]);
        u64::from_le_bytes(eight)
    }
}

impl<O> fmt::Debug for EntryKey<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} @ {}", self.user_key(), self.trailer() >> 8)
    }
}

impl<O: KeyOrder> PartialEq for EntryKey<O> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<O: KeyOrder> Eq for EntryKey<O> {}

impl<O: KeyOrder> PartialOrd for EntryKey<O> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<O: KeyOrder> Ord for EntryKey<O> {
    #[inline(always)]
    fn cmp(&self, other: &Self) -> Ordering {
        O::compare(self, other)
    }
}

/// A key that is owned.
#[derive(Debug)]
pub struct OwnedKey<O> {
    order: PhantomData<O>,
    bytes: Box<[u8]>,
}

impl<O> Clone for OwnedKey<O> {
    fn clone(&self) -> Self {
        Self {
            order: PhantomData,
            bytes: self.bytes.clone(),
        }
    }
}

impl<O: KeyOrder> PartialEq for OwnedKey<O> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<O: KeyOrder> Eq for OwnedKey<O> {}

impl<O: KeyOrder> PartialOrd for OwnedKey<O> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<O: KeyOrder> Ord for OwnedKey<O> {
    fn cmp(&self, other: &Self) -> Ordering {
        let (this, other): (&EntryKey<O>, &EntryKey<O>) = (self.borrow(), other.borrow());
        this.cmp(other)
    }
}

impl<O> Borrow<EntryKey<O>> for OwnedKey<O> {
    fn borrow(&self) -> &EntryKey<O> {
        EntryKey::of_checked(&self.bytes)
    }
}

impl<O: KeyOrder> ToOwned for EntryKey<O> {
    type Owned = OwnedKey<O>;

    fn to_owned(&self) -> OwnedKey<O> {
        OwnedKey {
            order: PhantomData,
            bytes: self.bytes.into(),
        }
    }
}

/// In the order of bytes, all that precedes the last comparison is that of user keys; otherwise
/// there is nothing but the last comparison.
impl<O: KeyOrder> Separator for EntryKey<O> {
    const EXACT: bool = false;
    const HEAP: bool = true;
    type Full = <[u8] as Separator>::Full;
    type Slot = <[u8] as Separator>::Slot;
    type Prefix = <[u8] as Separator>::Prefix;

    #[inline]
    fn word(&self, skip: usize) -> u64 {
        match O::BYTEWISE {
            true => self.user_key().word(skip),
            false => 0,
        }
    }

    #[inline]
    fn cmp_prefix(&self, first: &Self, skip: usize) -> Ordering {
        match O::BYTEWISE {
            true => self.user_key().cmp_prefix(first.user_key(), skip),
            false => Ordering::Equal,
        }
    }

    fn common_prefix(&self, other: &Self, most: usize) -> usize {
        match O::BYTEWISE {
            true => self.user_key().common_prefix(other.user_key(), most),
            false => 0,
        }
    }

    fn store_prefix(&self, prefix: &Self::Prefix, skip: usize) {
        if O::BYTEWISE {
            self.user_key().store_prefix(prefix, skip);
        }
    }

    fn copy_prefix(to: &Self::Prefix, from: &Self::Prefix) {
        <[u8]>::copy_prefix(to, from);
    }

    #[inline]
    fn cmp_kept_prefix(&self, prefix: &Self::Prefix, skip: usize) -> Option<Ordering> {
        match O::BYTEWISE {
            true => self.user_key().cmp_kept_prefix(prefix, skip),
            false => Some(Ordering::Equal),
        }
    }

    fn allocate(&self) -> (Self::Full, usize) {
        self.bytes.allocate()
    }

    #[inline(always)]
    fn load(word: u64, slot: &Self::Slot) -> Option<Self::Full> {
        <[u8]>::load(word, slot)
    }

    #[inline(always)]
    fn store(slot: &Self::Slot, full: Option<Self::Full>) {
        <[u8]>::store(slot, full);
    }

    #[inline(always)]
    unsafe fn view(full: &Self::Full) -> &Self {
        // SAFETY: 1. the caller promises that it has not been freed. (`allocate` copied a key.)
        EntryKey::of_checked(unsafe { <[u8]>::view(full) })
    }

    #[inline(always)]
    fn prefetch(full: &Self::Full) {
        <[u8]>::prefetch(full);
    }

    unsafe fn free(full: Self::Full) -> usize {
        // SAFETY: 1. the caller promises that no thread uses it, and that it is freed once.
        unsafe { <[u8]>::free(full) }
    }
}

impl<O: KeyOrder> Stored for EntryKey<O> {
    type Word = u64;
    const KIND: DataKind = DataKind::Bytes;
    const RECORDS: bool = true;
    const ALLOCATES: bool = false;
    const SUMMED: bool = true;

    fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn byte_string(&self) -> Option<&[u8]> {
        O::BYTEWISE.then(|| self.user_key())
    }

    fn add_to_sum(&self, sum: u32) -> u32 {
        crc32c::crc32c_append(sum, &self.bytes)
    }

    /// Returns the word of a key that lies in its record already, which the caller has flushed.
    fn make<M: Media>(&self, heap: &Heap<M>) -> Result<u64, SpaceError> {
        let pm = heap.pool().pm();
        let at = (self.bytes.as_ptr().addr()).wrapping_sub(pm.base().addr() + HEADER) as u64;
        if at >= pm.len() {
            let what = io::Error::other("the key lies outside the pool");
            return Err(SpaceError::io("a record", what));
        }
        Ok(at | u64::from(self.hash() >> 16) << TAG_SHIFT)
    }

    #[inline]
    fn read<M: Media, R>(pm: &M, word: u64, f: impl FnOnce(&Self) -> R) -> Option<R> {
        let entry = record::entry(pm, word & OFFSET_MASK)?;
        Some(f(Self::of_checked(key_bytes(entry)?)))
    }

    // Records are freed with the memtable.
    fn discard<M: Media>(_heap: &Heap<M>, _word: u64) {}

    fn retire<M: Media>(_heap: &Heap<M>, _word: u64, _guard: &Guard) {}

    /// Checks the record. A table that is opened serves to be read once, so no block is marked.
    fn mark<M: Media>(heap: &Heap<M>, word: u64, _guard: &Guard) -> Result<(), String> {
        record::check(heap.pool().pm(), word & OFFSET_MASK)
    }

    // Records lie one after the other in blocks of the memtable.
    fn block(_word: u64) -> Option<u64> {
        None
    }

    #[inline(always)]
    fn place(word: u64) -> Option<u64> {
        Some(word & OFFSET_MASK)
    }

    fn check<M: Media>(heap: &Heap<M>, word: u64) -> Result<u64, String> {
        record::check(heap.pool().pm(), word & OFFSET_MASK).map(|()| 1)
    }
}

impl<O: KeyOrder> StoredKey for EntryKey<O> {
    #[inline]
    fn hash(&self) -> u32 {
        // Keys that an unknown order calls equal may differ in any byte of the user key.
        let fingerprint = match O::BYTEWISE {
            true => crc32c::crc32c(self.user_key()),
            false => 0,
        };
        let tag = crc32c::crc32c_append(fingerprint, &self.trailer().to_le_bytes());
        fingerprint & 0xFF | tag & !0xFFFF
    }

    #[inline]
    fn is_at<M: Media>(&self, hash: u32, pm: &M, word: u64) -> bool {
        word >> TAG_SHIFT == u64::from(hash >> 16)
            && Self::read(pm, word, |found| found == self) == Some(true)
    }

    fn save(&self, out: &mut Vec<u8>) {
        self.bytes.save(out);
    }

    fn restore(from: &mut &[u8]) -> Option<OwnedKey<O>> {
        let bytes = <[u8]>::restore(from)?;
        key_bytes(&bytes).filter(|key| key.len() == bytes.len())?;
        Some(OwnedKey {
            order: PhantomData,
            bytes: bytes.into(),
        })
    }

    /// RocksDB has its own bounds.
    fn fits(&self) -> bool {
        true
    }
}

impl<O: KeyOrder> Repr for EntryKey<O> {
    fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.bytes)
    }

    fn with_value_of<R>(bytes: &[u8], f: impl FnOnce(&Self) -> R) -> Option<R> {
        Self::new(bytes).map(f)
    }
}

impl<O: KeyOrder> KeyRepr for EntryKey<O> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(user: &[u8], sequence: u64) -> Vec<u8> {
        let mut bytes = vec![(user.len() + TRAILER) as u8];
        bytes.extend(user);
        bytes.extend((sequence << 8 | 1).to_le_bytes());
        bytes
    }

    #[test]
    fn keys_are_ordered_by_user_key_and_then_newest_first() {
        let sorted = [
            key(b"", 3),
            key(b"a", 9),
            key(b"a", 2),
            key(b"a\0", 5),
            key(b"b", 1),
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                let (a, b): (&EntryKey<Bytewise>, &EntryKey<Bytewise>) =
                    (EntryKey::new(a).unwrap(), EntryKey::new(b).unwrap());
                assert_eq!(a.cmp(b), i.cmp(&j), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn versions_of_a_key_share_its_fingerprint_and_no_tag() {
        let (a, b) = (key(b"user", 7), key(b"user", 8));
        let [a, b] = [&a, &b].map(|key| EntryKey::<Bytewise>::new(key).unwrap().hash());
        assert_eq!(a & 0xFF, b & 0xFF);
        assert_ne!(a >> 16, b >> 16);
    }

    #[test]
    fn what_is_no_entry_is_told() {
        assert!(
            EntryKey::<Bytewise>::new(&[3, 1, 2, 3]).is_none(),
            "no trailer"
        );
        assert!(EntryKey::<Bytewise>::new(&[0x80; 6]).is_none(), "no length");
        let mut entry = key(b"k", 4);
        assert!(Entry::parse(&entry).is_none(), "no value");
        entry.extend([2, b'v', b'w']);
        let parsed = Entry::parse(&entry).unwrap();
        assert_eq!((parsed.user_key, parsed.value), (&b"k"[..], &b"vw"[..]));
        assert_eq!(parsed.trailer, 4 << 8 | 1);
        assert!(
            Entry::parse(&entry[..entry.len() - 1]).is_none(),
            "cut short"
        );
        let long = vec![7; 300];
        let mut bytes = vec![0xB4, 0x02]; // 308
        bytes.extend(&long);
        bytes.extend([0; TRAILER]);
        assert_eq!(EntryKey::<Bytewise>::new(&bytes).unwrap().user_key(), long);
    }
}
