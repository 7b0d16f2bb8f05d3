//! The disk that the journal's tests use: it loses, tears, counts and refuses what it says it does,
//! since a disk that kept too much would hide what the journal does wrong.

use bristlecone_pmem::media::journal::Storage;
use bristlecone_pmem::media::journal::fault::{Change, FaultDisk, What, Which};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SECTOR: usize = 512;
/// The operating system's number of an input/output error.
const EIO: Option<i32> = Some(5);

/// A disk whose pool file has so many durable zeros.
fn disk(seed: u64, bytes: u64) -> (FaultDisk, Arc<dyn Storage>) {
    let disk = FaultDisk::new(seed);
    let file = disk.file(Which::Pool);
    file.allocate(0, bytes).expect("allocates");
    file.sync().expect("syncs");
    (disk, file)
}

fn pool(disk: &FaultDisk) -> Vec<u8> {
    disk.bytes(Which::Pool)
}

fn text(result: io::Result<impl Sized>) -> String {
    result.err().map_or_else(String::new, |e| e.to_string())
}

fn is_full(result: &io::Result<impl Sized>) -> bool {
    matches!(result, Err(e) if e.kind() == ErrorKind::StorageFull)
}

#[test]
fn an_unsynced_write_is_kept_dropped_or_torn_at_sectors() {
    const SECTORS: usize = 16;
    let (mut kept, mut dropped, mut torn) = (0, 0, 0);
    for seed in 0..300 {
        let (disk, file) = disk(seed, 0);
        // From the middle of a sector to the middle of another.
        let (from, end) = (SECTOR / 2, SECTORS * SECTOR + 100);
        file.write_all(from as u64, &vec![7; end - from])
            .expect("writes");
        assert!(pool(&disk)[from..end].iter().all(|byte| *byte == 7));
        disk.cut_now();
        let mut bytes = pool(&disk.restart(1));
        assert!(bytes.len() <= end);
        bytes.resize(end, 0);
        assert!(bytes[..from].iter().all(|byte| *byte == 0));
        let mut parts = vec![&bytes[from..SECTOR]];
        parts.extend(bytes[SECTOR..].chunks(SECTOR));
        let whole = parts.iter().filter(|part| part.iter().all(|b| *b == 7));
        let whole = whole.count();
        let none = parts.iter().filter(|part| part.iter().all(|b| *b == 0));
        assert_eq!(whole + none.count(), parts.len(), "a sector was torn");
        match whole {
            0 => dropped += 1,
            _ if whole == parts.len() => kept += 1,
            _ => torn += 1,
        }
    }
    for often in [kept, dropped, torn] {
        assert!(
            (70..=130).contains(&often),
            "kept {kept}, dropped {dropped}, torn {torn} of 300"
        );
    }
}

/// Of three writes to one sector, each is the last one as often as the others.
#[test]
fn unsynced_writes_reach_the_disk_in_any_order() {
    let mut last = [0; 4];
    for seed in 0..2_000 {
        let (disk, file) = disk(seed, SECTOR as u64);
        for value in 1..=3 {
            file.write_all(0, &[value; SECTOR]).expect("writes");
        }
        last[usize::from(pool(&disk.restart(1))[0])] += 1;
    }
    // One time in eight none of them is kept.
    for (value, often) in last.into_iter().enumerate() {
        let expected = if value == 0 { 250 } else { 583 };
        assert!((expected - 90..expected + 90).contains(&often), "{last:?}");
    }
}

#[test]
fn a_seed_replays_what_a_cut_leaves() {
    let life = |seed| {
        let (disk, file) = disk(seed, 64 * SECTOR as u64);
        for sector in 0..64 {
            file.write_all(sector * SECTOR as u64, &[9; SECTOR])
                .expect("writes");
        }
        pool(&disk.restart(1))
    };
    assert_eq!(life(5), life(5));
    assert_ne!(life(5), life(6));
    assert_ne!(life(0), life(1));
}

#[test]
fn what_was_synced_stays() {
    for seed in 0..20 {
        let (disk, file) = disk(seed, 8192);
        let journal = disk.file(Which::Journal);
        file.write_all(100, &[1; 2000]).expect("writes");
        file.punch(0, 200).expect("punches");
        file.sync().expect("syncs");
        // Only this write: others of the file stay unsure, as do those of the other file.
        journal.write_all(0, &[2; 1024]).expect("writes");
        file.write_all(4096, &[3; SECTOR]).expect("writes");
        file.write_durable(6000, &[4; 1000]).expect("writes");
        file.truncate(7500).expect("truncates");
        assert_eq!(file.size().expect("has a size"), 7500);
        disk.cut_now();
        let after = disk.restart(seed);
        let bytes = pool(&after);
        assert!(bytes.len() == 7500 || bytes.len() == 8192);
        assert!(bytes[..200].iter().all(|byte| *byte == 0));
        assert!(bytes[200..2100].iter().all(|byte| *byte == 1));
        assert!(bytes[6000..7000].iter().all(|byte| *byte == 4));
        // Each restart is another power cut of the same disk.
        let unsure: Vec<_> = (0..20).map(|_| pool(&disk.restart(1))[4096]).collect();
        assert!(unsure.contains(&0) && unsure.contains(&3), "{unsure:?}");
        let mut journals = (0..40).map(|_| disk.restart(1).bytes(Which::Journal));
        assert!(journals.any(|bytes| bytes.is_empty()));
    }
}

#[test]
fn changes_do_what_they_say() {
    let all = || true;
    let mut bytes = Vec::new();
    Change::Write(3, vec![1; 4]).apply(&mut bytes, all);
    assert_eq!(bytes, [0, 0, 0, 1, 1, 1, 1]);
    Change::Write(1, vec![2, 2]).apply(&mut bytes, all);
    assert_eq!(bytes, [0, 2, 2, 1, 1, 1, 1], "it does not become shorter");
    Change::Extend(9).apply(&mut bytes, all);
    assert_eq!(bytes, [0, 2, 2, 1, 1, 1, 1, 0, 0]);
    Change::Extend(4).apply(&mut bytes, all);
    assert_eq!(bytes.len(), 9);
    Change::Punch(2, 3).apply(&mut bytes, all);
    assert_eq!(bytes, [0, 2, 0, 0, 0, 1, 1, 0, 0]);
    Change::Punch(6, 100).apply(&mut bytes, all);
    assert_eq!(bytes, [0, 2, 0, 0, 0, 1, 0, 0, 0]);
    Change::Punch(50, 2).apply(&mut bytes, all);
    Change::Truncate(20).apply(&mut bytes, all);
    assert_eq!(bytes.len(), 9);
    Change::Truncate(3).apply(&mut bytes, all);
    assert_eq!(bytes, [0, 2, 0]);

    // Of a write's sectors, those that are kept; it ends where the last of these does.
    let mut asked = 0;
    let mut bytes = Vec::new();
    Change::Write(SECTOR as u64 - 2, vec![5; SECTOR + 4]).apply(&mut bytes, || {
        asked += 1;
        asked != 3
    });
    assert_eq!(asked, 3);
    assert_eq!(bytes[..SECTOR - 2], [0; SECTOR - 2]);
    assert_eq!(bytes[SECTOR - 2..], [5; SECTOR + 2]);
    Change::Write(0, vec![6; 2 * SECTOR]).apply(&mut bytes, || false);
    assert!(!bytes.contains(&6));
}

#[test]
fn events_and_syncs_are_counted() {
    let disk = FaultDisk::new(1);
    let file = disk.file(Which::Pool);
    let counted = |events, syncs| assert_eq!((disk.events(), disk.syncs()), (events, syncs));
    counted(0, 0);
    file.allocate(0, 4096).expect("allocates");
    file.write_all(0, &[1; 10]).expect("writes");
    counted(2, 0);
    file.sync().expect("syncs");
    counted(3, 1);
    file.write_durable(0, &[1; 10]).expect("writes");
    counted(4, 2);
    file.truncate(2048).expect("truncates");
    file.punch(0, 1024).expect("punches");
    counted(6, 2);
    assert_eq!(file.read_at(0, &mut [0; 8]).expect("reads"), 8);
    assert_eq!(file.size().expect("has a size"), 2048);
    counted(6, 2);
}

#[test]
fn reads_end_where_the_file_does() {
    let disk = FaultDisk::new(1);
    disk.set_bytes(Which::Journal, (0..100).collect());
    let file = disk.file(Which::Journal);
    let mut into = [255; 8];
    assert_eq!(file.read_full(40, &mut into).expect("reads"), 8);
    assert_eq!(into, [40, 41, 42, 43, 44, 45, 46, 47]);
    assert_eq!(file.read_full(97, &mut into).expect("reads"), 3);
    assert_eq!(into, [97, 98, 99, 43, 44, 45, 46, 47]);
    assert_eq!(file.read_full(100, &mut into).expect("reads"), 0);
    assert_eq!(file.read_full(1 << 40, &mut into).expect("reads"), 0);
    assert_eq!(file.size().expect("has a size"), 100);
    assert_eq!(disk.file(Which::Pool).size().expect("has a size"), 0);
    disk.cut_now();
    let kept = disk.restart(1).bytes(Which::Journal);
    assert_eq!(kept, (0..100).collect::<Vec<u8>>(), "set bytes are durable");
}

#[test]
fn the_power_is_cut_during_the_event_that_is_named() {
    let mut found = Vec::new();
    for seed in 0..30 {
        let (disk, file) = disk(seed, 4096);
        assert_eq!(disk.events(), 2);
        disk.cut_after(3);
        file.write_all(0, &[1; SECTOR]).expect("writes");
        file.sync().expect("syncs");
        assert!(!disk.is_cut());
        assert_eq!(text(file.write_all(1024, &[2; SECTOR])), "the power is off");
        assert!(disk.is_cut());
        let events = disk.events();
        for result in [
            file.write_all(0, &[3; SECTOR]),
            file.write_durable(0, &[3; SECTOR]),
            file.sync(),
            file.allocate(4096, 8192),
            file.truncate(0),
            file.punch(0, 4096),
            file.size().map(drop),
            file.read_full(0, &mut [0; 8]).map(drop),
        ] {
            assert_eq!(text(result), "the power is off");
        }
        assert_eq!(disk.events(), events, "nothing happens any more");
        let bytes = pool(&disk.restart(seed));
        assert_eq!((bytes.len(), bytes[0]), (4096, 1));
        found.push(bytes[1024]);
    }
    assert!(found.contains(&0) && found.contains(&2), "{found:?}");
}

#[test]
fn a_killed_users_files_do_nothing_any_more() {
    let (mut lost, mut kept) = (0, 0);
    for seed in 0..40 {
        let (disk, first) = disk(seed, 4096);
        first.write_all(0, &[1; SECTOR]).expect("writes");
        disk.kill();
        let second = disk.file(Which::Pool);
        let mut into = [0; 4];
        second.read_full(0, &mut into).expect("reads");
        assert_eq!(into, [1; 4], "what was written is there");
        second.write_all(1024, &[2; SECTOR]).expect("writes");
        disk.kill();
        let third = disk.file(Which::Pool);
        for killed in [&first, &second] {
            assert_eq!(text(killed.size()), "the process was killed");
            assert_eq!(text(killed.write_all(0, &[3])), "the process was killed");
            assert_eq!(text(killed.sync()), "the process was killed");
            assert_eq!(text(killed.another()), "the process was killed");
        }
        assert_eq!(third.size().expect("has a size"), 4096);
        assert!(!disk.is_cut());
        let bytes = pool(&disk.restart(seed));
        lost += u32::from(bytes[0] == 0);
        kept += u32::from(bytes[0] == 1);
        assert_eq!(lost + kept, seed as u32 + 1);
    }
    assert!(lost > 5 && kept > 5, "lost {lost}, kept {kept}");
}

#[test]
fn one_sync_fails_or_all_from_then_on() {
    for forever in [true, false] {
        let (disk, file) = disk(1, 4096);
        file.sync().expect("syncs");
        assert_eq!(disk.syncs(), 2);
        match forever {
            true => disk.fail_sync(2),
            false => disk.fail_one_sync(2),
        }
        file.write_durable(0, &[1]).expect("the one before");
        assert!(!disk.has_failed());
        let error = file.sync().expect_err("the one that is to fail");
        assert_eq!(error.raw_os_error(), EIO);
        assert!(disk.has_failed());
        for _ in 0..3 {
            assert_eq!(file.sync().is_err(), forever);
            assert_eq!(file.write_durable(0, &[1]).is_err(), forever);
        }
        assert!(disk.has_failed());
    }
    let (disk, _) = disk(1, 4096);
    assert!(!disk.has_failed(), "nothing was to fail");
}

/// Some are lost for good, although readers see them and later syncs succeed.
#[test]
fn a_failed_sync_loses_writes_and_no_lengths() {
    let (mut kept, mut lost) = (0, 0);
    for seed in 0..20 {
        let (disk, file) = disk(seed, 4096);
        disk.fail_one_sync(1);
        file.allocate(4096, 8192).expect("allocates");
        for sector in 0..8 {
            file.write_all(sector * SECTOR as u64, &[1; SECTOR])
                .expect("writes");
        }
        assert_eq!(file.sync().expect_err("fails").raw_os_error(), EIO);
        assert_eq!(pool(&disk)[..4096], [1; 4096], "a reader sees all of it");
        file.sync().expect("syncs what came later");
        let bytes = pool(&disk.restart(seed));
        assert_eq!(bytes.len(), 8192);
        for sector in bytes[..4096].chunks(SECTOR) {
            assert!(sector == [0; SECTOR] || sector == [1; SECTOR]);
            kept += u32::from(sector[0]);
            lost += u32::from(1 - sector[0]);
        }
    }
    assert!(kept > 40 && lost > 40, "{kept} kept, {lost} lost");
}

#[test]
fn a_durable_write_that_fails_leaves_earlier_ones_unsure() {
    let (mut durable, mut earlier) = (Vec::new(), Vec::new());
    for seed in 0..40 {
        let (disk, file) = disk(seed, 4096);
        file.write_all(0, &[1; SECTOR]).expect("writes");
        disk.fail_one_sync(1);
        let failed = file.write_durable(2048, &[2; SECTOR]);
        assert_eq!(failed.expect_err("fails").raw_os_error(), EIO);
        durable.push(pool(&disk.restart(seed))[2048]);
        // The earlier one is not lost: the next sync takes it.
        file.sync().expect("syncs");
        earlier.push(pool(&disk.restart(seed))[0]);
    }
    assert!(durable.contains(&0) && durable.contains(&2), "{durable:?}");
    assert!(earlier.iter().all(|byte| *byte == 1), "{earlier:?}");
}

#[test]
fn each_handle_is_told_once_of_lost_writes() {
    let (disk, first) = disk(1, 4096);
    let second = first.another().expect("opens");
    let journal = disk.file(Which::Journal);
    disk.fail_one_sync(1);
    first.write_all(0, &[1]).expect("writes");
    assert_eq!(first.sync().expect_err("fails").raw_os_error(), EIO);
    let later = second.another().expect("opens");
    later.sync().expect("it was opened after that");
    journal.sync().expect("the other file lost nothing");
    first.sync().expect("it has been told");
    let told = second.write_durable(8, &[1]);
    assert_eq!(told.expect_err("is told").raw_os_error(), EIO);
    second.sync().expect("it has been told");
    second.write_durable(8, &[1]).expect("writes");
}

#[test]
fn events_are_kept_in_order() {
    let disk = FaultDisk::new(1);
    let (file, journal) = (disk.file(Which::Pool), disk.file(Which::Journal));
    file.allocate(0, 1024).expect("allocates");
    assert!(
        disk.taken().is_empty(),
        "they are not kept unless asked for"
    );
    disk.record();
    file.write_all(8, &[1, 2]).expect("writes");
    journal.write_durable(16, &[3]).expect("writes");
    file.sync().expect("syncs");
    file.punch(0, 512).expect("punches");
    file.truncate(700).expect("truncates");
    file.allocate(700, 900).expect("allocates");
    disk.cut_now();
    assert!(file.write_all(0, &[9]).is_err() && file.sync().is_err());
    let events = disk.taken();
    let told: Vec<_> = events
        .iter()
        .map(|event| match &event.what {
            What::Change(change) => (event.which, format!("{change:?}")),
            What::Durable(at, bytes, site) => {
                assert!(site.file().ends_with("journal_fault_disk.rs"), "{site}");
                (event.which, format!("durable {at} {bytes:?}"))
            }
            What::Sync(site) => {
                assert!(site.file().ends_with("journal_fault_disk.rs"), "{site}");
                (event.which, "sync".into())
            }
        })
        .collect();
    let expected = [
        (Which::Pool, "Write(8, [1, 2])"),
        (Which::Journal, "durable 16 [3]"),
        (Which::Pool, "sync"),
        (Which::Pool, "Punch(0, 512)"),
        (Which::Pool, "Truncate(700)"),
        (Which::Pool, "Extend(900)"),
    ];
    let expected = expected.map(|(which, what)| (which, what.to_string()));
    assert_eq!(told, expected);
    assert!(disk.taken().is_empty(), "they were taken");
}

#[test]
fn the_files_together_are_as_long_as_the_disk_is_large() {
    let (disk, file) = disk(1, 4096);
    let journal = disk.file(Which::Journal);
    disk.set_capacity(Some(10_000));
    journal.allocate(0, 5904).expect("there is just the space");
    assert!(is_full(&journal.allocate(5904, 5905)));
    assert!(is_full(&file.allocate(4096, 4097)));
    let sizes = [&file, &journal].map(|file| file.size().expect("has a size"));
    assert_eq!(sizes, [4096, 5904], "they are as long as before");
    journal.truncate(1000).expect("truncates");
    file.allocate(4096, 9000).expect("there is space again");
    assert!(is_full(&journal.allocate(1000, 1001)));
    disk.set_capacity(None);
    journal.allocate(1000, 1 << 20).expect("has no limit");
    disk.set_capacity(Some(1 << 20));
    disk.cut_now();
    assert_eq!(text(file.allocate(9000, 1 << 21)), "the power is off");
}

#[test]
fn a_full_disk_takes_no_writes() {
    let (disk, file) = disk(1, 4096);
    disk.set_full(true);
    let events = disk.events();
    assert!(is_full(&file.write_all(0, &[1])));
    assert!(is_full(&file.write_durable(0, &[1])));
    assert_eq!(disk.events(), events);
    file.sync().expect("has nothing to write");
    disk.set_full(false);
    file.write_all(0, &[1]).expect("writes");
    file.write_durable(1, &[2]).expect("writes");
    assert_eq!(pool(&disk)[..3], [1, 2, 0]);
    disk.set_full(true);
    disk.cut_now();
    assert_eq!(text(file.write_all(0, &[1])), "the power is off");
    assert_eq!(text(file.write_durable(0, &[1])), "the power is off");
}

#[test]
fn a_short_write_takes_a_part_that_is_not_all() {
    let (disk, file) = disk(1, 4096);
    disk.set_short_writes(true);
    let mut taken = [0; 5];
    for _ in 0..100 {
        taken[file.write_at(0, &[1, 2, 3, 4]).expect("writes")] += 1;
    }
    assert!(taken[0] == 0 && taken[4] == 0, "{taken:?}");
    assert!(taken[1..4].iter().all(|often| *often > 10), "{taken:?}");
    assert_eq!(file.write_at(10, &[7]).expect("writes"), 1);
    file.write_all(100, &[8; 500]).expect("writes all of it");
    assert_eq!(pool(&disk)[100..600], [8; 500]);
    disk.set_short_writes(false);
    assert_eq!(file.write_at(0, &[1, 2, 3, 4]).expect("writes"), 4);
}

#[test]
fn calls_take_at_least_the_time_that_was_set() {
    let (disk, file) = disk(1, 4096);
    let journal = disk.file(Which::Journal);
    let time = Duration::from_millis(15);
    let takes = |call: &dyn Fn() -> io::Result<()>, least: Duration| {
        let began = Instant::now();
        call().expect("succeeds");
        assert!(began.elapsed() >= least);
    };
    disk.set_sync_time(time);
    takes(&|| journal.sync(), time);
    takes(&|| journal.write_durable(0, &[1]), time);
    disk.set_pool_time(time);
    takes(&|| file.write_all(0, &[1]), time);
    takes(&|| file.sync(), 2 * time);
    takes(&|| file.write_durable(0, &[1]), 2 * time);
}

#[test]
fn a_chosen_cut_keeps_the_named_writes_and_every_length() {
    let (disk, file) = disk(1, 4096);
    let journal = disk.file(Which::Journal);
    file.allocate(4096, 8192).expect("allocates");
    file.write_all(0, &[1; 8]).expect("writes");
    file.write_all(100, &[2; 8]).expect("writes");
    journal.write_all(0, &[3; 8]).expect("writes");
    journal.write_all(100, &[4; 8]).expect("writes");
    journal.truncate(104).expect("truncates");
    let named = |which, at| (which == Which::Pool) == (at == 100);
    let after = disk.restart_keeping(named);
    assert!(disk.is_cut());
    let bytes = pool(&after);
    assert_eq!((bytes.len(), bytes[0], bytes[100]), (8192, 0, 2));
    assert_eq!(after.bytes(Which::Journal), [3; 8]);
    let again = after.restart(1);
    assert_eq!(pool(&again), bytes, "what is left is durable");
}

#[test]
fn what_a_killed_user_wrote_is_seen_and_may_still_be_lost() {
    let mut found = Vec::new();
    for seed in 0..30 {
        let (disk, file) = disk(seed, 4096);
        file.write_all(0, &[1; SECTOR]).expect("writes");
        let after = disk.after_kill(seed);
        assert!(file.write_all(0, &[2]).is_err(), "its user is no more");
        assert!(!after.is_cut());
        assert_eq!(pool(&after)[..2], [1, 1]);
        let bytes = pool(&after.restart(seed));
        assert_eq!(bytes.len(), 4096);
        found.push(bytes[0]);
    }
    assert!(found.contains(&0) && found.contains(&1), "{found:?}");
}
