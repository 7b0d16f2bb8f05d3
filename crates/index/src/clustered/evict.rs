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
//! 2. Readers and writers give memory back themselves, before they touch what may have left memory
//!    or enter a section, if more is counted than may be.
//! 3. A part is dropped under its writer's lock and that of the inner pages, as if the page had
//!    never been loaded: no change of it is later than the earliest time at which somebody reads,
//!    or is going to read.

use super::away::LONGEST;
use super::layout::SEAL;
use super::memory::{Hands, Memory, PAGE};
use super::part::Part;
use super::stored::HEAD;
use super::{ClusteredTree, Handle, HostedTree};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::heap::Heap;
use bristlecone_pmem::media::{Evicted, Section, Sections};
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{CommitError, Media};
use crossbeam_epoch as epoch;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Where memory is short, one value or page of so many that are read comes to memory. Odd, so that
/// it is not always the pages or always the values.
const KEPT_OF: u64 = 15;
/// Bytes that come to memory without what lies around them, where it is short: a page, or a value
/// that would else be read beside memory.
const ALONE: u64 = (HEAD + LONGEST) as u64;
/// Chunks that are looked at while nobody stores.
const TOGETHER: usize = 64;

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
        if let Some(memory) = &self.memory
            && memory.excess() > 0
        {
            self.give_back_first(memory);
        }
        Section::enter(self.pm().sections())
    }

    /// Gives memory back, unless this thread is in a section, and holds locks.
    #[cold]
    fn give_back_first(&self, memory: &Memory) {
        if !self.pm().sections().is_some_and(Sections::is_inside) {
            // The thread that keeps the bound meets the same error.
            let _ = self.give_back(memory);
        }
    }

    /// No page is loaded.
    pub(super) fn new_memory(pm: &M) -> Option<Memory> {
        pm.sections().map(|_| Memory::new(pm.capacity()))
    }

    /// Counts all of the tree's part of the pool as resident.
    #[cfg(test)]
    pub(super) fn count_all_memory(&self) {
        for extent in self.heap.extents() {
            self.fill_memory(extent);
        }
    }

    /// Whether bytes of the pool have left memory, and nobody has touched them since.
    #[inline]
    pub(super) fn is_away(&self, bytes: Range<u64>) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| memory.is_limited() && memory.is_gone(bytes))
    }

    /// Whether memory is short.
    #[inline]
    pub(super) fn is_short_of_memory(&self) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(Memory::is_nearly_full)
    }

    /// Whether a value, or a page, that is read should come to memory: while there is room, and now
    /// and then.
    pub(super) fn comes_in(&self) -> bool {
        let memory = self
            .memory
            .as_ref()
            .filter(|memory| memory.is_nearly_full());
        // ORDERING: Relaxed; a count.
        memory.is_none_or(|memory| {
            let read = memory.reads.fetch_add(1, Ordering::Relaxed);
            read.is_multiple_of(KEPT_OF)
        })
    }

    /// Before a page of the tree is read that has probably left memory. What lies around it comes
    /// with it, but where memory is short, or nothing can be given back first.
    pub(super) fn touch_page_at(&self, block: u64) {
        let bytes = Self::extent(&self.heap, block);
        if self.pm().sections().is_some_and(Sections::is_inside) {
            self.touch_to_store(bytes);
        } else {
            self.touch(bytes);
        }
    }

    /// Before bytes of the pool are read that may have left memory, by a thread that holds no lock:
    /// gives other memory back first, if there is too much.
    #[inline(always)]
    pub(super) fn touch(&self, bytes: Range<u64>) {
        if let Some(memory) = &self.memory
            && memory.is_limited()
            && !memory.is_counted(bytes.clone())
        {
            self.touch_slowly(memory, &bytes);
        }
    }

    #[cold]
    fn touch_slowly(&self, memory: &Memory, bytes: &Range<u64>) {
        if memory.excess() > 0 {
            self.give_back_first(memory);
        }
        if memory.is_nearly_full() && bytes.end - bytes.start <= ALONE {
            // Between being counted and being there they would be dropped in vain.
            let _storing = Section::enter(self.pm().sections());
            memory.count(bytes.clone());
            self.pm().bring_alone(bytes.clone());
        } else {
            // The system maps the pages around one that is read, if it has them.
            memory.count(bytes.start / CHUNK * CHUNK..bytes.end.next_multiple_of(CHUNK));
        }
    }

    /// Before bytes of the pool are read that are going to be changed, and that may have left
    /// memory. A batch can give nothing back before it is done: so nothing comes with them.
    pub(super) fn touch_to_store(&self, bytes: Range<u64>) {
        if self.memory.as_ref().is_some_and(Memory::is_limited) {
            self.fill_memory(bytes.clone());
            // Whatever is counted: the kernel may have taken some of it.
            for page in bytes.start / PAGE..bytes.end.div_ceil(PAGE) {
                self.pm().touch_to_store(bytes.start.max(page * PAGE));
            }
        }
    }

    /// Counts bytes of the pool that are going to be written.
    #[inline(always)]
    pub(super) fn fill_memory(&self, bytes: Range<u64>) {
        if let Some(memory) = &self.memory
            && memory.is_limited()
        {
            memory.count(bytes);
        }
    }

    pub(super) fn extent(heap: &Heap<M>, block: u64) -> Range<u64> {
        block..block + heap.block_bytes(block).unwrap_or(1)
    }

    /// Notes that a leaf page's block has a part.
    pub(super) fn note_loaded(&self, block: u64) {
        if let Some(memory) = &self.memory {
            memory.add(Self::extent(&self.heap, block));
        }
    }

    /// Notes that it has none any more.
    pub(super) fn note_unloaded(&self, block: u64) {
        if let Some(memory) = &self.memory {
            memory.remove(Self::extent(&self.heap, block));
        }
    }

    /// The earliest time that a reader can have, now or later.
    fn horizon(&self) -> u64 {
        // First: who begins to read later does so at that time, or after it.
        let now = if self.marks.waits {
            self.marks.durable()
        } else {
            self.shown.mark()
        };
        let (first, _) = self.versions.readers(None);
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
        // Not by `storing`, which gives memory back first.
        let _storing = Section::enter(self.pm().sections());
        let part = self.part(slot);
        if part.latest() >= horizon || !part.writer.try_lock() {
            return false;
        }
        let dropped = self.drop_locked(slot, horizon, guard);
        if dropped {
            part.writer.unlock();
            self.free_part(slot);
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
        if self.heap.check(block, 1).is_ok() {
            // Its seal is stored. What lies around it need not come to memory. However it came
            // there, its page is in memory from here on, until it leaves: counted even if there is
            // no bound at this moment.
            self.touch_to_store(block..block + 1);
            if let Some(memory) = &self.memory {
                memory.count(Self::extent(&self.heap, block));
            }
        }
        let Ok((page, header, seed)) = self.checked_page(block) else {
            return false;
        };
        if (part.id(), part.generation()) != (header.id, header.generation) {
            return false;
        }
        let low = page.low(&header).unwrap_or(Self::lowest());
        let dropped = K::with_value_of(low, |low| {
            let at = self.inner.find_range(low, guard);
            // A part that the index leads to, with a lock that is held, stays where it is.
            if Handle::decode(at.located.leaf) != Handle::Part(slot)
                || !self.inner.validate(&at.located)
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

    /// Blocks in the chunk at that offset that must not be dropped: of the table, the commit slots
    /// and the log of merges.
    fn kept_in_memory(&self, chunk: u64) -> Vec<Range<u64>> {
        let table = self.table.blocks().map(|(block, _)| block);
        let log = self.log.as_ref().map(bristlecone_pmem::log::Logs::offset);
        let blocks = table.chain(log).chain([self.slots.block()]);
        let extents = blocks.map(|block| Self::extent(&self.heap, block));
        let is_here = |kept: &Range<u64>| kept.start < chunk + CHUNK && chunk < kept.end;
        extents.filter(is_here).collect()
    }

    /// Gives memory back until a quarter less than may be is resident, or all of the pool was
    /// looked at. Parts go if they and their pages take more than three quarters: they lead to
    /// values, and so are needed more often.
    ///
    /// # Errors
    /// [`CommitError`]
    fn give_back(&self, memory: &Memory) -> Result<Evicted, CommitError> {
        let mut hands = lock(&memory.hands);
        let excess = memory.excess();
        if excess == 0 {
            // Another thread was faster.
            return Ok(Evicted::default());
        }
        // ORDERING: Relaxed (all); counts.
        let most = memory.most.load(Ordering::Relaxed);
        let part = (self.page_words * 8 + size_of::<Part>()) as u64;
        let (loaded, bytes) = (self.parts.usage().0, most.saturating_mul(PAGE));
        if loaded * part > bytes / 4 * 3 {
            let stay = bytes / 8 * 5 / part;
            self.drop_parts(&mut hands.part, loaded.saturating_sub(stay) as usize);
        }
        let given = self.evict_memory(memory, &mut hands, false, || {
            memory.resident() <= most / 4 * 3
        });
        let resident = memory.resident();
        if resident > most {
            let more = resident.saturating_add(most / 64);
            memory.in_vain.store(more, Ordering::Relaxed);
        }
        given
    }

    /// Drops what the pool file has as it is, from where `hands` are and once around, until there
    /// is `enough`: of what is counted, or of `everything`.
    fn evict_memory(
        &self,
        memory: &Memory,
        hands: &mut Hands,
        everything: bool,
        enough: impl Fn() -> bool,
    ) -> Result<Evicted, CommitError> {
        let mut sum = Evicted::default();
        let Hands {
            offset: hand,
            extents,
            ..
        } = hands;
        let from = extents.partition_point(|extent| extent.end <= *hand);
        if from == extents.len() || everything {
            *hand = 0;
            *extents = self.heap.extents();
        }
        let from = extents.partition_point(|extent| extent.end <= *hand);
        // The last chunk: its number, whether the tree has it, and what of it stays.
        let last = RefCell::new((u64::MAX, false, Vec::new()));
        let goes = |offset: u64| {
            let mut last = last.borrow_mut();
            if last.0 != offset / CHUNK {
                // Each time anew: a segment of the table may have been added.
                *last = (
                    offset / CHUNK,
                    self.heap.owns(offset),
                    self.kept_in_memory(offset / CHUNK * CHUNK),
                );
            }
            let overlaps = |kept: &Range<u64>| kept.start < offset + PAGE && offset < kept.end;
            let goes = last.1 && !memory.has(offset) && !last.2.iter().any(overlaps);
            if goes {
                // Before it goes: who touches it again counts it again.
                memory.discount(offset);
            }
            goes
        };
        let mut counted = Vec::with_capacity(TOGETHER);
        let mut evict = |counted: &mut Vec<Range<u64>>| {
            last.borrow_mut().0 = u64::MAX;
            // `goes` pins as well. As the outermost pin it might collect garbage, and wait.
            let _pin = epoch::pin();
            let evicted = self.pm().evict(counted, &goes)?;
            counted.clear();
            sum.bytes += evicted.bytes;
            sum.dirty += evicted.dirty;
            sum.busy |= evicted.busy;
            // Somebody is in the way, and would be again.
            Ok::<_, CommitError>(evicted.busy || !everything && enough())
        };
        for extent in extents[from..].iter().chain(&extents[..from]) {
            let goes_on = extent.contains(hand);
            let mut at = if goes_on { *hand } else { extent.start };
            while at < extent.end {
                let chunk = at..(at + CHUNK).min(extent.end);
                at = chunk.end;
                *hand = at;
                if everything || memory.is_any_counted(chunk.clone()) {
                    counted.push(chunk);
                }
                if counted.len() == TOGETHER && evict(&mut counted)? {
                    return Ok(sum);
                }
            }
        }
        if !counted.is_empty() {
            evict(&mut counted)?;
        }
        // The pool may have grown.
        *hand = u64::MAX;
        Ok(sum)
    }
}

impl<M: Media> HostedTree<M> {
    /// Returns whether the tree can give memory back: where the medium can ([`Media::evict`]).
    pub fn can_give_back(&self) -> bool {
        self.0.memory.is_some()
    }

    /// Returns how many bytes of the pool are in memory, by what the tree has touched since it was
    /// [bounded](Self::bound_memory); 0 if it is not. The kernel may have mapped more.
    pub fn in_memory(&self) -> u64 {
        let memory = self.0.memory.as_ref();
        memory.map_or(0, |memory| memory.resident() * PAGE)
    }

    /// Returns whether not much more of the pool may come to memory.
    pub fn is_short_of_memory(&self) -> bool {
        self.0.is_short_of_memory()
    }

    /// Sets how many bytes of the pool may be in memory. Beyond it readers give memory back before
    /// they touch more, as [`give_back`](Self::give_back) does. `u64::MAX`: any number.
    pub fn bound_memory(&self, bytes: u64) {
        if let Some(memory) = &self.0.memory {
            let most = if bytes == u64::MAX {
                u64::MAX
            } else {
                bytes / PAGE
            };
            // ORDERING: Relaxed; a bound.
            memory.most.store(most, Ordering::Relaxed);
            memory.in_vain.store(0, Ordering::Relaxed);
        }
    }

    /// If more of the pool is in memory than may be, drops some of what DRAM holds of leaf pages,
    /// and memory of the pool that is read from its file again, and checked, when it is needed. At
    /// most all of it is looked at once.
    ///
    /// # Errors
    /// [`CommitError`] if an earlier commit failed, or the kernel refuses.
    pub fn give_back(&self) -> Result<Evicted, CommitError> {
        let Some(memory) = &self.0.memory else {
            return Ok(Evicted::default());
        };
        self.0.give_back(memory)
    }

    /// Drops all memory of the pool that is read from its file again when it is needed, counted or
    /// not, but for that of loaded pages. Looks at all of it.
    ///
    /// # Errors
    /// As of [`give_back`](Self::give_back).
    pub fn give_all_back(&self) -> Result<Evicted, CommitError> {
        let Some(memory) = &self.0.memory else {
            return Ok(Evicted::default());
        };
        let mut hands = lock(&memory.hands);
        self.0.evict_memory(memory, &mut hands, true, || false)
    }
}
