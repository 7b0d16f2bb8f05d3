//! Shared parts of the figures of the paper on the gap: its trees, its machine's caches in
//! proportion, and the experiment of most of them, in which contenders run the same phases at each
//! of several points.

use super::lb_insertion::shrunk;
use super::tree::{BTREE, BTREE_WAL, Design, FASTFAIR, UNSORTED, UNSORTED_LEAF};
use super::trial::{Outcomes, Trial, measure};
use super::{Claim, Expect, FigureError, Panel, Setting, Stated};
use crate::model::{Device, ModelReport, Phase, Tuning, Workload};
use bristlecone_designs::Fill;
use bristlecone_designs::designs::WIDE;

/// A tree and its memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contender {
    pub name: &'static str,
    pub design: Design,
    device: &'static str,
}

/// Returns a tree in DRAM.
pub(super) const fn dram(name: &'static str, design: Design) -> Contender {
    Contender {
        name,
        design,
        device: "dram",
    }
}

/// Returns a tree in persistent memory.
pub(super) const fn pm(name: &'static str, design: Design) -> Contender {
    Contender {
        name,
        design,
        device: "optane",
    }
}

/// The paper's trees. All of them search sorted nodes key by key (section 3.1).
pub(super) const PLAIN: Design = BTREE.tuned(Tuning::Linear);
pub(super) const LEAF: Design = UNSORTED_LEAF.tuned(Tuning::Linear);
pub(super) const WAL: Design = BTREE_WAL.tuned(Tuning::Linear);
pub(super) const PERSISTENT: Design = UNSORTED.tuned(Tuning::Linear);
pub(super) const FAIR: Design = FASTFAIR;

/// Conventional and unsorted leaves, in DRAM and in PM.
pub(super) const IN_BOTH: [Contender; 4] = [
    dram("DRAM btree", PLAIN),
    dram("DRAM unsorted leaf", LEAF),
    pm("PM btree", PLAIN),
    pm("PM unsorted leaf", LEAF),
];

/// Bytes of a node, unless the node size varies.
pub(super) const BYTES: u32 = 512;
/// Threads.
pub(super) const THREADS: [usize; 5] = [1, 4, 16, 32, 48];
/// Of [`THREADS`].
pub(super) const ONE: usize = 0;
pub(super) const MANY: usize = THREADS.len() - 1;
/// A number of a report.
pub(super) type Of = fn(&ModelReport) -> f64;
pub(super) const MOPS: Of = |r| r.mops;
pub(super) const NS: Of = |r| r.ns_per_op;

/// Returns the keys that a tree is loaded with. The paper has 160 million.
pub(super) fn keys(setting: &Setting<'_>) -> u64 {
    setting.scale.amount(400_000, 4_000_000)
}

/// Returns the keys that a log-structured tree is loaded with.
pub(super) fn few_keys(setting: &Setting<'_>) -> u64 {
    setting.scale.amount(250_000, 5_000_000)
}

/// Returns the operations of a phase, of all threads.
pub(super) fn ops(setting: &Setting<'_>) -> u64 {
    setting.scale.amount(20_000, 500_000)
}

/// Returns two phases of insertions, by which a tree of so many keys grows by half, like the
/// paper's. The first one, a tenth, fills the caches with modified lines, and the second counts.
pub(super) fn insertions(keys: u64) -> [Phase; 2] {
    let growth = keys / 2;
    let first = (growth / 10).max(1);
    [first, growth - first].map(|ops| Phase::of(Workload::Insert, ops))
}

/// Returns a device behind caches that hold the same share of a tree of `keys` keys as the paper's,
/// also those of all cores together.
pub(super) fn device(name: &str, keys: u64) -> Result<Device, FigureError> {
    Ok(shrunk(name, keys)?.with_core(|core| {
        // The last cache has twice the paper's share. The smaller a cache is, the sooner it evicts
        // lines that were modified together, and the more of them meet in the device's combining
        // buffers, which are not scaled down.
        core.l3_bytes = (keys / 4).next_power_of_two().clamp(64 << 10, 32 << 20);
        core.l1_bytes = 8 << 10;
        core.l2_bytes = (keys / 128).next_power_of_two().clamp(8 << 10, 1 << 20);
    })?)
}

/// One point of an experiment.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// Its place on the horizontal axis.
    pub at: f64,
    pub node_bytes: u32,
    pub threads: usize,
    pub phases: Vec<Phase>,
}

/// Returns a point for each number of threads, with the same phases.
pub(super) fn by_threads(threads: &[usize], phases: &[Phase]) -> Vec<Point> {
    let point = |threads: &usize| Point {
        at: *threads as f64,
        node_bytes: BYTES,
        threads: *threads,
        phases: phases.to_vec(),
    };
    threads.iter().map(point).collect()
}

/// The result of an experiment.
pub(super) struct Sweep<'c> {
    contenders: &'c [Contender],
    places: Vec<f64>,
    outcomes: Outcomes,
}

/// Runs the phases of every point on every contender, behind the caches of [`device`].
pub(super) fn sweep<'c>(
    setting: &mut Setting<'_>,
    doing: &str,
    keys: u64,
    contenders: &'c [Contender],
    points: &[Point],
) -> Result<Sweep<'c>, FigureError> {
    sweep_behind(device, setting, doing, keys, contenders, points)
}

/// Returns the device of a name, behind caches for a number of keys.
type Caches = fn(&str, u64) -> Result<Device, FigureError>;

/// As [`sweep`], behind other caches.
pub(super) fn sweep_behind<'c>(
    caches: Caches,
    setting: &mut Setting<'_>,
    doing: &str,
    keys: u64,
    contenders: &'c [Contender],
    points: &[Point],
) -> Result<Sweep<'c>, FigureError> {
    // The log-structured tree has no entries of 32 bytes, and neither have those beside it then.
    let wide = (contenders.iter()).all(|contender| WIDE.contains(&contender.design.index));
    let groups = points.iter().map(|point| {
        let trial = |contender: &Contender| -> Result<Trial, FigureError> {
            let device = caches(contender.device, keys)?;
            let design = contender.design.sized(point.node_bytes);
            let trial = Trial::new(design, &device, keys, Fill::USUAL, &point.phases);
            let trial = if wide { trial.wide() } else { trial };
            Ok(trial.threaded(point.threads))
        };
        contenders.iter().map(trial).collect()
    });
    let groups = groups.collect::<Result<Vec<_>, FigureError>>()?;
    Ok(Sweep {
        contenders,
        places: points.iter().map(|point| point.at).collect(),
        outcomes: measure(setting, doing, &groups)?,
    })
}

impl Sweep<'_> {
    /// Returns a contender's number in a phase at a point.
    pub fn at(&self, point: usize, contender: usize, phase: usize, of: Of) -> f64 {
        self.outcomes[point][contender][phase].counted(of)
    }

    /// Returns the flushes and fences of an operation that are the design's own, and not the pool's
    /// or its allocator's.
    pub fn of_design(&self, point: usize, contender: usize, phase: usize) -> [f64; 2] {
        let outcome = &self.outcomes[point][contender][phase];
        let (issued, ops) = (outcome.issued(), outcome.ops as f64);
        let (all, of_pool) = (issued.all(), issued.of_pool);
        [
            (all.flushes - of_pool.flushes) as f64 / ops,
            (all.fences - of_pool.fences) as f64 / ops,
        ]
    }

    /// Returns one contender's number over another's.
    pub fn over(&self, point: usize, (a, b): (usize, usize), phase: usize, of: Of) -> f64 {
        self.at(point, a, phase, of) / self.at(point, b, phase, of)
    }

    /// Returns the largest such ratio of all points, and its place.
    pub fn most(&self, pair: (usize, usize), phase: usize, of: Of) -> (f64, f64) {
        let ratios = (0..self.places.len()).map(|point| self.over(point, pair, phase, of));
        let each = ratios.zip(&self.places);
        each.fold((0.0, 0.0), |most, (ratio, place)| {
            if ratio > most.0 {
                (ratio, *place)
            } else {
                most
            }
        })
    }

    /// Returns a panel of some contenders over the points.
    pub fn panel(
        &self,
        (title, x, y): (&str, &str, &str),
        contenders: &[usize],
        phase: usize,
        of: Of,
    ) -> Panel {
        let panel = Panel::lines(title, x, y, self.places.iter().copied());
        contenders.iter().fold(panel, |panel, contender| {
            let points = 0..self.places.len();
            let values = points.map(|point| self.at(point, *contender, phase, of));
            panel.with(self.contenders[*contender].name, values.collect())
        })
    }

    /// Returns a claim on the largest of all points' ratios of two contenders.
    pub fn most_claim(
        &self,
        what: &str,
        paper: impl Into<Stated>,
        pair: (usize, usize),
        (phase, of): (usize, Of),
        expect: Expect,
    ) -> Claim {
        let (ratio, place) = self.most(pair, phase, of);
        let names = (self.contenders[pair.0].name, self.contenders[pair.1].name);
        let what = format!("{what}, {} over {}, at most", names.0, names.1);
        Claim::new(what, paper, ratio, expect).note(format!("at {place}"))
    }
}

/// Returns the note on how a figure of this paper was measured, with the paper's entries.
pub(super) fn note(keys: u64) -> String {
    noted(keys, "16 bytes with 16-byte values", "")
}

/// As [`note`], for a figure of [`insertions`].
pub(super) fn grown_note(keys: u64) -> String {
    noted(
        keys,
        "16 bytes with 16-byte values",
        " and grown by half by insertions",
    )
}

/// As [`note`], with entries of half the size.
pub(super) fn narrow_note(keys: u64, ops: u64) -> String {
    let entries = "8 bytes with 8-byte values (the paper: 16 and 16)";
    noted(keys, entries, &format!("; {ops} operations"))
}

fn noted(keys: u64, entries: &str, then: &str) -> String {
    format!(
        "trees of {keys} random keys of {entries}, loaded to 70 %{then}; devices dram and optane, caches as small \
         beside the tree as the paper's"
    )
}
