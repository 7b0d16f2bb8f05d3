//! Records, the content of the logs. An operation persists one record and nothing else.
//!
//! ```text
//! word 0 | CRC-32C of all that follows it, salted (32) | LNID (32)
//! word 1 | sequence number (48) | words of the record (13) | kind (3)
//!
//! put    | key word | value word |                      strings ...     an insertion or update
//! remove | key word |                                   strings ...
//! base   | n | n x (key word, value word) |             strings ...     the whole leaf, keys ascending
//! split  | n:16 m:16 LNID of the right leaf:32 | n pairs | m pairs | strings ...    two whole leaves
//!
//! string | length (u32) | CRC-32C of the bytes (u32) | bytes, zeros to the next word |
//! ```
//!
//! A number is its word. A byte string is *inline* if it is short. Its word is then its place in
//! the record, with the tag of [`crate::repr`] above it. Adding the record's offset gives that
//! module's word, so that the same code reads and compares strings here and there. A longer string
//! is a record of that module, with that module's word. (Places are below 64 KiB and no block of a
//! pool is, so that the two can be told apart.)
//!
//! Short strings are inline because a delta costs its lines: a key or value of a few bytes in a
//! block of its own would be another line at a random place, which log-structuring is meant to
//! avoid. Long strings are not, because collection copies records, and a string that fills media
//! lines by itself gains nothing from being written beside others.
//!
//! # Invariants
//! 1. A record that fits into half a line starts at a half, and any other at a line. So none
//!    touches more lines than necessary, and none is in two segments.
//! 2. Sequence numbers of a leaf ascend. A delta's number is one more than that of the delta or
//!    base before it. A record that was only moved keeps its number.
//! 3. The salt depends on the tree and the segment's generation. Therefore a record that was left
//!    in the memory before does not pass: equal bytes have different sums under different salts.

use crate::repr::Repr;
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{Media, PWord};
use std::sync::atomic::Ordering;

/// Bytes of a record's first two words.
pub(super) const HEADER: u64 = 16;
/// Records begin at multiples of this.
pub(super) const HALF_LINE: u64 = 32;
/// Maximum length of a record that is mended in bytes.
const MENDED: u64 = 256;
/// Maximum length of a record in bytes.
pub(super) const MAX_RECORD: u64 = (1 << 13) * 8 - 8;

const OFFSET_BITS: u32 = 48;
const OFFSET: u64 = (1 << OFFSET_BITS) - 1;
const SEQUENCE_SHIFT: u32 = 16;

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put = 1,
    Remove = 2,
    Base = 3,
    Split = 4,
}

impl Kind {
    /// True if the record holds all of a leaf.
    pub(super) fn whole(self) -> bool {
        matches!(self, Self::Base | Self::Split)
    }
}

/// A record's first two words.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) off: u64,
    pub(super) bytes: u64,
    pub(super) kind: Kind,
    pub(super) lnid: u32,
    pub(super) sequence: u64,
}

impl Record {
    /// Returns the bytes that the record takes in its segment.
    pub(super) fn footprint(&self) -> u64 {
        self.bytes.next_multiple_of(HALF_LINE)
    }
}

/// Pairs of one leaf in a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs {
    record: u64,
    first: u64,
    pub(super) n: u64,
}

/// Reads records.
#[derive(Debug)]
pub(super) struct Reader<'p, M> {
    pm: &'p M,
    /// Bytes of a segment, which is also a segment's alignment.
    segment: u64,
}

impl<M> Clone for Reader<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Reader<'_, M> {}

impl<'p, M: Media> Reader<'p, M> {
    pub(super) fn new(pm: &'p M, segment: u64) -> Self {
        Self { pm, segment }
    }

    /// Returns the persistent word at `off`.
    #[inline(always)]
    pub(super) fn cell(&self, off: u64) -> &'p PWord {
        debug_assert!(off.is_multiple_of(8) && off < self.pm.capacity());
        // SAFETY: 1. callers pass places inside a segment (or the directory), which is inside the
        // mapping, as is memory that once was a segment; 2. the place is 8-aligned; 3. every bit
        // pattern is a valid PWord; 4. the mapping lives as long as the medium.
        unsafe { &*self.pm.base().wrapping_add(off as usize).cast::<PWord>() }
    }

    #[inline(always)]
    fn word(&self, off: u64) -> u64 {
        // ORDERING: Relaxed; a record is stored before the version that its reader read, or the
        // reader's validation fails.
        self.cell(off).load(self.pm, Ordering::Relaxed)
    }

    /// Returns the record at `off`, a place inside a segment, or `None` if there can be none. If
    /// the memory may have become another segment's, the result is some record inside that
    /// segment's memory.
    #[inline(always)]
    pub(super) fn record(&self, off: u64) -> Option<Record> {
        let room = self.segment - (off & (self.segment - 1));
        if room < HEADER {
            return None;
        }
        let second = self.word(off + 8);
        let kind = match second & 7 {
            1 => Kind::Put,
            2 => Kind::Remove,
            3 => Kind::Base,
            4 => Kind::Split,
            _ => return None,
        };
        let bytes = (second >> 3 & 0x1FFF) * 8;
        let least = match kind {
            Kind::Put => HEADER + 16,
            Kind::Remove | Kind::Base | Kind::Split => HEADER + 8,
        };
        if bytes < least || bytes > room {
            return None;
        }
        Some(Record {
            off,
            bytes,
            kind,
            lnid: (self.word(off) >> 32) as u32,
            sequence: second >> SEQUENCE_SHIFT,
        })
    }

    /// Returns the whole record at `at` of the segment at `segment`, which has this salt. No thread
    /// writes there meanwhile.
    pub(super) fn record_at(&self, segment: u64, at: u64, salt: u32) -> Option<Record> {
        if at + HALF_LINE > self.segment {
            return None;
        }
        let record = self.record(segment + at)?;
        // A record that does not fit into half a line begins at a line.
        let aligned = record.bytes <= HALF_LINE || at.is_multiple_of(2 * HALF_LINE);
        (aligned && self.is_whole(&record, salt)).then_some(record)
    }

    /// Turns back the one wrong bit of the record at `at`, the last of an unsealed segment with
    /// this salt. Returns it, or `None` if there is no record with one wrong bit. If the bit was
    /// lost in a crash instead, with a word that differs from what was there in that bit alone,
    /// this completes an operation that was under way.
    ///
    /// Anything else passes for such a record with a chance of 2^-21, so only short ones are tried.
    pub(super) fn mend_at(&self, segment: u64, at: u64, salt: u32) -> Option<Record> {
        let (off, room) = (segment + at, self.segment.saturating_sub(at).min(MENDED));
        let words: Vec<u64> = (0..room / 8).map(|i| self.word(off + i * 8)).collect();
        let (word, wrong) = wrong_bit(&words, |bytes| sum(self.pm, salt, bytes))?;
        let cell = self.cell(off + word as u64 * 8);
        // ORDERING: Relaxed; the tree is being opened.
        cell.store(self.pm, words[word] ^ wrong, Ordering::Relaxed);
        // PERSIST: the mended word, before anything is written behind the record.
        self.pm.persist(cell);
        self.record_at(segment, at, salt)
    }

    /// Returns true if the record is whole and of a segment with this salt. No thread writes there
    /// meanwhile.
    fn is_whole(&self, record: &Record, salt: u32) -> bool {
        let at = self
            .pm
            .base()
            .wrapping_add(record.off as usize)
            .cast_const();
        let bytes = record.bytes as usize;
        if M::TRACED {
            self.pm.trace_load(at, bytes);
        }
        // SAFETY: 1. the record is inside its segment, which is inside the pool; 2. no thread
        // writes there meanwhile.
        let bytes = unsafe { std::slice::from_raw_parts(at, bytes) };
        sum(self.pm, salt, bytes) == u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// Returns a record's pairs of a leaf, or `None` if it has nothing of the leaf or is
    /// inconsistent.
    #[inline(always)]
    pub(super) fn pairs(&self, record: &Record, lnid: u32) -> Option<Pairs> {
        let off = record.off;
        let (first, n, all) = match record.kind {
            Kind::Put | Kind::Remove => (off + HEADER, 1, 0),
            Kind::Base => {
                let n = self.word(off + HEADER) & 0xFFFF;
                (off + HEADER + 8, n, n)
            }
            Kind::Split => {
                let counts = self.word(off + HEADER);
                let (left, right) = (counts & 0xFFFF, counts >> 16 & 0xFFFF);
                let first = off + HEADER + 8;
                if record.lnid == lnid {
                    (first, left, left + right)
                } else if (counts >> 32) as u32 == lnid {
                    (first + left * 16, right, left + right)
                } else {
                    return None;
                }
            }
        };
        let fits = all == 0 || HEADER + 8 + all * 16 <= record.bytes;
        fits.then_some(Pairs {
            record: off,
            first,
            n,
        })
    }

    /// Returns the leaf on the right of a split.
    pub(super) fn right_leaf(&self, record: &Record) -> Option<u32> {
        (record.kind == Kind::Split).then(|| (self.word(record.off + HEADER) >> 32) as u32)
    }

    /// Returns the key word of pair `i`.
    #[inline(always)]
    pub(super) fn key<K: Repr + ?Sized>(&self, pairs: &Pairs, i: u64) -> u64 {
        resolve::<K>(self.word(pairs.first + i * 16), pairs.record)
    }

    /// Returns the value word of pair `i`; a removal has none.
    #[inline(always)]
    pub(super) fn value<V: Repr + ?Sized>(&self, pairs: &Pairs, i: u64) -> u64 {
        resolve::<V>(self.word(pairs.first + i * 16 + 8), pairs.record)
    }

    /// Checks that a stored word of a record is a number, leads out of the log, or leads to a
    /// string of up to `inline` bytes inside the record.
    fn check_word<T: Repr + ?Sized>(
        &self,
        record: &Record,
        word: u64,
        inline: usize,
    ) -> Result<(), String> {
        let place = word & OFFSET;
        if !T::RECORDS || place >= CHUNK {
            return Ok(());
        }
        let wrong = || format!("its string at {place} is not inside the record");
        if place < HEADER + 8 || !place.is_multiple_of(8) || place + 8 > record.bytes {
            return Err(wrong());
        }
        let length = self.word(record.off + place) & 0xFFFF_FFFF;
        if length > inline as u64 || place + 8 + length > record.bytes {
            return Err(wrong());
        }
        Ok(())
    }

    /// Checks all words of a record's pairs of a leaf. Strings inside the record have up to
    /// `inline` bytes.
    ///
    /// # Errors
    /// The fault, in words.
    pub(super) fn check_pairs<K: Repr + ?Sized, V: Repr + ?Sized>(
        &self,
        record: &Record,
        pairs: &Pairs,
        inline: usize,
    ) -> Result<(), String> {
        for i in 0..pairs.n {
            let at = pairs.first + i * 16;
            self.check_word::<K>(record, self.word(at), inline)?;
            if record.kind != Kind::Remove {
                self.check_word::<V>(record, self.word(at + 8), inline)?;
            }
        }
        Ok(())
    }
}

#[inline(always)]
fn resolve<T: Repr + ?Sized>(word: u64, record: u64) -> u64 {
    if T::RECORDS && word & OFFSET < CHUNK {
        word + record
    } else {
        word
    }
}

/// Returns the checksum of a record, which its first four bytes hold.
fn sum<M: Media>(pm: &M, salt: u32, bytes: &[u8]) -> u32 {
    let covered = if pm.planted("lstree-sum-of-a-line") {
        bytes.len().min(LINE)
    } else {
        bytes.len()
    };
    crc32c::crc32c_append(salt, &bytes[4..covered])
}

/// Returns the word of a record, and the bit of it, that is wrong if exactly one is. `words` are
/// what lies where the record begins, and `sum` is the sum of a record.
fn wrong_bit(words: &[u64], sum: impl Fn(&[u8]) -> u32) -> Option<(usize, u64)> {
    let bytes_of =
        |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
    let differs = |words: &[u64]| {
        let long = (words.get(1)? >> 3 & 0x1FFF) as usize;
        let record = words.get(..long).filter(|_| long >= 3)?;
        Some((long, sum(&bytes_of(record)) ^ record[0] as u32))
    };
    // With a wrong bit in the second word, the length may be another.
    let mut tried = words.to_vec();
    for bit in 0..64 {
        *tried.get_mut(1)? ^= 1 << bit;
        if differs(&tried).is_some_and(|(_, difference)| difference == 0) {
            return Some((1, 1 << bit));
        }
        tried[1] ^= 1 << bit;
    }
    let (long, difference) = differs(words)?;
    if difference.is_power_of_two() {
        return Some((0, u64::from(difference)));
    }
    // What a flipped bit changes in the sum, from the record's last bit on: CRC-32C's polynomial,
    // multiplied by x for every bit further back.
    let mut changes = 0x82F6_3B78_u32;
    for bit in (32..long * 64).rev() {
        if changes == difference {
            return Some((bit / 64, 1 << (bit % 64)));
        }
        changes = changes >> 1 ^ if changes & 1 == 1 { 0x82F6_3B78 } else { 0 };
    }
    None
}

/// A key or value that goes into a record.
#[derive(Debug)]
pub(super) enum Field<'a, T: ?Sized> {
    /// One in the pool.
    Word(u64),
    /// One of the caller's. `word` is the number's, or that of the record made for a long string.
    New { given: &'a T, word: u64 },
}

impl<T: ?Sized> Clone for Field<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Field<'_, T> {}

impl<T: Repr + ?Sized> Field<'_, T> {
    fn word(&self) -> u64 {
        match self {
            Self::Word(word) | Self::New { word, .. } => *word,
        }
    }

    /// Calls `f` with the key or value. Returns `None` if the word leads nowhere (a corrupt pool).
    pub(super) fn with<M: Media, R>(&self, pm: &M, f: impl FnOnce(&T) -> R) -> Option<R> {
        match self {
            Self::Word(word) => T::read(pm, *word, f),
            Self::New { given, .. } => Some(f(given)),
        }
    }
}

/// A record under construction.
#[derive(Debug)]
pub(super) struct Draft {
    bytes: Vec<u8>,
    /// Index of the next word.
    next: usize,
}

impl Draft {
    fn start(kind: Kind, lnid: u32, sequence: u64, words: usize) -> Self {
        let fixed = HEADER as usize + words * 8;
        let mut bytes = Vec::with_capacity(fixed + 64);
        bytes.resize(fixed, 0);
        bytes[4..8].copy_from_slice(&lnid.to_le_bytes());
        bytes[8..16].copy_from_slice(&(sequence << SEQUENCE_SHIFT | kind as u64).to_le_bytes());
        Self {
            bytes,
            next: HEADER as usize,
        }
    }

    /// Begins an insertion or update: a key and a value follow.
    pub(super) fn put(lnid: u32, sequence: u64) -> Self {
        Self::start(Kind::Put, lnid, sequence, 2)
    }

    /// Begins a removal: a key follows.
    pub(super) fn remove(lnid: u32, sequence: u64) -> Self {
        Self::start(Kind::Remove, lnid, sequence, 1)
    }

    /// Begins a leaf: `n` keys and values follow.
    pub(super) fn base(lnid: u32, sequence: u64, n: usize) -> Self {
        let mut draft = Self::start(Kind::Base, lnid, sequence, 1 + 2 * n);
        draft.push_word(n as u64);
        draft
    }

    /// Begins two leaves: the keys and values of both follow.
    pub(super) fn split(lnid: u32, sequence: u64, n: usize, right: u32, m: usize) -> Self {
        let mut draft = Self::start(Kind::Split, lnid, sequence, 1 + 2 * (n + m));
        draft.push_word(n as u64 | (m as u64) << 16 | u64::from(right) << 32);
        draft
    }

    fn push_word(&mut self, word: u64) {
        self.bytes[self.next..self.next + 8].copy_from_slice(&word.to_le_bytes());
        self.next += 8;
    }

    /// Adds a key or value. A string of up to `inline` bytes is copied.
    pub(super) fn push<M: Media, T: Repr + ?Sized>(
        &mut self,
        pm: &M,
        field: &Field<'_, T>,
        inline: usize,
    ) {
        let copied = if T::RECORDS {
            field.with(pm, |value| {
                let short = value.byte_string().filter(|bytes| bytes.len() <= inline);
                short.map(|bytes| self.push_string(bytes))
            })
        } else {
            None
        };
        self.push_word(copied.flatten().unwrap_or(field.word()));
    }

    /// Adds the pairs of a record unread, since what they lead to outside of it may be gone.
    pub(super) fn push_pairs<M: Media, K: Repr + ?Sized, V: Repr + ?Sized>(
        &mut self,
        reader: &Reader<'_, M>,
        record: &Record,
        pairs: &Pairs,
    ) {
        for i in 0..pairs.n {
            let at = pairs.first + i * 16;
            self.push_stored::<M, K>(reader, record, reader.word(at));
            if record.kind != Kind::Remove {
                self.push_stored::<M, V>(reader, record, reader.word(at + 8));
            }
        }
    }

    fn push_stored<M: Media, T: Repr + ?Sized>(
        &mut self,
        reader: &Reader<'_, M>,
        record: &Record,
        word: u64,
    ) {
        let copied = if T::RECORDS && word & OFFSET < CHUNK {
            T::read(reader.pm, resolve::<T>(word, record.off), |string| {
                string.byte_string().map(|bytes| self.push_string(bytes))
            })
        } else {
            None
        };
        self.push_word(copied.flatten().unwrap_or(word));
    }

    /// Copies a string to the end. Returns its word.
    fn push_string(&mut self, string: &[u8]) -> u64 {
        let place = self.bytes.len() as u64;
        let crc = crc32c::crc32c(string);
        self.bytes.extend((string.len() as u32).to_le_bytes());
        self.bytes.extend(crc.to_le_bytes());
        self.bytes.extend_from_slice(string);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        place | u64::from(crc >> 16) << OFFSET_BITS
    }

    /// Returns the record's length.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Completes the record for a segment with this salt, and returns its bytes.
    pub(super) fn seal<M: Media>(&mut self, pm: &M, salt: u32) -> &[u8] {
        let words = self.bytes.len() as u64 / 8;
        debug_assert!(words * 8 <= MAX_RECORD, "a record of {words} words");
        let mut second = [0; 8];
        second.copy_from_slice(&self.bytes[8..16]);
        let second = u64::from_le_bytes(second) & !(0x1FFF << 3) | words << 3;
        self.bytes[8..16].copy_from_slice(&second.to_le_bytes());
        let crc = sum(pm, salt, &self.bytes);
        self.bytes[..4].copy_from_slice(&crc.to_le_bytes());
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_bit_of_a_record_is_found() {
        let sum = |bytes: &[u8]| crc32c::crc32c_append(77, &bytes[4..]);
        let mut words = vec![
            5_u64 << 32,
            9 << SEQUENCE_SHIFT | 4 << 3 | 1,
            0x1234,
            0x5678,
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        words[0] |= u64::from(sum(&bytes));
        // What is behind it does not matter.
        words.extend([u64::MAX; 4]);
        for bit in 0..256 {
            let mut flipped = words.clone();
            flipped[bit / 64] ^= 1 << (bit % 64);
            assert_eq!(wrong_bit(&flipped, sum), Some((bit / 64, 1 << (bit % 64))));
        }
        words[2] ^= 3;
        assert_eq!(wrong_bit(&words, sum), None);
        assert_eq!(wrong_bit(&[0; 8], sum), None);
    }
}
