//! Trees whose pages are loaded as they are touched.

use super::tests::{Medium, crash, part_of, pool, tree};
use super::*;
use crate::contract::{Direction, DurableIndex, InsertError, OrderedIndex, TreeError};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

const OPTIONS: ClusteredOptions = ClusteredOptions { page_bytes: 512 };
const KEYS: u64 = 2_000;

fn open(pool: &Arc<Pool<Medium>>) -> LazyTree<u64, u64, Medium> {
    LazyTree::open(pool, "t", &OPTIONS).unwrap()
}

/// Leaf pages that are loaded.
fn loaded(tree: &LazyTree<u64, u64, Medium>) -> usize {
    let mut loaded = 0;
    tree.tree().inner.for_each_leaf(|_, handle| {
        loaded += usize::from(matches!(Handle::decode(handle), Handle::Part(_)));
    });
    loaded
}

fn keys(tree: &LazyTree<u64, u64, Medium>) -> (Vec<u64>, Result<(), ReadError>) {
    let mut keys = Vec::new();
    let scanned = tree.scan(.., Direction::Up, |key, _| {
        keys.push(*key);
        ControlFlow::Continue(())
    });
    (keys, scanned)
}

#[test]
fn only_what_is_touched_is_loaded() {
    let tree = tree::<u64>(512);
    for key in 0..KEYS {
        tree.insert(&key, &(key + 1)).unwrap();
    }
    let pool = Arc::clone(tree.pool());
    tree.close().unwrap();
    let tree = open(&pool);
    assert_eq!((loaded(&tree), tree.recovery().leaves_scanned), (0, 0));
    assert_eq!(tree.get(&5).unwrap(), Some(6));
    assert_eq!(loaded(&tree), 1);
    assert!(tree.upsert(&(KEYS - 1), &0).unwrap());
    assert!(tree.remove(&0).unwrap());
    assert_eq!(loaded(&tree), 2);
    assert_eq!(keys(&tree).0, (1..KEYS).collect::<Vec<_>>());
    assert_eq!(tree.load_rest().unwrap(), KEYS - 1);
    assert_eq!(tree.verify().unwrap().entries, KEYS - 1);
    tree.close().unwrap();
    // An eager opening finds the changes too.
    let tree = ClusteredTree::<u64, u64, Medium>::open(&pool, "t", &OPTIONS).unwrap();
    assert_eq!((tree.get(&(KEYS - 1)), tree.get(&0)), (Some(0), None));
}

#[test]
fn damage_is_an_error_of_what_touches_it_alone() {
    let tree = tree::<u64>(512);
    for key in 0..KEYS {
        tree.insert(&key, &key).unwrap();
    }
    let hurt = KEYS / 2;
    let (block, words) = part_of(&tree, hurt).block_and_words();
    let pool = Arc::clone(tree.pool());
    tree.close().unwrap();
    let tree = open(&pool);
    let cell = tree.tree().page(block, words).cell(20);
    let word = cell.load(pool.pm(), Ordering::Relaxed);
    cell.store(pool.pm(), word ^ 1 << 17, Ordering::Relaxed);

    let error = tree.get(&hurt).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ReadError::Damaged(_)), "{text}");
    assert!(text.contains("page "), "{text}");
    assert_eq!(tree.get(&1).unwrap(), Some(1));
    let (before, scanned) = keys(&tree);
    assert!(matches!(scanned, Err(ReadError::Damaged(_))));
    assert!(before.last().is_some_and(|last| *last < hurt) && before.is_sorted());
    assert!(matches!(
        tree.snapshot().get(&hurt),
        Err(ReadError::Damaged(_))
    ));
    assert!(matches!(tree.upsert(&hurt, &0), Err(InsertError::Space(_))));
    let batch = tree.write_batch([(&1, Some(&7)), (&hurt, Some(&7))]);
    assert!(matches!(batch, Err(InsertError::Space(_))));
    assert_eq!(tree.get(&1).unwrap(), Some(1), "nothing of the batch");
    tree.upsert(&(KEYS + 5), &8).unwrap();
    assert!(tree.load_rest().is_err());
    assert!(tree.verify().is_err());
    tree.close().unwrap();
    let eager = ClusteredTree::<u64, u64, Medium>::open(&pool, "t", &OPTIONS);
    assert!(matches!(eager, Err(TreeError::Corrupt(_))));
    let rest = open(&pool).get(&(KEYS + 5));
    assert_eq!(rest.unwrap(), Some(8), "the rest is served on");
}

/// Crashes one after another, of sessions that read next to nothing. The changes of each are there,
/// and their entries go when all pages have been read, or when there is no room for one more.
#[test]
fn many_crashes_in_a_row_are_kept_apart() {
    let pool = pool(1 << 30);
    let tree = ClusteredTree::<u64, u64, Medium>::create(&pool, "t", &OPTIONS).unwrap();
    for key in 0..KEYS {
        tree.insert(&key, &0).unwrap();
    }
    crash(tree);
    let entries = |tree: &LazyTree<u64, u64, Medium>| {
        root::required(tree.tree().root(), root::ENDED).unwrap()
    };
    for session in 1..80 {
        let tree = open(&pool);
        // The 33rd finds no room for an entry, reads everything, and so leaves none.
        assert_eq!(entries(&tree), session % 33);
        assert_eq!(loaded(&tree) > 2, session % 33 == 0);
        let keys = [session * 7 % KEYS, session * 1_009 % KEYS];
        tree.write_batch([(&keys[0], Some(&session)), (&keys[1], Some(&session))])
            .unwrap();
        crash(tree.into_tree());
    }
    let tree = open(&pool);
    for session in 70..80 {
        assert_eq!(tree.get(&(session * 1_009 % KEYS)).unwrap(), Some(session));
    }
    assert!(entries(&tree) > 0);
    tree.load_rest().unwrap();
    assert_eq!(entries(&tree), 0);
    tree.verify().unwrap();
    tree.close().unwrap();
    assert_eq!(entries(&open(&pool)), 0, "it was closed");
}

/// Then there is no room for an entry, so all pages have to be read: but for what is damaged, they
/// are.
#[test]
fn many_crashes_and_a_damaged_page_leave_the_rest_readable() {
    let pool = pool(1 << 30);
    let tree = ClusteredTree::<u64, u64, Medium>::create(&pool, "t", &OPTIONS).unwrap();
    for key in 0..KEYS {
        tree.insert(&key, &0).unwrap();
    }
    let hurt = KEYS / 2;
    let (block, words) = part_of(&tree, hurt).block_and_words();
    let flip = |tree: &LazyTree<u64, u64, Medium>| {
        let cell = tree.tree().page(block, words).cell(20);
        let word = cell.load(pool.pm(), Ordering::Relaxed);
        cell.store(pool.pm(), word ^ 1 << 17, Ordering::Relaxed);
    };
    crash(tree);
    for session in 1..33 {
        let tree = open(&pool);
        let batch = tree.write_batch([(&1, Some(&session)), (&(KEYS - 1), Some(&session))]);
        batch.unwrap();
        if session == 32 {
            flip(&tree);
        }
        crash(tree.into_tree());
    }
    for _ in 0..2 {
        let tree = open(&pool);
        assert_eq!(tree.get(&1).unwrap(), Some(32));
        assert!(tree.get(&hurt).is_err());
        assert!(matches!(tree.upsert(&1, &0), Err(InsertError::ReadOnly)));
        tree.close().unwrap();
    }
    let tree = open(&pool);
    flip(&tree);
    tree.close().unwrap();
    let tree = open(&pool);
    assert_eq!(tree.get(&hurt).unwrap(), Some(0));
    assert!(tree.upsert(&1, &0).unwrap());
    tree.verify().unwrap();
}
