//! Durability of the database and of single commits: what others see, and what a power cut leaves.

use crate::home;
use bristlecone::{Batch, Database, Durability, ErrorKind, Medium};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a test waits for another thread.
const PATIENCE: Duration = Duration::from_secs(60);
/// An interval that never ends in a test, and a short one.
const NEVER: Durability = Durability::Interval(Duration::from_secs(24 * 3600));
const SOON: Durability = Durability::Interval(Duration::from_millis(5));

/// A database behind the journal, in a folder of its own.
struct Disk {
    home: TempDir,
}

impl Disk {
    fn new() -> Self {
        let disk = Self { home: home() };
        std::fs::create_dir(disk.home.path().join("disk")).unwrap();
        disk
    }

    fn path(&self) -> PathBuf {
        self.home.path().join("disk/test.db")
    }

    fn open(&self, durability: Durability) -> Database {
        let options = Database::builder().medium(Medium::Journal);
        options.durability(durability).open(self.path()).unwrap()
    }

    /// The keys of a keyspace after a power cut that loses whatever is in no file now. Nobody
    /// writes a checkpoint meanwhile.
    fn after_a_cut(&self, keyspace: &str) -> Vec<String> {
        self.try_after_a_cut(keyspace).unwrap()
    }

    /// As [`after_a_cut`](Self::after_a_cut), or an error if the files changed while they were
    /// copied.
    fn try_after_a_cut(&self, keyspace: &str) -> bristlecone::Result<Vec<String>> {
        let copy = tempfile::tempdir_in(self.home.path()).unwrap();
        let from = self.home.path().join("disk");
        // The journal first, so that the copy lacks what is only in the pool file.
        let mut files: Vec<_> = (std::fs::read_dir(from).unwrap())
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort_by_key(|file| file.extension().is_some_and(|extension| extension == "db"));
        for file in files {
            std::fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
        }
        let db = Database::builder().medium(Medium::Journal).create(false);
        let db = db.open(copy.path().join("test.db"))?;
        Ok(keys(&db, keyspace))
    }
}

fn keys(db: &Database, keyspace: &str) -> Vec<String> {
    let keyspace = db.keyspace(keyspace).unwrap();
    let keys = keyspace.iter().map(|entry| entry.unwrap().0);
    keys.map(|key| key.escape_ascii().to_string()).collect()
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn deferred_commits_are_seen_by_others_once_they_are_durable() {
    let disk = Disk::new();
    let db = disk.open(Durability::Immediate);
    let k = db.keyspace("k").unwrap();
    let mut watch = k.watch().unwrap();
    let deferred = db.deferred();
    let mine = deferred.keyspace("k").unwrap();
    mine.insert("a", "1").unwrap();
    deferred.transaction(|tx| tx.insert(&k, "b", "2")).unwrap();
    let mut batch = Batch::new();
    batch.insert(&k, "c", "3");
    deferred.write(batch).unwrap();
    assert_eq!(mine.iter().count(), 3, "its own reads see it at once");
    assert_eq!(k.iter().count(), 0, "a crash could still undo it");
    assert_eq!(watch.try_next().unwrap(), None);
    db.flush().unwrap();
    assert_eq!(k.iter().count(), 3);
    assert_eq!(watch.by_ref().take(3).count(), 3);

    // A commit that waits takes along what others deferred, and so does closing.
    mine.insert("d", "4").unwrap();
    k.insert("e", "5").unwrap();
    assert_eq!(k.get("d").unwrap().unwrap(), "4");
    mine.insert("f", "6").unwrap();
    drop((k, mine, deferred, watch));
    db.close().unwrap();
    assert_eq!(keys(&disk.open(Durability::Immediate), "k").len(), 6);
}

#[test]
fn every_level_of_durability_keeps_what_was_closed() {
    let levels = [
        Durability::Immediate,
        Durability::Interval(Duration::from_millis(5)),
        Durability::None,
    ];
    for level in levels {
        let disk = Disk::new();
        let db = disk.open(level);
        let k = db.keyspace("k").unwrap();
        k.insert("a", "1").unwrap();
        assert_eq!(k.get("a").unwrap().unwrap(), "1", "{level:?}");
        db.flush().unwrap();
        k.insert("b", "2").unwrap();
        drop(k);
        db.close().unwrap();
        assert_eq!(keys(&disk.open(level), "k"), ["a", "b"]);
    }
}

#[test]
fn a_commit_with_an_interval_is_durable_after_it_and_not_before() {
    let disk = Disk::new();
    let db = disk.open(Durability::Immediate);
    let k = db.keyspace("k").unwrap();
    let never = k.with_durability(NEVER);
    never.insert("a", "1").unwrap();
    assert!(
        never.contains_key("a").unwrap(),
        "its own reads see it at once"
    );
    std::thread::sleep(Duration::from_millis(20));
    assert!(
        k.is_empty().unwrap(),
        "others do not, as a crash could undo it"
    );
    // The next one is durable soon, and with it what was before.
    db.with_durability(SOON)
        .transaction(|tx| tx.insert(&k, "b", "2"))
        .unwrap();
    wait_until("both are durable", || k.iter().count() == 2);
    assert_eq!(disk.after_a_cut("k"), ["a", "b"]);
    // The thread is asleep again, and is woken by what comes.
    let mut batch = Batch::new();
    batch.insert(&k, "c", "3");
    db.with_durability(SOON).write(batch).unwrap();
    wait_until("it is durable", || k.contains_key("c").unwrap());
    assert_eq!(disk.after_a_cut("k"), ["a", "b", "c"]);
    never.insert("d", "4").unwrap();
    db.flush().unwrap();
    assert_eq!(disk.after_a_cut("k"), ["a", "b", "c", "d"]);
}

#[test]
fn every_way_to_write_has_the_interval_of_its_handle() {
    let disk = Disk::new();
    let db = disk.open(Durability::Immediate);
    let (watched, soon) = (db.keyspace("k").unwrap(), db.with_durability(SOON));
    let k = soon.keyspace("k").unwrap();
    let mut watch = watched.watch().unwrap();
    let mut durable = |what: &str| {
        let event = watch.next_timeout(PATIENCE).unwrap();
        assert!(event.is_some(), "{what}");
    };
    k.insert("a", "1").unwrap();
    durable("insert");
    k.insert_expiring("b", "2", Duration::from_secs(3600))
        .unwrap();
    durable("insert_expiring");
    k.increment("a", 1).unwrap();
    durable("increment");
    k.merge("a", |_| Some(b"3".to_vec())).unwrap();
    durable("merge");
    assert_eq!(
        k.compare_and_swap("a", Some(b"3"), Some(b"4")).unwrap(),
        Ok(())
    );
    durable("compare_and_swap");
    assert!(k.expire("b", None).unwrap());
    durable("expire");
    assert!(k.remove("b").unwrap());
    durable("remove");
    assert!(k.pop_first().unwrap().is_some());
    durable("pop_first");
    let mut tx = soon.begin();
    tx.insert(&watched, "c", "5").unwrap();
    tx.commit().unwrap();
    durable("a transaction's commit, with a keyspace of another handle");
}

#[test]
fn handles_that_are_dropped_leave_nothing_pending() {
    let disk = Disk::new();
    let db = disk.open(Durability::Immediate);
    let snapshot = db.snapshot();
    let k = db.with_durability(NEVER).keyspace("k").unwrap();
    k.insert("a", "1").unwrap();
    drop((db, k));
    // The snapshot keeps the database open, so what follows is not what closing it did.
    assert_eq!(disk.after_a_cut("k"), ["a"]);
    let error = Database::open(disk.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked);
    drop(snapshot);
    assert_eq!(keys(&disk.open(Durability::Immediate), "k"), ["a"]);
}

#[test]
fn closing_ends_the_thread_and_says_who_is_left() {
    let disk = Disk::new();
    let db = disk.open(Durability::Immediate);
    let k = db.with_durability(NEVER).keyspace("k").unwrap();
    k.insert("a", "1").unwrap();
    let another = db.clone();
    assert_eq!(another.close().unwrap_err().kind(), ErrorKind::InUse);
    assert_eq!(disk.after_a_cut("k"), ["a"], "it is durable all the same");
    k.insert("b", "2").unwrap();
    drop(k);
    db.close().unwrap();
    assert_eq!(keys(&disk.open(Durability::Immediate), "k"), ["a", "b"]);
}

#[test]
fn commits_are_durable_at_once_where_the_database_defers_them() {
    for opened in [Durability::None, NEVER] {
        let disk = Disk::new();
        let db = disk.open(opened);
        let k = db.keyspace("k").unwrap();
        k.insert("a", "1").unwrap();
        let now = db.with_durability(Durability::Immediate);
        now.keyspace("k").unwrap().insert("b", "2").unwrap();
        assert_eq!(disk.after_a_cut("k"), ["a", "b"], "{opened:?}");
        now.transaction(|tx| tx.insert(&k, "c", "3")).unwrap();
        assert_eq!(disk.after_a_cut("k"), ["a", "b", "c"], "{opened:?}");
        // In time, too.
        k.with_durability(SOON).insert("d", "4").unwrap();
        wait_until("it is durable", || {
            disk.try_after_a_cut("k").is_ok_and(|keys| keys.len() == 4)
        });
        // And one that waits again after one that does not.
        let deferred = db.deferred();
        deferred.keyspace("k").unwrap().insert("e", "5").unwrap();
        let now = deferred.with_durability(Durability::Immediate);
        now.keyspace("k").unwrap().insert("f", "6").unwrap();
        assert_eq!(disk.after_a_cut("k").len(), 6, "{opened:?}");
    }
}

#[test]
fn threads_that_commit_with_intervals_lose_none() {
    let disk = Disk::new();
    let db = disk.open(Durability::Immediate);
    let k = db.keyspace("k").unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (db, interval) = (&db, Duration::from_micros(200 << thread));
            scope.spawn(move || {
                let mine = db.with_durability(Durability::Interval(interval));
                let k = mine.keyspace("k").unwrap();
                for n in 0..500u32 {
                    k.insert(format!("{thread}/{n:03}"), "").unwrap();
                }
            });
        }
    });
    wait_until("all are durable", || k.iter().count() == 2000);
    assert_eq!(disk.after_a_cut("k").len(), 2000);
}
