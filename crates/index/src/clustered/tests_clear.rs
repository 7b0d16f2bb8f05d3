//! Removing a range by pages.

use super::tests_hosted::{Tree, Witness, all_at, made_on};
use super::*;
use bristlecone_pmem::MediumKind;
use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicBool, Ordering};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u32 = 2_000;

fn key(of: char, i: u32) -> Vec<u8> {
    format!("{of}{:04}", i.wrapping_mul(7919) % KEYS).into_bytes()
}

/// Short values, and long ones.
fn value(i: u32) -> Vec<u8> {
    vec![
        i as u8;
        if i.is_multiple_of(9) {
            900
        } else {
            20 + i as usize % 3
        }
    ]
}

fn filled(medium: MediumKind) -> (tempfile::TempDir, Tree, std::sync::Arc<Witness>, Model) {
    let (dir, tree, witness) = made_on(medium);
    let mut model = Model::new();
    for i in 0..KEYS {
        for of in ['a', 'b', 'c'] {
            tree.put(&key(of, i), &value(i)).unwrap();
            model.insert(key(of, i), value(i));
        }
    }
    witness.take();
    (dir, tree, witness, model)
}

/// Clears the range, and removes what that leaves. Returns how many keys went by pages.
fn clear(tree: &Tree, range: KeyRange<'_>, most: u64) -> u64 {
    let mut by_pages = 0;
    loop {
        let gone = tree.clear(range, most, &|| false);
        by_pages += gone.keys;
        let mut left = Vec::new();
        let scanned = tree.scan_present(range, |key, _| {
            left.push(key.to_vec());
            Ok(if left.len() < 100 {
                std::ops::ControlFlow::Continue(())
            } else {
                std::ops::ControlFlow::Break(())
            })
        });
        scanned.unwrap();
        if left.is_empty() {
            return by_pages;
        }
        tree.remove_all(left.iter().map(Vec::as_slice)).unwrap();
    }
}

fn assert_is(tree: &Tree, model: &Model) {
    let time = tree.begin(false);
    assert_eq!(&all_at(tree, time), model);
    tree.end(time);
    tree.verify().unwrap();
}

#[test]
fn a_range_goes_by_pages_and_its_neighbours_stay() {
    let ranges: [KeyRange<'_>; 5] = [
        (Bound::Included(b"b"), Bound::Excluded(b"c")),
        (Bound::Excluded(b"a0500"), Bound::Included(b"b1700")),
        (Bound::Unbounded, Bound::Excluded(b"b")),
        (Bound::Included(b"b1000"), Bound::Unbounded),
        (Bound::Unbounded, Bound::Unbounded),
    ];
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        for range in ranges {
            let (_dir, tree, witness, mut model) = filled(medium);
            let pages = tree.stats().leaves;
            let (inside, outside): (Model, Model) = model
                .into_iter()
                .partition(|(key, _)| range.contains(&key[..]));
            model = outside;
            let by_pages = clear(&tree, range, u64::MAX);
            assert!(
                by_pages > inside.len() as u64 / 10 * 8,
                "{by_pages} of {}",
                inside.len()
            );
            assert_is(&tree, &model);
            // Told of each once, with its weight.
            let mut told = witness.take();
            told.sort();
            let told: Vec<_> = told
                .into_iter()
                .map(|(key, _, was, is)| (key, was, is))
                .collect();
            let expected = inside.iter();
            let expected: Vec<_> = expected
                .map(|(key, value)| (key.clone(), Some(value.len() as u64), None))
                .collect();
            assert_eq!(told, expected);
            let left = tree.stats().leaves;
            let most = 2 + pages * model.len() as u64 / (3 * u64::from(KEYS)) * 11 / 10;
            assert!(left <= most, "{left} pages are left of {pages}");
            // The cleared keys can be put again.
            for (key, value) in inside.iter().take(50) {
                tree.put(key, value).unwrap();
                model.insert(key.clone(), value.clone());
            }
            assert_is(&tree, &model);
        }
    }
}

#[test]
fn others_write_beside_a_range_that_goes() {
    let (_dir, tree, _, mut model) = filled(MediumKind::Mapped);
    let stop = AtomicBool::new(false);
    let range: KeyRange<'_> = (Bound::Included(b"b"), Bound::Excluded(b"c"));
    let snapshot = tree.begin(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut written = 0;
            // ORDERING: Relaxed (both); the threads are joined.
            while !stop.load(Ordering::Relaxed) || written < KEYS {
                let i = written % KEYS;
                tree.put(&key('a', i), b"new").unwrap();
                tree.put(&key('c', i), &[7; 700]).unwrap();
                written += 1;
            }
            written
        });
        clear(&tree, range, 300);
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    // The snapshot still has all keys outside the range.
    let mut before = all_at(&tree, snapshot);
    before.retain(|key, _| key[0] != b'b');
    model.retain(|key, _| key[0] != b'b');
    assert_eq!(before, model);
    tree.end(snapshot);
    for i in 0..written.min(KEYS) {
        model.insert(key('a', i), b"new".to_vec());
        model.insert(key('c', i), vec![7; 700]);
    }
    assert_is(&tree, &model);
}
