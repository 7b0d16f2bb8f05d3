//! What is particular to this family; the shared scenarios are in `tests/`.

use super::*;
use crate::unsorted::Unsorted;
use bristlecone_pmem::media::{Dram, Mapped};
use bristlecone_pmem::{MediaOptions, PoolOptions};
use std::collections::BTreeMap;
use std::path::Path;

fn options(reserve: u64) -> PoolOptions {
    PoolOptions {
        media: MediaOptions {
            reserve,
            ..MediaOptions::default()
        },
    }
}

const fn bytes(node_bytes: u32) -> BTreeOptions {
    BTreeOptions {
        node_bytes: Some(node_bytes),
        most_entries: None,
        recovery_threads: 1,
        volatile: false,
    }
}

fn dram<D: Kind>(options: &BTreeOptions) -> BTree<u64, u64, Dram, D> {
    let pool = Pool::create(Path::new("dram"), &self::options(1 << 28)).unwrap();
    BTree::create(&pool, "t", options).unwrap()
}

/// A bijection on u64 that looks random.
fn mix(x: u64) -> u64 {
    let x = (x ^ x >> 31).wrapping_mul(0x7FB5_D329_728E_A185);
    let x = (x ^ x >> 27).wrapping_mul(0x81DA_DEF4_BC2D_D44D);
    x ^ x >> 33
}

fn all<D: Kind>(tree: &BTree<u64, u64, Dram, D>) -> Vec<(u64, u64)> {
    let mut seen = Vec::new();
    tree.scan(.., |k, v| {
        seen.push((*k, *v));
        ControlFlow::Continue(())
    });
    seen
}

fn grows_and_shrinks<D: Kind>() {
    // Trees of every node size, and high ones.
    let sizes = NODE_BYTES.iter().map(|size| bytes(*size));
    let high = [2, 3, 4].map(|most| BTreeOptions {
        most_entries: Some(most),
        ..bytes(256)
    });
    for options in sizes.chain(high) {
        let tree = dram::<D>(&options);
        let mut model = BTreeMap::new();
        for i in 0..4_000 {
            tree.insert(&mix(i), &i).unwrap();
            model.insert(mix(i), i);
        }
        assert_eq!(tree.verify().unwrap().entries, 4_000);
        let stats = tree.stats();
        assert_eq!(
            stats.depth as usize,
            tree.node(tree.top).level(tree.pm()) + 1
        );
        assert!(
            stats.inner_nodes > 0 && stats.leaf_fill >= 0.45,
            "{stats:?}"
        );
        assert!(
            all(&tree)
                .into_iter()
                .eq(model.iter().map(|(k, v)| (*k, *v)))
        );
        let mut down = Vec::new();
        tree.scan_reverse(1 << 60..1 << 62, |k, v| {
            down.push((*k, *v));
            ControlFlow::Continue(())
        });
        let expected = model.range(1 << 60..1 << 62).rev();
        assert!(down.into_iter().eq(expected.map(|(k, v)| (*k, *v))));
        // From either end and from the middle, so that first, last and inner nodes go.
        let keys: Vec<u64> = model.keys().copied().collect();
        let (left, right) = keys.split_at(keys.len() / 2);
        for (i, key) in right.iter().chain(left.iter().rev()).enumerate() {
            assert!(tree.remove(key).unwrap());
            assert!(!tree.remove(key).unwrap());
            if i % 500 == 0 {
                let report = tree.verify().unwrap();
                assert_eq!(report.entries as usize, keys.len() - i - 1);
            }
        }
        let stats = tree.stats();
        assert_eq!((stats.leaves, stats.inner_nodes, stats.depth), (1, 0, 1));
        tree.verify().unwrap();
    }
}

#[test]
fn sorted_trees_grow_and_shrink() {
    grows_and_shrinks::<Lcb>();
}

#[test]
fn unsorted_trees_grow_and_shrink() {
    grows_and_shrinks::<Unsorted>();
}

#[test]
fn an_odd_node_size_is_refused() {
    let pool = Pool::<Dram>::create(Path::new("dram"), &options(1 << 28)).unwrap();
    for odd in [0, 8, 255, 257, 8192, u32::MAX] {
        let made = LcbTree::<u64, u64, _>::create(&pool, "t", &bytes(odd));
        let Err(TreeError::NodeBytes { asked, .. }) = made else {
            panic!("nodes of {odd} bytes");
        };
        assert_eq!(asked, odd);
    }
    assert!(pool.roots().is_empty());
}

/// A change that was interrupted after it had stored everything is taken back.
fn an_interrupted_change_is_taken_back<D: Kind>() {
    let folder = tempfile::tempdir().unwrap();
    let (path, image) = (folder.path().join("pool"), folder.path().join("image"));
    let pool = Pool::<Mapped>::create(&path, &options(1 << 28)).unwrap();
    let tree = BTree::<u64, u64, _, D>::create(&pool, "t", &bytes(256)).unwrap();
    for i in 0..100 {
        tree.insert(&i, &i).unwrap();
    }
    let leaf = tree.leaf_of(&find::Goal::Key(&50)).unwrap();
    let (above, node) = (tree.node(tree.top), tree.node(leaf.at));
    let words = |node| Overwritten {
        node,
        from: 0,
        words: tree.words,
    };
    let mut change = tree.change(&[words(above), words(node)]);
    for word in 0..tree.words {
        change.store(above, word, !0);
        change.store(node, word, 7);
    }
    std::fs::copy(&path, &image).unwrap();
    // As it was, so that this tree can go on.
    change.commit();
    std::mem::forget(tree);
    let pool = Pool::<Mapped>::open(&image, &options(1 << 28)).unwrap();
    let tree = BTree::<u64, u64, _, D>::open(&pool, "t", &bytes(256)).unwrap();
    assert_eq!(tree.recovery().repaired, 1);
    assert_eq!(tree.verify().unwrap().entries, 100);
    assert_eq!(tree.get(&50), Some(50));
}

#[test]
fn sorted_trees_take_an_interrupted_change_back() {
    an_interrupted_change_is_taken_back::<Lcb>();
}

#[test]
fn unsorted_trees_take_an_interrupted_change_back() {
    an_interrupted_change_is_taken_back::<Unsorted>();
}
