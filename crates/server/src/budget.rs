//! What clients hold in memory, each and together, and the limit of `maxmemory-clients`.
//!
//! A connection says what its buffers have room for whenever that changes, before a reply's buffer grows, and within a command,
//! too. Whoever makes the sum pass the limit takes the largest client's right to hold anything: it is *evicted*, as often as it takes for the others to be
//! within the limit. An evicted client's replies go nowhere from then on, and its connection ends.
//!
//! Buffers that every connection has, of a few KiB, are free, and others count in steps, so that connections with little traffic share
//! no cache line.

use crate::client::Client;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Rooms up to this are not counted.
const FREE: usize = 4 << 10;
/// Others count as multiples of this.
const STEP: usize = 16 << 10;

/// What a client holds memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What it has sent.
    Query,
    /// Commands that wait for `EXEC`.
    Queued,
    /// Keys that it watches.
    Watched,
    /// Keys that it waits for.
    Waiting,
    /// Channels and patterns that it listens to.
    Names,
    /// Messages for it.
    Messages,
    /// Replies.
    Output,
    /// Replies that are gathered before they are put among the others.
    Gathered,
    /// Those that are gathered for the gathered ones.
    GatheredWithin,
}

const PARTS: usize = Part::GatheredWithin as usize + 1;

/// What one client holds.
#[derive(Debug, Default)]
pub struct Held {
    parts: [AtomicUsize; PARTS],
    evicted: AtomicBool,
    stays: AtomicBool,
}

impl Held {
    /// Bytes of all parts.
    #[must_use]
    pub fn sum(&self) -> usize {
        // ORDERING: Relaxed; a sum of numbers that change meanwhile.
        let parts = self.parts.iter().map(|part| part.load(Ordering::Relaxed));
        parts.sum()
    }

    /// Bytes of one part.
    #[must_use]
    pub fn of(&self, part: Part) -> usize {
        // ORDERING: Relaxed; as in `sum`.
        self.parts[part as usize].load(Ordering::Relaxed)
    }

    /// It may hold nothing any more.
    #[must_use]
    pub fn evicted(&self) -> bool {
        // ORDERING: Relaxed; the flag says all there is to know.
        self.evicted.load(Ordering::Relaxed)
    }

    /// Whether it is passed over when somebody has to go: `CLIENT NO-EVICT`.
    pub fn set_stays(&self, stays: bool) {
        // ORDERING: Relaxed; as in `evicted`.
        self.stays.store(stays, Ordering::Relaxed);
    }
}

/// All clients, and what they hold together.
#[derive(Debug, Default)]
pub struct Registry {
    by_id: Mutex<BTreeMap<u64, Arc<Client>>>,
    total: AtomicUsize,
    /// 0 for none.
    limit: AtomicUsize,
    evicted: AtomicU64,
}

impl Registry {
    /// All of them, by number.
    pub fn by_id(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Client>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that all hold together.
    pub fn total(&self) -> usize {
        // ORDERING: Relaxed; a number that changes all the time.
        self.total.load(Ordering::Relaxed)
    }

    /// How many were evicted.
    pub fn evicted(&self) -> &AtomicU64 {
        &self.evicted
    }

    /// The most that they may hold together; 0 for no limit.
    pub fn limit(&self) -> usize {
        // ORDERING: Relaxed; as in `total`.
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets it, and evicts who is too much.
    pub fn set_limit(&self, limit: usize) {
        // ORDERING: Relaxed; whoever has not seen it yet goes by the one before.
        self.limit.store(limit, Ordering::Relaxed);
        self.evict();
    }

    /// A client holds so many bytes for this from now on; evicts somebody if that is too much.
    pub fn hold(&self, held: &Held, part: Part, bytes: usize) {
        let bytes = if bytes <= FREE {
            0
        } else {
            bytes.checked_next_multiple_of(STEP).unwrap_or(bytes)
        };
        let part = &held.parts[part as usize];
        // ORDERING: Relaxed; numbers that need not agree at any moment. The swap loses none of them.
        if part.load(Ordering::Relaxed) == bytes {
            return;
        }
        // ORDERING: Relaxed; as above.
        let before = part.swap(bytes, Ordering::Relaxed);
        if bytes <= before {
            // ORDERING: Relaxed; as above.
            self.total.fetch_sub(before - bytes, Ordering::Relaxed);
            return;
        }
        let more = bytes - before;
        // ORDERING: Relaxed; as above.
        let total = self.total.fetch_add(more, Ordering::Relaxed) + more;
        let limit = self.limit();
        if limit > 0 && total > limit {
            self.evict();
        }
    }

    /// A client is gone with all that it held.
    pub fn release(&self, held: &Held) {
        for part in &held.parts {
            // ORDERING: Relaxed; as in `hold`.
            let bytes = part.swap(0, Ordering::Relaxed);
            // ORDERING: Relaxed; as in `hold`.
            self.total.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Evicts the largest ones, until the others hold no more than the limit.
    fn evict(&self) {
        let mut gone = Vec::new();
        {
            let by_id = self.by_id();
            loop {
                let limit = self.limit();
                // What the evicted hold is about to be free. Summed anew, as the total may still have what a
                // client has just given back.
                let (mut staying, mut largest) = (0, None);
                for client in by_id.values() {
                    if client.held.evicted() {
                        continue;
                    }
                    let bytes = client.held.sum();
                    staying += bytes;
                    // ORDERING: Relaxed; see `Held::set_stays`.
                    if !client.held.stays.load(Ordering::Relaxed)
                        && largest.is_none_or(|(most, _)| bytes > most)
                    {
                        largest = Some((bytes, client));
                    }
                }
                let within = limit == 0 || staying <= limit;
                let Some((bytes, client)) = largest.filter(|(bytes, _)| !within && *bytes > 0)
                else {
                    break;
                };
                // ORDERING: Relaxed; see `Held::evicted`.
                client.held.evicted.store(true, Ordering::Relaxed);
                client.kill.notify_one();
                // ORDERING: Relaxed; statistics.
                self.evicted.fetch_add(1, Ordering::Relaxed);
                gone.push((bytes, Arc::clone(client)));
            }
        }
        for (bytes, client) in gone {
            client.forget_messages();
            tracing::warn!(
                client = %client.address,
                bytes,
                limit = self.limit(),
                "disconnected: all clients together hold more than maxmemory-clients, and this one the most"
            );
        }
    }
}

/// A number of bytes, or a share of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Bytes.
    Bytes(usize),
    /// Per cent of what this process may use.
    Percent(u8),
}

impl Share {
    /// It in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => {
                let bytes = u128::from(memory()) * u128::from(percent) / 100;
                usize::try_from(bytes).unwrap_or(usize::MAX)
            }
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "argument must be a memory or percent value".to_owned();
        match text.strip_suffix('%') {
            Some(digits) => {
                let percent = digits.parse().ok().filter(|percent| *percent <= 100);
                percent.map(Self::Percent).ok_or_else(wrong)
            }
            None => (crate::config::memory(text).map(Self::Bytes)).map_err(|_| wrong()),
        }
    }
}

/// Bytes of memory that this process may use: the machine's, or fewer, where control groups limit it.
#[must_use]
pub fn memory() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| {
        let kib = line.strip_prefix("MemTotal:")?.split_whitespace().next()?;
        kib.parse::<u64>().ok()?.checked_mul(1 << 10)
    });
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let mut limits = Vec::from_iter(total);
    let mut at = std::path::Path::new("/sys/fs/cgroup").join(group.unwrap_or_default());
    while at.starts_with("/sys/fs/cgroup") {
        let limit = std::fs::read_to_string(at.join("memory.max")).ok();
        limits.extend(limit.and_then(|limit| limit.trim().parse::<u64>().ok()));
        at.pop();
    }
    // Where nobody says, there is no telling what is too much.
    limits.into_iter().min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Clients;

    fn clients(limit: usize, number: usize) -> (Clients, Vec<Arc<Client>>) {
        let clients = Clients::default();
        clients.registry().set_limit(limit);
        let enter = |_| {
            clients
                .enter(100, "a:1".into(), "b:2".into(), true)
                .unwrap()
        };
        let all = (0..number).map(enter).collect();
        (clients, all)
    }

    #[test]
    fn the_largest_goes_first_and_what_it_holds_counts_until_it_has_left() {
        let (clients, all) = clients(1 << 20, 3);
        all[0].hold(Part::Output, 300 << 10);
        all[1].hold(Part::Messages, 200 << 10);
        all[1].hold(Part::Query, 200 << 10);
        assert!(!all.iter().any(|client| client.is_evicted()));
        all[2].hold(Part::Queued, 350 << 10);
        let evicted: Vec<bool> = all.iter().map(|client| client.is_evicted()).collect();
        assert_eq!(evicted, [false, true, false]);
        // More is not too much, without those who are about to leave.
        all[2].hold(Part::Queued, 400 << 10);
        assert!(!all[2].is_evicted());
        clients.leave(all[1].id);
        assert!(clients.registry().total() < 1 << 20);
        all[2].hold(Part::Queued, 4 << 20);
        assert!(all[2].is_evicted() && !all[0].is_evicted());
        assert_eq!(clients.registry().evicted().load(Ordering::Relaxed), 2);
        for client in all {
            clients.leave(client.id);
        }
        assert_eq!(clients.registry().total(), 0);
    }

    #[test]
    fn who_is_to_stay_stays_and_a_lower_limit_holds_at_once() {
        let (clients, all) = clients(0, 2);
        all[0].held.set_stays(true);
        all[0].hold(Part::Output, 1 << 30);
        all[1].hold(Part::Output, 1 << 20);
        assert!(!all[1].is_evicted());
        clients.registry().set_limit(1 << 20);
        assert!(all[1].is_evicted() && !all[0].is_evicted());
    }

    #[test]
    fn small_buffers_are_free() {
        let (clients, all) = clients(1, 1);
        all[0].hold(Part::Output, FREE);
        assert_eq!(clients.registry().total(), 0);
        all[0].hold(Part::Output, FREE + 1);
        assert_eq!(clients.registry().total(), STEP);
    }

    #[test]
    fn shares_are_taken_as_redis_takes_them() {
        for (text, share, shown) in [
            ("0", Share::Bytes(0), "0"),
            ("64mb", Share::Bytes(64 << 20), "67108864"),
            ("25%", Share::Percent(25), "25%"),
            ("100%", Share::Percent(100), "100%"),
        ] {
            assert_eq!(text.parse(), Ok(share));
            assert_eq!(share.to_string(), shown);
        }
        for text in ["", "%", "101%", "-1%", "-1", "x", "1.5%"] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
        let quarter = Share::Percent(25).bytes() as u64;
        assert!(quarter > 0 && quarter <= memory() / 4);
    }
}
