//! The journal medium's view of a file. It is a trait, so that tests can use a failing disk.

use super::format::SECTOR;
use crate::error::{CommitError, OpenError, copy_io};
use crate::media::mapping::{PAGE, sync_parent};
use crate::sync::lock;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The place in the code that asks for a sync, by which a test names it.
pub type Site = &'static Location<'static>;

/// A file of bytes whose writes become durable when `sync` returns, and not before.
///
/// Until then a power failure may keep, drop or tear each write at 512-byte sectors, and in any
/// order. All methods may be called from several threads at once.
pub trait Storage: Send + Sync + Debug {
    /// Returns the bytes of the file; 0 if there is none yet.
    ///
    /// # Errors
    /// The operating system's error.
    fn size(&self) -> io::Result<u64>;

    /// Reads at `offset`; fewer bytes than asked for mean the end of the file.
    ///
    /// # Errors
    /// The operating system's error.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes at `offset`, perhaps only the first part of `bytes`.
    ///
    /// # Errors
    /// The operating system's error; any part may have been written then.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize>;

    /// Makes all earlier writes durable. After an error it is unknown which of them are.
    ///
    /// # Errors
    /// The operating system's error.
    fn sync_at(&self, site: Site) -> io::Result<()>;

    /// Writes all of `bytes` and makes them (not necessarily earlier writes) durable.
    ///
    /// # Errors
    /// The operating system's error; any part may have been written then.
    fn write_durable_at(&self, offset: u64, bytes: &[u8], site: Site) -> io::Result<()> {
        self.write_all(offset, bytes)?;
        self.sync_at(site)
    }

    /// Extends the file from `from` to `to` bytes of zeros with real space behind them, so that a
    /// lack of space shows here and not at a later write. On an error the file is as long as
    /// before.
    ///
    /// # Errors
    /// `StorageFull`, or another error of the operating system.
    fn allocate(&self, from: u64, to: u64) -> io::Result<()>;

    /// Cuts the file to `len` bytes.
    ///
    /// # Errors
    /// The operating system's error.
    fn truncate(&self, len: u64) -> io::Result<()>;

    /// Returns a second handle on the same file. A failed write-back is reported to each handle
    /// once, so a thread that syncs while others do needs one of its own.
    ///
    /// # Errors
    /// The operating system's error.
    fn another(&self) -> io::Result<Arc<dyn Storage>>;

    /// Frees the space of a page-aligned range, which then reads as zero.
    ///
    /// # Errors
    /// The operating system's error.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The operating system's error; any part may have been written then.
    fn write_all(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        whole(offset, bytes, |at, rest| self.write_at(at, rest))
    }

    /// Reads until `into` is full or the file ends. Returns the bytes read.
    ///
    /// # Errors
    /// The operating system's error.
    fn read_full(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.read_at(offset + done as u64, &mut into[done..]) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}

impl dyn Storage + '_ {
    /// [`Storage::sync_at`], from where it is called.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn sync(&self) -> io::Result<()> {
        self.sync_at(Location::caller())
    }

    /// [`Storage::write_durable_at`], from where it is called.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn write_durable(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_durable_at(offset, bytes, Location::caller())
    }
}

/// Writes all of `bytes` from `offset` on with `write`, which may take only the first part of what
/// it is given.
fn whole(
    offset: u64,
    bytes: &[u8],
    mut write: impl FnMut(u64, &[u8]) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match write(offset + done as u64, &bytes[done..]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Returns the commit error for a failed write: a lack of space may end, and anything else is
/// fatal.
pub(super) fn write_error(doing: &'static str, source: io::Error) -> CommitError {
    match is_full(&source) {
        true => CommitError::NoSpace { doing, source },
        false => CommitError::Failed { doing, source },
    }
}

fn is_full(e: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(e.kind(), StorageFull | QuotaExceeded)
}

/// Whether the kernel or the file system has no write of that kind.
fn is_no_such_write(e: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(e),
        Some(Errno::OPNOTSUPP | Errno::NOSYS)
    )
}

/// Maximum length of a direct write. Longer writes go through the page cache.
const MAX_DIRECT: usize = 256 << 10;
const PAGE_BYTES: usize = PAGE as usize;

/// Memory for direct writes.
#[derive(Clone, Debug)]
#[repr(align(4096))]
struct Page([u8; PAGE_BYTES]);

/// The file again, past the page cache: written bytes are durable when the write returns.
#[derive(Debug)]
struct Direct {
    fd: OwnedFd,
    buffer: Mutex<Vec<Page>>,
}

impl Direct {
    /// Opens the very file of `fd`, whatever its path leads to by now. Returns `None` if that is
    /// not possible.
    fn of(fd: &OwnedFd) -> Option<Self> {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::DSYNC | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        let buffer = Mutex::new(vec![Page([0; PAGE_BYTES]); MAX_DIRECT / PAGE_BYTES]);
        Some(Self { fd, buffer })
    }

    /// Returns true for a write that may be direct. A disk with longer sectors refuses it.
    fn takes(offset: u64, bytes: &[u8]) -> bool {
        let whole = bytes.len().is_multiple_of(SECTOR) && offset.is_multiple_of(SECTOR as u64);
        whole && bytes.len() <= MAX_DIRECT
    }

    /// Writes all of `bytes`. Returns false if some or all of it must be written in another way.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        let mut buffer = lock(&self.buffer);
        let mut slices = Vec::with_capacity(buffer.len());
        for (page, part) in buffer.iter_mut().zip(bytes.chunks(PAGE_BYTES)) {
            let filled = &mut page.0[..part.len()];
            filled.copy_from_slice(part);
            slices.push(IoSlice::new(filled));
        }
        match rustix::io::pwritev(&self.fd, &slices, offset) {
            Ok(n) => Ok(n == bytes.len()),
            Err(Errno::INTR | Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }
}

/// A real file, made when first extended if it is not there.
#[derive(Debug)]
pub struct FileStorage {
    path: PathBuf,
    fd: OnceLock<OwnedFd>,
    /// True if the kernel or file system refuses `RWF_DSYNC`; then write, then sync.
    plain_sync: AtomicBool,
    /// For short writes that must be durable at once; `None` inside if they cannot be direct here.
    direct: OnceLock<Option<Direct>>,
}

impl FileStorage {
    /// Returns the open file `fd` (a duplicate, so that a lock on it stays with the caller's).
    pub fn of(path: &Path, fd: OwnedFd) -> Self {
        Self {
            path: path.to_path_buf(),
            fd: OnceLock::from(fd),
            plain_sync: AtomicBool::new(false),
            direct: OnceLock::new(),
        }
    }

    /// Opens the file at `path` if there is one. Otherwise the first [`Storage::allocate`] makes
    /// it.
    ///
    /// # Errors
    /// [`OpenError`] for anything but its absence.
    pub fn at(path: &Path, read_only: bool) -> Result<Self, OpenError> {
        let access = if read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        match rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty()) {
            Ok(fd) => {
                let stat = rustix::fs::fstat(&fd).map_err(|e| OpenError::io(path, "stat", e))?;
                if !rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file() {
                    return Err(OpenError::NotAFile(path.to_path_buf()));
                }
                Ok(Self::of(path, fd))
            }
            Err(Errno::NOENT) => Ok(Self {
                path: path.to_path_buf(),
                fd: OnceLock::new(),
                plain_sync: AtomicBool::new(false),
                direct: OnceLock::new(),
            }),
            Err(e) => Err(OpenError::io(path, "open", e)),
        }
    }

    fn fd(&self) -> io::Result<&OwnedFd> {
        self.fd.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Returns the file, which is made (and its name made durable) if necessary. Only the attaching
    /// thread makes it.
    fn made(&self) -> io::Result<&OwnedFd> {
        if self.fd.get().is_none() {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
            let fd = rustix::fs::open(&self.path, flags, Mode::from_raw_mode(0o644))?;
            sync_parent(&self.path).map_err(|e| match e {
                OpenError::Io { source, .. } => source,
                other => io::Error::other(other.to_string()),
            })?;
            let _ = self.fd.set(fd);
        }
        self.fd()
    }
}

impl Storage for FileStorage {
    fn size(&self) -> io::Result<u64> {
        let Some(fd) = self.fd.get() else {
            return Ok(0);
        };
        // A file's size is never negative.
        Ok(u64::try_from(rustix::fs::fstat(fd)?.st_size).unwrap_or(0))
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let Some(fd) = self.fd.get() else {
            return Ok(0);
        };
        Ok(rustix::io::pread(fd, into, offset)?)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::io::pwrite(self.fd()?, bytes, offset)?)
    }

    fn sync_at(&self, _: Site) -> io::Result<()> {
        Ok(rustix::fs::fdatasync(self.fd()?)?)
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8], site: Site) -> io::Result<()> {
        let fd = self.fd()?;
        if Direct::takes(offset, bytes)
            && let Some(direct) = self.direct.get_or_init(|| Direct::of(fd))
            && direct.write(offset, bytes)?
        {
            return Ok(());
        }
        // ORDERING (both): Relaxed; a hint that never goes back.
        if !self.plain_sync.load(Ordering::Relaxed) {
            let written = whole(offset, bytes, |at, rest| {
                let rest = [IoSlice::new(rest)];
                Ok(rustix::io::pwritev2(fd, &rest, at, ReadWriteFlags::DSYNC)?)
            });
            match written {
                Err(e) if is_no_such_write(&e) => self.plain_sync.store(true, Ordering::Relaxed),
                written => return written,
            }
        }
        self.write_all(offset, bytes)?;
        self.sync_at(site)
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        let fd = self.made()?;
        rustix::fs::ftruncate(fd, to)?;
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), from, to - from) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(()),
            Err(e) => {
                // Cut back to the old length. If even that fails, the tail stays unused.
                let _ = rustix::fs::ftruncate(fd, from);
                Err(e.into())
            }
        }
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        match self.fd.get() {
            Some(fd) => Ok(rustix::fs::ftruncate(fd, len)?),
            None => Ok(()),
        }
    }

    fn another(&self) -> io::Result<Arc<dyn Storage>> {
        let fd = rustix::fs::open(&self.path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let (own, new) = (rustix::fs::fstat(self.fd()?)?, rustix::fs::fstat(&fd)?);
        if (own.st_dev, own.st_ino) != (new.st_dev, new.st_ino) {
            let what = format!("{}: another file has that name now", self.path.display());
            return Err(io::Error::other(what));
        }
        Ok(Arc::new(Self::of(&self.path, fd)))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(self.fd()?, flags, offset, len) {
            Err(Errno::OPNOTSUPP) => {
                // Without holes here: zeros are written, and the space stays.
                let zeros = vec![0; 1 << 20];
                let mut at = offset;
                while at < offset + len {
                    let n = (offset + len - at).min(zeros.len() as u64);
                    self.write_all(at, &zeros[..n as usize])?;
                    at += n;
                }
                Ok(())
            }
            other => Ok(other?),
        }
    }
}

/// A handle that several threads sync. The system tells each handle once that it could not write,
/// and so only one of these threads: the others are told here, before they take what was written
/// for durable.
#[derive(Debug)]
pub(super) struct Shared {
    file: Arc<dyn Storage>,
    /// Held across syncs: the one that fails is noted before another begins.
    failed: Mutex<Option<io::Error>>,
}

impl Shared {
    pub fn new(file: Arc<dyn Storage>) -> Self {
        Self {
            file,
            failed: Mutex::new(None),
        }
    }

    fn once(&self, sync: impl FnOnce(&dyn Storage) -> io::Result<()>) -> io::Result<()> {
        let mut failed = lock(&self.failed);
        if let Some(e) = &*failed {
            return Err(copy_io(e));
        }
        let result = sync(&*self.file);
        if let Err(e) = &result
            && !is_full(e)
        {
            *failed = Some(copy_io(e));
        }
        result
    }
}

impl Storage for Shared {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_at(offset, bytes)
    }

    fn sync_at(&self, site: Site) -> io::Result<()> {
        self.once(|file| file.sync_at(site))
    }

    fn write_durable_at(&self, offset: u64, bytes: &[u8], site: Site) -> io::Result<()> {
        self.once(|file| file.write_durable_at(offset, bytes, site))
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        self.file.allocate(from, to)
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }

    fn another(&self) -> io::Result<Arc<dyn Storage>> {
        self.file.another()
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.punch(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fault::{FaultDisk, Which};
    use super::*;

    #[test]
    fn durable_writes_of_all_lengths_and_places_are_read_back() {
        // Beside the sources, where files can be written past the page cache.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = FileStorage::at(&dir.path().join("file"), false).unwrap();
        let end = 4 * MAX_DIRECT;
        file.allocate(0, end as u64).unwrap();
        let mut model = vec![0; end];
        let lengths = [
            1,
            511,
            512,
            1024,
            4096,
            4608,
            20_000,
            MAX_DIRECT,
            MAX_DIRECT + 512,
        ];
        for (i, length) in lengths.into_iter().cycle().take(60).enumerate() {
            let at = match i % 3 {
                0 => i * 512,
                1 => i * 4096 % (end / 2),
                _ => i * 1000 + 3,
            };
            let bytes: Vec<u8> = (0..length).map(|byte| (byte * 7 + i) as u8).collect();
            // Also over bytes that are only in the page cache.
            file.write_all(at as u64, &[0xEE; 100]).unwrap();
            model[at..at + 100].fill(0xEE);
            (&file as &dyn Storage)
                .write_durable(at as u64, &bytes)
                .unwrap();
            model[at..at + length].copy_from_slice(&bytes);
        }
        let mut found = vec![1; end];
        assert_eq!(file.read_full(0, &mut found).unwrap(), end);
        assert!(found == model);
    }

    #[test]
    fn a_shared_handle_is_the_file_itself() {
        let disk = FaultDisk::new(1);
        let shared = Shared::new(disk.file(Which::Journal));
        shared.allocate(0, 8192).unwrap();
        assert_eq!(shared.size().unwrap(), 8192);
        shared.write_all(100, &[1; 50]).unwrap();
        let mut found = [0; 60];
        assert_eq!(shared.read_full(90, &mut found).unwrap(), 60);
        assert!(found[..10] == [0; 10] && found[10..] == [1; 50]);
        shared.punch(0, 120).unwrap();
        shared.truncate(4096).unwrap();
        let another = shared.another().unwrap();
        assert_eq!(another.size().unwrap(), 4096);
        another.write_all(0, &[9]).unwrap();
        (&shared as &dyn Storage).sync().unwrap();
        (&shared as &dyn Storage).write_durable(200, &[2]).unwrap();
        disk.cut_now();
        let bytes = disk.restart(1).bytes(Which::Journal);
        assert_eq!(bytes.len(), 4096);
        assert_eq!((bytes[0], bytes[119], bytes[120]), (9, 0, 1));
        assert_eq!((bytes[149], bytes[150], bytes[200]), (1, 0, 2));
    }

    #[test]
    fn all_who_share_a_handle_are_told_of_its_failed_sync() {
        let disk = FaultDisk::new(1);
        let shared = Shared::new(disk.file(Which::Journal));
        let shared = &shared as &dyn Storage;
        disk.set_full(true);
        let full = shared.write_durable(0, &[1]).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        disk.set_full(false);
        shared.write_durable(0, &[1]).unwrap();
        disk.fail_one_sync(1);
        for _ in 0..2 {
            let failed = [shared.sync(), shared.write_durable(0, &[1])];
            for error in failed.map(Result::unwrap_err) {
                assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
            }
        }
        assert_eq!(disk.syncs(), 2, "nothing is tried again");
    }

    #[test]
    fn only_a_lack_of_space_may_end() {
        for kind in [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded] {
            let error = write_error("writing", kind.into());
            assert!(matches!(
                error,
                CommitError::NoSpace {
                    doing: "writing",
                    ..
                }
            ));
        }
        let error = write_error("writing", io::ErrorKind::PermissionDenied.into());
        assert!(matches!(
            error,
            CommitError::Failed {
                doing: "writing",
                ..
            }
        ));
    }

    /// An error of a write that is synced at once is no reason to write in another way, which might
    /// hide it.
    #[test]
    fn only_a_write_that_there_is_not_is_made_in_another_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "text").unwrap();
        let file = FileStorage::at(&path, true).unwrap();
        let refused = (&file as &dyn Storage).write_durable(0, &[1; 500]);
        let refused = refused.unwrap_err().raw_os_error();
        assert_eq!(refused, Some(Errno::BADF.raw_os_error()));
        // ORDERING: Relaxed; this thread would have set it.
        assert!(!file.plain_sync.load(Ordering::Relaxed));
        for (error, is) in [
            (Errno::OPNOTSUPP, true),
            (Errno::NOSYS, true),
            (Errno::IO, false),
        ] {
            assert_eq!(is_no_such_write(&error.into()), is, "{error}");
        }
        assert!(!is_no_such_write(&io::ErrorKind::Unsupported.into()));
    }

    /// Whatever it is asked to write is durable then, without the page cache.
    #[test]
    fn direct_writes_are_direct_and_synced() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        let file = FileStorage::at(&path, false).unwrap();
        file.allocate(0, 8192).unwrap();
        let can = rustix::fs::open(&path, OFlags::WRONLY | OFlags::DIRECT, Mode::empty()).is_ok();
        let direct = Direct::of(file.fd().unwrap());
        assert_eq!(direct.is_some(), can);
        let Some(direct) = direct else { return };
        let flags = rustix::fs::fcntl_getfl(&direct.fd).unwrap();
        assert!(flags.contains(OFlags::WRONLY | OFlags::DIRECT | OFlags::DSYNC));
        let closed_on_exec = rustix::io::fcntl_getfd(&direct.fd).unwrap();
        assert!(closed_on_exec.contains(rustix::io::FdFlags::CLOEXEC));
        // Whole sectors, and no more of them than there is memory for.
        for (offset, len, takes) in [
            (0, 512, true),
            (1024, MAX_DIRECT, true),
            (0, MAX_DIRECT + 512, false),
            (0, 500, false),
            (8, 512, false),
        ] {
            assert_eq!(
                Direct::takes(offset, &vec![0; len]),
                takes,
                "{offset}, {len}"
            );
        }
        // A multiple of the sectors that any disk has.
        let whole = vec![6; MAX_DIRECT];
        assert!(direct.write(4096, &whole).unwrap());
        assert!(std::fs::read(&path).unwrap()[4096..] == whole);
    }
}
