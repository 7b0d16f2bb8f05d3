//! Descent: optimistic, hand over hand.

use super::BTree;
use super::kind::{Kind, Leaf};
use super::node::{MAX_LEVEL, Node, UNIT};
use crate::repr::{Stored, StoredKey};
use crate::version_lock::{Locked, VersionLocks};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace};
use crossbeam_epoch as epoch;

/// Bytes of a node that are prefetched at once.
const AHEAD: usize = 512;

/// Target of a descent.
#[derive(Clone, Copy, Debug)]
pub(super) enum Goal<'k, K: ?Sized> {
    /// The leaf that has this key, or would have it.
    Key(&'k K),
    /// The leaf with the largest keys below this one.
    Below(&'k K),
    /// The leftmost leaf.
    First,
    /// The rightmost leaf.
    Last,
}

// Not derived, because that would require `K: Clone`.
impl<K: ?Sized> Goal<'_, K> {
    fn again(&self) -> Self {
        match self {
            Self::Key(key) => Goal::Key(key),
            Self::Below(key) => Goal::Below(key),
            Self::First => Goal::First,
            Self::Last => Goal::Last,
        }
    }
}

/// A node that a descent came through: its version, and the chosen child.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    pub at: u32,
    pub version: u64,
    pub child: usize,
}

/// A descent: the inner nodes from the root down, and the leaf.
#[derive(Debug)]
pub(super) struct Path {
    steps: [Step; MAX_LEVEL + 1],
    depth: usize,
    pub leaf: Step,
}

impl Path {
    /// Returns the inner nodes, the root first.
    pub fn inner(&self) -> &[Step] {
        &self.steps[..self.depth]
    }
}

/// The pool contradicts itself. Recovery and `verify` tell where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Corrupt;

impl Corrupt {
    /// Returns the error of an operation that needs the tree to be whole.
    pub fn into_error(self) -> bristlecone_pmem::SpaceError {
        let what = std::io::Error::other("corrupt: an inner node leads to what is no node");
        bristlecone_pmem::SpaceError::io("descending", what)
    }
}

/// Result of a step, which may have to begin again.
pub(super) enum Next {
    /// The child. Its version was read while its parent led there.
    Child(Step),
    /// The parent has changed meanwhile.
    Again,
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> BTree<K, V, M, D> {
    /// Reports an access to a node's lock.
    #[inline(always)]
    fn report_lock(access: DramAccess, at: u32) {
        M::Dram::touch(DramRegion::Locks, access, VersionLocks::place(at), 8);
    }

    #[inline(always)]
    pub(super) fn version(&self, at: u32) -> u64 {
        Self::report_lock(DramAccess::Load, at);
        self.locks.read(at)
    }

    /// Prefetches the head of a node.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: u32) {
        let bytes = AHEAD.min(self.words * 8);
        let start = self.base.wrapping_add(at as usize * UNIT as usize);
        bristlecone_pmem::media::cpu::prefetch(start, bytes);
        let (region, access) = (DramRegion::Pool, DramAccess::Prefetch);
        M::Dram::touch(region, access, u64::from(at) * UNIT, bytes as u64);
    }

    /// Returns the root node as a step.
    #[inline(always)]
    pub(super) fn start(&self) -> Step {
        Step {
            at: self.top,
            version: self.version(self.top),
            child: 0,
        }
    }

    /// Moves from `step`, an inner node of level `level`, to its child number `step.child`.
    #[inline(always)]
    pub(super) fn go_down(&self, step: &Step, level: usize) -> Result<Next, Corrupt> {
        let pm = self.pm();
        let child = self.node(step.at).inner::<K>().child(pm, step.child);
        let Some(at) = self.handle(child) else {
            return self.unless_changed(step);
        };
        self.prefetch(at);
        let version = self.version(at);
        if !self.locks.validate(step.at, step.version) {
            return Ok(Next::Again);
        }
        // The version was read while the parent led there, so this level is the child's, or the
        // child has changed since.
        if self.node(at).level(pm) + 1 != level {
            let child = Step {
                at,
                version,
                child: 0,
            };
            return self.unless_changed(&child);
        }
        Ok(Next::Child(Step {
            at,
            version,
            child: 0,
        }))
    }

    /// Handles an impossible value: the node changed meanwhile, or the pool is corrupt.
    #[cold]
    fn unless_changed(&self, step: &Step) -> Result<Next, Corrupt> {
        if self.locks.validate(step.at, step.version) {
            Err(Corrupt)
        } else {
            Ok(Next::Again)
        }
    }

    /// Descends to a leaf. `each` sees every inner node on the way with its chosen child. Begins
    /// again until it succeeds, each time after `each(None)`.
    #[inline(always)]
    fn descend(
        &self,
        goal: &Goal<'_, K>,
        mut each: impl FnMut(Option<&Step>),
    ) -> Result<Step, Corrupt> {
        let pm = self.pm();
        'again: loop {
            pm.interleave();
            each(None);
            let mut step = self.start();
            let mut level = self.node(step.at).level(pm);
            if level > MAX_LEVEL {
                match self.unless_changed(&step)? {
                    Next::Again => continue 'again,
                    Next::Child(_) => return Err(Corrupt),
                }
            }
            while level > 0 {
                let node = self.node(step.at).inner::<K>();
                step.child = match goal {
                    Goal::Key(key) => node.route(pm, *key),
                    Goal::Below(key) => node.rank(pm, node.count(pm), *key, false),
                    Goal::First => 0,
                    Goal::Last => node.count(pm),
                };
                match self.go_down(&step, level)? {
                    Next::Again => continue 'again,
                    Next::Child(child) => {
                        each(Some(&step));
                        step = child;
                        level -= 1;
                    }
                }
            }
            // A leaf that is the root may have become an inner node; its version has changed then.
            return Ok(step);
        }
    }

    /// Returns the leaf of `goal`.
    #[inline]
    pub(super) fn leaf_of(&self, goal: &Goal<'_, K>) -> Result<Step, Corrupt> {
        self.descend(goal, |_| {})
    }

    /// Returns the leaf of `goal`, and the largest separator on the way that is not above it. No
    /// key of the leaf is smaller. It is `None` for the leftmost leaf.
    pub(super) fn leaf_and_low(
        &self,
        goal: &Goal<'_, K>,
    ) -> Result<(Step, Option<K::Owned>), Corrupt> {
        let pm = self.pm();
        loop {
            // The separator is read once the leaf is known, because most steps do not count.
            let mut low: Option<Step> = None;
            let leaf = self.descend(&goal.again(), |step| match step {
                None => low = None,
                Some(step) if step.child > 0 => low = Some(*step),
                Some(_) => {}
            })?;
            let Some(step) = low else {
                return Ok((leaf, None));
            };
            let word = self.node(step.at).inner::<K>().key(pm, step.child - 1);
            let separator = K::read(pm, word, ToOwned::to_owned);
            if self.locks.validate(step.at, step.version) {
                return separator.map(|low| (leaf, Some(low))).ok_or(Corrupt);
            }
        }
    }

    /// Returns the path to `key`'s leaf.
    pub(super) fn path_to(&self, key: &K) -> Result<Path, Corrupt> {
        let mut path = Path {
            steps: [Step::default(); MAX_LEVEL + 1],
            depth: 0,
            leaf: Step::default(),
        };
        let leaf = self.descend(&Goal::Key(key), |step| match step {
            None => path.depth = 0,
            Some(step) => {
                path.steps[path.depth] = *step;
                path.depth += 1;
            }
        })?;
        path.leaf = leaf;
        Ok(path)
    }

    /// Returns the value word of `key`. The caller is pinned if there are records.
    #[inline]
    pub(super) fn find_word(&self, key: &K) -> Option<V::Word> {
        loop {
            let leaf = self.leaf_of(&Goal::Key(key)).ok()?;
            let found = D::Leaf::find::<K, V, M>(self.node(leaf.at), self.pm(), key);
            if self.locks.validate(leaf.at, leaf.version) {
                return found.map(|found| found.value);
            }
        }
    }

    /// Finds `key` and calls `f` with its value.
    #[inline]
    pub(super) fn find_value<R>(&self, key: &K, f: impl FnOnce(&V) -> R) -> Option<R> {
        // Numbers need no pin: a search reads the type-stable memory of nodes, checks it before
        // following it, and uses nothing of it before versions are validated.
        let _pin = Self::RECORDS.then(epoch::pin);
        let word = self.find_word(key)?;
        V::read(self.pm(), word, f)
    }

    /// Returns the leaf of `key`, locked.
    pub(super) fn lock_leaf(&self, key: &K) -> Result<(Step, Node<'_>, Locked<'_>), Corrupt> {
        loop {
            let leaf = self.leaf_of(&Goal::Key(key))?;
            self.pm().interleave();
            Self::report_lock(DramAccess::Locked, leaf.at);
            if let Some(locked) = self.locks.try_lock_at(leaf.at, leaf.version) {
                return Ok((leaf, self.node(leaf.at), locked));
            }
        }
    }
}
