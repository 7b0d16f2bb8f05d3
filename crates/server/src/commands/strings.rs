//! Commands on strings.

use crate::command::{ALL, Access, Command, DataFn, Keys, ONE, Step};
use crate::data::record::{Kind, Value, string_record};
use crate::data::spaces::Space;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::long_double::LongDouble;
use crate::parse::{Arg, integer, is};
use crate::reply::Out;
use std::ops::Range;

/// The longest string in bytes: Redis' default of `proto-max-bulk-len`.
pub(crate) const MAX_STRING: usize = 512 * 1024 * 1024;

const PAIRS: Keys = Keys::range(1, -1, 2);

const fn command(
    name: &'static str,
    arity: i32,
    access: Access,
    keys: Keys,
    run: DataFn,
) -> Command {
    Command::new(name, arity, access, keys, &["string"], run)
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    command("append", 3, Access::Write, ONE, append),
    command("decr", 2, Access::Write, ONE, decr),
    command("decrby", 3, Access::Write, ONE, decrby),
    command("get", 2, Access::ReadOne, ONE, get).with_step(get_step),
    command("getdel", 2, Access::Write, ONE, getdel),
    command("getex", -2, Access::Write, ONE, getex),
    command("getrange", 4, Access::ReadOne, ONE, getrange),
    command("getset", 3, Access::Write, ONE, getset),
    command("incr", 2, Access::Write, ONE, incr),
    command("incrby", 3, Access::Write, ONE, incrby),
    command("incrbyfloat", 3, Access::Write, ONE, incrbyfloat),
    command("mget", -2, Access::Read, ALL, mget),
    command("mset", -3, Access::Write, PAIRS, mset),
    command("msetnx", -3, Access::Write, PAIRS, msetnx),
    command("psetex", 4, Access::Write, ONE, psetex),
    command("set", -3, Access::Write, ONE, set).with_step(set_step),
    command("setex", 4, Access::Write, ONE, setex),
    command("setnx", 3, Access::Write, ONE, setnx),
    command("setrange", 4, Access::Write, ONE, setrange),
    command("strlen", 2, Access::ReadOne, ONE, strlen),
    command("substr", 4, Access::ReadOne, ONE, getrange),
];

/// Returns the step that a `GET` is.
fn get_step<'a>(args: &[Arg<'a>]) -> Option<Step<'a>> {
    (args.len() == 2).then_some(Step::Get)
}

/// Returns the step that a `SET` without options is.
fn set_step<'a>(args: &[Arg<'a>]) -> Option<Step<'a>> {
    match args {
        [_, _, value] => Some(Step::Put(value)),
        _ => None,
    }
}

/// An expiry as it is given in the arguments.
#[derive(Clone, Copy, Debug)]
struct Expire<'a> {
    number: Arg<'a>,
    /// In seconds, not in ms.
    seconds: bool,
    /// Relative to now, not to 1970.
    relative: bool,
}

impl Expire<'_> {
    /// Returns it in ms since 1970.
    fn at(self, tx: &Tx<'_>, command: &str) -> Result<u64, CommandError> {
        let number = integer(self.number)?;
        let ms = number.checked_mul(if self.seconds { 1000 } else { 1 });
        let from = if self.relative { tx.now } else { 0 };
        ms.filter(|_| number > 0)
            .and_then(|ms| ms.checked_add(i64::try_from(from).ok()?))
            .and_then(|ms| u64::try_from(ms).ok())
            .ok_or_else(|| {
                CommandError::reply(format!("ERR invalid expire time in '{command}' command"))
            })
    }
}

/// The options of `SET` and `GETEX`.
#[derive(Debug, Default)]
struct Options<'a> {
    if_absent: bool,
    if_present: bool,
    get: bool,
    keep: bool,
    persist: bool,
    /// The option's name, and its expiry.
    expire: Option<(&'static str, Expire<'a>)>,
}

/// The options for expiries: name, in seconds, relative.
const EXPIRES: [(&str, bool, bool); 4] = [
    ("ex", true, true),
    ("px", false, true),
    ("exat", true, false),
    ("pxat", false, false),
];

impl<'a> Options<'a> {
    fn parse(args: &[Arg<'a>], of_set: bool) -> Result<Self, CommandError> {
        let mut options = Self::default();
        let mut rest = args.iter();
        while let Some(word) = rest.next() {
            let expire = EXPIRES.iter().find(|(name, ..)| is(word, name));
            if let Some(&(name, seconds, relative)) = expire {
                let other = options.expire.is_some_and(|(before, _)| before != name);
                if other || options.keep || options.persist {
                    return Err(CommandError::syntax());
                }
                let number = rest.next().ok_or_else(CommandError::syntax)?;
                let expire = Expire {
                    number,
                    seconds,
                    relative,
                };
                options.expire = Some((name, expire));
            } else if of_set && is(word, "nx") && !options.if_present {
                options.if_absent = true;
            } else if of_set && is(word, "xx") && !options.if_absent {
                options.if_present = true;
            } else if of_set && is(word, "get") {
                options.get = true;
            } else if of_set && is(word, "keepttl") && options.expire.is_none() {
                options.keep = true;
            } else if !of_set && is(word, "persist") && options.expire.is_none() {
                options.persist = true;
            } else {
                return Err(CommandError::syntax());
            }
        }
        Ok(options)
    }
}

/// The record of a string, and its expiry.
pub(crate) type Record = (Vec<u8>, Option<u64>);

/// Returns a copy of a string's record, with room for more bytes.
pub(crate) fn record(
    tx: &mut Tx<'_>,
    key: &[u8],
    room: usize,
) -> Result<Option<Record>, CommandError> {
    tx.string_with(key, |bytes, expires_at| {
        let mut record = Vec::with_capacity(1 + bytes.len() + room);
        record.extend_from_slice(&string_record(&[]));
        record.extend_from_slice(bytes);
        (record, expires_at)
    })
}

fn exists(tx: &mut Tx<'_>, key: &[u8]) -> Result<bool, CommandError> {
    Ok(tx.load_head(key)?.is_some())
}

fn set(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (key, value) = (args[1], args[2]);
    if args.len() == 3 {
        tx.put_string(key, string_record(&[value]), None)?;
        out.status("OK");
        return Ok(());
    }
    let options = Options::parse(&args[3..], true)?;
    let expire = options.expire;
    let mut expires_at = expire.map(|(_, at)| at.at(tx, "set")).transpose()?;
    let before = if options.get {
        tx.string_with(key, |bytes, _| bytes.to_vec())?
    } else {
        None
    };
    let mut done = true;
    if options.if_absent || options.if_present || options.keep {
        let there = tx.load_head(key)?;
        done = if there.is_some() {
            !options.if_absent
        } else {
            !options.if_present
        };
        if options.keep {
            expires_at = there.and_then(|there| there.expires_at);
        }
    }
    if done {
        tx.put_string(key, string_record(&[value]), expires_at)?;
    }
    if options.get {
        out.maybe_bulk(before.as_deref());
    } else if done {
        out.status("OK");
    } else {
        out.null();
    }
    Ok(())
}

fn set_expiring(
    tx: &mut Tx<'_>,
    args: &[Arg<'_>],
    (command, seconds): (&str, bool),
    out: &mut Out<'_>,
) -> Outcome {
    let expire = Expire {
        number: args[2],
        seconds,
        relative: true,
    };
    let at = expire.at(tx, command)?;
    tx.put_string(args[1], string_record(&[args[3]]), Some(at))?;
    out.status("OK");
    Ok(())
}

fn setex(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    set_expiring(tx, args, ("setex", true), out)
}

fn psetex(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    set_expiring(tx, args, ("psetex", false), out)
}

fn setnx(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let there = exists(tx, args[1])?;
    if !there {
        tx.put_string(args[1], string_record(&[args[2]]), None)?;
    }
    out.integer(i64::from(!there));
    Ok(())
}

fn get(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    if tx
        .string_with(args[1], |bytes, _| out.bulk(bytes))?
        .is_none()
    {
        out.null();
    }
    Ok(())
}

fn getset(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    get(tx, args, out)?;
    tx.put_string(args[1], string_record(&[args[2]]), None)
}

fn getdel(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    if tx
        .string_with(args[1], |bytes, _| out.bulk(bytes))?
        .is_none()
    {
        out.null();
        return Ok(());
    }
    tx.delete(Space::Keys(tx.db), args[1])
}

fn getex(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let options = Options::parse(&args[2..], false)?;
    let key = args[1];
    if options.expire.is_none() && !options.persist {
        return get(tx, args, out);
    }
    let replied = tx.string_with(key, |bytes, expires_at| {
        out.bulk(bytes);
        expires_at
    })?;
    let Some(before) = replied else {
        out.null();
        return Ok(());
    };
    let expire = options.expire;
    let expires_at = expire.map(|(_, at)| at.at(tx, "getex")).transpose()?;
    match expires_at {
        Some(at) if at <= tx.now => tx.delete(Space::Keys(tx.db), key),
        None if before.is_none() => Ok(()),
        expires_at => {
            let head = Value::small(Kind::String, Vec::new(), before);
            tx.set_expiry(key, &head, expires_at)
        }
    }
}

fn mget(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    out.array(args.len() - 1);
    for key in &args[1..] {
        match tx.string_with(key, |bytes, _| out.bulk(bytes)) {
            Ok(Some(())) => {}
            // A key of another type counts as absent.
            Ok(None) | Err(CommandError::Reply(_)) => out.null(),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn put_pairs(tx: &mut Tx<'_>, args: &[Arg<'_>]) -> Outcome {
    for pair in args[1..].chunks_exact(2) {
        tx.put_string(pair[0], string_record(&[pair[1]]), None)?;
    }
    Ok(())
}

fn even(args: &[Arg<'_>], command: &str) -> Outcome {
    if args.len() % 2 == 1 {
        return Ok(());
    }
    Err(CommandError::arity(command))
}

fn mset(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    even(args, "mset")?;
    put_pairs(tx, args)?;
    out.status("OK");
    Ok(())
}

fn msetnx(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    even(args, "msetnx")?;
    for pair in args[1..].chunks_exact(2) {
        if exists(tx, pair[0])? {
            out.integer(0);
            return Ok(());
        }
    }
    put_pairs(tx, args)?;
    out.integer(1);
    Ok(())
}

/// Refuses a string that would become too long.
pub(crate) fn check_length(len: usize, more: usize) -> Outcome {
    match len.checked_add(more) {
        Some(len) if len <= MAX_STRING => Ok(()),
        _ => Err(CommandError::too_long()),
    }
}

fn append(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (key, more) = (args[1], args[2]);
    let found = record(tx, key, more.len())?;
    let (mut record, expires_at) = found.unwrap_or_else(|| (string_record(&[]), None));
    check_length(record.len() - 1, more.len())?;
    record.extend_from_slice(more);
    out.integer((record.len() - 1) as i64);
    tx.put(Space::Keys(tx.db), key, record, expires_at)
}

fn strlen(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let len = tx.short_string_with(args[1], |bytes| bytes.len() as u64)?;
    out.integer(len.map_or(0, |len| len.unwrap_or_else(|len| len)) as i64);
    Ok(())
}

/// Returns which of `len` bytes are from `start` to `end`, both included. Negative numbers count
/// from the end.
fn part(len: u64, start: i64, end: i64) -> Range<u64> {
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    // No string is longer than that.
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let from = |at: i64| if at < 0 { (len + at).max(0) } else { at };
    let start = from(start.max(-len - 1));
    let end = from(end.max(-len - 1)).min(len - 1);
    if start > end {
        return 0..0;
    }
    // Neither is negative.
    start as u64..end as u64 + 1
}

fn getrange(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (start, end) = (integer(args[2])?, integer(args[3])?);
    let found = tx.string_part(args[1], |len| part(len, start, end), |part| out.bulk(part))?;
    if found.is_none() {
        out.bulk(b"");
    }
    Ok(())
}

fn setrange(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (key, part) = (args[1], args[3]);
    let offset = usize::try_from(integer(args[2])?)
        .map_err(|_| CommandError::reply("ERR offset is out of range"))?;
    let found = record(tx, key, 0)?;
    if part.is_empty() {
        out.integer(found.map_or(0, |(record, _)| record.len() as i64 - 1));
        return Ok(());
    }
    check_length(offset, part.len())?;
    tx.work(offset)?;
    let (mut record, expires_at) = found.unwrap_or_else(|| (string_record(&[]), None));
    let end = 1 + offset + part.len();
    if record.len() < end {
        record.resize(end, 0);
    }
    record[1 + offset..end].copy_from_slice(part);
    out.integer((record.len() - 1) as i64);
    tx.put(Space::Keys(tx.db), key, record, expires_at)
}

fn add(tx: &mut Tx<'_>, key: &[u8], by: i64, out: &mut Out<'_>) -> Outcome {
    let found = tx.string_with(key, |bytes, expires_at| {
        integer(bytes).map(|number| (number, expires_at))
    })?;
    let (number, expires_at) = found.transpose()?.unwrap_or((0, None));
    let sum = number
        .checked_add(by)
        .ok_or_else(|| CommandError::reply("ERR increment or decrement would overflow"))?;
    let record = string_record(&[sum.to_string().as_bytes()]);
    out.integer(sum);
    tx.put(Space::Keys(tx.db), key, record, expires_at)
}

fn incr(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    add(tx, args[1], 1, out)
}

fn decr(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    add(tx, args[1], -1, out)
}

fn incrby(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    add(tx, args[1], integer(args[2])?, out)
}

fn decrby(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let by = integer(args[2])?
        .checked_neg()
        .ok_or_else(|| CommandError::reply("ERR decrement would overflow"))?;
    add(tx, args[1], by, out)
}

fn incrbyfloat(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let number = |text: &[u8]| LongDouble::parse(text).ok_or_else(CommandError::not_a_float);
    let found = tx.string_with(args[1], |bytes, expires_at| {
        number(bytes).map(|number| (number, expires_at))
    })?;
    let (before, expires_at) = found.transpose()?.unwrap_or_default();
    let sum = before
        .plus(&number(args[2])?)
        .ok_or_else(|| CommandError::reply("ERR increment would produce NaN or Infinity"))?;
    let text = sum.to_string();
    out.bulk(text.as_bytes());
    let record = string_record(&[text.as_bytes()]);
    tx.put(Space::Keys(tx.db), args[1], record, expires_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_strings_are_cut_at_their_ends() {
        let of = |start, end| {
            let part = part(5, start, end);
            &b"hello"[part.start as usize..part.end as usize]
        };
        assert_eq!(of(0, -1), b"hello");
        assert_eq!(of(1, 2), b"el");
        assert_eq!(of(-3, -2), b"ll");
        assert_eq!(of(-100, 0), b"h");
        assert_eq!(of(i64::MIN, i64::MAX), b"hello");
        assert_eq!(of(3, 1), b"");
        assert_eq!(of(5, 9), b"");
        assert_eq!(of(-1, -2), b"");
        assert_eq!(
            of(-100, -90),
            b"h",
            "both are taken to the beginning, as Redis does"
        );
        assert_eq!(part(0, 0, -1), 0..0);
    }
}
