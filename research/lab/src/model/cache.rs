//! A set-associative cache of 64-byte lines that evicts the least recently used one.
//!
//! It tracks which lines it holds and which of them are dirty, but neither contents nor time. Lines
//! are numbered (address / 64), and a line's set is its number modulo the number of sets.

/// See the module's head.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    sets: u64,
    ways: usize,
    /// The ways of each set, most recently used first: `line << 1 | dirty`, or [`EMPTY`].
    entries: Vec<u64>,
}

const EMPTY: u64 = u64::MAX;
const DIRTY: u64 = 1;

/// An evicted line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub line: u64,
    pub dirty: bool,
}

impl Cache {
    /// Returns an empty cache of `bytes`, a multiple of 64 x `ways`.
    pub(crate) fn new(bytes: u64, ways: u64) -> Self {
        let sets = bytes / (64 * ways);
        Self {
            sets,
            ways: ways as usize,
            entries: vec![EMPTY; (sets * ways) as usize],
        }
    }

    /// Drops every line.
    pub(crate) fn clear(&mut self) {
        self.entries.fill(EMPTY);
    }

    #[inline]
    fn set(&mut self, line: u64) -> &mut [u64] {
        let set = if self.sets.is_power_of_two() {
            line & (self.sets - 1)
        } else {
            line % self.sets
        };
        let at = set as usize * self.ways;
        &mut self.entries[at..at + self.ways]
    }

    /// Uses a line, and makes it dirty if `write`. Returns false if it is not cached.
    #[inline]
    pub(crate) fn touch(&mut self, line: u64, write: bool) -> bool {
        let set = self.set(line);
        let Some(at) = set.iter().position(|entry| entry >> 1 == line) else {
            return false;
        };
        let entry = set[at] | if write { DIRTY } else { 0 };
        set.copy_within(..at, 1);
        set[0] = entry;
        true
    }

    /// Returns whether a cached line is dirty; `None` if it is not cached.
    #[inline]
    pub(crate) fn state(&mut self, line: u64) -> Option<bool> {
        let set = self.set(line);
        let entry = set.iter().find(|entry| **entry >> 1 == line)?;
        Some(entry & DIRTY != 0)
    }

    /// Inserts a line as the most recently used one, and returns the evicted line. A line that is
    /// cached and dirty stays dirty.
    #[inline]
    pub(crate) fn insert(&mut self, line: u64, dirty: bool) -> Option<Victim> {
        if self.touch(line, dirty) {
            return None;
        }
        let ways = self.ways;
        let set = self.set(line);
        let last = set[ways - 1];
        set.copy_within(..ways - 1, 1);
        set[0] = line << 1 | u64::from(dirty);
        (last != EMPTY).then_some(Victim {
            line: last >> 1,
            dirty: last & DIRTY != 0,
        })
    }

    /// Removes a line. Returns whether it was dirty; `None` if it was not cached.
    #[inline]
    pub(crate) fn remove(&mut self, line: u64) -> Option<bool> {
        let set = self.set(line);
        let at = set.iter().position(|entry| entry >> 1 == line)?;
        let dirty = set[at] & DIRTY != 0;
        set.copy_within(at + 1.., at);
        if let Some(last) = set.last_mut() {
            *last = EMPTY;
        }
        Some(dirty)
    }

    /// Makes a line clean. Returns whether it was dirty; `None` if it is not cached.
    #[inline]
    pub(crate) fn clean(&mut self, line: u64) -> Option<bool> {
        let set = self.set(line);
        let entry = set.iter_mut().find(|entry| **entry >> 1 == line)?;
        let dirty = *entry & DIRTY != 0;
        *entry &= !DIRTY;
        Some(dirty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_fits_and_evicts_the_least_recently_used() {
        // 4 sets of 2 ways.
        let mut cache = Cache::new(512, 2);
        for line in 0..8 {
            assert_eq!(cache.insert(line, false), None, "{line}");
        }
        assert!((0..8).all(|line| cache.state(line) == Some(false)));
        // Set 1 holds lines 1 and 5. Line 1 is used again, so line 5 is evicted.
        assert!(cache.touch(1, false));
        let gone = Victim {
            line: 5,
            dirty: false,
        };
        assert_eq!(cache.insert(9, false), Some(gone));
        assert_eq!(cache.state(5), None);
        assert_eq!(cache.state(1), Some(false));
        assert!(!cache.touch(5, true), "a miss brings nothing in");
        assert_eq!(cache.state(5), None);
    }

    #[test]
    fn remembers_which_lines_are_dirty() {
        let mut cache = Cache::new(512, 2);
        cache.insert(3, false);
        assert!(cache.touch(3, true));
        assert_eq!(cache.insert(3, false), None, "it is here");
        assert_eq!(cache.state(3), Some(true), "and stays dirty");
        cache.insert(7, false);
        let gone = Victim {
            line: 3,
            dirty: true,
        };
        assert_eq!(cache.insert(11, true), Some(gone));
        assert_eq!(cache.clean(11), Some(true));
        assert_eq!(cache.clean(11), Some(false));
        assert_eq!(cache.remove(11), Some(false));
        assert_eq!(cache.remove(11), None);
        // Its way is free again.
        assert_eq!(cache.insert(15, false), None);
        assert_eq!(cache.state(7), Some(false));
    }

    #[test]
    fn a_set_count_that_is_no_power_of_two_uses_all_sets() {
        let mut cache = Cache::new(3 * 64 * 2, 2);
        assert!((0..6).all(|line| cache.insert(line, false).is_none()));
        assert_eq!(cache.insert(6, false).map(|v| v.line), Some(0));
    }

    /// A loop over as many lines as the cache holds always hits in the second round; with one line
    /// more a set, it never does.
    #[test]
    fn capacity_is_where_a_loop_falls_off() {
        let mut cache = Cache::new(32 << 10, 8);
        let run = |cache: &mut Cache, lines: u64| {
            let mut hits = 0;
            for _ in 0..2 {
                hits = 0;
                for line in 0..lines {
                    if cache.touch(line, false) {
                        hits += 1;
                    } else {
                        cache.insert(line, false);
                    }
                }
            }
            hits
        };
        assert_eq!(run(&mut cache, 512), 512);
        assert_eq!(run(&mut cache, 576), 0, "nine lines a set of eight");
    }
}
