//! Unit tests under Miri, which interprets them and reports undefined behaviour: use of freed or
//! foreign memory, misaligned or racing accesses, values that their types cannot have.
//!
//! Miri knows neither persistent memory nor shared mappings, and is some thousand times slower. So
//! the selection is small: codecs, cells on the `Dram` medium, inner nodes, version locks,
//! separators. Proptest tries two cases.

use crate::tools::{self, Outcome};
use std::process::Command;

/// The packages, and of each the tests that take seconds under Miri.
const TESTS: [(&str, &[&str]); 2] = [
    (
        "bristlecone-pmem",
        &[
            "cell::",
            "format::layout::",
            "format::superblock::tests::errors_say_which",
        ],
    ),
    (
        "bristlecone-index",
        &[
            "clustered::shown::tests::what",
            "clustered::versions::",
            "damage::",
            "fingerprint::",
            "inner::separator::",
            "inner::tests::bulk_building",
            "inner::tests::searching",
            "inner::tests::verify_reports",
            "lbtree::leaf::",
            "leaftree::split::",
            "version_lock::tests::an_obsolete",
            "version_lock::tests::two_leaves",
            "version_lock::tests::versions_change",
        ],
    ),
];

/// Runs the tests above, or those of `args` in both packages.
pub fn run(args: &[String]) -> Outcome {
    tools::run(Command::new("rustup").args([
        "component",
        "add",
        "--toolchain",
        "nightly",
        "miri",
        "rust-src",
    ]))?;
    for (package, tests) in TESTS {
        let mut cargo = Command::new("rustup");
        tools::as_from_a_shell(&mut cargo)
            .current_dir(tools::root())
            .env("CARGO_TARGET_DIR", tools::target_dir()?.join("miri"))
            // The cargo that runs this chore is another toolchain's.
            .env_remove("CARGO")
            .env_remove("RUSTUP_TOOLCHAIN")
            .env("PROPTEST_CASES", "2")
            // Trees: crossbeam-epoch's lists are not made for stacked borrows. The epochs' garbage
            // is left at the end.
            .env(
                "MIRIFLAGS",
                "-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-tree-borrows -Zmiri-ignore-leaks",
            )
            .args(["run", "nightly", "cargo", "miri", "test", "--package", package])
            .args(["--lib", "--"]);
        if args.is_empty() {
            cargo.args(tests);
        } else {
            cargo.args(args);
        }
        tools::run(&mut cargo)?;
    }
    Ok(())
}
