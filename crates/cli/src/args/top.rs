//! The command line of `top`.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

fn interval(text: &str) -> Result<Duration, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.1..=86_400.0).contains(seconds))
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "expected seconds, from 0.1 to 86400".to_owned())
}

/// `top`
#[derive(Debug, Args)]
#[command(after_help = "\
Asks the server by INFO, LATENCY HISTOGRAM and SLOWLOG GET, as any client may whose user has the rights
+info +latency +slowlog. Its own commands are counted with the others.

On a terminal it is redrawn until q or ctrl-c. Elsewhere, and with --once, it prints plain text: rates
of the first view are since the server's start, those of the next ones since the view before. A command's
times are those of its running, without the wait until its writes are durable; p50 and p99 are bounds:
half of the calls, or all but one of a hundred, took less.

The user and the password may be in the environment: BRISTLECONE_USER and BRISTLECONE_PASSWORD.

Examples:
  bristlecone top
  bristlecone top 10.0.0.7:6379 --interval 5
  bristlecone top db.example.com:6380 --tls-ca ca.pem --user watcher
  bristlecone top --once | grep '^keys'")]
pub struct Top {
    /// The server: HOST:PORT
    #[arg(value_name = "ADDR", default_value = "127.0.0.1:6379")]
    pub address: String,
    /// Seconds from one view to the next
    #[arg(long, value_name = "SECONDS", value_parser = interval, default_value = "1")]
    pub interval: Duration,
    /// End after so many views
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print one view as plain text
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
    /// The user to log in as [default: the server's default user]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// The user's password; others on this machine may see it here: better in BRISTLECONE_PASSWORD
    #[arg(long, value_name = "PASSWORD")]
    pub password: Option<String>,
    /// Speak TLS, and trust the certificates in this file, PEM
    #[arg(long, value_name = "FILE")]
    pub tls_ca: Option<PathBuf>,
}
