//! Workload adaptivity: updates of a hot zone over time, by strategy; insertions and updates by
//! locality; and a hot zone that moves (NV-Tree, figure 8).
//!
//! Locality is the share of neighbouring keys that operations choose from. The trees of a panel are
//! open at the same time and take turns.

use super::tree::{Design, NVTREE, scratch, sorted_keys};
use super::trial::{SEED, slice_of, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::limits::median;
use crate::model::{Executes, Op, Tuning};
use crate::workload::Random;
use bristlecone_designs::Fill;
use bristlecone_designs::nvtree::Adaptivity;
use std::collections::HashSet;

pub(super) const ENTRY: Entry = Entry {
    name: "nv-fig8",
    title: "workload adaptivity: over time, by locality, and with a hot zone that moves",
    paper: papers::NV,
    place: "section 6.4, figure 8",
    on: &[On::Host],
    run,
};

const fn strategy(name: &'static str, strategy: Adaptivity) -> Design {
    Design {
        name,
        tuning: Tuning::Nv {
            adaptivity: strategy,
            blind: false,
        },
        ..NVTREE
    }
}

const PLAIN: Design = strategy("NV-Tree'", Adaptivity::Off);
const BALANCED: Design = strategy("balanced", Adaptivity::Balanced);
const STRATEGIES: [Design; 4] = [
    PLAIN,
    strategy("conservative", Adaptivity::Conservative),
    strategy("aggressive", Adaptivity::Aggressive),
    BALANCED,
];
const CONSERVATIVE: usize = 1;
const AGGRESSIVE: usize = 2;
const EVEN: usize = 3;
/// Points in time.
const WINDOWS: usize = 10;
/// Slices of a window.
const SLICES: usize = 10;
/// The trees by locality: `NV-Tree'` and NV-Tree, with nodes of 1 KB and of 4 KB.
const PAIRS: [Design; 4] = [
    Design {
        name: "NV-Tree' 1 KB",
        ..PLAIN.sized(1024)
    },
    Design {
        name: "NV-Tree 1 KB",
        ..BALANCED.sized(1024)
    },
    Design {
        name: "NV-Tree' 4 KB",
        ..PLAIN.sized(4096)
    },
    Design {
        name: "NV-Tree 4 KB",
        ..BALANCED.sized(4096)
    },
];
/// Localities, in percent of the keys.
const LOCALITIES: [f64; 5] = [100.0, 10.0, 5.0, 1.0, 0.5];
/// Windows of each locality. The last counts, and the others warm up.
const WARMING: usize = 3;

/// Trees that are open at the same time, and the number of their turn.
struct Field {
    subjects: Vec<Box<dyn Executes>>,
    turn: usize,
}

impl Field {
    fn new(designs: &[Design], sorted: &[u64]) -> Result<Self, FigureError> {
        // The trees keep their pools open, so the files can be removed.
        let dir = scratch()?;
        let load = |(n, design): (usize, &Design)| {
            design.load(&dir.path().join(n.to_string()), sorted, Fill::USUAL)
        };
        let subjects = designs.iter().enumerate().map(load);
        Ok(Self {
            subjects: subjects.collect::<Result<_, _>>()?,
            turn: 0,
        })
    }

    /// Does `ops` in slices. Returns the nanoseconds an operation, by tree and slice.
    fn window(&mut self, ops: &[Op]) -> Result<Vec<Vec<f64>>, FigureError> {
        let mut samples = vec![Vec::new(); self.subjects.len()];
        for slice in ops.chunks(ops.len().div_ceil(SLICES).max(1)) {
            let ns = slice_of(&self.subjects, self.turn, slice)?;
            samples
                .iter_mut()
                .zip(ns)
                .for_each(|(all, ns)| all.push(ns));
            self.turn += 1;
        }
        Ok(samples)
    }
}

/// Returns million operations a second, from the nanoseconds an operation by slice.
fn mops(samples: &[f64]) -> f64 {
    1e3 * samples.len() as f64 / samples.iter().sum::<f64>()
}

/// Returns the ratio of one tree's speed to that of another which took turns with it.
fn faster(this: &[f64], than: &[f64]) -> f64 {
    median(
        this.iter()
            .zip(than)
            .map(|(this, than)| than / this)
            .collect(),
    )
}

/// Returns updates of `count` random keys of `zone`.
fn updates(zone: &[u64], count: u64, random: &mut Random) -> Vec<Op> {
    (0..count)
        .map(|value| Op::Update {
            key: zone[random.below(zone.len() as u64) as usize],
            value,
        })
        .collect()
}

/// Returns insertions of `count` new keys between the first and the last of `zone`.
fn insertions(zone: &[u64], count: u64, random: &mut Random, used: &mut HashSet<u64>) -> Vec<Op> {
    let (first, last) = (zone[0], zone[zone.len() - 1]);
    let mut ops = Vec::new();
    while (ops.len() as u64) < count {
        let key = first + random.below(last - first);
        if zone.binary_search(&key).is_err() && used.insert(key) {
            ops.push(Op::Insert { key });
        }
    }
    ops
}

/// Returns the largest keys, `percent` of all.
fn largest(sorted: &[u64], percent: f64) -> &[u64] {
    let count = (sorted.len() as f64 * percent / 100.0).ceil().max(2.0) as usize;
    &sorted[sorted.len() - count..]
}

/// A run of the figure. All windows draw from one sequence of random numbers.
struct Course<'a, 'b> {
    setting: &'a mut Setting<'b>,
    sorted: &'a [u64],
    /// Operations of a window.
    window: u64,
    random: Random,
    /// Number of windows done.
    done: u64,
}

/// Nanoseconds an operation by window, tree and slice.
type Windows = Vec<Vec<Vec<f64>>>;

impl Course<'_, '_> {
    const WINDOWS: u64 = (2 * WINDOWS + 2 * LOCALITIES.len() * WARMING) as u64;

    fn step(&mut self, doing: &str) {
        self.done += 1;
        self.setting.step(doing, self.done, Self::WINDOWS);
    }

    /// Updates a zone in half of the windows, and another one in the rest.
    fn over_time(
        &mut self,
        designs: &[Design],
        [before, after]: [&[u64]; 2],
    ) -> Result<Windows, FigureError> {
        let mut field = Field::new(designs, self.sorted)?;
        let mut times = Vec::new();
        for time in 0..WINDOWS {
            let zone = if time < WINDOWS / 2 { before } else { after };
            times.push(field.window(&updates(zone, self.window, &mut self.random))?);
            self.step("updating");
        }
        Ok(times)
    }

    /// Inserts into or updates the zone of each locality; the last window of each counts.
    fn by_locality(&mut self, title: &str, insert: bool) -> Result<Windows, FigureError> {
        let mut by_locality = Vec::new();
        for percent in LOCALITIES {
            let zone = largest(self.sorted, percent);
            let mut field = Field::new(&PAIRS, self.sorted)?;
            let mut used = HashSet::new();
            let mut last = Vec::new();
            for _ in 0..WARMING {
                let ops = if insert {
                    insertions(zone, self.window, &mut self.random, &mut used)
                } else {
                    updates(zone, self.window, &mut self.random)
                };
                last = field.window(&ops)?;
                self.step(title);
            }
            by_locality.push(last);
        }
        Ok(by_locality)
    }
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = setting.scale.amount(400_000, 1_000_000).max(1_000);
    let window = setting.scale.amount(40_000, 400_000);
    let sorted = sorted_keys(SEED, keys);
    let mut course = Course {
        setting,
        sorted: &sorted,
        window,
        random: Random::new(SEED),
        done: 0,
    };
    let mut findings = Findings::default();

    // 8a and 8d: the zone, and the zone after half of the time.
    let designs = STRATEGIES.map(|design| design.sized(1024));
    let half = (sorted.len() as f64 * 0.005).ceil().max(2.0) as usize;
    let five = largest(&sorted, 5.0);
    let stays = course.over_time(&designs, [five, five])?;
    let moves = course.over_time(&designs, [largest(&sorted, 0.5), &sorted[..half]])?;
    findings.panels.extend([
        time_panel("(a) updates of 5 % over time", &stays, &designs),
        time_panel("(d) a zone of 0.5 % that moves", &moves, &designs),
    ]);
    findings.claims.extend(over_time(&stays));
    findings.claims.extend(moving(&moves));

    // 8b and 8c.
    let (inserting, updating) = ("(b) insertion", "(c) update");
    let insertions = course.by_locality(inserting, true)?;
    let updates = course.by_locality(updating, false)?;
    findings.panels.extend([
        locality_panel(inserting, "10^6 insertions/s", &insertions),
        locality_panel(updating, "10^6 updates/s", &updates),
    ]);
    findings.claims.push(by_insertions(&insertions));
    findings.claims.extend(by_updates(&updates));
    findings.notes = vec![format!(
        "trees of {keys} random keys of 8 bytes with 8-byte values, loaded to 70 %, 1 thread; a point in time \
         is {window} operations; (b), (c): the last of {WARMING} times as many; pools in shared memory"
    )];
    Ok(findings)
}

fn time_panel(title: &str, times: &Windows, designs: &[Design]) -> Panel {
    let places = (1..=WINDOWS).map(|time| time as f64);
    let panel = Panel::lines(title, "time", "10^6 updates/s", places);
    with_each(panel, designs, |tree| curve(times, tree))
}

fn locality_panel(title: &str, y: &str, by_locality: &Windows) -> Panel {
    let percents = ["100", "10", "5", "1", "0.5"];
    let panel = Panel::bars(title, "percent of the keys", y, percents);
    with_each(panel, &PAIRS, |tree| curve(by_locality, tree))
}

/// Returns a tree's throughput window by window.
fn curve(windows: &Windows, tree: usize) -> Vec<f64> {
    windows.iter().map(|window| mops(&window[tree])).collect()
}

/// Returns how many times faster NV-Tree was than `NV-Tree'`, with nodes of 1 KB.
fn adaptive_gain(window: &[Vec<f64>]) -> f64 {
    faster(&window[1], &window[0])
}

fn over_time(times: &Windows) -> Vec<Claim> {
    let over =
        |time: usize, this: usize, that: usize| faster(&times[time][this], &times[time][that]);
    let last = WINDOWS - 1;
    let every = [CONSERVATIVE, AGGRESSIVE, EVEN].map(|tree| over(last, tree, 0));
    let early = |tree| over(2, tree, CONSERVATIVE);
    vec![
        Claim::new(
            "updates of 5 %, at the end: the least of the strategies over NV-Tree'",
            "every strategy can help improve the performance over time",
            every.into_iter().fold(f64::INFINITY, f64::min),
            Expect::more(),
        ),
        Claim::new(
            "updates of 5 %, at time 3: the lesser of balanced and aggressive over conservative",
            "balanced and aggressive do that much faster than conservative",
            early(EVEN).min(early(AGGRESSIVE)),
            Expect::much_more(),
        ),
    ]
}

fn moving(times: &Windows) -> Vec<Claim> {
    let over =
        |time: usize, this: usize, that: usize| faster(&times[time][this], &times[time][that]);
    let mops = |time: usize, tree: usize| mops(&times[time][tree]);
    let (last, moved) = (WINDOWS - 1, WINDOWS / 2);
    vec![
        Claim::new(
            "a zone that moves, balanced: throughput when it has moved over that before",
            "drops immediately",
            mops(moved, EVEN) / mops(moved - 1, EVEN),
            Expect::less(),
        ),
        Claim::new(
            "a zone that moves, balanced: throughput at the end over that when it has moved",
            "starts to be improved",
            mops(last, EVEN) / mops(moved, EVEN),
            Expect::more(),
        ),
        Claim::new(
            "a zone that moves, at the end: balanced over NV-Tree'",
            "improved again under all strategies",
            over(last, EVEN, 0),
            Expect::more(),
        ),
        Claim::new(
            "a zone that moves, just after: aggressive over balanced",
            "aggressive is much better right after the shift",
            over(moved + 1, AGGRESSIVE, EVEN),
            Expect::much_more(),
        ),
    ]
}

fn by_insertions(by_locality: &Windows) -> Claim {
    let gains = by_locality.iter().map(|window| adaptive_gain(window));
    Claim::new(
        "insertion, 1 KB: NV-Tree over NV-Tree', at the locality where it is most",
        3.05,
        gains.fold(0.0, f64::max),
        Expect::ratio(3.05),
    )
}

fn by_updates(by_locality: &Windows) -> Vec<Claim> {
    let last = LOCALITIES.len() - 1;
    let drop = |tree: usize| {
        let curve = curve(by_locality, tree);
        1.0 - curve[last] / curve[0]
    };
    let mut claims = vec![
        Claim::new(
            "update of 0.5 %, 1 KB: NV-Tree over NV-Tree'",
            3.2,
            adaptive_gain(&by_locality[last]),
            Expect::ratio(3.2),
        ),
        Claim::new(
            "update of all keys, 1 KB: NV-Tree over NV-Tree'",
            "adaptivity costs nothing where it does not help",
            adaptive_gain(&by_locality[0]),
            Expect::at_least(0.95),
        ),
    ];
    for (tree, paper) in [(0, 0.92), (1, 0.70), (2, 0.31), (3, 0.27)] {
        // Without adaptivity the claim is the drop itself, with it that the drop is small.
        let drops = Expect::number(paper).within(0.25);
        let expect = match tree % 2 {
            0 => drops,
            _ => drops.less_is_better(),
        };
        claims.push(Claim::new(
            format!(
                "update, {}: share of the throughput lost from 100 % to 0.5 %",
                PAIRS[tree].name
            ),
            paper,
            drop(tree),
            expect,
        ));
    }
    claims
}
