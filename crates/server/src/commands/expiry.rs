//! Commands on the expiry of keys.

use crate::command::{Access, Command, DataFn, ONE};
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, integer, is};
use crate::reply::Out;

const fn command(name: &'static str, arity: i32, access: Access, run: DataFn) -> Command {
    Command::new(name, arity, access, ONE, &["keyspace"], run)
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    command("expire", -3, Access::Write, expire),
    command("expireat", -3, Access::Write, expireat),
    command("expiretime", 2, Access::ReadOne, expiretime),
    command("persist", 2, Access::Write, persist),
    command("pexpire", -3, Access::Write, pexpire),
    command("pexpireat", -3, Access::Write, pexpireat),
    command("pexpiretime", 2, Access::ReadOne, pexpiretime),
    command("pttl", 2, Access::ReadOne, pttl),
    command("ttl", 2, Access::ReadOne, ttl),
];

/// Replies with `f` of a key's expiry; -2 if the key does not exist, -1 if it does not expire.
fn answer(
    tx: &mut Tx<'_>,
    args: &[Arg<'_>],
    out: &mut Out<'_>,
    f: fn(at: u64, now: u64) -> u64,
) -> Outcome {
    let now = tx.now;
    out.integer(match tx.load_head(args[1])? {
        None => -2,
        Some(value) => value.expires_at.map_or(-1, |at| f(at, now) as i64),
    });
    Ok(())
}

/// Converts to seconds, rounded.
fn seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

fn ttl(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    answer(tx, args, out, |at, now| seconds(at.saturating_sub(now)))
}

fn pttl(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    answer(tx, args, out, |at, now| at.saturating_sub(now))
}

fn expiretime(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    answer(tx, args, out, |at, _| seconds(at))
}

fn pexpiretime(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    answer(tx, args, out, |at, _| at)
}

/// The conditions after the time.
#[derive(Debug, Default)]
struct Conditions {
    nx: bool,
    xx: bool,
    gt: bool,
    lt: bool,
}

impl Conditions {
    fn parse(args: &[Arg<'_>]) -> Result<Self, CommandError> {
        let mut conditions = Self::default();
        for word in args {
            let named = [
                ("nx", &mut conditions.nx),
                ("xx", &mut conditions.xx),
                ("gt", &mut conditions.gt),
                ("lt", &mut conditions.lt),
            ];
            let Some((_, said)) = named.into_iter().find(|(name, _)| is(word, name)) else {
                let word = String::from_utf8_lossy(word);
                return Err(CommandError::reply(format!(
                    "ERR Unsupported option {word}"
                )));
            };
            *said = true;
        }
        if conditions.nx && (conditions.xx || conditions.gt || conditions.lt) {
            return Err(CommandError::reply(
                "ERR NX and XX, GT or LT options at the same time are not compatible",
            ));
        }
        if conditions.gt && conditions.lt {
            return Err(CommandError::reply(
                "ERR GT and LT options at the same time are not compatible",
            ));
        }
        Ok(conditions)
    }

    /// Returns true if `at` may replace `before`. A missing expiry is later than any other.
    fn allows(&self, before: Option<u64>, at: i64) -> bool {
        let before = before.map(|before| i64::try_from(before).unwrap_or(i64::MAX));
        !(self.nx && before.is_some()
            || self.xx && before.is_none()
            || self.gt && before.is_none_or(|before| at <= before)
            || self.lt && before.is_some_and(|before| at >= before))
    }
}

/// Executes the commands that set an expiry. They differ in name, in their unit in ms, and in
/// whether the time is relative.
fn expire_by(
    tx: &mut Tx<'_>,
    args: &[Arg<'_>],
    (command, unit, relative): (&str, i64, bool),
    out: &mut Out<'_>,
) -> Outcome {
    let conditions = Conditions::parse(&args[3..])?;
    let from = if relative { tx.now as i64 } else { 0 };
    let at = integer(args[2])?
        .checked_mul(unit)
        .and_then(|ms| ms.checked_add(from))
        .ok_or_else(|| {
            CommandError::reply(format!("ERR invalid expire time in '{command}' command"))
        })?;
    let key = args[1];
    let head = tx.load_head(key)?;
    let Some(before) = head.filter(|value| conditions.allows(value.expires_at, at)) else {
        out.integer(0);
        return Ok(());
    };
    out.integer(1);
    match u64::try_from(at) {
        Ok(at) if at > tx.now => tx.set_expiry(key, &before, Some(at)),
        _ => tx.erase(key, &before),
    }
}

fn expire(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    expire_by(tx, args, ("expire", 1000, true), out)
}

fn pexpire(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    expire_by(tx, args, ("pexpire", 1, true), out)
}

fn expireat(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    expire_by(tx, args, ("expireat", 1000, false), out)
}

fn pexpireat(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    expire_by(tx, args, ("pexpireat", 1, false), out)
}

fn persist(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let key = args[1];
    let head = tx.load_head(key)?;
    let Some(before) = head.filter(|value| value.expires_at.is_some()) else {
        out.integer(0);
        return Ok(());
    };
    out.integer(1);
    tx.set_expiry(key, &before, None)
}
