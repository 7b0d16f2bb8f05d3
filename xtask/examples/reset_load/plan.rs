//! The transactions of each thread, and the content after them, from a seed and their numbers.
//!
//! A thread has keys of its own. Each of its transactions also writes the thread's *marker*, whose
//! value begins with the transaction's number. So the content says how far the thread came, and
//! must be, in all of its keys, what the transactions up to that number leave.

use super::draw::Draw;
use std::collections::BTreeMap;

/// Name of the counter that all threads share: the sum of their own counters.
pub const SHARED: &[u8] = b"count";
/// Keys of each thread with short values, and with long ones.
const SHORT: u64 = 300;
const LONG: u64 = 16;

/// What is stored: keys and values.
pub type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// A key, and its new value or `None`.
pub type Change = (Vec<u8>, Option<Vec<u8>>);

/// A transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The changes, the marker's last.
    pub changes: Vec<Change>,
    /// Adds 1 to the thread's counter and to the shared one.
    pub counts: bool,
    /// Gives space back before the transaction.
    pub compacts: bool,
}

/// A value that is not written out yet.
#[derive(Clone, Copy)]
struct Sketch {
    /// The transaction's number, for a marker.
    number: Option<u64>,
    seed: u64,
    bytes: u64,
}

impl Sketch {
    /// Bytes of which every eight are others, so that nothing torn passes for whole.
    fn value(self) -> Vec<u8> {
        let mut draw = Draw::of(self.seed, 0);
        let mut value: Vec<u8> = self
            .number
            .map(u64::to_le_bytes)
            .into_iter()
            .flatten()
            .collect();
        let from = value.len();
        while value.len() < from + self.bytes as usize {
            value.extend_from_slice(&draw.word().to_le_bytes());
        }
        value.truncate(from + self.bytes as usize);
        value
    }
}

/// A transaction whose values are not written out yet.
struct Outline {
    changes: Vec<(Vec<u8>, Option<Sketch>)>,
    counts: bool,
    compacts: bool,
}

/// Returns the key of a thread's marker.
pub fn marker(thread: u16) -> Vec<u8> {
    format!("{thread}/marker").into_bytes()
}

/// Returns the key of a thread's counter.
pub fn counter(thread: u16) -> Vec<u8> {
    format!("{thread}/count").into_bytes()
}

fn outline(seed: u64, thread: u16, number: u64) -> Outline {
    let mut draw = Draw::of(seed, u64::from(thread) << 48 | number);
    let short = |draw: &mut Draw| {
        let key = draw.below(SHORT);
        let mut name = format!("{thread}/short/{key:04}").into_bytes();
        if key.is_multiple_of(29) {
            name.resize(400, b'.');
        }
        let most = if draw.below(4) == 0 { 3000 } else { 200 };
        let sketch = sketch(draw, most);
        (name, (draw.below(4) > 0).then_some(sketch))
    };
    let long = |draw: &mut Draw| {
        let name = format!("{thread}/long/{:04}", draw.below(LONG)).into_bytes();
        (name, Some(sketch(draw, 150_000)))
    };
    let (kind, compacts) = (draw.below(100), thread == 0 && draw.below(100) == 0);
    let mut changes: Vec<_> = match kind {
        0..25 => Vec::new(),
        25..90 => (0..=draw.below(12)).map(|_| short(&mut draw)).collect(),
        _ => vec![short(&mut draw), long(&mut draw)],
    };
    let marked = Sketch {
        number: Some(number),
        ..sketch(&mut draw, 200)
    };
    changes.push((marker(thread), Some(marked)));
    Outline {
        changes,
        counts: (70..90).contains(&kind),
        compacts,
    }
}

fn sketch(draw: &mut Draw, most: u64) -> Sketch {
    Sketch {
        number: None,
        seed: draw.word(),
        bytes: draw.below(most),
    }
}

/// Returns transaction `number` of a thread, counted from 1.
pub fn step(seed: u64, thread: u16, number: u64) -> Step {
    let outline = outline(seed, thread, number);
    let changes = outline.changes.into_iter();
    Step {
        changes: changes
            .map(|(key, to)| (key, to.map(Sketch::value)))
            .collect(),
        counts: outline.counts,
        compacts: outline.compacts,
    }
}

/// Returns the number that a marker's value begins with.
pub fn number(marker: &[u8]) -> Option<u64> {
    marker.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Returns the content of all threads after so many transactions of each.
pub fn content(seed: u64, reached: &[u64]) -> Content {
    let mut sketches = BTreeMap::new();
    let mut content = Content::new();
    let mut shared = 0;
    for (thread, reached) in (0..).zip(reached) {
        let mut count = 0;
        for number in 1..=*reached {
            let outline = outline(seed, thread, number);
            sketches.extend(outline.changes);
            count += u64::from(outline.counts);
        }
        if count > 0 {
            content.insert(counter(thread), count.to_string().into_bytes());
        }
        shared += count;
    }
    if shared > 0 {
        content.insert(SHARED.to_vec(), shared.to_string().into_bytes());
    }
    let whole = sketches.into_iter();
    content.extend(whole.filter_map(|(key, to)| Some((key, to?.value()))));
    content
}
