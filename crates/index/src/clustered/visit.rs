//! Those who visit entries in a scan.

use super::hosted::{Current, HostedTree, KeyRange};
use super::stored::Stored;
use super::{ClusteredTree, ReadError};
use crate::contract::Direction;
use crate::inner::Ranged;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::Media;
use std::ops::ControlFlow;

/// The part of an entry that a visitor reads. Long values lie outside the pages; they are
/// prefetched only for a visitor that reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visits {
    /// Keys, and of long values at most their beginnings.
    Keys,
    /// Keys and values.
    Values,
}

/// Receives the entries, and the damaged pages, that a scan reaches. Two closures are one, with
/// what they read.
pub(super) trait Visitor<K: KeyRepr + ?Sized> {
    fn visits(&self) -> Visits;

    /// Gets an entry whose value is here, if that is all that it needs; `None` if not: then it gets
    /// it as [`entry`](Self::entry). Breaks to end the scan.
    #[inline(always)]
    fn short(&mut self, _key: &K, _value: &[u8]) -> Option<ControlFlow<()>> {
        None
    }

    /// Gets an entry, with its value as the page has it. Breaks to end the scan.
    fn entry(&mut self, key: &K, stored: Stored<'_>) -> Result<ControlFlow<()>, ReadError>;

    /// Gets a page that cannot be loaded, and says whether the scan goes on behind it.
    fn damaged(&mut self, at: &Ranged<K>, e: ReadError) -> Result<ControlFlow<()>, ReadError>;
}

impl<K, E, D> Visitor<K> for (Visits, E, D)
where
    K: KeyRepr + ?Sized,
    E: FnMut(&K, Stored<'_>) -> Result<ControlFlow<()>, ReadError>,
    D: FnMut(&Ranged<K>, ReadError) -> Result<ControlFlow<()>, ReadError>,
{
    fn visits(&self) -> Visits {
        self.0
    }

    #[inline(always)]
    fn entry(&mut self, key: &K, stored: Stored<'_>) -> Result<ControlFlow<()>, ReadError> {
        (self.1)(key, stored)
    }

    fn damaged(&mut self, at: &Ranged<K>, e: ReadError) -> Result<ControlFlow<()>, ReadError> {
        (self.2)(at, e)
    }
}

/// Visits the values of a tree.
pub(super) struct Resolving<'t, K, V, M, F>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    pub(super) tree: &'t ClusteredTree<K, V, M>,
    pub(super) visit: F,
}

impl<K, V, M, F> Visitor<K> for Resolving<'_, K, V, M, F>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
    F: FnMut(&K, &V) -> ControlFlow<()>,
{
    #[inline(always)]
    fn visits(&self) -> Visits {
        Visits::Values
    }

    #[inline(always)]
    fn short(&mut self, key: &K, value: &[u8]) -> Option<ControlFlow<()>> {
        V::with_value_of(value, |value| (self.visit)(key, value))
    }

    #[inline(always)]
    fn entry(&mut self, key: &K, stored: Stored<'_>) -> Result<ControlFlow<()>, ReadError> {
        let visited = self.short(key, &self.tree.resolve(stored)?);
        // Bytes of values of the tree are values.
        Ok(visited.unwrap_or(ControlFlow::Continue(())))
    }

    #[cold]
    fn damaged(&mut self, _: &Ranged<K>, e: ReadError) -> Result<ControlFlow<()>, ReadError> {
        Err(e)
    }
}

/// Visits the entries of a [`HostedTree`]. A closure does, too, and gets all of them as
/// [`entry`](Self::entry).
pub trait EntryVisitor<M: Media> {
    /// Gets a key and its value, which is not long; `None` if that is not all that it needs: then
    /// it gets them as [`entry`](Self::entry). Breaks to end the scan.
    #[inline(always)]
    fn short(&mut self, _key: &[u8], _value: &[u8]) -> Option<ControlFlow<()>> {
        None
    }

    /// Gets a key and what it has. Breaks to end the scan.
    ///
    /// # Errors
    /// Those of [`Current`], or of its own, which end the scan.
    fn entry(&mut self, key: &[u8], current: &Current<'_, M>)
    -> Result<ControlFlow<()>, ReadError>;
}

impl<M, F> EntryVisitor<M> for F
where
    M: Media,
    F: FnMut(&[u8], &Current<'_, M>) -> Result<ControlFlow<()>, ReadError> + ?Sized,
{
    #[inline(always)]
    fn entry(
        &mut self,
        key: &[u8],
        current: &Current<'_, M>,
    ) -> Result<ControlFlow<()>, ReadError> {
        self(key, current)
    }
}

/// Visits entries, those of pages that cannot be loaded too, as far as they are sound.
pub(super) struct Rescuing<'s, M: Media, F> {
    pub(super) tree: &'s HostedTree<M>,
    pub(super) range: KeyRange<'s>,
    pub(super) direction: Direction,
    pub(super) visits: Visits,
    pub(super) visitor: F,
}

impl<M, F> Visitor<[u8]> for Rescuing<'_, M, F>
where
    M: Media,
    F: EntryVisitor<M>,
{
    #[inline(always)]
    fn visits(&self) -> Visits {
        self.visits
    }

    #[inline(always)]
    fn short(&mut self, key: &[u8], value: &[u8]) -> Option<ControlFlow<()>> {
        self.visitor.short(key, value)
    }

    #[inline(always)]
    fn entry(&mut self, key: &[u8], stored: Stored<'_>) -> Result<ControlFlow<()>, ReadError> {
        self.visitor.entry(key, &Current::new(&self.tree.0, stored))
    }

    #[cold]
    fn damaged(&mut self, at: &Ranged<[u8]>, e: ReadError) -> Result<ControlFlow<()>, ReadError> {
        let (tree, range, direction) = (self.tree, self.range, self.direction);
        tree.scan_rescued((range, direction), at, e, &mut |key, stored| {
            self.entry(key, stored)
        })
    }
}
