//! A pool in a folder of its own.

use super::Failure;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::{Pool, PoolOptions};
use bristlecone_pmem::{Access, MediumKind, OpenError};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Where a pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a mapped file.
    File,
    /// In a file with a journal.
    Journal,
    /// In memory.
    Memory,
}

impl Place {
    /// Returns the options of pools there.
    pub fn options(self) -> PoolOptions {
        let mut options = PoolOptions::default();
        options.media.medium = Some(match self {
            Self::File => MediumKind::Mapped,
            Self::Journal => MediumKind::Journal,
            Self::Memory => MediumKind::Dram,
        });
        options
    }
}

/// A pool and the folder of its own that holds its files.
pub struct PoolHome {
    /// The pool.
    pub pool: Arc<Pool<Auto>>,
    options: PoolOptions,
    folder: Arc<TempDir>,
}

/// The content of the folder's files, by name.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Makes a folder, in memory where the system has a place for that.
pub fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    made.expect("a temporary folder")
}

fn pool_file(folder: &TempDir) -> PathBuf {
    folder.path().join("pool")
}

impl PoolHome {
    /// Makes a pool that may grow as far as the system allows.
    pub fn new(place: Place) -> Self {
        Self::with(place.options())
    }

    /// Makes a pool of at most `bytes` bytes.
    pub fn with_capacity(place: Place, bytes: u64) -> Self {
        let mut options = place.options();
        options.media.reserve = bytes;
        Self::with(options)
    }

    fn with(options: PoolOptions) -> Self {
        let folder = Arc::new(folder());
        let pool = Pool::create(&pool_file(&folder), &options).expect("a new pool");
        Self {
            pool,
            options,
            folder,
        }
    }

    /// Returns the path of the pool's file.
    pub fn path(&self) -> PathBuf {
        pool_file(&self.folder)
    }

    /// Closes the pool (whose indexes have been closed) and opens it again.
    pub fn reopen(self) -> Self {
        let Self {
            pool,
            options,
            folder,
        } = self;
        let handles = Arc::strong_count(&pool);
        assert_eq!(handles, 1, "an index that was dropped still holds the pool");
        drop(pool);
        Self::open_folder(folder, options).expect("reopening a closed pool")
    }

    /// Opens a copy of the pool as a crash would leave it now. Nothing may be writing.
    pub fn crash_image(&self) -> Self {
        Self::open_files(&self.files(), &self.options).expect("opening a crash image")
    }

    /// Returns the current content of the folder's files.
    pub fn files(&self) -> Files {
        read_files(self.folder.path())
    }

    /// Opens a copy of `files`.
    ///
    /// # Errors
    /// The pool's error.
    pub fn open_files(files: &Files, options: &PoolOptions) -> Result<Self, OpenError> {
        let folder = Arc::new(folder());
        for (name, bytes) in files {
            fs::write(folder.path().join(name), bytes).expect("writing a copy");
        }
        Self::open_folder(folder, options.clone())
    }

    /// Opens the same file again, for reading.
    ///
    /// # Errors
    /// The pool's error.
    pub fn open_read_only(&self) -> Result<Self, OpenError> {
        let mut options = self.options.clone();
        options.media.access = Access::ReadOnly;
        Self::open_folder(Arc::clone(&self.folder), options)
    }

    /// Closes the pool and opens it for reading.
    pub fn reopen_read_only(self) -> Self {
        let Self {
            pool,
            mut options,
            folder,
        } = self;
        drop(pool);
        options.media.access = Access::ReadOnly;
        Self::open_folder(folder, options).expect("opening for reading")
    }

    /// Opens a copy of `files` for reading.
    pub fn open_files_read_only(&self, files: &Files) -> Self {
        let mut options = self.options.clone();
        options.media.access = Access::ReadOnly;
        Self::open_files(files, &options).expect("opening a copy for reading")
    }

    fn open_folder(folder: Arc<TempDir>, options: PoolOptions) -> Result<Self, OpenError> {
        let pool = Pool::open(&pool_file(&folder), &options)?;
        Ok(Self {
            pool,
            options,
            folder,
        })
    }
}

fn read_files(folder: &Path) -> Files {
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("the pool's folder")
        .map(|entry| {
            let entry = entry.expect("a folder entry");
            entry.file_name().into_string().expect("a plain name")
        })
        .collect();
    // A journal is copied before its pool file: a checkpoint in between has written pages that the
    // copied journal still holds, which a crash can leave. The opposite order could not.
    names.sort_by(|a, b| b.cmp(a));
    names
        .into_iter()
        .map(|name| {
            let bytes = fs::read(folder.join(&name)).expect("a readable file");
            (name, bytes)
        })
        .collect()
}

/// Returns the content of `Ok`, or panics with `what` was being done.
pub fn must<T>(what: &str, result: Result<T, Failure>) -> T {
    result.unwrap_or_else(|e| panic!("{what}: {e}"))
}
