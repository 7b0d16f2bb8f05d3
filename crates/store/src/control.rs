//! Control of an engine's background thread: stopping it, pausing it, and the errors it reports.

use crate::error::WriteError;
use bristlecone_pmem::sync::lock;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// See the module's head.
#[derive(Debug, Default)]
pub struct Control {
    /// The error of the thread's last step, or damage that an earlier one found.
    failed: Mutex<Option<WriteError>>,
    stop: Mutex<bool>,
    told: Condvar,
    /// Held by the thread while it changes anything.
    at_work: Mutex<()>,
}

impl Control {
    /// Tells the thread to end.
    pub fn stop(&self) {
        *lock(&self.stop) = true;
        self.told.notify_all();
    }

    /// Keeps the thread from changing anything while the guard is held. Waits for the step that it
    /// is at.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        lock(&self.at_work)
    }

    /// Notes the outcome of a step, for whoever closes the store. A later success does not clear
    /// damage.
    pub fn note(&self, failure: Option<WriteError>) {
        let mut failed = lock(&self.failed);
        if !matches!(*failed, Some(WriteError::Damaged(_))) {
            *failed = failure;
        }
    }

    /// Returns the thread's error and forgets it.
    pub fn take_failure(&self) -> Option<WriteError> {
        lock(&self.failed).take()
    }

    /// Waits; returns whether the thread is to end.
    pub fn wait_or_stop(&self, interval: Duration) -> bool {
        let stop = lock(&self.stop);
        if *stop {
            return true;
        }
        let told = self.told.wait_timeout(stop, interval);
        *told.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns whether the thread is to end.
    pub fn is_stopped(&self) -> bool {
        *lock(&self.stop)
    }
}
