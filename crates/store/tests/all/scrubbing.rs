//! Scrubbing finds damage of an open store that nobody has asked for yet.

use crate::common::directory;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{MediaOptions, MediumKind, Pool, PoolOptions};
use bristlecone_store::{Store, StoreOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn value(n: u32) -> Vec<u8> {
    let len = if n.is_multiple_of(10) { 3_000 } else { 40 };
    format!("a value that can be found, {n:05}{}", "x".repeat(len)).into_bytes()
}

fn filled(path: &Path, options: &StoreOptions) -> Store<Auto> {
    let media = MediaOptions {
        medium: Some(MediumKind::Mapped),
        ..MediaOptions::default()
    };
    let pool = Pool::create(path, &PoolOptions { media }).unwrap();
    let store = Store::create(&pool, "s", options).unwrap();
    let k = store.keyspace("k").unwrap();
    for n in 0..1_000_u32 {
        store.put(&k, &n.to_be_bytes(), &value(n)).unwrap();
    }
    store
}

/// Inverts a bit of each place in the file that has the start of a value. Others, who have the file
/// mapped, see that.
fn invert(path: &Path, n: u32) {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let bytes = std::fs::read(path).unwrap();
    let start = &value(n)[..32];
    let mut found = 0;
    for at in (0..bytes.len() - start.len()).filter(|at| bytes[*at..].starts_with(&start[..10])) {
        // The number may be the one that has the wrong bit.
        let there = &bytes[at..at + start.len()];
        if there[..31] == start[..31] && (there[31] ^ start[31]) & !0x40 == 0 {
            file.write_all_at(&[there[31] ^ 0x40], at as u64 + 31)
                .unwrap();
            found += 1;
        }
    }
    assert!(found > 0);
}

#[test]
fn damage_of_an_open_store_is_found_and_is_gone_when_it_is_mended() {
    let dir = directory();
    let path = dir.path().join("pool");
    let store = filled(&path, &StoreOptions::default().without_thread());
    let k = store.keyspace("k").unwrap();
    assert!(store.scrub().unwrap().is_empty());
    let before = store.stats().scrub;
    assert!(
        before.rounds == 1 && before.values >= 100 && before.pages > 10,
        "{before:?}"
    );
    // One in a page, one long one; both were read before.
    for n in [501_u32, 700] {
        assert_eq!(store.get(&k, &n.to_be_bytes()).unwrap(), Some(value(n)));
        invert(&path, n);
        let found = store.scrub().unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        let text = found[0].to_string();
        assert!(text.contains("checksum"), "{text}");
        // It is in the page that begins at or before the key.
        let (_, key) = found[0].key().unwrap();
        assert!(key <= &n.to_be_bytes()[..], "{key:?}");
        assert_eq!(
            (store.scrub_findings(), store.stats().scrub.damaged),
            (found, 1)
        );
        invert(&path, n);
        assert!(store.scrub().unwrap().is_empty());
        assert_eq!(store.stats().scrub.damaged, 0);
    }
    assert_eq!(store.stats().scrub.rounds, 5);
}

#[test]
fn what_was_scrubbed_adds_up() {
    let dir = directory();
    let path = dir.path().join("pool");
    let store = filled(&path, &StoreOptions::default().without_thread());
    assert_eq!(store.scrub_stats().rounds, 0);
    store.scrub().unwrap();
    let once = store.scrub_stats();
    assert_eq!((once.rounds, once.values, once.damaged), (1, 100, 0));
    assert!(once.bytes > 100 * 3_000 + 900 * 40, "{once:?}");
    assert_eq!(once.round_bytes, once.bytes);
    store.scrub().unwrap();
    let twice = store.scrub_stats();
    assert_eq!((twice.rounds, twice.values), (2, 200));
    assert_eq!((twice.pages, twice.bytes), (2 * once.pages, 2 * once.bytes));
    assert_eq!(twice.round_bytes, once.bytes);
    assert_eq!(store.stats().scrub, twice);
}

#[test]
fn a_thread_scrubs_by_itself() {
    let dir = directory();
    let path = dir.path().join("pool");
    let options = StoreOptions {
        scrub: Some(64 << 20),
        ..StoreOptions::default()
    };
    let store = filled(&path, &options);
    invert(&path, 333);
    let until = Instant::now() + Duration::from_secs(30);
    while store.stats().scrub.damaged == 0 {
        assert!(Instant::now() < until, "{:?}", store.stats().scrub);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(store.scrub_findings().len(), 1);
    invert(&path, 333);
    store.close().unwrap();
}
