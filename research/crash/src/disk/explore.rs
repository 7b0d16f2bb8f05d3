//! The loop over a recording's events, the disks that cuts may leave, and their recoveries.

use super::DiskSubject;
use super::cuts::{Arena, Playing, Spoilt};
use super::history::{Allowed, History};
use super::mutants::Mutant;
use crate::rng::Rng;
use crate::subject::{Fault, FaultKind};
use bristlecone_pmem::media::journal::fault::{Event, FaultDisk, Which};
use bristlecone_pmem::sync::lock;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How a recording is explored.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The seed of the choices among disks.
    pub seed: u64,
    /// Disks per cut, at most.
    pub disks: usize,
    /// Of so many recoveries one is cut again; 0 for none.
    pub nested_every: u64,
    /// Threads of this machine.
    pub workers: usize,
    /// When it ends, wherever it is.
    pub deadline: Option<Instant>,
    /// It ends at the first finding.
    pub stop_at_first: bool,
}

/// A disk from which recovery failed.
#[derive(Clone, Debug)]
pub struct DiskFinding {
    /// The seed of the run.
    pub seed: u64,
    /// Events before the cut; with a second number for a cut in the recovery.
    pub events: (usize, Option<usize>),
    /// What is wrong.
    pub fault: Fault,
    /// The last events, and what became of changes that were not synced.
    pub cut: String,
}

/// Counts, and what was found.
#[derive(Clone, Debug, Default)]
pub struct DiskReport {
    /// Events whose cuts were explored.
    pub events: u64,
    /// Recoveries of cuts, and of cuts in recoveries.
    pub disks: u64,
    /// See [`disks`](Self::disks).
    pub nested: u64,
    /// The first findings.
    pub found: Vec<DiskFinding>,
    /// All of them.
    pub wrong: u64,
}

/// Findings that are kept.
const KEPT: usize = 3;

impl DiskReport {
    /// Adds another report.
    pub fn add(&mut self, other: Self) {
        self.events += other.events;
        self.disks += other.disks;
        self.nested += other.nested;
        self.wrong += other.wrong;
        self.found.extend(other.found);
        self.found.truncate(KEPT);
    }

    fn wrong(&mut self, finding: DiskFinding) {
        self.wrong += 1;
        if self.found.len() < KEPT {
            self.found.push(finding);
        }
    }
}

/// A run that was recorded.
pub struct DiskRecording {
    seed: u64,
    events: Vec<Event>,
    history: History,
}

impl DiskRecording {
    /// Returns its events.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

/// Records a run.
///
/// # Errors
/// It failed, without any cut.
pub fn record_disk(subject: &dyn DiskSubject, seed: u64) -> Result<DiskRecording, Fault> {
    let disk = FaultDisk::new(seed);
    disk.record();
    if seed % 5 > 2 {
        // Checkpoints that commits overtake.
        disk.set_pool_time(Duration::from_millis(2));
    }
    let history = History::default();
    let worked = caught(|| subject.work(&disk, seed, &history));
    let events = disk.taken();
    worked?;
    Ok(DiskRecording {
        seed,
        events,
        history,
    })
}

/// Explores the cuts of a recording.
#[must_use]
pub fn explore_disk(
    subject: &dyn DiskSubject,
    recording: &DiskRecording,
    mutant: Option<&Mutant>,
    options: &DiskOptions,
) -> DiskReport {
    let whole = Mutex::new(DiskReport::default());
    let stop = AtomicBool::new(false);
    let workers = options.workers.max(1);
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (whole, stop) = (&whole, &stop);
            scope.spawn(move || {
                let explorer = Explorer {
                    subject,
                    recording,
                    options,
                    stop,
                };
                let report = explorer.walk(worker, workers, mutant);
                lock(whole).add(report);
            });
        }
    });
    whole.into_inner().unwrap_or_default()
}

struct Explorer<'a> {
    subject: &'a dyn DiskSubject,
    recording: &'a DiskRecording,
    options: &'a DiskOptions,
    stop: &'a AtomicBool,
}

impl Explorer<'_> {
    fn ends(&self) -> bool {
        // ORDERING: Relaxed; a hint.
        self.stop.load(Ordering::Relaxed)
            || (self.options.deadline).is_some_and(|deadline| Instant::now() > deadline)
    }

    /// Explores every event whose number is `worker` modulo `workers`.
    fn walk(&self, worker: usize, workers: usize, mutant: Option<&Mutant>) -> DiskReport {
        let mut report = DiskReport::default();
        let events = self.recording.events();
        let arena = Arena::of(events);
        let mut playing = Playing::new([Vec::new(), Vec::new()], events, &arena, mutant);
        let made = self.recording.history.made_at().unwrap_or(u64::MAX);
        let mut event = 0;
        while !self.ends() && playing.begin_next() {
            playing.spoils = event as u64 >= made;
            let mine = event % workers == worker;
            let mut rng = Rng::of(self.options.seed, self.recording.seed, event as u64);
            let mut cut = |playing: &Playing<'_>, done: usize, report: &mut DiskReport| {
                let allowed = self.recording.history.allowed(done as u64);
                let mut each = Rng::new(rng.next_u64());
                playing.disks(self.options.disks, &mut rng, &mut |disk, spoilt, what| {
                    match spoilt {
                        Spoilt::Frame => self.recover_damaged(&disk, what, done, &allowed, report),
                        _ => self.recover(disk, what, done, &allowed, &mut each, report),
                    }
                    !self.ends()
                });
            };
            if mine {
                report.events += 1;
                cut(&playing, event, &mut report);
            }
            let durable = playing.end();
            if mine && durable {
                cut(&playing, event + 1, &mut report);
            }
            event += 1;
        }
        report
    }

    fn stop_at_first(&self) {
        if self.options.stop_at_first {
            // ORDERING: Relaxed; a hint.
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Recovers a disk with a damaged frame. It may be refused, and the last steps may be gone if
    /// the frame was the journal's last; but what is found is a state that there was.
    fn recover_damaged(
        &self,
        disk: &FaultDisk,
        what: &str,
        events: usize,
        allowed: &Allowed,
        report: &mut DiskReport,
    ) {
        let seed = self.recording.seed;
        report.disks += 1;
        let allowed = Allowed {
            least: vec![0; allowed.least.len()],
            made: false,
            exactly: None,
            ..allowed.clone()
        };
        match caught(|| self.subject.recover(disk, seed, &allowed)) {
            Ok(_) => {}
            Err(fault)
                if fault.kind == FaultKind::Recovery && !fault.what.starts_with(PANICKED) => {}
            Err(fault) => {
                report.wrong(DiskFinding {
                    seed,
                    events: (events, None),
                    fault,
                    cut: what.to_owned(),
                });
                self.stop_at_first();
            }
        }
    }

    /// Recovers a disk, and at times the disks that cuts in this recovery may leave.
    fn recover(
        &self,
        disk: FaultDisk,
        what: &str,
        events: usize,
        allowed: &Allowed,
        rng: &mut Rng,
        report: &mut DiskReport,
    ) {
        let seed = self.recording.seed;
        let nested = self.options.nested_every > 0 && rng.below(self.options.nested_every) == 0;
        let before = nested.then(|| [Which::Pool, Which::Journal].map(|which| disk.bytes(which)));
        if nested {
            disk.record();
        }
        report.disks += 1;
        let recovered = caught(|| self.subject.recover(&disk, seed, allowed));
        let found = |events, fault, cut: &str| DiskFinding {
            seed,
            events,
            fault,
            cut: cut.to_owned(),
        };
        let recovered = match recovered {
            Ok(recovered) => recovered,
            Err(fault) => {
                report.wrong(found((events, None), fault, what));
                self.stop_at_first();
                return;
            }
        };
        let Some(files) = before else { return };
        let tape = disk.taken();
        drop(disk);
        let arena = Arena::of(&tape);
        let mut playing = Playing::new(files, &tape, &arena, None);
        let mut at = 0;
        while !self.ends() && playing.begin_next() {
            let chosen = rng.below(3) == 0;
            let mut cut = |playing: &Playing<'_>, done: usize, report: &mut DiskReport| {
                let allowed = recovered.allowed(allowed, done as u64);
                playing.disks(1, rng, &mut |disk, _, again| {
                    report.nested += 1;
                    if let Err(fault) = caught(|| self.subject.recover(&disk, seed, &allowed)) {
                        let cut = format!("{what}and in the recovery:\n{again}");
                        report.wrong(found((events, Some(done)), fault, &cut));
                    }
                    !self.ends()
                });
            };
            if chosen {
                cut(&playing, at, report);
            }
            if playing.end() && chosen {
                cut(&playing, at + 1, report);
            }
            at += 1;
        }
    }
}

const PANICKED: &str = "panicked: ";

/// Takes a panic for a fault.
pub(super) fn caught<R>(f: impl FnOnce() -> Result<R, Fault>) -> Result<R, Fault> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let what = message(&*panic);
        Err(Fault::new(FaultKind::Recovery, format!("{PANICKED}{what}")))
    })
}

fn message(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<String>() {
        return text.clone();
    }
    (panic.downcast_ref::<&str>()).map_or_else(|| "no message".to_owned(), |s| (*s).to_owned())
}
