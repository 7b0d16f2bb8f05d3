//! The parts of a persistent tree's insertion: the tree, its logging, flushes and fences
//! (UCSC-CRSS-20-01, section 4.2, figure 8).
//!
//! A part is the time saved without it: first without fences, then without flushes too, then
//! without everything that the volatile tree does not do.

use super::gap::{BYTES, FAIR, LEAF, PERSISTENT, PLAIN, WAL, device, grown_note, insertions, keys};
use super::tree::Design;
use super::trial::{Trial, measure};
use super::{Claim, Entry, Expect, FigureError, Findings, On, Panel, Setting, papers};
use crate::model::Persistence;
use bristlecone_designs::Fill;

pub(super) const ENTRY: Entry = Entry {
    name: "gap-fig8",
    title: "persistence cost decomposition: tree, WAL, fences, flushes",
    paper: papers::GAP,
    place: "section 4.2, figure 8",
    on: &[On::Model],
    run,
};

/// A persistent tree, and the volatile tree without its crash consistency.
const TREES: [(Design, Design); 3] = [(WAL, PLAIN), (FAIR, PLAIN), (PERSISTENT, LEAF)];
const LOGGED: usize = 0;
const FAST: usize = 1;
const BITMAP: usize = 2;
const THREADS: usize = 4;

/// Nanoseconds of an insertion, by part.
struct Parts {
    tree: f64,
    logging: f64,
    fences: f64,
    flushes: f64,
}

fn run(setting: &mut Setting<'_>) -> Result<Findings, FigureError> {
    let keys = keys(setting);
    let device = device("optane", keys)?;
    let trial = |design: Design, persistence| Trial {
        persistence,
        ..Trial::new(
            design.sized(BYTES),
            &device,
            keys,
            Fill::USUAL,
            &insertions(keys),
        )
        .wide()
        .threaded(THREADS)
    };
    let groups = TREES.map(|(design, volatile)| {
        vec![
            trial(design, Persistence::Kept),
            trial(design, Persistence::Unfenced),
            trial(design, Persistence::None),
            trial(volatile, Persistence::None),
        ]
    });
    let outcomes = measure(setting, "inserting", &groups)?;
    let parts = |trials: &Vec<Vec<super::trial::Outcome>>| {
        let [kept, unfenced, unflushed, volatile] = [0, 1, 2, 3].map(|trial| trials[trial][1].ns());
        // A part that costs nothing may come out negative, since waits elsewhere change too.
        let part = |with: f64, without: f64| (with - without).max(0.0);
        Parts {
            tree: volatile,
            logging: part(unflushed, volatile),
            flushes: part(unfenced, unflushed),
            fences: part(kept, unfenced),
        }
    };
    let parts: Vec<Parts> = outcomes.iter().map(parts).collect();
    let of = |of: fn(&Parts) -> f64| parts.iter().map(of).collect::<Vec<f64>>();
    let names = TREES.map(|(design, _)| design.name);
    let panel = Panel::bars("4 threads", "", "ns an insertion", names)
        .with("tree", of(|p| p.tree))
        .with("WAL and other software", of(|p| p.logging))
        .with("fences", of(|p| p.fences))
        .with("flushes", of(|p| p.flushes));
    let persisting = |tree: usize| parts[tree].fences + parts[tree].flushes;
    Ok(Findings {
        claims: vec![
            Claim::new(
                "btree-WAL: software over persisting",
                0.82,
                parts[LOGGED].logging / persisting(LOGGED),
                Expect::number(0.82),
            )
            .note("the paper: 0.9 s of software, 1.1 s for persisting data"),
            Claim::new(
                "software, persistent unsorted over btree-WAL",
                0.33,
                parts[BITMAP].logging / parts[LOGGED].logging.max(1.0),
                Expect::number(0.33).within(0.1).less_is_better(),
            ),
            Claim::new(
                "flushes and fences, persistent unsorted over FAST/FAIR",
                1.7,
                persisting(BITMAP) / persisting(FAST),
                Expect::ratio(1.7),
            ),
            Claim::new(
                "flushes and fences, btree-WAL over persistent unsorted",
                "close to that of persistent unsorted",
                persisting(LOGGED) / persisting(BITMAP),
                Expect::alike(),
            ),
        ],
        panels: vec![panel],
        notes: vec![
            grown_note(keys),
            "leaves of 512 bytes; the second of two such phases; a part is what leaving it out saves: fences, then \
             flushes, then all that the volatile tree does not do"
                .to_owned(),
        ],
    })
}
