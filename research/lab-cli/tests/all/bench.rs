//! The benchmarks run, and their JSON has the fields that scripts rely on.

use crate::common::Bench;

#[test]
fn micro_reports_every_field() {
    let b = Bench::new();
    let args = [
        "bench",
        "micro",
        "--index",
        "lbtree",
        "--keys",
        "20K",
        "--threads",
        "1",
        "--ops",
        "insert,lookup,update,scan,delete",
        "--medium",
        "mapped",
        "--path",
        ".",
        "--json",
    ];
    let report = b.run(&args).ok().json();
    for field in [
        "index",
        "medium",
        "keys",
        "value_bytes",
        "threads",
        "seed",
        "pm_bytes_per_entry",
        "dram_bytes_per_entry",
        "recovery_ms",
        "clean_open_ms",
    ] {
        assert!(!report[field].is_null(), "{field}: {report}");
    }
    assert_eq!(report["keys"], 20_000);
    for op in ["insert", "lookup", "update", "scan", "delete"] {
        for field in [
            "mops",
            "ns_per_op",
            "p50_ns",
            "p99_ns",
            "lines_per_op",
            "fences_per_op",
        ] {
            let number = report["ops"][op][field].as_f64();
            assert!(number.is_some_and(|n| n >= 0.0), "{op}.{field}: {report}");
        }
        assert!(report["ops"][op]["mops"].as_f64().is_some_and(|n| n > 0.0));
    }
    assert!(
        std::fs::read_dir(b.dir()).unwrap().next().is_none(),
        "files were left behind"
    );
}

#[test]
fn limits_reports_every_field() {
    let b = Bench::new();
    let report = b
        .run(&["bench", "limits", "--json", "--path", "."])
        .ok()
        .json();
    for field in [
        "flush_fence_ns",
        "flush_extra_line_ns",
        "fence_ns",
        "dram_miss_ns",
        "memcpy_gbps",
        "fdatasync_us",
        "cpu",
        "flush_instruction",
    ] {
        assert!(!report[field].is_null(), "{field}: {report}");
    }
}

#[test]
fn what_cannot_be_measured_is_named() {
    let b = Bench::new();
    b.run(&["bench", "limits", "--path", "absent"])
        .fails(&["absent: not a directory"]);
    b.run(&["bench", "micro", "--path", "absent"])
        .fails(&["absent: not a directory"]);
    b.run(&["bench", "micro", "--ops", "juggle"])
        .ends(2, &["juggle"]);
    b.run(&["bench", "micro", "--against", "oracle"])
        .ends(2, &["oracle"]);
    b.run(&["bench", "micro", "--threads", "0"])
        .ends(2, &["--threads"]);
}
