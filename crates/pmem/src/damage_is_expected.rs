//! For tests that write to damaged pools. There a structure may own a block twice and so free it
//! twice, or split two leaves at the same key, which is tolerated. Everywhere else that is a bug,
//! at which debug builds stop.

use std::cell::Cell;

thread_local! {
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// Tolerates such damage from now on, in this thread.
pub fn here() {
    ASKED.set(true);
}

/// Returns true if this thread has called [`here`].
pub fn asked() -> bool {
    ASKED.get()
}
