//! Tests of the crate in one program, since each program compiles the index again.

mod compact;
#[cfg(all(feature = "lz4", feature = "zstd"))]
mod compress;
mod database;
mod durability;
mod few_keys;
mod guidelines;
#[cfg(feature = "import")]
mod import;
mod index;
mod streams;

use bristlecone::Database;
use tempfile::TempDir;

/// A folder in memory, where there is one.
fn home() -> TempDir {
    let fast = std::path::Path::new("/dev/shm");
    let made = if fast.is_dir() {
        tempfile::tempdir_in(fast)
    } else {
        tempfile::tempdir()
    };
    made.unwrap()
}

/// An empty database.
fn database() -> (TempDir, Database) {
    let home = home();
    let db = Database::open(home.path().join("test.db")).unwrap();
    (home, db)
}
