//! Randomised histories of threads, checked for isolation anomalies; and the checker, checked with
//! anomalies that are planted.

mod checker;

use crate::common::Fixture;
use bristlecone_pmem::media::Auto;
use bristlecone_store::{Isolation, Store, StoreOptions, TransactionOptions, WriteError};
use checker::{Anomaly, Kind, Op, Txn, check, check_snapshot_isolation};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Keys that are in use at a time.
const KEYS: u64 = 6;
/// Operations after which one of them is left alone, and a new one comes.
const LIFE: u64 = 120;

fn encode(list: &[u64]) -> Vec<u8> {
    list.iter()
        .flat_map(|element| element.to_le_bytes())
        .collect()
}

fn decode(bytes: &[u8]) -> Vec<u64> {
    let (words, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty());
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

struct Client<'a> {
    f: &'a Fixture,
    session: u64,
    rng: SmallRng,
    /// Operations of all clients, which the keys in use follow.
    clock: &'a AtomicU64,
    made: u64,
    history: Vec<Txn>,
}

impl Client<'_> {
    fn key(&mut self) -> u64 {
        self.clock.load(Ordering::Relaxed) / LIFE + self.rng.random_range(0..KEYS)
    }

    fn element(&mut self) -> u64 {
        self.made += 1;
        self.session << 32 | self.made
    }

    /// Appends without a transaction.
    fn append_alone(&mut self) {
        let (key, element) = (self.key(), self.element());
        let mut before = Vec::new();
        self.f
            .store
            .merge(&self.f.k, &key.to_be_bytes(), |old| {
                before = decode(old.unwrap_or_default());
                Some([old.unwrap_or_default(), &element.to_le_bytes()].concat())
            })
            .unwrap();
        let ops = vec![Op::Read { key, list: before }, Op::Append { key, element }];
        self.done(ops, true);
    }

    fn done(&mut self, ops: Vec<Op>, committed: bool) {
        self.clock.fetch_add(ops.len() as u64, Ordering::Relaxed);
        let session = self.session;
        self.history.push(Txn {
            session,
            ops,
            committed,
        });
    }

    fn transaction(&mut self, isolation: Isolation) {
        let f = self.f;
        let mut tx = f.store.begin(TransactionOptions { isolation });
        let mut ops = Vec::new();
        for _ in 0..self.rng.random_range(1..6) {
            let key = self.key();
            match self.rng.random_range(0..10) {
                0..=3 => {
                    let bytes = tx.get(&f.k, &key.to_be_bytes()).unwrap();
                    let list = decode(&bytes.unwrap_or_default());
                    ops.push(Op::Read { key, list });
                }
                4 => {
                    // A range: also of keys that are not there yet.
                    let mut lists: std::collections::BTreeMap<u64, Vec<u64>> =
                        (key..key + 3).map(|key| (key, Vec::new())).collect();
                    let range = key.to_be_bytes().to_vec()..(key + 3).to_be_bytes().to_vec();
                    tx.scan(&f.k, range, |key, entry| {
                        let key = u64::from_be_bytes(key.try_into().unwrap());
                        lists.insert(key, decode(entry.value));
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                    ops.extend(lists.into_iter().map(|(key, list)| Op::Read { key, list }));
                }
                _ => {
                    let element = self.element();
                    let bytes = tx.get(&f.k, &key.to_be_bytes()).unwrap();
                    let mut list = decode(&bytes.unwrap_or_default());
                    list.push(element);
                    tx.put(&f.k, &key.to_be_bytes(), &encode(&list)).unwrap();
                    ops.push(Op::Append { key, element });
                }
            }
        }
        if self.rng.random_bool(0.05) {
            tx.rollback();
            self.done(ops, false);
            return;
        }
        match tx.commit() {
            Ok(_) => self.done(ops, true),
            Err(WriteError::Conflict(_)) => self.done(ops, false),
            Err(e) => unreachable!("{e}"),
        }
    }
}

/// All lists as one transaction reads them at the end.
fn read_all(store: &Store<Auto>) -> Txn {
    let mut ops = Vec::new();
    store
        .snapshot()
        .scan::<Vec<u8>>(&crate::common::k(store), .., |key, entry| {
            let key = u64::from_be_bytes(key.try_into().unwrap());
            let list = decode(entry.value);
            ops.push(Op::Read { key, list });
            ControlFlow::Continue(())
        })
        .unwrap();
    Txn {
        session: u64::MAX,
        ops,
        committed: true,
    }
}

/// So many operations of some threads, the vacuum going on meanwhile; read at the end by the store
/// itself, and after a kill.
fn history(
    design: &str,
    seed: u64,
    threads: u64,
    operations: u64,
    isolation: Isolation,
) -> [Vec<Txn>; 2] {
    let f = Fixture::with(
        design,
        StoreOptions {
            vacuum_every: Some(Duration::from_millis(1)),
            ..StoreOptions::default()
        },
    );
    let clock = AtomicU64::new(0);
    let mut all: Vec<Txn> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..threads)
            .map(|session| {
                let (f, clock) = (&f, &clock);
                scope.spawn(move || {
                    let mut client = Client {
                        f,
                        session,
                        rng: SmallRng::seed_from_u64(seed << 8 | session),
                        clock,
                        made: 0,
                        history: Vec::new(),
                    };
                    while clock.load(Ordering::Relaxed) < operations {
                        if client.rng.random_bool(0.2) {
                            client.append_alone();
                        } else {
                            client.transaction(isolation);
                        }
                    }
                    client.history
                })
            })
            .collect();
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    });
    let mut killed = all.clone();
    killed.push(read_all(&f.killed()));
    all.push(read_all(&f.store));
    f.store.vacuum_all().unwrap();
    f.store.check().unwrap();
    [all, killed]
}

fn none(found: &[Anomaly]) {
    assert!(
        found.is_empty(),
        "{}",
        found
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ")
    );
}

fn hold(design: &str, seed: u64, threads: u64, operations: u64) {
    for history in history(design, seed, threads, operations, Isolation::Snapshot) {
        none(&check_snapshot_isolation(&history));
        let aborted = history.iter().filter(|txn| !txn.committed).count();
        assert!(0 < aborted && aborted < history.len(), "{aborted}");
    }
    for history in history(design, seed, threads, operations, Isolation::Serializable) {
        none(&check(&history));
    }
}

#[test]
fn randomised_histories_have_no_anomalies() {
    for design in crate::common::ALL {
        hold(design, 1, 4, 12_000);
    }
}

/// For the whole of the tests: `cargo test -p bristlecone-store --test all -- --ignored`, and the
/// same of `bristlecone-nv-store`.
#[test]
#[ignore = "a minute or so"]
fn a_million_operations_have_no_anomalies() {
    for design in crate::common::ALL {
        hold(design, 2, 8, 1_000_000);
    }
}

fn txn(session: u64, ops: &[Op]) -> Txn {
    Txn {
        session,
        ops: ops.to_vec(),
        committed: true,
    }
}

fn a(key: u64, element: u64) -> Op {
    Op::Append { key, element }
}

fn r(key: u64, list: &[u64]) -> Op {
    Op::Read {
        key,
        list: list.to_vec(),
    }
}

fn kinds(history: &[Txn]) -> Vec<Kind> {
    check(history).iter().map(|anomaly| anomaly.kind).collect()
}

#[test]
fn the_checker_finds_what_is_planted() {
    let fine = [
        txn(1, &[a(1, 1), a(2, 2)]),
        txn(1, &[r(1, &[1]), a(1, 3), r(1, &[1, 3])]),
        txn(2, &[r(2, &[2]), r(1, &[1, 3])]),
    ];
    assert_eq!(kinds(&fine), []);
    let g0 = [
        txn(1, &[a(1, 1), a(2, 2)]),
        txn(2, &[a(1, 3), a(2, 4)]),
        txn(3, &[r(1, &[1, 3]), r(2, &[4, 2])]),
    ];
    assert_eq!(kinds(&g0), [Kind::G0]);
    let mut g1a = [txn(1, &[a(1, 1)]), txn(2, &[r(1, &[1])])];
    g1a[0].committed = false;
    assert_eq!(kinds(&g1a), [Kind::G1a]);
    let g1b = [
        txn(1, &[a(1, 1), a(1, 2)]),
        txn(2, &[r(1, &[1])]),
        txn(3, &[r(1, &[1, 2])]),
    ];
    assert!(kinds(&g1b).contains(&Kind::G1b));
    let g1c = [
        txn(1, &[a(1, 1), r(2, &[2])]),
        txn(2, &[a(2, 2), r(1, &[1])]),
    ];
    assert_eq!(kinds(&g1c), [Kind::G1c]);
    let g_single = [
        txn(1, &[a(1, 1), a(2, 2)]),
        txn(2, &[r(1, &[]), r(2, &[2])]),
        txn(3, &[r(1, &[1])]),
    ];
    assert_eq!(kinds(&g_single), [Kind::GSingle]);
    // Two readers that see two writers in different orders.
    let long_fork = [
        txn(1, &[a(1, 1)]),
        txn(2, &[a(2, 2)]),
        txn(3, &[r(1, &[1]), r(2, &[])]),
        txn(4, &[r(1, &[]), r(2, &[2])]),
    ];
    assert_eq!(kinds(&long_fork), [Kind::GNonadjacent]);
    let write_skew = [
        txn(1, &[r(1, &[]), r(2, &[]), a(1, 1)]),
        txn(2, &[r(1, &[]), r(2, &[]), a(2, 2)]),
        txn(3, &[r(1, &[1]), r(2, &[2])]),
    ];
    assert_eq!(kinds(&write_skew), [Kind::G2]);
    none(&check_snapshot_isolation(&write_skew));
    let lost_update = [
        txn(1, &[r(1, &[]), a(1, 1)]),
        txn(2, &[r(1, &[]), a(1, 2)]),
        txn(3, &[r(1, &[2])]),
    ];
    assert!(kinds(&lost_update).contains(&Kind::Lost));
    let both_from_nothing = [
        txn(1, &[r(1, &[]), a(1, 1)]),
        txn(2, &[r(1, &[]), a(1, 2)]),
        txn(3, &[r(1, &[1, 2])]),
    ];
    assert_eq!(kinds(&both_from_nothing), [Kind::GSingle]);
    let forgets = [txn(1, &[a(1, 1), r(1, &[])]), txn(2, &[r(1, &[1])])];
    assert!(kinds(&forgets).contains(&Kind::Internal));
    let unrepeatable = [txn(1, &[a(1, 1)]), txn(2, &[r(1, &[]), r(1, &[1])])];
    assert!(kinds(&unrepeatable).contains(&Kind::Internal));
    let disordered = [
        txn(1, &[a(1, 1)]),
        txn(2, &[a(1, 2)]),
        txn(3, &[r(1, &[1, 2])]),
        txn(4, &[r(1, &[2])]),
    ];
    assert!(kinds(&disordered).contains(&Kind::Disordered));
    assert_eq!(kinds(&[txn(1, &[r(1, &[9])])]), [Kind::Foreign]);
    // A client that does not see what it committed before.
    let stale = [
        txn(1, &[a(1, 1)]),
        txn(1, &[r(1, &[])]),
        txn(2, &[r(1, &[1])]),
    ];
    assert_eq!(kinds(&stale), [Kind::GSingle]);
}

/// A history of the store with one read made older, or one element taken away, is noticed.
#[test]
fn the_checker_finds_what_is_planted_into_a_real_history() {
    let [mut all, _] = history(crate::common::USUAL, 3, 3, 6_000, Isolation::Serializable);
    none(&check(&all));
    let mut rng = SmallRng::seed_from_u64(4);
    let (mut tried, mut noticed) = (0, 0);
    while tried < 20 {
        let t = rng.random_range(0..all.len() - 1);
        let genuine = all[t].clone();
        let reads = all[t].ops.iter_mut().filter_map(|op| match op {
            Op::Read { list, .. } if list.len() > 2 => Some(list),
            _ => None,
        });
        let Some(list) = reads.last().filter(|_| genuine.committed) else {
            continue;
        };
        list.truncate(list.len() - 2);
        tried += 1;
        noticed += usize::from(!check(&all).is_empty());
        all[t] = genuine;
    }
    // An older time may be as good for who wrote nothing.
    assert!(noticed >= 10, "{noticed} of {tried}");
}
