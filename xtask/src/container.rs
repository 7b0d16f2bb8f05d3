//! The container image: built from `packaging/Containerfile`, and its server tried, with podman.
//!
//! ```text
//! podman build -> run: a volume, no capabilities, a root file system that is only read
//!              -> health, requests, SIGTERM; check and upgrade in the volume; run again: the same data
//! ```
//!
//! Where the registry of the base images is out of reach, others stand in for them: Debian from its
//! mirror, by mmdebstrap, and this machine's Rust on that.

use crate::server::call;
use crate::tools::{self, Outcome, say};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Base images, as the file names them.
const BASES: [&str; 2] = [
    "docker.io/library/rust:1-slim-bookworm",
    "docker.io/library/debian:bookworm-slim",
];
/// What stands in for them.
const STAND_INS: [&str; 2] = [
    "localhost/bristlecone-xtask-rust",
    "localhost/bristlecone-xtask-base",
];
const IMAGE: &str = "localhost/bristlecone-xtask";
/// The container, its volume, and what else has a name.
const NAME: &str = "bristlecone-xtask";
/// Where the database is.
const DATA: &str = "/var/lib/bristlecone";
/// The most that the image may have beyond its base.
const MOST_BYTES: u64 = 30 << 20;
/// How long a server has to start and to be healthy.
const PATIENCE: Duration = Duration::from_secs(60);

/// Builds the image and tries it.
pub fn run() -> Outcome {
    install_missing()?;
    let base = build()?;
    remove();
    let tried = size(&base).and_then(|()| tried());
    remove();
    tried?;
    say(format!("made {IMAGE}"));
    Ok(())
}

fn install_missing() -> Outcome {
    let needed = [
        ("podman", "podman"),
        ("runc", "runc"),
        ("iptables", "iptables"),
    ];
    let missing = needed
        .into_iter()
        .filter(|(program, _)| tools::which(program).is_none());
    let mut missing: Vec<&str> = missing.map(|(_, package)| package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    // Ports of containers are published by these.
    missing.push("containernetworking-plugins");
    tools::apt_install(&missing, None)
}

fn podman(words: &[&str]) -> Command {
    let mut podman = Command::new("podman");
    podman.current_dir(tools::root()).args(words);
    podman
}

/// Builds the image. Returns the image that it is based on.
fn build() -> Outcome<String> {
    let mut build = podman(&["build", "--format", "docker", "--isolation", "chroot"]);
    build.args(["--file", "packaging/Containerfile", "--tag", IMAGE]);
    let pulled = BASES
        .iter()
        .try_for_each(|base| tools::run(&mut podman(&["pull", "--quiet", base])));
    let base = match pulled {
        Ok(()) => BASES[1],
        Err(e) => {
            say(format!(
                "{e}: images made here stand in for {}",
                BASES.join(" and ")
            ));
            stand_ins()?;
            let [rust, base] = STAND_INS;
            build.args([
                "--build-arg",
                &format!("RUST={rust}"),
                "--build-arg",
                &format!("BASE={base}"),
            ]);
            build.args(["--pull=never", "--volume"]);
            build.arg(format!("{}:/usr/local/rust:ro", sysroot()?));
            if let Some(registry) = registry() {
                build
                    .arg("--volume")
                    .arg(format!("{}:/usr/local/cargo/registry", registry.display()));
            }
            base
        }
    };
    tools::run(build.arg("."))?;
    Ok(base.to_owned())
}

/// Where this machine's Rust is.
fn sysroot() -> Outcome<String> {
    let told = tools::output(
        Command::new("rustc")
            .args(["--print", "sysroot"])
            .current_dir(tools::root()),
    )?;
    Ok(told.trim().to_owned())
}

/// Where cargo has downloaded crates to.
fn registry() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    home.map(|home| home.join("registry"))
        .filter(|registry| registry.is_dir())
}

/// Makes the images that stand in for the base images, unless they are there.
fn stand_ins() -> Outcome {
    let [rust, base] = STAND_INS;
    let there = |image| {
        podman(&["image", "exists", image])
            .status()
            .is_ok_and(|status| status.success())
    };
    if there(rust) && there(base) {
        return Ok(());
    }
    if tools::which("mmdebstrap").is_none() {
        tools::apt_install(&["mmdebstrap"], None)?;
    }
    let folder = tempfile::tempdir().map_err(|e| format!("a temporary folder: {e}"))?;
    let tar = folder.path().join("base.tar");
    let made = [
        "--quiet",
        "--variant=minbase",
        "--include=ca-certificates",
        "bookworm",
    ];
    tools::run(Command::new("mmdebstrap").args(made).arg(&tar))?;
    tools::run(podman(&["import", "--quiet"]).arg(&tar).arg(base))?;
    let file = folder.path().join("Containerfile");
    let text = format!(
        "FROM {base}\nRUN apt-get -qq update && apt-get -qq install -y --no-install-recommends gcc libc6-dev\n\
         ENV CARGO_HOME=/usr/local/cargo PATH=/usr/local/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
    );
    std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    let words = [
        "build",
        "--isolation",
        "chroot",
        "--pull=never",
        "--tag",
        rust,
        "--file",
    ];
    tools::run(podman(&words).arg(&file).arg(folder.path()))
}

/// Removes what an earlier run, or this one, has left.
fn remove() {
    for words in [
        &["rm", "--force", "--ignore", NAME][..],
        &["volume", "rm", "--force", NAME],
    ] {
        // It need not be there.
        let _ = podman(words).output();
    }
}

/// Looks at the image's size.
fn size(base: &str) -> Outcome {
    let bytes = |image| -> Outcome<u64> {
        let told = tools::output(&mut podman(&[
            "image",
            "inspect",
            "--format",
            "{{.Size}}",
            image,
        ]))?;
        told.trim()
            .parse()
            .map_err(|e| format!("{image}: a size of {told:?}: {e}"))
    };
    let (image, base) = (bytes(IMAGE)?, bytes(base)?);
    let own = image.saturating_sub(base);
    say(format!(
        "{image} bytes, {own} of them not of the base image"
    ));
    if own > MOST_BYTES {
        return Err(format!(
            "the image has {own} bytes of its own; the most is {MOST_BYTES}"
        ));
    }
    Ok(())
}

/// Starts a container, with the volume.
fn podman_run(options: &[&str]) -> Command {
    let mut run = podman(&["run", "--runtime", "runc", "--read-only", "--cap-drop=all"]);
    // More than this machine's own limits may not be allowed.
    run.args([
        "--ulimit",
        "nofile=4096:4096",
        "--ulimit",
        "nproc=4096:4096",
    ]);
    run.args(["--security-opt=no-new-privileges", "--volume"])
        .arg(format!("{NAME}:{DATA}"));
    run.args(options);
    run
}

/// Runs the command in a container of its own, and returns what it prints.
fn command(words: &[&str]) -> Outcome<String> {
    tools::output(podman_run(&["--rm", IMAGE]).args(words))
}

/// A server in a container.
struct Served {
    address: String,
}

impl Served {
    /// Starts it, and waits until it is healthy.
    fn start(options: &[&str]) -> Outcome<Self> {
        tools::run(
            podman_run(&["--detach", "--name", NAME, "--publish", "127.0.0.1::6379"])
                .args(options)
                .arg(IMAGE),
        )?;
        let told = tools::output(&mut podman(&["port", NAME, "6379/tcp"]))?;
        let address = told.lines().next().unwrap_or_default().trim().to_owned();
        let begun = Instant::now();
        while let Err(e) = healthy() {
            if begun.elapsed() > PATIENCE {
                let log = podman(&["logs", NAME]).output();
                let log = log.map(|log| String::from_utf8_lossy(&log.stderr).into_owned());
                return Err(format!("{e}; its log: {}", log.unwrap_or_default()));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(Self { address })
    }

    /// Ends it as an engine does, by SIGTERM.
    fn stop(self) -> Outcome {
        tools::run(&mut podman(&["stop", "--time", "60", NAME]))?;
        let told = tools::output(&mut podman(&[
            "inspect",
            "--format",
            "{{.State.ExitCode}}",
            NAME,
        ]))?;
        if told.trim() != "0" {
            return Err(format!("told to stop, it ended with {}", told.trim()));
        }
        tools::run(&mut podman(&["rm", NAME]))
    }
}

/// Whether the image's own check finds the server healthy.
fn healthy() -> Outcome {
    tools::output(&mut podman(&["healthcheck", "run", NAME])).map(drop)
}

fn tried() -> Outcome {
    let version = command(&["--version"])?;
    if version.trim() != format!("bristlecone {}", env!("CARGO_PKG_VERSION")) {
        return Err(format!("its version is {version:?}"));
    }
    let user = tools::output(&mut podman_run(&["--rm", "--entrypoint", "id", IMAGE]))?;
    if !user.starts_with("uid=6379(bristlecone) gid=6379(bristlecone)") {
        return Err(format!("it runs as {user}"));
    }
    // Nobody from outside without a password.
    let served = Served::start(&[])?;
    match call(&served.address, "PING\r\n", &["+PONG"]) {
        Err(e) if e.contains("-DENIED") => {}
        other => {
            return Err(format!(
                "a client from outside without a password: {other:?}"
            ));
        }
    }
    served.stop()?;
    let password = ["--env", "BRISTLECONE_SERVE_REQUIREPASS=secret"];
    let served = Served::start(&password)?;
    let requests = "PING\r\nAUTH secret\r\nSET key value\r\nRPUSH list a b\r\n";
    let refused = "-NOAUTH Authentication required.";
    call(&served.address, requests, &[refused, "+OK", "+OK", ":2"])?;
    served.stop()?;
    let report = command(&["check", "data.pool", "--json"])?;
    let report: serde_json::Value =
        serde_json::from_str(report.trim()).map_err(|e| format!("{report}: {e}"))?;
    if report["clean"] != true {
        return Err(format!("SIGTERM did not close the database: {report}"));
    }
    let told = command(&["upgrade", "data.pool"])?;
    if !told.contains("nothing to do") {
        return Err(format!("of its own database, `upgrade` says: {told}"));
    }
    // Settings in a file, and another container over the same volume.
    let folder = tempfile::tempdir().map_err(|e| format!("a temporary folder: {e}"))?;
    let file = folder.path().join("serve.toml");
    let text = "listen = \"0.0.0.0:6379\"\nmetrics = \"127.0.0.1:9121\"\nrequirepass = \"other\"\n";
    std::fs::write(&file, text).map_err(|e| format!("{}: {e}", file.display()))?;
    let mounted = format!("{}:/etc/bristlecone/serve.toml:ro", file.display());
    let served = Served::start(&["--volume", &mounted])?;
    let requests = "AUTH other\r\nGET key\r\nLLEN list\r\n";
    call(&served.address, requests, &["+OK", "$5", "value", ":2"])?;
    // The check fails where there is nothing to ask.
    served.stop()?;
    let asked_at_nothing = ["--env", "BRISTLECONE_SERVE_METRICS="];
    tools::run(
        podman_run(&["--detach", "--name", NAME])
            .args(asked_at_nothing)
            .arg(IMAGE),
    )?;
    std::thread::sleep(Duration::from_secs(2));
    let running = ["inspect", "--format", "{{.State.Running}}", NAME];
    let running = tools::output(&mut podman(&running))?;
    if running.trim() != "true" || healthy().is_ok() {
        return Err("the check finds a server healthy that does not answer it".into());
    }
    Ok(())
}
