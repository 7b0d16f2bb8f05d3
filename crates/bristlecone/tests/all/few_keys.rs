//! Random steps over few keys: iterators that are held over changes and advanced from both ends,
//! pops, removals of ranges, snapshots, keyspaces of one name, and transactions that meet. A model
//! has a map for each of them. (What the store below does with versions, expiries, vacuums and
//! kills is compared in its own tests.)

use crate::database;
use bristlecone::{Database, ErrorKind, Iter, Keyspace, Result, Slice, Snapshot, Transaction};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, RangeBounds};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Range = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The empty key, one and its immediate successor, one that begins like them, and the end of the
/// order.
const KEYS: [&[u8]; 6] = [b"", b"a", b"a\0", b"ab", b"\xff", b"\xff\xff"];
/// Iterators that are held, and transactions.
const HELD: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Insert(Vec<u8>),
    Remove(Vec<u8>),
    RemoveRange(Range),
    /// So many others, at once, behind all beginnings: more than are read ahead.
    Fill(u8),
    Pop(bool),
    Clear,
    Recreate,
    Rename,
    Snapshot,
    Hold(usize, Range, bool),
    HoldPrefix(usize, Vec<u8>),
    /// So many steps from that end.
    Advance(usize, bool, usize),
    Begin(usize),
    TxInsert(usize, Vec<u8>),
    TxRemove(usize, Vec<u8>),
    TxSavepoint(usize),
    TxRollback(usize, usize),
    /// Steps from both ends.
    TxIterate(usize, Range, Vec<bool>),
    Commit(usize),
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    (0..KEYS.len()).prop_map(|i| KEYS[i].to_vec())
}

fn bound() -> impl Strategy<Value = Bound<Vec<u8>>> {
    prop_oneof![
        Just(Bound::Unbounded),
        key().prop_map(Bound::Included),
        key().prop_map(Bound::Excluded),
    ]
}

fn range() -> impl Strategy<Value = Range> {
    (bound(), bound())
}

fn step() -> impl Strategy<Value = Step> {
    let held = || 0..HELD;
    prop_oneof![
        6 => key().prop_map(Step::Insert),
        3 => key().prop_map(Step::Remove),
        1 => range().prop_map(Step::RemoveRange),
        1 => (24_u8..40).prop_map(Step::Fill),
        2 => any::<bool>().prop_map(Step::Pop),
        1 => prop_oneof![Just(Step::Clear), Just(Step::Recreate), Just(Step::Rename)],
        1 => Just(Step::Snapshot),
        2 => (held(), range(), any::<bool>()).prop_map(|(i, of, old)| Step::Hold(i, of, old)),
        1 => (held(), key()).prop_map(|(i, prefix)| Step::HoldPrefix(i, prefix)),
        4 => (held(), any::<bool>(), prop_oneof![0_usize..4, 25_usize..40])
            .prop_map(|(i, up, steps)| Step::Advance(i, up, steps)),
        2 => held().prop_map(Step::Begin),
        3 => (held(), key()).prop_map(|(i, key)| Step::TxInsert(i, key)),
        2 => (held(), key()).prop_map(|(i, key)| Step::TxRemove(i, key)),
        1 => held().prop_map(Step::TxSavepoint),
        1 => (held(), 0_usize..3).prop_map(|(i, back)| Step::TxRollback(i, back)),
        2 => (held(), range(), proptest::collection::vec(any::<bool>(), 0..10))
            .prop_map(|(i, of, ends)| Step::TxIterate(i, of, ends)),
        2 => held().prop_map(Step::Commit),
    ]
}

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// A transaction, what it sees, and what it has changed.
struct Held {
    inner: Transaction,
    seen: Map,
    changed: Vec<Vec<u8>>,
    /// The number of changes that others had made when it began.
    since: u64,
    /// In which keyspace.
    of: Keyspace,
    saved: Vec<(bristlecone::Savepoint, Map, Vec<Vec<u8>>)>,
}

struct Bench {
    db: Database,
    k: Keyspace,
    map: Map,
    /// The number of the last change of each key, and of all.
    changes: BTreeMap<Vec<u8>, u64>,
    number: u64,
    old: Option<(Snapshot, Keyspace, Map)>,
    iterators: [Option<(Iter, VecDeque<Pair>)>; HELD],
    transactions: [Option<Held>; HELD],
}

fn inside(map: &Map, range: &Range) -> VecDeque<(Vec<u8>, Vec<u8>)> {
    let all = map.iter().filter(|(key, _)| range.contains(*key));
    all.map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn pair(found: Option<Result<(Slice, Slice)>>) -> Option<(Vec<u8>, Vec<u8>)> {
    found.map(|found| {
        let (key, value) = found.unwrap();
        (key.to_vec(), value.to_vec())
    })
}

fn listed(iter: Iter) -> Vec<(Vec<u8>, Vec<u8>)> {
    iter.map(|found| pair(Some(found)).unwrap()).collect()
}

impl Bench {
    fn value(&self) -> Vec<u8> {
        let size = [1, 40, 500, 3000][(self.number % 4) as usize];
        format!("{} ", self.number)
            .into_bytes()
            .into_iter()
            .cycle()
            .take(size)
            .collect()
    }

    fn changed(&mut self, key: &[u8], value: Option<Vec<u8>>) {
        self.number += 1;
        let was_there = match value {
            Some(value) => {
                self.map.insert(key.to_vec(), value);
                true
            }
            None => self.map.remove(key).is_some(),
        };
        if was_there {
            self.changes.insert(key.to_vec(), self.number);
        }
    }

    /// The keyspace is another one, with nothing in it.
    fn emptied(&mut self, k: Keyspace) {
        self.k = k;
        self.map.clear();
        self.changes.clear();
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Insert(key) => {
                let value = self.value();
                self.k.insert(&key, &value).unwrap();
                self.changed(&key, Some(value));
            }
            Step::Remove(key) => {
                let there = self.k.remove(&key).unwrap();
                assert_eq!(there, self.map.contains_key(&key));
                self.changed(&key, None);
            }
            Step::RemoveRange(range) => {
                let gone = inside(&self.map, &range);
                let removed = self.k.remove_range::<Vec<u8>>(range).unwrap();
                assert_eq!(removed, gone.len() as u64);
                for (key, _) in gone {
                    self.changed(&key, None);
                }
            }
            Step::Fill(most) => {
                for i in 0..most {
                    let (key, value) = ([b"ab", &[i][..]].concat(), self.value());
                    self.k.insert(&key, &value).unwrap();
                    self.changed(&key, Some(value));
                }
            }
            Step::Pop(first) => {
                let (popped, expected) = if first {
                    (self.k.pop_first(), self.map.first_key_value())
                } else {
                    (self.k.pop_last(), self.map.last_key_value())
                };
                let expected = expected.map(|(key, value)| (key.clone(), value.clone()));
                assert_eq!(pair(popped.transpose()), expected);
                if let Some((key, _)) = expected {
                    self.changed(&key, None);
                }
            }
            Step::Clear => {
                let empty = self.k.clone().clear().unwrap();
                self.emptied(empty);
            }
            Step::Recreate => {
                self.k.clone().remove_keyspace().unwrap();
                let again = self.db.keyspace("k").unwrap();
                assert_ne!(again, self.k);
                self.emptied(again);
            }
            Step::Rename => {
                let other = self.k.rename("other").unwrap();
                assert!(self.db.find_keyspace("k").is_none() && other == self.k);
                self.k = other.rename("k").unwrap();
            }
            Step::Snapshot => {
                let (k, map) = (self.k.clone(), self.map.clone());
                self.old = Some((self.db.snapshot(), k, map));
            }
            Step::Hold(i, range, in_old) => {
                self.iterators[i] = Some(match &self.old {
                    Some((snapshot, k, map)) if in_old => {
                        let iter = k.at(snapshot).unwrap().range::<Vec<u8>>(range.clone());
                        (iter, inside(map, &range))
                    }
                    _ => {
                        let iter = self.k.range::<Vec<u8>>(range.clone());
                        (iter, inside(&self.map, &range))
                    }
                });
            }
            Step::HoldPrefix(i, prefix) => {
                let mut expected = inside(&self.map, &(Bound::Unbounded, Bound::Unbounded));
                expected.retain(|(key, _)| key.starts_with(&prefix));
                self.iterators[i] = Some((self.k.prefix(&prefix), expected));
            }
            Step::Advance(i, up, steps) => {
                if let Some((iter, expected)) = &mut self.iterators[i] {
                    for _ in 0..steps {
                        let (found, expected) = if up {
                            (iter.next(), expected.pop_front())
                        } else {
                            (iter.next_back(), expected.pop_back())
                        };
                        assert_eq!(pair(found), expected);
                    }
                }
            }
            of_transaction => self.transaction(of_transaction),
        }
    }

    fn transaction(&mut self, step: Step) {
        let value = self.value();
        let (Step::Begin(i)
        | Step::TxInsert(i, _)
        | Step::TxRemove(i, _)
        | Step::TxSavepoint(i)
        | Step::TxRollback(i, _)
        | Step::TxIterate(i, ..)
        | Step::Commit(i)) = step
        else {
            unreachable!("{step:?}")
        };
        if let Step::Begin(_) = step {
            self.transactions[i] = Some(Held {
                inner: self.db.begin(),
                seen: self.map.clone(),
                changed: Vec::new(),
                since: self.number,
                of: self.k.clone(),
                saved: Vec::new(),
            });
        }
        let Some(tx) = &mut self.transactions[i] else {
            return;
        };
        match step {
            Step::TxInsert(_, key) => {
                tx.inner.insert(&tx.of, &key, &value).unwrap();
                tx.seen.insert(key.clone(), value);
                tx.changed.push(key);
            }
            Step::TxRemove(_, key) => {
                tx.inner.remove(&tx.of, &key).unwrap();
                tx.seen.remove(&key);
                tx.changed.push(key);
            }
            Step::TxSavepoint(_) => {
                let now = (tx.inner.savepoint(), tx.seen.clone(), tx.changed.clone());
                tx.saved.push(now);
            }
            Step::TxRollback(_, back) => {
                if let Some(at) = tx.saved.len().checked_sub(1 + back) {
                    // The later ones are undone with it.
                    tx.saved.truncate(at + 1);
                    let (point, seen, changed) = tx.saved[at].clone();
                    tx.inner.rollback_to(point);
                    (tx.seen, tx.changed) = (seen, changed);
                }
            }
            Step::TxIterate(_, range, ends) => {
                let mut expected = inside(&tx.seen, &range);
                let mut iter = tx.inner.range::<Vec<u8>>(&tx.of, range);
                for up in ends {
                    let (found, expected) = if up {
                        (iter.next(), expected.pop_front())
                    } else {
                        (iter.next_back(), expected.pop_back())
                    };
                    assert_eq!(pair(found), expected);
                }
            }
            Step::Commit(_) => self.commit(i),
            _ => {}
        }
    }

    fn commit(&mut self, i: usize) {
        let Some(mut tx) = self.transactions[i].take() else {
            return;
        };
        tx.changed.sort();
        tx.changed.dedup();
        assert_eq!(tx.inner.changes(), tx.changed.len());
        let is_newer = |key: &Vec<u8>| self.changes.get(key).is_some_and(|at| *at > tx.since);
        let committed = tx.inner.commit().map_err(|e| e.kind());
        if tx.changed.is_empty() {
            assert_eq!(committed, Ok(0));
        } else if tx.of != self.k {
            assert_eq!(committed, Err(ErrorKind::Dropped));
        } else if tx.changed.iter().any(is_newer) {
            assert_eq!(committed, Err(ErrorKind::Conflict));
        } else {
            assert!(committed.is_ok(), "{committed:?}");
            for key in tx.changed {
                let value = tx.seen.get(&key).cloned();
                self.changed(&key, value);
            }
        }
    }

    /// Compares what can be read now, and in the old snapshot.
    fn look(&self) {
        let all = || Vec::from(inside(&self.map, &(Bound::Unbounded, Bound::Unbounded)));
        assert_eq!(listed(self.k.iter()), all());
        let down: Vec<_> = self.k.iter().rev().map(|found| pair(Some(found))).collect();
        assert!(down.into_iter().rev().eq(all().into_iter().map(Some)));
        assert_eq!(pair(self.k.first().transpose()), all().first().cloned());
        assert_eq!(pair(self.k.last().transpose()), all().last().cloned());
        let several = self.k.multi_get(KEYS).unwrap();
        for (key, found) in KEYS.into_iter().zip(several) {
            assert_eq!(found.as_ref(), self.map.get(key));
            assert_eq!(self.k.contains_key(key).unwrap(), found.is_some());
            let prefixed: Vec<_> = all()
                .into_iter()
                .filter(|(other, _)| other.starts_with(key))
                .collect();
            assert_eq!(listed(self.k.prefix(key)), prefixed);
        }
        if let Some((snapshot, k, map)) = &self.old {
            let expected = Vec::from(inside(map, &(Bound::Unbounded, Bound::Unbounded)));
            assert_eq!(listed(k.at(snapshot).unwrap().iter()), expected);
        }
        for tx in self.transactions.iter().flatten() {
            assert!(tx.inner.changes() <= tx.changed.len());
        }
    }
}

/// Cases, unless `SEEDS` in the environment says how many.
fn cases() -> u32 {
    std::env::var("SEEDS").map_or(150, |text| text.parse().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn steps_over_few_keys_do_as_maps_do(steps in proptest::collection::vec(step(), 0..60)) {
        let (_home, db) = database();
        let k = db.keyspace("k").unwrap();
        let mut bench = Bench {
            k,
            db,
            map: Map::new(),
            changes: BTreeMap::new(),
            number: 0,
            old: None,
            iterators: Default::default(),
            transactions: Default::default(),
        };
        for step in steps {
            bench.step(step);
            bench.look();
        }
        bench.db.check().unwrap();
    }
}
