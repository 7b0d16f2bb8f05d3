//! RocksDB with memtables in a pool: builds the library and its tests, and runs them.
//!
//! ```text
//! cargo build -> libbristlecone_rocksdb.a --+
//! cpp/*.cc -------------------------------- c++ -> libbristlecone_rocksdb.so <- tests, db_bench
//! ```

use crate::tools::{self, Outcome, say};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Header of RocksDB, and the packages that have it and what else is needed.
const HEADER: &str = "/usr/include/rocksdb/memtablerep.h";
const PACKAGES: [&str; 3] = ["librocksdb-dev", "rocksdb-tools", "g++"];
const SOURCES: [&str; 5] = ["memtable", "files", "database", "recover", "registry"];

/// What to run.
#[derive(Args)]
pub struct Options {
    /// Folder for the databases of the tests on a disk, besides tmpfs.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    disk: PathBuf,
    /// Random operations that are compared with RocksDB's own memtable.
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Kills on tmpfs, and as many on the disk.
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// Also runs the measurements of figure lb-fig16.
    #[arg(long)]
    bench: bool,
    /// Only builds.
    #[arg(long)]
    build_only: bool,
    /// Builds the part in Rust unoptimised, and without the divided skip list.
    #[arg(long, conflicts_with = "bench")]
    quick: bool,
    /// Builds the C++ part with a sanitizer: `address`, `thread` or `undefined`.
    #[arg(long, value_name = "NAME")]
    sanitizer: Option<String>,
}

/// Builds, and runs the tests.
pub fn run(options: &Options) -> Outcome {
    if !Path::new(HEADER).exists()
        || tools::which("db_bench").is_none()
        || tools::which("c++").is_none()
    {
        tools::apt_install(&PACKAGES, None)?;
    }
    let built = build(options)?;
    say(format!("built {}", built.display()));
    if options.build_only {
        return Ok(());
    }
    let shm = PathBuf::from("/dev/shm");
    let number = |n: u64| n.to_string();
    let test = |name: &str, folder: &Path| {
        let mut command = Command::new(built.join(name));
        command.arg("--folder").arg(folder);
        command
    };
    tools::run(&mut test("faults", &shm))?;
    tools::run(test("random", &shm).args(["--operations", &number(options.operations)]))?;
    tools::run(&mut test("between", &shm))?;
    tools::run(&mut test("reopen", &shm))?;
    for folder in [&shm, &options.disk] {
        tools::run(&mut test("hazards", folder))?;
        tools::run(test("kill", folder).args(["--kills", &number(options.kills.into())]))?;
    }
    if options.sanitizer.is_none() {
        db_bench(&built, options.quick)?;
    }
    if options.bench {
        for folder in [&shm, &options.disk] {
            tools::run(&mut test("bench", folder))?;
        }
    }
    Ok(())
}

/// Builds library and tests. Returns their folder.
fn build(options: &Options) -> Outcome<PathBuf> {
    let mut cargo = tools::cargo();
    cargo.args(["build", "--package", "bristlecone-rocksdb"]);
    if !options.quick {
        // The skip list is generic, so it is compiled where it is used. All other designs are not
        // used, and would take minutes to optimise.
        let unoptimised = "profile.release.package.bristlecone-designs.opt-level=0";
        cargo.args([
            "--release",
            "--features",
            "skiplist",
            "--config",
            unoptimised,
        ]);
    }
    tools::run(&mut cargo)?;
    let target = tools::target_dir()?;
    let profile = if options.quick { "debug" } else { "release" };
    let archive = target.join(profile).join("libbristlecone_rocksdb.a");
    let here = tools::root().join("integrations/rocksdb");
    let sanitizer = options.sanitizer.as_deref();
    let out = target.join(match sanitizer {
        Some(name) => format!("rocksdb-{name}"),
        None => "rocksdb".to_owned(),
    });
    std::fs::create_dir_all(&out).map_err(|e| format!("{}: {e}", out.display()))?;
    let compiler = || {
        let mut compiler = Command::new("c++");
        compiler
            .args([
                "-std=c++17",
                "-O2",
                "-g1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pthread",
                "-I",
            ])
            .arg(here.join("include"));
        if let Some(name) = sanitizer {
            compiler.arg(format!("-fsanitize={name}"));
        }
        compiler
    };
    let library = out.join("libbristlecone_rocksdb.so");
    let sources = SOURCES.map(|name| here.join("cpp").join(name).with_extension("cc"));
    tools::run(
        compiler()
            .args(["-shared", "-fPIC", "-fvisibility-inlines-hidden", "-o"])
            .arg(&library)
            .args(sources)
            .arg(archive)
            .args(["-lrocksdb", "-ldl", "-lm"]),
    )?;
    for name in [
        "faults", "random", "between", "reopen", "hazards", "kill", "bench",
    ] {
        tools::run(
            compiler()
                .arg("-o")
                .arg(out.join(name))
                .arg(here.join("tests").join(name).with_extension("cc"))
                .arg("-L")
                .arg(&out)
                .args(["-lbristlecone_rocksdb", "-lrocksdb"])
                .arg(format!("-Wl,-rpath,{}", out.display())),
        )?;
    }
    Ok(out)
}

/// Runs Debian's `db_bench` with memtables of the library, which it knows nothing of.
fn db_bench(built: &Path, quick: bool) -> Outcome {
    let memtables = [
        "bristlecone",
        "bristlecone:bytewise",
        "bristlecone:skiplist,bytewise",
    ];
    for memtable in &memtables[..if quick { 2 } else { 3 }] {
        let folder = tempfile::tempdir_in("/dev/shm").map_err(|e| format!("/dev/shm: {e}"))?;
        tools::run(
            Command::new("db_bench")
                .env("LD_PRELOAD", built.join("libbristlecone_rocksdb.so"))
                .env("BRISTLECONE_ROCKSDB_POOL", folder.path().join("pool"))
                .arg(format!("--memtablerep={memtable}"))
                .arg(format!("--db={}", folder.path().join("db").display()))
                .args(["--benchmarks=fillrandom,readrandom,readseq,readreverse,overwrite,verifychecksum"])
                .args(["--num=100000", "--compression_type=none", "--write_buffer_size=4194304"]),
        )?;
    }
    Ok(())
}
