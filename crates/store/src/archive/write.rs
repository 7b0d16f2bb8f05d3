//! Writing the files of an archive.

use super::format::{Change, FORMAT, Head, KeysBetween, Kind, Token, Until, Uuid, frame};
use super::read::{Archive, COMMITS, FileKind, STATE};
use crate::error::ArchiveError;
use std::fs::{File, OpenOptions, TryLockError};
use std::hash::{BuildHasher, Hasher, RandomState};
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
    /// The archive's own number.
    pub(crate) number: u64,
    next_file: u32,
    /// Where the archive ended when it was opened.
    pub(crate) reached: Option<Until>,
    /// The token of its last mark, whichever file that is in.
    pub(crate) token: Token,
    /// When the last full state was begun.
    pub(crate) full_at: Option<u64>,
    /// Held for as long as this exists.
    _lock: File,
}

/// A number that nobody can foresee, and that is not 0.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}

impl Directory {
    /// Opens the archive of the store `uuid`, or begins one. `tokens` tells which ones the pool has
    /// of the archive with a number.
    ///
    /// # Errors
    /// [`ArchiveError`]
    pub(crate) fn open(
        dir: &Path,
        uuid: Uuid,
        tokens: &dyn Fn(u64) -> [u64; 2],
    ) -> Result<Self, ArchiveError> {
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
            number: random(),
            next_file: 1,
            reached: None,
            token: Token::default(),
            full_at: None,
            _lock: lock,
        };
        let Some(there) = Archive::find(dir)? else {
            return Ok(directory);
        };
        directory.next_file = there.last_number + 1;
        if there.files.is_empty() {
            return Ok(directory);
        }
        if there.uuid != uuid {
            return Err(ArchiveError::OtherPool { dir: dir.into() });
        }
        directory.number = there.number;
        let last = there.files.iter().map(|file| file.end.token);
        directory.token = last.max_by_key(|token| token.sequence).unwrap_or_default();
        // One that was begun, and has no mark, is new to the pool.
        let is_known = tokens(there.number).contains(&directory.token.token);
        if directory.token != Token::default() && !is_known {
            return Err(ArchiveError::Parted { dir: dir.into() });
        }
        directory.reached = there.reached();
        let full = there
            .files
            .iter()
            .filter(|file| file.kind == FileKind::FullState && file.counts());
        directory.full_at = full.map(|file| file.begun).max();
        // States that a crash cut off lead nowhere.
        let cut_off = there
            .files
            .iter()
            .filter(|file| file.is_state() && file.below == 0 && file.damage.is_none());
        for file in cut_off {
            std::fs::remove_file(&file.path).map_err(ArchiveError::io(&file.path))?;
        }
        Ok(directory)
    }

    fn begin(&mut self, head: &Head) -> Result<ArchiveWriter, ArchiveError> {
        let kind = if head.is_state { STATE } else { COMMITS };
        let path = self.dir.join(format!("{:08}.{kind}", self.next_file));
        let made = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = made.map_err(ArchiveError::io(&path))?;
        self.next_file += 1;
        let mut writer = ArchiveWriter {
            file,
            path,
            uuid: self.uuid,
            number: 0,
            gathered: Vec::new(),
            bytes: 0,
            marked: 0,
            entries: 0,
            begun: head.wall,
        };
        writer.frame(Kind::Head, |out| head.encode(out));
        let synced = writer.sync().and_then(|()| {
            let dir = File::open(&self.dir).and_then(|dir| dir.sync_all());
            dir.map_err(ArchiveError::io(&self.dir))
        });
        match synced {
            Ok(()) => Ok(writer),
            Err(e) => {
                writer.remove();
                Err(e)
            }
        }
    }

    /// Begins a file of the commits with this stamp and later ones.
    pub(crate) fn begin_commits(
        &mut self,
        from: u64,
        wall: u64,
    ) -> Result<ArchiveWriter, ArchiveError> {
        self.begin(&Head {
            format: FORMAT,
            is_state: false,
            uuid: self.uuid,
            from,
            time: 0,
            wall,
            archive: self.number,
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
            archive: self.number,
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
    /// That were written, and how many of them are up to the last mark.
    bytes: u64,
    marked: u64,
    /// Commits or entries.
    pub(crate) entries: u64,
    /// In ms since 1970.
    pub(crate) begun: u64,
}

impl ArchiveWriter {
    /// Removes the file, which is of no use. What cannot be removed is found when the archive is
    /// opened again.
    pub(crate) fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }

    /// Gives the space of what is behind the last mark back, as far as that goes: an error has
    /// ended the file.
    pub(crate) fn cut_off(self) {
        if self.marked == 0 {
            self.remove();
        } else {
            let _ = self.file.set_len(self.marked);
        }
    }

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
        self.sync()?;
        self.marked = self.bytes;
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn a_change(stamp: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let change = Change {
            stamp,
            wall: 1,
            key: b"key",
            value: Some(&[7; 999]),
        };
        change.encode(&mut out);
        out
    }

    fn opened(dir: &Path) -> Directory {
        Directory::open(dir, Uuid::default(), &|_| [0; 2]).unwrap()
    }

    fn until(below: u64, sequence: u64) -> Until {
        let token = Token { sequence, token: 7 };
        Until {
            below,
            wall: below,
            token,
            ..Until::default()
        }
    }

    /// The numbers of the files that are there.
    fn numbers(dir: &Path) -> Vec<u32> {
        let there = Archive::find(dir).unwrap();
        there.map_or_else(Vec::new, |there| {
            there.files.iter().map(|file| file.number).collect()
        })
    }

    #[test]
    fn numbers_of_archives_and_tokens_differ() {
        assert_ne!(random(), random());
    }

    #[test]
    fn an_archive_goes_on_with_its_number_and_its_last_token() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = opened(dir.path());
        assert_eq!((directory.reached, directory.full_at), (None, None));
        let number = directory.number;
        directory.begin_commits(1, 50).unwrap();
        drop(directory);
        // It has no mark, so the pool need not know it.
        let mut directory = opened(dir.path());
        assert_eq!(
            (directory.number, directory.token),
            (number, Token::default())
        );
        for (time, wall, sequence) in [(10, 100, 1), (20, 300, 3), (30, 200, 2)] {
            let mut state = directory.begin_state(None, (time, wall)).unwrap();
            state.mark(&until(time, sequence)).unwrap();
        }
        let mut state = directory.begin_state(Some(30), (40, 400)).unwrap();
        state.mark(&until(40, 4)).unwrap();
        drop(directory);
        assert_eq!(numbers(dir.path()), [1, 2, 3, 4, 5]);
        let asked = std::cell::Cell::new(0);
        let tokens = |number| {
            asked.set(number);
            [1, 7]
        };
        let mut directory = Directory::open(dir.path(), Uuid::default(), &tokens).unwrap();
        assert_eq!((asked.get(), directory.number), (number, number));
        assert_eq!(directory.token, until(0, 4).token);
        // The last that was begun.
        assert_eq!(directory.full_at, Some(300));
        assert_eq!(directory.reached.unwrap().below, 40);
        let file = directory.begin_commits(40, 500).unwrap();
        assert!(file.path.ends_with("00000006.commits"), "{:?}", file.path);
        drop(directory);
        let path = dir.path();
        let e = Directory::open(path, Uuid::default(), &|_| [1, 2]).unwrap_err();
        assert!(matches!(e, ArchiveError::Parted { .. }), "{e}");
        let e = Directory::open(path, [1; 16], &tokens).unwrap_err();
        assert!(matches!(e, ArchiveError::OtherPool { .. }), "{e}");
    }

    #[test]
    fn only_states_that_were_cut_off_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = opened(dir.path());
        directory.begin_commits(1, 1).unwrap();
        let mut whole = directory.begin_state(None, (10, 1)).unwrap();
        whole.mark(&until(10, 1)).unwrap();
        directory.begin_state(None, (20, 1)).unwrap();
        directory.begin_state(Some(10), (20, 1)).unwrap();
        let mut torn = directory.begin_state(None, (30, 1)).unwrap();
        torn.mark(&until(30, 2)).unwrap();
        let mut bytes = std::fs::read(&torn.path).unwrap();
        let at = bytes.len() - 30;
        bytes[at] ^= 1;
        std::fs::write(&torn.path, bytes).unwrap();
        drop(directory);
        assert_eq!(numbers(dir.path()), [1, 2, 3, 4, 5]);
        Directory::open(dir.path(), Uuid::default(), &|_| [7; 2]).unwrap();
        // Somebody may want to look at the damaged one.
        assert_eq!(numbers(dir.path()), [1, 2, 5]);
    }

    #[test]
    fn what_leads_to_the_oldest_moment_stays() {
        let made = |oldest| {
            let dir = tempfile::tempdir().unwrap();
            let mut directory = opened(dir.path());
            let mut sequence = 0;
            let mut mark = |mut file: ArchiveWriter, below| {
                sequence += 1;
                file.mark(&until(below, sequence)).unwrap();
            };
            mark(directory.begin_state(None, (10, 100)).unwrap(), 10);
            mark(directory.begin_commits(10, 100).unwrap(), 20);
            mark(directory.begin_commits(20, 200).unwrap(), 40);
            mark(directory.begin_state(None, (20, 200)).unwrap(), 20);
            mark(directory.begin_state(Some(20), (30, 300)).unwrap(), 30);
            // It is not complete, so it is none.
            directory.begin_state(None, (40, 350)).unwrap();
            mark(directory.begin_state(None, (40, 400)).unwrap(), 40);
            mark(directory.begin_commits(15, 400).unwrap(), 18);
            directory.forget_before(oldest).unwrap();
            numbers(dir.path())
        };
        let all = [1, 2, 3, 4, 5, 6, 7, 8];
        for oldest in [0, 99, 100, 199] {
            assert_eq!(made(oldest), all, "{oldest}");
        }
        for oldest in [200, 360, 399] {
            assert_eq!(made(oldest), [3, 4, 5, 6, 7, 8], "{oldest}");
        }
        assert_eq!(made(400), [7, 8]);
    }

    #[test]
    fn a_file_is_written_when_much_is_gathered_and_with_a_mark() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = opened(dir.path());
        let mut file = directory.begin_commits(1, 1).unwrap();
        let written = |file: &ArchiveWriter| std::fs::metadata(&file.path).unwrap().len();
        let head = written(&file);
        let mut known = 0;
        assert!(head > 0);
        assert_eq!(file.take_bytes(&mut known), head);
        assert_eq!((file.take_bytes(&mut known), known), (0, head));
        let few = a_change(1);
        file.commits(&few, 2).unwrap();
        assert_eq!(written(&file), head);
        let many: Vec<u8> = few
            .iter()
            .cycle()
            .take(few.len() * 1_100)
            .copied()
            .collect();
        file.commits(&many, 3).unwrap();
        let all = written(&file);
        assert!(all > head + (few.len() + many.len()) as u64);
        let keys = KeysBetween {
            low: b"a",
            high: None,
        };
        file.range(keys, (&few, 4)).unwrap();
        assert_eq!((written(&file), file.entries), (all, 9));
        assert_eq!(file.take_bytes(&mut known), all - head);
        file.mark(&until(5, 1)).unwrap();
        let marked = written(&file);
        assert!(marked > all + few.len() as u64);
        assert_eq!(file.take_bytes(&mut known), marked - all);
        let there = Archive::open(dir.path()).unwrap();
        assert_eq!(there.bytes(), marked);
        assert!(there.files[0].damage.is_none() && there.files[0].below == 5);
    }

    #[test]
    fn another_file_is_begun_when_one_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = opened(dir.path()).begin_commits(1, 1).unwrap();
        for (bytes, is_full) in [
            (0, false),
            (FILE_BYTES - 1, false),
            (FILE_BYTES, true),
            (FILE_BYTES + 1, true),
        ] {
            file.bytes = bytes;
            assert_eq!(file.is_full(), is_full, "{bytes}");
        }
    }

    /// Nobody removed the files that a full disk had ended, and each attempt made another one.
    #[test]
    fn what_is_behind_the_last_mark_gives_its_space_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut directory = Directory::open(dir.path(), Uuid::default(), &|_| [0; 2]).unwrap();
        let mut marked = directory.begin_commits(1, 1).unwrap();
        let path = marked.path.clone();
        marked.commits(&a_change(1), 1).unwrap();
        let until = Until {
            below: 2,
            count: 1,
            ..Until::default()
        };
        marked.mark(&until).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for _ in 0..3 {
            marked.commits(&a_change(2), 1).unwrap();
            marked.write().unwrap();
        }
        assert!(std::fs::metadata(&path).unwrap().len() > bytes.len() as u64);
        marked.cut_off();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        let there = Archive::open(dir.path()).unwrap();
        assert_eq!((there.files.len(), there.files[0].below), (1, 2));
        assert!(there.files[0].damage.is_none());

        let mut unmarked = directory.begin_commits(2, 1).unwrap();
        unmarked.commits(&a_change(2), 1).unwrap();
        let path = unmarked.path.clone();
        unmarked.cut_off();
        assert!(!path.exists());
    }
}
