//! The texts of scripts, by their SHA-1; Lua states that are free; scripts that are running.

use super::{Control, Engine};
use crate::error::CommandError;
use lru::LruCache;
use sha1::{Digest, Sha1};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many scripts of `EVAL` are kept. Those of `SCRIPT LOAD` stay.
const KEPT: usize = 500;
/// The most bytes that their texts may have together.
const MAX_KEPT: usize = if cfg!(test) { 1 << 20 } else { 32 << 20 };
/// Approximate memory of a script besides its text, in bytes.
const OVERHEAD: usize = 256;
/// The most scripts that may run at a time where others do not wait for them: each has a thread.
const MAX_RUNNING: usize = 64;
/// The most bytes that the texts of `SCRIPT LOAD` may have together.
const MAX_LOADED: usize = if cfg!(test) { 1 << 10 } else { 64 << 20 };
/// The most states that are kept for later.
const MAX_FREE: usize = 32;

/// The SHA-1 of a script, in hex.
pub(crate) type Sha = [u8; 40];

/// A script.
#[derive(Debug)]
pub(crate) struct Script {
    /// Its SHA-1.
    pub sha: Sha,
    /// Its text, without the line that names the language.
    pub text: Vec<u8>,
    /// It says that it does not write.
    pub no_writes: bool,
}

/// Returns the SHA-1 of a text, in hex.
pub(crate) fn sha_of(text: &[u8]) -> Sha {
    let mut hex = [0; 40];
    for (two, byte) in hex
        .as_chunks_mut::<2>()
        .0
        .iter_mut()
        .zip(Sha1::digest(text))
    {
        let digit = |half: u8| char::from_digit(u32::from(half), 16).map_or(b'0', |c| c as u8);
        *two = [digit(byte >> 4), digit(byte & 15)];
    }
    hex
}

impl Script {
    /// Returns the script with that text.
    ///
    /// # Errors
    /// Its first line names another language, or options that there are not.
    pub(crate) fn new(text: &[u8]) -> Result<Self, CommandError> {
        Self::named(sha_of(text), text)
    }

    /// As [`new`](Self::new), of a text that has that SHA-1.
    fn named(sha: Sha, text: &[u8]) -> Result<Self, CommandError> {
        let mut no_writes = false;
        let mut body = text;
        if let Some(rest) = text.strip_prefix(b"#!") {
            let end = rest.iter().position(|byte| *byte == b'\n');
            let end = end.ok_or_else(|| CommandError::reply("ERR Invalid script shebang"))?;
            let line = String::from_utf8_lossy(&rest[..end]);
            let mut words = line.split_ascii_whitespace();
            let engine = words.next().unwrap_or_default();
            if engine != "lua" {
                return Err(CommandError::reply(format!(
                    "ERR Unexpected engine in script shebang: #!{engine}"
                )));
            }
            for word in words {
                let Some(flags) = word.strip_prefix("flags=") else {
                    return Err(CommandError::reply(format!(
                        "ERR Unknown lua shebang option: {word}"
                    )));
                };
                for flag in flags.split(',').filter(|flag| !flag.is_empty()) {
                    match flag {
                        "no-writes" => no_writes = true,
                        // They lift limits that there are not.
                        "allow-oom" | "allow-stale" | "no-cluster" | "allow-cross-slot-keys" => {}
                        _ => {
                            return Err(CommandError::reply(format!(
                                "ERR Unexpected flag in script shebang: {flag}"
                            )));
                        }
                    }
                }
            }
            // The line stays as an empty one, so that the others keep their numbers.
            body = &rest[end..];
        }
        Ok(Self {
            sha,
            text: body.to_vec(),
            no_writes,
        })
    }

    fn bytes(&self) -> usize {
        self.text.len() + OVERHEAD
    }
}

#[derive(Debug)]
struct Texts {
    of_eval: LruCache<Sha, Arc<Script>>,
    kept_bytes: usize,
    loaded: HashMap<Sha, Arc<Script>>,
    loaded_bytes: usize,
}

/// All scripts that the server knows, and what runs them.
#[derive(Debug)]
pub(crate) struct Scripts {
    texts: Mutex<Texts>,
    free: Mutex<Vec<Engine>>,
    running: Mutex<Vec<Arc<Control>>>,
    /// How often all were forgotten: compiled scripts of before are of no use.
    flushes: AtomicU64,
    /// No script may begin.
    stopping: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Scripts {
    fn default() -> Self {
        Self {
            texts: Mutex::new(Texts {
                of_eval: LruCache::unbounded(),
                kept_bytes: 0,
                loaded: HashMap::new(),
                loaded_bytes: 0,
            }),
            free: Mutex::default(),
            running: Mutex::default(),
            flushes: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
        }
    }
}

impl Scripts {
    /// Returns the script with that text, and keeps it for `EVALSHA`.
    ///
    /// # Errors
    /// [`CommandError::Reply`]: its first line says what there is not.
    pub(crate) fn of_text(&self, text: &[u8]) -> Result<Arc<Script>, CommandError> {
        let sha = sha_of(text);
        if let Some(known) = self.find(&sha) {
            return Ok(known);
        }
        let script = Arc::new(Script::named(sha, text)?);
        let mut texts = lock(&self.texts);
        texts.kept_bytes += script.bytes();
        if let Some(before) = texts.of_eval.put(sha, Arc::clone(&script)) {
            texts.kept_bytes -= before.bytes();
        }
        while texts.of_eval.len() > KEPT || texts.kept_bytes > MAX_KEPT {
            let Some((_, oldest)) = texts.of_eval.pop_lru() else {
                break;
            };
            texts.kept_bytes -= oldest.bytes();
        }
        drop(texts);
        Ok(script)
    }

    /// Keeps a script until all are forgotten.
    ///
    /// # Errors
    /// Those that are kept take too much memory.
    pub(crate) fn load(&self, script: Script) -> Result<Arc<Script>, CommandError> {
        let mut texts = lock(&self.texts);
        if let Some(known) = texts.loaded.get(&script.sha) {
            return Ok(Arc::clone(known));
        }
        let script = Arc::new(script);
        if texts.loaded_bytes + script.bytes() > MAX_LOADED {
            return Err(CommandError::reply(format!(
                "ERR the scripts of SCRIPT LOAD take more than {MAX_LOADED} bytes together; SCRIPT FLUSH forgets them"
            )));
        }
        texts.loaded_bytes += script.bytes();
        texts.loaded.insert(script.sha, Arc::clone(&script));
        Ok(script)
    }

    /// Returns the script with that SHA-1.
    pub(crate) fn find(&self, sha: &Sha) -> Option<Arc<Script>> {
        let mut texts = lock(&self.texts);
        if let Some(script) = texts.of_eval.get(sha) {
            return Some(Arc::clone(script));
        }
        texts.loaded.get(sha).cloned()
    }

    /// Forgets all scripts.
    pub(crate) fn flush(&self) {
        let mut texts = lock(&self.texts);
        texts.of_eval.clear();
        texts.kept_bytes = 0;
        texts.loaded.clear();
        texts.loaded_bytes = 0;
        // ORDERING: Relaxed; an engine that misses it has compiled scripts that nobody names.
        self.flushes.fetch_add(1, Ordering::Relaxed);
        lock(&self.free).clear();
    }

    /// Calls `f` with a Lua state of its own. `SCRIPT KILL` stops what it runs. `short`: others
    /// wait for the thread.
    ///
    /// # Errors
    /// [`CommandError::Reply`]: there is no memory for a state, too many scripts are running, or
    /// the server stops.
    pub(crate) fn with_engine<R>(
        &self,
        short: bool,
        f: impl FnOnce(&mut Engine) -> R,
    ) -> Result<R, CommandError> {
        // ORDERING: Relaxed; as in `flush`.
        let flushes = self.flushes.load(Ordering::Relaxed);
        let free = lock(&self.free).pop();
        let mut engine = match free {
            Some(engine) => engine,
            None => Engine::new()
                .map_err(|e| CommandError::reply(format!("ERR a Lua state cannot be made: {e}")))?,
        };
        let running = Running::enter(self, engine.control(), short)?;
        let done = f(&mut engine);
        drop(running);
        // ORDERING: Relaxed; as in `flush`.
        if engine.is_reusable() && flushes == self.flushes.load(Ordering::Relaxed) {
            let mut free = lock(&self.free);
            if free.len() < MAX_FREE {
                free.push(engine);
            }
        }
        Ok(done)
    }

    /// Stops all scripts that are running. Returns how many.
    pub(crate) fn kill(&self) -> usize {
        let running = lock(&self.running);
        running.iter().for_each(|control| control.kill());
        running.len()
    }

    /// Stops all scripts, and lets no other begin.
    pub(crate) fn stop(&self) {
        // ORDERING: Relaxed; `kill` takes the lock of the running ones next, so whoever enters
        // later sees it, and whoever entered before is stopped.
        self.stopping.store(true, Ordering::Relaxed);
        self.kill();
    }

    /// Returns how many scripts are kept, and the bytes of their texts.
    pub(crate) fn kept(&self) -> (usize, usize) {
        let texts = lock(&self.texts);
        let of_eval = texts.of_eval.iter().map(|(_, script)| script);
        let of_eval = of_eval.filter(|script| !texts.loaded.contains_key(&script.sha));
        let all = of_eval.chain(texts.loaded.values());
        all.fold((0, 0), |(n, bytes), script| {
            (n + 1, bytes + script.text.len())
        })
    }
}

/// A script that is running, until this is dropped.
struct Running<'s> {
    scripts: &'s Scripts,
    control: Arc<Control>,
}

impl<'s> Running<'s> {
    fn enter(
        scripts: &'s Scripts,
        control: &Arc<Control>,
        short: bool,
    ) -> Result<Self, CommandError> {
        let mut running = lock(&scripts.running);
        // ORDERING: Relaxed; as in `stop`.
        if scripts.stopping.load(Ordering::Relaxed) {
            return Err(CommandError::reply("ERR the server is stopping"));
        }
        if !short && running.len() >= MAX_RUNNING {
            return Err(CommandError::reply(format!(
                "BUSY {MAX_RUNNING} scripts are running. SCRIPT KILL stops them."
            )));
        }
        // A stop that was meant for the previous script must not reach this one.
        control.begin();
        running.push(Arc::clone(control));
        Ok(Self {
            scripts,
            control: Arc::clone(control),
        })
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.scripts.running).retain(|control| !Arc::ptr_eq(control, &self.control));
    }
}
