//! Shared by unit tests: a pool in its own directory, a clock set by hand, commands as text.

use crate::data::locks::Patience;
use crate::data::record::{Kind, Value};
use crate::data::spaces::Space;
use crate::data::{Data, Reads};
use crate::reply::{Out, Protocol};
use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
use bristlecone_pmem::media::{Auto, Journal};
use bristlecone_pmem::pool::layout::INITIAL;
use bristlecone_pmem::{Access, Durability, MediaOptions, Pool, PoolOptions};
use bristlecone_store::{Store, StoreOptions, WallClock};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// A pool and its clock.
pub(crate) struct Fixture {
    dir: TempDir,
    now: Arc<AtomicU64>,
    made: Cell<bool>,
}

impl Fixture {
    pub fn new() -> Self {
        let fast = PathBuf::from("/dev/shm");
        let dir = if fast.is_dir() {
            tempfile::tempdir_in(fast)
        } else {
            tempfile::tempdir()
        };
        Self {
            dir: dir.unwrap(),
            now: Arc::new(AtomicU64::new(1)),
            made: Cell::new(false),
        }
    }

    /// Sets the clock, in ms since 1970.
    pub fn at(&self, now: u64) {
        self.now.store(now, Ordering::SeqCst);
    }

    /// Returns the clock, in ms since 1970.
    pub fn clock(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.now)
    }

    /// Opens the pool. Creates it the first time.
    pub fn open(&self) -> Data {
        let path = self.dir.path().join("pool");
        let now = Arc::clone(&self.now);
        let options = StoreOptions {
            clock: WallClock::new(move || now.load(Ordering::SeqCst)),
            ..StoreOptions::default().without_thread()
        };
        let store = if self.made.replace(true) {
            let pool = Pool::<Auto>::open(&path, &PoolOptions::default()).unwrap();
            Store::open(&pool, "s", &options).unwrap()
        } else {
            let pool = Pool::<Auto>::create(&path, &PoolOptions::default()).unwrap();
            Store::create(&pool, "s", &options).unwrap()
        };
        Data::open(store).unwrap()
    }

    /// Returns the reply to a command on database 0. Words with spaces are in quotes.
    pub fn call(&self, data: &Data, line: &str) -> String {
        let words = words(line);
        let args: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let command = crate::commands::data()
            .find(|command| command.spec.name == words[0])
            .unwrap();
        let mut reply = Vec::new();
        let mut out = Out::new(&mut reply, Protocol::Resp2);
        data.run(command, 0, &args, Reads::Applied, &mut out);
        String::from_utf8_lossy(&reply).into_owned()
    }
}

/// Returns databases, new or existing ones, behind a journal on a disk that can be made to fail.
pub(crate) fn on_disk(disk: &FaultDisk, new: bool) -> Data {
    with_durability(disk, new, Durability::Immediate)
}

/// As [`on_disk`], where a write counts as done then.
pub(crate) fn with_durability(disk: &FaultDisk, new: bool, durability: Durability) -> Data {
    let path = Path::new("a disk in memory");
    let options = MediaOptions {
        access: if new {
            Access::Create
        } else {
            Access::ReadWrite
        },
        reserve: 64 << 20,
        journal_max: 4 << 20,
        durability,
        ..MediaOptions::default()
    };
    let [pool, journal] = [Which::Pool, Which::Journal].map(|which| disk.file(which));
    let journal = Journal::open_on(pool, journal, path, INITIAL, &options).unwrap();
    let pm = Auto::from(journal);
    let options = StoreOptions::default().without_thread();
    let store = if new {
        Store::create(&Pool::create_on(pm, path).unwrap(), "s", &options)
    } else {
        Store::open(&Pool::open_on(pm, path).unwrap(), "s", &options)
    };
    Data::open(store.unwrap()).unwrap()
}

/// Splits a line into words.
pub(crate) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (at, part) in line.split('"').enumerate() {
        if at % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words
}

/// Puts a large set of that many elements. Returns its id.
pub(crate) fn put_large(
    data: &Data,
    db: usize,
    key: &[u8],
    elements: u32,
    expires_at: Option<u64>,
) -> u64 {
    let _held = data.locks.keys(std::iter::once((db, key)), Patience::Any);
    let mut tx = data.begin(db);
    let id = data.new_id();
    for element in 0..elements {
        let element = [&id.to_be_bytes()[..], &element.to_be_bytes()].concat();
        tx.put(Space::Elements, &element, b"x".to_vec(), None)
            .unwrap();
    }
    let before = tx.load(key).unwrap();
    let value = Value {
        kind: Kind::Set,
        id: Some(id),
        expires_at,
        body: b"head".to_vec(),
        item: None,
    };
    tx.save(key, before.as_ref(), &value).unwrap();
    tx.commit().unwrap();
    id
}
