//! Opening a pool again and again: the address range that is reserved for its growth comes back
//! whole.
//!
//! A process that opened many pools once ran out of mappings: the reserved range was a huge page
//! longer than the unmapped one. This is a file of its own, since it counts the process's mappings.

use bristlecone_pmem::Access;
use bristlecone_pmem::media::Mapped;
use bristlecone_pmem::pool::{Pool, PoolOptions};

fn mapped_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmSize:"))
        .expect("VmSize");
    line.split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse().ok())
        .expect("kilobytes")
}

#[test]
fn no_address_space_leaks() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("pool");
    let mut options = PoolOptions::default();
    options.media.reserve = 1 << 30;
    drop(Pool::<Mapped>::create(&path, &options).expect("a new pool"));
    options.media.access = Access::ReadOnly;
    let open = || drop(Pool::<Mapped>::open(&path, &options).expect("the pool"));
    open();
    let before = mapped_kib();
    for _ in 0..200 {
        open();
    }
    let after = mapped_kib();
    assert!(
        after < before + 100 * 1024,
        "{before} KiB mapped before 200 openings, {after} after"
    );
}
