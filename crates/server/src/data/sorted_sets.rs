//! Commands on sorted sets: members, scores and ranks. Ranges and combinations are in modules of their own.

use super::arguments::{
    ScanOptions, count, cursor, nothing_to_scan, number_of_keys, pair, pairs, pop_count,
    random_options,
};
use super::scored::{Scored, SortedSet, Way, Which};
use super::sorted_combined as combined;
use super::sorted_ranges as ranges;
use super::{Tx, double};
use crate::command::{Access, Arg, COUNTED, Command, Failed, Keys, ONE, Outcome, Run, TWO, is};
use crate::reply::Out;
use std::ops::ControlFlow;

const fn one(name: &'static str, arity: i32, run: Run) -> Command {
    Command::new(name, arity, Access::ReadOne, ONE, "sortedset", run)
}

const fn several(name: &'static str, arity: i32, run: Run) -> Command {
    Command::new(name, arity, Access::Read, COUNTED, "sortedset", run)
}

const fn writes(name: &'static str, arity: i32, keys: Keys, run: Run) -> Command {
    Command::new(name, arity, Access::Write, keys, "sortedset", run)
}

const STORE: Keys = Keys::Counted { at: 2, before: 1 };

/// The commands.
pub const COMMANDS: &[Command] = &[
    writes("zadd", -4, ONE, zadd),
    writes("zincrby", 4, ONE, zadd),
    writes("zrem", -3, ONE, zrem),
    one("zscore", 3, zscore),
    one("zmscore", -3, zmscore),
    one("zcard", 2, zcard),
    one("zrank", 3, zrank),
    one("zrevrank", 3, zrank),
    writes("zpopmin", -2, ONE, zpop),
    writes("zpopmax", -2, ONE, zpop),
    writes("zmpop", -4, COUNTED, zmpop),
    one("zrandmember", -2, zrandmember),
    one("zscan", -3, zscan),
    one("zcount", 4, ranges::zcount),
    one("zlexcount", 4, ranges::zlexcount),
    one("zrange", -4, ranges::zrange),
    writes("zrangestore", -5, TWO, ranges::zrangestore),
    one("zrevrange", -4, ranges::zrevrange),
    one("zrangebyscore", -4, ranges::zrangebyscore),
    one("zrevrangebyscore", -4, ranges::zrevrangebyscore),
    one("zrangebylex", -4, ranges::zrangebylex),
    one("zrevrangebylex", -4, ranges::zrevrangebylex),
    writes("zremrangebyrank", 4, ONE, ranges::zremrangebyrank),
    writes("zremrangebyscore", 4, ONE, ranges::zremrangebyscore),
    writes("zremrangebylex", 4, ONE, ranges::zremrangebylex),
    several("zunion", -3, combined::zunion),
    several("zinter", -3, combined::zinter),
    several("zdiff", -3, combined::zdiff),
    several("zintercard", -3, combined::zintercard),
    writes("zunionstore", -4, STORE, combined::zunionstore),
    writes("zinterstore", -4, STORE, combined::zinterstore),
    writes("zdiffstore", -4, STORE, combined::zdiffstore),
];

/// Replies with a number.
pub(super) fn reply_double(out: &mut Out<'_>, number: f64) {
    out.double_text(&double::text(number));
}

/// Replies with members, and with their scores if they are wanted.
pub(super) fn reply_members(out: &mut Out<'_>, found: &[Scored], with_scores: bool) {
    if with_scores {
        pairs(out, found.len());
    } else {
        out.array(found.len());
    }
    for one in found {
        reply_member(out, one, with_scores);
    }
}

fn reply_member(out: &mut Out<'_>, (member, score): &Scored, with_scores: bool) {
    if with_scores {
        pair(out);
    }
    out.bulk(member);
    if with_scores {
        reply_double(out, *score);
    }
}

/// What `ZADD` may do.
#[derive(Clone, Copy, Debug, Default)]
struct AddOptions {
    /// Only new members.
    new: bool,
    /// Only those that are there.
    known: bool,
    /// Only if the score becomes higher.
    higher: bool,
    /// Only if it becomes lower.
    lower: bool,
    /// The changed ones are counted, too.
    changed: bool,
    /// The score is added to the one that is there.
    increment: bool,
}

impl AddOptions {
    fn check(self, rest: &[Arg<'_>]) -> Outcome {
        if rest.is_empty() || !rest.len().is_multiple_of(2) {
            return Err(Failed::syntax());
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
        Err(Failed::reply(error))
    }

    /// The score that a member gets; `None`: it stays as it is.
    fn score(self, before: Option<f64>, given: f64) -> Result<Option<f64>, Failed> {
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
            return Err(Failed::reply("ERR resulting score is not a number (NaN)"));
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
    let scores: Result<Vec<f64>, Failed> = (given.iter())
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
    let way = if is(args[0], "zrank") {
        Way::Up
    } else {
        Way::Down
    };
    let mut rank = 0;
    set.visit(tx, Which::All, way, |member, _| {
        if member == args[2] {
            return ControlFlow::Break(());
        }
        rank += 1;
        ControlFlow::Continue(())
    })?;
    out.integer(rank);
    Ok(())
}

/// Takes the first members away.
fn pop(tx: &mut Tx<'_>, key: Arg<'_>, way: Way, count: u64) -> Result<Vec<Scored>, Failed> {
    let mut set = SortedSet::load(tx, key)?;
    let found = set.ranks(tx, 0, count, way)?;
    set.take_all(tx, &found)?;
    set.save(tx, key)?;
    Ok(found)
}

fn zpop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let wanted = match &args[2..] {
        [] => None,
        [wanted] => Some(count(wanted)?),
        _ => return Err(Failed::syntax()),
    };
    let way = if is(args[0], "zpopmin") {
        Way::Up
    } else {
        Way::Down
    };
    let found = pop(tx, args[1], way, wanted.unwrap_or(1))?;
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

/// Takes the first member, and answers with the key, the member and its score; false if the key is not there.
pub(super) fn pop_named(
    tx: &mut Tx<'_>,
    key: Arg<'_>,
    way: Way,
    out: &mut Out<'_>,
) -> Result<bool, Failed> {
    let found = pop(tx, key, way, 1)?;
    for (member, score) in &found {
        out.array(3);
        out.bulk(key);
        out.bulk(member);
        reply_double(out, *score);
    }
    Ok(!found.is_empty())
}

/// As [`pop_named`], up to `count` members, each with its score in an array.
pub(super) fn pop_several(
    tx: &mut Tx<'_>,
    key: Arg<'_>,
    way: Way,
    count: u64,
    out: &mut Out<'_>,
) -> Result<bool, Failed> {
    let found = pop(tx, key, way, count)?;
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

/// The end that a word names.
pub(super) fn way(word: Arg<'_>) -> Result<Way, Failed> {
    match () {
        () if is(word, "min") => Ok(Way::Up),
        () if is(word, "max") => Ok(Way::Down),
        () => Err(Failed::syntax()),
    }
}

fn zmpop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let keys = number_of_keys(args[1])?;
    let Some((keys, [place, options @ ..])) = args[2..].split_at_checked(keys) else {
        return Err(Failed::syntax());
    };
    let (way, wanted) = (way(place)?, pop_count(options)?);
    for key in keys {
        if pop_several(tx, key, way, wanted, out)? {
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
    set.random_reply(tx, count, with_scores, out, |out, one| {
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
    // As Redis has the scores of those that it calls small.
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
