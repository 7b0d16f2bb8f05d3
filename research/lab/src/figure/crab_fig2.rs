//! The motivation of the Crab-tree: shifting 63 pairs in a node of 2 KB, volatile, flushed, with
//! fences between stores, and by copying; flushing line by line and in a batch; linear and binary
//! search (Crab-tree, figure 2).
//!
//! The model gets the steps of each as the paper describes them. The board's constants come from
//! this very figure, so for the board the figure only shows that the mechanism reproduces them. The
//! other processor is the model's default core, with `clflush` and that machine's cache.

use super::crab::board;
use super::tree::{BTREE, Design};
use super::trial::{Outcome, Outcomes, Trial, measure};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::{Device, Phase, Step, Tuning, Workload, repeated};
use bristlecone_designs::Fill;

pub(super) const ENTRY: Entry = Entry {
    name: "crab-fig2",
    title: "cost of flushes and fences, batched flush, linear and binary search",
    paper: papers::CRAB,
    place: "section 3, figure 2",
    on: &[On::Model],
    run,
};

/// Shifted pairs, and pairs in a line.
const PAIRS: u64 = 63;
const PER_LINE: u64 = 4;
/// Lines of a node, and nodes that are allocated by turns.
const NODE: u64 = 32;
const NODES: u64 = 512;
/// The line of the word that leads to the node.
const PARENT: u64 = NODE * (NODES + 1);

/// The way in which an insertion persists its shifts.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Volatile,
    Flush,
    FlushNonTso,
    FlushNew,
}

const WAYS: [(&str, Way); 4] = [
    ("Volatile", Way::Volatile),
    ("FLUSH", Way::Flush),
    ("FLUSH+Non_TSO", Way::FlushNonTso),
    ("Flush_new", Way::FlushNew),
];
const VOLATILE: usize = 0;
const FLUSH: usize = 1;
const NON_TSO: usize = 2;
const NEW: usize = 3;

/// Adds the steps of insertion number `i`, of a new smallest key.
fn insertion(way: Way, i: u64, steps: &mut Vec<Step>) {
    let line = |pair: u64| pair / PER_LINE;
    if way == Way::FlushNew {
        let new = NODE * (1 + i % NODES);
        for pair in 0..PAIRS {
            steps.push(Step::Load {
                line: line(pair),
                words: 2,
            });
            steps.push(Step::Store {
                line: new + line(pair + 1),
                words: 2,
            });
        }
        steps.extend((0..=line(PAIRS)).map(|line| Step::Flush { line: new + line }));
        steps.push(Step::Fence);
        steps.push(Step::Store {
            line: PARENT,
            words: 1,
        });
        steps.extend([Step::Flush { line: PARENT }, Step::Fence]);
        return;
    }
    for pair in (0..PAIRS).rev() {
        let to = line(pair + 1);
        steps.push(Step::Load {
            line: line(pair),
            words: 2,
        });
        for _ in 0..2 {
            steps.push(Step::Store { line: to, words: 1 });
            if way == Way::FlushNonTso {
                steps.push(Step::StoreFence);
            }
        }
        if way != Way::Volatile && (to != line(pair) || pair == 0) {
            steps.extend([Step::Flush { line: to }, Step::Fence]);
        }
    }
}

/// Returns the nanoseconds of an insertion in each way.
fn insertions(device: &Device, times: u64) -> Vec<f64> {
    let each = WAYS
        .iter()
        .map(|(_, way)| repeated(device, times, |i, steps| insertion(*way, i, steps)));
    each.collect()
}

/// Lines that are flushed together. They are cached.
const BATCH: u64 = 64;

/// Returns the nanoseconds to write and flush a line, one by one and in a batch.
fn flushes(device: &Device, batches: u64) -> [f64; 2] {
    [false, true].map(|batched| {
        let ns = repeated(device, batches, |_, steps| {
            steps.extend((0..BATCH).map(|line| Step::Store { line, words: 1 }));
            for line in 0..BATCH {
                steps.push(Step::Flush { line });
                if !batched || line + 1 == BATCH {
                    steps.push(Step::Fence);
                }
            }
        });
        ns / BATCH as f64
    })
}

const LINEAR: Design = BTREE.named("linear").tuned(Tuning::Linear);
const BINARY: Design = BTREE.named("binary");
const SIZES: [u32; 5] = [512, 1024, 2048, 4096, 8192];

/// Nanoseconds on the two machines, by machine.
struct Measured {
    /// Nanoseconds of an insertion, by [`WAYS`].
    insertions: [Vec<f64>; 2],
    /// Nanoseconds of a flushed line, one by one and in a batch.
    lines: [[f64; 2]; 2],
    /// Lookups, by machine and node size, then tree and phase.
    search: Outcomes,
}

const MACHINES: [&str; 2] = ["x86", "ARM"];
const X86: usize = 0;
const ARM: usize = 1;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let times = setting.scale.amount(10_000, 10_000);
    let keys = setting.scale.amount(100_000, 1_000_000);
    let ops = keys / 2;
    let arm = board(keys)?;
    let x86 = Device::load("nvdimm")?.with_core(|core| {
        core.l3_bytes = 8 << 20;
        core.serial_flush = true;
    })?;
    // For the search, the caches have the same share of the tree as the machine's of a million
    // keys.
    let small = x86.with_core(|core| {
        core.l1_bytes = 8 << 10;
        core.l2_bytes = 8 << 10;
        core.l3_bytes = ((8 << 20) * keys / 1_000_000).next_power_of_two();
    })?;
    let groups: Vec<_> = [&small, &arm]
        .into_iter()
        .flat_map(|device| searches(device, keys, ops))
        .collect();
    let measured = Measured {
        insertions: [&x86, &arm].map(|device| insertions(device, times)),
        lines: [&x86, &arm].map(|device| flushes(device, times / 10)),
        search: measure(setting, "searching", &groups)?,
    };
    Ok(Findings {
        panels: measured.panels(),
        claims: measured.claims(),
        notes: vec![
            format!("{times} insertions; volatile trees of {keys} random keys, {ops} lookups"),
            format!("(c): batches of {BATCH} lines that the caches have; the paper's are of 512 MB"),
            "the board's constants come from this figure; the other core is the model's usual one, with clflush"
                .to_owned(),
        ],
    })
}

/// Returns the trials of lookups with linear and with binary search, by node size.
fn searches(device: &Device, keys: u64, ops: u64) -> [Vec<Trial>; SIZES.len()] {
    let phases = [Phase::of(Workload::Lookup, ops)];
    SIZES.map(|size| {
        let trial = |d: Design| Trial::new(d.sized(size), device, keys, Fill::USUAL, &phases);
        vec![trial(LINEAR), trial(BINARY)]
    })
}

impl Measured {
    fn search(&self, machine: usize) -> &[Vec<Vec<Outcome>>] {
        &self.search[machine * SIZES.len()..][..SIZES.len()]
    }

    fn panels(&self) -> Vec<Panel> {
        let [on_x86, on_arm] = self.insertions.clone();
        let [lines_x86, lines_arm] = self.lines;
        let names = WAYS.map(|(name, _)| name);
        let shifting = Panel::bars("(a), (b) inserting by shifting 63 pairs", "", "ns", names)
            .with("x86", on_x86)
            .with("ARM", on_arm);
        let manners = ["one by one", "in a batch"];
        let flushing = Panel::bars("(c) flushing, a line", "", "ns", manners)
            .with("x86", lines_x86.to_vec())
            .with("ARM", lines_arm.to_vec());
        let mut search = Panel::lines(
            "(d) search",
            "bytes of a node",
            "ns a lookup",
            SIZES.map(f64::from),
        );
        for (machine, name) in MACHINES.iter().enumerate() {
            for (tree, design) in [LINEAR, BINARY].iter().enumerate() {
                let values = self.search(machine).iter();
                let values = values.map(|trees| trees[tree][0].ns()).collect();
                search = search.with(&format!("{name}, {}", design.name), values);
            }
        }
        vec![shifting, flushing, search]
    }

    fn claims(&self) -> Vec<Claim> {
        let over = |machine: usize, this: usize, that: usize| {
            self.insertions[machine][this] / self.insertions[machine][that]
        };
        let batching = |machine: usize| self.lines[machine][0] / self.lines[machine][1];
        let worst = self
            .search(ARM)
            .iter()
            .map(|trees| trees[1][0].ns() / trees[0][0].ns())
            .fold(0.0, f64::max);
        let mut claims: Vec<Claim> = [
            ("x86: FLUSH over Volatile", 17.1, over(X86, FLUSH, VOLATILE)),
            ("ARM: FLUSH over Volatile", 5.1, over(ARM, FLUSH, VOLATILE)),
            (
                "ARM: FLUSH+Non_TSO over FLUSH",
                3.1,
                over(ARM, NON_TSO, FLUSH),
            ),
            (
                "ARM: FLUSH+Non_TSO over Flush_new",
                4.0,
                over(ARM, NON_TSO, NEW),
            ),
            ("x86: one by one over batched flush", 1.7, batching(X86)),
            ("ARM: one by one over batched flush", 3.5, batching(ARM)),
        ]
        .map(|(what, paper, measured)| Claim::new(what, paper, measured, Expect::level(paper)))
        .into();
        claims.extend([
            Claim::new(
                "x86: FLUSH over Flush_new",
                "marginally reduces the time",
                over(X86, FLUSH, NEW),
                Expect::slightly_more(),
            ),
            Claim::new(
                "ARM: binary search over linear, most of all sizes",
                "much less or comparable",
                worst,
                Expect::at_most(1.1),
            ),
        ]);
        claims
    }
}
