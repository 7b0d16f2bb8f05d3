//! For tests that write to damaged pools. There a structure may own a block twice and so free it
//! twice, or split two leaves at the same key, which is tolerated; everywhere else that is a bug
//! that debug builds stop at.

use std::cell::Cell;

thread_local! {
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// From now on, by this thread.
pub fn here() {
    ASKED.set(true);
}

/// Returns whether this thread has called [`here`].
pub fn asked() -> bool {
    ASKED.get()
}
