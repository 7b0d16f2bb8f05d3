//! Reading: from a key to its leaf, its range, its neighbours; and many keys at once.
//!
//! The protocol is in the [module's head](super). Results are *located*, not yet validated: they
//! are right if [`InnerIndex::validate`] says so after the leaf's version has been read.

use super::node::{Meta, Node};
use super::separator::Separator;
use super::{DramTrace, InnerIndex, NODE_SEPARATORS, ROOT};
use crate::sync::wait;
use crossbeam_epoch::Guard;
use crossbeam_utils::Backoff;
use std::borrow::Borrow;

/// A leaf, and the version of the level-1 node that led to it.
///
/// Until [`InnerIndex::validate`] has said so, it may be the wrong leaf, or no longer a leaf at
/// all: good enough to prefetch and to look up a lock, not to trust.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// The leaf's handle.
    pub leaf: u32,
    node: u32,
    version: u64,
}

/// A leaf with the ends of its range. See [`InnerIndex::find_range`].
pub struct Ranged<S: Separator + ?Sized> {
    /// The leaf.
    pub located: Located,
    /// Smallest key routed to it; `None` if it is the first leaf.
    pub low: Option<S::Owned>,
    /// Smallest key routed past it; `None` if it is the last leaf.
    pub high: Option<S::Owned>,
    /// Index of the child in its level-1 node.
    at: usize,
}

impl<S: Separator + ?Sized> std::fmt::Debug for Ranged<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ranged")
            .field("located", &self.located)
            .field("low", &self.low)
            .field("high", &self.high)
            .finish()
    }
}

/// A leaf and the one before it. See [`InnerIndex::find_with_left`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// The leaf.
    pub located: Located,
    /// The leaf just before it; `None` if it is the first.
    pub left: Option<Located>,
}

/// A leaf and its neighbours below the same level-1 node. See [`InnerIndex::find_siblings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Siblings {
    /// The leaf.
    pub located: Located,
    /// The one before it; `None` if it is the first of the node.
    pub left: Option<u32>,
    /// The one after it; `None` if it is the last of the node.
    pub right: Option<u32>,
}

/// A step of a descent.
pub(super) struct Step<'i, S: Separator + ?Sized> {
    pub(super) handle: u32,
    pub(super) node: &'i Node<S>,
    pub(super) version: u64,
    pub(super) meta: Meta,
    /// The child to follow.
    pub(super) at: usize,
}

impl<S: Separator + ?Sized> Clone for Step<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Separator + ?Sized> Copy for Step<'_, S> {}

/// Keys that a batch works on at a time: more misses than a core can have in flight.
const BATCH: usize = 32;

impl<S: Separator + ?Sized, const CAP: usize, D: DramTrace> InnerIndex<S, CAP, D> {
    /// Descends from the root by `choose` and shows each step to `visit`, the level-1 node last.
    /// `None` means that a version changed: start again. Every step but the last has been validated
    /// after `visit` saw it.
    ///
    /// The caller is pinned.
    #[inline(always)]
    pub(super) fn descend<'i>(
        &'i self,
        choose: impl Fn(&Node<S>, Meta) -> usize,
        mut visit: impl FnMut(&Step<'i, S>),
    ) -> Option<Step<'i, S>> {
        let mut handle = ROOT;
        let mut node = self.root();
        let mut version = node.version.read();
        loop {
            let meta = node.meta();
            let at = choose(node, meta);
            Self::report_search(handle, at);
            let step = Step {
                handle,
                node,
                version,
                meta,
                at,
            };
            visit(&step);
            if meta.level == 1 {
                return Some(step);
            }
            let child = node.child(at);
            self.prefetch(child);
            if !node.version.validate(version) {
                return None;
            }
            // SAFETY: 1. the handle was read from a node above level 1 that was validated just now,
            // so it is a node's; 2. the caller is pinned, so the node is not reused meanwhile.
            let next = unsafe { self.node(child) };
            let next_version = next.version.read();
            // The child's version is of a time at which the child still had the range we follow; an
            // obsolete child fails here too, since its parent changed with it.
            if !node.version.validate(version) {
                return None;
            }
            (handle, node, version) = (child, next, next_version);
        }
    }

    /// Calls `attempt` until it succeeds, and yields between attempts.
    #[inline(always)]
    pub(super) fn retry<R>(mut attempt: impl FnMut() -> Option<R>) -> R {
        if let Some(result) = attempt() {
            return result;
        }
        let backoff = Backoff::new();
        loop {
            wait(&backoff);
            if let Some(result) = attempt() {
                return result;
            }
        }
    }

    #[inline(always)]
    fn leaf_of(step: &Step<'_, S>) -> Located {
        Located {
            leaf: step.node.child(step.at),
            node: step.handle,
            version: step.version,
        }
    }

    #[inline(always)]
    pub(super) fn check_guard(guard: &Guard) {
        debug_assert!(
            guard
                .collector()
                .is_none_or(|c| c == crossbeam_epoch::default_collector()),
            "guards come from crossbeam_epoch::pin"
        );
    }

    /// Returns the leaf that `key` is routed to, to be [validated](Self::validate). One cache miss
    /// per level at most.
    #[inline]
    #[must_use]
    pub fn find(&self, key: &S, guard: &Guard) -> Located {
        Self::check_guard(guard);
        Self::retry(|| {
            // SAFETY: the thread is pinned by `guard`.
            let step = self.descend(|node, meta| unsafe { node.upper(meta, key) }, |_| {})?;
            Some(Self::leaf_of(&step))
        })
    }

    /// Returns true if a search would still find `located`: its level-1 node has not changed since.
    ///
    /// Read the leaf's version before. True then means that the leaf held the key's range when its
    /// version was read. After that, validating the leaf's version is enough.
    #[inline]
    #[must_use]
    pub fn validate(&self, located: &Located) -> bool {
        // SAFETY: only this module makes a `Located`, from nodes that were handed out, and
        // `default()`, whose node is the root. One of another index would be meaningless, but
        // inside the reserved range all the same, since both handles are checked.
        if located.node >= self.capacity {
            return false;
        }
        // SAFETY: the handle is inside the mapping, and node memory always holds a node.
        unsafe { self.node(located.node) }
            .version
            .validate(located.version)
    }

    /// Returns the leaf that `key` is routed to, and the ends of its range.
    ///
    /// If `located` validates, every key of `[low, high)` was routed to this leaf at that time. The
    /// leaf's range may be wider by then, since it takes over a removed neighbour's. So a scan that
    /// continues from `high` must skip keys of the leaf from `high` on, and one that continues
    /// below `low` those below.
    #[must_use]
    pub fn find_range(&self, key: &S, guard: &Guard) -> Ranged<S> {
        // SAFETY: the thread is pinned by `guard`.
        self.ranged(|node, meta| unsafe { node.upper(meta, key) }, guard)
    }

    /// Returns the leaf that holds the largest keys strictly below `key`: the last one whose low
    /// end is below it. It may be the leaf of `key` itself. If no leaf has keys below `key`, it is
    /// the first leaf.
    ///
    /// The range's ends mean what they do in [`find_range`](Self::find_range); a backward scan
    /// continues with `find_below(low)`.
    #[must_use]
    pub fn find_below(&self, key: &S, guard: &Guard) -> Ranged<S> {
        // SAFETY: the thread is pinned by `guard`.
        self.ranged(|node, meta| unsafe { node.lower(meta, key) }, guard)
    }

    /// Returns the first leaf.
    #[must_use]
    pub fn find_first(&self, guard: &Guard) -> Ranged<S> {
        self.ranged(|_, _| 0, guard)
    }

    /// Returns the last leaf.
    #[must_use]
    pub fn find_last(&self, guard: &Guard) -> Ranged<S> {
        self.ranged(|_, meta| meta.count, guard)
    }

    fn ranged(&self, choose: impl Fn(&Node<S>, Meta) -> usize, guard: &Guard) -> Ranged<S> {
        Self::check_guard(guard);
        Self::retry(|| {
            let (mut low, mut high) = (None, None);
            let step = self.descend(&choose, |step| {
                if step.at > 0 {
                    low = step.node.separator(step.at - 1);
                }
                if step.at < step.meta.count {
                    high = step.node.separator(step.at);
                }
            })?;
            let located = Self::leaf_of(&step);
            if !step.node.version.validate(step.version) {
                return None;
            }
            // SAFETY: every step has been validated, so these are separators that were in the index
            // while this thread was pinned; they are not freed before it is unpinned.
            let own = |full: S::Full| unsafe { S::view(&full) }.to_owned();
            Some(Ranged {
                located,
                low: low.map(own),
                high: high.map(own),
                at: step.at,
            })
        })
    }

    /// Returns the leaf after `from` without a descent from the root. Returns `None` if it is not
    /// in the same level-1 node, or that node has changed; [`find_range`](Self::find_range) of
    /// `from.high` then finds it.
    #[inline]
    #[must_use]
    pub fn next_in_node(&self, from: &Ranged<S>, guard: &Guard) -> Option<Ranged<S>> {
        self.step_in_node(from, from.at + 1, guard)
    }

    /// Returns the leaf before `from` likewise; otherwise [`find_below`](Self::find_below) of
    /// `from.low` finds it.
    #[inline]
    #[must_use]
    pub fn previous_in_node(&self, from: &Ranged<S>, guard: &Guard) -> Option<Ranged<S>> {
        self.step_in_node(from, from.at.checked_sub(1)?, guard)
    }

    #[inline]
    fn step_in_node(&self, from: &Ranged<S>, at: usize, guard: &Guard) -> Option<Ranged<S>> {
        Self::check_guard(guard);
        // SAFETY: 1. the handle is inside the mapping, and node memory always holds a node; 2. a
        // recycled node never has the version of `from`.
        let node = unsafe { self.node(from.located.node) };
        let meta = node.meta();
        // The ends of a node's first and last ranges are in the nodes above.
        if meta.level != 1 || at == 0 || at >= meta.count {
            return None;
        }
        let located = Located {
            leaf: node.child(at),
            ..from.located
        };
        let (low, high) = (node.separator(at - 1)?, node.separator(at)?);
        if !node.version.validate(from.located.version) {
            return None;
        }
        // SAFETY: the node has not changed, so these separators are in the index while this thread
        // is pinned; they are not freed before it is unpinned.
        let own = |full: S::Full| unsafe { S::view(&full) }.to_owned();
        Some(Ranged {
            located,
            low: Some(own(low)),
            high: Some(own(high)),
            at,
        })
    }

    /// Returns the handle of the leaf `distance` after (or before) `from` in the same level-1 node,
    /// if there is one, for prefetching: it may be stale when it is used. Prefetches the separator
    /// that ends its range.
    #[inline]
    #[must_use]
    pub fn ahead(&self, from: &Ranged<S>, distance: isize) -> Option<u32> {
        // SAFETY: as in `step_in_node`.
        let node = unsafe { self.node(from.located.node) };
        let at = from.at.checked_add_signed(distance)?;
        // The end of its range.
        if let Some(full) = node.separator(at) {
            S::prefetch(&full);
        }
        (at <= node.meta().count.min(NODE_SEPARATORS)).then(|| node.child(at))
    }

    /// Returns the leaf that `key` is routed to and the leaf just before it, for removing an
    /// emptied leaf from a list.
    ///
    /// If both validate after both leaves' locks were taken, they are neighbours and stay so for as
    /// long as both locks are held: only a split of the left one or a removal of either could
    /// change that.
    #[must_use]
    pub fn find_with_left(&self, key: &S, guard: &Guard) -> Neighbours {
        Self::check_guard(guard);
        let near = Self::retry(|| {
            // SAFETY: the thread is pinned by `guard`.
            let step = self.descend(|node, meta| unsafe { node.upper(meta, key) }, |_| {})?;
            let siblings = Self::siblings_of(&step);
            step.node.version.validate(step.version).then_some(siblings)
        });
        if let Some(left) = near.left {
            // They are mostly in the same level-1 node, and then one descent is enough.
            return Neighbours {
                located: near.located,
                left: Some(Located {
                    leaf: left,
                    ..near.located
                }),
            };
        }
        Self::retry(|| {
            let right = self.find_range(key, guard);
            let Some(low) = right.low else {
                return Some(Neighbours {
                    located: right.located,
                    left: None,
                });
            };
            let left = self.find_below(low.borrow(), guard).located;
            // It is the same leaf if its left neighbour was removed between the two searches.
            (left.leaf != right.located.leaf).then_some(Neighbours {
                located: right.located,
                left: Some(left),
            })
        })
    }

    /// Returns the leaf that `key` is routed to and its neighbours in the same level-1 node.
    ///
    /// If it validates, they were neighbours then; they stay so while all their locks are held.
    #[must_use]
    pub fn find_siblings(&self, key: &S, guard: &Guard) -> Siblings {
        Self::check_guard(guard);
        Self::retry(|| {
            // SAFETY: the thread is pinned by `guard`.
            let step = self.descend(|node, meta| unsafe { node.upper(meta, key) }, |_| {})?;
            Some(Self::siblings_of(&step))
        })
    }

    #[inline(always)]
    fn siblings_of(step: &Step<'_, S>) -> Siblings {
        let child = |at: usize| step.node.child(at);
        Siblings {
            located: Self::leaf_of(step),
            left: step.at.checked_sub(1).map(child),
            right: (step.at < step.meta.count).then(|| child(step.at + 1)),
        }
    }

    /// Calls [`find`](Self::find) for many keys: `out[i]` is for `keys[i]` (as many as both have).
    /// The keys descend level by level together, so that their cache misses overlap.
    pub fn find_batch<Q: Borrow<S>>(&self, keys: &[Q], out: &mut [Located], guard: &Guard) {
        Self::check_guard(guard);
        for (keys, out) in keys.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            self.find_chunk(keys, out, guard);
        }
    }

    fn find_chunk<Q: Borrow<S>>(&self, keys: &[Q], out: &mut [Located], guard: &Guard) {
        let n = keys.len().min(out.len());
        let root = self.root();
        let version = root.version.read();
        let meta = root.meta();
        // `out[i]` holds the node that key i has reached, its version, and in `leaf` the child that
        // the key continues to, whatever that is.
        for (key, out) in keys.iter().zip(out.iter_mut()) {
            // SAFETY: the thread is pinned by `guard`.
            let at = unsafe { root.upper(meta, key.borrow()) };
            Self::report_search(ROOT, at);
            let child = root.child(at);
            if meta.level > 1 {
                self.prefetch(child);
            }
            *out = Located {
                leaf: child,
                node: ROOT,
                version,
            };
        }
        // Keys whose descent failed: bit i for key i.
        let mut failed = 0u32;
        for level in (1..meta.level).rev() {
            for i in 0..n {
                if failed & (1 << i) != 0 {
                    continue;
                }
                match self.one_down(out[i], level, keys[i].borrow()) {
                    Some(next) => out[i] = next,
                    None => failed |= 1 << i,
                }
            }
        }
        for i in 0..n {
            if failed & (1 << i) != 0 {
                out[i] = self.find(keys[i].borrow(), guard);
            }
        }
    }

    /// Moves a key of a batch from a node with a known child to that child, at `level`.
    #[inline(always)]
    fn one_down(&self, from: Located, level: u32, key: &S) -> Option<Located> {
        // SAFETY: `from.node` was handed out: it is the root, or a node that this function
        // validated.
        let node = unsafe { self.node(from.node) };
        if !node.version.validate(from.version) {
            return None;
        }
        // SAFETY: 1. the handle was read from a node above level 1 (the batch counts levels down
        // from the root's, which was read at the version that the first step validates) that was
        // validated just now; 2. the batch is pinned.
        let child = unsafe { self.node(from.leaf) };
        let version = child.version.try_read()?;
        if !node.version.validate(from.version) {
            return None;
        }
        let meta = child.meta();
        // SAFETY: the batch is pinned.
        let at = unsafe { child.upper(meta, key) };
        Self::report_search(from.leaf, at);
        let next = child.child(at);
        if level > 1 {
            self.prefetch(next);
        }
        Some(Located {
            leaf: next,
            node: from.leaf,
            version,
        })
    }
}

const _: () = assert!(BATCH <= u32::BITS as usize);
