//! The crash-state explorer from the command line: its reports, its findings, its refusals.

use crate::common::{Bench, Ran};
use serde_json::Value;

/// A violation's token for an image of one workload.
const TOKEN: &str = "1~lbtree-256-u64~x86-tso~split.30.1~-~-~450.0~2000:1~-";
/// A violation's token for a schedule.
const SCHEDULE: &str = "1t~lbtree-256-u64~x86-tso~2.4.1.1~-";

fn crash(b: &Bench, args: &[&str]) -> Ran {
    b.run(&[&["crash"], args].concat())
}

/// Asserts that an exploration's report has every field that scripts rely on.
#[track_caller]
fn fields(report: &Value) {
    for field in ["index", "model", "workload"] {
        assert!(report[field].is_string(), "{field}: {report}");
    }
    for field in [
        "ops",
        "threads",
        "crash_points",
        "images",
        "kills",
        "killed_images",
        "violations",
        "leaks",
        "progress_failures",
    ] {
        assert!(report[field].is_u64(), "{field}: {report}");
    }
    for field in ["exhaustive_share", "seconds"] {
        let number = report[field].as_f64();
        assert!(number.is_some_and(|n| n >= 0.0), "{field}: {report}");
    }
    let replay = report.get("replay").expect("replay");
    let found = report["violations"].as_u64() > Some(0);
    assert_eq!(replay.is_string(), found, "{report}");
}

/// Explores with a planted fault. Returns the token of the first violation.
#[track_caller]
fn found(b: &Bench, args: &[&str], parts: &[&str]) -> String {
    let ran = crash(b, &[args, &["--json"]].concat()).ends(1, parts);
    let report = ran.json();
    fields(&report);
    let token = report["replay"].as_str().expect("a token").to_owned();
    assert!(
        ran.stderr
            .contains(&format!("bristlecone-lab crash --replay '{token}'")),
        "{}",
        ran.stderr
    );
    token
}

#[test]
fn a_small_exploration_reports_every_field_and_finds_nothing() {
    let b = Bench::new();
    let args = ["--index", "lbtree-256-u64", "--ops", "12", "--json"];
    let ran = crash(&b, &args).ok();
    let report = ran.json();
    fields(&report);
    assert_eq!(report["index"], "lbtree-256-u64");
    assert_eq!(report["model"], "x86-tso");
    assert_eq!(
        (&report["ops"], &report["threads"]),
        (&12.into(), &1.into())
    );
    assert_eq!(report["violations"], 0);
    assert!(report["images"].as_u64() > Some(100), "{report}");
    assert!(report["exhaustive_share"].as_f64() > Some(0.9), "{report}");
    assert_eq!(ran.text().lines().count(), 1, "all else is for a person");
    assert!(ran.stderr.contains("0 violations"), "{}", ran.stderr);
    let again = crash(&b, &args).ok().json();
    // The choice of the images with further checks depends on how the workers share them, so their
    // number varies.
    for same in ["crash_points", "exhaustive_share"] {
        assert_eq!(report[same], again[same], "the seed decides");
    }
    assert!(
        std::fs::read_dir(b.dir()).unwrap().next().is_none(),
        "files were left behind"
    );
}

#[test]
fn several_designs_and_models_are_an_array() {
    let b = Bench::new();
    let args = "--index lbtree,reference-array,reference-array --model all --nested --workload split --ops 8 --json";
    let args: Vec<&str> = args.split(' ').collect();
    let report = crash(&b, &args).ok().json();
    let all = report.as_array().expect("an array");
    assert_eq!(
        all.len(),
        6 * 3,
        "five trees and the array, each once: {report}"
    );
    for one in all {
        fields(one);
        assert_eq!(one["violations"], 0, "{one}");
        assert_eq!(one["workload"], "split");
    }
    for model in ["x86-tso", "armv8", "eadr"] {
        assert_eq!(all.iter().filter(|one| one["model"] == model).count(), 6);
    }
    let nested = all
        .iter()
        .filter(|one| one["nested_images"].as_u64() > Some(0));
    assert!(nested.count() > 0, "{report}");
}

#[test]
fn threads_are_explored_and_replayed() {
    let b = Bench::new();
    let args = [
        "--index",
        "lbtree-256-u64",
        "--threads",
        "3",
        "--schedules",
        "40",
    ];
    let report = crash(&b, &[&args[..], &["--ops", "5", "--json"]].concat())
        .ok()
        .json();
    fields(&report);
    assert_eq!((&report["threads"], &report["ops"]), (&3.into(), &5.into()));
    assert_eq!(report["violations"], 0);
    assert!(report["crash_points"].as_u64() > Some(40), "{report}");

    let planted = "--index lbtree-256-u64 --threads 2 --schedules 300 --plant";
    let planted: Vec<&str> = planted.split(' ').chain(["unlock before fence"]).collect();
    let token = found(&b, &planted, &["visible before durable", "had seen"]);
    assert!(token.starts_with("1t~"), "{token}");
    crash(&b, &["--replay", &token]).ends(1, &["visible before durable"]);
    let well = token.replace("unlock-before-fence", "-");
    crash(&b, &["--replay", &well]).ends(0, &["goes well"]);
}

#[test]
fn designs_for_one_thread_are_left_out_or_refused_with_threads() {
    let b = Bench::new();
    let threads = ["--threads", "2", "--schedules", "2", "--json"];
    let with = |index| crash(&b, &[&["--index", index], &threads[..]].concat());
    let ran = with("all").ends(0, &["reference-blocks takes one thread at a time"]);
    let all = ran.json();
    let all = all.as_array().expect("an array");
    assert!(all.len() > 5 && all.iter().all(|one| one["index"] != "reference-blocks"));
    with("reference-blocks").ends(2, &["--threads 2", "reference-blocks", "--index"]);
    with("reference-array,pool").ends(0, &["pool takes one thread at a time and is left out"]);
}

#[test]
fn a_planted_fault_is_found_and_its_token_recovers_that_image() {
    let b = Bench::new();
    // Only recovery differs, so the same image exists without the fault.
    let planted = "--index pool --workload drain --ops 30 --plant pool-unowned-kept";
    let planted: Vec<&str> = planted.split(' ').collect();
    let token = found(&b, &planted, &["space leaked", "operations:", "crash "]);
    crash(&b, &["--replay", &token]).ends(1, &["space leaked", &token]);
    let well = token.replace("plant:pool-unowned-kept", "-");
    assert_ne!(token, well);
    crash(&b, &["--replay", &well]).ends(0, &["recovered well"]);
    // One token keeps more stores than there are, and one names a word without any.
    let (most, _) = token.rsplit_once(':').expect("a decision");
    let decided = token.strip_suffix("~-").expect("no crash in recovery");
    for odd in [format!("{most}:60000~-"), format!("{decided}_ffffffff:0~-")] {
        crash(&b, &["--replay", &odd]).ends(1, &["no such image", "other stores are pending"]);
    }

    // With the right line flushed, a crash cannot lose the store that this image lost.
    let planted = "--index lbtree-256-bytes --workload split --ops 2 --plant lbtree-record-line";
    let planted: Vec<&str> = planted.split(' ').collect();
    let parts = ["stores that the crash lost", "crates/index/src/record.rs:"];
    let token = found(&b, &planted, &parts);
    crash(&b, &["--replay", &token]).ends(1, &parts);
    let gone = token.replace("plant:lbtree-record-line", "-");
    crash(&b, &["--replay", &gone]).ends(1, &["no such image"]);
}

#[test]
fn a_crash_in_recovery_is_replayed() {
    let b = Bench::new();
    let planted = "--index reference-blocks:log-cleared-first --nested --workload update --ops 90";
    let planted: Vec<&str> = planted.split(' ').collect();
    // A power cut after a kill finds the fault, too. Which is first differs from run to run.
    let token = (1..=20)
        .map(|seed| {
            let seed = seed.to_string();
            let seeded = [&planted[..], &["--seed", &seed]].concat();
            found(&b, &seeded, &["operation torn"])
        })
        .find(|token| !token.contains("~kill~"))
        .expect("a crash in recovery");
    crash(&b, &["--replay", &token]).ends(1, &["operation torn", "again in the recovery"]);
    let right = token.replace(":log-cleared-first", "");
    // The log still exists while the replayed stores are not durable.
    crash(&b, &["--replay", &right]).ends(1, &["no such image", "of recovery"]);
}

#[test]
fn a_power_cut_after_a_kill_is_replayed() {
    let b = Bench::new();
    let args = "--index pool --kills --workload drain --ops 30";
    let args: Vec<&str> = args.split(' ').collect();
    let right = crash(&b, &[&args[..], &["--json"]].concat()).ok().json();
    let kills = right["kills"].as_u64();
    assert!(kills > Some(0), "{right}");
    assert!(right["killed_images"].as_u64() > kills, "{right}");
    let planted = [&args[..], &["--plant", "pool-kill-forgotten"]].concat();
    let parts = ["  kill ", "and a power cut in the recovery"];
    let token = found(&b, &planted, &parts);
    assert!(token.contains("~kill~"), "{token}");
    crash(&b, &["--replay", &token]).ends(1, &parts);
}

#[test]
fn mutants_report_every_field() {
    let b = Bench::new();
    let args = "--index reference-array --mutants --ops 16 --budget 60 --json";
    let args: Vec<&str> = args.split(' ').collect();
    let ran = crash(&b, &args).ok();
    let report = ran.json();
    assert_eq!(report["index"], "reference-array");
    assert_eq!(report["model"], "x86-tso");
    let (sites, killed) = (report["sites"].as_u64(), report["killed"].as_u64());
    assert!(sites > Some(3) && killed >= sites, "{report}");
    for list in ["survivors", "unneeded", "undecided", "waste"] {
        assert_eq!(report[list].as_array().map(Vec::len), Some(0), "{report}");
    }
    assert!(
        ran.stderr.contains("killed    research/crash/"),
        "{}",
        ran.stderr
    );
}

#[test]
fn mutants_of_some_sources_only() {
    let b = Bench::new();
    let args =
        "--index reference-array --mutants --ops 16 --budget 60 --only research/crash --json";
    let args: Vec<&str> = args.split(' ').collect();
    let ran = crash(&b, &args).ok();
    assert!(ran.json()["killed"].as_u64() > Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("killed    research/crash/"));
    assert!(!ran.stderr.contains("killed    crates/pmem/"));
    let args = "--index reference-array --mutants --ops 16 --only nowhere";
    let args: Vec<&str> = args.split(' ').collect();
    crash(&b, &args).ends(2, &["--only", "reference-array", "\"nowhere\""]);
}

#[test]
fn what_is_undecided_is_no_success() {
    let b = Bench::new();
    let args = "--index reference-array --mutants --ops 16 --budget 0.000001 --json";
    let args: Vec<&str> = args.split(' ').collect();
    let ran = crash(&b, &args).ends(1, &["undecided", "--budget"]);
    let report = ran.json();
    let undecided = report["undecided"].as_array().map(Vec::len);
    assert!(undecided > Some(0), "{report}");
}

#[test]
fn where_flushes_are_nothing_they_are_no_mutants() {
    let b = Bench::new();
    let args = "--index reference-array --model eadr --mutants --ops 16 --json";
    let args: Vec<&str> = args.split(' ').collect();
    let ran = crash(&b, &args).ok();
    let report = ran.json();
    assert!(report["without_effect"].as_u64() > Some(0), "{report}");
    assert_eq!(report["orderings"], 0, "{report}");
    assert!(report["killed"].as_u64() > Some(0), "{report}");
    assert_eq!(
        report["survivors"].as_array().map(Vec::len),
        Some(0),
        "{report}"
    );
    assert!(!ran.stderr.contains("(flush)"), "{}", ran.stderr);
}

#[test]
fn a_design_that_is_wrong_has_no_mutants() {
    let b = Bench::new();
    let args = "--index reference-array:counter-first --mutants --ops 16 --budget 1";
    let args: Vec<&str> = args.split(' ').collect();
    crash(&b, &args).fails(&["reference-array:counter-first", "fails unmutated"]);
}

#[test]
fn nonsense_is_named() {
    let b = Bench::new();
    for (args, parts) in [
        (
            &["--index", "lbtre"][..],
            &["--index \"lbtre\"", "lbtree-256-u64", "pool"][..],
        ),
        (&["--index", ""], &["--index \"\""]),
        (&["--index", "pool,,lbtree"], &["--index \"\""]),
        (&["--index", "all,nothing"], &["--index \"nothing\""]),
        (
            &["--model", "x86"],
            &["--model \"x86\"", "x86-tso", "armv8", "eadr", "all"],
        ),
        (
            &["--workload", "walk"],
            &["--workload \"walk\"", "mixed", "upkeep", "all"],
        ),
        (
            &["--plant", "weeds"],
            &["--plant \"weeds\"", "lbtree-header-first"],
        ),
        (&["--ops", "0"], &["--ops", "0"]),
        (&["--ops", "100001"], &["--ops", "100001"]),
        (&["--ops", "-1"], &["-1"]),
        (&["--ops", "18446744073709551616"], &["--ops"]),
        (&["--threads", "0"], &["--threads", "0"]),
        (&["--threads", "9"], &["--threads", "9"]),
        (&["--threads", "8", "--ops", "9"], &["--ops 9", "at most 8"]),
        (&["--schedules", "5"], &["--schedules", "--threads 2"]),
        (
            &["--schedules", "5", "--threads", "1"],
            &["--schedules", "--threads 2"],
        ),
        (
            &["--schedules", "0", "--threads", "2"],
            &["--schedules", "0"],
        ),
        (&["--budget", "-1"], &["--budget", "-1", "above 0"]),
        (&["--budget", "0"], &["--budget", "above 0"]),
        (&["--budget", "NaN"], &["--budget", "NaN"]),
        (&["--budget", "inf"], &["--budget", "inf"]),
        (&["--seed", "-1"], &["-1"]),
        (
            &["--mutants", "--threads", "2"],
            &["--mutants", "--threads"],
        ),
        (
            &["--mutants", "--plant", "pool-root-first"],
            &["--mutants", "--plant"],
        ),
        (&["--only", "crates"], &["--mutants"]),
        (&["--replay", TOKEN, "--index", "pool"], &["--replay"]),
        (&["--replay", TOKEN, "--mutants"], &["--replay"]),
        (
            &["--replay", TOKEN, "--plant", "pool-root-first"],
            &["--replay"],
        ),
        (&["--replay"], &["--replay"]),
        (&["lbtree"], &["lbtree"]),
    ] {
        crash(&b, args).ends(2, parts);
    }
}

#[test]
fn malformed_tokens_say_which_part() {
    let b = Bench::new();
    let image = |from: &str, to: &str| (TOKEN.replacen(from, to, 1), 2);
    let schedule = |from: &str, to: &str| (SCHEDULE.replacen(from, to, 1), 2);
    for ((token, status), part) in [
        ((String::new(), 2), "form"),
        (("nonsense".into(), 2), "form"),
        (("1~pool~eadr".into(), 2), "form"),
        ((TOKEN.replace('~', " "), 2), "form"),
        (image("1~", "9~"), "version"),
        (image("x86-tso", "z80"), "model"),
        (image("lbtree-256-u64", "lbtree"), "\"lbtree\""),
        (image("split.30.1", "walk.30.1"), "workload"),
        (image("split.30.1", "split.0.1"), "workload"),
        (image("split.30.1", "split.99999999999.1"), "workload"),
        (image("split.30.1", "split.30.-1"), "workload"),
        (image("split.30.1~-", "split.30.1~xyz"), "kept bits"),
        (image("~-~450", "~crates/x.rs:1~450"), "switched-off site"),
        (image("~-~450", "~plant:weeds~450"), "planted fault"),
        (image("450.0", "450"), "crash point"),
        (image("450.0", "x.0"), "crash point"),
        (image("450.0", "450.2"), "crash point"),
        (image("2000:1", "2000"), "decisions"),
        (image("2000:1", "2000:1_"), "decisions"),
        (image("2000:1", "2000:70000"), "decisions"),
        (image("2000:1", "fffffffff:1"), "decisions"),
        (image("2000:1~-", "2000:1~7~-"), "crash point"),
        ((format!("{TOKEN}~-~-"), 2), "crash in recovery"),
        // The token is well-formed, but there is no such crash.
        ((TOKEN.replace("2000:1", "ffffffff:1"), 1), "no such image"),
        ((TOKEN.replace("2000:1", "2000:60000"), 1), "no such image"),
        ((TOKEN.replace("450.0", "99999999.0"), 1), "no such image"),
        ((TOKEN.replace("450.0", "450.1"), 1), "no such image"),
        (
            (TOKEN.replace("2000:1~-", "-~99999999.0~-"), 1),
            "no such image",
        ),
        (
            (TOKEN.replace("2000:1~-", "-~1.0~ffffffff:1"), 1),
            "no such image",
        ),
        (schedule("1t~", "2t~"), "form"),
        (schedule("~-", ""), "form"),
        (schedule("lbtree-256-u64", "btree"), "\"btree\""),
        (schedule("lbtree-256-u64", "reference-blocks"), "one thread"),
        (schedule("x86-tso", "mips"), "model"),
        (schedule("2.4.1.1", "0.4.1.1"), "threads.operations"),
        (schedule("2.4.1.1", "9.4.1.1"), "threads.operations"),
        (schedule("2.4.1.1", "2.40.1.1"), "threads.operations"),
        (schedule("2.4.1.1", "2.x.4.1.1"), "threads.operations"),
        (schedule("2.4.1.1", "2.4.1"), "threads.operations"),
        (schedule("1~-", "1~weeds"), "planted fault"),
    ] {
        crash(&b, &["--replay", &token]).ends(status, &["--replay", part]);
    }
    let last = SCHEDULE.replace("2.4.1.1", &format!("2.4.{0}.{0}", u64::MAX));
    crash(&b, &["--replay", &last]).ends(0, &["goes well"]);
}

#[test]
fn help_shows_what_may_be_asked() {
    let b = Bench::new();
    let text = crash(&b, &["--help"]).ok().text();
    for part in [
        "--index",
        "--model",
        "armv8",
        "--ops",
        "--threads",
        "--nested",
        "--kills",
        "--workload",
        "--seed",
        "--mutants",
        "--budget",
        "--replay",
        "--json",
        "Exit status",
    ] {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    assert!(!text.contains("--plant"), "for tests only: {text}");
}
