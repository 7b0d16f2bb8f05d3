//! Closing a store: the errors, and that nothing is lost.

use crate::common::{ALL, Fixture, text};
use bristlecone_pmem::media::journal::fault::FaultDisk;
use bristlecone_pmem::{Access, CommitError};
use bristlecone_store::{CloseError, TransactionOptions};

#[test]
fn whoever_still_has_it_is_in_the_way() {
    for design in ALL {
        let f = Fixture::new(design);
        f.put("a", "1");
        let mut store = f.store;
        let (clone, snapshot) = (store.clone(), store.snapshot());
        let cursor = snapshot.cursor::<Vec<u8>>(&f.k, ..);
        let transaction = store.begin(TransactionOptions::default());
        let others: [Box<dyn FnOnce()>; 4] = [
            Box::new(|| drop(clone)),
            Box::new(|| drop(snapshot)),
            Box::new(|| drop(cursor)),
            Box::new(|| transaction.rollback()),
        ];
        for other in others {
            let (back, error) = store.close().unwrap_err();
            assert!(matches!(error, CloseError::InUse), "{error}");
            // The store is as it was.
            back.put(&f.k, b"a", b"2").unwrap();
            store = back;
            other();
        }
        let pool = std::sync::Arc::clone(store.pool());
        assert!(
            crate::common::open(&pool, "s", &f.options).is_err(),
            "it is open"
        );
        store.close().map_err(|(_, e)| e).unwrap();
        let store = crate::common::open(&pool, "s", &f.options).unwrap();
        let k = store.find_keyspace("k").unwrap();
        assert_eq!(text(store.get(&k, b"a").unwrap()).as_deref(), Some("2"));
        store.close().map_err(|(_, e)| e).unwrap();
    }
}

#[test]
fn what_was_deferred_is_durable_when_it_is_closed() {
    let disk = FaultDisk::new(1);
    let (store, k) = crate::failing::made(&disk);
    store.deferring().put(&k, b"a", b"new").unwrap();
    disk.set_full(true);
    let (store, error) = store.close().unwrap_err();
    assert!(
        matches!(error, CloseError::Commit(CommitError::NoSpace { .. })),
        "{error}"
    );
    disk.set_full(false);
    let pool = std::sync::Arc::clone(store.pool());
    store.close().map_err(|(_, e)| e).unwrap();
    let (cut, k) = crate::failing::after_a_cut(&disk, 2);
    assert_eq!(text(cut.get(&k, b"a").unwrap()).as_deref(), Some("new"));
    drop(pool);
}

#[test]
fn a_disk_that_fails_for_good_is_reported() {
    let disk = FaultDisk::new(1);
    let (store, k) = crate::failing::made(&disk);
    disk.fail_sync(1);
    store.deferring().put(&k, b"a", b"new").unwrap();
    let (store, error) = store.close().unwrap_err();
    let failed =
        |error: &CloseError| matches!(error, CloseError::Commit(CommitError::Failed { .. }));
    assert!(failed(&error), "{error}");
    assert_eq!(text(store.get(&k, b"a").unwrap()).as_deref(), Some("old"));
    assert!(store.close().is_err_and(|(_, error)| failed(&error)));
}

#[test]
fn a_store_says_whether_it_was_closed_in_order() {
    for design in ALL {
        let f = Fixture::new(design);
        assert!(!f.killed().recovery().in_order);
        assert!(f.reopened().store.recovery().in_order);
    }
    // Also after a power cut, if the pool was closed before it.
    let disk = FaultDisk::new(1);
    let (store, _) = crate::failing::made(&disk);
    let (cut, _) = crate::failing::after_a_cut(&disk, 1);
    assert!(!cut.recovery().in_order);
    store.close().map_err(|(_, e)| e).unwrap();
    // Whether it was written to or not.
    for _ in 0..2 {
        let (cut, _) = crate::failing::after_a_cut(&disk, 1);
        assert!(cut.recovery().in_order);
        drop(cut);
        let pool = crate::failing::on(&disk, Access::ReadWrite);
        let store = crate::common::open(&pool, "s", &crate::failing::options()).unwrap();
        store.close().map_err(|(_, e)| e).unwrap();
    }
}
