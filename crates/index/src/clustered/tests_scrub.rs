//! Scrubbing.

use super::layout::HEADER;
use super::outer::MAX_INLINE;
use super::place::Base;
use super::stored::HEAD;
use super::tests_evict::{Nobody, Tree, give_all_back, key, loaded, made, options, settle, value};
use super::*;
use crate::contract::DurableIndex;
use bristlecone_pmem::heap::damage_is_expected;
use crossbeam_epoch as epoch;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a step.
const STEP: u64 = 20_000;

/// Scrubs all of a tree in steps. Returns what was looked at and what was found, the latter with
/// the keys of pages.
fn scrubbed(tree: &Tree) -> (Scrubbed, Vec<(Vec<u8>, String)>) {
    let mut found = Vec::new();
    let mut note = |key: &[u8], what| found.push((key.to_vec(), what));
    let mut all = tree.scrub_inner(&mut note);
    let mut from = Vec::new();
    loop {
        let done = tree.scrub(&from, STEP, &mut note);
        all.pages += done.pages;
        all.values += done.values;
        all.bytes += done.bytes;
        let longest = 70_000 * 20;
        assert!(done.bytes < STEP + longest, "{done:?}");
        match done.next {
            Some(next) => from = next,
            None => return (all, found),
        }
    }
}

/// The part of the page of that key, which is loaded.
fn part_of<'t>(tree: &'t Tree, key: &[u8]) -> &'t Part {
    let tree = tree.tree();
    match Handle::decode(tree.inner.find(key, &epoch::pin()).leaf) {
        Handle::Part(slot) => tree.part(slot),
        unloaded => panic!("{unloaded:?}"),
    }
}

fn flip(tree: &Tree, block: u64, word: usize, bits: u64) {
    let cell = tree.tree().page(block, word + 1).cell(word);
    let before = cell.load(tree.tree().pm(), Ordering::Relaxed);
    cell.store(tree.tree().pm(), before ^ bits, Ordering::Relaxed);
}

fn filled(keys: u64) -> (tempfile::TempDir, Tree) {
    let (dir, tree) = made(4096);
    for n in 0..keys {
        tree.put(&key(n), &value(n)).unwrap();
    }
    settle(&tree);
    (dir, tree)
}

#[test]
fn all_pages_are_looked_at_and_stay_where_they_are() {
    const KEYS: u64 = 4_000;
    let (dir, tree) = filled(KEYS);
    let values = (0..KEYS).filter(|n| value(*n).len() > MAX_INLINE).count() as u64;
    let leaves = loaded(&tree);
    let (all, found) = scrubbed(&tree);
    assert!(found.is_empty(), "{found:?}");
    assert!(all.pages > leaves as u64 && all.values == values, "{all:?}");
    // The same of pages and values that are not in memory, which stay away.
    settle(&tree);
    give_all_back(&tree);
    settle(&tree);
    give_all_back(&tree);
    assert_eq!(loaded(&tree), 0);
    tree.bound_memory(1 << 20);
    let (away, found) = scrubbed(&tree);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!((away.pages, away.values), (all.pages, all.values));
    assert_eq!(loaded(&tree), 0);
    assert!(tree.in_memory() < away.bytes / 2, "{}", tree.in_memory());
    tree.bound_memory(u64::MAX);
    let pool = Arc::clone(tree.pool());
    tree.into_tree().close().unwrap();
    let tree = Tree::open(&pool, "t", &options(4096), Arc::new(Nobody)).unwrap();
    let (again, found) = scrubbed(&tree);
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(again.values, all.values);
    // Only inner pages were loaded.
    assert_eq!(loaded(&tree), 0);
    drop((tree, dir));
}

#[test]
fn a_wrong_bit_in_any_word_of_a_page_is_found() {
    damage_is_expected::here();
    let (_dir, tree) = filled(2_000);
    // So that there are tails.
    for n in (0..2_000).step_by(9) {
        tree.put(&key(n), b"new").unwrap();
    }
    let mut seen = BTreeSet::new();
    let (mut tails, mut bits) = (0, 0);
    for n in (0..2_000).step_by(40) {
        let part = part_of(&tree, &key(n));
        let (block, words) = part.block_and_words();
        if !seen.insert(block) {
            continue;
        }
        let page = tree.tree().page(block, words);
        let (header, _) = page.header(tree.tree().salt).unwrap();
        let tail = Base::of(&header).aligned(header.tail);
        let low = page.low(&header).unwrap_or(&[]).to_vec();
        for word in 0..words {
            let is_tail = (tail..part.end()).contains(&word);
            // Words between groups and after the last one have no content.
            if word >= header.tail && !is_tail {
                continue;
            }
            let bit = (word * 13 + n as usize) % 64;
            flip(&tree, block, word, 1 << bit);
            let mut found = Vec::new();
            tree.scrub(&key(n), 1, &mut |key, what| {
                found.push((key.to_vec(), what))
            });
            flip(&tree, block, word, 1 << bit);
            if is_tail && found.is_empty() {
                // A group takes whole words, and ends where the next one may begin.
                continue;
            }
            assert_eq!(found.len(), 1, "word {word} of {header:?}: {found:?}");
            assert_eq!(found[0].0, low);
            tails += usize::from(is_tail);
            bits += usize::from(word >= HEADER);
        }
    }
    assert!(
        seen.len() > 10 && bits > 1_000 && tails > 200,
        "{tails} {bits}"
    );
    assert!(scrubbed(&tree).1.is_empty());
}

#[test]
fn a_wrong_bit_of_a_long_value_is_found() {
    damage_is_expected::here();
    let (dir, tree) = filled(400);
    let n = 40;
    assert_eq!(value(n).len(), 70_000);
    let reference = {
        let part = part_of(&tree, &key(n));
        let page = tree.tree().page_of(part);
        let (header, _) = page.header(tree.tree().salt).unwrap();
        let places = (0..part.count()).map(|i| part.place(i));
        let all = tree.tree().references(page, &header, places);
        all.into_iter().find(|one| one.len() == 70_000).unwrap()
    };
    let word = (HEAD + 5_000) / 8;
    flip(&tree, reference.block, word, 1 << 17);
    let (_, found) = scrubbed(&tree);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].1.contains("checksum"), "{found:?}");
    flip(&tree, reference.block, word, 1 << 17);
    assert!(scrubbed(&tree).1.is_empty());
    drop((tree, dir));
}

/// After a crash before its separator was in the parent, a page was looked at by nobody until
/// somebody needed it.
#[test]
fn a_page_without_a_separator_is_looked_at() {
    let leaves_of = |tree: &Tree| {
        let (mut pages, mut from) = (0, Vec::new());
        loop {
            let done = tree.scrub(&from, STEP, &mut |_, what| panic!("{what}"));
            pages += done.pages;
            match done.next {
                Some(next) => from = next,
                None => return pages,
            }
        }
    };
    let (dir, tree) = filled(1_000);
    let leaves = leaves_of(&tree);
    assert_eq!(leaves, loaded(&tree) as u64);
    let removed = (0..1_000).any(|n| {
        let page = tree.tree().page_of(part_of(&tree, &key(n)));
        let (header, _) = page.header(tree.tree().salt).unwrap();
        let low = page.low(&header).map(<[u8]>::to_vec);
        let mut upper = bristlecone_pmem::sync::lock(&tree.tree().upper);
        low.is_some_and(|low| tree.tree().unpost(&mut upper, 1, &low).unwrap())
    });
    assert!(removed);
    settle(&tree);
    let pool = Arc::clone(tree.pool());
    tree.into_tree().close().unwrap();
    let tree = Tree::open(&pool, "t", &options(4096), Arc::new(Nobody)).unwrap();
    assert_eq!(leaves_of(&tree), leaves);
    drop((tree, dir));
}

/// Writers, and pages that come and go, are no damage.
#[test]
fn what_changes_meanwhile_is_not_taken_for_damage() {
    const KEYS: u64 = 1_500;
    let (_dir, tree) = filled(KEYS);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (tree, ended) = (&tree, &ended);
            scope.spawn(move || {
                let mut n = thread;
                while !ended.load(Ordering::Relaxed) {
                    n = n * 7 + 13;
                    let at = key(n % KEYS);
                    if n % 5 == 0 {
                        tree.modify(&at, |_| Ok(Modification::Remove)).unwrap();
                    } else {
                        tree.put(&at, &value(n % 1_000)).unwrap();
                    }
                    n %= 1_000_003;
                }
            });
        }
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                settle(&tree);
                tree.bound_memory(1 << 20);
                tree.give_back().unwrap();
                tree.bound_memory(u64::MAX);
            }
        });
        let (mut rounds, mut pages) = (0, 0);
        let begun = std::time::Instant::now();
        while rounds < 3 || begun.elapsed().as_millis() < 1_500 {
            let (all, found) = scrubbed(&tree);
            if !found.is_empty() {
                ended.store(true, Ordering::Relaxed);
            }
            assert!(found.is_empty(), "{found:?}");
            rounds += 1;
            pages += all.pages;
        }
        ended.store(true, Ordering::Relaxed);
        assert!(pages > 100, "{pages}");
    });
    tree.verify().unwrap();
}
