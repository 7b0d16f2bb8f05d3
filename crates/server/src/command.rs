//! Declarations of commands: name, arity, keys, categories and the function that executes them.
//!
//! A module under `commands` declares its commands in a slice beside their functions. Everything
//! that the server knows about a command by its name is in its [`Spec`]; no other table lists
//! names.

use crate::data::spaces::DATABASES;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, integer, is};
use crate::reply::Out;

/// The arguments that are keys, counted from the command's name, which is argument 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// None.
    None,
    /// Every `step`-th argument from `first` to `last`; a negative `last` counts from the end.
    Range {
        /// The first key.
        first: usize,
        /// The last key: -1 is the last argument.
        last: i32,
        /// The distance from one key to the next.
        step: usize,
    },
    /// Argument `at` holds the number of keys that follow it. Argument `before` is a key too, if it
    /// is not 0.
    Counted {
        /// The argument with the number of keys.
        at: usize,
        /// A key before that, such as a destination; 0 for none.
        before: usize,
    },
    /// The first argument, and the one after the last option `STORE` of `SORT`.
    AndStore,
}

/// The first argument is the only key.
pub const ONE: Keys = Keys::range(1, 1, 1);
/// The second argument is the only key: it follows a subcommand.
pub const SECOND: Keys = Keys::range(2, 2, 1);
/// The first two arguments are keys.
pub const TWO: Keys = Keys::range(1, 2, 1);
/// All arguments are keys.
pub const ALL: Keys = Keys::range(1, -1, 1);
/// The first argument is the number of keys that follow it.
pub const COUNTED: Keys = Keys::Counted { at: 1, before: 0 };

impl Keys {
    /// Returns a [`Range`](Self::Range).
    #[must_use]
    pub const fn range(first: usize, last: i32, step: usize) -> Self {
        Self::Range { first, last, step }
    }

    /// Returns the indexes of the keys in `args`, whose first element is the command's name. Keys
    /// beyond the end of `args` are left out; the command reports missing arguments itself.
    #[must_use]
    pub fn places(self, args: &[Arg<'_>]) -> Vec<usize> {
        match self {
            Self::None => Vec::new(),
            Self::Range { first, last, step } => {
                let end = match usize::try_from(last) {
                    Ok(last) => last + 1,
                    Err(_) => args.len().saturating_sub(last.unsigned_abs() as usize - 1),
                };
                (first..end.min(args.len())).step_by(step).collect()
            }
            Self::Counted { at, before } => {
                let count = args
                    .get(at)
                    .and_then(|count| std::str::from_utf8(count).ok()?.parse::<usize>().ok())
                    .unwrap_or(0);
                let end = (at + 1).saturating_add(count).min(args.len());
                let before = (before > 0 && before < args.len()).then_some(before);
                before.into_iter().chain(at + 1..end).collect()
            }
            Self::AndStore => {
                let (mut at, mut store) = (2, None);
                while let Some(word) = args.get(at) {
                    if is(word, "store") {
                        store = Some(at + 1);
                    }
                    at += match () {
                        () if is(word, "limit") => 3,
                        () if is(word, "by") || is(word, "get") || is(word, "store") => 2,
                        () => 1,
                    };
                }
                let places = [Some(1), store].into_iter().flatten();
                places.filter(|at| *at < args.len()).collect()
            }
        }
    }
}

/// The access of a command to the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads one record of one key; no snapshot is needed.
    ReadOne,
    /// It reads more than one record, on a snapshot.
    Read,
    /// It may write its keys. Their locks are held.
    Write,
    /// It may write any key. All locks are held.
    WriteAll,
}

/// The treatment of a command on the session between `MULTI` and `EXEC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InMulti {
    /// It is queued for `EXEC`.
    Queued,
    /// It is executed at once.
    Now,
    /// It is refused.
    Refused,
}

/// The arguments that name channels, for the user's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelArgs {
    /// None.
    None,
    /// The first argument.
    First,
    /// All arguments.
    All,
    /// All arguments, which are patterns.
    AllPatterns,
}

/// A subcommand with its arguments, and what it does: two lines of a `HELP` reply.
pub type HelpLine = (&'static str, &'static str);

/// Returns the option in a command's arguments that reads keys which are not among them, if any.
pub type OptionFn = fn(&[Arg<'_>]) -> Option<&'static str>;

/// Everything that admission, rights, `COMMAND` and the statistics know about a command.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// The name in lower case.
    pub name: &'static str,
    /// The number of arguments, name included; a negative number is a minimum.
    pub arity: i32,
    /// Its access to the data; `None` for a command on the session or the server.
    pub access: Option<Access>,
    /// Its keys.
    pub keys: Keys,
    /// Its categories without the `@`, besides those that follow from `access`.
    pub categories: &'static [&'static str],
    /// It may take long: the thread hands its other tasks over first.
    pub long: bool,
    /// Clients that have not authenticated may use it.
    pub before_auth: bool,
    /// RESP2 clients may use it while they are subscribed.
    pub while_subscribed: bool,
    /// Its treatment between `MULTI` and `EXEC`.
    pub in_multi: InMulti,
    /// The channels among its arguments.
    pub channels: ChannelArgs,
    /// It sees what is applied, even if that is not durable yet; its reply waits until it is.
    pub reads_applied: bool,
    /// It reads keys that are not among its arguments: its user needs the right to all keys.
    pub reads_all_keys: bool,
    /// Returns the option in these arguments that reads keys which are not among them.
    pub reads_other_keys: Option<OptionFn>,
    /// Checks the arguments before the command is queued for `EXEC`.
    pub check: Option<fn(&[Arg<'_>]) -> Outcome>,
    /// The lines of its `HELP`, one for each subcommand; empty if it has no subcommands.
    pub help: &'static [HelpLine],
    /// Subcommands that only administrators may use.
    pub admin_subcommands: &'static [&'static str],
    /// It takes no subcommand when it has no arguments.
    pub bare: bool,
}

impl Spec {
    /// Returns a command on data, with its category.
    #[must_use]
    pub const fn data(
        name: &'static str,
        arity: i32,
        access: Access,
        keys: Keys,
        categories: &'static [&'static str],
    ) -> Self {
        Self {
            keys,
            access: Some(access),
            long: matches!(access, Access::WriteAll),
            ..Self::session(name, arity, categories)
        }
    }

    /// Returns a command on the session or the server, with all of its categories.
    #[must_use]
    pub const fn session(
        name: &'static str,
        arity: i32,
        categories: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            arity,
            access: None,
            keys: Keys::None,
            categories,
            long: false,
            before_auth: false,
            while_subscribed: false,
            in_multi: InMulti::Queued,
            channels: ChannelArgs::None,
            reads_applied: false,
            reads_all_keys: false,
            reads_other_keys: None,
            check: None,
            help: &[],
            admin_subcommands: &[],
            bare: false,
        }
    }

    /// Returns true if the command takes this many arguments, its name included.
    #[must_use]
    pub fn takes(&self, arguments: usize) -> bool {
        let arity = self.arity.unsigned_abs() as usize;
        arguments == arity || self.arity < 0 && arguments > arity
    }

    /// Returns true if the command has subcommands.
    #[must_use]
    pub fn has_subcommands(&self) -> bool {
        !self.help.is_empty()
    }

    /// Refuses arguments that `EXEC` could only answer with an error.
    ///
    /// # Errors
    /// [`CommandError::Reply`]: there is no such subcommand, or [`check`](Self::check) refuses
    /// them.
    pub fn check_queued(&self, args: &[Arg<'_>]) -> Outcome {
        if let Some(check) = self.check {
            return check(args);
        }
        if !self.has_subcommands() || self.bare && args.len() == 1 {
            return Ok(());
        }
        let word = args.get(1).copied().unwrap_or_default();
        let named = |(usage, _): &HelpLine| {
            let name = usage.split(' ').next();
            name.is_some_and(|name| is(word, name))
        };
        if is(word, "help") || self.help.iter().any(named) {
            Ok(())
        } else {
            Err(CommandError::unknown_subcommand(self.name, word))
        }
    }
}

/// Executes a command on data. Takes its transaction, its arguments from its name on, and the place
/// for its reply.
pub type DataFn = fn(&mut Tx<'_>, &[Arg<'_>], &mut Out<'_>) -> Outcome;

/// A command that reads or replaces one string and does nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Replies with the string.
    Get,
    /// Puts this string, which does not expire.
    Put(Arg<'a>),
}

/// Returns the step that a command with these arguments is, if it is one.
pub type StepFn = for<'a> fn(&[Arg<'a>]) -> Option<Step<'a>>;

/// A command on data.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Its name, keys, categories and so on.
    pub spec: Spec,
    /// The function that executes it.
    pub run: DataFn,
    /// How it is executed together with its neighbours in a pipeline, if it is a [`Step`].
    pub step: Option<StepFn>,
}

impl Command {
    /// Returns a command with one category; see [`Spec::data`].
    #[must_use]
    pub const fn new(
        name: &'static str,
        arity: i32,
        access: Access,
        keys: Keys,
        categories: &'static [&'static str],
        run: DataFn,
    ) -> Self {
        Self {
            spec: Spec::data(name, arity, access, keys, categories),
            run,
            step: None,
        }
    }

    /// Sets [`step`](Self::step).
    #[must_use]
    pub const fn with_step(mut self, step: StepFn) -> Self {
        self.step = Some(step);
        self
    }

    /// Sets [`Spec::long`].
    #[must_use]
    pub const fn long(mut self) -> Self {
        self.spec.long = true;
        self
    }

    /// Returns its access, which every command on data has.
    #[must_use]
    pub fn access(&self) -> Access {
        self.spec.access.unwrap_or(Access::WriteAll)
    }
}

/// Parses the number of a database.
///
/// # Errors
/// [`CommandError::Reply`]: it is not a number, or there is no such database.
pub fn database(text: Arg<'_>) -> Result<usize, CommandError> {
    let number = integer(text)?;
    let (least, most) = (i32::MIN, i32::MAX);
    let number = i32::try_from(number).map_err(|_| {
        CommandError::reply(format!(
            "ERR value is out of range, value must between {least} and {most}"
        ))
    })?;
    usize::try_from(number)
        .ok()
        .filter(|number| *number < DATABASES)
        .ok_or_else(|| CommandError::reply("ERR DB index is out of range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_where_the_table_says() {
        let args: Vec<Arg<'_>> = vec![b"c", b"a", b"2", b"x", b"y", b"z"];
        assert_eq!(ONE.places(&args), [1]);
        assert_eq!(ALL.places(&args), [1, 2, 3, 4, 5]);
        let pairs = Keys::range(1, -1, 2);
        assert_eq!(pairs.places(&args), [1, 3, 5]);
        let but_last = Keys::range(1, -2, 1);
        assert_eq!(but_last.places(&args), [1, 2, 3, 4]);
        assert_eq!(Keys::Counted { at: 2, before: 1 }.places(&args), [1, 3, 4]);
        assert_eq!(Keys::Counted { at: 1, before: 0 }.places(&args), [0; 0]);
        assert_eq!(ONE.places(&args[..1]), [0; 0]);
        for (line, places) in [
            ("sort k", vec![1]),
            ("sort k get store limit 0 store STORE d desc", vec![1, 8]),
            ("sort k by x store d store e", vec![1, 7]),
            ("sort k store", vec![1]),
        ] {
            let args: Vec<Arg<'_>> = line.split(' ').map(str::as_bytes).collect();
            assert_eq!(Keys::AndStore.places(&args), places, "{line}");
        }
    }
}
