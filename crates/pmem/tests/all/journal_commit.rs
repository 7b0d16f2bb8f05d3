//! Commits: shared syncs, failing syncs, lack of space, and what each durability level promises.

use crate::journal_support::{Acknowledged, create, get, open, options, run, verify, word};
use bristlecone_pmem::CommitError;
use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
use bristlecone_pmem::media::{Access, Durability, Media, MediaOptions};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const IMMEDIATE: Durability = Durability::Immediate;

#[test]
fn writers_share_syncs() {
    let disk = FaultDisk::new(3);
    let pm = create(&disk, &options(Access::ReadWrite, IMMEDIATE)).expect("creates");
    disk.set_sync_time(Duration::from_micros(200));
    let before = disk.syncs();
    let (threads, commits) = (8, 200);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let pm = &pm;
            scope.spawn(move || {
                for i in 1..=commits {
                    word(pm, thread * 64, 0).publish(pm, i);
                    pm.commit().expect("commits");
                }
            });
        }
    });
    let syncs = disk.syncs() - before;
    assert!(
        syncs * 2 < threads * commits,
        "{syncs} syncs for {} commits of {threads} threads",
        threads * commits
    );
    disk.cut_now();
    drop(pm);
    let pm = open(&disk.restart(1), &options(Access::ReadWrite, IMMEDIATE)).expect("opens");
    for thread in 0..threads {
        assert_eq!(
            get(&pm, thread * 64),
            commits,
            "thread {thread}'s last commit"
        );
    }
}

#[test]
fn a_commit_without_fences_needs_no_sync() {
    let disk = FaultDisk::new(4);
    let pm = create(&disk, &options(Access::ReadWrite, IMMEDIATE)).expect("creates");
    word(&pm, 0, 0).publish(&pm, 1);
    pm.commit().expect("commits");
    let before = disk.events();
    for _ in 0..10 {
        pm.commit().expect("commits");
    }
    pm.fence();
    pm.commit().expect("commits");
    assert_eq!(disk.events(), before, "nothing new, nothing written");
}

#[test]
fn a_failed_sync_stops_acknowledgements_for_good() {
    let o = options(Access::ReadWrite, IMMEDIATE);
    for (seed, threads) in [(5, 1), (6, 3), (7, 3)] {
        let disk = FaultDisk::new(seed);
        let acknowledged = Acknowledged::new(threads);
        let pm = create(&disk, &o).expect("creates");
        assert!(
            run(&pm, threads, 50, 1, &acknowledged).is_none(),
            "works at first"
        );
        disk.fail_sync(20);
        let error =
            run(&pm, threads, 1_000, 1, &acknowledged).expect("the sync's failure surfaces");
        assert!(matches!(error, CommitError::Failed { .. }), "{error}");
        let text = error.to_string();
        assert!(
            text.contains("not durable") && text.contains("os error 5"),
            "{text}"
        );
        let acknowledged_then = format!("{acknowledged:?}");
        for _ in 0..3 {
            // Also for a thread that fenced nothing new, and for a whole sync.
            assert!(matches!(pm.commit(), Err(CommitError::Failed { .. })));
            assert!(matches!(pm.sync(), Err(CommitError::Failed { .. })));
            let again = run(&pm, threads, 5, 1, &acknowledged).expect("still failed");
            assert!(matches!(again, CommitError::Failed { .. }), "{again}");
        }
        assert_eq!(
            acknowledged_then,
            format!("{acknowledged:?}"),
            "no one was told otherwise"
        );
        drop(pm);
        disk.cut_now();
        let pm = open(&disk.restart(seed), &o).expect("reopening recovers");
        verify(&pm, threads, &acknowledged).expect("what was acknowledged is there");
        assert!(
            run(&pm, threads, 50, 1, &acknowledged).is_none(),
            "and it works again"
        );
    }
}

#[test]
fn a_failed_sync_of_the_pool_file_stops_acknowledgements_too() {
    let o = options(Access::ReadWrite, Durability::None);
    let disk = FaultDisk::new(8);
    let pm = create(&disk, &o).expect("creates");
    word(&pm, 1, 0).publish(&pm, 7);
    disk.fail_sync(1);
    assert!(matches!(pm.sync(), Err(CommitError::Failed { .. })));
    assert!(
        matches!(pm.commit(), Err(CommitError::Failed { .. })),
        "at every level"
    );
    // Fences go on without filling memory, and reading goes on.
    for i in 0..100_000 {
        word(&pm, 1, 0).publish(&pm, i);
    }
    assert_eq!(get(&pm, 1), 99_999);
}

#[test]
fn lack_of_space_is_an_error_until_there_is_space() {
    for (seed, durability) in [(9, IMMEDIATE), (10, Durability::None)] {
        let o = options(Access::ReadWrite, durability);
        let disk = FaultDisk::new(seed);
        let acknowledged = Acknowledged::new(2);
        let pm = create(&disk, &o).expect("creates");
        assert!(
            run(&pm, 2, 100, 1, &acknowledged).is_none(),
            "works at first"
        );
        disk.set_full(true);
        let began = Instant::now();
        let error = loop {
            match run(&pm, 2, 100, 1, &acknowledged) {
                Some(e) => break e,
                None => assert!(began.elapsed() < Duration::from_secs(20), "must surface"),
            }
        };
        assert!(matches!(error, CommitError::NoSpace { .. }), "{error}");
        assert!(error.to_string().contains("free some space"), "{error}");
        verify(&pm, 2, &acknowledged).expect("readable and consistent meanwhile");
        assert!(matches!(pm.sync(), Err(CommitError::NoSpace { .. })));

        // A copy of the disk as it is now, losing power: what was acknowledged is there.
        disk.set_full(false);
        let began = Instant::now();
        while run(&pm, 2, 20, 1, &acknowledged).is_some() {
            assert!(began.elapsed() < Duration::from_secs(20), "must work again");
        }
        pm.sync().expect("a whole sync works again");
        disk.cut_now();
        let steps = verify(&pm, 2, &acknowledged).expect("the live image");
        drop(pm);
        let pm = open(&disk.restart(seed), &o).expect("opens");
        assert_eq!(
            verify(&pm, 2, &acknowledged),
            Ok(steps),
            "all of it was synced"
        );
    }
}

#[test]
fn losing_power_while_out_of_space_keeps_what_was_acknowledged() {
    let o = options(Access::ReadWrite, IMMEDIATE);
    for seed in 20..40 {
        let mut disk = FaultDisk::new(seed);
        let acknowledged = Acknowledged::new(2);
        let mut pm = create(&disk, &o).expect("creates");
        for round in 0..4 {
            assert!(run(&pm, 2, 40, 1, &acknowledged).is_none());
            disk.set_full(true);
            assert!(run(&pm, 2, 40, 1, &acknowledged).is_some());
            if round % 2 == 0 {
                disk.set_full(false);
                assert!(run(&pm, 2, 3, 1, &acknowledged).is_none());
            }
            disk.cut_now();
            drop(pm);
            disk = disk.restart(seed + round);
            pm = open(&disk, &o).expect("opens");
            verify(&pm, 2, &acknowledged).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
    }
}

#[test]
fn a_journal_that_may_not_grow_does_with_what_it_has() {
    let o = options(Access::ReadWrite, IMMEDIATE);
    let disk = FaultDisk::new(11);
    let acknowledged = Acknowledged::new(3);
    let pm = create(&disk, &o).expect("creates");
    let used = disk.bytes(Which::Pool).len() + disk.bytes(Which::Journal).len();
    disk.set_capacity(Some(used as u64));
    for _ in 0..5 {
        // Without room for more segments, checkpoints must free the ones that there are.
        if let Some(e) = run(&pm, 3, 600, 1, &acknowledged) {
            assert!(matches!(e, CommitError::NoSpace { .. }), "{e}");
        }
    }
    assert!(pm.stats().checkpoints > 3, "{:?}", pm.stats());
    assert!(
        verify(&pm, 3, &acknowledged).expect("consistent") > 3 * 2_000,
        "work went on"
    );
}

#[test]
fn interval_syncs_by_itself_and_none_when_asked() {
    let disk = FaultDisk::new(12);
    let every = Durability::Interval(Duration::from_millis(5));
    let pm = create(&disk, &options(Access::ReadWrite, every)).expect("creates");
    word(&pm, 3, 0).publish(&pm, 42);
    pm.commit().expect("returns at once");
    let began = Instant::now();
    let syncs = disk.syncs();
    while disk.syncs() == syncs {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "no sync in the background"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(20));
    disk.cut_now();
    drop(pm);
    let pm = open(
        &disk.restart(1),
        &options(Access::ReadWrite, Durability::None),
    )
    .expect("opens");
    assert_eq!(get(&pm, 3), 42, "synced without being waited for");

    let disk = FaultDisk::new(13);
    let pm = create(&disk, &options(Access::ReadWrite, Durability::None)).expect("creates");
    let syncs = disk.syncs();
    for i in 0..50 {
        word(&pm, 3, 0).publish(&pm, i);
        pm.commit().expect("returns at once");
    }
    std::thread::sleep(Duration::from_millis(250));
    assert_eq!(disk.syncs(), syncs, "written, never synced");
    pm.sync().expect("syncs");
    disk.cut_now();
    drop(pm);
    let pm = open(
        &disk.restart(1),
        &options(Access::ReadWrite, Durability::None),
    )
    .expect("opens");
    assert_eq!(get(&pm, 3), 49);
}

/// Where much is written in a short time, the journal becomes longer, and few checkpoints write the
/// same pages again and again.
#[test]
fn a_burst_makes_the_journal_longer() {
    const LINES: u64 = 512;
    let o = MediaOptions {
        journal_max: 8 << 20,
        ..options(Access::ReadWrite, IMMEDIATE)
    };
    let disk = FaultDisk::new(16);
    let pm = create(&disk, &o).expect("creates");
    let (before, mut rounds) = (pm.stats(), 0);
    while pm.stats().frame_bytes - before.frame_bytes < 5 << 20 {
        rounds += 1;
        for line in 0..LINES {
            word(&pm, line, 0).store(&pm, rounds, Ordering::Release);
            pm.flush_of(word(&pm, line, 0));
        }
        pm.fence();
        pm.commit().expect("commits");
    }
    let after = pm.stats();
    assert!(after.checkpoints - before.checkpoints <= 3, "{after:?}");
    assert!(after.journal_bytes > 4 << 20, "{after:?}");
    let pm = open(&disk.restart(1), &o).expect("opens");
    assert!((0..LINES).all(|line| get(&pm, line) == rounds));
}

#[test]
fn commits_return_while_checkpoints_and_growth_go_on() {
    let disk = FaultDisk::new(14);
    let pm = create(&disk, &options(Access::ReadWrite, IMMEDIATE)).expect("creates");
    disk.set_sync_time(Duration::from_micros(20));
    let acknowledged = Acknowledged::new(3);
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scopeguard::defer!(stop.store(1, Ordering::SeqCst));
        scope.spawn(|| {
            while stop.load(Ordering::SeqCst) == 0 {
                pm.sync().expect("syncs");
                pm.grow(pm.len() + 4096).expect("grows");
            }
        });
        assert!(run(&pm, 3, 2_000, 2, &acknowledged).is_none());
    });
    assert!(pm.stats().checkpoints > 10, "{:?}", pm.stats());
    let steps = verify(&pm, 3, &acknowledged).expect("the live image");
    drop(pm);
    let pm = open(&disk, &options(Access::ReadWrite, IMMEDIATE)).expect("opens");
    assert_eq!(
        pm.recovery().batches_replayed,
        0,
        "closing left nothing to replay"
    );
    assert_eq!(verify(&pm, 3, &acknowledged), Ok(steps));
}

#[test]
fn pages_are_ahead_of_the_pool_file_until_a_checkpoint_has_written_them() {
    const PAGE: u64 = 4096;
    let disk = FaultDisk::new(7);
    let pm = create(&disk, &options(Access::ReadWrite, IMMEDIATE)).expect("creates");
    pm.sync().expect("writes a checkpoint");
    assert_eq!(pm.ahead(), Some(0));
    // Captured by fences, two lines of one page and one of another; then in the journal.
    for line in [0, 1, 2 * PAGE / 64] {
        word(&pm, line, 0).publish(&pm, 1);
    }
    assert_eq!(pm.ahead(), Some(2 * PAGE));
    pm.commit().expect("commits");
    assert_eq!(pm.ahead(), Some(2 * PAGE));
    pm.sync().expect("writes a checkpoint");
    assert_eq!(pm.ahead(), Some(0));
    word(&pm, 1, 1).publish(&pm, 2);
    pm.commit().expect("commits");
    assert_eq!(pm.ahead(), Some(PAGE));
}

/// A thread that never commits hears of a full disk, and no longer once there is space again.
#[test]
fn who_does_not_commit_waits_for_room() {
    let disk = FaultDisk::new(15);
    let pm = create(&disk, &options(Access::ReadWrite, IMMEDIATE)).expect("creates");
    let store = |i: u64| {
        word(&pm, 64 + i % 2_000, 0).store(&pm, i, Ordering::Release);
        pm.flush_of(word(&pm, 64 + i % 2_000, 0));
        pm.fence();
    };
    pm.wait_for_room().expect("there is room");
    disk.set_full(true);
    let behind = (1..1_000_000).find(|i| {
        store(*i);
        pm.is_behind()
    });
    assert!(behind.is_some(), "all of it is in memory");
    let error = pm.wait_for_room().expect_err("the disk is full");
    assert!(matches!(error, CommitError::NoSpace { .. }), "{error}");
    disk.set_full(false);
    let began = Instant::now();
    while pm.wait_for_room().is_err() {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "nobody tried again"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn lines_that_are_flushed_again_and_again_are_captured_once() {
    let disk = FaultDisk::new(17);
    let pm = create(&disk, &options(Access::ReadWrite, IMMEDIATE)).expect("creates");
    let (captured, before) = (pm.captured(), pm.stats());
    for (from, lines) in [
        (5, 1),
        (5, 1),
        (1, 1),
        (2, 3),
        (5, 2),
        (1, 1),
        (40, 1),
        (3, 3),
    ] {
        for line in from..from + lines {
            word(&pm, line, 0).store(&pm, 1, Ordering::Release);
        }
        pm.flush(word(&pm, from, 0).addr(), lines as usize * 64);
    }
    pm.fence();
    assert_eq!(pm.captured() - captured, 7, "lines 1 to 6 and 40");
    pm.fence();
    assert_eq!(pm.captured() - captured, 7, "nothing more was flushed");
    pm.commit().expect("commits");
    let after = pm.stats();
    // Two runs: a head of 64 bytes, 8 bytes each, and the lines.
    assert_eq!(after.frame_bytes - before.frame_bytes, 1024);
    let pm = open(&disk.restart(1), &options(Access::ReadWrite, IMMEDIATE)).expect("opens");
    assert_eq!(pm.recovery().lines_replayed, 7);
    let found = (0..50).filter(|line| get(&pm, *line) == 1);
    assert_eq!(found.collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 40]);
}

/// Four frames fill a segment of 64 KiB, and not only three.
#[test]
fn a_frame_is_a_quarter_of_a_segment_at_most() {
    for (lines, frames, bytes) in [(254, 1, 16 << 10), (255, 2, (16 << 10) + 512)] {
        let disk = FaultDisk::new(18);
        let pm = create(&disk, &options(Access::ReadWrite, IMMEDIATE)).expect("creates");
        let before = pm.stats();
        for line in 0..lines {
            word(&pm, line, 0).store(&pm, line + 1, Ordering::Release);
        }
        pm.flush(word(&pm, 0, 0).addr(), lines as usize * 64);
        pm.fence();
        pm.commit().expect("commits");
        let after = pm.stats();
        assert_eq!(after.frames - before.frames, frames, "{lines} lines");
        assert_eq!(after.frame_bytes - before.frame_bytes, bytes);
        let pm = open(&disk.restart(1), &options(Access::ReadWrite, IMMEDIATE)).expect("opens");
        assert!((0..lines).all(|line| get(&pm, line) == line + 1));
    }
}
