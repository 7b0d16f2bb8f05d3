//! `INFO`: the state of the server.

use crate::client::Client;
use crate::data::spaces::DATABASES;
use crate::memory::resident;
use crate::parse::{Arg, is};
use crate::reply::Out;
use crate::reply::REDIS_VERSION;
use crate::server::Server;
use crate::session::{Context, Done, Flow, SessionCommand};
use crate::table::value;
use bristlecone_pmem::Media;
use bristlecone_pmem::media::issued;
use std::fmt::Write;
use std::sync::atomic::Ordering;

/// The commands.
pub const COMMANDS: &[SessionCommand] = &[SessionCommand::new(
    "info",
    -1,
    &["slow", "dangerous"],
    info,
)];

/// The name of a section, and the function that writes it.
type Section = (&'static str, fn(&Server, &mut String));

const SECTIONS: [Section; 9] = [
    ("Server", of_server),
    ("Clients", of_clients),
    ("Memory", of_memory),
    ("Persistence", of_persistence),
    ("Stats", of_stats),
    ("Replication", of_replication),
    ("CPU", of_cpu),
    ("Commandstats", of_commands),
    ("Keyspace", of_keyspace),
];

fn info(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let asked = args.get(1..).unwrap_or_default();
    let all = asked
        .iter()
        .any(|word| is(word, "all") || is(word, "everything"));
    let default = asked.is_empty() || asked.iter().any(|word| is(word, "default"));
    // A key counts once its change is applied: the reply waits until that is durable.
    context.session.unsettled = true;
    let mut text = String::new();
    for (name, write) in SECTIONS {
        let named = asked.iter().any(|word| is(word, name));
        if all || named || default && name != "Commandstats" {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            line(&mut text, format_args!("# {name}"));
            write(context.server, &mut text);
        }
    }
    out.verbatim(&text);
    Ok(Flow::Go)
}

fn line(text: &mut String, args: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(args);
    text.push_str("\r\n");
}

macro_rules! lines {
    ($text:ident, $($name:literal = $value:expr),* $(,)?) => {
        $(line($text, format_args!("{}:{}", $name, $value));)*
    };
}

fn of_server(server: &Server, text: &mut String) {
    let up = server.started.elapsed().as_secs();
    let settings = server.settings();
    let port = settings
        .listen
        .rsplit_once(':')
        .map_or("0", |(_, port)| port);
    let medium = server.data.store().pool().pm().kind();
    lines!(
        text,
        "redis_version" = REDIS_VERSION,
        "bristlecone_version" = env!("CARGO_PKG_VERSION"),
        "redis_mode" = "standalone",
        "os" = std::env::consts::OS,
        "arch_bits" = usize::BITS,
        "multiplexing_api" = "epoll",
        "process_id" = std::process::id(),
        "run_id" = server.run_id,
        "tcp_port" = port,
        "uptime_in_seconds" = up,
        "uptime_in_days" = up / 86_400,
        "pool" = server.data.store().pool().path().display(),
        "medium" = medium.name(),
        "index" = server.data.store().design().0,
    );
}

fn of_clients(server: &Server, text: &mut String) {
    let clients = server.clients.all();
    let count = |which: fn(&Client) -> bool| clients.iter().filter(|client| which(client)).count();
    lines!(
        text,
        "connected_clients" = server.clients.len(),
        "maxclients" = server.settings().maxclients,
        "blocked_clients" = count(|client| client.waiter().is_some()),
        "pubsub_clients" = count(Client::subscribed),
    );
}

fn human(bytes: u64) -> String {
    let mut size = bytes as f64;
    let units = ["B", "K", "M", "G", "T"];
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < units.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.2}{}", units.get(unit).unwrap_or(&""))
}

/// Waits until the keys are counted, which takes long after a crash.
fn count_keys(server: &Server) {
    if !server.data.store().is_counted() {
        tokio::task::block_in_place(|| server.data.count_keys());
    }
}

fn of_memory(server: &Server, text: &mut String) {
    count_keys(server);
    let store = server.data.store();
    let (resident, stats, pool) = (resident(), store.stats(), store.pool().info());
    lines!(
        text,
        "used_memory" = resident,
        "used_memory_human" = human(resident),
        "used_memory_rss" = resident,
        "used_memory_rss_human" = human(resident),
        "used_memory_dataset" = stats.live_bytes,
        "used_memory_scripts" = server.data.scripts.kept().1,
        "number_of_cached_scripts" = server.data.scripts.kept().0,
        "maxmemory" = 0,
        "maxmemory_human" = "0B",
        "maxmemory_policy" = "noeviction",
        "mem_clients_normal" = server.clients.budget().total(),
        "maxmemory_clients" = server.clients.budget().limit(),
        "pool_bytes" = pool.pool_bytes,
        "pool_used_bytes" = pool.used_bytes,
        "pool_free_bytes" = pool.free_bytes,
        "live_bytes" = stats.live_bytes,
        "garbage_bytes" = stats.garbage_bytes,
        "versions" = stats.versions,
        "vacuumed_versions" = stats.vacuumed,
        "vacuumed_bytes" = stats.vacuumed_bytes,
        "mended" = stats.mended,
        "snapshots" = stats.snapshots,
    );
}

fn of_persistence(server: &Server, text: &mut String) {
    // ORDERING: Relaxed; shown only.
    let failed = server.backups.failed.load(Ordering::Relaxed);
    let status = if failed { "err" } else { "ok" };
    let store = server.data.store();
    let (scrub, archive) = (store.scrub_stats(), store.archive_stats());
    let issued = issued();
    lines!(
        text,
        "loading" = 0,
        "async_loading" = 0,
        "rdb_changes_since_last_save" = 0,
        "rdb_bgsave_in_progress" = u8::from(server.backups.running()),
        "rdb_last_save_time" = value(&server.backups.last),
        "rdb_last_bgsave_status" = status,
        "aof_enabled" = 1,
        "aof_rewrite_in_progress" = 0,
        // Nothing is ever rewritten.
        "aof_last_bgrewrite_status" = "ok",
        "aof_last_write_status" = if server.data.takes_writes() {
            "ok"
        } else {
            "err"
        },
        "io_error" = server.data.io_error().unwrap_or_default(),
        "scrub_rounds" = scrub.rounds,
        "scrub_bytes" = scrub.bytes,
        "scrub_round_bytes" = scrub.round_bytes,
        "damaged" = server.known_damage(),
        "archive_enabled" = u8::from(archive.is_some()),
        "applied_timestamp" = server.data.applied(),
        "durable_timestamp" = server.data.store().durable(),
        "persist_lines" = issued.lines,
        "persist_fences" = issued.fences,
    );
    if let Some(archive) = archive {
        lines!(
            text,
            "archive_status" = if archive.error.is_none() { "ok" } else { "err" },
            "archive_error" = archive.error.as_deref().unwrap_or_default(),
            "archived_timestamp" = archive.archived.unwrap_or(0),
            "archive_last_time" = archive.at / 1000,
            "archive_commits" = archive.commits,
            "archive_bytes" = archive.bytes,
            "archive_queued_bytes" = archive.queued_bytes,
            "archive_full_states" = archive.full_states,
            "archive_incremental_states" = archive.incremental_states,
            "archive_state_in_progress" = u8::from(archive.writing.is_some()),
        );
    }
}

fn of_stats(server: &Server, text: &mut String) {
    let stats = &server.stats;
    let lookups = &server.data.lookups;
    let (channels, patterns) = server.pubsub.counts();
    lines!(
        text,
        "total_connections_received" = value(&stats.connections),
        "total_commands_processed" = value(&stats.commands),
        "total_net_input_bytes" = value(&stats.input),
        "total_net_output_bytes" = value(&stats.output),
        "rejected_connections" = value(&stats.rejected),
        "evicted_clients" = value(server.clients.budget().evicted()),
        "keyspace_hits" = value(&lookups.hits),
        "keyspace_misses" = value(&lookups.misses),
        "total_settles" = value(&stats.settles),
        "total_settled_commands" = value(&stats.settled_commands),
        "total_syncs" = value(&server.committer.syncs().calls),
        "pubsub_channels" = channels,
        "pubsub_patterns" = patterns,
        "total_error_replies" = value(&stats.errors),
        "acl_access_denied" = value(&stats.denied),
        "slowlog_len" = server.slowlog.len(),
    );
}

fn of_replication(server: &Server, text: &mut String) {
    lines!(
        text,
        "role" = "master",
        "connected_slaves" = 0,
        "master_replid" = server.run_id,
        "master_repl_offset" = 0,
    );
}

/// Returns the CPU time of this process in seconds: in the kernel, and outside of it.
fn cpu() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may contain spaces.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    let mut ticks = after.split_whitespace().skip(11).map(|field| {
        let ticks: f64 = field.parse().unwrap_or(0.0);
        ticks / rustix::param::clock_ticks_per_second() as f64
    });
    let user = ticks.next().unwrap_or(0.0);
    (ticks.next().unwrap_or(0.0), user)
}

fn of_cpu(_: &Server, text: &mut String) {
    let (system, user) = cpu();
    lines!(
        text,
        "used_cpu_sys" = format_args!("{system:.6}"),
        "used_cpu_user" = format_args!("{user:.6}"),
    );
}

fn of_commands(server: &Server, text: &mut String) {
    for entry in server.table.entries() {
        let took = &entry.stats.took;
        let (calls, nanos) = (value(&took.calls), value(&took.nanos));
        let rejected = value(&entry.stats.rejected);
        if calls + rejected > 0 {
            let per_call = nanos as f64 / 1000.0 / calls.max(1) as f64;
            line(
                text,
                format_args!(
                    "cmdstat_{}:calls={calls},usec={},usec_per_call={per_call:.2},rejected_calls={rejected},failed_calls={}",
                    entry.name(),
                    nanos / 1000,
                    value(&entry.stats.failed),
                ),
            );
        }
    }
}

fn of_keyspace(server: &Server, text: &mut String) {
    count_keys(server);
    for db in 0..DATABASES {
        let keys = server.data.len(db);
        if keys > 0 {
            line(text, format_args!("db{db}:keys={keys},expires=0,avg_ttl=0"));
        }
    }
}
