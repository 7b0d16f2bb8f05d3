//! The leaf: m blocks of 256 bytes, each with a 16-byte header and 14 entries (sections 3.1, 3.4).
//!
//! ```text
//!        16 bytes                       16 bytes        16 bytes        16 bytes
//! line 0 | front header               | entry 0       | entry 1       | entry 2       |
//! line 1 | entry 3                    | entry 4       | entry 5       | entry 6       |
//! line 2 | entry 7                    | entry 8       | entry 9       | entry 10      |
//! line 3 | entry 11                   | entry 12      | entry 13      | tail          |
//!
//! header | bitmap:14 parity:1 alt:1 fingerprint[0..6] | fingerprint[6..14] |
//! tail   | sibling[0] | sibling[1] |      block 0: the alternative sibling pointers
//!        | back header             |      other blocks: the alternative header
//! ```
//!
//! The paper has its lock bit where `parity` makes the number of bits set in a header's first word
//! even. Sibling pointers are [`link`]s.
//!
//! `alt` (in block 0's header) chooses: sibling\[alt\] is the right sibling, and in every other
//! block the front header counts if `alt` is 0, the back header if it is 1. The *header line* of a
//! block is the line of the header that counts: line 0, or line 3 with entries 11 to 13.

use crate::fingerprint::{self, SLOTS};
use crate::link;
use bristlecone_pmem::planted;
use bristlecone_pmem::{Media, PWord};
use std::sync::atomic::Ordering;

/// Bytes of a block.
pub(super) const BLOCK: usize = 256;
const BITMAP: u64 = (1 << SLOTS) - 1;
const PARITY: u32 = SLOTS as u32;
const ALT: u64 = 1 << (SLOTS + 1);

/// A key word and a value word.
#[repr(C)]
pub struct Entry {
    key: PWord,
    pub(super) value: PWord,
}

/// 256 bytes of a leaf.
#[repr(C, align(256))]
pub struct Block {
    front: [PWord; 2],
    pub(super) entries: [Entry; SLOTS],
    tail: [PWord; 2],
}

/// A leaf of `B` blocks.
#[repr(C, align(256))]
pub struct Leaf<const B: usize> {
    pub(super) blocks: [Block; B],
}

const _: () = assert!(size_of::<Block>() == BLOCK && align_of::<Block>() == BLOCK);
const _: () = assert!(size_of::<Leaf<1>>() == 256 && size_of::<Leaf<4>>() == 1024);

/// Returns the line of a slot in its block.
#[inline(always)]
pub(super) const fn line_of(slot: usize) -> usize {
    (slot + 1) / 4
}

/// Returns the bits of the slots in `line`.
#[inline(always)]
pub(super) const fn slots_in(line: usize) -> u32 {
    const LINES: [u32; 4] = [0b111, 0b1111 << 3, 0b1111 << 7, 0b111 << 11];
    LINES[line]
}

/// The one of a block's two headers that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Units 0 and 1 of line 0.
    Front,
    /// The last unit of line 3 (never in block 0).
    Back,
}

impl Place {
    /// Returns the header line.
    #[inline(always)]
    pub(super) fn line(self) -> usize {
        match self {
            Self::Front => 0,
            Self::Back => 3,
        }
    }

    /// Returns the place that does not count now.
    #[inline(always)]
    pub(super) fn other(self) -> Self {
        match self {
            Self::Front => Self::Back,
            Self::Back => Self::Front,
        }
    }
}

/// Content of a header, outside persistent memory ("dword" in the paper).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub words: [u64; 2],
}

impl Header {
    /// Returns the bits of the slots in use.
    #[inline(always)]
    pub(super) fn bitmap(self) -> u32 {
        (self.words[0] & BITMAP) as u32
    }

    /// Returns the bits of the slots not in use.
    #[inline(always)]
    pub(super) fn empty(self) -> u32 {
        !self.bitmap() & BITMAP as u32
    }

    /// Returns the number of slots in use.
    #[inline(always)]
    pub(super) fn count(self) -> usize {
        self.bitmap().count_ones() as usize
    }

    /// Returns which sibling pointer and which headers count.
    #[inline(always)]
    pub(super) fn alt(self) -> usize {
        usize::from(self.words[0] & ALT != 0)
    }

    /// Returns the place of block `b`'s header, if this is block 0's header.
    #[inline(always)]
    pub(super) fn place(self, b: usize) -> Place {
        if b > 0 && self.alt() == 1 {
            Place::Back
        } else {
            Place::Front
        }
    }

    #[inline(always)]
    pub(super) fn flip_alt(&mut self) {
        self.words[0] ^= ALT;
    }

    /// Returns true if no bit of the first word was flipped. The fingerprints of the second word
    /// have their keys to be compared with.
    pub(super) fn is_sound(self) -> bool {
        link::is_even(self.words[0])
    }

    /// Takes `slot` for a key with this fingerprint.
    #[inline(always)]
    pub(super) fn set(&mut self, slot: usize, fingerprint: u8) {
        let (word, shift) = if slot < 6 {
            (0, slot * 8 + 16)
        } else {
            (1, (slot - 6) * 8)
        };
        self.words[word] = self.words[word] & !(0xFF << shift) | u64::from(fingerprint) << shift;
        self.words[0] |= 1 << slot;
    }

    #[inline(always)]
    pub(super) fn clear(&mut self, slot: usize) {
        self.words[0] &= !(1 << slot);
    }

    #[inline(always)]
    pub(super) fn fingerprint(self, slot: usize) -> u8 {
        if slot < 6 {
            (self.words[0] >> (slot * 8 + 16)) as u8
        } else {
            (self.words[1] >> ((slot - 6) * 8)) as u8
        }
    }

    /// Returns the bits of the slots in use with this fingerprint.
    #[inline(always)]
    pub(super) fn candidates(self, fingerprint: u8) -> u32 {
        fingerprint::matches(self.words, fingerprint) & self.bitmap()
    }
}

/// Returns the slots of a bit set, lowest first.
#[inline(always)]
pub(super) fn slots(mut bits: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let slot = bits.trailing_zeros() as usize;
        bits &= bits - 1;
        Some(slot)
    })
}

impl Block {
    #[inline(always)]
    fn at(&self, place: Place) -> &[PWord; 2] {
        match place {
            Place::Front => &self.front,
            Place::Back => &self.tail,
        }
    }

    /// Returns the header at `place`. Its words are consistent only under the leaf's lock or once
    /// its version is validated.
    #[inline(always)]
    pub(super) fn header<M: Media>(&self, pm: &M, place: Place) -> Header {
        let words = self.at(place);
        // ORDERING: Acquire; pairs with the Release in `store_header`, so that the entries of the
        // slots seen in use are seen whole.
        Header {
            words: [
                words[0].load(pm, Ordering::Acquire),
                words[1].load(pm, Ordering::Relaxed),
            ],
        }
    }

    /// Stores a header: its second word, then its first, which is the one that makes slots count.
    /// Entries stored before are ordered before it.
    #[inline(always)]
    pub(super) fn store_header<M: Media>(&self, pm: &M, place: Place, header: Header) {
        let words = self.at(place);
        let first = link::evened(header.words[0], PARITY);
        if planted!(pm, "lbtree-word0-first") {
            words[0].store(pm, first, Ordering::Relaxed);
        }
        // ORDERING: Relaxed; only slots that do not count yet can differ.
        words[1].store(pm, header.words[1], Ordering::Relaxed);
        // Entries in the header's own line, and its second word, must not become durable after its
        // first.
        pm.store_fence();
        // ORDERING: Release; pairs with the Acquire in `header`.
        words[0].store(pm, first, Ordering::Release);
    }

    /// Writes an entry into a slot that no durable header counts.
    #[inline(always)]
    pub(super) fn store_entry<M: Media>(&self, pm: &M, slot: usize, key: u64, value: u64) {
        let entry = &self.entries[slot];
        // ORDERING: Relaxed; `store_header` publishes them.
        entry.key.store(pm, key, Ordering::Relaxed);
        entry.value.store(pm, value, Ordering::Relaxed);
    }

    /// Returns the key and value words of a slot.
    #[inline(always)]
    pub(super) fn entry<M: Media>(&self, pm: &M, slot: usize) -> (u64, u64) {
        let entry = &self.entries[slot];
        // ORDERING: Relaxed; ordered by the header's Acquire and the version's validation.
        (
            entry.key.load(pm, Ordering::Relaxed),
            entry.value.load(pm, Ordering::Relaxed),
        )
    }

    /// Returns the address of the first byte of `line`.
    #[inline(always)]
    pub(super) fn line(&self, line: usize) -> *const u8 {
        std::ptr::from_ref(self)
            .cast::<u8>()
            .wrapping_add(line * 64)
    }
}

impl<const B: usize> Leaf<B> {
    /// Returns the header of block 0, which tells where the others are.
    #[inline(always)]
    pub(super) fn first_header<M: Media>(&self, pm: &M) -> Header {
        self.blocks[0].header(pm, Place::Front)
    }

    /// Returns the headers of all blocks.
    #[inline(always)]
    pub(super) fn headers<M: Media>(&self, pm: &M) -> [Header; B] {
        let first = self.first_header(pm);
        let mut headers = [first; B];
        for (b, header) in headers.iter_mut().enumerate().skip(1) {
            *header = self.blocks[b].header(pm, first.place(b));
        }
        headers
    }

    /// Returns sibling pointer number `i`.
    #[inline(always)]
    pub(super) fn sibling(&self, i: usize) -> &PWord {
        &self.blocks[0].tail[i & 1]
    }

    /// Returns the offset of the right sibling, 0 for the last leaf.
    #[inline(always)]
    pub(super) fn next<M: Media>(&self, pm: &M) -> u64 {
        link::offset(self.link(pm))
    }

    /// Returns the pointer to the right sibling.
    #[inline(always)]
    pub(super) fn link<M: Media>(&self, pm: &M) -> u64 {
        // ORDERING: Acquire; pairs with the Release of the header or pointer store.
        self.sibling(self.first_header(pm).alt())
            .load(pm, Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_hold_what_they_are_given() {
        let mut header = Header::default();
        for slot in 0..SLOTS {
            header.set(slot, 100 + slot as u8);
            assert_eq!(header.fingerprint(slot), 100 + slot as u8);
            assert_eq!(header.candidates(100 + slot as u8), 1 << slot);
        }
        assert_eq!(header.empty(), 0);
        assert_eq!(header.count(), SLOTS);
        assert_eq!(header.alt(), 0);
        header.flip_alt();
        assert_eq!(header.alt(), 1);
        assert_eq!(
            (header.place(0), header.place(1)),
            (Place::Front, Place::Back)
        );
        header.clear(3);
        assert_eq!(header.empty(), 1 << 3);
        assert_eq!(header.candidates(103), 0, "a cleared slot is no candidate");
        for slot in 0..3 {
            header.clear(slot);
        }
        assert_eq!(slots(header.empty()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn lines_cover_the_slots() {
        for slot in 0..SLOTS {
            assert!(slots_in(line_of(slot)) & 1 << slot != 0, "slot {slot}");
        }
        assert_eq!(
            (0..4).map(slots_in).fold(0, |all, s| all ^ s),
            (1 << SLOTS) - 1
        );
    }
}
