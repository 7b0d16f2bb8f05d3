//! Copying a pool that is in use.
//!
//! The copy is an image that a crash at the end of the copying could have left (the argument is at
//! [`Recorder`](crate::media::Recorder)), under a UUID of its own. It is written beside its final
//! name, synced, and renamed, so a half-written backup is never mistaken for one.

use super::Pool;
use crate::format::superblock::Superblock;
use crate::media::capture::{bytes_of, capture};
use crate::media::{LINE, Media, sync_parent};
use crate::sync::lock;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

const AT_A_TIME: u64 = 1 << 20;

/// Why a backup was not made. No file is left behind, and the pool is as it was.
#[derive(Debug)]
#[non_exhaustive]
pub enum BackupError {
    /// The operating system refused.
    Io {
        /// The file.
        path: PathBuf,
        /// The step that failed.
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The target exists.
    Exists(PathBuf),
    /// Another backup of this pool is under way.
    Busy,
    /// The pool is in memory only.
    Volatile,
}

impl fmt::Display for BackupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io {
                path,
                doing,
                source,
            } => {
                write!(f, "{}: {doing} failed: {source}", path.display())
            }
            Self::Exists(path) => write!(f, "{}: there already; it was left alone", path.display()),
            Self::Busy => write!(f, "another backup of this pool is under way"),
            Self::Volatile => write!(f, "a pool in memory cannot be backed up"),
        }
    }
}

impl std::error::Error for BackupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl<M: Media> Pool<M> {
    /// Copies the pool to a new file `to`, while others go on writing. Returns its bytes.
    ///
    /// Every operation that completed before the call is in it; of those that complete while it
    /// runs, some are; each is there wholly or not at all.
    ///
    /// # Errors
    /// [`BackupError`]; no file is left behind.
    pub fn backup(&self, to: &Path) -> Result<u64, BackupError> {
        if to.exists() {
            return Err(BackupError::Exists(to.to_path_buf()));
        }
        let recorder = self.pm.recorder().ok_or(BackupError::Volatile)?;
        // A name that no other backup uses, of any process.
        let mut name = to.as_os_str().to_owned();
        name.push(format!(".{}.partial", Uuid::new_v4().simple()));
        let partial = PathBuf::from(name);
        let io = |doing| {
            let path = partial.clone();
            move |source| BackupError::Io {
                path,
                doing,
                source,
            }
        };
        if !recorder.start() {
            return Err(BackupError::Busy);
        }
        let copied = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&partial)
            .map_err(io("create"))
            .and_then(|file| self.copy_pages(&file).map_err(io("write")).map(|_| file));
        let (superblock, lines) = {
            // Under the lock the pool cannot grow: what is recorded fits this superblock.
            let superblock = lock(&self.superblock);
            (superblock.clone(), recorder.stop())
        };
        let made = copied.and_then(|file| {
            for (line, words) in &lines {
                file.write_all_at(&bytes_of(*words), line * LINE as u64)
                    .map_err(io("write"))?;
            }
            let size = stamp(superblock, &file).map_err(io("write"))?;
            file.sync_all().map_err(io("sync"))?;
            std::fs::hard_link(&partial, to).map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => BackupError::Exists(to.to_path_buf()),
                _ => BackupError::Io {
                    path: to.to_path_buf(),
                    doing: "name the backup",
                    source,
                },
            })?;
            Ok(size)
        });
        // The finished file has its final name by now; an unfinished one is useless.
        let _ = std::fs::remove_file(&partial);
        let size = made?;
        sync_parent(to).map_err(|e| BackupError::Io {
            path: to.to_path_buf(),
            doing: "sync the folder",
            source: io::Error::other(e.to_string()),
        })?;
        Ok(size)
    }

    /// Copies everything there is, whatever changes meanwhile.
    fn copy_pages(&self, file: &File) -> io::Result<u64> {
        // The pool must not be cut off where it is being read.
        let _tail = lock(&self.tail);
        let base = self.pm.base().cast_const();
        let mut buffer = Vec::with_capacity(AT_A_TIME as usize);
        let mut at = 0;
        // The pool may grow meanwhile; what is stored in the new part is fenced, so recorded.
        while at < self.pm.len() {
            buffer.clear();
            let end = (at + AT_A_TIME).min(self.pm.len());
            for line in at / LINE as u64..end / LINE as u64 {
                // SAFETY: 1. the line is below the medium's end, which `tail` keeps from being cut
                // off; 2. stores are made as `Media` demands.
                let words = unsafe { capture(base, line) };
                buffer.extend_from_slice(&bytes_of(words));
            }
            if buffer.iter().any(|byte| *byte != 0) {
                file.write_all_at(&buffer, at)?;
            }
            at = end;
        }
        Ok(at)
    }
}

/// Gives the copy a superblock of its own: another UUID, complete without a journal.
fn stamp(mut superblock: Superblock, file: &File) -> io::Result<u64> {
    superblock.uuid = Uuid::new_v4();
    superblock.clean = true;
    file.set_len(superblock.size)?;
    superblock.write_to(file)?;
    Ok(superblock.size)
}
