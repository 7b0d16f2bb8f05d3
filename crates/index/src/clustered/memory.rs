//! Which pages of the pool are in memory, as far as the tree has counted them.

use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::sync::lock;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// Bytes of the system's pages.
pub(super) const PAGE: u64 = 4096;
/// Bytes of the pool that have one array of counts.
const REGION: u64 = 64 << 20;

/// The pages of the pool that are in memory, as far as the tree has counted them.
#[derive(Debug)]
pub(super) struct Memory {
    regions: Box<[OnceLock<Region>]>,
    /// Pages of the system's that were touched, or lie beside one that was, and were not dropped
    /// since. The kernel may have mapped others, or not all of these.
    pub(super) resident: AtomicU64,
    /// Reads of values and pages while memory was nearly full.
    pub(super) reads: AtomicU64,
    /// How many may be; `u64::MAX` if that does not matter, and nothing is counted.
    pub(super) most: AtomicU64,
    /// Until more than so many are, it would be in vain to give memory back.
    pub(super) in_vain: AtomicU64,
    pub(super) hands: Mutex<Hands>,
}

/// Of a part of the pool.
#[derive(Debug)]
struct Region {
    /// How many loaded pages of the tree are in each of the system's pages, wholly or in part.
    loaded: Box<[AtomicU8]>,
    /// For each chunk a bit for each page: it is counted as resident.
    resident: Box<[AtomicU16]>,
    /// Likewise: it has left memory, and was not counted since. The pool file has it as it was.
    gone: Box<[AtomicU16]>,
}

/// Where giving memory back goes on.
#[derive(Debug, Default)]
pub(super) struct Hands {
    /// The part that was looked at last.
    pub(super) part: u32,
    /// Where memory of the pool has been looked at.
    pub(super) offset: u64,
    /// The parts of the pool that the tree owned when this round began.
    pub(super) extents: Vec<Range<u64>>,
}

impl Region {
    fn new() -> Self {
        Self {
            loaded: (0..REGION / PAGE).map(|_| AtomicU8::new(0)).collect(),
            resident: (0..REGION / CHUNK).map(|_| AtomicU16::new(0)).collect(),
            gone: (0..REGION / CHUNK).map(|_| AtomicU16::new(0)).collect(),
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

    pub(super) fn add(&self, block: Range<u64>) {
        for count in self.loaded(block) {
            // ORDERING: Relaxed; read only while nobody is in a section, and sections order them.
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn remove(&self, block: Range<u64>) {
        for count in self.loaded(block) {
            // ORDERING: Relaxed; as in `add`.
            let before = count.fetch_sub(1, Ordering::Relaxed);
            debug_assert!(before > 0, "a page was loaded before it went");
        }
    }

    /// Whether a loaded page has bytes of the system's page at that offset.
    pub(super) fn has(&self, offset: u64) -> bool {
        let mut counts = self.loaded(offset..offset + 1);
        // ORDERING: Relaxed; as in `add`.
        counts.any(|count| count.load(Ordering::Relaxed) > 0)
    }

    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        // ORDERING: Relaxed; a bound.
        self.most.load(Ordering::Relaxed) != u64::MAX
    }

    /// Where the bits of a range are: for each chunk its region, its number there, and a mask of
    /// the pages that the range touches.
    #[inline]
    fn bits(&self, range: Range<u64>) -> impl Iterator<Item = (&Region, usize, u16)> {
        let chunks = range.start / CHUNK..range.end.div_ceil(CHUNK);
        chunks.map(move |chunk| {
            let at = chunk * CHUNK;
            let first = range.start.max(at) % CHUNK / PAGE;
            let last = (range.end.min(at + CHUNK) - 1) % CHUNK / PAGE;
            let mask = (u32::from(u16::MAX) << first) & ((2 << last) - 1);
            let of_region = chunk % (REGION / CHUNK);
            (self.region(at), of_region as usize, mask as u16)
        })
    }

    /// Whether all pages of a range are counted.
    #[inline]
    pub(super) fn is_counted(&self, range: Range<u64>) -> bool {
        // ORDERING: Relaxed (here and below); counts.
        self.bits(range)
            .all(|(of, i, mask)| of.resident[i].load(Ordering::Relaxed) & mask == mask)
    }

    /// Whether any of the pages of a range are counted.
    pub(super) fn is_any_counted(&self, range: Range<u64>) -> bool {
        self.bits(range)
            .any(|(of, i, mask)| of.resident[i].load(Ordering::Relaxed) & mask != 0)
    }

    /// Whether all pages of a range have left memory, and none was counted since.
    pub(super) fn is_gone(&self, range: Range<u64>) -> bool {
        // ORDERING: Acquire; pairs with the Release in `discount`: the file had the page by then.
        self.bits(range)
            .all(|(of, i, mask)| of.gone[i].load(Ordering::Acquire) & mask == mask)
    }

    /// Counts the pages of a range as resident.
    pub(super) fn count(&self, range: Range<u64>) {
        for (of, i, mask) in self.bits(range) {
            let before = of.resident[i].fetch_or(mask, Ordering::Relaxed);
            // ORDERING: Relaxed; whoever finds a page that was dropped again has taken the version
            // of its inner node, which is released after this.
            of.gone[i].fetch_and(!mask, Ordering::Relaxed);
            let more = (mask & !before).count_ones();
            self.resident.fetch_add(more.into(), Ordering::Relaxed);
        }
    }

    /// Counts the page at that offset as gone.
    pub(super) fn discount(&self, offset: u64) {
        for (of, i, mask) in self.bits(offset..offset + 1) {
            let before = of.resident[i].fetch_and(!mask, Ordering::Relaxed);
            // ORDERING: Release; pairs with the Acquire in `is_gone`.
            of.gone[i].fetch_or(mask, Ordering::Release);
            let fewer = (mask & before).count_ones();
            self.resident.fetch_sub(fewer.into(), Ordering::Relaxed);
        }
    }

    /// Pages that are resident, as far as they have been counted.
    pub(super) fn resident(&self) -> u64 {
        // ORDERING: Relaxed; a count. Below zero where `discount` has taken pages that `count` is
        // about to add.
        let counted = self.resident.load(Ordering::Relaxed).cast_signed();
        counted.max(0).cast_unsigned()
    }

    /// Keeps parts from being dropped. The holder loads nothing.
    pub(super) fn hold(&self) -> impl Sized + '_ {
        lock(&self.hands)
    }

    /// Whether not much more may come to memory.
    pub(super) fn is_nearly_full(&self) -> bool {
        // ORDERING: Relaxed (both); counts.
        let most = self.most.load(Ordering::Relaxed);
        most != u64::MAX && self.resident() >= most / 8 * 5
    }

    /// By how many pages too many are resident.
    pub(super) fn excess(&self) -> u64 {
        let resident = self.resident();
        if resident <= self.in_vain.load(Ordering::Relaxed) {
            return 0;
        }
        resident.saturating_sub(self.most.load(Ordering::Relaxed))
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
