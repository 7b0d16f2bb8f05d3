//! A pool and its index `main`, whatever the node size: the one place where commands meet the
//! library.
//!
//! The library's tree is generic over the node size; a pool records which one it has. [`Store`] is
//! an enum over the four, and `each!` runs the same code on any of them.

use crate::args::MediumArgs;
use crate::args::WriteArgs;
use crate::failure::{Failure, Outcome};
use crate::text::quoted;
use bristlecone_pmem::media::Auto;
use bristlecone_pmem::pool::{CompactReport, DataKind, Pool, PoolInfo, PoolOptions};
use bristlecone_pmem::{Access, Durability, MediumKind};
use bristlecone_trees::DurableIndex;
use bristlecone_trees::lbtree::{LbOptions, LbTree};
use bristlecone_trees::repr::{MAX_KEY, MAX_VALUE};
use bristlecone_trees::{
    IndexStats, InsertError, OrderedIndex, RecoveryReport, ReverseScan, UpdateError, VerifyReport,
    Violation,
};
use std::fmt::Display;
use std::fs;
use std::ops::{Bound, ControlFlow};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the root that the command line works on.
pub const ROOT: &str = "main";

/// Most bytes a key may have.
pub const KEY_MOST: usize = MAX_KEY;
/// Most bytes a value may have.
pub const VALUE_MOST: usize = MAX_VALUE;

type Tree<const BLOCKS: usize> = LbTree<[u8], [u8], Auto, BLOCKS>;

/// The tree of any node size.
enum AnyTree {
    B256(Tree<1>),
    B512(Tree<2>),
    B768(Tree<3>),
    B1024(Tree<4>),
}

/// Runs `$body` with `$tree` bound to the tree, whatever its node size.
macro_rules! each {
    ($any:expr, $tree:ident => $body:expr) => {
        match $any {
            AnyTree::B256($tree) => $body,
            AnyTree::B512($tree) => $body,
            AnyTree::B768($tree) => $body,
            AnyTree::B1024($tree) => $body,
        }
    };
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
    tree: AnyTree,
    pool: Arc<Pool<Auto>>,
    node_bytes: u32,
}

impl Store {
    /// Makes a pool with an empty index of `node_bytes` per leaf.
    pub fn create(path: &Path, how: How, node_bytes: u32) -> Outcome<Self> {
        let pool = Pool::create(path, &how.options(Access::Create)).map_err(plain)?;
        let options = LbOptions::default();
        let named = |e: &dyn Display| {
            // A pool without its index is of no use to anyone. (A device stays.)
            if path.is_file() {
                let _ = std::fs::remove_file(path);
            }
            Failure::new(format!("{}: {e}", path.display()))
        };
        macro_rules! tree {
            ($variant:ident) => {
                AnyTree::$variant(LbTree::create(&pool, ROOT, &options).map_err(|e| named(&e))?)
            };
        }
        let tree = match node_bytes {
            256 => tree!(B256),
            512 => tree!(B512),
            768 => tree!(B768),
            1024 => tree!(B1024),
            other => {
                return Err(Failure::Usage(format!(
                    "node size {other}: there are 256, 512, 768 and 1024"
                )));
            }
        };
        Ok(Self {
            path: path.to_path_buf(),
            tree,
            pool,
            node_bytes,
        })
    }

    /// Opens a pool and its index.
    pub fn open(path: &Path, how: How) -> Outcome<Self> {
        // A devdax device grants no private mapping, so even reading opens it for writing.
        let device = fs::metadata(path).is_ok_and(|m| m.file_type().is_char_device());
        let access = if how.read_only && !device {
            Access::ReadOnly
        } else {
            Access::ReadWrite
        };
        let pool = Pool::open(path, &how.options(access)).map_err(plain)?;
        let named = |e: &dyn Display| Failure::new(format!("{}: {e}", path.display()));
        let roots = pool.roots();
        let Some(root) = roots.iter().find(|r| r.name == ROOT) else {
            let names: Vec<_> = roots.iter().map(|r| quoted(r.name.as_bytes())).collect();
            let there = if names.is_empty() {
                "it has no roots at all; its creation was cut short, so delete it and create it again"
                    .to_owned()
            } else {
                format!(
                    "it has {}; a program of its own made it, and this command reads only \"{ROOT}\"",
                    names.join(", ")
                )
            };
            return Err(named(&format_args!("no root named \"{ROOT}\": {there}")));
        };
        let kind = &root.kind;
        if kind.design != "lbtree" || kind.keys != DataKind::Bytes || kind.values != DataKind::Bytes
        {
            return Err(named(&format_args!(
                "root \"{ROOT}\" is {kind}; this command works on an lbtree of bytes to bytes"
            )));
        }
        let options = LbOptions::default();
        let node_bytes = kind.node_bytes;
        macro_rules! tree {
            ($variant:ident) => {
                AnyTree::$variant(LbTree::open(&pool, ROOT, &options).map_err(|e| named(&e))?)
            };
        }
        let tree = match node_bytes {
            256 => tree!(B256),
            512 => tree!(B512),
            768 => tree!(B768),
            1024 => tree!(B1024),
            other => {
                return Err(named(&format_args!(
                    "corrupt: root \"{ROOT}\" claims nodes of {other} bytes; there are 256, 512, 768 and 1024"
                )));
            }
        };
        Ok(Self {
            path: path.to_path_buf(),
            tree,
            pool,
            node_bytes,
        })
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
        each!(&self.tree, t => t.recovery().clone())
    }

    /// Shape and size of the index.
    pub fn stats(&self) -> IndexStats {
        each!(&self.tree, t => OrderedIndex::stats(t))
    }

    /// Checks every invariant.
    pub fn verify(&self) -> Result<VerifyReport, Violation> {
        each!(&self.tree, t => OrderedIndex::verify(t))
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        each!(&self.tree, t => OrderedIndex::get(t, key))
    }

    /// Stores `value` under `key`; true if the key was there.
    pub fn upsert(&self, key: &[u8], value: &[u8]) -> Outcome<bool> {
        each!(&self.tree, t => OrderedIndex::upsert(t, key, value))
            .map_err(|e| self.refused(key, &e))
    }

    /// Replaces the value of `key`; false, with nothing changed, if it was not there.
    pub fn update(&self, key: &[u8], value: &[u8]) -> Outcome<bool> {
        match each!(&self.tree, t => OrderedIndex::update(t, key, value)) {
            Ok(()) => Ok(true),
            Err(UpdateError::NotFound) => Ok(false),
            Err(e) => Err(self.refused(key, &e)),
        }
    }

    /// Removes `key`; true if it was there.
    pub fn remove(&self, key: &[u8]) -> Outcome<bool> {
        each!(&self.tree, t => OrderedIndex::remove(t, key)).map_err(|e| self.refused(key, &e))
    }

    /// Inserts pairs, in one batch; one result per pair, in order.
    pub fn multi_insert<K, V>(&self, pairs: &[(K, V)], out: &mut Vec<Result<(), InsertError>>)
    where
        K: std::borrow::Borrow<[u8]>,
        V: std::borrow::Borrow<[u8]>,
    {
        each!(&self.tree, t => OrderedIndex::multi_insert(t, pairs, out));
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
            each!(&self.tree, t => ReverseScan::scan_reverse(t, bounds, &mut visit));
        } else {
            each!(&self.tree, t => OrderedIndex::scan(t, bounds, &mut visit));
        }
    }

    /// Gives unused space back.
    pub fn compact(&self) -> Outcome<CompactReport> {
        self.pool.compact().map_err(|e| self.failed(&e))
    }

    /// Copies the pool to `to`; answers the bytes written.
    pub fn backup(&self, to: &Path) -> Outcome<u64> {
        self.pool.backup(to).map_err(plain)
    }

    /// Closes the pool cleanly.
    pub fn close(self) -> Outcome {
        let Self {
            path, tree, pool, ..
        } = self;
        let closed = each!(tree, t => t.close());
        drop(pool);
        closed.map_err(|e| Failure::new(format!("{}: closing: {e}", path.display())))
    }

    fn failed(&self, error: &dyn Display) -> Failure {
        Failure::new(format!("{}: {error}", self.path.display()))
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

    fn is_empty(&self) -> bool {
        match (&self.from, &self.to) {
            (Bound::Included(f), Bound::Excluded(t)) => f >= t,
            (_, Bound::Excluded(t)) => t.is_empty(),
            _ => false,
        }
    }

    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
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
