//! Snapshots: reads as of a time, and writes that are refused if their keys have changed since.
//!
//! | the page has changes at that time or later | a read as of that time |
//! | --- | --- |
//! | nowhere | searches it like any other read |
//! | in its tail | leaves them out; each group has its stamp |
//! | in its base | takes the old values from [`versions`](super::versions), and the base for all other keys |
//!
//! In the third case no record of the tail counts: they all came after those of the base.

use super::find::Found;
use super::order::{Step, TailOrder};
use super::page::Page;
use super::part::{Part, SEARCHED};
use super::place::Base;
use super::replace::Change;
use super::scan::Bounds;
use super::serial::Reads;
use super::versions::{Past, Version, Was};
use super::visit::Visitor;
use super::{ClusteredTree, Handle, ReadError};
use crate::contract::{Direction, InsertError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::media::cpu;
use bristlecone_pmem::{Media, planted};
use crossbeam_epoch::{self as epoch, Guard};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{ControlFlow, RangeBounds};

/// Changes of a page from which on those of new keys are kept together.
const MANY: usize = 64;

/// A tree as it was when [`snapshot`](ClusteredTree::snapshot) was called: with all changes that
/// had returned by then, and none that began later.
///
/// As long as the snapshot exists, the old value of each key that changes is kept in DRAM, or a
/// note that the key was absent. None of this is durable.
///
/// # Examples
/// ```
/// use bristlecone_index::clustered::{ClusteredOptions, ClusteredTree, WriteError};
/// use bristlecone_index::{DurableIndex, OrderedIndex};
/// use bristlecone_pmem::media::Dram;
/// use bristlecone_pmem::{Pool, PoolOptions};
///
/// let pool = Pool::<Dram>::create("example".as_ref(), &PoolOptions::default())?;
/// let tree = ClusteredTree::<u64, u64, Dram>::create(&pool, "index", &ClusteredOptions::default())?;
/// tree.insert(&1, &10)?;
/// let before = tree.snapshot();
/// tree.update(&1, &11)?;
/// assert_eq!((before.get(&1)?, tree.get(&1)), (Some(10), Some(11)));
///
/// // A change that rests on the old value is refused.
/// let answer = before.write_batch([(&1, Some(&20))]);
/// assert!(matches!(answer, Err(WriteError::Conflict)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "it ends when it is dropped"]
pub struct Snapshot<'t, K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    tree: &'t ClusteredTree<K, V, M>,
    time: u64,
}

/// Reason why changes that rest on a [`Snapshot`] were not made.
#[derive(Debug)]
#[non_exhaustive]
pub enum WriteError {
    /// One of the keys, or what was read, has changed since. Nothing changed: read again, at a new
    /// snapshot.
    Conflict,
    /// As of [`ClusteredTree::write_batch`].
    Refused(InsertError),
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict => f.write_str("a key has changed since the snapshot"),
            Self::Refused(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Conflict => None,
            Self::Refused(e) => e.source(),
        }
    }
}

impl From<InsertError> for WriteError {
    fn from(e: InsertError) -> Self {
        Self::Refused(e)
    }
}

impl<K, V, M> fmt::Debug for Snapshot<'_, K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("time", &self.time)
            .finish_non_exhaustive()
    }
}

impl<K, V, M> Drop for Snapshot<'_, K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    fn drop(&mut self) {
        self.tree.end_reading(self.time);
    }
}

impl<K, V, M> Snapshot<'_, K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Returns the value that `key` had.
    ///
    /// # Errors
    /// [`ReadError`]: a page is damaged; where all were loaded when the tree was opened, it was
    /// damaged in memory since.
    pub fn get(&self, key: &K) -> Result<Option<V::Owned>, ReadError> {
        self.tree.find_at(self.time, key, ToOwned::to_owned)
    }

    /// Visits the entries that the range had, in the order of their keys or down, until `visit`
    /// breaks.
    ///
    /// # Errors
    /// As of [`get`](Self::get); what comes before has been visited.
    pub fn scan<R: RangeBounds<K>>(
        &self,
        range: R,
        direction: Direction,
        visit: impl FnMut(&K, &V) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        (self.tree).scan_pages(&range, direction, self.time, visit)
    }

    /// As [`ClusteredTree::write_batch`], unless one of the keys has changed since: by others, or
    /// by an earlier batch of this snapshot. Keys that were read and are not written are not looked
    /// at: this is snapshot isolation.
    ///
    /// # Errors
    /// [`WriteError`]; nothing has changed then, but where it is [`InsertError::Commit`].
    pub fn write_batch<'c>(
        &self,
        changes: impl IntoIterator<Item = (&'c K, Option<&'c V>)>,
    ) -> Result<(), WriteError>
    where
        K: 'c,
        V: 'c,
    {
        self.write_after(changes, None)
    }

    /// As [`write_batch`](Self::write_batch), unless one of the keys and ranges in `reads` has
    /// changed since, too: this is serialisable isolation, among the transactions that are made so.
    /// One that writes nothing is serialisable as it is.
    ///
    /// It waits for earlier changes to be shown, and looks at each page of `reads` that has
    /// changed.
    ///
    /// # Errors
    /// As of [`write_batch`](Self::write_batch).
    ///
    /// # Examples
    /// ```
    /// use bristlecone_index::clustered::{ClusteredOptions, ClusteredTree, Reads, WriteError};
    /// use bristlecone_index::DurableIndex;
    /// use bristlecone_pmem::media::Dram;
    /// use bristlecone_pmem::{Pool, PoolOptions};
    ///
    /// let pool = Pool::<Dram>::create("example".as_ref(), &PoolOptions::default())?;
    /// let options = ClusteredOptions::default();
    /// let on_call = ClusteredTree::<u64, u64, Dram>::create(&pool, "index", &options)?;
    /// on_call.write_batch([(&1, Some(&1)), (&2, Some(&1))])?;
    /// // Each doctor sees that the other one is on call, and leaves.
    /// let (first, second) = (on_call.snapshot(), on_call.snapshot());
    /// let mut reads = Reads::new();
    /// reads.range(..);
    /// first.write_serializable([(&1, Some(&0))], &reads)?;
    /// let answer = second.write_serializable([(&2, Some(&0))], &reads);
    /// assert!(matches!(answer, Err(WriteError::Conflict)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_serializable<'c>(
        &self,
        changes: impl IntoIterator<Item = (&'c K, Option<&'c V>)>,
        reads: &Reads<K>,
    ) -> Result<(), WriteError>
    where
        K: 'c,
        V: 'c,
    {
        self.write_after(changes, Some(reads))
    }

    fn write_after<'c>(
        &self,
        changes: impl IntoIterator<Item = (&'c K, Option<&'c V>)>,
        reads: Option<&Reads<K>>,
    ) -> Result<(), WriteError>
    where
        K: 'c,
        V: 'c,
    {
        let batch = self.tree.batch_of(changes)?;
        let mut batch = batch.if_unchanged_since(self.time, reads);
        let changed = self.tree.change_batch(&mut batch, true);
        changed.map_err(|e| InsertError::from(ClusteredTree::<K, V, M>::space_of(e)))?;
        if batch.conflict().is_some() {
            return Err(WriteError::Conflict);
        }
        self.tree.commit().map_err(InsertError::from)?;
        Ok(())
    }
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Returns the tree as it is now. Waits for changes that have begun to become visible.
    ///
    /// # Examples
    /// As of [`Snapshot`].
    pub fn snapshot(&self) -> Snapshot<'_, K, V, M> {
        let time = self.begin_reading(false);
        Snapshot { tree: self, time }
    }

    /// Saves the values that a replacement of the page drops and that a snapshot can still read.
    /// `changes`, which have that stamp, are part of the new page. The caller holds the writer's
    /// lock.
    ///
    /// Returns the numbers of the outer values among them: history has their blocks.
    pub(super) fn keep_superseded(
        &self,
        part: &Part,
        changes: &[Change<'_>],
        stamp: u64,
    ) -> Vec<u32> {
        if !self.versions.is_read() || planted!(self.pm(), "clustered-history-dropped") {
            return Vec::new();
        }
        let (page, base, count) = (self.page_of(part), part.base(), part.count());
        let Some(stamps) = page.stamps(part, self.seed(part.generation()), count) else {
            self.versions.keep().lose();
            return Vec::new();
        };
        let record = |(i, stamp)| -> (&[u8], Version<'_>) {
            let place = part.place(i);
            let (rest, value) = page.record(&base, place);
            let value = (!place.removed).then(|| page.stored(value));
            (page.bytes(rest), (stamp, value))
        };
        let mut records: Vec<_> = stamps.into_iter().enumerate().map(record).collect();
        // Those of a key stay in their order.
        records.sort_by(|a, b| a.0.cmp(b.0));
        let in_base = |rest: &[u8]| {
            let rank = page.rank(&base, rest, |_| (0, base.entries));
            (rank.equal).then(|| page.stored(page.entry(&base, rank.below).1))
        };
        let is_forgotten =
            |key: &[u8]| (self.observer.as_ref()).is_some_and(|one| one.forgets(key));
        let (mut new, in_tail) = (Vec::new(), records.len());
        for change in changes.iter().filter(|change| !is_forgotten(change.key)) {
            let rest = base.rest(change.key);
            let of_tail = records[..in_tail].binary_search_by(|record| record.0.cmp(rest));
            if changes.len() >= MANY && of_tail.is_err() && in_base(rest).is_none() {
                new.push(change.key);
            } else {
                records.push((rest, (stamp, change.value)));
            }
        }
        records.sort_by(|a, b| a.0.cmp(b.0));
        let of_keys = records.chunk_by(|a, b| a.0 == b.0);
        let of_keys = of_keys.map(|records| (records[0].0, in_base(records[0].0), records));
        // All of the page has been read when the lock is taken.
        let of_keys: Vec<_> = of_keys.collect();
        let mut keeping = self.versions.keep();
        keeping.add_new(new.into_iter(), stamp);
        let mut key = page.prefix(base.prefix).to_vec();
        for (rest, there, records) in of_keys {
            key.truncate(base.prefix);
            key.extend_from_slice(rest);
            if is_forgotten(&key) {
                continue;
            }
            keeping.add(&key, there, records.iter().map(|(_, version)| *version));
        }
        keeping.outers()
    }

    /// The stamps of a page that was what its part says when they were read.
    pub(super) fn known(stamps: Option<Vec<u64>>) -> Result<Vec<u64>, ReadError> {
        let what = "a change in the tail of a page, which was sound, is damaged in memory";
        stamps.ok_or_else(|| ReadError::Damaged(what.into()))
    }

    /// The part of the page that `key` belongs to, and its version; `None` if the page is not
    /// loaded.
    pub(super) fn part_of_key(&self, key: &K, guard: &Guard) -> Option<(&Part, u64)> {
        loop {
            let at = self.inner.find(key, guard);
            let part = match Handle::decode(at.leaf) {
                Handle::Part(slot) if slot < self.parts.capacity() => self.part(slot),
                Handle::Unloaded(_) if self.inner.validate(&at) => return None,
                // It was read from a node in the middle of a change.
                _ => continue,
            };
            cpu::prefetch(std::ptr::from_ref(part).cast(), SEARCHED);
            self.pm().interleave();
            let version = part.version.try_read();
            if let Some(version) = version.filter(|_| self.inner.validate(&at)) {
                return Some((part, version));
            }
        }
    }

    /// Calls `f` with the value that `key` had at `time`, if it had one. Somebody reads at that
    /// time.
    ///
    /// # Errors
    /// [`ReadError`]: a page is damaged, or the value.
    pub(super) fn find_at<R>(
        &self,
        time: u64,
        key: &K,
        f: impl FnOnce(&V) -> R,
    ) -> Result<Option<R>, ReadError> {
        let guard = &epoch::pin();
        key.with_bytes(|bytes| match self.past_at(time, (key, bytes), guard)? {
            Some(past) => Ok(V::with_value_of(&self.resolve(past.stored())?, f)),
            None => Ok(None),
        })
    }

    /// As [`find_at`](Self::find_at): the value as a page or history has it.
    pub(super) fn past_at(
        &self,
        time: u64,
        (key, bytes): (&K, &[u8]),
        guard: &Guard,
    ) -> Result<Option<Past<'_>>, ReadError> {
        loop {
            let Some((part, version)) = self.part_of_key(key, guard) else {
                if let Some(past) = self.past_away((key, bytes), guard) {
                    return Ok(past);
                }
                self.load(key, guard)?;
                continue;
            };
            let found = self.look_at(part, time, (bytes, key.hash()));
            self.pm().interleave();
            if part.version.validate(version) {
                return found;
            }
        }
    }

    /// The value that a key had at `time`. If the page is changing, the answer, or the error, means
    /// nothing.
    fn look_at(
        &self,
        part: &Part,
        time: u64,
        (key, hash): (&[u8], u32),
    ) -> Result<Option<Past<'_>>, ReadError> {
        let page = self.page_of(part);
        let count = part.count();
        let value = |found| match found {
            Found::Absent => None,
            Found::Value(value) => Some(Past::of(page.stored(value))),
        };
        // Of all records below the count, or a later one.
        if part.latest() < time {
            return Ok(value(page.find_among(part, key, hash, count)));
        }
        if part.latest_of_base() >= time {
            if let Some(kept) = self.versions.at(time, key)? {
                return Ok(kept);
            }
        } else {
            let stamps = page.stamps(part, self.seed(part.generation()), count);
            let stamps = Self::known(stamps)?;
            let is_earlier = |i: usize| stamps[i] < time;
            let base = part.base();
            if let Some((_, place)) = page.newest(part, &base, (key, hash), count, is_earlier) {
                let (_, value) = page.record(&base, place);
                return Ok((!place.removed).then(|| Past::of(page.stored(value))));
            }
        }
        Ok(value(page.find_among(part, key, hash, 0)))
    }

    /// Visits the entries that a page had at `time`, before later changes of it. Returns `None`,
    /// with nothing visited, if the page is not the one of `version` any more.
    ///
    /// # Errors
    /// [`ReadError`]: the page is damaged; and those of `visitor`.
    pub(super) fn visit_earlier(
        &self,
        (part, version): (&Part, u64),
        time: u64,
        direction: Direction,
        bounds: &Bounds<'_, K>,
        visitor: &mut impl Visitor<K>,
    ) -> Result<Option<ControlFlow<()>>, ReadError> {
        let (page, base) = (self.page_of(part), part.base());
        if part.latest_of_base() >= time {
            let kept = bounds.within_page(|from, to| self.versions.between(time, from, to));
            if !part.version.validate(version) {
                return Ok(None);
            }
            self.pm().interleave();
            let visited = self.visit_kept((page, &base), kept?, direction, bounds, visitor)?;
            return Ok(Some(visited));
        }
        let count = part.count();
        let stamps = page.stamps(part, self.seed(part.generation()), count);
        let places: Vec<_> = (0..count).map(|i| part.place(i)).collect();
        if !part.version.validate(version) {
            return Ok(None);
        }
        self.pm().interleave();
        let earlier = places.into_iter().zip(Self::known(stamps)?);
        let earlier = earlier.filter(|(_, stamp)| *stamp < time);
        let order = TailOrder::of(page, &base, earlier.map(|(place, _)| place));
        let walk = bounds.walk(page, &base, None, &order);
        let visited = self.visit_page(page, &base, direction, walk, visitor)?;
        Ok(Some(visited))
    }

    /// Visits the entries of the base, with the old values in `kept` in place of the newer ones.
    fn visit_kept(
        &self,
        (page, base): (Page<'_, M>, &Base),
        kept: Vec<(Vec<u8>, Was)>,
        direction: Direction,
        bounds: &Bounds<'_, K>,
        visitor: &mut impl Visitor<K>,
    ) -> Result<ControlFlow<()>, ReadError> {
        let prefix = page.prefix(base.prefix);
        let order = TailOrder::default();
        let entry = |step| {
            let Step::Base(i) = step else {
                return None;
            };
            let (rest, value) = page.entry(base, i);
            let key = [prefix, page.bytes(rest)].concat();
            Some((key, Some(Past::of(page.stored(value)))))
        };
        let mut entries: BTreeMap<_, _> = bounds
            .walk(page, base, None, &order)
            .filter_map(entry)
            .collect();
        entries.extend(kept);
        let mut failed = Ok(());
        let mut one = |(key, past): (Vec<u8>, Option<Past<'_>>)| {
            let Some(past) = past else {
                return ControlFlow::Continue(());
            };
            match K::with_value_of(&key, |key| visitor.entry(key, past.stored())) {
                Some(Ok(flow)) => flow,
                Some(Err(e)) => {
                    failed = Err(e);
                    ControlFlow::Break(())
                }
                // Bytes of keys of the tree are keys.
                None => ControlFlow::Continue(()),
            }
        };
        let visited = match direction {
            Direction::Up => entries.into_iter().try_for_each(&mut one),
            Direction::Down => entries.into_iter().rev().try_for_each(&mut one),
        };
        failed.map(|()| visited)
    }
}
