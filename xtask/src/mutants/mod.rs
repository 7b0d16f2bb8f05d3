//! Mutation testing: small changes to a package's code, one at a time, each of which some test of
//! the package should notice.
//!
//! The changes are cargo-mutants' ([`sites`]), but a package is compiled once for all of them: a
//! copy of the working tree gets every change of the chosen files, each behind a question, and the
//! environment of a test says which one is made ([`build`]). Each test first runs once by itself,
//! and notes which changes it comes by. A change is tried with those tests only, the quickest
//! first, until one fails ([`trials`]).
//!
//! A survivor is fixed by a test, or [listed](reasons) with the reason why none can notice it.
//!
//! Constants, `const fn`, what macros expand to and implementations of `Debug` are left alone.

mod build;
mod reasons;
mod sites;
mod trials;

use crate::tools::{self, Outcome, say};
use reasons::Reasons;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

/// The changes to try, and the time for them.
#[derive(clap::Args)]
pub struct Options {
    /// The package whose code is changed, and whose tests should notice.
    #[arg(long)]
    package: String,
    /// Only files whose path, from the repository's root, has this in it; more than once: any.
    #[arg(long, value_name = "TEXT")]
    file: Vec<String>,
    /// Only lines that differ from this commit's.
    #[arg(long, value_name = "COMMIT")]
    since: Option<String>,
    /// Only so many changes, chosen at random [default: all].
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Seed of the choice.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only list the changes.
    #[arg(long)]
    list: bool,
    /// Changes that are tried at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Seconds for one change: if no test has failed by then, it has survived.
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// Only tests whose name has this in it.
    #[arg(long, value_name = "TEXT")]
    test: Option<String>,
    /// Fails if fewer of those that compile are noticed, or listed with a reason, in percent.
    #[arg(long, value_name = "PERCENT")]
    at_least: Option<f64>,
    /// A file for the result, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Passed to `cargo test` when the tests are built, for example `--features`.
    #[arg(last = true)]
    args: Vec<String>,
}

/// The outcome of a change.
#[derive(Clone, Debug, PartialEq)]
enum Fate {
    /// This test failed.
    Killed(String),
    /// This test did not end.
    TimedOut(String),
    /// All tests that come by it passed, of this number.
    Survived(usize),
    /// No test comes by it.
    Unreached,
    /// The compiler refuses it.
    Unviable,
}

impl Fate {
    fn is_noticed(&self) -> bool {
        matches!(self, Self::Killed(_) | Self::TimedOut(_))
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Killed(_) => "killed",
            Self::TimedOut(_) => "timed out",
            Self::Survived(_) => "survived",
            Self::Unreached => "unreached",
            Self::Unviable => "unviable",
        }
    }
}

/// Runs the chore.
pub fn run(options: &Options) -> Outcome {
    let begun = Instant::now();
    let reasons = Reasons::read()?;
    let mut tree = build::Tree::new(options)?;
    say(format!("{} changes", tree.chosen.len()));
    if options.list {
        for change in &tree.chosen {
            println!("{change}");
        }
        return Ok(());
    }
    if tree.chosen.is_empty() && options.json.is_none() {
        return Ok(());
    }
    let executables = tree.compile(options)?;
    say(format!(
        "compiled after {} s; {} changes are refused by the compiler",
        begun.elapsed().as_secs(),
        tree.unviable.len()
    ));
    let viable: Vec<u32> = (1..=tree.chosen.len() as u32)
        .filter(|id| !tree.unviable.contains(id))
        .collect();
    let tests = trials::survey(&executables, options, tree.folder())?;
    say(format!(
        "{} tests, which take {:.0} s one after the other; after {} s",
        tests.len(),
        tests
            .iter()
            .map(|test| test.took.as_secs_f64())
            .sum::<f64>(),
        begun.elapsed().as_secs()
    ));
    let tried = trials::run(&viable, &tests, options, |id, fate| {
        if !fate.is_noticed() {
            say(format!("{}: {}", fate.name(), tree.chosen[id as usize - 1]));
        }
    });
    let mut fates = vec![Fate::Unviable; tree.chosen.len()];
    for (id, fate) in tried {
        fates[id as usize - 1] = fate;
    }
    report(options, &tree, &fates, &reasons, begun)
}

fn report(
    options: &Options,
    tree: &build::Tree,
    fates: &[Fate],
    reasons: &Reasons,
    begun: Instant,
) -> Outcome {
    let all: Vec<_> = tree.chosen.iter().zip(fates).collect();
    let count = |name: &str| fates.iter().filter(|fate| fate.name() == name).count();
    let viable = fates.len() - count("unviable");
    let noticed = fates.iter().filter(|fate| fate.is_noticed()).count();
    let share = |number: usize| 100.0 * number as f64 / viable.max(1) as f64;
    let mut text = String::new();
    let mut listed = 0;
    for name in ["survived", "unreached"] {
        for (change, _) in all.iter().filter(|(_, fate)| fate.name() == name) {
            let why = reasons.why(change);
            listed += usize::from(why.is_some());
            // Cannot fail: it is a string.
            let _ = match why {
                Some(why) => writeln!(text, "{name}, listed: {change}: {why}"),
                None => writeln!(text, "{name}: {change}"),
            };
        }
    }
    print!("{text}");
    println!(
        "{}: {viable} changes compile, {} are noticed by a failed test and {} by one that does not \
         end, {} survive, no test comes by {}: {:.1} % are noticed; {listed} of the others are listed \
         with a reason, {:.1} % with these; {} do not compile; {} s",
        options.package,
        count("killed"),
        count("timed out"),
        count("survived"),
        count("unreached"),
        share(noticed),
        share(noticed + listed),
        count("unviable"),
        begun.elapsed().as_secs(),
    );
    if let Some(file) = &options.json {
        let changes: Vec<_> = (all.iter())
            .map(|(change, fate)| {
                let by = match fate {
                    Fate::Killed(test) | Fate::TimedOut(test) => Some(test),
                    _ => None,
                };
                serde_json::json!({
                    "file": change.file, "line": change.mutant.line, "column": change.mutant.column,
                    "function": change.mutant.function, "what": change.mutant.what,
                    "fate": fate.name(), "by": by, "listed": reasons.why(change),
                })
            })
            .collect();
        let report = serde_json::json!({
            "package": options.package, "viable": viable, "noticed": noticed, "listed": listed,
            "changes": changes,
        });
        std::fs::write(file, format!("{report:#}\n"))
            .map_err(|e| format!("{}: {e}", file.display()))?;
    }
    let outdated = reasons.outdated(&all);
    if !outdated.is_empty() {
        return Err(format!(
            "{}: listed, but noticed: {}",
            reasons::LIST,
            outdated.join("; ")
        ));
    }
    match options.at_least {
        Some(least) if viable > 0 && share(noticed + listed) < least => Err(format!(
            "{:.1} % of the changes are noticed or listed, less than {least} %",
            share(noticed + listed)
        )),
        _ => Ok(()),
    }
}

/// The folder of copies and builds.
fn folder() -> Outcome<PathBuf> {
    Ok(tools::target_dir()?.join("mutants"))
}
