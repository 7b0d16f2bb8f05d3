//! Closing a root takes as long as the root is large.

use bristlecone_pmem::media::Mapped;
use bristlecone_pmem::pool::{DataKind, Pool, PoolOptions, RootKind};
use std::time::{Duration, Instant};

/// A root's table of chunks is as long as the pool could ever become. Closing once walked all of
/// it, 40 ms for a pool of 2 MiB.
#[test]
fn closing_takes_as_long_as_the_pool_is_large() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("pool");
    let pool = Pool::<Mapped>::create(&path, &PoolOptions::default()).expect("a new pool");
    let kind = RootKind {
        design: "test".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: 256,
    };
    let started = Instant::now();
    for n in 0..40 {
        let root = pool.create_root(&n.to_string(), &kind).expect("a new root");
        root.heap().alloc(256).expect("a block");
    }
    let elapsed = started.elapsed();
    assert!(
        elapsed < Duration::from_millis(400),
        "{elapsed:?} for opening and closing 40 roots"
    );
}
