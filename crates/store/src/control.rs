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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Damage;
    use std::sync::Arc;

    #[test]
    fn the_last_failure_is_told_once_and_damage_stays() {
        let control = Control::default();
        assert!(control.take_failure().is_none());
        control.note(Some(WriteError::ReadOnly));
        control.note(None);
        assert!(control.take_failure().is_none());
        control.note(Some(WriteError::ReadOnly));
        control.note(Some(Damage::new("torn").into()));
        control.note(None);
        control.note(Some(WriteError::ReadOnly));
        let e = control.take_failure().unwrap();
        assert!(matches!(e, WriteError::Damaged(_)), "{e}");
        assert!(control.take_failure().is_none());
        control.note(Some(WriteError::ReadOnly));
        assert!(control.take_failure().is_some());
    }

    #[test]
    fn whoever_waits_is_told_to_end() {
        let control = Arc::new(Control::default());
        assert!(!control.is_stopped() && !control.wait_or_stop(Duration::ZERO));
        let waits = Arc::clone(&control);
        let long = Duration::from_secs(600);
        let thread = std::thread::spawn(move || waits.wait_or_stop(long));
        control.stop();
        assert!(thread.join().unwrap());
        assert!(control.is_stopped() && control.wait_or_stop(long));
    }
}
