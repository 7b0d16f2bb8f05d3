//! Commands on the bits of strings. Bit 0 is the highest bit of the first byte.

use crate::command::{Access, Command, DataFn, Keys, ONE};
use crate::commands::strings::{MAX_STRING, Record, record};
use crate::data::record::string_record;
use crate::data::spaces::Space;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, integer, is};
use crate::reply::Out;

const FROM_SECOND: Keys = Keys::range(2, -1, 1);

const fn command(
    name: &'static str,
    arity: i32,
    access: Access,
    keys: Keys,
    run: DataFn,
) -> Command {
    Command::new(name, arity, access, keys, &["bitmap"], run)
}

/// The commands.
pub const COMMANDS: &[Command] = &[
    command("bitcount", -2, Access::ReadOne, ONE, bitcount),
    command("bitop", -4, Access::Write, FROM_SECOND, bitop),
    command("bitpos", -3, Access::ReadOne, ONE, bitpos),
    command("getbit", 3, Access::ReadOne, ONE, getbit),
    command("setbit", 4, Access::Write, ONE, setbit),
];

/// Parses the offset of a bit. Returns its byte, and its mask there.
fn place(text: Arg<'_>) -> Result<(usize, u8), CommandError> {
    integer(text)
        .ok()
        .and_then(|bit| usize::try_from(bit).ok())
        .map(|bit| (bit / 8, 0x80 >> (bit % 8)))
        .filter(|(byte, _)| *byte < MAX_STRING)
        .ok_or_else(|| CommandError::reply("ERR bit offset is not an integer or out of range"))
}

fn getbit(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (byte, mask) = place(args[2])?;
    let at = byte as u64;
    let here = |len: u64| at.min(len)..(at + 1).min(len);
    let found = tx.string_part(args[1], here, |bytes| {
        bytes.first().is_some_and(|byte| byte & mask != 0)
    })?;
    out.integer(found.unwrap_or(false).into());
    Ok(())
}

fn setbit(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (byte, mask) = place(args[2])?;
    let on = match integer(args[3]) {
        Ok(0) => false,
        Ok(1) => true,
        _ => {
            return Err(CommandError::reply(
                "ERR bit is not an integer or out of range",
            ));
        }
    };
    let found = record(tx, args[1], 0)?;
    // The tag comes first.
    let at = byte + 1;
    let before = (found.as_ref()).and_then(|(record, _)| Some(record.get(at)? & mask != 0));
    out.integer(before.unwrap_or(false).into());
    if before == Some(on) {
        return Ok(());
    }
    tx.work(byte)?;
    let (mut record, expires_at): Record = found.unwrap_or_else(|| (string_record(&[]), None));
    if record.len() <= at {
        record.resize(at + 1, 0);
    }
    if on {
        record[at] |= mask;
    } else {
        record[at] &= !mask;
    }
    tx.put(Space::Keys(tx.db), args[1], record, expires_at)
}

/// Parses the unit of a range. Returns true if it is bits, not bytes.
fn of_bits(word: Option<&Arg<'_>>) -> Result<bool, CommandError> {
    match word {
        None => Ok(false),
        Some(word) if is(word, "byte") => Ok(false),
        Some(word) if is(word, "bit") => Ok(true),
        Some(_) => Err(CommandError::syntax()),
    }
}

/// Returns a range of bits, as its first bit and the bit after its last. `start` and `end`, both
/// included, are in bits or in bytes of a string of `len` bytes; negative numbers count from the
/// end.
fn bits_of(len: usize, start: i64, end: i64, of_bits: bool) -> (usize, usize) {
    let unit = if of_bits { 1 } else { 8 };
    let total = (len * 8 / unit) as i64;
    let from = |at: i64| {
        if at < 0 {
            at.saturating_add(total).max(0)
        } else {
            at
        }
    };
    let (start, end) = (from(start), from(end).min(total - 1));
    if start > end {
        return (0, 0);
    }
    (start as usize * unit, (end as usize + 1) * unit)
}

/// Returns the bytes that hold the bits from `start` to before `end`, each with the offset of its
/// first bit. Bits outside of the range are set to `outside`.
fn bytes_of(
    bytes: &[u8],
    start: usize,
    end: usize,
    outside: bool,
) -> impl Iterator<Item = (usize, u8)> {
    let last = end.div_ceil(8).min(bytes.len());
    (start / 8..last).map(move |at| {
        let mut inside = u8::MAX;
        if at == start / 8 {
            inside &= u8::MAX >> (start % 8);
        }
        if at == end / 8 {
            inside &= !(u8::MAX >> (end % 8));
        }
        let byte = if outside {
            bytes[at] | !inside
        } else {
            bytes[at] & inside
        };
        (at * 8, byte)
    })
}

/// Returns the number of ones from the bit `start` to before the bit `end`.
fn ones(bytes: &[u8], start: usize, end: usize) -> i64 {
    let of = |start, end| {
        let ones = |(_, byte): (usize, u8)| i64::from(byte.count_ones());
        bytes_of(bytes, start, end, false).map(ones).sum::<i64>()
    };
    let (first, last) = (start.next_multiple_of(64), end / 64 * 64);
    // Whole words are counted together, and most strings have nothing else.
    match bytes.get(first / 8..last / 8) {
        Some(middle) if first < last => {
            let (words, _) = middle.as_chunks();
            let ones = |word: &[u8; 8]| i64::from(u64::from_le_bytes(*word).count_ones());
            of(start, first) + words.iter().map(ones).sum::<i64>() + of(last, end)
        }
        _ => of(start, end),
    }
}

fn bitcount(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let counted = tx.string_with(args[1], |bytes, _| {
        let (start, end) = match args {
            [_, _] => (0, bytes.len() * 8),
            [_, _, start, end, unit @ ..] if unit.len() <= 1 => {
                let (start, end) = (integer(start)?, integer(end)?);
                if start < 0 && end < 0 && start > end {
                    return Ok(0);
                }
                bits_of(bytes.len(), start, end, of_bits(unit.first())?)
            }
            _ => return Err(CommandError::syntax()),
        };
        Ok(ones(bytes, start, end))
    })?;
    out.integer(counted.transpose()?.unwrap_or(0));
    Ok(())
}

fn bitpos(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let one = match integer(args[2])? {
        0 => false,
        1 => true,
        _ => return Err(CommandError::reply("ERR The bit argument must be 1 or 0.")),
    };
    let found = tx.string_with(args[1], |bytes, _| {
        let len = bytes.len();
        let (start, end) = match args {
            [_, _, _] => (0, len * 8),
            [_, _, _, start] => bits_of(len, integer(start)?, -1, false),
            [_, _, _, start, end, unit @ ..] if unit.len() <= 1 => {
                let start = integer(start)?;
                let of_bits = of_bits(unit.first())?;
                bits_of(len, start, integer(end)?, of_bits)
            }
            _ => return Err(CommandError::syntax()),
        };
        let met = bytes_of(bytes, start, end, !one).find_map(|(at, byte)| {
            let first = if one {
                byte.leading_zeros()
            } else {
                byte.leading_ones()
            };
            (first < 8).then_some(at + first as usize)
        });
        Ok(match met {
            Some(at) => at as i64,
            // The zeros after the string count, unless an end was given.
            None if !one && args.len() < 5 && start < end => end as i64,
            None => -1,
        })
    })?;
    out.integer(found.transpose()?.unwrap_or(if one { -1 } else { 0 }));
    Ok(())
}

/// Combines the string of `record` with another one. The shorter one is padded with zeros.
fn combine(name: &str, record: &mut Vec<u8>, other: &[u8]) {
    record.resize(record.len().max(1 + other.len()), 0);
    let (both, rest) = record[1..].split_at_mut(other.len());
    let pairs = both.iter_mut().zip(other);
    match name {
        "and" => {
            pairs.for_each(|(byte, other)| *byte &= other);
            rest.fill(0);
        }
        "or" => pairs.for_each(|(byte, other)| *byte |= other),
        _ => pairs.for_each(|(byte, other)| *byte ^= other),
    }
}

fn bitop(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let (to, from) = (args[2], &args[3..]);
    let known = ["and", "or", "xor", "not"];
    let named = known.into_iter().find(|name| is(args[1], name));
    let name = named.ok_or_else(CommandError::syntax)?;
    if name == "not" && from.len() != 1 {
        return Err(CommandError::reply(
            "ERR BITOP NOT must be called with a single source key.",
        ));
    }
    let mut record = string_record(&[]);
    for (at, key) in from.iter().enumerate() {
        // One at a time: the same long key may be given very often.
        let there = tx.string_with(key, |bytes, _| {
            if at == 0 {
                record.extend_from_slice(bytes);
            } else {
                combine(name, &mut record, bytes);
            }
        })?;
        if there.is_none() && at > 0 {
            combine(name, &mut record, &[]);
        }
    }
    let len = record.len() - 1;
    if name == "not" {
        record[1..].iter_mut().for_each(|byte| *byte = !*byte);
    }
    out.integer(len as i64);
    if len > 0 {
        return tx.put_string(to, record, None);
    }
    match tx.load_head(to)? {
        Some(before) => tx.erase(to, &before),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_any_lengths_are_combined() {
        for (name, right) in [
            ("and", &[0x02, 0, 0][..]),
            ("or", &[0x07, 0x30, 0x41]),
            ("xor", &[0x05, 0x30, 0x41]),
        ] {
            for [one, other] in [[0, 1], [1, 0]] {
                let strings: [&[u8]; 2] = [&[0x03], &[0x06, 0x30, 0x41]];
                let mut record = string_record(&[strings[one]]);
                combine(name, &mut record, strings[other]);
                assert_eq!(record[1..], *right, "{name}");
            }
        }
        let mut record = string_record(&[&[1, 2]]);
        combine("and", &mut record, &[]);
        assert_eq!(record[1..], [0, 0]);
    }

    #[test]
    fn the_same_key_may_be_combined_often() {
        let fixture = crate::fixture::Fixture::new();
        let data = fixture.open();
        fixture.call(&data, "mset a abc b ab");
        let many = "a ".repeat(999);
        let call = |line: &str| fixture.call(&data, line);
        assert_eq!(call(&format!("bitop xor a {many}")), ":3\r\n");
        assert_eq!(call("get a"), "$3\r\nabc\r\n");
        assert_eq!(call("bitop and c nothing a"), ":3\r\n");
        assert_eq!(call("get c"), "$3\r\n\0\0\0\r\n");
        assert_eq!(call("bitop or c nothing b a nothing"), ":3\r\n");
        assert_eq!(call("get c"), "$3\r\nabc\r\n");
        assert_eq!(call("bitop and c nothing"), ":0\r\n");
        assert_eq!(call("exists c"), ":0\r\n");
    }

    #[test]
    fn ones_are_counted_in_any_range() {
        let bytes: Vec<u8> = (0..40u8).map(|n| n.wrapping_mul(41)).collect();
        let bit = |at: &usize| bytes[at / 8] & 0x80 >> (at % 8) != 0;
        for start in (0..=320).step_by(7) {
            for end in (start..=320).step_by(5).chain([320]) {
                let right = (start..end).filter(bit).count();
                assert_eq!(ones(&bytes, start, end), right as i64, "{start}..{end}");
            }
        }
    }

    #[test]
    fn ranges_of_bits_are_cut_at_their_ends() {
        assert_eq!(bits_of(3, 0, -1, false), (0, 24));
        assert_eq!(bits_of(3, -2, -2, false), (8, 16));
        assert_eq!(bits_of(3, 5, 30, true), (5, 24));
        assert_eq!(bits_of(3, i64::MIN, i64::MAX, true), (0, 24));
        assert_eq!(bits_of(3, 4, 2, false), (0, 0));
        assert_eq!(bits_of(0, 0, -1, false), (0, 0));
        let all: Vec<_> = bytes_of(&[0xff, 0xff, 0xff], 5, 18, false).collect();
        assert_eq!(all, [(0, 0x07), (8, 0xff), (16, 0xc0)]);
        let all: Vec<_> = bytes_of(&[0, 0], 3, 8, true).collect();
        assert_eq!(all, [(0, 0xe0)]);
    }
}
