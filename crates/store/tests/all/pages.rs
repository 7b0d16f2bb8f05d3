//! Damaged pages of stores on a clustered tree: whatever is in other pages goes on, nothing is
//! taken for dropped or expired that was not, and names have a second copy.

use crate::common::{Fixture, Hands, TREE, k, open, text};
use bristlecone_pmem::heap::damage_is_expected;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{ReadError, Store, StoreOptions, WriteError};
use std::path::Path;
use std::sync::Arc;

/// Inverts a byte behind each place in the file where `text` is, if `chosen` says so of the byte
/// before it. Returns how many there were.
fn damage(path: &Path, text: &[u8], chosen: impl Fn(u8) -> bool) -> usize {
    let mut bytes = std::fs::read(path).unwrap();
    let windows = bytes.windows(text.len()).enumerate().skip(1);
    let found = windows.filter(|(at, window)| *window == text && chosen(bytes[at - 1]));
    let places: Vec<usize> = found.map(|(at, _)| at).collect();
    for at in &places {
        bytes[at + text.len() - 1] ^= 0xFF;
    }
    std::fs::write(path, bytes).unwrap();
    places.len()
}

fn opened(path: &Path, options: &StoreOptions) -> Result<Store<Auto>, String> {
    let pool: Arc<Pool<Auto>> =
        Pool::open(path, &PoolOptions::default()).map_err(|e| e.to_string())?;
    open(&pool, "s", options).map_err(|e| e.to_string())
}

/// A store with keyspaces `k`, `alpha` and `omega`, of more than a page each.
fn filled() -> Fixture {
    let f = Fixture::new(TREE);
    for name in ["alpha", "omega"] {
        let keyspace = f.store.keyspace(name).unwrap();
        for i in 0..2_000u32 {
            let (key, value) = (format!("key {i:05}"), format!("of {name}, {i:05}"));
            f.store
                .put(&keyspace, key.as_bytes(), value.as_bytes())
                .unwrap();
        }
    }
    for i in 0..2_000u32 {
        f.put(&format!("key {i:05}"), "value");
    }
    f
}

fn all_is_there(store: &Store<Auto>) {
    for name in ["alpha", "omega"] {
        let keyspace = store.find_keyspace(name).expect(name);
        for i in 500..1_500u32 {
            let (key, value) = (format!("key {i:05}"), format!("of {name}, {i:05}"));
            let found = store.get(&keyspace, key.as_bytes()).unwrap();
            assert_eq!(text(found), Some(value), "{key}");
        }
    }
}

#[test]
fn names_are_had_from_their_copy_and_the_other_way_round() {
    damage_is_expected::here();
    // The copy has an `n` before each name.
    for of_copy in [false, true] {
        let f = filled();
        let path = f.copy();
        let chosen = |before| before != b' ' && (before == b'n') == of_copy;
        let damaged = damage(&path, b"alpha", chosen);
        assert!(damaged > 0, "copy: {of_copy}");
        let store = opened(&path, &f.options).unwrap();
        assert!(store.recovery().damaged > 0);
        all_is_there(&store);
        assert_eq!(store.keyspaces().len(), 3);
        // Nothing is taken for dropped.
        let _ = store.vacuum_all();
        all_is_there(&store);
        assert!(store.check().unwrap_err().to_string().contains("checksum"));
        drop(store);
        let options = StoreOptions::default().without_thread();
        let store = opened(&path, &options).unwrap();
        assert_eq!(store.keyspaces().len(), 3);
        all_is_there(&store);
    }
    let f = filled();
    let path = f.copy();
    assert!(damage(&path, b"alpha", |before| before != b' ') > 1);
    let refused = opened(&path, &f.options).err().unwrap();
    assert!(
        refused.contains("names of keyspaces") && refused.contains("--skip-damaged"),
        "{refused}"
    );
}

#[test]
fn the_sweep_goes_on_behind_a_damaged_page() {
    damage_is_expected::here();
    let f = filled();
    let hands = Hands::default();
    let options = StoreOptions {
        clock: hands.clock(),
        ..f.options.clone()
    };
    for i in 0..2_000u32 {
        let (key, value) = (format!("session {i:05}"), format!("in session {i:05}"));
        f.store
            .put_expiring(&f.k, key.as_bytes(), value.as_bytes(), Some(10))
            .unwrap();
    }
    let path = f.copy();
    assert!(damage(&path, b"of omega, 01000", |_| true) > 0);
    assert!(damage(&path, b"in session 01000", |_| true) > 0);
    let store = opened(&path, &options).unwrap();
    let omega = store.find_keyspace("omega").unwrap();
    store.drop_keyspace(omega).unwrap();
    hands.set(10);
    let before = store.stats().keys;
    let failed = store.vacuum_all().unwrap_err();
    assert!(matches!(failed, WriteError::Damaged(_)), "{failed}");
    let after = store.stats();
    // All but those of two pages.
    assert!(after.vacuumed > 3_000, "{after:?} of {before}");
    let all = store.find_keyspace("alpha").unwrap();
    assert_eq!(store.len(&all), 2_000);
    drop(store);
    // The keyspace stays dropped, whose name nobody has.
    let store = opened(&path, &options).unwrap();
    assert!(store.find_keyspace("omega").is_none());
    let others = |e: &bristlecone_store::DamagedRecord| !e.to_string().contains("is lost");
    assert!(store.recovery().damage.iter().all(others));
    assert!(store.vacuum_all().is_err());
}

#[test]
fn a_damaged_expiry_removes_nothing() {
    damage_is_expected::here();
    let f = Fixture::new(TREE);
    let value = vec![7; 300_000];
    let later = 1 << 40;
    f.store
        .put_expiring(&f.k, b"kept", &value, Some(later))
        .unwrap();
    let path = f.copy();
    // Mark, kind and expiry of the value.
    let head = [
        &[0xC1, 0x9E, 0x5B, 0xF6, 0][..],
        &u64::to_le_bytes(later),
        &[7, 7],
    ]
    .concat();
    let mut bytes = std::fs::read(&path).unwrap();
    let places = bytes
        .windows(head.len())
        .enumerate()
        .filter(|(_, w)| *w == head);
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    for at in places {
        // Now it says 1.
        bytes[at + 5..at + 13].copy_from_slice(&1u64.to_le_bytes());
    }
    std::fs::write(&path, bytes).unwrap();
    let store = opened(&path, &f.options).unwrap();
    f.hands.set(1_000);
    let failed = store.vacuum_all().unwrap_err();
    assert!(
        matches!(&failed, WriteError::Damaged(_)) && failed.to_string().contains("kept"),
        "{failed}"
    );
    let read = store.get(&k(&store), b"kept");
    assert!(matches!(read, Err(ReadError::Damaged(_))), "{read:?}");
    assert_eq!(store.len(&k(&store)), 1);
}

#[test]
fn of_a_damaged_page_all_is_saved_but_what_lies_beside_the_damage() {
    damage_is_expected::here();
    let f = filled();
    // In the base of a page, in its tail, and in the catalogue.
    f.put("key 01500", "the last change");
    let k = f.k.clone();
    f.store.put(&k, b"key 01501", b"a later change").unwrap();
    let path = f.copy();
    assert!(damage(&path, b"of omega, 01000", |_| true) > 0);
    assert!(damage(&path, b"the last change", |_| true) > 0);
    assert!(damage(&path, b"alpha", |before| before != b' ' && before != b'n') > 0);
    let (report, (whole, damaged)) = crate::salvage::salvage(&path, 0);
    assert_eq!(report.keyspaces, ["k", "alpha", "omega"]);
    // A damaged change makes all that its page had before it uncertain.
    assert!(whole.len() > 5_500, "{}", whole.len());
    for ((name, key), value) in &whole {
        let expected = match (name.as_str(), key.as_str()) {
            ("k", "key 01501") => "a later change".to_owned(),
            ("k", _) => "value".to_owned(),
            (name, key) => format!("of {name}, {}", &key[4..]),
        };
        assert_eq!(value, expected.as_bytes(), "{name}: {key}");
    }
    assert!(!whole.contains_key(&("omega".into(), "key 01000".into())));
    assert!(!whole.contains_key(&("k".into(), "key 01500".into())));
    let said: Vec<&str> = damaged.iter().map(|(_, what)| what.as_str()).collect();
    assert!(
        said.iter().any(|what| what.contains("checksum")),
        "{said:?}"
    );
    assert!(
        said.iter().any(|what| what.contains("may have changed it")),
        "{said:?}"
    );
}

/// The byte makes a page read-only, and nothing else.
#[test]
fn what_lies_elsewhere_in_a_damaged_page_is_served() {
    damage_is_expected::here();
    let f = filled();
    let path = f.copy();
    assert!(damage(&path, b"of omega, 01000", |_| true) > 0);
    let store = opened(&path, &f.options).unwrap();
    let omega = store.find_keyspace("omega").unwrap();
    let key = |i: u32| format!("key {i:05}").into_bytes();
    let value = |i: u32| format!("of omega, {i:05}");
    let mut lost = Vec::new();
    for i in 0..2_000 {
        match store.get(&omega, &key(i)) {
            Ok(found) => assert_eq!(text(found), Some(value(i)), "{i}"),
            Err(ReadError::Damaged(e)) => {
                assert!(e.to_string().contains(&format!("key {i:05}")), "{e}");
                lost.push(i);
            }
            Err(e) => panic!("{i}: {e}"),
        }
    }
    // Those of a stripe of 512 bytes.
    assert!(lost.contains(&1_000) && lost.len() < 30, "{lost:?}");
    let (first, last) = (lost[0], lost[lost.len() - 1]);
    assert_eq!(lost.len() as u32, last - first + 1);
    // What is not there is known not to be there, but for keys between the lost ones.
    let beside = |i: u32| [&key(i)[..], b"x"].concat();
    assert_eq!(store.get(&omega, &beside(first - 2)).unwrap(), None);
    assert_eq!(store.get(&omega, &beside(last + 2)).unwrap(), None);
    assert!(store.get(&omega, &beside(1_000)).is_err());
    assert!(store.get_pinned(&omega, &key(first - 1)).unwrap().is_some());
    assert!(store.get_pinned(&omega, &key(1_000)).is_err());
    let scan = |range: std::ops::Range<u32>, up: bool| {
        let mut keys = Vec::new();
        let snapshot = store.snapshot();
        let visit = |key: &[u8], _: bristlecone_store::Entry<'_>| {
            keys.push(key.to_vec());
            std::ops::ControlFlow::Continue(())
        };
        let range = key(range.start)..key(range.end);
        let scanned = if up {
            snapshot.scan::<Vec<u8>>(&omega, range, visit)
        } else {
            snapshot.scan_reverse::<Vec<u8>>(&omega, range, visit)
        };
        scanned.map(|()| keys)
    };
    for up in [true, false] {
        let expect = |range: std::ops::Range<u32>| {
            let mut keys: Vec<_> = range.map(key).collect();
            if !up {
                keys.reverse();
            }
            keys
        };
        assert_eq!(scan(0..first - 1, up).unwrap(), expect(0..first - 1));
        assert_eq!(scan(last + 1..2_000, up).unwrap(), expect(last + 1..2_000));
        assert_eq!(scan(900..950, up).unwrap(), expect(900..950));
        assert!(scan(0..first + 1, up).is_err());
        assert!(scan(0..2_000, up).is_err());
    }
    let put = store.put(&omega, &key(first - 1), b"new").unwrap_err();
    assert!(put.to_string().contains("--skip-damaged"), "{put}");
}

#[test]
fn a_store_of_one_damaged_page_opens_with_what_is_left() {
    damage_is_expected::here();
    let f = Fixture::new(TREE);
    f.put("a", "value one");
    f.put("b", "value two");
    let path = f.copy();
    assert!(damage(&path, b"value one", |_| true) > 0);
    let store = opened(&path, &f.options).unwrap();
    assert!(store.recovery().damaged > 0);
    let keyspace = k(&store);
    assert_eq!(
        text(store.get(&keyspace, b"b").unwrap()).as_deref(),
        Some("value two")
    );
    assert!(store.get(&keyspace, b"a").is_err());
    assert!(store.put(&keyspace, b"a", b"again").is_err());
    assert!(store.keyspace("another").is_err());
    drop(store);
    let (report, (whole, damaged)) = crate::salvage::salvage(&path, 0);
    assert_eq!(report.keyspaces, ["k"]);
    assert_eq!(whole.len(), 1);
    assert!(!damaged.is_empty());
}

/// A word of the page table with one wrong bit is mended, and counted.
#[test]
fn what_was_mended_is_counted() {
    damage_is_expected::here();
    let f = filled();
    assert_eq!(f.store.stats().mended, 0);
    let path = f.copy();
    let mut bytes = std::fs::read(&path).unwrap();
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    // No page has the number 0, and these words say that they are of pages.
    let is_of_page = |at: usize| word(at) >> (12 + 38) & 7 == 0b011;
    let is_table = |at: &usize| word(*at) == 0 && (1..30).all(|i| is_of_page(at + 8 * i));
    let mut tables = (0..bytes.len() - 512).step_by(64).filter(is_table);
    let table = tables.next().expect("a page table");
    assert_eq!(tables.next(), None);
    bytes[table + 8 * 20 + 1] ^= 4;
    std::fs::write(&path, &bytes).unwrap();
    let store = opened(&path, &f.options).unwrap();
    assert_eq!(store.stats().mended, 1);
    all_is_there(&store);
    store.check().unwrap();
}
