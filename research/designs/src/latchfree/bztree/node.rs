//! Nodes: their layout, and reading them (section 4.1).
//!
//! ```text
//! word 0 | status                                                    changed by multi-word swaps alone
//! word 1 | size in words (20 bits) | sorted (12 bits from 20) | level (8 bits from 32), 0 for a leaf | check (16 bits from 40)
//! word 2 | memory word: the node's own offset once it is in the tree (see the module's head)
//! word 3 | metadata 0 | metadata 1 | ...  free space (zeros)  ... | record 1 | record 0 |
//!
//! status of a leaf     frozen (bit 60) | version (24 bits from 36) | deleted words (12 from 24) | words of records
//!                      (12 from 12) | entries (12)
//! status of an inner   frozen (bit 60) | version (60 bits)
//! metadata             0: free
//!                      visible (bit 60) | form (2 bits from 57) | check (18 from 39) | offset in words (12 from 27) |
//!                      bytes of the key (12 from 15) | bytes of the value (15 bits)
//!                      the same, not visible, the check with other bits: deleted
//!                      reserved (bit 59) | allocation epoch (59 bits)
//!                      1: given up
//! record               key, to a whole word | value, to a whole word
//! ```
//!
//! A check of metadata is of the form, the lengths, and the bytes of key and value that never
//! change.
//!
//! The version repeats after 2^24 updates in place: a scan's snapshot would take a leaf for
//! unchanged if exactly that many came between two reads of its status.
//!
//! The paper's fields have other widths. Sizes here count words, since everything is stored in
//! words. A deleted record's metadata keep the offset, since the binary search of the sorted part
//! reads deleted records too.
//!
//! # Invariants
//! 1. A leaf's metadata change from free to reserved to visible or given up, from visible to
//!    deleted, and never back.
//! 2. A record is written once, before its metadata are visible, and then never changes, except for
//!    a value of the form [`Form::Word`] or [`Form::Block`], which is a word that multi-word swaps
//!    change.
//! 3. Every read of a node is inside it, whatever the pool holds: sizes are checked when a node is
//!    looked up, and indexes are clamped to its end.

use bristlecone_pmem::media::LINE;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::{Media, PWord};
use std::sync::atomic::Ordering;

/// Words before the metadata.
pub(super) const HEADER: usize = 3;
const STATUS: usize = 0;
const SHAPE: usize = 1;
const MEMORY: usize = 2;

/// Maximum number of words of a node: the largest block.
pub(super) const MAX_WORDS: usize = (bristlecone_pmem::heap::activated::MAX_ACTIVATED / 8) as usize;

/// Bits of a leaf's status for entries, words of records, and deleted words.
const BITS: u32 = 12;
const COUNT: u64 = (1 << BITS) - 1;
/// Bits of the version in a leaf's status.
const VERSION: u64 = (1 << 60) - (1 << (3 * BITS));

const _: () = assert!(MAX_WORDS <= COUNT as usize, "a status has room for words");

/// Bit of a status that says that nothing in the node changes any more.
pub(super) const FROZEN: u64 = 1 << 60;

fn field(word: u64, at: u32, bits: u32) -> usize {
    (word >> at & ((1 << bits) - 1)) as usize
}

/// A leaf's status word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(pub u64);

impl Status {
    /// Returns the status of a new leaf with that many entries, whose records take that many words.
    pub fn of(entries: usize, records: usize) -> Self {
        debug_assert!(entries < 1 << BITS && records < 1 << BITS);
        Self(entries as u64 | (records as u64) << BITS)
    }

    pub fn frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    /// Returns the number of entries of the metadata array in use.
    pub fn entries(self) -> usize {
        field(self.0, 0, BITS)
    }

    /// Returns the words of the record block.
    pub fn records(self) -> usize {
        field(self.0, BITS, BITS)
    }

    /// Returns the words of records, metadata included, that no longer count.
    pub fn deleted(self) -> usize {
        field(self.0, 2 * BITS, BITS)
    }

    /// Returns the status with one more entry, whose record takes `words`.
    pub fn reserve(self, words: usize) -> Self {
        debug_assert!(self.entries() + 1 < 1 << BITS && self.records() + words < 1 << BITS);
        Self(self.0 + 1 + ((words as u64) << BITS))
    }

    /// Returns the status with that many more words that no longer count.
    pub fn delete(self, words: usize) -> Self {
        // A damaged pool may have more deleted words than the node has.
        let words = words.min(COUNT as usize - self.deleted());
        Self(self.0 + ((words as u64) << (2 * BITS)))
    }

    /// Returns another status with the same fields: a value was replaced in place, or the leaf was
    /// thawed.
    pub fn touch(self) -> Self {
        Self(self.0 & !VERSION | self.0.wrapping_add(1 << (3 * BITS)) & VERSION)
    }

    /// Returns the status of a thawed leaf, which differs from the one before it was frozen.
    pub fn thawed(self) -> Self {
        Self(self.0 & !FROZEN).touch()
    }
}

/// Returns the status of an inner node after `version`, not frozen.
pub(super) fn next_version(version: u64) -> u64 {
    (version + 1) & (FROZEN - 1)
}

/// Form in which a record holds its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Bytes that never change.
    Inline = 0,
    /// A number below 2^61, in a word that swaps change.
    Word = 1,
    /// The offset of a block, in a word that swaps change; 0 once the record is deleted.
    Block = 2,
}

/// A word of the metadata array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meta(pub u64);

const VISIBLE: u64 = 1 << 60;
const RESERVED: u64 = 1 << 59;
/// Bits of the check.
const CHECK: u64 = (1 << 57) - (1 << CHECK_AT);
const CHECK_AT: u32 = 39;
/// Bits of the check that deletion turns, so that no flipped bit is one.
const DELETED: u64 = 0x1_5555 << CHECK_AT;
/// Bits of the offset.
const OFFSET: u64 = (1 << CHECK_AT) - (1 << 27);

impl Meta {
    pub const FREE: Self = Self(0);
    /// An insertion that came too late, or was given up by another thread.
    pub const GIVEN_UP: Self = Self(1);

    /// Returns visible metadata.
    pub fn of(form: Form, offset: usize, key: usize, value: usize) -> Self {
        debug_assert!(offset < 1 << 12 && key < 1 << 12 && value < 1 << 15);
        Self(
            VISIBLE
                | (form as u64) << 57
                | (offset as u64) << 27
                | (key as u64) << 15
                | value as u64,
        )
    }

    /// Returns the metadata with the check of the bytes of a record's key, and of its value if that
    /// never changes.
    pub fn checked(self, key: &[u8], value: &[u8]) -> Self {
        let rest = self.0 & !(CHECK | OFFSET | VISIBLE);
        let sum = crc32c::crc32c_append(crc32c::crc32c(key), value);
        let sum = u64::from(crc32c::crc32c_append(sum, &rest.to_le_bytes()));
        let deleted = if self.visible() { 0 } else { DELETED };
        let check = (sum ^ sum >> 14) << CHECK_AT & CHECK;
        Self(self.0 & !CHECK | check ^ deleted)
    }

    pub fn reserved(epoch: u64) -> Self {
        Self(RESERVED | epoch & (RESERVED - 1))
    }

    /// Returns true if the entry was reserved or given up.
    pub fn is_of_no_record(self) -> bool {
        self == Self::GIVEN_UP || !self.visible() && self.0 & RESERVED != 0
    }

    pub fn visible(self) -> bool {
        self.0 & VISIBLE != 0
    }

    pub fn deleted(self) -> Self {
        Self((self.0 & !VISIBLE) ^ DELETED)
    }

    /// Returns the metadata with the record `by` words further on.
    pub fn moved(self, by: usize) -> Self {
        debug_assert!(self.offset() + by < 1 << 12);
        Self(self.0 + ((by as u64) << 27))
    }

    /// Returns the start of the record, in words from the node's start.
    pub fn offset(self) -> usize {
        field(self.0, 27, 12)
    }

    pub fn form(self) -> Form {
        match field(self.0, 57, 2) {
            0 => Form::Inline,
            1 => Form::Word,
            _ => Form::Block,
        }
    }

    pub fn key_bytes(self) -> usize {
        field(self.0, 15, 12)
    }

    pub fn key_words(self) -> usize {
        self.key_bytes().div_ceil(8)
    }

    pub fn value_bytes(self) -> usize {
        field(self.0, 0, 15)
    }

    fn value_words(self) -> usize {
        match self.form() {
            Form::Inline => self.value_bytes().div_ceil(8),
            Form::Word | Form::Block => 1,
        }
    }

    /// Returns the words of the record.
    pub fn words(self) -> usize {
        self.key_words() + self.value_words()
    }

    /// Returns the start of the value, in words from the node's start.
    pub fn value_at(self) -> usize {
        self.offset() + self.key_words()
    }
}

/// A node that exists as far as its header says.
pub(super) struct Node<'a, M> {
    pm: &'a M,
    /// Its first word.
    at: *const PWord,
    pub off: u64,
    /// Size in words.
    pub size: usize,
    /// Number of entries in the order of keys, from 0; all entries of an inner node.
    pub sorted: usize,
    pub level: u8,
}

// Derived impls would require them of `M`.
impl<M> Clone for Node<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M> Copy for Node<'_, M> {}

impl<M> std::fmt::Debug for Node<'_, M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "node {:#x} of {} words, level {}, {} sorted",
            self.off, self.size, self.level, self.sorted
        )
    }
}

/// Returns the word at `at`, which is aligned and inside the pool.
#[inline(always)]
pub(super) fn word_at<M: Media>(pm: &M, at: u64) -> &PWord {
    debug_assert!(at.is_multiple_of(8) && at + 8 <= pm.len(), "{at:#x}");
    // SAFETY: 1. the word is inside the pool and 8-aligned: `Node::at` and `Tree::open` checked
    // blocks, and everything else is an index into a block that is clamped to its end; 2. any bits
    // are a valid PWord; 3. the mapping lives as long as `pm`.
    unsafe { &*pm.base().wrapping_add(at as usize).cast_const().cast() }
}

/// Returns the shape word of a node.
pub(super) fn shape(size: usize, sorted: usize, level: u8) -> u64 {
    debug_assert!(size <= MAX_WORDS && sorted < 1 << 12);
    let word = size as u64 | (sorted as u64) << 20 | u64::from(level) << 32;
    let sum = crc32c::crc32c(&word.to_le_bytes());
    word | u64::from((sum ^ sum >> 16) as u16) << 40
}

impl<'a, M: Media> Node<'a, M> {
    /// Returns the node at `off`, which came from the pool's content, or `None` if there can be
    /// none.
    #[inline(always)]
    pub fn at(pm: &'a M, off: u64) -> Option<Self> {
        let len = pm.len();
        if off < CHUNK
            || !off.is_multiple_of(LINE as u64)
            || off.checked_add(LINE as u64).is_none_or(|end| end > len)
        {
            return None;
        }
        // ORDERING: Relaxed; written before the word that led here was published, which was read
        // with Acquire.
        let shape = word_at(pm, off + SHAPE as u64 * 8).load(pm, Ordering::Relaxed);
        let size = field(shape, 0, 20);
        let sorted = field(shape, 20, 12);
        if !(HEADER..=MAX_WORDS).contains(&size)
            || off + size as u64 * 8 > len
            || HEADER + sorted > size
        {
            return None;
        }
        Some(Self {
            pm,
            at: word_at(pm, off),
            off,
            size,
            sorted,
            level: field(shape, 32, 8) as u8,
        })
    }

    /// Compares the check of the node's shape.
    pub fn is_sound(&self) -> bool {
        self.fixed(SHAPE) == shape(self.size, self.sorted, self.level)
    }

    /// Compares the check of a record's metadata.
    pub fn record_is_sound(&self, meta: Meta) -> bool {
        let value = match meta.form() {
            Form::Inline => self.bytes(meta.value_at(), meta.value_bytes()),
            Form::Word | Form::Block => &[],
        };
        meta.checked(self.bytes(meta.offset(), meta.key_bytes()), value) == meta
    }

    pub fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// Returns word `i` of the node.
    #[inline(always)]
    pub fn word(&self, i: usize) -> &'a PWord {
        // SAFETY: 1. the node is whole words inside the pool (`Node::at`), and the index is clamped
        // to its end; 2. any bits are a valid PWord; 3. the mapping lives as long as `'a`.
        unsafe { &*self.at.add(i.min(self.size - 1)) }
    }

    pub fn status(&self) -> &'a PWord {
        self.word(STATUS)
    }

    pub fn memory(&self) -> &'a PWord {
        self.word(MEMORY)
    }

    #[inline(always)]
    pub fn meta(&self, i: usize) -> &'a PWord {
        self.word(HEADER + i)
    }

    /// Returns the metadata of a record of an inner node, which never change.
    #[inline]
    pub fn fixed_meta(&self, i: usize) -> Meta {
        // ORDERING: Relaxed; written before the node was published.
        Meta(self.meta(i).load(self.pm, Ordering::Relaxed))
    }

    /// Returns true if a record is in the part for records, behind the metadata that new nodes
    /// have.
    pub fn holds(&self, meta: Meta) -> bool {
        meta.offset() >= HEADER + self.sorted && meta.offset() + meta.words() <= self.size
    }

    /// Returns the place of sorted entry 0's key, in words, if keys and values are numbers: two
    /// words per entry, in order, to the node's end. (An inner node's first key is left out, but
    /// its place is counted.) Returns `None` in a damaged pool.
    #[inline(always)]
    pub fn first_pair(&self) -> Option<usize> {
        self.size.checked_sub(2 * self.sorted)
    }

    /// Returns the words between metadata and records.
    pub fn free(&self, status: Status) -> usize {
        self.size
            .saturating_sub(HEADER + status.entries() + status.records())
    }

    /// Returns `bytes` bytes from word `i` on, which no thread writes, or no bytes if they are not
    /// in the node.
    #[inline]
    pub fn bytes(&self, i: usize, bytes: usize) -> &'a [u8] {
        if i * 8 + bytes > self.size * 8 {
            return &[];
        }
        let at = self
            .pm
            .base()
            .wrapping_add(self.off as usize + i * 8)
            .cast_const();
        if M::TRACED {
            self.pm.trace_load(at, bytes);
        }
        // SAFETY: 1. the bytes are inside the node, which is inside the pool; 2. a record does not
        // change while a pinned thread can reach it (invariant 2), and any bytes are valid; 3. the
        // mapping lives as long as `'a`.
        unsafe { std::slice::from_raw_parts(at, bytes) }
    }

    /// Returns word `i` of a record, which no thread writes.
    #[inline]
    pub fn fixed(&self, i: usize) -> u64 {
        // ORDERING: Relaxed; written before the metadata that led here were published, which were
        // read with Acquire.
        self.word(i).load(self.pm, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_touch_each_other() {
        let status = Status::of(4095, 0).delete(1 << 11).delete(1 << 11);
        assert_eq!((status.entries(), status.records()), (4095, 0));
        assert_eq!(status.deleted(), 4095, "no more than there is room for");
        let status = Status::of(7, 100).reserve(5).delete(9).touch();
        assert_eq!(
            (status.entries(), status.records(), status.deleted()),
            (8, 105, 9)
        );
        assert!(!status.frozen() && Status(status.0 | FROZEN).frozen());
        assert_ne!(status.touch(), status);
        let frozen = Status(status.0 | FROZEN);
        assert!(!frozen.thawed().frozen() && frozen.thawed() != status);
        let (last, first) = (Status(status.0 | VERSION), Status(status.0 & !VERSION));
        assert_eq!(
            last.touch(),
            first,
            "versions come round without touching the rest"
        );
        assert_eq!(frozen.touch(), Status(status.touch().0 | FROZEN));
        assert_eq!(VERSION.count_ones(), 24);
        for form in [Form::Inline, Form::Word, Form::Block] {
            let meta = Meta::of(form, 4095, 2049, (1 << 15) - 1);
            assert!(meta.visible() && !meta.deleted().visible());
            assert_eq!(meta.form(), form);
            assert_eq!(
                (meta.offset(), meta.key_bytes(), meta.value_bytes()),
                (4095, 2049, (1 << 15) - 1)
            );
            let checked = meta.checked(b"key", b"value");
            assert_eq!(
                checked.deleted().checked(b"key", b"value"),
                checked.deleted()
            );
            assert_eq!(checked.deleted().0 & VISIBLE, 0);
            for bit in (0..27).chain(39..61) {
                let flipped = Meta(checked.0 ^ 1 << bit);
                assert_ne!(flipped.checked(b"key", b"value"), flipped, "bit {bit}");
            }
            assert_eq!(meta.0 >> 61, 0, "the swap's bits are free");
        }
        assert_ne!(Meta::reserved(0), Meta::FREE);
        assert_ne!(Meta::reserved(1), Meta::reserved(2));
        assert_eq!(next_version(FROZEN - 1), 0);
    }
}
