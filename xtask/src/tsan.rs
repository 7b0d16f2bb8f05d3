//! Tests of threads under ThreadSanitizer, which reports accesses that race.
//!
//! The standard library is built with the sanitizer too (`-Zbuild-std`), or its own synchronisation
//! would look like races. As for AddressSanitizer, `RUSTC_BOOTSTRAP` lets the stable compiler take
//! the switches.
//!
//! Two things would be reported that are no races, and each has a switch instead of a suppression:
//!
//! | what | switch |
//! | --- | --- |
//! | the sanitizer does not understand fences, on which crossbeam-epoch rests | `crossbeam_sanitize_thread`: it does without them |
//! | it does not see system calls that rustix makes by itself: a mapping at the address of an earlier one seems to be the same memory | `rustix_use_libc`: they go through libc, where it sees them |

use crate::tools::{self, Outcome};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Arguments of `cargo test` unless others are given: they select every test with threads but those
/// that count what their threads get done, which is too little here.
const DEFAULT: &[&str] = &[
    "--package",
    "bristlecone-index",
    "--package",
    "bristlecone-store",
    "--package",
    "bristlecone-nv-store",
    "--package",
    "bristlecone",
    "--lib",
    "--test",
    "all",
    "--",
    // Inner nodes, leaves, pages and version locks of the index.
    "inner::tests::stress::threads_on_full",
    "inner::tests::stress::threads_on_a_deep_tree_of_integers",
    "lbtree::",
    "clustered::tests::batches_of_threads",
    "clustered::tests::scans_beside",
    "clustered::tests_snapshots::sums",
    "version_lock::tests::two_leaves",
    "version_lock::tests::versions_change",
    // NV-Store's timestamps, horizon, recovery and vacuum; commits, histories, backups, feeds and
    // failing disks of stores of both formats.
    "clock::",
    "horizon::",
    "recovery::tests::walks_from_both_ends",
    "vacuum::",
    "backup::",
    "batches::",
    "closing::",
    "deferring::",
    "dropping::a_backup_under_way",
    "dropping::a_thread_of_the_store",
    "dropping::writers_batches_and_backups",
    "failing::",
    "histories::randomised",
    "journal::commits_of_threads",
    "single::increments_of_threads",
    "transactions::a_thread_vacuums",
    "transactions::transfers_of_threads",
    "watching::",
    // The database's thread for commits with an interval.
    "durability::",
];

/// Runs `cargo test` with `args`, or with the tests above.
pub fn run(args: &[String]) -> Outcome {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err(format!("the sanitizer is set up for {TARGET} only"));
    }
    tools::run(std::process::Command::new("rustup").args(["component", "add", "rust-src"]))?;
    let default: Vec<String> = DEFAULT.iter().map(|arg| (*arg).to_owned()).collect();
    let selected = if args.is_empty() { &default[..] } else { args };
    tools::run(
        tools::cargo()
            .env("RUSTC_BOOTSTRAP", "1")
            .env(
                "RUSTFLAGS",
                "-Zsanitizer=thread --cfg crossbeam_sanitize_thread --cfg rustix_use_libc",
            )
            .env("CARGO_TARGET_DIR", tools::target_dir()?.join("tsan"))
            .args(["test", "-Zbuild-std", "--target", TARGET])
            .args(selected),
    )
}
