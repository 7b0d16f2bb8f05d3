//! A server that Redis clients can use, over a durable multi-version [`Store`](bristlecone_store::Store).
//!
//! ```text
//! connection --bytes--> parser --arguments--> command table --> command, over a Tx --> reply bytes
//!                                                                  |
//!                                                           deferring store
//! ```
//!
//! A connection executes all commands that its buffer has, one after the other, on the worker thread that serves it, and
//! answers them together once what they wrote and read is durable. Commands that write hold the lock stripes of their
//! keys meanwhile; those that read take a snapshot and no lock.
//!
//! | module | holds |
//! | --- | --- |
//! | `resp` | requests: the incremental parser |
//! | `reply` | replies in RESP2 and RESP3 |
//! | `command` | commands on data, as the table has them |
//! | `table` | the table of all commands |
//! | `server`, `listen` | what connections share; starting, stopping, listening |
//! | `local` | commands without a connection |
//! | `connection` | a connection's loop: read, execute, settle, answer |
//! | `session` | commands on connections and the server: `HELLO`, `MULTI`, `CONFIG`, `INFO` ... |
//! | `committer` | durability for many connections at once |
//! | `budget` | the memory that clients hold, and its limit |
//! | `client`, `users`, `pubsub`, `slowlog` | clients, users' rights, channels, slow commands |
//! | `config`, `tls`, `metrics`, `log` | settings, TLS, metrics over HTTP, logs |
//! | `data` | databases, locks of keys, [`Tx`](data::Tx), and the commands on data |

pub mod budget;
pub mod client;
pub mod command;
pub mod committer;
pub mod config;
mod connection;
pub mod data;
mod listen;
mod local;
pub mod log;
mod metrics;
pub mod pubsub;
pub mod reply;
pub mod resp;
pub mod server;
pub mod session;
pub mod slowlog;
pub mod table;
mod tls;
pub mod users;

pub use listen::{Running, StartError, raise_open_files};
pub use local::Local;
