//! Places in a page: of a record of its tail, of its base, of a key among the base's entries.

use super::layout::{Header, MAX_PAGE, Uniform, words_of};

/// Bits of a place that are its word in the page.
const PLACE: u16 = (1 << 13) - 1;
const GENERAL: u16 = 1 << 13;
const REMOVED: u16 = 1 << 14;

const _: () = assert!(MAX_PAGE / 8 <= PLACE as usize + 1);

/// Where a record of the tail is, and of which kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) word: usize,
    /// It has lengths of its own.
    pub(super) general: bool,
    /// It says that the key is not there.
    pub(super) removed: bool,
}

impl Place {
    /// The place in the page of what is there in a group at word `at`.
    pub(super) fn within(self, at: usize) -> Self {
        Self {
            word: at + self.word,
            ..self
        }
    }

    pub(super) fn encode(self) -> u16 {
        let flag = |set, flag| if set { flag } else { 0 };
        self.word as u16 | flag(self.general, GENERAL) | flag(self.removed, REMOVED)
    }

    pub(super) fn decode(bits: u16) -> Self {
        Self {
            word: usize::from(bits & PLACE),
            general: bits & GENERAL != 0,
            removed: bits & REMOVED != 0,
        }
    }
}

/// The base of a page, as a search needs it, and the form of its tail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    pub(super) entries: usize,
    /// Word of the offsets (general form) or the first entry.
    pub(super) at: usize,
    /// Bytes of the prefix, which every key of the page begins with, tail included, and which is
    /// not kept with it.
    pub(super) prefix: usize,
    pub(super) form: Option<Uniform>,
}

impl Base {
    /// The base of a page with that header.
    pub(super) fn of(header: &Header) -> Self {
        Self {
            entries: header.entries,
            at: header.base,
            prefix: header.prefix,
            form: header.form,
        }
    }

    /// The bytes of a key of the page after the prefix.
    #[inline(always)]
    pub(super) fn rest<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        key.get(self.prefix..).unwrap_or(&[])
    }

    /// Bytes of a key in uniform form, without the prefix.
    #[inline(always)]
    pub(super) fn suffix(&self, form: Uniform) -> usize {
        usize::from(form.key).saturating_sub(self.prefix)
    }

    pub(super) fn suffix_words(&self, form: Uniform) -> usize {
        words_of(self.suffix(form))
    }

    /// Words of an entry of the base, or a record of the tail, in uniform form.
    pub(super) fn entry_words(&self, form: Uniform) -> usize {
        self.suffix_words(form) + words_of(form.value.into())
    }

    /// The uniform form, if each of its keys is a word: not more, and not nothing.
    #[inline(always)]
    pub(super) fn word_form(&self) -> Option<Uniform> {
        self.form
            .filter(|form| (1..=8).contains(&self.suffix(*form)))
    }

    /// Whether so many bytes, behind the prefix, are a key in uniform form that is a word.
    #[inline(always)]
    pub(super) fn is_word(&self, rest: usize) -> bool {
        self.word_form()
            .is_some_and(|form| self.suffix(form) == rest)
    }

    /// The word from which on a tail that ends there goes on: small groups do not cross lines.
    #[inline(always)]
    pub(super) fn aligned(&self, end: usize) -> usize {
        end.next_multiple_of(self.group_unit())
    }

    /// Words that groups are a multiple of.
    #[inline(always)]
    pub(super) fn group_unit(&self) -> usize {
        match self.form {
            Some(form) if self.entry_words(form) == 2 => 4,
            _ => 1,
        }
    }
}

/// Where a key is among the entries of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    /// Entries below it.
    pub(super) below: usize,
    /// The next entry has this very key.
    pub(super) equal: bool,
}
