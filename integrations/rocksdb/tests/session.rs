//! Sessions over images of a pool, as a kill leaves them: what is replayed, and what is not.

use bristlecone_pmem::CommitError;
use bristlecone_rocksdb::error::{Fault, FaultKind};
use bristlecone_rocksdb::key::Comparator;
use bristlecone_rocksdb::memtable::Memtable;
use bristlecone_rocksdb::replay::Replay;
use bristlecone_rocksdb::session::{Options, Session};
use bristlecone_rocksdb::table::{Kind, Start};
use bristlecone_rocksdb::word;
use std::ffi::c_void;
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
        must_exist: false,
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
    session.begin_batch(1, 3).unwrap();
    assert!(!session.switching());
    insert(&memtable, "b", 2, "first of two");
    let unfinished = open(&killed(&pool, "unfinished"));
    assert_eq!(replayed(&unfinished), [(0, "a".into(), "alone".into())]);
    insert(&memtable, "c", 3, "second of two");
    assert!(session.end_batch(false));
    let finished = open(&killed(&pool, "finished"));
    assert_eq!(replayed(&finished).len(), 3);
    // A switch between writes ends the batch whose entries are in.
    session.begin_batch(3, 4).unwrap();
    insert(&memtable, "d", 4, "whole");
    assert!(!session.switching());
    let switched = open(&killed(&pool, "switched"));
    assert_eq!(replayed(&switched).len(), 4);
    // One that fails half-way stays noted.
    session.begin_batch(4, 6).unwrap();
    insert(&memtable, "e", 5, "half");
    assert!(!session.end_batch(true));
    let failed = open(&killed(&pool, "failed"));
    assert_eq!(replayed(&failed).len(), 4);
    // Whatever comes after it: a switch, another batch and its end.
    assert!(session.switching());
    session.begin_batch(5, 7).unwrap_err();
    assert!(!session.end_batch(true));
    assert!(!session.end_batch(false));
    let closed = open(&killed(&pool, "closed"));
    assert_eq!(replayed(&closed).len(), 4);
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

#[test]
fn a_switch_ends_no_batch_that_lacks_an_entry() {
    let dir = folder();
    let pool = dir.path().join("pool");
    let session = open(&pool);
    session.publish(OWNER).unwrap();
    let memtable = tree(&session, 0);
    session.begin_batch(0, 2).unwrap();
    insert(&memtable, "a", 1, "first of two");
    // Its second entry was refused, and its writer has not come to the end.
    assert!(session.switching());
    assert_eq!(replayed(&open(&killed(&pool, "switched"))), []);
    // All are inserted but for one in DRAM.
    assert!(session.spilled());
    insert(&memtable, "b", 2, "second of two");
    assert!(session.switching());
    assert!(!session.end_batch(false));
    assert_eq!(replayed(&open(&killed(&pool, "spilled"))), []);
}

#[test]
fn as_many_memtables_as_can_be_made_can_be_replayed() {
    let dir = folder();
    let pool = dir.path().join("pool");
    let session = open(&pool);
    session.publish(OWNER).unwrap();
    let memtables: Vec<_> = (0..30).map(|family| tree(&session, family)).collect();
    let mut made = 0;
    for (memtable, sequence) in memtables.iter().zip(1..) {
        if memtable.allocate(100).is_ok() {
            insert(memtable, "key", sequence, "value");
            made += 1;
        }
    }
    assert_eq!(made, 22);
    session.make_room(100, &[3]).unwrap();
    session.make_room(100, &[3, 4]).unwrap_err();
    let next = open(&killed(&pool, "copy"));
    let found = replayed(&next);
    assert_eq!(found.len(), made);
    let again: Vec<_> = (0..30).map(|family| tree(&next, family)).collect();
    for ((family, key, value), sequence) in found.iter().zip(100..) {
        insert(&again[*family as usize], key, sequence, value);
    }
    next.publish(OWNER).unwrap();
    let last = open(&killed(&dir.path().join("copy"), "last"));
    assert_eq!(replayed(&last).len(), made);
    // One family may have more of them.
    let one = open(&dir.path().join("one"));
    one.publish(OWNER).unwrap();
    let memtables: Vec<_> = (0..50).map(|_| tree(&one, 7)).collect();
    assert_eq!(
        memtables.iter().filter(|m| m.allocate(9).is_ok()).count(),
        44
    );
}

/// Compares entries' keys in the descending order of their user keys.
unsafe extern "C" fn descending(context: *const c_void, a: *const u8, b: *const u8) -> i32 {
    assert_eq!(context.addr(), 7);
    let key = |at: *const u8| {
        // SAFETY: a key of `entry`, with its length in front.
        let key = unsafe { std::slice::from_raw_parts(at.add(1), usize::from(*at)) };
        let (user, trailer) = key.split_at(key.len() - 8);
        (user, u64::from_le_bytes(trailer.try_into().unwrap()))
    };
    let ((a, a_trailer), (b, b_trailer)) = (key(a), key(b));
    match (b, b_trailer).cmp(&(a, a_trailer)) {
        std::cmp::Ordering::Less => -1,
        std::cmp::Ordering::Equal => 0,
        std::cmp::Ordering::Greater => 1,
    }
}

#[test]
fn memtables_in_an_order_of_their_own_are_closed_by_any_thread() {
    let dir = folder();
    let pool = dir.path().join("pool");
    let session = open(&pool);
    session.publish(OWNER).unwrap();
    let order = Some(Comparator {
        function: descending,
        context: std::ptr::without_provenance(7),
    });
    let memtable = Memtable::new(&session, 0, Kind::Tree, order);
    for sequence in 1..=500 {
        insert(
            &memtable,
            &format!("k{}", sequence * 7 % 100),
            sequence,
            "v",
        );
    }
    // It is kept, and so closed in order.
    std::thread::spawn(move || drop(memtable)).join().unwrap();
    drop(session);
    let read = std::thread::spawn(move || {
        let session = open(&pool);
        let mut replay = Replay::new(&session);
        replay.read(0, order).unwrap().entries
    });
    assert_eq!(read.join().unwrap(), 500);
}

#[test]
fn every_flipped_bit_of_the_directory_is_told() {
    const FAMILY: u32 = 0x1234_5678;
    let dir = folder();
    let pool = dir.path().join("pool");
    let session = open(&pool);
    session.publish(OWNER).unwrap();
    let memtable = tree(&session, FAMILY);
    insert(&memtable, "a", 1, "value");
    memtable.flushing(99).unwrap();
    session.begin_batch(1, 2).unwrap();
    let mut image = std::fs::read(killed(&pool, "copy")).unwrap();
    // The word of slot 0 has the family, generation 1, and that it is there.
    let state = word::seal(u64::from(FAMILY) << 24 | 1 << 2 | 1).to_le_bytes();
    let found = |image: &[u8]| {
        let mut at = image
            .chunks_exact(8)
            .enumerate()
            .filter(|(_, eight)| *eight == state);
        let first = at.next().unwrap().0 * 8;
        assert!(at.next().is_none());
        first - 8 * 8
    };
    let directory = found(&image);
    for at in [0, 1, 2, 3, 8, 9, 10, 11, 50].map(|at| directory + 8 * at) {
        for bit in 0..64 {
            image[at + bit / 8] ^= 1 << (bit % 8);
            let damaged = dir.path().join("damaged");
            std::fs::write(&damaged, &image).unwrap();
            let options = Options {
                path: damaged.clone(),
                max_bytes: 0,
                scratch: false,
                must_exist: true,
            };
            let opened = Session::open(&options).map(|_| ()).unwrap_err();
            assert_eq!(opened.kind, FaultKind::Corruption, "{at}, {bit}: {opened}");
            // Nothing was removed: set right, all is there.
            if bit == 0 {
                let mut left = std::fs::read(&damaged).unwrap();
                left[at] ^= 1;
                std::fs::write(&damaged, left).unwrap();
                assert_eq!(replayed(&open(&damaged)).len(), 1);
            }
            image[at + bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn a_pool_that_must_exist_is_not_made() {
    let dir = folder();
    let options = Options {
        path: dir.path().join("none"),
        max_bytes: 0,
        scratch: false,
        must_exist: true,
    };
    let opened = Session::open(&options).map(|_| ()).unwrap_err();
    assert_eq!(opened.kind, FaultKind::Invalid);
    assert!(!options.path.exists());
}

#[test]
fn a_full_disk_is_told_from_one_that_refuses() {
    let error = || std::io::Error::from(std::io::ErrorKind::StorageFull);
    let doing = "writing the journal";
    let kind = |e: CommitError| Fault::from(e).kind;
    let source = error();
    assert_eq!(
        kind(CommitError::NoSpace { doing, source }),
        FaultKind::NoSpace
    );
    let source = error();
    assert_eq!(kind(CommitError::Failed { doing, source }), FaultKind::Io);
}
