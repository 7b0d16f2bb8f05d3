//! Descent: optimistic, hand over hand.

use super::node::NodeOf;
use super::{FastFair, MAX_LEVEL, UNIT};
use crate::repr::{Stored, StoredKey};
use crate::version_lock::{Locked, VersionLocks};
use bristlecone_pmem::Media;
use bristlecone_pmem::media::{DramAccess, DramRegion, DramTrace};
use crossbeam_epoch as epoch;
use std::borrow::Borrow;

/// Keys of a batch that descend together.
const TOGETHER: usize = 32;
/// Bytes of a node that are prefetched at once.
const AHEAD: usize = 512;

/// Target of a descent.
#[derive(Debug)]
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
impl<K: ?Sized> Clone for Goal<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K: ?Sized> Copy for Goal<'_, K> {}

/// A node that a descent came through: its version, and the entry of the chosen child.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Step {
    pub at: u32,
    pub version: u64,
    pub child: usize,
}

/// A descent: the nodes from the root down to the leaf.
#[derive(Debug)]
pub(super) struct Path {
    steps: [Step; MAX_LEVEL + 1],
    depth: usize,
}

impl Path {
    /// Returns the inner nodes, the root first.
    pub fn inner(&self) -> &[Step] {
        &self.steps[..self.depth - 1]
    }

    pub fn leaf(&self) -> Step {
        self.steps[self.depth - 1]
    }

    /// Returns the node of that level, or `None` above the root.
    pub fn at_level(&self, level: usize) -> Option<Step> {
        let above = self.depth.checked_sub(1 + level)?;
        Some(self.steps[above])
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

/// The node changed while it was read.
pub(super) struct Changed;

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> FastFair<K, V, M> {
    /// Reports an access to a node's lock.
    #[inline(always)]
    pub(super) fn report_lock(access: DramAccess, at: u32) {
        M::Dram::touch(DramRegion::Locks, access, VersionLocks::place(at), 8);
    }

    #[inline(always)]
    pub(super) fn version(&self, at: u32) -> u64 {
        Self::report_lock(DramAccess::Load, at);
        self.locks.read(at)
    }

    #[inline(always)]
    fn prefetch(&self, at: u32) {
        let bytes = AHEAD.min(self.words * 8);
        let start = self.base.wrapping_add(at as usize * UNIT as usize);
        bristlecone_pmem::media::cpu::prefetch(start, bytes);
        let (region, access) = (DramRegion::Pool, DramAccess::Prefetch);
        M::Dram::touch(region, access, u64::from(at) * UNIT, bytes as u64);
    }

    /// Returns the root node as a step, and its level.
    #[inline(always)]
    pub(super) fn start(&self) -> Result<(Step, usize), Corrupt> {
        loop {
            let at = self.top();
            let version = self.version(at);
            // A node is locked before it ceases to be the root, so the version is one of the
            // root's.
            if self.top() != at {
                continue;
            }
            let level = self.node(at).level(self.pm());
            let step = Step {
                at,
                version,
                child: 0,
            };
            if level <= MAX_LEVEL {
                return Ok((step, level));
            }
            if self.locks.validate(at, version) {
                return Err(Corrupt);
            }
        }
    }

    /// Returns the entry of an inner node to follow.
    #[inline(always)]
    fn route(&self, node: NodeOf<'_, K, V>, goal: Goal<'_, K>) -> usize {
        let pm = self.pm();
        match goal {
            Goal::Key(key) => node.route(pm, key, false),
            Goal::Below(key) => node.route(pm, key, true),
            Goal::First => 0,
            Goal::Last => node.count(pm).max(1) - 1,
        }
    }

    /// Moves from `step`, an inner node of level `level`, to the child of its entry `step.child`.
    #[inline(always)]
    pub(super) fn go_down(
        &self,
        step: &Step,
        level: usize,
    ) -> Result<Result<Step, Changed>, Corrupt> {
        let pm = self.pm();
        let Some(at) = self.handle(self.node(step.at).child(pm, step.child)) else {
            return self.unless_changed(step);
        };
        self.prefetch(at);
        let version = self.version(at);
        if !self.locks.validate(step.at, step.version) {
            return Ok(Err(Changed));
        }
        let child = Step {
            at,
            version,
            child: 0,
        };
        // The version was read while the parent led there, so this level is the child's, or the
        // child has changed since.
        if self.node(at).level(pm) + 1 != level {
            return self.unless_changed(&child);
        }
        Ok(Ok(child))
    }

    /// Handles an impossible value: the node changed meanwhile, or the pool is corrupt.
    #[cold]
    fn unless_changed(&self, step: &Step) -> Result<Result<Step, Changed>, Corrupt> {
        if self.locks.validate(step.at, step.version) {
            Err(Corrupt)
        } else {
            Ok(Err(Changed))
        }
    }

    /// Descends to a leaf. `each` sees every inner node on the way with its chosen child. Begins
    /// again until it succeeds, each time after `each(None)`.
    #[inline(always)]
    fn descend(
        &self,
        goal: Goal<'_, K>,
        mut each: impl FnMut(Option<&Step>),
    ) -> Result<Step, Corrupt> {
        let pm = self.pm();
        'again: loop {
            pm.interleave();
            each(None);
            let (mut step, mut level) = self.start()?;
            while level > 0 {
                step.child = self.route(self.node(step.at), goal);
                match self.go_down(&step, level)? {
                    Err(Changed) => continue 'again,
                    Ok(child) => {
                        each(Some(&step));
                        step = child;
                        level -= 1;
                    }
                }
            }
            // A root's level was read before its version was validated; validating the leaf does
            // that.
            return Ok(step);
        }
    }

    /// Returns the leaf of `goal`.
    #[inline]
    pub(super) fn leaf_of(&self, goal: Goal<'_, K>) -> Result<Step, Corrupt> {
        self.descend(goal, |_| {})
    }

    /// Returns the path to the leaf of `goal`.
    pub(super) fn path_to(&self, goal: Goal<'_, K>) -> Result<Path, Corrupt> {
        let mut path = Path {
            steps: [Step::default(); MAX_LEVEL + 1],
            depth: 0,
        };
        let leaf = self.descend(goal, |step| match step {
            None => path.depth = 0,
            Some(step) => {
                path.steps[path.depth] = *step;
                path.depth += 1;
            }
        })?;
        path.steps[path.depth] = leaf;
        path.depth += 1;
        Ok(path)
    }

    /// Returns the value word of `key`. The caller is pinned if there are records.
    #[inline]
    pub(super) fn find_word(&self, key: &K) -> Option<V::Word> {
        loop {
            let leaf = self.leaf_of(Goal::Key(key)).ok()?;
            let found = self.node(leaf.at).find(self.pm(), key);
            if self.locks.validate(leaf.at, leaf.version) {
                return found.ok().map(|found| found.value);
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
    pub(super) fn lock_leaf(
        &self,
        key: &K,
    ) -> Result<(Step, NodeOf<'_, K, V>, Locked<'_>), Corrupt> {
        loop {
            let leaf = self.leaf_of(Goal::Key(key))?;
            self.pm().interleave();
            Self::report_lock(DramAccess::Locked, leaf.at);
            if let Some(locked) = self.locks.try_lock_at(leaf.at, leaf.version) {
                return Ok((leaf, self.node(leaf.at), locked));
            }
        }
    }

    /// Looks up a batch. All descents advance level by level, so that their misses overlap.
    pub(super) fn get_batch<Q: Borrow<K>>(&self, keys: &[Q], out: &mut Vec<Option<V::Owned>>) {
        out.clear();
        out.reserve(keys.len());
        let pm = self.pm();
        for keys in keys.chunks(TOGETHER) {
            let _pin = Self::RECORDS.then(epoch::pin);
            let top = self.start().ok();
            let mut at = [top.map(|(step, _)| step); TOGETHER];
            // A lookup that meets a change or an impossible value is repeated alone afterwards.
            for level in (1..=top.map_or(0, |(_, level)| level)).rev() {
                for (key, at) in keys.iter().zip(&mut at) {
                    *at = at.and_then(|mut step| {
                        step.child = self.route(self.node(step.at), Goal::Key(key.borrow()));
                        self.go_down(&step, level).ok()?.ok()
                    });
                }
            }
            for (key, at) in keys.iter().zip(at) {
                let found = at.and_then(|leaf| {
                    let found = self.node(leaf.at).find(pm, key.borrow());
                    self.locks.validate(leaf.at, leaf.version).then_some(found)
                });
                let word = match found {
                    Some(found) => found.ok().map(|found| found.value),
                    None => self.find_word(key.borrow()),
                };
                out.push(word.and_then(|word| V::read(pm, word, ToOwned::to_owned)));
            }
        }
    }
}
