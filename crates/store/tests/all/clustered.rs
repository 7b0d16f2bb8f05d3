//! What is particular to stores on a clustered tree: keys and values that are too long for it,
//! counts that outlive the process, opening without reading.

use crate::common::{Fixture, TREE, k, text};
use bristlecone_pmem::Pool;
use bristlecone_pmem::media::{Auto, MediumKind};
use bristlecone_store::{Step, Store, StoreOptions, Update, WatchEvent, WatchLimits};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// A key of one of few beginnings, up to three times as long as the tree has keys.
fn any_key(rng: &mut SmallRng) -> Vec<u8> {
    let beginnings: [usize; 8] = [0, 5, 2042, 2043, 2044, 4_073, 4_080, 6_000];
    let len = beginnings[rng.random_range(0..beginnings.len())];
    let mut key = vec![b'm'; len];
    if len > 10 && rng.random_bool(0.3) {
        let at = rng.random_range(0..len);
        key[at] = rng.random();
    }
    key.extend((0..rng.random_range(0..3)).map(|_| rng.random::<u8>()));
    key
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn found(
    store: &Store<Auto>,
    range: std::ops::Range<Vec<u8>>,
    up: bool,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let (mut found, k) = (Vec::new(), k(store));
    let mut visit = |key: &[u8], entry: bristlecone_store::Entry<'_>| {
        found.push((key.to_vec(), entry.value.to_vec()));
        ControlFlow::Continue(())
    };
    let snapshot = store.snapshot();
    let scanned = if up {
        snapshot.scan::<Vec<u8>>(&k, range, &mut visit)
    } else {
        snapshot.scan_reverse::<Vec<u8>>(&k, range, &mut visit)
    };
    scanned.unwrap();
    found
}

fn agrees(store: &Store<Auto>, model: &Model, rng: &mut SmallRng) {
    let (a, b) = (any_key(rng), any_key(rng));
    let range = a.clone().min(b.clone())..a.max(b);
    let inside = model.range(range.clone());
    let inside: Vec<_> = inside
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    assert!(
        found(store, range.clone(), true) == inside,
        "{} entries",
        inside.len()
    );
    let down: Vec<_> = inside.into_iter().rev().collect();
    assert!(found(store, range, false) == down, "down");
    assert_eq!(store.len(&k(store)), model.len() as u64);
}

#[test]
fn long_keys_are_in_order_with_all_others() {
    let rng = &mut SmallRng::seed_from_u64(26);
    let mut f = Fixture::new(TREE);
    let mut model = Model::new();
    for round in 0..600u32 {
        let key = any_key(rng);
        if rng.random_bool(0.25) {
            let there = f.store.delete(&f.k, &key).unwrap();
            assert_eq!(there, model.remove(&key).is_some());
        } else {
            let value = round.to_le_bytes();
            f.store.put(&f.k, &key, &value).unwrap();
            model.insert(key.clone(), value.to_vec());
        }
        assert_eq!(f.store.get(&f.k, &key).unwrap(), model.get(&key).cloned());
        if round % 20 == 0 {
            agrees(&f.store, &model, rng);
        }
        if round == 300 {
            agrees(&f.killed(), &model, rng);
            f = f.reopened();
        }
    }
    f.store.check().unwrap();
    // A cursor goes on behind a long key.
    let mut cursor = f.store.snapshot().into_cursor(&f.k, ..);
    let mut keys = Vec::new();
    loop {
        let some = cursor.next_keys(7).unwrap();
        if some.is_empty() {
            break;
        }
        keys.extend(some);
    }
    assert!(keys.iter().eq(model.keys()));
    drop(cursor);
    f.store.drop_keyspace(f.k.clone()).unwrap();
    f.store.vacuum_all().unwrap();
    f.store.check().unwrap();
    assert_eq!(f.store.stats().keys, 0);
}

#[test]
fn transactions_conflict_on_long_keys() {
    let f = Fixture::new(TREE);
    let long = |last: u8| [&vec![b'l'; 5_000][..], &[last]].concat();
    f.store.put(&f.k, &long(1), b"1").unwrap();
    let serializable = bristlecone_store::TransactionOptions::serializable();
    let begin = || f.store.begin(serializable);
    // A key, an absent one, and a range.
    let mut reads = [begin(), begin(), begin()];
    reads[0].get(&f.k, &long(1)).unwrap();
    reads[1].get(&f.k, &long(2)).unwrap();
    reads[2]
        .scan::<Vec<u8>>(&f.k, long(0)..long(9), |_, _| ControlFlow::Continue(()))
        .unwrap();
    f.store.put(&f.k, &long(1), b"2").unwrap();
    f.store.put(&f.k, &long(2), b"2").unwrap();
    for mut one in reads {
        one.put(&f.k, b"other", b"").unwrap();
        let error = one.commit().unwrap_err().to_string();
        assert!(error.contains("conflict"), "{error}");
    }
    let mut writes = f.store.begin(serializable);
    writes.put(&f.k, &long(1), b"3").unwrap();
    f.store.delete(&f.k, &long(1)).unwrap();
    let error = writes.commit().unwrap_err().to_string();
    assert!(
        error.contains("conflict") && error.contains("llll"),
        "{error}"
    );
}

#[test]
fn values_of_more_than_64_mib_are_in_parts() {
    const LEN: usize = (70 << 20) + 123;
    let value = |seed: u8| -> Vec<u8> { (0..LEN).map(|i| (i >> 7) as u8 ^ seed).collect() };
    let f = Fixture::new(TREE);
    let (one, two) = (value(1), value(2));
    f.store
        .put_expiring(&f.k, b"long", &one, Some(1 << 50))
        .unwrap();
    let before = f.store.snapshot();
    let space = f.store.stats().block_bytes;
    assert!(f.store.get(&f.k, b"long").unwrap().unwrap() == one);
    let pinned = f.store.get_pinned(&f.k, b"long").unwrap().unwrap();
    assert!(*pinned == one[..] && pinned.expires_at() == Some(1 << 50));
    drop(pinned);
    // By an update, which reads it.
    let updated = f.store.update(&f.k, b"long", |entry| {
        assert!(entry.unwrap().value == one);
        let (value, expires_at) = (two.clone(), None);
        Ok((Update::Put { value, expires_at }, ()))
    });
    updated.unwrap();
    f.store.vacuum_all().unwrap();
    assert!(
        before.get(&f.k, b"long").unwrap().unwrap() == one,
        "a snapshot reads it"
    );
    let mut seen = 0;
    before
        .scan::<Vec<u8>>(&f.k, .., |_, entry| {
            assert!(entry.value == one);
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!((seen, f.store.len(&f.k)), (1, 1));
    drop(before);
    assert!(f.store.get(&f.k, b"long").unwrap().unwrap() == two);
    f.store.check().unwrap();
    let f = f.reopened();
    assert!(f.store.get(&f.k, b"long").unwrap().unwrap() == two);
    f.put("long", "short now");
    f.store.vacuum_all().unwrap();
    assert_eq!(f.get("long").as_deref(), Some("short now"));
    f.store.check().unwrap();
    assert!(
        f.store.stats().block_bytes < space / 20,
        "{:?}",
        f.store.stats()
    );
}

/// A store that was closed in order is opened, read and counted without reading its pages.
#[test]
fn opening_reads_no_more_than_it_needs() {
    let f = Fixture::new(TREE);
    for i in 0..20_000u32 {
        f.put(&format!("{i:05}"), "value");
    }
    let pages = f.store.index_stats().leaves;
    assert!(pages > 60, "{pages}");
    let f = f.reopened();
    assert_eq!((f.store.len(&f.k), f.store.stats().keys), (20_000, 20_001));
    assert_eq!(
        text(f.store.get(&f.k, b"12345").unwrap()).as_deref(),
        Some("value")
    );
    assert!(
        f.store.index_stats().leaves < 10,
        "{}",
        f.store.index_stats().leaves
    );
    // After a kill the keys are counted, once somebody asks.
    f.put("20000", "another");
    let killed = f.killed();
    assert!(killed.index_stats().leaves < 10);
    assert_eq!(killed.len(&k(&killed)), 20_001);
    killed.check().unwrap();
}

#[test]
fn keys_are_counted_while_others_change_them() {
    let f = Fixture::new(TREE);
    for i in 0..5_000u32 {
        f.put(&format!("{i:05}"), "value");
    }
    let options = bristlecone_store::StoreOptions {
        vacuum_every: Some(std::time::Duration::from_millis(1)),
        ..f.options.clone()
    };
    let pool = bristlecone_pmem::Pool::<Auto>::open(&f.copy(), &Default::default()).unwrap();
    let store = crate::common::open(&pool, "s", &options).unwrap();
    let keyspace = k(&store);
    for i in (0..5_000u32).step_by(2) {
        let key = format!("{i:05}");
        assert!(store.delete(&keyspace, key.as_bytes()).unwrap());
        store
            .put(&keyspace, format!("new {i}").as_bytes(), b"")
            .unwrap();
        store
            .put(
                &keyspace,
                format!("{:05}", i + 1).as_bytes(),
                b"longer than before",
            )
            .unwrap();
    }
    assert_eq!(store.len(&keyspace), 5_000);
    store.check().unwrap();
}

/// Whoever asks for keys that are not there fills no pool, however long they are.
#[test]
fn nothing_is_written_where_no_long_key_is() {
    let f = Fixture::new(TREE);
    let long = |i: u32| [&i.to_le_bytes()[..], &vec![b'l'; 5_000]].concat();
    f.store.put(&f.k, &long(0), b"there").unwrap();
    let entries = f.store.index_stats().entries;
    for i in 1..50 {
        let key = &long(i)[..];
        assert_eq!(f.store.get(&f.k, key).unwrap(), None);
        assert!(!f.store.delete(&f.k, key).unwrap());
        for update in [Update::Keep, Update::Delete] {
            let updated = f.store.update(&f.k, key, |entry| {
                assert!(entry.is_none());
                Ok((update.clone(), ()))
            });
            updated.unwrap();
        }
        let mut seen = Vec::new();
        let steps = [(key, Step::Get), (&long(0), Step::Get)];
        let done = f.store.execute_batch(&f.k, &steps, |entry| {
            seen.push(entry.is_some());
            ControlFlow::Continue(())
        });
        assert_eq!((done.unwrap(), seen), (2, vec![false, true]));
    }
    assert_eq!(f.store.index_stats().entries, entries);
    // And an update that puts one does.
    f.store.increment(&f.k, &long(1), 5).unwrap();
    assert_eq!(f.store.increment(&f.k, &long(1), 5).unwrap(), 10);
    assert!(f.store.delete(&f.k, &long(1)).unwrap());
    f.store.check().unwrap();
}

/// An update whose closure never says the same twice ends.
#[test]
fn an_update_to_a_value_in_parts_is_asked_for_once() {
    let f = Fixture::new(TREE);
    f.put("long", "before");
    let mut asked = 0u8;
    let updated = f.store.update(&f.k, b"long", |_| {
        asked += 1;
        let value = vec![asked; (65 << 20) + 1];
        let expires_at = None;
        Ok((Update::Put { value, expires_at }, ()))
    });
    updated.unwrap();
    assert_eq!(asked, 1);
    let found = f.store.get(&f.k, b"long").unwrap().unwrap();
    assert!(found.len() == (65 << 20) + 1 && found.iter().all(|byte| *byte == 1));
    f.store.check().unwrap();
}

/// What is replaced on a journal gives its space back, although a power cut may bring it back until
/// the next sync.
#[test]
fn a_journal_takes_more_than_its_pool_has_room_for_at_once() {
    let dir = crate::common::directory();
    let options = crate::common::on(MediumKind::Journal, 48 << 20);
    let pool = Pool::<Auto>::create(&dir.path().join("pool"), &options).unwrap();
    let options = StoreOptions::default().without_thread();
    let store = crate::common::create(&pool, "s", TREE, &options).unwrap();
    let k = store.keyspace("k").unwrap();
    let deferring = store.deferring();
    for round in 0..4u8 {
        for i in 0..25u8 {
            deferring
                .put(&k, &[i], &vec![round; 1 << 20])
                .unwrap_or_else(|e| panic!("{round}, {i}: {e}"));
        }
        if round == 0 {
            store.make_durable(store.applied()).unwrap();
        }
    }
    for i in 0..25u8 {
        assert!(deferring.get(&k, &[i]).unwrap().unwrap() == vec![3; 1 << 20]);
    }
    store.check().unwrap();
}

/// What a reader has seen is durable once all is that had been applied by then.
#[test]
fn what_was_seen_is_below_the_applied_timestamp() {
    let dir = crate::common::directory();
    let pool = crate::common::journalled(dir.path());
    let options = StoreOptions::default().without_thread();
    let store = crate::common::create(&pool, "s", TREE, &options).unwrap();
    let k = store.keyspace("k").unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2u8 {
            let (k, ended, deferring) = (&k, &ended, store.deferring());
            scope.spawn(move || {
                for n in 0u64.. {
                    // Two pages, at best.
                    let mut batch = bristlecone_store::Batch::new();
                    batch.put(k, &[writer], &n.to_be_bytes());
                    batch.put(k, &[writer, 255], &vec![n as u8; 3_000]);
                    deferring.write(batch).unwrap();
                    if ended.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let deferring = store.deferring();
        let number = |value: Option<Vec<u8>>| {
            value.map_or(0, |value| u64::from_be_bytes(value.try_into().unwrap()))
        };
        for i in 0..2_000 {
            let key = [i as u8 % 2];
            let seen = number(deferring.get(&k, &key).unwrap());
            store.make_durable(store.applied()).unwrap();
            let durable = number(store.get(&k, &key).unwrap());
            assert!(
                durable >= seen,
                "{i}: {seen} was seen, {durable} is durable"
            );
        }
        ended.store(true, Ordering::Relaxed);
    });
}

/// While a dropped keyspace is swept, values that have lost their parts are no damage.
#[test]
fn what_is_being_swept_is_not_damaged() {
    let f = Fixture::new(TREE);
    let gone = f.store.keyspace("gone").unwrap();
    let long = vec![7; 17 << 20];
    for key in [b"a", b"b", b"c"] {
        f.store.put_from(&gone, key, &mut &long[..], None).unwrap();
        f.store.put(&gone, &[key[0], 0], b"short").unwrap();
    }
    f.store.drop_keyspace(gone).unwrap();
    let mut steps = 0;
    while !f.store.vacuum(1).unwrap().complete {
        f.store.check().unwrap();
        assert!(f.killed().check().is_ok(), "step {steps}");
        steps += 1;
    }
    assert!(steps > 3, "{steps}");
}

/// Pages that are split, merged and replaced, and long values that come and go, are nothing to
/// report.
#[test]
fn of_a_killed_store_that_is_whole_nothing_is_passed_over() {
    let f = Fixture::new(TREE);
    let key = |i: u64| format!("{:05}", i * 7_919 % 10_007);
    for round in 0..12u64 {
        for i in 0..1_500 {
            let key = key(round * 700 + i);
            match (i + round) % 5 {
                0 => drop(f.store.delete(&f.k, key.as_bytes()).unwrap()),
                1 if i % 20 == 1 => (f.store)
                    .put(&f.k, key.as_bytes(), &vec![i as u8; 3_000])
                    .unwrap(),
                _ => f.put(&key, &format!("{round} {i}, a value")),
            }
        }
        if round % 3 == 2 {
            for i in (0..10_007).filter(|i| i % 9 > 1) {
                f.store.delete(&f.k, format!("{i:05}").as_bytes()).unwrap();
            }
        }
        let pool = Pool::<Auto>::salvage(&f.copy()).unwrap();
        assert!(pool.problems().is_empty(), "{:?}", pool.problems());
        let mut found = BTreeMap::new();
        let report = Store::salvage(&pool, "s", f.store.now(), &mut |salvaged| {
            let entry = salvaged.found.unwrap();
            found.insert(salvaged.key.to_vec(), entry.value.to_vec());
            ControlFlow::Continue(())
        });
        let report = report.unwrap();
        assert_eq!((report.passed, report.violation), (Vec::new(), None));
        let mut expected = BTreeMap::new();
        let snapshot = f.store.snapshot();
        let scanned = snapshot.scan::<Vec<u8>>(&f.k, .., |key, entry| {
            expected.insert(key.to_vec(), entry.value.to_vec());
            ControlFlow::Continue(())
        });
        scanned.unwrap();
        assert!(expected.len() > 100 && found == expected, "round {round}");
    }
}

/// A key that has expired is gone already: nobody is told that the sweep removes it.
#[test]
fn the_removal_of_what_has_expired_is_not_told() {
    let f = Fixture::new(TREE);
    f.hands.set(10);
    for (key, at) in [("a", Some(50)), ("b", Some(51)), ("c", None)] {
        let put = f.store.put_expiring(&f.k, key.as_bytes(), b"v", at);
        put.unwrap();
    }
    let watch = f.store.watch(&f.k, b"", WatchLimits::default());
    let mut watch = watch.unwrap();
    f.hands.set(50);
    assert_eq!(f.get("a"), None);
    assert_eq!(f.store.vacuum_all().unwrap().expired, 1);
    assert_eq!(watch.try_next().unwrap(), None);
    for one in [b"b", b"c"] {
        assert!(f.store.delete(&f.k, one).unwrap());
        let told = watch.try_next().unwrap();
        assert!(matches!(told, Some(WatchEvent::Delete { key, .. }) if *key == *one));
    }
}
