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

fn text(server: &Server) -> String {
    let stats = &server.stats;
    let store = server.data.store().stats();
    let pool = server.data.store().pool().info();
    let metrics: [Metric; 23] = [
        (
            "uptime_seconds",
            "gauge",
            "Time since the start",
            server.started.elapsed().as_secs(),
        ),
        (
            "connected_clients",
            "gauge",
            "Clients",
            server.clients.len() as u64,
        ),
        (
            "connections_total",
            "counter",
            "Connections accepted",
            value(&stats.connections),
        ),
        (
            "rejected_connections_total",
            "counter",
            "Connections refused",
            value(&stats.rejected),
        ),
        (
            "evicted_clients_total",
            "counter",
            "Clients disconnected because of maxmemory-clients",
            value(server.clients.budget().evicted()),
        ),
        (
            "clients_bytes",
            "gauge",
            "Bytes that all clients hold: requests, replies, messages",
            server.clients.budget().total() as u64,
        ),
        (
            "commands_total",
            "counter",
            "Commands",
            value(&stats.commands),
        ),
        (
            "errors_total",
            "counter",
            "Error replies",
            value(&stats.errors),
        ),
        (
            "denied_total",
            "counter",
            "Wrong passwords, commands without right",
            value(&stats.denied),
        ),
        (
            "received_bytes_total",
            "counter",
            "Bytes received",
            value(&stats.input),
        ),
        (
            "sent_bytes_total",
            "counter",
            "Bytes sent",
            value(&stats.output),
        ),
        (
            "resident_bytes",
            "gauge",
            "Memory of the process",
            resident(),
        ),
        ("pool_bytes", "gauge", "Size of the pool", pool.pool_bytes),
        (
            "pool_used_bytes",
            "gauge",
            "Bytes of the pool in use",
            pool.used_bytes,
        ),
        (
            "settles_total",
            "counter",
            "Batches of commands made durable before they were answered",
            value(&stats.settles),
        ),
        (
            "settled_commands_total",
            "counter",
            "Commands of these batches",
            value(&stats.settled_commands),
        ),
        (
            "syncs_total",
            "counter",
            "Times that what was written was made durable, for all that waited",
            server.committer.syncs(),
        ),
        (
            "live_bytes",
            "gauge",
            "Bytes of newest versions",
            store.live_bytes,
        ),
        (
            "garbage_bytes",
            "gauge",
            "Bytes of older versions",
            store.garbage_bytes,
        ),
        ("versions", "gauge", "Versions of values", store.versions),
        (
            "vacuumed_versions_total",
            "counter",
            "Versions vacuumed",
            store.vacuumed,
        ),
        (
            "vacuumed_bytes_total",
            "counter",
            "Bytes vacuumed",
            store.vacuumed_bytes,
        ),
        (
            "durable_timestamp",
            "counter",
            "The last durable commit",
            store.durable,
        ),
    ];
    let mut text = String::new();
    let mut line = |args: std::fmt::Arguments<'_>| {
        // Writing to a string does not fail.
        let _ = text.write_fmt(args);
        text.push('\n');
    };
    for (name, kind, help, number) in metrics {
        line(format_args!("# HELP bristlecone_{name} {help}"));
        line(format_args!("# TYPE bristlecone_{name} {kind}"));
        line(format_args!("bristlecone_{name} {number}"));
    }
    let name = "bristlecone_command_seconds";
    line(format_args!(
        "# HELP {name} Time of commands, without waiting for durability"
    ));
    line(format_args!("# TYPE {name} histogram"));
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
            line(format_args!(
                "{name}_bucket{{command=\"{command}\",le=\"{seconds}\"}} {sum}"
            ));
        }
        let seconds = value(&entry.stats.nanos) as f64 / 1e9;
        line(format_args!(
            "{name}_bucket{{command=\"{command}\",le=\"+Inf\"}} {calls}"
        ));
        line(format_args!(
            "{name}_sum{{command=\"{command}\"}} {seconds}"
        ));
        line(format_args!(
            "{name}_count{{command=\"{command}\"}} {calls}"
        ));
    }
    text
}
