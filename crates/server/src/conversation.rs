//! The interface between the loop of a connection and the protocol that it speaks.

use crate::data::tx::Waiter;
use crate::input::Input;
use crate::server::Server;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of bytes of replies after which they are sent, even if more commands have come.
pub(crate) const ENOUGH_OUTPUT: usize = 1 << 20;
/// The time after which the others of its thread get their turn, even if more commands have come.
const TURN: Duration = Duration::from_millis(2);

/// The turn of a connection to execute commands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn(Instant);

impl Turn {
    /// Begins one.
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Returns true if it ends before the next command, with these replies.
    pub fn is_over(self, out: &[u8]) -> bool {
        out.len() >= ENOUGH_OUTPUT || self.0.elapsed() >= TURN
    }
}

/// The next step of a connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// With the next command.
    Go,
    /// The client waits for a key before it gets a reply.
    Wait,
    /// It waits that long before it replies.
    Sleep(Duration),
    /// It ends once its replies are sent.
    Close,
    /// It ends, and the server stops.
    Shutdown,
}

/// A client's requests and their replies, in one protocol.
pub(crate) trait Conversation {
    /// Executes the complete commands of the input, in order, until its [`Turn`] is over. Returns
    /// what the connection does next, and whether there may be more commands.
    fn execute(&mut self, server: &Server, input: &mut Input, out: &mut Vec<u8>) -> (Flow, bool);

    /// Returns the number of commands whose replies have to wait for durability, if there are any,
    /// and resets that.
    fn take_unsettled(&mut self) -> Option<u64>;

    /// Appends the last reply of a connection that cannot go on.
    fn fail(&self, text: &str, out: &mut Vec<u8>);

    /// Returns the length of the first command that is not executed, as far as it was announced.
    fn needed(&self) -> usize;

    /// Returns the memory that it holds besides the input and the output, in bytes.
    fn held(&self) -> usize;

    /// Returns the most bytes of input that may wait to be executed.
    fn most_input(&self) -> usize;

    /// Returns the state of its waiting, while the client waits for a key.
    fn waiter(&self) -> Option<Arc<Waiter>> {
        None
    }

    /// Ends its waiting: appends the reply to `out`.
    fn waited(&mut self, _server: &Server, _out: &mut Vec<u8>) {}

    /// Ends the connection: the server forgets everything about it.
    fn leave(&mut self, server: &Server);
}
