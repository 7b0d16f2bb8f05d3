//! The example of `docs/own-index.md`: it is measured, drawn and explored, and the explorer notices
//! each flush and fence that it could forget. `cargo test` has built it beside this test.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program that cargo has built of the example.
fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/PROFILE/deps/own_index-HASH
    let profile = test.ancestors().nth(2).unwrap();
    profile.join("examples/own_index")
}

fn run(dir: &Path, args: &[&str]) -> Output {
    let program = program();
    let ran = Command::new(&program).args(args).current_dir(dir).output();
    ran.unwrap_or_else(|e| {
        let program = program.display();
        panic!("{program}: {e}; `cargo build -p bristlecone-lab-cli --examples` builds it")
    })
}

/// Runs the program, which must end well. Returns its standard output and its standard error.
fn ok(dir: &Path, args: &[&str]) -> (String, String) {
    let ran = run(dir, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.success(), "{args:?}: {err}\n{out}");
    (out, err)
}

#[test]
fn it_is_short() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/own_index.rs");
    let lines = std::fs::read_to_string(source).unwrap().lines().count();
    assert!(lines < 150, "{lines} lines");
}

#[test]
fn it_is_measured_beside_a_peer() {
    let dir = tempfile::tempdir().unwrap();
    let here = [
        "bench",
        "--keys",
        "2K",
        "--path",
        ".",
        "--against",
        "btreemap",
    ];
    let (out, _) = ok(dir.path(), &here);
    assert!(out.contains("one-word (256-byte leaves)"), "{out}");
    assert!(out.contains("x btreemap"), "{out}");
    let mut left = std::fs::read_dir(dir.path()).unwrap();
    assert!(left.next().is_none(), "files were left behind");
}

#[test]
fn it_is_drawn_on_devices_and_workloads_of_files() {
    let dir = tempfile::tempdir().unwrap();
    let optane = include_str!("../../lab/devices/optane.toml");
    let mine = optane.replace("name = \"optane\"", "name = \"mine\"");
    std::fs::write(dir.path().join("mine.toml"), mine).unwrap();
    let mix = "name = \"session\"\nkeys = \"zipf\"\nlookup = 50\nupdate = 45\ninsert = 5\n";
    std::fs::write(dir.path().join("session.toml"), mix).unwrap();
    let (out, _) = ok(
        dir.path(),
        &[
            "figure",
            "--device",
            "mine.toml",
            "--workloads",
            "insert,remove,session.toml",
            "--beside",
            "wbtree",
            "--keys",
            "3K",
            "--ops",
            "1K",
            "--out",
            ".",
        ],
    );
    for part in ["one-word", "wbtree", "session", "device mine", "fences"] {
        assert!(out.contains(part), "no {part:?} in: {out}");
    }
    let rows = std::fs::read_to_string(dir.path().join("one-word-model.csv")).unwrap();
    assert_eq!(rows.lines().count(), 1 + 3 * 3 * 2, "{rows}");
    assert!(dir.path().join("one-word-model.svg").exists());
    let model = ["model", "--device", "./mine.toml", "--workload", "scan:5"];
    let (out, _) = ok(
        dir.path(),
        &[
            &model[..],
            &["--threads", "2", "--keys", "2K", "--ops", "500"],
        ]
        .concat(),
    );
    assert!(
        out.contains("one-word, leaves of 256 bytes, on mine"),
        "{out}"
    );
}

#[test]
fn no_crash_breaks_it() {
    let dir = tempfile::tempdir().unwrap();
    for model in ["x86-tso", "armv8"] {
        let nested = ["crash", "--model", model, "--nested", "--ops", "16"];
        let (_, err) = ok(dir.path(), &nested);
        for name in ["one-word-256-u64", "one-word-256-bytes"] {
            assert!(err.contains(&format!("{name} under {model}")), "{err}");
        }
    }
    let threads = ["crash", "--threads", "3", "--schedules", "200"];
    ok(dir.path(), &threads);
}

#[test]
fn the_loss_of_each_flush_and_fence_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    // Images are counted; the time only ends what hangs.
    let mutants = ["crash", "--mutants", "--only", "own_index.rs"];
    let (out, err) = ok(
        dir.path(),
        &[&mutants[..], &["--budget", "600", "--json"]].concat(),
    );
    assert!(out.contains("\"survivors\":[]"), "{out}\n{err}");
    assert!(!out.contains("\"sites\":0"), "{out}");
}

#[test]
fn a_token_of_another_structure_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let token = "1~lbtree-256-u64~x86-tso~split.2.1~-~-~3.0~-~-";
    let ran = run(dir.path(), &["crash", "--replay", token]);
    let err = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(2), "{err}");
    assert!(err.contains("lbtree-256-u64"), "{err}");
}
