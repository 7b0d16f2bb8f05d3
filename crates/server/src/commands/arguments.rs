//! Arguments that several families of commands share: numbers within bounds, counts, cursors, and
//! the options of scans.

use crate::commands::replies::pairs;
use crate::data::fields::{Bytes, Fields, Pair, is_expensive, sample};
use crate::data::record::Kind;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::glob::Pattern;
use crate::parse::{Arg, glob, integer, is};
use crate::reply::Out;
use rand::seq::IndexedRandom;

/// Parses an integer of at least `least`. The error is `otherwise`.
pub(crate) fn at_least(text: Arg<'_>, least: i64, otherwise: &str) -> Result<u64, CommandError> {
    let number = integer(text).ok().filter(|number| *number >= least);
    number
        .and_then(|number| u64::try_from(number).ok())
        .ok_or_else(|| CommandError::reply(otherwise))
}

/// Parses a count, which must not be negative.
pub(crate) fn count(text: Arg<'_>) -> Result<u64, CommandError> {
    at_least(text, 0, "ERR value is out of range, must be positive")
}

/// Parses the number of keys that follow; at least one.
pub(crate) fn number_of_keys(text: Arg<'_>) -> Result<usize, CommandError> {
    let keys = at_least(text, 1, "ERR numkeys should be greater than 0")?;
    Ok(usize::try_from(keys).unwrap_or(usize::MAX))
}

/// Parses the option `COUNT` of commands that pop from the first key that exists; 1 without it.
pub(crate) fn pop_count(options: &[Arg<'_>]) -> Result<u64, CommandError> {
    let (count, rest) = match options {
        [] => return Ok(1),
        [word, count, rest @ ..] if is(word, "count") => (count, rest),
        _ => return Err(CommandError::syntax()),
    };
    let count = at_least(count, 1, "ERR count should be greater than 0")?;
    if rest.is_empty() {
        Ok(count)
    } else {
        Err(CommandError::syntax())
    }
}

/// Parses the count of random elements. A count that is not negative asks for different ones.
pub(crate) fn random_count(text: Arg<'_>, pairs: bool) -> Result<i64, CommandError> {
    let count = integer(text)?;
    if count == i64::MIN {
        let (least, most) = (-i64::MAX, i64::MAX);
        return Err(CommandError::reply(format!(
            "ERR value is out of range, value must between {least} and {most}"
        )));
    }
    if pairs && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err(CommandError::reply("ERR value is out of range"));
    }
    Ok(count)
}

/// Parses what follows the key in `HRANDFIELD` and `ZRANDMEMBER`: the count of random elements, and
/// whether `word` asks for their values or scores. Returns `None` if there are no options: one
/// element is asked for.
pub(crate) fn random_options(
    options: &[Arg<'_>],
    word: &str,
) -> Result<Option<(i64, bool)>, CommandError> {
    let Some((count, rest)) = options.split_first() else {
        return Ok(None);
    };
    random_count(count, false)?;
    let pairs = match rest {
        [] => false,
        [one] if is(one, word) => true,
        _ => return Err(CommandError::syntax()),
    };
    Ok(Some((random_count(count, pairs)?, pairs)))
}

/// Returns the first index and the length of the range from `start` to `stop`, both included, of
/// `len` elements. Negative numbers count from the end.
pub(crate) fn part(start: i64, stop: i64, len: u64) -> (u64, u64) {
    let from_front = |at: i64| match u64::try_from(at) {
        Ok(at) => Some(at),
        Err(_) => len.checked_sub(at.unsigned_abs()),
    };
    let start = from_front(start).unwrap_or(0);
    let Some(stop) = from_front(stop) else {
        return (0, 0);
    };
    if start > stop || start >= len {
        return (0, 0);
    }
    (start, stop.min(len - 1) - start + 1)
}

/// The error for a cursor that does not exist.
pub(crate) fn invalid_cursor() -> CommandError {
    CommandError::reply("ERR invalid cursor")
}

/// Parses a cursor as `strtoul` does.
pub(crate) fn cursor(text: Arg<'_>) -> Result<u64, CommandError> {
    let text = std::str::from_utf8(text).map_err(|_| invalid_cursor())?;
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(invalid_cursor());
    }
    if digits.is_empty() {
        return if text.is_empty() {
            Ok(0)
        } else {
            Err(invalid_cursor())
        };
    }
    let number: u64 = digits.parse().map_err(|_| invalid_cursor())?;
    Ok(if negative {
        number.wrapping_neg()
    } else {
        number
    })
}

/// The options of a scan.
#[derive(Debug)]
pub(crate) struct ScanOptions<'a> {
    /// The approximate number of elements to look at.
    pub count: u64,
    /// The pattern that names must match.
    pub pattern: Option<Arg<'a>>,
    /// The name of the type that keys must have.
    pub of: Option<Arg<'a>>,
}

impl<'a> ScanOptions<'a> {
    /// Parses the options after a scan's cursor. Only a scan of keys has the option `TYPE`.
    pub fn parse(mut args: &[Arg<'a>], keys: bool) -> Result<Self, CommandError> {
        let mut options = Self {
            count: 10,
            pattern: None,
            of: None,
        };
        while let [name, rest @ ..] = args {
            args = match rest {
                [value, rest @ ..] if is(name, "count") => {
                    let count = integer(value)?;
                    options.count = u64::try_from(count)
                        .ok()
                        .filter(|count| *count > 0)
                        .ok_or_else(CommandError::syntax)?;
                    rest
                }
                [value, rest @ ..] if is(name, "match") => {
                    glob::check(value)?;
                    options.pattern = Some(value);
                    rest
                }
                [value, rest @ ..] if keys && is(name, "type") => {
                    options.of = Some(value);
                    rest
                }
                _ => return Err(CommandError::syntax()),
            };
        }
        Ok(options)
    }

    /// Replies with the next cursor, and the names that match; with their values if `with_values`
    /// is set.
    pub fn reply(&self, out: &mut Out<'_>, next: u64, found: &[Pair], with_values: bool) {
        let pattern = self.pattern.map(Pattern::new);
        let wanted = |pair: &&Pair| (pattern.as_ref()).is_none_or(|it| it.matches(&pair.0));
        let found: Vec<&Pair> = found.iter().filter(wanted).collect();
        out.array(2);
        out.bulk(next.to_string().as_bytes());
        out.array(found.len() * if with_values { 2 } else { 1 });
        for (name, value) in found {
            out.bulk(name);
            if with_values {
                out.bulk(value);
            }
        }
    }
}

/// Replies to a scan of a key that does not exist.
pub(crate) fn nothing_to_scan(out: &mut Out<'_>) {
    out.array(2);
    out.bulk(b"0");
    out.array(0);
}

/// Executes `HSCAN` and `SSCAN`.
pub(crate) fn scan_fields(
    tx: &mut Tx<'_>,
    args: &[Arg<'_>],
    out: &mut Out<'_>,
    kind: Kind,
) -> Outcome {
    let from = cursor(args[2])?;
    let fields = Fields::load(tx, args[1], kind)?;
    if fields.is_empty() {
        nothing_to_scan(out);
        return Ok(());
    }
    let options = ScanOptions::parse(&args[3..], false)?;
    let (next, found) = fields.step(tx, from, options.count)?;
    options.reply(out, next, &found, kind == Kind::Hash);
    Ok(())
}

/// The longest reply, in bytes, to a command that may repeat elements.
const MAX_REPLY: usize = 64 << 20;

/// The work of choosing an element, in bytes.
const RANDOM_WORK: usize = 64;

/// Replies with random elements. A positive `count` asks for up to `count` different ones of `len`;
/// a negative one asks for exactly that many, and elements may repeat. `random` returns one, `all`
/// returns all, and `reply` writes one.
pub(crate) fn random_elements<V: Bytes>(
    tx: &mut Tx<'_>,
    (len, count): (u64, i64),
    with_values: bool,
    out: &mut Out<'_>,
    mut random: impl FnMut(&mut Tx<'_>) -> Result<Option<(Vec<u8>, V)>, CommandError>,
    all: impl FnOnce(&mut Tx<'_>) -> Result<Vec<(Vec<u8>, V)>, CommandError>,
    mut reply: impl FnMut(&mut Out<'_>, &(Vec<u8>, V)),
) -> Outcome {
    let head = |out: &mut Out<'_>, count: usize| {
        if with_values {
            pairs(out, count);
        } else {
            out.array(count);
        }
    };
    if len == 0 || count == 0 {
        out.array(0);
        return Ok(());
    }
    if let Ok(count) = u64::try_from(count) {
        let found = sample(len, count, tx, random, all)?;
        head(out, found.len());
        found.iter().for_each(|one| reply(out, one));
        return Ok(());
    }
    let too_long =
        || CommandError::reply(format!("ERR the reply is longer than {MAX_REPLY} bytes"));
    let count = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count > MAX_REPLY / 6 {
        return Err(too_long());
    }
    tx.work(count.saturating_mul(RANDOM_WORK))?;
    head(out, count);
    let mark = out.mark();
    let all = if is_expensive(count as u64, len) {
        all(tx)?
    } else {
        Vec::new()
    };
    for _ in 0..count {
        match all.choose(&mut rand::rng()) {
            Some(one) => reply(out, one),
            None => {
                let one = random(tx)?
                    .ok_or_else(|| CommandError::damaged("no element of a large collection"))?;
                reply(out, &one);
            }
        }
        // The reply of an evicted client is empty, and shorter than its mark.
        if out.mark().saturating_sub(mark) > MAX_REPLY {
            return Err(too_long());
        }
    }
    Ok(())
}

/// Replies with random fields of a hash, or members of a set; see [`random_elements`].
pub(crate) fn random_fields(
    tx: &mut Tx<'_>,
    fields: &Fields,
    (count, with_values): (i64, bool),
    out: &mut Out<'_>,
    reply: impl FnMut(&mut Out<'_>, &Pair),
) -> Outcome {
    let (random, all) = (
        |tx: &mut Tx<'_>| fields.random(tx),
        |tx: &mut Tx<'_>| fields.all(tx),
    );
    let counts = (fields.len(), count);
    random_elements(tx, counts, with_values, out, random, all, reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_from_both_ends() {
        assert_eq!(part(0, -1, 5), (0, 5));
        assert_eq!(part(1, 2, 5), (1, 2));
        assert_eq!(part(-2, -1, 5), (3, 2));
        assert_eq!(part(-9, 9, 5), (0, 5));
        assert_eq!(part(3, 1, 5), (0, 0));
        assert_eq!(part(5, 9, 5), (0, 0));
        assert_eq!(part(0, -6, 5), (0, 0));
        assert_eq!(part(i64::MIN, i64::MAX, 5), (0, 5));
        assert_eq!(part(0, -1, 0), (0, 0));
    }

    #[test]
    fn cursors_are_unsigned_numbers() {
        assert_eq!(cursor(b"0").unwrap(), 0);
        assert_eq!(cursor(b"-1").unwrap(), u64::MAX);
        assert_eq!(cursor(b"18446744073709551615").unwrap(), u64::MAX);
        for bad in ["18446744073709551616", " 1", "x", "1x", "-", "--1", "-+1"] {
            assert_eq!(
                cursor(bad.as_bytes()).unwrap_err().to_string(),
                "ERR invalid cursor"
            );
        }
    }
}
