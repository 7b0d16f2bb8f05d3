//! Every subject against a model map, closed and crashed without loss; no explorer involved.

use super::{batch_keys, matching, named, names};
use crate::record;
use crate::subject::{Live, Op, Opened, Subject};
use crate::workload::{Kind, Workload};
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::media::sim::Simulation;
use bristlecone_trees::designs::DESIGNS;
use bristlecone_trees::nvtree::{NvOptions, NvStats, NvTree};
use bristlecone_trees::{DurableIndex, OrderedIndex};
use std::collections::BTreeMap;

fn check(subject: &dyn Subject, live: &dyn Live, model: &BTreeMap<u64, u64>, when: &str) {
    let name = subject.name();
    live.verify()
        .unwrap_or_else(|fault| panic!("{name}, {when}: {fault}"));
    let mut seen = Vec::new();
    live.observe(&mut |key, value| seen.push((key, value)))
        .unwrap_or_else(|fault| panic!("{name}, {when}: {fault}"));
    let expected: Vec<(u64, u64)> = model.iter().map(|(key, value)| (*key, *value)).collect();
    assert_eq!(seen, expected, "{name}, {when}");
}

fn open(subject: &dyn Subject) -> Box<dyn Live> {
    match subject.open() {
        Ok(Opened::Live(live)) => live,
        Ok(Opened::Absent) => panic!("{}: gone", subject.name()),
        Err(fault) => panic!("{}: {fault}", subject.name()),
    }
}

/// Operations that collide, over `keys` keys (1 to 32) of the subject's range.
fn operations(subject: &dyn Subject, seed: u64, count: usize) -> Vec<Op> {
    let mut state = seed;
    let mut next = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let keys = subject.max_key().min(60);
    let mut ops = Vec::new();
    for i in 0..count as u64 {
        let key = next(keys + 1);
        let value = if next(8) == 0 { 0 } else { next(1 << 20) };
        let op = match next(10) {
            0..4 => Op::Insert(key, value),
            4 => Op::Upsert(key, value),
            5 => Op::Update(key, value),
            // Phases of mostly removals, so that leaves empty.
            6..8 => Op::Remove(key),
            8 if i % 64 > 40 => Op::Remove(key),
            8 => Op::Get(key),
            _ if i % 16 == 0 => Op::Compact,
            _ => Op::Batch {
                first: key,
                step: 1 + next(3),
                count: next(6),
                value,
            },
        };
        let inside = match op {
            Op::Batch {
                first, step, count, ..
            } => batch_keys(first, step, count).all(|key| key <= subject.max_key()),
            _ => true,
        };
        if inside && subject.can(&op) {
            ops.push(op);
        }
    }
    ops
}

#[test]
fn subjects_answer_like_a_map_and_survive_closing_and_crashes_without_loss() {
    for name in names() {
        let subject = named(&name).unwrap_or_else(|| panic!("{name}"));
        let subject = subject.as_ref();
        for seed in 0..4 {
            let simulation = Simulation::new(subject.capacity());
            let _attached = simulation.attach();
            assert!(matches!(subject.open(), Ok(Opened::Absent)));
            let mut live = subject.create().unwrap_or_else(|f| panic!("{f}"));
            let mut model = BTreeMap::new();
            check(subject, live.as_ref(), &model, "created");
            for (i, op) in operations(subject, seed, 400).iter().enumerate() {
                let reply = live.apply(op).unwrap_or_else(|f| panic!("{f}"));
                let expected = record::model(&mut model, op);
                assert_eq!(reply, expected, "{}: {op:?}, step {i}", subject.name());
                if i % 10 == 0 {
                    check(subject, live.as_ref(), &model, "live");
                }
                if i % 50 == 49 {
                    live.close().unwrap_or_else(|f| panic!("{f}"));
                    live = open(subject);
                    check(subject, live.as_ref(), &model, "after a clean close");
                } else if i % 25 == 24 {
                    simulation.set_frozen(true);
                    drop(live);
                    simulation.set_frozen(false);
                    live = open(subject);
                    check(subject, live.as_ref(), &model, "after a crash");
                }
            }
        }
    }
}

#[test]
fn names_find_their_subjects() {
    let names = names();
    for name in &names {
        assert_eq!(named(name).map(|s| s.name()).as_ref(), Some(name));
        assert_eq!(matching(name).len(), 1, "{name}");
    }
    let mut sorted = names.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), names.len(), "no name twice");
    assert_eq!(matching("lbtree").len(), 5);
    assert_eq!(matching("lbtree-256").len(), 3);
    assert_eq!(matching("lbtree-1024").len(), 2);
    assert_eq!(matching("reference").len(), 2, "none that is wrong");
    assert!(named("lbtree").is_none());
    for design in DESIGNS {
        assert!(matching(design.name).len() >= 2, "{}", design.name);
        for bytes in design.node_bytes {
            let name = format!("{}-{bytes}-bytes", design.name);
            assert_eq!(named(&name).map(|s| s.name()), Some(name));
        }
    }
    assert!(matching("lb").is_empty());
}

/// What the explored operations of a workload make an NV-Tree do, and how it is opened: cleanly, and after
/// a crash at the end.
fn reached(kind: Kind, seed: u64) -> ([u64; 7], u64, u64) {
    type Tree = NvTree<u64, u64, Sim>;
    let subject = named("nvtree-256-u64").expect("a subject");
    let workload = Workload::generate(kind, 60, seed, subject.as_ref());
    let simulation = Simulation::new(subject.capacity());
    let _attached = simulation.attach();
    let options = NvOptions {
        leaf_bytes: 256,
        ..NvOptions::default()
    };
    let pool = super::make_pool().expect("a pool");
    let mut tree = Tree::create(&pool, "index", &options).expect("a tree");
    let counts = |s: NvStats| {
        let s = [
            s.splits, s.replaces, s.merges, s.unlinks, s.rebuilds, s.enlarged, s.hot_plns,
        ];
        s.map(i128::from)
    };
    let (mut all, mut clean) = ([0i128; 7], 0);
    let explored = workload.setup.len();
    for (i, op) in workload.setup.iter().chain(&workload.ops).enumerate() {
        if i == explored {
            all = counts(tree.nv_stats()).map(|n| -n);
        }
        match *op {
            Op::Insert(key, value) => drop(tree.insert(&key, &value)),
            Op::Upsert(key, value) => drop(tree.upsert(&key, &value)),
            Op::Update(key, value) => drop(tree.update(&key, &value)),
            Op::Remove(key) => drop(tree.remove(&key)),
            Op::Get(key) => drop(tree.get(&key)),
            Op::Batch {
                first,
                step,
                count,
                value,
            } => {
                for key in batch_keys(first, step, count) {
                    drop(tree.insert(&key, &value));
                }
            }
            Op::Compact => drop(pool.compact()),
            Op::Reopen => {
                if i >= explored {
                    for (sum, n) in all.iter_mut().zip(counts(tree.nv_stats())) {
                        *sum += n;
                    }
                }
                tree.close().expect("closing");
                tree = Tree::open(&pool, "index", &options).expect("opening");
                assert!(tree.recovery().clean);
                clean += u64::from(i >= explored);
            }
        }
    }
    for (sum, n) in all.iter_mut().zip(counts(tree.nv_stats())) {
        *sum += n;
    }
    simulation.set_frozen(true);
    drop(tree);
    simulation.set_frozen(false);
    let tree = Tree::open(&pool, "index", &options).expect("recovery");
    tree.verify().expect("whole");
    let scanned = tree.recovery().leaves_scanned;
    let all = all.map(|n| u64::try_from(n).expect("more than before"));
    (all, clean, scanned)
}

/// Every way in which an NV-Tree changes its structure, inside the operations whose crashes are explored.
#[test]
fn workloads_reach_all_that_an_nvtree_does() {
    let (mut all, mut clean, mut scanned) = ([0; 7], 0, 0);
    for kind in Kind::ALL {
        for seed in 0..10 {
            let (done, reopened, leaves) = reached(kind, seed);
            all.iter_mut().zip(done).for_each(|(sum, n)| *sum += n);
            clean += reopened;
            scanned += leaves;
        }
    }
    println!("{all:?}, {clean} clean openings, {scanned} leaves scanned");
    let names = [
        "split", "replace", "merge", "unlink", "rebuild", "enlarge", "hot PLN",
    ];
    for (name, n) in names.iter().zip(all) {
        assert!(n >= 3, "{name}: {n}");
    }
    assert!(clean >= 5 && scanned >= 90 * 2, "{clean}, {scanned}");
}
