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

/// The base of a page, as a search needs it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    pub(super) entries: usize,
    /// Word of the offsets (general form) or the first entry.
    pub(super) at: usize,
    /// Bytes of the prefix.
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

    pub(super) fn suffix_words(&self, form: Uniform) -> usize {
        words_of(usize::from(form.key).saturating_sub(self.prefix))
    }

    pub(super) fn entry_words(&self, form: Uniform) -> usize {
        self.suffix_words(form) + words_of(form.value.into())
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
