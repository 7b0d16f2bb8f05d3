//! `BITFIELD` and `BITFIELD_RO`: strings as arrays of integers of 1 to 64 bits, the highest bit
//! first.

use crate::command::{Access, Command, ONE};
use crate::commands::strings::{MAX_STRING, record};
use crate::data::record::string_record;
use crate::data::spaces::Space;
use crate::data::tx::Tx;
use crate::error::{CommandError, Outcome};
use crate::parse::{Arg, integer, is};
use crate::reply::Out;

/// The commands.
pub const COMMANDS: &[Command] = &[
    Command::new("bitfield", -2, Access::Write, ONE, &["bitmap"], bitfield),
    Command::new(
        "bitfield_ro",
        -2,
        Access::ReadOne,
        ONE,
        &["bitmap"],
        bitfield_ro,
    ),
];

/// The width of an integer in bits, and whether it is signed.
#[derive(Clone, Copy, Debug)]
struct Type {
    bits: u32,
    signed: bool,
}

/// The treatment of a result that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Get,
    Set(i64, Overflow),
    Increment(i64, Overflow),
}

/// The type of an integer, its first bit, and the operation on it.
type Step = (Type, usize, What);

impl Type {
    fn parse(text: Arg<'_>) -> Result<Self, CommandError> {
        let invalid = || {
            CommandError::reply(
                "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
            )
        };
        let (kind, digits) = text.split_first().ok_or_else(invalid)?;
        let signed = match kind {
            b'i' => true,
            b'u' => false,
            _ => return Err(invalid()),
        };
        let most = if signed { 64 } else { 63 };
        let bits = integer(digits)
            .ok()
            .and_then(|bits| u32::try_from(bits).ok());
        let bits = bits
            .filter(|bits| (1..=most).contains(bits))
            .ok_or_else(invalid)?;
        Ok(Self { bits, signed })
    }

    /// Returns the lowest and the highest integer of the type.
    fn bounds(self) -> (i128, i128) {
        if self.signed {
            (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1)
        } else {
            (0, (1 << self.bits) - 1)
        }
    }

    /// Returns the integer that the lowest bits of another one encode.
    fn wrapped(self, number: i128) -> i128 {
        let low = number & ((1 << self.bits) - 1);
        let (_, most) = self.bounds();
        if low > most {
            low - (1 << self.bits)
        } else {
            low
        }
    }

    /// Returns the integer to store; `None` if the result is out of range and the operation has to
    /// fail.
    fn kept(self, number: i128, overflow: Overflow) -> Option<i128> {
        let (least, most) = self.bounds();
        match overflow {
            _ if (least..=most).contains(&number) => Some(number),
            Overflow::Wrap => Some(self.wrapped(number)),
            Overflow::Saturate => Some(number.clamp(least, most)),
            Overflow::Fail => None,
        }
    }

    fn get(self, bytes: &[u8], first: usize) -> i128 {
        let bit = |at: usize| {
            bytes
                .get(at / 8)
                .is_some_and(|byte| byte & 0x80 >> (at % 8) != 0)
        };
        let all =
            (first..first + self.bits as usize).fold(0, |all, at| all << 1 | i128::from(bit(at)));
        self.wrapped(all)
    }

    /// Stores an integer. The bytes must exist.
    fn set(self, bytes: &mut [u8], first: usize, number: i128) {
        for (place, at) in (first..first + self.bits as usize).enumerate() {
            let mask = 0x80 >> (at % 8);
            if number >> (self.bits as usize - 1 - place) & 1 == 1 {
                bytes[at / 8] |= mask;
            } else {
                bytes[at / 8] &= !mask;
            }
        }
    }
}

/// Parses the offset of an integer: in bits, or after `#` in integers of this type.
fn offset(text: Arg<'_>, of: Type) -> Result<usize, CommandError> {
    let (digits, unit) = match text.split_first() {
        Some((b'#', digits)) => (digits, i64::from(of.bits)),
        _ => (text, 1),
    };
    integer(digits)
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .and_then(|bit| usize::try_from(bit).ok())
        .filter(|bit| bit / 8 < MAX_STRING)
        .ok_or_else(|| CommandError::reply("ERR bit offset is not an integer or out of range"))
}

fn steps(mut args: &[Arg<'_>]) -> Result<Vec<Step>, CommandError> {
    let mut overflow = Overflow::Wrap;
    let mut steps = Vec::new();
    while let [word, rest @ ..] = args {
        args = match rest {
            [of, at, rest @ ..] if is(word, "get") => {
                let of = Type::parse(of)?;
                steps.push((of, offset(at, of)?, What::Get));
                rest
            }
            [of, at, number, rest @ ..] if is(word, "set") || is(word, "incrby") => {
                let of = Type::parse(of)?;
                let at = offset(at, of)?;
                let number = integer(number)?;
                let what = if is(word, "set") {
                    What::Set(number, overflow)
                } else {
                    What::Increment(number, overflow)
                };
                steps.push((of, at, what));
                rest
            }
            [how, rest @ ..] if is(word, "overflow") => {
                overflow = match () {
                    () if is(how, "wrap") => Overflow::Wrap,
                    () if is(how, "sat") => Overflow::Saturate,
                    () if is(how, "fail") => Overflow::Fail,
                    () => return Err(CommandError::reply("ERR Invalid OVERFLOW type specified")),
                };
                rest
            }
            _ => return Err(CommandError::syntax()),
        };
    }
    Ok(steps)
}

/// Executes one operation. If it writes, the bytes must exist. Returns the integers before and
/// after it; `None` if it failed.
fn step(bytes: &mut [u8], (of, at, what): Step) -> Option<(i128, i128)> {
    let before = of.get(bytes, at);
    let (number, overflow) = match what {
        What::Get => return Some((before, before)),
        // A negative argument is a high number of an unsigned type.
        What::Set(number, overflow) if !of.signed => (i128::from(number as u64), overflow),
        What::Set(number, overflow) => (i128::from(number), overflow),
        What::Increment(by, overflow) => (before + i128::from(by), overflow),
    };
    let after = of.kept(number, overflow)?;
    of.set(bytes, at, after);
    Some((before, after))
}

fn reply(out: &mut Out<'_>, number: Option<i128>) {
    match number.and_then(|number| i64::try_from(number).ok()) {
        Some(number) => out.integer(number),
        None => out.null(),
    }
}

/// Replies to operations that only read.
fn read(tx: &mut Tx<'_>, key: &[u8], steps: &[Step], out: &mut Out<'_>) -> Outcome {
    let all = |bytes: &[u8]| -> Vec<i128> {
        let get = |(of, at, _): &Step| of.get(bytes, *at);
        steps.iter().map(get).collect()
    };
    let found = tx.string_with(key, |bytes, _| all(bytes))?;
    let found = found.unwrap_or_else(|| all(&[]));
    out.array(found.len());
    found
        .into_iter()
        .for_each(|number| reply(out, Some(number)));
    Ok(())
}

fn bitfield(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let steps = steps(&args[2..])?;
    let writes = steps.iter().filter(|(.., what)| !matches!(what, What::Get));
    let Some(bits) = writes.map(|(of, at, _)| at + of.bits as usize).max() else {
        return read(tx, args[1], &steps, out);
    };
    let found = record(tx, args[1], 0)?;
    let (mut record, expires_at) = found.unwrap_or_else(|| (string_record(&[]), None));
    // The tag comes first. The string is extended for all writes, even those that fail.
    let len = record.len().max(1 + bits.div_ceil(8));
    tx.work(len)?;
    let grows = len > record.len();
    record.resize(len, 0);
    out.array(steps.len());
    // As in Redis, watchers hear of a string that has grown only if a write has succeeded.
    let mut changed = false;
    for one in steps {
        let (.., what) = one;
        let done = step(&mut record[1..], one);
        let writes = !matches!(what, What::Get);
        changed |= done.is_some_and(|(before, after)| before != after || grows && writes);
        let of_reply = |(before, after)| match what {
            What::Increment(..) => after,
            _ => before,
        };
        reply(out, done.map(of_reply));
    }
    let put = |tx: &mut Tx<'_>| tx.put(Space::Keys(tx.db), args[1], record, expires_at);
    match (changed, grows) {
        (true, _) => put(tx),
        (false, true) => tx.quietly(put),
        (false, false) => Ok(()),
    }
}

fn bitfield_ro(tx: &mut Tx<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Outcome {
    let steps = steps(&args[2..])?;
    if steps.iter().any(|(.., what)| !matches!(what, What::Get)) {
        return Err(CommandError::reply(
            "ERR BITFIELD_RO only supports the GET subcommand",
        ));
    }
    read(tx, args[1], &steps, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// An integer that is stored is read back, and its neighbours stay the same.
        #[test]
        fn numbers_are_kept_where_they_are_put(
            bits in 1u32..=64, signed: bool, at in 0usize..40, number: i64, fill: u8
        ) {
            let of = Type { bits: if signed { bits } else { bits.min(63) }, signed };
            let mut bytes = [fill; 16];
            let wrapped = of.wrapped(i128::from(number));
            of.set(&mut bytes, at, wrapped);
            prop_assert_eq!(of.get(&bytes, at), wrapped);
            let (least, most) = of.bounds();
            prop_assert!((least..=most).contains(&wrapped));
            for bit in (0..128).filter(|bit| !(at..at + of.bits as usize).contains(bit)) {
                let mask = 0x80 >> (bit % 8);
                prop_assert_eq!(bytes[bit / 8] & mask, fill & mask);
            }
        }
    }

    #[test]
    fn what_has_no_room_is_wrapped_or_kept_at_the_end_or_told() {
        let of = Type::parse(b"i8").unwrap();
        for (number, wrapped, saturated) in [(128, -128, 127), (-129, 127, -128), (300, 44, 127)] {
            assert_eq!(of.kept(number, Overflow::Wrap), Some(wrapped));
            assert_eq!(of.kept(number, Overflow::Saturate), Some(saturated));
            assert_eq!(of.kept(number, Overflow::Fail), None);
        }
        assert_eq!(of.kept(-128, Overflow::Fail), Some(-128));
        for bad in ["", "i", "i0", "i65", "u64", "u0", "x8", "i-1", "I8"] {
            assert!(Type::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
