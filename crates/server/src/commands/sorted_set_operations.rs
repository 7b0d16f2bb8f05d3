//! Set operations on several sorted sets, or sets: union, intersection, difference.

use crate::command::{Access, COUNTED, Command, DataFn, Keys};
use crate::commands::arguments::at_least;
use crate::commands::replies::reply_members;
use crate::commands::sorted_set_ranges::store;
use crate::data::fields::Fields;
use crate::data::record::Kind;
use crate::data::sorted_set::{Scored, SortedSet};
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, double, integer, is};
use crate::reply::Out;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

const fn reads(name: &'static str, run: DataFn) -> Command {
    Command::new(name, -3, Access::Read, COUNTED, &["sortedset"], run)
}

const fn writes(name: &'static str, run: DataFn) -> Command {
    let keys = Keys::Counted { at: 2, before: 1 };
    Command::new(name, -4, Access::Write, keys, &["sortedset"], run)
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    reads("zunion", zunion),
    reads("zinter", zinter),
    reads("zdiff", zdiff),
    reads("zintercard", zintercard),
    writes("zunionstore", zunionstore),
    writes("zinterstore", zinterstore),
    writes("zdiffstore", zdiffstore),
];

/// A source; the members of a set have the score 1.
enum Source {
    Nothing,
    Set(Fields),
    Sorted(SortedSet),
}

impl Source {
    fn load(tx: &mut Tx<'_>, key: Arg<'_>) -> Result<Self, CommandError> {
        match tx.load_collection(key)? {
            None => Ok(Self::Nothing),
            Some(value) => match value.kind {
                Kind::Set => Ok(Self::Set(Fields::of(value)?)),
                Kind::SortedSet => Ok(Self::Sorted(SortedSet::of(value)?)),
                _ => Err(CommandError::wrong_type()),
            },
        }
    }

    fn len(&self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Set(set) => set.len(),
            Self::Sorted(set) => set.len(),
        }
    }

    /// Returns the bytes that it takes in memory.
    fn held(&self) -> usize {
        match self {
            Self::Nothing => size_of::<Self>(),
            Self::Set(set) => set.held(),
            Self::Sorted(set) => set.held(),
        }
    }

    fn all(&self, tx: &mut Tx<'_>) -> Result<Vec<Scored>, CommandError> {
        match self {
            Self::Nothing => Ok(Vec::new()),
            Self::Set(set) => {
                let all = set.all(tx)?;
                Ok(all.into_iter().map(|(member, _)| (member, 1.0)).collect())
            }
            Self::Sorted(set) => set.all(tx),
        }
    }

    fn score(&self, tx: &mut Tx<'_>, member: &[u8]) -> Result<Option<f64>, CommandError> {
        match self {
            Self::Nothing => Ok(None),
            Self::Set(set) => Ok(set.contains(tx, member)?.then_some(1.0)),
            Self::Sorted(set) => set.score(tx, member),
        }
    }
}

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Union,
    Inter,
    Diff,
}

/// The score of a member that several sources have.
#[derive(Clone, Copy, Debug)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            // The sum of infinities of both signs.
            Self::Sum if (a + b).is_nan() => 0.0,
            Self::Sum => a + b,
            Self::Min if b < a => b,
            Self::Max if b > a => b,
            Self::Min | Self::Max => a,
        }
    }
}

/// The kind of reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyKind {
    Members,
    Number,
    Stored,
}

/// The arguments of a command.
struct Arguments {
    sources: Vec<(Source, f64)>,
    aggregate: Aggregate,
    with_scores: bool,
    limit: u64,
}

impl Arguments {
    /// Parses the arguments from the number of keys on.
    fn parse(
        tx: &mut Tx<'_>,
        name: Arg<'_>,
        args: &[Arg<'_>],
        of: Operation,
        kind: ReplyKind,
    ) -> Result<Self, CommandError> {
        let number = integer(args[0])?;
        if number < 1 {
            let name = String::from_utf8_lossy(name).to_ascii_lowercase();
            return Err(CommandError::reply(format!(
                "ERR at least 1 input key is needed for '{name}' command"
            )));
        }
        let number = usize::try_from(number).map_err(|_| CommandError::syntax())?;
        let (keys, mut rest) = args[1..]
            .split_at_checked(number)
            .ok_or_else(CommandError::syntax)?;
        let mut sources = Vec::new();
        for key in keys {
            let source = Source::load(tx, key)?;
            // The same key may be given very often.
            let _ = tx.scratch.add_bytes(source.held());
            tx.scratch.check()?;
            sources.push((source, 1.0));
        }
        let mut arguments = Self {
            sources,
            aggregate: Aggregate::Sum,
            with_scores: false,
            limit: 0,
        };
        let scored = of != Operation::Diff && kind != ReplyKind::Number;
        while let [word, after @ ..] = rest {
            rest = match after {
                _ if scored && after.len() >= number && is(word, "weights") => {
                    let (weights, after) = after.split_at(number);
                    for ((_, weight), given) in arguments.sources.iter_mut().zip(weights) {
                        *weight = double::double(given)
                            .map_err(|_| CommandError::reply("ERR weight value is not a float"))?;
                    }
                    after
                }
                [how, after @ ..] if scored && is(word, "aggregate") => {
                    arguments.aggregate = match () {
                        () if is(how, "sum") => Aggregate::Sum,
                        () if is(how, "min") => Aggregate::Min,
                        () if is(how, "max") => Aggregate::Max,
                        () => return Err(CommandError::syntax()),
                    };
                    after
                }
                _ if kind == ReplyKind::Members && is(word, "withscores") => {
                    arguments.with_scores = true;
                    after
                }
                [limit, after @ ..] if kind == ReplyKind::Number && is(word, "limit") => {
                    arguments.limit = at_least(limit, 0, "ERR LIMIT can't be negative")?;
                    after
                }
                _ => return Err(CommandError::syntax()),
            };
        }
        Ok(arguments)
    }

    /// Returns the members with their scores, by score.
    fn members(mut self, tx: &mut Tx<'_>, of: Operation) -> Result<Vec<Scored>, CommandError> {
        if of != Operation::Diff {
            // Sums of floating-point numbers depend on their order.
            self.sources.sort_by_key(|(source, _)| source.len());
        }
        let mut found: Vec<Scored> = match of {
            Operation::Union => self.union(tx)?.into_iter().collect(),
            Operation::Inter => self.inter(tx)?,
            Operation::Diff => self.diff(tx)?,
        };
        found.sort_by(|a, b| {
            let key = |one: &Scored| double::ordered(one.1);
            (key(a), &a.0).cmp(&(key(b), &b.0))
        });
        Ok(found)
    }

    fn union(&self, tx: &mut Tx<'_>) -> Result<BTreeMap<Vec<u8>, f64>, CommandError> {
        let mut found = BTreeMap::new();
        for (source, weight) in &self.sources {
            let mark = tx.scratch.mark();
            let all = source.all(tx)?;
            // Members that exist already are dropped, and the others move.
            tx.scratch.reset(mark);
            tx.counting(|_, scratch| {
                for (member, score) in all {
                    let score = weighted(score, *weight);
                    match found.entry(member) {
                        Entry::Occupied(mut sum) => {
                            *sum.get_mut() = self.aggregate.of(*sum.get(), score);
                        }
                        Entry::Vacant(place) => {
                            let _ = scratch.add(place.key());
                            place.insert(score);
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(found)
    }

    fn inter(&self, tx: &mut Tx<'_>) -> Result<Vec<Scored>, CommandError> {
        let mut found = Vec::new();
        let Some(((first, weight), others)) = self.sources.split_first() else {
            return Ok(found);
        };
        'members: for (member, score) in first.all(tx)? {
            let mut sum = weighted(score, *weight);
            for (other, weight) in others {
                let Some(score) = other.score(tx, &member)? else {
                    continue 'members;
                };
                sum = self.aggregate.of(sum, score * weight);
            }
            found.push((member, sum));
            if self.limit != 0 && found.len() as u64 >= self.limit {
                break;
            }
        }
        Ok(found)
    }

    fn diff(&self, tx: &mut Tx<'_>) -> Result<Vec<Scored>, CommandError> {
        let mut found = Vec::new();
        let Some(((first, _), others)) = self.sources.split_first() else {
            return Ok(found);
        };
        'members: for (member, score) in first.all(tx)? {
            for (other, _) in others {
                if other.score(tx, &member)?.is_some() {
                    continue 'members;
                }
            }
            found.push((member, score));
        }
        Ok(found)
    }
}

/// Returns a score times its weight; 0 where that is not a number.
fn weighted(score: f64, weight: f64) -> f64 {
    let product = score * weight;
    if product.is_nan() { 0.0 } else { product }
}

fn reply(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>, of: Operation) -> Outcome {
    let arguments = Arguments::parse(tx, args[0], &args[1..], of, ReplyKind::Members)?;
    let with_scores = arguments.with_scores;
    let found = arguments.members(tx, of)?;
    reply_members(out, &found, with_scores);
    Ok(())
}

fn stored(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>, of: Operation) -> Outcome {
    let arguments = Arguments::parse(tx, args[0], &args[2..], of, ReplyKind::Stored)?;
    let found = arguments.members(tx, of)?;
    store(tx, args[1], &found, out)
}

fn zunion(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    reply(tx, args, out, Operation::Union)
}

fn zinter(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    reply(tx, args, out, Operation::Inter)
}

fn zdiff(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    reply(tx, args, out, Operation::Diff)
}

fn zunionstore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    stored(tx, args, out, Operation::Union)
}

fn zinterstore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    stored(tx, args, out, Operation::Inter)
}

fn zdiffstore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    stored(tx, args, out, Operation::Diff)
}

fn zintercard(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let arguments = Arguments::parse(tx, args[0], &args[1..], Operation::Inter, ReplyKind::Number)?;
    let found = arguments.members(tx, Operation::Inter)?;
    out.integer(found.len() as i64);
    Ok(())
}
