//! `stats`, in text and binary.

use super::packet::Head;
use super::words::Words;
use super::{MEMCACHED_VERSION, Memcached};
use crate::config::Allowed;
use crate::items::Items;
use crate::server::{Server, seconds};
use crate::table::{add, value};
use crate::users::User;
use rustix::param::clock_ticks_per_second;
use rustix::process::getpid;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::block_in_place;

/// A statistic.
type Stat = (String, String);

/// Classes of sizes in `stats sizes`, in bytes.
const SIZE_CLASS: usize = 32;

/// Statistics that memcached has and this server has nothing to say of: its slabs, its threads, its
/// buffers.
const NOTHING: [&str; 44] = [
    "response_obj_oom",
    "response_obj_count",
    "response_obj_bytes",
    "read_buf_count",
    "read_buf_bytes",
    "read_buf_bytes_free",
    "read_buf_oom",
    "reserved_fds",
    "listen_disabled_num",
    "time_in_listen_disabled_us",
    "conn_yields",
    "hash_power_level",
    "hash_bytes",
    "hash_is_expanding",
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_running",
    "slabs_moved",
    "lru_crawler_running",
    "lru_crawler_starts",
    "lru_maintainer_juggles",
    "malloc_fails",
    "log_worker_dropped",
    "log_worker_written",
    "log_watcher_skipped",
    "log_watcher_sent",
    "log_watchers",
    "unexpected_napi_ids",
    "round_robin_fallback",
    "slab_global_page_pool",
    "expired_unfetched",
    "evicted_active",
    "crawler_reclaimed",
    "crawler_items_checked",
    "lrutail_reflocked",
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "direct_reclaims",
    "lru_bumps_dropped",
];

fn stat(name: &str, value: impl std::fmt::Display) -> Stat {
    (name.to_owned(), value.to_string())
}

fn yes_or_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// Returns the seconds that this process has computed, as itself and in the system; 0 if the system
/// does not tell.
fn processor_times() -> [f64; 2] {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the process, in brackets, may have spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut ticks = fields.split_whitespace().skip(11);
    let per_second = clock_ticks_per_second() as f64;
    [(); 2].map(|()| {
        let ticks: Option<f64> = ticks.next().and_then(|ticks| ticks.parse().ok());
        ticks.unwrap_or(0.0) / per_second
    })
}

/// Returns the general statistics.
fn general(server: &Server, items: &Items) -> Vec<Stat> {
    let settings = server.settings();
    let stats = &server.stats;
    let threads = if settings.threads > 0 {
        settings.threads
    } else {
        std::thread::available_parallelism().map_or(1, usize::from)
    };
    let [user, system] = processor_times();
    let mut all = vec![
        stat("pid", getpid().as_raw_nonzero()),
        stat("uptime", server.started.elapsed().as_secs()),
        stat("time", seconds()),
        stat("version", MEMCACHED_VERSION),
        stat(
            "libevent",
            concat!("bristlecone-", env!("CARGO_PKG_VERSION")),
        ),
        stat("pointer_size", usize::BITS),
        stat("rusage_user", format_args!("{user:.6}")),
        stat("rusage_system", format_args!("{system:.6}")),
        stat("max_connections", settings.maxclients),
        stat("curr_connections", server.clients.len()),
        stat("total_connections", value(&stats.connections)),
        stat("rejected_connections", value(&stats.rejected)),
        stat("idle_kicks", value(&stats.idle)),
        stat("connection_structures", server.clients.len()),
        stat("bytes_read", value(&stats.input)),
        stat("bytes_written", value(&stats.output)),
        stat("limit_maxbytes", items.limits.memory),
        stat("accepting_conns", 1),
        stat("threads", threads),
        stat("bytes", items.bytes()),
        stat("curr_items", items.len()),
    ];
    all.extend(
        items
            .counters
            .all()
            .iter()
            .map(|(name, value)| stat(name, value)),
    );
    all.extend(NOTHING.iter().map(|name| stat(name, 0)));
    all
}

/// Returns the statistics of items: to memcached there is one class of them.
fn of_items(items: &Items) -> Vec<Stat> {
    let number = items.len();
    if number == 0 {
        return Vec::new();
    }
    let counters = &items.counters;
    [
        ("number", number),
        ("mem_requested", items.bytes()),
        ("evicted", value(&counters.evictions)),
        ("evicted_nonzero", 0),
        ("evicted_unfetched", value(&counters.evicted_unfetched)),
        ("outofmemory", value(&counters.store_no_memory)),
        ("tailrepairs", 0),
        ("reclaimed", value(&counters.reclaimed)),
        ("expired_unfetched", 0),
    ]
    .map(|(name, value)| stat(&format!("items:1:{name}"), value))
    .into()
}

/// Returns the settings under the names that memcached gives them.
fn of_settings(server: &Server, items: &Items, address: &str) -> Vec<Stat> {
    let settings = server.settings();
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let open = server.default_user().nopass;
    vec![
        stat("maxbytes", items.limits.memory),
        stat("maxconns", settings.maxclients),
        stat("tcpport", port),
        stat("udpport", 0),
        stat("inter", host),
        stat("verbosity", 0),
        stat("oldest", 0),
        // Off there means that a store fails without room, as it does here without a budget.
        stat("evictions", "on"),
        stat("domain_socket", "NULL"),
        stat("umask", 700),
        stat("shutdown_command", yes_or_no(settings.memcached_shutdown)),
        stat("stat_key_prefix", ":"),
        stat("detail_enabled", yes_or_no(items.details.is_on())),
        stat("cas_enabled", "yes"),
        stat("binding_protocol", "auto-negotiate"),
        stat("auth_enabled_sasl", yes_or_no(!open)),
        stat("auth_enabled_ascii", yes_or_no(!open)),
        stat("item_size_max", items.limits.item),
        stat("key_size_max", items.limits.key),
        stat("maxconns_fast", "yes"),
        stat("idle_timeout", settings.timeout),
        stat("flush_enabled", "yes"),
        stat("dump_enabled", "no"),
        stat("track_sizes", "no"),
    ]
}

impl Items {
    /// Returns how many items there are of each size, in classes of [`SIZE_CLASS`] bytes. It reads
    /// all of them.
    fn sizes(&self) -> Result<Vec<Stat>, String> {
        let mut classes: BTreeMap<usize, u64> = BTreeMap::new();
        let visited = self.visit(|size| {
            let class = size.div_ceil(SIZE_CLASS) * SIZE_CLASS;
            *classes.entry(class).or_default() += 1;
            ControlFlow::Continue(())
        });
        visited.map_err(|e| e.to_string())?;
        Ok(classes
            .iter()
            .map(|(size, count)| stat(&size.to_string(), count))
            .collect())
    }
}

/// What a `stats` command is answered with.
enum Answer {
    Stats(Vec<Stat>),
    /// One line, or nothing but the end in binary.
    Line(&'static str),
    Dump(Vec<u8>),
    Failed(String),
    Unknown,
}

impl Memcached {
    pub(super) fn stats_text(&mut self, server: &Server, words: &Words<'_>, out: &mut Vec<u8>) {
        if let Err(text) = self.permit(server, "info", None) {
            return self.say(out, false, &format!("CLIENT_ERROR {text}"));
        }
        match self.stats(server, words.get(1), words.get(2)) {
            Answer::Stats(stats) => {
                for (name, value) in stats {
                    self.say(out, false, &format!("STAT {name} {value}"));
                }
                self.say(out, false, "END");
            }
            Answer::Line(line) => self.say(out, false, line),
            Answer::Dump(dump) => out.extend_from_slice(&dump),
            Answer::Failed(text) => self.say(out, false, &format!("SERVER_ERROR {text}")),
            Answer::Unknown => self.say(out, false, "ERROR"),
        }
        self.note(server, "stats", words.get(1), 1);
    }

    pub(super) fn stats_binary(
        &mut self,
        server: &Server,
        head: &Head,
        key: &[u8],
        out: &mut Vec<u8>,
    ) {
        let mut words = key.splitn(2, |byte| *byte == b' ');
        let (what, which) = (
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default(),
        );
        match self.stats(server, what, which) {
            Answer::Stats(stats) => {
                for (name, value) in stats {
                    self.answer_stat(out, head, name.as_bytes(), value.as_bytes());
                }
            }
            Answer::Dump(dump) => self.answer_stat(out, head, b"detailed", &dump),
            Answer::Line(line) if !line.starts_with("CLIENT_ERROR") => {}
            Answer::Line(_) | Answer::Unknown | Answer::Failed(_) => {
                return self.refuse_stat(server, out, head);
            }
        }
        self.answer_stat(out, head, b"", b"");
        self.note(server, "stats", key, 1);
    }

    fn stats(&self, server: &Server, what: &[u8], which: &[u8]) -> Answer {
        let items = &self.items;
        match (what, which) {
            // After a kill the items are counted first.
            (b"", _) => Answer::Stats(block_in_place(|| general(server, items))),
            (b"items", _) => Answer::Stats(block_in_place(|| of_items(items))),
            // There are none.
            (b"slabs", _) => {
                Answer::Stats(vec![stat("active_slabs", 0), stat("total_malloced", 0)])
            }
            (b"settings", _) => Answer::Stats(of_settings(server, items, &self.client.local)),
            (b"sizes", _) => match block_in_place(|| items.sizes()) {
                Ok(stats) => Answer::Stats(stats),
                Err(text) => Answer::Failed(text),
            },
            (b"reset", _) => {
                items.counters.reset();
                items.details.reset();
                Answer::Line("RESET")
            }
            (b"detail", b"on") => {
                items.details.turn(true);
                Answer::Line("OK")
            }
            (b"detail", b"off") => {
                items.details.turn(false);
                Answer::Line("OK")
            }
            (b"detail", b"dump") => Answer::Dump(items.details.dump()),
            (b"detail", _) => Answer::Line("CLIENT_ERROR usage: stats detail on|off|dump"),
            _ => Answer::Unknown,
        }
    }

    /// Returns true if the client may move the clock.
    pub(super) fn may_debug(&self) -> bool {
        match self.current.settings.enable_debug_command {
            Allowed::Yes => true,
            Allowed::Local => self.client.on_loopback,
            Allowed::No => false,
        }
    }

    /// Logs in as a user of the server. After a wrong password it returns how long the reply has
    /// to wait.
    pub(super) fn log_in(
        &mut self,
        server: &Server,
        name: &[u8],
        password: &[u8],
    ) -> Result<(), Duration> {
        let counters = &self.items.counters;
        add(&counters.auth_cmds, 1);
        let user: Arc<User> = server
            .log_in(&self.client, name, password)
            .inspect_err(|_| add(&counters.auth_errors, 1))?;
        self.current.user = user;
        self.authenticated = true;
        Ok(())
    }
}
