//! The times of all snapshots, and the old values that they can still read.
//!
//! A base holds the newest value of each key, and no stamps. So a replacement adds the values that
//! it drops to *history*, if the time of a snapshot lies between the change that wrote a value and
//! the one that superseded it. None of this is durable, because no snapshot survives a crash.
//!
//! A *time* sees the changes whose stamps are below it.
//!
//! # Concurrency
//! A snapshot registers before it looks at the stamp counter; a replacement takes its stamp before
//! it looks for snapshots. So either the replacement finds the snapshot and keeps what it needs, or
//! the snapshot's time is above the replacement's stamp.

use super::ReadError;
use super::page::partition;
use super::stored::{Reference, Stored};
use super::times::{Left, Times};
use bristlecone_pmem::sync::lock;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Entries of history that are not worth a sweep.
const FEW: usize = 64;
/// Likewise, bytes of outer values.
const FEW_BYTES: usize = 1 << 20;

/// Batches whose new keys are kept together, at most.
const FEW_BATCHES: usize = 16;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Versions {
    /// Somebody reads at a time, or is about to.
    read: AtomicBool,
    /// Locked before `history`.
    times: Mutex<Times>,
    history: Mutex<History>,
}

#[derive(Debug, Default)]
struct History {
    /// The old values of each key, in time order.
    keys: BTreeMap<Vec<u8>, Vec<Kept>>,
    /// Keys that were not there: a batch may bring many.
    added: Vec<Added>,
    bytes: usize,
    entries: usize,
    /// Bytes of the outer values.
    outer_bytes: usize,
    /// Entries that the last sweep left, and bytes of outer values.
    swept: usize,
    swept_bytes: usize,
    /// Snapshots of this time or an earlier one get errors: a page with their values was damaged.
    lost: u64,
}

/// Keys that were not there before the change with the stamp `until`.
#[derive(Debug)]
struct Added {
    until: u64,
    /// In order, one behind the other, and where each ends.
    keys: Vec<u8>,
    ends: Vec<usize>,
}

impl Added {
    fn key(&self, i: usize) -> &[u8] {
        let from = i.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.keys[from..self.ends[i]]
    }

    /// How many are below `key`.
    fn below(&self, key: &[u8]) -> usize {
        partition(self.ends.len(), |i| self.key(i) < key)
    }

    fn has(&self, key: &[u8]) -> bool {
        let at = self.below(key);
        at < self.ends.len() && self.key(at) == key
    }

    fn is_read(&self, times: &Times) -> bool {
        times.any_in(0..=self.until)
    }

    fn bytes(&self) -> usize {
        self.keys.len() + self.ends.len() * size_of::<usize>() + size_of::<Self>()
    }
}

/// An old value of a key.
#[derive(Debug)]
struct Kept {
    /// The stamp of the change that made it so, or less.
    since: u64,
    /// The stamp that superseded it.
    until: u64,
    /// `None`: the key was not there. History has the block of an outer one.
    value: Was,
}

impl Kept {
    fn is_read(&self, times: &Times) -> bool {
        times.any_in(self.since + 1..=self.until)
    }

    fn bytes(&self) -> usize {
        self.value.as_ref().map_or(0, |past| past.bytes.len()) + size_of::<Self>()
    }

    fn outer_bytes(&self) -> usize {
        self.block().map_or(0, |(_, bytes)| bytes)
    }

    /// The block that it has, and the bytes of the value there.
    fn block(&self) -> Option<(u64, usize)> {
        let past = self.value.as_ref()?;
        let reference = past.stored().reference()?;
        Some((reference.block, reference.len()))
    }
}

/// A value that a key had, or a reference to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Past<'p> {
    bytes: Cow<'p, [u8]>,
    outer: bool,
}

impl<'p> Past<'p> {
    pub(super) fn of(stored: Stored<'p>) -> Self {
        Self {
            bytes: Cow::Borrowed(stored.bytes),
            outer: stored.outer,
        }
    }

    pub(super) fn kept(stored: Stored<'_>) -> Past<'static> {
        Past {
            bytes: Cow::Owned(stored.bytes.to_vec()),
            outer: stored.outer,
        }
    }

    /// The reference to an outer value, or the value.
    pub(super) fn into_reference(self) -> Result<Reference, Cow<'p, [u8]>> {
        self.stored().reference().ok_or(self.bytes)
    }

    pub(super) fn stored(&self) -> Stored<'_> {
        Stored {
            bytes: &self.bytes,
            outer: self.outer,
        }
    }
}

/// The state of a key: its value, or none if it was not there.
pub(super) type Was = Option<Past<'static>>;

/// A record of a key: the stamp of its change, and the value, or none if the key went.
pub(super) type Version<'v> = (u64, Option<Stored<'v>>);

impl Versions {
    pub(super) fn new() -> Self {
        Self {
            read: AtomicBool::new(false),
            times: Mutex::default(),
            history: Mutex::default(),
        }
    }

    /// Begins to read at the present time: `next_stamp` returns the next stamp to be given.
    pub(super) fn begin(&self, next_stamp: impl FnOnce() -> u64) -> u64 {
        let mut times = lock(&self.times);
        // ORDERING: SeqCst; pairs with that of `is_read`: a replacement that finds nobody here took
        // its stamp before `next_stamp` looks.
        self.read.store(true, Ordering::SeqCst);
        let time = next_stamp();
        times.add(time);
        time
    }

    /// Begins another reading at `time`, at which somebody reads.
    pub(super) fn begin_again(&self, time: u64) {
        lock(&self.times).add(time);
    }

    /// The earliest time at which somebody reads, and how many read at all times, but for one who
    /// reads at `mark`.
    pub(super) fn readers(&self, mark: Option<u64>) -> (Option<u64>, usize) {
        let times = lock(&self.times);
        let others = times.iter().map(|(time, readers)| {
            let readers = readers - usize::from(mark == Some(time));
            (time, readers)
        });
        let others = others.filter(|(_, readers)| *readers > 0);
        (
            others.clone().next().map(|(time, _)| time),
            others.map(|(_, readers)| readers).sum(),
        )
    }

    /// Ends one reading at `time`, which [`begin`](Self::begin) returned. Returns the blocks of
    /// outer values that nobody reads any more, and their bytes.
    pub(super) fn end(&self, time: u64) -> Vec<(u64, usize)> {
        let mut times = lock(&self.times);
        let left = times.remove(time);
        if left == Left::Others {
            // They read all that this one did.
            return Vec::new();
        }
        let mut history = lock(&self.history);
        let (mut gone, mut freed) = (History::default(), Vec::new());
        if times.is_empty() {
            // ORDERING: SeqCst; as in `begin`.
            self.read.store(false, Ordering::SeqCst);
            std::mem::swap(&mut *history, &mut gone);
        } else if history.is_worth_a_sweep(left == Left::Oldest) {
            history.sweep(&times, &mut freed);
        }
        // Nobody need wait while it is freed.
        drop((history, times));
        freed.extend(gone.blocks());
        freed
    }

    /// Drops what nobody can read any more. Returns the blocks of outer values.
    pub(super) fn sweep(&self) -> Vec<(u64, usize)> {
        let times = lock(&self.times);
        let mut freed = Vec::new();
        lock(&self.history).sweep(&times, &mut freed);
        freed
    }

    /// Drops all of it: nobody reads any more. Returns the blocks of outer values.
    pub(super) fn clear(&self) -> Vec<u64> {
        let mut history = lock(&self.history);
        let blocks = history.blocks().map(|(block, _)| block).collect();
        *history = History::default();
        blocks
    }

    /// The blocks of outer values that history has.
    pub(super) fn blocks(&self) -> Vec<u64> {
        lock(&self.history)
            .blocks()
            .map(|(block, _)| block)
            .collect()
    }

    /// Whether somebody reads at a time. The caller has all the stamps that matter.
    pub(super) fn is_read(&self) -> bool {
        // ORDERING: SeqCst; pairs with that of `begin`.
        self.read.load(Ordering::SeqCst)
    }

    /// Keeps what a replacement of a page takes out of it, for those who read before. The page's
    /// writer's lock is held, and all stamps that the new page will have have been given.
    pub(super) fn keep(&self) -> Keeping<'_> {
        let times = lock(&self.times);
        Keeping {
            history: lock(&self.history),
            times,
            outers: Vec::new(),
        }
    }

    /// Returns the value of `key` at `time`, if a later change of it is in a base.
    ///
    /// # Errors
    /// [`ReadError`]: a page was damaged that would say.
    pub(super) fn at(&self, time: u64, key: &[u8]) -> Result<Option<Was>, ReadError> {
        let history = lock(&self.history);
        history.check(time)?;
        let kept = history.keys.get(key).and_then(|of_key| past(of_key, time));
        // Of both, what was before the earlier change.
        let before = kept.map_or(u64::MAX, |kept| kept.until);
        let mut added = history.added.iter();
        if added.any(|added| (time..before).contains(&added.until) && added.has(key)) {
            return Ok(Some(None));
        }
        Ok(kept.map(|kept| kept.value.clone()))
    }

    /// Returns the values at `time`, in key order, of the keys of a range whose later changes are
    /// in a base.
    ///
    /// # Errors
    /// As of [`at`](Self::at).
    pub(super) fn between(
        &self,
        time: u64,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> Result<Vec<(Vec<u8>, Was)>, ReadError> {
        let history = lock(&self.history);
        history.check(time)?;
        let is_below = |key: &[u8]| match to {
            Bound::Unbounded => true,
            Bound::Included(to) => key <= to,
            Bound::Excluded(to) => key < to,
        };
        // A range that ends before it begins would not do.
        let keys = history.keys.range::<[u8], _>((from, Bound::Unbounded));
        let keys = keys.take_while(|(key, _)| is_below(key));
        let kept = |(key, of_key): (&Vec<u8>, &Vec<Kept>)| {
            let kept = past(of_key, time)?;
            Some((key.clone(), kept.until, kept.value.clone()))
        };
        let mut all: Vec<(Vec<u8>, u64, Was)> = keys.filter_map(kept).collect();
        let before = all.len();
        for added in history.added.iter().filter(|added| added.until >= time) {
            let first = match from {
                Bound::Unbounded => 0,
                Bound::Included(from) => added.below(from),
                Bound::Excluded(from) => added.below(from) + usize::from(added.has(from)),
            };
            let keys = (first..added.ends.len()).map(|i| added.key(i));
            let keys = keys.take_while(|key| is_below(key));
            all.extend(keys.map(|key| (key.to_vec(), added.until, None)));
        }
        if all.len() > before {
            // Of each key, what was before the earliest change.
            all.sort_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
            all.dedup_by(|later, earlier| later.0 == earlier.0);
        }
        Ok(all.into_iter().map(|(key, _, was)| (key, was)).collect())
    }

    /// How many old values are kept, and their bytes, in DRAM and in blocks.
    pub(super) fn kept(&self) -> (u64, u64) {
        let history = lock(&self.history);
        let bytes = history.bytes + history.outer_bytes;
        (history.entries as u64, bytes as u64)
    }

    /// Bytes of DRAM.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.history).bytes
    }
}

/// Of what a key had, that of `time`.
fn past(of_key: &[Kept], time: u64) -> Option<&Kept> {
    of_key.get(of_key.partition_point(|kept| kept.until < time))
}

/// Adding to history.
pub(super) struct Keeping<'v> {
    times: MutexGuard<'v, Times>,
    history: MutexGuard<'v, History>,
    /// Numbers of the outer values that were added.
    outers: Vec<u32>,
}

impl Keeping<'_> {
    /// Keeps what the records of a key, oldest first, superseded, the last of them excepted.
    /// `base`: the value in the base.
    pub(super) fn add<'v>(
        &mut self,
        key: &[u8],
        base: Option<Stored<'v>>,
        records: impl Iterator<Item = Version<'v>>,
    ) {
        let known = self.history.keys.get(key).and_then(|of_key| of_key.last());
        let added = self.history.added.iter().filter(|added| added.has(key));
        let known = known.map(|known| known.until);
        let known = known.max(added.map(|added| added.until).max());
        let mut last = (known.unwrap_or(0), base);
        for record in records {
            let (since, value) = last;
            let until = record.0;
            // Somebody reads after the one and before the other.
            if since < until && self.times.any_in(since + 1..=until) {
                let outer = value.and_then(Stored::reference);
                self.outers.extend(outer.as_ref().map(Reference::id));
                let value = value.map(Past::kept);
                self.history.add(
                    key,
                    Kept {
                        since,
                        until,
                        value,
                    },
                );
            }
            last = record;
        }
    }

    /// Keeps that keys, which come in order, were not there before the change with that stamp, as
    /// [`add`](Self::add) does for one.
    pub(super) fn add_new<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>, stamp: u64) {
        let mut added = Added {
            until: stamp,
            keys: Vec::new(),
            ends: Vec::new(),
        };
        if !added.is_read(&self.times) {
            return;
        }
        if self.history.added.len() >= FEW_BATCHES {
            // Each lookup looks at all of them.
            return keys.for_each(|key| self.add(key, None, [(stamp, None)].into_iter()));
        }
        for key in keys {
            added.keys.extend_from_slice(key);
            added.ends.push(added.keys.len());
        }
        if !added.ends.is_empty() {
            self.history.bytes += added.bytes();
            self.history.entries += added.ends.len();
            self.history.added.push(added);
        }
    }

    /// Returns the numbers of the outer values that were added.
    pub(super) fn outers(self) -> Vec<u32> {
        self.outers
    }

    /// Says that what those who read now would need is lost: a page is damaged.
    pub(super) fn lose(&mut self) {
        let newest = self.times.newest().unwrap_or(0);
        self.history.lost = self.history.lost.max(newest);
    }
}

impl History {
    fn check(&self, time: u64) -> Result<(), ReadError> {
        if time > self.lost {
            return Ok(());
        }
        let what = "a page that was replaced while the snapshot was there was damaged in memory";
        Err(ReadError::Damaged(what.into()))
    }

    fn add(&mut self, key: &[u8], kept: Kept) {
        let of_key = match self.keys.get_mut(key) {
            Some(of_key) => of_key,
            None => {
                self.bytes += key.len() + size_of::<(Vec<u8>, Vec<Kept>)>();
                self.keys.entry(key.to_vec()).or_default()
            }
        };
        self.bytes += kept.bytes();
        self.outer_bytes += kept.outer_bytes();
        self.entries += 1;
        of_key.push(kept);
    }

    /// Whether nobody may read much of it any more.
    fn is_worth_a_sweep(&self, was_oldest: bool) -> bool {
        was_oldest && (self.entries > FEW || self.outer_bytes > FEW_BYTES)
            || self.entries > 2 * self.swept + FEW
            || self.outer_bytes > 2 * self.swept_bytes + FEW_BYTES
    }

    fn blocks(&self) -> impl Iterator<Item = (u64, usize)> {
        self.keys.values().flatten().filter_map(Kept::block)
    }

    /// Drops what nobody can read any more, and adds the blocks of outer values to `freed`.
    fn sweep(&mut self, times: &Times, freed: &mut Vec<(u64, usize)>) {
        let (mut bytes, mut entries, mut outer_bytes) = (0, 0, 0);
        self.keys.retain(|key, of_key| {
            of_key.retain(|kept| {
                let is_read = kept.is_read(times);
                freed.extend(kept.block().filter(|_| !is_read));
                is_read
            });
            if !of_key.is_empty() {
                bytes += key.len() + size_of::<(Vec<u8>, Vec<Kept>)>();
                bytes += of_key.iter().map(Kept::bytes).sum::<usize>();
                entries += of_key.len();
                outer_bytes += of_key.iter().map(Kept::outer_bytes).sum::<usize>();
            }
            !of_key.is_empty()
        });
        self.added.retain(|added| added.is_read(times));
        for added in &self.added {
            bytes += added.bytes();
            entries += added.ends.len();
        }
        (self.bytes, self.entries, self.swept) = (bytes, entries, entries);
        (self.outer_bytes, self.swept_bytes) = (outer_bytes, outer_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Record = (u64, Option<&'static [u8]>);

    fn keep(versions: &Versions, key: &[u8], base: Option<&[u8]>, records: &[Record]) {
        if versions.is_read() {
            let records = records.iter();
            let records = records.map(|(stamp, value)| (*stamp, value.map(Stored::here)));
            versions.keep().add(key, base.map(Stored::here), records);
        }
    }

    fn past(bytes: &[u8]) -> Option<Past<'static>> {
        Some(Past::kept(Stored::here(bytes)))
    }

    fn at(versions: &Versions, time: u64, key: &[u8]) -> Option<Option<Past<'static>>> {
        versions.at(time, key).unwrap()
    }

    #[test]
    fn keys_that_a_batch_brought_were_not_there_before() {
        let versions = Versions::new();
        let add = |keys: &[&[u8]], stamp| {
            versions.keep().add_new(keys.iter().copied(), stamp);
        };
        add(&[b"a"], 3);
        assert_eq!(versions.kept(), (0, 0), "nobody reads");
        assert_eq!(versions.begin(|| 5), 5);
        add(&[b"b", b"d", b"f"], 10);
        assert_eq!(versions.begin(|| 12), 12);
        keep(&versions, b"d", Some(b"first"), &[(15, Some(b"second"))]);
        // It went, and a later batch brings it again.
        keep(&versions, b"f", Some(b"first"), &[(16, None)]);
        add(&[b"c", b"f"], 20);
        let absent = Some(None);
        for (time, key, expected) in [
            (5, b"b", absent.clone()),
            (12, b"b", None),
            (5, b"d", absent.clone()),
            (12, b"d", Some(past(b"first"))),
            (12, b"c", absent.clone()),
            (21, b"c", None),
            (5, b"f", absent.clone()),
            (12, b"f", Some(past(b"first"))),
            (5, b"a", None),
        ] {
            assert_eq!(at(&versions, time, key), expected, "{key:?} at {time}");
        }
        let between = |time, from, to| {
            let found = versions.between(time, from, to).unwrap();
            let found = found.into_iter();
            found.map(|(key, was)| (key[0], was)).collect::<Vec<_>>()
        };
        let all = between(5, Bound::Unbounded, Bound::Unbounded);
        assert_eq!(all, [b'b', b'c', b'd', b'f'].map(|key| (key, None)));
        let some = between(12, Bound::Excluded(&b"c"[..]), Bound::Included(&b"f"[..]));
        assert_eq!(some, [b'd', b'f'].map(|key| (key, past(b"first"))));
        assert_eq!(
            between(5, Bound::Included(&b"f"[..]), Bound::Excluded(&b"b"[..])),
            []
        );
        // Nobody reads before 12 any more.
        versions.end(5);
        versions.sweep();
        assert_eq!(at(&versions, 12, b"c"), absent);
        assert_eq!(versions.kept().0, 4, "two values and two new keys");
        versions.end(12);
        assert_eq!((versions.kept(), versions.bytes()), ((0, 0), 0));
    }

    #[test]
    fn what_nobody_reads_is_not_kept() {
        let versions = Versions::new();
        keep(&versions, b"k", Some(b"old"), &[(5, Some(b"new"))]);
        assert_eq!(at(&versions, 3, b"k"), None);
        assert_eq!(versions.bytes(), 0);
        let ten = versions.begin(|| 10);
        keep(
            &versions,
            b"k",
            Some(b"0"),
            &[(11, Some(b"1")), (12, None), (13, Some(b"3"))],
        );
        assert_eq!(at(&versions, ten, b"k"), Some(past(b"0")));
        assert_eq!(
            lock(&versions.history).entries,
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
        assert_eq!(at(&versions, ten, b"k"), Some(None));
        assert_eq!(at(&versions, twelve, b"k"), Some(past(b"1")));
        assert_eq!(at(&versions, late, b"k"), Some(None));
        assert_eq!(at(&versions, 30, b"k"), None, "the base has it");
        assert_eq!(at(&versions, late, b"j"), None);
        let l = || (b"l".to_vec(), past(b"x"));
        let range = |time| {
            let range = versions.between(time, Bound::Excluded(b"a"), Bound::Unbounded);
            range.unwrap()
        };
        assert_eq!(range(ten), [(b"k".to_vec(), None), l()]);
        assert_eq!(range(26), [l()]);
        let to_k = versions.between(ten, Bound::Included(b"k"), Bound::Excluded(b"l"));
        assert_eq!(to_k.unwrap(), [(b"k".to_vec(), None)]);
        let none = versions.between(ten, Bound::Included(b"z"), Bound::Excluded(b"l"));
        assert!(none.unwrap().is_empty());
        versions.end(ten);
        lock(&versions.history).sweep(&lock(&versions.times), &mut Vec::new());
        assert_eq!(at(&versions, twelve, b"k"), Some(past(b"1")));
        assert_eq!(lock(&versions.history).entries, 3, "what 10 read is gone");
        for time in [twelve, late] {
            versions.end(time);
        }
        assert_eq!((versions.bytes(), lock(&versions.history).entries), (0, 0));
    }

    #[test]
    fn what_is_lost_is_an_error_for_those_who_read_before() {
        let versions = Versions::new();
        let ten = versions.begin(|| 10);
        versions.keep().lose();
        let late = versions.begin(|| 11);
        assert!(versions.at(ten, b"k").is_err());
        assert!(
            versions
                .between(ten, Bound::Unbounded, Bound::Unbounded)
                .is_err()
        );
        assert_eq!(at(&versions, late, b"k"), None);
    }
}
