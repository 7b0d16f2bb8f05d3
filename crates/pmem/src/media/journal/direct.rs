//! Long runs of fresh blocks go to the pool file itself, and not into the journal.
//!
//! ```text
//! a chunk has long runs of fresh blocks, and what had freed these is durable
//! write the runs to the pool file, sync it
//! the frame has a *direct run* in the place of each: line, count, no bytes
//! ```
//!
//! A block is *fresh* until something leads to it. Once what had freed it before is durable,
//! nothing durable does, and nobody who recovers reads what the file has there. So it may be
//! written before the frame is durable, and before all that was fenced earlier.
//!
//! # Crash states
//! | crash | leaves | why it is harmless |
//! | --- | --- | --- |
//! | before the frame is durable | other bytes in blocks that are free | free blocks have any content |
//! | afterwards | frames with lines of what the blocks were before, ahead of the direct run | recovery comes to the direct run later, and takes the file's bytes again |
//! | after a checkpoint has written later states of the lines | these | what they hold was captured, in frames that follow |
//! | after the blocks were freed and written directly once more | the later content | the frame that freed them is durable: nothing leads to the earlier one |
//!
//! A checkpoint writes pages as it has copied them, maybe before the run was captured. So a run
//! with a page that a checkpoint is writing goes into the journal. The lock of the pages behind is
//! held until the run is in the file, so memory is not given back before. Lines are captured while
//! the block is its writer's, who does not give it up before the fence.

use super::commit::{Core, Stop};
use super::format::{FRAME_HEAD, direct_run};
use super::image::{Behind, PAGE_LINES};
use super::stage::{Chunk, Long};
use super::stats::count;
use crate::error::CommitError;
use crate::media::LINE;

/// Lines of the shortest run that is written directly.
pub(super) const SHORTEST: u64 = (8 << 10) / LINE as u64;
/// Bytes that are worth another sync.
const WORTH_A_SYNC: u64 = 64 << 10;

impl Core {
    /// Writes the long fresh runs of these chunks to the pool file, durably, and leaves
    /// direct runs in their places. `durable`: so many lines are durable.
    pub(super) fn write_direct(
        &self,
        chunks: &mut [Chunk],
        behind: &Behind,
        durable: u64,
    ) -> Result<(), Stop> {
        let goes = |chunk: &Chunk, run: &Long| {
            let first = line_at(chunk, run);
            let pages = first / PAGE_LINES..=(first + run.lines - 1) / PAGE_LINES;
            run.since <= durable && !pages.into_iter().any(|page| behind.writing.has(page))
        };
        for chunk in &mut *chunks {
            let mut long = std::mem::take(&mut chunk.long);
            long.retain(|run| goes(chunk, run));
            chunk.long = long;
        }
        let lines = chunks.iter().flat_map(|chunk| &chunk.long);
        let bytes = lines.map(|run| run.lines * LINE as u64).sum::<u64>();
        // A failed write-back is told to each handle once: a checkpoint must not learn of this one,
        // nor this of the checkpoint's.
        let pool = self.pool_aside.get().filter(|_| bytes >= WORTH_A_SYNC);
        let Some(pool) = pool else {
            return Ok(());
        };
        for chunk in &*chunks {
            for run in &chunk.long {
                let from = run.at + 8;
                let content = &chunk.bytes[from..from + run.lines as usize * LINE];
                let written = pool.write_all(line_at(chunk, run) * LINE as u64, content);
                if written.is_err() {
                    // It goes into the journal, whose writing may fail for the same reason.
                    return Ok(());
                }
            }
        }
        count(&self.stats.syncs, 1);
        // PERSIST: the content, before a frame that says that the file has it.
        pool.sync().map_err(|source| {
            Stop::Error(CommitError::Failed {
                doing: "syncing the pool file",
                source,
            })
        })?;
        count(&self.stats.direct_bytes, bytes);
        chunks.iter_mut().for_each(replace);
        Ok(())
    }
}

/// The first line of a run.
fn line_at(chunk: &Chunk, run: &Long) -> u64 {
    super::format::word(&chunk.bytes, run.at) >> 16
}

/// Puts direct runs in the place of the long ones.
fn replace(chunk: &mut Chunk) {
    let mut at = FRAME_HEAD;
    let mut end = FRAME_HEAD;
    for run in std::mem::take(&mut chunk.long) {
        let words = direct_run(line_at(chunk, &run), run.lines);
        chunk.bytes.copy_within(at..run.at, end);
        end += run.at - at;
        chunk.bytes[end..end + words.len()].copy_from_slice(&words);
        end += words.len();
        at = run.at + 8 + run.lines as usize * LINE;
    }
    let len = chunk.bytes.len();
    chunk.bytes.copy_within(at..len, end);
    chunk.bytes.truncate(end + len - at);
}

#[cfg(test)]
mod tests {
    use super::super::format::{run_word, runs};
    use super::*;

    #[test]
    fn direct_runs_take_the_places_of_runs() {
        let mut chunk = Chunk {
            bytes: vec![0; FRAME_HEAD],
            end: 0,
            top: 0,
            long: Vec::new(),
        };
        for (line, lines, long) in [
            (3, 2, false),
            (100, 130, true),
            (500, 1, false),
            (900, 200, true),
        ] {
            if long {
                let at = chunk.bytes.len();
                let since = 0;
                chunk.long.push(Long { at, lines, since });
            }
            chunk.bytes.extend(run_word(line, lines).to_le_bytes());
            chunk.bytes.extend(vec![line as u8; lines as usize * LINE]);
        }
        replace(&mut chunk);
        let found: Vec<_> = runs(&chunk.bytes[FRAME_HEAD..], 1 << 20)
            .map(|run| run.expect("sound"))
            .map(|run| (run.line, run.count, run.is_direct()))
            .collect();
        let expected = [
            (3, 2, false),
            (100, 130, true),
            (500, 1, false),
            (900, 200, true),
        ];
        assert_eq!(found, expected);
        assert_eq!(chunk.bytes.len(), FRAME_HEAD + 2 * 16 + 2 * 8 + 3 * LINE);
    }
}
