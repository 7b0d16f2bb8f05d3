//! The page table: from a page's number, or an outer value's, to its block, one word of 8 bytes
//! each.
//!
//! ```text
//! segments   512 words | 1024 words | 2048 words | ... up to 4 Mi words each      zeroed and durable
//!                                                                   before the root word names one
//! word       generation, low bits 11 | kind 3 | block / 64 38 | check 12      0: nothing has the number
//! ```
//!
//! Parents and neighbours lead to a page by its number, so replacing a page, by a block with
//! another content, is one NVM atomic write of its word.
//!
//! # Invariants
//! 1. *Ownership.* A block of the tree is in use if and only if a word of the table, or of the
//!    root, names it. So there is no leak and no double owner in any crash state, and the table
//!    alone says what is free.
//! 2. *Birth.* A page's first word says *newborn*. It is durable, with the page, before the
//!    replacement that makes the page count: of the page that it was born in (its header says
//!    which), by one of the same generation. A newborn page counts if and only if the page that it
//!    was born in has that generation, a later one, or is gone. An outer value likewise (`outer`).
//!
//! # Crash states
//! | crash | leaves | mended by |
//! | --- | --- | --- |
//! | before a replacement's word is durable | a block that no word names | nothing to do: it is free |
//! | before the birth is decided | newborn words; the page that they were born in is older | cleared when the tree is opened |
//! | after it | newborn words; the page that they were born in is not older | settled when the tree is opened |

use super::{checked, root};
use bristlecone_pmem::pool::Root;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Heap, Media, PWord, SpaceError, planted};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of the first segment; every next one has twice as many.
const FIRST: u64 = 512;
/// Words of the largest segments: 32 MiB.
const LARGEST: u64 = 1 << 22;
/// Segments before the first of the largest.
const SMALLER: usize = (LARGEST / FIRST).trailing_zeros() as usize;

const KIND_SHIFT: u32 = 38;
const GENERATION_SHIFT: u32 = 41;
const GENERATION_MASK: u64 = (1 << (checked::PAYLOAD_BITS - GENERATION_SHIFT)) - 1;
/// Kinds have two bits set or more, so that no flipped bit makes an empty word one.
const PAGE: u64 = 0b011;
const NEWBORN_PAGE: u64 = 0b101;
const OUTER: u64 = 0b110;
const NEWBORN_OUTER: u64 = 0b111;

/// The kind of thing that has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Page,
    /// An outer value.
    Outer,
}

/// A word of the table, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// The block, an offset in the pool.
    pub(super) block: u64,
    /// The low bits of the generation: of a page, or that which an outer value was born in.
    generation: u64,
    pub(super) kind: Kind,
    pub(super) newborn: bool,
}

impl Word {
    pub(super) fn new(kind: Kind, block: u64, generation: u64, newborn: bool) -> Self {
        debug_assert!(block.is_multiple_of(64) && block / 64 < 1 << KIND_SHIFT);
        Self {
            block,
            generation: generation & GENERATION_MASK,
            kind,
            newborn,
        }
    }

    /// Whether it may name a page, or a value, of that generation.
    pub(super) fn is_of(self, generation: u64) -> bool {
        generation & GENERATION_MASK == self.generation
    }

    /// As of a page or a value that counts.
    pub(super) fn settled(self) -> Self {
        Self {
            newborn: false,
            ..self
        }
    }

    pub(super) fn encode(self, id: u32) -> u64 {
        let kind = match (self.kind, self.newborn) {
            (Kind::Page, false) => PAGE,
            (Kind::Page, true) => NEWBORN_PAGE,
            (Kind::Outer, false) => OUTER,
            (Kind::Outer, true) => NEWBORN_OUTER,
        };
        let payload =
            (self.block / 64) | (kind << KIND_SHIFT) | (self.generation << GENERATION_SHIFT);
        checked::word(payload, id.into())
    }

    /// `Ok(None)` of an empty word.
    pub(super) fn decode(word: u64, id: u32) -> Result<Option<Self>, String> {
        let payload = checked::payload(word, id.into());
        let payload = payload.ok_or_else(|| format!("word {id} of the table fails its check"))?;
        let (kind, newborn) = match payload >> KIND_SHIFT & 7 {
            0 if payload == 0 => return Ok(None),
            PAGE => (Kind::Page, false),
            NEWBORN_PAGE => (Kind::Page, true),
            OUTER => (Kind::Outer, false),
            NEWBORN_OUTER => (Kind::Outer, true),
            other => return Err(format!("word {id} of the table is of no kind ({other})")),
        };
        Ok(Some(Self {
            block: (payload & ((1 << KIND_SHIFT) - 1)) * 64,
            generation: payload >> GENERATION_SHIFT,
            kind,
            newborn,
        }))
    }
}

#[derive(Debug, Default)]
struct Ids {
    /// With the generation from which on each may be used again.
    free: Vec<(u32, u64)>,
    /// The first number that was never used.
    next: u32,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Table {
    /// Blocks of the segments; 0 where there is none yet.
    segments: Box<[AtomicU64]>,
    ids: Mutex<Ids>,
}

/// The segment of a page's word, and which of its words it is.
fn place(id: u32) -> (usize, u64) {
    let n = u64::from(id) + FIRST;
    if n < LARGEST * 2 {
        let segment = n.ilog2() - FIRST.ilog2();
        return (segment as usize, n - (FIRST << segment));
    }
    let n = n - LARGEST * 2;
    (SMALLER + 1 + (n / LARGEST) as usize, n % LARGEST)
}

/// Words of a segment.
fn segment_words(segment: usize) -> u64 {
    (FIRST << segment.min(SMALLER)).min(LARGEST)
}

/// Pages that there may be.
fn capacity() -> u64 {
    (0..root::MAX_SEGMENTS).map(segment_words).sum()
}

impl Table {
    /// The first page's number: 0 is none.
    pub(super) const FIRST_ID: u32 = 1;

    pub(super) fn new() -> Self {
        Self {
            segments: (0..root::MAX_SEGMENTS).map(|_| AtomicU64::new(0)).collect(),
            ids: Mutex::new(Ids {
                free: Vec::new(),
                next: Self::FIRST_ID,
            }),
        }
    }

    /// The cell of a page's word; `None` if there is no such segment.
    pub(super) fn cell<'p, M: Media>(&self, pm: &'p M, id: u32) -> Option<&'p PWord> {
        let (segment, word) = place(id);
        // ORDERING: Acquire; pairs with the Release of `add_segment`.
        let block = self.segments.get(segment)?.load(Ordering::Acquire);
        (block != 0).then(|| Self::cell_of(pm, block, word))
    }

    /// The cell of a word of the segment that is in that block.
    #[inline]
    fn cell_of<M: Media>(pm: &M, block: u64, word: u64) -> &PWord {
        let at = pm.base().wrapping_add((block + word * 8) as usize);
        // SAFETY: 1. the segment is a block of this tree, made or checked by this module, with
        // `segment_words` words, and `word` is below that; 2. it is 8-aligned; 3. any bits are a
        // valid word; 4. the mapping outlives the borrow of `pm`.
        unsafe { &*at.cast::<PWord>() }
    }

    /// The word of a page or an outer value; `Ok(None)` if there is none.
    ///
    /// # Errors
    /// A message, if the word is damaged.
    pub(super) fn read<M: Media>(&self, pm: &M, id: u32) -> Result<Option<Word>, String> {
        let Some(cell) = self.cell(pm, id) else {
            return Ok(None);
        };
        // ORDERING: Acquire; pairs with the Release of `publish`.
        Word::decode(cell.load(pm, Ordering::Acquire), id)
    }

    /// Reserves a number for a page of that generation, or for an outer value, whose generation
    /// does not matter, and makes room for its word.
    ///
    /// Births in a page are told from those in an earlier page of its number by the generation. So
    /// that of a page is later than the generation of the page that had the number before.
    ///
    /// # Errors
    /// [`SpaceError`]
    pub(super) fn reserve<M: Media>(
        &self,
        root: &Root<M>,
        heap: &Heap<M>,
        generation: Option<u64>,
    ) -> Result<u32, SpaceError> {
        let mut ids = lock(&self.ids);
        let is_fit = |(_, from): &(u32, u64)| generation.is_none_or(|of_page| *from <= of_page);
        if let Some(at) = ids.free.iter().rposition(is_fit) {
            return Ok(ids.free.swap_remove(at).0);
        }
        let id = ids.next;
        if u64::from(id) >= capacity() {
            let wanted = u64::from(id) + 1;
            let capacity = capacity();
            return Err(SpaceError::Capacity { wanted, capacity });
        }
        let (segment, _) = place(id);
        // ORDERING: Relaxed; under the lock.
        if self.segments[segment].load(Ordering::Relaxed) == 0 {
            self.add_segment(root, heap, segment)?;
        }
        ids.next = id + 1;
        Ok(id)
    }

    /// Takes numbers back that no word was stored for, or whose words were cleared durably.
    /// `generation`: the next one to be given.
    pub(super) fn release(&self, ids: impl IntoIterator<Item = u32>, generation: u64) {
        let ids = ids.into_iter().map(|id| (id, generation));
        lock(&self.ids).free.extend(ids);
    }

    /// Adds a segment, whose words are all empty.
    ///
    /// # Errors
    /// [`SpaceError`]
    pub(super) fn add_segment<M: Media>(
        &self,
        root: &Root<M>,
        heap: &Heap<M>,
        segment: usize,
    ) -> Result<(), SpaceError> {
        let pm = root.pool().pm();
        let bytes = segment_words(segment) * 8;
        let block = heap.alloc(bytes)?;
        let at = pm.base().wrapping_add(block.get() as usize);
        const ZEROS: [u8; 4096] = [0; 4096];
        for from in (0..bytes as usize).step_by(ZEROS.len()) {
            // SAFETY: 1. the block has so many bytes, a multiple of 4096, and is word-aligned; 2.
            // it was just allocated, so nobody else uses it.
            unsafe { bristlecone_pmem::cell::write_bytes(pm, at.wrapping_add(from), &ZEROS) };
        }
        // PERSIST: the empty words, before the root word names the segment.
        pm.flush(at, bytes as usize);
        pm.fence();
        let word = root::SEGMENTS + segment;
        // PERSIST: the segment is part of the table, before a word of it is stored.
        root.word(word)
            .publish(pm, root::word(word, block.get() / 64));
        // ORDERING: Release; pairs with the Acquire of `cell`.
        self.segments[segment].store(block.get(), Ordering::Release);
        Ok(())
    }

    /// Stores a newborn page's word, or an outer value's, and flushes it; the caller fences, with
    /// the block.
    pub(super) fn bear<M: Media>(&self, pm: &M, id: u32, word: Word) {
        let newborn = !planted!(pm, "clustered-born-settled");
        let word = Word { newborn, ..word };
        self.store(pm, id, Some(word));
        if let Some(cell) = self.cell(pm, id) {
            // PERSIST: the newborn word, with the block: before the replacement that makes it
            // count, or together with the group that does.
            pm.flush_of(cell);
        }
    }

    /// Stores the word of a page or a value that is known to count, and flushes it. The thread's
    /// next fence will do: while the word says newborn in a crash state, that is decided as it was
    /// decided here.
    pub(super) fn settle<M: Media>(&self, pm: &M, id: u32, word: Word) {
        self.store(pm, id, Some(word.settled()));
        if let Some(cell) = self.cell(pm, id) {
            // PERSIST: the birth is decided: with the separator, if it has one, else some time
            // later.
            pm.flush_of(cell);
        }
    }

    /// Stores a word of a redo record and flushes it; the caller fences.
    pub(super) fn renew<M: Media>(&self, pm: &M, id: u32, word: Option<Word>) {
        self.store(pm, id, word);
        if let Some(cell) = self.cell(pm, id) {
            // PERSIST: the word, before the record is disarmed.
            pm.flush_of(cell);
        }
    }

    fn store<M: Media>(&self, pm: &M, id: u32, word: Option<Word>) {
        if let Some(cell) = self.cell(pm, id) {
            let word = word.map_or(0, |word| word.encode(id));
            // ORDERING: Release; pairs with the Acquire of `read`.
            cell.store(pm, word, Ordering::Release);
        }
    }

    /// Replaces a page: its new block is durable.
    pub(super) fn publish<M: Media>(&self, pm: &M, id: u32, word: Word) {
        if let Some(cell) = self.cell(pm, id) {
            // PERSIST: the page is that of the new block, and all pages that were born with it
            // count, before the change that it holds is acknowledged and the old block is used
            // again.
            cell.publish(pm, word.encode(id));
        }
    }

    /// Finds the segments after opening. `check` looks whether there is a block with so many bytes.
    ///
    /// # Errors
    /// A message that says what is damaged.
    pub(super) fn attach<M: Media>(
        &self,
        root: &Root<M>,
        check: impl Fn(u64, u64) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut ended = false;
        for segment in 0..root::MAX_SEGMENTS {
            let Some(block) = root::read(root, root::SEGMENTS + segment)? else {
                ended = true;
                continue;
            };
            if ended {
                return Err(format!(
                    "segment {segment} of the page table has none before it"
                ));
            }
            let (block, bytes) = (block * 64, segment_words(segment) * 8);
            let wrong = |e| format!("segment {segment} of the page table: {e}");
            check(block, bytes).map_err(wrong)?;
            let meets = |(other, its)| block < other + its && other < block + bytes;
            if self.blocks().any(meets) {
                return Err(wrong(format!("{block:#x} is another one's")));
            }
            // ORDERING: Release; pairs with the Acquire of `cell`.
            self.segments[segment].store(block, Ordering::Release);
        }
        Ok(())
    }

    /// Reads the table after opening: calls `each` with every page and outer value, newborn or not.
    /// A word with one wrong bit is mended where that gives one that `is_sound` knows: durable once
    /// the caller fences.
    ///
    /// Returns how many were mended, and what is wrong with the first that was not.
    pub(super) fn scan<M: Media>(
        &self,
        pm: &M,
        is_sound: impl Fn(u32, Word) -> bool,
        mut each: impl FnMut(u32, Word),
    ) -> (u64, Option<String>) {
        let mut ids = lock(&self.ids);
        let (mut mended, mut damaged) = (0, None);
        for (id, cell) in self.cells(pm) {
            // ORDERING: Relaxed; nobody changes the table yet.
            let word = match Word::decode(cell.load(pm, Ordering::Relaxed), id) {
                Ok(None) => continue,
                Ok(word) => word,
                Err(e) => {
                    let word = self.mend(pm, id, &is_sound);
                    match word {
                        Some(_) => mended += 1,
                        None => drop(damaged.get_or_insert(e)),
                    }
                    word.flatten()
                }
            };
            let free = (ids.next..id).map(|id| (id, 0));
            ids.free.extend(free);
            ids.next = id + 1;
            if let Some(word) = word {
                each(id, word);
            }
        }
        (mended, damaged)
    }

    /// All words, with their numbers.
    fn cells<'p, M: Media>(&self, pm: &'p M) -> impl Iterator<Item = (u32, &'p PWord)> {
        let cells = self.blocks().flat_map(move |(block, bytes)| {
            (0..bytes / 8).map(move |word| Self::cell_of(pm, block, word))
        });
        (0..).zip(cells).skip(Self::FIRST_ID as usize)
    }

    /// Unused numbers of a table that nobody changes any more, below the first that was never used;
    /// `None` if a scan would find a word that is damaged or newborn.
    pub(super) fn unused<M: Media>(&self, pm: &M) -> Option<Vec<u32>> {
        let (mut unused, end) = (Vec::new(), self.end());
        for (id, cell) in self.cells(pm) {
            // ORDERING: Relaxed; nobody changes the table any more.
            match Word::decode(cell.load(pm, Ordering::Relaxed), id) {
                Ok(None) if id < end => unused.push(id),
                Ok(None) => {}
                Ok(Some(word)) if !word.newborn && id < end => {}
                Ok(Some(_)) | Err(_) => return None,
            }
        }
        Some(unused)
    }

    /// Flushes all words, for the saved state that is about to be fenced.
    pub(super) fn flush<M: Media>(&self, pm: &M) {
        for (block, bytes) in self.blocks() {
            // PERSIST: words that another thread has settled and not fenced yet, before the state
            // that has their checksum.
            pm.flush(
                pm.base().wrapping_add(block as usize).cast_const(),
                bytes as usize,
            );
        }
    }

    /// A checksum over all words, while nobody changes them.
    pub(super) fn crc<M: Media>(&self, pm: &M) -> u32 {
        self.blocks().fold(0, |crc, (block, bytes)| {
            let at = pm.base().wrapping_add(block as usize).cast_const();
            if M::TRACED {
                pm.trace_load(at, bytes as usize);
            }
            // SAFETY: 1. the segment is a block of this tree with so many bytes: see `cell_of`; 2.
            // the caller says that nobody writes them.
            let words = unsafe { std::slice::from_raw_parts(at, bytes as usize) };
            crc32c::crc32c_append(crc, words)
        })
    }

    /// Takes over what a scan would find out: the first number that was never used, and those below
    /// it that are not.
    pub(super) fn restore(&self, next: u32, unused: Vec<u32>) {
        let mut ids = lock(&self.ids);
        ids.next = next;
        ids.free = unused.into_iter().map(|id| (id, 0)).collect();
    }

    /// Turns the bit of a word back that is wrong, and flushes it; `None` if that is not all.
    #[cold]
    fn mend<M: Media>(
        &self,
        pm: &M,
        id: u32,
        is_sound: impl Fn(u32, Word) -> bool,
    ) -> Option<Option<Word>> {
        let cell = self.cell(pm, id)?;
        // ORDERING: Relaxed; nobody changes the table yet.
        let word = cell.load(pm, Ordering::Relaxed);
        let others = (0..64).filter_map(|bit| Word::decode(word ^ 1 << bit, id).ok());
        let meant = { others }.find(|word| word.is_none_or(|word| is_sound(id, word)))?;
        // In a mapping of its own, if it is open for reading.
        self.store(pm, id, meant);
        // PERSIST: the word as it was; the caller fences.
        pm.flush_of(cell);
        Some(meant)
    }

    /// Gives a number that lost its word to a page, in memory only: the medium is open for reading.
    /// Returns whether there is room for the word.
    pub(super) fn assume<M: Media>(&self, pm: &M, id: u32, word: Word) -> bool {
        let is_there = self.cell(pm, id).is_some();
        if is_there {
            let mut ids = lock(&self.ids);
            ids.next = ids.next.max(id + 1);
            self.store(pm, id, Some(word));
        }
        is_there
    }

    /// Clears the word of a page or a value that does not count and flushes that; the caller fences
    /// before the number or the block is used again, and releases the number then.
    pub(super) fn clear<M: Media>(&self, pm: &M, id: u32) {
        self.store(pm, id, None);
        if let Some(cell) = self.cell(pm, id) {
            // PERSIST: no word names the block, before it is used again.
            pm.flush_of(cell);
        }
    }

    /// Blocks of the segments, and their bytes.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, u64)> {
        self.segments.iter().enumerate().filter_map(|(i, block)| {
            // ORDERING: Acquire; pairs with the Release of `add_segment`.
            let block = block.load(Ordering::Acquire);
            (block != 0).then(|| (block, segment_words(i) * 8))
        })
    }

    /// Numbers below this may be in use.
    pub(super) fn end(&self) -> u32 {
        lock(&self.ids).next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_word_of_its_own() {
        let mut expected = (0, 0);
        for id in 0..3 * LARGEST as u32 {
            assert_eq!(place(id), expected, "page {id}");
            expected.1 += 1;
            if expected.1 == segment_words(expected.0) {
                expected = (expected.0 + 1, 0);
            }
        }
        let last = u32::try_from(capacity() - 1).expect("numbers have 32 bits");
        let (segment, word) = place(last);
        assert_eq!((segment, word + 1), (root::MAX_SEGMENTS - 1, LARGEST));
    }

    #[test]
    fn words_are_read_as_they_were_written_and_flips_are_found() {
        for (kind, newborn) in [
            (Kind::Page, false),
            (Kind::Page, true),
            (Kind::Outer, false),
            (Kind::Outer, true),
        ] {
            let word = Word::new(kind, 0x0A34_5678_9AC0, 0xABCDEF, newborn);
            assert!(word.is_of(0xABCDEF) && !word.is_of(0xABCDEE));
            let encoded = word.encode(77);
            assert_eq!(Word::decode(encoded, 77), Ok(Some(word)));
            assert!(Word::decode(encoded, 78).is_err(), "of another page");
            for bit in 0..64 {
                assert!(Word::decode(encoded ^ 1 << bit, 77).is_err());
            }
        }
        assert_eq!(Word::decode(0, 5), Ok(None));
        for (id, bit) in (0..5000).flat_map(|id| (0..64).map(move |bit| (id, bit))) {
            assert!(Word::decode(1 << bit, id).is_err());
        }
    }
}
