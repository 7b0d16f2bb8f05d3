//! Arguments that mean the same in both commands.

use bristlecone_pmem::{Durability, MediumKind};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The medium asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MediumChoice {
    /// The one that the pool was made on; for a new pool dax if the path allows it, mapped on
    /// tmpfs, else journal
    #[default]
    Auto,
    /// Persistent memory mapped with MAP_SYNC (an fsdax mount or a devdax device)
    Dax,
    /// Any shared mapping: survives a process crash, not a power failure
    Mapped,
    /// A write-ahead journal on an ordinary disk
    Journal,
}

impl MediumChoice {
    /// The medium, or `None` to let the path decide.
    #[must_use]
    pub fn kind(self) -> Option<MediumKind> {
        match self {
            Self::Auto => None,
            Self::Dax => Some(MediumKind::Dax),
            Self::Mapped => Some(MediumKind::Mapped),
            Self::Journal => Some(MediumKind::Journal),
        }
    }
}

/// The media that `torture` runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TortureMedium {
    /// A write-ahead journal on an ordinary disk
    Journal,
    /// A shared mapping
    Mapped,
}

impl TortureMedium {
    /// The medium.
    #[must_use]
    pub fn kind(self) -> MediumKind {
        match self {
            Self::Journal => MediumKind::Journal,
            Self::Mapped => MediumKind::Mapped,
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.kind().name()
    }
}

/// Parses a durability level: `immediate`, `none`, or `interval=MS`.
///
/// # Errors
/// The text is none of them.
pub fn durability(text: &str) -> Result<Durability, String> {
    match text {
        "immediate" => return Ok(Durability::Immediate),
        "none" => return Ok(Durability::None),
        _ => {}
    }
    let millis = text
        .strip_prefix("interval=")
        .map(|ms| ms.strip_suffix("ms").unwrap_or(ms))
        .and_then(|ms| ms.parse::<u32>().ok())
        .filter(|ms| *ms > 0);
    match millis {
        Some(ms) => Ok(Durability::Interval(Duration::from_millis(ms.into()))),
        None => Err(
            "expected immediate, none, or interval=MS with MS in milliseconds, at least 1"
                .to_owned(),
        ),
    }
}

/// Returns the text that [`durability`] parses.
#[must_use]
pub fn durability_text(level: Durability) -> String {
    match level {
        Durability::Immediate => "immediate".into(),
        Durability::Interval(every) => format!("interval={}", every.as_millis()),
        Durability::None => "none".into(),
    }
}

/// Parses a count with an optional decimal suffix: `500`, `20K`, `10M`, `1G`.
///
/// # Errors
/// The text is no such count, or 0.
pub fn count(text: &str) -> Result<u64, String> {
    let (digits, scale) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1_000),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 1_000_000),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    digits
        .replace('_', "")
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(scale))
        .filter(|n| *n > 0)
        .ok_or_else(|| "expected a whole number of at least 1, like 500, 20K or 10M".to_owned())
}

/// How to open the pool's file.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct MediumArgs {
    /// Medium to open the pool through
    #[arg(long, value_enum, default_value_t, hide_possible_values = false)]
    pub medium: MediumChoice,
}

/// How to open the pool's file for writing.
#[derive(Clone, Copy, Debug, Args)]
pub struct WriteArgs {
    /// Medium to open the pool through
    #[arg(long, value_enum, default_value_t)]
    pub medium: MediumChoice,
    /// When a write counts as done, on the journal medium: synced (immediate), synced every so
    /// often (interval=MS), or left to checkpoints (none). Chosen at each opening, not stored
    #[arg(long, value_name = "immediate|interval=MS|none", value_parser = durability, default_value = "immediate")]
    pub durability: Durability,
}

/// How `scan` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ScanFormat {
    /// KEY, tab, VALUE; control characters, \ and bytes that are not UTF-8 as \xNN
    #[default]
    Text,
    /// One object per line: {"key":…,"value":…}; key_base64, value_base64 for bytes that are not
    /// UTF-8
    Json,
    /// key,value with a header line; fields quoted where needed, bytes as they are
    Csv,
}

/// The range to scan, and the format to print it in.
#[derive(Debug, Args)]
pub struct ScanArgs {
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
}

/// The rows to import.
#[derive(Debug, Args)]
pub struct ImportArgs {
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
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// Where to export to.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The pool
    pub pool: PathBuf,
    /// The file to write, replaced if it exists: .csv or .jsonl
    pub file: PathBuf,
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

/// The pool that `info` and `check` look at.
#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The pool
    pub pool: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub medium: MediumArgs,
}

/// The pool that is compacted.
#[derive(Debug, Args)]
pub struct CompactArgs {
    /// The pool
    pub pool: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub write: WriteArgs,
}

/// The pool that is copied.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// The pool
    pub pool: PathBuf,
    /// The file to make; one that exists is left alone
    pub file: PathBuf,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// How to open it.
    #[command(flatten)]
    pub medium: MediumArgs,
}

/// How to torture.
#[derive(Debug, Args)]
pub struct TortureArgs {
    /// Medium to torture
    #[arg(long, value_enum)]
    pub medium: TortureMedium,
    /// How many times to kill
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), default_value_t = 20)]
    pub kills: u64,
    /// Where to put the pool [default: /dev/shm for mapped, else the directory for temporary files]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Threads that write, or clients of a server [default: 4 threads, 16 clients]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub threads: Option<u16>,
    /// Repeat the operations of an earlier run (the moments of the kills differ)
    #[arg(long)]
    pub seed: Option<u64>,
    /// End with one JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// The process that torture kills.
#[derive(Debug, Args)]
pub struct WriterArgs {
    /// The pool
    pub pool: PathBuf,
    /// Its medium
    #[arg(long, value_enum)]
    pub medium: TortureMedium,
    /// Threads that write
    #[arg(long)]
    pub threads: u16,
    /// Seed of the run's operations
    #[arg(long)]
    pub seed: u64,
    /// Which round this is
    #[arg(long)]
    pub round: u32,
}
