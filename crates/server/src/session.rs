//! The state of a connection, and the commands that work on it.

use crate::budget::Part;
use crate::client::Client;
use crate::command::{Command, InMulti, Spec, database};
pub use crate::conversation::Flow;
use crate::current::{Current, UserState};
use crate::data::Reads;
use crate::data::tx::Waiter;
use crate::data::watch::Watch;
use crate::error::CommandError;
use crate::execute::exec::Queued;
use crate::parse::Arg;
use crate::reply::{Out, Protocol};
use crate::resp::Limits;
use crate::server::Server;
use crate::table::add;
use crate::{config::Settings, help, table::Entry};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Commands with a longer argument, in bytes, are executed where other connections do not wait.
pub(crate) const LARGE: usize = 1 << 20;
/// A transaction of more commands may take long.
const MANY_STEPS: usize = 100;

/// Approximate memory of a queued command besides its arguments, and of an argument besides its
/// bytes.
const STEP_OVERHEAD: usize = 160;
const ARGUMENT_OVERHEAD: usize = 56;

/// The result of a command on the session.
pub type Done = Result<Flow, CommandError>;

/// Executes a command on the session. Takes its arguments from its name on, and the place for its
/// reply.
pub type SessionFn = fn(&mut Context<'_>, &[Arg<'_>], &mut Out<'_>) -> Done;

/// A command on the session or on the server.
#[derive(Clone, Copy, Debug)]
pub struct SessionCommand {
    /// Its name, categories and so on.
    pub spec: Spec,
    /// The function that executes it.
    pub run: SessionFn,
}

impl SessionCommand {
    /// Returns a command with these categories; see [`Spec::session`].
    #[must_use]
    pub const fn new(
        name: &'static str,
        arity: i32,
        categories: &'static [&'static str],
        run: SessionFn,
    ) -> Self {
        Self {
            spec: Spec::session(name, arity, categories),
            run,
        }
    }

    /// Sets [`Spec::before_auth`].
    #[must_use]
    pub const fn before_auth(mut self) -> Self {
        self.spec.before_auth = true;
        self
    }

    /// Sets [`Spec::while_subscribed`].
    #[must_use]
    pub const fn while_subscribed(mut self) -> Self {
        self.spec.while_subscribed = true;
        self
    }

    /// Sets [`Spec::in_multi`].
    #[must_use]
    pub const fn in_multi(mut self, how: InMulti) -> Self {
        self.spec.in_multi = how;
        self
    }

    /// Sets [`Spec::help`].
    #[must_use]
    pub const fn help(mut self, lines: &'static [crate::command::HelpLine]) -> Self {
        self.spec.help = lines;
        self
    }

    /// Executes the command, or replies with its help. An error is its whole reply.
    pub fn call(&self, context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Flow {
        let mark = out.mark();
        let done = help::answer(&self.spec, args, out).and_then(|helped| {
            if helped {
                Ok(Flow::Go)
            } else {
                (self.run)(context, args, out)
            }
        });
        done.unwrap_or_else(|e| {
            out.truncate(mark);
            out.error(&e.to_string());
            Flow::Go
        })
    }
}

/// The replies that a client wants: `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Replies {
    #[default]
    On,
    Off,
    /// None for the current command.
    SkipThis,
    /// None for the current command and the next one.
    SkipNext,
}

/// A queued command of a transaction.
#[derive(Debug)]
pub(crate) enum Step {
    /// The next one of the commands on data.
    Data,
    /// A command on the session.
    Session(&'static SessionCommand, Vec<Vec<u8>>),
}

/// A transaction between `MULTI` and `EXEC`.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub steps: Vec<Step>,
    /// The commands on data among the steps.
    pub data: Vec<Queued>,
    bytes: usize,
    /// Approximate memory that it takes, in bytes.
    held: usize,
    /// A command was refused, so `EXEC` will be, too.
    pub spoilt: bool,
    /// It may take long.
    pub long: bool,
    /// The database of the next command.
    pub db: usize,
}

/// The executable part of a command of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Handler {
    /// Its transaction.
    Data(&'static Command),
    /// The session.
    Session(&'static SessionCommand),
}

/// The state of a connection.
#[derive(Debug)]
pub struct Session {
    pub(crate) client: Arc<Client>,
    pub(crate) db: usize,
    pub(crate) protocol: Protocol,
    /// The client has authenticated, or need not.
    pub(crate) authenticated: bool,
    pub(crate) transaction: Option<Transaction>,
    pub(crate) watch: Watch,
    pub(crate) channels: BTreeSet<Vec<u8>>,
    pub(crate) patterns: BTreeSet<Vec<u8>>,
    /// The total length of their names in bytes.
    pub(crate) names: usize,
    pub(crate) replies: Replies,
    /// Set while the client waits for a key.
    pub(crate) waiter: Option<Arc<Waiter>>,
    /// The reply that ends its waiting is not sent.
    pub(crate) waits_silently: bool,
    /// Writes or reads of this batch have to be durable before the replies are sent.
    pub(crate) unsettled: bool,
    pub(crate) current: Current,
    /// The number of commands in this batch.
    pub(crate) batch: u64,
    /// The end of the last command.
    pub(crate) clock: Instant,
    /// The name of the last command.
    pub(crate) last: Option<&'static str>,
}

/// The server and the session that a command works on.
#[derive(Debug)]
pub struct Context<'s> {
    /// The server.
    pub server: &'s Server,
    /// The connection's state.
    pub session: &'s mut Session,
}

impl Context<'_> {
    /// Makes durable what this connection has written and read, before others are told of it, or
    /// before something is read that sees only what is durable.
    ///
    /// # Errors
    /// [`CommandError::Write`]: it cannot be made durable.
    pub(crate) fn settle(&mut self) -> Result<(), CommandError> {
        if self.session.unsettled {
            let data = &self.server.data;
            tokio::task::block_in_place(|| data.settle(data.applied()))?;
            self.session.unsettled = false;
        }
        Ok(())
    }
}

impl Transaction {
    /// Returns an empty transaction that begins in this database.
    pub fn new(db: usize) -> Self {
        Self {
            db,
            ..Self::default()
        }
    }
}

impl Session {
    /// Returns the state of a new connection.
    #[must_use]
    pub fn new(server: &Server, client: Arc<Client>) -> Self {
        let mut session = Self {
            client,
            db: 0,
            protocol: Protocol::default(),
            authenticated: false,
            transaction: None,
            watch: Watch::default(),
            channels: BTreeSet::new(),
            patterns: BTreeSet::new(),
            names: 0,
            replies: Replies::default(),
            waiter: None,
            waits_silently: false,
            unsettled: false,
            current: Current::new(server),
            batch: 0,
            clock: Instant::now(),
            last: None,
        };
        session.authenticated = session.current.user.on && session.current.user.nopass;
        session
            .client
            .names()
            .user
            .clone_from(&session.current.user.name);
        session
    }

    /// Logs in as the user that a certificate names. Without such a user, the client has not logged
    /// in.
    pub(crate) fn enter_as(&mut self, server: &Server, name: &str) {
        match server.users.get(name.as_bytes()).filter(|user| user.on) {
            Some(user) => {
                self.client.names().user.clone_from(&user.name);
                self.current.user = user;
                self.authenticated = true;
            }
            None => {
                let client = &self.client.address;
                let shown = name.escape_debug();
                tracing::warn!(client = %client, user = %shown, "a certificate names no user that may log in");
                add(&server.stats.denied, 1);
                self.authenticated = false;
            }
        }
    }

    /// Returns the client.
    #[must_use]
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Returns the limits of its requests.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            bulk: self.current.settings.proto_max_bulk_len,
            arguments: self.current.settings.proto_max_arguments,
            unauthenticated: !self.authenticated,
        }
    }

    /// Returns true if the client has authenticated, or need not.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Returns the settings of the current batch.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.current.settings
    }

    /// Returns the state that its commands read: its own unsettled writes are included.
    pub(crate) fn reads(&self) -> Reads {
        if self.unsettled {
            Reads::Applied
        } else {
            Reads::Durable
        }
    }

    /// Returns true if it is subscribed to a channel or a pattern.
    pub(crate) fn is_subscribed(&self) -> bool {
        !self.channels.is_empty() || !self.patterns.is_empty()
    }

    /// Returns the number of commands whose replies have to wait for durability, if there are any,
    /// and resets that. It is called once for each batch.
    pub fn take_unsettled(&mut self) -> Option<u64> {
        std::mem::take(&mut self.unsettled).then_some(self.batch)
    }

    /// Begins a batch of commands. Returns false if the connection has to end: its user was
    /// deleted, or lost the right to a channel.
    pub fn begin_batch(&mut self, server: &Server) -> bool {
        self.client.touch();
        self.clock = Instant::now();
        self.batch = 0;
        let state = self.current.renew(server);
        self.may_go_on(state)
    }

    /// Adopts the current rights of its user. Returns false if the user was deleted, or may not
    /// hear what this connection subscribed to: the connection has to end.
    pub(crate) fn renew_user(&mut self, server: &Server) -> bool {
        let state = self.current.renew_user(server);
        self.may_go_on(state)
    }

    fn may_go_on(&self, state: UserState) -> bool {
        let user = &self.current.user;
        match state {
            UserState::Unchanged => true,
            UserState::Changed => {
                let mut channels = self.channels.iter();
                let mut patterns = self.patterns.iter();
                channels.all(|name| user.may_hear(name, false))
                    && patterns.all(|name| user.may_hear(name, true))
            }
            UserState::Deleted => false,
        }
    }

    /// Ends a batch: publishes what other clients see of this one.
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

    /// Returns the state of its waiting, while the client waits for a key.
    #[must_use]
    pub fn waiter(&self) -> Option<Arc<Waiter>> {
        self.waiter.clone()
    }

    /// Ends its waiting: appends the reply to `out`. The reply has to wait for durability.
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

    /// Queues a command for `EXEC`.
    ///
    /// # Errors
    /// [`CommandError::Reply`]: the transaction would exceed `client-query-buffer-limit`. `EXEC`
    /// will be refused.
    pub(crate) fn queue(
        &mut self,
        entry: &Entry,
        handler: Handler,
        args: &[Arg<'_>],
    ) -> Result<(), CommandError> {
        let limit = self.current.settings.client_query_buffer_limit;
        let Some(transaction) = &mut self.transaction else {
            return Ok(());
        };
        let bytes: usize = args.iter().map(|arg| arg.len() + 32).sum();
        if transaction.bytes.saturating_add(bytes) > limit {
            transaction.spoilt = true;
            return Err(CommandError::reply(
                "ERR the transaction is longer than client-query-buffer-limit",
            ));
        }
        transaction.bytes += bytes;
        transaction.long |=
            entry.spec.long || bytes > LARGE || transaction.steps.len() >= MANY_STEPS;
        if transaction.spoilt {
            // It will not be executed.
            return Ok(());
        }
        transaction.held += STEP_OVERHEAD + args.len() * ARGUMENT_OVERHEAD;
        transaction.held += args.iter().map(|arg| arg.len()).sum::<usize>();
        self.client.hold(Part::Queued, transaction.held);
        let owned = args.iter().map(|arg| arg.to_vec()).collect();
        match handler {
            Handler::Data(command) => {
                transaction.steps.push(Step::Data);
                transaction.data.push(Queued {
                    command,
                    db: transaction.db,
                    args: owned,
                });
            }
            Handler::Session(command) => {
                if command.spec.name == "select"
                    && let Some(Ok(db)) = args.get(1).map(|text| database(text))
                {
                    transaction.db = db;
                }
                transaction.steps.push(Step::Session(command, owned));
            }
        }
        let steps = transaction.steps.len();
        self.note_queued(steps + 1);
        Ok(())
    }

    /// Publishes the number of queued commands plus 1; 0 outside of a transaction.
    pub(crate) fn note_queued(&self, number: usize) {
        // ORDERING: Relaxed; shown only.
        self.client.queued.store(number, Ordering::Relaxed);
    }

    /// Discards the transaction and the watched keys.
    pub(crate) fn discard(&mut self) {
        self.transaction = None;
        self.watch.clear();
        self.note_queued(0);
        self.client.hold(Part::Queued, 0);
        self.client.hold(Part::Watched, 0);
    }

    /// Returns the number of its subscriptions.
    pub(crate) fn subscriptions(&self) -> usize {
        self.channels.len() + self.patterns.len()
    }

    /// Publishes the numbers of its subscriptions, and counts their memory.
    pub(crate) fn note_subscriptions(&self) {
        // ORDERING: Relaxed; shown only.
        self.client
            .channels
            .store(self.channels.len(), Ordering::Relaxed);
        // ORDERING: Relaxed; as above.
        self.client
            .patterns
            .store(self.patterns.len(), Ordering::Relaxed);
        self.hold_names();
    }

    /// Counts the memory of the names: they are here and in the server's table, with some overhead.
    pub(crate) fn hold_names(&self) {
        let held = 2 * (self.names + 100 * self.subscriptions());
        self.client.hold(Part::Names, held);
    }

    /// Ends all subscriptions.
    pub(crate) fn unsubscribe_all(&mut self, server: &Server) {
        for name in std::mem::take(&mut self.channels) {
            server.pubsub.unsubscribe(&name, false, self.client.id);
        }
        for name in std::mem::take(&mut self.patterns) {
            server.pubsub.unsubscribe(&name, true, self.client.id);
        }
        self.names = 0;
        self.note_subscriptions();
    }

    /// Ends the connection: the server forgets everything about it.
    pub fn leave(&mut self, server: &Server) {
        self.unsubscribe_all(server);
        self.watch.clear();
        if let Some(waiter) = self.waiter.take() {
            server.data.waiting.give_up(&waiter, |_| {});
            self.client.set_waiter(None);
        }
        server.clients.leave(self.client.id);
    }
}

/// Returns the subcommand among the arguments, as it was sent and in lower case, and what follows
/// it.
pub(crate) fn subcommand<'b, 'a>(args: &'b [Arg<'a>]) -> (Arg<'a>, String, &'b [Arg<'a>]) {
    let word = args.get(1).copied().unwrap_or_default();
    let lower = String::from_utf8_lossy(word).to_lowercase();
    (word, lower, args.get(2..).unwrap_or_default())
}
