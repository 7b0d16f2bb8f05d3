//! A server that Redis and memcached clients can use, over a durable multi-version
//! [`Store`](bristlecone_store::Store).
//!
//! ```text
//! connection --bytes--> parser --arguments--> admission --> command, over a transaction --> reply
//!  serve, input           resp                 dispatch      commands, execute, data
//! ```
//!
//! The worker thread of a connection executes all commands that have come, one after the other, and
//! replies to them together once everything they wrote and read is durable. Commands that write
//! hold the locks of their keys meanwhile; commands that read take a snapshot and no lock. A
//! command that takes long is executed where no other connection waits for its thread.
//!
//! Each module uses only those below it:
//!
//! | module | holds |
//! | --- | --- |
//! | `listen`, `http` | starting, stopping, accepting connections; metrics, health and a status page over HTTP |
//! | `local` | commands without a connection, for programs that have the store open |
//! | `serve` | the loop of a connection: read, execute, settle, reply |
//! | `redis`, `memcached` | the two protocols in that loop |
//! | `dispatch`, `rights` | the path of a command: admission, execution, statistics |
//! | `commands` | all commands, by family: strings, hashes, ..., connection, admin |
//! | `caller` | the session and the server as scripts see them |
//! | `session` | the state of a connection, and commands that work on it |
//! | `server`, `committer` | what connections share; durability for many of them at once |
//! | `table`, `users`, `guesses`, `client`, `channels`, `slowlog` | the table of commands, users' rights, wrong passwords, clients, channels, slow commands |
//! | `rewrite` | files of settings and users that the server writes |
//! | `execute` | commands on data: locks, the transaction, its commit, waiting clients |
//! | `command` | declarations of commands |
//! | `conversation`, `input` | what a protocol does in the loop; the bytes that a connection has read |
//! | `items` | the items of memcached clients: their keyspace, what is done with them, eviction |
//! | `script` | Lua scripts: their texts, their states, what they find there |
//! | `data` | databases: keyspaces, values, [transactions](data::tx::Tx) |
//! | `config`, `tls`, `log`, `memory` | settings, TLS, logs, amounts of memory |
//! | `reply`, `resp`, `budget` | replies, requests, the memory that clients hold |
//! | `parse`, `error` | arguments; errors of commands |

pub mod budget;
mod caller;
pub mod channels;
pub mod client;
pub mod command;
pub mod commands;
pub mod committer;
pub mod config;
mod conversation;
mod current;
pub mod data;
mod dispatch;
pub mod error;
pub mod execute;
#[cfg(test)]
mod fixture;
pub mod guesses;
mod help;
mod http;
mod input;
pub mod items;
mod listen;
mod local;
pub mod log;
mod memcached;
pub mod memory;
pub mod parse;
mod redis;
pub mod reply;
pub mod resp;
mod rewrite;
mod rights;
mod script;
mod serve;
pub mod server;
pub mod session;
pub mod slowlog;
pub mod table;
mod tls;
mod upkeep;
pub mod users;

pub use listen::{Running, Signals, StartError, raise_open_files};
pub use local::Local;
