//! Long runs of lines, which the journal writes to the pool file itself: after any power cut, each
//! block that is led to has what was written to it.

use crate::journal_support::{create, open, options};
use bristlecone_pmem::cell::PWord;
use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
use bristlecone_pmem::media::journal::{Site, Storage};
use bristlecone_pmem::media::{Access, Durability, Journal, LINE, Media, MediaOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Each thread has keys, and blocks that these lead to in turn.
const KEYS: u64 = 3;
const BLOCKS: u64 = 6;
const BLOCK_LINES: u64 = 1_500;
/// The threads' blocks begin here, behind superblocks and pointers.
const AT: u64 = 128 << 10;
const THREADS: u64 = 2;
const POOL: u64 = 2 << 20;

fn cell(pm: &Journal, offset: u64) -> &PWord {
    assert!(offset.is_multiple_of(8) && offset < pm.len());
    // SAFETY: 1. in bounds and aligned (just checked); 2. a `PWord` is an atomic, so shared
    // references are all that is ever made; 3. the mapping outlives the borrow of `pm`.
    unsafe { &*pm.base().add(offset as usize).cast::<PWord>() }
}

fn pointer(pm: &Journal, thread: u64, key: u64) -> &PWord {
    cell(pm, (64 << 10) + (thread * KEYS + key) * LINE as u64)
}

fn block(thread: u64, i: u64) -> u64 {
    AT + (thread * BLOCKS + i) * BLOCK_LINES * LINE as u64
}

/// A pointer: which content, in which block, and its lines.
fn encode(id: u64, block: u64, lines: u64) -> u64 {
    (id << 32) | (block << 16) | lines
}

fn decode(word: u64) -> (u64, u64, u64) {
    (word >> 32, (word >> 16) & 0xFFFF, word & 0xFFFF)
}

fn content(id: u64, word: u64) -> u64 {
    ((id << 20) | word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Puts new values until a commit fails, or so many are there. Notes what was acknowledged.
fn put(pm: &Journal, thread: u64, puts: u64, acknowledged: &[AtomicU64], rng: &mut StdRng) {
    let durable = pm.durability() == Durability::Immediate;
    // How much was captured when each block was freed.
    let mut freed = [0; BLOCKS as usize];
    let load = |key| pointer(pm, thread, key).load(pm, Ordering::Relaxed);
    let mut id = (0..KEYS).map(|key| decode(load(key)).0).max().unwrap_or(0);
    for _ in 0..puts {
        id += 1;
        let live: Vec<u64> = (0..KEYS).map(load).filter(|word| *word != 0).collect();
        let live: Vec<u64> = live.into_iter().map(|word| decode(word).1).collect();
        let free: Vec<u64> = (0..BLOCKS).filter(|block| !live.contains(block)).collect();
        let i = free[rng.random_range(0..free.len())];
        let key = rng.random_range(0..KEYS);
        let lines = match rng.random_range(0..4) {
            0 => rng.random_range(1..20),
            _ => rng.random_range(100..=BLOCK_LINES),
        };
        let start = block(thread, i);
        for word in 8..lines * 8 {
            cell(pm, start + word * 8).store(pm, content(id, word), Ordering::Relaxed);
        }
        let at = cell(pm, start).addr();
        cell(pm, start).store(pm, id, Ordering::Relaxed);
        pm.flush_fresh(at, lines as usize * LINE, freed[i as usize]);
        pm.fence();
        let (before, old, _) = decode(load(key));
        pointer(pm, thread, key).publish(pm, encode(id, i, lines));
        if before != 0 {
            freed[old as usize] = pm.captured();
        }
        if rng.random_bool(0.6) {
            if pm.commit().is_err() {
                return;
            }
            if durable {
                let slot = &acknowledged[(thread * KEYS + key) as usize];
                slot.store(id, Ordering::SeqCst);
            }
        }
    }
}

fn verify(pm: &Journal, acknowledged: &[AtomicU64], what: &str) {
    for thread in 0..THREADS {
        for key in 0..KEYS {
            let (id, i, lines) = decode(pointer(pm, thread, key).load(pm, Ordering::Relaxed));
            let promised = acknowledged[(thread * KEYS + key) as usize].load(Ordering::SeqCst);
            assert!(
                id >= promised,
                "{what}: {thread}/{key} has {id}, {promised} was durable"
            );
            if id == 0 {
                continue;
            }
            let start = block(thread, i);
            let head = cell(pm, start).load(pm, Ordering::Relaxed);
            assert_eq!(head, id, "{what}: the head of {thread}/{key}");
            for word in 8..lines * 8 {
                let found = cell(pm, start + word * 8).load(pm, Ordering::Relaxed);
                assert_eq!(
                    found,
                    content(id, word),
                    "{what}: word {word} of {thread}/{key}, id {id}"
                );
            }
        }
    }
}

/// One pool's life of several cuts. Returns the bytes that were written directly.
fn life(seed: u64) -> u64 {
    let rng = &mut StdRng::seed_from_u64(seed);
    let durability = match rng.random_range(0..5) {
        0 => Durability::None,
        1 => Durability::Interval(Duration::from_millis(1)),
        _ => Durability::Immediate,
    };
    let o = options(Access::ReadWrite, durability);
    let acknowledged: Vec<_> = (0..THREADS * KEYS).map(|_| AtomicU64::new(0)).collect();
    let mut disk = FaultDisk::new(seed);
    let pm = create(&disk, &o).expect("creates");
    pm.grow(POOL).expect("grows");
    // A frame says so.
    cell(&pm, POOL - 8).publish(&pm, 1);
    pm.sync().expect("syncs");
    drop(pm);
    let mut direct = 0;
    for cut in 0..8 {
        let what = format!("seed {seed}, cut {cut}");
        if rng.random_bool(0.3) {
            disk.cut_after(rng.random_range(1..12));
        }
        if let Ok(pm) = open(&disk, &o) {
            verify(&pm, &acknowledged, &what);
            if !disk.is_cut() {
                disk.cut_after(rng.random_range(1..200));
            }
            let threads = rng.random_range(1..=THREADS);
            let checkpoints = rng.random_bool(0.5);
            let working = AtomicBool::new(true);
            std::thread::scope(|scope| {
                if checkpoints {
                    scope.spawn(|| {
                        while working.load(Ordering::SeqCst) && pm.sync().is_ok() {
                            std::thread::yield_now();
                        }
                    });
                }
                scopeguard::defer!(working.store(false, Ordering::SeqCst));
                let all: Vec<_> = (0..threads)
                    .map(|thread| {
                        let (pm, acknowledged) = (&pm, &acknowledged);
                        let mut rng = StdRng::seed_from_u64(rng.random());
                        scope.spawn(move || put(pm, thread, 60, acknowledged, &mut rng))
                    })
                    .collect();
                all.into_iter()
                    .for_each(|one| one.join().expect("no panics"));
            });
            direct += pm.stats().direct_bytes;
        }
        if !disk.is_cut() {
            disk.cut_now();
        }
        if rng.random_bool(0.2) {
            disk = disk.after_kill(rng.random());
            if let Ok(pm) = open(&disk, &o) {
                verify(&pm, &acknowledged, &format!("{what}, killed"));
                disk.cut_after(rng.random_range(1..40));
                put(&pm, 0, 20, &acknowledged, rng);
            }
            disk.cut_now();
        }
        disk = disk.restart(rng.random());
    }
    let pm = open(&disk, &o).expect("opens after the last cut");
    verify(&pm, &acknowledged, &format!("seed {seed}, at the end"));
    direct
}

#[test]
fn what_is_led_to_after_a_cut_is_whole() {
    let lives = 60;
    let direct: u64 = std::thread::scope(|scope| {
        let halves: Vec<_> = (0..2)
            .map(|half| scope.spawn(move || (0..lives).map(|i| life(i * 2 + half)).sum::<u64>()))
            .collect();
        let done = halves
            .into_iter()
            .map(|half| half.join().expect("no violation"));
        done.sum()
    });
    assert!(direct > 50 << 20, "{direct} bytes were written directly");
}

#[test]
fn long_blocks_are_written_once_and_short_ones_are_in_the_journal() {
    let disk = FaultDisk::new(1);
    let o = options(Access::ReadWrite, Durability::Immediate);
    let pm = create(&disk, &o).expect("creates");
    pm.grow(POOL).expect("grows");
    // A frame says so.
    cell(&pm, POOL - 8).publish(&pm, 1);
    pm.sync().expect("syncs");
    let before = pm.stats();
    let bytes = 90_000 / LINE * LINE;
    let write = |len: usize| {
        for at in (AT..AT + len as u64).step_by(8) {
            cell(&pm, at).store(&pm, at, Ordering::Relaxed);
        }
        pm.flush_fresh(cell(&pm, AT).addr(), len, 0);
        pm.fence();
        pm.commit().expect("commits");
    };
    write(bytes);
    let after = pm.stats();
    assert_eq!(after.direct_bytes - before.direct_bytes, bytes as u64);
    assert!(
        after.frame_bytes - before.frame_bytes < 8 << 10,
        "{after:?}"
    );
    write(20_000);
    let short = pm.stats();
    assert_eq!(short.direct_bytes, after.direct_bytes, "not worth a sync");
    assert!(
        short.frame_bytes - after.frame_bytes > 20_000 - LINE as u64,
        "{short:?}"
    );
    // The checkpoint has nothing more to write of the long one.
    let pages = pm.stats().pages;
    write(bytes);
    pm.sync().expect("syncs");
    assert!(pm.stats().pages - pages < 12, "{:?}", pm.stats());
}

/// A file of which a failed write-back is told to each handle once, as Linux does, and whose lost
/// writes stay lost.
struct Forgetful {
    file: Arc<dyn Storage>,
    shared: Arc<Shared>,
    /// The errors that this handle was told of.
    told: AtomicU64,
    /// It is the medium's first handle, which checkpoints use.
    first: bool,
}

#[derive(Default)]
struct Shared {
    errors: AtomicU64,
    /// The next writes through the first handle are lost.
    losing: AtomicBool,
    /// Called before the first handle is synced, once.
    before_sync: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Forgetful {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forgetful").finish_non_exhaustive()
    }
}

impl Storage for Forgetful {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        if self.first && self.shared.losing.load(Ordering::SeqCst) {
            self.shared.errors.fetch_add(1, Ordering::SeqCst);
            return Ok(bytes.len());
        }
        self.file.write_at(offset, bytes)
    }

    fn sync_at(&self, site: Site) -> io::Result<()> {
        if self.first {
            let before = self.shared.before_sync.lock().expect("no panics").take();
            if let Some(before) = before {
                before();
            }
        }
        let errors = self.shared.errors.load(Ordering::SeqCst);
        if self.told.swap(errors, Ordering::SeqCst) < errors {
            return Err(io::Error::other("a write was lost"));
        }
        self.file.sync_at(site)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8], site: Site) -> io::Result<()> {
        self.file.write_durable_at(offset, bytes, site)
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        self.file.allocate(from, to)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }

    fn another(&self) -> io::Result<Arc<dyn Storage>> {
        Ok(Arc::new(Self {
            file: self.file.another()?,
            shared: Arc::clone(&self.shared),
            told: AtomicU64::new(self.shared.errors.load(Ordering::SeqCst)),
            first: false,
        }))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch(offset, len)
    }
}

/// A direct run's sync was told of the error that a checkpoint's was to be told of, whose head then
/// moved past frames that the file lacked.
#[test]
fn a_checkpoint_learns_of_its_own_lost_writes_although_a_direct_run_is_synced_meanwhile() {
    let disk = FaultDisk::new(1);
    let o = options(Access::ReadWrite, Durability::Immediate);
    let pm = create(&disk, &o).expect("creates");
    pm.grow(POOL).expect("grows");
    cell(&pm, POOL - 8).publish(&pm, 1);
    pm.sync().expect("syncs");
    drop(pm);

    let shared = Arc::new(Shared::default());
    let pool = Forgetful {
        file: disk.file(Which::Pool),
        shared: Arc::clone(&shared),
        told: AtomicU64::new(0),
        first: true,
    };
    let journal = disk.file(Which::Journal);
    let pm = Journal::open_on(Arc::new(pool), journal, Path::new("pool"), POOL, &o);
    let pm = Arc::new(pm.expect("opens"));
    pm.attach(crate::journal_support::UUID).expect("attaches");
    // Acknowledged, and in the journal alone.
    cell(&pm, AT).publish(&*pm, 4711);
    pm.commit().expect("commits");
    shared.losing.store(true, Ordering::SeqCst);
    let other = Arc::clone(&pm);
    let put = move || {
        let ended = std::thread::spawn(move || {
            let start = AT + 4096;
            for at in (start..start + 90_000 / 8 * 8).step_by(8) {
                cell(&other, at).store(&*other, at, Ordering::Relaxed);
            }
            other.flush_fresh(cell(&other, start).addr(), 90_000, 0);
            other.fence();
            let _ = other.commit();
        });
        ended.join().expect("no panics");
    };
    *shared.before_sync.lock().expect("no panics") = Some(Box::new(put));
    assert!(pm.sync().is_err(), "the checkpoint's write is lost");
    drop(pm);
    let disk = disk.after_kill(3);
    let pm = open(&disk, &o).expect("opens");
    let found = cell(&pm, AT).load(&pm, Ordering::Relaxed);
    assert_eq!(found, 4711, "it was acknowledged");
}

/// A pool with long chunks, and its disk.
fn with_long_chunks(seed: u64) -> (FaultDisk, MediaOptions, Journal) {
    let disk = FaultDisk::new(seed);
    let o = MediaOptions {
        journal_max: 64 << 20,
        ..options(Access::ReadWrite, Durability::Immediate)
    };
    let pm = create(&disk, &o).expect("creates");
    pm.grow(POOL).expect("grows");
    // A frame says so.
    cell(&pm, POOL - 8).publish(&pm, 1);
    pm.sync().expect("syncs");
    (disk, o, pm)
}

/// Stores to all words of these lines, and flushes them as a fresh block's.
fn store_fresh(pm: &Journal, first: u64, lines: u64, value: u64, since: u64) {
    let (from, len) = (first * LINE as u64, lines as usize * LINE);
    for at in (from..from + len as u64).step_by(8) {
        cell(pm, at).store(pm, value + at, Ordering::Relaxed);
    }
    pm.flush_fresh(cell(pm, from).addr(), len, since);
    pm.fence();
}

#[test]
fn a_long_run_is_in_the_pool_file_where_it_belongs() {
    let (disk, o, pm) = with_long_chunks(1);
    let before = disk.bytes(Which::Pool);
    let (first, lines) = (AT / LINE as u64 + 7, 1_500);
    // Short runs before and behind it stay in the journal.
    cell(&pm, AT).store(&pm, 1, Ordering::Relaxed);
    pm.flush_of(cell(&pm, AT));
    store_fresh(&pm, first + lines + 9, 100, 5, 0);
    store_fresh(&pm, first, lines, 3, 0);
    pm.commit().expect("commits");
    assert_eq!(pm.stats().direct_bytes, lines * LINE as u64);
    let after = disk.bytes(Which::Pool);
    let (from, end) = (first as usize * LINE, (first + lines) as usize * LINE);
    assert!(before[..from] == after[..from] && before[end..] == after[end..]);
    for at in (from..end).step_by(8) {
        let found = u64::from_le_bytes(after[at..at + 8].try_into().expect("8 bytes"));
        assert_eq!(found, 3 + at as u64);
    }
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &o).expect("opens");
    for (first, lines, value) in [(first, lines, 3), (first + lines + 9, 100, 5)] {
        let from = first * LINE as u64;
        for at in (from..from + lines * LINE as u64).step_by(8) {
            assert_eq!(cell(&pm, at).load(&pm, Ordering::Relaxed), value + at);
        }
    }
    assert_eq!(cell(&pm, AT).load(&pm, Ordering::Relaxed), 1);
}

#[test]
fn long_runs_are_written_directly_if_they_are_worth_a_sync() {
    let (_disk, _, pm) = with_long_chunks(2);
    let first = AT / LINE as u64;
    // 64 KiB together, a line less, and as much of runs that are too short.
    for (runs, direct) in [
        (vec![1024], 1024),
        (vec![1023], 0),
        (vec![128, 896], 1024),
        (vec![127, 897], 0),
        (vec![127, 1024], 1024),
    ] {
        let before = pm.stats().direct_bytes;
        let mut at = first;
        for lines in &runs {
            store_fresh(&pm, at, *lines, 1, 0);
            at += lines + 1;
        }
        pm.commit().expect("commits");
        let written = pm.stats().direct_bytes - before;
        assert_eq!(written, direct * LINE as u64, "{runs:?}");
    }
    // Only when what had freed it was durable before.
    let before = pm.stats().direct_bytes;
    store_fresh(&pm, first, 1024, 1, pm.captured());
    pm.commit().expect("commits");
    let after = pm.stats().direct_bytes;
    assert_eq!(after - before, 1 << 16);
    cell(&pm, AT - 8).publish(&pm, 1);
    store_fresh(&pm, first, 1024, 1, pm.captured());
    pm.commit().expect("commits");
    assert_eq!(pm.stats().direct_bytes, after);
}

/// A checkpoint moves the head past frames without lines, too.
#[test]
fn frames_of_direct_runs_alone_are_let_go() {
    let (disk, o, pm) = with_long_chunks(3);
    store_fresh(&pm, AT / LINE as u64, 1024, 1, 0);
    pm.commit().expect("commits");
    assert_eq!(pm.ahead(), Some(0), "the pool file has it");
    let checkpoints = pm.stats().checkpoints;
    pm.sync().expect("syncs");
    assert_eq!(pm.stats().checkpoints - checkpoints, 1);
    pm.sync().expect("syncs");
    assert_eq!(pm.stats().checkpoints - checkpoints, 1, "there was nothing");
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &o).expect("opens");
    assert_eq!(pm.recovery().batches_replayed, 0);
    assert_eq!(cell(&pm, AT).load(&pm, Ordering::Relaxed), 1 + AT);
}

/// A checkpoint is about to write an older state of the page.
#[test]
fn a_run_with_a_page_that_a_checkpoint_is_writing_goes_into_the_journal() {
    let page_lines = 64;
    let page = 100;
    for (first, lines, direct) in [
        (page * page_lines, 1024, false),
        (page * page_lines + 63, 1024, false),
        (page * page_lines + 64, 1024, true),
        (page * page_lines - 1023, 1024, false),
        (page * page_lines - 1024, 1024, true),
        (page * page_lines - 500, 1024, false),
    ] {
        let (disk, o, pm) = with_long_chunks(4);
        drop(pm);
        let shared = Arc::new(Shared::default());
        let pool = Forgetful {
            file: disk.file(Which::Pool),
            shared: Arc::clone(&shared),
            told: AtomicU64::new(0),
            first: true,
        };
        let journal = disk.file(Which::Journal);
        let pm = Journal::open_on(Arc::new(pool), journal, Path::new("pool"), POOL, &o);
        let pm = Arc::new(pm.expect("opens"));
        pm.attach(crate::journal_support::UUID).expect("attaches");
        cell(&pm, page * 4096 + 8).publish(&*pm, 9);
        pm.commit().expect("commits");
        let other = Arc::clone(&pm);
        let put = move || {
            let range = page * 4096..(page + 1) * 4096;
            let evicted = other.evict(std::slice::from_ref(&range), &|_| true);
            let evicted = evicted.expect("tries");
            assert_eq!((evicted.bytes, evicted.dirty), (0, 4096));
            let before = other.stats().direct_bytes;
            store_fresh(&other, first, lines, 1, 0);
            other.commit().expect("commits");
            let written = other.stats().direct_bytes - before;
            assert_eq!(written > 0, direct, "{lines} lines from line {first} on");
        };
        *shared.before_sync.lock().expect("no panics") = Some(Box::new(put));
        pm.sync().expect("syncs");
        assert!(shared.before_sync.lock().expect("no panics").is_none());
        drop(pm);
        let pm = open(&disk.restart_keeping(|_, _| false), &o).expect("opens");
        for line in first..first + lines {
            let at = line * LINE as u64;
            assert_eq!(cell(&pm, at).load(&pm, Ordering::Relaxed), 1 + at);
        }
    }
}
