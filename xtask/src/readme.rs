//! Runs the shell blocks of the README and of the book's pages, so that what they tell people to
//! type works.
//!
//! The word after the fence decides:
//!
//! | fence | what happens |
//! | --- | --- |
//! | `sh` | runs in a scratch folder that all such blocks of the document share, in order, with `bristlecone` and `bristlecone-lab` on the PATH |
//! | `sh checkout` | runs in the repository's root |
//! | `sh ci` | each line must stand in `.ci/run`, which runs it |
//! | anything else | not a command |
//!
//! Where the workspace was built before, what `cargo run` of a block would build another time, with
//! other features, need not be: see [`with_what_is_built`].

use crate::book;
use crate::tools::{self, Outcome, say};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// The commands that blocks may run, and the packages that build them.
const PROGRAMS: [(&str, &str); 2] = [
    ("bristlecone", "bristlecone-cli"),
    ("bristlecone-lab", "bristlecone-lab-cli"),
];

/// Where a block runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Scratch,
    Checkout,
    Ci,
}

#[derive(Debug, PartialEq, Eq)]
struct Block {
    place: Place,
    /// Line of the opening fence, from 1.
    line: usize,
    text: String,
}

/// The shell blocks of `document`, whose text is `text`, in order.
fn blocks(document: &str, text: &str) -> Outcome<Vec<Block>> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(info) = line.strip_prefix("```") else {
            continue;
        };
        let place = match info.trim() {
            "sh" => Some(Place::Scratch),
            "sh checkout" => Some(Place::Checkout),
            "sh ci" => Some(Place::Ci),
            other if other.split_whitespace().next() == Some("sh") => {
                return Err(format!(
                    "{document}:{}: `{other}`: after sh there may be `checkout` or `ci`",
                    at + 1
                ));
            }
            _ => None,
        };
        let mut body = String::new();
        loop {
            match lines.next() {
                Some((_, line)) if line.trim_end() == "```" => break,
                Some((_, line)) => {
                    body.push_str(line);
                    body.push('\n');
                }
                None => return Err(format!("{document}:{}: the block is never closed", at + 1)),
            }
        }
        if let Some(place) = place {
            found.push(Block {
                place,
                line: at + 1,
                text: body,
            });
        }
    }
    Ok(found)
}

/// Lines of a `sh ci` block that `.ci/run` does not have.
fn missing_in_ci(block: &Block, ci: &str) -> Vec<String> {
    let commands = block
        .text
        .lines()
        .map(|l| l.split('#').next().unwrap_or("").trim());
    commands
        .filter(|c| !c.is_empty() && !ci.lines().any(|l| l.contains(c)))
        .map(str::to_owned)
        .collect()
}

/// A document and its shell blocks.
struct Document {
    name: String,
    blocks: Vec<Block>,
}

/// The documents that have shell blocks: those that are named, or else the README and every page of
/// the book.
fn documents(root: &Path, named: &[String]) -> Outcome<Vec<Document>> {
    let read = |name: &str| read(root, name);
    let names = if named.is_empty() {
        let readme = std::iter::once("README.md".to_owned());
        readme.chain(book::pages(&read(book::SUMMARY)?)).collect()
    } else {
        named.to_vec()
    };
    let mut documents = Vec::new();
    for name in names {
        let blocks = blocks(&name, &read(&name)?)?;
        let asked_for = name == "README.md" || !named.is_empty();
        if blocks.is_empty() && asked_for {
            return Err(format!(
                "{name}: no block is marked ```sh; it should tell people what to type"
            ));
        }
        if !blocks.is_empty() {
            documents.push(Document { name, blocks });
        }
    }
    Ok(documents)
}

fn read(root: &Path, name: &str) -> Outcome<String> {
    std::fs::read_to_string(root.join(name)).map_err(|e| format!("{name}: {e}"))
}

/// Lists every block of `named`, or of the README and the book if that is empty.
pub fn list(named: &[String]) -> Outcome {
    for Document { name, blocks } in documents(&tools::root(), named)? {
        for block in blocks {
            println!("{name}:{} {:?}\n{}", block.line, block.place, block.text);
        }
    }
    Ok(())
}

/// Returns a block's text with what is in the folder `programs` in the place of `cargo run`, and
/// with a check in the place of `cargo build`.
fn with_what_is_built(text: &str, programs: &Path) -> Outcome<String> {
    let mut built = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let line = match words[..] {
            ["cargo", "run", "--release", "--", ..] => {
                format!("bristlecone {}", words[4..].join(" "))
            }
            ["cargo", "run", "--release", "-p", _, "--example", example] => programs
                .join("examples")
                .join(example)
                .display()
                .to_string(),
            ["cargo", "build", "--release", ..] => "cargo check --quiet".to_owned(),
            ["cargo", ..] => {
                return Err(format!(
                    "`{line}`: nothing is built in its place; leave out --built"
                ));
            }
            _ => line.to_owned(),
        };
        built.push_str(&line);
        built.push('\n');
    }
    Ok(built)
}

/// Runs them, with the commands in the folder `programs`, or with those that it builds. `built`:
/// programs and examples are all there.
pub fn run(programs: Option<&Path>, built: bool, named: &[String]) -> Outcome {
    let root = tools::root();
    let mut documents = documents(&root, named)?;
    let programs = match programs {
        Some(programs) => std::path::absolute(programs).map_err(|e| e.to_string())?,
        None => build(&documents)?,
    };
    if built {
        let blocks = documents
            .iter_mut()
            .flat_map(|document| &mut document.blocks);
        for block in blocks.filter(|block| block.place == Place::Checkout) {
            block.text = with_what_is_built(&block.text, &programs)?;
        }
    }
    let path = std::env::join_paths(std::iter::once(programs).chain(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    )))
    .map_err(|e| format!("PATH: {e}"))?;
    let ci = read(&root, ".ci/run")?;
    let mut ran = 0;
    for document in &documents {
        document.run(&root, &path, &ci)?;
        ran += document.blocks.len();
    }
    let how = if built {
        "with what was built before"
    } else {
        "as they are written"
    };
    println!(
        "{ran} shell blocks of {} documents ran {how}",
        documents.len()
    );
    Ok(())
}

/// Builds the commands that documents run. Returns the folder that they are in.
fn build(documents: &[Document]) -> Outcome<PathBuf> {
    let mut build = tools::cargo();
    build.args(["build", "--release"]);
    for (program, package) in PROGRAMS {
        if documents.iter().any(|document| document.runs(program)) {
            build.args(["--package", package]);
        }
    }
    tools::run(&mut build)?;
    Ok(tools::target_dir()?.join("release"))
}

impl Document {
    /// Whether a block that runs in the scratch folder begins a line with `program`.
    fn runs(&self, program: &str) -> bool {
        let scratch = self.blocks.iter().filter(|b| b.place == Place::Scratch);
        let mut lines = scratch.flat_map(|block| block.text.lines());
        lines.any(|line| line.split_whitespace().next() == Some(program))
    }

    fn run(&self, root: &Path, path: &OsStr, ci: &str) -> Outcome {
        let scratch = tempfile::tempdir().map_err(|e| format!("a scratch folder: {e}"))?;
        for block in &self.blocks {
            let place = format!("{}:{}", self.name, block.line);
            let start = Instant::now();
            match block.place {
                Place::Ci => {
                    let missing = missing_in_ci(block, ci);
                    if !missing.is_empty() {
                        let missing = missing.join("; ");
                        return Err(format!("{place}: .ci/run does not run: {missing}"));
                    }
                }
                Place::Scratch => shell(&place, block, scratch.path(), path)?,
                Place::Checkout => shell(&place, block, root, path)?,
            }
            say(format!(
                "{place}: ok, {:.1} s",
                start.elapsed().as_secs_f64()
            ));
        }
        Ok(())
    }
}

fn shell(place: &str, block: &Block, folder: &Path, path: &OsStr) -> Outcome {
    say(format!("{place}:"));
    let status = tools::as_from_a_shell(&mut Command::new("bash"))
        .args(["-euo", "pipefail", "-x", "-c", &block.text])
        .env("PATH", path)
        .current_dir(folder)
        .stdin(std::process::Stdio::null())
        .status()
        .map_err(|e| format!("bash could not start: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!(
            "{place}: the block that begins there ended with {status}; the last line above that begins with + is the command"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_their_place_and_line() {
        let text = "a\n```sh\none\ntwo\n```\n```rust\nlet x = \"```sh\";\n```\n\n```sh checkout\nthree\n```\n```sh ci\nfour # why\n```\n";
        let found = blocks("x.md", text).expect("well-formed");
        let block = |place, line, text: &str| Block {
            place,
            line,
            text: text.into(),
        };
        assert_eq!(
            found,
            [
                block(Place::Scratch, 2, "one\ntwo\n"),
                block(Place::Checkout, 10, "three\n"),
                block(Place::Ci, 13, "four # why\n"),
            ]
        );
    }

    #[test]
    fn what_is_built_takes_the_place_of_cargo() {
        let with = |text| with_what_is_built(text, Path::new("/built"));
        let text = "cargo run --release -- demo\ncargo build --release   # why\nls\n";
        let expected = "bristlecone demo\ncargo check --quiet\nls\n";
        assert_eq!(with(text).as_deref(), Ok(expected));
        let example = "cargo run --release -p bristlecone --example queue";
        assert_eq!(with(example).as_deref(), Ok("/built/examples/queue\n"));
        assert!(with("cargo bench\n").is_err_and(|e| e.contains("cargo bench")));
    }

    #[test]
    fn a_slip_in_a_fence_is_an_error_that_names_the_line() {
        assert!(blocks("a.md", "x\n```sh chekout\n```\n").is_err_and(|e| e.contains("a.md:2")));
        assert!(blocks("a.md", "```sh\nls\n").is_err_and(|e| e.contains("never closed")));
    }

    #[test]
    fn ci_blocks_are_compared_with_the_script_without_their_comments() {
        let block = Block {
            place: Place::Ci,
            line: 1,
            text: "cargo a  # comment\n\ncargo b\n".into(),
        };
        assert_eq!(missing_in_ci(&block, "step x cargo a\n"), ["cargo b"]);
        assert!(missing_in_ci(&block, "cargo a\nstep cargo b --all\n").is_empty());
    }
}
