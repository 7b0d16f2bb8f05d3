//! Faults planted in designs and the pool: each changes the stores of a run, and the explorer finds
//! each.

use bristlecone_crash::concurrent::{self, ConcurrentOptions};
use bristlecone_crash::explore::{Options, explore};
use bristlecone_crash::record::{Mutation, record};
use bristlecone_crash::subject::FaultKind;
use bristlecone_crash::subjects::named;
use bristlecone_crash::subjects::planted::{PLANTED, Planted};
use bristlecone_crash::workload::Workload;
use bristlecone_pmem::media::sim::EventKind;
use std::collections::BTreeMap;

/// Images of a workload: each fault has shown by then.
const MAX_IMAGES: u64 = if cfg!(feature = "thorough") {
    30_000
} else {
    10_000
};

fn mutation(plant: &Planted) -> Mutation {
    Mutation {
        planted: Some(plant.name),
        ..Mutation::default()
    }
}

/// Returns the places of a trace's stores, flushes and fences. Values are left out, since they
/// differ from run to run (the pool's UUID).
fn places(plant: &Planted, mutation: &Mutation, seed: u64) -> Vec<String> {
    let subject = named(plant.subject).unwrap_or_else(|| panic!("{plant:?}"));
    let workload = Workload::generate(plant.workload, 30, seed, subject.as_ref());
    let recording = match record(subject.as_ref(), &workload, mutation) {
        Ok(recording) => recording,
        // The fault shows before any crash.
        Err(fault) if mutation.planted.is_some() => return vec![fault.to_string()],
        Err(fault) => panic!("{}: {fault}", plant.name),
    };
    let place = |kind| match kind {
        EventKind::Store { at, .. } => format!("store {at}"),
        other => format!("{other:?}"),
    };
    recording
        .events
        .iter()
        .map(|event| place(event.kind))
        .collect()
}

#[test]
fn names_are_distinct_and_plants_change_the_trace() {
    for (i, plant) in PLANTED.iter().enumerate() {
        assert!(
            PLANTED[..i].iter().all(|other| other.name != plant.name),
            "{}",
            plant.name
        );
        // These faults are in recovery, in stored values, or in operations after a recovery.
        let same_places = [
            "clustered-born-settled",
            "clustered-born-cleared",
            "clustered-void-kept",
            "clustered-dead-unwiped",
            "clustered-session-forgotten",
            "clustered-outer-uncleared",
            "clustered-outer-unchecked",
            "clustered-outer-undropped",
            "pool-unowned-kept",
            "pool-kill-forgotten",
            "pool-closed-unkept",
            "fastfair-duplicate-kept",
            "lstree-replay-unordered",
            "lstree-sum-of-a-line",
            "lstree-salt-of-the-tree",
            "lstree-forget-early",
            "pmwcas-first-unused",
            "pmwcas-attempt-kept",
            "bztree-no-help",
            "bztree-frozen-refused",
        ];
        if same_places.contains(&plant.name) || plant.threads > 1 {
            continue;
        }
        let differs = (0..6).any(|seed| {
            places(plant, &mutation(plant), seed) != places(plant, &Mutation::default(), seed)
        });
        assert!(differs, "{} changes nothing", plant.name);
    }
}

/// Returns what is wrong with the report of a planted fault, if anything.
fn wrong(plant: &Planted, max_images: u64) -> Option<String> {
    let subject = named(plant.subject).unwrap_or_else(|| panic!("{plant:?}"));
    let mut found: BTreeMap<FaultKind, String> = BTreeMap::new();
    for seed in 0..6 {
        let workload = Workload::generate(plant.workload, 30, seed, subject.as_ref());
        let recording = match record(subject.as_ref(), &workload, &mutation(plant)) {
            Ok(recording) => recording,
            Err(fault) => {
                found.insert(fault.kind, format!("{seed}: {fault} (without a crash)"));
                break;
            }
        };
        let options = Options {
            mutation: mutation(plant),
            nested: plant.nested,
            kills: plant.kills.into(),
            bound: 100,
            samples: 8,
            max_images,
            ..Options::new(plant.model)
        };
        for violation in explore(subject.as_ref(), &recording, &options, &|_| ()).found {
            let what = format!("{seed}: {} ({})", violation.fault, violation.last_site);
            found.entry(violation.fault.kind).or_insert(what);
        }
        if !found.is_empty() {
            break;
        }
    }
    println!("{}: {found:?}", plant.name);
    let other = found.is_empty() || found.keys().any(|kind| !plant.kinds.contains(kind));
    other.then(|| format!("{}: {found:?}, expected {:?}", plant.name, plant.kinds))
}

#[test]
fn each_planted_fault_is_found_and_named() {
    all_are_found_and_named(MAX_IMAGES);
}

#[test]
#[ignore = "four minutes; CI_FULL runs it"]
fn each_planted_fault_is_found_and_nothing_else() {
    all_are_found_and_named(u64::MAX);
}

/// Tries two faults at a time.
fn all_are_found_and_named(max_images: u64) {
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || {
                let all = PLANTED.iter().filter(|plant| plant.threads == 1);
                let these = all.skip(half).step_by(2);
                let all: Vec<String> = these.filter_map(|plant| wrong(plant, max_images)).collect();
                assert!(all.is_empty(), "{}", all.join("\n"));
            });
        }
    });
}

/// Schedules find the faults that take threads to show.
#[test]
fn each_fault_among_threads_is_found_and_named() {
    for plant in PLANTED.iter().filter(|plant| plant.threads > 1) {
        let subject = named(plant.subject).unwrap_or_else(|| panic!("{plant:?}"));
        let options = ConcurrentOptions {
            model: plant.model,
            threads: plant.threads.into(),
            schedules: 20_000,
            planted: Some(plant.name),
            stop_at_first: true,
            ..ConcurrentOptions::default()
        };
        let report = concurrent::explore(subject.as_ref(), &options, &mut |_| {});
        let found = report.violations.first();
        let found = found.unwrap_or_else(|| panic!("{}: not found", plant.name));
        println!("{}, schedule {}: {found}", plant.name, found.schedule);
        assert!(
            plant.kinds.contains(&found.fault.kind),
            "{}: {found}",
            plant.name
        );
    }
}
