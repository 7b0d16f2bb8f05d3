//! The command line of `serve`.

use bristlecone_command::args::WriteArgs;
use clap::Args;
use std::path::PathBuf;

fn setting(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .ok_or_else(|| "expected NAME=VALUE, as maxclients=500".to_owned())
}

/// `serve`
#[derive(Debug, Args)]
#[command(after_help = "\
A pool that is not there is made. Writes are answered when they are durable. Any Redis client will do:
redis-cli -p 6379.

Settings come from flags, else from the environment (BRISTLECONE_SERVE_MAXCLIENTS=500), else from the
file (maxclients = 500): listen, tls-listen, tls-cert, tls-key, tls-ca-cert, tls-auth-clients,
tls-auth-clients-user, memcached, memcached-database, memcached-memory, memcached-item-size,
memcached-max-key, memcached-shutdown, metrics, status-page, requirepass, users (file only), aclfile,
protected-mode, maxclients, timeout, tcp-keepalive, proto-max-bulk-len, client-query-buffer-limit,
client-output-buffer-limit, memory, scrub, maxmemory-clients, slowlog-log-slower-than, slowlog-max-len, backup-file,
archive, archive-every, archive-full-every, archive-keep, archive-queue, exit-on-io-error, enable-debug-command, log-level, log-format, logfile, threads. A wrong one ends it with status 2.

memory limits what of the process is resident, for a pool on a disk (the medium
journal): bytes (1gb), a share of the memory (50%), or 0 for no limit; 256mb is the default. The pool may be
larger: what was not used for a while is read from the file again. Other pools are in memory as a whole.

memcached listens for memcached clients: classic text, meta commands and the binary protocol. Their items are
a keyspace of their own, durable as all others; memcached-memory evicts the least recently used ones
beyond so many bytes. With memcached-database (0 to 15) they are strings of that database instead.

maxmemory-clients limits what all clients together hold in memory, as requests and replies: bytes (500mb),
a share of the memory (25%, the default), or 0 for no limit. Beyond it the largest client is disconnected.

Logs go to standard error, or to logfile: at most 10 lines of one cause in 10 seconds, and nothing waits
for them to be written. What was left out is counted in later lines.

SIGTERM, SIGINT and the command SHUTDOWN end it: what is under way is answered, and the pool is closed.
SIGHUP begins logfile anew, as after it was renamed, and reads tls-cert and tls-key again; where they
cannot be used, the log says so, and those from before stay.

Examples:
  bristlecone serve orders.pool
  bristlecone serve /mnt/pmem/orders.pool --listen 127.0.0.1:7000 --metrics 127.0.0.1:9121
  bristlecone serve cache.pool --memcached 127.0.0.1:11211 --memcached-memory 1gb
  bristlecone serve orders.pool --config serve.toml --set maxclients=500")]
pub struct Serve {
    /// The pool, made if it is not there
    pub pool: PathBuf,
    /// Where to listen: ADDRESS:PORT; port 0 takes a free one [default: 127.0.0.1:6379]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Settings, TOML
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Memory that may be resident, for a pool on a disk: bytes (1gb), a share (50%), or 0 for no
    /// limit [default: 256mb]
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
    /// Where to listen for TLS
    #[arg(long, value_name = "ADDR")]
    pub tls_listen: Option<String>,
    /// The certificate and those that it rests on, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<String>,
    /// Its private key, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<String>,
    /// Where to listen for memcached clients
    #[arg(long, value_name = "ADDR")]
    pub memcached: Option<String>,
    /// The most bytes of their items, a share (50%), or 0 for no limit; beyond it the least
    /// recently used are evicted [default: 0]
    #[arg(long, value_name = "BYTES")]
    pub memcached_memory: Option<String>,
    /// Where to answer with the status page, health, and metrics for Prometheus, over HTTP
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<String>,
    /// The directory to archive every commit to, for `restore` to any of them
    #[arg(long, value_name = "DIR")]
    pub archive: Option<String>,
    /// Another setting, as in the file; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub set: Vec<(String, String)>,
    /// How to open it.
    #[command(flatten)]
    pub write: WriteArgs,
}
