//! The recorder: changes that have been made and not written yet, in bounded memory.

use super::LEDGER;
use crate::archive::ArchiveOptions;
use crate::archive::format::Change;
use crate::wall::WallClock;
use bristlecone_index::clustered::Observed;
use bristlecone_pmem::sync::{lock, worker};
use crossbeam_utils::CachePadded;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const SHARDS: usize = 16;
/// Least and most bytes of the recorder.
const QUEUE: std::ops::RangeInclusive<usize> = 64 << 10..=512 << 20;

/// Changes that have been made and not written yet. The module above has the rules.
#[derive(Debug)]
pub(in crate::tree) struct Recorder {
    takes: AtomicBool,
    lost: AtomicBool,
    most: usize,
    /// Bytes of changes that were taken and not [given back](Self::release).
    queued: AtomicUsize,
    /// Encoded changes.
    shards: [CachePadded<Mutex<Vec<u8>>>; SHARDS],
    wall: WallClock,
}

impl Recorder {
    pub fn new(options: Option<&ArchiveOptions>, wall: WallClock) -> Self {
        let most = options.map_or(0, |options| options.queue_bytes);
        Self {
            takes: AtomicBool::new(options.is_some()),
            lost: AtomicBool::new(false),
            most: most.clamp(*QUEUE.start(), *QUEUE.end()),
            queued: AtomicUsize::new(0),
            shards: std::array::from_fn(|_| CachePadded::default()),
            wall,
        }
    }

    /// Takes a change that is being made, unless nobody wants it.
    #[inline]
    pub fn note(&self, change: &Observed<'_>) {
        // ORDERING: SeqCst; pairs with the store of `begin`, and the stamp's, which was taken
        // before (`archive`, 1).
        if self.takes.load(Ordering::SeqCst) {
            self.take_in(change);
        }
    }

    #[cold]
    fn take_in(&self, change: &Observed<'_>) {
        // ORDERING: SeqCst; as in `note`.
        if change.key == LEDGER || self.lost.load(Ordering::SeqCst) {
            return;
        }
        let value = change.is.map(|is| is.bytes);
        let is_whole = change.is.is_none_or(|is| is.bytes.len() == is.len);
        let noted = Change {
            stamp: change.stamp,
            wall: self.wall.now(),
            key: change.key,
            value,
        };
        let bytes = noted.bytes();
        // ORDERING: Relaxed; a count.
        let queued = self.queued.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if !is_whole || queued > self.most {
            return self.lose();
        }
        let shard = &mut *lock(&self.shards[worker() % SHARDS]);
        if shard.try_reserve(bytes).is_err() {
            return self.lose();
        }
        noted.encode(shard);
    }

    fn lose(&self) {
        // ORDERING: SeqCst; before the change is shown (`archive`, 2).
        self.lost.store(true, Ordering::SeqCst);
    }

    /// Whether a change was lost since [`begin`](Self::begin).
    pub(super) fn has_lost(&self) -> bool {
        // ORDERING: SeqCst; pairs with that of `lose`, whose change is below the durable time that
        // the caller has asked for before.
        self.lost.load(Ordering::SeqCst)
    }

    /// Forgets all changes, and takes those that come.
    pub(super) fn begin(&self) {
        for shard in &self.shards {
            *lock(shard) = Vec::new();
        }
        // ORDERING: Relaxed; a count, which is a little high while changes are being lost.
        self.queued.store(0, Ordering::Relaxed);
        // ORDERING: SeqCst (both); pair with those of `note` and `take_in` (`archive`, 1).
        self.lost.store(false, Ordering::SeqCst);
        self.takes.store(true, Ordering::SeqCst);
    }

    /// Moves the changes with stamps in `from..below` to the end of `out`, by their stamps, those
    /// of one commit with one time. Returns how many commits they are of.
    pub(super) fn drain(&self, (from, below): (u64, u64), out: &mut Vec<u8>) -> u64 {
        let mut taken = Vec::with_capacity(SHARDS);
        for shard in &self.shards {
            taken.push(std::mem::take(&mut *lock(shard)));
        }
        let mut due = Vec::new();
        for (shard, bytes) in self.shards.iter().zip(&taken) {
            let (mut rest, mut early, mut passed) = (bytes.as_slice(), Vec::new(), 0);
            while let Some(change) = Change::decode(&mut rest) {
                if change.stamp >= below {
                    change.encode(&mut early);
                } else if change.stamp >= from {
                    due.push(change);
                } else {
                    passed += change.bytes();
                }
            }
            self.release(passed);
            if !early.is_empty() {
                lock(shard).append(&mut early);
            }
        }
        due.sort_by_key(|change| change.stamp);
        let (mut commits, mut stamp, mut wall) = (0, None, 0);
        for mut change in due {
            if stamp != Some(change.stamp) {
                (stamp, wall) = (Some(change.stamp), change.wall);
                commits += 1;
            }
            change.wall = wall;
            change.encode(out);
        }
        commits
    }

    /// Changes of so many bytes are gone.
    pub(super) fn release(&self, bytes: usize) {
        // ORDERING: Relaxed; a count.
        let _ = self
            .queued
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |queued| {
                Some(queued.saturating_sub(bytes))
            });
    }

    pub(super) fn queued(&self) -> u64 {
        // ORDERING: Relaxed; a count.
        self.queued.load(Ordering::Relaxed) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_index::clustered::Glimpse;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    /// A recorder that takes changes, of so many bytes at most, and its clock.
    fn recorder(queue_bytes: usize) -> (Recorder, Arc<AtomicU64>) {
        let now = Arc::new(AtomicU64::new(100));
        let hands = Arc::clone(&now);
        let wall = WallClock::new(move || hands.load(Ordering::Relaxed));
        let options = ArchiveOptions {
            queue_bytes,
            ..ArchiveOptions::new("archive")
        };
        (Recorder::new(Some(&options), wall), now)
    }

    fn note(recorder: &Recorder, key: &[u8], stamp: u64, value: Option<&[u8]>) {
        recorder.note(&Observed {
            key,
            stamp,
            was: None,
            is: value.map(|bytes| Glimpse {
                bytes,
                len: bytes.len(),
            }),
        });
    }

    /// Stamps, times, keys and values.
    type Changes = Vec<(u64, u64, Vec<u8>, Option<Vec<u8>>)>;

    /// What is drained, and of how many commits.
    fn drained(recorder: &Recorder, stamps: (u64, u64)) -> (Changes, u64) {
        let mut out = b"before".to_vec();
        let commits = recorder.drain(stamps, &mut out);
        let mut rest = out.strip_prefix(b"before").unwrap();
        let mut changes = Vec::new();
        while let Some(change) = Change::decode(&mut rest) {
            let value = change.value.map(<[u8]>::to_vec);
            changes.push((change.stamp, change.wall, change.key.to_vec(), value));
        }
        assert!(rest.is_empty());
        (changes, commits)
    }

    #[test]
    fn changes_are_given_by_stamp_and_those_of_a_commit_with_one_time() {
        let (recorder, now) = recorder(1 << 20);
        note(&recorder, b"c", 7, Some(b"3"));
        note(&recorder, b"a", 5, Some(b"1"));
        now.store(200, Ordering::Relaxed);
        note(&recorder, b"b", 5, None);
        note(&recorder, b"d", 9, Some(b"4"));
        note(&recorder, b"e", 10, Some(b"5"));
        let queued = recorder.queued();
        let expected = vec![
            (5, 100, b"a".to_vec(), Some(b"1".to_vec())),
            (5, 100, b"b".to_vec(), None),
            (7, 100, b"c".to_vec(), Some(b"3".to_vec())),
        ];
        assert_eq!(drained(&recorder, (5, 9)), (expected, 2));
        // Whoever has them says when they need no memory any more.
        assert_eq!(recorder.queued(), queued);
        assert_eq!(drained(&recorder, (5, 9)), (Vec::new(), 0));
        let last = vec![(10, 200, b"e".to_vec(), Some(b"5".to_vec()))];
        // That of 9 comes too late, and is forgotten.
        assert_eq!(drained(&recorder, (10, 11)), (last, 1));
        let one = 24 + 1 + 1;
        assert_eq!(recorder.queued(), queued - one);
        recorder.release(4 * 26 - 1);
        assert_eq!(recorder.queued(), 0);
        recorder.release(1);
        assert_eq!(recorder.queued(), 0);
        assert!(!recorder.has_lost());
    }

    #[test]
    fn the_ledger_is_not_taken() {
        let (recorder, _) = recorder(1 << 20);
        note(&recorder, &LEDGER, 5, Some(b"counts"));
        assert_eq!((recorder.queued(), recorder.has_lost()), (0, false));
        assert_eq!(drained(&recorder, (0, u64::MAX)).1, 0);
    }

    #[test]
    fn nothing_is_taken_before_somebody_wants_it() {
        let recorder = Recorder::new(None, WallClock::default());
        note(&recorder, b"key", 5, Some(b"value"));
        assert_eq!(recorder.queued(), 0);
        recorder.begin();
        note(&recorder, b"key", 6, Some(b"value"));
        assert_eq!(recorder.queued(), 24 + 3 + 5);
        assert_eq!(drained(&recorder, (0, u64::MAX)).1, 1);
    }

    #[test]
    fn what_does_not_fit_is_lost_and_another_beginning_takes_all() {
        for (queue_bytes, most) in [(0, 64 << 10), (100_000, 100_000)] {
            let (recorder, _) = recorder(queue_bytes);
            let value = vec![7; most - 24 - 3];
            note(&recorder, b"key", 5, Some(&value));
            assert_eq!(
                (recorder.queued(), recorder.has_lost()),
                (most as u64, false)
            );
            note(&recorder, b"key", 6, None);
            assert!(recorder.has_lost());
            let queued = recorder.queued();
            note(&recorder, b"key", 7, None);
            assert_eq!(recorder.queued(), queued, "nobody needs it");
            recorder.begin();
            assert_eq!((recorder.queued(), recorder.has_lost()), (0, false));
            assert_eq!(drained(&recorder, (0, u64::MAX)).1, 0);
            note(&recorder, b"key", 8, None);
            assert_eq!(drained(&recorder, (0, u64::MAX)).1, 1);
        }
        let (recorder, _) = recorder(usize::MAX);
        assert_eq!(recorder.most, 512 << 20);
    }

    /// Of a long value the tree shows the beginning only.
    #[test]
    fn a_value_that_is_not_seen_whole_is_lost() {
        let (recorder, _) = recorder(1 << 20);
        recorder.note(&Observed {
            key: b"key",
            stamp: 5,
            was: None,
            is: Some(Glimpse {
                bytes: b"begin",
                len: 6,
            }),
        });
        assert!(recorder.has_lost());
    }
}
