//! Tests of this design alone; the scenarios that all designs share are in `research/designs`.

use super::*;
use crate::contract::{DurableIndex, OrderedIndex, ReverseScan};
use bristlecone_pmem::media::Dram;
use bristlecone_pmem::{MediaOptions, PoolOptions};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::path::Path;

fn tree<K: KeyRepr + ?Sized>(page_bytes: u32) -> ClusteredTree<K, K, Dram> {
    let options = PoolOptions {
        media: MediaOptions {
            reserve: 1 << 30,
            ..MediaOptions::default()
        },
    };
    let pool = Pool::create(Path::new("dram"), &options).unwrap();
    ClusteredTree::create(&pool, "t", &ClusteredOptions { page_bytes }).unwrap()
}

/// Changes a tree and a map alike, and compares scans between all kinds of bounds after some of the
/// changes: so the order of tails is extended, and forgotten, at any point.
fn scans_agree_with_a_map<K>(page_bytes: u32, mut any: impl FnMut(&mut StdRng) -> K::Owned)
where
    K: KeyRepr + ?Sized,
    K::Owned: Ord + Clone + std::fmt::Debug,
{
    let rng = &mut StdRng::seed_from_u64(26);
    let tree = tree::<K>(page_bytes);
    let mut model: BTreeMap<K::Owned, K::Owned> = BTreeMap::new();
    for round in 0..600 {
        for _ in 0..rng.random_range(0..30) {
            let (key, value) = (any(rng), any(rng));
            if rng.random_bool(0.3) {
                let removed = model.remove::<K::Owned>(&key).is_some();
                assert_eq!(tree.remove(key.borrow()).unwrap(), removed);
            } else {
                let there = tree.upsert(key.borrow(), value.borrow()).unwrap();
                assert_eq!(there, model.insert(key, value).is_some());
            }
        }
        let mut bound = || {
            let key = any(rng);
            match rng.random_range(0..5) {
                0 => Bound::Unbounded,
                1 | 2 => Bound::Included(key),
                _ => Bound::Excluded(key),
            }
        };
        let (from, to) = (bound(), bound());
        let expected = model.iter().filter(|(key, _)| {
            let above = match &from {
                Bound::Included(from) => *key >= from,
                Bound::Excluded(from) => *key > from,
                Bound::Unbounded => true,
            };
            above
                && match &to {
                    Bound::Included(to) => *key <= to,
                    Bound::Excluded(to) => *key < to,
                    Bound::Unbounded => true,
                }
        });
        let expected: Vec<_> = expected.map(|(k, v)| (k.clone(), v.clone())).collect();
        let range = (borrowed::<K>(&from), borrowed::<K>(&to));
        let most = rng.random_range(0..40);
        let mut seen = Vec::new();
        let mut visit = |key: &K, value: &K| {
            seen.push((key.to_owned(), value.to_owned()));
            if round % 2 == 0 && seen.len() >= most {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let most = if round % 2 == 0 {
            most.max(1)
        } else {
            usize::MAX
        };
        if round % 3 == 0 {
            tree.scan_reverse(range, &mut visit);
            assert!(
                seen.iter().eq(expected.iter().rev().take(most)),
                "{range:?}"
            );
        } else {
            tree.scan(range, &mut visit);
            assert!(seen.iter().eq(expected.iter().take(most)), "{range:?}");
        }
    }
    assert_eq!(tree.verify().unwrap().entries, model.len() as u64);
}

fn borrowed<K: KeyRepr + ?Sized>(bound: &Bound<K::Owned>) -> Bound<&K> {
    match bound {
        Bound::Included(key) => Bound::Included(key.borrow()),
        Bound::Excluded(key) => Bound::Excluded(key.borrow()),
        Bound::Unbounded => Bound::Unbounded,
    }
}

#[test]
fn scans_of_numbers_agree_with_a_map() {
    scans_agree_with_a_map::<u64>(512, |rng| rng.random_range(0..400) << 40);
    scans_agree_with_a_map::<u64>(4096, |rng| rng.random_range(0..2000));
}

/// Keys with prefixes, of one length or not, so that pages are of either form and cut prefixes.
#[test]
fn scans_of_strings_agree_with_a_map() {
    let alike = |rng: &mut StdRng| {
        format!(
            "key/{:04}/{:02}",
            rng.random_range(0..40),
            rng.random_range(0..20)
        )
    };
    scans_agree_with_a_map::<[u8]>(512, move |rng| alike(rng).into_bytes());
    scans_agree_with_a_map::<[u8]>(1024, |rng| {
        let len = rng.random_range(0..12);
        (0..len).map(|_| rng.random_range(b'a'..=b'c')).collect()
    });
    // Keys of eight bytes, which are compared as numbers, with others between them.
    scans_agree_with_a_map::<[u8]>(4096, |rng| {
        let len = if rng.random_bool(0.01) { 9 } else { 8 };
        let mut key = b"aaaaaaaa0"[..len].to_vec();
        key[6] = rng.random_range(b'a'..=b'z');
        key[7] = rng.random_range(b'a'..=b'z');
        key
    });
}
