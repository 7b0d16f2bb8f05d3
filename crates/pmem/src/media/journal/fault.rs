//! Test support: a disk in memory that can lose power, fail to sync and run out of space.
//!
//! One [`FaultDisk`] holds the pool file and the journal file. Every write, sync, allocation,
//! truncation and hole is an event. At a chosen event the power is cut: unsynced data is then kept,
//! dropped or torn at 512-byte sectors, write by write and in any order, as the seed decides. From
//! then on every call fails, until [`FaultDisk::restart`] returns a new disk with the data that
//! survived.
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

use super::storage::Storage;
use crate::sync::lock;
use std::io;
use std::sync::{Arc, Mutex};
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

/// A change that is not durable yet.
#[derive(Debug)]
enum Pending {
    Write(u64, Vec<u8>),
    Extend(u64),
    Truncate(u64),
    Punch(u64, u64),
}

#[derive(Debug, Default)]
struct File {
    /// The bytes that survive for sure.
    durable: Vec<u8>,
    /// The bytes that a reader sees.
    seen: Vec<u8>,
    pending: Vec<Pending>,
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
    failing: bool,
    /// Maximum number of bytes of both files together.
    capacity: Option<u64>,
    /// True if every write fails for want of space.
    full: bool,
    short_writes: bool,
    sync_time: Duration,
}

/// A disk with a pool file and a journal file. Clones are the same disk.
#[derive(Clone, Debug)]
pub struct FaultDisk(Arc<Mutex<Disk>>);

/// One of the files of a [`FaultDisk`].
#[derive(Debug)]
struct FaultFile {
    disk: FaultDisk,
    which: Which,
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

fn no_space() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error())
}

fn input_output() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

/// Applies `change` to `bytes`, or only to those of its sectors that `keep` names.
fn apply(bytes: &mut Vec<u8>, change: &Pending, mut keep: impl FnMut() -> bool) {
    match change {
        Pending::Write(offset, data) => {
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
        Pending::Extend(len) => {
            if bytes.len() < *len as usize {
                bytes.resize(*len as usize, 0);
            }
        }
        Pending::Truncate(len) => bytes.truncate(*len as usize),
        Pending::Punch(offset, len) => {
            let end = (offset + len).min(bytes.len() as u64) as usize;
            if let Some(hole) = bytes.get_mut(*offset as usize..end) {
                hole.fill(0);
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
            capacity: None,
            full: false,
            short_writes: false,
            sync_time: Duration::ZERO,
        })))
    }

    /// Returns a handle on one file. A file without bytes does not exist.
    #[must_use]
    pub fn file(&self, which: Which) -> Arc<dyn Storage> {
        Arc::new(FaultFile {
            disk: self.clone(),
            which,
        })
    }

    /// Cuts the power during the `events`-th event from now (1 is the next).
    pub fn cut_after(&self, events: u64) {
        let mut disk = lock(&self.0);
        disk.cut_at = Some(disk.events + events);
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
            pending: Vec::new(),
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
            let mut order: Vec<&Pending> = file.pending.iter().collect();
            for i in (1..order.len()).rev() {
                order.swap(i, (next(random) % (i as u64 + 1)) as usize);
            }
            let mut bytes = file.durable.clone();
            for change in order {
                match next(random) % 3 {
                    0 => apply(&mut bytes, change, || true),
                    1 => {}
                    _ => apply(&mut bytes, change, || next(random) & 1 == 0),
                }
            }
            *to = File {
                durable: bytes.clone(),
                seen: bytes,
                pending: Vec::new(),
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
                if !matches!(change, Pending::Write(offset, _) if !keep(which, *offset)) {
                    apply(&mut bytes, change, || true);
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

    fn count_sync(&mut self) -> io::Result<()> {
        self.syncs += 1;
        if self.failing || self.fail_sync_at.is_some_and(|at| self.syncs >= at) {
            self.failing = true;
            return Err(input_output());
        }
        Ok(())
    }

    fn change(&mut self, which: Which, change: Pending) -> io::Result<()> {
        let cut = self.event()?;
        let file = &mut self.files[which as usize];
        apply(&mut file.seen, &change, || true);
        file.pending.push(change);
        if cut { Err(power_is_off()) } else { Ok(()) }
    }
}

impl Storage for FaultFile {
    fn size(&self) -> io::Result<u64> {
        let disk = lock(&self.disk.0);
        if disk.dead {
            return Err(power_is_off());
        }
        Ok(disk.files[self.which as usize].seen.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let disk = lock(&self.disk.0);
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
        let mut disk = lock(&self.disk.0);
        if disk.full && !disk.dead {
            return Err(no_space());
        }
        let mut n = bytes.len();
        if disk.short_writes && n > 1 {
            n = 1 + (next(&mut disk.random) % (n as u64 - 1)) as usize;
        }
        disk.change(self.which, Pending::Write(offset, bytes[..n].to_vec()))?;
        Ok(n)
    }

    fn sync(&self) -> io::Result<()> {
        let time = lock(&self.disk.0).sync_time;
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        let mut disk = lock(&self.disk.0);
        if disk.event()? {
            return Err(power_is_off());
        }
        disk.count_sync()?;
        let file = &mut disk.files[self.which as usize];
        // The same changes, all of them, in order: cheaper than copying the whole file.
        for change in file.pending.drain(..) {
            apply(&mut file.durable, &change, || true);
        }
        Ok(())
    }

    /// Only this write becomes durable; other changes stay pending.
    fn write_durable(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let time = lock(&self.disk.0).sync_time;
        if !time.is_zero() {
            std::thread::sleep(time);
        }
        let mut disk = lock(&self.disk.0);
        if disk.full && !disk.dead {
            return Err(no_space());
        }
        let written = disk.change(self.which, Pending::Write(offset, bytes.to_vec()));
        written?;
        disk.count_sync()?;
        let file = &mut disk.files[self.which as usize];
        if let Some(change) = file.pending.pop() {
            apply(&mut file.durable, &change, || true);
        }
        Ok(())
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        let mut disk = lock(&self.disk.0);
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
        disk.change(self.which, Pending::Extend(to))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        lock(&self.disk.0).change(self.which, Pending::Truncate(len))
    }

    fn another(&self) -> io::Result<Arc<dyn Storage>> {
        Ok(self.disk.file(self.which))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        lock(&self.disk.0).change(self.which, Pending::Punch(offset, len))
    }
}
