//! `serve`: a database for Redis clients.

use crate::args::Serve;
use crate::database;
use bristlecone_command::failure::{Failure, Outcome};
use bristlecone_command::pool::How;
use bristlecone_pmem::media::Auto;
use bristlecone_server::config::Settings;
use bristlecone_server::log::{self, LogError};
use bristlecone_server::{Running, StartError, raise_open_files};
use bristlecone_store::Store;
use signal_hook::consts::SIGHUP;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Serves until it is told to stop.
pub fn run(args: &Serve) -> Outcome {
    // Nobody waits for it yet, but it is not to end the process.
    let told_to_reload: Arc<AtomicBool> = Arc::default();
    signal_hook::flag::register(SIGHUP, Arc::clone(&told_to_reload))
        .map_err(|e| Failure::new(format!("catching SIGHUP failed: {e}")))?;
    let settings = settings(args)?;
    let wrong = |e: StartError| {
        let text = format!("{}: {e}", args.pool.display());
        if e.is_wrong_setting() {
            Failure::Usage(text)
        } else {
            Failure::new(text)
        }
    };
    Running::check(&settings).map_err(wrong)?;
    let _flush = log::start(&settings).map_err(|e| match e {
        LogError::File { .. } => Failure::Usage(e.to_string()),
        e => Failure::new(e.to_string()),
    })?;
    raise_open_files(&settings);
    let store = open(args, &settings)?;
    let recovery = store.recovery();
    if let Some(first) = recovery.damage.first() {
        tracing::error!(
            damaged = recovery.damaged,
            %first,
            "the pool is damaged: what cannot be read answers with errors, nothing was taken away; stop the server and \
             run `bristlecone check`"
        );
    }
    let running = Running::start(store, settings).map_err(wrong)?;
    let signals = running
        .heed_signals()
        .map_err(|e| Failure::new(format!("waiting for signals failed: {e}")))?;
    tell(&args.pool, &running).map_err(|e| Failure::output(&e))?;
    // ORDERING: Relaxed; a signal's flag, which leads to nothing else.
    if told_to_reload.load(Ordering::Relaxed) {
        running.reload();
    }
    running.wait(signals);
    let is_broken = running.server().data.io_error().is_some();
    running.stop().map_err(|e| {
        // By the log, which waits for nobody: standard error may be a pipe that nobody reads.
        tracing::error!(error = %e, pool = %args.pool.display(), "closing the pool failed");
        Failure::Reported
    })?;
    // The log says why.
    if is_broken {
        Err(Failure::Reported)
    } else {
        Ok(())
    }
}

fn tell(pool: &Path, running: &Running) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "serving {} on {}", pool.display(), running.address())?;
    if let Some(address) = running.tls_address() {
        writeln!(out, "serving TLS on {address}")?;
    }
    if let Some(address) = running.memcached_address() {
        writeln!(out, "serving memcached on {address}")?;
    }
    if let Some(address) = running.metrics_address() {
        writeln!(
            out,
            "metrics on http://{address}/metrics, status page on http://{address}/"
        )?;
    }
    out.flush()
}

/// Flags, the environment and the file, in that order of precedence.
fn settings(args: &Serve) -> Outcome<Settings> {
    let usage = |e: &dyn Display| Failure::Usage(e.to_string());
    let mut settings = Settings::default();
    if let Some(file) = &args.config {
        settings.read_file(file).map_err(|e| usage(&e))?;
    }
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    settings
        .read_environment(variables)
        .map_err(|e| usage(&e))?;
    let flags = [
        ("listen", &args.listen),
        ("tls-listen", &args.tls_listen),
        ("tls-cert", &args.tls_cert),
        ("tls-key", &args.tls_key),
        ("memcached", &args.memcached),
        ("memcached-memory", &args.memcached_memory),
        ("metrics", &args.metrics),
        ("memory", &args.memory),
        ("archive", &args.archive),
    ];
    for (name, value) in flags {
        if let Some(value) = value {
            let flag = format!("--{name}");
            settings.set(name, value, &flag).map_err(|e| usage(&e))?;
        }
    }
    for (name, value) in &args.set {
        settings.set(name, value, "--set").map_err(|e| usage(&e))?;
    }
    Ok(settings)
}

/// Opens the database, which is made if it is not there.
fn open(args: &Serve, settings: &Settings) -> Outcome<Store<Auto>> {
    let how = How::write(args.write);
    let memory = settings.memory.bytes();
    let opened = database::options(&args.pool, how)
        .create(true)
        .memory(Some(memory as u64).filter(|bytes| *bytes > 0))
        .compression(settings.compression)
        .scrub(Some(settings.scrub).filter(|bytes| *bytes > 0))
        .archive(settings.archive_options())
        .open(&args.pool);
    let db = opened.map_err(|e| database::unopened(&args.pool, &e))?;
    Ok(db.store().clone())
}
