//! Values that are too long for a page, in blocks of their own.
//!
//! ```text
//! block       head | content
//! head        id 32 born in 32 | generation 48 place 16 | length 32 CRC-32C 32
//! reference   head | offset of the block      in a record, in the value's place
//! ```
//!
//! A value has a number and a word in the page table, as a page has. The record that leads to it
//! has a reference, which repeats the head, so a read goes to the block at once and sees whether it
//! is the one. The sum covers head and content.
//!
//! # Invariants
//! 1. A word names the block of a value if and only if a record of a page, in base or tail, leads
//!    to it; of records that a later one supersedes, too.
//! 2. *Birth.* The word says newborn until the change that brought the value is durable. `born in`
//!    is the page that got it, at generation `generation`: by the group at word `place`, or, where
//!    that is 0, by the replacement that gave the page this generation.
//! 3. *Group.* Value, word and group share one fence. So a group counts only if the words of all
//!    values that it leads to name them, and those that are newborn are sound. That is asked of the
//!    groups behind the seal, of which a crash can have torn the last. A word that is settled says
//!    that the fence had passed: then a value that is not sound is damage, which its readers see.
//! 4. *Death.* The page that takes the place of one whose values it has not names them
//!    ([dropped](super::layout)). Once it counts, and no reader comes to the page before it, their
//!    words are cleared, and that is durable before the page's lock is let go. Loading the page
//!    clears what a crash has left of them: a head that has the same number and birth is the same
//!    value's.
//! 5. *Space.* A page is replaced at the latest when the values that its records supersede come to
//!    more than twice its size, if there is space for that.
//!
//! # Crash states
//! | crash | leaves | mended by |
//! | --- | --- | --- |
//! | before the change is durable | a newborn word; no group, or page, that counts and leads to it | cleared when the tree is opened |
//! | after it | a newborn word | settled when the tree is opened |
//! | after a replacement, before the words of dropped values are cleared | values that nothing leads to | cleared when the page is loaded |

use super::find::Found;
use super::image::{self};
use super::layout::Header;
use super::load::Sound;
use super::order::Step;
use super::page::Page;
use super::part::Part;
use super::place::{Base, Place};
use super::stored::{HEAD, HEAD_WORDS, REFERENCE, Reference, Stored};
use super::table::{Kind, Word};
use super::tail::Seen;
use super::{ClusteredTree, ReadError, sum};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::cell::write_bytes;
use bristlecone_pmem::media::cpu;
use bristlecone_pmem::pool::DataKind;
use bristlecone_pmem::{Media, POff, PWord, SpaceError, planted};
use crossbeam_epoch::Guard;
use std::borrow::Cow;
use std::sync::atomic::Ordering;

/// Longest value that pages hold, in bytes.
pub(super) const MAX_INLINE: usize = 256;
/// Likewise where rare paths are to be taken often.
const TINY_MAX_INLINE: usize = 64;

/// Bytes of superseded values that a page holds at most, in pages' sizes.
const MAX_SUPERSEDED: usize = 2;

/// Bytes of a value that are prefetched at most.
const PREFETCHED: usize = 1024;

/// Bytes of retired blocks that are not left to this thread alone.
const MANY: usize = 64 << 10;

/// Bytes of the smallest block.
const SMALLEST: usize = 128;
/// Bytes that every block has.
pub(super) const MIN_BLOCK: u64 = SMALLEST as u64;

/// Longest content of a block.
pub(super) const MAX_OUTER: usize = bristlecone_pmem::heap::MAX_BLOCK as usize - HEAD;

/// An outer value whose content is in its block. No record leads to it yet.
#[derive(Debug)]
pub(super) struct Outer {
    id: u32,
    block: u64,
    len: u32,
    /// The sum of the content.
    sum: u32,
}

impl Outer {
    /// The reference to it, born in that page and generation at that place.
    pub(super) fn reference(&self, born_in: u32, generation: u64, place: usize) -> Reference {
        let first = [
            u64::from(self.id) | u64::from(born_in) << 32,
            generation | (place as u64) << 48,
        ];
        let sum = head_sum(self.sum, first, self.len);
        let [a, b] = first;
        Reference {
            head: [a, b, u64::from(self.len) | u64::from(sum) << 32],
            block: self.block,
        }
    }
}

/// The sum of a block whose content has the sum `content`.
pub(super) fn head_sum(content: u32, [a, b]: [u64; 2], len: u32) -> u32 {
    sum::words(content, &[a, b, len.into()])
}

impl Reference {
    /// Whether the value has a content with the sum `content`.
    pub(super) fn has_sum(&self, content: u32) -> bool {
        let [a, b, c] = self.head;
        head_sum(content, [a, b], self.len() as u32) == (c >> 32) as u32
    }
}

/// A value that a change brings.
#[derive(Clone, Copy, Debug)]
pub(super) enum Given<'g> {
    Here(&'g [u8]),
    Outer(&'g Outer),
}

impl<'g> Given<'g> {
    /// As a record of that page has it. `room`: for a reference.
    pub(super) fn stored(
        self,
        (born_in, generation, place): (u32, u64, usize),
        room: &'g mut [u8; REFERENCE],
    ) -> Stored<'g> {
        match self {
            Self::Here(bytes) => Stored::here(bytes),
            Self::Outer(outer) => {
                *room = outer.reference(born_in, generation, place).encode();
                Stored {
                    bytes: room,
                    outer: true,
                }
            }
        }
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Values may be outer ones.
    pub(super) const OUTER: bool = !matches!(V::KIND, DataKind::U64);

    /// Whether a value of so many bytes is an outer one.
    pub(super) fn is_outer(&self, len: usize) -> bool {
        let most = if self.pm().tiny() {
            TINY_MAX_INLINE
        } else {
            MAX_INLINE
        };
        Self::OUTER && len > most
    }

    /// Writes a value's content to a block; it is flushed with the head.
    ///
    /// # Errors
    /// [`SpaceError`]; nothing has changed then.
    pub(super) fn write_outer(&self, value: &[u8]) -> Result<Outer, SpaceError> {
        let outer = self.write_outer_where(value, |_| true)?;
        Ok(outer.unwrap_or_else(|| unreachable!("every place does")))
    }

    /// As [`write_outer`](Self::write_outer), if the block that is free does.
    pub(super) fn write_outer_where(
        &self,
        value: &[u8],
        does: impl FnOnce(u64) -> bool,
    ) -> Result<Option<Outer>, SpaceError> {
        self.refill_spare()?;
        let bytes = HEAD + value.len();
        // Smaller blocks are not aligned to lines.
        let block = self.heap.alloc(bytes.max(SMALLEST) as u64)?.get();
        if !does(block) {
            self.heap.free(POff::new(block));
            return Ok(None);
        }
        // Its head is read first.
        self.touch_to_store(block..block + bytes as u64);
        let id = self.number_for(block);
        let id = id.inspect_err(|_| self.heap.free(POff::new(block)))?;
        let (pm, at) = (self.pm(), self.address(block));
        // SAFETY: 1. the block has room for the head and the value, in whole words, and is
        // word-aligned; 2. it was just allocated: nobody else uses it.
        unsafe { write_bytes(pm, at.wrapping_add(HEAD), value) };
        Ok(Some(Outer {
            id,
            block,
            len: value.len() as u32,
            sum: crc32c::crc32c_append(self.salt as u32, value),
        }))
    }

    /// Reserves a number for a value in that block. It is not that of a value that was there
    /// before: if its word were durable and its head were not, that of the other would pass for it.
    fn number_for(&self, block: u64) -> Result<u32, SpaceError> {
        let reserve = || self.table.reserve(self.root(), &self.heap, None);
        let before = self.head(block)[0] as u32;
        let id = reserve()?;
        if id != before {
            return Ok(id);
        }
        let other = reserve();
        self.release([id]);
        other
    }

    /// Gives back what [`write_outer`](Self::write_outer) took.
    pub(super) fn discard_outer(&self, outer: &Outer) {
        self.heap.free(POff::new(outer.block));
        self.release([outer.id]);
    }

    fn address(&self, block: u64) -> *mut u8 {
        self.pm().base().wrapping_add(block as usize)
    }

    /// Writes the head of a value and its newborn word, and flushes all of it; the caller fences,
    /// with the group or the page that leads to the value.
    pub(super) fn bear_outer(&self, reference: &Reference) {
        let (pm, at) = (self.pm(), self.address(reference.block));
        let head = &reference.encode()[..HEAD];
        // SAFETY: 1. the block begins with room for a head, and is word-aligned; 2. nothing leads
        // to it yet.
        unsafe { write_bytes(pm, at, head) };
        let bytes = HEAD + reference.len();
        // PERSIST: head and content, with the group or the page that leads to the value. With those
        // of the batch's other values, which a journal writes as one if they are neighbours.
        pm.flush_fresh(at, bytes, self.heap.freed(reference.block));
        self.table
            .bear(pm, reference.id(), word_of(reference, true));
    }

    /// Stores the word of a value whose change is durable, and flushes it.
    pub(super) fn settle_outer(&self, reference: &Reference) {
        let word = word_of(reference, false);
        self.table.settle(self.pm(), reference.id(), word);
    }

    /// The cell of word `i` of a block that the heap has checked.
    fn head_cell(&self, block: u64, i: usize) -> &PWord {
        debug_assert!(i < HEAD_WORDS);
        // SAFETY: 1. the block is inside the pool and 64-aligned, with room for a head; 2. any bits
        // are a valid word; 3. the mapping outlives the borrow of `self`.
        unsafe { &*self.address(block).cast::<PWord>().wrapping_add(i) }
    }

    fn head(&self, block: u64) -> [u64; HEAD_WORDS] {
        // ORDERING: Relaxed; the caller is pinned, holds a lock, or is alone.
        [0, 1, 2].map(|i| self.head_cell(block, i).load(self.pm(), Ordering::Relaxed))
    }

    /// Prefetches the content of the value of a step of a scan, if it is an outer one.
    #[inline]
    pub(super) fn prefetch_outer(&self, page: Page<'_, M>, base: &Base, step: Step) {
        if let Some(reference) = page.reference(step.entry(page, base).1) {
            self.prefetch_content(&reference);
        }
    }

    /// Prefetches the beginning of a value; the processor sees the pattern and goes on.
    #[inline]
    fn prefetch_content(&self, reference: &Reference) {
        let bytes = (HEAD + reference.len()).min(PREFETCHED);
        cpu::prefetch(self.address(reference.block), bytes);
    }

    /// The content that a reference leads to. `sums`: whether its sum is compared.
    ///
    /// The caller is pinned since before it read the reference from a page that was current, or
    /// holds the page's lock, or has the reference from history, at a time that it reads at: so the
    /// block is not used for anything else meanwhile.
    pub(super) fn content_of(&self, reference: &Reference, sums: bool) -> Result<&[u8], String> {
        let (block, len) = (reference.block, reference.len());
        let end = block.saturating_add((HEAD + len) as u64);
        let of_value = |what: String| format!("the value at {block:#x}: {what}");
        if block == 0 || end.max(block.saturating_add(MIN_BLOCK)) > self.pm().len() {
            return Err(of_value("it is not inside the pool".into()));
        }
        self.touch(block..end);
        if sums {
            self.prefetch_content(reference);
        }
        if self.head(block) != reference.head {
            return Err(of_value("its head is another one's".into()));
        }
        let at = self.address(block).wrapping_add(HEAD);
        if M::TRACED {
            self.pm().trace_load(at, len);
        }
        // SAFETY: 1. inside the pool, which stays mapped while `self` is borrowed; 2. the head is
        // that of the value, whose content is not written again before readers have left, and the
        // caller is one of them.
        let content = unsafe { std::slice::from_raw_parts(at.cast_const(), len) };
        if sums {
            let sum = crc32c::crc32c_append(self.salt as u32, content);
            let [a, b, c] = reference.head;
            let (found, expected) = (head_sum(sum, [a, b], len as u32), (c >> 32) as u32);
            if found != expected {
                return Err(of_value(format!(
                    "its checksum is {found:#010x}, expected {expected:#010x}"
                )));
            }
        }
        Ok(content)
    }

    /// The content of a value that the caller has written, and that nothing leads to.
    pub(super) fn content_of_new(&self, outer: &Outer) -> &[u8] {
        let at = self.address(outer.block).wrapping_add(HEAD);
        // SAFETY: 1. inside the block, which was allocated with room for it, in the pool, which
        // stays mapped while `self` is borrowed; 2. `write_outer` has written it, and nobody does
        // so again before it is discarded, or superseded and its readers have left.
        unsafe { std::slice::from_raw_parts(at.cast_const(), outer.len as usize) }
    }

    /// The value that a page has as `stored`. The caller is as of `content_of`.
    ///
    /// # Errors
    /// [`ReadError`]: an outer value is damaged.
    #[inline(always)]
    pub(super) fn resolve<'v>(&'v self, stored: Stored<'v>) -> Result<Cow<'v, [u8]>, ReadError> {
        if Self::OUTER && stored.outer {
            self.resolve_outer(stored.bytes)
        } else {
            Ok(Cow::Borrowed(stored.bytes))
        }
    }

    fn resolve_outer(&self, reference: &[u8]) -> Result<Cow<'_, [u8]>, ReadError> {
        let content = Reference::decode(reference)
            .ok_or_else(|| "a reference to a value leads nowhere".to_owned())
            .and_then(|reference| self.content_or_copy(&reference, self.sums_on_read));
        content.map_err(ReadError::Value)
    }

    /// Whether the value that a reference leads to is there: its word names it, and it is sound.
    pub(super) fn check_outer(&self, reference: &Reference) -> Result<(), String> {
        let (id, block) = (reference.id(), reference.block);
        let word = self.table.read(self.pm(), id)?;
        if !word.is_some_and(|word| names(word, reference)) {
            return Err(format!(
                "the value at {block:#x}: the page table does not name it as {id}"
            ));
        }
        self.heap.check(block, MIN_BLOCK)?;
        let room = self.heap.block_bytes(block).unwrap_or(0);
        if room < (HEAD + reference.len()) as u64 {
            return Err(format!(
                "the value at {block:#x}: its block has {room} bytes"
            ));
        }
        self.content_of(reference, true).map(|_| ())
    }

    /// The references of a page: of its base, and of its tail, whose records are at `places`.
    pub(super) fn references(
        &self,
        page: Page<'_, M>,
        header: &Header,
        places: impl IntoIterator<Item = Place>,
    ) -> Vec<Reference> {
        let mut all = Vec::new();
        if !Self::OUTER || header.level > 0 {
            return all;
        }
        let base = Base::of(header);
        if base.form.is_none() {
            for i in 0..base.entries {
                all.extend(page.reference(page.entry(&base, i).1));
            }
        }
        for place in places.into_iter().filter(|place| place.general) {
            all.extend(page.reference(page.record(&base, place).1));
        }
        all
    }

    /// Whether a group counts: its stamp is that of a change that was made, and what it leads to is
    /// there.
    pub(super) fn group_counts(&self, page: Page<'_, M>, header: &Header, seen: &Seen) -> bool {
        self.counts(seen.stamp_word)
            && (!Self::OUTER
                || !seen.behind_seal
                || planted!(self.pm(), "clustered-outer-unchecked")
                || self.values_are_there(page, header, seen))
    }

    fn values_are_there(&self, page: Page<'_, M>, header: &Header, seen: &Seen) -> bool {
        let is_there = |one: &Reference| {
            // A damaged word was one once. The value has a sum of its own.
            let Ok(word) = self.table.read(self.pm(), one.id()) else {
                return true;
            };
            let Some(word) = word.filter(|word| names(*word, one)) else {
                // Overwritten, or it never was durable: the value was then.
                return self.pool.is_salvaged() && self.content_of(one, true).is_ok();
            };
            // A word is settled once the group is durable, with what it leads to: a value that is
            // not sound then is damaged, which who reads it will see.
            let is_durable = !word.newborn;
            self.heap.check(one.block, MIN_BLOCK).is_ok()
                && (is_durable || self.content_of(one, true).is_ok())
        };
        let references = self.references_of_group(page, header, seen);
        references.is_some_and(|all| all.iter().all(is_there))
    }

    /// The references of one group; `None` if its records are not sound.
    fn references_of_group(
        &self,
        page: Page<'_, M>,
        header: &Header,
        seen: &Seen,
    ) -> Option<Vec<Reference>> {
        let (base, mut all) = (Base::of(header), Vec::new());
        let read = page.records(&base, seen, &mut |place: Place, _: &[u8]| {
            if place.general {
                all.extend(page.reference(page.record(&base, place).1));
            }
        });
        read.ok().map(|()| all)
    }

    /// Bytes of the outer value that a record has, which another is to supersede.
    #[inline(always)]
    pub(super) fn superseded_by(&self, page: Page<'_, M>, found: Found) -> usize {
        match found {
            Found::Value(value) if Self::OUTER => {
                page.reference(value).map_or(0, |reference| reference.len())
            }
            _ => 0,
        }
    }

    /// Whether the page is to be replaced, which drops superseded values, rather than appended to,
    /// by which it would have so many bytes of them more.
    #[inline(always)]
    pub(super) fn holds_too_much(&self, part: &Part, more: usize) -> bool {
        Self::OUTER && part.superseded() + more > MAX_SUPERSEDED * self.page_words * 8
    }

    /// Clears the words of values that no record leads to any more, durably, and gives back their
    /// blocks, but for those in `kept`, which history has. The page that names them as dropped
    /// counts.
    pub(super) fn drop_outers(&self, dropped: &[Reference], kept: &[u32], guard: &Guard) {
        let pm = self.pm();
        let is_named = |one: &&Reference| {
            // Otherwise it is damaged, and so is the record.
            let word = self.table.read(pm, one.id()).ok().flatten();
            word.is_some_and(|word| names(word, one))
        };
        let dropped: Vec<&Reference> = dropped.iter().filter(is_named).collect();
        if dropped.is_empty() {
            return;
        }
        for one in &dropped {
            self.table.clear(pm, one.id());
        }
        // PERSIST: cleared words, before their numbers and blocks are used again, and before the
        // page that names them is replaced.
        pm.fence();
        let blocks = dropped.iter().filter(|one| !kept.contains(&one.id()));
        self.retire_outers(blocks.map(|one| (one.block, one.len())), guard);
        self.release(dropped.iter().map(|one| one.id()));
    }

    /// Gives back the blocks of outer values, of so many bytes each, once readers have left them.
    pub(super) fn retire_outers(&self, blocks: impl Iterator<Item = (u64, usize)>, guard: &Guard) {
        let mut bytes = 0;
        for (block, len) in blocks {
            self.retire(block, guard);
            bytes += len;
        }
        if bytes > MANY {
            // Other threads may need the space before this one retires anything else.
            guard.flush();
        }
    }

    /// Number and birth of the value in a block of the tree.
    pub(super) fn identity_at(&self, block: u64) -> [u64; 2] {
        let [a, b, _] = self.head(block);
        [a, b]
    }

    /// Whether a word names a value of that number.
    pub(super) fn is_value_of(&self, id: u32, word: Word) -> bool {
        self.heap.check(word.block, MIN_BLOCK).is_ok() && {
            let reference = Reference {
                head: self.head(word.block),
                block: word.block,
            };
            reference.id() == id && word.is_of(reference.generation())
        }
    }

    /// Clears what a crash has left of the values that the page names as dropped.
    pub(super) fn drop_again(&self, page: Page<'_, M>, header: &Header) {
        let pm = self.pm();
        let mut found = Vec::new();
        for identity in page.dropped(header) {
            let [a, b] = identity;
            let (head, block) = ([a, b, 0], 0);
            let one = Reference { head, block };
            let id = one.id();
            // By now the number is mostly another value's, whose block may have left memory: the
            // word alone tells.
            let is_it = |word: &Word| word.kind == Kind::Outer && word.is_of(one.generation());
            let word = self.table.read(pm, id).ok().flatten();
            let Some(word) = word.filter(is_it) else {
                continue;
            };
            let is_block = self.heap.check(word.block, MIN_BLOCK).is_ok();
            if is_block && self.identity_at(word.block) == identity {
                self.table.clear(pm, id);
                found.push((id, word.block));
            }
        }
        if found.is_empty() {
            return;
        }
        // PERSIST: cleared words, before their numbers and blocks are used again.
        pm.fence();
        for (id, block) in found {
            self.heap.free(POff::new(block));
            self.release([id]);
        }
        // Recovery leaves no chunk without blocks.
        self.heap.trim();
    }

    /// Whether a newborn value counts; `None` if the page that would say cannot be read.
    ///
    /// # Errors
    /// A message, if a word of the table is damaged.
    pub(super) fn outer_counts(&self, id: u32, word: Word) -> Result<Option<bool>, String> {
        if self.heap.check(word.block, MIN_BLOCK).is_err() {
            return Ok(Some(false));
        }
        let reference = Reference {
            head: self.head(word.block),
            block: word.block,
        };
        let room = self.heap.block_bytes(word.block).unwrap_or(0);
        let is_sound = self.is_value_of(id, word)
            && (HEAD + reference.len()) as u64 <= room
            && self.content_of(&reference, true).is_ok();
        if !is_sound {
            // Value and group, or page, share a fence: that is not durable either.
            return Ok(Some(false));
        }
        let parent = self.table.read(self.pm(), reference.born_in())?;
        // Another has the number now: the page that got the value was there, and is gone.
        let Some(parent) = parent.filter(|word| word.kind == Kind::Page) else {
            return Ok(Some(true));
        };
        // A page that was not durable has the number now, or the page is damaged.
        let unreadable = parent.newborn.then_some(true);
        let Ok((page, header, seed)) = self.checked_page(parent.block) else {
            return Ok(unreadable);
        };
        if header.id != reference.born_in() || !parent.is_of(header.generation) {
            return Ok(unreadable);
        }
        let (place, generation) = (reference.place(), reference.generation());
        Ok(Some(match header.generation.cmp(&generation) {
            std::cmp::Ordering::Less => false,
            std::cmp::Ordering::Greater => true,
            std::cmp::Ordering::Equal if place == 0 => true,
            std::cmp::Ordering::Equal => {
                let block = parent.block;
                let sound = Sound {
                    page,
                    header,
                    seed,
                    block,
                };
                let mut seen = page.seen(seed, place);
                if seen.is_none() && self.mend_tail(&sound) {
                    seen = page.seen(seed, place);
                }
                seen.is_some_and(|seen| {
                    let all = self.references_of_group(page, &header, &seen);
                    self.group_counts(page, &header, &seen)
                        && all.is_some_and(|all| all.contains(&reference))
                })
            }
        }))
    }
}

fn word_of(reference: &Reference, newborn: bool) -> Word {
    Word::new(
        Kind::Outer,
        reference.block,
        reference.generation(),
        newborn,
    )
}

/// Whether a word of the table is that of the value.
pub(super) fn names(word: Word, reference: &Reference) -> bool {
    word.settled() == word_of(reference, false)
}

/// Of the values in `all`, those that no entry of `entries` leads to.
pub(super) fn without(mut all: Vec<Reference>, entries: &image::Entries<'_>) -> Vec<Reference> {
    if !all.is_empty() {
        let kept: Vec<Reference> = (0..entries.len())
            .filter_map(|i| entries.value(i).reference())
            .collect();
        all.retain(|one| !kept.contains(one));
    }
    all
}
