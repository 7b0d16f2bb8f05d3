//! Commands that search for keys: `KEYS`, `SCAN`, `RANDOMKEY`.
//!
//! Keys are visited in byte order. A cursor that is not known, as after a restart, is an error: if
//! the iteration began again, a client's loop might never end.

use crate::command::{Access, Command, DataFn, Keys};
use crate::commands::arguments::{ScanOptions, cursor, invalid_cursor};
use crate::data::bounds::Range;
use crate::data::record::Kind;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::glob::Pattern;
use crate::parse::{Arg, glob, is};
use crate::reply::Out;
use bristlecone_store::Direction;
use rand::RngExt;
use std::ops::{Bound, ControlFlow};

const fn command(name: &'static str, arity: i32, run: DataFn) -> Command {
    Command::new(name, arity, Access::Read, Keys::None, &["keyspace"], run)
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    Command::new(
        "keys",
        2,
        Access::Read,
        Keys::None,
        &["keyspace", "dangerous"],
        keys,
    )
    .long(),
    command("randomkey", 1, random_key),
    command("scan", -2, scan),
];

/// Calls `visit` with the live keys of a range, and their types.
fn visit_keys(
    tx: &mut Tx<'_>,
    range: Range<'_>,
    mut visit: impl FnMut(&[u8], Kind) -> ControlFlow<()>,
) -> Outcome {
    let (db, now) = (tx.db, tx.now);
    let mut damaged = Ok(());
    tx.scan_heads(db, range, Direction::Up, |key, head| match head {
        Ok(head) if head.lives(now) => visit(key, head.kind),
        Ok(_) => ControlFlow::Continue(()),
        Err(e) => {
            damaged = Err(e);
            ControlFlow::Break(())
        }
    })?;
    damaged
}

/// Calls `visit` with the live keys that begin with `prefix`, after the key `after`.
fn visit_prefix(
    tx: &mut Tx<'_>,
    prefix: &[u8],
    after: Option<&[u8]>,
    mut visit: impl FnMut(&[u8], Kind) -> ControlFlow<()>,
) -> Outcome {
    let start = match after {
        Some(after) if after >= prefix => Bound::Excluded(after),
        _ => Bound::Included(prefix),
    };
    visit_keys(tx, (start, Bound::Unbounded), |key, kind| {
        if key.starts_with(prefix) {
            visit(key, kind)
        } else {
            ControlFlow::Break(())
        }
    })
}

fn answer(found: &[Vec<u8>], out: &mut Out<'_>) {
    out.array(found.len());
    found.iter().for_each(|key| out.bulk(key));
}

fn keys(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    glob::check(args[1])?;
    let pattern = Pattern::new(args[1]);
    let mut found = Vec::new();
    tx.counting(|tx, scratch| {
        visit_prefix(tx, pattern.literal_prefix(), None, |key, _| {
            if pattern.matches(key) {
                scratch.add(key)?;
                found.push(key.to_vec());
            }
            ControlFlow::Continue(())
        })
    })?;
    answer(&found, out);
    Ok(())
}

fn scan(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let number = cursor(args[1])?;
    let options = ScanOptions::parse(&args[2..], true)?;
    let (pattern, mut left) = (Pattern::new(options.pattern.unwrap_or(b"*")), options.count);
    let db = tx.db;
    let after = if number == 0 {
        None
    } else {
        let known = tx.data().cursors().find(number, db);
        Some(known.ok_or_else(invalid_cursor)?)
    };
    let (mut found, mut last) = (Vec::new(), None);
    tx.counting(|tx, scratch| {
        let prefix = pattern.literal_prefix();
        visit_prefix(tx, prefix, after.as_deref(), |key, kind| {
            if options.of.is_none_or(|name| is(name, kind.name())) && pattern.matches(key) {
                scratch.add(key)?;
                found.push(key.to_vec());
            }
            left -= 1;
            if left > 0 {
                return ControlFlow::Continue(());
            }
            last = Some(key.to_vec());
            ControlFlow::Break(())
        })
    })?;
    let next = match last {
        Some(key) => tx.data().cursors().remember(db, key, number),
        None => 0,
    };
    out.array(2);
    out.bulk(next.to_string().as_bytes());
    answer(&found, out);
    Ok(())
}

/// Returns the first live key of a range.
fn first(tx: &mut Tx<'_>, range: Range<'_>) -> Result<Option<Vec<u8>>, CommandError> {
    let mut found = None;
    visit_keys(tx, range, |key, _| {
        found = Some(key.to_vec());
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// Returns the last key that begins with `prefix`.
fn last(tx: &mut Tx<'_>, prefix: &[u8]) -> Result<Option<Vec<u8>>, CommandError> {
    let db = tx.db;
    let mut end = prefix.to_vec();
    while end.last() == Some(&u8::MAX) {
        end.pop();
    }
    let upper = match end.last_mut() {
        Some(byte) => {
            *byte += 1;
            Bound::Excluded(end.as_slice())
        }
        None => Bound::Unbounded,
    };
    let mut found = None;
    let range = (Bound::Included(prefix), upper);
    tx.scan_heads(db, range, Direction::Down, |key, _| {
        found = Some(key.to_vec());
        ControlFlow::Break(())
    })?;
    Ok(found)
}

/// Chooses a random byte after the common prefix of all keys, narrows the keys to those that have
/// it, or the next ones, and repeats that. Any key may be chosen, those with few neighbours more
/// often.
fn random_key(tx: &mut Tx<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut rng = rand::rng();
    let mut prefix = Vec::new();
    let key = loop {
        let Some(low) = first(tx, (Bound::Included(&prefix), Bound::Unbounded))? else {
            break None;
        };
        let Some(high) = last(tx, &prefix)? else {
            break Some(low);
        };
        let common = low.iter().zip(&high).take_while(|(a, b)| a == b).count();
        let Some(&most) = high.get(common) else {
            break Some(low);
        };
        // A key that ends where the others go on is another choice.
        let least = low.get(common).copied();
        let choices =
            u32::from(most) - u32::from(least.unwrap_or(0)) + 1 + u32::from(least.is_none());
        let choice = rng.random_range(0..choices);
        let byte = match (least, choice) {
            (None, 0) => break Some(low),
            (None, choice) => choice - 1,
            (Some(least), choice) => u32::from(least) + choice,
        };
        prefix = [&low[..common], &[byte as u8]].concat();
        match first(tx, (Bound::Included(&prefix), Bound::Unbounded))? {
            Some(next) => prefix = next[..=common.min(next.len() - 1)].to_vec(),
            None => break Some(low),
        }
    };
    out.maybe_bulk(key.as_deref());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::Fixture;

    /// Returns a page: the next cursor, and its keys.
    fn page(reply: &str) -> (String, Vec<String>) {
        let mut lines = reply.split("\r\n");
        let cursor = lines.nth(2).unwrap().to_owned();
        let keys = lines.skip(2).step_by(2).filter(|key| !key.is_empty());
        (cursor, keys.map(str::to_owned).collect())
    }

    #[test]
    fn an_iteration_gives_every_key_once_that_is_there_all_the_time() {
        let fixture = Fixture::new();
        let data = fixture.open();
        for number in 0..300 {
            fixture.call(&data, &format!("set user:{number} x"));
            fixture.call(&data, &format!("set gone:{number} x"));
        }
        let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
        let mut turn = 0;
        loop {
            let (next, keys) = page(&fixture.call(&data, &format!("scan {cursor} count 7")));
            // A client that did not get the reply asks again.
            let (_, again) = page(&fixture.call(&data, &format!("scan {cursor} count 7")));
            assert_eq!(keys, again);
            found.extend(keys);
            fixture.call(&data, &format!("del gone:{turn}"));
            fixture.call(&data, &format!("set new:{turn} x"));
            turn += 1;
            if next == "0" {
                break;
            }
            cursor = next;
        }
        found.retain(|key| key.starts_with("user:"));
        found.sort();
        let all = found.len();
        found.dedup();
        assert_eq!((all, found.len()), (300, 300));
        let (next, keys) = page(&fixture.call(&data, "scan 0 match user:29? count 1000"));
        assert_eq!((next.as_str(), keys.len()), ("0", 10));
        let unknown = fixture.call(&data, "scan 12345 count 1");
        assert_eq!(unknown, "-ERR invalid cursor\r\n");
    }

    #[test]
    fn patterns_have_a_longest() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let most = "*".repeat(glob::MAX_PATTERN);
        fixture.call(&data, "mset a 1");
        fixture.call(&data, "hset h f 1");
        let call = |line: String| fixture.call(&data, &line);
        assert!(call(format!("keys {most}")).starts_with("*2\r\n"));
        let error = "-ERR a pattern of 65537 bytes: at most 65536 are possible\r\n";
        assert_eq!(call(format!("keys {most}*")), error);
        assert_eq!(call(format!("scan 0 match {most}*")), error);
        assert_eq!(call(format!("hscan h 0 match {most}*")), error);
    }

    #[test]
    fn any_key_is_the_random_one_some_time() {
        let fixture = Fixture::new();
        let data = fixture.open();
        assert_eq!(fixture.call(&data, "randomkey"), "$-1\r\n");
        let all = ["a", "ab", "abc", "b", "user:1", "user:10", "user:2"];
        for key in all {
            fixture.call(&data, &format!("set {key} x"));
        }
        let mut met = std::collections::BTreeSet::new();
        for _ in 0..20_000 {
            met.insert(fixture.call(&data, "randomkey"));
        }
        let expected = all.map(|key| format!("${}\r\n{key}\r\n", key.len()));
        assert_eq!(met, expected.into());
    }
}
