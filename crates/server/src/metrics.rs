//! Metrics in the format of Prometheus, over HTTP.

use crate::memory::resident;
use crate::server::Server;
use crate::table::value;
use std::fmt::Write;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest request in bytes, and how long it may take.
const MAX_REQUEST: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);

/// Replies to one request.
pub async fn answer(server: &Server, mut stream: TcpStream) {
    let served = tokio::time::timeout(PATIENCE, serve(server, &mut stream));
    // A client that does not read the reply is disconnected.
    if let Ok(Err(e)) = served.await {
        tracing::debug!(error = %e, "metrics were not taken");
    }
}

async fn serve(server: &Server, stream: &mut TcpStream) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > MAX_REQUEST || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = if request.starts_with(b"GET /metrics ") || request.starts_with(b"GET / ")
    {
        ("200 OK", text(server))
    } else {
        ("404 Not Found", "only /metrics is here\n".to_owned())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// A metric: name, kind, help, value.
type Metric = (&'static str, &'static str, &'static str, u64);

fn gauge(name: &'static str, help: &'static str, value: u64) -> Metric {
    (name, "gauge", help, value)
}

fn counter(name: &'static str, help: &'static str, value: u64) -> Metric {
    (name, "counter", help, value)
}

/// Returns the metrics of connections and commands.
fn of_connections(server: &Server) -> [Metric; 14] {
    let stats = &server.stats;
    let budget = server.clients.budget();
    let up = server.started.elapsed().as_secs();
    let syncs = server.committer.syncs();
    [
        gauge("uptime_seconds", "Time since the start", up),
        gauge("connected_clients", "Clients", server.clients.len() as u64),
        counter(
            "connections_total",
            "Connections accepted",
            value(&stats.connections),
        ),
        counter(
            "rejected_connections_total",
            "Connections refused",
            value(&stats.rejected),
        ),
        counter(
            "evicted_clients_total",
            "Clients disconnected because of maxmemory-clients",
            value(budget.evicted()),
        ),
        gauge(
            "clients_bytes",
            "Bytes that all clients hold: requests, replies, messages",
            budget.total() as u64,
        ),
        counter("commands_total", "Commands", value(&stats.commands)),
        counter("errors_total", "Error replies", value(&stats.errors)),
        counter(
            "denied_total",
            "Wrong passwords, commands without right",
            value(&stats.denied),
        ),
        counter(
            "received_bytes_total",
            "Bytes received",
            value(&stats.input),
        ),
        counter("sent_bytes_total", "Bytes sent", value(&stats.output)),
        counter(
            "settles_total",
            "Batches of commands made durable before their replies",
            value(&stats.settles),
        ),
        counter(
            "settled_commands_total",
            "Commands in these batches",
            value(&stats.settled_commands),
        ),
        counter(
            "syncs_total",
            "Syncs, each for all connections that waited",
            syncs,
        ),
    ]
}

/// Returns the metrics of the process, the pool and the store.
fn of_store(server: &Server) -> [Metric; 10] {
    let store = server.data.store().stats();
    let pool = server.data.store().pool().info();
    [
        gauge("resident_bytes", "Memory of the process", resident()),
        gauge("pool_bytes", "Size of the pool", pool.pool_bytes),
        gauge(
            "pool_used_bytes",
            "Bytes of the pool in use",
            pool.used_bytes,
        ),
        gauge(
            "live_bytes",
            "Bytes of newest versions: what the keys and values take",
            store.live_bytes,
        ),
        gauge(
            "garbage_bytes",
            "Bytes of older versions, which are in memory for as long as a snapshot reads them",
            store.garbage_bytes,
        ),
        gauge(
            "versions",
            "Newest and older versions of values",
            store.versions,
        ),
        counter(
            "vacuumed_versions_total",
            "Keys that were vacuumed: expired, or of dropped keyspaces",
            store.vacuumed,
        ),
        counter(
            "vacuumed_bytes_total",
            "Bytes of the versions that were vacuumed",
            store.vacuumed_bytes,
        ),
        counter(
            "mended_total",
            "Damaged inner pages, words of the page table and changes that were made again",
            store.mended,
        ),
        counter(
            "durable_timestamp",
            "The last durable commit",
            store.durable,
        ),
    ]
}

fn line(text: &mut String, args: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(args);
    text.push('\n');
}

fn text(server: &Server) -> String {
    let mut text = String::new();
    for (name, kind, help, number) in of_connections(server).into_iter().chain(of_store(server)) {
        line(&mut text, format_args!("# HELP bristlecone_{name} {help}"));
        line(&mut text, format_args!("# TYPE bristlecone_{name} {kind}"));
        line(&mut text, format_args!("bristlecone_{name} {number}"));
    }
    histograms(server, &mut text);
    text
}

/// Appends a histogram of durations for each command that was called.
fn histograms(server: &Server, text: &mut String) {
    let name = "bristlecone_command_seconds";
    line(
        text,
        format_args!("# HELP {name} Time of commands, without waiting for durability"),
    );
    line(text, format_args!("# TYPE {name} histogram"));
    for entry in server.table.entries() {
        let calls = value(&entry.stats.calls);
        if calls == 0 {
            continue;
        }
        let command = entry.name();
        let mut sum = 0;
        let bounded = entry.stats.buckets.len() - 1;
        for (number, bucket) in entry.stats.buckets.iter().take(bounded).enumerate() {
            sum += value(bucket);
            let seconds = (1_u64 << number) as f64 / 1e6;
            line(
                text,
                format_args!("{name}_bucket{{command=\"{command}\",le=\"{seconds}\"}} {sum}"),
            );
        }
        let seconds = value(&entry.stats.nanos) as f64 / 1e9;
        line(
            text,
            format_args!("{name}_bucket{{command=\"{command}\",le=\"+Inf\"}} {calls}"),
        );
        line(
            text,
            format_args!("{name}_sum{{command=\"{command}\"}} {seconds}"),
        );
        line(
            text,
            format_args!("{name}_count{{command=\"{command}\"}} {calls}"),
        );
    }
}
