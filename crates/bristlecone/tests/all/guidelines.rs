//! The API guidelines for types: each has the common traits that fit it, can be shared by threads
//! or sent to one, and is shown by `Debug`.

use crate::database;
use bristlecone::index::{IndexRecovery, IndexStats, NumberIndex, NumberIter};
use bristlecone::{
    BackupReport, Batch, CheckReport, CodecError, CompactReport, ConflictError, DamagedRecord,
    Database, Durability, Error, ErrorKind, Event, Isolation, Iter, Keyspace, KeyspaceAt, Medium,
    Options, Savepoint, Slice, Snapshot, StoreRecovery, StoreStats, Transaction, TransactionIter,
    TypedIter, TypedKeyspace, Value, Watch, WatchOptions,
};
use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::iter::FusedIterator;
use std::ops::Deref;

/// `all!([TYPES]: TRAITS)` compiles only if all of the types have all of the traits.
macro_rules! all {
    ([$($type:ty),* $(,)?]: $($bound:tt)+) => {
        const _: () = {
            const fn has<T: $($bound)+>() {}
            $(has::<$type>();)*
        };
    };
}

type Typed = TypedKeyspace<String, u64>;

// Handles are shared by threads and cloned.
all!([Database, Keyspace, Snapshot, Typed, NumberIndex]: Clone + Debug + Send + Sync + Unpin + 'static);
// Transactions and iterators belong to one thread at a time, and can be sent to another one.
all!([Transaction, Watch, Iter, TypedIter<String, u64>, NumberIter]: Debug + Send + Sync + 'static);
all!([TransactionIter<'static>, KeyspaceAt<'static>]: Debug + Send + Sync);
// Iterators go from both ends, and end once. A feed has one end.
all!([Iter, TypedIter<String, u64>, TransactionIter<'static>, NumberIter]: DoubleEndedIterator + FusedIterator);
all!([Watch]: FusedIterator);
// Values have the traits of values.
all!([
    Slice, Event, Durability, Isolation, Medium, ErrorKind, Savepoint, WatchOptions, CodecError,
    ConflictError, BackupReport, CheckReport, CompactReport, StoreRecovery, DamagedRecord,
    IndexRecovery,
]: Clone + Debug + Eq + Send + Sync + 'static);
all!([StoreStats, IndexStats]: Clone + Debug + PartialEq + Default + Send + Sync + 'static);
all!([Options, Batch]: Clone + Debug + Default + Send + Sync + 'static);
all!([Durability, Isolation, Medium, ErrorKind, Savepoint, WatchOptions]: Copy);
all!([Slice, Event, Medium, ErrorKind, Keyspace, Typed]: Hash + Eq);
all!([Slice]: Ord + Default + Deref<Target = [u8]> + Borrow<[u8]> + AsRef<[u8]> + From<Vec<u8>>);
all!([Value<'static>]: Debug + Deref<Target = [u8]> + AsRef<[u8]> + PartialEq<str> + PartialEq<[u8]>);
all!([Durability, Isolation, WatchOptions, StoreRecovery, BackupReport, CheckReport, CompactReport]: Default);
// Errors can be boxed, sent, and shown.
all!([Error, CodecError, ConflictError]: std::error::Error + Display + Debug + Send + Sync + 'static);
#[cfg(feature = "serde")]
all!([bristlecone::Serde<u64>]: Copy + Debug + Default + Ord + Hash + Send + Sync + 'static);

/// Compiles only if `Value` is neither `Send` nor `Sync`: with either of them it would not be known
/// which implementation is meant. It holds back the freeing of memory for the thread that read it.
#[test]
fn a_value_stays_with_its_thread() {
    trait NotIf<Marker> {
        fn holds() {}
    }
    struct Sent;
    struct Shared;
    impl<T> NotIf<()> for T {}
    impl<T: Send> NotIf<Sent> for T {}
    impl<T: Sync> NotIf<Shared> for T {}
    <Value<'static> as NotIf<_>>::holds();
}

#[test]
fn debug_shows_something_of_every_type() {
    let (home, db) = database();
    let k = db.keyspace("orders").unwrap();
    let typed = db.typed::<String, u64>("typed").unwrap();
    let mut watch = k.watch().unwrap();
    k.insert("key", "value").unwrap();
    let snapshot = db.snapshot();
    let index = NumberIndex::open(home.path().join("numbers")).unwrap();
    let mut tx = db.begin();
    let (mut other, mut batch) = (db.begin(), Batch::new());
    other.insert(&k, "key", "other").unwrap();
    batch.remove(&k, "key");
    db.write(batch.clone()).unwrap();
    let error = other.commit().unwrap_err();
    let then = k.at(&snapshot).unwrap();
    let shown: &[(&dyn Debug, &str)] = &[
        (&db, "test.db"),
        (&k, "orders"),
        (&typed, "typed"),
        (&snapshot, "Snapshot"),
        (&then, "orders"),
        (&k.iter(), "orders"),
        (&typed.iter(), "typed"),
        (&tx.savepoint(), "Savepoint"),
        (&tx, "Transaction"),
        (&batch, "key"),
        (&watch.try_next().unwrap().unwrap(), "value"),
        (&watch, "Watch"),
        (&error, "key"),
        (&error.kind(), "Conflict"),
        (&error.conflict().unwrap(), "orders"),
        (&Database::builder(), "create"),
        (&WatchOptions::new(), "1024"),
        (&Slice::default(), "b\"\""),
        (&then.get("key").unwrap().unwrap(), "b\"value\""),
        (&index, "numbers"),
        (&index.iter(), "numbers"),
    ];
    for (value, part) in shown {
        let shown = format!("{value:?}");
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let shown = format!("{:?}", tx.iter(&k));
    assert!(shown.contains("TransactionIter"), "{shown}");
}

#[test]
fn handles_are_equal_and_have_one_hash_if_they_are_of_one_keyspace() {
    let (_home, db) = database();
    let k = db.keyspace("k").unwrap();
    let handles = [
        k.clone(),
        db.deferred().find_keyspace("k").unwrap(),
        k.rename("renamed").unwrap(),
        db.keyspace("another").unwrap(),
        k,
    ];
    assert_eq!(HashSet::from(handles).len(), 2);
    let typed = [(); 2].map(|()| db.typed::<u64, u64>("numbers").unwrap());
    assert_eq!(HashSet::from(typed).len(), 1);
}
