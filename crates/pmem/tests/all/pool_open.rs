//! Opening, making and closing pools: how long a pool is, what its chunk table may say, and when it
//! counts as closed cleanly.

use crate::pool_support::{Asked, Noting, kind, options, with};
use bristlecone_pmem::media::Mapped;
use bristlecone_pmem::pool::MAX_RUN;
use bristlecone_pmem::pool::layout::{CHUNK, CHUNK_TABLE, ChunkUse, INITIAL, REGION};
use bristlecone_pmem::{Access, Media, OpenError, Pool, PoolOptions};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

fn create(path: &Path) -> Arc<Pool<Noting>> {
    Pool::create(path, &options()).unwrap()
}

fn open(path: &Path) -> Result<Arc<Pool<Noting>>, OpenError> {
    Pool::open(path, &options())
}

/// Makes a pool on a device that has so many bytes.
fn made_on(path: &Path, bytes: u64) -> Result<Arc<Pool<Noting>>, OpenError> {
    std::fs::write(path, vec![0; bytes as usize]).unwrap();
    let pm = <Noting as Media>::open(path, INITIAL, &options().media).unwrap();
    Pool::create_on(pm, path)
}

#[test]
fn two_chunks_are_enough_for_a_pool() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    for bytes in [0, CHUNK, 2 * CHUNK - 4096] {
        let told = made_on(&path, bytes).unwrap_err();
        assert!(matches!(told, OpenError::Unsupported { .. }), "{told}");
        let expected = format!("{}: {bytes} bytes are too few for a pool", path.display());
        assert_eq!(told.to_string(), expected);
    }
    let pool = made_on(&path, 2 * CHUNK).unwrap();
    assert_eq!(pool.size(), 2 * CHUNK);
    let root = pool.create_root("r", &kind()).unwrap();
    root.publish();
    assert_eq!(root.heap().alloc(CHUNK).unwrap().get(), CHUNK);
    assert_eq!(pool.info().free_bytes, 0);
    drop((root, pool));
    let pool = open(&path).unwrap();
    assert!(pool.info().was_clean);
    assert_eq!(pool.info().used_bytes, 2 * CHUNK);
    assert_eq!(pool.verify().unwrap().owned_chunks, 1);
}

/// What a device has behind its last whole chunk is not used, and no fault.
#[test]
fn a_pool_has_the_whole_chunks_of_its_device() {
    let dir = tempfile::tempdir().unwrap();
    for bytes in [5 * CHUNK, 5 * CHUNK + 4096, 6 * CHUNK - 4096] {
        let pool = made_on(&dir.path().join("device"), bytes).unwrap();
        assert_eq!((pool.size(), pool.pm().len()), (5 * CHUNK, bytes));
        let report = pool.verify().unwrap();
        assert_eq!((report.header_chunks, report.free_chunks), (1, 4));
        assert_eq!(pool.info().pool_bytes, 5 * CHUNK);
        assert_eq!(pool.info().free_bytes, 4 * CHUNK);
    }
}

#[test]
fn a_pool_that_could_not_be_made_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool.short");
    let error = Pool::<Noting>::create(&path, &options()).unwrap_err();
    assert!(matches!(error, OpenError::Unsupported { .. }), "{error}");
    assert!(!path.exists());
    // One that was there is somebody's.
    std::fs::write(&path, "mine").unwrap();
    let error = Pool::<Noting>::create(&path, &options()).unwrap_err();
    assert!(matches!(error, OpenError::Exists(_)), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    drop(create(&dir.path().join("pool")));
    assert!(dir.path().join("pool").exists());
}

#[test]
fn files_that_are_too_short_say_what_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    drop(create(&path));
    let file = File::options().write(true).open(&path).unwrap();
    for bytes in [2 * CHUNK - 4096, 8192, 8] {
        file.set_len(bytes).unwrap();
        let error = open(&path).unwrap_err();
        let OpenError::Truncated {
            expected, found, ..
        } = error
        else {
            panic!("{error:?}");
        };
        assert_eq!((expected, found), (2 * CHUNK, bytes));
    }
    let found = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        match open(&path).unwrap_err() {
            OpenError::NotAPool { found, .. } => found,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(found(b""), "the file is empty");
    assert_eq!(found(b"BRSTLCN"), "only 7 bytes");
    assert_eq!(found(b"BRSTLCN0 and so on"), "only 18 bytes");
    assert_eq!(found(&[0; 100_000]), "only 100000 bytes");
}

fn write_use(path: &Path, chunk: u64, used: ChunkUse) {
    let file = File::options().write(true).open(path).unwrap();
    let at = chunk / 1024 * REGION + CHUNK_TABLE + chunk % 1024 * 8;
    file.write_all_at(&used.encode().to_le_bytes(), at).unwrap();
}

/// What the error says of an opening that is refused.
#[track_caller]
fn refused(path: &Path) -> String {
    let tables = || {
        let mut tables = vec![0; CHUNK as usize];
        File::open(path)
            .and_then(|file| file.read_exact_at(&mut tables, 0))
            .unwrap();
        tables
    };
    let before = tables();
    let error = open(path).unwrap_err();
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error:?}");
    assert!(tables() == before, "the file was changed");
    error.to_string()
}

#[test]
fn chunks_inside_a_run_are_in_use_by_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = create(&path);
    let root = pool.create_root("r", &kind()).unwrap();
    root.heap().alloc(CHUNK).unwrap();
    root.heap().alloc(4 * CHUNK).unwrap();
    root.publish();
    drop((root, pool));
    let (owner, class) = (0, 9);
    let block = ChunkUse::Blocks { owner, class };
    let uses = [block, ChunkUse::Run { owner, chunks: 1 }];
    for (chunk, used) in (3..6).flat_map(|chunk| uses.map(|used| (chunk, used))) {
        write_use(&path, chunk, used);
        let told = refused(&path);
        let offset = chunk * CHUNK;
        let expected = format!("chunk {chunk} (offset {offset:#x}): in use inside another run");
        assert!(told.contains(&expected), "{told}");
        write_use(&path, chunk, ChunkUse::Free);
    }
    // The chunks before and behind it are not in it.
    write_use(&path, 6, block);
    let pool = open(&path).unwrap();
    assert_eq!(pool.verify().unwrap().owned_chunks, 6);
    assert_eq!(pool.info().used_bytes, 7 * CHUNK);
}

#[test]
fn runs_end_in_their_region_and_in_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = create(&path);
    let root = pool.create_root("r", &kind()).unwrap();
    let heap = root.heap();
    heap.alloc(u64::from(MAX_RUN) * CHUNK).unwrap();
    heap.alloc(CHUNK).unwrap();
    root.publish();
    let end = pool.size() / CHUNK;
    assert!(end > 1026);
    drop((heap, root, pool));
    let run = |chunks: u64| ChunkUse::Run {
        owner: 0,
        chunks: chunks as u32,
    };
    // What was written is what is counted. Later ones lie in the chunks that the first one had.
    for (chunk, chunks) in [(1, 1023), (1, 1), (1020, 4), (1023, 1), (1026, end - 1026)] {
        write_use(&path, chunk, run(chunks));
        let pool = open(&path).unwrap();
        pool.verify().unwrap();
        drop(pool);
        if chunk != 1 {
            write_use(&path, chunk, ChunkUse::Free);
        }
    }
    for (chunk, chunks) in [
        (1, 1024),
        (1020, 5),
        (1023, 2),
        (1026, end - 1025),
        (end - 1, 2),
    ] {
        write_use(&path, chunk, run(chunks));
        let told = refused(&path);
        assert!(told.contains(&format!("chunk {chunk} ")), "{told}");
        assert!(told.contains("a run that leaves its region"), "{told}");
        write_use(&path, chunk, ChunkUse::Free);
    }
    write_use(&path, 1024, ChunkUse::Free);
    assert!(refused(&path).contains("no header where one belongs"));
}

#[test]
fn what_belongs_to_no_root_is_free_after_an_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = create(&path);
    let root = pool.create_root("r", &kind()).unwrap();
    root.heap().alloc(2 * CHUNK).unwrap();
    root.publish();
    drop((root, pool));
    // Of slot 0, which has a root, and of slots that have none.
    write_use(&path, 3, ChunkUse::Blocks { owner: 0, class: 3 });
    write_use(&path, 4, ChunkUse::Blocks { owner: 1, class: 3 });
    write_use(
        &path,
        5,
        ChunkUse::Activated {
            owner: 47,
            class: 3,
        },
    );
    write_use(
        &path,
        6,
        ChunkUse::Run {
            owner: 9,
            chunks: 5,
        },
    );
    let used = |pool: &Pool<Noting>| {
        let report = pool.verify().unwrap();
        (report.owned_chunks, report.ownerless_chunks)
    };
    let reader = Pool::<Noting>::open(&path, &with(Access::ReadOnly)).unwrap();
    assert_eq!(used(&reader), (3, 0), "in its own memory");
    drop(reader);
    let pool = open(&path).unwrap();
    assert_eq!(used(&pool), (3, 0));
    assert_eq!(pool.info().free_bytes, INITIAL - 4 * CHUNK);
    drop(pool);
    assert_eq!(used(&open(&path).unwrap()), (3, 0));
}

#[test]
fn a_pool_counts_as_clean_only_when_all_of_it_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = create(&path);
    let copy = dir.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    assert!(!open(&copy).unwrap().info().was_clean, "it was in use");
    assert!(open(&copy).unwrap().info().was_clean);
    pool.pm().take();
    pool.sync().unwrap();
    assert_eq!(pool.pm().take(), [Asked::Sync]);
    pool.pm().refuse(|asked| asked == Asked::Sync);
    let error = pool.sync().unwrap_err();
    assert!(error.to_string().contains("Sync refused"), "{error}");
    drop(pool);
    assert!(!open(&path).unwrap().info().was_clean, "closing it failed");
    // A reader changes nothing of that.
    drop(open(&path).unwrap());
    let before = std::fs::read(&path).unwrap();
    let reader = Pool::<Noting>::open(&path, &with(Access::ReadOnly)).unwrap();
    assert!(reader.info().was_clean);
    drop(reader);
    assert!(std::fs::read(&path).unwrap() == before);
    // Nor does an opening that is refused.
    std::fs::copy(&path, &copy).unwrap();
    let pool = open(&path).unwrap();
    std::fs::copy(&path, &copy).unwrap();
    drop(pool);
    write_use(&copy, 5, ChunkUse::Header);
    refused(&copy);
    write_use(&copy, 5, ChunkUse::Free);
    assert!(!open(&copy).unwrap().info().was_clean);
}

#[test]
fn the_options_of_a_reader_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    drop(create(&path));
    let before = std::fs::read(&path).unwrap();
    let pool = Pool::<Mapped>::open(&path, &PoolOptions::read_only()).unwrap();
    assert!(pool.pm().read_only());
    assert_eq!(pool.path(), path);
    drop(pool);
    assert!(std::fs::read(&path).unwrap() == before);
}

/// On media that cannot lengthen what is in memory.
#[test]
fn a_pool_that_was_cut_short_is_salvaged_as_far_as_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    drop(create(&path));
    let file = File::options().write(true).open(&path).unwrap();
    for cut in [INITIAL - CHUNK, INITIAL - CHUNK - 4096] {
        file.set_len(cut).unwrap();
        let pool = Pool::<Noting>::salvage(&path).unwrap();
        assert_eq!(pool.size(), cut / CHUNK * CHUNK);
        let [problem] = pool.problems() else {
            panic!("{:?}", pool.problems());
        };
        assert!(problem.contains("truncated"), "{problem}");
        assert!(pool.is_salvaged());
    }
    file.set_len(INITIAL).unwrap();
    assert!(!open(&path).unwrap().is_salvaged());
}
