//! The leaf with one header ("centralised") that FPTree and wB+-Tree share, and the log of their
//! splits.
//!
//! ```text
//! word 0   | bitmap: a bit per slot (15 B - 1 of them) | bit 62: parity | bit 63: the design's own |
//! word 1   | link to the right sibling |
//! then     | 16 B bytes of the design's: fingerprints, or the slot array |
//! then     | entry 0: key, value | entry 1 | ...
//! ```
//!
//! A leaf of `B` blocks of 256 bytes holds 14, 29, 44 or 59 entries. No entry crosses a line. The
//! *header line* is line 0. Its first word says which slots count; an even number of its bits is
//! set.

use crate::index::TreeError;
use crate::leaftree::{DESIGN_WORD, HEAD, LeafLayout, Pair};
use crate::link;
use bristlecone_pmem::log::{Logs, Range, Record, Slot, image_words};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::{Heap, Media, PWord};
use std::sync::atomic::Ordering;

/// The bit of word 0 that makes the number of its set bits even.
const PARITY: u32 = 62;
const BLOCK_WORDS: usize = 32;
const LINE_WORDS: usize = 8;
/// Maximum number of a design's own bytes in a leaf.
pub(crate) const MAX_BYTES: usize = 64;

/// A leaf of `B` blocks of 256 bytes. See the module's head.
#[repr(C, align(256))]
pub struct Leaf<const B: usize> {
    words: [[PWord; BLOCK_WORDS]; B],
}

// SAFETY: a leaf is B x 256 bytes of persistent words, aligned to 256.
unsafe impl<const B: usize> LeafLayout for Leaf<B> {}

const _: () = assert!(size_of::<Leaf<1>>() == 256 && size_of::<Leaf<4>>() == 1024);

/// A set of lines of a leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines(u32);

impl Lines {
    fn of_word(word: usize) -> Self {
        Self(1 << (word / LINE_WORDS))
    }

    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the set without the header line, which is flushed when its first word is stored.
    pub(crate) fn beyond_header(self) -> Self {
        Self(self.0 & !1)
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl<const B: usize> Leaf<B> {
    /// Number of slots.
    pub(crate) const CAPACITY: usize = {
        assert!(B >= 1 && B <= 4, "leaves of 256 to 1024 bytes");
        15 * B - 1
    };
    /// The bits of all slots.
    pub(crate) const FULL: u64 = (1 << Self::CAPACITY) - 1;
    /// Index of the first word of the design's own bytes.
    const BYTES: usize = 2;
    const ENTRIES: usize = Self::BYTES + 2 * B;

    #[inline(always)]
    fn word(&self, i: usize) -> &PWord {
        &self.words[i / BLOCK_WORDS][i % BLOCK_WORDS]
    }

    /// Returns word 0. A search that sees a slot's bit sees its entry whole.
    #[inline(always)]
    pub(crate) fn head<M: Media>(&self, pm: &M) -> u64 {
        // ORDERING: Acquire; pairs with the Release in `publish_head`.
        self.word(0).load(pm, Ordering::Acquire)
    }

    /// Returns the bits of the slots in use.
    #[inline(always)]
    pub(crate) fn bitmap<M: Media>(&self, pm: &M) -> u64 {
        self.head(pm) & Self::FULL
    }

    /// Stores word 0 after all earlier stores to its line. Does not flush.
    #[inline(always)]
    pub(crate) fn store_head<M: Media>(&self, pm: &M, head: u64) {
        // Earlier stores to this line must become durable no later than word 0.
        pm.store_fence();
        // ORDERING: Release; pairs with the Acquire in `head`.
        self.word(0)
            .store(pm, link::evened(head, PARITY), Ordering::Release);
    }

    /// Makes a NAW of word 0.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn publish_head<M: Media>(&self, pm: &M, head: u64) {
        self.store_head(pm, head);
        // PERSIST: word 0, and with it the rest of the header line.
        pm.flush_of(self.word(0));
        pm.fence();
    }

    /// Returns the word that leads to the right sibling.
    #[inline(always)]
    pub(crate) fn sibling(&self) -> &PWord {
        self.word(1)
    }

    /// Returns the offset of the right sibling.
    #[inline(always)]
    pub(crate) fn next<M: Media>(&self, pm: &M) -> u64 {
        // ORDERING: Acquire; pairs with the Release of the store that linked the sibling.
        link::offset(self.sibling().load(pm, Ordering::Acquire))
    }

    /// Checks word 0 and the link to the sibling.
    pub(crate) fn sound<M: Media>(&self, pm: &M) -> Result<(), String> {
        let head = self.head(pm);
        if !link::is_even(head) {
            return Err(format!("its first word, {head:#x}, fails its check"));
        }
        // ORDERING: Acquire; as in `next`.
        link::checked(self.sibling().load(pm, Ordering::Acquire)).map(drop)
    }

    /// Returns the two words of block `b` that hold the design's bytes.
    #[inline(always)]
    pub(crate) fn bytes_of<M: Media>(&self, pm: &M, b: usize) -> [u64; 2] {
        let at = Self::BYTES + 2 * b;
        // ORDERING: Relaxed; ordered by the head's Acquire and the version's validation.
        [
            self.word(at).load(pm, Ordering::Relaxed),
            self.word(at + 1).load(pm, Ordering::Relaxed),
        ]
    }

    /// Returns the design's bytes.
    #[inline(always)]
    pub(crate) fn bytes<M: Media>(&self, pm: &M) -> [u8; MAX_BYTES] {
        let mut bytes = [0; MAX_BYTES];
        for b in 0..B {
            let [low, high] = self.bytes_of(pm, b);
            bytes[16 * b..16 * b + 8].copy_from_slice(&low.to_le_bytes());
            bytes[16 * b + 8..16 * b + 16].copy_from_slice(&high.to_le_bytes());
        }
        bytes
    }

    /// Stores those of the design's bytes that differ from `old`. Returns their lines.
    #[inline(always)]
    pub(crate) fn store_bytes<M: Media>(
        &self,
        pm: &M,
        old: &[u8; MAX_BYTES],
        new: &[u8; MAX_BYTES],
    ) -> Lines {
        let mut lines = Lines::default();
        let pairs = old.as_chunks::<8>().0.iter().zip(new.as_chunks::<8>().0);
        for (i, (old, new)) in pairs.enumerate().take(2 * B) {
            if old != new {
                let at = Self::BYTES + i;
                // ORDERING: Relaxed; the head's Release publishes it.
                self.word(at)
                    .store(pm, u64::from_le_bytes(*new), Ordering::Relaxed);
                lines = lines.and(Lines::of_word(at));
            }
        }
        lines
    }

    /// Stores one of the design's bytes. Returns its line.
    #[inline(always)]
    pub(crate) fn store_byte<M: Media>(&self, pm: &M, i: usize, byte: u8) -> Lines {
        let (at, shift) = (Self::BYTES + i / 8, i % 8 * 8);
        let word = self.word(at);
        // ORDERING (both): Relaxed; the head's Release publishes it.
        let old = word.load(pm, Ordering::Relaxed);
        let new = old & !(0xFF << shift) | u64::from(byte) << shift;
        word.store(pm, new, Ordering::Relaxed);
        Lines::of_word(at)
    }

    /// Returns the key and value words of a slot.
    #[inline(always)]
    pub(crate) fn entry<M: Media>(&self, pm: &M, slot: usize) -> (u64, u64) {
        let at = Self::ENTRIES + 2 * slot;
        // ORDERING: Relaxed; ordered by the head's Acquire and the version's validation.
        (
            self.word(at).load(pm, Ordering::Relaxed),
            self.word(at + 1).load(pm, Ordering::Relaxed),
        )
    }

    /// Returns the value word of a slot.
    #[inline(always)]
    pub(crate) fn value(&self, slot: usize) -> &PWord {
        self.word(Self::ENTRIES + 2 * slot + 1)
    }

    /// Writes an entry into a slot that does not count. Returns the entry's line.
    #[inline(always)]
    pub(crate) fn store_entry<M: Media>(&self, pm: &M, slot: usize, key: u64, value: u64) -> Lines {
        let at = Self::ENTRIES + 2 * slot;
        // ORDERING (both): Relaxed; the head's Release publishes them.
        self.word(at).store(pm, key, Ordering::Relaxed);
        self.word(at + 1).store(pm, value, Ordering::Relaxed);
        Lines::of_word(at)
    }

    /// Stores entries from slot 0 on, without a right sibling. The design adds its bytes and the
    /// head.
    pub(crate) fn store_entries<M: Media>(&self, pm: &M, pairs: &[Pair]) {
        for (slot, pair) in pairs.iter().enumerate() {
            self.store_entry(pm, slot, pair.key, pair.value);
        }
        // ORDERING: Relaxed; nothing leads to the leaf yet.
        self.sibling().store(pm, 0, Ordering::Relaxed);
    }

    /// Flushes a set of lines.
    #[inline(always)]
    #[track_caller]
    pub(crate) fn flush<M: Media>(&self, pm: &M, lines: Lines) {
        let mut rest = lines.0;
        while rest != 0 {
            let line = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            // PERSIST: a changed line, not fenced; each caller says what it precedes.
            pm.flush_of(self.word(line * LINE_WORDS));
        }
    }
}

/// Returns the slots of a bit set, lowest first.
#[inline(always)]
pub(crate) fn slots(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        if bits == 0 {
            return None;
        }
        let slot = bits.trailing_zeros() as usize;
        bits &= bits - 1;
        Some(slot)
    })
}

/// Returns how many splits can be under way at a time. A simulated medium has few, so that slots
/// are reused.
const fn log_slots<M: Media>() -> u32 {
    if M::TRACED { 2 } else { 32 }
}

/// The record that a split logs. The papers do not say how much theirs log, so a figure can compare
/// the cost of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SplitLog {
    /// The few words that change: FPTree's micro-log, wB+-Tree's redo log of words.
    #[default]
    Words,
    /// The leaf as it was.
    Leaf,
    /// The leaf as it was, and the new one.
    Leaves,
}

/// Options of the trees with centralised leaves. The pool stores none of them, except that a tree
/// made to log words has no room for leaves, and logs words however it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CentralOptions {
    /// The record that a split logs.
    pub split_log: SplitLog,
    /// True if a removal from a wB+-Tree is one NAW, of the bitmap: the slot array keeps the slot
    /// until an insertion, and is read beside the bitmap. A tree that was changed so must be opened
    /// so; otherwise such leaves are taken for damaged. An FPTree removes so in any case.
    pub lazy_removal: bool,
    /// Number of threads that rebuild the inner nodes after a crash.
    pub recovery_threads: usize,
}

impl Default for CentralOptions {
    fn default() -> Self {
        Self {
            split_log: SplitLog::Words,
            lazy_removal: false,
            recovery_threads: 1,
        }
    }
}

/// The log of a tree's splits.
#[derive(Debug)]
pub(crate) struct SplitLogs<M: Media> {
    logs: Logs<M>,
    kind: SplitLog,
}

/// Payload words of a record of words, which share the line of its head.
const LOG_WORDS: usize = 7;

impl<M: Media> SplitLogs<M> {
    /// Returns the payload words of records.
    const fn words<const B: usize>(kind: SplitLog) -> usize {
        let bytes = size_of::<Leaf<B>>();
        match kind {
            SplitLog::Words => LOG_WORDS,
            SplitLog::Leaf => image_words(1, bytes),
            SplitLog::Leaves => image_words(2, 2 * bytes),
        }
    }

    /// Makes the log of a new tree whose root is not published yet.
    pub fn create<const B: usize>(
        kind: SplitLog,
        root: &Root<M>,
        heap: &Heap<M>,
    ) -> Result<Self, TreeError> {
        let logs = Logs::create(heap, log_slots::<M>(), Self::words::<B>(kind))?;
        let (pm, word) = (heap.pool().pm(), root.word(DESIGN_WORD));
        // ORDERING: Relaxed; the root is not published.
        word.store(pm, link::word(logs.offset()), Ordering::Relaxed);
        // PERSIST: this word shares its line with the word that leads to the first leaf. That word
        // is stored and flushed after this, and fenced when the root is published.
        const { assert!(DESIGN_WORD / 8 == HEAD / 8) };
        Ok(Self { logs, kind })
    }

    /// Opens the log of a tree. After a crash, applies the armed records and marks the log's block.
    pub fn open<const B: usize>(
        kind: SplitLog,
        root: &Root<M>,
        heap: &Heap<M>,
        clean: bool,
        mut apply: impl FnMut(&[u64]) -> Result<(), String>,
    ) -> Result<Self, TreeError> {
        // ORDERING: Relaxed; the tree is being opened.
        let at = root
            .word(DESIGN_WORD)
            .load(heap.pool().pm(), Ordering::Relaxed);
        let logs = link::checked(at).and_then(|at| Logs::open(heap, at, LOG_WORDS));
        let logs = logs.map_err(TreeError::Corrupt)?;
        if !clean {
            logs.recover(|record| match record {
                Record::Redo(words) => apply(words),
                Record::Undo(ranges) => ranges.iter().try_for_each(|range| {
                    if range.bytes != size_of::<Leaf<B>>() as u64 {
                        return Err(format!("{range:?} is no leaf"));
                    }
                    logged_leaf::<M, B>(heap, range.off).map(drop)
                }),
            })
            .and_then(|_| logs.mark(heap, &crossbeam_epoch::pin()))
            .map_err(TreeError::Corrupt)?;
        }
        let kind = if logs.words() < Self::words::<B>(kind) {
            SplitLog::Words
        } else {
            kind
        };
        Ok(Self { logs, kind })
    }

    /// Returns the offset of the log's block.
    pub fn offset(&self) -> u64 {
        self.logs.offset()
    }

    /// Takes a slot.
    pub fn take(&self) -> Slot<'_, M> {
        self.logs.take()
    }

    /// Returns true if splits log words, and false if they log images of leaves.
    pub fn logs_words(&self) -> bool {
        self.kind == SplitLog::Words
    }

    /// Arms a slot with the images of a split's leaf and, if the options say so, of its new leaf.
    /// Lines that the caller flushed before are durable on return. Recovery undoes the split.
    pub fn arm_images<const B: usize>(&self, slot: &mut Slot<'_, M>, [leaf, new]: [u64; 2]) {
        let whole = |off| Range {
            off,
            bytes: size_of::<Leaf<B>>() as u64,
        };
        match self.kind {
            SplitLog::Leaves => slot.arm_images(&[whole(leaf), whole(new)]),
            SplitLog::Words | SplitLog::Leaf => slot.arm_images(&[whole(leaf)]),
        }
    }
}

/// Returns the leaf at `off`, which a log record names.
pub(crate) fn logged_leaf<M: Media, const B: usize>(
    heap: &Heap<M>,
    off: u64,
) -> Result<&Leaf<B>, String> {
    heap.check(off, size_of::<Leaf<B>>() as u64)
        .map_err(|e| format!("leaf {off:#x}: {e}"))?;
    let at = heap.pool().pm().base().wrapping_add(off as usize);
    // SAFETY: 1. `check` has found a block of a leaf's size at `off`, so it is inside the pool and
    // aligned to 256; 2. a leaf is atomic words, valid for any bits; 3. the pool outlives the
    // heap's borrow.
    Ok(unsafe { &*at.cast_const().cast::<Leaf<B>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_have_room_for_what_they_claim() {
        fn last_word<const B: usize>() -> usize {
            Leaf::<B>::ENTRIES + 2 * Leaf::<B>::CAPACITY
        }
        assert_eq!(
            [
                Leaf::<1>::CAPACITY,
                Leaf::<2>::CAPACITY,
                Leaf::<3>::CAPACITY,
                Leaf::<4>::CAPACITY
            ],
            [14, 29, 44, 59]
        );
        assert_eq!(
            [
                last_word::<1>(),
                last_word::<2>(),
                last_word::<3>(),
                last_word::<4>()
            ],
            [32, 64, 96, 128]
        );
    }

    #[test]
    fn lines_are_those_of_the_words() {
        let lines = Lines::of_word(3).and(Lines::of_word(17));
        assert_eq!(lines, Lines(0b101));
        assert_eq!(lines.beyond_header(), Lines(0b100));
        assert!(Lines::of_word(7).beyond_header().is_empty());
    }
}
