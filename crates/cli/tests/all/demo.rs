//! The demo tells its story, in few lines, and what it proposes works.

use crate::common::Bench;

#[test]
fn the_demo_shows_the_main_job() {
    let b = Bench::new();
    let ran = b.run(&["demo", "--dir", "pools"]).ok();
    let text = ran.text();
    assert!(text.lines().count() < 40, "{} lines", text.lines().count());
    for part in [
        "acknowledged writes survive",
        "34,006 rows",
        "CC BY 4.0",
        "\"name\":\"Lyon\"",
        "IS/Reykjav",
        "kill -9",
        "Reopened in",
        "Every acknowledged row is there",
        "34,006 keys",
    ] {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
    assert!(
        !text.contains("rm -r"),
        "a directory that was named is not for removal"
    );
    // The commands that it ends with can be pasted (torture has tests of its own).
    let commands: Vec<_> = text
        .lines()
        .skip_while(|l| !l.starts_with("Yours to try"))
        .skip(1)
        .filter(|l| !l.contains(" torture "))
        .collect();
    assert!(commands.len() >= 4, "{text}");
    for command in commands {
        let ran = b.shell(command).ok();
        assert!(!ran.stdout.is_empty(), "{command}");
    }
    // A second run finds its own names and leaves the first one's pools alone.
    b.run(&["demo", "--dir", "pools"]).ok();
    assert!(b.path("pools/cities.pool").exists() && b.path("pools/cities-2.pool").exists());
}

#[test]
fn without_a_directory_the_demo_says_how_to_clean_up() {
    let b = Bench::new();
    let ran = b.run(&["demo"]).ok();
    let text = ran.text();
    let line = text
        .lines()
        .find(|l| l.contains("rm -r "))
        .expect("how to clean up");
    let folder = line.split_whitespace().nth(2).expect("a folder");
    assert!(folder.contains("bristlecone-demo-"), "{folder}");
    assert!(std::path::Path::new(folder).join("cities.pool").exists());
    b.shell(line).ok();
    assert!(!std::path::Path::new(folder).exists());
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let b = Bench::new();
    b.file("file", "x");
    b.run(&["demo", "--dir", "file"])
        .fails(&["file", "directory"]);
}
