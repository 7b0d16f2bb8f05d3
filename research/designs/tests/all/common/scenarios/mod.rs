//! One scenario per file. The suite's head says which design runs which.

pub mod batches;
pub mod boundary;
pub mod bulk;
pub mod compact;
pub mod emptied;
pub mod full_pool;
pub mod hostile;
pub mod model;
pub mod power_cuts;
pub mod read_only;
pub mod reopen;
pub mod roots;
pub mod splits;
pub mod stress;
pub mod values;

use super::{Harness, TestKey, TestValue};
use bristlecone_designs::OrderedIndex;
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// The expected content of an index.
pub type Model<H> =
    BTreeMap<<<H as Harness>::Key as ToOwned>::Owned, <<H as Harness>::Value as ToOwned>::Owned>;

/// Returns the `n`th key of a harness.
pub fn key<H: Harness + ?Sized>(n: u64) -> <H::Key as ToOwned>::Owned {
    H::Key::of(n)
}

/// Returns the `n`th value of a harness.
pub fn value<H: Harness + ?Sized>(n: u64) -> <H::Value as ToOwned>::Owned {
    H::Value::of(n)
}

/// Returns everything in the index, by a full scan.
pub fn content<H: Harness + ?Sized>(index: &H::Index) -> Vec<KeyValue<H>> {
    let mut all = Vec::new();
    index.scan(.., |k: &H::Key, v: &H::Value| {
        all.push((k.to_owned(), v.to_owned()));
        ControlFlow::Continue(())
    });
    all
}

/// A pair as an index owns it.
pub type KeyValue<H> = (
    <<H as Harness>::Key as ToOwned>::Owned,
    <<H as Harness>::Value as ToOwned>::Owned,
);

/// Checks that the index has the content of the model, by scan and by look-ups, and that it
/// verifies.
pub fn assert_holds<H: Harness + ?Sized>(index: &H::Index, model: &Model<H>, when: &str) {
    let report = index.verify().unwrap_or_else(|v| panic!("{when}: {v}"));
    assert_eq!(
        report.entries,
        model.len() as u64,
        "{when}: entries that verify saw"
    );
    assert_eq!(
        index.stats().entries,
        model.len() as u64,
        "{when}: entries in the statistics"
    );
    let mut expected = model.iter();
    let mut seen = 0;
    index.scan(.., |k: &H::Key, v: &H::Value| {
        let Some((ek, ev)) = expected.next() else {
            panic!("{when}: the scan found {} too many, first {}", 1, short(k));
        };
        assert!(
            k == ek.borrow(),
            "{when}: the scan's pair {seen} has key {} where {} belongs",
            short(k),
            short(ek)
        );
        assert!(
            v == ev.borrow(),
            "{when}: {} has {} for {}",
            short(k),
            short(v),
            short(ev)
        );
        seen += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(seen, model.len(), "{when}: pairs that the scan saw");
    for (k, v) in model {
        let same = index.get_with(k.borrow(), |found| found == v.borrow());
        assert_eq!(same, Some(true), "{when}: looking up {}", short(k));
    }
}

/// Returns enough of a key or value to recognise it.
pub fn short(x: &(impl std::fmt::Debug + ?Sized)) -> String {
    let mut text = format!("{x:?}");
    if text.len() > 120 {
        let whole = text.len();
        text.truncate(120);
        text += &format!("... ({whole} characters)");
    }
    text
}

/// Inserts or replaces in both.
pub fn put<H: Harness + ?Sized>(index: &H::Index, model: &mut Model<H>, k: u64, v: u64) {
    let (k, v) = (key::<H>(k), value::<H>(v));
    let there = index
        .upsert(k.borrow(), v.borrow())
        .unwrap_or_else(|e| panic!("upsert of {}: {e}", short(&k)));
    assert_eq!(there, model.insert(k, v).is_some(), "what upsert says");
}

/// Removes from both.
pub fn take<H: Harness + ?Sized>(index: &H::Index, model: &mut Model<H>, k: u64) {
    let k = key::<H>(k);
    let there = index
        .remove(k.borrow())
        .unwrap_or_else(|e| panic!("remove of {}: {e}", short(&k)));
    assert_eq!(
        there,
        model.remove(k.borrow()).is_some(),
        "what remove says"
    );
}

/// Executes deferred frees. Threads of other tests may be pinned for a while.
pub fn reclaim() {
    for _ in 0..200 {
        if bristlecone_pmem::sync::wait_for_readers() {
            break;
        }
    }
}
