//! All tests of the store in one program, since each program compiles the indexes again.

mod backup;
mod batches;
mod closing;
mod clustered;
mod common;
mod cost;
mod deferring;
mod dropping;
mod emptying;
mod failing;
mod flips;
mod following;
mod formats;
mod full;
mod handles;
mod histories;
mod isolation;
mod journal;
mod pages;
mod renaming;
mod salvage;
mod scrubbing;
mod single;
mod streams;
mod transactions;
mod watching;
