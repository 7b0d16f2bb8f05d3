//! Commands on keys of any kind.

use super::value::{Kind, Value};
use super::{DATABASES, Space, Tx};
use crate::command::{ALL, Access, Arg, Command, Failed, Keys, ONE, Outcome, Run, integer, is};
use crate::reply::Out;
use std::ops::{Bound, ControlFlow};

const TWO: Keys = Keys::Range {
    first: 1,
    last: 2,
    step: 1,
};
const SECOND: Keys = Keys::Range {
    first: 2,
    last: 2,
    step: 1,
};

const fn command(name: &'static str, arity: i32, access: Access, keys: Keys, run: Run) -> Command {
    Command {
        name,
        arity,
        access,
        keys,
        group: "keyspace",
        run,
    }
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    command("copy", -3, Access::Write, TWO, copy),
    command("dbsize", 1, Access::ReadOne, Keys::None, dbsize),
    command("del", -2, Access::Write, ALL, del),
    command("exists", -2, Access::Read, ALL, exists),
    command("flushall", -1, Access::WriteAll, Keys::None, flushall),
    command("flushdb", -1, Access::WriteAll, Keys::None, flushdb),
    command("move", 3, Access::Write, ONE, move_),
    command("object", -2, Access::ReadOne, SECOND, object),
    command("rename", 3, Access::Write, TWO, rename),
    command("renamenx", 3, Access::Write, TWO, renamenx),
    command("touch", -2, Access::Read, ALL, exists),
    command("type", 2, Access::ReadOne, ONE, type_),
    command("unlink", -2, Access::Write, ALL, del),
];

/// Keys that a flush takes away in one commit.
const FLUSHED_AT_ONCE: usize = 4096;

fn del(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let db = tx.db;
    let mut gone = 0;
    for key in &args[1..] {
        if let Some(head) = tx.load_head_from(db, key)? {
            tx.erase(key, &head)?;
            gone += 1;
        }
    }
    out.integer(gone);
    Ok(())
}

fn exists(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let db = tx.db;
    let mut there = 0;
    for key in &args[1..] {
        there += i64::from(tx.load_head_from(db, key)?.is_some());
    }
    out.integer(there);
    Ok(())
}

fn type_(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let db = tx.db;
    let head = tx.load_head_from(db, args[1])?;
    out.status(head.map_or("none", |head| head.kind.name()));
    Ok(())
}

/// Moves `value` from one place to another, where `there` is; with its id, if it has one, so that its elements stay where they are.
fn relocate(
    tx: &mut Tx<'_>,
    from: (usize, &[u8]),
    to: (usize, &[u8]),
    value: &Value,
    there: Option<&Value>,
) -> Outcome {
    tx.forget(from.0, from.1, value)?;
    tx.save_to(to.0, to.1, there, value)
}

/// Both renamings; true if it was done.
fn renamed(tx: &mut Tx<'_>, args: &[Arg<'_>], over: bool) -> Result<bool, Failed> {
    let (db, from, to) = (tx.db, args[1], args[2]);
    let head = tx.load_head_from(db, from)?;
    if head.is_none() {
        return Err(Failed::reply("ERR no such key"));
    }
    if from == to {
        return Ok(over);
    }
    let there = tx.load_head_from(db, to)?;
    if there.is_some() && !over {
        return Ok(false);
    }
    if let Some(value) = tx.load(from)? {
        relocate(tx, (db, from), (db, to), &value, there.as_ref())?;
    }
    Ok(true)
}

fn rename(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    renamed(tx, args, true)?;
    out.status("OK");
    Ok(())
}

fn renamenx(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let done = renamed(tx, args, false)?;
    out.integer(done.into());
    Ok(())
}

/// A database's number.
fn database(text: Arg<'_>) -> Result<usize, Failed> {
    let number = integer(text)?;
    let (least, most) = (i32::MIN, i32::MAX);
    let number = i32::try_from(number).map_err(|_| {
        Failed::reply(format!(
            "ERR value is out of range, value must between {least} and {most}"
        ))
    })?;
    usize::try_from(number)
        .ok()
        .filter(|number| *number < DATABASES)
        .ok_or_else(|| Failed::reply("ERR DB index is out of range"))
}

fn same_object() -> Failed {
    Failed::reply("ERR source and destination objects are the same")
}

/// The locks are those of a key's name in all databases.
fn move_(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (from, key, to) = (tx.db, args[1], database(args[2])?);
    if from == to {
        return Err(same_object());
    }
    let there = tx.load_head_from(to, key)?.is_some();
    let value = tx.load(key)?.filter(|_| !there);
    if let Some(value) = &value {
        relocate(tx, (from, key), (to, key), value, None)?;
    }
    out.integer(value.is_some().into());
    Ok(())
}

fn copy(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (from, to, db) = (args[1], args[2], tx.db);
    let (mut other, mut replace) = (db, false);
    let mut rest = args[3..].iter();
    while let Some(word) = rest.next() {
        if is(word, "replace") {
            replace = true;
        } else if is(word, "db")
            && let Some(number) = rest.next()
        {
            other = database(number)?;
        } else {
            return Err(Failed::syntax());
        }
    }
    if other == db && from == to {
        return Err(same_object());
    }
    let there = tx.load_head_from(other, to)?;
    let value = tx.load(from)?.filter(|_| there.is_none() || replace);
    out.integer(value.is_some().into());
    let Some(mut value) = value else {
        return Ok(());
    };
    if let Some(id) = value.id {
        let copy = tx.data().new_id();
        value.id = Some(copy);
        copy_elements(tx, id, copy)?;
    }
    tx.save_to(other, to, there.as_ref(), &value)
}

/// Puts the elements of one id under another one.
fn copy_elements(tx: &mut Tx<'_>, from: u64, to: u64) -> Outcome {
    let mut elements = Vec::new();
    tx.prefix(Space::Elements, &from.to_be_bytes(), |key, entry| {
        if let Some((_, key)) = key.split_first_chunk::<8>() {
            let key = [&to.to_be_bytes(), key].concat();
            elements.push((key, entry.value.to_vec(), entry.expires_at));
        }
        ControlFlow::Continue(())
    })?;
    for (key, value, expires_at) in elements {
        tx.put(Space::Elements, &key, value, expires_at)?;
    }
    Ok(())
}

fn dbsize(tx: &mut Tx<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let db = tx.db;
    let len = if tx.changed() {
        let mut keys = 0;
        let all = (Bound::Unbounded, Bound::Unbounded);
        tx.scan(Space::Keys(db), all, |_, _| {
            keys += 1;
            ControlFlow::Continue(())
        })?;
        keys
    } else {
        tx.data().len(db)
    };
    out.integer(len as i64);
    Ok(())
}

/// Takes the keys of a database away: some at a time, each in a commit of their own, unless it is part of an `EXEC`.
fn flush(tx: &mut Tx<'_>, db: usize) -> Outcome {
    if tx.queued {
        return flush_some(tx, db, usize::MAX).map(drop);
    }
    // What may write all keys has all locks: so do these.
    loop {
        let mut some = tx.data().begin(db);
        let more = flush_some(&mut some, db, FLUSHED_AT_ONCE)?;
        some.commit()?;
        if !more {
            return Ok(());
        }
    }
}

/// Takes up to `most` keys away; true if there may be more.
fn flush_some(tx: &mut Tx<'_>, db: usize, most: usize) -> Result<bool, Failed> {
    let mut keys: Vec<(Vec<u8>, Result<Value, Failed>)> = Vec::new();
    let all = (Bound::Unbounded, Bound::Unbounded);
    tx.scan(Space::Keys(db), all, |key, entry| {
        keys.push((key.to_vec(), Value::head(&entry)));
        if keys.len() < most {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    let more = keys.len() == most;
    for (key, head) in keys {
        tx.erase_from(db, &key, &head?)?;
    }
    Ok(more)
}

/// How a flush is done is ours to say; the word has to be one.
fn check_how(args: &[Arg<'_>]) -> Outcome {
    match args {
        [_] => Ok(()),
        [_, how] if is(how, "sync") || is(how, "async") => Ok(()),
        _ => Err(Failed::syntax()),
    }
}

fn flushdb(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    check_how(args)?;
    let db = tx.db;
    flush(tx, db)?;
    out.status("OK");
    Ok(())
}

fn flushall(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    check_how(args)?;
    for db in 0..DATABASES {
        flush(tx, db)?;
    }
    out.status("OK");
    Ok(())
}

const HELP: [&str; 11] = [
    "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ENCODING <key>",
    "    Return what Redis would name the representation of the value under <key>.",
    "FREQ <key>",
    "    Return an error: how often keys are used is not counted.",
    "IDLETIME <key>",
    "    Return 0 if <key> is there: when keys were used is not kept.",
    "REFCOUNT <key>",
    "    Return 1 if <key> is there.",
    "HELP",
    "    Print this help.",
];

/// What Redis calls the representation of such a value. What a string's history would tell is not kept.
fn encoding(kind: Kind, large: bool, string: &[u8]) -> &'static str {
    match kind {
        Kind::String if integer(string).is_ok() => "int",
        Kind::String if string.len() <= 44 => "embstr",
        Kind::String => "raw",
        Kind::List => "quicklist",
        Kind::Set => "hashtable",
        Kind::SortedSet if large => "skiplist",
        Kind::Hash if large => "hashtable",
        Kind::SortedSet | Kind::Hash => "listpack",
    }
}

fn object(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let word = args[1];
    let known = ["encoding", "freq", "idletime", "refcount", "help"];
    let Some(what) = known.into_iter().find(|name| is(word, name)) else {
        return Err(Failed::reply(format!(
            "ERR unknown subcommand '{}'. Try OBJECT HELP.",
            String::from_utf8_lossy(word)
        )));
    };
    if args.len() != if what == "help" { 2 } else { 3 } {
        return Err(Failed::reply(format!(
            "ERR wrong number of arguments for 'object|{what}' command"
        )));
    }
    if what == "help" {
        out.array(HELP.len());
        HELP.iter().for_each(|line| out.status(line));
        return Ok(());
    }
    let (db, key) = (tx.db, args[2]);
    let Some(head) = tx.load_head_from(db, key)? else {
        out.null();
        return Ok(());
    };
    match what {
        "encoding" => {
            let name = match head.kind {
                Kind::String => {
                    tx.string_with(key, |bytes, _| encoding(Kind::String, false, bytes))?
                }
                kind => Some(encoding(kind, head.id.is_some(), b"")),
            };
            out.maybe_bulk(name.map(str::as_bytes));
        }
        "refcount" => out.integer(1),
        "idletime" => out.integer(0),
        _ => {
            return Err(Failed::reply(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
                 switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
    }
    Ok(())
}
