//! Making a tree smaller: neighbours that fit into one page are merged, and blocks are moved out of
//! chunks that can then go back to the pool. Others go on reading and writing.
//!
//! ```text
//! each leaf page: merged with the one to its right while both fit, or filled up from it | superseded values dropped
//! chunks are chosen, and none of their blocks is handed out any more
//! each leaf page: replaced, if its block or a value is in one of these | each inner page likewise
//! ```
//!
//! A page moves as in a consolidation: into another block, by its word in the table. A long value
//! moves with its page: a copy, with a number of its own, is born in the page's replacement, which
//! drops the one before. So there is no crash state that replacements do not have, no time stamp is
//! taken, and no transaction meets a conflict.
//!
//! The page table, the commit slots and the log of merges stay where they are.

use super::image::Entries;
use super::merge::Joins;
use super::outer::{self, Outer};
use super::part::Part;
use super::replace::{Course, Turnover};
use super::spread::Fullness;
use super::stored::{REFERENCE, Reference, Stored};
use super::{ClusteredTree, Handle, ReadError};
use crate::inner::Ranged;
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::sync::{lock, wait_for_readers};
use bristlecone_pmem::{Media, SpaceError};
use crossbeam_epoch::{self as epoch, Guard};
use std::borrow::Borrow;
use std::ops::ControlFlow;

/// Values that a page's replacement moves at most: it names the ones before.
const TOGETHER: usize = 16;
/// Their bytes, but for the first one's: the page's lock is held while they are copied.
const TOGETHER_BYTES: usize = 1 << 20;
/// Bytes after which what was moved is committed: until then, a journal has it in memory.
const COMMITTED: u64 = 8 << 20;
/// Pages that are filled up: so full that their next changes find room.
const FILLED: Fullness = Fullness {
    percent: 90,
    even: false,
    course: Course::Chain,
};
/// Percent of a page that its entries take at least, if it counts as full.
const FULL_ENOUGH: usize = 86;
/// Attempts to let readers leave what was merged or moved: for a second or so.
const WAITS: usize = 16;

/// Counts of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compacted {
    /// Pages that joined the page to their left.
    pub merged: u64,
    /// Pages that were filled up from the page to their right.
    pub filled: u64,
    /// Pages that were moved.
    pub pages: u64,
    /// Long values that were moved.
    pub values: u64,
    /// Bytes of pages and values that were written.
    pub bytes: u64,
}

/// A long value on its way into another block.
struct Moving {
    /// Which of the page's entries has it.
    entry: usize,
    new: Outer,
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Merges what fits into one page, and moves blocks so that the pool can become smaller
    /// ([`Pool::compact`](bristlecone_pmem::Pool::compact)). Others may go on reading and writing.
    ///
    /// Persist cost: that of a consolidation for each page that is merged or moved.
    ///
    /// # Errors
    /// [`ReadError`]: a page is damaged; the rest has been made smaller. Want of space is none:
    /// then some has not.
    ///
    /// # Examples
    /// ```
    /// use bristlecone_index::clustered::{ClusteredOptions, ClusteredTree};
    /// use bristlecone_index::{DurableIndex, OrderedIndex};
    /// use bristlecone_pmem::media::Dram;
    /// use bristlecone_pmem::{Pool, PoolOptions};
    ///
    /// let pool = Pool::<Dram>::create("example".as_ref(), &PoolOptions::default())?;
    /// let options = ClusteredOptions::default();
    /// let tree = ClusteredTree::<u64, u64, Dram>::create(&pool, "index", &options)?;
    /// for key in 0..200_000 {
    ///     tree.insert(&key, &key)?;
    /// }
    /// for key in (0..200_000).filter(|key| key % 10 != 0) {
    ///     tree.remove(&key)?;
    /// }
    /// tree.compact()?;
    /// let report = pool.compact()?;
    /// let left = report.after_bytes - report.punched_bytes;
    /// assert!(left * 2 < report.before_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compact(&self) -> Result<Compacted, ReadError> {
        self.shrink(true, &|| false)
    }

    /// As [`compact`](Self::compact). `fills`: pages are filled up from the ones to their right,
    /// which writes most pages of a tree whose keys came in no order. Looks before each page
    /// whether to stop.
    ///
    /// # Errors
    /// The first [`ReadError`]; what can be read all the same is made smaller. Want of space is
    /// none: then some of it is not.
    pub(super) fn shrink(
        &self,
        fills: bool,
        stops: &dyn Fn() -> bool,
    ) -> Result<Compacted, ReadError> {
        if self.read_only {
            return Err(SpaceError::ReadOnly.into());
        }
        let (mut done, mut failed) = (Compacted::default(), None);
        self.each_leaf(stops, (&mut done, &mut failed), |at, done| {
            self.pack(at, fills, done)
        });
        let _ = (0..WAITS).any(|_| wait_for_readers());
        let vacating = self.heap.vacate();
        {
            // The reserve leaves these chunks, too.
            let _storing = self.storing();
            self.empty_spare();
            self.fill_spare();
        }
        // Rare paths are to be taken often.
        let is_leaving = |block| self.pm().tiny() || vacating.is_leaving(block);
        self.each_leaf(stops, (&mut done, &mut failed), |at, done| {
            self.move_leaf(at, &is_leaving, done)
        });
        self.move_upper(stops, &mut failed, &is_leaving, &mut done);
        let _ = (0..WAITS).any(|_| wait_for_readers());
        drop(vacating);
        self.heap.trim();
        failed.map_or(Ok(done), Err)
    }

    /// Calls `each` with every leaf page, loaded, from left to right. Goes on behind pages that
    /// cannot be loaded, and notes the first error; ends where there is no space, or it is to stop.
    fn each_leaf(
        &self,
        stops: &dyn Fn() -> bool,
        (done, failed): (&mut Compacted, &mut Option<ReadError>),
        mut each: impl FnMut(&Ranged<K>, &mut Compacted) -> Result<(), ReadError>,
    ) {
        let mut committed = done.bytes;
        let mut low: Option<K::Owned> = None;
        while !stops() {
            let guard = epoch::pin();
            let at = self.range_at(low.as_ref(), &guard);
            let one = match Handle::decode(at.located.leaf) {
                Handle::Part(_) => each(&at, done),
                Handle::Unloaded(_) => {
                    let loaded = Self::with_low(low.as_ref(), |low| self.load(low, &guard));
                    match loaded {
                        Some(Ok(())) => continue,
                        Some(failed) => failed,
                        None => return,
                    }
                }
            };
            // Nobody waits for readers who is one.
            drop(guard);
            match one {
                Ok(()) => {}
                Err(ReadError::Space(_)) if self.retired.wait() => {}
                Err(ReadError::Space(_)) => return,
                Err(e) => _ = failed.get_or_insert(e),
            }
            // It may end further to the right by now.
            match self.range_at(low.as_ref(), &epoch::pin()).high {
                None => return,
                high => low = high,
            }
            if done.bytes - committed >= COMMITTED {
                committed = done.bytes;
                if self.pm().commit().is_err() {
                    // As every later commit will say.
                    return;
                }
            }
        }
    }

    /// Calls `f` with a page's low fence, which is the lowest key if it has none.
    fn with_low<R>(low: Option<&K::Owned>, f: impl FnOnce(&K) -> R) -> Option<R> {
        match low {
            Some(low) => Some(f(low.borrow())),
            None => K::with_value_of(Self::lowest(), f),
        }
    }

    /// The page with that low fence, or what has taken it over.
    fn range_at(&self, low: Option<&K::Owned>, guard: &Guard) -> Ranged<K> {
        match low {
            Some(low) => self.inner.find_range(low.borrow(), guard),
            None => self.inner.find_first(guard),
        }
    }

    /// The part of the page at that place, with its writer's lock held, if it is still there.
    fn lock_at(&self, at: &Ranged<K>) -> Option<&Part> {
        match Handle::decode(at.located.leaf) {
            Handle::Part(slot) if slot < self.parts.capacity() => self.try_lock(&at.located, slot),
            _ => None,
        }
    }

    /// Merges a leaf page with those to its right, as long as they fit, and drops values that are
    /// superseded.
    fn pack(&self, at: &Ranged<K>, fills: bool, done: &mut Compacted) -> Result<(), ReadError> {
        let _storing = self.storing();
        let guard = epoch::pin();
        let again = || self.range_at(at.low.as_ref(), &guard);
        let mut at = again();
        while let Some(high) = &at.high {
            let high = high.borrow();
            if self.part_of_key(high, &guard).is_none() {
                if self.load(high, &guard).is_err() {
                    // The walk reports it when it comes to that page.
                    break;
                }
                at = again();
                continue;
            }
            if self.merge_two(&at, high, Joins::Packing)?.is_none() {
                break;
            }
            done.merged += 1;
            done.bytes += self.page_words as u64 * 8;
            at = again();
        }
        if fills {
            self.fill_up(&at, done)?;
            at = again();
        }
        let Some(part) = self.lock_at(&at) else {
            return Ok(());
        };
        let (_, words) = part.block_and_words();
        let is_large = words > self.page_words && part.count() > 0;
        let renewed = match part.superseded() > 0 || is_large {
            true => self.renew(part),
            false => Ok(()),
        };
        part.writer.unlock();
        renewed
    }

    /// Whether a compaction has left a leaf page full, whose writer's lock is held.
    pub(super) fn is_filled(&self, part: &Part) -> bool {
        let (_, words) = part.block_and_words();
        part.count() == 0 && part.end() * 100 >= words * FULL_ENOUGH
    }

    /// Fills a leaf page up with entries of the one to its right, if it has room for many.
    ///
    /// For that the two become one page of twice the size, which is split. If others are faster,
    /// or there is no space for it, the pages stay as they are, or the large one does.
    fn fill_up(&self, at: &Ranged<K>, done: &mut Compacted) -> Result<(), ReadError> {
        let Some(high) = &at.high else {
            return Ok(());
        };
        let Some(part) = self.lock_at(at) else {
            return Ok(());
        };
        let is_full = self.is_filled(part);
        part.writer.unlock_unchanged();
        if is_full && !self.pm().tiny() {
            return Ok(());
        }
        match self.merge_two(at, high.borrow(), Joins::Filling) {
            Ok(Some(_)) => {}
            Ok(None) | Err(ReadError::Space(_)) => return Ok(()),
            Err(e) => return Err(e),
        }
        done.filled += 1;
        done.bytes += self.page_words as u64 * 8 * 4;
        let again = self.range_at(at.low.as_ref(), &epoch::pin());
        let Some(part) = self.lock_at(&again) else {
            return Ok(());
        };
        let split = self.content(part, &[]).and_then(|(old, entries, dropped)| {
            let turnover = Turnover {
                dropped,
                ..Turnover::of(self.next_generation())
            };
            let unchanged = (&[][..], part.latest());
            self.become_chain(part, (&old, &entries), FILLED, &turnover, unchanged, || ())?;
            Ok(())
        });
        part.writer.unlock();
        match split {
            Err(ReadError::Space(_)) => Ok(()),
            split => split,
        }
    }

    /// Replaces a leaf page whose block is leaving, or a value of it.
    fn move_leaf(
        &self,
        at: &Ranged<K>,
        is_leaving: &dyn Fn(u64) -> bool,
        done: &mut Compacted,
    ) -> Result<(), ReadError> {
        let guard = epoch::pin();
        loop {
            let _storing = self.storing();
            let Some(part) = self.lock_at(&self.range_at(at.low.as_ref(), &guard)) else {
                return Ok(());
            };
            let block = part.block();
            let more = self.move_locked(part, is_leaving, done);
            if part.block() != block {
                done.pages += 1;
                done.bytes += part.block_and_words().1 as u64 * 8;
            }
            part.writer.unlock();
            if !more? {
                return Ok(());
            }
        }
    }

    /// Moves a page, and some of its values. Returns whether there may be more. The caller has the
    /// writer's lock.
    fn move_locked(
        &self,
        part: &Part,
        is_leaving: &dyn Fn(u64) -> bool,
        done: &mut Compacted,
    ) -> Result<bool, ReadError> {
        let (block, guard) = (part.block(), &epoch::pin());
        let (old, entries, _) = self.content(part, &[])?;
        let mut moving = Vec::new();
        let (mut bytes, mut more, mut copied) = (0, false, Ok(()));
        for entry in 0..entries.len() {
            let value = entries.value(entry).reference();
            let Some(value) = value.filter(|value| is_leaving(value.block)) else {
                continue;
            };
            if moving.len() == TOGETHER || bytes > TOGETHER_BYTES {
                more = true;
                break;
            }
            match self.copy_outer(&value) {
                Ok(Some(new)) => {
                    bytes += value.len();
                    moving.push(Moving { entry, new });
                }
                Ok(None) => {}
                Err(e) => {
                    copied = Err(e);
                    break;
                }
            }
        }
        if moving.is_empty() && !is_leaving(block) {
            return copied.map(|()| false);
        }
        let generation = self.next_generation();
        let born: Vec<Reference> = (moving.iter())
            .map(|one| one.new.reference(part.id(), generation, 0))
            .collect();
        let encoded: Vec<[u8; REFERENCE]> = born.iter().map(Reference::encode).collect();
        let mut moved = Entries::with_room(entries.len(), 0);
        let mut next = moving.iter().zip(&encoded).peekable();
        for i in 0..entries.len() {
            let value = match next.next_if(|(one, _)| one.entry == i) {
                Some((_, bytes)) => Stored { bytes, outer: true },
                None => entries.value(i),
            };
            moved.push(&[], entries.key(i), value);
        }
        let page = self.page_of(part);
        let places = (0..part.count()).map(|i| part.place(i));
        let dropped = outer::without(self.references(page, &old.header, places), &moved);
        let turnover = Turnover {
            generation,
            born,
            dropped,
        };
        let replaced = self.replace_as(&old, &moved, None, Course::Removing, &turnover);
        let replaced = replaced.inspect_err(|_| {
            moving.iter().for_each(|one| self.discard_outer(&one.new));
        })?;
        self.become_replaced(part, replaced, None, &turnover.dropped, false, guard);
        self.retire_leaf(block, guard);
        done.values += moving.len() as u64;
        done.bytes += bytes as u64;
        copied.map(|()| more)
    }

    /// Copies a value to another block. `Ok(None)` if it stays where it is: it is damaged, which
    /// its readers are told, or there is no room below.
    fn copy_outer(&self, value: &Reference) -> Result<Option<Outer>, ReadError> {
        let Ok(content) = self.content_of(value, true) else {
            return Ok(None);
        };
        // One that takes whole chunks may only fit above.
        let fits = |block| block < value.block || self.pm().tiny();
        Ok(self.write_outer_where(content, fits)?)
    }

    /// Replaces the inner pages whose blocks are leaving.
    fn move_upper(
        &self,
        stops: &dyn Fn() -> bool,
        failed: &mut Option<ReadError>,
        is_leaving: &dyn Fn(u64) -> bool,
        done: &mut Compacted,
    ) {
        for level in 1u8.. {
            let lows: Vec<Vec<u8>> = match lock(&self.upper).levels.get(usize::from(level) - 1) {
                Some(pages) => pages.keys().cloned().collect(),
                None => return,
            };
            let moved = lows.into_iter().try_for_each(|low| {
                if stops() {
                    return ControlFlow::Break(());
                }
                let _storing = self.storing();
                let mut upper = lock(&self.upper);
                let pages = upper.levels.get(usize::from(level) - 1);
                let known = pages.and_then(|pages| pages.get(&low)).copied();
                let Some(known) = known.filter(|known| is_leaving(known.block)) else {
                    return ControlFlow::Continue(());
                };
                match self.replace_upper(&mut upper, level, low, &known, None) {
                    Ok(()) => {
                        done.pages += 1;
                        done.bytes += known.words as u64 * 8;
                    }
                    Err(ReadError::Space(_)) => return ControlFlow::Break(()),
                    Err(e) => _ = failed.get_or_insert(e),
                }
                ControlFlow::Continue(())
            });
            if moved.is_break() {
                return;
            }
        }
    }
}
