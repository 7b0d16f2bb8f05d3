//! What connections share.

use crate::channels::PubSub;
use crate::client::Clients;
use crate::committer::Committer;
use crate::config::Settings;
use crate::data::Data;
use crate::slowlog::SlowLog;
use crate::table::Table;
use crate::users::Users;
use bristlecone_store::WriteError;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// The Redis whose commands and replies these are.
pub const REDIS_VERSION: &str = "7.0.15";

/// What has happened.
#[derive(Debug, Default)]
pub struct Stats {
    /// Connections that were accepted.
    pub connections: AtomicU64,
    /// And those that were refused.
    pub rejected: AtomicU64,
    /// Commands.
    pub commands: AtomicU64,
    /// Bytes received.
    pub input: AtomicU64,
    /// Bytes sent.
    pub output: AtomicU64,
    /// Batches of a connection's commands that were made durable before they were answered.
    pub settles: AtomicU64,
    /// Commands of these batches.
    pub settled_commands: AtomicU64,
    /// Error replies.
    pub errors: AtomicU64,
    /// Passwords that were wrong, and commands that users may not use.
    pub denied: AtomicU64,
}

/// Backups to the configured file.
#[derive(Debug, Default)]
pub struct Backups {
    running: AtomicBool,
    /// When the last one was made, in s since 1970.
    pub last: AtomicU64,
    /// The last one failed.
    pub failed: AtomicBool,
}

/// A server.
#[derive(Debug)]
pub struct Server {
    /// Databases.
    pub data: Arc<Data>,
    /// Commands.
    pub table: Table,
    /// Users.
    pub users: Users,
    /// Clients.
    pub clients: Clients,
    /// Channels.
    pub pubsub: PubSub,
    /// Durability.
    pub committer: Committer,
    /// Slow commands.
    pub slowlog: SlowLog,
    /// Statistics.
    pub stats: Stats,
    /// Backups.
    pub backups: Arc<Backups>,
    /// When it was started.
    pub started: Instant,
    /// Sends true when it is to stop.
    pub stopping: watch::Sender<bool>,
    /// A number of this run, in hex.
    pub run_id: String,
    settings: RwLock<Arc<Settings>>,
    generation: AtomicU64,
}

/// Returns seconds since 1970.
#[must_use]
pub fn seconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Waits until the server is to stop.
pub async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error: it is gone already.
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The store.
    #[error("{0}")]
    Store(#[from] WriteError),
    /// A thread.
    #[error("starting a thread failed: {0}")]
    Thread(io::Error),
    /// A user in the settings.
    #[error("user {user:?}: {reason}")]
    User {
        /// As the settings have it.
        user: String,
        /// What is wrong.
        reason: String,
    },
}

impl Server {
    /// Returns a server over databases, which listens to nobody yet.
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
        let backups = Backups::default();
        // ORDERING: Relaxed; nobody else has it.
        backups.last.store(seconds(), Ordering::Relaxed);
        let clients = Clients::default();
        let limit = settings.maxmemory_clients.bytes();
        clients.budget().set_limit(limit);
        Ok(Self {
            committer: Committer::start(Arc::clone(&data)).map_err(PrepareError::Thread)?,
            data,
            users,
            clients,
            pubsub: PubSub::default(),
            slowlog: SlowLog::default(),
            stats: Stats::default(),
            backups: Arc::new(backups),
            started: Instant::now(),
            stopping: watch::Sender::new(false),
            run_id: format!("{:040x}", rand::random::<u128>()),
            settings: RwLock::new(Arc::new(settings)),
            generation: AtomicU64::new(1),
            table,
        })
    }

    /// Returns the settings as they are now.
    #[must_use]
    pub fn settings(&self) -> Arc<Settings> {
        let settings = self.settings.read();
        Arc::clone(&settings.unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes with every change of the settings.
    #[must_use]
    pub fn generation(&self) -> u64 {
        // ORDERING: Acquire; with the Release of `change`: who sees it sees the change.
        self.generation.load(Ordering::Acquire)
    }

    /// Changes settings, all or none.
    ///
    /// # Errors
    /// What is wrong, as Redis has it.
    pub fn change(&self, pairs: &[(&str, &str)]) -> Result<(), String> {
        let settings = self.settings.write();
        let mut settings = settings.unwrap_or_else(PoisonError::into_inner);
        let mut changed = Settings::clone(&settings);
        changed.change(pairs)?;
        // Also to the password of before: ACL SETUSER may have given the user another one meanwhile.
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
        // ORDERING: Release; see `generation`.
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Begins to stop: connections end when they have answered.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Returns where backups go.
    ///
    /// # Errors
    /// The reply, if no file is configured.
    pub fn backup_file(&self) -> Result<PathBuf, String> {
        self.settings()
            .backup_file
            .clone()
            .ok_or_else(|| "ERR no backup file is configured: start with backup-file".into())
    }
}

/// Writes a backup into a file, which is replaced when it is complete.
///
/// # Errors
/// The reply: another one is being written, or this one fails.
pub fn back_up(data: &Data, backups: &Backups, file: &Path) -> Result<(), String> {
    // ORDERING: AcqRel; one at a time.
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
    // ORDERING: Release; pairs with the swap.
    backups.running.store(false, Ordering::Release);
    done.map_err(|e| {
        tracing::error!(error = %e, file = %file.display(), "the backup failed");
        format!("ERR the backup failed: {e}")
    })
}

impl Backups {
    /// Returns true while one is being written.
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
    std::fs::rename(&part, file).map_err(io)?;
    let directory = file.parent().filter(|at| !at.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))
        .and_then(|directory| directory.sync_all())
        .map_err(io)
}
