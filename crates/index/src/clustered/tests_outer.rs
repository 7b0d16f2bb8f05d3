//! Values in blocks of their own.

use super::tests::{Medium, crash, pool};
use super::*;
use crate::contract::{BulkLoad, Direction, DurableIndex, Fill, OrderedIndex, ReverseScan};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

pub(super) type Tree = ClusteredTree<[u8], [u8], Medium>;
pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) const OPTIONS: ClusteredOptions = ClusteredOptions { page_bytes: 1024 };

/// A value of that length; most differ from each other.
fn value(rng: &mut StdRng, len: usize) -> Vec<u8> {
    (0..len).map(|_| rng.random()).collect()
}

/// Short ones, those about as long as pages hold, and longer ones than a page.
fn any_value(rng: &mut StdRng) -> Vec<u8> {
    let len = match rng.random_range(0..10) {
        0..4 => rng.random_range(0..40),
        4..7 => rng.random_range(240..280),
        7..9 => rng.random_range(280..3_000),
        _ => rng.random_range(3_000..100_000),
    };
    value(rng, len)
}

pub(super) fn key(n: u32) -> Vec<u8> {
    format!("key/{n:05}").into_bytes()
}

fn all(tree: &Tree) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    tree.scan::<(Bound<&[u8]>, Bound<&[u8]>)>((Bound::Unbounded, Bound::Unbounded), |k, v| {
        all.push((k.to_vec(), v.to_vec()));
        ControlFlow::Continue(())
    });
    all
}

pub(super) fn assert_has(tree: &Tree, model: &Model) {
    tree.verify().unwrap();
    let expected: Vec<_> = model.clone().into_iter().collect();
    assert!(all(tree) == expected, "what a scan finds");
    let mut down = Vec::new();
    let range = (Bound::Unbounded, Bound::<&[u8]>::Unbounded);
    tree.scan_reverse::<(Bound<&[u8]>, Bound<&[u8]>)>(range, |k, v| {
        down.push((k.to_vec(), v.to_vec()));
        ControlFlow::Continue(())
    });
    down.reverse();
    assert!(down == expected, "what a scan finds downwards");
    let keys: Vec<Vec<u8>> = model.keys().cloned().collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut values = Vec::new();
    tree.multi_get(&keys, &mut values);
    for (key, found) in keys.iter().zip(values) {
        assert_eq!(found.as_deref(), model.get(*key).map(Vec::as_slice));
        assert_eq!(tree.get(key).as_deref(), model.get(*key).map(Vec::as_slice));
    }
}

/// One change of one key or of several.
pub(super) fn change(rng: &mut StdRng, tree: &Tree, model: &mut Model) {
    let k = key(rng.random_range(0..300));
    match rng.random_range(0..10) {
        0..3 => {
            let v = any_value(rng);
            let inserted = tree.insert(&k, &v).is_ok();
            assert_eq!(inserted, !model.contains_key(&k));
            model.entry(k).or_insert(v);
        }
        3..6 => {
            let v = any_value(rng);
            assert_eq!(tree.upsert(&k, &v).unwrap(), model.contains_key(&k));
            model.insert(k, v);
        }
        6..8 => assert_eq!(tree.remove(&k).unwrap(), model.remove(&k).is_some()),
        _ => {
            let mut changes: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
            for _ in 0..rng.random_range(1..12) {
                let removes = rng.random_bool(0.3);
                let v = (!removes).then(|| any_value(rng));
                changes.push((key(rng.random_range(0..300)), v));
            }
            let batch = changes.iter().map(|(k, v)| (&k[..], v.as_deref()));
            tree.write_batch(batch).unwrap();
            for (k, v) in changes {
                match v {
                    Some(v) => model.insert(k, v),
                    None => model.remove(&k),
                };
            }
        }
    }
}

#[test]
fn a_tree_with_long_values_is_a_map() {
    let rng = &mut StdRng::seed_from_u64(4);
    let pool = pool(1 << 30);
    let mut tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    let mut model = Model::new();
    for round in 0..12 {
        for _ in 0..250 {
            change(rng, &tree, &mut model);
        }
        assert_has(&tree, &model);
        if round % 2 == 0 {
            tree.close().unwrap();
        } else {
            crash(tree);
        }
        tree = Tree::open(&pool, "t", &OPTIONS).unwrap();
        assert_has(&tree, &model);
    }
    for k in model.keys() {
        assert!(tree.remove(k).unwrap());
    }
    model.clear();
    bristlecone_pmem::sync::wait_for_readers();
    assert_has(&tree, &model);
    // A consolidation drops what the records of the last page lead to.
    let most = tree.heap.live_blocks();
    assert!(most < 140, "{most} blocks of an empty tree");
}

/// A long value costs its own lines, its word twice, its group, and one fence.
#[test]
fn a_long_value_takes_one_fence() {
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &ClusteredOptions::default()).unwrap();
    for n in 0..8 {
        tree.insert(&key(n), &[1; 1000]).unwrap();
    }
    let before = pool.pm().counts();
    tree.insert(&key(100), &[2; 1000]).unwrap();
    let cost = pool.pm().counts() - before;
    assert_eq!(cost.fences, 1);
    // 1,024 bytes with the head; 16 + 8 + 9 + 32 bytes of the group cross a line.
    assert_eq!(cost.lines, 16 + 2 + 2);
}

#[test]
fn snapshots_read_long_values_that_are_gone() {
    let rng = &mut StdRng::seed_from_u64(8);
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    let mut model = Model::new();
    for _ in 0..300 {
        change(rng, &tree, &mut model);
    }
    let mut snapshots = Vec::new();
    for _ in 0..5 {
        snapshots.push((tree.snapshot(), model.clone()));
        for _ in 0..300 {
            change(rng, &tree, &mut model);
        }
        tree.verify().unwrap();
        for (snapshot, then) in &snapshots {
            let mut found = Vec::new();
            let everything = (Bound::Unbounded, Bound::<&[u8]>::Unbounded);
            let visited =
                snapshot.scan::<(Bound<&[u8]>, Bound<&[u8]>)>(everything, Direction::Up, |k, v| {
                    found.push((k.to_vec(), v.to_vec()));
                    ControlFlow::Continue(())
                });
            visited.unwrap();
            assert!(found == then.clone().into_iter().collect::<Vec<_>>());
            for n in 0..300 {
                let k = key(n);
                assert_eq!(snapshot.get(&k).unwrap(), then.get(&k).cloned());
            }
        }
    }
    assert!(!tree.versions.blocks().is_empty(), "history has some");
    drop(snapshots);
    assert!(tree.versions.blocks().is_empty());
    bristlecone_pmem::sync::wait_for_readers();
    assert_has(&tree, &model);
}

#[test]
fn a_flipped_bit_of_a_long_value_is_found_and_the_rest_is_served() {
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    let values: Vec<Vec<u8>> = (0..60u8).map(|n| vec![n; 300 + usize::from(n)]).collect();
    for (n, v) in values.iter().enumerate() {
        tree.insert(&key(n as u32), v).unwrap();
    }
    tree.close().unwrap();
    let at = (0..pool.pm().len() as usize / 64).find(|line| {
        let at = pool.pm().base().wrapping_add(line * 64 + 24);
        // SAFETY: inside the pool, and nobody writes.
        let bytes = unsafe { std::slice::from_raw_parts(at.cast_const(), 333) };
        bytes == [33; 333]
    });
    let at = at.unwrap() * 64;
    for bit in [0, 8 * 8, 12 * 8, 16 * 8, 20 * 8, 24 * 8, (24 + 332) * 8 + 7] {
        let byte = pool.pm().base().wrapping_add(at + bit / 8);
        let flip = || {
            // SAFETY: inside the pool, and nobody else has it open.
            unsafe { *byte ^= 1 << (bit % 8) };
        };
        flip();
        let eager = Tree::open(&pool, "t", &OPTIONS);
        assert!(
            matches!(eager, Err(crate::TreeError::Corrupt(_))),
            "bit {bit}"
        );
        let lazy = LazyTree::<[u8], [u8], Medium>::open(&pool, "t", &OPTIONS).unwrap();
        for (n, v) in values.iter().enumerate() {
            let found = lazy.get(&key(n as u32));
            if n == 33 {
                let e = found.expect_err("damaged").to_string();
                assert!(e.contains(&format!("{at:#x}")), "{e}");
            } else {
                assert_eq!(found.unwrap().as_ref(), Some(v));
            }
        }
        drop(lazy);
        flip();
    }
    let tree = Tree::open(&pool, "t", &OPTIONS).unwrap();
    tree.verify().unwrap();
}

#[test]
fn long_values_are_loaded_from_sorted_input() {
    let rng = &mut StdRng::seed_from_u64(5);
    let pool = pool(1 << 30);
    let mut tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    // Records that lead to values are left in the root.
    for n in 0..4 {
        tree.insert(&key(n), &[7; 500]).unwrap();
        tree.remove(&key(n)).unwrap();
    }
    let model: Model = (0..400).map(|n| (key(n), any_value(rng))).collect();
    let pairs = model.iter().map(|(k, v)| (&k[..], &v[..]));
    assert_eq!(tree.bulk_load(pairs, Fill::USUAL).unwrap(), 400);
    bristlecone_pmem::sync::wait_for_readers();
    assert_has(&tree, &model);
    crash(tree);
    let tree = Tree::open(&pool, "t", &OPTIONS).unwrap();
    assert_has(&tree, &model);
    let repeated = [(key(1), vec![1; 999]), (key(1), vec![2; 999])];
    let mut other = Tree::create(&pool, "u", &OPTIONS).unwrap();
    let pairs = repeated.iter().map(|(k, v)| (&k[..], &v[..]));
    assert!(other.bulk_load(pairs, Fill::USUAL).is_err());
    assert_has(&other, &Model::new());
}

/// Such a value made its change look torn: opening took the change away, and left the block.
#[test]
fn a_damaged_value_of_the_last_change_is_damage() {
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    tree.insert(b"first", &[1; 700]).unwrap();
    tree.insert(b"last", &[2; 700]).unwrap();
    let at = {
        let guard = &crossbeam_epoch::pin();
        let slot = match Handle::decode(tree.inner.find(&b"last"[..], guard).leaf) {
            Handle::Part(slot) => slot,
            unloaded => panic!("{unloaded:?}"),
        };
        let part = tree.part(slot);
        let page = tree.page_of(part);
        let (_, value) = page.record(&part.base(), part.place(1));
        page.reference(value).unwrap().block
    };
    crash(tree);
    // In its head, where its number is, and its length; and in its content.
    for offset in [1, 5, 9, 16, 20, 500] {
        let byte = pool.pm().base().wrapping_add(at as usize + offset);
        let flip = || {
            // SAFETY: inside the pool, and nobody else has it open.
            unsafe { *byte ^= 4 };
        };
        flip();
        let eager = Tree::open(&pool, "t", &OPTIONS);
        assert!(
            matches!(eager, Err(crate::TreeError::Corrupt(_))),
            "byte {offset}: {eager:?}"
        );
        let lazy = LazyTree::<[u8], [u8], Medium>::open(&pool, "t", &OPTIONS).unwrap();
        assert!(matches!(lazy.get(b"last"), Err(ReadError::Value(_))));
        assert_eq!(lazy.get(b"first").unwrap().as_deref(), Some(&[1; 700][..]));
        flip();
        assert_eq!(lazy.get(b"last").unwrap().as_deref(), Some(&[2; 700][..]));
        crash(lazy.into_tree());
    }
}

/// Each removal of a long value replaced its page, and had no space for that while a reader kept
/// the pages before.
#[test]
fn a_full_pool_takes_removals_while_somebody_reads() {
    let pool = pool(16 << 20);
    let tree = Tree::create(&pool, "t", &ClusteredOptions::default()).unwrap();
    let value = vec![9; 9_000];
    let mut n = 0;
    while tree.insert(&key(n), &value).is_ok() {
        n += 1;
    }
    // The rest of the space.
    while tree.insert(&key(n), &[1; 200]).is_ok() {
        n += 1;
    }
    let (pinned, done) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _guard = crossbeam_epoch::pin();
            pinned.wait();
            done.wait();
        });
        pinned.wait();
        // More than there are blocks in reserve, of one page each.
        for i in 0..8 {
            let removed = tree.remove(&key(i * 60));
            assert!(
                removed.as_ref().is_ok_and(|there| *there),
                "{i}: {removed:?}"
            );
        }
        done.wait();
    });
    reclaim();
    tree.verify().unwrap();
    assert!(tree.insert(&key(n), &value).is_ok());
}

/// Values took the blocks that removals had in reserve.
#[test]
fn values_leave_the_reserve_to_removals() {
    let pool = pool(16 << 20);
    let tree = Tree::create(&pool, "t", &ClusteredOptions::default()).unwrap();
    let value = vec![9; 4_000];
    let mut n = 0;
    while tree.insert(&key(n), &value).is_ok() {
        n += 1;
    }
    for round in 0..20 {
        for i in 0..3 {
            assert!(tree.remove(&key(round * 5 + i)).unwrap(), "round {round}");
        }
        for i in 0..4 {
            let _ = tree.insert(&key(n + round * 4 + i), &value);
        }
    }
    tree.verify().unwrap();
}

/// Waits for the readers of other tests, too: all of the process share its grace periods.
fn reclaim() {
    let freed = (0..100).any(|_| bristlecone_pmem::sync::wait_for_readers());
    assert!(freed, "no thread reads for ever");
}

/// A batch that removed what filled the pool kept its space until the next change of the page, for
/// which there was none.
#[test]
fn the_space_of_what_a_batch_removes_comes_back() {
    let pool = pool(24 << 20);
    let tree = Tree::create(&pool, "t", &ClusteredOptions::default()).unwrap();
    let value = vec![9; 300 << 10];
    for round in 0..5 {
        let mut keys = Vec::new();
        while tree.insert(&key(keys.len() as u32), &value).is_ok() {
            keys.push(key(keys.len() as u32));
        }
        assert!(keys.len() > 40, "{} values in round {round}", keys.len());
        tree.write_batch(keys.iter().map(|key| (&key[..], None)))
            .unwrap();
        reclaim();
        tree.verify().unwrap();
    }
}

/// A value that died has left its head. With its number and its block, and before its own head was
/// durable, a newborn value passed for it, and nothing led to its block for ever.
#[test]
fn a_block_is_not_used_again_under_the_number_that_its_head_has() {
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &OPTIONS).unwrap();
    for len in [300, 301] {
        let first = tree.write_outer(&vec![1; len]).unwrap();
        let reference = first.reference(1, 1, 0);
        tree.bear_outer(&reference);
        tree.table.clear(tree.pm(), reference.id());
        tree.discard_outer(&first);
        let next = tree.write_outer(&vec![2; len]).unwrap();
        let again = next.reference(1, 2, 0);
        assert_eq!(again.block, reference.block);
        assert_ne!(again.id(), reference.id());
        tree.discard_outer(&next);
    }
    tree.verify().unwrap();
}

/// A replacement that drops a long value: a line for its word, and a fence of its own.
#[test]
fn dropping_a_long_value_takes_a_line_and_a_fence() {
    let pool = pool(1 << 30);
    let tree = Tree::create(&pool, "t", &ClusteredOptions::default()).unwrap();
    for n in 0..4 {
        tree.insert(&key(n), &[1; 1000]).unwrap();
    }
    let renew = || {
        let slot = match Handle::decode(tree.inner.find_first(&crossbeam_epoch::pin()).located.leaf)
        {
            Handle::Part(slot) => slot,
            unloaded => panic!("{unloaded:?}"),
        };
        let part = tree.part(slot);
        part.writer.lock();
        let before = pool.pm().counts();
        tree.renew(part).unwrap();
        let cost = pool.pm().counts() - before;
        part.writer.unlock();
        cost
    };
    renew();
    let without = renew();
    tree.upsert(&key(2), &[2; 1000]).unwrap();
    let dropping = renew();
    assert_eq!((without.fences, dropping.fences), (2, 3));
    // The word's line; the two words that name the value may begin another line of the page.
    let more = dropping.lines - without.lines;
    assert!((1..=2).contains(&more), "{more} lines");
}
