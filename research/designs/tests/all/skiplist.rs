//! The scenarios, run on the skip lists: towers in the pool and in DRAM, both kinds of keys and
//! values, each medium.

use crate::common::{File, Of, scenario_suite};
use bristlecone_designs::designs::{DividedSkip, NvmSkip};

type Divided<K, V, M> = Of<DividedSkip, K, V, M>;
type Nvm<K, V, M> = Of<NvmSkip, K, V, M>;

scenario_suite!(divided_numbers, Divided<u64, u64, File>: [base, reverse, bulk, pooled, durable]);
scenario_suite!(nvm_strings, Nvm<[u8], [u8], File>: [base, pooled, durable]);
