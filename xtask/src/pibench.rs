//! Every design as a shared library that PiBench loads: builds it, and runs it with a driver that
//! uses the same interface.
//!
//! ```text
//! cargo build -> libbristlecone_pibench.a --+
//! cpp/tree.cc ----------------------------- c++ -> libbristlecone_pibench.so <- driver, PiBench
//! ```

use crate::tools::{self, Outcome, say};
use clap::Args;
use std::path::PathBuf;
use std::process::Command;

/// Options of the chore.
#[derive(Args)]
pub struct Options {
    /// Folder of PiBench's own header, `include` in its sources [default: a header of the same
    /// interface].
    #[arg(long, value_name = "DIR")]
    include: Option<PathBuf>,
    /// Builds the part in Rust as tests are built, not optimised for measurements.
    #[arg(long)]
    quick: bool,
    /// Only builds.
    #[arg(long)]
    build_only: bool,
}

/// Builds the library, and runs the driver.
pub fn run(options: &Options) -> Outcome {
    if tools::which("c++").is_none() {
        tools::apt_install(&["g++"], None)?;
    }
    let mut cargo = tools::cargo();
    cargo.args(["build", "--package", "bristlecone-pibench"]);
    if !options.quick {
        cargo.arg("--release");
    }
    tools::run(&mut cargo)?;
    let target = tools::target_dir()?;
    let profile = if options.quick { "debug" } else { "release" };
    let archive = target.join(profile).join("libbristlecone_pibench.a");
    let here = tools::root().join("research/pibench");
    let out = target.join("pibench");
    std::fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    let compiler = || {
        let mut compiler = Command::new("c++");
        compiler.args([
            "-std=c++17",
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pthread",
        ]);
        // The first folder that has the header counts.
        if let Some(include) = &options.include {
            compiler.arg("-I").arg(include);
        }
        compiler.arg("-I").arg(here.join("include"));
        compiler
    };
    let library = out.join("libbristlecone_pibench.so");
    tools::run(
        compiler()
            .args(["-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(here.join("cpp/tree.cc"))
            // Also what only the driver asks for.
            .arg("-Wl,--whole-archive")
            .arg(archive)
            .arg("-Wl,--no-whole-archive")
            .args(["-ldl", "-lm"]),
    )?;
    say(format!("built {}", library.display()));
    if options.build_only {
        return Ok(());
    }
    let driver = out.join("driver");
    tools::run(
        compiler()
            .arg("-o")
            .arg(&driver)
            .arg(here.join("tests/driver.cc"))
            .arg("-ldl"),
    )?;
    let folder = tempfile::tempdir_in("/dev/shm").map_err(|e| format!("/dev/shm: {e}"))?;
    tools::run(Command::new(driver).arg(library).arg(folder.path()))
}
