//! One flipped bit of a small pool of each layout, closed or as a kill leaves it: what is read is
//! right, or opening, reading or `check` reports damage. What remains silent is in a table of
//! `docs/research.md`, which has to be exactly what is found here.
//!
//! Pools are on the simulated medium, so that a flip and all that an opening writes can be undone.

mod contents;
mod look;
mod table;

use contents::Contents;
use look::{Silent, Subject};
use bristlecone_designs::designs::{AnyDesign, Choice, DESIGNS, DesignInfo};
use bristlecone_designs::engines::Compiled;
use bristlecone_pmem::heap::damage_is_expected;
use bristlecone_pmem::media::Sim;
use std::collections::{BTreeMap, BTreeSet};
use table::Row;

/// What is silent, by design and kind of data.
type Found = BTreeMap<Row, [BTreeSet<Silent>; 2]>;

/// Flips bits of pools of `info`'s explored layouts, one bit of `step`.
fn flip_design<K>(info: &'static DesignInfo, step: usize, found: &mut Found)
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
            let flipped = subject.flip_all(&name, step);
            println!("{name}: {flipped}");
            let row = Row {
                design: info.name.to_owned(),
                data: K::NAME.to_owned(),
            };
            found.entry(row).or_default()[state].extend(flipped.silent());
        }
    }
}

/// Flips one bit of `step` in every layout. `BRISTLECONE_FLIPS` names a design to do alone.
fn flip_designs(step: usize) -> (Found, bool) {
    damage_is_expected::here();
    let chosen = std::env::var("BRISTLECONE_FLIPS").ok();
    let mut found = Found::new();
    for info in DESIGNS {
        if chosen.as_ref().is_none_or(|name| name == info.name) {
            flip_design::<u64>(info, step, &mut found);
            flip_design::<[u8]>(info, step, &mut found);
            flip_design::<u128>(info, step, &mut found);
        }
    }
    (found, chosen.is_none())
}

/// Compares what was found with the table.
fn is_as_documented((found, all): (Found, bool)) {
    let documented = table::read();
    let there: Vec<&Row> = found.keys().collect();
    let told: Vec<&Row> = documented.keys().filter(|row| all || there.contains(row)).collect();
    assert_eq!(there, told, "the rows of the table");
    let differs = found.iter().filter(|(row, silent)| documented[*row] != **silent);
    let differs: Vec<String> = differs.map(|(row, silent)| table::line(row, silent)).collect();
    assert!(
        differs.is_empty(),
        "what is silent is not what docs/research.md says; it would be:\n{}",
        differs.join("\n")
    );
}

#[test]
fn silent_flips_are_those_of_the_table() {
    // Not a divisor of anything, so that all bits of words have their turn.
    is_as_documented(flip_designs(61));
}

#[test]
#[ignore = "every bit of every layout; CI_FULL runs it"]
fn every_silent_flip_is_one_of_the_table() {
    is_as_documented(flip_designs(1));
}
