//! `EXEC`: several commands as one commit, if no watched key has changed.
//!
//! The keys of all commands are locked together, those that are only read included: nothing else
//! happens to them meanwhile.

use crate::command::{Access, Command};
use crate::data::Data;
use crate::data::caller::{Caller, Calls, Locked};
use crate::data::watch::Watch;
use crate::error::CommandError;
use crate::execute::{Haste, MoreLocks, publish};
use crate::reply::Out;

/// A command that waits for `EXEC`.
#[derive(Clone, Debug)]
pub struct Queued {
    /// The command.
    pub command: &'static Command,
    /// Its database.
    pub db: usize,
    /// Its name and arguments, of which it takes as many.
    pub args: Vec<Vec<u8>>,
}

impl Data {
    /// Executes queued commands as one commit, and replies with an array of their replies; with a
    /// null array if a watched key has changed. Ends watching. Returns true: the reply has to wait
    /// for durability.
    pub fn exec(&self, queued: &[Queued], watch: &mut Watch, out: &mut Out<'_>) -> bool {
        self.exec_within(Haste::None, queued, watch, (None, out))
            .unwrap_or(true)
    }

    /// Executes queued commands like [`exec`](Self::exec). Returns `None` and does nothing if that
    /// takes longer than `haste` allows.
    pub fn exec_within(
        &self,
        haste: Haste,
        queued: &[Queued],
        watch: &mut Watch,
        (caller, out): (Option<&dyn Caller>, &mut Out<'_>),
    ) -> Option<bool> {
        let mark = out.mark();
        let mut more = MoreLocks::default();
        let done = loop {
            match self.try_exec(haste, (queued, &more), watch, (caller, out)) {
                Err(CommandError::Unlocked(unlocked)) => {
                    out.truncate(mark);
                    more.add(unlocked);
                }
                done => break done,
            }
        };
        if let Err(e) = &done {
            out.truncate(mark);
            if matches!(e, CommandError::Long) {
                return None;
            }
            out.error(&e.to_string());
        }
        watch.clear();
        Some(true)
    }

    fn try_exec(
        &self,
        haste: Haste,
        (queued, more): (&[Queued], &MoreLocks),
        watch: &Watch,
        (caller, out): (Option<&dyn Caller>, &mut Out<'_>),
    ) -> Result<(), CommandError> {
        let args: Vec<Vec<&[u8]>> = queued
            .iter()
            .map(|queued| queued.args.iter().map(Vec::as_slice).collect())
            .collect();
        let all = queued
            .iter()
            .any(|queued| queued.command.access() == Access::WriteAll);
        if more.all() && haste == Haste::Short {
            return Err(CommandError::Long);
        }
        let held = if all || more.all() {
            Some(self.lock_everything())
        } else {
            let of_commands = queued.iter().zip(&args).flat_map(|(queued, args)| {
                let places = queued.command.spec.keys.places(args).into_iter();
                places.map(|at| (queued.db, args[at]))
            });
            let of_watch = watch.keys.keys().map(|(db, key)| (*db, key.as_slice()));
            let mut keys: Vec<_> = of_commands.chain(of_watch).chain(more.names()).collect();
            if keys.is_empty() {
                // Any lock prevents the databases from being swapped meanwhile.
                keys.push((0, b""));
            }
            self.lock(keys.iter().copied(), haste.patience())
        };
        let _held = held.ok_or(CommandError::Long)?;
        let mut changed = watch.is_touched();
        for ((db, key), existed) in &watch.keys {
            // The expiry of a key notifies no watcher.
            changed = changed || *existed && !self.is_there(*db, key)?;
        }
        if changed {
            out.null_array();
            return Ok(());
        }
        let mark = out.mark();
        let (messages, put) = self.transact(0, |tx| {
            out.truncate(mark);
            tx.queued = true;
            let locked = if all { Locked::All } else { more.locked() };
            tx.calls = Calls::of(caller, locked);
            tx.short = haste.work();
            tx.charge(out);
            out.array(queued.len());
            for (Queued { command, db, .. }, args) in queued.iter().zip(&args) {
                tx.db = *db;
                tx.counts = matches!(command.access(), Access::ReadOne | Access::Read);
                tx.scratch.reset(0);
                let (place, end) = (tx.mark(), out.mark());
                match (command.run)(tx, args, out) {
                    Ok(()) => tx.keep(),
                    // A transaction that is too large, or takes long, or whose client was evicted,
                    // is not committed in part.
                    Err(e) if tx.overfull || tx.is_evicted() || e.ends_all() => return Err(e),
                    Err(e) => {
                        tx.rollback(&place);
                        out.truncate(end);
                        out.error(&e.to_string());
                    }
                }
            }
            Ok(std::mem::take(&mut tx.calls.messages))
        })?;
        self.serve(put);
        publish(caller, messages);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Part;
    use crate::client::Clients;
    use crate::command::{DataFn, ONE};
    use crate::data::Reads;
    use crate::data::record::string_record;
    use crate::data::spaces::Space;
    use crate::data::tx::Tx;
    use crate::data::watch::MAX_WATCHED_BYTES;
    use crate::fixture::{Fixture, put_large, words};
    use crate::reply::Protocol;
    use bristlecone_store::MAX_KEY_BYTES;

    /// A command that writes one key, its only argument.
    const fn writes_one(name: &'static str, run: DataFn) -> Command {
        Command::new(name, 2, Access::Write, ONE, &["string"], run)
    }

    fn queued(lines: &[&str]) -> Vec<Queued> {
        let of = |line: &&str| {
            let words = words(line);
            Queued {
                command: crate::commands::data()
                    .find(|known| known.spec.name == words[0])
                    .unwrap(),
                db: 0,
                args: words.into_iter().map(String::into_bytes).collect(),
            }
        };
        lines.iter().map(of).collect()
    }

    fn exec(data: &Data, lines: &[&str], watch: &mut Watch) -> String {
        let mut reply = Vec::new();
        data.exec(
            &queued(lines),
            watch,
            &mut Out::new(&mut reply, Protocol::Resp2),
        );
        String::from_utf8(reply).unwrap()
    }

    #[test]
    fn commands_see_what_those_before_them_did_and_an_error_is_its_own() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let lines = [
            "set a 1",
            "incr a",
            "dbsize",
            "keys *",
            "mset b x a",
            "incr nothing",
            "set c x",
            "incr c",
            "rename c d",
            "del a",
        ];
        assert_eq!(
            exec(&data, &lines, &mut Watch::default()),
            "*10\r\n+OK\r\n:2\r\n:1\r\n*1\r\n$1\r\na\r\n\
             -ERR wrong number of arguments for 'mset' command\r\n:1\r\n+OK\r\n\
             -ERR value is not an integer or out of range\r\n+OK\r\n:1\r\n"
        );
        assert_eq!(
            fixture.call(&data, "mget a b c d nothing"),
            "*5\r\n$-1\r\n$-1\r\n$-1\r\n$1\r\nx\r\n$1\r\n1\r\n"
        );
        assert_eq!(exec(&data, &[], &mut Watch::default()), "*0\r\n");
    }

    #[test]
    fn what_a_failing_command_wrote_is_taken_back() {
        fn half(tx: &mut Tx<'_>, args: &[&[u8]], out: &mut Out<'_>) -> crate::error::Outcome {
            out.status("lost");
            tx.put_string(args[1], string_record(&[b"half"]), None)?;
            Err(CommandError::syntax())
        }
        static HALF: Command = writes_one("half", half);
        let fixture = Fixture::new();
        let data = fixture.open();
        // Keys whose changes were rolled back have not changed.
        let mut other = Watch::default();
        data.watch(&mut other, 0, b"b").unwrap();
        let mut all = queued(&["set a before", "get a", "get a", "get b"]);
        all[1].command = &HALF;
        all[3].command = &HALF;
        let mut reply = Vec::new();
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        data.exec(&all, &mut Watch::default(), &mut out);
        assert_eq!(
            String::from_utf8(reply).unwrap(),
            "*4\r\n+OK\r\n-ERR syntax error\r\n$6\r\nbefore\r\n-ERR syntax error\r\n"
        );
        assert_eq!(exec(&data, &["get b"], &mut other), "*1\r\n$-1\r\n");
    }

    /// The store's sweep takes no locks of keys: a command failed for want of a record that had
    /// expired, and that the sweep removed after it had begun.
    #[test]
    fn what_the_sweep_removes_meanwhile_fails_no_command() {
        fn takes_its_time(
            tx: &mut Tx<'_>,
            args: &[&[u8]],
            out: &mut Out<'_>,
        ) -> crate::error::Outcome {
            let was_there = tx.get(Space::Keys(0), args[1])?.is_some();
            tx.snapshot();
            // There is something to remove only the first time.
            let swept = tx.data().store().vacuum_all().unwrap();
            tx.put_string(args[1], string_record(&[b"new"]), None)?;
            out.integer(i64::try_from(swept.expired).unwrap());
            assert!(!was_there);
            Ok(())
        }
        static SLOW: Command = writes_one("slow", takes_its_time);
        let fixture = Fixture::new();
        let data = fixture.open();
        for (key, alone) in [("a", true), ("b", false)] {
            fixture.at(500);
            fixture.call(&data, &format!("set {key} old pxat 1000"));
            fixture.at(1000);
            let args: Vec<Vec<u8>> = vec![b"slow".to_vec(), key.into()];
            let mut reply = Vec::new();
            let mut out = Out::new(&mut reply, Protocol::Resp2);
            if alone {
                let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
                data.run(&SLOW, 0, &args, Reads::Applied, &mut out);
            } else {
                let queued = [Queued {
                    command: &SLOW,
                    db: 0,
                    args,
                }];
                data.exec(&queued, &mut Watch::default(), &mut out);
            }
            let expected = if alone { ":0\r\n" } else { "*1\r\n:0\r\n" };
            assert_eq!(String::from_utf8(reply).unwrap(), expected);
            let new = fixture.call(&data, &format!("get {key}"));
            assert_eq!(new, "$3\r\nnew\r\n");
        }
    }

    #[test]
    fn nothing_is_done_if_a_watched_key_was_changed() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let mut watch = Watch::default();
        for change in [
            "set a 1",
            "incr a",
            "pexpireat a 900",
            "rename a b",
            "rename b a",
            "flushall",
        ] {
            data.watch(&mut watch, 0, b"a").unwrap();
            data.watch(&mut watch, 0, b"a").unwrap();
            assert_eq!(watch.len(), 1);
            fixture.call(&data, change);
            assert_eq!(exec(&data, &["set x 1"], &mut watch), "*-1\r\n", "{change}");
            assert!(watch.is_empty() && !data.watchers.any());
        }
        assert_eq!(fixture.call(&data, "exists x"), ":0\r\n");
        for other in ["set b 1", "get a", "persist a", "del a", "mget a b"] {
            data.watch(&mut watch, 0, b"a").unwrap();
            data.watch(&mut watch, 1, b"b").unwrap();
            fixture.call(&data, other);
            assert_eq!(
                exec(&data, &["set x 1"], &mut watch),
                "*1\r\n+OK\r\n",
                "{other}"
            );
        }
        data.watch(&mut watch, 0, b"a").unwrap();
        fixture.call(&data, "set a 1");
        watch.clear();
        assert_eq!(exec(&data, &["get a"], &mut watch), "*1\r\n$1\r\n1\r\n");
        data.watch(&mut watch, 0, b"a").unwrap();
        drop(watch);
        assert!(!data.watchers.any());
    }

    #[test]
    fn a_key_that_has_expired_since_was_changed() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let mut watch = Watch::default();
        fixture.call(&data, "set a 1 pxat 1000");
        put_large(&data, 0, b"large", 3, Some(1000));
        for key in [&b"a"[..], b"large"] {
            fixture.at(500);
            data.watch(&mut watch, 0, key).unwrap();
            fixture.at(1000);
            assert_eq!(exec(&data, &["get x"], &mut watch), "*-1\r\n");
            data.watch(&mut watch, 0, key).unwrap();
            assert_eq!(exec(&data, &["get x"], &mut watch), "*1\r\n$-1\r\n");
        }
    }

    #[test]
    fn what_is_replaced_takes_no_memory_and_what_takes_too_much_is_not_done() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let long = "x".repeat(1 << 20);
        let same = format!("set a {long}");
        let reply = exec(&data, &vec![&same[..]; 50], &mut Watch::default());
        assert_eq!(reply, format!("*50\r\n{}", "+OK\r\n".repeat(50)));
        let other: Vec<String> = (0..5).map(|n| format!("set b{n} {long}")).collect();
        let other: Vec<&str> = other.iter().map(String::as_str).collect();
        let reply = exec(&data, &other, &mut Watch::default());
        assert!(
            reply.starts_with("-ERR the changes of a transaction"),
            "{reply}"
        );
        assert_eq!(fixture.call(&data, "dbsize"), ":1\r\n");
    }

    /// `SUNIONSTORE` alone was taken back, and `DEL` was committed: the members were lost.
    #[test]
    fn nothing_is_done_if_the_client_is_evicted_meanwhile() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let member = "m".repeat(1000);
        for n in 0..1500 {
            fixture.call(&data, &format!("sadd s {member}{n}"));
        }
        // The second ones hold too much together only.
        let changes = [3, 4, 5].map(|digit| format!("setrange {digit} 400000 x"));
        let [a, b, c] = [&changes[0][..], &changes[1], &changes[2]];
        for lines in [["set a 1", "sunionstore d s s", "del s"], [a, b, c]] {
            let clients = Clients::default();
            clients.budget().set_limit(1 << 20);
            let client = clients.enter(1, "a:1".into(), "b:2".into(), true).unwrap();
            let mut reply = Vec::new();
            let mut out = Out::for_client(&mut reply, Protocol::Resp2, &client.account);
            data.exec(&queued(&lines), &mut Watch::default(), &mut out);
            assert!(client.is_evicted());
            assert_eq!(client.account.of(Part::Changes), 0);
            assert_eq!(fixture.call(&data, "scard s"), ":1500\r\n");
            assert_eq!(fixture.call(&data, "dbsize"), ":1\r\n");
        }
    }

    /// As in Redis 7.0: `LTRIM` changes any list, and `BITFIELD` a string only if it writes another
    /// integer, or writes to a string that it has made longer.
    #[test]
    fn what_counts_as_a_change_counts_as_in_redis() {
        let fixture = Fixture::new();
        let data = fixture.open();
        for (before, command, changed) in [
            ("rpush k a b", "ltrim k 0 -1", true),
            ("rpush k a b", "ltrim k 0 0", true),
            ("rpush k a b", "ltrim k 1 0", true),
            ("set other x", "ltrim k 0 -1", false),
            ("set k ab", "bitfield k set u8 0 97", false),
            ("set k ab", "bitfield k incrby u8 0 0", false),
            ("set k ab", "bitfield k get u8 0", false),
            ("set k ab", "bitfield k set u8 0 98", true),
            ("set k ab", "bitfield k set u8 0 98 set u8 0 97", true),
            ("set k ab", "bitfield k set u8 16 0", true),
            ("set k ab", "bitfield k get u8 16 set u8 0 97", false),
            ("set k ab", "bitfield k overflow fail set u8 16 256", false),
            (
                "set k ab",
                "bitfield k overflow fail set u8 16 256 set u8 0 97",
                true,
            ),
            ("set other x", "bitfield k set u8 0 0", true),
            (
                "set other x",
                "bitfield k overflow fail set u8 0 256",
                false,
            ),
        ] {
            fixture.call(&data, "del k");
            fixture.call(&data, before);
            let mut watch = Watch::default();
            data.watch(&mut watch, 0, b"k").unwrap();
            fixture.call(&data, command);
            let done = exec(&data, &["set x 1"], &mut watch);
            assert_eq!(done == "*-1\r\n", changed, "{before}, {command}");
        }
        assert_eq!(fixture.call(&data, "strlen k"), ":1\r\n");
        fixture.call(&data, "set k ab");
        fixture.call(&data, "bitfield k overflow fail set u8 16 256");
        assert_eq!(fixture.call(&data, "strlen k"), ":3\r\n");
    }

    #[test]
    fn what_a_transaction_holds_is_counted() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let mut tx = data.begin(0);
        let many = tx.snapshot();
        let keyspace = &data.spaces().elements;
        assert_eq!(many.held(), 0);
        many.put(keyspace, b"a", &[1; 1000]).unwrap();
        let (place, held) = (many.savepoint(), many.held());
        assert!(held >= 1000);
        many.put(keyspace, b"a", &[2; 1000]).unwrap();
        many.put(keyspace, b"b", &[2; 1000]).unwrap();
        many.delete(keyspace, b"b").unwrap();
        assert!(many.held() >= 3000);
        many.rollback_to(place);
        assert_eq!(many.held(), held);
        many.put(keyspace, b"a", &[3; 1000]).unwrap();
        many.forget_savepoints();
        assert!((1000..held).contains(&many.held()));
        let held = many.held();
        many.put(keyspace, b"c", b"").unwrap();
        many.rollback_to(place);
        assert_eq!(many.held(), held);
        assert_eq!(many.get(keyspace, b"a").unwrap(), Some(vec![3; 1000]));
        assert_eq!(many.get(keyspace, b"c").unwrap(), None);
    }

    #[test]
    fn what_is_watched_has_a_bound() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let mut watch = Watch::default();
        data.watch(&mut watch, 0, &vec![0; MAX_KEY_BYTES + 1])
            .unwrap();
        assert!(watch.is_empty() && !data.watchers.any());
        let key = |n: usize| [&n.to_be_bytes()[..], &vec![0; MAX_KEY_BYTES - 8]].concat();
        let most = MAX_WATCHED_BYTES / MAX_KEY_BYTES;
        for n in 0..most {
            data.watch(&mut watch, 0, &key(n)).unwrap();
        }
        data.watch(&mut watch, 0, &key(0)).unwrap();
        let error = data.watch(&mut watch, 0, b"x").unwrap_err().to_string();
        assert!(
            error.starts_with("ERR a connection watches at most"),
            "{error}"
        );
        watch.clear();
        data.watch(&mut watch, 0, b"x").unwrap();
        assert_eq!((watch.len(), watch.bytes), (1, 1));
    }

    #[test]
    fn what_had_expired_before_it_was_watched_may_be_swept() {
        let fixture = Fixture::new();
        let data = fixture.open();
        put_large(&data, 0, b"large", 3, Some(1000));
        fixture.at(1000);
        let mut watch = Watch::default();
        data.watch(&mut watch, 0, b"large").unwrap();
        while data.sweep().unwrap() {}
        assert_eq!(data.store().len(&data.spaces().elements), 0);
        assert_eq!(exec(&data, &["get x"], &mut watch), "*1\r\n$-1\r\n");
        data.watch(&mut watch, 0, b"large").unwrap();
        fixture.call(&data, "set large x");
        assert_eq!(exec(&data, &["get x"], &mut watch), "*-1\r\n");
    }

    #[test]
    fn a_flush_is_part_of_it() {
        let fixture = Fixture::new();
        let data = fixture.open();
        fixture.call(&data, "mset a 1 b 2");
        put_large(&data, 0, b"c", 3, None);
        let lines = ["flushall", "dbsize", "set a 3", "dbsize", "keys *"];
        assert_eq!(
            exec(&data, &lines, &mut Watch::default()),
            "*5\r\n+OK\r\n:0\r\n+OK\r\n:1\r\n*1\r\n$1\r\na\r\n"
        );
        assert_eq!(fixture.call(&data, "mget a b"), "*2\r\n$1\r\n3\r\n$-1\r\n");
        assert_eq!(data.store().len(&data.spaces().garbage), 1);
    }

    #[test]
    fn counters_lose_nothing_under_watch() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let (threads, each) = (3, 200);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    let mut watch = Watch::default();
                    let mut done = 0;
                    while done < each {
                        data.watch(&mut watch, 0, b"n").unwrap();
                        let reply = fixture_get(&data);
                        let set = format!("set n {}", reply + 1);
                        if exec(&data, &[&set, "incr commits"], &mut watch) != "*-1\r\n" {
                            done += 1;
                        }
                    }
                });
            }
        });
        let total = format!("${0}\r\n{1}\r\n", 3, threads * each);
        assert_eq!(fixture.call(&data, "get n"), total);
        assert_eq!(fixture.call(&data, "get commits"), total);
    }

    fn fixture_get(data: &Data) -> u64 {
        let found = data.begin(0).string_with(b"n", |bytes, _| bytes.to_vec());
        let found = found.unwrap().unwrap_or_else(|| b"0".to_vec());
        String::from_utf8(found).unwrap().parse().unwrap()
    }
}
