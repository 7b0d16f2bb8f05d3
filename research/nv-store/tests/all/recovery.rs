//! Recovery of an interrupted transaction, for writers and for readers.

use crate::common::{ALL, Fixture, k, text};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{Store, TransactionOptions, WriteError};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Takes back the commit of that timestamp: its slot is as it was before the NAW that commits.
fn uncommit(path: &Path, ts: u64) {
    let bytes = std::fs::read(path).unwrap();
    let mut slot = [0; 64];
    let parity = ts.to_le_bytes().iter().fold(0, |sum, byte| sum ^ byte);
    let word = 1 << 63 | u64::from(parity) << 55 | ts;
    slot[..8].copy_from_slice(&word.to_le_bytes());
    let lines: Vec<usize> = (0..bytes.len() / 64)
        .filter(|line| bytes[line * 64..line * 64 + 64] == slot)
        .collect();
    assert_eq!(lines.len(), 1, "one slot has it");
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&[0; 8], lines[0] as u64 * 64).unwrap();
}

/// One transaction changes `a` and `b`, deletes `c`, and inserts `d`, and `e` over a tombstone.
fn changed(f: &Fixture) -> u64 {
    for key in ["a", "b", "c", "e"] {
        f.put(key, "old");
    }
    f.store.delete(&f.k, b"e").unwrap();
    let mut tx = f.store.begin(TransactionOptions::default());
    for key in [b"a", b"b", b"d", b"e"] {
        tx.put(&f.k, key, b"new").unwrap();
    }
    tx.delete(&f.k, b"c").unwrap();
    tx.commit().unwrap()
}

fn all(store: &Store<Auto>) -> Vec<Option<String>> {
    let k = k(store);
    ["a", "b", "c", "d", "e"]
        .iter()
        .map(|key| text(store.get(&k, key.as_bytes()).unwrap()))
        .collect()
}

fn old() -> Vec<Option<String>> {
    let old = Some("old".to_owned());
    vec![old.clone(), old.clone(), old, None, None]
}

#[test]
fn a_transaction_without_its_slot_never_was() {
    for design in ALL {
        let f = Fixture::new(design);
        let ts = changed(&f);
        let path = f.copy();
        let pool: std::sync::Arc<Pool<Auto>> = Pool::open(&path, &PoolOptions::default()).unwrap();
        let store = crate::common::open(&pool, "s", &f.options).unwrap();
        let new = Some("new".to_owned());
        assert_eq!(
            all(&store),
            [new.clone(), new.clone(), None, new.clone(), new]
        );
        assert_eq!((store.recovery().undone, store.recovery().stamped), (0, 5));
        drop((store, pool));

        let path = f.copy();
        uncommit(&path, ts);
        // First for a read-only open, whose repairs are private.
        let pool: std::sync::Arc<Pool<Auto>> =
            Pool::open(&path, &PoolOptions::read_only()).unwrap();
        let store = crate::common::open(&pool, "s", &f.options).unwrap();
        assert_eq!(all(&store), old());
        assert!(matches!(
            store.put(&k(&store), b"a", b"x"),
            Err(WriteError::ReadOnly)
        ));
        assert_eq!(store.vacuum_all().unwrap().versions, 0);
        store.check().unwrap();
        drop((store, pool));
        let pool: std::sync::Arc<Pool<Auto>> = Pool::open(&path, &PoolOptions::default()).unwrap();
        let store = crate::common::open(&pool, "s", &f.options).unwrap();
        assert_eq!(store.recovery().undone, 5);
        assert_eq!(all(&store), old());
        assert_eq!(store.len(&k(&store)), 3);
        store.check().unwrap();
        // An undone change does not come back, not even with another commit through its slot.
        let mut tx = store.begin(TransactionOptions::default());
        tx.put(&k(&store), b"x", b"1").unwrap();
        tx.put(&k(&store), b"y", b"1").unwrap();
        assert!(tx.commit().unwrap() > 0);
        drop((store, pool));
        let pool: std::sync::Arc<Pool<Auto>> = Pool::open(&path, &PoolOptions::default()).unwrap();
        let store = crate::common::open(&pool, "s", &f.options).unwrap();
        assert_eq!(all(&store), old());
        store.check().unwrap();
    }
}
