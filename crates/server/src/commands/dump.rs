//! `DUMP` and `RESTORE`: a value as bytes, in a format of this server's own.
//!
//! ```text
//! "BC" | version (1) | kind (1) | items: length (4), bytes | ... | CRC32C of all that (4)          big-endian
//! ```
//! A string is one item. A hash has fields and values in turn, a sorted set members and scores (the
//! 8 bytes of a double).

use crate::budget::Scratch;
use crate::command::{Access, Command, ONE};
use crate::data::fields::Fields;
use crate::data::list::{End, List};
use crate::data::record::{Kind, Value, string_record};
use crate::data::sorted_set::{Direction, SortedSet, Which};
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, integer, is};
use crate::reply::Out;
use std::ops::ControlFlow;

/// The commands.
pub const COMMANDS: &[Command] = &[
    Command::new("dump", 2, Access::ReadOne, ONE, &["keyspace"], dump).long(),
    Command::new(
        "restore",
        -4,
        Access::Write,
        ONE,
        &["keyspace", "dangerous"],
        restore,
    )
    .long(),
];

const MAGIC: &[u8; 2] = b"BC";
const VERSION: u8 = 1;

/// The longest payload in bytes, which is also the longest argument of `RESTORE`.
const MAX_PAYLOAD: usize = if cfg!(test) { 1 << 20 } else { 512 << 20 };

/// A payload in the making.
struct Payload(Vec<u8>);

impl Payload {
    fn new(kind: Kind) -> Self {
        Self([&MAGIC[..], &[VERSION, kind as u8]].concat())
    }

    /// Adds an item. Breaks if the payload is too long, or the client was evicted.
    fn push(&mut self, bytes: &[u8], scratch: &mut Scratch<'_>) -> ControlFlow<()> {
        let before = self.0.capacity();
        // Values are never longer than a length can tell.
        self.0
            .extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        self.0.extend_from_slice(bytes);
        scratch.add_bytes(self.0.capacity() - before)?;
        if self.0.len() + size_of::<u32>() > MAX_PAYLOAD {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn seal(mut self) -> Result<Vec<u8>, CommandError> {
        let sum = crc32c::crc32c(&self.0);
        self.0.extend_from_slice(&sum.to_be_bytes());
        if self.0.len() > MAX_PAYLOAD {
            return Err(CommandError::reply(format!(
                "ERR the payload takes more than {MAX_PAYLOAD} bytes"
            )));
        }
        Ok(self.0)
    }
}

fn dump(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (db, key) = (tx.db, args[1]);
    tx.snapshot();
    let Some(head) = tx.load_head_from(db, key)? else {
        out.null();
        return Ok(());
    };
    let mut payload = Payload::new(head.kind);
    tx.counting(|tx, scratch| {
        let mut push = |bytes: &[u8]| payload.push(bytes, scratch);
        match head.kind {
            Kind::String => tx.string_with(key, |bytes, _| push(bytes)).map(drop),
            Kind::List => {
                let list = List::load(tx, key)?;
                list.visit(tx, End::Left, 0, |_, element| push(element))
            }
            Kind::Set => {
                let set = Fields::load(tx, key, head.kind)?;
                set.visit(tx, |member, _| push(member))
            }
            Kind::Hash => {
                let hash = Fields::load(tx, key, head.kind)?;
                hash.visit(tx, |field, value| {
                    push(field)?;
                    push(value)
                })
            }
            Kind::SortedSet => {
                let set = SortedSet::load(tx, key)?;
                set.visit(tx, Which::All, Direction::Ascending, |member, score| {
                    push(member)?;
                    push(&score.to_be_bytes())
                })
            }
        }
    })?;
    out.bulk(&payload.seal()?);
    Ok(())
}

fn malformed() -> CommandError {
    CommandError::reply("ERR Bad data format")
}

/// Parses a payload from any source into its kind and its items.
fn open<'p>(
    payload: &'p [u8],
    scratch: &mut Scratch<'_>,
) -> Result<(Kind, Vec<&'p [u8]>), CommandError> {
    let parts = payload.split_last_chunk::<4>();
    let parts = parts.filter(|(body, sum)| crc32c::crc32c(body) == u32::from_be_bytes(**sum));
    let body = parts.and_then(|(body, _)| body.strip_prefix(MAGIC)?.strip_prefix(&[VERSION]));
    let body =
        body.ok_or_else(|| CommandError::reply("ERR DUMP payload version or checksum are wrong"))?;
    let (tag, mut rest) = body.split_first().ok_or_else(malformed)?;
    let kind = Kind::of(*tag).ok().filter(|kind| *kind as u8 == *tag);
    let split = |rest: &mut &'p [u8]| -> Result<&'p [u8], CommandError> {
        let (length, after) = rest.split_first_chunk().ok_or_else(malformed)?;
        let length = u32::from_be_bytes(*length) as usize;
        let (item, after) = after.split_at_checked(length).ok_or_else(malformed)?;
        *rest = after;
        Ok(item)
    };
    // The items are counted first: there may be very many short ones.
    let (mut counted, mut count) = (rest, 0);
    while !counted.is_empty() {
        split(&mut counted)?;
        count += 1;
    }
    let _ = scratch.add_bytes(count * size_of::<&[u8]>());
    scratch.check()?;
    let mut items = Vec::with_capacity(count);
    while !rest.is_empty() {
        items.push(split(&mut rest)?);
    }
    Ok((kind.ok_or_else(malformed)?, items))
}

/// Puts items under a key. They replace `before`.
fn put(tx: &mut Tx<'_>, key: &[u8], before: Option<Value>, kind: Kind, items: &[&[u8]]) -> Outcome {
    let (pairs, rest) = items.as_chunks::<2>();
    let in_pairs = matches!(kind, Kind::Hash | Kind::SortedSet);
    if items.is_empty() || in_pairs && !rest.is_empty() {
        return Err(malformed());
    }
    match kind {
        Kind::String => {
            let [text] = items else {
                return Err(malformed());
            };
            tx.put_string(key, string_record(&[text]), None)
        }
        Kind::List => {
            let mut list = List::in_place_of(before);
            for item in items {
                list.push(tx, End::Right, item)?;
            }
            list.save(tx, key)
        }
        Kind::Set => {
            let mut set = Fields::in_place_of(kind, before);
            for member in items {
                if !set.put(tx, member, &[])? {
                    return Err(malformed());
                }
            }
            set.save(tx, key)
        }
        Kind::Hash => {
            let mut hash = Fields::in_place_of(kind, before);
            for [field, value] in pairs {
                if !hash.put(tx, field, value)? {
                    return Err(malformed());
                }
            }
            hash.save(tx, key)
        }
        Kind::SortedSet => {
            let mut set = SortedSet::in_place_of(before);
            for [member, score] in pairs {
                let score = <[u8; 8]>::try_from(*score).map_err(|_| malformed())?;
                let score = f64::from_be_bytes(score);
                if score.is_nan() || set.score(tx, member)?.is_some() {
                    return Err(malformed());
                }
                set.put(tx, member, score, None)?;
            }
            set.save(tx, key)
        }
    }
}

/// Parses the options after the payload: whether an existing key is replaced, and whether the
/// expiry is in ms since 1970.
fn options(mut args: &[Arg<'_>]) -> Result<(bool, bool), CommandError> {
    let (mut replace, mut absolute) = (false, false);
    let (mut idle, mut freq) = (false, false);
    while let [word, rest @ ..] = args {
        args = match rest {
            _ if is(word, "replace") => {
                replace = true;
                rest
            }
            _ if is(word, "absttl") => {
                absolute = true;
                rest
            }
            [number, rest @ ..] if is(word, "idletime") && !freq => {
                if integer(number)? < 0 {
                    return Err(CommandError::reply(
                        "ERR Invalid IDLETIME value, must be >= 0",
                    ));
                }
                idle = true;
                rest
            }
            [number, rest @ ..] if is(word, "freq") && !idle => {
                if !(0..=255).contains(&integer(number)?) {
                    return Err(CommandError::reply(
                        "ERR Invalid FREQ value, must be >= 0 and <= 255",
                    ));
                }
                freq = true;
                rest
            }
            _ => return Err(CommandError::syntax()),
        };
    }
    Ok((replace, absolute))
}

fn restore(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (replace, absolute) = options(&args[4..])?;
    let key = args[1];
    let before = tx.load_head(key)?;
    if before.is_some() && !replace {
        return Err(CommandError::reply(
            "BUSYKEY Target key name already exists.",
        ));
    }
    let invalid = || CommandError::reply("ERR Invalid TTL value, must be >= 0");
    let ttl = integer(args[2])?;
    let from = if absolute || ttl == 0 {
        0
    } else {
        tx.now as i64
    };
    let at = ttl
        .checked_add(from)
        .filter(|_| ttl >= 0)
        .ok_or_else(invalid)?;
    let (kind, items) = open(args[3], &mut tx.scratch)?;
    put(tx, key, before, kind, &items)?;
    out.status("OK");
    if ttl == 0 {
        return Ok(());
    }
    let (at, db) = (at.unsigned_abs(), tx.db);
    match tx.load_head_from(db, key)? {
        Some(head) if at > tx.now => tx.set_expiry(key, &head, Some(at)),
        Some(head) => tx.erase(key, &head),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Clients;
    use crate::data::{Data, Reads};
    use crate::fixture::Fixture;
    use crate::reply::Protocol;
    use proptest::prelude::*;

    fn call(data: &Data, args: &[&[u8]]) -> Vec<u8> {
        let name = str::from_utf8(args[0]).unwrap();
        let command = crate::commands::data()
            .find(|command| command.spec.name == name)
            .unwrap();
        let mut reply = Vec::new();
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        data.run(command, 0, args, Reads::Applied, &mut out);
        reply
    }

    fn dumped(data: &Data, key: &[u8]) -> Vec<u8> {
        let reply = call(data, &[b"dump", key]);
        let start = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        reply[start..reply.len() - 2].to_vec()
    }

    /// Returns a payload of these items, with the right checksum.
    fn forged(kind: u8, items: &[&[u8]]) -> Vec<u8> {
        let mut payload = Payload([&MAGIC[..], &[VERSION, kind]].concat());
        for item in items {
            assert!(payload.push(item, &mut Scratch::default()).is_continue());
        }
        payload.seal().unwrap()
    }

    #[test]
    fn what_is_dumped_is_restored_small_or_large() {
        let fixture = Fixture::new();
        let data = fixture.open();
        fixture.call(&data, "set string hello");
        for number in 0..300 {
            let small = if number < 5 { "small" } else { "large" };
            fixture.call(&data, &format!("rpush {small}list {number}"));
            fixture.call(&data, &format!("sadd {small}set {number}"));
            fixture.call(&data, &format!("hset {small}hash {number} v{number}"));
            fixture.call(&data, &format!("zadd {small}zset {number}.5 {number}"));
        }
        for size in ["small", "large"] {
            for kind in ["list", "set", "hash", "zset"] {
                let name = format!("{size}{kind}");
                let payload = dumped(&data, name.as_bytes());
                assert_eq!(
                    call(&data, &[b"restore", b"copy", b"0", &payload, b"replace"]),
                    b"+OK\r\n"
                );
                assert_eq!(dumped(&data, b"copy"), payload, "{name}");
                let busy = call(&data, &[b"restore", b"copy", b"0", &payload]);
                assert!(busy.starts_with(b"-BUSYKEY "));
            }
        }
        let payload = dumped(&data, b"string");
        assert_eq!(
            call(&data, &[b"restore", b"copy", b"1000", &payload, b"replace"]),
            b"+OK\r\n"
        );
        assert_eq!(fixture.call(&data, "pttl copy"), ":1000\r\n");
        assert_eq!(fixture.call(&data, "get copy"), "$5\r\nhello\r\n");
        let past: [&[u8]; 6] = [b"restore", b"copy", b"1", &payload, b"absttl", b"replace"];
        assert_eq!(call(&data, &past), b"+OK\r\n");
        assert_eq!(fixture.call(&data, "exists copy"), ":0\r\n");
        let large = dumped(&data, b"largeset");
        assert_eq!(
            call(&data, &[b"restore", b"copy", b"1000", &large]),
            b"+OK\r\n"
        );
        assert_eq!(fixture.call(&data, "pttl copy"), ":1000\r\n");
        while data.sweep().unwrap() {}
        assert_eq!(fixture.call(&data, "scard copy"), ":295\r\n");
    }

    #[test]
    fn what_is_too_long_for_a_payload_is_refused() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let part = "x".repeat(MAX_PAYLOAD / 4);
        for n in 0..4 {
            fixture.call(&data, &format!("set string {}", part.repeat(4)));
            fixture.call(&data, &format!("rpush list {n}{part}"));
            fixture.call(&data, &format!("sadd set {n}"));
            fixture.call(&data, &format!("hset hash {n} {part}"));
        }
        for key in ["string", "list", "hash"] {
            let refused = call(&data, &[b"dump", key.as_bytes()]);
            assert!(
                refused.starts_with(b"-ERR the payload takes more than 1048576 bytes"),
                "{key}"
            );
        }
        assert!(call(&data, &[b"dump", b"set"]).starts_with(b"$"));
    }

    #[test]
    fn the_items_of_a_payload_count_as_their_client_s() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let payload = forged(3, &vec![&b""[..]; 200_000]);
        let restore = COMMANDS.iter().find(|known| known.spec.name == "restore");
        for limit in [0, 1 << 20] {
            let clients = Clients::default();
            clients.budget().set_limit(limit);
            let client = clients.enter(1, "a:1".into(), "b:2".into(), true).unwrap();
            let mut reply = Vec::new();
            let mut out = Out::for_client(&mut reply, Protocol::Resp2, &client.account);
            let args: [&[u8]; 4] = [b"restore", b"k", b"0", &payload];
            data.run(restore.unwrap(), 0, &args, Reads::Applied, &mut out);
            assert_eq!(client.is_evicted(), limit > 0);
        }
    }

    #[test]
    fn forged_payloads_are_refused_and_change_nothing() {
        let fixture = Fixture::new();
        let data = fixture.open();
        let nan = f64::NAN.to_be_bytes();
        let bad: [(u8, &[&[u8]]); 11] = [
            (0, &[b"x"]),
            (6, &[b"x"]),
            (0x82, &[b"x"]),
            (1, &[]),
            (1, &[b"x", b"y"]),
            (2, &[]),
            (3, &[b"x", b"x"]),
            (4, &[b"x"]),
            (4, &[b"x", &nan]),
            (5, &[b"x", b"1", b"x", b"2"]),
            (4, &[b"x", b"short"]),
        ];
        for (kind, items) in bad {
            let reply = call(&data, &[b"restore", b"k", b"0", &forged(kind, items)]);
            assert_eq!(reply, b"-ERR Bad data format\r\n", "{kind} {items:?}");
        }
        let mut cut = forged(2, &[b"hello"]);
        cut.truncate(cut.len() - 6);
        let sum = crc32c::crc32c(&cut).to_be_bytes();
        cut.extend_from_slice(&sum);
        assert_eq!(
            call(&data, &[b"restore", b"k", b"0", &cut]),
            b"-ERR Bad data format\r\n"
        );
        let good = forged(2, &[b"a", b"b"]);
        for at in 0..good.len() {
            let mut torn = good.clone();
            torn[at] ^= 1;
            assert!(
                call(&data, &[b"restore", b"k", b"0", &torn]).starts_with(b"-ERR DUMP payload")
            );
            assert!(
                call(&data, &[b"restore", b"k", b"0", &good[..at]])
                    .starts_with(b"-ERR DUMP payload")
            );
        }
        assert_eq!(fixture.call(&data, "dbsize"), ":0\r\n");
        assert_eq!(call(&data, &[b"restore", b"k", b"0", &good]), b"+OK\r\n");
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(mut bytes: Vec<u8>, kind in 0u8..8) {
            bytes.splice(0..0, [MAGIC[0], MAGIC[1], VERSION, kind]);
            let sum = crc32c::crc32c(&bytes).to_be_bytes();
            bytes.extend_from_slice(&sum);
            if let Ok((_, items)) = open(&bytes, &mut Scratch::default()) {
                let total: usize = items.iter().map(|item| item.len() + 4).sum();
                prop_assert_eq!(total, bytes.len() - 8);
            }
        }
    }
}
