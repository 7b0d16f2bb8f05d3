//! Keyspaces that get another name: what handles, snapshots and crashes make of it.

use crate::common::{ALL, Fixture, text};
use crate::failing::made;
use bristlecone_pmem::media::journal::fault::FaultDisk;
use bristlecone_pmem::{Access, Media, Pool, PoolOptions};
use bristlecone_store::{Store, WatchEvent, WatchLimits, WriteError};

fn names<M: Media>(store: &Store<M>) -> Vec<String> {
    let all = store.keyspaces().into_iter();
    all.map(|keyspace| keyspace.name().to_owned()).collect()
}

#[test]
fn a_renamed_keyspace_is_the_same_one_under_its_new_name() {
    for design in ALL {
        let f = Fixture::new(design);
        f.put("a", "1");
        let before = f.store.snapshot();
        let new = f.store.rename_keyspace(&f.k, "new").unwrap();
        assert_eq!((new.name(), f.k.name()), ("new", "k"));
        assert_eq!(new, f.k);
        assert_eq!(names(&f.store), ["new"]);
        assert!(f.store.find_keyspace("k").is_none());
        let of_before = before.keyspaces().unwrap();
        assert_eq!(of_before[0].name(), "k");

        // Handles from before are of the same keyspace, for reading, writing, clearing and
        // dropping.
        assert_eq!(f.get("a").as_deref(), Some("1"));
        f.put("b", "2");
        assert_eq!(text(f.store.get(&new, b"b").unwrap()).as_deref(), Some("2"));
        // The old name is free.
        let other = f.store.keyspace("k").unwrap();
        assert!(f.store.is_empty(&other) && other != new);
        let killed = f.killed();
        assert_eq!(names(&killed), ["k", "new"]);
        let there = killed.find_keyspace("new").unwrap();
        assert_eq!(killed.len(&there), 2);
        killed.check().unwrap();

        let empty = f.store.clear(f.k.clone()).unwrap();
        assert_eq!(empty.name(), "new");
        f.store.drop_keyspace(empty.clone()).unwrap();
        assert_eq!(names(&f.store), ["k"]);
        let refused = f.store.rename_keyspace(&empty, "again").unwrap_err();
        assert!(matches!(refused, WriteError::Dropped { .. }), "{refused}");
    }
}

#[test]
fn names_that_are_taken_or_are_none_are_refused_and_nothing_changes() {
    for design in ALL {
        let f = Fixture::new(design);
        f.store.keyspace("other").unwrap();
        let refused = f.store.rename_keyspace(&f.k, "other").unwrap_err();
        assert!(matches!(refused, WriteError::Exists { .. }), "{refused}");
        assert!(refused.to_string().contains("\"other\""), "{refused}");
        let refused = f.store.rename_keyspace(&f.k, "").unwrap_err();
        assert!(matches!(refused, WriteError::BadName { .. }), "{refused}");
        let elsewhere = Fixture::new(design);
        let refused = elsewhere.store.rename_keyspace(&f.k, "new").unwrap_err();
        assert!(
            matches!(refused, WriteError::OtherStore { .. }),
            "{refused}"
        );
        let same = f.store.rename_keyspace(&f.k, "k").unwrap();
        assert_eq!(same, f.k);
        assert_eq!(names(&f.store), ["k", "other"]);

        let (dir, options) = f.ended(true);
        let mut read = PoolOptions::default();
        read.media.access = Access::ReadOnly;
        let path = dir.path().join("pool");
        let pool = Pool::<bristlecone_pmem::media::Auto>::open(&path, &read).unwrap();
        let store = crate::common::open(&pool, "s", &options).unwrap();
        let k = store.find_keyspace("k").unwrap();
        let refused = store.rename_keyspace(&k, "new").unwrap_err();
        assert!(matches!(refused, WriteError::ReadOnly), "{refused}");
    }
}

#[test]
fn a_watch_goes_on_under_the_new_name() {
    for design in ALL {
        let f = Fixture::new(design);
        let mut watch = f.store.watch(&f.k, b"", WatchLimits::default()).unwrap();
        let new = f.store.rename_keyspace(&f.k, "new").unwrap();
        f.store.put(&new, b"a", b"1").unwrap();
        let event = watch.try_next().unwrap();
        assert!(matches!(event, Some(WatchEvent::Put { .. })), "{event:?}");
        assert_eq!(watch.try_next().unwrap(), None);
    }
}

#[test]
fn a_power_cut_leaves_the_old_name_or_the_new_one() {
    let (mut old, mut new) = (0, 0);
    for events in 0.. {
        let disk = FaultDisk::new(3);
        let (store, k) = made(&disk);
        disk.cut_after(events);
        let renamed = store.rename_keyspace(&k, "new");
        if !disk.is_cut() {
            break;
        }
        for seed in 0..4 {
            let cut = disk.restart(seed);
            let pool = crate::failing::on(&cut, Access::ReadWrite);
            let store = crate::common::open(&pool, "s", &crate::failing::options()).unwrap();
            store.check().unwrap();
            let all = store.keyspaces();
            assert_eq!(all.len(), 1, "{all:?}");
            assert_eq!(store.len(&all[0]), 6);
            match all[0].name() {
                "k" => old += 1,
                "new" => new += 1,
                name => panic!("{name}"),
            }
            assert!(renamed.is_err() || all[0].name() == "new");
        }
    }
    assert!(old > 0 && new > 0, "{old} {new}");
}

/// A commit that found no space is applied, and durable with the next one: so the catalogue in
/// memory has it, too.
#[test]
fn a_renaming_that_is_not_durable_yet_is_not_lost() {
    let disk = FaultDisk::new(5);
    let (store, k) = made(&disk);
    disk.set_full(true);
    let refused = store.rename_keyspace(&k, "new").unwrap_err();
    assert!(matches!(refused, WriteError::Commit(_)), "{refused}");
    assert_eq!(names(&store), ["new"]);
    disk.set_full(false);
    store.put(&k, b"a", b"new").unwrap();
    drop(store);
    let pool = crate::failing::on(&disk.after_kill(1), Access::ReadWrite);
    let store = crate::common::open(&pool, "s", &crate::failing::options()).unwrap();
    assert_eq!(names(&store), ["new"]);
}
