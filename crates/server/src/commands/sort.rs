//! `SORT` and `SORT_RO`.

use crate::command::{Access, Command, Keys, ONE};
use crate::data::fields::Fields;
use crate::data::list::{End, List};
use crate::data::record::Kind;
use crate::data::sorted_set::{Direction, SortedSet, Which};
use crate::data::tx::{MAX_TRANSACTION_BYTES, Tx};
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, double, integer, is};
use crate::reply::{MAX_REPLY_BYTES, Out};
use std::cmp::Ordering;
use std::ops::ControlFlow;

const fn command(name: &'static str, access: Access, keys: Keys) -> Command {
    let categories = &["list", "set", "sortedset", "dangerous"];
    let mut command = Command::new(name, -2, access, keys, categories, sort).long();
    command.spec.reads_other_keys = Some(reads_others);
    command
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    command("sort", Access::Write, Keys::AndStore),
    command("sort_ro", Access::Read, ONE),
];

/// The options after the key.
#[derive(Debug, Default)]
struct Options<'a> {
    descending: bool,
    alpha: bool,
    /// The first element, and the count; all of them if that is negative.
    limit: Option<(i64, i64)>,
    by: Option<Arg<'a>>,
    get: Vec<Arg<'a>>,
    store: Option<Arg<'a>>,
}

impl<'a> Options<'a> {
    fn parse(mut args: &[Arg<'a>], may_store: bool) -> Result<Self, CommandError> {
        let mut options = Self::default();
        while let [word, rest @ ..] = args {
            args = match rest {
                _ if is(word, "asc") => {
                    options.descending = false;
                    rest
                }
                _ if is(word, "desc") => {
                    options.descending = true;
                    rest
                }
                _ if is(word, "alpha") => {
                    options.alpha = true;
                    rest
                }
                [start, count, rest @ ..] if is(word, "limit") => {
                    options.limit = Some((integer(start)?, integer(count)?));
                    rest
                }
                [key, rest @ ..] if is(word, "store") && may_store => {
                    options.store = Some(key);
                    rest
                }
                [pattern, rest @ ..] if is(word, "by") => {
                    options.by = Some(pattern);
                    rest
                }
                [pattern, rest @ ..] if is(word, "get") => {
                    options.get.push(pattern);
                    rest
                }
                _ => return Err(CommandError::syntax()),
            };
        }
        Ok(options)
    }

    /// Returns the range of `len` elements that is wanted.
    fn part(&self, len: usize) -> std::ops::Range<usize> {
        let (start, count) = self.limit.unwrap_or((0, -1));
        let start = usize::try_from(start).unwrap_or(0).min(len);
        let count = usize::try_from(count).unwrap_or(len);
        start..start.saturating_add(count).min(len)
    }
}

/// Returns the option with which the command reads keys that are not among its arguments, if there
/// is one.
fn reads_others(args: &[Arg<'_>]) -> Option<&'static str> {
    let options = Options::parse(args.get(2..)?, true).ok()?;
    let by = options.by.is_some_and(|pattern| star(pattern).is_some());
    let get = !options.get.is_empty();
    by.then_some("BY").or_else(|| get.then_some("GET"))
}

/// Returns a text as C sees it: up to its first zero byte.
fn c_text(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn star(pattern: &[u8]) -> Option<usize> {
    c_text(pattern).iter().position(|byte| *byte == b'*')
}

/// Looks up what a pattern refers to for an element: a string, or the field of a hash after `->`.
/// `#` is the element itself.
fn look_up(
    tx: &mut Tx<'_>,
    pattern: &[u8],
    element: &[u8],
) -> Result<Option<Vec<u8>>, CommandError> {
    if pattern == b"#" {
        return Ok(Some(element.to_vec()));
    }
    let Some(star) = star(pattern) else {
        return Ok(None);
    };
    let after = &pattern[star + 1..];
    let arrow = c_text(after).windows(2).position(|pair| pair == b"->");
    let arrow = arrow.filter(|at| !c_text(&after[at + 2..]).is_empty());
    let (after, field) = match arrow {
        Some(at) => (&after[..at], Some(&after[at + 2..])),
        None => (after, None),
    };
    let key = [&pattern[..star], element, after].concat();
    let db = tx.db;
    let kind = tx.load_head_from(db, &key)?.map(|head| head.kind);
    match (kind, field) {
        (Some(Kind::String), None) => tx.string_with(&key, |bytes, _| bytes.to_vec()),
        (Some(Kind::Hash), Some(field)) => Fields::load(tx, &key, Kind::Hash)?.get(tx, field),
        _ => Ok(None),
    }
}

/// Parses a number that is the whole text.
fn weight(text: &[u8]) -> Result<f64, CommandError> {
    let text = c_text(text);
    let number = match text.trim_ascii_start() {
        [] if text.is_empty() => Ok(0.0),
        [] => Err(CommandError::not_a_float()),
        text => double::double(text),
    };
    number.map_err(|_| CommandError::reply("ERR One or more scores can't be converted into double"))
}

fn too_much(what: &str) -> CommandError {
    CommandError::reply(format!(
        "ERR {what} more than {MAX_TRANSACTION_BYTES} bytes of memory"
    ))
}

/// Returns the elements under a key, in the order that they have there.
fn elements(tx: &mut Tx<'_>, key: &[u8]) -> Result<(Option<Kind>, Vec<Vec<u8>>), CommandError> {
    let db = tx.db;
    let kind = tx.load_head_from(db, key)?.map(|head| head.kind);
    let (mut elements, mut held) = (Vec::new(), 0);
    tx.counting(|tx, scratch| {
        let mut take = |element: &[u8]| {
            scratch.add(element)?;
            held += element.len() + size_of::<Vec<u8>>();
            elements.push(element.to_vec());
            if held > MAX_TRANSACTION_BYTES {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        match kind {
            None => Ok(()),
            Some(Kind::List) => {
                List::load(tx, key)?.visit(tx, End::Left, 0, |_, element| take(element))
            }
            Some(Kind::Set) => {
                Fields::load(tx, key, Kind::Set)?.visit(tx, |member, _| take(member))
            }
            Some(Kind::SortedSet) => SortedSet::load(tx, key)?.visit(
                tx,
                Which::All,
                Direction::Ascending,
                |member, _| take(member),
            ),
            Some(Kind::String | Kind::Hash) => Err(CommandError::wrong_type()),
        }
    })?;
    if held > MAX_TRANSACTION_BYTES {
        return Err(too_much("the elements take"));
    }
    Ok((kind, elements))
}

/// Sorts elements by what `by` refers to for each, or by themselves.
fn sorted(
    tx: &mut Tx<'_>,
    elements: Vec<Vec<u8>>,
    by: Option<Arg<'_>>,
    alpha: bool,
) -> Result<Vec<Vec<u8>>, CommandError> {
    match (by, alpha) {
        (None, true) => {
            let mut elements = elements;
            elements.sort_unstable();
            Ok(elements)
        }
        (Some(pattern), true) => by_text(tx, elements, pattern),
        (by, false) => by_number(tx, elements, by),
    }
}

fn by_text(
    tx: &mut Tx<'_>,
    elements: Vec<Vec<u8>>,
    pattern: Arg<'_>,
) -> Result<Vec<Vec<u8>>, CommandError> {
    let mut held = 0;
    let mut texts = Vec::with_capacity(elements.len());
    for element in elements {
        let text = look_up(tx, pattern, &element)?;
        held += text.as_ref().map_or(0, Vec::len);
        let _ = tx.scratch.add(text.as_deref().unwrap_or_default());
        tx.scratch.check()?;
        if held > MAX_TRANSACTION_BYTES {
            return Err(too_much("what BY leads to takes"));
        }
        texts.push((text, element));
    }
    // Elements without a value come first.
    texts.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(texts.into_iter().map(|(_, element)| element).collect())
}

fn by_number(
    tx: &mut Tx<'_>,
    elements: Vec<Vec<u8>>,
    by: Option<Arg<'_>>,
) -> Result<Vec<Vec<u8>>, CommandError> {
    let mut weighed = Vec::with_capacity(elements.len());
    for element in elements {
        let weight = match by {
            None => weight(&element)?,
            Some(pattern) => match look_up(tx, pattern, &element)? {
                Some(text) => weight(&text)?,
                None => 0.0,
            },
        };
        weighed.push((weight, element));
    }
    // Weights are never NaN.
    weighed.sort_by(|(a, one), (b, other)| {
        let by_weight = a.partial_cmp(b).unwrap_or(Ordering::Equal);
        by_weight.then_with(|| one.cmp(other))
    });
    Ok(weighed.into_iter().map(|(_, element)| element).collect())
}

/// Only the key and the destination are locked. Other keys are read on a snapshot, and expired ones
/// are left alone.
fn sort(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut options = Options::parse(&args[2..], is(args[0], "sort"))?;
    tx.snapshot();
    let (kind, mut all) = elements(tx, args[1])?;
    let as_it_is = options.by.is_some_and(|pattern| star(pattern).is_none());
    if as_it_is && kind == Some(Kind::Set) && options.store.is_some() {
        // The list that is stored must not depend on the internal order of the set.
        (options.by, options.alpha) = (None, true);
        all = sorted(tx, all, None, true)?;
    } else if !as_it_is {
        all = tx.reading(|tx| sorted(tx, all, options.by, options.alpha))?;
    }
    let sorted = options.by.is_none_or(|pattern| star(pattern).is_some());
    if options.descending && (sorted || kind == Some(Kind::SortedSet)) {
        all.reverse();
    }
    let part = options.part(all.len());
    let part = &all[part];
    match options.store {
        None => answer(tx, part, &options.get, out),
        Some(to) => store(tx, to, part, &options.get, out),
    }
}

/// Calls `each` with what is wanted of an element: itself, or what every pattern refers to.
fn found(
    tx: &mut Tx<'_>,
    part: &[Vec<u8>],
    get: &[Arg<'_>],
    mut each: impl FnMut(&mut Tx<'_>, Option<&[u8]>) -> Outcome,
) -> Outcome {
    for element in part {
        if get.is_empty() {
            each(tx, Some(element))?;
        }
        for pattern in get {
            let one = tx.reading(|tx| look_up(tx, pattern, element))?;
            each(tx, one.as_deref())?;
        }
    }
    Ok(())
}

fn answer(tx: &mut Tx<'_>, part: &[Vec<u8>], get: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    out.array(part.len() * get.len().max(1));
    found(tx, part, get, |_, one| {
        out.maybe_bulk(one);
        if out.overflowed() {
            return Err(CommandError::reply(format!(
                "ERR the reply is longer than {MAX_REPLY_BYTES} bytes"
            )));
        }
        Ok(())
    })
}

/// Stores a list under a key, and replaces its value. Missing values become empty elements.
fn store(
    tx: &mut Tx<'_>,
    to: &[u8],
    part: &[Vec<u8>],
    get: &[Arg<'_>],
    out: &mut Out<'_>,
) -> Outcome {
    let before = tx.load_head(to)?;
    let mut list = List::in_place_of(before);
    found(tx, part, get, |tx, one| {
        list.push(tx, End::Right, one.unwrap_or_default())
    })?;
    out.integer(list.len() as i64);
    list.save(tx, to)
}

#[cfg(test)]
mod tests {
    use crate::fixture::Fixture;

    #[test]
    fn large_collections_are_sorted_by_what_their_elements_lead_to() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let call = |line: &str| fixture.call(&data, line);
        for number in 0..200 {
            call(&format!("sadd s {number}"));
            call(&format!("set w{number} {}", (number * 7) % 200));
            call(&format!("hset h{number} name n{number}"));
        }
        assert_eq!(
            call("sort s by w* limit 0 3 get # get w* get h*->name get nothing*"),
            "*12\r\n$1\r\n0\r\n$1\r\n0\r\n$2\r\nn0\r\n$-1\r\n\
             $3\r\n143\r\n$1\r\n1\r\n$4\r\nn143\r\n$-1\r\n\
             $2\r\n86\r\n$1\r\n2\r\n$3\r\nn86\r\n$-1\r\n"
        );
        assert_eq!(call("sort s desc limit 0 150 store d"), ":150\r\n");
        assert_eq!(call("lrange d 0 1"), "*2\r\n$3\r\n199\r\n$3\r\n198\r\n");
        assert_eq!(call("llen d"), ":150\r\n");
        assert_eq!(call("sort d limit 100 1 store s"), ":1\r\n");
        assert_eq!(call("lrange s 0 -1"), "*1\r\n$3\r\n150\r\n");
    }

    #[test]
    fn what_has_expired_is_looked_up_but_not_taken_away() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let call = |line: &str| fixture.call(&data, line);
        call("rpush l 1 2");
        crate::fixture::put_large(&data, 0, b"w1", 3, Some(1000));
        call("set w2 -5");
        fixture.at(2000);
        assert_eq!(call("sort l by w* get w* store d"), ":2\r\n");
        assert_eq!(call("lrange d 0 -1"), "*2\r\n$2\r\n-5\r\n$0\r\n\r\n");
        assert_eq!(
            data.store().len(&data.spaces().garbage),
            0,
            "the sweeper's to do"
        );
    }
}
