//! Values as the tree has them: as they are, or behind a head if there is more to say.
//!
//! ```text
//! value                                as it is, unless it begins like a head
//! mark 32 | kind 8 | expiry 64 | value          kind 0; expiry in ms since 1970, 0 for none
//! mark 32 | kind 8 | space 64                   kind 1: the marker of long keys
//! ```
//!
//! So a value without an expiry costs nothing, but for one in 2^32, and values of one length stay
//! so. The mark begins with a byte that no UTF-8 has.

use crate::error::Damage;
use bristlecone_index::clustered::Glimpse;
use std::borrow::Cow;

const MARK: [u8; 4] = [0xC1, 0x9E, 0x5B, 0xF6];
const WHOLE: u8 = 0;
const MARKER: u8 = 1;
/// Bytes of a head.
pub(super) const HEAD: usize = MARK.len() + 1 + size_of::<u64>();

/// Returns a value with its expiry, 0 for none, as the tree has it.
pub(super) fn encode(value: &[u8], expiry: u64) -> Cow<'_, [u8]> {
    if expiry == 0 && !value.starts_with(&MARK) {
        return Cow::Borrowed(value);
    }
    let mut stored = Vec::with_capacity(HEAD + value.len());
    stored.extend(MARK);
    stored.push(WHOLE);
    stored.extend(expiry.to_le_bytes());
    stored.extend(value);
    Cow::Owned(stored)
}

/// As [`encode`], of a value that is given up.
pub(super) fn encode_owned(value: Vec<u8>, expiry: u64) -> Vec<u8> {
    match encode(&value, expiry) {
        Cow::Owned(stored) => stored,
        Cow::Borrowed(_) => value,
    }
}

/// Returns the value and its expiry, 0 for none.
///
/// # Errors
/// [`Damage`]: no commit has written that.
#[inline]
pub(super) fn decode(stored: &[u8]) -> Result<(&[u8], u64), Damage> {
    if !stored.starts_with(&MARK) {
        return Ok((stored, 0));
    }
    decode_head(stored)
}

fn decode_head(stored: &[u8]) -> Result<(&[u8], u64), Damage> {
    let (head, value) = stored
        .split_first_chunk::<HEAD>()
        .filter(|(head, _)| head[MARK.len()] == WHOLE)
        .ok_or_else(|| Damage::new("its value has a head that none is like"))?;
    Ok((value, word_in(head)))
}

/// The word behind mark and kind.
fn word_in(head: &[u8; HEAD]) -> u64 {
    let (_, expiry) = head.split_last_chunk::<8>().unwrap_or((&[], &[0; 8]));
    u64::from_le_bytes(*expiry)
}

/// Returns the length of a value of which this is the beginning, and its expiry, 0 for none.
#[inline]
pub(super) fn glimpsed(stored: Glimpse<'_>) -> (usize, u64) {
    match stored.bytes.first_chunk::<HEAD>() {
        Some(head) if head.starts_with(&MARK) && head[MARK.len()] == WHOLE => {
            (stored.len - HEAD, word_in(head))
        }
        _ => (stored.len, 0),
    }
}

/// The value of a marker of [long keys](super::long): the number of their space.
pub(super) struct Marker;

impl Marker {
    pub fn encode(id: u64) -> Vec<u8> {
        let mut stored = MARK.to_vec();
        stored.push(MARKER);
        stored.extend(id.to_le_bytes());
        stored
    }

    /// # Errors
    /// [`Damage`]: it is none.
    pub fn decode(stored: &[u8]) -> Result<u64, Damage> {
        let head: Option<&[u8; HEAD]> = stored.try_into().ok();
        let head = head.filter(|head| head.starts_with(&MARK) && head[MARK.len()] == MARKER);
        head.map(word_in)
            .ok_or_else(|| Damage::new("the marker of a long key leads nowhere"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_with_their_expiries() {
        let like_a_head = [&MARK[..], b"x"].concat();
        let whole_head = [&MARK[..], &[0; 20]].concat();
        for value in [&b""[..], b"v", &MARK[..3], &MARK, &like_a_head, &whole_head] {
            for expiry in [0, 1, u64::MAX] {
                let stored = encode(value, expiry);
                assert_eq!(decode(&stored).unwrap(), (value, expiry));
                let glimpse = Glimpse {
                    bytes: &stored,
                    len: stored.len(),
                };
                assert_eq!(glimpsed(glimpse), (value.len(), expiry));
                assert_eq!(encode_owned(value.to_vec(), expiry), *stored);
                let grown = expiry != 0 || value.starts_with(&MARK);
                assert_eq!(stored.len(), value.len() + if grown { HEAD } else { 0 });
            }
        }
    }

    #[test]
    fn a_head_that_is_none_is_damage() {
        let mut stored = encode(b"v", 7).into_owned();
        stored[MARK.len()] = 1;
        assert!(decode(&stored).is_err());
        assert!(decode(&encode(b"", 7)[..HEAD - 1]).is_err());
    }
}
