//! Values that are longer than the tree's, in parts under keys of their own.
//!
//! ```text
//! the key                                             a head: number and length
//! 2^32 - 2 | keyspace 32 | number 64 | 2^32 - 1       where the tree has the key
//! 2^32 - 2 | keyspace 32 | number 64 | i 32           part i
//! ```
//!
//! The parts are put first, so a head that is there has all of them. A number is used once. When a
//! head goes, the sweep removes its parts, as changes like any others: a snapshot that reads the
//! head reads the parts. Those that a crash left without a head are found when the store is opened.

use super::counts::Counts;
use super::long::Place;
use super::value::{Found, Head, decode, encode, encode_packed};
use super::{Core, damaged, read_error, write_error};
use crate::error::{Damage, WriteError};
use crate::key::split;
use crate::limits::MAX_VALUE_BYTES;
use crate::streams::within;
use crate::write::check_value;
use bristlecone_index::clustered::{self, HostedTree, KeyRange, When};
use bristlecone_pmem::Media;
use bristlecone_pmem::sync::lock;
use std::borrow::Cow;
use std::ops::{Bound, ControlFlow, Range};

/// The keyspace number of parts.
pub(super) const PARTS: u32 = u32::MAX - 1;
/// Bytes of PARTS, keyspace and number.
const PREFIX: usize = 16;
/// Bytes of a part, unless it is the last.
pub(super) const PART: usize = 8 << 20;
/// The part that says where the key is.
pub(super) const OWNER: u32 = u32::MAX;

/// A value in parts: its keyspace and number.
pub(super) type Apart = (u32, u64);

/// A value as the tree is to have it, and its parts if it has any: unless it is [kept](Self::keep),
/// they are given back when this is dropped.
pub(super) struct Stored<'c, 'v> {
    pub bytes: Cow<'v, [u8]>,
    apart: Option<Apart>,
    counts: &'c Counts,
}

impl<'c> Stored<'c, '_> {
    /// A value that is in parts, or is to be.
    pub fn apart(apart: Apart, head: &Head, counts: &'c Counts) -> Self {
        Self {
            bytes: Cow::Owned(head.encode()),
            apart: Some(apart),
            counts,
        }
    }

    /// A key has it now.
    pub fn keep(mut self) {
        self.apart = None;
    }

    pub fn into_owned(mut self) -> Stored<'c, 'static> {
        Stored {
            bytes: Cow::Owned(std::mem::take(&mut self.bytes).into_owned()),
            apart: self.apart.take(),
            counts: self.counts,
        }
    }
}

impl Drop for Stored<'_, '_> {
    fn drop(&mut self) {
        if let Some(apart) = self.apart {
            self.counts.give_back(apart);
        }
    }
}

fn prefix((number, id): Apart) -> [u8; PREFIX] {
    let mut prefix = [0; PREFIX];
    prefix[..4].copy_from_slice(&PARTS.to_be_bytes());
    prefix[4..8].copy_from_slice(&number.to_be_bytes());
    prefix[8..].copy_from_slice(&id.to_be_bytes());
    prefix
}

fn part_key(apart: Apart, i: u32) -> Vec<u8> {
    [&prefix(apart)[..], &i.to_be_bytes()].concat()
}

/// Returns whose part a tree key is.
fn apart_of(tree_key: &[u8]) -> Option<Apart> {
    let (_, rest) = split(tree_key).filter(|(number, _)| *number == PARTS)?;
    let (number, rest) = split(rest)?;
    Some((number, u64::from_be_bytes(*rest.first_chunk()?)))
}

/// Returns the range of all parts of a keyspace.
pub(super) fn parts_of(number: u32) -> [Vec<u8>; 2] {
    let first = [PARTS.to_be_bytes(), number.to_be_bytes()].concat();
    let after = [PARTS.to_be_bytes(), (number + 1).to_be_bytes()].concat();
    [first, after]
}

/// Returns the bytes of a range of the value of a head, which somebody reads at that time or keeps
/// where it is. The range is inside the value.
///
/// # Errors
/// [`ReadError`](clustered::ReadError)
pub(super) fn assembled<M: Media>(
    tree: &HostedTree<M>,
    when: When,
    place: &[u8],
    head: &Head,
    range: Range<u64>,
) -> Result<Vec<u8>, clustered::ReadError> {
    let (number, _) = super::long::owner::<M>(place).unwrap_or((0, 0));
    let mut value = Vec::new();
    if range.is_empty() {
        return Ok(value);
    }
    if head.len > MAX_VALUE_BYTES as u64 {
        let what = format!("its value claims {} bytes in parts", head.len);
        return Err(damaged(Damage::new(what)));
    }
    for i in range.start / PART as u64..range.end.div_ceil(PART as u64) {
        let from = i * PART as u64;
        let expected = within(&(from..from + PART as u64), head.len);
        let wanted = within(&range, expected.end);
        let wanted = (wanted.start.max(from) - from) as usize..(wanted.end - from) as usize;
        let i = u32::try_from(i).unwrap_or(OWNER);
        let part = tree.get(when, &part_key((number, head.id), i), |stored| {
            let found = Found::of(stored)?;
            let len = found.len();
            if len != Some(expected.end - from) {
                let expected = expected.end - from;
                let len = len.map_or_else(|| "parts".to_owned(), |len| format!("{len} bytes"));
                let what = format!("part {i} of its value has {len} of {expected}");
                return Err(Damage::new(what));
            }
            let (part, _) = decode(stored)?;
            value.extend_from_slice(&part[wanted.clone()]);
            Ok(())
        })?;
        let what = || Damage::new(format!("part {i} of its value is not there"));
        part.unwrap_or_else(|| Err(what())).map_err(damaged)?;
    }
    Ok(value)
}

impl<M: Media> Core<M> {
    /// Returns whether a value of so many bytes has parts.
    pub(super) fn has_parts(&self, len: usize) -> bool {
        len > HostedTree::<M>::MAX_VALUE - Head::BYTES
    }

    /// Returns a value as the tree is to have it. A long one's parts are put. The caller is inside
    /// the gate.
    ///
    /// # Errors
    /// [`WriteError`]; parts that were put are given back.
    pub(super) fn store_value<'c, 'v>(
        &'c self,
        place: &[u8],
        value: &'v [u8],
        expiry: u64,
    ) -> Result<Stored<'c, 'v>, WriteError> {
        check_value(value)?;
        let counts = &*self.counts;
        if !self.has_parts(value.len()) {
            return Ok(Stored {
                bytes: encode_packed(value, expiry, self.compression),
                apart: None,
                counts,
            });
        }
        let (number, _) = super::long::owner::<M>(place).unwrap_or((0, 0));
        let id = self.tree.new_number();
        let apart = (number, id);
        let all = (0..).zip(value.chunks(PART));
        let mut parts = std::iter::once((OWNER, place)).chain(all);
        let head = Head {
            expiry,
            id,
            len: value.len() as u64,
        };
        let stored = Stored::apart(apart, &head, counts);
        parts.try_for_each(|(i, part)| self.put_part(apart, i, part).map(|_| ()))?;
        Ok(stored)
    }

    /// Puts part `i` of a value. The caller is inside the gate.
    ///
    /// # Errors
    /// [`WriteError`]
    pub(super) fn put_part(&self, apart: Apart, i: u32, part: &[u8]) -> Result<u64, WriteError> {
        let stored = match i {
            // It is compared with places.
            OWNER => encode(part, 0),
            _ => encode_packed(part, 0, self.compression),
        };
        let put = self.tree.put(&part_key(apart, i), &stored);
        put.map_err(|e| write_error(None, e))
    }

    /// As [`assembled`], all of it.
    ///
    /// # Errors
    /// As there.
    pub(super) fn assemble(
        &self,
        when: When,
        place: &[u8],
        head: &Head,
    ) -> Result<Vec<u8>, clustered::ReadError> {
        assembled(&self.tree, when, place, head, 0..head.len)
    }

    /// Finds the parts that no head leads to, which a crash has left, for the sweep. Those whose
    /// key cannot be read stay.
    pub(super) fn find_lost_parts(&self) {
        let mut next = [PARTS.to_be_bytes(), [0; 4]].concat();
        let end = super::long::SPACES.to_be_bytes();
        loop {
            let range: KeyRange<'_> = (Bound::Included(&next), Bound::Excluded(&end));
            let mut first = None;
            // Nothing in it fails.
            let _ = self.tree.salvage(
                range,
                |key, _| {
                    first = apart_of(key);
                    Ok(ControlFlow::Break(()))
                },
                |_, _| {},
            );
            let Some(apart) = first else {
                return;
            };
            if !self.has_head(apart).unwrap_or(true) {
                self.counts.give_back(apart);
            }
            next = prefix((apart.0, apart.1 + 1)).to_vec();
        }
    }

    fn has_head(&self, apart: Apart) -> Result<bool, clustered::ReadError> {
        let owner = self
            .tree
            .get(When::Now, &part_key(apart, OWNER), |stored| {
                decode(stored).map(|(place, _)| place.into_owned())
            })?;
        let Some(place) = owner.transpose().map_err(damaged)? else {
            return Ok(false);
        };
        let id = self.tree.get(When::Now, &place, |stored| {
            Head::decode(stored).map(|head| head.id)
        })?;
        Ok(id.flatten() == Some(apart.1))
    }

    /// Removes the parts of values that are gone, and notes what it cannot remove, for another
    /// time. Returns their bytes.
    pub(super) fn remove_parts(&self, failed: &mut Option<WriteError>) -> u64 {
        let gone = std::mem::take(&mut *lock(&self.counts.apart_gone));
        let mut removed = 0;
        for apart in gone {
            let (first, after) = (prefix(apart), prefix((apart.0, apart.1 + 1)));
            let range = (Bound::Included(&first[..]), Bound::Excluded(&after[..]));
            let mut unread = None;
            let (keys, bytes) = self.some_keys(range, usize::MAX, &mut unread);
            let done = self.tree.remove_all(keys.iter().map(Vec::as_slice));
            match done.map_err(|e| write_error(None, e)) {
                Ok(_) => removed += bytes,
                Err(e) => {
                    unread.get_or_insert(e);
                }
            }
            if let Some(e) = unread {
                self.counts.give_back(apart);
                failed.get_or_insert(e);
            }
        }
        removed
    }

    /// Returns where the tree has a key, for reading; `None` if it cannot be there.
    ///
    /// # Errors
    /// [`ReadError`](crate::ReadError)
    pub(super) fn place_of<'k>(
        &self,
        key: &'k [u8],
    ) -> Result<Option<Cow<'k, [u8]>>, crate::ReadError> {
        match self.place(key).map_err(|e| read_error(Some(key), e))? {
            Place::At(place) => Ok(Some(place)),
            Place::Nowhere(_) => Ok(None),
        }
    }
}
