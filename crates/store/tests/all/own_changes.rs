//! A transaction reads its own changes by every way to read, and tells how much they take.

use crate::common::{Fixture, TREE};
use bristlecone_store::{
    Direction, Entry, Longer, MAX_KEY_BYTES, Transaction, TransactionOptions, WriteError,
};
use std::ops::ControlFlow;

type Media = bristlecone_pmem::media::Auto;

fn begin(f: &Fixture) -> Transaction<Media> {
    f.store.begin(TransactionOptions::default())
}

fn ranged(
    tx: &mut Transaction<Media>,
    f: &Fixture,
    key: &[u8],
    range: std::ops::Range<u64>,
) -> Option<(u64, String)> {
    let mut into = b"before ".to_vec();
    let len = tx.get_range(&f.k, key, range, &mut into).unwrap();
    let text = String::from_utf8(into).unwrap();
    let read = text.strip_prefix("before ").unwrap().to_owned();
    match len {
        Some(len) => Some((len, read)),
        None => {
            assert_eq!(read, "");
            None
        }
    }
}

#[test]
fn ranges_are_of_the_value_that_the_transaction_sees() {
    let f = Fixture::new(TREE);
    f.hands.set(1_000);
    f.put("stored", "0123456789");
    f.put("deleted", "0123456789");
    let mut tx = begin(&f);
    tx.put(&f.k, b"own", b"abcdefghij").unwrap();
    tx.delete(&f.k, b"deleted").unwrap();
    tx.put_expiring(&f.k, b"over", b"abcdefghij", Some(1_000))
        .unwrap();
    tx.put_expiring(&f.k, b"brief", b"abcdefghij", Some(1_001))
        .unwrap();
    let mut read = |key: &str, range| ranged(&mut tx, &f, key.as_bytes(), range);
    let is = |text: &str| Some((10, text.to_owned()));
    assert_eq!(read("stored", 2..5), is("234"));
    assert_eq!(read("own", 2..5), is("cde"));
    assert_eq!(read("own", 8..50), is("ij"));
    assert_eq!(read("own", 10..50), is(""));
    assert_eq!(read("brief", 0..1), is("a"));
    for none in ["over", "deleted", "never there"] {
        assert_eq!(read(none, 0..9), None, "{none}");
    }
    let long = "k".repeat(MAX_KEY_BYTES + 1);
    assert_eq!(read(&long, 0..9), None);
}

#[test]
fn own_values_are_read_whole_however_long_they_are() {
    let f = Fixture::new(TREE);
    f.hands.set(1_000);
    f.put("b stored", "0123456789");
    f.put("c replaced", "0123456789");
    let mut tx = begin(&f);
    tx.put(&f.k, b"a own", b"0123456789").unwrap();
    tx.put(&f.k, b"c replaced", b"abcdefghij").unwrap();
    tx.put_expiring(&f.k, b"d over", b"1", Some(1_000)).unwrap();
    tx.put_expiring(&f.k, b"e brief", b"1", Some(1_001))
        .unwrap();
    let longer = Longer {
        len: 10,
        expires_at: None,
    };
    let len = |entry: Entry<'_>| (entry.value.len(), entry.expires_at);
    let mut get = |key: &[u8], most| tx.get_within(&f.k, key, most, len).unwrap();
    assert_eq!(get(b"a own", 3), Some(Ok((10, None))));
    assert_eq!(get(b"b stored", 9), Some(Err(longer)));
    assert_eq!(get(b"b stored", 10), Some(Ok((10, None))));
    assert_eq!(get(b"c replaced", 3), Some(Ok((10, None))));
    assert_eq!(get(b"d over", 3), None);
    assert_eq!(get(b"e brief", 3), Some(Ok((1, Some(1_001)))));
    assert_eq!(get(&vec![b'k'; MAX_KEY_BYTES + 1], 3), None);
    let expected = [
        ("a own", Ok((10, None))),
        ("b stored", Err(longer)),
        ("c replaced", Ok((10, None))),
        ("e brief", Ok((1, Some(1_001)))),
    ];
    for direction in [Direction::Up, Direction::Down] {
        let mut found = Vec::new();
        let visit = |key: &[u8], value: Result<Entry<'_>, Longer>| {
            found.push((String::from_utf8(key.to_vec()).unwrap(), value.map(len)));
            ControlFlow::Continue(())
        };
        let scanned = tx.scan_within::<&[u8]>(&f.k, .., (direction, 9), visit);
        scanned.unwrap();
        if direction == Direction::Down {
            found.reverse();
        }
        let found: Vec<_> = found.iter().map(|(key, value)| (&**key, *value)).collect();
        assert_eq!(found, expected, "{direction:?}");
    }
}

#[test]
fn ranges_that_a_serialisable_transaction_read_are_validated() {
    let f = Fixture::new(TREE);
    f.put("read", "0123456789");
    f.put("own", "0123456789");
    for (changed, conflicts) in [("read", true), ("own", false), ("other", false)] {
        let mut tx = f.store.begin(TransactionOptions::serializable());
        tx.put(&f.k, b"own then", b"1").unwrap();
        ranged(&mut tx, &f, b"own then", 0..1);
        ranged(&mut tx, &f, b"read", 0..1);
        f.put(changed, "changed");
        match tx.commit() {
            Err(WriteError::Conflict(e)) if conflicts => {
                assert_eq!((&e.key[..], e.read), (&b"read"[..], true));
            }
            Ok(_) => assert!(!conflicts, "{changed}"),
            Err(e) => panic!("{changed}: {e}"),
        }
    }
}

/// Whoever bounds the memory of transactions asks how much they hold.
#[test]
fn what_is_held_is_what_can_still_be_had() {
    let f = Fixture::new(TREE);
    let put = |tx: &mut Transaction<Media>, key: &str, len: usize| {
        tx.put(&f.k, key.as_bytes(), &vec![7; len]).unwrap();
    };
    let mut tx = begin(&f);
    assert_eq!((tx.held(), tx.changes()), (0, 0));
    put(&mut tx, "a", 1_000);
    let one = tx.held();
    assert!((1_000..1_400).contains(&one), "{one}");
    let first = tx.savepoint();
    put(&mut tx, "b", 2_000);
    let two = tx.held();
    assert_eq!(two, one + one + 1_000);
    // Both values of it can be had.
    put(&mut tx, "a", 500);
    let three = tx.held();
    assert!((two + 500..two + 700).contains(&three), "{three}");
    let third = tx.savepoint();
    tx.delete(&f.k, b"b").unwrap();
    assert!(tx.held() > three);
    tx.rollback_to(third);
    assert_eq!((tx.held(), tx.changes()), (three, 2));
    tx.rollback_to(first);
    assert_eq!((tx.held(), tx.changes()), (one, 1));
    put(&mut tx, "a", 300);
    put(&mut tx, "b", 400);
    tx.forget_savepoints();
    let mut same = begin(&f);
    put(&mut same, "a", 300);
    put(&mut same, "b", 400);
    same.forget_savepoints();
    assert_eq!((tx.held(), tx.changes()), (same.held(), 2));
    assert!((700..1_000).contains(&tx.held()), "{}", tx.held());
    // Only what came afterwards is undone.
    put(&mut tx, "c", 5_000);
    tx.rollback_to(first);
    assert_eq!((tx.held(), tx.changes()), (same.held(), 2));
    tx.delete(&f.k, b"a").unwrap();
    tx.forget_savepoints();
    assert!(tx.held() < same.held());
    assert_eq!(tx.get(&f.k, b"a").unwrap(), None);
}

#[test]
fn a_savepoint_that_was_undone_does_nothing() {
    let f = Fixture::new(TREE);
    let mut tx = begin(&f);
    let none = tx.savepoint();
    tx.put(&f.k, b"a", b"1").unwrap();
    let first = tx.savepoint();
    tx.put(&f.k, b"b", b"2").unwrap();
    let second = tx.savepoint();
    tx.rollback_to(first);
    tx.rollback_to(second);
    assert_eq!(tx.changes(), 1);
    tx.put(&f.k, b"c", b"3").unwrap();
    tx.put(&f.k, b"d", b"4").unwrap();
    // Others are in its place.
    tx.rollback_to(second);
    assert_eq!(tx.changes(), 3);
    tx.rollback_to(first);
    assert_eq!(tx.get(&f.k, b"a").unwrap().unwrap(), b"1");
    assert_eq!(tx.changes(), 1);
    tx.rollback_to(none);
    assert_eq!(tx.changes(), 0);
}
