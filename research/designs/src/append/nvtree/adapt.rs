//! Workload adaptivity (section 5): the counts, the best size of a leaf, and when a change of size
//! pays.
//!
//! # Points that the paper leaves open
//! 1. *Cold-read* (conservative strategy) means "not hot-read" here. Without any reads
//!    `nReads_LN < nReads / N_LN` would never hold, and the strategy would never act.
//! 2. The model knows only searches, so it gives no upper limit for a leaf that is never read. But
//!    every append searches the leaf first. Therefore a leaf grows only if, besides the equations,
//!    [`Costs::appending`] falls: the average cost of an appended element, which is its own search
//!    and its share of the next reshaping.
//! 3. *Hot-write* alone (more than the average) holds for half the leaves under a uniform load,
//!    where growing gains nothing and makes every search longer. Leaves that grow take
//!    [`Limits::hot`] times the average.
//! 4. A leaf whose elements are mostly superseded is *replaced* rather than split (section 4.4).
//!    Under updates alone, no leaf is ever split. Therefore a replaced leaf is resized too. It
//!    grows only while its keys would still fill [`SPARSE`] of it.
//! 5. Larger leaves save reshaping; they do not hold more keys. The fill factor, which decides
//!    between split, replace and merge, is that of the default leaf. A large leaf with few keys
//!    keeps them, and its searches, which begin with the newest element, stay short.

use super::info::Traffic;
use super::leaf::{ELEMENT, MAX_BYTES, MIN_BYTES};
use bristlecone_pmem::media::{LINE, MediumKind};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Heap, Media};
use crossbeam_utils::CachePadded;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

/// Strategy of resizing leaves (section 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Adaptivity {
    /// No resizing: NV-Tree' in the paper's figures.
    Off,
    /// By one line: write-intensive, hot-write, cold-read leaves grow; read-intensive, cold-write,
    /// hot-read leaves shrink.
    Conservative,
    /// Write-intensive leaves are doubled.
    Aggressive,
    /// Write-intensive leaves double if they are hot-write, else grow by one line; read-intensive,
    /// hot-read leaves shrink by one line.
    #[default]
    Balanced,
}

impl Adaptivity {
    /// Returns the name in the paper's figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Conservative => "conservative",
            Self::Aggressive => "aggressive",
            Self::Balanced => "balanced",
        }
    }
}

/// A replaced leaf grows only while its keys would fill at least one part in this many of it.
pub(super) const SPARSE: u64 = 32;

/// Input of Algorithm 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Profile {
    /// `Size_LN`
    pub size: u64,
    /// `nWrites_LN`, `nReads_LN`
    pub leaf: Traffic,
    /// `nWrites`, `nReads`
    pub all: Traffic,
    /// `N_LN`
    pub leaves: u64,
    /// Elements of the leaf, and its live keys.
    pub elements: u32,
    pub live: u32,
    /// Number of keys that each successor begins with.
    pub left: u32,
}

impl Profile {
    fn write_intensive(&self) -> bool {
        self.leaf.reads < self.leaf.writes
    }

    fn hot_write(&self) -> bool {
        above_average(self.leaf.writes, self.all.writes, self.leaves)
    }

    /// Returns true if the leaf takes `hot` times the average of writes.
    fn may_grow(&self, hot: u64) -> bool {
        above_average(
            self.leaf.writes,
            self.all.writes.saturating_mul(hot),
            self.leaves,
        )
    }

    fn hot_read(&self) -> bool {
        above_average(self.leaf.reads, self.all.reads, self.leaves)
    }

    /// nReads_LN / nWrites_LN
    fn ratio(&self) -> f64 {
        self.leaf.reads as f64 / self.leaf.writes.max(1) as f64
    }
}

/// `mine > all / count`
pub(super) fn above_average(mine: u64, all: u64, count: u64) -> bool {
    u128::from(mine) * u128::from(count) > u128::from(all)
}

/// Algorithm 3: returns the size that the strategy asks for.
pub(super) fn get_new_size(profile: &Profile, strategy: Adaptivity) -> u64 {
    use Adaptivity::{Aggressive, Balanced, Conservative, Off};
    let size = profile.size;
    let line = LINE as u64;
    if profile.write_intensive() {
        match strategy {
            Off => size,
            Conservative if profile.hot_write() && !profile.hot_read() => size + line,
            Conservative => size,
            Aggressive => 2 * size,
            Balanced if profile.hot_write() => 2 * size,
            Balanced => size + line,
        }
    } else {
        match strategy {
            Conservative if !profile.hot_write() && profile.hot_read() => size - line,
            Balanced if profile.hot_read() => size - line,
            Off | Conservative | Aggressive | Balanced => size,
        }
    }
}

/// Number of sizes whose costs are known: a line, and its doublings.
const STEPS: usize = 10;

/// `T_r` and `T_w` of a medium in nanoseconds: of a line, 2 lines, 4 lines ...
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Costs {
    read: [f64; STEPS],
    write: [f64; STEPS],
    /// Cost of sorting one element when its leaf is reshaped.
    sort: f64,
}

impl Costs {
    /// Costs in proportion to lines, each with a fixed part, for media that are not measured.
    pub(super) const ASSUMED: Self = {
        let mut costs = Self {
            read: [0.0; STEPS],
            write: [0.0; STEPS],
            sort: 10.0,
        };
        let mut i = 0;
        while i < STEPS {
            costs.read[i] = 20.0 + 5.0 * (1 << i) as f64;
            costs.write[i] = 100.0 + 30.0 * (1 << i) as f64;
            i += 1;
        }
        costs
    };

    fn at(table: &[f64; STEPS], bytes: f64) -> f64 {
        let place = (bytes / LINE as f64).max(1.0).log2();
        let i = (place as usize).min(STEPS - 2);
        let (low, high) = ((LINE << i) as f64, (LINE << (i + 1)) as f64);
        table[i] + (table[i + 1] - table[i]) * (bytes - low) / (high - low)
    }

    /// `T_r(size)`
    fn read(&self, bytes: f64) -> f64 {
        Self::at(&self.read, bytes)
    }

    /// `T_w(size)`
    fn write(&self, bytes: f64) -> f64 {
        Self::at(&self.write, bytes)
    }

    /// Equations 1 and 2: returns what growing from `profile.size` to `new` saves and costs.
    fn growing(&self, profile: &Profile, new: u64) -> (f64, f64) {
        let (old, new) = (profile.size as f64, new as f64);
        let positive = self.read(old) + 2.0 * self.write(old / 2.0);
        let elements = (new - old) / ELEMENT as f64;
        let negative = elements * profile.ratio() * self.read(old) * 2.0;
        (positive, negative)
    }

    /// Equations 3 and 4: returns what shrinking from `profile.size` to `new` saves and costs.
    fn shrinking(&self, profile: &Profile, new: u64) -> (f64, f64) {
        let (old, new) = (profile.size as f64, new as f64);
        let elements = (old - new) / ELEMENT as f64;
        let positive = elements * profile.ratio() * self.read(new) * 2.0;
        let negative = self.read(new) + 2.0 * self.write(new / 2.0);
        (positive, negative)
    }

    /// Returns the average cost of appending an element to a leaf of `size` bytes that begins with
    /// `profile.left` keys: its own search, and its share of the reshaping that ends the leaf.
    fn appending(&self, profile: &Profile, size: u64) -> f64 {
        let capacity = size as f64 / ELEMENT as f64;
        let left = f64::from(profile.left).min(capacity - 1.0);
        let room = capacity - left;
        let bytes = |elements: f64| elements * ELEMENT as f64;
        let reshaping =
            self.read(size as f64) + self.sort * capacity + 2.0 * self.write(bytes(left));
        // On average the leaf is half filled. The newest elements of frequently written keys are
        // near its end.
        let all = left + room / 2.0;
        let (searched, per_search) = if profile.live * 2 > profile.elements {
            (all, 1.0)
        } else {
            (all.min(2.0 * left), 2.0)
        };
        reshaping / room + self.read(bytes(searched)) / per_search
    }

    /// Returns the costs on the medium under `heap`, which the process measures once for each kind
    /// of medium.
    pub(super) fn of<M: Media>(heap: &Heap<M>) -> Self {
        static KNOWN: Mutex<BTreeMap<&'static str, Costs>> = Mutex::new(BTreeMap::new());
        let pm = heap.pool().pm();
        if M::TRACED || pm.read_only() || pm.kind() == MediumKind::Sim {
            // A simulation is not measured, because its clock is not the machine's.
            return Self::ASSUMED;
        }
        let name = pm.kind().name();
        if let Some(costs) = lock(&KNOWN).get(name) {
            return *costs;
        }
        let Some(costs) = Self::measure(heap) else {
            return Self::ASSUMED;
        };
        *lock(&KNOWN).entry(name).or_insert(costs)
    }

    /// Reads and flushes a block of every size. Returns `None` if the pool has no room for one.
    fn measure<M: Media>(heap: &Heap<M>) -> Option<Self> {
        /// Number of tries, of which the shortest counts.
        const TRIES: usize = 9;
        /// Number of elements that are sorted.
        const SORTED: u32 = 128;
        let pm = heap.pool().pm();
        let bytes = LINE << (STEPS - 1);
        let block = heap.alloc(bytes as u64).ok()?;
        let at = pm.base().wrapping_add(block.get() as usize);
        let mut costs = Self {
            read: [f64::MAX; STEPS],
            write: [f64::MAX; STEPS],
            sort: f64::MAX,
        };
        let word = |i: usize| {
            // SAFETY: 1. the block was just allocated and has `bytes` bytes; 2. `i` is below that
            // many words; 3. all access to a pool is by atomic words.
            unsafe { AtomicU64::from_ptr(at.cast::<u64>().wrapping_add(i)) }
        };
        for attempt in 0..TRIES {
            for step in 0..STEPS {
                let words = (LINE << step) / 8;
                let started = Instant::now();
                for i in 0..words {
                    // ORDERING (both): Relaxed; no one else has the block.
                    word(i).store((attempt + i) as u64, Ordering::Relaxed);
                }
                // PERSIST: nothing; this flush is measured.
                pm.flush(at, words * 8);
                pm.fence();
                let took = started.elapsed().as_nanos() as f64;
                costs.write[step] = costs.write[step].min(took);
                let started = Instant::now();
                let sum = (0..words).fold(0u64, |sum, i| {
                    sum.wrapping_add(word(i).load(Ordering::Relaxed))
                });
                std::hint::black_box(sum);
                let took = started.elapsed().as_nanos() as f64;
                costs.read[step] = costs.read[step].min(took);
            }
            let started = Instant::now();
            let mut pairs: Vec<(u64, u32)> = (0..SORTED)
                .map(|i| (u64::from(i).wrapping_mul(0x9E37_79B9_7F4A_7C15), i))
                .collect();
            pairs.sort_unstable();
            std::hint::black_box(&pairs);
            let took = started.elapsed().as_nanos() as f64 / f64::from(SORTED);
            costs.sort = costs.sort.min(took);
        }
        heap.free(block);
        heap.trim();
        Some(costs)
    }
}

/// Bounds of a leaf's size. The upper one is four times the default: beyond it there is hardly any
/// reshaping left to save, and appends go to lines that have long left the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub least: u64,
    pub most: u64,
    /// A leaf grows if it takes this many times the average of all leaves' writes.
    pub hot: u64,
}

impl Limits {
    /// Returns the limits for a tree of leaves of `bytes` bytes. `tiny` is for simulated media,
    /// whose trees are small.
    pub(super) fn around(bytes: u64, tiny: bool) -> Self {
        let (times, hot) = if tiny { (2, 1) } else { (4, 4) };
        Self {
            least: (bytes / 2).max(MIN_BYTES),
            most: (bytes * times).min(MAX_BYTES).max(bytes),
            hot,
        }
    }
}

/// Decides sizes: strategy, model, limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizing {
    pub strategy: Adaptivity,
    pub costs: Costs,
    pub limits: Limits,
}

impl Sizing {
    /// Returns the size of a leaf's successors: Algorithm 3's, if the model and the limits allow
    /// it.
    pub(super) fn resized(&self, profile: &Profile) -> u64 {
        let old = profile.size;
        let asked = get_new_size(profile, self.strategy);
        let new = asked.clamp(self.limits.least.min(old), self.limits.most.max(old));
        if new > old {
            if !profile.may_grow(self.limits.hot) {
                return old;
            }
            let costs = &self.costs;
            let pays = |new: u64| {
                let (positive, negative) = costs.growing(profile, new);
                positive > negative && costs.appending(profile, new) < costs.appending(profile, old)
            };
            let line = LINE as u64;
            if pays(new) {
                new
            } else if self.strategy == Adaptivity::Balanced && new > old + line && pays(old + line)
            {
                // Section 6.4.2: where doubling is too much, the balanced strategy grows the leaf
                // by a line.
                old + line
            } else {
                old
            }
        } else if new < old {
            let (positive, negative) = self.costs.shrinking(profile, new);
            if positive > negative { new } else { old }
        } else {
            old
        }
    }
}

const SHARDS: usize = 16;
/// A thread counts one search in this many, and then counts it for all of them.
const SAMPLE: u32 = 8;

/// `nWrites` and `nReads`, each thread on a line of its own.
#[derive(Debug, Default)]
pub(super) struct Totals {
    writes: [CachePadded<AtomicU64>; SHARDS],
    reads: [CachePadded<AtomicU64>; SHARDS],
}

thread_local! {
    static SEARCHES: Cell<u32> = const { Cell::new(0) };
}

/// Returns this thread's index into the counters.
fn shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // ORDERING: Relaxed; any distribution of numbers will do.
        static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    MINE.with(|mine| *mine)
}

/// Adds to this thread's counter. A single atomic addition would wait for the flushes of the
/// operation before the next one may begin. Of two threads that share a counter, one may not be
/// counted.
#[inline(always)]
fn count(of: &[CachePadded<AtomicU64>; SHARDS], n: u64) {
    let mine = &of[shard()];
    // ORDERING (both): Relaxed; a statistic.
    mine.store(mine.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl Totals {
    /// Counts appended elements.
    #[inline(always)]
    pub(super) fn wrote(&self, elements: u64) {
        count(&self.writes, elements);
    }

    /// Returns how many searches to count for this one: now and then several, else none. With
    /// `each`, every search counts as one, so that equal runs have equal counts.
    #[inline(always)]
    pub(super) fn searched(&self, each: bool) -> u64 {
        let sample = if each { 1 } else { SAMPLE };
        let n = SEARCHES.get().wrapping_add(1);
        SEARCHES.set(n);
        if !n.is_multiple_of(sample) {
            return 0;
        }
        count(&self.reads, sample.into());
        sample.into()
    }

    pub(super) fn sum(&self) -> Traffic {
        let sum = |of: &[CachePadded<AtomicU64>; SHARDS]| {
            // ORDERING: Relaxed; a statistic.
            of.iter().map(|n| n.load(Ordering::Relaxed)).sum()
        };
        Traffic {
            writes: sum(&self.writes),
            reads: sum(&self.reads),
        }
    }

    /// Begins with the counts that a clean close saved.
    pub(super) fn start_at(&self, traffic: Traffic) {
        // ORDERING (both): Relaxed; a statistic.
        self.writes[0].store(traffic.writes, Ordering::Relaxed);
        self.reads[0].store(traffic.reads, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Adaptivity::{Aggressive, Balanced, Conservative, Off};

    /// Returns the profile of a leaf of 1 KB among ten, which took 1,000 writes and 1,000 reads
    /// together.
    fn profile(writes: u64, reads: u64) -> Profile {
        Profile {
            size: 1024,
            leaf: Traffic { writes, reads },
            all: Traffic {
                writes: 1000,
                reads: 1000,
            },
            leaves: 10,
            elements: 60,
            live: 30,
            left: 15,
        }
    }

    #[test]
    fn algorithm_3() {
        let all = |p: Profile| {
            [Off, Conservative, Aggressive, Balanced].map(|strategy| get_new_size(&p, strategy))
        };
        // Write-intensive: hot-write and cold-read, hot-write and hot-read, cold-write.
        assert_eq!(all(profile(200, 50)), [1024, 1088, 2048, 2048]);
        assert_eq!(all(profile(200, 150)), [1024, 1024, 2048, 2048]);
        assert_eq!(all(profile(90, 50)), [1024, 1024, 2048, 1088]);
        // Read-intensive: hot-read and cold-write, hot-read and hot-write, cold-read.
        assert_eq!(all(profile(90, 150)), [1024, 960, 1024, 960]);
        assert_eq!(all(profile(120, 150)), [1024, 1024, 1024, 960]);
        assert_eq!(all(profile(50, 90)), [1024, 1024, 1024, 1024]);
        // A leaf with as many reads as writes is not write-intensive; one that was never touched is
        // neither.
        assert_eq!(all(profile(100, 100)), [1024; 4]);
        assert_eq!(all(profile(0, 0)), [1024; 4]);
        // Without any reads, every strategy except `Off` grows a hot-write leaf.
        let mut silent = profile(200, 0);
        silent.all.reads = 0;
        assert_eq!(all(silent), [1024, 1088, 2048, 2048]);
    }

    /// `T_r` = 1 ns and `T_w` = 10 ns a line.
    fn linear() -> Costs {
        let lines: [f64; STEPS] = std::array::from_fn(|i| (1 << i) as f64);
        Costs {
            read: lines,
            write: lines.map(|n| 10.0 * n),
            sort: 10.0,
        }
    }

    #[test]
    fn costs_between_measured_sizes() {
        let costs = linear();
        assert_eq!(costs.read(64.0), 1.0);
        assert_eq!(costs.read(1024.0), 16.0);
        assert_eq!(costs.read(1088.0), 17.0);
        assert_eq!(costs.write(480.0), 75.0);
        assert_eq!(costs.write(65_536.0), 10_240.0, "the last slope goes on");
    }

    #[test]
    fn equations_1_to_4() {
        let costs = linear();
        let p = profile(200, 50);
        // T_r(1024) + 2 T_w(512) = 16 + 160; 64 elements x 1/4 x 16 x 2.
        assert_eq!(costs.growing(&p, 2048), (176.0, 512.0));
        assert_eq!(costs.growing(&p, 1088), (176.0, 32.0));
        let p = profile(50, 200);
        // 4 elements x 4 x T_r(960) x 2; T_r(960) + 2 T_w(480).
        assert_eq!(costs.shrinking(&p, 960), (480.0, 165.0));
    }

    #[test]
    fn the_model_limits_what_strategies_ask_for() {
        let sizing = |strategy| Sizing {
            strategy,
            costs: linear(),
            limits: Limits::around(1024, false),
        };
        // Doubling costs more than it saves; one line does not.
        let p = profile(500, 50);
        assert_eq!(sizing(Aggressive).resized(&p), 1024);
        assert_eq!(sizing(Balanced).resized(&p), 1088);
        assert_eq!(sizing(Conservative).resized(&p), 1088);
        // Not hot enough.
        for strategy in [Conservative, Balanced, Aggressive] {
            assert_eq!(sizing(strategy).resized(&profile(390, 0)), 1024);
        }
        // Without reads a leaf grows up to the limit, since searches lose nothing.
        let mut p = profile(500, 0);
        let mut sizes = vec![p.size];
        loop {
            let new = sizing(Aggressive).resized(&p);
            if new == p.size {
                break;
            }
            p.size = new;
            sizes.push(new);
        }
        assert_eq!(sizes, [1024, 2048, 4096]);
        // If keys are written once, every append makes later searches longer. Where reshaping costs
        // little, that costs more than growing saves.
        let mut p = profile(500, 0);
        (p.elements, p.live, p.left) = (60, 60, 30);
        assert_eq!(sizing(Aggressive).resized(&p), 2048);
        let mut cheap = sizing(Aggressive);
        (cheap.costs.sort, cheap.costs.write) = (0.1, cheap.costs.read);
        assert_eq!(cheap.resized(&p), 1024);
        // Shrinking pays until the leaf has half its intended size.
        let mut p = profile(50, 200);
        while sizing(Balanced).resized(&p) != p.size {
            p.size = sizing(Balanced).resized(&p);
        }
        assert_eq!(p.size, 512);
        assert_eq!(sizing(Off).resized(&p), 512);
    }

    #[test]
    fn a_thread_counts_one_search_for_several() {
        let totals = Totals::default();
        let counted: u64 = (0..80).map(|_| totals.searched(false)).sum();
        assert_eq!(counted, 80);
        assert_eq!(totals.searched(true), 1);
        assert_eq!(
            totals.sum(),
            Traffic {
                writes: 0,
                reads: 81
            }
        );
        totals.wrote(3);
        assert_eq!(totals.sum().writes, 3);
    }

    #[test]
    fn averages_do_not_overflow() {
        assert!(above_average(11, 100, 10));
        assert!(!above_average(10, 100, 10));
        assert!(above_average(u64::MAX, u64::MAX, 2));
        assert!(!above_average(0, 0, 0));
    }
}
