//! `claims`: the ledger of all claims, summed up, compared with the figures, or written anew.

use super::workers::{each, lock, processors};
use crate::args::Claims;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::progress;
use bristlecone_lab::figure::ledger::{Ledger, MadeFigure};
use bristlecone_lab::figure::{self, On};
use indicatif::ProgressBar;
use serde::Serialize;
use std::fmt::{self, Display};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// Prints the summary, checks the ledger, or updates it.
pub fn run(args: &Claims) -> Outcome {
    let files = Files {
        ledger: args.docs.join("claims.toml"),
        page: args.docs.join("figures.md"),
    };
    if args.update {
        return update(args, &files);
    }
    let ledger = files.ledger()?;
    if args.check {
        return check(args, &files, &ledger);
    }
    if !args.names.is_empty() {
        let usage = "FIGURE is for --check and --update; the summary is of all";
        return Err(Failure::Usage(usage.to_owned()));
    }
    let summary = ledger.summary();
    bristlecone_command::print_report(&summary, &summary, args.json)
}

/// The files of the documentation that have claims.
struct Files {
    ledger: PathBuf,
    page: PathBuf,
}

fn read(path: &Path) -> Outcome<String> {
    fs::read_to_string(path).map_err(|e| Failure::io(path, "reading", &e))
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|e| Failure::io(path, "writing", &e))
}

fn broken(path: &Path, error: &str) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

impl Files {
    fn ledger(&self) -> Outcome<Ledger> {
        Ledger::parse(&read(&self.ledger)?).map_err(|e| broken(&self.ledger, &e))
    }

    /// Returns the page with the tables of a ledger, and whether it had them.
    fn filled(&self, ledger: &Ledger) -> Outcome<(String, bool)> {
        let page = read(&self.page)?;
        let filled = ledger.fill(&page).map_err(|e| broken(&self.page, &e))?;
        let same = page == filled;
        Ok((filled, same))
    }
}

/// The outcome of `--check`.
#[derive(Serialize)]
struct Checked {
    figures: usize,
    differences: Vec<String>,
}

impl Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for difference in &self.differences {
            writeln!(f, "{difference}")?;
        }
        match self.differences.len() {
            0 => writeln!(f, "{} figures as in the ledger", self.figures),
            n => writeln!(f, "{} figures, {n} differences", self.figures),
        }
    }
}

fn check(args: &Claims, files: &Files, ledger: &Ledger) -> Outcome {
    let made = make_all(&chosen(args)?)?;
    // With figures named, problems of other figures are left out.
    let mut differences = match args.names[..] {
        [] => ledger.problems(),
        _ => Vec::new(),
    };
    differences.extend(made.iter().flat_map(|made| ledger.differences(made)));
    if !files.filled(ledger)?.1 {
        let page = files.page.display();
        differences.push(format!("{page}: its tables are not the ledger's"));
    }
    let checked = Checked {
        figures: made.len(),
        differences,
    };
    bristlecone_command::print_report(&checked, &checked, args.json)?;
    if checked.differences.is_empty() {
        Ok(())
    } else {
        Err(Failure::Reported)
    }
}

/// The outcome of `--update`.
#[derive(Serialize)]
struct Updated {
    figures: usize,
    changes: Vec<String>,
    problems: Vec<String>,
}

impl Display for Updated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for change in &self.changes {
            writeln!(f, "{change}")?;
        }
        writeln!(
            f,
            "{} figures, {} changes of verdicts and claims",
            self.figures,
            self.changes.len()
        )?;
        if !self.problems.is_empty() {
            writeln!(f, "To look at:")?;
        }
        self.problems.iter().try_for_each(|p| writeln!(f, "  {p}"))
    }
}

fn update(args: &Claims, files: &Files) -> Outcome {
    let mut ledger = if files.ledger.exists() {
        files.ledger()?
    } else {
        Ledger::default()
    };
    let chosen = chosen(args)?;
    // A page without markers is better told before the figures are made than after.
    files.filled(&ledger)?;
    let made = make_all(&chosen)?;
    let when = args.host.as_deref().unwrap_or_default();
    let changes = made.iter().flat_map(|made| ledger.update(made, when));
    let changes = changes.collect();
    let (page, _) = files.filled(&ledger)?;
    write(&files.ledger, &ledger.to_string())?;
    write(&files.page, &page)?;
    let updated = Updated {
        figures: made.len(),
        changes,
        problems: ledger.problems(),
    };
    bristlecone_command::print_report(&updated, &updated, args.json)
}

/// Returns the figures to make: those of the given names, at every place where they can be checked,
/// or on the host.
fn chosen(args: &Claims) -> Outcome<Vec<(&'static str, On)>> {
    for name in &args.names {
        figure::find(name).map_err(|e| Failure::Usage(e.to_string()))?;
    }
    let all = figure::ALL.iter();
    let named = all
        .filter(|entry| args.names.is_empty() || args.names.iter().any(|name| name == entry.name));
    let chosen: Vec<_> = named
        .flat_map(|entry| entry.on.iter().map(|on| (entry.name, *on)))
        .filter(|(_, on)| (*on == On::Host) == args.host.is_some())
        .collect();
    if chosen.is_empty() {
        let names = args.names.join(", ");
        let place = args.host.as_ref().map_or(
            "neither counted nor on the model: name the machine with --update --host",
            |_| "not on the host",
        );
        return Err(Failure::Usage(format!("{names}: {place}")));
    }
    Ok(chosen)
}

/// Makes figures, each in a process of its own: as many at once as there are processors, or one
/// after the other on the host, where they would disturb each other.
fn make_all(chosen: &[(&'static str, On)]) -> Outcome<Vec<MadeFigure>> {
    let bar = progress::steps("figures", chosen.len() as u64);
    let on_host = chosen.iter().any(|(_, on)| *on == On::Host);
    let at_once = if on_host { 1 } else { processors() };
    let made = Mutex::new(Vec::new());
    let numbered: Vec<_> = chosen.iter().enumerate().collect();
    let done = each(&numbered, at_once, |(number, (name, on))| {
        let figure = make(name, *on)?;
        lock(&made).push((*number, figure));
        told(&bar, name, *on, chosen.len());
        Ok(())
    });
    bar.finish_and_clear();
    done?;
    let mut made = made.into_inner().unwrap_or_else(|e| e.into_inner());
    made.sort_by_key(|(number, _)| *number);
    Ok(made.into_iter().map(|(_, figure)| figure).collect())
}

/// Tells the progress on standard error, also where nobody sees a bar.
fn told(bar: &ProgressBar, name: &str, on: On, of: usize) {
    bar.inc(1);
    if bar.is_hidden() {
        eprintln!("{} of {of}: {name}, {on}", bar.position());
    }
}

/// Makes a figure with this program.
fn make(name: &str, on: On) -> Outcome<MadeFigure> {
    let failed = |what: &str| Failure::new(format!("{name}, {on}: {what}"));
    let program = std::env::current_exe().map_err(|e| failed(&e.to_string()))?;
    let output = Command::new(program)
        .args(["figure", name, "--on", on.name(), "--json"])
        .stdin(Stdio::null())
        .output()
        .map_err(|e| failed(&e.to_string()))?;
    if !output.status.success() {
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(failed(told.trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| failed(&e.to_string()))
}
