//! Tests of threads under ThreadSanitizer, which reports accesses that race.
//!
//! The standard library is built with the sanitizer too (`-Zbuild-std`), or its own synchronisation would look
//! like races. As for AddressSanitizer, `RUSTC_BOOTSTRAP` lets the stable compiler take the switches.

use crate::tools::{self, Outcome};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// What is run unless something else is asked for: each entry is a `cargo test`.
const DEFAULT: [&[&str]; 2] = [
    &[
        "--package",
        "bristlecone-index",
        "--lib",
        "--",
        "inner::tests::stress::threads_on_full",
        "inner::tests::stress::threads_on_a_deep_tree_of_integers",
        "lbtree::",
        "version_lock::tests::an_obsolete",
        "version_lock::tests::two_leaves",
        "version_lock::tests::versions_change",
    ],
    &[
        "--package",
        "bristlecone-store",
        "--test",
        "all",
        "--",
        "transfers_of_threads_keep_the_total",
        "increments_of_threads_are_not_lost",
        "commits_of_threads_share_syncs_and_survive",
        "steps_of_two_threads_do_not_mix",
    ],
];

/// Runs `cargo test` with `args`, or with the tests above.
pub fn run(args: &[String]) -> Outcome {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err(format!("the sanitizer is set up for {TARGET} only"));
    }
    tools::run(std::process::Command::new("rustup").args(["component", "add", "rust-src"]))?;
    if !args.is_empty() {
        return test(args);
    }
    DEFAULT.into_iter().try_for_each(|selected| {
        let selected: Vec<String> = selected.iter().map(|&word| word.to_owned()).collect();
        test(&selected)
    })
}

fn test(selected: &[String]) -> Outcome {
    let suppressions = tools::root().join("xtask/src/tsan-suppressions.txt");
    tools::run(
        tools::cargo()
            .env("RUSTC_BOOTSTRAP", "1")
            // The sanitizer does not understand fences; crossbeam-epoch does with it what it would do with them.
            .env(
                "RUSTFLAGS",
                "-Zsanitizer=thread --cfg crossbeam_sanitize_thread",
            )
            .env(
                "TSAN_OPTIONS",
                format!("suppressions={}", suppressions.display()),
            )
            .env("CARGO_TARGET_DIR", tools::target_dir().join("tsan"))
            .args(["test", "-Zbuild-std", "--target", TARGET])
            .args(selected),
    )
}
