//! Values that are written and read in pieces, and ranges of keys that are removed.

use crate::database;
use bristlecone::{Database, ErrorKind, Keyspace, Medium};
use std::io::{self, BufRead, Read, Seek, SeekFrom};

const MIB: usize = 1 << 20;

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i ^ i >> 9) as u8).collect()
}

/// Gives some bytes at a time, calls back, and fails at the end if it is told to.
struct Trickle<'p, F> {
    bytes: &'p [u8],
    then: F,
    fails: bool,
}

impl<F: FnMut()> Read for Trickle<'_, F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (self.then)();
        if self.bytes.is_empty() && self.fails {
            return Err(io::Error::other("the line was cut"));
        }
        let len = into.len().min(700_001).min(self.bytes.len());
        into[..len].copy_from_slice(&self.bytes[..len]);
        self.bytes = &self.bytes[len..];
        Ok(len)
    }
}

fn with_keyspace(test: impl Fn(&Database, &Keyspace)) {
    let (_home, db) = database();
    test(&db, &db.keyspace("k").unwrap());
    db.check().unwrap();
}

#[test]
fn streams_of_all_lengths_come_back() {
    with_keyspace(|_, k| {
        for len in [
            0,
            1,
            300,
            8 * MIB - 1,
            8 * MIB,
            8 * MIB + 1,
            16 * MIB,
            70 * MIB,
        ] {
            let value = pattern(len);
            let stream = Trickle {
                bytes: &value,
                then: || {},
                fails: false,
            };
            assert_eq!(k.insert_from("key", stream).unwrap(), len as u64);
            assert!(k.get("key").unwrap().unwrap() == value, "{len} bytes");
            let mut back = Vec::new();
            let mut reader = k.reader("key").unwrap().unwrap();
            assert_eq!(reader.len(), len as u64);
            reader.read_to_end(&mut back).unwrap();
            assert!(back == value, "{len} bytes, as a stream");
            for (from, to) in [
                (0, 10),
                (len / 2, len / 2 + 100),
                (len.saturating_sub(5), len + 5),
            ] {
                let some = k.get_range("key", from as u64..to as u64).unwrap().unwrap();
                let expected = &value[from.min(len)..to.min(len)];
                assert!(some == expected, "{from} to {to} of {len}");
            }
        }
        assert_eq!(k.iter().count(), 1);
    });
}

#[test]
fn ranges_across_parts_and_an_ordinary_long_value() {
    with_keyspace(|_, k| {
        let value = pattern(100 * MIB);
        k.insert("key", &value).unwrap();
        for (from, len) in [
            (8 * MIB - 3, 6),
            (16 * MIB, 1),
            (24 * MIB - 1, 16 * MIB + 2),
            (0, 100 * MIB),
        ] {
            let some = k.get_range("key", from as u64..(from + len) as u64);
            assert!(
                some.unwrap().unwrap() == value[from..from + len],
                "{len} from {from}"
            );
        }
        assert_eq!(k.get_range("key", 200_000_000..).unwrap().unwrap(), []);
        assert_eq!(k.get_range("other", ..).unwrap(), None);
        assert!(k.reader("other").unwrap().is_none());
    });
}

#[test]
fn a_reader_seeks_and_stays_in_its_snapshot() {
    with_keyspace(|db, k| {
        let value = pattern(20 * MIB);
        k.insert("key", &value).unwrap();
        let mut reader = k.reader("key").unwrap().unwrap();
        let snapshot = db.snapshot();
        k.insert("key", "short").unwrap();
        let mut some = [0; 1000];
        for at in [19 * MIB, 3, 8 * MIB - 500, 20 * MIB - 1000] {
            assert_eq!(reader.seek(SeekFrom::Start(at as u64)).unwrap(), at as u64);
            reader.read_exact(&mut some).unwrap();
            assert!(some == value[at..at + 1000], "at {at}");
        }
        assert_eq!(reader.read(&mut some).unwrap(), 0, "the end");
        assert_eq!(reader.seek(SeekFrom::End(-2)).unwrap(), 20 * MIB as u64 - 2);
        assert_eq!(reader.fill_buf().unwrap().len(), 2);
        reader.seek(SeekFrom::Start(u64::MAX)).unwrap();
        assert_eq!(reader.read(&mut some).unwrap(), 0, "behind the end");
        assert!(reader.seek(SeekFrom::End(-21 * MIB as i64)).is_err());
        let then = k.at(&snapshot).unwrap();
        assert_eq!(then.reader("key").unwrap().unwrap().len(), 20 * MIB as u64);
        assert_eq!(then.get_range("key", 5..8).unwrap().unwrap(), value[5..8]);
        assert_eq!(k.reader("key").unwrap().unwrap().len(), 5);
    });
}

#[test]
fn a_stream_that_fails_changes_nothing_and_leaves_nothing() {
    with_keyspace(|db, k| {
        k.insert("key", "before").unwrap();
        let value = pattern(30 * MIB);
        for _ in 0..4 {
            let stream = Trickle {
                bytes: &value,
                then: || {},
                fails: true,
            };
            let failed = k.insert_from("key", stream).unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::Io);
            assert!(failed.to_string().contains("the line was cut"), "{failed}");
        }
        assert_eq!(k.get("key").unwrap().unwrap(), "before");
        db.compact().unwrap();
        let left = std::fs::metadata(db.path()).unwrap().len();
        assert!(left < 30 << 20, "{left} bytes: the parts went");
        let long = io::repeat(7).take(600 << 20);
        let failed = k.insert_from("key", long).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::InvalidInput, "{failed}");
        let failed = k.insert_from(vec![1; 70_000], io::empty()).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::InvalidInput, "{failed}");
    });
}

#[test]
fn others_write_while_a_stream_is_slow_and_a_dropped_keyspace_refuses_it() {
    let (_home, db) = database();
    let (k, other) = (db.keyspace("k").unwrap(), db.keyspace("other").unwrap());
    let value = pattern(20 * MIB);
    let (mut reads, mut dropped) = (0, false);
    let stream = Trickle {
        bytes: &value,
        then: || {
            reads += 1;
            other
                .insert(format!("{reads}"), "while it streams")
                .unwrap();
            assert!(k.get("key").unwrap().is_none(), "it is not there in part");
            if reads == 20 && !dropped {
                // Waits for nobody.
                db.keyspace("k").unwrap().remove_keyspace().unwrap();
                dropped = true;
            }
        },
        fails: false,
    };
    let failed = k.insert_from("key", stream).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Dropped, "{failed}");
    assert!(other.iter().count() >= 20);
    db.compact().unwrap();
    db.check().unwrap();
    let left = std::fs::metadata(db.path()).unwrap().len();
    assert!(left < 12 << 20, "{left} bytes: the parts went");
}

#[test]
fn a_range_is_removed_and_the_rest_stays() {
    let builder = Database::builder().medium(Medium::Dram);
    let db = builder.open("memory").unwrap();
    let k = db.keyspace("k").unwrap();
    for i in 0..5_000u32 {
        k.insert(i.to_be_bytes(), vec![1; 20 + i as usize % 400])
            .unwrap();
    }
    let key = |i: u32| i.to_be_bytes();
    assert_eq!(k.remove_range(key(10)..key(4_010)).unwrap(), 4_000);
    assert_eq!(k.iter().count(), 1_000);
    assert!(k.contains_key(key(9)).unwrap() && !k.contains_key(key(10)).unwrap());
    assert_eq!(k.remove_range(key(10)..=key(4_010)).unwrap(), 1);
    let backwards = (
        std::ops::Bound::Included(key(7)),
        std::ops::Bound::Excluded(key(3)),
    );
    assert_eq!(k.remove_range(backwards).unwrap(), 0);
    assert_eq!(k.remove_range::<[u8; 4]>(..).unwrap(), 999);
    assert!(k.is_empty().unwrap());
    db.check().unwrap();
}

/// Where others have removed the last keys meanwhile, there is nothing left to wait for but what
/// was removed before.
#[test]
fn what_a_range_loses_is_durable_whoever_else_removes() {
    let dir = tempfile::tempdir().unwrap();
    let options = Database::builder().medium(Medium::Journal);
    let db = options.open(dir.path().join("a.db")).unwrap();
    let k = db.keyspace("k").unwrap();
    let key = |i: u32| i.to_be_bytes();
    for _ in 0..10 {
        let mut all = bristlecone::Batch::new();
        (0..3_000).for_each(|i| all.insert(&k, key(i), [7; 30]));
        db.write(all).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..500).for_each(|i| _ = k.remove(key(2_999 - i)).unwrap()));
            k.remove_range::<[u8; 4]>(..).unwrap();
            // It reads what is durable.
            assert_eq!(k.iter().count(), 0);
        });
    }
}

/// Opening finds out again what the last close did not say.
#[test]
fn a_close_says_what_is_in_use_whatever_was_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    let options = Database::builder().medium(Medium::Journal);
    for round in 0..6u32 {
        let db = options.clone().open(&path).unwrap();
        assert_eq!(db.recovery().index.clean, round > 0, "round {round}");
        let k = db.keyspace("k").unwrap();
        for i in 0..400u32 {
            let len = if i.is_multiple_of(2) { 1_000 } else { 40 };
            k.insert((i % 150).to_be_bytes(), vec![round as u8; len])
                .unwrap();
        }
        k.remove_range(..round.to_be_bytes()).unwrap();
        db.check().unwrap();
    }
}
