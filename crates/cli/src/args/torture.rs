//! The command line of `torture`.

use bristlecone_command::args::TortureArgs;
use clap::Args;

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
  bristlecone torture --server --medium journal --kills 100 --dir /var/tmp")]
pub struct Torture {
    /// Torture a server
    #[arg(long)]
    pub server: bool,
    /// How.
    #[command(flatten)]
    pub torture: TortureArgs,
}
