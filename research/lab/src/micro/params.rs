//! The parameters of `bench micro`.

use crate::LabError;
use bristlecone_designs::designs::{Choice, DesignInfo, VOLATILE};
use bristlecone_pmem::{Durability, MediumKind};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Defines an enum with the names that the command line and JSON use.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident, $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $type {
            /// All of them, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the name that the command line and JSON use.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $type {
            type Err = LabError;

            fn from_str(text: &str) -> Result<Self, LabError> {
                Self::ALL.iter().copied().find(|one| one.name() == text).ok_or_else(|| {
                    LabError::parameter($what, text, [$($name,)*].join(", "))
                })
            }
        }
    };
}

named! {
    /// An operation, in the order in which phases run.
    Op, "an operation" {
        /// Inserts in random order into a tree that is empty at first.
        Load = "load",
        /// Inserts into the loaded tree.
        Insert = "insert",
        /// Looks up existing keys.
        Lookup = "lookup",
        /// Looks up batches of 16.
        MultiGet = "multi_get",
        /// Visits 100 entries from a random key on.
        Scan = "scan",
        /// Replaces values.
        Update = "update",
        /// Inserts batches of 16.
        MultiInsert = "multi_insert",
        /// Removes existing keys.
        Delete = "delete",
    }
}

named! {
    /// A peer that runs in the same run.
    Against, "a peer" {
        /// `std::collections::BTreeMap`, volatile.
        BTreeMap = "btreemap",
        /// LMDB with `WRITEMAP`, its faster mode.
        Lmdb = "lmdb",
        /// LMDB in its default mode.
        LmdbNoWriteMap = "lmdb-nowritemap",
    }
}

impl Op {
    /// Returns true if it waits for durability.
    #[must_use]
    pub const fn changes(self) -> bool {
        !matches!(self, Self::Lookup | Self::MultiGet | Self::Scan)
    }
}

/// Keys of a batched operation.
pub const BATCH: usize = 16;
/// Entries that a scan visits.
pub const SCAN_LENGTH: usize = 100;
/// Bytes of a value.
pub const VALUE_BYTES: u32 = 8;
/// Fewest slices with a meaningful median.
const MIN_SLICES: usize = 5;
const MAX_SLICES: usize = 10_000;
const MAX_THREADS: usize = 1024;
/// The keys of the load and of both insert phases have distinct indexes, and `BTreeMap` must hold
/// them all. More keys would not fit into any machine's memory.
const MAX_KEYS: u64 = 100_000_000_000;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct MicroParams {
    /// The design: a name of [`DESIGNS`](bristlecone_designs::designs::DESIGNS), or of [`VOLATILE`]
    /// on [`MediumKind::Dram`].
    pub index: String,
    /// Bytes of a leaf; `None` for the design's default.
    pub node_bytes: Option<u32>,
    /// Keys to load.
    pub keys: u64,
    /// Threads, each with keys of its own.
    pub threads: usize,
    /// Operations to measure after the load, which always runs and is always reported.
    pub ops: Vec<Op>,
    /// The medium of the pool.
    pub medium: MediumKind,
    /// Durability of commits (journal only).
    pub durability: Durability,
    /// Directory of the pool and of the peers' files, which are removed again.
    pub path: PathBuf,
    /// Seed of the keys and their orders.
    pub seed: u64,
    /// Peers to run beside it.
    pub against: Vec<Against>,
    /// Slices of each phase. Contenders take turns slice by slice.
    pub slices: usize,
    /// Largest number of operations of each phase after the load; `None` for a default by operation
    /// and medium.
    pub ops_limit: Option<u64>,
}

impl Default for MicroParams {
    fn default() -> Self {
        let shm = Path::new("/dev/shm");
        Self {
            index: "lbtree".into(),
            node_bytes: None,
            keys: 1_000_000,
            threads: 1,
            ops: Op::ALL.to_vec(),
            medium: MediumKind::Mapped,
            durability: Durability::Immediate,
            path: if shm.is_dir() {
                shm.to_path_buf()
            } else {
                std::env::temp_dir()
            },
            seed: 42,
            against: Vec::new(),
            slices: 10,
            ops_limit: None,
        }
    }
}

impl MicroParams {
    /// Refuses parameters that are out of range. Returns the design and the bytes of a leaf.
    ///
    /// # Errors
    /// [`LabError::Design`], or [`LabError::Parameter`] with the parameter, its value, and the
    /// values that are allowed.
    pub fn check(&self) -> Result<(&'static DesignInfo, u32), LabError> {
        let choice = Choice {
            node_bytes: self.node_bytes,
            ..Choice::of(&self.index)
        };
        let design = choice.resolve()?;
        if VOLATILE.contains(design.0) && self.medium != MediumKind::Dram {
            return Err(LabError::parameter(
                "the medium",
                self.medium.name(),
                format!("dram for {}, which keeps nothing", design.0.name),
            ));
        }
        self.check_rest()?;
        Ok(design)
    }

    /// Refuses parameters that are out of range, whatever the design.
    pub(crate) fn check_rest(&self) -> Result<(), LabError> {
        let between = |name, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(LabError::parameter(
                name,
                value,
                format!("from {least} to {most}"),
            ))
        };
        between("the number of keys", self.keys, 1, MAX_KEYS)?;
        between(
            "the number of threads",
            self.threads as u64,
            1,
            MAX_THREADS as u64,
        )?;
        between(
            "the number of slices",
            self.slices as u64,
            MIN_SLICES as u64,
            MAX_SLICES as u64,
        )?;
        if let Some(limit) = self.ops_limit {
            between("the limit of operations", limit, 1, u64::MAX)?;
        }
        let mut peers = self.against.clone();
        peers.sort_unstable();
        if let Some(twice) = peers.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(LabError::parameter(
                "the list of peers",
                twice[0],
                "there once",
            ));
        }
        if !self.path.is_dir() {
            return Err(LabError::parameter(
                "the path",
                self.path.display(),
                "an existing directory for the files of the run",
            ));
        }
        Ok(())
    }

    /// Returns the phases that run, in order, each once.
    pub(crate) fn phases(&self) -> Vec<Op> {
        let asked = |op: &Op| *op == Op::Load || self.ops.contains(op);
        Op::ALL.iter().copied().filter(asked).collect()
    }

    pub(crate) fn durability_name(&self) -> String {
        match self.durability {
            Durability::Immediate => "immediate".into(),
            Durability::Interval(time) => format!("interval={}", time.as_millis()),
            Durability::None => "none".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for op in Op::ALL {
            assert_eq!(op.to_string().parse::<Op>().unwrap(), *op);
        }
        assert_eq!("lmdb".parse::<Against>().unwrap(), Against::Lmdb);
        let message = "lookups".parse::<Op>().unwrap_err().to_string();
        assert!(
            message.contains("\"lookups\"") && message.contains("multi_get"),
            "{message}"
        );
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |change: fn(&mut MicroParams)| {
            let mut params = MicroParams::default();
            params.check().unwrap();
            change(&mut params);
            params.check().unwrap_err().to_string()
        };
        assert!(refused(|p| p.keys = 0).contains("the number of keys"));
        assert!(refused(|p| p.keys = u64::MAX).contains("18446744073709551615"));
        assert!(refused(|p| p.threads = 0).contains("threads"));
        assert!(refused(|p| p.slices = 4).contains("from 5"));
        assert!(refused(|p| p.node_bytes = Some(300)).contains("300"));
        assert!(refused(|p| p.index = "btree-2000".into()).contains("lbtree"));
        let kept = refused(|p| {
            p.index = "btree".into();
            p.medium = MediumKind::Mapped;
        });
        assert!(kept.contains("dram for btree"), "{kept}");
        assert!(refused(|p| p.ops_limit = Some(0)).contains("limit"));
        assert!(refused(|p| p.path = "/no/such".into()).contains("/no/such"));
        assert!(refused(|p| p.against = vec![Against::Lmdb; 2]).contains("once"));
    }

    #[test]
    fn phases_run_once_and_in_order() {
        let params = MicroParams {
            ops: vec![Op::Delete, Op::Lookup, Op::Delete],
            ..MicroParams::default()
        };
        assert_eq!(params.phases(), [Op::Load, Op::Lookup, Op::Delete]);
    }
}
