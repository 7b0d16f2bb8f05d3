//! Damaged pages: what is recovered of them, and what is reported as lost.

use super::tests::{Medium, crash, pool, tree};
use super::*;
use crate::contract::{Direction, DurableIndex, OrderedIndex};
use bristlecone_pmem::heap::damage_is_expected;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::atomic::Ordering;

const OPTIONS: ClusteredOptions = ClusteredOptions { page_bytes: 512 };
const KEYS: u64 = 4_000;

type Numbers = LazyTree<u64, u64, Medium>;

fn open(pool: &Arc<Pool<Medium>>) -> Numbers {
    LazyTree::open(pool, "t", &OPTIONS).unwrap()
}

/// Inverts bits of a word of a block.
fn flip<K, V>(tree: &ClusteredTree<K, V, Medium>, block: u64, word: usize, bits: u64)
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
{
    let cell = tree.page(block, word + 1).cell(word);
    let before = cell.load(tree.pm(), Ordering::Relaxed);
    cell.store(tree.pm(), before ^ bits, Ordering::Relaxed);
}

/// The inner pages: of each, its block and level.
fn inner_pages(tree: &ClusteredTree<u64, u64, Medium>) -> Vec<(u64, u8)> {
    let all = (1..tree.table.end()).filter_map(|id| tree.sound(id).ok());
    let inner = all.filter(|sound| sound.header.level > 0);
    inner
        .map(|sound| (sound.block, sound.header.level))
        .collect()
}

fn all_keys(tree: &Numbers) -> Vec<u64> {
    let mut keys = Vec::new();
    let scanned = tree.scan(.., Direction::Up, |key, value| {
        assert_eq!(*value, key + 1);
        keys.push(*key);
        ControlFlow::Continue(())
    });
    scanned.unwrap();
    keys
}

#[test]
fn damaged_inner_pages_are_made_again() {
    damage_is_expected::here();
    let tree = tree::<u64>(512);
    let keys: Vec<u64> = (0..KEYS).map(|i| i * 7_919 % 100_003).collect();
    for key in &keys {
        tree.insert(key, &(key + 1)).unwrap();
    }
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    let inner = inner_pages(&tree);
    let depth = inner.iter().map(|(_, level)| *level).max().unwrap();
    assert!(depth >= 2 && inner.len() > 10, "{depth}, {}", inner.len());
    let mut pool = Arc::clone(tree.pool());
    tree.close().unwrap();
    // Headers and entries; each page by itself, and all of a level.
    let each = inner.iter().map(|page| vec![*page]);
    let of_level = |level| {
        let pages = inner.iter().filter(move |(_, of)| *of == level);
        pages.copied().collect::<Vec<_>>()
    };
    let rounds: Vec<_> = each.chain((1..=depth).map(of_level)).collect();
    for (round, pages) in rounds.iter().enumerate() {
        let tree = open(&pool);
        let inner: BTreeSet<u64> = inner_pages(tree.tree()).iter().map(|page| page.0).collect();
        let hurt = pages.iter().filter(|(block, _)| inner.contains(block));
        let word = if round % 2 == 0 { 20 } else { 1 };
        let hurt = hurt
            .map(|(block, _)| flip(tree.tree(), *block, word, 1 << 33))
            .count();
        assert_eq!(all_keys(&tree), sorted, "{round}");
        let again = tree.tree().made_again.load(Ordering::Relaxed);
        assert_eq!(again, hurt as u64, "{round}");
        tree.verify().unwrap();
        // It is as good as before: it grows, and opens again.
        assert!(tree.upsert(&1, &2).is_ok());
        if round % 3 == 0 {
            crash(tree.into_tree());
        } else {
            tree.close().unwrap();
        }
        let tree = open(&pool);
        assert_eq!(tree.tree().made_again.load(Ordering::Relaxed), 0);
        let mut keys = all_keys(&tree);
        if !sorted.contains(&1) {
            keys.retain(|key| *key != 1);
        }
        assert_eq!(keys, sorted, "{round}");
        tree.verify().unwrap();
        pool = Arc::clone(tree.pool());
        tree.remove(&1).unwrap();
        tree.close().unwrap();
        sorted.retain(|key| *key != 1);
    }
}

#[test]
fn an_inner_page_is_made_again_around_damaged_leaves() {
    damage_is_expected::here();
    let tree = tree::<u64>(512);
    for key in 0..KEYS {
        tree.insert(&key, &(key + 1)).unwrap();
    }
    let inner = inner_pages(&tree);
    let hurt = [100, 1_000, 1_001, 3_999];
    let blocks: BTreeSet<u64> = hurt
        .iter()
        .map(|key| super::tests::part_of(&tree, *key).block())
        .collect();
    let pool = Arc::clone(tree.pool());
    tree.close().unwrap();
    let tree = open(&pool);
    for (block, _) in &inner {
        flip(tree.tree(), *block, 2, 1 << 40);
    }
    for block in &blocks {
        flip(tree.tree(), *block, 0, 1);
    }
    let (mut there, mut lost) = (0, 0);
    for key in 0..KEYS {
        match tree.get(&key) {
            Ok(found) => {
                assert_eq!(found, Some(key + 1));
                there += 1;
            }
            Err(ReadError::Damaged(_)) => lost += 1,
            Err(e) => unreachable!("{e}"),
        }
    }
    assert_eq!(there + lost, KEYS);
    assert!(lost >= 4 && lost <= 60 * blocks.len() as u64, "{lost}");
    assert!(hurt.iter().all(|key| tree.get(key).is_err()));
}

#[derive(Debug)]
struct Nobody;

impl Observer for Nobody {
    fn weigh(&self, _: Glimpse<'_>) -> u64 {
        0
    }

    fn changed(&self, _: Observed<'_>) {}
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// A tree of one or a few pages, whose keys and values have one length or not, with a base and a
/// tail of several groups. Returns also a page's block and words.
fn filled(pool: &Arc<Pool<Medium>>, uniform: bool) -> (HostedTree<Medium>, Model) {
    let options = ClusteredOptions { page_bytes: 4096 };
    let tree = HostedTree::create(pool, "t", &options, Arc::new(Nobody)).unwrap();
    let mut model = Model::new();
    let mut put = |i: u32, round: u32| {
        let key = format!("key {:04}", i * 37 % 101).into_bytes();
        let len = if uniform { 20 } else { (i * 7 % 40) as usize };
        let value = [&round.to_le_bytes()[..], &vec![i as u8; len]].concat();
        tree.put(&key, &value).unwrap();
        model.insert(key, value);
    };
    (0..60).for_each(|i| put(i, 0));
    (10..30).for_each(|i| put(i, 1));
    for i in 0..3u32 {
        let key = format!("key {:04}", i * 37 % 101).into_bytes();
        tree.modify(&key, |_| Ok(Modification::Remove)).unwrap();
        model.remove(&key);
    }
    (tree, model)
}

/// Whatever single word is damaged, what is given is right, and what is not is named.
#[test]
fn every_damaged_word_of_a_leaf_costs_no_more_than_it_says() {
    damage_is_expected::here();
    for uniform in [true, false] {
        let pool = pool(1 << 26);
        let (tree, model) = filled(&pool, uniform);
        let id = Table::FIRST_ID;
        let (block, words) = {
            let sound = tree.tree().sound(id).unwrap();
            assert_eq!(sound.header.level, 0, "one page");
            assert!(sound.header.entries > 20 && sound.header.form.is_some() == uniform);
            (sound.block, sound.header.words)
        };
        drop(tree);
        let options = ClusteredOptions { page_bytes: 4096 };
        let mut given_in_all = 0;
        for word in 0..words {
            let tree = HostedTree::open(&pool, "t", &options, Arc::new(Nobody)).unwrap();
            flip(tree.tree(), block, word, 1 << (word % 64));
            let is_damaged = tree.load_rest().is_err();
            let mut got = 0;
            for i in 0..101u32 {
                let key = format!("key {i:04}").into_bytes();
                if let Ok(found) = tree.get(When::Now, &key, <[u8]>::to_vec) {
                    assert_eq!(found.as_ref(), model.get(&key), "word {word}, key {i}");
                    got += usize::from(found.is_some());
                }
            }
            let mut given = Model::new();
            let (mut pages, mut keys) = (0, BTreeSet::new());
            let rescued = tree.rescue(
                (Bound::Unbounded, Bound::Unbounded),
                |key, current| {
                    given.insert(key.to_vec(), current.value()?.to_vec());
                    Ok(ControlFlow::Continue(()))
                },
                |lost, _| match lost {
                    Lost::Page(range) => {
                        assert!(RangeBounds::<[u8]>::contains(&range, &b"key"[..]));
                        pages += 1;
                    }
                    Lost::Key(key, _) => {
                        keys.insert(key.to_vec());
                    }
                },
            );
            rescued.unwrap();
            assert_eq!(pages, usize::from(is_damaged), "word {word}");
            assert_eq!(got, given.len(), "word {word}");
            for (key, value) in &given {
                assert_eq!(model.get(key), Some(value), "word {word}");
                assert!(!keys.contains(key));
            }
            if !is_damaged {
                assert_eq!(given, model, "word {word}");
            }
            given_in_all += given.len();
            drop(tree);
            // As it was.
            let tree = HostedTree::open(&pool, "t", &options, Arc::new(Nobody)).unwrap();
            flip(tree.tree(), block, word, 1 << (word % 64));
            tree.verify().unwrap();
        }
        let share = given_in_all as f64 / (words * model.len()) as f64;
        assert!(share > 0.6, "{share}, uniform: {uniform}");
    }
}

/// One wrong bit of a word of the page table is turned back; more leave the rest readable.
#[test]
fn damaged_words_of_the_page_table_are_mended() {
    damage_is_expected::here();
    let pool = pool(1 << 26);
    let options = ClusteredOptions { page_bytes: 512 };
    let open = || HostedTree::open(&pool, "t", &options, Arc::new(Nobody)).unwrap();
    let tree = HostedTree::create(&pool, "t", &options, Arc::new(Nobody)).unwrap();
    let key = |i: u32| format!("key {i:04}").into_bytes();
    let value = |i: u32| vec![i as u8; if i.is_multiple_of(50) { 3_000 } else { 20 }];
    for i in 0..500 {
        tree.put(&key(i), &value(i)).unwrap();
    }
    let end = tree.tree().table.end();
    drop(tree);
    let flip = |id: u32, bits: u64| {
        let tree = open();
        let cell = tree.tree().table.cell(pool.pm(), id).unwrap();
        let word = cell.load(pool.pm(), Ordering::Relaxed);
        cell.store(pool.pm(), word ^ bits, Ordering::Relaxed);
    };
    let found = |tree: &HostedTree<Medium>| {
        let all = (0..500).filter(|i| match tree.get(When::Now, &key(*i), <[u8]>::to_vec) {
            Ok(found) => {
                assert_eq!(found, Some(value(*i)));
                true
            }
            Err(_) => false,
        });
        all.count()
    };
    for round in 0..120 {
        // One that was never used, too.
        let id = 1 + round * 7 % (end + 1);
        flip(id, 1 << (round % 64));
        let tree = open();
        assert_eq!(tree.made_again(), 1, "word {id}, bit {}", round % 64);
        assert_eq!(found(&tree), 500);
        tree.put(&key(1), &value(1)).unwrap();
        tree.verify().unwrap();
    }
    // A word that is gone altogether may be another's by now: that is not put right.
    let inner = (1..end).find(|id| {
        let tree = open();
        let sound = tree.tree().sound(*id);
        *id > 1 && sound.is_ok_and(|sound| sound.header.level > 0)
    });
    let inner = inner.expect("more than a root");
    let word = {
        let tree = open();
        let cell = tree.tree().table.cell(pool.pm(), inner).unwrap();
        cell.load(pool.pm(), Ordering::Relaxed)
    };
    flip(inner, word);
    let tree = open();
    assert!(found(&tree) < 500);
    assert_eq!(tree.made_again(), 0);
    drop(tree);
    flip(inner, word);
    let leaf = (1..end).find(|id| {
        let tree = open();
        let sound = tree.tree().sound(*id);
        sound.is_ok_and(|sound| sound.header.level == 0)
    });
    let leaf = leaf.unwrap();
    flip(leaf, 1 << 3 | 1 << 50);
    let tree = open();
    let there = found(&tree);
    assert!((400..500).contains(&there), "{there}");
    assert!(matches!(
        tree.put(&key(1), &value(1)),
        Err(ChangeError::Page(ReadError::Space(_)))
    ));
    drop(tree);
    flip(leaf, 1 << 3 | 1 << 50);
    let tree = open();
    assert_eq!(found(&tree), 500);
    tree.put(&key(1), &value(1)).unwrap();
    tree.verify().unwrap();
}

/// A damaged word of the page table is not taken for that of a value that never counted.
#[test]
fn a_change_whose_long_value_is_lost_is_not_undone() {
    damage_is_expected::here();
    for last in [false, true] {
        let pool = pool(1 << 26);
        let options = ClusteredOptions { page_bytes: 4096 };
        let open = || HostedTree::open(&pool, "t", &options, Arc::new(Nobody)).unwrap();
        let tree = HostedTree::create(&pool, "t", &options, Arc::new(Nobody)).unwrap();
        tree.put(b"a", b"old").unwrap();
        tree.put(b"b", b"old").unwrap();
        drop(tree);
        let tree = open();
        tree.put(b"a", &[7; 3_000]).unwrap();
        if !last {
            tree.put(b"b", b"new").unwrap();
        }
        let is_value = |id: &u32| {
            let word = tree.tree().table.read(pool.pm(), *id);
            word.is_ok_and(|word| word.is_some_and(|word| word.kind == table::Kind::Outer))
        };
        let id = (1..tree.tree().table.end()).find(is_value).unwrap();
        let cell = tree.tree().table.cell(pool.pm(), id).unwrap();
        let word = cell.load(pool.pm(), Ordering::Relaxed);
        cell.store(pool.pm(), word ^ (1 << 20 | 1 << 50), Ordering::Relaxed);
        crash(tree.into_tree());
        let tree = open();
        // The value has a sum of its own.
        let a = tree.get(When::Now, b"a", <[u8]>::to_vec);
        assert_eq!(a.unwrap(), Some(vec![7; 3_000]), "{last}");
        let mut given = Vec::new();
        let rescued = tree.rescue(
            (Bound::Unbounded, Bound::Unbounded),
            |key, current| {
                given.extend(
                    current
                        .value()
                        .ok()
                        .map(|value| (key.to_vec(), value.to_vec())),
                );
                Ok(ControlFlow::Continue(()))
            },
            |_, _| {},
        );
        rescued.unwrap();
        let b = if last { b"old" } else { b"new" };
        let all = [(b"a".to_vec(), vec![7; 3_000]), (b"b".to_vec(), b.to_vec())];
        assert!(given == all, "{last}");
    }
}
