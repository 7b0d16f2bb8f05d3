//! Tests of the suite itself, with an index that is correct by its simplicity, and copies of it
//! with one fault each, which the suite must find.

use crate::common::reference::{Reference, ReferenceHarness};
use crate::common::scenarios::{batches, boundary, bulk, emptied, model, splits, stress};
use crate::common::{Fresh, Harness, scenario_suite};
use bristlecone_designs::{
    BulkLoad, Fill, IndexStats, InsertError, OrderedIndex, RemoveError, UpdateError, VerifyReport,
    Violation,
};
use std::borrow::Borrow;
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::panic::catch_unwind;

scenario_suite!(numbers, ReferenceHarness<u64, u64>: [base, forward_only, reverse, bulk]);
scenario_suite!(strings, ReferenceHarness<[u8], [u8]>: [base, reverse, bulk]);

const UPSERT_IN_TWO_STEPS: u8 = 0;
const REMOVE_IN_TWO_STEPS: u8 = 1;
const SCAN_BY_POSITION: u8 = 2;
const SCAN_SKIPS_A_KEY: u8 = 3;
const UPDATE_INSERTS: u8 = 4;
const LOSES_THE_LARGEST: u8 = 5;
const SIGNED_BOUNDS: u8 = 6;
const LOADS_ANYTHING: u8 = 7;
const KEEPS_LEAVES: u8 = 8;
const LAST_OF_A_BATCH_WINS: u8 = 9;

/// The reference index with the fault `FAULT`.
struct Faulty<const FAULT: u8>(Reference<u64, u64>);

impl<const FAULT: u8> OrderedIndex<u64, u64> for Faulty<FAULT> {
    fn insert(&self, key: &u64, value: &u64) -> Result<(), InsertError> {
        if FAULT == LOSES_THE_LARGEST && *key == u64::MAX {
            return Ok(());
        }
        self.0.insert(key, value)
    }

    fn upsert(&self, key: &u64, value: &u64) -> Result<bool, InsertError> {
        if FAULT == UPSERT_IN_TWO_STEPS {
            let there = self.0.get(key).is_some();
            std::thread::yield_now();
            self.0.upsert(key, value)?;
            return Ok(there);
        }
        self.0.upsert(key, value)
    }

    fn update(&self, key: &u64, value: &u64) -> Result<(), UpdateError> {
        if FAULT == UPDATE_INSERTS {
            let _ = self.0.upsert(key, value);
            return Ok(());
        }
        self.0.update(key, value)
    }

    fn remove(&self, key: &u64) -> Result<bool, RemoveError> {
        if FAULT == REMOVE_IN_TWO_STEPS {
            let there = self.0.get(key).is_some();
            std::thread::yield_now();
            self.0.remove(key)?;
            return Ok(there);
        }
        self.0.remove(key)
    }

    fn get_with<R>(&self, key: &u64, f: impl FnOnce(&u64) -> R) -> Option<R> {
        self.0.get_with(key, f)
    }

    fn scan<R: RangeBounds<u64>>(
        &self,
        range: R,
        mut visit: impl FnMut(&u64, &u64) -> ControlFlow<()>,
    ) {
        match FAULT {
            SCAN_BY_POSITION => {
                // Each step finds its place again by the number of keys seen.
                for position in 0.. {
                    let mut found = None;
                    let mut n = 0;
                    self.0
                        .scan((range.start_bound(), range.end_bound()), |k, v| {
                            found = (n == position).then_some((*k, *v));
                            n += 1;
                            if found.is_some() {
                                ControlFlow::Break(())
                            } else {
                                ControlFlow::Continue(())
                            }
                        });
                    let Some((k, v)) = found else { return };
                    if visit(&k, &v).is_break() {
                        return;
                    }
                }
            }
            SCAN_SKIPS_A_KEY => {
                let mut n = 0;
                self.0.scan(range, |k, v| {
                    n += 1;
                    if n == 15 {
                        ControlFlow::Continue(())
                    } else {
                        visit(k, v)
                    }
                });
            }
            SIGNED_BOUNDS => {
                let signed = |k: &u64| *k as i64;
                let above = |k: &u64| match range.start_bound() {
                    Bound::Included(a) => signed(k) >= signed(a),
                    Bound::Excluded(a) => signed(k) > signed(a),
                    Bound::Unbounded => true,
                };
                let below = |k: &u64| match range.end_bound() {
                    Bound::Included(b) => signed(k) <= signed(b),
                    Bound::Excluded(b) => signed(k) < signed(b),
                    Bound::Unbounded => true,
                };
                self.0.scan(.., |k, v| {
                    if above(k) && below(k) {
                        visit(k, v)
                    } else {
                        ControlFlow::Continue(())
                    }
                });
            }
            _ => self.0.scan(range, visit),
        }
    }

    fn multi_insert<Q: Borrow<u64>, W: Borrow<u64>>(
        &self,
        pairs: &[(Q, W)],
        out: &mut Vec<Result<(), InsertError>>,
    ) {
        out.clear();
        if FAULT == LAST_OF_A_BATCH_WINS {
            out.extend(
                pairs
                    .iter()
                    .rev()
                    .map(|(k, v)| self.insert(k.borrow(), v.borrow())),
            );
            out.reverse();
            return;
        }
        out.extend(
            pairs
                .iter()
                .map(|(k, v)| self.insert(k.borrow(), v.borrow())),
        );
    }

    fn stats(&self) -> IndexStats {
        let mut stats = self.0.stats();
        if FAULT == KEEPS_LEAVES {
            stats.leaves = 100;
        }
        stats
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        self.0.verify()
    }
}

impl<const FAULT: u8> BulkLoad<u64, u64> for Faulty<FAULT> {
    fn bulk_load<Q: Borrow<u64>, W: Borrow<u64>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        if FAULT == LOADS_ANYTHING {
            let mut count = 0;
            for (k, v) in sorted {
                self.0.upsert(k.borrow(), v.borrow())?;
                count += 1;
            }
            return Ok(count);
        }
        self.0.bulk_load(sorted, fill)
    }
}

struct FaultyHarness<const FAULT: u8>;

impl<const FAULT: u8> Harness for FaultyHarness<FAULT> {
    type Key = u64;
    type Value = u64;
    type Index = Faulty<FAULT>;
    type Home = ();

    fn fresh() -> Fresh<Self> {
        Fresh {
            index: Faulty(Reference::new()),
            home: (),
        }
    }
}

macro_rules! found_by {
    ($($test:ident: $fault:ident by $module:ident::$scenario:ident),* $(,)?) => {$(
        #[test]
        fn $test() {
            assert!(
                catch_unwind($module::$scenario::<FaultyHarness<$fault>>).is_err(),
                "the scenario passed an index with a fault"
            );
        }
    )*};
}

found_by!(
    finds_upsert_in_two_steps: UPSERT_IN_TWO_STEPS by stress::histories_are_linearizable,
    finds_remove_in_two_steps: REMOVE_IN_TWO_STEPS by stress::histories_are_linearizable,
    finds_scan_by_position: SCAN_BY_POSITION by splits::ascending,
    finds_a_skipped_key: SCAN_SKIPS_A_KEY by model::forward,
    finds_an_update_that_inserts: UPDATE_INSERTS by model::forward,
    finds_the_lost_largest_key: LOSES_THE_LARGEST by boundary::every_boundary_key,
    finds_signed_bounds: SIGNED_BOUNDS by boundary::odd_ranges,
    finds_unsorted_loads: LOADS_ANYTHING by bulk::bad_input_is_refused,
    finds_leaves_that_stay: KEEPS_LEAVES by emptied::leaves_are_given_back,
    finds_a_batch_out_of_order: LAST_OF_A_BATCH_WINS by batches::answers_in_order,
);
