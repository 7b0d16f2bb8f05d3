//! Glob patterns as Redis defines them: `*`, `?`, `[abc]`, `[^a-c]`, and `\` before a literal
//! character.
//!
//! Most patterns are matched byte by byte, with a return to the last `*` where that fails. Such a
//! search may take time of the product of both lengths, so it gives up after a few steps for each
//! byte. The pattern is compiled then, and matched in near-linear time.

mod compiled;

use crate::error::{CommandError, Outcome};
use compiled::Compiled;
use std::cell::OnceCell;

/// The longest pattern of a command, in bytes: as long as the longest key.
pub const MAX_PATTERN: usize = 64 << 10;
/// The steps, for each byte of the pattern and the text, after which a pattern is compiled.
const STEPS: usize = 8;

/// Refuses a pattern that is longer than [`MAX_PATTERN`]: matching takes time in proportion to it.
///
/// # Errors
/// [`CommandError::Reply`]
pub fn check(pattern: &[u8]) -> Outcome {
    if pattern.len() <= MAX_PATTERN {
        return Ok(());
    }
    Err(CommandError::reply(format!(
        "ERR a pattern of {} bytes: at most {MAX_PATTERN} are possible",
        pattern.len()
    )))
}

/// A pattern that is matched with many texts.
#[derive(Debug)]
pub struct Pattern<'p> {
    bytes: &'p [u8],
    /// Made for the first text that takes long.
    compiled: OnceCell<Compiled>,
}

impl<'p> Pattern<'p> {
    /// Returns a pattern. It takes memory and time only once a text needs them.
    #[must_use]
    pub const fn new(bytes: &'p [u8]) -> Self {
        Self {
            bytes,
            compiled: OnceCell::new(),
        }
    }

    /// Returns true if the text matches. Takes time in proportion to the length of the text, times
    /// at most a 64th of the longest part without `*` that has a `?` or a class.
    #[must_use]
    pub fn matches(&self, text: &[u8]) -> bool {
        if self.compiled.get().is_none() {
            let steps = STEPS * (self.bytes.len() + text.len());
            if let Some(found) = matches_within(self.bytes, text, steps) {
                return found;
            }
        }
        let compiled = self.compiled.get_or_init(|| Compiled::new(self.bytes));
        compiled.matches(text, &mut 0)
    }

    /// Returns the literal prefix that every matching text has.
    #[must_use]
    pub fn literal_prefix(&self) -> &'p [u8] {
        literal_prefix(self.bytes)
    }
}

/// Returns true if `text` matches `pattern`, like [`Pattern::matches`].
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    Pattern::new(pattern).matches(text)
}

/// Returns true if `text` matches `pattern`; `None` if finding out takes more steps.
fn matches_within(pattern: &[u8], text: &[u8], mut steps: usize) -> Option<bool> {
    if text.is_empty() {
        // `**` does not match it, as in Redis.
        return Some(matches!(pattern, b"" | b"*"));
    }
    let (mut rest, mut left) = (pattern, text);
    // Where the last star continues if what follows it does not match: the pattern after it, and
    // the text.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        let Some((byte, after)) = left.split_first() else {
            return Some(rest.iter().all(|byte| *byte == b'*'));
        };
        let item = item(rest, *byte);
        let read = match item {
            Some(Item::One(_, next)) => rest.len() - next.len(),
            _ => 1,
        };
        steps = steps.checked_sub(read)?;
        match item {
            Some(Item::Star) => {
                rest = &rest[1..];
                star = Some((rest, left));
                continue;
            }
            Some(Item::One(true, next)) => {
                rest = next;
                left = after;
                continue;
            }
            _ => {}
        }
        let Some((pattern, [_, text @ ..])) = star else {
            return Some(false);
        };
        star = Some((pattern, text));
        (rest, left) = (pattern, text);
    }
}

/// An item of a pattern, compared with a byte: whether it matches, and the pattern after it.
enum Item<'p> {
    Star,
    One(bool, &'p [u8]),
}

fn item(pattern: &[u8], byte: u8) -> Option<Item<'_>> {
    let (first, rest) = pattern.split_first()?;
    Some(match (first, rest) {
        (b'*', _) => Item::Star,
        (b'?', rest) => Item::One(true, rest),
        (b'[', rest) => {
            let (matches, rest) = class(rest, byte);
            Item::One(matches, rest)
        }
        (b'\\', [escaped, rest @ ..]) => Item::One(*escaped == byte, rest),
        (plain, rest) => Item::One(*plain == byte, rest),
    })
}

/// Compares the class after a `[`. One without its `]` extends to the end of the pattern.
fn class(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    let (not, mut pattern) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut found = false;
    let rest = loop {
        pattern = match pattern {
            [] => break pattern,
            [b'\\', escaped, rest @ ..] => {
                found |= *escaped == byte;
                rest
            }
            [b']', rest @ ..] => break rest,
            [a, b'-', b, rest @ ..] => {
                found |= (*a.min(b)..=*a.max(b)).contains(&byte);
                rest
            }
            [one, rest @ ..] => {
                found |= *one == byte;
                rest
            }
        };
    };
    (found != not, rest)
}

/// Returns the literal prefix that every matching text has.
#[must_use]
pub fn literal_prefix(pattern: &[u8]) -> &[u8] {
    let end = pattern.iter().position(|byte| b"*?[\\".contains(byte));
    &pattern[..end.unwrap_or(pattern.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Byte by byte, however long that takes.
    fn simply_matches(pattern: &[u8], text: &[u8]) -> bool {
        matches_within(pattern, text, usize::MAX).unwrap()
    }

    #[test]
    fn patterns_match_what_redis_says() {
        let all = [
            ("*", "abc", true),
            ("*", "", true),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("h[]llo", "hello", false),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("h[\\]]", "h]", true),
            ("ab[c", "abc", true),
            ("ab[c", "abd", false),
            ("ab[", "abd", false),
            ("ab\\", "ab\\", true),
            ("*a*b*c", "xxaxxbxxbxxc", true),
            ("*a*b*c", "xxaxxbxxbxxcd", false),
            ("**", "", false),
            ("a**", "a", true),
            ("", "a", false),
        ];
        for (pattern, text, right) in all {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            assert_eq!(matches(pattern, text), right, "{pattern:?} {text:?}");
            let compiled = Compiled::new(pattern).matches(text, &mut 0);
            assert_eq!(compiled, right, "{pattern:?} {text:?}");
        }
        assert_eq!(literal_prefix(b"user:*x"), b"user:");
    }

    /// Returns whether the text matches, and the steps that this takes once it is compiled.
    fn steps(pattern: &[u8], text: &[u8]) -> (bool, usize) {
        let mut steps = 0;
        let found = Compiled::new(pattern).matches(text, &mut steps);
        assert_eq!(matches(pattern, text), found);
        (found, steps)
    }

    #[test]
    fn the_longest_patterns_and_keys_take_linear_time() {
        let many = |what: &str, times: usize| what.repeat(times).into_bytes();
        let text = many("a", 60_000);
        for pattern in [
            [b"*", &many("a", 30_000)[..], b"b"].concat(),
            [b"*", &many("a", 30_000)[..], b"b*"].concat(),
            many("a*", 2000),
            [&many("a*", 2000)[..], b"b"].concat(),
            [&many("*a", 32_000)[..], b"b*"].concat(),
            many("*?", 32_000),
            [&many("*?a", 20_000)[..], b"b*"].concat(),
            [b"*[", &many("a", 30_000)[..], b"]b*"].concat(),
            many("*[^b]b*", 8000),
        ] {
            let (_, steps) = steps(&pattern, &text);
            let most = 3 * (pattern.len() + text.len());
            assert!(steps <= most, "{steps} steps, more than {most}");
        }
        // Words of 64 items; the simple matcher takes 900 million steps.
        let hidden = [b"*", &many("a", 29_999)[..], b"?b*"].concat();
        let (found, steps) = steps(&hidden, &text);
        assert!(!found && steps <= 60_000 * (30_001 / 64 + 1), "{steps}");
    }

    #[test]
    fn parts_of_any_length_are_found_where_they_are() {
        for length in [1, 2, 63, 64, 65, 127, 128, 129, 200] {
            for before in [0, 1, 5, 300] {
                let part = b"ab?[c-d]e".repeat(length).split_off(8 * length);
                let met = b"ab-ce".repeat(length + 1);
                let text = [&b"ab".repeat(before)[..], &met, b"ab-cz"].concat();
                let end = [&part[..], b"*"].concat();
                for pattern in [[b"*", &end[..]].concat(), [b"x*", &end[..]].concat()] {
                    let right = simply_matches(&pattern, &text);
                    assert_eq!(Compiled::new(&pattern).matches(&text, &mut 0), right);
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn compiled_patterns_match_what_simple_ones_do(
            pattern in proptest::collection::vec(proptest::sample::select(&b"aaab**??[]^-\\"[..]), 0..24),
            text in proptest::collection::vec(proptest::sample::select(&b"aaaabb]-^\\"[..]), 0..40),
            times in proptest::sample::select(&[1usize, 1, 9, 30][..]),
        ) {
            let (pattern, text) = (pattern.repeat(times), text.repeat(times));
            let right = simply_matches(&pattern, &text);
            prop_assert_eq!(matches(&pattern, &text), right);
            prop_assert_eq!(Compiled::new(&pattern).matches(&text, &mut 0), right);
        }
    }
}
