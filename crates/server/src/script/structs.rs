//! The library `struct`: values in bytes, as a format says.
//!
//! | in a format | is |
//! | --- | --- |
//! | `<` `>` | the lowest, the highest byte first from here on |
//! | `!n` | values are at multiples of their size, up to n (8) |
//! | `x` | a zero byte |
//! | `b` `B`, `h` `H`, `l` `L`, `in` `In`, `T` | an integer of 1, 2, 8, n (4) and 8 bytes; capital letters have no sign |
//! | `f` `d` | a number of 4 and of 8 bytes |
//! | `s` | a string and a zero byte |
//! | `cn` | n (1) bytes; `c0`: all of a string, or as many as the number before it |

use super::raise::{Failure, argument, function, number, one, room, string};
use mlua::{Lua, MultiValue, Table, Value};

/// Most values that are returned at once.
const MAX_VALUES: usize = 6000;
/// Most bytes of an integer.
const MAX_INTEGER: usize = 32;

/// What one letter of a format says.
#[derive(Clone, Copy, Debug)]
struct Item {
    letter: u8,
    size: usize,
    /// The highest byte comes first.
    big: bool,
    /// Bytes that go before it.
    padding: usize,
}

struct Format<'f> {
    rest: &'f [u8],
    big: bool,
    align: usize,
}

impl<'f> Format<'f> {
    fn new(format: &'f [u8]) -> Self {
        Self {
            rest: format,
            big: false,
            align: 1,
        }
    }

    /// Takes the digits that come next.
    fn digits(&mut self, otherwise: usize) -> Result<usize, Failure> {
        let len = self
            .rest
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let (digits, rest) = self.rest.split_at(len);
        if digits.is_empty() {
            return Ok(otherwise);
        }
        self.rest = rest;
        let size = str::from_utf8(digits)
            .ok()
            .and_then(|digits| digits.parse::<i32>().ok());
        let size = size.and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| "integral size overflow".into())
    }

    /// Takes the next item, which begins at byte `at`.
    fn next(&mut self, at: usize) -> Result<Option<Item>, Failure> {
        while let Some((&letter, rest)) = self.rest.split_first() {
            self.rest = rest;
            let size = match letter {
                b' ' => continue,
                b'<' | b'>' => {
                    self.big = letter == b'>';
                    continue;
                }
                b'!' => {
                    let align = self.digits(8)?;
                    if !align.is_power_of_two() {
                        return Err(Failure::Text(format!(
                            "alignment {align} is not a power of 2"
                        )));
                    }
                    self.align = align;
                    continue;
                }
                b'b' | b'B' | b'x' => 1,
                b'h' | b'H' => 2,
                b'l' | b'L' | b'T' | b'd' => 8,
                b'f' => 4,
                b'c' => self.digits(1)?,
                b's' => 0,
                b'i' | b'I' => {
                    let size = self.digits(4)?;
                    if size > MAX_INTEGER {
                        return Err(Failure::Text(format!(
                            "integral size {size} is larger than limit of {MAX_INTEGER}"
                        )));
                    }
                    size
                }
                other => {
                    let shown = char::from(other);
                    return Err(Failure::Text(format!("invalid format option '{shown}'")));
                }
            };
            let unit = if letter == b'c' {
                0
            } else {
                size.min(self.align)
            };
            let padding = if unit > 1 {
                at.next_multiple_of(unit) - at
            } else {
                0
            };
            return Ok(Some(Item {
                letter,
                size,
                big: self.big,
                padding,
            }));
        }
        Ok(None)
    }
}

/// Puts the bytes of an integer, the lowest first, in an item's order.
fn put_integer(value: u64, item: Item, out: &mut Vec<u8>) {
    let start = out.len();
    let bytes = value.to_le_bytes();
    out.extend((0..item.size).map(|i| bytes.get(i).copied().unwrap_or(0)));
    if item.big {
        out[start..].reverse();
    }
}

fn integer_of(bytes: &[u8], item: Item) -> u64 {
    let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    if item.big {
        bytes.iter().fold(0, add)
    } else {
        bytes.iter().rev().fold(0, add)
    }
}

/// Returns the library.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    table.raw_set(
        "pack",
        function(lua, |lua, args| {
            one(Value::String(lua.create_string(pack(lua, &args)?)?))
        })?,
    )?;
    table.raw_set("unpack", function(lua, |lua, args| unpack(lua, &args))?)?;
    let size = function(lua, |lua, args| {
        let format = string(lua, &args, 0, "size")?;
        let (mut format, mut size) = (Format::new(&format), 0usize);
        while let Some(item) = format.next(size)? {
            if item.letter == b's' || item.letter == b'c' && item.size == 0 {
                let what = if item.letter == b's' {
                    "option 's'"
                } else {
                    "option 'c0'"
                };
                return Err(Failure::Text(format!("{what} has no fixed size")));
            }
            size = size.saturating_add(item.padding + item.size);
        }
        one(Value::Number(size as f64))
    })?;
    table.raw_set("size", size)?;
    Ok(table)
}

fn pack(lua: &Lua, args: &MultiValue) -> Result<Vec<u8>, Failure> {
    let format = string(lua, args, 0, "pack")?;
    let (mut format, mut out, mut next) = (Format::new(&format), Vec::new(), 1);
    while let Some(item) = format.next(out.len())? {
        room(lua, out.len())?;
        out.extend(std::iter::repeat_n(0, item.padding));
        if item.letter == b'x' {
            out.push(0);
            continue;
        }
        let i = next;
        next += 1;
        match item.letter {
            b's' | b'c' => {
                let bytes = string(lua, args, i, "pack")?;
                let whole = item.letter == b's' || item.size == 0;
                let len = if whole { bytes.len() } else { item.size };
                let taken = bytes.get(..len).ok_or_else(|| {
                    let number = i + 1;
                    Failure::Text(format!(
                        "bad argument #{number} to 'pack' (string too short)"
                    ))
                })?;
                out.extend_from_slice(taken);
                if item.letter == b's' {
                    out.push(0);
                }
            }
            b'f' => put_integer(
                u64::from((number(lua, args, i, "pack")? as f32).to_bits()),
                item,
                &mut out,
            ),
            b'd' => put_integer(number(lua, args, i, "pack")?.to_bits(), item, &mut out),
            _ => {
                let value = number(lua, args, i, "pack")?;
                let bits = if value < 0.0 {
                    (value as i64).cast_unsigned()
                } else {
                    value as u64
                };
                put_integer(bits, item, &mut out);
            }
        }
    }
    Ok(out)
}

fn unpack(lua: &Lua, args: &MultiValue) -> Result<MultiValue, Failure> {
    let format = string(lua, args, 0, "unpack")?;
    let data = string(lua, args, 1, "unpack")?;
    let from = match argument(args, 2) {
        Value::Nil => 1.0,
        _ => number(lua, args, 2, "unpack")?,
    };
    let is_offset = (1.0..9e15).contains(&from);
    if !is_offset {
        return Err("bad argument #3 to 'unpack' (offset must be 1 or greater)".into());
    }
    let (mut format, mut at, mut values) = (Format::new(&format), from as usize - 1, Vec::new());
    let too_short = || Failure::from("bad argument #2 to 'unpack' (data string too short)");
    while let Some(mut item) = format.next(at)? {
        at = at.saturating_add(item.padding);
        if item.letter == b'c' && item.size == 0 {
            item.size = match values.pop() {
                Some(Value::Number(len)) => len as usize,
                _ => return Err("format 'c0' needs a previous size".into()),
            };
        }
        let end = at.checked_add(item.size).ok_or_else(too_short)?;
        let bytes = data.get(at..end).ok_or_else(too_short)?;
        at = end;
        let value = match item.letter {
            b'x' => continue,
            b'c' => Value::String(lua.create_string(bytes)?),
            b's' => {
                let rest = data.get(at..).unwrap_or_default();
                let len = rest.iter().position(|byte| *byte == 0);
                let len = len.ok_or("unfinished string in data")?;
                at += len + 1;
                Value::String(lua.create_string(&rest[..len])?)
            }
            b'f' => Value::Number(f64::from(f32::from_bits(integer_of(bytes, item) as u32))),
            b'd' => Value::Number(f64::from_bits(integer_of(bytes, item))),
            letter => {
                let bits = integer_of(bytes, item);
                let unused = 64 - 8 * item.size.clamp(1, 8) as u32;
                Value::Number(if letter.is_ascii_uppercase() {
                    bits as f64
                } else {
                    ((bits << unused).cast_signed() >> unused) as f64
                })
            }
        };
        if values.len() == MAX_VALUES {
            return Err("too many results to unpack".into());
        }
        values.push(value);
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from_iter(values))
}
