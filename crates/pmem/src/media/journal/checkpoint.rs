//! Checkpoints write dirty pages to the pool file and then advance the journal's head.
//!
//! ```text
//! C := end of what is written; take the dirty pages        (log lock)
//! for each batch of pages:
//!     copy them; E := end of what is captured               (after the copy)
//!     journal durable through E                             (what a copy holds is never ahead of it)
//!     header: required := E                                 (a shorter chain is damage, not a tear)
//!     write the pages
//! sync the pool file; header: head := C, in both slots; segments before C are free
//! ```

use super::commit::{Core, Keeper, Progress, Stop, wait};
use super::format::{DATA_AT, FIRST_SEGMENTS, Header, MAX_SEGMENTS, Position, SLOT_AT};
use super::image::PAGE_LINES;
use super::log::Log;
use super::stats::count;
use super::storage::write_error;
use crate::error::CommitError;
use crate::media::LINE;
use crate::sync::lock;
use std::sync::MutexGuard;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Number of pages copied before they are written.
const BATCH: u64 = 2048;
/// Where the pages ahead of the pool file are bounded, copies are of one of so many.
const OF_BOUND: u64 = 32;
/// But not fewer pages than this: each copy may need a sync of the journal.
const FEWEST: u64 = 256;
/// A journal that needs room sooner than this after the last time is made longer.
const TOO_OFTEN: Duration = Duration::from_secs(1);
/// A closed pool is so many times as long as its journal, or more.
const KEPT: u64 = 4;
/// Maximum by which the journal grows at a time.
const GROW_BYTES: u64 = 64 << 20;

impl Core {
    /// Body of the checkpointer thread.
    pub fn checkpoint_in_background(&self) {
        loop {
            let mut progress = lock(&self.progress);
            while !progress.checkpoint_wanted && !progress.stop {
                progress = wait(&self.work, progress);
            }
            if progress.stop || progress.failed.is_some() {
                self.no_longer_full(progress);
                return;
            }
            let full = progress.full;
            drop(progress);
            let result = self.make_room(full);
            let mut progress = lock(&self.progress);
            // Cleared only now, because a checkpoint wanted while this one ran is the same one.
            progress.checkpoint_wanted = false;
            if let Err(e) = result {
                self.record(&mut progress, Stop::Error(e));
            }
            self.no_longer_full(progress);
        }
    }

    /// Makes room in the journal, or for dirty pages: by a checkpoint, and before that by more
    /// segments where the journal is short for its pool or for what is written just now, which
    /// saves the checkpoint.
    fn make_room(&self, full: bool) -> Result<(), CommitError> {
        let mut keeper = lock(&self.keeper);
        // Not where it is the number of dirty pages that calls for it.
        let crowded = lock(&self.log).is_half_full();
        let began = Instant::now();
        let last = keeper.last.replace(began);
        let often = last.is_some_and(|last| began - last < TOO_OFTEN);
        if crowded {
            let usual = self.usual(&keeper);
            let twice = 2 * keeper.header.segments;
            let wanted = if often || full {
                usual.max(twice)
            } else {
                usual
            };
            self.lengthen(&mut keeper, wanted)?;
            if !lock(&self.log).is_half_full() && !self.is_dirty(2) {
                return Ok(());
            }
        }
        self.checkpoint(&mut keeper)
    }

    fn no_longer_full(&self, mut progress: MutexGuard<'_, Progress>) {
        progress.full = false;
        self.note_trouble(&progress);
        self.wake(progress);
    }

    /// Makes everything fenced so far part of the pool file.
    pub fn checkpoint_all(&self, keeper: &mut Keeper) -> Result<(), CommitError> {
        self.health()?;
        self.write_out(Some(keeper))?;
        let result = self.checkpoint(keeper);
        let mut progress = lock(&self.progress);
        if let Err(e) = &result {
            self.record(&mut progress, Stop::Error(e.duplicate()));
        }
        self.no_longer_full(progress);
        result
    }

    /// Makes a checkpoint; see the module's head. On an error the pages are dirty again.
    pub fn checkpoint(&self, keeper: &mut Keeper) -> Result<(), CommitError> {
        let (head, pages) = {
            let log = lock(&self.log);
            let mut behind = lock(&self.behind);
            let pages = behind.dirty.take(self.image.len());
            for page in &pages {
                behind.writing.mark(*page);
            }
            (log.at, pages)
        };
        if pages.is_empty() && head == keeper.header.head {
            return Ok(());
        }
        let mut copy = std::mem::take(&mut keeper.copy);
        let written = self.write_pages(keeper, &pages, &mut copy);
        // ORDERING: Relaxed; a bound.
        if self.dirty_most.load(Ordering::Relaxed) != u64::MAX {
            keeper.copy = copy;
        }
        let written = written
            // A direct run's write-back may have failed meanwhile.
            .and_then(|()| self.health())
            .and_then(|()| self.move_head(keeper, head));
        {
            let mut behind = lock(&self.behind);
            if written.is_err() {
                for page in &pages {
                    behind.dirty.mark(*page);
                }
            }
            behind.writing.clear();
        }
        written?;
        count(&self.stats.checkpoints, 1);
        Ok(())
    }

    fn write_pages(
        &self,
        keeper: &mut Keeper,
        pages: &[u64],
        copy: &mut Vec<u8>,
    ) -> Result<(), CommitError> {
        // ORDERING: Relaxed; a bound.
        let bound = self.dirty_most.load(Ordering::Relaxed) / OF_BOUND;
        let together = bound.clamp(FEWEST, BATCH) as usize;
        for batch in pages.chunks(together) {
            copy.clear();
            copy.reserve_exact(batch.len() * PAGE_LINES as usize * LINE);
            for page in batch {
                self.image.copy_page(*page, copy);
            }
            // ORDERING: Acquire fence; pairs with the Release fence that ends `Stage::fence`: a
            // store that was copied was made after fences that `appended` counts.
            fence(Ordering::Acquire);
            // After a failure nothing is captured, and so `appended` does not count it.
            self.health()?;
            let copied = self.stage.appended();
            // PERSIST: the journal through E, before any page that may depend on it.
            let required = self.durable_through(keeper, copied)?;
            if required > keeper.header.required {
                let header = Header {
                    required,
                    ..keeper.header
                };
                self.write_header(keeper, header)?;
            }
            self.write_batch(batch, copy)?;
            count(&self.stats.pages, batch.len() as u64);
        }
        // PERSIST: the pages, before the head moves past the frames they came from.
        count(&self.stats.syncs, 1);
        self.pool.sync().map_err(|source| CommitError::Failed {
            doing: "syncing the pool file",
            source,
        })
    }

    /// Writes copied pages, neighbours with one call.
    fn write_batch(&self, pages: &[u64], copy: &[u8]) -> Result<(), CommitError> {
        let page_bytes = PAGE_LINES as usize * LINE;
        let mut done = 0;
        for neighbours in pages.chunk_by(|a, b| a + 1 == *b) {
            // The pool's last page may be a short one.
            let end = (done + neighbours.len() * page_bytes).min(copy.len());
            self.pool
                .write_all(neighbours[0] * page_bytes as u64, &copy[done..end])
                .map_err(|e| write_error("writing the pool file", e))?;
            done = end;
        }
        Ok(())
    }

    /// Waits until the first `lines` captured lines are durable. Returns the sequence number that
    /// all durable frames are below.
    fn durable_through(&self, keeper: &mut Keeper, lines: u64) -> Result<u64, CommitError> {
        // ORDERING: Acquire; pairs with the Release in `publish`.
        if self.synced.load(Ordering::Acquire) < lines {
            self.write_out(Some(keeper))?;
            self.sync_written()?;
        }
        Ok(lock(&self.log).durable)
    }

    fn move_head(&self, keeper: &mut Keeper, head: Position) -> Result<(), CommitError> {
        let header = Header {
            head,
            floor: keeper.header.epoch,
            ..keeper.header
        };
        // PERSIST: the new head in both slots, before a segment in front of it is used again: no
        // slot then leads into overwritten frames.
        self.write_header(keeper, header)?;
        self.write_header(keeper, header)?;
        lock(&self.log).let_go(head);
        Ok(())
    }

    /// Writes `header` to the slot that does not hold the last one.
    #[track_caller]
    pub fn write_header(&self, keeper: &mut Keeper, header: Header) -> Result<(), CommitError> {
        let header = Header {
            generation: keeper.header.generation + 1,
            ..header
        };
        let slot = 1 - keeper.slot;
        count(&self.stats.syncs, 1);
        self.aside()
            .write_durable(SLOT_AT[slot], &header.encode())
            .map_err(|e| write_error("writing the journal's header", e))?;
        keeper.header = header;
        keeper.slot = slot;
        Ok(())
    }

    /// Number of segments of the journal of a pool that much is written to: a quarter of the pool.
    fn usual(&self, keeper: &Keeper) -> u32 {
        let usual = self.image.len() / KEPT / u64::from(keeper.header.segment_bytes);
        usual.min(u64::from(MAX_SEGMENTS)) as u32
    }

    /// Makes the journal `segments` segments long, within its limit, or longer by the most that it
    /// grows at a time. One that is as long keeps its length, as does one without space for more.
    fn lengthen(&self, keeper: &mut Keeper, segments: u32) -> Result<(), CommitError> {
        let segment = u64::from(keeper.header.segment_bytes);
        let have = keeper.header.segments;
        let most = u64::from(segments).min(self.journal_max / segment);
        let add = most
            .saturating_sub(u64::from(have))
            .min(GROW_BYTES / segment);
        if add > 0 {
            // At most what GROW_BYTES has of segments.
            match self.extend_journal(keeper, add as u32) {
                Ok(()) | Err(CommitError::NoSpace { .. }) => {}
                // A sync that has failed may not fail again: nobody else would hear of it.
                Err(e) => return Err(e),
            }
        }
        // Also those that an extension added before it failed.
        let mut log = lock(&self.log);
        Self::adopt(&mut log, keeper.header.segments);
        Ok(())
    }

    /// Adds `add` segments, whatever the limit, for a checkpoint that cannot continue without them.
    pub fn add_segments(
        &self,
        keeper: &mut Keeper,
        log: &mut Log,
        add: u32,
    ) -> Result<(), CommitError> {
        self.extend_journal(keeper, add)?;
        Self::adopt(log, keeper.header.segments);
        Ok(())
    }

    /// Adds `add` more segments of zeros and records them in the header.
    fn extend_journal(&self, keeper: &mut Keeper, add: u32) -> Result<(), CommitError> {
        let Some(segments) = keeper
            .header
            .segments
            .checked_add(add)
            .filter(|n| *n <= MAX_SEGMENTS)
        else {
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(CommitError::NoSpace {
                doing: "extending the journal",
                source,
            });
        };
        let from = keeper.header.file_offset(keeper.header.segments, 0);
        let to = keeper.header.file_offset(segments, 0);
        // Zeros that nobody writes: a journal becomes longer where much is written.
        // Without them it goes on as it is, whatever the reason.
        self.aside()
            .allocate(from, to)
            .map_err(|source| CommitError::NoSpace {
                doing: "extending the journal",
                source,
            })?;
        // PERSIST: the file's length and space, before a frame is put there.
        self.aside().sync().map_err(|source| CommitError::Failed {
            doing: "syncing the journal",
            source,
        })?;
        let header = Header {
            segments,
            ..keeper.header
        };
        // PERSIST: the count, before a frame is put in the new segments: recovery looks no further.
        self.write_header(keeper, header)?;
        self.write_header(keeper, header)
    }

    fn adopt(log: &mut Log, segments: u32) {
        log.free.extend(log.segments..segments);
        log.segments = log.segments.max(segments);
    }

    /// Makes the last checkpoint, for closing: the pool file is whole by itself. The journal is cut
    /// back to a quarter of the pool's length, so that the next session has a journal as long as it
    /// needs, and a small pool has a small one.
    pub fn close(&self, keeper: &mut MutexGuard<'_, Keeper>) -> Result<(), CommitError> {
        self.checkpoint_all(keeper)?;
        let kept = (self.image.len() / KEPT).min(self.journal_max);
        let kept = kept / u64::from(keeper.header.segment_bytes);
        let segments = keeper.header.segments.min(kept as u32).max(FIRST_SEGMENTS);
        let next = lock(&self.log).next_seq;
        // Nothing is live, so the head may go anywhere: to the front, with a number never used.
        let head = Position {
            seq: next,
            segment: 0,
            offset: 0,
        };
        let header = Header {
            head,
            segments,
            required: next,
            floor: keeper.header.epoch,
            ..keeper.header
        };
        // PERSIST: the new length, before what is beyond it is cut off. The other slot keeps the
        // checkpoint's header, behind whose head there is nothing either.
        self.write_header(keeper, header)?;
        self.cut_journal(keeper)
    }

    /// Cuts the journal back to its first segments after a checkpoint, unless somebody has written
    /// to it since.
    pub fn trim(&self, keeper: &mut Keeper) -> Result<(), CommitError> {
        if keeper.header.segments <= FIRST_SEGMENTS {
            return Ok(());
        }
        let restarted = lock(&self.log).restart(keeper.header.head, FIRST_SEGMENTS);
        let Some(head) = restarted else {
            return Ok(());
        };
        let header = Header {
            head,
            segments: FIRST_SEGMENTS,
            ..keeper.header
        };
        // PERSIST: both slots, before the segments are cut off that the old one counts, and before
        // the one is used again that it begins in.
        self.write_header(keeper, header)?;
        self.write_header(keeper, header)?;
        lock(&self.log).let_go(head);
        self.cut_journal(keeper)
    }

    /// Cuts off what is behind the segments that both headers count.
    fn cut_journal(&self, keeper: &Keeper) -> Result<(), CommitError> {
        let end = keeper.header.file_offset(keeper.header.segments, 0);
        self.aside()
            .truncate(end)
            .map_err(|e| write_error("shortening the journal", e))
    }
}

/// Writes zeros over `from..to`.
pub(super) fn zero(storage: &dyn super::Storage, from: u64, to: u64) -> std::io::Result<()> {
    debug_assert!(
        from >= DATA_AT || from == 0,
        "headers are not zeroed in passing"
    );
    let zeros = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        let n = (to - at).min(zeros.len() as u64);
        storage.write_all(at, &zeros[..n as usize])?;
        at += n;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::fault::{FaultDisk, Which};
    use super::*;

    #[test]
    fn zeros_are_written_where_they_are_asked_for() {
        let disk = FaultDisk::new(1);
        let (from, to) = (DATA_AT as usize + 512, (2 << 20) + 5000);
        let len = 3 << 20;
        disk.set_bytes(Which::Journal, vec![7; len]);
        zero(&*disk.file(Which::Journal), from as u64, to as u64).expect("writes");
        let bytes = disk.bytes(Which::Journal);
        assert_eq!(bytes.len(), len);
        assert!(bytes[from..to].iter().all(|byte| *byte == 0));
        assert!(bytes[..from].iter().all(|byte| *byte == 7));
        assert!(bytes[to..].iter().all(|byte| *byte == 7));
    }
}
