//! Lua scripts: `EVAL` and its relatives.
//!
//! ```text
//! EVAL --> Scripts: the text, by SHA-1 --> Engine: a Lua state of its own --> Host: redis.call
//!                                          sandbox, libraries             (commands::scripting)
//! ```
//!
//! This module knows Lua and replies, and nothing of commands or data. A script runs on the thread
//! of its caller, in a Lua state that nobody else uses meanwhile; afterwards the state serves
//! others.
//!
//! | module | holds |
//! | --- | --- |
//! | `engine` | running a script: its calls, its error, stopping it |
//! | `cache` | the texts of scripts, states that are free, scripts that are running |
//! | `sandbox` | what scripts find: libraries and globals that none can change |
//! | `replies` | replies as Lua values and the other way round |
//! | `json`, `msgpack`, `structs`, `bits` | the libraries `cjson`, `cmsgpack`, `struct`, `bit` |
//! | `native` | functions that Lua calls directly: stopping a script, `unpack`, bounds of others |
//! | `raise` | functions in Rust that raise errors of Lua |

mod bits;
mod cache;
mod engine;
mod json;
mod msgpack;
mod native;
mod raise;
pub(crate) mod replies;
mod sandbox;
mod structs;
#[cfg(test)]
mod tests;

/// The most memory in bytes that a state may take.
const MAX_MEMORY: usize = 256 << 20;

pub(crate) use cache::{Script, Scripts, Sha};
pub(crate) use engine::{Control, Engine, Host};
