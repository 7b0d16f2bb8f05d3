//! Transactions against a model, savepoints, cursors, batches, and the vacuum beside snapshots.

use crate::common::{ALL, Fixture, TREE, k, text};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{
    Batch, Keyspace, Snapshot, Store, StoreOptions, Transaction, TransactionOptions,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::time::{Duration, Instant};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

fn key(rng: &mut SmallRng) -> Vec<u8> {
    let number = rng.random_range(0..60u32);
    // Some are prefixes of others.
    format!("{number}").into_bytes()
}

fn range(rng: &mut SmallRng) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let mut bound = || match rng.random_range(0..3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(rng)),
        _ => Bound::Excluded(key(rng)),
    };
    (bound(), bound())
}

/// Returns the content of the range; nothing for a range that a map would refuse.
fn model_range(model: &Model, range: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> Pairs {
    use std::ops::RangeBounds;
    let all = model.iter().filter(|(key, _)| range.contains(*key));
    all.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn seen_by_snapshot(snapshot: &Snapshot<Auto>, k: &Keyspace, rng: &mut SmallRng, model: &Model) {
    let range = range(rng);
    let expected = model_range(model, &range);
    let mut found = Pairs::new();
    snapshot
        .scan(k, range.clone(), |key, entry| {
            found.push((key.to_vec(), entry.value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(found, expected);
    let mut cursor = snapshot.cursor_reverse(k, range);
    let mut down = Pairs::new();
    loop {
        let some = cursor.next_batch(7).unwrap();
        if some.is_empty() {
            break;
        }
        down.extend(some);
        if down.len().is_multiple_of(7) {
            assert_eq!(
                cursor.position(),
                down.last().map(|(key, _)| key.as_slice())
            );
        }
    }
    down.reverse();
    assert_eq!(down, expected);
    let key = key(rng);
    assert_eq!(snapshot.get(k, &key).unwrap().as_ref(), model.get(&key));
}

fn seen_by_transaction(tx: &mut Transaction<Auto>, f: &Fixture, rng: &mut SmallRng, model: &Model) {
    let range = range(rng);
    let expected = model_range(model, &range);
    let most = rng.random_range(1..80);
    let mut found = Pairs::new();
    let reverse = rng.random_bool(0.5);
    let visit = |key: &[u8], entry: bristlecone_store::Entry<'_>| {
        found.push((key.to_vec(), entry.value.to_vec()));
        if found.len() < most {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    let expected: Pairs = if reverse {
        tx.scan_reverse(&f.k, range, visit).unwrap();
        expected.into_iter().rev().take(most).collect()
    } else {
        tx.scan(&f.k, range, visit).unwrap();
        expected.into_iter().take(most).collect()
    };
    assert_eq!(found, expected);
    let key = key(rng);
    assert_eq!(tx.get(&f.k, &key).unwrap().as_ref(), model.get(&key));
    let mut prefixed = Vec::new();
    tx.prefix(&f.k, b"1", |key, _| {
        prefixed.push(key.to_vec());
        ControlFlow::Continue(())
    })
    .unwrap();
    let expected: Vec<_> = model
        .keys()
        .filter(|key| key.starts_with(b"1"))
        .cloned()
        .collect();
    assert_eq!(prefixed, expected);
}

/// Executes a random transaction with savepoints, and commits it or not.
fn transaction(f: &Fixture, rng: &mut SmallRng, round: usize, model: &mut Model) {
    let serializable = rng.random_bool(0.3);
    let options = if serializable {
        TransactionOptions::serializable()
    } else {
        TransactionOptions::default()
    };
    let mut tx = f.store.begin(options);
    let mut own = model.clone();
    let mut saved = Vec::new();
    for _ in 0..rng.random_range(0..12) {
        let key = key(rng);
        match rng.random_range(0..8) {
            0..=3 => {
                let value = format!("{round}").into_bytes();
                tx.put(&f.k, &key, &value).unwrap();
                own.insert(key, value);
            }
            4 => {
                tx.delete(&f.k, &key).unwrap();
                own.remove(&key);
            }
            5 => saved.push((tx.savepoint(), own.clone())),
            6 => {
                if let Some((savepoint, then)) = saved.pop() {
                    tx.rollback_to(savepoint);
                    own = then;
                }
            }
            _ => seen_by_transaction(&mut tx, f, rng, &own),
        }
    }
    seen_by_transaction(&mut tx, f, rng, &own);
    if rng.random_bool(0.8) {
        tx.commit().unwrap();
        *model = own;
    }
}

/// Writes a random batch.
fn batch(f: &Fixture, rng: &mut SmallRng, model: &mut Model) {
    let mut batch = Batch::new();
    for _ in 0..rng.random_range(0..5) {
        let key = key(rng);
        if rng.random_bool(0.3) {
            batch.delete(&f.k, &key);
            model.remove(&key);
        } else {
            batch.put(&f.k, &key, b"batch");
            model.insert(key, b"batch".to_vec());
        }
    }
    f.store.write(batch).unwrap();
}

/// Compares random transactions, single operations, batches, snapshots, vacuums and kills with
/// maps, copied for every snapshot.
fn against_the_model(design: &str, seed: u64, rounds: usize) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let rng = &mut rng;
    let mut f = Fixture::new(design);
    let mut model = Model::new();
    let mut kept: Vec<(Snapshot<Auto>, Model)> = Vec::new();
    for round in 0..rounds {
        match rng.random_range(0..12) {
            0..=3 => transaction(&f, rng, round, &mut model),
            4 => batch(&f, rng, &mut model),
            5 | 6 => {
                let key = key(rng);
                let value = vec![b'v'; rng.random_range(0..300)];
                f.store.put(&f.k, &key, &value).unwrap();
                model.insert(key, value);
            }
            7 => {
                let key = key(rng);
                let there = f.store.delete(&f.k, &key).unwrap();
                assert_eq!(there, model.remove(&key).is_some());
            }
            8 => kept.push((f.store.snapshot(), model.clone())),
            9 => {
                if !kept.is_empty() {
                    let at = rng.random_range(0..kept.len());
                    kept.swap_remove(at);
                }
            }
            10 => {
                f.store.vacuum(rng.random_range(1..40)).unwrap();
            }
            _ => {
                let killed = f.killed();
                seen_by_snapshot(&killed.snapshot(), &k(&killed), rng, &model);
                assert_eq!(killed.len(&k(&killed)), model.len() as u64);
                killed.check().unwrap();
                if rng.random_bool(0.3) {
                    kept.clear();
                    f = f.reopened();
                }
            }
        }
        assert_eq!(f.store.len(&f.k), model.len() as u64);
        seen_by_snapshot(&f.store.snapshot(), &f.k, rng, &model);
        for (snapshot, then) in &kept {
            seen_by_snapshot(snapshot, &f.k, rng, then);
        }
    }
    f.store.check().unwrap();
    kept.clear();
    f.store.vacuum_all().unwrap();
    f.store.check().unwrap();
    assert_eq!(f.store.stats().versions, model.len() as u64 + 1);
    assert_eq!(f.store.stats().garbage_bytes, 0);
}

#[test]
fn random_histories_of_one_thread_are_those_of_a_map_with_versions() {
    for design in ALL {
        for seed in 0..3 {
            against_the_model(design, seed, 250);
        }
    }
}

#[test]
fn a_transaction_spans_keyspaces() {
    for design in ALL {
        let f = Fixture::new(design);
        let other = f.store.keyspace("other").unwrap();
        let mut tx = f.store.begin(TransactionOptions::default());
        tx.put(&f.k, b"a", b"1").unwrap();
        tx.put(&other, b"a", b"2").unwrap();
        assert_eq!(f.get("a"), None);
        tx.commit().unwrap();
        assert_eq!(f.get("a").as_deref(), Some("1"));
        assert_eq!(
            text(f.store.get(&other, b"a").unwrap()).as_deref(),
            Some("2")
        );
    }
}

#[test]
fn a_cursor_goes_on_where_it_stopped_in_its_own_snapshot() {
    for design in ALL {
        let f = Fixture::new(design);
        for i in 0..100 {
            f.put(&format!("{i:03}"), "1");
        }
        let mut cursor = f.store.snapshot().into_cursor(&f.k, ..);
        let first = cursor.next_keys(40).unwrap();
        assert_eq!((first.len(), cursor.position().unwrap()), (40, &b"039"[..]));
        f.put("0395", "new");
        f.store.delete(&f.k, b"050").unwrap();
        f.store.vacuum_all().unwrap();
        assert_eq!(cursor.next_keys(1000).unwrap().len(), 60);
        assert!(cursor.next_keys(1).unwrap().is_empty());
        // A cursor in another snapshot, after the same key.
        let after = (Bound::Excluded(b"039".to_vec()), Bound::Unbounded);
        let mut cursor = f.store.snapshot().into_cursor(&f.k, after);
        assert_eq!(
            cursor.next_keys(2).unwrap(),
            [b"0395".to_vec(), b"040".to_vec()]
        );
    }
}

#[test]
fn what_a_snapshot_reads_is_not_vacuumed_and_then_it_is() {
    for design in ALL {
        let f = Fixture::new(design);
        f.put("a", "0");
        f.put("b", "0");
        let old = f.store.snapshot();
        for i in 1..=50 {
            f.put("a", &i.to_string());
        }
        f.store.delete(&f.k, b"b").unwrap();
        let middle = f.store.snapshot();
        f.put("a", "last");
        assert_eq!(f.store.stats().oldest_snapshot, Some(old.timestamp()));
        let report = f.store.vacuum_all().unwrap();
        assert_eq!(report.versions, 0, "the oldest snapshot keeps all of them");
        assert_eq!(text(old.get(&f.k, b"a").unwrap()).as_deref(), Some("0"));
        drop(old);
        let report = f.store.vacuum_all().unwrap();
        if design != TREE {
            assert_eq!((report.versions, report.tombstones), (52, 1), "{report:?}");
        }
        assert_eq!(text(middle.get(&f.k, b"a").unwrap()).as_deref(), Some("50"));
        assert_eq!(middle.get(&f.k, b"b").unwrap(), None);
        f.store.check().unwrap();
        drop(middle);
        f.store.vacuum_all().unwrap();
        let stats = f.store.stats();
        let vacuumed = if design == TREE { 0 } else { 53 };
        assert_eq!(
            (stats.versions, stats.garbage_bytes, stats.vacuumed),
            (2, 0, vacuumed)
        );
        f.store.check().unwrap();
    }
}

#[test]
fn a_thread_vacuums_and_space_does_not_grow() {
    for design in ALL {
        let options = StoreOptions {
            vacuum_every: Some(Duration::from_millis(1)),
            ..StoreOptions::default()
        };
        let f = Fixture::with(design, options);
        for round in 0..20 {
            for i in 0..200 {
                f.put(&format!("{i}"), &format!("{round}").repeat(200));
            }
        }
        let begun = Instant::now();
        while f.store.stats().versions > 201 {
            assert!(
                begun.elapsed() < Duration::from_secs(10),
                "{:?}",
                f.store.stats()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        let vacuumed = if design == TREE { 0 } else { 19 * 200 };
        assert_eq!(f.store.stats().vacuumed, vacuumed);
    }
}

/// Concurrent transfers between accounts keep the total, in every snapshot and after every kill.
fn transfers(design: &str) {
    const ACCOUNTS: u32 = 8;
    let f = Fixture::with(
        design,
        StoreOptions {
            vacuum_every: Some(Duration::from_millis(1)),
            ..StoreOptions::default()
        },
    );
    let name = |i: u32| format!("account {i}").into_bytes();
    for i in 0..ACCOUNTS {
        f.store.put(&f.k, &name(i), b"100").unwrap();
    }
    let total = |store: &Store<Auto>| {
        let mut total = 0;
        store
            .snapshot()
            .scan::<Vec<u8>>(&k(store), .., |_, entry| {
                total += std::str::from_utf8(entry.value)
                    .unwrap()
                    .parse::<i64>()
                    .unwrap();
                ControlFlow::Continue(())
            })
            .unwrap();
        total
    };
    let number = |tx: &mut Transaction<Auto>, who: u32| -> i64 {
        text(tx.get(&f.k, &name(who)).unwrap())
            .unwrap()
            .parse()
            .unwrap()
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|seed| {
                let (f, name, number) = (&f, &name, &number);
                scope.spawn(move || {
                    let mut rng = SmallRng::seed_from_u64(seed);
                    let mut committed = 0;
                    while committed < 400 {
                        let (from, to) =
                            (rng.random_range(0..ACCOUNTS), rng.random_range(0..ACCOUNTS));
                        if from == to {
                            continue;
                        }
                        let mut tx = f.store.begin(TransactionOptions::default());
                        let (a, b) = (number(&mut tx, from), number(&mut tx, to));
                        tx.put(&f.k, &name(from), (a - 1).to_string().as_bytes())
                            .unwrap();
                        tx.put(&f.k, &name(to), (b + 1).to_string().as_bytes())
                            .unwrap();
                        match tx.commit() {
                            Ok(_) => committed += 1,
                            Err(bristlecone_store::WriteError::Conflict(_)) => {}
                            Err(e) => unreachable!("{e}"),
                        }
                    }
                })
            })
            .collect();
        while !writers
            .iter()
            .all(std::thread::ScopedJoinHandle::is_finished)
        {
            assert_eq!(total(&f.store), 800);
        }
    });
    assert_eq!(total(&f.store), 800);
    f.store.vacuum_all().unwrap();
    f.store.check().unwrap();
    let killed = f.killed();
    assert_eq!(total(&killed), 800);
    killed.check().unwrap();
}

#[test]
fn transfers_of_threads_keep_the_total() {
    ALL.into_iter().for_each(transfers);
}
