//! Commands on hashes.

use crate::command::{Access, Command, DataFn, ONE};
use crate::commands::arguments::{random_fields, random_options, scan_fields};
use crate::commands::replies::pair;
use crate::data::fields::{Fields, Pair};
use crate::data::record::Kind;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::long_double::LongDouble;
use crate::parse::{Arg, integer, is};
use crate::reply::Out;
use std::ops::ControlFlow;

const fn reads(name: &'static str, arity: i32, run: DataFn) -> Command {
    Command::new(name, arity, Access::ReadOne, ONE, &["hash"], run)
}

const fn writes(name: &'static str, arity: i32, run: DataFn) -> Command {
    Command::new(name, arity, Access::Write, ONE, &["hash"], run)
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    writes("hset", -4, hset),
    writes("hmset", -4, hset),
    writes("hsetnx", 4, hsetnx),
    reads("hget", 3, hget),
    reads("hmget", -3, hmget),
    reads("hgetall", 2, hgetall),
    writes("hdel", -3, hdel),
    reads("hlen", 2, hlen),
    reads("hexists", 3, hexists),
    reads("hkeys", 2, hkeys),
    reads("hvals", 2, hvals),
    writes("hincrby", 4, hincrby),
    writes("hincrbyfloat", 4, hincrbyfloat),
    reads("hstrlen", 3, hstrlen),
    reads("hrandfield", -2, hrandfield),
    reads("hscan", -3, hscan),
];

fn load(tx: &mut Tx<'_>, key: Arg<'_>) -> Result<Fields, CommandError> {
    Fields::load(tx, key, Kind::Hash)
}

fn hset(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let multiple = is(args[0], "hmset");
    let (pairs, rest) = args[2..].as_chunks::<2>();
    if !rest.is_empty() {
        return Err(CommandError::arity(if multiple { "hmset" } else { "hset" }));
    }
    let mut hash = load(tx, args[1])?;
    let mut new = 0;
    for [field, value] in pairs {
        new += i64::from(hash.put(tx, field, value)?);
    }
    if multiple {
        out.status("OK");
    } else {
        out.integer(new);
    }
    hash.save(tx, args[1])
}

fn hsetnx(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut hash = load(tx, args[1])?;
    let new = !hash.contains(tx, args[2])?;
    if new {
        hash.put(tx, args[2], args[3])?;
    }
    out.integer(i64::from(new));
    hash.save(tx, args[1])
}

fn hget(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let value = load(tx, args[1])?.get(tx, args[2])?;
    out.maybe_bulk(value.as_deref());
    Ok(())
}

fn hmget(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let hash = load(tx, args[1])?;
    out.array(args.len() - 2);
    for field in &args[2..] {
        out.maybe_bulk(hash.get(tx, field)?.as_deref());
    }
    Ok(())
}

fn hgetall(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let hash = load(tx, args[1])?;
    out.map(hash.len() as usize);
    hash.visit(tx, |field, value| {
        out.bulk(field);
        out.bulk(value);
        ControlFlow::Continue(())
    })
}

fn hkeys(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let hash = load(tx, args[1])?;
    out.array(hash.len() as usize);
    hash.visit(tx, |field, _| {
        out.bulk(field);
        ControlFlow::Continue(())
    })
}

fn hvals(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let hash = load(tx, args[1])?;
    out.array(hash.len() as usize);
    hash.visit(tx, |_, value| {
        out.bulk(value);
        ControlFlow::Continue(())
    })
}

fn hdel(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut hash = load(tx, args[1])?;
    let mut gone = 0;
    for field in &args[2..] {
        gone += i64::from(hash.remove(tx, field)?);
    }
    out.integer(gone);
    hash.save(tx, args[1])
}

fn hlen(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    out.integer(load(tx, args[1])?.len() as i64);
    Ok(())
}

fn hexists(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let found = load(tx, args[1])?.contains(tx, args[2])?;
    out.integer(i64::from(found));
    Ok(())
}

fn hstrlen(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let value = load(tx, args[1])?.get(tx, args[2])?;
    out.integer(value.map_or(0, |value| value.len() as i64));
    Ok(())
}

fn hincrby(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let by = integer(args[3])?;
    let mut hash = load(tx, args[1])?;
    let before = match hash.get(tx, args[2])? {
        Some(text) => {
            integer(&text).map_err(|_| CommandError::reply("ERR hash value is not an integer"))?
        }
        None => 0,
    };
    let sum = before
        .checked_add(by)
        .ok_or_else(|| CommandError::reply("ERR increment or decrement would overflow"))?;
    hash.put(tx, args[2], sum.to_string().as_bytes())?;
    out.integer(sum);
    hash.save(tx, args[1])
}

fn hincrbyfloat(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let by = LongDouble::parse(args[3]).ok_or_else(CommandError::not_a_float)?;
    if LongDouble::default().plus(&by).is_none() {
        return Err(CommandError::reply("ERR value is NaN or Infinity"));
    }
    let mut hash = load(tx, args[1])?;
    let before = match hash.get(tx, args[2])? {
        Some(text) => LongDouble::parse(&text)
            .ok_or_else(|| CommandError::reply("ERR hash value is not a float"))?,
        None => LongDouble::default(),
    };
    let sum = before
        .plus(&by)
        .ok_or_else(|| CommandError::reply("ERR increment would produce NaN or Infinity"))?;
    let text = sum.to_string();
    hash.put(tx, args[2], text.as_bytes())?;
    out.bulk(text.as_bytes());
    hash.save(tx, args[1])
}

fn hrandfield(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let Some((count, with_values)) = random_options(&args[2..], "withvalues")? else {
        let one = load(tx, args[1])?.random(tx)?;
        out.maybe_bulk(one.as_ref().map(|(field, _)| &field[..]));
        return Ok(());
    };
    let hash = load(tx, args[1])?;
    let reply = |out: &mut Out<'_>, (field, value): &Pair| {
        if with_values {
            pair(out);
        }
        out.bulk(field);
        if with_values {
            out.bulk(value);
        }
    };
    random_fields(tx, &hash, (count, with_values), out, reply)
}

fn hscan(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    scan_fields(tx, args, out, Kind::Hash)
}
