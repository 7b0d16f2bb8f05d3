//! Workloads: short lists of operations that lead a structure to interesting crash states.

mod draw;

use crate::subject::{Op, Subject};
use draw::Draw;
use std::fmt;

/// A kind of workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// All operations, at random, on a few dozen keys.
    Mixed,
    /// Insertions of random new keys: nodes fill and split.
    Split,
    /// Removals from full nodes and few insertions: nodes empty and are removed.
    Merge,
    /// Insertions of ascending keys.
    Dense,
    /// Removals of all keys in random order, then some insertions.
    Drain,
    /// Updates of values.
    Update,
    /// The smallest and largest keys, and their neighbours.
    Boundary,
    /// Splits of full nodes, and removals of nodes with one entry.
    Churn,
    /// Batches, clean closing and reopening, compaction.
    Upkeep,
    /// All operations on a handful of keys, so that an operation after a crash changes the entries
    /// that the crash cut short.
    Few,
    /// Batches of neighbours, of which one page gets many, removals of some of them, and
    /// compactions that fill pages up.
    Bulk,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::Mixed,
        Self::Split,
        Self::Merge,
        Self::Dense,
        Self::Drain,
        Self::Update,
        Self::Boundary,
        Self::Churn,
        Self::Upkeep,
        Self::Few,
        Self::Bulk,
    ];

    /// Returns the name that the command line uses.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Split => "split",
            Self::Merge => "merge",
            Self::Dense => "dense",
            Self::Drain => "drain",
            Self::Update => "update",
            Self::Boundary => "boundary",
            Self::Churn => "churn",
            Self::Upkeep => "upkeep",
            Self::Few => "few",
            Self::Bulk => "bulk",
        }
    }

    /// Returns the kind of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A workload: first `setup`, whose crash points are not explored, then `ops`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Operations before the explored ones; empty if the creation is explored too.
    pub setup: Vec<Op>,
    /// Operations whose crash points are explored.
    pub ops: Vec<Op>,
    /// True if the crash points of the creation are explored too.
    pub creation: bool,
    /// True if memory holds garbage before the creation, as a device does.
    pub dirty: bool,
}

/// Distance between keys, which leaves room for others in between.
pub(crate) const STEP: u64 = 16;

impl Workload {
    /// Returns a workload of a kind, with about `ops` explored operations.
    #[must_use]
    pub fn generate(kind: Kind, ops: usize, seed: u64, subject: &dyn Subject) -> Self {
        let creation = kind == Kind::Upkeep && seed % 2 == 1;
        let mut draw = Draw::new(kind, ops, seed, subject.max_key());
        let (mut setup, mut ops) = match kind {
            Kind::Mixed => draw.mixed(),
            Kind::Split => draw.split(),
            Kind::Merge => draw.merge(),
            Kind::Dense => draw.dense(),
            Kind::Drain => draw.drain(),
            Kind::Update => draw.update(),
            Kind::Boundary => draw.boundary(),
            Kind::Churn => draw.churn(),
            Kind::Upkeep => draw.upkeep(creation),
            Kind::Few => draw.few(),
            Kind::Bulk => draw.bulk(),
        };
        setup.retain(|op| subject.can(op));
        ops.retain(|op| subject.can(op));
        Self {
            setup,
            ops,
            creation,
            dirty: kind == Kind::Upkeep && seed % 4 == 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::{Fault, Live, Opened};
    use crate::subjects::batch_keys;

    struct Numbers(u64);

    impl Subject for Numbers {
        fn name(&self) -> String {
            "numbers".into()
        }
        fn create(&self) -> Result<Box<dyn Live>, Fault> {
            unreachable!("only generated for")
        }
        fn open(&self) -> Result<Opened, Fault> {
            unreachable!("only generated for")
        }
        fn can(&self, op: &Op) -> bool {
            !matches!(op, Op::Compact)
        }
        fn max_key(&self) -> u64 {
            self.0
        }
    }

    fn keys(op: &Op) -> Vec<u64> {
        match *op {
            Op::Insert(k, _) | Op::Upsert(k, _) | Op::Update(k, _) | Op::Remove(k) | Op::Get(k) => {
                vec![k]
            }
            Op::Batch {
                first, step, count, ..
            } => batch_keys(first, step, count).collect(),
            Op::Reopen | Op::Compact => Vec::new(),
        }
    }

    #[test]
    fn workloads_are_repeatable_and_keep_to_what_the_subject_can() {
        for most in [15, 300, u64::MAX] {
            let subject = Numbers(most);
            for kind in Kind::ALL {
                let a = Workload::generate(kind, 60, 7, &subject);
                assert_eq!(a, Workload::generate(kind, 60, 7, &subject), "{kind}");
                assert!(a.ops.len() >= 50, "{kind}: {} operations", a.ops.len());
                assert_eq!(Kind::named(kind.name()), Some(kind));
                for op in a.setup.iter().chain(&a.ops) {
                    assert_ne!(*op, Op::Compact);
                    for key in keys(op) {
                        assert!(key <= most, "{kind}: {op:?} above {most}");
                    }
                }
                if most > 15 {
                    assert_ne!(a, Workload::generate(kind, 60, 8, &subject), "{kind}");
                }
            }
        }
    }
}
