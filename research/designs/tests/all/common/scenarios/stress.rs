//! Threads that meet on few keys. Each key's history must be linearizable.
//!
//! One counter stamps every call before and after, every value is written once, and a scan counts
//! as a read of each key of its range at some moment between its stamps. Rounds grow, shrink and
//! mix, so that leaves split, empty and disappear while others read them. Keys that no thread
//! touches must be in every scan.

use super::super::history::{Action, Event, check};
use super::super::{Harness, Rng, TestKey, TestValue, stress_time};
use super::{content, key, value};
use bristlecone_designs::{InsertError, OrderedIndex, UpdateError};
use std::borrow::Borrow;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Number of keys in play; every eighth of the lower half never changes.
const KEYS: u64 = 512;
/// Numbers of threads, three rounds each, and the operations of all of them in a round.
const THREADS: [usize; 2] = [4, 16];
const OPS: usize = 12_000;

fn stands_still(n: u64) -> bool {
    n < KEYS / 2 && n.is_multiple_of(8)
}

/// A thread's operations, by key.
type Log = HashMap<u64, Vec<Event>>;

#[derive(Clone, Copy)]
enum Phase {
    Grow,
    Shrink,
    Mix,
}

/// See the module's head.
pub fn histories_are_linearizable<H: Harness>() {
    let fresh = H::fresh();
    let index = &fresh.index;
    let clock = AtomicU64::new(1);
    let mut state: HashMap<u64, Option<u64>> = HashMap::new();
    for n in (0..KEYS).filter(|n| stands_still(*n)) {
        index
            .insert(key::<H>(n).borrow(), value::<H>(n).borrow())
            .expect("a key of the fresh index");
        state.insert(n, Some(n));
    }
    let started = Instant::now();
    let mut round = 0u64;
    while round < 6 || started.elapsed() < stress_time() {
        let phase = [Phase::Grow, Phase::Mix, Phase::Shrink][(round % 3) as usize];
        let logs = work::<H>(index, &clock, round, phase);
        let ended = clock.fetch_add(1, Ordering::SeqCst);
        let found: HashMap<u64, u64> = content::<H>(index)
            .iter()
            .map(|(k, v)| (k.borrow().number(), v.borrow().number()))
            .collect();
        for n in 0..KEYS {
            let last = found.get(&n).copied();
            let mut threads: Vec<Vec<Event>> = logs
                .iter()
                .map(|log| log.get(&n).cloned().unwrap_or_default())
                .collect();
            threads.push(vec![Event {
                start: ended,
                end: ended,
                action: Action::Read(last),
            }]);
            let before = state.get(&n).copied().flatten();
            if let Err(e) = check(before, &threads) {
                panic!("round {round}, key {n}, {before:?} at first: {e}");
            }
            state.insert(n, last);
        }
        assert!(
            found.keys().all(|n| *n < KEYS),
            "a key that nobody inserted"
        );
        let report = index
            .verify()
            .unwrap_or_else(|v| panic!("after round {round}: {v}"));
        assert_eq!(report.entries, found.len() as u64, "after round {round}");
        round += 1;
    }
}

fn work<H: Harness>(index: &H::Index, clock: &AtomicU64, round: u64, phase: Phase) -> Vec<Log> {
    let threads = THREADS[(round / 3) as usize % THREADS.len()];
    let barrier = Barrier::new(threads);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads as u64)
            .map(|t| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let mut worker = Worker::<H> {
                        index,
                        clock,
                        rng: Rng::new(round << 8 | t),
                        next_value: (round << 8 | (t + 1)) << 24,
                        log: Log::new(),
                    };
                    barrier.wait();
                    for _ in 0..OPS / threads {
                        worker.step(phase);
                    }
                    worker.log
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|w| {
                w.join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
            .collect()
    })
}

struct Worker<'a, H: Harness> {
    index: &'a H::Index,
    clock: &'a AtomicU64,
    rng: Rng,
    next_value: u64,
    log: Log,
}

impl<H: Harness> Worker<'_, H> {
    fn now(&self) -> u64 {
        // ORDERING: SeqCst read-modify-writes order stamps like the calls between them.
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn note(&mut self, n: u64, start: u64, end: u64, action: Action) {
        self.log
            .entry(n)
            .or_default()
            .push(Event { start, end, action });
    }

    fn fresh_value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }

    /// Returns a key that may be changed, half the time one of a few neighbours that all threads
    /// want.
    fn key(&mut self) -> u64 {
        loop {
            let n = match self.rng.below(4) {
                0 | 1 => KEYS / 2 + self.rng.below(24),
                _ => self.rng.below(KEYS),
            };
            if !stands_still(n) {
                return n;
            }
        }
    }

    fn step(&mut self, phase: Phase) {
        let dice = self.rng.below(100);
        // Borders between insert, upsert, update and remove; the rest are reads.
        let [insert, upsert, update, remove] = match phase {
            Phase::Grow => [40, 50, 58, 66],
            Phase::Mix => [18, 28, 40, 64],
            Phase::Shrink => [8, 10, 14, 70],
        };
        match dice {
            d if d < insert => self.insert(),
            d if d < upsert => self.upsert(),
            d if d < update => self.update(),
            d if d < remove => self.remove(),
            d if d < 88 => self.get(),
            d if d < 92 => self.multi_get(),
            d if d < 95 => self.multi_insert(),
            _ => self.scan(),
        }
    }

    fn insert(&mut self) {
        let (n, v) = (self.key(), self.fresh_value());
        let start = self.now();
        let done = inserted(
            self.index
                .insert(key::<H>(n).borrow(), value::<H>(v).borrow()),
        );
        let end = self.now();
        self.note(n, start, end, Action::Insert { value: v, done });
    }

    fn upsert(&mut self) {
        let (n, v) = (self.key(), self.fresh_value());
        let start = self.now();
        let replaced = self
            .index
            .upsert(key::<H>(n).borrow(), value::<H>(v).borrow())
            .unwrap_or_else(|e| panic!("upsert of key {n}: {e}"));
        let end = self.now();
        self.note(n, start, end, Action::Upsert { value: v, replaced });
    }

    fn update(&mut self) {
        let (n, v) = (self.key(), self.fresh_value());
        let start = self.now();
        let done = match self
            .index
            .update(key::<H>(n).borrow(), value::<H>(v).borrow())
        {
            Ok(()) => true,
            Err(UpdateError::NotFound) => false,
            Err(e) => panic!("update of key {n}: {e}"),
        };
        let end = self.now();
        self.note(n, start, end, Action::Update { value: v, done });
    }

    fn remove(&mut self) {
        let n = self.key();
        let start = self.now();
        let found = self
            .index
            .remove(key::<H>(n).borrow())
            .unwrap_or_else(|e| panic!("remove of key {n}: {e}"));
        let end = self.now();
        self.note(n, start, end, Action::Remove { found });
    }

    fn get(&mut self) {
        let n = self.rng.below(KEYS);
        let start = self.now();
        let seen = self.index.get_with(key::<H>(n).borrow(), |v| v.number());
        let end = self.now();
        self.note(n, start, end, Action::Read(seen));
    }

    fn multi_get(&mut self) {
        // Distinct keys: two reads of one key in a batch have no order of their own.
        let (first, step) = (self.rng.below(KEYS), 2 * self.rng.below(KEYS / 2) + 1);
        let numbers: Vec<u64> = (0..12).map(|i| (first + i * step) % KEYS).collect();
        let keys: Vec<_> = numbers.iter().map(|n| key::<H>(*n)).collect();
        let mut out = Vec::new();
        let start = self.now();
        self.index.multi_get(&keys, &mut out);
        let end = self.now();
        assert_eq!(out.len(), keys.len(), "one answer a key");
        for (n, seen) in numbers.into_iter().zip(out) {
            self.note(
                n,
                start,
                end,
                Action::Read(seen.map(|v| v.borrow().number())),
            );
        }
    }

    fn multi_insert(&mut self) {
        let mut numbers: Vec<u64> = (0..8).map(|_| self.key()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        self.rng.shuffle(&mut numbers);
        let values: Vec<u64> = numbers.iter().map(|_| self.fresh_value()).collect();
        let pairs: Vec<_> = numbers
            .iter()
            .zip(&values)
            .map(|(n, v)| (key::<H>(*n), value::<H>(*v)))
            .collect();
        let mut out = Vec::new();
        let start = self.now();
        self.index.multi_insert(&pairs, &mut out);
        let end = self.now();
        assert_eq!(out.len(), pairs.len(), "one answer a pair");
        for ((n, v), answer) in numbers.into_iter().zip(values).zip(out) {
            self.note(
                n,
                start,
                end,
                Action::Insert {
                    value: v,
                    done: inserted(answer),
                },
            );
        }
    }

    fn scan(&mut self) {
        let from = self.rng.below(KEYS);
        let to = (from + 1 + self.rng.below(80)).min(KEYS);
        let (low, high) = (key::<H>(from), key::<H>(to));
        let mut seen: Vec<(u64, u64)> = Vec::new();
        let start = self.now();
        let range = (
            std::ops::Bound::Included(low.borrow()),
            std::ops::Bound::Excluded(high.borrow()),
        );
        self.index.scan(range, |k: &H::Key, v: &H::Value| {
            seen.push((k.number(), v.number()));
            ControlFlow::Continue(())
        });
        let end = self.now();
        assert!(
            seen.is_sorted_by(|a, b| a.0 < b.0),
            "strict order: {seen:?}"
        );
        assert!(
            seen.iter().all(|(n, _)| (from..to).contains(n)),
            "{from}..{to}: {seen:?}"
        );
        let seen: HashMap<u64, u64> = seen.into_iter().collect();
        for n in from..to {
            self.note(n, start, end, Action::Read(seen.get(&n).copied()));
        }
    }
}

fn inserted(answer: Result<(), InsertError>) -> bool {
    match answer {
        Ok(()) => true,
        Err(InsertError::KeyExists) => false,
        Err(e) => panic!("insert: {e}"),
    }
}
