//! The cost of persistence for the BzTree (BzTree, figure 6): on this machine, in turns with the
//! volatile one, and on the model of an NVDIMM, with and without flushes and fences.

use super::bz::{BALANCED, Mix, READ_HEAVY, READ_MOSTLY, READ_ONLY};
use super::bz_fig4::durable;
use super::gap::device;
use super::tree::BZTREE;
use super::trial::{Outcome, Trial, measure};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::{Persistence, Phase, Workload};
use bristlecone_designs::Fill;

pub(super) const ENTRY: Entry = Entry {
    name: "bz-fig6",
    title: "the cost of persistence",
    paper: papers::BZ,
    place: "section 7.4, figure 6",
    on: &[On::Host, On::Model],
    run,
};

/// Mixes, and the paper's share of the volatile tree's throughput.
const MIXES: [(Mix, Option<f64>); 4] = [
    (READ_ONLY, None),
    (READ_MOSTLY, Some(0.95)),
    (READ_HEAVY, None),
    (BALANCED, Some(0.88)),
];
const THREADS: [usize; 3] = [1, 4, 16];

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    match setting.on {
        On::Host => durable(setting),
        _ => modelled(setting),
    }
}

/// Returns the nanoseconds of an operation of a mix, from those of lookups and of updates alone.
fn mixed(mix: Mix, phases: &[Outcome]) -> f64 {
    let reads = mix.reads as f64 / 100.0;
    reads * phases[0].ns() + (1.0 - reads) * phases[1].ns()
}

fn modelled(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = setting.scale.amount(500_000, 10_000_000);
    let ops = setting.scale.amount(20_000, 500_000);
    let device = device("nvdimm", keys)?;
    let phases = [Workload::Lookup, Workload::Update].map(|workload| Phase::of(workload, ops));
    let groups = THREADS.map(|threads| {
        [Persistence::Kept, Persistence::None]
            .map(|persistence| {
                Trial {
                    persistence,
                    ..Trial::new(BZTREE, &device, keys, Fill::USUAL, &phases)
                }
                .threaded(threads)
            })
            .to_vec()
    });
    let outcomes = measure(setting, "looking up and updating", &groups)?;
    let mut findings = Findings::default();
    for (mix, paper) in MIXES {
        let rates = |trial: usize| -> Vec<f64> {
            let trials = outcomes.iter().map(|trials| &trials[trial]);
            trials.map(|phases| 1e3 / mixed(mix, phases)).collect()
        };
        let (kept, volatile) = (rates(0), rates(1));
        // The model runs one thread, since threads share the memory's bandwidth there.
        let share = kept[0] / volatile[0];
        if let Some(paper) = paper {
            let what = format!("{}, one thread: durable over volatile", mix.name);
            findings
                .claims
                .push(Claim::new(what, paper, share, Expect::cost(paper)));
        } else {
            findings.notes.push(format!(
                "{}, one thread: durable over volatile: {share:.3}; the paper gives no number",
                mix.name
            ));
        }
        findings.panels.push(
            Panel::lines(
                mix.name,
                "threads",
                "million operations/s of a thread",
                THREADS.map(|n| n as f64),
            )
            .with("BzTree, durable", kept)
            .with("BzTree", volatile),
        );
    }
    let lines = |of: fn(&crate::model::ModelReport) -> f64| outcomes[0][0][1].counted(of);
    findings.notes.push(format!(
        "an update: {:.2} lines flushed, {:.2} fences",
        lines(|report| report.flushes_per_op),
        lines(|report| report.fences_per_op)
    ));
    findings.notes.push(format!(
        "{keys} records of 8-byte keys and values, loaded in bulk to 70 %; a mix's time is that of its lookups and updates by themselves; \
         values are numbers of 64 bits, most of which are inlined, so that an update takes two swaps; the volatile tree is the durable one \
         with its flushes and fences left out, in the same memory; caches in proportion"
    ));
    Ok(findings)
}
