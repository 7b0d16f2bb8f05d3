//! Entries of the index that lead elsewhere because of a flipped bit.
//!
//! The record that such an entry leads to may be another key's. Opening reported the damage and
//! advised to put the key again, and that freed the other key's record. A flipped bit in the key of
//! the catalogue's entry removed a keyspace's name, and then the vacuum removed all its keys, which
//! looked like those of a dropped keyspace.

use crate::common::{ALL, Fixture, k};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{Store, StoreOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

const KEYS: u32 = 400;

fn value(i: u32) -> Vec<u8> {
    format!("the value of key number {i:04}").into_bytes()
}

/// Writes into a file at an offset.
fn write(path: &Path, at: usize, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at as u64).unwrap();
}

fn find(file: &[u8], bytes: &[u8]) -> Vec<usize> {
    let windows = file.windows(bytes.len()).enumerate();
    windows
        .filter(|(_, found)| *found == bytes)
        .map(|(at, _)| at)
        .collect()
}

fn open(path: &Path, options: &StoreOptions) -> Result<Store<Auto>, String> {
    let pool = Pool::open(path, &PoolOptions::default()).map_err(|e| e.to_string())?;
    crate::common::open(&pool, "s", options).map_err(|e| e.to_string())
}

/// Checks that every key except `except` has its value.
fn all_are_there(store: &Store<Auto>, except: Option<u32>) {
    for i in (0..KEYS).filter(|i| Some(*i) != except) {
        let found = store.get(&k(store), &i.to_be_bytes()).unwrap();
        assert_eq!(found, Some(value(i)), "{i}");
    }
}

#[test]
fn a_key_that_leads_to_anothers_record_is_put_anew_without_harm_to_that() {
    for design in ALL {
        let f = Fixture::new(design);
        for i in 0..KEYS {
            f.store.put(&f.k, &i.to_be_bytes(), &value(i)).unwrap();
        }
        let (dir, options) = f.ended(true);
        let path = dir.path().join("pool");
        let file = std::fs::read(&path).unwrap();
        let record = |i: u32| find(&file, &value(i))[0] as u64 - 24;
        let (one, other) = (record(100), record(300));
        // The index's words with the offset of the first record.
        let words = find(&file, &one.to_le_bytes());
        assert!(!words.is_empty(), "{design}");
        for word in words {
            write(&path, word, &other.to_le_bytes());
        }
        let store = open(&path, &options).unwrap();
        assert_eq!(
            store.recovery().damaged,
            1,
            "{design}: {:?}",
            store.recovery()
        );
        let key = 100u32.to_be_bytes();
        store.get(&k(&store), &key).unwrap_err();
        store.put(&k(&store), &key, b"put anew").unwrap();
        for round in 0..8u32 {
            store.vacuum_all().unwrap();
            // Freed blocks are reused.
            for i in 0..100 {
                let name = format!("more {round} {i}");
                store.put(&k(&store), name.as_bytes(), &value(i)).unwrap();
            }
        }
        let new = store.get(&k(&store), &key).unwrap();
        assert_eq!(new.as_deref(), Some(&b"put anew"[..]));
        all_are_there(&store, Some(100));
        drop(store);
        let store = open(&path, &options).unwrap();
        all_are_there(&store, Some(100));
    }
}

#[test]
fn a_keyspace_whose_name_is_damaged_is_not_taken_for_a_dropped_one() {
    for design in ALL {
        let f = Fixture::new(design);
        let named = f.store.keyspace("a keyspace to be found").unwrap();
        for i in 0..KEYS {
            f.store.put(&f.k, &i.to_be_bytes(), &value(i)).unwrap();
            f.store.put(&named, &i.to_be_bytes(), &value(i)).unwrap();
        }
        let (dir, options) = f.ended(true);
        let path = dir.path().join("pool");
        let file = std::fs::read(&path).unwrap();
        let name = b"\0\0\0\0a keyspace to be found";
        let places = find(&file, name);
        assert!(!places.is_empty(), "{design}");
        for bit in 0..32 {
            let mut flipped = [0u8; 4];
            flipped[bit / 8] ^= 1 << (bit % 8);
            for at in &places {
                write(&path, *at, &flipped);
            }
            if let Ok(store) = open(&path, &options) {
                store.vacuum_all().unwrap();
                let found = store.find_keyspace("a keyspace to be found");
                assert!(
                    found.is_some() || store.recovery().damaged > 0,
                    "{design}, bit {bit}"
                );
            }
            for at in &places {
                write(&path, *at, &name[..4]);
            }
            // Nothing was removed meanwhile.
            let store = open(&path, &options).unwrap();
            all_are_there(&store, None);
            let named = store.find_keyspace("a keyspace to be found").unwrap();
            assert_eq!(store.len(&named), u64::from(KEYS), "{design}, bit {bit}");
        }
    }
}
