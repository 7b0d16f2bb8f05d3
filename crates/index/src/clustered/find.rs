//! Finding a key in a page, with what DRAM holds of it.

use super::page::{Page, ValueSpan, partition};
use super::part::Part;
use super::place::{Base, Place};
use crate::sorted::key_word;
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
        let rest = base.rest(key);
        let word = key_word(rest);
        let (from, to) = part.near(word, base.entries);
        // It is in the tail or among these: both misses at once.
        if let Some(form) = base.form {
            let entry = base.entry_words(form);
            self.prefetch(base.at + from * entry, (to - from) * entry);
        }
        if let Some((_, place)) = self.newest(part, &base, (key, hash), count, |_| true) {
            return if place.removed {
                Found::Absent
            } else {
                Found::Value(self.record(&base, place).1)
            };
        }
        self.find_in_base(&base, rest, word, from, to)
    }

    /// Finds the newest record of `key` among the first `count` of the tail for which `counts`
    /// holds: returns its number and its place.
    #[inline(always)]
    pub(super) fn newest(
        self,
        part: &Part,
        base: &Base,
        (key, hash): (&[u8], u32),
        count: usize,
        counts: impl Fn(usize) -> bool,
    ) -> Option<(usize, Place)> {
        let rest = base.rest(key);
        let word = key_word(rest);
        let mut matches = part.matches(hash as u8, count);
        while matches != 0 {
            let i = 127 - matches.leading_zeros() as usize;
            let place = part.place(i);
            if counts(i) && self.is_key(base, place, rest, word) {
                return Some((i, place));
            }
            matches &= !(1 << i);
        }
        None
    }

    /// Whether a record is of a key that has `rest`, and this word, behind the prefix.
    #[inline(always)]
    fn is_key(self, base: &Base, place: Place, rest: &[u8], word: u64) -> bool {
        // Words where that can be: who reads numbers is not pinned.
        if base.is_word(rest.len()) {
            if !place.general {
                return self.number(place.word) == word;
            }
            if let Some(entry) = self.removed_entry(place) {
                return self.entry_word(base, entry) == word;
            }
            if rest.len() == 8 {
                let is_long = self.record(base, place).0.len == 8;
                return is_long && self.number(place.word + 1) == word;
            }
        }
        self.bytes(self.record(base, place).0) == rest
    }

    #[inline(always)]
    fn find_in_base(self, base: &Base, rest: &[u8], word: u64, from: usize, to: usize) -> Found {
        if let Some(form) = base.word_form() {
            if rest.len() != base.suffix(form) {
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
        let below = |i| self.is_entry_below(base, from + i, rest, word);
        let place = from + partition(to - from, below);
        if place < to {
            let (found, value) = self.entry(base, place);
            if self.bytes(found) == rest {
                return Found::Value(value);
            }
        }
        Found::Absent
    }
}
