//! A store in a file, of the formats of `formats.rs`, its copy as a crash would leave it, and a
//! clock that is set by hand.

#![allow(dead_code, reason = "not every test uses all of it")]

use bristlecone_pmem::media::{Auto, MediumKind};
use bristlecone_pmem::{Media, MediaOptions, Pool, PoolOptions};
use bristlecone_store::{Keyspace, Store, StoreError, StoreOptions, WallClock};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// How long a test waits for another thread.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub use crate::formats::{ALL, USUAL, create, open, restore, salvage};

/// The clustered tree, which has keys and values in its pages.
pub const TREE: &str = "clustered";

/// Makes store `name` of the usual design.
pub fn make<M: Media>(
    pool: &Arc<Pool<M>>,
    name: &str,
    options: &StoreOptions,
) -> Result<Store<M>, StoreError> {
    create(pool, name, USUAL, options)
}

/// Bytes of address space that a pool of these tests may grow to.
pub const RESERVE: u64 = 1 << 30;

/// Options of a pool on that medium, of `reserve` bytes at most.
pub fn on(medium: MediumKind, reserve: u64) -> PoolOptions {
    PoolOptions {
        media: MediaOptions {
            medium: Some(medium),
            reserve,
            ..MediaOptions::default()
        },
    }
}

/// A pool on a journal, in that directory.
pub fn journalled(dir: &Path) -> Arc<Pool<Auto>> {
    let options = on(MediumKind::Journal, RESERVE);
    Pool::create(&dir.join("pool"), &options).unwrap()
}

/// Opens store `s` of a file, for writing too if it is to be `writable`; `None` if that is refused.
pub fn looked_at(path: &Path, writable: bool, options: &StoreOptions) -> Option<Store<Auto>> {
    let of_pool = match writable {
        true => PoolOptions::default(),
        false => PoolOptions::read_only(),
    };
    let pool = Pool::open(path, &of_pool).ok()?;
    Store::open(&pool, "s", options).ok()
}

/// A clock that is set by hand.
#[derive(Clone, Default)]
pub struct Hands {
    now: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
}

impl Hands {
    pub fn set(&self, now: u64) {
        self.now.store(now, Ordering::SeqCst);
    }

    /// Returns how often the clock was read.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    pub fn clock(&self) -> WallClock {
        let hands = self.clone();
        WallClock::new(move || {
            hands.asked.fetch_add(1, Ordering::SeqCst);
            hands.now.load(Ordering::SeqCst)
        })
    }
}

/// A store `s` with keyspace `k`, in a directory of its own.
pub struct Fixture {
    // The first field, so that the store closes before its file is removed.
    pub store: Store<Auto>,
    pub k: Keyspace,
    pub hands: Hands,
    pub options: StoreOptions,
    dir: TempDir,
    copies: AtomicU64,
}

pub fn directory() -> TempDir {
    let fast = PathBuf::from("/dev/shm");
    let made = if fast.is_dir() {
        tempfile::tempdir_in(fast)
    } else {
        tempfile::tempdir()
    };
    made.unwrap()
}

impl Fixture {
    pub fn new(design: &str) -> Self {
        Self::with(design, StoreOptions::default().without_thread())
    }

    pub fn with(design: &str, options: StoreOptions) -> Self {
        let dir = directory();
        let hands = Hands::default();
        let options = StoreOptions {
            clock: hands.clock(),
            ..options
        };
        let options_of_pool = on(MediumKind::Mapped, RESERVE);
        let pool = Pool::create(&dir.path().join("pool"), &options_of_pool).unwrap();
        let store = create(&pool, "s", design, &options).unwrap();
        let k = store.keyspace("k").unwrap();
        Self {
            store,
            k,
            hands,
            options,
            dir,
            copies: AtomicU64::new(0),
        }
    }

    pub fn new_pool(&self) -> Arc<Pool<Auto>> {
        let number = self.copies.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.path().join(format!("new-{number}"));
        Pool::create(&path, &on(MediumKind::Mapped, RESERVE)).unwrap()
    }

    /// Copies the file as it is now, as a kill would leave it.
    pub fn copy(&self) -> PathBuf {
        let number = self.copies.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.path().join(format!("copy-{number}"));
        std::fs::copy(self.dir.path().join("pool"), &path).unwrap();
        path
    }

    /// Returns the store after a kill.
    pub fn killed(&self) -> Store<Auto> {
        let pool = Pool::open(&self.copy(), &PoolOptions::default()).unwrap();
        open(&pool, "s", &self.options).unwrap()
    }

    /// Returns the store after it was closed and opened again.
    pub fn reopened(self) -> Self {
        let Self {
            store,
            k: _,
            hands,
            options,
            dir,
            copies,
        } = self;
        drop(store);
        let pool = Pool::open(&dir.path().join("pool"), &PoolOptions::default()).unwrap();
        let store = open(&pool, "s", &options).unwrap();
        Self {
            k: k(&store),
            store,
            hands,
            options,
            dir,
            copies,
        }
    }

    /// Returns the directory with the file `pool`, of a store that was closed or as a kill leaves
    /// it.
    pub fn ended(self, closed: bool) -> (TempDir, StoreOptions) {
        let path = self.dir.path().join("pool");
        let killed = self.copy();
        let Self {
            store,
            options,
            dir,
            ..
        } = self;
        drop(store);
        if !closed {
            std::fs::rename(killed, path).unwrap();
        }
        (dir, options)
    }

    pub fn put(&self, key: &str, value: &str) {
        let put = self.store.put(&self.k, key.as_bytes(), value.as_bytes());
        put.unwrap();
    }

    pub fn get(&self, key: &str) -> Option<String> {
        text(self.store.get(&self.k, key.as_bytes()).unwrap())
    }
}

/// Held by tests of full pools, which need freed blocks back soon, and by those whose threads read
/// without a pause, since all tests of the process share its grace periods.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the store's own handle of keyspace `k`.
pub fn k<M: Media>(store: &Store<M>) -> Keyspace {
    store.find_keyspace("k").unwrap()
}

pub fn text(value: Option<Vec<u8>>) -> Option<String> {
    value.map(|value| String::from_utf8(value).unwrap())
}
