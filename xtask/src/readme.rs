//! Runs the README's shell blocks, so that what it tells people to type works.
//!
//! The word after the fence decides:
//!
//! | fence | what happens |
//! | --- | --- |
//! | `sh` | runs in a scratch folder that all such blocks share, in order, with `bristlecone` on the PATH |
//! | `sh checkout` | runs in the repository's root |
//! | `sh ci` | each line must stand in `.ci/run`, which runs it |
//! | anything else | not a command |

use crate::tools::{self, Outcome, say};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

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

/// The shell blocks of `text`, in order.
fn blocks(text: &str) -> Outcome<Vec<Block>> {
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
                    "README.md:{}: `{other}`: after sh there may be `checkout` or `ci`",
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
                None => return Err(format!("README.md:{}: the block is never closed", at + 1)),
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

/// Runs every block, or lists them.
pub fn run(list: bool) -> Outcome {
    let root = tools::root();
    let read =
        |name: &str| std::fs::read_to_string(root.join(name)).map_err(|e| format!("{name}: {e}"));
    let blocks = blocks(&read("README.md")?)?;
    if blocks.is_empty() {
        return Err(
            "README.md: no block is marked ```sh; it should tell people what to type".into(),
        );
    }
    if list {
        for block in &blocks {
            println!("README.md:{} {:?}\n{}", block.line, block.place, block.text);
        }
        return Ok(());
    }

    tools::run(tools::cargo().args([
        "build",
        "--release",
        "--package",
        "bristlecone-cli",
        "--package",
        "bristlecone-lab-cli",
    ]))?;
    let path = std::env::join_paths(std::iter::once(tools::target_dir().join("release")).chain(
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()),
    ))
    .map_err(|e| format!("PATH: {e}"))?;
    let scratch = tempfile::tempdir().map_err(|e| format!("a scratch folder: {e}"))?;
    let ci = read(".ci/run")?;
    for block in &blocks {
        let start = Instant::now();
        match block.place {
            Place::Ci => {
                let missing = missing_in_ci(block, &ci);
                if !missing.is_empty() {
                    return Err(format!(
                        "README.md:{}: .ci/run does not run: {}",
                        block.line,
                        missing.join("; ")
                    ));
                }
            }
            Place::Scratch => shell(block, scratch.path(), &path)?,
            Place::Checkout => shell(block, &root, &path)?,
        }
        say(format!(
            "README.md:{}: ok, {:.1} s",
            block.line,
            start.elapsed().as_secs_f64()
        ));
    }
    println!(
        "README: {} shell blocks ran as they are written",
        blocks.len()
    );
    Ok(())
}

fn shell(block: &Block, folder: &Path, path: &std::ffi::OsStr) -> Outcome {
    say(format!("README.md:{}:", block.line));
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
            "README.md:{}: the block that begins there ended with {status}; the last line above that begins with + is the command",
            block.line
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_their_place_and_line() {
        let text = "a\n```sh\none\ntwo\n```\n```rust\nlet x = \"```sh\";\n```\n\n```sh checkout\nthree\n```\n```sh ci\nfour # why\n```\n";
        let found = blocks(text).expect("well-formed");
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
    fn a_slip_in_a_fence_is_an_error_that_names_the_line() {
        assert!(blocks("x\n```sh chekout\n```\n").is_err_and(|e| e.contains("README.md:2")));
        assert!(blocks("```sh\nls\n").is_err_and(|e| e.contains("never closed")));
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
