//! Tests of this design alone; the scenarios that all designs share are in `tests/`.

use super::node::Node;
use super::*;
use crate::index::{BulkLoad, Fill, ReverseScan};
use bristlecone_pmem::media::Dram;
use bristlecone_pmem::{MediaOptions, PoolOptions};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

type Numbers = FastFair<u64, u64, Dram>;

fn tree(node_bytes: u32, most_entries: Option<usize>) -> Numbers {
    let options = PoolOptions {
        media: MediaOptions {
            reserve: 1 << 30,
            ..MediaOptions::default()
        },
    };
    let pool = Pool::create(Path::new("dram"), &options).unwrap();
    let options = FastFairOptions {
        node_bytes,
        most_entries,
        recovery_threads: 1,
    };
    Numbers::create(&pool, "t", &options).unwrap()
}

fn leaf(tree: &Numbers, entries: &[(u64, u64)]) -> u32 {
    let at = tree.new_node().unwrap();
    tree.fill_new(at, 0, 0, 0, entries);
    at
}

fn content(tree: &Numbers, node: Node<'_, u64, u64>) -> Vec<(u64, u64)> {
    let mut entries = Vec::new();
    node.entries(tree.pm(), &mut entries);
    assert_eq!(entries.len(), node.count(tree.pm()));
    let raw = node.raw::<u64, Dram>(tree.pm(), None);
    assert!(raw.is_whole() && raw.entries == entries, "{raw:?}");
    entries
}

/// Maps u64 one to one to numbers that look random.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    let x = (x ^ x >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    x ^ x >> 33
}

#[test]
fn nodes_keep_what_is_put_in_and_nothing_else() {
    for bytes in NODE_BYTES {
        let tree = tree(*bytes, None);
        let (pm, node) = (tree.pm(), tree.node(leaf(&tree, &[])));
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let slots = node.slots();
        for round in 0..20 * slots as u64 {
            // Keys from 0 on, and few distinct values.
            let (key, value) = (mix(round) % (2 * slots as u64), mix(round) >> 62);
            match node.find(pm, &key) {
                Ok(found) => {
                    assert_eq!((found.key, Some(&found.value)), (key, model.get(&key)));
                    assert_eq!(node.remove(pm, found.slot), model.len() - 1);
                    model.remove(&key);
                }
                Err(place) if model.len() < slots => {
                    assert_eq!(place, model.range(..key).count());
                    node.insert(pm, model.len(), place, (key, value), true);
                    model.insert(key, value);
                }
                Err(_) => {
                    // As a split does: garbage stays behind the end.
                    let kept = slots / 2;
                    node.cut(pm, kept);
                    model = model.into_iter().take(kept).collect();
                }
            }
            assert!(content(&tree, node).into_iter().eq(model.clone()));
        }
    }
}

/// Every state that a crash inside a line can leave of a shift, constructed by hand.
#[test]
fn what_a_shift_leaves_is_repaired_whatever_the_values() {
    let tree = tree(256, None);
    let pm = tree.pm();
    for first in [0, 5] {
        let all: Vec<(u64, u64)> = (0..6).map(|i| (first + i, 9)).collect();
        // An entry is there twice, and the left one counts. Its value may be anything.
        for twice in 0..all.len() {
            let mut entries = all.clone();
            entries.insert(twice + 1, (all[twice].0, 1));
            if all[twice].0 == 0 {
                continue; // key 0 never moves: nothing comes before it
            }
            let node = tree.node(leaf(&tree, &entries));
            let raw = node.raw::<u64, Dram>(pm, None);
            assert!(!raw.is_whole() && raw.entries == all, "{twice}: {raw:?}");
            assert_eq!(node.repair(pm, &raw), 1);
            assert_eq!(content(&tree, node), all);
        }
        // Entry 0 or 1 hidden.
        for hidden in 0..2usize {
            if (first, hidden) == (0, 0) {
                continue; // likewise
            }
            let mut entries = all.clone();
            entries.insert(hidden, (3, 3));
            let node = tree.node(leaf(&tree, &entries));
            let meta = (hidden as u64 + 1) << 8;
            node.words[0].store(pm, meta, Ordering::Relaxed);
            let raw = node.raw::<u64, Dram>(pm, None);
            assert!(!raw.is_whole() && raw.entries == all, "{hidden}: {raw:?}");
            assert_eq!(node.repair(pm, &raw), 1);
            assert_eq!(content(&tree, node), all);
        }
        // Entries of the right sibling are cut off.
        for kept in 0..all.len() {
            if all[kept].0 == 0 {
                continue; // no sibling's low key
            }
            let node = tree.node(leaf(&tree, &all));
            let raw = node.raw::<u64, Dram>(pm, Some(all[kept].0));
            assert_eq!(raw.cut_at(), Some(kept));
            assert_eq!(node.repair(pm, &raw), 1);
            assert_eq!(content(&tree, node), all[..kept]);
        }
    }
}

/// No header, however corrupt, leads outside the node.
#[test]
fn damaged_headers_stay_inside() {
    let tree = tree(256, None);
    let pm = tree.pm();
    for meta in 0..8u64 {
        for end in 0..3u64 {
            let entries: Vec<(u64, u64)> = (0..14).map(|i| (i % (end + 1), i)).collect();
            let node = tree.node(leaf(&tree, &entries));
            node.words[0].store(pm, meta << 8, Ordering::Relaxed);
            let _ = node.find(pm, &1u64);
            let raw = node.raw::<u64, Dram>(pm, None);
            node.repair(pm, &raw);
            assert!(node.count(pm) <= node.slots());
        }
    }
}

fn grows_and_shrinks(bytes: u32, most: Option<usize>, n: u64) {
    let tree = tree(bytes, most);
    let (nodes, mut model) = (tree.heap.live_blocks(), BTreeMap::new());
    assert_eq!(nodes, 1);
    for i in 0..n {
        // Equal values, side by side.
        tree.insert(&mix(i), &(i % 2)).unwrap();
        model.insert(mix(i), i % 2);
    }
    let report = tree.verify().unwrap();
    assert_eq!(report.entries, n);
    let stats = tree.stats();
    assert_eq!((stats.entries, stats.leaves), (n, report.leaves));
    for (key, value) in &model {
        assert_eq!(tree.get(key), Some(*value));
    }
    let mut seen = Vec::new();
    tree.scan_reverse(.., |key, value| {
        seen.push((*key, *value));
        ControlFlow::Continue(())
    });
    assert!(seen.iter().rev().copied().eq(model.clone()));
    // In the order of insertion, which is not that of the keys; then in the order of the keys.
    for i in 0..n / 2 {
        assert!(tree.remove(&mix(i)).unwrap());
        model.remove(&mix(i));
    }
    tree.verify().unwrap();
    for key in model.keys() {
        assert!(tree.remove(key).unwrap());
    }
    tree.verify().unwrap();
    let stats = tree.stats();
    assert_eq!((stats.entries, stats.depth), (0, 1), "{stats:?}");
    assert_eq!(tree.heap.live_blocks(), nodes, "all nodes but one go");
}

#[test]
fn trees_grow_and_shrink_to_nothing() {
    grows_and_shrinks(256, None, 20_000);
    grows_and_shrinks(256, Some(4), 3_000);
    grows_and_shrinks(256, Some(5), 3_000);
    grows_and_shrinks(1024, None, 20_000);
    grows_and_shrinks(8192, None, 20_000);
}

/// Removal from either end, where only neighbours on one side can be merged.
#[test]
fn trees_shrink_from_either_end() {
    for order in [0, 1, 2] {
        let tree = tree(256, Some(4));
        for key in 0..2_000u64 {
            tree.insert(&key, &0).unwrap();
        }
        for i in 0..2_000u64 {
            let key = match order {
                0 => i,
                1 => 1_999 - i,
                // From the middle outwards.
                _ if i % 2 == 0 => 1_000 + i / 2,
                _ => 999 - i / 2,
            };
            assert!(tree.remove(&key).unwrap(), "{key}");
        }
        tree.verify().unwrap();
        assert_eq!((tree.stats().depth, tree.heap.live_blocks()), (1, 1));
    }
}

/// A scan whose next leaf had changed descended again to its own leaf. It counted that leaf as
/// another one, and stopped once it had counted more leaves than the pool has room for, though half
/// of them were still to come.
#[test]
fn scans_go_on_to_the_end_beside_writers() {
    let mut tree = tree(512, None);
    let per_leaf = tree.capacity as u64;
    let keys = 3_000 * per_leaf;
    tree.bulk_load((0..keys).map(|key| (key, 0)), Fill::FULL)
        .unwrap();
    let leaves = tree.stats().leaves;
    assert!(
        2 * leaves > tree.pm().len() / 512,
        "{leaves} leaves, twice each, are more than there is room for"
    );
    let mut next = 0;
    tree.scan(.., |key, _| {
        assert_eq!(*key, next);
        next += 1;
        // In the next leaf, whose version the scan has read already.
        tree.upsert(&(key + per_leaf).min(keys - 1), &1).unwrap();
        ControlFlow::Continue(())
    });
    assert_eq!(next, keys);
}
