//! How many keys each keyspace has, with their bytes and expiries.
//!
//! Each change adds what it brings and takes away what it supersedes, whose
//! [weight](Observer::weigh) the tree asks for before. What there was before the store was opened
//! comes from the [ledger](super::ledger) of a store that was closed in order, or from a scan.

use super::archive::Recorder;
use super::long;
use super::names;
use super::parts::Apart;
use super::value::{Found, Seen, glimpsed};
use crate::dropped::Dropped;
use crate::entry::expires_at;
use crate::feed::{Feed, WatchEvent};
use crate::key::{CATALOGUE, split};
use crate::wall::WallClock;
use bristlecone_index::clustered::{Glimpse, Observed, Observer};
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::{lock, worker};
use crossbeam_utils::CachePadded;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

/// Keyspaces with numbers below this are found without a lock.
const FEW: usize = 64;
const SHARDS: usize = 8;

/// Number and size of the keys of a keyspace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Count {
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Keys with an expiry.
    pub expiring: u64,
}

impl Count {
    /// A key of so many bytes and its value, whose weight this is.
    pub fn of(key_bytes: usize, weight: u64) -> Self {
        Self {
            keys: 1,
            // Values in parts are not counted.
            bytes: key_bytes as u64
                + if weight & APART == 0 {
                    weight >> KINDS
                } else {
                    0
                },
            expiring: weight & EXPIRING,
        }
    }

    pub fn add(&mut self, other: Self) {
        self.keys = self.keys.wrapping_add(other.keys);
        self.bytes = self.bytes.wrapping_add(other.bytes);
        self.expiring = self.expiring.wrapping_add(other.expiring);
    }

    /// The counts to report. The shards are read one after the other, so while keys come and go a
    /// sum can be below zero for a moment. It is reported as 0 then.
    pub fn or_zero(self) -> Self {
        let [keys, bytes, expiring] = [self.keys, self.bytes, self.expiring]
            .map(|sum| if sum > u64::MAX / 2 { 0 } else { sum });
        Self {
            keys,
            bytes,
            expiring,
        }
    }

    pub fn subtract(&mut self, other: Self) {
        self.keys = self.keys.wrapping_sub(other.keys);
        self.bytes = self.bytes.wrapping_sub(other.bytes);
        self.expiring = self.expiring.wrapping_sub(other.expiring);
    }
}

/// Sums modulo 2^64, one for each shard.
#[derive(Debug, Default)]
struct Sums([CachePadded<[AtomicU64; 3]>; SHARDS]);

impl Sums {
    fn add(&self, count: Count) {
        let shard = &self.0[worker() % SHARDS];
        for (sum, by) in shard.iter().zip([count.keys, count.bytes, count.expiring]) {
            if by != 0 {
                // ORDERING: Relaxed; the locks of pages order the changes of a key, and counts in
                // the midst of changes are not exact.
                sum.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    fn total(&self) -> Count {
        let mut total = Count::default();
        for shard in &self.0 {
            // ORDERING: Relaxed; as in `add`.
            let [keys, bytes, expiring] = [0, 1, 2].map(|i| shard[i].load(Ordering::Relaxed));
            total.add(Count {
                keys,
                bytes,
                expiring,
            });
        }
        total
    }
}

const EXPIRING: u64 = 1;
const APART: u64 = 2;
const EXPIRED: u64 = 4;
/// Bits of these.
const KINDS: u32 = 3;

/// The weight of a value: whether it expires, whether it has parts, and their number or its length.
pub(super) fn weight(seen: Seen) -> u64 {
    let expiring = if seen.expiry == 0 { 0 } else { EXPIRING };
    expiring
        | match seen.apart {
            Some(id) => id << KINDS | APART,
            None => (seen.len as u64) << KINDS,
        }
}

/// Calls a function when it is dropped.
struct AtEnd<F: FnOnce()>(Option<F>);

fn at_end<F: FnOnce()>(f: F) -> AtEnd<F> {
    AtEnd(Some(f))
}

impl<F: FnOnce()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        if let Some(f) = self.0.take() {
            f();
        }
    }
}

type LongKeys = BTreeMap<Vec<u8>, (Vec<u8>, usize)>;

/// The counts of all keyspaces, and the feed that is told of each change with them.
pub(super) struct Counts {
    few: [OnceLock<Box<Sums>>; FEW],
    rest: RwLock<BTreeMap<u32, Arc<Sums>>>,
    /// Keyspaces that nobody reads any more, at any time.
    forgotten: RwLock<BTreeSet<u32>>,
    feed: Arc<Feed>,
    pub recorder: Recorder,
    wall: WallClock,
    pub dropped: Dropped,
    /// The keyspace that the next change of the catalogue's copy drops.
    pub dropping: Mutex<Option<u32>>,
    /// The long keys that are being changed, by where the tree has them, and by how many.
    long: Mutex<LongKeys>,
    /// Values that have parts no more, or were not put.
    pub apart_gone: Mutex<Vec<Apart>>,
    /// Says whose an entry is.
    owner: fn(&[u8]) -> Option<(u32, usize)>,
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts").finish_non_exhaustive()
    }
}

impl Counts {
    pub fn new<M: Media>(feed: Arc<Feed>, recorder: Recorder, wall: WallClock) -> Self {
        Self {
            few: std::array::from_fn(|_| OnceLock::new()),
            rest: RwLock::default(),
            forgotten: RwLock::default(),
            feed,
            recorder,
            wall,
            dropped: Dropped::default(),
            dropping: Mutex::default(),
            long: Mutex::default(),
            apart_gone: Mutex::default(),
            owner: long::owner::<M>,
        }
    }

    fn with<R>(&self, number: u32, f: impl FnOnce(&Sums) -> R) -> R {
        if let Some(sums) = self.few.get(number as usize) {
            return f(sums.get_or_init(Box::default));
        }
        let rest = self.rest.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(sums) = rest.get(&number) {
            return f(sums);
        }
        drop(rest);
        let mut rest = self.rest.write().unwrap_or_else(PoisonError::into_inner);
        let sums = Arc::clone(rest.entry(number).or_default());
        drop(rest);
        f(&sums)
    }

    /// Adds to what a keyspace has.
    pub fn add(&self, number: u32, count: Count) {
        self.with(number, |sums| sums.add(count));
    }

    /// Runs `work`, which changes keys: each with where the tree has it. Whoever watches is told of
    /// the former. No watch begins meanwhile.
    pub fn naming<'k, 'p, R>(
        &self,
        keys: impl Iterator<Item = (&'k [u8], &'p [u8])> + Clone,
        work: impl FnOnce() -> R,
    ) -> R {
        if !self.feed.is_watched() {
            return work();
        }
        let long = keys.filter(|(key, place)| key != place);
        let mut known = lock(&self.long);
        for (key, place) in long.clone() {
            let entry = known.entry(place.to_vec());
            entry.or_insert_with(|| (key.to_vec(), 0)).1 += 1;
        }
        drop(known);
        let _forgotten = at_end(|| {
            let mut known = lock(&self.long);
            for (_, place) in long {
                if let Some((_, users)) = known.get_mut(place) {
                    *users -= 1;
                    if *users == 0 {
                        known.remove(place);
                    }
                }
            }
        });
        work()
    }

    /// The parts of that value are to be removed.
    pub fn give_back(&self, apart: Apart) {
        lock(&self.apart_gone).push(apart);
    }

    /// Old values of that keyspace need not be kept.
    pub fn forget(&self, number: u32) {
        let forgotten = self.forgotten.write();
        forgotten
            .unwrap_or_else(PoisonError::into_inner)
            .insert(number);
    }

    /// The keyspace is no more: it has no keys left, and never will have any.
    pub fn remember(&self, number: u32) {
        let forgotten = self.forgotten.write();
        forgotten
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&number);
        let rest = self.rest.write();
        rest.unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    /// Returns what a keyspace has.
    pub fn of(&self, number: u32) -> Count {
        self.with(number, Sums::total)
    }

    /// Returns what each keyspace has, the catalogue excepted, where it has keys.
    pub fn all(&self) -> BTreeMap<u32, Count> {
        let few = (0..).zip(&self.few);
        let few = few.filter_map(|(number, sums)| Some((number, sums.get()?.total())));
        let rest = self.rest.read().unwrap_or_else(PoisonError::into_inner);
        let rest = rest.iter().map(|(number, sums)| (*number, sums.total()));
        few.chain(rest)
            .filter(|(number, count)| *number != CATALOGUE && *count != Count::default())
            .collect()
    }
}

impl Observer for Counts {
    fn weigh(&self, value: Glimpse<'_>) -> u64 {
        let seen = glimpsed(value);
        let has_expired = seen.expiry != 0 && seen.expiry <= self.wall.now();
        weight(seen) | if has_expired { EXPIRED } else { 0 }
    }

    fn forgets(&self, key: &[u8]) -> bool {
        let forgotten = self
            .forgotten
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        !forgotten.is_empty()
            && (self.owner)(key).is_some_and(|(number, _)| forgotten.contains(&number))
    }

    fn changed(&self, change: Observed<'_>) {
        self.recorder.note(&change);
        let Some((number, key_bytes)) = (self.owner)(change.key) else {
            let number = names::number_in_copy(change.key).filter(|_| change.is.is_some());
            let mut dropping = lock(&self.dropping);
            if let Some(number) = number.filter(|number| Some(*number) == *dropping) {
                *dropping = None;
                // Before anybody reads at its time.
                self.dropped.add(number, change.stamp);
            }
            return;
        };
        let is = change.is.map(glimpsed);
        let mut by = Count::default();
        if let Some(is) = is {
            by.add(Count::of(key_bytes, weight(is)));
        }
        if let Some(was) = change.was {
            by.subtract(Count::of(key_bytes, was));
            if was & APART != 0 {
                self.give_back((number, was >> KINDS));
            }
        }
        self.add(number, by);
        if self.feed.is_watched() {
            self.report(&change, is);
        }
    }
}

impl Counts {
    /// Queues a change for whoever watches its key.
    #[cold]
    fn report(&self, change: &Observed<'_>, is: Option<Seen>) {
        let ts = change.stamp;
        if change.is.is_none() && change.was.is_some_and(|was| was & EXPIRED != 0) {
            // It was not there any more.
            return;
        }
        let long = lock(&self.long).get(change.key).map(|(key, _)| key.clone());
        let whole = long.as_deref().unwrap_or(change.key);
        let Some((number, key)) = split(whole) else {
            return;
        };
        let event = || {
            let key = key.into();
            let (Some(stored), Some(seen)) = (change.is, is) else {
                return Some(WatchEvent::Delete { key, ts });
            };
            let value = match Found::of(stored.bytes).ok()? {
                Found::Here(value, _) => value.into(),
                Found::Packed(packed) => packed.unpack().ok()?.into(),
                // It is not queued.
                Found::Apart(_) => return None,
            };
            Some(WatchEvent::Put {
                key,
                value,
                expires_at: expires_at(seen.expiry),
                ts,
            })
        };
        let bytes = is.map_or(0, |seen| seen.len);
        self.feed.change((number, key), bytes, ts, event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts() -> Counts {
        let wall = WallClock::default();
        let recorder = Recorder::new(None, wall.clone());
        Counts::new::<bristlecone_pmem::media::Dram>(Arc::default(), recorder, wall)
    }

    /// Clearing a keyspace again and again kept the sums of each of its numbers.
    #[test]
    fn a_keyspace_that_is_no_more_takes_no_memory() {
        let counts = counts();
        for number in 1000..2000 {
            counts.add(number, Count::of(3, 0));
            let mut none = Count::default();
            none.subtract(Count::of(3, 0));
            counts.add(number, none);
            assert_eq!(counts.of(number), Count::default());
            counts.remember(number);
        }
        counts.add(2000, Count::of(3, 0));
        assert_eq!(counts.rest.read().unwrap().len(), 1);
        assert_eq!(counts.of(2000).keys, 1);
    }

    #[test]
    fn changes_add_up() {
        let counts = counts();
        let seen = |len, expiry| Seen {
            len,
            expiry,
            apart: None,
        };
        let change = |number: u32, was: Option<Seen>, is: Option<&[u8]>| {
            let key = [&number.to_be_bytes()[..], b"key"].concat();
            counts.changed(Observed {
                key: &key,
                stamp: 1,
                was: was.map(weight),
                is: is.map(|bytes| Glimpse {
                    bytes,
                    len: bytes.len(),
                }),
            });
        };
        for number in [1, 1_000_000] {
            change(number, None, Some(b"five!"));
            let expiring = super::super::value::encode(b"v", 99);
            change(number, Some(seen(5, 0)), Some(&expiring));
            change(number, None, Some(b""));
            let count = Count {
                keys: 2,
                bytes: 4 + 3,
                expiring: 1,
            };
            assert_eq!(counts.of(number), count);
            assert_eq!(counts.all()[&number], count);
            change(number, Some(seen(1, 99)), None);
            change(number, Some(seen(0, 0)), None);
            assert_eq!(counts.of(number), Count::default());
            let mut short = Count::default();
            short.subtract(count);
            assert_eq!(short.or_zero(), Count::default());
            assert_eq!(count.or_zero(), count);
            let apart = Some(77);
            change(
                number,
                Some(Seen {
                    apart,
                    ..seen(29, 0)
                }),
                None,
            );
            assert_eq!(lock(&counts.apart_gone).pop(), Some((number, 77)));
            counts.add(
                number,
                Count::of(
                    3,
                    weight(Seen {
                        apart,
                        ..seen(29, 0)
                    }),
                ),
            );
        }
        assert!(counts.all().is_empty());
    }

    #[test]
    fn a_count_is_of_keys_bytes_and_expiries() {
        let seen = |len, expiry, apart| Seen { len, expiry, apart };
        let of = |seen| {
            let count = Count::of(10, weight(seen));
            (count.keys, count.bytes, count.expiring)
        };
        assert_eq!(of(seen(0, 0, None)), (1, 10, 0));
        assert_eq!(of(seen(7, 0, None)), (1, 17, 0));
        assert_eq!(of(seen(7, 1, None)), (1, 17, 1));
        // Its parts are counted by themselves, or not at all.
        assert_eq!(of(seen(29, 0, Some(77))), (1, 10, 0));
        assert_eq!(of(seen(29, 5, Some(77))), (1, 10, 1));
    }

    /// While keys come and go, shards that are read one after the other may add up to less than
    /// nothing.
    #[test]
    fn a_sum_below_zero_is_reported_as_zero() {
        let most = u64::MAX / 2;
        for (sum, reported) in [(0, 0), (1, 1), (most, most), (most + 1, 0), (u64::MAX, 0)] {
            let count = Count {
                keys: sum,
                bytes: sum,
                expiring: sum,
            };
            let expected = Count {
                keys: reported,
                bytes: reported,
                expiring: reported,
            };
            assert_eq!(count.or_zero(), expected, "{sum}");
        }
    }

    #[test]
    fn keyspaces_with_keys_are_listed_and_the_catalogue_is_not() {
        let counts = counts();
        let one = Count::of(3, 0);
        let expiring = Count {
            keys: 0,
            bytes: 0,
            expiring: 1,
        };
        for number in [CATALOGUE, 5, 63, 64, 7_000] {
            counts.add(number, one);
        }
        counts.add(6, expiring);
        // Looked at only.
        assert_eq!(counts.of(8), Count::default());
        assert_eq!(counts.of(8_000), Count::default());
        let expected = [(5, one), (6, expiring), (63, one), (64, one), (7_000, one)];
        assert_eq!(counts.all(), BTreeMap::from(expected));
        assert_eq!(counts.of(CATALOGUE), one);
    }

    #[test]
    fn threads_add_to_the_same_counts() {
        let counts = counts();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| {
                    for number in [3, 3_000] {
                        counts.add(number, Count::of(2, 0));
                    }
                });
            }
        });
        let expected = Count {
            keys: 20,
            bytes: 40,
            expiring: 0,
        };
        assert_eq!(
            counts.all().into_values().collect::<Vec<_>>(),
            [expected; 2]
        );
    }

    #[test]
    fn a_weight_says_whether_the_value_has_expired() {
        let wall = WallClock::new(|| 100);
        let recorder = Recorder::new(None, wall.clone());
        let counts = Counts::new::<bristlecone_pmem::media::Dram>(Arc::default(), recorder, wall);
        for (expiry, kinds) in [(0, 0), (1, 5), (99, 5), (100, 5), (101, 1)] {
            let bytes = super::super::value::encode(b"seven b", expiry);
            let weight = counts.weigh(Glimpse {
                bytes: &bytes,
                len: bytes.len(),
            });
            assert_eq!(weight, 7 << KINDS | kinds, "{expiry}");
        }
    }

    /// Old values of the keys of a keyspace that nobody reads are not kept, and no others go.
    #[test]
    fn only_forgotten_keyspaces_are_forgotten() {
        let counts = counts();
        let key = |number: u32| [&number.to_be_bytes()[..], b"key"].concat();
        assert!(!counts.forgets(&key(5)));
        counts.forget(5);
        assert!(counts.forgets(&key(5)) && !counts.forgets(&key(6)));
        assert!(!counts.forgets(b"ab"), "it is nobody's");
        counts.forget(6);
        counts.remember(5);
        assert!(!counts.forgets(&key(5)) && counts.forgets(&key(6)));
    }

    /// A change of a long key is told with the whole of it, for as long as somebody changes it.
    #[test]
    fn long_keys_are_known_while_they_are_changed() {
        let counts = counts();
        let long = [(&b"the whole key"[..], &b"place"[..])];
        let known = || {
            let known = lock(&counts.long);
            known.get(&b"place"[..]).cloned()
        };
        counts.naming(long.into_iter(), || assert_eq!(known(), None));
        let _watch = (counts.feed).subscribe(1, b"", crate::feed::WatchLimits::default());
        let with_short = [long[0], (b"short", b"short")].into_iter();
        let done = counts.naming(with_short, || {
            assert_eq!(known(), Some((b"the whole key".to_vec(), 1)));
            assert_eq!(lock(&counts.long).len(), 1);
            counts.naming(long.into_iter(), || assert_eq!(known().unwrap().1, 2));
            assert_eq!(known().unwrap().1, 1);
            7
        });
        assert_eq!(done, 7);
        assert!(lock(&counts.long).is_empty());
    }

    #[test]
    fn a_keyspace_is_dropped_by_the_change_of_its_copy_that_says_so() {
        let counts = counts();
        let guard = crossbeam_epoch::pin();
        let change = |number: u32, is: Option<&[u8]>| {
            counts.changed(Observed {
                key: &[names::COPY.to_be_bytes(), number.to_be_bytes()].concat(),
                stamp: 9,
                was: None,
                is: is.map(|bytes| Glimpse {
                    bytes,
                    len: bytes.len(),
                }),
            });
        };
        change(5, Some(b"nname"));
        assert!(counts.dropped.is_empty());
        *lock(&counts.dropping) = Some(5);
        change(6, Some(b"nname"));
        change(5, None);
        assert!(counts.dropped.is_empty());
        change(5, Some(b"d"));
        assert_eq!(counts.dropped.since(5, &guard), Some(9));
        assert_eq!(
            (counts.dropped.since(6, &guard), *lock(&counts.dropping)),
            (None, None)
        );
        assert!(counts.all().is_empty());
    }
}
