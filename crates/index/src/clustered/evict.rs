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

use super::layout::SEAL;
use super::part::Part;
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
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// Bytes of the system's pages.
const PAGE: u64 = 4096;
/// Bytes of the pool that have one array of counts.
const REGION: u64 = 64 << 20;
/// Where memory is short, one value of so many that are read comes to memory.
const KEPT_OF: u64 = 16;
/// Chunks that are looked at while nobody stores.
const TOGETHER: usize = 64;

/// The pages of the pool that are in memory, as far as the tree has counted them.
#[derive(Debug)]
pub(super) struct Memory {
    regions: Box<[OnceLock<Region>]>,
    /// Pages of the system's that were touched, or lie beside one that was, and were not dropped
    /// since. The kernel may have mapped others, or not all of these.
    resident: AtomicU64,
    /// Values that have been read beside memory, or into it since it is nearly full.
    reads: AtomicU64,
    /// How many may be; `u64::MAX` if that does not matter, and nothing is counted.
    most: AtomicU64,
    /// Until more than so many are, it would be in vain to give memory back.
    in_vain: AtomicU64,
    hands: Mutex<Hands>,
}

/// Of a part of the pool.
#[derive(Debug)]
struct Region {
    /// How many loaded pages of the tree are in each of the system's pages, wholly or in part.
    loaded: Box<[AtomicU8]>,
    /// For each chunk a bit for each page: it is counted as resident.
    resident: Box<[AtomicU16]>,
}

/// Where giving memory back goes on.
#[derive(Debug, Default)]
struct Hands {
    /// The part that was looked at last.
    part: u32,
    /// Where memory of the pool has been looked at.
    offset: u64,
    /// The parts of the pool that the tree owned when this round began.
    extents: Vec<Range<u64>>,
}

impl Region {
    fn new() -> Self {
        Self {
            loaded: (0..REGION / PAGE).map(|_| AtomicU8::new(0)).collect(),
            resident: (0..REGION / CHUNK).map(|_| AtomicU16::new(0)).collect(),
        }
    }
}

impl Memory {
    /// For a pool of at most `capacity` bytes.
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            regions: (0..capacity.div_ceil(REGION))
                .map(|_| OnceLock::new())
                .collect(),
            resident: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            most: AtomicU64::new(u64::MAX),
            in_vain: AtomicU64::new(0),
            hands: Mutex::default(),
        }
    }

    /// The region of an offset. Without one in the pool, the first.
    #[inline]
    fn region(&self, offset: u64) -> &Region {
        let region = self.regions.get((offset / REGION) as usize);
        let region = region.unwrap_or(&self.regions[0]);
        region.get_or_init(Region::new)
    }

    fn loaded(&self, block: Range<u64>) -> impl Iterator<Item = &AtomicU8> {
        let pages = block.start / PAGE..block.end.div_ceil(PAGE);
        pages.map(|page| {
            let of_region = page % (REGION / PAGE);
            &self.region(page * PAGE).loaded[of_region as usize]
        })
    }

    fn add(&self, block: Range<u64>) {
        for count in self.loaded(block) {
            // ORDERING: Relaxed; read only while nobody is in a section, and sections order them.
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn remove(&self, block: Range<u64>) {
        for count in self.loaded(block) {
            // ORDERING: Relaxed; as in `add`.
            let before = count.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a page was loaded before it went");
        }
    }

    /// Whether a loaded page has bytes of the system's page at that offset.
    fn has(&self, offset: u64) -> bool {
        let mut counts = self.loaded(offset..offset + 1);
        // ORDERING: Relaxed; as in `add`.
        counts.any(|count| count.load(Ordering::Relaxed) > 0)
    }

    #[inline]
    fn is_limited(&self) -> bool {
        // ORDERING: Relaxed; a bound.
        self.most.load(Ordering::Relaxed) != u64::MAX
    }

    /// The bits of a chunk, and those of them that stand for pages which a range is in.
    #[inline]
    fn bits(&self, range: Range<u64>) -> impl Iterator<Item = (&AtomicU16, u16)> {
        let chunks = range.start / CHUNK..range.end.div_ceil(CHUNK);
        chunks.map(move |chunk| {
            let at = chunk * CHUNK;
            let first = range.start.max(at) % CHUNK / PAGE;
            let last = (range.end.min(at + CHUNK) - 1) % CHUNK / PAGE;
            let mask = (u32::from(u16::MAX) << first) & ((2 << last) - 1);
            let of_region = chunk % (REGION / CHUNK);
            (&self.region(at).resident[of_region as usize], mask as u16)
        })
    }

    /// Whether all pages of a range are counted.
    #[inline]
    fn is_counted(&self, range: Range<u64>) -> bool {
        // ORDERING: Relaxed (here and below); counts.
        self.bits(range)
            .all(|(bits, mask)| bits.load(Ordering::Relaxed) & mask == mask)
    }

    /// Whether any of the pages of a range are counted.
    fn is_any_counted(&self, range: Range<u64>) -> bool {
        self.bits(range)
            .any(|(bits, mask)| bits.load(Ordering::Relaxed) & mask != 0)
    }

    /// Counts the pages of a range as resident.
    fn count(&self, range: Range<u64>) {
        for (bits, mask) in self.bits(range) {
            let before = bits.fetch_or(mask, Ordering::Relaxed);
            let more = (mask & !before).count_ones();
            self.resident.fetch_add(more.into(), Ordering::Relaxed);
        }
    }

    /// Counts the page at that offset as gone.
    fn discount(&self, offset: u64) {
        for (bits, mask) in self.bits(offset..offset + 1) {
            let before = bits.fetch_and(!mask, Ordering::Relaxed);
            let fewer = (mask & before).count_ones();
            self.resident.fetch_sub(fewer.into(), Ordering::Relaxed);
        }
    }

    /// Keeps parts from being dropped. The holder loads nothing.
    pub(super) fn hold(&self) -> impl Sized + '_ {
        lock(&self.hands)
    }

    /// Whether not much more may come to memory.
    fn is_nearly_full(&self) -> bool {
        // ORDERING: Relaxed (both); counts.
        let most = self.most.load(Ordering::Relaxed);
        most != u64::MAX && self.resident.load(Ordering::Relaxed) >= most / 8 * 5
    }

    /// By how many pages too many are resident.
    fn excess(&self) -> u64 {
        let resident = self.resident.load(Ordering::Relaxed);
        if resident <= self.in_vain.load(Ordering::Relaxed) {
            return 0;
        }
        resident.saturating_sub(self.most.load(Ordering::Relaxed))
    }
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

    /// Whether bytes of the pool are not in memory, as far as it is known.
    #[inline]
    pub(super) fn is_away(&self, bytes: Range<u64>) -> bool {
        let memory = self.memory.as_ref();
        memory.is_some_and(|memory| memory.is_limited() && !memory.is_any_counted(bytes))
    }

    /// Whether a value that is read should come to memory: while there is room, and now and then.
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
        let Some(memory) = self.memory.as_ref() else {
            return;
        };
        if self.pm().sections().is_some_and(Sections::is_inside) {
            self.touch_to_store(bytes);
        } else if memory.is_nearly_full() {
            if memory.excess() > 0 {
                self.give_back_first(memory);
            }
            let _storing = Section::enter(self.pm().sections());
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
        // The system maps the pages around one that is read, if it has them.
        memory.count(bytes.start / CHUNK * CHUNK..bytes.end.next_multiple_of(CHUNK));
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

    fn extent(heap: &Heap<M>, block: u64) -> Range<u64> {
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
            // Its seal is stored. What lies around it need not come to memory.
            self.touch_to_store(block..block + 1);
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
            memory.resident.load(Ordering::Relaxed) <= most / 4 * 3
        });
        let resident = memory.resident.load(Ordering::Relaxed);
        if resident > most {
            let more = resident + most / 64;
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
        // ORDERING: Relaxed; a count.
        memory.map_or(0, |memory| memory.resident.load(Ordering::Relaxed) * PAGE)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_loaded_while_any_block_in_it_is() {
        let memory = Memory::new(1 << 40);
        let at = 5 * REGION;
        memory.add(at..at + 512);
        memory.add(at + 512..at + 1024);
        memory.add(at + 3 * PAGE + 1024..at + 5 * PAGE + 64);
        let has = |page: u64| memory.has(at + page * PAGE);
        assert!(has(0) && !has(1) && !has(2) && has(3) && has(4) && has(5) && !has(6));
        memory.remove(at..at + 512);
        memory.remove(at + 3 * PAGE + 1024..at + 5 * PAGE + 64);
        assert!(has(0) && !has(3) && !has(4) && !has(5));
        memory.remove(at + 512..at + 1024);
        assert!(!has(0));
    }

    #[test]
    fn a_page_is_counted_once() {
        let memory = Memory::new(1 << 40);
        let resident = || memory.resident.load(Ordering::Relaxed);
        let at = REGION - 2 * PAGE;
        // Over the end of a region.
        memory.count(at + 1..at + 3 * PAGE + 1);
        assert_eq!(resident(), 4);
        memory.count(at..at + PAGE);
        assert_eq!(resident(), 4);
        assert!(memory.is_counted(at..at + 4 * PAGE));
        assert!(!memory.is_counted(at..at + 4 * PAGE + 1));
        memory.count(REGION..REGION + CHUNK);
        assert_eq!(resident(), 18);
        memory.discount(REGION + PAGE);
        memory.discount(REGION + PAGE);
        assert_eq!(resident(), 17);
        assert!(!memory.is_counted(REGION..REGION + CHUNK));
        assert_eq!(memory.excess(), 0);
        memory.most.store(10, Ordering::Relaxed);
        assert!(memory.is_limited() && memory.excess() == 7);
        memory.in_vain.store(17, Ordering::Relaxed);
        assert_eq!(memory.excess(), 0);
    }
}
