//! Metrics in the format of Prometheus.

use crate::data::spaces::DATABASES;
use crate::memory::resident;
use crate::server::Server;
use crate::table::{Durations, value};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::issued;
use std::fmt::{Display, Write};

/// A metric: name, kind, help, value.
type Metric = (&'static str, &'static str, &'static str, u64);

fn gauge(name: &'static str, help: &'static str, value: u64) -> Metric {
    (name, "gauge", help, value)
}

fn counter(name: &'static str, help: &'static str, value: u64) -> Metric {
    (name, "counter", help, value)
}

/// Returns the metrics of connections and commands.
fn of_connections(server: &Server) -> [Metric; 16] {
    let stats = &server.stats;
    let lookups = &server.data.lookups;
    let budget = server.clients.budget();
    let up = server.started.elapsed().as_secs();
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
            value(&server.committer.syncs().calls),
        ),
        counter(
            "hits_total",
            "Keys that reading commands found",
            value(&lookups.hits),
        ),
        counter(
            "misses_total",
            "Keys that reading commands did not find",
            value(&lookups.misses),
        ),
    ]
}

/// Returns the metrics of the process, the pool and the store that are known at once.
fn of_store(server: &Server) -> [Metric; 12] {
    let store = server.data.store();
    let (pool, scrub) = (store.pool().info(), store.scrub_stats());
    let ready = u64::from(server.unready().is_empty());
    let counted = u64::from(store.is_counted());
    let issued = issued();
    [
        gauge("resident_bytes", "Memory of the process", resident()),
        gauge("pool_bytes", "Size of the pool", pool.pool_bytes),
        gauge(
            "pool_used_bytes",
            "Bytes of the pool in use",
            pool.used_bytes,
        ),
        gauge(
            "counted",
            "1, or 0 while keys are counted after a kill: what needs their number is left out",
            counted,
        ),
        gauge(
            "damaged",
            "Damaged places that opening or scrubbing has found",
            server.known_damage(),
        ),
        counter(
            "scrubbed_bytes_total",
            "Bytes that scrubbing has compared with their checksums",
            scrub.bytes,
        ),
        counter(
            "scrub_rounds_total",
            "Rounds of scrubbing that came to their end",
            scrub.rounds,
        ),
        counter(
            "persist_lines_total",
            "Cache lines flushed to persistent memory, or captured for the journal",
            issued.lines,
        ),
        counter("persist_fences_total", "Fences after them", issued.fences),
        gauge("ready", "1, or 0 while writes are refused", ready),
        gauge(
            "durable_timestamp",
            "The last durable commit",
            store.durable(),
        ),
        gauge(
            "applied_timestamp",
            "The last commit, durable or not",
            server.data.applied(),
        ),
    ]
}

/// Returns the metrics of memcached's items, if they are served.
fn of_items(server: &Server) -> Vec<Metric> {
    let Some(items) = &server.items else {
        return Vec::new();
    };
    let counters = &items.counters;
    let mut all = vec![
        counter(
            "memcached_hits_total",
            "Items that memcached clients asked for and found, since stats reset",
            value(&counters.get_hits),
        ),
        counter(
            "memcached_misses_total",
            "Items that memcached clients asked for and did not find, since stats reset",
            value(&counters.get_misses),
        ),
        counter(
            "memcached_stores_total",
            "Stores of memcached clients, since stats reset",
            value(&counters.cmd_set),
        ),
        counter(
            "memcached_evictions_total",
            "Items evicted because of memcached-memory, since stats reset",
            value(&counters.evictions),
        ),
    ];
    if server.data.store().is_counted() {
        let help =
            "Items of memcached clients; expired and flushed ones count until they are deleted";
        all.push(gauge("memcached_items", help, items.len()));
    }
    all
}

/// Returns the metrics of the archive, if there is one.
fn of_archive(server: &Server) -> Vec<Metric> {
    let Some(archive) = server.data.store().archive_stats() else {
        return Vec::new();
    };
    vec![
        gauge(
            "archive_failing",
            "1 if the archive could not be written to at the last attempt, or 0",
            u64::from(archive.error.is_some()),
        ),
        gauge(
            "archived_timestamp",
            "The last commit that the archive leads to",
            archive.archived.unwrap_or(0),
        ),
        gauge(
            "archive_time_seconds",
            "When the archive was last up to date, in seconds since 1970",
            archive.at / 1000,
        ),
        counter(
            "archived_commits_total",
            "Commits that were written to the archive",
            archive.commits,
        ),
        counter(
            "archived_bytes_total",
            "Bytes that were written to the archive",
            archive.bytes,
        ),
        gauge(
            "archive_queued_bytes",
            "Bytes of commits that wait to be written to the archive",
            archive.queued_bytes,
        ),
        counter(
            "archive_full_states_total",
            "Full states that were written to the archive",
            archive.full_states,
        ),
        counter(
            "archive_incremental_states_total",
            "Incremental states that were written to the archive, because commits were not",
            archive.incremental_states,
        ),
    ]
}

/// Returns the metrics of the store once its keys are counted.
fn of_keys(server: &Server) -> Vec<Metric> {
    if !server.data.store().is_counted() {
        return Vec::new();
    }
    let store = server.data.store().stats();
    vec![
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
    ]
}

fn line(text: &mut String, args: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(args);
    text.push('\n');
}

/// Begins a metric.
fn begin(text: &mut String, name: &str, kind: &str, help: &str) {
    line(text, format_args!("# HELP bristlecone_{name} {help}"));
    line(text, format_args!("# TYPE bristlecone_{name} {kind}"));
}

/// All metrics.
pub(super) fn text(server: &Server) -> String {
    let mut text = String::new();
    let store = server.data.store();
    begin(&mut text, "build_info", "gauge", "What runs; always 1");
    line(
        &mut text,
        format_args!(
            "bristlecone_build_info{{version=\"{}\",medium=\"{}\"}} 1",
            env!("CARGO_PKG_VERSION"),
            store.pool().pm().kind().name()
        ),
    );
    let all = of_connections(server).into_iter().chain(of_store(server));
    let all = all.chain(of_items(server)).chain(of_archive(server));
    for (name, kind, help, number) in all.chain(of_keys(server)) {
        begin(&mut text, name, kind, help);
        line(&mut text, format_args!("bristlecone_{name} {number}"));
    }
    begin(
        &mut text,
        "keys",
        "gauge",
        "Keys of a database; expired ones count until they are deleted",
    );
    let databases = if store.is_counted() { DATABASES } else { 0 };
    for db in 0..databases {
        let keys = server.data.len(db);
        if keys > 0 {
            line(
                &mut text,
                format_args!("bristlecone_keys{{db=\"{db}\"}} {keys}"),
            );
        }
    }
    let help = "Time to make writes durable, each time for all connections that waited";
    begin(&mut text, "sync_seconds", "histogram", help);
    histogram(&mut text, "sync_seconds", "", server.committer.syncs());
    let help = "Time of commands, without waiting for durability";
    begin(&mut text, "command_seconds", "histogram", help);
    for entry in server.table.entries() {
        if value(&entry.stats.took.calls) > 0 {
            let label = format!("command=\"{}\"", entry.name());
            histogram(&mut text, "command_seconds", &label, &entry.stats.took);
        }
    }
    text
}

/// Appends a histogram of durations.
fn histogram(text: &mut String, name: &str, label: &str, durations: &Durations) {
    let comma = if label.is_empty() { "" } else { "," };
    let mut sum = 0;
    let mut bucket = |bound: &dyn Display, sum: u64| {
        line(
            text,
            format_args!("bristlecone_{name}_bucket{{{label}{comma}le=\"{bound}\"}} {sum}"),
        );
    };
    let bounded = durations.buckets.len() - 1;
    for (number, calls) in durations.buckets.iter().take(bounded).enumerate() {
        sum += value(calls);
        bucket(&((1_u64 << number) as f64 / 1e6), sum);
    }
    sum += durations.buckets.last().map_or(0, value);
    bucket(&"+Inf", sum);
    let labels = if label.is_empty() {
        String::new()
    } else {
        format!("{{{label}}}")
    };
    let seconds = value(&durations.nanos) as f64 / 1e9;
    line(
        text,
        format_args!("bristlecone_{name}_sum{labels} {seconds}"),
    );
    line(text, format_args!("bristlecone_{name}_count{labels} {sum}"));
}
