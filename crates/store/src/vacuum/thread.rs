//! The background thread of the vacuum.

use super::{VERSIONS_PER_STEP, Vacuum};
use crate::error::WriteError;
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The thread's orders and reports.
#[derive(Debug, Default)]
pub(crate) struct Control {
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
    fn note(&self, failure: Option<WriteError>) {
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
    fn wait_or_stop(&self, interval: Duration) -> bool {
        let stop = lock(&self.stop);
        if *stop {
            return true;
        }
        let told = self.told.wait_timeout(stop, interval);
        *told.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Starts a thread that vacuums every `interval` until it is told to stop.
///
/// # Errors
/// The system refused a thread.
pub(crate) fn spawn<M: Media>(
    vacuum: &Arc<Vacuum<M>>,
    interval: Duration,
) -> std::io::Result<JoinHandle<()>> {
    let vacuum = Arc::clone(vacuum);
    std::thread::Builder::new()
        .name("store-vacuum".into())
        .spawn(move || {
            // Garbage of the last interval is left to writers, which free it at less
            // cost.
            let mut due = vacuum.horizon();
            while !vacuum.control.wait_or_stop(interval) {
                let horizon = std::mem::replace(&mut due, vacuum.horizon());
                loop {
                    let at_work = vacuum.control.hold();
                    let step = vacuum.step_to(horizon, VERSIONS_PER_STEP);
                    drop(at_work);
                    let done = step.as_ref().map_or(true, |report| report.complete);
                    vacuum.control.note(step.err());
                    if done || *lock(&vacuum.control.stop) {
                        break;
                    }
                    std::thread::yield_now();
                }
            }
        })
}
