//! Commands that wait for an element of a list or of a sorted set.

use crate::command::{Access, Command, DataFn, Keys, TWO};
use crate::commands::arguments::{number_of_keys, pop_count};
use crate::commands::lists::end;
use crate::commands::sorted_sets::direction;
use crate::commands::{lists, sorted_sets};
use crate::data::list::End;
use crate::data::record::Kind;
use crate::data::sorted_set::Direction;
use crate::data::tx::{self, Take as _, Tx, Wants};
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, double};
use crate::reply::Out;
use bristlecone_store::MAX_KEY_BYTES;
use std::time::Duration;

const fn command(
    name: &'static str,
    arity: i32,
    keys: Keys,
    categories: &'static [&'static str],
    run: DataFn,
) -> Command {
    Command::new(name, arity, Access::Write, keys, categories, run)
}

const LIST: &[&str] = &["list", "blocking"];
const SORTED_SET: &[&str] = &["sortedset", "blocking"];

/// All arguments but the last one, which is the timeout.
const BUT_LAST: Keys = Keys::range(1, -2, 1);
/// The timeout, the number of keys, the keys.
const COUNTED: Keys = Keys::Counted { at: 2, before: 0 };

/// The commands.
pub const COMMANDS: &[Command] = &[
    command("blpop", -3, BUT_LAST, LIST, blpop),
    command("brpop", -3, BUT_LAST, LIST, brpop),
    command("blmove", 6, TWO, LIST, blmove),
    command("brpoplpush", 4, TWO, LIST, brpoplpush),
    command("blmpop", -5, COUNTED, LIST, blmpop),
    command("bzpopmin", -3, BUT_LAST, SORTED_SET, bzpopmin),
    command("bzpopmax", -3, BUT_LAST, SORTED_SET, bzpopmax),
    command("bzmpop", -5, COUNTED, SORTED_SET, bzmpop),
];

/// The elements that a command takes from a key.
#[derive(Debug)]
enum Take {
    /// One element from an end of a list.
    Element(End),
    /// Up to this number of elements.
    Elements(End, u64),
    /// One element, which is put at an end of the list under another key.
    Move(End, (Vec<u8>, End)),
    /// One member of a sorted set.
    Member(Direction),
    /// Up to this number of members.
    Members(Direction, u64),
}

impl tx::Take for Take {
    fn kind(&self) -> Kind {
        match self {
            Self::Element(_) | Self::Elements(..) | Self::Move(..) => Kind::List,
            Self::Member(_) | Self::Members(..) => Kind::SortedSet,
        }
    }

    fn run(&self, tx: &mut Tx<'_>, key: &[u8], out: &mut Out<'_>) -> Result<bool, CommandError> {
        match self {
            Self::Element(end) => lists::pop_named(tx, key, *end, out),
            Self::Elements(end, count) => lists::pop_several(tx, key, *end, *count, out),
            Self::Move(end, (to, other)) => lists::moved(tx, (key, to), (*end, *other), out),
            Self::Member(direction) => sorted_sets::pop_named(tx, key, *direction, out),
            Self::Members(direction, count) => {
                sorted_sets::pop_several(tx, key, *direction, *count, out)
            }
        }
    }
}

impl Take {
    /// Returns the key under which the element is put.
    fn destination(&self) -> Option<Vec<u8>> {
        match self {
            Self::Move(_, (to, _)) => Some(to.clone()),
            _ => None,
        }
    }
}

/// Parses a timeout in seconds, which may have a fraction. Returns `None` for ever.
fn timeout(text: Arg<'_>) -> Result<Option<Duration>, CommandError> {
    let not_a_float = || CommandError::reply("ERR timeout is not a float or out of range");
    // Numbers beyond the range of a double are taken as infinite, or as zero.
    let seconds =
        double::bound(text).filter(|_| !text.is_empty() && !text[0].is_ascii_whitespace());
    let millis = (seconds.ok_or_else(not_a_float)? * 1000.0).ceil();
    if millis < 0.0 || millis > i64::MAX as f64 {
        return Err(CommandError::reply("ERR timeout is negative"));
    }
    Ok((millis > 0.0).then(|| Duration::from_millis(millis as u64)))
}

/// Takes from the first key that exists. If none does, the client waits, or gets a null array if it
/// cannot wait.
fn take(
    tx: &mut Tx<'_>,
    keys: &[Arg<'_>],
    take: Take,
    timeout: Option<Duration>,
    out: &mut Out<'_>,
) -> Outcome {
    for key in keys {
        if take.run(tx, key, out)? {
            return Ok(());
        }
    }
    if tx.may_wait {
        // Longer keys never exist.
        let possible = keys.iter().filter(|key| key.len() <= MAX_KEY_BYTES);
        let keys = possible.map(|key| key.to_vec()).collect();
        tx.wants = Some(Box::new(Wants {
            keys,
            destination: take.destination(),
            take: Box::new(take),
            timeout,
        }));
    } else if take.destination().is_some() {
        out.null();
    } else {
        out.null_array();
    }
    Ok(())
}

/// Parses the keys and the timeout after them, and takes one element.
fn take_one(tx: &mut Tx<'_>, args: &[Arg<'_>], what: Take, out: &mut Out<'_>) -> Outcome {
    let [_, keys @ .., last] = args else {
        return Err(CommandError::syntax());
    };
    let timeout = timeout(last)?;
    take(tx, keys, what, timeout, out)
}

fn blpop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    take_one(tx, args, Take::Element(End::Left), out)
}

fn brpop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    take_one(tx, args, Take::Element(End::Right), out)
}

fn bzpopmin(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    take_one(tx, args, Take::Member(Direction::Ascending), out)
}

fn bzpopmax(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    take_one(tx, args, Take::Member(Direction::Descending), out)
}

fn blmove(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (from, to) = (end(args[3])?, end(args[4])?);
    let timeout = timeout(args[5])?;
    let what = Take::Move(from, (args[2].to_vec(), to));
    take(tx, &args[1..2], what, timeout, out)
}

fn brpoplpush(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let timeout = timeout(args[3])?;
    let what = Take::Move(End::Right, (args[2].to_vec(), End::Left));
    take(tx, &args[1..2], what, timeout, out)
}

/// Parses the timeout, the number of keys and the keys. `of` makes the rest of the command from the
/// word and the options after them.
fn take_several(
    tx: &mut Tx<'_>,
    args: &[Arg<'_>],
    of: impl FnOnce(Arg<'_>, &[Arg<'_>]) -> Result<Take, CommandError>,
    out: &mut Out<'_>,
) -> Outcome {
    let keys = number_of_keys(args[2])?;
    let Some((keys, [place, options @ ..])) = args[3..].split_at_checked(keys) else {
        return Err(CommandError::syntax());
    };
    let what = of(place, options)?;
    let timeout = timeout(args[1])?;
    take(tx, keys, what, timeout, out)
}

fn blmpop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let of =
        |place: Arg<'_>, options: &[Arg<'_>]| Ok(Take::Elements(end(place)?, pop_count(options)?));
    take_several(tx, args, of, out)
}

fn bzmpop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let of = |place: Arg<'_>, options: &[Arg<'_>]| {
        Ok(Take::Members(direction(place)?, pop_count(options)?))
    };
    take_several(tx, args, of, out)
}
