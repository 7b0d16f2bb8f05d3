//! Shared parts of the journal's tests: a fake pool with a UUID, and a workload whose recovered
//! image tells whether it is a state that persistent memory could have been left in.
#![allow(dead_code, reason = "each test file uses a part")]

use bristlecone_pmem::cell::PWord;
use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
use bristlecone_pmem::media::{Access, Durability, Journal, LINE, Media, MediaOptions};
use bristlecone_pmem::{CommitError, OpenError};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub const UUID: [u8; 16] = *b"a pool for tests";
/// Superblocks end here.
pub const FIRST_LINE: u64 = 8192 / LINE as u64;
pub const INITIAL: u64 = 256 << 10;

pub fn options(access: Access, durability: Durability) -> MediaOptions {
    MediaOptions {
        access,
        reserve: 64 << 20,
        durability,
        journal_max: 512 << 10,
        ..MediaOptions::default()
    }
}

/// Returns word `word` of line `line` after the superblocks.
pub fn word(pm: &Journal, line: u64, word: usize) -> &PWord {
    let offset = (FIRST_LINE + line) as usize * LINE + word * 8;
    assert!(
        word < 8 && (offset as u64) < pm.len(),
        "line {line} is in the pool"
    );
    // SAFETY: 1. in bounds (just checked) and 8-byte aligned; 2. a `PWord` is an atomic, so shared
    // references are all that is ever made; 3. the mapping outlives the borrow of `pm`.
    unsafe { &*pm.base().add(offset).cast::<PWord>() }
}

/// Writes the UUID into both fake superblocks.
pub fn format(pm: &Journal, uuid: [u8; 16]) {
    for at in [32usize, 4096 + 32] {
        for (i, half) in uuid.chunks(8).enumerate() {
            let value = u64::from_le_bytes(half.try_into().expect("8 bytes"));
            // SAFETY: as in `word`.
            let cell = unsafe { &*pm.base().add(at + i * 8).cast::<PWord>() };
            cell.store(pm, value, Ordering::Relaxed);
            pm.flush_of(cell);
        }
        pm.fence();
    }
}

pub fn create(disk: &FaultDisk, o: &MediaOptions) -> Result<Journal, OpenError> {
    let o = MediaOptions {
        access: Access::Create,
        ..o.clone()
    };
    let pm = Journal::open_on(
        disk.file(Which::Pool),
        disk.file(Which::Journal),
        Path::new("pool"),
        INITIAL,
        &o,
    )?;
    format(&pm, UUID);
    pm.attach(UUID)?;
    Ok(pm)
}

pub fn open_unattached(disk: &FaultDisk, o: &MediaOptions) -> Result<Journal, OpenError> {
    Journal::open_on(
        disk.file(Which::Pool),
        disk.file(Which::Journal),
        Path::new("pool"),
        INITIAL,
        o,
    )
}

pub fn open(disk: &FaultDisk, o: &MediaOptions) -> Result<Journal, OpenError> {
    let pm = open_unattached(disk, o)?;
    pm.attach(UUID)?;
    Ok(pm)
}

/// Lines that each thread of the workload has to itself, spread over pages.
pub const RING: u64 = 40;
const STRIDE: u64 = 23;
/// The line that all threads write in turn.
const SHARED: u64 = 0;

fn ring_line(thread: u64, slot: u64) -> u64 {
    64 + (thread * (RING + 2) + slot) * STRIDE
}

/// Line whose value says how far a thread is: stored after the ring's line is fenced.
fn progress_line(thread: u64) -> u64 {
    ring_line(thread, RING)
}

/// Line that repeats the shared one's value: stored after the shared line is fenced.
fn echo_line(thread: u64) -> u64 {
    ring_line(thread, RING + 1)
}

/// Stores the first word, then the last: a line with a newer last word was never in memory.
fn put(pm: &Journal, line: u64, value: u64) {
    word(pm, line, 0).store(pm, value, Ordering::Release);
    word(pm, line, 7).store(pm, value, Ordering::Release);
    pm.flush_of(word(pm, line, 0));
}

pub fn get(pm: &Journal, line: u64) -> u64 {
    word(pm, line, 0).load(pm, Ordering::Acquire)
}

/// The part of the workload that was acknowledged as durable.
#[derive(Debug, Default)]
pub struct Acknowledged {
    pub steps: Vec<AtomicU64>,
    pub shared: AtomicU64,
}

impl Acknowledged {
    pub fn new(threads: u64) -> Self {
        Self {
            steps: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            shared: AtomicU64::new(0),
        }
    }
}

/// Runs `steps` steps on each of `threads` threads, committing every `commit_every`, from wherever
/// the image is. Ends early when a commit fails. Notes what was acknowledged.
pub fn run(
    pm: &Journal,
    threads: u64,
    steps: u64,
    commit_every: u64,
    acknowledged: &Acknowledged,
) -> Option<CommitError> {
    let turn = Mutex::new(());
    let error = Mutex::new(None);
    let durable = pm.durability() == Durability::Immediate;
    let one = |thread: u64| {
        let from = get(pm, progress_line(thread));
        for step in from + 1..=from + steps {
            put(pm, ring_line(thread, step % RING), step);
            pm.fence();
            put(pm, progress_line(thread), step);
            pm.fence();
            let mut shared = 0;
            if step % 3 == 0 {
                {
                    let _mine = turn.lock().expect("no panics");
                    shared = get(pm, SHARED) + 1;
                    put(pm, SHARED, shared);
                    pm.fence();
                }
                put(pm, echo_line(thread), shared);
                pm.fence();
            }
            if step % commit_every == 0 {
                if let Err(e) = pm.commit() {
                    error.lock().expect("no panics").get_or_insert(e);
                    return;
                }
                if durable {
                    acknowledged.steps[thread as usize].fetch_max(step, Ordering::SeqCst);
                    acknowledged.shared.fetch_max(shared, Ordering::SeqCst);
                }
            }
        }
    };
    if threads == 1 {
        one(0);
    } else {
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || one(thread));
            }
        });
    }
    error.into_inner().expect("no panics")
}

/// Checks a recovered image: nothing acknowledged is missing, and every line is a state that fits
/// all the others. Returns the steps found, all threads together.
pub fn verify(pm: &Journal, threads: u64, acknowledged: &Acknowledged) -> Result<u64, String> {
    let mut lines = vec![SHARED];
    let mut sum = 0;
    let shared = get(pm, SHARED);
    if shared < acknowledged.shared.load(Ordering::SeqCst) {
        return Err(format!(
            "shared counter {shared}, acknowledged {acknowledged:?}"
        ));
    }
    for thread in 0..threads {
        lines.extend((0..RING + 2).map(|slot| ring_line(thread, slot)));
        let done = get(pm, progress_line(thread));
        sum += done;
        let promised = acknowledged.steps[thread as usize].load(Ordering::SeqCst);
        if done < promised {
            return Err(format!(
                "thread {thread}: {done} steps, {promised} acknowledged"
            ));
        }
        for slot in 0..RING {
            let found = get(pm, ring_line(thread, slot));
            // The last step up to `done` that wrote this slot; 0 if none did.
            let least = done.saturating_sub((done + RING - slot) % RING);
            if found != least && found != done + 1 {
                return Err(format!(
                    "thread {thread}: {done} steps done, but ring slot {slot} holds step {found}, not {least}"
                ));
            }
        }
        let echo = get(pm, echo_line(thread));
        if echo > shared {
            return Err(format!(
                "thread {thread} echoes {echo}, the shared counter is {shared}"
            ));
        }
    }
    for line in lines {
        let (first, last) = (get(pm, line), word(pm, line, 7).load(pm, Ordering::Acquire));
        if last > first {
            return Err(format!(
                "line {line} is torn: first word {first}, last {last}"
            ));
        }
    }
    Ok(sum)
}
