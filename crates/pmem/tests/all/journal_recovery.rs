//! Opening: replay, read-only replay, growth and shrinking across crashes, journals that belong
//! elsewhere or are damaged.

use crate::journal_support::{
    Acknowledged, FIRST_LINE, INITIAL, UUID, create, format, get, open, open_unattached, options,
    run, verify, word,
};
use bristlecone_pmem::OpenError;
use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
use bristlecone_pmem::media::journal::journal_path;
use bristlecone_pmem::media::{Access, Durability, Journal, Media, MediaOptions};
use std::path::Path;
use std::sync::atomic::Ordering;

fn read_write() -> MediaOptions {
    options(Access::ReadWrite, Durability::Immediate)
}

/// Returns a disk that lost power after some commits, with frames still in the journal.
fn crashed(seed: u64, acknowledged: &Acknowledged) -> FaultDisk {
    let disk = FaultDisk::new(seed);
    let pm = create(&disk, &read_write()).expect("creates");
    assert!(run(&pm, 1, 100, 1, acknowledged).is_none());
    disk.cut_now();
    drop(pm);
    disk.restart(seed)
}

#[test]
fn replay_is_reported_and_a_clean_close_leaves_none() {
    let acknowledged = Acknowledged::new(1);
    let disk = crashed(1, &acknowledged);
    let pm = open(&disk, &read_write()).expect("opens");
    let report = pm.recovery();
    assert!(
        report.batches_replayed >= 100 && report.lines_replayed >= 200,
        "{report:?}"
    );
    assert!(report.bytes_read > 0 && pm.had_journal() && pm.history_found());
    assert_eq!(verify(&pm, 1, &acknowledged), Ok(100));
    drop(pm);
    let pm = open(&disk, &read_write()).expect("opens again");
    let report = pm.recovery();
    assert_eq!(
        (
            report.batches_replayed,
            report.lines_replayed,
            report.torn_tail
        ),
        (0, 0, false)
    );
    assert_eq!(verify(&pm, 1, &acknowledged), Ok(100));
    drop(pm);
    // The pool file alone is the whole pool.
    let alone = FaultDisk::new(9);
    alone.set_bytes(Which::Pool, disk.bytes(Which::Pool));
    let pm = open_unattached(&alone, &read_write()).expect("opens");
    assert!(!pm.had_journal() && !pm.history_found());
    assert_eq!(verify(&pm, 1, &acknowledged), Ok(100));
}

#[test]
fn read_only_replays_in_memory_and_writes_nothing() {
    let acknowledged = Acknowledged::new(1);
    let disk = crashed(2, &acknowledged);
    let before = (
        disk.bytes(Which::Pool),
        disk.bytes(Which::Journal),
        disk.events(),
    );
    let o = options(Access::ReadOnly, Durability::Immediate);
    let pm = open(&disk, &o).expect("opens");
    assert!(pm.read_only() && pm.recovery().batches_replayed >= 100);
    assert_eq!(verify(&pm, 1, &acknowledged), Ok(100));
    // A store stays in this process.
    word(&pm, 3000, 0).publish(&pm, 1);
    pm.commit().expect("nothing to do");
    pm.sync().expect("nothing to do");
    assert!(
        pm.grow(INITIAL * 2).is_err() && pm.shrink(4096).is_err() && pm.punch(8192, 4096).is_err()
    );
    drop(pm);
    let after = (
        disk.bytes(Which::Pool),
        disk.bytes(Which::Journal),
        disk.events(),
    );
    assert!(before == after, "the disk was touched");
}

#[test]
fn growth_that_only_the_journal_knows_is_replayed() {
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let disk = FaultDisk::new(3);
        let pm = create(&disk, &read_write()).expect("creates");
        let short = disk.bytes(Which::Pool);
        pm.grow(INITIAL + (1 << 20)).expect("grows");
        let last = (INITIAL + (1 << 20)) / 64 - 1 - FIRST_LINE;
        word(&pm, last, 3).publish(&pm, 77);
        pm.commit().expect("commits");
        disk.cut_now();
        drop(pm);
        let disk = disk.restart(3);
        // The file's new length was lost.
        disk.set_bytes(Which::Pool, short);
        let pm = open(&disk, &options(access, Durability::Immediate)).expect("opens");
        assert_eq!(pm.len(), INITIAL + (1 << 20));
        assert_eq!(word(&pm, last, 3).load(&pm, Ordering::Relaxed), 77);
        assert_eq!(word(&pm, last - 1, 0).load(&pm, Ordering::Relaxed), 0);
        let file = disk.bytes(Which::Pool).len() as u64;
        let expected = if access == Access::ReadOnly {
            INITIAL
        } else {
            INITIAL + (1 << 20)
        };
        assert_eq!(file, expected, "{access:?}");
    }
}

#[test]
fn shrunk_and_punched_parts_are_zero_even_after_a_crash() {
    let disk = FaultDisk::new(4);
    let pm = create(&disk, &read_write()).expect("creates");
    pm.grow(INITIAL * 2).expect("grows");
    let far = INITIAL / 64 - FIRST_LINE + 5;
    let hole = 1024;
    // Of each page a line is written again later, and so is in a frame; the other is not.
    for i in 1..=50 {
        for line in [far, far + 1, hole, hole + 1] {
            word(&pm, line, 0).publish(&pm, i);
        }
        pm.commit().expect("commits");
    }
    let write_again = |line| {
        assert_eq!((get(&pm, line), get(&pm, line + 1)), (0, 0));
        word(&pm, line, 1).publish(&pm, 9);
        pm.commit().expect("commits");
        for seed in 0..8 {
            let pm = open(&disk.restart(seed), &read_write()).expect("opens");
            for zero in [line, line + 1] {
                assert_eq!(get(&pm, zero), 0, "line {zero} came back");
            }
            assert_eq!(word(&pm, line, 1).load(&pm, Ordering::Relaxed), 9);
        }
    };
    pm.punch((FIRST_LINE + hole) / 64 * 4096, 4096)
        .expect("punches");
    write_again(hole);
    pm.shrink(INITIAL).expect("shrinks");
    assert_eq!(pm.len(), INITIAL);
    pm.grow(INITIAL * 2).expect("grows again");
    write_again(far);
}

#[test]
fn segments_are_used_again_many_times() {
    let o = MediaOptions {
        journal_max: 256 << 10,
        ..read_write()
    };
    let disk = FaultDisk::new(5);
    let acknowledged = Acknowledged::new(2);
    let mut pm = create(&disk, &o).expect("creates");
    let mut written = 0;
    for _ in 0..4 {
        assert!(run(&pm, 2, 1_500, 1, &acknowledged).is_none());
        let stats = pm.stats();
        assert!(stats.journal_bytes <= 512 << 10, "{stats:?}");
        assert!(stats.checkpoints > 4, "{stats:?}");
        written += stats.frame_bytes;
        let steps = verify(&pm, 2, &acknowledged).expect("the live image");
        drop(pm);
        pm = open(&disk, &o).expect("opens");
        assert_eq!(verify(&pm, 2, &acknowledged), Ok(steps));
    }
    assert!(
        written > 8 * (256 << 10),
        "{written} bytes went through a journal of 256 KiB"
    );
}

#[test]
fn another_pools_journal_is_refused_if_it_holds_anything() {
    let disk = crashed(6, &Acknowledged::new(1));
    let other = FaultDisk::new(7);
    let pm = create(&other, &read_write()).expect("creates");
    drop(pm);
    let mut pool = other.bytes(Which::Pool);
    for at in [32, 4096 + 32] {
        pool[at..at + 16].copy_from_slice(b"some other pool.");
    }
    disk.set_bytes(Which::Pool, pool.clone());
    let error = open_unattached(&disk, &read_write()).expect_err("refused");
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("pool.journal") && text.contains("belongs to another pool"),
        "{text}"
    );
    // One that is empty is taken over.
    other.set_bytes(Which::Pool, pool);
    let pm = open_unattached(&other, &read_write()).expect("opens");
    assert!(!pm.had_journal());
    pm.attach(*b"some other pool.")
        .expect("makes the journal its own");
    word(&pm, 0, 0).publish(&pm, 5);
    pm.commit().expect("commits");
    other.cut_now();
    drop(pm);
    let pm = open_unattached(&other.restart(7), &read_write()).expect("opens");
    assert!(pm.had_journal());
    assert_eq!(get(&pm, 0), 5);
}

#[test]
fn a_creation_cut_short_opens_as_nothing_or_as_the_pool() {
    for cut in 1..40 {
        let disk = FaultDisk::new(cut);
        disk.cut_after(cut);
        let created = create(&disk, &read_write()).map(drop);
        disk.cut_now();
        let after = disk.restart(cut);
        let opened = open_unattached(&after, &read_write());
        if created.is_ok() {
            let pm = opened.expect("created, so it opens");
            // The fake superblock is there.
            // SAFETY: offset 32 is inside the pool and 8-byte aligned.
            let found = unsafe { *pm.base().add(32).cast::<u64>() };
            assert_eq!(found.to_le_bytes(), UUID[..8], "cut {cut}");
        } else if let Err(e) = opened {
            panic!("cut {cut}: {e}");
        }
    }
}

/// Flips bits anywhere in a crashed pool's journal: an error, or a state that the pool was in.
#[test]
fn flipped_bits_are_errors_or_a_clean_prefix() {
    let mut random = 12345u64;
    let mut below = |n: u64| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % n
    };
    let acknowledged = Acknowledged::new(1);
    let disk = crashed(8, &acknowledged);
    let journal = disk.bytes(Which::Journal);
    let pool = disk.bytes(Which::Pool);
    let none = Acknowledged::new(1);
    let (mut errors, mut whole, mut shorter) = (0, 0, 0);
    for _ in 0..600 {
        let mut bytes = journal.clone();
        for _ in 0..=below(3) {
            // Mostly where the frames are; else anywhere.
            let at = if below(3) > 0 {
                below(8192 + 70_000)
            } else {
                below(bytes.len() as u64)
            };
            bytes[at as usize] ^= 1 << below(8);
        }
        if below(10) == 0 {
            bytes.truncate(below(journal.len() as u64) as usize);
        }
        let damaged = FaultDisk::new(1);
        damaged.set_bytes(Which::Pool, pool.clone());
        damaged.set_bytes(Which::Journal, bytes);
        match open_unattached(&damaged, &read_write()) {
            Err(e) => {
                assert!(
                    matches!(e, OpenError::Corrupt { .. } | OpenError::Version { .. }),
                    "{e}"
                );
                errors += 1;
            }
            Ok(pm) => {
                let steps = verify(&pm, 1, &none).expect("a state that the pool was in");
                if steps == 100 {
                    whole += 1
                } else {
                    shorter += 1
                }
            }
        }
    }
    assert!(
        errors > 100 && whole > 50,
        "{errors} errors, {whole} unharmed, {shorter} shorter"
    );
    assert!(
        shorter < 60,
        "{shorter} of 600 lost acknowledged commits silently"
    );
}

#[test]
fn a_file_that_is_no_journal_is_left_alone() {
    let disk = FaultDisk::new(10);
    disk.set_bytes(Which::Journal, b"dear diary".repeat(1000));
    let o = MediaOptions {
        access: Access::Create,
        ..read_write()
    };
    let result = Journal::open_on(
        disk.file(Which::Pool),
        disk.file(Which::Journal),
        Path::new("pool"),
        INITIAL,
        &o,
    );
    let text = result.expect_err("refused").to_string();
    assert!(text.contains("not a journal"), "{text}");
    assert!(disk.bytes(Which::Journal).starts_with(b"dear diary"));
}

#[test]
fn real_files_survive_a_forgotten_close() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let o = read_write();
    let made = MediaOptions {
        access: Access::Create,
        ..o.clone()
    };
    let acknowledged = Acknowledged::new(2);
    let pm = Journal::open(&path, INITIAL, &made).expect("creates");
    format(&pm, UUID);
    pm.attach(UUID).expect("attaches");
    assert!(run(&pm, 2, 300, 3, &acknowledged).is_none());
    pm.grow(INITIAL * 4).expect("grows");
    let far = INITIAL * 3 / 64;
    word(&pm, far, 0).publish(&pm, 11);
    pm.commit().expect("commits");

    // The files as a kill would leave them now, beside the living ones.
    let copy = folder.path().join("copy");
    std::fs::copy(&path, &copy).expect("copies");
    std::fs::copy(journal_path(&path), journal_path(&copy)).expect("copies");
    assert!(
        matches!(Journal::open(&path, 0, &o), Err(OpenError::Locked(_))),
        "one writer"
    );
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let again = Journal::open(&copy, 0, &options(access, Durability::None)).expect("opens");
        again.attach(UUID).expect("attaches");
        assert!(again.recovery().batches_replayed > 0, "{access:?}");
        verify(&again, 2, &acknowledged).expect("nothing acknowledged is lost");
        assert_eq!(get(&again, far), 11);
    }
    drop(pm);
    let pm = Journal::open(&path, 0, &o).expect("opens");
    assert_eq!((pm.recovery().batches_replayed, get(&pm, far)), (0, 11));
    drop(pm);
    // A clean close leaves all of it in the pool file and a short journal.
    assert!(
        std::fs::metadata(journal_path(&path))
            .expect("is there")
            .len()
            <= 8192 + (4 << 16)
    );
    std::fs::remove_file(journal_path(&path)).expect("removes");
    let pm = Journal::open(&path, 0, &o).expect("opens");
    assert!(!pm.had_journal());
    assert_eq!(get(&pm, far), 11);
}

#[test]
fn creating_over_leftovers_replaces_a_journal_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let made = MediaOptions {
        access: Access::Create,
        ..read_write()
    };
    std::fs::write(journal_path(&path), "a letter".repeat(2000)).expect("writes");
    assert!(matches!(
        Journal::open(&path, INITIAL, &made),
        Err(OpenError::Corrupt { .. })
    ));
    assert!(!path.exists(), "no half-made pool");
    std::fs::remove_file(journal_path(&path)).expect("removes");
    let pm = Journal::open(&path, INITIAL, &made).expect("creates");
    format(&pm, UUID);
    pm.attach(UUID).expect("attaches");
    word(&pm, 0, 0).publish(&pm, 1);
    pm.commit().expect("commits");
    drop(pm);
    std::fs::remove_file(&path).expect("removes");
    let pm = Journal::open(&path, INITIAL, &made).expect("creates where a journal was left");
    format(&pm, *b"yet another pool");
    pm.attach(*b"yet another pool").expect("attaches");
    assert_eq!(get(&pm, 0), 0);
    assert!(matches!(
        Journal::open(&path, INITIAL, &made),
        Err(OpenError::Exists(_))
    ));
}

/// A tear leaves whole frames behind it; the next session's frames take their numbers, and a second
/// cut must not let the old ones follow the new ones.
#[test]
fn frames_behind_a_tear_are_never_taken_up_again() {
    let o = options(Access::ReadWrite, Durability::None);
    let disk = FaultDisk::new(11);
    drop(create(&disk, &o).expect("creates"));
    let lines = 900;
    let fill = |pm: &Journal, value| {
        for line in 0..lines {
            word(pm, line, 0).publish(pm, value);
        }
        // Written in the background within 100 ms, unsynced.
        std::thread::sleep(std::time::Duration::from_millis(300));
    };
    let first_frame = 8192;
    let pm = open(&disk, &o).expect("opens");
    fill(&pm, 1);
    let stats = pm.stats();
    assert!(stats.frames >= 3, "{stats:?}");
    // The first frame is lost, the others are kept.
    let disk = disk.restart_keeping(|which, at| which == Which::Journal && at != first_frame);
    drop(pm);
    let pm = open(&disk, &o).expect("opens");
    assert_eq!(
        (get(&pm, 0), get(&pm, lines - 1)),
        (0, 0),
        "nothing follows a gap"
    );
    fill(&pm, 2);
    // Now only the first is kept: the old ones have the right numbers and stand in the right
    // places.
    let disk = disk.restart_keeping(|which, at| which == Which::Journal && at == first_frame);
    drop(pm);
    let pm = open(&disk, &o).expect("opens");
    assert_eq!(pm.recovery().batches_replayed, 1);
    assert_eq!(
        (get(&pm, 0), get(&pm, lines - 1)),
        (2, 0),
        "old frames after a new one"
    );
}

/// A killed writer's frames may be in the page cache only. They are made durable before new frames
/// follow them.
#[test]
fn frames_of_a_killed_writer_are_synced_before_new_ones_follow() {
    let disk = FaultDisk::new(12);
    let pm = create(&disk, &options(Access::ReadWrite, Durability::None)).expect("creates");
    word(&pm, 1, 0).publish(&pm, 1);
    std::thread::sleep(std::time::Duration::from_millis(250));
    assert!(pm.stats().frames > 0);
    let disk = disk.after_kill(1);
    drop(pm);
    let pm = open(&disk, &read_write()).expect("opens");
    assert_eq!(get(&pm, 1), 1);
    word(&pm, 2, 0).publish(&pm, 1);
    pm.commit().expect("commits");
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &read_write()).expect("opens");
    assert_eq!((get(&pm, 1), get(&pm, 2)), (1, 1));
}

/// Found by power cuts: a session's frame behind a tear survived at the start of a segment; the
/// next session's checkpoint let the head go to exactly that sequence number and lost power before
/// writing it. With nothing in front to compare epochs with, the old frame was replayed over the
/// newer pool file.
#[test]
fn an_old_frame_with_the_heads_number_is_not_replayed() {
    let o = options(Access::ReadWrite, Durability::None);
    let disk = FaultDisk::new(13);
    drop(create(&disk, &o).expect("creates"));
    let pm = open(&disk, &o).expect("opens");
    // Chunks of 16 KiB hold 226 single lines, segments of 64 KiB four of their frames: the fifth
    // frame starts the second segment.
    for line in 0..5 * 226 {
        word(&pm, line, 0).publish(&pm, 1);
    }
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(pm.stats().frames >= 5, "{:?}", pm.stats());
    let fifth = 8192 + (64 << 10);
    let disk = disk.restart_keeping(|which, at| which == Which::Journal && at == fifth);
    drop(pm);
    let pm = open(&disk, &o).expect("opens");
    let line = 5 * 226 - 1;
    assert_eq!(get(&pm, line), 0);
    for value in 2..6 {
        word(&pm, line, 0).publish(&pm, value);
        pm.sync().expect("one frame, and the head behind it");
    }
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &o).expect("opens");
    assert_eq!((pm.recovery().batches_replayed, get(&pm, line)), (0, 5));
}

#[test]
fn either_header_slot_serves_after_many_checkpoints() {
    let o = MediaOptions {
        journal_max: 256 << 10,
        ..read_write()
    };
    let disk = FaultDisk::new(14);
    let acknowledged = Acknowledged::new(1);
    let pm = create(&disk, &o).expect("creates");
    assert!(run(&pm, 1, 1_200, 1, &acknowledged).is_none());
    assert!(pm.stats().checkpoints > 2, "{:?}", pm.stats());
    // Quiet: no checkpoint is between its two slots.
    pm.sync().expect("syncs");
    assert!(run(&pm, 1, 20, 1, &acknowledged).is_none());
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let journal = disk.bytes(Which::Journal);
    for slot in [0, 4096] {
        let mut bytes = journal.clone();
        bytes[slot + 50] ^= 4;
        disk.set_bytes(Which::Journal, bytes);
        let pm = open_unattached(&disk, &o).expect("the other slot serves");
        assert!(pm.recovery().batches_replayed >= 20);
        assert_eq!(verify(&pm, 1, &acknowledged), Ok(1_220), "slot at {slot}");
    }
    let mut bytes = journal;
    bytes[50] ^= 4;
    bytes[4096 + 50] ^= 4;
    disk.set_bytes(Which::Journal, bytes);
    let text = open_unattached(&disk, &o)
        .expect_err("neither serves")
        .to_string();
    assert!(text.contains("neither header"), "{text}");
}

/// A pool whose file is longer than its superblock says shrinks it before attaching. The pages that
/// this writes were replayed from frames that a killed writer never synced.
#[test]
fn shrinking_before_attaching_keeps_the_order_of_fences() {
    let (first, second) = (512, 1024);
    for cut in 1..24 {
        let disk = FaultDisk::new(cut);
        let pm = create(&disk, &options(Access::ReadWrite, Durability::None)).expect("creates");
        pm.grow(INITIAL * 2).expect("grows");
        word(&pm, first, 0).publish(&pm, 7);
        word(&pm, second, 0).publish(&pm, 7);
        let before = pm.stats().frames;
        while pm.stats().frames == before {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let disk = disk.after_kill(cut);
        drop(pm);
        let pm = open_unattached(&disk, &read_write()).expect("opens");
        assert_eq!((get(&pm, first), get(&pm, second)), (7, 7));
        disk.cut_after(cut);
        // Sometimes with a repair before attaching, in two steps.
        let repair = cut % 2;
        if repair == 1 {
            word(&pm, first, 1).publish(&pm, 1);
            word(&pm, second, 1).publish(&pm, 2);
        }
        let done = pm.shrink(INITIAL).is_ok() && pm.attach(UUID).is_ok();
        let page = (FIRST_LINE + second) * 64 / 4096 * 4096;
        let disk = disk.restart_keeping(|which, at| which == Which::Pool && at == page);
        drop(pm);
        let pm = open(&disk, &read_write()).expect("opens");
        let found = |line, at| word(&pm, line, at).load(&pm, Ordering::Relaxed);
        assert!(
            found(first, 0) >= found(second, 0),
            "cut {cut}: the second fence without the first"
        );
        assert!(
            found(first, 1) * 2 >= found(second, 1),
            "cut {cut}: the second repair without the first"
        );
        if done {
            assert_eq!(
                (pm.len(), found(second, 0), found(second, 1)),
                (INITIAL, 7, 2 * repair),
                "cut {cut}"
            );
        }
    }
}

/// A journal that has become longer by much writing, after `steps` steps.
fn long_journal(seed: u64, steps: u64, acknowledged: &Acknowledged) -> (FaultDisk, Journal) {
    let disk = FaultDisk::new(seed);
    let pm = create(&disk, &read_write()).expect("creates");
    assert!(run(&pm, 1, steps, 1, acknowledged).is_none());
    let stats = pm.stats();
    assert!(stats.journal_bytes > 256 << 10, "it is longer: {stats:?}");
    (disk, pm)
}

#[test]
fn a_trimmed_journal_is_as_short_as_a_new_one_and_goes_on() {
    let acknowledged = Acknowledged::new(1);
    let (disk, pm) = long_journal(11, 1_500, &acknowledged);
    pm.trim().expect("trims");
    assert_eq!(pm.stats().journal_bytes, 256 << 10);
    assert_eq!(disk.bytes(Which::Journal).len(), 8192 + (256 << 10));
    assert!(run(&pm, 1, 50, 1, &acknowledged).is_none());
    disk.cut_now();
    drop(pm);
    let disk = disk.restart(11);
    let pm = open(&disk, &read_write()).expect("opens");
    assert_eq!(verify(&pm, 1, &acknowledged), Ok(1_550));
    // It becomes longer again.
    assert!(run(&pm, 1, 1_500, 1, &acknowledged).is_none());
    assert!(pm.stats().journal_bytes > 256 << 10);
}

/// A cut after each of the disk's events, wherever the journal stood before.
#[test]
fn a_cut_while_the_journal_is_trimmed_loses_nothing() {
    let mut cuts = 0;
    for steps in [1_100, 1_400, 1_503, 1_507, 1_999] {
        for events in (1..40).chain((40..).step_by(97)) {
            let acknowledged = Acknowledged::new(1);
            let (disk, pm) = long_journal(events, steps, &acknowledged);
            disk.cut_after(events);
            let trimmed = pm.trim();
            // Enough for the first segments to be used again.
            let failed = run(&pm, 1, 700, 1, &acknowledged);
            let cut = disk.is_cut();
            assert_eq!(failed.is_some(), cut, "trimmed: {trimmed:?}");
            disk.cut_now();
            drop(pm);
            let disk = disk.restart(events);
            let pm = open(&disk, &read_write()).expect("opens");
            let found = verify(&pm, 1, &acknowledged).expect("nothing acknowledged is lost");
            assert!(found >= steps, "{found} of {steps}");
            cuts += 1;
            if !cut {
                break;
            }
        }
    }
    assert!(cuts > 100, "{cuts} cuts");
}

/// Whichever of the two headers is refused, what is committed after that is found.
#[test]
fn commits_after_a_trim_that_failed_are_kept() {
    let mut refused = 0;
    for steps in (1_050..1_600).step_by(23) {
        for n in 1..12 {
            let acknowledged = Acknowledged::new(1);
            let (disk, pm) = long_journal(n, steps, &acknowledged);
            disk.fail_sync(n);
            let trimmed = pm.trim();
            // Enough for the segment to be used that the journal was in.
            let _ = run(&pm, 1, 300, 1, &acknowledged);
            refused += u32::from(trimmed.is_err());
            disk.cut_now();
            drop(pm);
            let pm = open(&disk.restart(n), &read_write()).expect("opens");
            let found = verify(&pm, 1, &acknowledged).expect("nothing acknowledged is lost");
            assert!(found >= steps, "{found}");
        }
    }
    assert!(refused > 50, "{refused}");
}
