//! Power cuts of a whole machine under load: `cargo run -p xtask -- resets`.
//!
//! ```text
//! this process                           virtual machine (QEMU, emulated processors)
//! the medium:  NVDIMM, a file      <--   /dev/pmem0, ext4 -o dax  \  a database under transactions
//!              disk.rs by nbd.rs   <--   /dev/vda, ext4           /  of several threads
//! what was acknowledged            <--   virtio-serial            (xtask/examples/reset_load)
//! console                          <--   serial
//! ```
//!
//! At a random moment QEMU gets SIGKILL: everything of the machine is gone but its medium. The
//! persistent memory keeps every store. The disk loses what no flush had covered, sector by sector
//! ([`disk`]). The next boot recovers the database and compares all of its contents with the
//! transactions that can have led there. This process compares how far they go with what was
//! acknowledged; then the load goes on, on the same database. One reset in five comes while the
//! machine mounts the file system and recovers.
//!
//! The emulator has no caches, and neither does SIGKILL lose those of this machine. So `pmem` shows
//! that recovery is right and that nothing is acknowledged too early in program order. It does not
//! show that no flush is missing: `bristlecone-lab crash` does.

mod boot;
mod disk;
mod draw;
mod medium;
mod nbd;

use crate::machine::{self, Contents};
use crate::tools::{self, Outcome, say};
use boot::{Boot, End, Seen};
use clap::ValueEnum;
use disk::Cut;
use draw::Draw;
use medium::Medium;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Modules for the port.
const MODULES: [&str; 6] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_console",
];

/// The kind of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Emulated persistent memory
    Pmem,
    /// An emulated disk with a volatile write cache
    Disk,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Pmem => "pmem",
            Self::Disk => "disk",
        }
    }

    /// Further modules, for the medium.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Pmem => &["libnvdimm", "nd_btt", "nd_pmem", "nfit"],
            Self::Disk => &["virtio_blk"],
        }
    }
}

/// An error that is planted, to see it found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Plant {
    /// The disk acknowledges flushes and writes back 300 ms later
    LyingFlush,
    /// Transactions are acknowledged before they are committed
    EarlyAck,
}

impl Plant {
    fn name(self) -> &'static str {
        match self {
            Self::LyingFlush => "lying-flush",
            Self::EarlyAck => "early-ack",
        }
    }
}

/// The choices of the command line.
#[derive(clap::Args)]
pub struct Options {
    /// The medium of the database.
    #[arg(long, value_enum, default_value_t = Kind::Pmem)]
    pub medium: Kind,
    /// How many resets.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,
    /// Seed of the transactions, of the moments and of the disk's losses.
    #[arg(long, value_name = "S", default_value_t = 1)]
    pub seed: u64,
    /// Threads, or clients, that write.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: u16,
    /// The longest time under load, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    pub load: u64,
    /// The load goes through `bristlecone serve`, not through the library.
    #[arg(long)]
    pub server: bool,
    /// Plants an error, which has to be found.
    #[arg(long, value_enum)]
    pub plant: Option<Plant>,
    /// Seconds after which a machine that does not come up is given up.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub timeout: u64,
    /// Kernel image to boot instead of Debian's cloud kernel; needs --modules.
    #[arg(long, requires = "modules")]
    pub kernel: Option<PathBuf>,
    /// Folder of that kernel's modules (lib/modules/VERSION).
    #[arg(long, requires = "kernel")]
    pub modules: Option<PathBuf>,
    /// Shows all that the machines print.
    #[arg(long)]
    pub verbose: bool,
    /// Ends with one JSON object on standard output.
    #[arg(long)]
    pub json: bool,
}

/// The sums of all resets.
#[derive(Default)]
struct Sums {
    resets: u32,
    in_recovery: u32,
    acknowledged: u64,
    lost: u64,
    /// Resets after which acknowledged transactions were lost or the content was wrong.
    wrong: u32,
    /// Resets after which the machine failed before the database was looked at.
    failed: u32,
    cut: Cut,
}

/// Resets machines, and judges what they find again.
pub fn run(options: &Options) -> Outcome {
    if options.plant == Some(Plant::LyingFlush) && options.medium != Kind::Disk {
        return Err("--plant lying-flush is a disk's: it needs --medium disk".into());
    }
    let start = Instant::now();
    let boot = prepare(options)?;
    say(format!("booting {}", boot.kernel.image.display()));
    let mut sums = Sums::default();
    let judged = resets(options, &boot, &mut sums, start);
    report(options, &sums, start.elapsed());
    judged?;
    match options.plant {
        None if sums.wrong + sums.failed > 0 => Err("writes were lost or made up".into()),
        Some(_) if sums.wrong == 0 => Err("the planted error was not found".into()),
        _ => Ok(()),
    }
}

/// Builds the programs, and all that is the same for every boot.
fn prepare(options: &Options) -> Outcome<Boot> {
    let given = options.kernel.clone().zip(options.modules.clone());
    let kernel = machine::kernel(given.as_ref())?;
    let built = machine::build(&["--package", "xtask", "--example", "reset_load"])?;
    let mut programs = vec![("reset_load", built.join("examples/reset_load"))];
    if options.server {
        machine::build(&["--package", "bristlecone-cli"])?;
        programs.push(("bristlecone", built.join("bristlecone")));
    }
    let contents = Contents {
        script: include_str!("../resets-init.sh"),
        modules: &[&MODULES, options.medium.modules()].concat(),
        system: &["mke2fs", "e2fsck"],
        programs: &programs,
    };
    let flags = match options.plant {
        Some(Plant::EarlyAck) => "early",
        _ => "",
    };
    Ok(Boot {
        initramfs: machine::initramfs(&kernel, &contents)?,
        kernel,
        append: format!(
            "load.medium={} load.seed={} load.threads={} load.flags={flags}",
            options.medium.name(),
            options.seed,
            options.threads
        ),
        expected_medium: match options.medium {
            Kind::Pmem => "dax",
            Kind::Disk => "journal",
        },
        timeout: Duration::from_secs(options.timeout),
        verbose: options.verbose,
    })
}

/// A reset that the next boot is to judge.
struct Reset {
    number: u32,
    when: String,
    acknowledged: u64,
    cut: Option<Cut>,
    /// The medium's contents after it.
    image: Vec<u8>,
}

fn resets(options: &Options, boot: &Boot, sums: &mut Sums, start: Instant) -> Outcome {
    let mut draw = Draw::of(options.seed, 1);
    let lies = options.plant == Some(Plant::LyingFlush);
    let empty = |draw: &mut Draw| Medium::new(options.medium, lies, Draw::of(draw.word(), 0));
    let mut medium = empty(&mut draw)?;
    let mut fresh = true;
    // The transactions of each thread that have to be there.
    let mut promised = vec![0; options.threads.into()];
    let mut last: Option<Reset> = None;
    let mut opening = Duration::from_secs(1);
    loop {
        let end = if sums.resets == options.count {
            End::Ready
        } else if !fresh && draw.below(5) == 0 {
            End::Opening(opening.mul_f64(draw.below(1200) as f64 / 1000.0))
        } else {
            End::Load(Duration::from_micros(draw.below(options.load * 1000)))
        };
        // A disk is mostly idle under an emulated processor. So most cuts come in a write.
        let writes = [0, draw.below(4), draw.below(40), draw.below(40)][draw.below(4) as usize];
        let booted = boot.run(&medium, fresh, end, writes)?;
        opening = booted.opening.unwrap_or(opening);
        match (last.take(), &booted.seen) {
            (None, Seen::Wrong(what) | Seen::Failed(what)) => {
                return Err(format!("a machine with a new database failed: {what}"));
            }
            (None, _) => {}
            (Some(reset), seen) => {
                let verdict = judge(&promised, seen);
                sums.add(&verdict);
                let at = start.elapsed().as_secs_f64();
                println!("[{at:7.1} s] {}", described(&reset, &verdict));
                if !matches!(verdict, Verdict::Unseen | Verdict::Whole { .. }) {
                    if options.plant.is_none() {
                        return keep(&reset);
                    }
                    if sums.resets == options.count {
                        return Ok(());
                    }
                    medium = empty(&mut draw)?;
                    promised.fill(0);
                    fresh = true;
                    continue;
                }
            }
        }
        if end == End::Ready {
            return Ok(());
        }
        if let Seen::Reached(_) = booted.seen {
            promised = booted.promised;
        }
        fresh = false;
        let cut = medium.cut(&mut draw);
        sums.resets += 1;
        sums.in_recovery += u32::from(matches!(end, End::Opening(_)));
        sums.acknowledged += booted.acknowledged;
        sums.cut += cut.unwrap_or_default();
        last = Some(Reset {
            number: sums.resets,
            when: end.to_string(),
            acknowledged: booted.acknowledged,
            cut,
            image: medium.contents()?,
        });
    }
}

/// The judgement about a reset.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The machine was reset again before it had looked.
    Unseen,
    /// All that was promised is there, and so many transactions more: under way, or acknowledged by
    /// a line that had not left the machine.
    Whole { more: u64 },
    /// So many acknowledged transactions are not there.
    Lost(u64),
    /// The content is none that there can be.
    Wrong(String),
    /// The machine failed before the content was looked at.
    Failed(String),
}

/// Compares how far each thread came with what was promised.
fn judge(promised: &[u64], seen: &Seen) -> Verdict {
    let reached = match seen {
        Seen::Nothing => return Verdict::Unseen,
        Seen::Wrong(what) => return Verdict::Wrong(what.clone()),
        Seen::Failed(what) => return Verdict::Failed(what.clone()),
        Seen::Reached(reached) => reached,
    };
    let threads = || promised.iter().zip(reached);
    let lost = threads().map(|(promised, reached)| promised.saturating_sub(*reached));
    match lost.sum() {
        0 => Verdict::Whole {
            more: threads()
                .map(|(promised, reached)| reached - promised)
                .sum(),
        },
        lost => Verdict::Lost(lost),
    }
}

fn described(reset: &Reset, verdict: &Verdict) -> String {
    let verdict = match verdict {
        Verdict::Unseen => "reset again before it was looked at".to_owned(),
        Verdict::Whole { more } => format!("0 lost, {more} more there"),
        Verdict::Lost(lost) => format!("{lost} LOST"),
        Verdict::Wrong(what) => format!("WRONG: {what}"),
        Verdict::Failed(what) => format!("THE MACHINE FAILED: {what}"),
    };
    let sectors = reset.cut.map_or_else(String::new, |cut| {
        format!(
            "; of {} sectors not flushed the disk lost {}, and tore {} pages",
            cut.unflushed, cut.lost, cut.torn
        )
    });
    format!(
        "reset {}, {}: {} acknowledged, {verdict}{sectors}",
        reset.number, reset.when, reset.acknowledged
    )
}

impl Sums {
    fn add(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Unseen | Verdict::Whole { .. } => {}
            Verdict::Lost(lost) => {
                self.lost += lost;
                self.wrong += 1;
            }
            Verdict::Wrong(_) => self.wrong += 1,
            Verdict::Failed(_) => self.failed += 1,
        }
    }
}

/// Keeps the contents that a reset left.
fn keep(reset: &Reset) -> Outcome {
    let path = tools::target_dir()?.join("xtask").join("resets-kept.img");
    std::fs::write(&path, &reset.image).map_err(|e| format!("{}: {e}", path.display()))?;
    say(format!(
        "the medium as reset {} left it (ext4, the database is /db): {}",
        reset.number,
        path.display()
    ));
    Ok(())
}

fn report(options: &Options, sums: &Sums, took: Duration) {
    let Cut {
        unflushed,
        lost,
        torn,
    } = sums.cut;
    let disk = match options.medium {
        Kind::Pmem => String::new(),
        Kind::Disk => format!(
            "; of {unflushed} sectors not flushed the disk lost {lost}, and tore {torn} pages"
        ),
    };
    println!(
        "resets, {}: {} resets ({} while opening) in {:.0} s: {} transactions acknowledged, {} lost; {} resets left wrong contents, after {} the machine failed{disk}; seed {}",
        options.medium.name(),
        sums.resets,
        sums.in_recovery,
        took.as_secs_f64(),
        sums.acknowledged,
        sums.lost,
        sums.wrong,
        sums.failed,
        options.seed
    );
    if options.json {
        println!(
            "{}",
            serde_json::json!({
                "medium": options.medium.name(),
                "server": options.server,
                "plant": options.plant.map(Plant::name),
                "resets": sums.resets,
                "in_recovery": sums.in_recovery,
                "acknowledged": sums.acknowledged,
                "lost": sums.lost,
                "wrong": sums.wrong,
                "failed": sums.failed,
                "unflushed_sectors": unflushed,
                "lost_sectors": lost,
                "torn_pages": torn,
                "threads": options.threads,
                "seed": options.seed,
                "seconds": took.as_secs_f64(),
            })
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_compared_with_what_was_promised() {
        let reached = |numbers: &[u64]| judge(&[5, 7], &Seen::Reached(numbers.to_vec()));
        assert_eq!(reached(&[5, 7]), Verdict::Whole { more: 0 });
        assert_eq!(reached(&[6, 9]), Verdict::Whole { more: 3 });
        assert_eq!(reached(&[6, 6]), Verdict::Lost(1));
        assert_eq!(reached(&[0, 0]), Verdict::Lost(12));
        assert_eq!(judge(&[5, 7], &Seen::Nothing), Verdict::Unseen);
        let wrong = judge(&[5, 7], &Seen::Wrong("torn".to_owned()));
        assert_eq!(wrong, Verdict::Wrong("torn".to_owned()));
    }
}
