//! What the figures of the paper on the gap share: its trees, its machine's caches in proportion, and the
//! experiment that most of them are, contenders put through the same phases at each of some points.

use super::lb_insertion::shrunk;
use super::tree::{BTREE, BTREE_WAL, Design, FASTFAIR, UNSORTED, UNSORTED_LEAF};
use super::trial::{Outcomes, Trial, measure};
use super::{Claim, Expect, FigureError, Panel, Setting, Stated};
use crate::model::{Device, ModelReport, Phase, Tuning, Workload};
use bristlecone_designs::Fill;

/// A tree in a memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contender {
    pub name: &'static str,
    pub design: Design,
    device: &'static str,
}

/// A tree in DRAM.
pub(super) const fn dram(name: &'static str, design: Design) -> Contender {
    Contender {
        name,
        design,
        device: "dram",
    }
}

/// A tree in persistent memory.
pub(super) const fn pm(name: &'static str, design: Design) -> Contender {
    Contender {
        name,
        design,
        device: "optane",
    }
}

/// The paper's trees. Their sorted nodes are all searched key by key (section 3.1).
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

/// Bytes of a node where that is not what varies.
pub(super) const BYTES: u32 = 512;
/// Threads.
pub(super) const THREADS: [usize; 5] = [1, 4, 16, 32, 48];
/// Of [`THREADS`].
pub(super) const ONE: usize = 0;
pub(super) const MOST: usize = THREADS.len() - 1;
/// Bytes of a key and of a value, and of the paper's.
const ENTRY: (usize, usize) = (8, 16);

/// A number of a report.
pub(super) type Of = fn(&ModelReport) -> f64;
pub(super) const MOPS: Of = |r| r.mops;
pub(super) const NS: Of = |r| r.ns_per_op;

/// Keys that a tree is loaded with; the paper has 160 million.
pub(super) fn keys(setting: &Setting<'_>) -> u64 {
    setting.scale.amount(1_000_000, 20_000_000)
}

/// Operations of a phase, of all threads.
pub(super) fn ops(setting: &Setting<'_>) -> u64 {
    setting.scale.amount(20_000, 500_000)
}

/// Insertions, of which the first phase fills the caches with what is modified: count the second.
pub(super) fn insertions(ops: u64) -> [Phase; 2] {
    [Phase::of(Workload::Insert, ops); 2]
}

/// A device behind caches that hold as small a part of a tree of `keys` keys as the paper's do, those of all
/// cores together included.
pub(super) fn device(name: &str, keys: u64) -> Result<Device, FigureError> {
    Ok(shrunk(name, keys)?.with_core(|core| {
        // Twice the paper's share: the smaller a cache is, the sooner it evicts what was modified together, and so
        // the more of that meets in the device's combining buffers, which are not smaller.
        core.l3_bytes = (keys / 4).next_power_of_two().clamp(64 << 10, 32 << 20);
        core.l1_bytes = 8 << 10;
        core.l2_bytes = (keys / 128).next_power_of_two().clamp(8 << 10, 1 << 20);
    })?)
}

/// One point of an experiment.
#[derive(Clone, Debug)]
pub(super) struct Point {
    /// Where it is on the horizontal axis.
    pub at: f64,
    pub node_bytes: u32,
    pub threads: usize,
    pub phases: Vec<Phase>,
}

/// The same phases by so many threads.
pub(super) fn by_threads(threads: &[usize], phases: &[Phase]) -> Vec<Point> {
    let point = |threads: &usize| Point {
        at: *threads as f64,
        node_bytes: BYTES,
        threads: *threads,
        phases: phases.to_vec(),
    };
    threads.iter().map(point).collect()
}

/// What came of an experiment.
pub(super) struct Sweep<'c> {
    contenders: &'c [Contender],
    places: Vec<f64>,
    outcomes: Outcomes,
}

/// Puts every contender through the phases of every point, behind the caches of [`device`].
pub(super) fn sweep<'c>(
    setting: &mut Setting<'_>,
    doing: &str,
    keys: u64,
    contenders: &'c [Contender],
    points: &[Point],
) -> Result<Sweep<'c>, FigureError> {
    sweep_behind(device, setting, doing, keys, contenders, points)
}

/// Returns the device of a name behind caches for so many keys.
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
    let groups = points.iter().map(|point| {
        let trial = |contender: &Contender| -> Result<Trial, FigureError> {
            let device = caches(contender.device, keys)?;
            let design = contender.design.sized(point.node_bytes);
            let trial = Trial::new(design, &device, keys, Fill::USUAL, &point.phases);
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
    /// A contender's number in a phase at a point.
    pub fn at(&self, point: usize, contender: usize, phase: usize, of: Of) -> f64 {
        self.outcomes[point][contender][phase].counted(of)
    }

    /// One contender's number over another's.
    pub fn over(&self, point: usize, (a, b): (usize, usize), phase: usize, of: Of) -> f64 {
        self.at(point, a, phase, of) / self.at(point, b, phase, of)
    }

    /// The largest such ratio of all points, and the point.
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

    /// A panel of some contenders over the points.
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

    /// A claim on the largest of all points' ratios of two contenders.
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

/// What a figure of these says of how it was had.
pub(super) fn note(keys: u64, ops: u64) -> String {
    format!(
        "trees of {keys} random keys of {0} bytes with {0}-byte values (the paper: {1} and {1}), loaded to 70 %; \
         {ops} operations; devices dram and optane, caches as small beside the tree as the paper's",
        ENTRY.0, ENTRY.1
    )
}
