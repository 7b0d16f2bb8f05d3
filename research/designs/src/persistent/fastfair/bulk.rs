//! Bulk load: a tree is built beside the empty one, level by level, and one NAW of the root word
//! switches to it.
//!
//! Persist cost: every used line once, and 2 fences in all.

use super::node::{child, to_child};
use super::{FastFair, offset};
use crate::index::{Fill, InsertError};
use crate::repr::{PairOf, Stored, StoredKey, WordOf};
use bristlecone_pmem::{Media, SpaceError};
use std::borrow::Borrow;

/// Fill of inner nodes.
const INNER_FILL: Fill = match Fill::percent(85) {
    Some(fill) => fill,
    None => Fill::FULL,
};

/// Nodes and records that nothing leads to yet. They are freed if the load fails.
struct Made<K: StoredKey + ?Sized, V: Stored + ?Sized> {
    nodes: Vec<u32>,
    /// Key and value words.
    pairs: Vec<PairOf<K, V>>,
    lows: Vec<WordOf<K>>,
}

impl<K: StoredKey + ?Sized, V: Stored + ?Sized, M: Media> FastFair<K, V, M> {
    pub(super) fn load_sorted<Q: Borrow<K>, W: Borrow<V>>(
        &mut self,
        sorted: impl Iterator<Item = (Q, W)>,
        fill: Fill,
    ) -> Result<u64, InsertError> {
        if self.read_only {
            return Err(InsertError::ReadOnly);
        }
        let pm = self.pm();
        let old = self.top();
        if self.node(old).level(pm) > 0 || self.node(old).count(pm) > 0 {
            return Err(InsertError::KeyExists);
        }
        let mut made = Made {
            nodes: Vec::new(),
            pairs: Vec::new(),
            lows: Vec::new(),
        };
        let built = (self.gather(sorted, &mut made)).and_then(|()| {
            self.build(fill.of(self.capacity), &mut made)
                .map_err(InsertError::from)
        });
        let top = match built {
            Ok(Some(top)) => top,
            Ok(None) => return Ok(0),
            Err(e) => {
                self.discard(made);
                return Err(e);
            }
        };
        // PERSIST: all nodes and records, before the root word that leads to them.
        pm.fence();
        self.publish_top(top);
        self.retire_node(old, 0, K::Word::default(), &crossbeam_epoch::pin());
        self.commit()?;
        Ok(made.pairs.len() as u64)
    }

    /// Makes the words of all pairs.
    fn gather<Q: Borrow<K>, W: Borrow<V>>(
        &self,
        sorted: impl Iterator<Item = (Q, W)>,
        made: &mut Made<K, V>,
    ) -> Result<(), InsertError> {
        let mut last: Option<Q> = None;
        for (key, value) in sorted {
            let (k, v) = (key.borrow(), value.borrow());
            self.check_pair(k, v)?;
            if last.as_ref().is_some_and(|last| last.borrow() >= k) {
                return Err(InsertError::KeyExists);
            }
            made.pairs.push(self.make_pair(k, v)?);
            last = Some(key);
        }
        Ok(())
    }

    /// Builds all levels over the pairs. Returns the root's handle, if there is any node.
    fn build(&self, per_leaf: usize, made: &mut Made<K, V>) -> Result<Option<u32>, SpaceError> {
        let mut above = self.build_level(0, &made.pairs.clone(), per_leaf, made)?;
        let per_node = INNER_FILL.of(self.capacity).max(2);
        let mut level = 0;
        while above.len() > 1 {
            level += 1;
            above = self.build_level(level, &above, per_node, made)?;
        }
        Ok(above.first().and_then(|(_, top)| self.handle(child(*top))))
    }

    /// Builds the nodes of one level. Returns their low words and offsets.
    fn build_level(
        &self,
        level: usize,
        entries: &[PairOf<K, V>],
        per_node: usize,
        made: &mut Made<K, V>,
    ) -> Result<Vec<PairOf<K, V>>, SpaceError> {
        let nodes = entries.len().div_ceil(per_node);
        // Leaves are as full as was asked for. Inner nodes share their children evenly, so that
        // none has one child.
        let part = |i: usize| match level {
            0 => (i * per_node).min(entries.len()),
            _ => entries.len() * i / nodes,
        };
        let mut above = Vec::with_capacity(nodes);
        let mut node = match nodes {
            0 => return Ok(above),
            _ => self.new_node()?,
        };
        made.nodes.push(node);
        for i in 0..nodes {
            let entries = &entries[part(i)..part(i + 1)];
            let low = match (i, level) {
                (0, _) => K::Word::default(),
                (_, 0) => {
                    let low = self.copy_key(entries[0].0)?;
                    made.lows.push(low);
                    low
                }
                _ => entries[0].0,
            };
            let next = match i + 1 < nodes {
                true => Some(self.new_node()?),
                false => None,
            };
            made.nodes.extend(next);
            // PERSIST: (in `fill_new`) the node, fenced before the root word is published.
            self.fill_new(node, level, next.map_or(0, offset), low, entries);
            above.push((low, to_child(offset(node))));
            node = next.unwrap_or(node);
        }
        Ok(above)
    }

    /// Frees everything.
    fn discard(&self, made: Made<K, V>) {
        for pair in made.pairs {
            self.free_pair(pair);
        }
        for low in made.lows {
            K::discard(&self.heap, low);
        }
        for node in made.nodes {
            self.free_node(node);
        }
    }
}
