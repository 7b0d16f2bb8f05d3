//! Execution of commands on data: locks, the transaction, its commit, and what follows it.
//!
//! ```text
//! consecutive GETs and SETs --> batch: one call of the store -----+
//! any other command         --> its function, on a transaction ---+--> watchers, waiters --> reply
//! EXEC                      --> the functions, on one transaction +
//! ```

pub mod batch;
pub mod exec;
mod waiters;

use crate::command::{Access, Command, ONE};
use crate::data::caller::{Caller, Calls, Locked, Message};
use crate::data::locks::Patience;
use crate::data::tx::{SHORT_WORK, Tx, Waiter};
use crate::data::{Data, Reads};
use crate::error::{CommandError, Unlocked};
use crate::parse::Arg;
use crate::reply::Out;
use std::sync::Arc;

/// The time that a command may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Haste {
    /// A few milliseconds: other connections wait for its thread.
    Short,
    /// Any time.
    None,
}

impl Haste {
    pub(crate) fn patience(self) -> Patience {
        match self {
            Self::Short => Patience::Short,
            Self::None => Patience::Any,
        }
    }

    /// Returns the work that a transaction may do.
    fn work(self) -> Option<usize> {
        (self == Self::Short).then_some(SHORT_WORK)
    }
}

/// The result of a command. Its reply, or that of its error, is in the output.
#[derive(Debug)]
pub struct Executed {
    /// The command may have changed something, or has read what may not be durable yet.
    pub unsettled: bool,
    /// The client waits, and has no reply yet.
    pub waiter: Option<Arc<Waiter>>,
    /// Nothing was done, and there is no reply: the command takes longer than [`Haste::Short`]
    /// allows.
    pub long: bool,
}

impl Data {
    /// Executes one command on database `db`. An error has changed nothing, and is the whole reply.
    /// A command that would wait replies that there is nothing.
    ///
    /// Returns true if the reply has to wait until [`applied`](Self::applied) is durable.
    pub fn run(
        &self,
        command: &Command,
        db: usize,
        args: &[Arg<'_>],
        reads: Reads,
        out: &mut Out<'_>,
    ) -> bool {
        self.execute(command, (db, false, Haste::None), args, reads, (None, out))
            .unsettled
    }

    /// Executes one command like [`run`](Self::run), for a client that can wait. A command that
    /// takes longer than `haste` allows does nothing. Without a `caller` a script has no commands.
    pub fn run_or_wait(
        &self,
        command: &Command,
        (db, haste): (usize, Haste),
        args: &[Arg<'_>],
        reads: Reads,
        (caller, out): (Option<&dyn Caller>, &mut Out<'_>),
    ) -> Executed {
        self.execute(command, (db, true, haste), args, reads, (caller, out))
    }

    fn execute(
        &self,
        command: &Command,
        place: (usize, bool, Haste),
        args: &[Arg<'_>],
        reads: Reads,
        (caller, out): (Option<&dyn Caller>, &mut Out<'_>),
    ) -> Executed {
        let mark = out.mark();
        let (db, _, haste) = place;
        let done = match command.access() {
            Access::ReadOne | Access::Read => {
                let done = self.read(command, (db, haste), args, reads, (caller, out));
                done.map(|()| None)
            }
            Access::Write | Access::WriteAll => self.write(command, place, args, (caller, out)),
        };
        let mut long = false;
        let waiter = done.unwrap_or_else(|e| {
            out.truncate(mark);
            match e {
                CommandError::Long => long = true,
                e => out.error(&e.to_string()),
            }
            None
        });
        let writes = matches!(command.access(), Access::Write | Access::WriteAll);
        Executed {
            unsettled: reads == Reads::Applied || writes,
            waiter,
            long,
        }
    }

    /// Executes a command that only reads, without locks.
    fn read(
        &self,
        command: &Command,
        (db, haste): (usize, Haste),
        args: &[Arg<'_>],
        reads: Reads,
        (caller, out): (Option<&dyn Caller>, &mut Out<'_>),
    ) -> Result<(), CommandError> {
        loop {
            let (mark, swaps) = (out.mark(), self.swaps());
            let mut tx = Tx::new(self, self.reader(reads), db);
            tx.charge(out);
            tx.calls = Calls::of(caller, Locked::No);
            tx.counts = true;
            tx.short = haste.work();
            if command.access() == Access::Read {
                tx.snapshot();
            }
            let done = (command.run)(&mut tx, args, out);
            if matches!(done, Err(CommandError::Long)) {
                tx.uncount();
                return done;
            }
            if self.swaps() == swaps {
                publish(caller, tx.calls.messages);
                return done;
            }
            // The databases were swapped meanwhile: this may have read another one's keys.
            out.truncate(mark);
        }
    }

    /// Executes a command that may write, under the locks of its keys.
    fn write(
        &self,
        command: &Command,
        (db, may_wait, haste): (usize, bool, Haste),
        args: &[Arg<'_>],
        (caller, out): (Option<&dyn Caller>, &mut Out<'_>),
    ) -> Result<Option<Arc<Waiter>>, CommandError> {
        let patience = haste.patience();
        let (mark, mut more) = (out.mark(), MoreLocks::default());
        let (_held, wants, messages, put) = loop {
            if more.all() && haste == Haste::Short {
                // Waiting for all locks holds up whoever waits for the thread.
                return Err(CommandError::Long);
            }
            let held = if more.all() || command.access() == Access::WriteAll {
                Some(self.lock_everything())
            } else if command.spec.keys == ONE {
                self.lock(args.get(1).into_iter().map(|key| (db, *key)), patience)
            } else {
                let places = command.spec.keys.places(args);
                let named = places.iter().map(|at| (db, args[*at]));
                // Any lock prevents the databases from being swapped meanwhile.
                let any = places.is_empty().then_some((db, &b""[..]));
                self.lock(named.chain(more.names()).chain(any), patience)
            };
            let held = held.ok_or(CommandError::Long)?;
            let done = self.transact(db, |tx| {
                out.truncate(mark);
                tx.may_wait = may_wait;
                tx.short = haste.work();
                tx.charge(out);
                tx.calls = Calls::of(caller, more.locked());
                (command.run)(tx, args, out)?;
                Ok((tx.wants.take(), std::mem::take(&mut tx.calls.messages)))
            });
            match done {
                Err(CommandError::Unlocked(unlocked)) => more.add(unlocked),
                done => {
                    let ((wants, messages), put) = done?;
                    break (held, wants, messages, put);
                }
            }
        };
        self.serve(put);
        publish(caller, messages);
        Ok(wants.map(|wants| self.waiting.enter(db, *wants, out.protocol())))
    }
}

/// Hands over what scripts have published.
fn publish(caller: Option<&dyn Caller>, messages: Vec<Message>) {
    if let Some(caller) = caller
        && !messages.is_empty()
    {
        caller.publish(messages);
    }
}

/// How often a script is executed again with the locks of more keys before it gets all.
const MAX_RETRIES: usize = 4;

/// The locks that scripts turned out to need.
#[derive(Debug, Default)]
struct MoreLocks {
    unlocked: Unlocked,
    retries: usize,
}

impl MoreLocks {
    fn add(&mut self, unlocked: Unlocked) {
        self.retries += 1;
        self.unlocked.all |= unlocked.all || self.retries > MAX_RETRIES;
        self.unlocked.keys.extend(unlocked.keys);
    }

    fn all(&self) -> bool {
        self.unlocked.all
    }

    /// Returns them as names of keys. The lock of a key is that of its name in all databases.
    fn names(&self) -> impl Iterator<Item = (usize, &[u8])> + Clone {
        self.unlocked.keys.iter().map(|key| (0, key.as_slice()))
    }

    fn locked(&self) -> Locked<'_> {
        if self.unlocked.all {
            Locked::All
        } else {
            Locked::Keys(&self.unlocked.keys)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Part;
    use crate::client::Clients;
    use crate::commands;
    use crate::fixture::{Fixture, words};
    use crate::reply::Protocol;

    /// `SUNIONSTORE` of a large set took as much memory as it has, which no limit saw; `KEYS` and
    /// others, too. `SUNION` of a set that was named a million times took a million copies.
    #[test]
    fn intermediate_results_count_as_their_client_s() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let member = "m".repeat(1000);
        for n in 0..1500 {
            fixture.call(&data, &format!("sadd s {member}{n}"));
            fixture.call(&data, &format!("zadd z {n} {member}{n}"));
            fixture.call(&data, &format!("rpush l {member}{n}"));
            fixture.call(&data, &format!("set {member}{n} x"));
            fixture.call(&data, &format!("hset h {n} {}", member.repeat(30)));
        }
        fixture.call(&data, &format!("sadd few {member}1 {member}2 {member}3"));
        let few = "few ".repeat(1000);
        let [sunion, sdiff] = ["sunion", "sdiff"].map(|name| format!("{name} {few}"));
        let [zunion, zinter] = ["zunion", "zinter"].map(|name| format!("{name} 1000 {few}"));
        for (line, reply) in [
            (&sunion[..], "*3\r\n"),
            (&sdiff[..], "*0\r\n"),
            (&zunion[..], "*3\r\n"),
            (&zinter[..], "*3\r\n"),
            ("sscan s 0 count 3000 match x*", "*2\r\n$1\r\n0\r\n*0\r\n"),
            ("zscan z 0 count 3000 match x*", "*2\r\n$1\r\n0\r\n*0\r\n"),
            ("hscan h 0 count 100 match x*", "*2\r\n"),
            ("hrandfield h 60", "*60\r\n"),
            ("dump s", "-ERR the payload takes more than 1048576 bytes"),
            ("sunionstore d s s", ":1500\r\n"),
            ("sinterstore d s s", ":1500\r\n"),
            ("zunionstore d 2 s z", ":1500\r\n"),
            ("zinterstore d 2 s z", ":1500\r\n"),
            ("zrangestore d z 0 -1", ":1500\r\n"),
            ("zremrangebylex none - +", ":0\r\n"),
            ("sort l alpha limit 0 0", "*0\r\n"),
            ("copy s d replace", ":1\r\n"),
            ("keys *", "*1506\r\n"),
            ("scan 0 count 3000 match m*", "*2\r\n"),
            ("scan 0 count 3000 match none*", "*2\r\n"),
            ("setrange string 2000000 x", ":2000001\r\n"),
        ] {
            let words = words(line);
            let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            let command = commands::data().find(|known| known.spec.name == words[0]);
            for limit in [0, 1 << 20] {
                let clients = Clients::default();
                clients.budget().set_limit(limit);
                let client = clients.enter(1, "a:1".into(), "b:2".into(), true).unwrap();
                let mut out = Vec::new();
                let mut replies = Out::for_client(&mut out, Protocol::Resp2, &client.account);
                data.run(command.unwrap(), 0, &args, Reads::Applied, &mut replies);
                let takes_none = line.contains("none");
                assert_eq!(client.is_evicted(), limit > 0 && !takes_none, "{line}");
                assert!(limit > 0 || out.starts_with(reply.as_bytes()), "{line}");
                for part in [Part::Scratch, Part::Changes] {
                    assert_eq!(client.account.of(part), 0, "{line}");
                }
            }
        }
    }
}
