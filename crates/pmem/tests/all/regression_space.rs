//! Faults of space, names and copies while several threads use one pool, with a test for each.

use bristlecone_pmem::media::{Access, Dram, Journal, Mapped, MediaOptions};
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::pool::{BackupError, DataKind, Root, RootError, RootKind};
use bristlecone_pmem::{Media, PWord, Pool, PoolOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

fn options() -> PoolOptions {
    let mut options = PoolOptions::default();
    options.media.reserve = 1 << 30;
    options
}

fn kind() -> RootKind {
    RootKind {
        design: "t".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: 256,
    }
}

fn dram() -> Arc<Pool<Dram>> {
    Pool::create(Path::new("dram"), &options()).unwrap()
}

/// Returns an empty published root.
fn root<M: Media>(pool: &Arc<Pool<M>>, name: &str) -> Root<M> {
    let root = pool.create_root(name, &kind()).unwrap();
    root.heap().begin_recovery();
    root.heap().finish_recovery();
    root.publish();
    root
}

/// Does `work` `rounds` times on another thread, and `beside` again and again on this one
/// meanwhile.
fn meanwhile(rounds: usize, work: impl Fn() + Send + Sync, mut beside: impl FnMut()) {
    let done = AtomicBool::new(false);
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            scopeguard::defer!(done.store(true, Ordering::Relaxed));
            for _ in 0..rounds {
                if failed.load(Ordering::Relaxed) {
                    break;
                }
                work();
            }
        });
        while !done.load(Ordering::Relaxed) {
            let failing = scopeguard::guard((), |()| failed.store(true, Ordering::Relaxed));
            beside();
            scopeguard::ScopeGuard::into_inner(failing);
        }
    });
}

/// Names were compared with those of published roots only. Two threads that created a root of one
/// name at the same time both got one; the next opening found the first, and what had been
/// acknowledged on the second was gone.
#[test]
fn a_name_that_is_being_created_is_taken() {
    let pool = dram();
    let first = pool.create_root("a", &kind()).unwrap();
    assert!(matches!(pool.create_root("a", &kind()), Err(RootError::Busy(name)) if name == "a"));
    let other = pool.create_root("b", &kind()).unwrap();
    drop(first);
    let first = pool.create_root("a", &kind()).unwrap();
    first.publish();
    assert!(matches!(
        pool.create_root("a", &kind()),
        Err(RootError::Exists(_))
    ));
    other.publish();
    assert_eq!(pool.roots().len(), 2);
}

/// `compact` listed the open allocators, then went through them without a lock. A root that was
/// closed and opened again in between had a new allocator, which took its chunks over, and from the
/// old one `compact` still gave a chunk away as empty: two roots then wrote to it.
#[test]
fn compacting_leaves_alone_what_a_reopened_root_holds() {
    let pool = dram();
    // Allocators that `compact` goes through first, so that there is time.
    let _others: Vec<_> = (0..40)
        .map(|i| {
            let root = root(&pool, &format!("other {i}"));
            let heap = root.heap();
            (root, heap)
        })
        .collect();
    let big = root(&pool, "big");
    let big = big.heap();
    drop(root(&pool, "small"));
    meanwhile(
        1_000,
        || {
            pool.compact().unwrap();
        },
        || {
            let root = pool.open_root("small", None).unwrap();
            let heap = root.heap();
            heap.begin_recovery();
            heap.finish_recovery();
            let small = heap.alloc(256).unwrap();
            thread::sleep(Duration::from_micros(20));
            // A chunk each: one that `compact` has given away is taken first.
            for chunk in [40_000, 40_000].map(|bytes| big.alloc(bytes).unwrap()) {
                assert_ne!(
                    small.get() / CHUNK,
                    chunk.get() / CHUNK,
                    "a chunk of two roots"
                );
                big.free(chunk);
            }
            heap.free(small);
        },
    );
}

/// `info` read the size, the free chunks and the free blocks one after the other; when the pool
/// grew in between, a subtraction went below zero.
#[test]
fn what_a_growing_pool_says_of_itself_adds_up() {
    let pool = dram();
    let root = root(&pool, "r");
    let heap = root.heap();
    meanwhile(
        300,
        || {
            let blocks: Vec<_> = (0..300).map(|_| heap.alloc(32_768).unwrap()).collect();
            blocks.into_iter().for_each(|block| heap.free(block));
            pool.compact().unwrap();
        },
        || {
            let info = pool.info();
            assert!(info.used_bytes <= info.pool_bytes, "{info:?}");
            assert_eq!(
                info.used_bytes + info.free_bytes,
                info.pool_bytes,
                "{info:?}"
            );
        },
    );
}

/// A backup read up to the length that the pool had when it began. `compact` cut the file shorter
/// meanwhile, and the read was a bus error.
#[test]
fn a_pool_can_be_compacted_while_it_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::<Mapped>::create(&dir.path().join("pool"), &options()).unwrap();
    let root = root(&pool, "r");
    let heap = root.heap();
    let to = dir.path().join("backup");
    meanwhile(
        150,
        || {
            let block = heap.alloc(24 << 20).unwrap();
            heap.free(block);
            pool.compact().unwrap();
        },
        || {
            let bytes = pool.backup(&to).unwrap();
            assert_eq!(std::fs::metadata(&to).unwrap().len(), bytes);
            std::fs::remove_file(&to).unwrap();
        },
    );
}

/// All backups to one name used one temporary file, and a refused one had emptied it first: the one
/// under way then named a copy whose beginning was zeros. The refused one also left the file
/// behind.
#[test]
fn a_backup_that_is_refused_does_not_touch_the_one_under_way() {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::<Mapped>::create(&dir.path().join("pool"), &options()).unwrap();
    let root = root(&pool, "r");
    let heap = root.heap();
    let block = heap.alloc(30 << 20).unwrap();
    let words = || {
        (0..30 << 17)
            .step_by(4096)
            .map(|i| (i, block.get() + i * 8))
    };
    // SAFETY: the words are inside the block, which no other thread has.
    let word = |at: u64| unsafe {
        &*pool
            .pm()
            .base()
            .add(at as usize)
            .cast::<bristlecone_pmem::PWord>()
    };
    for (i, at) in words() {
        word(at).publish(pool.pm(), i + 1);
    }
    let to = dir.path().join("backup");
    for round in 0..12 {
        let start = Barrier::new(2);
        let backup = |wait: u64| {
            start.wait();
            thread::sleep(Duration::from_millis(wait));
            pool.backup(&to)
        };
        let results = thread::scope(|scope| {
            let other = scope.spawn(|| backup(8 * round));
            [backup(0), other.join().unwrap()]
        });
        let made = results.iter().filter(|result| result.is_ok()).count();
        assert_eq!(made, 1, "{results:?}");
        for result in &results {
            assert!(
                matches!(
                    result,
                    Ok(_) | Err(BackupError::Busy | BackupError::Exists(_))
                ),
                "{result:?}"
            );
        }
        let bytes = std::fs::read(&to).unwrap();
        for (i, at) in words() {
            let at = at as usize;
            assert_eq!(bytes[at..at + 8], (i + 1).to_le_bytes(), "word {i}");
        }
        std::fs::remove_file(&to).unwrap();
        let left: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["pool"]);
    }
}

/// Searches of number trees are not pinned, so one may still be on its way to a leaf when the part
/// of the file that held it is cut off, even when the file has grown again since (but not that
/// far), or when it has become a hole. It must find memory there, whatever it holds: growing once
/// mapped the file 64 MiB ahead, over that memory, where a load past the file's end was SIGBUS.
fn late_loads_find_memory<M: Media>(dir: &Path) {
    const MIB: u64 = 1 << 20;
    let options = MediaOptions {
        access: Access::Create,
        reserve: 1 << 30,
        ..MediaOptions::default()
    };
    let path = dir.join("medium");
    let pm = M::open(&path, 2 * MIB, &options).unwrap();
    pm.attach([7; 16]).unwrap();
    let word = |at: u64| {
        assert_eq!(at % 8, 0);
        // SAFETY: 1. inside what has been part of the medium; 2. aligned; 3. valid for any bits.
        unsafe { &*pm.base().wrapping_add(at as usize).cast::<PWord>() }
    };
    let load = |at| word(at).load(&pm, Ordering::Relaxed);
    pm.grow(40 * MIB).unwrap();
    for at in (2..40).map(|i| i * MIB) {
        word(at).publish(&pm, at);
    }
    pm.shrink(10 * MIB).unwrap();
    assert_eq!(load(30 * MIB), 0, "cut off");
    pm.grow(12 * MIB).unwrap();
    assert_eq!(load(30 * MIB), 0, "not grown back as far");
    assert_eq!(load(11 * MIB), 0, "grown back: zeros");
    assert_eq!(load(9 * MIB), 9 * MIB, "never cut");
    pm.punch(4 * MIB, MIB).unwrap();
    assert_eq!(load(4 * MIB), 0, "a hole");
    pm.back(4 * MIB, MIB).unwrap();
    for at in [4 * MIB, 11 * MIB] {
        word(at).publish(&pm, at + 1);
    }
    pm.grow(44 * MIB).unwrap();
    assert_eq!(load(30 * MIB), 0, "new space is zero");
    word(30 * MIB).publish(&pm, 31);
    pm.sync().unwrap();
    drop(pm);
    let bytes = std::fs::read(&path).unwrap();
    let at = |at: u64| u64::from_le_bytes(bytes[at as usize..][..8].try_into().unwrap());
    assert_eq!(bytes.len() as u64, 44 * MIB);
    assert_eq!(
        [
            at(3 * MIB),
            at(4 * MIB),
            at(11 * MIB),
            at(30 * MIB),
            at(31 * MIB)
        ],
        [3 * MIB, 4 * MIB + 1, 11 * MIB + 1, 31, 0],
        "stores reach the file wherever it was cut, punched and grown"
    );
}

#[test]
fn late_loads_find_memory_on_mapped() {
    late_loads_find_memory::<Mapped>(tempfile::tempdir().unwrap().path());
}

#[test]
fn late_loads_find_memory_on_tmpfs() {
    let tmpfs = Path::new("/dev/shm");
    if tmpfs.is_dir() {
        late_loads_find_memory::<Mapped>(tempfile::tempdir_in(tmpfs).unwrap().path());
    }
}

#[test]
fn late_loads_find_memory_on_the_journal() {
    late_loads_find_memory::<Journal>(tempfile::tempdir().unwrap().path());
}
