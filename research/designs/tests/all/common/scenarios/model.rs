//! Random operations against `BTreeMap`, shrunk to the shortest history that fails.

use super::super::kinds::bound_ref;
use super::super::reference::is_void;
use super::super::{Harness, TestKey, TestValue};
use super::{Model, assert_holds, short};
use bristlecone_designs::{InsertError, OrderedIndex, ReverseScan, UpdateError};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::borrow::Borrow;
use std::fmt::Debug;
use std::ops::{Bound, ControlFlow};

/// One operation; values are numbered.
#[derive(Clone, Debug)]
enum Op<K> {
    Insert(K, u64),
    Upsert(K, u64),
    Update(K, u64),
    Remove(K),
    Get(K),
    /// Bounds, and the number of pairs after which the scan stops.
    Scan(Bound<K>, Bound<K>, usize),
    ScanReverse(Bound<K>, Bound<K>, usize),
    MultiGet(Vec<K>),
    MultiInsert(Vec<(K, u64)>),
    /// Inserts `count` keys from `first`, `step` apart, which causes splits.
    InsertRun(u64, u64, u64),
    /// Removes the keys of a range, which empties leaves.
    RemoveRange(Bound<K>, Bound<K>),
}

fn bound<K: TestKey + ?Sized>() -> BoxedStrategy<Bound<K::Owned>> {
    prop_oneof![
        2 => K::clustered().prop_map(Bound::Included),
        2 => K::clustered().prop_map(Bound::Excluded),
        1 => Just(Bound::Unbounded),
    ]
    .boxed()
}

fn op<K: TestKey + ?Sized>() -> BoxedStrategy<Op<K::Owned>> {
    let k = || K::clustered();
    let n = any::<u32>().prop_map(u64::from);
    prop_oneof![
        20 => (k(), n.clone()).prop_map(|(k, v)| Op::Insert(k, v)),
        8 => (k(), n.clone()).prop_map(|(k, v)| Op::Upsert(k, v)),
        8 => (k(), n.clone()).prop_map(|(k, v)| Op::Update(k, v)),
        14 => k().prop_map(Op::Remove),
        8 => k().prop_map(Op::Get),
        6 => (bound::<K>(), bound::<K>(), limit()).prop_map(|(a, b, n)| Op::Scan(a, b, n)),
        6 => (bound::<K>(), bound::<K>(), limit()).prop_map(|(a, b, n)| Op::ScanReverse(a, b, n)),
        3 => vec(k(), 0..40).prop_map(Op::MultiGet),
        3 => vec((k(), n), 0..40).prop_map(Op::MultiInsert),
        4 => (0..400u64, 1..60u64, 1..4u64).prop_map(|(a, n, s)| Op::InsertRun(a, n, s)),
        2 => (bound::<K>(), bound::<K>()).prop_map(|(a, b)| Op::RemoveRange(a, b)),
    ]
    .boxed()
}

fn limit() -> BoxedStrategy<usize> {
    prop_oneof![1 => 1..6usize, 2 => Just(usize::MAX)].boxed()
}

/// How the scenario scans downwards, for the designs that can.
trait Downwards<H: Harness> {
    /// Returns the first `limit` pairs of the range from above, or `None` for a design that cannot
    /// scan downwards.
    fn collect(
        index: &H::Index,
        range: (Bound<&H::Key>, Bound<&H::Key>),
        limit: usize,
    ) -> Option<Vec<super::KeyValue<H>>>;
}

struct ForwardOnly;
struct BothWays;

impl<H: Harness> Downwards<H> for ForwardOnly {
    fn collect(
        _: &H::Index,
        _: (Bound<&H::Key>, Bound<&H::Key>),
        _: usize,
    ) -> Option<Vec<super::KeyValue<H>>> {
        None
    }
}

impl<H: Harness> Downwards<H> for BothWays
where
    H::Index: ReverseScan<H::Key, H::Value>,
{
    fn collect(
        index: &H::Index,
        range: (Bound<&H::Key>, Bound<&H::Key>),
        limit: usize,
    ) -> Option<Vec<super::KeyValue<H>>> {
        let mut seen = Vec::new();
        index.scan_reverse(range, |k, v| {
            seen.push((k.to_owned(), v.to_owned()));
            if seen.len() >= limit {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        Some(seen)
    }
}

/// The operations of every design.
pub fn forward<H: Harness>() {
    run::<H, ForwardOnly>();
}

/// The same with downward scans.
pub fn both_directions<H: Harness>()
where
    H::Index: ReverseScan<H::Key, H::Value>,
{
    run::<H, BothWays>();
}

fn run<H: Harness, D: Downwards<H>>() {
    let config = Config {
        cases: 40,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    let result = runner.run(&vec(op::<H::Key>(), 1..300), |ops| {
        let fresh = H::fresh();
        let mut model = Model::<H>::new();
        for (i, op) in ops.iter().enumerate() {
            step::<H, D>(&fresh.index, &mut model, op)
                .map_err(|e| TestCaseError::fail(format!("operation {i}, {}: {e}", short(op))))?;
            if i % 64 == 63 {
                assert_holds::<H>(&fresh.index, &model, "between");
            }
        }
        assert_holds::<H>(&fresh.index, &model, "at the end");
        Ok(())
    });
    if let Err(e) = result {
        panic!("{e}");
    }
}

fn same<T: PartialEq + Debug>(what: &str, found: &T, expected: &T) -> Result<(), TestCaseError> {
    if found == expected {
        return Ok(());
    }
    Err(TestCaseError::fail(format!(
        "{what}: {} where {} belongs",
        short(found),
        short(expected)
    )))
}

fn step<H: Harness, D: Downwards<H>>(
    index: &H::Index,
    model: &mut Model<H>,
    op: &Op<<H::Key as ToOwned>::Owned>,
) -> Result<(), TestCaseError> {
    match op {
        Op::Insert(k, v) => insert::<H>(index, model, k, *v),
        Op::Upsert(k, v) => {
            let v = H::Value::of(*v);
            let there = index.upsert(k.borrow(), v.borrow());
            let there = there.map_err(|e| TestCaseError::fail(e.to_string()))?;
            same("upsert", &there, &model.insert(k.clone(), v).is_some())
        }
        Op::Update(k, v) => {
            let v = H::Value::of(*v);
            let done = match index.update(k.borrow(), v.borrow()) {
                Ok(()) => true,
                Err(UpdateError::NotFound) => false,
                Err(e) => return Err(TestCaseError::fail(e.to_string())),
            };
            same("update", &done, &model.contains_key(k.borrow()))?;
            model.entry(k.clone()).and_modify(|old| *old = v);
            Ok(())
        }
        Op::Remove(k) => remove::<H>(index, model, k),
        Op::Get(k) => same(
            "get",
            &index.get(k.borrow()),
            &model.get(k.borrow()).cloned(),
        ),
        Op::Scan(a, b, limit) => {
            let range = (bound_ref::<H::Key>(a), bound_ref::<H::Key>(b));
            scan::<H>(index, model, range, *limit)
        }
        Op::ScanReverse(a, b, limit) => {
            let range = (bound_ref::<H::Key>(a), bound_ref::<H::Key>(b));
            let Some(seen) = D::collect(index, range, *limit) else {
                return Ok(());
            };
            let mut expected = in_range::<H>(model, range);
            expected.reverse();
            expected.truncate(*limit);
            same("reverse scan", &seen, &expected)
        }
        Op::MultiGet(keys) => {
            // Old content of `out` must not survive.
            let mut out = vec![None; 3];
            index.multi_get(keys, &mut out);
            let expected: Vec<_> = keys
                .iter()
                .map(|k| model.get(k.borrow()).cloned())
                .collect();
            same("multi_get", &out, &expected)
        }
        Op::MultiInsert(pairs) => multi_insert::<H>(index, model, pairs),
        Op::InsertRun(first, count, step) => {
            for n in 0..*count {
                insert::<H>(index, model, &H::Key::of(first + n * step), n)?;
            }
            Ok(())
        }
        Op::RemoveRange(a, b) => {
            let range = (bound_ref::<H::Key>(a), bound_ref::<H::Key>(b));
            for (k, _) in in_range::<H>(model, range) {
                remove::<H>(index, model, &k)?;
            }
            Ok(())
        }
    }
}

fn scan<H: Harness>(
    index: &H::Index,
    model: &Model<H>,
    range: (Bound<&H::Key>, Bound<&H::Key>),
    limit: usize,
) -> Result<(), TestCaseError> {
    let mut seen = Vec::new();
    index.scan(range, |k: &H::Key, v: &H::Value| {
        seen.push((k.to_owned(), v.to_owned()));
        if seen.len() >= limit {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    let mut expected = in_range::<H>(model, range);
    expected.truncate(limit);
    same("scan", &seen, &expected)
}

fn multi_insert<H: Harness>(
    index: &H::Index,
    model: &mut Model<H>,
    pairs: &[(<H::Key as ToOwned>::Owned, u64)],
) -> Result<(), TestCaseError> {
    let pairs: Vec<_> = pairs
        .iter()
        .map(|(k, v)| (k.clone(), H::Value::of(*v)))
        .collect();
    let mut out = vec![Ok(())];
    index.multi_insert(&pairs, &mut out);
    same("answers of multi_insert", &out.len(), &pairs.len())?;
    for ((k, v), answer) in pairs.into_iter().zip(out) {
        let done = match answer {
            Ok(()) => true,
            Err(InsertError::KeyExists) => false,
            Err(e) => return Err(TestCaseError::fail(e.to_string())),
        };
        same(
            &format!("multi_insert of {}", short(&k)),
            &done,
            &!model.contains_key(k.borrow()),
        )?;
        model.entry(k).or_insert(v);
    }
    Ok(())
}

fn insert<H: Harness>(
    index: &H::Index,
    model: &mut Model<H>,
    k: &<H::Key as ToOwned>::Owned,
    v: u64,
) -> Result<(), TestCaseError> {
    let v = H::Value::of(v);
    let done = match index.insert(k.borrow(), v.borrow()) {
        Ok(()) => true,
        Err(InsertError::KeyExists) => false,
        Err(e) => return Err(TestCaseError::fail(e.to_string())),
    };
    same("insert", &done, &!model.contains_key(k.borrow()))?;
    model.entry(k.clone()).or_insert(v);
    Ok(())
}

fn remove<H: Harness>(
    index: &H::Index,
    model: &mut Model<H>,
    k: &<H::Key as ToOwned>::Owned,
) -> Result<(), TestCaseError> {
    let there = index
        .remove(k.borrow())
        .map_err(|e| TestCaseError::fail(e.to_string()))?;
    same("remove", &there, &model.remove(k.borrow()).is_some())
}

fn in_range<H: Harness>(
    model: &Model<H>,
    range: (Bound<&H::Key>, Bound<&H::Key>),
) -> Vec<super::KeyValue<H>> {
    if is_void::<H::Key>(&range) {
        return Vec::new();
    }
    model
        .range::<H::Key, _>(range)
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect()
}
