//! What a command is: its name, how many arguments it takes, which of them are keys, and what runs it.

use crate::data::Tx;
use crate::reply::Out;
use bristlecone_store::{ReadError, WriteError};

/// Why a command was not carried out. It has changed nothing.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The reply says so: code and text, as Redis has them.
    #[error("{0}")]
    Reply(String),
    /// The store cannot be read.
    #[error("ERR {0}")]
    Read(#[from] ReadError),
    /// The store does not take it.
    #[error("ERR {0}")]
    Write(#[from] WriteError),
}

impl Failed {
    /// A reply.
    pub fn reply(text: impl Into<String>) -> Self {
        Self::Reply(text.into())
    }

    /// The key holds something else.
    #[must_use]
    pub fn wrong_type() -> Self {
        Self::reply("WRONGTYPE Operation against a key holding the wrong kind of value")
    }

    /// The arguments make no sense.
    #[must_use]
    pub fn syntax() -> Self {
        Self::reply("ERR syntax error")
    }

    /// Too few arguments for the command, or too many.
    #[must_use]
    pub fn arity(name: &str) -> Self {
        Self::Reply(format!(
            "ERR wrong number of arguments for '{name}' command"
        ))
    }

    /// The command has no such subcommand.
    #[must_use]
    pub fn unknown_subcommand(command: &str, word: Arg<'_>) -> Self {
        let word = String::from_utf8_lossy(word.get(..128).unwrap_or(word));
        Self::Reply(format!(
            "ERR unknown subcommand '{word}'. Try {} HELP.",
            command.to_uppercase()
        ))
    }

    /// A string would be longer than strings may be.
    #[must_use]
    pub fn too_long() -> Self {
        Self::reply("ERR string exceeds maximum allowed size (proto-max-bulk-len)")
    }

    /// Not a number of 64 bits.
    #[must_use]
    pub fn not_an_integer() -> Self {
        Self::reply("ERR value is not an integer or out of range")
    }

    /// Not a number.
    #[must_use]
    pub fn not_a_float() -> Self {
        Self::reply("ERR value is not a valid float")
    }
}

/// How a command ends.
pub type Outcome = Result<(), Failed>;

/// One argument.
pub type Arg<'a> = &'a [u8];

/// Which arguments are keys, counted from the command's name, which is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keys {
    /// None.
    None,
    /// From `first` to `last` (from the end, if negative), each `step`-th.
    Range {
        /// The first one.
        first: usize,
        /// The last one: -1 is the last argument.
        last: i32,
        /// From one to the next.
        step: usize,
    },
    /// The argument at `at` says how many follow it; `before` has another one in addition (0: none).
    Counted {
        /// Which argument has their number.
        at: usize,
        /// A key before that, as a destination; 0 for none.
        before: usize,
    },
    /// The first argument, and the one after the last option `STORE` of `SORT`.
    AndStore,
}

/// The key is the first argument.
pub const ONE: Keys = Keys::range(1, 1, 1);
/// The key is the second argument, after a subcommand.
pub const SECOND: Keys = Keys::range(2, 2, 1);
/// The first two arguments are keys.
pub const TWO: Keys = Keys::range(1, 2, 1);
/// All arguments are keys.
pub const ALL: Keys = Keys::range(1, -1, 1);
/// The first argument says how many keys follow it.
pub const COUNTED: Keys = Keys::Counted { at: 1, before: 0 };

impl Keys {
    /// [`Range`](Self::Range)
    pub const fn range(first: usize, last: i32, step: usize) -> Self {
        Self::Range { first, last, step }
    }

    /// The places of the keys in `args`, whose first is the command's name. Fewer, if arguments are missing: the command itself says
    /// so.
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

/// What a command does to data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads one key, once: no snapshot is needed.
    ReadOne,
    /// It reads more than that, on a snapshot.
    Read,
    /// It may write its keys, whose locks are held.
    Write,
    /// It may write any key: nothing else writes meanwhile.
    WriteAll,
}

/// A command on data. What it is called with: itself, the arguments from its name on, and where its reply goes.
pub type Run = fn(&mut Tx<'_>, &[Arg<'_>], &mut Out<'_>) -> Outcome;

/// A command on data.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Its name, in lower case.
    pub name: &'static str,
    /// How many arguments it takes, its name included; at least so many, if negative.
    pub arity: i32,
    /// What it does.
    pub access: Access,
    /// Its keys.
    pub keys: Keys,
    /// Its category for users' rights, as `string`, `hash`, `keyspace`: without the `@`.
    pub group: &'static str,
    /// What runs it.
    pub run: Run,
}

impl Command {
    /// A command of these parts, in the order of the fields.
    pub const fn new(
        name: &'static str,
        arity: i32,
        access: Access,
        keys: Keys,
        group: &'static str,
        run: Run,
    ) -> Self {
        Self {
            name,
            arity,
            access,
            keys,
            group,
            run,
        }
    }
}

/// A whole number of 64 bits, written as Redis has it: no spaces, no `+`, no leading zeros, not `-0`.
pub fn integer(text: Arg<'_>) -> Result<i64, Failed> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let negative = digits.len() < text.len();
    // Downwards: there is one more below zero.
    let below = digits.iter().try_fold(0i64, |number, digit| {
        let digit = i64::from(digit.wrapping_sub(b'0'));
        number.checked_mul(10)?.checked_sub(digit)
    });
    let number = below.filter(|_| plain).and_then(|below| {
        if negative {
            Some(below)
        } else {
            below.checked_neg()
        }
    });
    number.ok_or_else(Failed::not_an_integer)
}

/// True if an argument is this word, in whatever case.
pub fn is(arg: Arg<'_>, word: &str) -> bool {
    arg.eq_ignore_ascii_case(word.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_taken_as_redis_takes_them() {
        for good in [
            "0",
            "7",
            "-1",
            "9223372036854775807",
            "-9223372036854775808",
        ] {
            assert_eq!(integer(good.as_bytes()).unwrap().to_string(), good);
        }
        for bad in [
            "",
            "-",
            "-0",
            "+1",
            "01",
            " 1",
            "1 ",
            "1.0",
            "9223372036854775808",
            "x",
        ] {
            assert!(integer(bad.as_bytes()).is_err(), "{bad}");
        }
    }

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
