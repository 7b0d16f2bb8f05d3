//! Power cuts over the system calls of a writer.

use super::common::{Bench, Ran};
use std::process::Command;

/// Whether there is `strace`. With `BRISTLECONE_NEED_STRACE`, as in CI, there has to be.
fn has_strace() -> bool {
    let has = Command::new("strace").arg("-V").output().is_ok();
    assert!(
        has || std::env::var_os("BRISTLECONE_NEED_STRACE").is_none(),
        "there is no strace"
    );
    has
}

fn run(bench: &Bench, arguments: &str) -> Ran {
    bench.run(&arguments.split(' ').collect::<Vec<_>>())
}

#[test]
fn images_are_recovered_and_reported() {
    if !has_strace() {
        return;
    }
    let bench = Bench::new();
    let arguments = "power-cut --images 60 --commits 40 --json --dir .";
    let report = run(&bench, arguments).ok().json();
    assert_eq!(
        (&report["images"], &report["wrong"]),
        (&60.into(), &0.into())
    );
    assert!(report["nested_images"].as_u64() > Some(0), "{report}");
    assert!(report["lossy"].as_u64() > Some(10), "{report}");
}

#[test]
fn a_planted_error_is_found_and_reproduced() {
    if !has_strace() {
        return;
    }
    for plant in ["skip-sync", "skip-journal", "skip-pool"] {
        let bench = Bench::new();
        let arguments =
            format!("power-cut --images 60 --commits 40 --plant {plant} --json --dir .");
        let ran = run(&bench, &arguments).ends(1, &["WRONG IMAGES", "lost: line"]);
        let report = ran.json();
        let (kept, found) = (&report["kept"], &report["found"][0]);
        let cut = found["cut"].as_str().unwrap();
        let again = format!(
            "power-cut --images 60 --plant {plant} --json --replay {} --cut {cut}",
            kept.as_str().unwrap()
        );
        let again = run(&bench, &again).ends(1, &["WRONG IMAGES"]).json();
        assert_eq!(again["found"][0]["lost"], found["lost"]);
        assert_eq!(again["wrong"], 1);
        // The image is left, and without the plant it is another one.
        let right = format!(
            "power-cut --images 60 --json --replay {}",
            kept.as_str().unwrap()
        );
        run(&bench, &right).ok();
    }
}

#[test]
fn wrong_usage_is_told() {
    let bench = Bench::new();
    let ends = |arguments: &str, status, part| {
        run(&bench, arguments).ends(status, &[part]);
    };
    ends("power-cut --cut 3", 2, "--replay");
    ends("power-cut --sector 1000", 2, "512");
    ends("power-cut --replay . --cut 3.x", 2, "17.3");
    ends("power-cut --replay .", 1, "trace");
}
