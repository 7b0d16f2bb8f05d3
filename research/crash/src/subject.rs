//! The interface of an explored structure: a map from numbers to numbers on a simulated pool.
//!
//! Workloads, oracles, schedules and mutants use only this interface and know no design. A subject
//! translates the numbers into its own keys and values.

use std::fmt;

/// One operation on a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Adds a key; refused if it exists.
    Insert(u64, u64),
    /// Adds a key or replaces its value.
    Upsert(u64, u64),
    /// Replaces a key's value; refused if the key does not exist.
    Update(u64, u64),
    /// Removes a key; refused if it does not exist.
    Remove(u64),
    /// Looks a key up.
    Get(u64),
    /// Inserts `count` keys from `first` on, `step` apart, each with value `value`, in one call.
    /// Each insertion is atomic, the batch is not.
    Batch {
        /// First key.
        first: u64,
        /// Distance between keys.
        step: u64,
        /// Number of keys.
        count: u64,
        /// Value of all keys.
        value: u64,
    },
    /// Closes the subject cleanly and opens it again.
    Reopen,
    /// Returns free space to the file system.
    Compact,
}

/// The reply of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The operation was done.
    Done,
    /// The key existed (insert) or did not exist (update, remove).
    Refused,
    /// The value that a lookup found.
    Found(Option<u64>),
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FaultKind {
    /// Recovery refused the image, or panicked on it.
    Recovery,
    /// The effect of a completed operation is missing.
    Lost,
    /// An entry exists that no operation stored.
    Phantom,
    /// The operation in flight took effect in part.
    Torn,
    /// An invariant of the structure does not hold.
    Structure,
    /// A block is reachable and free, owned twice, or in use and unreachable.
    Leak,
    /// An operation after recovery failed, or did not end within its steps.
    Progress,
    /// A second recovery gives another result.
    NotIdempotent,
    /// A completed operation depends on a store that the crash undid.
    VisibleBeforeDurable,
    /// A live operation gave a wrong reply, without any crash.
    Wrong,
}

impl FaultKind {
    /// Returns the kind's name, as reports print it.
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

/// A fault that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its kind.
    pub kind: FaultKind,
    /// The details, for people.
    pub what: String,
}

impl Fault {
    /// Returns a fault of a kind.
    pub fn new(kind: FaultKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
        }
    }

    /// Returns the fault that a structure's own check found: a leak, or a broken structure.
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

/// The result of opening a subject.
pub enum Opened {
    /// The structure.
    Live(Box<dyn Live>),
    /// There is no structure, which is right only during creation.
    Absent,
}

/// A structure that can be explored.
pub trait Subject: Send + Sync {
    /// Returns its name on the command line and in reports.
    fn name(&self) -> String;

    /// Returns its failure-atomic unit in bytes: 8, or 16 for a subject that declares it.
    fn unit(&self) -> u8 {
        8
    }

    /// Returns the bytes that its pool may grow to.
    fn capacity(&self) -> u64 {
        4 << 20
    }

    /// Makes pool and structure in the simulation attached to this thread, which may hold the
    /// remains of an interrupted creation.
    ///
    /// # Errors
    /// The pool or the structure could not be made.
    fn create(&self) -> Result<Box<dyn Live>, Fault>;

    /// Opens, and so recovers, the image in the simulation attached to this thread.
    ///
    /// # Errors
    /// Recovery refused the image.
    fn open(&self) -> Result<Opened, Fault>;

    /// Returns true if observing may store. It is part of recovery then, for crashes that come into
    /// it.
    fn stores_when_observed(&self) -> bool {
        false
    }

    /// Returns true if several simulated threads may operate on it at once.
    fn concurrent(&self) -> bool {
        true
    }

    /// Returns true if it can be created on memory that holds garbage, as a device does.
    fn takes_dirty(&self) -> bool {
        true
    }

    /// Returns true if it supports `op`. Workloads leave out unsupported operations.
    fn can(&self, op: &Op) -> bool {
        let _ = op;
        true
    }

    /// Returns the largest key that workloads may use.
    fn max_key(&self) -> u64 {
        u64::MAX
    }
}

/// An open structure. Dropping it must not write if the simulation is frozen.
pub trait Live {
    /// Does an operation. It is never `Reopen`, for which the explorer closes and opens.
    ///
    /// # Errors
    /// The structure returned an error other than a refusal.
    fn apply(&self, op: &Op) -> Result<Reply, Fault>;

    /// Passes every entry to `each`, ascending by key.
    ///
    /// # Errors
    /// A key or value is torn: no operation stored it.
    fn observe(&self, each: &mut dyn FnMut(u64, u64)) -> Result<(), Fault>;

    /// Checks the structure's invariants, and that space is neither lost nor owned twice.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    fn verify(&self) -> Result<(), Fault>;

    /// Closes cleanly.
    ///
    /// # Errors
    /// The structure could not be closed.
    fn close(self: Box<Self>) -> Result<(), Fault>;
}
