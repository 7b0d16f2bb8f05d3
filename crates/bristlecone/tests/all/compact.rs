//! Giving space back after most of a database was removed.

use crate::{database, home};
use bristlecone::{Database, Durability};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// The file kept nearly all of its space: what was left lay all over it.
#[test]
fn a_database_that_lost_nine_tenths_of_its_keys_becomes_small() {
    const KEYS: u64 = 30_000;
    let home = home();
    let value = |i: u64| vec![i as u8; 500 + (i % 700) as usize];
    let key = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let is_left = |i: &u64| i.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33 & 1023 < 102;
    let fill = |name: &str, keys: &mut dyn Iterator<Item = u64>| {
        let db = Database::open(home.path().join(name)).unwrap();
        let db = db.with_durability(Durability::None);
        let k = db.keyspace("k").unwrap();
        for i in keys {
            k.insert(key(i), value(i)).unwrap();
        }
        (db, k)
    };
    let on_disk = |db: &Database| std::fs::metadata(db.path()).unwrap().blocks() * 512;

    let (db, k) = fill("full.db", &mut (0..KEYS));
    db.flush().unwrap();
    let full = on_disk(&db);
    for i in (0..KEYS).filter(|i| !is_left(i)) {
        assert!(k.remove(key(i)).unwrap());
    }
    let iter = k.iter();
    let (fresh, _k) = fill("fresh.db", &mut (0..KEYS).filter(is_left));
    fresh.compact().unwrap();
    let ideal = on_disk(&fresh);
    // Pages that were replaced wait for readers, other tests' among them: once may not be enough.
    let mut sizes = Vec::new();
    let is_small = (0..10).any(|_| {
        db.compact().unwrap();
        let small = on_disk(&db);
        sizes.push(small);
        small * 10 <= ideal * 13 && small * 4 < full
    });
    assert!(
        is_small,
        "{full} bytes became {sizes:?}; a new database has {ideal}"
    );
    let left = (0..KEYS).filter(is_left).count();
    assert_eq!(iter.count(), left, "an iterator from before goes on");
    db.check().unwrap();
    for i in 0..KEYS {
        let found = k.get(key(i)).unwrap();
        assert_eq!(
            found.as_deref().map(<[u8]>::to_vec),
            is_left(&i).then(|| value(i))
        );
    }
}

/// Nobody asks for it.
#[test]
fn a_database_that_lost_most_of_its_keys_becomes_small_by_itself() {
    const KEYS: u32 = 40_000;
    let (_home, db) = database();
    let k = db.with_durability(Durability::None).keyspace("k").unwrap();
    let value = |i: u32| vec![i as u8; 900 + i as usize % 200];
    let is_left = |i: &u32| i.is_multiple_of(10);
    for i in 0..KEYS {
        k.insert(i.to_be_bytes(), value(i)).unwrap();
    }
    db.flush().unwrap();
    let on_disk = || std::fs::metadata(db.path()).unwrap().blocks() * 512;
    let full = on_disk();
    assert!(full > 40 << 20, "{full}");
    for i in (0..KEYS).filter(|i| !is_left(i)) {
        assert!(k.remove(i.to_be_bytes()).unwrap());
    }
    // It looks every few seconds.
    let began = Instant::now();
    while on_disk() > full / 4 {
        let waited = began.elapsed();
        assert!(
            waited < Duration::from_secs(60),
            "still {} bytes",
            on_disk()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    for i in 0..KEYS {
        let found = k.get(i.to_be_bytes()).unwrap().map(|found| found.to_vec());
        assert_eq!(found, is_left(&i).then(|| value(i)), "{i}");
    }
    db.check().unwrap();
}
