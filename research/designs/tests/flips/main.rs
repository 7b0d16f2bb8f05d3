//! One flipped bit of a small pool of each layout, closed or as a kill leaves it: what is read is
//! right, or opening, reading or `check` reports damage. What remains silent is in a table of
//! `docs/research.md`, which has to be exactly what is found here.
//!
//! Pools are on the simulated medium, so that a flip and all that an opening writes can be undone.

mod contents;
mod look;
mod table;

use bristlecone_designs::designs::{AnyDesign, Choice, DESIGNS, DesignInfo};
use bristlecone_designs::engines::Compiled;
use bristlecone_pmem::heap::damage_is_expected;
use bristlecone_pmem::media::Sim;
use contents::Contents;
use look::{Silent, Subject};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use table::Row;

/// What is silent, by design and kind of data.
type Found = BTreeMap<Row, [BTreeSet<Silent>; 2]>;

/// Flips `most` bits of pools of each of `info`'s explored layouts.
fn flip_design<K>(info: &'static DesignInfo, most: usize, found: &mut Found)
where
    K: Contents + ?Sized,
    Sim: Compiled<K, K>,
{
    for bytes in info.explored() {
        let choice = Choice {
            node_bytes: Some(*bytes),
            ..Choice::of(info.name)
        };
        let design = AnyDesign::of(&choice).expect("a leaf size that the design says it has");
        let Some(maker) = <Sim as Compiled<K, K>>::maker_of(design) else {
            return;
        };
        for (state, closed) in [true, false].into_iter().enumerate() {
            let subject = Subject::<K>::new(&*maker, closed);
            let name = format!("{}-{bytes}-{}, closed: {closed}", info.name, K::NAME);
            let flipped = subject.flip_all(&name, most);
            println!("{name}: {flipped}");
            let row = Row {
                design: info.name.to_owned(),
                data: K::NAME.to_owned(),
            };
            found.entry(row).or_default()[state].extend(flipped.silent());
        }
    }
}

/// Flips `most` bits in every layout. `BRISTLECONE_FLIPS` names designs to do alone.
fn flip_designs(most: usize) -> Found {
    let chosen = std::env::var("BRISTLECONE_FLIPS").ok();
    let is_chosen = |info: &&DesignInfo| {
        (chosen.as_ref()).is_none_or(|names| names.split(',').any(|name| name == info.name))
    };
    let designs: Vec<&'static DesignInfo> = DESIGNS.iter().filter(is_chosen).collect();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Found::new()));
    let work = || {
        damage_is_expected::here();
        // ORDERING: Relaxed; only the number matters.
        while let Some(info) = designs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut of_design = Found::new();
            flip_design::<u64>(info, most, &mut of_design);
            flip_design::<[u8]>(info, most, &mut of_design);
            flip_design::<u128>(info, most, &mut of_design);
            found.lock().expect("no thread panics").extend(of_design);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| _ = scope.spawn(work));
    });
    found.into_inner().expect("no thread panics")
}

/// Compares what was found with the table: all of it, or `some` of it.
fn is_as_documented(found: &Found, some: bool) {
    let documented = table::read();
    let (there, told): (Vec<&Row>, Vec<&Row>) =
        (found.keys().collect(), documented.keys().collect());
    if std::env::var("BRISTLECONE_FLIPS").is_err() {
        assert_eq!(there, told, "the rows of the table");
    }
    let differs = |(row, silent): &(&Row, &[BTreeSet<Silent>; 2])| {
        let told = documented.get(*row);
        told.is_none_or(|told| match some {
            true => silent
                .iter()
                .zip(told)
                .any(|(silent, told)| !silent.is_subset(told)),
            false => *silent != told,
        })
    };
    let differs: Vec<String> = (found.iter().filter(differs))
        .map(|(row, silent)| table::line(row, silent))
        .collect();
    assert!(
        differs.is_empty(),
        "what is silent is not what docs/research.md says; it is:\n{}",
        differs.join("\n")
    );
}

#[test]
fn what_is_silent_is_in_the_table() {
    is_as_documented(&flip_designs(400), true);
}

#[test]
#[ignore = "every bit of every layout; CI_FULL runs it"]
fn what_is_silent_is_the_table() {
    is_as_documented(&flip_designs(usize::MAX), false);
}
