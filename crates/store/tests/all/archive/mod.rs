//! Archives: a store is made again as it was at any commit, whatever happened to the archived one
//! and to the archive; what cannot be had is an error, never something else.

mod damage;
mod found;

use crate::common::{Hands, PATIENCE, RESERVE, alone, directory, on};
use bristlecone_pmem::media::{Auto, Dram, MediumKind};
use bristlecone_pmem::{Pool, PoolOptions};
use bristlecone_store::{
    Archive, ArchiveError, ArchiveOptions, Batch, FileKind, Keyspace, Store, StoreError,
    StoreOptions, TransactionOptions, Until,
};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The keys of each keyspace, with their values, as [`brief`] returns them, and expiries.
type Content = BTreeMap<String, BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>>;

/// A value, or the length and the checksum of a long one.
fn brief(value: &[u8]) -> Vec<u8> {
    if value.len() <= 1 << 20 {
        return value.to_vec();
    }
    format!("{} bytes, {:x}", value.len(), crc32c::crc32c(value)).into_bytes()
}

fn content<M: bristlecone_pmem::Media>(store: &Store<M>) -> Content {
    let snapshot = store.snapshot();
    let mut all = Content::new();
    for keyspace in snapshot.keyspaces().unwrap() {
        let there = all.entry(keyspace.name().to_owned()).or_default();
        let visit = |key: &[u8], entry: bristlecone_store::Entry<'_>| {
            there.insert(key.to_vec(), (brief(entry.value), entry.expires_at));
            std::ops::ControlFlow::Continue(())
        };
        snapshot.scan::<Vec<u8>>(&keyspace, .., visit).unwrap();
    }
    all
}

struct Archived {
    // The first field, so that the store closes before its file is removed.
    store: Option<Store<Auto>>,
    dir: TempDir,
    options: StoreOptions,
    hands: Hands,
}

impl Archived {
    fn new(medium: MediumKind, change: impl FnOnce(&mut ArchiveOptions)) -> Self {
        let dir = directory();
        let mut archive = ArchiveOptions::new(dir.path().join("archive"));
        archive.every = Duration::from_millis(3);
        change(&mut archive);
        let hands = Hands::default();
        hands.set(1_000);
        let options = StoreOptions {
            archive: Some(archive),
            clock: hands.clock(),
            vacuum_every: Some(Duration::from_millis(5)),
            ..StoreOptions::default()
        };
        let pool = Pool::create(&dir.path().join("pool"), &on(medium, RESERVE)).unwrap();
        let store = Some(Store::create(&pool, "s", &options).unwrap());
        Self {
            store,
            dir,
            options,
            hands,
        }
    }

    fn store(&self) -> &Store<Auto> {
        self.store.as_ref().unwrap()
    }

    fn archive(&self) -> PathBuf {
        self.dir.path().join("archive")
    }

    fn close(&mut self) {
        let store = self.store.take().unwrap();
        store.close().map_err(|(_, e)| e).unwrap();
    }

    fn open(&mut self) {
        let pool = Pool::open(&self.dir.path().join("pool"), &PoolOptions::default()).unwrap();
        self.store = Some(Store::open(&pool, "s", &self.options).unwrap());
    }

    /// Leaves the store as a kill would, and opens it again.
    fn kill(&mut self) {
        let archive = self.archive();
        self.kill_in(&archive);
    }

    fn kill_in(&mut self, archive: &Path) {
        let [pool, journal] = ["pool", "pool.journal"].map(|name| self.dir.path().join(name));
        let killed = self.dir.path().join("killed");
        let begun = Instant::now();
        // A kill stops all at one moment. Copies are of one if the rest was the same before and
        // after the pool was copied: what changes in the pool alone, a crash may leave.
        let (archived, of_journal) = loop {
            let rest = || (files(archive), read(&journal));
            let before = rest();
            std::fs::copy(&pool, &killed).unwrap();
            if before == rest() {
                break before;
            }
            assert!(begun.elapsed() < PATIENCE);
        };
        drop(self.store.take());
        std::fs::remove_dir_all(archive).unwrap();
        std::fs::create_dir(archive).unwrap();
        write_files(archive, archived);
        std::fs::rename(killed, pool).unwrap();
        if let Some(file) = of_journal {
            std::fs::write(journal, file).unwrap();
        }
        self.open();
    }

    /// Waits until all commits so far are in the archive.
    fn wait(&self) {
        let ts = self.store().applied();
        let begun = Instant::now();
        loop {
            let stats = self.store().archive_stats().unwrap();
            if stats.archived >= Some(ts) && stats.writing.is_none() {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{stats:?}, not {ts}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until there is a state that commits go on from.
    fn wait_for_the_state(&self) {
        let begun = Instant::now();
        while self.store().archive_stats().unwrap().archived.is_none() {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn restored(&self, until: Until) -> Result<Content, ArchiveError> {
        restored(&self.archive(), until, &self.options)
    }

    fn files(&self, kind: FileKind) -> usize {
        let archive = Archive::open(self.archive()).unwrap();
        archive
            .files
            .iter()
            .filter(|file| file.kind == kind)
            .count()
    }
}

/// Reads a file, if there is one.
fn read(path: &Path) -> Option<Vec<u8>> {
    match std::fs::read(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        file => Some(file.unwrap()),
    }
}

/// The files of a directory, by name. One that is removed meanwhile is not among them.
fn files(dir: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    let files = entries.filter_map(|entry| Some((entry.file_name(), read(&entry.path())?)));
    files.collect()
}

fn write_files(dir: &Path, files: BTreeMap<OsString, Vec<u8>>) {
    for (name, file) in files {
        std::fs::write(dir.join(name), file).unwrap();
    }
}

fn restored(archive: &Path, until: Until, options: &StoreOptions) -> Result<Content, ArchiveError> {
    let pool = Pool::<Dram>::create("restored".as_ref(), &PoolOptions::default()).unwrap();
    let options = options.clone().without_thread();
    let (mut read, mut of) = (0, 0);
    let from = (archive, until);
    let made = Store::restore_archive(&pool, "r", &options, from, &mut |done, all| {
        assert!(done >= read && done <= all, "{done} of {all}");
        (read, of) = (done, all);
    });
    let store = match made {
        Ok((store, report)) => {
            assert_eq!(report.bytes * 2, of);
            store
        }
        Err(e) => {
            assert!(pool.roots().is_empty(), "{e}");
            return Err(e);
        }
    };
    store.check().unwrap();
    let all = content(&store);
    for keyspace in store.keyspaces() {
        assert_eq!(store.len(&keyspace), all[keyspace.name()].len() as u64);
    }
    Ok(all)
}

fn some_key(rng: &mut SmallRng) -> Vec<u8> {
    let mut key = format!("key{:03}", rng.random_range(0..300)).into_bytes();
    if rng.random_bool(0.05) {
        key.resize(3_000, b'k');
    }
    key
}

fn some_value(rng: &mut SmallRng) -> Vec<u8> {
    let len = match rng.random_range(0..20) {
        0 => 3_000,
        1 => 400,
        _ => rng.random_range(0..40),
    };
    vec![rng.random(); len]
}

fn some_keyspace(store: &Store<Auto>, rng: &mut SmallRng) -> Keyspace {
    let names = ["a", "b", "c"];
    store.keyspace(names.choose(rng).unwrap()).unwrap()
}

/// Makes a change of any kind, of one commit mostly.
fn change(store: &Store<Auto>, rng: &mut SmallRng) {
    let keyspace = some_keyspace(store, rng);
    match rng.random_range(0..40) {
        0 => drop(store.clear(keyspace).unwrap()),
        1 => store.drop_keyspace(keyspace).unwrap(),
        2 if store.find_keyspace("renamed").is_none() => {
            store.rename_keyspace(&keyspace, "renamed").unwrap();
        }
        3 => {
            let long = vec![rng.random(); 9 << 20];
            store
                .put_from(&keyspace, b"in parts", &mut &long[..], None)
                .unwrap();
        }
        4..10 => {
            let mut batch = Batch::new();
            for _ in 0..rng.random_range(1..60) {
                let key = some_key(rng);
                if rng.random_bool(0.3) {
                    batch.delete(&keyspace, &key);
                } else {
                    batch.put(&keyspace, &key, &some_value(rng));
                }
            }
            store.write(batch).unwrap();
        }
        10..15 => {
            store.delete(&keyspace, &some_key(rng)).unwrap();
        }
        15..18 => {
            let at = Some(rng.random_range(2_000..9_000));
            store
                .put_expiring(&keyspace, &some_key(rng), &some_value(rng), at)
                .unwrap();
        }
        18..21 => {
            let key = some_key(rng);
            let mut transaction = store.begin(TransactionOptions::default());
            let had = transaction
                .get(&keyspace, &key)
                .unwrap()
                .unwrap_or_default();
            transaction
                .put(&keyspace, &key, &[&had[..], b"+"].concat())
                .unwrap();
            transaction.put(&keyspace, b"last", &key).unwrap();
            transaction.commit().unwrap();
        }
        _ => store
            .put(&keyspace, &some_key(rng), &some_value(rng))
            .unwrap(),
    }
}

/// The heart of it: after any history, with crashes, sessions without an archive, and full states
/// in between, a store is restored to the commit.
#[test]
fn a_store_is_restored_to_any_commit() {
    for (seed, medium) in [(1, MediumKind::Mapped), (2, MediumKind::Journal)] {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut a = Archived::new(medium, |options| {
            options.full_every = Some(Duration::from_millis(300));
            // So that kills find commits that are not archived yet.
            options.every = Duration::from_millis(250);
        });
        // What there was after each commit; and whether the archive knows each of them.
        let mut history: Vec<(u64, Content)> = Vec::new();
        let mut gaps: Vec<std::ops::Range<u64>> = Vec::new();
        a.wait();
        for round in 0..9 {
            for _ in 0..60 {
                change(a.store(), &mut rng);
                history.push((a.store().applied(), content(a.store())));
                if rng.random_bool(0.1) {
                    std::thread::sleep(Duration::from_millis(4));
                }
            }
            // A full state is due now and then.
            a.hands.set(1_000 + round * 100);
            match round % 3 {
                0 => {
                    a.close();
                    a.open();
                }
                1 => {
                    let archived = a.store().archive_stats().unwrap().archived.unwrap();
                    a.kill();
                    gaps.push(archived + 1..a.store().applied() + 1);
                    a.wait();
                }
                _ => {
                    a.close();
                    let archive = a.options.archive.take();
                    a.open();
                    let from = history.last().unwrap().0 + 1;
                    for _ in 0..10 {
                        change(a.store(), &mut rng);
                    }
                    a.close();
                    a.options.archive = archive;
                    a.open();
                    gaps.push(from..a.store().applied() + 1);
                    history.push((a.store().applied(), content(a.store())));
                    a.wait();
                }
            }
        }
        a.wait();
        let last = content(a.store());
        a.close();
        assert_eq!(a.restored(Until::End).unwrap(), last);
        let (mut exact, mut refused) = (0, 0);
        let mut asked: Vec<&(u64, Content)> = history.sample(&mut rng, 20).collect();
        let begins_gap = |ts: u64| gaps.iter().any(|gap| gap.start == ts);
        asked.extend(history.iter().filter(|(ts, _)| begins_gap(*ts)));
        for (ts, expected) in asked {
            match a.restored(Until::Timestamp(*ts)) {
                Ok(found) => {
                    assert!(found == *expected, "time stamp {ts} of seed {seed}");
                    exact += 1;
                }
                Err(ArchiveError::Unreachable { reached, .. }) => {
                    assert!(gaps.iter().any(|gap| gap.contains(ts)), "time stamp {ts}");
                    let reached = reached.unwrap();
                    let known = history.iter().rfind(|(ts, _)| *ts <= reached).unwrap();
                    assert!(a.restored(Until::Timestamp(reached)).unwrap() == known.1);
                    refused += 1;
                }
                Err(e) => panic!("{e}"),
            }
        }
        assert!(exact > 8, "{exact} of seed {seed}, {refused} refused");
        let archive = Archive::open(a.archive()).unwrap();
        let kinds = |kind| {
            archive
                .files
                .iter()
                .filter(|file| file.kind == kind)
                .count()
        };
        assert!(kinds(FileKind::FullState) > 1 && kinds(FileKind::IncrementalState) > 3);
    }
}

/// Threads whose transfers keep a sum: each restored moment has all of a transfer or nothing.
#[test]
fn transactions_of_threads_are_restored_whole() {
    let a = Archived::new(MediumKind::Mapped, |options| {
        options.queue_bytes = 256 << 10
    });
    let keyspace = a.store().keyspace("accounts").unwrap();
    let key = |i: u64| format!("account {i:03}").into_bytes();
    let amount = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap());
    let mut batch = Batch::new();
    for i in 0..400 {
        batch.put(&keyspace, &key(i), &100_i64.to_le_bytes());
    }
    let first = a.store().write(batch).unwrap();
    a.wait();
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (store, keyspace, key) = (a.store(), &keyspace, &key);
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed);
                for _ in 0..1_500 {
                    let [from, to] = [0, 1].map(|_| key(rng.random_range(0..400)));
                    let mut transfer = store.begin(TransactionOptions::default());
                    let mut add = |key: &[u8], by: i64| {
                        let had = transfer.get(keyspace, key).unwrap().unwrap();
                        let now = (amount(&had) + by).to_le_bytes();
                        transfer.put(keyspace, key, &now).unwrap();
                    };
                    add(&from, -1);
                    add(&to, 1);
                    // A conflict is none of a test's business.
                    let _ = transfer.commit();
                }
            });
        }
    });
    a.wait();
    let last = a.store().applied();
    let mut rng = SmallRng::seed_from_u64(99);
    let mut whole = 0;
    for _ in 0..25 {
        let ts = rng.random_range(first..=last);
        match a.restored(Until::Timestamp(ts)) {
            Ok(found) => {
                let sum: i64 = found["accounts"]
                    .values()
                    .map(|(value, _)| amount(value))
                    .sum();
                assert_eq!(sum, 40_000, "time stamp {ts}");
                whole += 1;
            }
            // The queue is short.
            Err(ArchiveError::Unreachable { reached, .. }) => assert!(reached.is_some()),
            Err(e) => panic!("{e}"),
        }
    }
    assert!(whole > 0);
    let end = a.restored(Until::End).unwrap();
    assert_eq!(end, content(a.store()));
}

/// What the queue has no room for is not in the archive one by one, but all the same.
#[test]
fn what_the_queue_loses_is_in_a_state() {
    let a = Archived::new(MediumKind::Mapped, |options| options.queue_bytes = 1);
    let keyspace = a.store().keyspace("k").unwrap();
    a.wait();
    let before = a.store().applied();
    let mut rng = SmallRng::seed_from_u64(5);
    for i in 0..200_u32 {
        let value = vec![rng.random::<u8>(); 2_000];
        a.store().put(&keyspace, &i.to_be_bytes(), &value).unwrap();
        assert!(a.store().archive_stats().unwrap().queued_bytes <= (64 << 10) + 3_000);
    }
    a.wait();
    assert!(a.files(FileKind::IncrementalState) > 0);
    assert_eq!(a.restored(Until::End).unwrap(), content(a.store()));
    assert!(a.restored(Until::Timestamp(before)).unwrap()["k"].is_empty());
}

/// Up to a time, by the clock of the store.
#[test]
fn a_store_is_restored_to_a_time() {
    let mut a = Archived::new(MediumKind::Mapped, |_| {});
    let mut keyspace = a.store().keyspace("k").unwrap();
    let mut expected = Vec::new();
    a.wait();
    for i in 1..=20_u64 {
        a.hands.set(1_000 + i * 10);
        a.store().put(&keyspace, b"i", &i.to_le_bytes()).unwrap();
        a.store().put(&keyspace, &i.to_le_bytes(), b"").unwrap();
        expected.push((1_000 + i * 10, content(a.store())));
        if i % 3 == 0 {
            a.wait();
        }
        if i % 8 == 0 {
            a.close();
            a.open();
            keyspace = a.store().keyspace("k").unwrap();
        }
    }
    a.wait();
    for (i, (at, there)) in expected.iter().enumerate() {
        for time in [*at, at + 9] {
            assert_eq!(
                a.restored(Until::Time(time)).unwrap(),
                *there,
                "{time}, step {i}"
            );
        }
    }
    assert_eq!(a.restored(Until::Time(u64::MAX)).unwrap(), expected[19].1);
    assert_eq!(
        a.restored(Until::Time(1_005)).unwrap()["k"],
        BTreeMap::new()
    );
    let early = a.restored(Until::Time(10)).unwrap_err();
    let ArchiveError::Unreachable { what, reached } = &early else {
        panic!("{early}");
    };
    assert!(
        what.contains("1970-01-01T00:00:00.010Z") && reached.is_none(),
        "{early}"
    );
    let late = a.restored(Until::Timestamp(u64::MAX)).unwrap_err();
    assert!(
        late.to_string()
            .contains("the archive ends with time stamp"),
        "{late}"
    );
}

/// A session after one that was closed in order writes no state, however often.
#[test]
fn closing_in_order_is_noted() {
    let mut a = Archived::new(MediumKind::Mapped, |_| {});
    a.wait();
    a.store().keyspace("k").unwrap();
    for i in 0..20_u32 {
        a.close();
        a.open();
        if i % 2 == 0 {
            let keyspace = a.store().keyspace("k").unwrap();
            a.store().put(&keyspace, &i.to_be_bytes(), b"").unwrap();
        }
    }
    a.wait();
    assert_eq!(a.files(FileKind::FullState), 1);
    assert_eq!(a.files(FileKind::IncrementalState), 0);
    assert_eq!(a.restored(Until::End).unwrap(), content(a.store()));
    // Nor is there a file for a session that changes nothing, from the second one on.
    let before = a.files(FileKind::Commits);
    for _ in 0..4 {
        a.close();
        a.open();
    }
    assert!(a.files(FileKind::Commits) <= before + 1);
}

/// A disk of the archive that is full costs commits nothing, and the archive is whole when there is
/// space again.
#[test]
fn an_archive_that_cannot_be_written_goes_on_later() {
    let _alone = alone();
    let a = Archived::new(MediumKind::Mapped, |_| {});
    let keyspace = a.store().keyspace("k").unwrap();
    a.store().put(&keyspace, b"0", b"").unwrap();
    a.wait();
    // Files cannot be made there any more: the directory is another one.
    let moved = a.dir.path().join("moved");
    std::fs::rename(a.archive(), &moved).unwrap();
    std::fs::write(a.archive(), b"no directory").unwrap();
    let mut key = 0_u32;
    let begun = Instant::now();
    // The file that is open goes on until it is full.
    while a.store().archive_stats().unwrap().error.is_none() {
        assert!(begun.elapsed() < PATIENCE);
        key += 1;
        a.store()
            .put(&keyspace, &key.to_be_bytes(), &vec![1; 1 << 20])
            .unwrap();
    }
    for _ in 0..5 {
        key += 1;
        a.store()
            .put(&keyspace, &key.to_be_bytes(), b"later")
            .unwrap();
    }
    std::fs::remove_file(a.archive()).unwrap();
    std::fs::rename(&moved, a.archive()).unwrap();
    a.wait();
    assert_eq!(a.store().archive_stats().unwrap().error, None);
    assert_eq!(a.restored(Until::End).unwrap(), content(a.store()));
}

/// Two archives of one store, in turns.
#[test]
fn a_store_has_several_archives() {
    let mut a = Archived::new(MediumKind::Mapped, |_| {});
    let dirs = ["archive", "second", "third"].map(|name| a.dir.path().join(name));
    for i in 0..9_usize {
        let keyspace = a.store().keyspace("k").unwrap();
        a.store().put(&keyspace, &i.to_le_bytes(), b"").unwrap();
        a.wait();
        if i % 2 == 0 {
            a.kill_in(&dirs[i % 3]);
        }
        let expected = content(a.store());
        a.wait();
        a.close();
        assert_eq!(
            restored(&dirs[i % 3], Until::End, &a.options).unwrap(),
            expected
        );
        let mut archive = a.options.archive.clone().unwrap();
        archive.dir.clone_from(&dirs[(i + 1) % 3]);
        a.options.archive = Some(archive);
        a.open();
    }
}

/// Files that nobody can ask for any more are removed, and no others.
#[test]
fn old_files_are_removed() {
    let mut a = Archived::new(MediumKind::Mapped, |options| {
        options.full_every = Some(Duration::from_secs(1));
        options.keep = Some(Duration::from_secs(5));
    });
    let keyspace = a.store().keyspace("k").unwrap();
    let mut there = Vec::new();
    for i in 0..20_u64 {
        a.hands.set(i * 1_000 + 5_000);
        a.wait();
        a.store().put(&keyspace, &i.to_le_bytes(), b"").unwrap();
        a.wait();
        there.push((i * 1_000 + 5_000, content(a.store())));
    }
    a.close();
    let archive = Archive::open(a.archive()).unwrap();
    assert!(archive.files.len() < 20, "{}", archive.files.len());
    // Nothing is written to a file that is gone.
    assert_eq!(a.restored(Until::End).unwrap(), there.last().unwrap().1);
    for (at, expected) in &there[15..] {
        assert_eq!(a.restored(Until::Time(*at)).unwrap(), *expected);
    }
    assert!(a.restored(Until::Time(there[5].0)).is_err());
}

/// While others write and full states are written, no commit waits and none is missed.
#[test]
fn states_are_written_beside_commits() {
    let _alone = alone();
    let a = Archived::new(MediumKind::Mapped, |options| {
        options.full_every = Some(Duration::ZERO);
    });
    let keyspace = a.store().keyspace("k").unwrap();
    let done = AtomicBool::new(false);
    let mut at = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = SmallRng::seed_from_u64(3);
            while !done.load(Ordering::Relaxed) {
                let key = rng.random_range(0..20_000_u32).to_be_bytes();
                a.store()
                    .put(&keyspace, &key, &vec![rng.random(); 300])
                    .unwrap();
            }
        });
        let begun = Instant::now();
        while a.store().archive_stats().unwrap().full_states < 4 {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(10));
            let snapshot = a.store().snapshot();
            at.push((
                snapshot.timestamp(),
                snapshot.count::<Vec<u8>>(&keyspace, ..).unwrap(),
            ));
        }
        done.store(true, Ordering::Relaxed);
    });
    a.wait();
    let mut exact = 0;
    for (ts, keys) in at.iter().rev().take(6) {
        match a.restored(Until::Timestamp(*ts)) {
            Ok(found) => {
                assert_eq!(found["k"].len() as u64, *keys);
                exact += 1;
            }
            Err(e) => assert!(matches!(e, ArchiveError::Unreachable { .. }), "{e}"),
        }
    }
    assert!(exact > 0);
    assert_eq!(a.restored(Until::End).unwrap(), content(a.store()));
}

/// The bytes in the statistics are those of the archive's files.
#[test]
fn what_is_written_is_counted() {
    let a = Archived::new(MediumKind::Mapped, |_| {});
    let keyspace = a.store().keyspace("k").unwrap();
    a.wait_for_the_state();
    for i in 0..3_000_u32 {
        let put = a.store().put(&keyspace, &i.to_be_bytes(), &[7; 200]);
        put.unwrap();
    }
    a.wait();
    let written = a.store().archive_stats().unwrap();
    assert!(
        written.commits > 0 && written.bytes > 3_000 * 200,
        "{written:?}"
    );
    let files = Archive::open(a.archive()).unwrap().files;
    let bytes = files.iter().map(|file| file.path.metadata().unwrap().len());
    assert_eq!(written.bytes, bytes.sum::<u64>());
}
