//! All tests of NV-Store in one program, since each program compiles the indexes again.
//!
//! Most are the scenarios of `crates/store/tests`, which run on the clustered tree there and on
//! NV-Store over an LB+-Tree and an NV-Tree here (`formats.rs`).

#[path = "../../../../crates/store/tests/all/backup.rs"]
mod backup;
#[path = "../../../../crates/store/tests/all/batches.rs"]
mod batches;
#[path = "../../../../crates/store/tests/all/closing.rs"]
mod closing;
#[path = "../../../../crates/store/tests/all/common/mod.rs"]
mod common;
#[path = "../../../../crates/store/tests/all/deferring.rs"]
mod deferring;
#[path = "../../../../crates/store/tests/all/dropping.rs"]
mod dropping;
#[path = "../../../../crates/store/tests/all/failing.rs"]
mod failing;
#[path = "../../../../crates/store/tests/all/following.rs"]
mod following;
#[path = "../../../../crates/store/tests/all/full.rs"]
mod full;
#[path = "../../../../crates/store/tests/all/handles.rs"]
mod handles;
#[path = "../../../../crates/store/tests/all/histories/mod.rs"]
mod histories;
#[path = "../../../../crates/store/tests/all/isolation.rs"]
mod isolation;
#[path = "../../../../crates/store/tests/all/journal.rs"]
mod journal;
#[path = "../../../../crates/store/tests/all/renaming.rs"]
mod renaming;
#[path = "../../../../crates/store/tests/all/salvage.rs"]
mod salvage;
#[path = "../../../../crates/store/tests/all/single.rs"]
mod single;
#[path = "../../../../crates/store/tests/all/streams.rs"]
mod streams;
#[path = "../../../../crates/store/tests/all/transactions.rs"]
mod transactions;
#[path = "../../../../crates/store/tests/all/watching.rs"]
mod watching;

mod cost;
mod damage;
mod designs;
mod flipped;
mod formats;
mod formats_meet;
mod misled;
mod places;
mod recovery;
