//! Glob patterns as Redis defines them: `*`, `?`, `[abc]`, `[^a-c]`, and `\` before a literal
//! character.

use crate::error::{CommandError, Outcome};

/// The longest pattern of a command, in bytes: as long as the longest key.
pub const MAX_PATTERN: usize = 64 << 10;

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

/// Returns true if `text` matches `pattern`. Takes time of at most the product of their lengths.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    if text.is_empty() {
        // `**` does not match it, as in Redis.
        return matches!(pattern, b"" | b"*");
    }
    let (mut rest, mut left) = (pattern, text);
    // Where the last star continues if what follows it does not match: the pattern after it, and
    // the text.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        let Some((byte, after)) = left.split_first() else {
            return rest.iter().all(|byte| *byte == b'*');
        };
        match item(rest, *byte) {
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
            return false;
        };
        star = Some((pattern, text));
        (rest, left) = (pattern, text);
    }
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
            let found = matches(pattern.as_bytes(), text.as_bytes());
            assert_eq!(found, right, "{pattern} {text}");
        }
        assert_eq!(literal_prefix(b"user:*x"), b"user:");
    }

    #[test]
    fn many_stars_take_no_longer() {
        let pattern = b"a*".repeat(2000);
        assert!(!matches(&[&pattern[..], b"b"].concat(), &b"a".repeat(5000)));
    }
}
