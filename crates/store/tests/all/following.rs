//! Change feeds while threads write: each change comes once, in the order of the commits, and not
//! before a power cut would leave it.

use crate::common::PATIENCE;
use crate::failing::{after_a_cut, made};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::media::journal::fault::FaultDisk;
use bristlecone_store::{
    Keyspace, Store, TransactionOptions, Watch, WatchEvent, WatchLimits, WriteError,
};
use std::collections::BTreeMap;
use std::time::Duration;

const COUNTERS: [&[u8]; 3] = [b"0", b"1", b"2"];
/// The key that is put last.
const END: &[u8] = b"end";
const UNLIMITED: WatchLimits = WatchLimits {
    events: usize::MAX,
    bytes: usize::MAX,
};

fn number(text: &[u8]) -> u64 {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

/// Adds one to a counter, or to two in one commit.
fn count(store: &Store<Auto>, k: &Keyspace, thread: usize, i: usize) {
    let [a, b] = [i, i + 1 + thread].map(|at| COUNTERS[at % COUNTERS.len()]);
    if a == b || i.is_multiple_of(3) {
        store.increment(k, a, 1).unwrap();
        return;
    }
    loop {
        let mut tx = store.begin(TransactionOptions::default());
        for key in [a, b] {
            let before = tx.get(k, key).unwrap();
            let sum = before.as_deref().map_or(0, number) + 1;
            tx.put(k, key, sum.to_string().as_bytes()).unwrap();
        }
        match tx.commit() {
            Ok(_) => return,
            Err(WriteError::Conflict(_)) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

/// The counters of a snapshot, and its time stamp.
fn counters(store: &Store<Auto>, k: &Keyspace) -> (BTreeMap<Vec<u8>, u64>, u64) {
    let snapshot = store.snapshot();
    let of = |key: &[u8]| snapshot.get(k, key).unwrap().as_deref().map_or(0, number);
    let all = COUNTERS.map(|key| (key.to_vec(), of(key)));
    (all.into(), snapshot.timestamp())
}

/// Follows the counters until the last change. Every change is its counter's next number, so one
/// that is lost, comes twice or comes out of order shows at once.
fn follow(store: &Store<Auto>, k: &Keyspace, mut watch: Watch) {
    let (mut seen, since) = counters(store, k);
    let mut last = 0;
    loop {
        let event = watch.next_timeout(PATIENCE).unwrap();
        let Some(WatchEvent::Put { key, value, ts, .. }) = event else {
            panic!("{event:?}");
        };
        assert!(ts >= last, "{ts} after {last}");
        assert!(ts <= store.durable(), "{ts} is not durable");
        last = ts;
        if *key == *END {
            break;
        }
        if ts > since {
            let counter = seen.get_mut(&*key).unwrap();
            *counter += 1;
            assert_eq!(number(&value), *counter, "at {ts}, after {since}");
        }
    }
    assert_eq!(watch.try_next().unwrap(), None);
    assert_eq!(seen, counters(store, k).0);
}

#[test]
fn whoever_begins_among_commits_gets_each_later_change_once_and_in_order() {
    let disk = FaultDisk::new(1);
    disk.set_sync_time(Duration::from_micros(20));
    let (store, k) = made(&disk);
    let (store, k) = (&store, &k);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|thread| {
                scope.spawn(move || {
                    // One does not wait for its changes to be durable.
                    let deferring = store.deferring();
                    for i in 0..600 {
                        if thread > 0 {
                            count(store, k, thread, i);
                            continue;
                        }
                        count(&deferring, k, thread, i);
                        if i.is_multiple_of(8) {
                            store.make_durable(deferring.applied()).unwrap();
                        }
                    }
                })
            })
            .collect();
        for _ in 0..6 {
            let watch = store.watch(k, b"", UNLIMITED).unwrap();
            scope.spawn(move || follow(store, k, watch));
            std::thread::sleep(Duration::from_millis(2));
        }
        for writer in writers {
            writer.join().unwrap();
        }
        store.put(k, END, b"").unwrap();
    });
}

/// Writes the numbers from 1 on under a key of the thread's own until the disk is gone.
fn write_until_cut(store: &Store<Auto>, k: &Keyspace, thread: usize) {
    let deferring = store.deferring();
    for i in 1_u64.. {
        let value = i.to_string();
        let done = if thread == 0 {
            deferring
                .put(k, COUNTERS[0], value.as_bytes())
                .and_then(|()| {
                    if i.is_multiple_of(4) {
                        store.make_durable(deferring.applied())
                    } else {
                        Ok(())
                    }
                })
        } else {
            store.put(k, COUNTERS[thread], value.as_bytes())
        };
        if done.is_err() {
            return;
        }
    }
}

#[test]
fn what_was_given_before_a_power_cut_is_there_after_it() {
    let mut given_in_all = 0;
    for round in 0..40_u64 {
        let disk = FaultDisk::new(round);
        let (store, k) = made(&disk);
        let mut watch = store.watch(&k, b"", UNLIMITED).unwrap();
        disk.cut_after(1 + round * 7);
        let given = std::thread::scope(|scope| {
            for thread in 0..COUNTERS.len() {
                let (store, k) = (&store, &k);
                scope.spawn(move || write_until_cut(store, k, thread));
            }
            let mut given = BTreeMap::new();
            // The failure comes last.
            while let Ok(event) = watch.next_timeout(PATIENCE) {
                let Some(WatchEvent::Put { key, value, .. }) = event else {
                    panic!("{event:?}");
                };
                let before = given.insert(key, number(&value)).unwrap_or(0);
                given_in_all += 1;
                assert_eq!(number(&value), before + 1);
            }
            given
        });
        assert!(watch.is_ended());
        for seed in 0..3 {
            let (after, k) = after_a_cut(&disk, seed);
            for (key, given) in &given {
                let kept = after.get(&k, key).unwrap();
                let kept = kept.as_deref().map_or(0, number);
                assert!(kept >= *given, "{given} was given, {kept} is there");
            }
        }
    }
    assert!(given_in_all > 100, "{given_in_all}");
}
