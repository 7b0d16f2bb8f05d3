//! How many lines this process has flushed, and how often it has fenced, on all pools that outlive
//! it.
//!
//! Each thread counts for itself, so counting costs no shared line. What a thread has counted stays
//! when it ends, and the next one goes on from there.

use super::LINE;
use crate::sync::lock;
use crossbeam_utils::CachePadded;
use std::ops::Sub;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Instructions issued to persistent memory, or taken by the journal instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Issued {
    /// Cache lines flushed.
    pub lines: u64,
    /// Fences.
    pub fences: u64,
}

impl Sub for Issued {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self {
            lines: self.lines - other.lines,
            fences: self.fences - other.fences,
        }
    }
}

/// The counts of one thread after another.
#[derive(Debug, Default)]
struct Counts {
    lines: AtomicU64,
    fences: AtomicU64,
}

/// All counts there are.
struct All {
    every: Vec<&'static CachePadded<Counts>>,
    /// Those that no thread has.
    free: Vec<&'static CachePadded<Counts>>,
}

static ALL: Mutex<All> = Mutex::new(All {
    every: Vec::new(),
    free: Vec::new(),
});

/// For threads that are ending, and have given their counts back.
static LATE: Counts = Counts {
    lines: AtomicU64::new(0),
    fences: AtomicU64::new(0),
};

/// A thread's counts, which it gives back.
struct Mine(&'static CachePadded<Counts>);

impl Mine {
    fn take() -> Self {
        let mut all = lock(&ALL);
        Self(all.free.pop().unwrap_or_else(|| {
            let new: &'static _ = Box::leak(Box::default());
            all.every.push(new);
            new
        }))
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        lock(&ALL).free.push(self.0);
    }
}

thread_local! {
    static MINE: Mine = Mine::take();
}

#[inline(always)]
fn add(to: fn(&Counts) -> &AtomicU64, n: u64) {
    let added = MINE.try_with(|mine| {
        let count = to(mine.0);
        // ORDERING: Relaxed; only this thread writes it, and readers want any recent number.
        count.store(count.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    });
    if added.is_err() {
        to(&LATE).fetch_add(n, Ordering::Relaxed);
    }
}

/// Returns the number of lines that have bytes of `addr..addr + len`.
#[inline(always)]
pub(super) fn lines_of(addr: *const u8, len: usize) -> u64 {
    let first = addr.addr() / LINE;
    match len {
        0 => 0,
        _ => ((addr.addr() + len - 1) / LINE - first + 1) as u64,
    }
}

/// Counts flushed lines.
#[inline(always)]
pub(super) fn lines(n: u64) {
    add(|counts| &counts.lines, n);
}

/// Counts a fence.
#[inline(always)]
pub(super) fn fence() {
    add(|counts| &counts.fences, 1);
}

/// Returns what this process has issued so far, on all media but
/// [`MediumKind::Dram`](super::MediumKind::Dram) and the simulation.
///
/// ```
/// use bristlecone_pmem::media::issued;
/// let before = issued();
/// assert_eq!((issued() - before).fences, 0);
/// ```
#[must_use]
pub fn issued() -> Issued {
    let all = lock(&ALL);
    let of = |to: fn(&Counts) -> &AtomicU64| {
        // ORDERING: Relaxed; as in `add`.
        let each = all
            .every
            .iter()
            .map(|counts| to(counts).load(Ordering::Relaxed));
        each.sum::<u64>() + to(&LATE).load(Ordering::Relaxed)
    };
    Issued {
        lines: of(|counts| &counts.lines),
        fences: of(|counts| &counts.fences),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_count_on_where_others_have_ended() {
        let counts = || lock(&ALL).every.len();
        let before = issued();
        for _ in 0..50 {
            std::thread::spawn(|| {
                lines(3);
                fence();
            })
            .join()
            .unwrap();
        }
        let made = issued() - before;
        assert!(made.lines >= 150 && made.fences >= 50, "{made:?}");
        // Tests of other modules have threads, too.
        assert!(counts() < 50, "{} counts", counts());
    }
}
