//! Reading the tail of a page where it lies in the pool: its groups, and their records.

use super::layout::{Header, Kind, Lengths, SEAL, Seed};
use super::page::{Page, Span};
use super::part::Part;
use super::place::{Base, Place};
use super::slots::split_word;
use super::wrong::wrong_bit;
use bristlecone_pmem::Media;

/// A sound group of a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// Its first word.
    pub(super) at: usize,
    kind: Kind,
    words: usize,
    pub(super) stamp_word: u64,
    /// Whether it may have been in flight when the power went.
    pub(super) behind_seal: bool,
}

impl Seen {
    /// Words of the group.
    pub(super) fn words(&self) -> usize {
        self.words
    }
}

/// A tail that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SoundTail {
    /// The word after the last group that counts.
    pub(super) end: usize,
    /// The head of a group follows there that a crash tore, or whose change was not committed.
    pub(super) has_dead: bool,
    /// A change follows there whose sum is right but for one bit (`mend`).
    pub(super) is_suspect: bool,
}

impl<'p, M: Media> Page<'p, M> {
    /// The words of the group at `at`, if there is a sound one, and its kind.
    fn group(self, seed: Seed, at: usize, rest: &mut Vec<u64>) -> Option<(Kind, usize)> {
        let head = self.word(at);
        let (kind, words) = seed.headed(at, head)?;
        if at + words > self.words() {
            return None;
        }
        self.copy(at + 1, at + words, rest);
        seed.is_head(at, head, kind, rest).then_some((kind, words))
    }

    /// The end of the tail that is surely durable; `None` if the seal is damaged.
    pub(super) fn sealed_end(self, seed: Seed) -> Option<usize> {
        seed.sealed_end(self.word(SEAL))
    }

    /// The group at `at`, if there is a sound one. It may have been in flight.
    pub(super) fn seen(self, seed: Seed, at: usize) -> Option<Seen> {
        let (kind, words) = self.group(seed, at, &mut Vec::new())?;
        Some(Seen {
            at,
            kind,
            words,
            stamp_word: self.word(at + 1),
            behind_seal: true,
        })
    }

    /// Calls `each` with every record of the tail that counts, oldest first, and with its key.
    /// `counts`: whether a group does.
    ///
    /// # Errors
    /// A message that says what is wrong: a group that is not sound, although it had been durable.
    pub(super) fn tail(
        self,
        header: &Header,
        seed: Seed,
        counts: impl Fn(&Seen) -> bool,
        mut each: impl FnMut(Place, &[u8]),
    ) -> Result<SoundTail, String> {
        let sealed = self.sealed_end(seed);
        let sealed = sealed.ok_or_else(|| "the seal fails its check".to_owned())?;
        let base = Base::of(header);
        let mut rest = Vec::new();
        let (mut has_dead, mut is_suspect) = (false, false);
        let mut end = base.aligned(header.tail);
        while end < self.words() {
            let Some((kind, words)) = self.group(seed, end, &mut rest) else {
                has_dead = seed.nearly_headed(end, self.word(end));
                if has_dead {
                    // The block's earlier content may look like a head.
                    self.copy(end, self.words(), &mut rest);
                    is_suspect = wrong_bit(seed, end, &rest).is_some();
                }
                break;
            };
            let seen = Seen {
                at: end,
                kind,
                words,
                stamp_word: rest.first().copied().unwrap_or(0),
                behind_seal: end >= sealed,
            };
            if !counts(&seen) {
                has_dead = true;
                break;
            }
            self.records(&base, &seen, &mut each)?;
            end = base.aligned(end + words);
        }
        if sealed > end {
            return Err(format!(
                "the change at byte {} is damaged; changes up to byte {} had been durable",
                end * 8,
                sealed * 8
            ));
        }
        // A power cut tears the last group only. A sound one further on says that this is damage.
        let unit = base.group_unit();
        let later = (end + unit..self.words())
            .step_by(unit)
            .find(|at| self.group(seed, *at, &mut rest).is_some());
        if let Some(later) = later {
            return Err(format!(
                "the change at byte {} is damaged; there is a later one at byte {}",
                end * 8,
                later * 8
            ));
        }
        Ok(SoundTail {
            end,
            has_dead,
            is_suspect,
        })
    }

    /// Calls `each` with every record of a group, and with its key.
    ///
    /// # Errors
    /// A message, if there is less than the group says.
    pub(super) fn records(
        self,
        base: &Base,
        seen: &Seen,
        each: &mut impl FnMut(Place, &[u8]),
    ) -> Result<(), String> {
        let Seen {
            at, kind, words, ..
        } = *seen;
        let mut word = at + 2;
        let mut whole = self.prefix(base.prefix).to_vec();
        let mut each = |place, rest| {
            whole.truncate(base.prefix);
            whole.extend_from_slice(self.bytes(rest));
            each(place, &whole);
        };
        match (kind, base.form) {
            (Kind::Uniform { padded }, Some(form)) => {
                let record = base.entry_words(form);
                let n = ((words - 2) / record.max(1)).saturating_sub(padded.into());
                for _ in 0..n {
                    let place = Place {
                        word,
                        general: false,
                        removed: false,
                    };
                    let len = base.suffix(form);
                    each(place, Span { at: word * 8, len });
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
                    let is_there = lengths
                        .entry
                        .is_none_or(|entry| lengths.removed && usize::from(entry) < base.entries);
                    if !is_there {
                        return Err(format!("the change at byte {} removes nothing", at * 8));
                    }
                    each(place, self.record(base, place).0);
                    word += lengths.record_words();
                }
            }
            (Kind::Uniform { .. }, None) => {
                return Err(format!("the change at byte {} has no lengths", at * 8));
            }
        }
        Ok(())
    }

    /// Returns the stamps of the first `count` records of the tail, oldest first; `None` if a
    /// group's head is not one, because the page is changing or is damaged.
    pub(super) fn stamps(self, part: &Part, seed: Seed, count: usize) -> Option<Vec<u64>> {
        let base = part.base();
        let mut stamps = Vec::with_capacity(count);
        // A group's head and stamp come before its first record.
        let mut at = part.place(0).word.saturating_sub(2);
        while stamps.len() < count {
            if at + 2 > self.words() {
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
            at = base.aligned(at + words);
        }
        Some(stamps)
    }
}
