//! Functions that Lua calls without anything between: what has to work where there is no memory, or
//! takes arguments that Lua's own functions cannot be trusted with.

use super::Control;
use mlua::{Function, Lua, ffi};
use std::ffi::{c_int, c_void};
use std::sync::Arc;

/// The most results of `unpack`.
const MAX_RESULTS: f64 = 7000.0;
/// The longest pattern, in bytes: matching recurses for each of its parts.
const MAX_PATTERN: usize = 2048;
/// How far before a table's start `table.insert` may begin.
const MAX_BEFORE: f64 = 1000.0;
/// After so many instructions of Lua a script is looked at.
pub(super) const STRIDE: u32 = 1000;

/// Its address names the control in the registry.
static KEY: u8 = 0;

fn key() -> *mut c_void {
    (&raw const KEY).cast_mut().cast()
}

/// Stops the script if it has to: from then on each instruction raises an error, also those that
/// would catch it.
///
/// # Safety
/// Lua calls it as a hook of a state that [`watch`] was called for.
unsafe extern "C-unwind" fn look(state: *mut ffi::lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: 1. `state` is the caller's, and gives a hook 20 free places of the stack. 2. The
    // registry has the control, which outlives the state. 3. Nothing here needs dropping, or
    // allocates.
    unsafe {
        ffi::lua_pushlightuserdata(state, key());
        ffi::lua_rawget(state, ffi::LUA_REGISTRYINDEX);
        let control = ffi::lua_touserdata(state, -1)
            .cast::<Control>()
            .cast_const();
        ffi::lua_settop(state, -2);
        if control.is_null() || !(*control).tick(STRIDE) {
            return;
        }
        ffi::lua_sethook(state, Some(look), ffi::LUA_MASKCOUNT, 1);
        ffi::lua_pushlightuserdata(state, std::ptr::null_mut());
        ffi::lua_error(state);
    }
}

/// Has `control` stop the scripts of a state, which it outlives.
pub(super) fn watch(lua: &Lua, control: &Arc<Control>) -> mlua::Result<()> {
    let control = Arc::as_ptr(control).cast_mut().cast();
    // SAFETY: 1. the three places of the stack are there; 2. the pointer is only used by `look`,
    // while the control lives.
    unsafe {
        lua.exec_raw((), |state| {
            ffi::lua_pushlightuserdata(state, key());
            ffi::lua_pushlightuserdata(state, control);
            ffi::lua_rawset(state, ffi::LUA_REGISTRYINDEX);
            ffi::lua_sethook(state, Some(look), ffi::LUA_MASKCOUNT, STRIDE.cast_signed());
        })
    }
}

/// `unpack`. Lua's own overflows where the numbers are far apart, and writes beyond its stack.
///
/// # Safety
/// Only Lua calls it.
unsafe extern "C-unwind" fn unpack(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: 1. `state` is the caller's; 2. `lua_checkstack` has made the places that are used;
    // 3. nothing here needs dropping.
    unsafe {
        ffi::luaL_checktype(state, 1, ffi::LUA_TTABLE);
        let from = ffi::luaL_optnumber(state, 2, 1.0).floor();
        let to = if ffi::lua_isnoneornil(state, 3) != 0 {
            ffi::lua_objlen(state, 1) as f64
        } else {
            ffi::luaL_checknumber(state, 3).floor()
        };
        let results = to - from + 1.0;
        if results < 1.0 {
            return 0;
        }
        // Not a number is not below it either.
        let few = results <= MAX_RESULTS;
        if !few || ffi::lua_checkstack(state, results as c_int + 1) == 0 {
            return ffi::luaL_error(state, c"too many results to unpack".as_ptr());
        }
        let results = results as c_int;
        for i in 0..results {
            ffi::lua_pushnumber(state, from + f64::from(i));
            ffi::lua_rawget(state, 1);
        }
        results
    }
}

/// Calls the function that is its upvalue, unless the second argument is too long a pattern.
///
/// # Safety
/// Only Lua calls it, as a closure with one upvalue.
unsafe extern "C-unwind" fn matching(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: 1. `state` is the caller's, and gives 20 free places; 2. nothing here needs dropping.
    unsafe {
        let is_plain = ffi::lua_toboolean(state, 4) != 0;
        if ffi::lua_type(state, 2) == ffi::LUA_TSTRING
            && ffi::lua_objlen(state, 2) > MAX_PATTERN
            && !is_plain
        {
            return ffi::luaL_error(state, c"pattern too complex".as_ptr());
        }
        forward(state)
    }
}

/// Calls the function that is its upvalue, unless an element is to be inserted far before others.
///
/// # Safety
/// As of [`matching`].
unsafe extern "C-unwind" fn inserting(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as of `matching`.
    unsafe {
        if ffi::lua_gettop(state) == 3 {
            let near = ffi::luaL_checknumber(state, 2) >= -MAX_BEFORE;
            if !near {
                return ffi::luaL_error(state, c"position out of bounds".as_ptr());
            }
        }
        forward(state)
    }
}

/// Calls the function that is the upvalue of the running one with the same arguments.
///
/// # Safety
/// As of [`matching`].
unsafe fn forward(state: *mut ffi::lua_State) -> c_int {
    // SAFETY: as of `matching`; the caller has pushed nothing.
    unsafe {
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_insert(state, 1);
        ffi::lua_call(state, ffi::lua_gettop(state) - 1, ffi::LUA_MULTRET);
        ffi::lua_gettop(state)
    }
}

/// Returns `unpack`.
pub(super) fn unpacking(lua: &Lua) -> mlua::Result<Function> {
    // SAFETY: it needs no upvalue.
    unsafe { lua.create_c_function(unpack) }
}

/// Returns a function of patterns that takes none that are too long.
pub(super) fn bounded_pattern(lua: &Lua, inner: &Function) -> mlua::Result<Function> {
    // SAFETY: the function is on the stack, as the one upvalue, and its closure takes its place.
    unsafe { lua.exec_raw(inner, |state| ffi::lua_pushcclosure(state, matching, 1)) }
}

/// Returns `table.insert` that takes only places that are near.
pub(super) fn bounded_insert(lua: &Lua, inner: &Function) -> mlua::Result<Function> {
    // SAFETY: as of `bounded_pattern`.
    unsafe { lua.exec_raw(inner, |state| ffi::lua_pushcclosure(state, inserting, 1)) }
}
