//! The journal medium by itself: runs of lines that are flushed in all ways, fenced, committed.
//!
//! ```text
//! thread t, step s: store s into runs of lines of its own; flush the runs whole, in pieces, again;
//!                   fence; at times commit
//! line = s | line number | zeros | s       the first word is stored first, the last word last
//! ```
//!
//! What is found has to be the memory after some fence F of each thread: every line has what it had
//! when it was last captured up to F, or what was stored later and before the next fence. F is not
//! before the last acknowledged fence.

use super::DiskSubject;
use super::history::{Allowed, History, Recovered};
use crate::rng::Rng;
use crate::subject::{Fault, FaultKind};
use bristlecone_pmem::cell::PWord;
use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
use bristlecone_pmem::media::{Access, Durability, Journal, LINE, Media, MediaOptions};
use bristlecone_pmem::{CommitError, OpenError};
use std::path::Path;
use std::sync::atomic::Ordering;

/// See the module's head.
pub struct Lines;

const UUID: [u8; 16] = *b"lines of threads";
/// The lines of a thread begin after the superblocks.
const FIRST: u64 = 8192 / LINE as u64;
/// Lines of a thread.
const EACH: u64 = 600;

/// Steps of a thread.
const STEPS: u64 = 200;

/// The stores, flushes and so on of a step; they follow from the seed.
struct Plan {
    /// First line and number of lines, of the thread's.
    stored: Vec<(u64, u64)>,
    /// Flushed before the fence; some are flushed a step later.
    flushed: Vec<(u64, u64)>,
    commits: bool,
    /// The checkpointer's work is done by hand here.
    checkpoints: bool,
    trims: bool,
    grows: bool,
}

/// Bytes of a new pool. A longer one has a journal that becomes longer before it is checkpointed.
fn initial(seed: u64) -> u64 {
    match seed % 4 {
        3 => 1536 << 10,
        _ => 128 << 10,
    }
}

fn threads(seed: u64) -> usize {
    1 + (seed % 2) as usize
}

/// The steps of a thread.
fn plans(seed: u64, thread: usize) -> Vec<Plan> {
    let mut rng = Rng::of(seed, 0x11e5, thread as u64);
    // Commits of every step, of few steps, of hardly any.
    let patience = [1, 3, 12, 40][rng.index(4)];
    let mut late: Vec<(u64, u64)> = Vec::new();
    let mut plans = Vec::new();
    for _ in 0..STEPS {
        let mut stored = Vec::new();
        for _ in 0..=rng.below(3) {
            let long = [1, 1, 2, 4, 40, 300][rng.index(6)];
            let count = 1 + rng.below(long);
            // Few places, so that runs overlap.
            let first = match rng.below(3) {
                0 => rng.below(20),
                _ => rng.below(EACH - count),
            };
            stored.push((first.min(EACH - count), count));
        }
        let mut flushed = std::mem::take(&mut late);
        for (first, count) in &stored {
            match rng.below(6) {
                0 => late.push((*first, *count)),
                // In two pieces, which overlap.
                1 => {
                    let half = count / 2;
                    flushed.push((first + half, count - half));
                    flushed.push((*first, (half + 1).min(*count)));
                }
                2 => flushed.extend([(*first, *count); 2]),
                _ => flushed.push((*first, *count)),
            }
        }
        plans.push(Plan {
            stored,
            flushed,
            commits: rng.below(patience) == 0,
            checkpoints: rng.below(16) == 0,
            trims: rng.below(24) == 0,
            grows: rng.below(30) == 0,
        });
    }
    plans
}

fn options(access: Access, seed: u64) -> MediaOptions {
    MediaOptions {
        access,
        reserve: 16 << 20,
        durability: match seed / 2 % 4 {
            0 => Durability::Interval(std::time::Duration::from_millis(1)),
            1 => Durability::None,
            _ => Durability::Immediate,
        },
        journal_max: [256 << 10, 1 << 20][(seed / 8 % 2) as usize],
        ..MediaOptions::default()
    }
}

fn open_on(disk: &FaultDisk, access: Access, seed: u64) -> Result<Journal, OpenError> {
    Journal::open_on(
        disk.file(Which::Pool),
        disk.file(Which::Journal),
        Path::new("pool"),
        initial(seed),
        &options(access, seed),
    )
}

fn word(pm: &Journal, offset: u64) -> &PWord {
    assert!(offset.is_multiple_of(8) && offset < pm.len(), "in the pool");
    // SAFETY: 1. in bounds and aligned, by the assertion; 2. a `PWord` is an atomic, and all
    // references to the pool are to those; 3. the mapping outlives the borrow of `pm`.
    unsafe { &*pm.base().add(offset as usize).cast::<PWord>() }
}

fn line_at(thread: usize, line: u64) -> u64 {
    (FIRST + thread as u64 * EACH + line) * LINE as u64
}

fn store(pm: &Journal, thread: usize, (first, count): (u64, u64), value: u64) {
    for line in first..first + count {
        let at = line_at(thread, line);
        for (place, value) in [(0, value), (8, line), (56, value)] {
            word(pm, at + place).store(pm, value, Ordering::Release);
        }
    }
}

fn flush(pm: &Journal, thread: usize, (first, count): (u64, u64)) {
    let at = pm.base().wrapping_add(line_at(thread, first) as usize);
    // PERSIST: the lines' new values, before the step's fence.
    pm.flush(at, count as usize * LINE);
}

/// Does the steps of a thread.
fn steps(
    pm: &Journal,
    disk: &FaultDisk,
    seed: u64,
    thread: usize,
    history: &History,
) -> Result<(), CommitError> {
    for (i, plan) in plans(seed, thread).iter().enumerate() {
        for run in &plan.stored {
            store(pm, thread, *run, i as u64 + 1);
        }
        for run in &plan.flushed {
            flush(pm, thread, *run);
        }
        history.began(disk, thread, i as u64 + 1);
        // PERSIST: what the step has flushed, before the stores of the next one.
        pm.fence();
        if plan.commits {
            pm.commit()?;
            if pm.durability() == Durability::Immediate {
                history.acknowledged(disk, thread);
            }
        }
        if plan.checkpoints {
            pm.sync()?;
            history.acknowledged(disk, thread);
        }
        if plan.trims {
            let _ = pm.trim();
        }
        if plan.grows {
            let _ = pm.grow(pm.len() + 4096);
        }
    }
    Ok(())
}

fn progress(what: impl std::fmt::Display) -> Fault {
    Fault::new(FaultKind::Progress, what.to_string())
}

impl DiskSubject for Lines {
    fn name(&self) -> &'static str {
        "journal"
    }

    fn work(&self, disk: &FaultDisk, seed: u64, history: &History) -> Result<(), Fault> {
        let threads = threads(seed);
        history.has(threads);
        let unless_failed = |e: String| match disk.has_failed() {
            true => Ok(()),
            false => Err(progress(e)),
        };
        let pm = match open_on(disk, Access::Create, seed) {
            Ok(pm) => pm,
            Err(e) => return unless_failed(e.to_string()),
        };
        for copy in [0, 4096] {
            for (i, half) in UUID.chunks(8).enumerate() {
                let value = half
                    .iter()
                    .rev()
                    .fold(0, |n, byte| n << 8 | u64::from(*byte));
                word(&pm, copy + 32 + i as u64 * 8).store(&pm, value, Ordering::Relaxed);
            }
            // PERSIST: the UUID, which makes it this journal's pool.
            pm.flush(pm.base().wrapping_add(copy as usize), 64);
            pm.fence();
        }
        if let Err(e) = pm.attach(UUID) {
            return unless_failed(e.to_string());
        }
        history.made(disk);
        let ended = std::thread::scope(|scope| {
            let spawn = |thread| {
                let pm = &pm;
                scope.spawn(move || steps(pm, disk, seed, thread, history))
            };
            let threads: Vec<_> = (0..threads).map(spawn).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined.collect::<Result<Vec<_>, _>>()
        });
        let ended = ended.map_err(|_| progress("a thread of the run panicked"))?;
        for end in ended {
            if let Err(e) = end {
                return unless_failed(e.to_string());
            }
        }
        if seed.is_multiple_of(3) {
            // Closing is cut, too.
            drop(pm);
            return Ok(());
        }
        // A kill, and another process; then a cut.
        disk.kill();
        drop(pm);
        let allowed = history.allowed(disk.events());
        match self.recover(disk, seed, &allowed) {
            Ok(recovered) => {
                let exactly = recovered.history.allowed(disk.events()).exactly;
                history.found_exactly(disk, exactly.unwrap_or_default());
                Ok(())
            }
            Err(fault) if disk.has_failed() && fault.kind == FaultKind::Recovery => Ok(()),
            Err(fault) => Err(fault),
        }
    }

    fn recover(&self, disk: &FaultDisk, seed: u64, allowed: &Allowed) -> Result<Recovered, Fault> {
        if disk.bytes(Which::Pool).is_empty() {
            // The cut came before there was a file.
            return match allowed.made {
                true => Err(Fault::new(FaultKind::Lost, "the pool's file is gone")),
                false => Ok(Recovered::default()),
            };
        }
        let failed = |e: &dyn std::fmt::Display| Fault::new(FaultKind::Recovery, e.to_string());
        let pm = open_on(disk, Access::ReadWrite, seed).map_err(|e| failed(&e))?;
        let named = word(&pm, 32).load(&pm, Ordering::Acquire) != 0;
        if !named {
            return match allowed.made {
                true => Err(Fault::new(FaultKind::Lost, "the pool's UUID is gone")),
                false => Ok(Recovered::default()),
            };
        }
        pm.attach(UUID).map_err(|e| failed(&e))?;
        let mut exactly = Vec::new();
        for thread in 0..threads(seed) {
            let (least, most) = match allowed.exactly {
                None => (allowed.least[thread], allowed.most[thread]),
                Some(_) => (0, STEPS),
            };
            check(&pm, seed, thread, least, most, &mut exactly)?;
        }
        if let Some(expected) = &allowed.exactly
            && let Some(i) = (0..exactly.len()).find(|i| exactly[*i] != expected[*i])
        {
            let (line, was, is) = (i / 2, expected[i], exactly[i]);
            let what =
                format!("line {line} had {was} when the pool was opened before, and has {is}");
            return Err(Fault::new(FaultKind::Lost, what));
        }
        let history = History::of(threads(seed));
        history.made(disk);
        history.found_exactly(disk, exactly);
        Ok(Recovered {
            opened: Some(disk.events()),
            history,
        })
    }
}

/// Checks the lines of a thread of which `least` fences are durable and `most` were begun. Appends
/// what they have to `found`.
fn check(
    pm: &Journal,
    seed: u64,
    thread: usize,
    least: u64,
    most: u64,
    found: &mut Vec<u64>,
) -> Result<(), Fault> {
    let plans = plans(seed, thread);
    // By line: (fence, value) of each store and of each capture. The value of step s is s + 1.
    let mut stored = vec![vec![0u64]; EACH as usize];
    let mut captured = vec![Vec::<(u64, u64)>::new(); EACH as usize];
    for (i, plan) in plans.iter().enumerate() {
        let step = i as u64 + 1;
        for (first, count) in &plan.stored {
            for line in *first..first + count {
                stored[line as usize].push(step);
            }
        }
        for (first, count) in &plan.flushed {
            for line in (*first..first + count).map(|line| line as usize) {
                let value = stored[line].last().copied().unwrap_or(0);
                captured[line].push((step, value));
            }
        }
    }
    // The fences that every line fits.
    let (mut from, mut to) = ((least, None), (most, None));
    for line in 0..EACH {
        let at = line_at(thread, line);
        let get = |place| word(pm, at + place).load(pm, Ordering::Acquire);
        let (first, number, last) = (get(0), get(8), get(56));
        found.extend([first, last]);
        let values = &stored[line as usize];
        if last > first || !values.contains(&first) || !values.contains(&last) {
            let what = format!("thread {thread}, line {line} was never {first}, {last}");
            return Err(Fault::new(FaultKind::Torn, what));
        }
        if last > 0 && number != line {
            let what = format!("thread {thread}, line {line} says that it is line {number}");
            return Err(Fault::new(FaultKind::Torn, what));
        }
        // A value of step s was stored after fence s - 1.
        let since = first.saturating_sub(1);
        if since > from.0 {
            from = (since, Some((line, first)));
        }
        let newer = captured[line as usize]
            .iter()
            .find(|(_, value)| *value > last);
        if let Some((fence, _)) = newer
            && fence - 1 < to.0
        {
            to = (fence - 1, Some((line, last)));
        }
    }
    if from.0 > to.0 {
        let kind = match from.1 {
            None => FaultKind::Lost,
            Some(_) => FaultKind::Torn,
        };
        let what = format!(
            "thread {thread}: {least} fences are durable of {most}; line and value {:?} need fence {}, and {:?} are older than fence {}",
            from.1,
            from.0,
            to.1,
            to.0 + 1
        );
        return Err(Fault::new(kind, what));
    }
    Ok(())
}
