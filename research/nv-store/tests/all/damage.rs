//! Damaged pools: reads return the right value or an error that explains the damage, and never
//! panic.

use crate::common::{ALL, Fixture, k};
use bristlecone_pmem::heap::damage_is_expected;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{Store, TransactionOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

fn filled(design: &str) -> Fixture {
    let f = Fixture::new(design);
    for i in 0..200 {
        f.put(
            &format!("key {i}"),
            &format!("a value that can be found, {i}").repeat(1 + i % 4),
        );
    }
    f.store
        .put(&f.k, b"large", &vec![9; (2 << 20) + 5])
        .unwrap();
    let mut tx = f.store.begin(TransactionOptions::default());
    for i in 0..20 {
        tx.put(&f.k, format!("key {i}").as_bytes(), b"by a transaction")
            .unwrap();
    }
    tx.commit().unwrap();
    f
}

fn write_at(path: &Path, at: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

fn find(path: &Path, text: &[u8]) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    let at = bytes.windows(text.len()).position(|window| window == text);
    at.unwrap() as u64
}

fn open(path: &Path, f: &Fixture) -> Result<Store<Auto>, String> {
    let pool = Pool::open(path, &PoolOptions::default()).map_err(|e| e.to_string())?;
    crate::common::open(&pool, "s", &f.options).map_err(|e| e.to_string())
}

#[test]
fn a_changed_value_fails_the_check_which_names_its_key() {
    for design in ALL {
        let f = filled(design);
        let path = f.copy();
        write_at(&path, find(&path, b"can be found, 150"), b"was");
        let store = open(&path, &f).unwrap();
        let violation = store.check().unwrap_err().to_string();
        assert!(
            violation.contains("key 150") && violation.contains("checksum"),
            "{violation}"
        );
    }
}

#[test]
fn a_record_that_leads_astray_is_an_error_that_says_where() {
    for design in ALL {
        let f = filled(design);
        // Stamp; length, flags and checksum.
        for (word, what) in [(1, [0xFF; 8]), (2, [0xFF; 8])] {
            let path = f.copy();
            let at = find(&path, b"a value that can be found, 150") - 24;
            write_at(&path, at + word * 8, &what);
            let store = open(&path, &f).unwrap();
            let [damaged] = &store.recovery().damage[..] else {
                panic!("{:?}", store.recovery());
            };
            assert_eq!(damaged.key(), Some((f.k.number(), &b"key 150"[..])));
            assert_eq!(damaged.offset, at);
            let k = k(&store);
            let error = store.get(&k, b"key 150").unwrap_err().to_string();
            assert!(
                error.contains("key 150") && error.contains("damaged"),
                "{error}"
            );
            let violation = store.check().unwrap_err().to_string();
            assert!(violation.contains(&damaged.to_string()), "{violation}");
            assert!(store.get(&k, b"key 151").unwrap().is_some());
        }
    }
}

#[test]
fn nothing_that_is_in_the_file_makes_it_panic() {
    damage_is_expected::here();
    for design in ALL {
        let f = filled(design);
        let length = std::fs::metadata(f.copy()).unwrap().len();
        let mut rng = SmallRng::seed_from_u64(5);
        let mut refused = 0;
        for round in 0..60 {
            let path = f.copy();
            for _ in 0..rng.random_range(1..40) {
                // Past the pool's own tables, which the pool's tests cover.
                let at = rng.random_range(65_536 / 8..length / 8) * 8;
                let bytes: [u8; 8] = match rng.random_range(0..4) {
                    0 => [0; 8],
                    1 => [0xFF; 8],
                    2 => rng.random_range(0..length).to_le_bytes(),
                    _ => rng.random(),
                };
                write_at(&path, at, &bytes);
            }
            // Words of the file copied elsewhere, so that offsets lead to wrong places.
            let file = std::fs::read(&path).unwrap();
            for _ in 0..20 {
                let from = rng.random_range(65_536 / 8..1 << 16) as usize * 8;
                let to = rng.random_range(65_536 / 8..1 << 16) * 8;
                if from + 8 <= file.len() {
                    write_at(&path, to, &file[from..from + 8]);
                }
            }
            let Ok(store) = open(&path, &f) else {
                refused += 1;
                std::fs::remove_file(&path).unwrap();
                continue;
            };
            let snapshot = store.snapshot();
            // The damage may be in its entry of the catalogue.
            let k = store
                .find_keyspace("k")
                .or_else(|| store.keyspace("k").ok());
            let k = k.unwrap_or_else(|| store.keyspace("another").unwrap());
            let _ = snapshot.scan::<Vec<u8>>(&k, .., |_, _| ControlFlow::Continue(()));
            let _ = snapshot.scan_reverse::<Vec<u8>>(&k, .., |_, _| ControlFlow::Continue(()));
            for i in 0..200 {
                let key = format!("key {i}");
                let _ = store.get(&k, key.as_bytes());
                let _ = store.put(&k, key.as_bytes(), b"new");
                if (i + round) % 3 == 0 {
                    let _ = store.delete(&k, key.as_bytes());
                }
            }
            drop(snapshot);
            let _ = store.vacuum_all();
            let _ = store.check();
            drop(store);
            std::fs::remove_file(&path).unwrap();
        }
        assert!(refused > 0, "{design}");
    }
}
