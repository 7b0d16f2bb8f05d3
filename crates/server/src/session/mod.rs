//! A connection's state, and how a command is executed on it.

mod acl;
mod admin;
mod connection;
mod help;
mod info;
mod introspect;
mod multi;
mod pubsub;
#[cfg(test)]
mod tests;

use crate::budget::Part;
use crate::client::Client;
use crate::command::{Arg, Command, Failed, Keys, ONE, is};
use crate::config::Settings;
use crate::data::Reads;
use crate::data::keys::object_subcommand;
use crate::data::multi::Watch;
use crate::data::sort::reads_others;
use crate::data::together::{Plain, SHORT};
use crate::data::waiting::Waiter;
use crate::reply::{Out, Protocol};
use crate::resp::Limits;
use crate::server::Server;
use crate::table::{Does, Entry, add};
use crate::users::{DEFAULT, User};
pub(crate) use info::resident;
use multi::Multi;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Arguments of more bytes are given to the store where other connections do not wait for it.
const LARGE: usize = 1 << 20;
/// How a connection goes on after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// As before.
    Go,
    /// It waits for an element before it answers.
    Wait,
    /// It waits so long before it answers.
    Sleep(Duration),
    /// It ends, when it has answered.
    Close,
    /// It ends, and the server too.
    Shutdown,
}

/// How a session's command ends.
pub type Done = Result<Flow, Failed>;

/// Where a command stands to `MULTI`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InMulti {
    /// It is queued.
    Queued,
    /// It runs at once.
    Now,
    /// It is refused.
    Refused,
}

/// A command on a connection or on the server.
#[derive(Debug)]
pub struct SessionCommand {
    /// Its name, in lower case.
    pub name: &'static str,
    /// As [`Command::arity`].
    pub arity: i32,
    /// Its categories.
    pub categories: &'static [&'static str],
    /// Its keys.
    pub keys: Keys,
    /// Strangers may use it.
    pub for_strangers: bool,
    /// Who listens to channels may use it, in RESP2.
    pub while_subscribed: bool,
    /// What `MULTI` does to it.
    pub in_multi: InMulti,
    /// It may take long.
    pub long: bool,
    /// What runs it.
    pub run: fn(&mut Context<'_>, &[Arg<'_>], &mut Out<'_>) -> Done,
}

impl SessionCommand {
    /// What most of them are.
    const fn new(
        name: &'static str,
        arity: i32,
        categories: &'static [&'static str],
        run: fn(&mut Context<'_>, &[Arg<'_>], &mut Out<'_>) -> Done,
    ) -> Self {
        Self {
            name,
            arity,
            categories,
            keys: Keys::None,
            for_strangers: false,
            while_subscribed: false,
            in_multi: InMulti::Queued,
            long: false,
            run,
        }
    }

    const fn for_strangers(mut self) -> Self {
        self.for_strangers = true;
        self
    }

    const fn while_subscribed(mut self) -> Self {
        self.while_subscribed = true;
        self
    }

    const fn in_multi(mut self, how: InMulti) -> Self {
        self.in_multi = how;
        self
    }

    const fn long(mut self) -> Self {
        self.long = true;
        self
    }
}

/// All of them.
pub fn commands() -> impl Iterator<Item = &'static SessionCommand> {
    connection::COMMANDS
        .iter()
        .chain(multi::COMMANDS)
        .chain(pubsub::COMMANDS)
        .chain(admin::COMMANDS)
        .chain(acl::COMMANDS)
        .chain(info::COMMANDS)
        .chain(introspect::COMMANDS)
}

/// `CLIENT REPLY`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Replies {
    #[default]
    On,
    Off,
    /// Not to the command that is running.
    SkipThis,
    /// Nor to the next one.
    SkipNext,
}

/// A connection's state.
#[derive(Debug)]
pub struct Session {
    client: Arc<Client>,
    db: usize,
    protocol: Protocol,
    user: Arc<User>,
    /// It has said who it is, or did not have to.
    known: bool,
    multi: Option<Multi>,
    watch: Watch,
    channels: BTreeSet<Vec<u8>>,
    patterns: BTreeSet<Vec<u8>>,
    /// Bytes of their names.
    names: usize,
    replies: Replies,
    /// It waits for an element.
    waiter: Option<Arc<Waiter>>,
    /// What it gets is not answered.
    waits_silently: bool,
    /// Something was written, or read, that has to be durable before this is answered.
    unsettled: bool,
    settings: Arc<Settings>,
    settings_generation: u64,
    users_generation: u64,
    /// Commands of this batch.
    batch: u64,
    /// When the last command ended.
    clock: Instant,
    last: Option<&'static str>,
}

/// What a session's command works on.
#[derive(Debug)]
pub struct Context<'s> {
    /// The server.
    pub server: &'s Server,
    /// The connection.
    pub session: &'s mut Session,
}

impl Context<'_> {
    /// Makes what this connection has written and read durable, before others are told of it, or something is read that
    /// is durable only.
    fn settle(&mut self) -> Result<(), Failed> {
        if self.session.unsettled {
            let data = &self.server.data;
            tokio::task::block_in_place(|| data.settle(data.applied()))?;
            self.session.unsettled = false;
        }
        Ok(())
    }
}

impl Session {
    /// A new connection's.
    #[must_use]
    pub fn new(server: &Server, client: Arc<Client>) -> Self {
        let mut session = Self {
            client,
            db: 0,
            protocol: Protocol::default(),
            user: default_user(server),
            known: false,
            multi: None,
            watch: Watch::default(),
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            names: 0,
            replies: Replies::default(),
            waiter: None,
            waits_silently: false,
            unsettled: false,
            settings: server.settings(),
            settings_generation: server.generation(),
            users_generation: server.users.generation(),
            batch: 0,
            clock: Instant::now(),
            last: None,
        };
        session.known = session.user.on && session.user.nopass;
        session.client.names().user.clone_from(&session.user.name);
        session
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// What its requests may be.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            bulk: self.settings.proto_max_bulk_len,
            arguments: self.settings.proto_max_arguments,
            stranger: !self.known,
        }
    }

    /// It has said who it is, or did not have to.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// The settings that it goes by.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Of how many commands the answers have to be made durable before they are sent, if they have to; asked once for a batch.
    pub fn take_unsettled(&mut self) -> Option<u64> {
        std::mem::take(&mut self.unsettled).then_some(self.batch)
    }

    /// A batch of commands begins. False if its user is gone: the connection ends.
    pub fn begin_batch(&mut self, server: &Server) -> bool {
        self.client.touch();
        self.clock = Instant::now();
        self.batch = 0;
        if self.settings_generation != server.generation() {
            self.settings_generation = server.generation();
            self.settings = server.settings();
        }
        self.renew_user(server)
    }

    /// Goes by its user's rights as they are now. False if the user is gone, or may not hear what this connection
    /// listens to: it ends.
    fn renew_user(&mut self, server: &Server) -> bool {
        if self.users_generation == server.users.generation() {
            return true;
        }
        self.users_generation = server.users.generation();
        let Some(user) = server.users.get(self.user.name.as_bytes()) else {
            return false;
        };
        self.user = user;
        let mut channels = self.channels.iter();
        let mut patterns = self.patterns.iter();
        channels.all(|name| self.user.may_hear(name, false))
            && patterns.all(|name| self.user.may_hear(name, true))
    }

    /// A batch has ended: others may see what this one did.
    pub fn end_batch(&mut self) {
        // ORDERING: Relaxed; shown only.
        self.client.db.store(self.db, Ordering::Relaxed);
        if let Some(last) = self.last.take() {
            let mut names = self.client.names();
            if names.command != last {
                last.clone_into(&mut names.command);
            }
        }
    }

    /// Executes a command.
    pub fn execute(&mut self, server: &Server, args: &[Arg<'_>], out: &mut Vec<u8>) -> Flow {
        add(&server.stats.commands, 1);
        if args.first().is_some_and(|name| connection::is_http(name)) {
            let client = &self.client.address;
            tracing::warn!(
                client = %client,
                "possible SECURITY ATTACK: POST or Host: was sent, as a web page can make a browser on this machine do, \
                 with commands behind it; the connection is closed, and nothing of it executed"
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
        let entry = args.first().and_then(|name| server.table.find(name));
        let client = Arc::clone(&self.client);
        let mut reply = Out::for_client(out, self.protocol, &client);
        let mut flow = match self.admit(server, entry, args) {
            Ok(Admitted::Run(entry)) => {
                self.last = Some(entry.name);
                self.run(server, entry, args, &mut reply)
            }
            Ok(Admitted::Queue(entry)) => match self.queue(entry, args) {
                Ok(()) => {
                    reply.status("QUEUED");
                    Flow::Go
                }
                Err(e) => {
                    reply.error(&e.to_string());
                    Flow::Go
                }
            },
            Err(e) => {
                if let Some(entry) = entry {
                    add(&entry.stats.rejected, 1);
                }
                add(&server.stats.errors, 1);
                let mut text = e.to_string();
                if entry.is_some_and(|entry| entry.name == "exec") {
                    self.discard();
                    let reason = text.trim_start_matches("ERR ");
                    text = format!("EXECABORT Transaction discarded because of: {reason}");
                } else if let Some(multi) = &mut self.multi {
                    multi.spoil();
                }
                reply.error(&text);
                Flow::Go
            }
        };
        let overflowed = reply.overflowed();
        client.hold(Part::Gathered, 0);
        client.hold(Part::GatheredWithin, 0);
        if client.is_evicted() {
            // That was logged.
            *out = Vec::new();
            return Flow::Close;
        }
        if overflowed {
            // Its end is missing. What the command wrote stays written.
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

    /// Executes as many of these as can be executed together, from the first on: how many; 0 if it has to go alone.
    pub fn run_together<'a>(
        &mut self,
        server: &Server,
        mut commands: impl Iterator<Item = Plain<'a>>,
        out: &mut Vec<u8>,
    ) -> usize {
        if !self.is_plain() {
            return 0;
        }
        let (Some(first), Some(second)) = (commands.next(), commands.next()) else {
            return 0;
        };
        let mut all = Vec::with_capacity(2 + commands.size_hint().1.unwrap_or(0));
        all.extend([first, second]);
        all.extend(commands);
        let client = Arc::clone(&self.client);
        let mut reply = Out::for_client(out, self.protocol, &client);
        let done = (server.data).run_together(self.db, &all, self.reads(), &mut reply);
        let sets = all.iter().any(|command| command.value.is_some());
        self.unsettled |= done > 0 && sets;
        self.were_executed(server, &all[..done]);
        done
    }

    /// Nothing stands between a command on data and its answer.
    fn is_plain(&self) -> bool {
        self.known
            && self.user.everything
            && self.multi.is_none()
            && self.replies == Replies::On
            && self.channels.is_empty()
            && self.patterns.is_empty()
    }

    /// Counts commands that were executed together.
    fn were_executed(&mut self, server: &Server, commands: &[Plain<'_>]) {
        let Some(last) = commands.last() else { return };
        let count = commands.len();
        self.batch += count as u64;
        add(&server.stats.commands, count as u64);
        let took = self.lap() / count as u32;
        let is_set = |command: &&Plain<'_>| command.value.is_some();
        let sets = commands.iter().filter(is_set).count();
        for (name, calls) in [("set", sets), ("get", count - sets)] {
            if let Some(entry) = server.table.find(name.as_bytes()).filter(|_| calls > 0) {
                entry.stats.note(took, calls as u64);
                if (name == "set") == is_set(&last) {
                    self.last = Some(entry.name);
                }
            }
        }
        if self.is_slow(took) {
            for command in commands {
                match command.value {
                    Some(value) => self.note_slow(server, &[b"set", command.key, value], took),
                    None => self.note_slow(server, &[b"get", command.key], took),
                }
            }
        }
    }

    /// Asks for what these commands are going to look at, so that waits for memory overlap.
    pub fn prefetch<'a>(&self, server: &Server, commands: impl Iterator<Item = &'a [Arg<'a>]>) {
        if !self.is_plain() {
            return;
        }
        let keys = commands.filter_map(|args| {
            let entry = server.table.find(args.first()?)?;
            let key = args.get(1).filter(|key| key.len() <= SHORT);
            key.filter(|_| entry.keys() == ONE).copied()
        });
        let keys: Vec<Arg<'_>> = keys.collect();
        if keys.len() > 1 {
            server.data.prefetch(self.db, &keys);
        }
    }

    /// True if the command may run, or be queued.
    fn admit<'e>(
        &self,
        server: &Server,
        entry: Option<&'e Entry>,
        args: &[Arg<'_>],
    ) -> Result<Admitted<'e>, Failed> {
        let Some(entry) = entry else {
            return Err(unknown_command(args));
        };
        if !entry.takes(args.len()) {
            return Err(Failed::arity(entry.name));
        }
        let session = match entry.does {
            Does::Session(command) => Some(command),
            Does::Data(_) => None,
        };
        if !self.known && !session.is_some_and(|command| command.for_strangers) {
            return Err(Failed::reply("NOAUTH Authentication required."));
        }
        let in_multi = session.map_or(InMulti::Queued, |command| command.in_multi);
        if self.multi.is_some() && in_multi == InMulti::Refused {
            return Err(Failed::reply(
                "ERR Command not allowed inside a transaction",
            ));
        }
        if !self.user.everything && !session.is_some_and(|command| command.for_strangers) {
            self.permit(entry, args).inspect_err(|_| {
                add(&server.stats.denied, 1);
            })?;
        }
        let listens = !self.channels.is_empty() || !self.patterns.is_empty();
        if listens
            && self.protocol == Protocol::Resp2
            && !session.is_some_and(|command| command.while_subscribed)
        {
            let name = entry.name;
            return Err(Failed::reply(format!(
                "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
            )));
        }
        if self.multi.is_some() && in_multi == InMulti::Queued {
            check_subcommand(entry.name, args)?;
            return Ok(Admitted::Queue(entry));
        }
        Ok(Admitted::Run(entry))
    }

    /// Checks the rights of a user who may not do everything.
    fn permit(&self, entry: &Entry, args: &[Arg<'_>]) -> Result<(), Failed> {
        if !self.user.may(entry) || !self.user.admin && for_admins(entry.name, args) {
            let subcommand = container(entry.name)
                .then(|| args.get(1))
                .flatten()
                .map(|word| format!("|{}", String::from_utf8_lossy(word).to_lowercase()));
            return Err(Failed::reply(format!(
                "NOPERM this user has no permissions to run the '{}{}' command",
                entry.name,
                subcommand.unwrap_or_default()
            )));
        }
        let places = entry.keys().places(args);
        let mut keys = places.iter().filter_map(|at| args.get(*at));
        let allowed = if OVER_ALL_KEYS.contains(&entry.name) {
            self.user.may_touch_all()
        } else {
            keys.all(|key| self.user.may_touch(key))
        };
        if !allowed {
            return Err(Failed::reply(
                "NOPERM this user has no permissions to access one of the keys used as arguments",
            ));
        }
        if entry.name.starts_with("sort")
            && !self.user.may_touch_all()
            && let Some(option) = reads_others(args)
        {
            return Err(Failed::reply(format!(
                "ERR {option} option of SORT denied due to insufficient ACL permissions"
            )));
        }
        let (channels, is_pattern) = match entry.name {
            "publish" => (args.get(1..2), false),
            "subscribe" => (args.get(1..), false),
            "psubscribe" => (args.get(1..), true),
            _ => (None, false),
        };
        let mut channels = channels.unwrap_or_default().iter();
        if !channels.all(|channel| self.user.may_hear(channel, is_pattern)) {
            return Err(Failed::reply(
                "NOPERM this user has no permissions to access one of the channels used as arguments",
            ));
        }
        Ok(())
    }

    /// Runs a command that may run.
    fn run(&mut self, server: &Server, entry: &Entry, args: &[Arg<'_>], out: &mut Out<'_>) -> Flow {
        let mark = out.mark();
        let large = || args.iter().any(|arg| arg.len() > LARGE);
        let flow = if entry.long || large() {
            tokio::task::block_in_place(|| self.run_here(server, entry, args, out))
        } else {
            self.run_here(server, entry, args, out)
        };
        if out.starts_with(mark, b'-') {
            add(&entry.stats.failed, 1);
            add(&server.stats.errors, 1);
        }
        let took = self.lap();
        self.note_time(server, entry, args, took);
        flow
    }

    /// Time since the last command ended.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        let took = now.saturating_duration_since(self.clock);
        self.clock = now;
        took
    }

    /// Notes how long a command took.
    fn note_time(&self, server: &Server, entry: &Entry, args: &[Arg<'_>], took: Duration) {
        entry.stats.note(took, 1);
        if self.is_slow(took) {
            self.note_slow(server, args, took);
        }
    }

    /// Whether what took so long is for the slow log.
    fn is_slow(&self, took: Duration) -> bool {
        let slow = u128::try_from(self.settings.slowlog_log_slower_than);
        slow.is_ok_and(|slow| took.as_micros() >= slow)
    }

    fn note_slow(&self, server: &Server, args: &[Arg<'_>], took: Duration) {
        let name = self.client.names().name.clone();
        let client = (self.client.address.clone(), name);
        let most = self.settings.slowlog_max_len;
        server.slowlog.note(args, took, client, most);
    }

    fn run_here(
        &mut self,
        server: &Server,
        entry: &Entry,
        args: &[Arg<'_>],
        out: &mut Out<'_>,
    ) -> Flow {
        match entry.does {
            Does::Data(command) => self.run_data(server, command, args, out),
            Does::Session(command) => self.run_session(server, command, args, out),
        }
    }

    fn run_data(
        &mut self,
        server: &Server,
        command: &Command,
        args: &[Arg<'_>],
        out: &mut Out<'_>,
    ) -> Flow {
        // Keys are counted as they are applied, whatever is durable.
        let reads = match command.name {
            "dbsize" => Reads::Applied,
            _ => self.reads(),
        };
        let (unsettled, waiter) = server.data.run_or_wait(command, self.db, args, reads, out);
        self.unsettled |= unsettled;
        if waiter.is_none() {
            return Flow::Go;
        }
        self.client.set_waiter(waiter.clone());
        self.waiter = waiter;
        Flow::Wait
    }

    /// What its commands read: what it has written, too.
    fn reads(&self) -> Reads {
        if self.unsettled {
            Reads::Applied
        } else {
            Reads::Durable
        }
    }

    /// What it waits with, if it waits for an element.
    #[must_use]
    pub fn waiter(&self) -> Option<Arc<Waiter>> {
        self.waiter.clone()
    }

    /// It has waited: the reply goes to `out`. What it got has to be durable before.
    pub fn waited(&mut self, server: &Server, out: &mut Vec<u8>) {
        self.client.set_waiter(None);
        let reply = self.waiter.take().map(|waiter| waiter.take_reply());
        let reply = reply.unwrap_or_default();
        if reply.starts_with(b"-") {
            add(&server.stats.errors, 1);
        }
        if !self.waits_silently {
            out.extend_from_slice(&reply);
        }
        self.unsettled = true;
    }

    fn run_session(
        &mut self,
        server: &Server,
        command: &SessionCommand,
        args: &[Arg<'_>],
        out: &mut Out<'_>,
    ) -> Flow {
        let mark = out.mark();
        let mut context = Context {
            server,
            session: self,
        };
        let done = help::answer(command.name, args, out).and_then(|helped| match helped {
            true => Ok(Flow::Go),
            false => (command.run)(&mut context, args, out),
        });
        match done {
            Ok(flow) => flow,
            Err(e) => {
                out.truncate(mark);
                out.error(&e.to_string());
                Flow::Go
            }
        }
    }

    /// It is over: nothing of it stays with the server.
    pub fn leave(&mut self, server: &Server) {
        self.unsubscribe_all(server);
        self.watch.clear();
        if let Some(waiter) = self.waiter.take() {
            server.data.give_up(&waiter, |_| {});
            self.client.set_waiter(None);
        }
        server.clients.leave(self.client.id);
    }
}

enum Admitted<'e> {
    Run(&'e Entry),
    Queue(&'e Entry),
}

/// Commands that give away what any key holds.
const OVER_ALL_KEYS: [&str; 4] = ["bc.count", "bc.prefix", "bc.range", "bc.revrange"];

/// True for what only administrators may do of a command that others may use.
fn for_admins(name: &str, args: &[Arg<'_>]) -> bool {
    let of_client = ["kill", "list", "no-evict", "unblock"];
    name == "client"
        && args
            .get(1)
            .is_some_and(|word| of_client.iter().any(|known| is(word, known)))
}

/// Refuses subcommands that there are not, before they are queued.
fn check_subcommand(name: &str, args: &[Arg<'_>]) -> Result<(), Failed> {
    let known: &[&str] = match name {
        "object" => return object_subcommand(args).map(|_| ()),
        "client" => connection::OF_CLIENT,
        "command" if args.len() > 1 => introspect::OF_COMMAND,
        "config" => &["get", "set", "resetstat", "rewrite"],
        "latency" => &["latest", "history", "reset", "doctor", "histogram"],
        "memory" => &["usage", "doctor", "purge"],
        "pubsub" => &["channels", "numsub", "numpat"],
        "slowlog" => &["get", "len", "reset"],
        _ => return Ok(()),
    };
    let word = args.get(1).copied().unwrap_or_default();
    if is(word, "help") || known.iter().any(|known| is(word, known)) {
        Ok(())
    } else {
        Err(Failed::unknown_subcommand(name, word))
    }
}

/// The default user.
fn default_user(server: &Server) -> Arc<User> {
    let found = server.users.get(DEFAULT.as_bytes());
    found.unwrap_or_else(|| Arc::new(User::nobody(DEFAULT)))
}

/// A command's subcommand, as it was sent and in lower case, and what follows it.
fn subcommand<'b, 'a>(args: &'b [Arg<'a>]) -> (Arg<'a>, String, &'b [Arg<'a>]) {
    let word = args.get(1).copied().unwrap_or_default();
    let lower = String::from_utf8_lossy(word).to_lowercase();
    (word, lower, args.get(2..).unwrap_or_default())
}

/// Commands that are told apart by their first argument.
fn container(name: &str) -> bool {
    [
        "acl", "client", "command", "config", "debug", "latency", "memory", "object", "pubsub",
        "slowlog",
    ]
    .contains(&name)
}

fn unknown_command(args: &[Arg<'_>]) -> Failed {
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
    Failed::reply(format!(
        "ERR unknown command '{name}', with args beginning with: {with}"
    ))
}
