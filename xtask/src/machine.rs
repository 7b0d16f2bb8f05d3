//! Virtual machines for checks of media: Debian's kernel under QEMU, an initramfs that is made
//! here, and what the machine prints.
//!
//! The processor is emulated, so no privilege is needed and nothing depends on the host's. The
//! first process is `machine-init.sh`, continued by the script of the check.

use crate::cpio::Archive;
use crate::server::Running;
use crate::tools::{self, Outcome};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const QEMU: &str = "qemu-system-x86_64";
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A kernel to boot.
pub struct Kernel {
    /// Its image.
    pub image: PathBuf,
    /// The folder of its modules.
    pub modules: PathBuf,
}

/// The first file system of a machine, besides busybox and the shell functions.
pub struct Contents<'a> {
    /// The check's part of the first process.
    pub script: &'a str,
    /// Modules of the kernel, in the order in which they are loaded.
    pub modules: &'a [&'a str],
    /// Programs of this system, as `/sbin/NAME`.
    pub system: &'a [&'a str],
    /// Statically linked programs, as `/tests/NAME`.
    pub programs: &'a [(&'a str, PathBuf)],
}

/// Installs what is missing, and returns the kernel: `given`, an image and its modules' folder, or
/// Debian's.
pub fn kernel(given: Option<&(PathBuf, PathBuf)>) -> Outcome<Kernel> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the virtual machine is set up for x86-64 only".into());
    }
    install_missing()?;
    match given {
        Some((image, modules)) => Ok(Kernel {
            image: image.clone(),
            modules: modules.clone(),
        }),
        None => debian_kernel(),
    }
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
fn debian_kernel() -> Outcome<Kernel> {
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

fn kernel_in(folder: &Path) -> Option<Kernel> {
    let images = files_under(&folder.join("boot"), |p| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("vmlinuz-"))
    });
    let modules = ["lib/modules", "usr/lib/modules"].map(|m| folder.join(m));
    Some(Kernel {
        image: images.into_iter().next()?,
        modules: modules.into_iter().find(|m| m.is_dir())?,
    })
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

/// Builds with `cargo build` and these arguments, statically linked, and returns the folder that
/// the programs are in.
pub fn build(args: &[&str]) -> Outcome<PathBuf> {
    let folder = tools::target_dir()?.join("static");
    tools::run(
        tools::cargo()
            .env("RUSTFLAGS", "-C target-feature=+crt-static")
            .env("CARGO_TARGET_DIR", &folder)
            // Quicker to build than the release profile, and nothing is measured here.
            .args(["build", "--target", TARGET])
            .args(args),
    )?;
    Ok(folder.join(TARGET).join("debug"))
}

/// Refuses a program that would look for libraries in the machine.
pub fn is_static(program: &Path) -> Outcome {
    let linked = tools::output(Command::new("ldd").arg(program)).unwrap_or_default();
    if linked.contains("=>") {
        return Err(format!(
            "{}: dynamically linked; build it with RUSTFLAGS=\"-C target-feature=+crt-static\" --target {TARGET}",
            program.display()
        ));
    }
    Ok(())
}

/// Writes a machine's first file system to a file without a name.
pub fn initramfs(kernel: &Kernel, contents: &Contents) -> Outcome<File> {
    let read = |path: &Path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
    let mut archive = Archive::default();
    let init = concat!(include_str!("machine-init.sh"), "\n").to_owned() + contents.script;
    archive.file("init", init.as_bytes());
    for folder in ["bin", "dev", "proc", "sys", "tmp", "mnt", "etc"] {
        archive.folder(folder);
    }
    let busybox = tools::which("busybox").ok_or("busybox is not on the PATH")?;
    archive.file("bin/busybox", &read(&busybox)?);
    archive.link("bin/sh", "busybox");

    // These are linked dynamically: their libraries keep their paths.
    for program in contents.system {
        let path = tools::which(program).ok_or(format!("{program} is not on the PATH"))?;
        archive.file(&format!("sbin/{program}"), &read(&path)?);
        let libraries = tools::output(Command::new("ldd").arg(&path))?;
        for library in libraries
            .split_whitespace()
            .filter(|word| word.starts_with('/'))
        {
            archive.file(library.trim_start_matches('/'), &read(Path::new(library))?);
        }
    }

    for module in contents.modules {
        let name = format!("{module}.ko");
        let found = files_under(&kernel.modules, |p| {
            p.file_name().is_some_and(|n| n == name.as_str())
        });
        let file = found.first().ok_or_else(|| {
            format!(
                "{}: has no {name} (compressed modules are not unpacked)",
                kernel.modules.display()
            )
        })?;
        archive.file(&format!("modules/{name}"), &read(file)?);
    }
    let order: String = contents.modules.iter().map(|m| format!("{m}\n")).collect();
    archive.file("modules/order", order.as_bytes());
    for (name, path) in contents.programs {
        archive.file(&format!("tests/{name}"), &read(path)?);
    }

    let failed = |e: std::io::Error| format!("a temporary file: {e}");
    let mut file = tempfile::tempfile().map_err(failed)?;
    file.write_all(&archive.finish()).map_err(failed)?;
    Ok(file)
}

/// The emulator with this kernel, first file system and command line for the kernel; without
/// devices.
pub fn emulator(kernel: &Kernel, initramfs: &File, append: &str) -> Command {
    let initramfs = format!("/proc/{}/fd/{}", std::process::id(), initramfs.as_raw_fd());
    let mut command = Command::new(QEMU);
    command
        .args(["-accel", "tcg", "-cpu", "max"])
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-monitor", "none"])
        .arg("-append")
        // An emulated timer may be late on a busy machine.
        .arg(format!(
            "console=ttyS0 quiet panic=-1 no_timer_check {append}"
        ))
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initramfs)
        .stdin(Stdio::null());
    command
}

/// Starts the emulator. It ends with the value that is returned.
pub fn start(command: &mut Command) -> Outcome<Running> {
    let started = command.spawn();
    Ok(Running(
        started.map_err(|e| format!("{QEMU} could not start: {e}"))?,
    ))
}

/// Passes each whole line of `source` on, until there are no more or `take` returns false.
pub fn lines(
    source: impl Read + Send + 'static,
    mut take: impl FnMut(String) -> bool + Send + 'static,
) {
    std::thread::spawn(move || {
        let mut source = BufReader::new(source);
        let mut line = Vec::new();
        // A killed machine may leave half a line, which says nothing.
        while source.read_until(b'\n', &mut line).is_ok() && line.pop() == Some(b'\n') {
            if !take(String::from_utf8_lossy(&line).trim_end().to_owned()) {
                return;
            }
            line.clear();
        }
    });
}
