//! The throughput of BzTree by the size of its keys, and by the free space of its leaves (BzTree,
//! figure 8).

use super::bz::{
    Act, Acts, Load, READ_HEAVY, READ_ONLY, Rates, Reads, Source, Spread, TURNS, Tree, take_turns,
};
use super::trial::SEED;
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::LabError;
use crate::micro::designs::Forgetting;
use crate::workload::Keys;
use bristlecone_designs::{BzOptions, BzTree, DurableIndex, OrderedIndex};
use bristlecone_pmem::media::{Access, MediaOptions};
use bristlecone_pmem::{MediumKind, Pool, PoolOptions};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

pub(super) const ENTRY: Entry = Entry {
    name: "bz-fig8",
    title: "throughput by key size and by free space",
    paper: papers::BZ,
    place: "section 7.7, figure 8",
    on: &[On::Host],
    run,
};

/// Bytes of the longest key.
const MAX_KEY_BYTES: usize = 128;
/// Sizes of keys, in bytes, with the default free space.
const KEY_BYTES: [usize; 5] = [8, 16, 32, 64, MAX_KEY_BYTES];
/// Free space of leaves, in bytes, with keys of eight bytes.
const FREE_BYTES: [u32; 5] = [32, 64, 128, 256, 512];

/// A tree whose keys are byte strings of one size, which differ only in their last eight bytes.
struct Spelt {
    index: BzTree<[u8], u64, Forgetting>,
    key_bytes: usize,
}

impl Spelt {
    fn new(key_bytes: usize, free_bytes: Option<u32>) -> Result<Self, FigureError> {
        let media = MediaOptions {
            access: Access::Create,
            medium: Some(MediumKind::Dram),
            ..MediaOptions::default()
        };
        let pool = Pool::create(Path::new("dram"), &PoolOptions { media })?;
        let options = BzOptions {
            free_bytes,
            ..BzOptions::default()
        };
        let index = BzTree::create(&pool, "index", &options)
            .map_err(|e| LabError::index("creating the index", e))?;
        Ok(Self { index, key_bytes })
    }

    /// Calls `f` with the byte string that stands for a number.
    #[inline(always)]
    fn with_key<R>(&self, number: u64, f: impl FnOnce(&[u8]) -> R) -> R {
        let mut bytes = [0; MAX_KEY_BYTES];
        bytes[MAX_KEY_BYTES - 8..].copy_from_slice(&number.to_be_bytes());
        f(&bytes[MAX_KEY_BYTES - self.key_bytes..])
    }

    fn upsert(&self, number: u64, value: u64) -> Result<u64, LabError> {
        self.with_key(number, |key| self.index.upsert(key, &value))
            .map(u64::from)
            .map_err(|e| LabError::index("upserting", e))
    }
}

impl Tree for Spelt {
    fn run(&self, acts: &Acts) -> Result<Duration, FigureError> {
        acts.run(
            #[inline(always)]
            |act| match act {
                Act::Get(number) | Act::Scan(number) => {
                    Ok(self.with_key(number, |key| self.index.get(key).unwrap_or_default()))
                }
                Act::Upsert(number, value) => self.upsert(number, value),
            },
        )
    }

    fn insert(&self, seed: u64, records: Range<u64>) -> Result<(), FigureError> {
        for record in records {
            let number = Keys::Random { seed }.key(record);
            self.upsert(number, number >> 4)?;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let stats = self.index.stats();
        stats.pm_bytes + stats.dram_bytes
    }
}

/// Runs both mixes on fresh trees of these key sizes and free spaces. `steps` is the number of
/// steps done before, and of all.
fn both(
    setting: &mut Setting<'_>,
    sizes: &[(usize, Option<u32>)],
    keys: u64,
    ops: u64,
    (mut before, total): (u64, u64),
) -> Result<[Rates; 2], FigureError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let numbers: Vec<u64> = (0..keys)
        .map(|record| Keys::Random { seed: SEED }.key(record))
        .collect();
    let mut one = |mix| -> Result<Rates, FigureError> {
        let mut trees: Vec<Box<dyn Tree>> = Vec::new();
        for (key_bytes, free_bytes) in sizes {
            let tree = Spelt::new(*key_bytes, *free_bytes)?;
            tree.insert(SEED, 0..keys)?;
            trees.push(Box::new(tree));
            setting.step("inserting", before, total);
        }
        let load = Load {
            mix,
            spread: Spread::Growing,
            reads: Reads::Lookups,
            threads,
        };
        let mut source = Source::new(&numbers);
        let rates = take_turns(setting, &trees, &mut source, &load, ops, (before, total))?;
        before += (TURNS * trees.len()) as u64;
        Ok(rates)
    };
    Ok([one(READ_ONLY)?, one(READ_HEAVY)?])
}

fn panel(title: &str, x: &str, sizes: &[f64], rates: &[Rates; 2]) -> Panel {
    let panel = Panel::lines(title, x, "million operations/s", sizes.iter().copied());
    [READ_ONLY, READ_HEAVY]
        .iter()
        .zip(rates)
        .fold(panel, |panel, (mix, rates)| {
            let mops = (0..sizes.len()).map(|i| rates.mops(i)).collect();
            panel.with(mix.name, mops)
        })
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    // The paper's default size. The number of writes nearly keeps the size of the trees.
    let keys = setting.scale.amount(200_000, 1_000_000);
    let ops = setting.scale.amount(20_000, 100_000);
    let half = (2 * TURNS * KEY_BYTES.len()) as u64;
    let by_key = KEY_BYTES.map(|bytes| (bytes, None));
    let by_free = FREE_BYTES.map(|bytes| (KEY_BYTES[0], Some(bytes)));
    let of_keys = both(setting, &by_key, keys, ops, (0, 2 * half))?;
    let of_free = both(setting, &by_free, keys, ops, (half, 2 * half))?;
    let last = KEY_BYTES.len() - 1;
    let mut claims = Vec::new();
    // The paper has 39 % and 46 % less.
    for (mix, rates, paper) in [
        (READ_ONLY, &of_keys[0], 0.61),
        (READ_HEAVY, &of_keys[1], 0.54),
    ] {
        let (ratio, spread) = rates.over(last, 0);
        let what = format!(
            "{}: keys of {} bytes over {}",
            mix.name, KEY_BYTES[last], KEY_BYTES[0]
        );
        claims.push(Claim::new(what, paper, ratio, Expect::level(paper)).note(spread));
    }
    let last = FREE_BYTES.len() - 1;
    let (ratio, spread) = of_free[0].over(0, last);
    let what = format!(
        "read-only: free space of {} bytes over {}",
        FREE_BYTES[0], FREE_BYTES[last]
    );
    claims.push(Claim::new(what, 1.45, ratio, Expect::ratio(1.45)).note(spread));
    let best = (0..FREE_BYTES.len())
        .max_by(|a, b| of_free[1].mops(*a).total_cmp(&of_free[1].mops(*b)))
        .unwrap_or_default();
    let rival = (0..FREE_BYTES.len())
        .filter(|i| *i != best)
        .max_by(|a, b| of_free[1].mops(*a).total_cmp(&of_free[1].mops(*b)))
        .unwrap_or_default();
    let (over, spread) = of_free[1].over(best, rival);
    claims.push(
        Claim::new(
            "read-heavy: bytes of free space with the highest throughput",
            128.0,
            f64::from(FREE_BYTES[best]),
            Expect::exactly(128.0),
        )
        .note(format!(
            "{over:.3} times the next, {} bytes: {spread}",
            FREE_BYTES[rival]
        )),
    );
    let key_sizes = KEY_BYTES.map(|bytes| bytes as f64);
    let free_sizes = FREE_BYTES.map(f64::from);
    Ok(Findings {
        claims,
        panels: vec![
            panel("(a) key size", "bytes of a key", &key_sizes, &of_keys),
            panel("(b) free space", "bytes of free space", &free_sizes, &of_free),
        ],
        notes: vec![
            format!(
                "{keys} records in DRAM, inserted one after the other in random order, so that leaves have unsorted ones; \
                 byte-string keys, alike but for their last 8 bytes; nodes of 1 KB; writes add random keys, since the paper \
                 speaks of leaves that fill up; as many threads as this machine has processors"
            ),
            "a tree's separators are the shortest that divide two leaves, which is hardly shorter than these keys".to_owned(),
        ],
    })
}
