//! `torture`: kill a writer at random moments, reopen, and look for every acknowledged write.
//!
//! A round: start a writer process on the pool; collect its acknowledgements from a pipe; SIGKILL it
//! at a random moment, now and then before it has opened the pool; read the pipe to its end; reopen
//! the pool in this process; compare. The pool is the same all through.
//!
//! What is acknowledged went through the pipe after the call had returned. What is in the pipe when
//! the writer dies is read to the end, so a call counts as under way only if its acknowledgement was
//! never written.
//!
//! `--server` tortures a server in the same manner: see [`served`].

mod model;
mod plan;
mod served;
pub mod writer;

use crate::args::{MediumChoice, Torture, TortureMedium};
use crate::failure::{Failure, Outcome};
use crate::progress;
use crate::signals::remove_temporary_files_on_signals;
use crate::store::{How, Store};
use crate::text::{duration, grouped};
use bristlecone_lab::scratch::{Purpose, Scratch};
use indicatif::ProgressBar;
use model::{Findings, Model};
use plan::{ACK, Ack, READY};
use rand::RngExt;
use serde::Serialize;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a writer may take to open the pool.
const START_MOST: Duration = Duration::from_secs(120);
/// The pool's name in its directory.
const POOL: &str = "torture.pool";

#[derive(Debug, Serialize)]
struct Report {
    medium: &'static str,
    kills: u64,
    acknowledged: u64,
    lost: u64,
    phantom: u64,
    reopen_ms_p50: f64,
    reopen_ms_max: f64,
    entries: u64,
    threads: u16,
    seed: u64,
    seconds: f64,
    server: bool,
}

/// What the rounds add up to, and how far they are.
struct Tally {
    total: Findings,
    reopened: Vec<Duration>,
    bar: ProgressBar,
}

impl Tally {
    fn new(kills: u64) -> Self {
        Self {
            total: Findings::default(),
            reopened: Vec::new(),
            bar: progress::steps("torturing", kills),
        }
    }

    /// Adds a round.
    fn add(&mut self, round: u64, findings: &Findings, reopened: Duration) {
        self.reopened.push(reopened);
        self.add_findings(round, findings);
        self.bar.inc(1);
    }

    /// Adds what was found, and says it.
    fn add_findings(&mut self, round: u64, findings: &Findings) {
        let total = &mut self.total;
        total.acknowledged += findings.acknowledged;
        total.lost += findings.lost;
        total.phantom += findings.phantom;
        self.bar.suspend(|| {
            for detail in &findings.details {
                eprintln!("round {round}: {detail}");
            }
        });
        self.bar.set_message(format!(
            "{} acknowledged, {} lost, {} phantom",
            grouped(total.acknowledged),
            total.lost,
            total.phantom
        ));
    }

    /// The report of all rounds.
    fn report(mut self, args: &Torture, seed: u64, took: Duration, entries: u64) -> Report {
        self.bar.finish_and_clear();
        self.reopened.sort_unstable();
        let ms = |d: Option<&Duration>| d.map_or(0.0, |d| d.as_secs_f64() * 1e3);
        Report {
            medium: args.medium.name(),
            kills: args.kills,
            acknowledged: self.total.acknowledged,
            lost: self.total.lost,
            phantom: self.total.phantom,
            reopen_ms_p50: ms(self.reopened.get(self.reopened.len() / 2)),
            reopen_ms_max: ms(self.reopened.last()),
            entries,
            threads: args.writers(),
            seed,
            seconds: took.as_secs_f64(),
            server: args.server,
        }
    }
}

/// Runs the rounds.
pub fn run(args: &Torture) -> Outcome {
    remove_temporary_files_on_signals()?;
    let folder = place(args)?;
    let pool = folder.path().join(POOL);
    let result = if args.server {
        served::rounds(args, &pool)
    } else {
        rounds(args, &pool)
    };
    match &result {
        Ok(report) if report.lost + report.phantom == 0 => {
            // Nothing to look into: the files go.
            drop(folder);
        }
        _ => eprintln!(
            "the pool is kept for a closer look: {}",
            folder.keep().join(POOL).display()
        ),
    }
    let report = result?;
    summarize(args, &report)?;
    if report.lost + report.phantom == 0 {
        Ok(())
    } else {
        Err(Failure::Reported)
    }
}

/// A new directory for the pool.
fn place(args: &Torture) -> Outcome<Scratch> {
    let shm = Path::new("/dev/shm");
    let folder = match &args.dir {
        Some(dir) => dir.clone(),
        None if args.medium == TortureMedium::Mapped && shm.is_dir() => shm.to_path_buf(),
        None => std::env::temp_dir(),
    };
    Scratch::new(&folder, Purpose::Torture)
        .map_err(|e| Failure::io(&folder, "making a directory in it", &e))
}

fn rounds(args: &Torture, pool: &Path) -> Outcome<Report> {
    let started = Instant::now();
    let seed = args.seed.unwrap_or_else(rand::random);
    let how = How::durable(args.medium.choice().kind());
    let choice = args.index.durable()?;
    let store = Store::create(pool, how, &choice)?;
    let mut model = Model::new(args.writers(), store.longest_key());
    store.close()?;
    let mut tally = Tally::new(args.kills);
    let mut entries = 0;
    for round in 1..=args.kills {
        let round = u32::try_from(round).map_err(|_| Failure::new("too many rounds"))?;
        let acks = kill_a_writer(args, pool, seed, round)?;
        let mut findings = Findings::default();
        let open = model
            .replay(&acks, seed, round, &mut findings)
            .map_err(|e| {
                Failure::new(format!("round {round}: the writer's report is broken: {e}"))
            })?;
        // Every third reopening is read-only, so that the next writer finds the pool unrepaired.
        let how = How {
            read_only: round % 3 == 0,
            ..how
        };
        let at = Instant::now();
        let store = Store::open(pool, how).map_err(|e| in_round(round.into(), &e))?;
        let reopened = at.elapsed();
        if let Err(violation) = store.verify() {
            findings.phantom(format!("the structure is broken: {violation}"));
        }
        model.compare(&store, &open, &mut findings);
        entries = store.stats().entries;
        if !how.read_only {
            store.close()?;
        }
        tally.add(round.into(), &findings, reopened);
    }
    Ok(tally.report(args, seed, started.elapsed(), entries))
}

fn in_round(round: u64, failure: &Failure) -> Failure {
    Failure::new(format!(
        "round {round}: {}",
        failure.message().unwrap_or("failed")
    ))
}

/// Starts a writer, kills it at a random moment, and answers what it acknowledged.
fn kill_a_writer(args: &Torture, pool: &Path, seed: u64, round: u32) -> Outcome<Vec<Ack>> {
    let medium = match args.medium.choice() {
        MediumChoice::Mapped => "mapped",
        _ => "journal",
    };
    let mut child = spawn_self(|command| {
        command
            .arg("torture-writer")
            .arg(pool)
            .args(["--medium", medium])
            .args(["--threads", &args.writers().to_string()])
            .args(["--seed", &seed.to_string()])
            .args(["--round", &round.to_string()]);
    })?;
    let mut pipe = child
        .stdout
        .take()
        .ok_or_else(|| Failure::new("the writer has no output"))?;
    let (ready, is_ready) = mpsc::channel();
    let reader = std::thread::spawn(move || -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut first = [0; ACK];
        if pipe.read_exact(&mut first).is_ok() {
            all.extend_from_slice(&first);
            // The receiver is gone when it has killed without waiting.
            let _ = ready.send(());
            pipe.read_to_end(&mut all)?;
        }
        Ok(all)
    });
    let mut random = rand::rng();
    // One in eight dies wherever it happens to be: starting, recovering, or at work.
    let blind = round > 1 && random.random_ratio(1, 8);
    if blind {
        std::thread::sleep(Duration::from_micros(random.random_range(0..30_000)));
    } else if let Err(e) = is_ready.recv_timeout(START_MOST) {
        kill(&mut child)?;
        let why = match e {
            mpsc::RecvTimeoutError::Timeout => "did not open the pool in time",
            mpsc::RecvTimeoutError::Disconnected => "ended before it had opened the pool",
        };
        return Err(Failure::new(format!("round {round}: the writer {why}")));
    } else {
        std::thread::sleep(Duration::from_micros(random.random_range(100..120_000)));
    }
    let status = kill(&mut child)?;
    let output = reader
        .join()
        .map_err(|_| Failure::new("the reader of the writer's output panicked"))?
        .map_err(|e| Failure::new(format!("reading the writer's output failed: {e}")))?;
    if status.signal() != Some(9) {
        return Err(Failure::new(format!(
            "round {round}: the writer ended by itself ({status}) before it was killed"
        )));
    }
    let Some(acks) = output.strip_prefix(&READY[..]) else {
        return if output.is_empty() {
            Ok(Vec::new())
        } else {
            Err(garbled(round))
        };
    };
    let (acks, rest) = acks.as_chunks::<ACK>();
    if !rest.is_empty() {
        return Err(garbled(round));
    }
    acks.iter()
        .map(|bytes| Ack::decode(bytes).ok_or_else(|| garbled(round)))
        .collect()
}

fn garbled(round: u32) -> Failure {
    Failure::new(format!(
        "round {round}: the writer's acknowledgements are garbled"
    ))
}

/// Starts this program again, output piped.
pub fn spawn_self(arguments: impl FnOnce(&mut Command)) -> Outcome<Child> {
    let program = std::env::current_exe().map_err(|e| {
        Failure::new(format!(
            "finding this program to start it again failed: {e}"
        ))
    })?;
    let mut command = Command::new(&program);
    arguments(&mut command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::io(&program, "starting it again", &e))
}

/// SIGKILLs a process and waits until it is gone.
pub fn kill(child: &mut Child) -> Outcome<std::process::ExitStatus> {
    child
        .kill()
        .and_then(|()| child.wait())
        .map_err(|e| Failure::new(format!("killing the writer failed: {e}")))
}

fn summarize(args: &Torture, report: &Report) -> Outcome {
    let verdict = if report.lost + report.phantom == 0 {
        "every acknowledged write was there after every kill"
    } else {
        "WRITES WERE LOST OR MADE UP"
    };
    let text = format!(
        "{verdict}\n{} kills on the {} medium in {}: {} operations acknowledged, {} lost, {} phantom\nreopening took {:.1} ms in the middle, {:.1} ms at most; {} entries at the end; seed {}",
        report.kills,
        report.medium,
        duration(Duration::from_secs_f64(report.seconds)),
        grouped(report.acknowledged),
        report.lost,
        report.phantom,
        report.reopen_ms_p50,
        report.reopen_ms_max,
        grouped(report.entries),
        report.seed,
    );
    if args.json {
        eprintln!("{text}");
        super::print_json(report)
    } else {
        writeln!(io::stdout(), "{text}").map_err(|e| Failure::output(&e))
    }
}
