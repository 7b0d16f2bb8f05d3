//! Patterns as `KEYS` and `MATCH` have them: `*`, `?`, `[abc]`, `[^a-z]`, and `\` before a character that stands for itself.

/// True if `text` is as `pattern` says. Takes time in proportion to the product of their lengths at most.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, text);
    // After the last star: what follows it, and from where on it was tried.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some(after) = rest.strip_prefix(b"*") {
            if after.is_empty() {
                return true;
            }
            star = Some((after, left));
            rest = after;
            continue;
        }
        let step = match left.split_first() {
            None if rest.is_empty() => return true,
            // A star does not help: it would have to give back what it took.
            None => return false,
            Some((byte, after)) => one(rest, *byte).map(|rest| (rest, after)),
        };
        match (step, star) {
            (Some((pattern, text)), _) => (rest, left) = (pattern, text),
            (None, Some((after, from))) => {
                let Some((_, from)) = from.split_first() else {
                    return false;
                };
                star = Some((after, from));
                (rest, left) = (after, from);
            }
            (None, None) => return false,
        }
    }
}

/// What of the pattern is left after one byte; `None` if the byte is another one.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => class(rest, byte),
        [b'\\', escaped, rest @ ..] => (*escaped == byte).then_some(rest),
        [same, rest @ ..] => (*same == byte).then_some(rest),
    }
}

/// As [`one`], after a `[`. A class that does not end ends with the pattern.
fn class(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (not, mut rest) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut found = false;
    loop {
        match rest {
            [b'\\', escaped, after @ ..] => {
                found |= *escaped == byte;
                rest = after;
            }
            [b']', after @ ..] => {
                rest = after;
                break;
            }
            [] => break,
            [start, b'-', end, after @ ..] => {
                found |= (*start.min(end)..=*start.max(end)).contains(&byte);
                rest = after;
            }
            [same, after @ ..] => {
                found |= *same == byte;
                rest = after;
            }
        }
    }
    (found != not).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_they_should() {
        let good = [
            ("", ""),
            ("*", ""),
            ("*", "abc"),
            ("a*c", "ac"),
            ("a*c", "abcbc"),
            ("*b*d*", "abcde"),
            ("?b", "ab"),
            ("[abc]x", "bx"),
            ("[^abc]x", "dx"),
            ("[c-a]", "b"),
            ("[a", "a"),
            (r"\*", "*"),
            (r"[\]]", "]"),
            (r"a\", r"a\"),
            ("h[a-z]llo*", "hello world"),
        ];
        for (pattern, text) in good {
            assert!(
                matches(pattern.as_bytes(), text.as_bytes()),
                "{pattern} {text}"
            );
        }
        let bad = [
            ("", "a"),
            ("a", ""),
            ("?", ""),
            ("a*c", "ab"),
            ("[^a]", "a"),
            ("[^a]", ""),
            (r"\*", "a"),
            ("a*b*c", "aXbX"),
            ("*a", "ab"),
        ];
        for (pattern, text) in bad {
            assert!(
                !matches(pattern.as_bytes(), text.as_bytes()),
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn many_stars_take_no_longer() {
        let text = vec![b'a'; 10_000];
        let pattern = [b"*a".repeat(50), b"b".to_vec()].concat();
        assert!(!matches(&pattern, &text));
    }
}
