//! Kills: the process dies, the next one goes on from what it left in the caches, and only then the
//! power is cut.

use bristlecone_crash::explore::{Options, Totals, explore, replay};
use bristlecone_crash::record::{Mutation, record};
use bristlecone_crash::subject::Subject;
use bristlecone_crash::subjects::named;
use bristlecone_crash::workload::{Kind, Workload};
use bristlecone_pmem::media::sim::{Model, Site};

/// Models whose caches a power cut empties.
const CACHED: [Model; 2] = [Model::X86Tso, Model::ArmV8];

/// Explores kills, with few images of the crashes beside them.
fn killed(
    subject: &dyn Subject,
    kind: Kind,
    seed: u64,
    model: Model,
    kills: u64,
    mutation: &Mutation,
) -> Totals {
    let workload = Workload::generate(kind, 24, seed, subject);
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
        let totals = killed(&*subject, kind, 1, model, kills, &Mutation::default());
        assert_eq!(totals.violations, 0, "{name} {kind}: {:?}", totals.found);
        assert!(totals.killed_images >= totals.kills, "{totals:?}");
        tried += totals.kills;
    }
    tried
}

#[test]
fn what_an_opening_after_a_kill_shows_outlives_the_next_power_cut() {
    let kinds = [Kind::Mixed, Kind::Split, Kind::Upkeep];
    for name in [
        "lbtree-256-u64",
        "clustered-1024-u64",
        "clustered-1024-bytes",
    ] {
        let tried = nothing_is_lost(name, &kinds, 12);
        assert!(tried > 100, "{name}: {tried} kills");
    }
    let kinds = [Kind::Drain, Kind::Update, Kind::Upkeep];
    for name in [
        "pool",
        "pool-regions",
        "reference-array",
        "reference-blocks",
    ] {
        let tried = nothing_is_lost(name, &kinds, 2);
        assert!(tried > 100, "{name}: {tried} kills");
    }
}

#[cfg(feature = "unproven")]
#[test]
fn what_a_store_shows_after_a_kill_outlives_the_next_power_cut() {
    for name in ["store-lbtree-256", "store-clustered-1024"] {
        let tried = nothing_is_lost(name, &[Kind::Mixed, Kind::Upkeep], 24);
        assert!(tried > 50, "{name}: {tried} kills");
    }
}

#[test]
fn where_caches_are_durable_a_kill_is_no_crash_of_its_own() {
    let subject = named("pool").expect("the pool");
    let totals = killed(
        &*subject,
        Kind::Drain,
        1,
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
    let planted = Mutation {
        planted: Some("pool-kill-forgotten"),
        ..Mutation::default()
    };
    for (name, file) in [
        ("lbtree-256-u64", "pool/write_back.rs"),
        ("clustered-1024-u64", "pool/write_back.rs"),
        ("pool", "pool/write_back.rs"),
        ("reference-array", "reference/mod.rs"),
    ] {
        let subject = named(name).unwrap_or_else(|| panic!("no subject {name}"));
        let right = Mutation::default();
        let all = killed(&*subject, Kind::Mixed, 1, Model::X86Tso, 8, &right);
        let sites = all.killed_sites.into_keys();
        let sites: Vec<Site> = sites.filter(|site| site.file.ends_with(file)).collect();
        assert_eq!(sites.len(), 2, "a flush and a fence: {sites:?}");
        let off = sites.into_iter().map(|site| Mutation {
            off: vec![site],
            planted: None,
        });
        let forgotten = Some(planted.clone()).filter(|_| name != "reference-array");
        for (mutation, model) in off
            .chain(forgotten)
            .flat_map(|m| CACHED.map(|model| (m.clone(), model)))
        {
            let found = [Kind::Mixed, Kind::Upkeep].iter().any(|kind| {
                let totals = killed(&*subject, *kind, 1, model, 1, &mutation);
                for found in &totals.found {
                    assert!(found.point.killed, "{name}: {found:?}");
                    println!("{name} {} {kind}: {}", model.name(), found.fault);
                }
                totals.violations > 0
            });
            assert!(found, "{name} {}: {mutation:?}", model.name());
        }
    }
}
