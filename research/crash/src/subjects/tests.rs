//! Every subject against a model map, with clean closes and crashes without loss, and without the
//! explorer.

use super::{batch_keys, matching, named, names};
use crate::record;
use crate::subject::{Live, Op, Opened, Subject};
use crate::workload::{Kind, Workload};
use bristlecone_designs::DurableIndex;
use bristlecone_designs::designs::DESIGNS;
use bristlecone_designs::lstree::{LsOptions, LsStats, LsTree};
use bristlecone_designs::nvtree::{NvOptions, NvStats, NvTree};
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::media::sim::Simulation;
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

/// Returns operations that collide, on few keys of the subject's range.
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
            // Phases with mostly removals empty leaves.
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

/// Counts of a tree's structural changes under a workload.
struct Reached<const N: usize> {
    /// In the explored operations.
    counts: [u64; N],
    /// Clean openings among them.
    reopened: u64,
    /// Leaves found by the recovery from a crash at the end.
    scanned: u64,
}

impl<const N: usize> Reached<N> {
    fn nothing() -> Self {
        Self {
            counts: [0; N],
            reopened: 0,
            scanned: 0,
        }
    }

    fn count(&mut self, now: [u64; N], before: [u64; N]) {
        for (sum, (now, before)) in self.counts.iter_mut().zip(now.into_iter().zip(before)) {
            *sum += now.checked_sub(before).expect("more than before");
        }
    }

    fn add(&mut self, more: &Self) {
        for (sum, n) in self.counts.iter_mut().zip(more.counts) {
            *sum += n;
        }
        self.reopened += more.reopened;
        self.scanned += more.scanned;
    }
}

/// Returns the structural changes of a tree in the explored operations of a workload, by its own
/// `counts` since it was opened, and its openings: cleanly, and after a crash at the end.
fn reached<T: DurableIndex<u64, u64, Sim>, const N: usize>(
    subject: &str,
    options: &T::Options,
    counts: impl Fn(&T) -> [u64; N],
    kind: Kind,
    seed: u64,
) -> Reached<N> {
    let subject = named(subject).expect("a subject");
    let workload = Workload::generate(kind, 60, seed, subject.as_ref());
    let simulation = Simulation::new(subject.capacity());
    let _attached = simulation.attach();
    let pool = super::make_pool().expect("a pool");
    let mut tree = T::create(&pool, "index", options).expect("a tree");
    let mut done = Reached::nothing();
    let mut before = counts(&tree);
    let explored = workload.setup.len();
    for (i, op) in workload.setup.iter().chain(&workload.ops).enumerate() {
        if i == explored {
            before = counts(&tree);
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
                    done.count(counts(&tree), before);
                    done.reopened += 1;
                }
                tree.close().expect("closing");
                tree = T::open(&pool, "index", options).expect("opening");
                assert_eq!(tree.recovery().clean, T::SNAPSHOT);
                before = [0; N];
            }
        }
    }
    done.count(counts(&tree), before);
    simulation.set_frozen(true);
    drop(tree);
    simulation.set_frozen(false);
    let tree = T::open(&pool, "index", options).expect("recovery");
    tree.verify().expect("whole");
    done.scanned = tree.recovery().leaves_scanned;
    done
}

/// The explored operations reach every structural change of an NV-Tree.
#[test]
fn workloads_reach_all_that_an_nvtree_does() {
    let options = NvOptions {
        leaf_bytes: 256,
        ..NvOptions::default()
    };
    let counts = |tree: &NvTree<u64, u64, Sim>| {
        let s: NvStats = tree.nv_stats();
        [
            s.splits, s.replaces, s.merges, s.unlinks, s.rebuilds, s.enlarged, s.hot_plns,
        ]
    };
    let mut all = Reached::nothing();
    for kind in Kind::ALL {
        for seed in 0..10 {
            all.add(&reached("nvtree-256-u64", &options, counts, kind, seed));
        }
    }
    let Reached {
        counts,
        reopened,
        scanned,
    } = all;
    println!("{counts:?}, {reopened} clean openings, {scanned} leaves scanned");
    let names = [
        "split", "replace", "merge", "unlink", "rebuild", "enlarge", "hot PLN",
    ];
    for (name, n) in names.iter().zip(counts) {
        assert!(n >= 3, "{name}: {n}");
    }
    assert!(reopened >= 5 && scanned >= 90 * 2, "{reopened}, {scanned}");
}

/// The explored operations reach every change of leaves and logs of a log-structured B+-tree.
#[test]
fn workloads_reach_all_that_an_lstree_does() {
    let options = LsOptions {
        leaf_bytes: 256,
        ..LsOptions::default()
    };
    let counts = |tree: &LsTree<u64, u64, Sim>| {
        let s: LsStats = tree.ls_stats();
        [
            s.deltas,
            s.rewrites,
            s.splits,
            s.unlinks,
            s.collected,
            s.consolidated,
            s.moved,
            s.forgotten,
        ]
    };
    let mut all = Reached::nothing();
    for kind in Kind::ALL {
        for seed in 0..10 {
            all.add(&reached("lstree-256-u64", &options, counts, kind, seed));
        }
    }
    let Reached {
        counts,
        reopened,
        scanned,
    } = all;
    println!("{counts:?}, {reopened} openings, {scanned} leaves scanned");
    let names = [
        "delta",
        "rewriting",
        "split",
        "unlinking",
        "collection",
        "consolidation",
        "moving",
        "forgetting",
    ];
    for (name, n) in names.iter().zip(counts) {
        assert!(n >= 20, "{name}: {n}");
    }
    assert!(reopened >= 5 && scanned >= 90 * 2, "{reopened}, {scanned}");
}
