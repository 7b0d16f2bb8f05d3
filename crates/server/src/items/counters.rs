//! Memcached's counters, which `stats` shows.

use crate::table::{add, value};
use std::sync::atomic::{AtomicU64, Ordering};

/// Declares the counters, with their names in `stats`.
macro_rules! counters {
    ($($(#[$about:meta])* $name:ident),* $(,)?) => {
        /// The counters. `stats reset` sets them to 0.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$about])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Returns their names and values.
            #[must_use]
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), value(&self.$name)),)*]
            }

            /// Sets all to 0.
            pub fn reset(&self) {
                // ORDERING: Relaxed; statistics.
                $(self.$name.store(0, Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// Keys of retrievals.
    cmd_get,
    /// Stores.
    cmd_set,
    /// Flushes.
    cmd_flush,
    /// Keys that were touched, or not found by that.
    cmd_touch,
    /// `me`
    cmd_meta,
    /// Keys that were there.
    get_hits,
    /// Keys that were not.
    get_misses,
    /// Items that were found expired.
    get_expired,
    /// Items that were found flushed.
    get_flushed,
    /// Deletions of keys that were not there.
    delete_misses,
    /// Deletions.
    delete_hits,
    /// Increments of keys that were not there.
    incr_misses,
    /// Increments.
    incr_hits,
    /// Decrements of keys that were not there.
    decr_misses,
    /// Decrements.
    decr_hits,
    /// `cas` on keys that were not there.
    cas_misses,
    /// `cas` on items that were unchanged.
    cas_hits,
    /// `cas` on items that had changed.
    cas_badval,
    /// Keys that were touched.
    touch_hits,
    /// Keys that were to be touched, and were not there.
    touch_misses,
    /// Items that were too large.
    store_too_large,
    /// Items that the pool had no room for.
    store_no_memory,
    /// Log-ins.
    auth_cmds,
    /// Log-ins that failed.
    auth_errors,
    /// Items stored.
    total_items,
    /// Items stored in the place of one that had expired or was flushed.
    reclaimed,
    /// Items evicted.
    evictions,
    /// Items evicted that nobody had read, as far as is known.
    evicted_unfetched,
}

impl Counters {
    /// Counts a decrement or an increment.
    pub(crate) fn count_delta(&self, adds: bool, found: bool) {
        let counter = match (adds, found) {
            (true, true) => &self.incr_hits,
            (true, false) => &self.incr_misses,
            (false, true) => &self.decr_hits,
            (false, false) => &self.decr_misses,
        };
        add(counter, 1);
    }

    /// Counts retrievals.
    pub(crate) fn count_gets(&self, hits: u64, misses: u64) {
        add(&self.cmd_get, hits + misses);
        add(&self.get_hits, hits);
        add(&self.get_misses, misses);
    }

    /// Counts a touch.
    pub(crate) fn count_touch(&self, found: bool) {
        add(&self.cmd_touch, 1);
        add(
            if found {
                &self.touch_hits
            } else {
                &self.touch_misses
            },
            1,
        );
    }

    /// Counts a deletion.
    pub(crate) fn count_delete(&self, found: bool) {
        add(
            if found {
                &self.delete_hits
            } else {
                &self.delete_misses
            },
            1,
        );
    }
}
