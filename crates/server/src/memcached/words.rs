//! Lines of text: their words, and the numbers in them as memcached takes them.

use crate::parse::c_number::{signed, unsigned};
use smallvec::SmallVec;

/// The words of a command that are told apart, its end included: what memcached takes.
const MAX_WORDS: usize = 24;
/// The words of a line.
pub(super) struct Words<'a> {
    pub words: SmallVec<[&'a [u8]; MAX_WORDS]>,
    /// What is behind the last of them.
    rest: &'a [u8],
}

impl<'a> Words<'a> {
    pub fn new(line: &'a [u8]) -> Self {
        // To memcached a line is a C string.
        let line = memchr::memchr(0, line).map_or(line, |end| &line[..end]);
        let (mut words, mut rest) = (SmallVec::new(), line);
        while words.len() < MAX_WORDS - 1 {
            let Some(start) = rest.iter().position(|byte| *byte != b' ') else {
                rest = b"";
                break;
            };
            let word = &rest[start..];
            let end = memchr::memchr(b' ', word).unwrap_or(word.len());
            words.push(&word[..end]);
            rest = word.get(end + 1..).unwrap_or_default();
        }
        Self { words, rest }
    }

    /// Returns their number, with the end of the line counted as one, as memcached does.
    pub fn len(&self) -> usize {
        self.words.len() + 1
    }

    pub fn get(&self, at: usize) -> &'a [u8] {
        self.words.get(at).copied().unwrap_or_default()
    }

    pub fn from(&self, at: usize) -> &[&'a [u8]] {
        self.words.get(at..).unwrap_or_default()
    }

    /// Returns all words from one on, however many there are.
    pub fn all_from(&self, at: usize) -> impl Iterator<Item = &'a [u8]> {
        let more = self.rest.split(|byte| *byte == b' ');
        let words: SmallVec<[&'a [u8]; MAX_WORDS]> = self.from(at).into();
        words
            .into_iter()
            .chain(more.filter(|word| !word.is_empty()))
    }

    /// Returns true if the last one is `noreply`.
    pub fn no_reply(&self) -> bool {
        self.words.last().is_some_and(|word| *word == b"noreply")
    }
}

/// Returns the first line of `bytes` without its end, and the length with it.
pub(super) fn first_line(bytes: &[u8], searched: usize) -> Option<(&[u8], usize)> {
    let end = searched + memchr::memchr(b'\n', bytes.get(searched..)?)?;
    let mut line = &bytes[..end];
    if line.len() > 1
        && let Some(without) = line.strip_suffix(b"\r")
    {
        line = without;
    }
    Some((line, end + 1))
}

/// Returns the first word of a line from an offset on, and where it ends.
pub(super) fn next_word(line: &[u8], from: usize) -> Option<(&[u8], usize)> {
    // To memcached a line is a C string.
    let rest = line.get(from..)?;
    let start = from + rest.iter().position(|byte| *byte != b' ')?;
    let rest = &line[start..];
    let end = start + memchr::memchr2(b' ', 0, rest).unwrap_or(rest.len());
    (end > start).then(|| (&line[start..end], end))
}

/// Returns flags: the low 32 bits, as memcached takes them.
pub(super) fn flags(text: &[u8]) -> Option<u32> {
    Some(unsigned(text)? as u32)
}

/// Returns a time: the low 32 bits, as memcached takes them.
pub(super) fn time(text: &[u8]) -> Option<i64> {
    Some(i64::from(signed(text)? as i32))
}

/// Returns the length of a value: the low 32 bits, as memcached takes them.
pub(super) fn value_length(text: &[u8]) -> Option<usize> {
    let length = signed(text)? as i32;
    (0..=i32::MAX - 2)
        .contains(&length)
        .then_some(length as usize)
}
