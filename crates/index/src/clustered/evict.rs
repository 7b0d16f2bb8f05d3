//! Giving memory back: what DRAM holds of pages that nobody needs to find changes in, and what it
//! holds of the pool file as it is.
//!
//! ```text
//! drop the part of a page       its lock | no change that a reader at a time could miss | sealed
//!                               the inner index leads to the page's number again
//! drop memory of the pool       no part is of a page there, and the file has the same bytes
//! ```
//!
//! A page's sums are checked when its part is made. So its memory goes only after its part: what is
//! read from the file again is checked again. Outer values are checked whenever they are read.
//!
//! The table, the commit slots and the log of merges stay in memory. Words of the table are stored
//! before the fence that makes them durable, which may be one of the thread's next operation.
//!
//! # Concurrency
//! 1. Everything that stores to pages or values, and everything that makes a part, does so in a
//!    [section](ClusteredTree::storing), which begins before the first lock. While the medium
//!    looks at memory, nobody is in one.
//! 2. A part is dropped under its writer's lock and that of the inner pages, as if the page had
//!    never been loaded: no change of it is later than the earliest time at which somebody reads,
//!    or is going to read.

use super::layout::SEAL;
use super::{ClusteredTree, Handle, HostedTree};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::heap::Heap;
use bristlecone_pmem::media::{Evicted, Section};
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{CommitError, Media};
use crossbeam_epoch as epoch;
use std::cell::Cell;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes of the system's pages.
const PAGE: u64 = 4096;
/// Bytes of the pool that have one array of counts.
const REGION: u64 = 64 << 20;
/// Bytes of the pool that are looked at while nobody stores.
const STEP: u64 = 4 << 20;

/// How many loaded pages of a tree are in each of the system's pages, wholly or in part.
#[derive(Debug)]
pub(super) struct Loaded {
    regions: Box<[OnceLock<Box<[AtomicU8]>>]>,
}

impl Loaded {
    /// For a pool of at most `capacity` bytes.
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            regions: (0..capacity.div_ceil(REGION))
                .map(|_| OnceLock::new())
                .collect(),
        }
    }

    fn counts(&self, block: Range<u64>) -> impl Iterator<Item = &AtomicU8> {
        let pages = block.start / PAGE..block.end.div_ceil(PAGE);
        pages.filter_map(|page| {
            let region = self.regions.get((page / (REGION / PAGE)) as usize)?;
            let none = || (0..REGION / PAGE).map(|_| AtomicU8::new(0)).collect();
            region
                .get_or_init(none)
                .get((page % (REGION / PAGE)) as usize)
        })
    }

    fn add(&self, block: Range<u64>) {
        for count in self.counts(block) {
            // ORDERING: Relaxed; read only while nobody is in a section, and sections order them.
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn remove(&self, block: Range<u64>) {
        for count in self.counts(block) {
            // ORDERING: Relaxed; as in `add`.
            let before = count.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a page was loaded before it went");
        }
    }

    /// Whether a loaded page has bytes of the system's page at that offset.
    fn has(&self, offset: u64) -> bool {
        let region = self.regions.get((offset / REGION) as usize);
        let counts = region.and_then(OnceLock::get);
        let count = counts.and_then(|counts| counts.get((offset % REGION / PAGE) as usize));
        // ORDERING: Relaxed; as in `add`.
        count.is_some_and(|count| count.load(Ordering::Relaxed) > 0)
    }
}

/// Where [`HostedTree::evict`] goes on.
#[derive(Debug, Default)]
pub struct Hands {
    part: u32,
    offset: u64,
}

impl<K, V, M> ClusteredTree<K, V, M>
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    M: Media,
{
    /// Enters a section, in which this thread may store to pages and values, and load pages. The
    /// outermost one begins before any lock is taken.
    #[inline(always)]
    pub(super) fn storing(&self) -> Section<'_> {
        Section::enter(self.pm().sections())
    }

    /// No page is loaded.
    pub(super) fn loaded_of(pm: &M) -> Option<Loaded> {
        pm.sections().map(|_| Loaded::new(pm.capacity()))
    }

    fn extent(heap: &Heap<M>, block: u64) -> Range<u64> {
        block..block + heap.block_bytes(block).unwrap_or(1)
    }

    /// Notes that a leaf page's block has a part.
    pub(super) fn note_loaded(&self, block: u64) {
        if let Some(loaded) = &self.loaded {
            loaded.add(Self::extent(&self.heap, block));
        }
    }

    /// Notes that it has none any more.
    pub(super) fn note_unloaded(&self, block: u64) {
        if let Some(loaded) = &self.loaded {
            loaded.remove(Self::extent(&self.heap, block));
        }
    }

    /// The earliest time that a reader can have, now or later.
    fn horizon(&self) -> u64 {
        let (first, _) = self.versions.readers(None);
        let now = if self.marks.waits {
            self.marks.durable()
        } else {
            self.shown.mark()
        };
        first.map_or(now, |first| first.min(now))
    }

    /// Drops up to `most` parts, from number `hand` on, and moves it. Returns how many.
    fn drop_parts(&self, hand: &mut u32, most: usize) -> usize {
        let mut dropped = 0;
        let end = self.parts.handed_out();
        let horizon = self.horizon();
        for _ in 0..end {
            if dropped >= most {
                break;
            }
            *hand = if *hand + 1 < end { *hand + 1 } else { 0 };
            dropped += usize::from(self.drop_part(*hand, horizon));
        }
        dropped
    }

    /// Drops a part, if it is one, nobody has its lock, and no reader can miss what it knows.
    fn drop_part(&self, slot: u32, horizon: u64) -> bool {
        let guard = &epoch::pin();
        let _storing = self.storing();
        let part = self.part(slot);
        if part.latest() >= horizon || !part.writer.try_lock() {
            return false;
        }
        let dropped = self.drop_locked(slot, horizon, guard);
        if dropped {
            part.writer.unlock();
            self.parts.free(slot);
        } else {
            part.writer.unlock_unchanged();
        }
        dropped
    }

    fn drop_locked(&self, slot: u32, horizon: u64, guard: &epoch::Guard) -> bool {
        let part = self.part(slot);
        let (block, words) = part.block_and_words();
        // It may be free, and its block another's.
        if block == 0 || words < SEAL || part.latest() >= horizon {
            return false;
        }
        let Ok((page, header, seed)) = self.checked_page(block) else {
            return false;
        };
        let low = page.low(&header).unwrap_or(Self::lowest());
        let dropped = K::with_value_of(low, |low| {
            let at = self.inner.find_range(low, guard);
            // A part that the index leads to, with a lock that is held, stays where it is.
            if Handle::decode(at.located.leaf) != Handle::Part(slot)
                || !self.inner.validate(&at.located)
                || (part.id(), part.generation()) != (header.id, header.generation)
            {
                return false;
            }
            let seal = seed.seal(part.end());
            let cell = page.cell(SEAL);
            // ORDERING: Relaxed (both); under the lock. Who loads the page takes the lock of the
            // inner pages, which this thread takes below.
            if !self.read_only && cell.load(self.pm(), Ordering::Relaxed) != seal {
                cell.store(self.pm(), seal, Ordering::Relaxed);
                // PERSIST: the seal, before the page leaves memory: damage of its last group is
                // told from a group that a power cut tore.
                self.pm().persist(cell);
            }
            let _upper = lock(&self.upper);
            part.version.lock();
            let (from, to) = (Handle::Part(slot), Handle::Unloaded(header.id));
            let replaced = self.inner.replace(from.encode(), to.encode(), low, guard);
            debug_assert!(replaced, "the lock keeps it where it is");
            part.version.unlock();
            replaced
        });
        let dropped = dropped.unwrap_or(false);
        if dropped {
            self.note_unloaded(block);
        }
        dropped
    }

    /// What stays in memory, whatever a page's count says.
    fn kept_in_memory(&self) -> Vec<Range<u64>> {
        let table = self.table.blocks().map(|(block, _)| block);
        let log = self.log.as_ref().map(bristlecone_pmem::log::Logs::offset);
        let blocks = table.chain(log).chain([self.slots.block()]);
        blocks
            .map(|block| Self::extent(&self.heap, block))
            .collect()
    }

    /// As [`HostedTree::evict`], of the pool's memory.
    fn evict_memory(
        &self,
        hand: &mut u64,
        mut enough: impl FnMut() -> bool,
    ) -> Result<Evicted, CommitError> {
        let mut sum = Evicted::default();
        let Some(loaded) = &self.loaded else {
            return Ok(sum);
        };
        let kept = self.kept_in_memory();
        let extents = self.heap.extents();
        let from = extents.partition_point(|extent| extent.end <= *hand);
        for extent in extents[from..].iter().chain(&extents[..from]) {
            let goes_on = extent.contains(hand);
            let mut at = if goes_on { *hand } else { extent.start };
            while at < extent.end {
                let range = at..extent.end.min(at + STEP);
                let owned = Cell::new((u64::MAX, false));
                let keep = |offset: u64| {
                    let chunk = offset / CHUNK;
                    if owned.get().0 != chunk {
                        owned.set((chunk, self.heap.owns(offset)));
                    }
                    let overlaps =
                        |kept: &Range<u64>| kept.start < offset + PAGE && offset < kept.end;
                    !owned.get().1 || loaded.has(offset) || kept.iter().any(overlaps)
                };
                let evicted = self.pm().evict(range.clone(), &keep)?;
                sum.bytes += evicted.bytes;
                sum.dirty += evicted.dirty;
                sum.busy |= evicted.busy;
                at = range.end;
                *hand = at;
                if enough() {
                    return Ok(sum);
                }
            }
        }
        *hand = 0;
        Ok(sum)
    }
}

impl<M: Media> HostedTree<M> {
    /// Gives memory back where the medium can ([`Media::evict`]): drops what DRAM holds of one in
    /// `share` leaf pages (of all if it is 1), from where `hands` are, and then memory of the pool
    /// until `enough` returns true, once around at most. `enough` is called every 4 MiB. What is
    /// dropped is read from the pool file when it is needed again, and checked then.
    ///
    /// # Errors
    /// [`CommitError`] if an earlier commit failed, or the kernel refuses.
    pub fn evict(
        &self,
        hands: &mut Hands,
        share: u64,
        enough: impl FnMut() -> bool,
    ) -> Result<Evicted, CommitError> {
        let tree = &self.0;
        if tree.loaded.is_none() {
            return Ok(Evicted::default());
        }
        let parts = tree.parts.usage().0.div_ceil(share.max(1));
        tree.drop_parts(&mut hands.part, parts as usize);
        tree.evict_memory(&mut hands.offset, enough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_loaded_while_any_block_in_it_is() {
        let loaded = Loaded::new(1 << 40);
        let at = 5 * REGION;
        loaded.add(at..at + 512);
        loaded.add(at + 512..at + 1024);
        loaded.add(at + 3 * PAGE + 1024..at + 5 * PAGE + 64);
        let has = |page: u64| loaded.has(at + page * PAGE);
        assert!(has(0) && !has(1) && !has(2) && has(3) && has(4) && has(5) && !has(6));
        loaded.remove(at..at + 512);
        loaded.remove(at + 3 * PAGE + 1024..at + 5 * PAGE + 64);
        assert!(has(0) && !has(3) && !has(4) && !has(5));
        loaded.remove(at + 512..at + 1024);
        assert!(!has(0));
        assert!(!loaded.has(1 << 41) && !loaded.has(0));
    }
}
