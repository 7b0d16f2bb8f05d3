//! Bulk load: a tree is built beside the empty one, level by level, and one version commits it.
//!
//! Persist cost: every line once, and 2 fences in all.

use super::node::Entry;
use super::{CddsTree, LEVELS, RootNode, Writer, offset};
use crate::index::{Fill, InsertError};
use crate::repr::{KeyRepr, Repr};
use bristlecone_pmem::{Media, SpaceError};
use std::borrow::Borrow;
use std::sync::atomic::Ordering;

/// Nodes and records that nothing leads to yet. They are freed if the load fails.
#[derive(Default)]
struct Built {
    nodes: Vec<u32>,
    /// Key and value words.
    pairs: Vec<(u64, u64)>,
    separators: Vec<u64>,
    inner_nodes: u64,
}

impl<K: KeyRepr + ?Sized, V: Repr + ?Sized, M: Media> CddsTree<K, V, M> {
    pub(super) fn load_sorted<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        let mut writer: Writer = *self.writer_mut();
        if writer.entries > 0 {
            return Err(InsertError::KeyExists);
        }
        let v = writer.version + 1;
        let mut built = Built::default();
        let top = match self.build(sorted, fill.of(self.slots()), v, &mut built) {
            Ok(Some(top)) => top,
            Ok(None) => return Ok(0),
            Err(e) => {
                self.discard(built);
                return Err(e);
            }
        };
        let pm = self.pm();
        let old = self.top();
        self.prepare_root(&mut writer, top, v);
        // PERSIST: all nodes and records, before the version is committed that makes them the tree.
        pm.fence();
        self.commit_version(&mut writer, v);
        // ORDERING: Relaxed; no other thread has the tree.
        self.top.store(top.word(), Ordering::Relaxed);
        writer.entries = built.pairs.len() as u64;
        writer.inner_nodes = built.inner_nodes;
        writer.leaves = built.nodes.len() as u64 - built.inner_nodes;
        *self.writer_mut() = writer;
        self.retire_node(old.handle, &crossbeam_epoch::pin());
        self.commit()?;
        Ok(writer.entries)
    }

    /// Builds leaves with `per_leaf` entries and the levels above them. Returns the root, or `None`
    /// if there are no pairs.
    fn build<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        sorted: impl Iterator<Item = (Q, W)>,
        per_leaf: usize,
        v: u64,
        built: &mut Built,
    ) -> Result<Option<RootNode>, InsertError> {
        let mut last: Option<Q> = None;
        for (key, value) in sorted {
            let (k, v) = (key.borrow(), value.borrow());
            self.check_pair(k, v)?;
            if last.as_ref().is_some_and(|last| last.borrow() >= k) {
                return Err(InsertError::KeyExists);
            }
            built.pairs.push(self.make_pair(k, v)?);
            last = Some(key);
        }
        if built.pairs.is_empty() {
            return Ok(None);
        }
        let mut entries: Vec<Entry> = (built.pairs.iter())
            .map(|(key, value)| Entry::live(*key, *value, v))
            .collect();
        let mut per_node = per_leaf;
        for level in 0..LEVELS {
            let mut parents = Vec::with_capacity(entries.len() / per_node + 1);
            for chunk in entries.chunks_mut(per_node) {
                let separator = if level > 0 {
                    // The separator moves up; the first entry of a node needs none.
                    std::mem::take(&mut chunk[0].key)
                } else if parents.is_empty() {
                    0
                } else {
                    let copy = K::read(self.pm(), chunk[0].key, |key| key.make(&self.heap));
                    let copy = copy.ok_or_else(super::corrupt)??;
                    built.separators.push(copy);
                    copy
                };
                let handle = self.new_node()?;
                built.nodes.push(handle);
                // PERSIST: (in `fill`) the node, fenced before the version is committed.
                self.node(handle).fill(self.pm(), chunk);
                parents.push(Entry::live(separator, offset(handle), v));
            }
            if level > 0 {
                built.inner_nodes += parents.len() as u64;
            }
            if let [root] = parents[..] {
                let handle = (root.value / super::UNIT) as u32;
                return Ok(Some(RootNode {
                    handle,
                    level: level as u8,
                }));
            }
            entries = parents;
            // Nodes with one child each would never come to an end.
            per_node = per_leaf.max(2);
        }
        Err(InsertError::Space(SpaceError::Capacity {
            wanted: LEVELS as u64 + 1,
            capacity: LEVELS as u64,
        }))
    }

    fn discard(&self, built: Built) {
        for pair in built.pairs {
            self.free_pair(pair);
        }
        for separator in built.separators {
            K::discard(&self.heap, separator);
        }
        self.free_nodes(&built.nodes);
    }
}
