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

use crate::cpio::Archive;
use crate::tools::{self, Outcome, say};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

const QEMU: &str = "qemu-system-x86_64";
const TARGET: &str = "x86_64-unknown-linux-gnu";
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
    if !cfg!(target_arch = "x86_64") {
        return Err("the virtual machine is set up for x86-64 only".into());
    }
    install_missing()?;
    let (kernel, modules) = match &options.kernel {
        Some((kernel, modules)) => (kernel.clone(), modules.clone()),
        None => debian_kernel()?,
    };
    let programs = build(options)?;
    let image = initramfs(&modules, &programs)?;
    let file = tools::target_dir()?.join("xtask").join("initramfs.cpio");
    std::fs::write(&file, image).map_err(|e| format!("{}: {e}", file.display()))?;
    boot(&kernel, &file, options)
}

fn install_missing() -> Outcome {
    let needed = [
        (QEMU, "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("mke2fs", "e2fsprogs"),
        ("dpkg-deb", "dpkg"),
    ];
    let missing: Vec<&str> = needed
        .into_iter()
        .filter(|(program, _)| tools::which(program).is_none())
        .map(|(_, package)| package)
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        tools::apt_install(&missing, None)
    }
}

/// Debian's cloud kernel: small, and it has the drivers. Unpacked, not installed.
fn debian_kernel() -> Outcome<(PathBuf, PathBuf)> {
    let folder = tools::target_dir()?.join("xtask").join("kernel");
    if let Some(found) = kernel_in(&folder) {
        return Ok(found);
    }
    if tools::which("apt-get").is_none() {
        return Err("no apt-get to fetch Debian's linux-image-cloud-amd64 with; give --kernel and --modules".into());
    }
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let depends = Command::new("apt-cache")
        .args(["depends", "linux-image-cloud-amd64"])
        .output();
    let depends = depends.map_err(|e| format!("apt-cache could not start: {e}"))?;
    let text = String::from_utf8_lossy(&depends.stdout).into_owned();
    let package = text
        .lines()
        .filter_map(|l| l.trim().strip_prefix("Depends: "))
        .find(|p| p.starts_with("linux-image-"))
        .ok_or("apt knows no linux-image-cloud-amd64; run `apt-get update`, or give --kernel and --modules")?
        .to_owned();
    tools::run(
        Command::new("apt-get")
            .current_dir(&folder)
            .args(["-qq", "download", &package]),
    )?;
    for deb in files_under(&folder, |p| p.extension().is_some_and(|e| e == "deb")) {
        tools::run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&folder))?;
        std::fs::remove_file(&deb).map_err(|e| format!("{}: {e}", deb.display()))?;
    }
    kernel_in(&folder).ok_or_else(|| {
        format!(
            "{package} has no boot/vmlinuz-* and lib/modules in {}",
            folder.display()
        )
    })
}

fn kernel_in(folder: &Path) -> Option<(PathBuf, PathBuf)> {
    let kernel = files_under(&folder.join("boot"), |p| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz-"))
    });
    let modules = ["lib/modules", "usr/lib/modules"].map(|m| folder.join(m));
    Some((
        kernel.into_iter().next()?,
        modules.into_iter().find(|m| m.is_dir())?,
    ))
}

/// Every file below `folder` that `want` takes.
fn files_under(folder: &Path, want: impl Fn(&Path) -> bool + Copy) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files_under(&path, want)),
            Ok(_) if want(&path) => found.push(path),
            _ => {}
        }
    }
    found.sort();
    found
}

/// The programs to run in the machine, each with its name there.
fn build(options: &Options) -> Outcome<Vec<(&'static str, PathBuf)>> {
    let folder = tools::target_dir()?.join("static");
    let cargo = |args: &[&str]| {
        tools::run(
            tools::cargo()
                .env("RUSTFLAGS", "-C target-feature=+crt-static")
                .env("CARGO_TARGET_DIR", &folder)
                // Quicker to build than the release profile, and nothing is measured here.
                .args(["build", "--target", TARGET])
                .args(args),
        )
    };
    let built = folder.join(TARGET).join("debug");
    cargo(&["--package", "bristlecone-pmem", "--example", "dax_probe"])?;
    let mut programs = vec![("dax_probe", built.join("examples/dax_probe"))];
    if !options.probe_only {
        cargo(&["--package", "bristlecone-cli"])?;
        programs.push(("bristlecone", built.join("bristlecone")));
    }
    if let Some(program) = &options.program {
        let linked = tools::output(Command::new("ldd").arg(program)).unwrap_or_default();
        if linked.contains("=>") {
            return Err(format!(
                "{}: dynamically linked; build it with RUSTFLAGS=\"-C target-feature=+crt-static\" --target {TARGET}",
                program.display()
            ));
        }
        programs.push(("program", program.clone()));
    }
    Ok(programs)
}

/// The machine's first file system.
fn initramfs(modules: &Path, programs: &[(&str, PathBuf)]) -> Outcome<Vec<u8>> {
    let read = |path: &Path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
    let mut archive = Archive::default();
    archive.file("init", include_bytes!("dax-init.sh"));
    for folder in ["bin", "dev", "proc", "sys", "tmp", "mnt", "etc"] {
        archive.folder(folder);
    }
    let busybox = tools::which("busybox").ok_or("busybox is not on the PATH")?;
    archive.file("bin/busybox", &read(&busybox)?);
    archive.link("bin/sh", "busybox");

    // mke2fs is linked dynamically: its libraries keep their paths.
    let mke2fs = tools::which("mke2fs").ok_or("mke2fs is not on the PATH")?;
    archive.file("sbin/mke2fs", &read(&mke2fs)?);
    let libraries = tools::output(Command::new("ldd").arg(&mke2fs))?;
    for library in libraries
        .split_whitespace()
        .filter(|word| word.starts_with('/'))
    {
        archive.file(library.trim_start_matches('/'), &read(Path::new(library))?);
    }

    for module in MODULES {
        let name = format!("{module}.ko");
        let found = files_under(modules, |p| {
            p.file_name().is_some_and(|n| n == name.as_str())
        });
        let file = found.first().ok_or_else(|| {
            format!(
                "{}: has no {name} (compressed modules are not unpacked)",
                modules.display()
            )
        })?;
        archive.file(&format!("modules/{name}"), &read(file)?);
    }
    for (name, path) in programs {
        archive.file(&format!("tests/{name}"), &read(path)?);
    }
    Ok(archive.finish())
}

fn boot(kernel: &Path, initramfs: &Path, options: &Options) -> Outcome {
    let start = Instant::now();
    let mut command = Command::new(QEMU);
    command
        .args(["-accel", "tcg", "-cpu", "max", "-m", "1024", "-smp", "1"])
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-serial", "stdio", "-monitor", "none"])
        .args(["-append", "console=ttyS0 quiet panic=-1 memmap=256M!512M"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    say(format!("booting {}", kernel.display()));
    let mut machine = Machine(
        command
            .spawn()
            .map_err(|e| format!("{QEMU} could not start: {e}"))?,
    );
    let console = machine.0.stdout.take().ok_or("no serial console")?;
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(console).split(b'\n').map_while(Result::ok) {
            if send
                .send(String::from_utf8_lossy(&line).trim_end().to_owned())
                .is_err()
            {
                return;
            }
        }
    });

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

/// The emulator's process, ended with this value.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // It has ended by itself or is of no more use; either way there is nothing to report.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
