//! btree-LS by its garbage threshold, and by the deltas in its mapping table (UCSC-CRSS-20-01,
//! section 6.3.2, figure 18).

use super::gap::{BYTES, device, few_keys, narrow_note, ops};
use super::tree::{Design, LSTREE};
use super::trial::{Trial, measure};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::{Phase, Tuning, Workload};
use bristlecone_designs::Fill;

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig18",
    title: "btree-LS: insertion and reading by garbage threshold and by deltas in the mapping table",
    paper: papers::GAP,
    place: "section 6.3.2, figure 18",
    on: &[On::Model],
    run,
};

/// Deltas whose places the mapping table holds.
const DELTAS: [u32; 5] = [1, 2, 4, 8, 16];
/// Garbage thresholds, in bytes per loaded key: with the paper's 160 million keys, 100 to 1000 MB.
const GARBAGE: [f64; 4] = [0.625, 1.5625, 3.125, 6.25];
const THREADS: usize = 16;

const fn tree(deltas: u32, garbage: Option<u64>) -> Design {
    LSTREE.sized(BYTES).tuned(Tuning::Logs {
        logs: 16,
        deltas,
        tags: false,
        garbage,
    })
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    // Even at a glance there are enough for every log to fill segments, since otherwise nothing is
    // collected.
    let (keys, ops) = (few_keys(setting).max(25_000), ops(setting));
    let device = device("optane", keys)?;
    // The first insertions rewrite most leaves, and the second ones count.
    let phases = [
        Phase::of(Workload::Insert, keys),
        Phase::of(Workload::Insert, ops),
        Phase::of(Workload::Lookup, ops),
    ];
    let trial = |design| Trial::new(design, &device, keys, Fill::USUAL, &phases).threaded(THREADS);
    let bytes = GARBAGE.map(|share| (share * keys as f64) as u64);
    let groups = [
        DELTAS.map(|deltas| trial(tree(deltas, None))).to_vec(),
        bytes.map(|bytes| trial(tree(0, Some(bytes)))).to_vec(),
    ];
    let outcomes = measure(setting, "inserting and reading", &groups)?;
    let mops = |group: usize, phase: usize| -> Vec<f64> {
        let trials = outcomes[group].iter();
        trials
            .map(|phases| phases[phase].counted(|r| r.mops))
            .collect()
    };
    let panel = |title: &str, x: &str, places: Vec<f64>, group: usize| {
        Panel::lines(title, x, "million operations/s", places)
            .with("insertion", mops(group, 1))
            .with("read", mops(group, 2))
    };
    let ends = |values: &[f64]| (values[0], values[values.len() - 1]);
    let (insertion, read) = (mops(1, 1), mops(1, 2));
    let ((low, high), (reads_low, reads_high)) = (ends(&insertion), ends(&read));
    let cached = mops(0, 2);
    Ok(Findings {
        claims: vec![
            Claim::new(
                "insertion: the lowest threshold over the highest",
                "updates degrade by up to 7 %",
                low / high,
                Expect::cost(0.93),
            ),
            Claim::new(
                "reading: the lowest threshold over the highest",
                1.20,
                reads_low / reads_high,
                Expect::ratio(1.20),
            ),
            Claim::new(
                "reading: 8 deltas in the table over 1",
                1.26,
                cached[3] / cached[0],
                Expect::ratio(1.26),
            )
            .note("a chain here is never longer than the table's room, so room for more is room for longer chains"),
            Claim::new(
                "reading: 8 deltas in the table over 4",
                "barely improves beyond 4",
                cached[3] / cached[2],
                Expect::between(0.95, 1.05),
            ),
        ],
        panels: vec![
            panel(
                "(a) deltas in the mapping table",
                "deltas",
                DELTAS.map(f64::from).to_vec(),
                0,
            ),
            panel(
                "(b) garbage threshold",
                "bytes a loaded key",
                GARBAGE.to_vec(),
                1,
            ),
        ],
        notes: vec![
            narrow_note(keys, ops),
            format!("{THREADS} threads, 16 logs; {keys} insertions before; writers collect (the paper: threads of their own)"),
        ],
    })
}
