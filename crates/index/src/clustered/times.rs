//! The times at which somebody reads.

use std::ops::RangeInclusive;

/// How many read at each time, in order. Mostly there are few, and the newest comes and goes: a row
/// of them takes no memory then.
#[derive(Debug, Default)]
pub(super) struct Times(Vec<(u64, usize)>);

/// The readers that are left when one of them ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Others read at that time.
    Others,
    /// Nobody reads at that time now.
    Time,
    /// Nor at an earlier one.
    Oldest,
}

impl Times {
    /// One more reads at `time`.
    pub(super) fn add(&mut self, time: u64) {
        match self.find(time) {
            Ok(at) => self.0[at].1 += 1,
            Err(at) => self.0.insert(at, (time, 1)),
        }
    }

    /// One less reads at `time`. Returns what that leaves.
    pub(super) fn remove(&mut self, time: u64) -> Left {
        let Ok(at) = self.find(time) else {
            return Left::Others;
        };
        self.0[at].1 -= 1;
        if self.0[at].1 > 0 {
            return Left::Others;
        }
        self.0.remove(at);
        if at == 0 { Left::Oldest } else { Left::Time }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether somebody reads at a time of that range.
    pub(super) fn any_in(&self, range: RangeInclusive<u64>) -> bool {
        let at = self.0.partition_point(|(time, _)| time < range.start());
        self.0.get(at).is_some_and(|(time, _)| range.contains(time))
    }

    /// The newest.
    pub(super) fn newest(&self) -> Option<u64> {
        self.0.last().map(|(time, _)| *time)
    }

    /// All times, oldest first, and how many read at each.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, usize)> + Clone {
        self.0.iter().copied()
    }

    fn find(&self, time: u64) -> Result<usize, usize> {
        self.0.binary_search_by_key(&time, |(time, _)| *time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_in_order() {
        let mut times = Times::default();
        assert!(times.is_empty() && times.newest().is_none());
        for time in [5, 9, 7, 9, 5, 9] {
            times.add(time);
        }
        assert_eq!(times.iter().collect::<Vec<_>>(), [(5, 2), (7, 1), (9, 3)]);
        assert_eq!(times.newest(), Some(9));
        assert!(times.any_in(5..=5) && times.any_in(8..=20) && times.any_in(0..=u64::MAX));
        assert!(!times.any_in(0..=4) && !times.any_in(6..=6) && !times.any_in(10..=u64::MAX));
        let (later, earlier) = (9, 7);
        assert!(!times.any_in(later..=earlier), "an empty range has none");
        assert_eq!(times.remove(7), Left::Time);
        assert_eq!(times.remove(5), Left::Others);
        assert_eq!(times.remove(5), Left::Oldest);
        assert_eq!(times.remove(5), Left::Others, "nobody reads at it");
        assert_eq!(
            [9, 9, 9].map(|time| times.remove(time)),
            [Left::Others, Left::Others, Left::Oldest]
        );
        assert!(times.is_empty());
    }
}
