//! The journal's frames on disk: sealing, placing, writing, freeing.
//!
//! Frames fill a segment front to back; one that does not fit starts another segment. Which segment
//! comes next is not recorded: it is the one whose first frame has the next sequence number.

use super::format::{FRAME_HEAD, Frame, Position, SECTOR, runs};
use super::stage::Chunk;
use crate::media::LINE;
use crate::media::mapping::PAGE;
use std::collections::VecDeque;

/// A chunk with its frame head and sum. Once sealed its bytes never change, so that writing it
/// again after a failure cannot leave two different frames of one sequence number.
#[derive(Debug)]
pub(super) struct Sealed {
    pub chunk: Chunk,
    pub seq: u64,
}

/// No segment that the writer may use is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// State of the journal. It is behind one lock, which is held across the writing of frames.
#[derive(Debug)]
pub(super) struct Log {
    pub salt: u32,
    pub epoch: u64,
    pub segment_bytes: u32,
    pub segments: u32,
    /// Place of the next frame if it fits, and its sequence number.
    pub at: Position,
    /// Sequence number of the next frame to be sealed.
    pub next_seq: u64,
    /// Frames below this one are durable.
    pub durable: u64,
    /// Lines in the frames written so far, and those in durable frames.
    pub written_lines: u64,
    pub durable_lines: u64,
    /// Segments from the head's to the one being written, in order; never empty.
    pub live: VecDeque<u32>,
    pub free: VecDeque<u32>,
    /// Sealed and not written.
    pub pending: VecDeque<Sealed>,
}

/// Calls `f` with the lines that a frame's payload has: first line, number.
pub(super) fn lines_of(payload: &[u8], f: &mut impl FnMut(u64, u64)) {
    for run in runs(payload, u64::MAX)
        .flatten()
        .filter(|run| !run.is_direct())
    {
        f(run.line, run.count);
    }
}

impl Log {
    /// Makes a frame of `chunk`.
    pub fn seal(&mut self, mut chunk: Chunk, pool_len: u64) {
        let seq = self.next_seq;
        self.next_seq += 1;
        // A chunk is at most a segment long, and a segment's length fits 32 bits.
        let payload = (chunk.bytes.len() - FRAME_HEAD) as u32;
        // At least as much as the chunk's own lines need, whatever was shrunk since.
        let pool_len = pool_len.max((chunk.top * LINE as u64).next_multiple_of(PAGE));
        let frame = Frame {
            seq,
            epoch: self.epoch,
            durable: self.durable,
            pool_len,
            payload,
        };
        frame.seal(self.salt, &mut chunk.bytes);
        self.pending.push_back(Sealed { chunk, seq });
    }

    /// Finds the place for the next frame of `bytes` bytes, leaving `reserve` segments free.
    pub fn place(&mut self, bytes: usize, reserve: usize) -> Result<(u32, u32), Full> {
        debug_assert!(bytes.is_multiple_of(SECTOR) && bytes <= self.segment_bytes as usize);
        if self.at.offset as usize + bytes > self.segment_bytes as usize {
            if self.free.len() <= reserve {
                return Err(Full);
            }
            let Some(next) = self.free.pop_front() else {
                return Err(Full);
            };
            self.live.push_back(next);
            self.at = Position {
                segment: next,
                offset: 0,
                ..self.at
            };
        }
        Ok((self.at.segment, self.at.offset))
    }

    /// Steps over the frame that was just written where [`place`](Self::place) said.
    pub fn advance(&mut self, bytes: usize, seq: u64, end: u64) {
        debug_assert_eq!(self.at.seq, seq, "frames are written in sequence");
        self.at.offset += bytes as u32;
        self.at.seq = seq + 1;
        self.written_lines = end;
    }

    /// Notes that all frames below `seq`, which hold the first `lines` lines, are durable.
    pub fn synced(&mut self, seq: u64, lines: u64) {
        self.durable = self.durable.max(seq);
        self.durable_lines = self.durable_lines.max(lines);
    }

    /// Frees the segments before `head`, which is durable in both header slots.
    pub fn let_go(&mut self, head: Position) {
        while self.live.len() > 1 && self.live.front() != Some(&head.segment) {
            self.free.extend(self.live.pop_front());
        }
    }

    /// Goes on at the front of a journal of `segments` segments, if it is empty: all that was
    /// written lies before `head`. Returns the place of the next frame, for the headers; then
    /// [`let_go`](Self::let_go) frees the segment before.
    ///
    /// A header whose head is the place before leads there, too: a chain goes on in the segment
    /// that begins with the next frame, if it has not been in that. So until both headers have the
    /// new place, no frame goes to the segment before.
    pub fn restart(&mut self, head: Position, segments: u32) -> Option<Position> {
        if head != self.at || !self.pending.is_empty() {
            return None;
        }
        let before = self.at.segment;
        let segment = u32::from(before == 0);
        self.at = Position {
            segment,
            offset: 0,
            ..self.at
        };
        self.segments = segments;
        self.live = (before < segments).then_some(before).into_iter().collect();
        self.live.push_back(segment);
        self.free = (0..segments)
            .filter(|other| !self.live.contains(other))
            .collect();
        Some(self.at)
    }

    /// Returns the part of the journal that is in use, as (used, total) bytes.
    pub fn fill(&self) -> (u64, u64) {
        let segment = u64::from(self.segment_bytes);
        let used = (self.live.len() as u64 - 1) * segment + u64::from(self.at.offset);
        (used, u64::from(self.segments) * segment)
    }

    /// Whether more than half of the journal is in use.
    pub fn is_half_full(&self) -> bool {
        let (used, total) = self.fill();
        used * 2 > total
    }

    /// Returns the number of segments that only a checkpoint's own writes may use, so that it can
    /// always finish.
    pub fn reserve(&self) -> usize {
        (self.segments as usize / 8).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u32 = 4096;

    /// A journal of eight segments that is in that one, and empty.
    fn log(segment: u32) -> Log {
        Log {
            salt: 0,
            epoch: 1,
            segment_bytes: SEGMENT,
            segments: 8,
            at: Position {
                seq: 70,
                segment,
                offset: 512,
            },
            next_seq: 70,
            durable: 70,
            written_lines: 0,
            durable_lines: 0,
            live: VecDeque::from([segment]),
            free: (0..8).filter(|other| *other != segment).collect(),
            pending: VecDeque::new(),
        }
    }

    /// The segments that frames go to until there is none left.
    fn fill(log: &mut Log) -> Vec<u32> {
        let mut used = Vec::new();
        while let Ok((segment, _)) = log.place(SECTOR, 0) {
            let seq = log.at.seq;
            log.advance(SECTOR, seq, 0);
            if used.last() != Some(&segment) {
                used.push(segment);
            }
        }
        used
    }

    #[test]
    fn a_restarted_journal_leaves_the_old_heads_segment_alone() {
        for before in 0..8 {
            let mut log = log(before);
            let old = log.at;
            let elsewhere = Position {
                seq: old.seq - 1,
                ..old
            };
            assert_eq!(log.restart(elsewhere, 4), None, "something lies behind it");
            let new = log.restart(old, 4).expect("it is empty");
            assert_eq!((new.seq, new.offset), (70, 0));
            assert_ne!(new.segment, before, "a chain never comes back to a segment");
            let used = fill(&mut log);
            assert_eq!(used.len(), if before < 4 { 3 } else { 4 }, "{used:?}");
            assert!(!used.contains(&before), "segment {before} in {used:?}");
            // Both headers have the new place.
            log.let_go(new);
            assert_eq!(
                fill(&mut log),
                if before < 4 { vec![before] } else { vec![] }
            );
        }
    }

    #[test]
    fn a_frame_goes_where_there_is_room_for_all_of_it() {
        let mut log = log(3);
        let rest = SEGMENT as usize - 512;
        assert_eq!(log.place(rest, 7), Ok((3, 512)), "it just fits");
        log.advance(rest, 70, 40);
        assert_eq!((log.at.seq, log.at.offset), (71, SEGMENT));
        assert_eq!(log.written_lines, 40);
        assert_eq!(log.fill(), (u64::from(SEGMENT), 8 * u64::from(SEGMENT)));
        assert_eq!(log.place(SECTOR, 7), Err(Full), "all seven are reserved");
        assert_eq!(log.place(SECTOR, 6), Ok((0, 0)));
        assert_eq!(log.live, [3, 0]);
        assert_eq!(log.free, [1, 2, 4, 5, 6, 7]);
        log.advance(SECTOR, 71, 41);
        assert_eq!(
            log.place(SEGMENT as usize, 0),
            Ok((1, 0)),
            "nor is it split"
        );
        log.advance(SEGMENT as usize, 72, 50);
        let segment = u64::from(SEGMENT);
        assert_eq!(log.fill(), (3 * segment, 8 * segment));

        let head = Position {
            seq: 71,
            segment: 0,
            offset: 0,
        };
        log.let_go(head);
        assert_eq!(log.live, [0, 1]);
        assert_eq!(log.free, [2, 4, 5, 6, 7, 3]);
        log.let_go(Position { segment: 5, ..head });
        assert_eq!(log.live, [1], "the one that is written stays");
    }

    #[test]
    fn more_than_half_is_more_than_half() {
        let mut log = log(0);
        log.live = (0..4).collect();
        log.at.offset = SEGMENT;
        assert_eq!(log.fill().0 * 2, log.fill().1);
        assert!(!log.is_half_full());
        log.live.push_back(4);
        log.at.offset = 0;
        assert!(!log.is_half_full());
        log.at.offset = 512;
        assert!(log.is_half_full());
    }

    #[test]
    fn an_eighth_of_the_segments_is_reserved_or_one() {
        for (segments, reserve) in [(1, 1), (4, 1), (8, 1), (15, 1), (16, 2), (64, 8)] {
            let mut log = log(0);
            log.segments = segments;
            assert_eq!(log.reserve(), reserve, "of {segments}");
        }
    }

    #[test]
    fn a_sealed_frame_says_what_was_durable_and_how_long_the_pool_is() {
        let mut log = log(0);
        log.durable = 69;
        // The pool was cut in the middle of the second chunk's lines.
        for (top, pool_len, expected) in [(64, 65_536, 65_536), (65, 4096, 8192)] {
            let seq = log.next_seq;
            let chunk = Chunk {
                bytes: vec![0; FRAME_HEAD],
                end: 0,
                top,
                long: Vec::new(),
            };
            log.seal(chunk, pool_len);
            let sealed = log.pending.pop_back().expect("one");
            let (frame, payload) = Frame::open(log.salt, &sealed.chunk.bytes).expect("whole");
            assert_eq!((frame.seq, sealed.seq), (seq, seq));
            assert_eq!((frame.epoch, frame.durable), (1, 69));
            assert_eq!((frame.pool_len, frame.payload), (expected, 0));
            assert!(payload.is_empty());
            assert_eq!(log.next_seq, seq + 1);
        }
    }

    #[test]
    fn what_is_durable_only_rises() {
        let mut log = log(0);
        log.synced(75, 30);
        log.synced(73, 20);
        assert_eq!((log.durable, log.durable_lines), (75, 30));
    }

    #[test]
    fn a_journal_with_something_in_it_does_not_restart() {
        let mut log = log(0);
        let chunk = Chunk {
            bytes: vec![0; FRAME_HEAD],
            end: 0,
            top: 0,
            long: Vec::new(),
        };
        log.seal(chunk, 4096);
        assert_eq!(log.restart(log.at, 4), None, "a frame waits to be written");
        assert_eq!((log.segments, log.live.len()), (8, 1));
    }
}
