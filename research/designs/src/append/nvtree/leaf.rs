//! The leaf (LN): a header line, then elements that are only ever appended.
//!
//! ```text
//! word 0        nElement (16 bits) | lines of the leaf (16 bits) | sum (32 bits)
//! word 1        link to the next leaf, 0 for the last
//! word 2 ..     one flag per element, 1 = NEGATIVE: 63 in a word, whose bit 63 makes it even
//! first line after the flags:
//!   element i   | key word | value word |                      16 bytes, four in a line
//! ```
//!
//! The paper's element is flag, key and value. Here the flags stand together in the header, so that
//! an element has 16 bytes and never lies across two lines, and a line holds four.
//!
//! The sum is the CRC-32C of the lines, and of key and value word of each element that counts.
//! Elements never change, so an append goes on from the sum before, and the store that makes its
//! elements count stores the new one. A removal in place changes a flag alone.
//!
//! | bytes | header lines | elements |
//! | --- | --- | --- |
//! | 256 | 1 | 12 |
//! | 512 | 1 | 28 |
//! | 1024 | 1 | 60 |
//! | 4096 | 1 | 252 |
//! | 32768 | 5 | 2028 |
//!
//! The leaf itself stores its size, because adaptivity resizes leaves one by one.

use crate::link;
use bristlecone_pmem::cell::PWord;
use bristlecone_pmem::media::LINE;
use bristlecone_pmem::{Media, POff};
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// Bytes of an element (`Size_element`).
pub(super) const ELEMENT: usize = 16;
/// Number of elements in a line.
const PER_LINE: usize = LINE / ELEMENT;
/// Smallest leaf in bytes.
pub(super) const MIN_BYTES: u64 = 256;
/// Largest leaf in bytes.
pub(super) const MAX_BYTES: u64 = 32 << 10;

/// Index of the counter word.
const COUNTER: usize = 0;
/// Index of the link word.
const NEXT: usize = 1;
/// Index of the first word of flags.
const FLAGS: usize = 2;
/// Number of flags in a word.
const FLAGS_PER_WORD: usize = 63;
/// The bit that makes the number of bits set in a word of flags even.
const PARITY: u32 = 63;

/// Layout of a leaf of some size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Number of lines.
    pub lines: u32,
    /// Bytes before the first element.
    pub first: u32,
    /// Number of elements that there is room for.
    pub capacity: u32,
}

impl Shape {
    /// Returns the layout of a leaf of `bytes` bytes; a part of a line at the end is not used.
    pub(super) const fn of(bytes: u64) -> Self {
        let lines = bytes as usize / LINE;
        let mut header = 1;
        loop {
            let capacity = lines.saturating_sub(header) * PER_LINE;
            if (FLAGS + capacity.div_ceil(FLAGS_PER_WORD)) * 8 <= header * LINE {
                return Self {
                    lines: lines as u32,
                    first: (header * LINE) as u32,
                    capacity: capacity as u32,
                };
            }
            header += 1;
        }
    }

    /// Returns the number of words that hold flags.
    fn flag_words(self) -> usize {
        (self.capacity as usize).div_ceil(FLAGS_PER_WORD)
    }
}

const _: () = assert!(Shape::of(256).capacity == 12 && Shape::of(256).first == 64);
const _: () = assert!(Shape::of(1024).capacity == 60 && Shape::of(1024).first == 64);
const _: () = assert!(Shape::of(4096).capacity == 252 && Shape::of(4096).first == 64);
const _: () = assert!(Shape::of(MAX_BYTES).capacity == 2028 && Shape::of(MAX_BYTES).first == 320);

/// Content of the counter word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    /// Elements (`nElement`).
    pub elements: u32,
    /// Lines of the leaf.
    pub lines: u32,
    /// The sum over lines and elements.
    pub sum: u32,
}

impl Counter {
    const fn word(self) -> u64 {
        self.elements as u64 | (self.lines as u64) << 16 | (self.sum as u64) << 32
    }

    const fn of(word: u64) -> Self {
        Self {
            elements: word as u16 as u32,
            lines: (word >> 16) as u16 as u32,
            sum: (word >> 32) as u32,
        }
    }
}

/// Returns the sum of a leaf of so many lines without elements.
fn sum_of_lines(lines: u32) -> u32 {
    crc32c::crc32c(&lines.to_le_bytes())
}

/// Returns `sum` with an element behind what it is of.
fn with_element(sum: u32, key: u64, value: u64) -> u32 {
    let sum = crc32c::crc32c_append(sum, &key.to_le_bytes());
    crc32c::crc32c_append(sum, &value.to_le_bytes())
}

/// An element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element {
    /// Key word.
    pub key: u64,
    /// Value word.
    pub value: u64,
    /// NEGATIVE: the element removes the key.
    pub negative: bool,
}

impl Element {
    pub(super) const fn positive(key: u64, value: u64) -> Self {
        Self {
            key,
            value,
            negative: false,
        }
    }

    pub(super) const fn negative(key: u64, value: u64) -> Self {
        Self {
            key,
            value,
            negative: true,
        }
    }
}

/// A leaf in the pool.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'t, M> {
    pm: &'t M,
    at: *const u8,
    shape: Shape,
    borrows: PhantomData<&'t PWord>,
}

impl<'t, M: Media> Leaf<'t, M> {
    /// Returns the leaf at `off`.
    ///
    /// # Safety
    /// `off` is a multiple of 64 and `shape.lines` lines from it are inside the pool.
    pub(super) unsafe fn at(pm: &'t M, off: u64, shape: Shape) -> Self {
        debug_assert!(
            off.is_multiple_of(LINE as u64)
                && off + u64::from(shape.lines) * LINE as u64 <= pm.len(),
            "a leaf at {off:#x}"
        );
        Self {
            pm,
            at: pm.base().wrapping_add(off as usize).cast_const(),
            shape,
            borrows: PhantomData,
        }
    }

    /// Reads the counter of the leaf at `off` whose size is not known yet.
    ///
    /// # Safety
    /// `off` is a multiple of 64 and the line there is inside the pool.
    pub(super) unsafe fn counter_at(pm: &'t M, off: u64) -> Counter {
        let header = Shape {
            lines: 1,
            first: LINE as u32,
            capacity: 0,
        };
        // SAFETY: 1. the caller promises that `off` is a multiple of 64 with a line inside the
        // pool; 2. the header has one line.
        let leaf = unsafe { Self::at(pm, off, header) };
        // ORDERING: Relaxed; the tree is being opened, or is at rest.
        Counter::of(leaf.word(COUNTER).load(pm, Ordering::Relaxed))
    }

    #[inline(always)]
    fn word(&self, i: usize) -> &'t PWord {
        debug_assert!(i < self.shape.lines as usize * LINE / 8, "word {i}");
        // SAFETY: 1. `at` promised `lines` lines inside the pool, and the word is in them; 2. it is
        // 8-aligned; 3. a PWord is atomic and valid for any bits; 4. the mapping outlives `pm`,
        // which the reference borrows, and a leaf that was freed meanwhile is still mapped memory.
        unsafe { &*self.at.cast::<PWord>().add(i) }
    }

    #[inline(always)]
    fn element_word(&self, i: usize) -> usize {
        debug_assert!(i < self.shape.capacity as usize, "element {i}");
        self.shape.first as usize / 8 + i * (ELEMENT / 8)
    }

    /// Returns the counter in the pool.
    pub(super) fn counter(&self) -> Counter {
        // ORDERING: Relaxed; the caller holds the leaf's lock, or the tree is at rest.
        Counter::of(self.word(COUNTER).load(self.pm, Ordering::Relaxed))
    }

    /// Returns the word of the link to the next leaf.
    pub(super) fn next(&self) -> &'t PWord {
        self.word(NEXT)
    }

    /// Returns the offset of the next leaf, 0 for the last.
    pub(super) fn next_offset(&self) -> u64 {
        // ORDERING: Relaxed; changed only under the locks that the callers hold.
        link::offset(self.next().load(self.pm, Ordering::Relaxed))
    }

    /// Checks the counter's sum, the flags and the link.
    pub(super) fn sound(&self) -> Result<(), String> {
        let counter = self.counter();
        let mut sum = sum_of_lines(counter.lines);
        for i in 0..counter.elements.min(self.shape.capacity) as usize {
            sum = with_element(sum, self.key(i), self.value(i));
        }
        if sum != counter.sum {
            return Err(format!("its sum is {sum:#010x}, its counter {counter:x?}"));
        }
        for i in 0..self.shape.flag_words() {
            // ORDERING: Relaxed; as for `counter`.
            let flags = self.word(FLAGS + i).load(self.pm, Ordering::Relaxed);
            if !link::is_even(flags) {
                return Err(format!("its flags, {flags:#x}, fail their check"));
            }
        }
        // ORDERING: Relaxed; as for `counter`.
        link::checked(self.next().load(self.pm, Ordering::Relaxed)).map(drop)
    }

    /// The word of element `i`'s flag, and the flag's bit.
    fn flag(&self, i: usize) -> (&'t PWord, u64) {
        (
            self.word(FLAGS + i / FLAGS_PER_WORD),
            1 << (i % FLAGS_PER_WORD),
        )
    }

    #[inline(always)]
    pub(super) fn key(&self, i: usize) -> u64 {
        // ORDERING: Relaxed; elements below the count that the caller loaded with Acquire never
        // change.
        self.word(self.element_word(i))
            .load(self.pm, Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn value(&self, i: usize) -> u64 {
        // ORDERING: Relaxed; as for `key`.
        self.word(self.element_word(i) + 1)
            .load(self.pm, Ordering::Relaxed)
    }

    #[inline(always)]
    pub(super) fn is_negative(&self, i: usize) -> bool {
        // ORDERING: Relaxed; as for `key`. A removal in place changes a flag, and its readers look
        // at the count again.
        let (word, bit) = self.flag(i);
        word.load(self.pm, Ordering::Relaxed) & bit != 0
    }

    fn store_element(&self, i: usize, element: Element) {
        let at = self.element_word(i);
        // ORDERING (both): Relaxed; the count that makes the element visible is stored with
        // Release.
        self.word(at).store(self.pm, element.key, Ordering::Relaxed);
        self.word(at + 1)
            .store(self.pm, element.value, Ordering::Relaxed);
    }

    /// Sets or clears the flag of element `i`. Returns true if the flag had to be stored.
    fn store_flag(&self, i: usize, negative: bool) -> bool {
        let (word, bit) = self.flag(i);
        // ORDERING (both): Relaxed; under the leaf's lock, and as for `store_element`.
        let old = word.load(self.pm, Ordering::Relaxed);
        let new = if negative { old | bit } else { old & !bit };
        let new = link::evened(new, PARITY);
        if new != old {
            word.store(self.pm, new, Ordering::Relaxed);
        }
        new != old
    }

    /// Appends elements after the first `n`. One store of the counter makes them visible (Algorithm
    /// 2, lines 7 to 10), so that both elements of an update become visible together.
    ///
    /// Persist cost: 1 or 2 lines, a fence, the counter's line, a fence.
    pub(super) fn append(&self, n: usize, elements: &[Element]) {
        let pm = self.pm;
        let after = n + elements.len();
        debug_assert!(after <= self.shape.capacity as usize, "there is room");
        let mut sum = self.counter().sum;
        for element in elements {
            sum = with_element(sum, element.key, element.value);
        }
        let early = pm.planted("nvtree-counter-first");
        if early {
            self.publish(after, sum);
        }
        for (i, element) in (n..).zip(elements) {
            self.store_element(i, *element);
            // A crash may have left the flag of an element that never counted.
            let (flag, _) = self.flag(i);
            if self.store_flag(i, element.negative) && FLAGS + i / FLAGS_PER_WORD >= LINE / 8 {
                // PERSIST: a flag outside the counter's line, before the counter. A flag in the
                // counter's line becomes durable no later than the counter, in the order of the
                // stores.
                pm.flush_of(flag);
            }
        }
        let first = self.word(self.element_word(n)).addr();
        // PERSIST: the elements, and their records, which were flushed when they were made, before
        // the counter that makes them count.
        pm.flush(first, elements.len() * ELEMENT);
        pm.fence();
        if !early {
            self.publish(after, sum);
        }
    }

    fn publish(&self, elements: usize, sum: u32) {
        let counter = Counter {
            elements: elements as u32,
            lines: self.shape.lines,
            sum,
        };
        // PERSIST: (in `publish`) the counter; the elements count, all or none.
        self.word(COUNTER).publish(self.pm, counter.word());
    }

    /// Makes the positive element `i` NEGATIVE, durably. A removal uses this if there is no space.
    pub(super) fn negate(&self, i: usize) {
        let stored = self.store_flag(i, true);
        debug_assert!(stored, "element {i} was positive");
        // PERSIST: the flag, before the removal returns.
        self.pm.persist(self.flag(i).0);
    }

    /// Writes a new leaf that nothing leads to yet. Flushes it and does not fence.
    pub(super) fn fill(&self, elements: &[(u64, u64)], next: u64) {
        let pm = self.pm;
        debug_assert!(elements.len() <= self.shape.capacity as usize);
        for i in 0..self.shape.flag_words() {
            // ORDERING (all here): Relaxed; the link that leads here is stored with Release.
            self.word(FLAGS + i).store(pm, 0, Ordering::Relaxed);
        }
        let mut sum = sum_of_lines(self.shape.lines);
        for (i, (key, value)) in elements.iter().enumerate() {
            self.store_element(i, Element::positive(*key, *value));
            sum = with_element(sum, *key, *value);
        }
        let counter = Counter {
            elements: elements.len() as u32,
            lines: self.shape.lines,
            sum,
        };
        self.word(COUNTER)
            .store(pm, counter.word(), Ordering::Relaxed);
        self.next().store(pm, link::word(next), Ordering::Relaxed);
        // PERSIST: the header and the elements, fenced before the link that leads here.
        pm.flush(
            self.at,
            self.shape.first as usize + elements.len() * ELEMENT,
        );
    }

    /// Stores the link of a leaf that nothing leads to yet. Flushes it and does not fence.
    pub(super) fn link_unpublished(&self, next: u64) {
        // ORDERING: Relaxed; as in `fill`.
        self.next()
            .store(self.pm, link::word(next), Ordering::Relaxed);
        // PERSIST: the link, fenced before anything leads here.
        self.pm.flush_of(self.next());
    }

    /// Prefetches the lines of the newest of `n` elements.
    #[inline(always)]
    pub(super) fn prefetch(&self, n: usize) {
        let last = self.shape.first as usize + n.saturating_sub(1) * ELEMENT;
        let from = last.saturating_sub(3 * LINE) & !(LINE - 1);
        bristlecone_pmem::media::cpu::prefetch(self.at.wrapping_add(from), 4 * LINE);
    }
}

/// Returns true if a leaf can be at an offset in the pool.
pub(super) fn plausible(off: u64) -> bool {
    off != 0 && off.is_multiple_of(LINE as u64)
}

/// Returns the block of a leaf.
pub(super) fn block(off: u64) -> POff<u8> {
    POff::new(off)
}
