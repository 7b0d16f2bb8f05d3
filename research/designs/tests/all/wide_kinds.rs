//! Keys and values of which one has 16 bytes and the other has not: nodes whose keys and values
//! differ in width.

use bristlecone_designs::{
    BTreeOptions, BTreeWal, BulkLoad, DurableIndex, FastFair, FastFairOptions, FastFairSp, Fill,
    LeafOptions, NvtATree, OrderedIndex, Stored, StoredKey, UnsortedTree,
};
use bristlecone_pmem::media::Dram;
use bristlecone_pmem::pool::{Pool, PoolOptions};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

/// Maps u64 one to one to numbers that look random.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    let x = (x ^ x >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    x ^ x >> 33
}

/// Returns a number as a key or a value, in either half.
fn wide(n: u64) -> u128 {
    match n % 3 {
        0 => u128::from(mix(n)),
        1 => u128::from(mix(n)) << 64,
        _ => u128::from(mix(n)) << 64 | u128::from(n),
    }
}

fn bytes(n: u64) -> Vec<u8> {
    mix(n).to_le_bytes()[..(n % 9) as usize].to_vec()
}

fn agree<K, V, I>(
    options: &I::Options,
    key: impl Fn(u64) -> K::Owned,
    value: impl Fn(u64) -> V::Owned,
) where
    K: StoredKey + ?Sized,
    V: Stored<Owned: PartialEq + std::fmt::Debug + Clone> + PartialEq + ?Sized,
    I: DurableIndex<K, V, Dram>,
{
    let pool = Pool::<Dram>::create(Path::new("kinds"), &PoolOptions::default()).expect("memory");
    let mut index = I::create(&pool, "index", options).expect("a new root");
    let mut model: BTreeMap<K::Owned, V::Owned> = BTreeMap::new();
    model.extend((0..500).map(|n| (key(n), value(n))));
    let sorted = model.iter().map(|(k, v)| (k.borrow(), v.borrow()));
    index.bulk_load(sorted, Fill::USUAL).expect("empty before");
    for n in 0..6_000 {
        let (k, v) = (key(mix(n) % 1_500), value(n));
        let (k, v): (&K, &V) = (k.borrow(), v.borrow());
        match n % 4 {
            0 | 1 => {
                let there = index.upsert(k, v).expect("room");
                assert_eq!(there, model.insert(k.to_owned(), v.to_owned()).is_some());
            }
            2 => {
                let old = model.get_mut(k);
                assert_eq!(index.update(k, v).is_ok(), old.is_some());
                if let Some(old) = old {
                    *old = v.to_owned();
                }
            }
            _ => assert_eq!(index.remove(k).expect("removal"), model.remove(k).is_some()),
        }
        assert_eq!(index.get(k), model.get(k).cloned());
    }
    let check = |index: &I| {
        assert_eq!(index.verify().expect("whole").entries, model.len() as u64);
        let mut seen = Vec::new();
        index.scan(.., |k, v| {
            seen.push((k.to_owned(), v.to_owned()));
            ControlFlow::Continue(())
        });
        assert!(seen.iter().map(|(k, v)| (k, v)).eq(model.iter()));
        let mut down = 0;
        index.scan_reverse(.., |_, _| {
            down += 1;
            ControlFlow::Continue(())
        });
        assert_eq!(down, model.len());
    };
    check(&index);
    index.close().expect("closed");
    let index = I::open(&pool, "index", options).expect("a root");
    check(&index);
}

macro_rules! kinds {
    ($name:ident, $options:expr, $index:ident $(, $b:literal)?) => {
        #[test]
        fn $name() {
            let options = $options;
            agree::<u64, u128, $index<u64, u128, Dram $(, $b)?>>(&options, |n| n, wide);
            agree::<u128, u64, $index<u128, u64, Dram $(, $b)?>>(&options, wide, |n| n);
            agree::<u128, [u8], $index<u128, [u8], Dram $(, $b)?>>(&options, wide, bytes);
        }
    };
}

const NODE: BTreeOptions = BTreeOptions {
    node_bytes: Some(128),
    most_entries: None,
    recovery_threads: 1,
    volatile: false,
    group_flush: bristlecone_designs::GroupFlush::Off,
    search: bristlecone_designs::Search::Usual,
};

const FAIR: FastFairOptions = FastFairOptions {
    node_bytes: 256,
    most_entries: None,
    recovery_threads: 1,
};

kinds!(btree_wal, NODE, BTreeWal);
kinds!(unsorted, NODE, UnsortedTree);
kinds!(nvta, NODE, NvtATree);
kinds!(fastfair, FAIR, FastFair);
kinds!(fastfair_sp, LeafOptions::default(), FastFairSp, 1);

/// The common prefix of an inner node's separators is compared once. When all of them are gone, the
/// next separator need not have it.
#[test]
fn keys_of_another_prefix_follow_those_that_are_gone() {
    let pool =
        Pool::<Dram>::create(Path::new("prefixes"), &PoolOptions::default()).expect("memory");
    let mut index =
        FastFairSp::<u128, u128, Dram, 2>::create(&pool, "index", &LeafOptions::default())
            .expect("a new root");
    let far = |n: u128| (1 << 64) + n;
    index
        .bulk_load((0..100).map(|n| (far(n), n)), Fill::FULL)
        .expect("empty before");
    for n in 0..100 {
        assert!(index.remove(&far(n)).expect("no failure"), "{n}");
    }
    for n in 0..40 {
        index.insert(&n, &(n + 7)).expect("a new key");
        for there in 0..=n {
            assert_eq!(index.get(&there), Some(there + 7), "{there} of {n}");
        }
    }
    assert_eq!(index.verify().expect("whole").entries, 40);
}
