//! Checks that references in sources and documents lead somewhere.
//!
//! | reference | must be |
//! | --- | --- |
//! | `[text](path#anchor)` in Markdown | a file or folder of the checkout, with such a heading; in `docs/`, one of the book |
//! | a path in backticks, with an extension | a tracked file, or the end of one's path |
//! | `docs/design.md, "Title"` | a heading of that document |
//! | a section of the design, by its number | nothing: numbers move, so headings are named instead |
//! | a page of `docs/` | listed in `docs/SUMMARY.md`, once |

use crate::book;
use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Extensions of the files that are searched.
const SEARCHED: [&str; 4] = ["rs", "md", "toml", "service"];
/// Ends of the names of files, in backticks.
const NAMED: [&str; 9] = [
    ".rs", ".md", ".toml", ".sh", ".py", ".csv", ".service", ".conf", ".json",
];

/// A reference that leads nowhere.
#[derive(Debug, PartialEq, Eq)]
struct Broken {
    line: usize,
    what: String,
}

/// The tracked files, and how they are read.
struct Checkout<'a> {
    files: &'a BTreeSet<String>,
    read: &'a dyn Fn(&str) -> Option<String>,
}

/// Checks every tracked source and document.
///
/// # Errors
/// All references that lead nowhere, one a line.
pub fn run() -> Result<(), String> {
    let listed = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard"])
        .output()
        .map_err(|e| format!("git ls-files: {e}"))?;
    if !listed.status.success() {
        return Err("git ls-files failed: run this inside the checkout".into());
    }
    let files = String::from_utf8_lossy(&listed.stdout);
    // A file that was deleted but not committed is still listed.
    let files = files.lines().filter(|file| Path::new(file).exists());
    let files: BTreeSet<String> = files.map(str::to_owned).collect();
    let read = |file: &str| std::fs::read_to_string(file).ok();
    let checkout = Checkout {
        files: &files,
        read: &read,
    };
    let summary = read(book::SUMMARY).ok_or_else(|| format!("there is no {}", book::SUMMARY))?;
    let mut broken = book::disagreements(&files, &summary);
    let mut searched = 0;
    for file in &files {
        let extension = Path::new(file).extension().and_then(|e| e.to_str());
        if extension.is_some_and(|extension| SEARCHED.contains(&extension)) {
            let text = read(file).ok_or_else(|| format!("{file} is not UTF-8, or unreadable"))?;
            searched += 1;
            let found = checkout.check(file, &text).into_iter();
            broken.extend(found.map(|b| format!("{file}:{}: {}", b.line, b.what)));
        }
    }
    if broken.is_empty() {
        println!("{searched} files: every reference leads somewhere");
        return Ok(());
    }
    Err(format!(
        "references that lead nowhere:\n{}",
        broken.join("\n")
    ))
}

impl Checkout<'_> {
    fn check(&self, file: &str, text: &str) -> Vec<Broken> {
        let mut broken = Vec::new();
        let mut fenced = false;
        for (at, line) in text.lines().enumerate() {
            let code = line.trim_start_matches(['/', '!', ' ']);
            if code.starts_with("```") {
                fenced = !fenced;
            }
            let mut add = |what: String| broken.push(Broken { line: at + 1, what });
            self.numbered(line).into_iter().for_each(&mut add);
            self.titled(line).into_iter().for_each(&mut add);
            if !fenced {
                self.named(line).into_iter().for_each(&mut add);
                if file.ends_with(".md") {
                    self.linked(file, line).into_iter().for_each(&mut add);
                }
            }
        }
        broken
    }

    /// References to the design by a section's number.
    fn numbered(&self, line: &str) -> Option<String> {
        let lower = line.to_lowercase().replace('`', "");
        // In two pieces: this file is searched too.
        let shapes = [
            concat!("design", " section "),
            concat!("design.md,", " section "),
        ];
        let found = shapes.iter().find_map(|shape| {
            let (_, after) = lower.split_once(shape)?;
            after
                .starts_with(|c: char| c.is_ascii_digit())
                .then_some(shape)
        });
        found.map(|shape| {
            format!("{shape:?} and a number: name the heading, docs/design.md, \"Title\"")
        })
    }

    /// References to the design by a heading.
    fn titled(&self, line: &str) -> Option<String> {
        let line = line.replace('`', "");
        let (_, after) = line.split_once(concat!("docs/design.md,", " \""))?;
        let (title, _) = after.split_once('"')?;
        // "Title" itself stands for any, where the rule is explained.
        let known = (self.read)("docs/design.md")?;
        let known =
            title == "Title" || headings(&known).any(|heading| unnumbered(heading) == title);
        (!known).then(|| format!("docs/design.md has no heading {title:?}"))
    }

    /// Names of files in backticks.
    fn named(&self, line: &str) -> Vec<String> {
        let quoted = line.split('`').skip(1).step_by(2);
        let is_path = |text: &&str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
            NAMED
                .iter()
                .any(|end| text.len() > end.len() && text.ends_with(end))
                && text.chars().all(plain)
                && text.contains('/')
                && !text.starts_with(['/', '.'])
        };
        let missing = quoted.filter(is_path).filter(|path| {
            let tail = format!("/{path}");
            !self.files.contains(*path) && !self.files.iter().any(|file| file.ends_with(&tail))
        });
        missing
            .map(|path| format!("there is no file {path}"))
            .collect()
    }

    /// Links of Markdown.
    fn linked(&self, file: &str, line: &str) -> Vec<String> {
        let targets = line.split("](").skip(1);
        let targets = targets.filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
        let own =
            targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
        own.filter_map(|target| self.leads_nowhere(file, target))
            .collect()
    }

    fn leads_nowhere(&self, file: &str, target: &str) -> Option<String> {
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = match path {
            "" => file.to_owned(),
            path => normal(&Path::new(file).parent()?.join(path)),
        };
        let folder = format!("{path}/");
        let there = |known: &String| *known == path || known.starts_with(&folder);
        if !self.files.iter().any(there) {
            return Some(format!("link to {target}: there is no {path}"));
        }
        if file.starts_with("docs/") && !path.starts_with("docs/") {
            return Some(format!(
                "link to {target}: the book has no {path}; name it in backticks"
            ));
        }
        if anchor.is_empty() {
            return None;
        }
        let text = (self.read)(&path)?;
        let known = headings(&text).any(|heading| anchor_of(heading) == anchor);
        (!known).then(|| format!("link to {target}: {path} has no such heading"))
    }
}

/// A relative path without `.` and `..`.
fn normal(path: &Path) -> String {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::Normal(part) => plain.push(part),
            _ => {}
        }
    }
    plain.to_string_lossy().into_owned()
}

/// Texts of the headings of a Markdown document.
fn headings(text: &str) -> impl Iterator<Item = &str> {
    let marked = text.lines().filter(|line| line.starts_with('#'));
    marked.map(|line| line.trim_start_matches('#').trim())
}

/// A heading without the number before it.
fn unnumbered(heading: &str) -> &str {
    heading.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ' ')
}

/// The anchor that renderers give a heading.
fn anchor_of(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(file: &str, text: &str) -> Vec<Broken> {
        let files = ["README.md", "docs/design.md", "crates/pmem/src/heap/mod.rs"];
        let files = files.map(str::to_owned).into_iter().collect();
        let read = |file: &str| {
            (file == "docs/design.md").then(|| "# The design\n## 4. Allocation\n".to_owned())
        };
        let checkout = Checkout {
            files: &files,
            read: &read,
        };
        checkout.check(file, text)
    }

    fn one(file: &str, text: &str) -> String {
        let mut broken = check(file, text);
        assert_eq!(broken.len(), 1, "{broken:?}");
        assert_eq!(broken[0].line, 2);
        broken.remove(0).what
    }

    #[test]
    fn what_leads_somewhere_is_not_reported() {
        let text = "[design](docs/design.md#4-allocation), [folder](crates/pmem), \
                    `heap/mod.rs` and `crates/pmem/src/heap/mod.rs` (docs/design.md, \"Allocation\")";
        assert_eq!(check("README.md", text), []);
        let text = "[the design](design.md#4-allocation) [web](https://example.invalid/x.md)";
        assert_eq!(check("docs/design.md", text), []);
        // Examples of what a user has are no references.
        assert_eq!(
            check("README.md", concat!("```\n`gone/", "x.rs`\n```\n")),
            []
        );
    }

    #[test]
    fn what_leads_nowhere_is_reported_with_its_line() {
        let section = concat!("\n(design", " section 2.4)");
        assert!(one("a.rs", section).contains("name the heading"));
        let section = concat!("\n(`docs/design.md`,", " section 4)");
        assert!(one("a.rs", section).contains("name the heading"));
        let title = concat!("\n(`docs/design.md`,", " \"Reclaiming\")");
        assert!(one("a.rs", title).contains("\"Reclaiming\""));
        assert!(one("a.rs", concat!("\n`pmem/", "gone.rs`")).contains("pmem/gone.rs"));
        assert!(one("README.md", "\n[x](docs/gone.md)").contains("docs/gone.md"));
        assert!(one("docs/design.md", "\n[x](../README.md)").contains("the book has no README.md"));
        assert!(one("README.md", "\n[x](docs/design.md#gone)").contains("no such heading"));
    }
}
