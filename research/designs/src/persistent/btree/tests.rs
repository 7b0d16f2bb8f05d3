//! Tests of this family alone; the scenarios that all designs share are in `tests/`.

use super::node::HEADER;
use super::*;
use crate::index::ReverseScan;
use crate::unsorted::Unsorted;
use bristlecone_pmem::media::{Dram, Mapped};
use bristlecone_pmem::{MediaOptions, PoolOptions};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
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
        group_flush: GroupFlush::Off,
        search: Search::Usual,
    }
}

fn dram<D: Kind>(options: &BTreeOptions) -> BTree<u64, u64, Dram, D> {
    let pool = Pool::create(Path::new("dram"), &self::options(1 << 28)).unwrap();
    BTree::create(&pool, "t", options).unwrap()
}

/// Maps u64 one to one to numbers that look random.
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
    let sizes = D::NODE_BYTES.iter().map(|size| bytes(*size));
    let high = [2, 3, 4].map(|most| BTreeOptions {
        most_entries: Some(most),
        ..bytes(256)
    });
    grow_and_shrink::<D>(sizes.chain(high));
}

fn grow_and_shrink<D: Kind>(ways: impl Iterator<Item = BTreeOptions>) {
    for options in ways {
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
        // From either end and from the middle, so that first, last and inner nodes are freed.
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
fn logged_trees_grow_and_shrink() {
    grows_and_shrinks::<Wal>();
}

#[test]
fn trees_that_flush_in_groups_grow_and_shrink() {
    let when = [
        GroupFlush::On,
        GroupFlush::UNDER_LOAD,
        GroupFlush::UnderLoad { writers: 0 },
    ];
    let ways = |bytes: BTreeOptions| {
        when.map(|group_flush| BTreeOptions {
            volatile: true,
            group_flush,
            ..bytes
        })
    };
    grow_and_shrink::<Lcb>(
        [bytes(128), bytes(512), bytes(8192)]
            .into_iter()
            .flat_map(ways),
    );
    grow_and_shrink::<Unsorted>(ways(bytes(256)).into_iter());
}

#[test]
fn every_way_of_searching_finds_the_same() {
    let ways = [Search::Usual, Search::Linear, Search::Binary];
    for node_bytes in [128, 512, 8192] {
        let trees = ways.map(|search| {
            let options = BTreeOptions {
                search,
                ..bytes(node_bytes)
            };
            dram::<Wal>(&options)
        });
        for i in 0..3_000 {
            for tree in &trees {
                tree.insert(&(mix(i) | 1), &i).unwrap();
            }
        }
        for i in 0..3_000 {
            let key = mix(i) | 1;
            for tree in &trees {
                assert_eq!(tree.get(&key), Some(i));
                assert_eq!(tree.get(&(key - 1)), None);
            }
        }
        for tree in &trees[1..] {
            assert_eq!(all(tree), all(&trees[0]));
        }
    }
}

#[test]
fn unsorted_trees_grow_and_shrink() {
    grows_and_shrinks::<Unsorted>();
}

#[test]
fn an_odd_node_size_is_refused() {
    let pool = Pool::<Dram>::create(Path::new("dram"), &options(1 << 28)).unwrap();
    for odd in [0, 8, 64, 255, 257, 16384, u32::MAX] {
        let made = LcbTree::<u64, u64, _>::create(&pool, "t", &bytes(odd));
        let Err(TreeError::NodeBytes { asked, .. }) = made else {
            panic!("nodes of {odd} bytes");
        };
        assert_eq!(asked, odd);
    }
    assert!(pool.roots().is_empty());
}

/// A change that was interrupted after all its stores is undone.
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
    // The change is finished after all, so that this tree can go on.
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

/// Arms `record` in the log of a tree of a hundred keys. Returns what opening finds after a crash.
fn opened_with_a_record(
    record: impl Fn(&BTreeWal<u64, u64, Mapped>) -> Vec<u64>,
) -> Result<BTreeWal<u64, u64, Mapped>, TreeError> {
    let folder = tempfile::tempdir().unwrap();
    let (path, image) = (folder.path().join("pool"), folder.path().join("image"));
    let pool = Pool::<Mapped>::create(&path, &options(1 << 28)).unwrap();
    let tree = BTreeWal::create(&pool, "t", &bytes(256)).unwrap();
    for i in 0..100 {
        tree.insert(&i, &i).unwrap();
    }
    let mut slot = tree.logs.take();
    slot.arm(&record(&tree));
    std::fs::copy(&path, &image).unwrap();
    slot.disarm();
    drop(slot);
    let pool = Pool::<Mapped>::open(&image, &options(1 << 28)).unwrap();
    BTree::open(&pool, "t", &bytes(256))
}

#[test]
fn a_change_that_was_logged_is_made_at_recovery() {
    let opened = opened_with_a_record(|tree| {
        let leaf = tree.leaf_of(&find::Goal::Key(&50)).unwrap();
        let leaf = tree.node(leaf.at);
        let found = Sorted::find::<u64, u64, _>(leaf, tree.pm(), &50).unwrap();
        let value = leaf.offset() + leaf.pairs::<u64, u64>().value_at(found.slot) as u64 * 8;
        vec![value, 8, 5000, leaf.offset(), 8, leaf.load(tree.pm(), 0)]
    });
    let tree = opened.unwrap();
    assert_eq!(tree.recovery().repaired, 1);
    assert_eq!(tree.verify().unwrap().entries, 100);
    assert_eq!((tree.get(&50), tree.get(&51)), (Some(5000), Some(51)));
}

#[test]
fn a_record_that_makes_no_sense_is_refused() {
    type Tree = BTreeWal<u64, u64, Mapped>;
    let top = |tree: &Tree| tree.node(tree.top).offset();
    type Wrong<'w> = &'w dyn Fn(&Tree) -> Vec<u64>;
    let wrong: [Wrong<'_>; 12] = [
        &|_| vec![],
        &|tree| vec![top(tree)],
        &|tree| vec![top(tree), 8],
        &|tree| vec![top(tree), 0],
        &|tree| vec![top(tree), 0, 1],
        &|tree| vec![top(tree), 16, 1],
        &|tree| vec![top(tree), 12, 1, 2],
        &|tree| vec![top(tree) + 4, 8, 1],
        &|tree| vec![top(tree) + 248, 16, 1, 2],
        &|tree| vec![tree.logs.offset(), 8, 1],
        &|_| vec![u64::MAX - 7, 8, 1],
        &|tree| vec![top(tree), u64::MAX - 7, 1],
    ];
    for (i, record) in wrong.into_iter().enumerate() {
        let opened = opened_with_a_record(record);
        assert!(matches!(opened, Err(TreeError::Corrupt(_))), "record {i}");
    }
}

#[test]
fn a_split_logs_more_than_shares_the_line_of_the_head() {
    // Before a short record, what it leads to takes a fence of its own; no split is that short.
    let shortest = HEADER + 1 + 2 + 1 + 2;
    assert!(shortest > bristlecone_pmem::log::NEAR);
}

/// The sums of four numbers in a row cancel out, so a count that leaves them out needs its own.
#[test]
fn a_damaged_count_is_found() {
    let tree = dram::<Lcb>(&bytes(256));
    let node = tree.node(tree.top);
    let pm = tree.pm();
    let keys: Vec<(u64, u64)> = (0..12).map(|key| (key, key)).collect();
    node.pairs::<u64, u64>().fill(pm, 0, 0, &keys);
    let word = node.load(pm, 0);
    assert_eq!(node.pairs::<u64, u64>().sound(pm), Ok(()));
    for bit in 0..64 {
        node.init(pm, 0, word ^ 1 << bit);
        let found = node.pairs::<u64, u64>().sound(pm);
        assert!(found.is_err(), "bit {bit} of {word:#x}");
    }
    node.init(pm, 0, word);
}
