//! The journal and the store on a simulated disk: power cuts at every event, syncs that fail,
//! mutants of every sync.

use bristlecone_crash::disk::failing::fail_sync;
use bristlecone_crash::disk::mutants::{killed, mutants_of};
use bristlecone_crash::disk::{DiskOptions, DiskReport, explore_disk, record_disk, subjects};

fn options(disks: usize, nested_every: u64) -> DiskOptions {
    DiskOptions {
        seed: 1,
        disks,
        nested_every,
        workers: 2,
        deadline: None,
        stop_at_first: false,
    }
}

#[test]
fn nothing_that_was_acknowledged_is_lost_by_a_cut() {
    for subject in subjects() {
        let mut whole = DiskReport::default();
        for seed in 0..6 {
            let recording = record_disk(&*subject, seed).unwrap();
            let report = explore_disk(&*subject, &recording, None, &options(3, 8));
            whole.add(report);
        }
        let name = subject.name();
        eprintln!(
            "{name}: {} events, {} disks, {} nested",
            whole.events, whole.disks, whole.nested
        );
        for found in &whole.found {
            eprintln!(
                "{name}, seed {}, {:?}: {}\n{}",
                found.seed, found.events, found.fault, found.cut
            );
        }
        assert_eq!(whole.wrong, 0);
    }
}

#[test]
fn nothing_that_was_acknowledged_is_lost_when_syncs_fail() {
    for subject in subjects() {
        let mut runs = 0;
        for seed in 0..12 {
            let mut sync = 1;
            loop {
                match fail_sync(&*subject, seed, sync) {
                    Ok(true) => runs += 1,
                    Ok(false) => break,
                    Err(found) => panic!("{}: {found:?}", subject.name()),
                }
                sync += 1 + sync / 6;
            }
        }
        eprintln!("{}: {runs} runs", subject.name());
    }
}

#[test]
fn every_sync_is_missed() {
    for subject in subjects() {
        let recordings: Vec<_> = (0..10)
            .map(|seed| record_disk(&*subject, seed).unwrap())
            .collect();
        let mutants: std::collections::BTreeSet<_> = recordings
            .iter()
            .flat_map(|r| mutants_of(r.events()))
            .collect();
        for mutant in mutants {
            let t = std::time::Instant::now();
            let k = killed(&*subject, &recordings, &mutant, &options(8, 0));
            eprintln!("{} {mutant}: {:?} {:?}", subject.name(), k, t.elapsed());
        }
    }
}
