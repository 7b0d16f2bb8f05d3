//! The index as a whole: bulk building, walking, verification, statistics.

use super::node::Node;
use super::separator::Separator;
use super::{DramTrace, InnerIndex, NODE_SEPARATORS, ROOT};
use crate::contract::{Fill, Violation};
use std::borrow::Borrow;
use std::fmt;
use std::io;

/// Reason why an index was not built.
#[derive(Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// The system granted no address space for the nodes.
    Memory(io::Error),
    /// A separator is not above the one before it.
    Unsorted {
        /// Its place in the input, from 0.
        position: u64,
    },
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(e) => write!(f, "no address space for the inner nodes: {e}"),
            Self::Unsorted { position } => {
                write!(
                    f,
                    "the smallest key of leaf {} is not above that of the leaf before it",
                    position + 1
                )
            }
        }
    }
}

impl std::error::Error for BuildError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory(e) => Some(e),
            Self::Unsorted { .. } => None,
        }
    }
}

impl From<io::Error> for BuildError {
    fn from(e: io::Error) -> Self {
        Self::Memory(e)
    }
}

/// Shape and size of an inner index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InnerStats {
    /// Levels of inner nodes (leaves not counted).
    pub depth: u32,
    /// Number of inner nodes, including those that wait for readers to leave.
    pub nodes: u64,
    /// DRAM bytes: all memory that nodes have ever taken, and byte-string separators.
    pub bytes: u64,
}

impl<S: Separator + ?Sized, const CAP: usize, D: DramTrace> InnerIndex<S, CAP, D> {
    /// Builds an index over `first_leaf` and, to its right, the leaves of `rest`, each with the
    /// smallest key routed to it, strictly ascending. Nodes get `fill` of their separators. The
    /// index is built from the bottom up in one pass. `leaf_bytes` is as for [`new`](Self::new).
    ///
    /// # Errors
    /// [`BuildError::Unsorted`] with the place of the first separator that is not above its
    /// predecessor; [`BuildError::Memory`] if there is no address space.
    pub fn from_sorted<Q: Borrow<S>>(
        first_leaf: u32,
        rest: impl IntoIterator<Item = (Q, u32)>,
        fill: Fill,
        leaf_bytes: u64,
    ) -> Result<Self, BuildError> {
        let index = Self::without_root(leaf_bytes)?;
        let result = index.build(first_leaf, rest.into_iter(), fill.of(CAP));
        // An interrupted build is a whole tree here too, so dropping it frees everything.
        result.map(|()| index)
    }

    fn build<Q: Borrow<S>>(
        &self,
        first_leaf: u32,
        rest: impl Iterator<Item = (Q, u32)>,
        separators: usize,
    ) -> Result<(), BuildError> {
        // The last node of each level, from level 1 up.
        let mut edge: Vec<(u32, &Node<S>)> = vec![self.new_node(1, first_leaf)];
        let mut last: Option<S::Full> = None;
        let mut result = Ok(());
        for (position, (separator, leaf)) in (0u64..).zip(rest) {
            let separator = separator.borrow();
            // SAFETY: the separator is in the tree under construction, which nothing else frees.
            if last.is_some_and(|last| unsafe { S::view(&last) } >= separator) {
                result = Err(BuildError::Unsorted { position });
                break;
            }
            let full = self.allocate_separator(separator);
            last = Some(full);
            self.push(&mut edge, separators, full, leaf);
        }
        for (_, node) in &edge {
            // SAFETY: the separators are in the tree, which nothing else frees.
            unsafe { node.set_words() };
        }
        if let Some((handle, top)) = edge.pop() {
            let root = self.root();
            root.reset(top.meta().level, 0);
            root.copy_from(top);
            self.arena.free(handle);
        }
        result
    }

    /// Adds a separator and a child at the right edge, at level 1. If a node is full enough, starts
    /// another and continues a level up.
    fn push<'i>(
        &'i self,
        edge: &mut Vec<(u32, &'i Node<S>)>,
        separators: usize,
        full: S::Full,
        mut child: u32,
    ) {
        for level in 1.. {
            let (old, node) = edge[level - 1];
            if node.meta().count < separators {
                // SAFETY: the caller has just allocated the separator, or taken it from below, so
                // it is not freed.
                unsafe { node.append(full, child) };
                return;
            }
            // SAFETY: the separators are in the tree, which nothing else frees.
            unsafe { node.set_words() };
            let new = self.new_node(node.meta().level, child);
            child = new.0;
            edge[level - 1] = new;
            if edge.len() == level {
                // The level has just got its second node, so it needs one above.
                edge.push(self.new_node(new.1.meta().level + 1, old));
            }
        }
    }

    /// Calls `f` for each leaf in order, with the smallest key routed to it (`None` for the first).
    /// For use while no thread writes. Beside writers it is safe, but may miss leaves and report
    /// wrong ones.
    pub fn for_each_leaf(&self, mut f: impl FnMut(Option<&S>, u32)) {
        let _guard = crossbeam_epoch::pin();
        self.walk(ROOT, u32::MAX, None, &mut f);
    }

    fn walk(
        &self,
        handle: u32,
        above: u32,
        low: Option<S::Full>,
        f: &mut impl FnMut(Option<&S>, u32),
    ) {
        if handle >= self.capacity {
            return;
        }
        // SAFETY: the handle is below the capacity, so inside the mapping, where memory always
        // holds a node.
        let node = unsafe { self.node(handle) };
        let meta = node.meta();
        // Beside writers it may be another node by now. The descent ends all the same.
        if meta.level >= above {
            return;
        }
        for i in 0..=meta.count.min(NODE_SEPARATORS) {
            let low = if i == 0 { low } else { node.separator(i - 1) };
            let child = node.child(i);
            if meta.level == 1 {
                // SAFETY: the walk is pinned, so the separator is not freed meanwhile.
                f(low.as_ref().map(|full| unsafe { S::view(full) }), child);
            } else {
                self.walk(child, meta.level, low, f);
            }
        }
    }

    /// Calls `f` for each separator of the subtree. No other thread uses the index.
    pub(super) fn each_separator(&self, handle: u32, f: &mut impl FnMut(S::Full)) {
        // SAFETY: the handle is the root's, or was read from a node above level 1 that no thread
        // changes.
        let node = unsafe { self.node(handle) };
        let meta = node.meta();
        if meta.level > 1 {
            for i in 0..=meta.count {
                self.each_separator(node.child(i), f);
            }
        }
        for i in 0..meta.count {
            if let Some(full) = node.separator(i) {
                f(full);
            }
        }
    }

    /// Returns depth, nodes and bytes.
    #[must_use]
    pub fn stats(&self) -> InnerStats {
        let (nodes, bytes) = self.arena.usage();
        InnerStats {
            depth: self.root().meta().level,
            nodes,
            bytes,
        }
    }

    /// Checks the invariants of this module and of every node. No thread may write meanwhile.
    ///
    /// # Errors
    /// The first [`Violation`] found.
    pub fn verify(&self) -> Result<InnerStats, Violation> {
        let _guard = crossbeam_epoch::pin();
        let stats = self.stats();
        let mut seen = 0;
        self.verify_node(ROOT, stats.depth, None, None, &mut seen)?;
        if seen > stats.nodes {
            return Err(Violation::new(format!(
                "{seen} inner nodes can be reached, {} are handed out: one has two parents",
                stats.nodes
            )));
        }
        Ok(stats)
    }

    fn verify_node(
        &self,
        handle: u32,
        level: u32,
        low: Option<&S>,
        high: Option<&S>,
        seen: &mut u64,
    ) -> Result<(), Violation> {
        let broken = |what: String| Err(Violation::new(format!("inner node {handle}: {what}")));
        if handle >= self.capacity {
            return broken(format!("no such node, the arena holds {}", self.capacity));
        }
        // SAFETY: the handle is below the capacity, so inside the mapping, where memory always
        // holds a node.
        let node = unsafe { self.node(handle) };
        *seen += 1;
        let meta = node.meta();
        if meta.level != level || level == 0 {
            return broken(format!("level {}, but {level} expected", meta.level));
        }
        if meta.count > CAP {
            return broken(format!("{} separators, at most {CAP} fit", meta.count));
        }
        if node.version.is_busy_or_obsolete() {
            return broken("locked or obsolete".into());
        }
        node.verify_slots().or_else(broken)?;
        let mut fulls = Vec::with_capacity(meta.count);
        for i in 0..meta.count {
            let Some(full) = node.separator(i) else {
                return broken(format!("separator {i} is missing"));
            };
            fulls.push(full);
        }
        // SAFETY: 1. the separators are in the index; 2. the walk is pinned, so they are not freed
        // meanwhile.
        let separators: Vec<&S> = fulls.iter().map(|full| unsafe { S::view(full) }).collect();
        for (i, &separator) in separators.iter().enumerate() {
            if i > 0 && separators[i - 1] >= separator {
                return broken(format!(
                    "separator {i}, {separator:?}, is not above the one before"
                ));
            }
            if low.is_some_and(|low| separator <= low) || high.is_some_and(|high| separator >= high)
            {
                return broken(format!(
                    "separator {i}, {separator:?}, is outside the node's range {low:?} .. {high:?}"
                ));
            }
        }
        if level > 1 {
            for i in 0..=meta.count {
                let low = if i == 0 { low } else { Some(separators[i - 1]) };
                let high = if i == meta.count {
                    high
                } else {
                    Some(separators[i])
                };
                self.verify_node(node.child(i), level - 1, low, high, seen)?;
            }
        }
        Ok(())
    }
}
