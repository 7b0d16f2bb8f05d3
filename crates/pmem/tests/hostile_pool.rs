//! Pool files that are damaged, cut, foreign or not pools at all: opening reports what is wrong, or
//! serves; it never panics, hangs or reads out of bounds.

use bristlecone_pmem::media::Mapped;
use bristlecone_pmem::pool::{DataKind, Pool, PoolOptions, Root, RootKind};
use bristlecone_pmem::{Access, OpenError};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tempfile::TempDir;

const CHUNK: u64 = 64 << 10;
/// Where the layout's head says that things are.
const SUPERBLOCK_B: usize = 0x1000;
const CHUNK_TABLE: usize = 0x2000;
const ROOT_TABLE: usize = 0x4000;
const ROOT_SLOT: usize = 1024;
const SUPERBLOCK_BYTES: usize = 512;

fn folder() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    made.expect("a temporary folder")
}

fn kind(keys: DataKind) -> RootKind {
    RootKind {
        design: "test".into(),
        keys,
        values: DataKind::U64,
        node_bytes: 256,
    }
}

fn options(access: Access) -> PoolOptions {
    let mut options = PoolOptions::default();
    options.media.access = access;
    options.media.reserve = 64 << 20;
    options
}

/// Returns a pool with two roots that hold blocks of several classes and a run, as a clean file.
fn sample() -> Vec<u8> {
    let folder = folder();
    let path = folder.path().join("pool");
    let pool = Pool::<Mapped>::create(&path, &options(Access::Create)).expect("a new pool");
    let roots: Vec<Root<Mapped>> = [("one", DataKind::U64), ("two", DataKind::Bytes)]
        .into_iter()
        .map(|(name, keys)| pool.create_root(name, &kind(keys)).expect("a new root"))
        .collect();
    for root in &roots {
        let heap = root.heap();
        for bytes in [16, 256, 1024, 40_000, 200_000] {
            let block = heap.alloc(bytes).expect("a block");
            root.word(3).publish(pool.pm(), block.get());
        }
        root.publish();
    }
    drop(roots);
    drop(pool);
    fs::read(&path).expect("the closed pool")
}

/// Result of opening a file.
enum Outcome {
    Served(Vec<String>),
    Refused(OpenError),
}

struct Case {
    folder: TempDir,
}

impl Case {
    fn new() -> Self {
        Self { folder: folder() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("pool")
    }

    /// Opens `bytes` as a pool, walks what it says of itself, and uses it if it may be written.
    fn open(&self, bytes: &[u8], access: Access, what: &str) -> Outcome {
        fs::write(self.path(), bytes).expect("writing the case");
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let pool = match Pool::<Mapped>::open(&self.path(), &options(access)) {
                Ok(pool) => pool,
                Err(e) => return Outcome::Refused(e),
            };
            let names: Vec<String> = pool.roots().into_iter().map(|r| r.name).collect();
            for name in &names {
                use_root(&pool, name, access);
            }
            let info = pool.info();
            assert!(info.used_bytes <= info.pool_bytes, "{info:?}");
            assert_eq!(
                info.used_bytes + info.free_bytes,
                info.pool_bytes,
                "{info:?}"
            );
            Outcome::Served(names)
        }));
        let outcome = outcome.unwrap_or_else(|_| panic!("{what}: opening panicked"));
        if let Outcome::Refused(e) = &outcome {
            let text = e.to_string();
            assert!(
                text.contains("pool"),
                "{what}: the message names the file: {text}"
            );
            if access == Access::ReadOnly {
                let after = fs::read(self.path()).expect("the case");
                assert!(after == bytes, "{what}: a read-only open changed the file");
            }
        }
        outcome
    }
}

fn use_root(pool: &Arc<Pool<Mapped>>, name: &str, access: Access) {
    let Ok(root) = pool.open_root(name, None) else {
        return;
    };
    let heap = root.heap();
    heap.begin_recovery();
    let off = root.word(3).load(pool.pm(), Ordering::Acquire);
    let guard = crossbeam_epoch::pin();
    // The last block that `sample` made; a damaged word is refused here, in words.
    if let Err(e) = heap.mark(off, 200_000, &guard) {
        assert!(e.contains(&format!("{off:#x}")), "{e}");
    }
    heap.finish_recovery();
    if access == Access::ReadWrite {
        let block = heap.alloc(300).expect("room in a small pool");
        assert!(heap.is_live(block.get()));
        heap.free(block);
    }
}

fn refused(outcome: Outcome, what: &str) -> OpenError {
    match outcome {
        Outcome::Refused(e) => e,
        Outcome::Served(roots) => panic!("{what}: served as a pool with the roots {roots:?}"),
    }
}

#[test]
fn the_sample_is_served() {
    let (case, bytes) = (Case::new(), sample());
    for access in [Access::ReadOnly, Access::ReadWrite] {
        match case.open(&bytes, access, "the sample") {
            Outcome::Served(roots) => assert_eq!(roots, ["one", "two"]),
            Outcome::Refused(e) => panic!("{e}"),
        }
    }
}

#[test]
fn a_file_cut_at_any_page_is_refused() {
    let (case, bytes) = (Case::new(), sample());
    for pages in 0..bytes.len() / 4096 {
        for extra in [0, 1, 4095] {
            let len = pages * 4096 + extra;
            let what = format!("cut to {len} bytes");
            for access in [Access::ReadOnly, Access::ReadWrite] {
                let error = refused(case.open(&bytes[..len], access, &what), &what);
                match error {
                    OpenError::NotAPool { .. } if len < 8 => {}
                    OpenError::Truncated {
                        expected, found, ..
                    } => {
                        assert_eq!(found, len as u64);
                        assert!(
                            expected > found && expected <= bytes.len() as u64,
                            "{expected}"
                        );
                        if len as u64 >= 2 * CHUNK {
                            assert_eq!(expected, bytes.len() as u64, "{what}");
                        }
                    }
                    e => panic!("{what}: {e:?}"),
                }
            }
        }
    }
}

#[test]
fn files_that_are_no_pools_are_refused() {
    let case = Case::new();
    let mut random = vec![0u8; 1 << 20];
    let mut state = 1u64;
    for byte in &mut random {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    let text = "key,value\n".repeat(50_000).into_bytes();
    for (what, bytes) in [
        ("an empty file", Vec::new()),
        ("one byte", vec![b'B']),
        ("a small file of zeros", vec![0; 4096]),
        ("a file of zeros", vec![0; 4 << 20]),
        ("random bytes", random),
        ("a CSV file", text),
    ] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = refused(case.open(&bytes, access, what), what);
            assert!(
                matches!(error, OpenError::NotAPool { .. }),
                "{what}: {error:?}"
            );
            let after = fs::read(case.path()).expect("the case");
            assert!(after == bytes, "{what}: it was changed");
        }
    }
}

#[test]
fn either_superblock_copy_serves() {
    let (case, bytes) = (Case::new(), sample());
    for (name, at) in [("A", 0), ("B", SUPERBLOCK_B)] {
        for damage in ["zeros", "ones", "flipped"] {
            let mut damaged = bytes.clone();
            for byte in &mut damaged[at..at + SUPERBLOCK_BYTES] {
                *byte = match damage {
                    "zeros" => 0,
                    "ones" => 0xff,
                    _ => !*byte,
                };
            }
            for access in [Access::ReadOnly, Access::ReadWrite] {
                match case.open(&damaged, access, "one copy") {
                    Outcome::Served(roots) => assert_eq!(roots, ["one", "two"]),
                    Outcome::Refused(e) => panic!("copy {name}, {damage}: {e}"),
                }
            }
        }
        for bit in (0..SUPERBLOCK_BYTES * 8).step_by(5) {
            let mut damaged = bytes.clone();
            damaged[at + bit / 8] ^= 1 << (bit % 8);
            if let Outcome::Refused(e) = case.open(&damaged, Access::ReadOnly, "one bit") {
                panic!("copy {name}, bit {bit}: {e}");
            }
        }
    }
}

#[test]
fn two_bad_superblock_copies_are_told_apart() {
    let (case, bytes) = (Case::new(), sample());
    let both = |at: usize, with: &[u8]| {
        let mut damaged = bytes.clone();
        for copy in [0, SUPERBLOCK_B] {
            damaged[copy + at..copy + at + with.len()].copy_from_slice(with);
        }
        damaged
    };
    let open = |bytes: &[u8], what: &str| refused(case.open(bytes, Access::ReadWrite, what), what);

    let error = open(&both(0, b"SQLite f"), "another magic");
    assert!(matches!(error, OpenError::NotAPool { .. }), "{error:?}");
    let error = open(&both(0, &[0; SUPERBLOCK_BYTES]), "zeros");
    assert!(matches!(error, OpenError::NotAPool { .. }), "{error:?}");
    let error = open(&both(8, &[1, 2, 3, 4]), "the other byte order");
    assert!(matches!(error, OpenError::OtherEndianness(_)), "{error:?}");
    let error = open(&both(12, &77u32.to_le_bytes()), "a newer version");
    assert!(
        matches!(error, OpenError::Version { version, .. } if version.found == 77 && version.newest < 77),
        "{error:?}"
    );
    for at in [16, 24, 33, 47, 48, 52, 100, 508] {
        let flipped = [!bytes[at]];
        let error = open(&both(at, &flipped), "both checksums");
        assert!(
            matches!(error, OpenError::Corrupt { .. }),
            "byte {at}: {error:?}"
        );
        assert!(error.to_string().contains("superblock"), "{error}");
    }
}

/// If one bit of a chunk-table word in use changes, the word fails its check.
#[test]
fn chunk_table_flips_are_found() {
    let (case, bytes) = (Case::new(), sample());
    let chunks = bytes.len() / CHUNK as usize;
    for chunk in 0..chunks {
        for bit in 0..64 {
            let mut damaged = bytes.clone();
            damaged[CHUNK_TABLE + chunk * 8 + bit / 8] ^= 1 << (bit % 8);
            let what = format!("chunk {chunk}, bit {bit}");
            let error = refused(case.open(&damaged, Access::ReadOnly, &what), &what);
            assert!(
                matches!(error, OpenError::Corrupt { .. }),
                "{what}: {error:?}"
            );
            assert!(error.to_string().contains("chunk"), "{error}");
        }
    }
}

/// A root may be refused, or exist; it must not disappear as if it had never been.
#[test]
fn root_slot_flips_are_found() {
    let (case, bytes) = (Case::new(), sample());
    // State, checksum and descriptor; what follows is the design's.
    for slot in 0..3 {
        for bit in 0..128 * 8 {
            let mut damaged = bytes.clone();
            damaged[ROOT_TABLE + slot * ROOT_SLOT + bit / 8] ^= 1 << (bit % 8);
            let what = format!("root slot {slot}, bit {bit}");
            match case.open(&damaged, Access::ReadOnly, &what) {
                Outcome::Served(roots) => assert_eq!(roots, ["one", "two"], "{what}"),
                Outcome::Refused(e) => {
                    assert!(matches!(e, OpenError::Corrupt { .. }), "{what}: {e:?}");
                    assert!(
                        e.to_string().contains(&format!("slot {slot}")),
                        "{what}: {e}"
                    );
                }
            }
        }
    }
}

/// Damage anywhere in the tables, several bytes at a time, for writers too.
#[test]
fn random_damage_to_the_tables() {
    let (case, bytes) = (Case::new(), sample());
    let mut state = 7u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for round in 0..1_500 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + random() % 4 {
            // The tables, and now and then anything at all.
            let end = if random() % 4 == 0 {
                damaged.len()
            } else {
                CHUNK as usize
            };
            let at = random() % end;
            damaged[at] = if random() % 2 == 0 { random() as u8 } else { 0 };
        }
        let access = if round % 2 == 0 {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        case.open(&damaged, access, &format!("round {round}"));
    }
}

#[test]
fn paths_that_hold_no_file() {
    let folder = folder();
    let absent = folder.path().join("absent");
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let error = Pool::<Mapped>::open(&absent, &options(access)).expect_err("no file");
        assert!(matches!(error, OpenError::NotFound(_)), "{error:?}");
        let error = Pool::<Mapped>::open(folder.path(), &options(access)).expect_err("a folder");
        assert!(matches!(error, OpenError::NotAFile(_)), "{error:?}");
    }
    let error = Pool::<Mapped>::create(folder.path(), &options(Access::Create)).expect_err("there");
    assert!(
        matches!(error, OpenError::Exists(_) | OpenError::NotAFile(_)),
        "{error:?}"
    );
    let nowhere = folder.path().join("no such folder").join("pool");
    let error = Pool::<Mapped>::create(&nowhere, &options(Access::Create)).expect_err("no folder");
    assert!(matches!(error, OpenError::NoFolder { .. }), "{error:?}");
}

#[test]
fn a_second_writer_is_refused() {
    let folder = folder();
    let path = folder.path().join("pool");
    let pool = Pool::<Mapped>::create(&path, &options(Access::Create)).expect("a new pool");
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let error = Pool::<Mapped>::open(&path, &options(access)).expect_err("in use");
        assert!(matches!(error, OpenError::Locked(_)), "{error:?}");
    }
    let error = Pool::<Mapped>::create(&path, &options(Access::Create)).expect_err("there");
    assert!(matches!(error, OpenError::Exists(_)), "{error:?}");
    drop(pool);
    let reader = Pool::<Mapped>::open(&path, &options(Access::ReadOnly)).expect("a reader");
    let second = Pool::<Mapped>::open(&path, &options(Access::ReadOnly)).expect("a second reader");
    let error = Pool::<Mapped>::open(&path, &options(Access::ReadWrite)).expect_err("being read");
    assert!(matches!(error, OpenError::Locked(_)), "{error:?}");
    drop((reader, second));
    Pool::<Mapped>::open(&path, &options(Access::ReadWrite)).expect("free again");
}
