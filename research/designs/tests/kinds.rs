//! An index is opened as what it is, or not at all; how it is recovered makes no difference. For
//! every design there is.

mod common;

use bristlecone_designs::designs::{Choice, DESIGNS, Design, Task, with_design};
use bristlecone_designs::{DurableIndex, KeyRepr, OrderedIndex, Repr, TreeError};
use bristlecone_pmem::media::Mapped;
use bristlecone_pmem::pool::RootError;
use common::PoolHome;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Every design in every leaf size.
fn all() -> impl Iterator<Item = Choice<'static>> {
    DESIGNS.iter().flat_map(|design| {
        design.node_bytes.iter().map(|bytes| Choice {
            node_bytes: Some(*bytes),
            ..Choice::of(design.name)
        })
    })
}

fn run<T: Task>(choice: &Choice<'_>, task: T) -> T::Output {
    with_design(choice, task).unwrap_or_else(|e| panic!("{choice:?}: {e}"))
}

/// Makes an index of numbers that holds 1 -> 2.
struct Make<'a>(&'a PoolHome<Mapped>);

impl Task for Make<'_> {
    type Output = ();

    fn run<D: Design>(self, design: D) {
        let index = design.create::<u64, u64, _>(&self.0.pool, "index");
        let index = index.expect("a new root");
        index.insert(&1, &2).expect("a new key");
        index.close().expect("close");
    }
}

/// Tries to open it as a design's index of numbers.
struct Open<'a>(&'a PoolHome<Mapped>);

impl Task for Open<'_> {
    type Output = Result<(), TreeError>;

    fn run<D: Design>(self, design: D) -> Self::Output {
        let index = design.open::<u64, u64, _>(&self.0.pool, "index")?;
        assert_eq!(index.get(&1), Some(2));
        Ok(())
    }
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

/// What messages call an index of numbers.
fn named(choice: &Choice<'_>) -> String {
    let bytes = choice.node_bytes.expect("given above");
    format!("{} of u64 to u64 in {bytes}-byte nodes", choice.name)
}

#[test]
fn another_design_or_leaf_size_is_refused_and_named() {
    for there in all() {
        let home = PoolHome::<Mapped>::new();
        run(&there, Make(&home));
        let kind = home.pool.roots().remove(0).kind;
        assert_eq!(
            (kind.design.as_str(), Some(kind.node_bytes)),
            (there.name, there.node_bytes)
        );
        for asked in all().filter(|asked| *asked != there) {
            wrong_kind(&named(&asked), &named(&there), run(&asked, Open(&home)));
        }
        run(&there, Open(&home)).unwrap_or_else(|e| panic!("{there:?}: {e}"));
    }
}

/// An index of numbers is none of byte strings.
struct OtherKinds<'a>(&'a Choice<'a>);

impl OtherKinds<'_> {
    fn refused<K: KeyRepr + ?Sized, V: Repr + ?Sized>(
        &self,
        design: &impl Design,
        home: &PoolHome<Mapped>,
        asked: &str,
    ) {
        let answer = design.open::<K, V, _>(&home.pool, "index");
        wrong_kind(asked, &named(self.0), answer.map(drop));
    }
}

impl Task for OtherKinds<'_> {
    type Output = ();

    fn run<D: Design>(self, design: D) {
        let home = PoolHome::<Mapped>::new();
        Make(&home).run(design.clone());
        self.refused::<[u8], u64>(&design, &home, "bytes to u64");
        self.refused::<u64, [u8]>(&design, &home, "u64 to bytes");
        self.refused::<[u8], [u8]>(&design, &home, "bytes to bytes");
        let index = design.open::<u64, u64, _>(&home.pool, "index");
        let index = index.expect("what it is");
        let snapshot = <D::Index<u64, u64, Mapped> as DurableIndex<_, _, _>>::SNAPSHOT;
        assert_eq!(
            index.recovery().clean,
            snapshot,
            "refused openings left it as it was"
        );
    }
}

#[test]
fn other_kinds_of_keys_and_values_are_refused_and_named() {
    for design in DESIGNS {
        let choice = Choice {
            node_bytes: Some(design.default_node_bytes),
            ..Choice::of(design.name)
        };
        run(&choice, OtherKinds(&choice));
    }
}

fn content(index: &impl OrderedIndex<u64, u64>) -> BTreeMap<u64, u64> {
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

/// Recovers a crash image with this many threads, and works on it.
struct Recover<'a> {
    home: &'a PoolHome<Mapped>,
    expected: &'a BTreeMap<u64, u64>,
    walks: bool,
    at: String,
}

impl Task for Recover<'_> {
    type Output = ();

    fn run<D: Design>(self, design: D) {
        let Self {
            home,
            expected,
            walks,
            at,
        } = self;
        let image = home.crash_image();
        let index = design.open::<u64, u64, _>(&image.pool, "index");
        let index = index.unwrap_or_else(|e| panic!("{at}: {e}"));
        let report = index.recovery();
        assert!(!report.clean, "{at}: {report:?}");
        // All but BzTree, whose recovery looks at its descriptors alone, walk their leaves.
        let (entries, leaves) = match walks {
            true => (expected.len() as u64, index.stats().leaves),
            false => (0, 0),
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
}

/// Grows an index and shrinks it again; both are recovered by any number of threads.
struct GrowAndShrink<'a>(&'a Choice<'a>);

impl Task for GrowAndShrink<'_> {
    type Output = ();

    fn run<D: Design>(self, design: D) {
        let home = PoolHome::<Mapped>::new();
        let index = design.create::<u64, u64, _>(&home.pool, "index");
        let index = index.expect("a new root");
        for n in 0..60_000 {
            index.insert(&key(n), &n).expect("a new key");
        }
        // In order of the keys, so that whole stretches of leaves go, those among them that recovery
        // might start from.
        let goes = |k: &u64| !(k >> 60).is_multiple_of(4);
        for stage in ["grown", "shrunk"] {
            let expected = content(&index);
            for recovery_threads in [1, 2, 3, 16, 100] {
                let choice = Choice {
                    recovery_threads,
                    ..self.0.clone()
                };
                let recover = Recover {
                    home: &home,
                    expected: &expected,
                    walks: choice.name != "bztree",
                    at: format!("{choice:?}, {stage}"),
                };
                run(&choice, recover);
            }
            for k in expected.keys().filter(|k| stage == "grown" && goes(k)) {
                assert!(index.remove(k).expect("removal"));
            }
        }
    }
}

#[test]
fn any_number_of_threads_recovers_the_same() {
    for design in DESIGNS {
        let choice = Choice::of(design.name);
        run(&choice, GrowAndShrink(&choice));
    }
}
