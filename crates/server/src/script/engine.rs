//! Running a script: its calls, its error, and how it is stopped.

use super::raise::{
    Answer as Returned, Failure, argument, function, one, packed, raising, refused, room,
};
use super::replies::{error_of, from_reply};
use super::sandbox::{Sandbox, syntax};
use super::{Script, Sha};
use crate::error::{CommandError, Outcome};
use crate::parse::double;
use crate::reply::{Protocol, REDIS_VERSION};
use mlua::chunk::ChunkMode;
use mlua::{Function, Lua, MultiValue, Table, Value};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

/// The longest time that a script may run.
const MAX_TIME: Duration = Duration::from_secs(if cfg!(test) { 10 } else { 60 });
/// A state that has more than this after a script is not kept.
const KEPT_MEMORY: usize = 4 << 20;
/// The most compiled scripts that a state keeps.
const MAX_COMPILED: usize = 200;
/// So many instructions take one or two milliseconds: a script that other connections wait for is
/// stopped, and run again where they do not.
const SHORT: i64 = 100_000;

/// Executes the commands that a script calls.
pub(crate) trait Host {
    /// Executes a command, and appends its encoded reply. `memory`: what the script takes.
    ///
    /// # Errors
    /// The script has to stop, and nothing of what it did counts. An error that it may handle is a
    /// reply.
    fn call(
        &mut self,
        args: &[&[u8]],
        protocol: Protocol,
        memory: usize,
        reply: &mut Vec<u8>,
    ) -> Outcome;

    /// Returns true if the script's user may execute a command; `None` if there is none.
    fn may(&self, args: &[&[u8]]) -> Option<bool>;
}

/// The value that a script returned, or its error message.
pub(crate) type Answer = Result<Value, String>;

/// Returns the time in ms since this process first asked.
fn now() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    START.elapsed().as_millis() as u64
}

const GO: u8 = 0;
const LONG: u8 = 1;
const KILLED: u8 = 2;
const FAILED: u8 = 3;
const LATE: u8 = 4;

/// Stops a script from outside.
#[derive(Debug, Default)]
pub(crate) struct Control {
    stop: AtomicU8,
    /// Instructions that are left, if others wait; negative if it may take long.
    left: AtomicI64,
    /// When it began, in ms of this process.
    began: AtomicU64,
}

impl Control {
    /// Stops the script with `SCRIPT KILL`.
    pub(crate) fn kill(&self) {
        // ORDERING: Relaxed; the script looks at it again and again.
        self.stop.store(KILLED, Ordering::Relaxed);
    }

    /// Lets another script run.
    pub(super) fn begin(&self) {
        // ORDERING: Relaxed; as in `kill`.
        self.stop.store(GO, Ordering::Relaxed);
    }

    fn limit(&self, short: bool) {
        // ORDERING: Relaxed; only the script's thread uses them.
        self.left
            .store(if short { SHORT } else { -1 }, Ordering::Relaxed);
        // ORDERING: Relaxed; as above.
        self.began.store(now(), Ordering::Relaxed);
    }

    fn stop(&self, why: u8) {
        // ORDERING: Relaxed; as in `kill`. What came first stays.
        let _ = self
            .stop
            .compare_exchange(GO, why, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn stopped(&self) -> u8 {
        // ORDERING: Relaxed; as in `kill`.
        self.stop.load(Ordering::Relaxed)
    }

    /// Counts instructions. Returns true if the script has to stop.
    pub(super) fn tick(&self, instructions: u32) -> bool {
        // ORDERING: Relaxed; as in `begin`.
        if now() - self.began.load(Ordering::Relaxed) > MAX_TIME.as_millis() as u64 {
            self.stop(LATE);
        }
        let instructions = i64::from(instructions);
        // ORDERING: Relaxed; as in `begin`.
        let left = self.left.load(Ordering::Relaxed);
        if left >= 0 {
            if left < instructions {
                self.stop(LONG);
            }
            // ORDERING: Relaxed; as in `begin`.
            self.left
                .store((left - instructions).max(0), Ordering::Relaxed);
        }
        self.stopped() != GO
    }
}

/// A Lua state that runs scripts.
pub(crate) struct Engine {
    sandbox: Sandbox,
    control: Arc<Control>,
    compiled: HashMap<Sha, Function>,
    /// Turns any error into a table with its place.
    handler: Function,
    /// Replies of commands are RESP3.
    resp3: Arc<AtomicBool>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("compiled", &self.compiled.len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Makes a state.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn new() -> mlua::Result<Self> {
        let control = Arc::<Control>::default();
        let sandbox = Sandbox::new(&control)?;
        let lua = &sandbox.lua;
        let handler = lua.create_function(|lua, error: Value| located(lua, error))?;
        let resp3 = Arc::<AtomicBool>::default();
        add_functions(lua, &sandbox.redis, &resp3)?;
        Ok(Self {
            control,
            handler,
            resp3,
            compiled: HashMap::new(),
            sandbox,
        })
    }

    /// Returns true if the last script has asked for replies of RESP3: `false` is one of its own
    /// then.
    pub(crate) fn is_resp3(&self) -> bool {
        // ORDERING: Relaxed; as in `run`.
        self.resp3.load(Ordering::Relaxed)
    }

    /// Returns what stops it.
    pub(super) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Returns true if it can run another script: it was not stopped, and is not too large.
    pub(super) fn is_reusable(&self) -> bool {
        self.control.stopped() == GO && self.sandbox.lua.used_memory() <= KEPT_MEMORY
    }

    /// Compiles a script.
    ///
    /// # Errors
    /// The text of the error.
    pub(crate) fn compile(&mut self, script: &Script) -> Result<Function, String> {
        if let Some(function) = self.compiled.get(&script.sha) {
            return Ok(function.clone());
        }
        let chunk = self.sandbox.lua.load(script.text.as_slice());
        let chunk = chunk.set_name("@user_script").set_mode(ChunkMode::Text);
        let function = chunk
            .set_environment(self.sandbox.environment.clone())
            .into_function();
        let function = function
            .map_err(|e| format!("ERR Error compiling script (new function): {}", syntax(&e)))?;
        if self.compiled.len() >= MAX_COMPILED {
            self.compiled.clear();
        }
        self.compiled.insert(script.sha, function.clone());
        Ok(function)
    }

    /// Runs a script. If others wait for its thread it stops after some milliseconds.
    ///
    /// # Errors
    /// It was stopped, and nothing of what it did counts: [`CommandError::Long`], `Killed`, `Late`,
    /// or what its host failed with.
    pub(crate) fn run(
        &mut self,
        script: &Script,
        (keys, args): (&[&[u8]], &[&[u8]]),
        short: bool,
        host: &mut dyn Host,
    ) -> Result<Answer, CommandError> {
        self.control.limit(short);
        let function = match self.compile(script) {
            Ok(function) => function,
            Err(text) => return Ok(Err(text)),
        };
        // ORDERING: Relaxed; one thread at a time uses the state.
        self.resp3.store(false, Ordering::Relaxed);
        let begun = self.sandbox.begin();
        begun.map_err(|e| CommandError::reply(format!("ERR {e}")))?;
        let failed = RefCell::new(None);
        let done = self.execute(&function, (keys, args), host, &failed);
        let answer = match (self.control.stopped(), failed.into_inner()) {
            (LONG, _) => return Err(CommandError::Long),
            (KILLED, _) => return Err(CommandError::Killed),
            (LATE, _) => return Err(CommandError::Late),
            (FAILED, Some(e)) => return Err(e),
            _ => done,
        };
        let sha = String::from_utf8_lossy(&script.sha);
        Ok(match answer {
            Ok((true, value)) => Ok(value),
            Ok((false, error)) => Err(self.text_of(&error, &sha)),
            Err(e) => Err(format!("ERR {e} script: {sha}")),
        })
    }

    fn execute(
        &self,
        function: &Function,
        (keys, args): (&[&[u8]], &[&[u8]]),
        host: &mut dyn Host,
        failed: &RefCell<Option<CommandError>>,
    ) -> mlua::Result<(bool, Value)> {
        let Sandbox {
            lua,
            globals,
            redis,
            xpcall,
            ..
        } = &self.sandbox;
        for (name, values) in [("KEYS", keys), ("ARGV", args)] {
            let table = lua.create_table_with_capacity(values.len(), 0)?;
            for (i, value) in (1i64..).zip(values) {
                table.raw_set(i, lua.create_string(value)?)?;
            }
            globals.raw_set(name, table)?;
        }
        let host = RefCell::new(host);
        lua.scope(|scope| {
            let invoke = |lua: &Lua, args: MultiValue| self.invoke(lua, &args, &host, failed);
            let call = scope.create_function(move |lua, args| {
                let answer = invoke(lua, args).and_then(|(value, is_error)| match is_error {
                    true => Err(Failure::Value(value)),
                    false => one(value),
                });
                packed(lua, answer)
            })?;
            redis.raw_set("call", raising(lua, &call)?)?;
            let caught = scope.create_function(move |lua, args| {
                packed(lua, invoke(lua, args).and_then(|(value, _)| one(value)))
            })?;
            redis.raw_set("pcall", raising(lua, &caught)?)?;
            let may = scope.create_function(|lua, args: MultiValue| {
                packed(
                    lua,
                    words(lua, &args).and_then(|words| {
                        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                        let may = host.borrow().may(&words);
                        let may = may.ok_or_else(|| {
                            refused("Invalid command passed to redis.acl_check_cmd()")
                        })?;
                        one(Value::Boolean(may))
                    }),
                )
            })?;
            redis.raw_set("acl_check_cmd", raising(lua, &may)?)?;
            xpcall.call((function, &self.handler))
        })
    }

    /// Executes a command. Returns its reply, and whether that is an error.
    fn invoke(
        &self,
        lua: &Lua,
        args: &MultiValue,
        host: &RefCell<&mut dyn Host>,
        failed: &RefCell<Option<CommandError>>,
    ) -> Result<(Value, bool), Failure> {
        if self.control.tick(0) {
            return Err("the script was stopped".into());
        }
        let mut reply = Vec::new();
        match words(lua, args) {
            Err(Failure::Reply(text)) => reply = format!("-{text}\r\n").into_bytes(),
            Err(other) => return Err(other),
            Ok(words) => {
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                // ORDERING: Relaxed; as in `run`.
                let protocol = match self.resp3.load(Ordering::Relaxed) {
                    true => Protocol::Resp3,
                    false => Protocol::Resp2,
                };
                let memory = lua.used_memory();
                let called = host.borrow_mut().call(&words, protocol, memory, &mut reply);
                if let Err(e) = called {
                    self.control.stop(FAILED);
                    *failed.borrow_mut() = Some(e);
                    return Err("the script was stopped".into());
                }
            }
        }
        let value = from_reply(lua, &reply)?;
        let is_error = reply.starts_with(b"-");
        if let Value::Table(table) = &value
            && is_error
        {
            // Above this function is the one that raises, and above that the script.
            place(lua, table, 2)?;
        }
        Ok((value, is_error))
    }

    /// Returns the text of an error, with its place.
    fn text_of(&self, error: &Value, sha: &str) -> String {
        let Value::Table(table) = error else {
            let text = error.to_string().unwrap_or_default();
            return format!("ERR {text} script: {sha}");
        };
        let text = error_of(table).ok().flatten();
        let text = text.unwrap_or_else(|| b"ERR unknown error".to_vec());
        let text = String::from_utf8_lossy(&text)
            .trim_end_matches(['\r', '\n'])
            .to_owned();
        let source: Option<String> = table.raw_get("source").ok();
        let line: Option<i64> = table.raw_get("line").ok();
        match (source, line) {
            (Some(source), Some(line)) => format!("{text} script: {sha}, on {source}:{line}."),
            _ => format!("{text} script: {sha}"),
        }
    }
}

/// Returns the words of a command.
fn words(lua: &Lua, args: &MultiValue) -> Result<Vec<Vec<u8>>, Failure> {
    let len = |value: &Value| match value {
        Value::String(bytes) => bytes.as_bytes().len(),
        _ => 0,
    };
    room(lua, args.iter().map(len).sum())?;
    if args.is_empty() {
        return Err(refused(
            "Please specify at least one argument for this redis lib call",
        ));
    }
    let word = |value: &Value| match value {
        Value::String(bytes) => Ok(bytes.as_bytes().to_vec()),
        Value::Integer(number) => Ok(double::text(*number as f64).into_bytes()),
        Value::Number(number) => Ok(double::text(*number).into_bytes()),
        _ => Err(refused(
            "Lua redis lib command arguments must be strings or integers",
        )),
    };
    args.iter().map(word).collect()
}

/// Notes in the table of an error where in the script it was raised: at the first function from
/// `level` on that is Lua's.
fn place(lua: &Lua, table: &Table, level: usize) -> mlua::Result<()> {
    for level in level..level + 5 {
        let found = lua.inspect_stack(level, |debug| {
            let source = debug.source().source.map(|source| source.into_owned());
            Some((source?, debug.current_line()?))
        });
        if let Some(Some((source, line))) = found {
            table.raw_set("source", source)?;
            table.raw_set("line", line)?;
            return Ok(());
        }
    }
    Ok(())
}

/// Returns any error as a table, with its place.
fn located(lua: &Lua, error: Value) -> mlua::Result<Value> {
    // Never the table itself: it may be one that others find, too.
    let table = lua.create_table()?;
    match error {
        Value::Table(given) => {
            let text: Value = given.raw_get("err")?;
            table.raw_set("err", text)?;
        }
        Value::Error(error) => table.raw_set("err", format!("ERR {}", cause(&error)))?,
        Value::String(text) => {
            table.raw_set("err", format!("ERR {}", text.to_string_lossy()))?;
        }
        other => table.raw_set("err", format!("ERR {}", other.to_string()?))?,
    }
    place(lua, &table, 1)?;
    Ok(Value::Table(table))
}

/// Returns the text of an error without the calls that led to it.
fn cause(error: &mlua::Error) -> String {
    match error {
        mlua::Error::CallbackError { cause: inner, .. } => cause(inner),
        mlua::Error::RuntimeError(text) | mlua::Error::MemoryError(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Returns a table with one field.
fn with(lua: &Lua, name: &str, text: &[u8]) -> Returned {
    let table = lua.create_table()?;
    table.raw_set(name, lua.create_string(text)?)?;
    one(Value::Table(table))
}

const WRONG: &str = "ERR wrong number or type of arguments";

/// Adds what `redis` has besides its calls.
fn add_functions(lua: &Lua, redis: &Table, resp3: &Arc<AtomicBool>) -> mlua::Result<()> {
    let add = |name: &str, f: Function| redis.raw_set(name, f);
    add(
        "status_reply",
        function(lua, |lua, args| match (args.len(), argument(&args, 0)) {
            (1, Value::String(text)) => with(lua, "ok", &text.as_bytes()),
            _ => with(lua, "err", WRONG.as_bytes()),
        })?,
    )?;
    add(
        "error_reply",
        function(lua, |lua, args| match (args.len(), argument(&args, 0)) {
            (1, Value::String(text)) => {
                let text = text.as_bytes();
                let text = text.strip_prefix(b"-").unwrap_or(&text);
                // The first of several words is the code.
                match text.contains(&b' ') {
                    true => with(lua, "err", text),
                    false => with(lua, "err", &[b"ERR ", text].concat()),
                }
            }
            _ => with(lua, "err", WRONG.as_bytes()),
        })?,
    )?;
    add(
        "sha1hex",
        function(lua, |lua, args| {
            if args.len() != 1 {
                return Err(refused("wrong number of arguments"));
            }
            let text = super::raise::string(lua, &args, 0, "sha1hex")?;
            one(Value::String(
                lua.create_string(super::cache::sha_of(&text))?,
            ))
        })?,
    )?;
    add("log", function(lua, log)?)?;
    let to = Arc::clone(resp3);
    add(
        "setresp",
        function(lua, move |_, args| {
            let version = match (args.len(), argument(&args, 0)) {
                (1, Value::Integer(version @ 2..=3)) => version,
                (1, _) => return Err(refused("RESP version must be 2 or 3.")),
                _ => return Err(refused("redis.setresp() requires one argument.")),
            };
            // ORDERING: Relaxed; one thread at a time uses the state.
            to.store(version == 3, Ordering::Relaxed);
            Ok(MultiValue::new())
        })?,
    )?;
    // A script is one commit: there is no choice of what is replicated.
    add("set_repl", function(lua, |_, _| Ok(MultiValue::new()))?)?;
    add(
        "replicate_commands",
        function(lua, |_, _| one(Value::Boolean(true)))?,
    )?;
    add(
        "breakpoint",
        function(lua, |_, _| one(Value::Boolean(false)))?,
    )?;
    add("debug", function(lua, |_, _| Ok(MultiValue::new()))?)?;
    for (name, value) in [
        ("LOG_DEBUG", 0),
        ("LOG_VERBOSE", 1),
        ("LOG_NOTICE", 2),
        ("LOG_WARNING", 3),
        ("REPL_NONE", 0),
        ("REPL_SLAVE", 1),
        ("REPL_REPLICA", 1),
        ("REPL_AOF", 2),
        ("REPL_ALL", 3),
    ] {
        redis.raw_set(name, value)?;
    }
    redis.raw_set("REDIS_VERSION", REDIS_VERSION)?;
    let parts = REDIS_VERSION
        .split('.')
        .map(|part| part.parse().unwrap_or(0));
    redis.raw_set(
        "REDIS_VERSION_NUM",
        parts.fold(0, |number: i64, part: i64| number << 8 | part),
    )
}

fn log(lua: &Lua, args: MultiValue) -> Returned {
    if args.len() < 2 {
        return Err(refused("redis.log() requires two arguments or more."));
    }
    let Value::Integer(level) = argument(&args, 0) else {
        return Err(refused("First argument must be a number (log level)."));
    };
    let mut parts = Vec::new();
    for value in args.iter().skip(1) {
        if let Some(text) = lua.coerce_string(value.clone())? {
            parts.push(text.to_string_lossy());
        }
    }
    // As long as lines of Redis's log may be.
    let text: String = parts.join(" ").chars().take(1024).collect();
    match level {
        0 => tracing::debug!(target: "script", "{text}"),
        1 | 2 => tracing::info!(target: "script", "{text}"),
        3 => tracing::warn!(target: "script", "{text}"),
        _ => return Err(refused("Invalid debug level.")),
    }
    Ok(MultiValue::new())
}
