//! `bench server`: the server under YCSB's mixes, beside Redis.

use super::drive::{Load, Slice, drive};
use crate::args::{AgainstServer, BenchServer, Mix};
use crate::client::Client;
use crate::server::Server;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::progress;
use bristlecone_command::scratch::{Purpose, Scratch};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use std::fmt;
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until it can be connected to.
const MAX_START: Duration = Duration::from_secs(20);

/// The medians of one server under so many clients.
#[derive(Clone, Debug, Default, Serialize)]
struct Figures {
    kops: f64,
    p50_us: f64,
    p99_us: f64,
    /// Share of the time that its process was at work; more than 1 with several threads.
    busy: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    mix: &'static str,
    clients: u16,
    bristlecone: Figures,
    redis: Option<Figures>,
    /// Of their kops.
    ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct Report {
    path: String,
    records: u64,
    value_bytes: u32,
    pipeline: u16,
    rounds: u16,
    /// Server and clients have a processor each.
    pinned: bool,
    rows: Vec<Row>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pinned = if self.pinned {
            "a processor each"
        } else {
            "one processor"
        };
        writeln!(
            f,
            "{}: {} records, values of {} bytes, {} commands at once, medians of {} rounds, {pinned} for server and clients",
            self.path, self.records, self.value_bytes, self.pipeline, self.rounds
        )?;
        write!(
            f,
            "{:14} {:>7} {:>9} {:>8} {:>8} {:>5}",
            "mix", "clients", "kops/s", "p50 us", "p99 us", "busy"
        )?;
        write!(
            f,
            "   {:>9} {:>8} {:>8} {:>5} {:>6}",
            "redis", "p50 us", "p99 us", "busy", "ratio"
        )?;
        let figures = |f: &mut fmt::Formatter<'_>, one: &Figures| {
            write!(
                f,
                " {:9.1} {:8.0} {:8.0} {:5.2}",
                one.kops, one.p50_us, one.p99_us, one.busy
            )
        };
        for row in &self.rows {
            write!(f, "\n{:14} {:>7}", row.mix, row.clients)?;
            figures(f, &row.bristlecone)?;
            if let (Some(redis), Some(ratio)) = (&row.redis, row.ratio) {
                write!(f, "  ")?;
                figures(f, redis)?;
                write!(f, " {ratio:6.2}")?;
            }
        }
        Ok(())
    }
}

/// Runs this thread, and what it starts, on one of the processors that it may use, if there is more
/// than one.
struct Processors(Option<[usize; 2]>);

impl Processors {
    fn new() -> Self {
        let allowed = sched_getaffinity(None).unwrap_or_default();
        let mut there = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
        Self(there.next().zip(there.next()).map(|(a, b)| [a, b]))
    }

    fn pin(&self, which: usize) -> Outcome {
        let Some(both) = self.0 else { return Ok(()) };
        let mut set = CpuSet::new();
        set.set(both[which]);
        sched_setaffinity(None, &set)
            .map_err(|e| Failure::new(format!("choosing a processor failed: {e}")))
    }

    fn for_servers(&self) -> Outcome {
        self.pin(0)
    }

    fn for_clients(&self) -> Outcome {
        self.pin(1)
    }
}

/// Redis, killed at the end.
struct Redis {
    child: Child,
    address: String,
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Redis {
    fn start(dir: &Path) -> Outcome<Self> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port
            .map_err(|e| Failure::new(format!("finding a free port failed: {e}")))?
            .port();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "yes"])
            .args(["--appendfsync", "always"])
            // It is not to rewrite its file while it is measured.
            .args(["--auto-aof-rewrite-percentage", "0"])
            .arg("--dir")
            .arg(dir)
            .stdout(Stdio::null())
            .spawn()
            .map_err(|e| match e.kind() {
                io::ErrorKind::NotFound => Failure::new(
                    "redis-server is not installed (Debian: redis-server); without --against only this server is measured",
                ),
                _ => Failure::new(format!("starting redis-server failed: {e}")),
            })?;
        let redis = Self {
            child,
            address: format!("127.0.0.1:{port}"),
        };
        let waiting = Instant::now();
        while let Err(e) = Client::connect(&redis.address) {
            if waiting.elapsed() > MAX_START {
                return Err(Failure::new(format!("redis-server does not answer: {e}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(redis)
    }
}

/// A server that is measured, and what was.
struct Contender {
    address: String,
    process: u32,
    load: Load,
    slices: Vec<(Slice, f64)>,
}

impl Contender {
    fn new(address: &str, process: u32, load: Load) -> Outcome<Self> {
        Client::connect(address)
            .and_then(|mut client| load.fill(&mut client))
            .map_err(|e| Failure::new(format!("loading the records failed: {e}")))?;
        Ok(Self {
            address: address.to_owned(),
            process,
            load,
            slices: Vec::new(),
        })
    }

    fn measure(&mut self, clients: u16, args: &BenchServer) -> Outcome {
        let time = Duration::from_millis(args.slice_ms.into());
        let (before, start) = (worked(self.process), Instant::now());
        let slice = drive(
            &self.address,
            &mut self.load,
            (clients, args.pipeline),
            time,
        )
        .map_err(|e| Failure::new(format!("a client failed: {e}")))?;
        let busy = (worked(self.process) - before) / start.elapsed().as_secs_f64();
        self.slices.push((slice, busy));
        Ok(())
    }

    /// The medians of what was measured, which is forgotten.
    fn figures(&mut self) -> Figures {
        let slices = std::mem::take(&mut self.slices);
        let median = |of: fn(&(Slice, f64)) -> f64| {
            let mut all: Vec<f64> = slices.iter().map(of).collect();
            all.sort_unstable_by(f64::total_cmp);
            all.get(all.len() / 2).copied().unwrap_or_default()
        };
        Figures {
            kops: median(|(slice, _)| slice.kops),
            p50_us: median(|(slice, _)| slice.p50_us),
            p99_us: median(|(slice, _)| slice.p99_us),
            busy: median(|(_, busy)| *busy),
        }
    }
}

/// Seconds that a process was at work.
fn worked(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name, which is in parentheses, user's and system's time are the 12th and 13th
    // fields.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Measures.
pub fn run(args: &BenchServer) -> Outcome<Report> {
    let processors = Processors::new();
    let mixes = match args.mix.as_slice() {
        [] => &[Mix::StatusUpdate, Mix::SessionStore],
        some => some,
    };
    let slices = mixes.len() * args.clients.len() * usize::from(args.rounds);
    let bar = progress::steps("measuring", slices as u64);
    let mut rows = Vec::new();
    for mix in mixes {
        bar.set_message(format!("{}: loading", mix.name()));
        let dir = Scratch::new(&args.path, Purpose::Bench)
            .map_err(|e| Failure::io(&args.path, "making a directory in it", &e))?;
        processors.for_servers()?;
        let mut how = Vec::new();
        if let Some(medium) = args.medium {
            how.extend(["--medium", medium.name()]);
        }
        let server = Server::start(&dir.path().join("pool"), &how)?;
        let redis = match args.against {
            Some(AgainstServer::Redis) => Some(Redis::start(dir.path())?),
            None => None,
        };
        processors.for_clients()?;
        let load = || Load::new(*mix, args.records, args.value_bytes);
        let mut contenders = vec![Contender::new(server.address(), server.id(), load())?];
        if let Some(redis) = &redis {
            contenders.push(Contender::new(&redis.address, redis.child.id(), load())?);
        }
        for clients in &args.clients {
            bar.set_message(format!("{}, {clients} clients", mix.name()));
            for _ in 0..args.rounds {
                for contender in &mut contenders {
                    contender.measure(*clients, args)?;
                }
                bar.inc(1);
            }
            let mut figures = contenders.iter_mut().map(Contender::figures);
            let bristlecone = figures.next().unwrap_or_default();
            let redis = figures.next();
            rows.push(Row {
                mix: mix.name(),
                clients: *clients,
                ratio: redis.as_ref().map(|redis| bristlecone.kops / redis.kops),
                bristlecone,
                redis,
            });
        }
        server.stop()?;
    }
    bar.finish_and_clear();
    Ok(Report {
        path: args.path.display().to_string(),
        records: args.records,
        value_bytes: args.value_bytes,
        pipeline: args.pipeline,
        rounds: args.rounds,
        pinned: processors.0.is_some(),
        rows,
    })
}
