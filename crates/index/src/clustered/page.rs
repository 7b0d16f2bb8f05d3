//! Reading a page where it lies in the pool.

use super::layout::{DROPPED_WORDS, HEADER, Header, LINE, Lengths, STRIPE, SUM, Seed, Uniform};
use super::place::{Base, Place, Rank};
use super::stored::{Reference, Stored};
use crate::sorted::key_word;
use bristlecone_pmem::media::cpu;
use bristlecone_pmem::{Media, PWord};
use std::cmp::Ordering as Order;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// A block of the pool, of so many words. Places beyond its end read as nothing, so that a search
/// that comes too late does no harm.
pub(super) struct Page<'p, M> {
    pm: &'p M,
    at: *const u8,
    words: usize,
}

impl<M> Clone for Page<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Page<'_, M> {}

/// Bytes in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// From the page's first byte on.
    pub(super) at: usize,
    pub(super) len: usize,
}

impl Span {
    /// As the place of a value that is no outer one.
    #[inline(always)]
    fn here(self) -> ValueSpan {
        ValueSpan {
            span: self,
            outer: false,
        }
    }
}

/// The entries of a base in uniform form; all numbers are bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entries {
    at: usize,
    /// Of an entry.
    pub(super) bytes: usize,
    /// Of its key, without the prefix.
    key: usize,
    /// Where in it the value is.
    value_at: usize,
    /// Of its value.
    value: usize,
}

impl Entries {
    #[inline(always)]
    fn of(base: &Base, form: Uniform) -> Self {
        Self {
            at: base.at * 8,
            bytes: base.entry_words(form) * 8,
            key: base.suffix(form),
            value_at: base.suffix_words(form) * 8,
            value: form.value.into(),
        }
    }

    /// Entry `i`: key without the prefix, and value.
    #[inline(always)]
    pub(super) fn get(&self, i: usize) -> (Span, ValueSpan) {
        self.at(self.at + i * self.bytes)
    }

    /// Where some of them are.
    #[inline(always)]
    pub(super) fn span(&self, entries: Range<usize>) -> Span {
        Span {
            at: self.at + entries.start * self.bytes,
            len: entries.len() * self.bytes,
        }
    }

    /// Key and value of the entry that begins at byte `at` of the bytes of some entries.
    #[inline(always)]
    pub(super) fn parts<'b>(&self, bytes: &'b [u8], at: usize) -> Option<(Rest<'b>, &'b [u8])> {
        let entry = bytes.get(at..at.wrapping_add(self.bytes))?;
        let rest = Rest {
            bytes: entry.get(..self.key)?,
            words: entry.get(..self.value_at)?,
        };
        let value = entry.get(self.value_at..self.value_at + self.value)?;
        Some((rest, value))
    }

    /// The same of what is at byte `at`: an entry, or a record of the tail in the same form.
    #[inline(always)]
    fn at(&self, at: usize) -> (Span, ValueSpan) {
        let value = Span {
            at: at + self.value_at,
            len: self.value,
        };
        (Span { at, len: self.key }, value.here())
    }
}

/// A key without the prefix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest<'p> {
    pub(super) bytes: &'p [u8],
    /// The words that it takes.
    pub(super) words: &'p [u8],
}

/// A value in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ValueSpan {
    /// The value, or a reference to an outer one.
    pub(super) span: Span,
    pub(super) outer: bool,
}

/// A part of the base that one sum covers.
pub(super) struct Stripe {
    words: Range<usize>,
    found: u32,
    expected: u32,
}

impl Stripe {
    pub(super) fn is_sound(&self) -> bool {
        self.found == self.expected
    }
}

/// Most words of a tail that are asked for at once.
const MAX_TAIL_PREFETCH: usize = 256;

impl<'p, M: Media> Page<'p, M> {
    /// The block at `off`.
    ///
    /// # Safety
    /// The block of `words` words at `off` is inside the pool, which stays mapped while `pm` is
    /// borrowed, and `off` is a multiple of 8.
    #[inline(always)]
    pub(super) unsafe fn new(pm: &'p M, off: u64, words: usize) -> Self {
        let at = pm.base().wrapping_add(off as usize);
        Self { pm, at, words }
    }

    /// A page that was copied. Its words are read as atomic ones, hence `mut`, and not written.
    pub(super) fn copied(pm: &'p M, words: &'p mut [u64]) -> Self {
        Self {
            pm,
            at: words.as_mut_ptr().cast_const().cast(),
            words: words.len(),
        }
    }

    pub(super) fn words(self) -> usize {
        self.words
    }

    /// The word at `i`, which is in the page.
    pub(super) fn cell(self, i: usize) -> &'p PWord {
        assert!(i < self.words, "a word of the page");
        // SAFETY: 1. inside the block, which is in the pool and 8-aligned (`new`); 2. any bits are
        // a valid word; 3. the mapping outlives the borrow of `pm`.
        unsafe { &*self.at.wrapping_add(i * 8).cast::<PWord>() }
    }

    /// The word at `i`; 0 beyond the page's end.
    #[inline(always)]
    #[track_caller]
    pub(super) fn word(self, i: usize) -> u64 {
        if i >= self.words {
            return 0;
        }
        // SAFETY: as of `cell`.
        let cell = unsafe { &*self.at.wrapping_add(i * 8).cast::<PWord>() };
        // ORDERING: Relaxed; published by the part's count or version.
        cell.load(self.pm, Ordering::Relaxed)
    }

    /// Copies the words from `from` to `to`, which are in the page.
    pub(super) fn copy(self, from: usize, to: usize, out: &mut Vec<u64>) {
        out.clear();
        out.extend((from..to).map(|i| self.word(i)));
    }

    /// The bytes of `span`; none if it is not inside the page.
    ///
    /// The caller is pinned or holds the writer's lock, so that the block is not used for anything
    /// else meanwhile.
    #[inline(always)]
    pub(super) fn bytes(self, span: Span) -> &'p [u8] {
        if span.at.saturating_add(span.len) > self.words * 8 {
            return &[];
        }
        let at = self.at.wrapping_add(span.at);
        if M::TRACED {
            self.pm.trace_load(at, span.len);
        }
        // SAFETY: 1. inside the block, which is in the pool; 2. what a published place leads to is
        // not written again before readers have left, and the caller is one, or is the writer. Only
        // a search that met a mixture of two pages may look at bytes that are being stored: it
        // compares them, and finds by the version that the answer means nothing.
        unsafe { std::slice::from_raw_parts(at, span.len) }
    }

    /// A point where a simulated medium may let another thread run.
    #[inline(always)]
    pub(super) fn interleave(self) {
        self.pm.interleave();
    }

    /// Asks for the lines of some words, as far as they are in the page.
    #[inline(always)]
    pub(super) fn prefetch(self, word: usize, words: usize) {
        let words = words.min(self.words.saturating_sub(word));
        cpu::prefetch(self.at.wrapping_add(word * 8), words * 8);
    }

    /// Asks for the tail, which ends at word `end`: its records are read in another order than they
    /// lie in. The processor finds out about the base.
    #[inline(always)]
    pub(super) fn prefetch_tail(self, base: &Base, end: usize) {
        if let Some(form) = base.form {
            let start = base.at + base.entries * base.entry_words(form);
            self.prefetch(start, end.saturating_sub(start).min(MAX_TAIL_PREFETCH));
        }
    }

    /// Words of the page, as its header says.
    pub(super) fn header_words(self) -> usize {
        (self.word(1) >> 48) as usize
    }

    /// The header.
    ///
    /// # Errors
    /// A message that says what is wrong with it.
    pub(super) fn header(self, salt: u64) -> Result<(Header, Seed), String> {
        let words = [0, 1, 2, 3, 4, 5].map(|i| self.word(i));
        let header = Header::decode(&words, self.words)
            .ok_or_else(|| "the header is none of a page".to_owned())?;
        let seed = Seed {
            salt,
            generation: header.generation,
        };
        let mut rest = Vec::new();
        self.copy(HEADER, header.base, &mut rest);
        let (found, expected) = (seed.header_sum(&words, &rest), self.word(SUM));
        if found != expected {
            return Err(format!(
                "the header's checksum is {found:#010x}, expected {expected:#010x}"
            ));
        }
        Ok((header, seed))
    }

    /// Compares the sums of the base.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub(super) fn check_base(self, header: &Header, seed: Seed) -> Result<(), String> {
        let wrong = self.stripes(header, seed).find(|stripe| !stripe.is_sound());
        wrong.map_or(Ok(()), |stripe| {
            Err(format!(
                "the checksum of bytes {} to {} is {:#010x}, expected {:#010x}",
                stripe.words.start * 8,
                stripe.words.end * 8,
                stripe.found,
                stripe.expected
            ))
        })
    }

    /// The stripes of the base, with their sums.
    pub(super) fn stripes(self, header: &Header, seed: Seed) -> impl Iterator<Item = Stripe> {
        let (tail, sums) = (header.tail, header.sums_at());
        let starts = (header.base..tail).step_by(STRIPE).enumerate();
        let mut words = Vec::with_capacity(STRIPE);
        starts.map(move |(i, start)| {
            let end = (start + STRIPE).min(tail);
            self.copy(start, end, &mut words);
            Stripe {
                words: start..end,
                found: seed.stripe_sum(start, &words),
                expected: (self.word(sums + i / 2) >> (i % 2 * 32)) as u32,
            }
        })
    }

    /// Checks that the entries of the base ascend and are between the fences. `numbers`: whether
    /// all keys, and all values, have eight bytes.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub(super) fn check_entries(
        self,
        header: &Header,
        numbers: (bool, bool),
    ) -> Result<(), String> {
        let base = Base::of(header);
        let (low, high) = (self.low(header), self.high(header));
        let prefix = self.prefix(header.prefix);
        let cut = |fence: Option<&'p [u8]>| match fence.map(|fence| fence.strip_prefix(prefix)) {
            None => Ok(None),
            Some(Some(rest)) => Ok(Some(rest)),
            Some(None) => Err("a fence lacks the prefix".to_owned()),
        };
        let (low, high) = (cut(low)?, cut(high)?);
        let is_of_numbers = header.form == Some(Uniform::NUMBERS) && header.prefix == 0;
        if numbers == (true, true) && !is_of_numbers {
            return Err("its form is none of numbers".into());
        }
        let mut last: Option<&[u8]> = None;
        for i in 0..header.entries {
            let (key, value) = self.entry(&base, i);
            let lengths_are_right = (!numbers.0 || header.prefix + key.len == 8)
                && (!numbers.1 || value.span.len == 8 && !value.outer);
            // Under the sums of the base.
            let is_inside =
                |span: Span| header.base * 8 <= span.at && span.at + span.len <= header.tail * 8;
            let leads_somewhere = !value.outer || self.reference(value).is_some();
            let (bytes, value) = (self.bytes(key), value.span);
            let ascends = last.is_none_or(|last| last < bytes)
                && low.is_none_or(|low| low <= bytes)
                && high.is_none_or(|high| bytes < high);
            let spans_are_right = is_inside(key) && is_inside(value) && leads_somewhere;
            if !(lengths_are_right && spans_are_right && ascends) {
                return Err(format!("entry {i} is out of order, or of another length"));
            }
            last = Some(bytes);
        }
        Ok(())
    }

    pub(super) fn low(self, header: &Header) -> Option<&'p [u8]> {
        let at = HEADER * 8;
        header.low.map(|len| self.bytes(Span { at, len }))
    }

    pub(super) fn high(self, header: &Header) -> Option<&'p [u8]> {
        let at = header.high_at() * 8;
        header.high.map(|len| self.bytes(Span { at, len }))
    }

    /// Number and birth of each outer value that this page's replacement dropped.
    pub(super) fn dropped(self, header: &Header) -> impl Iterator<Item = [u64; 2]> {
        let at = header.dropped_at();
        (0..header.dropped).map(move |i| [0, 1].map(|j| self.word(at + i * DROPPED_WORDS + j)))
    }

    /// The first `len` bytes of the low fence, which all keys of the page begin with.
    pub(super) fn prefix(self, len: usize) -> &'p [u8] {
        self.bytes(Span {
            at: HEADER * 8,
            len,
        })
    }

    /// Key, without the prefix, and value of a record of the tail.
    #[inline(always)]
    pub(super) fn record(self, base: &Base, place: Place) -> (Span, ValueSpan) {
        match base.form {
            Some(form) if !place.general => Entries::of(base, form).at(place.word * 8),
            _ => match self.removed_entry(place) {
                Some(entry) => {
                    let nothing = Span { at: 0, len: 0 };
                    (self.entry(base, entry).0, nothing.here())
                }
                None => self.general(place.word),
            },
        }
    }

    /// The entry of the base whose key a record removes, if it names one.
    #[inline(always)]
    pub(super) fn removed_entry(self, place: Place) -> Option<usize> {
        let lengths = place
            .removed
            .then(|| Lengths::decode(self.word(place.word)));
        lengths.flatten()?.entry.map(usize::from)
    }

    /// The entry of the base that has this value; `None` if it is a record's.
    pub(super) fn entry_of(self, base: &Base, value: ValueSpan) -> Option<u16> {
        let is_behind = |i: usize| self.entry(base, i).1.span.at < value.span.at;
        let entry = partition(base.entries, is_behind);
        let is_it = entry < base.entries && self.entry(base, entry).1 == value;
        is_it.then(|| u16::try_from(entry).ok()).flatten()
    }

    /// The word of the key of a record of the tail.
    #[inline(always)]
    pub(super) fn record_word(self, base: &Base, place: Place) -> u64 {
        match base.word_form() {
            Some(_) if !place.general => self.number(place.word),
            _ => key_word(self.bytes(self.record(base, place).0)),
        }
    }

    /// Key and value at `word`, where their lengths are.
    #[inline(always)]
    fn general(self, word: usize) -> (Span, ValueSpan) {
        let lengths = Lengths::decode(self.word(word));
        let (key, value, outer) = lengths.map_or((0, 0, false), |l| (l.key, l.value, l.outer));
        let at = (word + 1) * 8;
        let span = Span {
            at: at + key,
            len: value,
        };
        (Span { at, len: key }, ValueSpan { span, outer })
    }

    /// A key without the prefix. Keys begin at words.
    ///
    /// The caller is as of [`bytes`](Self::bytes).
    #[inline(always)]
    pub(super) fn rest(self, key: Span) -> Rest<'p> {
        Rest {
            bytes: self.bytes(key),
            words: self.bytes(Span {
                len: key.len.next_multiple_of(8),
                ..key
            }),
        }
    }

    /// A value as the page has it.
    ///
    /// The caller is as of [`bytes`](Self::bytes).
    #[inline(always)]
    pub(super) fn stored(self, value: ValueSpan) -> Stored<'p> {
        Stored {
            bytes: self.bytes(value.span),
            outer: value.outer,
        }
    }

    /// The reference that the page has as a value; `None` if the value is here, or it is none.
    pub(super) fn reference(self, value: ValueSpan) -> Option<Reference> {
        value
            .outer
            .then(|| self.stored(value).reference())
            .flatten()
    }

    /// Entry `i` of the base: key without the prefix, and value.
    #[inline(always)]
    pub(super) fn entry(self, base: &Base, i: usize) -> (Span, ValueSpan) {
        match base.form {
            Some(form) => Entries::of(base, form).get(i),
            None => self.general((self.word(base.at + i / 4) >> (i % 4 * 16)) as u16 as usize),
        }
    }

    /// The entries of the base, if they are in uniform form and take any bytes.
    #[inline(always)]
    pub(super) fn entries(self, base: &Base) -> Option<Entries> {
        let entries = base.form.map(|form| Entries::of(base, form));
        entries.filter(|entries| entries.bytes > 0)
    }

    /// The word of the key of entry `i` of the base.
    #[inline(always)]
    pub(super) fn entry_word(self, base: &Base, i: usize) -> u64 {
        if let Some(form) = base.word_form() {
            // Zeros follow a key that is shorter than that.
            return self.number(base.at + i * base.entry_words(form));
        }
        key_word(self.bytes(self.entry(base, i).0))
    }

    /// The word at `i` as the number whose bytes it has, the highest first.
    #[inline(always)]
    pub(super) fn number(self, i: usize) -> u64 {
        u64::from_be(self.word(i))
    }

    /// What `key`, any key, has behind the page's prefix, which it begins with.
    ///
    /// # Errors
    /// Its order against all keys of the page, if it does not.
    #[inline(always)]
    pub(super) fn strip<'k>(self, base: &Base, key: &'k [u8]) -> Result<&'k [u8], Order> {
        let prefix = self.prefix(base.prefix);
        match key[..key.len().min(prefix.len())].cmp(prefix) {
            Order::Equal => Ok(base.rest(key)),
            order => Err(order),
        }
    }

    /// Where a key that has `rest` behind the prefix is among the entries of the base. `near`
    /// returns, from and to, where a key with that word is.
    #[inline(always)]
    pub(super) fn rank(
        self,
        base: &Base,
        rest: &[u8],
        near: impl FnOnce(u64) -> (usize, usize),
    ) -> Rank {
        let word = key_word(rest);
        let (from, to) = near(word);
        let below = |i| self.is_entry_below(base, from + i, rest, word);
        let below = from + partition(to.saturating_sub(from), below);
        self.rank_at(base, rest, below)
    }

    /// Where a key with this word is among the entries of the base. There are `from` below it, at
    /// least, and not many more.
    pub(super) fn rank_from(self, base: &Base, rest: &[u8], word: u64, from: usize) -> Rank {
        let below = |i| self.is_entry_below(base, i, rest, word);
        let (mut from, mut step) = (from, 1);
        while from + step <= base.entries && below(from + step - 1) {
            from += step;
            step *= 2;
        }
        let to = (from + step - 1).min(base.entries);
        let more = partition(to - from, |i| below(from + i));
        self.rank_at(base, rest, from + more)
    }

    fn rank_at(self, base: &Base, rest: &[u8], below: usize) -> Rank {
        let is_next = || self.bytes(self.entry(base, below).0) == rest;
        let equal = below < base.entries && is_next();
        Rank { below, equal }
    }

    /// Whether the key of entry `i` is below one that has `rest`, and this word, behind the prefix.
    #[inline(always)]
    pub(super) fn is_entry_below(self, base: &Base, i: usize, rest: &[u8], word: u64) -> bool {
        match self.entry_word(base, i).cmp(&word) {
            Order::Equal if base.is_word(rest.len()) => false,
            Order::Equal => self.bytes(self.entry(base, i).0) < rest,
            order => order.is_lt(),
        }
    }

    /// Flushes the lines of some words.
    #[track_caller]
    pub(super) fn flush(self, from: usize, to: usize) {
        self.pm
            .flush(self.at.wrapping_add(from * 8), (to - from) * 8);
    }

    /// The address of a word.
    pub(super) fn address(self, word: usize) -> *mut u8 {
        self.at.wrapping_add(word * 8).cast_mut()
    }
}

/// The number of the first `n` indices for which `below` holds; it holds for none after one for
/// which it does not.
#[inline(always)]
pub(super) fn partition(n: usize, below: impl Fn(usize) -> bool) -> usize {
    let (mut from, mut to) = (0, n);
    while from < to {
        let middle = from.midpoint(to);
        if below(middle) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    from
}

const _: () = assert!(LINE * 8 == bristlecone_pmem::media::LINE);
