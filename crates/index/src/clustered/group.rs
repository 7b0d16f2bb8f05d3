//! Building the group that a change appends to a page.

use super::image;
use super::layout::{Kind, Lengths, Seed, Uniform};
use super::place::{Base, Place};
use super::stored::Stored;

/// A record of a group: a key with its new value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<'r> {
    pub(super) key: &'r [u8],
    /// The new value; `None` if the key goes.
    pub(super) value: Option<Stored<'r>>,
    /// The entry of the base that has the key's newest value, if that goes.
    pub(super) entry: Option<u16>,
}

/// Words of a group that are kept without an allocation.
const FEW: usize = 16;

/// The words of a group, its head excepted.
pub(super) struct Group {
    few: [u64; FEW],
    many: Vec<u64>,
    words: usize,
    kind: Kind,
}

/// The lengths of a record in general form, whose key begins with so many bytes of prefix.
fn lengths(record: Record<'_>, prefix: usize) -> Lengths {
    let Record { key, value, entry } = record;
    Lengths {
        key: entry.map_or(key.len() - prefix, |_| 0),
        value: value.map_or(0, |value| value.bytes.len()),
        removed: value.is_none(),
        outer: value.is_some_and(|value| value.outer),
        entry,
    }
}

/// The lengths that all records have, if these are the base's, and the words of all records.
#[inline(always)]
fn measure<'r>(
    base: &Base,
    mut records: impl Iterator<Item = Record<'r>> + Clone,
) -> (Option<Uniform>, usize) {
    let all = records.clone();
    let uniform = base.form.filter(|form| {
        // A record without any word would be none.
        base.entry_words(*form) > 0
            && records.all(|Record { key, value, .. }| {
                usize::from(form.key) == key.len()
                    && value
                        .is_some_and(|value| value.bytes.len() == form.value.into() && !value.outer)
            })
    });
    let words = match uniform {
        Some(form) => all.count() * base.entry_words(form),
        None => all
            .map(|record| lengths(record, base.prefix).record_words())
            .sum(),
    };
    (uniform, words)
}

/// Words of the group of these records, in a page with that base.
pub(super) fn words<'r>(base: &Base, records: impl Iterator<Item = Record<'r>> + Clone) -> usize {
    base.aligned(2 + measure(base, records).1)
}

impl Group {
    /// The group of these records, whose keys begin with the prefix of a page with that base.
    /// `each` gets the place of each, from the group's start on.
    #[inline(always)]
    pub(super) fn of<'r>(
        base: &Base,
        records: impl Iterator<Item = Record<'r>> + Clone,
        mut each: impl FnMut(Place),
    ) -> Self {
        let (uniform, body) = measure(base, records.clone());
        let words = base.aligned(2 + body);
        let padded = words > 2 + body;
        let mut group = Self {
            few: [0; FEW],
            many: Vec::new(),
            words,
            kind: uniform.map_or(Kind::General, |_| Kind::Uniform { padded }),
        };
        if words > FEW {
            // Memory that comes zeroed is not taken from the allocator's cache.
            group.many.resize(words, 0);
        }
        let all = group.all_mut();
        let mut at = 2;
        for record in records {
            let Record { key, value, .. } = record;
            each(Place {
                word: at,
                general: uniform.is_none(),
                removed: value.is_none(),
            });
            if let (Some(form), Some(value)) = (uniform, value) {
                image::put(all, at, 0, base.rest(key));
                image::put(all, at + base.suffix_words(form), 0, value.bytes);
                at += base.entry_words(form);
            } else {
                let lengths = lengths(record, base.prefix);
                let value = value.map_or(&[][..], |value| value.bytes);
                all[at] = lengths.encode();
                image::put(all, at + 1, 0, &base.rest(key)[..lengths.key]);
                image::put(all, at + 1, lengths.key, value);
                at += lengths.record_words();
            }
        }
        group
    }

    pub(super) fn words(&self) -> usize {
        self.words
    }

    fn all_mut(&mut self) -> &mut [u64] {
        if self.many.is_empty() {
            &mut self.few[..self.words]
        } else {
            &mut self.many
        }
    }

    /// Sets the stamp's word, and the head of a group at word `at` of the page. Returns all words.
    #[inline(always)]
    pub(super) fn finish(&mut self, seed: Seed, at: usize, stamp_word: u64) -> &[u64] {
        let kind = self.kind;
        let all = self.all_mut();
        all[1] = stamp_word;
        all[0] = seed.head(at, kind, &all[1..]);
        all
    }
}
