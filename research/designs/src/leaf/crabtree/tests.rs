//! Tests of this design alone; the scenarios that all designs share are in `tests/`.

use super::leaf::{HEADER_WORDS, NULL};
use super::*;
use crate::index::{BulkLoad, DurableIndex, Fill, InsertError, OrderedIndex, ReverseScan};
use bristlecone_pmem::media::sim::{EventKind, Simulation};
use bristlecone_pmem::media::{Counting, Dram, Mapped, PersistCounts, Sim};
use bristlecone_pmem::{MediaOptions, Pool, PoolOptions};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

type Medium = Counting<Dram>;
type Numbers = CrabTree<u64, u64, Medium>;

fn pool_options(reserve: u64) -> PoolOptions {
    PoolOptions {
        media: MediaOptions {
            reserve,
            ..MediaOptions::default()
        },
    }
}

fn sized(leaf_bytes: u32, options: CrabOptions) -> CrabOptions {
    CrabOptions {
        leaf_bytes,
        costs: Some(Costs::PAPER),
        ..options
    }
}

fn tree(leaf_bytes: u32, options: CrabOptions) -> Numbers {
    let pool = Pool::create(Path::new("dram"), &pool_options(1 << 30)).unwrap();
    CrabTree::create(&pool, "t", &sized(leaf_bytes, options)).unwrap()
}

/// Returns every combination of the three optimizations.
fn combinations() -> impl Iterator<Item = CrabOptions> {
    (0..8).map(|which| CrabOptions {
        self_managed: which & 1 != 0,
        probe: which & 2 != 0,
        atomic16: which & 4 != 0,
        ..CrabOptions::PLAIN
    })
}

/// Maps u64 one to one to numbers that look random.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    let x = (x ^ x >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    x ^ x >> 33
}

/// Returns the lines and fences that `f` issues.
fn cost(tree: &Numbers, f: impl FnOnce()) -> (u64, u64) {
    let before = tree.pm().counts();
    f();
    let PersistCounts { lines, fences, .. } = tree.pm().counts() - before;
    (lines, fences)
}

fn grows_and_shrinks(leaf_bytes: u32, options: CrabOptions) {
    let tree = tree(leaf_bytes, options);
    let mut model = BTreeMap::new();
    for i in 0..6_000 {
        tree.insert(&mix(i), &(i % 3)).unwrap();
        model.insert(mix(i), i % 3);
        let again = tree.insert(&mix(i / 2), &0);
        assert!(matches!(again, Err(InsertError::KeyExists)));
    }
    assert_eq!(tree.verify().unwrap().entries, 6_000);
    for (key, value) in &model {
        assert_eq!(tree.get(key), Some(*value));
    }
    let mut seen = Vec::new();
    tree.scan_reverse(1 << 60..1 << 62, |k, v| {
        seen.push((*k, *v));
        ControlFlow::Continue(())
    });
    let expected = model.range(1 << 60..1 << 62).rev().map(|(k, v)| (*k, *v));
    assert!(seen.iter().copied().eq(expected));
    for i in 0..6_000 {
        let key = mix(i * 7919 % 6_000);
        assert!(tree.remove(&key).unwrap() && !tree.remove(&key).unwrap());
        if i % 500 == 0 {
            tree.verify().unwrap();
        }
    }
    let report = tree.verify().unwrap();
    assert_eq!((report.entries, report.leaves), (0, 1));
    let stats = tree.design.crab_stats();
    assert!(
        stats.splits_in_place + stats.splits_by_copy > 5 && stats.merges > 3,
        "{stats:?}"
    );
    assert!(stats.redistributions > 0, "{stats:?}");
    match options.strategy {
        Strategy::Choose => assert!(
            stats.inserts_by_copy.min(stats.inserts_in_place) > 100
                && stats.removes_by_copy.min(stats.removes_in_place) > 100
                || leaf_bytes == 256,
            "{stats:?}"
        ),
        Strategy::CopyOnWrite => assert_eq!(stats.inserts_in_place + stats.splits_in_place, 0),
        Strategy::ShiftInPlace => assert_eq!(
            stats.inserts_by_copy + stats.splits_by_copy + stats.removes_by_copy,
            0
        ),
    }
}

#[test]
fn every_size_grows_and_shrinks() {
    for bytes in NODE_BYTES {
        grows_and_shrinks(*bytes, CrabOptions::PLAIN);
        grows_and_shrinks(*bytes, CrabOptions::OPTIMIZED);
    }
}

#[test]
fn every_combination_and_strategy_grows_and_shrinks() {
    for options in combinations() {
        grows_and_shrinks(512, options);
    }
    for strategy in [Strategy::CopyOnWrite, Strategy::ShiftInPlace] {
        for options in [CrabOptions::PLAIN, CrabOptions::OPTIMIZED] {
            let options = CrabOptions {
                strategy,
                ..options
            };
            grows_and_shrinks(256, options);
        }
    }
}

#[test]
fn options_are_checked_and_named() {
    let pool = Pool::<Dram>::create(Path::new("dram"), &pool_options(64 << 20)).unwrap();
    for leaf_bytes in [0, 64, 300, 16384] {
        let options = sized(leaf_bytes, CrabOptions::PLAIN);
        let refused = CrabTree::<u64, u64, _>::create(&pool, "t", &options).unwrap_err();
        assert!(refused.to_string().contains(&leaf_bytes.to_string()));
    }
    let made = CrabTree::<u64, u64, _>::create(&pool, "t", &CrabOptions::OPTIMIZED).unwrap();
    assert_eq!(made.design.shifts_16_bytes(), PWord16::supported());
    made.close().unwrap();
    assert!(CrabTree::<u64, u64, _>::open(&pool, "t", &CrabOptions::PLAIN).is_err());
    let opened = CrabTree::<u64, u64, _>::open(&pool, "t", &CrabOptions::OPTIMIZED);
    assert!(opened.unwrap().recovery().clean);
}

/// Returns all words of the first leaf.
fn words_of(tree: &CrabTree<u64, u64, Sim>) -> (u64, Vec<u64>) {
    let guard = &crossbeam_epoch::pin();
    let leaf = tree.inner.find_first(guard).located.leaf;
    let words = tree.words(tree.leaf(leaf));
    let words = words
        .iter()
        .map(|word| word.load(tree.pm(), Ordering::Relaxed));
    (crate::leaftree::offset(leaf), words.collect())
}

fn pairs_of(words: &[u64]) -> Vec<(u64, u64)> {
    let pairs = words[HEADER_WORDS..].chunks_exact(2).map(|p| (p[0], p[1]));
    pairs.take((words[0] & 0xFFFF) as usize).collect()
}

/// Repairs a leaf outside the pool, twice, and returns the result.
fn repaired(tree: &CrabTree<u64, u64, Sim>, words: &[u64]) -> (bool, Vec<u64>) {
    let cells: Vec<PWord> = words.iter().map(|word| PWord::new(*word)).collect();
    let leaf = Leaf::new(tree.pm(), &cells, false);
    let did = repair::repair(&leaf).unwrap();
    assert!(
        !repair::repair(&leaf).unwrap(),
        "a second repair finds nothing"
    );
    let words = cells
        .iter()
        .map(|word| word.load(tree.pm(), Ordering::Relaxed));
    (did, words.collect())
}

/// Repairs each image that inserting into slot `at` of a leaf of `n` pairs, or removing from it,
/// can leave. Returns how many images there were.
fn images_of_a_change(n: u64, at: u64, removes: bool, value: u64) -> u64 {
    if removes && at == n || !removes && n == 15 {
        return 0;
    }
    let simulation = Simulation::new(4 << 20);
    let _attached = simulation.attach();
    let pool = Pool::<Sim>::create(Path::new("sim"), &PoolOptions::default()).unwrap();
    let options = CrabOptions {
        leaf_bytes: 256,
        strategy: Strategy::ShiftInPlace,
        ..CrabOptions::PLAIN
    };
    let tree = CrabTree::<u64, u64, Sim>::create(&pool, "t", &options).unwrap();
    // Even keys. The first is 0 unless something is inserted there; the last may be the greatest
    // number.
    let key = |i: u64| match i {
        0 if at == 0 && !removes => 2,
        _ if i + 1 == n && n > 1 && (removes || at < n) => u64::MAX,
        _ => 4 * i,
    };
    for i in 0..n {
        tree.insert(&key(i), &value).unwrap();
    }
    let (off, before) = words_of(&tree);
    assert_eq!(repaired(&tree, &before), (false, before.clone()));
    simulation.start_trace();
    if removes {
        assert!(tree.remove(&key(at)).unwrap());
    } else {
        tree.insert(&(4 * at).saturating_sub(1), &value).unwrap();
    }
    let events = simulation.take_trace();
    let (_, after) = words_of(&tree);
    let mut image = before.clone();
    let mut images = 0;
    for event in events {
        let EventKind::Store { at: place, new, .. } = event.kind else {
            continue;
        };
        if !(off..off + 256).contains(&place) {
            continue;
        }
        image[((place - off) / 8) as usize] = new;
        let (_, whole) = repaired(&tree, &image);
        let whole = pairs_of(&whole);
        assert!(
            whole == pairs_of(&before) || whole == pairs_of(&after),
            "{n} {at} {removes}: {whole:?}"
        );
        images += 1;
    }
    images
}

/// A crash at any store of a change in place leaves the leaf as it was before or as it is after.
/// All values are equal, null or not, so that repairs cannot go by them. Keys include the smallest
/// and the greatest.
#[test]
fn equal_values_are_not_taken_for_an_interrupted_shift() {
    let mut images = 0;
    for value in [0, 7] {
        for n in 0..=15 {
            for at in 0..=n {
                images += images_of_a_change(n, at, false, value);
                images += images_of_a_change(n, at, true, value);
            }
        }
    }
    assert!(images > 5_000, "{images}");
}

/// The three inconsistent scenarios of section 4.5, and the fourth, in a leaf whose values are all
/// the same.
#[test]
fn the_inconsistent_scenarios() {
    let simulation = Simulation::new(4 << 20);
    let _attached = simulation.attach();
    let pool = Pool::<Sim>::create(Path::new("sim"), &PoolOptions::default()).unwrap();
    let options = sized(256, CrabOptions::PLAIN);
    let tree = CrabTree::<u64, u64, Sim>::create(&pool, "t", &options).unwrap();
    let leaf = |n: u64, keys: &[u64]| {
        let mut words = vec![n, 0];
        words.extend(keys.iter().flat_map(|key| [*key, 7]));
        words.resize(32, NULL);
        words
    };
    let keys = |n: u64, there: &[u64]| {
        let (did, words) = repaired(&tree, &leaf(n, there));
        let keys: Vec<u64> = pairs_of(&words).into_iter().map(|pair| pair.0).collect();
        (did, keys)
    };
    assert_eq!(keys(3, &[1, 2, 3]), (false, vec![1, 2, 3]));
    // 1: no duplicate, one more or one fewer than the counter says.
    assert_eq!(keys(3, &[1, 2, 3, 4]), (true, vec![1, 2, 3, 4]));
    assert_eq!(keys(4, &[1, 2, 3]), (true, vec![1, 2, 3]));
    // 2: a duplicate, one more.
    assert_eq!(keys(3, &[1, 2, 3, 3]), (true, vec![1, 2, 3]));
    assert_eq!(keys(4, &[1, 1, 2, 3, 4]), (true, vec![1, 2, 3, 4]));
    // 3: a duplicate, as many.
    assert_eq!(keys(4, &[2, 2, 3, 4]), (true, vec![2, 3, 4]));
    assert_eq!(keys(4, &[1, 3, 4, 4]), (true, vec![1, 3, 4]));
    // 4: several pairs that do not count.
    assert_eq!(keys(2, &[1, 2, 3, 4, 5]), (true, vec![1, 2]));
    assert_eq!(keys(2, &[1, 2, NULL, 4, 5]), (true, vec![1, 2]));
    // No pairs: slot 0 does not count, and a key 0 there is a key.
    assert_eq!(keys(0, &[5]), (false, vec![]));
    assert_eq!(keys(1, &[0]), (false, vec![0]));
    assert_eq!(keys(1, &[0, 0]), (false, vec![0]));
    // States that no crash leaves.
    let cells: Vec<PWord> = leaf(16, &[]).into_iter().map(PWord::new).collect();
    assert!(repair::repair(&Leaf::new(tree.pm(), &cells, false)).is_err());
}

/// A change in place costs the lines from the slot to the end of the pairs, and the counter's.
#[test]
fn what_shifting_costs() {
    let options = CrabOptions {
        strategy: Strategy::ShiftInPlace,
        ..CrabOptions::PLAIN
    };
    let tree = tree(256, options);
    // Slots 0 to 2 are in the header line; a new line needs terminators in two lines.
    assert_eq!(cost(&tree, || tree.insert(&10, &1).unwrap()), (1, 1));
    assert_eq!(cost(&tree, || tree.insert(&20, &1).unwrap()), (1, 1));
    assert_eq!(cost(&tree, || tree.insert(&30, &1).unwrap()), (3, 1));
    assert_eq!(cost(&tree, || tree.insert(&40, &1).unwrap()), (2, 1));
    assert_eq!(cost(&tree, || tree.insert(&50, &1).unwrap()), (2, 1));
    // From slot 0 on: two lines.
    assert_eq!(cost(&tree, || tree.insert(&5, &1).unwrap()), (2, 2));
    assert_eq!(cost(&tree, || assert!(tree.remove(&5).unwrap())), (3, 2));
    assert_eq!(cost(&tree, || assert!(tree.remove(&50).unwrap())), (2, 1));
    assert_eq!(cost(&tree, || assert!(tree.remove(&10).unwrap())), (3, 2));
    assert_eq!(cost(&tree, || assert!(tree.remove(&20).unwrap())), (1, 1));
    assert_eq!(cost(&tree, || tree.update(&30, &2).unwrap()), (1, 1));
    let nothing = cost(&tree, || {
        assert!(tree.insert(&30, &1).is_err() && tree.update(&31, &1).is_err());
        assert!(!tree.remove(&31).unwrap());
    });
    assert_eq!(nothing, (0, 0));
}

/// A copy costs its lines, the link's line and two fences; with a general allocator, two tags more.
#[test]
fn what_copying_costs() {
    for (self_managed, tags) in [(true, 0), (false, 2)] {
        let options = CrabOptions {
            strategy: Strategy::CopyOnWrite,
            self_managed,
            ..CrabOptions::PLAIN
        };
        let tree = tree(256, options);
        // A chunk, and blocks from it.
        tree.insert(&10, &1).unwrap();
        let copied = |lines: u64| (lines + 1 + tags, 2 + tags);
        // Header line and the line that begins with the next null.
        assert_eq!(cost(&tree, || tree.insert(&5, &1).unwrap()), copied(2));
        assert_eq!(cost(&tree, || tree.insert(&7, &1).unwrap()), copied(3));
        assert_eq!(cost(&tree, || assert!(tree.remove(&7).unwrap())), copied(2));
        let (lines, fences) = cost(&tree, || {
            for i in 0..4 {
                tree.insert(&(20 + i), &1).unwrap();
            }
        });
        assert_eq!((lines, fences), (3 * 4 + 4 * (1 + tags), 4 * (2 + tags)));
        tree.verify().unwrap();
    }
}

/// A general allocator fills a leaf with nulls, also where a fuller leaf was before.
#[test]
fn what_a_leaf_has_behind_its_pairs() {
    for self_managed in [false, true] {
        let options = CrabOptions {
            strategy: Strategy::CopyOnWrite,
            self_managed,
            ..CrabOptions::PLAIN
        };
        let tree = tree(1024, options);
        let full = tree.design.capacity as u64;
        (1..6).for_each(|key| tree.insert(&key, &1).unwrap());
        let any_behind = || {
            let guard = &crossbeam_epoch::pin();
            let first = tree.inner.find_first(guard).located.leaf;
            let leaf = Crab(&tree).view(tree.leaf(first));
            (leaf.n()..leaf.capacity()).any(|slot| leaf.pair(slot) != (NULL, 0))
        };
        let mut found = false;
        // Blocks of fuller leaves are used again once no reader of them is left, of other tests'
        // either.
        let rounds = if self_managed { 10_000 } else { 10 };
        for _ in 0..rounds {
            (6..=full).for_each(|key| tree.insert(&key, &1).unwrap());
            for key in 6..=full {
                assert!(tree.remove(&key).unwrap());
                crossbeam_epoch::pin().flush();
                found |= any_behind();
            }
            if found {
                break;
            }
        }
        assert_eq!(found, self_managed);
    }
}

/// A split in place costs the new leaf, the head, the nulls behind the lower half, and an
/// insertion.
#[test]
fn what_splitting_costs() {
    let options = CrabOptions {
        strategy: Strategy::ShiftInPlace,
        self_managed: true,
        ..CrabOptions::PLAIN
    };
    let tree = tree(256, options);
    for i in 0..15 {
        tree.insert(&(i * 2), &i).unwrap();
    }
    // Nine pairs with the new one take 4 lines, and so do seven pairs with a null in the next line.
    assert_eq!(
        cost(&tree, || tree.insert(&29, &1).unwrap()),
        (4 + 1 + 2, 3)
    );
    assert_eq!(tree.design.crab_stats().splits_in_place, 1);
    let copying = CrabOptions {
        strategy: Strategy::CopyOnWrite,
        ..options
    };
    let tree = self::tree(256, copying);
    for i in 0..15 {
        tree.insert(&(i * 2), &i).unwrap();
    }
    assert_eq!(
        cost(&tree, || tree.insert(&29, &1).unwrap()),
        (4 + 4 + 1, 2)
    );
    assert_eq!(tree.design.crab_stats().splits_by_copy, 1);
}

/// The figures of the paper's section 6.2 in its leaf sizes: fences for each insertion of a random
/// key, and the share of the flushed bytes that copying flushes (71.9 % or more there).
#[test]
fn random_insertions_copy_most_and_fence_seldom() {
    const KEYS: u64 = 60_000;
    for (options, name) in [
        (CrabOptions::PLAIN, "plain"),
        (CrabOptions::OPTIMIZED, "opt"),
    ] {
        for bytes in [1024, 2048, 4096, 8192] {
            let tree = tree(bytes, options);
            for i in 0..KEYS / 2 {
                tree.insert(&mix(i), &i).unwrap();
            }
            let (mut copied, mut shifted) = ((0, 0), (0, 0));
            let mut others = (0, 0);
            for i in KEYS / 2..KEYS {
                let before = tree.design.crab_stats();
                let paid = cost(&tree, || tree.insert(&mix(i), &i).unwrap());
                let after = tree.design.crab_stats();
                let to = if after.inserts_by_copy > before.inserts_by_copy {
                    &mut copied
                } else if after.inserts_in_place > before.inserts_in_place {
                    &mut shifted
                } else {
                    &mut others
                };
                *to = (to.0 + paid.0, to.1 + paid.1);
            }
            let all = (
                copied.0 + shifted.0 + others.0,
                copied.1 + shifted.1 + others.1,
            );
            let part = copied.0 as f64 / all.0 as f64;
            let fences = all.1 as f64 / (KEYS / 2) as f64;
            let lines = all.0 as f64 / (KEYS / 2) as f64;
            println!("{name} {bytes}: {lines:.2} lines, {fences:.2} fences, {part:.3} by copying");
            assert!(part >= 0.70, "{name} {bytes}: {part}");
            // FAST/FAIR shifts half of a leaf that is two thirds full: about 43 lines of 8 KB, with
            // a fence each.
            assert!(fences < 5.5, "{name} {bytes}: {fences}");
            // Copying or shifting alone takes more fences or flushes.
            if bytes == 8192 {
                let alone = |strategy| {
                    let tree = self::tree(
                        bytes,
                        CrabOptions {
                            strategy,
                            ..options
                        },
                    );
                    for i in 0..KEYS / 2 {
                        tree.insert(&mix(i), &i).unwrap();
                    }
                    cost(&tree, || {
                        for i in KEYS / 2..KEYS {
                            tree.insert(&mix(i), &i).unwrap();
                        }
                    })
                };
                let shifting = alone(Strategy::ShiftInPlace);
                assert!(all.1 * 10 < shifting.1 * 3, "{all:?} {shifting:?}");
                let copying = alone(Strategy::CopyOnWrite);
                assert!(all.0 < copying.0, "{all:?} {copying:?}");
                println!("  shifting alone {shifting:?}, copying alone {copying:?}");
            }
        }
    }
}

/// A tree with 16-byte stores, where they are asked for, equals one without.
#[test]
fn pairs_are_shifted_by_16_byte_stores() {
    for atomic16 in [false, true] {
        let simulation = Simulation::new(4 << 20);
        let _attached = simulation.attach();
        let pool = Pool::<Sim>::create(Path::new("sim"), &PoolOptions::default()).unwrap();
        let options = CrabOptions {
            leaf_bytes: 256,
            strategy: Strategy::ShiftInPlace,
            atomic16,
            ..CrabOptions::PLAIN
        };
        assert_eq!(
            options.failure_unit(),
            if atomic16 && PWord16::supported() {
                16
            } else {
                8
            }
        );
        let tree = CrabTree::<u64, u64, Sim>::create(&pool, "t", &options).unwrap();
        simulation.start_trace();
        for i in 0..10 {
            tree.insert(&(100 - i), &i).unwrap();
        }
        let events = simulation.take_trace();
        let count =
            |is: fn(&EventKind) -> bool| events.iter().filter(|event| is(&event.kind)).count();
        let wide = count(|kind| matches!(kind, EventKind::Store16 { .. }));
        let fences = count(|kind| matches!(kind, EventKind::StoreFence));
        if atomic16 && PWord16::supported() {
            assert_eq!((wide, fences), (55, 55));
        } else {
            assert_eq!((wide, fences), (0, 2 * 55));
        }
        tree.verify().unwrap();
    }
}

#[test]
fn reopens_cleanly_and_from_a_crash_image() {
    let dir = tempfile::tempdir().unwrap();
    let (path, image) = (dir.path().join("pool"), dir.path().join("image"));
    let pool = Pool::<Mapped>::create(&path, &pool_options(1 << 30)).unwrap();
    let tree = CrabTree::<[u8], [u8], _>::create(&pool, "t", &CrabOptions::OPTIMIZED).unwrap();
    let key = |i: u64| format!("key/{:016x}", mix(i)).into_bytes();
    for i in 0..20_000 {
        tree.upsert(&key(i % 15_000), format!("value {i}").as_bytes())
            .unwrap();
    }
    for i in 0..1_000 {
        assert!(tree.remove(&key(i)).unwrap());
    }
    std::fs::copy(&path, &image).unwrap();
    tree.verify().unwrap();
    tree.close().unwrap();
    drop(pool);
    for (path, clean) in [(&path, true), (&image, false), (&image, true)] {
        let pool = Pool::<Mapped>::open(path, &pool_options(1 << 30)).unwrap();
        for threads in [1, 3] {
            let options = CrabOptions {
                recovery_threads: threads,
                ..CrabOptions::OPTIMIZED
            };
            let tree = CrabTree::<[u8], [u8], _>::open(&pool, "t", &options).unwrap();
            assert_eq!(tree.recovery().clean, clean || threads == 3);
            assert_eq!(tree.recovery().repaired, 0);
            assert_eq!(tree.verify().unwrap().entries, 14_000);
            assert_eq!(tree.get(&key(7_000)), Some(b"value 7000".to_vec()));
        }
    }
}

/// Copied leaves stay recorded as positions for recovery, so that its threads share the work.
#[test]
fn recovery_is_shared_by_threads_after_all_leaves_were_copied() {
    let dir = tempfile::tempdir().unwrap();
    let (path, image) = (dir.path().join("pool"), dir.path().join("image"));
    let pool = Pool::<Mapped>::create(&path, &pool_options(1 << 30)).unwrap();
    let options = CrabOptions {
        strategy: Strategy::CopyOnWrite,
        recovery_threads: 2,
        leaf_bytes: 256,
        ..CrabOptions::OPTIMIZED
    };
    let mut tree = CrabTree::<u64, u64, _>::create(&pool, "t", &options).unwrap();
    let pairs = (0..20_000u64).map(|i| (i * 8, i));
    tree.bulk_load(pairs, Fill::percent(60).unwrap()).unwrap();
    for i in 0..20_000u64 {
        if i % 5 == 0 {
            tree.insert(&(i * 8 + 1), &i).unwrap();
        }
    }
    std::fs::copy(&path, &image).unwrap();
    drop(tree);
    let pool = Pool::<Mapped>::open(&image, &pool_options(1 << 30)).unwrap();
    let tree = CrabTree::<u64, u64, _>::open(&pool, "t", &options).unwrap();
    assert_eq!(tree.recovery().threads, 2);
    assert_eq!(tree.verify().unwrap().entries, 24_000);
}

/// Many threads change neighbouring leaves, so that copies compete for the lock of the leaf before.
#[test]
fn threads_that_copy_neighbours_do_not_starve() {
    for options in [CrabOptions::PLAIN, CrabOptions::OPTIMIZED] {
        let options = CrabOptions {
            strategy: Strategy::CopyOnWrite,
            ..options
        };
        let tree = tree(256, options);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let tree = &tree;
                scope.spawn(move || {
                    for round in 0..3 {
                        for i in 0..600u64 {
                            tree.insert(&(i * 4 + thread), &round).unwrap();
                        }
                        for i in 0..600u64 {
                            assert!(tree.remove(&(i * 4 + thread)).unwrap());
                        }
                    }
                });
            }
        });
        assert_eq!(tree.verify().unwrap().entries, 0);
    }
}

/// In a pool that was damaged under a clean close, the chain need not lead where the inner nodes
/// lead, and nothing will mend that. A thread that waited for it would never end.
#[test]
fn a_leaf_that_no_link_leads_to_is_changed_in_place() {
    for which in [CrabOptions::PLAIN, CrabOptions::OPTIMIZED] {
        let copying = CrabOptions {
            strategy: Strategy::CopyOnWrite,
            ..which
        };
        let tree = tree(256, copying);
        for key in 0..200 {
            tree.insert(&(4 * key), &key).unwrap();
        }
        let first = tree.inner.find_first(&crossbeam_epoch::pin()).located.leaf;
        let leaf = Crab(&tree).view(tree.leaf(first));
        let second = Crab(&tree).view(tree.leaf(leaf.head().next));
        let own: Vec<u64> = (0..second.n()).map(|slot| second.key(slot)).collect();
        leaf.set_head(Head {
            next: second.head().next,
            ..leaf.head()
        });
        for key in &own {
            for more in 1..4 {
                tree.insert(&(key + more), &1).unwrap();
            }
        }
        assert!(tree.design.crab_stats().splits_in_place > 0);
        for key in &own {
            assert_eq!(tree.get(&(key + 1)), Some(1));
            assert!(tree.remove(key).unwrap());
            assert_eq!(tree.get(key), None);
        }
    }
}
