//! The journal and the store on a simulated disk: power cuts at every event, syncs that fail,
//! mutants of every sync.

use bristlecone_crash::disk::failing::fail_sync;
use bristlecone_crash::disk::mutants::{Mutant, killed, mutants_of};
use bristlecone_crash::disk::{
    DiskOptions, DiskRecording, DiskReport, DiskSubject, explore_disk, record_disk, subjects,
};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

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

fn recorded(subject: &dyn DiskSubject, seeds: Range<u64>) -> Vec<DiskRecording> {
    let record = |seed| record_disk(subject, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    seeds.map(record).collect()
}

fn mutants(recordings: &[DiskRecording]) -> BTreeSet<Mutant> {
    let all = recordings.iter();
    all.flat_map(|recording| mutants_of(recording.events()))
        .collect()
}

#[test]
fn nothing_that_was_acknowledged_is_lost_by_a_cut() {
    for (subject, seeds) in subjects().iter().zip([0..8, 0..4]) {
        let mut whole = DiskReport::default();
        for recording in recorded(&**subject, seeds) {
            whole.add(explore_disk(&**subject, &recording, None, &options(2, 12)));
        }
        let name = subject.name();
        let found = whole.found.first();
        assert_eq!(whole.wrong, 0, "{name}: {found:?}");
        assert!(
            whole.disks > 1_000 && whole.nested > 500,
            "{name}: {whole:?}"
        );
    }
}

#[test]
fn nothing_that_was_acknowledged_is_lost_when_syncs_fail() {
    for subject in subjects() {
        let mut runs = 0;
        for seed in 0..12 {
            let mut sync = 1;
            while fail_sync(&*subject, seed, sync)
                .unwrap_or_else(|found| panic!("{}: {found:?}", subject.name()))
            {
                runs += 1;
                sync += 1 + sync / 6;
            }
        }
        assert!(runs > 100, "{}: {runs}", subject.name());
    }
}

/// The syncs of frames and pages. A header write is missed in few states only.
#[test]
fn a_sync_that_is_left_out_is_found() {
    let subject = &*subjects()[0];
    let recordings = recorded(subject, 4..8);
    let of_header = |mutant: &Mutant| {
        let mut all = recordings.iter();
        all.any(|recording| mutant.is_of_header(recording.events()))
    };
    let (mut found, mut missed) = (0, Vec::new());
    for mutant in mutants(&recordings) {
        if of_header(&mutant) || !mutant.to_string().starts_with("commit.rs") {
            continue;
        }
        match killed(subject, &recordings, &mutant, &options(4, 0)) {
            Some(_) => found += 1,
            None => missed.push(mutant.to_string()),
        }
    }
    assert!(found >= 4 && missed.is_empty(), "{found} found, {missed:?}");
}

/// The reason that the code gives for the sync or write that a mutant leaves out, if it is before
/// that in its file.
fn reason(mutant: &Mutant) -> Option<String> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let source = std::fs::read_to_string(format!("{root}{}", mutant.site.file())).unwrap();
    let before: Vec<&str> = source.lines().take(mutant.site.line() as usize).collect();
    let reason = |line: &&str| Some(line.split_once("// PERSIST: ")?.1.to_owned());
    before.iter().rev().find_map(reason)
}

/// The syncs and header writes that no cut needs, by their reasons in the code:
/// - a longer journal's length: frames in it are synced with it, and the header's count may be
///   ahead of it; so a lack of space shows early;
/// - each of the two headers that have the count: one is enough, unless the other is damaged while
///   frames are in the new segments and no checkpoint has been made since;
/// - the last header of a session: what it leaves out has been checkpointed;
/// - the headers of a journal that is cut back: the old one leads to the same frames, until the
///   journal comes round to the segment where it was, which no recording does without a checkpoint;
/// - holes: the store relies on no zeros there. The medium promises them, and its own tests cut the
///   power there;
/// - the headers of a later session: no recording writes in it after a kill. The medium's own tests
///   damage one of them then.
///
/// To try these takes an hour, in which every cut of every recording is right.
const NOT_NEEDED: [&str; 6] = [
    "the file's length and space, before a frame is put there.",
    "the count, before a frame is put in the new segments: recovery looks no further.",
    "the new length, before what is beyond it is cut off. The other slot keeps the",
    "both slots, before the segments are cut off that the old one counts, and before",
    "the hole, before anything relies on the zeros.",
    "the new epoch in both slots, before a frame carries it: a slot that is damaged",
];

#[test]
#[ignore = "takes minutes; CI_FULL runs it"]
fn every_sync_that_is_left_out_is_found() {
    let all = subjects();
    let recordings: Vec<_> = (all.iter().zip([0..24, 0..24]))
        .map(|(subject, seeds)| recorded(&**subject, seeds))
        .collect();
    let every: BTreeSet<Mutant> = recordings.iter().flat_map(|of| mutants(of)).collect();
    let (spare, needed): (Vec<_>, Vec<_>) = every
        .iter()
        .map(|mutant| (mutant, reason(mutant)))
        .partition(|(_, reason)| {
            let reason = reason.as_deref();
            reason.is_some_and(|reason| NOT_NEEDED.contains(&reason))
        });
    let mut missed = Vec::new();
    for (mutant, reason) in &needed {
        let begun = Instant::now();
        let mut tries = all.iter().zip(&recordings);
        let found =
            tries.any(|(subject, of)| killed(&**subject, of, mutant, &options(12, 0)).is_some());
        eprintln!("{mutant}: {found}, {:.0?}", begun.elapsed());
        if !found {
            missed.push(format!("{mutant}: {reason:?}"));
        }
    }
    assert_eq!(missed, Vec::<String>::new());
    assert!(needed.len() > 12, "{needed:?}");
    // A reason that the code no longer gives would let a sync go untested that it gives for.
    let listed: BTreeSet<_> = spare.iter().map(|(_, reason)| reason).collect();
    assert_eq!(listed.len(), NOT_NEEDED.len(), "{listed:?}");
}
