//! Tests of a package, each by itself: which changes it comes by, and which make it fail.

use super::build::Executable;
use super::{Fate, Options};
use crate::tools::{self, Outcome, say};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A test may take so many times as long with a change as without one, and this besides.
const PATIENCE: u32 = 5;
const BESIDES: Duration = Duration::from_secs(10);

/// A test.
pub struct Test {
    executable: PathBuf,
    folder: PathBuf,
    /// Its target and its name.
    name: String,
    /// Its name in the executable.
    path: String,
    /// How long it takes without a change.
    pub took: Duration,
    /// Numbers of the changes that it comes by.
    reached: HashSet<u32>,
}

impl Test {
    fn start(&self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Outcome<Child> {
        let mut command = Command::new(&self.executable);
        tools::as_from_a_shell(&mut command)
            .args(["--exact", &self.path, "--test-threads", "1"])
            .current_dir(&self.folder)
            .env("CARGO_MANIFEST_DIR", &self.folder)
            .env(name, value)
            // Property-based tests try the same cases each time.
            .env("PROPTEST_RNG_SEED", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // With what it starts, it can be ended.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        (command.spawn()).map_err(|e| format!("{}: {e}", self.executable.display()))
    }
}

/// Runs each test once without a change. Those that fail by themselves are left out, and named.
pub fn survey(executables: &[Executable], options: &Options, folder: &Path) -> Outcome<Vec<Test>> {
    let mut found = Vec::new();
    for executable in executables {
        let ignored: HashSet<String> = list(executable, &["--ignored"])?.into_iter().collect();
        for path in list(executable, &[])? {
            let wanted = options.test.as_ref().is_none_or(|part| path.contains(part));
            if wanted && !ignored.contains(&path) {
                found.push(Test {
                    executable: executable.path.clone(),
                    folder: executable.folder.clone(),
                    name: format!("{}: {path}", executable.name),
                    path,
                    took: Duration::ZERO,
                    reached: HashSet::new(),
                });
            }
        }
    }
    let notes = folder.with_file_name("reached");
    fs::create_dir_all(&notes).map_err(|e| format!("{}: {e}", notes.display()))?;
    let surveyed = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    let found: Vec<Mutex<Option<Test>>> = found.into_iter().map(|t| Mutex::new(Some(t))).collect();
    let took_part = |n: usize| -> Outcome {
        let taken = found[n].lock().map_or(None, |mut test| test.take());
        let Some(mut test) = taken else { return Ok(()) };
        let file = notes.join(n.to_string());
        let _ = fs::remove_file(&file);
        let start = Instant::now();
        let child = test.start("MUTANT_SURVEY", &file)?;
        let passed = wait(child, start, Duration::from_secs(options.limit))?;
        test.took = start.elapsed();
        if passed != Some(true) {
            say(format!(
                "left out, since it fails without a change: {}",
                test.name
            ));
            return Ok(());
        }
        let asked = fs::read(&file).unwrap_or_default();
        let (asked, _) = asked.as_chunks::<4>();
        test.reached = asked.iter().map(|id| u32::from_le_bytes(*id)).collect();
        if let Ok(mut surveyed) = surveyed.lock() {
            surveyed.push(test);
        }
        Ok(())
    };
    in_parallel(options.jobs, || {
        loop {
            // ORDERING: Relaxed; it only counts.
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= found.len() {
                return Ok(());
            }
            took_part(n)?;
        }
    })?;
    let mut surveyed = surveyed.into_inner().map_err(|e| e.to_string())?;
    surveyed.sort_by_key(|test| test.took);
    match surveyed.is_empty() {
        true => Err("no test passes without a change".into()),
        false => Ok(surveyed),
    }
}

/// Tries each change with the tests that come by it. Calls `tell` with each that has been tried.
pub fn run(
    ids: &[u32],
    tests: &[Test],
    options: &Options,
    tell: impl Fn(u32, &Fate) + Sync,
) -> HashMap<u32, Fate> {
    let fates = Mutex::new(HashMap::new());
    let next = AtomicUsize::new(0);
    let began = Instant::now();
    let failed = in_parallel(options.jobs, || {
        loop {
            // ORDERING: Relaxed; it only counts.
            let n = next.fetch_add(1, Ordering::Relaxed);
            let Some(id) = ids.get(n) else { return Ok(()) };
            let fate = fate(*id, tests, Duration::from_secs(options.limit))?;
            tell(*id, &fate);
            let Ok(mut fates) = fates.lock() else {
                return Ok(());
            };
            fates.insert(*id, fate);
            if fates.len() % 50 == 0 {
                let noticed = fates.values().filter(|fate| fate.is_noticed()).count();
                let (done, all) = (fates.len(), ids.len());
                let left = began.elapsed().as_secs_f64() / done as f64 * (all - done) as f64;
                say(format!(
                    "{done} of {all} tried, {noticed} noticed, some {left:.0} s left"
                ));
            }
        }
    });
    if let Err(e) = failed {
        say(e);
    }
    fates.into_inner().unwrap_or_default()
}

/// Tries one change.
fn fate(id: u32, tests: &[Test], limit: Duration) -> Outcome<Fate> {
    let began = Instant::now();
    let mut tried = 0;
    for test in tests.iter().filter(|test| test.reached.contains(&id)) {
        if began.elapsed() > limit {
            break;
        }
        tried += 1;
        let child = test.start("MUTANT", id.to_string())?;
        match wait(child, Instant::now(), test.took * PATIENCE + BESIDES)? {
            Some(true) => {}
            Some(false) => return Ok(Fate::Killed(test.name.clone())),
            None => return Ok(Fate::TimedOut(test.name.clone())),
        }
    }
    Ok(match tried {
        0 => Fate::Unreached,
        tried => Fate::Survived(tried),
    })
}

/// Waits for a test's end. Returns whether it passed; `None`: it did not end in time.
fn wait(mut child: Child, start: Instant, limit: Duration) -> Outcome<Option<bool>> {
    let mut pause = Duration::from_micros(500);
    let ended = loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            break Some(status.success());
        }
        if start.elapsed() > limit {
            break None;
        }
        thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(20));
    };
    // Whatever it started ends with it.
    let _ = Command::new("kill")
        .args(["-KILL", "--", &format!("-{}", child.id())])
        .stderr(Stdio::null())
        .status();
    let _ = child.wait();
    Ok(ended)
}

fn list(executable: &Executable, words: &[&str]) -> Outcome<Vec<String>> {
    let mut command = Command::new(&executable.path);
    command
        .args(["--list", "--format", "terse"])
        .args(words)
        .current_dir(&executable.folder);
    let listed = tools::output(&mut command)?;
    let tests = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.map(str::to_string).collect())
}

/// Runs `work` on so many threads; the first error is all's.
fn in_parallel(threads: usize, work: impl Fn() -> Outcome + Sync) -> Outcome {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(&work)).collect();
        threads.into_iter().try_for_each(|thread| {
            (thread.join()).unwrap_or_else(|_| Err("a thread of trials panicked".into()))
        })
    })
}
