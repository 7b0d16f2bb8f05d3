//! BzTree and Bw-Tree under mixes of reads and upserts: random keys, skewed and ascending ones,
//! scans, and the cost of persistence (BzTree, figures 4, 5 and 7, and 6 on the host).

use super::bz::{
    BALANCED, BWTREE, BZTREE, Contender, DURABLE, Load, Mix, READ_HEAVY, READ_MOSTLY, READ_ONLY,
    Reads, Spread, compete, panel, threads,
};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Setting, papers};

macro_rules! entry {
    ($name:literal, $title:literal, $place:literal, $run:ident) => {
        Entry {
            name: $name,
            title: $title,
            paper: papers::BZ,
            place: $place,
            on: &[On::Host],
            run: $run,
        }
    };
}

pub(super) const FIG4: Entry = entry!(
    "bz-fig4",
    "random keys: throughput of four mixes",
    "section 7.3, figure 4",
    random
);
pub(super) const FIG5: Entry = entry!(
    "bz-fig5",
    "skewed and ascending keys: throughput",
    "section 7.3, figure 5",
    skewed
);
pub(super) const FIG7: Entry = entry!(
    "bz-fig7",
    "scans of up to 10 records in mixes",
    "section 7.5, figure 7",
    scans
);

/// One diagram: a mix, the choice of keys, the kind of read, and the paper's ratio at most threads,
/// if it gives one.
struct Diagram {
    mix: Mix,
    spread: Spread,
    reads: Reads,
    paper: Option<(f64, Expect)>,
}

/// Runs diagrams, and adds the claims that the first contender is `paper` times as fast as the
/// second.
fn diagrams(
    setting: &mut Setting<'_>,
    contenders: &[Contender; 2],
    diagrams: &[Diagram],
    note: &str,
) -> Result<Findings, FigureError> {
    // The claims concern 10 million records. The smaller scales use the paper's default.
    let keys = setting.scale.amount(1_000_000, 10_000_000);
    let ops = setting.scale.amount(100_000, 1_000_000);
    let threads = threads();
    let loads: Vec<Load> = diagrams
        .iter()
        .flat_map(|diagram| {
            threads.iter().map(|threads| Load {
                mix: diagram.mix,
                spread: diagram.spread,
                reads: diagram.reads,
                threads: *threads,
            })
        })
        .collect();
    let rates = compete(setting, contenders, &loads, keys, ops)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = threads.iter().position(|n| *n == cores).unwrap_or_default();
    let mut findings = Findings::default();
    for (diagram, rates) in diagrams.iter().zip(rates.chunks(threads.len())) {
        let reads = if diagram.reads == Reads::Scans {
            ", reads are scans"
        } else {
            ""
        };
        let keys = match diagram.spread {
            Spread::Uniform => "random keys",
            Spread::Zipfian => "Zipfian keys",
            Spread::Monotonic => "ascending keys",
            Spread::Growing => "random keys, written ones new",
        };
        let title = format!("{}, {keys}{reads}", diagram.mix.name);
        findings
            .panels
            .push(panel(&title, contenders, &threads, rates));
        let (ratio, spread) = rates[most].over(0, 1);
        let what = format!(
            "{title}: {} over {}",
            contenders[0].name, contenders[1].name
        );
        if let Some((paper, expect)) = diagram.paper {
            let claim = Claim::new(what, paper, ratio, expect).note(spread);
            findings.claims.push(claim);
        } else {
            findings.notes.push(format!(
                "{what}: {ratio:.3}, {spread}; the paper gives no number"
            ));
        }
    }
    findings.notes.push(format!(
        "{keys} records of 8-byte keys and values, loaded in bulk to 70 %; claims at {cores} threads, as many as this \
         machine has processors (the paper: 48); {note}"
    ));
    Ok(findings)
}

const PEERS: [Contender; 2] = [BZTREE, BWTREE];

/// Returns the paper's ratio.
fn times(paper: f64) -> Option<(f64, Expect)> {
    Some((paper, Expect::ratio(paper)))
}

fn random(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let of = |mix, paper| Diagram {
        mix,
        spread: Spread::Uniform,
        reads: Reads::Lookups,
        paper,
    };
    let all = [
        of(READ_ONLY, times(1.28)),
        of(READ_MOSTLY, None),
        of(READ_HEAVY, times(1.7)),
        of(BALANCED, times(2.4)),
    ];
    diagrams(setting, &PEERS, &all, "both in DRAM")
}

fn skewed(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let of = |mix, spread, paper| Diagram {
        mix,
        spread,
        reads: Reads::Lookups,
        paper,
    };
    let all = [
        of(READ_ONLY, Spread::Zipfian, times(1.33)),
        of(BALANCED, Spread::Zipfian, times(4.3)),
        of(READ_ONLY, Spread::Monotonic, None),
        of(BALANCED, Spread::Monotonic, times(34.0 / 21.0)),
    ];
    diagrams(
        setting,
        &PEERS,
        &all,
        "both in DRAM; with ascending keys each thread writes behind the last key and reads what it wrote last, or, \
         where nothing is written, one key after the other",
    )
}

fn scans(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let of = |mix, paper| Diagram {
        mix,
        spread: Spread::Uniform,
        reads: Reads::Scans,
        paper,
    };
    let all = [of(READ_MOSTLY, times(1.8)), of(BALANCED, times(2.7))];
    diagrams(setting, &PEERS, &all, "both in DRAM")
}

/// Figure 6, on this machine.
pub(super) fn durable(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let of = |mix, paper| Diagram {
        mix,
        spread: Spread::Uniform,
        reads: Reads::Lookups,
        paper,
    };
    // The paper has 5 % and 12 % less.
    let costs = |paper| Some((paper, Expect::cost(paper)));
    let all = [
        of(READ_ONLY, None),
        of(READ_MOSTLY, costs(0.95)),
        of(READ_HEAVY, None),
        of(BALANCED, costs(0.88)),
    ];
    diagrams(
        setting,
        &[DURABLE, BZTREE],
        &all,
        "the durable one in shared memory, with this machine's flushes and fences (`bench limits` says what they cost); \
         the paper's machine had NVDIMMs",
    )
}
