//! Costs of the B+-trees in persistent memory in flushed lines and fences: goldens that a change
//! must not raise unnoticed. Counted in memory.

use crate::common::counted::{self, Medium, cost_of as cost, pool};
use bristlecone_designs::cddstree::{CddsOptions, CddsTree};
use bristlecone_designs::nvtree::{Adaptivity, NvOptions, NvTree};
use bristlecone_designs::{
    BTreeOptions, BTreeWal, BulkLoad, DurableIndex, Fill, GroupFlush, KeyRepr, LcbTree, NvtATree,
    OrderedIndex, Repr, TreeError, UnsortedTree,
};
use std::sync::Arc;

type Lcb<K, V> = LcbTree<K, V, Medium>;
type Wal<K, V> = BTreeWal<K, V, Medium>;
type Unsorted<K, V> = UnsortedTree<K, V, Medium>;

fn made<K, V, I>(node_bytes: u32) -> I
where
    K: KeyRepr + ?Sized,
    V: Repr + ?Sized,
    I: DurableIndex<K, V, Medium, Options = BTreeOptions>,
{
    let options = BTreeOptions {
        node_bytes: Some(node_bytes),
        ..BTreeOptions::default()
    };
    I::create(&pool(), "index", &options).expect("a new root")
}

/// Returns the lines of the log of one node (its words, their places and the slot's head) and of
/// disarming it.
const fn log_lines(node_bytes: u64) -> u64 {
    (node_bytes + 8 + 16).div_ceil(64) + 1
}

#[test]
fn lcb_logs_the_node_and_flushes_what_changed() {
    for (node_bytes, capacity) in [
        (256, 15),
        (512, 31),
        (1024, 63),
        (2048, 127),
        (4096, 255),
        (8192, 511),
    ] {
        let tree: Lcb<u64, u64> = made(node_bytes);
        let lines = u64::from(node_bytes) / 64;
        let log = log_lines(u64::from(node_bytes));
        let first = cost(&tree, |tree| tree.insert(&1000, &0).expect("a new key"));
        // The header and key 0, and value 0.
        assert_eq!(first, (log + 2, 4), "first key, {node_bytes} bytes");
        for key in 1..capacity - 1 {
            tree.insert(&(1000 - key), &key).expect("a new key");
        }
        let shifting = cost(&tree, |tree| tree.insert(&1, &0).expect("a new key"));
        assert_eq!(
            shifting,
            (log + lines, 4),
            "all shifted, {node_bytes} bytes"
        );
        let update = cost(&tree, |tree| tree.update(&1, &5).expect("a known key"));
        assert_eq!(update, (log + 1, 4), "update, {node_bytes} bytes");
        let last = cost(&tree, |tree| assert!(tree.remove(&1000).expect("removal")));
        assert_eq!(last, (log + 1, 4), "last key, {node_bytes} bytes");
        let first = cost(&tree, |tree| assert!(tree.remove(&1).expect("removal")));
        let most = log + lines;
        assert!(
            first.0 >= most - 1 && first.0 <= most && first.1 == 4,
            "{first:?}"
        );
        let reads = cost(&tree, |tree| {
            tree.get(&999);
            tree.multi_get(&[1u64, 2, 998], &mut Vec::new());
            tree.verify().expect("whole");
        });
        assert_eq!(reads, (0, 0));
        let refused = cost(&tree, |tree| {
            tree.insert(&999, &0).expect_err("there");
            tree.update(&1, &0).expect_err("not there");
            assert!(!tree.remove(&1).expect("removal"));
        });
        assert_eq!(refused, (0, 0));
    }
}

/// Fig. 1c of the NV-Tree paper has 14.8, 24.6, 44.7 and 85.26 lines per random insertion into
/// nodes of 512 to 4096 bytes, splits included.
#[test]
fn lcb_insertions_cost_what_the_paper_measured() {
    for (node_bytes, paper) in [(512, 14.8), (1024, 24.6), (2048, 44.7), (4096, 85.26)] {
        let tree: Lcb<u64, u64> = made(node_bytes);
        let scattered = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for n in 0..30_000 {
            tree.insert(&scattered(n), &n).expect("a new key");
        }
        let (lines, fences) = cost(&tree, |tree| {
            for n in 30_000..60_000 {
                tree.insert(&scattered(n), &n).expect("a new key");
            }
        });
        let (lines, fences) = (lines as f64 / 30_000.0, fences as f64 / 30_000.0);
        println!("{node_bytes}: {lines:.2} lines, {fences:.3} fences; the paper: {paper} lines");
        assert!(
            lines > paper * 0.75 && lines < paper * 1.25,
            "{node_bytes}: {lines}"
        );
        assert!((4.0..4.5).contains(&fences), "{node_bytes}: {fences}");
    }
}

/// Returns the lines of a redo record of three runs (the header word, keys, values) with `words`
/// words in all, and of disarming it.
const fn redo_lines(words: u64) -> u64 {
    (8 + 3 * 16 + words * 8).div_ceil(64) + 1
}

#[test]
fn wal_logs_what_changes_and_flushes_it() {
    for (node_bytes, capacity) in [
        (128, 7),
        (256, 15),
        (512, 31),
        (1024, 63),
        (2048, 127),
        (4096, 255),
        (8192, 511),
    ] {
        let tree: Wal<u64, u64> = made(node_bytes);
        let lines = u64::from(node_bytes) / 64;
        let first = cost(&tree, |tree| tree.insert(&1000, &0).expect("a new key"));
        // The header and key 0, and value 0.
        assert_eq!(
            first,
            (redo_lines(3) + 2, 4),
            "first key, {node_bytes} bytes"
        );
        for key in 1..capacity - 1 {
            tree.insert(&(1000 - key), &key).expect("a new key");
        }
        let shifting = cost(&tree, |tree| tree.insert(&1, &0).expect("a new key"));
        let all = redo_lines(1 + 2 * capacity) + lines;
        assert_eq!(shifting, (all, 4), "all shifted, {node_bytes} bytes");
        // The record shares the line of the log's head.
        let update = cost(&tree, |tree| tree.update(&1, &5).expect("a known key"));
        assert_eq!(update, (1 + 1 + 1, 3), "update, {node_bytes} bytes");
        let last = cost(&tree, |tree| assert!(tree.remove(&1000).expect("removal")));
        assert_eq!(last, (1 + 1 + 1, 3), "last key, {node_bytes} bytes");
        let reads = cost(&tree, |tree| {
            tree.get(&999);
            tree.multi_get(&[1u64, 2, 998], &mut Vec::new());
            tree.verify().expect("whole");
        });
        assert_eq!(reads, (0, 0));
        let refused = cost(&tree, |tree| {
            tree.insert(&1, &0).expect_err("there");
            tree.update(&2, &0).expect_err("not there");
            assert!(!tree.remove(&2).expect("removal"));
        });
        assert_eq!(refused, (0, 0));
    }
}

/// Table 2 of UCSC-CRSS-20-01: 12 lines and 4 fences per insertion, in nodes of 512 bytes, splits
/// included.
#[test]
fn wal_insertions_cost_what_the_paper_measured() {
    let tree: Wal<u64, u64> = made(512);
    let lines = lines_of_an_insertion(&tree);
    println!("{lines:.2} lines; the paper: 12");
    assert!((9.0..15.0).contains(&lines), "{lines}");
    let scattered = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (_, fences) = cost(&tree, |tree| {
        for n in 60_000..90_000 {
            tree.insert(&scattered(n), &n).expect("a new key");
        }
    });
    let fences = fences as f64 / 30_000.0;
    println!("{fences:.3} fences; the paper: 4");
    assert!((3.8..4.5).contains(&fences), "{fences}");
}

/// The fences of a change of numbers are those of its record. If a change leads to records of keys
/// and values, they are fenced before its own record counts, by a fence of their own if that record
/// is short.
#[test]
fn wal_fences_records_before_it_leads_to_them() {
    let (key, value) = ([7u8; 20], [9u8; 100]);
    let tree: Wal<[u8], [u8]> = made(512);
    let insert = cost::<[u8], [u8], _>(&tree, |tree| {
        tree.insert(&key, &value).expect("a new key");
    });
    let chunks = 2; // two size classes are used for the first time
    assert_eq!(insert, (redo_lines(3) + 2 + 3 + chunks, 4 + chunks));
    let update = cost::<[u8], [u8], _>(&tree, |tree| {
        tree.update(&key, &value).expect("a known key");
    });
    assert_eq!(update, (2 + 1 + 2, 4));
}

/// A tree that flushes in groups flushes runs of two or more lines of a changed node, and whole new
/// nodes. It never fences.
#[test]
fn group_flushing_flushes_neighbours_and_fences_nothing() {
    let options = |group_flush| BTreeOptions {
        node_bytes: Some(512),
        volatile: true,
        group_flush,
        ..BTreeOptions::default()
    };
    let make = |group_flush| {
        Lcb::<u64, u64>::create(&pool(), "index", &options(group_flush)).expect("a new root")
    };
    let tree = make(GroupFlush::On);
    // The header and the first keys are in line 0, the first values in line 4: no neighbours.
    let apart = cost(&tree, |tree| tree.insert(&1000, &0).expect("a new key"));
    assert_eq!(apart, (0, 0));
    for key in 1..29 {
        tree.insert(&(1000 - key), &key).expect("a new key");
    }
    let all = cost(&tree, |tree| tree.insert(&1, &0).expect("a new key"));
    assert_eq!(all, (8, 0), "30 keys and as many values shifted");
    let last = cost(&tree, |tree| tree.insert(&2000, &0).expect("a new key"));
    assert_eq!(last, (0, 0), "a key, a value, the header: no neighbours");
    let update = cost(&tree, |tree| tree.update(&1, &5).expect("a known key"));
    assert_eq!(update, (0, 0));
    let split = cost(&tree, |tree| tree.insert(&3000, &0).expect("a new key"));
    assert_eq!(
        split,
        (16, 0),
        "two new nodes; the root's header and value are apart"
    );
    assert_eq!(tree.verify().expect("whole").entries, 32);

    // One thread is no load, unless the options say so.
    let insert = |tree: &Lcb<u64, u64>| {
        cost(tree, |tree| {
            for n in 0..2_000u64 {
                tree.insert(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15), &n)
                    .expect("a new key");
            }
        })
    };
    let chunks = 12;
    let idle = insert(&make(GroupFlush::UNDER_LOAD));
    assert!(idle.0 <= chunks && idle.1 <= chunks, "{idle:?}");
    let loaded = insert(&make(GroupFlush::UnderLoad { writers: 1 }));
    let on = insert(&make(GroupFlush::On));
    assert!(on.0 > 2_000 * 3 && on.1 <= chunks, "{on:?}");
    // All but the first 256 changes of the tree.
    assert!(
        loaded.0 < on.0 && loaded.0 > on.0 * 3 / 4,
        "{loaded:?} of {on:?}"
    );
}

/// Returns the lines per insertion that inserting 30,000 keys at random places into a tree of as
/// many flushes.
fn lines_of_an_insertion<I: DurableIndex<u64, u64, Medium>>(index: &I) -> f64 {
    let scattered = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let insert = |index: &I, keys: std::ops::Range<u64>| {
        for n in keys {
            index.insert(&scattered(n), &n).expect("a new key");
        }
    };
    insert(index, 0..30_000);
    let (lines, _) = cost(index, |index| insert(index, 30_000..60_000));
    lines as f64 / 30_000.0
}

/// Section 6.2 and Fig. 5b of the NV-Tree paper: 76 to 96 % fewer lines than CDDS-Tree, 80 to 97 %
/// fewer than LCB+-Tree, most with nodes of 4096 bytes.
#[test]
fn nvtree_flushes_a_fraction_of_what_sorted_leaves_do() {
    for (node_bytes, of_cdds, of_lcb) in [(1024, 0.76, 0.80), (4096, 0.90, 0.95)] {
        let lcb: Lcb<u64, u64> = made(node_bytes);
        let lcb = lines_of_an_insertion(&lcb);
        let options = CddsOptions {
            node_bytes,
            ..CddsOptions::default()
        };
        let cdds = CddsTree::<u64, u64, Medium>::create(&pool(), "index", &options);
        let cdds = lines_of_an_insertion(&cdds.expect("a new root"));
        for adaptivity in [Adaptivity::Off, Adaptivity::Balanced] {
            let options = NvOptions {
                leaf_bytes: node_bytes,
                adaptivity,
                ..NvOptions::default()
            };
            let nv = NvTree::<u64, u64, Medium>::create(&pool(), "index", &options);
            let nv = lines_of_an_insertion(&nv.expect("a new root"));
            println!("{node_bytes} bytes: NV {nv:.2}, CDDS {cdds:.2}, LCB {lcb:.2} lines");
            assert!(nv >= 2.0, "{nv}: an element and the counter at least");
            assert!(1.0 - nv / cdds >= of_cdds, "{nv} of {cdds}");
            assert!(1.0 - nv / lcb >= of_lcb, "{nv} of {lcb}");
        }
    }
}

#[test]
fn unsorted_inserts_with_two_fences() {
    for node_bytes in [256, 512, 1024, 2048, 4096, 8192] {
        let tree: Unsorted<u64, u64> = made(node_bytes);
        for key in 0..14 {
            let insert = cost(&tree, |tree| tree.insert(&key, &key).expect("a new key"));
            assert_eq!(insert, (2, 2), "insert {key}, {node_bytes} bytes");
        }
        let update = cost(&tree, |tree| tree.update(&3, &5).expect("a known key"));
        assert_eq!(update, (1, 1));
        let remove = cost(&tree, |tree| assert!(tree.remove(&3).expect("removal")));
        assert_eq!(remove, (1, 1));
        let again = cost(&tree, |tree| tree.insert(&3, &5).expect("a new key"));
        assert_eq!(again, (2, 2));
        let reads = cost(&tree, |tree| {
            tree.get(&3);
            tree.insert(&3, &0).expect_err("there");
        });
        assert_eq!(reads, (0, 0));
    }
}

/// An append costs the elements' lines, of which an update's two elements may touch two, then the
/// counter's line, with a fence each.
fn appends_cost_two_fences<I: DurableIndex<u64, u64, Medium>>(tree: &I) {
    let mut of_updates = [0; 4];
    for key in 0..8 {
        let insert = cost(tree, |tree| tree.insert(&key, &key).expect("a new key"));
        assert_eq!(insert, (2, 2), "insert {key}");
        let (lines, fences) = cost(tree, |tree| tree.update(&key, &5).expect("a known key"));
        assert_eq!(fences, 2, "update {key}");
        of_updates[lines as usize] += 1;
    }
    assert_eq!(of_updates[..2], [0, 0]);
    assert!(of_updates[2] > 0 && of_updates[3] > 0, "{of_updates:?}");
    let remove = cost(tree, |tree| assert!(tree.remove(&3).expect("removal")));
    assert_eq!(remove, (2, 2));
    let others = cost(tree, |tree| {
        tree.get(&4);
        tree.insert(&4, &0).expect_err("there");
        tree.update(&3, &0).expect_err("not there");
        assert!(!tree.remove(&3).expect("removal"));
    });
    assert_eq!(others, (0, 0));
}

fn nvtree(leaf_bytes: u32) -> NvTree<u64, u64, Medium> {
    let options = NvOptions {
        leaf_bytes,
        adaptivity: Adaptivity::Off,
        ..NvOptions::default()
    };
    NvTree::create(&pool(), "index", &options).expect("a new root")
}

#[test]
fn append_only_leaves_take_two_fences() {
    appends_cost_two_fences(&nvtree(1024));
    appends_cost_two_fences(&made::<u64, u64, NvtATree<u64, u64, Medium>>(1024));
}

/// Split, replace and merge cost the new leaves' lines and a fence, and the link's line and a
/// fence. The operation that met the full leaf follows.
#[test]
fn nvtree_reshapes_with_two_fences() {
    let tree = nvtree(1024);
    let (mut splits, mut replaces, mut merges) = (0, 0, 0);
    let mut check = |key: u64, change: &dyn Fn(&NvTree<u64, u64, Medium>)| {
        let before = tree.nv_stats();
        let chunks = tree.stats().pm_bytes >> 16;
        let (lines, fences) = cost(&tree, change);
        let after = tree.nv_stats();
        let new = [
            after.splits - before.splits,
            after.replaces - before.replaces,
            after.merges - before.merges,
        ];
        (splits, replaces, merges) = (splits + new[0], replaces + new[1], merges + new[2]);
        if tree.stats().pm_bytes >> 16 == chunks {
            let reshaped = new.iter().sum::<u64>();
            assert_eq!(fences, 2 + 2 * reshaped, "key {key}: {new:?}");
            assert!(
                lines <= 3 + reshaped * (2 * 16 + 1),
                "key {key}: {lines} lines"
            );
        }
    };
    for key in 0..2000 {
        check(key, &|tree| tree.insert(&key, &key).expect("a new key"));
    }
    for key in (0..2000).filter(|key| key % 8 > 0) {
        check(key, &|tree| assert!(tree.remove(&key).expect("removal")));
    }
    for key in (0..20_000).map(|i| i * 8 % 400) {
        check(key, &|tree| tree.update(&key, &1).expect("a known key"));
    }
    assert!(
        splits > 20 && replaces > 20 && merges > 20,
        "{splits} splits, {replaces} replaces, {merges} merges"
    );
}

#[test]
fn records_share_the_fences() {
    let (key, value) = ([7u8; 20], [9u8; 100]);
    // A record of 28 bytes lies in one line of its 32-byte block, one of 108 bytes in two of its
    // 128-byte block.
    let unsorted: Unsorted<[u8], [u8]> = made(512);
    let insert = cost::<[u8], [u8], _>(&unsorted, |tree| {
        tree.insert(&key, &value).expect("a new key");
    });
    let chunks = 2; // two size classes are used for the first time
    assert_eq!(insert, (2 + 3 + chunks, 2 + chunks));
    let update = cost::<[u8], [u8], _>(&unsorted, |tree| {
        tree.update(&key, &value).expect("a known key");
    });
    assert_eq!(update, (1 + 2, 2));
    let lcb: Lcb<[u8], [u8]> = made(1024);
    let insert = cost::<[u8], [u8], _>(&lcb, |tree| {
        tree.insert(&key, &value).expect("a new key");
    });
    assert_eq!(insert, (log_lines(1024) + 2 + 3 + chunks, 4 + chunks));
    let update = cost::<[u8], [u8], _>(&lcb, |tree| {
        tree.update(&key, &value).expect("a known key");
    });
    assert_eq!(update, (log_lines(1024) + 1 + 2, 4));
}

#[test]
fn splits_and_unlinking_take_four_fences() {
    let tree: Lcb<u64, u64> = made(1024);
    for key in 0..63 {
        tree.insert(&(key * 2), &key).expect("a new key");
    }
    let node = 16;
    // The root becomes a parent: two new nodes, its log, its lines 0 and 8. Then the key's
    // insertion.
    let split_root = 2 * node + log_lines(1024) + 2;
    let cost_of = cost(&tree, |tree| tree.insert(&200, &0).expect("a new key"));
    assert_eq!(tree.stats().leaves, 2);
    let insert = cost(&tree, |tree| tree.insert(&201, &0).expect("a new key"));
    assert_eq!(cost_of.1, 4 + 4);
    assert!(
        cost_of.0.abs_diff(split_root + insert.0) <= 2,
        "{cost_of:?}"
    );
    for key in 0..200 {
        tree.remove(&key).expect("removal");
    }
    assert_eq!(tree.stats().leaves, 1, "the root took over the only leaf");
    tree.verify().expect("whole");

    let unsorted: Unsorted<u64, u64> = made(512);
    for key in 0..30 {
        unsorted.insert(&key, &key).expect("a new key");
    }
    let cost_of = cost(&unsorted, |tree| tree.insert(&200, &0).expect("a new key"));
    // Two new nodes; 3 + 1 words of the root in the log (with head and places: 9 words, 2 lines)
    // and its disarming; its two lines; the key's insertion.
    assert_eq!(cost_of, (2 * 8 + 3 + 2 + 2, 4 + 2));
}

#[test]
fn bulk_load_writes_every_line_once() {
    let mut tree: Unsorted<u64, u64> = made(512);
    let pool = Arc::clone(tree.pool());
    let (lines, fences) = counted::cost(&pool, || {
        let loaded = tree.bulk_load((0..10_000u64).map(|i| (i, i)), Fill::FULL);
        assert_eq!(loaded.expect("an empty tree"), 10_000);
    });
    let stats = tree.stats();
    let nodes = stats.leaves + stats.inner_nodes;
    assert_eq!(stats.leaves, 10_000u64.div_ceil(30));
    // The root word, and the words of the chunks that were taken.
    let others = lines - nodes * 8;
    assert!(
        others <= 10 && fences == others + 1,
        "{lines} lines, {fences} fences"
    );
}

/// A volatile tree flushes and fences only for the allocator's chunks. It works as a tree, and
/// opening it fails.
#[test]
fn volatile_trees_issue_nothing_and_are_not_opened_again() {
    fn check<I: DurableIndex<u64, u64, Medium, Options = BTreeOptions>>() {
        let options = BTreeOptions {
            volatile: true,
            ..BTreeOptions::default()
        };
        let pool = pool();
        let tree = I::create(&pool, "index", &options).expect("a new root");
        let chunks = |tree: &I| tree.stats().pm_bytes >> 16;
        let before = chunks(&tree);
        let issued = cost(&tree, |tree| {
            for n in 0..20_000u64 {
                tree.insert(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15), &n)
                    .expect("a new key");
            }
        });
        let taken = chunks(&tree) - before;
        assert!(
            issued.0 <= 4 * taken && issued.1 <= 4 * taken,
            "{issued:?} for {taken} chunks"
        );
        let changed = cost(&tree, |tree| {
            for n in 0..20_000u64 {
                let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                tree.update(&key, &(n + 1)).expect("a known key");
                assert_eq!(tree.get(&key), Some(n + 1));
                assert!(n % 2 == 0 || tree.remove(&key).expect("removal"));
            }
        });
        assert_eq!(changed, (0, 0));
        assert_eq!(tree.verify().expect("whole").entries, 10_000);
        tree.close().expect("nothing to save");
        let again = I::open(&pool, "index", &options);
        assert!(matches!(again, Err(TreeError::Volatile)));
    }
    check::<Lcb<u64, u64>>();
    check::<Unsorted<u64, u64>>();
}
