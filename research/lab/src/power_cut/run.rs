//! A run: trace the writer, cut its trace, recover the images, and cut some recoveries.

use super::check::{Expected, Restored, check};
use super::plan::{self, Content};
use super::timeline::{Event, Op, Said, line_of};
use super::{Cutter, Draw, Image, Model, PowerCutError, Timeline, parse};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Instant;

/// Of so many images one is recovered by a traced process.
const RECOVERED_EVERY: u64 = 100;
/// Images of each traced recovery.
const IMAGES_OF_A_RECOVERY: u64 = 25;
/// Commits that a traced recovery makes afterwards.
const COMMITS_AFTER: u64 = 4;
/// Of so many images one takes another commit and a clean close.
const GOES_ON_EVERY: u64 = 5;
/// Wrong images that are described.
const DESCRIBED: usize = 20;
/// Name of the writer's trace.
const TRACE: &str = "trace";
/// What `strace` reports. A question mark: not every architecture has the call.
const CALLS: &str = "trace=?open,openat,?openat2,?creat,close,?dup,?dup2,dup3,fcntl,lseek,mmap,\
    write,writev,pwrite64,pwritev,pwritev2,ftruncate,truncate,fallocate,fdatasync,fsync,\
    sync_file_range,sync,syncfs,?rename,?renameat,renameat2,?unlink,unlinkat,?rmdir,?mkdir,mkdirat,\
    ?link,linkat,?symlink,symlinkat,copy_file_range,sendfile,splice,?io_uring_setup";

/// What to do.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Images to try, besides those of cuts in recovery.
    pub images: u64,
    /// Seed of the commits and of the cuts.
    pub seed: u64,
    /// Commits of the writer.
    pub commits: u64,
    /// The disk.
    pub model: Model,
    /// Where the writer works, and the traces are kept; it has them already if `traced`.
    pub work: PathBuf,
    /// Whether an earlier run's traces are cut again.
    pub traced: bool,
    /// Where images are made.
    pub images_at: PathBuf,
    /// Only this image, which is left there.
    pub only: Option<Token>,
}

/// An image of a run: its number and, if it is one of a cut in recovery, its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The image of the writer's trace.
    pub image: u64,
    /// The image of the trace of its recovery.
    pub nested: Option<u64>,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.nested {
            None => write!(f, "{}", self.image),
            Some(nested) => write!(f, "{}.{nested}", self.image),
        }
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| part.parse().map_err(|_| "expected 17 or 17.3".to_owned());
        Ok(match text.split_once('.') {
            None => Self {
                image: number(text)?,
                nested: None,
            },
            Some((image, nested)) => Self {
                image: number(image)?,
                nested: Some(number(nested)?),
            },
        })
    }
}

/// A wrong image.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// Its number.
    pub token: Token,
    /// The line of the trace that the cut is in, or behind; counted from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
    /// The changes that the cut lost.
    pub lost: Vec<String>,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Commits of the writer.
    pub commits: u64,
    /// Seed of the commits and cuts.
    pub seed: u64,
    /// Changes, syncs and reports in the writer's trace.
    pub events: u64,
    /// Images of the writer's trace.
    pub images: u64,
    /// Recoveries that were traced.
    pub recoveries: u64,
    /// Images of cuts in them.
    pub nested_images: u64,
    /// Images with changes that were not durable.
    pub lossy: u64,
    /// Wrong images, of both kinds.
    pub wrong: u64,
    /// The first of them.
    pub described: Vec<Wrong>,
    /// How long the writer was traced, in seconds.
    pub tracing: f64,
    /// How long all took, in seconds.
    pub seconds: f64,
}

/// Starts `strace` on a subcommand of this program.
#[derive(Debug)]
pub struct Tracer<'t> {
    /// This program.
    pub program: &'t Path,
    /// The arguments that make it write: directory, seed, commits.
    pub writes: fn(&Path, u64, u64) -> Vec<OsString>,
    /// Those that make it recover: directory, seed, commits that it may be at, further ones.
    pub recovers: fn(&Path, u64, RangeInclusive<u64>, u64) -> Vec<OsString>,
}

impl Tracer<'_> {
    fn trace(&self, to: &Path, arguments: Vec<OsString>) -> Result<(), PowerCutError> {
        let mut command = Command::new("strace");
        command
            .args(["-f", "--seccomp-bpf", "-qq", "-xx", "-s", "67108864"])
            .args(["-e", "signal=none", "-e", CALLS, "-o"])
            .arg(to)
            .arg(self.program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let output = command.output().map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => PowerCutError::NoStrace,
            _ => PowerCutError::io(Path::new("strace"), "starting it", e),
        })?;
        if output.status.success() {
            return Ok(());
        }
        Err(PowerCutError::Writer(format!(
            "the traced process failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        )))
    }
}

/// A trace that is cut.
struct Traced {
    timeline: Timeline,
    /// The commits that the directory may be at before the trace's first report.
    before: Option<RangeInclusive<u64>>,
    /// Backups that are there before.
    backups: Vec<u64>,
}

impl Traced {
    fn read(
        path: &Path,
        base: &Image,
        before: Option<RangeInclusive<u64>>,
        backups: Vec<u64>,
    ) -> Result<Self, PowerCutError> {
        let text = fs::read(path).map_err(|e| PowerCutError::io(path, "reading the trace", e))?;
        Ok(Self {
            timeline: Timeline::of(&parse(&text)?, base)?,
            before,
            backups,
        })
    }

    fn said(&self, moment: usize) -> impl Iterator<Item = Said> {
        let events = &self.timeline.events;
        let begun = events.partition_point(|event| event.begin < moment);
        events[..begun].iter().filter_map(|event| match event.op {
            Op::Said(said) => Some(said),
            _ => None,
        })
    }

    /// Returns what must be true at a moment.
    fn commits(&self, moment: usize) -> Option<RangeInclusive<u64>> {
        let (mut acked, mut begun) = (None, None);
        for said in self.said(moment) {
            match said {
                Said::Ack(n) => acked = Some(n),
                Said::Begin(n) => begun = Some(n),
                Said::Plan(..) => {}
            }
        }
        match acked {
            Some(n) => Some(n..=begun.unwrap_or(n).max(n)),
            None => self.before.clone(),
        }
    }

    /// Returns the commits whose backup is complete at a moment.
    fn backups(&self, moment: usize, seed: u64) -> Vec<u64> {
        let mut backups = self.backups.clone();
        let mut begun = None;
        for said in self.said(moment) {
            match said {
                Said::Begin(n) => begun = Some(n),
                Said::Ack(n) if begun == Some(n) && plan::is_backup(seed, n) => backups.push(n),
                _ => {}
            }
        }
        backups
    }

    /// Draws the moments of cuts, in order, each with its number.
    fn cuts(&self, images: u64, draw: impl Fn(u64) -> Draw) -> Vec<(usize, u64, Draw)> {
        let events = &self.timeline.events;
        let of = |is: fn(&Op) -> bool| -> Vec<&Event> {
            events.iter().filter(|event| is(&event.op)).collect()
        };
        let acks = of(|op| matches!(op, Op::Said(Said::Ack(_))));
        let syncs = of(|op| {
            let durable = matches!(op, Op::Write { through: true, .. });
            durable || matches!(op, Op::Sync { .. } | Op::SyncNames { .. })
        });
        let changes = of(|op| {
            let no_change = matches!(op, Op::Sync { .. } | Op::SyncNames { .. } | Op::Said(_));
            !no_change
        });
        let all = of(|_| true);
        let mut cuts: Vec<_> = (0..images)
            .map(|i| {
                let mut draw = draw(i);
                let one = |of: &[&Event], ends: bool, draw: &mut Draw| {
                    let event = of.get(draw.below(of.len() as u64) as usize);
                    let moment = |event: &&Event| {
                        let end = event.end.filter(|_| ends);
                        end.unwrap_or(event.begin) + 1
                    };
                    event.map_or(0, moment)
                };
                let moment = match draw.below(10) {
                    // Where a promise has just been made.
                    0..3 => one(&acks, true, &mut draw) + draw.below(6) as usize,
                    3 => one(&syncs, true, &mut draw),
                    // In the middle of a change, or a little later.
                    4..8 => one(&changes, false, &mut draw) + draw.below(3) as usize,
                    _ => one(&all, false, &mut draw),
                };
                (moment.min(self.timeline.end), i, draw)
            })
            .collect();
        cuts.sort_by_key(|(moment, i, _)| (*moment, *i));
        cuts
    }
}

struct Run<'r> {
    spec: &'r Spec,
    tracer: &'r Tracer<'r>,
    seed: u64,
    contents: Vec<Content>,
    restored: Restored,
    report: Report,
    begun: &'r mut dyn FnMut(),
}

/// Tries power cuts. `each` is called for each image.
///
/// # Errors
/// [`PowerCutError`], if they could not be tried. Wrong images are no error.
pub fn run(
    spec: &Spec,
    tracer: &Tracer<'_>,
    each: &mut dyn FnMut(),
) -> Result<Report, PowerCutError> {
    let started = Instant::now();
    let trace = spec.work.join(TRACE);
    if !spec.traced {
        let dir = spec.work.join("writer");
        fs::create_dir(&dir).map_err(|e| PowerCutError::io(&dir, "making a directory", e))?;
        let dir = fs::canonicalize(&dir).map_err(|e| PowerCutError::io(&dir, "finding", e))?;
        tracer.trace(&trace, (tracer.writes)(&dir, spec.seed, spec.commits))?;
    }
    let tracing = started.elapsed().as_secs_f64();
    let traced = Traced::read(&trace, &Image::default(), None, Vec::new())?;
    let plan = traced
        .said(traced.timeline.end)
        .find_map(|said| match said {
            Said::Plan(seed, commits) => Some((seed, commits)),
            _ => None,
        });
    let (seed, commits) = plan.ok_or_else(|| PowerCutError::Trace {
        line: 1,
        what: "the writer does not say what it does".into(),
    })?;
    let mut run = Run {
        spec,
        tracer,
        seed,
        contents: plan::contents(seed, commits + COMMITS_AFTER),
        restored: Restored::default(),
        report: Report {
            commits,
            seed,
            events: traced.timeline.events.len() as u64,
            tracing,
            ..Report::default()
        },
        begun: each,
    };
    run.writer(&traced)?;
    run.report.seconds = started.elapsed().as_secs_f64();
    Ok(run.report)
}

impl Run<'_> {
    fn writer(&mut self, traced: &Traced) -> Result<(), PowerCutError> {
        let mut cutter = Cutter::new(&traced.timeline, self.spec.model);
        let seed = self.spec.seed;
        for (moment, i, mut draw) in traced.cuts(self.spec.images, |i| Draw::of(seed, 2, i)) {
            let only = self.spec.only;
            if only.is_some_and(|only| only.image != i) {
                continue;
            }
            let token = Token {
                image: i,
                nested: None,
            };
            let cut = cutter.cut(moment, &mut draw);
            if only.is_none_or(|only| only.nested.is_none()) {
                self.report.images += 1;
                self.image(traced, token, moment, &cut)?;
            }
            let nests = match only {
                Some(only) => only.nested.is_some(),
                None => i % RECOVERED_EVERY == RECOVERED_EVERY / 2,
            };
            if let (true, Some(commits)) = (nests, traced.commits(moment)) {
                let backups = traced.backups(moment, self.seed);
                self.recovery(i, &cut.image, commits, backups)?;
            }
        }
        Ok(())
    }

    /// Checks an image.
    fn image(
        &mut self,
        traced: &Traced,
        token: Token,
        moment: usize,
        cut: &super::Cut,
    ) -> Result<(), PowerCutError> {
        let dir = self.spec.images_at.join("image");
        cut.image.save(&dir)?;
        let commits = traced.commits(moment);
        let backups = traced.backups(moment, self.seed);
        let number = token.nested.unwrap_or(token.image);
        let expected = Expected {
            goes_on: commits.is_some() && number.is_multiple_of(GOES_ON_EVERY),
            commits,
            contents: &self.contents,
            backups: &backups,
        };
        let checked = check(&dir, &expected, &self.restored);
        if self.spec.only.is_some() {
            // As the power cut has left it, for a closer look.
            cut.image.save(&dir)?;
        }
        self.report.lossy += u64::from(cut.pending > 0);
        if let Err(what) = checked {
            self.report.wrong += 1;
            if self.report.described.len() < DESCRIBED {
                self.report.described.push(Wrong {
                    token,
                    line: line_of(moment),
                    what,
                    lost: cut.lost.clone(),
                });
            }
        }
        (self.begun)();
        Ok(())
    }

    /// Recovers an image in a traced process, and cuts that.
    fn recovery(
        &mut self,
        i: u64,
        image: &Image,
        commits: RangeInclusive<u64>,
        backups: Vec<u64>,
    ) -> Result<(), PowerCutError> {
        // The trace is of this very image, which another model or seed makes another one.
        let name = format!("recovery-{i}-{:016x}.{TRACE}", image.fingerprint());
        let trace = self.spec.work.join(name);
        if !trace.exists() {
            // On the disk that the writer was on.
            let dir = self.spec.work.join("recovery");
            image.save(&dir)?;
            let dir = fs::canonicalize(&dir).map_err(|e| PowerCutError::io(&dir, "finding", e))?;
            let arguments = (self.tracer.recovers)(&dir, self.seed, commits.clone(), COMMITS_AFTER);
            match self.tracer.trace(&trace, arguments) {
                Ok(()) => {}
                // The image is wrong, and has been reported.
                Err(PowerCutError::Writer(_)) if self.report.wrong > 0 => {
                    // No whole trace.
                    let _ = fs::remove_file(&trace);
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
        self.report.recoveries += 1;
        let traced = Traced::read(&trace, image, Some(commits), backups)?;
        let mut cutter = Cutter::new(&traced.timeline, self.spec.model);
        let seed = self.spec.seed;
        let draws = |j| Draw::of(seed, 3 + i, j);
        for (moment, j, mut draw) in traced.cuts(IMAGES_OF_A_RECOVERY, draws) {
            let cut = cutter.cut(moment, &mut draw);
            if self.spec.only.is_some_and(|only| only.nested != Some(j)) {
                continue;
            }
            let token = Token {
                image: i,
                nested: Some(j),
            };
            self.report.nested_images += 1;
            self.image(&traced, token, moment, &cut)?;
        }
        Ok(())
    }
}
