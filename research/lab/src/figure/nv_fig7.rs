//! Update, deletion and search by node size, and mixes of insertion and search (NV-Tree, figure 7).

use super::nv::{CDDS, DESIGNS, LCB, NV, SIZES, device, keys, note};
use super::tree::Design;
use super::trial::{Outcome, Trial, measure, times_over, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::{Device, Phase, Workload};
use bristlecone_designs::Fill;

pub(super) const ENTRY: Entry = Entry {
    name: "nv-fig7",
    title: "update, deletion, search, and mixes of insertion and search",
    paper: papers::NV,
    place: "sections 6.3 and 6.4.1, figure 7",
    on: &[On::Model, On::Host],
    run,
};

/// The operations on a tree that insertions made, in this order. Each has a panel.
const OPERATIONS: [(&str, Workload); 3] = [
    ("search", Workload::Lookup),
    ("update", Workload::Update),
    ("deletion", Workload::Remove),
];
const SEARCH: usize = 0;
const UPDATE: usize = 1;
const DELETION: usize = 2;
/// Share of searches in a mix, in percent.
const LOOKUPS: [u8; 5] = [10, 30, 50, 70, 90];
/// Node size of the mixes: that of the paper's headline.
const MIXED_BYTES: u32 = 4096;
const LARGEST: usize = SIZES.len() - 1;

fn operations(design: Design, device: &Device, keys: u64) -> Trial {
    // As in the paper, each kind of operation begins with empty caches.
    let rest = OPERATIONS.map(|(_, workload)| Phase {
        cold: true,
        ..Phase::of(workload, keys)
    });
    let phases: Vec<Phase> = std::iter::once(Phase::of(Workload::Insert, keys))
        .chain(rest)
        .collect();
    Trial::new(design, device, 1, Fill::FULL, &phases)
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    // The figure repeats figure 5's experiment and runs four times as many operations.
    let keys = keys(setting) / 2;
    let device = device("nvdimm", keys)?;
    let by_size = SIZES.iter().map(|size| {
        DESIGNS
            .map(|d| operations(d.sized(*size), &device, keys))
            .to_vec()
    });
    let mixes = LOOKUPS.iter().map(|lookups| {
        let phases = [Phase::of(Workload::Mixed { lookups: *lookups }, keys)];
        DESIGNS
            .map(|d| Trial::new(d.sized(MIXED_BYTES), &device, keys, Fill::USUAL, &phases))
            .to_vec()
    });
    let groups: Vec<Vec<Trial>> = by_size.chain(mixes).collect();
    let outcomes = measure(setting, "operations", &groups)?;
    let (by_size, mixes) = outcomes.split_at(SIZES.len());

    let mut findings = Findings::default();
    for number in 0..OPERATIONS.len() {
        findings.panels.push(operation_panel(number, by_size));
    }
    findings.panels.push(mix_panel(mixes));
    findings.claims = operation_claims(by_size);
    findings.claims.extend(mix_claims(mixes));
    findings.notes = vec![
        note(setting, keys),
        format!(
            "search, update and deletion of a tree that {keys} insertions made, as many of each, in this \
             order; mixes on a tree loaded to 70 %, nodes of {MIXED_BYTES} bytes"
        ),
        if setting.on == On::Host {
            "caches are as the phase before has left them".to_owned()
        } else {
            "each phase finds the caches empty".to_owned()
        },
    ];
    Ok(findings)
}

/// Returns the throughput of an operation by node size. Phase 0 is the insertions that make the
/// tree.
fn operation_panel(number: usize, by_size: &[Vec<Vec<Outcome>>]) -> Panel {
    let panel = Panel::lines(
        OPERATIONS[number].0,
        "bytes of a node",
        "10^6 operations/s",
        SIZES.map(f64::from),
    );
    with_each(panel, &DESIGNS, |design| {
        by_size
            .iter()
            .map(|d| d[design][1 + number].mops())
            .collect()
    })
}

fn operation_claims(by_size: &[Vec<Vec<Outcome>>]) -> Vec<Claim> {
    // Returns the ratio of the NV-Tree's throughput to another design's.
    let faster = |size: usize, operation: usize, other: usize| {
        let phase = |design: usize| std::slice::from_ref(&by_size[size][design][1 + operation]);
        times_over(phase(other), phase(NV)).median
    };
    let best = |operation: usize, other: usize| {
        (0..SIZES.len())
            .map(|size| faster(size, operation, other))
            .fold(0.0, f64::max)
    };
    let mut claims = Vec::new();
    for (other, paper) in [(LCB, 5.6), (CDDS, 8.5)] {
        claims.push(Claim::new(
            format!(
                "update, NV-Tree over {}, at its best node size",
                DESIGNS[other].name
            ),
            paper,
            best(UPDATE, other),
            Expect::ratio(paper),
        ));
    }
    claims.extend([
        Claim::new(
            "deletion, NV-Tree over LCB+-Tree, at 512 bytes",
            "better",
            faster(0, DELETION, LCB),
            Expect::more(),
        ),
        Claim::new(
            "deletion, NV-Tree over CDDS-Tree, at 512 bytes",
            "not as good",
            faster(0, DELETION, CDDS),
            Expect::less(),
        ),
        Claim::new(
            "deletion, NV-Tree over CDDS-Tree, at 4096 bytes",
            "comparable",
            faster(LARGEST, DELETION, CDDS),
            Expect::alike(),
        ),
    ]);
    for other in [LCB, CDDS] {
        claims.push(Claim::new(
            format!(
                "search, NV-Tree over {}, at its best node size",
                DESIGNS[other].name
            ),
            "comparable; in some cases better",
            best(SEARCH, other),
            Expect::more(),
        ));
    }
    claims
}

fn mix_panel(mixes: &[Vec<Vec<Outcome>>]) -> Panel {
    let places = LOOKUPS.iter().map(|lookups| f64::from(100 - lookups));
    let panel = Panel::lines("mixes", "insertions, percent", "ns an operation", places);
    let ns = |design: usize| mixes.iter().map(|mix| mix[design][0].ns()).collect();
    with_each(panel, &DESIGNS, ns)
}

fn mix_claims(mixes: &[Vec<Vec<Outcome>>]) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (other, paper) in [(LCB, 6.6), (CDDS, 10.0)] {
        let ratio = |mix: &Vec<Vec<Outcome>>| times_over(&mix[other], &mix[NV]).median;
        let name = DESIGNS[other].name;
        let (most, least) = (ratio(&mixes[0]), ratio(&mixes[LOOKUPS.len() - 1]));
        claims.extend([
            Claim::new(
                format!("90 % insertions: {name} over NV-Tree"),
                paper,
                most,
                Expect::ratio(paper),
            ),
            Claim::new(
                format!("10 % insertions: {name} over NV-Tree"),
                "still better than its counterparts",
                least,
                Expect::more(),
            ),
            Claim::new(
                format!("{name}: the ratio at 90 % insertions over that at 10 %"),
                "the speedup drops as the write/read ratio decreases",
                most / least,
                Expect::more(),
            ),
        ]);
    }
    claims
}
