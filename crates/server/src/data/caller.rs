//! The client and the server, as the commands of a script see them.

use crate::error::CommandError;
use crate::parse::Arg;
use std::collections::BTreeSet;
use std::fmt::Debug;

/// A channel, and what is published there.
pub type Message = (Vec<u8>, Vec<u8>);

/// The client of a command, and the server, as scripts see them.
pub trait Caller: Debug {
    /// Returns the number of a command, in the table of all commands, that a script may execute.
    ///
    /// # Errors
    /// [`CommandError::Reply`]: there is none, it takes other arguments, scripts may not use it, or
    /// the user has no right to it.
    fn admit(&self, args: &[Arg<'_>]) -> Result<usize, CommandError>;

    /// Returns true if the user has the right to a command, and `None` if there is none.
    fn may(&self, args: &[Arg<'_>]) -> Option<bool>;

    /// Returns how many clients hear a channel.
    fn listeners(&self, channel: &[u8]) -> usize;

    /// Takes what scripts have published: their changes are committed.
    fn publish(&self, messages: Vec<Message>);
}

/// The context of a transaction's scripts: their caller, their locks, their messages.
#[derive(Debug, Default)]
pub(crate) struct Calls<'d> {
    /// Who calls; without one, scripts have no commands.
    pub caller: Option<&'d dyn Caller>,
    /// The keys that are locked.
    pub locked: Locked<'d>,
    /// Published messages, which are delivered after the commit.
    pub messages: Vec<Message>,
}

impl<'d> Calls<'d> {
    /// Returns those of a client, while these keys are locked.
    pub(crate) fn of(caller: Option<&'d dyn Caller>, locked: Locked<'d>) -> Self {
        Self {
            caller,
            locked,
            messages: Vec::new(),
        }
    }
}

/// The keys that are locked besides those that a script names.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Locked<'d> {
    /// None.
    #[default]
    No,
    /// These.
    Keys(&'d BTreeSet<Vec<u8>>),
    /// All.
    All,
}
