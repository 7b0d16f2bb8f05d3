//! What is deferred until no thread can see it any more, such as giving memory back.

use crossbeam_epoch as epoch;

/// Runs what was deferred until no one can see it any more. Without this, it would depend on earlier
/// runs when that happens.
pub(crate) fn collect() {
    for _ in 0..4 {
        epoch::pin().flush();
    }
}
