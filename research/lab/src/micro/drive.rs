//! The timed loops: one slice of one operation on one contender.
//!
//! Keys are made before the clock starts. A loop reads them in order, does the operation, and
//! counts the right answers. One call in [`SAMPLE`] is also timed by itself for the percentiles, so
//! that reading the clock costs the slice about a nanosecond a call.

use super::{BATCH, Op, SCAN_LENGTH};
use crate::LabError;
use crate::workload::value_of;
use hdrhistogram::Histogram;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// One call in this many is timed by itself.
const SAMPLE: usize = 64;
/// The same for calls that take long (scans and batches).
const SAMPLE_LONG: usize = 8;
/// Latencies above this one are recorded as this one.
const MAX_LATENCY_NS: u64 = 100_000_000_000;

/// One thread's access to a contender. Errors are boxed, since they are rare and the loops should
/// not carry their size.
pub(crate) trait Session: Send {
    /// Returns true if the key was added, and false if it existed.
    fn insert(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>>;
    /// Returns true if the key existed; its value is then `value`.
    fn update(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>>;
    /// Returns true if the key existed.
    fn remove(&mut self, key: u64) -> Result<bool, Box<LabError>>;
    /// Returns the key's value.
    fn get(&mut self, key: u64) -> Result<Option<u64>, Box<LabError>>;
    /// Visits up to `limit` pairs from `from` on. Returns the first key and the number of pairs.
    fn scan(&mut self, from: u64, limit: usize) -> Result<(Option<u64>, usize), Box<LabError>>;
    /// Looks up several keys, and stores one answer for each in `out`.
    fn multi_get(&mut self, keys: &[u64], out: &mut Vec<Option<u64>>) -> Result<(), Box<LabError>>;
    /// Inserts several pairs. Returns the number of added ones.
    fn multi_insert(&mut self, pairs: &[(u64, u64)]) -> Result<u64, Box<LabError>>;
}

/// The result of a slice.
pub(crate) struct Slice {
    /// Number of operations: keys for batches, calls otherwise.
    pub ops: u64,
    /// Time from the first thread's start to the last one's end.
    pub elapsed: Duration,
    /// Nanoseconds of the calls that were timed by themselves.
    pub latencies: Histogram<u64>,
}

impl Slice {
    /// Returns million operations a second.
    pub fn mops(&self) -> f64 {
        mops(self.ops, self.elapsed)
    }
}

pub(crate) fn mops(ops: u64, elapsed: Duration) -> f64 {
    // An empty slice took no time and has no speed.
    if elapsed.is_zero() {
        0.0
    } else {
        ops as f64 * 1e3 / elapsed.as_nanos() as f64
    }
}

pub(crate) fn histogram() -> Histogram<u64> {
    // With two significant digits the histogram fits into the second-level cache, where recording
    // disturbs little.
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, 2).unwrap_or_else(|_| {
        unreachable!("the bounds are constants that the histogram's documentation allows")
    })
}

/// Returns the value of a key after an update, instead of [`value_of`].
#[inline]
pub(crate) const fn updated(key: u64) -> u64 {
    value_of(key) ^ 1
}

/// Does `op` for each of `keys`, split among `sessions` into consecutive parts, one thread each.
///
/// Errors name the `contender`. `batch` is the number of keys that a batched load takes at a time;
/// 1 means one call per key.
pub(crate) fn slice<S: Session>(
    contender: &str,
    sessions: Vec<S>,
    op: Op,
    keys: &[u64],
    batch: usize,
) -> Result<Slice, LabError> {
    let threads = sessions.len().max(1);
    let part = keys.len().div_ceil(threads).max(1);
    let ready = Barrier::new(threads);
    let run = |session: S, keys: &[u64]| {
        let mut part = Part {
            latencies: histogram(),
            right: 0,
        };
        ready.wait();
        let started = Instant::now();
        let outcome = part.run(session, op, keys, batch);
        let ended = Instant::now();
        outcome.map(|()| (part, started, ended))
    };
    let parts = if threads == 1 {
        sessions
            .into_iter()
            .map(|session| run(session, keys))
            .collect::<Vec<_>>()
    } else {
        std::thread::scope(|scope| {
            let mut rest = keys;
            let handles: Vec<_> = sessions
                .into_iter()
                .map(|session| {
                    let (mine, others) = rest.split_at(part.min(rest.len()));
                    rest = others;
                    let run = &run;
                    scope.spawn(move || run(session, mine))
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| {
                    handle
                        .join()
                        .unwrap_or_else(|p| std::panic::resume_unwind(p))
                })
                .collect()
        })
    };
    let mut latencies = histogram();
    let mut right = 0;
    let mut span: Option<(Instant, Instant)> = None;
    for outcome in parts {
        let (part, started, ended) = outcome.map_err(|e| *e)?;
        right += part.right;
        // Both histograms have the same bounds, so this cannot fail.
        let _ = latencies.add(&part.latencies);
        span = Some(match span {
            None => (started, ended),
            Some((first, last)) => (first.min(started), last.max(ended)),
        });
    }
    if right != keys.len() as u64 {
        return Err(LabError::WrongAnswer {
            contender: contender.to_owned(),
            phase: op.name(),
            right,
            of: keys.len() as u64,
        });
    }
    let elapsed = span.map_or(Duration::ZERO, |(first, last)| last - first);
    Ok(Slice {
        ops: keys.len() as u64,
        elapsed,
        latencies,
    })
}

struct Part {
    latencies: Histogram<u64>,
    right: u64,
}

impl Part {
    fn run<S: Session>(
        &mut self,
        mut s: S,
        op: Op,
        keys: &[u64],
        batch: usize,
    ) -> Result<(), Box<LabError>> {
        match op {
            Op::Load if batch > 1 => self.multi_insert(&mut s, keys, batch),
            Op::Load | Op::Insert => self.each(keys, SAMPLE, |key| s.insert(key, value_of(key))),
            Op::Lookup => self.each(keys, SAMPLE, |key| Ok(s.get(key)? == Some(value_of(key)))),
            Op::Update => self.each(keys, SAMPLE, |key| s.update(key, updated(key))),
            Op::Delete => self.each(keys, SAMPLE, |key| s.remove(key)),
            Op::Scan => self.each(keys, SAMPLE_LONG, |key| {
                let (first, visited) = s.scan(key, SCAN_LENGTH)?;
                Ok(first == Some(key) && visited <= SCAN_LENGTH)
            }),
            Op::MultiGet => {
                let mut out = Vec::with_capacity(BATCH);
                self.batches(keys, BATCH, |keys| {
                    s.multi_get(keys, &mut out)?;
                    let right = |(key, value): (&u64, &Option<u64>)| *value == Some(value_of(*key));
                    Ok(keys.iter().zip(&out).filter(|pair| right(*pair)).count() as u64)
                })
            }
            Op::MultiInsert => self.multi_insert(&mut s, keys, BATCH),
        }
    }

    fn multi_insert<S: Session>(
        &mut self,
        s: &mut S,
        keys: &[u64],
        batch: usize,
    ) -> Result<(), Box<LabError>> {
        let mut pairs = Vec::with_capacity(batch);
        self.batches(keys, batch, |keys| {
            pairs.clear();
            pairs.extend(keys.iter().map(|key| (*key, value_of(*key))));
            s.multi_insert(&pairs)
        })
    }

    #[inline]
    fn each(
        &mut self,
        keys: &[u64],
        sample: usize,
        mut call: impl FnMut(u64) -> Result<bool, Box<LabError>>,
    ) -> Result<(), Box<LabError>> {
        for group in keys.chunks(sample) {
            let Some((first, others)) = group.split_first() else {
                break;
            };
            let started = Instant::now();
            self.right += u64::from(call(*first)?);
            self.record(started);
            for key in others {
                self.right += u64::from(call(*key)?);
            }
        }
        Ok(())
    }

    #[inline]
    fn batches(
        &mut self,
        keys: &[u64],
        batch: usize,
        mut call: impl FnMut(&[u64]) -> Result<u64, Box<LabError>>,
    ) -> Result<(), Box<LabError>> {
        for (number, keys) in keys.chunks(batch).enumerate() {
            if number % SAMPLE_LONG == 0 {
                let started = Instant::now();
                self.right += call(keys)?;
                self.record(started);
            } else {
                self.right += call(keys)?;
            }
        }
        Ok(())
    }

    fn record(&mut self, started: Instant) {
        let ns = u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.latencies
            .saturating_record(ns.clamp(1, MAX_LATENCY_NS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives right answers except for keys that are multiples of `wrong`.
    struct Echo {
        wrong: u64,
        calls: std::sync::Arc<std::sync::atomic::AtomicU64>,
    }

    impl Echo {
        fn right(&self, key: u64) -> bool {
            self.calls
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            !key.is_multiple_of(self.wrong)
        }
    }

    impl Session for Echo {
        fn insert(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>> {
            Ok(value == value_of(key) && self.right(key))
        }
        fn update(&mut self, key: u64, value: u64) -> Result<bool, Box<LabError>> {
            Ok(value != value_of(key) && self.right(key))
        }
        fn remove(&mut self, key: u64) -> Result<bool, Box<LabError>> {
            Ok(self.right(key))
        }
        fn get(&mut self, key: u64) -> Result<Option<u64>, Box<LabError>> {
            Ok(self.right(key).then(|| value_of(key)))
        }
        fn scan(&mut self, from: u64, limit: usize) -> Result<(Option<u64>, usize), Box<LabError>> {
            Ok((self.right(from).then_some(from), limit))
        }
        fn multi_get(
            &mut self,
            keys: &[u64],
            out: &mut Vec<Option<u64>>,
        ) -> Result<(), Box<LabError>> {
            out.clear();
            out.extend(
                keys.iter()
                    .map(|key| self.right(*key).then(|| value_of(*key))),
            );
            Ok(())
        }
        fn multi_insert(&mut self, pairs: &[(u64, u64)]) -> Result<u64, Box<LabError>> {
            Ok(pairs.iter().filter(|(key, _)| self.right(*key)).count() as u64)
        }
    }

    fn echoes(
        wrong: u64,
        threads: usize,
    ) -> (Vec<Echo>, std::sync::Arc<std::sync::atomic::AtomicU64>) {
        let calls = std::sync::Arc::default();
        let echo = || Echo {
            wrong,
            calls: std::sync::Arc::clone(&calls),
        };
        ((0..threads).map(|_| echo()).collect(), calls)
    }

    #[test]
    fn every_key_is_used_once_whatever_the_operation_and_threads() {
        let keys: Vec<u64> = (1..=1_001).collect();
        for threads in [1, 2, 3] {
            for op in Op::ALL {
                let (sessions, calls) = echoes(5_000, threads);
                let slice = slice("echo", sessions, *op, &keys, 1).unwrap();
                assert_eq!(slice.ops, 1_001);
                assert_eq!(
                    calls.load(std::sync::atomic::Ordering::Relaxed),
                    1_001,
                    "{op:?}"
                );
                assert!(slice.elapsed > Duration::ZERO && slice.mops() > 0.0);
                assert!(
                    slice.latencies.len() >= 8,
                    "{op:?}: {}",
                    slice.latencies.len()
                );
            }
        }
    }

    #[test]
    fn a_batched_load_uses_every_key_once() {
        let keys: Vec<u64> = (1..=1_001).collect();
        let (sessions, calls) = echoes(5_000, 1);
        assert_eq!(
            slice("echo", sessions, Op::Load, &keys, 100).unwrap().ops,
            1_001
        );
        assert_eq!(calls.load(std::sync::atomic::Ordering::Relaxed), 1_001);
    }

    #[test]
    fn wrong_answers_are_told_with_their_number() {
        let keys: Vec<u64> = (1..=1_000).collect();
        for op in Op::ALL {
            let (sessions, _) = echoes(10, 2);
            match slice("echo", sessions, *op, &keys, 1) {
                Err(LabError::WrongAnswer {
                    contender,
                    phase,
                    right,
                    of,
                }) => {
                    assert_eq!(
                        (contender.as_str(), phase, right, of),
                        ("echo", op.name(), 900, 1_000)
                    );
                }
                other => panic!("{op:?}: {:?}", other.map(|s| s.ops)),
            }
        }
    }

    #[test]
    fn speed_is_operations_over_time() {
        assert!((mops(5_000_000, Duration::from_secs(2)) - 2.5).abs() < 1e-9);
        assert_eq!(mops(0, Duration::ZERO), 0.0);
    }
}
