//! What all of a process has in common: its threads, its counts of flushes, and whether pages are
//! compared before they are dropped. Only one of these tests runs at a time.

#[path = "all/journal_support/mod.rs"]
mod journal_support;

use bristlecone_pmem::media::journal::compare_when_evicting;
use bristlecone_pmem::media::journal::fault::FaultDisk;
use bristlecone_pmem::media::{Access, Durability, Journal, LINE, Media, MediaOptions, issued};
use journal_support::{FIRST_LINE, UUID, create, format, get, options, word};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_write() -> MediaOptions {
    options(Access::ReadWrite, Durability::Immediate)
}

/// Number of this process's threads that work for a journal.
fn threads() -> usize {
    let all = std::fs::read_dir("/proc/self/task").expect("lists");
    let names = all.flatten().filter_map(|thread| {
        // One that is ending may be gone by now.
        std::fs::read_to_string(thread.path().join("comm")).ok()
    });
    names.filter(|name| name.starts_with("journal-")).count()
}

#[test]
fn a_pool_has_two_threads_until_it_is_closed() {
    let _alone = alone();
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    let until = Instant::now() + Duration::from_secs(20);
    let wait_for = |number| {
        while threads() != number {
            assert!(Instant::now() < until, "{} threads", threads());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_for(2);
    pm.attach(UUID).expect("is attached already");
    drop(pm);
    wait_for(0);
}

#[test]
fn lines_of_the_pool_are_counted_when_they_are_flushed() {
    let _alone = alone();
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    pm.sync().expect("syncs");
    let end = pm.len() as usize;
    let line = 40 * LINE;
    for (from, len, lines, pages) in [
        (line, 0, 0, 0),
        (line, 1, 1, 1),
        (line, LINE, 1, 1),
        (line, LINE + 1, 2, 1),
        (line + LINE - 1, 2, 2, 1),
        (line + 8, 3 * LINE, 4, 1),
        (PAGE as usize * 3 - 8, 16, 2, 2),
        (PAGE as usize * 3 - LINE, LINE, 1, 1),
        (end - LINE, LINE, 1, 1),
        (end - 8, 10 * LINE, 1, 1),
        (end, LINE, 0, 0),
        (end + 8, LINE, 0, 0),
    ] {
        let before = issued();
        pm.flush(pm.base().wrapping_add(from), len);
        let counted = issued() - before;
        assert_eq!((counted.lines, counted.fences), (lines, 0), "{from}, {len}");
        let captured = pm.captured();
        pm.fence();
        assert_eq!((issued() - before).fences, 1);
        assert_eq!(pm.captured() - captured, lines, "{from}, {len}");
        assert_eq!(pm.ahead(), Some(pages * PAGE), "{from}, {len}");
        pm.sync().expect("syncs");
        assert_eq!(pm.ahead(), Some(0));
    }
    let before = issued();
    pm.flush(pm.base().wrapping_sub(LINE), LINE);
    pm.fence();
    assert_eq!((issued() - before).lines, 0, "it is before the pool");
    assert_eq!(pm.ahead(), Some(0));
}

/// So tests find stores outside a section, and such as nobody fences.
#[test]
fn a_store_that_would_be_lost_is_found_if_asked_for() {
    let _alone = alone();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("pool");
    let o = options(Access::Create, Durability::Immediate);
    let bytes = 64 * PAGE;
    let pm = Journal::open(&path, bytes, &o).expect("creates");
    format(&pm, UUID);
    pm.attach(UUID).expect("attaches");
    let lines = bytes / LINE as u64 - FIRST_LINE;
    for line in 0..lines {
        word(&pm, line, 0).publish(&pm, line + 1);
    }
    pm.sync().expect("syncs");
    compare_when_evicting(true);
    scopeguard::defer!(compare_when_evicting(false));
    let evict = || pm.evict(std::slice::from_ref(&(0..bytes)), &|_| true);
    assert_eq!(evict().expect("evicts").bytes, bytes);
    // The fourth line of the ninth page.
    let line = 8 * 64 + 3 - FIRST_LINE;
    word(&pm, line, 5).store(&pm, 7, Ordering::Relaxed);
    let panic = catch_unwind(AssertUnwindSafe(evict)).expect_err("panics");
    let text = panic.downcast_ref::<String>().expect("a text");
    assert!(text.starts_with("page 8, line Some(3): "), "{text}");
    assert_eq!(word(&pm, line, 5).load(&pm, Ordering::Relaxed), 7);
    compare_when_evicting(false);
    assert_eq!(evict().expect("evicts").bytes, bytes);
    assert_eq!(word(&pm, line, 5).load(&pm, Ordering::Relaxed), 0);
    assert_eq!(get(&pm, line), line + 1);
}
