//! Every example runs to its end, as it is. `cargo test` has built them beside this test.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Examples that another feature has to be on for.
const OF_FEATURES: [(&str, bool); 1] = [("migrate", cfg!(feature = "import"))];

/// The folder that cargo builds examples into.
fn built() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/PROFILE/deps/examples-HASH
    test.ancestors().nth(2).unwrap().join("examples")
}

#[test]
fn every_example_ends_with_status_0() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<_> = std::fs::read_dir(sources)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|source| source.file_stem().unwrap().to_owned())
        .collect();
    names.sort();
    assert_eq!(names.len(), 9, "{names:?}");
    for name in names {
        let feature = OF_FEATURES.iter().find(|(other, _)| name == **other);
        if feature.is_some_and(|(_, on)| !on) {
            continue;
        }
        let program = built().join(&name);
        let ran = Command::new(&program).output().unwrap_or_else(|e| {
            let program = program.display();
            panic!("{program}: {e}; `cargo build -p bristlecone --examples` builds it")
        });
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{name:?}: {said}");
        assert!(!ran.stdout.is_empty(), "{name:?} shows nothing");
    }
}
