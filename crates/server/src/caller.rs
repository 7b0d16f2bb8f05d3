//! The session and the server as scripts see them.

use crate::data::caller::{Caller, Message};
use crate::error::CommandError;
use crate::parse::Arg;
use crate::rights::permit;
use crate::server::Server;
use crate::session::{Context, Session};
use crate::table::{Entry, add};
use crate::users::User;
use std::cell::RefCell;

/// Commands on the session that scripts do by themselves.
const OWN: [&str; 5] = ["echo", "ping", "publish", "select", "time"];

/// Returns true for commands on data that scripts may not use: they wait, or are scripts
/// themselves. Those that Redis lets them use wait for nothing.
fn is_refused(entry: &Entry) -> bool {
    let categories = entry.spec.categories;
    let waits = categories.contains(&"blocking") && !["blmpop", "bzmpop"].contains(&entry.name());
    waits || categories.contains(&"scripting")
}

/// The user of a session, and the server.
#[derive(Debug)]
pub(crate) struct SessionCaller<'s> {
    server: &'s Server,
    user: &'s User,
    messages: RefCell<Vec<Message>>,
}

impl<'s> SessionCaller<'s> {
    pub(crate) fn new(server: &'s Server, user: &'s User) -> Self {
        Self {
            server,
            user,
            messages: RefCell::default(),
        }
    }

    /// Returns what scripts have published.
    pub(crate) fn into_messages(self) -> Vec<Message> {
        self.messages.into_inner()
    }

    fn find(&self, args: &[Arg<'_>]) -> Option<&'s Entry> {
        self.server.table.find(args.first()?)
    }
}

impl Caller for SessionCaller<'_> {
    fn admit(&self, args: &[Arg<'_>]) -> Result<usize, CommandError> {
        let refuse = |text: &str| Err(CommandError::reply(text));
        let Some(entry) = self.find(args) else {
            return refuse("ERR Unknown Redis command called from script");
        };
        if !entry.spec.takes(args.len()) {
            return refuse("ERR Wrong number of args calling Redis command from script");
        }
        if is_refused(entry) || entry.data.is_none() && !OWN.contains(&entry.name()) {
            return refuse("ERR This Redis command is not allowed from script");
        }
        permit(self.user, entry, args).inspect_err(|_| {
            add(&self.server.stats.denied, 1);
            add(&entry.stats.rejected, 1);
        })?;
        Ok(entry.index)
    }

    fn may(&self, args: &[Arg<'_>]) -> Option<bool> {
        let entry = self
            .find(args)
            .filter(|entry| entry.spec.takes(args.len()))?;
        Some(permit(self.user, entry, args).is_ok())
    }

    fn listeners(&self, channel: &[u8]) -> usize {
        self.server.pubsub.hearing(channel)
    }

    fn publish(&self, messages: Vec<Message>) {
        self.messages.borrow_mut().extend(messages);
    }
}

impl Session {
    /// Publishes what scripts have published, once it is durable. If it cannot be made so, nobody
    /// is told, and the client learns of it with its reply.
    pub(crate) fn publish(&mut self, server: &Server, messages: Vec<Message>) {
        if messages.is_empty() {
            return;
        }
        let limit = self.current.settings.client_output_buffer_limit;
        let session = self;
        if (Context { server, session }).settle().is_ok() {
            for (channel, message) in messages {
                server.pubsub.publish(&channel, &message, limit);
            }
        }
    }
}
