//! `crash`: explores the states that a power cut can leave, and recovers each of them.

use crate::args::{Crash, Explore};
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::progress;
use bristlecone_crash::campaign::{self, Campaign, CampaignReport, OPS};
use bristlecone_crash::concurrent::{self, ConcurrentOptions, MAX_OPERATIONS};
use bristlecone_crash::mutants::{self, Mutant, MutantOptions, MutantReport, PATIENCE, Waste};
use bristlecone_crash::subject::FaultKind;
use bristlecone_crash::subject::Subject;
use bristlecone_crash::subjects;
use bristlecone_crash::token::{ScheduleToken, Token};
use bristlecone_crash::workload::Kind;
use bristlecone_pmem::media::sim::{Model, Site};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Default number of operations of each of several threads.
const OPS_OF_A_THREAD: usize = 4;
/// Default number of schedules of several threads.
const SCHEDULES: u64 = 2_000;
/// Default time limit of a mutant, in seconds.
const LIMIT: f64 = 60.0;

/// The JSON object of an exploration.
#[derive(Debug, Serialize)]
struct Explored {
    index: String,
    model: &'static str,
    workload: String,
    ops: usize,
    threads: usize,
    workloads: u64,
    crash_points: u64,
    images: u64,
    nested_images: u64,
    kills: u64,
    killed_images: u64,
    exhaustive_share: f64,
    /// `None` if no crash in recovery was tried.
    nested_exhaustive_share: Option<f64>,
    violations: u64,
    leaks: u64,
    progress_failures: u64,
    seconds: f64,
    replay: Option<String>,
}

/// The JSON object of mutation testing.
#[derive(Debug, Serialize)]
struct Mutated {
    index: String,
    model: &'static str,
    sites: usize,
    orderings: usize,
    killed: usize,
    survivors: Vec<String>,
    /// Fences that nothing needs under this model, in which stores become durable in order.
    unneeded: Vec<String>,
    /// Sites that do nothing under this model.
    without_effect: usize,
    undecided: Vec<String>,
    waste: Vec<String>,
    images: u64,
    seconds: f64,
}

/// Runs the command.
pub fn run(args: &Crash) -> Outcome {
    if let Some(token) = &args.explore.replay {
        return replay(crate::NAME, token, &replayed);
    }
    run_on(crate::NAME, &args.explore, subjects(&args.index)?)
}

/// Explores these subjects, for a program that takes the tokens of what is found.
pub fn run_on(program: &str, args: &Explore, mut chosen: Vec<Arc<dyn Subject>>) -> Outcome {
    if args.threads == 1 && args.schedules.is_some() {
        return Err(Failure::Usage(
            "--schedules: one thread has one schedule; add --threads 2 or more".into(),
        ));
    }
    let models = models(&args.model)?;
    let kinds = kinds(&args.workload)?;
    planted(args)?;
    if args.threads > 1 {
        chosen = concurrent_only(args, chosen)?;
    }
    if args.mutants {
        return mutate(args, &chosen, &models, &kinds);
    }
    let runs = chosen.len() * models.len();
    let mut reports = Vec::new();
    let started = Instant::now();
    for (i, (subject, model)) in pairs(&chosen, &models).enumerate() {
        // The remaining runs share the rest of the budget.
        let budget = args.budget.map(|seconds| {
            let left = Duration::from_secs_f64(seconds).saturating_sub(started.elapsed());
            left / (runs - i) as u32
        });
        reports.push(if args.threads > 1 {
            explore_threads(program, args, subject, model, budget)?
        } else {
            explore(program, args, subject, model, &kinds, budget)?
        });
    }
    if args.json {
        print_json(&reports)?;
    }
    if reports.iter().any(|report| report.violations > 0) {
        return Err(Failure::Reported);
    }
    Ok(())
}

fn pairs<'a>(
    chosen: &'a [Arc<dyn Subject>],
    models: &'a [Model],
) -> impl Iterator<Item = (&'a Arc<dyn Subject>, Model)> {
    chosen
        .iter()
        .flat_map(|subject| models.iter().map(move |model| (subject, *model)))
}

/// Prints one object, or an array of several.
fn print_json<T: Serialize>(reports: &[T]) -> Outcome {
    match reports {
        [one] => bristlecone_command::print_json(one),
        all => bristlecone_command::print_json(&all),
    }
}

fn subjects(names: &[String]) -> Outcome<Vec<Arc<dyn Subject>>> {
    let mut chosen: Vec<Arc<dyn Subject>> = Vec::new();
    for name in names {
        let found = match name.as_str() {
            "all" => subjects::all(),
            name => subjects::matching(name),
        };
        if found.is_empty() {
            return Err(Failure::Usage(format!(
                "--index {name:?}: no such design; there are: all, {}",
                subjects::names().join(", ")
            )));
        }
        for one in found {
            // A subject that is named twice is explored once.
            if chosen.iter().all(|known| known.name() != one.name()) {
                chosen.push(Arc::from(one));
            }
        }
    }
    Ok(chosen)
}

/// For a run with threads, returns the subjects that threads may share, or all subjects if there
/// are none.
fn concurrent_only(
    args: &Explore,
    chosen: Vec<Arc<dyn Subject>>,
) -> Outcome<Vec<Arc<dyn Subject>>> {
    if args.nested || args.kills || args.workload != "all" {
        eprintln!(
            "note: threads have programs of their own and crash once: --workload, --nested and --kills change nothing"
        );
    }
    let most = MAX_OPERATIONS / args.threads;
    if let Some(ops) = args.ops.filter(|ops| *ops > most) {
        return Err(Failure::Usage(format!(
            "--ops {ops}: {} threads do at most {most} operations each ({MAX_OPERATIONS} together)",
            args.threads
        )));
    }
    let (together, alone): (Vec<_>, Vec<_>) =
        chosen.into_iter().partition(|subject| subject.concurrent());
    for subject in alone {
        let name = subject.name();
        if together.is_empty() {
            return Err(Failure::Usage(format!(
                "--threads {}: {name} takes one thread at a time; choose others with --index",
                args.threads
            )));
        }
        eprintln!("note: {name} takes one thread at a time and is left out");
    }
    Ok(together)
}

fn models(name: &str) -> Outcome<Vec<Model>> {
    match name {
        "all" => Ok(Model::ALL.to_vec()),
        name => Model::named(name).map(|model| vec![model]).ok_or_else(|| {
            let known: Vec<&str> = Model::ALL.iter().map(|model| model.name()).collect();
            Failure::Usage(format!(
                "--model {name:?}: no such persistency model; there are: all, {}",
                known.join(", ")
            ))
        }),
    }
}

fn kinds(name: &str) -> Outcome<Vec<Kind>> {
    match name {
        "all" => Ok(Kind::ALL.to_vec()),
        name => Kind::named(name).map(|kind| vec![kind]).ok_or_else(|| {
            let known: Vec<&str> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            Failure::Usage(format!(
                "--workload {name:?}: no such workload; there are: all, {}",
                known.join(", ")
            ))
        }),
    }
}

fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn share(of: u64, all: u64) -> f64 {
    if all == 0 {
        return 1.0;
    }
    // Four digits suffice, and print well.
    (of as f64 / all as f64 * 1e4).round() / 1e4
}

fn explore(
    program: &str,
    args: &Explore,
    subject: &Arc<dyn Subject>,
    model: Model,
    kinds: &[Kind],
    budget: Option<Duration>,
) -> Outcome<Explored> {
    let bar = progress::counter("images");
    bar.set_message(format!("{}, {}", subject.name(), model.name()));
    let campaign = Campaign {
        kinds: kinds.to_vec(),
        ops: args.ops.unwrap_or(OPS),
        seed: args.seed,
        nested: args.nested,
        kills: args.kills || args.nested,
        budget,
        planted: planted(args)?,
        ..Campaign::new(model)
    };
    let report = campaign::run(&**subject, &campaign, &|images| bar.inc(images));
    bar.finish_and_clear();
    let explored = summary(args, subject, model, &report);
    if let Some((workload, fault)) = &report.failed_live {
        return Err(Failure::new(format!(
            "{}: workload {} of seed {} failed without any crash: {fault}",
            subject.name(),
            workload.kind,
            workload.seed
        )));
    }
    for finding in &report.findings {
        eprintln!("{}: {}\n", subject.name(), finding.explain(program));
    }
    eprintln!("{} under {}: {report}", explored.index, explored.model);
    Ok(explored)
}

fn explore_threads(
    program: &str,
    args: &Explore,
    subject: &Arc<dyn Subject>,
    model: Model,
    budget: Option<Duration>,
) -> Outcome<Explored> {
    let schedules = args.schedules.unwrap_or(SCHEDULES);
    let bar = progress::steps("schedules", schedules);
    bar.set_message(format!("{}, {}", subject.name(), model.name()));
    let options = ConcurrentOptions {
        model,
        threads: args.threads,
        schedules,
        ops_per_thread: args
            .ops
            .unwrap_or(OPS_OF_A_THREAD)
            .min(MAX_OPERATIONS / args.threads),
        seed: args.seed,
        budget,
        planted: planted(args)?,
        ..ConcurrentOptions::default()
    };
    let report = concurrent::explore_on(&**subject, &options, workers(), &|| bar.inc(1));
    bar.finish_and_clear();
    let token = |schedule: u64| {
        ScheduleToken {
            subject: subject.name(),
            model,
            threads: args.threads,
            ops: options.ops_per_thread,
            seed: args.seed,
            schedule,
            planted: options.planted,
        }
        .to_string()
    };
    for violation in report.violations.iter().take(3) {
        eprintln!(
            "{}: {violation}  replay: {program} crash --replay '{}'\n",
            subject.name(),
            token(violation.schedule)
        );
    }
    let count = |kind| {
        let of_kind = report.violations.iter().filter(|v| v.fault.kind == kind);
        of_kind.count() as u64
    };
    let explored = Explored {
        index: subject.name(),
        model: model.name(),
        workload: "threads".into(),
        ops: options.ops_per_thread,
        threads: args.threads,
        workloads: report.schedules,
        crash_points: report.crash_points,
        images: report.images,
        nested_images: 0,
        kills: 0,
        killed_images: 0,
        exhaustive_share: share(report.exhaustive_points, report.crash_points),
        nested_exhaustive_share: None,
        violations: report.violation_count,
        leaks: count(FaultKind::Leak),
        progress_failures: count(FaultKind::Progress),
        seconds: report.seconds,
        replay: report.violations.first().map(|v| token(v.schedule)),
    };
    eprintln!(
        "{} under {}, {} threads: {} schedules of {} operations, {} crash points, {} images recovered: \
         {} violations, in {:.1} s",
        explored.index,
        explored.model,
        explored.threads,
        report.schedules,
        report.operations,
        explored.crash_points,
        explored.images,
        explored.violations,
        explored.seconds
    );
    Ok(explored)
}

fn planted(args: &Explore) -> Outcome<Option<&'static str>> {
    let Some(name) = &args.plant else {
        return Ok(None);
    };
    let known = || {
        subjects::planted::PLANTED
            .iter()
            .map(|planted| planted.name)
    };
    known()
        .find(|fault| fault == name)
        .map(Some)
        .ok_or_else(|| {
            Failure::Usage(format!(
                "--plant {name:?}: no such fault; there are: {}",
                known().collect::<Vec<_>>().join(", ")
            ))
        })
}

fn summary(
    args: &Explore,
    subject: &Arc<dyn Subject>,
    model: Model,
    report: &CampaignReport,
) -> Explored {
    let totals = &report.totals;
    Explored {
        index: subject.name(),
        model: model.name(),
        workload: args.workload.clone(),
        ops: args.ops.unwrap_or(OPS),
        threads: 1,
        workloads: report.workloads,
        crash_points: totals.crash_points,
        images: totals.images,
        nested_images: totals.nested_images,
        kills: totals.kills,
        killed_images: totals.killed_images,
        exhaustive_share: share(totals.exhaustive_points, totals.crash_points),
        nested_exhaustive_share: (totals.nested_points > 0)
            .then(|| share(totals.nested_exhaustive_points, totals.nested_points)),
        violations: totals.violations,
        leaks: totals.leaks,
        progress_failures: totals.progress_failures,
        seconds: report.elapsed.as_secs_f64(),
        replay: report
            .findings
            .first()
            .map(|finding| finding.token.to_string()),
    }
}

/// Returns the subject that a token names.
fn replayed(name: &str) -> Outcome<Arc<dyn Subject>> {
    subjects::named(name).map(Arc::from).ok_or_else(|| {
        Failure::Usage(format!(
            "--replay: the token is for {name:?}; there are: {}",
            subjects::names().join(", ")
        ))
    })
}

/// Recovers the image, or runs the schedule, that a token names. `named` returns the subject of a
/// name.
///
/// # Errors
/// The token cannot be read or is another version's, or what it names still goes wrong.
pub fn replay(
    program: &str,
    text: &str,
    named: &dyn Fn(&str) -> Outcome<Arc<dyn Subject>>,
) -> Outcome {
    if text.starts_with(ScheduleToken::PREFIX) {
        let token: ScheduleToken = text
            .parse()
            .map_err(|e| Failure::Usage(format!("--replay: {e}")))?;
        let subject = named(&token.subject)?;
        if !subject.concurrent() {
            return Err(Failure::Usage(format!(
                "--replay: {} takes one thread at a time, the token is one of threads",
                token.subject
            )));
        }
        let violation = concurrent::replay(&*subject, &token.options(), token.schedule);
        let Some(violation) = violation else {
            eprintln!("this schedule goes well now");
            return Ok(());
        };
        eprintln!("{}: {violation}", token.subject);
        return Err(Failure::Reported);
    }
    let token: Token = text
        .parse()
        .map_err(|e| Failure::Usage(format!("--replay: {e}")))?;
    match campaign::replay_token(&*named(&token.subject)?, &token) {
        Err(what) => Err(Failure::new(format!("--replay: {what}"))),
        Ok(None) => {
            eprintln!("this image is recovered well now");
            Ok(())
        }
        Ok(Some(finding)) => {
            eprintln!("{}: {}", token.subject, finding.explain(program));
            Err(Failure::Reported)
        }
    }
}

fn mutate(
    args: &Explore,
    chosen: &[Arc<dyn Subject>],
    models: &[Model],
    kinds: &[Kind],
) -> Outcome {
    let companions: Vec<Arc<dyn Subject>> = subjects::all().into_iter().map(Arc::from).collect();
    let mut all = Vec::new();
    for (subject, model) in pairs(chosen, models) {
        let started = Instant::now();
        let bar = progress::steps("mutants", 1);
        bar.set_message(format!("{}, {}", subject.name(), model.name()));
        let options = MutantOptions {
            model,
            ops: args.ops.unwrap_or(OPS),
            kinds: kinds.to_vec(),
            seeds: (0..3).map(|i| args.seed.wrapping_add(i)).collect(),
            workers: workers(),
            patience: PATIENCE,
            only: args.only.clone(),
            limit: Duration::from_secs_f64(args.budget.unwrap_or(LIMIT)),
        };
        let report = mutants::mutants(&**subject, &companions, &options, &|done, of| {
            bar.set_length(of as u64);
            bar.set_position(done as u64);
        })
        .map_err(|fault| Failure::new(format!("{} fails unmutated: {fault}", subject.name())))?;
        bar.finish_and_clear();
        if let (Some(part), 0) = (&args.only, report.sites + report.without_effect) {
            return Err(Failure::Usage(format!(
                "--only: no flush or fence that {} reaches is in {part:?}",
                subject.name()
            )));
        }
        all.push(report_mutants(subject, model, &report, started.elapsed()));
    }
    if args.json {
        print_json(&all)?;
    }
    // An undecided mutant proves nothing, so it is no success either.
    let undecided: usize = all.iter().map(|report| report.undecided.len()).sum();
    if undecided > 0 {
        return Err(Failure::new(format!(
            "{undecided} mutants are undecided: their time was up, and whether they would be noticed is not \
             known; give each more with --budget SECONDS"
        )));
    }
    if all.iter().any(|report| !report.survivors.is_empty()) {
        return Err(Failure::Reported);
    }
    Ok(())
}

fn file_and_line(site: &Site) -> String {
    format!("{}:{}", site.file, site.line)
}

fn report_mutants(
    subject: &Arc<dyn Subject>,
    model: Model,
    report: &MutantReport,
    took: Duration,
) -> Mutated {
    for (mutant, violation) in &report.killed {
        eprintln!("  killed    {mutant}: {}", violation.fault.kind.name());
    }
    for (mutant, by) in &report.killed_elsewhere {
        eprintln!("  killed    {mutant}: by {by}");
    }
    for mutant in &report.failed_live {
        eprintln!("  killed    {mutant}: failed without a crash");
    }
    for mutant in &report.survivors {
        eprintln!("  SURVIVED  {mutant}");
    }
    for mutant in &report.independent {
        eprintln!("  independent  {mutant}");
    }
    for mutant in &report.unneeded {
        eprintln!("  not needed here  {mutant}");
    }
    for mutant in &report.undecided {
        eprintln!("  undecided {mutant}: its time was up (--budget)");
    }
    let print = |what: &str, all: &[Waste]| {
        for waste in all {
            eprintln!(
                "  {what}  {}: {} of {} times",
                waste.site, waste.wasted, waste.executed
            );
        }
    };
    print("wasted  ", &report.waste);
    print("sometimes wasted", &report.partly_wasted);
    let named = |mutants: &[Mutant]| -> Vec<String> {
        let name = |mutant: &Mutant| match mutant {
            Mutant::Off(site) => file_and_line(site),
            ordering => ordering.to_string(),
        };
        mutants.iter().map(name).collect()
    };
    if report.without_effect > 0 {
        eprintln!(
            "  {} sites do nothing under {} and are left out",
            report.without_effect,
            model.name()
        );
    }
    let killed = report.killed.len() + report.killed_elsewhere.len() + report.failed_live.len();
    eprintln!(
        "{} under {}: {} sites and {} orderings, {killed} mutants killed (by {} images \
         at most), {} survived, {} undecided, {} sites wasted, in {:.1} s",
        subject.name(),
        model.name(),
        report.sites,
        report.orderings,
        report.hardest,
        report.survivors.len(),
        report.undecided.len(),
        report.waste.len(),
        took.as_secs_f64()
    );
    Mutated {
        index: subject.name(),
        model: model.name(),
        sites: report.sites,
        orderings: report.orderings,
        killed,
        survivors: named(&report.survivors),
        unneeded: named(&report.unneeded),
        without_effect: report.without_effect,
        undecided: named(&report.undecided),
        waste: report
            .waste
            .iter()
            .map(|waste| file_and_line(&waste.site))
            .collect(),
        images: report.images,
        seconds: took.as_secs_f64(),
    }
}
