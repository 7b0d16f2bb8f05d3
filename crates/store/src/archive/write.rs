//! Writing the files of an archive.

use super::format::{Change, FORMAT, Head, KeysBetween, Kind, Until, Uuid, frame};
use super::read::{Archive, COMMITS, FileKind, STATE, Witness};
use crate::error::ArchiveError;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Bytes of a file of commits, about, after which another one is begun.
const FILE_BYTES: u64 = 64 << 20;
/// Bytes that are gathered before they are written.
const GATHER: usize = 1 << 20;

/// The directory of an archive, open for writing.
#[derive(Debug)]
pub(crate) struct Directory {
    dir: PathBuf,
    uuid: Uuid,
    next_number: u32,
    /// Where the archive ended when it was opened.
    pub(crate) reached: Option<Until>,
    /// A change that the store has to have then.
    pub(crate) witness: Option<Witness>,
    /// When the last full state was begun.
    pub(crate) full_at: Option<u64>,
    /// Held for as long as this exists.
    _lock: File,
}

impl Directory {
    /// Opens the archive of the pool `uuid`, or begins one. The store gives time stamps from
    /// `next` on.
    ///
    /// # Errors
    /// [`ArchiveError`]
    pub(crate) fn open(dir: &Path, uuid: Uuid, next: u64) -> Result<Self, ArchiveError> {
        std::fs::create_dir_all(dir).map_err(ArchiveError::io(dir))?;
        let path = dir.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(ArchiveError::io(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ArchiveError::InUse { dir: dir.into() });
            }
            Err(TryLockError::Error(e)) => return Err(ArchiveError::io(path)(e)),
        }
        let mut directory = Self {
            dir: dir.into(),
            uuid,
            next_number: 1,
            reached: None,
            witness: None,
            full_at: None,
            _lock: lock,
        };
        let Some(there) = Archive::find(dir)? else {
            return Ok(directory);
        };
        if !there.files.is_empty() && there.uuid != uuid {
            return Err(ArchiveError::OtherPool { dir: dir.into() });
        }
        // States that a crash cut off lead nowhere.
        let cut_off = there
            .files
            .iter()
            .filter(|file| file.is_state() && !file.counts() && file.damage.is_none());
        for file in cut_off {
            std::fs::remove_file(&file.path).map_err(ArchiveError::io(&file.path))?;
        }
        let last = there.files.iter().map(|file| file.below).max();
        if let Some(below) = last.filter(|below| *below > next) {
            return Err(ArchiveError::Ahead {
                dir: dir.into(),
                archived: below - 1,
            });
        }
        directory.next_number = there.last_number + 1;
        directory.reached = there.reached();
        if directory.reached.is_some_and(|end| end.session != next) {
            let commits = there
                .files
                .iter()
                .filter(|file| !file.is_state() && file.counts());
            if let Some(last) = commits.max_by_key(|file| file.below) {
                directory.witness = last.witness()?;
            }
        }
        let full = there
            .files
            .iter()
            .filter(|file| file.kind == FileKind::FullState);
        directory.full_at = full
            .filter(|file| file.counts())
            .map(|file| file.begun)
            .max();
        Ok(directory)
    }

    /// The archive has a commit that the store has not.
    pub(crate) fn ahead(&self, archived: u64) -> ArchiveError {
        ArchiveError::Ahead {
            dir: self.dir.clone(),
            archived,
        }
    }

    fn begin(&mut self, head: &Head) -> Result<ArchiveWriter, ArchiveError> {
        let kind = if head.is_state { STATE } else { COMMITS };
        let path = self.dir.join(format!("{:08}.{kind}", self.next_number));
        let made = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = made.map_err(ArchiveError::io(&path))?;
        self.next_number += 1;
        let mut writer = ArchiveWriter {
            file,
            path,
            uuid: self.uuid,
            number: 0,
            gathered: Vec::new(),
            bytes: 0,
            entries: 0,
            begun: head.wall,
        };
        writer.frame(Kind::Head, |out| head.encode(out));
        writer.sync()?;
        let dir = File::open(&self.dir).and_then(|dir| dir.sync_all());
        dir.map_err(ArchiveError::io(&self.dir))?;
        Ok(writer)
    }

    /// Begins a file of the commits with this stamp and later ones. Their pages are of that
    /// generation or a later one, where they were written anew.
    pub(crate) fn begin_commits(
        &mut self,
        (from, generation): (u64, u64),
        wall: u64,
    ) -> Result<ArchiveWriter, ArchiveError> {
        self.begin(&Head {
            format: FORMAT,
            is_state: false,
            uuid: self.uuid,
            from,
            time: generation,
            wall,
        })
    }

    /// Begins the file of a state at `time`; with `from`, it is to be put on one with all commits
    /// below that.
    pub(crate) fn begin_state(
        &mut self,
        from: Option<u64>,
        (time, wall): (u64, u64),
    ) -> Result<ArchiveWriter, ArchiveError> {
        self.begin(&Head {
            format: FORMAT,
            is_state: true,
            uuid: self.uuid,
            from: from.map_or(0, |from| from.max(1)),
            time,
            wall,
        })
    }

    /// Removes the files that are not needed to restore to `oldest`, in ms since 1970, or later.
    pub(crate) fn forget_before(&self, oldest: u64) -> Result<(), ArchiveError> {
        let there = Archive::open(&self.dir)?;
        let full = there.files.iter().filter(|file| {
            file.kind == FileKind::FullState && file.counts() && file.begun <= oldest
        });
        let Some(first) = full.max_by_key(|file| file.below) else {
            return Ok(());
        };
        // Also what has nothing from its time on.
        let old = there
            .files
            .iter()
            .filter(|file| file.number < first.number && file.below <= first.below);
        for file in old {
            std::fs::remove_file(&file.path).map_err(ArchiveError::io(&file.path))?;
        }
        Ok(())
    }
}

/// A file of an archive that is being written.
#[derive(Debug)]
pub(crate) struct ArchiveWriter {
    file: File,
    path: PathBuf,
    uuid: Uuid,
    /// Of the next frame.
    number: u32,
    gathered: Vec<u8>,
    /// That were written.
    bytes: u64,
    /// Commits or entries.
    pub(crate) entries: u64,
    /// In ms since 1970.
    pub(crate) begun: u64,
}

impl ArchiveWriter {
    fn frame(&mut self, kind: Kind, write: impl FnOnce(&mut Vec<u8>)) {
        frame(&mut self.gathered, (&self.uuid, self.number), kind, write);
        self.number += 1;
    }

    /// Writes what was gathered. After an error nothing more can be written to this file.
    fn write(&mut self) -> Result<(), ArchiveError> {
        let written = self.file.write_all(&self.gathered);
        written.map_err(ArchiveError::io(&self.path))?;
        self.bytes += self.gathered.len() as u64;
        self.gathered.clear();
        Ok(())
    }

    fn sync(&mut self) -> Result<(), ArchiveError> {
        self.write()?;
        self.file.sync_data().map_err(ArchiveError::io(&self.path))
    }

    /// Appends changes that were encoded one behind the other, by their stamps. All of a commit are
    /// among them.
    pub(crate) fn commits(&mut self, changes: &[u8], commits: u64) -> Result<(), ArchiveError> {
        self.frame(Kind::Commits, |out| out.extend_from_slice(changes));
        self.entries += commits;
        self.write_if_much()
    }

    /// Appends all entries of a range of keys, encoded one behind the other.
    pub(crate) fn range(
        &mut self,
        keys: KeysBetween<'_>,
        (entries, count): (&[u8], u64),
    ) -> Result<(), ArchiveError> {
        self.frame(Kind::Range, |out| {
            keys.encode(out);
            out.extend_from_slice(entries);
        });
        self.entries += count;
        self.write_if_much()
    }

    fn write_if_much(&mut self) -> Result<(), ArchiveError> {
        if self.gathered.len() < GATHER {
            return Ok(());
        }
        self.write()
    }

    /// Appends a mark, and makes all of the file durable.
    pub(crate) fn mark(&mut self, until: &Until) -> Result<(), ArchiveError> {
        self.frame(Kind::Mark, |out| until.encode(out));
        self.sync()
    }

    /// Returns how many bytes were written and not asked for yet.
    pub(crate) fn take_bytes(&mut self, known: &mut u64) -> u64 {
        let new = self.bytes - *known;
        *known = self.bytes;
        new
    }

    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= FILE_BYTES
    }
}

/// Encodes an entry of a state.
pub(crate) fn entry(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let entry = Change {
        stamp: 0,
        wall: 0,
        key,
        value: Some(value),
    };
    entry.encode(out);
}
