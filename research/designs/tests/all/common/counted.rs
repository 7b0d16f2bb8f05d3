//! The lines and fences that an index issues, counted in memory, so that they are those of the code
//! on any machine.

use bristlecone_designs::{DurableIndex, Stored, StoredKey};
pub use bristlecone_pmem::media::Auto as Medium;
use bristlecone_pmem::media::PersistCounts;
use bristlecone_pmem::{MediumKind, Pool, PoolOptions};
use std::path::Path;
use std::sync::Arc;

/// Makes a pool in memory that counts.
pub fn pool() -> Arc<Pool<Medium>> {
    let mut options = PoolOptions::default();
    options.media.medium = Some(MediumKind::Dram);
    Pool::create(Path::new("counted"), &options).expect("memory")
}

/// Returns the lines and fences that `f` issues.
pub fn cost(pool: &Pool<Medium>, f: impl FnOnce()) -> (u64, u64) {
    let counts = || pool.pm().counts().expect("a pool in memory");
    let before = counts();
    f();
    let PersistCounts { lines, fences, .. } = counts() - before;
    (lines, fences)
}

/// Returns the lines and fences that `f` issues to an index.
pub fn cost_of<K, V, I>(index: &I, f: impl FnOnce(&I)) -> (u64, u64)
where
    K: StoredKey + ?Sized,
    V: Stored + ?Sized,
    I: DurableIndex<K, V, Medium>,
{
    cost(index.pool(), || f(index))
}
