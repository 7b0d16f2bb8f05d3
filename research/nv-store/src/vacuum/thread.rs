//! The background thread of the vacuum.

use super::{VERSIONS_PER_STEP, Vacuum};
use bristlecone_pmem::Media;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

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
                    if done || vacuum.control.is_stopped() {
                        break;
                    }
                    std::thread::yield_now();
                }
            }
        })
}
