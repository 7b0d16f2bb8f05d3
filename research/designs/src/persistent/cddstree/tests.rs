//! Tests of this design alone; the scenarios that all designs share are in `tests/`.

use super::node::{Entry, LIVE, MAX_SLOTS, Slot, VERSION_BITS, end_of, end_word, start_word};
use super::*;
use bristlecone_pmem::media::sim::{Event, EventKind, Simulation};
use bristlecone_pmem::media::{Counting, Dram, Sim};
use bristlecone_pmem::{PWord, PoolOptions};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

fn pool<M: Media>() -> Arc<Pool<M>> {
    Pool::create(Path::new("memory"), &PoolOptions::default()).unwrap()
}

fn options(node_bytes: u32) -> CddsOptions {
    CddsOptions {
        node_bytes,
        recovery_threads: 1,
    }
}

/// Returns slots outside any pool that hold `entries`, followed by unused ones up to `n`.
fn slots(entries: &[Entry], n: usize) -> Vec<Slot> {
    (0..n)
        .map(|i| entries.get(i).copied().unwrap_or_default())
        .map(|entry| Slot {
            key: PWord::new(entry.key),
            value: PWord::new(entry.value),
            start: PWord::new(start_word(entry.key, entry.value, entry.start)),
            end: PWord::new(end_word(entry.end)),
        })
        .collect()
}

const HOLE: Entry = Entry {
    key: 77,
    value: 77,
    start: 0,
    end: LIVE,
};

fn live(key: u64) -> Entry {
    Entry::live(key, key * 10, 1)
}

fn dead(key: u64) -> Entry {
    Entry {
        end: 2,
        ..live(key)
    }
}

fn entries(node: Node<'_>, pm: &impl Media) -> Vec<Entry> {
    (0..node.slots.len()).map(|i| node.entry(pm, i)).collect()
}

#[test]
fn searches_pass_over_dead_entries_and_holes() {
    let pool = pool::<Dram>();
    let pm = pool.pm();
    let patterns: &[&[Entry]] = &[
        &[],
        &[live(10)],
        &[live(10), live(20), live(30), live(40), live(50)],
        &[
            dead(5),
            live(10),
            dead(10),
            HOLE,
            live(20),
            dead(30),
            live(30),
        ],
        &[HOLE, HOLE, live(10), HOLE, HOLE, HOLE, live(20), HOLE],
        &[dead(10), dead(20), dead(30), dead(40)],
        &[HOLE, HOLE, HOLE],
    ];
    for pattern in patterns {
        let slots = slots(pattern, 8);
        let node = Node { slots: &slots };
        assert_eq!(node.used(pm), pattern.len());
        let mut lives = node.live(pm);
        for (i, entry) in pattern.iter().enumerate().filter(|(_, e)| e.is_live()) {
            assert_eq!(lives.next(), Some((i, *entry)));
        }
        assert_eq!(lives.next(), None);
        for key in 0..=60u64 {
            let expected = pattern.iter().position(|e| e.is_live() && e.key == key);
            assert_eq!(
                node.find(pm, &key, || true),
                Some(expected),
                "{key} in {pattern:?}"
            );
            for or_equal in [false, true] {
                let bound = node.bound(pm, &key, or_equal, || true).unwrap();
                assert!(bound <= pattern.len());
                for (i, entry) in pattern.iter().enumerate().filter(|(_, e)| e.start != 0) {
                    let before = entry.key < key || or_equal && entry.key == key;
                    assert_eq!(i < bound, before, "{key} in {pattern:?}: {bound}");
                }
            }
        }
    }
}

/// In nodes of up to six slots in every state, room is made on the nearer side, nothing is lost,
/// and each moved entry costs one line and one fence.
#[test]
fn room_is_made_by_the_fewest_moves() {
    let pool = pool::<Counting<Dram>>();
    let pm = pool.pm();
    const N: usize = 6;
    for states in 0..4usize.pow(N as u32) {
        let state = |i: usize| states / 4usize.pow(i as u32) % 4;
        let used = (0..N).rev().find(|&i| state(i) != 0).map_or(0, |i| i + 1);
        if (0..used).any(|i| state(i) == 0) {
            continue;
        }
        let before: Vec<Entry> = (0..N)
            .map(|i| match state(i) {
                0 => Entry::default(),
                1 => live(10 * i as u64 + 10),
                2 => dead(10 * i as u64 + 10),
                _ => HOLE,
            })
            .collect();
        for place in 0..=used {
            let slots = slots(&before, N);
            let node = Node { slots: &slots };
            let free = |i: usize| !before[i].is_live();
            let right = (place..N).find(|&i| free(i)).map(|i| i - place);
            let left = (0..place).rev().find(|&i| free(i)).map(|i| place - 1 - i);
            let Some(room) = node.room(pm, place, 3) else {
                assert_eq!((right, left), (None, None));
                assert!(!node.has_room(pm, 3, 1));
                continue;
            };
            let moves = right.into_iter().chain(left).min().unwrap() as u64;
            let counts = pm.counts();
            let at = node.make_room(pm, room);
            let paid = pm.counts() - counts;
            assert_eq!(
                (paid.lines, paid.fences),
                (moves, moves),
                "{before:?}, {place}"
            );
            for i in (0..N).filter(|&i| before[i].is_live()) {
                assert_eq!(
                    node.entry(pm, room.moved(i)),
                    before[i],
                    "{before:?}, {place}"
                );
            }
            let new = Entry::live(10 * place as u64 + 5, 1, 3);
            node.put(pm, at, new);
            let lives: Vec<Entry> = node.live(pm).map(|(_, entry)| entry).collect();
            let mut expected: Vec<Entry> = before.iter().copied().filter(Entry::is_live).collect();
            expected.insert(expected.partition_point(|e| e.key < new.key), new);
            assert_eq!(lives, expected, "{before:?}, {place}");
        }
    }
}

/// After any number of the stores of a shift, a slot has its old content, is a hole, or has its new
/// content, and never a mixture.
#[test]
fn an_entry_is_overwritten_hole_first() {
    let simulation = Simulation::new(4 << 20);
    let _attached = simulation.attach();
    let pool = pool::<Sim>();
    let pm = pool.pm();
    let root = pool
        .create_root("r", &root_kind::<u64, u64>(&options(256)))
        .unwrap();
    let block = root.heap().alloc(256).unwrap();
    // SAFETY: 1. the block has 256 bytes and is aligned to 256; 2. slots are all words.
    let slots: &[Slot] = unsafe {
        std::slice::from_raw_parts(pm.base().wrapping_add(block.get() as usize).cast(), 8)
    };
    let node = Node { slots };
    node.fill(pm, &[live(1), live(2), live(3), dead(4)]);
    let before = entries(node, pm);
    let room = node.room(pm, 1, 5).unwrap();
    simulation.start_trace();
    node.make_room(pm, room);
    let trace = simulation.take_trace();
    let mut words: BTreeMap<u64, u64> = BTreeMap::new();
    for (i, entry) in before.iter().enumerate() {
        let start = start_word(entry.key, entry.value, entry.start);
        let words_of = [entry.key, entry.value, start, end_word(entry.end)];
        for (w, word) in words_of.into_iter().enumerate() {
            words.insert(block.get() + i as u64 * 32 + w as u64 * 8, word);
        }
    }
    let mut stores = 0;
    for event in trace {
        let EventKind::Store { at, new, .. } = event.kind else {
            continue;
        };
        words.insert(at, new);
        stores += 1;
        for i in 0..8u64 {
            let word = |w: u64| words[&(block.get() + i * 32 + w * 8)];
            let entry = Entry {
                key: word(0),
                value: word(1),
                start: word(2) & ((1 << VERSION_BITS) - 1),
                end: end_of(word(3)),
            };
            assert!(
                entry.start == 0 || before.contains(&entry),
                "slot {i} after {stores} stores: {entry:?}"
            );
        }
        for entry in &before[..3] {
            let there = (0..8u64).any(|i| {
                words[&(block.get() + i * 32)] == entry.key
                    && words[&(block.get() + i * 32 + 16)]
                        == start_word(entry.key, entry.value, entry.start)
            });
            assert!(there, "{entry:?} is nowhere after {stores} stores");
        }
    }
    assert_eq!(stores, 2 * 5, "two entries moved");
}

/// A call on a tree.
#[derive(Clone, Copy, Debug)]
enum Call {
    Put(u64, u64),
    Remove(u64),
}

/// A run of calls whose stores were traced.
struct Run {
    calls: Vec<Call>,
    /// The content before each call, and at last the content after all.
    states: Vec<BTreeMap<u64, u64>>,
    /// The words of the pool before the first call.
    base: Vec<u64>,
    events: Vec<Event>,
    /// The number of events up to the end of each call.
    ends: Vec<usize>,
}

/// Returns calls that fill several leaves in no order, so that entries move both ways, update some
/// entries, and then remove all.
fn calls_of_all_kinds() -> Vec<Call> {
    let mut calls = Vec::new();
    for i in 0..40u64 {
        calls.push(Call::Put(100 + i * 13 % 41, i));
        if i % 3 == 0 {
            calls.push(Call::Put(100, i));
        }
        if i % 5 == 4 {
            calls.push(Call::Remove(100 + i));
        }
    }
    calls.extend((0..200).map(Call::Remove));
    calls
}

/// Makes the calls on a new tree. Nothing that comes after the last of them reaches the pool.
fn traced_run(simulation: &Simulation, calls: Vec<Call>) -> Run {
    let pool = pool::<Sim>();
    let tree = CddsTree::<u64, u64, Sim>::create(&pool, "t", &options(256)).unwrap();
    let base: Vec<u64> = (0..(simulation.len() / 8) as u32)
        .map(|word| simulation.word(word))
        .collect();
    let mut states = vec![BTreeMap::new()];
    let mut ends = Vec::new();
    let mut events = Vec::new();
    simulation.start_trace();
    for call in &calls {
        let mut state = states[states.len() - 1].clone();
        match *call {
            Call::Put(key, value) => {
                tree.put(&key, &value, IfPresent::Replace).unwrap();
                state.insert(key, value);
            }
            Call::Remove(key) => {
                assert_eq!(tree.take_out(&key), state.remove(&key).is_some());
            }
        }
        events.extend(simulation.take_trace());
        simulation.start_trace();
        ends.push(events.len());
        states.push(state);
    }
    tree.verify().unwrap();
    simulation.take_trace();
    simulation.set_frozen(true);
    Run {
        calls,
        states,
        base,
        events,
        ends,
    }
}

/// Recovers the tree from a prefix of the stores that ends in `call`: store number `n` is its last
/// one. Returns the tree's depth.
fn check_prefix(simulation: &Simulation, run: &Run, call: usize, n: usize) -> u32 {
    let place = format!("store {n}, in {:?}", run.calls[call]);
    let pool = Pool::<Sim>::open(Path::new("memory"), &PoolOptions::default()).unwrap();
    let tree = CddsTree::<u64, u64, Sim>::open(&pool, "t", &options(256))
        .unwrap_or_else(|e| panic!("{place}: {e}"));
    tree.verify().unwrap_or_else(|e| panic!("{place}: {e}"));
    let mut found = BTreeMap::new();
    tree.scan(.., |key, value| {
        assert_eq!(found.insert(*key, *value), None);
        ControlFlow::Continue(())
    });
    assert!(
        found == run.states[call] || found == run.states[call + 1],
        "{place}: {found:?}"
    );
    let depth = tree.stats().depth;
    // The next version has the number of the one that was undone.
    tree.insert(&1_000, &1).unwrap();
    found.insert(1_000, 1);
    for (key, value) in &found {
        assert_eq!(tree.get(key), Some(*value));
    }
    assert_eq!(tree.verify().unwrap().entries, found.len() as u64);
    simulation.set_frozen(true);
    depth
}

/// Recovery from every prefix of the stores of a run finds each call's effect wholly or not at all.
/// The test takes every store to be durable; the crash explorer tries which stores may be lost
/// beyond that.
#[test]
fn recovery_at_every_prefix_of_the_stores() {
    let simulation = Simulation::new(4 << 20);
    let _attached = simulation.attach();
    let run = traced_run(&simulation, calls_of_all_kinds());
    simulation.set_frozen(false);
    assert!(
        simulation.len() as usize == run.base.len() * 8,
        "the pool did not grow"
    );
    for (word, value) in run.base.iter().enumerate() {
        simulation.set_word(word as u32, *value);
    }
    simulation.note_changes(true);
    let (mut call, mut prefixes, mut depth) = (0, 0, 0);
    for (n, event) in run.events.iter().enumerate() {
        while run.ends[call] <= n {
            call += 1;
        }
        let EventKind::Store { at, old, new } = event.kind else {
            continue;
        };
        if old == new {
            continue;
        }
        simulation.set_word((at / 8) as u32, new);
        prefixes += 1;
        let mark = simulation.mark();
        depth = depth.max(check_prefix(&simulation, &run, call, n));
        simulation.set_frozen(false);
        simulation.roll_back(mark);
    }
    assert!(prefixes > 1_000, "{prefixes} prefixes");
    assert!(depth >= 2, "splits are among them");
}

#[test]
fn a_tree_grows_and_shrinks_in_every_node_size() {
    for bytes in NODE_BYTES {
        let pool = pool::<Dram>();
        let tree = CddsTree::<u64, u64, Dram>::create(&pool, "t", &options(bytes)).unwrap();
        assert!(tree.slots() <= MAX_SLOTS);
        let key = |i: u64| i.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for i in 0..8_000 {
            tree.insert(&key(i), &i).unwrap();
        }
        let full = tree.stats();
        assert_eq!(full.entries, 8_000);
        assert!(full.leaf_fill > 0.6 && full.depth >= 2, "{full:?}");
        tree.verify().unwrap();
        for i in 0..8_000 {
            assert_eq!(tree.get(&key(i)), Some(i));
            assert!(tree.remove(&key(i)).unwrap());
        }
        let empty = tree.stats();
        assert_eq!((empty.leaves, empty.inner_nodes, empty.depth), (1, 0, 1));
        tree.verify().unwrap();
    }
}

#[test]
fn node_sizes_that_there_are_not_are_refused_by_name() {
    let pool = pool::<Dram>();
    for bytes in [0, 32, 255, 768, 8192, u32::MAX] {
        let error = CddsTree::<u64, u64, Dram>::create(&pool, "t", &options(bytes)).unwrap_err();
        assert!(
            error.to_string().contains(&format!("not {bytes}")),
            "{error}"
        );
    }
    assert!(pool.roots().is_empty());
}

/// A root that was undone leaves its start version. A later root in the same place, of which a
/// crash keeps only the node, must not take that for its own.
#[test]
fn the_start_of_a_root_that_was_undone_does_not_come_back() {
    let simulation = Simulation::new(4 << 20);
    let _attached = simulation.attach();
    let pool = pool::<Sim>();
    let mut tree = CddsTree::<u64, u64, Sim>::create(&pool, "t", &options(256)).unwrap();
    for key in 0..60 {
        tree.put(&key, &key, IfPresent::Refuse).unwrap();
    }
    let crash = |tree: CddsTree<u64, u64, Sim>| {
        simulation.set_frozen(true);
        drop(tree);
        simulation.set_frozen(false);
        CddsTree::<u64, u64, Sim>::open(&pool, "t", &options(256)).unwrap()
    };
    let writer = *tree.writer_mut();
    let (node, start) = ROOTS[writer.root_slot ^ 1];
    let write = |tree: &CddsTree<u64, u64, Sim>, word: usize, value: u64| {
        tree.root()
            .word(word)
            .store(tree.pm(), link::word(value), Ordering::Relaxed);
    };
    write(&tree, node, tree.top().word());
    write(&tree, start, writer.version + 1);
    let tree = crash(tree);
    for value in 100..103 {
        tree.put(&0, &value, IfPresent::Replace).unwrap();
    }
    let unfinished = RootNode {
        level: tree.top().level + 1,
        ..tree.top()
    };
    write(&tree, node, unfinished.word());
    let tree = crash(tree);
    assert_eq!(tree.verify().unwrap().entries, 60);
    assert_eq!(tree.get(&0), Some(102));
}
