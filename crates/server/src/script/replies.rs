//! Replies as Lua values, and Lua values as replies.
//!
//! | reply | in Lua |
//! | --- | --- |
//! | string, integer | string, number |
//! | null | `false`; after `redis.setresp(3)` `nil` |
//! | status, error | a table with `ok`, with `err` |
//! | array | a table |
//! | map, set, double, boolean (RESP3) | a table with `map`, `set`, `double`; a boolean |
//!
//! The other way round a number loses its fraction, `true` is 1 and `false` null, and an array ends
//! before its first `nil`.

use crate::parse::double;
use crate::reply::Out;
use mlua::{Lua, Table, Value};

/// The most values of a reply: tables that contain one another are few, and have many.
const MAX_VALUES: usize = 2_000_000;
/// The deepest nesting of tables in a reply.
const MAX_DEPTH: usize = 100;

/// Returns the first reply in `bytes`, one of this server, as a Lua value.
pub(super) fn from_reply(lua: &Lua, bytes: &[u8]) -> mlua::Result<Value> {
    Reader { lua, rest: bytes }.value()
}

struct Reader<'r> {
    lua: &'r Lua,
    rest: &'r [u8],
}

impl<'r> Reader<'r> {
    /// Takes a line: its kind and its text.
    fn line(&mut self) -> (u8, &'r [u8]) {
        let end = self.rest.windows(2).position(|pair| pair == b"\r\n");
        let (line, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest.get(2..).unwrap_or_default();
        line.split_first()
            .map_or((b'_', line), |(kind, text)| (*kind, text))
    }

    /// Takes the bytes of a string, and the line's end behind them.
    fn bytes(&mut self, len: usize) -> &'r [u8] {
        let (bytes, rest) = self.rest.split_at(len.min(self.rest.len()));
        self.rest = rest.get(2..).unwrap_or_default();
        bytes
    }

    fn string(&self, bytes: &[u8]) -> mlua::Result<Value> {
        Ok(Value::String(self.lua.create_string(bytes)?))
    }

    /// Returns a table with one field.
    fn with(&self, name: &str, value: Value) -> mlua::Result<Value> {
        let table = self.lua.create_table_with_capacity(0, 1)?;
        table.raw_set(name, value)?;
        Ok(Value::Table(table))
    }

    fn value(&mut self) -> mlua::Result<Value> {
        let (kind, text) = self.line();
        let number = str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse::<i64>().ok());
        let len = number.and_then(|number| usize::try_from(number).ok());
        match (kind, len) {
            (b'+', _) => self.with("ok", self.string(text)?),
            (b'-', _) => self.with("err", self.string(text)?),
            (b':', _) => Ok(Value::Number(number.unwrap_or(0) as f64)),
            (b'$', Some(len)) => {
                let bytes = self.bytes(len);
                self.string(bytes)
            }
            (b'*' | b'>', Some(len)) => {
                let table = self.lua.create_table_with_capacity(len.min(1 << 20), 0)?;
                for i in 1..=len {
                    let value = self.value()?;
                    table.raw_set(i, value)?;
                }
                Ok(Value::Table(table))
            }
            // Null in RESP2.
            (b'$' | b'*' | b'>', None) => Ok(Value::Boolean(false)),
            (b'%', len) => {
                let map = self.lua.create_table()?;
                for _ in 0..len.unwrap_or(0) {
                    let (key, value) = (self.value()?, self.value()?);
                    map.raw_set(key, value)?;
                }
                self.with("map", Value::Table(map))
            }
            (b'~', len) => {
                let set = self.lua.create_table()?;
                for _ in 0..len.unwrap_or(0) {
                    set.raw_set(self.value()?, true)?;
                }
                self.with("set", Value::Table(set))
            }
            (b'#', _) => Ok(Value::Boolean(text == b"t")),
            (b',', _) => {
                let number = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
                self.with("double", Value::Number(number.unwrap_or(f64::NAN)))
            }
            (b'=', Some(len)) => {
                let bytes = self.bytes(len);
                let (format, text) = bytes.split_at(bytes.len().min(4));
                let table = self.lua.create_table()?;
                table.raw_set("format", self.string(&format[..format.len().min(3)])?)?;
                table.raw_set("string", self.string(text)?)?;
                self.with("verbatim_string", Value::Table(table))
            }
            _ => Ok(Value::Nil),
        }
    }
}

/// Returns the text of an error as the table of an error has it, if this is one.
pub(super) fn error_of(table: &Table) -> mlua::Result<Option<Vec<u8>>> {
    match table.raw_get("err")? {
        Value::String(text) => Ok(Some(text.as_bytes().to_vec())),
        _ => Ok(None),
    }
}

/// Writes what a script returned as its reply. `resp3`: it asked for replies of RESP3.
pub(crate) fn write(value: &Value, resp3: bool, out: &mut Out<'_>) -> mlua::Result<()> {
    let mark = out.mark();
    let mut left = MAX_VALUES;
    write_at(value, (resp3, 0), &mut left, out)?;
    if left == 0 {
        out.truncate(mark);
        out.error("ERR the reply of a script has more than 2,000,000 values");
    }
    Ok(())
}

/// `at`: whether it asked for RESP3, and the tables around the value. `left`: the values that may
/// follow.
fn write_at(
    value: &Value,
    at: (bool, usize),
    left: &mut usize,
    out: &mut Out<'_>,
) -> mlua::Result<()> {
    let (resp3, depth) = at;
    *left = left.saturating_sub(1);
    if *left == 0 || out.overflowed() {
        *left = 0;
        return Ok(());
    }
    match value {
        Value::String(bytes) => out.bulk(&bytes.as_bytes()),
        Value::Integer(number) => out.integer(*number),
        // As a processor of Intel's does it.
        Value::Number(number) => out.integer(match *number {
            number if number.abs() < 9_223_372_036_854_775_808.0 => number as i64,
            _ => i64::MIN,
        }),
        Value::Boolean(value) if resp3 => out.boolean(*value),
        Value::Boolean(true) => out.integer(1),
        Value::Table(_) if depth > MAX_DEPTH => {
            out.error("ERR reached lua stack limit");
        }
        Value::Table(table) => write_table(table, (resp3, depth + 1), left, out)?,
        _ => out.null(),
    }
    Ok(())
}

fn write_table(
    table: &Table,
    at: (bool, usize),
    left: &mut usize,
    out: &mut Out<'_>,
) -> mlua::Result<()> {
    if let Some(text) = error_of(table)? {
        out.error(String::from_utf8_lossy(&text).trim_end_matches(['\r', '\n']));
        return Ok(());
    }
    if let Value::String(text) = table.raw_get("ok")? {
        let text = text.to_string_lossy().replace(['\r', '\n'], " ");
        out.status(&text);
        return Ok(());
    }
    match table.raw_get("double")? {
        Value::Number(number) => {
            out.double_text(&double::text(number));
            return Ok(());
        }
        Value::Integer(number) => {
            out.double_text(&double::text(number as f64));
            return Ok(());
        }
        _ => {}
    }
    if let Value::Table(map) = table.raw_get("map")? {
        let pairs: Vec<(Value, Value)> = map.pairs().collect::<mlua::Result<_>>()?;
        out.map(pairs.len());
        for (key, value) in &pairs {
            write_at(key, at, left, out)?;
            write_at(value, at, left, out)?;
        }
        return Ok(());
    }
    if let Value::Table(set) = table.raw_get("set")? {
        let keys = set
            .pairs()
            .map(|pair| pair.map(|(key, _): (Value, Value)| key));
        let keys: Vec<Value> = keys.collect::<mlua::Result<_>>()?;
        out.set(keys.len());
        return keys.iter().try_for_each(|key| write_at(key, at, left, out));
    }
    if let Value::Table(string) = table.raw_get("verbatim_string")?
        && let Value::String(text) = string.raw_get("string")?
    {
        out.verbatim(&text.to_string_lossy());
        return Ok(());
    }
    let mut len = 0;
    while !matches!(table.raw_get(len + 1)?, Value::Nil) {
        len += 1;
    }
    out.array(len);
    for i in 1..=len {
        let value: Value = table.raw_get(i)?;
        write_at(&value, at, left, out)?;
    }
    Ok(())
}
