//! NV-Store beside Redis under two mixes of YCSB (NV-Tree, figures 9b and 9c).
//!
//! The paper's clients call NV-Store as a library, and Redis through its socket. Here NV-Store is
//! measured both ways: called by threads, and behind the server of `bristlecone serve`, where both
//! sides pay for the socket.

use super::served::{
    Contender, Curves, Point, Served, VALUE, failed, most_over, note, nv_store, points, told,
};
use super::tree::scratch;
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Scale, Setting, papers};
use crate::LabError;
use crate::limits::median;
use bristlecone_command::serving::{Clients, Fsync, Load, Mix, Op, Peer, Processors, Protocol};
use bristlecone_designs::engines::{NVTREE, NVTREE_PLAIN};
use bristlecone_nv_store::{EngineKind, LbEngine};
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Keyspace, Store};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const FIG9B: Entry = Entry {
    name: "nv-fig9b",
    title: "NV-Store and Redis under StatusUpdate: 95 % reads of the latest records, 5 % insertions",
    paper: papers::NV,
    place: "section 6.6, figure 9b",
    on: &[On::Host],
    run: |setting| {
        let paper = Paper {
            over_redis: 4.7,
            over_plain: 1.09,
        };
        run(setting, Mix::StatusUpdate, &paper)
    },
};

pub(super) const FIG9C: Entry = Entry {
    name: "nv-fig9c",
    title: "NV-Store and Redis under SessionStore: half reads, half updates, by Zipf's law",
    paper: papers::NV,
    place: "section 6.6, figure 9c",
    on: &[On::Host],
    run: |setting| {
        let paper = Paper {
            over_redis: 7.3,
            over_plain: 1.30,
        };
        run(setting, Mix::SessionStore, &paper)
    },
};

/// The paper's numbers for a mix.
struct Paper {
    over_redis: f64,
    over_plain: f64,
}

const ADAPTIVE: &str = "NV-Store";
const PLAIN: &str = "NV-Store'";
const LB: &str = "NV-Store on LB+-Tree";
const VOLATILE: &str = "Redis, volatile";
const CONSISTENT: &str = "Redis, consistent";
const STORES: [&str; 3] = [ADAPTIVE, PLAIN, LB];

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
            slice: Duration::from_millis(if glance { 20 } else { scale.pick(80, 500) }),
        }
    }
}

/// Returns the kind of a store's index.
fn kind(name: &str) -> &'static dyn EngineKind<Auto> {
    match name {
        ADAPTIVE => &NVTREE,
        PLAIN => &NVTREE_PLAIN,
        _ => &LbEngine,
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
    Contender::start(name, load, processors, || {
        if STORES.contains(&name) {
            let store = nv_store(&path, kind(name))?;
            return Served::here(store, Protocol::Redis, processors.counts()[0]);
        }
        std::fs::create_dir(&path).map_err(|e| FigureError::write(&path, e))?;
        let fsync = match name {
            VOLATILE => Fsync::EverySecond,
            _ => Fsync::Always,
        };
        let redis = Peer::redis(&path, fsync).map_err(failed("starting redis-server"))?;
        // One thread executes all commands.
        Ok(Served::apart(redis, Protocol::Redis, 1))
    })
}

/// A store that threads call.
struct Called {
    store: Arc<Store<Auto>>,
    keyspace: Keyspace,
    load: Load,
    samples: Vec<f64>,
}

impl Called {
    fn new(dir: &Path, name: &str, mix: Mix, records: u64) -> Result<Self, FigureError> {
        let store = nv_store(&dir.join(format!("{name} called")), kind(name))?;
        let failed = |e| LabError::index("loading the records", e);
        let keyspace = store
            .keyspace("records")
            .map_err(|e| LabError::index("making a keyspace", e))?;
        let load = Load::new(mix, records);
        for record in 0..records {
            store
                .put(&keyspace, &load.key(record), &VALUE)
                .map_err(failed)?;
        }
        Ok(Self {
            store: Arc::new(store),
            keyspace,
            load,
            samples: Vec::new(),
        })
    }

    /// Has so many threads work for that long.
    fn measure(&mut self, clients: u16, time: Duration) -> Result<(), FigureError> {
        let start = Instant::now();
        let loads: Vec<Load> = (0..clients).map(|_| self.load.another()).collect();
        let (store, keyspace) = (&self.store, &self.keyspace);
        let done: Vec<Result<u64, LabError>> = std::thread::scope(|scope| {
            let work = |mut load: Load| {
                move || {
                    let mut ops = 0;
                    while ops % 16 != 0 || start.elapsed() < time {
                        call(store, keyspace, &mut load)?;
                        ops += 1;
                    }
                    Ok(ops)
                }
            };
            let threads: Vec<_> = loads
                .into_iter()
                .map(|load| scope.spawn(work(load)))
                .collect();
            let joined = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect()
        });
        let ops: u64 = done.into_iter().sum::<Result<_, _>>()?;
        self.samples
            .push(ops as f64 / start.elapsed().as_secs_f64() / 1e3);
        Ok(())
    }
}

/// Does the next operation of a mix.
fn call(store: &Store<Auto>, keyspace: &Keyspace, load: &mut Load) -> Result<(), LabError> {
    let op = load.next_op();
    let key = load.key(op.record());
    match op {
        Op::Get(_) => {
            let found = store
                .get_with(keyspace, &key, |entry| entry.value.len())
                .map_err(|e| LabError::index("reading a record", e))?;
            std::hint::black_box(found);
        }
        Op::Put(_) | Op::Add(_) => {
            store
                .put(keyspace, &key, &VALUE)
                .map_err(|e| LabError::index("writing a record", e))?;
            load.have_added(u64::from(matches!(op, Op::Add(_))));
        }
    }
    Ok(())
}

fn run(setting: &mut Setting<'_>, mix: Mix, paper: &Paper) -> Result<Findings, FigureError> {
    let amounts = Amounts::of(setting.scale);
    let processors = Processors::new();
    let served = measured(setting, mix, &amounts, &processors);
    // Whatever came of it, what follows may use all processors again.
    processors
        .for_all()
        .map_err(failed("using all processors"))?;
    let (by_pipeline, called) = served?;

    let mut findings = Findings::default();
    let numbers = || amounts.clients.iter().map(|clients| f64::from(*clients));
    for (pipeline, curves) in amounts.pipelines.iter().zip(&by_pipeline) {
        let panel = |title: &str, y, of: fn(&Point) -> f64| {
            let title = format!("{title}, {pipeline} at once");
            let panel = Panel::lines(&title, "clients", y, numbers());
            curves.iter().fold(panel, |panel, (name, points)| {
                panel.with(name, points.iter().map(of).collect())
            })
        };
        findings
            .panels
            .push(panel("behind a server", "10^3 operations/s", |p| p.kops));
        findings
            .panels
            .push(panel("the busiest side", "share of its time", |p| {
                p.busiest
            }));
    }
    let panel = Panel::lines("called", "clients", "10^3 operations/s", numbers());
    findings
        .panels
        .push(called.iter().fold(panel, |panel, (name, points)| {
            panel.with(name, points.iter().map(|p| p.kops).collect())
        }));
    findings.claims = claims(paper, &by_pipeline, &called);
    findings.notes = vec![
        format!(
            "{} records, keys of 16 bytes, values of {}; medians of {} slices of {} ms, by turns; a thread for \
             each client; files in shared memory",
            amounts.records,
            VALUE.len(),
            amounts.rounds,
            amounts.slice.as_millis()
        ),
        note(&processors),
    ];
    Ok(findings)
}

/// Measures the servers by pipeline, and what is called.
fn measured(
    setting: &mut Setting<'_>,
    mix: Mix,
    amounts: &Amounts,
    processors: &Processors,
) -> Result<(Vec<Curves>, Curves), FigureError> {
    let dir = scratch()?;
    let total = (amounts.clients.len() * (amounts.pipelines.len() + 1)) as u64;
    let mut done = 0;
    setting.step("loading", done, total);
    let mut contenders = [ADAPTIVE, PLAIN, LB, VOLATILE, CONSISTENT]
        .map(|name| {
            let load = Load::new(mix, amounts.records);
            contender(dir.path(), name, &load, processors).map(|one| (one, load))
        })
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let mut by_pipeline = Vec::new();
    for pipeline in amounts.pipelines {
        let mut curves: Curves = contenders
            .iter()
            .map(|(one, _)| (one.name, vec![]))
            .collect();
        for count in amounts.clients {
            let clients = Clients {
                count: *count,
                pipeline: *pipeline,
                threads: true,
            };
            for _ in 0..amounts.rounds {
                for (contender, load) in &mut contenders {
                    contender.measure(load, clients, amounts.slice)?;
                }
            }
            for ((contender, _), (_, points)) in contenders.iter_mut().zip(&mut curves) {
                points.push(contender.point(clients, processors));
            }
            done += 1;
            setting.step("serving", done, total);
        }
        by_pipeline.push(curves);
    }
    for (contender, _) in contenders {
        contender.stop()?;
    }

    processors
        .for_all()
        .map_err(failed("using all processors"))?;
    let mut stores = STORES
        .map(|name| Called::new(dir.path(), name, mix, amounts.records))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let mut called: Curves = STORES.map(|name| (name, vec![])).into();
    for count in amounts.clients {
        for _ in 0..amounts.rounds {
            for store in &mut stores {
                store.measure(*count, amounts.slice)?;
            }
        }
        for (store, (_, points)) in stores.iter_mut().zip(&mut called) {
            points.push(Point {
                kops: median(std::mem::take(&mut store.samples)),
                busiest: 1.0,
                bound_by_clients: false,
            });
        }
        done += 1;
        setting.step("calling", done, total);
    }
    Ok((by_pipeline, called))
}

fn claims(paper: &Paper, by_pipeline: &[Curves], called: &Curves) -> Vec<Claim> {
    let served = |ours: &str, theirs: &str| {
        let most = |curves| most_over(points(curves, ours), points(curves, theirs));
        by_pipeline.iter().map(most).fold(f64::NAN, f64::max)
    };
    let mut claims = Vec::new();
    for redis in [VOLATILE, CONSISTENT] {
        claims.push(told(Claim::new(
            format!("{ADAPTIVE} behind a server over {redis}, where it is most"),
            paper.over_redis,
            served(ADAPTIVE, redis),
            Expect::ratio(paper.over_redis),
        )));
        let ours = points(called, ADAPTIVE);
        let theirs = by_pipeline.first().map(|curves| points(curves, redis));
        claims.push(told(Claim::new(
            format!("{ADAPTIVE} called over {redis} one at once, where it is most"),
            paper.over_redis,
            most_over(ours, theirs.unwrap_or_default()),
            Expect::ratio(paper.over_redis),
        )));
    }
    claims.push(told(Claim::new(
        format!("{ADAPTIVE} over {PLAIN}, both called, where it is most"),
        paper.over_plain,
        most_over(points(called, ADAPTIVE), points(called, PLAIN)),
        Expect::ratio(paper.over_plain),
    )));
    let growth = |points: &[Point]| match points {
        [.., before, last] if !last.bound_by_clients => last.kops / before.kops,
        _ => f64::NAN,
    };
    claims.push(told(Claim::new(
        format!("{ADAPTIVE} called: throughput of 32 clients over that of 16"),
        "can still scale up with 32 clients",
        growth(points(called, ADAPTIVE)),
        Expect::at_least(1.05),
    )));
    if let Some(curves) = by_pipeline.first() {
        claims.push(told(Claim::new(
            format!("{VOLATILE}: throughput of 32 clients over that of 16"),
            "bottlenecked with about 16 clients",
            growth(points(curves, VOLATILE)),
            Expect::between(0.95, 1.05),
        )));
    }
    claims
}
