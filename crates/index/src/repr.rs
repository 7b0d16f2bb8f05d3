//! Keys and values as words of a node.
//!
//! | type | word | words of 8 bytes |
//! | --- | --- | --- |
//! | `u64` | the number itself | 1 |
//! | `u128` | the number itself, its low half first | 2 |
//! | `[u8]` | bits 0..48: offset of a record; bits 48..64: tag (high bits of the record's CRC-32C) | 1 |
//!
//! Every design holds types of one word ([`KeyRepr`], [`Repr`]). Some hold wide entries too
//! ([`StoredKey`], [`Stored`]); the others do not compile with them. A wide word is never published
//! by one store, unless a design declares 16 bytes to be failure-atomic.
//!
//! `u128` keys are in the order of numbers. For sixteen bytes in the order of bytes (UUIDs,
//! digests), use `u128::from_be_bytes`, and `to_be_bytes` to get them back.
//!
//! ```text
//! record | length (u32) | CRC-32C of the bytes (u32) | bytes ... |      in a block of its size class
//! ```
//!
//! A byte-string key is compared by fingerprint (in the leaf's header), then tag, then bytes
//! (LB+-Tree section 4.1 keeps an 8-byte pointer per key and per value; the tag uses the pointer's
//! spare bits). Records are written once, before anything leads to them, and never change; a new
//! value is a new record.
//!
//! # Crash states
//! Recovery frees a record that no leaf leads to, because no walk finds it. A record's lines are
//! flushed when it is made and fenced before the word that leads to it is published.

pub use crate::record::{
    HEADER, MAX_VALUE, check_record, record_bytes, within_one_line, write_record,
};

use crate::damage;
use crate::inner::Separator;
use crate::record::{OFFSET_MASK, TAG_SHIFT, record};
use bristlecone_pmem::pool::DataKind;
use bristlecone_pmem::{Heap, Media, POff, SpaceError};
use crossbeam_epoch::Guard;
use std::fmt;

/// Maximum length of a byte-string key in bytes: 64 KiB of a user's, and 4 that a layer above puts
/// before them.
pub const MAX_KEY: usize = (64 << 10) + 4;
/// Maximum number of 8-byte words of a key or value in a node.
pub const WIDEST: usize = 2;

/// A key or value as a node holds it: one or two 8-byte words.
pub trait Word:
    Copy + Ord + Default + fmt::Debug + fmt::LowerHex + Send + Sync + std::hash::Hash + 'static
{
    /// Number of words.
    const WORDS: usize;

    /// Returns the words in the order in which they lie in a node, followed by zeros.
    fn parts(self) -> [u64; WIDEST];

    /// Puts the words together.
    fn from_parts(parts: [u64; WIDEST]) -> Self;
}

impl Word for u64 {
    const WORDS: usize = 1;

    #[inline(always)]
    fn parts(self) -> [u64; WIDEST] {
        [self, 0]
    }

    #[inline(always)]
    fn from_parts([word, _]: [u64; WIDEST]) -> Self {
        word
    }
}

impl Word for u128 {
    const WORDS: usize = 2;

    #[inline(always)]
    fn parts(self) -> [u64; WIDEST] {
        [self as u64, (self >> 64) as u64]
    }

    #[inline(always)]
    fn from_parts([low, high]: [u64; WIDEST]) -> Self {
        Self::from(high) << 64 | Self::from(low)
    }
}

/// The word of a key or value of this type.
pub type WordOf<T> = <T as Stored>::Word;

/// A key and a value as words of an entry.
pub type PairOf<K, V> = (WordOf<K>, WordOf<V>);

/// A type that a leaf can hold in one or two words, in the node or through a record.
pub trait Stored: ToOwned {
    /// The words in the node.
    type Word: Word;

    /// Name in the root table.
    const KIND: DataKind;
    /// True if words lead to records.
    const RECORDS: bool;
    /// True if an index leaves a sum of such keys or values when it is closed.
    const SUMMED: bool = false;
    /// True if [`make`](Self::make) allocates a record, so that it is called only if that is likely
    /// to be kept.
    const ALLOCATES: bool = Self::RECORDS;

    /// Returns the length in bytes, for limits; 8 for numbers.
    fn bytes(&self) -> usize;

    /// Returns the bytes of a byte string, for designs that keep short ones in their own nodes;
    /// `None` for numbers.
    fn byte_string(&self) -> Option<&[u8]> {
        None
    }

    /// Returns the byte string of these bytes; `None` for numbers.
    fn of_byte_string(bytes: &[u8]) -> Option<&Self> {
        let _ = bytes;
        None
    }

    /// Returns a CRC-32C that has come to `sum`, with this value behind what it is of.
    fn add_to_sum(&self, sum: u32) -> u32 {
        sum
    }

    /// Makes the word of this value. A record is allocated, written and flushed, and not fenced.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no room. Nothing is allocated then.
    fn make<M: Media>(&self, heap: &Heap<M>) -> Result<Self::Word, SpaceError>;

    /// Calls `f` with the value behind `word`. Returns `None` if the word is implausible or the
    /// record fails its checksum, and [tells the reader](crate::damage::reading). The caller is
    /// pinned, and read the word from a leaf while pinned.
    fn read<M: Media, R>(pm: &M, word: Self::Word, f: impl FnOnce(&Self) -> R) -> Option<R>;

    /// Frees the record of `word`, which nothing ever led to.
    fn discard<M: Media>(heap: &Heap<M>, word: Self::Word);

    /// Frees the record of `word` once pinned readers have left. Durably, nothing may lead to it
    /// any more.
    fn retire<M: Media>(heap: &Heap<M>, word: Self::Word, guard: &Guard);

    /// Marks the record of `word` as reached, for recovery.
    ///
    /// # Errors
    /// The reason in words.
    fn mark<M: Media>(heap: &Heap<M>, word: Self::Word, guard: &Guard) -> Result<(), String>;

    /// Returns the offset of the block that `word` leads to, if it leads to one.
    fn block(word: Self::Word) -> Option<u64>;

    /// Returns the offset of what `word` leads to, a block or not, to prefetch it.
    #[inline(always)]
    fn place(word: Self::Word) -> Option<u64> {
        Self::block(word)
    }

    /// Checks the record of `word`, checksum included. Returns the number of records (0 or 1) that
    /// are whole.
    ///
    /// # Errors
    /// The reason in words. While damage is [collected](crate::damage::collecting_damage), it is
    /// noted instead.
    fn check<M: Media>(heap: &Heap<M>, word: Self::Word) -> Result<u64, String>;
}

/// A [`Stored`] that can be a key.
pub trait StoredKey: Stored + Separator {
    /// Returns the hash of the key: its low byte is the fingerprint, and the rest may make up the
    /// tag.
    fn hash(&self) -> u32;

    /// Returns true if `word` stands for this key, whose hash is `hash`.
    fn is_at<M: Media>(&self, hash: u32, pm: &M, word: Self::Word) -> bool;

    /// Appends the key to a snapshot.
    fn save(&self, out: &mut Vec<u8>);

    /// Removes a key from the front of a snapshot. Returns `None` if it is cut short.
    fn restore(from: &mut &[u8]) -> Option<Self::Owned>;

    /// Returns true if the key is not too long.
    fn fits(&self) -> bool {
        self.bytes() <= MAX_KEY
    }
}

/// A type that a leaf can hold in 8 bytes. Every design holds it.
pub trait Repr: Stored<Word = u64> {
    /// Calls `f` with the bytes that stand for this key or value where it is not in a word: their
    /// order is its order, so those of a number are big-endian.
    fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R;

    /// Calls `f` with what `bytes` stand for; `None` if they stand for nothing.
    fn with_value_of<R>(bytes: &[u8], f: impl FnOnce(&Self) -> R) -> Option<R>;
}

/// A [`Repr`] that can be a key.
pub trait KeyRepr: Repr + StoredKey<Word = u64> {}

impl Repr for u64 {
    #[inline(always)]
    fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(&self.to_be_bytes())
    }

    #[inline(always)]
    fn with_value_of<R>(bytes: &[u8], f: impl FnOnce(&Self) -> R) -> Option<R> {
        bytes
            .try_into()
            .ok()
            .map(|bytes| f(&Self::from_be_bytes(bytes)))
    }
}

impl Repr for [u8] {
    #[inline(always)]
    fn with_bytes<R>(&self, f: impl FnOnce(&[u8]) -> R) -> R {
        f(self)
    }

    #[inline(always)]
    fn with_value_of<R>(bytes: &[u8], f: impl FnOnce(&Self) -> R) -> Option<R> {
        Some(f(bytes))
    }
}

impl KeyRepr for u64 {}
impl KeyRepr for [u8] {}

/// A number is its own word.
macro_rules! number {
    ($number:ty, $kind:ident, $bytes:literal, |$key:ident| $hash:expr) => {
        impl Stored for $number {
            type Word = $number;
            const KIND: DataKind = DataKind::$kind;
            const RECORDS: bool = false;
            const SUMMED: bool = true;

            #[inline(always)]
            fn bytes(&self) -> usize {
                $bytes
            }

            fn add_to_sum(&self, sum: u32) -> u32 {
                crc32c::crc32c_append(sum, &self.to_le_bytes())
            }

            #[inline(always)]
            fn make<M: Media>(&self, _heap: &Heap<M>) -> Result<$number, SpaceError> {
                Ok(*self)
            }

            #[inline(always)]
            fn read<M: Media, R>(_pm: &M, word: $number, f: impl FnOnce(&Self) -> R) -> Option<R> {
                Some(f(&word))
            }

            #[inline(always)]
            fn discard<M: Media>(_heap: &Heap<M>, _word: $number) {}

            #[inline(always)]
            fn retire<M: Media>(_heap: &Heap<M>, _word: $number, _guard: &Guard) {}

            #[inline(always)]
            fn mark<M: Media>(
                _heap: &Heap<M>,
                _word: $number,
                _guard: &Guard,
            ) -> Result<(), String> {
                Ok(())
            }

            fn block(_word: $number) -> Option<u64> {
                None
            }

            fn check<M: Media>(_heap: &Heap<M>, _word: $number) -> Result<u64, String> {
                Ok(0)
            }
        }

        impl StoredKey for $number {
            #[inline(always)]
            fn hash(&self) -> u32 {
                let $key = *self;
                $hash
            }

            #[inline(always)]
            fn is_at<M: Media>(&self, _hash: u32, _pm: &M, word: $number) -> bool {
                *self == word
            }

            fn save(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }

            fn restore(from: &mut &[u8]) -> Option<$number> {
                let (bytes, rest) = from.split_first_chunk::<$bytes>()?;
                *from = rest;
                Some(<$number>::from_le_bytes(*bytes))
            }
        }
    };
}

/// 2^64 divided by the golden ratio; the top byte of a product depends on all bits of the other
/// factor.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

number!(u64, U64, 8, |key| (key.wrapping_mul(GOLDEN) >> 56) as u32);
number!(u128, U128, 16, |key| {
    let mixed = (key as u64).wrapping_mul(GOLDEN).rotate_left(32) ^ (key >> 64) as u64;
    (mixed.wrapping_mul(GOLDEN) >> 56) as u32
});

impl Stored for [u8] {
    type Word = u64;
    const KIND: DataKind = DataKind::Bytes;
    const RECORDS: bool = true;
    const SUMMED: bool = true;

    #[inline]
    fn bytes(&self) -> usize {
        self.len()
    }

    #[inline]
    fn byte_string(&self) -> Option<&[u8]> {
        Some(self)
    }

    fn add_to_sum(&self, sum: u32) -> u32 {
        let sum = crc32c::crc32c_append(sum, &(self.len() as u64).to_le_bytes());
        crc32c::crc32c_append(sum, self)
    }

    #[inline]
    fn of_byte_string(bytes: &[u8]) -> Option<&Self> {
        Some(bytes)
    }

    fn make<M: Media>(&self, heap: &Heap<M>) -> Result<u64, SpaceError> {
        let block = heap.alloc(within_one_line(record_bytes(self)))?;
        // SAFETY: 1. `alloc` returned a block inside the pool with at least `record_bytes` bytes;
        // 2. it was just allocated, so no other thread has its offset.
        let crc = unsafe { write_record(heap.pool().pm(), block, self) };
        Ok(block.get() | u64::from(crc >> 16) << TAG_SHIFT)
    }

    #[inline]
    fn read<M: Media, R>(pm: &M, word: u64, f: impl FnOnce(&Self) -> R) -> Option<R> {
        read_string(pm, word, f)
    }

    fn discard<M: Media>(heap: &Heap<M>, word: u64) {
        heap.free(POff::new(word & OFFSET_MASK));
    }

    fn retire<M: Media>(heap: &Heap<M>, word: u64, guard: &Guard) {
        heap.retire(POff::new(word & OFFSET_MASK), guard);
    }

    fn mark<M: Media>(heap: &Heap<M>, word: u64, guard: &Guard) -> Result<(), String> {
        let (_, bytes) = located(heap, word)?;
        heap.mark(word & OFFSET_MASK, (HEADER + bytes.len()) as u64, guard)
    }

    fn block(word: u64) -> Option<u64> {
        Some(word & OFFSET_MASK)
    }

    fn check<M: Media>(heap: &Heap<M>, word: u64) -> Result<u64, String> {
        match check_string(heap, word) {
            Ok(()) => Ok(1),
            Err(what) => damage::note(word & OFFSET_MASK, what).map(|()| 0),
        }
    }
}

impl StoredKey for [u8] {
    #[inline]
    fn hash(&self) -> u32 {
        crc32c::crc32c(self)
    }

    #[inline]
    fn is_at<M: Media>(&self, hash: u32, pm: &M, word: u64) -> bool {
        word >> TAG_SHIFT == u64::from(hash >> 16)
            && record(pm, word).is_some_and(|(_, bytes)| bytes == self)
    }

    fn save(&self, out: &mut Vec<u8>) {
        out.extend((self.len() as u32).to_le_bytes());
        out.extend_from_slice(self);
    }

    fn restore(from: &mut &[u8]) -> Option<Vec<u8>> {
        let (four, rest) = from.split_first_chunk::<4>()?;
        let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*four) as usize)?;
        *from = rest;
        Some(bytes.to_vec())
    }
}

/// Calls `f` with the string that `word` leads to, if its checksum and the word's tag are right.
/// Otherwise the reader [is told](damage::reading).
#[inline]
fn read_string<M: Media, R>(pm: &M, word: u64, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    read_whole(pm, word, |crc| crc >> 16 == (word >> TAG_SHIFT) as u32, f)
}

/// Calls `f` with the string of the record at `off`, if its checksum is right. Otherwise the reader
/// [is told](damage::reading), unless `off` is 0: then there is none.
#[inline]
pub fn read_record<M: Media, R>(pm: &M, off: u64, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
    read_whole(pm, off, |_| true, f)
}

#[inline]
fn read_whole<M: Media, R>(
    pm: &M,
    word: u64,
    fits: impl FnOnce(u32) -> bool,
    f: impl FnOnce(&[u8]) -> R,
) -> Option<R> {
    let found = record(pm, word);
    if let Some((crc, bytes)) = found
        && crc32c::crc32c(bytes) == crc
        && fits(crc)
    {
        return Some(f(bytes));
    }
    // A word of zeros leads to nothing: an optimistic reader may see one.
    let past =
        word != 0 && damage::met(|| format!("record {:#x} fails its checksum", word & OFFSET_MASK));
    found.filter(|_| past).map(|(_, bytes)| f(bytes))
}

/// Checks the record of a string's word.
fn check_string<M: Media>(heap: &Heap<M>, word: u64) -> Result<(), String> {
    let (crc, bytes) = located(heap, word)?;
    heap.check(word & OFFSET_MASK, (HEADER + bytes.len()) as u64)?;
    let found = crc32c::crc32c(bytes);
    if found != crc || u64::from(crc >> 16) != word >> TAG_SHIFT {
        return Err(format!(
            "record {:#x}: checksum {found:#010x}, expected {crc:#010x}, tag {:#06x}",
            word & OFFSET_MASK,
            word >> TAG_SHIFT
        ));
    }
    Ok(())
}

fn located<M: Media>(heap: &Heap<M>, word: u64) -> Result<(u32, &[u8]), String> {
    record(heap.pool().pm(), word)
        .ok_or_else(|| format!("word {word:#x} leads to no record inside the pool"))
}
