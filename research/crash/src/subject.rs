//! What is explored: a structure on a simulated pool, seen as a map from small numbers to numbers.
//!
//! Every subject is driven through this one interface, so workloads, oracles, schedulers and mutants know
//! nothing of a design. A subject translates the numbers into its own keys and values.

use std::fmt;

/// One operation on a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Adds a key; refused if it is there.
    Insert(u64, u64),
    /// Adds a key or replaces its value.
    Upsert(u64, u64),
    /// Replaces a key's value; refused if it is not there.
    Update(u64, u64),
    /// Takes a key out; refused if it is not there.
    Remove(u64),
    /// Looks a key up.
    Get(u64),
    /// Inserts `count` keys from `first` on, `step` apart, each with value `value`, in one call. Each key
    /// is atomic, the batch is not.
    Batch {
        /// First key.
        first: u64,
        /// Distance between keys.
        step: u64,
        /// How many.
        count: u64,
        /// The value of all.
        value: u64,
    },
    /// Closes the subject cleanly and opens it again.
    Reopen,
    /// Gives free space back.
    Compact,
}

/// What an operation answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// It did what it says.
    Done,
    /// The key was there (insert) or was not (update, remove).
    Refused,
    /// What a lookup found.
    Found(Option<u64>),
}

/// Why something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// Recovery refused the image, or panicked on it.
    Recovery,
    /// A completed operation is not there.
    Lost,
    /// Something is there that no operation put there.
    Phantom,
    /// The operation in flight is there in part.
    Torn,
    /// The structure contradicts itself.
    Structure,
    /// A block is reachable and free, owned twice, or in use and unreachable.
    Leak,
    /// An operation after recovery failed, or did not end within its steps.
    Progress,
    /// Recovering again gives something else.
    NotIdempotent,
    /// A completed operation depends on what the crash undid.
    VisibleBeforeDurable,
    /// A live operation answered wrongly, without any crash.
    Wrong,
}

impl FaultKind {
    /// The kind's name, as reports print it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Recovery => "recovery failed",
            Self::Lost => "completed operation lost",
            Self::Phantom => "phantom entry",
            Self::Torn => "operation torn",
            Self::Structure => "structure broken",
            Self::Leak => "space leaked",
            Self::Progress => "no progress",
            Self::NotIdempotent => "recovery not idempotent",
            Self::VisibleBeforeDurable => "visible before durable",
            Self::Wrong => "wrong answer",
        }
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which kind.
    pub kind: FaultKind,
    /// What exactly.
    pub what: String,
}

impl Fault {
    /// A fault.
    pub fn new(kind: FaultKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
        }
    }

    /// What a structure's own check found: a leak, or else something broken.
    pub fn broken(what: impl Into<String>, leak: bool) -> Self {
        let kind = if leak {
            FaultKind::Leak
        } else {
            FaultKind::Structure
        };
        Self::new(kind, what)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.what)
    }
}

/// What opening found.
pub enum Opened {
    /// The structure.
    Live(Box<dyn Live>),
    /// There is none (yet): right only while it is being created.
    Absent,
}

/// A structure that can be explored.
pub trait Subject: Send + Sync {
    /// Its name on the command line and in reports.
    fn name(&self) -> String;

    /// Its failure-atomic unit in bytes: 16 if it declares that, else 8.
    fn unit(&self) -> u8 {
        8
    }

    /// Bytes that its pool may grow to.
    fn capacity(&self) -> u64 {
        4 << 20
    }

    /// Makes pool and structure in the simulation attached to this thread, which may hold the remains
    /// of an earlier try.
    ///
    /// # Errors
    /// What was refused.
    fn create(&self) -> Result<Box<dyn Live>, Fault>;

    /// Opens (recovers) what a crash left in the simulation attached to this thread.
    ///
    /// # Errors
    /// What recovery refused.
    fn open(&self) -> Result<Opened, Fault>;

    /// True if several simulated threads may operate on it at once.
    fn concurrent(&self) -> bool {
        true
    }

    /// True if it can be made where memory holds garbage, as on a device.
    fn takes_dirty(&self) -> bool {
        true
    }

    /// True if it can do `op`; workloads leave out what it cannot.
    fn can(&self, op: &Op) -> bool {
        let _ = op;
        true
    }

    /// Largest key that workloads may use.
    fn max_key(&self) -> u64 {
        u64::MAX
    }
}

/// An open structure. Dropping it must not write if the simulation is frozen.
pub trait Live {
    /// Does an operation (never `Reopen`, which drops and opens).
    ///
    /// # Errors
    /// What went wrong: an error that the structure gave, other than a refusal.
    fn apply(&self, op: &Op) -> Result<Reply, Fault>;

    /// Gives every entry, ascending by key.
    ///
    /// # Errors
    /// A value or key that cannot be what was stored.
    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault>;

    /// Checks the structure's invariants, and that space is neither lost nor owned twice.
    ///
    /// # Errors
    /// What is broken.
    fn verify(&self) -> Result<(), Fault>;

    /// Closes cleanly.
    ///
    /// # Errors
    /// What was refused.
    fn close(self: Box<Self>) -> Result<(), Fault>;
}
