//! What recovery takes for damage and what for the trace of a power failure, what it writes and
//! what it reports.

use crate::journal_support::{
    Acknowledged, FIRST_LINE, INITIAL, UUID, create, get, open, open_unattached, options, run,
    verify, word,
};
use bristlecone_pmem::OpenError;
use bristlecone_pmem::media::journal::fault::{Change, FaultDisk, What, Which};
use bristlecone_pmem::media::{Access, Durability, Journal, Media, MediaOptions};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Where the frames begin, and how long their segments are here.
const DATA_AT: usize = 8192;
const SEGMENT: usize = 64 << 10;
const SECTOR: usize = 512;

fn read_write() -> MediaOptions {
    options(Access::ReadWrite, Durability::Immediate)
}

/// The sequence number of the frame there.
fn seq_at(journal: &[u8], at: usize) -> u64 {
    assert_eq!(&journal[at..at + 4], b"JFRM");
    u64::from_le_bytes(journal[at + 8..at + 16].try_into().expect("8 bytes"))
}

/// A disk that lost power after so many commits, of one line and one frame of a sector each. The
/// n-th has put n into line n. The first frame is the first of the journal.
fn after_commits(commits: u64) -> FaultDisk {
    let disk = FaultDisk::new(1);
    drop(create(&disk, &read_write()).expect("creates"));
    let pm = open(&disk, &read_write()).expect("opens");
    for i in 1..=commits {
        word(&pm, i, 0).publish(&pm, i);
        pm.commit().expect("commits");
    }
    let stats = pm.stats();
    assert_eq!((stats.frames, stats.frame_bytes), (commits, commits * 512));
    let after = disk.restart_keeping(|_, _| false);
    drop(pm);
    after
}

/// The same pool, with a journal that was changed.
fn with_journal(disk: &FaultDisk, change: impl FnOnce(&mut Vec<u8>)) -> FaultDisk {
    let changed = FaultDisk::new(2);
    changed.set_bytes(Which::Pool, disk.bytes(Which::Pool));
    let mut journal = disk.bytes(Which::Journal);
    change(&mut journal);
    changed.set_bytes(Which::Journal, journal);
    changed
}

fn error(disk: &FaultDisk) -> String {
    let error = open_unattached(disk, &read_write()).expect_err("damaged");
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
    error.to_string()
}

#[test]
fn a_frame_that_was_durable_and_is_damaged_is_named() {
    let commits = 9;
    let disk = after_commits(commits);
    let journal = disk.bytes(Which::Journal);
    let first = seq_at(&journal, DATA_AT);
    for i in 0..commits {
        let at = DATA_AT + i as usize * SECTOR;
        assert_eq!(seq_at(&journal, at), first + i);
        // A bit of its line, or its name, with which it is no frame any more.
        for (byte, peeks) in [(80, true), (0, false)] {
            let disk = with_journal(&disk, |journal| journal[at + byte] ^= 1);
            if i + 1 < commits {
                let text = error(&disk);
                let place = i * 512;
                let seq = first + i;
                let last = first + commits - 1;
                let expected = format!(
                    "frame {seq} (segment 0, byte {place}) is damaged, and was durable before frame {last} was written"
                );
                assert!(text.contains(&expected), "{text}");
                continue;
            }
            // Nothing says that the last one was ever whole.
            let pm = open_unattached(&disk, &read_write()).expect("opens");
            let report = pm.recovery();
            assert_eq!(report.batches_replayed, commits - 1);
            assert_eq!(report.lines_replayed, commits - 1);
            assert_eq!(report.torn_tail, peeks);
            assert_eq!((get(&pm, i), get(&pm, i + 1)), (i, 0));
        }
    }
}

#[test]
fn the_next_segment_proves_that_the_last_frame_of_one_was_durable() {
    let in_one = (SEGMENT / SECTOR) as u64;
    let disk = after_commits(in_one + 5);
    let journal = disk.bytes(Which::Journal);
    let first = seq_at(&journal, DATA_AT);
    let at = DATA_AT + SEGMENT - SECTOR;
    let disk_with = with_journal(&disk, |journal| journal[at + 80] ^= 1);
    let text = error(&disk_with);
    let (seq, last) = (first + in_one - 1, first + in_one + 4);
    let expected = format!(
        "frame {seq} (segment 0, byte {}) is damaged, and was durable before frame {last} was",
        SEGMENT - SECTOR
    );
    assert!(text.contains(&expected), "{text}");
    // Whole, it is replayed with the next segment's.
    let pm = open_unattached(&disk, &read_write()).expect("opens");
    let report = pm.recovery();
    assert_eq!(report.batches_replayed, in_one + 5);
    assert_eq!(report.bytes_read, 2 * SEGMENT as u64);
    assert!(!report.torn_tail);
}

/// Only the frames behind it in its segment prove that it was durable.
#[test]
fn the_first_frame_of_a_segment_is_missed() {
    let in_one = (SEGMENT / SECTOR) as u64;
    let disk = after_commits(in_one + 5);
    let first = seq_at(&disk.bytes(Which::Journal), DATA_AT);
    let (seq, last) = (first + in_one, first + in_one + 4);
    // A bit of its line, its name and its number.
    for byte in [80, 0, 8 + 7] {
        let damaged = with_journal(&disk, |journal| journal[DATA_AT + SEGMENT + byte] ^= 1);
        let text = error(&damaged);
        let expected = format!(
            "frame {seq} (segment 0, byte {SEGMENT}) is damaged, and was durable before frame {last} was written"
        );
        assert!(text.contains(&expected), "{text}");
    }
    // If it is the last one, nothing proves that.
    let disk = after_commits(in_one + 1);
    let damaged = with_journal(&disk, |journal| journal[DATA_AT + SEGMENT + 80] ^= 1);
    let pm = open_unattached(&damaged, &read_write()).expect("opens");
    assert_eq!(pm.recovery().batches_replayed, in_one);
}

/// Both the pool file's pages and what the header says depend on the frames below.
#[test]
fn a_frame_that_a_checkpoint_relied_on_is_missed() {
    let frames = |pm: &Journal| {
        for i in 1..=3 {
            word(pm, i * 64, 0).publish(pm, i);
            pm.commit().expect("commits");
        }
    };
    let mut missed = 0;
    for cut in 1.. {
        let disk = FaultDisk::new(1);
        drop(create(&disk, &read_write()).expect("creates"));
        let pm = open(&disk, &read_write()).expect("opens");
        frames(&pm);
        let before = disk.bytes(Which::Pool);
        disk.cut_after(cut);
        let synced = pm.sync().is_ok();
        let disk = disk.restart_keeping(|_, _| true);
        drop(pm);
        if synced {
            assert!(cut > 5, "a checkpoint has some steps");
            break;
        }
        let written = disk.bytes(Which::Pool) != before;
        // The last frame, of which nothing else says that it was durable.
        let at = DATA_AT + 2 * SECTOR;
        let seq = seq_at(&disk.bytes(Which::Journal), at);
        let damaged = with_journal(&disk, |journal| journal[at + 80] ^= 1);
        match open_unattached(&damaged, &read_write()) {
            Err(e) => {
                let expected = format!(
                    "frame {seq} (segment 0, byte 1024) is damaged, and the pool file depends on it"
                );
                assert!(e.to_string().contains(&expected), "{e}");
                missed += 1;
            }
            // The head has moved past it, or no page has been written.
            Ok(pm) if pm.recovery().batches_replayed == 0 => assert_eq!(get(&pm, 192), 3),
            Ok(pm) => {
                assert!(!written, "cut {cut}");
                assert_eq!((get(&pm, 128), get(&pm, 192)), (2, 0));
            }
        }
    }
    assert!(missed > 2, "{missed}");
}

/// Where nobody waits for the disk, a checkpoint does before it writes a page.
#[test]
fn pages_are_never_ahead_of_a_journal_that_nobody_synced() {
    let o = options(Access::ReadWrite, Durability::None);
    for kept in 0..4 {
        for cut in 1.. {
            let disk = FaultDisk::new(cut);
            let acknowledged = Acknowledged::new(1);
            let pm = create(&disk, &o).expect("creates");
            pm.sync().expect("syncs");
            assert!(run(&pm, 1, 60, 1, &acknowledged).is_none());
            disk.cut_after(cut);
            let synced = pm.sync().is_ok();
            // Of the pool file some pages and of the journal nothing that was not synced.
            let disk =
                disk.restart_keeping(|which, at| which == Which::Pool && (at / PAGE) % 4 != kept);
            drop(pm);
            let pm = open(&disk, &o).expect("opens");
            let found = verify(&pm, 1, &acknowledged);
            assert!(found.is_ok(), "cut {cut}: {found:?}");
            if synced {
                assert_eq!(found, Ok(60));
                break;
            }
        }
    }
}

/// The rest of a segment that was used before is no torn write.
#[test]
fn old_frames_behind_the_end_are_not_a_torn_tail() {
    let o = MediaOptions {
        journal_max: 256 << 10,
        ..read_write()
    };
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &o).expect("creates");
    let sector = |i: u64| {
        word(&pm, i % 500, 0).publish(&pm, i);
        pm.commit().expect("commits");
    };
    (0..1_500).for_each(sector);
    pm.sync().expect("syncs");
    (0..9).for_each(sector);
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let journal = disk.bytes(Which::Journal);
    let frames = journal[DATA_AT..].chunks(SECTOR).map(|sector| &sector[..4]);
    assert_eq!(
        frames.filter(|name| name == b"JFRM").count() * SECTOR,
        256 << 10
    );
    let pm = open_unattached(&disk, &o).expect("opens");
    let report = pm.recovery();
    assert_eq!((report.batches_replayed, report.torn_tail), (9, false));
}

/// Both headers have a session's epoch before a frame carries it.
#[test]
fn a_header_that_is_damaged_takes_no_frame_of_a_later_session_with_it() {
    let disk = after_commits(3);
    for header in [0, 4096] {
        let damaged = with_journal(&disk, |journal| journal[header..header + 16].fill(0x5a));
        let pm = open(&damaged, &read_write()).expect("opens by the other header");
        for line in 1..=3 {
            assert_eq!(get(&pm, line), line, "line {line}, header at {header}");
        }
    }
}

/// Writes of frames to the journal while the pool was attached, before anything was synced.
fn written_again(disk: &FaultDisk, o: &MediaOptions) -> Vec<u64> {
    let pm = open_unattached(disk, o).expect("opens");
    disk.record();
    pm.attach(UUID).expect("attaches");
    let events = disk.taken();
    let before = events.into_iter().take_while(|event| {
        assert_eq!(event.which, Which::Journal);
        !matches!(event.what, What::Sync(_))
    });
    before
        .map(|event| match event.what {
            What::Change(Change::Write(at, _)) => at,
            what => panic!("{what:?}"),
        })
        .collect()
}

/// After a failed sync the page cache has what the disk lacks, and takes it for written.
#[test]
fn frames_that_nothing_calls_durable_are_written_once_more() {
    let disk = after_commits(7);
    assert_eq!(
        written_again(&disk, &read_write()),
        [(DATA_AT + 6 * SECTOR) as u64],
        "the seventh says that those before it were durable"
    );
    let o = options(Access::ReadWrite, Durability::None);
    let disk = FaultDisk::new(1);
    drop(create(&disk, &o).expect("creates"));
    let pm = open(&disk, &o).expect("opens");
    for i in 1..=3 {
        word(&pm, i, 0).publish(&pm, i);
        let until = Instant::now() + Duration::from_secs(20);
        while pm.stats().frames < i {
            assert!(Instant::now() < until, "nobody writes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let disk = disk.restart_keeping(|_, _| true);
    drop(pm);
    let frames = (0..3).map(|i| (DATA_AT + i * SECTOR) as u64);
    assert_eq!(written_again(&disk, &o), frames.collect::<Vec<_>>());
}

#[test]
fn a_frame_that_is_gone_when_the_pool_is_attached_is_an_error() {
    let disk = after_commits(4);
    let journal = disk.bytes(Which::Journal);
    let at = DATA_AT + 3 * SECTOR;
    let seq = seq_at(&journal, at);
    let other = journal[at - SECTOR..at].to_vec();
    type Change<'c> = &'c dyn Fn(&mut Vec<u8>);
    let changes: [Change; 4] = [
        &|journal| journal[at + 80] ^= 1,
        &|journal| journal[at..at + SECTOR].fill(0),
        &|journal| journal[at..at + SECTOR].copy_from_slice(&other),
        &|journal| journal.truncate(at + SECTOR - 1),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let disk = with_journal(&disk, |_| {});
        let pm = open_unattached(&disk, &read_write()).expect("opens");
        assert_eq!(get(&pm, 4), 4);
        let mut bytes = journal.clone();
        change(&mut bytes);
        disk.set_bytes(Which::Journal, bytes.clone());
        let error = pm.attach(UUID).expect_err("it is not there any more");
        let text = error.to_string();
        let expected = format!("frame {seq} was there when it was replayed and now is not");
        assert!(text.contains(&expected), "{i}: {text}");
        assert!(text.contains("pool.journal"), "{text}");
        assert!(disk.bytes(Which::Journal) == bytes, "nothing was written");
    }
}

#[test]
fn opening_reports_what_it_replayed_and_writes_nothing() {
    let disk = after_commits(10);
    let events = disk.events();
    let pm = open_unattached(&disk, &read_write()).expect("opens");
    assert_eq!(disk.events(), events);
    let report = pm.recovery();
    assert_eq!((report.batches_replayed, report.lines_replayed), (10, 10));
    assert_eq!(report.bytes_read, SEGMENT as u64);
    assert!(report.journal_format.is_some() && !report.torn_tail);
    assert!(report.problems.is_empty());
    assert!(pm.had_journal() && pm.history_found());
    // Ten lines of one page, which the pool file lacks.
    assert_eq!(pm.ahead(), Some(PAGE));
    let stats = pm.stats();
    assert_eq!((stats.frames, stats.syncs, stats.checkpoints), (0, 0, 0));
    assert_eq!(stats.used_bytes, 10 * SECTOR as u64);

    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    pm.sync().expect("syncs");
    let line = 3 * 64 - FIRST_LINE % 64 - 1;
    // On both sides of a page's end, and one on another page.
    for line in [line, line + 1, line + 300] {
        word(&pm, line, 0).publish(&pm, line);
    }
    pm.commit().expect("commits");
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open_unattached(&disk, &read_write()).expect("opens");
    assert_eq!(pm.ahead(), Some(3 * PAGE));
    assert_eq!(pm.recovery().lines_replayed, 3);
}

#[test]
fn a_pool_may_be_as_long_as_its_address_range() {
    let (long, short) = (4 << 20, 2 << 20);
    let o = MediaOptions {
        reserve: long,
        ..read_write()
    };
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &o).expect("creates");
    let file = disk.bytes(Which::Pool);
    assert_eq!(pm.capacity(), long);
    pm.grow(long).expect("grows");
    let last = long / 64 - FIRST_LINE - 1;
    word(&pm, last, 0).publish(&pm, 5);
    pm.commit().expect("commits");
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    // Only the journal knows of it.
    disk.set_bytes(Which::Pool, file);
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let less = MediaOptions {
            access,
            reserve: short,
            ..o.clone()
        };
        let error = open_unattached(&disk, &less).expect_err("too long");
        assert!(matches!(error, OpenError::Unsupported { .. }), "{error}");
        let text = error.to_string();
        let named = [long, short].map(|bytes: u64| bytes.to_string());
        assert!(named.iter().all(|bytes| text.contains(bytes)), "{text}");
        assert_eq!(disk.bytes(Which::Pool).len() as u64, INITIAL);
        let enough = MediaOptions {
            access,
            ..o.clone()
        };
        let pm = open_unattached(&disk, &enough).expect("opens");
        assert_eq!((pm.len(), get(&pm, last)), (long, 5));
    }
}

/// The end of a file that was cut in the middle of a line is not part of it.
#[test]
fn the_odd_end_of_a_cut_pool_file_is_left_out() {
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    // Longer than what is read at a time.
    pm.grow(3 << 20).expect("grows");
    let lines = (3 << 20) / 64 - FIRST_LINE;
    for line in 0..lines {
        word(&pm, line, 0).publish(&pm, line + 1);
    }
    drop(pm);
    let mut bytes = disk.bytes(Which::Pool);
    bytes.truncate(bytes.len() - 64 - 56);
    let disk = FaultDisk::new(1);
    disk.set_bytes(Which::Pool, bytes);
    let o = options(Access::ReadOnly, Durability::Immediate);
    let pm = open_unattached(&disk, &o).expect("opens");
    for line in 0..lines - 2 {
        assert_eq!(get(&pm, line), line + 1);
    }
    // Eight bytes of it are there.
    assert_eq!(pm.len(), (3 << 20) - 64 - 56);
    assert_eq!(get(&pm, lines - 2), 0);
}
