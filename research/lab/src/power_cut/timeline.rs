//! From system calls to changes of the files of one directory, and the syncs between them.
//!
//! Descriptors are followed from `openat` to `close`, through duplicates and `/proc/self/fd`. Calls
//! that change files in a way that is not modelled are an error, so that nothing is overlooked.

use super::PowerCutError;
use super::image::{Bytes, Image};
use super::strace::{Arg, Call};
use std::collections::HashMap;
use std::ops::Range;

/// A change, a sync, or a report of the writer.
#[derive(Clone, Debug)]
pub struct Event {
    /// When it began: twice the number of the line in the trace.
    pub begin: usize,
    /// When it ended: twice the number of that line, plus one, so a call in one line takes time.
    pub end: Option<usize>,
    /// The change.
    pub op: Op,
}

/// What a system call did. Files have numbers, which survive renaming.
#[derive(Clone, Debug)]
pub enum Op {
    /// Bytes were written; durably, if `through`.
    Write {
        /// The file.
        file: usize,
        /// Where.
        at: u64,
        /// The bytes.
        bytes: Vec<u8>,
        /// `O_DSYNC` or `RWF_DSYNC`
        through: bool,
    },
    /// The file's length was set, or extended if it was shorter.
    Length {
        /// The file.
        file: usize,
        /// The length.
        to: u64,
        /// It only extends.
        extends: bool,
    },
    /// A range became zeros.
    Zero {
        /// The file.
        file: usize,
        /// The range.
        range: Range<u64>,
    },
    /// A name of a directory changed.
    Name(Name),
    /// What had been done to a file became durable.
    Sync {
        /// The file.
        file: usize,
    },
    /// The names of a directory became durable.
    SyncNames {
        /// The directory.
        folder: String,
    },
    /// The writer said something.
    Said(Said),
}

/// A change of names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// A new file.
    Made(String, usize),
    /// A new directory.
    Folder(String),
    /// A removed file or directory.
    Removed(String),
    /// A file with another name.
    Moved(String, String),
}

impl Name {
    /// Returns the directory whose names changed.
    #[must_use]
    pub fn folder(&self) -> &str {
        let (Self::Made(path, _) | Self::Folder(path) | Self::Removed(path) | Self::Moved(_, path)) =
            self;
        folder_of(path)
    }
}

/// A report of the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// The seed, and the number of commits.
    Plan(u64, u64),
    /// A commit begins.
    Begin(u64),
    /// A commit is acknowledged.
    Ack(u64),
}

/// Returns the directory of a path; that of the writer is empty.
#[must_use]
pub fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Returns the line of a trace that a moment is in, counted from 1.
#[must_use]
pub fn line_of(moment: usize) -> usize {
    moment / 2 + 1
}

/// All events of a trace, in the order in which they began.
#[derive(Debug)]
pub struct Timeline {
    /// The events.
    pub events: Vec<Event>,
    /// The files at the beginning, by number.
    pub files: Vec<Bytes>,
    /// Their names.
    pub names: Vec<Name>,
    /// A name that each file has had.
    pub titles: Vec<String>,
    /// After all events.
    pub end: usize,
}

/// What a descriptor leads to.
#[derive(Clone, Debug)]
enum Target {
    /// An open file: number of its description.
    File(usize),
    Folder(String),
    /// Standard output: the writer's reports.
    Reports,
}

#[derive(Clone, Copy, Debug)]
struct Description {
    file: usize,
    position: u64,
    appends: bool,
    through: bool,
}

struct Reader<'r> {
    root: &'r str,
    timeline: Timeline,
    /// The current names of files.
    names: HashMap<String, usize>,
    lengths: Vec<u64>,
    descriptors: HashMap<i64, Target>,
    descriptions: Vec<Description>,
}

impl Timeline {
    /// Reads what `calls` did in the writer's directory, which was as `base` says at first.
    ///
    /// # Errors
    /// [`PowerCutError::Trace`] for a call that is not modelled, or without the writer's reports.
    pub fn of(calls: &[Call], base: &Image) -> Result<Self, PowerCutError> {
        let root = root(calls).ok_or_else(|| PowerCutError::Trace {
            line: 1,
            what: "the writer does not say which directory is its own".into(),
        })?;
        let mut reader = Reader {
            root: &root,
            timeline: Self {
                events: Vec::new(),
                files: Vec::new(),
                names: base.folders.iter().cloned().map(Name::Folder).collect(),
                titles: Vec::new(),
                end: 2 * (calls.iter().filter_map(|call| call.end).max().unwrap_or(0) + 1),
            },
            names: HashMap::new(),
            lengths: Vec::new(),
            descriptors: HashMap::from([(1, Target::Reports)]),
            descriptions: Vec::new(),
        };
        for (name, bytes) in &base.files {
            let file = reader.file(name, bytes.clone());
            reader.timeline.names.push(Name::Made(name.clone(), file));
        }
        // A descriptor is there when its call has ended, and gone when `close` begins: the number
        // may be another file's before that call's end is in the trace.
        let mut turns: Vec<(usize, bool, &Call)> = Vec::new();
        for call in calls {
            turns.push((call.begin, false, call));
            if let Some(end) = call.end {
                turns.push((end, true, call));
            }
        }
        turns.sort_by_key(|(line, ends, _)| (*line, *ends));
        for (_, ends, call) in turns {
            let done = if ends {
                reader.ended(call)
            } else {
                reader.began(call)
            };
            done.map_err(|what| PowerCutError::Trace {
                line: call.begin + 1,
                what: format!("{}: {what}", call.name),
            })?;
        }
        let mut timeline = reader.timeline;
        timeline.events.sort_by_key(|event| event.begin);
        Ok(timeline)
    }
}

fn number(call: &Call, at: usize) -> Result<i64, String> {
    let arg = call.args.get(at);
    arg.and_then(Arg::number)
        .ok_or_else(|| format!("argument {at} is no number"))
}

fn place(call: &Call, at: usize) -> Result<u64, String> {
    u64::try_from(number(call, at)?).map_err(|_| format!("argument {at} is negative"))
}

fn has(call: &Call, at: usize, flag: &str) -> bool {
    call.args.get(at).is_some_and(|arg| arg.has(flag))
}

impl Reader<'_> {
    fn file(&mut self, name: &str, bytes: Bytes) -> usize {
        let file = self.lengths.len();
        self.lengths.push(bytes.len());
        self.timeline.files.push(bytes);
        self.timeline.titles.push(name.to_owned());
        self.names.insert(name.to_owned(), file);
        file
    }

    fn add(&mut self, call: &Call, op: Op) {
        self.timeline.events.push(Event {
            begin: 2 * call.begin,
            end: call.end.map(|line| 2 * line + 1),
            op,
        });
    }

    /// Returns the path from the root, of an argument that is a path.
    fn path(
        &self,
        call: &Call,
        folder: Option<usize>,
        at: usize,
    ) -> Result<Option<String>, String> {
        let bytes = call.args.get(at).and_then(Arg::bytes);
        let bytes = bytes.ok_or_else(|| format!("argument {at} is no path"))?;
        let path = String::from_utf8_lossy(bytes).into_owned();
        let path = if path.starts_with('/') {
            match path.strip_prefix(self.root) {
                Some("") => String::new(),
                Some(rest) => match rest.strip_prefix('/') {
                    Some(rest) => rest.to_owned(),
                    None => return Ok(None),
                },
                None => return Ok(None),
            }
        } else {
            let descriptor = folder
                .and_then(|at| call.args.get(at))
                .and_then(Arg::number);
            match descriptor.and_then(|fd| self.descriptors.get(&fd)) {
                Some(Target::Folder(folder)) if folder.is_empty() => path,
                Some(Target::Folder(folder)) => format!("{folder}/{path}"),
                // Of the working directory, which is another one.
                _ => return Ok(None),
            }
        };
        Ok(Some(path.trim_end_matches('/').to_owned()))
    }

    fn target(&self, call: &Call) -> Option<&Target> {
        let descriptor = call.args.first().and_then(Arg::number)?;
        self.descriptors.get(&descriptor)
    }

    fn description(&self, call: &Call) -> Option<usize> {
        match self.target(call)? {
            Target::File(description) => Some(*description),
            _ => None,
        }
    }

    fn began(&mut self, call: &Call) -> Result<(), String> {
        if call.result.is_some_and(|result| result < 0) && call.name != "close" {
            return Ok(());
        }
        match &*call.name {
            "close" => {
                self.descriptors.remove(&number(call, 0)?);
            }
            "write" | "writev" | "pwrite64" | "pwritev" | "pwritev2" => self.wrote(call)?,
            "ftruncate" => {
                if let Some(description) = self.description(call) {
                    let file = self.descriptions[description].file;
                    let to = place(call, 1)?;
                    self.lengths[file] = to;
                    let extends = false;
                    self.add(call, Op::Length { file, to, extends });
                }
            }
            "fallocate" => self.allocated(call)?,
            "fsync" | "fdatasync" => match self.target(call).cloned() {
                Some(Target::File(description)) => {
                    let file = self.descriptions[description].file;
                    self.add(call, Op::Sync { file });
                }
                Some(Target::Folder(folder)) => self.add(call, Op::SyncNames { folder }),
                _ => {}
            },
            "unlink" | "unlinkat" | "rmdir" => {
                let at = usize::from(call.name == "unlinkat");
                if let Some(path) = self.path(call, (at == 1).then_some(0), at)? {
                    self.names.remove(&path);
                    self.add(call, Op::Name(Name::Removed(path)));
                }
            }
            "mkdir" | "mkdirat" => {
                let at = usize::from(call.name == "mkdirat");
                if let Some(path) = self.path(call, (at == 1).then_some(0), at)? {
                    self.add(call, Op::Name(Name::Folder(path)));
                }
            }
            "rename" | "renameat" | "renameat2" => self.renamed(call)?,
            "mmap" => {
                let writes = has(call, 2, "PROT_WRITE") && !has(call, 3, "MAP_PRIVATE");
                let descriptor = call.args.get(4).and_then(Arg::number);
                let target = descriptor.and_then(|fd| self.descriptors.get(&fd));
                if writes && matches!(target, Some(Target::File(_))) {
                    return Err("a shared mapping of a file is not modelled".into());
                }
            }
            // It promises nothing about durability.
            "sync_file_range" | "openat" | "open" | "lseek" | "dup" | "dup2" | "dup3" | "fcntl" => {
            }
            "copy_file_range" | "sendfile" | "splice" | "truncate" | "link" | "linkat"
            | "symlink" | "symlinkat" | "sync" | "syncfs" | "io_uring_setup" | "clone_range" => {
                return Err("this call is not modelled".into());
            }
            _ => {}
        }
        Ok(())
    }

    fn ended(&mut self, call: &Call) -> Result<(), String> {
        let Some(result) = call.result.filter(|result| *result >= 0) else {
            return Ok(());
        };
        match &*call.name {
            "openat" => self.opened(call, Some(0), 1, result)?,
            "open" => self.opened(call, None, 0, result)?,
            "dup" | "dup2" | "dup3" => self.duplicated(call, result),
            "fcntl" if has(call, 1, "F_DUPFD") || has(call, 1, "F_DUPFD_CLOEXEC") => {
                self.duplicated(call, result);
            }
            "lseek" => {
                if let Some(description) = self.description(call) {
                    self.descriptions[description].position = result.unsigned_abs();
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn duplicated(&mut self, call: &Call, to: i64) {
        match self.target(call).cloned() {
            Some(target) => self.descriptors.insert(to, target),
            None => self.descriptors.remove(&to),
        };
    }

    fn opened(
        &mut self,
        call: &Call,
        folder: Option<usize>,
        at: usize,
        result: i64,
    ) -> Result<(), String> {
        // Whatever had this number before is not open any more.
        self.descriptors.remove(&result);
        let flags = at + 1;
        let bytes = call.args.get(at).and_then(Arg::bytes).unwrap_or(&[]);
        let again = std::str::from_utf8(bytes)
            .ok()
            .and_then(|path| path.strip_prefix("/proc/self/fd/"))
            .and_then(|fd| fd.parse().ok())
            .and_then(|fd: i64| self.descriptors.get(&fd));
        let file = match again {
            Some(Target::File(description)) => self.descriptions[*description].file,
            Some(_) => return Ok(()),
            None => {
                let Some(path) = self.path(call, folder, at)? else {
                    return Ok(());
                };
                if has(call, flags, "O_TMPFILE") {
                    return Err("a file without a name is not modelled".into());
                }
                let made = has(call, flags, "O_CREAT");
                match self.names.get(&path) {
                    Some(file) => *file,
                    None if made => {
                        let file = self.file(&path, Bytes::default());
                        self.add(call, Op::Name(Name::Made(path, file)));
                        file
                    }
                    None => {
                        self.descriptors.insert(result, Target::Folder(path));
                        return Ok(());
                    }
                }
            }
        };
        if has(call, flags, "O_TRUNC") && self.lengths[file] > 0 {
            self.lengths[file] = 0;
            let (to, extends) = (0, false);
            self.add(call, Op::Length { file, to, extends });
        }
        let through = has(call, flags, "O_DSYNC") || has(call, flags, "O_SYNC");
        self.descriptors
            .insert(result, Target::File(self.descriptions.len()));
        self.descriptions.push(Description {
            file,
            position: 0,
            appends: has(call, flags, "O_APPEND"),
            through,
        });
        Ok(())
    }

    fn wrote(&mut self, call: &Call) -> Result<(), String> {
        let mut bytes = match call.args.get(1) {
            Some(Arg::Bytes(bytes)) => bytes.clone(),
            Some(Arg::List(parts)) => {
                let mut all = Vec::new();
                for part in parts {
                    let Arg::Fields(fields) = part else {
                        return Err("an unreadable vector".into());
                    };
                    let base = fields.first().and_then(|(_, value)| value.bytes());
                    all.extend_from_slice(base.ok_or("a part of a vector without bytes")?);
                }
                all
            }
            _ => return Err("no buffer".into()),
        };
        if let Some(result) = call.result {
            // A short write.
            bytes.truncate(usize::try_from(result).unwrap_or(0));
        }
        if matches!(self.target(call), Some(Target::Reports)) {
            if let Some(said) = said(&bytes) {
                self.add(call, Op::Said(said));
            }
            return Ok(());
        }
        let Some(description) = self.description(call) else {
            return Ok(());
        };
        let Description {
            file,
            position,
            appends,
            mut through,
        } = self.descriptions[description];
        let at = match &*call.name {
            "pwrite64" | "pwritev" | "pwritev2" => place(call, 3)?,
            _ if appends => self.lengths[file],
            _ => position,
        };
        through |= has(call, 4, "RWF_DSYNC") || has(call, 4, "RWF_SYNC");
        let end = at + bytes.len() as u64;
        if matches!(&*call.name, "write" | "writev") {
            self.descriptions[description].position = end;
        }
        self.lengths[file] = self.lengths[file].max(end);
        self.add(
            call,
            Op::Write {
                file,
                at,
                bytes,
                through,
            },
        );
        Ok(())
    }

    fn allocated(&mut self, call: &Call) -> Result<(), String> {
        let Some(description) = self.description(call) else {
            return Ok(());
        };
        let file = self.descriptions[description].file;
        let range = place(call, 2)?..place(call, 2)? + place(call, 3)?;
        let mode = call.args.get(1);
        let flag = |flag| mode.is_some_and(|mode| mode.has(flag));
        if flag("FALLOC_FL_PUNCH_HOLE") || flag("FALLOC_FL_ZERO_RANGE") {
            if !flag("FALLOC_FL_KEEP_SIZE") {
                return Err("zeros that extend the file are not modelled".into());
            }
            self.add(call, Op::Zero { file, range });
        } else if mode.and_then(Arg::number) == Some(0) {
            let (to, extends) = (range.end, true);
            self.lengths[file] = self.lengths[file].max(to);
            self.add(call, Op::Length { file, to, extends });
        } else if !flag("FALLOC_FL_KEEP_SIZE") {
            return Err("this mode is not modelled".into());
        }
        Ok(())
    }

    fn renamed(&mut self, call: &Call) -> Result<(), String> {
        let (from, to) = if call.name == "rename" {
            (self.path(call, None, 0)?, self.path(call, None, 1)?)
        } else {
            (self.path(call, Some(0), 1)?, self.path(call, Some(2), 3)?)
        };
        match (from, to) {
            (Some(from), Some(to)) => {
                if folder_of(&from) != folder_of(&to) || has(call, 4, "RENAME_EXCHANGE") {
                    return Err("only renaming within a directory is modelled".into());
                }
                if let Some(file) = self.names.remove(&from) {
                    self.names.insert(to.clone(), file);
                }
                self.add(call, Op::Name(Name::Moved(from, to)));
                Ok(())
            }
            (None, None) => Ok(()),
            _ => Err("renaming into or out of the directory is not modelled".into()),
        }
    }
}

/// Returns the writer's directory, which it says first.
fn root(calls: &[Call]) -> Option<String> {
    calls.iter().find_map(|call| {
        let bytes = call.args.get(1).and_then(Arg::bytes)?;
        let text = std::str::from_utf8(bytes).ok()?;
        let root = text.strip_prefix("root ")?.strip_suffix('\n')?;
        (call.name == "write" && number(call, 0) == Ok(1)).then(|| root.to_owned())
    })
}

/// Reads a report.
fn said(bytes: &[u8]) -> Option<Said> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut words = text.split_ascii_whitespace();
    let what = words.next()?;
    let mut number = || words.next()?.parse().ok();
    match what {
        "plan" => Some(Said::Plan(number()?, number()?)),
        "begin" => Some(Said::Begin(number()?)),
        "ack" => Some(Said::Ack(number()?)),
        _ => None,
    }
}
