//! Commands on whole databases: `DBSIZE`, `FLUSHALL`, `FLUSHDB`, `SWAPDB`.

use crate::command::{Access, Command, DataFn, Keys, database};
use crate::data::clear::flush;
use crate::data::spaces::{DATABASES, ORDER_KEY, Space};
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, integer, is};
use crate::reply::Out;
use bristlecone_store::Direction;
use std::collections::BTreeSet;
use std::ops::{Bound, ControlFlow};

const fn command(name: &'static str, arity: i32, run: DataFn) -> Command {
    Command::new(
        name,
        arity,
        Access::WriteAll,
        Keys::None,
        &["keyspace"],
        run,
    )
}

const DBSIZE: Command = {
    let mut command = Command::new(
        "dbsize",
        1,
        Access::ReadOne,
        Keys::None,
        &["keyspace"],
        dbsize,
    );
    // A key counts once its change is applied.
    command.spec.reads_applied = true;
    command
};

/// The commands.
pub const COMMANDS: &[Command] = &[
    DBSIZE,
    command("flushall", -1, flushall),
    command("flushdb", -1, flushdb),
    command("swapdb", 3, swapdb),
];

/// Checks the option of a flush. It makes no difference here, but has to be a known one.
fn check_how(args: &[Arg<'_>]) -> Outcome {
    match args {
        [_] => Ok(()),
        [_, how] if is(how, "sync") || is(how, "async") => Ok(()),
        _ => Err(CommandError::syntax()),
    }
}

fn flushdb(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    check_how(args)?;
    let db = tx.db;
    flush(tx, &[db])?;
    out.status("OK");
    Ok(())
}

fn flushall(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    check_how(args)?;
    let all: Vec<usize> = (0..DATABASES).collect();
    flush(tx, &all)?;
    out.status("OK");
    Ok(())
}

fn dbsize(tx: &mut Tx<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let db = tx.db;
    let len = if tx.changed() {
        let mut keys = 0;
        let all = (Bound::Unbounded, Bound::Unbounded);
        tx.scan_heads(db, all, Direction::Up, |_, _| {
            keys += 1;
            ControlFlow::Continue(())
        })?;
        keys
    } else {
        if tx.short.is_some() && !tx.data().store().is_counted() {
            // After a crash it waits until the keys are counted.
            return Err(CommandError::Long);
        }
        tx.data().len(db)
    };
    out.integer(len as i64);
    Ok(())
}

fn swapdb(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    for (text, which) in [(args[1], "first"), (args[2], "second")] {
        if integer(text)
            .ok()
            .and_then(|number| i32::try_from(number).ok())
            .is_none()
        {
            return Err(CommandError::reply(format!("ERR invalid {which} DB index")));
        }
    }
    let (one, other) = (database(args[1])?, database(args[2])?);
    out.status("OK");
    if one == other {
        return Ok(());
    }
    let order = tx.order.swapped(one, other);
    tx.put(
        Space::Databases,
        ORDER_KEY,
        order.bits().to_be_bytes().to_vec(),
        None,
    )?;
    tx.reorder(order);
    for db in [one, other] {
        let heard = tx.data().watchers.keys_of(db).into_iter();
        let keys: BTreeSet<Vec<u8>> = heard.chain(tx.data().waiting.keys_of(db)).collect();
        for key in keys {
            let is_there = tx.load_head_from(one, &key)?.is_some()
                || tx.load_head_from(other, &key)?.is_some();
            if is_there {
                tx.appears(db, &key);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::locks::Patience;
    use crate::data::spaces::Order;
    use crate::data::watch::Watch;
    use crate::data::{Data, Reads};
    use crate::execute::Haste;
    use crate::fixture::{Fixture, on_disk, put_large};
    use crate::reply::Protocol;
    use bristlecone_pmem::media::journal::fault::FaultDisk;
    use std::iter::once;
    use std::time::{Duration, Instant};

    /// `DBSIZE` waited for the count on the thread of other connections, and a flush with the locks
    /// of all keys.
    #[test]
    fn nobody_else_waits_until_the_keys_are_counted_after_a_crash() {
        let (fixture, disk) = (Fixture::new(), FaultDisk::new(1));
        let data = on_disk(&disk, true);
        fixture.call(&data, "mset a zero b zero");
        data.settle(data.applied()).unwrap();
        let cut = on_disk(&disk.restart(2), false);
        assert!(!cut.store().is_counted());
        let mut reply = Vec::new();
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        let args: [&[u8]; 1] = [b"dbsize"];
        let short = (0, Haste::Short);
        let done = cut.run_or_wait(&DBSIZE, short, &args, Reads::Durable, (None, &mut out));
        assert!(done.long && !cut.store().is_counted());
        std::thread::scope(|scope| {
            let held = cut.locks.keys(once((0, &b"a"[..])), Patience::Any);
            let flush = scope.spawn(|| {
                let (mut reply, args) = (Vec::new(), [&b"flushall"[..]]);
                let flush = command("flushall", -1, flushall);
                let mut out = Out::new(&mut reply, Protocol::Resp2);
                cut.run(&flush, 0, &args, Reads::Applied, &mut out);
                reply
            });
            let until = Instant::now() + Duration::from_secs(30);
            while !cut.store().is_counted() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(cut.store().is_counted());
            assert_eq!(cut.len(0), 2);
            drop(held);
            assert_eq!(flush.join().unwrap(), b"+OK\r\n");
        });
        let done = cut.run_or_wait(&DBSIZE, short, &args, Reads::Durable, (None, &mut out));
        assert!(!done.long);
        assert_eq!(reply, b":0\r\n");
    }

    #[test]
    fn databases_stay_swapped_and_what_expires_goes() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let call = |data: &Data, line: &str| fixture.call(data, line);
        call(&data, "set a zero");
        put_large(&data, 3, b"large", 10, Some(5000));
        assert_eq!(call(&data, "swapdb 0 3"), "+OK\r\n");
        assert_eq!(call(&data, "get a"), "$-1\r\n");
        assert_eq!(call(&data, "dbsize"), ":1\r\n");
        assert_eq!(call(&data, "pttl large"), ":4999\r\n");
        assert_eq!((data.len(0), data.len(3)), (1, 1));
        data.settle(data.applied()).unwrap();
        drop(data);
        let data = fixture.open();
        assert_eq!(call(&data, "exists a large"), ":1\r\n");
        assert_eq!(call(&data, "pexpire large 3000"), ":1\r\n");
        assert_eq!(data.store().len(&data.spaces().expiries), 1);
        fixture.at(3001);
        while data.sweep().unwrap() {}
        assert_eq!((data.len(0), data.len(3)), (0, 1));
        assert_eq!(data.store().len(&data.spaces().elements), 0);
        assert_eq!(data.store().len(&data.spaces().expiries), 0);
        assert_eq!(call(&data, "swapdb 3 0"), "+OK\r\n");
        assert_eq!(call(&data, "get a"), "$4\r\nzero\r\n");
        for (line, error) in [
            ("swapdb x 99", "-ERR invalid first DB index\r\n"),
            ("swapdb 99 x", "-ERR invalid second DB index\r\n"),
            ("swapdb 0 16", "-ERR DB index is out of range\r\n"),
            ("swapdb -1 0", "-ERR DB index is out of range\r\n"),
        ] {
            assert_eq!(call(&data, line), error);
        }
    }

    #[test]
    fn a_swap_that_finds_no_space_is_undone() {
        let (fixture, disk) = (Fixture::new(), FaultDisk::new(1));
        let data = on_disk(&disk, true);
        let call = |data: &Data, line: &str| fixture.call(data, line);
        call(&data, "set a zero");
        data.settle(data.applied()).unwrap();
        disk.set_full(true);
        let refused = call(&data, "swapdb 0 1");
        assert!(
            refused.starts_with('-') && refused.contains("free some space"),
            "{refused}"
        );
        // The swap is undone, also for later writes.
        assert_eq!(data.order(), Order::FIRST);
        assert_eq!(call(&data, "get a"), "$4\r\nzero\r\n");
        call(&data, "set b zero");
        assert_eq!((data.len(0), data.len(1)), (2, 0));
        let cut = on_disk(&disk.restart(2), false);
        assert_eq!(call(&cut, "exists a b"), ":1\r\n");
        drop(cut);
        disk.set_full(false);
        data.settle(data.applied()).unwrap();
        assert_eq!(call(&data, "exists a b"), ":2\r\n");
        let cut = on_disk(&disk.restart(3), false);
        assert_eq!(cut.order(), Order::FIRST);
        assert_eq!(call(&cut, "exists a b"), ":2\r\n");
        drop(cut);
        assert_eq!(call(&data, "swapdb 0 1"), "+OK\r\n");
        assert_eq!(call(&data, "exists a b"), ":0\r\n");
        let cut = on_disk(&disk.restart(4), false);
        assert_eq!((cut.order(), cut.len(1)), (data.order(), 2));
    }

    #[test]
    fn a_swap_on_a_disk_that_fails_for_good_is_none_until_the_store_is_opened_again() {
        let fixture = Fixture::new();
        let (mut swapped, mut not) = (0, 0);
        // Which sync of the server it is that fails is left to its threads.
        for number in 1..=4 {
            let disk = FaultDisk::new(number);
            let data = on_disk(&disk, true);
            fixture.call(&data, "set a zero");
            data.settle(data.applied()).unwrap();
            disk.fail_sync(1);
            for _ in 0..2 {
                let refused = fixture.call(&data, "swapdb 0 1");
                assert!(refused.contains("until it is reopened"), "{refused}");
                assert_eq!(data.order(), Order::FIRST);
                assert_eq!(fixture.call(&data, "get a"), "$4\r\nzero\r\n");
            }
            drop(data);
            for seed in 0..8 {
                let cut = on_disk(&disk.restart(seed), false);
                let here = cut.order() == Order::FIRST;
                *if here { &mut not } else { &mut swapped } += 1;
                assert_eq!(
                    (cut.len(0), cut.len(1)),
                    (u64::from(here), u64::from(!here))
                );
                assert_eq!(fixture.call(&cut, "swapdb 0 1"), "+OK\r\n");
                assert_eq!(
                    (cut.len(0), cut.len(1)),
                    (u64::from(!here), u64::from(here))
                );
            }
        }
        assert!(
            swapped > 0 && not > 0,
            "either is possible: {swapped}, {not}"
        );
    }

    #[test]
    fn who_watches_a_key_of_either_database_is_told_where_either_has_it() {
        let places = ["exists a", "copy a a db 5", "move a 5"];
        for (db, place) in places
            .into_iter()
            .flat_map(|place| [(0, place), (5, place)])
        {
            let fixture = Fixture::new();
            let data = fixture.open();
            fixture.call(&data, "set a zero");
            assert_eq!(fixture.call(&data, place), ":1\r\n");
            let mut watch = Watch::default();
            data.watch(&mut watch, db, b"a").unwrap();
            fixture.call(&data, "swapdb 0 5");
            let mut reply = Vec::new();
            data.exec(&[], &mut watch, &mut Out::new(&mut reply, Protocol::Resp2));
            assert_eq!(reply, b"*-1\r\n", "{db}, after {place}");
        }
    }

    #[test]
    fn who_watches_a_key_of_a_swapped_database_is_told() {
        let fixture = Fixture::new();
        let data = fixture.open();
        fixture.call(&data, "set a zero");
        for (db, key, told) in [
            (0, "a", true),
            (5, "a", true),
            (1, "a", false),
            (0, "b", false),
        ] {
            let mut watch = Watch::default();
            data.watch(&mut watch, db, key.as_bytes()).unwrap();
            fixture.call(&data, "swapdb 0 5");
            let mut reply = Vec::new();
            data.exec(&[], &mut watch, &mut Out::new(&mut reply, Protocol::Resp2));
            assert_eq!(reply == b"*-1\r\n", told, "{db} {key}");
        }
    }
}
