//! The state that a clean close saves.

use super::tests::{Medium, crash, pool};
use super::*;
use crate::contract::{DurableIndex, InsertError, OrderedIndex};
use bristlecone_pmem::{PWord, damage_is_expected};
use std::sync::atomic::Ordering;

type Tree = ClusteredTree<[u8], [u8], Medium>;

const OPTIONS: ClusteredOptions = ClusteredOptions { page_bytes: 512 };

fn key(i: u32) -> Vec<u8> {
    format!("key {i:05}").into_bytes()
}

fn insert(tree: &Tree, i: u32) {
    // Some have blocks of their own, and a few chunks of their own.
    let bytes = match i % 100 {
        0 => 100_000,
        1..10 => 1000,
        _ => 10,
    };
    match tree.insert(&key(i), &vec![i as u8; bytes]) {
        Ok(()) | Err(InsertError::KeyExists) => {}
        Err(e) => panic!("{e}"),
    }
}

/// The blocks in use after an opening, the end of the numbers, and the one that comes next.
fn known(tree: &Tree) -> (Vec<u8>, u32, u32) {
    tree.empty_spare();
    let mut marks = Vec::new();
    tree.heap.save_marks(&mut marks);
    let id = tree.table.reserve(tree.root(), &tree.heap, None).unwrap();
    tree.table.release([id], 0);
    (marks, tree.table.end(), id)
}

#[test]
fn the_next_opening_knows_what_a_scan_would_find_out() {
    let pool = pool(1 << 28);
    let open = || Tree::open(&pool, "t", &OPTIONS).unwrap();
    let mut tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    for round in 0..12 {
        for i in 0..700 {
            insert(&tree, round * 300 + i);
        }
        for i in 0..round * 250 {
            tree.remove(&key(i)).unwrap();
        }
        tree.verify().unwrap();
        tree.close().unwrap();
        let after_close = open();
        assert!(after_close.recovery().clean);
        let by_close = known(&after_close);
        crash(after_close);
        tree = open();
        assert!(!tree.recovery().clean);
        assert_eq!(by_close, known(&tree), "round {round}");
    }
}

/// Whatever is damaged of it, an opening finds out by itself.
#[test]
fn what_was_saved_is_checked() {
    let pool = pool(1 << 28);
    let open = || Tree::open(&pool, "t", &OPTIONS).unwrap();
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    (0..2000).for_each(|i| insert(&tree, i));
    tree.close().unwrap();
    let word = |pool: &Arc<Pool<Medium>>| {
        let root = pool.open_root("t", None).unwrap();
        // ORDERING: Relaxed; one thread.
        root.word(root::CLOSED).load(pool.pm(), Ordering::Relaxed)
    };
    let address = |byte: usize| (pool.pm().base()).wrapping_add(word(&pool) as usize + byte);
    // SAFETY: 1. the length of what was saved, in the pool; 2. no tree is open.
    let bytes = unsafe { address(8).cast::<u64>().read() } as usize + 16;
    assert!((200..2000).contains(&bytes), "{bytes}");
    for bit in (0..bytes * 8).step_by(7) {
        // SAFETY: as above, and it is as long after every close.
        unsafe { *address(bit / 8) ^= 1 << (bit % 8) };
        let tree = open();
        assert!(!tree.recovery().clean, "bit {bit}");
        tree.verify().unwrap();
        tree.close().unwrap();
    }
    for bit in 0..64 {
        let root = pool.open_root("t", None).unwrap();
        let cell = root.word(root::CLOSED);
        // ORDERING: Relaxed (both); one thread.
        let was = cell.load(pool.pm(), Ordering::Relaxed);
        cell.store(pool.pm(), was ^ 1 << bit, Ordering::Relaxed);
        drop(root);
        let tree = open();
        assert!(!tree.recovery().clean, "bit {bit}");
        tree.verify().unwrap();
        tree.close().unwrap();
    }
}

/// A word that was damaged after the close is mended, as after a crash.
#[test]
fn a_table_that_changed_since_is_scanned() {
    damage_is_expected::here();
    let pool = pool(1 << 28);
    let open = || Tree::open(&pool, "t", &OPTIONS).unwrap();
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    (0..2000).for_each(|i| insert(&tree, i));
    let cell = tree.table.cell(tree.pm(), 33).unwrap();
    let at: *const PWord = cell;
    tree.close().unwrap();
    for bit in 0..64 {
        // SAFETY: 1. a word of the table, which stays where it is; 2. the pool is open.
        let cell = unsafe { &*at };
        // ORDERING: Relaxed (both); one thread.
        let was = cell.load(pool.pm(), Ordering::Relaxed);
        cell.store(pool.pm(), was ^ 1 << bit, Ordering::Relaxed);
        let tree = open();
        assert!(!tree.recovery().clean, "bit {bit}");
        // ORDERING: Relaxed; a count.
        assert_eq!(tree.made_again.load(Ordering::Relaxed), 1, "bit {bit}");
        tree.verify().unwrap();
        tree.close().unwrap();
    }
    assert!(open().recovery().clean);
}
