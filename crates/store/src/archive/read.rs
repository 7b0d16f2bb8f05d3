//! Reading the files of an archive.

use super::format::{
    Change, FORMAT, FRAME_END, FRAME_HEAD, FrameHead, HEAD_BYTES, Head, KeysBetween, Kind, MAGIC,
    MARK_BYTES, Until, Uuid, is_whole,
};
use crate::error::ArchiveError;
use bristlecone_pmem::VersionError;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub(super) const STATE: &str = "state";
pub(super) const COMMITS: &str = "commits";
/// Bytes that are looked through at once for a frame.
const PIECE: usize = 1 << 20;
/// Most bytes of the content of a head, of any version.
const MOST_HEAD: usize = 4096;

/// The kind of a file of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// All that the store had at a time.
    FullState,
    /// The ranges of keys that may have changed since an earlier time.
    IncrementalState,
    /// Commits.
    Commits,
}

impl std::fmt::Display for FileKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::FullState => "full state",
            Self::IncrementalState => "incremental state",
            Self::Commits => "commits",
        })
    }
}

/// A file of an archive.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ArchiveFile {
    /// Its path.
    pub path: PathBuf,
    /// Its number: files are numbered in the order in which they were begun.
    pub number: u32,
    /// What it has.
    pub kind: FileKind,
    /// It has all commits from this time stamp on; of an incremental state: it can be put on any
    /// state that has all commits below.
    pub from: u64,
    /// It is complete below this time stamp; of a state that is not complete 0.
    pub below: u64,
    /// When it was begun, in ms since 1970. A state is as of then.
    pub begun: u64,
    /// Commits that it does not have, and that come after those that it has, were made later than
    /// this; in ms since 1970.
    pub until: u64,
    /// Changes of keys, or entries of a state.
    pub entries: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// What is damaged, and after how many bytes. What comes before that counts.
    pub damage: Option<(u64, String)>,
    pub(super) end: Until,
    /// Of a state: its time.
    pub(super) time: u64,
    /// Of commits: it was complete below this time stamp, before it was damaged; the highest one if
    /// that is not known.
    pub(super) was_below: u64,
}

/// A file of an archive whose head cannot be read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UnreadableFile {
    /// Its path.
    pub path: PathBuf,
    /// Its number.
    pub number: u32,
    /// What is wrong.
    pub what: String,
    /// It is shorter than a head: a crash came when it was begun, and it had nothing.
    pub is_empty: bool,
}

/// The files of an archive.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Archive {
    /// The directory.
    pub dir: PathBuf,
    /// Its files, in the order of their numbers.
    pub files: Vec<ArchiveFile>,
    /// Files whose heads cannot be read.
    pub unreadable: Vec<UnreadableFile>,
    /// Identity of the store that it is of.
    pub(super) uuid: Uuid,
    /// Its own number.
    pub(super) number: u64,
    /// The highest number that a file has.
    pub(super) last_number: u32,
}

impl Archive {
    /// Looks at the archive in a directory: at the heads and the ends of its files.
    ///
    /// # Errors
    /// [`ArchiveError`]
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, ArchiveError> {
        let dir = dir.into();
        Self::find(&dir)?.ok_or(ArchiveError::NotAnArchive { dir })
    }

    /// As [`open`](Self::open); `None` if there is no file of an archive.
    pub(crate) fn find(dir: &Path) -> Result<Option<Self>, ArchiveError> {
        let mut numbered = Vec::new();
        for entry in std::fs::read_dir(dir).map_err(ArchiveError::io(dir))? {
            let path = entry.map_err(ArchiveError::io(dir))?.path();
            numbered.extend(number_of(&path).map(|number| (number, path)));
        }
        numbered.sort();
        let Some((last_number, _)) = numbered.last() else {
            return Ok(None);
        };
        let mut found = Self {
            dir: dir.to_owned(),
            files: Vec::new(),
            unreadable: Vec::new(),
            uuid: Uuid::default(),
            number: 0,
            last_number: *last_number,
        };
        for (number, path) in numbered {
            let unreadable = |what: String, is_empty| UnreadableFile {
                path: path.clone(),
                number,
                what,
                is_empty,
            };
            let (mut reader, head) = match Reader::open(&path)? {
                Ok(opened) => opened,
                Err(Unopened { what, is_empty }) => {
                    found.unreadable.push(unreadable(what, is_empty));
                    continue;
                }
            };
            let newest = u64::from(FORMAT);
            VersionError::check("archive", head.format.into(), newest..=newest).map_err(
                |version| ArchiveError::Version {
                    path: path.clone(),
                    version,
                },
            )?;
            if found.files.is_empty() {
                (found.uuid, found.number) = (head.uuid, head.archive);
            } else if (head.uuid, head.archive) != (found.uuid, found.number) {
                found
                    .unreadable
                    .push(unreadable("it is of another archive".into(), false));
                continue;
            }
            found.files.push(reader.look(number, &head)?);
        }
        Ok(Some(found))
    }

    /// Reads all files and compares them with their checksums. `progress` is told of the bytes that
    /// have been read.
    ///
    /// # Errors
    /// [`ArchiveError::Io`]; damage is noted with the [files](ArchiveFile::damage).
    pub fn verify(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), ArchiveError> {
        let mut before = 0;
        for file in &mut self.files {
            file.verify(&mut |bytes| progress(before + bytes))?;
            before += file.bytes;
        }
        Ok(())
    }

    /// Returns the bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }
}

impl ArchiveFile {
    /// Whether it is a state and complete, or has commits.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.below > self.from
    }

    pub(super) fn is_state(&self) -> bool {
        self.kind != FileKind::Commits
    }

    fn set_end(&mut self, end: Until) {
        self.end = end;
        self.below = end.below;
        self.until = end.wall;
        self.entries = end.count;
    }

    /// Reads all of it, and notes its damage and where it ends.
    pub(super) fn verify(&mut self, progress: &mut dyn FnMut(u64)) -> Result<(), ArchiveError> {
        let mut reader = self.reader()?;
        let mut end = Until::default();
        let mut bad = None;
        loop {
            match reader.next()? {
                Next::Frame(Kind::Mark, content) => match Until::decode(content) {
                    Some(until) => end = until,
                    None => bad = Some("a mark is too short"),
                },
                Next::Frame(Kind::Commits, content) => {
                    bad = bad.or(what_is_wrong(content, self.from));
                }
                Next::Frame(Kind::Range, mut content) => {
                    let range = KeysBetween::decode(&mut content);
                    bad = bad.or(match range {
                        Some(_) => what_is_wrong(content, 0),
                        None => Some("a range leaves its frame"),
                    });
                }
                Next::Frame(Kind::Head, _) => bad = Some("it has two heads"),
                Next::End => break,
                Next::CutOff => {
                    // A state is of no use then, and commits are as far as they are marked.
                    break;
                }
                Next::Damaged(what) => {
                    self.damage = Some((reader.at, what));
                    break;
                }
            }
            if let Some(what) = bad {
                self.damage = Some((reader.begun, what.into()));
                break;
            }
            progress(reader.at);
        }
        self.set_end(end);
        Ok(())
    }

    /// Its frames, after the first.
    pub(crate) fn reader(&self) -> Result<Reader, ArchiveError> {
        match Reader::open(&self.path)? {
            Ok((reader, _)) => Ok(reader),
            Err(Unopened { what, .. }) => Err(ArchiveError::Damaged {
                path: self.path.clone(),
                at: 0,
                what,
            }),
        }
    }
}

/// What is wrong with changes, none of which is of a commit before `from`.
fn what_is_wrong(mut changes: &[u8], from: u64) -> Option<&'static str> {
    let mut last = from;
    while !changes.is_empty() {
        match Change::decode(&mut changes) {
            None => return Some("a change leaves its frame"),
            Some(change) if change.stamp < last => return Some("a commit is out of order"),
            Some(change) => last = change.stamp,
        }
    }
    None
}

/// The number of a file of an archive, by its name.
pub(super) fn number_of(path: &Path) -> Option<u32> {
    let kind = path.extension()?.to_str()?;
    let stem = path.file_stem()?.to_str()?;
    let is_one = [STATE, COMMITS].contains(&kind) && stem.len() == 8;
    stem.parse().ok().filter(|_| is_one)
}

/// What comes next in a file.
#[derive(Debug)]
pub(crate) enum Next<'r> {
    Frame(Kind, &'r [u8]),
    End,
    /// Not all of a frame was written.
    CutOff,
    /// What is wrong.
    Damaged(String),
}

/// Why a file's head could not be read.
struct Unopened {
    what: String,
    /// The file is shorter than a head.
    is_empty: bool,
}

/// The frames of a file.
pub(crate) struct Reader {
    file: BufReader<File>,
    path: PathBuf,
    uuid: Uuid,
    /// Number of the next frame.
    number: u32,
    /// Where the last frame begins, and where it ends.
    begun: u64,
    pub(crate) at: u64,
    content: Vec<u8>,
}

impl Reader {
    /// Opens a file and reads its head; or what is wrong with that.
    fn open(path: &Path) -> Result<Result<(Self, Head), Unopened>, ArchiveError> {
        let file = File::open(path).map_err(ArchiveError::io(path))?;
        let mut reader = Self {
            file: BufReader::with_capacity(PIECE, file),
            path: path.to_owned(),
            uuid: Uuid::default(),
            number: 0,
            begun: 0,
            at: 0,
            content: Vec::new(),
        };
        let mut first = [0; FRAME_HEAD];
        reader.fill(&mut first)?;
        let frame = FrameHead::decode(&first).filter(|frame| frame.len <= MOST_HEAD);
        let mut content = vec![0; frame.map_or(HEAD_BYTES, |frame| frame.len) + FRAME_END];
        reader.fill(&mut content)?;
        let bytes = FRAME_HEAD + content.len();
        let least = FRAME_HEAD + HEAD_BYTES + FRAME_END;
        let is_empty = reader.len()? < least as u64;
        let whole = || {
            let is_head = frame.is_some_and(|frame| frame.kind == Kind::Head && frame.number == 0);
            let head = Head::decode(&content)?;
            (is_head && is_whole(&head.uuid, &first, &content)).then_some(head)
        };
        let Some(head) = whole() else {
            let what = if is_empty {
                "it ends in its head"
            } else {
                "its head is damaged"
            };
            return Ok(Err(Unopened {
                what: what.into(),
                is_empty,
            }));
        };
        (reader.uuid, reader.number, reader.at) = (head.uuid, 1, bytes as u64);
        Ok(Ok((reader, head)))
    }

    fn len(&self) -> Result<u64, ArchiveError> {
        let metadata = self.file.get_ref().metadata();
        Ok(metadata.map_err(ArchiveError::io(&self.path))?.len())
    }

    /// What the file is, by its head and its last mark. Reads all of it if it does not end with
    /// one.
    fn look(&mut self, number: u32, head: &Head) -> Result<ArchiveFile, ArchiveError> {
        let bytes = self.len()?;
        let mut file = ArchiveFile {
            path: self.path.clone(),
            number,
            kind: match (head.is_state, head.from) {
                (false, _) => FileKind::Commits,
                (true, 0) => FileKind::FullState,
                (true, _) => FileKind::IncrementalState,
            },
            from: head.from,
            below: 0,
            begun: head.wall,
            until: head.wall,
            entries: 0,
            bytes,
            damage: None,
            end: Until::default(),
            time: head.time,
            was_below: 0,
        };
        let mut last = [0; FRAME_HEAD + MARK_BYTES + FRAME_END];
        let at = bytes.saturating_sub(last.len() as u64);
        let read = self.file.get_ref().read_exact_at(&mut last, at);
        let mark = read.ok().and_then(|()| {
            let (frame, rest) = last.split_first_chunk::<FRAME_HEAD>()?;
            let is_mark = FrameHead::decode(frame)
                .is_some_and(|frame| frame.kind == Kind::Mark && frame.len == MARK_BYTES);
            let whole = is_mark && is_whole(&self.uuid, frame, rest);
            whole.then(|| Until::decode(rest)).flatten()
        });
        match mark {
            Some(end) => file.set_end(end),
            None => file.verify(&mut |_| {})?,
        }
        file.was_below = match &file.damage {
            Some(_) => u64::MAX,
            None => file.below,
        };
        Ok(file)
    }

    /// The next frame.
    ///
    /// # Errors
    /// [`ArchiveError::Io`]
    pub(crate) fn next(&mut self) -> Result<Next<'_>, ArchiveError> {
        self.begun = self.at;
        let mut frame = [0; FRAME_HEAD];
        let got = self.fill(&mut frame)?;
        if got == 0 {
            return Ok(Next::End);
        }
        let head = FrameHead::decode(&frame);
        let most = head.map_or(0, |head| (head.len + FRAME_END) as u64);
        let mut content = std::mem::take(&mut self.content);
        content.clear();
        // A false length does not allocate that much memory.
        let read = self.file.by_ref().take(most).read_to_end(&mut content);
        self.content = content;
        read.map_err(ArchiveError::io(&self.path))?;
        let is_all = self.content.len() as u64 == most;
        let wrong = match head {
            None => "a frame's head is damaged".to_owned(),
            Some(head) if head.number != self.number => {
                format!("frame {} is where {} should be", head.number, self.number)
            }
            Some(head) if is_all && is_whole(&self.uuid, &frame, &self.content) => {
                self.number += 1;
                self.at += FRAME_HEAD as u64 + most;
                return Ok(Next::Frame(head.kind, &self.content[..head.len]));
            }
            Some(_) => "a frame fails its checksum".to_owned(),
        };
        let is_short =
            got < FRAME_HEAD || head.is_some() && !is_all && !self.has_other_length(&frame);
        if (is_short || frame == [0; FRAME_HEAD]) && !self.has_frame_behind(self.begun + 1)? {
            return Ok(Next::CutOff);
        }
        Ok(Next::Damaged(wrong))
    }

    /// Whether the last frame is whole, but for its length.
    fn has_other_length(&self, frame: &[u8; FRAME_HEAD]) -> bool {
        let Some(len) = self.content.len().checked_sub(FRAME_END) else {
            return false;
        };
        let mut other = *frame;
        other[FRAME_HEAD - 4..].copy_from_slice(&(len as u32).to_le_bytes());
        is_whole(&self.uuid, &other, &self.content)
    }

    /// Reads as much as there is. Returns how many bytes.
    fn fill(&mut self, into: &mut [u8]) -> Result<usize, ArchiveError> {
        let mut got = 0;
        while got < into.len() {
            match self.file.read(&mut into[got..]) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(ArchiveError::io(&self.path)(e)),
            }
        }
        Ok(got)
    }

    /// Whether a whole frame begins at `from` or behind it.
    fn has_frame_behind(&self, mut from: u64) -> Result<bool, ArchiveError> {
        let file = self.file.get_ref();
        let len = self.len()?;
        let mut piece = Vec::new();
        while from + ((FRAME_HEAD + FRAME_END) as u64) <= len {
            let bytes = (PIECE as u64).min(len - from) as usize;
            piece.resize(bytes, 0);
            file.read_exact_at(&mut piece, from)
                .map_err(ArchiveError::io(&self.path))?;
            let places = piece.windows(MAGIC.len()).enumerate();
            for (i, _) in places.filter(|(_, bytes)| *bytes == MAGIC) {
                if self.is_frame_at(from + i as u64, len) {
                    return Ok(true);
                }
            }
            from += (PIECE - MAGIC.len() + 1) as u64;
        }
        Ok(false)
    }

    fn is_frame_at(&self, at: u64, len: u64) -> bool {
        let file = self.file.get_ref();
        let mut frame = [0; FRAME_HEAD];
        if file.read_exact_at(&mut frame, at).is_err() {
            return false;
        }
        let Some(head) = FrameHead::decode(&frame) else {
            return false;
        };
        let bytes = head.len + FRAME_END;
        if at + (FRAME_HEAD + bytes) as u64 > len {
            return false;
        }
        let mut rest = vec![0; bytes];
        let read = file.read_exact_at(&mut rest, at + FRAME_HEAD as u64);
        read.is_ok() && is_whole(&self.uuid, &frame, &rest)
    }
}

#[cfg(test)]
mod tests;
