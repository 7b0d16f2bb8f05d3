//! Tests of the inner index: against a model (here), under threads (`stress`), and under explored
//! schedules (`schedules`).

mod schedules;
mod stress;

use super::*;
use crate::contract::Fill;
use crossbeam_epoch::pin;
use proptest::collection::vec;
use proptest::prelude::*;
use std::borrow::Borrow;
use std::collections::BTreeMap;

/// The expected content: leaves by the smallest key routed to them, and the first one.
struct Model<S: Separator + ?Sized> {
    first: u32,
    rest: BTreeMap<S::Owned, u32>,
}

impl<S: Separator + ?Sized> Model<S> {
    /// Returns every leaf in order, with its low end.
    fn leaves(&self) -> Vec<(Option<S::Owned>, u32)> {
        let first = std::iter::once((None, self.first));
        first
            .chain(
                self.rest
                    .iter()
                    .map(|(low, &leaf)| (Some(low.clone()), leaf)),
            )
            .collect()
    }

    /// Returns the index of the leaf of `key` among `leaves()`.
    fn place(&self, key: &S) -> usize {
        self.rest
            .keys()
            .filter(|low| (*low).borrow() <= key)
            .count()
    }
}

#[derive(Clone, Debug)]
enum Op<K> {
    Split(K),
    Remove(K),
    RemoveToLeft(K),
}

/// Checks every answer of the index about `key`.
fn check_key<S: Separator + ?Sized, const CAP: usize>(
    index: &InnerIndex<S, CAP>,
    model: &Model<S>,
    key: &S,
) {
    let guard = &pin();
    let leaves = model.leaves();
    let place = model.place(key);
    let leaf = |place: usize| leaves[place].1;
    let low = |place: usize| leaves[place].0.clone();
    let high = |place: usize| leaves.get(place + 1).and_then(|(low, _)| low.clone());

    let found = index.find(key, guard);
    assert_eq!(found.leaf, leaf(place), "find {key:?}");
    assert!(index.validate(&found));

    let ranged = index.find_range(key, guard);
    assert!(index.validate(&ranged.located));
    assert_eq!(
        (ranged.located.leaf, ranged.low, ranged.high),
        (leaf(place), low(place), high(place)),
        "find_range {key:?}"
    );

    let below = model
        .rest
        .keys()
        .filter(|low| (*low).borrow() < key)
        .count();
    let ranged = index.find_below(key, guard);
    assert!(index.validate(&ranged.located));
    assert_eq!(
        (ranged.located.leaf, ranged.low, ranged.high),
        (leaf(below), low(below), high(below)),
        "find_below {key:?}"
    );

    let both = index.find_with_left(key, guard);
    assert!(index.validate(&both.located));
    assert!(both.left.is_none_or(|left| index.validate(&left)));
    assert_eq!(both.located.leaf, leaf(place));
    assert_eq!(
        both.left.map(|left| left.leaf),
        place.checked_sub(1).map(leaf)
    );

    // Steps inside a node agree with searches from the root, wherever they are possible.
    let ranged = index.find_range(key, guard);
    for distance in -3isize..4 {
        if let Some(ahead) = index.ahead(&ranged, distance) {
            assert_eq!(
                ahead,
                leaf(place.strict_add_signed(distance)),
                "ahead of {key:?}"
            );
        }
    }
    if let Some(next) = index.next_in_node(&ranged, guard) {
        let searched =
            index.find_range(ranged.high.as_ref().expect("not the last").borrow(), guard);
        assert_eq!(
            (next.located, next.low, next.high),
            (searched.located, searched.low, searched.high),
            "after {key:?}"
        );
    }
    if let Some(previous) = index.previous_in_node(&ranged, guard) {
        let searched =
            index.find_below(ranged.low.as_ref().expect("not the first").borrow(), guard);
        assert_eq!(
            (previous.located, previous.low, previous.high),
            (searched.located, searched.low, searched.high),
            "before {key:?}"
        );
    }
}

fn check_whole<S: Separator + ?Sized, const CAP: usize>(
    index: &InnerIndex<S, CAP>,
    model: &Model<S>,
) {
    index.verify().expect("sound");
    let mut walked = Vec::new();
    index.for_each_leaf(|low, leaf| walked.push((low.map(ToOwned::to_owned), leaf)));
    assert_eq!(walked, model.leaves());
    let guard = &pin();
    let (first, last) = (index.find_first(guard), index.find_last(guard));
    assert_eq!((first.located.leaf, first.low), (walked[0].1, None));
    let (low, leaf) = walked.last().expect("never empty");
    assert_eq!(
        (last.located.leaf, &last.low, &last.high),
        (*leaf, low, &None)
    );
}

fn check_batch<S, const CAP: usize>(index: &InnerIndex<S, CAP>, model: &Model<S>, keys: &[S::Owned])
where
    S: Separator + ?Sized,
{
    let leaves = model.leaves();
    let mut out = vec![Located::default(); keys.len()];
    index.find_batch(keys, &mut out, &pin());
    for (key, located) in keys.iter().zip(&out) {
        assert!(index.validate(located));
        assert_eq!(
            located.leaf,
            leaves[model.place(key.borrow())].1,
            "batch, {key:?}"
        );
    }
}

/// Applies one operation to both; new leaves get the handle `fresh`.
fn apply<S: Separator + ?Sized, const CAP: usize>(
    index: &InnerIndex<S, CAP>,
    model: &mut Model<S>,
    op: &Op<S::Owned>,
    fresh: u32,
) {
    let guard = &pin();
    match op {
        Op::Split(key) => {
            if model.rest.contains_key(key.borrow()) {
                return;
            }
            index.insert(key.borrow(), fresh, guard);
            model.rest.insert(key.clone(), fresh);
        }
        Op::RemoveToLeft(key) => {
            let leaves = model.leaves();
            let place = model.place(key.borrow());
            let (low, leaf) = leaves[place].clone();
            let before = index.find(key.borrow(), guard);
            assert!(!index.remove_to_left(fresh, key.borrow(), guard));
            let removed = index.remove_to_left(leaf, key.borrow(), guard);
            assert_eq!(removed, place > 0, "all but the first leaf can go");
            if let (true, Some(low)) = (removed, low) {
                assert!(!index.validate(&before));
                model.rest.remove(low.borrow());
            }
        }
        Op::Remove(key) => {
            let leaves = model.leaves();
            let place = model.place(key.borrow());
            let (low, leaf) = leaves[place].clone();
            let before = index.find(key.borrow(), guard);
            assert!(
                !index.remove(fresh, key.borrow(), guard),
                "no such leaf there"
            );
            let removed = index.remove(leaf, key.borrow(), guard);
            assert_eq!(removed, leaves.len() > 1, "all but the last leaf can go");
            if !removed {
                return;
            }
            assert!(
                !index.validate(&before),
                "what led to a removed leaf is stale"
            );
            // Either neighbour may take over the range.
            let heir = index.find(key.borrow(), guard).leaf;
            let left = place.checked_sub(1).map(|i| leaves[i].1);
            let right = leaves.get(place + 1).cloned();
            if Some(heir) == left {
                model.rest.remove(low.expect("not the first").borrow());
            } else {
                let (right_low, right_leaf) = right.expect("one neighbour has the range");
                assert_eq!(heir, right_leaf, "only a neighbour may take the range over");
                model
                    .rest
                    .remove(right_low.expect("not the first").borrow());
                match low {
                    Some(low) => drop(model.rest.insert(low, right_leaf)),
                    None => model.first = right_leaf,
                }
            }
        }
    }
}

/// Runs `ops`, then removes every leaf but one, in the order of `probes`.
fn run<S: Separator + ?Sized, const CAP: usize>(ops: &[Op<S::Owned>], probes: &[S::Owned]) {
    let index = InnerIndex::<S, CAP>::new(1_000_000, u64::MAX).expect("memory");
    let mut model = Model::<S> {
        first: 1_000_000,
        rest: BTreeMap::new(),
    };
    for (op, fresh) in ops.iter().zip(0..) {
        apply(&index, &mut model, op, fresh);
        let (Op::Split(key) | Op::Remove(key) | Op::RemoveToLeft(key)) = op;
        check_key(&index, &model, key.borrow());
        index.verify().expect("sound");
    }
    check_whole(&index, &model);
    for key in probes {
        check_key(&index, &model, key.borrow());
    }
    check_batch(&index, &model, probes);
    let mut probes = probes.iter().cycle();
    while !model.rest.is_empty() {
        let low = model.rest.keys().next().cloned();
        let key = probes.next().cloned().or(low).expect("not empty");
        apply(&index, &mut model, &Op::Remove(key.clone()), u32::MAX);
        index.verify().expect("sound");
        check_key(&index, &model, key.borrow());
    }
    check_whole(&index, &model);
    assert_eq!(index.stats().depth, 1, "one leaf needs one inner node");
    apply(
        &index,
        &mut model,
        &Op::Remove(probes.next().cloned().unwrap_or_else(|| unreachable!())),
        7,
    );
}

fn ops<K: Clone + std::fmt::Debug + 'static>(
    key: impl Strategy<Value = K> + Clone + 'static,
) -> impl Strategy<Value = (Vec<Op<K>>, Vec<K>)> {
    let op = prop_oneof![
        3 => key.clone().prop_map(Op::Split),
        1 => key.clone().prop_map(Op::Remove),
        1 => key.clone().prop_map(Op::RemoveToLeft),
    ];
    (vec(op, 1..250), vec(key, 1..70))
}

fn integers() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![
        6 => 0u64..400,
        1 => Just(0u64),
        1 => Just(u64::MAX),
        1 => (u64::MAX - 20)..u64::MAX,
        2 => any::<u64>(),
    ]
}

/// Returns short strings over few bytes behind shared prefixes of several lengths, so that ties,
/// embedded zeros, prefixes of each other and the empty string are common.
fn strings() -> impl Strategy<Value = Vec<u8>> + Clone {
    let prefix = prop_oneof![
        Just(&b""[..]),
        Just(&b"tenant"[..]),
        Just(&b"tenant:0000"[..]),
        Just(&b"tenant:0000\0\0\0\0\0\0\0\0"[..]),
        Just(&b"\xff\xff\xff\xff\xff\xff\xff\xff"[..]),
    ];
    let byte = prop_oneof![Just(0u8), Just(b'a'), Just(b'b'), Just(0xFF)];
    (prefix, vec(byte, 0..11)).prop_map(|(prefix, tail)| [prefix, &tail].concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn integers_follow_the_model_in_deep_trees((ops, probes) in ops(integers())) {
        run::<u64, 3>(&ops, &probes);
    }

    #[test]
    fn integers_follow_the_model_in_full_nodes((ops, probes) in ops(integers())) {
        run::<u64, NODE_SEPARATORS>(&ops, &probes);
    }

    #[test]
    fn strings_follow_the_model_in_deep_trees((ops, probes) in ops(strings())) {
        run::<[u8], 4>(&ops, &probes);
    }

    #[test]
    fn strings_follow_the_model_in_full_nodes((ops, probes) in ops(strings())) {
        run::<[u8], NODE_SEPARATORS>(&ops, &probes);
    }

    #[test]
    fn bulk_built_trees_follow_the_model(
        keys in proptest::collection::btree_set(strings(), 0..400),
        percent in 1u8..=100,
        (ops, probes) in ops(strings()),
    ) {
        let rest: Vec<(Vec<u8>, u32)> = keys.into_iter().zip(1..).collect();
        let fill = Fill::percent(percent).expect("1 to 100");
        let index = InnerIndex::<[u8], 7>::from_sorted(0, rest.iter().cloned(), fill, u64::MAX).expect("sorted");
        let mut model = Model::<[u8]> { first: 0, rest: rest.into_iter().collect() };
        check_whole(&index, &model);
        check_batch(&index, &model, &probes);
        for key in &probes {
            check_key(&index, &model, key);
        }
        for (op, fresh) in ops.iter().take(60).zip(1_000..) {
            apply(&index, &mut model, op, fresh);
        }
        check_whole(&index, &model);
    }
}

/// The search inside a node, for every count and every place of the key.
#[test]
fn searching_a_node_counts_separators() {
    for count in 0..=NODE_SEPARATORS as u64 {
        // Separators 2, 4, 6 ..
        let rest = (1..=count).map(|i| (i * 2, i as u32));
        let index = InnerIndex::<u64>::from_sorted(0, rest, Fill::FULL, u64::MAX).expect("sorted");
        assert_eq!(index.stats().depth, 1);
        let guard = &pin();
        for key in (0..=count * 2 + 3).chain([u64::MAX]) {
            assert_eq!(
                u64::from(index.find(&key, guard).leaf),
                (key / 2).min(count),
                "{key}"
            );
            let below = (key.saturating_sub(1) / 2).min(count);
            assert_eq!(
                u64::from(index.find_below(&key, guard).located.leaf),
                below,
                "{key}"
            );
        }
    }
}

#[test]
fn bulk_building_reports_what_is_out_of_order() {
    let built = |keys: &[u64]| {
        let rest = keys.iter().map(|&key| (key, 1));
        InnerIndex::<u64, 3>::from_sorted(0, rest, Fill::FULL, u64::MAX)
            .map(|index| index.stats().nodes)
    };
    assert_eq!(built(&[]).expect("one leaf"), 1);
    assert!(built(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).expect("sorted") > 3);
    for (keys, at) in [(&[5, 5][..], 1), (&[1, 2, 3, 4, 5, 4], 5), (&[9, 1], 1)] {
        let error = built(keys).expect_err("not ascending");
        assert!(
            matches!(error, BuildError::Unsorted { position } if position == at),
            "{error}"
        );
        assert!(error.to_string().contains("smallest key"), "{error}");
    }
    let strings = [&b"b"[..], b"b\0", b"b"].map(|key| (key, 1));
    assert!(InnerIndex::<[u8]>::from_sorted(0, strings, Fill::USUAL, u64::MAX).is_err());
}

/// A million leaves: bulk building fills nodes as asked, and ascending insertion leaves them
/// nearly full, since a node that is split at its end is split near its end.
#[test]
fn large_trees_stay_compact() {
    const LEAVES: u64 = 200_000;
    let rest = (1..LEAVES).map(|i| (i << 20, i as u32));
    let bulk = InnerIndex::<u64>::from_sorted(0, rest, Fill::FULL, u64::MAX).expect("sorted");
    let stats = bulk.verify().expect("sound");
    let full = NODE_SEPARATORS as u64 + 1;
    assert!(stats.nodes <= LEAVES / (full - 1) + 20, "{stats:?}");
    assert_eq!(stats.depth, 4);

    let grown = InnerIndex::<u64>::new(0, u64::MAX).expect("memory");
    let guard = pin();
    for i in 1..LEAVES {
        grown.insert(&(i << 20), i as u32, &guard);
    }
    let stats = grown.verify().expect("sound");
    assert!(stats.nodes <= LEAVES / (full - 3) + 20, "{stats:?}");
    for i in (0..LEAVES).step_by(37) {
        for index in [&bulk, &grown] {
            assert_eq!(u64::from(index.find(&((i << 20) + 5), &guard).leaf), i);
        }
    }
}

/// Fills and empties `index` until a round does not make it larger. Removed nodes come back only
/// when no thread of the process has been pinned since before, other tests' threads included: hence
/// the rounds.
fn until_no_growth<S: Separator + ?Sized>(index: &InnerIndex<S, 4>, key: impl Fn(u32) -> S::Owned) {
    for round in 0..20_000 {
        let before = index.stats().bytes;
        for i in 1..=300 {
            index.insert(key(i).borrow(), i, &pin());
        }
        for i in 1..=300 {
            let guard = pin();
            assert!(
                index.remove(i, key(i).borrow(), &guard),
                "round {round}, leaf {i}"
            );
            guard.flush();
        }
        let stats = index.verify().expect("sound");
        assert_eq!(stats.depth, 1);
        if round > 2 && stats.bytes <= before {
            return;
        }
        std::thread::yield_now();
    }
    panic!("still growing: {:?}", index.stats());
}

#[test]
fn removed_nodes_are_reused() {
    let index = InnerIndex::<u64, 4>::new(0, u64::MAX).expect("memory");
    until_no_growth(&index, u64::from);
}

#[test]
fn removed_separators_are_freed() {
    let index = InnerIndex::<[u8], 4>::new(0, u64::MAX).expect("memory");
    until_no_growth(&index, |i| {
        format!("a rather long separator, {i:08}").into_bytes()
    });
}

/// `verify` sees damage: a separator out of order and a child that leads nowhere.
#[test]
fn verify_reports_damage() {
    let rest = (1..100u64).map(|i| (i * 10, i as u32));
    let index = InnerIndex::<u64, 4>::from_sorted(0, rest, Fill::FULL, u64::MAX).expect("sorted");
    index.verify().expect("sound");
    let root = index.root();
    let lost = root.child(0);
    root.remove(0);
    // SAFETY: 1. integers are never freed; 2. no other thread uses the index.
    unsafe { root.insert(0, 5, root.child(0)) };
    let report = index
        .verify()
        .expect_err("the first subtree is out of its range")
        .to_string();
    assert!(report.contains("inner node"), "{report}");
    let _ = lost;
}

/// Shows the accesses that the device model gets: every node of a descent, and none from ordinary
/// indexes.
#[test]
fn a_traced_index_reports_every_node_that_it_touches_and_an_untraced_one_nothing() {
    use bristlecone_pmem::media::{DramTouch, Traced};
    use std::cell::RefCell;
    use std::rc::Rc;

    const LEAVES: u64 = 200;
    let rest = || (1..LEAVES).map(|i| (i * 10, i as u32));
    let traced =
        InnerIndex::<u64, 4, Traced>::from_sorted(0, rest(), Fill::FULL, u64::MAX).expect("sorted");
    let plain = InnerIndex::<u64, 4>::from_sorted(0, rest(), Fill::FULL, u64::MAX).expect("sorted");
    let touches = Rc::new(RefCell::new(Vec::<DramTouch>::new()));
    let into = Rc::clone(&touches);
    Traced::observe(Some(Box::new(move |touch| into.borrow_mut().push(*touch))));
    let guard = pin();
    assert_eq!(plain.find(&777, &guard).leaf, 77);
    plain.insert(&775, 1000, &guard);
    assert!(touches.take().is_empty());

    assert_eq!(traced.find(&777, &guard).leaf, 77);
    let depth = traced.stats().depth as usize;
    assert_eq!(depth, 4);
    let heard = touches.take();
    assert!(heard.iter().all(|t| t.region == DramRegion::Inner));
    let nodes = |access| -> Vec<u64> {
        let of = heard.iter().filter(|t| t.access == access);
        of.map(|t| t.at / size_of::<Node<u64>>() as u64).collect()
    };
    let mut loads = nodes(DramAccess::Load);
    assert_eq!(loads.len(), 2 * depth, "key words and child of each level");
    loads.dedup();
    assert_eq!(loads.len(), depth);
    assert_eq!(loads[0], u64::from(ROOT));
    assert_eq!(nodes(DramAccess::Prefetch), loads[1..], "all but the root");
    assert_eq!(nodes(DramAccess::Store), [0; 0]);

    traced.insert(&775, 1000, &guard);
    let changed = |t: &&DramTouch| t.access == DramAccess::Locked;
    assert!(touches.take().iter().filter(changed).count() > 0);
    Traced::observe(None);
}

/// Leaves are exchanged, merged with the one before and given other boundaries, wherever in their
/// level-1 nodes they are. If two are not below one node, the call is refused and changes nothing.
#[test]
fn leaves_are_exchanged_merged_and_bounded_anew() {
    fn leaf_of<const CAP: usize>(index: &InnerIndex<u64, CAP>, key: u64) -> u32 {
        index.find(&key, &crossbeam_epoch::pin()).leaf
    }
    let guard = &crossbeam_epoch::pin();
    let rest = (1..100u64).map(|i| (i * 10, i as u32));
    let index = InnerIndex::<u64, 4>::from_sorted(0, rest, Fill::FULL, u64::MAX).expect("sorted");
    let (mut merged, mut moved, mut refused) = (0, 0, 0);
    for i in 0..100u64 {
        let (key, leaf) = (i * 10 + 5, i as u32);
        let near = index.find_siblings(&key, guard);
        assert!(index.validate(&near.located));
        let left = index.find_with_left(&key, guard).left;
        assert_eq!(left.is_none(), i == 0);
        assert!(
            near.left
                .is_none_or(|near| Some(near) == left.map(|left| left.leaf))
        );
        assert!(near.right.is_none_or(|right| right == leaf + 1));
        assert!(!index.replace(leaf + 500, 7, &key, guard), "not there");
        assert!(index.replace(near.located.leaf, leaf + 1000, &key, guard));
        assert!(!index.validate(&near.located), "its node has changed");
        assert_eq!(leaf_of(&index, key), leaf + 1000);
        let Some(left) = left.map(|left| left.leaf) else {
            continue;
        };
        if near.left.is_none() {
            assert!(!index.absorb(left, leaf + 1000, &key, guard));
            assert!(!index.move_boundary(left, leaf + 1000, &key, &(key - 7), guard));
            refused += 1;
        } else if i % 3 == 0 {
            assert!(index.absorb(left, leaf + 1000, &key, guard));
            assert_eq!(leaf_of(&index, key), left);
            merged += 1;
        } else {
            assert!(index.move_boundary(left, leaf + 1000, &key, &(i * 10 + 7), guard));
            assert_eq!(
                (leaf_of(&index, key), leaf_of(&index, key + 2)),
                (left, leaf + 1000)
            );
            moved += 1;
        }
        index.verify().expect("sound");
    }
    assert!(
        merged > 10 && moved > 10 && refused > 10,
        "{merged} {moved} {refused}"
    );
}
