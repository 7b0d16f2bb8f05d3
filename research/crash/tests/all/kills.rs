//! Kills: the process dies, the next one goes on from what it left in the caches, and only then the
//! power is cut.

use crate::common::SHARE;
use bristlecone_crash::explore::{Options, Totals, explore, replay};
use bristlecone_crash::record::{Mutation, record};
use bristlecone_crash::subject::Subject;
use bristlecone_crash::subjects::named;
use bristlecone_crash::workload::{Kind, Workload};
use bristlecone_pmem::media::sim::{Model, Site};

/// Models whose caches a power cut empties.
const CACHED: [Model; 2] = [Model::X86Tso, Model::ArmV8];

/// Operations of a workload.
const OPS: usize = 24;

/// Explores kills in a workload (its kind, operations and seed), with few images of the crashes
/// beside them. Each violation must be one again when it is replayed.
fn killed(
    subject: &dyn Subject,
    (kind, ops, seed): (Kind, usize, u64),
    model: Model,
    kills: u64,
    mutation: &Mutation,
) -> Totals {
    let workload = Workload::generate(kind, ops, seed, subject);
    let recording = record(subject, &workload, mutation)
        .unwrap_or_else(|fault| panic!("{}: {fault}", subject.name()));
    let options = Options {
        kills,
        bound: 2,
        samples: 0,
        thorough_every: u64::MAX,
        mutation: mutation.clone(),
        ..Options::new(model)
    };
    let totals = explore(subject, &recording, &options, &|_| ());
    for found in totals.found.iter().filter(|found| found.point.killed) {
        let (point, nested) = (&found.point, found.nested.as_ref());
        let again = replay(subject, &recording, &options, point, nested).expect("the image");
        assert_eq!(
            again.map(|again| again.fault),
            Some(found.fault.clone()),
            "{}",
            subject.name()
        );
    }
    totals
}

/// Explores kills in workloads of several kinds. Returns how many there were.
fn nothing_is_lost(name: &str, kinds: &[Kind], kills: u64) -> u64 {
    let subject = named(name).unwrap_or_else(|| panic!("no subject {name}"));
    let mut tried = 0;
    for (model, kind) in CACHED
        .iter()
        .flat_map(|m| kinds.iter().map(move |k| (*m, *k)))
    {
        let totals = killed(
            &*subject,
            (kind, OPS, 1),
            model,
            kills,
            &Mutation::default(),
        );
        assert_eq!(totals.violations, 0, "{name} {kind}: {:?}", totals.found);
        assert!(totals.killed_images >= totals.kills, "{totals:?}");
        let Totals { kills, images, .. } = totals;
        eprintln!(
            "{name}, {}, {kind}: {kills} kills, {images} images",
            model.name()
        );
        tried += totals.kills;
    }
    tried
}

#[test]
fn what_an_opening_after_a_kill_shows_outlives_the_next_power_cut() {
    let kinds = [Kind::Mixed, Kind::Split, Kind::Upkeep];
    for (name, one_in) in [
        ("lbtree-256-u64", 2),
        ("clustered-1024-u64", 16 * SHARE),
        ("clustered-1024-bytes", 16 * SHARE),
    ] {
        let tried = nothing_is_lost(name, &kinds, one_in);
        assert!(tried > 50, "{name}: {tried} kills");
    }
    let kinds = [Kind::Drain, Kind::Upkeep, Kind::Bulk];
    for (name, one_in) in [
        ("pool", 2),
        // An opening after a kill writes all regions back, line by line.
        ("pool-regions", 2 * SHARE * SHARE),
        ("reference-array", 2),
        ("reference-blocks", 2),
    ] {
        let tried = nothing_is_lost(name, &kinds, one_in);
        assert!(tried > 50, "{name}: {tried} kills");
    }
}

#[cfg(feature = "unproven")]
#[test]
fn what_a_store_shows_after_a_kill_outlives_the_next_power_cut() {
    for name in ["store-lbtree-256", "store-clustered-1024"] {
        let tried = nothing_is_lost(name, &[Kind::Mixed], 16);
        assert!(tried > 20, "{name}: {tried} kills");
    }
}

/// A kill in the last step of a clean close, or of a compaction, leaves a superblock that is whole
/// in the caches only. The next opening must not write the other copy before this one is durable,
/// nor cut the file to a length that a power cut takes back.
#[test]
fn a_kill_while_the_superblock_is_written_leaves_a_whole_one() {
    for (name, kind, seed) in [("pool", Kind::Upkeep, 5), ("pool-regions", Kind::Bulk, 1)] {
        let subject = named(name).unwrap_or_else(|| panic!("no subject {name}"));
        let right = Mutation::default();
        let totals = killed(&*subject, (kind, 60, seed), Model::ArmV8, 4, &right);
        assert_eq!(totals.violations, 0, "{name}: {:?}", totals.found);
        assert!(totals.kills > 100, "{name}: {} kills", totals.kills);
    }
}

#[test]
fn where_caches_are_durable_a_kill_is_no_crash_of_its_own() {
    let subject = named("pool").expect("the pool");
    let totals = killed(
        &*subject,
        (Kind::Drain, OPS, 1),
        Model::Eadr,
        1,
        &Mutation::default(),
    );
    assert_eq!((totals.kills, totals.killed_images), (0, 0));
}

/// Without the write back, or its flush or its fence, what the next process has shown is lost. The
/// fence alone keeps the superblock: one copy is pending when the other is written.
#[test]
fn a_missing_write_back_is_found() {
    for (name, file) in [
        ("lbtree-256-u64", "pool/write_back.rs"),
        ("pool", "pool/write_back.rs"),
        ("reference-array", "reference/mod.rs"),
    ] {
        let subject = named(name).unwrap_or_else(|| panic!("no subject {name}"));
        let right = Mutation::default();
        let all = killed(&*subject, (Kind::Mixed, OPS, 1), Model::X86Tso, 4, &right);
        let sites = all.killed_sites.into_keys();
        let sites: Vec<Site> = sites.filter(|site| site.file.ends_with(file)).collect();
        assert_eq!(sites.len(), 2, "a flush and a fence: {sites:?}");
        for site in sites {
            let off = Mutation {
                off: vec![site],
                planted: None,
            };
            is_found(&*subject, &off, 1);
        }
    }
    for (name, one_in) in [
        ("lbtree-256-u64", 1),
        ("pool", 1),
        ("clustered-1024-u64", 4),
    ] {
        let subject = named(name).unwrap_or_else(|| panic!("no subject {name}"));
        let planted = Mutation {
            planted: Some("pool-kill-forgotten"),
            ..Mutation::default()
        };
        is_found(&*subject, &planted, one_in);
    }
}

/// Asserts that kills, and nothing else, show the mutation.
fn is_found(subject: &dyn Subject, mutation: &Mutation, kills: u64) {
    for model in CACHED {
        let what = format!("{}, {}: {mutation:?}", subject.name(), model.name());
        let found = [Kind::Mixed, Kind::Upkeep].into_iter().any(|kind| {
            let totals = killed(subject, (kind, OPS, 1), model, kills, mutation);
            for found in &totals.found {
                assert!(found.point.killed, "{what}: {found:?}");
            }
            totals.violations > 0
        });
        assert!(found, "{what}");
    }
}
