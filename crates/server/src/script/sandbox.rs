//! What a script finds: Lua's libraries without those that reach out of it, and Redis's.
//!
//! Scripts of all users share a Lua state, one after the other. So nothing that one of them can
//! reach can be changed: globals and libraries are empty tables that lead to the real ones, which
//! no script can get at.
//!
//! ```text
//! environment (empty) --> globals --> error: no such global
//!                          |
//!                          +-> string (empty) --> the library
//! ```

use super::native::{STRIDE, bounded_insert, bounded_pattern, unpacking, watch};
use super::raise::{Failure, argument, function, number, one, refused, room, string};
use super::{Control, MAX_MEMORY, bits, json, msgpack, structs};
use mlua::chunk::ChunkMode;
use mlua::{Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};
use std::collections::HashSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Functions and libraries of Lua that scripts have.
///
/// `getfenv` and `setfenv` are not among them: of functions written in C they lead to the real
/// globals.
const GLOBALS: [&str; 17] = [
    "_VERSION",
    "assert",
    "error",
    "gcinfo",
    "getmetatable",
    "ipairs",
    "next",
    "pairs",
    "pcall",
    "rawequal",
    "rawget",
    "select",
    "setmetatable",
    "tonumber",
    "tostring",
    "type",
    "xpcall",
];

/// A Lua state for scripts.
pub(super) struct Sandbox {
    pub lua: Lua,
    /// The environment of scripts.
    pub environment: Table,
    /// What it leads to.
    pub globals: Table,
    /// The library `redis`, which `globals` leads to.
    pub redis: Table,
    pub xpcall: Function,
    json: json::Shared,
    random: Random,
    /// The empty tables that lead to what cannot be changed.
    empty: Vec<Table>,
}

/// The state of `math.random`.
#[derive(Clone, Default)]
struct Random(Arc<AtomicU64>);

impl Random {
    /// Begins as `srand48` does.
    fn seed(&self, seed: u32) {
        // ORDERING: Relaxed; one thread at a time runs the script.
        self.0
            .store(u64::from(seed) << 16 | 0x330E, Ordering::Relaxed);
    }

    /// Returns a number from 0 to below 1, of those that `lrand48` returns.
    fn next(&self) -> f64 {
        // ORDERING: Relaxed; as above.
        let state = self.0.load(Ordering::Relaxed);
        let state = (state.wrapping_mul(0x5_DEEC_E66D).wrapping_add(0xB)) & ((1 << 48) - 1);
        // ORDERING: Relaxed; as above.
        self.0.store(state, Ordering::Relaxed);
        let number = (state >> 17) as u32;
        f64::from(number % 0x7FFF_FFFF) / f64::from(0x7FFF_FFFF)
    }
}

impl Sandbox {
    /// Makes a state whose scripts `control` stops.
    pub fn new(control: &Arc<Control>) -> mlua::Result<Self> {
        let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
        let lua = Lua::new_with(libraries, LuaOptions::new().catch_rust_panics(false))?;
        let real = lua.globals();
        let globals = lua.create_table()?;
        let environment = lua.create_table()?;
        for name in GLOBALS {
            let value: Value = real.raw_get(name)?;
            globals.raw_set(name, value)?;
        }
        globals.raw_set("_G", &environment)?;
        let random = Random::default();
        let math: Table = real.raw_get("math")?;
        add_random(&lua, &math, &random)?;
        globals.raw_set("unpack", unpacking(&lua)?)?;
        globals.raw_set("collectgarbage", function(&lua, collect)?)?;
        let strings: Table = real.raw_get("string")?;
        for name in ["find", "match", "gmatch", "gsub"] {
            let inner = strings.raw_get(name)?;
            strings.raw_set(name, bounded_pattern(&lua, &inner)?)?;
        }
        strings.raw_set("gfind", Value::Nil)?;
        strings.raw_set("rep", function(&lua, repeat)?)?;
        let tables: Table = real.raw_get("table")?;
        let insert = tables.raw_get("insert")?;
        tables.raw_set("insert", bounded_insert(&lua, &insert)?)?;
        let coroutines: Table = real.raw_get("coroutine")?;
        for name in ["create", "wrap"] {
            let (inner, by): (Function, _) = (coroutines.raw_get(name)?, Arc::clone(control));
            // Each counts its own instructions, and many short ones would never be looked at.
            let counted = function(&lua, move |_, args| match by.tick(STRIDE) {
                true => Err("the script was stopped".into()),
                false => Ok(inner.call::<MultiValue>(args)?),
            })?;
            coroutines.raw_set(name, counted)?;
        }
        // Compiled code can be anything.
        strings.raw_set("dump", Value::Nil)?;
        let os = lua.create_table()?;
        let start = Instant::now();
        let clock = function(&lua, move |_, _| {
            one(Value::Number(start.elapsed().as_secs_f64()))
        })?;
        os.raw_set("clock", clock)?;
        let redis = lua.create_table()?;
        let json = json::Shared::default();
        let libraries = [
            ("string", strings),
            ("table", tables),
            ("math", math),
            ("coroutine", coroutines),
            ("os", os),
            ("bit", bits::library(&lua)?),
            ("cjson", json::library(&lua, &json)?),
            ("cmsgpack", msgpack::library(&lua)?),
            ("struct", structs::library(&lua)?),
            ("redis", redis.clone()),
        ];
        let refuse = function(
            &lua,
            |_, _| Err("Attempt to modify a readonly table".into()),
        )?;
        let protected = Arc::new(Mutex::new(HashSet::new()));
        let mut every = Vec::new();
        let mut protect = |empty: &Table, to: Value| -> mlua::Result<()> {
            let guard = lua.create_table()?;
            guard.raw_set("__index", to)?;
            guard.raw_set("__newindex", &refuse)?;
            guard.raw_set("__metatable", false)?;
            let mut all = protected.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert(address(empty));
            every.push(empty.clone());
            empty.set_metatable(Some(guard))
        };
        for (name, library) in libraries {
            let empty = lua.create_table()?;
            protect(&empty, Value::Table(library))?;
            globals.raw_set(name, empty)?;
        }
        protect(&environment, Value::Table(globals.clone()))?;
        let missing = function(&lua, |_, args| {
            let name = argument(&args, 1).to_string()?;
            Err(Failure::Text(format!(
                "Script attempted to access nonexistent global variable '{name}'"
            )))
        })?;
        let guard = lua.create_table()?;
        guard.raw_set("__index", missing)?;
        globals.set_metatable(Some(guard))?;
        if let Some(of_strings) = lua.type_metatable::<LuaString>() {
            of_strings.raw_set("__metatable", false)?;
        }
        let raw_set = function(&lua, move |_, args| {
            let Value::Table(table) = argument(&args, 0) else {
                let given = args.front().map_or("no value", Value::type_name);
                return Err(Failure::Text(format!(
                    "bad argument #1 to 'rawset' (table expected, got {given})"
                )));
            };
            let all = protected.lock().unwrap_or_else(PoisonError::into_inner);
            if all.contains(&address(&table)) {
                return Err(refused("Attempt to modify a readonly table"));
            }
            table.raw_set(argument(&args, 1), argument(&args, 2))?;
            one(Value::Table(table))
        })?;
        globals.raw_set("rawset", raw_set)?;
        for name in ["load", "loadstring"] {
            let within = environment.clone();
            let load = function(&lua, move |lua, args| load(lua, &args, &within))?;
            globals.raw_set(name, load)?;
        }
        // The environment of what is compiled without one of its own.
        lua.set_globals(environment.clone())?;
        let xpcall = real.raw_get("xpcall")?;
        watch(&lua, control)?;
        lua.set_memory_limit(MAX_MEMORY)?;
        Ok(Self {
            lua,
            environment,
            globals,
            redis,
            xpcall,
            json,
            random,
            empty: every,
        })
    }
}

impl Sandbox {
    /// Makes what scripts share what it was at first, for the next one.
    pub fn begin(&self) -> mlua::Result<()> {
        // Functions of Lua's libraries may have put elements there.
        let mut filled = self.empty.iter().filter(|table| !table.is_empty());
        filled.try_for_each(Table::clear)?;
        *self.json.lock().unwrap_or_else(PoisonError::into_inner) = json::Settings::default();
        self.random.seed(rand::random());
        Ok(())
    }
}

/// `collectgarbage`, which can only count.
fn collect(lua: &Lua, args: MultiValue) -> super::raise::Answer {
    let counts = match argument(&args, 0) {
        Value::String(what) => *what.as_bytes() == *b"count",
        _ => false,
    };
    let kib = lua.used_memory() as f64 / 1024.0;
    one(Value::Number(if counts { kib } else { 0.0 }))
}

/// `string.rep`, which looks for room before it begins.
fn repeat(lua: &Lua, args: MultiValue) -> super::raise::Answer {
    let text = string(lua, &args, 0, "rep")?;
    let times = number(lua, &args, 1, "rep")?;
    let times = match times >= 1.0 && !text.is_empty() {
        true => times as usize,
        false => 0,
    };
    // Once here, and once there.
    room(lua, text.len().saturating_mul(times).saturating_mul(2))?;
    one(Value::String(lua.create_string(text.repeat(times))?))
}

fn address(table: &Table) -> usize {
    let pointer: *const c_void = table.to_pointer();
    pointer.addr()
}

/// Compiles the text that a string has, or the pieces that a function returns.
fn load(lua: &Lua, args: &MultiValue, environment: &Table) -> super::raise::Answer {
    let mut text = Vec::new();
    match argument(args, 0) {
        Value::Function(pieces) => loop {
            match pieces.call::<Value>(())? {
                Value::String(piece) if !piece.as_bytes().is_empty() => {
                    room(lua, text.len() + piece.as_bytes().len())?;
                    text.extend_from_slice(&piece.as_bytes());
                }
                _ => break,
            }
        },
        other => {
            let given = other.type_name();
            let string = lua.coerce_string(other)?.ok_or_else(|| {
                Failure::Text(format!(
                    "bad argument #1 to 'load' (string expected, got {given})"
                ))
            })?;
            text.extend_from_slice(&string.as_bytes());
        }
    }
    let name = match argument(args, 1) {
        Value::String(name) => name.to_string_lossy(),
        _ => String::from_utf8_lossy(&text).into_owned(),
    };
    let chunk = lua.load(text).set_mode(ChunkMode::Text).set_name(name);
    match chunk.set_environment(environment.clone()).into_function() {
        Ok(function) => one(Value::Function(function)),
        Err(e) => Ok(MultiValue::from_iter([
            Value::Nil,
            Value::String(lua.create_string(syntax(&e))?),
        ])),
    }
}

/// Returns the message of a text that cannot be compiled.
pub(super) fn syntax(error: &mlua::Error) -> String {
    match error {
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

fn add_random(lua: &Lua, math: &Table, random: &Random) -> mlua::Result<()> {
    let with = random.clone();
    let next = function(lua, move |lua, args| {
        let share = with.next();
        if args.is_empty() {
            return one(Value::Number(share));
        }
        let first = number(lua, &args, 0, "random")?.floor();
        let (low, high, which) = match args.len() {
            1 => (1.0, first, 1),
            2 => (first, number(lua, &args, 1, "random")?.floor(), 2),
            _ => return Err("wrong number of arguments".into()),
        };
        if low > high {
            return Err(Failure::Text(format!(
                "bad argument #{which} to 'random' (interval is empty)"
            )));
        }
        one(Value::Number((share * (high - low + 1.0)).floor() + low))
    })?;
    math.raw_set("random", next)?;
    let with = random.clone();
    let seed = function(lua, move |lua, args| {
        with.seed(number(lua, &args, 0, "randomseed")? as i64 as u32);
        Ok(MultiValue::new())
    })?;
    math.raw_set("randomseed", seed)
}
