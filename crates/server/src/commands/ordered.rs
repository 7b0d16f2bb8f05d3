//! This server's own commands on strings in the order of their keys: `BC.RANGE`, `BC.REVRANGE`,
//! `BC.PREFIX`, `BC.COUNT`, `BC.SNAPSHOT`.
//!
//! Keys are ordered by their bytes. Bounds have the syntax of `ZRANGEBYLEX`: `[key` includes the
//! key, `(key` excludes it, `-` and `+` are the ends. Keys that hold other types are skipped.

use crate::command::{Access, Command, DataFn, Keys};
use crate::data::bounds::Range;
use crate::data::record::{Kind, string_of};
use crate::data::spaces::Space;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, integer, is};
use crate::reply::Out;
use bristlecone_store::{Direction, Entry};
use std::ops::{Bound, ControlFlow};

const fn command(name: &'static str, arity: i32, run: DataFn) -> Command {
    let mut command = Command::new(name, arity, Access::Read, Keys::None, &["keyspace"], run);
    command.spec.reads_all_keys = true;
    command
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    command("bc.count", 3, count),
    command("bc.prefix", -2, prefix),
    command("bc.range", -3, range),
    command("bc.revrange", -3, reverse_range),
    Command::new(
        "bc.snapshot",
        1,
        Access::Read,
        Keys::None,
        &["keyspace"],
        snapshot,
    ),
];

/// Parses a bound. Returns `None` if it lies beyond all keys, like `+` as a start.
fn bound<'a>(text: Arg<'a>, none: u8, never: u8) -> Result<Option<Bound<&'a [u8]>>, CommandError> {
    match text {
        [b'[', key @ ..] => Ok(Some(Bound::Included(key))),
        [b'(', key @ ..] => Ok(Some(Bound::Excluded(key))),
        [one] if *one == none => Ok(Some(Bound::Unbounded)),
        [one] if *one == never => Ok(None),
        _ => Err(CommandError::reply(
            "ERR min or max not valid string range item",
        )),
    }
}

/// Parses two bounds. Returns `None` if the range is empty.
fn between<'a>(start: Arg<'a>, end: Arg<'a>) -> Result<Option<Range<'a>>, CommandError> {
    let (start, end) = (bound(start, b'-', b'+')?, bound(end, b'+', b'-')?);
    Ok(start.zip(end))
}

/// The options after the range.
#[derive(Debug)]
struct Options {
    limit: usize,
    with_values: bool,
}

impl Options {
    fn parse(args: &[Arg<'_>]) -> Result<Self, CommandError> {
        let mut options = Self {
            limit: usize::MAX,
            with_values: false,
        };
        let mut rest = args.iter();
        while let Some(word) = rest.next() {
            if is(word, "withvalues") {
                options.with_values = true;
            } else if is(word, "limit")
                && let Some(number) = rest.next()
            {
                options.limit = usize::try_from(integer(number)?).map_err(|_| {
                    CommandError::reply("ERR value is out of range, must be positive")
                })?;
            } else {
                return Err(CommandError::syntax());
            }
        }
        Ok(options)
    }
}

/// The keys found: their encoded replies, and their number.
struct Found {
    options: Options,
    encoded: Vec<u8>,
    keys: usize,
}

impl Found {
    fn new(options: Options) -> Self {
        Self {
            options,
            encoded: Vec::new(),
            keys: 0,
        }
    }

    fn take(&mut self, key: &[u8], entry: &Entry<'_>, out: &Out<'_>) -> ControlFlow<()> {
        if self.keys == self.options.limit {
            return ControlFlow::Break(());
        }
        if let Some(value) = string_of(entry.value) {
            let mut replies = out.beside(&mut self.encoded);
            replies.bulk(key);
            if self.options.with_values {
                replies.bulk(value);
            }
            self.keys += 1;
        }
        ControlFlow::Continue(())
    }

    fn answer(self, out: &mut Out<'_>) {
        out.array(self.keys * (1 + usize::from(self.options.with_values)));
        out.raw(&self.encoded);
    }
}

fn range(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let range = between(args[1], args[2])?;
    let mut found = Found::new(Options::parse(&args[3..])?);
    if let Some(range) = range {
        let db = Space::Keys(tx.db);
        tx.scan(db, range, |key, entry| found.take(key, &entry, out))?;
    }
    found.answer(out);
    Ok(())
}

/// Executes `BC.REVRANGE`, which gives the end of the range first.
fn reverse_range(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let range = between(args[2], args[1])?;
    let mut found = Found::new(Options::parse(&args[3..])?);
    if let Some(range) = range {
        let db = Space::Keys(tx.db);
        tx.scan_reverse(db, range, |key, entry| found.take(key, &entry, out))?;
    }
    found.answer(out);
    Ok(())
}

fn prefix(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut found = Found::new(Options::parse(&args[2..])?);
    let db = Space::Keys(tx.db);
    tx.prefix(db, args[1], |key, entry| found.take(key, &entry, out))?;
    found.answer(out);
    Ok(())
}

fn count(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let mut keys = 0;
    if let Some(range) = between(args[1], args[2])? {
        tx.scan_heads(tx.db, range, Direction::Up, |_, head| {
            keys += i64::from(head.is_ok_and(|head| head.kind == Kind::String));
            ControlFlow::Continue(())
        })?;
    }
    out.integer(keys);
    Ok(())
}

/// Replies with the time stamp of the last durable commit. Everything that was replied before has a
/// time stamp that is not higher.
fn snapshot(tx: &mut Tx<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let durable = tx.data().store().durable();
    out.integer(i64::try_from(durable).unwrap_or(i64::MAX));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::fixture::{Fixture, put_large};

    fn bulks(words: &[&str]) -> String {
        let bulk = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
        let all: String = words.iter().map(bulk).collect();
        format!("*{}\r\n{all}", words.len())
    }

    #[test]
    fn ranges_are_those_of_zrangebylex() {
        let fixture = Fixture::new();
        let data = fixture.open();
        fixture.call(&data, "mset a 1 b 2 c 3 ca 4 d 5");
        put_large(&data, 0, b"bb", 3, None);
        for (line, words) in [
            ("bc.range - +", &["a", "b", "c", "ca", "d"][..]),
            ("bc.range [b (d", &["b", "c", "ca"]),
            ("bc.range (b [d", &["c", "ca", "d"]),
            ("bc.range [b + limit 2 withvalues", &["b", "2", "c", "3"]),
            ("bc.range - + LIMIT 0", &[]),
            ("bc.range + -", &[]),
            ("bc.range [d [a", &[]),
            ("bc.range (a (a", &[]),
            ("bc.revrange + -", &["d", "ca", "c", "b", "a"]),
            ("bc.revrange (ca [b limit 1 WITHVALUES", &["c", "3"]),
            ("bc.revrange - +", &[]),
            ("bc.prefix c", &["c", "ca"]),
            ("bc.prefix c limit 1 withvalues", &["c", "3"]),
            ("bc.prefix x", &[]),
        ] {
            assert_eq!(fixture.call(&data, line), bulks(words), "{line}");
        }
        assert_eq!(fixture.call(&data, "bc.count - +"), ":5\r\n");
        assert_eq!(fixture.call(&data, "bc.count [b (d"), ":3\r\n");
        assert_eq!(fixture.call(&data, "bc.count + -"), ":0\r\n");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let item = "-ERR min or max not valid string range item\r\n";
        for (line, reply) in [
            ("bc.range a +", item),
            ("bc.range - b", item),
            ("bc.count - \"\"", item),
            ("bc.range - + limit", "-ERR syntax error\r\n"),
            ("bc.range - + foo", "-ERR syntax error\r\n"),
            (
                "bc.range - + limit -1",
                "-ERR value is out of range, must be positive\r\n",
            ),
            (
                "bc.prefix a limit x",
                "-ERR value is not an integer or out of range\r\n",
            ),
        ] {
            assert_eq!(fixture.call(&data, line), reply, "{line}");
        }
    }

    #[test]
    fn bounds_may_be_longer_than_any_key() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let most = "a".repeat(bristlecone_store::MAX_KEY_BYTES);
        let longer = format!("{most}{}", "a".repeat(100_000));
        fixture.call(&data, &format!("mset {most} 1 b 2"));
        let call = |line: String| fixture.call(&data, &line);
        assert_eq!(call(format!("bc.count - [{longer}")), ":1\r\n");
        assert_eq!(call(format!("bc.count ({longer} +")), ":1\r\n");
        assert_eq!(call(format!("bc.revrange + [{longer}")), bulks(&["b"]));
        assert_eq!(call(format!("bc.prefix {longer}")), "*0\r\n");
        assert_eq!(call(format!("get {longer}")), "$-1\r\n");
        assert_eq!(call(format!("del {longer}")), ":0\r\n");
        assert_eq!(
            call(format!("set {longer} 1")),
            "-ERR a key of 165536 bytes: at most 65536 are possible\r\n"
        );
    }

    #[test]
    fn the_snapshot_rises_with_what_is_durable() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let number = || -> i64 {
            let reply = fixture.call(&data, "bc.snapshot");
            reply.trim().trim_start_matches(':').parse().unwrap()
        };
        let before = number();
        fixture.call(&data, "set a 1");
        data.settle(data.applied()).unwrap();
        assert!(number() > before);
    }
}
