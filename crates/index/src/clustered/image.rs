//! Building a page, in DRAM, before it is written to its block at once.

use super::layout::{
    DROPPED_WORDS, HEADER, Header, Lengths, SEAL, STRIPE, SUM, Seed, Uniform, words_of,
};
use super::stored::{Reference, Stored};
use crate::sorted::common_prefix;
use bristlecone_pmem::Media;
use bristlecone_pmem::cell::write_bytes;

/// An entry on its way.
#[derive(Clone, Copy, Debug)]
struct Entry<'v> {
    /// The end of its key in `keys`.
    end: u32,
    outer: bool,
    value: &'v [u8],
}

/// Keys and values in key order, on their way from old pages to new ones.
#[derive(Debug, Default)]
pub(super) struct Entries<'v> {
    keys: Vec<u8>,
    entries: Vec<Entry<'v>>,
}

impl<'v> Entries<'v> {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// None, with room for so many, whose keys have so many bytes.
    pub(super) fn with_room(entries: usize, key_bytes: usize) -> Self {
        Self {
            keys: Vec::with_capacity(key_bytes),
            entries: Vec::with_capacity(entries),
        }
    }

    /// Adds an entry whose key is `prefix` and then `rest`, above all keys so far.
    pub(super) fn push(&mut self, prefix: &[u8], rest: &[u8], value: Stored<'v>) {
        self.keys.extend_from_slice(prefix);
        self.keys.extend_from_slice(rest);
        debug_assert!(
            self.entries.is_empty() || self.key(self.len() - 1) < &self.keys[self.end()..],
            "keys ascend"
        );
        self.entries.push(Entry {
            // Those of two pages, with prefixes, at most.
            end: self.keys.len() as u32,
            outer: value.outer,
            value: value.bytes,
        });
    }

    fn end(&self) -> usize {
        self.entries.last().map_or(0, |entry| entry.end as usize)
    }

    pub(super) fn key(&self, i: usize) -> &[u8] {
        let from = i
            .checked_sub(1)
            .map_or(0, |before| self.entries[before].end);
        &self.keys[from as usize..self.entries[i].end as usize]
    }

    pub(super) fn value(&self, i: usize) -> Stored<'v> {
        let Entry { outer, value, .. } = self.entries[i];
        Stored {
            bytes: value,
            outer,
        }
    }

    /// The entries from `from` to `to`.
    pub(super) fn part(&self, from: usize, to: usize) -> Part<'_, 'v> {
        Part {
            all: self,
            from,
            to,
        }
    }
}

/// Some consecutive entries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'e, 'v> {
    all: &'e Entries<'v>,
    from: usize,
    to: usize,
}

impl<'e, 'v> Part<'e, 'v> {
    pub(super) fn len(self) -> usize {
        self.to - self.from
    }

    fn iter(self) -> impl Iterator<Item = (&'e [u8], Stored<'v>)> {
        (self.from..self.to).map(move |i| (self.all.key(i), self.all.value(i)))
    }

    /// The lengths that all keys and all values have, if they have.
    fn uniform(self, numbers: bool) -> Option<Uniform> {
        if numbers {
            return Some(Uniform::NUMBERS);
        }
        let mut lengths = self.iter().map(|(key, value)| {
            let len = value.bytes.len();
            (key.len(), if value.outer { usize::MAX } else { len })
        });
        let (key, value) = lengths.next()?;
        // Entries without any byte would have no words.
        if key == 0 && value == 0 {
            return None;
        }
        let uniform = Uniform {
            key: u16::try_from(key).ok()?,
            value: u16::try_from(value).ok()?,
        };
        lengths
            .all(|other| other == (key, value))
            .then_some(uniform)
    }
}

/// The header of a page to be built, as far as its entries do not decide it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spec<'s> {
    pub(super) id: u32,
    pub(super) level: u8,
    pub(super) generation: u64,
    pub(super) born_in: u32,
    pub(super) next: u32,
    pub(super) low: Option<&'s [u8]>,
    pub(super) high: Option<&'s [u8]>,
    /// Outer values that the page before had and no record leads to any more.
    pub(super) dropped: &'s [Reference],
    /// Words of the page.
    pub(super) words: usize,
    /// Keys and values are numbers.
    pub(super) numbers: bool,
}

impl Spec<'_> {
    /// The header of a page with these entries; its tail begins beyond the page's end if they do
    /// not fit.
    pub(super) fn header(&self, entries: Part<'_, '_>) -> Header {
        let form = entries.uniform(self.numbers);
        let prefix = match (self.low, self.high) {
            // Whole, they take a word, too.
            _ if form.is_some_and(|form| form.key == 8) => 0,
            (Some(low), Some(high)) => common_prefix(low, high),
            _ => 0,
        };
        let mut header = Header {
            id: self.id,
            level: self.level,
            generation: self.generation,
            born_in: self.born_in,
            next: self.next,
            words: self.words,
            entries: entries.len(),
            prefix,
            low: self.low.map(<[u8]>::len),
            high: self.high.map(<[u8]>::len),
            base: 0,
            tail: 0,
            form,
            dropped: self.dropped.len(),
        };
        let base = match form {
            Some(form) => entries.len() * header.entry_words(form),
            None => {
                let words = |(key, value): (&[u8], Stored<'_>)| {
                    1 + words_of(key.len() - prefix + value.bytes.len())
                };
                words_of(entries.len() * 2) + entries.iter().map(words).sum::<usize>()
            }
        };
        header.tail = base;
        header.base = header.dropped_at() + header.dropped * DROPPED_WORDS;
        header.tail = header.base + base;
        header
    }

    /// Writes the page's words, tail excluded, to `out`.
    ///
    /// The caller has made sure that `header`, which is of these entries, fits the page.
    pub(super) fn build(
        &self,
        seed: Seed,
        header: &Header,
        entries: Part<'_, '_>,
        out: &mut Vec<u64>,
    ) {
        out.clear();
        out.resize(header.tail, 0);
        for (fence, at) in [(self.low, HEADER), (self.high, header.high_at())] {
            put(out, at, 0, fence.unwrap_or(&[]));
        }
        let dropped = out[header.dropped_at()..].chunks_mut(DROPPED_WORDS);
        for (words, one) in dropped.zip(self.dropped) {
            words.copy_from_slice(&one.identity());
        }
        let mut at = header.first_entry();
        for (i, (key, value)) in entries.iter().enumerate() {
            let rest = &key[header.prefix..];
            match header.form {
                Some(form) => {
                    put(out, at, 0, rest);
                    put(out, at + header.suffix_words(form), 0, value.bytes);
                    at += header.entry_words(form);
                }
                None => {
                    put(out, header.base, i * 2, &(at as u16).to_le_bytes());
                    let lengths = Lengths {
                        key: rest.len(),
                        value: value.bytes.len(),
                        removed: false,
                        outer: value.outer,
                        entry: None,
                    };
                    out[at] = lengths.encode();
                    put(out, at + 1, 0, rest);
                    put(out, at + 1, rest.len(), value.bytes);
                    at += lengths.record_words();
                }
            }
        }
        debug_assert_eq!(at, header.tail);
        let sums_at = header.sums_at();
        for (i, start) in (header.base..header.tail).step_by(STRIPE).enumerate() {
            let end = (start + STRIPE).min(header.tail);
            let sum = seed.stripe_sum(start, &out[start..end]);
            put(out, sums_at, i * 4, &sum.to_le_bytes());
        }
        let words = header.encode();
        out[SUM] = seed.header_sum(&words, &out[HEADER..header.base]);
        out[..words.len()].copy_from_slice(&words);
        out[SEAL] = seed.seal(header.tail);
    }
}

/// Copies `bytes` to byte `from` behind word `at`.
#[inline(always)]
pub(super) fn put(words: &mut [u64], at: usize, from: usize, bytes: &[u8]) {
    // Without a call: most fields are words.
    if let (0, Ok(eight)) = (from, <[u8; 8]>::try_from(bytes)) {
        words[at] = u64::from_le_bytes(eight);
        return;
    }
    bytes_of_mut(&mut words[at..])[from..from + bytes.len()].copy_from_slice(bytes);
}

/// The bytes of words, in the order in which they lie in memory.
pub(super) fn bytes_of(words: &[u64]) -> &[u8] {
    // SAFETY: 1. initialised words are initialised bytes, eight times as many; 2. bytes need no
    // alignment; 3. the borrow is the same.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) }
}

pub(super) fn bytes_of_mut(words: &mut [u64]) -> &mut [u8] {
    // SAFETY: 1. words are bytes, eight times as many, and any bytes are valid words; 2. bytes need
    // no alignment; 3. the borrow is the same.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), words.len() * 8) }
}

/// Writes a page's words to its block; the caller flushes.
///
/// # Safety
/// 1. The block at `off` is inside the pool, with room for `words`; 2. no one else reads or writes
///    it, but for searches that come too late and trust nothing that they read.
pub(super) unsafe fn write<M: Media>(pm: &M, off: u64, words: &[u64]) {
    let at = pm.base().wrapping_add(off as usize);
    // SAFETY: the caller's obligations are those of `write_bytes`: room, and nobody else. Blocks
    // are aligned to words.
    unsafe { write_bytes(pm, at, bytes_of(words)) };
}
