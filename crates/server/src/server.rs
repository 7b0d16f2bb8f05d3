//! The state that all connections share.

use crate::channels::PubSub;
use crate::client::{Client, Clients};
use crate::committer::Committer;
use crate::config::Settings;
use crate::data::{Data, DataError};
use crate::guesses::Guesses;
use crate::items::Items;
use crate::parse::Arg;
use crate::rewrite;
use crate::slowlog::SlowLog;
use crate::table::{Table, add};
use crate::users::{DEFAULT, User, Users};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// The length of a user's name, in bytes, that is logged after a wrong password.
const MAX_LOGGED: usize = 64;

/// Statistics of the server.
#[derive(Debug, Default)]
pub struct Stats {
    /// Accepted connections.
    pub connections: AtomicU64,
    /// Refused connections.
    pub rejected: AtomicU64,
    /// Executed commands.
    pub commands: AtomicU64,
    /// Bytes received.
    pub input: AtomicU64,
    /// Bytes sent.
    pub output: AtomicU64,
    /// Batches of a connection's commands that were made durable before their replies.
    pub settles: AtomicU64,
    /// Commands in these batches.
    pub settled_commands: AtomicU64,
    /// Error replies.
    pub errors: AtomicU64,
    /// Wrong passwords, and commands without the right to them.
    pub denied: AtomicU64,
    /// Clients that were disconnected because they were idle.
    pub idle: AtomicU64,
}

/// Backups to the configured file.
#[derive(Debug, Default)]
pub struct Backups {
    running: AtomicBool,
    /// The time of the last backup, in s since 1970.
    pub last: AtomicU64,
    /// The last backup failed.
    pub failed: AtomicBool,
}

/// A server.
#[derive(Debug)]
pub struct Server {
    /// The databases.
    pub data: Arc<Data>,
    /// The table of commands.
    pub table: Table,
    /// The items of memcached clients, if they are served.
    pub items: Option<Arc<Items>>,
    /// The users.
    pub users: Users,
    /// Wrong passwords.
    pub guesses: Guesses,
    /// The clients.
    pub clients: Clients,
    /// The channels.
    pub pubsub: PubSub,
    /// Makes writes durable.
    pub committer: Committer,
    /// The log of slow commands.
    pub slowlog: SlowLog,
    /// Statistics.
    pub stats: Stats,
    /// Backups.
    pub backups: Arc<Backups>,
    /// The time of the start.
    pub started: Instant,
    /// Sends true when the server stops.
    pub stopping: watch::Sender<bool>,
    /// A random number of this run, in hex.
    pub run_id: String,
    settings: RwLock<Arc<Settings>>,
    /// The names of settings that `CONFIG SET` has changed.
    changed: Mutex<BTreeSet<String>>,
    /// Held while a file of settings or users is replaced. Taken before `settings`, and that before
    /// `changed`.
    replacing: Mutex<()>,
    generation: AtomicU64,
}

/// Returns the seconds since 1970.
#[must_use]
pub fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Waits until the server stops.
pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the server is gone.
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Why a server cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The databases cannot be opened.
    #[error("{0}")]
    Data(#[from] DataError),
    /// A thread cannot be started.
    #[error("starting a thread failed: {0}")]
    Thread(io::Error),
    /// A user in the settings is invalid.
    #[error("user {user:?}: {reason}")]
    User {
        /// The user as in the settings.
        user: String,
        /// The cause.
        reason: String,
    },
    /// Settings contradict each other.
    #[error(
        "memcached-memory {memory}: items in a database are not evicted; leave out memcached-memory or memcached-database {database}"
    )]
    Eviction {
        /// The setting `memcached-memory`.
        memory: String,
        /// The setting `memcached-database`.
        database: usize,
    },
    /// The file of users is not usable.
    #[error("aclfile {}: {reason}", .file.display())]
    Users {
        /// The file.
        file: PathBuf,
        /// The cause.
        reason: String,
    },
}

/// Checks that settings do not contradict each other.
///
/// # Errors
/// [`PrepareError::Eviction`]
pub(crate) fn check(settings: &Settings) -> Result<(), PrepareError> {
    match settings.memcached_database {
        Some(database) if settings.memcached_memory.bytes() > 0 => Err(PrepareError::Eviction {
            memory: settings.memcached_memory.to_string(),
            database,
        }),
        _ => Ok(()),
    }
}

impl Server {
    /// Returns a server over databases that does not listen yet.
    ///
    /// # Errors
    /// [`PrepareError`]
    pub fn new(data: Arc<Data>, table: Table, settings: Settings) -> Result<Self, PrepareError> {
        let users = Users::new(&table, &settings.requirepass);
        for user in &settings.users {
            let words: Vec<&[u8]> = user.split_whitespace().map(str::as_bytes).collect();
            let wrong = |reason: &str| PrepareError::User {
                user: user.clone(),
                reason: reason.into(),
            };
            let (name, rules) = words.split_first().ok_or_else(|| wrong("it has no name"))?;
            users
                .set(name, rules, &table)
                .map_err(|reason| wrong(reason.trim_start_matches("ERR ")))?;
        }
        if let Some(file) = &settings.aclfile {
            let wrong = |reason: String| PrepareError::Users {
                file: file.clone(),
                reason,
            };
            if !settings.users.is_empty() {
                return Err(wrong(
                    "there are users in the settings too; name them in one place".into(),
                ));
            }
            match std::fs::read_to_string(file) {
                Ok(text) => users.replace(&text, &table).map_err(wrong)?,
                // `ACL SAVE` makes it.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(wrong(format!("reading failed: {e}"))),
            }
        }
        let backups = Backups::default();
        // ORDERING: Relaxed; no other thread has a reference yet.
        backups.last.store(seconds(), Ordering::Relaxed);
        let clients = Clients::default();
        let limit = settings.maxmemory_clients.bytes();
        clients.budget().set_limit(limit);
        Ok(Self {
            committer: Committer::start(Arc::clone(&data)).map_err(PrepareError::Thread)?,
            data,
            items: None,
            users,
            guesses: Guesses::default(),
            clients,
            pubsub: PubSub::default(),
            slowlog: SlowLog::default(),
            stats: Stats::default(),
            backups: Arc::new(backups),
            started: Instant::now(),
            stopping: watch::Sender::new(false),
            run_id: format!("{:040x}", rand::random::<u128>()),
            settings: RwLock::new(Arc::new(settings)),
            changed: Mutex::default(),
            replacing: Mutex::default(),
            generation: AtomicU64::new(1),
            table,
        })
    }

    /// Opens the items of memcached clients.
    pub(crate) fn open_items(&mut self) -> Result<(), PrepareError> {
        let items = Items::open(Arc::clone(&self.data), &self.settings())?;
        if let Err(e) = items.flush_if_due() {
            tracing::error!(error = %e, "a flush of memcached items is due, and failed");
        }
        self.items = Some(Arc::new(items));
        Ok(())
    }

    /// Returns the user that a client logs in as. After a wrong password it returns how long the
    /// reply that says so has to wait.
    pub(crate) fn log_in(
        &self,
        client: &Client,
        name: Arg<'_>,
        password: Arg<'_>,
    ) -> Result<Arc<User>, Duration> {
        let user = self.users.get(name);
        let user = user.filter(|user| user.on && user.knows(password));
        let Some(user) = user else {
            add(&self.stats.denied, 1);
            let address = &client.address;
            // Anybody may send anything here, which must neither fill the log nor forge lines of
            // it.
            let shown = name.get(..MAX_LOGGED).unwrap_or(name).escape_ascii();
            tracing::warn!(client = %address, user = %shown, "wrong password");
            return Err(self.guesses.note(address, Instant::now()));
        };
        self.guesses.forget(&client.address);
        client.names().user.clone_from(&user.name);
        Ok(user)
    }

    /// Returns the user that clients have before they log in.
    pub(crate) fn default_user(&self) -> Arc<User> {
        let found = self.users.get(DEFAULT.as_bytes());
        found.unwrap_or_else(|| Arc::new(User::without_rights(DEFAULT)))
    }

    /// Returns the current settings.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        let settings = self.settings.read();
        Arc::clone(&settings.unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a number that changes with every change of the settings.
    #[must_use]
    pub fn generation(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release of `change`: a thread that sees the number sees
        // the change.
        self.generation.load(Ordering::Acquire)
    }

    /// Changes settings, all or none.
    ///
    /// # Errors
    /// The text of the error, worded as Redis does.
    pub fn change(&self, pairs: &[(&str, &str)]) -> Result<(), String> {
        let settings = self.settings.write();
        let mut settings = settings.unwrap_or_else(PoisonError::into_inner);
        let mut changed = Settings::clone(&settings);
        changed.change(pairs)?;
        // Even if the password stays the same: ACL SETUSER may have set another one meanwhile.
        let named = |(name, _): &(&str, &str)| name.eq_ignore_ascii_case("requirepass");
        if pairs.iter().any(named) {
            self.users.require(&changed.requirepass, &self.table);
        }
        let named = |(name, _): &(&str, &str)| name.eq_ignore_ascii_case("maxmemory-clients");
        if pairs.iter().any(named) {
            let limit = changed.maxmemory_clients.bytes();
            self.clients.budget().set_limit(limit);
        }
        *settings = Arc::new(changed);
        let names = pairs.iter().map(|(name, _)| name.to_ascii_lowercase());
        (self.changed.lock())
            .unwrap_or_else(PoisonError::into_inner)
            .extend(names);
        // ORDERING: Release; pairs with the Acquire of `generation`.
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Returns how many damaged places are known: those that opening has found, or scrubbing, which
    /// finds them too.
    #[must_use]
    pub fn known_damage(&self) -> u64 {
        let store = self.data.store();
        store.recovery().damaged.max(store.scrub_stats().damaged)
    }

    /// Returns why the server can do its work no more, until it is started again; empty if it can.
    #[must_use]
    pub fn broken(&self) -> Vec<String> {
        self.data
            .io_error()
            .map(str::to_owned)
            .into_iter()
            .collect()
    }

    /// Returns why clients are better not sent here; empty if they may be.
    #[must_use]
    pub fn unready(&self) -> Vec<String> {
        let mut causes = self.broken();
        if causes.is_empty() && !self.data.takes_writes() {
            causes.push("the last change was refused; the log says why".into());
        }
        causes
    }

    /// Writes the settings that `CONFIG SET` has changed into the file of settings.
    ///
    /// # Errors
    /// The error reply; the file is as it was.
    pub fn rewrite_settings(&self) -> Result<(), String> {
        let _replacing = self.replacing.lock();
        let (settings, changed) = {
            let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner);
            let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
            (Arc::clone(&settings), changed.clone())
        };
        let Some(file) = &settings.file else {
            return Err("ERR The server is running without a config file".into());
        };
        let failed = |e: &dyn std::fmt::Display| {
            tracing::error!(error = %e, file = %file.display(), "writing the settings failed");
            format!("ERR Rewriting config file: {}: {e}", file.display())
        };
        let patterns: Vec<&[u8]> = changed.iter().map(String::as_bytes).collect();
        let new = settings.matching(&patterns);
        let text = std::fs::read_to_string(file).map_err(|e| failed(&e))?;
        let text = rewrite::with_settings(&text, &new).map_err(|e| failed(&e))?;
        rewrite::replace(file, &text).map_err(|e| failed(&e))?;
        tracing::info!(file = %file.display(), settings = new.len(), "wrote the settings that were changed");
        Ok(())
    }

    /// Returns the file of users.
    fn users_file(&self) -> Result<PathBuf, String> {
        self.settings().aclfile.clone().ok_or_else(|| {
            "ERR This server is not configured to use an ACL file: start with aclfile, or name users in the config file".into()
        })
    }

    /// Writes all users into the file of users.
    ///
    /// # Errors
    /// The error reply; the file is as it was.
    pub fn save_users(&self) -> Result<(), String> {
        let _replacing = self.replacing.lock();
        let file = self.users_file()?;
        let text = self.users.to_lines()?;
        rewrite::replace(&file, &text).map_err(|e| {
            tracing::error!(error = %e, file = %file.display(), "writing the users failed");
            format!(
                "ERR There was an error trying to save the ACLs: {}: {e}",
                file.display()
            )
        })
    }

    /// Replaces all users by those in the file of users, all or none.
    ///
    /// # Errors
    /// The error reply.
    pub fn load_users(&self) -> Result<(), String> {
        let file = self.users_file()?;
        let text = std::fs::read_to_string(&file)
            .map_err(|e| format!("ERR {}: reading failed: {e}", file.display()))?;
        self.users
            .replace(&text, &self.table)
            .map_err(|e| format!("ERR {}: {e}; nothing was changed", file.display()))
    }

    /// Begins to stop: connections end once they have replied.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns the file of backups.
    ///
    /// # Errors
    /// The error reply, if no file is configured.
    pub fn backup_file(&self) -> Result<PathBuf, String> {
        self.settings()
            .backup_file
            .clone()
            .ok_or_else(|| "ERR no backup file is configured: start with backup-file".into())
    }
}

/// Writes a backup into a file, which is replaced once the backup is complete.
///
/// # Errors
/// The error reply: another backup is under way, or this one failed.
pub fn back_up(data: &Data, backups: &Backups, file: &Path) -> Result<(), String> {
    // ORDERING: AcqRel; pairs with the Release below: one backup at a time.
    if backups.running.swap(true, Ordering::AcqRel) {
        return Err("ERR Background save already in progress".into());
    }
    let done = write_backup(data, file);
    // ORDERING: Relaxed; shown only.
    backups.failed.store(done.is_err(), Ordering::Relaxed);
    if done.is_ok() {
        // ORDERING: Relaxed; as above.
        backups.last.store(seconds(), Ordering::Relaxed);
    }
    // ORDERING: Release; pairs with the AcqRel swap above.
    backups.running.store(false, Ordering::Release);
    done.map_err(|e| {
        tracing::error!(error = %e, file = %file.display(), "the backup failed");
        format!("ERR the backup failed: {e}")
    })
}

impl Backups {
    /// Returns true while a backup is being written.
    #[must_use]
    pub fn running(&self) -> bool {
        // ORDERING: Relaxed; shown only.
        self.running.load(Ordering::Relaxed)
    }
}

fn write_backup(data: &Data, file: &Path) -> Result<(), String> {
    let mut part = file.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    let io = |e: io::Error| format!("{}: {e}", part.display());
    let mut out = BufWriter::new(File::create(&part).map_err(io)?);
    data.store().backup(&mut out).map_err(|e| e.to_string())?;
    out.flush().map_err(io)?;
    out.get_ref().sync_all().map_err(io)?;
    rewrite::put_in_place(&part, file).map_err(io)
}
