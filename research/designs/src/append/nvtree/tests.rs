//! Tests of this design alone; the scenarios that all designs share are in `tests/`.

use super::*;
use bristlecone_pmem::media::{Counting, Dram, Mapped, PersistCounts};
use bristlecone_pmem::{MediaOptions, PoolOptions};
use crossbeam_epoch as epoch;
use std::collections::BTreeMap;
use std::path::Path;

type Medium = Counting<Dram>;
type Numbers = NvTree<u64, u64, Medium>;

fn options(reserve: u64) -> PoolOptions {
    PoolOptions {
        media: MediaOptions {
            reserve,
            ..MediaOptions::default()
        },
    }
}

fn tree(leaf_bytes: u32, adaptivity: Adaptivity) -> Numbers {
    let pool = Pool::create(Path::new("dram"), &options(1 << 30)).unwrap();
    let options = NvOptions {
        leaf_bytes,
        adaptivity,
        ..NvOptions::default()
    };
    NvTree::create(&pool, "t", &options).unwrap()
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

#[test]
fn every_size_grows_and_shrinks() {
    for (bytes, strategy) in [
        (256, Adaptivity::Off),
        (512, Adaptivity::Conservative),
        (1024, Adaptivity::Aggressive),
        (4096, Adaptivity::Balanced),
    ] {
        let tree = tree(bytes, strategy);
        let mut model = BTreeMap::new();
        for i in 0..10_000 {
            tree.insert(&mix(i), &i).unwrap();
            model.insert(mix(i), i);
            let again = tree.insert(&mix(i / 2), &0);
            assert!(matches!(again, Err(InsertError::KeyExists)));
        }
        assert_eq!(tree.verify().unwrap().entries, 10_000);
        let mut seen = Vec::new();
        tree.scan_reverse(1 << 60..1 << 62, |k, v| {
            seen.push((*k, *v));
            ControlFlow::Continue(())
        });
        let expected = model.range(1 << 60..1 << 62).rev().map(|(k, v)| (*k, *v));
        assert!(seen.iter().copied().eq(expected));
        for key in model.keys() {
            assert!(tree.remove(key).unwrap());
            assert!(!tree.remove(key).unwrap());
        }
        let report = tree.verify().unwrap();
        assert_eq!((report.entries, report.leaves), (0, 1));
        let stats = tree.nv_stats();
        assert!(stats.splits > 0 && stats.unlinks > 0, "{stats:?}");
        assert!(stats.rebuilds > 0 || bytes > 512, "{stats:?}");
    }
}

/// Cycles of filling and emptying leak nothing. At the end there are one leaf and the spare block,
/// each of which may keep a chunk (of 16 leaves of 4 KB).
#[test]
fn an_emptied_tree_has_two_blocks() {
    const KEYS: u64 = 10_000;
    let tree = tree(4096, Adaptivity::Balanced);
    let at_first = tree.heap.stats().chunk_bytes;
    for cycle in 0..4 {
        for i in 0..KEYS {
            tree.insert(&mix(i), &cycle).unwrap();
        }
        let full = tree.heap.stats().chunk_bytes;
        assert!(full > at_first + (KEYS / 252) * 4096, "{full}");
        for i in 0..KEYS {
            assert!(tree.remove(&mix(i * 7919 % KEYS)).unwrap());
        }
        // Tests beside this one are pinned, too, and free blocks that this one retired.
        let may_keep = at_first + (64 << 10);
        let _ = (0..100).any(|_| {
            crate::sync::wait_for_readers();
            tree.heap.trim();
            tree.heap.stats().chunk_bytes <= may_keep
        });
        let empty = tree.heap.stats();
        assert_eq!(tree.heap.live_blocks(), 2, "cycle {cycle}: {empty:?}");
        assert!(empty.chunk_bytes <= may_keep, "cycle {cycle}: {empty:?}");
        assert_eq!(tree.verify().unwrap().leaves, 1);
    }
}

/// An insertion costs the element's line and the counter's. The two elements of an update may lie
/// in two lines.
#[test]
fn what_appends_cost() {
    for bytes in [256, 1024, 4096] {
        let tree = tree(bytes, Adaptivity::Off);
        for i in 0..4 {
            assert_eq!(cost(&tree, || tree.insert(&i, &i).unwrap()), (2, 2));
        }
        // Elements 4 and 5, 6 and 7: a line each.
        assert_eq!(cost(&tree, || tree.update(&1, &9).unwrap()), (2, 2));
        assert_eq!(
            cost(&tree, || assert!(tree.upsert(&1, &8).unwrap())),
            (2, 2)
        );
        assert_eq!(cost(&tree, || assert!(tree.remove(&2).unwrap())), (2, 2));
        // Elements 9 and 10 in one line, 11 and 12 in two.
        assert_eq!(cost(&tree, || tree.update(&1, &7).unwrap()), (2, 2));
        if bytes > 256 {
            assert_eq!(cost(&tree, || tree.update(&1, &6).unwrap()), (3, 2));
        }
        let nothing = cost(&tree, || {
            assert!(tree.insert(&1, &1).is_err() && tree.update(&2, &1).is_err());
            assert!(!tree.remove(&2).unwrap());
            assert_eq!((tree.get(&2), tree.get(&3)), (None, Some(3)));
        });
        assert_eq!(nothing, (0, 0));
    }
}

/// A split writes two half leaves and switches with one line. Then the insertion is an ordinary
/// one.
#[test]
fn what_a_split_costs() {
    let tree = tree(1024, Adaptivity::Off);
    // The first reshaping also allocates the spare block and a chunk for it, which the split does
    // not pay for.
    tree.keep_spare();
    for i in 0..60 {
        tree.insert(&i, &i).unwrap();
    }
    // Two leaves of 30 elements: header and 8 lines each; a fence; the link, a fence; the
    // insertion.
    let paid = cost(&tree, || tree.insert(&60, &60).unwrap());
    assert_eq!(paid, (2 * 9 + 1 + 2, 2 + 2));
    // Reshaping a leaf costs the lines of its keys and a header for each leaf, the link, and the
    // update.
    let reshaped = |tree: &Numbers| {
        let stats = tree.nv_stats();
        (stats.splits, stats.replaces + stats.merges)
    };
    for _ in 0..200 {
        let before = reshaped(&tree);
        let paid = cost(&tree, || tree.update(&3, &1).unwrap());
        let after = reshaped(&tree);
        if before == after {
            assert!(paid == (2, 2) || paid == (3, 2), "{paid:?}");
        } else {
            assert!((7..=24).contains(&paid.0) && paid.1 == 4, "{paid:?}");
        }
    }
    assert!(reshaped(&tree).1 > 0);
}

/// Inserting random keys into 4 KB leaves costs this, splits included.
#[test]
fn random_insertions_into_4_kb_leaves() {
    let tree = tree(4096, Adaptivity::Off);
    for i in 0..50_000 {
        tree.insert(&mix(i), &i).unwrap();
    }
    let (lines, fences) = cost(&tree, || {
        for i in 50_000..100_000 {
            tree.insert(&mix(i), &i).unwrap();
        }
    });
    let (lines, fences) = (lines as f64 / 5e4, fences as f64 / 5e4);
    assert!(lines < 2.6, "{lines} lines");
    assert!(fences < 2.1, "{fences} fences");
}

#[test]
fn the_newest_element_decides() {
    let tree = tree(1024, Adaptivity::Off);
    // The same key with the same value, again and again.
    for _ in 0..3 {
        tree.insert(&5, &50).unwrap();
        assert_eq!(tree.get(&5), Some(50));
        tree.update(&5, &50).unwrap();
        assert_eq!(tree.get(&5), Some(50));
        assert!(tree.remove(&5).unwrap());
        assert_eq!(tree.get(&5), None);
        tree.verify().unwrap();
    }
    assert_eq!(tree.stats().entries, 0);
}

#[test]
fn a_removal_in_place() {
    let tree = tree(256, Adaptivity::Off);
    for i in 0..12 {
        tree.insert(&i, &i).unwrap();
    }
    let guard = epoch::pin();
    let (info, held) = tree.lock_leaf(&5, &guard);
    let leaf = info.leaf(tree.pm());
    let there = tree.newest(&leaf, info.elements(), &5, 0).unwrap();
    info.begin_negating();
    assert!(!info.flags_settled(), "readers of a flag look again");
    leaf.negate(there.index);
    info.publish(info.elements());
    assert!(info.flags_settled());
    info.set_live(info.live() - 1);
    drop(held);
    assert_eq!((tree.get(&5), tree.get(&6)), (None, Some(6)));
    tree.insert(&5, &55).unwrap();
    assert_eq!(tree.get(&5), Some(55));
    assert_eq!(tree.verify().unwrap().entries, 12);
}

#[test]
fn reopens_cleanly_and_from_a_crash_image() {
    let dir = tempfile::tempdir().unwrap();
    let (path, image) = (dir.path().join("pool"), dir.path().join("image"));
    let pool = Pool::<Mapped>::create(&path, &options(1 << 30)).unwrap();
    let tree = NvTree::<[u8], [u8], _>::create(&pool, "t", &NvOptions::default()).unwrap();
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
    let (stats, sizes) = (tree.nv_stats(), tree.leaf_sizes());
    tree.close().unwrap();
    drop(pool);
    for (path, clean) in [(&path, true), (&image, false), (&image, true)] {
        let pool = Pool::<Mapped>::open(path, &options(1 << 30)).unwrap();
        for threads in [1, 3] {
            let options = NvOptions {
                recovery_threads: threads,
                ..NvOptions::default()
            };
            let tree = NvTree::<[u8], [u8], _>::open(&pool, "t", &options).unwrap();
            assert_eq!(tree.recovery().clean, clean || threads == 3);
            assert_eq!(tree.verify().unwrap().entries, 14_000);
            for i in (0..15_000).step_by(7) {
                let expected = match i {
                    0..1_000 => None,
                    1_000..5_000 => Some(format!("value {}", i + 15_000)),
                    _ => Some(format!("value {i}")),
                };
                assert_eq!(tree.get(&key(i)), expected.map(String::into_bytes), "{i}");
            }
            if clean && path.ends_with("pool") && threads == 1 {
                // A clean close keeps the statistics.
                assert_eq!(tree.nv_stats().writes, stats.writes);
                assert_eq!(tree.leaf_sizes(), sizes);
            }
        }
    }
}

#[test]
fn options_are_checked() {
    let pool = Pool::<Dram>::create(Path::new("dram"), &options(64 << 20)).unwrap();
    for leaf_bytes in [0, 64, 300, 16_384] {
        let options = NvOptions {
            leaf_bytes,
            ..NvOptions::default()
        };
        let refused = NvTree::<u64, u64, _>::create(&pool, "t", &options).unwrap_err();
        assert!(
            refused.to_string().contains(&leaf_bytes.to_string()),
            "{refused}"
        );
    }
}

/// Returns what a load costs a tree of 20,000 keys: reshapings and lines in 50,000 operations, and
/// the resulting leaf sizes.
fn loaded(
    strategy: Adaptivity,
    load: impl Fn(&Numbers, u64, &[u64]),
) -> (u64, u64, Vec<(u64, u64)>) {
    let tree = tree(1024, strategy);
    let mut keys: Vec<u64> = (0..20_000).map(mix).collect();
    for (i, key) in keys.iter().enumerate() {
        tree.insert(key, &(i as u64)).unwrap();
    }
    keys.sort_unstable();
    let reshaped = |s: NvStats| s.splits + s.replaces + s.merges;
    let before = reshaped(tree.nv_stats());
    let (lines, _) = cost(&tree, || {
        for i in 0..50_000 {
            load(&tree, i, &keys);
        }
    });
    tree.verify().unwrap();
    let after = reshaped(tree.nv_stats());
    (after - before, lines, tree.leaf_sizes())
}

fn update_one_of(tree: &Numbers, i: u64, keys: &[u64]) {
    tree.update(&keys[(mix(i) % keys.len() as u64) as usize], &i)
        .unwrap();
}

const RESIZING: [Adaptivity; 3] = [
    Adaptivity::Conservative,
    Adaptivity::Balanced,
    Adaptivity::Aggressive,
];

/// Updates of 0.5 % of the keys: with adaptivity their leaves grow, and hardly any reshaping is
/// left.
#[test]
fn hot_leaves_grow() {
    let load = |tree: &Numbers, i: u64, keys: &[u64]| update_one_of(tree, i, &keys[..100]);
    let (plain, plain_lines, sizes) = loaded(Adaptivity::Off, load);
    assert_eq!(sizes.len(), 1, "nothing is resized: {sizes:?}");
    for (strategy, times) in RESIZING.into_iter().zip([2, 4, 4]) {
        let (adaptive, lines, sizes) = loaded(strategy, load);
        assert!(
            adaptive * times < plain,
            "{strategy:?}: {adaptive} reshapings against {plain}"
        );
        assert!(
            lines * 10 < plain_lines * 9,
            "{lines} against {plain_lines}"
        );
        let (size, leaves) = *sizes.last().unwrap();
        assert!(size == 4096 && leaves < 20, "{sizes:?}");
    }
}

/// Updates of all keys: adaptivity can gain nothing, so it changes nothing and costs nothing.
#[test]
fn a_uniform_load_resizes_nothing() {
    let plain = loaded(Adaptivity::Off, update_one_of);
    for strategy in RESIZING {
        let adaptive = loaded(strategy, update_one_of);
        assert_eq!(
            (adaptive.0, &adaptive.2),
            (plain.0, &plain.2),
            "{strategy:?}"
        );
        // The allocator's lines may differ: they depend on when the replaced leaves become free.
        assert!(adaptive.1.abs_diff(plain.1) < 200, "{adaptive:?} {plain:?}");
    }
}

/// When the hot zone moves, the leaves of the new zone grow as those of the old one did.
#[test]
fn a_hot_zone_may_move() {
    for strategy in RESIZING {
        let tree = tree(1024, strategy);
        for i in 0..20_000 {
            tree.insert(&mix(i), &i).unwrap();
        }
        let mut keys: Vec<u64> = (0..20_000).map(mix).collect();
        keys.sort_unstable();
        let smallest = |zone: std::ops::Range<usize>| {
            let guard = epoch::pin();
            let sizes = keys[zone]
                .iter()
                .map(|key| tree.find_leaf(key, &guard).size);
            sizes.min().unwrap()
        };
        for zone in [0..100, 19_900..20_000] {
            assert_eq!(smallest(zone.clone()), 1024);
            for i in 0..50_000 {
                update_one_of(&tree, i, &keys[zone.clone()]);
            }
            assert_eq!(
                smallest(zone.start + 10..zone.end - 10),
                4096,
                "{strategy:?}"
            );
        }
        assert_eq!(smallest(5_000..15_000), 1024);
        tree.verify().unwrap();
    }
}

/// Ascending insertions hit one PLN, whose successors get longer.
#[test]
fn hot_plns_are_enlarged() {
    let run = |strategy| {
        let tree = tree(1024, strategy);
        for i in 0..100_000 {
            tree.insert(&i, &i).unwrap();
        }
        tree.verify().unwrap();
        let stats = tree.nv_stats();
        assert!(tree.stats().dram_bytes < 40 << 20, "{:?}", tree.stats());
        stats
    };
    let (plain, adaptive) = (run(Adaptivity::Off), run(Adaptivity::Balanced));
    assert!(adaptive.hot_plns > 0, "{adaptive:?}");
    // Ten times, and more with every million.
    assert!(
        adaptive.rebuilds * 6 < plain.rebuilds,
        "{adaptive:?} {plain:?}"
    );
}

#[test]
fn a_blind_insertion_appends_and_the_newest_counts() {
    let pool = Pool::create(Path::new("dram"), &options(1 << 30)).unwrap();
    let options = NvOptions {
        leaf_bytes: 256,
        blind: true,
        ..NvOptions::default()
    };
    let tree: Numbers = NvTree::create(&pool, "t", &options).unwrap();
    for i in 0..10_000 {
        tree.insert(&mix(i), &i).unwrap();
    }
    assert!(tree.verify().is_ok());
    assert_eq!(tree.stats().entries, 10_000);
    for i in 0..10_000 {
        assert_eq!(tree.get(&mix(i)), Some(i));
        assert!(!tree.remove(&!mix(i)).unwrap());
    }
    // It does not look, so it does not refuse.
    tree.insert(&mix(7), &77).unwrap();
    assert_eq!(tree.get(&mix(7)), Some(77));
    // Other ways to put a key do look.
    assert!(tree.upsert(&mix(7), &78).unwrap());
    assert!(tree.update(&mix(8), &88).is_ok());
    assert_eq!((tree.get(&mix(7)), tree.get(&mix(8))), (Some(78), Some(88)));
}
