//! The error of a command.

use bristlecone_store::{ReadError, WriteError};
use std::collections::BTreeSet;

/// Why a command failed. It has changed nothing. The `Display` text is the error reply.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// An error reply: its code and its text, as Redis words them.
    #[error("{0}")]
    Reply(String),
    /// Reading the store failed.
    #[error("ERR {0}")]
    Read(#[from] ReadError),
    /// The store refused a write.
    #[error("ERR {0}")]
    Write(#[from] WriteError),
    /// It takes long, and has stopped: it has to be executed again where no connection waits for
    /// its thread. No client sees this.
    #[error("ERR the command takes long")]
    Long,
    /// A script uses keys, or all of them, whose locks are not held: it has to be executed again
    /// with them. No client sees this.
    #[error("ERR the script uses keys that it does not name")]
    Unlocked(Unlocked),
    /// A script ran for the longest time that one may: what contains it has not been executed.
    #[error("ERR the script ran for 60 seconds and was stopped; nothing of what it did stays")]
    Late,
    /// A script was stopped by `SCRIPT KILL`: what contains it has not been executed.
    #[error("ERR Error running script: Script killed by user with SCRIPT KILL.")]
    Killed,
}

/// The keys whose locks a script needs.
#[derive(Debug, Default)]
pub struct Unlocked {
    /// These, besides those that it names.
    pub keys: BTreeSet<Vec<u8>>,
    /// All that there are.
    pub all: bool,
}

/// The result of a command that has written its reply.
pub type Outcome = Result<(), CommandError>;

impl CommandError {
    /// Returns the error with this reply.
    pub fn reply(text: impl Into<String>) -> Self {
        Self::Reply(text.into())
    }

    /// Returns true if what contains the command is not executed either.
    #[must_use]
    pub(crate) fn ends_all(&self) -> bool {
        matches!(
            self,
            Self::Long | Self::Unlocked(_) | Self::Killed | Self::Late
        )
    }

    /// Returns the key holds a value of another type.
    #[must_use]
    pub fn wrong_type() -> Self {
        Self::reply("WRONGTYPE Operation against a key holding the wrong kind of value")
    }

    /// Returns the arguments do not follow the command's syntax.
    #[must_use]
    pub fn syntax() -> Self {
        Self::reply("ERR syntax error")
    }

    /// Returns the command got too few arguments, or too many.
    #[must_use]
    pub fn arity(name: &str) -> Self {
        Self::Reply(format!(
            "ERR wrong number of arguments for '{name}' command"
        ))
    }

    /// Returns the command has no such subcommand.
    #[must_use]
    pub fn unknown_subcommand(command: &str, word: &[u8]) -> Self {
        let word = String::from_utf8_lossy(word.get(..128).unwrap_or(word));
        Self::Reply(format!(
            "ERR unknown subcommand '{word}'. Try {} HELP.",
            command.to_uppercase()
        ))
    }

    /// Returns a string would exceed the maximum length.
    #[must_use]
    pub fn too_long() -> Self {
        Self::reply("ERR string exceeds maximum allowed size (proto-max-bulk-len)")
    }

    /// Returns the argument is not a 64-bit integer.
    #[must_use]
    pub fn not_an_integer() -> Self {
        Self::reply("ERR value is not an integer or out of range")
    }

    /// Returns the argument is not a floating-point number.
    #[must_use]
    pub fn not_a_float() -> Self {
        Self::reply("ERR value is not a valid float")
    }

    /// Returns the pool holds a record that this program cannot have written.
    #[must_use]
    pub fn damaged(what: &str) -> Self {
        Self::reply(format!("ERR the pool is damaged: {what}; check it"))
    }
}
