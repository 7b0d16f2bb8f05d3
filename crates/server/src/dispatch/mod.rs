//! The path of a command: admission, execution, statistics.
//!
//! ```text
//! commands of a pipeline --> admission --> steps: GETs and plain SETs, as many as follow one another
//!                                      +-> any other command, by itself
//!                                      +-> the queue of MULTI
//! ```
//!
//! Every command is admitted in the same way (`admit`), whether it is executed in a batch of steps
//! or by itself. A step that needs more than a step, such as a `SET` that replaces a large
//! collection, is executed by itself.

#[cfg(test)]
mod tests;

use crate::budget::Part;
use crate::caller::SessionCaller;
use crate::command::{Access, Command, InMulti, ONE};
use crate::conversation::ENOUGH_OUTPUT;
use crate::data::Reads;
use crate::data::caller::Caller;
use crate::error::CommandError;
use crate::execute::Haste;
use crate::execute::batch::KeyStep;
use crate::parse::{Arg, is};
use crate::reply::{Out, Protocol};
use crate::server::Server;
use crate::session::{Context, Flow, Handler, LARGE, Replies, Session};
use crate::table::{Entry, Table, add};
use crate::{commands, rights};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest key or value, in bytes, of a command that is executed in a batch, or prefetched.
const MAX_BATCHED: usize = 4 << 10;

/// Commands with more arguments are executed where other connections do not wait.
const MANY: usize = 4096;

/// The decision of admission.
enum Admitted {
    Run(Handler),
    Queue(Handler),
}

/// Why a command was not admitted.
struct Refused {
    error: CommandError,
    /// The user lacks a right.
    denied: bool,
}

impl From<CommandError> for Refused {
    fn from(error: CommandError) -> Self {
        Self {
            error,
            denied: false,
        }
    }
}

/// Finds entries of the table; the same command often follows itself.
struct Finder<'t> {
    table: &'t Table,
    last: Option<&'t Entry>,
}

impl<'t> Finder<'t> {
    fn new(table: &'t Table) -> Self {
        Self { table, last: None }
    }

    /// Returns the step that a command is, if it is one with short arguments.
    fn step<'a>(&mut self, args: &[Arg<'a>]) -> Option<(&'t Entry, KeyStep<'a>)> {
        let entry = self.find(args)?;
        let step = entry.data.and_then(|command| command.step)?;
        if args.iter().any(|arg| arg.len() > MAX_BATCHED) {
            return None;
        }
        Some((entry, (*args.get(1)?, step(args)?)))
    }

    fn find(&mut self, args: &[Arg<'_>]) -> Option<&'t Entry> {
        let name = args.first()?;
        if !self.last.is_some_and(|last| is(name, last.name())) {
            self.last = self.table.find(name);
        }
        self.last
    }
}

/// Commands at the start of a batch that are steps.
struct Steps<'t, 'a> {
    entries: Vec<&'t Entry>,
    steps: Vec<KeyStep<'a>>,
}

impl Session {
    /// Executes commands in order, at least one, until one of them ends the batch or there are
    /// enough replies. Returns what the connection does next, and how many commands were executed.
    pub fn execute_batch(
        &mut self,
        server: &Server,
        commands: &[&[Arg<'_>]],
        out: &mut Vec<u8>,
    ) -> (Flow, usize) {
        let mut done = 0;
        let mut prefetched = false;
        while let Some(args) = commands.get(done) {
            let steps = self.execute_steps(server, &commands[done..], out);
            done += steps;
            if steps == 0 {
                if !prefetched && commands.len() - done > 1 {
                    prefetched = true;
                    self.prefetch(server, &commands[done..]);
                }
                done += 1;
                if !args.is_empty() {
                    let flow = self.execute(server, args, out);
                    if flow != Flow::Go {
                        return (flow, done);
                    }
                }
            }
            if self.client.is_evicted() {
                return (Flow::Close, done);
            }
            if out.len() >= ENOUGH_OUTPUT {
                break;
            }
        }
        (Flow::Go, done)
    }

    /// Executes the first commands as one batch of steps. Returns how many; 0 if the first one has
    /// to be executed by itself.
    fn execute_steps(
        &mut self,
        server: &Server,
        commands: &[&[Arg<'_>]],
        out: &mut Vec<u8>,
    ) -> usize {
        let Steps { entries, steps } = self.admit_steps(server, commands);
        if steps.is_empty() {
            return 0;
        }
        let client = Arc::clone(&self.client);
        let mut reply = Out::for_client(out, self.protocol, &client.account);
        let done = (server.data).execute_steps(self.db, &steps, self.reads(), &mut reply);
        if done == 0 {
            return 0;
        }
        let writes = |entry: &&Entry| entry.spec.access == Some(Access::Write);
        self.unsettled |= entries.iter().any(writes);
        self.last = entries[..done].last().map(|entry| entry.name());
        self.batch += done as u64;
        add(&server.stats.commands, done as u64);
        self.note_time(server, &entries[..done], &commands[..done]);
        done
    }

    /// Admits the first commands, as many as are steps. A single one gains nothing from a batch.
    fn admit_steps<'t, 'a>(&self, server: &'t Server, commands: &[&[Arg<'a>]]) -> Steps<'t, 'a> {
        let mut admitted = Steps {
            entries: Vec::new(),
            steps: Vec::new(),
        };
        let mut finder = Finder::new(&server.table);
        let mut found = commands.iter().map_while(|args| {
            let (entry, step) = finder.step(args)?;
            Some((*args, entry, step))
        });
        let (Some(first), Some(second)) = (found.next(), found.next()) else {
            return admitted;
        };
        if self.replies != Replies::On {
            return admitted;
        }
        admitted.entries.reserve(commands.len());
        admitted.steps.reserve(commands.len());
        for (args, entry, step) in [first, second].into_iter().chain(found) {
            if !matches!(self.admit(Some(entry), args), Ok(Admitted::Run(_))) {
                break;
            }
            admitted.entries.push(entry);
            admitted.steps.push(step);
        }
        admitted
    }

    /// Prefetches the records of commands that follow, so that their waits for memory overlap.
    fn prefetch(&self, server: &Server, commands: &[&[Arg<'_>]]) {
        if !self.authenticated || self.transaction.is_some() {
            return;
        }
        let mut finder = Finder::new(&server.table);
        let keys = commands.iter().filter_map(|args| {
            let entry = finder.find(args)?;
            let key = args.get(1).filter(|key| key.len() <= MAX_BATCHED);
            key.filter(|_| entry.spec.keys == ONE).copied()
        });
        let keys: Vec<Arg<'_>> = keys.collect();
        if keys.len() > 1 {
            server.data.prefetch(self.db, &keys);
        }
    }

    /// Executes one command by itself, or queues it.
    pub fn execute(&mut self, server: &Server, args: &[Arg<'_>], out: &mut Vec<u8>) -> Flow {
        add(&server.stats.commands, 1);
        if args.first().is_some_and(|name| is_http(name)) {
            let client = &self.client.address;
            tracing::warn!(
                client = %client,
                "possible SECURITY ATTACK: POST or Host: was sent, as a web page can make a browser on this machine do, \
                 with commands behind it; the connection is closed, and none of them is executed"
            );
            return Flow::Close;
        }
        self.batch += 1;
        let mark = out.len();
        let this = match self.replies {
            Replies::SkipNext => Replies::SkipThis,
            other => other,
        };
        self.replies = this;
        let client = Arc::clone(&self.client);
        let mut reply = Out::for_client(out, self.protocol, &client.account);
        let mut flow = self.reply(server, args, &mut reply);
        let overflowed = reply.overflowed();
        client.hold(Part::Gathered, 0);
        client.hold(Part::GatheredWithin, 0);
        if client.is_evicted() {
            // The eviction was logged.
            *out = Vec::new();
            return Flow::Close;
        }
        if overflowed {
            // The end of the reply is missing. The command's changes stay written.
            let client = &client.address;
            tracing::warn!(client = %client, "disconnected: its replies are longer than 1 GiB");
            out.truncate(mark);
            flow = Flow::Close;
        }
        self.waits_silently = this != Replies::On;
        match (this, self.replies) {
            (Replies::SkipThis, now) => {
                out.truncate(mark);
                if now == Replies::SkipThis {
                    self.replies = Replies::On;
                }
            }
            (_, Replies::Off | Replies::SkipNext) => out.truncate(mark),
            _ => {}
        }
        flow
    }

    /// Admits a command, and executes, queues or refuses it.
    fn reply(&mut self, server: &Server, args: &[Arg<'_>], out: &mut Out<'_>) -> Flow {
        let entry = args.first().and_then(|name| server.table.find(name));
        match (entry, self.admit(entry, args)) {
            (Some(entry), Ok(Admitted::Run(handler))) => {
                self.run(server, entry, handler, args, out)
            }
            (Some(entry), Ok(Admitted::Queue(handler))) => {
                match self.queue(entry, handler, args) {
                    Ok(()) => out.status("QUEUED"),
                    Err(e) => out.error(&e.to_string()),
                }
                Flow::Go
            }
            (entry, Err(refused)) => {
                self.refuse(server, entry, &refused, out);
                Flow::Go
            }
            (None, Ok(_)) => Flow::Go,
        }
    }

    /// Replies to a command that was not admitted. A transaction cannot be executed any more.
    fn refuse(
        &mut self,
        server: &Server,
        entry: Option<&Entry>,
        refused: &Refused,
        out: &mut Out<'_>,
    ) {
        if let Some(entry) = entry {
            add(&entry.stats.rejected, 1);
        }
        add(&server.stats.errors, 1);
        add(&server.stats.denied, u64::from(refused.denied));
        let mut text = refused.error.to_string();
        if entry.is_some_and(|entry| entry.name() == "exec") {
            self.discard();
            let reason = text.trim_start_matches("ERR ");
            text = format!("EXECABORT Transaction discarded because of: {reason}");
        } else if let Some(transaction) = &mut self.transaction {
            transaction.spoilt = true;
        }
        out.error(&text);
    }

    /// Decides whether a command may be executed, or queued.
    fn admit(&self, entry: Option<&Entry>, args: &[Arg<'_>]) -> Result<Admitted, Refused> {
        let Some(entry) = entry else {
            return Err(unknown_command(args).into());
        };
        let spec = entry.spec;
        if !spec.takes(args.len()) {
            return Err(CommandError::arity(spec.name).into());
        }
        if !self.authenticated && !spec.before_auth {
            return Err(CommandError::reply("NOAUTH Authentication required.").into());
        }
        let in_transaction = self.transaction.is_some();
        if in_transaction && spec.in_multi == InMulti::Refused {
            return Err(CommandError::reply("ERR Command not allowed inside a transaction").into());
        }
        if !spec.before_auth {
            rights::permit(&self.current.user, entry, args).map_err(|error| Refused {
                error,
                denied: true,
            })?;
        }
        if self.is_subscribed() && self.protocol == Protocol::Resp2 && !spec.while_subscribed {
            let name = spec.name;
            return Err(CommandError::reply(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
            ))
            .into());
        }
        let handler = commands::handler(entry).ok_or_else(|| unknown_command(args))?;
        if in_transaction && spec.in_multi == InMulti::Queued {
            spec.check_queued(args)?;
            return Ok(Admitted::Queue(handler));
        }
        Ok(Admitted::Run(handler))
    }

    /// Executes a command that was admitted.
    fn run(
        &mut self,
        server: &Server,
        entry: &Entry,
        handler: Handler,
        args: &[Arg<'_>],
        out: &mut Out<'_>,
    ) -> Flow {
        let mark = out.mark();
        self.last = Some(entry.name());
        let is_large = || args.len() > MANY || args.iter().any(|arg| arg.len() > LARGE);
        let long = entry.spec.long || is_large();
        let haste = if long { Haste::None } else { Haste::Short };
        let mut run = || match handler {
            Handler::Data(command) => self.run_data(server, command, (args, haste), out),
            Handler::Session(command) => {
                let session = &mut *self;
                command.call(&mut Context { server, session }, args, out)
            }
        };
        let flow = if long {
            tokio::task::block_in_place(run)
        } else {
            run()
        };
        if out.starts_with(mark, b'-') {
            add(&entry.stats.failed, 1);
            add(&server.stats.errors, 1);
        }
        self.note_time(server, &[entry], &[args]);
        flow
    }

    /// Executes a command on data. If it turns out to take long, the thread hands its other tasks
    /// over before it is executed again.
    fn run_data(
        &mut self,
        server: &Server,
        command: &Command,
        (args, haste): (&[Arg<'_>], Haste),
        out: &mut Out<'_>,
    ) -> Flow {
        let reads = if command.spec.reads_applied {
            Reads::Applied
        } else {
            self.reads()
        };
        let db = self.db;
        let caller = SessionCaller::new(server, &self.current.user);
        let mut run = |haste| {
            let to = (Some(&caller as &dyn Caller), &mut *out);
            (server.data).run_or_wait(command, (db, haste), args, reads, to)
        };
        let mut done = run(haste);
        if done.long {
            done = tokio::task::block_in_place(|| run(Haste::None));
        }
        self.unsettled |= done.unsettled;
        let messages = caller.into_messages();
        self.publish(server, messages);
        if done.waiter.is_none() {
            return Flow::Go;
        }
        self.client.set_waiter(done.waiter.clone());
        self.waiter = done.waiter;
        Flow::Wait
    }

    /// Returns the time since the last command ended.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        let took = now.saturating_duration_since(self.clock);
        self.clock = now;
        took
    }

    /// Notes the time of commands that were executed together since the last one ended.
    fn note_time(&mut self, server: &Server, entries: &[&Entry], commands: &[&[Arg<'_>]]) {
        let took = self.lap() / u32::try_from(entries.len()).unwrap_or(u32::MAX).max(1);
        let mut counts: SmallVec<[(&Entry, u64); 4]> = SmallVec::new();
        for entry in entries {
            match counts
                .iter_mut()
                .find(|(other, _)| other.index == entry.index)
            {
                Some((_, calls)) => *calls += 1,
                None => counts.push((entry, 1)),
            }
        }
        for (entry, calls) in counts {
            entry.stats.took.note(took, calls);
        }
        let slow = u128::try_from(self.current.settings.slowlog_log_slower_than);
        if slow.is_ok_and(|slow| took.as_micros() >= slow) {
            for args in commands {
                self.note_slow(server, args, took);
            }
        }
    }

    fn note_slow(&self, server: &Server, args: &[Arg<'_>], took: Duration) {
        let name = self.client.names().name.clone();
        let client = (self.client.address.clone(), name);
        let most = self.current.settings.slowlog_max_len;
        server.slowlog.note(args, took, client, most);
    }
}

/// Returns true for the first words of an HTTP request, which a web page can make a browser send to
/// a server on its machine, with commands behind them.
fn is_http(name: Arg<'_>) -> bool {
    is(name, "post") || is(name, "host:")
}

fn unknown_command(args: &[Arg<'_>]) -> CommandError {
    let shown = |arg: &[u8], most: usize| {
        let cut = arg.get(..most).unwrap_or(arg);
        String::from_utf8_lossy(cut).into_owned()
    };
    let name = shown(args.first().copied().unwrap_or_default(), 128);
    let mut with = String::new();
    for arg in args.iter().skip(1) {
        if with.len() >= 128 {
            break;
        }
        with += &format!("'{}' ", shown(arg, 128 - with.len()));
    }
    CommandError::reply(format!(
        "ERR unknown command '{name}', with args beginning with: {with}"
    ))
}
