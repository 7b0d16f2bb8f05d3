//! The library `bit`: operations on 32 bits.

use super::raise::{Answer, Failure, argument, function, number, one};
use mlua::{Lua, MultiValue, Table, Value};

/// Returns the lowest 32 bits of a number, whose fraction is rounded.
fn to_bits(number: f64) -> u32 {
    // As the library does it: rounded to even, and modulo 2^32.
    let whole = number.round_ties_even();
    let below = whole.rem_euclid(4_294_967_296.0);
    below as u32
}

fn bits(lua: &Lua, args: &MultiValue, i: usize, name: &str) -> Result<u32, Failure> {
    Ok(to_bits(number(lua, args, i, name)?))
}

fn signed(bits: u32) -> Answer {
    one(Value::Number(f64::from(bits.cast_signed())))
}

/// Returns the library.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let one_of = |name: &'static str, f: fn(u32) -> u32| {
        let f = function(lua, move |lua, args| signed(f(bits(lua, &args, 0, name)?)))?;
        table.raw_set(name, f)
    };
    one_of("tobit", |a| a)?;
    one_of("bnot", |a| !a)?;
    one_of("bswap", u32::swap_bytes)?;
    let all_of = |name: &'static str, f: fn(u32, u32) -> u32| {
        let f = function(lua, move |lua, args| {
            let mut all = bits(lua, &args, 0, name)?;
            for i in 1..args.len() {
                all = f(all, bits(lua, &args, i, name)?);
            }
            signed(all)
        })?;
        table.raw_set(name, f)
    };
    all_of("band", |a, b| a & b)?;
    all_of("bor", |a, b| a | b)?;
    all_of("bxor", |a, b| a ^ b)?;
    let by = |name: &'static str, f: fn(u32, u32) -> u32| {
        let f = function(lua, move |lua, args| {
            let (a, n) = (bits(lua, &args, 0, name)?, bits(lua, &args, 1, name)?);
            signed(f(a, n & 31))
        })?;
        table.raw_set(name, f)
    };
    by("lshift", |a, n| a << n)?;
    by("rshift", |a, n| a >> n)?;
    by("arshift", |a, n| (a.cast_signed() >> n).cast_unsigned())?;
    by("rol", u32::rotate_left)?;
    by("ror", u32::rotate_right)?;
    let to_hex = function(lua, |lua, args| {
        let value = bits(lua, &args, 0, "tohex")?;
        let digits = match argument(&args, 1) {
            Value::Nil => 8,
            _ => bits(lua, &args, 1, "tohex")?.cast_signed(),
        };
        let count = digits.unsigned_abs().min(8) as usize;
        let all = format!("{value:08x}");
        let mut text = all[8 - count..].to_owned();
        if digits < 0 {
            text.make_ascii_uppercase();
        }
        one(Value::String(lua.create_string(text)?))
    })?;
    table.raw_set("tohex", to_hex)?;
    Ok(table)
}
