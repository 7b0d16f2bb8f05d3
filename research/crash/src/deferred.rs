//! Deferred functions, such as freeing memory that no thread can see any more.

use crossbeam_epoch as epoch;

/// Runs the deferred functions whose epoch is over. Without this call, the time at which they run
/// would depend on earlier runs.
pub(crate) fn collect() {
    for _ in 0..4 {
        epoch::pin().flush();
    }
}
