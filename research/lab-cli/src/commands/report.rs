//! `report`: every figure and what belongs beside them, made by this program's other commands, and
//! the page of them.
//!
//! ```text
//! parts --> several at once: counted, model, explorer --> one at a time: host, limits, peers
//!             |                                             |
//!             +---- after each: its file, about.json, index.html ----+
//! ```
//!
//! The page is written anew after every part, so whatever ends the run leaves a partial report.

use super::workers::{each, lock, processors};
use crate::args::{Report as Args, ReportPart};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::signals::Asked;
use bristlecone_command::{print_report, process, progress};
use bristlecone_lab::figure::{self, On};
use bristlecone_lab::report::{About, FILES, Part, Report};
use indicatif::ProgressBar;
use serde::Serialize;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// Time between two looks at a part that is being made.
const LOOK: Duration = Duration::from_millis(50);
/// Seconds of an exploration of each design and model, and of the mutants of one design.
const EXPLORE: &str = "1";
const MUTANTS: &str = "60";

/// Makes the parts and the page, or the page alone.
pub fn run(args: &Args) -> Outcome {
    let data = args.out.join("data");
    let page = args.out.join("index.html");
    let (about, asked) = if args.page {
        let report = Report::read(&data).map_err(Failure::new)?;
        write(&page, &report.page().map_err(Failure::new)?)?;
        (report.about().clone(), None)
    } else {
        figure::ready(&data).map_err(|e| Failure::new(e.to_string()))?;
        make(args, &data, &page)?
    };
    let made = Made { page, about };
    print_report(&made, &made, args.json)?;
    match asked {
        Some(signal) if made.missing().next().is_some() => Err(Failure::Ended {
            signal,
            message: format!(
                "ended before all was made; `report --out {} --resume` goes on",
                args.out.display()
            ),
        }),
        None if !args.page && made.missing().next().is_some() => Err(Failure::Reported),
        _ => Ok(()),
    }
}

/// Makes the parts, and the page with each. Returns what was made, and the signal that ended it.
fn make(args: &Args, data: &Path, page: &Path) -> Outcome<(About, Option<i32>)> {
    let dir = args.path.as_deref().unwrap_or(&args.out);
    if !dir.is_dir() {
        return Err(Failure::new(format!(
            "{}: not a directory; --path names one for the files of what is measured",
            dir.display()
        )));
    }
    for name in &args.figure {
        figure::find(name).map_err(|e| Failure::Usage(e.to_string()))?;
    }
    let (tasks, about) = plan(args, dir, data)?;
    let asked = Asked::by_signals()?;
    let bar = progress::steps("parts", tasks.len() as u64);
    bar.enable_steady_tick(Duration::from_secs(1));
    let making = Making {
        data,
        page,
        asked: &asked,
        bar: &bar,
        about: Mutex::new(about),
    };
    let outcome = making.all(&tasks);
    bar.finish_and_clear();
    outcome?;
    let about = making.about.into_inner().unwrap_or_else(|e| e.into_inner());
    Ok((about, asked.signal()))
}

/// The outcome of a run.
#[derive(Serialize)]
struct Made {
    page: PathBuf,
    #[serde(flatten)]
    about: About,
}

impl Made {
    /// Returns the parts that were not made.
    fn missing(&self) -> impl Iterator<Item = &Part> {
        let parts = self.about.parts.iter();
        parts.filter(|part| !part.missing.is_empty())
    }
}

impl Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.missing() {
            writeln!(f, "{}: {}", part.name, part.missing)?;
        }
        let (all, missing) = (self.about.parts.len(), self.missing().count());
        write!(
            f,
            "{} of {all} parts: {}",
            all - missing,
            self.page.display()
        )
    }
}

/// A part to make: a command of this program that prints JSON.
struct Task {
    name: String,
    command: Vec<String>,
    /// True if nothing may run beside it.
    alone: bool,
}

impl Task {
    fn new(name: impl Into<String>, alone: bool, command: &[&str]) -> Self {
        Self {
            name: name.into(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            alone,
        }
    }
}

/// Returns every part that a run may have, in the order of making.
fn tasks(args: &Args, dir: &Path) -> Vec<Task> {
    let [_, limits, explorer, mutants, threads, peers] = FILES;
    let scale = args.scale.scale().name();
    let dir = dir.display().to_string();
    let wanted = |part: ReportPart| args.only.is_empty() || args.only.contains(&part);
    let mut tasks = Vec::new();
    for (on, part) in [
        (On::Counted, ReportPart::Counted),
        (On::Model, ReportPart::Model),
        (On::Host, ReportPart::Host),
    ] {
        let here = figure::ALL.iter().filter(|entry| {
            let named = args.figure.iter().any(|name| name == entry.name);
            wanted(part) && entry.on.contains(&on) && (named || args.figure.is_empty())
        });
        tasks.extend(here.map(|entry| {
            let command = [
                "figure",
                entry.name,
                "--on",
                on.name(),
                "--scale",
                scale,
                "--json",
            ];
            Task::new(format!("{}-{on}", entry.name), on == On::Host, &command)
        }));
    }
    if wanted(ReportPart::Explorer) {
        let explore = ["crash", "--index", "all", "--model", "all", "--nested"];
        let explore = [&explore[..], &["--budget", EXPLORE, "--json"]].concat();
        tasks.push(Task::new(explorer, false, &explore));
        let design = "lbtree-256-u64,clustered-1024-u64";
        let mutate = ["crash", "--index", design, "--model", "armv8", "--mutants"];
        let mutate = [
            &mutate[..],
            &["--only", "crates/index", "--budget", MUTANTS, "--json"],
        ];
        tasks.push(Task::new(mutants, false, &mutate.concat()));
        let schedule = [
            "crash",
            "--index",
            "all",
            "--threads",
            "2",
            "--schedules",
            "100",
            "--json",
        ];
        tasks.push(Task::new(threads, false, &schedule));
    }
    if wanted(ReportPart::Limits) {
        let command = ["bench", "limits", "--path", &dir, "--json"];
        tasks.push(Task::new(limits, true, &command));
    }
    if wanted(ReportPart::Peers) {
        let keys = if scale == "paper" { "1M" } else { "100K" };
        let command = ["bench", "peers", "--path", &dir, "--keys", keys, "--json"];
        tasks.push(Task::new(peers, true, &command));
    }
    // Those that run alone come last.
    tasks.sort_by_key(|task| task.alone);
    tasks
}

/// Returns the parts to make, and the report's state before they are made. With `--resume` those
/// that an earlier run has made are kept; else the earlier run's files go.
fn plan(args: &Args, dir: &Path, data: &Path) -> Outcome<(Vec<Task>, About)> {
    let tasks = tasks(args, dir);
    let mut about = About::here(args.scale.scale());
    let kept = if args.resume {
        kept(data, &about)?
    } else {
        Vec::new()
    };
    if !args.resume {
        remove_old(data)?;
    }
    about.parts = kept.clone();
    let is_kept = |task: &Task| kept.iter().any(|part| part.name == task.name);
    let tasks: Vec<Task> = tasks.into_iter().filter(|task| !is_kept(task)).collect();
    about.parts.extend(tasks.iter().map(|task| Part {
        name: task.name.clone(),
        seconds: None,
        missing: "the run ended before its turn".to_owned(),
    }));
    Ok((tasks, about))
}

/// Returns the parts that an earlier run has made.
fn kept(data: &Path, now: &About) -> Outcome<Vec<Part>> {
    let path = data.join("about.json");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read(&path).map_err(|e| Failure::io(&path, "reading", &e))?;
    let before: About = serde_json::from_slice(&text)
        .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
    if !before.is_like(now) {
        return Err(Failure::new(format!(
            "{}: made by another version, on another machine or at another scale; without --resume \
             all is made anew",
            path.display()
        )));
    }
    let made = before.parts.into_iter().filter(|part| {
        part.missing.is_empty() && data.join(format!("{}.json", part.name)).is_file()
    });
    Ok(made.collect())
}

/// Removes the files of an earlier run, and no others.
fn remove_old(data: &Path) -> Outcome {
    let figures = figure::ALL.iter().flat_map(|entry| {
        let name = |on: &On| format!("{}-{on}", entry.name);
        entry.on.iter().map(name)
    });
    for name in FILES.into_iter().map(str::to_owned).chain(figures) {
        let path = data.join(format!("{name}.json"));
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(Failure::io(&path, "removing", &e));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Parts that are being made.
struct Making<'a> {
    data: &'a Path,
    page: &'a Path,
    asked: &'a Asked,
    bar: &'a ProgressBar,
    about: Mutex<About>,
}

impl Making<'_> {
    /// Makes all parts, or those before a signal comes.
    fn all(&self, tasks: &[Task]) -> Outcome {
        self.save(&lock(&self.about))?;
        let (alone, together): (Vec<&Task>, Vec<&Task>) = tasks.iter().partition(|task| task.alone);
        let make = |task: &&Task| match self.asked.signal() {
            Some(_) => Ok(()),
            None => self.make(task),
        };
        each(&together, processors(), make)?;
        each(&alone, 1, make)
    }

    /// Makes a part, and the page with it.
    fn make(&self, task: &Task) -> Outcome {
        self.bar.set_message(task.name.clone());
        let started = Instant::now();
        let made = self.call(task)?;
        if self.asked.signal().is_some() && made.is_some() {
            // It ended because it was told to.
            return Ok(());
        }
        let mut about = lock(&self.about);
        if let Some(part) = about.parts.iter_mut().find(|part| part.name == task.name) {
            part.seconds = made.is_none().then(|| started.elapsed().as_secs_f64());
            part.missing = made.unwrap_or_default();
        }
        self.bar.inc(1);
        if self.bar.is_hidden() {
            let done = about
                .parts
                .iter()
                .filter(|part| part.missing.is_empty())
                .count();
            eprintln!("{done} of {}: {}", about.parts.len(), task.name);
        }
        self.save(&about)
    }

    /// Calls the command of a part. Returns why it failed, if it did.
    fn call(&self, task: &Task) -> Outcome<Option<String>> {
        let path = self.data.join(format!("{}.json", task.name));
        let part = self.data.join(format!("{}.json.part", task.name));
        let io = |e: std::io::Error| Failure::io(&part, "writing", &e);
        let program = std::env::current_exe().map_err(|e| {
            Failure::new(format!(
                "finding this program to start it again failed: {e}"
            ))
        })?;
        let mut told = tempfile::tempfile_in(self.data).map_err(io)?;
        let mut child = Command::new(&program)
            .args(&task.command)
            .stdin(Stdio::null())
            .stdout(File::create(&part).map_err(io)?)
            .stderr(told.try_clone().map_err(io)?)
            .spawn()
            .map_err(|e| Failure::io(&program, "starting it again", &e))?;
        let status: ExitStatus = loop {
            let waited = child
                .try_wait()
                .map_err(|e| Failure::io(&program, "waiting for it", &e))?;
            if let Some(status) = waited {
                break status;
            }
            if self.asked.signal().is_some() {
                break process::end(&mut child)?;
            }
            thread::sleep(LOOK);
        };
        if status.success() {
            fs::rename(&part, &path).map_err(io)?;
            return Ok(None);
        }
        let mut text = String::new();
        told.rewind()
            .and_then(|()| told.read_to_string(&mut text))
            .map_err(io)?;
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        fs::remove_file(&part).map_err(io)?;
        Ok(Some(last.map_or_else(
            || status.to_string(),
            |line| line.trim().to_owned(),
        )))
    }

    /// Writes the report as it is.
    fn save(&self, about: &About) -> Outcome {
        let failed = |e: serde_json::Error| Failure::new(e.to_string());
        let text = serde_json::to_string_pretty(about).map_err(failed)?;
        write(&self.data.join("about.json"), &text)?;
        let page = Report::read(self.data).and_then(|report| report.page());
        write(self.page, &page.map_err(Failure::new)?)
    }
}

/// Writes a file as a whole, so that nobody sees a part of it.
fn write(path: &Path, text: &str) -> Outcome {
    let part = path.with_added_extension("part");
    fs::write(&part, text)
        .and_then(|()| fs::rename(&part, path))
        .map_err(|e| Failure::io(path, "writing", &e))
}
