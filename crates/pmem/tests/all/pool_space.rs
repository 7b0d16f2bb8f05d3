//! A pool's space: how it grows, what it takes for a block, what it gives back, and that it counts
//! all of this right. Nothing that is in use changes meanwhile.

use crate::pool_support::{
    Asked, Noting, RESERVE, dram, fill, is_filled, kind, load, options, with,
};
use bristlecone_pmem::media::Dram;
use bristlecone_pmem::pool::layout::{CHUNK, INITIAL, REGION};
use bristlecone_pmem::pool::{MAX_RUN, Root};
use bristlecone_pmem::{Access, Heap, Media, POff, Pool, SpaceError};
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
/// Place of the number that rises with each change of the superblock.
const GENERATION: u64 = 16;

fn noting(path: &Path) -> Arc<Pool<Noting>> {
    Pool::create(path, &options()).unwrap()
}

fn root<M: Media>(pool: &Arc<Pool<M>>) -> Root<M> {
    let root = pool.create_root("r", &kind()).unwrap();
    root.publish();
    root
}

/// Allocates runs of so many chunks each.
fn runs<M: Media, const N: usize>(heap: &Heap<M>, chunks: [u64; N]) -> [POff<u8>; N] {
    chunks.map(|chunks| heap.alloc(chunks * CHUNK).unwrap())
}

fn free<M: Media, const N: usize>(heap: &Heap<M>, blocks: [POff<u8>; N]) {
    blocks.into_iter().for_each(|block| heap.free(block));
}

fn chunk_of(block: POff<u8>) -> u64 {
    assert_eq!(block.get() % CHUNK, 0, "runs are whole chunks");
    block.get() / CHUNK
}

fn punch(chunk: u64, chunks: u64) -> Asked {
    let (at, bytes) = (chunk * CHUNK, chunks * CHUNK);
    Asked::Punch { at, bytes }
}

fn back(chunk: u64, chunks: u64) -> Asked {
    let (at, bytes) = (chunk * CHUNK, chunks * CHUNK);
    Asked::Back { at, bytes }
}

/// What a pool says of itself agrees with itself, and so many bytes are in use.
#[track_caller]
fn uses<M: Media>(pool: &Pool<M>, chunks: u64) {
    let report = pool.verify().unwrap();
    let all = report.header_chunks + report.owned_chunks + report.free_chunks;
    assert_eq!(all * CHUNK, pool.size(), "{report:?}");
    assert_eq!(report.header_chunks, pool.size().div_ceil(REGION));
    assert_eq!(report.owned_chunks, chunks, "{report:?}");
    let info = pool.info();
    assert_eq!(info.pool_bytes, pool.size());
    assert_eq!(info.used_bytes, (chunks + report.header_chunks) * CHUNK);
    assert_eq!(info.free_bytes, report.free_chunks * CHUNK);
    assert_eq!(info.fragmentation, 0.0, "runs leave nothing over");
}

#[test]
fn a_pool_grows_to_the_last_whole_chunk_of_its_medium() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let mut pm = <Noting as Media>::open(&path, INITIAL, &with(Access::Create).media).unwrap();
    let most = 2 * INITIAL + 2 * CHUNK;
    pm.capacity = most + 4096;
    let pool = Pool::create_on(pm, &path).unwrap();
    let root = root(&pool);
    let heap = root.heap();
    // All of 4 MiB but the last chunk.
    let filled = runs(&heap, [31, 31]);
    assert_eq!(pool.size(), 2 * INITIAL);
    // Of the two chunks behind them a run of three has no room, though it has with that one.
    let three = heap.alloc(3 * CHUNK).unwrap();
    assert_eq!(pool.size(), most);
    uses(&pool, 65);
    match heap.alloc(CHUNK) {
        Err(SpaceError::Capacity { wanted, capacity }) => {
            assert_eq!(capacity, most + 4096);
            assert!(wanted > capacity, "{wanted}");
        }
        other => panic!("{other:?}"),
    }
    uses(&pool, 65);
    heap.free(three);
    assert_eq!(heap.alloc(3 * CHUNK).unwrap(), three);
    free(&heap, filled);
    uses(&pool, 3);
}

#[test]
fn a_pool_that_has_room_for_no_more_says_so_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let mut pm = <Noting as Media>::open(&path, INITIAL, &with(Access::Create).media).unwrap();
    pm.capacity = INITIAL + CHUNK;
    let pool = Pool::create_on(pm, &path).unwrap();
    let root = root(&pool);
    let heap = root.heap();
    let filled = heap.alloc(31 * CHUNK).unwrap();
    let error = heap.alloc(2 * CHUNK).unwrap_err();
    assert!(matches!(error, SpaceError::Capacity { .. }), "{error}");
    assert_eq!(pool.size(), INITIAL);
    uses(&pool, 31);
    // The last chunk.
    let last = heap.alloc(CHUNK).unwrap();
    assert_eq!(chunk_of(last), 32);
    assert_eq!(pool.size(), INITIAL + CHUNK);
    uses(&pool, 32);
    heap.free(filled);
    uses(&pool, 1);
}

#[test]
fn a_run_takes_one_step_of_growth() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    for chunks in [u64::from(MAX_RUN), 700, 1] {
        let generation = load(pool.pm(), GENERATION);
        let size = pool.size();
        heap.alloc(chunks * CHUNK).unwrap();
        let now = load(pool.pm(), GENERATION);
        let grown = u64::from(pool.size() > size);
        assert_eq!(now, generation + grown, "each size has its generation");
    }
    uses(&pool, u64::from(MAX_RUN) + 701);
}

#[test]
fn the_longest_run_takes_all_of_a_region() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    let [first, second] = runs(&heap, [u64::from(MAX_RUN); 2]);
    assert_eq!((chunk_of(first), chunk_of(second)), (1, 1025));
    uses(&pool, 2 * u64::from(MAX_RUN));
    heap.free(first);
    assert_eq!(chunk_of(heap.alloc(u64::from(MAX_RUN) * CHUNK).unwrap()), 1);
}

/// No run has the table of the next region in it, and smaller ones take what it leaves over.
#[test]
fn runs_end_where_their_region_ends() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    let placed = runs(&heap, [400, 400, 400, 223, 1]).map(chunk_of);
    assert_eq!(placed, [1, 401, 1025, 801, 1425]);
    uses(&pool, 1424);
    assert_eq!(pool.verify().unwrap().header_chunks, 2);
}

#[test]
fn a_pool_of_two_regions_becomes_smaller_and_grows_again() {
    let pool = dram();
    let root = root(&pool);
    let heap = root.heap();
    let [low, high] = runs(&heap, [u64::from(MAX_RUN), 3]);
    fill(pool.pm(), low.get(), 4 * CHUNK);
    assert_eq!(chunk_of(high), 1025);
    let before = pool.size();
    heap.free(high);
    let generation = load(pool.pm(), GENERATION);
    let report = pool.compact().unwrap();
    assert_eq!((report.before_bytes, report.after_bytes), (before, REGION));
    assert_eq!((pool.size(), pool.pm().len()), (REGION, REGION));
    assert_eq!(report.punched_bytes, 0);
    assert!(load(pool.pm(), GENERATION) > generation);
    uses(&pool, u64::from(MAX_RUN));
    assert!(is_filled(pool.pm(), low.get(), 4 * CHUNK));
    // Its table is made again.
    let again = heap.alloc(2 * CHUNK).unwrap();
    assert_eq!(chunk_of(again), 1025);
    uses(&pool, u64::from(MAX_RUN) + 2);
    assert_eq!(pool.verify().unwrap().header_chunks, 2);
    heap.free(low);
    // The one that stays keeps its region, all of it but what lies behind.
    let report = pool.compact().unwrap();
    assert_eq!(report.after_bytes, REGION + 2 * MIB);
    assert_eq!(report.punched_bytes, REGION + 2 * MIB - 4 * CHUNK);
    uses(&pool, 2);
    heap.free(again);
    assert_eq!(pool.compact().unwrap().after_bytes, INITIAL);
    uses(&pool, 0);
    assert_eq!(pool.idle_bytes(), 0);
    assert_eq!(chunk_of(heap.alloc(CHUNK).unwrap()), 1);
}

#[test]
fn the_end_is_cut_off_and_what_is_free_inside_becomes_holes() {
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let root = root(&pool);
    let heap = root.heap();
    let [a, b, c, d, e, f] = runs(&heap, [3, 1, 2, 25, 1, 40]);
    assert_eq!([a, b, c, d, e, f].map(chunk_of), [1, 4, 5, 7, 32, 33]);
    assert_eq!(pool.size(), 8 * MIB);
    let kept = [(b, 1), (d, 25), (e, 1)];
    for (block, chunks) in kept {
        fill(pool.pm(), block.get(), chunks * CHUNK);
    }
    free(&heap, [a, c, f]);
    uses(&pool, 27);
    assert_eq!(pool.idle_bytes(), pool.info().free_bytes);
    pool.pm().take();
    let report = pool.compact().unwrap();
    // Up to whole steps of growth: chunks 33 to 63 stay, without space behind them.
    let asked = [
        Asked::Commit,
        Asked::Shrink(4 * MIB),
        punch(1, 3),
        punch(5, 2),
        punch(33, 31),
    ];
    assert_eq!(pool.pm().take(), asked);
    assert_eq!(
        (report.before_bytes, report.after_bytes),
        (8 * MIB, 4 * MIB)
    );
    assert_eq!(report.punched_bytes, 36 * CHUNK);
    assert_eq!(pool.idle_bytes(), 0);
    uses(&pool, 27);
    for (block, chunks) in kept {
        assert!(is_filled(pool.pm(), block.get(), chunks * CHUNK));
    }
}

/// What has become a hole gets its space back before it is used, and nothing else asks for any.
#[test]
fn holes_have_space_behind_them_again_when_they_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let root = root(&pool);
    let heap = root.heap();
    let [a, b, c, d] = runs(&heap, [3, 1, 2, 1]);
    free(&heap, [a, c]);
    assert_eq!(pool.compact().unwrap().punched_bytes, 29 * CHUNK);
    pool.pm().take();
    let [first, second] = runs(&heap, [2, 1]);
    assert_eq!((chunk_of(first), chunk_of(second)), (1, 3));
    assert_eq!(pool.pm().take(), [back(1, 2), back(3, 1)]);
    assert_eq!(pool.idle_bytes(), 0);
    heap.free(second);
    assert_eq!(pool.idle_bytes(), CHUNK, "it is no hole any more");
    assert_eq!(heap.alloc(CHUNK).unwrap(), second);
    assert_eq!(pool.pm().take(), []);
    // A run over one chunk that is a hole and one that is none, whichever comes first.
    heap.free(second);
    heap.free(b);
    let [over] = runs(&heap, [3]);
    assert_eq!(chunk_of(over), 3);
    assert_eq!(pool.pm().take(), [back(3, 3)]);
    heap.free(over);
    heap.free(d);
    assert_eq!(pool.idle_bytes(), 4 * CHUNK);
    let report = pool.compact().unwrap();
    // Chunks that are holes already are not asked for again.
    assert_eq!(pool.pm().take(), [punch(3, 3), punch(7, 1)]);
    assert_eq!(report.punched_bytes, 29 * CHUNK);
    uses(&pool, 2);
}

#[test]
fn compacting_what_is_small_already_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let root = root(&pool);
    let heap = root.heap();
    let run = heap.alloc(30 * CHUNK).unwrap();
    let generation = load(pool.pm(), GENERATION);
    for asked in [vec![punch(31, 1)], vec![]] {
        pool.pm().take();
        let report = pool.compact().unwrap();
        assert_eq!(pool.pm().take(), asked);
        assert_eq!(
            (report.before_bytes, report.after_bytes),
            (INITIAL, INITIAL)
        );
        assert_eq!(report.punched_bytes, CHUNK);
    }
    assert_eq!(load(pool.pm(), GENERATION), generation);
    heap.free(run);
    // A smaller pool than a new one there is not.
    assert_eq!(pool.compact().unwrap().after_bytes, INITIAL);
    assert_eq!(load(pool.pm(), GENERATION), generation);
}

/// The file may have been made sparse by a copy, for example.
#[test]
fn in_a_sparse_file_all_that_is_free_may_be_a_hole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    {
        let pool = noting(&path);
        root(&pool).heap().alloc(2 * CHUNK).unwrap();
    }
    for sparse in [false, true] {
        let mut pm = <Noting as Media>::open(&path, INITIAL, &options().media).unwrap();
        pm.sparse = sparse;
        let pool = Pool::open_on(pm, &path).unwrap();
        let free = pool.info().free_bytes;
        assert_eq!(pool.idle_bytes(), if sparse { 0 } else { free });
        let root = pool.open_root("r", None).unwrap();
        pool.pm().take();
        let run = root.heap().alloc(4 * CHUNK).unwrap();
        assert_eq!(chunk_of(run), 3);
        let asked = if sparse { vec![back(3, 4)] } else { vec![] };
        assert_eq!(pool.pm().take(), asked);
        root.heap().free(run);
    }
}

#[test]
fn a_pool_that_cannot_grow_is_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let root = root(&pool);
    let heap = root.heap();
    let run = heap.alloc(31 * CHUNK).unwrap();
    fill(pool.pm(), run.get(), 31 * CHUNK);
    pool.pm().refuse(|asked| matches!(asked, Asked::Grow(_)));
    for bytes in [64, 32_768, CHUNK, 5 * CHUNK] {
        let error = heap.alloc(bytes).unwrap_err();
        assert!(error.to_string().contains("refused"), "{error}");
        assert_eq!(pool.size(), INITIAL);
        uses(&pool, 31);
    }
    pool.pm().allow();
    assert_eq!(chunk_of(heap.alloc(CHUNK).unwrap()), 32);
    assert!(is_filled(pool.pm(), run.get(), 31 * CHUNK));
}

#[test]
fn a_hole_that_gets_no_space_stays_free() {
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let root = root(&pool);
    let heap = root.heap();
    pool.compact().unwrap();
    pool.pm()
        .refuse(|asked| matches!(asked, Asked::Back { .. }));
    for bytes in [64, CHUNK, 3 * CHUNK] {
        assert!(heap.alloc(bytes).is_err());
        uses(&pool, 0);
    }
    pool.pm().allow();
    assert_eq!(chunk_of(heap.alloc(3 * CHUNK).unwrap()), 1);
}

/// Whether a part was punched or not, it has space behind it before it is used.
#[test]
fn holes_that_could_not_be_made_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let pool = noting(&dir.path().join("pool"));
    let root = root(&pool);
    let heap = root.heap();
    let [a, b] = runs(&heap, [2, 1]);
    fill(pool.pm(), b.get(), CHUNK);
    heap.free(a);
    pool.pm()
        .refuse(|asked| matches!(asked, Asked::Punch { .. }));
    let error = pool.compact().unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    pool.pm().take();
    uses(&pool, 1);
    assert_eq!(heap.alloc(2 * CHUNK).unwrap(), a);
    assert_eq!(pool.pm().take(), [back(1, 2)]);
    uses(&pool, 3);
    assert!(is_filled(pool.pm(), b.get(), CHUNK));
}

/// The smaller size is durable before the file is cut. Where one of the two fails the pool goes on,
/// and its next opening cuts the file.
#[test]
fn a_pool_whose_end_cannot_be_cut_off_goes_on() {
    let refusals: [fn(Asked) -> bool; 2] = [
        |asked| asked == Asked::Commit,
        |asked| matches!(asked, Asked::Shrink(_)),
    ];
    for (i, refuse) in refusals.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        let pool = noting(&path);
        let root = root(&pool);
        let heap = root.heap();
        let [kept, gone] = runs(&heap, [4, 40]);
        fill(pool.pm(), kept.get(), 4 * CHUNK);
        heap.free(gone);
        pool.pm().refuse(refuse);
        pool.pm().take();
        let error = pool.compact().unwrap_err().to_string();
        assert!(error.contains("refused"), "{error}");
        assert_eq!(error.contains("committing the new size"), i == 0, "{error}");
        let cut = Asked::Shrink(INITIAL);
        let asked = [&[Asked::Commit][..], &[Asked::Commit, cut]];
        assert_eq!(pool.pm().take(), asked[i]);
        assert_eq!(pool.size(), INITIAL);
        let again = heap.alloc(29 * CHUNK).unwrap();
        assert_eq!(chunk_of(again), 5);
        assert!(pool.size() > INITIAL, "it grew again");
        heap.free(again);
        drop((heap, root, pool));
        let long = std::fs::metadata(&path).unwrap().len();
        let pool = Pool::<Noting>::open(&path, &options()).unwrap();
        let asked = pool.pm().take();
        assert_eq!(
            asked.contains(&Asked::Shrink(pool.size())),
            long > pool.size()
        );
        assert!(is_filled(pool.pm(), kept.get(), 4 * CHUNK));
        uses(&pool, 4);
    }
}

#[test]
fn an_opening_cuts_off_only_what_lies_behind_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    drop(noting(&path));
    let pool = Pool::<Noting>::open(&path, &options()).unwrap();
    let is_cut = |asked: &Asked| matches!(asked, Asked::Shrink(_));
    assert!(!pool.pm().take().iter().any(is_cut));
    drop(pool);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(INITIAL + 4096).unwrap();
    let reader = Pool::<Noting>::open(&path, &with(Access::ReadOnly)).unwrap();
    assert!(!reader.pm().take().iter().any(is_cut));
    drop(reader);
    let pool = Pool::<Noting>::open(&path, &options()).unwrap();
    assert!(pool.pm().take().contains(&Asked::Shrink(INITIAL)));
    uses(&pool, 0);
}

#[test]
fn a_pool_that_is_read_only_keeps_its_space() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    {
        let pool = noting(&path);
        root(&pool).heap().alloc(2 * CHUNK).unwrap();
    }
    let pool = Pool::<Noting>::open(&path, &with(Access::ReadOnly)).unwrap();
    let root = pool.open_root("r", None).unwrap();
    for bytes in [64, CHUNK] {
        let error = root.heap().alloc(bytes).unwrap_err();
        assert!(matches!(error, SpaceError::ReadOnly), "{error}");
    }
    let error = pool.compact().unwrap_err();
    assert!(matches!(error, SpaceError::ReadOnly), "{error}");
    assert_eq!(pool.pm().take(), []);
    assert_eq!(pool.info().used_bytes, 3 * CHUNK);
}

/// A pool in memory takes as much address space as it is given.
#[test]
fn a_full_pool_in_memory_names_its_limit() {
    let pool: Arc<Pool<Dram>> = dram();
    let root = root(&pool);
    let heap = root.heap();
    let mut runs = 0;
    let error = loop {
        match heap.alloc(u64::from(MAX_RUN) * CHUNK) {
            Ok(_) => runs += 1,
            Err(e) => break e,
        }
    };
    assert_eq!(runs, RESERVE / REGION, "one for each region");
    match error {
        SpaceError::Capacity { wanted, capacity } => {
            assert!(
                capacity == RESERVE && wanted > capacity,
                "{wanted} {capacity}"
            );
        }
        other => panic!("{other:?}"),
    }
    uses(&pool, runs * u64::from(MAX_RUN));
}
