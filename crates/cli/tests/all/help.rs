//! Completions and manual pages are made from what the command takes.

use crate::common::Bench;

#[test]
fn shells_complete_all_commands() {
    let b = Bench::new();
    for (shell, sign) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef bristlecone"),
        ("fish", "complete -c bristlecone"),
    ] {
        let script = b.run(&["completions", shell]).ok().text();
        for part in [sign, "repair", "skip-damaged", "tls-cert"] {
            assert!(script.contains(part), "{shell}: {part}");
        }
    }
    b.run(&["completions", "csh"]).ends(2, &["csh", "bash"]);
}

#[test]
fn every_command_has_a_page() {
    let b = Bench::new();
    b.run(&["man", "none"]).ends(2, &["none", "make it"]);
    std::fs::create_dir(b.path("man1")).unwrap();
    b.run(&["man", "man1"]).ok();
    let page = |name: &str| std::fs::read_to_string(b.path("man1").join(name)).unwrap();
    assert!(page("bristlecone.1").contains("bristlecone\\-repair(1)"));
    for (name, part) in [
        ("bristlecone-repair.1", "mended.db"),
        ("bristlecone-serve.1", "tls\\-cert"),
        ("bristlecone-export.1", "skip\\-damaged"),
    ] {
        assert!(page(name).contains(part), "{name}");
    }
}
