//! The path of `flush` and `fence`: noted lines, then captured lines in memory. No I/O here.
//!
//! ```text
//! flush   slot of the thread   [run of line numbers] ...
//! fence   runs sorted, merged -> under the append lock: captured, appended to the open chunk
//!         chunk   | room for a frame's head | run word, lines | run word, lines | ...
//! ```
//!
//! # Invariants
//! 1. Captures happen under the append lock, so of two captures of one line the later in the
//!    journal is the later state.
//! 2. A slot stays locked until its runs are appended, so a thread that finds its slot emptied by
//!    another thread of the same slot finds its lines in the journal too.
//! 3. Chunks leave in the order in which they were filled.

use super::direct;
use super::format::{FRAME_HEAD, MAX_RUN, run_word};
use super::image::Image;
use super::log::lines_of;
use crate::media::LINE;
use crate::media::capture::bytes_of;
use crate::sync::lock;
use crossbeam_utils::CachePadded;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// Number of slots. Two threads that share one write back each other's lines early, which is always
/// legal.
const SLOTS: usize = 64;
/// Number of emptied chunks that are kept for reuse.
const SPARE: usize = 16;

thread_local! {
    static SLOT: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // ORDERING: Relaxed; only uniqueness matters, and only for speed.
        NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS
    };
}

/// Consecutive lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Lines {
    /// They are of blocks that nothing durable leads to, once so much is durable.
    fresh: bool,
    first: u64,
    end: u64,
    since: u64,
}

/// A long run of fresh lines in a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Long {
    /// Where its word is, in the chunk's bytes.
    pub at: usize,
    pub lines: u64,
    /// Its blocks may be overwritten in the file once so many lines are durable.
    pub since: u64,
}

/// Lines that one thread (or a few) flushed and has not fenced.
#[derive(Debug, Default)]
struct Slot {
    noted: Vec<Lines>,
    /// Number of lines that had been appended, by all threads, at this slot's last fence.
    last: u64,
}

/// Captured lines on their way to becoming one frame.
#[derive(Debug)]
pub(super) struct Chunk {
    /// [`FRAME_HEAD`] bytes for the head, then runs.
    pub bytes: Vec<u8>,
    /// Number of lines appended, by all threads since opening, up to the end of this chunk.
    pub end: u64,
    /// One more than the highest line number in it.
    pub top: u64,
    /// Its long runs of fresh lines, in order.
    pub long: Vec<Long>,
}

/// The chunks being filled.
#[derive(Debug)]
struct Active {
    full: Vec<Chunk>,
    open: Chunk,
    spare: Vec<Vec<u8>>,
    chunk_bytes: usize,
    end: u64,
}

/// Noted and captured lines of all threads.
#[derive(Debug)]
pub(super) struct Stage {
    slots: Box<[CachePadded<Mutex<Slot>>]>,
    active: CachePadded<Mutex<Active>>,
    appended: CachePadded<AtomicU64>,
}

impl Stage {
    pub fn new(chunk_bytes: usize) -> Self {
        Self {
            slots: (0..SLOTS)
                .map(|_| CachePadded::new(Mutex::default()))
                .collect(),
            active: CachePadded::new(Mutex::new(Active {
                full: Vec::new(),
                open: Chunk {
                    bytes: fresh(chunk_bytes),
                    end: 0,
                    top: 0,
                    long: Vec::new(),
                },
                spare: Vec::new(),
                chunk_bytes,
                end: 0,
            })),
            appended: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Notes lines `first..end` for this thread's next fence.
    #[inline]
    pub fn note(&self, first: u64, end: u64) {
        self.note_as(Lines {
            fresh: false,
            first,
            end,
            since: 0,
        });
    }

    /// As [`note`](Self::note), of blocks that nothing durable leads to once `since` lines are
    /// durable.
    pub fn note_fresh(&self, first: u64, end: u64, since: u64) {
        self.note_as(Lines {
            fresh: true,
            first,
            end,
            since,
        });
    }

    #[inline]
    fn note_as(&self, lines: Lines) {
        let mut slot = lock(&self.slots[SLOT.with(|s| *s)]);
        if let Some(last) = slot.noted.last_mut() {
            // The usual repeat: fields of one line, or of lines in a row, flushed one by one.
            if last.goes_on_with(&lines) {
                last.join(&lines);
                return;
            }
        }
        slot.noted.push(lines);
    }

    /// Captures and appends the lines that this thread noted. Returns true if that filled a chunk.
    #[inline]
    pub fn fence(&self, image: &Image) -> bool {
        let mut slot = lock(&self.slots[SLOT.with(|s| *s)]);
        if slot.noted.is_empty() {
            // ORDERING: Release fence; as below. After a failure nothing is noted: a copied store
            // then implies that `trouble` is seen, which this thread has seen.
            fence(Ordering::Release);
            return false;
        }
        if slot.noted.len() > 1 {
            merge(&mut slot.noted);
        }
        let filled;
        {
            let mut active = lock(&self.active);
            let before = active.full.len();
            let lines = image.lines();
            for run in &slot.noted {
                // A line past the end was cut off meanwhile, and is no longer the pool's.
                let end = run.end.min(lines);
                active.append(image, &Lines { end, ..*run });
            }
            filled = active.full.len() > before;
            slot.last = active.end;
            // ORDERING: Release; pairs with the Acquire in `appended`.
            self.appended.store(active.end, Ordering::Release);
        }
        slot.noted.clear();
        // ORDERING: Release fence; this thread's later stores become visible after `appended` did.
        // Pairs with the Acquire fence between copying pages and reading `appended`
        // (`checkpoint::copy`): a copied store implies that the fence before it is counted.
        fence(Ordering::Release);
        filled
    }

    /// Returns how far the journal must be durable for this thread's fences to be.
    pub fn fenced_by_this_thread(&self) -> u64 {
        lock(&self.slots[SLOT.with(|s| *s)]).last
    }

    /// Returns the number of lines appended so far.
    #[inline]
    pub fn appended(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release in `fence`.
        self.appended.load(Ordering::Acquire)
    }

    /// Takes all chunks that hold lines, oldest first.
    pub fn take(&self, into: &mut Vec<Chunk>) {
        let mut active = lock(&self.active);
        into.append(&mut active.full);
        if active.open.bytes.len() > FRAME_HEAD {
            into.push(active.roll());
        }
    }

    /// Calls `f` with the lines that are captured and not taken: first line, number.
    pub fn captured_lines(&self, f: &mut impl FnMut(u64, u64)) {
        let active = lock(&self.active);
        for chunk in active.full.iter().chain([&active.open]) {
            lines_of(&chunk.bytes[FRAME_HEAD..], f);
        }
    }

    /// Takes back an emptied chunk's memory.
    pub fn reuse(&self, mut bytes: Vec<u8>) {
        bytes.truncate(FRAME_HEAD);
        let mut active = lock(&self.active);
        if active.spare.len() < SPARE {
            active.spare.push(bytes);
        }
    }

    /// Forgets everything captured, since nothing will be written any more.
    pub fn discard(&self) {
        let mut active = lock(&self.active);
        active.full.clear();
        active.open.bytes.truncate(FRAME_HEAD);
        active.open.long.clear();
    }
}

impl Lines {
    /// Whether `next` begins among these, or behind the last of them, and is of their kind.
    fn goes_on_with(&self, next: &Self) -> bool {
        self.fresh == next.fresh && self.first <= next.first && next.first <= self.end
    }

    fn join(&mut self, next: &Self) {
        self.end = self.end.max(next.end);
        self.since = self.since.max(next.since);
    }
}

impl Active {
    /// Appends lines.
    #[inline]
    fn append(&mut self, image: &Image, lines: &Lines) {
        let (mut line, end, since) = (lines.first, lines.end, lines.since);
        while line < end {
            let room = self.chunk_bytes.saturating_sub(self.open.bytes.len() + 8) / LINE;
            if room == 0 {
                let full = self.roll();
                self.full.push(full);
                continue;
            }
            let count = (end - line).min(room as u64).min(MAX_RUN);
            if lines.fresh && count >= direct::SHORTEST {
                self.open.long.push(Long {
                    at: self.open.bytes.len(),
                    lines: count,
                    since,
                });
            }
            self.open
                .bytes
                .extend_from_slice(&run_word(line, count).to_le_bytes());
            for line in line..line + count {
                self.open
                    .bytes
                    .extend_from_slice(&bytes_of(image.capture(line)));
            }
            line += count;
            self.end += count;
            self.open.top = self.open.top.max(line);
        }
        self.open.end = self.end;
    }

    /// Closes the open chunk and opens another.
    #[cold]
    fn roll(&mut self) -> Chunk {
        let bytes = self.spare.pop().unwrap_or_else(|| fresh(self.chunk_bytes));
        self.open.end = self.end;
        std::mem::replace(
            &mut self.open,
            Chunk {
                bytes,
                end: self.end,
                top: 0,
                long: Vec::new(),
            },
        )
    }
}

fn fresh(chunk_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(chunk_bytes);
    bytes.resize(FRAME_HEAD, 0);
    bytes
}

/// Sorts runs and merges those that touch.
fn merge(runs: &mut Vec<Lines>) {
    runs.sort_unstable();
    runs.dedup_by(|next, kept| {
        let joins = kept.goes_on_with(next);
        if joins {
            kept.join(next);
        }
        joins
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_discarded_is_in_no_chunk() {
        let stage = Stage::new(4096);
        // One chunk is full, and the other is not.
        for line in [3, 9] {
            let mut active = lock(&stage.active);
            if line == 9 {
                let full = active.roll();
                active.full.push(full);
            }
            let open = &mut active.open;
            let at = open.bytes.len();
            let (lines, since) = (1, 0);
            open.long.push(Long { at, lines, since });
            open.bytes.extend(run_word(line, lines).to_le_bytes());
            open.bytes.extend([7; LINE]);
        }
        let lines = || {
            let mut lines = Vec::new();
            stage.captured_lines(&mut |line, count| lines.push((line, count)));
            lines
        };
        assert_eq!(lines(), [(3, 1), (9, 1)]);
        stage.discard();
        assert!(lines().is_empty());
        let mut chunks = Vec::new();
        stage.take(&mut chunks);
        assert!(chunks.is_empty(), "{chunks:?}");
        assert!(lock(&stage.active).open.long.is_empty());
    }

    #[test]
    fn runs_merge_where_they_touch() {
        let run = |first, end| Lines {
            fresh: false,
            first,
            end,
            since: 0,
        };
        let fresh = |first, end, since| Lines {
            fresh: true,
            since,
            ..run(first, end)
        };
        let mut runs = vec![
            run(9, 10),
            run(1, 3),
            run(2, 4),
            run(4, 5),
            run(7, 8),
            run(1, 2),
        ];
        merge(&mut runs);
        assert_eq!(runs, [run(1, 5), run(7, 8), run(9, 10)]);
        // Those of fresh blocks by themselves.
        let mut runs = vec![fresh(5, 9, 3), run(4, 6), fresh(9, 12, 7), run(9, 10)];
        merge(&mut runs);
        assert_eq!(runs, [run(4, 6), run(9, 10), fresh(5, 12, 7)]);
    }
}
