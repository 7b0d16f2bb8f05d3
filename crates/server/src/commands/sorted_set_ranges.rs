//! Commands on ranges of sorted sets: by rank, by score, by member.

use crate::command::{Access, Command, DataFn, Keys, ONE, TWO};
use crate::commands::arguments::part;
use crate::commands::replies::reply_members;
use crate::data::sorted_set::{Direction, Scored, Scores, SortedSet, Which};
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, double, integer, is};
use crate::reply::Out;
use std::ops::{Bound, ControlFlow};

const fn reads(name: &'static str, arity: i32, run: DataFn) -> Command {
    Command::new(name, arity, Access::ReadOne, ONE, &["sortedset"], run)
}

const fn writes(name: &'static str, arity: i32, keys: Keys, run: DataFn) -> Command {
    Command::new(name, arity, Access::Write, keys, &["sortedset"], run)
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    reads("zcount", 4, zcount),
    reads("zlexcount", 4, zlexcount),
    reads("zrange", -4, zrange),
    writes("zrangestore", -5, TWO, zrangestore),
    reads("zrevrange", -4, zrevrange),
    reads("zrangebyscore", -4, zrangebyscore),
    reads("zrevrangebyscore", -4, zrevrangebyscore),
    reads("zrangebylex", -4, zrangebylex),
    reads("zrevrangebylex", -4, zrevrangebylex),
    writes("zremrangebyrank", 4, ONE, zremrangebyrank),
    writes("zremrangebyscore", 4, ONE, zremrangebyscore),
    writes("zremrangebylex", 4, ONE, zremrangebylex),
];

/// The end of a range of members.
#[derive(Clone, Copy, Debug)]
enum End<'a> {
    /// `-`
    Lowest,
    /// `+`
    Highest,
    /// `[member`
    With(&'a [u8]),
    /// `(member`
    Without(&'a [u8]),
}

impl<'a> End<'a> {
    fn parse(text: Arg<'a>) -> Result<Self, CommandError> {
        match text {
            b"-" => Ok(Self::Lowest),
            b"+" => Ok(Self::Highest),
            [b'[', member @ ..] => Ok(Self::With(member)),
            [b'(', member @ ..] => Ok(Self::Without(member)),
            _ => Err(CommandError::reply(
                "ERR min or max not valid string range item",
            )),
        }
    }

    /// Returns true if a range that begins here includes the member.
    fn begins(self, member: &[u8]) -> bool {
        match self {
            Self::Lowest => true,
            Self::Highest => false,
            Self::With(end) => member >= end,
            Self::Without(end) => member > end,
        }
    }

    /// Returns true if a range that ends here includes the member.
    fn ends(self, member: &[u8]) -> bool {
        match self {
            Self::Lowest => false,
            Self::Highest => true,
            Self::With(end) => member <= end,
            Self::Without(end) => member < end,
        }
    }

    fn bound(self) -> Bound<&'a [u8]> {
        /// Longer ends are compared with, but not searched for.
        const MAX_SEARCHED: usize = 32 << 10;
        match self {
            Self::With(end) if end.len() < MAX_SEARCHED => Bound::Included(end),
            Self::Without(end) if end.len() < MAX_SEARCHED => Bound::Excluded(end),
            _ => Bound::Unbounded,
        }
    }
}

/// A range of a sorted set.
#[derive(Clone, Copy, Debug)]
enum Range<'a> {
    Ranks(i64, i64),
    Scores(Scores),
    Members(End<'a>, End<'a>),
}

/// The order that a range refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Rank,
    Score,
    Member,
}

fn scores(least: Arg<'_>, most: Arg<'_>) -> Result<Scores, CommandError> {
    let end = |text: Arg<'_>| {
        let (without, number) = match text {
            [b'(', number @ ..] => (true, number),
            number => (false, number),
        };
        let number = double::bound(number)
            .ok_or_else(|| CommandError::reply("ERR min or max is not a float"))?;
        Ok::<_, CommandError>((number, without))
    };
    let ((least, after_least), (most, before_most)) = (end(least)?, end(most)?);
    Ok(Scores {
        least,
        after_least,
        most,
        before_most,
    })
}

impl<'a> Range<'a> {
    fn parse(by: By, start: Arg<'a>, end: Arg<'a>) -> Result<Self, CommandError> {
        Ok(match by {
            By::Rank => Self::Ranks(integer(start)?, integer(end)?),
            By::Score => Self::Scores(scores(start, end)?),
            By::Member => Self::Members(End::parse(start)?, End::parse(end)?),
        })
    }
}

/// Visits the members of a range.
fn visit(
    tx: &mut Tx<'_>,
    set: &SortedSet,
    range: Range<'_>,
    direction: Direction,
    mut visit: impl FnMut(&[u8], f64) -> ControlFlow<()>,
) -> Outcome {
    match range {
        Range::Ranks(start, stop) => {
            let (start, count) = part(start, stop, set.len());
            for (member, score) in set.ranks(tx, start, count, direction)? {
                if visit(&member, score).is_break() {
                    break;
                }
            }
            Ok(())
        }
        Range::Scores(scores) => set.visit(tx, Which::Scores(scores), direction, visit),
        Range::Members(least, most) => {
            // A range of members is a contiguous part of the order only if all scores are equal.
            let first = set.ranks(tx, 0, 1, Direction::Ascending)?;
            let last = set.ranks(tx, 0, 1, Direction::Descending)?;
            let which = match (first.first(), last.first()) {
                (Some((_, first)), Some((_, last))) if first == last => {
                    let end = if direction == Direction::Ascending {
                        least
                    } else {
                        most
                    };
                    Which::Members(*first, end.bound())
                }
                _ => Which::All,
            };
            let mut begun = false;
            set.visit(tx, which, direction, |member, score| {
                let (begins, ends) = match direction {
                    Direction::Ascending => (least.begins(member), most.ends(member)),
                    Direction::Descending => (most.ends(member), least.begins(member)),
                };
                begun |= begins;
                match (begun, ends) {
                    (false, _) => ControlFlow::Continue(()),
                    (true, false) => ControlFlow::Break(()),
                    (true, true) => visit(member, score),
                }
            })
        }
    }
}

/// Returns the members of a range: `limit` of them (all, if negative) after the first `offset`
/// (none, if that is negative).
fn members(
    tx: &mut Tx<'_>,
    set: &SortedSet,
    range: Range<'_>,
    direction: Direction,
    (offset, limit): (i64, i64),
) -> Result<Vec<Scored>, CommandError> {
    let mut found = Vec::new();
    let Ok(mut skip) = u64::try_from(offset) else {
        return Ok(found);
    };
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    if limit == 0 {
        return Ok(found);
    }
    tx.counting(|tx, scratch| {
        visit(tx, set, range, direction, |member, score| {
            if skip > 0 {
                skip -= 1;
                return ControlFlow::Continue(());
            }
            scratch.add(member)?;
            found.push((member.to_vec(), score));
            if found.len() as u64 == limit {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })
    })?;
    Ok(found)
}

/// The kind of range that the name of a command implies; other commands have options for it.
#[derive(Clone, Copy, Debug)]
struct Implied {
    by: Option<By>,
    direction: Option<Direction>,
}

/// The arguments of a command.
struct Arguments<'a> {
    range: Range<'a>,
    direction: Direction,
    limit: (i64, i64),
    with_scores: bool,
}

impl<'a> Arguments<'a> {
    /// Parses the arguments from the range's start on.
    fn parse(args: &[Arg<'a>], implied: Implied, stores: bool) -> Result<Self, CommandError> {
        let [start, end, options @ ..] = args else {
            return Err(CommandError::syntax());
        };
        let (mut by, mut direction) = (implied.by, implied.direction);
        let mut limit = (0, -1);
        let mut with_scores = false;
        let mut options = options;
        while let [word, rest @ ..] = options {
            options = rest;
            match rest {
                _ if !stores && is(word, "withscores") => with_scores = true,
                [offset, count, rest @ ..] if is(word, "limit") => {
                    limit = (integer(offset)?, integer(count)?);
                    options = rest;
                }
                _ if implied.direction.is_none() && direction.is_none() && is(word, "rev") => {
                    direction = Some(Direction::Descending);
                }
                _ if by.is_none() && is(word, "bylex") => by = Some(By::Member),
                _ if by.is_none() && is(word, "byscore") => by = Some(By::Score),
                _ => return Err(CommandError::syntax()),
            }
        }
        let (by, direction) = (
            by.unwrap_or(By::Rank),
            direction.unwrap_or(Direction::Ascending),
        );
        if limit.1 != -1 && by == By::Rank {
            return Err(CommandError::reply(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        if by == By::Rank {
            // An offset without a limit has no effect there.
            limit = (0, -1);
        }
        if with_scores && by == By::Member {
            return Err(CommandError::reply(
                "ERR syntax error, WITHSCORES not supported in combination with BYLEX",
            ));
        }
        let (start, end) = if direction == Direction::Descending && by != By::Rank {
            (end, start)
        } else {
            (start, end)
        };
        Ok(Self {
            range: Range::parse(by, start, end)?,
            direction,
            limit,
            with_scores,
        })
    }

    fn members(&self, tx: &mut Tx<'_>, key: Arg<'_>) -> Result<Vec<Scored>, CommandError> {
        let set = SortedSet::load(tx, key)?;
        members(tx, &set, self.range, self.direction, self.limit)
    }
}

fn reply(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>, implied: Implied) -> Outcome {
    let arguments = Arguments::parse(&args[2..], implied, false)?;
    let found = arguments.members(tx, args[1])?;
    // In RESP3, members without scores are a flat array, too.
    reply_members(out, &found, arguments.with_scores);
    Ok(())
}

fn zrange(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (by, direction) = (None, None);
    reply(tx, args, out, Implied { by, direction })
}

fn zrangestore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (by, direction) = (None, None);
    let arguments = Arguments::parse(&args[3..], Implied { by, direction }, true)?;
    let found = arguments.members(tx, args[2])?;
    store(tx, args[1], &found, out)
}

/// Stores these members under a key, replaces its value, and replies with their number.
pub(crate) fn store(tx: &mut Tx<'_>, key: Arg<'_>, found: &[Scored], out: &mut Out<'_>) -> Outcome {
    let before = tx.load_head(key)?;
    let mut set = SortedSet::in_place_of(before);
    for (member, score) in found {
        set.put(tx, member, *score, None)?;
    }
    out.integer(found.len() as i64);
    set.save(tx, key)
}

fn zrevrange(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (by, direction) = (Some(By::Rank), Some(Direction::Descending));
    reply(tx, args, out, Implied { by, direction })
}

fn zrangebyscore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (by, direction) = (Some(By::Score), Some(Direction::Ascending));
    reply(tx, args, out, Implied { by, direction })
}

fn zrevrangebyscore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (by, direction) = (Some(By::Score), Some(Direction::Descending));
    reply(tx, args, out, Implied { by, direction })
}

fn zrangebylex(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (by, direction) = (Some(By::Member), Some(Direction::Ascending));
    reply(tx, args, out, Implied { by, direction })
}

fn zrevrangebylex(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (by, direction) = (Some(By::Member), Some(Direction::Descending));
    reply(tx, args, out, Implied { by, direction })
}

fn counted(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>, by: By) -> Outcome {
    let range = Range::parse(by, args[2], args[3])?;
    let set = SortedSet::load(tx, args[1])?;
    let mut count = 0;
    visit(tx, &set, range, Direction::Ascending, |_, _| {
        count += 1;
        ControlFlow::Continue(())
    })?;
    out.integer(count);
    Ok(())
}

fn zcount(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    counted(tx, args, out, By::Score)
}

fn zlexcount(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    counted(tx, args, out, By::Member)
}

fn removed(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>, by: By) -> Outcome {
    let range = Range::parse(by, args[2], args[3])?;
    let mut set = SortedSet::load(tx, args[1])?;
    let found = members(tx, &set, range, Direction::Ascending, (0, -1))?;
    out.integer(found.len() as i64);
    set.take_all(tx, &found)?;
    set.save(tx, args[1])
}

fn zremrangebyrank(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    removed(tx, args, out, By::Rank)
}

fn zremrangebyscore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    removed(tx, args, out, By::Score)
}

fn zremrangebylex(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    removed(tx, args, out, By::Member)
}
