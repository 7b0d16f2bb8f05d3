//! Parts common to all designs: the checks of a pair, of the bytes of a node and of the blocks in
//! use; the kind of a root; pairs as words; the commit of a batch; and sorting.

use crate::contract::{InsertError, TreeError, UpdateError, Violation};
use crate::repr::{MAX_KEY, MAX_VALUE, PairOf, Stored, StoredKey};
use bristlecone_pmem::pool::RootKind;
use bristlecone_pmem::{CommitError, Heap, Media, SpaceError};
use std::cmp::Ordering;
use std::ops::ControlFlow;

/// Checks whether an index may store a pair.
///
/// # Errors
/// [`InsertError`]: the index is read-only, or the key or value is too long.
#[inline]
pub fn check_pair<K: StoredKey + ?Sized, V: Stored + ?Sized>(
    read_only: bool,
    key: &K,
    value: &V,
) -> Result<(), InsertError> {
    if read_only {
        return Err(InsertError::ReadOnly);
    }
    if !key.fits() {
        return Err(InsertError::KeyTooLong {
            len: key.bytes(),
            most: MAX_KEY,
        });
    }
    let (len, most) = (value.bytes(), MAX_VALUE);
    if len > most {
        return Err(InsertError::ValueTooLong { len, most });
    }
    Ok(())
}

/// Checks whether an index may store a new value for a key that is present.
///
/// # Errors
/// [`UpdateError`]: the index is read-only, or the value is too long.
#[inline]
pub fn check_value<V: Stored + ?Sized>(read_only: bool, value: &V) -> Result<(), UpdateError> {
    if read_only {
        return Err(UpdateError::ReadOnly);
    }
    let (len, most) = (value.bytes(), MAX_VALUE);
    if len > most {
        return Err(UpdateError::ValueTooLong { len, most });
    }
    Ok(())
}

/// Checks whether a design has nodes of this size.
///
/// # Errors
/// [`TreeError::NodeBytes`]: it has only the sizes `there`.
pub fn check_node_bytes(asked: u32, there: &'static [u32]) -> Result<(), TreeError> {
    if there.contains(&asked) {
        Ok(())
    } else {
        Err(TreeError::NodeBytes { asked, there })
    }
}

/// Checks that a walk reached all blocks in use.
///
/// # Errors
/// A leak.
pub fn check_leaks(live: u64, reached: u64) -> Result<(), Violation> {
    if live == reached {
        return Ok(());
    }
    Err(Violation::leak(format!(
        "{live} blocks are in use but {reached} are reached: {} leaked",
        live.abs_diff(reached)
    )))
}

/// Returns the kind of the root of an index with these types.
#[must_use]
pub fn root_kind<K: Stored + ?Sized, V: Stored + ?Sized>(
    design: &str,
    node_bytes: u32,
) -> RootKind {
    RootKind {
        design: design.into(),
        keys: K::KIND,
        values: V::KIND,
        node_bytes,
    }
}

/// Makes the words of a pair, with their records. If this fails, nothing stays allocated.
///
/// # Errors
/// There is no room for a record.
#[inline]
pub fn make_pair<K: Stored + ?Sized, V: Stored + ?Sized, M: Media>(
    heap: &Heap<M>,
    key: &K,
    value: &V,
) -> Result<PairOf<K, V>, SpaceError> {
    let word = key.make(heap)?;
    let value = value.make(heap).inspect_err(|_| K::discard(heap, word))?;
    Ok((word, value))
}

/// Visits the pair with these words. One that leads nowhere (a corrupt pool) is skipped.
#[inline(always)]
pub fn visit_pair<K: Stored + ?Sized, V: Stored + ?Sized, M: Media>(
    pm: &M,
    (key, value): PairOf<K, V>,
    visit: &mut impl FnMut(&K, &V) -> ControlFlow<()>,
) -> ControlFlow<()> {
    K::read(pm, key, |key| V::read(pm, value, |value| visit(key, value)))
        .flatten()
        .unwrap_or(ControlFlow::Continue(()))
}

/// Commits the inserts of a batch, if there are any. Those that succeeded fail if the commit does.
pub fn commit_inserts(
    results: &mut [Result<(), InsertError>],
    commit: impl FnOnce() -> Result<(), CommitError>,
) {
    if results.iter().any(Result::is_ok)
        && let Err(e) = commit()
    {
        for result in results.iter_mut().filter(|result| result.is_ok()) {
            *result = Err(e.duplicate().into());
        }
    }
}

/// Sorts items by an order. The order is behind a pointer, so that each type of items has one copy
/// of the sort's code, which is long, instead of one for each design, medium and kind of keys.
pub fn sort_by<T>(items: &mut [T], order: &mut dyn FnMut(&T, &T) -> Ordering) {
    items.sort_unstable_by(order);
}

/// Sorts pairs by the first of each. As [`sort_by`], for scans that are to be fast.
pub fn sort_by_first<A: Ord, B>(pairs: &mut [(A, B)]) {
    pairs.sort_unstable_by(|a, b| a.0.cmp(&b.0));
}
