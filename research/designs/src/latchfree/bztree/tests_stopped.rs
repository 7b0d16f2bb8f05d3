//! A thread stops at any step of any operation. Others complete theirs in a bounded number of steps
//! each. Then the stopped thread continues.
//!
//! On the simulated medium a *step* is an access to persistent memory, a flush or a fence. One
//! thread plays all: where it is to be stopped, the work of the others is done before its next
//! step.

use super::reshape::Want;
use super::tests::SMALL;
use super::*;
use crate::index::ReverseScan;
use bristlecone_pmem::PoolOptions;
use bristlecone_pmem::media::Sim;
use bristlecone_pmem::media::sim::{Attached, Simulation};
use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::path::Path;
use std::rc::Rc;

/// Maximum number of steps of an operation, whatever state others left: it may have to finish what
/// they began, and to reshape leaf and parent itself.
const BOUND: u64 = 6_000;
/// The key of all operations; its neighbours are a few below and above.
const KEY: u64 = 500;

type Tree = BzTree<u64, u64, Sim>;

thread_local! {
    static LEFT: Cell<u64> = const { Cell::new(0) };
    static OTHER: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

fn step() {
    let left = LEFT.get();
    if left > 0 {
        LEFT.set(left - 1);
        if left == 1 {
            let other = OTHER.take().expect("a stop has what is done meanwhile");
            other();
        }
    }
}

/// An operation of the stopped thread on [`KEY`], and the keys around it.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    /// Keys far above, which are inserted first; keys below and above; number of these that are
    /// removed again.
    around: [u64; 3],
    /// True if the key is present.
    there: bool,
    /// Leaves and inner nodes that the operation adds, if nothing stops it.
    adds: (i64, i64),
    /// The operation. Returns true if it had an effect on the key.
    act: fn(&Tree) -> bool,
}

/// Returns a tree with which the case begins.
fn tree_of(sim: &Simulation, case: &Case, name: &str) -> (Attached, Tree) {
    let attached = sim.attach();
    let pool = Pool::create(Path::new(name), &PoolOptions::default()).unwrap();
    let tree: Tree = BzTree::create(&pool, "t", &SMALL).unwrap();
    let [far, around, gone] = case.around;
    for key in 0..far {
        tree.insert(&(1_000 + key), &key).unwrap();
    }
    let near = |i: u64| {
        if i.is_multiple_of(2) {
            KEY - 2 - i
        } else {
            KEY + 2 + i
        }
    };
    for i in 0..around {
        tree.insert(&near(i), &i).unwrap();
    }
    if case.there {
        tree.insert(&KEY, &1).unwrap();
    }
    for i in 0..gone {
        assert!(tree.remove(&near(i)).unwrap());
    }
    (attached, tree)
}

/// Executes the operations of the others, each with a bound. At the end the key is present with the
/// value 9.
fn others(sim: &Simulation, tree: &Tree, at: &str) {
    let bounded = |what: &str, f: &dyn Fn()| {
        let before = sim.steps();
        f();
        let took = sim.steps() - before;
        assert!(took <= BOUND, "{at}: {what} took {took} steps");
    };
    bounded("upsert", &|| {
        tree.upsert(&KEY, &5).unwrap();
    });
    bounded("get", &|| assert_eq!(tree.get(&KEY), Some(5), "{at}"));
    bounded("update", &|| tree.update(&KEY, &6).unwrap());
    bounded("remove", &|| assert!(tree.remove(&KEY).unwrap(), "{at}"));
    bounded("get", &|| assert_eq!(tree.get(&KEY), None, "{at}"));
    bounded("insert", &|| tree.insert(&KEY, &7).unwrap());
    bounded("neighbours", &|| {
        tree.insert(&(KEY + 1), &1).unwrap();
        assert!(tree.remove(&(KEY + 1)).unwrap());
    });
    // A number too large for a word, there and back: another record each time.
    bounded("update", &|| tree.update(&KEY, &u64::MAX).unwrap());
    bounded("update", &|| tree.update(&KEY, &9).unwrap());
    bounded("scan", &|| {
        let mut seen = Vec::new();
        tree.scan(KEY - 1..=KEY + 1, |key, value| {
            seen.push((*key, *value));
            ControlFlow::Continue(())
        });
        assert_eq!(seen, [(KEY, 9)], "{at}");
    });
}

fn stopped_everywhere(case: &Case) {
    let mut steps = 0;
    for at in 1.. {
        let sim = Simulation::new(1 << 24);
        // As many descriptors as elsewhere, since a stopped thread keeps used ones from coming
        // back.
        sim.set_tiny(false);
        let (_attached, tree) = tree_of(&sim, case, case.name);
        let tree = Rc::new(tree);
        let before = tree.verify().unwrap().entries;
        let nodes = || {
            let stats = tree.stats();
            (stats.leaves as i64, stats.inner_nodes as i64)
        };
        let nodes_before = nodes();
        let reached = Rc::new(Cell::new(false));
        let (note, of, on) = (Rc::clone(&reached), sim.clone(), Rc::clone(&tree));
        let name = format!("{}, stopped at step {at}", case.name);
        let where_ = name.clone();
        OTHER.set(Some(Box::new(move || {
            note.set(true);
            others(&of, &on, &where_);
        })));
        sim.set_switch(Some(step));
        LEFT.set(at);
        let from = sim.steps();
        let did = (case.act)(&tree);
        sim.set_switch(None);
        if !reached.get() {
            LEFT.set(0);
            OTHER.set(None);
            steps = sim.steps() - from;
            let after = nodes();
            let added = (after.0 - nodes_before.0, after.1 - nodes_before.1);
            assert_eq!(added, case.adds, "{}", case.name);
            break;
        }
        let entries = tree.verify().unwrap().entries;
        let there = tree.get(&KEY);
        // It took place before the others or after them; an insertion after them found the key.
        let removes = case.name.contains("removal");
        assert!(
            there == Some(9) || did && (removes && there.is_none() || there == Some(3)),
            "{name}: {there:?}, {did}"
        );
        assert!(
            !case.name.contains("insertion") || there == Some(9),
            "{name}"
        );
        let others_left = before - u64::from(case.there);
        assert_eq!(entries, others_left + u64::from(there.is_some()), "{name}");
    }
    assert!(steps > 5, "{}: {steps} steps", case.name);
}

/// Every operation, alone in its leaf and where it causes a split, merge or consolidation of the
/// leaf or the root.
#[test]
fn others_go_on_whatever_step_a_thread_is_stopped_at() {
    fn insert(tree: &Tree) -> bool {
        tree.insert(&KEY, &3).is_ok()
    }
    fn upsert(tree: &Tree) -> bool {
        tree.upsert(&KEY, &3).is_ok()
    }
    fn update(tree: &Tree) -> bool {
        tree.update(&KEY, &3).is_ok()
    }
    fn update_record(tree: &Tree) -> bool {
        // Neither may be visible if the key's last value is to be 9 or 3.
        let there = tree.update(&KEY, &u64::MAX).is_ok();
        there && tree.update(&KEY, &3).is_ok()
    }
    fn remove(tree: &Tree) -> bool {
        tree.remove(&KEY).unwrap()
    }
    fn consolidate(tree: &Tree) -> bool {
        tree.reshape(&KEY, Want::Room(14)).unwrap();
        false
    }
    fn read(tree: &Tree) -> bool {
        tree.get(&KEY);
        tree.scan_reverse(.., |_, _| ControlFlow::Continue(()));
        false
    }
    let case = |name, around, there, adds, act| Case {
        name,
        around,
        there,
        adds,
        act,
    };
    let cases = [
        case(
            "insertion",
            [0, 2, 0],
            false,
            (0, 0),
            insert as fn(&Tree) -> bool,
        ),
        case(
            "insertion that splits the root node",
            [0, 9, 0],
            false,
            (1, 1),
            insert,
        ),
        case(
            "insertion that splits a leaf",
            [0, 17, 0],
            false,
            (1, 0),
            insert,
        ),
        case(
            "insertion that splits inner nodes",
            [40, 15, 0],
            false,
            (1, 2),
            insert,
        ),
        case("upsert of a new key", [0, 3, 0], false, (0, 0), upsert),
        case("upsert", [0, 3, 0], true, (0, 0), upsert),
        case("update", [0, 3, 0], true, (0, 0), update),
        case(
            "update by other records",
            [0, 3, 0],
            true,
            (0, 0),
            update_record,
        ),
        case("removal", [0, 3, 0], true, (0, 0), remove),
        case("removal that merges", [0, 17, 4], true, (-1, 0), remove),
        case("consolidation", [0, 6, 4], true, (0, 0), consolidate),
        case("reading", [0, 20, 0], true, (0, 0), read),
    ];
    for case in &cases {
        stopped_everywhere(case);
    }
}
