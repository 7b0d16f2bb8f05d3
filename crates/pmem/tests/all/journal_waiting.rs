//! Who waits for the disk, and for how long: commits for one another, those who do not commit for
//! room, and all of them for a checkpoint where the journal is full. The disk stands still here
//! until a test lets it go on.

use crate::journal_support::{INITIAL, UUID, create, get, open, open_unattached, options, word};
use bristlecone_pmem::CommitError;
use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
use bristlecone_pmem::media::journal::{Site, Storage};
use bristlecone_pmem::media::{Access, Durability, Journal, Media, MediaOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Lines in a chunk of a journal with the smallest segments, about.
const CHUNK: u64 = 227;

fn read_write() -> MediaOptions {
    options(Access::ReadWrite, Durability::Immediate)
}

/// Writes wait while it is closed.
#[derive(Debug, Default)]
struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
    /// Writes that have waited or are waiting.
    stopped: AtomicU64,
}

impl Gate {
    fn close(&self) {
        *self.closed.lock().expect("no panics") = true;
    }

    fn open(&self) {
        *self.closed.lock().expect("no panics") = false;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut closed = self.closed.lock().expect("no panics");
        if *closed {
            self.stopped.fetch_add(1, Ordering::SeqCst);
        }
        while *closed {
            closed = self.changed.wait(closed).expect("no panics");
        }
    }

    fn wait_for_stopped(&self, number: u64) {
        wait_until("nobody writes", || {
            self.stopped.load(Ordering::SeqCst) >= number
        });
    }
}

/// A file behind a gate.
#[derive(Debug)]
struct Gated {
    file: Arc<dyn Storage>,
    gate: Arc<Gate>,
}

impl Storage for Gated {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.gate.pass();
        self.file.write_at(offset, bytes)
    }

    fn sync_at(&self, site: Site) -> io::Result<()> {
        self.file.sync_at(site)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8], site: Site) -> io::Result<()> {
        self.gate.pass();
        self.file.write_durable_at(offset, bytes, site)
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        self.file.allocate(from, to)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }

    fn another(&self) -> io::Result<Arc<dyn Storage>> {
        Ok(Arc::new(Self {
            file: self.file.another()?,
            gate: Arc::clone(&self.gate),
        }))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch(offset, len)
    }
}

/// Opens a new pool that was closed, with one of its files behind a gate.
fn gated(o: &MediaOptions, which: Which) -> (FaultDisk, Arc<Gate>, Journal) {
    let disk = FaultDisk::new(1);
    drop(create(&disk, o).expect("creates"));
    let gate = Arc::new(Gate::default());
    let [pool, journal] = [Which::Pool, Which::Journal].map(|file| -> Arc<dyn Storage> {
        match file == which {
            true => Arc::new(Gated {
                file: disk.file(file),
                gate: Arc::clone(&gate),
            }),
            false => disk.file(file),
        }
    });
    let pm = Journal::open_on(pool, journal, Path::new("pool"), INITIAL, o).expect("opens");
    pm.attach(UUID).expect("attaches");
    (disk, gate, pm)
}

fn wait_until(what: &str, met: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !met() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn full(e: &CommitError) -> bool {
    matches!(e, CommitError::NoSpace { source, .. } if source.kind() == io::ErrorKind::StorageFull)
}

/// Commits a line of each of these threads while the journal's file stands still with another one's
/// commit. `before` is called before the file goes on. Returns all results, the other one's first.
fn commit_together(
    threads: u64,
    before: impl FnOnce(&FaultDisk),
) -> (FaultDisk, Journal, u64, Vec<Result<(), CommitError>>) {
    let (disk, gate, pm) = gated(&read_write(), Which::Journal);
    let syncs = disk.syncs();
    let commit = |line| {
        word(&pm, line * 64, 0).publish(&pm, line + 1);
        pm.commit()
    };
    gate.close();
    let results = std::thread::scope(|scope| {
        scopeguard::defer!(gate.open());
        let commit = &commit;
        let first = scope.spawn(move || commit(0));
        gate.wait_for_stopped(1);
        let captured = pm.captured();
        let others: Vec<_> = (1..threads)
            .map(|line| scope.spawn(move || commit(line)))
            .collect();
        wait_until("not all have fenced", || {
            pm.captured() == captured + threads - 1
        });
        // Time for them to wait, although all must be right without it as well.
        std::thread::sleep(Duration::from_millis(20));
        assert!(!first.is_finished());
        assert!(others.iter().all(|other| !other.is_finished()));
        before(&disk);
        gate.open();
        let all = [first].into_iter().chain(others);
        all.map(|one| one.join().expect("no panics")).collect()
    });
    let syncs = disk.syncs() - syncs;
    (disk, pm, syncs, results)
}

#[test]
fn commits_that_come_while_one_is_written_share_the_next_sync() {
    let threads = 6;
    let (disk, pm, syncs, results) = commit_together(threads, |_| ());
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(syncs, 2);
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &read_write()).expect("opens");
    assert_eq!(pm.recovery().batches_replayed, 2);
    assert!((0..threads).all(|line| get(&pm, line * 64) == line + 1));
}

#[test]
fn all_who_wait_hear_of_a_failure() {
    let (_disk, pm, _, results) = commit_together(5, |disk| disk.fail_sync(1));
    for result in results {
        let error = result.expect_err("the sync fails");
        assert!(matches!(error, CommitError::Failed { .. }), "{error}");
    }
    assert!(matches!(pm.commit(), Err(CommitError::Failed { .. })));
}

#[test]
fn all_who_wait_hear_of_a_full_disk_and_the_next_commit_tries_again() {
    let (disk, pm, _, results) = commit_together(5, |disk| disk.set_full(true));
    for result in results {
        let error = result.expect_err("the disk is full");
        assert!(full(&error), "{error}");
    }
    for again in 1..4 {
        let error = pm.commit_all().expect_err("it still is");
        assert!(full(&error), "{error}");
        let error = pm.sync().expect_err("a whole sync tries again, too");
        assert!(full(&error), "{error}");
        // The first that tries when there is space need not wait for anyone.
        disk.set_full(false);
        match again {
            2 => pm.sync().expect("there is space"),
            _ => pm.commit_all().expect("there is space"),
        }
        word(&pm, 1, 0).publish(&pm, again);
        disk.set_full(true);
    }
    disk.set_full(false);
    pm.commit().expect("commits");
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &read_write()).expect("opens");
    assert!((0..5).all(|line| get(&pm, line * 64) == line + 1));
    assert_eq!(get(&pm, 1), 3);
}

#[test]
fn a_checkpoint_waits_for_who_is_writing_and_commits_go_on_after_it() {
    let (disk, gate, pm) = gated(&read_write(), Which::Journal);
    gate.close();
    let commit = |line| {
        word(&pm, line, 0).publish(&pm, line);
        pm.commit()
    };
    std::thread::scope(|scope| {
        scopeguard::defer!(gate.open());
        let commit = &commit;
        let first = scope.spawn(move || commit(1));
        gate.wait_for_stopped(1);
        let checkpoint = scope.spawn(|| pm.sync());
        std::thread::sleep(Duration::from_millis(20));
        let second = scope.spawn(move || commit(2));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!checkpoint.is_finished() && !second.is_finished());
        gate.open();
        for thread in [first, checkpoint, second] {
            thread.join().expect("no panics").expect("succeeds");
        }
    });
    for line in 3..20 {
        word(&pm, line, 0).publish(&pm, line);
        pm.commit().expect("commits");
    }
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &read_write()).expect("opens");
    assert!((1..20).all(|line| get(&pm, line) == line));
}

#[test]
fn a_commit_costs_one_sync_however_much_it_writes() {
    let disk = FaultDisk::new(1);
    let o = MediaOptions {
        journal_max: 64 << 20,
        ..read_write()
    };
    let pm = create(&disk, &o).expect("creates");
    pm.grow(4 << 20).expect("grows");
    word(&pm, 60_000, 0).publish(&pm, 1);
    pm.sync().expect("syncs");
    // Chunks have 256 KiB here: a line, a chunk's half, and two chunks and some.
    for (lines, frames) in [(1, 1), (1_800, 1), (9_000, 3)] {
        let (before, events) = (pm.stats(), disk.events());
        for line in 0..lines {
            let word = word(&pm, line, 0);
            word.store(&pm, lines, Ordering::Relaxed);
            pm.flush_of(word);
        }
        pm.fence();
        pm.commit().expect("commits");
        let after = pm.stats();
        assert_eq!(after.frames - before.frames, frames, "{lines} lines");
        assert_eq!(after.syncs - before.syncs, 1, "{lines} lines");
        // One frame is written through; more are written, and then synced together.
        let wrote = if frames == 1 { 1 } else { frames + 1 };
        assert_eq!(disk.events() - events, wrote, "{lines} lines");
        assert_eq!(after.checkpoints, before.checkpoints);
    }
    let disk = disk.restart_keeping(|_, _| false);
    drop(pm);
    let pm = open(&disk, &o).expect("opens");
    assert!((0..9_000).all(|line| get(&pm, line) == 9_000));
}

#[test]
fn small_commits_make_no_checkpoint() {
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    let before = pm.stats();
    for i in 1..=50 {
        word(&pm, i % 5, 0).publish(&pm, i);
        pm.commit().expect("commits");
    }
    let after = pm.stats();
    assert_eq!(after.checkpoints, before.checkpoints);
    assert_eq!(
        (after.frames - before.frames, after.syncs - before.syncs),
        (50, 50)
    );
    assert_eq!(after.frame_bytes - before.frame_bytes, 50 * 512);
    assert_eq!(after.used_bytes - before.used_bytes, 50 * 512);
}

#[test]
fn who_does_not_commit_is_behind_after_some_chunks_and_waits_for_the_disk() {
    let (_disk, gate, pm) = gated(&read_write(), Which::Journal);
    gate.close();
    let mut stored = 0;
    while !pm.is_behind() {
        stored += 1;
        word(&pm, stored % 2_000, 0).publish(&pm, stored);
        assert!(stored < 100 * CHUNK, "all of it is in memory");
    }
    assert!((31 * CHUNK..34 * CHUNK).contains(&stored), "{stored} lines");
    std::thread::scope(|scope| {
        scopeguard::defer!(gate.open());
        let waiting = scope.spawn(|| pm.wait_for_room());
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished());
        gate.open();
        waiting.join().expect("no panics").expect("there is room");
    });
    // The background writer may have filled the journal: all are behind until its checkpoint ends.
    pm.sync().expect("syncs");
    assert!(!pm.is_behind());
}

/// Those who never commit do not fill memory.
#[test]
fn what_nobody_commits_is_written_in_the_background() {
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    let frames = pm.stats().frames;
    for i in 0..20 * CHUNK {
        word(&pm, i % 2_000, 0).publish(&pm, i);
    }
    wait_until("nobody writes", || pm.stats().frames > frames + 4);
}

/// The background writer finds out, and whoever does not wait for the disk hears of it.
#[test]
fn commits_that_do_not_wait_hear_of_a_full_disk_soon() {
    for o in [
        options(Access::ReadWrite, Durability::None),
        options(
            Access::ReadWrite,
            Durability::Interval(Duration::from_millis(5)),
        ),
    ] {
        let disk = FaultDisk::new(1);
        let pm = create(&disk, &o).expect("creates");
        disk.set_full(true);
        word(&pm, 1, 0).publish(&pm, 1);
        wait_until("nobody says so", || {
            pm.commit().is_err_and(|error| full(&error))
        });
        assert!(pm.is_behind());
        disk.set_full(false);
        wait_until("it is not tried again", || pm.commit().is_ok());
        assert!(!pm.is_behind());
    }
}

#[test]
fn there_are_no_more_syncs_than_intervals() {
    let every = Duration::from_millis(100);
    let o = options(Access::ReadWrite, Durability::Interval(every));
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &o).expect("creates");
    let (began, before) = (Instant::now(), disk.syncs());
    let mut i = 0;
    while disk.syncs() < before + 4 {
        i += 1;
        word(&pm, i % 100, 0).publish(&pm, i);
        pm.commit().expect("returns at once");
        std::thread::sleep(Duration::from_millis(1));
        assert!(began.elapsed() < Duration::from_secs(30), "nobody syncs");
    }
    assert!(
        began.elapsed() > 2 * every,
        "4 syncs in {:?}",
        began.elapsed()
    );
}

/// Later, on a full disk, its first frame might find no segment.
#[test]
fn a_full_journal_is_emptied_when_it_has_been_replayed() {
    // Four segments, and never more. One is reserved for checkpoints.
    let o = MediaOptions {
        journal_max: 256 << 10,
        ..read_write()
    };
    for (segments, tight) in [(2, false), (3, true)] {
        let (disk, gate, pm) = gated(&o, Which::Pool);
        // A checkpoint that begins cannot end.
        gate.close();
        let mut i = 0;
        while pm.stats().used_bytes <= (segments - 1) * (64 << 10) {
            i += 1;
            word(&pm, i, 0).publish(&pm, i);
            pm.commit().expect("commits");
        }
        let disk = disk.restart_keeping(|_, _| false);
        gate.open();
        drop(pm);
        let events = disk.events();
        let read_only = MediaOptions {
            access: Access::ReadOnly,
            ..o.clone()
        };
        let pm = open_unattached(&disk, &read_only).expect("opens");
        assert_eq!((pm.recovery().batches_replayed, disk.events()), (i, events));
        drop(pm);
        let pm = open_unattached(&disk, &o).expect("opens");
        assert_eq!(pm.recovery().batches_replayed, i);
        assert_eq!(
            pm.stats().checkpoints,
            u64::from(tight),
            "{segments} segments"
        );
        assert_eq!(disk.events() > events, tight);
        assert_eq!(pm.ahead() == Some(0), tight);
        // It has room for more although the disk has none.
        if tight {
            let used = disk.bytes(Which::Pool).len() + disk.bytes(Which::Journal).len();
            disk.set_capacity(Some(used as u64));
            assert!(pm.stats().used_bytes < 64 << 10);
        }
        pm.attach(UUID).expect("attaches");
        word(&pm, i + 1, 0).publish(&pm, i + 1);
        pm.commit().expect("commits");
        assert!((1..=i + 1).all(|line| get(&pm, line) == line));
    }
}

#[test]
fn a_checkpoint_begins_at_half_of_the_bound() {
    let disk = FaultDisk::new(1);
    let pm = create(&disk, &read_write()).expect("creates");
    pm.sync().expect("syncs");
    pm.bound_ahead(16 * PAGE + 100);
    let dirty = |page: u64| {
        word(&pm, page * 64, 0).publish(&pm, page);
        pm.commit().expect("commits");
    };
    (0..7).for_each(dirty);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(pm.ahead(), Some(7 * PAGE));
    dirty(7);
    wait_until("it does not begin", || pm.ahead() == Some(0));
    // Another bound, and the least one.
    pm.bound_ahead(40 * PAGE);
    (10..29).for_each(dirty);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(pm.ahead(), Some(19 * PAGE));
    pm.bound_ahead(0);
    dirty(30);
    wait_until("it does not begin", || pm.ahead() == Some(0));
    assert!((0..29).all(|page| (7..10).contains(&page) || get(&pm, page * 64) == page));
}
