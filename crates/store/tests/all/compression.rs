//! Compressed values are read as they were put by everything that reads, and take less space.

use crate::common::{Fixture, TREE, open, restore};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{
    Compression, Direction, Entry, Longer, Salvaged, Step, Store, StoreOptions, TransactionOptions,
    Update, WatchEvent, WatchLimits,
};
use std::ops::ControlFlow;

const MIB: usize = 1 << 20;

/// All ways to write values that this build has.
fn ways() -> Vec<Compression> {
    vec![
        Compression::None,
        #[cfg(feature = "lz4")]
        Compression::Lz4,
        #[cfg(feature = "zstd")]
        Compression::Zstd,
    ]
}

fn made(compression: Compression) -> Fixture {
    let options = StoreOptions {
        compression,
        ..StoreOptions::default()
    };
    let f = Fixture::with(TREE, options.without_thread());
    f.hands.set(1_000);
    f
}

/// Lines that differ, of which much is alike.
fn lines(len: usize) -> Vec<u8> {
    let mut lines = Vec::with_capacity(len + 40);
    for i in 0.. {
        if lines.len() >= len {
            break;
        }
        lines.extend(format!("line {i} of a text that goes on\n").bytes());
    }
    lines.truncate(len);
    lines
}

/// Bytes that nothing makes shorter.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(next).collect()
}

/// Asserts that each way to read the key gives that value.
fn assert_read(f: &Fixture, key: &[u8], value: &[u8], expires_at: Option<u64>) {
    let (store, k) = (&f.store, &f.k);
    let entry = Entry { value, expires_at };
    let len = value.len() as u64;
    let is_it = |found: Entry<'_>| found == entry;
    assert!(store.get(k, key).unwrap().unwrap() == value);
    assert_eq!(store.get_with(k, key, is_it).unwrap(), Some(true));
    let pinned = store.get_pinned(k, key).unwrap().unwrap();
    assert!(*pinned == *value && pinned.expires_at() == expires_at);
    let longer = Longer { len, expires_at };
    for (most, expected) in [(len, Ok(true)), (len - 1, Err(longer))] {
        let found = store.get_within(k, key, most, is_it).unwrap();
        assert_eq!(found, Some(expected), "{most}");
        for direction in [Direction::Up, Direction::Down] {
            let mut scanned = Vec::new();
            let visit = |found: &[u8], value: Result<Entry<'_>, Longer>| {
                scanned.push((found == key, value.map(is_it)));
                ControlFlow::Continue(())
            };
            let range = key.to_vec()..=key.to_vec();
            let mut tx = store.begin(TransactionOptions::default());
            tx.scan_within::<Vec<u8>>(k, range, (direction, most), visit)
                .unwrap();
            assert_eq!(scanned, [(true, expected)]);
        }
    }
    let mut seen = Vec::new();
    let read = store.multi_get(k, &[key, b"nothing"], |found| {
        seen.push(found.map(is_it));
        ControlFlow::Continue(())
    });
    read.unwrap();
    assert_eq!(seen, [Some(true), None]);
    for range in [0..len, len / 3..len / 2, len - 1..len + 9, len..len + 1] {
        let mut into = b"before".to_vec();
        let whole = store.get_range(k, key, range.clone(), &mut into).unwrap();
        assert_eq!(whole, Some(len));
        let part = &value[range.start as usize..(range.end as usize).min(value.len())];
        assert!(into[..6] == *b"before" && into[6..] == *part, "{range:?}");
    }
    let snapshot = store.snapshot();
    assert!(snapshot.get(k, key).unwrap().unwrap() == value);
    let mut cursor = snapshot.cursor(k, key..=key);
    assert!(cursor.next_batch(9).unwrap() == [(key.to_vec(), value.to_vec())]);
}

/// Asserts that no way to read the key finds anything.
fn assert_gone(f: &Fixture, key: &[u8]) {
    let (store, k) = (&f.store, &f.k);
    assert_eq!(store.get(k, key).unwrap(), None);
    assert!(store.get_pinned(k, key).unwrap().is_none());
    assert_eq!(store.get_within(k, key, 0, |_| ()).unwrap(), None);
    let mut into = b"before".to_vec();
    assert_eq!(store.get_range(k, key, .., &mut into).unwrap(), None);
    assert_eq!(into, b"before");
    let mut seen = 0;
    let read = store.multi_get(k, &[key], |found| {
        seen += usize::from(found.is_some());
        ControlFlow::Continue(())
    });
    read.unwrap();
    let snapshot = store.snapshot();
    let scanned = snapshot.scan::<&[u8]>(k, key..=key, |_, _| {
        seen += 1;
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    assert_eq!(seen, 0);
    assert_eq!(snapshot.count::<&[u8]>(k, key..=key).unwrap(), 0);
}

#[test]
fn values_come_back_by_every_way_to_read() {
    for compression in ways() {
        let f = made(compression);
        for (len, noisy) in [
            (511, false),
            (512, false),
            (512, true),
            (3_000, false),
            (3_000, true),
            (100_000, false),
            (100_000, true),
            (MIB + 1, false),
            (8 * MIB + 3, false),
        ] {
            let value = if noisy { noise(len) } else { lines(len) };
            let key = format!("{len}").into_bytes();
            for expires_at in [None, Some(5_000)] {
                let put = f.store.put_expiring(&f.k, &key, &value, expires_at);
                put.unwrap();
                if len <= MIB {
                    assert_read(&f, &key, &value, expires_at);
                }
            }
            assert!(f.store.get(&f.k, &key).unwrap().unwrap() == value);
            let streamed = f.store.put_from(&f.k, b"streamed", &value[..], None);
            assert_eq!(streamed.unwrap(), len as u64);
            assert_read(&f, b"streamed", &value, None);
        }
        f.store.check().unwrap();
        assert!(f.store.scrub().unwrap().is_empty());
    }
}

#[test]
fn expired_values_are_not_there_and_are_vacuumed() {
    for compression in ways() {
        let f = made(compression);
        let value = lines(5_000);
        f.store
            .put_expiring(&f.k, b"brief", &value, Some(2_000))
            .unwrap();
        let long = lines(9 * MIB);
        f.store
            .put_expiring(&f.k, b"parts", &long, Some(2_000))
            .unwrap();
        f.store
            .put_expiring(&f.k, b"stays", &value, Some(2_001))
            .unwrap();
        assert_eq!(f.store.stats().expiring, 3);
        f.hands.set(1_999);
        assert_read(&f, b"brief", &value, Some(2_000));
        f.hands.set(2_000);
        assert_gone(&f, b"brief");
        assert_gone(&f, b"parts");
        assert_read(&f, b"stays", &value, Some(2_001));
        let vacuumed = f.store.vacuum_all().unwrap();
        assert_eq!(vacuumed.expired, 2, "{vacuumed:?}");
        assert_eq!(f.store.len(&f.k), 1);
        assert_eq!(f.store.stats().expiring, 1);
        f.store.check().unwrap();
    }
}

#[test]
fn changes_are_made_of_what_the_value_was() {
    for compression in ways() {
        let f = made(compression);
        let (store, k) = (&f.store, &f.k);
        let mut watch = store.watch(k, b"", WatchLimits::default()).unwrap();
        let mut expected = lines(3_000);
        store.put(k, b"key", &expected).unwrap();
        // Short enough to be packed while the page is locked, and longer ones.
        for more in [100, 200_000, 9 * MIB] {
            let added = lines(more);
            let longer = [&expected[..], &added].concat();
            let merged = store.merge(k, b"key", |was| {
                Some([was.unwrap_or_default(), &added].concat())
            });
            merged.unwrap();
            assert_read(&f, b"key", &longer, None);
            expected = longer;
        }
        let next = lines(700);
        let other = store
            .compare_and_swap(k, b"key", Some(&next), None)
            .unwrap();
        assert!(other.unwrap_err().unwrap() == expected);
        let swapped = store.compare_and_swap(k, b"key", Some(&expected), Some(&next));
        assert_eq!(swapped.unwrap(), Ok(()));
        assert_read(&f, b"key", &next, None);
        let kept = store.update(k, b"key", |entry| {
            let is_it = entry.is_some_and(|entry| entry.value == next);
            Ok((Update::Keep, is_it))
        });
        assert!(kept.unwrap());
        assert!(store.expire(k, b"key", Some(4_000)).unwrap());
        assert_read(&f, b"key", &next, Some(4_000));
        let mut replaced = Vec::new();
        let steps: [(&[u8], Step<'_>); 2] = [(b"key", Step::Get), (b"other", Step::Put(b"1"))];
        let done = store.execute_batch(k, &steps, |found| {
            replaced.push(found.map(|entry| entry.value.to_vec()));
            ControlFlow::Continue(())
        });
        assert_eq!(done.unwrap(), 2);
        assert!(replaced == [Some(next.clone()), None]);
        let mut puts = Vec::new();
        while let Some(event) = watch.try_next().unwrap() {
            match event {
                WatchEvent::Put { value, .. } => puts.push(value.len()),
                event => assert!(matches!(event, WatchEvent::Lagged { .. }), "{event:?}"),
            }
        }
        // A value that has parts is not told: it is read by its key.
        assert_eq!(puts[puts.len() - 3..], [700, 700, 1], "{puts:?}");
        store.check().unwrap();
    }
}

#[test]
fn a_store_is_opened_with_another_choice_and_saved_by_each() {
    for compression in ways() {
        let f = made(compression);
        let values = [lines(600), lines(50_000), noise(600), lines(9 * MIB)];
        for (i, value) in values.iter().enumerate() {
            let expires_at = (i == 1).then_some(9_000);
            f.store
                .put_expiring(&f.k, &[i as u8], value, expires_at)
                .unwrap();
        }
        let mut backup = Vec::new();
        f.store.backup(&mut backup).unwrap();
        for other in ways() {
            let options = StoreOptions {
                compression: other,
                ..f.options.clone()
            };
            let pool = Pool::<Auto>::open(&f.copy(), &PoolOptions::default()).unwrap();
            let mut saved = 0;
            let visit = &mut |salvaged: Salvaged<'_>| {
                if salvaged.number != 0 {
                    let i = salvaged.key[0] as usize;
                    let found = salvaged.found.unwrap();
                    assert!(found.value == values[i]);
                    assert_eq!(found.expires_at, (i == 1).then_some(9_000));
                    saved += 1;
                }
                ControlFlow::Continue(())
            };
            Store::salvage(&pool, "s", 1_000, visit).unwrap();
            assert_eq!(saved, values.len());
            let new = f.new_pool();
            let restored = restore(&new, "s", TREE, &options, &mut &backup[..]);
            for store in [
                open(&pool, "s", &options).unwrap(),
                restored.map(|(store, _)| store).unwrap(),
            ] {
                let k = store.find_keyspace("k").unwrap();
                for (i, value) in values.iter().enumerate() {
                    assert!(store.get(&k, &[i as u8]).unwrap().unwrap() == *value);
                }
                store.check().unwrap();
            }
        }
    }
}

#[test]
fn what_can_be_compressed_takes_less_space() {
    let taken = |compression, value: &[u8]| {
        let f = made(compression);
        let empty = f.store.stats().block_bytes;
        for i in 0..8_u8 {
            f.store.put(&f.k, &[i], value).unwrap();
            f.store.put_from(&f.k, &[i, 1], value, None).unwrap();
        }
        f.store.stats().block_bytes - empty
    };
    for (value, less) in [
        (lines(200_000), true),
        (lines(9 * MIB), true),
        (noise(200_000), false),
    ] {
        let plain = taken(Compression::None, &value);
        assert!(plain >= 16 * value.len() as u64);
        for compression in ways().into_iter().skip(1) {
            let packed = taken(compression, &value);
            if less {
                assert!(packed < plain / 2, "{compression:?}: {packed} of {plain}");
            } else {
                assert_eq!(packed, plain, "{compression:?}");
            }
        }
    }
}

/// Whatever the tree has of a value, its length is what was put.
#[test]
fn statistics_have_the_lengths_of_values_as_they_were_put() {
    let counted = |compression| {
        let f = made(compression);
        for i in 0..20_u8 {
            let value = lines(400 + 100 * i as usize);
            let expires_at = i.is_multiple_of(3).then_some(9_000);
            f.store
                .put_expiring(&f.k, &[i], &value, expires_at)
                .unwrap();
        }
        f.store.delete(&f.k, &[7]).unwrap();
        let before = f.store.stats();
        let after = open(
            &Pool::<Auto>::open(&f.copy(), &PoolOptions::default()).unwrap(),
            "s",
            &f.options,
        )
        .unwrap()
        .stats();
        assert_eq!(
            (before.keys, before.live_bytes, before.expiring),
            (after.keys, after.live_bytes, after.expiring)
        );
        (before.keys, before.live_bytes, before.expiring)
    };
    let plain = counted(Compression::None);
    for compression in ways() {
        assert_eq!(counted(compression), plain, "{compression:?}");
    }
}
