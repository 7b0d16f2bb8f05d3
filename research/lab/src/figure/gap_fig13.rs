//! Interleaved lookups: multi-GET throughput by batch size and node size (UCSC-CRSS-20-01, section
//! 6.1, figure 13).

use super::lb_insertion::shrunk;
use super::tree::{BTREE, scratch, sorted_keys};
use super::trial::{SEED, Trial, measure};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::limits::median;
use crate::model::{Phase, Workload};
use crate::workload::Random;
use bristlecone_designs::Fill;
use std::time::Instant;

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig13",
    title: "interleaved lookups: multi-GET throughput, by batch size and node size",
    paper: papers::GAP,
    place: "section 6.1, figure 13",
    on: &[On::Model, On::Host],
    run,
};

const SIZES: [u32; 4] = [128, 256, 512, 1024];
const BATCHES: [usize; 5] = [1, 2, 4, 8, 16];
/// Turns of each batch size on the host.
const TURNS: usize = 15;

/// Million lookups a second, by node size and batch size.
type Rates = Vec<Vec<f64>>;

/// Returns the ratio to single lookups.
fn gain(rates: &Rates, size: u32, batch: usize) -> f64 {
    let (s, b) = (
        SIZES.iter().position(|s| *s == size),
        BATCHES.iter().position(|b| *b == batch),
    );
    match (s, b) {
        (Some(s), Some(b)) => rates[s][b] / rates[s][0],
        _ => f64::NAN,
    }
}

fn panel(title: &str, rates: &Rates) -> Panel {
    let places = BATCHES.iter().map(|batch| *batch as f64);
    let panel = Panel::lines(title, "keys in a batch", "million lookups/s", places);
    let each = SIZES.iter().zip(rates);
    each.fold(panel, |panel, (size, rates)| {
        panel.with(&format!("nodes of {size} bytes"), rates.clone())
    })
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    match setting.on {
        On::Host => on_host(setting),
        _ => on_model(setting),
    }
}

fn on_model(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = setting.scale.amount(1_000_000, 20_000_000);
    let ops = setting.scale.amount(20_000, 200_000);
    let phases: Vec<Phase> = BATCHES
        .iter()
        .map(|batch| Phase::of(Workload::Lookup, ops).batched(*batch))
        .collect();
    let groups = ["dram", "optane"]
        .into_iter()
        .map(|name| {
            let device = shrunk(name, keys)?;
            let trial = |size| Trial::new(BTREE.sized(size), &device, keys, Fill::USUAL, &phases);
            Ok(SIZES.map(trial).to_vec())
        })
        .collect::<Result<Vec<_>, FigureError>>()?;
    let outcomes = measure(setting, "looking up", &groups)?;
    let rates: Vec<Rates> = outcomes
        .iter()
        .map(|sizes| {
            let rates = |phases: &Vec<super::trial::Outcome>| {
                phases
                    .iter()
                    .map(|phase| phase.counted(|r| r.mops))
                    .collect()
            };
            sizes.iter().map(rates).collect()
        })
        .collect();
    let (dram, pm) = (&rates[0], &rates[1]);
    let claims = vec![
        Claim::new(
            "DRAM, 256-byte nodes: batches of 4 over single lookups",
            2.1,
            gain(dram, 256, 4),
            Expect::ratio(2.1),
        ),
        Claim::new(
            "DRAM: gain of batches of 4, nodes of 256 bytes over 1024",
            2.1 / 1.2,
            gain(dram, 256, 4) / gain(dram, 1024, 4),
            Expect::ratio(2.1 / 1.2),
        ),
        Claim::new(
            "PM, 128-byte nodes: largest batches over single lookups",
            3.4,
            gain(pm, 128, 16),
            Expect::ratio(3.4),
        ),
        Claim::new(
            "DRAM, 128-byte nodes: largest batches over single lookups",
            2.5,
            gain(dram, 128, 16),
            Expect::ratio(2.5),
        ),
        Claim::new(
            "128-byte nodes: gain in PM over gain in DRAM",
            3.4 / 2.5,
            gain(pm, 128, 16) / gain(dram, 128, 16),
            Expect::ratio(3.4 / 2.5),
        ),
    ];
    Ok(Findings {
        claims,
        panels: vec![panel("DRAM", dram), panel("PM", pm)],
        notes: vec![format!(
            "btree of {keys} random keys of 8 bytes with 8-byte values (the paper: 16 and 16), 1 thread; devices dram \
             and optane, caches as small beside the tree as the paper's"
        )],
    })
}

fn on_host(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = setting.scale.amount(4_000_000, 10_000_000);
    let ops = setting.scale.amount(64_000, 320_000) as usize;
    let sorted = sorted_keys(SEED, keys);
    let total = (SIZES.len() * TURNS) as u64;
    let mut rates = Rates::new();
    let mut ratios = Vec::new();
    for (number, size) in SIZES.iter().enumerate() {
        let dir = scratch()?;
        let tree = BTREE
            .sized(*size)
            .load(&dir.path().join("btree"), &sorted, Fill::USUAL)?;
        let mut random = Random::new(SEED);
        let mut samples = vec![Vec::new(); BATCHES.len()];
        for turn in 0..TURNS {
            for place in 0..BATCHES.len() {
                let which = (turn + place) % BATCHES.len();
                let wanted: Vec<u64> = (0..ops)
                    .map(|_| sorted[random.below(keys) as usize])
                    .collect();
                let started = Instant::now();
                for keys in wanted.chunks(BATCHES[which]) {
                    match keys {
                        [key] => tree.execute(crate::model::Op::Lookup { key: *key })?,
                        keys => tree.multi_get(keys)?,
                    }
                }
                samples[which].push(ops as f64 * 1e3 / started.elapsed().as_nanos() as f64);
            }
            setting.step("looking up", (number * TURNS + turn + 1) as u64, total);
        }
        let over_single = |of: &Vec<f64>| {
            let ratios = of.iter().zip(&samples[0]).map(|(this, one)| this / one);
            median(ratios.collect())
        };
        ratios.push(samples.iter().map(over_single).collect::<Vec<f64>>());
        rates.push(samples.iter().map(|s| median(s.clone())).collect());
    }
    let claims = vec![
        Claim::new(
            "256-byte nodes: batches of 4 over single lookups",
            2.1,
            gain(&ratios, 256, 4),
            Expect::ratio(2.1),
        ),
        Claim::new(
            "gain of batches of 4, nodes of 256 bytes over 1024",
            2.1 / 1.2,
            gain(&ratios, 256, 4) / gain(&ratios, 1024, 4),
            Expect::ratio(2.1 / 1.2),
        ),
    ];
    Ok(Findings {
        claims,
        panels: vec![panel("this machine's memory", &rates)],
        notes: vec![format!(
            "btree of {keys} random keys of 8 bytes with 8-byte values (the paper: 16 and 16), 1 thread; medians of \
             {TURNS} turns, gains turn by turn"
        )],
    })
}
