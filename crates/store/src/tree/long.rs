//! Keys that are longer than the tree's: their beginning leads to a space of its own, which has the
//! rest.
//!
//! ```text
//! key of at most L bytes             as it is
//! longer one                         its first L bytes, 0      a marker: the number of their space
//!                                    2^32 - 1 | keyspace 32 | space 64 | the rest     the entry
//! ```
//!
//! The rest may be too long again. A marker lies between the key that its L bytes are and all that
//! are above it, where the keys of its space belong; no other key has L + 1 bytes. It is made
//! before the first of them, never changes, and stays until its keyspace is dropped. So where an
//! entry is does not depend on when it is read.

use super::names::COPY;
use super::parts::PARTS;
use super::value::Marker;
use super::{Core, write_error};
use crate::error::WriteError;
use crate::key::{PREFIX, split};
use bristlecone_index::Direction;
use bristlecone_index::clustered::{
    self, Current, EntryVisitor, HostedTree, Modification, Visits, When,
};
use bristlecone_index::engine::Range;
use bristlecone_pmem::Media;
use std::borrow::Cow;
use std::ops::{Bound, ControlFlow};

/// The keyspace number of spaces.
pub(super) const SPACES: u32 = u32::MAX;
/// Bytes of SPACES, keyspace, and number of the space.
const SPACE_PREFIX: usize = 16;

/// Visits keys with what they have.
type Visit<'v, M> =
    dyn FnMut(&[u8], &Current<'_, M>) -> Result<ControlFlow<()>, clustered::ReadError> + 'v;

/// Visits entries of the tree, and in the place of a marker those of its space.
struct Places<'c, M: Media, V: ?Sized> {
    core: &'c Core<M>,
    time: u64,
    range: Range<'c>,
    way: (Direction, Visits),
    /// How it has ended.
    flow: ControlFlow<()>,
    visitor: &'c mut V,
}

impl<M: Media, V: EntryVisitor<M> + ?Sized> EntryVisitor<M> for &mut Places<'_, M, V> {
    #[inline(always)]
    fn short(&mut self, key: &[u8], value: &[u8]) -> Option<ControlFlow<()>> {
        if is_marker::<M>(key) {
            return None;
        }
        let flow = self.visitor.short(key, value)?;
        if flow.is_break() {
            self.flow = flow;
        }
        Some(flow)
    }

    fn entry(
        &mut self,
        key: &[u8],
        current: &Current<'_, M>,
    ) -> Result<ControlFlow<()>, clustered::ReadError> {
        self.flow = if is_marker::<M>(key) {
            let visit: &mut Visit<'_, M> = &mut |key, current| self.visitor.entry(key, current);
            (self.core).scan_space(self.time, (key, current), self.range, self.way, visit)?
        } else {
            self.visitor.entry(key, current)?
        };
        Ok(self.flow)
    }
}

/// Longest index key that the tree has as it is.
const fn longest<M: Media>() -> usize {
    HostedTree::<M>::MAX_KEY - 1
}

/// Returns whether an entry with a key of so many bytes is a marker.
pub(super) fn is_marker<M: Media>(tree_key: &[u8]) -> bool {
    tree_key.len() > longest::<M>()
}

/// Returns the keyspace of an entry and the bytes of its key that are not before it; `None` for
/// what is none: markers, parts of values, and the copy of the catalogue.
pub(super) fn owner<M: Media>(tree_key: &[u8]) -> Option<(u32, usize)> {
    if is_marker::<M>(tree_key) {
        return None;
    }
    let (number, key) = split(tree_key)?;
    if number == PARTS || number == COPY {
        return None;
    }
    if number != SPACES {
        return Some((number, key.len()));
    }
    let rest = tree_key.len().checked_sub(SPACE_PREFIX)?;
    Some((split(key)?.0, rest))
}

/// Returns the range of all spaces of a keyspace.
pub(super) fn spaces_of(number: u32) -> [Vec<u8>; 2] {
    let first = [SPACES.to_be_bytes(), number.to_be_bytes()].concat();
    let after = [SPACES.to_be_bytes(), (number + 1).to_be_bytes()].concat();
    [first, after]
}

/// The first bytes of the keys of a space.
fn space(beginning: &[u8], id: u64) -> [u8; SPACE_PREFIX] {
    let number = match split(beginning) {
        Some((SPACES, rest)) => split(rest).map_or(0, |(number, _)| number),
        Some((number, _)) => number,
        None => 0,
    };
    let mut prefix = [0; SPACE_PREFIX];
    prefix[..4].copy_from_slice(&SPACES.to_be_bytes());
    prefix[4..8].copy_from_slice(&number.to_be_bytes());
    prefix[8..].copy_from_slice(&id.to_be_bytes());
    prefix
}

/// Returns what the keys of the space that a marker leads to begin with in the tree.
pub(super) fn space_of_marker(marker: &[u8], id: u64) -> Vec<u8> {
    space(&marker[..marker.len() - 1], id).to_vec()
}

/// Returns the key of an entry, with its beginning if it is in a space: `beginning_of` returns that
/// of a space.
pub(super) fn whole<'k>(
    tree_key: &'k [u8],
    beginning_of: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Cow<'k, [u8]> {
    let in_space = split(tree_key).is_some_and(|(number, _)| number == SPACES);
    match tree_key.split_at_checked(SPACE_PREFIX) {
        Some((space, rest)) if in_space => match beginning_of(space) {
            Some(beginning) => Cow::Owned([&beginning, rest].concat()),
            None => Cow::Borrowed(tree_key),
        },
        _ => Cow::Borrowed(tree_key),
    }
}

/// Whether a key of [`whole`] lacks its beginning.
pub(super) fn lacks_its_beginning(key: &[u8]) -> bool {
    split(key).is_some_and(|(number, _)| number == SPACES)
}

/// Returns the number of the keyspace of a key of [`whole`], and the key, or what is known of it.
pub(super) fn split_whole(key: &[u8]) -> (u32, &[u8]) {
    match split(key) {
        Some((SPACES, rest)) => {
            let number = split(rest).map_or(0, |(number, _)| number);
            (number, key.get(SPACE_PREFIX..).unwrap_or(&[]))
        }
        Some(found) => found,
        None => (0, key),
    }
}

/// The marker of the space that a bound is in, if it is a long key.
fn marker_of_bound<M: Media>(bound: Bound<&[u8]>) -> Option<Vec<u8>> {
    match bound {
        Bound::Included(key) | Bound::Excluded(key) if key.len() > longest::<M>() => {
            Some(marker_of::<M>(key))
        }
        _ => None,
    }
}

fn marker_of<M: Media>(key: &[u8]) -> Vec<u8> {
    [&key[..longest::<M>()], &[0]].concat()
}

/// Where a key is, or would be.
pub(super) enum Place<'k> {
    At(Cow<'k, [u8]>),
    /// This marker is not there, so the key is not either.
    Nowhere(Vec<u8>),
}

impl<M: Media> Core<M> {
    /// Returns where the tree has an index key.
    ///
    /// # Errors
    /// [`ReadError`](clustered::ReadError)
    #[inline]
    pub(super) fn place<'k>(&self, key: &'k [u8]) -> Result<Place<'k>, clustered::ReadError> {
        if key.len() <= longest::<M>() {
            return Ok(Place::At(Cow::Borrowed(key)));
        }
        self.long_place(key)
    }

    #[cold]
    fn long_place(&self, key: &[u8]) -> Result<Place<'static>, clustered::ReadError> {
        let mut key = key.to_vec();
        while key.len() > longest::<M>() {
            let marker = marker_of::<M>(&key);
            let id = self.tree.get(When::Now, &marker, Marker::decode)?;
            let Some(id) = id.transpose().map_err(super::damaged)? else {
                return Ok(Place::Nowhere(marker));
            };
            let (beginning, rest) = key.split_at(longest::<M>());
            key = [&space(beginning, id)[..], rest].concat();
        }
        Ok(Place::At(Cow::Owned(key)))
    }

    /// As [`place`](Self::place); makes the markers that are missing. The caller is inside the
    /// gate.
    ///
    /// # Errors
    /// [`WriteError`]
    #[inline]
    pub(super) fn make_place<'k>(&self, key: &'k [u8]) -> Result<Cow<'k, [u8]>, WriteError> {
        if key.len() <= longest::<M>() {
            return Ok(Cow::Borrowed(key));
        }
        self.make_long_place(key)
    }

    #[cold]
    fn make_long_place(&self, key: &[u8]) -> Result<Cow<'static, [u8]>, WriteError> {
        let mut key = key.to_vec();
        while key.len() > longest::<M>() {
            let mut id = 0;
            let made = self
                .tree
                .modify(&marker_of::<M>(&key), |current| match current {
                    None => {
                        id = self.tree.new_number();
                        Ok(Modification::Put(Marker::encode(id)))
                    }
                    Some(current) => {
                        id = Marker::decode(&current.value()?).map_err(super::damaged)?;
                        Ok(Modification::Keep)
                    }
                });
            made.map_err(|e| write_error(Some(&key), e))?;
            let (beginning, rest) = key.split_at(longest::<M>());
            key = [&space(beginning, id)[..], rest].concat();
        }
        Ok(Cow::Owned(key))
    }

    /// Returns the key of an entry of the tree, of which somebody has read these ranges. If the
    /// marker of its space is in none of them, it lacks its beginning.
    #[cold]
    pub(super) fn whole_in<'r>(
        &self,
        ranges: impl Iterator<Item = Range<'r>> + Clone,
        mut tree_key: Vec<u8>,
    ) -> Vec<u8> {
        if is_marker::<M>(&tree_key) {
            // All that is known is how the key begins.
            tree_key.pop();
        }
        while lacks_its_beginning(&tree_key) {
            let number = tree_key[PREFIX..].first_chunk().copied();
            let [first, after] = spaces_of(number.map_or(0, u32::from_be_bytes));
            let spaces = (Bound::Included(&first[..]), Bound::Excluded(&after[..]));
            let beginning = |space: &[u8]| {
                let read = (ranges.clone()).find_map(|range| self.beginning_in(range, space));
                read.or_else(|| self.beginning_in(spaces, space))
            };
            let Cow::Owned(longer) = whole(&tree_key, beginning) else {
                break;
            };
            tree_key = longer;
        }
        tree_key
    }

    /// Returns what the keys of a space begin with, if its marker is in that range.
    fn beginning_in(&self, range: Range<'_>, space: &[u8]) -> Option<Vec<u8>> {
        let first = marker_of_bound::<M>(range.0);
        let range = (first.as_deref().map_or(range.0, Bound::Included), range.1);
        let mut found = None;
        // Nothing in it fails. What cannot be read is none.
        let _ = self.tree.salvage(
            range,
            |key, current| {
                if !is_marker::<M>(key) {
                    return Ok(ControlFlow::Continue(()));
                }
                let id = Marker::decode(&current.value()?).map_err(super::damaged)?;
                if space_of_marker(key, id) != space {
                    return Ok(ControlFlow::Continue(()));
                }
                found = Some(key[..key.len() - 1].to_vec());
                Ok(ControlFlow::Break(()))
            },
            |_, _| {},
        );
        found
    }

    /// Visits the keys of a range of index keys at a time, long ones where they belong.
    ///
    /// # Errors
    /// [`ReadError`](clustered::ReadError), and those of `visitor`.
    #[inline]
    pub(super) fn scan_places(
        &self,
        time: u64,
        range: Range<'_>,
        way: (Direction, Visits),
        visitor: &mut (impl EntryVisitor<M> + ?Sized),
    ) -> Result<ControlFlow<()>, clustered::ReadError> {
        let markers = (marker_of_bound::<M>(range.0), marker_of_bound::<M>(range.1));
        let outer = (
            markers.0.as_deref().map_or(range.0, Bound::Included),
            markers.1.as_deref().map_or(range.1, Bound::Included),
        );
        let mut places = Places {
            core: self,
            time,
            range,
            way,
            flow: ControlFlow::Continue(()),
            visitor,
        };
        self.tree.scan_with(time, outer, way, &mut places)?;
        Ok(places.flow)
    }

    /// Visits the keys of a marker's space that are in a range.
    #[cold]
    fn scan_space(
        &self,
        time: u64,
        (marker, current): (&[u8], &Current<'_, M>),
        range: Range<'_>,
        way: (Direction, Visits),
        visit: &mut Visit<'_, M>,
    ) -> Result<ControlFlow<()>, clustered::ReadError> {
        let id = Marker::decode(&current.value()?).map_err(super::damaged)?;
        let beginning = &marker[..longest::<M>()];
        let prefix = space(beginning, id);
        let after = space(beginning, id + 1);
        let inside = |bound: Bound<&[u8]>, all: Bound<Vec<u8>>| match bound {
            Bound::Included(key) | Bound::Excluded(key)
                if key.len() > longest::<M>() && key.starts_with(beginning) =>
            {
                bound.map(|key| [&prefix[..], &key[beginning.len()..]].concat())
            }
            _ => all,
        };
        let start = inside(range.0, Bound::Included(prefix.to_vec()));
        let end = inside(range.1, Bound::Excluded(after.to_vec()));
        let inner = (
            start.as_ref().map(Vec::as_slice),
            end.as_ref().map(Vec::as_slice),
        );
        let visit: &mut Visit<'_, M> = &mut |key, current| {
            let whole = [beginning, &key[SPACE_PREFIX..]].concat();
            visit(&whole, current)
        };
        self.scan_places(time, inner, way, visit)
    }
}
