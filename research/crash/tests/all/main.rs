//! The integration tests in one program with a module for each subject, so that shared code is
//! compiled and linked once. `cargo test -p bristlecone-crash --test all planted::` runs one
//! module.

mod after_recovery;
mod common;
mod concurrent;
mod crabtree;
mod create_over;
mod disk;
mod exhaustive;
mod fastfair;
mod kills;
mod lstree;
mod planted;
mod pmwcas_schedules;
mod references;
mod watchdog;
