//! The suite itself, tried on an index that is correct by its simplicity.

mod common;

use common::reference::ReferenceHarness;
use common::scenario_suite;

scenario_suite!(numbers, ReferenceHarness<u64, u64>: [base, reverse, bulk]);
scenario_suite!(strings, ReferenceHarness<[u8], [u8]>: [base, reverse, bulk]);
