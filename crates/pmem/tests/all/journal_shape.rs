//! The pool's and the journal's lengths, and what attaching a pool begins.

use crate::journal_support::{
    FIRST_LINE, INITIAL, UUID, create, format, get, open, open_unattached, options, word,
};
use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
use bristlecone_pmem::media::journal::journal_path;
use bristlecone_pmem::media::{
    Access, Durability, Journal, Media, MediaOptions, MediumKind, deferring_commits,
};
use bristlecone_pmem::{CommitError, OpenError, SpaceError};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
const SEGMENT: u64 = 64 << 10;

fn read_write() -> MediaOptions {
    options(Access::ReadWrite, Durability::Immediate)
}

/// A disk that lost power after a commit that the journal has.
fn crashed() -> FaultDisk {
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    word(&pm, 1, 0).publish(&pm, 5);
    pm.commit().expect("commits");
    disk.restart_keeping(|_, _| false)
}

fn commit_lines(pm: &Journal, lines: u64, value: u64) {
    for line in 0..lines {
        let word = word(pm, line, 0);
        word.store(pm, value, std::sync::atomic::Ordering::Relaxed);
        pm.flush_of(word);
    }
    pm.fence();
    pm.commit().expect("commits");
}

fn wait_until(what: &str, met: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !met() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_journal_says_what_it_is() {
    let name = journal_path(Path::new("a/pool"));
    assert_eq!(name, Path::new("a/pool.journal"));
    let disk = FaultDisk::new(1);
    let every = Durability::Interval(Duration::from_secs(60));
    for durability in [every, Durability::None, Durability::Immediate] {
        disk.set_bytes(Which::Pool, Vec::new());
        disk.set_bytes(Which::Journal, Vec::new());
        let pm = create(&disk, &options(Access::ReadWrite, durability)).expect("creates");
        assert_eq!(
            (pm.kind(), pm.durability()),
            (MediumKind::Journal, durability)
        );
        assert!(!pm.had_journal() && !pm.history_found() && !pm.read_only());
        assert!(pm.sections().is_some() && pm.recorder().is_some());
        assert_eq!((pm.len(), pm.capacity()), (INITIAL, 64 << 20));
        assert_eq!(pm.recovery().journal_format, None);
    }
    let o = options(Access::ReadOnly, Durability::None);
    let pm = open(&disk, &o).expect("opens");
    assert!(pm.had_journal() && pm.history_found() && pm.read_only());
    assert!(pm.recovery().journal_format.is_some());
}

#[test]
fn nothing_is_promised_before_a_pool_is_attached() {
    let disk = crashed();
    let events = disk.events();
    let pm = open_unattached(&disk, &read_write()).expect("opens");
    // More than commits would wait for.
    for i in 0..20_000 {
        word(&pm, 64 + i % 2_000, 0).publish(&pm, i);
        pm.commit().expect("waits for nothing");
    }
    assert!(!pm.is_behind());
    pm.wait_for_room().expect("there is room");
    pm.commit_all().expect("waits for nothing");
    pm.sync().expect("syncs nothing");
    let whole = 0..INITIAL;
    let evicted = pm.evict(std::slice::from_ref(&whole), &|_| true);
    assert_eq!(evicted.expect("drops nothing"), Default::default());
    assert_eq!(disk.events(), events);
    pm.attach(UUID).expect("attaches");
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &read_write()).expect("opens");
    assert_eq!((get(&pm, 1), get(&pm, 64)), (5, 18_000));
}

#[test]
fn a_pool_is_attached_once() {
    let disk = crashed();
    let pm = open(&disk, &read_write()).expect("opens");
    let events = disk.events();
    pm.attach(UUID).expect("is attached");
    pm.attach(*b"of another pool.").expect("is attached");
    assert_eq!(disk.events(), events);
    drop(pm);
    let o = options(Access::ReadOnly, Durability::Immediate);
    let pm = open_unattached(&disk, &o).expect("opens");
    let events = disk.events();
    pm.attach(*b"of another pool.").expect("begins nothing");
    assert_eq!(disk.events(), events);
}

#[test]
fn another_pools_name_is_refused_for_a_journal_that_was_replayed() {
    let other = *b"of another pool.";
    let disk = crashed();
    let pm = open_unattached(&disk, &read_write()).expect("opens");
    let error = pm.attach(other).expect_err("refused");
    assert!(matches!(error, OpenError::Corrupt { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("pool.journal"), "{text}");
    let why = "the pool's UUID is not the one that its journal was replayed for";
    assert!(text.contains(why), "{text}");
    pm.attach(UUID).expect("its own is not");
    drop(pm);
    // One of which nothing was replayed is made anew.
    let pm = open_unattached(&disk, &read_write()).expect("opens");
    assert!(pm.had_journal());
    format(&pm, other);
    pm.attach(other).expect("attaches");
    word(&pm, 2, 0).publish(&pm, 6);
    pm.commit().expect("commits");
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open_unattached(&disk, &read_write()).expect("opens");
    assert!(pm.had_journal());
    assert_eq!((get(&pm, 1), get(&pm, 2)), (5, 6));
    pm.attach(other).expect("attaches");
}

#[test]
fn a_thread_that_defers_commits_does_not_wait() {
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    let events = disk.events();
    deferring_commits(|| {
        word(&pm, 1, 0).publish(&pm, 5);
        pm.commit().expect("waits for nothing");
        pm.commit_all().expect("waits for nothing");
    });
    assert_eq!(disk.events(), events);
    pm.commit().expect("commits");
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    assert_eq!(get(&open(&disk, &read_write()).expect("opens"), 1), 5);
}

#[test]
fn a_commit_of_all_waits_for_what_other_threads_fenced() {
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    let captured = pm.captured();
    std::thread::scope(|scope| {
        let fencing = || word(&pm, 1, 0).publish(&pm, 5);
        scope.spawn(fencing).join().expect("no panics");
    });
    assert_eq!(pm.captured() - captured, 1);
    let events = disk.events();
    pm.commit().expect("this thread has nothing");
    assert_eq!(disk.events(), events);
    pm.commit_all().expect("commits");
    assert_eq!(disk.events(), events + 1);
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    assert_eq!(get(&open(&disk, &read_write()).expect("opens"), 1), 5);
}

#[test]
fn a_pool_grows_up_to_its_capacity() {
    let o = MediaOptions {
        reserve: 4 << 20,
        ..read_write()
    };
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &o).expect("creates");
    let events = disk.events();
    for len in [0, PAGE, INITIAL] {
        pm.grow(len).expect("is as long");
    }
    assert_eq!((pm.len(), disk.events()), (INITIAL, events));
    disk.set_capacity(Some(1));
    let full = pm.grow(2 << 20).expect_err("the disk is full");
    assert!(
        matches!(&full, SpaceError::Io { doing: "reserving space for the file", source }
            if source.kind() == ErrorKind::StorageFull),
        "{full}"
    );
    disk.set_capacity(None);
    assert_eq!(pm.len(), INITIAL);
    let refused = pm.grow((4 << 20) + PAGE).expect_err("too long");
    assert!(
        matches!(refused, SpaceError::Capacity { wanted, capacity }
            if (wanted, capacity) == ((4 << 20) + PAGE, 4 << 20)),
        "{refused}"
    );
    pm.grow(4 << 20).expect("grows");
    assert_eq!(pm.len(), 4 << 20);
    assert_eq!(disk.bytes(Which::Pool).len(), 4 << 20);
    let last = (4 << 20) / 64 - FIRST_LINE - 1;
    word(&pm, last, 0).publish(&pm, 8);
    pm.sync().expect("syncs");
    assert_eq!(disk.bytes(Which::Pool)[(4 << 20) - 64], 8);
}

#[test]
fn all_that_a_shrunk_pool_loses_is_zero_when_it_grows_again() {
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    let long = INITIAL * 5;
    pm.grow(long).expect("grows");
    let pages = INITIAL / PAGE..long / PAGE;
    let line = |page: u64| page * 64 - FIRST_LINE + page % 64;
    for page in pages.clone() {
        word(&pm, line(page), 0).publish(&pm, page);
    }
    word(&pm, 7, 0).publish(&pm, 7);
    pm.sync().expect("syncs");
    let events = disk.events();
    pm.shrink(long).expect("is as short");
    pm.shrink(long + PAGE).expect("is shorter");
    assert_eq!((pm.len(), disk.events()), (long, events));
    pm.shrink(INITIAL).expect("shrinks");
    assert_eq!(pm.len(), INITIAL);
    assert_eq!(disk.bytes(Which::Pool).len() as u64, INITIAL);
    pm.grow(long).expect("grows again");
    for page in pages {
        assert_eq!(get(&pm, line(page)), 0, "page {page}");
    }
    assert_eq!(get(&pm, 7), 7);
}

#[test]
fn a_shape_that_cannot_be_synced_is_an_error_and_the_last_one() {
    type Change = fn(&Journal) -> Result<(), SpaceError>;
    let changes: [Change; 2] = [|pm| pm.shrink(INITIAL), |pm| pm.punch(INITIAL, 4 * PAGE)];
    for change in changes {
        let disk = FaultDisk::new(1);
        let pm = create(&disk, &read_write()).expect("creates");
        pm.grow(INITIAL * 2).expect("grows");
        word(&pm, 1, 0).publish(&pm, 5);
        pm.sync().expect("syncs");
        disk.fail_one_sync(1);
        let error = change(&pm).expect_err("the sync fails");
        assert!(
            matches!(&error, SpaceError::Io { doing: "syncing the pool file", source }
                if source.raw_os_error() == Some(5)),
            "{error}"
        );
        word(&pm, 1, 0).publish(&pm, 6);
        for _ in 0..2 {
            let failed = [pm.commit(), pm.sync(), pm.commit_all(), pm.wait_for_room()];
            for error in failed {
                let error = error.expect_err("nothing is written any more");
                assert!(
                    matches!(
                        error,
                        CommitError::Failed {
                            doing: "syncing the pool file",
                            ..
                        }
                    ),
                    "{error}"
                );
            }
        }
        assert!(pm.is_behind());
    }
}

/// A pool whose file is too long is shrunk before it is attached.
#[test]
fn a_shape_is_changed_before_attaching_or_the_disks_error_told() {
    let shrink = |disk: &FaultDisk| {
        let pm = open_unattached(disk, &read_write()).expect("opens");
        let result = pm.shrink(INITIAL - PAGE);
        (pm.len(), result)
    };
    let disk = crashed();
    disk.fail_one_sync(1);
    let (len, result) = shrink(&disk);
    assert!(
        matches!(&result, Err(SpaceError::Io { doing: "sync", source })
            if source.raw_os_error() == Some(5)),
        "{result:?}"
    );
    assert_eq!(len, INITIAL);
    let disk = crashed();
    disk.set_full(true);
    let (_, result) = shrink(&disk);
    assert!(
        matches!(&result, Err(SpaceError::Io { doing: "write", source })
            if source.kind() == ErrorKind::StorageFull),
        "{result:?}"
    );
    disk.set_full(false);
    let (len, result) = shrink(&disk);
    assert!(result.is_ok(), "{result:?}");
    assert_eq!(len, INITIAL - PAGE);
    let pm = open(&disk, &read_write()).expect("opens");
    assert_eq!((pm.recovery().batches_replayed, get(&pm, 1)), (0, 5));
}

/// A checkpoint takes longer than more zeros at the journal's end do.
#[test]
fn a_journal_that_is_short_for_its_pool_becomes_longer_before_a_checkpoint_is_made() {
    // Segments of 128 KiB: the new journal has 512 KiB, and a quarter of the pool is 2 MiB.
    let o = MediaOptions {
        journal_max: 8 << 20,
        ..read_write()
    };
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &o).expect("creates");
    pm.grow(8 << 20).expect("grows");
    word(&pm, 100_000, 0).publish(&pm, 1);
    pm.sync().expect("syncs");
    let before = pm.stats();
    assert_eq!(before.journal_bytes, 512 << 10);
    // Half of it and some more.
    commit_lines(&pm, 3_700, 1);
    commit_lines(&pm, 500, 2);
    wait_until("it is not longer", || pm.stats().journal_bytes > 512 << 10);
    let after = pm.stats();
    assert_eq!(after.journal_bytes, 2 << 20);
    assert_eq!(disk.bytes(Which::Journal).len(), 8192 + (2 << 20));
    assert_eq!(after.checkpoints, before.checkpoints);
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &o).expect("opens");
    assert_eq!((get(&pm, 499), get(&pm, 500), get(&pm, 3_699)), (2, 1, 1));
}

#[test]
fn a_journal_is_no_longer_than_its_limit_and_shorter_when_closed() {
    // Segments of 64 KiB, at most 64 of them; 8 are a quarter of the pool.
    let o = MediaOptions {
        journal_max: 4 << 20,
        ..read_write()
    };
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &o).expect("creates");
    pm.grow(2 << 20).expect("grows");
    word(&pm, 30_000, 0).publish(&pm, 1);
    let mut value = 0;
    while pm.stats().frame_bytes < 12 << 20 {
        value += 1;
        commit_lines(&pm, 3_000, value);
        assert!(pm.stats().journal_bytes <= 4 << 20, "{:?}", pm.stats());
    }
    assert!(pm.stats().journal_bytes >= 1 << 20, "{:?}", pm.stats());
    drop(pm);
    let kept = 8192 + 8 * SEGMENT;
    assert_eq!(disk.bytes(Which::Journal).len() as u64, kept);
    let pm = open(&disk, &o).expect("opens");
    assert_eq!(pm.stats().journal_bytes, 8 * SEGMENT);
    assert_eq!(pm.recovery().batches_replayed, 0);
    assert!((0..3_000).all(|line| get(&pm, line) == value));
    // With less of a limit less is kept, but four segments.
    drop(pm);
    for (journal_max, segments) in [(6 * SEGMENT, 6), (SEGMENT, 4)] {
        let o = MediaOptions {
            journal_max,
            ..read_write()
        };
        drop(open(&disk, &o).expect("opens"));
        let kept = 8192 + segments * SEGMENT;
        assert_eq!(disk.bytes(Which::Journal).len() as u64, kept);
    }
}

#[test]
fn a_new_journal_has_four_segments_of_a_64th_of_its_limit() {
    for (journal_max, segment) in [
        (1, 64 << 10),
        (4 << 20, 64 << 10),
        (8 << 20, 128 << 10),
        (15 << 20, 128 << 10),
        (16 << 20, 256 << 10),
        (64 << 20, 1 << 20),
        (1 << 40, 1 << 20),
    ] {
        let o = MediaOptions {
            journal_max,
            ..read_write()
        };
        let disk = FaultDisk::new(1);
        let pm = create(&disk, &o).expect("creates");
        assert_eq!(pm.stats().journal_bytes, 4 * segment, "{journal_max}");
        assert_eq!(disk.bytes(Which::Journal).len() as u64, 8192 + 4 * segment);
        assert_eq!(pm.stats().checkpoints, 1);
    }
}

#[test]
fn trimming_a_journal_that_is_short_and_empty_writes_nothing() {
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    word(&pm, 1, 0).publish(&pm, 1);
    pm.sync().expect("syncs");
    let events = disk.events();
    pm.trim().expect("trims");
    pm.sync().expect("syncs");
    assert_eq!(disk.events(), events);
    // One that holds something is emptied.
    word(&pm, 1, 0).publish(&pm, 2);
    pm.trim().expect("trims");
    assert_eq!(pm.ahead(), Some(0));
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &read_write()).expect("opens");
    assert_eq!((pm.recovery().batches_replayed, get(&pm, 1)), (0, 2));
}

/// Lines that were flushed, and cut off before the fence, are the pool's no longer.
#[test]
fn what_was_cut_off_before_a_fence_is_not_captured() {
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    pm.grow(INITIAL * 2).expect("grows");
    let end = INITIAL / 64 - FIRST_LINE;
    for line in [end - 1, end, end + 1, end + 1_000] {
        word(&pm, line, 0).store(&pm, 5, std::sync::atomic::Ordering::Relaxed);
        pm.flush_of(word(&pm, line, 0));
    }
    pm.shrink(INITIAL).expect("shrinks");
    let captured = pm.captured();
    pm.fence();
    assert_eq!(pm.captured(), captured + 1);
    pm.commit().expect("commits");
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &read_write()).expect("opens");
    assert_eq!((pm.len(), get(&pm, end - 1)), (INITIAL, 5));
}

#[test]
fn a_pool_that_ends_inside_a_page_keeps_its_length() {
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    let len = INITIAL + 1024;
    pm.grow(len).expect("grows");
    let last = len / 64 - FIRST_LINE - 1;
    word(&pm, last, 0).publish(&pm, 5);
    pm.sync().expect("syncs");
    let file = disk.bytes(Which::Pool);
    assert_eq!((file.len() as u64, file[file.len() - 64]), (len, 5));
    drop(pm);
    let pm = open(&disk, &read_write()).expect("opens");
    assert_eq!((pm.len(), get(&pm, last)), (len, 5));
}
