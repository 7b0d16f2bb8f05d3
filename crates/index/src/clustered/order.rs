//! A page in key order: the base as it lies, with the tail's records between its entries.
//!
//! The newest record of each key is kept with its *rank*, the number of entries of the base below
//! it. So a walk over the page compares no keys.

use super::page::{Page, Span, ValueSpan};
use super::part::Samples;
use super::place::{Base, Place, Rank};
use crate::contract::Direction;
use crate::sorted::key_word;
use bristlecone_pmem::Media;
use std::cmp::Ordering as Order;
use std::ops::{Bound, Range};

/// A record of the tail: place 16, whether the base has its key 1, entries of the base below it 15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranked(u32);

impl Ranked {
    fn new(place: Place, rank: Rank) -> Self {
        debug_assert!(rank.below < 1 << 15);
        Self(u32::from(place.encode()) | u32::from(rank.equal) << 16 | (rank.below as u32) << 17)
    }

    fn place(self) -> Place {
        Place::decode(self.0 as u16)
    }

    /// Its rank, as a number with the order of ranks.
    fn rank_number(self) -> u32 {
        self.0 >> 16
    }

    fn rank(self) -> Rank {
        Rank {
            below: (self.0 >> 17) as usize,
            equal: self.0 >> 16 & 1 != 0,
        }
    }

    /// Whether its key is below one that has `rest` behind the prefix, and that rank.
    fn is_below<M: Media>(self, page: Page<'_, M>, base: &Base, rest: &[u8], rank: Rank) -> bool {
        match self.rank().cmp(&rank) {
            // All records of a key that the base has are one.
            Order::Equal if !rank.equal => key_of(page, base, self) < rest,
            order => order.is_lt(),
        }
    }

    pub(super) fn encode(self) -> u32 {
        self.0
    }

    pub(super) fn decode(bits: u32) -> Self {
        Self(bits)
    }
}

/// The newest record of each key of a tail, in key order.
#[derive(Debug, Default)]
pub(super) struct TailOrder {
    pub(super) records: Vec<Ranked>,
    /// Records of the tail that were looked at.
    pub(super) seen: usize,
    /// Records that are being added.
    fresh: Vec<Fresh>,
}

/// A record that is being added, and the word of its key.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    word: u64,
    place: Place,
}

impl TailOrder {
    /// The order of records at `places`, oldest first.
    pub(super) fn of<M: Media>(
        page: Page<'_, M>,
        base: &Base,
        places: impl Iterator<Item = Place>,
    ) -> Self {
        let mut order = Self::default();
        order.extend(page, base, places);
        order
    }

    /// Adds the records at `places`, oldest first, which are newer than all others.
    pub(super) fn extend<M: Media>(
        &mut self,
        page: Page<'_, M>,
        base: &Base,
        places: impl Iterator<Item = Place>,
    ) {
        let key = |place| page.bytes(page.record(base, place).0);
        self.fresh.clear();
        self.fresh.extend(places.map(|place| Fresh {
            word: page.record_word(base, place),
            place,
        }));
        if self.fresh.is_empty() {
            return;
        }
        self.seen += self.fresh.len();
        // Behind each other in the page, the newer ones further on.
        self.fresh.sort_unstable_by(|a, b| {
            let keys = || key(a.place).cmp(key(b.place));
            let order = a.word.cmp(&b.word).then_with(keys);
            order.then(a.place.word.cmp(&b.place.word))
        });
        let old = std::mem::take(&mut self.records);
        let mut old_from = 0;
        let mut from = 0;
        for i in 0..self.fresh.len() {
            let Fresh { word, place } = self.fresh[i];
            let is_newest = self
                .fresh
                .get(i + 1)
                .is_none_or(|next| next.word != word || key(next.place) != key(place));
            if !is_newest {
                continue;
            }
            let key = key(place);
            let rank = page.rank_from(base, key, word, from);
            from = rank.below;
            let new = Ranked::new(place, rank);
            let kept = old[old_from..]
                .iter()
                .take_while(|record| record.is_below(page, base, key, rank));
            let kept = kept.count();
            self.records.extend(&old[old_from..old_from + kept]);
            old_from += kept;
            if old
                .get(old_from)
                .is_some_and(|record| is_key(page, base, *record, key, rank))
            {
                old_from += 1;
            }
            self.records.push(new);
        }
        self.records.extend(&old[old_from..]);
    }

    /// The entries between two keys. `near`: the samples of the base, where they are known.
    pub(super) fn between<M: Media>(
        &self,
        (page, base, near): (Page<'_, M>, &Base, Option<&Samples>),
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Walk<'_> {
        let all = (base.entries, self.records.len());
        // Entries and records before a key, or before what is above it.
        let before = |key: &[u8], with: bool| {
            let rest = match page.strip(base, key) {
                Ok(rest) => rest,
                Err(Order::Less) => return (0, 0),
                Err(_) => return all,
            };
            let rank = page.rank(base, rest, |word| {
                near.map_or((0, base.entries), |near| near.near(word, base.entries))
            });
            // By numbers first; then those of the same rank.
            let number = Ranked::new(Place::decode(0), rank).rank_number();
            let records = &self.records;
            let lower = records.partition_point(|record| record.rank_number() < number);
            let same = records[lower..].partition_point(|record| record.rank_number() == number);
            let same = &records[lower..][..same];
            let at = lower + same.partition_point(|one| one.is_below(page, base, rest, rank));
            let record = self.records.get(at);
            let is_there = record.is_some_and(|record| is_key(page, base, *record, rest, rank));
            let records = at + usize::from(with && is_there);
            (rank.below + usize::from(with && rank.equal), records)
        };
        let start = match from {
            Bound::Unbounded => (0, 0),
            Bound::Included(key) => before(key, false),
            Bound::Excluded(key) => before(key, true),
        };
        // Mostly the range ends behind the page.
        let is_above_all = |key: &[u8]| match page.strip(base, key) {
            Ok(rest) => {
                let last = all.0.checked_sub(1);
                let word = key_word(rest);
                let above_base =
                    last.is_none_or(|last| page.is_entry_below(base, last, rest, word));
                let last = self.records.last();
                above_base && last.is_none_or(|last| key_of(page, base, *last) < rest)
            }
            Err(order) => order == Order::Greater,
        };
        let end = match to {
            Bound::Unbounded => all,
            Bound::Included(key) | Bound::Excluded(key) if is_above_all(key) => all,
            Bound::Included(key) => before(key, true),
            Bound::Excluded(key) => before(key, false),
        };
        Walk {
            base: start.0..end.0,
            records: self.records.get(start.1..end.1).unwrap_or(&[]),
        }
    }
}

/// The key of a record, without the prefix.
fn key_of<'p, M: Media>(page: Page<'p, M>, base: &Base, record: Ranked) -> &'p [u8] {
    page.bytes(page.record(base, record.place()).0)
}

fn is_key<M: Media>(
    page: Page<'_, M>,
    base: &Base,
    record: Ranked,
    rest: &[u8],
    rank: Rank,
) -> bool {
    record.rank() == rank && (rank.equal || key_of(page, base, record) == rest)
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Entry of the base.
    Base(usize),
    /// Record of the tail.
    Tail(Place),
}

impl Step {
    /// The key behind the page's prefix, and the value.
    #[inline(always)]
    pub(super) fn entry<M: Media>(self, page: Page<'_, M>, base: &Base) -> (Span, ValueSpan) {
        match self {
            Self::Base(i) => page.entry(base, i),
            Self::Tail(place) => page.record(base, place),
        }
    }
}

/// A walk over entries in key order, from both ends.
#[derive(Clone, Debug)]
pub(super) struct Walk<'o> {
    base: Range<usize>,
    records: &'o [Ranked],
}

impl Walk<'_> {
    /// The next step in that direction.
    #[inline(always)]
    pub(super) fn step(&mut self, direction: Direction) -> Option<Step> {
        match direction {
            Direction::Up => self.next(),
            Direction::Down => self.next_back(),
        }
    }

    /// Takes the entries of the base that come next in that direction, up to the first record.
    #[inline(always)]
    pub(super) fn run(&mut self, direction: Direction) -> Range<usize> {
        let Range { start, end } = self.base;
        match direction {
            Direction::Up => {
                let record = self.records.first();
                let to = record.map_or(end, |record| {
                    record.rank().below.clamp(start, end.max(start))
                });
                self.base.start = to;
                start..to
            }
            Direction::Down => {
                let above =
                    |record: &Ranked| record.rank().below + usize::from(record.rank().equal);
                let record = self.records.last();
                let from =
                    record.map_or(start, |record| above(record).clamp(start, end.max(start)));
                self.base.end = from;
                from..end
            }
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Step;

    #[inline(always)]
    fn next(&mut self) -> Option<Step> {
        while let Some((record, rest)) = self.records.split_first() {
            let rank = record.rank();
            if !self.base.is_empty() {
                if rank.below > self.base.start {
                    break;
                }
                if rank.equal && rank.below == self.base.start {
                    self.base.start += 1;
                }
            }
            self.records = rest;
            let place = record.place();
            if !place.removed {
                return Some(Step::Tail(place));
            }
        }
        self.base.next().map(Step::Base)
    }
}

impl DoubleEndedIterator for Walk<'_> {
    #[inline(always)]
    fn next_back(&mut self) -> Option<Step> {
        while let Some((record, rest)) = self.records.split_last() {
            let rank = record.rank();
            if !self.base.is_empty() {
                let replaces = rank.equal && rank.below + 1 == self.base.end;
                if rank.below < self.base.end && !replaces {
                    break;
                }
                if replaces {
                    self.base.end -= 1;
                }
            }
            self.records = rest;
            let place = record.place();
            if !place.removed {
                return Some(Step::Tail(place));
            }
        }
        self.base.next_back().map(Step::Base)
    }
}
