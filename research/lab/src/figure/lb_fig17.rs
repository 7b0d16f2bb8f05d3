//! Memcached over three trees, beside memcached itself (LB+-Tree, figure 17).
//!
//! The paper puts the trees in the place of memcached's hash index, with pointers to keys and
//! values as their entries. Here NV-Store is over each of the trees, behind the server of
//! `bristlecone serve`, which memcached clients speak to. An entry of these trees leads from a key,
//! which is outside the tree, to its newest record.
//!
//! Beside them run the store that `bristlecone serve` has by default, and a memcached that keeps
//! its items in memory, and one that has them in a file.

use super::served::{
    Contender, Curves, Point, Served, VALUE, failed, median_over, note, nv_store, own_store,
    points, told,
};
use super::tree::scratch;
use super::{
    Claim, Entry, Expect, FigureError, Findings, NOT_IN_THE_PAPER, On, Panel, Scale, Setting,
    papers,
};
use bristlecone_command::serving::{Clients, Load, Mix, Peer, Processors, Protocol};
use bristlecone_designs::engines::{FPTREE, WBTREE};
use bristlecone_nv_store::LbEngine;
use std::path::Path;
use std::time::Duration;

pub(super) const ENTRY: Entry = Entry {
    name: "lb-fig17",
    title: "memcached over LB+-Tree, FPTree and wB+-Tree, by clients; beside memcached",
    paper: papers::LB,
    place: "section 4.4, figure 17",
    on: &[On::Host],
    run,
};

const LB: &str = "LB+-Tree";
const WB: &str = "wB+-Tree";
const FP: &str = "FPTree";
const STORE: &str = "clustered tree";
const VOLATILE: &str = "memcached";
const IN_FILE: &str = "memcached -e";
const ALL: [&str; 6] = [LB, WB, FP, STORE, VOLATILE, IN_FILE];
const MIXES: [Mix; 2] = [Mix::Gets, Mix::Sets];
/// What the paper says of all cases together.
const PAPER: [(&str, &str, Expect); 2] = [
    (WB, "1.05-1.29x", Expect::range(1.05, 1.29).within(0.0)),
    (FP, "1.06-1.22x", Expect::range(1.06, 1.22).within(0.0)),
];
/// What this project wants of its store beside memcached.
const AIMS: [(Mix, f64); 2] = [(Mix::Gets, 1.0), (Mix::Sets, 0.9)];

/// The amounts of a run.
struct Amounts {
    records: u64,
    clients: &'static [u16],
    pipelines: &'static [u16],
    rounds: usize,
    slice: Duration,
}

impl Amounts {
    fn of(scale: Scale) -> Self {
        let glance = scale == Scale::Glance;
        Self {
            records: scale.amount(50_000, 1_000_000),
            clients: if glance {
                &[1, 4]
            } else {
                &[1, 2, 4, 8, 16, 32]
            },
            pipelines: &[1, 16],
            rounds: if glance { 1 } else { 5 },
            slice: Duration::from_millis(if glance { 20 } else { scale.pick(80, 250) }),
        }
    }
}

/// Starts a contender and loads the records.
fn contender(
    dir: &Path,
    name: &'static str,
    load: &Load,
    processors: &Processors,
) -> Result<Contender, FigureError> {
    let path = dir.join(name);
    let threads = processors.counts()[0];
    Contender::start(name, load, processors, || {
        let store = match name {
            LB => nv_store(&path, &LbEngine)?,
            WB => nv_store(&path, &WBTREE)?,
            FP => nv_store(&path, &FPTREE)?,
            STORE => own_store(&path)?,
            _ => {
                let file = (name == IN_FILE).then_some(path.as_path());
                let peer = Peer::memcached(file, threads).map_err(failed("starting memcached"))?;
                return Ok(Served::apart(peer, Protocol::Memcached, threads));
            }
        };
        Served::here(store, Protocol::Memcached, threads)
    })
}

/// Curves of one mix with so many commands at once.
struct Case {
    mix: Mix,
    pipeline: u16,
    curves: Curves,
}

impl Case {
    fn name(&self) -> String {
        format!("{}, {} at once", self.mix.name(), self.pipeline)
    }
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let amounts = Amounts::of(setting.scale);
    let processors = Processors::new();
    let cases = measured(setting, &amounts, &processors);
    // Whatever came of it, what follows may use all processors again.
    processors
        .for_all()
        .map_err(failed("using all processors"))?;
    let cases = cases?;

    let mut findings = Findings::default();
    for case in &cases {
        let panel = |title: String, y, of: fn(&Point) -> f64| {
            let numbers = amounts.clients.iter().map(|clients| f64::from(*clients));
            let panel = Panel::lines(&title, "clients", y, numbers);
            case.curves.iter().fold(panel, |panel, (name, points)| {
                panel.with(name, points.iter().map(of).collect())
            })
        };
        let throughput = panel(case.name(), "10^3 operations/s", |p| p.kops);
        let busiest = format!("{}: the busiest side", case.name());
        let busiest = panel(busiest, "share of its time", |p| p.busiest);
        findings.panels.extend([throughput, busiest]);
        findings.claims.extend(claims(case));
    }
    findings.notes = vec![
        format!(
            "{} records and those that are set, random keys of 20 bytes, values of {}; medians of {} slices of {} \
             ms, by turns; a thread for each client; files in shared memory",
            amounts.records,
            VALUE.len(),
            amounts.rounds,
            amounts.slice.as_millis()
        ),
        "the trees' leaves are as full as random insertions leave them; ratios are medians over the numbers of \
         clients; all but the two memcached wait until a set is durable"
            .to_owned(),
        note(&processors),
    ];
    Ok(findings)
}

/// Measures gets, then sets, which add records.
fn measured(
    setting: &mut Setting<'_>,
    amounts: &Amounts,
    processors: &Processors,
) -> Result<Vec<Case>, FigureError> {
    let dir = scratch()?;
    let total = (MIXES.len() * amounts.pipelines.len() * amounts.clients.len()) as u64;
    let mut done = 0;
    setting.step("loading", done, total);
    let mut contenders = ALL
        .map(|name| {
            let load = Load::new(Mix::Gets, amounts.records);
            let one = contender(dir.path(), name, &load, processors)?;
            Ok((one, MIXES.map(|mix| load.of(mix))))
        })
        .into_iter()
        .collect::<Result<Vec<_>, FigureError>>()?;
    let mut cases = Vec::new();
    for (number, mix) in MIXES.into_iter().enumerate() {
        for pipeline in amounts.pipelines {
            let mut curves: Curves = ALL.map(|name| (name, vec![])).into();
            for count in amounts.clients {
                let clients = Clients {
                    count: *count,
                    pipeline: *pipeline,
                    threads: true,
                };
                for _ in 0..amounts.rounds {
                    for (contender, loads) in &mut contenders {
                        contender.measure(&mut loads[number], clients, amounts.slice)?;
                    }
                }
                for ((contender, _), (_, points)) in contenders.iter_mut().zip(&mut curves) {
                    points.push(contender.point(clients, processors));
                }
                done += 1;
                setting.step("serving", done, total);
            }
            cases.push(Case {
                mix,
                pipeline: *pipeline,
                curves,
            });
        }
    }
    for (contender, _) in contenders {
        contender.stop()?;
    }
    Ok(cases)
}

fn claims(case: &Case) -> Vec<Claim> {
    let over = |ours, theirs| median_over(points(&case.curves, ours), points(&case.curves, theirs));
    let what = |ours, theirs| format!("{}: {ours} over {theirs}", case.name());
    let mut claims = Vec::new();
    for (other, paper, expect) in PAPER {
        claims.push(told(Claim::new(
            what(LB, other),
            paper,
            over(LB, other),
            expect,
        )));
    }
    for (mix, least) in AIMS {
        if mix == case.mix {
            claims.push(told(Claim::new(
                what(STORE, VOLATILE),
                NOT_IN_THE_PAPER,
                over(STORE, VOLATILE),
                Expect::at_least(least),
            )));
        }
    }
    claims
}
