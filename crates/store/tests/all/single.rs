//! Operations on single keys, with every engine, through kills and reopenings.

use crate::common::{ALL, Fixture, TREE, k, text};
use bristlecone_store::{
    Entry, MAX_KEY_BYTES, MAX_VALUE_BYTES, Step, TransactionOptions, Update, WriteError,
};
use std::ops::ControlFlow;

#[test]
fn what_was_put_is_read_also_after_a_kill_and_a_reopening() {
    for design in ALL {
        let f = Fixture::new(design);
        let other = f.store.keyspace("other").unwrap();
        for i in 0..2000u32 {
            f.put(&format!("key {i}"), &format!("value {i}"));
        }
        for i in (0..2000u32).step_by(3) {
            f.put(&format!("key {i}"), &format!("newer {i}"));
        }
        for i in (0..2000u32).step_by(7) {
            assert!(f.store.delete(&f.k, format!("key {i}").as_bytes()).unwrap());
        }
        f.store
            .put(&other, b"key 1", b"of another keyspace")
            .unwrap();
        let expected = |i: u32| match i {
            _ if i.is_multiple_of(7) => None,
            _ if i.is_multiple_of(3) => Some(format!("newer {i}")),
            _ => Some(format!("value {i}")),
        };
        let look = |store: &bristlecone_store::Store<_>| {
            let k = store.find_keyspace("k").unwrap();
            for i in 0..2000 {
                let found = store.get(&k, format!("key {i}").as_bytes()).unwrap();
                assert_eq!(text(found), expected(i), "{design}");
            }
            let other = store.find_keyspace("other").unwrap();
            assert_eq!(
                text(store.get(&other, b"key 1").unwrap()).unwrap(),
                "of another keyspace"
            );
            assert_eq!(store.len(&k), 2000 - 2000u64.div_ceil(7));
            let names: Vec<_> = store
                .keyspaces()
                .iter()
                .map(|k| k.name().to_owned())
                .collect();
            assert_eq!(names, ["k", "other"]);
            store.check().unwrap();
        };
        look(&f.store);
        let killed = f.killed();
        look(&killed);
        assert_eq!(killed.design().0, design);
        let tombstones = if design == TREE { 0 } else { 286 };
        assert_eq!(killed.recovery().tombstones, tombstones);
        let f = f.reopened();
        look(&f.store);
        f.put("key 0", "again");
        assert_eq!(f.get("key 0").as_deref(), Some("again"));
    }
}

#[test]
fn deleting_what_is_not_there_is_no_change() {
    for design in ALL {
        let f = Fixture::new(design);
        assert!(!f.store.delete(&f.k, b"a").unwrap());
        let versions = f.store.stats().versions;
        f.put("a", "1");
        assert!(f.store.delete(&f.k, b"a").unwrap());
        assert!(!f.store.delete(&f.k, b"a").unwrap());
        assert_eq!(f.get("a"), None);
        // The value, and the tombstone over it, which a page has as a change.
        let more = if design == TREE { 0 } else { 2 };
        assert_eq!(f.store.stats().versions, versions + more);
    }
}

#[test]
fn values_of_all_sizes_come_back() {
    for design in ALL {
        let f = Fixture::new(design);
        let sizes: [usize; 10] = [
            0,
            1,
            31,
            32,
            33,
            4000,
            70_000,
            1 << 20,
            (1 << 20) + 1,
            (5 << 20) + 77,
        ];
        let value = |size: usize| -> Vec<u8> { (0..size).map(|i| (i * 31 + size) as u8).collect() };
        for size in sizes {
            f.store
                .put(&f.k, &size.to_be_bytes(), &value(size))
                .unwrap();
        }
        f.store.check().unwrap();
        let killed = f.killed();
        for size in sizes {
            for store in [&f.store, &killed] {
                let found = store.get(&k(store), &size.to_be_bytes()).unwrap().unwrap();
                assert_eq!(found, value(size), "{size}");
            }
        }
        killed.check().unwrap();
        let before = f.store.stats().block_bytes;
        for size in sizes {
            assert!(f.store.delete(&f.k, &size.to_be_bytes()).unwrap());
        }
        let vacuumed = f.store.vacuum_all().unwrap();
        let freed = if design == TREE { (0, 0) } else { (20, 10) };
        assert_eq!((vacuumed.versions, vacuumed.tombstones), freed);
        assert!(f.store.stats().block_bytes + (7 << 20) < before);
        f.store.check().unwrap();
    }
}

#[test]
fn keys_have_up_to_64_kib_and_an_error_names_both_lengths() {
    for design in ALL {
        let f = Fixture::new(design);
        let longest = vec![b'k'; MAX_KEY_BYTES];
        f.store.put(&f.k, &longest, b"v").unwrap();
        f.store.put(&f.k, b"", b"of the empty key").unwrap();
        assert_eq!(text(f.store.get(&f.k, &longest).unwrap()).unwrap(), "v");
        let killed = f.killed();
        assert_eq!(
            text(killed.get(&k(&killed), b"").unwrap()).unwrap(),
            "of the empty key"
        );
        let longer = vec![b'k'; MAX_KEY_BYTES + 1];
        let error = f.store.put(&f.k, &longer, b"v").unwrap_err();
        assert!(matches!(
            error,
            WriteError::KeyTooLong {
                len: 65_537,
                most: 65_536
            }
        ));
        assert!(error.to_string().contains("65537") && error.to_string().contains("65536"));
        assert_eq!(f.store.get(&f.k, &longer).unwrap(), None);
        f.store.check().unwrap();
    }
}

#[test]
fn compare_and_swap_changes_what_it_expected() {
    for design in ALL {
        let f = Fixture::new(design);
        let cas = |expected: Option<&str>, new: Option<&str>| {
            let swapped = f.store.compare_and_swap(
                &f.k,
                b"a",
                expected.map(str::as_bytes),
                new.map(str::as_bytes),
            );
            swapped.unwrap().map_err(text)
        };
        assert_eq!(cas(Some("1"), Some("2")), Err(None));
        assert_eq!(cas(None, Some("1")), Ok(()));
        assert_eq!(cas(None, Some("2")), Err(Some("1".into())));
        assert_eq!(cas(Some("1"), Some("2")), Ok(()));
        assert_eq!(f.get("a").as_deref(), Some("2"));
        assert_eq!(cas(Some("2"), None), Ok(()));
        assert_eq!(f.get("a"), None);
        assert_eq!(cas(None, None), Ok(()));
    }
}

#[test]
fn numbers_are_added_up_to_their_limits() {
    for design in ALL {
        let f = Fixture::new(design);
        assert_eq!(f.store.increment(&f.k, b"n", 5).unwrap(), 5);
        assert_eq!(f.store.increment(&f.k, b"n", -7).unwrap(), -2);
        assert_eq!(f.get("n").as_deref(), Some("-2"));
        f.put("n", &i64::MAX.to_string());
        let error = f.store.increment(&f.k, b"n", 1).unwrap_err();
        assert!(matches!(
            error,
            WriteError::Overflow {
                number: i64::MAX,
                by: 1
            }
        ));
        f.put("n", &i64::MIN.to_string());
        assert!(f.store.increment(&f.k, b"n", -1).is_err());
        assert_eq!(f.store.increment(&f.k, b"n", i64::MAX).unwrap(), -1);
        for bad in [
            "",
            " 1",
            "1 ",
            "+1",
            "01",
            "-0",
            "1.0",
            "99999999999999999999",
            "x",
        ] {
            f.put("n", bad);
            let error = f.store.increment(&f.k, b"n", 1).unwrap_err();
            assert!(matches!(error, WriteError::NotANumber { .. }), "{bad:?}");
            assert!(error.to_string().contains("\"n\"") && error.to_string().contains("\"k\""));
            assert_eq!(f.get("n").as_deref(), Some(bad));
        }
    }
}

#[test]
fn merges_and_updates_see_what_is_there() {
    for design in ALL {
        let f = Fixture::new(design);
        let append = |what: &str| {
            f.store
                .merge(&f.k, b"list", |old| {
                    Some([old.unwrap_or_default(), what.as_bytes()].concat())
                })
                .unwrap();
        };
        append("a");
        append("b");
        assert_eq!(f.get("list").as_deref(), Some("ab"));
        f.store.merge(&f.k, b"list", |_| None).unwrap();
        assert_eq!(f.get("list"), None);
        let error = f
            .store
            .update(&f.k, b"list", |entry| -> Result<(Update, ()), _> {
                assert_eq!(entry, None);
                Err(WriteError::Overflow { number: 1, by: 2 })
            });
        assert!(matches!(error, Err(WriteError::Overflow { .. })));
    }
}

#[test]
fn increments_of_threads_are_not_lost() {
    for design in ALL {
        let f = Fixture::new(design);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..500 {
                        let key = [b'n', (i % 3) as u8];
                        f.store.increment(&f.k, &key, 1).unwrap();
                    }
                });
            }
        });
        let all: i64 = (0..3)
            .map(|i| f.store.increment(&f.k, &[b'n', i], 0).unwrap())
            .sum();
        assert_eq!(all, 2000);
        f.store.vacuum_all().unwrap();
        // The numbers, and the keyspace.
        assert_eq!(f.store.stats().versions, 4);
        f.store.check().unwrap();
        f.killed().check().unwrap();
    }
}

#[test]
fn values_expire() {
    for design in ALL {
        let f = Fixture::new(design);
        f.hands.set(1000);
        f.store.put_expiring(&f.k, b"a", b"1", Some(2000)).unwrap();
        f.store.put_expiring(&f.k, b"b", b"1", Some(3000)).unwrap();
        f.put("c", "1");
        assert!(f.store.expire(&f.k, b"c", Some(2500)).unwrap());
        assert!(!f.store.expire(&f.k, b"d", Some(2500)).unwrap());
        let at = |key: &[u8]| f.store.get_with(&f.k, key, |e| e.expires_at).unwrap();
        assert_eq!(at(b"c"), Some(Some(2500)));
        f.hands.set(1999);
        assert!(f.get("a").is_some());
        let old = f.store.snapshot();
        f.hands.set(2000);
        assert_eq!(f.get("a"), None);
        // A snapshot reads at its own time.
        assert_eq!(text(old.get(&f.k, b"a").unwrap()).as_deref(), Some("1"));
        f.hands.set(2999);
        assert_eq!((f.get("c"), f.get("b").as_deref()), (None, Some("1")));
        assert!(!f.store.delete(&f.k, b"c").unwrap());
        let report = f.store.vacuum_all().unwrap();
        // Of records, a snapshot keeps them from being removed; a tree keeps what it reads.
        assert_eq!(report.expired, u64::from(design == TREE));
        assert_eq!(text(old.get(&f.k, b"a").unwrap()).as_deref(), Some("1"));
        drop(old);
        let expired = report.expired + f.store.vacuum_all().unwrap().expired;
        assert_eq!((expired, f.store.len(&f.k)), (1, 1));
        assert!(f.store.expire(&f.k, b"b", None).unwrap());
        f.hands.set(1 << 40);
        assert_eq!(f.get("b").as_deref(), Some("1"));
        assert_eq!(f.store.increment(&f.k, b"a", 1).unwrap(), 1);
        f.store.check().unwrap();
        f.killed().check().unwrap();
    }
}

#[test]
fn the_time_is_asked_for_only_where_something_expires() {
    for design in ALL {
        let f = Fixture::new(design);
        let asked = || f.hands.asked();
        let before = asked();
        f.put("a", "1");
        f.put("a", "2");
        assert_eq!(f.get("a").as_deref(), Some("2"));
        assert!(f.store.delete(&f.k, b"a").unwrap());
        assert_eq!(f.store.increment(&f.k, b"a", 1).unwrap(), 1);
        f.store.put_expiring(&f.k, b"a", b"3", Some(7)).unwrap();
        assert_eq!(asked(), before);
        assert_eq!(f.get("a").as_deref(), Some("3"));
        assert_eq!(asked(), before + 1);
        f.hands.set(7);
        assert!(!f.store.delete(&f.k, b"a").unwrap());
        // A tree asks again, under the lock, for whoever watches.
        assert_eq!(asked(), before + 2 + u64::from(design == TREE));
    }
}

#[test]
fn a_store_that_is_removed_can_be_made_again() {
    for design in ALL {
        let f = Fixture::new(design);
        f.put("a", "1");
        let pool = f.store.pool().clone();
        let options = f.options.clone();
        assert!(crate::common::create(&pool, "s", design, &options).is_err());
        assert!(
            bristlecone_store::Store::remove(&pool, "s").is_err(),
            "it is open"
        );
        drop(f.store);
        bristlecone_store::Store::remove(&pool, "s").unwrap();
        assert!(crate::common::open(&pool, "s", &options).is_err());
        let again = crate::common::create(&pool, "s", design, &options).unwrap();
        assert!(again.find_keyspace("k").is_none());
        let name = "n".repeat(bristlecone_store::MAX_NAME_BYTES + 1);
        let error = crate::common::create(&pool, &name, design, &options).unwrap_err();
        assert!(error.to_string().contains("41"), "{error}");
    }
}

/// A store on a tree took values of any length by `put` and by steps, and no other way.
#[test]
fn a_value_of_more_than_a_store_takes_is_refused_however_it_is_put() {
    // Never touched, so it takes no memory.
    let long = vec![0; MAX_VALUE_BYTES + 1];
    for design in ALL {
        let f = Fixture::new(design);
        let (store, k) = (&f.store, &f.k);
        let refused = |done: Result<(), WriteError>, way: &str| {
            let is_refused = matches!(done, Err(WriteError::ValueTooLong { .. }));
            assert!(is_refused, "{design}, {way}: {done:?}");
        };
        refused(store.put(k, b"key", &long), "put");
        refused(
            store.put_expiring(k, b"key", &long, Some(1 << 40)),
            "expiring",
        );
        let put = [(&b"key"[..], &long[..])];
        refused(store.multi_put(k, &put, |_| true).map(drop), "multi_put");
        let step = [(&b"key"[..], Step::Put(&long))];
        let each = |_: Option<Entry<'_>>| ControlFlow::Continue(());
        refused(store.execute_batch(k, &step, each).map(drop), "steps");
        let mut transaction = store.begin(TransactionOptions::default());
        refused(transaction.put(k, b"key", &long), "transaction");
        assert_eq!(store.get(k, b"key").unwrap(), None);
        // Not reached: a step before it is the last of the prefix.
        let steps = [
            (&b"a"[..], Step::Put(b"1")),
            (&b"a"[..], Step::Put(b"2")),
            (&b"key"[..], Step::Put(&long)),
        ];
        assert_eq!(store.execute_batch(k, &steps, each).unwrap(), 1);
        f.store.check().unwrap();
    }
}
