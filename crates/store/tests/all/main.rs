//! All tests of the store in one program, since each program compiles the indexes again.

mod backup;
mod batches;
mod closing;
mod clustered;
mod common;
mod cost;
mod damage;
mod deferring;
mod dropping;
mod failing;
mod flipped;
mod following;
mod full;
mod handles;
mod histories;
mod isolation;
mod journal;
mod misled;
mod pages;
mod recovery;
mod renaming;
mod salvage;
mod single;
mod transactions;
mod watching;
