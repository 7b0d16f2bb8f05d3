//! Tests of the command: one program, since each would be linked by itself.

#![allow(missing_docs)]

mod common;

mod archive;
mod bad_input;
mod bench;
mod damage;
mod demo;
mod files;
mod help;
mod leftovers;
mod memory_limit;
mod records;
mod restore;
mod salvage;
mod scan;
mod serve;
mod soak;
mod stores;
mod top;
mod torture;
mod upkeep;
