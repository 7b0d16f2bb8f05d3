//! Bytes of the journal file: header slots, frames, runs of lines. All little-endian.

use crate::media::LINE;
use crate::version::VersionError;
use std::fmt;

/// The unit that a disk writes whole or not at all.
pub(super) const SECTOR: usize = 512;
/// Where the two header slots lie: never in the same 4 KiB block.
pub(super) const SLOT_AT: [u64; 2] = [0, 4096];
/// Where segment 0 begins.
pub(super) const DATA_AT: u64 = 8192;
/// Bytes of a frame before its payload.
pub(super) const FRAME_HEAD: usize = 64;
/// Maximum number of lines in one run.
pub(super) const MAX_RUN: u64 = u16::MAX as u64;
/// Smallest and largest segment.
pub(super) const SEGMENT_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=16 << 20;
/// Number of segments in a new journal, and the minimum.
pub(super) const FIRST_SEGMENTS: u32 = 4;
/// Maximum number of segments that a header may name.
pub(super) const MAX_SEGMENTS: u32 = 1 << 16;
/// The version of the format that this build writes. It also reads the one before, which has no
/// direct runs.
pub const FORMAT: u32 = 2;
const OLDEST: u32 = 1;

const HEADER_MAGIC: [u8; 8] = *b"BRSTLJNL";
const FRAME_MAGIC: [u8; 4] = *b"JFRM";
const LINE_BITS: u32 = 48;

// A header is one sector, so it is never torn; the slots and the data do not overlap.
const _: () = assert!(SLOT_AT[0] + SECTOR as u64 <= SLOT_AT[1]);
const _: () = assert!(SLOT_AT[1] + SECTOR as u64 <= DATA_AT);
// Frames start at sectors, so that a torn one cannot damage an earlier one.
const _: () = assert!(DATA_AT.is_multiple_of(SECTOR as u64));
const _: () = assert!((*SEGMENT_BYTES.start()).is_multiple_of(SECTOR as u32));
// A run's word holds a line number and a count.
const _: () = assert!(FIRST_SEGMENTS <= MAX_SEGMENTS && DATA_AT >= 2 * crate::media::mapping::PAGE);
const _: () = assert!(LINE_BITS + MAX_RUN.count_ones() == u64::BITS);
// A head is a whole number of words and its fields (see `Frame::seal`) fill 48 bytes of it.
const _: () = assert!(FRAME_HEAD.is_multiple_of(8) && FRAME_HEAD >= 48);

/// Reads a little-endian word; bytes past the end count as zero.
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(found) = bytes.get(at..at + 8) {
        word.copy_from_slice(found);
    }
    u64::from_le_bytes(word)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let mut half = [0; 4];
    if let Some(found) = bytes.get(at..at + 4) {
        half.copy_from_slice(found);
    }
    u32::from_le_bytes(half)
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn put_half(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// A place between two frames, and the sequence number of the frame that starts there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub seq: u64,
    pub segment: u32,
    pub offset: u32,
}

/// One header slot's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The version that was read. Written is always [`FORMAT`].
    pub version: u32,
    pub uuid: [u8; 16],
    /// Of two sound slots the one with the higher generation counts.
    pub generation: u64,
    /// Raised, durably, before a session writes its first frame.
    pub epoch: u64,
    /// Everything before it is in the pool file.
    pub head: Position,
    pub segment_bytes: u32,
    pub segments: u32,
    /// Frames below this one were durable when this header was written, and the pool file may
    /// depend on them. A chain that ends before it is damaged, not torn.
    pub required: u64,
    /// The epoch of the session that moved the head there. No frame behind it has a lower one.
    pub floor: u64,
}

/// The result of decoding a header slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// All zero: never written.
    Blank,
    /// Neither blank nor a header.
    Bad,
    /// A header of a version that is not read.
    Other(VersionError),
    /// A header that checks out.
    Sound(Header),
}

impl Header {
    pub fn encode(&self) -> [u8; SECTOR] {
        let mut b = [0; SECTOR];
        b[..8].copy_from_slice(&HEADER_MAGIC);
        put_half(&mut b, 8, FORMAT);
        b[16..32].copy_from_slice(&self.uuid);
        put(&mut b, 32, self.generation);
        put(&mut b, 40, self.epoch);
        put(&mut b, 48, self.head.seq);
        put_half(&mut b, 56, self.head.segment);
        put_half(&mut b, 60, self.head.offset);
        put_half(&mut b, 64, self.segment_bytes);
        put_half(&mut b, 68, self.segments);
        put(&mut b, 72, self.required);
        put(&mut b, 80, self.floor);
        // The sum is over the sector with a zero in the sum's own place.
        let sum = crc32c::crc32c(&b);
        put_half(&mut b, 12, sum);
        b
    }

    pub fn decode(bytes: &[u8]) -> Slot {
        if bytes.iter().all(|b| *b == 0) {
            return Slot::Blank;
        }
        if bytes.len() != SECTOR || bytes[..8] != HEADER_MAGIC {
            return Slot::Bad;
        }
        let mut unsummed = [0; SECTOR];
        unsummed.copy_from_slice(bytes);
        put_half(&mut unsummed, 12, 0);
        if half(bytes, 12) != crc32c::crc32c(&unsummed) {
            return Slot::Bad;
        }
        let version = half(bytes, 8);
        let readable = OLDEST.into()..=FORMAT.into();
        if let Err(e) = VersionError::check("journal", version.into(), readable) {
            return Slot::Other(e);
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&bytes[16..32]);
        let header = Self {
            version,
            uuid,
            generation: word(bytes, 32),
            epoch: word(bytes, 40),
            head: Position {
                seq: word(bytes, 48),
                segment: half(bytes, 56),
                offset: half(bytes, 60),
            },
            segment_bytes: half(bytes, 64),
            segments: half(bytes, 68),
            required: word(bytes, 72),
            floor: word(bytes, 80),
        };
        let sound = header.segment_bytes.is_power_of_two()
            && SEGMENT_BYTES.contains(&header.segment_bytes)
            && (1..=MAX_SEGMENTS).contains(&header.segments)
            && header.head.segment < header.segments
            && header.head.offset <= header.segment_bytes
            && header.head.offset.is_multiple_of(SECTOR as u32)
            && header.head.seq >= 1
            && header.floor <= header.epoch;
        if sound {
            Slot::Sound(header)
        } else {
            Slot::Bad
        }
    }

    /// Returns the place of a position of the log in the file.
    pub fn file_offset(&self, segment: u32, offset: u32) -> u64 {
        DATA_AT + u64::from(segment) * u64::from(self.segment_bytes) + u64::from(offset)
    }
}

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub seq: u64,
    pub epoch: u64,
    /// Frames below this one were durable when this frame was sealed.
    pub durable: u64,
    /// Bytes of the pool; every line of the frame lies below.
    pub pool_len: u64,
    /// Bytes of runs after the head.
    pub payload: u32,
}

impl Frame {
    /// Writes the head in front of the payload that `bytes` already holds, and zeros behind it up
    /// to the next sector. Sums are salted with the pool's UUID, so that frames of another pool are
    /// never accepted.
    pub fn seal(&self, salt: u32, bytes: &mut Vec<u8>) {
        debug_assert_eq!(
            bytes.len(),
            FRAME_HEAD + self.payload as usize,
            "head and payload"
        );
        put(bytes, 8, self.seq);
        put(bytes, 16, self.epoch);
        put(bytes, 24, self.durable);
        put(bytes, 32, self.pool_len);
        put_half(bytes, 40, self.payload);
        bytes[44..FRAME_HEAD].fill(0);
        bytes[..4].copy_from_slice(&FRAME_MAGIC);
        let sum = crc32c::crc32c_append(salt, &bytes[8..]);
        put_half(bytes, 4, sum);
        bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    }

    /// Reads the head at the start of `bytes` without checking the sum.
    pub fn peek(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < FRAME_HEAD || bytes[..4] != FRAME_MAGIC {
            return None;
        }
        Some(Self {
            seq: word(bytes, 8),
            epoch: word(bytes, 16),
            durable: word(bytes, 24),
            pool_len: word(bytes, 32),
            payload: half(bytes, 40),
        })
    }

    /// Returns the frame at the start of `bytes`, with its payload, if it is whole.
    pub fn open(salt: u32, bytes: &[u8]) -> Option<(Self, &[u8])> {
        let frame = Self::peek(bytes)?;
        let end = FRAME_HEAD.checked_add(frame.payload as usize)?;
        let summed = bytes.get(8..end)?;
        (crc32c::crc32c_append(salt, summed) == half(bytes, 4))
            .then(|| (frame, &bytes[FRAME_HEAD..end]))
    }

    /// Returns the frame's bytes on disk.
    pub fn disk_bytes(&self) -> usize {
        (FRAME_HEAD + self.payload as usize).next_multiple_of(SECTOR)
    }
}

/// Returns the initial value of every frame's checksum.
pub(super) fn salt(uuid: &[u8; 16]) -> u32 {
    crc32c::crc32c(uuid)
}

/// Returns a run's leading word.
pub(super) fn run_word(line: u64, count: u64) -> u64 {
    debug_assert!(
        line >> LINE_BITS == 0 && (1..=MAX_RUN).contains(&count),
        "fits its bits"
    );
    line << (u64::BITS - LINE_BITS) | count
}

/// Returns the words of a direct run: lines that are in the pool file.
pub(super) fn direct_run(line: u64, count: u64) -> [u8; 16] {
    debug_assert!(line >> LINE_BITS == 0, "fits its bits");
    let mut words = [0; 16];
    put(&mut words, 0, line << (u64::BITS - LINE_BITS));
    put(&mut words, 8, count);
    words
}

/// A run of consecutive lines and their bytes. Those of a direct one are in the pool file: `bytes`
/// is empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    pub line: u64,
    pub count: u64,
    pub bytes: &'a [u8],
}

impl Run<'_> {
    pub fn is_direct(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// A payload that contradicts itself although its sum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadRun {
    line: u64,
    count: u64,
    pool_len: u64,
}

impl fmt::Display for BadRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lines from line {} do not fit a pool of {} bytes, or their bytes are missing",
            self.count, self.line, self.pool_len
        )
    }
}

/// Returns the runs of a payload, each checked to lie in a pool of `pool_len` bytes.
pub(super) fn runs(payload: &[u8], pool_len: u64) -> impl Iterator<Item = Result<Run<'_>, BadRun>> {
    let mut rest = payload;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let lead = word(rest, 0);
        let line = lead >> (u64::BITS - LINE_BITS);
        let (count, bytes) = match lead & MAX_RUN {
            0 => (word(rest, 8), rest.get(16..16)),
            count => (count, rest.get(8..8 + count as usize * LINE)),
        };
        let end = line.checked_add(count);
        let end = end.and_then(|end| end.checked_mul(LINE as u64));
        match bytes {
            Some(bytes) if count > 0 && end.is_some_and(|end| end <= pool_len) => {
                let words = if bytes.is_empty() { 16 } else { 8 };
                rest = &rest[words + bytes.len()..];
                Some(Ok(Run { line, count, bytes }))
            }
            _ => {
                rest = &[];
                Some(Err(BadRun {
                    line,
                    count,
                    pool_len,
                }))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            version: FORMAT,
            uuid: *b"0123456789abcdef",
            generation: 7,
            epoch: 3,
            head: Position {
                seq: 42,
                segment: 2,
                offset: 1024,
            },
            segment_bytes: 1 << 20,
            segments: 4,
            required: 40,
            floor: 2,
        }
    }

    #[test]
    fn header_round_trip_and_every_flipped_bit_is_noticed() {
        let bytes = header().encode();
        assert_eq!(Header::decode(&bytes), Slot::Sound(header()));
        assert_eq!(Header::decode(&[0; SECTOR]), Slot::Blank);
        for bit in 0..SECTOR * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bad), Slot::Bad, "bit {bit}");
        }
        let insane = Header {
            head: Position {
                seq: 1,
                segment: 4,
                offset: 0,
            },
            ..header()
        };
        assert_eq!(
            Header::decode(&insane.encode()),
            Slot::Bad,
            "head past the last segment"
        );
    }

    #[test]
    fn a_header_of_another_version_is_told_from_a_bad_one() {
        let decoded = |version| {
            let mut bytes = header().encode();
            put_half(&mut bytes, 8, version);
            put_half(&mut bytes, 12, 0);
            let sum = crc32c::crc32c(&bytes);
            put_half(&mut bytes, 12, sum);
            Header::decode(&bytes)
        };
        for version in [FORMAT + 1, 0] {
            let Slot::Other(e) = decoded(version) else {
                panic!("version {version}");
            };
            assert_eq!((e.found, e.is_newer()), (version.into(), version > FORMAT));
        }
        let older = Header {
            version: OLDEST,
            ..header()
        };
        assert_eq!(decoded(OLDEST), Slot::Sound(older));
    }

    #[test]
    fn frame_round_trip_and_every_flipped_bit_is_noticed() {
        let mut bytes = vec![0; FRAME_HEAD];
        bytes.extend(run_word(5, 2).to_le_bytes());
        bytes.extend([0xab; 2 * LINE]);
        let payload = (bytes.len() - FRAME_HEAD) as u32;
        let frame = Frame {
            seq: 9,
            epoch: 1,
            durable: 8,
            pool_len: 4096,
            payload,
        };
        frame.seal(77, &mut bytes);
        assert_eq!(bytes.len(), frame.disk_bytes());
        let (found, runs_of) = Frame::open(77, &bytes).expect("whole");
        assert_eq!(found, frame);
        let runs: Vec<_> = runs(runs_of, found.pool_len).collect();
        assert_eq!(runs.len(), 1);
        let run = runs[0].expect("in range");
        assert_eq!((run.line, run.bytes), (5, &[0xab; 2 * LINE][..]));
        assert!(Frame::open(78, &bytes).is_none(), "another pool's frame");
        for bit in 0..(FRAME_HEAD + payload as usize) * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Frame::open(77, &bad).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn a_frame_is_of_one_pool() {
        let [one, other] = [b"0123456789abcdef", b"0123456789abcdeg"].map(salt);
        let mut bytes = vec![0; FRAME_HEAD];
        let frame = Frame {
            seq: 9,
            epoch: 1,
            durable: 8,
            pool_len: 4096,
            payload: 0,
        };
        frame.seal(one, &mut bytes);
        assert!(Frame::open(one, &bytes).is_some());
        assert!(Frame::open(other, &bytes).is_none());
    }

    #[test]
    fn direct_runs_have_no_bytes() {
        let mut payload = direct_run(3, 70_000).to_vec();
        payload.extend(run_word(9, 1).to_le_bytes());
        payload.extend([7; LINE]);
        let all: Vec<_> = runs(&payload, 1 << 30)
            .map(|run| run.expect("sound"))
            .collect();
        assert_eq!(
            (all[0].line, all[0].count, all[0].is_direct()),
            (3, 70_000, true)
        );
        assert_eq!(
            (all[1].line, all[1].count, all[1].is_direct()),
            (9, 1, false)
        );
        assert!(
            runs(&payload, 4096).next().expect("one").is_err(),
            "outside"
        );
        let far = direct_run(3, u64::MAX);
        assert!(runs(&far, u64::MAX).next().expect("one").is_err());
    }

    #[test]
    fn runs_outside_the_pool_or_without_bytes_are_errors() {
        let mut outside = run_word(64, 1).to_le_bytes().to_vec();
        outside.extend([0; LINE]);
        assert!(runs(&outside, 4096).next().expect("one").is_err());
        assert!(runs(&outside, 4160).next().expect("one").is_ok());
        let missing = run_word(0, 3).to_le_bytes();
        assert!(runs(&missing, 4096).next().expect("one").is_err());
        let empty = 0u64.to_le_bytes();
        assert!(runs(&empty, 4096).next().expect("one").is_err());
        let none = direct_run(3, 0);
        assert!(runs(&none, 4096).next().expect("one").is_err());
        assert!(
            runs(&[1, 2, 3], 4096).next().expect("one").is_err(),
            "half a word"
        );
    }

    #[test]
    fn a_header_that_contradicts_itself_is_bad() {
        type Change = fn(&mut Header);
        let decoded = |change: Change| {
            let mut header = header();
            change(&mut header);
            (Header::decode(&header.encode()), Slot::Sound(header))
        };
        let sound: [Change; 8] = [
            |h| h.segment_bytes = 64 << 10,
            |h| h.segment_bytes = 16 << 20,
            |h| (h.segments, h.head.segment) = (1, 0),
            |h| (h.segments, h.head.segment) = (MAX_SEGMENTS, MAX_SEGMENTS - 1),
            |h| h.head.segment = 3,
            |h| h.head.offset = h.segment_bytes,
            |h| h.head.seq = 1,
            |h| h.floor = h.epoch,
        ];
        for (i, change) in sound.into_iter().enumerate() {
            let (found, expected) = decoded(change);
            assert_eq!(found, expected, "sound, number {i}");
        }
        let bad: [Change; 9] = [
            |h| h.segment_bytes = 3 << 19,
            |h| h.segment_bytes = 32 << 10,
            |h| h.segment_bytes = 32 << 20,
            |h| (h.segments, h.head.segment) = (0, 0),
            |h| h.segments = MAX_SEGMENTS + 1,
            |h| h.head.offset = h.segment_bytes + SECTOR as u32,
            |h| h.head.offset = 1000,
            |h| h.head.seq = 0,
            |h| h.floor = h.epoch + 1,
        ];
        for (i, change) in bad.into_iter().enumerate() {
            assert_eq!(decoded(change).0, Slot::Bad, "bad, number {i}");
        }
    }

    #[test]
    fn a_header_is_one_sector_that_begins_with_its_name() {
        let mut bytes = header().encode();
        assert_eq!(Header::decode(&bytes[..SECTOR - 1]), Slot::Bad);
        assert_eq!(Header::decode(&[&bytes[..], &[0]].concat()), Slot::Bad);
        bytes[0] ^= 1;
        put_half(&mut bytes, 12, 0);
        let sum = crc32c::crc32c(&bytes);
        put_half(&mut bytes, 12, sum);
        assert_eq!(Header::decode(&bytes), Slot::Bad, "another file's");
    }

    #[test]
    fn segments_lie_behind_the_headers_one_after_the_other() {
        let header = header();
        assert_eq!(header.file_offset(0, 0), 8192);
        assert_eq!(header.file_offset(0, 512), 8192 + 512);
        assert_eq!(header.file_offset(3, 1024), 8192 + (3 << 20) + 1024);
    }

    #[test]
    fn a_frame_is_no_longer_than_its_sectors() {
        for (payload, bytes) in [(0, 512), (8, 512), (448, 512), (449, 1024), (960, 1024)] {
            let frame = Frame {
                seq: 1,
                epoch: 1,
                durable: 1,
                pool_len: 4096,
                payload,
            };
            assert_eq!(frame.disk_bytes(), bytes, "{payload}");
        }
        let mut bytes = vec![0; FRAME_HEAD];
        let frame = Frame {
            seq: 1,
            epoch: 1,
            durable: 1,
            pool_len: 4096,
            payload: 0,
        };
        frame.seal(7, &mut bytes);
        assert_eq!(Frame::peek(&bytes[..FRAME_HEAD]), Some(frame));
        assert_eq!(Frame::peek(&bytes[..FRAME_HEAD - 1]), None);
        assert!(Frame::open(7, &bytes[..FRAME_HEAD]).is_some());
        bytes[0] ^= 1;
        assert_eq!(Frame::peek(&bytes), None);
    }

    #[test]
    fn a_bad_run_says_what_does_not_fit() {
        let bytes = [&run_word(63, 2).to_le_bytes()[..], &[0; 2 * LINE]].concat();
        let bad = runs(&bytes, 4096).next().expect("one").expect_err("bad");
        assert_eq!(
            bad.to_string(),
            "2 lines from line 63 do not fit a pool of 4096 bytes, or their bytes are missing"
        );
    }
}
