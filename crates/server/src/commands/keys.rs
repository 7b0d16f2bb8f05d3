//! Commands on keys of any kind.

use crate::command::{ALL, Access, Command, DataFn, HelpLine, Keys, ONE, SECOND, TWO, database};
use crate::data::record::{Kind, Value};
use crate::data::spaces::Space;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::help;
use crate::parse::{Arg, integer, is};
use crate::reply::Out;
use std::ops::ControlFlow;

const fn command(
    name: &'static str,
    arity: i32,
    access: Access,
    keys: Keys,
    run: DataFn,
) -> Command {
    Command::new(name, arity, access, keys, &["keyspace"], run)
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    command("copy", -3, Access::Write, TWO, copy),
    command("del", -2, Access::Write, ALL, del),
    command("exists", -2, Access::Read, ALL, exists),
    command("move", 3, Access::Write, ONE, move_),
    OBJECT,
    command("rename", 3, Access::Write, TWO, rename),
    command("renamenx", 3, Access::Write, TWO, renamenx),
    command("touch", -2, Access::Read, ALL, exists),
    command("type", 2, Access::ReadOne, ONE, type_),
    command("unlink", -2, Access::Write, ALL, del),
];

fn del(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut gone = 0;
    for key in &args[1..] {
        if let Some(head) = tx.load_head(key)? {
            tx.erase(key, &head)?;
            gone += 1;
        }
    }
    out.integer(gone);
    Ok(())
}

fn exists(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut there = 0;
    for key in &args[1..] {
        there += i64::from(tx.load_head(key)?.is_some());
    }
    out.integer(there);
    Ok(())
}

fn type_(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let head = tx.load_head(args[1])?;
    out.status(head.map_or("none", |head| head.kind.name()));
    Ok(())
}

/// Moves `value` from one key to another, where it replaces `there`. A large value keeps its id, so
/// that its elements stay where they are.
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

/// Executes `RENAME` and `RENAMENX`. Returns true if the key was renamed.
fn renamed(tx: &mut Tx<'_>, args: &[Arg<'_>], over: bool) -> Result<bool, CommandError> {
    let (db, from, to) = (tx.db, args[1], args[2]);
    let head = tx.load_head(from)?;
    if head.is_none() {
        return Err(CommandError::reply("ERR no such key"));
    }
    if from == to {
        return Ok(over);
    }
    let there = tx.load_head(to)?;
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

fn same_object() -> CommandError {
    CommandError::reply("ERR source and destination objects are the same")
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
            return Err(CommandError::syntax());
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

/// Copies the elements of one id to another.
fn copy_elements(tx: &mut Tx<'_>, from: u64, to: u64) -> Outcome {
    let mut elements = Vec::new();
    tx.counting(|tx, scratch| {
        tx.prefix(Space::Elements, &from.to_be_bytes(), |key, entry| {
            scratch.add(key)?;
            scratch.add(entry.value)?;
            if let Some((_, key)) = key.split_first_chunk::<8>() {
                let key = [&to.to_be_bytes(), key].concat();
                elements.push((key, entry.value.to_vec(), entry.expires_at));
            }
            ControlFlow::Continue(())
        })
    })?;
    for (key, value, expires_at) in elements {
        tx.put(Space::Elements, &key, value, expires_at)?;
    }
    Ok(())
}

const OBJECT: Command = {
    let mut command = command("object", -2, Access::ReadOne, SECOND, object);
    command.spec.check = Some(check_object);
    command.spec.help = OBJECT_HELP;
    command
};

const OBJECT_HELP: &[HelpLine] = &[
    (
        "ENCODING <key>",
        "Return what Redis would name the representation of the value under <key>.",
    ),
    (
        "FREQ <key>",
        "Return an error: the use of keys is not counted.",
    ),
    (
        "IDLETIME <key>",
        "Return 0 if <key> exists: the use of keys is not tracked.",
    ),
    ("REFCOUNT <key>", "Return 1 if <key> exists."),
];

/// Returns the name of Redis' encoding of such a value. It depends on the value alone, not on its
/// history.
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

/// Returns the subcommand of `OBJECT`, and checks its number of arguments. Redis does this before
/// it queues the command.
///
/// # Errors
/// [`CommandError::Reply`]: there is no such subcommand, or it takes another number of arguments.
pub fn object_subcommand(args: &[Arg<'_>]) -> Result<&'static str, CommandError> {
    let word = args.get(1).copied().unwrap_or_default();
    let known = ["encoding", "freq", "idletime", "refcount", "help"];
    let Some(what) = known.into_iter().find(|name| is(word, name)) else {
        return Err(CommandError::unknown_subcommand("object", word));
    };
    if args.len() != if what == "help" { 2 } else { 3 } {
        return Err(CommandError::arity(&format!("object|{what}")));
    }
    Ok(what)
}

fn check_object(args: &[Arg<'_>]) -> Outcome {
    object_subcommand(args).map(drop)
}

fn object(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let what = object_subcommand(args)?;
    if what == "help" {
        return help::answer(&OBJECT.spec, args, out).map(drop);
    }
    let key = args[2];
    let Some(head) = tx.load_head(key)? else {
        out.null();
        return Ok(());
    };
    match what {
        "encoding" => {
            let name = match head.kind {
                Kind::String => {
                    let short = |bytes: &[u8]| encoding(Kind::String, false, bytes);
                    let found = tx.short_string_with(key, short)?;
                    found.map(|found| found.unwrap_or("raw"))
                }
                kind => Some(encoding(kind, head.id.is_some(), b"")),
            };
            out.maybe_bulk(name.map(str::as_bytes));
        }
        "refcount" => out.integer(1),
        "idletime" => out.integer(0),
        _ => {
            return Err(CommandError::reply(
                "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when \
                 switching between policies at runtime LRU and LFU data will take some time to adjust.",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Data;
    use crate::data::clear::FEW;
    use crate::fixture::{Fixture, put_large};

    fn head(data: &Data, db: usize, key: &[u8]) -> Value {
        let value = data.begin(db).load(key).unwrap();
        value.expect("it is there")
    }

    fn elements(data: &Data, id: u64) -> u32 {
        let mut count = 0;
        data.begin(0)
            .prefix(Space::Elements, &id.to_be_bytes(), |_, _| {
                count += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        count
    }

    #[test]
    fn large_collections_are_renamed_and_moved_with_their_elements() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let id = put_large(&data, 0, b"a", 20, Some(5000));
        let other = put_large(&data, 0, b"b", 10, Some(5000));
        assert_eq!(fixture.call(&data, "rename a b"), "+OK\r\n");
        let renamed = head(&data, 0, b"b");
        assert_eq!((renamed.id, renamed.expires_at), (Some(id), Some(5000)));
        assert_eq!(fixture.call(&data, "exists a"), ":0\r\n");
        assert_eq!(data.store().len(&data.spaces().expiries), 1, "b's new one");
        assert_eq!(data.store().len(&data.spaces().garbage), 1);
        while data.sweep().unwrap() {}
        assert_eq!((elements(&data, id), elements(&data, other)), (20, 0));

        assert_eq!(fixture.call(&data, "move b 7"), ":1\r\n");
        assert_eq!(head(&data, 7, b"b"), renamed);
        assert_eq!(data.store().len(&data.spaces().expiries), 1);
        fixture.at(5000);
        while data.sweep().unwrap() {}
        assert_eq!(data.len(7), 0);
        assert_eq!(data.store().len(&data.spaces().elements), 0);
    }

    #[test]
    fn copies_of_large_collections_have_elements_of_their_own() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let id = put_large(&data, 0, b"a", 20, Some(5000));
        let replaced = put_large(&data, 2, b"b", 7, Some(5000));
        assert_eq!(fixture.call(&data, "copy a b db 2"), ":0\r\n");
        assert_eq!(fixture.call(&data, "copy a b db 2 replace"), ":1\r\n");
        let copy = head(&data, 2, b"b");
        let copied = copy.id.expect("large");
        assert!(copied != id && copied != replaced);
        assert_eq!(copy.body, b"head");
        assert_eq!(data.store().len(&data.spaces().expiries), 2);
        assert_eq!(fixture.call(&data, "del a"), ":1\r\n");
        while data.sweep().unwrap() {}
        assert_eq!(elements(&data, copied), 20);
        assert_eq!(data.store().len(&data.spaces().elements), 20);
        assert_eq!(data.store().len(&data.spaces().expiries), 1);
    }

    #[test]
    fn a_flush_of_many_keys_takes_all_of_them() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let many = FEW * 2 + 10;
        for number in 0..many {
            fixture.call(&data, &format!("set {number} x"));
        }
        put_large(&data, 0, b"large", 3, Some(9000));
        put_large(&data, 1, b"other", 3, None);
        assert_eq!(data.len(0), many as u64 + 1);
        assert_eq!(fixture.call(&data, "flushdb"), "+OK\r\n");
        assert_eq!((data.len(0), data.len(1)), (0, 1));
        assert_eq!(fixture.call(&data, "flushall async"), "+OK\r\n");
        assert_eq!(data.len(1), 0);
        assert_eq!(data.store().len(&data.spaces().expiries), 0);
        while data.sweep().unwrap() {}
        assert_eq!(data.store().len(&data.spaces().elements), 0);
    }

    #[test]
    fn expired_large_collections_are_as_absent() {
        let fixture = Fixture::new();
        let data = fixture.open();
        put_large(&data, 0, b"a", 20, Some(5000));
        assert_eq!(fixture.call(&data, "get a").get(..10), Some("-WRONGTYPE"));
        fixture.at(5000);
        for (line, reply) in [
            ("get a", "$-1\r\n"),
            ("type a", "+none\r\n"),
            ("keys *", "*0\r\n"),
            ("scan 0", "*2\r\n$1\r\n0\r\n*0\r\n"),
            ("randomkey", "$-1\r\n"),
            ("ttl a", ":-2\r\n"),
            ("rename a b", "-ERR no such key\r\n"),
            ("append a x", ":1\r\n"),
            ("ttl a", ":-1\r\n"),
            ("get a", "$1\r\nx\r\n"),
        ] {
            assert_eq!(fixture.call(&data, line), reply, "{line}");
        }
        while data.sweep().unwrap() {}
        assert_eq!(data.store().len(&data.spaces().elements), 0);
        assert_eq!(data.store().len(&data.spaces().expiries), 0);
    }
}
