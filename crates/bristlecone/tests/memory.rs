//! A database that is larger than the memory it may use. A process of its own: all that a process
//! has in memory counts.

use bristlecone::{Batch, Database, Keyspace, Medium};
use bristlecone_pmem::memory::resident;
use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const BOUND: u64 = 64 * MIB;
/// How far the process may exceed its bound for a moment: memory is only measured every few
/// milliseconds.
const MORE: u64 = 4 * MIB;
const KEYS: u64 = 100_000;
const VALUE: usize = 2000;

/// The key and the value of a number, at a version.
fn entry(n: u64, version: u8) -> ([u8; 8], Vec<u8>) {
    let key = n.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes();
    let mut value = vec![version; VALUE];
    value[..8].copy_from_slice(&key);
    (key, value)
}

/// Numbers in an order that repeats nothing soon.
fn numbers(from: u64) -> impl Iterator<Item = u64> {
    (from..).map(|n| n.wrapping_mul(48_271) % KEYS)
}

fn get(keyspace: &Keyspace, n: u64, version: u8) {
    let (key, value) = entry(n, version);
    assert!(keyspace.get(key).unwrap().is_some_and(|got| got == value));
}

/// Loads, reads, updates and opens again.
fn work(path: &Path) {
    let options = || {
        Database::builder()
            .medium(Medium::Journal)
            .memory(Some(BOUND))
    };
    let db = options().open(path).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    for from in (0..KEYS).step_by(1000) {
        let mut batch = Batch::new();
        for n in from..from + 1000 {
            let (key, value) = entry(n, 1);
            batch.insert(&keyspace, key, value);
        }
        db.write(batch).unwrap();
    }
    numbers(1).take(20_000).for_each(|n| get(&keyspace, n, 1));
    for (i, n) in numbers(0).take(3000).enumerate() {
        let (key, value) = entry(n, 2);
        keyspace.insert(key, value).unwrap();
        if i % 7 == 0 {
            get(&keyspace, n, 2);
        }
    }
    drop((db, keyspace));
    let db = options().open(path).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    let changed: HashSet<u64> = numbers(0).take(3000).collect();
    for n in 0..KEYS {
        get(&keyspace, n, 1 + u8::from(changed.contains(&n)));
    }
    assert!(db.check().unwrap().entries > KEYS);
}

#[test]
fn a_larger_database_stays_within_its_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("large.db");
    let mut peak = 0;
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&path));
        while !worker.is_finished() {
            peak = resident().unwrap().max(peak);
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    assert!(peak < BOUND + MORE, "{} MiB", peak / MIB);
}
