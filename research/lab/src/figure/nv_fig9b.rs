//! NV-Store beside Redis under two mixes of YCSB (NV-Tree, figures 9b and 9c).
//!
//! The paper's clients call NV-Store as a library, and Redis through its socket. Here NV-Store is
//! measured both ways: called by threads, and behind the server of `bristlecone serve`, where both
//! sides pay for the socket.
//!
//! ```text
//!   clients' processors              servers' processors
//!   a thread for each client  <--->  the server over NV-Store, in this process, or redis-server
//! ```
//!
//! Contenders take turns in short slices, and medians of the slices are compared. How long clients
//! and servers were at work is measured too. Where the clients were the bottleneck and the server
//! was not, a slice says nothing of the server, so nothing is concluded from it.

use super::tree::scratch;
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Scale, Setting, papers};
use crate::LabError;
use crate::limits::median;
use bristlecone_command::failure::Failure;
use bristlecone_command::serving::processors::worked;
use bristlecone_command::serving::{
    BOUND, Clients, Fsync, Load, Mix, Op, Processors, Redis, drive, fill,
};
use bristlecone_designs::engines::{NVTREE, NVTREE_PLAIN};
use bristlecone_nv_store::{EngineKind, LbEngine, NvStore};
use bristlecone_pmem::media::{Access, Auto, MediaOptions};
use bristlecone_pmem::{MediumKind, Pool, PoolOptions};
use bristlecone_server::Running;
use bristlecone_server::config::Settings;
use bristlecone_store::{Keyspace, Store, StoreOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const FIG9B: Entry = Entry {
    name: "nv-fig9b",
    title: "NV-Store and Redis under StatusUpdate: 95 % reads of the latest records, 5 % insertions",
    paper: papers::NV,
    place: "section 6.6, figure 9b",
    on: &[On::Host],
    run: |setting| run(setting, Mix::StatusUpdate),
};

pub(super) const FIG9C: Entry = Entry {
    name: "nv-fig9c",
    title: "NV-Store and Redis under SessionStore: half reads, half updates, by Zipf's law",
    paper: papers::NV,
    place: "section 6.6, figure 9c",
    on: &[On::Host],
    run: |setting| run(setting, Mix::SessionStore),
};

/// The paper's numbers for a mix.
struct Paper {
    over_redis: f64,
    over_plain: f64,
}

const fn paper(mix: Mix) -> Paper {
    match mix {
        Mix::StatusUpdate => Paper {
            over_redis: 4.7,
            over_plain: 1.09,
        },
        Mix::SessionStore => Paper {
            over_redis: 7.3,
            over_plain: 1.30,
        },
    }
}

const ADAPTIVE: &str = "NV-Store";
const PLAIN: &str = "NV-Store'";
const LB: &str = "NV-Store on LB+-Tree";
const VOLATILE: &str = "Redis, volatile";
const CONSISTENT: &str = "Redis, consistent";
const STORES: [&str; 3] = [ADAPTIVE, PLAIN, LB];

/// Bytes of a value.
const VALUE: [u8; 100] = [b'v'; 100];
/// Name of the store in its pool, as of a server's.
const STORE: &str = "store";

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

fn failed(doing: &'static str) -> impl Fn(Failure) -> FigureError {
    move |e| {
        let message = match e {
            Failure::Message(message) => message,
            other => format!("{other:?}"),
        };
        LabError::index(doing, message).into()
    }
}

/// Makes an NV-Store in shared memory.
fn nv_store(path: &Path, name: &str) -> Result<Store<Auto>, FigureError> {
    let kind: &dyn EngineKind<Auto> = match name {
        ADAPTIVE => &NVTREE,
        PLAIN => &NVTREE_PLAIN,
        _ => &LbEngine,
    };
    let media = MediaOptions {
        access: Access::Create,
        medium: Some(MediumKind::Mapped),
        ..MediaOptions::default()
    };
    let pool = Pool::<Auto>::create(path, &PoolOptions { media })?;
    let format = NvStore::over(&[kind]);
    Store::create_as(&pool, STORE, &StoreOptions::default(), &format)
        .map_err(|e| LabError::index("making NV-Store", e).into())
}

/// A slice of one contender.
#[derive(Clone, Copy)]
struct Sample {
    kops: f64,
    /// Processors at work, on the servers' side.
    server: f64,
    /// The same on the clients'.
    clients: f64,
}

/// The medians at one number of clients.
#[derive(Clone, Copy)]
struct Point {
    kops: f64,
    /// Share of the time that the busiest side's processors were at work.
    busiest: f64,
    /// The clients were the bottleneck.
    bound_by_clients: bool,
}

/// A server that is measured.
struct Contender {
    name: &'static str,
    server: Served,
    address: String,
    load: Load,
    samples: Vec<Sample>,
}

enum Served {
    /// In this process.
    Here(Running),
    Redis(Redis),
}

impl Contender {
    /// Starts it on the servers' processors and loads the records.
    fn start(
        dir: &Path,
        name: &'static str,
        mix: Mix,
        records: u64,
        processors: &Processors,
    ) -> Result<Self, FigureError> {
        processors
            .for_servers()
            .map_err(failed("starting a server"))?;
        let (server, address) = if STORES.contains(&name) {
            let settings = Settings {
                listen: "127.0.0.1:0".into(),
                threads: processors.counts()[0],
                ..Settings::default()
            };
            let store = nv_store(&dir.join(name), name)?;
            let running = Running::start(store, settings)
                .map_err(|e| LabError::index("starting the server", e))?;
            let address = running.address().to_string();
            (Served::Here(running), address)
        } else {
            let dir = dir.join(name);
            std::fs::create_dir(&dir).map_err(|e| FigureError::write(&dir, e))?;
            let fsync = match name {
                VOLATILE => Fsync::EverySecond,
                _ => Fsync::Always,
            };
            let redis = Redis::start(&dir, fsync).map_err(failed("starting redis-server"))?;
            let address = redis.address().to_owned();
            (Served::Redis(redis), address)
        };
        processors
            .for_clients()
            .map_err(failed("starting clients"))?;
        fill(&address, records, &VALUE).map_err(|e| LabError::index("loading the records", e))?;
        Ok(Self {
            name,
            server,
            address,
            load: Load::new(mix, records),
            samples: Vec::new(),
        })
    }

    /// Processors that it can use.
    fn processors(&self, there: &Processors) -> usize {
        match self.server {
            Served::Here(_) => there.counts()[0],
            // One thread executes all commands.
            Served::Redis(_) => 1,
        }
    }

    fn measure(&mut self, clients: Clients, time: Duration) -> Result<(), FigureError> {
        let process = match &self.server {
            Served::Here(_) => std::process::id(),
            Served::Redis(redis) => redis.id(),
        };
        let before = worked(process);
        let slice = drive(&self.address, &mut self.load, clients, &VALUE, time)
            .map_err(|e| LabError::index("working as clients", e))?;
        // The threads of the clients have ended, and no longer count.
        let server = (worked(process) - before) / slice.seconds;
        self.samples.push(Sample {
            kops: slice.kops,
            server: server.max(0.0),
            clients: slice.worked / slice.seconds,
        });
        Ok(())
    }

    /// The medians since the last time.
    fn point(&mut self, clients: Clients, there: &Processors) -> Point {
        let samples = std::mem::take(&mut self.samples);
        let of = |of: fn(&Sample) -> f64| median(samples.iter().map(of).collect());
        let client_processors = there.counts()[1].min(clients.count.into());
        let server = of(|sample| sample.server) / self.processors(there) as f64;
        let client = of(|sample| sample.clients) / client_processors as f64;
        Point {
            kops: of(|sample| sample.kops),
            busiest: server.max(client),
            bound_by_clients: client >= BOUND && server < BOUND,
        }
    }

    fn stop(self) -> Result<(), FigureError> {
        match self.server {
            Served::Here(running) => running
                .stop()
                .map_err(|e| LabError::index("stopping the server", e).into()),
            Served::Redis(_) => Ok(()),
        }
    }
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
        let store = nv_store(&dir.join(format!("{name} called")), name)?;
        let failed = |e| LabError::index("loading the records", e);
        let keyspace = store
            .keyspace("records")
            .map_err(|e| LabError::index("making a keyspace", e))?;
        for record in 0..records {
            let key = Op::Put(record).key();
            store.put(&keyspace, &key, &VALUE).map_err(failed)?;
        }
        Ok(Self {
            store: Arc::new(store),
            keyspace,
            load: Load::new(mix, records),
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
    let key = op.key();
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

/// The points of each contender, by number of clients.
type Curves = Vec<(&'static str, Vec<Point>)>;

fn run(setting: &mut Setting<'_>, mix: Mix) -> Result<Findings, FigureError> {
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
    findings.claims = claims(mix, &by_pipeline, &called);
    let [servers, clients] = processors.counts();
    let split = if processors.are_split() {
        format!("servers have {servers} processors, clients {clients}")
    } else {
        "servers and clients share a processor".to_owned()
    };
    findings.notes = vec![
        format!(
            "{} records, keys of 16 bytes, values of {}; medians of {} slices of {} ms, by turns; a thread for \
             each client; files in shared memory",
            amounts.records,
            VALUE.len(),
            amounts.rounds,
            amounts.slice.as_millis()
        ),
        format!(
            "{split}; nothing is concluded where the clients were at work for {:.0} % of their time and the \
             server was not",
            BOUND * 100.0
        ),
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
        .map(|name| Contender::start(dir.path(), name, mix, amounts.records, processors))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let mut by_pipeline = Vec::new();
    for pipeline in amounts.pipelines {
        let mut curves: Curves = contenders.iter().map(|one| (one.name, vec![])).collect();
        for count in amounts.clients {
            let clients = Clients {
                count: *count,
                pipeline: *pipeline,
                threads: true,
            };
            for _ in 0..amounts.rounds {
                for contender in &mut contenders {
                    contender.measure(clients, amounts.slice)?;
                }
            }
            for (contender, (_, points)) in contenders.iter_mut().zip(&mut curves) {
                points.push(contender.point(clients, processors));
            }
            done += 1;
            setting.step("serving", done, total);
        }
        by_pipeline.push(curves);
    }
    for contender in contenders {
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

/// Returns the points of a contender.
fn points<'a>(curves: &'a Curves, name: &str) -> &'a [Point] {
    let found = curves.iter().find(|(other, _)| *other == name);
    found.map_or(&[], |(_, points)| points)
}

/// Returns the most that one contender has of another's throughput at the same number of clients,
/// where it can be told; NaN if it can be told nowhere.
fn most_over(ours: &[Point], theirs: &[Point]) -> f64 {
    let told = ours
        .iter()
        .zip(theirs)
        .filter(|(this, that)| !this.bound_by_clients && !that.bound_by_clients);
    told.map(|(this, that)| this.kops / that.kops)
        .fold(f64::NAN, f64::max)
}

/// A claim, with a note if nothing could be told.
fn told(claim: Claim) -> Claim {
    if claim.measured.is_nan() {
        return claim.note("no conclusion: the clients were the bottleneck");
    }
    claim
}

fn claims(mix: Mix, by_pipeline: &[Curves], called: &Curves) -> Vec<Claim> {
    let paper = paper(mix);
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
            Expect::about_at_least(paper.over_redis),
        )));
        let ours = points(called, ADAPTIVE);
        let theirs = by_pipeline.first().map(|curves| points(curves, redis));
        claims.push(told(Claim::new(
            format!("{ADAPTIVE} called over {redis} one at once, where it is most"),
            paper.over_redis,
            most_over(ours, theirs.unwrap_or_default()),
            Expect::about_at_least(paper.over_redis),
        )));
    }
    claims.push(told(Claim::new(
        format!("{ADAPTIVE} over {PLAIN}, both called, where it is most"),
        paper.over_plain,
        most_over(points(called, ADAPTIVE), points(called, PLAIN)),
        Expect::near(paper.over_plain, 0.07),
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
            Expect::near(1.0, 0.05),
        )));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(kops: f64, bound_by_clients: bool) -> Point {
        Point {
            kops,
            busiest: 1.0,
            bound_by_clients,
        }
    }

    #[test]
    fn nothing_is_concluded_where_the_clients_were_the_bottleneck() {
        let ours = [point(10.0, false), point(90.0, true), point(30.0, false)];
        let theirs = [point(10.0, false), point(10.0, false), point(10.0, true)];
        assert_eq!(most_over(&ours, &theirs), 1.0);
        assert!(most_over(&ours[1..], &theirs[1..]).is_nan());
        let claim = told(Claim::new("x", 2.0, f64::NAN, Expect::at_least(0.0)));
        assert!(!claim.holds && claim.note.starts_with("no conclusion"));
    }
}
