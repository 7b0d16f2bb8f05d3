//! Costs of each operation on a skip list in flushed lines and fences: goldens that a change must
//! not raise unnoticed.
//!
//! Counted in memory. Upper links are never flushed, wherever they are, so both designs cost the
//! same, except for nodes with links in them that lie across two lines.

use crate::common::counted::{Medium, cost, pool};
use bristlecone_designs::skiplist::{InDram, InPool, SkipList, SkipOptions, Towers};
use bristlecone_designs::{
    BulkLoad, DurableIndex, Fill, InsertError, KeyRepr, OrderedIndex, Repr, ReverseScan,
};
use bristlecone_pmem::pool::Pool;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The node and its link, a fence each.
const INSERT: (u64, u64) = (2, 2);
/// The same where the node's 32 bytes lie in two lines.
const INSERT_ACROSS: (u64, u64) = (3, 2);
/// The value word.
const REPLACE: (u64, u64) = (1, 1);
/// The link of the node before.
const REMOVE: (u64, u64) = (1, 1);
/// Two records of one line each, fenced with the node.
const INSERT_STRINGS: (u64, u64) = (4, 2);
const INSERT_STRINGS_ACROSS: (u64, u64) = (5, 2);
/// The new value's record, a fence, the value word.
const REPLACE_STRING: (u64, u64) = (2, 2);
/// An operation that changes nothing, or reads, writes nothing.
const NOTHING: (u64, u64) = (0, 0);

fn list<K: KeyRepr + ?Sized, V: Repr + ?Sized, T: Towers<Medium>>(
    pool: &Arc<Pool<Medium>>,
) -> SkipList<K, V, Medium, T> {
    SkipList::create(pool, "index", &SkipOptions::default()).expect("a new root")
}

/// Maps numbers to others that look random and never repeat.
fn scattered(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(29)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// Inserts `0..count` by `insert`, which returns the cost. Returns how many paid more than
/// `golden`, and how many chunks were marked on the way (one line, one fence each).
fn inserts(
    count: u64,
    golden: (u64, u64),
    across: (u64, u64),
    mut insert: impl FnMut(u64) -> (u64, u64),
) -> (u64, u64) {
    let (mut crossing, mut chunks) = (0, 0);
    for n in 0..count {
        let paid = insert(n);
        let marked = paid.1 - golden.1;
        let paid = (paid.0 - marked, golden.1);
        chunks += marked;
        if paid == across {
            crossing += 1;
        } else {
            assert_eq!(paid, golden, "insert {n}, besides {marked} chunks");
        }
    }
    (crossing, chunks)
}

fn numbers<T: Towers<Medium>>(most_across: u64) {
    const KEYS: u64 = 10_000;
    let pool = pool();
    let list = list::<u64, u64, T>(&pool);
    let (across, chunks) = inserts(KEYS, INSERT, INSERT_ACROSS, |n| {
        cost(&pool, || {
            list.insert(&scattered(n), &n).expect("a new key");
        })
    });
    assert!(across <= most_across, "{across} nodes lie in two lines");
    // 10,000 nodes of 32 bytes take five chunks; links in them take some more.
    assert!((1..=16).contains(&chunks), "{chunks} chunks were marked");
    for n in 0..200 {
        let (key, absent) = (scattered(n), scattered(n + KEYS));
        let paid = cost(&pool, || list.update(&key, &1).expect("the key is there"));
        assert_eq!(paid, REPLACE, "update");
        let paid = cost(&pool, || assert!(list.upsert(&key, &2).expect("upsert")));
        assert_eq!(paid, REPLACE, "upsert of a key that is there");
        let paid = cost(&pool, || {
            assert!(matches!(list.insert(&key, &3), Err(InsertError::KeyExists)));
            list.update(&absent, &3).expect_err("no such key");
            assert!(!list.remove(&absent).expect("removal"));
            assert_eq!((list.get(&key), list.get(&absent)), (Some(2), None));
            list.scan(key.., |_, _| ControlFlow::Break(()));
            list.scan_reverse(..key, |_, _| ControlFlow::Break(()));
            list.multi_get(&[key, absent], &mut Vec::new());
        });
        assert_eq!(paid, NOTHING, "calls that change nothing");
    }
    for n in 0..KEYS {
        let paid = cost(&pool, || {
            assert!(list.remove(&scattered(n)).expect("removal"));
        });
        // Now and then an empty chunk is freed: one line, one fence each.
        let chunks = paid.1 - REMOVE.1;
        assert_eq!(paid, (REMOVE.0 + chunks, REMOVE.1 + chunks), "removal {n}");
    }
    list.verify().expect("whole");
}

fn strings<T: Towers<Medium>>() {
    let pool = pool();
    let list = list::<[u8], [u8], T>(&pool);
    let (across, _) = inserts(1_000, INSERT_STRINGS, INSERT_STRINGS_ACROSS, |n| {
        let key = format!("key {n:04}").into_bytes();
        cost(&pool, || list.insert(&key, b"value").expect("a new key"))
    });
    assert!(across < 100, "{across} nodes lie in two lines");
    for n in (0..1_000).step_by(7) {
        let key = format!("key {n:04}").into_bytes();
        let paid = cost(&pool, || {
            list.update(&key, b"other").expect("the key is there");
        });
        assert_eq!(paid, REPLACE_STRING, "update");
        let paid = cost(&pool, || {
            drop(list.insert(&key, b"again").expect_err("the key is there"));
        });
        assert_eq!(paid, NOTHING, "insert of a key that is there");
        let paid = cost(&pool, || assert!(list.remove(&key).expect("removal")));
        assert_eq!(paid, REMOVE, "removal");
    }
}

/// A load writes each line once and fences twice, besides the cost of its chunks.
fn load<T: Towers<Medium>>(bytes_most: u64) {
    const KEYS: u64 = 20_000;
    let pool = pool();
    let mut list = list::<u64, u64, T>(&pool);
    let (lines, fences) = cost(&pool, || {
        let sorted = (0..KEYS).map(|n| (n * 3, n));
        list.bulk_load(sorted, Fill::FULL).expect("an empty list");
    });
    // Some ten to sixteen chunks are marked, and the pool grows meanwhile.
    let others = fences - 2;
    assert!(others <= 32, "{fences} fences");
    let least = KEYS * 32 / 64;
    let most = KEYS * bytes_most / 64 + 1 + 2 * others;
    assert!((least..=most).contains(&lines), "{lines} lines of {most}");
    list.verify().expect("whole");
}

#[test]
fn numbers_divided() {
    numbers::<InDram>(0);
}

#[test]
fn numbers_in_the_pool() {
    // Three nodes in sixteen take 48 bytes, and a quarter of those crosses a line.
    numbers::<InPool>(10_000 * 3 / 64 + 150);
}

#[test]
fn strings_divided() {
    strings::<InDram>();
}

#[test]
fn strings_in_the_pool() {
    strings::<InPool>();
}

#[test]
fn loads_write_each_line_once() {
    load::<InDram>(33);
    // Nodes of each size class lie apart, so that neighbours in the list seldom share a line.
    load::<InPool>(70);
}
