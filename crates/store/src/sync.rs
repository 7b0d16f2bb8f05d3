//! Waiting for other threads.

use bristlecone_pmem::sync::give_way;
use crossbeam_utils::Backoff;
use std::time::Duration;

/// How long a waiting thread sleeps once spinning was of no use.
const NAP: Duration = Duration::from_micros(30);

/// Waits a little: one turn of a loop that waits for another thread.
pub fn wait(backoff: &Backoff) {
    if give_way() {
        return;
    }
    if backoff.is_completed() {
        std::thread::sleep(NAP);
    } else {
        backoff.snooze();
    }
}
