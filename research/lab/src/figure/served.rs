//! Servers that a figure measures: slices of clients' work by turns, and what these tell.
//!
//! ```text
//!   clients' processors              servers' processors
//!   a thread for each client  <--->  servers in this process, redis-server, memcached
//! ```
//!
//! Contenders take turns in short slices, and medians of the slices are compared. How long clients
//! and servers were at work is measured too. Where the clients were the bottleneck and the server
//! was not, a slice says nothing of the server, so nothing is concluded from it.

use super::{Claim, FigureError};
use crate::LabError;
use crate::limits::median;
use bristlecone_command::failure::Failure;
use bristlecone_command::serving::processors::worked;
use bristlecone_command::serving::{BOUND, Clients, Load, Peer, Processors, Protocol, drive, fill};
use bristlecone_nv_store::{EngineKind, NvStore};
use bristlecone_pmem::media::{Access, Auto, MediaOptions};
use bristlecone_pmem::{MediumKind, Pool, PoolOptions};
use bristlecone_server::Running;
use bristlecone_server::config::Settings;
use bristlecone_store::{Store, StoreOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a value.
pub(super) const VALUE: [u8; 100] = [b'v'; 100];
/// Name of the store in its pool, as of a server's.
const STORE: &str = "store";

pub(super) fn failed(doing: &'static str) -> impl Fn(Failure) -> FigureError {
    move |e| {
        let message = match e {
            Failure::Message(message) => message,
            other => format!("{other:?}"),
        };
        LabError::index(doing, message).into()
    }
}

/// Makes a pool in shared memory.
fn pool(path: &Path) -> Result<Arc<Pool<Auto>>, FigureError> {
    let media = MediaOptions {
        access: Access::Create,
        medium: Some(MediumKind::Mapped),
        ..MediaOptions::default()
    };
    Ok(Pool::<Auto>::create(path, &PoolOptions { media })?)
}

/// Makes an NV-Store over engines of that kind in shared memory.
pub(super) fn nv_store(
    path: &Path,
    kind: &dyn EngineKind<Auto>,
) -> Result<Store<Auto>, FigureError> {
    let format = NvStore::over(&[kind]);
    Store::create_as(&pool(path)?, STORE, &StoreOptions::default(), &format)
        .map_err(|e| LabError::index("making NV-Store", e).into())
}

/// Makes the product's store in shared memory.
pub(super) fn own_store(path: &Path) -> Result<Store<Auto>, FigureError> {
    Store::create(&pool(path)?, STORE, &StoreOptions::default())
        .map_err(|e| LabError::index("making a store", e).into())
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
pub(super) struct Point {
    pub kops: f64,
    /// Share of the time that the busiest side's processors were at work.
    pub busiest: f64,
    /// The clients were the bottleneck.
    pub bound_by_clients: bool,
}

/// The points of each contender, by number of clients.
pub(super) type Curves = Vec<(&'static str, Vec<Point>)>;

/// A server that runs.
pub(super) struct Served {
    address: String,
    protocol: Protocol,
    /// How many processors it can use.
    processors: usize,
    runs: Runs,
}

enum Runs {
    /// In this process.
    Here(Running),
    Apart(Peer),
}

impl Served {
    /// Starts a server over a store in this process, with so many threads.
    pub fn here(
        store: Store<Auto>,
        protocol: Protocol,
        threads: usize,
    ) -> Result<Self, FigureError> {
        let any = || "127.0.0.1:0".to_owned();
        let settings = Settings {
            listen: any(),
            memcached: (protocol == Protocol::Memcached).then(any),
            threads,
            ..Settings::default()
        };
        let running = Running::start(store, settings)
            .map_err(|e| LabError::index("starting the server", e))?;
        let address = match protocol {
            Protocol::Redis => Some(running.address()),
            Protocol::Memcached => running.memcached_address(),
        };
        let address = address.ok_or_else(|| {
            LabError::index(
                "starting the server",
                "it does not listen to memcached clients",
            )
        })?;
        Ok(Self {
            address: address.to_string(),
            protocol,
            processors: threads,
            runs: Runs::Here(running),
        })
    }

    /// Returns the server of a process, which can use so many processors.
    pub fn apart(peer: Peer, protocol: Protocol, processors: usize) -> Self {
        Self {
            address: peer.address().to_owned(),
            protocol,
            processors,
            runs: Runs::Apart(peer),
        }
    }
}

/// A server that is measured.
pub(super) struct Contender {
    pub name: &'static str,
    server: Served,
    samples: Vec<Sample>,
}

impl Contender {
    /// Starts one on the servers' processors and, on the clients', loads the records.
    pub fn start(
        name: &'static str,
        load: &Load,
        processors: &Processors,
        start: impl FnOnce() -> Result<Served, FigureError>,
    ) -> Result<Self, FigureError> {
        processors
            .for_servers()
            .map_err(failed("starting a server"))?;
        let server = start()?;
        processors
            .for_clients()
            .map_err(failed("starting clients"))?;
        fill(&server.address, server.protocol, load, &VALUE)
            .map_err(|e| LabError::index("loading the records", e))?;
        Ok(Self {
            name,
            server,
            samples: Vec::new(),
        })
    }

    /// Has clients work for that long.
    pub fn measure(
        &mut self,
        load: &mut Load,
        clients: Clients,
        time: Duration,
    ) -> Result<(), FigureError> {
        let process = match &self.server.runs {
            Runs::Here(_) => std::process::id(),
            Runs::Apart(peer) => peer.id(),
        };
        let before = worked(process);
        let Served {
            address, protocol, ..
        } = &self.server;
        let slice = drive(address, *protocol, load, clients, &VALUE, time)
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
    pub fn point(&mut self, clients: Clients, there: &Processors) -> Point {
        let samples = std::mem::take(&mut self.samples);
        let of = |of: fn(&Sample) -> f64| median(samples.iter().map(of).collect());
        let client_processors = there.counts()[1].min(clients.count.into());
        let server = of(|sample| sample.server) / self.server.processors as f64;
        let client = of(|sample| sample.clients) / client_processors as f64;
        Point {
            kops: of(|sample| sample.kops),
            busiest: server.max(client),
            bound_by_clients: client >= BOUND && server < BOUND,
        }
    }

    /// Ends the server.
    pub fn stop(self) -> Result<(), FigureError> {
        match self.server.runs {
            Runs::Here(running) => running
                .stop()
                .map_err(|e| LabError::index("stopping the server", e).into()),
            Runs::Apart(_) => Ok(()),
        }
    }
}

/// Says which processors were whose, and when nothing is concluded.
pub(super) fn note(processors: &Processors) -> String {
    let [servers, clients] = processors.counts();
    let split = if processors.are_split() {
        format!("servers have {servers} processors, clients {clients}")
    } else {
        "servers and clients share a processor".to_owned()
    };
    format!(
        "{split}; nothing is concluded where the clients were at work for {:.0} % of their time and the \
         server was not",
        BOUND * 100.0
    )
}

/// Returns the points of a contender.
pub(super) fn points<'a>(curves: &'a Curves, name: &str) -> &'a [Point] {
    let found = curves.iter().find(|(other, _)| *other == name);
    found.map_or(&[], |(_, points)| points)
}

/// Returns what one contender has of another's throughput at each number of clients, where it can
/// be told.
fn over(ours: &[Point], theirs: &[Point]) -> Vec<f64> {
    let told = ours
        .iter()
        .zip(theirs)
        .filter(|(this, that)| !this.bound_by_clients && !that.bound_by_clients);
    told.map(|(this, that)| this.kops / that.kops).collect()
}

/// Returns the most of it; NaN if it can be told nowhere.
pub(super) fn most_over(ours: &[Point], theirs: &[Point]) -> f64 {
    over(ours, theirs).into_iter().fold(f64::NAN, f64::max)
}

/// Returns the median of it; NaN if it can be told nowhere.
pub(super) fn median_over(ours: &[Point], theirs: &[Point]) -> f64 {
    let all = over(ours, theirs);
    if all.is_empty() {
        f64::NAN
    } else {
        median(all)
    }
}

/// A claim, with a note if nothing could be told.
pub(super) fn told(claim: Claim) -> Claim {
    if claim.measured.is_nan() {
        return claim.note("no conclusion: the clients were the bottleneck");
    }
    claim
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Expect;

    fn point(kops: f64, bound_by_clients: bool) -> Point {
        Point {
            kops,
            busiest: 1.0,
            bound_by_clients,
        }
    }

    #[test]
    fn nothing_is_concluded_where_the_clients_were_the_bottleneck() {
        let ours = [
            point(10.0, false),
            point(90.0, true),
            point(30.0, false),
            point(30.0, false),
        ];
        let theirs = [
            point(10.0, false),
            point(10.0, false),
            point(10.0, true),
            point(20.0, false),
        ];
        assert_eq!(most_over(&ours, &theirs), 1.5);
        assert_eq!(median_over(&ours, &theirs), 1.25);
        assert!(most_over(&ours[1..3], &theirs[1..3]).is_nan());
        assert!(median_over(&ours[1..3], &theirs[1..3]).is_nan());
        let claim = told(Claim::new("x", 2.0, f64::NAN, Expect::at_least(0.0)));
        assert!(!claim.holds && claim.note.starts_with("no conclusion"));
    }
}
