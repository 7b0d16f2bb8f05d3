//! The crate as its users have it: opening, reading back, iterating from both ends, transactions.

use crate::{database, home};
use bristlecone::{Batch, Database, Error, ErrorKind, Event, Isolation, Keyspace, Slice};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[test]
fn what_was_written_is_there_after_closing_and_after_dropping() {
    let home = home();
    let path = home.path().join("test.db");
    let db = Database::open(&path).unwrap();
    db.keyspace("a").unwrap().insert("k", "closed").unwrap();
    db.close().unwrap();
    let db = Database::open(&path).unwrap();
    let a = db.keyspace("a").unwrap();
    assert_eq!(a.get("k").unwrap().unwrap(), "closed");
    a.insert("k", "dropped").unwrap();
    // The keyspace keeps the database open: closing says so, and the last handle closes it.
    let error = db.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert_eq!(Database::open(&path).unwrap_err().kind(), ErrorKind::Locked);
    drop(a);
    let db = Database::open(&path).unwrap();
    let a = db.find_keyspace("a").unwrap();
    assert_eq!(a.get("k").unwrap().unwrap(), "dropped");
    let names: Vec<_> = db.keyspaces().iter().map(|k| k.name().to_owned()).collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn a_database_in_memory_has_no_file_and_is_new_each_time() {
    let (home, there) = database();
    there.close().unwrap();
    let in_memory = || Database::builder().medium(bristlecone::Medium::Dram);
    let path = home.path().join("memory");
    for _ in 0..2 {
        let db = in_memory().open(&path).unwrap();
        assert_eq!(db.medium(), bristlecone::Medium::Dram);
        let words = db.keyspace("words").unwrap();
        assert!(words.is_empty().unwrap());
        for n in 0..3_000u32 {
            words.insert(n.to_be_bytes(), "seen").unwrap();
        }
        assert_eq!(words.range::<[u8; 4]>(..).count(), 3_000);
        assert!(!path.exists());
    }
    let refused = [
        in_memory().open(home.path().join("test.db")),
        in_memory().create(false).open(&path),
        in_memory().read_only(true).open(&path),
    ];
    for answer in refused {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn errors_say_what_kind_they_are() {
    let (home, db) = database();
    let path = home.path().join("test.db");
    let opened = |options: bristlecone::Options, name: &str| {
        options.open(home.path().join(name)).unwrap_err().kind()
    };
    let builder = Database::builder;
    assert_eq!(opened(builder().create(false), "none"), ErrorKind::NotFound);
    assert_eq!(
        opened(builder().create_new(true), "test.db"),
        ErrorKind::AlreadyExists
    );
    std::fs::write(home.path().join("text"), "no database at all").unwrap();
    assert_eq!(opened(builder(), "text"), ErrorKind::NotADatabase);
    let both = builder().read_only(true).create_new(true);
    assert_eq!(opened(both, "new"), ErrorKind::InvalidInput);
    assert!(!home.path().join("new").exists());

    let a = db.keyspace("a").unwrap();
    let long = vec![b'k'; (64 << 10) + 1];
    assert_eq!(
        a.insert(&long, "v").unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert!(a.get(&long).unwrap().is_none());
    assert_eq!(db.keyspace("").unwrap_err().kind(), ErrorKind::InvalidInput);
    a.insert("word", "seven").unwrap();
    let error = a.increment("word", 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("\"word\""), "{error}");
    let stale = a.clone();
    let empty = a.clear().unwrap();
    assert_eq!(
        stale.insert("k", "v").unwrap_err().kind(),
        ErrorKind::Dropped
    );
    assert!(empty.is_empty().unwrap());
    drop((stale, empty, db));

    let reader = builder().read_only(true).open(&path).unwrap();
    let another = builder().read_only(true).open(&path).unwrap();
    let a = reader.find_keyspace("a").unwrap();
    assert_eq!(a.insert("k", "v").unwrap_err().kind(), ErrorKind::ReadOnly);
    assert!(another.find_keyspace("a").is_some());
    assert_eq!(Database::open(&path).unwrap_err().kind(), ErrorKind::Locked);
}

#[test]
fn a_keyspace_of_another_database_is_refused() {
    let ((_a, one), (_b, other)) = (database(), database());
    let (mine, theirs) = (one.keyspace("k").unwrap(), other.keyspace("k").unwrap());
    let error = one
        .transaction(|tx| tx.insert(&theirs, "key", "v"))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let mut batch = Batch::new();
    batch.insert(&mine, "key", "v");
    batch.insert(&theirs, "key", "v");
    assert_eq!(
        one.write(batch).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        mine.at(&other.snapshot()).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert!(mine.is_empty().unwrap() && theirs.is_empty().unwrap());
}

/// One step of a test of iterators: which end.
fn ends() -> impl Strategy<Value = Vec<bool>> {
    proptest::collection::vec(any::<bool>(), 0..700)
}

fn small_key() -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(prop_oneof![Just(0u8), Just(7), Just(255)], 0..5)
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        Just(Bound::Unbounded),
        small_key().prop_map(Bound::Included),
        small_key().prop_map(Bound::Excluded),
    ]
}

/// Takes from the ends as `steps` say, from an iterator and from a list of what it should give.
fn same(
    mut found: impl DoubleEndedIterator<Item = bristlecone::Result<(Slice, Slice)>>,
    model: Vec<(Vec<u8>, Vec<u8>)>,
    steps: &[bool],
) {
    let mut model = model.into_iter();
    for up in steps.iter().chain(&[true, false, true]) {
        let (next, expected) = if *up {
            (found.next(), model.next())
        } else {
            (found.next_back(), model.next_back())
        };
        let next = next.map(|entry| {
            let (key, value) = entry.unwrap();
            (key.to_vec(), value.to_vec())
        });
        assert_eq!(next, expected);
    }
    let rest: Vec<_> = found.map(|entry| entry.unwrap().0.to_vec()).collect();
    assert_eq!(rest, model.map(|(key, _)| key).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn iterators_give_what_a_map_has_from_both_ends(
        entries in proptest::collection::btree_map(small_key(), proptest::collection::vec(any::<u8>(), 0..40), 0..600),
        range in (bound(), bound()),
        prefix in small_key(),
        steps in ends(),
        own in proptest::collection::btree_map(small_key(), proptest::option::of(Just(b"own".to_vec())), 0..60),
    ) {
        use std::ops::RangeBounds;
        let (_home, db) = database();
        let k = db.keyspace("k").unwrap();
        // Neighbours on both sides, which no range may reach.
        for name in ["j", "l"] {
            db.keyspace(name).unwrap().insert([7, 7], "neighbour").unwrap();
        }
        let mut batch = Batch::new();
        for (key, value) in &entries {
            batch.insert(&k, key, value);
        }
        db.write(batch).unwrap();
        let list = |map: &BTreeMap<Vec<u8>, Vec<u8>>, keep: &dyn Fn(&Vec<u8>) -> bool| -> Vec<_> {
            map.iter().filter(|(key, _)| keep(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
        };
        let inside = |key: &Vec<u8>| range.contains(key);
        same(k.iter(), list(&entries, &|_| true), &steps);
        same(k.range::<Vec<u8>>(range.clone()), list(&entries, &inside), &steps);
        same(k.prefix(&prefix), list(&entries, &|key| key.starts_with(&prefix)), &steps);

        // A transaction sees its own changes among the others.
        let mut changed = entries.clone();
        let mut tx = db.begin_with(Isolation::Serializable);
        for (key, value) in own {
            match value {
                Some(value) => {
                    tx.insert(&k, &key, &value).unwrap();
                    changed.insert(key, value);
                }
                None => {
                    tx.remove(&k, &key).unwrap();
                    changed.remove(&key);
                }
            }
        }
        same(tx.range::<Vec<u8>>(&k, range.clone()), list(&changed, &inside), &steps);
        // An iterator keeps the time that it was made at.
        let before = k.iter();
        tx.commit().unwrap();
        same(before, list(&entries, &|_| true), &steps);
        same(k.iter(), list(&changed, &|_| true), &steps);
        assert_eq!(k.approximate_len(), changed.len() as u64);
    }
}

#[test]
fn transactions_are_retried_until_they_commit() {
    let (_home, db) = database();
    let k = db.keyspace("k").unwrap();
    let rounds = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    db.transaction(|tx| {
                        rounds.fetch_add(1, Ordering::Relaxed);
                        let old = tx.get(&k, "sum")?.unwrap_or_default();
                        let old: u64 = String::from_utf8(old).unwrap().parse().unwrap_or(0);
                        tx.insert(&k, "sum", (old + 1).to_string())
                    })
                    .unwrap();
                }
            });
        }
    });
    assert_eq!(k.get("sum").unwrap().unwrap(), "800");
    assert!(rounds.load(Ordering::Relaxed) >= 800);
}

#[test]
fn an_error_of_ones_own_ends_a_transaction_and_changes_nothing() {
    let (_home, db) = database();
    let k = db.keyspace("k").unwrap();
    let error = db
        .transaction(|tx| -> bristlecone::Result<()> {
            tx.insert(&k, "a", "1")?;
            Err(Error::other("enough"))
        })
        .unwrap_err();
    assert_eq!(error.into_other().unwrap().to_string(), "enough");
    assert!(k.is_empty().unwrap());
}

#[test]
fn each_entry_is_popped_by_one_thread() {
    let (_home, db) = database();
    let k = db.keyspace("k").unwrap();
    let mut batch = Batch::new();
    for i in 0..2000u32 {
        batch.insert(&k, i.to_be_bytes(), i.to_string());
    }
    db.write(batch).unwrap();
    let mut popped: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let k = k.clone();
                scope.spawn(move || {
                    let mut mine = Vec::new();
                    loop {
                        let next = if thread % 2 == 0 {
                            k.pop_first()
                        } else {
                            k.pop_last()
                        };
                        match next.unwrap() {
                            Some((key, _)) => mine.push(key.to_vec()),
                            None => return mine,
                        }
                    }
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    popped.sort();
    let all: Vec<_> = (0..2000u32).map(|i| i.to_be_bytes().to_vec()).collect();
    assert_eq!(popped, all);
}

/// A value that is read in place stays as it was, though it is replaced, vacuumed and its space is
/// used again.
#[test]
fn a_value_in_place_is_not_freed_while_it_is_held() {
    let (_home, db) = database();
    let k = db.keyspace("k").unwrap();
    k.insert("a", vec![7; 5000]).unwrap();
    let held = k.get("a").unwrap().unwrap();
    for i in 0..300u32 {
        k.insert("a", vec![1; 5000]).unwrap();
        k.insert(i.to_be_bytes(), vec![2; 5000]).unwrap();
    }
    db.store().vacuum_all().unwrap();
    assert_eq!(held, vec![7; 5000]);
    drop(held);
    assert_eq!(k.get("a").unwrap().unwrap(), vec![1; 5000]);
}

#[test]
fn values_expire_and_expiry_can_be_taken_away() {
    let (_home, db) = database();
    let k = db.keyspace("k").unwrap();
    k.insert_expiring("short", "1", Duration::ZERO).unwrap();
    k.insert_expiring("long", "1", Duration::from_secs(3600))
        .unwrap();
    assert!(k.get("short").unwrap().is_none());
    assert!(k.get("long").unwrap().unwrap().expires_at().is_some());
    assert!(k.expire("long", None).unwrap());
    assert_eq!(k.get("long").unwrap().unwrap().expires_at(), None);
    assert!(!k.expire("short", Some(Duration::MAX)).unwrap());
    // Longer than the clock goes.
    k.insert_expiring("ever", "1", Duration::MAX).unwrap();
    assert!(k.contains_key("ever").unwrap());
    assert_eq!(k.iter().count(), 2);
}

#[test]
fn a_backup_is_restored_whole_and_no_half_of_one_is_left() {
    let (home, db) = database();
    let k = db.keyspace("k").unwrap();
    for i in 0..500u32 {
        k.insert(i.to_be_bytes(), vec![i as u8; 300]).unwrap();
    }
    let backup = home.path().join("backup");
    let report = db.backup_to(&backup).unwrap();
    assert_eq!((report.keyspaces, report.entries), (1, 500));
    let again = db.backup_to(&backup).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    let copy = Database::restore(&backup, home.path().join("copy.db")).unwrap();
    let same = copy.keyspace("k").unwrap();
    let content = |k: &bristlecone::Keyspace| -> Vec<_> { k.iter().map(Result::unwrap).collect() };
    assert_eq!(content(&same), content(&k));
    copy.check().unwrap();

    let mut bytes = std::fs::read(&backup).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    let bad = home.path().join("bad");
    std::fs::write(&bad, bytes).unwrap();
    let target = home.path().join("bad.db");
    let error = Database::restore(&bad, &target).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(!target.exists());
}

#[test]
fn upkeep_gives_space_back_and_says_what_there_is() {
    let (_home, db) = database();
    let k = db.keyspace("k").unwrap();
    for i in 0..2000u32 {
        k.insert(i.to_be_bytes(), vec![1; 4000]).unwrap();
    }
    assert_eq!(db.stats().keys, 2001, "and the catalogue's");
    k.clear().unwrap();
    let report = db.compact().unwrap();
    // Cut off at the end, or a hole inside.
    let given_back = report.before_bytes - report.after_bytes + report.punched_bytes;
    assert!(given_back > 7 << 20, "{report:?}");
    db.flush().unwrap();
    assert_eq!(db.check().unwrap().entries, 1);
}

/// A damaged entry took those before it, which had been read ahead, away from the iterator.
#[test]
fn what_comes_before_a_damaged_entry_is_given_and_then_the_error() {
    const ENTRIES: u16 = 2_000;
    const DAMAGED: u16 = 1_000;
    let home = home();
    let path = home.path().join("test.db");
    let db = Database::open(&path).unwrap();
    let k = db.keyspace("k").unwrap();
    for i in 0..ENTRIES {
        let value = format!("value {i:05}, to be found");
        k.insert(i.to_be_bytes(), value).unwrap();
    }
    drop((k, db));
    // Everywhere: a page that was written anew elsewhere leaves its old bytes behind.
    let mut bytes = std::fs::read(&path).unwrap();
    let value = format!("value {DAMAGED:05}, to be found");
    let found = bytes.windows(value.len()).enumerate();
    let found = found.filter(|(_, found)| *found == value.as_bytes());
    let found: Vec<usize> = found.map(|(at, _)| at).collect();
    assert!(!found.is_empty());
    found.iter().for_each(|at| bytes[*at] = b'X');
    std::fs::write(&path, bytes).unwrap();

    let db = Database::open(&path).unwrap();
    let k = db.find_keyspace("k").unwrap();
    // Of a page that cannot be read, more than that entry is missing.
    let [low, high] = ends_at_damage(&k, (ENTRIES, DAMAGED), 200);
    assert_eq!(k.first().unwrap().unwrap().0, [0, 0]);
    let last = ENTRIES - 1;
    assert_eq!(k.pop_last().unwrap().unwrap().0, last.to_be_bytes());
    // From both ends, until they meet at what is damaged.
    let mut both = k.iter();
    assert_eq!(
        both.next_back().unwrap().unwrap().0,
        (last - 1).to_be_bytes()
    );
    assert_eq!(both.next().unwrap().unwrap().0, [0, 0]);
    assert_eq!(keys_before_error(&mut both), (1..low).collect::<Vec<_>>());
    assert!(high > DAMAGED);
}

/// Goes to what is damaged from either end. Returns the first key from below that is not given, and
/// the last one from above that is.
fn ends_at_damage(k: &Keyspace, (entries, damaged): (u16, u16), most: u16) -> [u16; 2] {
    let up = keys_before_error(&mut k.iter());
    let low = up.len() as u16;
    assert_eq!(up, (0..low).collect::<Vec<_>>());
    assert!((damaged - most..=damaged).contains(&low), "{low}");
    let down = keys_before_error(&mut k.iter().rev());
    let high = entries - down.len() as u16;
    assert_eq!(down, (high..entries).rev().collect::<Vec<_>>());
    assert!((damaged + 1..=damaged + 1 + most).contains(&high), "{high}");
    [low, high]
}

/// The keys that an iterator gives before its error, which is the last item.
fn keys_before_error(
    entries: &mut dyn Iterator<Item = bristlecone::Result<(Slice, Slice)>>,
) -> Vec<u16> {
    let mut keys = Vec::new();
    let error = loop {
        match entries.next().expect("an error comes first") {
            Ok((key, _)) => keys.push(u16::from_be_bytes([key[0], key[1]])),
            Err(e) => break e,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(entries.next().is_none(), "the error is the last item");
    keys
}

/// Events as text: `key=value`, `-key`, or what else it is.
fn shown(event: &Event) -> String {
    match event {
        Event::Insert { key, value, .. } => {
            format!("{}={}", key.escape_ascii(), value.escape_ascii())
        }
        Event::Remove { key, .. } => format!("-{}", key.escape_ascii()),
        other => format!("{other:?}"),
    }
}

#[test]
fn a_watch_has_every_change_of_its_prefix_and_ends_with_the_database() {
    let (_home, db) = database();
    let mut k = db.keyspace("k").unwrap();
    let watch = k.watch_prefix("a/").unwrap();
    let reader = std::thread::spawn(move || {
        let events = watch.map(|event| shown(&event.unwrap()));
        events.collect::<Vec<_>>()
    });
    k.insert("a/1", "1").unwrap();
    k.insert("b", "1").unwrap();
    k.increment("a/n", 7).unwrap();
    k.merge("a/1", |_| Some(b"2".into())).unwrap();
    k.insert_expiring("a/2", "2", Duration::MAX).unwrap();
    let mut batch = Batch::new();
    batch.insert(&k, "a/3", "3");
    batch.remove(&k, "a/2");
    db.write(batch).unwrap();
    db.transaction(|tx| tx.insert(&k, "a/4", "4")).unwrap();
    let swapped = k.compare_and_swap("a/4", Some(b"4"), None).unwrap();
    assert_eq!(swapped, Ok(()));
    assert_eq!(k.pop_first().unwrap().unwrap().0, "a/1");
    let renamed = k.rename("renamed").unwrap();
    drop(std::mem::replace(&mut k, renamed));
    assert_eq!(k.pop_last().unwrap().unwrap().0, "b");
    let k = k.clear().unwrap();
    k.insert("a/5", "5").unwrap();
    drop(k);
    db.close().unwrap();
    let mut events = reader.join().unwrap();
    assert!(events.remove(9).starts_with("Clear"), "{events:?}");
    let expected = "a/1=1 a/n=7 a/1=2 a/2=2 -a/2 a/3=3 a/4=4 -a/4 -a/1 a/5=5";
    assert_eq!(events.join(" "), expected);
}

#[test]
fn a_keyspace_is_renamed_unless_the_name_is_taken() {
    let (home, db) = database();
    let k = db.keyspace("k").unwrap();
    k.insert("a", "1").unwrap();
    db.keyspace("taken").unwrap();
    let kind = |name: &str| k.rename(name).unwrap_err().kind();
    assert_eq!(kind("taken"), ErrorKind::AlreadyExists);
    assert_eq!(kind(""), ErrorKind::InvalidInput);
    let missing = db.rename_keyspace("none", "new").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().contains("test.db"), "{missing}");
    let new = db.rename_keyspace("k", "new").unwrap();
    new.insert("b", "2").unwrap();
    assert_eq!(k.get("b").unwrap().unwrap(), "2");
    k.clone().remove_keyspace().unwrap();
    assert_eq!(kind("again"), ErrorKind::Dropped);
    db.rename_keyspace("taken", "kept").unwrap();
    drop((k, new, db));

    let reader = Database::builder().read_only(true);
    let db = reader.open(home.path().join("test.db")).unwrap();
    let names: Vec<_> = db.keyspaces().iter().map(|k| k.name().to_owned()).collect();
    assert_eq!(names, ["kept"]);
    let refused = db.rename_keyspace("kept", "other").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    let refused = db.keyspaces()[0].watch().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
}

#[test]
fn a_keyspace_in_a_snapshot_and_a_typed_one_have_the_same_ends() {
    let (_home, db) = database();
    let typed = db.typed::<u32, String>("k").unwrap();
    for n in [3, 1, 2] {
        typed.insert(&n, &n.to_string()).unwrap();
    }
    let snapshot = db.snapshot();
    assert_eq!(typed.first().unwrap().unwrap(), (1, "1".into()));
    assert_eq!(typed.pop_first().unwrap().unwrap(), (1, "1".into()));
    assert_eq!(typed.pop_last().unwrap().unwrap(), (3, "3".into()));
    assert_eq!(typed.last().unwrap().unwrap(), (2, "2".into()));
    let before = typed.bytes().at(&snapshot).unwrap();
    let ends = [before.first(), before.last()].map(|end| end.unwrap().unwrap().1);
    assert_eq!(ends, [Slice::from("1"), Slice::from("3")]);
    assert!(before.contains_key(typed.key(&1)).unwrap());
    assert!(!typed.contains_key(&1).unwrap());
    assert_eq!(
        ((&before).into_iter().count(), (&typed).into_iter().count()),
        (3, 1)
    );
    let mut tx = db.begin();
    tx.remove(typed.bytes(), typed.key(&2)).unwrap();
    assert_eq!(tx.iter(typed.bytes()).count(), 0);
}

/// Each reads what the other one changes: a snapshot lets both commit, serialisable transactions
/// take place one after the other.
#[test]
fn write_skew_happens_in_snapshots_and_not_in_serialisable_transactions() {
    let (_home, db) = database();
    let k = db.keyspace("k").unwrap();
    for (isolation, both) in [
        (Isolation::Snapshot, true),
        (Isolation::Serializable, false),
    ] {
        k.insert("a", "on").unwrap();
        k.insert("b", "on").unwrap();
        let mut first = db.begin_with(isolation);
        let mut second = db.begin_with(isolation);
        assert_eq!(first.get(&k, "b").unwrap().unwrap(), b"on");
        assert_eq!(second.get(&k, "a").unwrap().unwrap(), b"on");
        first.insert(&k, "a", "off").unwrap();
        second.insert(&k, "b", "off").unwrap();
        first.commit().unwrap();
        let committed = second.commit();
        assert_eq!(committed.is_ok(), both, "{isolation:?}");
        if let Err(e) = committed {
            let conflict = e.conflict().unwrap();
            assert_eq!((conflict.key.as_slice(), conflict.read), (&b"a"[..], true));
        }
    }
}

#[test]
fn a_transaction_goes_back_to_each_of_its_savepoints() {
    let (_home, db) = database();
    let k = db.keyspace("k").unwrap();
    let mut tx = db.begin();
    tx.insert(&k, "a", "1").unwrap();
    let first = tx.savepoint();
    tx.insert(&k, "a", "2").unwrap();
    tx.insert(&k, "b", "2").unwrap();
    let second = tx.savepoint();
    tx.remove(&k, "a").unwrap();
    tx.rollback_to(second);
    assert_eq!(tx.get(&k, "a").unwrap().unwrap(), b"2");
    tx.rollback_to(first);
    // One that was rolled back past does nothing.
    tx.rollback_to(second);
    assert_eq!((tx.changes(), tx.get(&k, "b").unwrap()), (1, None));
    tx.commit().unwrap();
    let found = k.multi_get(["b", "a", "a"]).unwrap();
    assert_eq!(found, [None, Some(b"1".to_vec()), Some(b"1".to_vec())]);
}
