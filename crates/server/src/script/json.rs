//! The library `cjson`.
//!
//! Strings are bytes, as in Lua: no library of Rust reads or writes JSON that is not UTF-8.

use super::MAX_MEMORY;
use super::raise::{Answer, Failure, argument, function, number, one, string};
use crate::parse::double::{bound, general};
use mlua::{LightUserData, Lua, MultiValue, Table, Value};
use std::sync::{Arc, Mutex, PoisonError};

/// The library's settings, which last for one script.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// An array with holes is an object instead of an error.
    sparse_converts: bool,
    /// A table is an array if its highest index is at most so many times its elements, or at most
    /// `sparse_safe`. 0: whatever it has.
    sparse_ratio: usize,
    sparse_safe: usize,
    encode_depth: usize,
    decode_depth: usize,
    /// Significant digits of a number.
    precision: usize,
    encode_invalid: bool,
    decode_invalid: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sparse_converts: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_depth: 1000,
            decode_depth: 1000,
            precision: 14,
            encode_invalid: false,
            decode_invalid: true,
        }
    }
}

/// The most values of a text.
const MAX_VALUES: usize = 4_000_000;
/// The deepest nesting that the settings allow: both directions recurse.
const MAX_DEPTH: usize = 1000;

pub(super) type Shared = Arc<Mutex<Settings>>;

fn settings(shared: &Shared) -> Settings {
    *shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the value of the field `null`.
fn null() -> Value {
    Value::LightUserData(LightUserData(std::ptr::null_mut()))
}

/// Returns the library, with settings that are reset for each script.
pub(super) fn library(lua: &Lua, shared: &Shared) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let with = Arc::clone(shared);
    let encode = function(lua, move |lua, args| {
        if args.len() != 1 {
            return Err("bad argument #1 to 'encode' (expected 1 argument)".into());
        }
        let mut encoder = Encoder {
            settings: settings(&with),
            most: MAX_MEMORY.saturating_sub(lua.used_memory()),
            left: MAX_VALUES,
            out: Vec::new(),
        };
        encoder.value(&argument(&args, 0), 0)?;
        one(Value::String(lua.create_string(encoder.out)?))
    })?;
    table.raw_set("encode", encode)?;
    let with = Arc::clone(shared);
    let decode = function(lua, move |lua, args| {
        if args.len() != 1 {
            return Err("bad argument #1 to 'decode' (expected 1 argument)".into());
        }
        let text = string(lua, &args, 0, "decode")?;
        let mut decoder = Decoder {
            lua,
            text: &text,
            at: 0,
            settings: settings(&with),
        };
        let value = decoder.value(0)?;
        decoder.space();
        match decoder.text.get(decoder.at) {
            None => one(value),
            Some(_) => Err(decoder.wrong("the end")),
        }
    })?;
    table.raw_set("decode", decode)?;
    table.raw_set("null", null())?;
    table.raw_set("_NAME", "cjson")?;
    table.raw_set("_VERSION", "2.1.0")?;
    let setting = |name: &'static str, set: fn(&Lua, &mut Settings, &MultiValue) -> Answer| {
        let with = Arc::clone(shared);
        let f = function(lua, move |lua, args| {
            set(
                lua,
                &mut with.lock().unwrap_or_else(PoisonError::into_inner),
                &args,
            )
        })?;
        table.raw_set(name, f)
    };
    setting("encode_sparse_array", |lua, settings, args| {
        if let Some(converts) = flag(args) {
            settings.sparse_converts = converts;
        }
        if args.len() > 1 {
            settings.sparse_ratio = count(lua, args, 1, "encode_sparse_array", usize::MAX)?;
        }
        if args.len() > 2 {
            settings.sparse_safe = count(lua, args, 2, "encode_sparse_array", usize::MAX)?;
        }
        Ok(MultiValue::from_iter([
            Value::Boolean(settings.sparse_converts),
            Value::Number(settings.sparse_ratio as f64),
            Value::Number(settings.sparse_safe as f64),
        ]))
    })?;
    setting("encode_max_depth", |lua, settings, args| {
        limit(
            lua,
            &mut settings.encode_depth,
            args,
            "encode_max_depth",
            MAX_DEPTH,
        )
    })?;
    setting("decode_max_depth", |lua, settings, args| {
        limit(
            lua,
            &mut settings.decode_depth,
            args,
            "decode_max_depth",
            MAX_DEPTH,
        )
    })?;
    setting("encode_number_precision", |lua, settings, args| {
        limit(
            lua,
            &mut settings.precision,
            args,
            "encode_number_precision",
            17,
        )
    })?;
    setting("encode_invalid_numbers", |_, settings, args| {
        if let Some(allowed) = flag(args) {
            settings.encode_invalid = allowed;
        }
        one(Value::Boolean(settings.encode_invalid))
    })?;
    setting("decode_invalid_numbers", |_, settings, args| {
        if let Some(allowed) = flag(args) {
            settings.decode_invalid = allowed;
        }
        one(Value::Boolean(settings.decode_invalid))
    })?;
    // There is no buffer to keep.
    setting("encode_keep_buffer", |_, _, args| {
        one(Value::Boolean(flag(args).unwrap_or(true)))
    })?;
    Ok(table)
}

/// Returns the first argument as a switch, if it is given: a boolean, `on` or `off`.
fn flag(args: &MultiValue) -> Option<bool> {
    match args.front()? {
        Value::Boolean(value) => Some(*value),
        Value::String(word) => Some(&*word.as_bytes() == b"on"),
        _ => None,
    }
}

fn count(
    lua: &Lua,
    args: &MultiValue,
    i: usize,
    name: &str,
    most: usize,
) -> Result<usize, Failure> {
    let given = number(lua, args, i, name)?;
    let least = usize::from(i == 0);
    if given >= least as f64 && given <= most as f64 {
        return Ok(given as usize);
    }
    let number = i + 1;
    Err(Failure::Text(format!(
        "bad argument #{number} to '{name}' (expected integer between {least} and {most})"
    )))
}

/// Sets a limit, if one is given, and returns it.
fn limit(lua: &Lua, setting: &mut usize, args: &MultiValue, name: &str, most: usize) -> Answer {
    if !args.is_empty() {
        *setting = count(lua, args, 0, name, most)?;
    }
    one(Value::Number(*setting as f64))
}

struct Encoder {
    settings: Settings,
    /// The most bytes that there is room for.
    most: usize,
    /// The values that may follow: tables that contain one another are few, and have many.
    left: usize,
    out: Vec<u8>,
}

impl Encoder {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Failure> {
        if self.out.len() > self.most {
            return Err("not enough memory".into());
        }
        let left = self.left.checked_sub(1);
        self.left = left.ok_or("Cannot serialise, too many values")?;
        match value {
            Value::Nil | Value::LightUserData(_) => self.out.extend(b"null"),
            Value::Boolean(true) => self.out.extend(b"true"),
            Value::Boolean(false) => self.out.extend(b"false"),
            Value::Integer(number) => self.number(*number as f64)?,
            Value::Number(number) => self.number(*number)?,
            Value::String(text) => self.string(&text.as_bytes()),
            Value::Table(table) => self.table(table, depth + 1)?,
            other => {
                let name = other.type_name();
                return Err(Failure::Text(format!(
                    "Cannot serialise {name}: type not supported"
                )));
            }
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<(), Failure> {
        if !number.is_finite() && !self.settings.encode_invalid {
            return Err("Cannot serialise number: must not be NaN or Inf".into());
        }
        let text = general(number, self.settings.precision);
        self.out.extend(text.as_bytes());
        Ok(())
    }

    fn string(&mut self, text: &[u8]) {
        self.out.push(b'"');
        for byte in text {
            match byte {
                b'"' | b'\\' | b'/' => self.out.extend([b'\\', *byte]),
                8 => self.out.extend(b"\\b"),
                9 => self.out.extend(b"\\t"),
                10 => self.out.extend(b"\\n"),
                12 => self.out.extend(b"\\f"),
                13 => self.out.extend(b"\\r"),
                0..32 | 127 => self.out.extend(format!("\\u{byte:04x}").as_bytes()),
                _ => self.out.push(*byte),
            }
        }
        self.out.push(b'"');
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<(), Failure> {
        if depth > self.settings.encode_depth {
            return Err(Failure::Text(format!(
                "Cannot serialise, excessive depth ({depth})"
            )));
        }
        if let Some(len) = self.array_len(table)? {
            self.out.push(b'[');
            for i in 1..=len {
                if i > 1 {
                    self.out.push(b',');
                }
                self.value(&table.raw_get(i)?, depth)?;
            }
            self.out.push(b']');
            return Ok(());
        }
        self.out.push(b'{');
        let mut first = true;
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair?;
            if !std::mem::take(&mut first) {
                self.out.push(b',');
            }
            match &key {
                Value::String(text) => self.string(&text.as_bytes()),
                Value::Integer(_) | Value::Number(_) => {
                    self.out.push(b'"');
                    self.value(&key, depth)?;
                    self.out.push(b'"');
                }
                _ => {
                    return Err(
                        "Cannot serialise table: table key must be a number or string".into(),
                    );
                }
            }
            self.out.push(b':');
            self.value(&value, depth)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    /// Returns the highest index of a table that is an array: one whose keys are all indexes, and
    /// that has one.
    fn array_len(&self, table: &Table) -> Result<Option<usize>, Failure> {
        let (mut highest, mut elements) = (0, 0usize);
        for pair in table.pairs::<Value, Value>() {
            let index = match pair?.0 {
                Value::Integer(index) => usize::try_from(index).unwrap_or(0),
                _ => 0,
            };
            if index == 0 {
                return Ok(None);
            }
            highest = highest.max(index);
            elements += 1;
        }
        let Settings {
            sparse_converts,
            sparse_ratio,
            sparse_safe,
            ..
        } = self.settings;
        let most = elements.saturating_mul(sparse_ratio);
        if sparse_ratio > 0 && highest > most && highest > sparse_safe {
            if !sparse_converts {
                return Err("Cannot serialise table: excessively sparse array".into());
            }
            return Ok(None);
        }
        Ok((highest > 0).then_some(highest))
    }
}

struct Decoder<'d> {
    lua: &'d Lua,
    text: &'d [u8],
    at: usize,
    settings: Settings,
}

impl Decoder<'_> {
    fn space(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Returns the next byte that is no space, without taking it.
    fn peek(&mut self) -> Option<u8> {
        self.space();
        self.text.get(self.at).copied()
    }

    fn wrong(&self, expected: &str) -> Failure {
        let found = match self.text.get(self.at) {
            None => "T_END",
            Some(b'{') => "T_OBJ_BEGIN",
            Some(b'}') => "T_OBJ_END",
            Some(b'[') => "T_ARR_BEGIN",
            Some(b']') => "T_ARR_END",
            Some(b'"') => "T_STRING",
            Some(b':') => "T_COLON",
            Some(b',') => "T_COMMA",
            _ => "invalid token",
        };
        let at = self.at + 1;
        Failure::Text(format!(
            "Expected {expected} but found {found} at character {at}"
        ))
    }

    fn enter(&mut self, depth: usize) -> Result<(), Failure> {
        self.at += 1;
        if depth > self.settings.decode_depth {
            let at = self.at;
            return Err(Failure::Text(format!(
                "Found too many nested data structures ({depth}) at character {at}"
            )));
        }
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<Value, Failure> {
        match self.peek() {
            Some(b'"') => Ok(Value::String(self.lua.create_string(self.string()?)?)),
            Some(b'{') => self.object(depth + 1),
            Some(b'[') => self.array(depth + 1),
            _ => self.word(),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, Failure> {
        self.enter(depth)?;
        let table = self.lua.create_table()?;
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Value::Table(table));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.wrong("object key string"));
            }
            let key = self.lua.create_string(self.string()?)?;
            if self.peek() != Some(b':') {
                return Err(self.wrong("colon"));
            }
            self.at += 1;
            let value = self.value(depth)?;
            table.raw_set(key, value)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(Value::Table(table));
                }
                _ => return Err(self.wrong("comma or object end")),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, Failure> {
        self.enter(depth)?;
        let table = self.lua.create_table()?;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Value::Table(table));
        }
        for i in 1.. {
            let value = self.value(depth)?;
            table.raw_set(i, value)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    break;
                }
                _ => return Err(self.wrong("comma or array end")),
            }
        }
        Ok(Value::Table(table))
    }

    /// Takes a string that begins here.
    fn string(&mut self) -> Result<Vec<u8>, Failure> {
        let mut out = Vec::new();
        self.at += 1;
        loop {
            let Some(byte) = self.text.get(self.at).copied() else {
                return Err(self.wrong("string end"));
            };
            self.at += 1;
            match byte {
                b'"' => return Ok(out),
                b'\\' => {
                    let escaped = self.text.get(self.at).copied();
                    self.at += 1;
                    out.push(match escaped {
                        Some(b'b') => 8,
                        Some(b't') => 9,
                        Some(b'n') => 10,
                        Some(b'f') => 12,
                        Some(b'r') => 13,
                        Some(byte @ (b'"' | b'\\' | b'/')) => byte,
                        Some(b'u') => {
                            let character = self.escaped()?;
                            let mut bytes = [0; 4];
                            out.extend(character.encode_utf8(&mut bytes).as_bytes());
                            continue;
                        }
                        _ => {
                            self.at -= 2;
                            return Err(self.wrong("valid escape code"));
                        }
                    });
                }
                _ => out.push(byte),
            }
        }
    }

    /// Takes the digits of an escaped character, and a second escape where it has two.
    fn escaped(&mut self) -> Result<char, Failure> {
        let unit = |this: &mut Self| {
            let digits = this.text.get(this.at..this.at + 4)?;
            let number = u32::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
            this.at += 4;
            Some(number)
        };
        let start = self.at;
        let character = (|| match unit(self)? {
            high @ 0xD800..0xDC00 => {
                if self.text.get(self.at..self.at + 2)? != b"\\u" {
                    return None;
                }
                self.at += 2;
                let low = unit(self)?.checked_sub(0xDC00).filter(|low| *low < 0x400)?;
                char::from_u32(0x1_0000 + ((high - 0xD800) << 10) + low)
            }
            single => char::from_u32(single),
        })();
        character.ok_or_else(|| {
            self.at = start.saturating_sub(2);
            self.wrong("valid unicode escape")
        })
    }

    /// Takes a number, or one of the words.
    fn word(&mut self) -> Result<Value, Failure> {
        let start = self.at;
        let is_part =
            |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let len = self.text[start..]
            .iter()
            .take_while(|byte| is_part(byte))
            .count();
        let word = str::from_utf8(&self.text[start..start + len]).unwrap_or_default();
        let value = match word {
            "true" => Value::Boolean(true),
            "false" => Value::Boolean(false),
            "null" => null(),
            _ => {
                let digits = word.strip_prefix('-').unwrap_or(word);
                let is_number = digits.starts_with(|first: char| first.is_ascii_digit());
                let lower = digits.to_ascii_lowercase();
                let is_invalid = ["inf", "infinity", "nan"].contains(&lower.as_str());
                let is_hex = lower.starts_with("0x");
                let number = match is_hex {
                    true => bound(word.as_bytes()),
                    false => word.parse::<f64>().ok(),
                };
                let allowed = is_number && !is_hex || self.settings.decode_invalid;
                let number = number.filter(|_| allowed && (is_number || is_invalid));
                Value::Number(number.ok_or_else(|| self.wrong("value"))?)
            }
        };
        self.at += len;
        Ok(value)
    }
}
