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
//! | `reply` | replies in RESP2 and RESP3 |
//! | `command` | the table of commands |
//! | `data` | databases, locks of keys, [`Tx`](data::Tx), and the commands on data |

pub mod command;
pub mod data;
pub mod reply;
