//! Finding a key in a page, with what DRAM holds of it.

use super::layout::Uniform;
use super::page::{Page, Span, ValueSpan, key_word, partition};
use super::part::Part;
use super::place::{Base, Place};
use bristlecone_pmem::Media;

/// Few enough to be compared one after the other.
const FEW: usize = 16;

/// The result of a search in a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Its value.
    Value(ValueSpan),
    /// It is not there.
    Absent,
}

impl<M: Media> Page<'_, M> {
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

    /// Finds the newest record of `key` among the first `count` of the tail for which `counts`
    /// holds: returns its number and its place.
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
}
