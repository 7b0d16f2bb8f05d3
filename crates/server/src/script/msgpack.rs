//! The library `cmsgpack`: MessagePack.

use super::raise::{Failure, argument, function, number, one, room, string};
use mlua::{Lua, MultiValue, Table, Value};
use rmp::encode;
use rmpv::ValueRef;
use rmpv::decode::read_value_ref_with_max_depth;

/// A table below so many others is written as nil, as the library does it.
const MAX_DEPTH: usize = 16;
/// The most bytes that are read at once: a value of one byte takes many in memory.
const MAX_INPUT: usize = 4 << 20;
/// The most values that are returned at once.
const MAX_VALUES: usize = 6000;
/// The deepest nesting that is read.
const MAX_READ_DEPTH: usize = 512;

/// Returns the library.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let pack = function(lua, |lua, args| {
        if args.is_empty() {
            return Err("bad argument #0 to 'pack' (MessagePack pack needs input.)".into());
        }
        let mut out = Vec::new();
        args.iter()
            .try_for_each(|value| write(lua, value, &mut out, 1))?;
        one(Value::String(lua.create_string(out)?))
    })?;
    table.raw_set("pack", pack)?;
    let all = function(lua, |lua, args| {
        let bytes = string(lua, &args, 0, "unpack")?;
        Ok(read(lua, &bytes, 0, usize::MAX)?.0)
    })?;
    table.raw_set("unpack", all)?;
    let some = |name: &'static str, limited: bool| {
        let f = function(lua, move |lua, args| {
            let bytes = string(lua, &args, 0, name)?;
            let mut next = 1;
            let most = if limited {
                next = 2;
                number(lua, &args, 1, name)?
            } else {
                1.0
            };
            let from = match argument(&args, next) {
                Value::Nil => 0.0,
                _ => number(lua, &args, next, name)?,
            };
            if most < 0.0 || from < 0.0 || from > bytes.len() as f64 {
                let (most, from, len) = (most as i64, from as i64, bytes.len());
                return Err(Failure::Text(format!(
                    "Invalid request to unpack with offset of {from} and limit of {most}: the string has {len} bytes"
                )));
            }
            let (mut values, end) = read(lua, &bytes, from as usize, most as usize)?;
            let next = if end >= bytes.len() { -1.0 } else { end as f64 };
            values.push_front(Value::Number(next));
            Ok(values)
        })?;
        table.raw_set(name, f)
    };
    some("unpack_one", false)?;
    some("unpack_limit", true)?;
    table.raw_set("_NAME", "cmsgpack")?;
    table.raw_set("_VERSION", "lua-cmsgpack 0.4.0")?;
    Ok(table)
}

fn write(lua: &Lua, value: &Value, out: &mut Vec<u8>, depth: usize) -> Result<(), Failure> {
    room(lua, out.len())?;
    // Writing to memory does not fail.
    let written = match value {
        Value::Boolean(value) => encode::write_bool(out, *value).map_err(|e| e.to_string()),
        Value::Integer(number) => encode::write_sint(out, *number)
            .map(drop)
            .map_err(|e| e.to_string()),
        Value::Number(number) => write_number(*number, out),
        Value::String(bytes) => {
            let bytes = bytes.as_bytes();
            let len = u32::try_from(bytes.len()).map_err(|_| "the string is too long")?;
            let written = encode::write_str_len(out, len)
                .map(drop)
                .map_err(|e| e.to_string());
            out.extend_from_slice(&bytes);
            written
        }
        Value::Table(table) if depth < MAX_DEPTH => return write_table(lua, table, out, depth + 1),
        _ => encode::write_nil(out).map_err(|e| e.to_string()),
    };
    written.map_err(Failure::Text)
}

fn write_number(number: f64, out: &mut Vec<u8>) -> Result<(), String> {
    let as_single = number as f32;
    if f64::from(as_single) == number {
        encode::write_f32(out, as_single).map_err(|e| e.to_string())
    } else {
        encode::write_f64(out, number).map_err(|e| e.to_string())
    }
}

fn write_table(lua: &Lua, table: &Table, out: &mut Vec<u8>, depth: usize) -> Result<(), Failure> {
    let (mut highest, mut elements, mut is_array) = (0, 0, true);
    for pair in table.pairs::<Value, Value>() {
        elements += 1;
        match pair?.0 {
            Value::Integer(index) if index > 0 => highest = highest.max(index),
            _ => is_array = false,
        }
    }
    let len = u32::try_from(elements).map_err(|_| "the table is too long")?;
    if is_array && highest == i64::from(len) {
        encode::write_array_len(out, len).map_err(|e| Failure::Text(e.to_string()))?;
        return (1..=len).try_for_each(|i| write(lua, &table.raw_get(i)?, out, depth));
    }
    encode::write_map_len(out, len).map_err(|e| Failure::Text(e.to_string()))?;
    table.pairs::<Value, Value>().try_for_each(|pair| {
        let (key, value) = pair?;
        write(lua, &key, out, depth)?;
        write(lua, &value, out, depth)
    })
}

/// Reads up to `most` values from byte `from` on. Returns them, and where they end.
fn read(lua: &Lua, bytes: &[u8], from: usize, most: usize) -> Result<(MultiValue, usize), Failure> {
    let mut rest = bytes.get(from..).unwrap_or_default();
    if rest.len() > MAX_INPUT {
        return Err(Failure::Text(format!(
            "the input is longer than {MAX_INPUT} bytes"
        )));
    }
    let mut values = Vec::new();
    while !rest.is_empty() && values.len() < most {
        let value = read_value_ref_with_max_depth(&mut rest, MAX_READ_DEPTH);
        let value = value.map_err(|e| match e {
            rmpv::decode::Error::InvalidMarkerRead(_) | rmpv::decode::Error::InvalidDataRead(_) => {
                Failure::from("Missing bytes in input.")
            }
            _ => Failure::from("Bad data format in input."),
        })?;
        if values.len() == MAX_VALUES {
            return Err("too many results to unpack".into());
        }
        values.push(to_lua(lua, &value)?);
    }
    Ok((MultiValue::from_iter(values), bytes.len() - rest.len()))
}

fn to_lua(lua: &Lua, value: &ValueRef<'_>) -> Result<Value, Failure> {
    Ok(match value {
        ValueRef::Nil => Value::Nil,
        ValueRef::Boolean(value) => Value::Boolean(*value),
        ValueRef::Integer(number) => Value::Number(number.as_f64().unwrap_or(0.0)),
        ValueRef::F32(number) => Value::Number(f64::from(*number)),
        ValueRef::F64(number) => Value::Number(*number),
        ValueRef::String(text) => Value::String(lua.create_string(text.as_bytes())?),
        ValueRef::Array(values) => {
            let table = lua.create_table_with_capacity(values.len(), 0)?;
            for (i, value) in (1i64..).zip(values) {
                table.raw_set(i, to_lua(lua, value)?)?;
            }
            Value::Table(table)
        }
        ValueRef::Map(pairs) => {
            let table = lua.create_table_with_capacity(0, pairs.len())?;
            for (key, value) in pairs {
                match to_lua(lua, key)? {
                    // Lua has no such keys.
                    Value::Nil => {}
                    Value::Number(number) if number.is_nan() => {}
                    key => table.raw_set(key, to_lua(lua, value)?)?,
                }
            }
            Value::Table(table)
        }
        // The library has neither.
        ValueRef::Binary(_) | ValueRef::Ext(..) => return Err("Bad data format in input.".into()),
    })
}
