//! Pools against their own tables: ends, growth, leftovers, slots of roots, the two superblocks.

use super::*;
use crate::error::SpaceError;
use crate::media::{Dram, Mapped};
use std::os::unix::fs::FileExt;

pub(crate) fn kind() -> RootKind {
    RootKind {
        design: "test".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: 256,
    }
}

fn options(reserve: u64) -> PoolOptions {
    let mut options = PoolOptions::default();
    options.media.reserve = reserve;
    options
}

fn dram(reserve: u64) -> Arc<Pool<Dram>> {
    Pool::create(Path::new("dram"), &options(reserve)).unwrap()
}

#[test]
fn chunks_past_the_end_have_no_use() {
    let pool = dram(1 << 30);
    let end = (pool.pm.len() / CHUNK) as u32;
    assert_eq!(pool.chunk_use(0), Some(ChunkUse::Header));
    assert_eq!(pool.chunk_use(end - 1), Some(ChunkUse::Free));
    for chunk in [end, end + 1, 2 * end, u32::MAX] {
        assert_eq!(pool.chunk_use(chunk), None, "chunk {chunk} of {end}");
    }
}

/// A pool grows about 128 times at most before its size has doubled.
#[test]
fn a_pool_grows_by_a_share_of_its_size() {
    let pool = dram(8 << 30);
    let used = ChunkUse::Run {
        owner: 0,
        chunks: MAX_RUN,
    };
    let mut grown = 0;
    while pool.size() < 4 << 30 {
        let before = pool.size();
        pool.assign_chunks(MAX_RUN, used).unwrap();
        let step = pool.size() - before;
        if step > 0 {
            grown += 1;
            assert!(step >= before / 128, "{step} of {before}");
            let most = (before / 128).max(u64::from(MAX_RUN) * CHUNK) + (4 << 20);
            assert!(step <= most, "{step} of {before}");
        }
    }
    assert!(grown > 10);
    // By so much also for a chunk.
    let before = pool.size();
    while pool.size() == before {
        pool.assign_chunks(1, used).unwrap();
    }
    let step = pool.size() - before;
    assert!((before / 128..before / 64).contains(&step), "{step}");
}

#[test]
fn runs_have_a_least_and_a_greatest_length() {
    let pool = dram(1 << 30);
    let info = pool.info();
    for chunks in [0, MAX_RUN + 1, u32::MAX] {
        let used = ChunkUse::Run { owner: 0, chunks };
        match pool.assign_chunks(chunks, used) {
            Err(SpaceError::TooLarge { wanted, most }) => {
                assert_eq!(wanted, u64::from(chunks) * CHUNK);
                assert_eq!(most, u64::from(MAX_RUN) * CHUNK);
            }
            other => panic!("{chunks}: {other:?}"),
        }
        assert_eq!(pool.info(), info);
    }
}

#[test]
fn a_chunk_that_is_free_behind_the_end_is_found() {
    let pool = dram(1 << 30);
    let end = (pool.size() / CHUNK) as u32;
    lock(&pool.space).free.insert(end + 7);
    let violation = pool.verify().unwrap_err();
    let told = format!("chunk {} is free, past the pool's end", end + 7);
    assert_eq!((violation.what, violation.leak), (told, true));
}

/// A crash while a pool grows or shrinks leaves a file that is longer than the pool, with anything
/// behind its end.
#[test]
fn what_lies_behind_the_end_is_cut_off_before_the_pool_grows() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    drop(Pool::<Mapped>::create(&path, &options(1 << 30)).unwrap());
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let len = file.metadata().unwrap().len();
    file.write_all_at(&[0xA5; 1 << 20], len).unwrap();
    let pool = Pool::<Mapped>::open(&path, &options(1 << 30)).unwrap();
    assert_eq!((pool.size(), pool.pm.len()), (len, len));
    assert_eq!(file.metadata().unwrap().len(), len);
    let used = ChunkUse::Blocks { owner: 0, class: 0 };
    while pool.size() == len {
        pool.assign_chunks(1, used).unwrap();
    }
    let words = (len / 8..(len + (1 << 20)) / 8).map(|i| pool.word_at(i * 8));
    let junk = words.filter(|word| word.load(&pool.pm, Ordering::Relaxed) != 0);
    assert_eq!(junk.count(), 0);
}

/// A device is not empty when a pool is made on it.
#[test]
fn a_pool_is_made_on_whatever_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("device");
    std::fs::write(&path, vec![0xA5; 8 << 20]).unwrap();
    let pm = Mapped::open(&path, INITIAL, &options(1 << 30).media).unwrap();
    let pool = Pool::create_on(pm, &path).unwrap();
    let end = (pool.size() / CHUNK) as u32;
    assert_eq!(end, 8 << 20 >> CHUNK.trailing_zeros());
    let all = (1..REGION_CHUNKS as u32).map(|chunk| pool.chunk_word(chunk));
    let free = ChunkUse::Free.encode();
    let others = all.filter(|word| word.load(&pool.pm, Ordering::Relaxed) != free);
    assert_eq!(others.count(), 0, "words of the region, beyond the end too");
    assert_eq!(pool.roots(), []);
    assert_eq!(pool.verify().unwrap().free_chunks, u64::from(end) - 1);
    let root = pool.create_root("r", &kind()).unwrap();
    root.publish();
    drop((root, pool));
    let pool = Pool::<Mapped>::open(&path, &options(1 << 30)).unwrap();
    assert_eq!(pool.roots().len(), 1);
}

/// Several roots are made at a time, and none of them is published yet.
#[test]
fn roots_that_are_being_made_have_slots_and_names_of_their_own() {
    let pool = dram(1 << 30);
    let names = ["a", "b", "c"];
    let roots = names.map(|name| pool.create_root(name, &kind()).unwrap());
    for name in names {
        let again = pool.create_root(name, &kind());
        assert!(
            matches!(again, Err(RootError::Busy(_))),
            "{name}: {again:?}"
        );
    }
    let numbers: BTreeSet<u8> = roots.iter().map(Root::number).collect();
    assert_eq!(numbers.len(), names.len());
    roots.iter().for_each(Root::publish);
    let mut published: Vec<String> = pool.roots().into_iter().map(|root| root.name).collect();
    published.sort();
    assert_eq!(published, names);
}

/// A root is closed and opened again in one pool: its allocator begins anew.
#[test]
fn a_root_that_is_opened_again_has_its_chunks_once() {
    let pool = dram(1 << 30);
    let root = pool.create_root("r", &kind()).unwrap();
    let (heap, guard) = (root.heap(), crossbeam_epoch::pin());
    let blocks: Vec<u64> = [64, 4096, 32_768, 300_000]
        .into_iter()
        .flat_map(|bytes| [0; 3].map(|_| heap.alloc(bytes).unwrap().get()))
        .collect();
    root.publish();
    let stats = heap.stats();
    let report = pool.verify().unwrap();
    assert_eq!((report.idle_chunks, report.ownerless_chunks), (0, 0));
    drop((heap, root));
    assert!(
        pool.open_blocks().is_empty(),
        "closed roots have no allocator"
    );
    let root = pool.open_root("r", Some(&kind())).unwrap();
    let heap = root.heap();
    assert!(!heap.is_live(blocks[0]), "nothing is known before recovery");
    heap.begin_recovery();
    for block in &blocks {
        heap.mark(*block, 1, &guard).unwrap();
    }
    heap.finish_recovery();
    assert_eq!(heap.stats().chunk_bytes, stats.chunk_bytes);
    assert_eq!(heap.live_blocks(), blocks.len() as u64);
    assert_eq!(pool.verify().unwrap(), report);
    // Their free blocks come before a new chunk.
    for bytes in [64, 4096, 32_768] {
        heap.alloc(bytes).unwrap();
    }
    assert_eq!(heap.stats().chunk_bytes, stats.chunk_bytes);
    // A chunk of the root that its allocator does not know.
    let used = ChunkUse::Blocks {
        owner: root.number(),
        class: 3,
    };
    pool.assign_chunks(1, used).unwrap();
    let violation = pool.verify().unwrap_err();
    assert!(violation.what.contains("does not know"), "{violation}");
}

/// Each writing of the superblock has a number of its own, by which the later copy is told.
#[test]
fn the_superblock_of_a_close_is_later_than_that_of_the_opening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = Pool::<Mapped>::create(&path, &options(1 << 30)).unwrap();
    let mut last = 0;
    let mut next = |path: &Path, clean: bool| {
        let pm = Mapped::open(path, INITIAL, &PoolOptions::read_only().media).unwrap();
        let copies = Superblock::copies(&pm).map(|copy| copy.unwrap());
        assert_eq!(copies[0].generation, copies[1].generation);
        assert_eq!(copies[0].clean, clean);
        assert!(copies[0].generation > last);
        last = copies[0].generation;
    };
    let copy = dir.path().join("copy");
    let mut pool = Some(pool);
    for _ in 0..3 {
        std::fs::copy(&path, &copy).unwrap();
        next(&copy, false);
        drop(pool.take());
        next(&path, true);
        pool = Some(Pool::open(&path, &options(1 << 30)).unwrap());
    }
}

#[test]
fn a_size_that_no_pool_has_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = Pool::<Mapped>::create(&path, &options(1 << 30)).unwrap();
    let len = pool.size();
    for size in [len - 8, CHUNK, 0] {
        let of_size = Superblock {
            size,
            ..lock(&pool.superblock).clone()
        };
        of_size.write(&pool.pm);
        let copy = dir.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        let error = Pool::<Mapped>::open(&copy, &options(1 << 30)).unwrap_err();
        let told = error.to_string();
        assert!(told.contains(&format!("{size} bytes")), "{told}");
    }
}
