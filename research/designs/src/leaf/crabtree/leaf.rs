//! Crab-tree's leaf (LN): sorted pairs, a counter, a link; 256 to 8192 bytes.
//!
//! ```text
//! line 0 | n:16 link:32 sum:16   | allocation tag | pair 0  | pair 1  | pair 2  |
//! line 1 | pair 3                | pair 4         | pair 5  | pair 6  |
//! ...    | four pairs a line, the key's word and the value's                    |
//! ```
//!
//! Word 0, the *head*, holds the number of pairs and the right sibling's offset / 256. The paper
//! has two words for them. In one word, a single store makes a split or a merge visible. The sum is
//! of the number, the link and the keys. No value is in it, since an update stores that alone.
//! Pairs are 16-aligned, and none crosses a line. The allocation tag is written where leaves come
//! from a general allocator (see [`super::CrabOptions::self_managed`]), and is never read.
//!
//! # Invariants (whenever the leaf's lock is free)
//! 1. `n <= capacity`; the keys of slots `0..n` ascend strictly.
//! 2. *Terminators*: the key words of slots `n..end(n)` are null (0), except in slot 0. `end(n)` is
//!    the second slot of the line after slot n's. Words behind that may hold anything.
//!
//! Null cannot be mistaken for a key: as a number it is smaller than all others, so only slot 0 can
//! hold it; as the word of a byte string it leads nowhere. In the paper the null is a value. Here
//! values belong to the user: two may be equal, and any may be 0. Therefore *keys* are the
//! landmarks, both as nulls and as duplicates: they are unique in a leaf whatever the user stores.
//!
//! The paper flushes the nulls of the whole leaf when it is allocated. Two lines of nulls are
//! enough, those that the next insertion in place relies on. They share a fence with that
//! insertion.

use super::CrabLeaf;
use bristlecone_pmem::cell::PWord16;
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::{Media, PWord};
use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering;

/// Words before the first pair.
pub(super) const HEADER_WORDS: usize = 2;
/// Number of pairs in a line.
pub(super) const PER_LINE: usize = 4;
/// Key word of a slot without a pair.
pub(super) const NULL: u64 = 0;

const _: () = assert!(HEADER_WORDS * 8 == 16 && PER_LINE * 16 == LINE);

/// Returns the number of pairs that a leaf of `bytes` bytes has room for.
pub(super) const fn capacity(bytes: u64) -> usize {
    (bytes as usize / 8 - HEADER_WORDS) / 2
}

/// Returns the line of a slot.
pub(super) const fn line_of(slot: usize) -> usize {
    (slot + 1) / PER_LINE
}

/// Returns true if the slot is the first of its line.
pub(super) const fn is_first(slot: usize) -> bool {
    (slot + 1).is_multiple_of(PER_LINE)
}

/// Returns true if the slot is the last of its line.
pub(super) const fn is_last(slot: usize) -> bool {
    is_first(slot + 1)
}

/// Returns the end of the terminators in a leaf of `n` pairs.
pub(super) fn terminators_end(n: usize, capacity: usize) -> usize {
    if n >= capacity {
        return capacity;
    }
    (PER_LINE * (line_of(n) + 1)).min(capacity)
}

/// Returns the number of lines that a leaf of `n` pairs uses: header, pairs, terminators.
pub(super) fn lines(n: usize, capacity: usize) -> usize {
    line_of(terminators_end(n, capacity) - 1) + 1
}

/// Content of word 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Number of pairs.
    pub n: usize,
    /// Handle of the right sibling, or 0.
    pub next: u32,
}

impl Head {
    /// Returns the word of the head of a leaf with these keys.
    fn word(self, keys: impl Iterator<Item = u64>) -> u64 {
        let word = self.n as u64 | u64::from(self.next) << 16;
        let sum = crc32c::crc32c_append(u32::MAX, &word.to_le_bytes());
        let sum = keys.fold(sum, |sum, key| sum ^ crc32c::crc32c(&key.to_le_bytes()));
        word | u64::from((sum ^ sum >> 16) as u16) << 48
    }

    fn of(word: u64) -> Self {
        Self {
            n: (word & 0xFFFF) as usize,
            next: (word >> 16) as u32,
        }
    }
}

/// A leaf of any size.
#[derive(Debug)]
pub(super) struct Leaf<'t, M> {
    pub(super) pm: &'t M,
    words: &'t [PWord],
    /// True if pairs are shifted by 16-byte stores.
    wide: bool,
}

impl<M> Clone for Leaf<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Leaf<'_, M> {}

impl<'t, M: Media> Leaf<'t, M> {
    /// `words` are all words of the leaf, 256-aligned. `wide` requires [`PWord16::supported`].
    #[inline(always)]
    pub(super) fn new(pm: &'t M, words: &'t [PWord], wide: bool) -> Self {
        Self { pm, words, wide }
    }

    /// Returns the number of slots.
    #[inline(always)]
    pub(super) fn capacity(&self) -> usize {
        (self.words.len() - HEADER_WORDS) / 2
    }

    /// Returns word 0.
    #[inline(always)]
    pub(super) fn head(&self) -> Head {
        // ORDERING: Acquire; pairs with the Release in `store_head`.
        Head::of(self.words[0].load(self.pm, Ordering::Acquire))
    }

    /// Returns the word of `head` with the keys that the leaf has.
    pub(super) fn word_of(&self, head: Head) -> u64 {
        head.word((0..head.n.min(self.capacity())).map(|slot| self.key(slot)))
    }

    /// Compares the sum in the head.
    pub(super) fn sound(&self) -> Result<(), String> {
        // ORDERING: Acquire; as in `head`.
        let found = self.words[0].load(self.pm, Ordering::Acquire);
        let expected = self.word_of(Head::of(found));
        if found == expected {
            return Ok(());
        }
        Err(format!(
            "its head is {found:#x}, and its keys have {expected:#x}"
        ))
    }

    /// Returns the number of pairs, at most the number of slots whatever the leaf says.
    #[inline(always)]
    pub(super) fn n(&self) -> usize {
        self.head().n.min(self.capacity())
    }

    #[inline(always)]
    pub(super) fn head_word(&self) -> &'t PWord {
        &self.words[0]
    }

    #[inline(always)]
    pub(super) fn tag(&self) -> &'t PWord {
        &self.words[1]
    }

    // ORDERING, of pairs: Relaxed; the head's Acquire and the validation of the leaf's version
    // order readers.

    #[inline(always)]
    pub(super) fn key(&self, slot: usize) -> u64 {
        self.words[HEADER_WORDS + 2 * slot].load(self.pm, Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn value_word(&self, slot: usize) -> &'t PWord {
        &self.words[HEADER_WORDS + 2 * slot + 1]
    }

    /// Returns the key and value words of a slot.
    #[inline(always)]
    pub(super) fn pair(&self, slot: usize) -> (u64, u64) {
        let value = self.value_word(slot).load(self.pm, Ordering::Relaxed);
        (self.key(slot), value)
    }

    #[inline(always)]
    pub(super) fn set_key(&self, slot: usize, key: u64) {
        self.words[HEADER_WORDS + 2 * slot].store(self.pm, key, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn set_value(&self, slot: usize, value: u64) {
        self.value_word(slot)
            .store(self.pm, value, Ordering::Relaxed);
    }

    /// Stores a pair into a leaf that nothing leads to, in any order.
    #[inline(always)]
    pub(super) fn set(&self, slot: usize, (key, value): (u64, u64)) {
        self.set_key(slot, key);
        self.set_value(slot, value);
    }

    /// Stores a pair by one 16-byte store. Every image has the pair whole or not at all. The order
    /// between pairs still needs store fences.
    #[inline(always)]
    fn set_wide(&self, slot: usize, (key, value): (u64, u64)) {
        let at =
            std::ptr::from_ref(&self.words[HEADER_WORDS + 2 * slot..HEADER_WORDS + 2 * slot + 2]);
        // SAFETY: 1. the two words are inside the leaf (the slice is checked); 2. pairs are
        // 16-aligned since leaves are 256-aligned; 3. all access to them is atomic: a reader of 8
        // of the 16 bytes uses them only after it validated the leaf's version, and the 16-byte
        // store is one instruction that the compiler does not look into.
        let wide = unsafe { &*at.cast::<PWord16>() };
        let both = u128::from(key) | u128::from(value) << 64;
        let stored = wide.store(self.pm, both, Ordering::Relaxed);
        debug_assert!(stored.is_ok(), "`wide` only where there is such a store");
    }

    /// Makes the store before durable no later than the next one to its line (Algorithm 1's
    /// `FENCE()`).
    #[inline(always)]
    #[track_caller]
    pub(super) fn then(&self) {
        if !self.pm.planted("crabtree-no-store-fence") {
            self.pm.store_fence();
        }
    }

    /// Stores the pair into slot `slot`, *value first*, for shifting up and for the new pair (lines
    /// 24, 25, 29, 30). While the value is stored and the key is not, the slot above has the same
    /// key with its own value.
    #[inline(always)]
    pub(super) fn raise(&self, slot: usize, pair: (u64, u64)) {
        if self.wide {
            self.set_wide(slot, pair);
        } else {
            self.set_value(slot, pair.1);
            // The slot above holds the overwritten value, under a key that is still here.
            self.then();
            self.set_key(slot, pair.0);
        }
        // The slot below is overwritten next, and its pair must be here by then.
        self.then();
    }

    /// Stores the pair into slot `slot`, *key first*, for shifting down. While the key is stored
    /// and the value is not, the slot above has the same key with its own value.
    #[inline(always)]
    pub(super) fn lower(&self, slot: usize, pair: (u64, u64)) {
        if self.wide {
            self.set_wide(slot, pair);
        } else {
            self.set_key(slot, pair.0);
            // A key that stays must not get the value of another.
            self.then();
            self.set_value(slot, pair.1);
        }
        // The slot above is overwritten next, and its pair must be here by then.
        self.then();
    }

    /// Stores nulls into the slots `from..to`, except slot 0.
    pub(super) fn terminate(&self, from: usize, to: usize) {
        for slot in from.max(1)..to {
            self.set_key(slot, NULL);
        }
    }

    /// Fills a leaf that nothing leads to with nulls, as the paper's `pmalloc` does.
    pub(super) fn clear(&self) {
        for slot in 0..self.capacity() {
            self.set(slot, (NULL, 0));
        }
    }

    /// Flushes the line of a slot.
    #[inline(always)]
    #[track_caller]
    pub(super) fn flush_line(&self, slot: usize) {
        // PERSIST: the slot's pair, not fenced; each caller says what it precedes.
        self.pm.flush_of(&self.words[HEADER_WORDS + 2 * slot]);
    }

    /// Flushes the lines of the slots `from..to`.
    #[track_caller]
    pub(super) fn flush_slots(&self, from: usize, to: usize) {
        if from < to {
            // PERSIST: the slots' pairs, not fenced; each caller says what they precede.
            self.pm
                .flush_of(&self.words[HEADER_WORDS + 2 * from..HEADER_WORDS + 2 * to]);
        }
    }

    /// Flushes every line that the leaf uses.
    #[track_caller]
    pub(super) fn flush_all(&self) {
        let words = lines(self.n(), self.capacity()) * LINE / 8;
        // PERSIST: everything in the leaf, not fenced; it precedes whatever leads to the leaf.
        self.pm.flush_of(&self.words[..words.min(self.words.len())]);
    }

    /// Makes the NAW of the head that ends every change.
    #[inline(always)]
    #[track_caller]
    pub(super) fn publish_head(&self, head: Head) {
        // ORDERING: Release; pairs with the Acquire in `head`.
        self.words[0].store(self.pm, self.word_of(head), Ordering::Release);
        // PERSIST: the counter and the link, and with them the rest of the header line.
        self.pm.flush_of(&self.words[0]);
        self.pm.fence();
    }

    /// Stores the head of a leaf that nothing leads to.
    pub(super) fn set_head(&self, head: Head) {
        // ORDERING: Release; pairs with the Acquire in `head`.
        self.words[0].store(self.pm, self.word_of(head), Ordering::Release);
    }

    /// Searches the slots `from..to`: `Ok` with the key's slot, or `Err` with the slot where it
    /// would be.
    #[inline(always)]
    pub(super) fn position(
        &self,
        from: usize,
        to: usize,
        order: impl Fn(u64) -> Order,
    ) -> Result<usize, usize> {
        let (mut low, mut high) = (from, to);
        while low < high {
            let middle = low.midpoint(high);
            match order(self.key(middle)) {
                Order::Equal => return Ok(middle),
                Order::Less => high = middle,
                Order::Greater => low = middle + 1,
            }
        }
        Err(low)
    }
}

// The type of a leaf stands for its first 256 bytes.
const _: () = assert!(size_of::<CrabLeaf>() == 256 && align_of::<CrabLeaf>() == 256);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_and_lines() {
        assert_eq!([256, 512, 1024, 8192].map(capacity), [15, 31, 63, 511]);
        assert_eq!([0, 2, 3, 6, 7, 14].map(line_of), [0, 0, 1, 1, 2, 3]);
        assert!(is_first(3) && is_first(7) && !is_first(2) && !is_first(0));
        assert!(is_last(2) && is_last(6) && !is_last(3));
        // The rest of slot n's line, and the first slot of the next.
        assert_eq!(
            [0, 2, 3, 6, 7].map(|n| terminators_end(n, 31)),
            [4, 4, 8, 8, 12]
        );
        assert_eq!([12, 14, 15].map(|n| terminators_end(n, 15)), [15, 15, 15]);
        assert_eq!([0, 2, 3, 11, 15].map(|n| lines(n, 15)), [2, 2, 3, 4, 4]);
        let head = Head {
            n: 511,
            next: u32::MAX,
        };
        assert_eq!(Head::of(head.word([1, 2].into_iter())), head);
        let whole = head.word([7, 9].into_iter());
        for bit in 0..64 {
            assert_ne!(
                head.word([7 ^ 1 << bit, 9].into_iter()),
                whole,
                "bit {bit} of a key"
            );
            let flipped = Head::of(whole ^ 1 << bit);
            assert_ne!(
                flipped.word([7, 9].into_iter()),
                whole ^ 1 << bit,
                "bit {bit}"
            );
        }
    }
}
