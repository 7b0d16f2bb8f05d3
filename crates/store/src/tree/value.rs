//! Values as the tree has them: as they are, or behind a head if there is more to say.
//!
//! ```text
//! value                                          as it is, unless it begins like a head
//! mark 32 | kind 8 | expiry 64 | value           kind 0; expiry in ms since 1970, 0 for none
//! mark 32 | kind 8 | space 64                    kind 1: the marker of long keys
//! mark 32 | kind 8 | expiry 64 | id 64 | length 64    kind 2: the head of a value in parts
//! mark 32 | kind 8 | expiry 64 | codec 8 | length 64 | packed    kind 3: a compressed value
//! ```
//!
//! So a value without an expiry costs nothing, but for one in 2^32, and values of one length stay
//! so. The mark begins with a byte that no UTF-8 has.

use super::pack::{LONGEST, pack, unpack};
use crate::error::Damage;
use crate::options::Compression;
use bristlecone_index::clustered::Glimpse;
use std::borrow::Cow;

const MARK: [u8; 4] = [0xC1, 0x9E, 0x5B, 0xF6];
const WHOLE: u8 = 0;
const MARKER: u8 = 1;
const APART: u8 = 2;
const PACKED: u8 = 3;
/// Bytes of mark, kind and a word.
const SHORT: usize = MARK.len() + 1 + size_of::<u64>();

/// Bytes of the head of a packed value.
const PACKED_HEAD: usize = SHORT + 1 + size_of::<u64>();

/// Returns a value with its expiry, 0 for none, as the tree has it, packed if that is worth it.
pub(super) fn encode_packed(value: &[u8], expiry: u64, with: Compression) -> Cow<'_, [u8]> {
    let Some((codec, packed)) = pack(value, with) else {
        return encode(value, expiry);
    };
    let mut stored = head(PACKED, expiry, PACKED_HEAD - SHORT + packed.len());
    stored.push(codec);
    stored.extend((value.len() as u64).to_le_bytes());
    stored.extend(packed);
    Cow::Owned(stored)
}

/// Returns a value with its expiry, 0 for none, as the tree has it.
pub(super) fn encode(value: &[u8], expiry: u64) -> Cow<'_, [u8]> {
    if expiry == 0 && !value.starts_with(&MARK) {
        return Cow::Borrowed(value);
    }
    let mut stored = head(WHOLE, expiry, value.len());
    stored.extend(value);
    Cow::Owned(stored)
}

fn head(kind: u8, word: u64, room: usize) -> Vec<u8> {
    let mut head = Vec::with_capacity(SHORT + room);
    head.extend(MARK);
    head.push(kind);
    head.extend(word.to_le_bytes());
    head
}

/// Returns the value, if it is as it is: nothing more is said about it.
#[inline(always)]
pub(super) fn plain(stored: &[u8]) -> Option<&[u8]> {
    // As one number: a value is hardly ever compared further.
    match stored.first_chunk() {
        Some(first) if u32::from_le_bytes(*first) == u32::from_le_bytes(MARK) => None,
        _ => Some(stored),
    }
}

/// Returns the value and its expiry, 0 for none.
///
/// # Errors
/// [`Damage`]: no commit has written that.
#[inline]
pub(super) fn decode(stored: &[u8]) -> Result<(Cow<'_, [u8]>, u64), Damage> {
    match Found::of(stored)? {
        Found::Here(value, expiry) => Ok((Cow::Borrowed(value), expiry)),
        Found::Packed(packed) => Ok((Cow::Owned(packed.unpack()?), packed.expiry)),
        Found::Apart(_) => Err(Damage::new("its value is in parts")),
    }
}

/// What the tree has of a value.
pub(super) enum Found<'s> {
    /// The value and its expiry, 0 for none.
    Here(&'s [u8], u64),
    Packed(Packed<'s>),
    Apart(Head),
}

impl<'s> Found<'s> {
    /// Returns the length of a value that has no parts, without unpacking it.
    pub fn len(&self) -> Option<u64> {
        match self {
            Self::Here(value, _) => Some(value.len() as u64),
            Self::Packed(packed) => Some(packed.len),
            Self::Apart(_) => None,
        }
    }

    /// # Errors
    /// [`Damage`]: no commit has written that.
    #[inline]
    pub fn of(stored: &'s [u8]) -> Result<Self, Damage> {
        match plain(stored) {
            Some(value) => Ok(Self::Here(value, 0)),
            None => Self::of_head(stored),
        }
    }

    #[cold]
    fn of_head(stored: &'s [u8]) -> Result<Self, Damage> {
        if let Some((head, value)) = stored.split_first_chunk::<SHORT>()
            && head[MARK.len()] == WHOLE
        {
            return Ok(Self::Here(value, word_in(head)));
        }
        if let Some(packed) = Packed::decode(stored) {
            return Ok(Self::Packed(packed));
        }
        let head = Head::decode(stored).map(Self::Apart);
        head.ok_or_else(|| Damage::new("its value has a head that none is like"))
    }
}

/// A compressed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed<'s> {
    pub expiry: u64,
    codec: u8,
    /// Bytes of the value.
    pub len: u64,
    bytes: &'s [u8],
}

impl<'s> Packed<'s> {
    /// `None` if it is none.
    fn decode(stored: &'s [u8]) -> Option<Self> {
        let (short, rest) = stored.split_first_chunk::<SHORT>()?;
        let (codec, rest) = rest.split_first()?;
        let (len, bytes) = rest.split_first_chunk()?;
        let is_packed = short.starts_with(&MARK) && short[MARK.len()] == PACKED;
        is_packed.then(|| Self {
            expiry: word_in(short),
            codec: *codec,
            len: u64::from_le_bytes(*len),
            bytes,
        })
    }

    /// Returns the value.
    ///
    /// # Errors
    /// [`Damage`]: no commit has written that, this build cannot unpack it, or there is no memory.
    #[cold]
    pub fn unpack(&self) -> Result<Vec<u8>, Damage> {
        unpack(self.codec, self.bytes, self.len)
    }
}

/// The head of a value in [parts](super::parts).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub expiry: u64,
    /// The number of its parts.
    pub id: u64,
    /// Its length.
    pub len: u64,
}

impl Head {
    pub const BYTES: usize = SHORT + 2 * size_of::<u64>();

    pub fn encode(self) -> Vec<u8> {
        let mut head = head(APART, self.expiry, Self::BYTES);
        head.extend(self.id.to_le_bytes());
        head.extend(self.len.to_le_bytes());
        head
    }

    /// `None` if it is none.
    pub fn decode(stored: &[u8]) -> Option<Self> {
        let (short, rest) = stored.split_first_chunk::<SHORT>()?;
        let rest: &[u8; 16] = rest.try_into().ok()?;
        let is_head = short.starts_with(&MARK) && short[MARK.len()] == APART;
        let ([id, len], _) = rest.as_chunks::<8>() else {
            return None;
        };
        is_head.then(|| Self {
            expiry: word_in(short),
            id: u64::from_le_bytes(*id),
            len: u64::from_le_bytes(*len),
        })
    }
}

/// The word behind mark and kind.
fn word_in(head: &[u8; SHORT]) -> u64 {
    let (_, word) = head.split_last_chunk::<8>().unwrap_or((&[], &[0; 8]));
    u64::from_le_bytes(*word)
}

/// A value of which one has seen the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// Its length; that of the head, if it has parts.
    pub len: usize,
    /// 0 for none.
    pub expiry: u64,
    /// The number of its parts, if it has any.
    pub apart: Option<u64>,
}

/// Returns what the beginning of a value says.
#[inline]
pub(super) fn glimpsed(stored: Glimpse<'_>) -> Seen {
    let len = stored.len;
    match stored.bytes.first_chunk::<SHORT>() {
        Some(head) if head.starts_with(&MARK) => {
            if head[MARK.len()] == WHOLE {
                return Seen {
                    len: len - SHORT,
                    expiry: word_in(head),
                    apart: None,
                };
            }
            if let Some(packed) = Packed::decode(stored.bytes) {
                return Seen {
                    // It may not have been verified.
                    len: packed.len.min(LONGEST) as usize,
                    expiry: packed.expiry,
                    apart: None,
                };
            }
            match Head::decode(stored.bytes) {
                Some(head) => Seen {
                    len,
                    expiry: head.expiry,
                    apart: Some(head.id),
                },
                None => Seen {
                    len,
                    ..Seen::default()
                },
            }
        }
        _ => Seen {
            len,
            ..Seen::default()
        },
    }
}

/// The value of a marker of [long keys](super::long): the number of their space.
pub(super) struct Marker;

impl Marker {
    pub fn encode(id: u64) -> Vec<u8> {
        head(MARKER, id, 0)
    }

    /// # Errors
    /// [`Damage`]: it is none.
    pub fn decode(stored: &[u8]) -> Result<u64, Damage> {
        let head: Option<&[u8; SHORT]> = stored.try_into().ok();
        let head = head.filter(|head| head.starts_with(&MARK) && head[MARK.len()] == MARKER);
        head.map(word_in)
            .ok_or_else(|| Damage::new("the marker of a long key leads nowhere"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(stored: &[u8]) -> Seen {
        glimpsed(Glimpse {
            bytes: stored,
            len: stored.len(),
        })
    }

    #[test]
    fn values_come_back_with_their_expiries() {
        let like_a_head = [&MARK[..], b"x"].concat();
        let whole_head = [&MARK[..], &[0; 20]].concat();
        let of_parts = [&MARK[..], &[APART], &[0; 24]].concat();
        for value in [
            &b""[..],
            b"v",
            &MARK[..3],
            &MARK,
            &like_a_head,
            &whole_head,
            &of_parts,
        ] {
            for expiry in [0, 1, u64::MAX] {
                let stored = encode(value, expiry);
                assert_eq!(decode(&stored).unwrap(), (Cow::Borrowed(value), expiry));
                let len = value.len();
                let apart = None;
                assert_eq!(seen(&stored), Seen { len, expiry, apart });
                let grown = expiry != 0 || value.starts_with(&MARK);
                assert_eq!(stored.len(), len + if grown { SHORT } else { 0 });
            }
        }
    }

    #[test]
    fn heads_come_back() {
        let head = Head {
            expiry: 7,
            id: 8,
            len: 1 << 29,
        };
        let stored = head.encode();
        assert_eq!(Head::decode(&stored), Some(head));
        assert!(decode(&stored).is_err());
        let of_head = Seen {
            len: Head::BYTES,
            expiry: 7,
            apart: Some(8),
        };
        assert_eq!(seen(&stored), of_head);
        assert_eq!(Marker::decode(&Marker::encode(9)).unwrap(), 9);
        assert!(Marker::decode(&stored).is_err());
    }

    #[test]
    fn a_head_that_is_none_is_damage() {
        let mut stored = encode(b"v", 7).into_owned();
        stored[MARK.len()] = 9;
        assert!(decode(&stored).is_err());
        assert!(decode(&encode(b"", 7)[..SHORT - 1]).is_err());
        assert!(decode(&Marker::encode(1)).is_err());
    }
}
