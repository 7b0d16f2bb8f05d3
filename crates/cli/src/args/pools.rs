//! The command lines of what works on a whole pool: `scan`, `import`, `export`, `info`, `check`, `compact`, `backup`.

use super::{MediumArgs, WriteArgs};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// How `scan` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ScanFormat {
    /// KEY, tab, VALUE; control characters, \ and bytes that are not UTF-8 as \xNN
    #[default]
    Text,
    /// One object per line: {"key":…,"value":…}; key_base64, value_base64 for bytes that are not UTF-8
    Json,
    /// key,value with a header line; fields quoted where needed, bytes as they are
    Csv,
}

/// `scan`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bristlecone scan cities.pool --prefix FR/ --limit 10
  bristlecone scan cities.pool --from DE --to FR --format json
  bristlecone scan cities.pool --reverse --limit 1          # the last key
  bristlecone scan shop.pool --keyspace 0                   # what `serve` keeps in database 0

Keys of a pool that `serve` wrote come with their type, as TYPE has it: KEY, tab, TYPE, tab, VALUE (a \
column or a field of this name in the other formats). The value of a string is shown; that of a list, \
set, hash or sorted set is not. After SWAPDB, a database has another one's keyspace.")]
pub struct Scan {
    /// The pool
    pub pool: PathBuf,
    /// First key of the range
    #[arg(long, value_name = "KEY")]
    pub from: Option<OsString>,
    /// End of the range; this key itself is left out
    #[arg(long, value_name = "KEY")]
    pub to: Option<OsString>,
    /// Only keys that begin so
    #[arg(long)]
    pub prefix: Option<OsString>,
    /// From the last key down to the first
    #[arg(long)]
    pub reverse: bool,
    /// Stop after this many keys
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// How to print them
    #[arg(long, value_enum, default_value_t)]
    pub format: ScanFormat,
    /// Keyspace of a store, as `serve` makes [default: the pool's index; without one, database 0]
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

A malformed line stops the import: everything before it is durable, and the message gives the \
command that goes on from that line.

Examples:
  bristlecone import cities.pool cities.csv
  bristlecone import users.pool users.jsonl --key id
  bristlecone import users.pool users.jsonl --key id --from-line 1042")]
pub struct Import {
    /// The pool
    pub pool: PathBuf,
    /// The file: .csv or .jsonl
    pub file: PathBuf,
    /// Column or field that holds the key [default: the first column; the field "key"]
    #[arg(long, value_name = "COLUMN")]
    pub key: Option<String>,
    /// Skip the lines before this one (the first is 1; a CSV header is read all the same)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), default_value_t = 1, hide_default_value = true)]
    pub from_line: u64,
    /// How to open it.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// `export`
#[derive(Debug, Args)]
#[command(after_help = "\
The file appears whole or not at all. Rows that came from one CSV file get its columns back; \
anything else is written as pairs of key and value. `import` of the file gives the same pool.

All that is written agrees with its checksum. A damaged pool is refused, unless --skip-damaged says to \
leave out what is damaged; each key that is left out is named on standard error.

Of a pool that `serve` wrote, one keyspace is exported (--keyspace): strings as pairs of key and value, \
with \"type\" and \"expires_at\" (ms since 1970) where they expire; of lists, sets, hashes and sorted \
sets only key and type. For all of it, the server's SAVE and `restore` are the way.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 done, but something is damaged (--skip-damaged).

Examples:
  bristlecone export cities.pool cities.jsonl
  bristlecone export damaged.pool rest.jsonl --skip-damaged
  bristlecone export shop.pool strings.jsonl --keyspace 0")]
pub struct Export {
    /// The pool
    pub pool: PathBuf,
    /// The file to write, replaced if it exists: .csv or .jsonl
    pub file: PathBuf,
    /// Keyspace of a store, as `serve` makes [default: the pool's index; without one, database 0]
    #[arg(long, value_name = "NAME")]
    pub keyspace: Option<String>,
    /// Leave out what is damaged, and end with status 3 if anything is
    #[arg(long)]
    pub skip_damaged: bool,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub medium: MediumArgs,
}

/// `info` and `check`
#[derive(Debug, Args)]
#[command(after_help = "\
Both look at all that is in the pool: the index that `create` makes, and the store that `serve` makes.

Exit status: 0 whole, 1 damaged (or it did not open), 2 wrong usage.")]
pub struct Inspect {
    /// The pool
    pub pool: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub medium: MediumArgs,
}

/// `compact`
#[derive(Debug, Args)]
pub struct Compact {
    /// The pool
    pub pool: PathBuf,
    /// How to open it.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// `backup`
#[derive(Debug, Args)]
#[command(after_help = "\
The copy is a pool of its own: open it, check it, or put it in the original's place.

Example:
  bristlecone backup cities.pool cities-2026-03-01.pool")]
pub struct Backup {
    /// The pool
    pub pool: PathBuf,
    /// The file to make; one that exists is left alone
    pub file: PathBuf,
    /// How to open it.
    #[command(flatten)]
    pub medium: MediumArgs,
}
