//! `torture`: kill a writer at random moments, reopen, and look for every acknowledged write.
//!
//! A round: start a writer process on the pool; collect its acknowledgements from a pipe; SIGKILL
//! it at a random moment, now and then before it has opened the pool; read the pipe to its end;
//! reopen the pool in this process; compare. The pool is the same all through.
//!
//! An acknowledgement goes through the pipe after the call has returned. Whatever is in the pipe
//! when the writer dies is read to the end, so a call counts as under way only if its
//! acknowledgement was never written.
//!
//! The rounds of `torture --server` are the product command's; report and tally are the same.

mod model;
mod plan;
pub mod writer;

pub use model::Findings;

use crate::args::{TortureArgs, TortureMedium, durability_text};
use crate::failure::{Failure, Outcome};
use crate::pool::How;
use crate::process::{kill, spawn_self};
use crate::records::Records;
use crate::scratch::{Purpose, Scratch};
use crate::signals::remove_temporary_files_on_signals;
use crate::text::{duration, grouped};
use crate::{print_report, progress};
use bristlecone_pmem::media::Durability;
use indicatif::ProgressBar;
use model::Model;
use plan::{ACK, Ack, READY};
use rand::RngExt;
use serde::Serialize;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a writer may take to open the pool.
const MAX_START: Duration = Duration::from_secs(120);
/// The pool's name in its directory.
const POOL: &str = "torture.pool";

/// The findings of all rounds.
#[derive(Debug, Serialize)]
pub struct Report {
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
    durability: String,
}

impl Report {
    /// Says with which durability level that was.
    #[must_use]
    pub fn at(mut self, durability: Durability) -> Self {
        self.durability = durability_text(durability);
        self
    }
}

/// Records that torture can write to and check.
pub trait Victim: Records {
    /// Longest key in bytes.
    fn longest_key(&self) -> usize;

    /// Replaces the value of `key`. Returns false, with nothing changed, if it is not there.
    ///
    /// # Errors
    /// As [`put`](Records::put).
    fn update(&self, key: &[u8], value: &[u8]) -> Outcome<bool>;

    /// Inserts the pairs whose keys are not there, each wholly or not at all in a crash. Returns
    /// which were inserted.
    ///
    /// # Errors
    /// As [`put`](Records::put).
    fn insert_absent(&self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Outcome<Vec<bool>>;

    /// Verifies every invariant.
    ///
    /// # Errors
    /// The violation, in words.
    fn check(&self) -> Result<(), String>;

    /// How many entries there are.
    fn entries(&self) -> u64;
}

/// Makes or opens a victim.
pub type Open<'a> = &'a dyn Fn(&Path, How) -> Outcome<Box<dyn Victim>>;

/// The sums and the progress of the rounds.
pub struct Tally {
    total: Findings,
    reopened: Vec<Duration>,
    bar: ProgressBar,
}

impl Tally {
    /// An empty one, for so many kills.
    #[must_use]
    pub fn new(kills: u64) -> Self {
        Self {
            total: Findings::default(),
            reopened: Vec::new(),
            bar: progress::steps("torturing", kills),
        }
    }

    /// Adds a round.
    pub fn add(&mut self, round: u64, findings: &Findings, reopened: Duration) {
        self.reopened.push(reopened);
        self.add_findings(round, findings);
        self.bar.inc(1);
    }

    /// Adds what was found, and says it.
    pub fn add_findings(&mut self, round: u64, findings: &Findings) {
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

    /// Returns the report of all rounds, of so many writers.
    #[must_use]
    pub fn report(
        mut self,
        args: &TortureArgs,
        writers: u16,
        seed: u64,
        took: Duration,
        entries: u64,
        server: bool,
    ) -> Report {
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
            threads: writers,
            seed,
            seconds: took.as_secs_f64(),
            server,
            durability: durability_text(Durability::Immediate),
        }
    }
}

/// Runs the rounds that `rounds` runs on a pool of that path, reports, and keeps the pool if
/// anything was found.
///
/// # Errors
/// Writes were lost or made up, or a round failed.
pub fn run(args: &TortureArgs, rounds: impl FnOnce(&Path) -> Outcome<Report>) -> Outcome {
    remove_temporary_files_on_signals()?;
    let folder = place(args)?;
    let pool = folder.path().join(POOL);
    let result = rounds(&pool);
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
fn place(args: &TortureArgs) -> Outcome<Scratch> {
    let shm = Path::new("/dev/shm");
    let folder = match &args.dir {
        Some(dir) => dir.clone(),
        None if args.medium == TortureMedium::Mapped && shm.is_dir() => shm.to_path_buf(),
        None => std::env::temp_dir(),
    };
    Scratch::new(&folder, Purpose::Torture)
        .map_err(|e| Failure::io(&folder, "making a directory in it", &e))
}

/// Runs rounds of a writer process, which is this program with `torture-writer`, against a pool
/// that `create` makes and `open` opens.
///
/// # Errors
/// A round failed.
pub fn rounds(
    args: &TortureArgs,
    pool: &Path,
    create: Open<'_>,
    open: Open<'_>,
) -> Outcome<Report> {
    let started = Instant::now();
    let writers = args.threads.unwrap_or(4);
    let seed = args.seed.unwrap_or_else(rand::random);
    let how = How::durable(Some(args.medium.kind()));
    let victim = create(pool, how)?;
    let mut model = Model::new(writers, victim.longest_key());
    victim.close()?;
    let mut tally = Tally::new(args.kills);
    let mut entries = 0;
    for round in 1..=args.kills {
        let round = u32::try_from(round).map_err(|_| Failure::new("too many rounds"))?;
        let acks = kill_a_writer(args, writers, pool, seed, round)?;
        let mut findings = Findings::default();
        let in_flight = model
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
        let victim = open(pool, how).map_err(|e| in_round(round.into(), &e))?;
        let reopened = at.elapsed();
        if let Err(violation) = victim.check() {
            findings.phantom(format!("the structure is broken: {violation}"));
        }
        model.compare(&*victim, &in_flight, &mut findings)?;
        entries = victim.entries();
        if !how.read_only {
            victim.close()?;
        }
        tally.add(round.into(), &findings, reopened);
    }
    Ok(tally.report(args, writers, seed, started.elapsed(), entries, false))
}

/// Returns the failure with the round that it happened in.
#[must_use]
pub fn in_round(round: u64, failure: &Failure) -> Failure {
    Failure::new(format!(
        "round {round}: {}",
        failure.message().unwrap_or("failed")
    ))
}

/// Starts a writer, kills it at a random moment, and answers what it acknowledged.
fn kill_a_writer(
    args: &TortureArgs,
    writers: u16,
    pool: &Path,
    seed: u64,
    round: u32,
) -> Outcome<Vec<Ack>> {
    let mut child = spawn_self(|command| {
        command
            .arg("torture-writer")
            .arg(pool)
            .args(["--medium", args.medium.name()])
            .args(["--threads", &writers.to_string()])
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
        // The first writer lives until it has acknowledged a write: a run without any shows
        // nothing.
        let mut first = [0; 2 * ACK];
        let first = &mut first[..if round == 1 { 2 * ACK } else { ACK }];
        if pipe.read_exact(first).is_ok() {
            all.extend_from_slice(first);
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
    } else if let Err(e) = is_ready.recv_timeout(MAX_START) {
        kill(&mut child)?;
        let why = match e {
            mpsc::RecvTimeoutError::Timeout => "was not at work in time",
            mpsc::RecvTimeoutError::Disconnected => "ended before it was at work",
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

fn summarize(args: &TortureArgs, report: &Report) -> Outcome {
    let verdict = if report.lost + report.phantom == 0 {
        match report.durability.as_str() {
            "immediate" => "every acknowledged write was there after every kill",
            _ => "after every kill there were the first of all acknowledged writes, in their order",
        }
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
    print_report(&text, report, args.json)
}
