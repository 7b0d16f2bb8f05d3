//! Handles that do not wait for durability: what they and others see, and when.

use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{Batch, Store, StoreOptions, TransactionOptions, Update, WriteError};
use std::sync::Arc;

fn journalled(dir: &tempfile::TempDir) -> (Arc<Pool<Auto>>, Store<Auto>) {
    let pool = crate::common::journalled(dir.path());
    let store = crate::common::make(&pool, "store", &StoreOptions::default()).unwrap();
    (pool, store)
}

#[test]
fn what_is_deferred_is_seen_by_those_that_defer_and_by_all_once_it_is_settled() {
    let dir = crate::common::directory();
    let (_pool, store) = journalled(&dir);
    let keys = store.keyspace("keys").unwrap();
    let deferring = store.deferring();
    deferring.put(&keys, b"a", b"1").unwrap();
    let mut batch = Batch::new();
    batch.put(&keys, b"b", b"2");
    batch.put(&keys, b"c", b"3");
    deferring.write(batch).unwrap();
    assert_eq!(deferring.increment(&keys, b"a", 4).unwrap(), 5);
    let mut transaction = deferring.begin(TransactionOptions::serializable());
    assert_eq!(
        transaction.get(&keys, b"b").unwrap().as_deref(),
        Some(&b"2"[..])
    );
    transaction.put(&keys, b"d", b"4").unwrap();
    transaction.commit().unwrap();

    let applied = deferring.applied();
    assert!(store.durable() < applied, "no one has asked for it");
    for key in [b"a", b"b", b"c", b"d"] {
        assert!(deferring.get(&keys, key).unwrap().is_some());
        assert_eq!(
            store.get(&keys, key).unwrap(),
            None,
            "a power cut undoes it"
        );
    }
    let before = store.snapshot();
    store.make_durable(applied).unwrap();
    assert!(store.durable() >= applied);
    assert_eq!(store.get(&keys, b"a").unwrap().as_deref(), Some(&b"5"[..]));
    assert_eq!(
        before.get(&keys, b"a").unwrap(),
        None,
        "a snapshot stays as it is"
    );
}

#[test]
fn one_that_waits_makes_durable_what_others_deferred() {
    let dir = crate::common::directory();
    let (_pool, store) = journalled(&dir);
    let keys = store.keyspace("keys").unwrap();
    store.deferring().put(&keys, b"a", b"1").unwrap();
    // An operation whose answer rests on an undurable change waits, even if it changes nothing.
    assert!(store.delete(&keys, b"a").unwrap());
    assert_eq!(store.durable(), store.deferring().applied());
    store.deferring().put(&keys, b"a", b"2").unwrap();
    let found = store.update(&keys, b"a", |entry| {
        Ok::<_, WriteError>((Update::Keep, entry.map(|entry| entry.value.to_vec())))
    });
    assert_eq!(found.unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(store.get(&keys, b"a").unwrap().as_deref(), Some(&b"2"[..]));
}

#[test]
fn what_was_deferred_is_there_when_the_store_was_closed() {
    let dir = crate::common::directory();
    let (pool, store) = journalled(&dir);
    let keys = store.keyspace("keys").unwrap();
    let deferring = store.deferring();
    for n in 0..1000_u32 {
        deferring.put(&keys, &n.to_be_bytes(), b"value").unwrap();
    }
    drop((store, deferring));
    drop(pool);
    let pool = Pool::<Auto>::open(&dir.path().join("pool"), &PoolOptions::default()).unwrap();
    let store = crate::common::open(&pool, "store", &StoreOptions::default()).unwrap();
    let keys = store.find_keyspace("keys").unwrap();
    assert_eq!(store.len(&keys), 1000);
}

#[test]
fn what_one_thread_deferred_another_one_makes_durable() {
    let dir = crate::common::directory();
    let home = dir.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let pool: Arc<Pool<Auto>> = crate::common::journalled(&home);
    let store = crate::common::make(&pool, "store", &StoreOptions::default()).unwrap();
    let keys = store.keyspace("keys").unwrap();
    std::thread::scope(|scope| {
        let write = || store.deferring().put(&keys, b"a", b"1").unwrap();
        scope.spawn(write).join().unwrap();
    });
    store.make_durable(store.applied()).unwrap();
    // A power cut loses what is not in the files now.
    let after = dir.path().join("after");
    crate::journal::copy(&home, &after);
    let pool = Pool::<Auto>::open(&after.join("pool"), &PoolOptions::default()).unwrap();
    let store = crate::common::open(&pool, "store", &StoreOptions::default()).unwrap();
    let keys = store.find_keyspace("keys").unwrap();
    assert_eq!(store.get(&keys, b"a").unwrap().as_deref(), Some(&b"1"[..]));
}

#[test]
fn who_learns_of_a_drop_reads_nothing_that_was_there() {
    let dir = crate::common::directory();
    let (_pool, store) = journalled(&dir);
    for round in 0..100 {
        let old = store.keyspace("dropped").unwrap();
        store.put(&old, b"key", b"value").unwrap();
        std::thread::scope(|scope| {
            // The drop is applied but not durable while the disk is busy.
            scope.spawn(|| store.drop_keyspace(old.clone()).unwrap());
            if round % 2 == 0 {
                while store.find_keyspace("dropped").is_some() {}
            } else {
                while store.put(&old, b"other", b"value").is_ok() {}
            }
            assert_eq!(store.get(&old, b"key").unwrap(), None, "round {round}");
        });
    }
    store.check().unwrap();
}
