//! Insertion into volatile B+-trees in persistent memory: what group flushing gains, by threads
//! (UCSC-CRSS-20-01, section 6.2, figure 14).

use super::lb_insertion::device;
use super::tree::{BTREE, BTREE_GF, BTREE_GF_LOAD, Design, UNSORTED_LEAF};
use super::trial::{Outcome, Trial, measure, with_each};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::{ModelReport, Phase, Workload};
use bristlecone_designs::Fill;

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig14",
    title: "group flushing: insertion throughput and latency, by threads",
    paper: papers::GAP,
    place: "section 6.2, figure 14",
    on: &[On::Model],
    run,
};

const DESIGNS: [Design; 4] = [BTREE, BTREE_GF, BTREE_GF_LOAD, UNSORTED_LEAF];
/// Of [`DESIGNS`].
const PLAIN: usize = 0;
const GROUPED: usize = 1;
const SWITCHED: usize = 2;
const UNSORTED: usize = 3;
const BYTES: u32 = 512;
const THREADS: [usize; 5] = [1, 8, 16, 32, 48];
/// Of [`THREADS`].
const ONE: usize = 0;
const FEW: usize = 1;
const MOST: usize = THREADS.len() - 1;

/// A number of a report.
type Of = fn(&ModelReport) -> f64;

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = setting.scale.amount(1_000_000, 20_000_000);
    let ops = setting.scale.amount(30_000, 1_000_000);
    let device = device(keys)?;
    // The first of the two lets the switch judge, and the caches fill with what is modified.
    let phases = [Phase::of(Workload::Insert, ops); 2];
    let trial = |design: Design, threads| {
        let design = design.sized(BYTES);
        Trial::new(design, &device, keys, Fill::USUAL, &phases).threaded(threads)
    };
    let groups: Vec<Vec<Trial>> = THREADS
        .iter()
        .map(|threads| DESIGNS.map(|design| trial(design, *threads)).to_vec())
        .collect();
    let outcomes = measure(setting, "inserting", &groups)?;
    let at = |threads: usize, design: usize| -> &Outcome { &outcomes[threads][design][1] };

    let mut findings = Findings::default();
    let panels: [(&str, &str, Of); 3] = [
        ("(a) throughput", "million insertions/s", |r| r.mops),
        ("(b) latency", "ns an insertion", |r| r.ns_per_op),
        ("media traffic", "bytes written an insertion", |r| {
            r.media_bytes_written_per_op
        }),
    ];
    for (title, y, of) in panels {
        let places = THREADS.iter().map(|threads| *threads as f64);
        let curve = |design: usize| -> Vec<f64> {
            let points = 0..THREADS.len();
            points.map(|t| at(t, design).counted(of)).collect()
        };
        let panel = Panel::lines(title, "threads", y, places);
        findings.panels.push(with_each(panel, &DESIGNS, curve));
    }
    let over = |threads: usize, this: usize, that: usize, of: Of| {
        at(threads, this).counted(of) / at(threads, that).counted(of)
    };
    let written = |design| at(MOST, design).counted(|r| r.media_bytes_written_per_op);
    let mops: Of = |r| r.mops;
    let ns: Of = |r| r.ns_per_op;
    let claims = [
        Claim::new(
            "48 threads: throughput, btree w GF over btree",
            1.24,
            over(MOST, GROUPED, PLAIN, mops),
            Expect::at_least(1.15),
        ),
        Claim::new(
            "1 thread: latency, btree w GF over btree",
            "higher below 16 threads",
            over(ONE, GROUPED, PLAIN, ns),
            Expect::at_least(1.0),
        )
        .note("the model counts half a nanosecond of instructions a flush"),
        Claim::new(
            "8 threads: latency, btree w GF over btree",
            "higher below 16 threads",
            over(FEW, GROUPED, PLAIN, ns),
            Expect::at_least(1.0),
        ),
        Claim::new(
            "48 threads: throughput, unsorted leaf over btree w GF",
            "slightly higher",
            over(MOST, UNSORTED, GROUPED, mops),
            Expect::at_least(1.0),
        ),
        Claim::new(
            "48 threads: bytes that the media writes for an insertion, btree less btree w GF",
            "sequentiality is preserved",
            written(PLAIN) - written(GROUPED),
            Expect::at_least(0.0),
        ),
        Claim::new(
            "1 thread: throughput, switched over btree",
            "GF only when the system load is high",
            over(ONE, SWITCHED, PLAIN, mops),
            Expect::near(1.0, 0.02),
        ),
        Claim::new(
            "48 threads: throughput, switched over btree w GF",
            "GF only when the system load is high",
            over(MOST, SWITCHED, GROUPED, mops),
            Expect::near(1.0, 0.05),
        ),
    ];
    findings.claims.extend(claims);
    findings.notes = vec![
        format!(
            "trees of {keys} random keys of 8 bytes with 8-byte values (the paper: 16 and 16), 70 % full; {ops} \
             insertions after as many; device optane, caches as small beside the tree as the paper's"
        ),
        format!("nodes of {BYTES} bytes; the switch is at 16 writing threads"),
    ];
    Ok(findings)
}
