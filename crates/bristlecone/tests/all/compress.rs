//! Compressed values.

use crate::home;
use bristlecone::{Compression, Database, Durability, Event};
use std::path::Path;
use std::time::Duration;

fn choices() -> [Compression; 3] {
    [Compression::None, Compression::Lz4, Compression::Zstd]
}

fn open(path: &Path, compression: Compression) -> Database {
    let options = Database::builder().durability(Durability::None);
    options.compression(compression).open(path).unwrap()
}

/// Text of that length, which can be compressed.
fn text(len: usize) -> Vec<u8> {
    let lines = (0..97)
        .map(|i| format!("line {i} of it; "))
        .collect::<String>();
    let mut text = lines.repeat(len / lines.len() + 1).into_bytes();
    text.truncate(len);
    text
}

/// Bytes that cannot.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 7_u64;
    let bytes = (0..len).map(|_| {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (state >> 56) as u8
    });
    bytes.collect()
}

/// Whatever they are written and read with.
#[test]
fn values_come_back_as_they_were_under_every_choice() {
    let home = home();
    let path = home.path().join("texts.db");
    let lens = [0, 8, 256, 511, 512, 513, 1000, 70_000, 9 << 20];
    let value = |len: usize, is_text: bool| if is_text { text(len) } else { noise(len) };
    for written in choices() {
        let db = open(&path, written);
        let k = db.keyspace("k").unwrap();
        for len in lens {
            for is_text in [false, true] {
                let key = format!("{written:?} {len} {is_text}");
                k.insert(key, value(len, is_text)).unwrap();
            }
        }
        // Longer than an entry of the tree, and from a stream.
        k.insert(format!("{written:?} parts"), text(65 << 20))
            .unwrap();
        let from = &text(20 << 20)[..];
        k.insert_from(format!("{written:?} stream"), from).unwrap();
    }
    for reads in choices() {
        let db = open(&path, reads);
        let k = db.keyspace("k").unwrap();
        for written in choices() {
            for len in lens {
                for is_text in [false, true] {
                    let key = format!("{written:?} {len} {is_text}");
                    let expected = value(len, is_text);
                    assert_eq!(
                        k.get(&key).unwrap().as_deref(),
                        Some(&expected[..]),
                        "{key}"
                    );
                    let with = k.get_with(&key, <[u8]>::to_vec).unwrap();
                    assert_eq!(with.as_deref(), Some(&expected[..]), "{key}");
                    let (from, to) = (len / 3, len - len / 4);
                    let range = k.get_range(&key, from as u64..to as u64).unwrap();
                    assert_eq!(range.as_deref(), Some(&expected[from..to]), "{key}");
                }
            }
            let parts = k.get(format!("{written:?} parts")).unwrap().unwrap();
            assert!(*parts == text(65 << 20));
            let range = (8 << 20) - 5..(8 << 20) + 5;
            let key = format!("{written:?} stream");
            let middle = k
                .get_range(&key, range.start as u64..range.end as u64)
                .unwrap();
            assert_eq!(middle.as_deref(), Some(&text(20 << 20)[range]));
        }
        let mut visited = 0;
        for entry in k.iter() {
            let (key, found) = entry.unwrap();
            let key = String::from_utf8(key.to_vec()).unwrap();
            let mut words = key.split(' ').skip(1);
            if let (Some(len), Some(is_text)) = (words.next(), words.next()) {
                let expected = value(len.parse().unwrap(), is_text == "true");
                assert!(*found == expected[..], "{key}");
            }
            visited += 1;
        }
        assert_eq!(visited, 3 * (2 * lens.len() + 2));
        db.check().unwrap();
    }
}

/// The reason for compressing.
#[test]
fn texts_take_less_space_and_noise_no_more() {
    let home = home();
    let bytes = |compression: Compression, value: &dyn Fn(usize) -> Vec<u8>| {
        let path = home.path().join("values.db");
        let db = open(&path, compression);
        let k = db.keyspace("k").unwrap();
        for i in 0..500_u32 {
            k.insert(i.to_be_bytes(), value(4000 + i as usize)).unwrap();
        }
        std::fs::remove_file(path).unwrap();
        db.stats().block_bytes
    };
    let plain = bytes(Compression::None, &text);
    for compression in [Compression::Lz4, Compression::Zstd] {
        let packed = bytes(compression, &text);
        assert!(packed * 3 < plain, "{compression:?}: {packed} of {plain}");
        let noisy = bytes(compression, &noise);
        assert!(
            noisy <= plain * 101 / 100,
            "{compression:?}: {noisy} of {plain}"
        );
    }
}

/// They are values like others.
#[test]
fn compressed_values_are_compared_changed_expired_and_backed_up() {
    let home = home();
    for compression in [Compression::Lz4, Compression::Zstd] {
        let name = format!("{compression:?}");
        let db = open(&home.path().join(&name), compression);
        let k = db.keyspace("k").unwrap();
        let (one, two) = (text(5000), text(6000));
        let mut watch = k.watch().unwrap();
        k.insert("a", &one).unwrap();
        let told = watch.next_timeout(Duration::from_secs(30)).unwrap();
        let Some(Event::Insert { value, .. }) = told else {
            panic!("{told:?}");
        };
        assert!(*value == one[..]);
        let snapshot = db.snapshot();
        let before = k.at(&snapshot).unwrap();
        let swap = |from: &[u8]| k.compare_and_swap("a", Some(from), Some(&two)).unwrap();
        assert_eq!(swap(&one[1..]), Err(Some(one.clone())));
        assert_eq!(swap(&one), Ok(()));
        assert_eq!(k.get("a").unwrap().as_deref(), Some(&two[..]));
        assert_eq!(before.get("a").unwrap().as_deref(), Some(&one[..]));
        k.merge("a", |value| {
            Some([value.unwrap_or_default(), b"end"].concat())
        })
        .unwrap();
        assert_eq!(k.get("a").unwrap().unwrap().len(), 6003);
        let mut transaction = db.begin();
        transaction.insert(&k, "b", &one).unwrap();
        assert_eq!(transaction.get(&k, "b").unwrap().as_deref(), Some(&one[..]));
        transaction.commit().unwrap();
        k.insert_expiring("gone", &one, Duration::from_millis(20))
            .unwrap();
        k.insert_expiring("later", &one, Duration::from_secs(3600))
            .unwrap();
        std::thread::sleep(Duration::from_millis(30));
        assert!(k.get("gone").unwrap().is_none());
        assert_eq!(k.get_range("gone", ..).unwrap(), None);
        let later = k.get("later").unwrap().unwrap();
        assert!(later.expires_at().is_some() && *later == one[..]);
        assert_eq!(k.iter().count(), 3);
        let copy = home.path().join(format!("{name}.copy"));
        db.backup_to(&copy).unwrap();
        let path = home.path().join(format!("{name}.restored"));
        let copy = Database::restore(&copy, path).unwrap();
        let k = copy.keyspace("k").unwrap();
        assert_eq!(k.get("b").unwrap().as_deref(), Some(&one[..]));
        assert_eq!(k.iter().count(), 3);
    }
}

/// Where the key of a value in parts is was compressed too, and compared as it was: so its parts
/// seemed to be nobody's, and went.
#[test]
fn values_in_parts_of_long_keys_stay() {
    let home = home();
    let path = home.path().join("parts.db");
    let keys = [text(600), text(5000)];
    let db = open(&path, Compression::Zstd);
    let k = db.keyspace("k").unwrap();
    for key in &keys {
        k.insert_from(key, &text(9 << 20)[..]).unwrap();
    }
    drop((k, db));
    let db = open(&path, Compression::None);
    db.store().vacuum(usize::MAX).unwrap();
    let k = db.keyspace("k").unwrap();
    for key in &keys {
        assert!(*k.get(key).unwrap().unwrap() == text(9 << 20));
    }
    db.check().unwrap();
}
