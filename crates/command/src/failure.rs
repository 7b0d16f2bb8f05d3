//! How a command fails: the message for a person and the exit status for a script.

use std::io;
use std::path::Path;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// It failed: exit status 1, with this message.
    Message(String),
    /// It was asked for something that makes no sense: exit status 2, with this message.
    Usage(String),
    /// The file has a version of its format that this build does not read: exit status 1, with
    /// this message.
    Version(String),
    /// A signal ended it, when it had put things in order: it dies of that signal, with this
    /// message.
    Ended {
        /// The signal's number.
        signal: i32,
        /// The progress made, and the command that continues.
        message: String,
    },
    /// The bad news is its finding, which is printed already: exit status 1.
    Reported,
    /// It has done what it could, and what it had to skip is printed already: exit status 3.
    Skipped,
    /// The reader of its output went away: nothing left to do, nothing to say.
    OutputClosed,
}

impl Failure {
    /// A failure with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self::Message(message.into())
    }

    /// The operating system's error while `doing` something to `path`.
    pub fn io(path: &Path, doing: &str, error: &io::Error) -> Self {
        Self::Message(format!("{}: {doing} failed: {error}", path.display()))
    }

    /// A failed write to standard output.
    pub fn output(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Message(format!("standard output: writing failed: {error}")),
        }
    }

    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Self::Message(_) | Self::Version(_) | Self::Reported | Self::Ended { .. } => 1,
            Self::Usage(_) => 2,
            Self::Skipped => 3,
            Self::OutputClosed => 0,
        }
    }

    /// The text to print, if any.
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::Message(text)
            | Self::Usage(text)
            | Self::Version(text)
            | Self::Ended { message: text, .. } => Some(text),
            Self::Reported | Self::Skipped | Self::OutputClosed => None,
        }
    }
}

/// A command's result.
pub type Outcome<T = ()> = Result<T, Failure>;
