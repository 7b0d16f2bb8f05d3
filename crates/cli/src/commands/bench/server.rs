//! `bench server`: the server under YCSB's mixes, beside Redis.

use crate::args::{AgainstServer, BenchServer};
use crate::server::Server;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::progress;
use bristlecone_command::scratch::{Purpose, Scratch};
use bristlecone_command::serving::processors::worked;
use bristlecone_command::serving::{
    BOUND, Clients, Fsync, Load, Mix, Processors, Redis, Slice, drive, fill,
};
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// The medians of one server under so many clients.
#[derive(Clone, Debug, Default, Serialize)]
struct Figures {
    kops: f64,
    p50_us: f64,
    p99_us: f64,
    /// Share of the time that its process was at work; more than 1 with several threads.
    busy: f64,
    /// Share of the time that the clients were at work, of each of their processors.
    clients_busy: f64,
}

impl Figures {
    /// The clients were the bottleneck: faster ones would have had more of the server, which can
    /// use so many processors.
    fn bound_by_clients(&self, processors: usize) -> bool {
        self.clients_busy >= BOUND && self.busy < BOUND * processors as f64
    }
}

#[derive(Debug, Serialize)]
struct Row {
    mix: &'static str,
    clients: u16,
    bristlecone: Figures,
    redis: Option<Figures>,
    /// Of their kops, unless the clients were the bottleneck of one of them.
    ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct Report {
    path: String,
    records: u64,
    value_bytes: u32,
    pipeline: u16,
    client_threads: bool,
    rounds: u16,
    /// Server and clients have processors of their own.
    pinned: bool,
    rows: Vec<Row>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pinned = if self.pinned {
            "processors of their own"
        } else {
            "one processor"
        };
        let threads = if self.client_threads {
            "a thread for each client"
        } else {
            "one thread for all clients"
        };
        writeln!(
            f,
            "{}: {} records, values of {} bytes, {} commands at once, medians of {} rounds, {threads}, {pinned} for server and clients",
            self.path, self.records, self.value_bytes, self.pipeline, self.rounds
        )?;
        write!(
            f,
            "{:14} {:>7} {:>9} {:>8} {:>8} {:>5} {:>7}",
            "mix", "clients", "kops/s", "p50 us", "p99 us", "busy", "clients"
        )?;
        write!(
            f,
            "   {:>9} {:>8} {:>8} {:>5} {:>7} {:>6}",
            "redis", "p50 us", "p99 us", "busy", "clients", "ratio"
        )?;
        let figures = |f: &mut fmt::Formatter<'_>, one: &Figures| {
            write!(
                f,
                " {:9.1} {:8.0} {:8.0} {:5.2} {:7.2}",
                one.kops, one.p50_us, one.p99_us, one.busy, one.clients_busy
            )
        };
        for row in &self.rows {
            write!(f, "\n{:14} {:>7}", row.mix, row.clients)?;
            figures(f, &row.bristlecone)?;
            if let Some(redis) = &row.redis {
                write!(f, "  ")?;
                figures(f, redis)?;
                match row.ratio {
                    Some(ratio) => write!(f, " {ratio:6.2}")?,
                    None => write!(f, " {:>6}", "none")?,
                }
            }
        }
        if self
            .rows
            .iter()
            .any(|row| row.redis.is_some() && row.ratio.is_none())
        {
            write!(
                f,
                "\nnone: the clients were the bottleneck, so their number says nothing of the servers"
            )?;
        }
        Ok(())
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
    fn new(address: &str, process: u32, load: Load, value: &[u8]) -> Outcome<Self> {
        fill(address, load.loaded(), value)
            .map_err(|e| Failure::new(format!("loading the records failed: {e}")))?;
        Ok(Self {
            address: address.to_owned(),
            process,
            load,
            slices: Vec::new(),
        })
    }

    fn measure(&mut self, clients: Clients, value: &[u8], time: Duration) -> Outcome {
        let before = worked(self.process);
        let slice = drive(&self.address, &mut self.load, clients, value, time)
            .map_err(|e| Failure::new(format!("a client failed: {e}")))?;
        let busy = (worked(self.process) - before) / slice.seconds;
        self.slices.push((slice, busy));
        Ok(())
    }

    /// The medians of what was measured, which is forgotten. Clients have so many processors.
    fn figures(&mut self, processors: usize) -> Figures {
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
            clients_busy: median(|(slice, _)| slice.worked / slice.seconds) / processors as f64,
        }
    }
}

/// Measures.
pub fn run(args: &BenchServer) -> Outcome<Report> {
    let processors = Processors::new();
    let mixes = match args.mix.as_slice() {
        [] => &[Mix::StatusUpdate, Mix::SessionStore],
        some => some,
    };
    let value = vec![b'v'; args.value_bytes as usize];
    let time = Duration::from_millis(args.slice_ms.into());
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
            Some(AgainstServer::Redis) => Some(Redis::start(dir.path(), Fsync::Always)?),
            None => None,
        };
        processors.for_clients()?;
        let load = || Load::new(*mix, args.records);
        let mut contenders = vec![Contender::new(
            server.address(),
            server.id(),
            load(),
            &value,
        )?];
        if let Some(redis) = &redis {
            contenders.push(Contender::new(redis.address(), redis.id(), load(), &value)?);
        }
        for count in &args.clients {
            bar.set_message(format!("{}, {count} clients", mix.name()));
            let clients = Clients {
                count: *count,
                pipeline: args.pipeline,
                threads: args.client_threads,
            };
            for _ in 0..args.rounds {
                for contender in &mut contenders {
                    contender.measure(clients, &value, time)?;
                }
                bar.inc(1);
            }
            let used = if args.client_threads {
                processors.counts()[1].min((*count).into())
            } else {
                1
            };
            let mut figures = contenders.iter_mut().map(|one| one.figures(used));
            let bristlecone = figures.next().unwrap_or_default();
            let redis = figures.next();
            // Redis executes commands in one thread.
            let by_clients = |redis: &Figures| {
                redis.bound_by_clients(1) || bristlecone.bound_by_clients(processors.counts()[0])
            };
            let judged = redis.as_ref().filter(|redis| !by_clients(redis));
            rows.push(Row {
                mix: mix.name(),
                clients: *count,
                ratio: judged.map(|redis| bristlecone.kops / redis.kops),
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
        client_threads: args.client_threads,
        pinned: processors.are_split(),
        rows,
    })
}
