//! Which files lead to a moment, of archives that are made up.

use super::*;
use crate::archive::UnreadableFile;
use crate::archive::format::{Change, Token, Until as End, Uuid};
use crate::archive::write::{ArchiveWriter, Directory};
use std::path::Path;

/// Its length in bytes says which one it is.
fn file(number: u32, kind: FileKind, (from, below): (u64, u64), begun: u64) -> ArchiveFile {
    ArchiveFile {
        path: format!("file {number}").into(),
        number,
        kind,
        from,
        below,
        begun,
        until: begun,
        entries: 1,
        bytes: 1 << number,
        damage: None,
        end: End {
            below,
            token: Token {
                sequence: number.into(),
                token: 1,
            },
            ..End::default()
        },
        time: below,
        was_below: below,
    }
}

fn full(number: u32, below: u64, begun: u64) -> ArchiveFile {
    file(number, FileKind::FullState, (0, below), begun)
}

fn incremental(number: u32, stamps: (u64, u64), begun: u64) -> ArchiveFile {
    file(number, FileKind::IncrementalState, stamps, begun)
}

fn commits(number: u32, stamps: (u64, u64), (begun, until): (u64, u64)) -> ArchiveFile {
    ArchiveFile {
        until,
        ..file(number, FileKind::Commits, stamps, begun)
    }
}

fn damaged(file: ArchiveFile, was_below: u64) -> ArchiveFile {
    ArchiveFile {
        damage: Some((99, "torn".into())),
        was_below,
        ..file
    }
}

fn archive(files: impl IntoIterator<Item = ArchiveFile>) -> Archive {
    Archive {
        dir: "archive".into(),
        files: files.into_iter().collect(),
        unreadable: Vec::new(),
        uuid: [7; 16],
        number: 1,
        last_number: 99,
    }
}

/// A full state, and commits from there.
fn in_order() -> [ArchiveFile; 5] {
    [
        full(1, 10, 100),
        commits(2, (10, 20), (100, 200)),
        commits(3, (20, 30), (200, 300)),
        commits(4, (30, 40), (300, 400)),
        commits(5, (40, 50), (400, 500)),
    ]
}

fn unreadable(number: u32, is_empty: bool) -> UnreadableFile {
    UnreadableFile {
        path: format!("unreadable {number}").into(),
        number,
        what: "its head is damaged".into(),
        is_empty,
    }
}

/// The files of a plan, with the stamps from where on they count, and up to where it leads.
fn planned(archive: &Archive, until: Until) -> (Vec<(u32, u64)>, u64) {
    let plan = archive.plan(until).unwrap();
    let bytes: u64 = plan.steps.iter().map(|step| step.file.bytes).sum();
    assert_eq!(plan.bytes, bytes);
    let steps = plan.steps.iter();
    let steps = steps.map(|step| (step.file.number, step.from));
    (steps.collect(), plan.below)
}

/// Why there is no plan, and the last time stamp before it.
fn refused(archive: &Archive, until: Until) -> (String, Option<u64>) {
    match archive.plan(until) {
        Err(ArchiveError::Unreachable { what, reached }) => (what, reached),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn assert_refused(archive: &Archive, until: Until, why: &str, reached: Option<u64>) {
    let (what, found) = refused(archive, until);
    assert!(what.contains(why), "{what}");
    assert_eq!(found, reached, "{what}");
}

#[test]
fn a_full_state_and_the_commits_behind_it_lead_to_each_time_stamp() {
    let there = archive(in_order());
    let all = vec![(1, 0), (2, 10), (3, 20), (4, 30), (5, 40)];
    assert_eq!(planned(&there, Until::End), (all.clone(), 50));
    assert_eq!(there.plan(Until::End).unwrap().at, 500);
    let last = Until::Timestamp(49);
    assert_eq!(planned(&there, last), (all, 50));
    for (ts, files) in [(9, 1), (10, 2), (15, 2), (19, 2), (20, 3)] {
        let (steps, below) = planned(&there, Until::Timestamp(ts));
        assert_eq!((steps.len(), below), (files, ts + 1), "{ts}");
    }
    assert_refused(
        &there,
        Until::Timestamp(8),
        "no full state is complete and early enough",
        None,
    );
    for ts in [50, u64::MAX] {
        let why = "the archive ends with time stamp 49";
        assert_refused(&there, Until::Timestamp(ts), why, Some(49));
    }
}

/// Commits of a time may be in files that were begun soon after it, and are in none after those.
#[test]
fn a_time_is_looked_for_in_two_later_files() {
    let there = archive(in_order());
    let steps = |ms| {
        let (steps, _) = planned(&there, Until::Time(ms));
        steps.len()
    };
    assert_eq!(steps(100), 4);
    assert_eq!(steps(199), 4);
    assert_eq!(steps(200), 5);
    assert_eq!(steps(9_000), 5);
    let why = "no full state is complete and early enough";
    assert_refused(&there, Until::Time(99), why, None);
    // Also if the clock went back a little while they were written.
    let mut files = in_order();
    for file in &mut files[1..4] {
        file.until = 100;
    }
    assert_eq!(planned(&archive(files), Until::Time(100)).1, 40);
}

#[test]
fn the_latest_full_state_is_the_beginning() {
    let mut files = in_order().to_vec();
    files.push(full(6, 35, 350));
    let there = archive(files);
    let found = planned(&there, Until::End);
    assert_eq!(found, (vec![(6, 0), (4, 35), (5, 40)], 50));
    let found = planned(&there, Until::Timestamp(33));
    assert_eq!(found.0, [(1, 0), (2, 10), (3, 20), (4, 30)]);
    let found = planned(&there, Until::Time(349));
    assert_eq!(found.0[0], (1, 0));
    let found = planned(&there, Until::Time(350));
    assert_eq!(found.0[0], (6, 0));
}

/// Commits have more moments than a state, and lead further where both go on.
#[test]
fn an_incremental_state_goes_on_where_no_commits_do() {
    let beginning = [full(1, 10, 100), commits(2, (10, 20), (100, 200))];
    let mut files = beginning.to_vec();
    files.push(incremental(3, (15, 40), 300));
    files.push(commits(4, (40, 50), (300, 400)));
    let there = archive(files.clone());
    let found = planned(&there, Until::End);
    assert_eq!(found, (vec![(1, 0), (2, 10), (3, 20), (4, 40)], 50));
    let found = planned(&there, Until::Timestamp(39));
    assert_eq!(found, (vec![(1, 0), (2, 10), (3, 20)], 40));
    // It has nothing of what is between.
    let why = "nothing leads on from time stamp 19 to file 3";
    assert_refused(&there, Until::Timestamp(30), why, Some(19));

    files.push(commits(5, (20, 45), (200, 300)));
    let there = archive(files);
    let found = planned(&there, Until::End);
    assert_eq!(found, (vec![(1, 0), (2, 10), (5, 20), (4, 45)], 50));
    // Where the state begins, nothing leads to.
    let there = archive([full(1, 10, 100), incremental(2, (11, 40), 300)]);
    let why = "nothing leads on from time stamp 9 to file 2";
    assert_refused(&there, Until::End, why, Some(9));
}

#[test]
fn a_gap_ends_what_can_be_had() {
    let before = [full(1, 10, 100), commits(2, (10, 20), (100, 200))];
    let with = |last: ArchiveFile| archive(before.iter().cloned().chain([last]));
    let there = with(commits(3, (25, 35), (250, 300)));
    let why = "nothing leads on from time stamp 19 to file 3";
    assert_refused(&there, Until::End, why, Some(19));
    assert_refused(&there, Until::Timestamp(30), why, Some(19));
    assert_eq!(planned(&there, Until::Timestamp(19)).1, 20);
    // That does not tell that there was something up to there.
    let why = "the archive ends with time stamp 19";
    assert_refused(&there, Until::Timestamp(24), why, Some(19));
    // What comes later is later than that.
    assert_eq!(planned(&there, Until::Time(199)).1, 20);
    let why = "nothing leads on";
    assert_refused(&there, Until::Time(200), why, Some(19));
    // It has no commits, and shows that there were some before it.
    let there = with(commits(3, (25, 25), (250, 250)));
    let why = "nothing leads on from time stamp 19 to file 3";
    assert_refused(&there, Until::End, why, Some(19));
    let there = with(commits(3, (20, 20), (250, 250)));
    assert_eq!(planned(&there, Until::End).1, 20);
}

#[test]
fn a_state_that_is_not_complete_leads_nowhere() {
    let there = archive([full(1, 0, 100), commits(2, (10, 20), (100, 200))]);
    let why = "file 1 is not complete";
    assert_refused(&there, Until::End, why, None);
    assert!(there.reached().is_none());
    let before = [full(1, 10, 100), commits(2, (10, 20), (100, 200))];
    let with = |last: ArchiveFile| archive(before.iter().cloned().chain([last]));
    let there = with(incremental(3, (15, 0), 300));
    assert_eq!(planned(&there, Until::End).1, 20);
    let why = "file 3 is not complete";
    assert_refused(&there, Until::Timestamp(30), why, Some(19));
    // That one would not have helped.
    let there = with(incremental(3, (25, 0), 300));
    let why = "the archive ends with time stamp 19";
    assert_refused(&there, Until::Timestamp(30), why, Some(19));
}

#[test]
fn files_that_cannot_be_read_may_have_had_more() {
    let with = |file: UnreadableFile| Archive {
        unreadable: vec![file],
        ..archive([
            full(1, 10, 100),
            commits(3, (10, 20), (100, 200)),
            commits(5, (20, 30), (200, 300)),
            commits(7, (30, 30), (300, 300)),
        ])
    };
    // Others have all that it had.
    for number in [2, 4, 6] {
        let there = with(unreadable(number, false));
        assert_eq!(planned(&there, Until::End).1, 30, "{number}");
    }
    let there = with(unreadable(8, false));
    let why = "unreadable 8: its head is damaged";
    assert_refused(&there, Until::End, why, Some(29));
    assert_eq!(planned(&there, Until::Time(299)).1, 30);
    assert_eq!(planned(&there, Until::Timestamp(29)).1, 30);
    // It had nothing.
    let there = with(unreadable(8, true));
    assert_eq!(planned(&there, Until::End).1, 30);
    let why = "the archive ends with time stamp 29";
    assert_refused(&there, Until::Timestamp(40), why, Some(29));
}

#[test]
fn damage_at_the_end_is_told_and_damage_that_another_file_makes_up_for_is_not() {
    let beginning = || full(1, 10, 100);
    let torn = |was_below| damaged(commits(2, (10, 20), (100, 200)), was_below);
    let why = "file 2 is damaged, 99 bytes in (torn)";
    for was_below in [30, u64::MAX] {
        let there = archive([beginning(), torn(was_below)]);
        assert_refused(&there, Until::End, why, Some(19));
        assert_refused(&there, Until::Timestamp(25), why, Some(19));
        assert_eq!(planned(&there, Until::Timestamp(19)).1, 20);
        // The next file goes on where it was whole.
        let next = commits(3, (20, 40), (200, 400));
        let there = archive([beginning(), torn(was_below), next]);
        assert_eq!(planned(&there, Until::End).1, 40, "{was_below}");
    }
    // It had no more than what can be read.
    let there = archive([beginning(), torn(20)]);
    assert_eq!(planned(&there, Until::End).1, 20);

    let commits = || commits(2, (10, 20), (100, 200));
    for (time, is_lost) in [(15, false), (20, false), (21, true)] {
        let mut state = damaged(full(3, 0, 250), 0);
        state.time = time;
        let there = archive([beginning(), commits(), state]);
        if is_lost {
            let why = "file 3 is damaged, 99 bytes in (torn)";
            assert_refused(&there, Until::End, why, Some(19));
        } else {
            assert_eq!(planned(&there, Until::End).1, 20, "{time}");
        }
    }
}

#[test]
fn a_time_is_ambiguous_between_beginnings_that_went_back() {
    let begun = |times: &[u64]| {
        let files = (2..).zip(times).map(|(number, time)| {
            let from = u64::from(number) * 10 - 10;
            commits(number, (from, from + 10), (*time, *time))
        });
        archive(std::iter::once(full(1, 10, 100_000)).chain(files))
    };
    let there = begun(&[900_000, 110_000, 130_000]);
    let why = "the store's clock went back between the beginnings of file 2 and file 3;";
    for ms in [110_000, 200_000, 899_999] {
        assert_refused(&there, Until::Time(ms), why, None);
    }
    for ms in [109_999, 900_000] {
        planned(&there, Until::Time(ms));
    }
    assert_eq!(planned(&there, Until::End).1, 40);
    // A little is no matter.
    planned(&begun(&[120_000, 110_000]), Until::Time(115_000));
    let there = begun(&[120_001, 110_000]);
    assert_refused(&there, Until::Time(115_000), why, None);
    // The first of the latest beginnings before it.
    for between in [500_000, 900_000] {
        let there = begun(&[900_000, between, 110_000]);
        let why = "between the beginnings of file 2 and file 4;";
        assert_refused(&there, Until::Time(200_000), why, None);
    }
}

#[test]
fn an_archive_goes_on_from_its_last_mark() {
    let reached = |files: Vec<ArchiveFile>| {
        let end = archive(files).reached();
        end.map(|end| (end.token.sequence, end.below))
    };
    assert_eq!(reached(Vec::new()), None);
    assert_eq!(reached(vec![commits(1, (1, 10), (100, 200))]), None);
    let mut files = in_order().to_vec();
    assert_eq!(reached(files.clone()), Some((5, 50)));
    // The store was only closed again.
    files.push(commits(6, (50, 50), (500, 500)));
    assert_eq!(reached(files.clone()), Some((6, 50)));
    // A state of the same time adds nothing.
    files.push(incremental(7, (45, 50), 500));
    assert_eq!(reached(files.clone()), Some((6, 50)));
    files.push(incremental(8, (45, 60), 600));
    assert_eq!(reached(files.clone()), Some((8, 60)));
    // Nothing leads to that.
    files.push(commits(9, (61, 70), (600, 700)));
    files.push(incremental(10, (62, 80), 800));
    assert_eq!(reached(files), Some((8, 60)));
    // The full state is later than all.
    let mut files = in_order().to_vec();
    files.push(full(6, 55, 550));
    assert_eq!(reached(files.clone()), Some((6, 55)));
    // Another that is not complete is none.
    files.push(full(7, 0, 700));
    assert_eq!(reached(files), Some((6, 55)));
    // Two files of commits that end alike.
    let files = vec![
        full(1, 10, 100),
        commits(2, (10, 30), (100, 300)),
        commits(3, (20, 30), (200, 300)),
    ];
    assert_eq!(reached(files), Some((3, 30)));
}

/// An archive with a full state of time 10, and a file of commits up to 20.
fn written(dir: &Path) -> (Directory, ArchiveWriter) {
    let mut directory = Directory::open(dir, Uuid::default(), &|_| [0; 2]).unwrap();
    let mut state = directory.begin_state(None, (10, 100)).unwrap();
    state.mark(&end(10)).unwrap();
    let mut commits = directory.begin_commits(10, 100).unwrap();
    add(&mut commits, &[10, 14], 15);
    add(&mut commits, &[19], 20);
    (directory, commits)
}

fn end(below: u64) -> End {
    let token = Token {
        sequence: below,
        token: 1,
    };
    End {
        below,
        wall: 100 + below,
        token,
        ..End::default()
    }
}

/// Adds commits with these stamps, and a mark.
fn add(file: &mut ArchiveWriter, stamps: &[u64], below: u64) {
    let mut changes = Vec::new();
    for stamp in stamps {
        let change = Change {
            stamp: *stamp,
            wall: 1,
            key: b"key",
            value: Some(b"value"),
        };
        change.encode(&mut changes);
    }
    file.commits(&changes, stamps.len() as u64).unwrap();
    file.mark(&end(below)).unwrap();
}

/// Verifies the plan of the whole archive. Returns the progress that it reports, in bytes read of
/// all, and the time stamp below which its commits are.
fn verified(archive: &mut Archive) -> Result<(Vec<(u64, u64)>, u64), ArchiveError> {
    let mut told = Vec::new();
    let plan = archive.verified_plan(Until::End, &mut |read, of| told.push((read, of)))?;
    Ok((told, plan.below))
}

#[test]
fn each_file_of_a_plan_is_read_before_it_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    drop(written(dir.path()));
    let mut archive = Archive::open(dir.path()).unwrap();
    let all = archive.bytes();
    let (told, below) = verified(&mut archive).unwrap();
    assert_eq!(below, 20);
    assert!(told.is_sorted() && told.iter().all(|(_, of)| *of == 2 * all));
    assert_eq!(told.last(), Some(&(all, 2 * all)));
    // Once is enough.
    assert_eq!(verified(&mut archive).unwrap().1, 20);
}

#[test]
fn a_plan_is_made_anew_without_what_turns_out_to_be_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (mut directory, commits) = written(dir.path());
    drop(commits);
    let path = dir.path().join("00000002.commits");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let mut archive = Archive::open(dir.path()).unwrap();
    assert_eq!(archive.plan(Until::End).unwrap().below, 20);
    let e = verified(&mut archive).unwrap_err();
    let ArchiveError::Unreachable { what, reached } = e else {
        panic!("{e}");
    };
    assert!(what.contains("00000002.commits is damaged"), "{what}");
    assert_eq!(reached, Some(9));
    // Another file has them, up to an earlier commit.
    let mut commits = directory.begin_commits(10, 200).unwrap();
    add(&mut commits, &[10, 14], 18);
    let mut archive = Archive::open(dir.path()).unwrap();
    assert_eq!(archive.plan(Until::End).unwrap().below, 20);
    let (told, below) = verified(&mut archive).unwrap();
    assert_eq!(below, 18);
    assert!(told.iter().all(|(read, of)| read <= of));
}

#[test]
fn what_is_written_meanwhile_is_in_the_plan() {
    let dir = tempfile::tempdir().unwrap();
    let (_directory, mut commits) = written(dir.path());
    let mut archive = Archive::open(dir.path()).unwrap();
    add(&mut commits, &[25], 30);
    assert_eq!(verified(&mut archive).unwrap().1, 30);
}
