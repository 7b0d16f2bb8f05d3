//! The `dax` medium on a file system that really grants `MAP_SYNC`, without the hardware.
//!
//! ```text
//! this machine                        virtual machine (QEMU, emulated processor, 1 GiB)
//! initramfs: busybox, mke2fs,         0 .. 512 MiB      ordinary memory
//!   kernel modules, test programs  -> 512 .. 768 MiB    memmap=256M!512M: /dev/pmem0, ext4 -o dax
//! serial console                   <- "vm: ..." lines
//! ```
//!
//! The machine is reset half-way, which loses everything but memory; the second boot checks what
//! the first one fenced. Then the same memory becomes a devdax device. The emulator has no caches,
//! so this proves that the right mapping is asked for, granted and synchronous in its metadata, not
//! that no flush is missing.

use crate::machine::{self, Contents, Kernel};
use crate::tools::{Outcome, say};
use std::fs::File;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

const MODULES: [&str; 6] = [
    "libnvdimm",
    "nd_btt",
    "nd_pmem",
    "nd_e820",
    "device_dax",
    "dax_pmem",
];

/// The choices of the command line.
pub struct Options {
    /// Kernel image and its modules' folder, instead of Debian's.
    pub kernel: Option<(PathBuf, PathBuf)>,
    /// When the machine is given up.
    pub timeout: Duration,
    /// Show all that the machine prints.
    pub verbose: bool,
    /// One more static program to run there.
    pub program: Option<PathBuf>,
    /// Leave out the `bristlecone` command.
    pub probe_only: bool,
}

/// Builds the programs, boots the machine, judges what it says.
pub fn run(options: &Options) -> Outcome {
    let kernel = machine::kernel(options.kernel.as_ref())?;
    let contents = Contents {
        script: include_str!("dax-init.sh"),
        modules: &MODULES,
        system: &["mke2fs"],
        programs: &build(options)?,
    };
    let initramfs = machine::initramfs(&kernel, &contents)?;
    boot(&kernel, &initramfs, options)
}

/// The programs to run in the machine, each with its name there.
fn build(options: &Options) -> Outcome<Vec<(&'static str, PathBuf)>> {
    let built = machine::build(&["--package", "bristlecone-pmem", "--example", "dax_probe"])?;
    let mut programs = vec![("dax_probe", built.join("examples/dax_probe"))];
    if !options.probe_only {
        let built = machine::build(&["--package", "bristlecone-cli"])?;
        programs.push(("bristlecone", built.join("bristlecone")));
    }
    if let Some(program) = &options.program {
        machine::is_static(program)?;
        programs.push(("program", program.clone()));
    }
    Ok(programs)
}

fn boot(kernel: &Kernel, initramfs: &File, options: &Options) -> Outcome {
    let start = Instant::now();
    say(format!("booting {}", kernel.image.display()));
    let mut machine = machine::start(
        machine::emulator(kernel, initramfs, "memmap=256M!512M")
            .args(["-m", "1024", "-smp", "1", "-serial", "stdio"])
            .stdout(Stdio::piped()),
    )?;
    let console = machine.0.stdout.take().ok_or("no serial console")?;
    let (send, lines) = mpsc::channel();
    machine::lines(console, move |line| send.send(line).is_ok());

    let (mut boots, mut failed) = (0, None::<String>);
    loop {
        let left = options.timeout.saturating_sub(start.elapsed());
        match lines.recv_timeout(left) {
            Ok(line) => {
                let said = line.split_once("vm: ").map(|(_, said)| said);
                if options.verbose || failed.is_some() || said.is_some() {
                    println!("[{:6.1} s] {line}", start.elapsed().as_secs_f64());
                }
                match said {
                    Some("PASS") if boots == 2 => break,
                    Some("PASS") => {
                        return Err(format!("the machine booted {boots} times, not twice"));
                    }
                    Some(said) if said.starts_with("Linux ") => boots += 1,
                    // The kernel's log follows, until the machine ends.
                    Some(said) if said.starts_with("FAIL") => failed = Some(said.to_owned()),
                    _ if line.contains("Kernel panic") => failed = Some(line),
                    _ => {}
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!(
                    "the machine did not finish in {} s; --verbose shows its console, --timeout gives it longer",
                    options.timeout.as_secs()
                ));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(failed.unwrap_or_else(|| "the machine ended without a result".into()));
            }
        }
    }
    println!(
        "dax: MAP_SYNC granted, refusals right, content there after a reset, devdax usable; {:.0} s",
        start.elapsed().as_secs_f64()
    );
    Ok(())
}
