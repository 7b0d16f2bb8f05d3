//! A store's statistics: numbers of keys, of removed versions, and bytes of space.

use crate::common::{Fixture, PATIENCE, TREE, k, open};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{StoreOptions, VacuumReport};
use std::time::Instant;

/// Bytes of a key of a number, and of a value of these tests.
const ENTRY: u64 = 4 + 10;
/// Bytes of the number of a keyspace.
const PREFIX: u64 = 4;

/// Vacuums so many keys at a time, and returns what all of it adds up to.
fn vacuumed(f: &Fixture, most: usize) -> VacuumReport {
    let mut all = VacuumReport::default();
    while !all.complete {
        let one = f.store.vacuum(most).unwrap();
        assert!(one.versions <= most as u64, "{one:?} of {most}");
        assert_eq!(one.versions, one.expired + one.dropped);
        all.versions += one.versions;
        all.bytes += one.bytes;
        all.expired += one.expired;
        all.dropped += one.dropped;
        all.complete = one.complete;
    }
    all
}

#[test]
fn expired_keys_are_removed_some_at_a_time_and_counted() {
    let f = Fixture::new(TREE);
    for i in 0..1_000_u32 {
        let expires_at = (i % 10 < 3).then_some(2_000 + u64::from(i % 10));
        f.store
            .put_expiring(&f.k, &i.to_be_bytes(), &[7; 10], expires_at)
            .unwrap();
    }
    let before = f.store.stats();
    assert_eq!((before.keys, before.expiring), (1_001, 300));
    assert_eq!(before.live_bytes, 1_000 * ENTRY);
    f.hands.set(1_999);
    assert_eq!(vacuumed(&f, 20).versions, 0);
    f.hands.set(2_001);
    let report = vacuumed(&f, 20);
    assert_eq!((report.expired, report.dropped), (200, 0));
    assert_eq!(report.bytes, 200 * (PREFIX + ENTRY));
    let stats = f.store.stats();
    assert_eq!((stats.vacuumed, stats.vacuumed_bytes), (200, report.bytes));
    assert_eq!((stats.keys, stats.expiring), (801, 100));
    assert_eq!(stats.live_bytes, 800 * ENTRY);
    f.hands.set(3_000);
    assert_eq!(f.store.vacuum_all().unwrap().expired, 100);
    assert_eq!(f.store.stats().vacuumed, 300);
    assert_eq!(f.store.stats().expiring, 0);
    f.store.check().unwrap();
}

#[test]
fn dropped_keys_are_removed_some_at_a_time_and_counted() {
    let f = Fixture::new(TREE);
    let other = f.store.keyspace("other").unwrap();
    for i in 0..1_000_u32 {
        f.store.put(&other, &i.to_be_bytes(), &[7; 10]).unwrap();
        f.store.put(&f.k, &i.to_be_bytes(), &[7; 10]).unwrap();
    }
    let snapshot = f.store.snapshot();
    f.store.drop_keyspace(other).unwrap();
    assert_eq!(vacuumed(&f, 70).versions, 0, "somebody reads it");
    drop(snapshot);
    let report = vacuumed(&f, 70);
    assert_eq!((report.expired, report.dropped), (0, 1_000));
    assert!(report.bytes >= 1_000 * ENTRY, "{report:?}");
    let stats = f.store.stats();
    assert_eq!(
        (stats.vacuumed, stats.vacuumed_bytes),
        (1_000, report.bytes)
    );
    assert_eq!((stats.keys, stats.live_bytes), (1_001, 1_000 * ENTRY));
    assert_eq!(vacuumed(&f, 70).versions, 0);
    f.store.check().unwrap();
}

#[test]
fn what_a_check_counts_is_what_was_put() {
    let f = Fixture::new(TREE);
    for i in 0..500_u32 {
        f.store.put(&f.k, &i.to_be_bytes(), &[7; 10]).unwrap();
    }
    let report = f.store.check().unwrap();
    // The catalogue's entry has a name and a number.
    assert_eq!((report.entries, report.versions), (501, 501));
    assert_eq!(report.bytes, 500 * ENTRY + 1 + 4);
    assert!(f.store.find_damage().is_empty());
}

#[test]
fn the_keys_of_a_killed_store_are_counted_when_somebody_asks() {
    let f = Fixture::new(TREE);
    for i in 0..3_000_u32 {
        let expires_at = i.is_multiple_of(3).then_some(9_000);
        f.store
            .put_expiring(&f.k, &i.to_be_bytes(), &[7; 10], expires_at)
            .unwrap();
    }
    assert!(f.store.is_counted());
    let killed = f.killed();
    assert!(!killed.is_counted());
    assert_eq!(killed.len(&k(&killed)), 3_000);
    assert!(killed.is_counted());
    let stats = killed.stats();
    assert_eq!((stats.keys, stats.live_bytes), (3_001, 3_000 * ENTRY));
    assert_eq!(stats.expiring, 1_000);
    drop(killed);
    // Before the first change, they are counted too.
    let killed = f.killed();
    killed.put(&k(&killed), b"another", b"").unwrap();
    assert!(killed.is_counted());
    assert_eq!(killed.len(&k(&killed)), 3_001);
    drop(killed);
    // In order, the next session is told.
    let f = f.reopened();
    assert!(f.store.is_counted());
    assert_eq!(f.store.stats().expiring, 1_000);
    f.store.check().unwrap();
}

/// Few values are left in each piece of the pool, so none of it is free by itself.
#[test]
fn a_thread_moves_what_is_left_together() {
    const LEFT: u32 = 16;
    let f = Fixture::new(TREE);
    let value = |n: u32| [n.to_le_bytes(); 750].concat();
    for n in 0..12_000_u32 {
        f.store.put(&f.k, &n.to_be_bytes(), &value(n)).unwrap();
    }
    for n in (0..12_000_u32).filter(|n| n % LEFT != 0) {
        f.store.delete(&f.k, &n.to_be_bytes()).unwrap();
    }
    f.store.vacuum_all().unwrap();
    let (dir, options) = f.ended(true);
    let pool = Pool::<Auto>::open(&dir.path().join("pool"), &PoolOptions::default()).unwrap();
    let store = open(&pool, "s", &options).unwrap();
    let full = store.stats().chunk_bytes;
    assert!(full > 30 << 20, "{full}");
    drop(store);
    let with_thread = StoreOptions {
        clock: options.clock,
        ..StoreOptions::default()
    };
    let store = open(&pool, "s", &with_thread).unwrap();
    let until = Instant::now() + PATIENCE;
    while store.stats().chunk_bytes > full / 3 {
        assert!(Instant::now() < until, "{:?}", store.stats());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let k = k(&store);
    for n in 0..12_000_u32 {
        let found = store.get(&k, &n.to_be_bytes()).unwrap();
        assert_eq!(found, (n % LEFT == 0).then(|| value(n)), "{n}");
    }
    store.check().unwrap();
}
