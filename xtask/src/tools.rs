//! Finding, installing and running the programs that the chores need.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The result of a chore: nothing, or one message for a person.
pub type Outcome<T = ()> = Result<T, String>;

/// The repository's root.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// What cargo says of the workspace, without its dependencies.
pub fn metadata() -> Outcome<serde_json::Value> {
    let words = [
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ];
    let told = output(cargo().args(words))?;
    serde_json::from_str(&told).map_err(|e| format!("cargo metadata: {e}"))
}

/// The folder that builds go to, as cargo's configuration and environment have it.
pub fn target_dir() -> Outcome<PathBuf> {
    let told = metadata()?;
    let folder = told["target_directory"].as_str();
    let folder = folder.ok_or("cargo metadata names no target_directory")?;
    Ok(folder.into())
}

/// The cargo that runs this chore.
pub fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    as_from_a_shell(&mut cargo).current_dir(root());
    cargo
}

/// Takes away what cargo tells this chore of its own package: build scripts that look at it would
/// run again, and what depends on them would be compiled again.
pub fn as_from_a_shell(command: &mut Command) -> &mut Command {
    let told = |name: &OsStr| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    };
    let all = std::env::vars_os().map(|(name, _)| name);
    all.filter(|name| told(name))
        .fold(command, |command, name| command.env_remove(name))
}

/// Prints what a chore is about to do.
pub fn say(what: impl AsRef<str>) {
    eprintln!("xtask: {}", what.as_ref());
}

/// Runs `command` to its end; anything but success is an error that quotes it.
pub fn run(command: &mut Command) -> Outcome {
    let line = quote(command);
    say(format!("$ {line}"));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{line}` ended with {status}")),
        Err(e) => Err(format!("`{line}` could not start: {e}")),
    }
}

/// Runs `command` and returns what it printed.
pub fn output(command: &mut Command) -> Outcome<String> {
    let line = quote(command);
    match command.output() {
        Ok(done) if done.status.success() => {
            String::from_utf8(done.stdout).map_err(|e| format!("`{line}` printed no UTF-8: {e}"))
        }
        Ok(done) => Err(format!(
            "`{line}` ended with {}: {}",
            done.status,
            String::from_utf8_lossy(&done.stderr).trim()
        )),
        Err(e) => Err(format!("`{line}` could not start: {e}")),
    }
}

fn quote(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|w| w.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Where on the PATH (or in an administrator's folders) `program` is.
pub fn which(program: impl AsRef<OsStr>) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|dir| dir.join(program.as_ref()))
        .find(|file| file.is_file())
}

/// Installs Debian packages, or says how.
///
/// `foreign` is an architecture that dpkg has to be told of first.
pub fn apt_install(packages: &[&str], foreign: Option<&str>) -> Outcome {
    let by_hand = format!(
        "{}apt-get install --no-install-recommends {}",
        foreign.map_or(String::new(), |a| format!(
            "dpkg --add-architecture {a} && apt-get update && "
        )),
        packages.join(" ")
    );
    if which("apt-get").is_none() {
        return Err(format!(
            "missing: {}; this system has no apt-get. On Debian 12 it is: {by_hand}",
            packages.join(", ")
        ));
    }
    if output(Command::new("id").arg("-u"))?.trim() != "0" {
        return Err(format!(
            "missing: {}; as root, run: {by_hand}",
            packages.join(", ")
        ));
    }
    if let Some(arch) = foreign {
        run(Command::new("dpkg").args(["--add-architecture", arch]))?;
    }
    run(Command::new("apt-get").args(["-qq", "update"]))?;
    run(Command::new("apt-get")
        .env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-qq", "install", "-y", "--no-install-recommends"])
        .args(packages))
    .map_err(|e| format!("{e}; by hand it is: {by_hand}"))
}
