//! What subscribers are told, and when, by the feed alone.

use super::*;
use std::cell::Cell;
use std::io;

const K: u32 = 5;

fn put(key: &[u8], ts: u64) -> WatchEvent {
    WatchEvent::Put {
        key: key.into(),
        value: b"value"[..].into(),
        expires_at: None,
        ts,
    }
}

/// A change of keyspace [`K`] whose value has so many bytes.
fn change(feed: &Feed, key: &[u8], value_bytes: usize, ts: u64) {
    feed.change((K, key), value_bytes, ts, || Some(put(key, ts)));
}

fn subscribed(limits: WatchLimits) -> (Arc<Feed>, Watch) {
    let feed = Arc::new(Feed::default());
    let watch = feed.subscribe(K, b"", limits);
    (feed, watch)
}

fn limits(events: usize, bytes: usize) -> WatchLimits {
    WatchLimits { events, bytes }
}

/// The time stamps of the events that are there; of those that are missed, their number below 0.
fn taken(watch: &mut Watch) -> Vec<i64> {
    std::iter::from_fn(|| watch.try_next().unwrap())
        .map(|event| match event {
            WatchEvent::Put { ts, .. } | WatchEvent::Delete { ts, .. } => ts as i64,
            WatchEvent::Cleared { ts } => 1_000 + ts as i64,
            WatchEvent::Dropped { ts } => 2_000 + ts as i64,
            WatchEvent::Lagged { missed } => -(missed as i64),
        })
        .collect()
}

fn failure() -> CommitError {
    CommitError::Failed {
        doing: "syncing",
        source: io::Error::other("gone dead"),
    }
}

#[test]
fn the_defaults_are_those_that_are_documented() {
    assert_eq!(WatchLimits::default(), limits(1_024, 16_777_216));
}

#[test]
fn changes_are_given_by_time_stamp_once_they_are_durable() {
    let (feed, mut watch) = subscribed(WatchLimits::default());
    for ts in [5, 3, 7, 4] {
        change(&feed, b"key", 5, ts);
    }
    // Of one commit, in the order of its changes.
    change(&feed, b"other", 5, 5);
    assert_eq!(taken(&mut watch), [0; 0]);
    feed.advance(3, None);
    assert_eq!(taken(&mut watch), [3]);
    feed.advance(5, None);
    // It does not go back.
    feed.advance(4, None);
    assert_eq!(taken(&mut watch), [4, 5, 5]);
    feed.advance(7, None);
    assert_eq!(watch.try_next().unwrap(), Some(put(b"key", 7)));
    assert!(!watch.is_ended());
}

#[test]
fn only_keys_of_the_keyspace_that_begin_so_are_told() {
    let feed = Arc::new(Feed::default());
    let mut watch = feed.subscribe(K, b"a/", WatchLimits::default());
    for (ts, (keyspace, key)) in
        (1..).zip([(K, "a/1"), (K, "a"), (K, "b/1"), (6, "a/1"), (K, "a/")])
    {
        feed.change((keyspace, key.as_bytes()), 5, ts, || {
            Some(put(key.as_bytes(), ts))
        });
    }
    feed.advance(9, None);
    assert_eq!(taken(&mut watch), [1, 5]);
    assert_eq!(watch.number_in(&feed), Some(K));
    assert_eq!(watch.number_in(&Arc::default()), None);
}

#[test]
fn a_queue_has_what_its_limits_allow_and_no_more() {
    // Two of a byte and three.
    let (feed, mut watch) = subscribed(limits(10, 2 * (ENTRY + 4)));
    for ts in 1..=2 {
        change(&feed, b"k", 3, ts);
    }
    feed.advance(9, None);
    assert_eq!(taken(&mut watch), [1, 2]);
    for ts in 3..=5 {
        change(&feed, b"k", 3, ts);
    }
    assert_eq!(taken(&mut watch), [-1, 4, 5]);
    // One that is all that there may be.
    change(&feed, b"k", 3, 6);
    change(&feed, b"k", ENTRY + 7, 7);
    assert_eq!(taken(&mut watch), [-1, 7]);
    // What was taken makes room.
    change(&feed, b"k", ENTRY + 7, 8);
    assert_eq!(taken(&mut watch), [8]);
    let (feed, mut watch) = subscribed(limits(2, 1 << 20));
    for ts in 1..=5 {
        change(&feed, b"k", 3, ts);
    }
    feed.advance(9, None);
    assert_eq!(taken(&mut watch), [-3, 4, 5]);
    // One change is always kept.
    let (feed, mut watch) = subscribed(limits(0, 1 << 20));
    change(&feed, b"k", 3, 1);
    change(&feed, b"k", 3, 2);
    feed.advance(9, None);
    assert_eq!(taken(&mut watch), [-1, 2]);
}

#[test]
fn a_change_that_is_more_than_all_is_missed_with_what_is_older() {
    let (feed, mut watch) = subscribed(limits(10, 2 * ENTRY));
    let mut other = feed.subscribe(K, b"", WatchLimits::default());
    let made = Cell::new(0);
    feed.change((K, b"k"), 3, 1, || Some(put(b"k", 1)));
    feed.change((K, b"k"), ENTRY, 3, || {
        made.set(made.get() + 1);
        Some(put(b"k", 3))
    });
    // Only the one that may have it needs it made, and once.
    assert_eq!(made.get(), 1);
    feed.change((K, b"k"), 3, 4, || Some(put(b"k", 4)));
    // Its value cannot be read.
    feed.change((K, b"k"), 3, 2, || None);
    feed.advance(9, None);
    assert_eq!(taken(&mut watch), [-3, 4]);
    assert_eq!(taken(&mut other), [-2, 3, 4]);
}

/// Whoever hears that something was missed looks for it, and finds what is durable.
#[test]
fn what_was_missed_is_told_once_all_of_it_is_durable() {
    let (feed, mut watch) = subscribed(limits(1, 1 << 20));
    for ts in 1..=4 {
        change(&feed, b"k", 3, ts);
    }
    feed.advance(2, None);
    assert_eq!(taken(&mut watch), [0; 0]);
    feed.advance(3, None);
    assert_eq!(taken(&mut watch), [-3]);
    feed.advance(4, None);
    assert_eq!(taken(&mut watch), [4]);
}

#[test]
fn a_drop_is_told_last_and_once_it_is_known() {
    let (feed, mut watch) = subscribed(WatchLimits::default());
    change(&feed, b"k", 3, 6);
    feed.keyspace_dropped(6, None, 5);
    feed.keyspace_dropped(K, None, 7);
    // The vacuum takes the keys away.
    change(&feed, b"k", 3, 8);
    feed.advance(9, None);
    assert_eq!(taken(&mut watch), [6]);
    feed.drop_is_known(6);
    assert_eq!(taken(&mut watch), [0; 0]);
    assert!(!watch.is_ended());
    feed.drop_is_known(7);
    assert_eq!(taken(&mut watch), [2_007]);
    assert!(watch.is_ended());
    assert_eq!(taken(&mut watch), [0; 0]);
}

#[test]
fn a_cleared_keyspace_is_followed() {
    let (feed, mut watch) = subscribed(WatchLimits::default());
    feed.keyspace_dropped(K, Some(8), 7);
    assert_eq!(watch.number_in(&feed), Some(8));
    feed.change((8, b"k"), 3, 8, || Some(put(b"k", 8)));
    change(&feed, b"k", 3, 9);
    feed.advance(9, None);
    assert_eq!(taken(&mut watch), [0; 0]);
    feed.drop_is_known(7);
    assert_eq!(taken(&mut watch), [1_007, 8]);
}

#[test]
fn a_watch_of_a_closed_store_ends_when_all_is_taken() {
    let (feed, mut watch) = subscribed(limits(2, 1 << 20));
    for ts in 1..=3 {
        change(&feed, b"k", 3, ts);
    }
    feed.advance(2, None);
    assert!(!watch.is_ended());
    feed.close();
    for expected in [WatchEvent::Lagged { missed: 1 }, put(b"k", 2)] {
        assert!(!watch.is_ended());
        assert_eq!(watch.try_next().unwrap(), Some(expected));
    }
    // The last one will never be durable.
    assert!(watch.is_ended());
    assert_eq!(watch.try_next().unwrap(), None);
    assert!(watch.next().is_none());
    // Nor will what was missed.
    let (feed, watch) = subscribed(limits(1, 1 << 20));
    for ts in 1..=2 {
        change(&feed, b"k", 3, ts);
    }
    feed.close();
    assert!(watch.is_ended());
    // A drop is told, if it is durable.
    for (durable, is_told) in [(6, false), (7, true)] {
        let (feed, mut watch) = subscribed(WatchLimits::default());
        feed.keyspace_dropped(K, None, 7);
        feed.drop_is_known(7);
        feed.advance(durable, None);
        feed.close();
        assert_eq!(watch.is_ended(), !is_told);
        assert_eq!(taken(&mut watch).len(), usize::from(is_told));
        assert!(watch.is_ended());
    }
}

#[test]
fn a_failure_is_told_once_after_what_is_durable() {
    let (feed, mut watch) = subscribed(WatchLimits::default());
    change(&feed, b"k", 3, 1);
    change(&feed, b"k", 3, 2);
    feed.advance(1, Some(&failure()));
    feed.advance(1, Some(&failure()));
    assert!(!watch.is_ended());
    assert_eq!(watch.try_next().unwrap(), Some(put(b"k", 1)));
    let e = watch.try_next().unwrap_err();
    assert!(e.to_string().contains("gone dead"), "{e}");
    assert!(watch.is_ended());
    assert_eq!(taken(&mut watch), [0; 0]);
    // One that was closed before has nothing to tell.
    let (feed, mut watch) = subscribed(WatchLimits::default());
    feed.close();
    feed.advance(1, Some(&failure()));
    assert_eq!(watch.try_next().unwrap(), None);
    assert!(watch.is_ended());
}

#[test]
fn a_feed_is_watched_while_somebody_watches() {
    let feed = Arc::new(Feed::default());
    assert!(!feed.is_watched());
    let first = feed.subscribe(K, b"", WatchLimits::default());
    let mut second = feed.subscribe(K, b"", WatchLimits::default());
    drop(first);
    assert!(feed.is_watched());
    change(&feed, b"k", 3, 1);
    feed.advance(1, None);
    assert_eq!(taken(&mut second), [1]);
    drop(second);
    assert!(!feed.is_watched() && lock(&feed.all).is_empty());
}
