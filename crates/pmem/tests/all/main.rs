//! Tests of the crate from outside: one program, since each would be linked by itself. Beside it is
//! what has to be alone in its process, and what AddressSanitizer runs.

#![allow(missing_docs)]

mod hostile_closing;
mod hostile_reopening;
mod journal_commit;
mod journal_damage;
mod journal_direct;
mod journal_evict;
mod journal_fault_disk;
mod journal_file;
mod journal_power_cuts;
mod journal_rates;
mod journal_recovery;
mod journal_shape;
mod journal_support;
mod journal_waiting;
mod pool;
mod pool_backup;
mod pool_blocks;
mod pool_check;
mod pool_limits;
mod pool_open;
mod pool_roots;
mod pool_space;
mod pool_support;
mod regression_space;
mod salvage;
