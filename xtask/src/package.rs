//! The Debian package: made, installed, and its server tried.
//!
//! ```text
//! cargo build --release; bristlecone man, completions -> target/release/package/
//! cargo deb                                           -> target/release/package/bristlecone.deb
//! dpkg --install, serve with its settings, dpkg --purge
//! ```

use crate::server::{Server, call};
use crate::tools::{self, Outcome, say};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Shells, and where each looks for completions.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "bristlecone"),
    ("zsh", "_bristlecone"),
    ("fish", "bristlecone.fish"),
];

/// Files that the package must have.
const FILES: [&str; 9] = [
    "usr/bin/bristlecone",
    "etc/bristlecone/serve.toml",
    "usr/share/man/man1/bristlecone.1.gz",
    "usr/share/man/man1/bristlecone-serve.1.gz",
    "usr/share/bash-completion/completions/bristlecone",
    "usr/share/zsh/vendor-completions/_bristlecone",
    "usr/share/fish/vendor_completions.d/bristlecone.fish",
    "usr/share/doc/bristlecone/copyright",
    "systemd/system/bristlecone.service",
];

/// Makes the package and tries it.
pub fn run() -> Outcome {
    let cargo_deb = tools::output(tools::cargo().args(["deb", "--version"]));
    if cargo_deb.is_err() {
        tools::run(tools::cargo().args(["install", "--quiet", "--locked", "cargo-deb"]))?;
    }
    tools::run(tools::cargo().args(["build", "--release", "--package", "bristlecone-cli"]))?;
    let release = tools::target_dir()?.join("release");
    pages_and_completions(&release)?;
    let package = release.join("package/bristlecone.deb");
    tools::run(
        tools::cargo()
            .args([
                "deb",
                "--package",
                "bristlecone-cli",
                "--no-build",
                "--output",
            ])
            .arg(&package),
    )?;
    check_files(&package)?;
    let folder = tempfile::tempdir().map_err(|e| format!("a temporary folder: {e}"))?;
    if tools::output(Command::new("id").arg("-u"))?.trim() == "0" {
        installed(&package, folder.path())?;
    } else {
        say("not root: the package is unpacked, and not installed");
        let unpacked = folder.path().join("root");
        tools::run(
            Command::new("dpkg-deb")
                .arg("-x")
                .arg(&package)
                .arg(&unpacked),
        )?;
        serves(&unpacked, folder.path())?;
    }
    say(format!("made {}", package.display()));
    Ok(())
}

/// Has the command write its manual pages and completions to where `cargo deb` looks for them.
fn pages_and_completions(release: &Path) -> Outcome {
    let program = release.join("bristlecone");
    let made = |path: PathBuf| -> Outcome<PathBuf> {
        // Files of an earlier run must not end up in the package.
        let gone = match std::fs::remove_dir_all(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
            _ => std::fs::create_dir_all(&path),
        };
        gone.map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    };
    let pages = made(release.join("package/man1"))?;
    tools::run(Command::new(&program).arg("man").arg(&pages))?;
    tools::run(Command::new("gzip").arg("-9nr").arg(&pages))?;
    let completions = made(release.join("package/completions"))?;
    for (shell, name) in SHELLS {
        let text = tools::output(Command::new(&program).args(["completions", shell]))?;
        let file = completions.join(name);
        std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    Ok(())
}

/// Looks at what is in the package.
fn check_files(package: &Path) -> Outcome {
    let listed = tools::output(Command::new("dpkg-deb").arg("--contents").arg(package))?;
    for file in FILES {
        if !listed.lines().any(|line| line.ends_with(file)) {
            return Err(format!("the package has no {file}:\n{listed}"));
        }
    }
    let settings = tools::output(
        Command::new("dpkg-deb")
            .arg("--info")
            .arg(package)
            .arg("conffiles"),
    )?;
    if settings.trim() != "/etc/bristlecone/serve.toml" {
        return Err(format!("files of settings: {settings:?}"));
    }
    Ok(())
}

/// Installs the package, tries it, and removes it.
fn installed(package: &Path, folder: &Path) -> Outcome {
    if Path::new("/usr/bin/bristlecone").exists() {
        return Err("bristlecone is installed here, and trying the package would remove it".into());
    }
    let dpkg = |words: &[&str]| {
        let mut dpkg = Command::new("dpkg");
        dpkg.args(words);
        dpkg
    };
    tools::run(dpkg(&["--install"]).arg(package))?;
    let served = serves(Path::new("/"), folder);
    tools::run(&mut dpkg(&["--purge", "bristlecone"]))?;
    served?;
    if Path::new("/usr/bin/bristlecone").exists() {
        return Err("removing the package leaves the command".into());
    }
    Ok(())
}

/// Serves a database with the program and the settings under `root`, as the unit does.
fn serves(root: &Path, folder: &Path) -> Outcome {
    let program = root.join("usr/bin/bristlecone");
    let pool = folder.join("data.pool");
    let mut server = Server::start(
        Command::new(&program)
            .arg("serve")
            .arg(&pool)
            .arg("--config")
            .arg(root.join("etc/bristlecone/serve.toml"))
            .args(["--listen", "127.0.0.1:0"]),
    )?;
    let address = server.after(" on ")?;
    let requests = "SET key value\r\nGET key\r\nSHUTDOWN\r\n";
    call(&address, requests, &["+OK", "$5", "value"])?;
    server.ended()?;
    tools::run(Command::new(&program).arg("check").arg(&pool))
}
