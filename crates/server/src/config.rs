//! Settings: from flags, the environment and a file, in this order of precedence, and `CONFIG GET`
//! and `CONFIG SET`.
//!
//! A setting has one name everywhere: `timeout` in the file and for `CONFIG`,
//! `BRISTLECONE_SERVE_TIMEOUT` in the environment (with `_` for `-`).

use crate::memory::{Share, parse_bytes};
use bristlecone_store::Compression;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The prefix of settings in the environment.
pub const ENVIRONMENT: &str = "BRISTLECONE_SERVE_";

/// The clients that may use `DEBUG`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Debugging {
    /// None.
    #[default]
    No,
    /// All.
    Yes,
    /// Clients on this machine.
    Local,
}

/// The format of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// A line of text for each event.
    #[default]
    Text,
    /// A line of JSON for each event.
    Json,
}

/// All settings.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address to listen on.
    pub listen: String,
    /// The address to listen on for TLS.
    pub tls_listen: Option<String>,
    /// The file of the certificate, PEM.
    pub tls_cert: Option<PathBuf>,
    /// The file of its key, PEM.
    pub tls_key: Option<PathBuf>,
    /// The address to serve metrics on, over HTTP.
    pub metrics: Option<String>,
    /// The default user's password; empty for none.
    pub requirepass: String,
    /// Users, as the arguments of `ACL SETUSER`: name, then rules.
    pub users: Vec<String>,
    /// The file of users, which `ACL SAVE` writes.
    pub aclfile: Option<PathBuf>,
    /// The file that these settings were read from, which `CONFIG REWRITE` writes.
    pub file: Option<PathBuf>,
    /// Refuse clients on other machines while there is no password.
    pub protected_mode: bool,
    /// The most clients at the same time.
    pub maxclients: usize,
    /// Seconds after which an idle client is disconnected; 0 for never.
    pub timeout: u64,
    /// Seconds between keep-alive probes; 0 for none.
    pub tcp_keepalive: u64,
    /// The longest argument in bytes.
    pub proto_max_bulk_len: usize,
    /// The most arguments of a command.
    pub proto_max_arguments: usize,
    /// The most bytes of a client that are not executed yet.
    pub client_query_buffer_limit: usize,
    /// The most bytes of messages that a subscriber has not been sent yet.
    pub client_output_buffer_limit: usize,
    /// The most memory of the process, where the pool can give some back; 0 for no limit.
    pub memory: Share,
    /// Bytes a second that are compared with their checksums in the background; 0 for none.
    pub scrub: u64,
    /// How long values are written.
    pub compression: Compression,
    /// The most memory of all clients together; 0 for no limit.
    pub maxmemory_clients: Share,
    /// Log commands that take longer than this, in µs; a negative number for none.
    pub slowlog_log_slower_than: i64,
    /// The most entries of the slow log.
    pub slowlog_max_len: usize,
    /// The file of backups.
    pub backup_file: Option<PathBuf>,
    /// Stop once the pool takes no more writes, because the disk has failed.
    pub exit_on_io_error: bool,
    /// The clients that may use `DEBUG`.
    pub enable_debug_command: Debugging,
    /// Less important events are not logged.
    pub log_level: tracing::Level,
    /// The format of logs.
    pub log_format: LogFormat,
    /// The file of the log; `None` for standard error.
    pub logfile: Option<PathBuf>,
    /// The number of worker threads; 0 for one per core.
    pub threads: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:6379".into(),
            tls_listen: None,
            tls_cert: None,
            tls_key: None,
            metrics: None,
            requirepass: String::new(),
            users: Vec::new(),
            aclfile: None,
            file: None,
            protected_mode: true,
            maxclients: 10_000,
            timeout: 0,
            tcp_keepalive: 300,
            proto_max_bulk_len: 512 << 20,
            proto_max_arguments: 1 << 20,
            client_query_buffer_limit: 1 << 30,
            client_output_buffer_limit: 32 << 20,
            memory: Share::Bytes(256 << 20),
            scrub: 4 << 20,
            compression: Compression::None,
            maxmemory_clients: Share::Percent(25),
            slowlog_log_slower_than: 10_000,
            slowlog_max_len: 128,
            backup_file: None,
            exit_on_io_error: false,
            enable_debug_command: Debugging::No,
            log_level: tracing::Level::INFO,
            log_format: LogFormat::Text,
            logfile: None,
            threads: 0,
        }
    }
}

/// The error of a setting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: reading failed: {error}", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The file is not TOML.
    #[error("{}: {error}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The place and the cause.
        error: Box<toml::de::Error>,
    },
    /// A value is invalid, or there is no such setting.
    #[error("{place}: {name} = {value:?}: {reason}")]
    Value {
        /// The file and line, variable, or flag.
        place: String,
        /// The setting.
        name: String,
        /// The value.
        value: String,
        /// The cause.
        reason: String,
    },
}

/// A setting: its name, and how its value is read and set.
struct Setting {
    name: &'static str,
    /// `CONFIG SET` may change it.
    live: bool,
    get: fn(&Settings) -> String,
    set: fn(&mut Settings, &str) -> Result<(), String>,
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

fn no_or(yes: bool) -> String {
    if yes { "yes" } else { "no" }.into()
}

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

fn shown(path: Option<&PathBuf>) -> String {
    path.map_or_else(String::new, |path| path.display().to_string())
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

const SETTINGS: &[Setting] = &[
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
        "metrics",
        false,
        metrics,
        |text| Ok::<_, String>(some(text)),
        |at: &Option<String>| at.clone().unwrap_or_default()
    ),
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
        debugging,
        |at: &Debugging| match at {
            Debugging::No => "no".to_owned(),
            Debugging::Yes => "yes".to_owned(),
            Debugging::Local => "local".to_owned(),
        }
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

fn debugging(text: &str) -> Result<Debugging, String> {
    match text.to_ascii_lowercase().as_str() {
        "no" => Ok(Debugging::No),
        "yes" => Ok(Debugging::Yes),
        "local" => Ok(Debugging::Local),
        _ => Err("argument must be 'no', 'yes' or 'local'".into()),
    }
}

fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS
        .iter()
        .find(|setting| setting.name.eq_ignore_ascii_case(name))
}

impl Settings {
    /// Sets a setting. `place` is the source of the value, for the error.
    ///
    /// # Errors
    /// [`ConfigError::Value`]
    pub fn set(&mut self, name: &str, value: &str, place: &str) -> Result<(), ConfigError> {
        let done = match find(name) {
            Some(setting) => (setting.set)(self, value),
            None => Err("there is no such setting".into()),
        };
        done.map_err(|reason| ConfigError::Value {
            place: place.into(),
            name: name.into(),
            value: value.into(),
            reason,
        })
    }

    /// Adopts the settings of a TOML file.
    ///
    /// # Errors
    /// [`ConfigError`]
    pub fn read_file(&mut self, file: &Path) -> Result<(), ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| ConfigError::Read {
            path: file.into(),
            error,
        })?;
        let table: BTreeMap<String, Spanned<toml::Value>> =
            toml::from_str(&text).map_err(|error| ConfigError::Syntax {
                path: file.into(),
                error: Box::new(error),
            })?;
        self.file = Some(file.into());
        for (name, value) in table {
            let before = text.get(..value.span().start).unwrap_or_default();
            let place = format!("{}:{}", file.display(), before.matches('\n').count() + 1);
            let wrong = |value: &toml::Value, reason: &str| ConfigError::Value {
                place: place.clone(),
                name: name.clone(),
                value: value.type_str().into(),
                reason: reason.into(),
            };
            match value.into_inner() {
                toml::Value::String(text) => self.set(&name, &text, &place)?,
                toml::Value::Integer(number) => self.set(&name, &number.to_string(), &place)?,
                toml::Value::Boolean(yes) => self.set(&name, &no_or(yes), &place)?,
                toml::Value::Array(users) if name == "users" => {
                    for user in users {
                        let toml::Value::String(user) = user else {
                            return Err(wrong(&user, "expected a user as text: name and rules"));
                        };
                        self.users.push(user);
                    }
                }
                value => {
                    return Err(wrong(
                        &value,
                        "expected a text, a whole number, true or false",
                    ));
                }
            }
        }
        Ok(())
    }

    /// Adopts the settings of the environment.
    ///
    /// # Errors
    /// [`ConfigError::Value`]
    pub fn read_environment(
        &mut self,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<(), ConfigError> {
        for (variable, value) in variables {
            if let Some(name) = variable.strip_prefix(ENVIRONMENT) {
                let name = name.to_ascii_lowercase().replace('_', "-");
                self.set(&name, &value, &variable)?;
            }
        }
        Ok(())
    }

    /// Returns the names and values of the settings that match one of the patterns.
    #[must_use]
    pub fn matching(&self, patterns: &[&[u8]]) -> Vec<(&'static str, String)> {
        let asked = |name: &str| {
            patterns.iter().any(|pattern| {
                crate::parse::glob::matches(&pattern.to_ascii_lowercase(), name.as_bytes())
            })
        };
        SETTINGS
            .iter()
            .filter(|setting| asked(setting.name))
            .map(|setting| (setting.name, (setting.get)(self)))
            .collect()
    }

    /// Changes some settings, all or none.
    ///
    /// # Errors
    /// The text of the error, worded as Redis does.
    pub fn change(&mut self, pairs: &[(&str, &str)]) -> Result<(), String> {
        let mut changed = self.clone();
        for (name, value) in pairs {
            let failed = |reason: &str| {
                format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}")
            };
            let setting = find(name).ok_or_else(|| {
                format!("ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
            })?;
            if !setting.live {
                return Err(failed("can't set immutable config"));
            }
            (setting.set)(&mut changed, value).map_err(|reason| failed(&reason))?;
        }
        *self = changed;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_wins_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("serve.toml");
        std::fs::write(
            &file,
            "timeout = 7\nmaxclients = 3\nprotected-mode = false\nusers = [\"a on nopass +@all\"]\n",
        )
        .unwrap();
        let mut settings = Settings::default();
        settings.read_file(&file).unwrap();
        let variable = ("BRISTLECONE_SERVE_MAXCLIENTS".into(), "5".into());
        let other = ("PATH".into(), "x".into());
        settings
            .read_environment([variable, other].into_iter())
            .unwrap();
        assert_eq!((settings.timeout, settings.maxclients), (7, 5));
        assert!(!settings.protected_mode && settings.users.len() == 1);
    }

    #[test]
    fn errors_name_file_line_and_value() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("serve.toml");
        let told = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let error = Settings::default().read_file(&file).unwrap_err();
            error.to_string()
        };
        let text = told("timeout = 1\n\nmaxclients = \"many\"\n");
        assert!(
            text.contains("serve.toml:3: maxclients = \"many\""),
            "{text}"
        );
        assert!(told("nothing = 1\n").contains("serve.toml:1: nothing"));
        assert!(told("timeout = 1.5\n").contains("serve.toml:1: timeout"));
        assert!(told("timeout = \n").contains("line 1"));
        let variable = ("BRISTLECONE_SERVE_TIMEOUT".into(), "-1".into());
        let error = Settings::default().read_environment(std::iter::once(variable));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("BRISTLECONE_SERVE_TIMEOUT"), "{text}");
        let missing = Settings::default().read_file(&dir.path().join("none"));
        assert!(missing.unwrap_err().to_string().contains("none: reading"));
    }

    #[test]
    fn changes_are_made_together_or_not_at_all() {
        let mut settings = Settings::default();
        settings
            .change(&[("timeout", "5"), ("proto-max-bulk-len", "1mb")])
            .unwrap();
        assert_eq!(
            (settings.timeout, settings.proto_max_bulk_len),
            (5, 1 << 20)
        );
        for (name, value) in [
            ("maxclients", "x"),
            ("listen", "x"),
            ("nothing", "1"),
            ("protected-mode", "maybe"),
            ("databases", "3"),
        ] {
            assert!(settings.change(&[("timeout", "9"), (name, value)]).is_err());
            assert_eq!(settings.timeout, 5);
        }
        assert_eq!(
            settings.matching(&[b"TIME*", b"port"]),
            [("timeout", "5".to_owned()), ("port", "6379".to_owned())]
        );
    }
}
