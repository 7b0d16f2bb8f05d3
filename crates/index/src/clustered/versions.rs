//! Who reads at which time, and what replaced pages held that they may still read.
//!
//! A base holds the newest value of each key, and no stamps. So a replacement gives to *history* what
//! later records superseded, where somebody reads at a time at which it was the newest. Nothing of this is
//! durable: nobody reads on after a crash.
//!
//! A *time* sees the changes whose stamps are below it.
//!
//! # Concurrency
//! Who begins to read says so before asking which stamps have been given; a replacement takes its stamp
//! before it asks who reads. So either the replacement keeps what the reader needs, or the reader's
//! time is above the replacement's stamp.

use bristlecone_pmem::sync::lock;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The oldest time while nobody reads at one.
const NOBODY: u64 = u64::MAX;
/// Entries of history that are not worth a sweep.
const FEW: usize = 64;

/// How many read at each time.
type Times = BTreeMap<u64, usize>;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Versions {
    /// The oldest time at which somebody reads, or less.
    oldest: AtomicU64,
    /// Locked before `history`.
    times: Mutex<Times>,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    /// Of each key and stamp that superseded it.
    entries: BTreeMap<(Vec<u8>, u64), Kept>,
    bytes: usize,
    /// Entries that the last sweep left.
    swept: usize,
}

/// What a key had until it was superseded.
#[derive(Debug)]
struct Kept {
    /// The stamp of the change that made it so, or less.
    since: u64,
    /// `None`: the key was not there.
    value: Option<Vec<u8>>,
}

impl Kept {
    fn bytes(&self, key: &[u8]) -> usize {
        let value = self.value.as_ref().map_or(0, Vec::len);
        key.len() + value + size_of::<((Vec<u8>, u64), Self)>()
    }
}

/// A record of a key: the stamp of its change, and the value, or none if the key went.
pub(super) type Version<'v> = (u64, Option<&'v [u8]>);

impl Versions {
    pub(super) fn new() -> Self {
        Self {
            oldest: AtomicU64::new(NOBODY),
            times: Mutex::new(Times::new()),
            history: Mutex::new(History::default()),
        }
    }

    /// Begins to read at the present time: `next_stamp` returns the next stamp to be given.
    pub(super) fn begin(&self, next_stamp: impl FnOnce() -> u64) -> u64 {
        let mut times = lock(&self.times);
        // ORDERING: SeqCst; pairs with that of `keep`: a replacement that finds nobody here took its
        // stamp before `next_stamp` looks.
        self.oldest.store(0, Ordering::SeqCst);
        let time = next_stamp();
        *times.entry(time).or_default() += 1;
        self.set_oldest(&times);
        time
    }

    /// Ends one reading at `time`, which [`begin`](Self::begin) returned.
    pub(super) fn end(&self, time: u64) {
        let mut times = lock(&self.times);
        if let Some(readers) = times.get_mut(&time) {
            *readers -= 1;
            if *readers == 0 {
                times.remove(&time);
            }
        }
        self.set_oldest(&times);
        let mut history = lock(&self.history);
        if times.is_empty() {
            *history = History::default();
        } else if history.entries.len() > 2 * history.swept + FEW {
            history.sweep(&times);
        }
    }

    fn set_oldest(&self, times: &Times) {
        let oldest = times.keys().next().copied();
        // ORDERING: SeqCst; as in `begin`.
        self.oldest
            .store(oldest.unwrap_or(NOBODY), Ordering::SeqCst);
    }

    /// Whether somebody reads at a time before the stamps that have been given.
    pub(super) fn somebody_reads(&self) -> bool {
        // ORDERING: SeqCst; pairs with that of `begin`.
        self.oldest.load(Ordering::SeqCst) != NOBODY
    }

    /// Keeps what a replacement of a page takes out of it, for those who read before. The page's writer's
    /// lock is held, and all stamps that the new page will have have been given.
    pub(super) fn keep(&self) -> Keeping<'_> {
        let times = lock(&self.times);
        Keeping {
            history: lock(&self.history),
            times,
        }
    }

    /// What `key` had at `time`, if a later change of it has gone into a base: its value, or `None` if it
    /// was not there.
    pub(super) fn at(&self, time: u64, key: &[u8]) -> Option<Option<Vec<u8>>> {
        let history = lock(&self.history);
        let from = (key.to_vec(), time);
        let (found, kept) = history.entries.range(from..).next()?;
        (found.0 == key).then(|| kept.value.clone())
    }

    /// What keys of a range had at `time`, in order: those of which a later change has gone into a base.
    pub(super) fn between(
        &self,
        time: u64,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let history = lock(&self.history);
        let start = match from {
            Bound::Unbounded => Bound::Unbounded,
            Bound::Included(key) => Bound::Included((key.to_vec(), 0)),
            Bound::Excluded(key) => Bound::Excluded((key.to_vec(), u64::MAX)),
        };
        let ends = |key: &[u8]| match to {
            Bound::Unbounded => false,
            Bound::Included(to) => key > to,
            Bound::Excluded(to) => key >= to,
        };
        let mut found: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
        for ((key, superseded), kept) in history.entries.range((start, Bound::Unbounded)) {
            if ends(key) {
                break;
            }
            if *superseded >= time && found.last().is_none_or(|(last, _)| last != key) {
                found.push((key.clone(), kept.value.clone()));
            }
        }
        found
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.history).bytes
    }
}

/// Adding to history.
pub(super) struct Keeping<'v> {
    times: MutexGuard<'v, Times>,
    history: MutexGuard<'v, History>,
}

impl Keeping<'_> {
    /// Keeps what the records of a key, oldest first, superseded, the last of them excepted. `base`: the
    /// value in the base.
    pub(super) fn add<'v>(
        &mut self,
        key: &[u8],
        base: Option<&'v [u8]>,
        records: impl Iterator<Item = Version<'v>>,
    ) {
        let known = &self.history.entries;
        let known = known.range((key.to_vec(), 0)..=(key.to_vec(), u64::MAX));
        let mut last = (known.map(|(of, _)| of.1).next_back().unwrap_or(0), base);
        for record in records {
            let (since, value) = last;
            let superseded = record.0;
            // Somebody reads after the one and before the other.
            if since < superseded && self.times.range(since + 1..=superseded).next().is_some() {
                let value = value.map(<[u8]>::to_vec);
                self.history.add(key, superseded, Kept { since, value });
            }
            last = record;
        }
    }
}

impl History {
    fn add(&mut self, key: &[u8], superseded: u64, kept: Kept) {
        self.bytes += kept.bytes(key);
        let old = self.entries.insert((key.to_vec(), superseded), kept);
        if let Some(old) = old {
            self.bytes -= old.bytes(key);
        }
    }

    /// Drops what nobody can read any more.
    fn sweep(&mut self, times: &Times) {
        let bytes = &mut self.bytes;
        self.entries.retain(|(key, superseded), kept| {
            let read = times.range(kept.since + 1..=*superseded).next().is_some();
            if !read {
                *bytes -= kept.bytes(key);
            }
            read
        });
        self.swept = self.entries.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(versions: &Versions, key: &[u8], base: Option<&[u8]>, records: &[Version<'_>]) {
        if versions.somebody_reads() {
            versions.keep().add(key, base, records.iter().copied());
        }
    }

    #[test]
    fn what_nobody_reads_is_not_kept() {
        let versions = Versions::new();
        keep(&versions, b"k", Some(b"old"), &[(5, Some(b"new"))]);
        assert_eq!(versions.at(3, b"k"), None);
        assert_eq!(versions.bytes(), 0);
        let ten = versions.begin(|| 10);
        keep(
            &versions,
            b"k",
            Some(b"0"),
            &[(11, Some(b"1")), (12, None), (13, Some(b"3"))],
        );
        assert_eq!(versions.at(ten, b"k"), Some(Some(b"0".to_vec())));
        assert_eq!(
            lock(&versions.history).entries.len(),
            1,
            "nobody reads between 11 and 13"
        );
        versions.end(ten);
        assert_eq!(versions.bytes(), 0);
    }

    #[test]
    fn each_time_reads_its_own() {
        let versions = Versions::new();
        let (ten, twelve) = (versions.begin(|| 10), versions.begin(|| 12));
        keep(&versions, b"k", None, &[(10, Some(b"1")), (12, Some(b"2"))]);
        keep(&versions, b"k", Some(b"2"), &[(15, None)]);
        let late = versions.begin(|| 20);
        keep(&versions, b"k", None, &[(25, Some(b"4"))]);
        keep(&versions, b"l", Some(b"x"), &[(26, Some(b"y"))]);
        assert_eq!(versions.at(ten, b"k"), Some(None));
        assert_eq!(versions.at(twelve, b"k"), Some(Some(b"1".to_vec())));
        assert_eq!(versions.at(late, b"k"), Some(None));
        assert_eq!(versions.at(30, b"k"), None, "the base has it");
        assert_eq!(versions.at(late, b"j"), None);
        let l = || (b"l".to_vec(), Some(b"x".to_vec()));
        let range = |time| versions.between(time, Bound::Excluded(b"a"), Bound::Unbounded);
        assert_eq!(range(ten), [(b"k".to_vec(), None), l()]);
        assert_eq!(range(26), [l()]);
        let to_k = versions.between(ten, Bound::Included(b"k"), Bound::Excluded(b"l"));
        assert_eq!(to_k, [(b"k".to_vec(), None)]);
        versions.end(ten);
        lock(&versions.history).swept = 0;
        lock(&versions.history).sweep(&lock(&versions.times));
        assert_eq!(versions.at(twelve, b"k"), Some(Some(b"1".to_vec())));
        assert_eq!(
            lock(&versions.history).entries.len(),
            3,
            "what 10 read is gone"
        );
        for time in [twelve, late] {
            versions.end(time);
        }
        assert_eq!(
            (versions.bytes(), lock(&versions.history).entries.len()),
            (0, 0)
        );
    }
}
