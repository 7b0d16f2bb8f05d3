//! Random programs over few keys.

use bristlecone_pmem::media::MediumKind;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::ops::Bound;

/// Names that keyspaces have.
pub const NAMES: [&str; 3] = ["k", "l", "m"];
/// Keys of a program.
pub const KEYS: usize = 6;
/// Transactions, snapshots and cursors that may be open at a time.
pub const TRANSACTIONS: usize = 3;
pub const SNAPSHOTS: usize = 2;
pub const CURSORS: usize = 2;
/// Times that the clock and expiries have: the clock is before the first at the beginning.
const TIMES: u64 = 8;

/// The keyspace that has that name now, or the one that had it last and is no more.
#[derive(Clone, Copy, Debug)]
pub struct Which {
    pub name: usize,
    pub is_stale: bool,
}

/// A value: a number in decimal, or so many bytes.
#[derive(Clone, Copy, Debug)]
pub enum Give {
    Number(i64),
    Bytes(usize),
}

/// A value and its expiry; `None` deletes.
pub type Given = Option<(Give, Option<u64>)>;

/// The keys of a scan.
#[derive(Clone, Copy, Debug)]
pub enum Range {
    Between(Bound<usize>, Bound<usize>),
    /// The keys that begin with this one.
    Prefix(usize),
}

#[derive(Clone, Debug)]
pub enum Step {
    Put(Which, usize, Give, Option<u64>),
    Delete(Which, usize),
    /// Expecting what is there, or something else.
    Swap(Which, usize, bool, Option<Give>),
    Increment(Which, usize, i64),
    /// Appends to a short value; a long one goes.
    Merge(Which, usize),
    Keep(Which, usize),
    Expire(Which, usize, Option<u64>),
    /// A batch, in which keys may come repeatedly.
    Write(Vec<(Which, usize, Given)>),
    /// Puts that refuse to replace values of this length modulo 3.
    MultiPut(Which, Vec<(usize, Give)>, usize),
    /// Reads and puts, up to that many.
    Execute(Which, Vec<(usize, Option<Give>)>, usize),
    /// A value in parts.
    PutParts(Which, usize, Option<u64>),

    Begin(usize, bool),
    TxPut(usize, Which, usize, Give, Option<u64>),
    TxDelete(usize, Which, usize),
    Savepoint(usize),
    /// To the savepoint before so many others.
    Rollback(usize, usize),
    Forget(usize),
    TxGet(usize, Which, usize),
    /// Downwards or not, and the most entries.
    TxScan(usize, Which, Range, bool, usize),
    Commit(usize),
    Abandon(usize),

    Snapshot(usize),
    Clone(usize, usize),
    Release(usize),
    /// A cursor in a new snapshot, or in that one; downwards or not.
    Open(usize, Option<usize>, Which, Range, bool),
    /// Pairs or keys only.
    Next(usize, usize, bool),
    Close(usize),

    Make(usize),
    Drop(Which),
    Clear(Which),
    Rename(Which, usize),

    Clock(u64),
    Vacuum(usize),
    VacuumAll,
    Compact,
    Scrub,
    Check,
    Reopen,
    Kill,
}

/// A program, and the store that it runs on.
#[derive(Clone, Debug)]
pub struct Program {
    pub seed: u64,
    pub keys: [Vec<u8>; KEYS],
    pub medium: MediumKind,
    /// Bytes in a page, where the format takes any.
    pub page: Option<u32>,
    pub steps: Vec<Step>,
}

struct Generator {
    rng: SmallRng,
    /// Values in parts are slow, so few programs have any.
    has_parts: bool,
    /// The names of keyspaces are changed seldom, or often.
    renames: bool,
}

/// Keys that collide: the empty one, one and its immediate successor, one that begins like them,
/// and the ends of the order. Long ones are all beyond what a page takes.
fn keys(rng: &mut SmallRng) -> [Vec<u8>; KEYS] {
    let short = [&b""[..], b"a", b"a\0", b"ab", b"\xff", b"\xff\xff"].map(<[u8]>::to_vec);
    let long = |len: usize, rest: &[u8]| [&vec![b'm'; len][..], rest].concat();
    match rng.random_range(0..8) {
        0 => short.map(|key| long(3_000, &key)),
        1 => [
            Vec::new(),
            long(2_038, b""),
            long(2_043, b""),
            long(2_043, b"\0"),
            long(2_044, b"\xff"),
            b"\xff".to_vec(),
        ],
        _ => short,
    }
}

impl Generator {
    fn below(&mut self, most: usize) -> usize {
        self.rng.random_range(0..most)
    }

    fn rarely(&mut self, times: u32) -> bool {
        self.rng.random_range(0..times) == 0
    }

    fn which(&mut self) -> Which {
        let name = match self.below(8) {
            0..=4 => 0,
            5 | 6 => 1,
            _ => 2,
        };
        let is_stale = self.rarely(12);
        Which { name, is_stale }
    }

    fn give(&mut self) -> Give {
        match self.below(12) {
            0 => Give::Bytes(0),
            1..=4 => Give::Number(self.rng.random_range(-3..20)),
            5..=7 => Give::Bytes(30),
            8 | 9 => Give::Bytes(600),
            10 => Give::Bytes(3_000),
            _ => Give::Bytes(20_000),
        }
    }

    fn expiry(&mut self) -> Option<u64> {
        (!self.rarely(2)).then(|| self.rng.random_range(0..=TIMES))
    }

    fn some_expiry(&mut self) -> Option<u64> {
        if self.rarely(3) { self.expiry() } else { None }
    }

    fn bound(&mut self) -> Bound<usize> {
        match self.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(self.below(KEYS)),
            _ => Bound::Excluded(self.below(KEYS)),
        }
    }

    fn range(&mut self) -> Range {
        if self.rarely(5) {
            return Range::Prefix(self.below(KEYS));
        }
        Range::Between(self.bound(), self.bound())
    }

    fn single(&mut self) -> Step {
        let (k, key) = (self.which(), self.below(KEYS));
        match self.below(20) {
            0..=5 => Step::Put(k, key, self.give(), self.some_expiry()),
            6..=8 => Step::Delete(k, key),
            9 => {
                let new = (!self.rarely(3)).then(|| self.give());
                Step::Swap(k, key, !self.rarely(3), new)
            }
            10 => Step::Increment(k, key, self.rng.random_range(-3..4)),
            11 => Step::Merge(k, key),
            12 => Step::Keep(k, key),
            13 | 14 => Step::Expire(k, key, self.expiry()),
            15 | 16 => {
                let changes = (0..self.below(7)).map(|_| {
                    let given = (!self.rarely(3)).then(|| (self.give(), self.some_expiry()));
                    (self.which(), self.below(KEYS), given)
                });
                Step::Write(changes.collect())
            }
            17 => {
                let puts = (0..self.below(6)).map(|_| (self.below(KEYS), self.give()));
                Step::MultiPut(k, puts.collect(), self.below(6))
            }
            18 => {
                let steps = (0..self.below(7)).map(|_| {
                    let given = (!self.rarely(2)).then(|| self.give());
                    (self.below(KEYS), given)
                });
                Step::Execute(k, steps.collect(), self.below(9))
            }
            _ if self.has_parts => Step::PutParts(k, key, self.some_expiry()),
            _ => Step::Delete(k, key),
        }
    }

    fn transaction(&mut self) -> Step {
        let (t, k, key) = (self.below(TRANSACTIONS), self.which(), self.below(KEYS));
        match self.below(24) {
            0..=4 => Step::Begin(t, self.rarely(2)),
            5..=9 => Step::TxPut(t, k, key, self.give(), self.some_expiry()),
            10 | 11 => Step::TxDelete(t, k, key),
            12 | 13 => Step::Savepoint(t),
            14 | 15 => Step::Rollback(t, self.below(3)),
            16 if self.rarely(3) => Step::Forget(t),
            16 | 17 => Step::TxGet(t, k, key),
            18 | 19 => {
                let most = [1, 2, 100][self.below(3)];
                Step::TxScan(t, k, self.range(), self.rarely(2), most)
            }
            20 if self.rarely(2) => Step::Abandon(t),
            _ => Step::Commit(t),
        }
    }

    fn reader(&mut self) -> Step {
        let (s, c) = (self.below(SNAPSHOTS), self.below(CURSORS));
        match self.below(12) {
            0..=2 => Step::Snapshot(s),
            3 => Step::Clone(s, self.below(SNAPSHOTS)),
            4 | 5 => Step::Release(s),
            6 | 7 => {
                let within = self.rarely(2).then_some(s);
                Step::Open(c, within, self.which(), self.range(), self.rarely(2))
            }
            8..=10 => Step::Next(c, 1 + self.below(3), self.rarely(2)),
            _ => Step::Close(c),
        }
    }

    fn keyspace(&mut self) -> Step {
        let k = self.which();
        match self.below(8) {
            0..=2 => Step::Make(self.below(NAMES.len())),
            3 | 4 => Step::Drop(k),
            5 => Step::Clear(k),
            _ => Step::Rename(k, self.below(NAMES.len())),
        }
    }

    fn upkeep(&mut self) -> Step {
        match self.below(20) {
            0..=7 => Step::Clock(self.rng.random_range(0..=TIMES)),
            8 | 9 => Step::Vacuum(self.below(4)),
            10..=13 => Step::VacuumAll,
            14 => Step::Compact,
            15 => Step::Scrub,
            16 => Step::Check,
            17 | 18 => Step::Reopen,
            _ => Step::Kill,
        }
    }

    fn step(&mut self) -> Step {
        match self.below(20) {
            0..=6 => self.single(),
            7..=12 => self.transaction(),
            13..=15 => self.reader(),
            16 if self.renames || self.rarely(4) => self.keyspace(),
            16 => self.single(),
            _ => self.upkeep(),
        }
    }
}

/// Returns the program of that seed.
pub fn program(seed: u64) -> Program {
    let mut rng = SmallRng::seed_from_u64(seed);
    let keys = keys(&mut rng);
    let medium = match rng.random_range(0..4) {
        0 => MediumKind::Journal,
        _ => MediumKind::Mapped,
    };
    let page = [None, Some(512), Some(1024)][rng.random_range(0..3)];
    let has_parts = rng.random_range(0..60) == 0;
    let most = if has_parts { 16 } else { 70 };
    let len = rng.random_range(4..most);
    let renames = rng.random_bool(0.3);
    let mut generator = Generator {
        rng,
        has_parts,
        renames,
    };
    let mut steps: Vec<Step> = (0..2).map(Step::Make).collect();
    steps.extend((0..len).map(|_| generator.step()));
    Program {
        seed,
        keys,
        medium,
        page,
        steps,
    }
}
