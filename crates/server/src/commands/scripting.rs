//! `EVAL`, `EVALSHA`, `SCRIPT`: Lua scripts, each of which is one commit.
//!
//! # Locks
//! The keys that a script names are locked before it begins. Where it uses others, it is executed
//! to its end without their locks, what it did is dropped, and it is executed again with the locks
//! of all the keys that it used. It may use still others then; after a few times it gets all locks.
//! A script that only reads (`EVAL_RO`) locks nothing and sees one snapshot.
//!
//! As in Redis, what a script wrote before it raised an error stays written.

use super::handler_at;
use super::pubsub::check_name;
use crate::budget::{Part, Scratch};
use crate::command::{Access, Command, HelpLine, Keys, database};
use crate::data::caller::Locked;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome, Unlocked};
use crate::parse::{Arg, integer};
use crate::reply::{Out, Protocol};
use crate::script::{Host, Script, Sha, replies};
use crate::session::{Context, Done, Flow, Handler, SessionCommand, subcommand};
use bristlecone_store::MAX_KEY_BYTES;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The most keys that a script uses without naming them, before it gets the locks of all.
const MAX_KEYS: usize = 10_000;
/// The most bytes that a script may publish.
const MAX_PUBLISHED: usize = 16 << 20;

/// The keys follow their number, the second argument.
const KEYS: Keys = Keys::Counted { at: 2, before: 0 };

/// The commands on data.
pub const COMMANDS: &[Command] = &[
    Command::new("eval", -3, Access::Write, KEYS, &["scripting"], eval),
    Command::new("evalsha", -3, Access::Write, KEYS, &["scripting"], evalsha),
    Command::new("eval_ro", -3, Access::Read, KEYS, &["scripting"], eval_ro),
    Command::new(
        "evalsha_ro",
        -3,
        Access::Read,
        KEYS,
        &["scripting"],
        evalsha_ro,
    ),
];

const SCRIPT_HELP: &[HelpLine] = &[
    (
        "EXISTS <sha1> [<sha1> ...]",
        "Return whether scripts with these SHA-1 are known.",
    ),
    ("FLUSH [ASYNC|SYNC]", "Forget all scripts."),
    (
        "KILL",
        "Stop the scripts that are running. Nothing of what they did stays.",
    ),
    (
        "LOAD <script>",
        "Keep a script for EVALSHA without executing it.",
    ),
];

/// The commands on the server.
pub const SCRIPT: &[SessionCommand] =
    &[SessionCommand::new("script", -2, &["slow", "scripting"], script).help(SCRIPT_HELP)];

fn eval(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    of_text(tx, args, false, out)
}

fn eval_ro(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    of_text(tx, args, true, out)
}

fn evalsha(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    of_sha(tx, args, false, out)
}

fn evalsha_ro(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    of_sha(tx, args, true, out)
}

fn of_text(tx: &mut Tx<'_>, args: &[Arg<'_>], only_reads: bool, out: &mut Out<'_>) -> Outcome {
    let arguments = arguments(args)?;
    let script = tx.data().scripts.of_text(args[1])?;
    run(tx, (&script, only_reads), (args, arguments), out)
}

fn of_sha(tx: &mut Tx<'_>, args: &[Arg<'_>], only_reads: bool, out: &mut Out<'_>) -> Outcome {
    let arguments = arguments(args)?;
    let sha = sha(args[1]);
    let script = sha.and_then(|sha| tx.data().scripts.find(&sha));
    let script = script
        .ok_or_else(|| CommandError::reply("NOSCRIPT No matching script. Please use EVAL."))?;
    run(tx, (&script, only_reads), (args, arguments), out)
}

/// Returns a SHA-1 in lower case, if it is one.
fn sha(text: Arg<'_>) -> Option<Sha> {
    let mut sha = Sha::try_from(text).ok()?;
    sha.make_ascii_lowercase();
    Some(sha)
}

/// Returns where the arguments behind the keys begin.
fn arguments(args: &[Arg<'_>]) -> Result<usize, CommandError> {
    let keys = integer(args[2])?;
    let Ok(keys) = usize::try_from(keys) else {
        return Err(CommandError::reply("ERR Number of keys can't be negative"));
    };
    if keys > args.len() - 3 {
        return Err(CommandError::reply(
            "ERR Number of keys can't be greater than number of args",
        ));
    }
    Ok(3 + keys)
}

fn run(
    tx: &mut Tx<'_>,
    (script, only_reads): (&Arc<Script>, bool),
    (args, behind): (&[Arg<'_>], usize),
    out: &mut Out<'_>,
) -> Outcome {
    let scripts = &tx.data().scripts;
    let (db, queued, may_wait, counts) = (tx.db, tx.queued, tx.may_wait, tx.counts);
    // Its commands are rolled back one by one, and none of them waits.
    (tx.queued, tx.may_wait) = (true, false);
    let short = tx.short.is_some();
    let done = scripts.with_engine(short, |engine| {
        let mut host = ScriptHost {
            memory: out.scratch(Part::Script),
            within: &*out,
            named: args[3..behind].iter().copied().collect(),
            published: 0,
            only_reads: only_reads || script.no_writes,
            keeps: !queued,
            unlocked: Unlocked::default(),
            tx,
        };
        let (keys, rest) = (&args[3..behind], &args[behind..]);
        let answer = engine.run(script, (keys, rest), short, &mut host)?;
        let unlocked = host.unlocked;
        if unlocked.all || !unlocked.keys.is_empty() {
            return Err(CommandError::Unlocked(unlocked));
        }
        match answer {
            Ok(value) => replies::write(&value, engine.is_resp3(), out)
                .map_err(|e| CommandError::reply(format!("ERR {e}"))),
            Err(text) => {
                out.error(&text);
                Ok(())
            }
        }
    });
    (tx.db, tx.queued, tx.may_wait, tx.counts) = (db, queued, may_wait, counts);
    done?
}

/// Executes the commands of a script.
struct ScriptHost<'h, 'd, 'o> {
    tx: &'h mut Tx<'d>,
    /// Where the script's own reply goes.
    within: &'h Out<'o>,
    memory: Scratch<'o>,
    /// The keys that the script names.
    named: HashSet<Arg<'h>>,
    /// Bytes that it has published.
    published: usize,
    only_reads: bool,
    /// No `EXEC` around the script may have to roll it back: savepoints of commands that succeeded
    /// can go.
    keeps: bool,
    unlocked: Unlocked,
}

impl ScriptHost<'_, '_, '_> {
    /// Notes a key whose lock the script needs and has not.
    fn needs(&mut self, key: Arg<'_>) {
        let is_locked = match self.tx.calls.locked {
            Locked::All => true,
            Locked::Keys(keys) => keys.contains(key),
            Locked::No => false,
        };
        if !is_locked && !self.named.contains(key) {
            let keys = &mut self.unlocked.keys;
            // So many are not worth their memory.
            if keys.len() >= MAX_KEYS || key.len() > MAX_KEY_BYTES {
                self.unlocked.all = true;
            } else if !keys.contains(key) {
                keys.insert(key.to_vec());
            }
        }
    }

    fn on_data(&mut self, command: &Command, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
        let writes = matches!(command.access(), Access::Write | Access::WriteAll);
        if writes && self.only_reads {
            return Err(CommandError::reply(
                "ERR Write commands are not allowed from read-only scripts.",
            ));
        }
        if self.tx.writes {
            if command.access() == Access::WriteAll {
                self.unlocked.all |= !matches!(self.tx.calls.locked, Locked::All);
            }
            for at in command.spec.keys.places(args) {
                self.needs(args[at]);
            }
        }
        // A command that needs all locks, and has not, may not begin.
        if self.unlocked.all {
            return Err(CommandError::Unlocked(std::mem::take(&mut self.unlocked)));
        }
        self.tx.counts = !writes;
        self.tx.scratch.reset(0);
        let before = writes.then(|| self.tx.mark());
        let done = (command.run)(self.tx, args, out);
        match (&done, before) {
            (Err(_), Some(before)) => self.tx.rollback(&before),
            (Ok(()), Some(_)) if self.keeps => self.tx.keep(),
            _ => {}
        }
        done
    }

    /// Does a command of the session by itself.
    fn own(&mut self, name: &str, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
        match (name, args) {
            ("ping", [_]) => out.status("PONG"),
            ("ping" | "echo", [_, text]) => out.bulk(text),
            ("select", [_, number]) => {
                self.tx.db = database(number)?;
                out.ok();
            }
            ("time", [_]) => {
                let since = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                out.array(2);
                out.bulk(since.as_secs().to_string().as_bytes());
                out.bulk(since.subsec_micros().to_string().as_bytes());
            }
            ("publish", [_, channel, message]) => {
                check_name(channel)?;
                self.published += channel.len() + message.len();
                if self.published > MAX_PUBLISHED {
                    return Err(CommandError::reply(format!(
                        "ERR the messages of a script have more than {MAX_PUBLISHED} bytes"
                    )));
                }
                let told = self
                    .tx
                    .calls
                    .caller
                    .map_or(0, |caller| caller.listeners(channel));
                self.tx
                    .calls
                    .messages
                    .push((channel.to_vec(), message.to_vec()));
                out.integer(told as i64);
            }
            _ => return Err(CommandError::arity(name)),
        }
        Ok(())
    }

    fn execute(&mut self, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
        let refused = || CommandError::reply("ERR scripts have no commands here");
        let caller = self.tx.calls.caller.ok_or_else(refused)?;
        match handler_at(caller.admit(args)?) {
            Some(Handler::Data(command)) => self.on_data(command, args, out),
            Some(Handler::Session(command)) => self.own(command.spec.name, args, out),
            None => Err(refused()),
        }
    }
}

impl Host for ScriptHost<'_, '_, '_> {
    fn call(
        &mut self,
        args: &[&[u8]],
        protocol: Protocol,
        memory: usize,
        reply: &mut Vec<u8>,
    ) -> Outcome {
        self.memory.reset(memory);
        self.memory.check()?;
        let mut out = self.within.beside(reply);
        out.set_protocol(protocol);
        let done = self.execute(args, &mut out);
        match done {
            Ok(()) => Ok(()),
            // Nothing of the script is committed.
            Err(e) if self.tx.overfull || self.tx.is_evicted() || e.ends_all() => Err(e),
            Err(e) => {
                out.truncate(0);
                out.error(&e.to_string());
                Ok(())
            }
        }
    }

    fn may(&self, args: &[&[u8]]) -> Option<bool> {
        self.tx.calls.caller?.may(args)
    }
}

fn script(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let scripts = &context.server.data.scripts;
    let (word, lower, rest) = subcommand(args);
    match (lower.as_str(), rest) {
        ("load", [text]) => {
            let script = Script::new(text)?;
            scripts
                .with_engine(true, |engine| engine.compile(&script))?
                .map_err(CommandError::reply)?;
            let script = scripts.load(script)?;
            out.bulk(&script.sha);
        }
        ("exists", [_, ..]) => {
            out.array(rest.len());
            for text in rest {
                let known = sha(text).is_some_and(|sha| scripts.find(&sha).is_some());
                out.integer(known.into());
            }
        }
        ("flush", [] | [_]) => {
            let how = rest.first().copied().unwrap_or(b"sync");
            if !how.eq_ignore_ascii_case(b"sync") && !how.eq_ignore_ascii_case(b"async") {
                return Err(CommandError::reply(
                    "ERR SCRIPT FLUSH only support SYNC|ASYNC option",
                ));
            }
            scripts.flush();
            out.ok();
        }
        ("kill", []) => {
            if scripts.kill() == 0 {
                return Err(CommandError::reply(
                    "NOTBUSY No scripts in execution right now.",
                ));
            }
            out.ok();
        }
        ("load" | "exists" | "kill" | "flush", _) => {
            return Err(CommandError::arity(&format!("script|{lower}")));
        }
        _ => return Err(CommandError::unknown_subcommand("script", word)),
    }
    Ok(Flow::Go)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::caller::{Caller, Message};
    use crate::data::watch::Watch;
    use crate::data::{Data, Reads};
    use crate::execute::Haste;
    use crate::execute::exec::Queued;
    use crate::fixture::Fixture;
    use crate::table::Table;
    use std::cell::RefCell;

    /// A client that may do everything.
    #[derive(Debug)]
    struct Anybody {
        table: Table,
        published: RefCell<Vec<Message>>,
    }

    impl Anybody {
        fn new() -> Self {
            Self {
                table: crate::commands::table(),
                published: RefCell::default(),
            }
        }
    }

    impl Caller for Anybody {
        fn admit(&self, args: &[Arg<'_>]) -> Result<usize, CommandError> {
            let entry = self.table.find(args[0]);
            entry
                .map(|entry| entry.index)
                .ok_or_else(CommandError::syntax)
        }

        fn may(&self, _: &[Arg<'_>]) -> Option<bool> {
            Some(true)
        }

        fn listeners(&self, _: &[u8]) -> usize {
            3
        }

        fn publish(&self, messages: Vec<Message>) {
            self.published.borrow_mut().extend(messages);
        }
    }

    fn known(name: &str) -> &'static Command {
        crate::commands::data()
            .find(|known| known.spec.name == name)
            .unwrap()
    }

    /// Returns the reply to a command of these words, with spaces for line ends.
    fn call(data: &Data, caller: &Anybody, haste: Haste, words: &[&str]) -> Option<String> {
        let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let mut reply = Vec::new();
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        let to = (Some(caller as &dyn Caller), &mut out);
        let done = data.run_or_wait(known(words[0]), (0, haste), &args, Reads::Applied, to);
        let text = String::from_utf8_lossy(&reply).replace("\r\n", " ");
        (!done.long).then(|| text.trim_end().to_owned())
    }

    fn eval(data: &Data, text: &str, rest: &[&str]) -> String {
        let words = [&["eval", text][..], rest].concat();
        call(data, &Anybody::new(), Haste::None, &words).unwrap()
    }

    #[test]
    fn a_script_uses_keys_that_it_does_not_name_and_databases() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let text = "for i = 1, 20 do redis.call('incr', 'n' .. redis.call('incr', 'at')) end \
                    redis.call('select', 1) redis.call('set', 'n1', 'other') return redis.call('get', 'n1')";
        assert_eq!(eval(&data, text, &["0"]), "$5 other");
        assert_eq!(
            fixture.call(&data, "mget at n1 n20 n21"),
            "*4\r\n$2\r\n20\r\n$1\r\n1\r\n$1\r\n1\r\n$-1\r\n"
        );
        assert_eq!(
            eval(
                &data,
                "redis.call('flushall') return redis.call('dbsize')",
                &["0"]
            ),
            ":0"
        );
        // Whatever it does in each attempt.
        let text = "return redis.call('set', redis.call('time')[2] .. math.random(), 1)";
        assert_eq!(eval(&data, text, &["0"]), "+OK");
        assert_eq!(fixture.call(&data, "dbsize"), ":1\r\n");
    }

    #[test]
    fn what_was_written_before_an_error_stays_and_a_failed_command_leaves_nothing() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let reply = eval(
            &data,
            "redis.call('set', KEYS[1], 'x') redis.call('incr', KEYS[1])",
            &["1", "k"],
        );
        assert!(
            reply.starts_with("-ERR value is not an integer or out of range script: "),
            "{reply}"
        );
        assert_eq!(fixture.call(&data, "get k"), "$1\r\nx\r\n");
        let text = "redis.pcall('mset', 'a', 1, 'b') return redis.call('exists', 'a')";
        assert_eq!(eval(&data, text, &["0"]), ":0");
    }

    #[test]
    fn a_script_that_only_reads_writes_nothing() {
        let fixture = Fixture::new();
        let data = fixture.open();
        fixture.call(&data, "set k v");
        let anybody = Anybody::new();
        let read = ["eval_ro", "return redis.call('get', 'k')", "0"];
        assert_eq!(call(&data, &anybody, Haste::None, &read).unwrap(), "$1 v");
        let refused = "-ERR Write commands are not allowed from read-only scripts.";
        let write = "return redis.call('set', 'k', 'w')";
        let with_flag = format!("#!lua flags=no-writes\n{write}");
        for words in [["eval_ro", write, "0"], ["eval", &with_flag, "0"]] {
            let reply = call(&data, &anybody, Haste::None, &words).unwrap();
            assert!(reply.starts_with(refused), "{reply}");
        }
        assert_eq!(fixture.call(&data, "get k"), "$1\r\nv\r\n");
    }

    #[test]
    fn what_a_script_publishes_is_told_once_when_it_has_been_committed() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let anybody = Anybody::new();
        let text = "redis.call('incr', 'unnamed') return redis.call('publish', 'c', 'm')";
        assert_eq!(
            call(&data, &anybody, Haste::None, &["eval", text, "0"]).unwrap(),
            ":3"
        );
        assert_eq!(
            *anybody.published.borrow(),
            [(b"c".to_vec(), b"m".to_vec())]
        );
        assert_eq!(fixture.call(&data, "get unnamed"), "$1\r\n1\r\n");
    }

    #[test]
    fn a_script_within_a_transaction_is_a_part_of_it() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let queued = |words: &[&str]| Queued {
            command: known(words[0]),
            db: 0,
            args: words.iter().map(|word| word.as_bytes().to_vec()).collect(),
        };
        let steps = [
            queued(&["set", "a", "1"]),
            queued(&[
                "eval",
                "return redis.call('incrby', 'a', redis.call('incr', 'b'))",
                "0",
            ]),
            queued(&["eval_ro", "return redis.call('set', 'a', 'no')", "0"]),
            queued(&["get", "a"]),
        ];
        let (anybody, mut reply) = (Anybody::new(), Vec::new());
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        let to = (Some(&anybody as &dyn Caller), &mut out);
        assert_eq!(
            data.exec_within(Haste::None, &steps, &mut Watch::default(), to),
            Some(true)
        );
        let reply = String::from_utf8(reply).unwrap();
        let [first, last] = ["*4\r\n+OK\r\n:2\r\n-ERR Write commands", "\r\n$1\r\n2\r\n"];
        assert!(reply.starts_with(first) && reply.ends_with(last), "{reply}");
    }

    #[test]
    fn others_do_not_wait_for_a_script_that_takes_long() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let anybody = Anybody::new();
        let long = [
            "eval",
            "redis.call('set', 'k', 1) for i = 1, 1e6 do end return 1",
            "0",
        ];
        assert_eq!(call(&data, &anybody, Haste::Short, &long), None);
        assert_eq!(fixture.call(&data, "exists k"), ":0\r\n");
        assert_eq!(call(&data, &anybody, Haste::None, &long).unwrap(), ":1");
        let many = [
            "eval",
            "for i = 1, 1e5 do redis.call('get', 'k') end return 1",
            "0",
        ];
        assert_eq!(call(&data, &anybody, Haste::Short, &many), None);
        let short = ["eval", "return redis.call('get', 'k')", "0"];
        assert_eq!(call(&data, &anybody, Haste::Short, &short).unwrap(), "$1 1");
    }

    /// Each moves something from one of few keys to another, and looks at a third one: no sum is
    /// ever wrong, whichever keys they name.
    #[test]
    fn scripts_are_atomic_and_isolated() {
        const THREADS: u64 = 4;
        let fixture = Fixture::new();
        let data = fixture.open();
        for key in 0..5 {
            fixture.call(&data, &format!("set {key} 100"));
        }
        let text = "local from, to = ARGV[1], ARGV[2] \
                    if tonumber(redis.call('get', from)) <= 0 then return 0 end \
                    redis.call('decr', from) redis.call('incr', to) \
                    local sum = 0 for i = 0, 4 do sum = sum + redis.call('get', i) end return sum";
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let data = &data;
                scope.spawn(move || {
                    for turn in 0..300u64 {
                        let [from, to] =
                            [turn * 7 + thread, turn * 3 + 1].map(|n| (n % 5).to_string());
                        let rest = match turn % 3 {
                            0 => vec!["0", &from, &to],
                            1 => vec!["1", &from, &from, &to],
                            _ => vec!["2", &from, &to, &from, &to],
                        };
                        let reply = eval(data, text, &rest);
                        assert!([":500", ":0"].contains(&reply.as_str()), "{reply}");
                    }
                });
            }
        });
        let sum = "local sum = 0 for i = 0, 4 do sum = sum + redis.call('get', i) end return sum";
        assert_eq!(eval(&data, sum, &["0"]), ":500");
    }
}
