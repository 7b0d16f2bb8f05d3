//! Memtables of RocksDB in persistent memory: the part in Rust, behind a C interface.
//!
//! The C++ part (`cpp/`) implements RocksDB's `MemTableRepFactory`, and opens databases whose
//! writes are durable without RocksDB's log, over the functions of [`ffi`].
//!
//! | module | holds |
//! | --- | --- |
//! | [`key`] | RocksDB's internal keys, as keys of an index |
//! | [`record`] | RocksDB's entries, as records of a pool |
//! | [`table`] | a memtable's index: LB+-Tree or divided skip list |
//! | [`session`] | a pool with the memtables of one database: generations, flushes, batches |
//! | [`word`] | words of its directory, with checks |
//! | [`memtable`] | one memtable |
//! | [`replay`] | what the last session wrote and no file has |
//! | [`error`] | faults, as RocksDB tells them |
//! | [`ffi`] | the C interface |

pub mod error;
pub mod ffi;
pub mod key;
pub mod memtable;
pub mod record;
pub mod replay;
pub mod session;
pub mod table;
pub mod word;
