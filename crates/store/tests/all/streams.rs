//! Values that come from streams, and ranges of values.

use crate::common::{ALL, Fixture};
use bristlecone_store::{
    Direction, Entry, Longer, MAX_VALUE_BYTES, TransactionOptions, WriteError,
};
use std::io::{self, Read};
use std::ops::ControlFlow;

const MIB: usize = 1 << 20;

/// Bytes that differ from place to place.
fn pattern(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| (i ^ i >> 9) as u8).collect()
}

/// Gives some bytes at a time, and fails at the end if it is told to.
struct Trickle<'p> {
    bytes: &'p [u8],
    fails: bool,
}

impl Read for Trickle<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() && self.fails {
            return Err(io::Error::other("the line was cut"));
        }
        let len = into.len().min(700_001).min(self.bytes.len());
        into[..len].copy_from_slice(&self.bytes[..len]);
        self.bytes = &self.bytes[len..];
        Ok(len)
    }
}

#[test]
fn streams_of_all_lengths_come_back_and_so_does_each_range() {
    for design in ALL {
        let f = Fixture::new(design);
        for len in [0, 1, 300, 5_000, MIB - 1, MIB + 1, 8 * MIB, 20 * MIB + 3] {
            let value = pattern(len);
            let stream = Trickle {
                bytes: &value,
                fails: false,
            };
            let expires_at = (len % 2 == 0).then_some(1 << 47);
            let put = f.store.put_from(&f.k, b"key", stream, expires_at);
            assert_eq!(put.unwrap(), len as u64, "{design}");
            let longer = Longer {
                len: len as u64,
                expires_at,
            };
            for most in [len as u64, MIB as u64, 0] {
                let is_longer = len as u64 > most;
                let expected = if is_longer { Err(longer) } else { Ok(len) };
                let read = |entry: Entry<'_>| entry.value.len();
                let found = f.store.get_within(&f.k, b"key", most, read).unwrap();
                assert_eq!(found, Some(expected), "{design}: {len}, {most}");
                let mut tx = f.store.begin(TransactionOptions::default());
                let found = tx.get_within(&f.k, b"key", most, read).unwrap();
                assert_eq!(found, Some(expected), "{design}: {len}, {most}");
                for direction in [Direction::Up, Direction::Down] {
                    let mut scanned = Vec::new();
                    let visit = |key: &[u8], found: Result<Entry<'_>, Longer>| {
                        scanned.push((key.to_vec(), found.map(read)));
                        ControlFlow::Continue(())
                    };
                    let way = (direction, most);
                    tx.scan_within::<&[u8]>(&f.k, .., way, visit).unwrap();
                    assert_eq!(scanned, [(b"key".to_vec(), expected)], "{design}");
                }
                let mut seen = 0;
                let all = [&b"key"[..], b"none", b"key"];
                let store = &f.store;
                let read = store.multi_get_within(&f.k, &all, most, |_| {
                    seen += 1;
                    ControlFlow::Continue(())
                });
                read.unwrap();
                assert_eq!(seen, if expected.is_ok() { 3 } else { 0 });
            }
            assert!(
                f.store.get(&f.k, b"key").unwrap().unwrap() == value,
                "{len}"
            );
            for (from, to) in [
                (0, len),
                (len / 3, len / 2),
                (len.max(9) - 9, len + 5),
                (len, len),
            ] {
                let mut into = b"before ".to_vec();
                let range = from as u64..to as u64;
                let whole = f.store.get_range(&f.k, b"key", range, &mut into).unwrap();
                assert_eq!(whole, Some(len as u64));
                let part = &value[from.min(len)..to.min(len)];
                assert!(
                    into[..7] == *b"before " && into[7..] == *part,
                    "{len}: {from}"
                );
            }
        }
        let mut into = Vec::new();
        let none = f.store.get_range(&f.k, b"other", .., &mut into).unwrap();
        assert!(none.is_none() && into.is_empty());
        let snapshot = f.store.snapshot();
        f.put("key", "short");
        let then = snapshot.get_range(&f.k, b"key", 5..8, &mut into).unwrap();
        assert_eq!(then, Some(20 * MIB as u64 + 3));
        assert_eq!(
            into,
            pattern(8)[5..8],
            "as it was when the snapshot was taken"
        );
        f.store.check().unwrap();
    }
}

#[test]
fn a_stream_that_fails_or_is_too_long_changes_nothing_and_leaves_nothing() {
    for design in ALL {
        let f = Fixture::new(design);
        f.put("key", "before");
        f.store.vacuum_all().unwrap();
        let before = f.store.stats();
        let value = pattern(20 * MIB);
        let stream = Trickle {
            bytes: &value,
            fails: true,
        };
        let failed = f.store.put_from(&f.k, b"key", stream, None).unwrap_err();
        assert!(matches!(failed, WriteError::Source(_)), "{failed}");
        assert!(failed.to_string().contains("the line was cut"), "{failed}");
        let long = io::repeat(7).take(MAX_VALUE_BYTES as u64 + 1);
        let failed = f.store.put_from(&f.k, b"key", long, None).unwrap_err();
        assert!(
            matches!(failed, WriteError::ValueTooLong { .. }),
            "{failed}"
        );
        let failed = f.store.put_from(&f.k, &[1; 70_000], io::empty(), None);
        assert!(matches!(failed, Err(WriteError::KeyTooLong { .. })));
        assert_eq!(f.get("key").unwrap(), "before");
        f.store.vacuum_all().unwrap();
        let after = f.store.stats();
        assert_eq!(
            (after.keys, after.versions, after.live_bytes),
            (before.keys, before.versions, before.live_bytes),
            "{design}"
        );
        let more = after.block_bytes.saturating_sub(before.block_bytes);
        assert!(
            more < MIB as u64,
            "{design}: {more} bytes of blocks are left"
        );
        f.store.check().unwrap();
    }
}
