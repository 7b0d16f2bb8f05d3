//! Functions written in Rust that raise errors as Lua's own do: strings that begin with their
//! place, or tables. An error that a Rust function returns to Lua is an object that scripts can
//! neither compare nor concatenate.

use super::MAX_MEMORY;
use mlua::{Function, Lua, MultiValue, Value, ffi};
use std::ffi::c_int;

/// The error of a function.
#[derive(Debug)]
pub(super) enum Failure {
    /// A message. The place in the script is put in front of it.
    Text(String),
    /// A message that is an error reply, as the functions of `redis` raise them: a table.
    Reply(String),
    /// Any value, as it is.
    Value(Value),
}

impl From<mlua::Error> for Failure {
    fn from(error: mlua::Error) -> Self {
        Self::Text(error.to_string())
    }
}

impl From<&str> for Failure {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// What a function returns, or raises.
pub(super) type Answer = Result<MultiValue, Failure>;

/// The most arguments of a function. Each is a reference of mlua's, of which there are 8000.
const MAX_ARGUMENTS: c_int = 7000;

/// Fails if a state has no room for `bytes` more.
pub(super) fn room(lua: &Lua, bytes: usize) -> Result<(), Failure> {
    if bytes > MAX_MEMORY.saturating_sub(lua.used_memory()) {
        return Err("not enough memory".into());
    }
    Ok(())
}

/// Returns the answer with one value.
pub(super) fn one(value: Value) -> Answer {
    Ok(MultiValue::from_iter([value]))
}

/// Returns an answer as `enter` expects it: whether it is no error, and then the values or the
/// error.
pub(super) fn packed(lua: &Lua, answer: Answer) -> mlua::Result<MultiValue> {
    let (good, mut values) = match answer {
        Ok(values) => (true, values),
        Err(Failure::Reply(text)) => {
            let table = lua.create_table_with_capacity(0, 3)?;
            table.raw_set("err", text)?;
            (false, MultiValue::from_iter([Value::Table(table)]))
        }
        Err(Failure::Value(value)) => (false, MultiValue::from_iter([value])),
        Err(Failure::Text(text)) => {
            let text = lua.create_string(text)?;
            (false, MultiValue::from_iter([Value::String(text)]))
        }
    };
    values.push_front(Value::Boolean(good));
    Ok(values)
}

/// Calls the function that is its upvalue, whose answer is [`packed`], and returns or raises what
/// it says.
///
/// # Safety
/// Only Lua calls it, as a closure with one upvalue.
unsafe extern "C-unwind" fn enter(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: 1. `state` is the caller's. 2. Lua gives a function 20 free places of the stack, and
    // four are used. 3. No value of this frame needs dropping, so `lua_error` may leave it. 4. The
    // first of the results is a boolean, and after a false one there is exactly one more.
    unsafe {
        if ffi::lua_gettop(state) > MAX_ARGUMENTS {
            return ffi::luaL_error(state, c"too many arguments".as_ptr());
        }
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_insert(state, 1);
        ffi::lua_call(state, ffi::lua_gettop(state) - 1, ffi::LUA_MULTRET);
        if ffi::lua_toboolean(state, 1) == 0 {
            if ffi::lua_type(state, 2) == ffi::LUA_TSTRING {
                ffi::luaL_where(state, 1);
                ffi::lua_insert(state, 2);
                ffi::lua_concat(state, 2);
            }
            ffi::lua_error(state);
        }
        ffi::lua_remove(state, 1);
        ffi::lua_gettop(state)
    }
}

/// Returns the function that returns or raises what `inner`, whose answer is [`packed`], says.
pub(super) fn raising(lua: &Lua, inner: &Function) -> mlua::Result<Function> {
    // SAFETY: 1. the function is on the stack, as the one upvalue that `enter` needs, and its
    // closure takes its place.
    unsafe { lua.exec_raw(inner, |state| ffi::lua_pushcclosure(state, enter, 1)) }
}

/// Returns a function that returns or raises what `f` says.
pub(super) fn function(
    lua: &Lua,
    f: impl Fn(&Lua, MultiValue) -> Answer + Send + 'static,
) -> mlua::Result<Function> {
    let inner = lua.create_function(move |lua, args: MultiValue| packed(lua, f(lua, args)))?;
    raising(lua, &inner)
}

/// Returns the error that a function of `redis` raises.
pub(super) fn refused(text: &str) -> Failure {
    Failure::Reply(format!("ERR {text}"))
}

/// Returns the argument at `i`, counted from 0.
pub(super) fn argument(args: &MultiValue, i: usize) -> Value {
    args.get(i).cloned().unwrap_or(Value::Nil)
}

/// Returns an argument that has to be a string, or a number, which becomes one.
///
/// # Errors
/// As Lua words it.
pub(super) fn string(
    lua: &Lua,
    args: &MultiValue,
    i: usize,
    name: &str,
) -> Result<Vec<u8>, Failure> {
    let value = argument(args, i);
    let given = type_of(args, i);
    let string = lua.coerce_string(value)?;
    let string = string.ok_or_else(|| wrong(i, name, "string", given))?;
    Ok(string.as_bytes().to_vec())
}

/// Returns an argument that has to be a number, or a string that is one.
///
/// # Errors
/// As Lua words it.
pub(super) fn number(lua: &Lua, args: &MultiValue, i: usize, name: &str) -> Result<f64, Failure> {
    let given = type_of(args, i);
    let number = lua.coerce_number(argument(args, i))?;
    number.ok_or_else(|| wrong(i, name, "number", given))
}

fn type_of(args: &MultiValue, i: usize) -> &'static str {
    args.get(i).map_or("no value", Value::type_name)
}

fn wrong(i: usize, name: &str, expected: &str, given: &str) -> Failure {
    let given = if given == "integer" { "number" } else { given };
    let number = i + 1;
    Failure::Text(format!(
        "bad argument #{number} to '{name}' ({expected} expected, got {given})"
    ))
}
