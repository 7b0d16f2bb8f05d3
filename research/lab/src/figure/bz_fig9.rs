//! The time of a BzTree by part: search in nodes, multi-word swaps, and the rest (BzTree, figure
//! 9).
//!
//! The figure uses no profiler. The search is the time of the same operations with all writes
//! turned into lookups of their keys. The swaps are the time of as many swaps alone as were
//! counted.

use super::bz::{Act, BALANCED, Load, Mix, READ_MOSTLY, Reads, Source, Spread, TURNS};
use super::bz_stats::{self, Tree};
use super::tree::sorted_keys;
use super::trial::SEED;
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::LabError;
use crate::limits::median;
use crate::micro::designs::Forgetting;
use bristlecone_designs::OrderedIndex;
use bristlecone_pmem::media::{Access, Media, MediaOptions};
use bristlecone_pmem::pmwcas::{DescriptorPool, MAX_WORDS, NoBlocks, WordError};
use bristlecone_pmem::pool::{DataKind, Root, RootKind};
use bristlecone_pmem::{MediumKind, PWord, Pool, PoolOptions};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub(super) const ENTRY: Entry = Entry {
    name: "bz-fig9",
    title: "time by component",
    paper: papers::BZ,
    place: "section 7.9, figure 9",
    on: &[On::Host],
    run,
};

/// Blocks of a node's size for the swaps alone: few enough to be cached, as after a search.
const BLOCKS: u64 = 64;
const BLOCK_BYTES: u64 = 1024;
/// Bytes between two words of a swap, which are in different lines as in a leaf.
const APART: u64 = BLOCK_BYTES / MAX_WORDS as u64;
/// Number of descriptors, as in a tree.
const DESCRIPTORS: (usize, usize, usize) = (32, 32, 5);

/// Words and descriptors for swaps without a tree.
struct Alone {
    swaps: DescriptorPool<Forgetting>,
    /// Offsets of the blocks.
    blocks: Vec<u64>,
    /// The current value of every block's words.
    value: u64,
    _root: Root<Forgetting>,
    pool: Arc<Pool<Forgetting>>,
}

impl Alone {
    fn new() -> Result<Self, FigureError> {
        let media = MediaOptions {
            access: Access::Create,
            medium: Some(MediumKind::Dram),
            ..MediaOptions::default()
        };
        let pool = Pool::create(Path::new("dram"), &PoolOptions { media })?;
        let kind = RootKind {
            design: "pmwcas".to_owned(),
            keys: DataKind::U64,
            values: DataKind::U64,
            node_bytes: BLOCK_BYTES as u32,
        };
        let made = |e| LabError::index("making a pool of descriptors", e);
        let root = pool
            .create_root("swaps", &kind)
            .map_err(|e| LabError::index("making a pool of descriptors", e))?;
        let heap = root.heap();
        heap.begin_recovery();
        heap.finish_recovery();
        let (threads, each, words) = DESCRIPTORS;
        let swaps = DescriptorPool::create(&heap, threads, each, words, Box::new(NoBlocks))
            .map_err(made)?;
        let blocks = (0..BLOCKS).map(|_| heap.alloc(BLOCK_BYTES).map(|block| block.get()));
        let alone = Self {
            swaps,
            blocks: blocks.collect::<Result<_, _>>().map_err(made)?,
            value: 0,
            _root: root,
            pool,
        };
        for block in &alone.blocks {
            for word in 0..MAX_WORDS as u64 {
                // ORDERING: Relaxed; only one thread accesses the words.
                let at = alone.word(block + word * APART);
                at.store(alone.pool.pm(), 0, Ordering::Relaxed);
            }
        }
        Ok(alone)
    }

    fn word(&self, at: u64) -> &PWord {
        // SAFETY: 1. `at` is a multiple of eight inside a block that the allocator handed out; 2.
        // any bits are a valid PWord; 3. the mapping lives as long as the pool, which `self` holds.
        unsafe {
            &*self
                .pool
                .pm()
                .base()
                .wrapping_add(at as usize)
                .cast_const()
                .cast()
        }
    }

    /// Returns the time of a number of swaps of a number of words.
    fn execute(&mut self, count: u64, words: u64) -> Result<Duration, FigureError> {
        let failed = |e: WordError| LabError::index("adding a word", e);
        let started = Instant::now();
        let mut left = count;
        while left > 0 {
            // Every block is swapped once, so that all have the same value again.
            for block in &self.blocks {
                let mut swap = self
                    .swaps
                    .allocate_descriptor()
                    .map_err(|e| LabError::index("taking a descriptor", e))?;
                for word in 0..words {
                    let at = self.word(block + word * APART);
                    swap.add_word(at, self.value, self.value + 1)
                        .map_err(failed)?;
                }
                let done = swap.execute().map_err(|e| LabError::index("swapping", e))?;
                if !done {
                    return Err(LabError::WrongAnswer {
                        contender: "PMwCAS".to_owned(),
                        phase: "swapping alone",
                        right: 0,
                        of: 1,
                    }
                    .into());
                }
            }
            self.value += 1;
            left = left.saturating_sub(BLOCKS);
        }
        let executed = count.next_multiple_of(BLOCKS).max(1);
        Ok(started.elapsed().mul_f64(count as f64 / executed as f64))
    }
}

/// The parts of the time of some operations, in percent.
#[derive(Default)]
struct Shares {
    search: Vec<f64>,
    swaps: Vec<f64>,
    /// Words of a swap.
    words: Vec<f64>,
}

impl Shares {
    /// Returns search, swaps and the rest, which is at least 0.
    fn bars(&self) -> [f64; 3] {
        let (search, swaps) = (median(self.search.clone()), median(self.swaps.clone()));
        [search, swaps, (100.0 - search - swaps).max(0.0)]
    }
}

fn get(tree: &Tree, act: Act) -> u64 {
    let (Act::Get(key) | Act::Scan(key) | Act::Upsert(key, _)) = act;
    tree.get(&key).unwrap_or_default()
}

fn measure(
    setting: &mut Setting<'_>,
    mix: Mix,
    keys: &[u64],
    ops: u64,
    before: u64,
) -> Result<Shares, FigureError> {
    let tree = bz_stats::tree(keys)?;
    let mut alone = Alone::new()?;
    let mut source = Source::new(keys);
    let load = Load {
        mix,
        spread: Spread::Uniform,
        reads: Reads::Lookups,
        threads: 1,
    };
    let mut shares = Shares::default();
    for turn in 0..TURNS {
        let acts = source.acts(&load, ops as usize);
        let search = || acts.run(|act| Ok(get(&tree, act)));
        // The second run finds more in the caches, so the two take turns.
        let first = if turn % 2 == 0 { Some(search()?) } else { None };
        let counts = tree.swap_counts();
        let whole = acts.run(|act| match act {
            Act::Upsert(key, value) => (tree.upsert(&key, &value))
                .map(u64::from)
                .map_err(|e| LabError::index("upserting", e)),
            act => Ok(get(&tree, act)),
        })?;
        let after = tree.swap_counts();
        let search = match first {
            Some(search) => search,
            None => search()?,
        };
        let count = after.attempts - counts.attempts;
        let words = (after.words - counts.words) as f64 / count.max(1) as f64;
        let swaps = alone.execute(count, words.round() as u64)?;
        let percent = |part: Duration| part.as_secs_f64() * 100.0 / whole.as_secs_f64();
        shares.search.push(percent(search));
        shares.swaps.push(percent(swaps));
        shares.words.push(words);
        setting.step(mix.name, before + turn as u64 + 1, 2 * TURNS as u64);
    }
    Ok(shares)
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = setting.scale.amount(1_000_000, 1_000_000);
    let ops = setting.scale.amount(100_000, 1_000_000);
    let sorted = sorted_keys(SEED, keys);
    let balanced = measure(setting, BALANCED, &sorted, ops, 0)?;
    let mostly = measure(setting, READ_MOSTLY, &sorted, ops, TURNS as u64)?;
    let [search, swaps, _] = balanced.bars();
    let [mostly_search, ..] = mostly.bars();
    let range = |of: &[f64]| {
        let low = of.iter().copied().fold(f64::INFINITY, f64::min);
        let high = of.iter().copied().fold(0.0, f64::max);
        format!("median of {} turns from {low:.1} to {high:.1}", of.len())
    };
    let claims = vec![
        Claim::new(
            "balanced: PMwCAS, percent of the time",
            12.0,
            swaps,
            Expect::number(12.0).less_is_better(),
        )
        .note(range(&balanced.swaps)),
        Claim::new(
            "balanced: searching nodes, percent of the time",
            61.0,
            search,
            Expect::number(61.0).within(0.18),
        )
        .note(range(&balanced.search)),
        Claim::new(
            "searching nodes, share in read-mostly over balanced",
            1.28,
            mostly_search / search,
            Expect::ratio(1.28),
        )
        .note(
            "the paper: 78 % over 61 %, the former where the workload is not write-intensive, without saying which it is",
        ),
    ];
    let parts = ["searching nodes", "PMwCAS", "the rest"];
    let panel = Panel::bars("Time by component", "", "% of the time", parts)
        .with(BALANCED.name, balanced.bars().to_vec())
        .with(READ_MOSTLY.name, mostly.bars().to_vec());
    let mut notes = vec![
        format!(
            "one thread, {keys} records in DRAM, uniform; no profiler, but three times by the clock: the operations; the same \
             with each upsert a lookup of its key, which is the search of inner nodes and leaf together, epochs and return \
             of the value included; and as many swaps as were counted, of as many words ({:.2} in balanced), executed by \
             themselves on words that are in the cache, descriptors and their epochs included",
            median(balanced.words.clone())
        ),
        "the rest is what the two leave of the whole: it has what an upsert does besides, and what the parts cost less \
         where they run alone; inner nodes and leaves are not told apart, which the paper does"
            .to_owned(),
    ];
    for (mix, shares) in [(BALANCED, &balanced), (READ_MOSTLY, &mostly)] {
        let [search, swaps, rest] = shares.bars();
        if rest == 0.0 {
            notes.push(format!(
                "{}: the two parts, each run alone, took {:.1} % of the whole: no rest can be told",
                mix.name,
                search + swaps
            ));
        }
    }
    Ok(Findings {
        claims,
        panels: vec![panel],
        notes,
    })
}
