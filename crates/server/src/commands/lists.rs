//! Commands on lists.

use crate::command::{Access, COUNTED, Command, DataFn, Keys, ONE, TWO};
use crate::commands::arguments::{at_least, count, number_of_keys, part, pop_count};
use crate::data::list::{End, List};
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, integer, is};
use crate::reply::Out;
use std::ops::ControlFlow;

const fn reads(name: &'static str, arity: i32, run: DataFn) -> Command {
    Command::new(name, arity, Access::ReadOne, ONE, &["list"], run)
}

const fn writes(name: &'static str, arity: i32, keys: Keys, run: DataFn) -> Command {
    Command::new(name, arity, Access::Write, keys, &["list"], run)
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    writes("lpush", -3, ONE, lpush),
    writes("rpush", -3, ONE, rpush),
    writes("lpushx", -3, ONE, lpushx),
    writes("rpushx", -3, ONE, rpushx),
    writes("lpop", -2, ONE, lpop),
    writes("rpop", -2, ONE, rpop),
    reads("llen", 2, llen),
    reads("lrange", 4, lrange),
    reads("lindex", 3, lindex),
    writes("lset", 4, ONE, lset),
    writes("linsert", 5, ONE, linsert),
    writes("lrem", 4, ONE, lrem),
    writes("ltrim", 4, ONE, ltrim),
    reads("lpos", -3, lpos),
    writes("lmove", 5, TWO, lmove),
    writes("rpoplpush", 3, TWO, rpoplpush),
    writes("lmpop", -4, COUNTED, lmpop),
];

fn push(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>, end: End, there: bool) -> Outcome {
    let mut list = List::load(tx, args[1])?;
    if !there || !list.is_empty() {
        for item in &args[2..] {
            list.push(tx, end, item)?;
        }
    }
    out.integer(list.len() as i64);
    list.save(tx, args[1])
}

fn lpush(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    push(tx, args, out, End::Left, false)
}

fn rpush(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    push(tx, args, out, End::Right, false)
}

fn lpushx(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    push(tx, args, out, End::Left, true)
}

fn rpushx(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    push(tx, args, out, End::Right, true)
}

/// Pops an element, and replies with the key and the element. Returns false if the key does not
/// exist.
pub(crate) fn pop_named(
    tx: &mut Tx<'_>,
    key: Arg<'_>,
    end: End,
    out: &mut Out<'_>,
) -> Result<bool, CommandError> {
    let mut list = List::load(tx, key)?;
    let Some(item) = list.pop(tx, end, 1)?.pop() else {
        return Ok(false);
    };
    out.array(2);
    out.bulk(key);
    out.bulk(&item);
    list.save(tx, key)?;
    Ok(true)
}

/// Pops up to `count` elements, and replies with the key and an array of them. Returns false if the
/// key does not exist.
pub(crate) fn pop_several(
    tx: &mut Tx<'_>,
    key: Arg<'_>,
    end: End,
    count: u64,
    out: &mut Out<'_>,
) -> Result<bool, CommandError> {
    let mut list = List::load(tx, key)?;
    if list.is_empty() {
        return Ok(false);
    }
    let popped = list.pop(tx, end, count)?;
    out.array(2);
    out.bulk(key);
    items(out, &popped);
    list.save(tx, key)?;
    Ok(true)
}

fn items(out: &mut Out<'_>, items: &[Vec<u8>]) {
    out.array(items.len());
    items.iter().for_each(|item| out.bulk(item));
}

fn pop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>, end: End, name: &str) -> Outcome {
    let wanted = match &args[2..] {
        [] => None,
        [wanted] => Some(count(wanted)?),
        _ => return Err(CommandError::arity(name)),
    };
    let mut list = List::load(tx, args[1])?;
    if list.is_empty() {
        match wanted {
            Some(_) => out.null_array(),
            None => out.null(),
        }
        return Ok(());
    }
    let popped = list.pop(tx, end, wanted.unwrap_or(1))?;
    match wanted {
        Some(_) => items(out, &popped),
        None => out.maybe_bulk(popped.first().map(|item| &item[..])),
    }
    list.save(tx, args[1])
}

fn lpop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    pop(tx, args, out, End::Left, "lpop")
}

fn rpop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    pop(tx, args, out, End::Right, "rpop")
}

fn llen(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    out.integer(List::load(tx, args[1])?.len() as i64);
    Ok(())
}

fn lrange(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (start, stop) = (integer(args[2])?, integer(args[3])?);
    let list = List::load(tx, args[1])?;
    let (start, count) = part(start, stop, list.len());
    out.array(count as usize);
    if count == 0 {
        return Ok(());
    }
    list.visit(tx, End::Left, start, |index, item| {
        out.bulk(item);
        if index + 1 == start + count {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })
}

fn lindex(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let list = List::load(tx, args[1])?;
    if list.is_empty() {
        out.null();
        return Ok(());
    }
    let item = match list.index(integer(args[2])?) {
        Some(index) => list.get(tx, index)?,
        None => None,
    };
    out.maybe_bulk(item.as_deref());
    Ok(())
}

fn lset(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut list = List::load(tx, args[1])?;
    if list.is_empty() {
        return Err(CommandError::reply("ERR no such key"));
    }
    let index = list
        .index(integer(args[2])?)
        .ok_or_else(|| CommandError::reply("ERR index out of range"))?;
    list.set(tx, index, args[3])?;
    out.status("OK");
    list.save(tx, args[1])
}

/// Returns the index of the first element equal to `item`.
fn find(tx: &mut Tx<'_>, list: &List, item: &[u8]) -> Result<Option<u64>, CommandError> {
    let mut found = None;
    list.visit(tx, End::Left, 0, |index, other| {
        if other == item {
            found = Some(index);
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    Ok(found)
}

fn linsert(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let after = match () {
        () if is(args[2], "after") => 1,
        () if is(args[2], "before") => 0,
        () => return Err(CommandError::syntax()),
    };
    let mut list = List::load(tx, args[1])?;
    match find(tx, &list, args[3])? {
        _ if list.is_empty() => out.integer(0),
        None => out.integer(-1),
        Some(index) => {
            list.insert(tx, index + after, args[4])?;
            out.integer(list.len() as i64);
        }
    }
    list.save(tx, args[1])
}

fn lrem(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let count = integer(args[2])?;
    let mut list = List::load(tx, args[1])?;
    let from = if count < 0 { End::Right } else { End::Left };
    let most = match count.unsigned_abs() {
        0 => u64::MAX,
        most => most,
    };
    let mut found = Vec::new();
    list.visit(tx, from, 0, |index, item| {
        if item == args[3] {
            found.push(index);
        }
        if found.len() as u64 == most {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    found.sort_unstable();
    list.remove(tx, &found)?;
    out.integer(found.len() as i64);
    list.save(tx, args[1])
}

fn ltrim(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (start, stop) = (integer(args[2])?, integer(args[3])?);
    let mut list = List::load(tx, args[1])?;
    let (start, count) = part(start, stop, list.len());
    list.keep(tx, start, count)?;
    out.status("OK");
    if !list.is_empty() {
        // As in Redis, who watches the key is told even if nothing is removed.
        tx.touch(args[1]);
    }
    list.save(tx, args[1])
}

fn lpos(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (mut rank, mut wanted, mut compared) = (1, None, 0);
    let mut options = &args[3..];
    while let [word, rest @ ..] = options {
        options = match rest {
            [value, rest @ ..] if is(word, "rank") => {
                rank = integer(value)?;
                if rank == 0 {
                    return Err(CommandError::reply(
                        "ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list",
                    ));
                }
                rest
            }
            [value, rest @ ..] if is(word, "count") => {
                wanted = Some(at_least(value, 0, "ERR COUNT can't be negative")?);
                rest
            }
            [value, rest @ ..] if is(word, "maxlen") => {
                compared = at_least(value, 0, "ERR MAXLEN can't be negative")?;
                rest
            }
            _ => return Err(CommandError::syntax()),
        };
    }
    let list = List::load(tx, args[1])?;
    let from = if rank < 0 { End::Right } else { End::Left };
    let most = match wanted {
        Some(0) => u64::MAX,
        wanted => wanted.unwrap_or(1),
    };
    let mut left = if compared == 0 { u64::MAX } else { compared };
    // The lowest integer has no absolute value; Redis takes it as the first match.
    let mut skip = rank.checked_abs().map_or(0, |rank| rank.unsigned_abs() - 1);
    let mut found = Vec::new();
    list.visit(tx, from, 0, |index, item| {
        if item == args[2] {
            if skip > 0 {
                skip -= 1;
            } else {
                found.push(index as i64);
            }
        }
        left -= 1;
        if left == 0 || found.len() as u64 == most {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    if wanted.is_some() {
        out.array(found.len());
        found.iter().for_each(|index| out.integer(*index));
    } else {
        match found.first() {
            Some(index) => out.integer(*index),
            None => out.null(),
        }
    }
    Ok(())
}

/// Parses the name of an end.
pub(crate) fn end(word: Arg<'_>) -> Result<End, CommandError> {
    match () {
        () if is(word, "left") => Ok(End::Left),
        () if is(word, "right") => Ok(End::Right),
        () => Err(CommandError::syntax()),
    }
}

/// Moves an element from an end of a list to an end of another, or of the same, and replies with
/// it. Returns false, without a reply, if the key does not exist.
pub(crate) fn moved(
    tx: &mut Tx<'_>,
    (from, to): (Arg<'_>, Arg<'_>),
    (out_of, into): (End, End),
    out: &mut Out<'_>,
) -> Result<bool, CommandError> {
    let mut list = List::load(tx, from)?;
    if list.is_empty() {
        return Ok(false);
    }
    if from == to {
        let popped = list.pop(tx, out_of, 1)?;
        for item in &popped {
            list.push(tx, into, item)?;
            out.bulk(item);
        }
        list.save(tx, from)?;
        return Ok(true);
    }
    let mut other = List::load(tx, to)?;
    for item in list.pop(tx, out_of, 1)? {
        other.push(tx, into, &item)?;
        out.bulk(&item);
    }
    list.save(tx, from)?;
    other.save(tx, to)?;
    Ok(true)
}

fn lmove(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let ends = (end(args[3])?, end(args[4])?);
    if !moved(tx, (args[1], args[2]), ends, out)? {
        out.null();
    }
    Ok(())
}

fn rpoplpush(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    if !moved(tx, (args[1], args[2]), (End::Right, End::Left), out)? {
        out.null();
    }
    Ok(())
}

fn lmpop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let keys = number_of_keys(args[1])?;
    let Some((keys, [place, options @ ..])) = args[2..].split_at_checked(keys) else {
        return Err(CommandError::syntax());
    };
    let end = end(place)?;
    let wanted = pop_count(options)?;
    for key in keys {
        if pop_several(tx, key, end, wanted, out)? {
            return Ok(());
        }
    }
    out.null_array();
    Ok(())
}
