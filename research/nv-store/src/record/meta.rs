//! Metadata of a record: what never changes, apart from the value itself.

use super::{EXPIRY, HEADER, MAX_EXPIRY, MAX_INLINE_BYTES, SEGMENT};
use bristlecone_index::repr::within_one_line;
use bristlecone_store::MAX_VALUE_BYTES;
use smallvec::SmallVec;
use std::fmt;

/// Flag: the value is not in the record's block. It is in segments, or there is none if its length
/// is 0: a tombstone.
const APART: u64 = 1 << 30;
/// Flag: the record has an expiry.
pub(super) const EXPIRES: u64 = 1 << 31;
const LEN: u64 = APART - 1;

const _: () = assert!(MAX_VALUE_BYTES as u64 <= LEN);

/// Length, flags, checksum and expiry of a record.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    /// The record's third word.
    pub(super) body: u64,
    /// In ms since 1970; 0 for none.
    pub(super) expiry: u64,
}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meta")
            .field("expiry", &self.expiry())
            .field("apart", &self.is_apart())
            .field("len", &self.len())
            .field("crc", &format_args!("{:#010x}", self.crc()))
            .finish()
    }
}

impl Meta {
    /// The metadata of a value to be stored, except for the checksum.
    pub(super) fn new(value: Option<&[u8]>, expiry: u64) -> Self {
        // Callers have checked the length.
        let len = value.map_or(0, <[u8]>::len);
        let apart = u64::from(value.is_none() || len > MAX_INLINE_BYTES) * APART;
        let expires = u64::from(expiry != 0) * EXPIRES;
        Self {
            body: len as u64 & LEN | apart | expires,
            expiry: expiry.min(MAX_EXPIRY),
        }
    }

    pub(super) fn with_crc(self, crc: u32) -> Self {
        Self {
            body: self.body & u64::from(u32::MAX) | u64::from(crc) << 32,
            ..self
        }
    }

    /// Returns length and flags, which the checksum covers.
    pub(super) fn summed(&self) -> [u8; 4] {
        (self.body as u32).to_le_bytes()
    }

    /// Returns the expiry as it is stored: no bytes if there is none.
    pub(super) fn stored_expiry(&self) -> SmallVec<[u8; 8]> {
        let bytes = self.expiry.to_le_bytes();
        SmallVec::from_slice(if self.expires() { &bytes } else { &[] })
    }

    pub(super) fn expires(&self) -> bool {
        self.body & EXPIRES != 0
    }

    /// Returns where the value, or the table of its segments, begins in the record.
    pub(super) fn value_at(&self) -> u64 {
        HEADER + u64::from(self.expires()) * EXPIRY
    }

    /// Returns the expiry in ms since 1970; 0 for none.
    pub fn expiry(&self) -> u64 {
        self.expiry
    }

    fn is_apart(&self) -> bool {
        self.body & APART != 0
    }

    /// Returns whether the record says that the key has no value.
    pub fn is_tombstone(&self) -> bool {
        self.is_apart() && self.len() == 0
    }

    pub(super) fn is_segmented(&self) -> bool {
        self.is_apart() && self.len() > 0
    }

    /// Returns the length of the value in bytes.
    pub fn len(&self) -> usize {
        (self.body & LEN) as usize
    }

    pub(super) fn crc(&self) -> u32 {
        (self.body >> 32) as u32
    }

    /// Returns the bytes of the record, segments included.
    pub fn bytes(&self) -> u64 {
        let in_segments = if self.is_segmented() { self.len() } else { 0 };
        self.block_bytes() + in_segments as u64
    }

    /// Returns the bytes of the block that holds the head.
    pub(super) fn block_bytes(&self) -> u64 {
        let rest = if self.is_segmented() {
            segments(self.len()) * size_of::<u64>()
        } else {
            self.len()
        };
        self.value_at() + rest as u64
    }

    /// Returns whether the record is in one block.
    pub fn is_whole(&self) -> bool {
        !self.is_segmented()
    }

    /// Returns whether a record can have this metadata.
    pub fn is_valid(&self) -> bool {
        self.len() <= MAX_VALUE_BYTES
            && self.is_segmented() == (self.len() > MAX_INLINE_BYTES)
            && !(self.is_tombstone() && self.expires())
            && self.expires() == (1..=MAX_EXPIRY).contains(&self.expiry)
    }

    /// Returns whether a reader finds no value at the time that `now` returns. `now` is called only
    /// if there is an expiry.
    pub fn absent_by(&self, now: impl FnOnce() -> u64) -> bool {
        self.is_tombstone() || self.expiry() != 0 && self.expiry() <= now()
    }

    /// Returns whether the value has expired at `now`.
    pub fn expired(&self, now: u64) -> bool {
        self.expiry() != 0 && self.expiry() <= now
    }
}

/// Returns the bytes to allocate for the head of the record of a value of `len` bytes.
pub(super) fn block_bytes(len: usize, expires: bool) -> u64 {
    let head = HEADER + u64::from(expires) * EXPIRY;
    within_one_line(if len > MAX_INLINE_BYTES {
        head + segments(len) as u64 * 8
    } else {
        head + len as u64
    })
}

/// Returns how many segments a value of that length has.
pub(super) fn segments(len: usize) -> usize {
    len.div_ceil(SEGMENT)
}
