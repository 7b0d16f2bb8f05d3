//! Test support: a disk in memory that can lose power, fail to sync and run out of space.
//!
//! One [`FaultDisk`] holds the pool file and the journal file. Every write, sync, allocation,
//! truncation and hole is an event. At a chosen event the power is cut: unsynced data is then kept,
//! dropped or torn at 512-byte sectors, write by write and in any order, as the seed decides. From
//! then on every call fails, until [`FaultDisk::restart`] returns a new disk with the data that
//! survived. [`FaultDisk::record`] keeps the events, from which an explorer builds the disks of all
//! cuts.
//!
//! A sync that fails loses some of the data for good, which stays visible until the power is cut.
//! Each handle is told of that once, as by Linux: its page cache takes what it failed to write for
//! written, so that later syncs succeed without it.
//!
//! ```
//! use bristlecone_pmem::media::journal::fault::{FaultDisk, Which};
//! use bristlecone_pmem::media::journal::Storage;
//! let disk = FaultDisk::new(1);
//! let file = disk.file(Which::Pool);
//! file.allocate(0, 4096)?;
//! file.sync()?;
//! file.write_all(0, b"never synced")?;
//! disk.cut_now();
//! assert!(file.sync().is_err());
//! let bytes = disk.restart(2).bytes(Which::Pool);
//! assert!(&bytes[..12] == b"never synced" || bytes[..12] == [0; 12]);
//! # Ok::<(), std::io::Error>(())
//! ```

use super::storage::{Site, Storage};
use crate::sync::lock;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const SECTOR: usize = 512;

/// One of the disk's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The pool file.
    Pool,
    /// The journal.
    Journal,
}

/// A change of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// These bytes at this offset.
    Write(u64, Vec<u8>),
    /// Zeros up to this length.
    Extend(u64),
    /// Nothing beyond this length.
    Truncate(u64),
    /// Zeros from this offset on, so many.
    Punch(u64, u64),
}

/// What a disk was asked to do.
#[derive(Clone, Debug)]
pub struct Event {
    /// The file.
    pub which: Which,
    /// The request.
    pub what: What,
}

/// A request.
#[derive(Clone, Debug)]
pub enum What {
    /// A change, to be durable at some time.
    Change(Change),
    /// These bytes at this offset, durable when it ends.
    Durable(u64, Vec<u8>, Site),
    /// All changes of the file are durable when it ends.
    Sync(Site),
}

#[derive(Debug, Default)]
struct File {
    /// The bytes that survive for sure.
    durable: Vec<u8>,
    /// The bytes that a reader sees.
    seen: Vec<u8>,
    pending: Vec<Change>,
    /// How often a sync has lost some of its data.
    lost: u64,
}

#[derive(Debug)]
struct Disk {
    files: [File; 2],
    random: u64,
    events: u64,
    syncs: u64,
    cut_at: Option<u64>,
    dead: bool,
    fail_sync_at: Option<u64>,
    /// All syncs after a failed one fail, too.
    failing: bool,
    tape: Option<Vec<Event>>,
    /// How often its user was killed. Files of an earlier user do nothing any more.
    killed: u64,
    /// Maximum number of bytes of both files together.
    capacity: Option<u64>,
    /// True if every write fails for want of space.
    full: bool,
    short_writes: bool,
    sync_time: Duration,
    pool_time: Duration,
}

/// A disk with a pool file and a journal file. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct FaultDisk(Arc<Mutex<Disk>>);

/// One of the files of a [`FaultDisk`].
#[derive(Debug)]
struct FaultFile {
    disk: FaultDisk,
    which: Which,
    /// The kills before its user began.
    user: u64,
    /// Lost writes that this handle was told of.
    told: AtomicU64,
}

fn next(random: &mut u64) -> u64 {
    // xorshift64*: any generator does, as long as a seed replays it.
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    random.wrapping_mul(0x2545_f491_4f6c_dd1d)
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

fn is_killed() -> io::Error {
    io::Error::other("the process was killed")
}

fn no_space() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error())
}

fn input_output() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

impl Change {
    /// Applies it to a file's bytes. Of a write's sectors, in order, only to those that `keep`
    /// returns true for.
    pub fn apply(&self, bytes: &mut Vec<u8>, mut keep: impl FnMut() -> bool) {
        match self {
            Self::Write(offset, data) => {
                let mut at = *offset as usize;
                let mut rest = &data[..];
                while !rest.is_empty() {
                    let n = rest.len().min(SECTOR - at % SECTOR);
                    if keep() {
                        if bytes.len() < at + n {
                            bytes.resize(at + n, 0);
                        }
                        bytes[at..at + n].copy_from_slice(&rest[..n]);
                    }
                    at += n;
                    rest = &rest[n..];
                }
            }
            Self::Extend(len) => {
                if bytes.len() < *len as usize {
                    bytes.resize(*len as usize, 0);
                }
            }
            Self::Truncate(len) => bytes.truncate(*len as usize),
            Self::Punch(offset, len) => {
                let end = (offset + len).min(bytes.len() as u64) as usize;
                if let Some(hole) = bytes.get_mut(*offset as usize..end) {
                    hole.fill(0);
                }
            }
        }
    }
}

impl FaultDisk {
    /// Returns an empty disk; `seed` decides what a power cut leaves.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Disk {
            files: [File::default(), File::default()],
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            events: 0,
            syncs: 0,
            cut_at: None,
            dead: false,
            fail_sync_at: None,
            failing: false,
            tape: None,
            killed: 0,
            capacity: None,
            full: false,
            short_writes: false,
            sync_time: Duration::ZERO,
            pool_time: Duration::ZERO,
        })))
    }

    /// Returns a handle on one file. A file without bytes does not exist.
    #[must_use]
    pub fn file(&self, which: Which) -> Arc<dyn Storage> {
        let disk = lock(&self.0);
        Arc::new(FaultFile {
            disk: self.clone(),
            which,
            user: disk.killed,
            told: AtomicU64::new(disk.files[which as usize].lost),
        })
    }

    /// Cuts the power during the `events`-th event from now (1 is the next).
    pub fn cut_after(&self, events: u64) {
        let mut disk = lock(&self.0);
        disk.cut_at = Some(disk.events + events);
    }

    /// Kills the user: files that were handed out do nothing any more. What was written is there,
    /// and what was not synced may still be lost.
    pub fn kill(&self) {
        lock(&self.0).killed += 1;
    }

    /// Cuts the power now.
    pub fn cut_now(&self) {
        lock(&self.0).dead = true;
    }

    /// Returns true once the power has been cut.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        lock(&self.0).dead
    }

    /// Returns the number of events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        lock(&self.0).events
    }

    /// Returns the number of syncs and synced writes so far.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        lock(&self.0).syncs
    }

    /// Makes the `n`-th sync from now (1 is the next) and all after it fail with EIO.
    pub fn fail_sync(&self, n: u64) {
        let mut disk = lock(&self.0);
        disk.fail_sync_at = Some(disk.syncs + n);
        disk.failing = true;
    }

    /// Makes the `n`-th sync from now (1 is the next) fail with EIO, and none after it.
    pub fn fail_one_sync(&self, n: u64) {
        let mut disk = lock(&self.0);
        disk.fail_sync_at = Some(disk.syncs + n);
        disk.failing = false;
    }

    /// Keeps all events from now on, for [`taken`](Self::taken). Their number is
    /// [`events`](Self::events), if nothing happened before.
    pub fn record(&self) {
        lock(&self.0).tape = Some(Vec::new());
    }

    /// Returns the events kept so far, and keeps none any more.
    #[must_use]
    pub fn taken(&self) -> Vec<Event> {
        lock(&self.0).tape.take().unwrap_or_default()
    }

    /// Returns true once a sync has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        let disk = lock(&self.0);
        disk.fail_sync_at.is_some_and(|at| disk.syncs >= at)
    }

    /// Limits the files' bytes together; `None` lifts the limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        lock(&self.0).capacity = bytes;
    }

    /// Makes every write fail for want of space, or work again.
    pub fn set_full(&self, full: bool) {
        lock(&self.0).full = full;
    }

    /// Makes writes take only a part of what they are given, or all of it again.
    pub fn set_short_writes(&self, short: bool) {
        lock(&self.0).short_writes = short;
    }

    /// Makes every sync take this long.
    pub fn set_sync_time(&self, time: Duration) {
        lock(&self.0).sync_time = time;
    }

    /// Makes every write and sync of the pool file take this long, and so checkpoints.
    pub fn set_pool_time(&self, time: Duration) {
        lock(&self.0).pool_time = time;
    }

    /// Returns the bytes of a file as a reader sees them now.
    #[must_use]
    pub fn bytes(&self, which: Which) -> Vec<u8> {
        lock(&self.0).files[which as usize].seen.clone()
    }

    /// Replaces a file's bytes, durably.
    pub fn set_bytes(&self, which: Which, bytes: Vec<u8>) {
        let mut disk = lock(&self.0);
        disk.files[which as usize] = File {
            durable: bytes.clone(),
            seen: bytes,
            ..File::default()
        };
    }

    /// Returns the disk after a power failure: each unsynced change is kept, dropped or torn, in an
    /// order of its own.
    #[must_use]
    pub fn restart(&self, seed: u64) -> Self {
        let after = Self::new(seed);
        let disk = &mut *lock(&self.0);
        let random = &mut disk.random;
        for (file, to) in disk.files.iter().zip(&mut lock(&after.0).files) {
            let mut order: Vec<&Change> = file.pending.iter().collect();
            for i in (1..order.len()).rev() {
                order.swap(i, (next(random) % (i as u64 + 1)) as usize);
            }
            let mut bytes = file.durable.clone();
            for change in order {
                match next(random) % 3 {
                    0 => change.apply(&mut bytes, || true),
                    1 => {}
                    _ => change.apply(&mut bytes, || next(random) & 1 == 0),
                }
            }
            *to = File {
                durable: bytes.clone(),
                seen: bytes,
                ..File::default()
            };
        }
        after
    }

    /// Returns the disk after a power failure that kept every change of length and those unsynced
    /// writes that `keep` names (by file and offset).
    #[must_use]
    pub fn restart_keeping(&self, keep: impl Fn(Which, u64) -> bool) -> Self {
        let after = Self::new(1);
        let disk = &mut *lock(&self.0);
        disk.dead = true;
        for which in [Which::Pool, Which::Journal] {
            let file = &disk.files[which as usize];
            let mut bytes = file.durable.clone();
            for change in &file.pending {
                if !matches!(change, Change::Write(offset, _) if !keep(which, *offset)) {
                    change.apply(&mut bytes, || true);
                }
            }
            after.set_bytes(which, bytes);
        }
        after
    }

    /// Returns the disk after its only user was killed: everything written is there, and unsynced
    /// data can still be lost.
    #[must_use]
    pub fn after_kill(&self, seed: u64) -> Self {
        let after = Self::new(seed);
        let disk = &mut *lock(&self.0);
        for (file, to) in disk.files.iter_mut().zip(&mut lock(&after.0).files) {
            *to = std::mem::take(file);
        }
        disk.dead = true;
        after
    }
}

impl Disk {
    /// Counts an event. Returns true if the power is cut during it.
    fn event(&mut self) -> io::Result<bool> {
        if self.dead {
            return Err(power_is_off());
        }
        self.events += 1;
        if self.cut_at.is_some_and(|at| self.events >= at) {
            self.dead = true;
        }
        Ok(self.dead)
    }

    /// Counts a sync of the last `changes` changes of a file that are not durable. If it is to
    /// fail, some of them are lost, although readers see them.
    fn count_sync(&mut self, which: Which, changes: usize) -> io::Result<()> {
        self.syncs += 1;
        let fails = (self.fail_sync_at).is_some_and(|at| match self.failing {
            true => self.syncs >= at,
            false => self.syncs == at,
        });
        if !fails {
            return Ok(());
        }
        let file = &mut self.files[which as usize];
        file.lost += 1;
        let from = file.pending.len() - changes;
        for change in file.pending.drain(from..) {
            // The file's length is not in its pages.
            if !matches!(change, Change::Write(..)) || next(&mut self.random) & 1 == 0 {
                change.apply(&mut file.durable, || true);
            }
        }
        Err(input_output())
    }

    fn keep(&mut self, which: Which, what: impl FnOnce() -> What) {
        if let Some(tape) = self.tape.as_mut().filter(|_| !self.dead) {
            tape.push(Event {
                which,
                what: what(),
            });
        }
    }

    fn change(&mut self, which: Which, change: Change) -> io::Result<()> {
        self.keep(which, || What::Change(change.clone()));
        self.made(which, change)
    }

    fn made(&mut self, which: Which, change: Change) -> io::Result<()> {
        let cut = self.event()?;
        let file = &mut self.files[which as usize];
        change.apply(&mut file.seen, || true);
        file.pending.push(change);
        if cut { Err(power_is_off()) } else { Ok(()) }
    }
}

impl FaultFile {
    fn disk(&self) -> io::Result<MutexGuard<'_, Disk>> {
        let disk = lock(&self.disk.0);
        match disk.killed == self.user {
            true => Ok(disk),
            false => Err(is_killed()),
        }
    }

    /// Returns the end of a sync through this handle, which is also told of what others have lost.
    fn told(&self, disk: &Disk, synced: io::Result<()>) -> io::Result<()> {
        let lost = disk.files[self.which as usize].lost;
        // ORDERING: Relaxed; changed under the disk's lock only.
        match self.told.swap(lost, Ordering::Relaxed) < lost {
            true => Err(input_output()),
            false => synced,
        }
    }

    /// Takes the time of a call, without holding the disk up.
    fn pause(&self, time: impl FnOnce(&Disk) -> Duration) -> io::Result<()> {
        let disk = self.disk()?;
        let mut time = time(&disk);
        if self.which == Which::Pool {
            time += disk.pool_time;
        }
        drop(disk);
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        Ok(())
    }
}

impl Storage for FaultFile {
    fn size(&self) -> io::Result<u64> {
        let disk = self.disk()?;
        if disk.dead {
            return Err(power_is_off());
        }
        Ok(disk.files[self.which as usize].seen.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let disk = self.disk()?;
        if disk.dead {
            return Err(power_is_off());
        }
        let seen = &disk.files[self.which as usize].seen;
        let from = seen.get(offset as usize..).unwrap_or(&[]);
        let n = from.len().min(into.len());
        into[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.pause(|_| Duration::ZERO)?;
        let mut disk = self.disk()?;
        if disk.full && !disk.dead {
            return Err(no_space());
        }
        let mut n = bytes.len();
        if disk.short_writes && n > 1 {
            n = 1 + (next(&mut disk.random) % (n as u64 - 1)) as usize;
        }
        disk.change(self.which, Change::Write(offset, bytes[..n].to_vec()))?;
        Ok(n)
    }

    fn sync_at(&self, site: Site) -> io::Result<()> {
        self.pause(|disk| disk.sync_time)?;
        let mut disk = self.disk()?;
        disk.keep(self.which, || What::Sync(site));
        if disk.event()? {
            return Err(power_is_off());
        }
        let changes = disk.files[self.which as usize].pending.len();
        let synced = disk.count_sync(self.which, changes);
        self.told(&disk, synced)?;
        let file = &mut disk.files[self.which as usize];
        // The same changes, all of them, in order: cheaper than copying the whole file.
        for change in file.pending.drain(..) {
            change.apply(&mut file.durable, || true);
        }
        Ok(())
    }

    /// Only this write becomes durable; other changes stay pending.
    fn write_durable_at(&self, offset: u64, bytes: &[u8], site: Site) -> io::Result<()> {
        self.pause(|disk| disk.sync_time)?;
        let mut disk = self.disk()?;
        if disk.full && !disk.dead {
            return Err(no_space());
        }
        disk.keep(self.which, || What::Durable(offset, bytes.to_vec(), site));
        disk.made(self.which, Change::Write(offset, bytes.to_vec()))?;
        let synced = disk.count_sync(self.which, 1);
        self.told(&disk, synced)?;
        let file = &mut disk.files[self.which as usize];
        if let Some(change) = file.pending.pop() {
            change.apply(&mut file.durable, || true);
        }
        Ok(())
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        let mut disk = self.disk()?;
        let total: usize = disk.files.iter().map(|f| f.seen.len()).sum();
        let here = disk.files[self.which as usize].seen.len() as u64;
        debug_assert!(from <= to, "extends");
        if disk
            .capacity
            .is_some_and(|most| total as u64 - here + to > most)
            && !disk.dead
        {
            return Err(no_space());
        }
        disk.change(self.which, Change::Extend(to))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.disk()?.change(self.which, Change::Truncate(len))
    }

    fn another(&self) -> io::Result<Arc<dyn Storage>> {
        drop(self.disk()?);
        Ok(self.disk.file(self.which))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.disk()?.change(self.which, Change::Punch(offset, len))
    }
}
