//! The layout of a page: a block of the pool of 512 bytes to 64 KiB, leaf or inner page alike.
//!
//! ```text
//! word 0..6   header: id 32 level 8 flags 24 | generation 48 page words 16 | born in 32 next 32 |
//!             entries 16 prefix 16 low fence 16 high fence 16 | base 16 tail 16 key 16 value 16 |
//!             dropped 16 | CRC-32C of header, fences, sums and dropped 32
//! word 7      seal: end of the tail that is surely durable 16 generation 20 | check
//! word 8..    low fence | high fence | CRC-32C of each 512 bytes of the base (32 bits each) |
//!             outer values that this page's replacement dropped (two words each)
//! base        offsets, 16 bits each (general form only) | entries in key order
//! tail        group | group | ...              appended one by one, each by one flush of its lines
//! ```
//!
//! Lengths of keys, values and fences are in bytes, places in words of 8 bytes. Everything begins
//! at a word. A page is written once, into a block that nothing leads to; after that only the seal
//! and the tail change.
//!
//! **Keys** are kept without the page's prefix: what the two fences share, and so all keys between
//! them. Keys of 8 bytes in uniform form keep it, as they take a word all the same.
//!
//! **Base.** In *uniform* form all keys are of one length, and all values; an entry is the key,
//! then the value, each in whole words, filled up with zeros. So keys of up to 8 bytes are compared
//! as numbers. In *general* form an entry is a word of lengths, then key and value without a gap;
//! offsets lead to the entries.
//!
//! **Group.** All that one change adds to a page.
//!
//! ```text
//! group       head | stamp | record | record | ...
//! head        kind 4 words 12 tag 8 fold 8 CRC-32C 32
//! record      key | value, in whole words, of the base's lengths           kind UNIFORM
//!             lengths | key, value, without a gap, in whole words          kind GENERAL
//! lengths     present 1 removed 1 outer 1 entry 1 spare 12 | value 32 | key 16
//! ```
//!
//! A removed key whose newest value is the base's is named by its entry there, in one word.
//!
//! Tag and CRC are seeded with the tree's salt, the page's generation and the group's place. So
//! what an earlier tenant of the block left, bytes of a user's, or a group of another place do not
//! pass for a group. The fold is all words after the head, and all their bytes, by XOR: with it a
//! torn group hardly ever passes for one with one wrong bit (`mend`). A group counts if it is
//! whole, however many lines it has; one that a crash tore loses its head when the page is loaded.

use super::checked;
use super::sum;

/// Words of the header, seal included.
pub(super) const HEADER: usize = 8;
/// The header's words that its sum covers, but for the sum itself.
const SUMMED: usize = 6;
/// The word of the header's sum.
pub(super) const SUM: usize = 6;
/// The seal's word.
pub(super) const SEAL: usize = 7;
/// Words that one sum of the base covers.
pub(super) const STRIPE: usize = 64;
/// Words of a line.
pub(super) const LINE: usize = 8;

const HAS_LOW: u64 = 1;
const HAS_HIGH: u64 = 2;
const UNIFORM_BASE: u64 = 4;

/// Least bytes of a page.
pub(super) const MIN_PAGE: usize = 512;
/// Most bytes of a page.
pub(super) const MAX_PAGE: usize = 64 << 10;

/// The lengths of all keys and values of a page in uniform form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uniform {
    /// Bytes of a whole key.
    pub(super) key: u16,
    /// Bytes of a value.
    pub(super) value: u16,
}

impl Uniform {
    /// Keys and values that are numbers.
    pub(super) const NUMBERS: Self = Self { key: 8, value: 8 };
}

/// Whole words of so many bytes.
pub(super) const fn words_of(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

/// A page's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: u32,
    /// 0 of a leaf page.
    pub(super) level: u8,
    /// Of two generations of a page the higher is the later. 48 bits.
    pub(super) generation: u64,
    /// The page whose replacement, by one of this generation, made this page count.
    pub(super) born_in: u32,
    /// The page to the right, on this level; 0 if there is none.
    pub(super) next: u32,
    /// Words of the page.
    pub(super) words: usize,
    /// Entries of the base.
    pub(super) entries: usize,
    /// Bytes at the start of every key that base and tail leave out.
    pub(super) prefix: usize,
    /// Bytes of the low fence, the smallest key that belongs here; `None` if there is no smallest.
    pub(super) low: Option<usize>,
    /// Bytes of the high fence, the smallest key that belongs further right; `None` if none does.
    pub(super) high: Option<usize>,
    /// The base's first word.
    pub(super) base: usize,
    /// The tail's first word.
    pub(super) tail: usize,
    /// The form of the base, and of uniform records in the tail.
    pub(super) form: Option<Uniform>,
    /// Outer values that the page before had and this one has not.
    pub(super) dropped: usize,
}

/// Words of a dropped value.
pub(super) const DROPPED_WORDS: usize = 2;

impl Header {
    /// Words of the sums of the base.
    pub(super) fn sums(&self) -> usize {
        ((self.tail - self.base).div_ceil(STRIPE)).div_ceil(2)
    }

    /// The first word of the sums of the base.
    pub(super) fn sums_at(&self) -> usize {
        HEADER + words_of(self.low.unwrap_or(0)) + words_of(self.high.unwrap_or(0))
    }

    /// The first word of the dropped values.
    pub(super) fn dropped_at(&self) -> usize {
        self.sums_at() + self.sums()
    }

    /// The first word of the base's first entry.
    pub(super) fn first_entry(&self) -> usize {
        let offsets = if self.form.is_some() {
            0
        } else {
            self.entries * 2
        };
        self.base + words_of(offsets)
    }

    /// The first word of the high fence.
    pub(super) fn high_at(&self) -> usize {
        HEADER + words_of(self.low.unwrap_or(0))
    }

    pub(super) fn encode(&self) -> [u64; SUMMED] {
        let flag = |set: bool, flag| if set { flag } else { 0 };
        let flags = flag(self.low.is_some(), HAS_LOW)
            | flag(self.high.is_some(), HAS_HIGH)
            | flag(self.form.is_some(), UNIFORM_BASE);
        let form = self.form.unwrap_or(Uniform { key: 0, value: 0 });
        let four = |a: usize, b: usize, c: usize, d: usize| {
            debug_assert!((a | b | c | d) >> 16 == 0);
            a as u64 | (b as u64) << 16 | (c as u64) << 32 | (d as u64) << 48
        };
        [
            u64::from(self.id) | u64::from(self.level) << 32 | flags << 40,
            self.generation | (self.words as u64) << 48,
            u64::from(self.born_in) | u64::from(self.next) << 32,
            four(
                self.entries,
                self.prefix,
                self.low.unwrap_or(0),
                self.high.unwrap_or(0),
            ),
            four(self.base, self.tail, form.key.into(), form.value.into()),
            self.dropped as u64,
        ]
    }

    /// The header of a page of `page_words` words; `None` if these words are none of one.
    pub(super) fn decode(words: &[u64; SUMMED], page_words: usize) -> Option<Self> {
        let part = |word: u64, i: u32| (word >> (16 * i)) as u16 as usize;
        let flags = words[0] >> 40;
        let [entries, prefix, low, high] = [0, 1, 2, 3].map(|i| part(words[3], i));
        let [base, tail, key, value] = [0, 1, 2, 3].map(|i| part(words[4], i));
        let header = Self {
            id: words[0] as u32,
            level: (words[0] >> 32) as u8,
            generation: words[1] & ((1 << 48) - 1),
            born_in: words[2] as u32,
            next: (words[2] >> 32) as u32,
            words: page_words,
            entries,
            prefix,
            low: (flags & HAS_LOW != 0).then_some(low),
            high: (flags & HAS_HIGH != 0).then_some(high),
            base,
            tail,
            form: (flags & UNIFORM_BASE != 0).then_some(Uniform {
                key: key as u16,
                value: value as u16,
            }),
            dropped: words[5] as u16 as usize,
        };
        // The words say nothing else, such as another size.
        (header.encode() == *words && header.fits()).then_some(header)
    }

    /// Whether all places lie in the page, in order.
    fn fits(&self) -> bool {
        let entries = match self.form {
            Some(form) => {
                self.prefix <= form.key.into()
                    && self.base + self.entries * self.entry_words(form) == self.tail
            }
            None => self.first_entry() <= self.tail,
        };
        entries
            && self.base <= self.tail
            && self.tail <= self.words
            && self.base == self.dropped_at() + self.dropped * DROPPED_WORDS
            && self.prefix <= self.low.unwrap_or(0)
            && (self.level > 0 || self.id != 0)
    }

    /// Words of an entry of the base in uniform form.
    pub(super) fn entry_words(&self, form: Uniform) -> usize {
        self.suffix_words(form) + words_of(form.value.into())
    }

    /// Words of a key of the base in uniform form.
    pub(super) fn suffix_words(&self, form: Uniform) -> usize {
        words_of(usize::from(form.key) - self.prefix)
    }
}

/// The seed of a page's sums.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed {
    pub(super) salt: u64,
    pub(super) generation: u64,
}

impl Seed {
    fn at(self, place: usize) -> u64 {
        sum::mix(self.salt, self.generation, place as u64)
    }

    /// The header's sum. `rest`: fences and sums of the base.
    pub(super) fn header_sum(self, header: &[u64; SUMMED], rest: &[u64]) -> u64 {
        sum::words(sum::words(self.at(0) as u32, header), rest).into()
    }

    /// The sum of one stripe of the base, whose first word is at `place`.
    pub(super) fn stripe_sum(self, place: usize, words: &[u64]) -> u32 {
        sum::words(self.at(place) as u32, words)
    }

    /// The seal of a tail that ends at word `end`.
    pub(super) fn seal(self, end: usize) -> u64 {
        checked::word(
            checked::MARK | (end as u64) << 20 | self.generation & 0xF_FFFF,
            self.at(SEAL),
        )
    }

    /// The end of the tail that a seal says; `None` if it is none of this page.
    pub(super) fn sealed_end(self, seal: u64) -> Option<usize> {
        let payload = checked::payload(seal, self.at(SEAL))? ^ checked::MARK;
        let end = (payload >> 20) as usize;
        (payload & 0xF_FFFF == self.generation & 0xF_FFFF && end <= MAX_PAGE / 8).then_some(end)
    }

    /// The head of a group of `rest`, stamp first, at word `place`.
    pub(super) fn head(self, place: usize, kind: Kind, rest: &[u64]) -> u64 {
        let about = (kind.code() | (rest.len() as u64 + 1) << 4) << 48;
        let seed = self.at(place);
        let crc = sum::words(sum::words(seed as u32, &[about]), rest);
        let folded = fold(rest.iter().fold(0, |all, word| all ^ word));
        about | (seed >> 48 << 32 ^ folded << 32) | u64::from(crc)
    }

    /// Whether `head` may be of a group at word `place`: then its kind and its words.
    pub(super) fn headed(self, place: usize, head: u64) -> Option<(Kind, usize)> {
        let words = (head >> 52) as usize;
        let tagged = head >> 40 & 0xFF == self.at(place) >> 56;
        let kind = Kind::of(head >> 48 & 0xF)?;
        (tagged && words >= 3).then_some((kind, words))
    }

    /// Whether `head` may be of a group at word `place`, but for one bit.
    pub(super) fn nearly_headed(self, place: usize, head: u64) -> bool {
        // Tag, kind and words.
        let mut others = (40..64).map(|bit| head ^ 1 << bit);
        let is_head = |head| self.headed(place, head).is_some();
        head != 0 && (is_head(head) || others.any(is_head))
    }

    /// Whether `head` is that of a group of `rest` at word `place`.
    pub(super) fn is_head(self, place: usize, head: u64, kind: Kind, rest: &[u64]) -> bool {
        self.head(place, kind, rest) == head
    }
}

/// All bytes of a word, by XOR.
#[inline]
pub(super) fn fold(word: u64) -> u64 {
    let half = word ^ word >> 32;
    let quarter = half ^ half >> 16;
    (quarter ^ quarter >> 8) & 0xFF
}

/// Most words of a group.
pub(super) const MAX_GROUP: usize = (1 << 12) - 1;

/// How a group's records lie in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Of the base's lengths. `padded`: room for one more record follows, unused.
    Uniform {
        /// Whether there is.
        padded: bool,
    },
    /// Each with its lengths.
    General,
}

impl Kind {
    fn code(self) -> u64 {
        match self {
            Self::Uniform { padded: false } => 3,
            Self::Uniform { padded: true } => 12,
            Self::General => 10,
        }
    }

    fn of(code: u64) -> Option<Self> {
        let all = [
            Self::Uniform { padded: false },
            Self::Uniform { padded: true },
            Self::General,
        ];
        all.into_iter().find(|kind| kind.code() == code)
    }
}

/// The lengths of a record in general form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) key: usize,
    pub(super) value: usize,
    pub(super) removed: bool,
    /// The value is a reference to an outer one.
    pub(super) outer: bool,
    /// The key is that of this entry of the base, and takes no bytes.
    pub(super) entry: Option<u16>,
}

const PRESENT: u64 = 1 << 63;
const REMOVED: u64 = 1 << 62;
const OUTER: u64 = 1 << 61;
const ENTRY: u64 = 1 << 60;

impl Lengths {
    pub(super) fn encode(self) -> u64 {
        let removed = if self.removed { REMOVED } else { 0 };
        let outer = if self.outer { OUTER } else { 0 };
        let (entry, key) = match self.entry {
            Some(entry) => (ENTRY, entry.into()),
            None => (0, self.key as u64),
        };
        PRESENT | removed | outer | entry | (self.value as u64) << 16 | key
    }

    /// `None` for padding.
    pub(super) fn decode(word: u64) -> Option<Self> {
        let entry = (word & ENTRY != 0).then_some(word as u16);
        (word & PRESENT != 0).then_some(Self {
            key: entry.map_or(word as u16 as usize, |_| 0),
            value: (word >> 16) as u32 as usize,
            removed: word & REMOVED != 0,
            outer: word & OUTER != 0,
            entry,
        })
    }

    /// Words of the record, lengths included.
    pub(super) fn record_words(self) -> usize {
        1 + words_of(self.key + self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let form = Some(Uniform { key: 20, value: 9 });
        // 2 words of key without its prefix, and 2 of value: 3 entries in one stripe.
        Header {
            id: 7,
            level: 0,
            generation: 0x1234_5678_9ABC,
            born_in: 3,
            next: 9,
            words: 512,
            entries: 3,
            prefix: 4,
            low: Some(20),
            high: Some(5),
            base: 8 + 3 + 1 + 1,
            tail: 13 + 12,
            form,
            dropped: 0,
        }
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = header();
        assert_eq!(Header::decode(&header.encode(), 512), Some(header));
        assert_eq!(Header::decode(&header.encode(), 256), None, "another size");
        let largest = Header {
            words: MAX_PAGE / 8,
            ..header
        };
        assert_eq!(
            Header::decode(&largest.encode(), MAX_PAGE / 8),
            Some(largest)
        );
        assert_eq!(
            (header.sums_at(), header.sums(), header.high_at()),
            (12, 1, 11)
        );
    }

    #[test]
    fn every_flipped_bit_of_a_group_is_found() {
        let seed = Seed {
            salt: 0x0123_4567_89AB_CDEF,
            generation: 42,
        };
        let rest = [77, 1, 2];
        let kind = Kind::Uniform { padded: false };
        let head = seed.head(30, kind, &rest);
        assert_eq!(seed.headed(30, head), Some((kind, 4)));
        assert!(seed.is_head(30, head, kind, &rest));
        assert!(seed.headed(31, head).is_none(), "another place");
        for bit in 0..64 {
            let flipped = head ^ 1 << bit;
            let found = seed.headed(30, flipped);
            assert!(found.is_none_or(|(kind, words)| {
                words != 4 || !seed.is_head(30, flipped, kind, &rest)
            }));
            for word in 0..3 {
                let mut changed = rest;
                changed[word] ^= 1 << bit;
                assert!(!seed.is_head(30, head, kind, &changed));
            }
            assert_eq!(seed.sealed_end(seed.seal(99) ^ 1 << bit), None);
        }
        assert_eq!(seed.sealed_end(seed.seal(99)), Some(99));
    }

    #[test]
    fn lengths_are_read_as_they_were_written() {
        for (key, value, removed, outer, entry) in [
            (0, 0, false, false, None),
            (65535, 1 << 20, false, false, None),
            (3, 0, true, false, None),
            (9, 32, false, true, None),
            (0, 0, true, false, Some(700)),
        ] {
            let lengths = Lengths {
                key,
                value,
                removed,
                outer,
                entry,
            };
            assert_eq!(Lengths::decode(lengths.encode()), Some(lengths));
        }
        assert_eq!(Lengths::decode(0), None);
    }
}
