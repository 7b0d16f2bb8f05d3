//! Cost of a change in place and by copying, for the choice in Algorithm 1, line 7.
//!
//! Both costs are sums of line write-backs, fences, store fences and copied pairs, weighed with the
//! time that each takes on the medium. The process measures these times once for each kind of
//! medium. A simulated medium has no clock to measure by, so its weights are [`Costs::PAPER`].

use super::leaf::{capacity, line_of, lines};
use bristlecone_pmem::media::{LINE, MediumKind};
use bristlecone_pmem::sync::lock;
use bristlecone_pmem::{Heap, Media, PWord};
use crossbeam_epoch as epoch;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Time that the parts of a change take, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A line written back and fenced.
    pub flush_fence: u64,
    /// Another line of a batch that is fenced once.
    pub flush: u64,
    /// A store fence.
    pub store_fence: u64,
    /// A pair that is read, and stored by two stores.
    pub pair: u64,
    /// A pair that is read, and stored by one 16-byte store.
    pub wide_pair: u64,
    /// The rest of a copy: the leaf before, a block and its reclamation, the inner node.
    pub swap: u64,
}

impl Costs {
    /// The proportions of the paper's Figure 2 on an ARMv8 processor: a batched line takes 1 / 3.5
    /// of one that is fenced alone, and 126 store fences take about twice as long as 16 fenced
    /// lines.
    pub const PAPER: Self = Self {
        flush_fence: 100_000,
        flush: 28_000,
        store_fence: 25_000,
        pair: 1_000,
        wide_pair: 10_000,
        swap: 150_000,
    };

    /// Returns the costs on the medium under `heap`, which the process measures once for each kind
    /// of medium.
    pub(super) fn of<M: Media>(heap: &Heap<M>) -> Self {
        static KNOWN: Mutex<BTreeMap<&'static str, Costs>> = Mutex::new(BTreeMap::new());
        let pm = heap.pool().pm();
        if M::TRACED || pm.read_only() || pm.kind() == MediumKind::Sim {
            return Self::PAPER;
        }
        let name = pm.kind().name();
        if let Some(costs) = lock(&KNOWN).get(name) {
            return *costs;
        }
        let Some(costs) = Self::measure(heap) else {
            return Self::PAPER;
        };
        *lock(&KNOWN).entry(name).or_insert(costs)
    }

    /// Measures in a block of its own. Returns `None` if the pool has no room for one.
    fn measure<M: Media>(heap: &Heap<M>) -> Option<Self> {
        const BYTES: usize = 8192;
        const LINES: usize = BYTES / LINE;
        let pm = heap.pool().pm();
        let block = heap.alloc(BYTES as u64).ok()?;
        let at = pm.base().wrapping_add(block.get() as usize);
        // SAFETY: 1. the block was just allocated, so it is inside the pool, has 8 KiB and is
        // aligned; 2. words are atomic; 3. the pool outlives the borrow.
        let words = unsafe { std::slice::from_raw_parts(at.cast::<PWord>(), BYTES / 8) };
        let mut value = 1;
        // ORDERING: Relaxed; no one else has the block.
        let mut store = |word: &PWord| {
            value += 1;
            word.store(pm, value, Ordering::Relaxed);
        };
        let alone = least(LINES, || {
            for line in words.chunks_exact(LINE / 8) {
                store(&line[0]);
                // PERSIST: nothing; this flush is measured.
                pm.flush_of(&line[0]);
                pm.fence();
            }
        });
        let batched = least(1, || {
            for line in words.chunks_exact(LINE / 8) {
                store(&line[0]);
                // PERSIST: nothing; this flush is measured.
                pm.flush_of(&line[0]);
            }
            pm.fence();
        });
        let pair = least(words.len() / 2, || {
            for (i, pair) in words.chunks_exact(2).enumerate() {
                let from = words[i ^ 1].load(pm, Ordering::Relaxed);
                pair[1].store(pm, from, Ordering::Relaxed);
                store(&pair[0]);
            }
        });
        let fenced = least(words.len() / 2, || {
            for (i, pair) in words.chunks_exact(2).enumerate() {
                let from = words[i ^ 1].load(pm, Ordering::Relaxed);
                pair[1].store(pm, from, Ordering::Relaxed);
                pm.store_fence();
                store(&pair[0]);
                pm.store_fence();
            }
        });
        let wide_pair = {
            use bristlecone_pmem::cell::PWord16;
            // SAFETY: 1. to 3. as above; 4. the block is aligned to 16.
            let wide = unsafe { std::slice::from_raw_parts(at.cast::<PWord16>(), BYTES / 16) };
            let mut value = 1;
            least(wide.len(), || {
                for word in wide {
                    value += 1;
                    // A processor without the instruction never shifts in this way.
                    let _ = word.store(pm, value, Ordering::Relaxed);
                }
            })
        };
        let swap = least(16, || {
            for _ in 0..16 {
                let guard = epoch::pin();
                guard.defer(|| ());
                if let Ok(block) = heap.alloc(BYTES as u64) {
                    heap.free(block);
                }
            }
        });
        // PERSIST: nothing; a later fence must not pay for flushes of a block that is free by then.
        pm.fence();
        heap.free(block);
        let flush = batched.saturating_sub(alone) / (LINES as u64 - 1);
        Some(Self {
            flush_fence: alone,
            flush: flush.min(alone),
            store_fence: fenced.saturating_sub(pair) / 2,
            pair,
            wide_pair,
            // Two more searches of the inner nodes, and a lock.
            swap: 2 * swap,
        })
    }

    fn pairs(&self, n: usize, wide: bool) -> u64 {
        let each = if wide {
            self.wide_pair + self.store_fence
        } else {
            self.pair + 2 * self.store_fence
        };
        n as u64 * each
    }

    /// Returns the cost of inserting in place into slot `at` of a leaf of `n` pairs.
    pub(super) fn insert(&self, n: usize, at: usize, wide: bool) -> u64 {
        let fences = line_of(n) - line_of(at) + 1;
        let more = u64::from(line_of(at) > 0);
        fences as u64 * self.flush_fence + more * self.flush + self.pairs(n - at + 1, wide)
    }

    /// Returns the cost of removing in place from slot `at` of a leaf of `n` pairs.
    pub(super) fn remove(&self, n: usize, at: usize, wide: bool) -> u64 {
        let fences = line_of(n - 1) - line_of(at) + 1;
        let more = u64::from(line_of(n - 1) > 0);
        fences as u64 * self.flush_fence + more * self.flush + self.pairs(n - 1 - at, wide)
    }

    /// Returns the cost of writing a leaf of `bytes` bytes with `n` pairs, flushed and not fenced.
    pub(super) fn write(&self, n: usize, bytes: u64, self_managed: bool) -> u64 {
        let general = if self_managed {
            0
        } else {
            // The tags of two leaves, and the nulls of one. A line of nulls takes 10 to 23 ns on
            // the model of the paper's board, by how much of the leaf is in the caches: half a
            // flush.
            2 * self.flush_fence + bytes / LINE as u64 * self.flush / 2
        };
        lines(n, capacity(bytes)) as u64 * self.flush + n as u64 * self.pair + general
    }

    /// Returns the rest of a copy's cost: two fences, and the line that leads to the written
    /// leaves.
    pub(super) fn switch(&self) -> u64 {
        2 * self.flush_fence + self.swap
    }
}

/// Returns the shortest time that one of `parts` parts of `work` took, in picoseconds.
fn least(parts: usize, mut work: impl FnMut()) -> u64 {
    const TRIES: usize = 7;
    let mut least = u128::MAX;
    for _ in 0..TRIES {
        let begun = Instant::now();
        work();
        least = least.min(begun.elapsed().as_nanos());
    }
    u64::try_from(least * 1000 / parts as u128).unwrap_or(u64::MAX >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bristlecone_pmem::media::Dram;
    use bristlecone_pmem::{Pool, PoolOptions};
    use std::path::Path;

    #[test]
    fn shifts_of_few_pairs_are_made_in_place_and_of_many_by_copying() {
        let costs = Costs::PAPER;
        for bytes in [512, 1024, 2048, 4096, 8192] {
            let n = capacity(bytes) * 2 / 3;
            let copy = costs.write(n + 1, bytes, false) + costs.switch();
            assert!(costs.insert(n, 0, false) > copy, "{bytes}");
            assert!(costs.insert(n, n, false) < copy, "{bytes}");
            let copy = costs.write(n - 1, bytes, true) + costs.switch();
            assert!(costs.remove(n, 0, false) > copy, "{bytes}");
            assert!(costs.remove(n, n - 1, false) < copy, "{bytes}");
        }
        // In the header line one line and one fence, elsewhere another line.
        assert_eq!(costs.insert(2, 2, true), 100_000 + 35_000);
        assert_eq!(costs.remove(3, 2, true), 100_000);
        assert_eq!(costs.remove(4, 3, true), 128_000);
    }

    #[test]
    fn a_medium_is_measured_once() {
        let pool = Pool::<Dram>::create(Path::new("dram"), &PoolOptions::default()).unwrap();
        let root = pool
            .create_root(
                "r",
                &bristlecone_pmem::pool::RootKind {
                    design: "crabtree".into(),
                    keys: bristlecone_pmem::pool::DataKind::U64,
                    values: bristlecone_pmem::pool::DataKind::U64,
                    node_bytes: 256,
                },
            )
            .unwrap();
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let costs = Costs::of(&heap);
        assert!(
            costs.pair < 1_000_000 && costs.flush <= costs.flush_fence,
            "{costs:?}"
        );
        assert_eq!(costs, Costs::of(&heap));
        assert_eq!(heap.live_blocks(), 0);
    }
}
