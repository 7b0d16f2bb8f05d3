//! What watches a server, tried on one: the status page in a browser, the alerts and the dashboard
//! in a Prometheus.
//!
//! ```text
//! bristlecone serve --metrics <- chromium, light and dark: the page shows what happened
//!                             <- promtool, prometheus: metrics, alerts, each panel of the dashboard
//! ```

use crate::browser;
use crate::server::{self, PATIENCE, Running, Server};
use crate::tools::{self, Outcome, say};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Keys that are written; their number is on the page and in the metrics.
const KEYS: usize = 37;

/// Runs all of it.
pub fn run() -> Outcome {
    let needed = [("chromium", "chromium"), ("promtool", "prometheus")];
    let missing = needed
        .into_iter()
        .filter(|(p, _)| tools::which(p).is_none());
    let missing: Vec<&str> = missing.map(|(_, package)| package).collect();
    if !missing.is_empty() {
        tools::apt_install(&missing, None)?;
    }
    let packaging = tools::root().join("packaging");
    let rules = packaging.join("prometheus/bristlecone.rules.yml");
    tools::run(
        Command::new("promtool")
            .args(["check", "rules"])
            .arg(&rules),
    )?;
    tools::run(
        Command::new("promtool")
            .current_dir(packaging.join("prometheus"))
            .args(["test", "rules", "bristlecone.rules.test.yml"]),
    )?;
    tools::run(tools::cargo().args(["build", "--quiet", "--package", "bristlecone-cli"]))?;
    let folder = tempfile::tempdir().map_err(|e| format!("a temporary folder: {e}"))?;
    let (_server, address, metrics) = serve(folder.path())?;
    call(&address)?;
    check_metrics(&metrics)?;
    check_panels(folder.path(), &metrics, &packaging, &address)?;
    check_page(folder.path(), &metrics, &address)
}

/// Starts a server. Returns its address, and the one for metrics.
fn serve(folder: &Path) -> Outcome<(Server, String, String)> {
    let mut command = Command::new(tools::target_dir()?.join("debug/bristlecone"));
    command
        .arg("serve")
        .arg(folder.join("watched.db"))
        .args(["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"])
        .args(["--set", "slowlog-log-slower-than=0"]);
    let mut server = Server::start(&mut command)?;
    let address = server.after(" on ")?;
    let metrics = server.after("http://")?;
    let metrics = metrics.split('/').next().unwrap_or_default().to_owned();
    Ok((server, address, metrics))
}

/// Writes and reads some keys.
fn call(address: &str) -> Outcome {
    let requests = (0..KEYS).map(|key| format!("SET key{key} value\r\nEXISTS key{key}\r\n"));
    let replies = ["+OK", ":1"].iter().cycle().take(2 * KEYS);
    server::call(address, &requests.collect::<String>(), replies)
}

/// The body of the answer to a GET.
fn get(address: &str, path: &str) -> Outcome<String> {
    let failed = |e: std::io::Error| format!("{address}{path}: {e}");
    let mut stream = TcpStream::connect(address).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if head.split(' ').nth(1) != Some("200") {
        return Err(format!("{address}{path}: {head}: {body}"));
    }
    Ok(body.to_owned())
}

/// Has promtool look at the metrics.
fn check_metrics(metrics: &str) -> Outcome {
    let text = get(metrics, "/metrics")?;
    if !text.contains(&format!("bristlecone_keys{{db=\"0\"}} {KEYS}\n")) {
        return Err(format!("the metrics do not have {KEYS} keys:\n{text}"));
    }
    say("$ promtool check metrics");
    let checked = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .spawn();
    let mut checked = checked.map_err(|e| format!("promtool: {e}"))?;
    let mut input = checked.stdin.take().ok_or("promtool takes no input")?;
    let written = input.write_all(text.as_bytes());
    drop(input);
    let ended = checked.wait().map_err(|e| format!("promtool: {e}"))?;
    written.map_err(|e| format!("promtool: {e}"))?;
    if !ended.success() {
        return Err(format!("promtool check metrics ended with {ended}"));
    }
    Ok(())
}

/// Has a Prometheus watch the server, and asks it for all that the dashboard shows.
fn check_panels(folder: &Path, metrics: &str, packaging: &Path, address: &str) -> Outcome {
    let settings = std::fs::read_to_string(packaging.join("prometheus/prometheus.yml"))
        .map_err(|e| format!("prometheus.yml: {e}"))?;
    let rules = packaging.join("prometheus/bristlecone.rules.yml");
    let settings = settings
        .replace("127.0.0.1:9121", metrics)
        .replace("15s", "1s")
        .replace("bristlecone.rules.yml", &rules.display().to_string());
    let file = folder.join("prometheus.yml");
    std::fs::write(&file, settings).map_err(|e| format!("{}: {e}", file.display()))?;
    let free = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let listen = free.map_err(|e| format!("a free port: {e}"))?.to_string();
    say("$ prometheus");
    let started = Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            folder.join("tsdb").display()
        ))
        .arg(format!("--web.listen-address={listen}"))
        .arg("--log.level=error")
        .spawn();
    let _prometheus = Running(started.map_err(|e| format!("prometheus: {e}"))?);
    let dashboard = std::fs::read_to_string(packaging.join("grafana/bristlecone.json"))
        .map_err(|e| format!("bristlecone.json: {e}"))?;
    let dashboard: Value =
        serde_json::from_str(&dashboard).map_err(|e| format!("bristlecone.json: {e}"))?;
    let panels = dashboard["panels"].as_array().ok_or("no panels")?;
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array());
    let queries = targets
        .flatten()
        .filter_map(|target| target["expr"].as_str());
    let queries: Vec<String> = queries
        .map(|query| {
            query
                .replace("$instance", ".*")
                .replace("$__rate_interval", "30s")
        })
        .collect();
    if queries.is_empty() {
        return Err("the dashboard asks for nothing".into());
    }
    let until = Instant::now() + PATIENCE;
    for query in queries {
        loop {
            // So that there are rates.
            call(address)?;
            let path = format!("/api/v1/query?query={}", escaped(&query));
            let answer = get(&listen, &path);
            let found = answer.as_ref().is_ok_and(|answer| {
                let answer: Value = serde_json::from_str(answer).unwrap_or_default();
                let results = answer["data"]["result"].as_array();
                results.is_some_and(|results| !results.is_empty())
            });
            if found {
                break;
            }
            if Instant::now() > until {
                return Err(format!(
                    "the dashboard gets nothing for {query}: {answer:?}"
                ));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    let rules = get(&listen, "/api/v1/rules")?;
    if !rules.contains("BristleconeRefusesWrites") || rules.contains("\"health\":\"err\"") {
        return Err(format!("the alerts are not evaluated: {rules}"));
    }
    Ok(())
}

/// A text as a part of an address.
fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Looks at the status page with a browser, which runs its script until all is there.
fn check_page(folder: &Path, metrics: &str, address: &str) -> Outcome {
    let pictures = tools::target_dir()?.join("xtask");
    std::fs::create_dir_all(&pictures).map_err(|e| format!("{}: {e}", pictures.display()))?;
    // The page shows what happens while it is looked at.
    let seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // ORDERING: Relaxed; nothing but the flag itself.
        let called = scope.spawn(|| {
            while !seen.load(Ordering::Relaxed) {
                call(address)?;
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        let looked = look(folder, metrics, &pictures);
        // ORDERING: Relaxed; as above.
        seen.store(true, Ordering::Relaxed);
        let called = called.join().map_err(|_| "calling the server panicked")?;
        looked.and(called)
    })
}

fn look(folder: &Path, metrics: &str, pictures: &Path) -> Outcome {
    for (scheme, dark) in [("light", false), ("dark", true)] {
        let picture = pictures.join(format!("status-{scheme}.png"));
        let (profile, address) = (folder.join(scheme), format!("http://{metrics}/"));
        let browse = |what: &str| browser::browse(&profile, dark, (1280, 1500), what, &address);
        let page = browse("--dump-dom")?;
        let keys = format!(">{KEYS}<");
        for part in [
            ">well<",
            &keys,
            ">exists<",
            "SET key",
            "survives",
            "<polyline",
        ] {
            if !page.contains(part) {
                return Err(format!("the status page lacks {part:?}:\n{page}"));
            }
        }
        let shot = format!("--screenshot={}", picture.display());
        browse(&shot)?;
        say(format!("the status page, {scheme}: {}", picture.display()));
    }
    Ok(())
}
