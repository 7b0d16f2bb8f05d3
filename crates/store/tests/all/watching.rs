//! Change feeds: every way to write reaches them, once it is durable, in order, and they never grow
//! without bound.

use crate::common::{ALL, Fixture, PATIENCE, TREE};
use crate::failing::made;
use bristlecone_pmem::CommitError;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::media::journal::fault::FaultDisk;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{
    Batch, Keyspace, Store, StoreOptions, TransactionOptions, Watch, WatchEvent, WatchLimits,
    WriteError,
};
use std::collections::BTreeMap;
use std::time::Duration;

fn watch(f: &Fixture, prefix: &str) -> Watch {
    let watch = (f.store).watch(&f.k, prefix.as_bytes(), WatchLimits::default());
    watch.unwrap()
}

/// Events as text: `key=value`, `-key`, or what else it is.
fn shown(event: &WatchEvent) -> String {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    match event {
        WatchEvent::Put { key, value, .. } => format!("{}={}", text(key), text(value)),
        WatchEvent::Delete { key, .. } => format!("-{}", text(key)),
        WatchEvent::Cleared { .. } => "cleared".into(),
        WatchEvent::Dropped { .. } => "dropped".into(),
        WatchEvent::Lagged { missed } => format!("missed {missed}"),
    }
}

/// Takes all events that are there.
fn taken(watch: &mut Watch) -> Vec<String> {
    std::iter::from_fn(|| watch.try_next().unwrap())
        .map(|event| shown(&event))
        .collect()
}

#[test]
fn every_way_to_write_is_reported() {
    for design in ALL {
        let f = Fixture::new(design);
        f.put("before", "1");
        let mut all = watch(&f, "");
        let mut some = watch(&f, "some/");
        let other = f.store.keyspace("other").unwrap();
        let (store, k) = (&f.store, &f.k);
        f.put("a", "1");
        store.put(&other, b"a", b"another keyspace").unwrap();
        store.put(k, b"some/a", &vec![7; 3 << 20]).unwrap();
        store
            .put_expiring(k, b"some/b", b"short", Some(70))
            .unwrap();
        assert!(store.expire(k, b"some/b", Some(90)).unwrap());
        assert_eq!(store.increment(k, b"n", 5).unwrap(), 5);
        store.merge(k, b"n", |_| Some(b"merged".into())).unwrap();
        let swapped = store.compare_and_swap(k, b"n", Some(b"merged"), None);
        assert_eq!(swapped.unwrap(), Ok(()));
        let swapped = store.compare_and_swap(k, b"n", Some(b"merged"), Some(b"no"));
        assert_eq!(swapped.unwrap(), Err(None));
        assert!(store.delete(k, b"a").unwrap() && !store.delete(k, b"a").unwrap());
        let put = store.multi_put(k, &[(b"t", b"1"), (b"before", b"2")], |_| true);
        assert_eq!(put.unwrap(), 2);
        let mut batch = Batch::new();
        batch.put(k, b"some/c", b"batch");
        batch.delete(k, b"t");
        batch.delete(k, b"never there");
        store.write(batch).unwrap();
        let mut tx = store.begin(TransactionOptions::serializable());
        tx.put(k, b"x", b"1").unwrap();
        tx.put(k, b"some/d", b"1").unwrap();
        tx.commit().unwrap();
        let mut dropped = store.begin(TransactionOptions::default());
        dropped.put(k, b"x", b"never").unwrap();
        dropped.rollback();

        let long = format!("some/a={}", "\\x07".repeat(3 << 20));
        let some_changes = ["some/b=short", "some/b=short", "some/c=batch", "some/d=1"];
        let found = taken(&mut some);
        assert!(found[0] == long);
        assert_eq!(found[1..], some_changes);
        let found = taken(&mut all);
        assert!(found[1] == long);
        assert_eq!(found[0], "a=1");
        // Those of one timestamp: records in the order in which they are put, a tree by key.
        let together = if design == TREE {
            "before=2 t=1"
        } else {
            "t=1 before=2"
        };
        let rest = format!(
            "some/b=short some/b=short n=5 n=merged -n -a {together} some/c=batch -t some/d=1 x=1"
        );
        assert_eq!(found[2..].join(" "), rest);

        // Expiry is no commit.
        f.hands.set(1000);
        store.vacuum_all().unwrap();
        assert_eq!(f.get("some/b"), None);
        assert_eq!((taken(&mut all).len(), taken(&mut some).len()), (0, 0));
    }
}

#[test]
fn a_put_says_when_it_expires_and_when_it_was_committed() {
    for design in ALL {
        let f = Fixture::new(design);
        let mut all = watch(&f, "");
        let expires = Some(1 << 40);
        f.store.put_expiring(&f.k, b"a", b"1", expires).unwrap();
        let now = f.store.snapshot().timestamp();
        let event = all.try_next().unwrap().unwrap();
        let (key, value) = (b"a"[..].into(), b"1"[..].into());
        let put = WatchEvent::Put {
            key,
            value,
            expires_at: expires,
            ts: now,
        };
        assert_eq!(event, put);
    }
}

#[test]
fn a_cleared_keyspace_is_watched_on_and_a_dropped_one_ends_the_watch() {
    for design in ALL {
        let f = Fixture::new(design);
        let mut all = watch(&f, "");
        f.put("a", "1");
        let empty = f.store.clear(f.k.clone()).unwrap();
        f.store.put(&empty, b"b", b"2").unwrap();
        f.store.drop_keyspace(empty.clone()).unwrap();
        // One of the same name is another keyspace.
        let again = f.store.keyspace("k").unwrap();
        f.store.put(&again, b"c", b"3").unwrap();
        // What it takes away is no news.
        f.store.vacuum_all().unwrap();
        assert!(!all.is_ended());
        let events = std::iter::from_fn(|| all.try_next().unwrap());
        let events: Vec<_> = events.map(|event| shown(&event)).collect();
        assert_eq!(events, ["a=1", "cleared", "b=2", "dropped"]);
        assert!(all.is_ended());
        let refused = f.store.watch(&empty, b"", WatchLimits::default());
        assert!(matches!(refused, Err(WriteError::Dropped { .. })));
    }
}

fn journalled(dir: &tempfile::TempDir) -> (Store<Auto>, Keyspace) {
    let pool = crate::common::journalled(dir.path());
    let store = crate::common::make(&pool, "store", &StoreOptions::default()).unwrap();
    let k = store.keyspace("k").unwrap();
    (store, k)
}

#[test]
fn nothing_is_reported_before_it_is_durable() {
    let dir = crate::common::directory();
    let (store, k) = journalled(&dir);
    let mut all = store.watch(&k, b"", WatchLimits::default()).unwrap();
    let deferring = store.deferring();
    for key in [b"a", b"b"] {
        deferring.put(&k, key, b"1").unwrap();
    }
    assert_eq!(taken(&mut all), [""; 0]);
    store.make_durable(deferring.applied()).unwrap();
    assert_eq!(taken(&mut all), ["a=1", "b=1"]);
    deferring.put(&k, b"c", b"1").unwrap();
    store.put(&k, b"d", b"1").unwrap();
    assert_eq!(
        taken(&mut all),
        ["c=1", "d=1"],
        "made durable by a commit that waits"
    );

    // Nor is the news that something was missed, since it is not to be found elsewhere yet.
    let few = WatchLimits {
        events: 2,
        ..WatchLimits::default()
    };
    let mut slow = store.watch(&k, b"", few).unwrap();
    for key in [b"e", b"f", b"g", b"h"] {
        deferring.put(&k, key, b"1").unwrap();
    }
    assert_eq!(taken(&mut slow), [""; 0]);
    store.make_durable(deferring.applied()).unwrap();
    assert_eq!(taken(&mut slow), ["missed 2", "g=1", "h=1"]);
}

/// A subscriber that does not read has the newest changes, within its limits.
#[test]
fn one_that_does_not_read_is_told_how_much_it_missed() {
    for design in ALL {
        let f = Fixture::new(design);
        let limits = |events, bytes| WatchLimits { events, bytes };
        let mut few = f.store.watch(&f.k, b"", limits(3, 1 << 20)).unwrap();
        let mut small = f.store.watch(&f.k, b"", limits(100, 2000)).unwrap();
        for i in 0..1000 {
            f.put(&format!("{i:04}"), "v");
        }
        assert_eq!(
            taken(&mut few),
            ["missed 997", "0997=v", "0998=v", "0999=v"]
        );
        let found = taken(&mut small);
        let missed: usize = found[0].strip_prefix("missed ").unwrap().parse().unwrap();
        assert_eq!(missed + found.len() - 1, 1000);
        assert!((10..=20).contains(&(found.len() - 1)), "{found:?}");
        assert_eq!(found.last().unwrap(), "0999=v");

        // One change that is more than it may have: what comes before it is lost, too, so that the
        // order holds.
        f.put("a", "1");
        f.put("long", &"v".repeat(4000));
        f.put("b", "2");
        assert_eq!(taken(&mut small), ["missed 2", "b=2"]);
        assert_eq!(taken(&mut few).len(), 3);
    }
}

/// Threads write by each protocol, and subscribers that begin at any time have, with a snapshot,
/// all of it.
#[test]
fn a_snapshot_and_what_follows_it_are_the_keyspace_whoever_writes() {
    for design in ALL {
        let f = Fixture::new(design);
        let limits = WatchLimits {
            events: usize::MAX,
            bytes: usize::MAX,
        };
        let key = |n: u32| [n as u8 % 13];
        let write = |thread: u32, n: u32| {
            let value = (thread << 16 | n).to_be_bytes();
            match n % 4 {
                0 => f.store.put(&f.k, &key(n), &value).unwrap(),
                1 => {
                    f.store.delete(&f.k, &key(n * 7)).unwrap();
                }
                2 => {
                    let mut batch = Batch::new();
                    for i in 0..3 {
                        batch.put(&f.k, &key(n + i), &value);
                    }
                    batch.delete(&f.k, &key(n + 5));
                    f.store.write(batch).unwrap();
                }
                _ => {
                    let (a, b) = (key(n), key(n + 1));
                    let puts = [(&a[..], value), (&b[..], value)];
                    f.store.multi_put(&f.k, &puts, |_| true).unwrap();
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || (0..3000).for_each(|n| write(thread, n)));
            }
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(3));
                let watch = f.store.watch(&f.k, b"", limits).unwrap();
                let snapshot = f.store.snapshot();
                let mut map = BTreeMap::new();
                snapshot
                    .scan::<Vec<u8>>(&f.k, .., |key, entry| {
                        map.insert(key.to_vec(), entry.value.to_vec());
                        std::ops::ControlFlow::Continue(())
                    })
                    .unwrap();
                let f = &f;
                scope.spawn(move || follow(f, watch, snapshot.timestamp(), map));
            }
        });
    }
}

/// Follows the changes after `since` until nothing comes for a while, and compares what they make
/// of `map`.
fn follow(f: &Fixture, mut watch: Watch, since: u64, mut map: BTreeMap<Vec<u8>, Vec<u8>>) {
    let mut last = 0;
    while let Some(event) = watch.next_timeout(Duration::from_secs(2)).unwrap() {
        let (at, key, value) = match event {
            WatchEvent::Put { ts, key, value, .. } => (ts, key, Some(value)),
            WatchEvent::Delete { ts, key } => (ts, key, None),
            other => panic!("{other:?}"),
        };
        assert!(at >= last, "{at} after {last}");
        last = at;
        if at <= since {
            continue;
        }
        match value {
            Some(value) => drop(map.insert(key.to_vec(), value.to_vec())),
            None => assert!(map.remove(&*key).is_some(), "deleted what was not there"),
        }
    }
    let mut found = BTreeMap::new();
    let snapshot = f.store.snapshot();
    snapshot
        .scan::<Vec<u8>>(&f.k, .., |key, entry| {
            found.insert(key.to_vec(), entry.value.to_vec());
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(map, found);
}

#[test]
fn waiting_ends_with_a_change_with_the_time_and_with_the_store() {
    let dir = crate::common::directory();
    let (store, k) = journalled(&dir);
    let mut watch = store.watch(&k, b"", WatchLimits::default()).unwrap();
    assert_eq!(watch.next_timeout(Duration::ZERO).unwrap(), None);
    assert_eq!(watch.next_timeout(Duration::from_millis(5)).unwrap(), None);
    let reader = std::thread::spawn(move || {
        let first = watch.next_timeout(PATIENCE).unwrap().map(|e| shown(&e));
        assert_eq!(first.as_deref(), Some("a=1"));
        watch.map(|e| shown(&e.unwrap())).collect::<Vec<_>>()
    });
    store.put(&k, b"a", b"1").unwrap();
    store.put(&k, b"b", b"2").unwrap();
    // It does not keep the store open, and closing makes durable what was deferred.
    store.deferring().put(&k, b"c", b"3").unwrap();
    store.close().map_err(|(_, e)| e).unwrap();
    assert_eq!(reader.join().unwrap(), ["b=2", "c=3"]);
}

#[test]
fn a_medium_that_fails_is_said_once_and_ends_the_watch() {
    let disk = FaultDisk::new(7);
    let (store, k) = made(&disk);
    let mut watch = store.watch(&k, b"", WatchLimits::default()).unwrap();
    disk.set_full(true);
    store.put(&k, b"a", b"full").unwrap_err();
    assert_eq!(watch.try_next().unwrap(), None, "it is not durable");
    assert!(!watch.is_ended());
    disk.set_full(false);
    store.put(&k, b"b", b"new").unwrap();
    assert_eq!(taken(&mut watch), ["a=full", "b=new"]);
    disk.fail_sync(1);
    store.put(&k, b"c", b"new").unwrap_err();
    let error = watch.next().unwrap().unwrap_err();
    assert!(matches!(error, CommitError::Failed { .. }), "{error}");
    assert!(watch.next().is_none() && watch.is_ended());
}

#[test]
fn who_only_reads_has_nothing_to_watch() {
    for design in ALL {
        let f = Fixture::new(design);
        let (dir, options) = f.ended(true);
        let path = dir.path().join("pool");
        let mut read = PoolOptions::default();
        read.media.access = bristlecone_pmem::Access::ReadOnly;
        let pool = Pool::<bristlecone_pmem::media::Auto>::open(&path, &read).unwrap();
        let store = crate::common::open(&pool, "s", &options).unwrap();
        let k = store.find_keyspace("k").unwrap();
        let refused = store.watch(&k, b"", WatchLimits::default());
        assert!(matches!(refused, Err(WriteError::ReadOnly)));
    }
}

/// A subscriber that was told that its keyspace was cleared looked up the name, and got the
/// keyspace from before, which reads as empty and takes no writes.
#[test]
fn a_subscriber_that_is_told_of_a_clearing_finds_the_new_keyspace() {
    for design in ALL {
        let f = Fixture::new(design);
        let mut watch = watch(&f, "");
        std::thread::scope(|scope| {
            let clearer = scope.spawn(|| {
                let mut k = f.k.clone();
                for _ in 0..200 {
                    k = f.store.clear(k).unwrap();
                }
            });
            let mut cleared = 0;
            while cleared < 200 {
                match watch.next_timeout(PATIENCE).unwrap() {
                    Some(WatchEvent::Cleared { .. }) => cleared += 1,
                    other => panic!("{other:?}"),
                }
                // By name it is there, or already a later one; never one that is gone, unless it
                // goes now.
                let found = f.store.find_keyspace(f.k.name()).unwrap();
                match f.store.put(&found, b"after", b"it") {
                    Ok(()) | Err(WriteError::Dropped { .. }) => {}
                    Err(e) => panic!("{e}"),
                }
                while let Some(event) = watch.try_next().unwrap() {
                    cleared += usize::from(matches!(event, WatchEvent::Cleared { .. }));
                }
            }
            clearer.join().unwrap();
        });
        let now = f.store.watched(&watch).unwrap();
        assert_eq!(Some(&now), f.store.find_keyspace(f.k.name()).as_ref());
        f.store.put(&now, b"k", b"v").unwrap();
        let other = Fixture::new(design);
        assert!(other.store.watched(&watch).is_none());
        f.store.drop_keyspace(now).unwrap();
        assert!(f.store.watched(&watch).is_none());
    }
}

/// The watch ended before the changes that deferring handles had made, which were durable
/// afterwards.
#[test]
fn dropping_the_last_handle_gives_the_last_changes_first() {
    let dir = tempfile::tempdir().unwrap();
    let (store, k) = journalled(&dir);
    let limits = WatchLimits::default();
    let mut watch = store.watch(&k, b"", limits).unwrap();
    let deferring = store.deferring();
    deferring.put(&k, b"late", b"1").unwrap();
    drop((store, deferring));
    assert_eq!(taken(&mut watch), ["late=1"]);
    assert!(watch.is_ended());
    assert_eq!(watch.try_next().unwrap(), None);
}

/// The tree has long keys elsewhere. Whoever watches is told what they are.
#[test]
fn long_keys_are_told_whole() {
    for design in ALL {
        let f = Fixture::new(design);
        let mut all = watch(&f, "");
        let key = "k".repeat(5_000);
        f.put(&key, "1");
        f.put(&key, "2");
        let mut batch = Batch::new();
        batch.put(&f.k, key.as_bytes(), b"3");
        batch.put(&f.k, b"short", b"4");
        f.store.write(batch).unwrap();
        assert!(f.store.delete(&f.k, key.as_bytes()).unwrap());
        let mut told = taken(&mut all);
        // Those of a batch come in any order.
        told[2..4].sort();
        let expected = [
            format!("{key}=1"),
            format!("{key}=2"),
            format!("{key}=3"),
            "short=4".to_owned(),
            format!("-{key}"),
        ];
        assert!(told == expected, "{design}: {} events", told.len());
    }
}
