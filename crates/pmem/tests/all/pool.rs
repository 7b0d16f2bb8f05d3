//! Pools on every medium that a test machine has: open, grow, lock, reopen, back up.

use bristlecone_pmem::media::{Auto, Dram, Journal, Mapped};
use bristlecone_pmem::pool::layout::CHUNK;
use bristlecone_pmem::pool::{BackupError, DataKind, RootError, RootKind};
use bristlecone_pmem::{Access, Media, MediumKind, OpenError, Pool, PoolOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn options() -> PoolOptions {
    let mut options = PoolOptions::default();
    options.media.reserve = 1 << 30;
    options
}

fn with(access: Access, medium: Option<MediumKind>) -> PoolOptions {
    let mut options = options();
    options.media.access = access;
    options.media.medium = medium;
    options
}

fn kind() -> RootKind {
    RootKind {
        design: "t".into(),
        keys: DataKind::U64,
        values: DataKind::U64,
        node_bytes: 256,
    }
}

fn grow_and_reopen<M: Media>(dir: &Path) {
    let path = dir.join("pool");
    let pool = Pool::<M>::create(&path, &options()).unwrap();
    assert!(matches!(
        Pool::<M>::create(&path, &options()),
        Err(OpenError::Exists(_))
    ));
    assert!(matches!(
        Pool::<M>::open(&path, &options()),
        Err(OpenError::Locked(_))
    ));
    let uuid = pool.uuid();
    let root = pool.create_root("numbers", &kind()).unwrap();
    assert!(matches!(
        pool.create_root("", &kind()),
        Err(RootError::BadName(_))
    ));
    let heap = root.heap();
    let blocks: Vec<u64> = (0..2_000)
        .map(|_| heap.alloc(32_768).unwrap().get())
        .collect();
    assert!(
        pool.size() > 2_000 * 32_768,
        "the pool grew: {}",
        pool.size()
    );
    for (i, block) in blocks.iter().enumerate().take(100) {
        root.word(i).publish(pool.pm(), *block);
    }
    root.publish();
    assert!(matches!(
        pool.open_root("numbers", None),
        Err(RootError::Busy(_))
    ));
    assert!(matches!(
        pool.open_root("other", None),
        Err(RootError::NotFound(_))
    ));
    drop((heap, root));
    drop(pool);
    for access in [Access::ReadWrite, Access::ReadOnly, Access::ReadWrite] {
        let pool = Pool::<M>::open(&path, &with(access, None)).unwrap();
        assert_eq!(pool.uuid(), uuid);
        assert!(pool.info().was_clean);
        assert_eq!(pool.roots().len(), 1);
        let other = RootKind {
            node_bytes: 512,
            ..kind()
        };
        assert!(matches!(
            pool.open_root("numbers", Some(&other)),
            Err(RootError::WrongKind { .. })
        ));
        let root = pool.open_root("numbers", Some(&kind())).unwrap();
        let guard = crossbeam_epoch::pin();
        let heap = root.heap();
        heap.begin_recovery();
        for (i, block) in blocks.iter().enumerate().take(100) {
            assert_eq!(root.word(i).load(pool.pm(), Ordering::Relaxed), *block);
            heap.mark(*block, 32_768, &guard).unwrap();
        }
        heap.finish_recovery();
        if access == Access::ReadOnly {
            let two = Pool::<M>::open(&path, &with(access, None)).unwrap();
            assert_eq!(two.uuid(), uuid, "readers share");
            assert!(heap.alloc(1 << 20).is_err());
        } else {
            assert_eq!(heap.stats().live_bytes, 100 * 32_768);
            let report = pool.compact().unwrap();
            assert!(report.after_bytes <= report.before_bytes);
        }
    }
    let compacted = std::fs::metadata(&path).unwrap().len();
    assert!(
        compacted <= 8 << 20,
        "{compacted} bytes are left after compacting"
    );
}

#[test]
fn mapped_pools_grow_and_reopen() {
    grow_and_reopen::<Mapped>(tempfile::tempdir().unwrap().path());
}

#[test]
fn journal_pools_grow_and_reopen() {
    grow_and_reopen::<Journal>(tempfile::tempdir().unwrap().path());
}

#[test]
fn chosen_pools_grow_and_reopen() {
    grow_and_reopen::<Auto>(tempfile::tempdir().unwrap().path());
}

#[test]
fn a_pool_stays_on_its_medium() {
    let dir = tempfile::tempdir().unwrap();
    for kind in [MediumKind::Journal, MediumKind::Mapped] {
        let path = dir.path().join(kind.name());
        let pool = Pool::<Auto>::create(&path, &with(Access::Create, Some(kind))).unwrap();
        assert_eq!(pool.info().medium, kind);
        drop(pool);
        let pool = Pool::<Auto>::open(&path, &options()).unwrap();
        assert_eq!(pool.info().medium, kind);
    }
    let nowhere = dir.path().join("d");
    let pool = Pool::<Auto>::create(&nowhere, &with(Access::Create, Some(MediumKind::Dram)));
    let pool = pool.unwrap();
    assert_eq!(pool.info().medium, MediumKind::Dram);
    assert!(pool.pm().counts().is_some_and(|counts| counts.lines > 0));
    assert!(!nowhere.exists(), "memory has no file");
    let simulated = Pool::<Auto>::create(&nowhere, &with(Access::Create, Some(MediumKind::Sim)));
    assert!(matches!(simulated, Err(OpenError::Unsupported { .. })));
    let on_dax = Pool::<Auto>::create(
        &dir.path().join("x"),
        &with(Access::Create, Some(MediumKind::Dax)),
    );
    assert!(
        matches!(on_dax, Err(OpenError::Unsupported { .. })),
        "a test folder is not on DAX"
    );
    assert!(
        !dir.path().join("x").exists(),
        "nothing is left of a failed create"
    );
}

#[test]
fn an_unclean_journal_pool_needs_its_journal_and_its_medium() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("pool"), dir.path().join("copy"));
    let pool = Pool::<Journal>::create(&path, &options()).unwrap();
    // The pool file without its journal, while it is in use.
    std::fs::copy(&path, &copy).unwrap();
    drop(pool);
    assert!(matches!(
        Pool::<Mapped>::open(&copy, &options()),
        Err(OpenError::WrongMedium { .. })
    ));
    let error = Pool::<Journal>::open(&copy, &options()).unwrap_err();
    assert!(
        error.to_string().contains("journal file is missing"),
        "{error}"
    );
    // Closed cleanly, the pool file is complete in itself.
    let moved = dir.path().join("moved");
    std::fs::copy(&path, &moved).unwrap();
    assert!(
        Pool::<Mapped>::open(&moved, &options())
            .unwrap()
            .info()
            .was_clean
    );
}

#[test]
fn a_volatile_pool_keeps_nothing_and_cannot_be_backed_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("dram");
    let pool = Pool::<Dram>::create(&path, &options()).unwrap();
    assert!(!path.exists());
    assert!(matches!(
        pool.backup(&dir.path().join("b")),
        Err(BackupError::Volatile)
    ));
}

/// Two words far apart, stored in order with a fence between: in every crash image, and so in every
/// backup, the first is never behind the second.
fn backups_are_crash_images<M: Media>(dir: &Path) {
    let path = dir.join("pool");
    let mut options = options();
    options.media.durability = bristlecone_pmem::Durability::None;
    let pool = Pool::<M>::create(&path, &options).unwrap();
    let root = pool.create_root("r", &kind()).unwrap();
    let heap = root.heap();
    let _fill: Vec<_> = (0..200).map(|_| heap.alloc(32_768).unwrap()).collect();
    root.publish();
    let stop = AtomicBool::new(false);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // An assertion that fails ends the writer, and a writer that fails ends the wait for it.
        scopeguard::defer!(stop.store(true, Ordering::Relaxed));
        let writer = scope.spawn(|| {
            let mut n = 1;
            while !stop.load(Ordering::Relaxed) {
                root.word(100).publish(pool.pm(), n);
                // Word 0 lies in another line, before word 100: it is copied earlier.
                root.word(0).publish(pool.pm(), n);
                done.store(n, Ordering::Release);
                n += 1;
            }
        });
        for i in 0..20 {
            while done.load(Ordering::Acquire) < i * 100 {
                assert!(!writer.is_finished(), "the writer ended early");
                std::hint::spin_loop();
            }
            let copy = dir.join(format!("backup {i}"));
            let before = done.load(Ordering::Acquire);
            let bytes = pool.backup(&copy).unwrap();
            assert_eq!(std::fs::metadata(&copy).unwrap().len(), bytes);
            assert!(matches!(pool.backup(&copy), Err(BackupError::Exists(_))));
            let backup = Pool::<Mapped>::open(&copy, &with(Access::ReadOnly, None)).unwrap();
            assert_ne!(backup.uuid(), pool.uuid());
            let root = backup.open_root("r", None).unwrap();
            let word = |i| root.word(i).load(backup.pm(), Ordering::Relaxed);
            let (first, second) = (word(100), word(0));
            assert!(first >= second && first - second <= 1, "{first} {second}");
            assert!(
                second >= before,
                "{before} updates were complete, {second} are there"
            );
        }
    });
}

#[test]
fn backups_of_mapped_pools_are_crash_images() {
    backups_are_crash_images::<Mapped>(tempfile::tempdir().unwrap().path());
}

#[test]
fn backups_of_journal_pools_are_crash_images() {
    backups_are_crash_images::<Journal>(tempfile::tempdir().unwrap().path());
}

#[test]
fn what_is_no_pool_says_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let open = || Pool::<Auto>::open(&path, &options()).unwrap_err();
    assert!(matches!(open(), OpenError::NotFound(_)));
    std::fs::write(&path, "").unwrap();
    assert!(matches!(open(), OpenError::NotAPool { .. }));
    std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
    assert!(matches!(open(), OpenError::NotAPool { .. }));
    assert!(matches!(
        Pool::<Auto>::open(dir.path(), &options()),
        Err(OpenError::NotAFile(_))
    ));
    std::fs::remove_file(&path).unwrap();
    drop(Pool::<Auto>::create(&path, &with(Access::Create, Some(MediumKind::Mapped))).unwrap());
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len - 65_536).unwrap();
    assert!(matches!(open(), OpenError::Truncated { .. }));
    file.set_len(100_000).unwrap();
    assert!(matches!(open(), OpenError::Truncated { .. }));
    file.set_len(len).unwrap();
    for (copy, other) in [(0, 4096), (4096, 0)] {
        let mut sector = [0; 512];
        file.read_exact_at(&mut sector, copy).unwrap();
        file.write_all_at(&[0xFF; 512], copy).unwrap();
        assert!(
            Pool::<Auto>::open(&path, &options()).is_ok(),
            "copy at {other} serves"
        );
        file.write_all_at(&sector, copy).unwrap();
    }
    file.write_all_at(b"corrupt!", 100).unwrap();
    file.write_all_at(b"corrupt!", 4196).unwrap();
    assert!(matches!(open(), OpenError::Corrupt { .. }));
}

/// A medium with caches that outlive a process, which notes the lines that are flushed, and whether
/// anything was fenced before.
struct Caches {
    mapped: Mapped,
    flushed: std::sync::Mutex<std::collections::BTreeSet<u64>>,
    /// The lines that were flushed before the first fence.
    first: AtomicU64,
}

impl bristlecone_pmem::media::Instrument for Caches {
    type Dram = bristlecone_pmem::media::Untraced;
}

// SAFETY: 1 to 6. as of `Mapped`, which it wraps.
unsafe impl Media for Caches {
    fn open(
        path: &Path,
        initial: u64,
        options: &bristlecone_pmem::MediaOptions,
    ) -> Result<Self, OpenError> {
        Ok(Self {
            mapped: Mapped::open(path, initial, options)?,
            flushed: std::sync::Mutex::default(),
            first: AtomicU64::new(0),
        })
    }

    fn kind(&self) -> MediumKind {
        self.mapped.kind()
    }

    fn flush(&self, addr: *const u8, len: usize) {
        let at = (addr.addr() - self.base().addr()) as u64;
        let lines = at / 64..(at + len as u64).div_ceil(64);
        self.flushed.lock().unwrap().extend(lines);
        self.mapped.flush(addr, len);
    }

    fn fence(&self) {
        let flushed = self.flushed.lock().unwrap().len() as u64;
        // ORDERING: Relaxed (both); one thread.
        let _ = (self.first).compare_exchange(0, flushed, Ordering::Relaxed, Ordering::Relaxed);
        self.mapped.fence();
    }

    fn base(&self) -> *mut u8 {
        self.mapped.base()
    }

    fn len(&self) -> u64 {
        self.mapped.len()
    }

    fn capacity(&self) -> u64 {
        self.mapped.capacity()
    }

    fn grow(&self, len: u64) -> Result<(), bristlecone_pmem::SpaceError> {
        self.mapped.grow(len)
    }

    fn shrink(&self, len: u64) -> Result<(), bristlecone_pmem::SpaceError> {
        self.mapped.shrink(len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<(), bristlecone_pmem::SpaceError> {
        self.mapped.punch(offset, len)
    }

    fn read_only(&self) -> bool {
        self.mapped.read_only()
    }

    fn keeps_unflushed(&self) -> bool {
        true
    }

    fn sync(&self) -> Result<(), bristlecone_pmem::CommitError> {
        self.mapped.sync()
    }
}

/// What a killed process had not flushed is made durable before the next one relies on it.
#[test]
fn what_is_in_use_is_written_back_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let pool = Pool::<Mapped>::create(&path, &options()).unwrap();
    let root = pool.create_root("numbers", &kind()).unwrap();
    let heap = root.heap();
    // Blocks of a class, and runs of chunks.
    let sizes = [64, 4096, 300_000, 1_000_000];
    let blocks = sizes.map(|bytes| (heap.alloc(bytes).unwrap().get(), bytes));
    let used = pool.info().used_bytes;
    let chunks = 1 + pool.verify().unwrap().owned_chunks;
    let killed = dir.path().join("killed");
    std::fs::copy(&path, &killed).unwrap();
    drop((heap, root, pool));
    let pool = Pool::<Caches>::open(&killed, &options()).unwrap();
    // ORDERING: Relaxed; one thread.
    let first = pool.pm().first.load(Ordering::Relaxed);
    assert!(first * 64 >= used, "{first} lines before the first fence");
    for (block, bytes) in blocks {
        let flushed = pool.pm().flushed.lock().unwrap();
        let missing =
            (block / 64..(block + bytes).div_ceil(64)).find(|line| !flushed.contains(line));
        assert_eq!(missing, None, "of {bytes} bytes");
    }
    let most = chunks * CHUNK / 64;
    assert!(first <= most, "{first} lines: also of what is free");
    drop(pool);
    // After a clean close nothing has to be.
    let pool = Pool::<Caches>::open(&killed, &options()).unwrap();
    let first = pool.pm().first.load(Ordering::Relaxed);
    assert!(first < 10, "{first} lines before the first fence");
}

/// Starts a process. Between its fork and its exec the child runs `child`, then this process runs
/// `parent`.
fn while_one_is_started(mut child: impl FnMut() + Send + Sync + 'static, parent: impl FnOnce()) {
    let (mut said, mut say) = std::io::pipe().unwrap();
    let (mut answered, answer) = std::io::pipe().unwrap();
    let mut command = Command::new("true");
    // SAFETY: 1. the child only reads, writes, unmaps and closes, and waits for no other thread's
    // lock, so that it does not matter that it is a copy of one thread only.
    unsafe {
        command.pre_exec(move || {
            child();
            say.write_all(b"1")?;
            answered.read_exact(&mut [0])
        });
    }
    let starter = std::thread::spawn(move || command.status());
    said.read_exact(&mut [0]).unwrap();
    {
        // The child, which has this end of the pipe too, also ends if an assertion fails.
        let _answers = scopeguard::guard(answer, |mut answer| answer.write_all(b"1").unwrap());
        parent();
    }
    assert!(starter.join().unwrap().unwrap().success());
}

/// A child has copies of all descriptors until its exec.
#[test]
fn a_process_that_is_started_does_not_keep_a_closed_pool_locked() {
    let dir = tempfile::tempdir().unwrap();
    for medium in [MediumKind::Mapped, MediumKind::Journal] {
        let path = dir.path().join(medium.name());
        let options = with(Access::ReadWrite, Some(medium));
        let pool = Pool::<Auto>::create(&path, &options).unwrap();
        while_one_is_started(
            || (),
            || {
                drop(pool);
                drop(Pool::<Auto>::open(&path, &options).unwrap());
            },
        );
    }
}

/// A forked child that closes its copy of a pool leaves the parent's locked.
#[test]
fn a_pool_that_a_child_closes_stays_locked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pool");
    let options = with(Access::ReadWrite, Some(MediumKind::Mapped));
    let mut pool = Some(Pool::<Auto>::create(&path, &options).unwrap());
    while_one_is_started(
        move || drop(pool.take()),
        || {
            let second = Pool::<Auto>::open(&path, &options);
            assert!(matches!(second, Err(OpenError::Locked(_))), "{second:?}");
        },
    );
}
