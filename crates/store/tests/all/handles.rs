//! Handles of keyspaces.
//!
//! A store once accepted another store's handle: a keyspace was known by its number alone, so
//! `put(&other_stores_orders, ...)` wrote to the keyspace that had that number here.

use crate::common::{ALL, Fixture};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{
    Batch, Keyspace, ReadError, Step, Store, TransactionOptions, Update, WriteError,
};
use std::ops::ControlFlow;

fn refuses_read<T: std::fmt::Debug>(answer: Result<T, ReadError>) {
    let error = answer.unwrap_err();
    let expected = "theirs".to_owned();
    assert_eq!(error, ReadError::OtherStore { keyspace: expected });
    let text = error.to_string();
    assert!(
        text.contains("\"theirs\"") && text.contains("find_keyspace"),
        "{text}"
    );
}

fn refuses_write<T: std::fmt::Debug>(answer: Result<T, WriteError>) {
    let error = answer.unwrap_err();
    assert!(
        matches!(&error, WriteError::OtherStore { keyspace } if keyspace == "theirs"),
        "{error}"
    );
}

/// Tries every operation with a handle of another store whose keyspace has the same number.
#[test]
fn a_keyspace_of_another_store_is_refused_by_every_operation() {
    for design in ALL {
        let (ours, other) = (Fixture::new(design), Fixture::new(design));
        let mine = ours.store.keyspace("mine").unwrap();
        let theirs = other.store.keyspace("theirs").unwrap();
        assert_eq!(mine.number(), theirs.number(), "or the test shows nothing");
        let store = &ours.store;
        store.put(&mine, b"key", b"mine").unwrap();

        writes_are_refused(store, &mine, &theirs);
        reads_are_refused(store, &theirs);
        refuses_write(store.clear(theirs.clone()));
        refuses_write(store.drop_keyspace(theirs.clone()));

        assert_eq!(
            store.get(&mine, b"key").unwrap().as_deref(),
            Some(&b"mine"[..])
        );
        assert_eq!(store.len(&mine), 1);
        let names: Vec<_> = store
            .keyspaces()
            .iter()
            .map(|k| k.name().to_owned())
            .collect();
        assert_eq!(names, ["k", "mine"]);
        other.store.put(&theirs, b"key", b"theirs").unwrap();
        assert_eq!(other.store.len(&theirs), 1);
        store.check().unwrap();
    }
}

fn writes_are_refused(store: &Store<Auto>, mine: &Keyspace, theirs: &Keyspace) {
    refuses_write(store.put(theirs, b"key", b"stray"));
    refuses_write(store.put_expiring(theirs, b"key", b"stray", Some(1)));
    let puts: [(&[u8], &[u8]); 1] = [(b"key", b"stray")];
    refuses_write(store.multi_put(theirs, &puts, |_| true));
    let steps: [(&[u8], _); 1] = [(b"key", Step::Put(b"stray"))];
    refuses_write(store.execute_batch(theirs, &steps, |_| ControlFlow::Continue(())));
    refuses_write(store.delete(theirs, b"key"));
    refuses_write(store.update(theirs, b"key", |_| Ok((Update::Delete, ()))));
    refuses_write(store.compare_and_swap(theirs, b"key", None, Some(b"stray")));
    refuses_write(store.increment(theirs, b"key", 1));
    refuses_write(store.merge(theirs, b"key", |_| Some(b"stray".to_vec())));
    refuses_write(store.expire(theirs, b"key", Some(1)));

    let mut batch = Batch::new();
    batch.put(theirs, b"key", b"stray");
    refuses_write(store.write(batch.clone()));
    // Beside one of this store's, in either order.
    batch.put(mine, b"other", b"lost");
    refuses_write(store.write(batch));
    let mut batch = Batch::new();
    batch.put(mine, b"other", b"lost");
    batch.delete(theirs, b"key");
    refuses_write(store.write(batch.clone()));
    batch.put(mine, b"another", b"lost");
    refuses_write(store.write(batch));

    let mut transaction = store.begin(TransactionOptions::serializable());
    refuses_write(transaction.put(theirs, b"key", b"stray"));
    refuses_write(transaction.delete(theirs, b"key"));
    refuses_read(transaction.get(theirs, b"key"));
    refuses_read(transaction.scan::<Vec<u8>>(theirs, .., |_, _| ControlFlow::Continue(())));
    refuses_read(transaction.scan_reverse::<Vec<u8>>(theirs, .., |_, _| ControlFlow::Break(())));
    refuses_read(transaction.prefix(theirs, b"", |_, _| ControlFlow::Continue(())));
    assert_eq!(transaction.commit().unwrap(), 0, "nothing was taken");
}

fn reads_are_refused(store: &Store<Auto>, theirs: &Keyspace) {
    refuses_read(store.get(theirs, b"key"));
    refuses_read(store.multi_get(theirs, &[b"key"], |_| ControlFlow::Continue(())));
    assert_eq!(store.len(theirs), 0);
    let snapshot = store.snapshot();
    refuses_read(snapshot.get(theirs, b"key"));
    refuses_read(snapshot.scan::<Vec<u8>>(theirs, .., |_, _| ControlFlow::Continue(())));
    refuses_read(snapshot.scan_reverse::<Vec<u8>>(theirs, .., |_, _| ControlFlow::Break(())));
    refuses_read(snapshot.prefix(theirs, b"", |_, _| ControlFlow::Continue(())));
    refuses_read(snapshot.count::<Vec<u8>>(theirs, ..));
    refuses_read(snapshot.cursor::<Vec<u8>>(theirs, ..).next_batch(1));
    refuses_read(snapshot.cursor_reverse::<Vec<u8>>(theirs, ..).next_keys(1));
    refuses_read(snapshot.cursor_prefix(theirs, b"").next_batch(1));
    refuses_read(snapshot.into_cursor(theirs, ..).next_batch(1));
}

/// Numbers of keyspaces may be reused once a store is opened again.
#[test]
fn a_handle_from_before_the_store_was_opened_is_refused() {
    for design in ALL {
        let f = Fixture::new(design);
        let old = f.store.keyspace("theirs").unwrap();
        let f = f.reopened();
        refuses_read(f.store.get(&old, b"key"));
        let new = f.store.find_keyspace("theirs").unwrap();
        assert_ne!(old, new);
        assert_eq!(f.store.get(&new, b"key").unwrap(), None);
    }
}
