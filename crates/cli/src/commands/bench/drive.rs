//! Clients of a server, all in one thread: each sends some commands at once and waits for all their
//! replies.

use crate::args::Mix;
use crate::client::{self, Client};
use rand::rngs::Xoshiro256PlusPlus as Random;
use rand::{RngExt, SeedableRng};
use rand_distr::{Distribution, Zipf};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// YCSB's skew.
const SKEW: f64 = 0.99;
/// Records that are loaded at once.
const LOADED_AT_ONCE: u64 = 500;

/// The operations of clients, and the records that exist by now.
pub struct Load {
    mix: Mix,
    zipf: Zipf<f64>,
    random: Random,
    value: Vec<u8>,
    loaded: u64,
    /// Records that were added, and how many of them were answered.
    added: u64,
    answered: u64,
}

fn key(record: u64) -> [u8; 16] {
    let mut key = *b"user000000000000";
    let mut rest = record;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// A hash of a rank, as YCSB spreads likely records over all of them: FNV-1a, 64 bits.
fn scrambled(rank: u64) -> u64 {
    rank.to_le_bytes()
        .into_iter()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3)
        })
}

impl Load {
    /// A mix over so many records with values of so many bytes.
    pub fn new(mix: Mix, records: u64, value_bytes: u32) -> Self {
        Self {
            mix,
            zipf: Zipf::new(records as f64, SKEW)
                .unwrap_or_else(|_| unreachable!("records and skew are above 0")),
            random: Random::seed_from_u64(0x5e55_1015),
            value: vec![b'v'; value_bytes as usize],
            loaded: records,
            added: 0,
            answered: 0,
        }
    }

    /// Puts the records into a server.
    pub fn fill(&self, client: &mut Client) -> io::Result<()> {
        let mut requests = Vec::new();
        for first in (0..self.loaded).step_by(LOADED_AT_ONCE as usize) {
            requests.clear();
            let end = (first + LOADED_AT_ONCE).min(self.loaded);
            for record in first..end {
                client::encode(&mut requests, &[b"SET", &key(record), &self.value]);
            }
            client.send(&requests)?;
            for _ in first..end {
                let reply = client.reply()?;
                if reply != client::Reply::ok() {
                    return Err(io::Error::other(format!("SET was answered {reply:?}")));
                }
            }
        }
        Ok(())
    }

    /// The rank of a record by Zipf's law, from 0, the lower the likelier.
    fn rank(&mut self) -> u64 {
        self.zipf.sample(&mut self.random) as u64 - 1
    }

    /// Appends one command. Returns whether it adds a record.
    fn encode(&mut self, requests: &mut Vec<u8>) -> bool {
        match self.mix {
            Mix::StatusUpdate if self.random.random_range(0..100) < 5 => {
                let record = self.loaded + self.added;
                self.added += 1;
                client::encode(requests, &[b"SET", &key(record), &self.value]);
                return true;
            }
            Mix::StatusUpdate => {
                let back = self.rank();
                let record = self.loaded + self.answered - 1 - back;
                client::encode(requests, &[b"GET", &key(record)]);
            }
            Mix::SessionStore => {
                let record = scrambled(self.rank()) % self.loaded;
                if self.random.random() {
                    client::encode(requests, &[b"SET", &key(record), &self.value]);
                } else {
                    client::encode(requests, &[b"GET", &key(record)]);
                }
            }
        }
        false
    }
}

/// The clients' measurements.
pub struct Slice {
    /// Commands a second, in thousands.
    pub kops: f64,
    /// From sending a command to having the replies of all that were sent with it, in us.
    pub p50_us: f64,
    /// The same.
    pub p99_us: f64,
}

struct Connection {
    stream: TcpStream,
    /// Bytes that have come and were not looked at: the beginning of a reply.
    read: Vec<u8>,
    missing: usize,
    adds: u64,
    sent: Instant,
}

impl Connection {
    fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            read: Vec::with_capacity(64 << 10),
            missing: 0,
            adds: 0,
            sent: Instant::now(),
        })
    }

    fn send(&mut self, load: &mut Load, pipeline: usize, requests: &mut Vec<u8>) -> io::Result<()> {
        requests.clear();
        for _ in 0..pipeline {
            self.adds += u64::from(load.encode(requests));
        }
        self.missing = pipeline;
        self.sent = Instant::now();
        self.stream.write_all(requests)
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
        while let Some(length) = reply_length(&self.read[at..])? {
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

/// Bytes of the first reply, if it has come: to `GET` and `SET` only, for their replies are counted
/// and not looked at.
fn reply_length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
        return Ok(None);
    };
    let length = match &bytes[..end] {
        [b'+', ..] | b"$-1\r" => end + 1,
        [b'$', digits @ .., b'\r'] => {
            let digits = str::from_utf8(digits).map_err(io::Error::other)?;
            let length: usize = digits.parse().map_err(io::Error::other)?;
            end + 1 + length + 2
        }
        other => {
            return Err(io::Error::other(
                String::from_utf8_lossy(other).into_owned(),
            ));
        }
    };
    Ok((length <= bytes.len()).then_some(length))
}

/// Has so many clients work for that long.
pub fn drive(
    address: &str,
    load: &mut Load,
    (clients, pipeline): (u16, u16),
    time: Duration,
) -> io::Result<Slice> {
    let pipeline = usize::from(pipeline);
    let mut connections = (0..clients)
        .map(|_| Connection::connect(address))
        .collect::<io::Result<Vec<_>>>()?;
    let mut requests = Vec::new();
    let start = Instant::now();
    for connection in &mut connections {
        connection.send(load, pipeline, &mut requests)?;
    }
    let mut latencies = Vec::new();
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
        for (connection, _) in connections
            .iter_mut()
            .zip(ready)
            .filter(|(_, ready)| *ready)
        {
            connection.receive()?;
            if connection.missing > 0 {
                continue;
            }
            end = Instant::now();
            latencies.push(end - connection.sent);
            load.answered += std::mem::take(&mut connection.adds);
            if end - start < time {
                connection.send(load, pipeline, &mut requests)?;
            } else {
                working -= 1;
            }
        }
    }
    latencies.sort_unstable();
    let us = |share: f64| {
        let at = ((latencies.len() - 1) as f64 * share) as usize;
        latencies[at].as_secs_f64() * 1e6
    };
    Ok(Slice {
        kops: (latencies.len() * pipeline) as f64 / (end - start).as_secs_f64() / 1e3,
        p50_us: us(0.5),
        p99_us: us(0.99),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_have_their_shares() {
        for (mix, writes) in [(Mix::StatusUpdate, 0.05), (Mix::SessionStore, 0.5)] {
            let mut load = Load::new(mix, 1000, 8);
            let mut requests = Vec::new();
            for _ in 0..20_000 {
                let adds = load.encode(&mut requests);
                load.answered += u64::from(adds);
            }
            let sets = requests.windows(3).filter(|word| word == b"SET").count();
            assert!((sets as f64 / 20_000.0 - writes).abs() < 0.01, "{sets}");
            assert_eq!(load.added > 0, mix == Mix::StatusUpdate);
        }
        assert_eq!(&key(1_234), b"user000000001234");
    }

    #[test]
    fn replies_are_counted_when_they_are_whole() {
        for (bytes, length) in [
            (&b"+OK\r\n+OK\r\n"[..], Some(5)),
            (b"$-1\r\n", Some(5)),
            (b"$3\r\nabc\r\n$", Some(9)),
            (b"$3\r\nabc\r", None),
            (b"$3", None),
            (b"", None),
        ] {
            assert_eq!(reply_length(bytes).unwrap(), length, "{bytes:?}");
        }
        let told = reply_length(b"-ERR no\r\n").unwrap_err().to_string();
        assert!(told.contains("ERR no"), "{told}");
    }
}
