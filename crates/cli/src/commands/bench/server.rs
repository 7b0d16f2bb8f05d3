//! `bench server`: the server under load, beside Redis or memcached.

use crate::args::{AgainstServer, BenchServer};
use crate::server::Server;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::progress;
use bristlecone_command::scratch::{Purpose, Scratch};
use bristlecone_command::serving::processors::worked;
use bristlecone_command::serving::{
    BOUND, Clients, Fsync, Load, Mix, Peer, Processors, Protocol, Slice, drive, fill,
};
use serde::Serialize;
use std::fmt;
use std::path::Path;
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
    peers: Vec<PeerFigures>,
}

#[derive(Debug, Serialize)]
struct PeerFigures {
    name: &'static str,
    #[serde(flatten)]
    figures: Figures,
    /// Bristlecone's kops over its, unless the clients were the bottleneck of one of them.
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
            "{:14} {:>7}  {:14} {:>9} {:>8} {:>8} {:>5} {:>7} {:>6}",
            "mix", "clients", "server", "kops/s", "p50 us", "p99 us", "busy", "clients", "ratio"
        )?;
        for row in &self.rows {
            let all = std::iter::once((OURS, &row.bristlecone, None)).chain(
                row.peers
                    .iter()
                    .map(|peer| (peer.name, &peer.figures, Some(peer.ratio))),
            );
            for (name, one, ratio) in all {
                write!(
                    f,
                    "\n{:14} {:>7}  {name:14} {:9.1} {:8.0} {:8.0} {:5.2} {:7.2}",
                    row.mix,
                    row.clients,
                    one.kops,
                    one.p50_us,
                    one.p99_us,
                    one.busy,
                    one.clients_busy
                )?;
                match ratio {
                    Some(Some(ratio)) => write!(f, " {ratio:6.2}")?,
                    Some(None) => write!(f, " {:>6}", "none")?,
                    None => {}
                }
            }
        }
        let mut peers = self.rows.iter().flat_map(|row| &row.peers);
        if peers.any(|peer| peer.ratio.is_none()) {
            write!(
                f,
                "\nnone: the clients were the bottleneck, so their number says nothing of the servers"
            )?;
        }
        Ok(())
    }
}

/// The name of the server that is measured.
const OURS: &str = "bristlecone";

/// A server that is measured, and what was.
struct Contender {
    name: &'static str,
    address: String,
    process: u32,
    /// How many processors it can use.
    processors: usize,
    protocol: Protocol,
    load: Load,
    slices: Vec<(Slice, f64)>,
}

impl Contender {
    /// Loads the records.
    fn load(&self, value: &[u8]) -> Outcome {
        fill(&self.address, self.protocol, &self.load, value)
            .map_err(|e| Failure::new(format!("{}: loading the records failed: {e}", self.name)))
    }

    fn measure(&mut self, clients: Clients, value: &[u8], time: Duration) -> Outcome {
        let before = worked(self.process);
        let load = &mut self.load;
        let slice = drive(&self.address, self.protocol, load, clients, value, time)
            .map_err(|e| Failure::new(format!("{}: a client failed: {e}", self.name)))?;
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

/// Starts those that are measured beside the server, with their files in `dir`.
fn peers(against: Option<AgainstServer>, dir: &Path, processors: usize) -> Outcome<Peers> {
    Ok(match against {
        None => Vec::new(),
        // It executes commands in one thread.
        Some(AgainstServer::Redis) => vec![("redis", Peer::redis(dir, Fsync::Always)?, 1)],
        Some(AgainstServer::Memcached) => {
            let file = dir.join("memcached");
            vec![
                ("memcached", Peer::memcached(None, processors)?, processors),
                (
                    "memcached -e",
                    Peer::memcached(Some(&file), processors)?,
                    processors,
                ),
            ]
        }
    })
}

/// Names, processes, and how many processors they can use.
type Peers = Vec<(&'static str, Peer, usize)>;

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
        let protocol = match args.against {
            Some(AgainstServer::Memcached) => {
                how.extend(["--memcached", "127.0.0.1:0"]);
                Protocol::Memcached
            }
            _ => Protocol::Redis,
        };
        let server = Server::start(&dir.path().join("pool"), &how)?;
        let peers = peers(args.against, dir.path(), processors.counts()[0])?;
        processors.for_clients()?;
        let ours = (OURS, server.address(), server.id(), processors.counts()[0]);
        let theirs = (peers.iter())
            .map(|(name, peer, processors)| (*name, peer.address(), peer.id(), *processors));
        let mut contenders: Vec<_> = std::iter::once(ours)
            .chain(theirs)
            .map(|(name, address, process, processors)| Contender {
                name,
                address: address.to_owned(),
                process,
                processors,
                protocol,
                load: Load::new(*mix, args.records),
                slices: Vec::new(),
            })
            .collect();
        for contender in &contenders {
            contender.load(&value)?;
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
            let mut measured = contenders.iter_mut().map(|one| {
                let figures = one.figures(used);
                let judged = !figures.bound_by_clients(one.processors);
                (one.name, figures, judged)
            });
            let (_, bristlecone, judged) = measured.next().unwrap_or_default();
            let peers = measured
                .map(|(name, figures, other)| PeerFigures {
                    name,
                    ratio: (judged && other).then(|| bristlecone.kops / figures.kops),
                    figures,
                })
                .collect();
            rows.push(Row {
                mix: mix.name(),
                clients: *count,
                bristlecone,
                peers,
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
