//! A single flipped bit of a version record never removes data silently.
//!
//! Opening once judged records by words whose checksum it did not compare, and removed records that
//! seemed uncommitted or expired. 41 of the 64 bits of the expiry and flags of a value without
//! expiry made it expire in the past, so the vacuum freed it. Bit 63 of a stamp made a record
//! uncommitted. One word of the commit table undid a whole transaction. None of this was reported.

use crate::common::{ALL, Fixture};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{
    Batch, Keyspace, Store, StoreOptions, StoreRecovery, TransactionOptions, Update, WriteError,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Ms since 1970 in the year 2023, by the store's clock.
const NOW: u64 = 1_700_000_000_000;
/// Expiry of the empty value, by which the test finds its record.
const LATER: u64 = NOW + 0x1234_5678;
/// Bytes of a record before a value that does not expire.
const HEADER: u64 = 24;
/// Words of a record.
const STAMP: u64 = 1;
const BODY: u64 = 2;
/// The expiry, or the first bytes of a value that does not expire.
const EXPIRY: u64 = 3;

type Expected = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store's file, its content, and the places of some records.
struct Subject {
    options: StoreOptions,
    _dir: TempDir,
    path: PathBuf,
    expected: Expected,
    /// Offsets of the records of some keys.
    records: BTreeMap<&'static str, u64>,
    /// Offset of the word of the slot that the transaction went through.
    slot: u64,
}

fn place(file: &[u8], text: &[u8]) -> u64 {
    let mut at = (0..file.len() / 8).map(|word| word * 8);
    let at = at.find(|at| file[*at..].starts_with(text)).unwrap();
    at as u64
}

impl Subject {
    fn new(design: &str, closed: bool) -> Self {
        let f = Fixture::new(design);
        f.hands.set(NOW);
        let mut expected = Expected::new();
        let put = |expected: &mut Expected, key: &str, value: Vec<u8>, expires_at| {
            let put = f
                .store
                .put_expiring(&f.k, key.as_bytes(), &value, expires_at);
            put.unwrap();
            expected.insert(key.into(), value);
        };
        for i in 0..40 {
            put(
                &mut expected,
                &format!("key {i}"),
                format!("value {i}").into(),
                None,
            );
        }
        put(
            &mut expected,
            "plain",
            b"a plain value, of one put".to_vec(),
            None,
        );
        put(
            &mut expected,
            "expiring",
            b"some value that expires".to_vec(),
            Some(NOW + 5_000_000),
        );
        put(&mut expected, "empty", Vec::new(), Some(LATER));
        // Its first bytes are a time in the past.
        let dated = [&(NOW - 5_000_000).to_le_bytes()[..], b"is no expiry"].concat();
        put(&mut expected, "dated", dated, None);
        let lines = b"a value of more lines ".repeat(9);
        put(&mut expected, "lines", lines, None);
        put(&mut expected, "newer", b"the old value".to_vec(), None);
        put(&mut expected, "newer", b"the new value".to_vec(), None);
        put(
            &mut expected,
            "large",
            b"a large value, ".repeat(90_000),
            None,
        );
        f.store.put(&f.k, b"gone", b"deleted").unwrap();
        f.store.delete(&f.k, b"gone").unwrap();
        let mut tx = f.store.begin(TransactionOptions::default());
        for key in ["tx 0", "tx 1", "tx 2", "key 7"] {
            let value = format!("by a transaction: {key}");
            tx.put(&f.k, key.as_bytes(), value.as_bytes()).unwrap();
            expected.insert(key.into(), value.into());
        }
        let ts = tx.commit().unwrap();
        // Not the newest commit.
        put(&mut expected, "last", b"and one more".to_vec(), None);
        let (dir, options) = f.ended(closed);
        let path = dir.path().join("pool");
        let file = std::fs::read(&path).unwrap();
        let of_value = |text: &[u8]| place(&file, text) - HEADER;
        let records = BTreeMap::from([
            ("plain", of_value(b"a plain value")),
            ("expiring", of_value(b"some value that expires") - 8),
            ("dated", of_value(b"is no expiry") - 8),
            ("empty", place(&file, &LATER.to_le_bytes()) - EXPIRY * 8),
            ("lines", of_value(b"a value of more lines")),
            ("newer", of_value(b"the new value")),
            ("tx 1", of_value(b"by a transaction: tx 1")),
            ("large", {
                let segment = place(&file, b"a large value");
                place(&file, &segment.to_le_bytes()) - HEADER
            }),
        ]);
        // The slot's line has the timestamp with its parity, and nothing else.
        let parity = ts.to_le_bytes().iter().fold(0, |sum, byte| sum ^ byte);
        let mut line = [0; 64];
        line[..8].copy_from_slice(&(1 << 63 | u64::from(parity) << 55 | ts).to_le_bytes());
        let slot = place(&file, &line);
        Self {
            options,
            _dir: dir,
            path,
            expected,
            records,
            slot,
        }
    }

    /// Copies the file with one bit of the words at these places flipped.
    fn flipped(&self, words: &[u64], bit: u32) -> PathBuf {
        let path = self.path.with_extension("flipped");
        std::fs::copy(&self.path, &path).unwrap();
        let options = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path);
        let file = options.unwrap();
        for at in words {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, *at).unwrap();
            let word = u64::from_le_bytes(word) ^ 1 << bit;
            file.write_all_at(&word.to_le_bytes(), *at).unwrap();
        }
        path
    }

    fn open(&self, path: &Path) -> (Store<Auto>, Keyspace) {
        let pool = Pool::open(path, &PoolOptions::default()).unwrap();
        let store = crate::common::open(&pool, "s", &self.options).unwrap();
        let k = store.find_keyspace("k").unwrap();
        (store, k)
    }

    /// Checks that every key has the right value, or is an error and was reported. Returns the keys
    /// that are errors.
    fn look(&self, store: &Store<Auto>, k: &Keyspace, what: &str) -> BTreeSet<Vec<u8>> {
        let reported = reported(store.recovery(), k);
        let mut damaged = BTreeSet::new();
        for (key, value) in &self.expected {
            let name = key.escape_ascii().to_string();
            match store.get(k, key) {
                Ok(found) => assert_eq!(found.as_ref(), Some(value), "{what}: {name}"),
                Err(e) => {
                    let e = e.to_string();
                    let says = e.contains("damaged") && e.contains(&name) && e.contains("backup");
                    assert!(says, "{what}: {e}");
                    damaged.insert(key.clone());
                }
            }
        }
        assert_eq!(store.get(k, b"gone"), Ok(None), "{what}");
        // Opening does not verify long values. A check finds their damage.
        let late = [b"large".to_vec()];
        assert!(reported.is_subset(&damaged), "{what}: {reported:?}");
        assert!(
            damaged.difference(&reported).all(|key| late.contains(key)),
            "{what}: {damaged:?}, reported {reported:?}"
        );
        self.look_otherwise(store, k, &damaged, what);
        damaged
    }

    /// Checks that scans, reads of several keys and `check` report the same damage.
    fn look_otherwise(
        &self,
        store: &Store<Auto>,
        k: &Keyspace,
        damaged: &BTreeSet<Vec<u8>>,
        what: &str,
    ) {
        let mut seen = Expected::new();
        let scanned = store.snapshot().scan::<Vec<u8>>(k, .., |key, entry| {
            seen.insert(key.to_vec(), entry.value.to_vec());
            ControlFlow::Continue(())
        });
        match damaged.first() {
            None => {
                scanned.unwrap();
                assert_eq!(seen, self.expected, "{what}");
            }
            Some(first) => {
                let e = scanned.unwrap_err().to_string();
                let name = first.escape_ascii().to_string();
                assert!(e.contains("damaged") && e.contains(&name), "{what}: {e}");
                let before: Vec<_> = self.expected.range(..first.clone()).collect();
                assert_eq!(seen.iter().collect::<Vec<_>>(), before, "{what}");
            }
        }
        let keys: Vec<&[u8]> = self.expected.keys().map(Vec::as_slice).collect();
        let mut count = 0;
        let together = store.multi_get(k, &keys, |entry| {
            let (key, value) = self.expected.iter().nth(count).unwrap();
            assert_eq!(
                entry.map(|entry| entry.value),
                Some(&value[..]),
                "{what}: {key:?}"
            );
            count += 1;
            ControlFlow::Continue(())
        });
        assert_eq!(together.is_err(), !damaged.is_empty(), "{what}");
        let found = store.find_damage();
        let keys: BTreeSet<Vec<u8>> = (found.iter())
            .filter_map(|damaged| Some(damaged.key()?.1.to_vec()))
            .collect();
        assert_eq!(&keys, damaged, "{what}");
        match store.check() {
            Ok(_) => assert!(found.is_empty(), "{what}"),
            Err(e) => {
                let e = e.to_string();
                assert!(!found.is_empty(), "{what}: {e}");
                for damaged in found {
                    assert!(e.contains(&damaged.to_string()), "{what}: {e}");
                }
            }
        }
    }
}

/// Returns the keys that a report names.
fn reported(report: &StoreRecovery, k: &Keyspace) -> BTreeSet<Vec<u8>> {
    assert_eq!(report.damaged, report.damage.len() as u64);
    let keys = report.damage.iter().filter_map(|damaged| {
        let (number, key) = damaged.key()?;
        assert_eq!(number, k.number());
        Some(key.to_vec())
    });
    keys.collect()
}

/// Flips each bit of a word, in all of these records at once.
fn flip(subject: &Subject, word: u64, keys: &[&str], what: &str) {
    let places: Vec<u64> = keys
        .iter()
        .map(|key| subject.records[key] + word * 8)
        .collect();
    for bit in 0..64 {
        let what = format!("{what}, word {word}, bit {bit}");
        let path = subject.flipped(&places, bit);
        let (store, k) = subject.open(&path);
        let damaged = subject.look(&store, &k, &what);
        // Another possible timestamp changes nothing for a single write. A pending record with one
        // no longer belongs to its transaction.
        let all: BTreeSet<Vec<u8>> = keys.iter().map(|key| Vec::from(*key)).collect();
        let expected = match word {
            STAMP if bit < 54 => [b"tx 1".to_vec()].into(),
            _ => all,
        };
        assert_eq!(damaged, expected, "{what}");
        if bit % 4 != 3 {
            continue;
        }
        // The vacuum leaves it alone, and so does the next opening.
        store.vacuum_all().unwrap();
        assert_eq!(subject.look(&store, &k, &what), damaged, "{what}: vacuumed");
        drop(store);
        let (store, k) = subject.open(&path);
        assert_eq!(subject.look(&store, &k, &what), damaged, "{what}: again");
    }
}

#[test]
fn a_flipped_bit_of_a_record_is_reported_or_harmless_after_a_close_and_after_a_kill() {
    let all = [
        "plain", "expiring", "empty", "dated", "lines", "newer", "tx 1", "large",
    ];
    for design in ALL {
        for closed in [true, false] {
            let subject = Subject::new(design, closed);
            let what = format!("{design}, closed: {closed}");
            let (store, k) = subject.open(&subject.flipped(&[], 0));
            assert!(subject.look(&store, &k, &what).is_empty());
            drop(store);
            for word in [STAMP, BODY, EXPIRY] {
                flip(&subject, word, &all, &what);
            }
        }
    }
}

#[test]
fn a_flipped_bit_of_the_commit_table_undoes_no_transaction() {
    for design in ALL {
        for closed in [true, false] {
            let subject = Subject::new(design, closed);
            for bit in 0..64 {
                let what = format!("{design}, closed: {closed}, bit {bit}");
                let path = subject.flipped(&[subject.slot], bit);
                let (store, k) = subject.open(&path);
                let damaged = subject.look(&store, &k, &what);
                let transaction = ["key 7", "tx 0", "tx 1", "tx 2"].map(Vec::from);
                assert!(
                    damaged.is_empty() || damaged == transaction.into(),
                    "{damaged:?}"
                );
                if !damaged.is_empty() {
                    assert_eq!(store.recovery().damaged, 5, "{what}: and the slot");
                }
                // Another commit through the slot does not change the outcome.
                for i in 0..70 {
                    let mut tx = store.begin(TransactionOptions::default());
                    for half in ["a", "b"] {
                        let key = format!("another {i} {half}");
                        tx.put(&k, key.as_bytes(), b"x").unwrap();
                    }
                    tx.commit().unwrap();
                }
                for key in &damaged {
                    store.get(&k, key).unwrap_err();
                }
                drop(store);
                let (store, k) = subject.open(&path);
                assert_eq!(reported(store.recovery(), &k), damaged, "{what}: again");
            }
        }
    }
}

/// A damaged value is replaced or deleted only on request; changes that depend on it fail.
#[test]
fn a_damaged_key_can_be_put_or_deleted_and_not_changed_by_what_it_was() {
    for design in ALL {
        let subject = Subject::new(design, true);
        // An impossible stamp, a spurious expiry, a value marked apart, another checksum, another
        // length.
        for (word, bit) in [
            (STAMP, 63),
            (STAMP, 60),
            (BODY, 31),
            (BODY, 30),
            (BODY, 40),
            (BODY, 2),
        ] {
            let what = format!("{design}, word {word}, bit {bit}");
            let places = ["plain", "lines", "newer"].map(|key| subject.records[key] + word * 8);
            let path = subject.flipped(&places, bit);
            let (store, k) = subject.open(&path);
            let before = store.snapshot();
            let changed = store.update(&k, b"newer", |_| Ok((Update::Delete, ())));
            assert!(
                matches!(changed, Err(WriteError::Damaged(_))),
                "{what}: {changed:?}"
            );
            let added = store.increment(&k, b"newer", 1);
            assert!(
                matches!(added, Err(WriteError::Damaged(_))),
                "{what}: {added:?}"
            );
            store.put(&k, b"plain", b"put again").unwrap();
            assert!(store.delete(&k, b"lines").unwrap(), "{what}");
            let puts: [(&[u8], &[u8]); 1] = [(b"newer", b"once more")];
            let refused = store.multi_put(&k, &puts, |_| true);
            assert!(
                matches!(refused, Err(WriteError::Damaged(_))),
                "{what}: {refused:?}"
            );
            store.put(&k, b"newer", b"once more").unwrap();
            let look = |store: &Store<Auto>| {
                let k = crate::common::k(store);
                let get = |key: &[u8]| store.get(&k, key).unwrap();
                assert_eq!(get(b"plain").as_deref(), Some(&b"put again"[..]), "{what}");
                assert_eq!(get(b"lines"), None, "{what}");
                assert_eq!(get(b"newer").as_deref(), Some(&b"once more"[..]), "{what}");
            };
            look(&store);
            // A reader at an earlier timestamp still finds the damage.
            before.get(&k, b"plain").unwrap_err();
            before.get(&k, b"lines").unwrap_err();
            drop(before);
            store.vacuum_all().unwrap();
            look(&store);
            drop(store);
            let (store, k) = subject.open(&path);
            look(&store);
            assert_eq!(store.recovery().damaged, 0, "{what}");
            store.check().unwrap();
            assert_eq!(store.len(&k), subject.expected.len() as u64 - 1, "{what}");
        }
    }
}

/// A bit that flipped in an empty value made it look like a tombstone. While the store stayed open,
/// deleting the key said that it was there and wrote nothing, so the damage was still found.
#[test]
fn an_empty_value_that_becomes_a_tombstone_while_the_store_is_open_can_be_deleted() {
    for design in ALL {
        for batch in [false, true] {
            let f = Fixture::new(design);
            f.put("empty", "");
            f.put("another", "value");
            let path = f.store.pool().path().to_owned();
            let file = std::fs::read(&path).unwrap();
            let ts = (f.store.applied() - 1).to_le_bytes();
            // No version before it, that timestamp, no length and no flags.
            let mut records = (0..file.len() / 16).map(|i| i * 16);
            let record = records.find(|at| {
                let word = |i: usize| file.get(at + i * 8..at + i * 8 + 8).unwrap_or(&[]);
                word(0) == [0; 8] && word(1) == ts && word(2).starts_with(&[0; 4])
            });
            let at = record.unwrap() as u64 + BODY * 8;
            let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
            file.write_all_at(&[1 << 6], at + 3).unwrap();
            f.store.get(&f.k, b"empty").unwrap_err();

            if batch {
                let mut batch = Batch::new();
                batch.delete(&f.k, b"empty");
                batch.put(&f.k, b"another", b"new");
                f.store.write(batch).unwrap();
            } else {
                assert!(f.store.delete(&f.k, b"empty").unwrap());
            }
            assert_eq!(f.store.get(&f.k, b"empty"), Ok(None), "{design}");
            assert!(!f.store.delete(&f.k, b"empty").unwrap());
            f.store.vacuum_all().unwrap();
            let f = f.reopened();
            assert_eq!(f.store.recovery().damaged, 0);
            assert_eq!(f.store.get(&f.k, b"empty"), Ok(None), "{design}");
            f.store.check().unwrap();
        }
    }
}

/// Without its name, a keyspace would look like a dropped one.
#[test]
fn damage_of_the_keyspaces_names_refuses_the_opening() {
    for design in ALL {
        let subject = Subject::new(design, true);
        let file = std::fs::read(&subject.path).unwrap();
        let number = u64::from(1u32).to_le_bytes();
        // The record of the name: a value of four bytes, which is the keyspace's number.
        let mut records = (0..file.len() / 16).map(|i| i * 16);
        let record = records.find(|at| {
            let word = |i: usize| file.get(at + i * 8..at + i * 8 + 8).unwrap_or(&[]);
            word(0) == [0; 8] && word(2).starts_with(&[4, 0, 0, 0]) && word(3) == number
        });
        let record = record.unwrap() as u64;
        for (word, bit) in [(STAMP, 63), (BODY, 5), (BODY, 31), (BODY, 33)] {
            let path = subject.flipped(&[record + word * 8], bit);
            let pool: std::sync::Arc<Pool<Auto>> =
                Pool::open(&path, &PoolOptions::default()).unwrap();
            let e = crate::common::open(&pool, "s", &subject.options).unwrap_err();
            let e = e.to_string();
            assert!(
                e.contains("damaged") && e.contains("keyspace \"k\"") && e.contains("backup"),
                "{e}"
            );
        }
    }
}
