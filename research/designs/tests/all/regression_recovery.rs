//! Faults of opening LB+-Trees, with a test for each.

use bristlecone_designs::DurableIndex;
use bristlecone_designs::index::OrderedIndex;
use bristlecone_designs::lbtree::{LbOptions, LbTree};
use bristlecone_index::link;
use bristlecone_pmem::media::Mapped;
use bristlecone_pmem::{Pool, PoolOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

type Tree = LbTree<u64, u64, Mapped, 1>;

const KEYS: u64 = 3_000;

fn options() -> PoolOptions {
    let mut options = PoolOptions::default();
    options.media.reserve = 1 << 30;
    options
}

/// Makes a pool at `path` with keys `0..KEYS`, closed cleanly. The image of a crash just before
/// goes to `crashed`, if that is given.
fn make(path: &Path, crashed: Option<&Path>) {
    let pool = Pool::<Mapped>::create(path, &options()).unwrap();
    let tree = Tree::create(&pool, "t", &LbOptions::default()).unwrap();
    for key in 0..KEYS {
        tree.insert(&key, &(key * 2)).unwrap();
    }
    if let Some(image) = crashed {
        std::fs::copy(path, image).unwrap();
    }
    tree.close().unwrap();
}

fn open(path: &Path, threads: usize) -> Tree {
    let pool = Pool::<Mapped>::open(path, &options()).unwrap();
    let options = LbOptions {
        recovery_threads: threads,
        ..LbOptions::default()
    };
    Tree::open(&pool, "t", &options).unwrap()
}

/// As many threads were started as the caller named, however few leaves there were to walk. A
/// number that the system could not grant was a panic.
#[test]
fn no_more_threads_recover_than_there_are_segments() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&dir.path().join("pool"), Some(&image));
    let tree = open(&image, usize::MAX);
    assert!(!tree.recovery().clean);
    assert!(tree.recovery().threads <= 65, "{:?}", tree.recovery());
    assert_eq!(tree.verify().unwrap().entries, KEYS);
}

/// The leaf handles of a snapshot with a right checksum were trusted. One that led past the mapping
/// was a segmentation fault at the first lookup. Now it costs a rebuild.
#[test]
fn a_snapshot_cannot_lead_outside_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    // Root slot 0, word 1 of the design.
    const SNAPSHOT_WORD: u64 = 0x4000 + 128 + 8;
    for (number, handle) in [(0, u32::MAX), (5, u32::MAX), (0, 0), (7, 255)] {
        let path = dir.path().join(format!("pool {number} {handle}"));
        make(&path, None);
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let word = |at: u64| {
            let mut eight = [0; 8];
            file.read_exact_at(&mut eight, at).unwrap();
            u64::from_le_bytes(eight)
        };
        let part = link::offset(word(SNAPSHOT_WORD));
        assert_eq!(word(part), 0, "one part");
        let mut payload = vec![0; word(part + 8) as usize];
        file.read_exact_at(&mut payload, part + 16).unwrap();
        let at = 16 + number * 4;
        payload[at..at + 4].copy_from_slice(&handle.to_le_bytes());
        let end = payload.len() - 4;
        let sum = crc32c::crc32c(&payload[..end]);
        payload[end..].copy_from_slice(&sum.to_le_bytes());
        file.write_all_at(&payload, part + 16).unwrap();
        drop(file);
        let tree = open(&path, 1);
        assert!(!tree.recovery().clean, "leaf {number} at handle {handle}");
        for key in 0..KEYS {
            assert_eq!(tree.get(&key), Some(key * 2));
        }
        assert_eq!(tree.verify().unwrap().entries, KEYS);
    }
}
