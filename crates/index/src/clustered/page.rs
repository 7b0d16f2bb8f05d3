//! Reading a page where it lies in the pool.

use super::layout::{
    HEADER, Header, Kind, LINE, Lengths, SEAL, STRIPE, SUM, Seed, Uniform, words_of,
};
use super::order::Rank;
use super::part::{Base, Part, Place};
use super::replace::base_of;
use super::slots::split_word;
use bristlecone_pmem::media::cpu;
use bristlecone_pmem::{Media, PWord};
use std::cmp::Ordering as Order;
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

/// A tail that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SoundTail {
    /// The word after the last group that counts.
    pub(super) end: usize,
    /// The head of a group follows there that a crash tore, or whose change was not committed.
    pub(super) has_dead: bool,
}

/// The result of a search in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Its value.
    Value(Span),
    /// It is not there.
    Absent,
}

/// Eight bytes of a key from `prefix` on, as a number: zeros stand for bytes that it does not have.
#[inline(always)]
pub(super) fn key_word(key: &[u8], prefix: usize) -> u64 {
    let rest = key.get(prefix..).unwrap_or(&[]);
    match rest.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => {
            let mut eight = [0; 8];
            eight[..rest.len()].copy_from_slice(rest);
            u64::from_be_bytes(eight)
        }
    }
}

/// Few enough to be compared one after the other.
const FEW: usize = 16;

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

    pub(super) fn words(self) -> usize {
        self.words
    }

    /// The word at `i`, which is in the page.
    pub(super) fn cell(self, i: usize) -> &'p PWord {
        assert!(i < self.words, "a word of the page");
        // SAFETY: 1. inside the block, which is in the pool and 8-aligned (`new`); 2. any bits are a
        // valid word; 3. the mapping outlives the borrow of `pm`.
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
        // not written again before readers have left, and the caller is one, or is the writer.
        unsafe { std::slice::from_raw_parts(at, span.len) }
    }

    /// Asks for the lines of some words.
    #[inline(always)]
    pub(super) fn prefetch(self, word: usize, words: usize) {
        cpu::prefetch(self.at.wrapping_add(word * 8), words * 8);
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
        let mut words = Vec::new();
        for (i, start) in (header.base..header.tail).step_by(STRIPE).enumerate() {
            self.copy(start, (start + STRIPE).min(header.tail), &mut words);
            let two = self.word(header.sums_at() + i / 2);
            let expected = (two >> (i % 2 * 32)) as u32;
            let found = seed.stripe_sum(start, &words);
            if found != expected {
                return Err(format!(
                    "the checksum of bytes {} to {} is {found:#010x}, expected {expected:#010x}",
                    start * 8,
                    (start + words.len()) * 8
                ));
            }
        }
        Ok(())
    }

    /// Checks that the entries of the base ascend and are between the fences. `numbers`: whether all keys,
    /// and all values, have eight bytes.
    ///
    /// # Errors
    /// A message that says what is wrong.
    pub(super) fn check_entries(
        self,
        header: &Header,
        numbers: (bool, bool),
    ) -> Result<(), String> {
        let base = base_of(header);
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
            let lengths_are_right =
                (!numbers.0 || header.prefix + key.len == 8) && (!numbers.1 || value.len == 8);
            // Under the sums of the base.
            let is_inside =
                |span: Span| header.base * 8 <= span.at && span.at + span.len <= header.tail * 8;
            let bytes = self.bytes(key);
            let ascends = last.is_none_or(|last| last < bytes)
                && low.is_none_or(|low| low <= bytes)
                && high.is_none_or(|high| bytes < high);
            if !(lengths_are_right && is_inside(key) && is_inside(value) && ascends) {
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

    /// The first `len` bytes of the low fence, which all keys of the page begin with.
    pub(super) fn prefix(self, len: usize) -> &'p [u8] {
        self.bytes(Span {
            at: HEADER * 8,
            len,
        })
    }

    /// The words of the group at `at`, if there is a sound one, and its kind.
    fn group(self, seed: Seed, at: usize, rest: &mut Vec<u64>) -> Option<(Kind, usize)> {
        let head = self.word(at);
        let (kind, words) = seed.headed(at, head)?;
        if at + words > self.words {
            return None;
        }
        self.copy(at + 1, at + words, rest);
        seed.is_head(at, head, kind, rest).then_some((kind, words))
    }

    /// Calls `each` with every record of the tail that counts, oldest first, and with its key.
    /// `counts`: whether a group with this stamp's word does.
    ///
    /// # Errors
    /// A message that says what is wrong: a group that is not sound, although it had been durable.
    pub(super) fn tail(
        self,
        header: &Header,
        seed: Seed,
        counts: impl Fn(u64) -> bool,
        mut each: impl FnMut(Place, &'p [u8]),
    ) -> Result<SoundTail, String> {
        let unit = Uniform::group_unit(header.form);
        let mut rest = Vec::new();
        let mut has_dead = false;
        let mut end = header.tail.next_multiple_of(unit);
        while end < self.words {
            let Some((kind, words)) = self.group(seed, end, &mut rest) else {
                has_dead = seed.headed(end, self.word(end)).is_some();
                break;
            };
            if rest.first().is_none_or(|stamp| !counts(*stamp)) {
                has_dead = true;
                break;
            }
            self.records(header.form, end, kind, words, &mut each)?;
            end = (end + words).next_multiple_of(unit);
        }
        let sealed = seed
            .sealed_end(self.word(SEAL))
            .ok_or_else(|| "the seal fails its check".to_owned())?;
        if sealed > end {
            return Err(format!(
                "the change at byte {} is damaged; changes up to byte {} had been durable",
                end * 8,
                sealed * 8
            ));
        }
        // A power cut tears the last group only. A sound one further on says that this is damage.
        let later = (end + unit..self.words)
            .step_by(unit)
            .find(|at| self.group(seed, *at, &mut rest).is_some());
        if let Some(later) = later {
            return Err(format!(
                "the change at byte {} is damaged; there is a later one at byte {}",
                end * 8,
                later * 8
            ));
        }
        Ok(SoundTail { end, has_dead })
    }

    fn records(
        self,
        form: Option<Uniform>,
        at: usize,
        kind: Kind,
        words: usize,
        each: &mut impl FnMut(Place, &'p [u8]),
    ) -> Result<(), String> {
        let mut word = at + 2;
        match (kind, form) {
            (Kind::Uniform { padded }, Some(form)) => {
                let record = form.record_words();
                let n = ((words - 2) / record.max(1)).saturating_sub(padded.into());
                for _ in 0..n {
                    let place = Place {
                        word,
                        general: false,
                        removed: false,
                    };
                    let len = form.key.into();
                    each(place, self.bytes(Span { at: word * 8, len }));
                    word += record;
                }
            }
            (Kind::General, _) => {
                while word < at + words
                    && let Some(lengths) = Lengths::decode(self.word(word))
                {
                    if word + lengths.record_words() > at + words {
                        return Err(format!("the change at byte {} is too short", at * 8));
                    }
                    let place = Place {
                        word,
                        general: true,
                        removed: lengths.removed,
                    };
                    let len = lengths.key;
                    let at = (word + 1) * 8;
                    each(place, self.bytes(Span { at, len }));
                    word += lengths.record_words();
                }
            }
            (Kind::Uniform { .. }, None) => {
                return Err(format!("the change at byte {} has no lengths", at * 8));
            }
        }
        Ok(())
    }

    /// Key and value of a record of the tail.
    #[inline(always)]
    pub(super) fn record(self, form: Option<Uniform>, place: Place) -> (Span, Span) {
        let at = place.word * 8;
        match form {
            Some(form) if !place.general => {
                let len = usize::from(form.key);
                let value = Span {
                    at: at + words_of(len) * 8,
                    len: form.value.into(),
                };
                (Span { at, len }, value)
            }
            _ => {
                let lengths = Lengths::decode(self.word(place.word));
                let (key, value) = lengths.map_or((0, 0), |l| (l.key, l.value));
                let at = at + 8;
                let value = Span {
                    at: at + key,
                    len: value,
                };
                (Span { at, len: key }, value)
            }
        }
    }

    /// Entry `i` of the base: key without the prefix, and value.
    #[inline(always)]
    pub(super) fn entry(self, base: &Base, i: usize) -> (Span, Span) {
        match base.form {
            Some(form) => {
                let at = (base.at + i * base.entry_words(form)) * 8;
                let key = Span {
                    at,
                    len: usize::from(form.key).saturating_sub(base.prefix),
                };
                let value = Span {
                    at: at + base.suffix_words(form) * 8,
                    len: form.value.into(),
                };
                (key, value)
            }
            None => {
                let at = (self.word(base.at + i / 4) >> (i % 4 * 16)) as u16 as usize;
                let lengths = Lengths::decode(self.word(at));
                let (key, value) = lengths.map_or((0, 0), |l| (l.key, l.value));
                let at = (at + 1) * 8;
                let value = Span {
                    at: at + key,
                    len: value,
                };
                (Span { at, len: key }, value)
            }
        }
    }

    /// The word of the key of entry `i` of the base.
    #[inline(always)]
    pub(super) fn entry_word(self, base: &Base, i: usize) -> u64 {
        if let Some(form) = base.form
            && form.key == 8
            && base.prefix == 0
        {
            return self.number(base.at + i * base.entry_words(form));
        }
        key_word(self.bytes(self.entry(base, i).0), 0)
    }

    /// The word at `i` as the number whose bytes it has, the highest first.
    #[inline(always)]
    fn number(self, i: usize) -> u64 {
        u64::from_be(self.word(i))
    }

    /// Finds the newest record of `key`, whose hash is `hash`.
    #[inline(always)]
    pub(super) fn find(self, part: &Part, key: &[u8], hash: u32) -> Found {
        self.find_among(part, key, hash, part.count())
    }

    /// As [`find`](Self::find), among the first `count` records of the tail, and the base.
    #[inline(always)]
    pub(super) fn find_among(self, part: &Part, key: &[u8], hash: u32, count: usize) -> Found {
        let base = part.base();
        let word = key_word(key, base.prefix);
        let (from, to) = part.near(word, base.entries);
        // It is in the tail or among these: both misses at once.
        if let Some(form) = base.form {
            let entry = base.entry_words(form);
            self.prefetch(base.at + from * entry, (to - from) * entry);
        }
        if let Some((_, place)) = self.newest(part, base.form, (key, hash), count, |_| true) {
            return if place.removed {
                Found::Absent
            } else {
                Found::Value(self.record(base.form, place).1)
            };
        }
        self.find_in_base(&base, key, word, from, to)
    }

    /// Finds the newest record of `key` among the first `count` of the tail for which `counts` holds:
    /// returns its number and its place.
    #[inline(always)]
    pub(super) fn newest(
        self,
        part: &Part,
        form: Option<Uniform>,
        (key, hash): (&[u8], u32),
        count: usize,
        counts: impl Fn(usize) -> bool,
    ) -> Option<(usize, Place)> {
        let mut matches = part.matches(hash as u8, count);
        while matches != 0 {
            let i = 127 - matches.leading_zeros() as usize;
            let place = part.place(i);
            if counts(i) && self.is_key(self.record(form, place).0, key) {
                return Some((i, place));
            }
            matches &= !(1 << i);
        }
        None
    }

    /// Returns the stamps of the first `count` records of the tail, oldest first; `None` if a group's head
    /// is not one, because the page is changing or is damaged.
    pub(super) fn stamps(self, part: &Part, seed: Seed, count: usize) -> Option<Vec<u64>> {
        let unit = Uniform::group_unit(part.base().form);
        let mut stamps = Vec::with_capacity(count);
        // A group's head and stamp come before its first record.
        let mut at = part.place(0).word.saturating_sub(2);
        while stamps.len() < count {
            if at + 2 > self.words {
                return None;
            }
            let (_, words) = seed.headed(at, self.word(at))?;
            let (stamp, _) = split_word(self.word(at + 1));
            let before = stamps.len();
            while stamps.len() < count && part.place(stamps.len()).word < at + words {
                stamps.push(stamp);
            }
            if stamps.len() == before {
                return None;
            }
            at = (at + words).next_multiple_of(unit);
        }
        Some(stamps)
    }

    #[inline(always)]
    fn is_key(self, span: Span, key: &[u8]) -> bool {
        if let Ok(eight) = <[u8; 8]>::try_from(key) {
            return span.len == 8
                && span.at.is_multiple_of(8)
                && self.word(span.at / 8) == u64::from_le_bytes(eight);
        }
        span.len == key.len() && self.bytes(span) == key
    }

    #[inline(always)]
    fn find_in_base(self, base: &Base, key: &[u8], word: u64, from: usize, to: usize) -> Found {
        if let Some(form) = base.form
            && form.key == 8
            && base.prefix == 0
        {
            if key.len() != 8 {
                return Found::Absent;
            }
            let entry = base.entry_words(form);
            let at = |i: usize| self.number(base.at + i * entry);
            let place = if to - from <= FEW {
                from + (from..to).map(|i| usize::from(at(i) < word)).sum::<usize>()
            } else {
                from + partition(to - from, |i| at(from + i) < word)
            };
            if place < to && at(place) == word {
                return Found::Value(self.entry(base, place).1);
            }
            return Found::Absent;
        }
        let place = from + partition(to - from, |i| self.compare(base, from + i, key).is_lt());
        if place < to {
            let (found, value) = self.entry(base, place);
            let rest = key.get(base.prefix..).unwrap_or(&[]);
            if self.bytes(found) == rest {
                return Found::Value(value);
            }
        }
        Found::Absent
    }

    /// Where `key`, any key, is among the entries of the base.
    pub(super) fn rank(self, base: &Base, key: &[u8]) -> Rank {
        let prefix = self.prefix(base.prefix);
        let outside = |below| Rank {
            below,
            equal: false,
        };
        match key[..key.len().min(prefix.len())].cmp(prefix) {
            Order::Less => outside(0),
            Order::Greater => outside(base.entries),
            Order::Equal => {
                let word = key_word(key, base.prefix);
                let below = |i| self.is_entry_below(base, i, key, word);
                let below = partition(base.entries, below);
                self.rank_at(base, key, below)
            }
        }
    }

    /// Where a key of the page with this word is among the entries of the base. There are `from`
    /// below it, at least, and not many more.
    pub(super) fn rank_from(self, base: &Base, key: &[u8], word: u64, from: usize) -> Rank {
        let below = |i| self.is_entry_below(base, i, key, word);
        let (mut from, mut step) = (from, 1);
        while from + step <= base.entries && below(from + step - 1) {
            from += step;
            step *= 2;
        }
        let to = (from + step - 1).min(base.entries);
        let more = partition(to - from, |i| below(from + i));
        self.rank_at(base, key, from + more)
    }

    fn rank_at(self, base: &Base, key: &[u8], below: usize) -> Rank {
        let rest = key.get(base.prefix..).unwrap_or(&[]);
        let equal = below < base.entries && self.bytes(self.entry(base, below).0) == rest;
        Rank { below, equal }
    }

    /// Whether entry `i` is below `key`, which has the page's prefix, and this word.
    #[inline(always)]
    fn is_entry_below(self, base: &Base, i: usize, key: &[u8], word: u64) -> bool {
        let order = self.entry_word(base, i).cmp(&word);
        order.then_with(|| self.compare(base, i, key)).is_lt()
    }

    /// Order of the key of entry `i` against `key`, which has the page's prefix.
    #[inline(always)]
    fn compare(self, base: &Base, i: usize, key: &[u8]) -> Order {
        let rest = key.get(base.prefix..).unwrap_or(&[]);
        self.bytes(self.entry(base, i).0).cmp(rest)
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
