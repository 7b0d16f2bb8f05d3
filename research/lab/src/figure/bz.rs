//! The evaluation of BzTree: trees under mixes of reads and upserts, which take turns on this
//! machine.
//!
//! In a turn, each tree gets the same operations, which are made before the clock starts. The first
//! tree changes from turn to turn, and ratios are taken turn by turn.

use super::tree::sorted_keys;
use super::trial::SEED;
use super::{FigureError, Panel, Setting};
use crate::LabError;
use crate::limits::median;
use crate::micro::designs::{Forgetting, Inlined};
use crate::workload::{Keys, Pick, Random, Zipf, value_of};
use bristlecone_designs::designs::{AnyDesign, Choice, Design, UnknownDesign};
use bristlecone_designs::{BulkLoad, Fill, OrderedIndex};
use bristlecone_pmem::media::{Access, Media, MediaOptions};
use bristlecone_pmem::{MediumKind, Pool, PoolOptions};
use std::marker::PhantomData;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Turns of each tree.
pub(super) const TURNS: usize = 15;
/// Largest number of records that a scan returns (section 7.5).
const SCANNED: usize = 10;

/// A tree and its medium.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contender {
    /// Its name in diagrams.
    pub name: &'static str,
    pub index: &'static str,
    /// `Dram` or `Mapped`.
    pub medium: MediumKind,
    /// Bytes of a leaf; `None` for the design's default.
    pub node_bytes: Option<u32>,
}

/// BzTree without durability.
pub(super) const BZTREE: Contender = Contender {
    name: "BzTree",
    index: "bztree",
    medium: MediumKind::Dram,
    node_bytes: None,
};
/// The Bw-Tree.
pub(super) const BWTREE: Contender = Contender {
    name: "Bw-Tree",
    index: "bwtree",
    medium: MediumKind::Dram,
    node_bytes: None,
};
/// BzTree, durable.
pub(super) const DURABLE: Contender = Contender {
    name: "BzTree, durable",
    medium: MediumKind::Mapped,
    ..BZTREE
};

/// A mix of reads and upserts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mix {
    pub name: &'static str,
    /// Reads among a hundred operations.
    pub reads: u64,
}

pub(super) const READ_ONLY: Mix = Mix {
    name: "read-only",
    reads: 100,
};
pub(super) const READ_MOSTLY: Mix = Mix {
    name: "read-mostly",
    reads: 90,
};
pub(super) const READ_HEAVY: Mix = Mix {
    name: "read-heavy",
    reads: 75,
};
pub(super) const BALANCED: Mix = Mix {
    name: "balanced",
    reads: 50,
};

/// The choice of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// All records of the tree, with equal probability.
    Uniform,
    /// Some records far more often (Zipf, 0.99).
    Zipfian,
    /// Writes append one key after the other. Reads look up a thread's last one, or without writes
    /// one record after the other.
    Monotonic,
    /// Writes add random keys. Reads look up records of the load.
    Growing,
}

/// The kind of read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reads {
    Lookups,
    Scans,
}

/// The load of the trees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub mix: Mix,
    pub spread: Spread,
    pub reads: Reads,
    pub threads: usize,
}

/// One operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Get(u64),
    Scan(u64),
    Upsert(u64, u64),
}

/// A tree under test.
pub(super) trait Tree: Send + Sync {
    /// Does the operations of all threads in parallel. Returns the time from the first start to the
    /// last end.
    fn run(&self, acts: &Acts) -> Result<Duration, FigureError>;
    /// Inserts records with random keys.
    fn insert(&self, seed: u64, records: Range<u64>) -> Result<(), FigureError>;
    /// Returns its bytes, in its pool and in DRAM.
    fn bytes(&self) -> u64;
}

/// Operations, by thread.
pub(super) struct Acts(Vec<Vec<Act>>);

impl Acts {
    /// Does the operations of all threads in parallel. Each operation returns what it read. Returns
    /// the time from the first start to the last end.
    pub fn run(
        &self,
        act: impl Fn(Act) -> Result<u64, LabError> + Sync,
    ) -> Result<Duration, FigureError> {
        let ready = Barrier::new(self.0.len());
        let work = |acts: &[Act]| -> Result<(Instant, Instant), LabError> {
            ready.wait();
            let started = Instant::now();
            let mut read = 0;
            for one in acts {
                read ^= act(*one)?;
            }
            std::hint::black_box(read);
            Ok((started, Instant::now()))
        };
        let spans: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (self.0.iter())
                .map(|acts| scope.spawn(|| work(acts)))
                .collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect::<Result<_, _>>()
        })?;
        let begin = spans.iter().map(|(begin, _)| *begin).min();
        let end = spans.iter().map(|(_, end)| *end).max();
        Ok(begin
            .zip(end)
            .map_or(Duration::ZERO, |(begin, end)| end - begin))
    }
}

struct Loaded<I, M> {
    index: I,
    medium: PhantomData<M>,
}

impl<I: OrderedIndex<u64, u64>, M: Media> Tree for Loaded<I, M> {
    fn run(&self, acts: &Acts) -> Result<Duration, FigureError> {
        acts.run(
            #[inline(always)]
            |act| match act {
                Act::Get(key) => Ok(self.index.get(&key).unwrap_or_default()),
                Act::Scan(from) => {
                    let (mut read, mut left) = (0, SCANNED);
                    self.index.scan(from.., |_, value| {
                        read ^= *value;
                        left -= 1;
                        if left == 0 {
                            ControlFlow::Break(())
                        } else {
                            ControlFlow::Continue(())
                        }
                    });
                    Ok(read)
                }
                Act::Upsert(key, value) => (self.index.upsert(&key, &value))
                    .map(u64::from)
                    .map_err(|e| LabError::index("upserting", e)),
            },
        )
    }

    fn insert(&self, seed: u64, records: Range<u64>) -> Result<(), FigureError> {
        for record in records {
            let key = Keys::Random { seed }.key(record);
            (self.index.insert(&key, &(key >> 4))).map_err(|e| LabError::index("inserting", e))?;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        let stats = self.index.stats();
        stats.pm_bytes + stats.dram_bytes
    }
}

impl Contender {
    /// Returns the tree with these sorted keys, in a pool at `path` if it is durable. The timed
    /// loops are compiled for the two designs, since a scan through an engine would take a fifth
    /// longer.
    pub fn load(&self, path: &Path, keys: &[u64]) -> Result<Box<dyn Tree>, FigureError> {
        let choice = Choice {
            node_bytes: self.node_bytes,
            ..Choice::of(self.index)
        };
        match (AnyDesign::of(&choice).map_err(LabError::from)?, self.medium) {
            (AnyDesign::Bw(design), MediumKind::Dram) => {
                self.on::<_, Forgetting>(&design, path, keys)
            }
            (AnyDesign::Bz(design), MediumKind::Dram) => {
                self.on::<_, Forgetting>(&design, path, keys)
            }
            (AnyDesign::Bz(design), _) => self.on::<_, Inlined>(&design, path, keys),
            _ => Err(LabError::from(UnknownDesign::Name(self.index.to_owned())).into()),
        }
    }

    fn on<D: Design, M: Media>(
        &self,
        design: &D,
        path: &Path,
        keys: &[u64],
    ) -> Result<Box<dyn Tree>, FigureError> {
        let media = MediaOptions {
            access: Access::Create,
            medium: Some(self.medium),
            ..MediaOptions::default()
        };
        let pool = Pool::<M>::create(path, &PoolOptions { media })?;
        let mut index = design
            .create::<u64, u64, M>(&pool, "index")
            .map_err(|e| LabError::index("creating the index", e))?;
        // The values are like those of later writes: numbers that fit into a word of a swap, as
        // pointers do.
        let pairs = keys.iter().map(|key| (*key, value_of(*key) >> 4));
        index
            .bulk_load(pairs, Fill::USUAL)
            .map_err(|e| LabError::index("loading in bulk", e))?;
        Ok(Box::new(Loaded {
            index,
            medium: PhantomData::<M>,
        }))
    }
}

/// The generator of operations: different ones each turn, but the same for every tree.
pub(super) struct Source<'a> {
    keys: &'a [u64],
    zipf: Zipf,
    turn: u64,
    /// The next key of `Spread::Monotonic`.
    next: u64,
}

impl<'a> Source<'a> {
    pub fn new(keys: &'a [u64]) -> Self {
        Self {
            keys,
            zipf: Zipf::new(keys.len() as u64, 0.99),
            turn: 0,
            next: 1,
        }
    }

    /// Returns `ops` operations for each thread.
    pub fn acts(&mut self, load: &Load, ops: usize) -> Acts {
        self.turn += 1;
        let threads = load.threads as u64;
        let (first, turn) = (self.next, self.turn);
        if load.spread == Spread::Monotonic {
            self.next += threads * ops as u64;
        }
        let of = |thread: u64| -> Vec<Act> {
            let seed = SEED ^ turn << 16 ^ thread;
            let mut random = Random::new(!seed);
            let mut pick = match load.spread {
                Spread::Zipfian => Pick::Zipf {
                    random: Random::new(seed),
                    zipf: self.zipf.clone(),
                },
                _ => Pick::Uniform {
                    random: Random::new(seed),
                    records: self.keys.len() as u64,
                },
            };
            // No random key exists.
            let behind = |n: u64| u64::MAX / 2 + 2 + first + n * threads + thread;
            let start = random.below(self.keys.len() as u64);
            let mut written = 0;
            let mut act = |n| {
                let reads = random.below(100) < load.mix.reads;
                let key = if load.spread == Spread::Growing && !reads {
                    random.word()
                } else if load.spread != Spread::Monotonic {
                    self.keys[pick.index() as usize]
                } else if load.mix.reads == 100 {
                    self.keys[(start as usize + n) % self.keys.len()]
                } else {
                    written += u64::from(!reads);
                    behind(written)
                };
                match (reads, load.reads) {
                    (true, Reads::Lookups) => Act::Get(key),
                    (true, Reads::Scans) => Act::Scan(key),
                    (false, _) => Act::Upsert(key, random.word() >> 4),
                }
            };
            (0..ops).map(&mut act).collect()
        };
        Acts((0..threads).map(of).collect())
    }
}

/// Million operations a second of each contender in each turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Rates(Vec<Vec<f64>>);

impl Rates {
    /// Returns the median of one contender.
    pub fn mops(&self, contender: usize) -> f64 {
        median(self.0[contender].clone())
    }

    /// Returns the median over turns of the ratio of `this` one's rate to `that` one's, and a note
    /// on its spread.
    pub fn over(&self, this: usize, that: usize) -> (f64, String) {
        let ratios = self.0[this].iter().zip(&self.0[that]);
        let ratios: Vec<f64> = ratios.map(|(this, that)| this / that).collect();
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        let note = format!(
            "median of {} turns from {low:.3} to {high:.3}",
            ratios.len()
        );
        (median(ratios), note)
    }
}

/// Runs a load on the trees, which take turns. `steps` is the number of steps done before, and of
/// all.
pub(super) fn take_turns(
    setting: &mut Setting<'_>,
    trees: &[Box<dyn Tree>],
    source: &mut Source<'_>,
    load: &Load,
    ops: u64,
    (before, total): (u64, u64),
) -> Result<Rates, FigureError> {
    let mut rates = Rates(vec![Vec::new(); trees.len()]);
    let each = (ops as usize / load.threads).max(1);
    for turn in 0..TURNS {
        let acts = source.acts(load, each);
        for place in 0..trees.len() {
            let index = (turn + place) % trees.len();
            let took = trees[index].run(&acts)?;
            let done = (each * load.threads) as f64;
            rates.0[index].push(done * 1e3 / took.as_nanos().max(1) as f64);
            let done = (turn * trees.len() + place + 1) as u64;
            setting.step(load.mix.name, before + done, total);
        }
    }
    Ok(rates)
}

/// Runs each load on fresh trees of `keys` keys. The contenders take turns.
pub(super) fn compete(
    setting: &mut Setting<'_>,
    contenders: &[Contender],
    loads: &[Load],
    keys: u64,
    ops: u64,
) -> Result<Vec<Rates>, FigureError> {
    let mut sorted = sorted_keys(SEED, keys);
    // This leaves room behind all keys for the monotonic ones.
    sorted.iter_mut().for_each(|key| *key >>= 1);
    sorted.dedup();
    let dir = super::tree::scratch()?;
    let total = (loads.len() * TURNS * contenders.len()) as u64;
    let mut all = Vec::new();
    for (number, load) in loads.iter().enumerate() {
        let mut trees = Vec::new();
        for (i, contender) in contenders.iter().enumerate() {
            trees.push(contender.load(&dir.path().join(format!("{number}-{i}")), &sorted)?);
        }
        let mut source = Source::new(&sorted);
        let before = (number * TURNS * trees.len()) as u64;
        let rates = take_turns(setting, &trees, &mut source, load, ops, (before, total))?;
        all.push(rates);
    }
    Ok(all)
}

/// Returns the numbers of threads on this machine: one, its processors, and twice its processors.
pub(super) fn threads() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut threads: Vec<usize> = (0..).map(|i| 1 << i).take_while(|n| *n < cores).collect();
    threads.extend([cores, 2 * cores]);
    threads.dedup();
    threads
}

/// Returns a panel: each contender's rates by number of threads.
pub(super) fn panel(
    title: &str,
    contenders: &[Contender],
    threads: &[usize],
    rates: &[Rates],
) -> Panel {
    let places = threads.iter().map(|n| *n as f64);
    let panel = Panel::lines(title, "threads", "million operations/s", places);
    contenders
        .iter()
        .enumerate()
        .fold(panel, |panel, (i, contender)| {
            let mops = rates.iter().map(|rates| rates.mops(i)).collect();
            panel.with(contender.name, mops)
        })
}
