//! The state of the server as JSON, for the status page and whoever wants it.
//!
//! Counters are totals since the start: who wants a rate asks twice.

use crate::client::Client;
use crate::data::spaces::DATABASES;
use crate::memory::resident;
use crate::reply::REDIS_VERSION;
use crate::server::{Server, seconds};
use crate::slowlog::Slow;
use crate::table::{Durations, value};
use bristlecone_pmem::Media;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The most clients, and the most entries of the slow log, that are listed.
const LISTED: usize = 20;

/// The state of the server.
pub(super) fn of(server: &Server) -> Value {
    let store = server.data.store();
    let (pool, recovery, scrub) = (store.pool().info(), store.recovery(), store.scrub_stats());
    // After a kill the keys are being counted.
    let stats = store.is_counted().then(|| store.stats());
    let stats = stats.as_ref();
    let medium = store.pool().pm().kind();
    let lookups = &server.data.lookups;
    let counts = &server.stats;
    let found = store.scrub_findings();
    let places = recovery
        .damage
        .iter()
        .chain(&found)
        .map(ToString::to_string);
    let places: BTreeSet<String> = places.take(LISTED).collect();
    json!({
        "server": {
            "bristlecone_version": env!("CARGO_PKG_VERSION"),
            "redis_version": REDIS_VERSION,
            "run_id": server.run_id,
            "process_id": std::process::id(),
            "pool": store.pool().path().display().to_string(),
            "medium": medium.name(),
            "survives": medium.survives(),
            "time": seconds(),
            "uptime_seconds": server.started.elapsed().as_secs(),
        },
        "health": { "broken": server.broken(), "unready": server.unready() },
        "totals": {
            "commands": value(&counts.commands),
            "errors": value(&counts.errors),
            "denied": value(&counts.denied),
            "hits": value(&lookups.hits),
            "misses": value(&lookups.misses),
            "received_bytes": value(&counts.input),
            "sent_bytes": value(&counts.output),
            "connections": value(&counts.connections),
            "rejected_connections": value(&counts.rejected),
            "evicted_clients": value(server.clients.budget().evicted()),
        },
        "commands": commands(server),
        "durability": {
            "applied": server.data.applied(),
            "durable": store.durable(),
            "settled_commands": value(&counts.settled_commands),
            "syncs": durations(server.committer.syncs()),
            "archive": store.archive_stats().map(|archive| json!({
                "archived": archive.archived,
                "at_ms": archive.at,
                "error": archive.error,
                "queued_bytes": archive.queued_bytes,
                "writing_state": archive.writing.is_some(),
            })),
        },
        "memory": {
            "resident_bytes": resident(),
            "limit_bytes": server.settings().memory.bytes(),
            "clients_bytes": server.clients.budget().total(),
            "clients_limit_bytes": server.clients.budget().limit(),
        },
        "space": {
            "pool_bytes": pool.pool_bytes,
            "used_bytes": pool.used_bytes,
            "free_bytes": pool.free_bytes,
            "live_bytes": stats.map(|stats| stats.live_bytes),
            "garbage_bytes": stats.map(|stats| stats.garbage_bytes),
        },
        "keys": stats.map(|_| keys(server)),
        "expiring": stats.map(|stats| stats.expiring),
        "damage": {
            "mended": stats.map(|stats| stats.mended),
            "known": server.known_damage(),
            "places": places,
            "scrub_rounds": scrub.rounds,
            "scrub_round_bytes": scrub.round_bytes,
            "scrub_bytes_per_second": server.settings().scrub,
        },
        "slow": server.slowlog.newest(LISTED).iter().map(slow).collect::<Vec<_>>(),
        "clients": { "connected": server.clients.len(), "listed": clients(server) },
    })
}

/// How often, how long altogether, and the buckets: number n holds what took less than 2^n µs.
fn durations(of: &Durations) -> Value {
    json!({
        "calls": value(&of.calls),
        "seconds": value(&of.nanos) as f64 / 1e9,
        "buckets": of.buckets.iter().map(value).collect::<Vec<_>>(),
    })
}

fn commands(server: &Server) -> Vec<Value> {
    let called = server.table.entries().iter().filter(|entry| {
        let stats = &entry.stats;
        value(&stats.took.calls) + value(&stats.rejected) > 0
    });
    let one = |entry: &crate::table::Entry| {
        json!({
            "name": entry.name(),
            "took": durations(&entry.stats.took),
            "failed": value(&entry.stats.failed),
            "rejected": value(&entry.stats.rejected),
        })
    };
    called.map(one).collect()
}

fn keys(server: &Server) -> Vec<Value> {
    let of = |db| (db, server.data.len(db));
    let there = (0..DATABASES).map(of).filter(|(_, keys)| *keys > 0);
    there
        .map(|(db, keys)| json!({ "db": db, "keys": keys }))
        .collect()
}

fn slow(entry: &Slow) -> Value {
    let words = entry.args.iter();
    let words: Vec<_> = words.map(|word| String::from_utf8_lossy(word)).collect();
    let (address, name) = &entry.client;
    json!({
        "time": entry.at,
        "micros": entry.took.as_micros() as u64,
        "words": words,
        "client": address,
        "client_name": name,
    })
}

/// The clients that hold most memory.
fn clients(server: &Server) -> Vec<Value> {
    let mut all = server.clients.all();
    all.sort_by_key(|client| std::cmp::Reverse((client.account.sum(), client.id)));
    let one = |client: &std::sync::Arc<Client>| {
        let names = client.names().clone();
        json!({
            "id": client.id,
            "address": client.address,
            "name": names.name,
            "user": names.user,
            "command": names.command,
            "age_seconds": client.age(),
            "idle_seconds": client.idle(),
            "bytes": client.account.sum(),
        })
    };
    all.iter().take(LISTED).map(one).collect()
}
