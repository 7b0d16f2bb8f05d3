//! The medium of a machine, which outlives it.

use super::disk::{Cut, Disk};
use super::draw::Draw;
use super::{Kind, nbd};
use crate::tools::Outcome;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

const BYTES: usize = 256 << 20;

/// A medium. The emulator gets it as its standard input, so nothing has a name that would have to
/// be removed.
pub enum Medium {
    /// Persistent memory: a file that the emulator maps.
    Memory(File),
    /// A disk of this process.
    Disk(Arc<Mutex<Disk>>),
}

fn failed(e: std::io::Error) -> String {
    format!("the medium: {e}")
}

fn locked(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Medium {
    /// Makes an empty one. A disk may lie about flushes, whose times are drawn.
    ///
    /// # Errors
    /// There is no place for a file.
    pub fn new(kind: Kind, lies: bool, draw: Draw) -> Outcome<Self> {
        match kind {
            Kind::Pmem => {
                let shm = Path::new("/dev/shm");
                let file = if shm.is_dir() {
                    tempfile::tempfile_in(shm)
                } else {
                    tempfile::tempfile()
                };
                let file = file.map_err(failed)?;
                file.set_len(BYTES as u64).map_err(failed)?;
                Ok(Self::Memory(file))
            }
            Kind::Disk => {
                let disk = Disk::new(BYTES, lies, draw);
                Ok(Self::Disk(Arc::new(Mutex::new(disk))))
            }
        }
    }

    /// Adds it to the emulator, and returns the thread that serves it, which ends with the
    /// emulator.
    ///
    /// # Errors
    /// The system grants no further file or socket.
    pub fn attach(&self, command: &mut Command) -> Outcome<JoinHandle<Outcome>> {
        match self {
            Self::Memory(file) => {
                command
                    .args(["-machine", "pc,nvdimm=on,nvdimm-persistence=mem-ctrl"])
                    .args(["-m", "512M,slots=1,maxmem=2G"])
                    .arg("-object")
                    .arg(format!(
                        "memory-backend-file,id=memory,share=on,mem-path=/dev/stdin,size={BYTES}"
                    ))
                    .args(["-device", "nvdimm,memdev=memory"])
                    .stdin(Stdio::from(file.try_clone().map_err(failed)?));
                Ok(std::thread::spawn(|| Ok(())))
            }
            Self::Disk(disk) => {
                let (here, there) = UnixStream::pair().map_err(failed)?;
                command
                    .args(["-m", "512M"])
                    .args([
                        "-blockdev",
                        "driver=nbd,node-name=disk,server.type=fd,server.str=0",
                    ])
                    .args(["-device", "virtio-blk-pci,drive=disk,write-cache=on"])
                    .stdin(Stdio::from(OwnedFd::from(there)));
                let disk = Arc::clone(disk);
                Ok(std::thread::spawn(move || nbd::serve(here, &disk)))
            }
        }
    }

    /// Has the power of a disk go off after so many further writes.
    pub fn power_off_after(&self, writes: u64) {
        if let Self::Disk(disk) = self {
            locked(disk).power_off_after(writes);
        }
    }

    /// Returns true if nothing waits for the power of a disk to go off.
    pub fn is_off(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Disk(disk) => locked(disk).is_off(),
        }
    }

    /// Cuts the power; the emulator has gone. Memory loses nothing.
    pub fn cut(&mut self, draw: &mut Draw) -> Option<Cut> {
        match self {
            Self::Memory(_) => None,
            Self::Disk(disk) => Some(locked(disk).cut(draw)),
        }
    }

    /// Returns the durable contents.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn contents(&self) -> Outcome<Vec<u8>> {
        match self {
            Self::Memory(file) => {
                let mut bytes = vec![0; BYTES];
                file.read_exact_at(&mut bytes, 0).map_err(failed)?;
                Ok(bytes)
            }
            Self::Disk(disk) => Ok(locked(disk).contents().to_vec()),
        }
    }
}
