//! An index under measurement: how the runner makes, uses, leaves and reopens it.

use super::drive::{self, Session, Slice};
use super::{Contender, Op};
use crate::LabError;
use bristlecone_pmem::media::{Media, MediaOptions};
use bristlecone_trees::{OrderedIndex, UpdateError};
use std::ops::ControlFlow;
use std::path::Path;

/// What an index takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Keys.
    pub entries: u64,
    /// On the medium, allocator overhead included.
    pub pm_bytes: u64,
    /// In DRAM.
    pub dram_bytes: u64,
}

/// An index from `u64` to `u64` together with the pool that it lives in, on medium `M`.
///
/// A design needs one implementation of this trait to be measured.
pub trait Target<M: Media>: Sized + Send + Sync {
    /// The index.
    type Index: OrderedIndex<u64, u64>;

    /// Makes a pool at `path` with an empty index in it.
    ///
    /// # Errors
    /// [`LabError::Open`] or [`LabError::Index`] with what refused.
    fn create(path: &Path, media: &MediaOptions) -> Result<Self, LabError>;

    /// Opens what [`create`](Self::create) made, recovering it if it was not closed.
    ///
    /// # Errors
    /// [`LabError::Open`] or [`LabError::Index`] with what refused.
    fn open(path: &Path, media: &MediaOptions) -> Result<Self, LabError>;

    /// The index.
    fn index(&self) -> &Self::Index;

    /// The medium that it is on.
    fn media(&self) -> &M;

    /// What it takes now.
    fn usage(&self) -> Usage;

    /// Closes it so that the next open is a clean one.
    ///
    /// # Errors
    /// [`LabError::Index`] when the closing mark could not be made durable.
    fn close(self) -> Result<(), LabError>;
}

/// One thread's use of an index.
struct Use<'a, I> {
    index: &'a I,
    results: Vec<Result<(), bristlecone_trees::InsertError>>,
}

fn refused<E: std::error::Error + Send + Sync + 'static>(
    doing: &'static str,
) -> impl Fn(E) -> Box<LabError> {
    move |e| Box::new(LabError::index(doing, e))
}

impl<I: OrderedIndex<u64, u64>> Session for Use<'_, I> {
    #[inline]
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>> {
        match self.index.insert(&key, &value) {
            Ok(()) => Ok(true),
            Err(bristlecone_trees::InsertError::KeyExists) => Ok(false),
            Err(e) => Err(refused("insert")(e)),
        }
    }

    #[inline]
    fn update(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>> {
        match self.index.update(&key, &value) {
            Ok(()) => Ok(true),
            Err(UpdateError::NotFound) => Ok(false),
            Err(e) => Err(refused("update")(e)),
        }
    }

    #[inline]
    fn remove(&mut self, key: u64) -> Result<bool, Box<LabError>> {
        self.index.remove(&key).map_err(refused("delete"))
    }

    #[inline]
    fn get(&mut self, key: u64) -> Result<Option<u64>, Box<LabError>> {
        Ok(self.index.get_with(&key, |value| *value))
    }

    #[inline]
    fn scan(&mut self, from: u64, limit: usize) -> Result<(Option<u64>, usize), Box<LabError>> {
        let (mut first, mut visited, mut sum) = (None, 0, 0_u64);
        self.index.scan(from.., |key, value| {
            first.get_or_insert(*key);
            sum = sum.wrapping_add(*value);
            visited += 1;
            if visited < limit {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        std::hint::black_box(sum);
        Ok((first, visited))
    }

    #[inline]
    fn multi_get(&mut self, keys: &[u64], out: &mut Vec<Option<u64>>) -> Result<(), Box<LabError>> {
        self.index.multi_get(keys, out);
        Ok(())
    }

    #[inline]
    fn multi_insert(&mut self, pairs: &[(u64, u64)]) -> Result<u64, Box<LabError>> {
        self.index.multi_insert(pairs, &mut self.results);
        let mut added = 0;
        for result in self.results.drain(..) {
            match result {
                Ok(()) => added += 1,
                Err(bristlecone_trees::InsertError::KeyExists) => {}
                Err(e) => return Err(refused("batch insert")(e)),
            }
        }
        Ok(added)
    }
}

/// Runs one slice on an index.
pub(crate) fn slice<I: OrderedIndex<u64, u64>>(
    name: &str,
    index: &I,
    op: Op,
    keys: &[u64],
    threads: usize,
    batch: usize,
) -> Result<Slice, LabError> {
    let sessions = (0..threads)
        .map(|_| Use {
            index,
            results: Vec::new(),
        })
        .collect();
    drive::slice(name, sessions, op, keys, batch)
}

/// The index as a contender among its peers.
pub(crate) struct Subject<'a, I> {
    pub name: &'static str,
    pub index: &'a I,
}

impl<I: OrderedIndex<u64, u64>> Contender for Subject<'_, I> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn slice(
        &mut self,
        op: Op,
        keys: &[u64],
        threads: usize,
        batch: usize,
    ) -> Result<Slice, LabError> {
        slice(self.name, self.index, op, keys, threads, batch)
    }
}
