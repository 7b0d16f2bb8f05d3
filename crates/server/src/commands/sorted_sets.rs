//! Commands on sorted sets: members, scores and ranks.

use crate::command::{Access, COUNTED, Command, DataFn, Keys, ONE};
use crate::commands::arguments::{
    ScanOptions, count, cursor, nothing_to_scan, number_of_keys, pop_count, random_elements,
    random_options,
};
use crate::commands::replies::{reply_double, reply_member, reply_members};
use crate::data::sorted_set::{Direction, Scored, SortedSet, Which};
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, double, is};
use crate::reply::Out;
use std::ops::ControlFlow;

const fn reads(name: &'static str, arity: i32, run: DataFn) -> Command {
    Command::new(name, arity, Access::ReadOne, ONE, &["sortedset"], run)
}

const fn writes(name: &'static str, arity: i32, keys: Keys, run: DataFn) -> Command {
    Command::new(name, arity, Access::Write, keys, &["sortedset"], run)
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    writes("zadd", -4, ONE, zadd),
    writes("zincrby", 4, ONE, zadd),
    writes("zrem", -3, ONE, zrem),
    reads("zscore", 3, zscore),
    reads("zmscore", -3, zmscore),
    reads("zcard", 2, zcard),
    reads("zrank", 3, zrank),
    reads("zrevrank", 3, zrank),
    writes("zpopmin", -2, ONE, zpop),
    writes("zpopmax", -2, ONE, zpop),
    writes("zmpop", -4, COUNTED, zmpop),
    reads("zrandmember", -2, zrandmember),
    reads("zscan", -3, zscan),
];

/// The options of `ZADD`.
#[derive(Clone, Copy, Debug, Default)]
struct AddOptions {
    /// Add new members only.
    new: bool,
    /// Update existing members only.
    known: bool,
    /// Update only to a higher score.
    higher: bool,
    /// Update only to a lower score.
    lower: bool,
    /// Count changed members, too.
    changed: bool,
    /// Add the score to the current one.
    increment: bool,
}

impl AddOptions {
    fn check(self, rest: &[Arg<'_>]) -> Outcome {
        if rest.is_empty() || !rest.len().is_multiple_of(2) {
            return Err(CommandError::syntax());
        }
        let error = if self.new && self.known {
            "ERR XX and NX options at the same time are not compatible"
        } else if [self.new, self.higher, self.lower]
            .into_iter()
            .filter(|set| *set)
            .count()
            > 1
        {
            "ERR GT, LT, and/or NX options at the same time are not compatible"
        } else if self.increment && rest.len() > 2 {
            "ERR INCR option supports a single increment-element pair"
        } else {
            return Ok(());
        };
        Err(CommandError::reply(error))
    }

    /// Returns the new score of a member; `None` if it stays the same.
    fn score(self, before: Option<f64>, given: f64) -> Result<Option<f64>, CommandError> {
        let Some(before) = before else {
            return Ok((!self.known).then_some(given));
        };
        if self.new {
            return Ok(None);
        }
        let score = if self.increment {
            before + given
        } else {
            given
        };
        if score.is_nan() {
            return Err(CommandError::reply(
                "ERR resulting score is not a number (NaN)",
            ));
        }
        let kept = self.lower && score >= before || self.higher && score <= before;
        Ok((!kept).then_some(score))
    }
}

fn zadd(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut options = AddOptions {
        increment: is(args[0], "zincrby"),
        ..AddOptions::default()
    };
    let mut rest = &args[2..];
    while let [word, after @ ..] = rest {
        let flag = match word.to_ascii_lowercase().as_slice() {
            b"nx" => &mut options.new,
            b"xx" => &mut options.known,
            b"gt" => &mut options.higher,
            b"lt" => &mut options.lower,
            b"ch" => &mut options.changed,
            b"incr" => &mut options.increment,
            _ => break,
        };
        *flag = true;
        rest = after;
    }
    options.check(rest)?;
    let (given, _) = rest.as_chunks::<2>();
    let scores: Result<Vec<f64>, CommandError> = (given.iter())
        .map(|[score, _]| double::double(score))
        .collect();
    let scores = scores?;
    let mut set = SortedSet::load(tx, args[1])?;
    let (mut new, mut changed, mut last) = (0, 0, None);
    for ([_, member], given) in given.iter().zip(scores) {
        let before = set.score(tx, member)?;
        last = options.score(before, given)?;
        if let Some(score) = last {
            set.put(tx, member, score, before)?;
            new += i64::from(before.is_none());
            changed += i64::from(before.is_some_and(|before| before != score));
        }
    }
    match last {
        Some(score) if options.increment => reply_double(out, score),
        None if options.increment => out.null(),
        _ if options.changed => out.integer(new + changed),
        _ => out.integer(new),
    }
    set.save(tx, args[1])
}

fn zrem(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut set = SortedSet::load(tx, args[1])?;
    let mut gone = 0;
    for member in &args[2..] {
        if let Some(score) = set.score(tx, member)? {
            set.take(tx, member, score)?;
            gone += 1;
        }
    }
    out.integer(gone);
    set.save(tx, args[1])
}

fn zscore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    match SortedSet::load(tx, args[1])?.score(tx, args[2])? {
        Some(score) => reply_double(out, score),
        None => out.null(),
    }
    Ok(())
}

fn zmscore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let set = SortedSet::load(tx, args[1])?;
    out.array(args.len() - 2);
    for member in &args[2..] {
        match set.score(tx, member)? {
            Some(score) => reply_double(out, score),
            None => out.null(),
        }
    }
    Ok(())
}

fn zcard(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    out.integer(SortedSet::load(tx, args[1])?.len() as i64);
    Ok(())
}

fn zrank(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let set = SortedSet::load(tx, args[1])?;
    if set.score(tx, args[2])?.is_none() {
        out.null();
        return Ok(());
    }
    let direction = if is(args[0], "zrank") {
        Direction::Ascending
    } else {
        Direction::Descending
    };
    let mut rank = 0;
    set.visit(tx, Which::All, direction, |member, _| {
        if member == args[2] {
            return ControlFlow::Break(());
        }
        rank += 1;
        ControlFlow::Continue(())
    })?;
    out.integer(rank);
    Ok(())
}

/// Removes and returns the first members.
fn pop(
    tx: &mut Tx<'_>,
    key: Arg<'_>,
    direction: Direction,
    count: u64,
) -> Result<Vec<Scored>, CommandError> {
    let mut set = SortedSet::load(tx, key)?;
    let found = set.ranks(tx, 0, count, direction)?;
    set.take_all(tx, &found)?;
    set.save(tx, key)?;
    Ok(found)
}

fn zpop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let wanted = match &args[2..] {
        [] => None,
        [wanted] => Some(count(wanted)?),
        _ => return Err(CommandError::syntax()),
    };
    let direction = if is(args[0], "zpopmin") {
        Direction::Ascending
    } else {
        Direction::Descending
    };
    let found = pop(tx, args[1], direction, wanted.unwrap_or(1))?;
    match found.first() {
        Some((member, score)) if wanted.is_none() => {
            out.array(2);
            out.bulk(member);
            reply_double(out, *score);
        }
        _ => reply_members(out, &found, true),
    }
    Ok(())
}

/// Pops the first member, and replies with the key, the member and its score. Returns false if the
/// key does not exist.
pub(crate) fn pop_named(
    tx: &mut Tx<'_>,
    key: Arg<'_>,
    direction: Direction,
    out: &mut Out<'_>,
) -> Result<bool, CommandError> {
    let found = pop(tx, key, direction, 1)?;
    for (member, score) in &found {
        out.array(3);
        out.bulk(key);
        out.bulk(member);
        reply_double(out, *score);
    }
    Ok(!found.is_empty())
}

/// Pops up to `count` members, and replies with the key and an array of pairs. Returns false if the
/// key does not exist.
pub(crate) fn pop_several(
    tx: &mut Tx<'_>,
    key: Arg<'_>,
    direction: Direction,
    count: u64,
    out: &mut Out<'_>,
) -> Result<bool, CommandError> {
    let found = pop(tx, key, direction, count)?;
    if found.is_empty() {
        return Ok(false);
    }
    out.array(2);
    out.bulk(key);
    out.array(found.len());
    for (member, score) in &found {
        out.array(2);
        out.bulk(member);
        reply_double(out, *score);
    }
    Ok(true)
}

/// Parses the name of an end.
pub(crate) fn direction(word: Arg<'_>) -> Result<Direction, CommandError> {
    match () {
        () if is(word, "min") => Ok(Direction::Ascending),
        () if is(word, "max") => Ok(Direction::Descending),
        () => Err(CommandError::syntax()),
    }
}

fn zmpop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let keys = number_of_keys(args[1])?;
    let Some((keys, [place, options @ ..])) = args[2..].split_at_checked(keys) else {
        return Err(CommandError::syntax());
    };
    let (direction, wanted) = (direction(place)?, pop_count(options)?);
    for key in keys {
        if pop_several(tx, key, direction, wanted, out)? {
            return Ok(());
        }
    }
    out.null_array();
    Ok(())
}

fn zrandmember(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let Some((count, with_scores)) = random_options(&args[2..], "withscores")? else {
        let one = SortedSet::load(tx, args[1])?.random(tx)?;
        out.maybe_bulk(one.as_ref().map(|(member, _)| &member[..]));
        return Ok(());
    };
    let set = SortedSet::load(tx, args[1])?;
    let (random, all) = (
        |tx: &mut Tx<'_>| set.random(tx),
        |tx: &mut Tx<'_>| set.all(tx),
    );
    let counts = (set.len(), count);
    random_elements(tx, counts, with_scores, out, random, all, |out, one| {
        reply_member(out, one, with_scores);
    })
}

fn zscan(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let from = cursor(args[2])?;
    let set = SortedSet::load(tx, args[1])?;
    if set.is_empty() {
        nothing_to_scan(out);
        return Ok(());
    }
    let options = ScanOptions::parse(&args[3..], false)?;
    let (next, found) = set.step(tx, from, options.count)?;
    // Redis writes the scores of sets that it calls small in this form.
    let small = set.len() <= 128 && found.iter().all(|(member, _)| member.len() <= 64);
    let text = |score: f64| match score as i64 {
        whole if small && whole as f64 == score && score.abs() <= 2f64.powi(62) => {
            whole.to_string()
        }
        _ => double::text(score),
    };
    let found: Vec<_> = found
        .into_iter()
        .map(|(member, score)| (member, text(score).into_bytes()))
        .collect();
    options.reply(out, next, &found, true);
    Ok(())
}
