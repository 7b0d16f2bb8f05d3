//! Unit tests on AArch64: cross-compiled with Debian's Rust, run under qemu's user-mode emulation.
//!
//! rustup's cross targets come from a server that not every machine reaches; Debian packages a
//! compiler of the same age (`rustc-web`) together with the standard library of every architecture,
//! so the tests need a Debian mirror only.
//!
//! Two traps, each met: the emulator must find the C library of Debian's own arm64 packages (which
//! the standard library's package brings), since mixing it with the loader of the cross-compiler's
//! sysroot hangs in the first `pthread_create`; and QEMU before 8.1 reports `dc cvap` to programs
//! and then refuses it, so there a processor without it is emulated and `dc cvac` is what runs.
//!
//! QEMU before 8 keeps a record of some 160 bytes for every page of the program's address space,
//! and pools and inner indexes reserve a lot of it: the emulated program gets 16 GiB, which they
//! make do with (they halve what they ask for until it is granted).

use crate::tools::{self, Outcome, say};
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// The emulated side's loader, from libc6:arm64.
const LOADER: &str = "/lib/ld-linux-aarch64.so.1";
/// Bytes that the emulated program may address.
const ADDRESS_SPACE: &str = "0x400000000";
/// Tests that say nothing about a processor and are too much for an emulator: thousands of
/// short-lived indexes, all interleavings of a model, and "so much must have happened in so much
/// time".
const SKIPPED: [&str; 3] = ["follow_the_model", "schedules", "stress"];
const PACKAGES: [&str; 5] = [
    "rustc-web",
    "libstd-rust-web-dev:arm64",
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "qemu-user",
];

/// Builds and runs the unit tests of pmem, index and designs; `args` go to the test binaries.
pub fn run(args: &[String]) -> Outcome {
    let rustc = if cfg!(target_arch = "aarch64") {
        say("this machine is AArch64 itself: `cargo test --workspace` already runs there");
        return Ok(());
    } else {
        ready()?
    };
    say(format!(
        "compiler: {}",
        tools::output(Command::new(&rustc).arg("-V"))?.trim()
    ));
    let processor = processor()?;
    say(format!("emulated processor: {processor}"));
    tools::run(
        tools::cargo()
            .env("RUSTC", &rustc)
            .env("CARGO_TARGET_DIR", tools::target_dir()?.join("arm"))
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
            .env(
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
                format!("{EMULATOR} -cpu {processor} -R {ADDRESS_SPACE}"),
            )
            .args(["test", "--target", TARGET, "--lib"])
            .args([
                "--package",
                "bristlecone-pmem",
                "--package",
                "bristlecone-index",
                "--package",
                "bristlecone-designs",
                "--",
                "--test-threads",
                "2",
            ])
            .args(SKIPPED.iter().flat_map(|name| ["--skip", name]))
            .args(args),
    )
}

/// The most capable processor that this emulator runs our code on.
fn processor() -> Outcome<&'static str> {
    let text = tools::output(Command::new(EMULATOR).arg("--version"))?;
    let version = text.split("version ").nth(1).unwrap_or_default();
    let mut numbers = version
        .split(|c: char| !c.is_ascii_digit())
        .map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok(if (major, minor) >= (8, 1) {
            "max"
        } else {
            "cortex-a57"
        }),
        _ => Err(format!("`{EMULATOR} --version` names no version: {text}")),
    }
}

/// Debian's compiler, with all else that is needed installed.
fn ready() -> Outcome<PathBuf> {
    let rustc = Path::new("/usr/bin/rustc");
    let is_ready = || {
        rustc.is_file()
            && Path::new("/usr/lib/rustlib")
                .join(TARGET)
                .join("lib")
                .is_dir()
            && Path::new(LOADER).is_file()
            && tools::which(LINKER).is_some()
            && tools::which(EMULATOR).is_some()
    };
    if !is_ready() {
        tools::apt_install(&PACKAGES, Some("arm64"))?;
    }
    if is_ready() {
        Ok(rustc.to_path_buf())
    } else {
        Err(format!(
            "{} are installed, but /usr/bin/rustc, /usr/lib/rustlib/{TARGET}, {LOADER}, {LINKER} or {EMULATOR} is not there",
            PACKAGES.join(", ")
        ))
    }
}
