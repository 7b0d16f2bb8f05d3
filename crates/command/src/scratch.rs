//! Temporary pools: directories that end with the run that made them, and what killed runs have
//! left.
//!
//! On `/dev/shm` a pool is memory, so one that nobody removes is lost until the machine is started
//! again.
//!
//! ```text
//! bristlecone-KIND-PID-RANDOM     a directory in use: whoever made it holds a lock on it (flock)
//! bristlecone-KIND-kept-RANDOM    one that was kept for a closer look
//! ```
//!
//! | the run ends by | the directory is removed by |
//! | --- | --- |
//! | itself, or an error | the drop of its [`Scratch`] |
//! | a signal that the program handles | [`remove_all`], which the program calls |
//! | `SIGKILL`, a power cut on a disk | the next run in the same parent directory |
//!
//! # Invariants
//! 1. A run removes what another one has left only if that belongs to the same user, its process is
//!    gone, and nobody holds a lock on the directory or on a file in it. Pools are locked for as
//!    long as they are open, so one that a child of the dead process still has open stays.
//! 2. Whoever makes a directory looks, once it has the lock, whether the directory is still there.
//!    So a run that removes leftovers, which holds the same lock meanwhile, never takes away what
//!    is being made.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// How often a directory is removed again because something was made in it meanwhile.
const ATTEMPTS: u32 = 20;
/// Time between these.
const PAUSE: Duration = Duration::from_millis(10);
/// In the place of the process's number, in the name of a directory that is kept.
const KEPT: &str = "kept";

/// The files and directories to be removed before the process ends.
static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The purpose of a directory, which its name states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// `bench`
    Bench,
    /// `demo`
    Demo,
    /// `figure`
    Figure,
    /// `torture`
    Torture,
}

impl Purpose {
    const ALL: [Self; 4] = [Self::Bench, Self::Demo, Self::Figure, Self::Torture];

    /// Whether a later run removes a directory whose process is gone. A demo's pools are there to
    /// be looked at.
    fn is_swept(self) -> bool {
        self != Self::Demo
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Bench => "bristlecone-bench-",
            Self::Demo => "bristlecone-demo-",
            Self::Figure => "bristlecone-figure-",
            Self::Torture => "bristlecone-torture-",
        }
    }
}

/// A directory for a run's pools, removed with all that is in it when this is dropped.
#[derive(Debug)]
pub struct Scratch {
    dir: Option<TempDir>,
    path: PathBuf,
    purpose: Purpose,
    /// Locked, so that other runs see that the directory is in use. `None` where the file system
    /// has no locks.
    _lock: Option<File>,
}

impl Scratch {
    /// Makes a directory in `parent`. Removes what runs that were killed have left there.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn new(parent: &Path, purpose: Purpose) -> io::Result<Self> {
        let prefix = format!("{}{}-", purpose.prefix(), std::process::id());
        let (dir, lock) = loop {
            // Held from before the directory is made, so that no signal comes between that and its
            // being noted.
            let mut live = live();
            let dir = tempfile::Builder::new()
                .prefix(&prefix)
                .tempdir_in(parent)?;
            live.insert(dir.path().to_path_buf());
            drop(live);
            let lock = File::open(dir.path()).and_then(|file| file.lock().map(|()| file));
            if dir.path().is_dir() {
                break (dir, lock.ok());
            }
            // Invariant 2.
            self::live().remove(dir.path());
        };
        sweep(parent, dir.path());
        Ok(Self {
            path: dir.path().to_path_buf(),
            dir: Some(dir),
            purpose,
            _lock: lock,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps the directory. It gets a name that no later run takes for a leftover, except that of
    /// [`Purpose::Demo`], which none does. Returns its path.
    #[must_use]
    pub fn keep(mut self) -> PathBuf {
        live().remove(&self.path);
        self.dir.take().map(TempDir::keep);
        if !self.purpose.is_swept() {
            return self.path.clone();
        }
        let prefix = self.purpose.prefix();
        let renamed = || {
            let name = self.path.file_name()?.to_str()?.strip_prefix(prefix)?;
            let (_, random) = name.split_once('-')?;
            let to = self.path.with_file_name(format!("{prefix}{KEPT}-{random}"));
            fs::rename(&self.path, &to).ok()?;
            Some(to)
        };
        renamed().unwrap_or_else(|| self.path.clone())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(dir) = self.dir.take() {
            // The directory may be gone already; where it cannot be removed, the next run tries
            // again.
            let _ = dir.close();
            live().remove(&self.path);
        }
    }
}

/// Files that are of no use until they are complete: removed when this is dropped, and by
/// [`remove_all`].
#[derive(Debug)]
pub struct Unfinished {
    paths: Vec<PathBuf>,
}

impl Unfinished {
    /// These files, which need not be there yet.
    #[must_use]
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let paths: Vec<PathBuf> = paths.into_iter().collect();
        live().extend(paths.iter().cloned());
        Self { paths }
    }

    /// They are complete: they stay.
    pub fn keep(mut self) {
        self.forget();
    }

    fn forget(&mut self) -> Vec<PathBuf> {
        let mut live = live();
        for path in &self.paths {
            live.remove(path);
        }
        mem::take(&mut self.paths)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        for path in self.forget() {
            // Most are not there.
            let _ = fs::remove_file(path);
        }
    }
}

/// Calls `stop`, which is to end what works on them, and removes every directory and file that is
/// to end with this process. For a program that was told to end: from the beginning of the call on
/// no [`Scratch`] can be made, kept or dropped. A thread that tries waits until the process has
/// ended, so what it fails with because of `stop` is not reported.
pub fn remove_all(stop: impl FnOnce()) {
    let mut live = live();
    stop();
    for path in mem::take(&mut *live) {
        remove(&path);
    }
    // Never unlocked.
    mem::forget(live);
}

/// Removes a directory or file. Other threads may still be making files in it.
fn remove(path: &Path) {
    for _ in 0..ATTEMPTS {
        let removed = match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
            Ok(_) => fs::remove_file(path),
            Err(_) => return,
        };
        match removed {
            Ok(()) => return,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Removes what killed runs have left in `parent`, where `own` was just made.
fn sweep(parent: &Path, own: &Path) {
    let (Ok(entries), Ok(own)) = (fs::read_dir(parent), fs::symlink_metadata(own)) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name.to_str().is_some_and(was_left) {
            // The next run tries again to remove those that cannot be removed now.
            let _ = remove_leftover(&entry.path(), own.uid());
        }
    }
}

/// Whether a directory of this name is of a process that is gone.
fn was_left(name: &str) -> bool {
    let swept = Purpose::ALL
        .into_iter()
        .filter(|purpose| purpose.is_swept());
    let pid = swept
        .filter_map(|purpose| name.strip_prefix(purpose.prefix()))
        .find_map(|rest| rest.split_once('-')?.0.parse::<u32>().ok());
    pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

/// Removes a directory unless it belongs to someone else or is in use (invariant 1).
fn remove_leftover(dir: &Path, user: u32) -> io::Result<()> {
    let meta = fs::symlink_metadata(dir)?;
    if !meta.is_dir() || meta.uid() != user {
        return Ok(());
    }
    let held = File::open(dir)?;
    let found = held.metadata()?;
    // Someone else may have put another directory, or a link to one, under this name meanwhile.
    if (found.dev(), found.ino()) != (meta.dev(), meta.ino()) {
        return Ok(());
    }
    held.try_lock()?;
    let mut locks = vec![held];
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let file = File::open(entry.path())?;
            file.try_lock()?;
            locks.push(file);
        }
    }
    fs::remove_dir_all(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number that no process has: larger than the kernel's largest.
    const GONE: u32 = 4_194_305;

    fn left(parent: &Path, name: &str) -> PathBuf {
        let dir = parent.join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("micro.pool"), "pool").unwrap();
        dir
    }

    #[test]
    fn what_a_killed_run_left_goes_and_nothing_else_does() {
        let parent = tempfile::tempdir().unwrap();
        let parent = parent.path();
        let gone = left(parent, &format!("bristlecone-bench-{GONE}-aaaaaa"));
        let kept = [
            left(parent, &format!("bristlecone-demo-{GONE}-aaaaaa")),
            left(parent, "bristlecone-torture-kept-aaaaaa"),
            left(parent, "bristlecone-bench-aaaaaa"),
            left(parent, &format!("bristlecone-other-{GONE}-aaaaaa")),
            left(
                parent,
                &format!("bristlecone-figure-{}-aaaaaa", std::process::id()),
            ),
        ];
        let link = parent.join(format!("bristlecone-bench-{GONE}-link"));
        std::os::unix::fs::symlink(&kept[0], &link).unwrap();
        let open = left(parent, &format!("bristlecone-torture-{GONE}-aaaaaa"));
        let pool = File::open(open.join("micro.pool")).unwrap();
        pool.lock_shared().unwrap();
        let own = Scratch::new(parent, Purpose::Bench).unwrap();
        assert!(!gone.exists());
        assert!(open.exists(), "someone has its pool open");
        for kept in kept {
            assert!(kept.join("micro.pool").exists(), "{}", kept.display());
        }
        assert!(fs::symlink_metadata(link).is_ok());
        drop(pool);
        let other = Scratch::new(parent, Purpose::Figure).unwrap();
        assert!(!open.exists());
        assert!(own.path().exists());
        let (at, kept) = (own.path().to_path_buf(), other.keep());
        drop(own);
        assert!(!at.exists() && kept.exists());
        assert!(kept.to_str().unwrap().contains("bristlecone-figure-kept-"));
    }

    #[test]
    fn unfinished_files_go_unless_they_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        for path in [&a, &b] {
            fs::write(path, "").unwrap();
        }
        drop(Unfinished::new([a.clone(), dir.path().join("absent")]));
        Unfinished::new([b.clone()]).keep();
        assert!(!a.exists() && b.exists());
    }
}
