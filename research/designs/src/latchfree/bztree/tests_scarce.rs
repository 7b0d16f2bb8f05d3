//! Tests of shortage and damage: room, descriptors, entries, words that contradict each other.

use super::node::{Form, Meta, Node};
use super::reshape::Want;
use super::tests::{SMALL, crashed, durable, freeze, leaf, reserve, volatile};
use super::*;
use bristlecone_pmem::PoolOptions;
use bristlecone_pmem::media::Dram;
use bristlecone_pmem::sync::PATIENT_TURNS;
use std::path::Path;

const NODE: u64 = SMALL.node_bytes as u64;

/// Returns a pool of `bytes` bytes that does not grow.
fn pool_of(bytes: u64) -> Result<Arc<Pool<Dram>>, bristlecone_pmem::OpenError> {
    let mut options = PoolOptions::default();
    options.media.reserve = bytes;
    Pool::create(Path::new("dram"), &options)
}

fn small<V: Repr + ?Sized>() -> BzTree<u64, V, Dram> {
    BzTree::create(&pool_of(4 << 20).unwrap(), "t", &SMALL).unwrap()
}

/// Takes all blocks of `bytes` bytes, except `left`.
fn exhaust<V: Repr + ?Sized>(
    tree: &BzTree<u64, V, Dram>,
    bytes: u64,
    taken: &mut Vec<POff<u8>>,
    left: usize,
) {
    // Other tests keep blocks from coming back for some time.
    for _ in 0..100_000 {
        if tree.swaps.held_blocks().is_empty() {
            break;
        }
        tree.make_room();
        std::thread::yield_now();
    }
    while let Ok(block) = tree.blocks.reserve(bytes) {
        taken.push(block);
    }
    for block in taken.split_off(taken.len() - left) {
        tree.blocks.cancel(block);
    }
}

fn give_all_back<V: Repr + ?Sized>(tree: &BzTree<u64, V, Dram>, taken: Vec<POff<u8>>) {
    taken
        .into_iter()
        .for_each(|block| tree.blocks.cancel(block));
}

/// Returns the number of frozen nodes on the path to the leaf of `key`.
fn frozen_on_the_way(tree: &BzTree<u64, u64, Dram>, key: u64) -> usize {
    let _guard = epoch::pin();
    let (path, leaf) = tree.path_to(&key, 0).unwrap();
    let nodes = path.iter().map(|step| &step.node).chain([&leaf]);
    nodes.filter(|node| tree.frozen(node)).count()
}

fn is_damage(e: &SpaceError) -> bool {
    matches!(e, SpaceError::Io { source, .. } if source.kind() == ErrorKind::InvalidData)
}

fn is_busy(e: &SpaceError) -> bool {
    matches!(e, SpaceError::Io { source, .. } if source.kind() == ErrorKind::TimedOut)
}

#[test]
fn an_insertion_says_nothing_of_entries_in_a_frozen_leaf() {
    let tree = small::<u64>();
    tree.insert(&1, &1).unwrap();
    let entry = reserve(&tree, 5);
    let leaf = leaf(&tree, 5);
    let before = tree.status(&leaf);
    freeze(&tree, 5);
    // The entry may become visible after a thaw.
    let said = tree.exists_before(&leaf, &5, entry + 1, &mut None).unwrap();
    assert_eq!(said, None);
    // A swap that was made before must not succeed after the thaw.
    let mut taken = Vec::new();
    exhaust(&tree, NODE, &mut taken, 0);
    tree.reshape(&5, Want::Help).unwrap_err();
    let after = tree.status(&leaf);
    assert!(!after.frozen() && after != before);
    assert_eq!(
        (after.entries(), after.records()),
        (before.entries(), before.records())
    );
    give_all_back(&tree, taken);
}

#[test]
fn no_room_for_a_split_under_a_full_parent_leaves_nothing_frozen() {
    let tree = small::<u64>();
    let mut taken = Vec::new();
    let mut refused = 0;
    for key in 0..400 {
        for left in 0..4 {
            exhaust(&tree, NODE, &mut taken, left);
            match tree.insert(&key, &key) {
                Ok(()) => {
                    assert!(tree.remove(&key).unwrap());
                }
                Err(InsertError::Space(_)) => refused += 1,
                Err(e) => panic!("{e}"),
            }
            assert_eq!(frozen_on_the_way(&tree, key), 0, "key {key}, {left} blocks");
            if let Some(before) = key.checked_sub(1) {
                tree.update(&before, &before).unwrap();
            }
        }
        give_all_back(&tree, std::mem::take(&mut taken));
        tree.insert(&key, &key).unwrap();
    }
    assert!(refused > 50, "{refused} insertions had no room");
    assert_eq!(tree.verify().unwrap().entries, 400);
}

#[test]
fn a_frozen_leaf_under_a_full_parent_in_a_full_pool_stops_no_one() {
    let tree = small::<u64>();
    let mut met = 0;
    for key in 0..400 {
        tree.insert(&key, &key).unwrap();
        let full = {
            let _guard = epoch::pin();
            let (path, leaf) = tree.path_to(&key, 0).unwrap();
            let parent = path
                .last()
                .is_some_and(|step| step.node.size + 3 > tree.sizes.node);
            parent && leaf.free(tree.status(&leaf)) < 3
        };
        if !full {
            continue;
        }
        met += 1;
        let mut taken = Vec::new();
        for left in 0..3 {
            exhaust(&tree, NODE, &mut taken, left);
            freeze(&tree, key);
            tree.update(&key, &7).unwrap();
            freeze(&tree, key);
            assert!(tree.upsert(&key, &key).is_ok(), "in its place");
            freeze(&tree, key);
            let refused = tree.insert(&(key + 1), &1);
            assert!(matches!(refused, Err(InsertError::Space(_))), "{left}");
            assert_eq!(frozen_on_the_way(&tree, key), 0);
        }
        exhaust(&tree, NODE, &mut taken, 0);
        freeze(&tree, key);
        assert!(tree.remove(&key).unwrap());
        assert_eq!(frozen_on_the_way(&tree, key), 0);
        give_all_back(&tree, taken);
        tree.insert(&key, &key).unwrap();
    }
    assert!(met > 2, "{met} full leaves under full parents");
    assert_eq!(tree.verify().unwrap().entries, 400);
}

#[test]
fn writing_in_a_readers_callback_ends_in_an_error() {
    let tree = volatile();
    tree.insert(&1, &1).unwrap();
    let refused = tree.get_with(&1, |_| {
        (0..10_000).find_map(|n| match tree.update(&1, &n) {
            Ok(()) => None,
            Err(e) => Some((n, e)),
        })
    });
    let (n, e) = refused.unwrap().expect("descriptors do not come back");
    assert!(matches!(&e, UpdateError::Space(e) if is_busy(e)), "{e}");
    assert_eq!(tree.get(&1), Some(n - 1), "nothing was changed");
    let both = tree.get_with(&1, |_| (tree.insert(&2, &2), tree.remove(&1)));
    let (inserted, removed) = both.unwrap();
    assert!(matches!(inserted, Err(InsertError::Space(e)) if is_busy(&e)));
    assert!(matches!(removed, Err(crate::index::RemoveError::Space(e)) if is_busy(&e)));
    // Once the reader has left, they come back.
    tree.insert(&2, &2).unwrap();
    assert!(tree.remove(&1).unwrap());
    assert_eq!(tree.verify().unwrap().entries, 1);
}

#[test]
fn who_gets_no_second_descriptor_gives_the_first_back() {
    let tree = volatile();
    tree.insert(&1, &1).unwrap();
    tree.swaps.recycle_ready();
    let mut taken: Vec<_> = std::iter::from_fn(|| tree.swaps.allocate_descriptor().ok()).collect();
    taken.pop();
    let guard = epoch::pin();
    for _ in 0..3 {
        assert!(tree.descriptors(PATIENT_TURNS).is_err_and(|e| is_busy(&e)));
    }
    let insertion = tree.insert(&2, &2);
    assert!(matches!(insertion, Err(InsertError::Space(e)) if is_busy(&e)));
    let leaf = leaf(&tree, 2);
    assert_eq!(tree.status(&leaf).entries(), 1, "nothing was reserved");
    drop(guard);
    // A replacement in place takes one.
    tree.update(&1, &2).unwrap();
    drop(taken);
    tree.insert(&2, &2).unwrap();
    assert_eq!(tree.verify().unwrap().entries, 2);
}

#[test]
fn who_does_not_get_the_turn_to_look_for_room_tries_again() {
    let tree = volatile();
    assert!(!tree.make_room(), "there is nothing to recycle");
    let turn = tree.turn.lock().unwrap();
    assert!(tree.make_room(), "another thread may have found some");
    drop(turn);
    let tries = std::cell::Cell::new(0);
    let refusal = || SpaceError::Capacity {
        wanted: 1,
        capacity: 0,
    };
    let refused = tree.with_room(|| -> Result<(), _> {
        tries.set(tries.get() + 1);
        Err(refusal())
    });
    assert!(refused.is_err() && tries.get() == 1);
}

#[test]
fn threads_that_write_large_values_into_a_full_pool_get_room() {
    let tree = small::<[u8]>();
    let value = |n: u64| [n as u8; 9_000];
    let mut keys = 0;
    while tree.insert(&keys, &value(keys)).is_ok() {
        keys += 1;
    }
    for key in 0..4 {
        assert!(tree.remove(&key).unwrap());
    }
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (tree, value) = (&tree, &value);
            scope.spawn(move || {
                let mut done = 0;
                for n in 0..100 {
                    // Other threads may have all blocks that come back for longer than the wait.
                    done += u32::from(tree.update(&(4 + thread), &value(n)).is_ok());
                }
                assert!(done > 0, "thread {thread}");
            });
        }
    });
    assert_eq!(tree.verify().unwrap().entries, keys - 4);
}

#[test]
fn large_values_are_replaced_in_a_full_pool() {
    let tree = small::<[u8]>();
    let value = |n: u64| [n as u8; 9_000];
    let mut keys = 0;
    while tree.insert(&keys, &value(keys)).is_ok() {
        keys += 1;
    }
    assert!(keys > 20);
    // One block comes back, and then each replacement's own.
    assert!(tree.remove(&0).unwrap());
    for n in 0..200 {
        let key = 1 + n % (keys - 1);
        // Readers of other tests may keep the block for longer than the wait.
        let done = (0..1_000).any(|_| tree.update(&key, &value(n)).is_ok());
        assert!(done, "update {n}");
        assert_eq!(tree.get(&key).as_deref(), Some(&value(n)[..]));
    }
    let mut taken = Vec::new();
    exhaust(&tree, 9_008, &mut taken, 0);
    // These need no block.
    assert!(matches!(
        tree.insert(&1, &value(1)),
        Err(InsertError::KeyExists)
    ));
    assert!(matches!(
        tree.update(&0, &value(1)),
        Err(UpdateError::NotFound)
    ));
    let refused = tree.upsert(&0, &value(1));
    assert!(matches!(refused, Err(InsertError::Space(_))));
    give_all_back(&tree, taken);
    assert_eq!(tree.verify().unwrap().entries, keys - 1);
}

#[test]
fn two_stopped_insertions_are_given_up_for_in_one_attempt() {
    let tree = volatile();
    tree.insert(&1, &1).unwrap();
    let stopped = [reserve(&tree, 5), reserve(&tree, 6)];
    let leaf = leaf(&tree, 5);
    let before = tree.status(&leaf).entries();
    tree.insert(&7, &7).unwrap();
    for entry in stopped {
        assert_eq!(Meta(tree.swaps.read(leaf.meta(entry))), Meta::GIVEN_UP);
    }
    assert_eq!(tree.status(&leaf).entries(), before + 1);
    assert_eq!(tree.verify().unwrap().entries, 2);
}

#[test]
fn no_room_to_create_is_an_error() {
    let filler = |most: usize| {
        let pool = pool_of(4 << 20).unwrap();
        let kind = BzTree::<u64, u64, Dram>::root_kind(&SMALL).unwrap();
        let root = pool.create_root("filler", &kind).unwrap();
        let blocks = Activated::of(&root);
        let taken = (0..most).take_while(|_| blocks.reserve(MAX_ACTIVATED).is_ok());
        let taken = taken.count();
        (pool, root, taken)
    };
    let (_, _, all) = filler(usize::MAX);
    let mut refused = Vec::new();
    for left in 0..all {
        let (pool, _root, _) = filler(all - left);
        match BzTree::<u64, u64, Dram>::create(&pool, "t", &SMALL) {
            Ok(tree) => {
                tree.insert(&1, &1).unwrap();
                break;
            }
            Err(TreeError::Space(_)) => refused.push(left),
            Err(e) => panic!("{e}"),
        }
    }
    // Descriptors, anchor, leaf: each in turn finds no room.
    assert!(
        refused.len() > 6 && refused.len() < all,
        "{refused:?} of {all}"
    );
}

#[test]
fn damaged_words_end_in_an_error() {
    let store = |tree: &BzTree<u64, u64, Dram>, word: &bristlecone_pmem::PWord, value: u64| {
        word.store(tree.pm(), value, Ordering::Relaxed);
    };
    // An entry is in use and not counted.
    let tree = small::<u64>();
    tree.insert(&1, &1).unwrap();
    let at = leaf(&tree, 1);
    store(&tree, at.meta(1), 1);
    let refused = tree.insert(&2, &2);
    assert!(matches!(refused, Err(InsertError::Space(e)) if is_damage(&e)));

    // Lengths lead out of the node.
    let tree = small::<u64>();
    tree.insert(&1, &1).unwrap();
    let at = leaf(&tree, 1);
    let long = Meta::of(Form::Inline, 30, 8, (1 << 15) - 1);
    store(&tree, at.meta(0), long.0);
    let refused = tree.reshape(&1, Want::Room(30));
    assert!(refused.is_err_and(|e| is_damage(&e)));

    // A memory word is not the node's own offset.
    let tree = small::<u64>();
    (0..40).for_each(|key| tree.insert(&key, &key).unwrap());
    let at = leaf(&tree, 39);
    store(&tree, at.memory(), 0);
    let refused = tree.reshape(&39, Want::Room(31));
    assert!(refused.is_err_and(|e| is_damage(&e)));

    // A node is larger than its block.
    let tree = small::<u64>();
    tree.insert(&1, &1).unwrap();
    let at = leaf(&tree, 1);
    let shape = at.word(1).load(tree.pm(), Ordering::Relaxed);
    store(&tree, at.word(1), shape + 16);
    let refused = tree.insert(&2, &2);
    assert!(matches!(refused, Err(InsertError::Space(e)) if is_damage(&e)));
    let refused = tree.remove(&1);
    assert!(matches!(refused, Err(crate::index::RemoveError::Space(e)) if is_damage(&e)));
}

#[test]
fn a_visible_record_without_its_block_ends_in_an_error() {
    for word in [0, 64 << 10 | 8, 1 << 40] {
        let tree = small::<[u8]>();
        tree.insert(&1, &[1; 100]).unwrap();
        let at = tree.leaf_of(&1).unwrap();
        let (_, meta) = tree.find(&at, &1).unwrap();
        assert_eq!(meta.form(), Form::Block);
        let value = at.word(meta.value_at());
        value.store(tree.pm(), word, Ordering::Relaxed);
        let refused = tree.update(&1, &[2; 100]);
        assert!(matches!(refused, Err(UpdateError::Space(e)) if is_damage(&e)));
        let refused = tree.remove(&1);
        assert!(matches!(refused, Err(crate::index::RemoveError::Space(e)) if is_damage(&e)));
    }
}

#[test]
fn any_word_may_say_that_a_load_was_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let tree = durable(&folder);
    (0..50).for_each(|key| tree.insert(&key, &key).unwrap());
    tree.say_loading(u64::MAX);
    let opened = crashed(&folder, 0);
    assert!(opened.recovery().repaired >= 1);
    assert_eq!(opened.verify().unwrap().entries, 50);
}

#[test]
fn numbers_are_where_the_search_looks_for_them() {
    let tree = volatile();
    // Values of both forms, in new leaves and in entries added since.
    let value = |key: u64| {
        if key.is_multiple_of(3) {
            u64::MAX - key
        } else {
            key
        }
    };
    (0..500).for_each(|key| tree.insert(&(key * 2), &value(key)).unwrap());
    for key in 0..500 {
        assert_eq!(tree.get(&(key * 2)), Some(value(key)));
        assert_eq!(tree.get(&(key * 2 + 1)), None);
        let _guard = epoch::pin();
        let (path, leaf) = tree.path_to(&(key * 2), 0).unwrap();
        let check = |node: &Node<'_, Dram>, slots: std::ops::Range<usize>| {
            let first = node.first_pair().unwrap();
            for slot in slots {
                assert_eq!(node.fixed_meta(slot).offset(), first + 2 * slot);
            }
        };
        check(&leaf, 0..leaf.sorted);
        for step in path {
            check(&step.node, 1..step.node.sorted);
        }
    }
}
