//! Clients of a server. Each sends some commands at once and waits for all their replies.

use super::mix::{Load, Op};
use super::protocol::Protocol;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{ClockId, clock_gettime};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Records that are loaded at once.
const LOADED_AT_ONCE: u64 = 500;

/// The clients of a server.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// How many.
    pub count: u16,
    /// How many commands each sends at once.
    pub pipeline: u16,
    /// Each has a thread of its own. Otherwise one thread works for all, which costs less.
    pub threads: bool,
}

/// Throughput and latency of a slice.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// Commands a second, in thousands.
    pub kops: f64,
    /// From sending a command to having the replies of all that were sent with it, in us.
    pub p50_us: f64,
    /// The same.
    pub p99_us: f64,
    /// Seconds of the slice.
    pub seconds: f64,
    /// Seconds that the clients' threads were at work in all.
    pub worked: f64,
}

struct Connection {
    stream: TcpStream,
    protocol: Protocol,
    /// Bytes that have come and were not looked at: the beginning of a reply.
    read: Vec<u8>,
    missing: usize,
    adds: u64,
    sent: Instant,
}

impl Connection {
    fn connect(address: &str, protocol: Protocol) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            protocol,
            read: Vec::with_capacity(64 << 10),
            missing: 0,
            adds: 0,
            sent: Instant::now(),
        })
    }

    fn send(&mut self, commands: usize, requests: &[u8]) -> io::Result<()> {
        self.missing = commands;
        self.sent = Instant::now();
        self.stream.write_all(requests)
    }

    /// Sends the next operations.
    fn send_next(
        &mut self,
        load: &mut Load,
        (pipeline, value): (u16, &[u8]),
        requests: &mut Vec<u8>,
    ) -> io::Result<()> {
        requests.clear();
        for _ in 0..pipeline {
            let op = load.next_op();
            let key = load.key(op.record());
            match op {
                Op::Get(_) => self.protocol.get(requests, &key),
                Op::Put(_) | Op::Add(_) => self.protocol.set(requests, &key, value),
            }
            self.adds += u64::from(matches!(op, Op::Add(_)));
        }
        self.send(pipeline.into(), requests)
    }

    /// Takes in what has come.
    fn receive(&mut self) -> io::Result<()> {
        let before = self.read.len();
        self.read.resize(before + (32 << 10), 0);
        let read = self.stream.read(&mut self.read[before..])?;
        self.read.truncate(before + read);
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut at = 0;
        while let Some(length) = self.protocol.reply_length(&self.read[at..])? {
            at += length;
            self.missing = self
                .missing
                .checked_sub(1)
                .ok_or(io::ErrorKind::InvalidData)?;
        }
        self.read.drain(..at);
        Ok(())
    }
}

/// Puts the records of a load into a server.
///
/// # Errors
/// Those of the connection, and what the server answers.
pub fn fill(address: &str, protocol: Protocol, load: &Load, value: &[u8]) -> io::Result<()> {
    let records = load.loaded();
    let mut connection = Connection::connect(address, protocol)?;
    let mut requests = Vec::new();
    for first in (0..records).step_by(LOADED_AT_ONCE as usize) {
        requests.clear();
        let end = (first + LOADED_AT_ONCE).min(records);
        for record in first..end {
            protocol.set(&mut requests, &load.key(record), value);
        }
        connection.send((end - first) as usize, &requests)?;
        while connection.missing > 0 {
            connection.receive()?;
        }
    }
    Ok(())
}

/// Has clients work for that long, with values of these bytes.
///
/// # Errors
/// Those of the connections, and what the server answers.
pub fn drive(
    address: &str,
    protocol: Protocol,
    load: &mut Load,
    clients: Clients,
    value: &[u8],
    time: Duration,
) -> io::Result<Slice> {
    let mut connections = (0..clients.count)
        .map(|_| Connection::connect(address, protocol))
        .collect::<io::Result<Vec<_>>>()?;
    let sends = (clients.pipeline, value);
    let start = Instant::now();
    let mut done = if clients.threads {
        thread::scope(|scope| {
            let threads: Vec<_> = connections
                .iter_mut()
                .map(|connection| {
                    let mut load = load.another();
                    scope.spawn(move || alone(connection, &mut load, sends, (start, time)))
                })
                .collect();
            threads.into_iter().map(joined).collect()
        })
    } else {
        together(&mut connections, load, sends, (start, time)).map(|done| vec![done])
    }?;
    let end = done.iter().map(|done| done.end).max().unwrap_or(start);
    let worked = done.iter().map(|done| done.worked).sum();
    let mut latencies = Vec::new();
    done.iter_mut()
        .for_each(|done| latencies.append(&mut done.latencies));
    latencies.sort_unstable();
    let us = |share: f64| {
        let at = (latencies.len().saturating_sub(1) as f64 * share) as usize;
        latencies
            .get(at)
            .map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
    };
    let seconds = (end - start).as_secs_f64();
    Ok(Slice {
        kops: (latencies.len() * usize::from(clients.pipeline)) as f64 / seconds / 1e3,
        p50_us: us(0.5),
        p99_us: us(0.99),
        seconds,
        worked,
    })
}

/// The result of one thread of clients.
struct Done {
    latencies: Vec<Duration>,
    end: Instant,
    worked: f64,
}

fn joined(thread: ScopedJoinHandle<'_, io::Result<Done>>) -> io::Result<Done> {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Seconds that this thread was at work.
fn at_work() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Works for one client.
fn alone(
    connection: &mut Connection,
    load: &mut Load,
    sends: (u16, &[u8]),
    (start, time): (Instant, Duration),
) -> io::Result<Done> {
    let before = at_work();
    let (mut requests, mut latencies) = (Vec::new(), Vec::new());
    let mut end = start;
    while end - start < time {
        connection.send_next(load, sends, &mut requests)?;
        while connection.missing > 0 {
            connection.receive()?;
        }
        end = Instant::now();
        latencies.push(end - connection.sent);
        load.have_added(std::mem::take(&mut connection.adds));
    }
    Ok(Done {
        latencies,
        end,
        worked: at_work() - before,
    })
}

/// Works for all clients.
fn together(
    connections: &mut [Connection],
    load: &mut Load,
    sends: (u16, &[u8]),
    (start, time): (Instant, Duration),
) -> io::Result<Done> {
    let before = at_work();
    let (mut requests, mut latencies) = (Vec::new(), Vec::new());
    for connection in &mut *connections {
        connection.send_next(load, sends, &mut requests)?;
    }
    let mut working = connections.len();
    let mut end = start;
    while working > 0 {
        let ready: Vec<bool> = {
            let polled = |connection| PollFd::new(connection, PollFlags::IN);
            let streams = connections.iter().map(|connection| &connection.stream);
            let mut polled: Vec<_> = streams.map(polled).collect();
            poll(&mut polled, None)?;
            polled.iter().map(|one| !one.revents().is_empty()).collect()
        };
        let ready = connections.iter_mut().zip(ready).filter(|(_, is)| *is);
        for (connection, _) in ready {
            connection.receive()?;
            if connection.missing > 0 {
                continue;
            }
            end = Instant::now();
            latencies.push(end - connection.sent);
            load.have_added(std::mem::take(&mut connection.adds));
            if end - start < time {
                connection.send_next(load, sends, &mut requests)?;
            } else {
                working -= 1;
            }
        }
    }
    Ok(Done {
        latencies,
        end,
        worked: at_work() - before,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::Mix;
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    /// Answers `+OK` to every request on every connection; counts them.
    fn answers(listener: TcpListener) {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            thread::spawn(move || {
                let mut out = stream.try_clone().unwrap();
                for line in BufReader::new(stream).lines() {
                    if line.unwrap().starts_with('*') && out.write_all(b"+OK\r\n").is_err() {
                        return;
                    }
                }
            });
        }
    }

    #[test]
    fn clients_with_threads_and_without_are_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        thread::spawn(|| answers(listener));
        let mut load = Load::new(Mix::StatusUpdate, 1201);
        fill(&address, Protocol::Redis, &load, b"v").unwrap();
        for threads in [false, true] {
            let clients = Clients {
                count: 3,
                pipeline: 4,
                threads,
            };
            let time = Duration::from_millis(30);
            let slice = drive(&address, Protocol::Redis, &mut load, clients, b"v", time).unwrap();
            assert!(slice.kops > 0.0 && slice.seconds >= 0.03, "{slice:?}");
            assert!(slice.p50_us <= slice.p99_us, "{slice:?}");
            // At least one round of every client.
            let commands = slice.kops * slice.seconds * 1e3;
            assert!(commands > 11.5, "{slice:?}");
        }
    }
}
