//! Frames: what the files of an archive consist of.
//!
//! ```text
//! frame    | "BCAF" | kind (8) 0 (24) | number in the file (32) | length (32) | content | CRC-32C (32) |
//!   1      | what the file is: the first frame                                                         head
//!   2      | low: length (32), bytes | 1, high: length (32), bytes; or 0 | entries: change, change ... range
//!   3      | change, change ...                                                                        commits
//!   4      | below, generation, stamp, wall, session, count, sequence, token (64 each)                  mark
//! head     | format (32) | whether a state (8) 0 (24) | UUID (128) | from, time, wall, archive (64 each)
//! change   | stamp (64) | wall (64) | key length (32) | value length, or 2^32 - 1: removed (32) | key | value
//! ```
//!
//! Numbers are little-endian; those called wall are ms since 1970. The sum covers what precedes it
//! in the frame, and begins with the archive's UUID: so a frame of another archive is none.

use bristlecone_index::clustered::Mark;

pub(super) const MAGIC: [u8; 4] = *b"BCAF";
/// Version of the format of archives that this build writes, and the only one that it reads.
pub const FORMAT: u32 = 1;
/// Bytes of a frame before its content.
pub(super) const FRAME_HEAD: usize = 16;
/// Bytes behind its content.
pub(super) const FRAME_END: usize = 4;
/// Bytes of the content of a mark.
pub(super) const MARK_BYTES: usize = 64;
/// Bytes of the content of a head.
pub(super) const HEAD_BYTES: usize = 56;
/// Most bytes of a frame's content: more than any that is written, whose longest has a value.
pub(super) const MOST_BYTES: usize = 1 << 30;
/// A removed key has no value of this length.
const REMOVED: u32 = u32::MAX;
/// Bytes of a change before its key.
const CHANGE: usize = 24;

/// The archive's identity: that of the pool whose store is in it.
pub(crate) type Uuid = [u8; 16];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Head = 1,
    Range = 2,
    Commits = 3,
    Mark = 4,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let all = [Self::Head, Self::Range, Self::Commits, Self::Mark];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The content of the first frame of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) format: u32,
    pub(super) is_state: bool,
    pub(super) uuid: Uuid,
    /// Of commits: all with this stamp or a later one. Of a state: what it has to be put on, which
    /// has all commits below; 0 if it is full.
    pub(super) from: u64,
    /// Of a state: it has all commits below.
    pub(super) time: u64,
    /// When the file was begun; of a state, after its time.
    pub(super) wall: u64,
    /// A number of the archive's own.
    pub(super) archive: u64,
}

/// Up to where a file is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Until {
    /// All commits with stamps below it are there.
    pub(crate) below: u64,
    /// Later changes are in pages that have changed since this mark.
    pub(crate) mark: Option<Mark>,
    /// All commits that are not there are later; in ms since 1970.
    pub(crate) wall: u64,
    /// The first stamp of the next session, if the store was closed then; else 0.
    pub(crate) session: u64,
    /// Entries or commits before it in the file.
    pub(crate) count: u64,
    /// The pool had this token before the mark was written.
    pub(crate) token: Token,
}

/// Identifies a mark. A pool that was put back to an earlier copy does not have the last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Token {
    /// One up with each mark.
    pub(crate) sequence: u64,
    /// Random.
    pub(crate) token: u64,
}

fn sum(uuid: &Uuid, head: &[u8], content: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(uuid), head);
    crc32c::crc32c_append(sum, content)
}

/// Appends a frame, whose content `write` appends.
pub(super) fn frame(
    out: &mut Vec<u8>,
    (uuid, number): (&Uuid, u32),
    kind: Kind,
    write: impl FnOnce(&mut Vec<u8>),
) {
    let at = out.len();
    out.extend(MAGIC);
    out.extend([kind as u8, 0, 0, 0]);
    out.extend(number.to_le_bytes());
    out.extend([0; 4]);
    write(out);
    let len = (out.len() - at - FRAME_HEAD) as u32;
    out[at + 12..at + FRAME_HEAD].copy_from_slice(&len.to_le_bytes());
    let sum = sum(uuid, &out[at..at + FRAME_HEAD], &out[at + FRAME_HEAD..]);
    out.extend(sum.to_le_bytes());
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) kind: Kind,
    pub(super) number: u32,
    /// Bytes of the content.
    pub(super) len: usize,
}

impl FrameHead {
    pub(super) fn decode(bytes: &[u8; FRAME_HEAD]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let kind = Kind::of(rest[0]).filter(|_| rest[1..4] == [0; 3])?;
        let len = u32_at(rest, 8)? as usize;
        (*magic == MAGIC && len <= MOST_BYTES).then_some(Self {
            kind,
            number: u32_at(rest, 4)?,
            len,
        })
    }
}

/// Whether the sum of a frame is right. `rest`: its content and the sum.
pub(super) fn is_whole(uuid: &Uuid, head: &[u8; FRAME_HEAD], rest: &[u8]) -> bool {
    rest.split_last_chunk::<FRAME_END>()
        .is_some_and(|(content, found)| sum(uuid, head, content) == u32::from_le_bytes(*found))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

impl Head {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.format.to_le_bytes());
        out.extend([u8::from(self.is_state), 0, 0, 0]);
        out.extend(self.uuid);
        for word in [self.from, self.time, self.wall, self.archive] {
            out.extend(word.to_le_bytes());
        }
    }

    pub(super) fn decode(content: &[u8]) -> Option<Self> {
        Some(Self {
            format: u32_at(content, 0)?,
            is_state: *content.get(4)? != 0,
            uuid: *content.get(8..)?.first_chunk()?,
            from: u64_at(content, 24)?,
            time: u64_at(content, 32)?,
            wall: u64_at(content, 40)?,
            archive: u64_at(content, 48)?,
        })
    }
}

impl Until {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let mark = self.mark.unwrap_or(Mark::BEGINNING);
        for word in [
            self.below,
            mark.generation,
            mark.stamp,
            self.wall,
            self.session,
            self.count,
            self.token.sequence,
            self.token.token,
        ] {
            out.extend(word.to_le_bytes());
        }
    }

    pub(crate) fn decode(content: &[u8]) -> Option<Self> {
        let words = [0, 8, 16, 24, 32, 40, 48, 56].map(|at| u64_at(content, at));
        let [
            below,
            generation,
            stamp,
            wall,
            session,
            count,
            sequence,
            token,
        ] = words;
        let mark = Mark {
            generation: generation?,
            stamp: stamp?,
        };
        Some(Self {
            below: below?,
            mark: Some(mark).filter(|mark| *mark != Mark::BEGINNING),
            wall: wall?,
            session: session?,
            count: count?,
            token: Token {
                sequence: sequence?,
                token: token?,
            },
        })
    }
}

/// A change of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    /// The commit's stamp; 0 in a state.
    pub(crate) stamp: u64,
    /// When it was made; 0 in a state.
    pub(crate) wall: u64,
    pub(crate) key: &'a [u8],
    /// The new value; `None` if the key was removed.
    pub(crate) value: Option<&'a [u8]>,
}

impl<'a> Change<'a> {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        CHANGE + self.key.len() + self.value.map_or(0, <[u8]>::len)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.stamp.to_le_bytes());
        out.extend(self.wall.to_le_bytes());
        out.extend((self.key.len() as u32).to_le_bytes());
        let len = self.value.map_or(REMOVED, |value| value.len() as u32);
        out.extend(len.to_le_bytes());
        out.extend_from_slice(self.key);
        out.extend_from_slice(self.value.unwrap_or_default());
    }

    /// Takes the first change from `bytes`.
    pub(crate) fn decode(bytes: &mut &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_at_checked(CHANGE)?;
        let (key, rest) = rest.split_at_checked(u32_at(head, 16)? as usize)?;
        let (value, rest) = match u32_at(head, 20)? {
            REMOVED => (None, rest),
            len => {
                let (value, rest) = rest.split_at_checked(len as usize)?;
                (Some(value), rest)
            }
        };
        *bytes = rest;
        Some(Self {
            stamp: u64_at(head, 0)?,
            wall: u64_at(head, 8)?,
            key,
            value,
        })
    }
}

/// The keys of a range: from `low` on, and below `high`, if there is an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeysBetween<'a> {
    pub(crate) low: &'a [u8],
    pub(crate) high: Option<&'a [u8]>,
}

impl<'a> KeysBetween<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let bytes = |out: &mut Vec<u8>, bytes: &[u8]| {
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        };
        bytes(out, self.low);
        out.push(u8::from(self.high.is_some()));
        if let Some(high) = self.high {
            bytes(out, high);
        }
    }

    /// Takes a range from the front of `content`; its entries are behind it.
    pub(crate) fn decode(content: &mut &'a [u8]) -> Option<Self> {
        fn bytes<'a>(content: &mut &'a [u8]) -> Option<&'a [u8]> {
            let (len, rest) = content.split_first_chunk::<4>()?;
            let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            *content = rest;
            Some(bytes)
        }
        let low = bytes(content)?;
        let (has_high, rest) = content.split_first()?;
        *content = rest;
        let high = match has_high {
            0 => None,
            _ => Some(bytes(content)?),
        };
        Some(Self { low, high })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: Uuid = [7; 16];

    #[test]
    fn a_frame_is_as_long_as_its_head_says_within_bounds() {
        let mut bytes = Vec::new();
        frame(&mut bytes, (&UUID, 3), Kind::Range, |out| {
            out.extend([1; 40])
        });
        let head = |bytes: &[u8]| FrameHead::decode(bytes.first_chunk().unwrap());
        let found = head(&bytes).unwrap();
        assert_eq!((found.kind, found.number, found.len), (Kind::Range, 3, 40));
        assert!(is_whole(
            &UUID,
            bytes.first_chunk().unwrap(),
            &bytes[FRAME_HEAD..]
        ));
        for (len, is_one) in [(MOST_BYTES, true), (MOST_BYTES + 1, false)] {
            bytes[12..FRAME_HEAD].copy_from_slice(&(len as u32).to_le_bytes());
            assert_eq!(head(&bytes).map(|head| head.len), is_one.then_some(len));
        }
        for at in [0, 4, 5, 7] {
            let mut other = bytes.clone();
            other[at] ^= 0x80;
            assert_eq!(head(&other), None, "byte {at}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let head = Head {
            format: FORMAT,
            is_state: true,
            uuid: UUID,
            from: 5,
            time: 1 << 40,
            wall: 99,
            archive: 77,
        };
        let mut bytes = Vec::new();
        head.encode(&mut bytes);
        assert_eq!(bytes.len(), HEAD_BYTES);
        assert_eq!(Head::decode(&bytes), Some(head));
        let until = Until {
            below: 3,
            mark: Some(Mark {
                generation: 8,
                stamp: 2,
            }),
            wall: 4,
            session: 0,
            count: 1,
            token: Token {
                sequence: 6,
                token: u64::MAX,
            },
        };
        bytes.clear();
        until.encode(&mut bytes);
        assert_eq!(bytes.len(), MARK_BYTES);
        assert_eq!(Until::decode(&bytes), Some(until));
        let changes = [
            (&b"key"[..], Some(&b"value"[..])),
            (b"", Some(b"")),
            (b"gone", None),
        ];
        for between in [(&b"a"[..], Some(&b"b"[..])), (b"", None)] {
            bytes.clear();
            let (low, high) = between;
            KeysBetween { low, high }.encode(&mut bytes);
            let all = changes.map(|(key, value)| Change {
                stamp: 1,
                wall: 2,
                key,
                value,
            });
            for change in &all {
                let before = bytes.len();
                change.encode(&mut bytes);
                assert_eq!(bytes.len() - before, change.bytes());
            }
            let mut rest = bytes.as_slice();
            assert_eq!(
                KeysBetween::decode(&mut rest),
                Some(KeysBetween { low, high })
            );
            for change in all {
                assert_eq!(Change::decode(&mut rest), Some(change));
            }
            assert!(rest.is_empty());
            // No beginning of it is taken for something else.
            for len in 0..bytes.len() {
                let mut rest = &bytes[..len];
                let between = KeysBetween::decode(&mut rest);
                while between.is_some() && !rest.is_empty() {
                    if Change::decode(&mut rest).is_none() {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn no_changed_frame_is_whole() {
        let mut bytes = Vec::new();
        frame(&mut bytes, (&UUID, 3), Kind::Commits, |out| {
            out.extend(b"content")
        });
        let whole = |bytes: &[u8], uuid: &Uuid| {
            let (head, rest) = bytes.split_first_chunk::<FRAME_HEAD>().unwrap();
            FrameHead::decode(head).is_some_and(|decoded| {
                decoded.len + FRAME_END == rest.len() && is_whole(uuid, head, rest)
            })
        };
        assert!(whole(&bytes, &UUID));
        assert!(!whole(&bytes, &[8; 16]));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!whole(&flipped, &UUID), "bit {bit}");
        }
    }
}
