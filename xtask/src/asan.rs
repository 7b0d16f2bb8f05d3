//! Tests that open hostile files, pools and indexes of every design, under AddressSanitizer.
//!
//! The sanitizer's runtime comes with the toolchain, only its switch is unstable: with
//! `RUSTC_BOOTSTRAP` the stable compiler takes it. Naming the target keeps the flag away from build
//! scripts and macros.

use crate::tools::{self, Outcome};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The tests that are run unless others are asked for: damaged pools, and trees in them. (Tests
/// that measure time or address space say nothing here; the sanitizer changes both. Of the changed
/// bytes, those in the image of a crash that is then worked on: they reach most code, and take
/// minutes as it is.)
const DEFAULT: [&str; 15] = [
    "--package",
    "bristlecone-pmem",
    "--package",
    "bristlecone-designs",
    "--features",
    "bristlecone-designs/thorough",
    "--test",
    "hostile",
    "--test",
    "hostile_pool",
    "--",
    "--skip",
    "hostile_flips_closed",
    "--skip",
    "hostile_flips_crashed_reading",
];

/// Runs `cargo test` with `args`, or with the hostile-file tests.
pub fn run(args: &[String]) -> Outcome {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err(format!("the sanitizer is set up for {TARGET} only"));
    }
    let default = DEFAULT.map(str::to_owned);
    let selected = if args.is_empty() { &default[..] } else { args };
    tools::run(
        tools::cargo()
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zsanitizer=address")
            // Inner nodes live as long as the process that recovered them may need them.
            .env("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1")
            // A scenario takes many times as long.
            .env("BRISTLECONE_PATIENCE_SECONDS", "1800")
            .env("CARGO_TARGET_DIR", tools::target_dir()?.join("asan"))
            .args(["test", "--target", TARGET])
            .args(selected),
    )
}
