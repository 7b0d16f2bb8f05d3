//! The copy of the working tree that has all changes, and its compilation.

use super::sites::{File, Mutant};
use super::{Options, folder};
use crate::tools::{self, Outcome, say};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How often the compiler may refuse changes.
const ROUNDS: usize = 40;

/// Code appended to the package's root: `__mutant_is(id)` is true if the environment asks for
/// that change. While a survey runs it is false, and notes in a file what was asked.
const RUNTIME: &str = r#"
#[doc(hidden)]
#[inline(always)]
pub fn __mutant_is(id: u32) -> bool {
    let chosen = __mutation::CHOSEN.load(std::sync::atomic::Ordering::Relaxed);
    if chosen >= __mutation::SURVEY { __mutation::ask(id) } else { chosen == id }
}
#[doc(hidden)]
mod __mutation {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    pub const SURVEY: u32 = u32::MAX - 1;
    pub static CHOSEN: AtomicU32 = AtomicU32::new(u32::MAX);
    static ASKED: [AtomicBool; 1 << 16] = [const { AtomicBool::new(false) }; 1 << 16];
    #[cold]
    pub fn ask(id: u32) -> bool {
        if CHOSEN.load(Ordering::Relaxed) == u32::MAX {
            let chosen = match std::env::var_os("MUTANT_SURVEY") {
                Some(_) => SURVEY,
                None => std::env::var("MUTANT").map_or(0, |id| id.parse().unwrap_or(0)),
            };
            CHOSEN.store(chosen, Ordering::Relaxed);
            return super::__mutant_is(id);
        }
        if !ASKED[id as usize].swap(true, Ordering::Relaxed)
            && let Some(file) = std::env::var_os("MUTANT_SURVEY")
            && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(file)
        {
            let _ = file.write_all(&id.to_le_bytes());
        }
        false
    }
}
"#;

/// A change that was chosen.
pub struct Change {
    /// Path from the repository's root.
    pub file: String,
    /// The change.
    pub mutant: Mutant,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mutant {
            line, column, what, ..
        } = &self.mutant;
        let function = &self.mutant.function;
        write!(f, "{}:{line}:{column}: {what}", self.file)?;
        match what.starts_with("replace") && what.contains(" with ") && function.is_empty() {
            true => Ok(()),
            false => write!(f, " in {function}"),
        }
    }
}

/// The copy.
pub struct Tree {
    folder: PathBuf,
    /// The chosen changes. The number of a change is its index plus one.
    pub chosen: Vec<Change>,
    /// Numbers of those that the compiler refused.
    pub unviable: HashSet<u32>,
    files: Vec<Source>,
}

struct Source {
    path: String,
    file: File,
    /// Numbers of the chosen ones, by index in `file`.
    ids: HashMap<usize, u32>,
    is_root: bool,
    pieces: Vec<(Range<usize>, Vec<usize>)>,
}

/// An executable of tests.
pub struct Executable {
    /// Its target's name.
    pub name: String,
    pub path: PathBuf,
    /// The package's folder in the copy, in which tests run.
    pub folder: PathBuf,
}

impl Tree {
    /// Copies the working tree and chooses the changes.
    pub fn new(options: &Options) -> Outcome<Self> {
        let (home, root) = package(&options.package)?;
        let folder = folder()?.join("tree");
        let listed = tools::output(
            Command::new("git")
                .args(["ls-files", "-co", "--exclude-standard"])
                .current_dir(tools::root()),
        )?;
        remove_others(&folder, &listed)?;
        let since = options.since.as_deref().map(changed_lines).transpose()?;
        let mut files = Vec::new();
        for path in listed.lines() {
            let from = tools::root().join(path);
            if !from.is_file() {
                continue;
            }
            let is_source = path.starts_with(&format!("{home}/src/")) && path.ends_with(".rs");
            let is_root = path == root;
            let is_chosen = is_source
                && (options.file.is_empty() || options.file.iter().any(|f| path.contains(f)));
            if !(is_chosen || is_root) {
                copy(&from, &folder.join(path))?;
                continue;
            }
            let text = fs::read_to_string(&from).map_err(|e| format!("{path}: {e}"))?;
            let file = File::read(text).map_err(|e| format!("{path}: {e}"))?;
            files.push((path.to_string(), file, is_chosen, is_root));
        }
        if !files.iter().any(|file| file.3) {
            return Err(format!(
                "{root}, the root of {}, is not there",
                options.package
            ));
        }
        let mut all: Vec<(usize, usize)> = Vec::new();
        let tests: Vec<String> = files
            .iter()
            .flat_map(|(path, file, ..)| test_modules(path, file))
            .collect();
        for (at, (path, file, is_chosen, _)) in files.iter().enumerate() {
            // A module's file, or one below its folder.
            let is_test = tests.iter().any(|module| {
                let rest = path.strip_prefix(module.as_str());
                rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            });
            if is_test || !is_chosen {
                continue;
            }
            for (n, mutant) in file.mutants.iter().enumerate() {
                let is_new = |lines: &HashMap<String, HashSet<usize>>| {
                    (lines.get(path)).is_some_and(|lines| lines.contains(&mutant.line))
                };
                if since.as_ref().is_none_or(is_new) {
                    all.push((at, n));
                }
            }
        }
        if let Some(sample) = options.sample {
            shuffle(&mut all, options.seed);
            all.truncate(sample);
            all.sort_unstable();
        }
        if all.len() >= 1 << 16 {
            return Err(format!(
                "{} changes are too many: choose by --file",
                all.len()
            ));
        }
        let mut files: Vec<Source> = files
            .into_iter()
            .map(|(path, file, _, is_root)| Source {
                path,
                file,
                ids: HashMap::new(),
                is_root,
                pieces: Vec::new(),
            })
            .collect();
        let mut chosen = Vec::new();
        for (at, n) in all {
            let source = &mut files[at];
            chosen.push(Change {
                file: source.path.clone(),
                mutant: source.file.mutants[n].clone(),
            });
            source.ids.insert(n, chosen.len() as u32);
        }
        Ok(Self {
            folder,
            chosen,
            unviable: HashSet::new(),
            files,
        })
    }

    /// The copy's root.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Compiles the package's tests with all changes that the compiler takes.
    pub fn compile(&mut self, options: &Options) -> Outcome<Vec<Executable>> {
        for round in 0..ROUNDS {
            self.write()?;
            // Types first, which takes less time, and without the tests: they are not changed.
            let checked = self.cargo(options, &["check", "--lib"])?;
            let built = match checked.errors.is_empty() {
                true => self.cargo(options, &["test", "--no-run", "--lib", "--tests"])?,
                false => checked,
            };
            if built.errors.is_empty() {
                return match built.executables.is_empty() {
                    true => Err(format!("{} has no tests", options.package)),
                    false => Ok(built.executables),
                };
            }
            let before = self.unviable.len();
            for (path, at, message) in &built.errors {
                self.blame(path, *at)
                    .map_err(|e| format!("{e}: the compiler says: {message}"))?;
            }
            let refused = self.unviable.len() - before;
            if refused == 0 {
                let (path, _, message) = &built.errors[0];
                return Err(format!("{path}: no change is to blame for: {message}"));
            }
            say(format!(
                "round {}: the compiler refuses {refused} changes",
                round + 1
            ));
        }
        Err(format!(
            "after {ROUNDS} rounds the compiler still refuses changes"
        ))
    }

    /// Takes out the changes to which a byte of an instrumented file belongs.
    fn blame(&mut self, path: &str, at: usize) -> Outcome {
        let source = self.files.iter().find(|source| source.path == path);
        let source = source.ok_or_else(|| format!("{path} is not changed"))?;
        let has = source
            .pieces
            .iter()
            .filter(|(range, _)| range.contains(&at));
        let smallest = has.min_by_key(|(range, _)| range.len());
        let Some((_, mutants)) = smallest else {
            return Err(format!("{path}: nothing was changed at byte {at}"));
        };
        let refused: Vec<u32> = mutants.iter().map(|n| source.ids[n]).collect();
        self.unviable.extend(refused);
        Ok(())
    }

    fn write(&mut self) -> Outcome {
        for source in &mut self.files {
            let id = |n: usize| {
                let id = source.ids.get(&n).copied();
                id.filter(|id| !self.unviable.contains(id))
            };
            let mut made = source.file.instrument(id);
            if source.is_root {
                made.text.push_str(RUNTIME);
            }
            source.pieces = made.pieces;
            write_if_other(&self.folder.join(&source.path), made.text.as_bytes())?;
        }
        Ok(())
    }

    fn cargo(&self, options: &Options, words: &[&str]) -> Outcome<Built> {
        let mut cargo = tools::cargo();
        cargo
            .args(words)
            .args(["--package", &options.package, "--message-format=json"])
            .args(&options.args)
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", folder()?.join("build"))
            .env("CARGO_INCREMENTAL", "0")
            .env("RUSTFLAGS", "--cap-lints=allow")
            .stderr(Stdio::inherit());
        let done = cargo.output().map_err(|e| format!("cargo: {e}"))?;
        let mut built = Built::default();
        for line in String::from_utf8_lossy(&done.stdout).lines() {
            let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else {
                continue;
            };
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
            match message["reason"].as_str() {
                Some("compiler-artifact") if message["profile"]["test"] == true => {
                    let manifest = PathBuf::from(text(&message["manifest_path"]));
                    if let Some(path) = message["executable"].as_str() {
                        built.executables.push(Executable {
                            name: text(&message["target"]["name"]),
                            path: path.into(),
                            folder: manifest.parent().unwrap_or(&manifest).to_path_buf(),
                        });
                    }
                }
                Some("compiler-message") if message["message"]["level"] == "error" => {
                    let message = &message["message"];
                    if let Some(error) = self.place(message) {
                        built.errors.push(error);
                    } else if message["spans"].as_array().is_some_and(|s| !s.is_empty()) {
                        return Err(text(&message["rendered"]));
                    }
                }
                _ => {}
            }
        }
        if !done.status.success() && built.errors.is_empty() {
            return Err(format!(
                "cargo {} ended with {}",
                words.join(" "),
                done.status
            ));
        }
        Ok(built)
    }

    /// Returns where in a changed file an error is, and what it says.
    fn place(&self, message: &serde_json::Value) -> Option<(String, usize, String)> {
        let spans = message["spans"].as_array()?;
        let primary = spans.iter().filter(|span| span["is_primary"] == true);
        let mut places = primary.chain(spans).filter_map(|span| {
            let path = span["file_name"].as_str()?;
            let is_changed = self.files.iter().any(|source| source.path == path);
            let at = span["byte_start"].as_u64()? as usize;
            is_changed.then(|| (path.to_string(), at))
        });
        let (path, at) = places.next()?;
        let said = message["rendered"].as_str().unwrap_or_default();
        Some((path, at, said.to_string()))
    }
}

#[derive(Default)]
struct Built {
    executables: Vec<Executable>,
    errors: Vec<(String, usize, String)>,
}

/// Returns a package's folder and the file of its library, as paths from the repository's root.
fn package(name: &str) -> Outcome<(String, String)> {
    let metadata = tools::metadata()?;
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let names = || {
        let names = packages.iter().filter_map(|p| p["name"].as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let found = packages.iter().find(|p| p["name"] == name);
    let found = found.ok_or_else(|| format!("no package {name}; there are {}", names()))?;
    let targets = found["targets"].as_array().cloned().unwrap_or_default();
    let is_library = |t: &&serde_json::Value| {
        (t["kind"].as_array()).is_some_and(|kinds| kinds.iter().any(|k| k == "lib" || k == "rlib"))
    };
    let library = targets.iter().find(is_library);
    let library = library.ok_or_else(|| format!("{name} has no library"))?;
    let relative = |path: &serde_json::Value| {
        let path = Path::new(path.as_str().unwrap_or_default());
        let path = path.strip_prefix(tools::root()).unwrap_or(path);
        path.display().to_string()
    };
    let home = relative(&found["manifest_path"]);
    let home = home.trim_end_matches("/Cargo.toml").to_string();
    Ok((home, relative(&library["src_path"])))
}

/// Returns the lines that the working tree has and `commit` has not, by file.
fn changed_lines(commit: &str) -> Outcome<HashMap<String, HashSet<usize>>> {
    let diff = tools::output(
        Command::new("git")
            .args([
                "diff",
                "--unified=0",
                "--no-color",
                "--no-ext-diff",
                commit,
                "--",
                "*.rs",
            ])
            .current_dir(tools::root()),
    )?;
    let mut lines: HashMap<String, HashSet<usize>> = HashMap::new();
    let mut file = String::new();
    for line in diff.lines() {
        if let Some(path) = line.strip_prefix("+++ b/") {
            file = path.to_string();
        } else if line.starts_with("@@ ")
            && let Some(added) = line.split(' ').find_map(|word| word.strip_prefix('+'))
        {
            let (first, count) = added.split_once(',').unwrap_or((added, "1"));
            let number = |text: &str| text.parse().map_err(|e| format!("git diff: {line}: {e}"));
            let (first, count): (usize, usize) = (number(first)?, number(count)?);
            lines
                .entry(file.clone())
                .or_default()
                .extend(first..first + count);
        }
    }
    Ok(lines)
}

fn copy(from: &Path, to: &Path) -> Outcome {
    let bytes = fs::read(from).map_err(|e| format!("{}: {e}", from.display()))?;
    write_if_other(to, &bytes)?;
    let permissions = fs::metadata(from).map(|found| found.permissions());
    permissions
        .and_then(|permissions| fs::set_permissions(to, permissions))
        .map_err(|e| format!("{}: {e}", to.display()))
}

/// Returns where the modules of a file that only tests have are: paths without `.rs`.
fn test_modules(path: &str, file: &File) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = match name {
        "lib.rs" | "mod.rs" | "main.rs" => folder.to_string(),
        name => format!("{folder}/{}", name.trim_end_matches(".rs")),
    };
    let modules = file.test_modules.iter();
    modules.map(|module| format!("{folder}/{module}")).collect()
}

/// Removes from the copy what the working tree has no longer.
fn remove_others(copy: &Path, listed: &str) -> Outcome {
    let listed: HashSet<PathBuf> = listed.lines().map(|path| copy.join(path)).collect();
    let mut folders = vec![copy.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if !listed.contains(&path) {
                fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            }
        }
    }
    Ok(())
}

/// Files that stay as they are keep their time, and are not compiled again.
fn write_if_other(to: &Path, bytes: &[u8]) -> Outcome {
    if fs::read(to).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    let folder = to.parent().unwrap_or(to);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(to, bytes))
        .map_err(|e| format!("{}: {e}", to.display()))
}

fn shuffle<T>(all: &mut [T], seed: u64) {
    let mut state = seed;
    for at in (1..all.len()).rev() {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        all.swap(at, ((mixed ^ mixed >> 31) % (at as u64 + 1)) as usize);
    }
}
