//! Commands on sets.

use crate::command::{ALL, Access, COUNTED, Command, DataFn, Keys, ONE, TWO};
use crate::commands::arguments::{
    at_least, count, number_of_keys, random_count, random_fields, scan_fields,
};
use crate::data::fields::Fields;
use crate::data::record::Kind;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, is};
use crate::reply::Out;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

const fn one(name: &'static str, arity: i32, run: DataFn) -> Command {
    Command::new(name, arity, Access::ReadOne, ONE, &["set"], run)
}

const fn reads(name: &'static str, arity: i32, keys: Keys, run: DataFn) -> Command {
    Command::new(name, arity, Access::Read, keys, &["set"], run)
}

const fn writes(name: &'static str, arity: i32, keys: Keys, run: DataFn) -> Command {
    Command::new(name, arity, Access::Write, keys, &["set"], run)
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    writes("sadd", -3, ONE, sadd),
    writes("srem", -3, ONE, srem),
    one("smembers", 2, smembers),
    one("sismember", 3, sismember),
    one("smismember", -3, smismember),
    one("scard", 2, scard),
    writes("spop", -2, ONE, spop),
    one("srandmember", -2, srandmember),
    writes("smove", 4, TWO, smove),
    reads("sinter", -2, ALL, sinter),
    reads("sunion", -2, ALL, sunion),
    reads("sdiff", -2, ALL, sdiff),
    writes("sinterstore", -3, ALL, sinterstore),
    writes("sunionstore", -3, ALL, sunionstore),
    writes("sdiffstore", -3, ALL, sdiffstore),
    reads("sintercard", -3, COUNTED, sintercard),
    one("sscan", -3, sscan),
];

fn load(tx: &mut Tx<'_>, key: Arg<'_>) -> Result<Fields, CommandError> {
    Fields::load(tx, key, Kind::Set)
}

fn sadd(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut set = load(tx, args[1])?;
    let mut new = 0;
    for member in &args[2..] {
        new += i64::from(set.put(tx, member, &[])?);
    }
    out.integer(new);
    set.save(tx, args[1])
}

fn srem(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut set = load(tx, args[1])?;
    let mut gone = 0;
    for member in &args[2..] {
        gone += i64::from(set.remove(tx, member)?);
    }
    out.integer(gone);
    set.save(tx, args[1])
}

fn smembers(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let set = load(tx, args[1])?;
    out.set(set.len() as usize);
    set.visit(tx, |member, _| {
        out.bulk(member);
        ControlFlow::Continue(())
    })
}

fn sismember(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let found = load(tx, args[1])?.contains(tx, args[2])?;
    out.integer(i64::from(found));
    Ok(())
}

fn smismember(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let set = load(tx, args[1])?;
    out.array(args.len() - 2);
    for member in &args[2..] {
        out.integer(i64::from(set.contains(tx, member)?));
    }
    Ok(())
}

fn scard(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    out.integer(load(tx, args[1])?.len() as i64);
    Ok(())
}

fn spop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let wanted = match &args[2..] {
        [] => None,
        [wanted] => Some(count(wanted)?),
        _ => return Err(CommandError::syntax()),
    };
    let mut set = load(tx, args[1])?;
    let found = match wanted {
        Some(0) => Vec::new(),
        Some(wanted) => set.sample(tx, wanted)?,
        None => set.random(tx)?.into_iter().collect(),
    };
    if wanted.is_some() {
        out.set(found.len());
        found.iter().for_each(|(member, _)| out.bulk(member));
    } else {
        out.maybe_bulk(found.first().map(|(member, _)| &member[..]));
    }
    if found.len() as u64 == set.len() && !found.is_empty() {
        set.clear();
    } else {
        for (member, _) in &found {
            set.remove(tx, member)?;
        }
    }
    set.save(tx, args[1])
}

fn srandmember(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let wanted = match &args[2..] {
        [] => {
            let one = load(tx, args[1])?.random(tx)?;
            out.maybe_bulk(one.as_ref().map(|(member, _)| &member[..]));
            return Ok(());
        }
        [wanted] => random_count(wanted, false)?,
        _ => return Err(CommandError::syntax()),
    };
    let set = load(tx, args[1])?;
    random_fields(tx, &set, (wanted, false), out, |out, (member, _)| {
        out.bulk(member);
    })
}

fn smove(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    if tx.load_head(args[1])?.is_none() {
        out.integer(0);
        return Ok(());
    }
    let mut from = load(tx, args[1])?;
    let mut to = load(tx, args[2])?;
    if args[1] == args[2] {
        out.integer(i64::from(from.contains(tx, args[3])?));
        return Ok(());
    }
    let moved = from.remove(tx, args[3])?;
    if moved {
        to.put(tx, args[3], &[])?;
    }
    out.integer(i64::from(moved));
    from.save(tx, args[1])?;
    to.save(tx, args[2])
}

/// The operation on several sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Inter,
    Union,
    Diff,
}

/// Returns the members of all sets, of any, or of the first and of none of the others; at most
/// `most`.
fn combined(
    tx: &mut Tx<'_>,
    keys: &[Arg<'_>],
    of: Operation,
    most: usize,
) -> Result<BTreeSet<Vec<u8>>, CommandError> {
    let mut sets = Vec::new();
    for key in keys {
        let set = load(tx, key)?;
        // The same key may be given very often.
        let _ = tx.scratch.add_bytes(set.held());
        tx.scratch.check()?;
        sets.push(set);
    }
    if of == Operation::Inter {
        // The smallest is read whole.
        sets.sort_by_key(Fields::len);
    }
    let mut members = BTreeSet::new();
    if of == Operation::Union {
        tx.counting(|tx, scratch| {
            sets.iter().try_for_each(|set| {
                set.visit(tx, |member, _| {
                    if !members.contains(member) {
                        scratch.add(member)?;
                        members.insert(member.to_vec());
                    }
                    ControlFlow::Continue(())
                })
            })
        })?;
        return Ok(members);
    }
    let Some((first, others)) = sets.split_first() else {
        return Ok(members);
    };
    let wanted = of == Operation::Inter;
    'members: for (member, _) in first.all(tx)? {
        if members.len() >= most {
            break;
        }
        for other in others {
            if other.contains(tx, &member)? != wanted {
                continue 'members;
            }
        }
        members.insert(member);
    }
    Ok(members)
}

fn reply(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>, of: Operation) -> Outcome {
    let members = combined(tx, &args[1..], of, usize::MAX)?;
    out.set(members.len());
    members.iter().for_each(|member| out.bulk(member));
    Ok(())
}

fn store(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>, of: Operation) -> Outcome {
    let members = combined(tx, &args[2..], of, usize::MAX)?;
    out.integer(members.len() as i64);
    let before = tx.load_head(args[1])?;
    let mut set = Fields::in_place_of(Kind::Set, before);
    for member in &members {
        set.put(tx, member, &[])?;
    }
    set.save(tx, args[1])
}

fn sinter(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    reply(tx, args, out, Operation::Inter)
}

fn sunion(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    reply(tx, args, out, Operation::Union)
}

fn sdiff(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    reply(tx, args, out, Operation::Diff)
}

fn sinterstore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    store(tx, args, out, Operation::Inter)
}

fn sunionstore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    store(tx, args, out, Operation::Union)
}

fn sdiffstore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    store(tx, args, out, Operation::Diff)
}

fn sintercard(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let keys = number_of_keys(args[1])?;
    if keys > args.len() - 2 {
        return Err(CommandError::reply(
            "ERR Number of keys can't be greater than number of args",
        ));
    }
    let (keys, mut options) = args[2..].split_at(keys);
    let mut most = 0;
    while !options.is_empty() {
        match options {
            [word, limit, rest @ ..] if is(word, "limit") => {
                most = at_least(limit, 0, "ERR LIMIT can't be negative")?;
                options = rest;
            }
            _ => return Err(CommandError::syntax()),
        }
    }
    let most = match usize::try_from(most) {
        Ok(0) | Err(_) => usize::MAX,
        Ok(most) => most,
    };
    let members = combined(tx, keys, Operation::Inter, most)?;
    out.integer(members.len() as i64);
    Ok(())
}

fn sscan(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    scan_fields(tx, args, out, Kind::Set)
}
