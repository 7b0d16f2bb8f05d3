//! What `Pool::verify` says of a pool that is whole, and of one that contradicts itself.

use crate::pool_support::{dram, kind, load, options, store};
use bristlecone_pmem::media::sim::Simulation;
use bristlecone_pmem::media::{Dram, Sim};
use bristlecone_pmem::pool::layout::{CHUNK, CHUNK_TABLE, ChunkUse, SUPERBLOCK_B};
use bristlecone_pmem::pool::{PoolViolation, Root};
use bristlecone_pmem::{Heap, Media, Pool};
use std::path::Path;
use std::sync::Arc;

/// A pool with two roots: a chunk of blocks (chunk 1) and a run (2 to 4) of the first one, which is
/// open, and a run (5 and 6) of the second, which is closed.
struct Fixture {
    pool: Arc<Pool<Dram>>,
    _root: Root<Dram>,
    heap: Heap<Dram>,
}

impl Fixture {
    fn new() -> Self {
        let pool = dram();
        let root = pool.create_root("open", &kind()).unwrap();
        let heap = root.heap();
        heap.alloc(4096).unwrap();
        heap.alloc(3 * CHUNK).unwrap();
        root.publish();
        let closed = pool.create_root("closed", &kind()).unwrap();
        closed.heap().alloc(2 * CHUNK).unwrap();
        closed.publish();
        drop(closed);
        let fixture = Self {
            pool,
            _root: root,
            heap,
        };
        let report = fixture.pool.verify().unwrap();
        assert_eq!(report.owned_chunks, 6);
        assert_eq!((report.idle_chunks, report.ownerless_chunks), (0, 0));
        fixture
    }

    fn use_of(&self, chunk: u64) -> ChunkUse {
        ChunkUse::decode(load(self.pool.pm(), CHUNK_TABLE + chunk * 8)).unwrap()
    }

    /// Verifies it with another word in its chunk table.
    #[track_caller]
    fn with(&self, chunk: u64, word: u64) -> PoolViolation {
        let at = CHUNK_TABLE + chunk * 8;
        let was = load(self.pool.pm(), at);
        store(self.pool.pm(), at, word);
        let violation = self.pool.verify().unwrap_err();
        store(self.pool.pm(), at, was);
        self.pool.verify().unwrap();
        assert_eq!(violation.to_string(), violation.what);
        violation
    }

    #[track_caller]
    fn is_broken(&self, chunk: u64, used: ChunkUse, what: &str) {
        let violation = self.with(chunk, used.encode());
        assert!(violation.what.contains(what), "{violation}");
        assert!(!violation.leak, "{violation}");
    }

    #[track_caller]
    fn leaks(&self, chunk: u64, used: ChunkUse, what: &str) {
        let violation = self.with(chunk, used.encode());
        assert!(violation.what.contains(what), "{violation}");
        assert!(violation.leak, "{violation}");
    }
}

#[test]
fn words_of_chunks_that_cannot_be_are_found() {
    let f = Fixture::new();
    for chunk in [0, 1, 2, 20] {
        let violation = f.with(chunk, load(f.pool.pm(), CHUNK_TABLE + chunk * 8) ^ 1 << 30);
        assert!(
            violation.what.contains(&format!("chunk {chunk}: ")),
            "{violation}"
        );
        assert!(violation.what.contains("fails its check"), "{violation}");
        assert!(!violation.leak);
    }
    let header = "a header where none belongs, or none where one does";
    f.is_broken(0, ChunkUse::Free, header);
    f.is_broken(1, ChunkUse::Header, header);
    f.is_broken(31, ChunkUse::Header, header);
    // A run that would end behind the pool's end, and one that ends with it.
    let run = |chunks| ChunkUse::Run { owner: 0, chunks };
    f.is_broken(2, run(31), "chunk 2: a run that leaves the pool");
    f.leaks(2, run(30), "chunk 5: assigned, and inside a run");
    f.is_broken(2, run(u32::MAX), "chunk 2: a run that leaves the pool");
}

#[test]
fn chunks_that_are_free_and_in_use_are_leaks() {
    let f = Fixture::new();
    let (owner, class) = (0, 5);
    let otherwise = "the free set says otherwise";
    for chunk in [7, 31] {
        f.leaks(chunk, ChunkUse::Blocks { owner, class }, otherwise);
        f.leaks(chunk, ChunkUse::Run { owner, chunks: 1 }, otherwise);
    }
    f.leaks(1, ChunkUse::Free, "chunk 1: its word says Free");
    f.leaks(5, ChunkUse::Free, "chunk 5: its word says Free");
    // Runs that are longer or shorter than the chunks that were taken for them.
    let run = |chunks| ChunkUse::Run { owner: 1, chunks };
    assert_eq!(f.use_of(5), run(2));
    f.leaks(5, run(3), "chunk 7: its word says Free");
    f.leaks(5, run(1), "chunk 6: its word says Free");
    f.leaks(
        6,
        ChunkUse::Blocks { owner, class },
        "chunk 6: assigned, and inside a run",
    );
    f.leaks(6, run(1), "chunk 6: assigned, and inside a run");
}

#[test]
fn allocators_know_exactly_the_chunks_of_their_roots() {
    let f = Fixture::new();
    let ChunkUse::Blocks { class, .. } = f.use_of(1) else {
        panic!("{:?}", f.use_of(1));
    };
    let otherwise = "chunk 1 of root slot 0: its allocator cuts it otherwise";
    for class in [class - 1, class + 1] {
        f.leaks(1, ChunkUse::Blocks { owner: 0, class }, otherwise);
    }
    f.leaks(
        1,
        ChunkUse::Run {
            owner: 0,
            chunks: 1,
        },
        otherwise,
    );
    // A chunk of its own that is another root's.
    let other = ChunkUse::Blocks { owner: 1, class };
    f.leaks(
        1,
        other,
        "its allocator knows 2 chunks, 1 are assigned to it",
    );
    let mine = ChunkUse::Run {
        owner: 0,
        chunks: 2,
    };
    f.leaks(
        5,
        mine,
        "chunk 5 of root slot 0: its allocator does not know it",
    );
    // Chunks with activated blocks are another allocator's.
    let activated = ChunkUse::Activated { owner: 1, class };
    f.leaks(
        1,
        activated,
        "its allocator knows 2 chunks, 1 are assigned to it",
    );
}

#[test]
fn chunks_without_a_live_block_are_counted() {
    let f = Fixture::new();
    let pool = &f.pool;
    let second = pool.create_root("second", &kind()).unwrap();
    let heap = second.heap();
    let blocks = [64, 1024, 32_768].map(|bytes| heap.alloc(bytes).unwrap());
    assert_eq!(pool.verify().unwrap().idle_chunks, 0);
    for (i, block) in blocks.into_iter().enumerate() {
        heap.free(block);
        assert_eq!(pool.verify().unwrap().idle_chunks, i as u64 + 1);
    }
    // Of another root as well.
    let block = f.heap.alloc(64).unwrap();
    assert_eq!(pool.verify().unwrap().idle_chunks, 3);
    f.heap.free(block);
    let report = pool.verify().unwrap();
    assert_eq!((report.idle_chunks, report.owned_chunks), (4, 10));
    assert_eq!(report.ownerless_chunks, 0, "it is being made");
    drop((heap, second));
    let report = pool.verify().unwrap();
    assert_eq!((report.idle_chunks, report.ownerless_chunks), (1, 3));
}

#[test]
fn both_copies_of_the_superblock_are_whole_and_equal() {
    let pool = dram();
    for (name, at) in [("A", 0), ("B", SUPERBLOCK_B)] {
        // The generation, with which its checksum is wrong.
        let was = load(pool.pm(), at + 16);
        store(pool.pm(), at + 16, was + 1);
        let violation = pool.verify().unwrap_err();
        assert!(
            violation.what.contains(&format!("superblock copy {name}")),
            "{violation}"
        );
        assert!(!violation.leak);
        store(pool.pm(), at + 16, was);
        pool.verify().unwrap();
    }
}

#[test]
fn the_superblock_says_how_long_the_pool_is() {
    let pool = dram();
    let size = pool.size();
    // Behind the pool's back.
    pool.pm().grow(size + CHUNK).unwrap();
    let violation = pool.verify().unwrap_err();
    let (has, says) = (size + CHUNK, size);
    assert_eq!(
        violation.what,
        format!("the pool has {has} bytes, its superblock says {says}")
    );
}

/// The fault is one that the explorer of crash states plants.
#[test]
fn a_chunk_that_is_given_back_in_memory_only_is_a_leak() {
    let simulation = Simulation::new(64 << 20);
    let _attached = simulation.attach();
    let pool = Pool::<Sim>::create(Path::new("simulated"), &options()).unwrap();
    let root = pool.create_root("r", &kind()).unwrap();
    let heap = root.heap();
    let [low, high] = [0; 2].map(|_| heap.alloc(3 * CHUNK).unwrap());
    heap.free(low);
    pool.verify().unwrap();
    simulation.plant(Some("pool-release-lost"));
    heap.free(high);
    let violation = pool.verify().unwrap_err();
    assert!(
        violation.what.contains("the free set says otherwise"),
        "{violation}"
    );
    assert!(violation.leak);
}
