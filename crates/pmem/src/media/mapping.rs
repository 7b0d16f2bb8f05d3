//! An address range reserved up front, with a file (or nothing) mapped from its start.
//!
//! ```text
//! base                      base + len              base + capacity
//! | backed by the file      | mapped, past its end  | reserved, no access |
//! ```
//!
//! Growing extends the file and, when the mapped part is used up, maps more of it in place, so the
//! base address never moves. Memory past the end of the file is never touched: offsets are
//! checked against [`Mapping::len`] first.
//!
//! # Concurrency
//! `len` is atomic and only grows while others read it; `grow`, `shrink` and `punch` are called
//! under the pool's growth lock.

mod open_file;
mod private;

use crate::error::{OpenError, SpaceError};
use open_file::OpenFile;
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Page size that offsets given to the kernel are rounded to.
pub(crate) const PAGE: u64 = 4096;
/// Size and alignment of a huge page; growth steps are multiples of it.
pub(crate) const HUGE: u64 = 2 << 20;

/// How stores reach the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// `MAP_SHARED_VALIDATE | MAP_SYNC`: a fenced line is durable.
    Sync,
    /// `MAP_SHARED`.
    Shared,
    /// `MAP_PRIVATE`: stores stay in this process.
    Private,
    /// No file.
    Anonymous,
}

/// A file opened, locked and mapped at a reserved range.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    capacity: u64,
    /// The whole reserved range, inside which `base` is aligned.
    reserved: (*mut u8, u64),
    len: AtomicU64,
    mapped: AtomicU64,
    /// Parts that [`discard`](Self::discard) made anonymous memory, from and to.
    discarded: Mutex<Vec<(u64, u64)>>,
    small_pages: AtomicBool,
    sharing: Sharing,
    file: Option<OpenFile>,
    path: PathBuf,
    /// True if the size is a device's and not a file's, so that nothing can be extended.
    fixed: bool,
    on_tmpfs: bool,
}

// SAFETY: 1. `base` is a mapping owned by this value until drop, not thread-bound; 2. all mutable
// state is atomic; 3. holders of offsets into the bytes govern access to them.
unsafe impl Send for Mapping {}
// SAFETY: 1. to 3. as for `Send`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Opens and locks `path`, or creates it `initial` bytes long. Maps nothing yet.
    ///
    /// # Errors
    /// Every [`OpenError`] that concerns files: absent, present, a directory, locked, no space.
    pub fn open_file(
        path: &Path,
        access: super::Access,
        initial: u64,
    ) -> Result<(OpenFile, u64), OpenError> {
        use super::Access;
        // A device is there already; creating a pool on one means taking it over.
        let takes_device = access == Access::Create && is_device_node(path);
        let flags = match access {
            Access::Create if takes_device => OFlags::RDWR,
            Access::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
            Access::ReadWrite => OFlags::RDWR,
            Access::ReadOnly | Access::Salvage => OFlags::RDONLY,
        };
        // No effect on a file. A FIFO is opened, and then refused, and not waited for.
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags, Mode::from_raw_mode(0o644))
            .map(OpenFile::new)
            .map_err(|e| OpenError::io(path, "open", e))?;
        let made = access == Access::Create && !takes_device;
        let result = (|| {
            let stat = rustix::fs::fstat(&fd).map_err(|e| OpenError::io(path, "stat", e))?;
            let file_type = rustix::fs::FileType::from_raw_mode(stat.st_mode);
            if !file_type.is_file() && !file_type.is_char_device() {
                return Err(OpenError::NotAFile(path.to_path_buf()));
            }
            let lock = if access.reads_only() {
                FlockOperation::NonBlockingLockShared
            } else {
                FlockOperation::NonBlockingLockExclusive
            };
            rustix::fs::flock(&fd, lock).map_err(|e| {
                if e == Errno::WOULDBLOCK {
                    OpenError::Locked(path.to_path_buf())
                } else {
                    OpenError::io(path, "lock", e)
                }
            })?;
            if file_type.is_char_device() {
                return device_size(path, stat.st_rdev);
            }
            if made {
                rustix::fs::ftruncate(&fd, initial)
                    .map_err(|e| OpenError::io(path, "extend", e))?;
                rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, initial)
                    .or_else(|e| {
                        if e == Errno::OPNOTSUPP {
                            Ok(())
                        } else {
                            Err(e)
                        }
                    })
                    .map_err(|e| OpenError::io(path, "reserve space", e))?;
                rustix::fs::fsync(&fd).map_err(|e| OpenError::io(path, "sync", e))?;
                sync_parent(path)?;
                return Ok(initial);
            }
            // The type says so: a file's size is never negative.
            Ok(u64::try_from(stat.st_size).unwrap_or(0))
        })();
        match result {
            Ok(len) => Ok((fd, len)),
            Err(e) => {
                if made {
                    // Best effort: the first error is reported.
                    let _ = rustix::fs::unlink(path);
                }
                Err(e)
            }
        }
    }

    /// Maps an opened file, or anonymous memory when `file` is `None`.
    ///
    /// # Errors
    /// [`OpenError::Io`] when the range or the mapping is refused, [`OpenError::Unsupported`] when
    /// `Sharing::Sync` is.
    pub fn map(
        path: &Path,
        file: Option<(OpenFile, u64)>,
        sharing: Sharing,
        reserve: u64,
    ) -> Result<Self, OpenError> {
        let (file, len) = match file {
            Some((fd, len)) => (Some(fd), len),
            None => (None, 0),
        };
        let fixed = file.as_ref().is_some_and(is_device);
        let on_tmpfs = file.as_ref().is_some_and(is_tmpfs);
        // A file longer than any address range is refused by the system below, not wrapped here.
        let need = len
            .checked_next_multiple_of(HUGE)
            .unwrap_or(u64::MAX - HUGE);
        // Under Miri address space is memory.
        let most = if cfg!(miri) {
            need + 16 * HUGE
        } else {
            u64::MAX - 2 * HUGE
        };
        let mut capacity = if fixed {
            len
        } else {
            reserve.min(most).next_multiple_of(HUGE).max(need)
        };
        let reserved = loop {
            // One more huge page than is used, so that the base can be aligned to one.
            let range = capacity.saturating_add(HUGE);
            match reserve_range(range) {
                Ok(start) => break (start, range),
                Err(_) if !fixed && capacity / 2 >= need => {
                    capacity = (capacity / 2).next_multiple_of(HUGE);
                }
                Err(e) => return Err(OpenError::io(path, "reserve address space", e)),
            }
        };
        let base = reserved
            .0
            .wrapping_add(reserved.0.align_offset(HUGE as usize));
        let mapping = Self {
            base,
            capacity,
            reserved,
            len: AtomicU64::new(0),
            mapped: AtomicU64::new(0),
            discarded: Mutex::default(),
            small_pages: AtomicBool::new(false),
            sharing,
            file,
            path: path.to_path_buf(),
            fixed,
            on_tmpfs,
        };
        let want = if fixed { len } else { need };
        mapping.map_to(want).map_err(|e| {
            if sharing == Sharing::Sync && (e == Errno::OPNOTSUPP || e == Errno::INVAL) {
                OpenError::Unsupported {
                    path: path.to_path_buf(),
                    what: "not on persistent memory: the file system refuses MAP_SYNC".into(),
                }
            } else {
                OpenError::io(path, "map", e)
            }
        })?;
        // ORDERING: Release; pairs with the Acquire in `len`.
        mapping.len.store(len, Ordering::Release);
        Ok(mapping)
    }

    /// Maps further parts until at least `want` bytes are.
    fn map_to(&self, want: u64) -> Result<(), Errno> {
        // ORDERING: Relaxed; only changed here, under the growth lock.
        let from = self.mapped.load(Ordering::Relaxed);
        let to = want.min(self.capacity);
        if to <= from {
            return Ok(());
        }
        self.map_range(from, to)?;
        // ORDERING: Relaxed; see the load above.
        self.mapped.store(to, Ordering::Relaxed);
        Ok(())
    }

    /// Maps the file (or memory) at `from..to`.
    fn map_range(&self, from: u64, to: u64) -> Result<(), Errno> {
        let at = self.base.wrapping_add(from as usize).cast::<c_void>();
        let bytes = (to - from) as usize;
        if cfg!(miri) && self.file.is_none() {
            return Ok(()); // `reserve_range` mapped all of it
        }
        if matches!(self.sharing, Sharing::Private | Sharing::Anonymous) {
            // The file's own content needs no memory, so mapping it must not be refused.
            crate::memory::ask(bytes).map_err(|_| Errno::NOMEM)?;
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: 1. `at..at + bytes` is inside the range that this value reserved, so MAP_FIXED
        // replaces only our own pages; 2. nothing relies on their content yet (or any more).
        unsafe {
            match (&self.file, self.sharing) {
                (Some(fd), Sharing::Sync) => {
                    let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC | MapFlags::FIXED;
                    rustix::mm::mmap(at, bytes, prot, flags, fd, from)?;
                }
                (Some(fd), Sharing::Shared) => {
                    rustix::mm::mmap(
                        at,
                        bytes,
                        prot,
                        MapFlags::SHARED | MapFlags::FIXED,
                        fd,
                        from,
                    )?;
                }
                (Some(fd), _) => {
                    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
                    rustix::mm::mmap(at, bytes, prot, flags, fd, from)?;
                }
                (None, _) => {
                    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
                    rustix::mm::mmap_anonymous(at, bytes, prot, flags)?;
                }
            }
        }
        self.advise_pages(at, bytes);
        Ok(())
    }

    /// Exchanges `from..to` for anonymous memory, which reads as zeros.
    ///
    /// This is for a part that nothing relies on any more. A search that is still on its way there
    /// finds readable memory before, at and after the exchange, and learns from a version that it
    /// came too late.
    fn map_anonymous(&self, from: u64, to: u64) -> Result<(), Errno> {
        if from >= to {
            return Ok(());
        }
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: 1. the range is inside the one that this value reserved; 2. the caller promises
        // that nothing relies on its content.
        unsafe {
            rustix::mm::mmap_anonymous(
                self.base.wrapping_add(from as usize).cast(),
                (to - from) as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?;
        }
        Ok(())
    }

    /// Returns the first byte.
    #[inline]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Returns the bytes backed by the file.
    #[inline]
    pub fn len(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release stores that follow a change of the file.
        self.len.load(Ordering::Acquire)
    }

    /// Returns true if nothing is backed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes that `grow` may reach.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the opened file, if there is one.
    pub fn file(&self) -> Option<&OpenFile> {
        self.file.as_ref()
    }

    /// Returns true for a device, whose size cannot change.
    pub(crate) fn fixed(&self) -> bool {
        self.fixed
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Extends the file and the mapping to `to` bytes, with real space behind them.
    ///
    /// # Errors
    /// [`SpaceError`]. The file is as long as before then.
    pub fn grow(&self, to: u64) -> Result<(), SpaceError> {
        let from = self.len();
        if to <= from {
            return Ok(());
        }
        if to > self.capacity {
            return Err(SpaceError::Capacity {
                wanted: to,
                capacity: self.capacity,
            });
        }
        let mapped = to.next_multiple_of(PAGE);
        if self.fixed {
            return Err(SpaceError::Capacity {
                wanted: to,
                capacity: self.capacity,
            });
        }
        if let Some(fd) = &self.file {
            rustix::fs::ftruncate(fd, to).map_err(|e| SpaceError::io("extending the file", e))?;
            self.map_to(mapped)
                .and_then(|()| self.back(fd, from, to))
                .map_err(|e| {
                    // Back to the old length. If even that fails, the tail stays unused.
                    let _ = self.retract(from);
                    let _ = rustix::fs::ftruncate(fd, from);
                    SpaceError::io("reserving space for the file", e)
                })?;
            if self.sharing != Sharing::Private {
                // PERSIST: the file's new length, before any durable word leads beyond the old one.
                rustix::fs::fsync(fd)
                    .map_err(|e| SpaceError::io("syncing the file's length", e))?;
            }
        } else {
            self.map_to(mapped)
                .map_err(|e| SpaceError::io("mapping memory", e))?;
        }
        // ORDERING: Release; pairs with the Acquire in `len`.
        self.len.store(to, Ordering::Release);
        Ok(())
    }

    /// Makes `to` bytes accessible where the caller has already extended the file, if there is one.
    ///
    /// # Errors
    /// [`SpaceError`]. Nothing has changed then.
    pub(crate) fn extend(&self, to: u64) -> Result<(), SpaceError> {
        if to <= self.len() {
            return Ok(());
        }
        if to > self.capacity {
            return Err(SpaceError::Capacity {
                wanted: to,
                capacity: self.capacity,
            });
        }
        self.map_to(to.next_multiple_of(PAGE))
            .map_err(|e| SpaceError::io("mapping memory", e))?;
        // ORDERING: Release; pairs with the Acquire in `len`.
        self.len.store(to, Ordering::Release);
        Ok(())
    }

    /// Makes `to` bytes accessible with anonymous memory past the end of the file, which stays as
    /// it is: for replaying growth that a read-only file has not seen, and for what was cut off a
    /// file. Only before the mapping is shared.
    ///
    /// # Errors
    /// [`SpaceError`]. Nothing has changed then.
    pub(crate) fn extend_anonymous(&self, to: u64) -> Result<(), SpaceError> {
        let from = self.len().next_multiple_of(PAGE);
        if to > self.capacity {
            return Err(SpaceError::Capacity {
                wanted: to,
                capacity: self.capacity,
            });
        }
        let end = to.next_multiple_of(PAGE);
        if end > from {
            let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
            // SAFETY: 1. the range is inside the one that this value reserved; 2. it lies past the
            // file's end, so there are no references to it.
            unsafe {
                rustix::mm::mmap_anonymous(
                    self.base.wrapping_add(from as usize).cast(),
                    (end - from) as usize,
                    ProtFlags::READ | ProtFlags::WRITE,
                    flags,
                )
                .map_err(|e| SpaceError::io("mapping memory", e))?;
            }
            // ORDERING: Relaxed; only changed under the growth lock.
            self.mapped.fetch_max(end, Ordering::Relaxed);
        }
        // ORDERING: Release; pairs with the Acquire in `len`.
        self.len.fetch_max(to, Ordering::Release);
        Ok(())
    }

    /// Excludes the bytes from `to` on; they read as zeros from here on, and the caller then cuts
    /// the file, if there is one. Returns the length before.
    ///
    /// # Errors
    /// [`SpaceError`] if the kernel refuses. Nothing has changed then.
    pub(crate) fn retract(&self, to: u64) -> Result<u64, SpaceError> {
        let keep = to.next_multiple_of(PAGE);
        // ORDERING: Relaxed (both); only changed under the growth lock, which the caller holds.
        let mapped = self.mapped.load(Ordering::Relaxed);
        if self.file.is_some() && keep < mapped {
            self.map_anonymous(keep, mapped)
                .map_err(|e| SpaceError::io("mapping memory", e))?;
            self.mapped.store(keep, Ordering::Relaxed);
        }
        // ORDERING: AcqRel; a thread that checks the length sees the shorter one before the file is
        // cut.
        Ok(self.len.fetch_min(to, Ordering::AcqRel))
    }

    /// Allocates real space behind `from..to`, so that a store there cannot fail for want of it.
    fn back(&self, fd: &OpenFile, from: u64, to: u64) -> Result<(), Errno> {
        if self.on_tmpfs && self.sharing == Sharing::Shared {
            self.gather(from, to);
            // Populating (and not fallocate) lets tmpfs use huge pages where it is allowed to, and
            // finds out whether there is room.
            let populated = self.populate(from, to);
            match populated {
                Ok(()) => return Ok(()),
                // The kernel's error instead of SIGBUS: the mount is full.
                Err(Errno::FAULT) => return Err(Errno::NOSPC),
                // A kernel without MADV_POPULATE_WRITE.
                Err(Errno::INVAL) => {}
                Err(e) => return Err(e),
            }
        }
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), from, to - from) {
            Err(Errno::OPNOTSUPP) | Ok(()) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Populates `from..to` with pages.
    fn populate(&self, from: u64, to: u64) -> Result<(), Errno> {
        let at = self.base.wrapping_add(from as usize).cast();
        // SAFETY: 1. this value mapped the range, which is inside the file; 2. populating changes
        // no content.
        unsafe { rustix::mm::madvise(at, (to - from) as usize, Advice::LinuxPopulateWrite) }
    }

    /// Asks for huge pages behind a range without pages, which the kernel gives on request even
    /// where tmpfs would not by itself. A search then misses the TLB far less often. A refusal
    /// costs only speed.
    ///
    /// The kernel collapses only ranges that have one page already; it clears the rest and copies
    /// nothing.
    fn gather(&self, from: u64, to: u64) {
        const MADV_COLLAPSE: libc::c_int = 25;
        let (mut from, to) = (from.next_multiple_of(HUGE), to / HUGE * HUGE);
        while from < to && self.populate(from, from + PAGE).is_ok() {
            let at = self.base.wrapping_add(from as usize).cast();
            // SAFETY: 1. this value mapped the range, which is inside the file; 2. the call changes
            // which pages hold the content, not the content.
            if unsafe { libc::madvise(at, HUGE as usize, MADV_COLLAPSE) } != 0 {
                return;
            }
            from += HUGE;
        }
    }

    /// Allocates real space behind a part that was punched.
    ///
    /// # Errors
    /// [`SpaceError`] when there is no space.
    pub(crate) fn refill(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        match &self.file {
            Some(fd) if !self.fixed && self.sharing != Sharing::Private => self
                .map_range(offset, offset + len)
                .and_then(|()| self.back(fd, offset, offset + len))
                .map_err(|e| SpaceError::io("reserving space for a punched part", e)),
            _ => Ok(()),
        }
    }

    /// Returns true if the file has holes.
    pub(crate) fn sparse(&self) -> bool {
        let Some(fd) = &self.file else { return false };
        !self.fixed
            && self.sharing != Sharing::Private
            && rustix::fs::fstat(fd)
                .is_ok_and(|stat| (stat.st_blocks as u64).saturating_mul(512) < self.len())
    }

    /// Cuts the file to `to` bytes. Memory mapped beyond stays readable, as zeros: a search on its
    /// way there learns from a version, and not from a signal, that it was too late.
    ///
    /// # Errors
    /// [`SpaceError`] if the file system refuses.
    pub fn shrink(&self, to: u64) -> Result<(), SpaceError> {
        if to >= self.len() || self.fixed {
            return Ok(());
        }
        let from = self.retract(to)?;
        if let Some(fd) = &self.file {
            let cut = rustix::fs::ftruncate(fd, to).and_then(|()| rustix::fs::fsync(fd));
            if let Err(e) = cut {
                // The old length, if the file still has it.
                let there = rustix::fs::fstat(fd).map_or(to, |stat| stat.st_size as u64);
                self.extend(there.clamp(to, from))?;
                return Err(SpaceError::io("shortening the file", e));
            }
        }
        Ok(())
    }

    /// Frees the space of a page-aligned range, which then reads as zero.
    ///
    /// # Errors
    /// [`SpaceError`] if the file system refuses.
    pub fn punch(&self, offset: u64, len: u64) -> Result<(), SpaceError> {
        debug_assert!(
            offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE),
            "page-aligned by contract"
        );
        match (&self.file, self.sharing) {
            (_, Sharing::Private) => Ok(()),
            // The file system cannot take back the space of a device.
            (Some(_), _) if self.fixed => Ok(()),
            (Some(fd), _) => {
                // A late search must not fill the hole, or meet a full tmpfs (SIGBUS), so it gets
                // anonymous memory. `refill` maps the file again.
                let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let punched = self
                    .map_anonymous(offset, offset + len)
                    .and_then(|()| rustix::fs::fallocate(fd, hole, offset, len));
                match punched {
                    Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
                    Err(e) => Err(SpaceError::io("punching a hole", e)),
                }
            }
            (None, _) => {
                let at = self.base.wrapping_add(offset as usize).cast();
                // SAFETY: 1. the range is inside our anonymous mapping; 2. the caller promises that
                // nothing uses it, and it then reads as zero.
                unsafe { rustix::mm::madvise(at, len as usize, Advice::LinuxDontNeed) }
                    .map_err(|e| SpaceError::io("returning memory", e))
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: 1. the range was reserved by `map` and belongs to this value alone; 2. holders of
        // pointers into it borrowed (or shared ownership of) this value, so none are left.
        unsafe {
            let _ = rustix::mm::munmap(self.reserved.0.cast(), self.reserved.1 as usize);
        }
    }
}

/// Reserves `bytes` of address space without access.
fn reserve_range(bytes: u64) -> Result<*mut u8, Errno> {
    // Miri knows no mappings without access.
    let (access, flags) = if cfg!(miri) {
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    } else {
        (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE)
    };
    // SAFETY: a fresh anonymous mapping at an address that the kernel chooses overlaps no memory of
    // this process.
    let at =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes as usize, access, flags) }?;
    Ok(at.cast())
}

/// Returns true if `path` names a character device.
fn is_device_node(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device())
}

/// Makes the name of a new file durable.
pub(crate) fn sync_parent(path: &Path) -> Result<(), OpenError> {
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    File::open(parent)
        .and_then(|dir| dir.sync_all())
        .map_err(|e| OpenError::io(parent, "sync the folder", e))
}

fn is_device(fd: impl AsFd) -> bool {
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_char_device())
}

/// Returns true if `fd` is on tmpfs.
pub(crate) fn is_tmpfs(fd: impl AsFd) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    rustix::fs::fstatfs(fd).is_ok_and(|fs| fs.f_type as u64 == TMPFS_MAGIC)
}

/// Returns the bytes of a devdax device, from sysfs.
fn device_size(path: &Path, device: u64) -> Result<u64, OpenError> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let file = format!("/sys/dev/char/{major}:{minor}/size");
    std::fs::read_to_string(&file)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| OpenError::Unsupported {
            path: path.to_path_buf(),
            what: format!(
                "a character device whose size {file} does not tell; only devdax devices hold pools"
            ),
        })
}
