//! Damage in records: found by the vacuum, by opening and by salvaging.

use crate::common::{ALL, Fixture, PATIENCE, text};
use crate::salvage::{filled, salvage};
use bristlecone_index::Direction;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{CloseError, Entries, Place, StoreOptions};
use std::os::unix::fs::FileExt;
use std::time::Duration;

fn find(bytes: &[u8], text: &[u8]) -> u64 {
    let at = bytes.windows(text.len()).position(|window| window == text);
    at.unwrap() as u64
}

#[test]
fn what_the_vacuums_thread_failed_with_is_said() {
    for design in ALL {
        // In several blocks.
        const LONG: u32 = 1_234_567;
        /// The flag of a record whose value is in segments.
        const APART: u32 = 1 << 30;
        let f = Fixture::with(
            design,
            StoreOptions {
                vacuum_every: Some(Duration::from_millis(1)),
                ..StoreOptions::default()
            },
        );
        f.put("a", &"v".repeat(LONG as usize));
        let snapshot = f.store.snapshot();
        f.put("a", "another value");
        // The store's memory is mapped from the file, so the old version now has an impossible
        // length.
        let path = f.store.pool().path().to_path_buf();
        let bytes = std::fs::read(&path).unwrap();
        let length = bytes
            .windows(4)
            .position(|found| found == (LONG | APART).to_le_bytes());
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[0xFF; 4], length.unwrap() as u64)
            .unwrap();
        drop(snapshot);
        // Each vacuum reads the clock once, and frees what the one before could have freed.
        let asked = f.hands.asked();
        let begun = std::time::Instant::now();
        while f.hands.asked() < asked + 4 {
            assert!(
                begun.elapsed() < PATIENCE,
                "the vacuum's thread has stopped"
            );
            std::thread::yield_now();
        }
        let (store, error) = f.store.close().unwrap_err();
        assert!(
            matches!(&error, CloseError::Vacuum(e) if e.to_string().contains("damaged")),
            "{error}"
        );
        assert_eq!(
            text(store.get(&f.k, b"a").unwrap()).as_deref(),
            Some("another value")
        );
    }
}

#[test]
fn a_damaged_catalogue_takes_nothing_away() {
    for design in ALL {
        let f = Fixture::new(design);
        let other = crate::dropping::filled(&f, 10);
        let path = f.copy();
        let bytes = std::fs::read(&path).unwrap();
        // Its record has a value of four bytes, the keyspace's number.
        let value = other.number().to_le_bytes();
        let record = (0..bytes.len() / 16).map(|at| at * 16).find(|at| {
            let word = |i: usize| &bytes[at + i..at + i + 4];
            bytes.len() >= at + 40
                && word(0) == [0; 4]
                && word(4) == [0; 4]
                && word(16) == [4, 0, 0, 0]
                && word(24) == value
        });
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[99], record.unwrap() as u64 + 24)
            .unwrap();
        let pool = Pool::<Auto>::open(&path, &PoolOptions::default()).unwrap();
        let error = crate::common::open(&pool, "s", &f.options)
            .unwrap_err()
            .to_string();
        assert!(error.contains("checksum"), "{error}");
    }
}

#[test]
fn each_damaged_entry_is_named_and_the_others_are_given() {
    for design in ALL {
        let f = filled(design);
        let path = f.copy();
        let bytes = std::fs::read(&path).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let record = |i: u32| find(&bytes, format!("a value to be found, {i:03}").as_bytes());
        file.write_all_at(b"X", record(100)).unwrap();
        // The head: length, flags and checksum; length and flags; stamp.
        file.write_all_at(&[0xFF; 8], record(101) - 8).unwrap();
        file.write_all_at(&[0xFF; 2], record(102) - 6).unwrap();
        file.write_all_at(&[0xFF; 8], record(103) - 16).unwrap();
        let pool = Pool::<Auto>::open(&path, &PoolOptions::read_only()).unwrap();
        let store = crate::common::open(&pool, "s", &f.options).unwrap();
        assert!(store.recovery().damaged >= 3, "{:?}", store.recovery());
        drop((store, pool));
        let (_, (whole, damaged)) = salvage(&path, f.store.now());
        let keys: Vec<&str> = damaged.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(
            keys,
            ["key 100", "key 101", "key 102", "key 103"],
            "{damaged:?}"
        );
        assert!(damaged[0].1.contains("checksum"), "{damaged:?}");
        assert_eq!(whole.len(), 301 - 4);
        let after = std::fs::read(&path).unwrap();
        let changed = after.iter().zip(&bytes).filter(|(a, b)| a != b).count();
        assert!(changed <= 19, "salvaging changes nothing");
    }
}

/// Entries that are read ahead in one piece end at the damaged one, from either side.
#[test]
fn what_comes_before_a_damaged_entry_is_given_and_then_the_error() {
    const ENTRIES: u16 = 2_000;
    const DAMAGED: u16 = 1_000;
    for design in ALL {
        let f = Fixture::new(design);
        for i in 0..ENTRIES {
            let value = format!("value {i:05}, to be found");
            f.store
                .put(&f.k, &i.to_be_bytes(), value.as_bytes())
                .unwrap();
        }
        let path = f.copy();
        let bytes = std::fs::read(&path).unwrap();
        let at = find(
            &bytes,
            format!("value {DAMAGED:05}, to be found").as_bytes(),
        );
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(b"X", at).unwrap();
        let pool = Pool::<Auto>::open(&path, &PoolOptions::default()).unwrap();
        let store = crate::common::open(&pool, "s", &f.options).unwrap();
        let k = crate::common::k(&store);
        let keys = |direction| {
            let mut into = Entries::new(ENTRIES.into(), 1 << 20, 0);
            let read = store
                .snapshot()
                .read::<Vec<u8>>(&k, .., direction, &mut into);
            let error = read.unwrap_err().to_string();
            assert!(error.contains("checksum"), "{error}");
            let (bytes, places) = into.into_parts();
            let key = |place: &Place| u16::from_be_bytes([bytes[place.at], bytes[place.at + 1]]);
            places.iter().map(key).collect::<Vec<_>>()
        };
        // The damaged one alone is missing: no record shares its place with another one.
        assert_eq!(keys(Direction::Up), (0..DAMAGED).collect::<Vec<_>>());
        let above = (DAMAGED + 1..ENTRIES).rev().collect::<Vec<_>>();
        assert_eq!(keys(Direction::Down), above);
        // Also one by one.
        let snapshot = store.snapshot();
        let mut cursor = snapshot.cursor::<Vec<u8>>(&k, ..);
        let mut good = 0;
        while let Ok(next) = cursor.next_batch(1) {
            good += next.len() as u16;
        }
        assert_eq!(good, DAMAGED);
    }
}

/// Without its name, the entries of a keyspace cannot be told from those of a dropped one: opening
/// refuses, and salvaging gives them by the keyspace's number.
#[test]
fn entries_of_a_keyspace_whose_name_is_damaged_are_salvaged_by_its_number() {
    for design in ALL {
        let f = Fixture::new(design);
        let other = f.store.keyspace("other").unwrap();
        f.store.put(&other, b"kept", b"yes").unwrap();
        let path = f.copy();
        let bytes = std::fs::read(&path).unwrap();
        let key = [&[0, 0, 0, 0][..], b"other"].concat();
        let is_name = |at: usize| {
            let head = &bytes[at..at + 24];
            let length = u32::from_le_bytes(head[16..20].try_into().unwrap());
            let sum = u32::from_le_bytes(head[20..24].try_into().unwrap());
            let crc = crc32c::crc32c_append(crc32c::crc32c(&key), &head[16..20]);
            length == 4 && crc32c::crc32c_append(crc, &bytes[at + 24..at + 28]) == sum
        };
        let mut places = (0..bytes.len() - 28).step_by(16);
        let at = places.find(|at| is_name(*at)).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[bytes[at + 24] ^ 0x80], at as u64 + 24)
            .unwrap();
        let pool = Pool::<Auto>::open(&path, &PoolOptions::read_only()).unwrap();
        let refused = crate::common::open(&pool, "s", &f.options).unwrap_err();
        assert!(refused.to_string().contains("damaged"), "{refused}");
        drop(pool);
        let (report, (whole, damaged)) = salvage(&path, f.store.now());
        assert_eq!(report.keyspaces, ["k"]);
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        assert_eq!(damaged[0].0, "other");
        let number = other.number().to_string();
        assert_eq!(whole[&(number, "kept".to_owned())], b"yes");
    }
}
