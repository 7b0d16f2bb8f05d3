//! The operations of a run, and their keys.

use super::{Mix, ModelError};
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// The workload of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Inserts of new random keys.
    Insert,
    /// Inserts of ascending keys: one thread inserts behind the largest key ("dense" in the
    /// LB+-Tree paper's figure 11), several threads at a hot spot each.
    DenseInsert,
    /// Lookups of existing keys.
    Lookup,
    /// Updates of existing keys.
    Update,
    /// Removals of existing keys, each once.
    Remove,
    /// Scans of a number of keys from an existing one on.
    Scan {
        /// Number of keys of a scan.
        keys: u32,
    },
    /// Lookups and inserts of new keys.
    Mixed {
        /// Share of the lookups, in percent.
        lookups: u8,
    },
    /// Operations that a file describes.
    Described(&'static Mix),
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Insert {
        key: u64,
    },
    Lookup {
        key: u64,
    },
    Update {
        key: u64,
        value: u64,
    },
    Remove {
        key: u64,
    },
    /// The next `keys` keys from an existing one on.
    Scan {
        key: u64,
        keys: u32,
    },
}

const NAMES: [&str; 7] = [
    "insert", "dense", "lookup", "update", "remove", "scan", "mixed",
];
/// Default number of keys of a scan.
const SCANNED: u32 = 10;

impl Workload {
    /// Returns the names that [`FromStr`] takes. `mixed` stands for `mixed:50`, and `mixed:90` has
    /// 90 % lookups. `scan` stands for `scan:10`, of 10 keys. It also takes the path of a
    /// [`Mix`]'s file, which contains `/` or ends in `.toml`.
    #[must_use]
    pub fn names() -> &'static [&'static str] {
        &NAMES
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Insert => f.write_str("insert"),
            Self::DenseInsert => f.write_str("dense"),
            Self::Lookup => f.write_str("lookup"),
            Self::Update => f.write_str("update"),
            Self::Remove => f.write_str("remove"),
            Self::Scan { keys } => write!(f, "scan:{keys}"),
            Self::Mixed { lookups } => write!(f, "mixed:{lookups}"),
            Self::Described(mix) => f.write_str(&mix.name),
        }
    }
}

impl Serialize for Workload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Workload {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        Ok(match text {
            "insert" => Self::Insert,
            "dense" => Self::DenseInsert,
            "lookup" => Self::Lookup,
            "update" => Self::Update,
            "remove" => Self::Remove,
            "scan" => Self::Scan { keys: SCANNED },
            "mixed" => Self::Mixed { lookups: 50 },
            path if path.contains('/') || path.ends_with(".toml") => {
                // Workloads are copied everywhere, and a process reads few.
                Self::Described(Box::leak(Box::new(Mix::load(Path::new(path))?)))
            }
            _ => {
                let keys = text.strip_prefix("scan:").map(str::parse);
                if let Some(Ok(keys @ 1..)) = keys {
                    return Ok(Self::Scan { keys });
                }
                let lookups = text
                    .strip_prefix("mixed:")
                    .and_then(|percent| percent.parse().ok())
                    .filter(|percent| *percent <= 100);
                let Some(lookups) = lookups else {
                    return Err(ModelError::parameter(
                        "workload",
                        text,
                        format!(
                            "{}, mixed:P with P percent lookups (0 to 100), scan:N of N keys, or a path of \
                             a workload file (with a / or ending in .toml)",
                            NAMES.join(", ")
                        ),
                    ));
                };
                Self::Mixed { lookups }
            }
        })
    }
}
