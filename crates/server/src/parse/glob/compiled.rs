//! A pattern in the form in which it is matched in near-linear time.
//!
//! ```text
//! ab*c?[de]*f    parts: "ab"  "c?[de]"  "f"
//!                        at the start      at the end
//! ```
//!
//! The parts between stars are searched one after the other, each after the end of the one before.
//! Taking the first place of each is enough: it leaves the most text for those that follow. A long
//! literal part is searched with two-way search. Any other part is searched with Shift-And: one bit
//! of a word for each item says whether the items up to it match the text up to here.

use memchr::memmem::Finder;

/// Shorter literal parts are searched like others.
const LONG: usize = 64;
/// The number of bits of a word.
const BITS: usize = 64;

/// An item of a part: the bytes that it matches.
#[derive(Clone, Copy, Debug)]
enum Item {
    One(u8),
    /// A bit for each byte.
    Set([u64; 4]),
}

/// The items between two stars.
#[derive(Debug)]
enum Part {
    Literal(Box<Finder<'static>>),
    /// The items of these columns of the table.
    Items {
        start: usize,
        len: usize,
    },
}

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct Compiled {
    /// The pattern is nothing, or one star, which match the empty text; others do not.
    takes_nothing: bool,
    /// The parts; without a star there is only one.
    parts: Vec<Part>,
    stars: bool,
    /// For each byte, as many words: a bit for each item says whether it matches the byte.
    table: Vec<u64>,
    words: usize,
}

/// Splits an item off a pattern that has no star there.
fn item(pattern: &[u8]) -> Option<(Item, &[u8])> {
    let (first, rest) = pattern.split_first()?;
    Some(match (first, rest) {
        (b'?', rest) => (Item::Set([u64::MAX; 4]), rest),
        (b'[', rest) => {
            let (set, rest) = class(rest);
            (Item::Set(set), rest)
        }
        (b'\\', [escaped, rest @ ..]) => (Item::One(*escaped), rest),
        (plain, rest) => (Item::One(*plain), rest),
    })
}

/// Splits a class off, after its `[`.
fn class(pattern: &[u8]) -> ([u64; 4], &[u8]) {
    let (not, mut pattern) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut set = [0; 4];
    let mut add = |byte: u8| set[usize::from(byte) / BITS] |= 1 << (usize::from(byte) % BITS);
    let rest = loop {
        pattern = match pattern {
            [] => break pattern,
            [b'\\', escaped, rest @ ..] => {
                add(*escaped);
                rest
            }
            [b']', rest @ ..] => break rest,
            [a, b'-', b, rest @ ..] => {
                (*a.min(b)..=*a.max(b)).for_each(&mut add);
                rest
            }
            [one, rest @ ..] => {
                add(*one);
                rest
            }
        };
    };
    (if not { set.map(|word| !word) } else { set }, rest)
}

/// Returns the table of items.
fn table(items: &[Item]) -> (Vec<u64>, usize) {
    let words = items.len().div_ceil(BITS);
    let mut table = vec![0; 256 * words];
    for (word, items) in items.chunks(BITS).enumerate() {
        // An item that most bytes match is set for all bytes, and cleared for the others.
        let mut all = 0;
        for (bit, item) in items.iter().enumerate() {
            let mut flip = |byte: usize| table[byte * words + word] ^= 1 << bit;
            match item {
                Item::One(byte) => flip(usize::from(*byte)),
                Item::Set(set) => {
                    let most = set.iter().map(|word| word.count_ones()).sum::<u32>() > 128;
                    all |= u64::from(most) << bit;
                    for (at, bits) in set.iter().enumerate() {
                        let mut bits = if most { !bits } else { *bits };
                        while bits != 0 {
                            flip(at * BITS + bits.trailing_zeros() as usize);
                            bits &= bits - 1;
                        }
                    }
                }
            }
        }
        if all != 0 {
            (0..256).for_each(|byte| table[byte * words + word] ^= all);
        }
    }
    (table, words)
}

impl Compiled {
    pub(super) fn new(pattern: &[u8]) -> Self {
        let (mut parts, mut items) = (Vec::new(), Vec::new());
        let mut stars = false;
        let mut rest = pattern;
        loop {
            let start = items.len();
            while let Some((item, after)) = item(rest).filter(|_| rest[0] != b'*') {
                items.push(item);
                rest = after;
            }
            let part = &items[start..];
            let byte = |item: &Item| match item {
                Item::One(byte) => Some(*byte),
                Item::Set(_) => None,
            };
            let literal: Option<Vec<u8>> = if part.len() > LONG {
                part.iter().map(byte).collect()
            } else {
                None
            };
            let last = rest.is_empty();
            if let Some(literal) = literal {
                items.truncate(start);
                let finder = Finder::new(&literal).into_owned();
                parts.push(Part::Literal(Box::new(finder)));
            } else if !part.is_empty() || parts.is_empty() || last {
                // Nothing between two stars is no part.
                let len = part.len();
                parts.push(Part::Items { start, len });
            }
            match rest {
                [b'*', after @ ..] => rest = after,
                _ => break,
            }
            stars = true;
        }
        let (table, words) = table(&items);
        Self {
            takes_nothing: matches!(pattern, b"" | b"*"),
            parts,
            stars,
            table,
            words,
        }
    }

    /// Returns true if the text matches. Adds the number of steps to `steps`.
    pub(super) fn matches(&self, text: &[u8], steps: &mut usize) -> bool {
        if text.is_empty() {
            return self.takes_nothing;
        }
        let Some((first, others)) = self.parts.split_first() else {
            return false;
        };
        let Some((last, middle)) = others.split_last().filter(|_| self.stars) else {
            return first.len() == text.len() && self.is_at_start(first, text, steps);
        };
        if first.len() + last.len() > text.len() {
            return false;
        }
        let (start, rest) = text.split_at(first.len());
        let (mut rest, end) = rest.split_at(rest.len() - last.len());
        if !self.is_at_start(first, start, steps) || !self.is_at_start(last, end, steps) {
            return false;
        }
        for part in middle {
            let Some(after) = self.find(part, rest, steps) else {
                return false;
            };
            rest = &rest[after..];
        }
        true
    }

    fn is_at_start(&self, part: &Part, text: &[u8], steps: &mut usize) -> bool {
        *steps += part.len();
        match part {
            Part::Literal(finder) => text.starts_with(finder.needle()),
            Part::Items { start, len } => {
                let fits = |(at, byte): (usize, &u8)| {
                    let word = self.table[usize::from(*byte) * self.words + at / BITS];
                    word >> (at % BITS) & 1 == 1
                };
                text.len() >= *len && (*start..start + len).zip(text).all(fits)
            }
        }
    }

    /// Returns the end of the first place of a part, which is not empty.
    fn find(&self, part: &Part, text: &[u8], steps: &mut usize) -> Option<usize> {
        let (start, len) = match part {
            Part::Literal(finder) => {
                let found = finder.find(text).map(|at| at + finder.needle().len());
                *steps += found.unwrap_or(text.len());
                return found;
            }
            Part::Items { start, len } => (*start, *len),
        };
        if text.len() < len {
            return None;
        }
        let (first, last) = (start / BITS, (start + len - 1) / BITS);
        let (begin, end) = (1 << (start % BITS), 1 << ((start + len - 1) % BITS));
        if first == last {
            let mut state = 0;
            let end = text.iter().position(|byte| {
                let row = self.table[usize::from(*byte) * self.words + first];
                state = (state << 1 | begin) & row;
                state & end != 0
            });
            *steps += end.map_or(text.len(), |at| at + 1);
            return end.map(|at| at + 1);
        }
        // Words after the highest one with a bit are not touched. Bits of the parts beside this
        // one, which share its first and last word, are never carried into it.
        let mut state = vec![0u64; last - first + 1];
        let mut high = 0;
        for (at, byte) in text.iter().enumerate() {
            let row = usize::from(*byte) * self.words;
            let row = &self.table[row + first..=row + last];
            *steps += high + 1;
            let mut carry = begin;
            let mut word = 0;
            while let (Some(state), Some(row)) = (state.get_mut(word), row.get(word))
                && (word <= high || carry != 0)
            {
                // The first word takes `begin`, wherever in it that is.
                let shifted = *state << 1 | carry;
                carry = *state >> (BITS - 1);
                *state = shifted & row;
                word += 1;
            }
            high = word - 1;
            while high > 0 && state[high] == 0 {
                high -= 1;
            }
            if state.last().is_some_and(|word| word & end != 0) {
                return Some(at + 1);
            }
        }
        None
    }
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Self::Literal(finder) => finder.needle().len(),
            Self::Items { len, .. } => *len,
        }
    }
}
