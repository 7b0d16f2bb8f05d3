//! Settings: from flags, the environment and a file, in this order of precedence, and `CONFIG GET`
//! and `CONFIG SET`.
//!
//! A setting has one name everywhere: `timeout` in the file and for `CONFIG`,
//! `BRISTLECONE_SERVE_TIMEOUT` in the environment (with `_` for `-`).

mod table;

use crate::memory::Share;
use crate::parse::glob::Pattern;
use bristlecone_store::{ArchiveOptions, Compression};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use table::{SETTINGS, find, no_or};
use toml::Spanned;

/// The prefix of settings in the environment.
pub const ENVIRONMENT: &str = "BRISTLECONE_SERVE_";

/// The clients that may use something, as `DEBUG`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allowed {
    /// None.
    #[default]
    No,
    /// All.
    Yes,
    /// Clients on this machine.
    Local,
}

/// Which clients with TLS have to show a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// All.
    #[default]
    Required,
    /// Those that have one; it has to be valid.
    Optional,
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
    /// The certificates of authorities whose clients are let in, PEM; `None`: clients show none.
    pub tls_ca_cert: Option<PathBuf>,
    /// Which clients have to show a certificate, if there are authorities.
    pub tls_auth_clients: ClientCertificates,
    /// The common name of a client's certificate is the name of its user.
    pub tls_user_of_certificate: bool,
    /// The address to listen on for memcached clients.
    pub memcached: Option<String>,
    /// The database that memcached's items are in; `None`: in a keyspace of their own.
    pub memcached_database: Option<usize>,
    /// The most bytes of memcached's items, beyond which the least recently used ones are evicted;
    /// 0 for no limit.
    pub memcached_memory: Share,
    /// The largest item in bytes, counted as memcached does.
    pub memcached_item_size: usize,
    /// The longest key of an item in bytes.
    pub memcached_max_key: usize,
    /// Memcached clients may stop the server.
    pub memcached_shutdown: bool,
    /// The address to serve metrics on, over HTTP.
    pub metrics: Option<String>,
    /// The clients that may see the status page.
    pub status_page: Allowed,
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
    /// The directory of the archive.
    pub archive: Option<PathBuf>,
    /// How often commits are written to it.
    pub archive_every: Duration,
    /// How often a full state is; zero: once.
    pub archive_full_every: Duration,
    /// How long back it leads, at least; zero: to its beginning.
    pub archive_keep: Duration,
    /// The most memory of commits that wait to be written to it.
    pub archive_queue: usize,
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
    pub enable_debug_command: Allowed,
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
            tls_ca_cert: None,
            tls_auth_clients: ClientCertificates::Required,
            tls_user_of_certificate: false,
            memcached: None,
            memcached_database: None,
            memcached_memory: Share::Bytes(0),
            memcached_item_size: 1 << 20,
            memcached_max_key: 250,
            memcached_shutdown: false,
            metrics: None,
            status_page: Allowed::Local,
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
            archive: None,
            archive_every: Duration::from_secs(1),
            archive_full_every: Duration::from_secs(7 * 24 * 60 * 60),
            archive_keep: Duration::ZERO,
            archive_queue: 64 << 20,
            compression: Compression::None,
            maxmemory_clients: Share::Percent(25),
            slowlog_log_slower_than: 10_000,
            slowlog_max_len: 128,
            backup_file: None,
            exit_on_io_error: false,
            enable_debug_command: Allowed::No,
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

impl Settings {
    /// Returns how the store is archived, if it is.
    #[must_use]
    pub fn archive_options(&self) -> Option<ArchiveOptions> {
        let mut options = ArchiveOptions::new(self.archive.as_ref()?);
        let some = |time: Duration| Some(time).filter(|time| !time.is_zero());
        options.every = self.archive_every;
        options.full_every = some(self.archive_full_every);
        options.keep = some(self.archive_keep);
        options.queue_bytes = self.archive_queue;
        Some(options)
    }

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
        let lower: Vec<Vec<u8>> = patterns.iter().map(|it| it.to_ascii_lowercase()).collect();
        let patterns: Vec<Pattern<'_>> = lower.iter().map(|it| Pattern::new(it)).collect();
        let asked = |name: &str| patterns.iter().any(|it| it.matches(name.as_bytes()));
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

    /// The file that operators begin with says what is so without it.
    #[test]
    fn the_annotated_file_has_every_setting_with_its_default() {
        let annotated = include_str!("../../../../packaging/serve.toml");
        let is_setting = |line: &&str| {
            let name = line
                .strip_prefix('#')
                .and_then(|line| line.split_once(" = "));
            name.is_some_and(|(name, _)| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'))
        };
        let lines: Vec<&str> = annotated.lines().filter(is_setting).collect();
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("serve.toml");
        let text: Vec<&str> = lines.iter().map(|line| &line[1..]).collect();
        std::fs::write(&file, text.join("\n")).unwrap();
        let (mut read, usual) = (Settings::default(), Settings::default());
        read.read_file(&file).unwrap();
        assert_eq!(read.matching(&[b"*"]), usual.matching(&[b"*"]));
        assert!(read.users.is_empty());
        for setting in SETTINGS {
            let begins = format!("#{} = ", setting.name);
            let there = lines
                .iter()
                .filter(|line| line.starts_with(&begins))
                .count();
            let is_fixed =
                (setting.set)(&mut read, "1").is_err_and(|e| e == "can't set immutable config");
            assert_eq!(there, usize::from(!is_fixed), "{}", setting.name);
        }
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
