//! A tree is opened as what it is, or not at all; options are not part of it.

mod common;

use bristlecone_pmem::media::Mapped;
use bristlecone_pmem::pool::RootError;
use bristlecone_trees::OrderedIndex;
use bristlecone_trees::lbtree::{LbOptions, LbTree};
use bristlecone_trees::{DurableIndex, TreeError};
use common::PoolHome;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

type Numbers<const B: usize> = LbTree<u64, u64, Mapped, B>;

fn content<const B: usize>(tree: &Numbers<B>) -> BTreeMap<u64, u64> {
    let mut all = BTreeMap::new();
    tree.scan(.., |k, v| {
        all.insert(*k, *v);
        ControlFlow::Continue(())
    });
    all
}

#[test]
fn another_kind_is_refused_and_named() {
    let home = PoolHome::<Mapped>::new();
    let options = LbOptions::default();
    let tree = Numbers::<2>::create(&home.pool, "index", &options).expect("a new root");
    tree.insert(&1, &2).expect("a new key");
    tree.close().expect("close");
    let wrong = [
        (
            "256-byte",
            Numbers::<1>::open(&home.pool, "index", &options).map(drop),
        ),
        (
            "1024-byte",
            Numbers::<4>::open(&home.pool, "index", &options).map(drop),
        ),
        (
            "bytes to u64",
            LbTree::<[u8], u64, Mapped, 2>::open(&home.pool, "index", &options).map(drop),
        ),
        (
            "u64 to bytes",
            LbTree::<u64, [u8], Mapped, 2>::open(&home.pool, "index", &options).map(drop),
        ),
    ];
    for (asked, answer) in wrong {
        let error = answer.expect_err(asked);
        assert!(
            matches!(error, TreeError::Root(RootError::WrongKind { .. })),
            "{error:?}"
        );
        let text = error.to_string();
        let found = "lbtree of u64 to u64 in 512-byte nodes";
        assert!(
            text.contains("index") && text.contains(asked) && text.contains(found),
            "{text}"
        );
    }
    let tree = Numbers::<2>::open(&home.pool, "index", &options).expect("what it is");
    assert!(tree.recovery().clean, "refused openings left it as it was");
    assert_eq!(tree.get(&1), Some(2));
    let kind = home.pool.roots().remove(0).kind;
    assert_eq!((kind.design.as_str(), kind.node_bytes), ("lbtree", 512));
}

/// Any number of threads, with and without entry moving, after growth and after most leaves that
/// recovery might start from are gone.
#[test]
fn every_way_of_recovering_finds_the_same() {
    let home = PoolHome::<Mapped>::new();
    let tree = Numbers::<1>::create(&home.pool, "index", &LbOptions::default()).expect("a root");
    let key = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for n in 0..60_000 {
        tree.insert(&key(n), &n).expect("a new key");
    }
    // In order of the keys, so that whole stretches of leaves go.
    let goes = |k: &u64| !(k >> 60).is_multiple_of(4);
    for stage in ["grown", "shrunk"] {
        let expected = content(&tree);
        for threads in [1, 2, 3, 16, 100] {
            for moving in [true, false] {
                let image = home.crash_image();
                let options = LbOptions {
                    entry_moving: moving,
                    recovery_threads: threads,
                };
                let opened = Numbers::<1>::open(&image.pool, "index", &options).expect("recovery");
                let report = opened.recovery();
                assert_eq!(report.entries, expected.len() as u64, "{stage}: {report:?}");
                assert!(
                    !report.clean && report.leaves_scanned > 0,
                    "{stage}: {report:?}"
                );
                assert_eq!(report.leaves_scanned, opened.stats().leaves, "{stage}");
                assert!(content(&opened) == expected, "{stage}, {threads} threads");
                opened
                    .verify()
                    .unwrap_or_else(|v| panic!("{stage}, {threads} threads: {v}"));
                for n in 0..300 {
                    opened.upsert(&key(n), &1).expect("upsert");
                }
                opened
                    .verify()
                    .unwrap_or_else(|v| panic!("{stage}, after work: {v}"));
            }
        }
        for k in expected.keys().filter(|k| stage == "grown" && goes(k)) {
            assert!(tree.remove(k).expect("removal"));
        }
    }
}
