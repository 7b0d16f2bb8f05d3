//! The command line of `torture`.

use bristlecone_command::args::{TortureArgs, durability};
use bristlecone_pmem::media::Durability;
use clap::Args;
use std::path::PathBuf;

/// `torture`
#[derive(Debug, Args)]
#[command(after_help = "\
A writer process puts, replaces and removes keys from several threads and reports each call that \
returned. It is killed with SIGKILL at random moments; then the database is reopened, and every key \
must have the value that was last reported, or that of the one call that its thread had under way.

With --server it is `bristlecone serve` that is killed, under clients that send strings, numbers, \
lists, hashes, sorted sets and transactions, alone or several at once. Then it is started again, and \
every key must hold what was answered; of what a client had on its way, any number of the first may \
be there, each wholly.

Examples:
  bristlecone torture --medium journal --kills 300 --dir /var/tmp
  bristlecone torture --server --medium journal --kills 100 --dir /var/tmp
  bristlecone torture --server --archive --medium journal --durability none --kills 30")]
pub struct Torture {
    /// Torture a server
    #[arg(long)]
    pub server: bool,
    /// With --server, on the journal medium: when a write counts as done. With another than
    /// immediate, a kill may take the last ones of those that were answered, in their order
    #[arg(
        long,
        value_name = "immediate|interval=MS|none",
        value_parser = durability,
        default_value = "immediate",
        requires = "server"
    )]
    pub durability: Durability,
    /// With --server: archive every commit. At the end a database is restored from the archive,
    /// which must have what the tortured one has
    #[arg(long, requires = "server")]
    pub archive: bool,
    /// With --server: connect with TLS. The server has this certificate, for the address 127.0.0.1
    /// (PEM), and the clients trust no other
    #[arg(long, value_name = "FILE", requires_all = ["server", "tls_key"])]
    pub tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// How.
    #[command(flatten)]
    pub torture: TortureArgs,
}
