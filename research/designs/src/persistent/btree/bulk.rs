//! Bulk load: a tree is built beside the empty one, and one NAW of the root word switches to it.
//!
//! Persist cost: every line once, and 2 fences in all.

use super::kind::{Kind, Leaf};
use super::{BTree, ROOT};
use crate::index::{Fill, InsertError};
use crate::link;
use crate::repr::{PairOf, Stored, StoredKey, WordOf};
use bristlecone_pmem::{Media, POff, SpaceError};
use std::borrow::Borrow;

/// Fill of inner nodes.
const INNER_FILL: Fill = match Fill::percent(85) {
    Some(fill) => fill,
    None => Fill::FULL,
};

/// Nodes and records made so far. Nothing leads to them yet.
struct Made<K: StoredKey + ?Sized, V: Stored + ?Sized> {
    /// Handles of all nodes.
    nodes: Vec<u32>,
    /// Separators and offsets of the nodes of the level under construction; the first has no
    /// separator (0).
    level: Vec<(WordOf<K>, u64)>,
    /// Pairs of the leaf that is being filled.
    pairs: Vec<PairOf<K, V>>,
    /// A full leaf's pairs, which are written once its successor's offset is known.
    waiting: Option<(u32, Vec<PairOf<K, V>>)>,
    entries: u64,
}

// Not derived, because that would require `K: Default`.
impl<K: StoredKey + ?Sized, V: Stored + ?Sized> Default for Made<K, V> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            level: Vec::new(),
            pairs: Vec::new(),
            waiting: None,
            entries: 0,
        }
    }
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media, D: Kind> BTree<K, V, M, D> {
    pub(super) fn load_sorted<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        let old = self.node(self.top);
        if old.level(self.pm()) > 0 || D::Leaf::len::<K::Word, V::Word, M>(old, self.pm()) > 0 {
            return Err(InsertError::KeyExists);
        }
        let mut made = Made::<K, V>::default();
        let built = self
            .build_leaves(sorted, fill.of(self.leaf_capacity()), &mut made)
            .and_then(|()| self.build_inner(&mut made).map_err(InsertError::from));
        let top = match built {
            Ok(Some(top)) => top,
            Ok(None) => return Ok(0),
            Err(e) => {
                self.discard(made);
                return Err(e);
            }
        };
        let pm = self.pm();
        // PERSIST: all nodes and records, before the root word that leads to them.
        pm.fence();
        // PERSIST: (in `publish`) the root word; the loaded nodes are the tree.
        let root = link::word(self.node(top).offset());
        self.root().word(ROOT).publish(pm, root);
        let guard = crossbeam_epoch::pin();
        self.heap.retire(POff::new(old.offset()), &guard);
        let entries = made.entries;
        self.top = top;
        self.commit()?;
        Ok(entries)
    }

    fn build_leaves<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        sorted: impl Iterator<Item = (Q, W)>,
        per_leaf: usize,
        made: &mut Made<K, V>,
    ) -> Result<(), InsertError> {
        let mut last: Option<Q> = None;
        for (key, value) in sorted {
            self.check_pair(key.borrow(), value.borrow())?;
            if last
                .as_ref()
                .is_some_and(|last| last.borrow() >= key.borrow())
            {
                return Err(InsertError::KeyExists);
            }
            if made.pairs.len() == per_leaf {
                self.seal(made)?;
            }
            made.pairs
                .push(self.make_pair(key.borrow(), value.borrow())?);
            made.entries += 1;
            last = Some(key);
        }
        if !made.pairs.is_empty() {
            self.seal(made)?;
        }
        self.write_waiting(made, 0);
        Ok(())
    }

    /// Makes the gathered pairs the next leaf.
    fn seal(&self, made: &mut Made<K, V>) -> Result<(), SpaceError> {
        let separator = if made.level.is_empty() {
            K::Word::default()
        } else {
            self.copy_key(made.pairs[0].0)?
        };
        let leaf = match self.new_node() {
            Ok(leaf) => leaf,
            Err(e) => {
                if !made.level.is_empty() {
                    K::discard(&self.heap, separator);
                }
                return Err(e);
            }
        };
        made.level.push((separator, leaf.offset()));
        self.write_waiting(made, leaf.offset());
        made.waiting = Some((leaf.at, std::mem::take(&mut made.pairs)));
        Ok(())
    }

    /// Writes the last leaf, whose successor is at `next`.
    fn write_waiting(&self, made: &mut Made<K, V>, next: u64) {
        if let Some((at, pairs)) = made.waiting.take() {
            let leaf = self.node(at);
            D::Leaf::fill(leaf, self.pm(), &pairs, next);
            // PERSIST: the leaf, fenced before the root word is published.
            self.flush_new(leaf);
            made.nodes.push(at);
        }
    }

    /// Builds the inner levels. Returns the root's handle, if there is any node.
    fn build_inner(&self, made: &mut Made<K, V>) -> Result<Option<u32>, SpaceError> {
        let children = 1 + INNER_FILL.of(self.inner_capacity());
        let mut level = 0;
        while made.level.len() > 1 {
            level += 1;
            // Evenly, so that no node is left with one child.
            let nodes = made.level.len().div_ceil(children);
            let total = made.level.len();
            let mut above = Vec::with_capacity(nodes);
            for i in 0..nodes {
                let part = total * i / nodes..total * (i + 1) / nodes;
                let node = match self.new_node() {
                    Ok(node) => node,
                    Err(e) => {
                        // `level` has everything that is not in a node yet: separators that moved
                        // up, and the rest.
                        above.extend_from_slice(&made.level[part.start..]);
                        made.level = above;
                        return Err(e);
                    }
                };
                let (separator, first) = made.level[part.start];
                let rest = &made.level[part.start + 1..part.end];
                node.inner::<K>().fill(self.pm(), level, first, rest);
                // PERSIST: the inner node, likewise.
                self.flush_new(node);
                made.nodes.push(node.at);
                above.push((separator, node.offset()));
            }
            made.level = above;
        }
        Ok(made.level.first().and_then(|(_, top)| self.handle(*top)))
    }

    /// Frees everything.
    fn discard(&self, made: Made<K, V>) {
        let pm = self.pm();
        let Made {
            nodes,
            level,
            mut pairs,
            waiting,
            ..
        } = made;
        if let Some((at, waiting)) = waiting {
            pairs.extend(waiting);
            self.free_node(self.node(at));
        }
        for pair in pairs {
            self.free_pair(pair);
        }
        for (separator, _) in level.into_iter().skip(1) {
            K::discard(&self.heap, separator);
        }
        let mut entries = Vec::new();
        for at in nodes {
            let node = self.node(at);
            if node.level(pm) == 0 {
                D::Leaf::entries(node, pm, &mut entries);
                for pair in &entries {
                    self.free_pair(*pair);
                }
            } else {
                let node = node.inner::<K>();
                for i in 0..node.count(pm) {
                    K::discard(&self.heap, node.key(pm, i));
                }
            }
            self.free_node(node);
        }
    }
}
