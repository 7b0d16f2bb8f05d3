//! Building the group that a change appends to a page.

use super::image::{self};
use super::layout::{Kind, Lengths, Seed, Uniform, words_of};
use super::place::Place;
use super::stored::Stored;

/// A key, and its new value, or none if it goes.
pub(super) type Record<'r> = (&'r [u8], Option<Stored<'r>>);

/// Words of a group that are kept without an allocation.
const FEW: usize = 16;

/// The words of a group, its head excepted.
pub(super) struct Group {
    few: [u64; FEW],
    many: Vec<u64>,
    words: usize,
    kind: Kind,
}

fn lengths((key, value): Record<'_>) -> Lengths {
    Lengths {
        key: key.len(),
        value: value.map_or(0, |value| value.bytes.len()),
        removed: value.is_none(),
        outer: value.is_some_and(|value| value.outer),
    }
}

/// The lengths that all records have, if these are the base's, and the words of all records.
#[inline(always)]
fn measure<'r>(
    form: Option<Uniform>,
    mut records: impl Iterator<Item = Record<'r>> + Clone,
) -> (Option<Uniform>, usize) {
    let all = records.clone();
    let uniform = form.filter(|form| {
        records.all(|(key, value)| {
            usize::from(form.key) == key.len()
                && value.is_some_and(|value| value.bytes.len() == form.value.into() && !value.outer)
        })
    });
    let words = match uniform {
        Some(form) => all.count() * form.record_words(),
        None => all.map(|record| lengths(record).record_words()).sum(),
    };
    (uniform, words)
}

/// Words of the group of these records, in a page of that form.
pub(super) fn words<'r>(
    form: Option<Uniform>,
    records: impl Iterator<Item = Record<'r>> + Clone,
) -> usize {
    (2 + measure(form, records).1).next_multiple_of(Uniform::group_unit(form))
}

impl Group {
    /// The group of these records. `each` gets the place of each, from the group's start on.
    #[inline(always)]
    pub(super) fn of<'r>(
        form: Option<Uniform>,
        records: impl Iterator<Item = Record<'r>> + Clone,
        mut each: impl FnMut(Place),
    ) -> Self {
        let (uniform, body) = measure(form, records.clone());
        let words = (2 + body).next_multiple_of(Uniform::group_unit(form));
        let padded = words > 2 + body;
        let mut group = Self {
            few: [0; FEW],
            many: Vec::new(),
            words,
            kind: uniform.map_or(Kind::General, |_| Kind::Uniform { padded }),
        };
        if words > FEW {
            group.many = vec![0; words];
        }
        let all = group.all_mut();
        let mut at = 2;
        for (key, value) in records {
            each(Place {
                word: at,
                general: uniform.is_none(),
                removed: value.is_none(),
            });
            if let (Some(form), Some(value)) = (uniform, value) {
                image::put(all, at, 0, key);
                image::put(all, at + words_of(form.key.into()), 0, value.bytes);
                at += form.record_words();
            } else {
                let lengths = lengths((key, value));
                let value = value.map_or(&[][..], |value| value.bytes);
                all[at] = lengths.encode();
                image::put(all, at + 1, 0, key);
                image::put(all, at + 1, key.len(), value);
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
