//! Scans prefetch the entries that they will visit, in the order of the keys.
//!
//! A scan of byte strings waited for each record in turn, first to sort a leaf's keys, then for
//! what the values led to: one cache miss after the other. It now sorts by the bytes that follow
//! the common prefix of a leaf's keys. The order must be the same where these bytes are alike, end
//! early, or are zeros. It also announces values before it visits them.

use bristlecone_designs::nvtree::{NvOptions, NvTree};
use bristlecone_designs::{
    CentralOptions, DurableIndex, FpTree, LbOptions, LbTree, ReverseScan, WbTree,
};
use bristlecone_pmem::media::Dram;
use bristlecone_pmem::{Pool, PoolOptions};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, HashSet};
use std::ops::{Bound, ControlFlow};
use std::path::Path;

const PREFIXES: [&[u8]; 4] = [b"", b"user", b"user0000", b"user\0\0\0\0\0\0\0\0\0"];
const BYTES: [u8; 4] = [0, b'0', b'1', 0xFF];

fn key(rng: &mut SmallRng) -> Vec<u8> {
    let mut key = PREFIXES[rng.random_range(0..PREFIXES.len())].to_vec();
    let rest = rng.random_range(0..14);
    key.extend((0..rest).map(|_| BYTES[rng.random_range(0..BYTES.len())]));
    key
}

fn bound(rng: &mut SmallRng) -> Bound<Vec<u8>> {
    match rng.random_range(0..3) {
        0 => Bound::Unbounded,
        1 => Bound::Included(key(rng)),
        _ => Bound::Excluded(key(rng)),
    }
}

fn is_empty((start, end): &(Bound<Vec<u8>>, Bound<Vec<u8>>)) -> bool {
    use Bound::{Excluded, Included, Unbounded};
    match (start, end) {
        (Unbounded, _) | (_, Unbounded) => false,
        (Included(a), Included(b)) => a > b,
        (Included(a) | Excluded(a), Excluded(b)) | (Excluded(a), Included(b)) => a >= b,
    }
}

/// Scans some ranges both ways and compares them with a map. All values are announced before they
/// are visited.
fn scans_alike<I>(options: I::Options, what: &str)
where
    I: DurableIndex<[u8], u64, Dram> + ReverseScan<[u8], u64>,
{
    let pool = Pool::<Dram>::create(Path::new(what), &PoolOptions::default()).unwrap();
    let tree = I::create(&pool, "t", &options).unwrap();
    let mut rng = SmallRng::seed_from_u64(7);
    let mut model = BTreeMap::new();
    for value in 0..3000u64 {
        let key = key(&mut rng);
        tree.upsert(&key, &value).unwrap();
        model.insert(key, value);
        if value % 5 == 0 {
            let gone = model
                .keys()
                .nth(value as usize % model.len())
                .unwrap()
                .clone();
            assert!(tree.remove(&gone).unwrap());
            model.remove(&gone);
        }
    }
    for round in 0..200 {
        let range = (bound(&mut rng), bound(&mut rng));
        if is_empty(&range) {
            continue;
        }
        let most = rng.random_range(1..200);
        let borrowed = (
            range.0.as_ref().map(Vec::as_slice),
            range.1.as_ref().map(Vec::as_slice),
        );
        for down in [false, true] {
            let mut seen = Vec::new();
            let told = std::cell::RefCell::new(HashSet::new());
            let ahead = |value: &u64| {
                told.borrow_mut().insert(*value);
            };
            let visit = |key: &[u8], value: &u64| {
                assert!(
                    told.borrow().contains(value),
                    "{what}: {value} was not told of"
                );
                seen.push((key.to_vec(), *value));
                if seen.len() == most {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            if down {
                tree.scan_reverse_ahead(borrowed, ahead, visit);
            } else {
                tree.scan_ahead(borrowed, ahead, visit);
            }
            let entries = model
                .range(range.clone())
                .map(|(key, value)| (key.clone(), *value));
            let expected: Vec<_> = if down {
                entries.rev().take(most).collect()
            } else {
                entries.take(most).collect()
            };
            assert_eq!(seen, expected, "{what}, round {round}, down: {down}");
        }
    }
}

#[test]
fn lbtree() {
    scans_alike::<LbTree<[u8], u64, Dram, 1>>(LbOptions::default(), "256");
    scans_alike::<LbTree<[u8], u64, Dram, 4>>(LbOptions::default(), "1024");
}

#[test]
fn its_relatives() {
    scans_alike::<FpTree<[u8], u64, Dram, 4>>(CentralOptions::default(), "fptree");
    scans_alike::<WbTree<[u8], u64, Dram, 4>>(CentralOptions::default(), "wbtree");
}

#[test]
fn nvtree() {
    scans_alike::<NvTree<[u8], u64, Dram>>(NvOptions::default(), "nvtree");
}
