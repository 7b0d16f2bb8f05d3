//! The table of settings: how the value of each is read and shown.

use super::{Allowed, ClientCertificates, LogFormat, Settings};
use crate::data::spaces::DATABASES;
use crate::memory::{Share, parse_bytes};
use bristlecone_store::{Compression, MAX_KEY_BYTES, MAX_VALUE_BYTES};
use std::path::PathBuf;
use std::time::Duration;

/// The limits of `memcached-item-size`. The largest is that of a value: what memcached counts for
/// an item is more than its record has.
const LEAST_ITEM: usize = 1 << 10;
const MOST_ITEM: usize = MAX_VALUE_BYTES;

/// A setting: its name, and how its value is read and set.
pub(super) struct Setting {
    pub name: &'static str,
    /// `CONFIG SET` may change it.
    pub live: bool,
    pub get: fn(&Settings) -> String,
    pub set: fn(&mut Settings, &str) -> Result<(), String>,
}

fn whole<N: TryFrom<i64>>(text: &str) -> Result<N, String> {
    let number: i64 = text
        .parse()
        .map_err(|_| "argument couldn't be parsed into an integer".to_owned())?;
    N::try_from(number).map_err(|_| "argument must not be negative".to_owned())
}

fn yes(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => Err("argument must be 'yes' or 'no'".into()),
    }
}

pub(super) fn no_or(yes: bool) -> String {
    if yes { "yes" } else { "no" }.into()
}

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

fn shown(path: Option<&PathBuf>) -> String {
    path.map_or_else(String::new, |path| path.display().to_string())
}

/// A time: a number of seconds, or as 500ms, 12h, 7d.
fn time(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    humantime::parse_duration(text).map_err(|e| {
        format!("argument must be a number of seconds, or a time as 500ms, 12h or 7d: {e}")
    })
}

fn shown_time(time: &Duration) -> String {
    if time.is_zero() {
        "0".into()
    } else {
        humantime::format_duration(*time).to_string()
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// Declares a setting that is a field, with the functions that parse and format it.
macro_rules! setting {
    ($name:literal, $live:literal, $field:ident, $parse:expr, $show:expr) => {
        Setting {
            name: $name,
            live: $live,
            get: |settings| $show(&settings.$field),
            set: |settings, text| {
                settings.$field = $parse(text)?;
                Ok(())
            },
        }
    };
}

/// Returns a setting with a fixed value, for clients that ask for it.
const fn fixed(name: &'static str, get: fn(&Settings) -> String) -> Setting {
    Setting {
        name,
        live: false,
        get,
        set: |_, _| Err("can't set immutable config".into()),
    }
}

/// All of them, as `CONFIG GET` shows them.
pub(super) const SETTINGS: &[Setting] = &[
    setting!(
        "listen",
        false,
        listen,
        |text: &str| Ok::<_, String>(text.to_owned()),
        String::clone
    ),
    setting!(
        "tls-listen",
        false,
        tls_listen,
        |text| Ok::<_, String>(some(text)),
        |at: &Option<String>| at.clone().unwrap_or_default()
    ),
    setting!(
        "tls-cert",
        false,
        tls_cert,
        |text| Ok::<_, String>(path(text)),
        |at: &Option<PathBuf>| shown(at.as_ref())
    ),
    setting!(
        "tls-key",
        false,
        tls_key,
        |text| Ok::<_, String>(path(text)),
        |at: &Option<PathBuf>| shown(at.as_ref())
    ),
    setting!(
        "tls-ca-cert",
        false,
        tls_ca_cert,
        |text| Ok::<_, String>(path(text)),
        |at: &Option<PathBuf>| shown(at.as_ref())
    ),
    setting!(
        "tls-auth-clients",
        false,
        tls_auth_clients,
        |text: &str| match text {
            "yes" => Ok(ClientCertificates::Required),
            "optional" => Ok(ClientCertificates::Optional),
            _ => Err("argument must be 'yes' or 'optional'".to_owned()),
        },
        |at: &ClientCertificates| match at {
            ClientCertificates::Required => "yes".to_owned(),
            ClientCertificates::Optional => "optional".to_owned(),
        }
    ),
    setting!(
        "tls-auth-clients-user",
        false,
        tls_user_of_certificate,
        |text: &str| match text.to_ascii_lowercase().as_str() {
            "off" => Ok(false),
            "cn" => Ok(true),
            _ => Err("argument must be 'off' or 'CN'".to_owned()),
        },
        |at: &bool| if *at { "CN" } else { "off" }.to_owned()
    ),
    setting!(
        "memcached",
        false,
        memcached,
        |text| Ok::<_, String>(some(text)),
        |at: &Option<String>| at.clone().unwrap_or_default()
    ),
    setting!(
        "memcached-database",
        false,
        memcached_database,
        |text: &str| match text {
            "" => Ok(None),
            text => (text.parse().ok().filter(|db| *db < DATABASES))
                .map(Some)
                .ok_or_else(|| format!("argument must be between 0 and {}", DATABASES - 1)),
        },
        |at: &Option<usize>| at.map_or_else(String::new, |db| db.to_string())
    ),
    setting!(
        "memcached-memory",
        false,
        memcached_memory,
        str::parse,
        Share::to_string
    ),
    setting!(
        "memcached-item-size",
        false,
        memcached_item_size,
        |text| parse_bytes(text).and_then(|bytes| {
            let wrong = || "argument must be between 1kb and 512mb".to_owned();
            (LEAST_ITEM..=MOST_ITEM)
                .contains(&bytes)
                .then_some(bytes)
                .ok_or_else(wrong)
        }),
        usize::to_string
    ),
    setting!(
        "memcached-max-key",
        false,
        memcached_max_key,
        |text| whole(text).and_then(|bytes| {
            let wrong = || format!("argument must be between 1 and {MAX_KEY_BYTES}");
            (1..=MAX_KEY_BYTES)
                .contains(&bytes)
                .then_some(bytes)
                .ok_or_else(wrong)
        }),
        usize::to_string
    ),
    setting!(
        "memcached-shutdown",
        false,
        memcached_shutdown,
        yes,
        |at: &bool| { no_or(*at) }
    ),
    setting!(
        "metrics",
        false,
        metrics,
        |text| Ok::<_, String>(some(text)),
        |at: &Option<String>| at.clone().unwrap_or_default()
    ),
    setting!("status-page", true, status_page, allowed, shown_allowed),
    setting!(
        "requirepass",
        true,
        requirepass,
        |text: &str| Ok::<_, String>(text.to_owned()),
        String::clone
    ),
    setting!(
        "aclfile",
        false,
        aclfile,
        |text| Ok::<_, String>(path(text)),
        |at: &Option<PathBuf>| shown(at.as_ref())
    ),
    setting!("protected-mode", true, protected_mode, yes, |at: &bool| {
        no_or(*at)
    }),
    setting!("maxclients", true, maxclients, whole, usize::to_string),
    setting!("timeout", true, timeout, whole, u64::to_string),
    setting!("tcp-keepalive", true, tcp_keepalive, whole, u64::to_string),
    setting!(
        "proto-max-bulk-len",
        true,
        proto_max_bulk_len,
        parse_bytes,
        usize::to_string
    ),
    setting!(
        "proto-max-arguments",
        true,
        proto_max_arguments,
        whole,
        usize::to_string
    ),
    setting!(
        "client-query-buffer-limit",
        true,
        client_query_buffer_limit,
        parse_bytes,
        usize::to_string
    ),
    setting!(
        "client-output-buffer-limit",
        true,
        client_output_buffer_limit,
        subscribers,
        |at: &usize| format!("normal 0 0 0 slave 0 0 0 pubsub {at} 0 0")
    ),
    setting!("memory", false, memory, str::parse, Share::to_string),
    setting!("scrub", false, scrub, parse_bytes, u64::to_string),
    setting!(
        "archive",
        false,
        archive,
        |text| Ok::<_, String>(path(text)),
        |at: &Option<PathBuf>| shown(at.as_ref())
    ),
    setting!(
        "archive-every",
        false,
        archive_every,
        |text| time(text).and_then(|time| {
            let least = Duration::from_millis(1);
            let none = || "argument must not be zero".to_owned();
            (time >= least).then_some(time).ok_or_else(none)
        }),
        shown_time
    ),
    setting!(
        "archive-full-every",
        false,
        archive_full_every,
        time,
        shown_time
    ),
    setting!("archive-keep", false, archive_keep, time, shown_time),
    setting!(
        "archive-queue",
        false,
        archive_queue,
        parse_bytes,
        usize::to_string
    ),
    setting!(
        "compression",
        false,
        compression,
        |text: &str| match text {
            "no" => Ok(Compression::None),
            "lz4" => Ok(Compression::Lz4),
            "zstd" => Ok(Compression::Zstd),
            _ => Err("argument must be 'no', 'lz4' or 'zstd'".to_owned()),
        },
        |at: &Compression| match at {
            Compression::Lz4 => "lz4".to_owned(),
            Compression::Zstd => "zstd".to_owned(),
            _ => "no".to_owned(),
        }
    ),
    setting!(
        "maxmemory-clients",
        true,
        maxmemory_clients,
        str::parse,
        Share::to_string
    ),
    setting!(
        "slowlog-log-slower-than",
        true,
        slowlog_log_slower_than,
        whole,
        i64::to_string
    ),
    setting!(
        "slowlog-max-len",
        true,
        slowlog_max_len,
        whole,
        usize::to_string
    ),
    setting!(
        "backup-file",
        false,
        backup_file,
        |text| Ok::<_, String>(path(text)),
        |at: &Option<PathBuf>| shown(at.as_ref())
    ),
    setting!(
        "exit-on-io-error",
        true,
        exit_on_io_error,
        yes,
        |at: &bool| { no_or(*at) }
    ),
    setting!(
        "enable-debug-command",
        false,
        enable_debug_command,
        allowed,
        shown_allowed
    ),
    setting!(
        "log-level",
        false,
        log_level,
        |text: &str| text
            .parse()
            .map_err(|_| "argument must be error, warn, info, debug or trace".to_owned()),
        |at: &tracing::Level| at.to_string().to_lowercase()
    ),
    setting!(
        "log-format",
        false,
        log_format,
        |text: &str| match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err("argument must be 'text' or 'json'".to_owned()),
        },
        |at: &LogFormat| match at {
            LogFormat::Text => "text".to_owned(),
            LogFormat::Json => "json".to_owned(),
        }
    ),
    setting!(
        "logfile",
        false,
        logfile,
        |text| Ok::<_, String>(path(text)),
        |at: &Option<PathBuf>| shown(at.as_ref())
    ),
    setting!("threads", false, threads, whole, usize::to_string),
    fixed("appendonly", |_| "yes".into()),
    fixed("appendfsync", |_| "always".into()),
    fixed("save", |_| String::new()),
    fixed("maxmemory", |_| "0".into()),
    fixed("maxmemory-policy", |_| "noeviction".into()),
    fixed("databases", |_| crate::data::spaces::DATABASES.to_string()),
    fixed("port", |settings| after_colon(&settings.listen)),
    fixed("bind", |settings| before_colon(&settings.listen)),
];

fn after_colon(address: &str) -> String {
    address.rsplit_once(':').map_or("", |(_, port)| port).into()
}

fn before_colon(address: &str) -> String {
    address.rsplit_once(':').map_or("", |(host, _)| host).into()
}

/// Parses the hard limit of the class `pubsub`, or a number of bytes.
fn subscribers(text: &str) -> Result<usize, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    match words.as_slice() {
        [one] => parse_bytes(one),
        words => words
            .chunks(4)
            .find_map(|class| match class {
                ["pubsub", hard, _, _] => Some(parse_bytes(hard)),
                _ => None,
            })
            .unwrap_or_else(|| Err("only the limit of the class pubsub can be changed".into())),
    }
}

fn shown_allowed(at: &Allowed) -> String {
    match at {
        Allowed::No => "no",
        Allowed::Yes => "yes",
        Allowed::Local => "local",
    }
    .into()
}

fn allowed(text: &str) -> Result<Allowed, String> {
    match text.to_ascii_lowercase().as_str() {
        "no" => Ok(Allowed::No),
        "yes" => Ok(Allowed::Yes),
        "local" => Ok(Allowed::Local),
        _ => Err("argument must be 'no', 'yes' or 'local'".into()),
    }
}

/// Returns the setting of that name, in any case.
pub(super) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS
        .iter()
        .find(|setting| setting.name.eq_ignore_ascii_case(name))
}
