//! `Pool::salvage` reads past damage of the pool's own tables and of its journal, says what was
//! wrong, and writes nothing.

use bristlecone_pmem::cell::PWord;
use bristlecone_pmem::heap::CLASSES;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::media::journal::journal_path;
use bristlecone_pmem::pool::layout::{CHUNK, CHUNK_TABLE, ChunkUse, REGION, ROOT_TABLE};
use bristlecone_pmem::pool::{DataKind, RootKind};
use bristlecone_pmem::{Access, Media, MediumKind, OpenError, Pool, PoolOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use tempfile::TempDir;

const BLOCK: u64 = 1024;
const BLOCKS: u64 = 40;

fn kind() -> RootKind {
    RootKind {
        design: "salvaged".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: BLOCK as u32,
    }
}

/// A pool with a root whose first words lead to blocks with a number each.
struct Fixture {
    _dir: TempDir,
    path: PathBuf,
    places: Vec<u64>,
}

impl Fixture {
    /// Of a pool on `medium` that was closed, or that a kill left.
    fn new(medium: MediumKind, closed: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = PoolOptions::default();
        options.media.medium = Some(medium);
        let live = dir.path().join("live");
        let pool = Pool::<Auto>::create(&live, &options).unwrap();
        let root = pool.create_root("r", &kind()).unwrap();
        let heap = root.heap();
        // The blocks lie behind the smallest pool.
        heap.alloc(CHUNK).unwrap();
        let mut places = Vec::new();
        for i in 0..BLOCKS {
            let block = heap.alloc(BLOCK).unwrap().get();
            word(&pool, block).store(pool.pm(), i + 100, Ordering::Relaxed);
            pool.pm().flush_of(word(&pool, block));
            root.word(i as usize)
                .store(pool.pm(), block, Ordering::Relaxed);
            pool.pm().flush_of(root.word(i as usize));
            places.push(block);
        }
        root.publish();
        pool.pm().commit().unwrap();
        drop(heap);
        drop(root);
        let path = dir.path().join("pool");
        let copy = || {
            std::fs::copy(&live, &path).unwrap();
            if medium == MediumKind::Journal {
                std::fs::copy(journal_path(&live), journal_path(&path)).unwrap();
            }
        };
        if closed {
            drop(pool);
        }
        copy();
        Self {
            _dir: dir,
            path,
            places,
        }
    }

    fn change(&self, at: u64, change: impl FnOnce(&mut [u8])) {
        let mut options = std::fs::File::options();
        let file = options.read(true).write(true).open(&self.path).unwrap();
        let mut bytes = [0; 1024];
        file.read_exact_at(&mut bytes, at).unwrap();
        change(&mut bytes);
        file.write_all_at(&bytes, at).unwrap();
    }

    /// Whether all blocks are found and read. Nothing of the files changes.
    #[track_caller]
    fn all_is_there(&self, problems: &[&str]) {
        let before = files(&self.path);
        let pool = Pool::<Auto>::salvage(&self.path).unwrap();
        let told = pool.problems();
        assert_eq!(told.len(), problems.len(), "{told:?}");
        for (told, expected) in told.iter().zip(problems) {
            assert!(told.contains(expected), "{told:?}");
            assert!(told.starts_with(self.path.to_str().unwrap()), "{told:?}");
        }
        let root = pool.open_root("r", Some(&kind())).unwrap();
        let heap = root.heap();
        heap.begin_recovery();
        let guard = crossbeam_epoch::pin();
        for (i, place) in self.places.iter().enumerate() {
            let block = root.word(i).load(pool.pm(), Ordering::Relaxed);
            assert_eq!(block, *place);
            heap.mark(block, BLOCK, &guard).unwrap();
            let number = word(&pool, block).load(pool.pm(), Ordering::Relaxed);
            assert_eq!(number, i as u64 + 100);
        }
        heap.finish_recovery();
        drop(heap);
        drop(root);
        drop(pool);
        assert!(files(&self.path) == before, "salvaging wrote to the files");
    }

    /// The ordinary opening refuses it.
    #[track_caller]
    fn is_refused(&self) -> OpenError {
        let before = files(&self.path);
        let error = Pool::<Auto>::open(&self.path, &PoolOptions::default()).unwrap_err();
        assert!(
            files(&self.path) == before,
            "{error}: the files were changed"
        );
        error
    }
}

fn word(pool: &Pool<Auto>, at: u64) -> &PWord {
    // SAFETY: 1. the tests pass blocks of the pool; 2. blocks are aligned to lines; 3. every bit
    // pattern is a PWord; 4. the mapping lives as long as the pool.
    unsafe { &*pool.pm().base().wrapping_add(at as usize).cast() }
}

fn files(path: &Path) -> [Option<Vec<u8>>; 2] {
    [path.to_path_buf(), journal_path(path)].map(|path| std::fs::read(path).ok())
}

#[test]
fn a_whole_pool_has_no_problems() {
    for medium in [MediumKind::Journal, MediumKind::Mapped] {
        for closed in [true, false] {
            Fixture::new(medium, closed).all_is_there(&[]);
        }
    }
}

#[test]
fn both_superblocks_may_be_gone() {
    for medium in [MediumKind::Journal, MediumKind::Mapped] {
        let with = |problem| match medium {
            MediumKind::Journal => vec!["taken for its own", problem],
            _ => vec![problem],
        };
        let f = Fixture::new(medium, true);
        for at in [0, 4096] {
            f.change(at, |bytes| bytes[..512].fill(0));
        }
        assert!(matches!(f.is_refused(), OpenError::NotAPool { .. }));
        f.all_is_there(&with("not a Bristlecone pool"));
        let f = Fixture::new(medium, true);
        for at in [0, 4096] {
            f.change(at, |bytes| bytes[40] ^= 8);
        }
        assert!(matches!(f.is_refused(), OpenError::Corrupt { .. }));
        f.all_is_there(&with("both superblock copies"));
    }
}

#[test]
fn a_journal_is_applied_though_the_superblocks_are_gone() {
    let f = Fixture::new(MediumKind::Journal, false);
    for at in [0, 4096] {
        f.change(at, |bytes| bytes[..512].fill(0x55));
    }
    f.is_refused();
    let before = files(&f.path);
    let pool = Pool::<Auto>::salvage(&f.path).unwrap();
    let told = pool.problems();
    assert!(told[0].contains("taken for its own"), "{told:?}");
    let root = pool.open_root("r", Some(&kind())).unwrap();
    for (i, place) in f.places.iter().enumerate() {
        let block = root.word(i).load(pool.pm(), Ordering::Relaxed);
        assert_eq!(block, *place, "what only the journal has");
    }
    drop((root, pool));
    assert!(files(&f.path) == before);
}

#[test]
fn what_is_no_pool_is_still_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("diary");
    std::fs::write(&path, "Dear diary,\n".repeat(400_000)).unwrap();
    let error = Pool::<Auto>::salvage(&path).unwrap_err();
    assert!(matches!(error, OpenError::NotAPool { .. }), "{error}");
    let error = Pool::<Auto>::salvage(&dir.path().join("absent")).unwrap_err();
    assert!(matches!(error, OpenError::NotFound(_)), "{error}");
}

#[test]
fn every_bit_of_a_chunk_word_may_be_wrong() {
    // Refusing it is no clean close of it.
    let f = Fixture::new(MediumKind::Mapped, false);
    let chunk = f.places[0] / CHUNK;
    assert!(f.places.iter().all(|place| place / CHUNK == chunk));
    let at = CHUNK_TABLE + chunk * 8;
    for bit in 0..64 {
        let flip = |bytes: &mut [u8]| bytes[bit / 8] ^= 1 << (bit % 8);
        f.change(at, flip);
        assert!(matches!(f.is_refused(), OpenError::Corrupt { .. }), "{bit}");
        f.all_is_there(&["its chunk-table word fails its check"]);
        f.change(at, flip);
    }
    f.change(CHUNK_TABLE, |bytes| bytes[0] ^= 1);
    f.all_is_there(&["chunk 0"]);
}

#[test]
fn a_chunk_word_may_be_another_that_passes_its_check() {
    let f = Fixture::new(MediumKind::Mapped, false);
    let chunk = f.places[0] / CHUNK;
    let wrong = [
        (
            chunk,
            ChunkUse::Blocks {
                owner: 0,
                class: CLASSES.len() as u8,
            },
            "an unknown size class",
        ),
        (
            chunk,
            ChunkUse::Activated {
                owner: 0,
                class: 99,
            },
            "an unknown size class",
        ),
        (chunk, ChunkUse::Header, "a header where none belongs"),
        (
            chunk,
            ChunkUse::Run {
                owner: 0,
                chunks: 500,
            },
            "a run that leaves its region",
        ),
        (
            0,
            ChunkUse::Blocks { owner: 0, class: 3 },
            "no header where one belongs",
        ),
        (0, ChunkUse::Free, "no header where one belongs"),
    ];
    for (chunk, used, told) in wrong {
        let mut was = [0; 8];
        f.change(CHUNK_TABLE + chunk * 8, |bytes| {
            bytes[..8].swap_with_slice(&mut was)
        });
        f.change(CHUNK_TABLE + chunk * 8, |bytes| {
            bytes[..8].copy_from_slice(&used.encode().to_le_bytes());
        });
        f.is_refused();
        f.all_is_there(&[told]);
        f.change(CHUNK_TABLE + chunk * 8, |bytes| {
            bytes[..8].copy_from_slice(&was)
        });
    }
    f.all_is_there(&[]);
}

/// Words that are those of other chunks pass their checks: sectors of the table that were swapped,
/// or are as they were before.
#[test]
fn a_chunk_word_may_be_that_of_another_chunk() {
    let f = Fixture::new(MediumKind::Mapped, true);
    let chunk = f.places[0] / CHUNK;
    let (owner, class) = (0, 3);
    for used in [
        ChunkUse::Free,
        ChunkUse::Blocks { owner, class },
        ChunkUse::Blocks { owner, class: 9 },
        ChunkUse::Blocks { owner: 7, class },
        ChunkUse::Run { owner, chunks: 2 },
    ] {
        f.change(CHUNK_TABLE + chunk * 8, |bytes| {
            bytes[..8].copy_from_slice(&used.encode().to_le_bytes());
        });
        f.all_is_there(&[]);
    }
}

/// Bytes of a superblock copy without its checksum.
const SUMMED: usize = 508;

fn set_size(f: &Fixture, size: u64) {
    for at in [0, 4096] {
        f.change(at, |bytes| {
            bytes[24..32].copy_from_slice(&size.to_le_bytes());
            let sum = crc32c::crc32c(&bytes[..SUMMED]);
            bytes[SUMMED..SUMMED + 4].copy_from_slice(&sum.to_le_bytes());
        });
    }
}

/// A superblock that said that the pool has a terabyte took memory for as many chunks.
#[test]
fn a_superblock_may_say_any_size() {
    let f = Fixture::new(MediumKind::Mapped, true);
    for size in [1 << 30, 1 << 40, 1 << 50, u64::MAX, u64::MAX - CHUNK + 1] {
        set_size(&f, size);
        let pool = Pool::<Auto>::salvage(&f.path).unwrap();
        assert!(pool.size() <= REGION, "{:#x}", pool.size());
        drop(pool);
        f.all_is_there(&["bytes"]);
    }
    // It is of an earlier time: the pool has grown since.
    set_size(&f, 2 * CHUNK);
    assert!(f.places.iter().all(|place| *place >= 2 * CHUNK));
    f.all_is_there(&[]);
}

#[test]
fn a_pool_is_salvaged_by_its_own_method() {
    let f = Fixture::new(MediumKind::Mapped, true);
    let mut options = PoolOptions::default();
    options.media.access = Access::Salvage;
    let error = Pool::<Auto>::open(&f.path, &options).unwrap_err();
    assert!(matches!(error, OpenError::Unsupported { .. }), "{error}");
}

#[test]
fn one_wrong_bit_of_a_root_is_turned_back() {
    let f = Fixture::new(MediumKind::Mapped, false);
    for bit in (0..128 * 8).step_by(5) {
        let flip = |bytes: &mut [u8]| bytes[bit / 8] ^= 1 << (bit % 8);
        f.change(ROOT_TABLE, flip);
        f.is_refused();
        f.all_is_there(&["one wrong bit was turned back"]);
        f.change(ROOT_TABLE, flip);
    }
    f.change(ROOT_TABLE, |bytes| bytes[40] ^= 3);
    let pool = Pool::<Auto>::salvage(&f.path).unwrap();
    assert!(pool.roots().is_empty());
    assert!(pool.problems()[0].contains("fails its checksum"));
}

#[test]
fn a_journal_may_be_missing_or_of_another_pool() {
    let f = Fixture::new(MediumKind::Journal, false);
    let other = Fixture::new(MediumKind::Journal, false);
    std::fs::copy(journal_path(&other.path), journal_path(&f.path)).unwrap();
    let error = f.is_refused();
    assert!(error.to_string().contains("belongs to another pool"));
    let pool = Pool::<Auto>::salvage(&f.path).unwrap();
    let told = pool.problems();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("belongs to another pool"));
    assert!(told[1].contains("its journal file is missing"));
    // The pool is as its last checkpoint left it, before the root was made.
    assert!(pool.roots().is_empty());
    drop(pool);
    std::fs::remove_file(journal_path(&f.path)).unwrap();
    f.is_refused();
    let pool = Pool::<Auto>::salvage(&f.path).unwrap();
    assert_eq!(pool.problems().len(), 1);
    drop(pool);
    // One that cannot be read at all is left aside.
    std::fs::write(journal_path(&f.path), vec![0x55; 1 << 20]).unwrap();
    f.is_refused();
    let pool = Pool::<Auto>::salvage(&f.path).unwrap();
    let told = pool.problems();
    assert!(told[0].contains("neither header can be read"), "{told:?}");
    // A closed pool needs none.
    let f = Fixture::new(MediumKind::Journal, true);
    std::fs::remove_file(journal_path(&f.path)).unwrap();
    f.all_is_there(&[]);
}

#[test]
fn a_file_may_be_cut_short() {
    let f = Fixture::new(MediumKind::Mapped, true);
    let length = std::fs::metadata(&f.path).unwrap().len();
    let end = f.places.iter().max().unwrap() / CHUNK * CHUNK + CHUNK;
    assert!(end < length, "nothing can be cut off");
    let file = std::fs::File::options().write(true).open(&f.path).unwrap();
    file.set_len(end + 100).unwrap();
    assert!(matches!(f.is_refused(), OpenError::Truncated { .. }));
    f.all_is_there(&["bytes"]);
}

/// As far as the superblock says, the pool is as long as it was, and its end reads as zeros.
#[test]
fn what_was_cut_off_reads_as_zeros() {
    let f = Fixture::new(MediumKind::Mapped, true);
    let length = std::fs::metadata(&f.path).unwrap().len();
    let file = std::fs::File::options().write(true).open(&f.path).unwrap();
    for cut in [length - CHUNK, length - 4096] {
        file.set_len(cut).unwrap();
        let pool = Pool::<Auto>::salvage(&f.path).unwrap();
        assert_eq!(pool.size(), length);
        assert_eq!(pool.pm().len(), length);
        let end = (cut..length).step_by(8).map(|at| word(&pool, at));
        let zeros = end.filter(|word| word.load(pool.pm(), Ordering::Relaxed) == 0);
        assert_eq!(zeros.count() as u64, (length - cut) / 8);
        drop(pool);
        file.set_len(length).unwrap();
    }
}

#[test]
fn a_pool_whose_size_is_not_known_has_the_whole_chunks_of_its_file() {
    let f = Fixture::new(MediumKind::Mapped, true);
    let length = std::fs::metadata(&f.path).unwrap().len();
    for size in [length - 8, length - CHUNK + 512, CHUNK, 0] {
        set_size(&f, size);
        assert!(matches!(f.is_refused(), OpenError::Corrupt { .. }));
        f.all_is_there(&[&format!("superblock: a size of {size} bytes")]);
        let pool = Pool::<Auto>::salvage(&f.path).unwrap();
        assert_eq!(pool.size(), length);
    }
    // Neither superblock is left.
    for at in [0, 4096] {
        f.change(at, |bytes| bytes[..512].fill(0));
    }
    let file = std::fs::File::options().write(true).open(&f.path).unwrap();
    for more in [0, 4096, CHUNK - 4096, CHUNK] {
        file.set_len(length + more).unwrap();
        let pool = Pool::<Auto>::salvage(&f.path).unwrap();
        assert_eq!(pool.size(), (length + more) / CHUNK * CHUNK);
        drop(pool);
        f.all_is_there(&["not a Bristlecone pool"]);
    }
}

/// Without a superblock, the roots tell a pool from another file: one of them, to within a bit.
#[test]
fn roots_tell_that_a_file_was_a_pool() {
    let f = Fixture::new(MediumKind::Mapped, true);
    for at in [0, 4096] {
        f.change(at, |bytes| bytes[..512].fill(0));
    }
    for bit in [0, 7, 30, 63] {
        let flip = |bytes: &mut [u8]| bytes[bit / 8] ^= 1 << (bit % 8);
        f.change(ROOT_TABLE, flip);
        f.all_is_there(&["not a Bristlecone pool", "one wrong bit was turned back"]);
        f.change(ROOT_TABLE, |bytes| bytes[(bit / 8 + 1) % 8] ^= 1);
        let error = Pool::<Auto>::salvage(&f.path).unwrap_err();
        assert!(matches!(error, OpenError::NotAPool { .. }), "{error}");
        f.change(ROOT_TABLE, |bytes| bytes[(bit / 8 + 1) % 8] ^= 1);
        f.change(ROOT_TABLE, flip);
    }
}

/// One of two wrong bits is never turned back: what came of it would be a root that was not there.
#[test]
fn two_wrong_bits_of_a_root_are_left_as_they_are() {
    let f = Fixture::new(MediumKind::Mapped, true);
    // Two of the state; one of the state, and one of the checksum, the name or the kind.
    for (first, second) in [(3, 60), (9, 64), (9, 70), (9, 128 + 8), (40, 128 + 70 * 8)] {
        for bit in [first, second] {
            f.change(ROOT_TABLE, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        }
        f.is_refused();
        let pool = Pool::<Auto>::salvage(&f.path).unwrap();
        let told = pool.problems();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("root slot 0: state"), "{told:?}");
        assert!(!told[0].contains("turned back"), "{told:?}");
        assert!(pool.roots().is_empty());
        drop(pool);
        for bit in [first, second] {
            f.change(ROOT_TABLE, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        }
    }
    // An empty slot with a wrong bit stays empty.
    f.change(ROOT_TABLE + 1024, |bytes| bytes[2] ^= 4);
    let pool = Pool::<Auto>::salvage(&f.path).unwrap();
    assert!(pool.problems()[0].contains("root slot 1: state"));
    assert_eq!(pool.roots().len(), 1);
}
