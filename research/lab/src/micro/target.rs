//! An index under measurement: the runner creates, uses, closes and reopens it.

use super::drive::{self, Session, Slice};
use super::{Contender, Op};
use crate::LabError;
use bristlecone_designs::{OrderedIndex, UpdateError};
use bristlecone_pmem::MediumKind;
use bristlecone_pmem::media::{Auto, Media, MediaOptions, PersistCounts};
use std::marker::PhantomData;
use std::ops::ControlFlow;
use std::path::Path;

/// The space of an index, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of keys.
    pub entries: u64,
    /// Bytes on the medium, including allocator overhead.
    pub pm_bytes: u64,
    /// Bytes in DRAM.
    pub dram_bytes: u64,
}

/// An index from `u64` to `u64` together with the pool that it lives in, on medium `M`.
pub trait Target<M: Media>: Sized + Send + Sync + 'static {
    /// The options of the design.
    type Design: Clone + Send + Sync + 'static;

    /// Returns the index.
    type Index: OrderedIndex<u64, u64>;

    /// Makes a pool at `path` with an empty index in it.
    ///
    /// # Errors
    /// [`LabError::Open`] or [`LabError::Index`], with the cause.
    fn create(design: &Self::Design, path: &Path, media: &MediaOptions) -> Result<Self, LabError>;

    /// Opens an index of [`create`](Self::create), and recovers it if it was not closed.
    ///
    /// # Errors
    /// [`LabError::Open`] or [`LabError::Index`], with the cause.
    fn open(design: &Self::Design, path: &Path, media: &MediaOptions) -> Result<Self, LabError>;

    /// Returns the index.
    fn index(&self) -> &Self::Index;

    /// Returns the medium.
    fn media(&self) -> &M;

    /// Returns its present space.
    fn usage(&self) -> Usage;

    /// Closes it cleanly.
    ///
    /// # Errors
    /// [`LabError::Index`] if the mark of the clean close could not be made durable.
    fn close(self) -> Result<(), LabError>;
}

/// One thread's access to an index.
struct Use<'a, I> {
    index: &'a I,
    results: Vec<Result<(), bristlecone_designs::InsertError>>,
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
            Err(bristlecone_designs::InsertError::KeyExists) => Ok(false),
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
                Err(bristlecone_designs::InsertError::KeyExists) => {}
                Err(e) => return Err(refused("batch insert")(e)),
            }
        }
        Ok(added)
    }
}

/// A [`Target`] without its types, as the runner calls it once a slice.
pub(crate) trait Measured {
    /// Runs one slice.
    fn slice(
        &self,
        name: &str,
        op: Op,
        keys: &[u64],
        threads: usize,
        batch: usize,
    ) -> Result<Slice, LabError>;

    /// Returns the value of a key.
    fn get(&self, key: u64) -> Option<u64>;

    /// Returns its present space.
    fn usage(&self) -> Usage;

    /// Returns the medium.
    fn medium(&self) -> MediumKind;

    /// Makes the commits durable that have not waited for the disk.
    fn sync(&self) -> Result<(), LabError>;

    /// As [`Target::close`].
    fn close(self: Box<Self>) -> Result<(), LabError>;
}

/// A [`Measured`] that counts flushes and fences.
pub(crate) trait Counted: Measured {
    /// Returns the counts so far.
    fn counts(&self) -> PersistCounts;
}

struct Open<M, T> {
    target: T,
    medium: PhantomData<fn() -> M>,
}

impl<M, T> Open<M, T> {
    fn new(target: T) -> Self {
        Self {
            target,
            medium: PhantomData,
        }
    }
}

impl<M: Media, T: Target<M>> Measured for Open<M, T> {
    fn slice(
        &self,
        name: &str,
        op: Op,
        keys: &[u64],
        threads: usize,
        batch: usize,
    ) -> Result<Slice, LabError> {
        let sessions = (0..threads)
            .map(|_| Use {
                index: self.target.index(),
                results: Vec::new(),
            })
            .collect();
        drive::slice(name, sessions, op, keys, batch)
    }

    fn get(&self, key: u64) -> Option<u64> {
        self.target.index().get(&key)
    }

    fn usage(&self) -> Usage {
        self.target.usage()
    }

    fn medium(&self) -> MediumKind {
        self.target.media().kind()
    }

    fn sync(&self) -> Result<(), LabError> {
        let synced = self.target.media().sync();
        synced.map_err(|e| LabError::index("sync", e))
    }

    fn close(self: Box<Self>) -> Result<(), LabError> {
        self.target.close()
    }
}

impl<T: Target<Auto>> Counted for Open<Auto, T> {
    fn counts(&self) -> PersistCounts {
        self.target.media().counts().expect("it is in memory")
    }
}

type Making<X> = Box<dyn Fn(&Path, &MediaOptions) -> Result<Box<X>, LabError>>;

/// Creates and opens the measured index.
pub(crate) struct Maker {
    pub create: Making<dyn Measured>,
    pub open: Making<dyn Measured>,
    /// The same design in memory that counts.
    pub counting: Box<dyn Fn() -> Result<Box<dyn Counted>, LabError>>,
}

impl Maker {
    pub(crate) fn of<M, T, C>(design: T::Design) -> Self
    where
        M: Media,
        T: Target<M>,
        C: Target<Auto, Design = T::Design>,
    {
        let [creating, opening, counted] = [design.clone(), design.clone(), design];
        Self {
            create: Box::new(move |path, media| {
                Ok(Box::new(Open::new(T::create(&creating, path, media)?)))
            }),
            open: Box::new(move |path, media| {
                Ok(Box::new(Open::new(T::open(&opening, path, media)?)))
            }),
            counting: Box::new(move || {
                let media = MediaOptions {
                    medium: Some(MediumKind::Dram),
                    ..MediaOptions::default()
                };
                let created = C::create(&counted, Path::new("counted pass"), &media)?;
                Ok(Box::new(Open::new(created)))
            }),
        }
    }
}

/// The index as a contender among its peers.
pub(crate) struct Subject<'a> {
    pub name: &'static str,
    pub target: &'a dyn Measured,
}

impl Contender for Subject<'_> {
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
        self.target.slice(self.name, op, keys, threads, batch)
    }
}
