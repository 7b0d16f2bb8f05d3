//! Under a limit of memory.
//!
//! Each root's table of chunks was as long as a pool can become, 128 MiB, and inner nodes reserved
//! as much as the system granted: with `ulimit -d 600000` the process was aborted when it made or
//! opened a store, and with lower limits whenever a pool's image grew.

use crate::common::Bench;
use std::fmt::Write;

/// Limits a command to so many KiB of private memory: its text is run by the shell.
fn limited(bench: &Bench, kib: u32, arguments: &str) -> crate::common::Ran {
    let command = crate::common::PROGRAM;
    bench.shell(&format!("ulimit -d {kib}; exec '{command}' {arguments}"))
}

#[test]
fn a_pool_is_made_used_and_opened_again_within_600_mb() {
    let bench = Bench::new();
    limited(&bench, 600_000, "create a.pool --medium journal").ok();
    limited(&bench, 600_000, "put a.pool key value").ok();
    let got = limited(&bench, 600_000, "get a.pool key").ok();
    assert_eq!(got.stdout, b"value");
    // A server's store has two roots more.
    let served = limited(
        &bench,
        600_000,
        "torture --server --kills 1 --medium journal --dir .",
    );
    served.ok();
}

/// Data that does not fit is refused with an error that says what to do, and acknowledged data is
/// there.
#[test]
fn data_beyond_the_limit_is_an_error_and_loses_nothing() {
    let bench = Bench::new();
    let mut rows = String::from("key,value\n");
    for i in 0..400_000 {
        writeln!(rows, "{i:08},{i:0200}").expect("a string");
    }
    std::fs::write(bench.path("rows.csv"), rows).expect("a file");
    bench.run(&["create", "a.pool", "--medium", "journal"]).ok();
    let import = "import a.pool rows.csv --key key";
    let refused = limited(&bench, 120_000, import);
    let refused = refused.fails(&["out of space", "ulimit -d"]);
    assert!(
        !refused.stderr.contains("memory allocation"),
        "{}",
        refused.stderr
    );

    let kept = bench.run(&["check", "a.pool", "--json"]).ok().json();
    assert!(
        kept["entries"].as_u64().expect("a count") > 10_000,
        "{kept}"
    );
    // Without the limit all of it fits.
    bench
        .run(&["import", "a.pool", "rows.csv", "--key", "key"])
        .ok();
    let whole = bench.run(&["check", "a.pool", "--json"]).ok().json();
    assert_eq!(whole["entries"], 400_000);
}
