//! Commands that wait for an element of a list or of a sorted set, if there is none.

use super::arguments::{number_of_keys, pop_count};
use super::list::End;
use super::lists::{self, end};
use super::scored::Way;
use super::sorted_sets::{self, way};
use super::value::Kind;
use super::waiting::Wants;
use super::{Tx, double};
use crate::command::{Access, Arg, Command, Failed, Keys, Outcome, Run, TWO};
use crate::reply::Out;
use bristlecone_store::MAX_KEY_BYTES;
use std::time::Duration;

const fn command(
    name: &'static str,
    arity: i32,
    keys: Keys,
    group: &'static str,
    run: Run,
) -> Command {
    Command::new(name, arity, Access::Write, keys, group, run)
}

/// All arguments but the last one, which is the timeout.
const BUT_LAST: Keys = Keys::range(1, -2, 1);
/// The timeout, how many keys there are, and the keys.
const COUNTED: Keys = Keys::Counted { at: 2, before: 0 };

/// The commands.
pub const COMMANDS: &[Command] = &[
    command("blpop", -3, BUT_LAST, "list", blpop),
    command("brpop", -3, BUT_LAST, "list", brpop),
    command("blmove", 6, TWO, "list", blmove),
    command("brpoplpush", 4, TWO, "list", brpoplpush),
    command("blmpop", -5, COUNTED, "list", blmpop),
    command("bzpopmin", -3, BUT_LAST, "sortedset", bzpopmin),
    command("bzpopmax", -3, BUT_LAST, "sortedset", bzpopmax),
    command("bzmpop", -5, COUNTED, "sortedset", bzmpop),
];

/// What such a command takes from a key.
#[derive(Debug)]
pub(super) enum Take {
    /// One element of a list.
    Element(End),
    /// Up to so many.
    Elements(End, u64),
    /// One element, which goes to an end of the list under another key.
    Move(End, (Vec<u8>, End)),
    /// One member of a sorted set.
    Member(Way),
    /// Up to so many.
    Members(Way, u64),
}

impl Take {
    /// What the key has to hold.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Element(_) | Self::Elements(..) | Self::Move(..) => Kind::List,
            Self::Member(_) | Self::Members(..) => Kind::SortedSet,
        }
    }

    /// Where what it takes is put.
    #[must_use]
    pub fn destination(&self) -> Option<&[u8]> {
        match self {
            Self::Move(_, (to, _)) => Some(to),
            _ => None,
        }
    }

    /// Takes it and answers; false, without an answer, if the key is not there.
    ///
    /// # Errors
    /// The key, or where it goes, holds something else.
    pub fn run(&self, tx: &mut Tx<'_>, key: &[u8], out: &mut Out<'_>) -> Result<bool, Failed> {
        match self {
            Self::Element(end) => lists::pop_named(tx, key, *end, out),
            Self::Elements(end, count) => lists::pop_several(tx, key, *end, *count, out),
            Self::Move(end, (to, other)) => lists::moved(tx, (key, to), (*end, *other), out),
            Self::Member(way) => sorted_sets::pop_named(tx, key, *way, out),
            Self::Members(way, count) => sorted_sets::pop_several(tx, key, *way, *count, out),
        }
    }
}

/// How long to wait: seconds, which may have a point. `None`: for ever.
fn timeout(text: Arg<'_>) -> Result<Option<Duration>, Failed> {
    let not_a_float = || Failed::reply("ERR timeout is not a float or out of range");
    // What is too large for a number, and too small for one, is taken as that.
    let seconds =
        double::bound(text).filter(|_| !text.is_empty() && !text[0].is_ascii_whitespace());
    let millis = (seconds.ok_or_else(not_a_float)? * 1000.0).ceil();
    if millis < 0.0 || millis > i64::MAX as f64 {
        return Err(Failed::reply("ERR timeout is negative"));
    }
    Ok((millis > 0.0).then(|| Duration::from_millis(millis as u64)))
}

/// Takes from the first key that is there. If none is, the client waits, or is told so with a null array.
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
        // No key is longer, so nothing will ever be there.
        let possible = keys.iter().filter(|key| key.len() <= MAX_KEY_BYTES);
        let keys = possible.map(|key| key.to_vec()).collect();
        tx.wants = Some(Box::new(Wants {
            keys,
            take,
            timeout,
        }));
    } else if take.destination().is_some() {
        out.null();
    } else {
        out.null_array();
    }
    Ok(())
}

/// The keys, and the timeout after them.
fn take_one(tx: &mut Tx<'_>, args: &[Arg<'_>], what: Take, out: &mut Out<'_>) -> Outcome {
    let [_, keys @ .., last] = args else {
        return Err(Failed::syntax());
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
    take_one(tx, args, Take::Member(Way::Up), out)
}

fn bzpopmax(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    take_one(tx, args, Take::Member(Way::Down), out)
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

/// The timeout, the number of keys, the keys, and what `of` makes of the word after them and of the count.
fn take_several(
    tx: &mut Tx<'_>,
    args: &[Arg<'_>],
    of: impl FnOnce(Arg<'_>, &[Arg<'_>]) -> Result<Take, Failed>,
    out: &mut Out<'_>,
) -> Outcome {
    let keys = number_of_keys(args[2])?;
    let Some((keys, [place, options @ ..])) = args[3..].split_at_checked(keys) else {
        return Err(Failed::syntax());
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
    let of =
        |place: Arg<'_>, options: &[Arg<'_>]| Ok(Take::Members(way(place)?, pop_count(options)?));
    take_several(tx, args, of, out)
}
