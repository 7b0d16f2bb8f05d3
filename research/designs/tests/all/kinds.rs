//! Every design: an index can only be opened with its own kinds, and the way of recovery makes no
//! difference.

use crate::common::{Place, PoolHome};
use bristlecone_designs::designs::{Choice, DESIGNS};
use bristlecone_designs::engines::{Engine, Maker, maker};
use bristlecone_designs::{
    DurableIndex, KeyRepr, LbOptions, LbTree, OrderedIndex, Repr, TreeError,
};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::RootError;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

type Home = PoolHome;
type Numbers = Box<dyn Engine<u64, u64>>;

/// Returns every design in every leaf size.
fn all() -> impl Iterator<Item = Choice<'static>> {
    DESIGNS.iter().flat_map(|design| {
        design.node_bytes.iter().map(|bytes| Choice {
            node_bytes: Some(*bytes),
            ..Choice::of(design.name)
        })
    })
}

fn numbers(choice: &Choice<'_>) -> Box<dyn Maker<u64, u64, Auto>> {
    maker(choice).unwrap_or_else(|e| panic!("{choice:?}: {e}"))
}

/// Makes an index of numbers that holds 1 -> 2.
fn make(home: &Home, choice: &Choice<'_>) {
    let index = numbers(choice).create(&home.pool, "index");
    let index = index.expect("a new root");
    index.insert(&1, &2).expect("a new key");
    index.close().expect("close");
}

/// Tries to open the index as a design's index of numbers.
fn open(home: &Home, choice: &Choice<'_>) -> Result<(), TreeError> {
    let index = numbers(choice).open(&home.pool, "index")?;
    assert_eq!(index.get(&1), Some(2));
    Ok(())
}

fn wrong_kind<T>(asked: &str, found: &str, answer: Result<T, TreeError>) {
    let Err(error) = answer else {
        panic!("{found} opened as {asked}");
    };
    assert!(
        matches!(error, TreeError::Root(RootError::WrongKind { .. })),
        "{found} as {asked}: {error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("index") && text.contains(asked) && text.contains(found),
        "{text}"
    );
}

/// Returns the name of an index of numbers in messages.
fn named(choice: &Choice<'_>) -> String {
    let bytes = choice.node_bytes.expect("given above");
    format!("{} of u64 to u64 in {bytes}-byte nodes", choice.name)
}

#[test]
fn another_design_or_leaf_size_is_refused_and_named() {
    for there in all() {
        let home = Home::new(Place::File);
        make(&home, &there);
        let kind = home.pool.roots().remove(0).kind;
        assert_eq!(
            (kind.design.as_str(), Some(kind.node_bytes)),
            (there.name, there.node_bytes)
        );
        for asked in all().filter(|asked| *asked != there) {
            wrong_kind(&named(&asked), &named(&there), open(&home, &asked));
        }
        open(&home, &there).unwrap_or_else(|e| panic!("{there:?}: {e}"));
    }
}

/// Every design names the kind of its root by the same function, so that one tells of all whether
/// keys and values count each.
#[test]
fn other_kinds_of_keys_or_values_are_refused_and_named() {
    fn refused<K: KeyRepr + ?Sized, V: Repr + ?Sized>(home: &Home, asked: &str) {
        let options = LbOptions::default();
        let answer = LbTree::<K, V, Auto, 1>::open(&home.pool, "index", &options);
        wrong_kind(asked, "u64 to u64", answer.map(drop));
    }
    let home = Home::new(Place::File);
    make(&home, &Choice::of("lbtree"));
    refused::<[u8], u64>(&home, "bytes to u64");
    refused::<u64, [u8]>(&home, "u64 to bytes");
}

#[test]
fn an_index_of_numbers_is_not_opened_as_one_of_strings() {
    for design in DESIGNS {
        let choice = Choice {
            node_bytes: Some(design.default_node_bytes),
            ..Choice::of(design.name)
        };
        let home = Home::new(Place::File);
        make(&home, &choice);
        let strings = maker::<[u8], [u8], _>(&choice).expect("a design that there is");
        let answer = strings.open(&home.pool, "index");
        wrong_kind("bytes to bytes", &named(&choice), answer.map(drop));
        let maker = numbers(&choice);
        let index = maker.open(&home.pool, "index").expect("what it is");
        assert_eq!(
            index.recovery().clean,
            maker.snapshot(),
            "refused openings left it as it was"
        );
    }
}

fn content(index: &Numbers) -> BTreeMap<u64, u64> {
    let mut all = BTreeMap::new();
    index.scan(.., |k, v| {
        all.insert(*k, *v);
        ControlFlow::Continue(())
    });
    all
}

fn key(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Recovers a crash image as `choice` says, and works on it.
fn recover(home: &Home, choice: &Choice<'_>, expected: &BTreeMap<u64, u64>, at: &str) {
    let image = home.crash_image();
    let index = numbers(choice).open(&image.pool, "index");
    let index = index.unwrap_or_else(|e| panic!("{at}: {e}"));
    let report = index.recovery();
    assert!(!report.clean, "{at}: {report:?}");
    // All but BzTree walk their leaves; BzTree's recovery reads only its descriptors.
    let (entries, leaves) = match choice.name {
        "bztree" => (0, 0),
        _ => (expected.len() as u64, index.stats().leaves),
    };
    assert_eq!(report.entries, entries, "{at}: {report:?}");
    assert_eq!(report.leaves_scanned, leaves, "{at}: {report:?}");
    assert_eq!(index.stats().entries, expected.len() as u64, "{at}");
    assert!(content(&index) == *expected, "{at}");
    index.verify().unwrap_or_else(|v| panic!("{at}: {v}"));
    for n in 0..300 {
        index.upsert(&key(n), &1).expect("upsert");
    }
    index
        .verify()
        .unwrap_or_else(|v| panic!("{at}, after work: {v}"));
}

/// Grows an index and shrinks it again; recoveries with any number of threads find both.
fn grow_and_shrink(choice: &Choice<'_>) {
    let home = Home::new(Place::File);
    let index = numbers(choice).create(&home.pool, "index");
    let index = index.expect("a new root");
    for n in 0..60_000 {
        index.insert(&key(n), &n).expect("a new key");
    }
    // In the order of the keys, so that whole stretches of leaves are removed, among them leaves
    // that recovery might start from.
    let goes = |k: &u64| !(k >> 60).is_multiple_of(4);
    for stage in ["grown", "shrunk"] {
        let expected = content(&index);
        for recovery_threads in [1, 2, 3, 16, 100] {
            let choice = Choice {
                recovery_threads,
                ..choice.clone()
            };
            recover(&home, &choice, &expected, &format!("{choice:?}, {stage}"));
        }
        for k in expected.keys().filter(|k| stage == "grown" && goes(k)) {
            assert!(index.remove(k).expect("removal"));
        }
    }
}

#[test]
fn any_number_of_threads_recovers_the_same() {
    for design in DESIGNS {
        grow_and_shrink(&Choice::of(design.name));
    }
}
