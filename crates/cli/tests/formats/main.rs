//! Tests of formats and their versions. They open databases in this process, whose locks a child of
//! another test would have between its fork and its exec: so they are a program of their own, and
//! run one after the other.

#![allow(missing_docs)]

#[allow(dead_code, unused_imports)] // The other tests of the command use all of it.
#[path = "../all/common/mod.rs"]
mod common;

mod fixtures;
mod upgrade;
mod versions;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for the tests before this one.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}
