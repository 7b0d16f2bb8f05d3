//! Sessions over images of a pool, as a kill leaves them: what is replayed, and what is not.

use bristlecone_rocksdb::memtable::Memtable;
use bristlecone_rocksdb::replay::Replay;
use bristlecone_rocksdb::session::{Options, Session};
use bristlecone_rocksdb::table::{Kind, Start};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const OWNER: u64 = 7;
const VALUE: u8 = 1;

fn open(path: &Path) -> Arc<Session> {
    let options = Options {
        path: path.to_path_buf(),
        max_bytes: 0,
        scratch: false,
    };
    Session::open(&options).unwrap()
}

/// A folder on tmpfs, where the file is what a kill leaves.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

/// Copies a pool that is in use, as if its process had been killed.
fn killed(pool: &Path, name: &str) -> PathBuf {
    let copy = pool.with_file_name(name);
    std::fs::copy(pool, &copy).unwrap();
    copy
}

fn entry(key: &str, sequence: u64, value: &str) -> Vec<u8> {
    let mut entry = vec![key.len() as u8 + 8];
    entry.extend(key.as_bytes());
    entry.extend((sequence << 8 | u64::from(VALUE)).to_le_bytes());
    entry.push(value.len() as u8);
    entry.extend(value.as_bytes());
    entry
}

fn insert(memtable: &Memtable, key: &str, sequence: u64, value: &str) -> bool {
    let entry = entry(key, sequence, value);
    let at = memtable.allocate(entry.len()).unwrap();
    // SAFETY: the place was allocated for so many bytes, and is written before it is inserted.
    unsafe {
        std::ptr::copy_nonoverlapping(entry.as_ptr(), at, entry.len());
        memtable.insert(at).unwrap()
    }
}

/// Returns what a session finds of the one before, as family, key and value in order.
fn replayed(session: &Arc<Session>) -> Vec<(u32, String, String)> {
    let mut replay = Replay::new(session);
    for i in 0..replay.old().len() {
        replay.read(i, None).unwrap();
    }
    replay.sort();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut found = Vec::new();
    while let Some((entry, family)) = replay.next_entry() {
        found.push((family, text(entry.user_key), text(entry.value)));
    }
    found
}

fn tree(session: &Arc<Session>, family: u32) -> Memtable {
    Memtable::new(session, family, Kind::Tree, None)
}

#[test]
fn what_was_inserted_is_replayed_in_the_order_of_writing() {
    let dir = folder();
    let pool = dir.path().join("pool");
    let session = open(&pool);
    session.publish(OWNER).unwrap();
    let (a, b) = (tree(&session, 0), tree(&session, 5));
    for sequence in 1..=300 {
        let key = format!("k{}", sequence * 7 % 100);
        let memtable = if sequence % 3 == 0 { &b } else { &a };
        assert!(insert(memtable, &key, sequence, &sequence.to_string()));
    }
    assert!(!insert(&a, "k7", 1, "again"), "the key is there");
    let next = open(&killed(&pool, "copy"));
    let found = replayed(&next);
    let written = (1..=300u64).map(|sequence| {
        let family = if sequence % 3 == 0 { 5 } else { 0 };
        let key = format!("k{}", sequence * 7 % 100);
        (family, key, sequence.to_string())
    });
    assert_eq!(found, written.collect::<Vec<_>>());
    assert!(next.check_owner(OWNER + 1).is_err(), "they are of another");
    next.check_owner(OWNER).unwrap();
}

#[test]
fn a_replay_counts_wholly_or_not_at_all() {
    let dir = folder();
    let pool = dir.path().join("pool");
    let first = open(&pool);
    first.publish(OWNER).unwrap();
    let memtable = tree(&first, 0);
    insert(&memtable, "a", 1, "old");
    let second_pool = killed(&pool, "second");
    let second = open(&second_pool);
    let copied = tree(&second, 0);
    insert(&copied, "a", 9, "new");
    // Killed before it is published: only the old one counts.
    let third = open(&killed(&second_pool, "third"));
    assert_eq!(replayed(&third), [(0, "a".into(), "old".into())]);
    // And after it: only the new one.
    second.publish(OWNER).unwrap();
    let third = open(&killed(&second_pool, "fourth"));
    assert_eq!(replayed(&third), [(0, "a".into(), "new".into())]);
    insert(&copied, "b", 10, "more");
    let third = open(&killed(&second_pool, "fifth"));
    assert_eq!(replayed(&third).len(), 2);
}

#[test]
fn an_unfinished_batch_is_left_out() {
    let dir = folder();
    let pool = dir.path().join("pool");
    let session = open(&pool);
    session.publish(OWNER).unwrap();
    let memtable = tree(&session, 0);
    insert(&memtable, "a", 1, "alone");
    session.begin_batch(1);
    session.switching();
    insert(&memtable, "b", 2, "first of two");
    let unfinished = open(&killed(&pool, "unfinished"));
    assert_eq!(replayed(&unfinished), [(0, "a".into(), "alone".into())]);
    insert(&memtable, "c", 3, "second of two");
    assert!(session.end_batch(false));
    let finished = open(&killed(&pool, "finished"));
    assert_eq!(replayed(&finished).len(), 3);
    // A switch between writes ends the batch whose entries are in.
    session.begin_batch(3);
    insert(&memtable, "d", 4, "whole");
    session.switching();
    let switched = open(&killed(&pool, "switched"));
    assert_eq!(replayed(&switched).len(), 4);
    // One that fails half-way stays noted.
    session.begin_batch(4);
    insert(&memtable, "e", 5, "half");
    assert!(!session.end_batch(true));
    let failed = open(&killed(&pool, "failed"));
    assert_eq!(replayed(&failed).len(), 4);
}

#[test]
fn what_is_flushed_is_not_replayed_and_its_space_serves_again() {
    let dir = folder();
    let pool = dir.path().join("pool");
    let session = open(&pool);
    session.publish(OWNER).unwrap();
    let mut most = 0;
    for round in 0..20 {
        let memtable = tree(&session, 0);
        for i in 0..3000 {
            insert(&memtable, &format!("key{i}"), round * 3000 + i + 1, "value");
        }
        assert_eq!(memtable.verify().unwrap(), 3000);
        memtable.flushing(17 + round).unwrap();
        let before = open(&killed(&pool, "before"));
        let replay = Replay::new(&before);
        assert_eq!(replay.old()[0].file, 17 + round);
        memtable.flushed().unwrap();
        assert_eq!(replayed(&open(&killed(&pool, "after"))), []);
        drop(memtable);
        let size = session.pool().size();
        assert!(round == 0 || size <= most, "{size} after {most}");
        most = most.max(size);
    }
}

#[test]
fn scans_go_both_ways_from_any_key() {
    let dir = folder();
    let session = open(&dir.path().join("pool"));
    session.publish(OWNER).unwrap();
    let memtable = tree(&session, 0);
    for i in 0..1000u64 {
        insert(&memtable, &format!("k{:03}", i % 500), i + 1, "v");
    }
    let key = |user: &str, sequence: u64| {
        let mut key = entry(user, sequence, "");
        key.pop();
        key
    };
    let seen = |from: Start<'_>, up: bool| {
        let mut found = 0;
        memtable.scan(from, up, &mut |_| {
            found += 1;
            ControlFlow::Continue(())
        });
        found
    };
    assert_eq!(seen(Start::End, true), 1000);
    assert_eq!(seen(Start::End, false), 1000);
    let newest = key("k100", 601);
    assert_eq!(seen(Start::At(&newest), true), 800);
    assert_eq!(seen(Start::After(&newest), true), 799);
    assert_eq!(seen(Start::At(&newest), false), 201);
    assert_eq!(seen(Start::After(&newest), false), 200);
    // A lookup sees the newest version up to its own sequence number.
    for (sequence, version) in [(u64::MAX >> 8, Some(601)), (600, Some(101)), (100, None)] {
        let found = memtable.get(&key("k100", sequence));
        // SAFETY: an entry of 5 bytes and 8 after the length.
        let found = found.map(|at| unsafe { at.add(5).cast::<[u8; 8]>().read() });
        assert_eq!(found.map(|eight| u64::from_le_bytes(eight) >> 8), version);
    }
    assert!(memtable.get(&key("k1000", 5000)).is_none());
}
