//! What Bristlecone's developers run: `cargo run -p xtask -- COMMAND`.
//!
//! | command | does |
//! | --- | --- |
//! | `readme` | runs the shell blocks of the README and the book |
//! | `layers` | checks which crate depends on which |
//! | `references` | checks that links, file names and headings that are referred to exist |
//! | `public-api` | compares the library's public API with its committed listing (feature `public-api`) |
//! | `arm` | unit tests on AArch64, emulated |
//! | `dax` | the `dax` medium on emulated persistent memory, in a virtual machine that is reset mid-run |
//! | `resets` | a database in a virtual machine that is reset under load, on emulated persistent memory or on a disk that loses what no flush covered |
//! | `monitoring` | the status page in a browser; alerts and dashboard in a Prometheus |
//! | `report` | the report's page in a browser |
//! | `package` | the Debian package: makes it, installs it, serves with it, removes it |
//! | `container` | the container image: builds it, serves with it in a container |
//! | `pibench` | every design as a library for PiBench: builds it, and drives it as PiBench does |
//! | `rocksdb` | RocksDB with memtables in a pool: builds, tests, kills, and Debian's `db_bench` |
//! | `frameworks` | queues, locks and limiters in Python and JavaScript against a server that is killed |
//! | `memcached-clients` | clients of memcached in Python, JavaScript and Java against a server |
//! | `memcached-suite` | memcached's own tests against a server, with the reason for each that is left out |
//! | `asan` | hostile-file tests under AddressSanitizer |
//! | `tsan` | tests of threads under ThreadSanitizer |
//! | `mutants` | small changes to a package's code, each of which some test should notice (feature `mutants`) |
//! | `miri` | unit tests under Miri, which finds undefined behaviour |
//!
//! A chore that needs a tool says which Debian package has it; `arm`, `container`, `dax`, `resets`,
//! `monitoring`, `pibench`, `report` and `rocksdb` install what is missing where apt is there and
//! the user may.

mod arm;
mod asan;
mod book;
mod browser;
mod container;
mod cpio;
mod dax;
mod frameworks;
mod layers;
mod machine;
mod memcached_clients;
mod memcached_suite;
mod miri;
mod monitoring;
#[cfg(feature = "mutants")]
mod mutants;
mod package;
mod pibench;
#[cfg(feature = "public-api")]
mod public_api;
mod readme;
mod references;
mod report;
mod resets;
mod rocksdb;
mod server;
mod tools;
mod tsan;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Chores for Bristlecone's developers.
#[derive(Parser)]
#[command(name = "xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Runs the shell blocks of README.md and of the book's pages, with the built commands on the
    /// PATH.
    Readme {
        /// Only list what would run.
        #[arg(long, conflicts_with = "programs")]
        list: bool,
        /// The folder of `bristlecone` and `bristlecone-lab` [default: builds them].
        #[arg(long, value_name = "DIR")]
        programs: Option<PathBuf>,
        /// The workspace's programs and examples are all there: blocks run them instead of cargo.
        #[arg(long, requires = "programs")]
        built: bool,
        /// Only these documents, as paths from the repository's root [default: README.md and every
        /// page].
        documents: Vec<String>,
    },
    /// Checks that crates depend only on those below them.
    Layers,
    /// Checks that links, file names and headings lead somewhere, and that the book lists every
    /// page.
    References,
    /// Compares the public API of the crate `bristlecone` with its listing,
    /// `crates/bristlecone/public-api.txt`.
    #[cfg(feature = "public-api")]
    PublicApi {
        /// Writes the listing instead.
        #[arg(long)]
        update: bool,
    },
    /// Builds the unit tests of pmem, index and designs for AArch64 and runs them under qemu-user.
    Arm {
        /// Passed to the test binaries, for example a test's name.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Boots a virtual machine with emulated persistent memory and runs the `dax` medium there.
    Dax {
        /// Kernel image to boot instead of Debian's cloud kernel; needs --modules.
        #[arg(long, requires = "modules")]
        kernel: Option<PathBuf>,
        /// Folder of that kernel's modules (lib/modules/VERSION).
        #[arg(long, requires = "kernel")]
        modules: Option<PathBuf>,
        /// Seconds after which the machine is given up.
        #[arg(long, default_value_t = 240)]
        timeout: u64,
        /// Shows all that the machine prints.
        #[arg(long)]
        verbose: bool,
        /// A statically linked program to run in the machine as well, with a folder on the DAX
        /// mount as its argument; it must exit with 0.
        #[arg(long)]
        program: Option<PathBuf>,
        /// Leaves out the `bristlecone` command and runs the medium's own probe only.
        #[arg(long)]
        probe_only: bool,
    },
    /// Resets a virtual machine under load, many times, and looks for every acknowledged write.
    Resets(resets::Options),
    /// Looks at a server's status page with Chromium, and has a Prometheus read its metrics, alerts
    /// and dashboard.
    Monitoring,
    /// Makes the report's page from its data, and looks at it with Chromium.
    Report(report::Options),
    /// Makes the Debian package and, as root, installs it, serves a database with it, and removes
    /// it.
    Package,
    /// Builds the container image with podman, and serves a database with it.
    Container,
    /// Builds a library of every design that PiBench loads, and drives it.
    Pibench(pibench::Options),
    /// Builds the integration with RocksDB and runs its tests.
    Rocksdb(rocksdb::Options),
    /// Runs frameworks that keep their jobs, locks and limits in Redis, as their registries have
    /// them, against `bristlecone serve`, which is killed on the way.
    Frameworks {
        /// The folder of `bristlecone` [default: builds it].
        #[arg(long, value_name = "DIR")]
        programs: Option<PathBuf>,
        /// Some of them [default: all].
        names: Vec<String>,
    },
    /// Runs clients of memcached, as their registries have them, against `bristlecone serve
    /// --memcached`.
    MemcachedClients {
        /// The folder of `bristlecone` [default: builds it].
        #[arg(long, value_name = "DIR")]
        programs: Option<PathBuf>,
    },
    /// Runs memcached's own tests, of Debian's source package, against `bristlecone serve
    /// --memcached`.
    MemcachedSuite {
        /// The folder of `bristlecone` [default: builds it].
        #[arg(long, value_name = "DIR")]
        programs: Option<PathBuf>,
        /// Only these, as `cas.t`.
        tests: Vec<String>,
    },
    /// Runs the tests that open hostile files under AddressSanitizer.
    Asan {
        /// Passed to `cargo test` instead of the default selection.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Runs tests of threads under ThreadSanitizer.
    Tsan {
        /// Passed to `cargo test` instead of the default selection.
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Makes small changes to a package's code, one at a time, and looks whether its tests notice.
    #[cfg(feature = "mutants")]
    Mutants(mutants::Options),
    /// Runs unit tests of pmem and index under Miri.
    Miri {
        /// Passed to the test binaries instead of the default selection, for example a test's name.
        #[arg(last = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    let done = match Cli::parse().chore {
        Chore::Readme {
            list: true,
            documents,
            ..
        } => readme::list(&documents),
        Chore::Readme {
            programs,
            built,
            documents,
            ..
        } => readme::run(programs.as_deref(), built, &documents),
        Chore::Layers => layers::run(),
        Chore::References => references::run(),
        #[cfg(feature = "public-api")]
        Chore::PublicApi { update } => public_api::compare(update),
        Chore::Arm { args } => arm::run(&args),
        Chore::Dax {
            kernel,
            modules,
            timeout,
            verbose,
            program,
            probe_only,
        } => dax::run(&dax::Options {
            kernel: kernel.zip(modules),
            timeout: std::time::Duration::from_secs(timeout),
            verbose,
            program,
            probe_only,
        }),
        Chore::Resets(options) => resets::run(&options),
        Chore::Report(options) => report::run(&options),
        Chore::Monitoring => monitoring::run(),
        Chore::Package => package::run(),
        Chore::Container => container::run(),
        Chore::Pibench(options) => pibench::run(&options),
        Chore::Rocksdb(options) => rocksdb::run(&options),
        Chore::Frameworks { programs, names } => frameworks::run(programs.as_deref(), &names),
        Chore::MemcachedClients { programs } => memcached_clients::run(programs.as_deref()),
        Chore::MemcachedSuite { programs, tests } => {
            memcached_suite::run(programs.as_deref(), &tests)
        }
        Chore::Asan { args } => asan::run(&args),
        Chore::Tsan { args } => tsan::run(&args),
        #[cfg(feature = "mutants")]
        Chore::Mutants(options) => mutants::run(&options),
        Chore::Miri { args } => miri::run(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
