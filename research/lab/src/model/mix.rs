//! Workloads that a file describes: shares of operations, and which keys they use.
//!
//! ```toml
//! name = "session-store"
//! keys = "zipf"       # or "uniform": of the loaded keys, which lookups, updates and scans use
//! lookup = 50         # shares in percent, 100 together; those that are 0 may be left out
//! update = 45
//! insert = 5          # of new keys
//! scan = 0
//! scan_keys = 10      # keys of a scan
//! ```

use super::ModelError;
use super::workload::Op;
use crate::workload::{Keys, Random, Scrambled, value_of};
use serde::Deserialize;
use std::path::Path;

/// A workload that a file describes. A value of this type has been checked.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    pub(super) name: String,
    keys: Choice,
    #[serde(default)]
    lookup: u64,
    #[serde(default)]
    update: u64,
    #[serde(default)]
    insert: u64,
    #[serde(default)]
    scan: u64,
    #[serde(default = "ten")]
    scan_keys: u32,
}

/// The choice of an existing key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Choice {
    /// Each is as likely.
    Uniform,
    /// By Zipf's law, as YCSB does.
    Zipf,
}

fn ten() -> u32 {
    10
}

impl Mix {
    /// Returns the workload that a file describes.
    ///
    /// # Errors
    /// [`ModelError`], naming the file, the field and its value.
    pub fn load(path: &Path) -> Result<Self, ModelError> {
        let text = std::fs::read_to_string(path).map_err(|source| ModelError::Read {
            path: path.into(),
            source,
        })?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Parses a description. Messages call it `file`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn parse(file: &str, text: &str) -> Result<Self, ModelError> {
        let mix: Self = toml::from_str(text).map_err(|e| ModelError::Syntax {
            file: file.into(),
            message: e.to_string().trim_end().into(),
        })?;
        let wrong = |field, value: String, may_be: &str| {
            Err(ModelError::Field {
                file: file.into(),
                field,
                value,
                may_be: may_be.into(),
            })
        };
        if mix.name.is_empty() || mix.name.chars().any(char::is_whitespace) {
            return wrong("name", format!("{:?}", mix.name), "one word");
        }
        let shares = [mix.lookup, mix.update, mix.insert, mix.scan];
        let sum = shares
            .iter()
            .fold(0_u64, |sum, share| sum.saturating_add(*share));
        if sum != 100 {
            let field = "lookup + update + insert + scan";
            return wrong(field, sum.to_string(), "100, as they are in percent");
        }
        if mix.scan_keys == 0 {
            return wrong("scan_keys", "0".into(), "1 or more");
        }
        Ok(mix)
    }

    /// Returns the next operation on the records before `there`, or on the new record `new`.
    pub(super) fn next(&self, random: &mut Random, keys: Keys, there: u64, new: u64) -> Op {
        let share = random.below(100);
        let key = keys.key(match self.keys {
            Choice::Uniform => random.below(there),
            Choice::Zipf => Scrambled::new(there).index(random),
        });
        if share < self.lookup {
            Op::Lookup { key }
        } else if share < self.lookup + self.update {
            // The same value, as lookups expect it.
            let value = value_of(key);
            Op::Update { key, value }
        } else if share < self.lookup + self.update + self.insert {
            Op::Insert { key: keys.key(new) }
        } else {
            let keys = self.scan_keys;
            Op::Scan { key, keys }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn operations_come_in_their_shares() {
        let text =
            "name = \"mine\"\nkeys = \"zipf\"\nlookup = 50\nupdate = 30\ninsert = 15\nscan = 5\n";
        let mix = Mix::parse("mine.toml", text).unwrap();
        let (keys, mut random) = (Keys::Dense, Random::new(3));
        let (mut counts, mut by_key) = ([0_i32; 4], BTreeMap::new());
        for new in 1_000..11_000 {
            let (kind, key) = match mix.next(&mut random, keys, 1_000, new) {
                Op::Lookup { key } => (0, key),
                Op::Update { key, value } if value == value_of(key) => (1, key),
                Op::Insert { key } if key == new => (2, 0),
                Op::Scan { key, keys: 10 } => (3, key),
                other => panic!("{other:?}"),
            };
            assert!(key < 1_000);
            counts[kind] += 1;
            *by_key.entry(key).or_insert(0) += i32::from(kind != 2);
        }
        for (count, share) in counts.into_iter().zip([5_000, 3_000, 1_500, 500]) {
            assert!((count - share).abs() < 300, "{counts:?}");
        }
        assert!(by_key.values().max() > Some(&200), "some keys are hot");
    }

    #[test]
    fn mistakes_are_named() {
        let refused = |text: &str| Mix::parse("mine.toml", text).unwrap_err().to_string();
        let most = "name = \"mine\"\nkeys = \"uniform\"\n";
        assert!(refused(most).contains("100"));
        assert!(refused(&format!("{most}lookup = 90")).contains("90"));
        assert!(refused(&format!("{most}lookup = 100\nscan_keys = 0")).contains("scan_keys"));
        assert!(refused(&format!("{most}look = 100")).contains("look"));
        assert!(refused("name = \"a b\"\nkeys = \"zipf\"\nlookup = 100").contains("one word"));
        assert!(refused("name = \"a\"\nkeys = \"latest\"\nlookup = 100").contains("latest"));
    }
}
