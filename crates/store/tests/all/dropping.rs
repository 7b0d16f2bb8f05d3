//! Dropped and cleared keyspaces: what older snapshots still see, and that nothing is left behind.

use crate::common::{ALL, Fixture, PATIENCE, create, restore, text};
use bristlecone_pmem::media::{Auto, MediumKind};
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{
    Batch, Entry, Keyspace, ReadError, Store, StoreOptions, TransactionOptions, WriteError,
};
use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Keyspace `other` with keys 0 to `count`: some written twice, some deleted, one large.
pub fn filled(f: &Fixture, count: u32) -> Keyspace {
    let other = f.store.keyspace("other").unwrap();
    for i in 0..count {
        let key = i.to_be_bytes();
        f.store.put(&other, &key, b"first").unwrap();
        match i % 3 {
            0 => f.store.put(&other, &key, b"second").unwrap(),
            1 => assert!(f.store.delete(&other, &key).unwrap()),
            _ => {}
        }
    }
    f.store.put(&other, b"large", &vec![1; 2 << 20]).unwrap();
    let mut batch = Batch::new();
    batch.put(&other, b"together", b"1");
    batch.put(&f.k, b"stays", b"1");
    f.store.write(batch).unwrap();
    other
}

fn keys(store: &Store<Auto>, keyspace: &Keyspace) -> Result<usize, ReadError> {
    let mut keys = 0;
    store.snapshot().scan::<Vec<u8>>(keyspace, .., |_, _| {
        keys += 1;
        ControlFlow::Continue(())
    })?;
    Ok(keys)
}

/// Checks that the store holds only `stays` in `k` and the catalogue's entry of `k`.
fn only_k_is_left(store: &Store<Auto>) {
    assert_eq!(store.keyspaces().len(), 1);
    store.vacuum_all().unwrap();
    store.check().unwrap();
    let stats = store.stats();
    assert_eq!((stats.keys, stats.versions, stats.garbage_bytes), (2, 2, 0));
    let k = store.find_keyspace("k").unwrap();
    let stays = text(store.get(&k, b"stays").unwrap());
    assert_eq!(stays.as_deref(), Some("1"));
}

fn is_dropped<T: std::fmt::Debug>(answer: Result<T, WriteError>) {
    let error = answer.unwrap_err();
    assert_eq!(error.to_string(), "keyspace \"other\" was dropped");
    assert!(matches!(error, WriteError::Dropped { keyspace } if keyspace == "other"));
}

#[test]
fn who_still_has_a_dropped_keyspace_finds_nothing_there_and_cannot_write() {
    for design in ALL {
        let f = Fixture::new(design);
        let other = filled(&f, 100);
        let mut cursor = f.store.snapshot().into_cursor(&other, ..);
        assert_eq!(cursor.next_keys(10).unwrap().len(), 10);
        let mut late = f.store.begin(TransactionOptions::default());
        late.put(&other, b"late", b"1").unwrap();
        let stale = other.clone();
        f.store.drop_keyspace(other).unwrap();

        assert!(f.store.find_keyspace("other").is_none());
        assert_eq!(
            (f.store.len(&stale), keys(&f.store, &stale).unwrap()),
            (0, 0)
        );
        assert_eq!(f.store.get(&stale, b"large").unwrap(), None);
        assert_eq!(f.store.deferring().get(&stale, b"large").unwrap(), None);
        let one = |found: Option<Entry<'_>>| {
            assert_eq!(found, None);
            ControlFlow::Continue(())
        };
        f.store.multi_get(&stale, &[b"large"], one).unwrap();
        let puts: [(&[u8], &[u8]); 1] = [(b"a", b"1")];
        is_dropped(f.store.put(&stale, b"a", b"1"));
        is_dropped(f.store.delete(&stale, b"large"));
        is_dropped(f.store.increment(&stale, b"a", 1));
        is_dropped(f.store.multi_put(&stale, &puts, |_| true));
        is_dropped(late.commit());
        let mut batch = Batch::new();
        batch.put(&f.k, b"not alone", b"1");
        batch.put(&stale, b"a", b"1");
        is_dropped(f.store.write(batch));
        assert_eq!(f.get("not alone"), None);
        is_dropped(f.store.drop_keyspace(stale.clone()));
        is_dropped(f.store.clear(stale.clone()));

        // A new keyspace of that name is a different one.
        let again = f.store.keyspace("other").unwrap();
        assert!(f.store.is_empty(&again) && again != stale);
        f.store.put(&again, b"a", b"new").unwrap();
        is_dropped(f.store.drop_keyspace(stale.clone()));
        assert_eq!(cursor.next_keys(1000).unwrap().len(), 100 - 33 - 10 + 2);
        drop(cursor);
        f.store.vacuum_all().unwrap();
        f.store.check().unwrap();
        assert_eq!((f.store.len(&again), f.store.len(&stale)), (1, 0));
        assert_eq!(f.store.get(&stale, b"a").unwrap(), None);
        f.store.drop_keyspace(again).unwrap();
        only_k_is_left(&f.store);
        only_k_is_left(&f.reopened().store);
    }
}

#[test]
fn snapshots_from_before_see_all_of_it_until_they_end() {
    for design in ALL {
        let f = Fixture::new(design);
        let other = filled(&f, 60);
        let before = f.store.snapshot();
        f.store.put(&other, b"last", b"1").unwrap();
        let there = f.store.len(&other);
        f.store.drop_keyspace(other.clone()).unwrap();
        assert_eq!(f.store.vacuum_all().unwrap().dropped, 0);
        let seen = before.keyspaces().unwrap();
        assert_eq!(seen[1].name(), "other");
        assert_eq!(before.count::<Vec<u8>>(&seen[1], ..).unwrap(), there - 1);
        let first = before.get(&other, &0u32.to_be_bytes()).unwrap();
        assert_eq!(text(first).as_deref(), Some("second"));
        let after = f.store.snapshot();
        drop(before);
        let report = f.store.vacuum_all().unwrap();
        assert_eq!((report.dropped, report.complete), (there, true));
        assert_eq!(after.count::<Vec<u8>>(&other, ..).unwrap(), 0);
        only_k_is_left(&f.store);
    }
}

#[test]
fn a_serialisable_transaction_that_read_it_conflicts() {
    for design in ALL {
        let f = Fixture::new(design);
        for by_range in [false, true] {
            let other = filled(&f, 3);
            let mut tx = f.store.begin(TransactionOptions::serializable());
            if by_range {
                let seen = tx.prefix(&other, b"no such", |_, _| ControlFlow::Continue(()));
                seen.unwrap();
            } else {
                assert_eq!(tx.get(&other, b"no such").unwrap(), None);
            }
            tx.put(&f.k, b"a", b"1").unwrap();
            let mut blind = f.store.begin(TransactionOptions::serializable());
            blind.put(&f.k, b"b", b"1").unwrap();
            f.store.drop_keyspace(other.clone()).unwrap();
            let error = tx.commit().unwrap_err();
            assert!(matches!(error, WriteError::Conflict(_)), "{error}");
            assert!(error.to_string().contains("\"other\""), "{error}");
            blind.commit().unwrap();
            // A writer that finds it dropped stops there.
            let mut tx = f.store.begin(TransactionOptions::serializable());
            assert_eq!(tx.get(&other, b"together").unwrap(), None);
            tx.put(&f.k, b"c", b"1").unwrap();
            tx.commit().unwrap();
        }
    }
}

#[test]
fn a_cleared_keyspace_is_an_empty_one_of_its_name() {
    for design in ALL {
        let f = Fixture::new(design);
        let other = filled(&f, 60);
        let before = f.store.snapshot();
        let empty = f.store.clear(other.clone()).unwrap();
        assert_eq!(empty.name(), "other");
        assert_eq!(f.store.find_keyspace("other").as_ref(), Some(&empty));
        is_dropped(f.store.put(&other, b"a", b"1"));
        f.store.put(&empty, b"a", b"1").unwrap();
        assert!(before.get(&other, b"large").unwrap().is_some());
        assert_eq!((f.store.len(&empty), f.store.len(&other)), (1, 0));
        drop(before);
        for store in [f.killed(), f.reopened().store] {
            let empty = store.find_keyspace("other").unwrap();
            assert_eq!((store.len(&empty), keys(&store, &empty).unwrap()), (1, 1));
            assert!(store.vacuum_all().unwrap().dropped > 0);
            assert_eq!(store.len(&empty), 1);
            store.drop_keyspace(empty).unwrap();
            only_k_is_left(&store);
        }
    }
}

#[test]
fn what_a_kill_leaves_of_it_goes_with_the_next_vacuums() {
    for design in ALL {
        let f = Fixture::new(design);
        let other = filled(&f, 200);
        let number = other.number();
        f.store.drop_keyspace(other).unwrap();
        let blocks = f.store.stats().block_bytes;
        let mut left = Vec::new();
        loop {
            let killed = f.killed();
            killed.check().unwrap();
            let again = killed.keyspace("other").unwrap();
            assert!(again.number() > number || left.last() == Some(&0));
            assert_eq!((killed.len(&again), keys(&killed, &again).unwrap()), (0, 0));
            left.push(killed.vacuum_all().unwrap().dropped);
            killed.drop_keyspace(again).unwrap();
            only_k_is_left(&killed);
            assert!(killed.stats().block_bytes < blocks / 2);
            if f.store.vacuum(20).unwrap().complete {
                break;
            }
        }
        assert!(
            left.len() > 5 && left.is_sorted_by(|a, b| a >= b),
            "{left:?}"
        );
        assert_eq!(left[0], 200 - 67 + 2);
        only_k_is_left(&f.store);
    }
}

#[test]
fn a_thread_of_the_store_takes_up_what_was_left() {
    for design in ALL {
        let f = Fixture::new(design);
        let other = filled(&f, 500);
        f.store.drop_keyspace(other).unwrap();
        let pool = Pool::<Auto>::open(&f.copy(), &PoolOptions::default()).unwrap();
        let options = StoreOptions {
            vacuum_every: Some(Duration::from_millis(1)),
            ..f.options.clone()
        };
        let store = crate::common::open(&pool, "s", &options).unwrap();
        let begun = Instant::now();
        while store.stats().versions > 2 {
            assert!(begun.elapsed() < PATIENCE, "{:?}", store.stats());
            std::thread::yield_now();
        }
        only_k_is_left(&store);
    }
}

#[test]
fn a_reader_of_the_pool_finds_no_dropped_keyspace_and_changes_nothing() {
    for design in ALL {
        let f = Fixture::new(design);
        let other = filled(&f, 50);
        f.store.drop_keyspace(other).unwrap();
        let path = f.copy();
        let pool = Pool::<Auto>::open(&path, &PoolOptions::read_only()).unwrap();
        let store = crate::common::open(&pool, "s", &f.options).unwrap();
        assert_eq!(store.keyspaces().len(), 1);
        assert_eq!(store.vacuum_all().unwrap().versions, 0);
        store.check().unwrap();
    }
}

#[test]
fn writers_batches_and_backups_beside_one_who_drops() {
    let _alone = crate::common::alone();
    for design in ALL {
        let options = StoreOptions {
            vacuum_every: Some(Duration::from_millis(1)),
            ..StoreOptions::default()
        };
        let f = Fixture::with(design, options);
        let done = AtomicBool::new(false);
        let counted = |number: u32| [&b"count "[..], &number.to_be_bytes()].concat();
        std::thread::scope(|scope| {
            for thread in 0..3u32 {
                let (f, done) = (&f, &done);
                scope.spawn(move || {
                    // A thread that fails ends the others and the thread that waits for their
                    // writes.
                    scopeguard::defer!(done.store(true, Ordering::Relaxed));
                    let mut written = 0u32;
                    let mut other = f.store.keyspace("other").unwrap();
                    while !done.load(Ordering::Relaxed) {
                        // In both keyspaces or in neither.
                        let mut batch = Batch::new();
                        let key = [thread.to_be_bytes(), (written % 50).to_be_bytes()].concat();
                        batch.put(&other, &key, &written.to_le_bytes());
                        batch.put(&f.k, &counted(thread), &(written + 1).to_le_bytes());
                        match f.store.write(batch) {
                            Ok(_) => written += 1,
                            Err(WriteError::Dropped { .. }) => {
                                other = f.store.keyspace("other").unwrap();
                            }
                            Err(e) => panic!("{e}"),
                        }
                    }
                    let count = f.store.get(&f.k, &counted(thread)).unwrap();
                    assert_eq!(count.unwrap_or_default(), written.to_le_bytes());
                });
            }
            scope.spawn(|| {
                scopeguard::defer!(done.store(true, Ordering::Relaxed));
                for round in 0..300 {
                    let other = f.store.keyspace("other").unwrap();
                    while f.store.is_empty(&other) {
                        assert!(!done.load(Ordering::Relaxed), "a writer ended early");
                        std::thread::yield_now();
                    }
                    let snapshot = f.store.snapshot();
                    let seen = |found: &[Keyspace]| {
                        let of = |keyspace| snapshot.count::<Vec<u8>>(keyspace, ..).unwrap();
                        found.iter().map(of).sum::<u64>()
                    };
                    let found = snapshot.keyspaces().unwrap();
                    let before = seen(&found);
                    match round % 3 {
                        0 => f.store.drop_keyspace(other).unwrap(),
                        1 => assert!(f.store.clear(other).unwrap().name() == "other"),
                        _ => {
                            let mut backup = Vec::new();
                            let report = snapshot.backup(&mut backup).unwrap();
                            f.store.drop_keyspace(other).unwrap();
                            assert_eq!(report.entries, before);
                        }
                    }
                    assert_eq!(seen(&found), before, "a snapshot stays as it is");
                }
            });
        });
        if let Some(other) = f.store.find_keyspace("other") {
            f.store.drop_keyspace(other).unwrap();
        }
        f.store.vacuum_all().unwrap();
        let f = f.reopened();
        f.store.vacuum_all().unwrap();
        f.store.check().unwrap();
        let stats = f.store.stats();
        assert_eq!(stats.keys, f.store.len(&f.k) + 1, "and the catalogue's");
    }
}

/// Drops a keyspace, and vacuums, while a backup is being written to it.
struct Dropping<'a> {
    store: &'a Store<Auto>,
    keyspace: Option<Keyspace>,
    written: Vec<u8>,
}

impl io::Write for Dropping<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written.len() > 100_000
            && let Some(keyspace) = self.keyspace.take()
        {
            self.store.drop_keyspace(keyspace).unwrap();
            self.store.vacuum_all().unwrap();
        }
        self.written.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_backup_under_way_has_all_of_it() {
    for design in ALL {
        let f = Fixture::new(design);
        let other = filled(&f, 30);
        for i in 0..1000u32 {
            f.store.put(&other, &i.to_le_bytes(), &[7; 1000]).unwrap();
        }
        let there = f.store.len(&other);
        let mut out = Dropping {
            store: &f.store,
            keyspace: Some(other),
            written: Vec::new(),
        };
        let report = f.store.backup(&mut out).unwrap();
        assert_eq!((report.entries, out.keyspace), (there + 1, None));
        only_k_is_left(&f.store);
        let restored = restore(
            &f.new_pool(),
            "r",
            design,
            &f.options,
            &mut &out.written[..],
        );
        let (restored, _) = restored.unwrap();
        let other = restored.find_keyspace("other").unwrap();
        assert_eq!(restored.len(&other), there);
        restored.check().unwrap();
    }
}

#[test]
fn a_full_pool_takes_a_drop_and_has_room_again() {
    let _alone = crate::common::alone();
    for design in ALL {
        let options = crate::common::on(MediumKind::Dram, 6 << 20);
        let pool = Pool::<Auto>::create("small".as_ref(), &options).unwrap();
        let options = StoreOptions::default().without_thread();
        let store = create(&pool, "s", design, &options).unwrap();
        for round in 0..3u32 {
            let k = store.keyspace("k").unwrap();
            let mut count = 0u32;
            let error = loop {
                match store.put(&k, &count.to_le_bytes(), &[round as u8; 3000]) {
                    Ok(()) => count += 1,
                    Err(e) => break e,
                }
            };
            assert!(matches!(error, WriteError::Space(_)), "{error}");
            assert!(count > 500, "{count} in round {round}");
            store.drop_keyspace(k).unwrap();
        }
        store.vacuum_all().unwrap();
        store.check().unwrap();
    }
}
