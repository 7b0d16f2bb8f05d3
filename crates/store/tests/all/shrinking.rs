//! Space that the store's own thread gives back.

use crate::common::{PATIENCE, RESERVE, TREE, create, on};
use bristlecone_pmem::Pool;
use bristlecone_pmem::media::{Auto, MediumKind};
use bristlecone_store::StoreOptions;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// After most was deleted the file becomes smaller by itself, and what is left is whole.
#[test]
fn a_file_shrinks_without_being_asked_to() {
    const KEYS: u32 = 60_000;
    const LEFT: u32 = 20;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = Pool::<Auto>::create(&path, &on(MediumKind::Mapped, RESERVE)).unwrap();
    let store = create(&pool, "s", TREE, &StoreOptions::default()).unwrap();
    let k = store.keyspace("k").unwrap();
    let value = |n: u32| [n.to_le_bytes(); 250].concat();
    for n in 0..KEYS {
        store.put(&k, &n.to_be_bytes(), &value(n)).unwrap();
    }
    // Holes have no blocks.
    let space = || std::fs::metadata(&path).unwrap().blocks() * 512;
    let full = space();
    assert!(full > u64::from(KEYS) * 1000, "{full}");
    for n in (0..KEYS).filter(|n| n % LEFT != 0) {
        assert!(store.delete(&k, &n.to_be_bytes()).unwrap());
    }
    let until = Instant::now() + PATIENCE;
    while space() > full / 3 {
        assert!(Instant::now() < until, "{} of {full} bytes", space());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(store.len(&k), u64::from(KEYS / LEFT));
    for n in 0..KEYS {
        let found = store.get(&k, &n.to_be_bytes()).unwrap();
        assert_eq!(found, (n % LEFT == 0).then(|| value(n)), "{n}");
    }
    store.check().unwrap();
}
