//! A server's statistics at one moment, and the differences between two.

use super::client::Client;
use crate::client::Reply;
use bristlecone_command::failure::{Failure, Outcome};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Entries of the slow log that are asked for.
const SLOW: &str = "8";

/// How often a command has been called, and how long it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    pub calls: u64,
    pub micros: u64,
    pub failed: u64,
    /// Calls that took less than so many µs, ascending.
    pub within: Vec<(u64, u64)>,
}

impl Calls {
    /// Those since `before`, which is earlier.
    fn since(&self, before: &Self) -> Self {
        // A bound that was not there had as many calls as the one below it.
        let earlier = |bound: u64| {
            let below = before.within.iter().rev().find(|(at, _)| *at <= bound);
            below.map_or(0, |(_, calls)| *calls)
        };
        Self {
            calls: self.calls.saturating_sub(before.calls),
            micros: self.micros.saturating_sub(before.micros),
            failed: self.failed.saturating_sub(before.failed),
            within: (self.within.iter())
                .map(|(bound, calls)| (*bound, calls.saturating_sub(earlier(*bound))))
                .collect(),
        }
    }

    /// The time that this share of the calls took less than.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let all = self.within.last()?.1;
        let wanted = (share * all as f64).ceil() as u64;
        let met = self
            .within
            .iter()
            .find(|(_, calls)| *calls >= wanted.max(1));
        met.map(|(bound, _)| Duration::from_micros(*bound))
    }

    /// The time of a call, on average.
    pub fn mean(&self) -> Option<Duration> {
        let mean = self.micros as f64 / self.calls as f64;
        (self.calls > 0).then(|| Duration::from_secs_f64(mean / 1e6))
    }
}

/// A slow command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slow {
    /// In s since 1970.
    pub at: u64,
    pub took: Duration,
    pub words: Vec<Vec<u8>>,
    pub client: Vec<u8>,
}

/// A server's statistics.
#[derive(Debug)]
pub struct Sample {
    at: Instant,
    /// Fields of `INFO`.
    fields: HashMap<String, String>,
    commands: BTreeMap<String, Calls>,
    /// Keys of all databases.
    pub keys: u64,
    pub slow: Vec<Slow>,
}

impl Sample {
    /// Asks.
    pub fn take(client: &mut Client) -> Outcome<Self> {
        let asked: [&[&str]; 3] = [
            &["INFO", "everything"],
            &["LATENCY", "HISTOGRAM"],
            &["SLOWLOG", "GET", SLOW],
        ];
        let replies = client.call(&asked)?;
        let [
            Reply::Bulk(info),
            Reply::Array(histograms),
            Reply::Array(slow),
        ] = &replies[..]
        else {
            return Err(Failure::new(
                "the server answers INFO as no server of ours does",
            ));
        };
        let mut sample = Self::of(&String::from_utf8_lossy(info));
        for pair in histograms.chunks(2) {
            if let [Reply::Bulk(name), Reply::Array(histogram)] = pair {
                let name = String::from_utf8_lossy(name).into_owned();
                sample.commands.entry(name).or_default().within = bounds(histogram);
            }
        }
        sample.slow = slow.iter().filter_map(slow_entry).collect();
        Ok(sample)
    }

    /// The statistics in the text of `INFO`.
    fn of(info: &str) -> Self {
        let mut sample = Self {
            at: Instant::now(),
            fields: HashMap::new(),
            commands: BTreeMap::new(),
            keys: 0,
            slow: Vec::new(),
        };
        for (name, value) in info.lines().filter_map(|line| line.split_once(':')) {
            let parts = || value.split(',').filter_map(|part| part.split_once('='));
            let part = |wanted: &str| {
                let found = parts().find(|(name, _)| *name == wanted);
                found
                    .and_then(|(_, number)| number.parse().ok())
                    .unwrap_or(0)
            };
            if let Some(command) = name.strip_prefix("cmdstat_") {
                let calls = Calls {
                    calls: part("calls"),
                    micros: part("usec"),
                    failed: part("failed_calls") + part("rejected_calls"),
                    within: Vec::new(),
                };
                sample.commands.insert(command.to_owned(), calls);
            } else if value.starts_with("keys=") {
                sample.keys += part("keys");
            } else {
                sample.fields.insert(name.to_owned(), value.to_owned());
            }
        }
        sample
    }

    /// A field of `INFO`; empty, if it is not there.
    pub fn text(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// A field of `INFO` that is a number; 0, if it is not there.
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }
}

/// The bounds of a command's histogram, with the calls below each.
fn bounds(histogram: &[Reply]) -> Vec<(u64, u64)> {
    let [_, _, _, Reply::Array(bounds)] = histogram else {
        return Vec::new();
    };
    let pair = |pair: &[Reply]| match pair {
        [Reply::Integer(bound), Reply::Integer(calls)] => {
            Some((u64::try_from(*bound).ok()?, u64::try_from(*calls).ok()?))
        }
        _ => None,
    };
    bounds.chunks(2).filter_map(pair).collect()
}

fn slow_entry(entry: &Reply) -> Option<Slow> {
    let Reply::Array(parts) = entry else {
        return None;
    };
    let [
        _,
        Reply::Integer(at),
        Reply::Integer(took),
        Reply::Array(words),
        Reply::Bulk(client),
        ..,
    ] = &parts[..]
    else {
        return None;
    };
    let words = words.iter().filter_map(|word| match word {
        Reply::Bulk(word) => Some(word.clone()),
        _ => None,
    });
    Some(Slow {
        at: u64::try_from(*at).ok()?,
        took: Duration::from_micros(u64::try_from(*took).ok()?),
        words: words.collect(),
        client: client.clone(),
    })
}

/// The time between two samples, or since the server's start.
#[derive(Clone, Copy, Debug)]
pub struct Span<'s> {
    pub before: Option<&'s Sample>,
    pub now: &'s Sample,
}

impl Span<'_> {
    /// How long it is.
    pub fn length(&self) -> Duration {
        match self.before {
            Some(before) => self.now.at.saturating_duration_since(before.at),
            None => Duration::from_secs(self.now.number("uptime_in_seconds")),
        }
    }

    /// How far a counter of `INFO` has gone up.
    pub fn change(&self, name: &str) -> u64 {
        let before = self.before.map_or(0, |before| before.number(name));
        self.now.number(name).saturating_sub(before)
    }

    /// `count` per second.
    pub fn rate(&self, count: u64) -> f64 {
        // The server counts whole seconds since its start.
        count as f64
            / self
                .length()
                .as_secs_f64()
                .max(if self.before.is_some() { 1e-3 } else { 1.0 })
    }

    /// The commands, with all calls of each and those of this time; the busiest first.
    pub fn commands(&self) -> Vec<(&str, &Calls, Calls)> {
        let none = Calls::default();
        let each = |(name, all): (&'_ String, &'_ Calls)| {
            let before = self.before.and_then(|before| before.commands.get(name));
            all.since(before.unwrap_or(&none))
        };
        let mut commands: Vec<(&str, &Calls, Calls)> = (self.now.commands.iter())
            .map(|pair| (pair.0.as_str(), pair.1, each(pair)))
            .collect();
        commands.sort_by_key(|(_, all, now)| std::cmp::Reverse((now.calls, all.calls)));
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(calls: u64, micros: u64, within: &[(u64, u64)]) -> Calls {
        Calls {
            calls,
            micros,
            failed: 0,
            within: within.to_vec(),
        }
    }

    #[test]
    fn times_of_calls_are_those_since_the_sample_before() {
        let before = calls(10, 100, &[(4, 4), (16, 10)]);
        let now = calls(30, 400, &[(2, 1), (4, 5), (8, 15), (16, 30)]);
        let since = now.since(&before);
        assert_eq!(since, calls(20, 300, &[(2, 1), (4, 1), (8, 11), (16, 20)]));
        assert_eq!(since.mean(), Some(Duration::from_micros(15)));
        assert_eq!(since.quantile(0.5), Some(Duration::from_micros(8)));
        assert_eq!(since.quantile(0.99), Some(Duration::from_micros(16)));
        assert_eq!(Calls::default().quantile(0.5), None);
        assert_eq!(Calls::default().mean(), None);
    }

    #[test]
    fn what_info_says_is_taken_apart() {
        let info = "# Server\r\nuptime_in_seconds:10\r\npool:/a:b\r\ncmdstat_get:calls=7,usec=21,usec_per_call=3.00,rejected_calls=1,failed_calls=2\r\n\
                    # Keyspace\r\ndb0:keys=3,expires=0,avg_ttl=0\r\ndb5:keys=4,expires=0,avg_ttl=0\r\n";
        let sample = Sample::of(info);
        assert_eq!((sample.keys, sample.number("uptime_in_seconds")), (7, 10));
        assert_eq!((sample.text("pool"), sample.number("nothing")), ("/a:b", 0));
        let span = Span {
            before: None,
            now: &sample,
        };
        let commands = span.commands();
        assert_eq!((commands.len(), commands[0].0), (1, "get"));
        assert_eq!((commands[0].1.failed, commands[0].2.calls), (3, 7));
        assert_eq!(span.rate(20), 2.0);
    }
}
