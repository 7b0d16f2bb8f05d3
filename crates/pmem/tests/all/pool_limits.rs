//! The limits that a pool enforces, and its figures for free space.

use bristlecone_pmem::media::Mapped;
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::pool::{BackupError, DataKind, MAX_RUN, ROOT_NAME, RootError, RootKind};
use bristlecone_pmem::{Pool, PoolOptions, SpaceError};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

fn kind(design: &str) -> RootKind {
    RootKind {
        design: design.into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: 256,
    }
}

fn create(dir: &Path) -> Arc<Pool<Mapped>> {
    let mut options = PoolOptions::default();
    options.media.reserve = 1 << 30;
    Pool::create(&dir.join("pool"), &options).unwrap()
}

#[test]
fn names_of_roots_and_designs_have_a_greatest_length() {
    let dir = tempfile::tempdir().unwrap();
    let pool = create(dir.path());
    let longest = "n".repeat(ROOT_NAME);
    let kept = pool
        .create_root(&longest, &kind("0123456789abcdef"))
        .unwrap();
    kept.publish();
    for (name, design) in [
        ("n".repeat(ROOT_NAME + 1), "d"),
        ("m".into(), "0123456789abcdefg"),
        (String::new(), "d"),
    ] {
        let refused = pool.create_root(&name, &kind(design));
        assert!(
            matches!(refused, Err(RootError::BadName(_))),
            "{name:?} {design:?}"
        );
    }
    let names: Vec<String> = pool.roots().into_iter().map(|root| root.name).collect();
    assert_eq!(names, [longest]);
}

#[test]
fn a_backup_that_fails_says_what_the_file_system_said() {
    let dir = tempfile::tempdir().unwrap();
    let pool = create(dir.path());
    let error = pool.backup(&dir.path().join("absent/copy")).unwrap_err();
    let cause = error.source().expect("of the file system");
    assert!(cause.to_string().contains("No such file"), "{cause}");
    let there = dir.path().join("there");
    std::fs::write(&there, "mine").unwrap();
    let error = pool.backup(&there).unwrap_err();
    assert!(matches!(error, BackupError::Exists(_)) && error.source().is_none());
    assert_eq!(std::fs::read(&there).unwrap(), b"mine");
}

#[test]
fn idle_space_is_what_is_free_and_no_hole() {
    let dir = tempfile::tempdir().unwrap();
    let pool = create(dir.path());
    let root = pool.create_root("r", &kind("d")).unwrap();
    let heap = root.heap();
    root.publish();
    let runs: Vec<_> = (0..4).map(|_| heap.alloc(3 * CHUNK).unwrap()).collect();
    let before = pool.idle_bytes();
    let used = pool.info().used_bytes;
    // All but the last one, so that they are holes and not cut off.
    for run in &runs[..3] {
        heap.free(*run);
    }
    // They go back to the pool when the next run is taken, here out of them.
    let part = heap.alloc(2 * CHUNK).unwrap();
    assert_eq!(pool.info().used_bytes, used - 7 * CHUNK);
    assert_eq!(pool.idle_bytes(), before + 7 * CHUNK);
    let report = pool.compact().unwrap();
    assert!(report.punched_bytes >= 7 * CHUNK, "{report:?}");
    assert_eq!(pool.idle_bytes(), 0);
    // A chunk that is used again stops being a hole. The others stay holes.
    let again = heap.alloc(2 * CHUNK).unwrap();
    assert_eq!(pool.idle_bytes(), 0);
    heap.free(again);
    heap.free(part);
}

#[test]
fn no_block_is_longer_than_the_longest_run() {
    let dir = tempfile::tempdir().unwrap();
    let pool = create(dir.path());
    let root = pool.create_root("r", &kind("d")).unwrap();
    let used = pool.info().used_bytes;
    let wanted = u64::from(MAX_RUN) * CHUNK + 1;
    match root.heap().alloc(wanted) {
        Err(SpaceError::TooLarge { wanted: told, most }) => {
            assert!(told == wanted && most < wanted, "{told} {most}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(pool.info().used_bytes, used);
}
