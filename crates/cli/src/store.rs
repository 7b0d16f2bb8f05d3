//! A pool and its index `main`, of whatever design and node size: the one place where commands meet
//! the library.
//!
//! The library's indexes are types; a pool records which one it holds. [`Store`] has it behind
//! [`AnyIndex`]: commands spend their time elsewhere than in a dynamic call.

use crate::args::{MediumArgs, WriteArgs};
use crate::failure::{Failure, Outcome};
use crate::text::quoted;
use bristlecone_designs::damage::{Damage, collecting_damage};
use bristlecone_designs::designs::{Choice, Design, DesignInfo, Task, UnknownDesign, with_design};
use bristlecone_designs::repr::MAX_VALUE;
use bristlecone_designs::{
    DurableIndex, IndexStats, InsertError, OrderedIndex, RecoveryReport, RemoveError, ReverseScan,
    TreeError, UpdateError, VerifyReport, Violation,
};
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::media::journal::journal_path;
use bristlecone_pmem::pool::{DataKind, Pool, PoolInfo, PoolOptions, RootInfo, RootKind};
use bristlecone_pmem::{Access, CommitError, Durability, Media, MediumKind};
use std::fmt::Display;
use std::fs;
use std::ops::{Bound, ControlFlow};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the root that the command line works on.
pub const ROOT: &str = "main";

/// Most bytes a key may have.
pub const MAX_KEY_BYTES: usize = 64 << 10;
/// Most bytes a value may have.
pub const MAX_VALUE_BYTES: usize = MAX_VALUE;

/// What a scan calls for each pair.
type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// An index of byte strings, of any design. As [`DurableIndex`].
trait AnyIndex: Send + Sync {
    fn recovery(&self) -> &RecoveryReport;
    fn stats(&self) -> IndexStats;
    fn verify(&self) -> Result<VerifyReport, Violation>;
    fn get(&self, key: &[u8]) -> Option<Vec<u8>>;
    fn upsert(&self, key: &[u8], value: &[u8]) -> Result<bool, InsertError>;
    fn update(&self, key: &[u8], value: &[u8]) -> Result<(), UpdateError>;
    fn remove(&self, key: &[u8]) -> Result<bool, RemoveError>;
    fn multi_insert(&self, pairs: &[(&[u8], &[u8])], out: &mut Vec<Result<(), InsertError>>);
    fn scan(&self, range: Bounds<'_>, visit: Visit<'_>);
    fn scan_reverse(&self, range: Bounds<'_>, visit: Visit<'_>);
    fn close(self: Box<Self>) -> Result<(), CommitError>;
}

impl<I: DurableIndex<[u8], [u8], Auto>> AnyIndex for I {
    fn recovery(&self) -> &RecoveryReport {
        DurableIndex::recovery(self)
    }

    fn stats(&self) -> IndexStats {
        OrderedIndex::stats(self)
    }

    fn verify(&self) -> Result<VerifyReport, Violation> {
        OrderedIndex::verify(self)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        OrderedIndex::get(self, key)
    }

    fn upsert(&self, key: &[u8], value: &[u8]) -> Result<bool, InsertError> {
        OrderedIndex::upsert(self, key, value)
    }

    fn update(&self, key: &[u8], value: &[u8]) -> Result<(), UpdateError> {
        OrderedIndex::update(self, key, value)
    }

    fn remove(&self, key: &[u8]) -> Result<bool, RemoveError> {
        OrderedIndex::remove(self, key)
    }

    fn multi_insert(&self, pairs: &[(&[u8], &[u8])], out: &mut Vec<Result<(), InsertError>>) {
        OrderedIndex::multi_insert(self, pairs, out);
    }

    fn scan(&self, range: Bounds<'_>, visit: Visit<'_>) {
        OrderedIndex::scan(self, range, visit);
    }

    fn scan_reverse(&self, range: Bounds<'_>, visit: Visit<'_>) {
        ReverseScan::scan_reverse(self, range, visit);
    }

    fn close(self: Box<Self>) -> Result<(), CommitError> {
        DurableIndex::close(*self)
    }
}

/// Makes the chosen design's index in a pool, or opens it.
struct Root<'a> {
    pool: &'a Arc<Pool<Auto>>,
    make: bool,
}

impl Task for Root<'_> {
    /// The index, and the longest key that it takes.
    type Output = Result<(Box<dyn AnyIndex>, usize), TreeError>;

    fn run<D: Design>(self, design: D) -> Self::Output {
        let longest = design.longest_key();
        let index = if self.make {
            design.create::<[u8], [u8], _>(self.pool, ROOT)
        } else {
            design.open::<[u8], [u8], _>(self.pool, ROOT)
        };
        Ok((Box::new(index?), longest))
    }
}

/// The files that a pool may have.
pub fn files_of(pool: &Path) -> [PathBuf; 2] {
    [pool.to_path_buf(), journal_path(pool)]
}

/// How to open a pool.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// The medium, or `None` to let the path decide.
    pub medium: Option<MediumKind>,
    /// When a write counts as done.
    pub durability: Durability,
    /// For reading only.
    pub read_only: bool,
}

impl How {
    /// For reading, with the medium that the arguments name.
    pub fn read(args: MediumArgs) -> Self {
        Self {
            medium: args.medium.kind(),
            durability: Durability::Immediate,
            read_only: true,
        }
    }

    /// For writing, as the arguments say.
    pub fn write(args: WriteArgs) -> Self {
        Self {
            medium: args.medium.kind(),
            durability: args.durability,
            read_only: false,
        }
    }

    /// For writing with immediate durability.
    pub fn durable(medium: Option<MediumKind>) -> Self {
        Self {
            medium,
            durability: Durability::Immediate,
            read_only: false,
        }
    }

    fn options(self, access: Access) -> PoolOptions {
        let mut options = PoolOptions::default();
        options.media.access = access;
        options.media.durability = self.durability;
        options.media.medium = self.medium;
        options
    }
}

/// Opens a pool, whatever is in it.
pub fn open_pool(path: &Path, how: How) -> Outcome<Arc<Pool<Auto>>> {
    // A devdax device grants no private mapping, so even reading opens it for writing.
    let device = fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device());
    let access = if how.read_only && !device {
        Access::ReadOnly
    } else {
        Access::ReadWrite
    };
    Pool::open(path, &how.options(access)).map_err(plain)
}

/// What a pool has that commands work on.
pub struct Contents {
    /// The index [`ROOT`].
    pub index: Option<RootKind>,
    /// Names of stores, as servers and programs make them.
    pub stores: Vec<String>,
    /// Roots of other kinds.
    pub others: Vec<RootInfo>,
}

impl Contents {
    /// That of a pool.
    pub fn of(pool: &Pool<Auto>) -> Self {
        let stores = bristlecone_store::Store::names(pool);
        let (mut index, mut others) = (None, Vec::new());
        for root in pool.roots() {
            let of_store = |name: &str| {
                let rest = root.name.strip_prefix(name);
                rest == Some("") || rest == Some(".index")
            };
            if stores.iter().any(|name| of_store(name)) {
                continue;
            }
            if root.name == ROOT {
                index = Some(root.kind);
            } else {
                others.push(root);
            }
        }
        Self {
            index,
            stores,
            others,
        }
    }

    /// Why a command on the index cannot work, if there is none.
    fn without_index(&self) -> String {
        let others = self.others.iter().map(|root| quoted(root.name.as_bytes()));
        let stores = self.stores.iter().map(|name| quoted(name.as_bytes()));
        let names: Vec<_> = stores.chain(others).collect();
        let there = if names.is_empty() {
            "it has no roots at all; its creation was cut short, so delete it and create it again"
                .to_owned()
        } else if self.stores.is_empty() {
            format!(
                "it has {}; a program of its own made it, and this command reads only \"{ROOT}\"",
                names.join(", ")
            )
        } else {
            format!(
                "it has {}, a store, as `serve` makes: serve it, or look at it with `info`, `check`, `scan`, `export`",
                names.join(", ")
            )
        };
        format!("no root named \"{ROOT}\": {there}")
    }
}

/// What became of a key that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It was not there before.
    New,
    /// It had another value before.
    Replaced,
    /// It had this value before.
    Same,
}

/// An open pool with its index.
pub struct Store {
    path: PathBuf,
    // Before the pool, so that it is dropped first.
    index: Box<dyn AnyIndex>,
    longest_key: usize,
    pool: Arc<Pool<Auto>>,
    design: &'static DesignInfo,
    node_bytes: u32,
}

impl Store {
    /// Makes a pool with an empty index of the chosen design.
    pub fn create(path: &Path, how: How, choice: &Choice<'_>) -> Outcome<Self> {
        let unknown = |e: UnknownDesign| Failure::Usage(e.to_string());
        let (design, node_bytes) = choice.resolve().map_err(unknown)?;
        let pool = Pool::create(path, &how.options(Access::Create)).map_err(plain)?;
        let root = Root {
            pool: &pool,
            make: true,
        };
        let (index, longest_key) = with_design(choice, root).map_err(unknown)?.map_err(|e| {
            // A pool without its index is of no use to anyone. (A device stays.)
            if path.is_file() {
                let _ = std::fs::remove_file(path);
            }
            Failure::new(format!("{}: {e}", path.display()))
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            index,
            longest_key,
            pool,
            design,
            node_bytes,
        })
    }

    /// Opens a pool and its index.
    pub fn open(path: &Path, how: How) -> Outcome<Self> {
        Self::open_in(&open_pool(path, how)?, path)
    }

    /// Opens and verifies the index of an open pool, going on where it is damaged: what is damaged, and if the index
    /// could be opened at all, that, with what is wrong with it as a whole. It is for reading only.
    pub fn survey(
        pool: &Arc<Pool<Auto>>,
        path: &Path,
    ) -> (Outcome<(Self, Option<Violation>)>, Damage) {
        let opened = || Self::open_in(pool, path);
        let verified = |store: Self| {
            let violation = store.verify().err();
            (store, violation)
        };
        if pool.pm().read_only() {
            return collecting_damage(|| opened().map(verified));
        }
        // A device. What opening does about damage would be durable there.
        match opened() {
            Ok(store) => {
                let (surveyed, damage) = collecting_damage(|| verified(store));
                (Ok(surveyed), damage)
            }
            Err(e) => (Err(e), Damage::default()),
        }
    }

    /// Opens the index of an open pool.
    pub fn open_in(pool: &Arc<Pool<Auto>>, path: &Path) -> Outcome<Self> {
        let named = |e: &dyn Display| Failure::new(format!("{}: {e}", path.display()));
        let contents = Contents::of(pool);
        let Some(kind) = contents.index else {
            return Err(named(&contents.without_index()));
        };
        if kind.keys != DataKind::Bytes || kind.values != DataKind::Bytes {
            return Err(named(&format_args!(
                "root \"{ROOT}\" is {kind}; this command works on an index of bytes to bytes"
            )));
        }
        let choice = Choice {
            node_bytes: Some(kind.node_bytes),
            ..Choice::of(&kind.design)
        };
        let unknown = |e: UnknownDesign| {
            named(&match e {
                UnknownDesign::NodeBytes { .. } => {
                    format!("corrupt: root \"{ROOT}\" is {kind}, but {e}")
                }
                UnknownDesign::Name(_) | UnknownDesign::Narrow { .. } => {
                    format!("root \"{ROOT}\" is {kind}, and {e}")
                }
            })
        };
        let (design, node_bytes) = choice.resolve().map_err(unknown)?;
        let root = Root { pool, make: false };
        let index = with_design(&choice, root).map_err(unknown)?;
        let (index, longest_key) = index.map_err(|e| named(&e))?;
        Ok(Self {
            path: path.to_path_buf(),
            index,
            longest_key,
            pool: Arc::clone(pool),
            design,
            node_bytes,
        })
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool<Auto>> {
        &self.pool
    }

    /// Longest key that the index takes, in bytes.
    pub fn longest_key(&self) -> usize {
        self.longest_key
    }

    /// The index's design.
    pub fn design(&self) -> &'static DesignInfo {
        self.design
    }

    /// Bytes in a leaf.
    pub fn node_bytes(&self) -> u32 {
        self.node_bytes
    }

    /// What the pool says about itself.
    pub fn info(&self) -> PoolInfo {
        self.pool.info()
    }

    /// What opening the index did.
    pub fn recovery(&self) -> RecoveryReport {
        self.index.recovery().clone()
    }

    /// Shape and size of the index.
    pub fn stats(&self) -> IndexStats {
        self.index.stats()
    }

    /// Checks every invariant.
    pub fn verify(&self) -> Result<VerifyReport, Violation> {
        self.index.verify()
    }

    /// As [`verify`](Self::verify), going on where it finds damage: all that it finds.
    pub fn verify_all(&self) -> (Result<VerifyReport, Violation>, Damage) {
        collecting_damage(|| self.verify())
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.index.get(key)
    }

    /// Stores `value` under `key`; true if the key was there.
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Outcome<bool> {
        self.index
            .upsert(key, value)
            .map_err(|e| self.refused(key, &e))
    }

    /// Replaces the value of `key`; false, with nothing changed, if it was not there.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Outcome<bool> {
        match self.index.update(key, value) {
            Ok(()) => Ok(true),
            Err(UpdateError::NotFound) => Ok(false),
            Err(e) => Err(self.refused(key, &e)),
        }
    }

    /// Removes `key`; true if it was there.
    pub fn remove(&self, key: &[u8]) -> Outcome<bool> {
        self.index.remove(key).map_err(|e| self.refused(key, &e))
    }

    /// Inserts pairs, in one batch; one result per pair, in order.
    pub fn multi_insert<K, V>(&self, pairs: &[(K, V)], out: &mut Vec<Result<(), InsertError>>)
    where
        K: AsRef<[u8]>,
        V: AsRef<[u8]>,
    {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(k, v)| (k.as_ref(), v.as_ref()))
            .collect();
        self.index.multi_insert(&pairs, out);
    }

    /// Stores pairs of distinct keys, in one batch where they are new; one result per pair, in
    /// order. Durable when it returns.
    pub fn multi_upsert(&self, pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<Outcome<Written>> {
        let mut inserted = Vec::with_capacity(pairs.len());
        self.multi_insert(pairs, &mut inserted);
        let mut written: Vec<Outcome<Written>> = Vec::with_capacity(pairs.len());
        let mut there = Vec::new();
        for (i, result) in inserted.into_iter().enumerate() {
            written.push(match result {
                Ok(()) => Ok(Written::New),
                Err(InsertError::KeyExists) => {
                    if self.get(&pairs[i].0).as_deref() != Some(&*pairs[i].1) {
                        there.push(i);
                        Ok(Written::Replaced)
                    } else {
                        Ok(Written::Same)
                    }
                }
                Err(e) => Err(self.refused(&pairs[i].0, &e)),
            });
        }
        for (i, error) in self.replace(pairs, &there) {
            written[i] = Err(error);
        }
        written
    }

    /// Upserts the pairs that `which` names, from several threads, so that on a journal their
    /// commits share a sync. Answers those that failed.
    fn replace(&self, pairs: &[(Vec<u8>, Vec<u8>)], which: &[usize]) -> Vec<(usize, Failure)> {
        const THREADS: usize = 64;
        let upsert = |part: &[usize]| -> Vec<(usize, Failure)> {
            part.iter()
                .filter_map(|&i| {
                    self.upsert(&pairs[i].0, &pairs[i].1)
                        .err()
                        .map(|failure| (i, failure))
                })
                .collect()
        };
        if which.len() < 4 || self.info().medium != MediumKind::Journal {
            return upsert(which);
        }
        std::thread::scope(|scope| {
            let parts: Vec<_> = which
                .chunks(which.len().div_ceil(THREADS))
                .map(|part| scope.spawn(|| upsert(part)))
                .collect();
            parts
                .into_iter()
                .flat_map(|p| p.join().unwrap_or_default())
                .collect()
        })
    }

    /// Visits keys between the bounds until `visit` breaks, upwards or downwards. An empty range
    /// (bounds the wrong way round) has no keys.
    pub fn scan(
        &self,
        range: &Range,
        reverse: bool,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) {
        if range.is_empty() {
            return;
        }
        let bounds = range.bounds();
        if reverse {
            self.index.scan_reverse(bounds, &mut visit);
        } else {
            self.index.scan(bounds, &mut visit);
        }
    }

    /// Closes the pool cleanly.
    pub fn close(self) -> Outcome {
        let Self {
            path, index, pool, ..
        } = self;
        let closed = index.close();
        drop(pool);
        closed.map_err(|e| Failure::new(format!("{}: closing: {e}", path.display())))
    }

    fn refused(&self, key: &[u8], error: &dyn Display) -> Failure {
        Failure::new(format!(
            "{}: key {}: {error}",
            self.path.display(),
            quoted(key)
        ))
    }
}

/// An error that names its path itself.
fn plain(error: impl Display) -> Failure {
    Failure::new(error.to_string())
}

/// The ends of a range of keys.
type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// A range of keys.
#[derive(Clone, Debug)]
pub struct Range {
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
}

impl Range {
    /// Every key.
    pub const ALL: Self = Self {
        from: Bound::Unbounded,
        to: Bound::Unbounded,
    };

    /// Keys from `from` on, before `to`, that begin with `prefix`.
    pub fn new(from: Option<&[u8]>, to: Option<&[u8]>, prefix: Option<&[u8]>) -> Self {
        let after = prefix.and_then(successor);
        let from = match (from, prefix) {
            (Some(f), Some(p)) => Some(f.max(p)),
            (f, p) => f.or(p),
        };
        let to = match (to, after.as_deref()) {
            (Some(t), Some(a)) => Some(t.min(a)),
            (t, a) => t.or(a),
        };
        Self {
            from: from.map_or(Bound::Unbounded, |f| Bound::Included(f.to_vec())),
            to: to.map_or(Bound::Unbounded, |t| Bound::Excluded(t.to_vec())),
        }
    }

    /// Its bounds, as copies.
    pub fn owned(&self) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        (self.from.clone(), self.to.clone())
    }

    /// True if no key can be in it.
    pub fn is_empty(&self) -> bool {
        match (&self.from, &self.to) {
            (Bound::Included(f), Bound::Excluded(t)) => f >= t,
            (_, Bound::Excluded(t)) => t.is_empty(),
            _ => false,
        }
    }

    fn bounds(&self) -> Bounds<'_> {
        (
            self.from.as_ref().map(Vec::as_slice),
            self.to.as_ref().map(Vec::as_slice),
        )
    }
}

/// The least key after all that begin with `prefix`; none if they reach the end.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|b| *b != u8::MAX)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_where_they_should() {
        assert_eq!(successor(b"FR/"), Some(b"FR0".to_vec()));
        assert_eq!(successor(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(successor(b"\xff\xff"), None);
        assert_eq!(successor(b""), None);
    }

    #[test]
    fn ranges_intersect() {
        let r = Range::new(Some(b"FR/L"), None, Some(b"FR/"));
        assert_eq!(
            r.bounds(),
            (Bound::Included(&b"FR/L"[..]), Bound::Excluded(&b"FR0"[..]))
        );
        assert!(!r.is_empty());
        assert!(Range::new(Some(b"b"), Some(b"a"), None).is_empty());
        assert!(Range::new(None, Some(b""), None).is_empty());
        assert!(Range::new(Some(b"G"), None, Some(b"FR/")).is_empty());
        assert!(!Range::ALL.is_empty());
    }
}
