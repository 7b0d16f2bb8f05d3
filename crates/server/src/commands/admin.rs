//! Commands on the server: `CONFIG`, `SAVE`, `SLOWLOG`, `SHUTDOWN` and others.

use crate::command::{HelpLine, InMulti, SECOND};
use crate::config::Allowed;
use crate::error::CommandError;
use crate::parse::{Arg, integer, is};
use crate::reply::Out;
use crate::server::back_up;
use crate::session::{Context, Done, Flow, SessionCommand, subcommand};
use crate::table::{BUCKETS, Entry, value};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest `DEBUG SLEEP` in seconds.
const MAX_SLEEP: f64 = 3600.0;

const ADMIN: &[&str] = &["admin", "slow", "dangerous"];

const CONFIG_HELP: &[HelpLine] = &[
    (
        "GET <pattern> [<pattern> ...]",
        "Return the settings whose names match.",
    ),
    ("RESETSTAT", "Reset the statistics of INFO."),
    (
        "REWRITE",
        "Return an error: there is no configuration file to write.",
    ),
    (
        "SET <name> <value> [<name> <value> ...]",
        "Change settings, all or none.",
    ),
];

const DEBUG_HELP: &[HelpLine] = &[("SLEEP <seconds>", "Wait before replying.")];

const LATENCY_HELP: &[HelpLine] = &[
    ("DOCTOR", "Tell where to find latencies."),
    (
        "HISTOGRAM [<command> ...]",
        "Return histograms of the durations of commands.",
    ),
    (
        "HISTORY <event>",
        "Return nothing: events are not recorded.",
    ),
    ("LATEST", "Return nothing: events are not recorded."),
    ("RESET [<event> ...]", "Return 0: events are not recorded."),
];

const MEMORY_HELP: &[HelpLine] = &[
    ("DOCTOR", "Tell where to find memory usage."),
    ("PURGE", "Do nothing."),
    (
        "USAGE <key> [SAMPLES <count>]",
        "Return the size of a key and its record in bytes.",
    ),
];

const SLOWLOG_HELP: &[HelpLine] = &[
    (
        "GET [<count>]",
        "Return the newest entries (default: 10, -1: all): number, time, microseconds, arguments, address, name.",
    ),
    ("LEN", "Return how many entries there are."),
    ("RESET", "Remove all entries."),
];

const SAVE: SessionCommand = {
    let mut command = SessionCommand::new("save", 1, ADMIN, save).in_multi(InMulti::Refused);
    command.spec.long = true;
    command
};

const MEMORY: SessionCommand = {
    let mut command =
        SessionCommand::new("memory", -2, &["read", "slow"], memory).help(MEMORY_HELP);
    command.spec.keys = SECOND;
    command
};

/// The commands.
pub const COMMANDS: &[SessionCommand] = &[
    SessionCommand::new("time", 1, &["fast"], time),
    SessionCommand::new("role", 1, &["admin", "fast", "dangerous"], role),
    SessionCommand::new("wait", 3, &["slow", "connection"], wait),
    SessionCommand::new("config", -2, ADMIN, config).help(CONFIG_HELP),
    SessionCommand::new("debug", -2, ADMIN, debug).help(DEBUG_HELP),
    SAVE,
    SessionCommand::new("bgsave", -1, ADMIN, bgsave),
    SessionCommand::new("lastsave", 1, &["admin", "fast", "dangerous"], lastsave),
    SessionCommand::new("shutdown", -1, ADMIN, shutdown).in_multi(InMulti::Refused),
    SessionCommand::new("slowlog", -2, ADMIN, slowlog).help(SLOWLOG_HELP),
    SessionCommand::new("latency", -2, ADMIN, latency).help(LATENCY_HELP),
    MEMORY,
];

fn time(_: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default();
    out.array(2);
    out.bulk(now.as_secs().to_string().as_bytes());
    out.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(Flow::Go)
}

/// Replies that this is a primary without replicas.
fn role(_: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    out.array(3);
    out.bulk(b"master");
    out.integer(0);
    out.array(0);
    Ok(Flow::Go)
}

/// Replies how many replicas have the writes: there are none, so it does not wait.
fn wait(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    integer(args.get(1).copied().unwrap_or_default())?;
    let timeout = integer(args.get(2).copied().unwrap_or_default())
        .map_err(|_| CommandError::reply("ERR timeout is not an integer or out of range"))?;
    if timeout < 0 {
        return Err(CommandError::reply("ERR timeout is negative"));
    }
    // The reply waits until the writes are durable here.
    context.session.unsettled = true;
    out.integer(0);
    Ok(Flow::Go)
}

fn config(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let (word, lower, rest) = subcommand(args);
    match (lower.as_str(), rest) {
        ("get", [_, ..]) => {
            let found = context.server.settings().matching(rest);
            out.map(found.len());
            for (name, value) in found {
                out.bulk(name.as_bytes());
                out.bulk(value.as_bytes());
            }
        }
        ("set", [_, _, ..]) if rest.len().is_multiple_of(2) => {
            let texts: Result<Vec<&str>, _> = rest.iter().map(|arg| str::from_utf8(arg)).collect();
            let texts = texts.map_err(|_| CommandError::syntax())?;
            let pairs: Vec<(&str, &str)> = texts
                .chunks_exact(2)
                .filter_map(|pair| Some((*pair.first()?, *pair.get(1)?)))
                .collect();
            context.server.change(&pairs).map_err(CommandError::reply)?;
            out.status("OK");
        }
        ("resetstat", []) => {
            let entries = context.server.table.entries().iter();
            entries.for_each(|entry| entry.stats.reset());
            let stats = &context.server.stats;
            for counter in [
                &stats.connections,
                &stats.rejected,
                &stats.commands,
                &stats.input,
                &stats.output,
                &stats.settles,
                &stats.settled_commands,
                &stats.errors,
                &stats.denied,
                context.server.clients.budget().evicted(),
            ] {
                // ORDERING: Relaxed; statistics.
                counter.store(0, Ordering::Relaxed);
            }
            out.status("OK");
        }
        ("rewrite", []) => {
            let server = context.server;
            tokio::task::block_in_place(|| server.rewrite_settings())
                .map_err(CommandError::reply)?;
            out.status("OK");
        }
        ("get" | "set" | "resetstat" | "rewrite", _) => {
            return Err(CommandError::arity(&format!("config|{lower}")));
        }
        _ => return Err(CommandError::unknown_subcommand("config", word)),
    }
    Ok(Flow::Go)
}

fn debug(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let session = &context.session;
    let allowed = match session.current.settings.enable_debug_command {
        Allowed::No => false,
        Allowed::Yes => true,
        Allowed::Local => session.client.on_loopback,
    };
    if !allowed {
        return Err(CommandError::reply(
            "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.",
        ));
    }
    let (word, lower, rest) = subcommand(args);
    match (lower.as_str(), rest) {
        ("sleep", [seconds]) => {
            let seconds = std::str::from_utf8(seconds)
                .ok()
                .and_then(|seconds| seconds.parse::<f64>().ok())
                .filter(|seconds| seconds.is_finite())
                .unwrap_or(0.0);
            out.status("OK");
            Ok(Flow::Sleep(Duration::from_secs_f64(
                seconds.clamp(0.0, MAX_SLEEP),
            )))
        }
        _ => Err(CommandError::unknown_subcommand("debug", word)),
    }
}

/// Writes a backup, which includes what this connection has written: a backup contains what is
/// durable.
fn back_up_now(context: &mut Context<'_>) -> Result<(), CommandError> {
    context.settle()?;
    let server = context.server;
    let file = server.backup_file().map_err(CommandError::reply)?;
    back_up(&server.data, &server.backups, &file).map_err(CommandError::reply)
}

fn save(context: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    back_up_now(context)?;
    out.status("OK");
    Ok(Flow::Go)
}

fn bgsave(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    match args {
        [_] => {}
        [_, word] if is(word, "schedule") => {}
        _ => return Err(CommandError::syntax()),
    }
    context.settle()?;
    let server = context.server;
    let file = server.backup_file().map_err(CommandError::reply)?;
    if server.backups.running() {
        return Err(CommandError::reply(
            "ERR Background save already in progress",
        ));
    }
    let (data, backups) = (Arc::clone(&server.data), Arc::clone(&server.backups));
    // An error is logged, and shown by INFO.
    tokio::task::spawn_blocking(move || back_up(&data, &backups, &file));
    out.status("Background saving started");
    Ok(Flow::Go)
}

fn lastsave(context: &mut Context<'_>, _: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    out.integer(value(&context.server.backups.last) as i64);
    Ok(Flow::Go)
}

fn shutdown(context: &mut Context<'_>, args: &[Arg<'_>], _: &mut Out<'_>) -> Done {
    let mut backup = false;
    for word in args.iter().skip(1) {
        if is(word, "save") {
            backup = true;
        } else if is(word, "abort") {
            return Err(CommandError::reply("ERR No shutdown in progress."));
        } else if !["nosave", "now", "force"]
            .iter()
            .any(|known| is(word, known))
        {
            return Err(CommandError::syntax());
        }
    }
    if backup {
        tokio::task::block_in_place(|| back_up_now(context))?;
    }
    Ok(Flow::Shutdown)
}

fn slowlog(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let (word, lower, rest) = subcommand(args);
    let log = &context.server.slowlog;
    match (lower.as_str(), rest) {
        ("get", [] | [_]) => {
            let most = match rest.first() {
                None => 10,
                Some(count) => integer(count)
                    .ok()
                    .filter(|count| *count >= -1)
                    .ok_or_else(|| {
                        CommandError::reply("ERR count should be greater than or equal to -1")
                    })?,
            };
            let newest = log.newest(usize::try_from(most).unwrap_or(usize::MAX));
            out.array(newest.len());
            for slow in newest {
                out.array(6);
                out.integer(slow.id as i64);
                out.integer(slow.at as i64);
                out.integer(i64::try_from(slow.took.as_micros()).unwrap_or(i64::MAX));
                out.array(slow.args.len());
                slow.args.iter().for_each(|arg| out.bulk(arg));
                out.bulk(slow.client.0.as_bytes());
                out.bulk(slow.client.1.as_bytes());
            }
        }
        ("len", []) => out.integer(log.len() as i64),
        ("reset", []) => {
            log.clear();
            out.status("OK");
        }
        ("get" | "len" | "reset", _) => {
            return Err(CommandError::arity(&format!("slowlog|{lower}")));
        }
        _ => return Err(CommandError::unknown_subcommand("slowlog", word)),
    }
    Ok(Flow::Go)
}

fn latency(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let (word, lower, rest) = subcommand(args);
    match (lower.as_str(), rest) {
        // Events are not recorded; the histograms of all commands are.
        ("latest" | "history", _) => out.array(0),
        ("reset", _) => out.integer(0),
        ("doctor", []) => out.verbatim("Latency events are not recorded: see LATENCY HISTOGRAM."),
        ("histogram", names) => {
            let table = &context.server.table;
            let asked: Vec<&Entry> = if names.is_empty() {
                table.entries().iter().collect()
            } else {
                names.iter().filter_map(|name| table.find(name)).collect()
            };
            let called = asked
                .into_iter()
                .filter(|entry| value(&entry.stats.took.calls) > 0);
            let called: Vec<&Entry> = called.collect();
            out.map(called.len());
            for entry in called {
                histogram(entry, out);
            }
        }
        _ => return Err(CommandError::unknown_subcommand("latency", word)),
    }
    Ok(Flow::Go)
}

/// Replies with a cumulative histogram of a command's durations.
fn histogram(entry: &Entry, out: &mut Out<'_>) {
    out.bulk(entry.name().as_bytes());
    out.map(2);
    out.bulk(b"calls");
    out.integer(value(&entry.stats.took.calls) as i64);
    out.bulk(b"histogram_usec");
    let mut sum = 0;
    let mut shown: Vec<(u64, u64)> = Vec::with_capacity(BUCKETS);
    for (number, bucket) in entry.stats.took.buckets.iter().enumerate() {
        let calls = value(bucket);
        sum += calls;
        if calls > 0 {
            shown.push((1 << number, sum));
        }
    }
    out.map(shown.len());
    for (micros, calls) in shown {
        out.integer(micros as i64);
        out.integer(calls as i64);
    }
}

fn memory(context: &mut Context<'_>, args: &[Arg<'_>], out: &mut Out<'_>) -> Done {
    let (word, lower, rest) = subcommand(args);
    match (lower.as_str(), rest) {
        ("usage", [key, ..]) => {
            context.settle()?;
            let (server, db) = (context.server, context.session.db);
            match server.data.record_bytes(db, key)? {
                Some(bytes) => out.integer((bytes + key.len()) as i64),
                None => out.null(),
            }
        }
        ("doctor", []) => out.verbatim("Keys and values are in the pool: see INFO memory."),
        ("purge", []) => out.status("OK"),
        ("usage" | "doctor" | "purge", _) => {
            return Err(CommandError::arity(&format!("memory|{lower}")));
        }
        _ => return Err(CommandError::unknown_subcommand("memory", word)),
    }
    Ok(Flow::Go)
}
