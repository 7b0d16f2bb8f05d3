//! The command lines of what works on a whole keyspace or database: `scan`, `import`, `export`,
//! `info`, `check`, `compact`, `backup`.

use bristlecone_command::args::{
    BackupArgs, CompactArgs, ExportArgs, ImportArgs, InspectArgs, MediumArgs, ScanArgs,
};
use clap::Args;
use std::path::PathBuf;

/// `scan`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bristlecone scan cities.db --prefix FR/ --limit 10
  bristlecone scan cities.db --from DE --to FR --format json
  bristlecone scan cities.db --reverse --limit 1          # the last key
  bristlecone scan shop.db --keyspace 0                   # what `serve` keeps in database 0

Keys of a server's database come with their type, as TYPE has it: KEY, tab, TYPE, tab, VALUE (a column \
or a field of this name in the other formats). The value of a string is shown; that of a list, set, hash \
or sorted set is not.")]
pub struct Scan {
    /// The database
    pub pool: PathBuf,
    /// The range and the format.
    #[command(flatten)]
    pub scan: ScanArgs,
    /// Keyspace [default: `default`; of what `serve` wrote, database 0; else the only one]
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// How to open it.
    #[command(flatten)]
    pub medium: MediumArgs,
}

/// `import`
#[derive(Debug, Args)]
#[command(after_help = "\
A .csv file needs a header line. A row becomes a JSON object of its columns, stored under the \
key column. A .jsonl line is stored as it is, under its field \"key\". Files that hold just pairs \
(columns or fields key and value, or key_base64 and value_base64) store the value alone: `export` \
writes those. A key that is there already gets the new value.

A malformed line stops the import, and so does Ctrl-C: everything before that line is durable, and the \
message gives the command that goes on from there.

Examples:
  bristlecone import cities.db cities.csv
  bristlecone import users.db users.jsonl --key id --keyspace users
  bristlecone import users.db users.jsonl --key id --from-line 1042")]
pub struct Import {
    /// The rows.
    #[command(flatten)]
    pub import: ImportArgs,
    /// Keyspace, made if it is not there [default: `default`; of what `serve` wrote, database 0;
    /// else the only one]
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
}

/// `export`
#[derive(Debug, Args)]
#[command(after_help = "\
The file appears whole or not at all. Rows that came from one CSV file get its columns back; \
anything else is written as pairs of key and value. `import` of the file gives the same keyspace.

All that is written agrees with its checksum. A damaged database is refused, unless --skip-damaged says \
to leave out what is damaged. What is left out is named on standard error: a key, or the place where \
a page of keys begins.

Of a server's database, strings are written as pairs of key and value, with \"type\" and \"expires_at\" \
(ms since 1970) where they expire; of lists, sets, hashes and sorted sets only key and type. For all of \
it, the server's SAVE and `restore` are the way.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 done, but something is damaged (--skip-damaged).

Examples:
  bristlecone export cities.db cities.jsonl
  bristlecone export damaged.db rest.jsonl --skip-damaged
  bristlecone export shop.db strings.jsonl --keyspace 0")]
pub struct Export {
    /// Where to.
    #[command(flatten)]
    pub export: ExportArgs,
    /// Keyspace [default: `default`; of what `serve` wrote, database 0; else the only one]
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
}

/// `info` and `check`
#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 whole, 1 damaged (or it did not open), 2 wrong usage.")]
pub struct Inspect {
    /// The database.
    #[command(flatten)]
    pub inspect: InspectArgs,
}

/// `compact`
#[derive(Debug, Args)]
pub struct Compact {
    /// The database.
    #[command(flatten)]
    pub compact: CompactArgs,
}

/// `backup`
#[derive(Debug, Args)]
#[command(after_help = "\
The copy is a database of its own: open it, check it, or put it in the original's place.

Example:
  bristlecone backup cities.db cities-2026-03-01.db")]
pub struct Backup {
    /// The database and the copy.
    #[command(flatten)]
    pub backup: BackupArgs,
}
