//! Reading a journal back: the chain of frames from the head to the first that is not whole.
//!
//! # What is accepted
//! A frame continues the chain if its sum is right, its sequence number is the next one, and its
//! epoch is neither below the frame before it nor above the header's. Frames that an earlier
//! session wrote behind a tear, and that a later session's frames replaced, fail the epoch rule:
//! the later session's frame of the same number carries a higher epoch, and nothing of a lower one
//! follows it. The first frame has no predecessor, and is compared with the header's `floor`
//! instead.
//!
//! # What is damage
//! A chain that ends is the normal trace of a power failure. It is damage if there is evidence that
//! the missing frame had been durable: the header (`required`), or a whole frame further on that
//! was sealed when it was (`durable`). Then the opening fails, because the state without that frame
//! would be an older one.

use super::format::{
    DATA_AT, FRAME_HEAD, Frame, Header, Position, SECTOR, SLOT_AT, Slot, runs, salt,
};
use super::image::{DirtyPages, Image, PAGE_LINES};
use super::storage::Storage;
use crate::error::{OpenError, Wrong};
use crate::format::superblock::{self, Copy, Superblock};
use crate::media::{LINE, MediaRecovery};
use std::collections::VecDeque;
use std::io;
use std::path::Path;
use uuid::Uuid;

/// A journal file, and its name in errors.
pub(super) struct Source<'a> {
    pub storage: &'a dyn Storage,
    pub path: &'a Path,
}

/// The end of a chain.
#[derive(Debug)]
pub(super) struct Chain {
    /// The place and number of the next frame.
    pub end: Position,
    /// Segments that the chain goes through, in order; never empty.
    pub live: Vec<u32>,
    /// Its last frames: nothing says that they ever became durable.
    pub unsure: VecDeque<Unsure>,
    pub report: MediaRecovery,
}

/// A frame that was read, and that may be nowhere but in the page cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsure {
    pub seq: u64,
    /// Its place in the journal's file.
    pub at: u64,
    pub bytes: usize,
}

/// How a segment begins.
#[derive(Debug)]
enum First {
    /// With zeros: nothing was written there yet.
    Blank,
    /// With the (unchecked) head of a frame.
    Frame(Frame),
    /// With something else.
    Other,
}

impl First {
    fn frame(&self) -> Option<&Frame> {
        match self {
            Self::Frame(frame) => Some(frame),
            Self::Blank | Self::Other => None,
        }
    }
}

/// Receives the frames of a chain, in order.
pub(super) trait Apply {
    /// The pool has at least this many bytes from here on.
    fn extend(&mut self, pool_len: u64) -> Result<(), OpenError>;
    /// Lines from `line` on become `bytes`.
    fn lines(&mut self, line: u64, bytes: &[u8]);
    /// `count` lines from `line` on become what the pool file has.
    fn direct(&mut self, line: u64, count: u64) -> Result<(), OpenError>;
}

/// A receiver that only counts.
pub(super) struct Discard;

impl Apply for Discard {
    fn extend(&mut self, _pool_len: u64) -> Result<(), OpenError> {
        Ok(())
    }

    fn lines(&mut self, _line: u64, _bytes: &[u8]) {}

    fn direct(&mut self, _line: u64, _count: u64) -> Result<(), OpenError> {
        Ok(())
    }
}

/// A receiver that applies frames to an image that no other thread has yet.
pub(super) struct ToImage<'a> {
    pub image: &'a Image,
    pub pool: &'a dyn Storage,
    /// The pool file is extended with the image.
    pub extends: bool,
    pub path: &'a Path,
    pub dirty: &'a mut DirtyPages,
}

impl Apply for ToImage<'_> {
    fn extend(&mut self, pool_len: u64) -> Result<(), OpenError> {
        let from = self.image.len();
        if pool_len <= from {
            return Ok(());
        }
        if pool_len > self.image.capacity() {
            return Err(OpenError::Unsupported {
                path: self.path.to_path_buf(),
                what: format!(
                    "the journal makes the pool {pool_len} bytes long, and {} could be reserved; allow more address space",
                    self.image.capacity()
                ),
            });
        }
        if self.extends {
            self.pool
                .allocate(from, pool_len)
                .map_err(|e| OpenError::io(self.path, "extend", e))?;
            self.image.extend(pool_len)?;
        } else {
            self.image.extend_anonymous(pool_len)?;
        }
        Ok(())
    }

    fn lines(&mut self, line: u64, bytes: &[u8]) {
        self.image.restore(line, bytes);
        self.dirty.mark_lines(line, (bytes.len() / LINE) as u64);
    }

    /// Memory differs from the file in pages that earlier frames have changed.
    fn direct(&mut self, line: u64, count: u64) -> Result<(), OpenError> {
        let mut bytes = vec![0; PAGE_LINES as usize * LINE];
        let (mut at, end) = (line, line + count);
        while at < end {
            let next = ((at / PAGE_LINES + 1) * PAGE_LINES).min(end);
            if self.dirty.has(at / PAGE_LINES) {
                let here = &mut bytes[..(next - at) as usize * LINE];
                here.fill(0);
                let read = self.pool.read_full(at * LINE as u64, here);
                read.map_err(|e| OpenError::io(self.path, "read", e))?;
                self.image.restore(at, here);
            }
            at = next;
        }
        Ok(())
    }
}

impl Source<'_> {
    fn io(&self, source: io::Error) -> OpenError {
        OpenError::io(self.path, "read", source)
    }

    fn corrupt(&self, what: String) -> OpenError {
        OpenError::Corrupt {
            path: self.path.to_path_buf(),
            what,
        }
    }

    /// Returns the header in force and its slot, or `None` if no journal was ever finished.
    pub fn header(&self) -> Result<Option<(Header, usize)>, OpenError> {
        let mut best: Option<(Header, usize)> = None;
        let mut bad = 0;
        for (slot, at) in SLOT_AT.into_iter().enumerate() {
            let mut bytes = [0; SECTOR];
            self.storage
                .read_full(at, &mut bytes)
                .map_err(|e| self.io(e))?;
            match Header::decode(&bytes) {
                Slot::Blank => {}
                Slot::Bad => bad += 1,
                Slot::Other(version) => {
                    return Err(OpenError::Version {
                        path: self.path.to_path_buf(),
                        version,
                    });
                }
                Slot::Sound(header) => {
                    if best.is_none_or(|(b, _)| header.generation > b.generation) {
                        best = Some((header, slot));
                    }
                }
            }
        }
        if best.is_none() && bad > 0 {
            return Err(self.corrupt(
                "neither header can be read: not a journal, or damaged; restore it, or move it away to open the pool without what only it holds".into(),
            ));
        }
        Ok(best)
    }

    /// Follows the chain from the header's head and applies it.
    pub fn replay(
        &self,
        header: &Header,
        to: &mut dyn Apply,
        wrong: &mut Wrong<'_>,
    ) -> Result<Chain, OpenError> {
        let began = std::time::Instant::now();
        let salt = salt(&header.uuid);
        let heads = self.first_frames(header)?;
        let mut chain = Chain {
            end: header.head,
            live: vec![header.head.segment],
            unsure: VecDeque::new(),
            report: MediaRecovery::default(),
        };
        let mut epoch = header.floor;
        let mut bytes = self.segment(header, header.head.segment, &mut chain.report)?;
        loop {
            let Position {
                seq,
                segment,
                offset,
            } = chain.end;
            let next =
                |frame: &Frame| frame.seq == seq && (epoch..=header.epoch).contains(&frame.epoch);
            let here = Frame::open(salt, bytes.get(offset as usize..).unwrap_or(&[]))
                .filter(|(frame, _)| next(frame));
            if let Some((frame, payload)) = here {
                let applied = self.apply(&frame, payload, segment, offset, to, &mut chain.report);
                if let Err(e) = applied {
                    wrong.found(e)?;
                    break;
                }
                epoch = frame.epoch;
                let durable = frame.durable.max(header.required);
                while chain.unsure.pop_front_if(|f| f.seq < durable).is_some() {}
                if seq >= durable {
                    chain.unsure.push_back(Unsure {
                        seq,
                        at: header.file_offset(segment, offset),
                        bytes: frame.disk_bytes(),
                    });
                }
                // Inside a segment, whose length fits 32 bits.
                let end = offset + frame.disk_bytes() as u32;
                chain.end = Position {
                    seq: seq + 1,
                    segment,
                    offset: end,
                };
                continue;
            }
            // The next frame is not here, but in the segment that starts with it, if there is one.
            let mut elsewhere = None;
            for (other, head) in heads.iter().enumerate() {
                let other = other as u32;
                if head.frame().is_some_and(&next) && !chain.live.contains(&other) {
                    let found = self.segment(header, other, &mut chain.report)?;
                    if Frame::open(salt, &found).is_some_and(|(frame, _)| next(&frame)) {
                        elsewhere = Some((other, found));
                        break;
                    }
                }
            }
            let Some((other, found)) = elsewhere else {
                break;
            };
            chain.live.push(other);
            chain.end = Position {
                seq,
                segment: other,
                offset: 0,
            };
            bytes = found;
        }
        if let Err(e) = self.check_end(header, &chain, epoch, &bytes, &heads) {
            wrong.found(e)?;
        }
        let rest = bytes.get(chain.end.offset as usize..).unwrap_or(&[]);
        chain.report.torn_tail = Frame::peek(rest)
            .is_some_and(|frame| frame.seq >= chain.end.seq && frame.epoch <= header.epoch);
        chain.report.elapsed = began.elapsed();
        Ok(chain)
    }

    /// Checks a frame whole, then applies it.
    fn apply(
        &self,
        frame: &Frame,
        payload: &[u8],
        segment: u32,
        offset: u32,
        to: &mut dyn Apply,
        report: &mut MediaRecovery,
    ) -> Result<(), OpenError> {
        let mut lines = 0;
        for run in runs(payload, frame.pool_len) {
            let run = run.map_err(|bad| {
                self.corrupt(format!(
                    "frame {} (segment {segment}, byte {offset}): {bad}",
                    frame.seq
                ))
            })?;
            lines = u64::saturating_add(lines, run.count);
        }
        to.extend(frame.pool_len)?;
        for run in runs(payload, frame.pool_len).flatten() {
            if run.is_direct() {
                to.direct(run.line, run.count)?;
            } else {
                to.lines(run.line, run.bytes);
            }
        }
        report.batches_replayed += 1;
        report.lines_replayed = report.lines_replayed.saturating_add(lines);
        Ok(())
    }

    /// Tells damage from the trace of a power failure; see the module's head.
    fn check_end(
        &self,
        header: &Header,
        chain: &Chain,
        epoch: u64,
        bytes: &[u8],
        heads: &[First],
    ) -> Result<(), OpenError> {
        let end = chain.end;
        let place = format!(
            "frame {} (segment {}, byte {}) is damaged",
            end.seq, end.segment, end.offset
        );
        if end.seq < header.required {
            return Err(self.corrupt(format!(
                "{place}, and the pool file depends on it: restore both from a backup"
            )));
        }
        let proves = |frame: &Frame| {
            frame.durable > end.seq && (epoch..=header.epoch).contains(&frame.epoch)
        };
        let salt = salt(&header.uuid);
        let proof_in = |bytes: &[u8], from: usize| {
            let mut proof = None;
            let mut at = from;
            while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() >= FRAME_HEAD) {
                if let Some((frame, _)) = Frame::open(salt, rest) {
                    if proves(&frame) {
                        proof = Some(frame);
                    }
                    at += frame.disk_bytes();
                } else {
                    at += SECTOR;
                }
            }
            proof
        };
        let mut proof = proof_in(bytes, end.offset as usize + SECTOR);
        for (segment, first) in heads.iter().enumerate() {
            // A segment is filled from its front on: where the first frame is old, all are.
            let old = match first {
                First::Blank => true,
                First::Frame(frame) => frame.seq < end.seq,
                First::Other => false,
            };
            if proof.is_none() && !old {
                let bytes = self.segment(header, segment as u32, &mut MediaRecovery::default())?;
                proof = proof_in(&bytes, 0);
            }
        }
        match proof {
            None => Ok(()),
            Some(later) => Err(self.corrupt(format!(
                "{place}, and was durable before frame {} was written: commits that were acknowledged are lost; restore the journal from a backup",
                later.seq
            ))),
        }
    }

    /// Returns how every segment begins.
    fn first_frames(&self, header: &Header) -> Result<Vec<First>, OpenError> {
        let size = self.storage.size().map_err(|e| self.io(e))?;
        let whole = size.saturating_sub(DATA_AT) / u64::from(header.segment_bytes);
        let segments = u64::from(header.segments).min(whole) as u32;
        (0..segments)
            .map(|segment| {
                let mut head = [0; FRAME_HEAD];
                self.storage
                    .read_full(header.file_offset(segment, 0), &mut head)
                    .map_err(|e| self.io(e))?;
                Ok(match Frame::peek(&head) {
                    Some(frame) => First::Frame(frame),
                    None if head == [0; FRAME_HEAD] => First::Blank,
                    None => First::Other,
                })
            })
            .collect()
    }

    /// Returns a segment's bytes; fewer where the file has been cut.
    fn segment(
        &self,
        header: &Header,
        segment: u32,
        report: &mut MediaRecovery,
    ) -> Result<Vec<u8>, OpenError> {
        let mut bytes = vec![0; header.segment_bytes as usize];
        let read = self
            .storage
            .read_full(header.file_offset(segment, 0), &mut bytes)
            .map_err(|e| self.io(e))?;
        bytes.truncate(read);
        report.bytes_read += read as u64;
        Ok(bytes)
    }
}

/// Whether a journal of `uuid` belongs to the pool file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A superblock copy names the same pool.
    Same,
    /// The pool file has no superblock: its creation was cut short and is all in the journal.
    Unborn,
    /// Neither copy does.
    Other,
}

/// Compares a journal's header with the two superblock copies' UUIDs.
pub(super) fn owner(pool: &dyn Storage, header: &Header) -> io::Result<Owner> {
    /// Where the copies begin, and the UUID inside each.
    const COPIES: [u64; 2] = [0, 4096];
    const UUID: std::ops::Range<usize> = 32..48;
    let mut blank = true;
    for at in COPIES {
        let mut start = [0; 64];
        pool.read_full(at, &mut start)?;
        if start[UUID] == header.uuid {
            return Ok(Owner::Same);
        }
        blank &= start.iter().all(|b| *b == 0);
    }
    Ok(if blank && header.head.seq == 1 {
        Owner::Unborn
    } else {
        Owner::Other
    })
}

/// Whether the pool file says by a whole superblock copy which pool it is.
pub(super) fn is_named(pool: &dyn Storage) -> io::Result<bool> {
    for at in superblock::COPIES {
        let mut copy = [0; superblock::BYTES];
        pool.read_full(at, &mut copy)?;
        if matches!(Superblock::decode(&copy), Copy::Whole(_)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the error for a journal beside a pool file that does not say which pool it is.
pub(super) fn nameless(path: &Path) -> OpenError {
    OpenError::Corrupt {
        path: path.to_path_buf(),
        what: "the pool's file does not say which pool it is; this journal is taken for its own"
            .into(),
    }
}

/// Returns the error for a journal that belongs to another pool.
pub(super) fn foreign(path: &Path, header: &Header, chain: &Chain) -> OpenError {
    OpenError::Corrupt {
        path: path.to_path_buf(),
        what: format!(
            "this journal belongs to another pool ({}) and holds {} changes that are not in that pool's file; put it back beside it, or delete it if that pool is gone",
            Uuid::from_bytes(header.uuid),
            chain.report.lines_replayed
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::{FaultDisk, Which};
    use super::super::format::FORMAT;
    use super::*;

    #[test]
    fn a_journal_is_the_pools_whose_name_it_has() {
        let header = |seq| Header {
            version: FORMAT,
            uuid: *b"0123456789abcdef",
            generation: 1,
            epoch: 1,
            head: Position {
                seq,
                segment: 0,
                offset: 0,
            },
            segment_bytes: 1 << 16,
            segments: 4,
            required: 0,
            floor: 0,
        };
        let (same, other) = (*b"0123456789abcdef", *b"0123456789abcdeg");
        let owner_of = |copies: [[u8; 16]; 2], seq| {
            let disk = FaultDisk::new(1);
            let mut bytes = vec![0; 8192];
            bytes[32..48].copy_from_slice(&copies[0]);
            bytes[4096 + 32..][..16].copy_from_slice(&copies[1]);
            disk.set_bytes(Which::Pool, bytes);
            owner(&*disk.file(Which::Pool), &header(seq)).expect("reads")
        };
        let none = [0; 16];
        for seq in [1, 2] {
            for copies in [[same, same], [same, none], [other, same], [none, same]] {
                assert_eq!(owner_of(copies, seq), Owner::Same, "{copies:?}, {seq}");
            }
            for copies in [[other, other], [other, none], [none, other]] {
                assert_eq!(owner_of(copies, seq), Owner::Other, "{copies:?}, {seq}");
            }
        }
        // Its creation is all in the journal, unless that has moved on.
        assert_eq!(owner_of([none, none], 1), Owner::Unborn);
        assert_eq!(owner_of([none, none], 2), Owner::Other);
        // Shorter than its superblocks.
        let disk = FaultDisk::new(1);
        let pool = disk.file(Which::Pool);
        assert_eq!(owner(&*pool, &header(1)).expect("reads"), Owner::Unborn);
        assert!(!is_named(&*pool).expect("reads"));
    }
}
