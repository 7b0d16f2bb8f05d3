//! Crab-tree: the explored workloads reach every change of a leaf, and the design needs a
//! failure-atomic unit of 16 bytes.

use crate::common::Narrow;
use bristlecone_crash::explore::{Options, explore};
use bristlecone_crash::record::{Mutation, record};
use bristlecone_crash::subject::{Op, Subject};
use bristlecone_crash::subjects::{batch_keys, named};
use bristlecone_crash::workload::{Kind, Workload};
use bristlecone_designs::crabtree::{CrabStats, CrabTree, Strategy};
use bristlecone_designs::{CrabOptions, DurableIndex, OrderedIndex};
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::media::sim::{Model, Simulation};
use bristlecone_pmem::{Pool, PoolOptions};
use std::path::Path;

fn counts(s: CrabStats) -> [u64; 8] {
    [
        s.inserts_in_place,
        s.inserts_by_copy,
        s.removes_in_place,
        s.removes_by_copy,
        s.splits_in_place,
        s.splits_by_copy,
        s.merges,
        s.redistributions,
    ]
}

/// Returns the changes of leaves of a Crab-tree in the explored operations of a workload.
fn reached(options: &CrabOptions, subject: &dyn Subject, kind: Kind, seed: u64) -> [u64; 8] {
    type Tree = CrabTree<u64, u64, Sim>;
    let workload = Workload::generate(kind, 60, seed, subject);
    let simulation = Simulation::new(subject.capacity());
    let _attached = simulation.attach();
    let pool = Pool::<Sim>::create(Path::new("sim"), &PoolOptions::default()).expect("a pool");
    let mut tree = Tree::create(&pool, "index", options).expect("a tree");
    let mut all = [0; 8];
    let mut before = [0; 8];
    let explored = workload.setup.len();
    for (i, op) in workload.setup.iter().chain(&workload.ops).enumerate() {
        if i == explored {
            before = counts(tree.design.crab_stats());
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
                    let done = counts(tree.design.crab_stats());
                    (0..8).for_each(|i| all[i] += done[i] - before[i]);
                }
                tree.close().expect("closing");
                tree = Tree::open(&pool, "index", options).expect("opening");
                before = [0; 8];
            }
        }
    }
    let done = counts(tree.design.crab_stats());
    (0..8).for_each(|i| all[i] += done[i] - before[i]);
    tree.verify().expect("whole");
    all
}

/// The explored operations reach every way in which a Crab-tree changes one leaf or two.
#[test]
fn workloads_reach_all_that_a_crabtree_does() {
    let plain = CrabOptions {
        leaf_bytes: 256,
        ..CrabOptions::PLAIN
    };
    let copying = CrabOptions {
        strategy: Strategy::CopyOnWrite,
        ..plain
    };
    let optimized = CrabOptions {
        leaf_bytes: 256,
        ..CrabOptions::OPTIMIZED
    };
    // The changes that a strategy does not make.
    let never: &[&str] = &[];
    let in_place: &[&str] = &["insert in place", "split in place"];
    let subjects = [
        ("crabtree-256-u64", plain, never),
        // Except a removal of the last pair, and a change that finds no space.
        ("crabtree-256-u64-copying", copying, in_place),
        ("crabtree-opt-256-u64", optimized, never),
    ];
    let names = [
        "insert in place",
        "insert by copy",
        "remove in place",
        "remove by copy",
        "split in place",
        "split by copy",
        "merge",
        "redistribute",
    ];
    for (name, options, spared) in subjects {
        let subject = named(name).unwrap_or_else(|| panic!("{name}"));
        let mut all = [0; 8];
        for kind in Kind::ALL {
            for seed in 0..10 {
                let done = reached(&options, subject.as_ref(), kind, seed);
                (0..8).for_each(|i| all[i] += done[i]);
            }
        }
        println!("{name}: {all:?}");
        for (what, n) in names.iter().zip(all) {
            assert!(n >= 3 || spared.contains(what), "{name}: {what}: {n}");
        }
    }
}

/// Returns true if a violation shows in one of the workloads.
fn breaks(subject: &dyn Subject, model: Model) -> bool {
    (0..6).any(|seed| {
        let workload = Workload::generate(Kind::Split, 30, seed, subject);
        let recording = record(subject, &workload, &Mutation::default()).expect("a recording");
        let options = Options {
            bound: 100,
            samples: 8,
            stop_at_first: true,
            ..Options::new(model)
        };
        !explore(subject, &recording, &options, &|_| ())
            .found
            .is_empty()
    })
}

#[test]
fn shifting_by_16_bytes_takes_a_medium_that_writes_16_bytes_as_one() {
    let subject = || named("crabtree-opt-256-u64").expect("a subject");
    if subject().unit() == 8 {
        return; // this processor has no such store
    }
    for model in [Model::X86Tso, Model::ArmV8] {
        assert!(!breaks(subject().as_ref(), model), "{model:?}");
        assert!(breaks(&Narrow(subject()), model), "{model:?}");
    }
}
